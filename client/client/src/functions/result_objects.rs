//! Objects for results that do not fit into the reply of a device.
//!
//! Does: reserve an object for a job, read the result from it, and keep objects that no device
//! created for the next job on the device.
//! Contract: an object serves one job at a time. One that a device may have created is abandoned
//! after its job, so that the server removes it. Objects of a failed client expire at the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealstone_initiator::{Bearer, Operation, TRANSFER_MAX};
use sealstone_mds_protocol::{DeviceId, FilePath, IntentId, Method, OpenHandle, Request, Response};
use sealstone_osd::ObjectType;
use sealstone_osd::function::FunctionObject;
use tokio::sync::Mutex;

use crate::open::{ClientCore, OpenObjects};
use crate::put::abandon;
use crate::{ClientError, Devices, Metadata};

/// The object that is reserved for a result.
pub(super) struct ResultObject<M, D> {
    intent: IntentId,
    objects: OpenObjects<M, D>,
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
        while (result.len() as u64) < length {
            let offset = result.len() as u64;
            let length = usize::try_from(length - offset).unwrap_or(TRANSFER_MAX).min(TRANSFER_MAX);
            let read = |object| Operation::Read { object, offset, length, buffer: Vec::new() };
            let piece = self.objects.execute(0, read).await?.data;
            if piece.len() != length {
                return Err(ClientError::Protocol(
                    "a device returned another length than that of the result",
                ));
            }
            result.extend_from_slice(&piece);
        }
        Ok(result)
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
        match self.reserve(device).await {
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

    async fn reserve(&self, device: DeviceId) -> Result<ResultObject<M, D>, ClientError> {
        let path = self.function.clone();
        let request = Request::ReserveResult { path, device, size_max: self.size_max, method: self.method };
        let Response::Created { file } = self.core.metadata.call(request).await? else {
            return Err(ClientError::OTHER_ANSWER);
        };
        let (intent, core) = (file.intent, Arc::clone(&self.core));
        let handle = OpenHandle::Intent(intent);
        match OpenObjects::new(core, handle, self.method, file.layout, &file.grants).await {
            Ok(objects) => Ok(ResultObject { intent, objects }),
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
