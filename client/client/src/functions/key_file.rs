//! Files with keys, which functions read by a handle.
//!
//! Does: opens the file, and copies it to the devices of jobs, as the code of functions is copied.
//! Contract: no argument, log or error has a byte of the key. A copy needs the rights to read and
//! to execute the file.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_mds_protocol::{Access, DeviceId, ErrorCode, FilePath, Method, OpenHandle, Request, Response};
use zeroize::Zeroizing;

use super::FunctionError;
use super::copies::is_denial;
use super::job_run::moved;
use crate::open::{ObjectGrant, OpenObjects};
use crate::{Client, ClientError, Devices, Metadata, get, put};

/// Maximum bytes of a file with a key.
pub const KEY_FILE_BYTES_MAX: u64 = 4096;

/// A file with a key that was opened for functions.
pub(super) struct KeyFile<M, D> {
    path: FilePath,
    method: Method,
    objects: Arc<OpenObjects<M, D>>,
}

impl<M: Metadata, D: Devices> KeyFile<M, D> {
    /// Opens the file with the right to read it.
    pub(super) async fn open(
        client: &Client<M, D>,
        path: &FilePath,
        method: Method,
    ) -> Result<Self, FunctionError> {
        let (stat, objects) = get::open(&client.core, path, Access::CallRead, method).await?;
        if stat.size == 0 || stat.size > KEY_FILE_BYTES_MAX || !objects.layout.is_whole_in_each() {
            return Err(FunctionError::NotAKey { path: path.shown().into_owned() });
        }
        Ok(Self { path: path.clone(), method, objects })
    }

    pub(super) const fn path(&self) -> &FilePath {
        &self.path
    }

    fn index_on(&self, device: DeviceId) -> Option<usize> {
        self.objects.layout.objects().iter().position(|object| object.device == device)
    }

    /// Returns the object on a device, and its credential.
    pub(super) async fn grant_on(&self, device: DeviceId, renew: bool) -> Result<ObjectGrant, FunctionError> {
        let index = self.index_on(device).ok_or_else(moved)?;
        let grant = self.objects.object_grant(index, renew).await?;
        if grant.device.id != device {
            return Err(moved().into());
        }
        Ok(grant)
    }

    /// Makes the copies that are missing on these devices; returns whether there were any.
    pub(super) async fn copy_to(
        &self,
        client: &Client<M, D>,
        devices: &BTreeSet<DeviceId>,
    ) -> Result<bool, FunctionError> {
        let missing: Vec<DeviceId> =
            devices.iter().copied().filter(|device| self.index_on(*device).is_none()).collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let file = client.open(&self.path, self.method).await?;
        let size = file.stat().size;
        if size > KEY_FILE_BYTES_MAX {
            return Err(FunctionError::NotAKey { path: self.path.shown().into_owned() });
        }
        let key = Zeroizing::new(file.read(0..size).await?);
        for device in missing {
            self.copy_key(client, device, &key).await?;
        }
        Ok(true)
    }

    async fn copy_key(
        &self,
        client: &Client<M, D>,
        device: DeviceId,
        key: &[u8],
    ) -> Result<(), FunctionError> {
        let (core, method) = (&client.core, self.method);
        let request = Request::CopyFunction { path: self.path.clone(), device, method };
        let file = match core.metadata.call(request).await {
            Ok(Response::Created { file }) => file,
            Ok(_) => return Err(ClientError::OTHER_ANSWER.into()),
            // Another client made the copy.
            Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Exists => return Ok(()),
            Err(error) if is_denial(&error) => {
                let (path, device) = (self.path.shown().into_owned(), core.device_label(device).await);
                return Err(FunctionError::NoKeyCopy { path, device, error });
            }
            Err(error) => return Err(error.into()),
        };
        let intent = file.intent;
        let written = async {
            let handle = OpenHandle::Intent(intent);
            let objects = OpenObjects::new(core.clone(), handle, method, file.layout, &file.grants).await?;
            put::write_bytes(Arc::new(objects), key).await?;
            let commit = Request::Commit { intent, size: key.len() as u64, mtime_ns: None, checksum: None };
            core.metadata.call(commit).await
        };
        match written.await {
            Ok(Response::Stat { .. }) => Ok(()),
            Ok(_) => Err(ClientError::OTHER_ANSWER.into()),
            // It may have been committed.
            Err(error @ ClientError::OutcomeUnknown { .. }) => Err(error.into()),
            Err(error) => {
                put::abandon(core, intent).await;
                match error {
                    ClientError::Refused(failure) if failure.code == ErrorCode::Exists => Ok(()),
                    error => Err(error.into()),
                }
            }
        }
    }
}
