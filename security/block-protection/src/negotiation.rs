//! The login keys by which both ends state the protection of a session.
//!
//! Does: writes and reads the values of the keys, and compares the two ends' settings.
//! Does not: select anything: both ends are configured, and any difference ends the login.
//! Contract: a missing, repeated, unknown or different value is an error; there is no fallback.
//! Truth: `docs/standards/block-protection.md`, "Negotiation".

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::key_list::KeyListForm;
use crate::level::{ProtectedBlock, ProtectionLevel, ProtectionProfile};
use crate::record::RecordSize;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 32;
/// Random bytes of one end of a login.
pub type LoginNonce = [u8; NONCE_LEN];

const LEVEL: &str = "X-org.sealstone.LazyLevel";
const BLOCK: &str = "X-org.sealstone.LazyBlock";
const PROFILE: &str = "X-org.sealstone.LazyProfile";
const RECORD: &str = "X-org.sealstone.LazyRecord";
const NONCE: &str = "X-org.sealstone.LazyNonce";
const PROOF: &str = "X-org.sealstone.LazyProof";
/// Value of the record key at levels without records.
const NO_RECORD: &str = "None";

/// Protection of a session, as configured at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionSettings {
    /// Level of protection.
    pub level: ProtectionLevel,
    /// Length of a block.
    pub block: ProtectedBlock,
    /// Profile of the level.
    pub profile: ProtectionProfile,
    /// Size of records; present exactly at levels with records.
    pub record: Option<RecordSize>,
}

/// Why a login with protection must be rejected (status 0200h, initiator error).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// A key is missing.
    #[error("login key {0} is missing")]
    Missing(&'static str),
    /// A key is present twice.
    #[error("login key {0} is repeated")]
    Repeated(&'static str),
    /// A value is not that of this end.
    #[error("login key {key} is {found:?}, required is {required:?}")]
    Different {
        /// Name of the key.
        key: &'static str,
        /// Value of this end.
        required: String,
        /// Value of the other end, shortened.
        found: String,
    },
    /// A nonce is not 32 bytes in hexadecimal, or it is our own.
    #[error("login key {NONCE} is not a nonce of the other end")]
    Nonce,
}

impl ProtectionSettings {
    /// Returns the form of key lists; `None` if blocks have no keys.
    #[must_use]
    pub fn key_list_form(&self) -> Option<KeyListForm> {
        let Self { block, profile, .. } = *self;
        self.level.key_scheme().map(|scheme| KeyListForm { scheme, block, profile })
    }

    /// Returns the keys with their values.
    fn values(&self) -> [(&'static str, String); 4] {
        [
            (LEVEL, self.level.name().into()),
            (BLOCK, self.block.bytes().to_string()),
            (PROFILE, self.profile.name().into()),
            (RECORD, self.record.map_or_else(|| NO_RECORD.into(), |size| size.bytes().to_string())),
        ]
    }

    /// Returns the settings as they enter the transcript.
    pub(crate) fn encode(&self) -> String {
        self.values().iter().fold(String::new(), |mut text, (key, value)| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{key}={value}\0");
            text
        })
    }

    /// Returns the login keys of this end. The target adds its proof.
    #[must_use]
    pub fn login_keys(&self, nonce: &LoginNonce, proof: Option<String>) -> Vec<(&'static str, String)> {
        let mut keys = self.values().to_vec();
        keys.push((NONCE, hex_text(nonce)));
        keys.extend(proof.map(|proof| (PROOF, proof)));
        keys
    }

    /// Whether a key of a login belongs to the protection.
    #[must_use]
    pub fn is_login_key(name: &str) -> bool {
        [LEVEL, BLOCK, PROFILE, RECORD, NONCE, PROOF].contains(&name)
    }
}

/// Settings that the other end sent in its login keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedSettings {
    values: [Option<String>; 6],
}

impl ReceivedSettings {
    const NAMES: [&'static str; 6] = [LEVEL, BLOCK, PROFILE, RECORD, NONCE, PROOF];

    /// Takes a key of the login; returns whether it belongs to the protection.
    ///
    /// # Errors
    /// `Repeated` if it was there before.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, NegotiationError> {
        let Some(at) = Self::NAMES.iter().position(|known| *known == name) else { return Ok(false) };
        if self.values[at].is_some() {
            return Err(NegotiationError::Repeated(Self::NAMES[at]));
        }
        self.values[at] = Some(value.into());
        Ok(true)
    }

    /// Whether the other end stated nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }

    fn value(&self, name: &'static str) -> Result<&str, NegotiationError> {
        let at = Self::NAMES.iter().position(|known| *known == name);
        at.and_then(|at| self.values[at].as_deref()).ok_or(NegotiationError::Missing(name))
    }

    /// Compares with the settings of this end. Returns the nonce of the other end.
    ///
    /// # Errors
    /// See [`NegotiationError`].
    pub fn check(
        &self,
        own: &ProtectionSettings,
        own_nonce: Option<&LoginNonce>,
    ) -> Result<LoginNonce, NegotiationError> {
        for (key, required) in own.values() {
            let found = self.value(key)?;
            if found != required {
                let found = found.chars().take(32).collect();
                return Err(NegotiationError::Different { key, required, found });
            }
        }
        let nonce = bytes_of_hex(self.value(NONCE)?).and_then(|bytes| LoginNonce::try_from(bytes).ok());
        // A nonce that was sent back would make both ends' nonces one value of an attacker.
        nonce.filter(|nonce| own_nonce != Some(nonce)).ok_or(NegotiationError::Nonce)
    }

    /// Returns the proof of the other end.
    ///
    /// # Errors
    /// `Missing` if it sent none.
    pub fn proof(&self) -> Result<&str, NegotiationError> {
        self.value(PROOF)
    }
}

/// Returns bytes as a hexadecimal constant (RFC 7143 section 6.1).
pub(crate) fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Reads a hexadecimal constant with an even number of digits, at most 32 bytes.
pub(crate) fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?.as_bytes();
    if digits.len() > 2 * NONCE_LEN || digits.len() % 2 != 0 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.chunks_exact(2).map(|pair| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCES: [LoginNonce; 2] = [[1; NONCE_LEN], [2; NONCE_LEN]];

    fn settings() -> ProtectionSettings {
        ProtectionSettings {
            level: ProtectionLevel::S2LazyCipher,
            block: ProtectedBlock::B4096,
            profile: ProtectionProfile::PaperSafe,
            record: Some(RecordSize::Large),
        }
    }

    fn receive(keys: &[(&'static str, String)]) -> ReceivedSettings {
        let mut received = ReceivedSettings::default();
        for (key, value) in keys {
            assert_eq!(received.take(key, value), Ok(true));
        }
        received
    }

    #[test]
    fn equal_settings_return_the_nonce() {
        let received = receive(&settings().login_keys(&NONCES[0], Some("0x00".into())));
        assert_eq!(received.check(&settings(), Some(&NONCES[1])), Ok(NONCES[0]));
        assert_eq!(received.proof(), Ok("0x00"));
        assert_eq!(received.check(&settings(), Some(&NONCES[0])), Err(NegotiationError::Nonce));
    }

    #[test]
    fn missing_and_repeated_keys_are_errors() {
        let all = settings().login_keys(&NONCES[0], None);
        for (at, (name, _)) in all.iter().enumerate() {
            let mut fewer = all.clone();
            fewer.remove(at);
            assert_eq!(receive(&fewer).check(&settings(), None), Err(NegotiationError::Missing(name)));
        }
        assert_eq!(receive(&all).proof(), Err(NegotiationError::Missing(PROOF)));
        let mut received = receive(&all);
        assert_eq!(received.take(LEVEL, "S0"), Err(NegotiationError::Repeated(LEVEL)));
        assert_eq!(received.take("HeaderDigest", "None"), Ok(false));
        assert!(!received.is_empty() && ReceivedSettings::default().is_empty());
        assert!(ProtectionSettings::is_login_key(PROOF) && !ProtectionSettings::is_login_key("X-other"));
    }

    /// L2, L6: neither a lower level nor another profile is taken instead.
    #[test]
    fn any_different_setting_is_refused() {
        let own = settings();
        for level in ProtectionLevel::ALL {
            for profile in ProtectionProfile::ALL {
                for record in [None, Some(RecordSize::Packet), Some(RecordSize::Large)] {
                    for block in [ProtectedBlock::B512, ProtectedBlock::B4096] {
                        let other = ProtectionSettings { level, block, profile, record };
                        let checked = receive(&other.login_keys(&NONCES[0], None)).check(&own, None);
                        assert_eq!(checked.is_ok(), other == own, "{other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_hexadecimal_nonces_are_read() {
        for bad in ["", "0x", "0x0", "0x00", "00", "0xgg", "0bAAAA", "0x+1"] {
            let mut keys = settings().login_keys(&NONCES[0], None);
            keys.last_mut().unwrap().1 = bad.into();
            assert_eq!(receive(&keys).check(&settings(), None), Err(NegotiationError::Nonce), "{bad:?}");
        }
        let long = "0x".to_string() + &"00".repeat(NONCE_LEN + 1);
        assert_eq!(bytes_of_hex(&long), None);
    }

    proptest! {
        #[test]
        fn hexadecimal_text_reads_back(bytes in proptest::collection::vec(any::<u8>(), 0..=NONCE_LEN)) {
            prop_assert_eq!(bytes_of_hex(&hex_text(&bytes)), Some(bytes));
        }

        #[test]
        fn arbitrary_values_never_panic(text: String) {
            let _ = bytes_of_hex(&text);
        }
    }
}
