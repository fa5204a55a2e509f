//! Every attribute that this device knows by itself, one row each.
//!
//! Does: length, access and source of the standard attributes. Does not: compute or store them (`live`, `engine`).
//! Contract: rows of one page stand together and ascend; a number in no row of a standard page is undefined there.
//! Truth: docs/design/t10-osd.md 3.4, 3.5; docs/standards/osd.md.

use sealstone_osd::attribute;
use sealstone_osd::{AttributeId, ObjectType};
use sealstone_seal::mceliece::Parameters;

use crate::catalog::{NEWEST_NONCE_MS, OLDEST_NONCE_MS};
use crate::duplicates;
use crate::isolation;

/// First page of each type's range.
pub(crate) const ROOT: u32 = 0x9000_0000;
/// Partition pages.
pub(crate) const PARTITION: u32 = 0x3000_0000;
/// Collection pages.
pub(crate) const COLLECTION: u32 = 0x6000_0000;
/// User object pages.
pub(crate) const USER: u32 = 0;
/// Pages that exist on objects of every type.
pub(crate) const ANY_TYPE: u32 = 0xF000_0000;
/// First reserved page.
const RESERVED: u32 = 0xC000_0000;
/// What the command that is running did.
pub(crate) const CURRENT_COMMAND: u32 = 0xFFFF_FFFE;
/// In a request: every page or number.
pub(crate) const ALL: u32 = 0xFFFF_FFFF;
/// First offset in a range that applications may use.
const APPLICATION: u32 = 0x1_0000;
/// Pages of ours in each range: the least security method of an object is U+F001h, 1; the public key of the cipher that
/// conceals methods on their way is R+F001h, 1.
pub(crate) const SEALSTONE: u32 = 0xF001;
/// Which life of the device an object is written in: U+F003h, 1 is the boot epoch. A client that wrote in one life and
/// flushed in another must not believe that its writes are durable.
pub(crate) const LIFE: u32 = 0xF003;
/// Where a partition comes from and what was made of it: P+F004h.
pub(crate) const DUPLICATES: u32 = 0xF004;
/// Which digests the objects of a partition are stored with: P+F006h, 1.
pub(crate) const DIGESTS: u32 = 0xF006;
/// Audit values whose credentials are refused, R+F005h: number n is the n-th of them.
pub(crate) const FROZEN_AUDITS: u32 = 0xF005;
/// Page of the root: what the device may take of a file system that others use, too.
pub(crate) const SHARED_SPACE: u32 = 0xF007;
/// Where the device keeps what no client may see: a reserved page.
pub(crate) const INTERNAL: u32 = 0xEFFF_FF00;

/// Offsets of the standard pages in their range.
pub(crate) mod page {
    pub(crate) const DIRECTORY: u32 = 0;
    pub(crate) const INFORMATION: u32 = 1;
    pub(crate) const QUOTAS: u32 = 2;
    pub(crate) const TIMESTAMPS: u32 = 3;
    /// User objects only: the collections that it is a member of.
    pub(crate) const COLLECTIONS: u32 = 4;
    /// Collections only: the command that it tells about.
    pub(crate) const TRACKING: u32 = 4;
    /// Partitions only: which attributes a capability may reach.
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

/// What a client may do to an attribute besides reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Nothing.
    Never,
    /// Store a value of the row's length; length 0 brings the default back.
    Stored,
    /// LOGICAL LENGTH: cuts or extends the object.
    LogicalLength,
    /// A security method: one byte 0 to 3; lowering needs more than raising.
    Method,
    /// A nonce limit: so many milliseconds at most.
    NonceLimit(u64),
    /// One of the isolation methods that the device has.
    Isolation,
    /// A number of 4 bytes, one of these.
    OneOf(&'static [u32]),
    /// A list of page and number, 8 bytes each.
    Names,
    /// The collection that the object is a member of under this number.
    Membership,
    /// A digest profile: one byte, 0 for none; another one only while the partition has no objects.
    Profile,
    /// The adjustable clock: steps forward, or stands until time has caught up.
    Clock,
}

/// How long a value is, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Exactly(usize),
    AtMost(usize),
}

impl Length {
    pub(crate) fn fits(self, value: &[u8]) -> bool {
        match self {
            Self::Exactly(length) => value.len() == length,
            Self::AtMost(length) => value.len() <= length,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Always the same.
    Fixed(&'static [u8]),
    /// The store, and this until it was set; empty is undefined.
    Stored(&'static [u8]),
    /// Known to the device at the moment of asking.
    Live(Live),
}

/// Values that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Live {
    SystemId,
    SerialNumber,
    DeviceName,
    TotalCapacity,
    /// What may be taken of a file system that others use, too: its id (16), its free bytes (8), bytes without it (8).
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
}

/// One attribute, or a run of attributes with consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) kind: ObjectType,
    /// The page, whole.
    pub(crate) page: u32,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) length: Length,
    pub(crate) set: Set,
    pub(crate) source: Source,
}

/// `F` fixed, `S` stored and settable, `K` stored and kept by the device, `L` live, `W` live and settable.
macro_rules! rows {
    ($($kind:ident $base:ident + $page:path : { $($rest:tt)* })*) => {
        /// The table.
        pub(crate) static ROWS: &[&[Row]] = &[$(rows!(@page $kind, $base + $page; []; $($rest)*)),*];
    };
    (@page $kind:ident, $page:expr; [$($done:expr,)*]; ) => { &[$($done),*] };
    (@page $kind:ident, $page:expr; [$($done:expr,)*]; $first:literal ..= $last:literal, $length:expr, $set:expr, $source:expr; $($rest:tt)*) => {
        rows!(@page $kind, $page; [$($done,)* Row {
            kind: ObjectType::$kind, page: $page, first: $first, last: $last, length: $length, set: $set, source: $source,
        },]; $($rest)*)
    };
}

use Length::{AtMost, Exactly};
use Source::{Fixed, Stored};

/// No limit: the default of every quota.
const UNLIMITED: &[u8] = &[0xFF; 8];
/// A time that never was.
const NO_TIME: &[u8] = &[0; 6];
/// Longest OSD NAME or user name, bytes.
pub(crate) const NAME_MAX: usize = 256;
/// Bytes of the longest public key of the method cipher: that of H7.
const METHOD_CIPHER_MAX: usize = 5 + Parameters::H7.key_bits().div_ceil(8);
/// Most pages and numbers in one value of the Attributes Access page.
pub(crate) const ACCESS_NAMES_MAX: usize = 1024;
/// Largest CDB continuation segment, bytes; attribute R+1/Ah tells it.
pub(crate) const CONTINUATION_MAX: u32 = 64 * 1024;
/// Largest write that neither a crash nor another command sees in part, bytes: what one transfer may be.
const ATOMIC_DATA: u64 = 16 << 20;
/// Bytes of attributes that one command sets wholly or not at all.
const ATOMIC_ATTRIBUTES: u64 = super::engine::SET_LIST_MAX as u64;
/// What used capacity grows by, bytes.
const CAPACITY_INCREMENT: u64 = sealstone_store::BLOCK;
/// Nothing hinders access.
const ACCESSIBLE: &[u8] = &[0; 4];
/// A way to duplicate that the device has.
const SUPPORTED: &[u8] = &[0, 0, 0, 1];
/// Codes of duplication methods that mean the one that the device has, and of times of duplication.
const METHODS: &[u32] = &[0x00, 0x01, 0xFD, 0xFF];
const TIMES: &[u32] = &[0x0, 0xF];
/// No limit to collections per object.
const ANY_NUMBER: &[u8] = &[0xFF; 4];

const fn live(live: Live) -> Source {
    Source::Live(live)
}

rows! {
    Root ROOT + page::INFORMATION: {
        0x3..=0x3, Exactly(20), Set::Never, live(Live::SystemId);
        0x4..=0x4, Exactly(8), Set::Never, Fixed(b"SEALSTON");
        0x5..=0x5, Exactly(16), Set::Never, Fixed(b"SEALSTONE OSD   ");
        0x6..=0x6, Exactly(32), Set::Never, Fixed(b"OBJECT DISK                     ");
        0x7..=0x7, Exactly(4), Set::Never, Fixed(b"0001");
        0x8..=0x8, AtMost(64), Set::Never, live(Live::SerialNumber);
        0x9..=0x9, AtMost(NAME_MAX), Set::Stored, live(Live::DeviceName);
        0xA..=0xA, Exactly(4), Set::Never, Fixed(&CONTINUATION_MAX.to_be_bytes());
        0x80..=0x80, Exactly(8), Set::Never, live(Live::TotalCapacity);
        0x81..=0x81, Exactly(8), Set::Never, live(Live::UsedCapacity);
        0x83..=0x83, Exactly(4), Set::Never, Fixed(ACCESSIBLE);
        0xC0..=0xC0, Exactly(8), Set::Never, live(Live::PartitionCount);
        0x100..=0x100, Exactly(6), Set::Never, live(Live::Clock);
        0x110..=0x110, Exactly(1), Set::Isolation, Stored(&[isolation::DEFAULT]);
        0x111..=0x111, Exactly(32), Set::Never, Fixed(&isolation::SUPPORTED);
        0x120..=0x120, Exactly(8), Set::Never, Fixed(&ATOMIC_DATA.to_be_bytes());
        0x121..=0x121, Exactly(8), Set::Never, Fixed(&1u64.to_be_bytes());
        0x122..=0x122, Exactly(8), Set::Never, Fixed(&ATOMIC_ATTRIBUTES.to_be_bytes());
        0x123..=0x123, Exactly(1), Set::Never, Fixed(&[1]);
        0x1C1..=0x1C2, Exactly(4), Set::Never, Fixed(&(duplicates::CHILDREN_MAX as u32).to_be_bytes());
        0x1CC..=0x1CC, Exactly(4), Set::Never, Fixed(&duplicates::DEPTH_MAX.to_be_bytes());
        0x201..=0x201, Exactly(4), Set::Never, Fixed(SUPPORTED);
        0x2FD..=0x2FD, Exactly(4), Set::Never, Fixed(SUPPORTED);
        0x2FF..=0x300, Exactly(4), Set::Never, Fixed(SUPPORTED);
        0x310..=0x310, Exactly(4), Set::Never, Fixed(SUPPORTED);
        0x311..=0x311, Exactly(1), Set::Never, Fixed(&[1]);
        0x700_0001..=0x700_0001, Exactly(4), Set::Never, Fixed(&(CONTINUATION_MAX - 48).to_be_bytes());
        0x700_0002..=0x700_0002, Exactly(4), Set::Never, Fixed(&(CONTINUATION_MAX - 48).to_be_bytes());
        0x700_0101..=0x700_0101, Exactly(4), Set::Never, Fixed(&18u32.to_be_bytes());
        0x700_FF10..=0x700_FF10, Exactly(4), Set::Never, Fixed(&(1024 * 32u32).to_be_bytes());
        0x700_FF11..=0x700_FF11, Exactly(4), Set::Never, Fixed(&(16 * 32u32).to_be_bytes());
        0x700_FFEE..=0x700_FFEE, Exactly(4), Set::Never, Fixed(&(16 * 104u32).to_be_bytes());
    }
    Root ROOT + page::QUOTAS: {
        0x1..=0x1, Exactly(8), Set::Stored, Stored(UNLIMITED);
        0x10001..=0x10002, Exactly(8), Set::Stored, Stored(UNLIMITED);
        0x10081..=0x10081, Exactly(4), Set::Stored, Stored(ANY_NUMBER);
        0x20002..=0x20002, Exactly(8), Set::Stored, Stored(UNLIMITED);
    }
    Root ROOT + page::TIMESTAMPS: {
        0x2..=0x2, Exactly(6), Set::Stored, live(Live::AttributesAccessed);
        0x3..=0x3, Exactly(6), Set::Stored, Stored(NO_TIME);
        0xFFFF_FFFE..=0xFFFF_FFFE, Exactly(1), Set::Stored, Stored(&[0]);
    }
    Root ROOT + page::SECURITY: {
        0x1..=0x1, Exactly(1), Set::Method, live(Live::DefaultMethod);
        0x2..=0x2, Exactly(6), Set::NonceLimit(OLDEST_NONCE_MS), live(Live::OldestNonce);
        0x3..=0x3, Exactly(6), Set::NonceLimit(NEWEST_NONCE_MS), live(Live::NewestNonce);
        0x6..=0x6, Exactly(1), Set::Method, live(Live::PartitionDefaultMethod);
        0x7..=0x7, Exactly(2), Set::Never, live(Live::SupportedMethods);
        0x9..=0x9, Exactly(6), Set::Clock, live(Live::Clock);
        0xA..=0xA, Exactly(2), Set::Never, live(Live::BootEpoch);
        0x7FFD..=0x7FFE, Exactly(7), Set::Never, live(Live::KeyIdentifier);
        0x8000_0000..=0x8000_000F, Exactly(1), Set::Never, live(Live::IcvAlgorithm);
        0x8000_0010..=0x8000_001F, Exactly(1), Set::Never, live(Live::DhGroup);
    }
    Root ROOT + page::ERROR_RECOVERY: {
        0x1..=0x2, Exactly(1), Set::Never, Stored(&[0]);
        0x3..=0x5, Exactly(6), Set::Never, Stored(NO_TIME);
        0x6..=0x6, Exactly(8), Set::Never, Stored(&[0; 8]);
    }
    Partition PARTITION + page::INFORMATION: {
        0x1..=0x1, Exactly(8), Set::Never, live(Live::PartitionId);
        0x9..=0x9, AtMost(NAME_MAX), Set::Stored, Stored(&[]);
        0x81..=0x81, Exactly(8), Set::Never, live(Live::UsedCapacity);
        0x83..=0x83, Exactly(4), Set::Never, Fixed(ACCESSIBLE);
        0x84..=0x84, Exactly(8), Set::Never, Fixed(&CAPACITY_INCREMENT.to_be_bytes());
        0xC1..=0xC1, Exactly(8), Set::Never, live(Live::ObjectCount);
        0xD1..=0xD1, Exactly(8), Set::Never, live(Live::UsedCapacity);
        0x200..=0x201, Exactly(4), Set::OneOf(METHODS), Stored(SUPPORTED);
        0x300..=0x301, Exactly(4), Set::OneOf(TIMES), Stored(&[0; 4]);
    }
    Partition PARTITION + page::QUOTAS: {
        0x1..=0x1, Exactly(8), Set::Stored, Stored(UNLIMITED);
        0x10001..=0x10002, Exactly(8), Set::Stored, Stored(UNLIMITED);
        0x10081..=0x10081, Exactly(4), Set::Stored, Stored(ANY_NUMBER);
    }
    Partition PARTITION + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), Set::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), Set::Stored, live(Live::AttributesAccessed);
        0x3..=0x3, Exactly(6), Set::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), Set::Stored, live(Live::DataAccessed);
        0x5..=0x5, Exactly(6), Set::Stored, live(Live::DataModified);
        0xFFFF_FFFE..=0xFFFF_FFFE, Exactly(1), Set::Stored, Stored(&[0]);
    }
    Partition PARTITION + page::ATTRIBUTES_ACCESS: {
        0x1..=0xFFFF_FF00, AtMost(8 * ACCESS_NAMES_MAX), Set::Names, Stored(&[]);
    }
    Partition PARTITION + page::SECURITY: {
        0x1..=0x1, Exactly(1), Set::Method, live(Live::DefaultMethod);
        0x2..=0x2, Exactly(6), Set::NonceLimit(OLDEST_NONCE_MS), live(Live::OldestNonce);
        0x3..=0x3, Exactly(6), Set::NonceLimit(NEWEST_NONCE_MS), live(Live::NewestNonce);
        0x4..=0x4, Exactly(2), Set::Stored, live(Live::NonceListDepth);
        0x5..=0x5, Exactly(2), Set::Stored, Stored(&[0; 2]);
        0x7FFF..=0x7FFF, Exactly(7), Set::Never, live(Live::KeyIdentifier);
        0x8000..=0x800F, Exactly(7), Set::Never, live(Live::KeyIdentifier);
        0x4000_0001..=0x4000_0002, Exactly(4), Set::Stored, Stored(&[0; 4]);
    }
    Partition PARTITION + page::ERROR_RECOVERY: {
        0x1..=0x2, Exactly(1), Set::Never, Stored(&[0]);
        0x3..=0x5, Exactly(6), Set::Never, Stored(NO_TIME);
        0x6..=0x6, Exactly(8), Set::Never, Stored(&[0; 8]);
    }
    Partition PARTITION + DUPLICATES: {
        0x1..=0x1, Exactly(1), Set::Never, Stored(&[0]);
        0x2..=0x2, Exactly(8), Set::Never, Stored(&[]);
        0x3..=0x3, Exactly(6), Set::Never, Stored(&[]);
        0x4..=0x4, Exactly(1), Set::Never, Stored(&[]);
        0x5..=0x5, Exactly(4), Set::Never, Stored(&[0; 4]);
        0x6..=0x6, Exactly(6), Set::Never, Stored(&[]);
        0x7..=0x8, Exactly(4), Set::Never, Stored(&[0; 4]);
        0x9..=0xA, AtMost(8 * duplicates::CHILDREN_MAX), Set::Never, Stored(&[]);
    }
    Collection COLLECTION + page::INFORMATION: {
        0x1..=0x1, Exactly(8), Set::Never, live(Live::PartitionId);
        0x2..=0x2, Exactly(8), Set::Never, live(Live::ObjectId);
        0x9..=0x9, AtMost(NAME_MAX), Set::Stored, Stored(&[]);
        0xA..=0xA, Exactly(1), Set::Never, live(Live::CollectionType);
        0x81..=0x81, Exactly(8), Set::Never, live(Live::UsedCapacity);
        0x83..=0x83, Exactly(4), Set::Never, Fixed(ACCESSIBLE);
    }
    Collection COLLECTION + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), Set::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), Set::Stored, live(Live::AttributesAccessed);
        0x3..=0x3, Exactly(6), Set::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), Set::Stored, live(Live::DataAccessed);
        0x5..=0x5, Exactly(6), Set::Stored, live(Live::DataModified);
    }
    Collection COLLECTION + page::TRACKING: {
        0x1..=0x1, Exactly(1), Set::Never, live(Live::Tracking);
        0x2..=0x3, Exactly(2), Set::Never, live(Live::Tracking);
        0x4..=0x4, AtMost(252), Set::Never, live(Live::Tracking);
        0x10..=0x10, Exactly(8), Set::Never, live(Live::MemberCount);
        0x11..=0x13, Exactly(8), Set::Never, live(Live::Tracking);
    }
    Collection COLLECTION + page::SECURITY: {
        0x4000_0001..=0x4000_0001, Exactly(4), Set::Stored, Stored(&[0; 4]);
    }
    Collection COLLECTION + page::ERROR_RECOVERY: {
        0x1..=0x1, Exactly(1), Set::Never, Stored(&[0]);
        0x3..=0x4, Exactly(6), Set::Never, Stored(NO_TIME);
    }
    User USER + page::INFORMATION: {
        0x1..=0x1, Exactly(8), Set::Never, live(Live::PartitionId);
        0x2..=0x2, Exactly(8), Set::Never, live(Live::ObjectId);
        0x9..=0x9, AtMost(NAME_MAX), Set::Stored, Stored(&[]);
        0x81..=0x81, Exactly(8), Set::Never, live(Live::UsedCapacity);
        0x82..=0x82, Exactly(8), Set::LogicalLength, live(Live::LogicalLength);
        0x83..=0x83, Exactly(4), Set::Never, Fixed(ACCESSIBLE);
        0xD1..=0xD1, Exactly(8), Set::Never, live(Live::UsedCapacity);
    }
    User USER + page::QUOTAS: {
        0x1..=0x1, Exactly(8), Set::Stored, Stored(UNLIMITED);
    }
    User USER + page::TIMESTAMPS: {
        0x1..=0x1, Exactly(6), Set::Never, Stored(NO_TIME);
        0x2..=0x2, Exactly(6), Set::Stored, live(Live::AttributesAccessed);
        0x3..=0x3, Exactly(6), Set::Stored, Stored(NO_TIME);
        0x4..=0x4, Exactly(6), Set::Stored, live(Live::DataAccessed);
        0x5..=0x5, Exactly(6), Set::Stored, Stored(NO_TIME);
    }
    User USER + page::COLLECTIONS: {
        0x1..=0xFFFF_FF00, Exactly(8), Set::Membership, Stored(&[]);
    }
    User USER + page::SECURITY: {
        0x4000_0001..=0x4000_0001, Exactly(4), Set::Stored, Stored(&[0; 4]);
    }
    User USER + page::ERROR_RECOVERY: {
        0x1..=0x1, Exactly(1), Set::Never, Stored(&[0]);
        0x3..=0x4, Exactly(6), Set::Never, Stored(NO_TIME);
    }
    Partition PARTITION + DIGESTS: {
        0x1..=0x1, Exactly(1), Set::Profile, live(Live::Profile);
    }
    Root ROOT + SEALSTONE: {
        0x1..=0x1, AtMost(METHOD_CIPHER_MAX), Set::Never, live(Live::MethodCipher);
    }
    Root ROOT + SHARED_SPACE: {
        0x1..=0x1, Exactly(32), Set::Never, live(Live::SharedSpace);
    }
    Root ROOT + FROZEN_AUDITS: {
        0x1..=0x40, Exactly(20), Set::Stored, Stored(&[]);
    }
    User USER + SEALSTONE: {
        0x1..=0x1, Exactly(1), Set::Method, Stored(&[0]);
    }
    User USER + LIFE: {
        0x1..=0x1, Exactly(2), Set::Never, live(Live::BootEpoch);
    }
}

/// The row of an attribute on an object of a type.
pub(crate) fn row(kind: ObjectType, id: AttributeId) -> Option<&'static Row> {
    let rows = page_rows(kind, id.page)?;
    rows.iter().find(|row| row.first <= id.number && id.number <= row.last)
}

/// The rows of a page on an object of a type; `None` if the page is not one of ours there.
pub(crate) fn page_rows(kind: ObjectType, page: u32) -> Option<&'static [Row]> {
    ROWS.iter().copied().find(|rows| rows.first().is_some_and(|row| row.kind == kind && row.page == page))
}

/// Our own pages on objects of a type, ascending, without the directory.
pub(crate) fn own_pages(kind: ObjectType) -> impl Iterator<Item = u32> {
    ROWS.iter().filter_map(move |rows| rows.first().filter(|row| row.kind == kind).map(|row| row.page))
}

/// What kind of page this is for objects of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    /// The list of pages.
    Directory,
    /// Has rows here.
    Own,
    /// Applications define it; everything in it is stored.
    Application,
    /// What the command did.
    CurrentCommand,
    /// Of the right type, but nothing is defined there and nothing can be.
    Empty,
    /// Belongs to objects of another type, or to nobody.
    Foreign,
}

/// Sorts a page number.
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

/// First page of the range of a type.
pub(crate) fn base(kind: ObjectType) -> u32 {
    match kind {
        ObjectType::User => USER,
        ObjectType::Partition => PARTITION,
        ObjectType::Collection => COLLECTION,
        ObjectType::Root => ROOT,
    }
}

/// Is it a page that protects something?
pub(crate) fn is_security_page(kind: ObjectType, page: u32) -> bool {
    let base = base(kind);
    let access = kind == ObjectType::Partition && page == base + page::ATTRIBUTES_ACCESS;
    let frozen = kind == ObjectType::Root && page == base + FROZEN_AUDITS;
    page == base + page::SECURITY || page == base + SEALSTONE || access || frozen
}

/// The 40 bytes that identify one of our pages on objects of a type.
pub(crate) fn identification(kind: ObjectType, page: u32) -> Option<[u8; 40]> {
    match sort_page(kind, page) {
        PageKind::Own if page == ROOT + SEALSTONE => Some(*METHOD_CIPHER),
        PageKind::Own if page == base(kind) + SEALSTONE => Some(*SECURITY_FLOOR),
        PageKind::Own if page == base(kind) + LIFE => Some(*DEVICE_LIFE),
        PageKind::Own if page == base(kind) + DUPLICATES => Some(*PARTITION_DUPLICATES),
        PageKind::Own if page == base(kind) + DIGESTS => Some(*PARTITION_DIGESTS),
        PageKind::Own if page == ROOT + FROZEN_AUDITS => Some(*FROZEN_AUDIT_VALUES),
        PageKind::Own if page == ROOT + SHARED_SPACE => Some(*SHARED_SPACE_NAME),
        PageKind::Own | PageKind::Directory | PageKind::CurrentCommand => attribute::identification(page),
        PageKind::Application | PageKind::Empty | PageKind::Foreign => None,
    }
}

/// Vendor in 8 bytes, name in 32.
const SECURITY_FLOOR: &[u8; 40] = b"SEALSTONUser Object Security Floor\0\0\0\0\0\0";
const METHOD_CIPHER: &[u8; 40] = b"SEALSTONMethod Cipher\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const PARTITION_DUPLICATES: &[u8; 40] = b"SEALSTONPartition Duplicates\0\0\0\0\0\0\0\0\0\0\0\0";
const PARTITION_DIGESTS: &[u8; 40] = b"SEALSTONPartition Stored Digests\0\0\0\0\0\0\0\0";
const SHARED_SPACE_NAME: &[u8; 40] = b"SEALSTONShared Space\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const FROZEN_AUDIT_VALUES: &[u8; 40] = b"SEALSTONFrozen Audit Values\0\0\0\0\0\0\0\0\0\0\0\0\0";
const DEVICE_LIFE: &[u8; 40] = b"SEALSTONDevice Life\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_page_ascend_and_belong_to_it() {
        for rows in ROWS {
            assert!(rows.iter().all(|row| row.page == rows[0].page && row.kind == rows[0].kind));
            assert!(rows.iter().all(|row| row.first <= row.last));
            assert!(rows.windows(2).all(|pair| pair[0].last < pair[1].first), "{:#x}", rows[0].page);
            assert_eq!(sort_page(rows[0].kind, rows[0].page), PageKind::Own);
        }
    }

    #[test]
    fn fixed_values_and_defaults_have_the_length_of_their_row() {
        for row in ROWS.iter().copied().flatten() {
            match row.source {
                Fixed(value) => assert!(row.length.fits(value), "{row:?}"),
                Stored(value) => assert!(value.is_empty() || row.length.fits(value), "{row:?}"),
                Source::Live(_) => {}
            }
        }
    }

    /// The protocol's table and this one say the same of every attribute that both know.
    #[test]
    fn lengths_and_access_agree_with_the_protocols_table() {
        for row in ROWS.iter().copied().flatten().filter(|row| {
            let of_partitions = [PARTITION + DUPLICATES, PARTITION + DIGESTS];
            let of_root = [ROOT + SEALSTONE, ROOT + FROZEN_AUDITS, ROOT + SHARED_SPACE];
            let ours = [USER + SEALSTONE, USER + LIFE];
            let own = [&of_partitions[..], &of_root, &ours].concat();
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
                assert!(settable == (row.set != Set::Never), "{}", standard.name);
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
