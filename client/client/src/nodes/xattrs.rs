//! Extended attributes of nodes: `Nodes` reads, lists, sets and removes them at the server.

use sealstone_mds_protocol::{Node, Request, Response, XattrMode, XattrName, XattrValue};

use super::Nodes;
use crate::{ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> Nodes<M, D> {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `Refused` with `NoAttribute` among others.
    pub async fn xattr(&self, node: Node, name: XattrName) -> Result<XattrValue, ClientError> {
        match self.shared.call(&Request::GetXattr { node, name }).await? {
            Response::Xattr { value } => Ok(value),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NoAttribute`, `Limit` among others.
    pub async fn set_xattr(
        &self,
        node: Node,
        name: XattrName,
        value: XattrValue,
        mode: XattrMode,
    ) -> Result<(), ClientError> {
        // The attribute may be an access control list, which rules out a delegation on this
        // directory.
        self.shared.release_dir_lease(node.inode).await?;
        let change_guard = self.shared.dentries.begin_change(&[(node.inode, None)]);
        let set = self.shared.change_once(Request::SetXattr { node, name, value, mode }).await;
        self.note_attr_change(node);
        self.end_change(change_guard, set).map(drop)
    }

    /// Returns the names of the visible extended attributes.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn xattrs(&self, node: Node) -> Result<Vec<XattrName>, ClientError> {
        match self.shared.call(&Request::ListXattr { node }).await? {
            Response::Xattrs { names } => Ok(names),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `Refused` with `NoAttribute` among others.
    pub async fn remove_xattr(&self, node: Node, name: XattrName) -> Result<(), ClientError> {
        // The attribute may be an access control list, which rules out a delegation on this
        // directory.
        self.shared.release_dir_lease(node.inode).await?;
        let change_guard = self.shared.dentries.begin_change(&[(node.inode, None)]);
        let removed = self.shared.change_once(Request::RemoveXattr { node, name }).await;
        self.note_attr_change(node);
        self.end_change(change_guard, removed).map(drop)
    }

    /// Records that the attributes of an open node changed, and rights too if it was an access
    /// control list.
    fn note_attr_change(&self, node: Node) {
        if let Some(open_inode) = self.shared.open_inode(node.inode) {
            open_inode.note_attr_change(true);
        }
    }
}
