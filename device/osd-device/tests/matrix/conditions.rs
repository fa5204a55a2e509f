//! Expected sense data of each refusal, written independently of the code under test.

/// A way in which a command can lack authority.
pub struct Condition {
    /// Name in the matrix.
    pub name: &'static str,
    /// Name in audit records and metrics.
    pub reason: &'static str,
    /// Additional sense code and qualifier; the key is always ILLEGAL REQUEST.
    pub code: u16,
    /// Byte of the CDB that the sense data points to, OSD-1 and OSD-2; 0 for no field pointer.
    pub pointer: [u16; 2],
    /// Whether the sender had authenticated a credential. Then the reply is sealed and reports
    /// functions.
    pub proven: bool,
    /// Whether it is about an extension capability. Then the first one was authenticated, and the
    /// reply is sealed.
    pub further: bool,
}

const fn unproven(name: &'static str, reason: &'static str) -> Condition {
    Condition { name, reason, code: 0x2400, pointer: [0, 0], proven: false, further: false }
}

const fn at(name: &'static str, reason: &'static str, pointer: [u16; 2]) -> Condition {
    Condition { name, reason, code: 0x2400, pointer, proven: true, further: false }
}

const fn coded(name: &'static str, reason: &'static str, code: u16) -> Condition {
    Condition { name, reason, code, pointer: [0, 0], proven: true, further: false }
}

/// Condition of an extension capability. The pointer is CDB CONTINUATION LENGTH, the position of
/// its segment.
const fn further(name: &'static str, reason: &'static str) -> Condition {
    Condition { name, reason, code: 0x2400, pointer: [0, 48], proven: true, further: true }
}

/// Condition of an extension capability that was not authenticated.
const fn further_unproven(name: &'static str, reason: &'static str) -> Condition {
    Condition { pointer: [0, 0], proven: false, ..further(name, reason) }
}

pub const FURTHER_PERMISSION: Condition = further("extension: permission missing", "permission");
pub const FURTHER_OBJECT: Condition = further("extension: allowed object id", "object");
pub const FURTHER_OBJECT_TYPE: Condition = further("extension: object type", "object_type");
pub const FURTHER_DESCRIPTOR_TYPE: Condition = further("extension: descriptor type", "descriptor_type");
pub const FURTHER_EXPIRED: Condition = further("extension: expired", "expired");
pub const FURTHER_CREATED_TIME: Condition = further("extension: object created time", "created_time");
pub const FURTHER_TAG: Condition = further("extension: policy access tag", "policy_access_tag");
pub const FURTHER_BOOT_EPOCH: Condition = further("extension: boot epoch", "boot_epoch");
pub const FURTHER_RANGE: Condition = further("extension: allowed range", "range");
pub const FURTHER_ICV: Condition = further_unproven("extension: proof", "request_icv");
pub const FURTHER_KEY_UNKNOWN: Condition = further_unproven("extension: key version", "key_unknown");
pub const FURTHER_BELOW_FLOOR: Condition =
    further_unproven("extension: method below the floor", "below_floor");

pub const MISSING_PERMISSION: Condition = at("permission missing", "permission", [129, 129]);
pub const EXPIRED: Condition = at("expired", "expired", [84, 84]);
pub const CREATED_TIME: Condition = at("object created time", "created_time", [122, 122]);
pub const OBJECT_TYPE: Condition = at("object type", "object_type", [128, 128]);
pub const DESCRIPTOR_TYPE: Condition = at("descriptor type", "descriptor_type", [135, 135]);
pub const ATTRIBUTES_ACCESS: Condition = at("allowed attributes access", "attributes_access", [0, 136]);
pub const POLICY_ACCESS_TAG: Condition = at("policy access tag", "policy_access_tag", [136, 140]);
pub const BOOT_EPOCH: Condition = at("boot epoch", "boot_epoch", [0, 144]);
pub const PARTITION: Condition = at("allowed partition id", "partition", [140, 152]);
pub const OBJECT: Condition = at("allowed object id", "object", [148, 160]);
pub const RANGE: Condition = at("allowed range", "range", [0, 168]);

pub const FORMAT: Condition = unproven("capability format", "format");
pub const CODE: Condition = unproven("capability code", "capability");
pub const RESERVED: Condition = unproven("reserved bits", "reserved");
pub const ALGORITHM: Condition = unproven("integrity check value algorithm", "algorithm");
pub const KEY_VERSION: Condition = unproven("key version", "key_unknown");
pub const BELOW_FLOOR: Condition = unproven("method below the floor", "below_floor");
pub const REQUEST_ICV: Condition = unproven("request integrity check value", "request_icv");
pub const KEY_UNKNOWN: Condition = unproven("request integrity check value", "key_unknown");

pub const REPLAYED: Condition = coded("replayed nonce", "replayed", 0x2406);
pub const OUT_OF_WINDOW: Condition = coded("nonce timestamp", "out_of_window", 0x2407);
pub const KEY_FROZEN: Condition = coded("frozen working key", "key_frozen", 0x2405);
pub const DATA_OUT_ICV: Condition = coded("data-out integrity check value", "data_out_icv", 0x260F);
pub const DATA_OUT_ICV_OFFSET: Condition =
    at("data-out integrity check value offset", "data_out_icv_offset", [196, 232]);
pub const DATA_IN_ICV_OFFSET: Condition =
    at("data-in integrity check value offset", "data_in_icv_offset", [192, 228]);
pub const DATA_OUT_LAYOUT: Condition = at("data-out buffer too short", "data_out_layout", [52, 52]);
pub const CONTINUATION_ICV: Condition =
    at("continuation segment integrity check value", "continuation_icv", [0, 48]);
