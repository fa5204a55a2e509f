//! Messages between client and metadata server: framing, login bodies, requests, responses, layouts.
//!
//! Does: turn bytes into typed values once, and back; compute with layouts. Does not: sockets, cryptography, policy.
//! Contract: nothing here panics on any input; every length is bounded before memory is reserved.
//! Truth: docs/standards/mds/README.md, from which an outsider can write a client.

#![no_std]

extern crate alloc;

pub mod login;
pub mod paper;

mod acl;
mod ahead;
mod check;
mod error;
mod frame;
mod grants;
mod keys;
mod layout;
mod message;
mod name;
mod nodes;
mod placed;
mod printable;
mod quota;
mod records;
mod secret;
mod wire;

pub use acl::{ACL_ACCESS, ACL_DEFAULT, ACL_NAMES_MAX, ACL_TEXT_MAX, Acl};
pub use ahead::{
    AheadIn, LeaseOn, MadeAhead, NAME_CHANGES_MAX, NUMBERS_MAX, NameChange, Numbers, RemovedAhead,
    RenamedAhead,
};
pub use check::{Check, CheckPhase, CheckScope, Finding, FindingKind};
pub use error::{ErrorCode, Failure};
pub use frame::{
    BODY_MAX, FRAME_VERSION, FrameHeader, FrameType, HEADER_BYTES, Header, MAGIC, MessageType,
    PROFILE_MODERN, Sequence, decode_message, encode_message, frame,
};
pub use grants::{DelegatedFile, IssueEntry, IssueKind, IssuePlace, Revocation, RevokeWhat, WaitingDevice};
pub use keys::{KeyInfo, KeyLevel, KeyPlace, KeyUse};
pub use layout::{
    DeviceId, Extent, FILE_SIZE_MAX, Layout, ObjectRef, STRIPE_UNIT_MAX, STRIPE_UNIT_MIN, WIDTH_MAX,
};
pub use message::{Change, PAGE_MAX, PROTOCOL_VERSION, REQUESTS, RESPONSES, Request, Response, SCHEMA};
pub use name::{
    FilePath, GROUP_MAX, GroupName, NAME_MAX, Name, PATH_MAX, USER_MAX, UserName, shown, unshown,
};
pub use nodes::{
    FOLLOW_MAX, HolderId, LINKS_MAX, LOCK_TO_END, Lease, LeaseKind, Lock, LockKind, NODE_PROOF_BYTES, Node,
    NodeChange, NodeKind, OpenedNode, PLACES_MAX, RECALLS_MAX, Recall, RenameMode, SetTime, TARGET_MAX,
    Target, Turn, XATTR_BYTES_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_MAX, XattrMode, XattrName,
    XattrValue,
};
pub use placed::{Chosen, Condition, Drain, Placed, Rebalance, WidthBound};
pub use printable::{is_printable, printable, printable_lines};
pub use quota::{Quota, QuotaChange, QuotaDrift, QuotaOf, QuotaPlace};
pub use records::{
    Access, AccountKind, CapabilityBlob, Checksum, ChecksumKind, CreatedFile, Device, DevicePin,
    DeviceProblem, DeviceState, DirEntry, FILE_PARTITION, FILE_PARTITIONS_MAX, FileKind, GRANT_OBJECT_TYPE,
    Grant, Group, Handle, Holder, InodeId, IntentId, Method, NewDevice, OpenedFile, PIN_BYTES, PinKind,
    ProblemKind, Role, SYSTEM_ID_BYTES, Stat, User, is_file_object,
};
pub use secret::Secret;
pub use wire::{LIST_MAX, Reader, Text, Wire, WireError, Writer};
