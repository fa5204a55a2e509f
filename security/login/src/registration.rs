//! Registers a password for an account; the server never sees it.

use alloc::vec::Vec;

use opaque_ke::{
    ClientRegistration, ClientRegistrationFinishParameters, Identifiers, RegistrationResponse,
    RegistrationUpload, ServerRegistration,
};
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::login::{
    REGISTRATION_REQUEST_BYTES, REGISTRATION_RESPONSE_BYTES, REGISTRATION_UPLOAD_BYTES,
};
use zeroize::Zeroizing;

use crate::{CryptoRng, LoginFailure, OpaqueSuite, RngCore, Stretch};

/// Client: the request is sent, the response is awaited.
pub struct RegistrationStarted {
    state: ClientRegistration<OpaqueSuite>,
    user: UserName,
    password: Zeroizing<Vec<u8>>,
}

/// Client: begins the registration of `user` with a new password.
///
/// # Errors
/// `Malformed` for an empty password or one over 65,535 bytes.
pub fn start_registration<R: RngCore + CryptoRng>(
    rng: &mut R,
    user: &UserName,
    password: &[u8],
) -> Result<([u8; REGISTRATION_REQUEST_BYTES], RegistrationStarted), LoginFailure> {
    let started = ClientRegistration::<OpaqueSuite>::start(rng, password)?;
    let request = started.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)?;
    let password = Zeroizing::new(password.to_vec());
    Ok((request, RegistrationStarted { state: started.state, user: user.clone(), password }))
}

impl RegistrationStarted {
    /// Returns the record for the server. Runs Argon2id: three passes over 64 MiB with the standard
    /// suite.
    ///
    /// # Errors
    /// `Malformed`, `OpaqueSuite`, `Stretch`.
    pub fn finish<R: RngCore + CryptoRng>(
        self,
        rng: &mut R,
        suite: u16,
        response: &[u8; REGISTRATION_RESPONSE_BYTES],
    ) -> Result<[u8; REGISTRATION_UPLOAD_BYTES], LoginFailure> {
        let stretch = Stretch::for_suite(suite)?;
        let identifiers = Identifiers { client: Some(self.user.as_str().as_bytes()), server: None };
        let finished = self.state.finish(
            rng,
            &self.password,
            RegistrationResponse::deserialize(response)?,
            ClientRegistrationFinishParameters::new(identifiers, Some(stretch.ksf())),
        )?;
        finished.message.serialize().as_slice().try_into().map_err(|_| LoginFailure::Malformed)
    }
}

/// The server's record of a password: useless for logging in, and for guessing without the
/// server's keys.
#[derive(Clone)]
pub struct AccountRecord(ServerRegistration<OpaqueSuite>);

impl AccountRecord {
    /// Checks a record, uploaded or stored.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn parse(bytes: &[u8; REGISTRATION_UPLOAD_BYTES]) -> Result<Self, LoginFailure> {
        Ok(Self(ServerRegistration::finish(RegistrationUpload::deserialize(bytes)?)))
    }

    pub(crate) fn inner(&self) -> ServerRegistration<OpaqueSuite> {
        self.0.clone()
    }
}
