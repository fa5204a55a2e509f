//! iSCSI and OSD sessions to devices.
//!
//! Does: [`Session`] transports raw SCSI commands over any byte stream. [`OsdClient`] sends typed
//! OSD commands under a credential: it signs, verifies, reconnects, and repeats idempotent
//! commands. [`TcpDial`] uses TLS for devices with a known pin.
//! Does not: know files or the metadata server; `sealstone-client` does.
//! Truth: RFC 7143 through `sealstone-iscsi`; T10 OSD through `sealstone-osd`;
//! docs/design/security.md §3.

mod block_seals;
mod collections;
mod config;
mod driver;
mod environment;
mod error;
pub mod machine;
mod manager;
mod operation;
mod osd;
mod proof;
mod protection;
mod session;
mod url;

pub use block_seals::{
    BLOCK_NOT_AUTHENTIC, BlockReport, BlockReports, READ_OLDER_VERSION, RECEIVE_UNIT_KEYS, REPORT_BLOCKS,
};
pub use collections::{
    AttributeRange, COLLECTIONS_PAGE, CollectionOperation, EVERY_OBJECT, MemberAttributes, QueryCriteria,
};
pub use config::{INITIATOR_NAME, MEMORY_DEFAULT, QUEUE_DEPTH_DEFAULT, SessionConfig};
pub use environment::{Environment, SystemEnvironment};
pub use error::{OsdError, SessionError};
pub use manager::{KeyManager, ManagerError, MasterOutcome};
pub use operation::{
    ATTRIBUTES_LENGTH_MAX, Completion, LIST_IDS_MAX, Listed, MAP_EXTENTS_MAX, Operation, RepeatEffect,
    TRANSFER_MAX,
};
pub use osd::{
    Bearer, BearerError, CONNECT_TIMEOUT, Dial, Dialed, Dialing, OsdClient, OsdOptions, TcpDial, TlsPolicy,
};
pub use proof::{Proof, ProofError, Proofs};
pub use sealstone_block_protection::{
    ProtectedBlock, ProtectionLevel, ProtectionProfile, ProtectionSettings, RecordSize, UNIT_KEYS_BYTES_MAX,
};
pub use sealstone_channel::{ByteStream, Pin, PinError, PinKind, TlsError};
pub use sealstone_iscsi::chap;
pub use sealstone_iscsi::initiator::{DiscoveredTarget, ManagementResult};
pub use sealstone_iscsi::{DigestChoice, Residual};
pub use session::{ScsiRequest, ScsiResponse, Session, discover};
pub use url::{DEFAULT_PORT, HOST_LENGTH_MAX, LUN_MAX, NAME_LENGTH_MAX, TargetUrl, UrlError};
