//! The attributes of the standard, one line each: constants, lengths and access derive from the
//! same rows.
//!
//! Source of truth: `docs/standards/osd.md`, standard attributes. Access that no source states is
//! an unverified choice.

use super::page::{Owner, owner};
use crate::AttributeId;

/// First page of user objects.
pub const USER: u32 = 0x0000_0000;
/// First page of partitions.
pub const PARTITION: u32 = 0x3000_0000;
/// First page of collections.
pub const COLLECTION: u32 = 0x6000_0000;
/// First page of the root.
pub const ROOT: u32 = 0x9000_0000;
/// The page about the command itself.
pub const CURRENT_COMMAND: u32 = 0xFFFF_FFFE;
/// First page of a range for applications; below it, only attributes of this table may be set.
pub const FIRST_APPLICATION_OFFSET: u32 = 0x1_0000;

/// Whether initiators may set an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the device.
    ReadOnly,
    /// The initiator too.
    Settable,
}

/// Permitted lengths of a value, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Exactly this length.
    Fixed(u16),
    /// This length, or undefined.
    Optional(u16),
    /// Any length.
    Variable,
}

impl Length {
    /// Whether a value may have `len` bytes; 0 is undefined.
    #[must_use]
    pub const fn permits(self, len: usize) -> bool {
        match self {
            Self::Fixed(own) => len == own as usize,
            Self::Optional(own) => len == 0 || len == own as usize,
            Self::Variable => len <= super::list::VALUE_MAX,
        }
    }
}

/// One attribute of the standard, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standard {
    /// Page and first number.
    pub id: AttributeId,
    /// Last number; that of `id` for a single one.
    pub last: u32,
    /// Length of the value.
    pub length: Length,
    /// Whether initiators may set it.
    pub access: Access,
    /// Its name.
    pub name: &'static str,
}

/// Returns the row of an attribute; `None` if the standard has none.
#[must_use]
pub fn standard(id: AttributeId) -> Option<&'static Standard> {
    let after = STANDARD.partition_point(|row| row.id <= id);
    let row = STANDARD.get(after.checked_sub(1)?)?;
    (row.id.page == id.page && id.number <= row.last).then_some(row)
}

/// Returns the access to an attribute. The rows of the table define it; other attributes of
/// standard pages are read-only, all others settable. Attribute 0, the page's identification, and
/// directory pages are read-only; an application's page sets its own attribute 0.
#[must_use]
pub fn access(id: AttributeId) -> Access {
    match (standard(id), owner(id.page)) {
        (Some(row), _) => row.access,
        (None, Owner::Object(_, offset)) if offset >= FIRST_APPLICATION_OFFSET => Access::Settable,
        (None, Owner::Any) => Access::Settable,
        (None, _) => Access::ReadOnly,
    }
}

/// Returns the 40-byte identification of a standard page (attribute 0): vendor, name, both padded.
#[must_use]
pub fn identification(page: u32) -> Option<[u8; 40]> {
    let (_, name) = PAGES.iter().find(|(number, _)| *number == page)?;
    Some(identify(b"INCITS", name.as_bytes()))
}

/// Returns what a directory shows for a page without attribute 0.
#[must_use]
pub fn unidentified() -> [u8; 40] {
    identify(b"", b"unidentified attributes page")
}

/// Bytes of the vendor in an identification; it is padded with blanks, the name with zeros.
const VENDOR: usize = 8;

fn identify(vendor: &[u8], name: &[u8]) -> [u8; 40] {
    let mut out = [0; 40];
    out[..VENDOR].fill(b' ');
    out[..vendor.len()].copy_from_slice(vendor);
    out[VENDOR..][..name.len()].copy_from_slice(name);
    out
}

macro_rules! pages {
    ($(
        $module:ident = $page:expr, $title:literal {
            $($name:ident = $first:literal $(..= $last:literal)?, $length:expr, $access:ident, $text:literal;)*
        }
    )*) => {
        $(
            #[doc = concat!($title, ".")]
            pub mod $module {
                // each page uses one base; directory pages have no attributes
                #[allow(unused_imports)]
                use super::{AttributeId, COLLECTION, CURRENT_COMMAND, PARTITION, ROOT, USER};
                /// The page.
                pub const PAGE: u32 = $page;
                $(#[doc = concat!($text, " (", stringify!($first), ").")]
                pub const $name: AttributeId = AttributeId::new(PAGE, $first);)*
            }
        )*

        /// Every standard page with the name in its identification.
        pub static PAGES: &[(u32, &str)] = &[$(($module::PAGE, $title)),*];

        /// Every standard attribute except identifications, ascending.
        pub static STANDARD: &[Standard] = {
            use Access::{ReadOnly, Settable};
            use Length::{Fixed, Optional, Variable};
            const fn last(first: u32, last: &[u32]) -> u32 {
                if last.is_empty() { first } else { last[0] }
            }
            &[$($(Standard {
                id: $module::$name,
                last: last($first, &[$($last)?]),
                length: $length,
                access: $access,
                name: $text,
            },)*)*]
        };
    };
}

pages! {
    user_directory = USER, "T10 User Object Directory" {}
    user_information = USER + 1, "T10 User Object Information" {
        PARTITION_ID = 0x1, Fixed(8), ReadOnly, "partition id";
        OBJECT_ID = 0x2, Fixed(8), ReadOnly, "user object id";
        USERNAME = 0x9, Variable, Settable, "username";
        USED_CAPACITY = 0x81, Fixed(8), ReadOnly, "used capacity in bytes";
        LOGICAL_LENGTH = 0x82, Fixed(8), Settable, "logical length in bytes";
        ACCESSIBILITY = 0x83, Fixed(4), ReadOnly, "object accessibility";
        ACTUAL_DATA_SPACE = 0xD1, Optional(8), ReadOnly, "actual data space in bytes";
        RESERVED_DATA_SPACE = 0xD2, Optional(8), Settable, "reserved data space in bytes";
    }
    user_quotas = USER + 2, "T10 User Object Quotas" {
        MAXIMUM_LENGTH = 0x1, Fixed(8), Settable, "maximum logical length in bytes";
    }
    user_timestamps = USER + 3, "T10 User Object Timestamps" {
        CREATED = 0x1, Fixed(6), ReadOnly, "created time in ms";
        ATTRIBUTES_ACCESSED = 0x2, Fixed(6), Settable, "attributes accessed time in ms";
        ATTRIBUTES_MODIFIED = 0x3, Fixed(6), Settable, "attributes modified time in ms";
        DATA_ACCESSED = 0x4, Fixed(6), Settable, "data accessed time in ms";
        DATA_MODIFIED = 0x5, Fixed(6), Settable, "data modified time in ms";
    }
    collections_of_object = USER + 4, "T10 Collections" {
        MEMBERSHIP = 0x1 ..= 0xFFFF_FF00, Optional(8), Settable, "collection id of a membership";
    }
    user_security = USER + 5, "T10 User Object Policy/Security" {
        POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable, "policy access tag";
    }
    user_error_recovery = USER + 6, "T10 User Object Error Recovery" {
        DAMAGE = 0x1, Fixed(1), ReadOnly, "damage summary";
        DAMAGED_DATA_TIME = 0x3, Fixed(6), ReadOnly, "last damaged data time in ms";
        DAMAGED_ATTRIBUTES_TIME = 0x4, Fixed(6), ReadOnly, "last damaged attributes time in ms";
    }
    partition_directory = PARTITION, "T10 Partition Directory" {}
    partition_information = PARTITION + 1, "T10 Partition Information" {
        PARTITION_ID = 0x1, Fixed(8), ReadOnly, "partition id";
        USERNAME = 0x9, Variable, Settable, "username";
        USED_CAPACITY = 0x81, Fixed(8), ReadOnly, "used capacity in bytes";
        ACCESSIBILITY = 0x83, Fixed(4), ReadOnly, "object accessibility";
        USED_CAPACITY_INCREMENT = 0x84, Optional(8), ReadOnly, "used capacity increment in bytes";
        OBJECT_COUNT = 0xC1, Fixed(8), ReadOnly, "number of collections and user objects";
        ACTUAL_DATA_SPACE = 0xD1, Optional(8), ReadOnly, "actual data space in bytes";
        RESERVED_DATA_SPACE = 0xD2, Optional(8), Settable, "reserved data space in bytes";
        SNAPSHOT_METHOD = 0x200, Optional(4), Settable, "default snapshot duplication method";
        CLONE_METHOD = 0x201, Optional(4), Settable, "default clone duplication method";
        SNAPSHOT_TIME = 0x300, Optional(4), Settable, "default snapshot time of duplication";
        CLONE_TIME = 0x301, Optional(4), Settable, "default clone time of duplication";
    }
    partition_quotas = PARTITION + 2, "T10 Partition Quotas" {
        DEFAULT_MAXIMUM_LENGTH = 0x1, Fixed(8), Settable, "default maximum object length in bytes";
        CAPACITY = 0x1_0001, Fixed(8), Settable, "capacity quota in bytes";
        OBJECT_COUNT = 0x1_0002, Fixed(8), Settable, "object count quota";
        COLLECTIONS_PER_OBJECT = 0x1_0081, Fixed(4), Settable, "collections per user object quota";
    }
    partition_timestamps = PARTITION + 3, "T10 Partition Timestamps" {
        CREATED = 0x1, Fixed(6), ReadOnly, "created time in ms";
        ATTRIBUTES_ACCESSED = 0x2, Fixed(6), Settable, "attributes accessed time in ms";
        ATTRIBUTES_MODIFIED = 0x3, Fixed(6), Settable, "attributes modified time in ms";
        DATA_ACCESSED = 0x4, Fixed(6), Settable, "data accessed time in ms";
        DATA_MODIFIED = 0x5, Fixed(6), Settable, "data modified time in ms";
        BYPASS = 0xFFFF_FFFE, Fixed(1), Settable, "timestamp bypass";
    }
    attributes_access = PARTITION + 4, "T10 Partition Attributes Access" {
        ALLOWED = 0x1 ..= 0xFFFF_FF00, Variable, Settable, "attributes that a capability may name together";
    }
    partition_security = PARTITION + 5, "T10 Partition Policy/Security" {
        DEFAULT_METHOD = 0x1, Fixed(1), Settable, "default security method";
        OLDEST_NONCE = 0x2, Fixed(6), Settable, "oldest valid nonce in ms before the clock";
        NEWEST_NONCE = 0x3, Fixed(6), Settable, "newest valid nonce in ms after the clock";
        NONCE_LIST_DEPTH = 0x4, Fixed(2), Settable, "request nonce list depth";
        FROZEN_WORKING_KEYS = 0x5, Fixed(2), Settable, "frozen working key mask";
        PARTITION_KEY_IDENTIFIER = 0x7FFF, Optional(7), ReadOnly, "partition key identifier";
        WORKING_KEY_IDENTIFIER = 0x8000 ..= 0x800F, Optional(7), ReadOnly, "working key identifier";
        POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable, "policy access tag of the partition";
        USER_OBJECT_POLICY_ACCESS_TAG = 0x4000_0002, Fixed(4), Settable, "policy access tag of new user objects";
    }
    partition_error_recovery = PARTITION + 6, "T10 Partition Error Recovery" {
        DAMAGE = 0x1, Fixed(1), ReadOnly, "damage summary";
        CONTAINED_DAMAGE = 0x2, Fixed(1), ReadOnly, "damage summary of what it contains";
        DAMAGED_LIST_TIME = 0x3, Fixed(6), ReadOnly, "last damaged list time in ms";
        DAMAGED_ATTRIBUTES_TIME = 0x4, Fixed(6), ReadOnly, "last damaged attributes time in ms";
        CONTAINED_DAMAGE_TIME = 0x5, Fixed(6), ReadOnly, "last damage of what it contains in ms";
        DAMAGED_COUNT = 0x6, Fixed(8), ReadOnly, "number of damaged objects";
    }
    collection_directory = COLLECTION, "T10 Collection Directory" {}
    collection_information = COLLECTION + 1, "T10 Collection Information" {
        PARTITION_ID = 0x1, Fixed(8), ReadOnly, "partition id";
        COLLECTION_ID = 0x2, Fixed(8), ReadOnly, "collection id";
        USERNAME = 0x9, Variable, Settable, "username";
        COLLECTION_TYPE = 0xA, Fixed(1), ReadOnly, "collection type";
        USED_CAPACITY = 0x81, Fixed(8), ReadOnly, "used capacity in bytes";
        ACCESSIBILITY = 0x83, Fixed(4), ReadOnly, "object accessibility";
    }
    collection_timestamps = COLLECTION + 3, "T10 Collection Timestamps" {
        CREATED = 0x1, Fixed(6), ReadOnly, "created time in ms";
        ATTRIBUTES_ACCESSED = 0x2, Fixed(6), Settable, "attributes accessed time in ms";
        ATTRIBUTES_MODIFIED = 0x3, Fixed(6), Settable, "attributes modified time in ms";
        DATA_ACCESSED = 0x4, Fixed(6), Settable, "data accessed time in ms";
        DATA_MODIFIED = 0x5, Fixed(6), Settable, "data modified time in ms";
    }
    command_tracking = COLLECTION + 4, "T10 Command Tracking" {
        PERCENT_COMPLETE = 0x1, Fixed(1), ReadOnly, "percent complete";
        ACTIVE_COMMAND = 0x2, Fixed(2), ReadOnly, "service action under way";
        ENDED_COMMAND = 0x3, Fixed(2), ReadOnly, "service action ended";
        SENSE_DATA = 0x4, Variable, ReadOnly, "sense data of the ended command";
        MEMBER_COUNT = 0x10, Fixed(8), ReadOnly, "number of members";
        PROCESSED_COUNT = 0x11, Optional(8), ReadOnly, "members processed";
        NEWER_SKIPPED_COUNT = 0x12, Optional(8), ReadOnly, "newer members skipped";
        MISSING_SKIPPED_COUNT = 0x13, Optional(8), ReadOnly, "missing members skipped";
    }
    collection_security = COLLECTION + 5, "T10 Collection Policy/Security" {
        POLICY_ACCESS_TAG = 0x4000_0001, Fixed(4), Settable, "policy access tag";
    }
    collection_error_recovery = COLLECTION + 6, "T10 Collection Error Recovery" {
        DAMAGE = 0x1, Fixed(1), ReadOnly, "damage summary";
        DAMAGED_LIST_TIME = 0x3, Fixed(6), ReadOnly, "last damaged list time in ms";
        DAMAGED_ATTRIBUTES_TIME = 0x4, Fixed(6), ReadOnly, "last damaged attributes time in ms";
    }
    root_directory = ROOT, "T10 Root Directory" {}
    root_information = ROOT + 1, "T10 Root Information" {
        OSD_SYSTEM_ID = 0x3, Fixed(20), ReadOnly, "OSD system id";
        VENDOR_IDENTIFICATION = 0x4, Fixed(8), ReadOnly, "vendor identification";
        PRODUCT_IDENTIFICATION = 0x5, Fixed(16), ReadOnly, "product identification";
        PRODUCT_MODEL = 0x6, Fixed(32), ReadOnly, "product model";
        PRODUCT_REVISION = 0x7, Fixed(4), ReadOnly, "product revision level";
        SERIAL_NUMBER = 0x8, Variable, ReadOnly, "product serial number";
        OSD_NAME = 0x9, Variable, Settable, "OSD name";
        MAXIMUM_CONTINUATION_LENGTH = 0xA, Fixed(4), ReadOnly, "maximum CDB continuation length in bytes";
        TOTAL_CAPACITY = 0x80, Fixed(8), ReadOnly, "total capacity in bytes";
        USED_CAPACITY = 0x81, Fixed(8), ReadOnly, "used capacity in bytes";
        ACCESSIBILITY = 0x83, Fixed(4), ReadOnly, "object accessibility";
        PARTITION_COUNT = 0xC0, Fixed(8), ReadOnly, "number of partitions";
        CLOCK = 0x100, Fixed(6), ReadOnly, "clock in ms since 1970-01-01 UT";
        DEFAULT_ISOLATION = 0x110, Fixed(1), Settable, "default isolation method";
        SUPPORTED_ISOLATION = 0x111, Fixed(32), ReadOnly, "supported isolation methods";
        ATOMICITY_GUARANTEE = 0x120, Fixed(8), ReadOnly, "data atomicity guarantee in bytes";
        ATOMICITY_ALIGNMENT = 0x121, Fixed(8), ReadOnly, "data atomicity alignment in bytes";
        ATTRIBUTES_ATOMICITY = 0x122, Fixed(8), ReadOnly, "attributes atomicity guarantee";
        ATOMICITY_MULTIPLIER = 0x123, Fixed(1), ReadOnly, "data and attributes atomicity multiplier";
        MAXIMUM_SNAPSHOTS = 0x1C1, Optional(4), ReadOnly, "maximum snapshots";
        MAXIMUM_CLONES = 0x1C2, Optional(4), ReadOnly, "maximum clones";
        MAXIMUM_BRANCH_DEPTH = 0x1CC, Optional(4), ReadOnly, "maximum branch depth";
        DUPLICATION_METHOD = 0x200 ..= 0x2FF, Optional(4), ReadOnly, "supported duplication method";
        TIME_OF_DUPLICATION = 0x300 ..= 0x30F, Optional(4), ReadOnly, "supported time of duplication";
        SOURCE_FREEZING = 0x310, Optional(4), ReadOnly, "support for freezing the source";
        REFRESH = 0x311, Optional(1), ReadOnly, "support for refresh";
        CONTINUATION_DESCRIPTOR = 0x700_0001 ..= 0x700_FFFF, Optional(4), ReadOnly, "supported continuation descriptor type";
    }
    root_quotas = ROOT + 2, "T10 Root Quotas" {
        DEFAULT_MAXIMUM_LENGTH = 0x1, Fixed(8), Settable, "default maximum object length in bytes";
        PARTITION_CAPACITY = 0x1_0001, Fixed(8), Settable, "capacity quota of new partitions in bytes";
        PARTITION_OBJECT_COUNT = 0x1_0002, Fixed(8), Settable, "object count quota of new partitions";
        COLLECTIONS_PER_OBJECT = 0x1_0081, Fixed(4), Settable, "collections per user object quota";
        PARTITION_COUNT = 0x2_0002, Fixed(8), Settable, "partition count quota";
    }
    root_timestamps = ROOT + 3, "T10 Root Timestamps" {
        ATTRIBUTES_ACCESSED = 0x2, Fixed(6), Settable, "attributes accessed time in ms";
        ATTRIBUTES_MODIFIED = 0x3, Fixed(6), Settable, "attributes modified time in ms";
        BYPASS = 0xFFFF_FFFE, Fixed(1), Settable, "timestamp bypass";
    }
    root_security = ROOT + 5, "T10 Root Policy/Security" {
        DEFAULT_METHOD = 0x1, Fixed(1), Settable, "default security method";
        OLDEST_NONCE_LIMIT = 0x2, Fixed(6), Settable, "oldest valid nonce limit in ms";
        NEWEST_NONCE_LIMIT = 0x3, Fixed(6), Settable, "newest valid nonce limit in ms";
        PARTITION_DEFAULT_METHOD = 0x6, Fixed(1), Settable, "default security method of new partitions";
        SUPPORTED_METHODS = 0x7, Fixed(2), ReadOnly, "supported security methods";
        ADJUSTABLE_CLOCK = 0x9, Fixed(6), Settable, "adjustable clock in ms";
        BOOT_EPOCH = 0xA, Fixed(2), ReadOnly, "boot epoch";
        MASTER_KEY_IDENTIFIER = 0x7FFD, Optional(7), ReadOnly, "master key identifier";
        ROOT_KEY_IDENTIFIER = 0x7FFE, Optional(7), ReadOnly, "root key identifier";
        ICV_ALGORITHM = 0x8000_0000 ..= 0x8000_000F, Fixed(1), ReadOnly, "integrity check value algorithm of a slot";
        DH_GROUP = 0x8000_0010 ..= 0x8000_001F, Fixed(1), ReadOnly, "Diffie-Hellman group of a slot";
    }
    root_error_recovery = ROOT + 6, "T10 Root Error Recovery" {
        DAMAGE = 0x1, Fixed(1), ReadOnly, "damage summary";
        CONTAINED_DAMAGE = 0x2, Fixed(1), ReadOnly, "damage summary of what it contains";
        DAMAGED_LIST_TIME = 0x3, Fixed(6), ReadOnly, "last damaged list time in ms";
        DAMAGED_ATTRIBUTES_TIME = 0x4, Fixed(6), ReadOnly, "last damaged attributes time in ms";
        CONTAINED_DAMAGE_TIME = 0x5, Fixed(6), ReadOnly, "last damage of what it contains in ms";
        DAMAGED_COUNT = 0x6, Fixed(8), ReadOnly, "number of damaged partitions";
    }
    current_command = CURRENT_COMMAND, "T10 Current Command" {
        RESPONSE_ICV = 0x1, Variable, ReadOnly, "response integrity check value, 20 or 32 bytes";
        OBJECT_TYPE = 0x2, Fixed(1), ReadOnly, "object type";
        PARTITION_ID = 0x3, Fixed(8), ReadOnly, "partition id";
        OBJECT_ID = 0x4, Fixed(8), ReadOnly, "object id, the highest one created";
        APPEND_START = 0x5, Fixed(8), ReadOnly, "starting byte of an append";
        USED_CAPACITY_CHANGE = 0x6, Fixed(8), ReadOnly, "change in used capacity in bytes";
    }
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;
    use crate::Generation;

    #[test]
    fn rows_are_ascending_and_never_overlap() {
        for pair in STANDARD.windows(2) {
            assert!(AttributeId::new(pair[0].id.page, pair[0].last) < pair[1].id, "{:?}", pair[1]);
        }
    }

    #[test]
    fn every_attribute_of_every_row_is_found() {
        for row in STANDARD {
            assert_eq!(standard(row.id), Some(row));
            assert_eq!(standard(AttributeId::new(row.id.page, row.last)), Some(row));
            assert_eq!(access(row.id), row.access);
        }
        assert_eq!(standard(AttributeId::new(ROOT + 1, 1)), None);
        assert_eq!(standard(AttributeId::new(0, 0)), None);
    }

    #[test]
    fn only_application_and_settable_attributes_can_be_set() {
        assert_eq!(access(AttributeId::new(USER + 1, 0x500)), Access::ReadOnly);
        assert_eq!(access(AttributeId::new(USER + 0x1_0003, 1)), Access::Settable);
        assert_eq!(access(AttributeId::new(PARTITION + 7, 1)), Access::ReadOnly);
        assert_eq!(access(AttributeId::new(0xC000_0000, 1)), Access::ReadOnly);
        assert_eq!(access(AttributeId::new(0xF000_0000, 1)), Access::Settable);
    }

    #[test]
    fn page_formats_agree_with_the_table() {
        for (number, _) in PAGES {
            for generation in [Generation::Osd1, Generation::Osd2] {
                let Some(layout) = page::layout(generation, *number) else { continue };
                let mut end = page::HEADER;
                for field in layout.fields {
                    match *field {
                        page::Field::Value { at, len, number } => {
                            let row = standard(AttributeId::new(layout.page, number)).unwrap();
                            assert!(row.length.permits(usize::from(len)), "{row:?}");
                            end = end.max(usize::from(at) + usize::from(len));
                        }
                        page::Field::Defined { at, .. } => {
                            assert!(usize::from(at) < page::HEADER + layout.length as usize)
                        }
                    }
                }
                assert_eq!(end, page::HEADER + layout.length as usize, "{:#x}", layout.page);
            }
        }
    }

    #[test]
    fn identifications_name_the_page() {
        let id = identification(ROOT + 1).unwrap();
        assert_eq!(&id[..29], b"INCITS  T10 Root Information\0");
        assert!(PAGES.iter().all(|(_, name)| name.len() < 32));
        assert_eq!(&unidentified()[..12], b"        unid");
    }

    #[test]
    fn pages_read_back_and_undefined_keys_stay_out() {
        for generation in [Generation::Osd1, Generation::Osd2] {
            for (number, _) in PAGES {
                let Some(layout) = page::layout(generation, *number) else { continue };
                let value = [0x5A; 40];
                let get = |number: u32| (number != 0x7FFE).then_some(&value[..]);
                let mut out = std::vec::Vec::new();
                let full = page::encode(generation, *number, get, &mut out, usize::MAX);
                assert_eq!(full, u64::from(layout.length) + 8);
                let back = page::parse(generation, *number, &out).unwrap();
                assert!(
                    back.iter()
                        .all(|(number, bytes)| *number != 0x7FFE && bytes.iter().all(|byte| *byte == 0x5A))
                );
                assert!(out.len() < 9 || page::parse(generation, *number, &out[..out.len() - 1]).is_none());
            }
        }
        let mut out = std::vec::Vec::new();
        assert_eq!(page::encode_memberships(&[7, 8, 9], &mut out, 24), 32);
        assert_eq!(page::parse_memberships(&out), Some(std::vec![7, 8]));
    }
}
