//! Requests to the metadata server about end-to-end protected disks: keys of users, leases, roots.

use core::time::Duration;

use sealstone_mds_protocol::{
    DISK_PAGE_MAX, DISK_PUBLIC_KEY_BYTES, DISK_ROOT_BYTES, DISK_UNIT_BYTES, DiskAccess, DiskInfo,
    DiskRotation, Name, Request, Response, Text, WRAPPED_DISK_KEY_BYTES,
};

use crate::client::user_name;
use crate::{Client, ClientError, Devices, Metadata};

/// Returns the name of a disk.
///
/// # Errors
/// `Name`.
pub fn disk_name(name: &str) -> Result<Name, ClientError> {
    Name::new(name.as_bytes()).map_err(ClientError::Name)
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Stores the public key of the user, for which keys of disks are wrapped.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn set_disk_public_key(&self, public: [u8; DISK_PUBLIC_KEY_BYTES]) -> Result<(), ClientError> {
        self.change_disk(Request::DiskPublicKeySet { public }).await
    }

    /// Returns the public key of a user; `None`: the user has none.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn disk_public_key(
        &self,
        user: &str,
    ) -> Result<Option<[u8; DISK_PUBLIC_KEY_BYTES]>, ClientError> {
        match self.core.metadata.call(Request::DiskPublicKey { user: user_name(user)? }).await? {
            Response::DiskPublicKey { public } => Ok(public),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Creates the record of a disk, with its first key.
    ///
    /// # Errors
    /// `Refused` with `Exists` or `Limit` among others.
    pub async fn create_disk(
        &self,
        name: Name,
        unit: [u8; DISK_UNIT_BYTES],
        wrapped: [u8; WRAPPED_DISK_KEY_BYTES],
    ) -> Result<(), ClientError> {
        self.change_disk(Request::DiskCreate { name, unit, wrapped }).await
    }

    /// Returns keys, root and state of a disk.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others: also if the user has no key of it.
    pub async fn disk(&self, name: Name) -> Result<DiskAccess, ClientError> {
        match self.core.metadata.call(Request::DiskShow { name }).await? {
            Response::Disk { access } => Ok(access),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns a page of the disks of the user, and whether there may be more.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn disks(&self, after: Option<Name>) -> Result<(Vec<DiskInfo>, bool), ClientError> {
        match self.core.metadata.call(Request::DiskList { after, limit: DISK_PAGE_MAX }).await? {
            Response::Disks { disks, more } => {
                let more = more && !disks.is_empty();
                Ok((disks, more))
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Gives a user the newest key of a disk, or takes it away.
    ///
    /// # Errors
    /// `Refused` with `NotPermitted`, `Stale` or `NotFound` among others.
    pub async fn set_disk_access(
        &self,
        name: Name,
        user: &str,
        wrapped: Option<[u8; WRAPPED_DISK_KEY_BYTES]>,
    ) -> Result<(), ClientError> {
        let user = user_name(user)?;
        self.change_disk(Request::DiskSetAccess { name, user, wrapped }).await
    }

    /// Takes the lease of a disk, or renews it. Returns its epoch, and how long it is valid from
    /// the time when the request was sent.
    ///
    /// # Errors
    /// `Refused` with `Busy` while another client has it, `Fenced` if it was lost.
    pub async fn lease_disk(&self, name: Name, epoch: Option<u32>) -> Result<(u32, Duration), ClientError> {
        match self.core.metadata.call(Request::DiskLease { name, epoch }).await? {
            Response::DiskLeased { epoch, valid_ms } => Ok((epoch, Duration::from_millis(valid_ms.into()))),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the lease of a disk.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn end_disk_lease(&self, name: Name, epoch: u32) -> Result<(), ClientError> {
        self.change_disk(Request::DiskEndLease { name, epoch }).await
    }

    /// Replaces the root of a disk.
    ///
    /// # Errors
    /// `Refused` with `Fenced` if another client has the lease or has published.
    pub async fn publish_disk(
        &self,
        name: Name,
        epoch: u32,
        expected: Option<u64>,
        root: [u8; DISK_ROOT_BYTES],
    ) -> Result<(), ClientError> {
        self.change_disk(Request::DiskPublish { name, epoch, expected, root }).await
    }

    /// Stores the next key of a disk.
    ///
    /// # Errors
    /// `Refused` with `Stale`, `Limit` or `NotPermitted` among others.
    pub async fn rotate_disk(&self, name: Name, rotation: DiskRotation) -> Result<(), ClientError> {
        self.change_disk(Request::DiskRotate { name, rotation }).await
    }

    /// Reports wrong data of a disk, for the audit log of the metadata server.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn report_disk(&self, name: Name, text: &str) -> Result<(), ClientError> {
        self.change_disk(Request::DiskReport { name, text: Text::truncated(text) }).await
    }

    /// Removes the record of a disk and all copies of its key: its data are lost.
    ///
    /// # Errors
    /// `Refused` with `NotPermitted` among others.
    pub async fn remove_disk(&self, name: Name) -> Result<(), ClientError> {
        self.change_disk(Request::DiskRemove { name }).await
    }

    async fn change_disk(&self, request: Request) -> Result<(), ClientError> {
        match self.core.metadata.call(request).await? {
            Response::Done {} => Ok(()),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }
}
