//! Descriptions of records in words, for stores that administrators inspect.
//!
//! Does: name the kind of a record, and the contents of nodes, names and layouts.
//! Does not: reveal secrets, or parse the descriptions again: only the record itself counts.

use sealstone_mds_protocol::{InodeId, Layout, shown};

use crate::keys;
use crate::records::{Inode, decode};

/// A record in words; none of the texts is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDescription {
    /// The kind of record, and of a node its attributes.
    pub text: String,
    /// The name of a node as users see it: `\xNN` for every byte that is not printable text.
    pub title: Option<String>,
    /// The objects of a file.
    pub layout: Option<String>,
}

/// Describes a record.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> RecordDescription {
    let number =
        |at: usize| key.get(at..at + 8).map_or(0, |id| id.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
    let plain = |text: &str| RecordDescription { text: text.to_owned(), title: None, layout: None };
    match key.first() {
        Some(b'i') => match decode::<Inode>(value) {
            Ok(inode) => RecordDescription {
                text: node(number(1), &inode),
                title: None,
                layout: inode.layout.as_ref().map(layout),
            },
            Err(_) => plain("node"),
        },
        Some(b'd') => RecordDescription {
            text: match decode::<InodeId>(value) {
                Ok(id) => format!("name of node {} in directory {}", id.0, number(1)),
                Err(_) => format!("name in directory {}", number(1)),
            },
            title: keys::entry_name(key).map(|name| name.to_string()),
            layout: None,
        },
        Some(b'y') => RecordDescription {
            text: format!("extended attribute of node {}", number(1)),
            title: keys::xattr_name(key).map(|name| shown(name.as_bytes()).into_owned()),
            layout: None,
        },
        Some(family) => plain(family_name(*family)),
        None => plain("record"),
    }
}

fn node(id: u64, inode: &Inode) -> String {
    let mut text = format!(
        "node {id}: {}, mode {:04o}, owner {}, {} links, {} bytes",
        inode.kind.name().to_lowercase(),
        inode.mode,
        inode.owner,
        inode.links,
        inode.size
    );
    if let Some(group) = &inode.group {
        text += &format!(", group {group}");
    }
    if let Some(target) = &inode.target {
        text += &format!(", target {}", shown(target.as_bytes()));
    }
    text
}

fn layout(layout: &Layout) -> String {
    let objects: Vec<String> = layout
        .objects()
        .iter()
        .map(|one| {
            format!(
                "device {} partition {:#x} object {:#x}",
                one.device.0, one.object.partition, one.object.object
            )
        })
        .collect();
    let unit = layout.stripe_unit().map_or_else(String::new, |unit| format!(" in units of {unit} bytes"));
    format!("{}{unit}: {}", layout.kind_name(), objects.join(", "))
}

/// Returns the name of a record family of docs/standards/mds/store.md §8.
const fn family_name(family: u8) -> &'static str {
    match family {
        b'm' => "the server's own",
        b't' => "create in progress",
        b'e' => "expiry of a create",
        b'E' => "quota charge of a create",
        b'C' => "number of creates of a user",
        b'S' => "ended create that still counts",
        b'P' => "create that copies a function",
        b'I' => "reservations for results of a user",
        b'J' => "ended reservation that still counts",
        b'O' => "policy about functions",
        b'Q' => "device that has to get a policy about functions",
        b'r' => "object to be removed",
        b'v' => "device",
        b'k' => "sealed keys of a device",
        b'u' => "user",
        b'g' => "group",
        b'h' => "group of a user",
        b'j' => "member of a group",
        b's' => "sealed session",
        b'w' => "session of a user",
        b'p' => "sealed key of a login",
        b'q' => "sealed session of a login",
        b'a' => "policy access tag",
        b'b' => "file with an object being moved",
        b'B' => "file being migrated to another layout",
        b'G' => "file that may have outgrown its layout",
        b'l' => "drain of a device",
        b'n' => "node without a name",
        b'f' => "client with open files",
        b'c' => "file with bytes to be cleared",
        b'U' => "quota of a user",
        b'T' => "quota of a tree",
        b'o' => "tag to be set on a device",
        b'x' => "revocation",
        b'X' => "working keys that a revocation replaces",
        b'z' => "server",
        b'L' => "locks of a client on a file",
        b'K' => "number of locks of a user",
        b'F' => "fence of a client from a file",
        b'A' => "directory delegation of a client",
        b'N' => "inode numbers reserved for a client",
        b'M' => "end-to-end protected disk",
        b'Y' => "wrapped key of a disk",
        b'H' => "disk of a user",
        b'V' => "public key of a user for disks",
        b'W' => "addresses that an account has logged in from",
        b'1' => "entry of the replay cache",
        _ => "record",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::encode;
    use proptest::prelude::*;
    use sealstone_mds_protocol::{DeviceId, FileKind, Name, ObjectRef, UserName};
    use sealstone_osd::ObjectId;

    #[test]
    fn nodes_names_and_layouts_are_described() {
        let owner = UserName::new("alice").unwrap();
        let mut inode = Inode::new(FileKind::File, 0o640, owner, None, 1);
        inode.size = 4096;
        let object = ObjectId::new(0x10000, 0x10005);
        inode.layout = Some(Layout::single(ObjectRef { device: DeviceId(2), object }));
        let description = describe(&keys::inode(InodeId(7)), &encode(&inode).unwrap());
        assert_eq!(description.text, "node 7: file, mode 0640, owner alice, 1 links, 4096 bytes");
        assert_eq!(description.layout.as_deref(), Some("single: device 2 partition 0x10000 object 0x10005"));
        let name = Name::new(&b"caf\xe9"[..]).unwrap();
        let description = describe(&keys::entry(InodeId(1), &name), &encode(&InodeId(7)).unwrap());
        assert_eq!(description.text, "name of node 7 in directory 1");
        assert_eq!(description.title.as_deref(), Some("caf\\xe9"));
        assert_eq!(describe(b"1alice", b"").text, "entry of the replay cache");
    }

    #[test]
    fn description_of_secret_reveals_nothing() {
        for (from, _) in keys::secrets() {
            let (one, other) = (describe(&from, b"secret"), describe(&from, b""));
            assert_eq!(one, other);
            assert!(one.title.is_none() && one.layout.is_none());
        }
    }

    proptest! {
        #[test]
        fn description_is_never_empty(key in prop::collection::vec(any::<u8>(), 0..300),
                                                  value in prop::collection::vec(any::<u8>(), 0..300)) {
            let description = describe(&key, &value);
            let texts = [Some(description.text), description.title, description.layout];
            prop_assert!(texts.iter().flatten().all(|text| !text.is_empty()));
        }
    }
}
