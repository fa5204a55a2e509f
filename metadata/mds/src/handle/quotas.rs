//! Requests about quotas, checks and free space.
//!
//! Does: checks the right to read or set a quota, and calls `quota` and `check`.

use sealstone_mds_protocol::{
    ErrorCode, FilePath, Node, Quota, QuotaChange, QuotaCursor, QuotaSubject, Request, Response, UserName,
};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::namespace;
use crate::quota::{self, SpaceFigures};
use crate::records::{counter, figure};
use crate::request_context::as_server;
use crate::server::Mds;
use crate::store::Snapshot;

/// The pattern of all requests about quotas and checks.
macro_rules! quota_requests {
    () => {
        Request::QuotaSet { .. }
            | Request::QuotaShow { .. }
            | Request::QuotaClear { .. }
            | Request::QuotaList { .. }
            | Request::CheckBegin { .. }
            | Request::CheckShow {}
            | Request::CheckFindings { .. }
    };
}
pub(super) use quota_requests;

impl Mds {
    pub(super) fn quota_request(
        &self,
        principal: &Principal,
        request: Request,
        now_ms: u64,
    ) -> Result<Response> {
        match request {
            Request::QuotaSet { of, change } => {
                principal.needs_admin()?;
                let quota = self.update(|tx| match &of {
                    QuotaSubject::User(name) => {
                        namespace::check_owner(tx, name)?;
                        quota::set_user(tx, name, &change)
                    }
                    QuotaSubject::Tree(path) => namespace::set_tree(tx, principal, path, &change, now_ms),
                })?;
                Ok(Response::Quota { quota })
            }
            Request::QuotaClear { of } => {
                principal.needs_admin()?;
                let none = QuotaChange { bytes_max: Some(None), nodes_max: Some(None) };
                let quota = self.update(|tx| match &of {
                    QuotaSubject::User(name) => {
                        check_quota_owner(tx, name)?;
                        quota::set_user(tx, name, &none)
                    }
                    QuotaSubject::Tree(path) => namespace::clear_tree(tx, principal, path),
                })?;
                Ok(Response::Quota { quota })
            }
            Request::QuotaShow { of } => {
                let view = self.store.snapshot()?;
                let mut quota = match &of {
                    QuotaSubject::User(name) => {
                        if *name != principal.user {
                            principal.needs_admin()?;
                            check_quota_owner(&*view, name)?;
                        }
                        quota::of_user(&*view, name)?
                    }
                    QuotaSubject::Tree(path) => namespace::tree_of(&*view, principal, path)?,
                };
                drop_stale_path(&*view, &mut quota);
                Ok(Response::Quota { quota })
            }
            Request::QuotaList { after, limit } => {
                let view = self.store.snapshot()?;
                if !principal.is_admin() {
                    let own = after.is_none().then(|| quota::of_user(&*view, &principal.user)).transpose()?;
                    return Ok(Response::Quotas { quotas: own.into_iter().collect(), more: false });
                }
                let (mut quotas, more) = quota::list(&*view, after.as_ref(), limit)?;
                quotas.iter_mut().for_each(|quota| drop_stale_path(&*view, quota));
                Ok(Response::Quotas { quotas, more })
            }
            Request::CheckBegin { scope, repair } => self.check_begin(principal, (scope, repair), now_ms),
            Request::CheckShow {} => self.check_show(principal),
            Request::CheckFindings { number, from } => self.check_findings(principal, number, from),
            _ => Err(MdsError::refused(ErrorCode::Invalid, "not a request about quotas")),
        }
    }

    pub(super) fn stat_fs(&self, principal: &Principal, node: Option<Node>) -> Result<Response> {
        let (total, used, ..) = self.devices.space_figures();
        let view = self.store.snapshot()?;
        let tree = match node {
            Some(node) => namespace::node(&*view, self.proof_key.verify(principal, node)?)?.tree,
            None => None,
        };
        let nodes = figure(&*view, counter::FILES)?.saturating_add(figure(&*view, counter::DIRECTORIES)?);
        let nodes_free = (i64::MAX as u64).saturating_sub(figure(&*view, counter::INODE)?);
        let figures = SpaceFigures { total, used, nodes, nodes_free };
        let SpaceFigures { total, used, nodes, nodes_free } =
            quota::limit_figures(&*view, &principal.user, tree, figures)?;
        Ok(Response::FileSystem { total, used, nodes, nodes_free })
    }
}

/// Fails unless the name is an account or a number, or still owns files after its account was
/// removed.
fn check_quota_owner<S: Snapshot + ?Sized>(view: &S, name: &UserName) -> Result<()> {
    if quota::of_user(view, name)?.nodes > 0 { Ok(()) } else { namespace::check_owner(view, name) }
}

/// Keeps the path of a tree only while it leads there. Directories are not renamed locally, so no
/// delegation has to be recalled.
fn drop_stale_path(view: &(dyn Snapshot + '_), quota: &mut Quota) {
    let QuotaCursor::Tree(tree) = quota.place else { return };
    let found = |path: &FilePath| as_server(|| namespace::inspect(view, path));
    let leads = |path: &FilePath| found(path).is_ok_and(|(id, _)| id == tree);
    quota.path = quota.path.take().filter(leads);
}

/// Returns the subject of a request about quotas in the audit log; reads are not logged.
pub(super) fn subject(request: &Request) -> Option<String> {
    match request {
        Request::QuotaSet { of, change } => {
            let limit_text = |limit: Option<Option<u64>>| match limit {
                None => "as before".to_owned(),
                Some(None) => "no limit".to_owned(),
                Some(Some(max)) => max.to_string(),
            };
            Some(format!(
                "{of}: bytes {}, files {}",
                limit_text(change.bytes_max),
                limit_text(change.nodes_max)
            ))
        }
        Request::QuotaClear { of } => Some(of.to_string()),
        Request::CheckBegin { scope, repair: true } => Some(format!("{} and repair", scope.name())),
        _ => None,
    }
}
