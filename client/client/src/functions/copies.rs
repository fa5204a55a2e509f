//! Copies of a function's code on the devices that have data.
//!
//! Contract: a copy is made from code whose digest was compared, is described and durable before
//! it becomes a part of the layout.

use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, DeviceId, ErrorCode, FilePath, Method, OpenHandle, Request, Response, Stat,
};

use super::describe::{self, recorded_digest};
use super::{FunctionDescription, FunctionError};
use crate::client::file_path;
use crate::open::OpenObjects;
use crate::{Client, ClientError, Devices, Metadata, get, put};

/// A function that was opened to be executed.
pub(super) struct OpenFunction<M, D> {
    pub(super) path: FilePath,
    pub(super) method: Method,
    pub(super) stat: Stat,
    pub(super) digest: [u8; 32],
    pub(super) objects: Arc<OpenObjects<M, D>>,
}

impl<M: Metadata, D: Devices> OpenFunction<M, D> {
    /// Opens a function with the right to execute it.
    pub(super) async fn open(
        client: &Client<M, D>,
        path: &FilePath,
        method: Method,
    ) -> Result<Self, FunctionError> {
        let (stat, objects) = get::open(&client.core, path, Access::Execute, method).await?;
        let shown = || path.shown().into_owned();
        if stat.size == 0 || !objects.layout.is_whole_in_each() {
            return Err(FunctionError::NotWhole { path: shown() });
        }
        let digest = recorded_digest(&stat).ok_or_else(|| FunctionError::NotAFunction { path: shown() })?;
        Ok(Self { path: path.clone(), method, stat, digest, objects })
    }

    /// Returns the index of the copy on a device.
    pub(super) fn copy_on(&self, device: DeviceId) -> Option<usize> {
        self.objects.layout.objects().iter().position(|object| object.device == device)
    }

    /// Reads the description from the first copy.
    pub(super) async fn description(&self) -> Result<FunctionDescription, FunctionError> {
        let described = describe::read(&self.objects, 0).await?;
        described.ok_or_else(|| FunctionError::NotDescribed { path: self.path.shown().into_owned() })
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Makes the copies of a function that are missing on these devices; returns how many were
    /// made.
    ///
    /// # Errors
    /// `NoCopy` without the right to read the function; `DigestMismatch`, `NotAFunction`;
    /// `Client`.
    pub async fn copy_function(
        &self,
        path: impl AsRef<[u8]>,
        devices: &[DeviceId],
        method: Method,
    ) -> Result<usize, FunctionError> {
        let function = OpenFunction::open(self, &file_path(path)?, method).await?;
        self.make_copies(&function, devices).await
    }

    /// Makes the missing copies of an open function.
    pub(super) async fn make_copies(
        &self,
        function: &OpenFunction<M, D>,
        devices: &[DeviceId],
    ) -> Result<usize, FunctionError> {
        let missing: Vec<DeviceId> =
            devices.iter().copied().filter(|device| function.copy_on(*device).is_none()).collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let description = function.description().await?;
        let code = self.read_code(function, missing.first().copied()).await?;
        let mut made = 0;
        for device in missing {
            made += usize::from(self.make_copy(function, device, &code, &description).await?);
        }
        Ok(made)
    }

    /// Reads the code and compares its digest.
    async fn read_code(
        &self,
        function: &OpenFunction<M, D>,
        device: Option<DeviceId>,
    ) -> Result<Vec<u8>, FunctionError> {
        let mut code = Vec::with_capacity(usize::try_from(function.stat.size).unwrap_or(0));
        let options = get::GetOptions { method: function.method, ..get::GetOptions::default() };
        match get::get(&self.core, &function.path, &mut code, options).await {
            Ok(_) => {}
            Err(error @ ClientError::Refused(_)) if is_denial(&error) => {
                let device = match device {
                    Some(device) => self.core.device_label(device).await,
                    None => String::new(),
                };
                return Err(FunctionError::NoCopy { device, error });
            }
            Err(error) => return Err(error.into()),
        }
        if *blake3::hash(&code).as_bytes() != function.digest {
            return Err(FunctionError::DigestMismatch { path: function.path.shown().into_owned() });
        }
        Ok(code)
    }

    /// Makes one copy; returns whether this client made it.
    async fn make_copy(
        &self,
        function: &OpenFunction<M, D>,
        device: DeviceId,
        code: &[u8],
        description: &FunctionDescription,
    ) -> Result<bool, FunctionError> {
        let path = function.path.clone();
        let request = Request::CopyFunction { path, device, method: function.method };
        let file = match self.core.metadata.call(request).await {
            Ok(Response::Created { file }) => file,
            Ok(_) => return Err(ClientError::OTHER_ANSWER.into()),
            Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Exists => return Ok(false),
            Err(error) if is_denial(&error) => {
                let device = self.core.device_label(device).await;
                return Err(FunctionError::NoCopy { device, error });
            }
            Err(error) => return Err(error.into()),
        };
        let intent = file.intent;
        let written = async {
            let (core, handle) = (self.core.clone(), OpenHandle::Intent(intent));
            let objects = OpenObjects::new(core, handle, function.method, file.layout, &file.grants).await?;
            let objects = Arc::new(objects);
            put::write_bytes(objects.clone(), code).await?;
            describe::write(&objects, 0, description).await?;
            let size = code.len() as u64;
            let commit = Request::Commit { intent, size, mtime_ns: None, checksum: None };
            self.core.metadata.call(commit).await
        };
        match written.await {
            Ok(Response::Stat { .. }) => Ok(true),
            Ok(_) => Err(ClientError::OTHER_ANSWER.into()),
            // It may have been committed.
            Err(error @ ClientError::OutcomeUnknown { .. }) => Err(error.into()),
            Err(error) => {
                put::abandon(&self.core, intent).await;
                match error {
                    // Another client made a copy meanwhile.
                    ClientError::Refused(failure) if failure.code == ErrorCode::Exists => Ok(false),
                    error => Err(error.into()),
                }
            }
        }
    }
}

pub(super) fn is_denial(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(failure) if failure.code.is_denial())
}
