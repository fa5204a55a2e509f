//! Requests and responses for end-to-end protected disks, a seed for each row.

use sealstone_mds_protocol::{
    DiskAccess, DiskInfo, DiskKeyCopy, DiskLeaseInfo, DiskRotation, Name, Request, Response, Text,
};

use super::user;

fn name() -> Name {
    Name::new(b"disk".to_vec()).expect("a name")
}

/// A request of every row.
pub(super) fn requests() -> Vec<Request> {
    let copies = vec![DiskKeyCopy { user: user("bob"), wrapped: [3; 84] }];
    let text = Text::truncated("block 7 is damaged");
    vec![
        Request::DiskPublicKeySet { public: [1; 32] },
        Request::DiskPublicKey { user: user("bob") },
        Request::DiskCreate { name: name(), unit: [2; 16], wrapped: [3; 84] },
        Request::DiskShow { name: name() },
        Request::DiskList { after: Some(name()), limit: 9 },
        Request::DiskSetAccess { name: name(), user: user("bob"), wrapped: Some([3; 84]) },
        Request::DiskLease { name: name(), epoch: Some(1) },
        Request::DiskEndLease { name: name(), epoch: 1 },
        Request::DiskPublish { name: name(), epoch: 1, expected: Some(1), root: [4; 136] },
        Request::DiskRotate {
            name: name(),
            rotation: DiskRotation { key_epoch: 1, previous: [5; 48], copies },
        },
        Request::DiskReport { name: name(), text },
        Request::DiskRemove { name: name() },
    ]
}

/// A response of every row.
pub(super) fn responses() -> Vec<Response> {
    let info = DiskInfo {
        name: name(),
        unit: [2; 16],
        owner: user("bob"),
        created_ms: 1,
        key_epoch: 2,
        root_version: Some(3),
        lease: Some(DiskLeaseInfo { user: user("bob"), epoch: 4, left_ms: 5 }),
        failures: 1,
        last_failure: Some(Text::truncated("block 7 is damaged")),
    };
    let access = DiskAccess {
        info: info.clone(),
        users: vec![user("bob")],
        wrapped: Some([3; 84]),
        previous: vec![[5; 48]],
        root: Some([4; 136]),
    };
    vec![
        Response::DiskPublicKey { public: Some([1; 32]) },
        Response::Disk { access },
        Response::Disks { disks: vec![info], more: true },
        Response::DiskLeased { epoch: 1, valid_ms: 2 },
    ]
}
