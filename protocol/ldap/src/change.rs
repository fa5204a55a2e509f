//! Requests that change entries, for a store of records.
//!
//! Truth: RFC 4511 §4.6 to §4.9.

use alloc::vec::Vec;

use zeroize::Zeroizing;

use crate::ber::{BOOLEAN, BerWriter, ENUMERATED, OCTETS, SEQUENCE, SET};
use crate::message::message;

const MODIFY: u8 = 0x66;
const ADD: u8 = 0x68;
const DELETE: u8 = 0x4A;
const RENAME: u8 = 0x6C;

/// An attribute and its values.
pub type Values<'a> = (&'a str, &'a [&'a [u8]]);

fn put_values(out: &mut BerWriter, (name, values): &Values<'_>) {
    out.put_all(SEQUENCE, |out| {
        out.put(OCTETS, name.as_bytes());
        out.put_all(SET, |out| values.iter().for_each(|value| out.put(OCTETS, value)));
    });
}

/// Encodes a request to add an entry, which must not exist.
#[must_use]
pub fn add_request(id: u32, dn: &str, attributes: &[Values<'_>]) -> Zeroizing<Vec<u8>> {
    message(id, |out| {
        out.put_all(ADD, |out| {
            out.put(OCTETS, dn.as_bytes());
            out.put_all(SEQUENCE, |out| attributes.iter().for_each(|one| put_values(out, one)));
        });
    })
}

/// Encodes a request to replace all values of these attributes. An attribute without values is
/// removed.
#[must_use]
pub fn replace_request(id: u32, dn: &str, attributes: &[Values<'_>]) -> Zeroizing<Vec<u8>> {
    const REPLACE: u32 = 2;
    message(id, |out| {
        out.put_all(MODIFY, |out| {
            out.put(OCTETS, dn.as_bytes());
            out.put_all(SEQUENCE, |out| {
                for one in attributes {
                    out.put_all(SEQUENCE, |out| {
                        out.number(ENUMERATED, REPLACE);
                        put_values(out, one);
                    });
                }
            });
        });
    })
}

/// Encodes a request to delete an entry, which must have no children.
#[must_use]
pub fn delete_request(id: u32, dn: &str) -> Zeroizing<Vec<u8>> {
    message(id, |out| out.put(DELETE, dn.as_bytes()))
}

/// Encodes a request to rename an entry with its subtree to `rdn` under the same parent.
#[must_use]
pub fn rename_request(id: u32, dn: &str, rdn: &str) -> Zeroizing<Vec<u8>> {
    const TRUE: &[u8] = &[0xFF];
    message(id, |out| {
        out.put_all(RENAME, |out| {
            out.put(OCTETS, dn.as_bytes());
            out.put(OCTETS, rdn.as_bytes());
            out.put(BOOLEAN, TRUE);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_encode_as_in_rfc_4511() {
        assert_eq!(
            &**add_request(1, "ou=x", &[("ou", &[b"x"]), ("l", &[b"a", b"b"])]),
            b"\x30\x25\x02\x01\x01\x68\x20\x04\x04ou=x\x30\x18\x30\x09\x04\x02ou\x31\x03\x04\x01x\
              \x30\x0B\x04\x01l\x31\x06\x04\x01a\x04\x01b"
                .as_slice()
        );
        assert_eq!(
            &**replace_request(2, "ou=x", &[("l", &[b"a"]), ("o", &[])]),
            b"\x30\x28\x02\x01\x02\x66\x23\x04\x04ou=x\x30\x1B\x30\x0D\x0A\x01\x02\x30\x08\x04\x01l\x31\x03\x04\x01a\
              \x30\x0A\x0A\x01\x02\x30\x05\x04\x01o\x31\x00"
                .as_slice()
        );
        assert_eq!(&**delete_request(3, "ou=x"), b"\x30\x09\x02\x01\x03\x4A\x04ou=x");
        assert_eq!(
            &**rename_request(4, "ou=x,o=y", "ou=z"),
            b"\x30\x18\x02\x01\x04\x6C\x13\x04\x08ou=x,o=y\x04\x04ou=z\x01\x01\xFF"
        );
    }
}
