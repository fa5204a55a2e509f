//! Messages between client and metadata server: framing, login bodies, requests, responses,
//! layouts.
//!
//! Does: encode and decode messages; arithmetic of layouts.
//! Does not: sockets, cryptography, policy.
//! Contract: no input causes a panic; every length is checked before memory is reserved.
//! Truth: docs/standards/mds/README.md, from which an outsider can write a client.

#![no_std]

extern crate alloc;

pub mod login;
pub mod paper;

mod acl;
mod check;
mod disks;
mod error;
mod frame;
mod grants;
mod keys;
mod layout;
mod message;
mod name;
mod name_changes;
mod nodes;
mod placement;
mod printable;
mod quota;
mod records;
mod secret;
mod wire;

pub use acl::{ACL_ACCESS, ACL_DEFAULT, ACL_NAMES_MAX, ACL_TEXT_MAX, Acl};
pub use check::{CheckFinding, CheckPhase, CheckScope, CheckStatus, FindingKind};
pub use disks::{
    DISK_KEY_EPOCHS_MAX, DISK_PAGE_MAX, DISK_PUBLIC_KEY_BYTES, DISK_ROOT_BYTES, DISK_UNIT_BYTES,
    DISK_USERS_MAX, DISKS_OF_USER_MAX, DiskAccess, DiskInfo, DiskKeyCopy, DiskLeaseInfo, DiskRotation,
    PREVIOUS_DISK_KEY_BYTES, WRAPPED_DISK_KEY_BYTES,
};
pub use error::{ErrorCode, Failure};
pub use frame::{
    BODY_MAX, FRAME_VERSION, FrameHeader, FrameType, HEADER_BYTES, Header, MAGIC, MessageType,
    PROFILE_MODERN, Sequence, decode_message, encode_message, frame,
};
pub use grants::{
    DelegatedFile, IssueCursor, IssueEntry, IssueKind, ReceiptBytes, ReceiptVerdict, Revocation,
    RevocationTarget, WaitingDevice,
};
pub use keys::{KeyCursor, KeyInfo, KeyLevel, KeyUse};
pub use layout::{
    DeviceId, FILE_SIZE_MAX, FileExtent, Layout, ObjectRef, STRIPE_UNIT_MAX, STRIPE_UNIT_MIN, WIDTH_MAX,
};
pub use message::{
    ChangeRequest, PAGE_MAX, PROTOCOL_VERSION, REQUESTS, RESPONSES, Request, Response, SCHEMA,
};
pub use name::{
    FilePath, GROUP_MAX, GroupName, NAME_MAX, Name, PATH_MAX, USER_MAX, UserName, shown, unshown,
};
pub use name_changes::{
    CreateOp, DirLeaseId, InodeLease, InodeRange, NAME_CHANGES_MAX, NameChange, RESERVED_INODES_MAX,
    RenameOp, UnlinkOp,
};
pub use nodes::{
    ClientId, FOLLOW_MAX, LINKS_MAX, LOCK_TO_END, LeaseKind, LinkTarget, Lock, LockKind, NODE_PROOF_BYTES,
    Node, NodeChange, NodeKind, NodeLease, OpenedNode, RECALLS_MAX, Recall, RenameMode, RequestId, SLOTS_MAX,
    SetTime, TARGET_MAX, XATTR_BYTES_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_MAX, XattrMode, XattrName,
    XattrValue,
};
pub use placement::{ChosenDevice, DeviceCondition, Drain, PlacementRecord, Rebalance, WidthBound};
pub use printable::{is_printable, printable, printable_lines};
pub use quota::{Quota, QuotaChange, QuotaCursor, QuotaDrift, QuotaSubject};
pub use records::{
    Access, AccountKind, CapabilityBlob, Checksum, ChecksumKind, CreatedFile, CredentialHolder, Device,
    DevicePin, DeviceProblem, DeviceState, DirEntry, FILE_PARTITION, FILE_PARTITIONS_MAX, FileKind,
    GRANT_OBJECT_TYPE, Grant, Group, InodeId, IntentId, Method, NewDevice, OpenHandle, OpenedFile, PIN_BYTES,
    PinKind, ProblemKind, Role, SYSTEM_ID_BYTES, Stat, User, is_file_object,
};
pub use secret::Secret;
pub use wire::{LIST_MAX, Text, Wire, WireError, WireReader, WireWriter};
