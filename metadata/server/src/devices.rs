//! The seam between housekeeping and the devices.

use core::future::Future;
use core::ops::Range;
use core::pin::Pin;

use bytes::Bytes;
use sealstone_mds::{DeviceAddress, KeyStep, RetagItem, SharedSpace, StepOutcome};
use sealstone_mds_protocol::ProblemKind;
use sealstone_osd::ObjectId;
use sealstone_seal::Credential;

/// Figures of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes in all.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
    /// What it may take of a file system that others use, too.
    pub shared: Option<SharedSpace>,
}

/// Why a device did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// It does not answer, or not in time.
    #[error("the device does not answer: {0}")]
    Unreachable(String),
    /// It answers and does not accept the credential, or cannot sign its answer: it has another key.
    #[error("the device does not accept the server's credentials: its key is another one ({0})")]
    Denied(String),
    /// It does not let us log in, or does not prove who it is.
    #[error("no session with the device: {0}")]
    NotAdmitted(String),
    /// Who answers shows another certificate than the pinned one.
    #[error("it shows {0}")]
    OtherCertificate(String),
    /// The device at this address has another system id.
    #[error("another device answers at this address")]
    OtherDevice,
    /// Its keys are being changed; it was not asked.
    #[error("the device's keys are being changed")]
    KeysChanging,
    /// It answers, but refuses.
    #[error("the device refuses: {0}")]
    Refused(String),
}

impl DeviceError {
    /// By what can be done about it.
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
    /// Lists the extents with data from an offset on, which is not behind the object's end.
    Map {
        /// Where.
        offset: u64,
    },
    /// Up to so many bytes from an offset on.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        length: usize,
    },
    /// Makes the object, empty.
    Create,
    /// Bytes of it.
    Write {
        /// Where.
        offset: u64,
        /// They.
        data: Bytes,
    },
    /// Makes durable what was written.
    Flush,
    /// Asks in which life the device is: what was written in one and flushed in another may be lost.
    Life,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// Extents with data, in order and without overlap.
    Extents {
        /// They.
        data: Vec<Range<u64>>,
        /// Where the next list begins; none: the object ends where this one began.
        next: Option<u64>,
    },
    /// Bytes read; fewer than asked for at the end of the object.
    Data(Vec<u8>),
    /// There is no such object.
    Missing,
    /// Done.
    Done,
    /// The life that the device is in.
    Life(u16),
}

/// An operation at a device under way.
pub type DeviceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DeviceError>> + Send + 'a>>;

/// What the metadata server does at devices. Two implementations: over iSCSI, and a map in tests.
pub trait Devices: Send + Sync + 'static {
    /// Performs a step of a change of keys. What is not known in the end is an error, and so is silence.
    fn keys<'a>(&'a self, device: &'a DeviceAddress, step: &'a KeyStep) -> DeviceFuture<'a, StepOutcome>;

    /// Reads total and used capacity.
    fn capacity<'a>(
        &'a self,
        device: &'a DeviceAddress,
        credential: Credential,
    ) -> DeviceFuture<'a, Capacity>;

    /// Gives a partition that was made without them, by hand or by an earlier release, the policy access tags that
    /// credentials go by: without them the device would refuse every one. Says whether it had to.
    fn tag_partition<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, bool>;

    /// Removes an object; one that is not there is as good.
    fn remove<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;

    /// Numbers of objects of a partition, in ascending order, from this one on; none: there are no more. A partition that is
    /// not there has none.
    fn list<'a>(
        &'a self,
        device: &'a DeviceAddress,
        partition: u64,
        from: u64,
        objects_max: usize,
        credential: Credential,
    ) -> DeviceFuture<'a, Vec<u64>>;

    /// Makes an object no longer than this, durably; one that is shorter, or not there, is as good.
    fn cut<'a>(
        &'a self,
        device: &'a DeviceAddress,
        object: ObjectId,
        length: u64,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;

    /// Reads the length of an object; one that does not exist has none.
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
    ) -> DeviceFuture<'a, Copied>;

    /// Gives an object another policy access tag. One that is not there is as good, unless somebody may make it.
    fn retag<'a>(
        &'a self,
        device: &'a DeviceAddress,
        item: RetagItem,
        credential: Credential,
    ) -> DeviceFuture<'a, ()>;
}
