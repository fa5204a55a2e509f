//! Login, client side: [`AwaitingCookie`] (conservative mode only) → [`AwaitingResponse`] →
//! [`AwaitingSession`].

use alloc::vec::Vec;

use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::decode_message;
use sealstone_mds_protocol::paper::{
    Confirm, CookieRequest, CookieResponse, Identity, Init, InitResponse, NONCE_MIN, Nonce, Offers,
    PaperHeader, PaperType, SessionOk,
};

use super::group::{self, OakleyGroup, SecretExponent};
use super::key::{Addresses, PassphraseKey, SigningKey};
use super::{Algorithms, Channel, ClockReading, PaperFailure, PaperSession};
use crate::{CryptoRng, RngCore};

/// Maximum number of retransmissions of an unanswered INIT, byte by byte the same.
pub const RETRANSMITS_MAX: u32 = 2;

/// User, peers and algorithms of a login.
#[derive(Clone, Debug)]
pub struct ClientTerms {
    /// The user.
    pub user: UserName,
    /// Our identity ID(C).
    pub client: Identity,
    /// ID(M) of the intended server.
    pub server: Identity,
    /// Addresses of both ends, as this end's socket sees them.
    pub addresses: Addresses,
    /// The group GRP.
    pub group: OakleyGroup,
    /// The offer EHAO.
    pub offers: Offers,
}

fn lv(out: &mut Vec<u8>, bytes: &[u8]) {
    // Every field of a login is shorter than 64 KiB.
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// `ID(C) ID(M) UID N_c ∅ GRP g^x ∅ EHAO`
pub(super) fn tbs1(init: &Init) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    lv(&mut out, init.client.as_slice());
    lv(&mut out, init.server.as_slice());
    lv(&mut out, init.user.as_str().as_bytes());
    lv(&mut out, init.client_nonce.as_slice());
    lv(&mut out, &[]);
    out.extend_from_slice(&init.group.to_be_bytes());
    lv(&mut out, init.public.as_slice());
    lv(&mut out, &[]);
    lv(&mut out, &init.offers.to_bytes());
    out
}

/// The fields that RESP adds, signed in two orders by the two ends.
fn tbs(first: &[&[u8]; 5], group: u32, second: &[&[u8]; 2], response: &InitResponse) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    first.iter().for_each(|field| lv(&mut out, field));
    out.extend_from_slice(&group.to_be_bytes());
    second.iter().for_each(|field| lv(&mut out, field));
    lv(&mut out, &response.choice.to_bytes());
    out.extend_from_slice(&response.time_ms.to_be_bytes());
    out
}

/// `ID(M) ID(C) UID N_m N_c GRP g^y g^x EHAS TS`
pub(super) fn tbs2(init: &Init, response: &InitResponse) -> Vec<u8> {
    let first = [
        response.server.as_slice(),
        response.client.as_slice(),
        init.user.as_str().as_bytes(),
        response.server_nonce.as_slice(),
        init.client_nonce.as_slice(),
    ];
    tbs(&first, init.group, &[response.public.as_slice(), init.public.as_slice()], response)
}

/// `ID(C) ID(M) UID N_c N_m GRP g^x g^y EHAS TS`
pub(super) fn tbs3(init: &Init, response: &InitResponse) -> Vec<u8> {
    let first = [
        init.client.as_slice(),
        init.server.as_slice(),
        init.user.as_str().as_bytes(),
        init.client_nonce.as_slice(),
        response.server_nonce.as_slice(),
    ];
    tbs(&first, init.group, &[init.public.as_slice(), response.public.as_slice()], response)
}

/// COOKIE_REQ is sent.
pub struct AwaitingCookie {
    terms: ClientTerms,
    key: PassphraseKey,
}

impl AwaitingCookie {
    /// Conservative mode: requests the server's cookie before the client computes anything.
    #[must_use]
    pub fn start(terms: ClientTerms, key: PassphraseKey) -> (CookieRequest, Self) {
        let client_cookie = key.cookie(terms.addresses.client);
        let request = CookieRequest { client_cookie, user: terms.user.clone() };
        (request, Self { terms, key })
    }

    /// Checks both cookies, and returns INIT.
    ///
    /// # Errors
    /// `Echo`, `ServerCookie`, `Identity`.
    pub fn answer<R: RngCore + CryptoRng + ?Sized>(
        self,
        rng: &mut R,
        response: &CookieResponse,
    ) -> Result<(Init, AwaitingResponse), PaperFailure> {
        let Self { terms, key } = self;
        if !key.has_cookie(terms.addresses.client, &response.client_cookie) {
            return Err(PaperFailure::Echo("client cookie"));
        }
        if !key.has_cookie(terms.addresses.server, &response.server_cookie) {
            return Err(PaperFailure::ServerCookie);
        }
        AwaitingResponse::begin(rng, terms, key, response.server_cookie)
    }
}

/// INIT is sent.
pub struct AwaitingResponse {
    terms: ClientTerms,
    key: PassphraseKey,
    signing: SigningKey,
    exponent: SecretExponent,
    init: Init,
    sent: u32,
}

impl AwaitingResponse {
    /// Aggressive mode: three messages in total.
    ///
    /// # Errors
    /// `Identity` if both ends would have one name.
    pub fn start<R: RngCore + CryptoRng + ?Sized>(
        rng: &mut R,
        terms: ClientTerms,
        key: PassphraseKey,
    ) -> Result<(Init, Self), PaperFailure> {
        Self::begin(rng, terms, key, [0; 8])
    }

    fn begin<R: RngCore + CryptoRng + ?Sized>(
        rng: &mut R,
        terms: ClientTerms,
        key: PassphraseKey,
        server_cookie: [u8; 8],
    ) -> Result<(Init, Self), PaperFailure> {
        if terms.client == terms.server {
            return Err(PaperFailure::Identity("client and server have one name"));
        }
        let mut nonce = [0; NONCE_MIN];
        rng.fill_bytes(&mut nonce);
        let client_nonce = Nonce::new(nonce)?;
        let exponent = SecretExponent::draw(terms.group, rng);
        let signing = key.signing(&client_nonce);
        let mut init = Init {
            client_cookie: key.cookie(terms.addresses.client),
            server_cookie,
            group: terms.group.number(),
            user: terms.user.clone(),
            client: terms.client.clone(),
            server: terms.server.clone(),
            client_nonce,
            public: exponent.public(),
            offers: terms.offers.clone(),
            // Replaced below; a proof has at least one byte.
            signature: sealstone_mds_protocol::paper::Proof::new([0])?,
        };
        init.signature = signing.sign(&tbs1(&init));
        Ok((init.clone(), Self { terms, key, signing, exponent, init, sent: 1 }))
    }

    /// Returns the same INIT again after a timeout, or `None` when it was sent often enough.
    pub fn again(&mut self) -> Option<&Init> {
        if self.sent > RETRANSMITS_MAX {
            return None;
        }
        self.sent += 1;
        Some(&self.init)
    }

    /// Checks RESP, agrees on the key, and returns CONFIRM.
    ///
    /// # Errors
    /// Any but `Replay`, `Late` and `NoSession`.
    pub fn answer(
        self,
        response: InitResponse,
        sent_ms: u64,
        received_ms: u64,
    ) -> Result<(Confirm, AwaitingSession), PaperFailure> {
        let Self { terms, key, signing, exponent, init, .. } = self;
        for (same, what) in [
            (response.client_cookie == init.client_cookie, "client cookie"),
            (response.client_nonce == init.client_nonce, "client nonce"),
            (response.user == init.user, "user"),
            (response.group == init.group, "group"),
        ] {
            if !same {
                return Err(PaperFailure::Echo(what));
            }
        }
        if response.server != terms.server {
            return Err(PaperFailure::Identity("another server answers"));
        }
        if response.client != terms.client {
            return Err(PaperFailure::Identity("the answer is for another client"));
        }
        if !key.has_cookie(terms.addresses.server, &response.server_cookie) {
            return Err(PaperFailure::ServerCookie);
        }
        let algorithms = Algorithms::chosen(&response.choice, &init.offers)?;
        signing.verify(&tbs2(&init, &response), 2, &response.signature)?;
        let peer = group::check(terms.group, &response.public)?;
        let shared = exponent.agree(&peer);
        let session = PaperSession::new(
            algorithms,
            [&init.client_nonce, &response.server_nonce],
            &shared,
            [&init.client_cookie, &response.server_cookie],
        );
        let confirm = Confirm {
            client_cookie: init.client_cookie,
            server_cookie: response.server_cookie,
            client_nonce: init.client_nonce.clone(),
            server_nonce: response.server_nonce.clone(),
            signature: signing.sign(&tbs3(&init, &response)),
        };
        let channel = Channel::new(&session, true, &[]);
        let clock = ClockReading::of(response.time_ms, sent_ms, received_ms);
        Ok((confirm, AwaitingSession { session, channel, clock, answered: response }))
    }
}

/// CONFIRM is sent.
pub struct AwaitingSession {
    session: PaperSession,
    channel: Channel,
    clock: Option<ClockReading>,
    answered: InitResponse,
}

/// A client's state after a login.
pub struct Opened {
    /// The session's number and end.
    pub terms: SessionOk,
    /// The session's keys, for later connections.
    pub session: PaperSession,
    /// Records of this connection.
    pub channel: Channel,
    /// The server's clock, if the round trip was short enough.
    pub clock: Option<ClockReading>,
}

impl AwaitingSession {
    /// Whether this RESP was answered already. It arrives again if INIT was retransmitted, and is
    /// ignored.
    #[must_use]
    pub fn is_repeat(&self, response: &InitResponse) -> bool {
        *response == self.answered
    }

    /// Opens SESSION_OK.
    ///
    /// # Errors
    /// `OutOfPlace`, `Record`, `Malformed`.
    pub fn open(mut self, header: &PaperHeader, body: &[u8]) -> Result<Opened, PaperFailure> {
        if header.kind != PaperType::SessionOk {
            return Err(PaperFailure::OutOfPlace);
        }
        let terms = decode_message(&self.channel.opener.open(header, body)?)?;
        Ok(Opened { terms, session: self.session, channel: self.channel, clock: self.clock })
    }
}
