//! Reading and writing by a capability file alone: straight at the devices, no metadata server, no login.
//!
//! Does: what the file allows, as fast as a client that is logged in. Does not: ask for more; nothing is renewed.
//! Contract: what the file does not allow is not even sent; what it only claims to allow, the devices refuse. Bytes
//! written are durable when [`Delegated::write`] returns.

use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::{Bytes, BytesMut};
use sealstone_initiator::{Environment, Operation, OsdOptions, SystemEnvironment};
use sealstone_mds_protocol::{Device, DeviceState, Method, Request, Response, Revocation, RevokeWhat};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;

use crate::buffers::Buffers;
use crate::capability_file::{CapabilityDevice, CapabilityFile};
use crate::checksum::Running;
use crate::client::{file_path, user_name};
use crate::get;
use crate::open::{Core, Life, OpenObjects};
use crate::pool::DevicePool;
use crate::put::joined;
use crate::{Client, ClientError, Devices, MemoryBudget, Metadata, Reach, Tuning};

/// Told the bytes done so far, and all of them if that is known.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, Option<u64>) + Send);

/// There is no metadata server.
#[derive(Clone, Copy, Debug)]
pub struct NoServer;

impl Metadata for NoServer {
    async fn call(&self, _: Request) -> Result<Response, ClientError> {
        Err(ClientError::NotDelegated("there is no metadata server to ask"))
    }
}

/// A file, or a part of one, by a capability file.
pub struct Delegated<D = DevicePool> {
    file: CapabilityFile,
    objects: Arc<OpenObjects<NoServer, D>>,
}

impl Delegated {
    /// Over iSCSI; inside TLS to devices that the file has pins of.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn open(file: CapabilityFile, reach: impl Into<Reach>) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let mut options = OsdOptions::new(&*environment);
        let Reach { proofs, tls, conceal_method } = reach.into();
        options.session.proofs = proofs;
        options.tls = tls;
        options.conceal_method = conceal_method;
        let devices = DevicePool::tcp(environment.clone(), options);
        Self::over(file, devices, environment, Tuning::default())
    }

    /// Logs out of every device.
    pub async fn close(&self) {
        self.objects.core.devices.close().await;
    }
}

impl<D: Devices> Delegated<D> {
    /// Over any devices.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn over(
        file: CapabilityFile,
        devices: D,
        environment: Arc<dyn Environment>,
        tuning: Tuning,
    ) -> Result<Self, ClientError> {
        let tuning = tuning.bounded();
        let known: BTreeMap<_, _> =
            file.devices.iter().map(|found| (found.id, Arc::new(device(found)))).collect();
        let core = Arc::new(Core {
            metadata: NoServer,
            devices,
            environment,
            clock_offset_ms: Arc::new(AtomicI64::new(0)),
            known: tokio::sync::Mutex::new(known.clone()),
            budget: MemoryBudget::new(tuning.memory_bytes),
            buffers: Buffers::new(tuning.memory_bytes),
            tuning,
        });
        let delegated = &file.delegated;
        let objects = OpenObjects::delegated(core, delegated.layout.clone(), &delegated.grants, &known)?;
        Ok(Self { objects: Arc::new(objects), file })
    }

    /// What it is by.
    #[must_use]
    pub const fn file(&self) -> &CapabilityFile {
        &self.file
    }

    /// The bytes that may be touched.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.file.delegated.start..self.file.delegated.end
    }

    /// Reads a range, or all that may be read, into `sink`; gives the number of bytes.
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
            return Err(ClientError::NotDelegated("it is for writing"));
        }
        let range = range.unwrap_or_else(|| self.range());
        self.check_range(&range)?;
        let whole = range == (0..delegated.stat.size);
        // Whoever may write makes no checksum.
        let expected = delegated.stat.checksum.filter(|_| whole && !delegated.write);
        let mut running = expected.and_then(|checksum| Running::begin(checksum.kind));
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

    /// Writes all that `source` gives, in place, from `offset` on; gives the number of bytes, which are durable.
    ///
    /// # Errors
    /// `NotDelegated` before a byte too many is sent; `RestartedMeanwhile` if a device may have lost what was written
    /// before it restarted: write the range again; `Device`, `Source`.
    pub async fn write(
        &self,
        offset: u64,
        mut source: impl AsyncRead + Unpin + Send,
        progress: Progress<'_>,
    ) -> Result<u64, ClientError> {
        if !self.file.delegated.write {
            return Err(ClientError::NotDelegated("it is for reading"));
        }
        self.check_range(&(offset..offset))?;
        let tuning = self.objects.core.tuning;
        let wanted = tuning.command_bytes.saturating_mul(self.objects.layout.width());
        let group = wanted.min(tuning.memory_bytes / 4).max(1);
        let mut lives: BTreeMap<usize, Life> = BTreeMap::new();
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
            self.write_group(at, &bytes.freeze(), &mut lives).await?;
            at = end;
            progress(at - offset, None);
        }
        self.prove(&lives).await?;
        Ok(at - offset)
    }

    async fn write_group(
        &self,
        at: u64,
        bytes: &Bytes,
        lives: &mut BTreeMap<usize, Life>,
    ) -> Result<(), ClientError> {
        let command_bytes = self.objects.core.tuning.command_bytes as u64;
        let mut writes = JoinSet::new();
        for extent in self.objects.layout.extents(at..at + bytes.len() as u64) {
            // Several commands are durable together only if one life of the device saw them all.
            if let Entry::Vacant(life) = lives.entry(extent.index) {
                life.insert(self.objects.life(extent.index).await?);
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

    /// Returns when everything written is durable.
    async fn prove(&self, lives: &BTreeMap<usize, Life>) -> Result<(), ClientError> {
        for (&index, before) in lives {
            let place = self.objects.layout.objects()[index];
            self.objects.execute(index, |object| Operation::Flush { object }).await?;
            if self.objects.life(index).await? != *before {
                return Err(ClientError::RestartedMeanwhile(
                    self.objects.core.device_label(place.device).await,
                ));
            }
        }
        Ok(())
    }
}

fn device(found: &CapabilityDevice) -> Device {
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

/// What a capability file is to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// May it read?
    pub read: bool,
    /// May it write, in place?
    pub write: bool,
    /// First byte.
    pub start: u64,
    /// The byte after the last one; the end of the file if none.
    pub end: Option<u64>,
    /// Until when, milliseconds since 1970.
    pub until_ms: u64,
    /// Method; the server may raise it.
    pub method: Method,
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Credentials for a part of a file, to be handed to a program that never logs in. With the right to write the file
    /// loses its checksum.
    ///
    /// # Errors
    /// `Refused` with `Denied`, `Invalid` or `Limit` among others.
    pub async fn delegate(
        &self,
        path: impl AsRef<[u8]>,
        wanted: Delegation,
    ) -> Result<CapabilityFile, ClientError> {
        let path = file_path(path)?;
        let Delegation { read, write, start, end, until_ms, method } = wanted;
        let request = Request::Delegate { path: path.clone(), read, write, start, end, until_ms, method };
        let Response::Delegated { file: delegated } = self.core.metadata.call(request).await? else {
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
        // What is written is what can be read.
        CapabilityFile::parse(&file.encode()?)
    }

    /// The server's clock as far as it is known, milliseconds since 1970.
    #[must_use]
    pub fn server_now_ms(&self) -> u64 {
        self.core.now_ms()
    }

    /// Ends everybody's credentials for a file (its owner, administrators). It is done in the background; see
    /// [`Client::revocation`].
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn revoke_object(&self, path: impl AsRef<[u8]>) -> Result<Revocation, ClientError> {
        self.revoke(RevokeWhat::Object(file_path(path)?)).await
    }

    /// Ends all credentials that a user holds (administrators). It is done in the background.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn revoke_user(&self, name: &str) -> Result<Revocation, ClientError> {
        self.revoke(RevokeWhat::User(user_name(name)?)).await
    }

    async fn revoke(&self, what: RevokeWhat) -> Result<Revocation, ClientError> {
        revocation(self.core.metadata.call(Request::Revoke { what }).await?)
    }

    /// How far a revocation is.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn revocation(&self, id: u64) -> Result<Revocation, ClientError> {
        revocation(self.core.metadata.call(Request::RevocationProgress { id }).await?)
    }

    /// The last revocations, newest first (administrators).
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
