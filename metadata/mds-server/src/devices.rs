//! Operations that housekeeping needs at devices, as a trait: iSCSI in production (`initiator`),
//! maps or simulated devices in tests.

use core::future::Future;
use core::ops::Range;
use core::pin::Pin;

use bytes::Bytes;
use sealstone_mds::{AttributeValue, DeviceAddress, KeyStep, RetagItem, SharedSpace, StepOutcome};
use sealstone_mds_protocol::ProblemKind;
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_seal::Credential;

/// Capacity figures of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Total bytes.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
    /// File system that the device shares with other users, if it does.
    pub shared: Option<SharedSpace>,
}

/// Reason why an operation at a device failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device does not answer, or not in time.
    #[error("the device does not answer: {0}")]
    Unreachable(String),
    /// The device rejects the credential, or cannot sign its answer: its key differs.
    #[error("the device refuses the server's credentials: its keys differ ({0})")]
    Denied(String),
    /// The device refuses the iSCSI login, or does not authenticate itself.
    #[error("no session with the device: {0}")]
    NotAdmitted(String),
    /// The peer presents another certificate than the pinned one.
    #[error("the device presents {0}")]
    OtherCertificate(String),
    /// The device at this address has another system id.
    #[error("another device answers at this address")]
    OtherDevice,
    /// The device's keys are being changed; no command was sent.
    #[error("the device's keys are being changed")]
    KeysChanging,
    /// The device answered with a refusal.
    #[error("the device refuses: {0}")]
    Refused(String),
}

impl DeviceError {
    /// Returns the kind of problem, by what an operator can do about it.
    #[must_use]
    pub const fn kind(&self) -> ProblemKind {
        match self {
            Self::Unreachable(_) => ProblemKind::Silent,
            Self::Denied(_) => ProblemKind::Denied,
            Self::NotAdmitted(_) => ProblemKind::NotAdmitted,
            Self::OtherCertificate(_) => ProblemKind::OtherCertificate,
            Self::OtherDevice => ProblemKind::OtherDevice,
            Self::Refused(_) | Self::KeysChanging => ProblemKind::Failed,
        }
    }
}

/// A step of copying an object from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// Lists the extents with data from an offset on, which must not exceed the object's length.
    Map {
        /// Start in bytes.
        offset: u64,
    },
    /// Reads up to `length` bytes.
    Read {
        /// Start in bytes.
        offset: u64,
        /// Maximum number of bytes.
        length: usize,
    },
    /// Reads the description of the function in the object.
    ReadDescription,
    /// Creates the object, empty.
    Create,
    /// Sets the description of a function.
    Describe(Vec<(AttributeId, Bytes)>),
    /// Writes bytes.
    Write {
        /// Start in bytes.
        offset: u64,
        /// Bytes to write.
        data: Bytes,
    },
    /// Makes written bytes durable.
    Flush,
    /// Reads the boot epoch: bytes written in one epoch and flushed in another may be lost.
    BootEpoch,
}

/// Result of a [`CopyStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyResult {
    /// Extents with data, in order and without overlap.
    Extents {
        /// Extents as byte ranges.
        data: Vec<Range<u64>>,
        /// Start of the next list; `None` if the object ends within this one.
        next: Option<u64>,
    },
    /// Bytes read; fewer than requested at the end of the object.
    Data(Vec<u8>),
    /// Values of the description of the function in the object; none if it has no description.
    Description(Vec<(AttributeId, Bytes)>),
    /// The object does not exist.
    Missing,
    /// The step is complete.
    Done,
    /// The current boot epoch of the device.
    BootEpoch(u16),
}

/// A pending operation at a device.
pub type DeviceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DeviceError>> + Send + 'a>>;

/// Operations of the metadata server at devices. Implementations: iSCSI, and a map in tests.
pub trait Devices: Send + Sync + 'static {
    /// Performs a step of a key change. Fails if the device does not answer or the outcome stays
    /// unknown.
    fn keys<'a>(&'a self, device: &'a DeviceAddress, step: &'a KeyStep) -> DeviceFuture<'a, StepOutcome>;

    /// Reads total and used capacity.
    fn capacity<'a>(
        &'a self,
        device: &'a DeviceAddress,
        credential: Credential,
    ) -> DeviceFuture<'a, Capacity>;

    /// Sets the policy access tags of a partition that was created by hand or by an earlier
    /// release. Without tags the device refuses every credential. Returns whether tags were
    /// missing. Sets the policy about functions too, unless it has no attributes.
    fn tag_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        policy: Vec<AttributeValue>,
        credential: Credential,
    ) -> DeviceFuture<'a, bool>;

    /// Removes an object; succeeds if it does not exist.
    fn remove<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;

    /// Lists object numbers of a partition in ascending order, starting at `from`. Returns none
    /// after the last, and none for a missing partition.
    fn list<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        from: u64,
        objects_max: usize,
        credential: Credential,
    ) -> DeviceFuture<'a, Vec<u64>>;

    /// Durably truncates an object to at most `length` bytes; succeeds if it is shorter or does not
    /// exist.
    fn cut<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        length: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;

    /// Reads the length of an object; 0 if it does not exist.
    fn length<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, u64>;

    /// Performs a step of copying an object.
    fn copy<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        step: CopyStep,
        credential: Credential,
    ) -> DeviceFuture<'a, CopyResult>;

    /// Changes the policy access tag of an object. Succeeds for a missing object, unless a client
    /// may still create it.
    fn retag<'a>(
        &'a self,
        device: &'a DeviceAddress,
        item: RetagItem,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;
}
