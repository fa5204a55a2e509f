//! Parameter data of SET MASTER KEY (OSD-2 §6.29). The data-out of the seed exchange is the bare
//! value.

use alloc::vec::Vec;

use crate::bytes::u32_at;

/// Maximum bytes of a Diffie-Hellman value: an 8192-bit group.
pub const DH_VALUE_MAX: usize = 1024;

/// Both values, as sent in the change step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BothValues<'a> {
    /// The application client's.
    pub client: &'a [u8],
    /// The device server's.
    pub device: &'a [u8],
}

/// Parses a value with its length; returns it and the rest.
fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok().filter(|length| *length <= DH_VALUE_MAX)?;
    bytes.get(4..)?.split_at_checked(length)
}

/// Parses the data-in of the seed exchange: the device's value. `None` if it is truncated or longer
/// than [`DH_VALUE_MAX`].
#[must_use]
pub fn parse_device_value(bytes: &[u8]) -> Option<&[u8]> {
    value(bytes).map(|(value, _)| value)
}

/// Encodes the data-in of the seed exchange; `None` beyond [`DH_VALUE_MAX`].
#[must_use]
pub fn encode_device_value(device: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(device.len()).ok().filter(|_| device.len() <= DH_VALUE_MAX)?;
    Some([&length.to_be_bytes(), device].concat())
}

impl<'a> BothValues<'a> {
    /// Parses the data-out of the change step; `None` if it is truncated, too long, or a value is
    /// longer than [`DH_VALUE_MAX`].
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (client, rest) = value(bytes)?;
        let (device, rest) = value(rest)?;
        rest.is_empty().then_some(Self { client, device })
    }

    /// Returns the wire form; `None` beyond [`DH_VALUE_MAX`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = encode_device_value(self.client)?;
        out.extend(encode_device_value(self.device)?);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_values_read_back_and_nothing_may_follow() {
        let both = BothValues { client: &[1; 256], device: &[2; 256] };
        let mut wire = both.encode().unwrap();
        assert_eq!(wire[..5], [0, 0, 1, 0, 1]);
        assert_eq!(BothValues::parse(&wire), Some(both));
        assert_eq!(parse_device_value(&wire), Some(&[1; 256][..]));
        wire.push(0);
        assert_eq!(BothValues::parse(&wire), None);
        assert_eq!(encode_device_value(&[0; DH_VALUE_MAX + 1]), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = BothValues::parse(&bytes);
            bytes.iter_mut().take(3).for_each(|byte| *byte = 0);
            let _ = BothValues::parse(&bytes);
        }
    }
}
