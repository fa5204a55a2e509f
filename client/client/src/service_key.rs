//! The key file of a service, with which a program logs in.
//!
//! Contract: text of three lines; a reader of it has the rights of the service. The key is
//! wiped from memory when dropped, and never printed.

use sealstone_initiator::Environment;
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::login::is_service_suite;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::ClientError;

const SECRET_BYTES: usize = 32;

/// A service's name and one of its keys.
pub struct ServiceKey {
    /// The account of the service.
    pub user: UserName,
    /// The login suite for which the key is registered.
    pub suite: u16,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceKeyToml {
    user: String,
    suite: u16,
    secret: String,
}

impl Drop for ServiceKeyToml {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl core::fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ServiceKey({}, {:04x})", self.user, self.suite)
    }
}

impl ServiceKey {
    /// Returns a new key with a random secret.
    #[must_use]
    pub fn generate(user: UserName, suite: u16, environment: &dyn Environment) -> Self {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        environment.fill_random(&mut *secret);
        Self { user, suite, secret }
    }

    /// Returns the secret, for a registration.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &*self.secret
    }

    /// Returns the text of the file.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(self.secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        Zeroizing::new(format!(
            "# A secret: whoever reads this file logs in as this service.\nuser = \"{}\"\nsuite = {}\nsecret = \"{}\"\n",
            self.user, self.suite, *secret
        ))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// `KeyFile`.
    pub fn from_text(text: &str) -> Result<Self, ClientError> {
        let text: ServiceKeyToml =
            toml::from_str(text).map_err(|_| ClientError::KeyFile("needs user, suite and secret"))?;
        let user = UserName::new(text.user.as_str()).map_err(|_| ClientError::KeyFile("bad user name"))?;
        if !is_service_suite(text.suite) {
            return Err(ClientError::KeyFile("the suite is not one for keys"));
        }
        let bad = ClientError::KeyFile("the secret must be 64 hex digits");
        let digits = text.secret.as_bytes();
        if digits.len() != 2 * SECRET_BYTES {
            return Err(bad);
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => *byte = (high << 4 | low) as u8,
                _ => return Err(bad),
            }
        }
        Ok(Self { user, suite: text.suite, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_initiator::SystemEnvironment;
    use sealstone_mds_protocol::login::SUITE_SERVICE_B;

    #[test]
    fn key_roundtrips_through_file_and_is_not_printed() {
        let user = UserName::new("backup").unwrap();
        let key = ServiceKey::generate(user, SUITE_SERVICE_B, &SystemEnvironment);
        let text = key.to_text();
        let again = ServiceKey::from_text(&text).unwrap();
        assert_eq!(
            (again.user.as_str(), again.suite, again.secret()),
            ("backup", SUITE_SERVICE_B, key.secret())
        );
        assert_eq!(format!("{key:?}"), "ServiceKey(backup, 0102)");
    }

    #[test]
    fn a_file_that_is_no_key_is_refused() {
        let good = "user = \"a\"\nsuite = 257\nsecret = \"SECRET\"\n".replace("SECRET", &"ab".repeat(32));
        assert!(ServiceKey::from_text(&good).is_ok());
        for bad in [
            String::new(),
            good.replace("257", "1"),
            good.replace("257", "70000"),
            good.replace("\"a\"", "\"a b\""),
            good.replace("abab", "ab"),
            good.replace("abab", "zzzz"),
            good.replace("abab", "äab"),
            format!("{good}more = 1\n"),
        ] {
            assert!(matches!(ServiceKey::from_text(&bad), Err(ClientError::KeyFile(_))), "{bad}");
        }
    }
}
