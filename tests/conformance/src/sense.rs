//! Sense data in descriptor format (SPC-4 4.5; t10-osd 5.1).

/// The parts of sense data that tests use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sense {
    pub(crate) key: u8,
    /// Additional sense code and qualifier.
    pub(crate) code: u16,
    pub(crate) information: Option<u64>,
    pub(crate) command_specific: Option<u64>,
    /// Invalid byte of the CDB (true) or of parameter data.
    pub(crate) field: Option<(bool, u16)>,
    /// Functions not initiated and completed, partition, object.
    pub(crate) osd: Option<(u32, u32, u64, u64)>,
    pub(crate) response_icv: Option<Vec<u8>>,
    pub(crate) attributes: Vec<(u32, u32)>,
}

impl Sense {
    /// Parses descriptor-format sense data; anything else fails the test.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        assert!(bytes.len() >= 8 && bytes.len() <= 252, "sense data of {} bytes", bytes.len());
        assert!(matches!(bytes[0] & 0x7F, 0x72 | 0x73), "descriptor format, got {:02x}", bytes[0]);
        assert_eq!(usize::from(bytes[7]), bytes.len() - 8, "additional sense length");
        let mut sense =
            Self { key: bytes[1] & 0x0F, code: u16::from_be_bytes([bytes[2], bytes[3]]), ..Self::default() };
        let long = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let mut rest = &bytes[8..];
        while let [kind, length, ..] = *rest {
            let end = 2 + usize::from(length);
            assert!(rest.len() >= end, "a whole descriptor of type {kind:#04x}");
            let (one, tail) = rest.split_at(end);
            match kind {
                0x00 => {
                    assert_eq!(length, 0x0A);
                    sense.information = Some(long(&one[4..12]));
                }
                0x01 => {
                    assert_eq!(length, 0x0A);
                    sense.command_specific = Some(long(&one[4..12]));
                }
                0x02 => {
                    assert_eq!(length, 0x06);
                    assert!(one[4] & 0x80 != 0, "SKSV");
                    sense.field = Some((one[4] & 0x40 != 0, u16::from_be_bytes([one[5], one[6]])));
                }
                0x06 => {
                    assert_eq!(length, 0x1E);
                    sense.osd =
                        Some((word(&one[8..12]), word(&one[12..16]), long(&one[16..24]), long(&one[24..32])));
                }
                0x07 => sense.response_icv = Some(one[2..].to_vec()),
                0x08 => {
                    sense.attributes =
                        one[4..].chunks_exact(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect();
                }
                _ => {}
            }
            rest = tail;
        }
        assert!(rest.is_empty(), "nothing behind the descriptors");
        sense
    }
}

/// Returns key and code of sense data in either format. Block units use the fixed one, and so does
/// the target itself.
pub(crate) fn codes(sense: &[u8]) -> (u8, u16) {
    let [key, code, qualifier] = if sense[0] & 0x7F <= 0x71 {
        [sense[2], sense[12], sense[13]]
    } else {
        [sense[1], sense[2], sense[3]]
    };
    (key & 0x0F, u16::from_be_bytes([code, qualifier]))
}
