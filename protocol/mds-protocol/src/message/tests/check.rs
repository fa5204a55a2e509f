//! Rows of checks.

use super::*;
use crate::check::*;

pub(super) fn request() -> impl Strategy<Value = Request> {
    let scope = prop::sample::select(CheckScope::ALL);
    prop_oneof![
        (scope, any::<bool>()).prop_map(|(scope, repair)| Request::CheckBegin { scope, repair }),
        Just(Request::CheckShow {}),
        any::<(u64, u32)>().prop_map(|(number, from)| Request::CheckFindings { number, from }),
    ]
}

fn check() -> impl Strategy<Value = CheckStatus> {
    let codes = (prop::sample::select(CheckScope::ALL), prop::sample::select(CheckPhase::ALL));
    (codes, any::<(bool, [u64; 8])>(), "[a-z ]{0,40}").prop_map(
        |(
            (scope, phase),
            (repair, [number, began_ms, nodes, nodes_all, names, objects, findings, repaired]),
            why,
        )| {
            let problem = Text::new(why).unwrap();
            CheckStatus {
                number,
                scope,
                repair,
                phase,
                began_ms,
                nodes,
                nodes_all,
                names,
                objects,
                findings,
                repaired,
                problem,
            }
        },
    )
}

fn finding() -> impl Strategy<Value = CheckFinding> {
    let drift = prop::option::of(quota::drift());
    let kind = prop::sample::select(FindingKind::ALL);
    (kind, any::<(Option<u64>, bool)>(), "[a-z/]{0,40}", "[a-z ]{0,40}", drift).prop_map(
        |(kind, (node, repaired), path, said, drift)| CheckFinding {
            kind,
            node: node.map(InodeId),
            path: Text::new(path).unwrap(),
            said: Text::new(said).unwrap(),
            drift,
            repaired,
        },
    )
}

pub(super) fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        prop::option::of(check()).prop_map(|check| Response::Check { check }),
        (prop::collection::vec(finding(), 0..9), any::<bool>())
            .prop_map(|(findings, more)| Response::CheckFindings { findings, more }),
    ]
}
