//! Hard and symbolic links by path.

use sealstone_mds_protocol::{LinkTarget, Name, Node, NodeKind, Request, Response, Stat};

use crate::client::file_path;
use crate::{Client, ClientError, Devices, Metadata};

fn stat_of(answer: Response) -> Result<Stat, ClientError> {
    match answer {
        Response::Stat { stat } => Ok(stat),
        _ => Err(ClientError::OTHER_ANSWER),
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Returns the parent directory and the last name of a path.
    async fn place(&self, path: impl AsRef<[u8]>) -> Result<(Node, Name), ClientError> {
        let path = file_path(path)?;
        let malformed = sealstone_mds_protocol::WireError::Malformed("path");
        let (above, name) = path.split_last().ok_or(ClientError::Name(malformed))?;
        let above = stat_of(self.core.metadata.call(Request::Stat { path: above }).await?)?;
        Ok((above.node(), name))
    }

    /// Creates a symbolic link at `path` to `target`, which need not exist.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` (the directory), `Denied` among others; `Name`.
    pub async fn symlink(
        &self,
        target: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Stat, ClientError> {
        let target = LinkTarget::new(target.as_ref()).map_err(ClientError::Name)?;
        let (parent, name) = self.place(path).await?;
        let what = NodeKind::Symlink(target);
        let (mode, umask, owner, group, client_id) = (0o777, 0, None, None, None);
        let request = Request::MakeNode { parent, name, what, mode, umask, owner, group, client_id };
        stat_of(self.core.metadata.call(request).await?)
    }

    /// Adds a name to a file (hard link); a symbolic link at `existing` is not followed.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound`, `NotPermitted` (a directory) among others; `Name`.
    pub async fn link(
        &self,
        existing: impl AsRef<[u8]>,
        path: impl AsRef<[u8]>,
    ) -> Result<Stat, ClientError> {
        let node = self.lstat(existing).await?.node();
        let (parent, name) = self.place(path).await?;
        stat_of(self.core.metadata.call(Request::LinkNode { node, parent, name }).await?)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `Refused` with `Invalid` for what is no link, `NotFound` among others.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<LinkTarget, ClientError> {
        let node = self.lstat(path).await?.node();
        match self.core.metadata.call(Request::ReadLink { node }).await? {
            Response::Target { target } => Ok(target),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the target of a symbolic link that was listed.
    ///
    /// # Errors
    /// `Refused` with `Invalid` if it is not a link, `Stale` if it was removed.
    pub async fn target_of(&self, stat: &Stat) -> Result<LinkTarget, ClientError> {
        match self.core.metadata.call(Request::ReadLink { node: stat.node() }).await? {
            Response::Target { target } => Ok(target),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }
}
