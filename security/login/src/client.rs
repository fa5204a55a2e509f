//! Login, client side: [`begin_login`] → [`ClientBegun`] → [`ClientStarted`] → [`ClientProven`] →
//! [`SessionKeys`].

use alloc::vec::Vec;

use opaque_ke::{ClientLogin, ClientLoginFinishParameters, CredentialResponse, Identifiers};
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::login::{LoginChallenge, LoginFinish, LoginOk, LoginStart};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::keys::{OpaqueKey, transcript};
use crate::{CryptoRng, LoginContext, LoginFailure, OpaqueSuite, RngCore, SessionKeys, Stretch};

/// LOGIN_START is ready; the server need not be known yet.
pub struct ClientBegun {
    state: ClientLogin<OpaqueSuite>,
    start: LoginStart,
    password: Zeroizing<Vec<u8>>,
}

/// LOGIN_START is sent, LOGIN_CHALLENGE is awaited.
pub struct ClientStarted {
    begun: ClientBegun,
    context: LoginContext,
}

/// Begins a login with any server: its identity is determined with its answer.
///
/// # Errors
/// `OpaqueSuite`; `Malformed` for an empty password or one over 65,535 bytes.
pub fn begin_login<R: RngCore + CryptoRng>(
    rng: &mut R,
    suite: u16,
    user: &UserName,
    password: &[u8],
) -> Result<(LoginStart, ClientBegun), LoginFailure> {
    Stretch::for_suite(suite)?;
    let started = ClientLogin::<OpaqueSuite>::start(rng, password)?;
    let ke1 = started.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)?;
    let start = LoginStart { suite, user: user.clone(), capabilities: 0, ke1 };
    let password = Zeroizing::new(password.to_vec());
    Ok((start.clone(), ClientBegun { state: started.state, start, password }))
}

/// Like [`begin_login`], with a known server.
///
/// # Errors
/// As [`begin_login`].
pub fn start_login<R: RngCore + CryptoRng>(
    rng: &mut R,
    suite: u16,
    user: &UserName,
    password: &[u8],
    context: LoginContext,
) -> Result<(LoginStart, ClientStarted), LoginFailure> {
    let (start, begun) = begin_login(rng, suite, user, password)?;
    Ok((start, begun.with(context)))
}

impl ClientBegun {
    /// Continues with one server over one channel.
    #[must_use]
    pub const fn with(self, context: LoginContext) -> ClientStarted {
        ClientStarted { begun: self, context }
    }
}

impl ClientStarted {
    /// Checks the server's proof and proves the password. Runs Argon2id: three passes over 64 MiB
    /// with the standard suite.
    ///
    /// # Errors
    /// `Refused` for a wrong password, an unknown user, another server or another channel;
    /// `Malformed`, `Stretch`.
    pub fn challenge<R: RngCore + CryptoRng>(
        self,
        rng: &mut R,
        challenge: LoginChallenge,
    ) -> Result<(LoginFinish, ClientProven), LoginFailure> {
        let ClientBegun { state, start, password } = self.begun;
        let stretch = Stretch::for_suite(start.suite)?;
        let identifiers = Identifiers { client: Some(start.user.as_str().as_bytes()), server: None };
        let parameters =
            ClientLoginFinishParameters::new(Some(self.context.as_slice()), identifiers, Some(stretch.ksf()));
        let response = CredentialResponse::deserialize(&challenge.ke2)?;
        let finished = state.finish(rng, &password, response, parameters)?;
        let ke3 = finished.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)?;
        let finish = LoginFinish { login_id: challenge.login_id, ke3 };
        let key = OpaqueKey::new(&finished.session_key)?;
        let transcript = transcript(&start, &challenge, &finish);
        Ok((finish, ClientProven { key, transcript }))
    }
}

/// LOGIN_FINISH is sent, LOGIN_OK is awaited.
pub struct ClientProven {
    key: OpaqueKey,
    transcript: Zeroizing<[u8; 64]>,
}

impl ClientProven {
    /// Checks that the server holds the session key and sent these terms.
    ///
    /// # Errors
    /// `Refused`.
    pub fn confirm(self, ok: &LoginOk) -> Result<SessionKeys, LoginFailure> {
        if bool::from(self.key.confirm(&self.transcript, ok).ct_eq(&ok.confirm)) {
            Ok(self.key.session(&ok.session, ok.epoch))
        } else {
            Err(LoginFailure::Refused)
        }
    }
}
