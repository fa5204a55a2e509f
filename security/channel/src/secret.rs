//! The secret that a channel exports for a protection inside it.

use rustls::ConnectionCommon;
use zeroize::Zeroizing;

use crate::{EXPORT_LEN, PROTECTION_LABEL, TlsError};

/// Secret that both ends of one TLS channel have, and no other channel. Wiped when dropped.
#[derive(Clone)]
pub struct ChannelSecret(Zeroizing<[u8; EXPORT_LEN]>);

impl core::fmt::Debug for ChannelSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ChannelSecret(..)")
    }
}

impl ChannelSecret {
    /// Exports the secret of a channel after its handshake.
    ///
    /// # Errors
    /// [`TlsError::Handshake`] if the handshake has not ended.
    pub fn of<D>(session: &ConnectionCommon<D>) -> Result<Self, TlsError> {
        let mut secret = Zeroizing::new([0; EXPORT_LEN]);
        let exported = session.export_keying_material(&mut *secret, PROTECTION_LABEL, None);
        exported.map_err(|error| TlsError::Handshake(error.to_string()))?;
        Ok(Self(secret))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }
}
