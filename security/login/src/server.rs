//! Login, server side: [`ServerKeys::challenge`] → [`ServerStarted`] → [`ServerProven`] →
//! [`SessionKeys`].

use alloc::vec::Vec;

use opaque_ke::{
    CredentialFinalization, CredentialRequest, Identifiers, RegistrationRequest, ServerLogin,
    ServerLoginParameters, ServerRegistration, ServerSetup,
};
use sealstone_mds_protocol::login::{
    LoginChallenge, LoginFinish, LoginOk, LoginStart, REGISTRATION_REQUEST_BYTES,
    REGISTRATION_RESPONSE_BYTES, SessionId,
};
use sealstone_mds_protocol::{Text, UserName};
use zeroize::Zeroizing;

use crate::keys::{OpaqueKey, transcript};
use crate::{AccountRecord, CryptoRng, LoginContext, LoginFailure, OpaqueSuite, RngCore, SessionKeys};

/// The server's long-term keys: OPRF seed, key pair, and the public key shown for users that do not
/// exist.
///
/// With them and the account records passwords can be guessed offline, so they are stored like
/// keys.
pub struct ServerKeys(ServerSetup<OpaqueSuite>);

impl ServerKeys {
    /// Creates keys for a new server.
    #[must_use]
    pub fn generate<R: RngCore + CryptoRng>(rng: &mut R) -> Self {
        Self(ServerSetup::new(rng))
    }

    /// Returns the bytes to be stored.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.serialize().to_vec())
    }

    /// Restores stored bytes.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LoginFailure> {
        ServerSetup::deserialize(bytes).map(Self).map_err(|_| LoginFailure::Damaged)
    }

    /// Answers a registration request; no state is kept.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn register(
        &self,
        user: &UserName,
        request: &[u8; REGISTRATION_REQUEST_BYTES],
    ) -> Result<[u8; REGISTRATION_RESPONSE_BYTES], LoginFailure> {
        let request = RegistrationRequest::deserialize(request)?;
        let response = ServerRegistration::<OpaqueSuite>::start(&self.0, request, user.as_str().as_bytes())?;
        response.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)
    }

    /// Answers LOGIN_START. Without a record (unknown user, disabled account, other suite) the
    /// answer is a fake that costs and looks the same; it fails at the third message.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn challenge<R: RngCore + CryptoRng>(
        &self,
        rng: &mut R,
        record: Option<&AccountRecord>,
        start: &LoginStart,
        context: LoginContext,
        login_id: [u8; 16],
        time_ms: u64,
        max_error_ms: u32,
    ) -> Result<(LoginChallenge, ServerStarted), LoginFailure> {
        let user = start.user.as_str().as_bytes();
        let parameters = ServerLoginParameters {
            context: Some(context.as_slice()),
            identifiers: Identifiers { client: Some(user), server: None },
        };
        let request = CredentialRequest::deserialize(&start.ke1)?;
        let answer =
            ServerLogin::start(rng, &self.0, record.map(AccountRecord::inner), request, user, parameters)?;
        let ke2 = answer.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)?;
        let challenge = LoginChallenge { login_id, ke2, time_ms, max_error_ms };
        let started = ServerStarted {
            state: answer.state,
            start: start.clone(),
            challenge: challenge.clone(),
            context,
        };
        Ok((challenge, started))
    }
}

/// LOGIN_CHALLENGE is sent, LOGIN_FINISH is awaited.
pub struct ServerStarted {
    state: ServerLogin<OpaqueSuite>,
    start: LoginStart,
    challenge: LoginChallenge,
    context: LoginContext,
}

impl ServerStarted {
    /// Returns the claimed user.
    #[must_use]
    pub const fn user(&self) -> &UserName {
        &self.start.user
    }

    /// Returns the number of this login.
    #[must_use]
    pub const fn login_id(&self) -> [u8; 16] {
        self.challenge.login_id
    }

    /// Checks the client's proof.
    ///
    /// # Errors
    /// `Refused` for every defect of it.
    pub fn finish(self, finish: &LoginFinish) -> Result<ServerProven, LoginFailure> {
        if finish.login_id != self.challenge.login_id {
            return Err(LoginFailure::Refused);
        }
        let parameters = ServerLoginParameters {
            context: Some(self.context.as_slice()),
            identifiers: Identifiers { client: Some(self.start.user.as_str().as_bytes()), server: None },
        };
        let proof = CredentialFinalization::<OpaqueSuite>::deserialize(&finish.ke3)
            .map_err(|_| LoginFailure::Refused)?;
        let finished = self.state.finish(proof, parameters).map_err(|_| LoginFailure::Refused)?;
        Ok(ServerProven {
            key: OpaqueKey::new(&finished.session_key)?,
            transcript: transcript(&self.start, &self.challenge, finish),
            user: self.start.user,
        })
    }
}

/// Terms of a new session.
#[derive(Clone, Debug)]
pub struct SessionTerms {
    /// The session.
    pub session: SessionId,
    /// Latest end of the session, milliseconds since 1970.
    pub expires_ms: u64,
    /// Idle seconds after which it also ends.
    pub idle_s: u32,
    /// Comma-separated roles.
    pub roles: Text<255>,
}

/// The client has proven the password; a session may be opened.
pub struct ServerProven {
    key: OpaqueKey,
    transcript: Zeroizing<[u8; 64]>,
    user: UserName,
}

impl ServerProven {
    /// Returns the authenticated user.
    #[must_use]
    pub const fn user(&self) -> &UserName {
        &self.user
    }

    /// Opens the session: returns the last message and the keys.
    #[must_use]
    pub fn open(self, terms: SessionTerms) -> (LoginOk, SessionKeys) {
        let mut ok = LoginOk {
            session: terms.session,
            epoch: 0,
            expires_ms: terms.expires_ms,
            idle_s: terms.idle_s,
            roles: terms.roles,
            confirm: [0; 32],
        };
        ok.confirm = self.key.confirm(&self.transcript, &ok);
        let keys = self.key.session(&ok.session, ok.epoch);
        (ok, keys)
    }
}
