//! Attributes of a node that was listed or created: times, modes, extended attributes.

use sealstone_mds_protocol::{Node, NodeChange, Request, Response, Stat, XattrMode, XattrName, XattrValue};

use crate::{Client, ClientError, Devices, Metadata};

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Changes attributes of a node, all of them or none.
    ///
    /// # Errors
    /// `Refused` with `NotPermitted`, `Denied` or `NotFound` among others.
    pub async fn set_attributes(&self, node: Node, change: NodeChange) -> Result<Stat, ClientError> {
        let request = Request::SetNode { node, change, client_id: None, through: false };
        match self.core.metadata.call(request).await? {
            Response::Stat { stat } => Ok(stat),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the names of a node's extended attributes.
    ///
    /// # Errors
    /// `Refused` with `NotFound` among others.
    pub async fn xattrs(&self, node: Node) -> Result<Vec<XattrName>, ClientError> {
        match self.core.metadata.call(Request::ListXattr { node }).await? {
            Response::Xattrs { names } => Ok(names),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `Refused` with `NoAttribute` among others.
    pub async fn xattr(&self, node: Node, name: XattrName) -> Result<XattrValue, ClientError> {
        match self.core.metadata.call(Request::GetXattr { node, name }).await? {
            Response::Xattr { value } => Ok(value),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Refused` with `NoSpace`, `NotSupported` or `Denied` among others.
    pub async fn set_xattr(&self, node: Node, name: XattrName, value: XattrValue) -> Result<(), ClientError> {
        let request = Request::SetXattr { node, name, value, mode: XattrMode::Set };
        self.core.metadata.call(request).await.map(drop)
    }
}
