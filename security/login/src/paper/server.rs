//! Login, server side: [`check_init`] → [`CheckedInit`] → [`FreshInit`] → [`HalfOpen`] →
//! [`ServerProven`].
//!
//! More expensive checks come later: cookie (one hash), signature (one HMAC), the memory of nonces,
//! then one exponentiation; the second waits for the client's confirmation.

use sealstone_mds_protocol::paper::{
    Confirm, CookieRequest, CookieResponse, Identity, Init, InitResponse, NONCE_MIN, Nonce, PaperType, Proof,
    SessionOk,
};
use sealstone_mds_protocol::{BODY_MAX, UserName, Wire as _, WireWriter};

use super::client::{tbs1, tbs2, tbs3};
use super::group::{self, CheckedElement, OakleyGroup, SecretExponent};
use super::key::{Addresses, PassphraseKey, SigningKey};
use super::{Algorithms, Channel, PaperFailure, PaperSession, RecordFailure, ReplayCache};
use crate::{CryptoRng, RngCore};

/// A half-open login is dropped after this time, milliseconds.
pub const HALF_OPEN_MS: u64 = 5_000;

/// Requirements of a server.
#[derive(Clone, Debug)]
pub struct ServerTerms {
    /// Our identity ID(M).
    pub identity: Identity,
    /// Whether group 1 is accepted. It has 768 bits, and such numbers have been broken.
    pub takes_group_1: bool,
}

/// Conservative mode: returns the server's cookie, for a client that has the right one. No state is
/// kept.
///
/// # Errors
/// `ClientCookie`.
pub fn answer_cookie(
    key: &PassphraseKey,
    addresses: &Addresses,
    request: &CookieRequest,
) -> Result<CookieResponse, PaperFailure> {
    if !key.has_cookie(addresses.client, &request.client_cookie) {
        return Err(PaperFailure::ClientCookie);
    }
    let server_cookie = key.cookie(addresses.server);
    Ok(CookieResponse { client_cookie: request.client_cookie, server_cookie })
}

/// Checks everything about INIT that needs no memory and no exponentiation. `key` is the user's, or
/// [`PassphraseKey::dummy`].
///
/// # Errors
/// `ClientCookie`, `ServerCookie`, `Identity`, `Signature`, the group's and the algorithms'
/// failures.
pub fn check_init(
    terms: &ServerTerms,
    key: &PassphraseKey,
    addresses: &Addresses,
    init: Init,
) -> Result<CheckedInit, PaperFailure> {
    if !key.has_cookie(addresses.client, &init.client_cookie) {
        return Err(PaperFailure::ClientCookie);
    }
    // Zero in aggressive mode; else the cookie sent to the client.
    if init.server_cookie != [0; 8] && !key.has_cookie(addresses.server, &init.server_cookie) {
        return Err(PaperFailure::ServerCookie);
    }
    if addresses.has(init.client_nonce.as_slice()) {
        return Err(PaperFailure::NonceIsAddress);
    }
    let signing = key.signing(&init.client_nonce);
    signing.verify(&tbs1(&init), 1, &init.signature)?;
    if init.client == terms.identity {
        return Err(PaperFailure::Identity("the client has the server's name"));
    }
    if init.server != terms.identity {
        return Err(PaperFailure::Identity("another server is meant"));
    }
    let group = OakleyGroup::from_number(init.group).ok_or(PaperFailure::GroupUnknown(init.group))?;
    if group == OakleyGroup::Modp768 && !terms.takes_group_1 {
        return Err(PaperFailure::GroupRefused(init.group));
    }
    let peer = group::check(group, &init.public)?;
    let algorithms = Algorithms::choose(&init.offers)?;
    let server_cookie = key.cookie(addresses.server);
    Ok(CheckedInit { init, signing, group, peer, algorithms, server_cookie })
}

/// An INIT with a valid signature.
pub struct CheckedInit {
    init: Init,
    signing: SigningKey,
    group: OakleyGroup,
    peer: CheckedElement,
    algorithms: Algorithms,
    server_cookie: [u8; 8],
}

impl CheckedInit {
    /// Checks that it was not seen before, and remembers it.
    ///
    /// # Errors
    /// `Replay`.
    pub fn fresh(self, seen: &mut ReplayCache) -> Result<FreshInit, PaperFailure> {
        if seen.insert(&self.init.user, &self.init.client_nonce) {
            Ok(FreshInit(self))
        } else {
            Err(PaperFailure::Replay)
        }
    }
}

/// An INIT that arrived for the first time.
pub struct FreshInit(CheckedInit);

impl FreshInit {
    /// Returns the server's response.
    ///
    /// # Errors
    /// None in practice: a nonce of ours fits.
    pub fn respond<R: RngCore + CryptoRng + ?Sized>(
        self,
        rng: &mut R,
        now_ms: u64,
    ) -> Result<(InitResponse, HalfOpen), PaperFailure> {
        let CheckedInit { init, signing, group, peer, algorithms, server_cookie } = self.0;
        let mut nonce = [0; NONCE_MIN];
        rng.fill_bytes(&mut nonce);
        let exponent = SecretExponent::draw(group, rng);
        let mut response = InitResponse {
            client_cookie: init.client_cookie,
            server_cookie,
            group: init.group,
            user: init.user.clone(),
            server: init.server.clone(),
            client: init.client.clone(),
            server_nonce: Nonce::new(nonce)?,
            client_nonce: init.client_nonce.clone(),
            public: exponent.public(),
            choice: algorithms.list(),
            time_ms: now_ms,
            // Replaced below; a proof has at least one byte.
            signature: Proof::new([0])?,
        };
        response.signature = signing.sign(&tbs2(&init, &response));
        let until_ms = now_ms.saturating_add(HALF_OPEN_MS);
        let half =
            HalfOpen { init, response: response.clone(), signing, exponent, peer, algorithms, until_ms };
        Ok((response, half))
    }
}

/// RESP is sent, CONFIRM is awaited: sKEYID is not even computed.
pub struct HalfOpen {
    init: Init,
    response: InitResponse,
    signing: SigningKey,
    exponent: SecretExponent,
    peer: CheckedElement,
    algorithms: Algorithms,
    until_ms: u64,
}

impl HalfOpen {
    /// Returns the claimed user.
    #[must_use]
    pub const fn user(&self) -> &UserName {
        &self.init.user
    }

    /// Returns the previous response if this is the same INIT, byte by byte: then the response was
    /// lost.
    #[must_use]
    pub fn answered(&self, init: &Init) -> Option<&InitResponse> {
        (*init == self.init).then_some(&self.response)
    }

    /// Checks CONFIRM, and agrees on the key.
    ///
    /// # Errors
    /// `Late`, `Echo`, `Signature`.
    pub fn confirm(self, confirm: &Confirm, now_ms: u64) -> Result<ServerProven, PaperFailure> {
        let Self { init, response, signing, exponent, peer, algorithms, until_ms } = self;
        if now_ms > until_ms {
            return Err(PaperFailure::Late);
        }
        for (same, what) in [
            (confirm.client_cookie == init.client_cookie, "client cookie"),
            (confirm.server_cookie == response.server_cookie, "server cookie"),
            (confirm.client_nonce == init.client_nonce, "client nonce"),
            (confirm.server_nonce == response.server_nonce, "server nonce"),
        ] {
            if !same {
                return Err(PaperFailure::Echo(what));
            }
        }
        signing.verify(&tbs3(&init, &response), 3, &confirm.signature)?;
        let shared = exponent.agree(&peer);
        let session = PaperSession::new(
            algorithms,
            [&init.client_nonce, &response.server_nonce],
            &shared,
            [&init.client_cookie, &response.server_cookie],
        );
        Ok(ServerProven { user: init.user.clone(), session })
    }
}

/// The client knows k; a session may be opened.
pub struct ServerProven {
    user: UserName,
    session: PaperSession,
}

impl ServerProven {
    /// Returns the authenticated user.
    #[must_use]
    pub const fn user(&self) -> &UserName {
        &self.user
    }

    /// Returns the session's keys, for later connections.
    #[must_use]
    pub const fn session(&self) -> &PaperSession {
        &self.session
    }

    /// Opens the session: returns SESSION_OK as a frame, and the records that follow.
    ///
    /// # Errors
    /// None in practice: SESSION_OK fits.
    pub fn open<R: RngCore + CryptoRng + ?Sized>(
        self,
        rng: &mut R,
        terms: &SessionOk,
    ) -> Result<(alloc::vec::Vec<u8>, Channel), PaperFailure> {
        let mut channel = Channel::new(&self.session, false, &[]);
        let mut out = WireWriter::new();
        terms.put(&mut out);
        let content = out.finish(BODY_MAX).map_err(|_| RecordFailure::TooLong)?;
        let frame = channel.sealer.seal(rng, PaperType::SessionOk, &content)?;
        Ok((frame, channel))
    }
}
