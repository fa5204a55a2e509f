//! Table of the attributes that the device itself defines, one row each.
//!
//! Does: length, access and source of these attributes.
//! Does not: compute or store values (`view`, `engine`).
//! Contract: rows of one page are adjacent and ascending. A number without a row is undefined on
//! these pages.
//! Truth: docs/design/t10-osd.md 3.4, 3.5; docs/standards/osd.md.

use sealstone_osd::attribute;
use sealstone_osd::function::{ApiVersion, CODE_DIGEST_LEN, attributes as function};
use sealstone_osd::{AttributeId, ObjectType};
use sealstone_seal::paper::mceliece::Parameters;

use crate::catalog::{NEWEST_NONCE_MS, OLDEST_NONCE_MS};
use crate::duplicates;
use crate::isolation;

/// First page of the root object.
pub(crate) const ROOT: u32 = 0x9000_0000;
/// First partition page.
pub(crate) const PARTITION: u32 = 0x3000_0000;
/// First collection page.
pub(crate) const COLLECTION: u32 = 0x6000_0000;
/// First user object page.
pub(crate) const USER: u32 = 0;
/// First page of those that objects of every type have.
pub(crate) const ANY_TYPE: u32 = 0xF000_0000;
/// First reserved page.
const RESERVED: u32 = 0xC000_0000;
/// The Current Command page.
pub(crate) const CURRENT_COMMAND: u32 = 0xFFFF_FFFE;
/// Wildcard in a request: every page or every number.
pub(crate) const ALL: u32 = 0xFFFF_FFFF;
/// First offset in a range that applications may use.
const APPLICATION: u32 = 0x1_0000;
/// Vendor pages for security. U+F001h, 1 is the minimum security method of an object; R+F001h, 1 is
/// the public key of the method cipher.
pub(crate) const SEALSTONE: u32 = 0xF001;
/// Vendor pages about functions: U+F002h of a function object, P+F002h with the policy of a
/// partition, R+F002h with the engines.
pub(crate) const FUNCTIONS: u32 = 0xF002;
/// Vendor page with the boot epoch: U+F003h, 1. A client that wrote in one epoch and flushed in
/// another must not assume that its writes are durable.
pub(crate) const BOOT_EPOCH_PAGE: u32 = 0xF003;
/// Vendor page about the source and the duplicates of a partition: P+F004h.
pub(crate) const DUPLICATES: u32 = 0xF004;
/// Vendor page with the digest profile of a partition: P+F006h, 1.
pub(crate) const DIGESTS: u32 = 0xF006;
/// Vendor page with audit values whose credentials are refused: R+F005h, one per number.
pub(crate) const FROZEN_AUDITS: u32 = 0xF005;
/// Vendor page of the root about a file system that the device shares with other users.
pub(crate) const SHARED_SPACE: u32 = 0xF007;
/// Vendor page of an object or collection that a function created: U+F008h, C+F008h.
pub(crate) const CREATOR: u32 = 0xF008;
/// Reserved page with internal state that no client can access.
pub(crate) const INTERNAL: u32 = 0xEFFF_FF00;

/// Offsets of the standard pages in their range.
pub(crate) mod page {
    pub(crate) const DIRECTORY: u32 = 0;
    pub(crate) const INFORMATION: u32 = 1;
    pub(crate) const QUOTAS: u32 = 2;
    pub(crate) const TIMESTAMPS: u32 = 3;
    /// User objects only: their collection memberships.
    pub(crate) const COLLECTIONS: u32 = 4;
    /// Collections only: the command that a tracking collection follows.
    pub(crate) const TRACKING: u32 = 4;
    /// Partitions only: attributes that a capability may access.
    pub(crate) const ATTRIBUTES_ACCESS: u32 = 4;
    pub(crate) const SECURITY: u32 = 5;
    pub(crate) const ERROR_RECOVERY: u32 = 6;
}

/// Number of the attribute that identifies its page.
pub(crate) const IDENTIFICATION: u32 = 0;
/// Number of the timestamp bypass attribute of a Timestamps page.
pub(crate) const BYPASS: u32 = 0xFFFF_FFFE;
/// Number of the policy access tag in a Policy/Security page.
pub(crate) const POLICY_ACCESS_TAG: u32 = 0x4000_0001;
/// Number of the tag that new user objects of a partition get.
pub(crate) const USER_OBJECT_TAG: u32 = 0x4000_0002;

/// Values that a client may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetRule {
    /// None; the attribute is read-only.
    Never,
    /// Values of the row's length. An empty value restores the default.
    Stored,
    /// LOGICAL LENGTH: truncates or extends the object.
    LogicalLength,
    /// A security method: one byte 0 to 3. Lowering it needs more authority than raising it.
    Method,
    /// A nonce limit of at most this many milliseconds.
    NonceLimit(u64),
    /// One of the supported isolation methods.
    Isolation,
    /// One of these numbers, in 4 bytes.
    OneOf(&'static [u32]),
    /// A list of page and number, 8 bytes each.
    Names,
    /// A value that the protocol permits for this attribute of a function.
    Function,
    /// A policy about functions: one byte.
    FunctionPolicy,
    /// The collection that the object joins under this number.
    Membership,
    /// A digest profile: one byte, 0 for none. It may change only while the partition has no
    /// objects.
    Profile,
    /// The adjustable clock: steps forward, or stands still until real time has caught up.
    Clock,
}

/// Length of a value in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthRule {
    Exactly(usize),
    AtMost(usize),
}

impl LengthRule {
    pub(crate) fn fits(self, value: &[u8]) -> bool {
        match self {
            Self::Exactly(length) => value.len() == length,
            Self::AtMost(length) => value.len() <= length,
        }
    }
}

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// A constant.
    Fixed(&'static [u8]),
    /// The store, with a default that is used until the attribute is set. An empty default is
    /// undefined.
    Stored(&'static [u8]),
    /// Computed when the attribute is read.
    Live(LiveValue),
}

/// Computed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveValue {
    SystemId,
    SerialNumber,
    DeviceName,
    TotalCapacity,
    /// Shared file system: its id (16 bytes), its free bytes (8), bytes without it (8).
    SharedSpace,
    UsedCapacity,
    PartitionCount,
    Clock,
    PartitionId,
    ObjectId,
    ObjectCount,
    LogicalLength,
    DataAccessed,
    DataModified,
    AttributesAccessed,
    DefaultMethod,
    PartitionDefaultMethod,
    SupportedMethods,
    BootEpoch,
    IcvAlgorithm,
    OldestNonce,
    NewestNonce,
    NonceListDepth,
    KeyIdentifier,
    DhGroup,
    CollectionType,
    MemberCount,
    Tracking,
    Profile,
    MethodCipher,
    /// The engine whose type is the number.
    Engine,
}

/// One attribute, or a run of attributes with consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttributeRow {
    pub(crate) kind: ObjectType,
    /// Page number including the base of the type.
    pub(crate) page: u32,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) length: LengthRule,
    pub(crate) set: SetRule,
    pub(crate) source: ValueSource,
}

/// Builds the table from pages with their rows.
macro_rules! rows {
    ($($kind:ident $base:ident + $page:path : { $($rest:tt)* })*) => {
        /// The attribute table.
        pub(crate) static ROWS: &[&[AttributeRow]] = &[$(rows!(@page $kind, $base + $page; []; $($rest)*)),*];
    };
    (@page $kind:ident, $page:expr; [$($done:expr,)*]; ) => { &[$($done),*] };
    (@page $kind:ident, $page:expr; [$($done:expr,)*]; $first:literal ..= $last:literal, $length:expr, $set:expr, $source:expr; $($rest:tt)*) => {
        rows!(@page $kind, $page; [$($done,)* AttributeRow {
            kind: ObjectType::$kind, page: $page, first: $first, last: $last, length: $length, set: $set, source: $source,
        },]; $($rest)*)
    };
}

use LengthRule::{AtMost, Exactly};
use ValueSource::{Fixed, Stored};

/// No limit: the default of every quota.
const UNLIMITED: &[u8] = &[0xFF; 8];
/// Time of an event that has not happened.
const NO_TIME: &[u8] = &[0; 6];
/// Longest OSD NAME or user name in bytes.
pub(crate) const NAME_MAX: usize = 256;
/// Length of the longest public key of the method cipher, that of H7, in bytes.
const METHOD_CIPHER_MAX: usize = 5 + Parameters::H7.key_bits().div_ceil(8);
/// Entries in one value of the Attributes Access page.
pub(crate) const ACCESS_NAMES_MAX: usize = 1024;
/// Largest CDB continuation segment in bytes, reported by attribute R+1/Ah.
pub(crate) const CONTINUATION_MAX: u32 = 128 * 1024;
/// Largest segment of any other command than EXECUTE FUNCTION in bytes.
pub(crate) const LIST_CONTINUATION_MAX: u32 = 64 * 1024;
/// Largest data of descriptor FF01h in bytes.
const FUNCTION_REQUEST_MAX: u32 = (sealstone_osd::function::REQUEST_HEADER_LEN
    + sealstone_osd::function::OBJECTS_MAX * sealstone_osd::function::OBJECT_ENTRY_LEN
    + sealstone_osd::function::METHOD_MAX
    + sealstone_osd::function::ARGUMENTS_MAX) as u32;
/// Most extension capabilities of one command.
const EXTENSIONS_MAX: u32 = sealstone_osd::continuation::FUNCTION_EXTENSION_MAX as u32;
/// Largest write that is atomic for crashes and other commands, in bytes: one transfer.
const ATOMIC_DATA: u64 = 16 << 20;
/// Bytes of attributes that one command sets atomically.
const ATOMIC_ATTRIBUTES: u64 = super::limits::SET_LIST_MAX as u64;
/// Granularity of the used capacity in bytes.
const CAPACITY_INCREMENT: u64 = sealstone_store::BLOCK;
/// Value for unrestricted access.
const ACCESSIBLE: &[u8] = &[0; 4];
/// Value for a supported duplication method.
const SUPPORTED: &[u8] = &[0, 0, 0, 1];
/// Codes of duplication methods that select the supported one, and codes of the time of
/// duplication.
const METHODS: &[u32] = &[0x00, 0x01, 0xFD, 0xFF];
const TIMES: &[u32] = &[0x0, 0xF];
/// No limit of collections per object.
const ANY_NUMBER: &[u8] = &[0xFF; 4];

const fn live(live: LiveValue) -> ValueSource {
    ValueSource::Live(live)
}

rows! {
    Root ROOT + page::INFORMATION: {
        0x3..=0x3, Exactly(20), SetRule::Never, live(LiveValue::SystemId);
        0x4..=0x4, Exactly(8), SetRule::Never, Fixed(b"SEALSTON");
        0x5..=0x5, Exactly(16), SetRule::Never, Fixed(b"SEALSTONE OSD   ");
        0x6..=0x6, Exactly(32), SetRule::Never, Fixed(b"OBJECT DISK                     ");
        0x7..=0x7, Exactly(4), SetRule::Never, Fixed(b"0001");
        0x8..=0x8, AtMost(64), SetRule::Never, live(LiveValue::SerialNumber);
        0x9..=0x9, AtMost(NAME_MAX), SetRule::Stored, live(LiveValue::DeviceName);
        0xA..=0xA, Exactly(4), SetRule::Never, Fixed(&CONTINUATION_MAX.to_be_bytes());
        0x80..=0x80, Exactly(8), SetRule::Never, live(LiveValue::TotalCapacity);
        0x81..=0x81, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
        0x83..=0x83, Exactly(4), SetRule::Never, Fixed(ACCESSIBLE);
        0xC0..=0xC0, Exactly(8), SetRule::Never, live(LiveValue::PartitionCount);
        0x100..=0x100, Exactly(6), SetRule::Never, live(LiveValue::Clock);
        0x110..=0x110, Exactly(1), SetRule::Isolation, Stored(&[isolation::DEFAULT]);
        0x111..=0x111, Exactly(32), SetRule::Never, Fixed(&isolation::SUPPORTED);
        0x120..=0x120, Exactly(8), SetRule::Never, Fixed(&ATOMIC_DATA.to_be_bytes());
        0x121..=0x121, Exactly(8), SetRule::Never, Fixed(&1u64.to_be_bytes());
        0x122..=0x122, Exactly(8), SetRule::Never, Fixed(&ATOMIC_ATTRIBUTES.to_be_bytes());
        0x123..=0x123, Exactly(1), SetRule::Never, Fixed(&[1]);
        0x1C1..=0x1C2, Exactly(4), SetRule::Never, Fixed(&(duplicates::CHILDREN_MAX as u32).to_be_bytes());
        0x1CC..=0x1CC, Exactly(4), SetRule::Never, Fixed(&duplicates::DEPTH_MAX.to_be_bytes());
        0x201..=0x201, Exactly(4), SetRule::Never, Fixed(SUPPORTED);
        0x2FD..=0x2FD, Exactly(4), SetRule::Never, Fixed(SUPPORTED);
        0x2FF..=0x300, Exactly(4), SetRule::Never, Fixed(SUPPORTED);
        0x310..=0x310, Exactly(4), SetRule::Never, Fixed(SUPPORTED);
        0x311..=0x311, Exactly(1), SetRule::Never, Fixed(&[1]);
        0x700_0001..=0x700_0001, Exactly(4), SetRule::Never, Fixed(&(LIST_CONTINUATION_MAX - 48).to_be_bytes());
        0x700_0002..=0x700_0002, Exactly(4), SetRule::Never, Fixed(&(LIST_CONTINUATION_MAX - 48).to_be_bytes());
        0x700_0101..=0x700_0101, Exactly(4), SetRule::Never, Fixed(&18u32.to_be_bytes());
        0x700_FF01..=0x700_FF01, Exactly(4), SetRule::Never, Fixed(&FUNCTION_REQUEST_MAX.to_be_bytes());
        0x700_FF10..=0x700_FF10, Exactly(4), SetRule::Never, Fixed(&(1024 * 32u32).to_be_bytes());
        0x700_FF11..=0x700_FF11, Exactly(4), SetRule::Never, Fixed(&(EXTENSIONS_MAX * 32).to_be_bytes());
        0x700_FFEE..=0x700_FFEE, Exactly(4), SetRule::Never, Fixed(&(EXTENSIONS_MAX * 104).to_be_bytes());
    }
    Root ROOT + page::QUOTAS: {
        0x1..=0x1, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
        0x10001..=0x10002, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
        0x10081..=0x10081, Exactly(4), SetRule::Stored, Stored(ANY_NUMBER);
        0x20002..=0x20002, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
    }
    Root ROOT + page::TIMESTAMPS: {
        0x2..=0x2, Exactly(6), SetRule::Stored, live(LiveValue::AttributesAccessed);
        0x3..=0x3, Exactly(6), SetRule::Stored, Stored(NO_TIME);
        0xFFFF_FFFE..=0xFFFF_FFFE, Exactly(1), SetRule::Stored, Stored(&[0]);
    }
    Root ROOT + page::SECURITY: {
        0x1..=0x1, Exactly(1), SetRule::Method, live(LiveValue::DefaultMethod);
        0x2..=0x2, Exactly(6), SetRule::NonceLimit(OLDEST_NONCE_MS), live(LiveValue::OldestNonce);
        0x3..=0x3, Exactly(6), SetRule::NonceLimit(NEWEST_NONCE_MS), live(LiveValue::NewestNonce);
        0x6..=0x6, Exactly(1), SetRule::Method, live(LiveValue::PartitionDefaultMethod);
        0x7..=0x7, Exactly(2), SetRule::Never, live(LiveValue::SupportedMethods);
        0x9..=0x9, Exactly(6), SetRule::Clock, live(LiveValue::Clock);
        0xA..=0xA, Exactly(2), SetRule::Never, live(LiveValue::BootEpoch);
        0x7FFD..=0x7FFE, Exactly(7), SetRule::Never, live(LiveValue::KeyIdentifier);
        0x8000_0000..=0x8000_000F, Exactly(1), SetRule::Never, live(LiveValue::IcvAlgorithm);
        0x8000_0010..=0x8000_001F, Exactly(1), SetRule::Never, live(LiveValue::DhGroup);
    }
    Root ROOT + page::ERROR_RECOVERY: {
        0x1..=0x2, Exactly(1), SetRule::Never, Stored(&[0]);
        0x3..=0x5, Exactly(6), SetRule::Never, Stored(NO_TIME);
        0x6..=0x6, Exactly(8), SetRule::Never, Stored(&[0; 8]);
    }
    Partition PARTITION + page::INFORMATION: {
        0x1..=0x1, Exactly(8), SetRule::Never, live(LiveValue::PartitionId);
        0x9..=0x9, AtMost(NAME_MAX), SetRule::Stored, Stored(&[]);
        0x81..=0x81, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
        0x83..=0x83, Exactly(4), SetRule::Never, Fixed(ACCESSIBLE);
        0x84..=0x84, Exactly(8), SetRule::Never, Fixed(&CAPACITY_INCREMENT.to_be_bytes());
        0xC1..=0xC1, Exactly(8), SetRule::Never, live(LiveValue::ObjectCount);
        0xD1..=0xD1, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
        0x200..=0x201, Exactly(4), SetRule::OneOf(METHODS), Stored(SUPPORTED);
        0x300..=0x301, Exactly(4), SetRule::OneOf(TIMES), Stored(&[0; 4]);
    }
    Partition PARTITION + page::QUOTAS: {
        0x1..=0x1, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
        0x10001..=0x10002, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
        0x10081..=0x10081, Exactly(4), SetRule::Stored, Stored(ANY_NUMBER);
    }
    Partition PARTITION + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), SetRule::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), SetRule::Stored, live(LiveValue::AttributesAccessed);
        0x3..=0x3, Exactly(6), SetRule::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), SetRule::Stored, live(LiveValue::DataAccessed);
        0x5..=0x5, Exactly(6), SetRule::Stored, live(LiveValue::DataModified);
        0xFFFF_FFFE..=0xFFFF_FFFE, Exactly(1), SetRule::Stored, Stored(&[0]);
    }
    Partition PARTITION + page::ATTRIBUTES_ACCESS: {
        0x1..=0xFFFF_FF00, AtMost(8 * ACCESS_NAMES_MAX), SetRule::Names, Stored(&[]);
    }
    Partition PARTITION + page::SECURITY: {
        0x1..=0x1, Exactly(1), SetRule::Method, live(LiveValue::DefaultMethod);
        0x2..=0x2, Exactly(6), SetRule::NonceLimit(OLDEST_NONCE_MS), live(LiveValue::OldestNonce);
        0x3..=0x3, Exactly(6), SetRule::NonceLimit(NEWEST_NONCE_MS), live(LiveValue::NewestNonce);
        0x4..=0x4, Exactly(2), SetRule::Stored, live(LiveValue::NonceListDepth);
        0x5..=0x5, Exactly(2), SetRule::Stored, Stored(&[0; 2]);
        0x7FFF..=0x7FFF, Exactly(7), SetRule::Never, live(LiveValue::KeyIdentifier);
        0x8000..=0x800F, Exactly(7), SetRule::Never, live(LiveValue::KeyIdentifier);
        0x4000_0001..=0x4000_0002, Exactly(4), SetRule::Stored, Stored(&[0; 4]);
    }
    Partition PARTITION + page::ERROR_RECOVERY: {
        0x1..=0x2, Exactly(1), SetRule::Never, Stored(&[0]);
        0x3..=0x5, Exactly(6), SetRule::Never, Stored(NO_TIME);
        0x6..=0x6, Exactly(8), SetRule::Never, Stored(&[0; 8]);
    }
    Partition PARTITION + DUPLICATES: {
        0x1..=0x1, Exactly(1), SetRule::Never, Stored(&[0]);
        0x2..=0x2, Exactly(8), SetRule::Never, Stored(&[]);
        0x3..=0x3, Exactly(6), SetRule::Never, Stored(&[]);
        0x4..=0x4, Exactly(1), SetRule::Never, Stored(&[]);
        0x5..=0x5, Exactly(4), SetRule::Never, Stored(&[0; 4]);
        0x6..=0x6, Exactly(6), SetRule::Never, Stored(&[]);
        0x7..=0x8, Exactly(4), SetRule::Never, Stored(&[0; 4]);
        0x9..=0xA, AtMost(8 * duplicates::CHILDREN_MAX), SetRule::Never, Stored(&[]);
    }
    Collection COLLECTION + page::INFORMATION: {
        0x1..=0x1, Exactly(8), SetRule::Never, live(LiveValue::PartitionId);
        0x2..=0x2, Exactly(8), SetRule::Never, live(LiveValue::ObjectId);
        0x9..=0x9, AtMost(NAME_MAX), SetRule::Stored, Stored(&[]);
        0xA..=0xA, Exactly(1), SetRule::Never, live(LiveValue::CollectionType);
        0x81..=0x81, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
        0x83..=0x83, Exactly(4), SetRule::Never, Fixed(ACCESSIBLE);
    }
    Collection COLLECTION + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), SetRule::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), SetRule::Stored, live(LiveValue::AttributesAccessed);
        0x3..=0x3, Exactly(6), SetRule::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), SetRule::Stored, live(LiveValue::DataAccessed);
        0x5..=0x5, Exactly(6), SetRule::Stored, live(LiveValue::DataModified);
    }
    Collection COLLECTION + page::TRACKING: {
        0x1..=0x1, Exactly(1), SetRule::Never, live(LiveValue::Tracking);
        0x2..=0x3, Exactly(2), SetRule::Never, live(LiveValue::Tracking);
        0x4..=0x4, AtMost(252), SetRule::Never, live(LiveValue::Tracking);
        0x10..=0x10, Exactly(8), SetRule::Never, live(LiveValue::MemberCount);
        0x11..=0x13, Exactly(8), SetRule::Never, live(LiveValue::Tracking);
    }
    Collection COLLECTION + page::SECURITY: {
        0x4000_0001..=0x4000_0001, Exactly(4), SetRule::Stored, Stored(&[0; 4]);
    }
    Collection COLLECTION + page::ERROR_RECOVERY: {
        0x1..=0x1, Exactly(1), SetRule::Never, Stored(&[0]);
        0x3..=0x4, Exactly(6), SetRule::Never, Stored(NO_TIME);
    }
    User USER + page::INFORMATION: {
        0x1..=0x1, Exactly(8), SetRule::Never, live(LiveValue::PartitionId);
        0x2..=0x2, Exactly(8), SetRule::Never, live(LiveValue::ObjectId);
        0x9..=0x9, AtMost(NAME_MAX), SetRule::Stored, Stored(&[]);
        0x81..=0x81, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
        0x82..=0x82, Exactly(8), SetRule::LogicalLength, live(LiveValue::LogicalLength);
        0x83..=0x83, Exactly(4), SetRule::Never, Fixed(ACCESSIBLE);
        0xD1..=0xD1, Exactly(8), SetRule::Never, live(LiveValue::UsedCapacity);
    }
    User USER + page::QUOTAS: {
        0x1..=0x1, Exactly(8), SetRule::Stored, Stored(UNLIMITED);
    }
    User USER + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), SetRule::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), SetRule::Stored, live(LiveValue::AttributesAccessed);
        0x3..=0x3, Exactly(6), SetRule::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), SetRule::Stored, live(LiveValue::DataAccessed);
        0x5..=0x5, Exactly(6), SetRule::Stored, Stored(NO_TIME);
    }
    User USER + page::COLLECTIONS: {
        0x1..=0xFFFF_FF00, Exactly(8), SetRule::Membership, Stored(&[]);
    }
    User USER + page::SECURITY: {
        0x4000_0001..=0x4000_0001, Exactly(4), SetRule::Stored, Stored(&[0; 4]);
    }
    User USER + page::ERROR_RECOVERY: {
        0x1..=0x1, Exactly(1), SetRule::Never, Stored(&[0]);
        0x3..=0x4, Exactly(6), SetRule::Never, Stored(NO_TIME);
    }
    User USER + FUNCTIONS: {
        0x1..=0x1, Exactly(1), SetRule::Function, Stored(&[]);
        0x2..=0x3, Exactly(ApiVersion::LEN), SetRule::Function, Stored(&[]);
        0x4..=0x5, AtMost(function::TEXT_MAX), SetRule::Function, Stored(&[]);
        0x6..=0x6, Exactly(function::PUBLIC_KEY_LEN), SetRule::Function, Stored(&[]);
        0x7..=0x7, Exactly(function::SIGNATURE_LEN), SetRule::Function, Stored(&[]);
        0x8..=0x8, AtMost(function::MANIFEST_MAX), SetRule::Function, Stored(&[]);
        0x9..=0x9, Exactly(CODE_DIGEST_LEN), SetRule::Function, Stored(&[]);
    }
    User USER + CREATOR: {
        0x1..=0x1, Exactly(16), SetRule::Never, Stored(&[]);
        0x2..=0x2, Exactly(20), SetRule::Never, Stored(&[]);
    }
    Collection COLLECTION + CREATOR: {
        0x1..=0x1, Exactly(16), SetRule::Never, Stored(&[]);
        0x2..=0x2, Exactly(20), SetRule::Never, Stored(&[]);
    }
    Partition PARTITION + FUNCTIONS: {
        0x1..=0x1, Exactly(1), SetRule::FunctionPolicy, Stored(&[0]);
        0x1000..=0x10FF, Exactly(function::PUBLIC_KEY_LEN), SetRule::Stored, Stored(&[]);
        0x2000..=0x20FF, Exactly(CODE_DIGEST_LEN), SetRule::Stored, Stored(&[]);
    }
    Root ROOT + FUNCTIONS: {
        0x1..=0x4, AtMost(function::ENGINE_ENTRY_MAX), SetRule::Never, live(LiveValue::Engine);
    }
    Partition PARTITION + DIGESTS: {
        0x1..=0x1, Exactly(1), SetRule::Profile, live(LiveValue::Profile);
    }
    Root ROOT + SEALSTONE: {
        0x1..=0x1, AtMost(METHOD_CIPHER_MAX), SetRule::Never, live(LiveValue::MethodCipher);
    }
    Root ROOT + SHARED_SPACE: {
        0x1..=0x1, Exactly(32), SetRule::Never, live(LiveValue::SharedSpace);
    }
    Root ROOT + FROZEN_AUDITS: {
        0x1..=0x40, Exactly(20), SetRule::Stored, Stored(&[]);
    }
    User USER + SEALSTONE: {
        0x1..=0x1, Exactly(1), SetRule::Method, Stored(&[0]);
    }
    User USER + BOOT_EPOCH_PAGE: {
        0x1..=0x1, Exactly(2), SetRule::Never, live(LiveValue::BootEpoch);
    }
}

/// Returns the row of an attribute of an object type.
pub(crate) fn row(kind: ObjectType, id: AttributeId) -> Option<&'static AttributeRow> {
    let rows = page_rows(kind, id.page)?;
    rows.iter().find(|row| row.first <= id.number && id.number <= row.last)
}

/// Returns the rows of a page of an object type; `None` if the table has no such page.
pub(crate) fn page_rows(kind: ObjectType, page: u32) -> Option<&'static [AttributeRow]> {
    ROWS.iter().copied().find(|rows| rows.first().is_some_and(|row| row.kind == kind && row.page == page))
}

/// Returns the pages of an object type in the table, ascending, without the directory.
pub(crate) fn own_pages(kind: ObjectType) -> impl Iterator<Item = u32> {
    ROWS.iter().filter_map(move |rows| rows.first().filter(|row| row.kind == kind).map(|row| row.page))
}

/// Kind of a page for an object type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// The list of pages.
    Directory,
    /// Has rows in the table.
    Own,
    /// Defined by applications; values are stored as set.
    Application,
    /// The Current Command page.
    CurrentCommand,
    /// In the range of the type, but nothing is defined there and nothing can be set.
    Empty,
    /// Belongs to another object type, or to none.
    Foreign,
}

/// Returns the kind of a page.
pub(crate) fn sort_page(kind: ObjectType, page: u32) -> PageKind {
    if page == CURRENT_COMMAND {
        return PageKind::CurrentCommand;
    }
    if (ANY_TYPE..CURRENT_COMMAND).contains(&page) {
        return PageKind::Application;
    }
    let (base, end) = match kind {
        ObjectType::User => (USER, PARTITION),
        ObjectType::Partition => (PARTITION, COLLECTION),
        ObjectType::Collection => (COLLECTION, ROOT),
        ObjectType::Root => (ROOT, RESERVED),
    };
    if !(base..end).contains(&page) {
        return PageKind::Foreign;
    }
    match page - base {
        page::DIRECTORY => PageKind::Directory,
        APPLICATION.. => PageKind::Application,
        _ if page_rows(kind, page).is_some() => PageKind::Own,
        _ => PageKind::Empty,
    }
}

/// Returns the first page of the range of an object type.
pub(crate) fn base(kind: ObjectType) -> u32 {
    match kind {
        ObjectType::User => USER,
        ObjectType::Partition => PARTITION,
        ObjectType::Collection => COLLECTION,
        ObjectType::Root => ROOT,
    }
}

/// Whether the page controls access.
pub(crate) fn is_security_page(kind: ObjectType, page: u32) -> bool {
    let base = base(kind);
    let access = kind == ObjectType::Partition && page == base + page::ATTRIBUTES_ACCESS;
    let frozen = kind == ObjectType::Root && page == base + FROZEN_AUDITS;
    let functions = kind == ObjectType::Partition && page == base + FUNCTIONS;
    page == base + page::SECURITY || page == base + SEALSTONE || access || frozen || functions
}

/// Returns the 40 bytes that identify a page of an object type.
pub(crate) fn identification(kind: ObjectType, page: u32) -> Option<[u8; 40]> {
    match sort_page(kind, page) {
        PageKind::Own if page == ROOT + SEALSTONE => Some(*METHOD_CIPHER),
        PageKind::Own if page == base(kind) + SEALSTONE => Some(*SECURITY_FLOOR),
        PageKind::Own if page == ROOT + FUNCTIONS => Some(*FUNCTION_ENGINES),
        PageKind::Own if page == PARTITION + FUNCTIONS => Some(*FUNCTION_POLICY),
        PageKind::Own if page == USER + FUNCTIONS => Some(*FUNCTION_NAME),
        PageKind::Own if page == base(kind) + CREATOR => Some(*CREATOR_NAME),
        PageKind::Own if page == base(kind) + BOOT_EPOCH_PAGE => Some(*DEVICE_LIFE),
        PageKind::Own if page == base(kind) + DUPLICATES => Some(*PARTITION_DUPLICATES),
        PageKind::Own if page == base(kind) + DIGESTS => Some(*PARTITION_DIGESTS),
        PageKind::Own if page == ROOT + FROZEN_AUDITS => Some(*FROZEN_AUDIT_VALUES),
        PageKind::Own if page == ROOT + SHARED_SPACE => Some(*SHARED_SPACE_NAME),
        PageKind::Own | PageKind::Directory | PageKind::CurrentCommand => attribute::identification(page),
        PageKind::Application | PageKind::Empty | PageKind::Foreign => None,
    }
}

/// 8 bytes of vendor, 32 bytes of name.
const SECURITY_FLOOR: &[u8; 40] = b"SEALSTONUser Object Security Floor\0\0\0\0\0\0";
const METHOD_CIPHER: &[u8; 40] = b"SEALSTONMethod Cipher\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const PARTITION_DUPLICATES: &[u8; 40] = b"SEALSTONPartition Duplicates\0\0\0\0\0\0\0\0\0\0\0\0";
const PARTITION_DIGESTS: &[u8; 40] = b"SEALSTONPartition Stored Digests\0\0\0\0\0\0\0\0";
const SHARED_SPACE_NAME: &[u8; 40] = b"SEALSTONShared Space\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const FROZEN_AUDIT_VALUES: &[u8; 40] = b"SEALSTONFrozen Audit Values\0\0\0\0\0\0\0\0\0\0\0\0\0";
const FUNCTION_ENGINES: &[u8; 40] = b"SEALSTONFunction Engines\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const FUNCTION_POLICY: &[u8; 40] = b"SEALSTONPartition Function Policy\0\0\0\0\0\0\0";
const FUNCTION_NAME: &[u8; 40] = b"SEALSTONFunction\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const CREATOR_NAME: &[u8; 40] = b"SEALSTONCreating Function\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const DEVICE_LIFE: &[u8; 40] = b"SEALSTONDevice Life\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_rows_ascend_within_page() {
        for rows in ROWS {
            assert!(rows.iter().all(|row| row.page == rows[0].page && row.kind == rows[0].kind));
            assert!(rows.iter().all(|row| row.first <= row.last));
            assert!(rows.windows(2).all(|pair| pair[0].last < pair[1].first), "{:#x}", rows[0].page);
            assert_eq!(sort_page(rows[0].kind, rows[0].page), PageKind::Own);
        }
    }

    #[test]
    fn fixed_values_and_defaults_fit_row_length() {
        for row in ROWS.iter().copied().flatten() {
            match row.source {
                Fixed(value) => assert!(row.length.fits(value), "{row:?}"),
                Stored(value) => assert!(value.is_empty() || row.length.fits(value), "{row:?}"),
                ValueSource::Live(_) => {}
            }
        }
    }

    /// The protocol's table and this one agree on every attribute that both contain.
    #[test]
    fn lengths_and_access_agree_with_the_protocols_table() {
        for row in ROWS.iter().copied().flatten().filter(|row| {
            let of_partitions = [PARTITION + DUPLICATES, PARTITION + DIGESTS, PARTITION + FUNCTIONS];
            let of_root = [ROOT + SEALSTONE, ROOT + FROZEN_AUDITS, ROOT + SHARED_SPACE, ROOT + FUNCTIONS];
            let ours = [USER + SEALSTONE, USER + BOOT_EPOCH_PAGE, USER + FUNCTIONS, USER + CREATOR];
            let own = [&of_partitions[..], &of_root, &ours, &[COLLECTION + CREATOR]].concat();
            !own.contains(&row.page)
        }) {
            for number in [row.first, row.last] {
                let standard =
                    attribute::standard(AttributeId::new(row.page, number)).expect("a standard attribute");
                match row.length {
                    Exactly(length) => assert!(standard.length.permits(length), "{}", standard.name),
                    AtMost(length) => assert!(standard.length.permits(length), "{}", standard.name),
                }
                let settable = standard.access == attribute::Access::Settable;
                assert!(settable == (row.set != SetRule::Never), "{}", standard.name);
            }
        }
    }

    #[test]
    fn a_page_of_another_type_is_foreign() {
        for (kind, page) in [
            (ObjectType::User, PARTITION + 1),
            (ObjectType::Partition, USER + 1),
            (ObjectType::Root, 0xC000_0000),
            (ObjectType::User, INTERNAL),
        ] {
            assert_eq!(sort_page(kind, page), PageKind::Foreign, "{page:#x}");
        }
        assert_eq!(sort_page(ObjectType::User, 0xF000_0003), PageKind::Application);
        assert_eq!(sort_page(ObjectType::User, 0x1_0000), PageKind::Application);
        assert_eq!(sort_page(ObjectType::User, 0x80), PageKind::Empty);
    }

    #[test]
    fn identifications_are_forty_bytes_and_terminated() {
        let bytes = identification(ObjectType::Root, ROOT + 1).unwrap();
        assert_eq!(&bytes[..28], b"INCITS  T10 Root Information");
        for kind in [ObjectType::Root, ObjectType::Partition, ObjectType::User] {
            assert!(own_pages(kind).all(|page| identification(kind, page).is_some_and(|id| id[39] == 0)));
        }
    }
}
