//! Resumes a session on another connection. The paper's session is bound to no connection (its
//! packets name it by KEYID). Over TCP a new connection has to name its session, and gets its own
//! keys.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::paper::{Continue, ContinueOk};

use super::{Channel, ClockReading, PaperFailure, PaperSession};
use crate::{CryptoRng, RngCore};

/// CONTINUE is sent, its answer is awaited.
pub struct AwaitingContinueOk {
    session: PaperSession,
    message: Continue,
}

impl PaperSession {
    /// Client: requests to continue the session `id` on a new connection.
    #[must_use]
    pub fn resume<R: RngCore + CryptoRng + ?Sized>(
        &self,
        rng: &mut R,
        id: SessionId,
    ) -> (Continue, AwaitingContinueOk) {
        let mut nonce = [0; 16];
        rng.fill_bytes(&mut nonce);
        let message = Continue { session: id, nonce, proof: self.proof(&[b"c", &id, &nonce]) };
        (message.clone(), AwaitingContinueOk { session: self.clone(), message })
    }
}

/// Server: checks that the peer is the one that logged in. The caller has found the session by its
/// number.
///
/// # Errors
/// `NoSession`.
pub fn answer_continue<R: RngCore + CryptoRng + ?Sized>(
    rng: &mut R,
    session: &PaperSession,
    message: &Continue,
    now_ms: u64,
) -> Result<(ContinueOk, Channel), PaperFailure> {
    if !session.proves(&[b"c", &message.session, &message.nonce], &message.proof) {
        return Err(PaperFailure::NoSession);
    }
    let mut nonce = [0; 16];
    rng.fill_bytes(&mut nonce);
    let proof = session.proof(&[b"m", &message.session, &message.nonce, &nonce, &now_ms.to_be_bytes()]);
    let channel = Channel::new(session, false, &[message.nonce, nonce].concat());
    Ok((ContinueOk { nonce, time_ms: now_ms, proof }, channel))
}

impl AwaitingContinueOk {
    /// Checks that the server holds the session too.
    ///
    /// # Errors
    /// `NoSession`.
    pub fn answer(
        self,
        ok: &ContinueOk,
        sent_ms: u64,
        received_ms: u64,
    ) -> Result<(Channel, Option<ClockReading>), PaperFailure> {
        let Continue { session, nonce, .. } = &self.message;
        if !self.session.proves(&[b"m", session, nonce, &ok.nonce, &ok.time_ms.to_be_bytes()], &ok.proof) {
            return Err(PaperFailure::NoSession);
        }
        let channel = Channel::new(&self.session, true, &[*nonce, ok.nonce].concat());
        Ok((channel, ClockReading::of(ok.time_ms, sent_ms, received_ms)))
    }
}
