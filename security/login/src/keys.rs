//! Keys that both ends derive from a finished login.
//!
//! Source of truth: docs/standards/mds/login.md §4.4.

use hkdf::Hkdf;
use hkdf::hmac::{Hmac, Mac};
use sealstone_mds_protocol::login::{LoginChallenge, LoginFinish, LoginOk, LoginStart, Resume, SessionId};
use sealstone_mds_protocol::{Wire, WireWriter};
use sha2_opaque::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{ChannelBinding, LoginFailure};

/// Computes HKDF-Expand with SHA-512.
fn expand(key: &[u8], info: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut out = Zeroizing::new([0; 32]);
    Hkdf::<Sha512>::from_prk(key)
        .expect("a session key is as long as the hash")
        .expand_multi_info(info, &mut *out)
        .expect("32 bytes are within HKDF's limit");
    out
}

/// Hashes the bodies of the whole login; `ok` is included with its confirm field zeroed.
pub(crate) fn transcript(
    start: &LoginStart,
    challenge: &LoginChallenge,
    finish: &LoginFinish,
) -> Zeroizing<[u8; 64]> {
    let mut out = WireWriter::new();
    start.put(&mut out);
    challenge.put(&mut out);
    finish.put(&mut out);
    let body = out.finish(4096).expect("login bodies are shorter than 1 KiB");
    Zeroizing::new(Sha512::digest(body).into())
}

/// The key that both ends share after an OPAQUE exchange; 64 bytes.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct OpaqueKey([u8; 64]);

impl OpaqueKey {
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, LoginFailure> {
        Ok(Self(bytes.try_into().map_err(|_| LoginFailure::Malformed)?))
    }

    /// Returns `confirm` of a LoginOk that answers a login.
    pub(crate) fn confirm(&self, transcript: &[u8; 64], ok: &LoginOk) -> [u8; 32] {
        *expand(&self.0, &[b"osd login ok", transcript, &ok_digest(ok)])
    }

    pub(crate) fn session(&self, session: &SessionId, epoch: u32) -> SessionKeys {
        SessionKeys { resume: *expand(&self.0, &[b"osd resume", session, &epoch.to_be_bytes()]) }
    }
}

fn ok_digest(ok: &LoginOk) -> [u8; 64] {
    let mut out = WireWriter::new();
    LoginOk { confirm: [0; 32], ..ok.clone() }.put(&mut out);
    Sha512::digest(out.finish(4096).expect("a LoginOk is shorter than 1 KiB")).into()
}

/// The key for resuming a session on another channel: `K_resume`. There are no keys for records:
/// every channel of this profile is TLS, which has its own. Wiped when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SessionKeys {
    resume: [u8; 32],
}

impl SessionKeys {
    /// Returns the bytes that both ends may store.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.resume)
    }

    /// Restores stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self { resume: *bytes }
    }

    fn resume_mac(
        &self,
        label: &[u8],
        channel: &ChannelBinding,
        nonce: &[u8; 16],
        more: &[u8],
    ) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.resume).expect("HMAC takes any key");
        mac.update(label);
        mac.update(&channel.0);
        mac.update(nonce);
        mac.update(more);
        mac
    }

    /// Client: returns the message that resumes `session` on a new channel. `nonce` is random and
    /// fresh.
    #[must_use]
    pub fn resume(&self, session: SessionId, channel: &ChannelBinding, nonce: [u8; 16]) -> Resume {
        let mac = self.resume_mac(b"resume", channel, &nonce, &[]).finalize().into_bytes().into();
        Resume { session, nonce, mac }
    }

    /// Server: whether this message proves the session on this channel.
    #[must_use]
    pub fn proves(&self, message: &Resume, channel: &ChannelBinding) -> bool {
        self.resume_mac(b"resume", channel, &message.nonce, &[]).verify_slice(&message.mac).is_ok()
    }

    /// Server: returns `confirm` of the LoginOk that answers `message`.
    #[must_use]
    pub fn resume_confirm(&self, message: &Resume, channel: &ChannelBinding, ok: &LoginOk) -> [u8; 32] {
        self.resume_mac(b"resumed", channel, &message.nonce, &ok_digest(ok)).finalize().into_bytes().into()
    }

    /// Client: checks that this LoginOk is from the server that holds the session.
    ///
    /// # Errors
    /// `Refused`.
    pub fn check_resumed(
        &self,
        message: &Resume,
        channel: &ChannelBinding,
        ok: &LoginOk,
    ) -> Result<(), LoginFailure> {
        let same = self.resume_confirm(message, channel, ok).ct_eq(&ok.confirm);
        if bool::from(same) && ok.session == message.session { Ok(()) } else { Err(LoginFailure::Refused) }
    }
}

impl core::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SessionKeys")
    }
}
