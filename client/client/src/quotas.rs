//! Quotas, for administrators and for users about their own; and checks of all records.

use sealstone_mds_protocol::{
    CheckFinding, CheckScope, CheckStatus, PAGE_MAX, Quota, QuotaChange, QuotaCursor, QuotaSubject, Request,
    Response,
};

use crate::client::{file_path, user_name};
use crate::{Client, ClientError, Devices, Metadata};

/// Returns the key of a user's quota.
///
/// # Errors
/// `Name`.
pub fn quota_of_user(name: &str) -> Result<QuotaSubject, ClientError> {
    Ok(QuotaSubject::User(user_name(name)?))
}

/// Returns the key of a directory tree's quota.
///
/// # Errors
/// `Name`.
pub fn quota_of_tree(path: impl AsRef<[u8]>) -> Result<QuotaSubject, ClientError> {
    Ok(QuotaSubject::Tree(file_path(path)?))
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Sets limits (administrators). A directory, which must be empty, becomes a quota tree.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotEmpty`, `Invalid` or `Denied` among others.
    pub async fn set_quota(&self, of: QuotaSubject, change: QuotaChange) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaSet { of, change }).await
    }

    /// Returns usage and limits of a user (of another one only for administrators) or of the tree
    /// that contains a path.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn quota(&self, of: QuotaSubject) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaShow { of }).await
    }

    /// Removes limits (administrators). An empty directory is then no longer a quota tree.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn clear_quota(&self, of: QuotaSubject) -> Result<Quota, ClientError> {
        self.one_quota(Request::QuotaClear { of }).await
    }

    async fn one_quota(&self, request: Request) -> Result<Quota, ClientError> {
        match self.core.metadata.call(request).await? {
            Response::Quota { quota } => Ok(quota),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns a page of all quotas after this one, users by name and then trees, and whether there
    /// may be more. Other than administrators, users see their own only.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn quotas(&self, after: Option<QuotaCursor>) -> Result<(Vec<Quota>, bool), ClientError> {
        match self.core.metadata.call(Request::QuotaList { after, limit: PAGE_MAX }).await? {
            Response::Quotas { quotas, more } => {
                let more = more && !quotas.is_empty();
                Ok((quotas, more))
            }
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Starts a check (fsck) in the background (administrators); a server runs one at a time.
    ///
    /// # Errors
    /// `Refused` with `Exists` if one is in progress, `Denied` among others.
    pub async fn begin_check(&self, scope: CheckScope, repair: bool) -> Result<CheckStatus, ClientError> {
        let begun = self.core.metadata.call(Request::CheckBegin { scope, repair }).await?;
        match begun {
            Response::Check { check: Some(check) } => Ok(check),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the progress of the last check at this server; none if there was none since its
    /// start.
    ///
    /// # Errors
    /// `Refused` with `Denied` among others.
    pub async fn last_check(&self) -> Result<Option<CheckStatus>, ClientError> {
        match self.core.metadata.call(Request::CheckShow {}).await? {
            Response::Check { check } => Ok(check),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Returns the findings of a check so far.
    ///
    /// # Errors
    /// `Refused` with `NotFound` if another check was started since.
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
