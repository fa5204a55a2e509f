//! Objects for results that do not fit into the reply of a device.
//!
//! Does: reserve an object for a job, read the result from it, and keep objects that no device
//! created for the next job on the device. The object of an asynchronous job serves that job alone,
//! and its client reads it later.
//! Contract: an object serves one job at a time. One that a device may have created is abandoned
//! after its job, so that the server removes it. Objects of a failed client expire at the server,
//! and so do those of asynchronous jobs that no client reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealstone_initiator::{Bearer, Operation, TRANSFER_MAX};
use sealstone_mds_protocol::{DeviceId, FilePath, IntentId, Method, OpenHandle, Request, Response};
use sealstone_osd::ObjectType;
use sealstone_osd::function::FunctionObject;
use tokio::sync::Mutex;

use super::JobStatus;
use crate::mds::MdsClient;
use crate::open::{ClientCore, OpenObjects};
use crate::pool::DevicePool;
use crate::put::abandon;
use crate::{Client, ClientError, Devices, Metadata};

/// The object that is reserved for a result.
pub(super) struct ResultObject<M, D> {
    intent: IntentId,
    objects: Arc<OpenObjects<M, D>>,
}

/// The reserved objects of a call that no job uses.
pub(super) struct ResultObjects<M, D> {
    core: Arc<ClientCore<M, D>>,
    function: FilePath,
    method: Method,
    /// Maximum bytes of a result.
    size_max: u64,
    free: Mutex<BTreeMap<DeviceId, Vec<ResultObject<M, D>>>>,
}

impl<M, D> ResultObject<M, D> {
    /// Returns the reservation.
    pub(super) const fn intent(&self) -> IntentId {
        self.intent
    }

    /// Returns the object, with credentials to write and read it.
    pub(super) const fn objects(&self) -> &Arc<OpenObjects<M, D>> {
        &self.objects
    }
}

impl<M: Metadata, D: Devices> ResultObject<M, D> {
    /// Returns the entry of a run for it, and its credential.
    pub(super) async fn entry(
        &self,
        device: DeviceId,
        renew: bool,
    ) -> Result<(FunctionObject, Bearer), ClientError> {
        let grant = self.objects.object_grant(0, renew).await?;
        if grant.device.id != device {
            return Err(ClientError::Protocol("an object for a result on another device"));
        }
        let rights = FunctionObject::RESULT_RIGHTS;
        Ok((FunctionObject { object: grant.object, kind: ObjectType::User, rights }, grant.bearer))
    }

    /// Reads a result of this length.
    pub(super) async fn read(&self, length: u64) -> Result<Vec<u8>, ClientError> {
        let mut result = Vec::new();
        while let Some(piece) = read_piece(&self.objects, result.len() as u64, length).await? {
            result.extend_from_slice(&piece);
        }
        Ok(result)
    }
}

/// Reads the next bytes of a result of this length; `None` at its end.
async fn read_piece<M: Metadata, D: Devices>(
    objects: &OpenObjects<M, D>,
    offset: u64,
    length: u64,
) -> Result<Option<Vec<u8>>, ClientError> {
    if offset >= length {
        return Ok(None);
    }
    let length = usize::try_from(length - offset).unwrap_or(TRANSFER_MAX).min(TRANSFER_MAX);
    let read = |object| Operation::Read { object, offset, length, buffer: Vec::new() };
    let piece = objects.execute(0, read).await?.data;
    if piece.len() != length {
        return Err(ClientError::Protocol("a device returned another length than that of the result"));
    }
    Ok(Some(piece))
}

/// Reads the long result of an asynchronous job.
pub struct JobResultReader<M = MdsClient, D = DevicePool> {
    objects: OpenObjects<M, D>,
    offset: u64,
    length: u64,
}

impl<M: Metadata, D: Devices> JobResultReader<M, D> {
    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// `Device`; `Refused` with `Stale` if the reservation has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let piece = read_piece(&self.objects, self.offset, self.length).await?;
        self.offset += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Ok(piece)
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Opens the long result of an asynchronous job, whose status names its object.
    ///
    /// # Errors
    /// `Refused` with `Stale` if the reservation has ended; `Protocol` if the device names another
    /// object.
    pub async fn long_job_result(
        &self,
        reserved: IntentId,
        status: &JobStatus,
        method: Method,
    ) -> Result<JobResultReader<M, D>, ClientError> {
        let handle = OpenHandle::Intent(reserved);
        let request = Request::RenewGrants { handle, method };
        let Response::Grants { layout, grants, .. } = self.core.metadata.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        if layout.objects().first().map(|object| object.object) != status.result_object {
            return Err(ClientError::Protocol("a device named another object than that of the result"));
        }
        let objects = OpenObjects::new(self.core.clone(), handle, method, layout, &grants).await?;
        Ok(JobResultReader { objects, offset: 0, length: status.total_length })
    }

    /// Ends the reservation of an asynchronous job; the server removes the object.
    pub async fn release_job_result(&self, reserved: IntentId) {
        abandon(&self.core, reserved).await;
    }
}

impl<M: Metadata, D: Devices> ResultObjects<M, D> {
    pub(super) fn new(
        core: &Arc<ClientCore<M, D>>,
        function: &FilePath,
        method: Method,
        size_max: u64,
    ) -> Arc<Self> {
        let (core, function, free) = (Arc::clone(core), function.clone(), Mutex::default());
        Arc::new(Self { core, function, method, size_max, free })
    }

    /// Returns an object on a device; `None` if the server refuses one. A long result then fails.
    pub(super) async fn take(&self, device: DeviceId) -> Option<ResultObject<M, D>> {
        while let Some(free) = self.pop(device).await {
            // The server ends a reservation that is not renewed.
            match free.entry(device, false).await {
                Ok(_) => return Some(free),
                Err(error) => tracing::debug!(device = device.0, %error, "a free object for results ended"),
            }
            self.end(free).await;
        }
        let (path, size_max, method) = (self.function.clone(), self.size_max, self.method);
        self.reserved(device, Request::ReserveResult { path, device, size_max, method }).await
    }

    /// Returns an object for a job that continues without this client; `None` if the server refuses
    /// one.
    pub(super) async fn reserve_for_job(&self, device: DeviceId) -> Option<ResultObject<M, D>> {
        let (path, size_max, method) = (self.function.clone(), self.size_max, self.method);
        self.reserved(device, Request::ReserveJobResult { path, device, size_max, method }).await
    }

    /// Reserves an object on a device.
    pub(super) async fn reserve_on(&self, device: DeviceId) -> Result<ResultObject<M, D>, ClientError> {
        let (path, size_max, method) = (self.function.clone(), self.size_max, self.method);
        self.reserve(Request::ReserveResult { path, device, size_max, method }).await
    }

    async fn reserved(&self, device: DeviceId, request: Request) -> Option<ResultObject<M, D>> {
        match self.reserve(request).await {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::debug!(device = device.0, %error, "no object for a long result");
                None
            }
        }
    }

    /// Removes a free object of a device.
    async fn pop(&self, device: DeviceId) -> Option<ResultObject<M, D>> {
        self.free.lock().await.get_mut(&device).and_then(Vec::pop)
    }

    async fn reserve(&self, request: Request) -> Result<ResultObject<M, D>, ClientError> {
        let Response::Created { file } = self.core.metadata.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let (intent, core) = (file.intent, Arc::clone(&self.core));
        let handle = OpenHandle::Intent(intent);
        match OpenObjects::new(core, handle, self.method, file.layout, &file.grants).await {
            Ok(objects) => Ok(ResultObject { intent, objects: Arc::new(objects) }),
            Err(error) => {
                abandon(&self.core, intent).await;
                Err(error)
            }
        }
    }

    /// Keeps an object that its job did not use.
    pub(super) async fn put_back(&self, device: DeviceId, object: ResultObject<M, D>) {
        self.free.lock().await.entry(device).or_default().push(object);
    }

    /// Abandons an object that a device may have created.
    pub(super) async fn end(&self, object: ResultObject<M, D>) {
        abandon(&self.core, object.intent).await;
    }

    /// Abandons all objects that are not in use.
    pub(super) async fn end_all(&self) {
        let free = std::mem::take(&mut *self.free.lock().await);
        for object in free.into_values().flatten() {
            self.end(object).await;
        }
    }
}
