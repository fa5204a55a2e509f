//! Reading and writing with a capability file alone, directly at the devices.
//!
//! Does: everything that the file permits, with the same parallelism as a logged-in client.
//! Does not: contact a metadata server or renew credentials.
//! Contract: operations that the file does not permit are not sent, and the devices check every
//! capability. Written bytes are durable when [`Delegated::write`] returns.

use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::{Bytes, BytesMut};
use sealstone_initiator::{Environment, Operation, OsdOptions, SystemEnvironment};
use sealstone_mds_protocol::{
    Device, DeviceId, DeviceState, FilePath, Method, Request, Response, Revocation, RevocationTarget,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;

use crate::buffers::Buffers;
use crate::capability_file::{CapabilityDevice, CapabilityFile};
use crate::checksum::RunningChecksum;
use crate::client::{file_path, user_name};
use crate::get;
use crate::open::{ClientCore, DeviceEpoch, OpenObjects};
use crate::pool::DevicePool;
use crate::put::joined;
use crate::{Client, ClientError, DeviceConnectOptions, Devices, MemoryBudget, Metadata, Tuning};

/// Called with the bytes done so far, and the total if it is known.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, Option<u64>) + Send);

/// Stands for the metadata server where there is none.
#[derive(Clone, Copy, Debug)]
pub struct NoServer;

impl Metadata for NoServer {
    async fn call(&self, _: Request) -> Result<Response, ClientError> {
        Err(ClientError::NotDelegated("the operation needs a metadata server"))
    }
}

/// Returns connections to devices over iSCSI.
pub(crate) fn pool(reach: DeviceConnectOptions) -> (DevicePool, Arc<dyn Environment>) {
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
    let mut options = OsdOptions::new(&*environment);
    let DeviceConnectOptions { proofs, tls, conceal_method } = reach;
    options.session.proofs = proofs;
    options.tls = tls;
    options.conceal_method = conceal_method;
    (DevicePool::tcp(environment.clone(), options), environment)
}

/// Returns the state of a client that knows these devices.
pub(crate) fn client_core<M, D>(
    metadata: M,
    devices: D,
    environment: Arc<dyn Environment>,
    tuning: Tuning,
    known: BTreeMap<DeviceId, Arc<Device>>,
) -> Arc<ClientCore<M, D>> {
    let tuning = tuning.bounded();
    Arc::new(ClientCore {
        metadata,
        devices,
        environment,
        clock_offset_ms: Arc::new(AtomicI64::new(0)),
        known: tokio::sync::Mutex::new(known),
        budget: MemoryBudget::new(tuning.memory_bytes),
        buffers: Buffers::new(tuning.memory_bytes),
        tuning,
    })
}

/// Access to a file, or a part of one, with a capability file.
pub struct Delegated<D = DevicePool> {
    file: CapabilityFile,
    objects: Arc<OpenObjects<NoServer, D>>,
}

impl Delegated {
    /// Opens it over iSCSI, with TLS for devices whose pin is in the file.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn open(file: CapabilityFile, reach: impl Into<DeviceConnectOptions>) -> Result<Self, ClientError> {
        let (devices, environment) = pool(reach.into());
        Self::over(file, devices, environment, Tuning::default())
    }

    /// Logs out of all devices.
    pub async fn close(&self) {
        self.objects.core.devices.close().await;
    }
}

impl<D: Devices> Delegated<D> {
    /// Opens it over any devices.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn over(
        file: CapabilityFile,
        devices: D,
        environment: Arc<dyn Environment>,
        tuning: Tuning,
    ) -> Result<Self, ClientError> {
        let known: BTreeMap<_, _> =
            file.devices.iter().map(|found| (found.id, Arc::new(device(found)))).collect();
        let core = client_core(NoServer, devices, environment, tuning, known.clone());
        let delegated = &file.delegated;
        let objects = OpenObjects::delegated(core, delegated.layout.clone(), &delegated.grants, &known)?;
        Ok(Self { objects: Arc::new(objects), file })
    }

    /// Returns the capability file.
    #[must_use]
    pub const fn file(&self) -> &CapabilityFile {
        &self.file
    }

    /// Returns the permitted range of bytes.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.file.delegated.start..self.file.delegated.end
    }

    /// Reads a range, or all that is permitted, into `sink`; returns the number of bytes.
    ///
    /// # Errors
    /// `NotDelegated`, `Device`, `DataMissing`, `ChecksumMismatch`, `Sink`.
    pub async fn read(
        &self,
        range: Option<Range<u64>>,
        sink: impl AsyncWrite + Unpin + Send,
        progress: Progress<'_>,
    ) -> Result<u64, ClientError> {
        let delegated = &self.file.delegated;
        if !delegated.read {
            let permits =
                if delegated.write { "it permits writing only" } else { "it permits executing only" };
            return Err(ClientError::NotDelegated(permits));
        }
        let range = range.unwrap_or_else(|| self.range());
        self.check_range(&range)?;
        let whole = range == (0..delegated.stat.size);
        // A file that may be written in place has no checksum.
        let expected = delegated.stat.checksum.filter(|_| whole && !delegated.write);
        let mut running = expected.and_then(|checksum| RunningChecksum::begin(checksum.kind));
        let (mut done, total) = (0, range.end - range.start);
        let each = |piece: &[u8]| {
            if let Some(running) = &mut running {
                running.update(piece);
            }
            done += piece.len() as u64;
            progress(done, Some(total));
        };
        let read = get::pour(&self.objects, range.clone(), sink, each).await?;
        if read != total {
            return Err(ClientError::DataMissing { offset: range.start + read });
        }
        if running.is_some_and(|running| Some(running.finish()) != expected) {
            return Err(ClientError::ChecksumMismatch);
        }
        Ok(read)
    }

    fn check_range(&self, range: &Range<u64>) -> Result<(), ClientError> {
        let allowed = self.range();
        if range.start > range.end || range.start < allowed.start || range.end > allowed.end {
            return Err(ClientError::NotDelegated("bytes outside its range"));
        }
        Ok(())
    }

    /// Writes all bytes of `source` in place from `offset` on; returns their number when they are
    /// durable.
    ///
    /// # Errors
    /// `NotDelegated` before the first byte outside the range is sent; `RestartedMeanwhile` if a
    /// device restarted and may have lost bytes, so that the range must be written again; `Device`,
    /// `Source`.
    pub async fn write(
        &self,
        offset: u64,
        mut source: impl AsyncRead + Unpin + Send,
        progress: Progress<'_>,
    ) -> Result<u64, ClientError> {
        if !self.file.delegated.write {
            return Err(ClientError::NotDelegated("it permits reading only"));
        }
        self.check_range(&(offset..offset))?;
        let tuning = self.objects.core.tuning;
        let wanted = tuning.command_bytes.saturating_mul(self.objects.layout.width());
        let group = wanted.min(tuning.memory_bytes / 4).max(1);
        let mut epochs: BTreeMap<usize, DeviceEpoch> = BTreeMap::new();
        let mut at = offset;
        loop {
            let mut bytes = BytesMut::with_capacity(group);
            while bytes.len() < group {
                let left = group - bytes.len();
                let read = (&mut source).take(left as u64).read_buf(&mut bytes).await;
                if read.map_err(ClientError::Source)? == 0 {
                    break;
                }
            }
            if bytes.is_empty() {
                break;
            }
            let end = at.saturating_add(bytes.len() as u64);
            self.check_range(&(at..end))?;
            self.write_group(at, &bytes.freeze(), &mut epochs).await?;
            at = end;
            progress(at - offset, None);
        }
        self.flush_durable(&epochs).await?;
        Ok(at - offset)
    }

    async fn write_group(
        &self,
        at: u64,
        bytes: &Bytes,
        epochs: &mut BTreeMap<usize, DeviceEpoch>,
    ) -> Result<(), ClientError> {
        let command_bytes = self.objects.core.tuning.command_bytes as u64;
        let mut writes = JoinSet::new();
        for extent in self.objects.layout.extents(at..at + bytes.len() as u64) {
            // Several commands are durable together only within one boot epoch of the device.
            if let Entry::Vacant(life) = epochs.entry(extent.index) {
                life.insert(self.objects.device_epoch(extent.index).await?);
            }
            let mut done = 0;
            while done < extent.length {
                let length = command_bytes.min(extent.length - done);
                let from = usize::try_from(extent.file_offset + done - at).unwrap_or(usize::MAX);
                let data = bytes.slice(from..from + length as usize);
                let (objects, index) = (self.objects.clone(), extent.index);
                let offset = extent.object_offset + done;
                writes.spawn(async move {
                    let make = |object| Operation::Write { object, offset, data: data.clone() };
                    objects.execute(index, make).await.map(drop)
                });
                done += length;
            }
        }
        while let Some(written) = writes.join_next().await {
            joined(written)?;
        }
        Ok(())
    }

    /// Returns when all written bytes are durable.
    async fn flush_durable(&self, epochs: &BTreeMap<usize, DeviceEpoch>) -> Result<(), ClientError> {
        for (&index, before) in epochs {
            let place = self.objects.layout.objects()[index];
            self.objects.execute(index, |object| Operation::Flush { object }).await?;
            if self.objects.device_epoch(index).await? != *before {
                return Err(ClientError::RestartedMeanwhile(
                    self.objects.core.device_label(place.device).await,
                ));
            }
        }
        Ok(())
    }
}

pub(crate) fn device(found: &CapabilityDevice) -> Device {
    let CapabilityDevice { id, name, system_id, url, pin } = found.clone();
    Device {
        id,
        name,
        system_id,
        url,
        pin,
        state: DeviceState::Active,
        total: 0,
        used: 0,
        speed: 0,
        problem: None,
        drain: None,
    }
}

/// The rights that a capability file should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// Whether it permits reading.
    pub read: bool,
    /// Whether it permits writing in place.
    pub write: bool,
    /// First permitted byte.
    pub start: u64,
    /// End of the permitted range; the end of the file if none.
    pub end: Option<u64>,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: u64,
    /// Security method; the server may require a stronger one.
    pub method: Method,
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns credentials for a part of a file, for a program that does not log in. With write
    /// permission the file loses its checksum.
    ///
    /// # Errors
    /// `Refused` with `Denied`, `Invalid` or `Limit` among others.
    pub async fn delegate(
        &self,
        path: impl AsRef<[u8]>,
        wanted: Delegation,
    ) -> Result<CapabilityFile, ClientError> {
        let Delegation { read, write, start, end, until_ms, method } = wanted;
        let request = |path| Request::Delegate { path, read, write, start, end, until_ms, method };
        self.capability_file(path, request).await
    }

    /// Returns credentials to execute a function file on the devices that have its code, for a
    /// program that does not log in.
    ///
    /// # Errors
    /// `Refused` with `Denied`, `Invalid` or `Limit` among others.
    pub async fn delegate_execution(
        &self,
        path: impl AsRef<[u8]>,
        until_ms: u64,
        method: Method,
    ) -> Result<CapabilityFile, ClientError> {
        self.capability_file(path, |path| Request::DelegateExecution { path, until_ms, method }).await
    }

    /// Returns credentials to read a whole file by functions, for a program that does not log in.
    ///
    /// # Errors
    /// `Refused` with `Denied`, `Invalid` or `Limit` among others.
    pub async fn delegate_call_data(
        &self,
        path: impl AsRef<[u8]>,
        until_ms: u64,
        method: Method,
    ) -> Result<CapabilityFile, ClientError> {
        self.capability_file(path, |path| Request::DelegateCallData { path, until_ms, method }).await
    }

    /// Sends a request for a capability file, and adds the devices.
    async fn capability_file(
        &self,
        path: impl AsRef<[u8]>,
        request: impl FnOnce(FilePath) -> Request,
    ) -> Result<CapabilityFile, ClientError> {
        let path = file_path(path)?;
        let call = self.core.metadata.call(request(path.clone()));
        let Response::Delegated { file: delegated } = call.await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let mut devices = BTreeMap::new();
        for object in delegated.layout.objects() {
            let device = self.core.device(object.device).await?;
            devices.insert(
                device.id,
                CapabilityDevice {
                    id: device.id,
                    name: device.name.clone(),
                    system_id: device.system_id,
                    url: device.url.clone(),
                    pin: device.pin,
                },
            );
        }
        let file = CapabilityFile { path, delegated, devices: devices.into_values().collect() };
        // Parsing it checks that the file can be loaded.
        CapabilityFile::parse(&file.encode()?)
    }

    /// Returns the server's time as far as it is known, in milliseconds since 1970.
    #[must_use]
    pub fn server_now_ms(&self) -> u64 {
        self.core.now_ms()
    }

    /// Revokes all credentials for a file (its owner, administrators) in the background; see
    /// [`Client::revocation`].
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn revoke_object(&self, path: impl AsRef<[u8]>) -> Result<Revocation, ClientError> {
        self.revoke(RevocationTarget::Object(file_path(path)?)).await
    }

    /// Revokes all credentials of a user (administrators) in the background.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn revoke_user(&self, name: &str) -> Result<Revocation, ClientError> {
        self.revoke(RevocationTarget::User(user_name(name)?)).await
    }

    async fn revoke(&self, what: RevocationTarget) -> Result<Revocation, ClientError> {
        revocation(self.core.metadata.call(Request::Revoke { what }).await?)
    }

    /// Returns the progress of a revocation.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn revocation(&self, id: u64) -> Result<Revocation, ClientError> {
        revocation(self.core.metadata.call(Request::RevocationProgress { id }).await?)
    }

    /// Returns the last revocations, newest first (administrators).
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn revocations(&self) -> Result<Vec<Revocation>, ClientError> {
        match self.core.metadata.call(Request::RevocationList {}).await? {
            Response::Revocations { revocations } => Ok(revocations),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }
}

pub(crate) fn revocation(answer: Response) -> Result<Revocation, ClientError> {
    match answer {
        Response::Revocation { revocation } => Ok(revocation),
        _ => Err(ClientError::OTHER_ANSWER),
    }
}
