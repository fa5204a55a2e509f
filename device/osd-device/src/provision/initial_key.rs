//! File format of a device's initial key: `master.key` in its folder, and the copy for the metadata
//! server.

use serde::Deserialize;
use zeroize::Zeroizing;

use super::{MASTER_KEY_LEN, SYSTEM_ID_LEN, hex, unhex};

/// The initial master key of a device. Wiped when dropped; never shown.
#[derive(Clone)]
pub struct InitialKey(pub Zeroizing<[u8; MASTER_KEY_LEN]>);

impl core::fmt::Debug for InitialKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("InitialKey")
    }
}

/// The initial key with the identity of its device.
#[derive(Clone, Debug)]
pub struct InitialKeyFile {
    /// OSD SYSTEM ID of the device.
    pub system_id: [u8; SYSTEM_ID_LEN],
    /// Name of the device.
    pub name: String,
    /// The key.
    pub key: InitialKey,
}

/// Why a text is not a valid key file. It never contains the text, which may include the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitialKeyFileError {
    /// Missing or additional fields.
    #[error("not a key file of `osd init`")]
    Fields,
    /// Invalid system id.
    #[error("system_id is not 20 bytes of hex")]
    SystemId,
    /// Invalid key.
    #[error("master_key is not 32 bytes of hex")]
    MasterKey,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileFields {
    system_id: String,
    name: String,
    master_key: String,
}

impl InitialKeyFile {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`InitialKeyFileError`] if it is not a valid key file.
    pub fn parse(text: &str) -> Result<Self, InitialKeyFileError> {
        // The parser's own message would quote the line.
        let fields: KeyFileFields = toml::from_str(text).map_err(|_| InitialKeyFileError::Fields)?;
        let system_id = unhex(&fields.system_id).ok_or(InitialKeyFileError::SystemId)?;
        let secret = Zeroizing::new(fields.master_key);
        let key = unhex(&secret).map(Zeroizing::new).ok_or(InitialKeyFileError::MasterKey)?;
        Ok(Self { system_id, name: fields.name, key: InitialKey(key) })
    }

    /// Returns the text of the file.
    pub(super) fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(hex(&*self.key.0));
        let mut text = Zeroizing::new(String::with_capacity(256 + self.name.len()));
        text.push_str("system_id = \"");
        text.push_str(&hex(&self.system_id));
        text.push_str("\"\nname = \"");
        text.push_str(&self.name);
        text.push_str("\"\nmaster_key = \"");
        text.push_str(&secret);
        text.push_str("\"\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_file_errors_never_quote_content() {
        let key = InitialKey(Zeroizing::new([0xA5; MASTER_KEY_LEN]));
        let file = InitialKeyFile { system_id: [7; SYSTEM_ID_LEN], name: "osd1".to_owned(), key };
        let text = file.to_text();
        let back = InitialKeyFile::parse(&text).unwrap();
        assert_eq!((back.system_id, back.name.as_str(), *back.key.0), (file.system_id, "osd1", *file.key.0));
        for (from, to, error) in [
            ("name", "nom", InitialKeyFileError::Fields),
            ("system_id = \"07", "system_id = \"0", InitialKeyFileError::SystemId),
            ("a5\"\n", "a\"\n", InitialKeyFileError::MasterKey),
            ("a5\"\n", "+5\"\n", InitialKeyFileError::MasterKey),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, *text);
            let found = InitialKeyFile::parse(&changed).unwrap_err();
            assert_eq!(found, error);
            assert!(!found.to_string().contains("a5a5"));
        }
    }
}
