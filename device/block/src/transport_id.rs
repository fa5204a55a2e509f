//! iSCSI TransportID (SPC-4 §7.6.4.6), which names an initiator port in persistent reservations.

use crate::ports::PortIdentity;

/// FORMAT CODE 01b (name and ISID) and PROTOCOL IDENTIFIER 5 (iSCSI).
const PORT_OF_ISCSI: u8 = 0x45;
/// Separates name and ISID.
const SEPARATOR: &str = ",i,0x";
/// Shortest TransportID in bytes.
const LENGTH_MIN: usize = 24;
/// Longest iSCSI name (RFC 7143 §4.2.7.1), in bytes.
const NAME_MAX: usize = 223;

/// Encodes the TransportID of a port.
pub(crate) fn encode(port: &PortIdentity) -> Vec<u8> {
    let mut out = vec![PORT_OF_ISCSI, 0, 0, 0];
    out.extend_from_slice(port.name.as_bytes());
    out.extend_from_slice(SEPARATOR.as_bytes());
    for byte in port.isid {
        out.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    // At least one zero ends the text; the length is a multiple of four.
    let length = (out.len() + 1).next_multiple_of(4).max(LENGTH_MIN);
    out.resize(length, 0);
    let additional = u16::try_from(length - 4).expect("a name has at most 223 bytes").to_be_bytes();
    out[2..4].copy_from_slice(&additional);
    out
}

/// Decodes a TransportID to a port without account. Returns `None` if it is not an iSCSI one with
/// an ISID.
pub(crate) fn decode(bytes: &[u8]) -> Option<PortIdentity> {
    let [PORT_OF_ISCSI, 0, high, low, text @ ..] = bytes else { return None };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length != text.len() || !(length + 4).is_multiple_of(4) || length + 4 < LENGTH_MIN {
        return None;
    }
    let end = text.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let (name, isid) = text.rsplit_once(SEPARATOR)?;
    if name.is_empty() || name.len() > NAME_MAX || isid.len() != 12 {
        return None;
    }
    let isid: [u8; 8] = u64::from_str_radix(isid, 16).ok()?.to_be_bytes();
    let [_, _, isid @ ..] = isid;
    // Sessions use names in lower case (RFC 7143 §4.2.7.1), so another case would never match.
    Some(PortIdentity { name: name.to_ascii_lowercase(), isid, account: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn transport_id_matches_standard_layout() {
        let port = PortIdentity { name: "iqn.x:y".into(), isid: [0, 2, 0x3D, 0, 0, 1], account: None };
        let wire = encode(&port);
        assert_eq!(wire[..4], [0x45, 0, 0, 28]);
        assert_eq!(&wire[4..28], b"iqn.x:y,i,0x00023d000001");
        assert_eq!(wire.len(), 28 + 4, "a zero must follow");
        assert_eq!(decode(&wire).as_ref(), Some(&port));
        let mut shouted = wire;
        shouted[4..11].make_ascii_uppercase();
        assert_eq!(decode(&shouted), Some(port), "names are compared in lower case");
    }

    proptest! {
        #[test]
        fn ports_round_trip(name in "[a-z0-9:.,-]{1,223}", isid: [u8; 6]) {
            let port = PortIdentity { name, isid, account: None };
            prop_assert_eq!(decode(&encode(&port)), Some(port));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut iscsi = vec![0x45, 0];
            iscsi.extend(&bytes);
            let _ = decode(&bytes).is_some() || decode(&iscsi).is_some();
        }
    }
}
