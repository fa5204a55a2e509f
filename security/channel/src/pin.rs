//! Certificate pins: the SHA-256 of the peer's certificate, or of the authority that signed it.

use core::fmt;
use core::str::FromStr;

use sealstone_mds_protocol::DevicePin;
pub use sealstone_mds_protocol::PinKind;
use sha2::{Digest, Sha256};

/// SHA-256 of a certificate in DER: of the peer's own, or of the authority that signed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin {
    /// Which of the two.
    pub kind: PinKind,
    /// The hash.
    pub hash: [u8; 32],
}

/// The text is not a valid pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a pin is 64 hexadecimal digits, with or without colons, after sha256: (a certificate) or ca-sha256: (an authority)"
)]
pub struct PinError;

const CERTIFICATE_PREFIX: &str = "sha256:";
const AUTHORITY_PREFIX: &str = "ca-sha256:";

impl Pin {
    /// Returns the pin of the peer's own certificate in DER.
    #[must_use]
    pub fn certificate(der: &[u8]) -> Self {
        Self { kind: PinKind::Certificate, hash: Sha256::digest(der).into() }
    }

    /// Returns the pin of the authority with this certificate in DER.
    #[must_use]
    pub fn authority(der: &[u8]) -> Self {
        Self { kind: PinKind::Authority, hash: Sha256::digest(der).into() }
    }
}

impl From<DevicePin> for Pin {
    fn from(pin: DevicePin) -> Self {
        Self { kind: pin.kind, hash: pin.hash }
    }
}

impl From<Pin> for DevicePin {
    fn from(pin: Pin) -> Self {
        Self { kind: pin.kind, hash: pin.hash }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            PinKind::Certificate => CERTIFICATE_PREFIX,
            PinKind::Authority => AUTHORITY_PREFIX,
        })?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let (kind, digits) = match text.strip_prefix(AUTHORITY_PREFIX) {
            Some(digits) => (PinKind::Authority, digits),
            None => (PinKind::Certificate, text.strip_prefix(CERTIFICATE_PREFIX).unwrap_or(text)),
        };
        let mut digits = digits.chars().filter(|c| *c != ':');
        let mut digit = || digits.next().and_then(|c| c.to_digit(16)).ok_or(PinError);
        let mut hash = [0u8; 32];
        for byte in &mut hash {
            let (high, low) = (digit()?, digit()?);
            *byte = u8::try_from(high << 4 | low).map_err(|_| PinError)?;
        }
        if digits.next().is_some() { Err(PinError) } else { Ok(Self { kind, hash }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_round_trip() {
        for pin in [Pin::certificate(b"x"), Pin::authority(b"x")] {
            assert_eq!(pin.to_string().parse(), Ok(pin));
            assert_eq!(Pin::from(DevicePin::from(pin)), pin);
        }
        let bare = Pin::certificate(b"x").to_string().split_off(CERTIFICATE_PREFIX.len());
        assert_eq!(bare.parse(), Ok(Pin::certificate(b"x")));
        let colons: Vec<&str> = (0..32).map(|at| &bare[2 * at..2 * at + 2]).collect();
        assert_eq!(colons.join(":").to_uppercase().parse(), Ok(Pin::certificate(b"x")));
        for wrong in ["", "ab", "sha1:ab", &format!("{bare}0"), &format!("zz{}", &bare[2..]), "sha256:"] {
            assert_eq!(wrong.parse::<Pin>(), Err(PinError), "{wrong}");
        }
    }
}
