//! Rows about quotas.

use super::*;
use crate::quota::*;

fn of_whom() -> impl Strategy<Value = QuotaSubject> {
    prop_oneof![user().prop_map(QuotaSubject::User), path().prop_map(QuotaSubject::Tree)]
}

fn place() -> impl Strategy<Value = QuotaCursor> {
    prop_oneof![
        user().prop_map(QuotaCursor::User),
        any::<u64>().prop_map(|id| QuotaCursor::Tree(InodeId(id)))
    ]
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    let change = any::<(Option<Option<u64>>, Option<Option<u64>>)>()
        .prop_map(|(bytes_max, nodes_max)| QuotaChange { bytes_max, nodes_max });
    prop_oneof![
        (of_whom(), change).prop_map(|(of, change)| Request::QuotaSet { of, change }),
        of_whom().prop_map(|of| Request::QuotaShow { of }),
        of_whom().prop_map(|of| Request::QuotaClear { of }),
        (prop::option::of(place()), any::<u16>())
            .prop_map(|(after, limit)| Request::QuotaList { after, limit }),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    (place(), prop::option::of(path()), any::<(u64, u64, Option<u64>, Option<u64>)>()).prop_map(
        |(place, path, (bytes, nodes, bytes_max, nodes_max))| Quota {
            place,
            path,
            bytes,
            nodes,
            bytes_max,
            nodes_max,
        },
    )
}

pub(super) fn drift() -> impl Strategy<Value = QuotaDrift> {
    (place(), any::<[u64; 4]>()).prop_map(|(place, [bytes, nodes, bytes_found, nodes_found])| QuotaDrift {
        place,
        bytes,
        nodes,
        bytes_found,
        nodes_found,
    })
}

pub(super) fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        quota().prop_map(|quota| Response::Quota { quota }),
        (prop::collection::vec(quota(), 0..9), any::<bool>())
            .prop_map(|(quotas, more)| Response::Quotas { quotas, more }),
    ]
}
