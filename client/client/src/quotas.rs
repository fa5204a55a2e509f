//! Quotas: for administrators, and what everybody may know of his own; and checks of all that is on record.

use sealstone_mds_protocol::{
    CheckFinding, CheckScope, CheckStatus, PAGE_MAX, Quota, QuotaChange, QuotaOf, QuotaPlace, Request,
    Response,
};

use crate::client::{file_path, user_name};
use crate::{Client, ClientError, Devices, Metadata};

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
pub fn quota_of_tree(path: impl AsRef<[u8]>) -> Result<QuotaOf, ClientError> {
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

    /// Begins to look through everything beside all other work (administrators); one check goes on at a time at a server.
    ///
    /// # Errors
    /// `Refused` with `Exists` if one is under way, `Denied` among others.
    pub async fn begin_check(&self, scope: CheckScope, repair: bool) -> Result<CheckStatus, ClientError> {
        let begun = self.core.metadata.call(Request::CheckBegin { scope, repair }).await?;
        match begun {
            Response::Check { check: Some(check) } => Ok(check),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// How far the last check at this server is; none if there was none since it began.
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn last_check(&self) -> Result<Option<CheckStatus>, ClientError> {
        match self.core.metadata.call(Request::CheckShow {}).await? {
            Response::Check { check } => Ok(check),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// What a check found until now, as far as it is kept.
    ///
    /// # Errors
    /// `Refused` with `NotFound` if there was another one since.
    pub async fn findings(&self, check: u64) -> Result<Vec<CheckFinding>, ClientError> {
        let mut all = Vec::new();
        loop {
            let from = u32::try_from(all.len()).unwrap_or(u32::MAX);
            match self.core.metadata.call(Request::CheckFindings { number: check, from }).await? {
                Response::CheckFindings { findings, more } => {
                    let more = more && !findings.is_empty();
                    all.extend(findings);
                    if !more {
                        return Ok(all);
                    }
                }
                _ => return Err(ClientError::OTHER_ANSWER),
            }
        }
    }
}
