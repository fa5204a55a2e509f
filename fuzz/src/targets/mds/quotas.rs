//! Requests and responses for quotas and checks, a seed for each row.

use sealstone_mds_protocol::{
    CheckFinding, CheckPhase, CheckScope, CheckStatus, FindingKind, InodeId, Quota, QuotaChange, QuotaCursor,
    QuotaDrift, QuotaSubject, Request, Response, Text,
};

use super::{path, user};

/// A request of every row.
pub(super) fn requests() -> Vec<Request> {
    let (of_user, of_tree) = (QuotaSubject::User(user("bob")), QuotaSubject::Tree(path("/d")));
    let change = QuotaChange { bytes_max: Some(Some(1 << 30)), nodes_max: Some(None) };
    vec![
        Request::QuotaSet { of: of_user.clone(), change },
        Request::QuotaSet { of: of_tree.clone(), change: QuotaChange::default() },
        Request::QuotaShow { of: of_tree.clone() },
        Request::QuotaClear { of: of_user },
        Request::QuotaList { after: Some(QuotaCursor::User(user("bob"))), limit: 9 },
        Request::QuotaList { after: Some(QuotaCursor::Tree(InodeId(7))), limit: 9 },
        Request::CheckBegin { scope: CheckScope::Objects, repair: true },
        Request::CheckShow {},
        Request::CheckFindings { number: 1, from: 9 },
    ]
}

/// A response of every row.
pub(super) fn responses() -> Vec<Response> {
    let quota = |place, path| Quota { place, path, bytes: 1, nodes: 2, bytes_max: Some(3), nodes_max: None };
    let (of_user, of_tree) = (QuotaCursor::User(user("bob")), QuotaCursor::Tree(InodeId(7)));
    let drift = QuotaDrift { place: of_tree.clone(), bytes: 1, nodes: 2, bytes_found: 3, nodes_found: 4 };
    let check = CheckStatus {
        number: 1,
        scope: CheckScope::Names,
        repair: false,
        phase: CheckPhase::Failed,
        began_ms: 2,
        nodes: 3,
        nodes_all: 4,
        names: 5,
        objects: 6,
        findings: 7,
        repaired: 8,
        problem: Text::truncated("the store is away"),
    };
    let finding = CheckFinding {
        kind: FindingKind::Count,
        node: Some(InodeId(7)),
        path: Text::truncated("/d/f"),
        said: Text::truncated("3 links, 2 names"),
        drift: Some(drift),
        repaired: true,
    };
    vec![
        Response::Quota { quota: quota(of_user.clone(), None) },
        Response::Quotas { quotas: vec![quota(of_user, None), quota(of_tree, Some(path("/d")))], more: true },
        Response::Check { check: Some(check) },
        Response::Check { check: None },
        Response::CheckFindings { findings: vec![finding], more: false },
    ]
}
