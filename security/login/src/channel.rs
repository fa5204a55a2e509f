//! Channel binding: the server's id and the TLS exporter value that enter the transcript of a
//! login.

use alloc::vec::Vec;

const CONTEXT_LABEL: &[u8] = b"OSD-MDS-LOGIN-v1";
const AGAIN_LABEL: &[u8] = b"OSD-MDS-AGAIN-v1";

/// Identity of a metadata server, chosen at random when it is set up.
pub type ServerId = [u8; 16];

/// The shared secret of both ends of one secure channel: TLS exporter `EXPORTER-Channel-Binding`,
/// empty context, 32 bytes (RFC 9266).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChannelBinding(pub [u8; 32]);

/// Part of OPAQUE's transcript at both ends: a man in the middle has a different channel on each
/// side, so the proofs of one side are invalid on the other.
#[derive(Clone)]
pub struct LoginContext(Vec<u8>);

impl LoginContext {
    /// Returns `"OSD-MDS-LOGIN-v1" ‖ lv16(server id) ‖ exporter`.
    #[must_use]
    pub fn new(server: &ServerId, channel: &ChannelBinding) -> Self {
        let mut bytes = Vec::with_capacity(CONTEXT_LABEL.len() + 2 + server.len() + channel.0.len());
        bytes.extend_from_slice(CONTEXT_LABEL);
        bytes.extend_from_slice(&(server.len() as u16).to_be_bytes());
        bytes.extend_from_slice(server);
        bytes.extend_from_slice(&channel.0);
        Self(bytes)
    }

    /// Returns the context for proving within a session that the user still knows the password:
    /// `"OSD-MDS-AGAIN-v1" ‖ lv16(server id) ‖ session`. The label distinguishes it from logins,
    /// the session from other sessions.
    #[must_use]
    pub fn again(server: &ServerId, session: &[u8; 16]) -> Self {
        let length = (server.len() as u16).to_be_bytes();
        Self([AGAIN_LABEL, &length[..], server, session].concat())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}
