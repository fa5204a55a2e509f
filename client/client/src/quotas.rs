//! Quotas: for administrators, and what everybody may know of his own.

use sealstone_mds_protocol::{
    PAGE_MAX, Quota, QuotaChange, QuotaDrift, QuotaOf, QuotaPlace, Request, Response,
};

use crate::client::{file_path, user_name};
use crate::{Client, ClientError, Devices, Metadata};

/// What counting everything anew found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaCheck {
    /// Nodes that there are.
    pub nodes: u64,
    /// Counts that were not right; not all of them if there were `more`.
    pub drifts: Vec<QuotaDrift>,
    /// Were there more?
    pub more: bool,
    /// Are they right now?
    pub repaired: bool,
}

/// The quota of a user, by name.
///
/// # Errors
/// `Name`.
pub fn quota_of_user(name: &str) -> Result<QuotaOf, ClientError> {
    Ok(QuotaOf::User(user_name(name)?))
}

/// The quota of a tree, by path.
///
/// # Errors
/// `Name`.
pub fn quota_of_tree(path: &str) -> Result<QuotaOf, ClientError> {
    Ok(QuotaOf::Tree(file_path(path)?))
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Sets limits (administrators). A directory becomes a tree by that; it must be empty.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotEmpty`, `Invalid` or `Denied` among others.
    pub async fn set_quota(&self, of: QuotaOf, change: QuotaChange) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaSet { of, change }).await
    }

    /// What is used and allowed: of a user, oneself unless one is an administrator; or of the tree that a path lies in.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn quota(&self, of: QuotaOf) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaShow { of }).await
    }

    /// Takes limits away (administrators). An empty directory is no tree any more after that.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn clear_quota(&self, of: QuotaOf) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaClear { of }).await
    }

    async fn one_quota(&self, request: Request) -> Result<Quota, ClientError> {
        match self.core.metadata.call(request).await? {
            Response::Quota { quota } => Ok(quota),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// A page of all quotas, users by name and then trees, after this one; and whether there may be more. Who is no
    /// administrator sees his own.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn quotas(&self, after: Option<QuotaPlace>) -> Result<(Vec<Quota>, bool), ClientError> {
        match self.core.metadata.call(Request::QuotaList { after, limit: PAGE_MAX }).await? {
            Response::Quotas { quotas, more } => {
                let more = more && !quotas.is_empty();
                Ok((quotas, more))
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Counts everything anew and compares (administrators). `repair`: what is not right is put right, and everybody who
    /// changes something waits for that long.
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn check_quotas(&self, repair: bool) -> Result<QuotaCheck, ClientError> {
        match self.core.metadata.call(Request::QuotaCheck { repair }).await? {
            Response::QuotaChecked { nodes, drifts, more, repaired } => {
                Ok(QuotaCheck { nodes, drifts, more, repaired })
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }
}
