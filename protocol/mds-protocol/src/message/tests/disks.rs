//! Rows of end-to-end protected disks.

use super::*;
use crate::disks::*;

fn bytes<const LENGTH: usize>() -> impl Strategy<Value = [u8; LENGTH]> {
    prop::collection::vec(any::<u8>(), LENGTH).prop_map(|bytes| bytes.try_into().unwrap())
}

fn rotation() -> impl Strategy<Value = DiskRotation> {
    let copy = (user(), bytes()).prop_map(|(user, wrapped)| DiskKeyCopy { user, wrapped });
    (any::<u16>(), bytes(), prop::collection::vec(copy, 0..5))
        .prop_map(|(key_epoch, previous, copies)| DiskRotation { key_epoch, previous, copies })
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        bytes().prop_map(|public| Request::DiskPublicKeySet { public }),
        user().prop_map(|user| Request::DiskPublicKey { user }),
        (name(), bytes(), bytes()).prop_map(|(name, unit, wrapped)| Request::DiskCreate {
            name,
            unit,
            wrapped
        }),
        name().prop_map(|name| Request::DiskShow { name }),
        (prop::option::of(name()), any::<u16>())
            .prop_map(|(after, limit)| Request::DiskList { after, limit }),
        (name(), user(), prop::option::of(bytes()))
            .prop_map(|(name, user, wrapped)| Request::DiskSetAccess { name, user, wrapped }),
        (name(), any::<Option<u32>>()).prop_map(|(name, epoch)| Request::DiskLease { name, epoch }),
        (name(), any::<u32>()).prop_map(|(name, epoch)| Request::DiskEndLease { name, epoch }),
        (name(), any::<(u32, Option<u64>)>(), bytes()).prop_map(|(name, (epoch, expected), root)| {
            Request::DiskPublish { name, epoch, expected, root }
        }),
        (name(), rotation()).prop_map(|(name, rotation)| Request::DiskRotate { name, rotation }),
        (name(), "[a-z ]{0,40}")
            .prop_map(|(name, text)| Request::DiskReport { name, text: Text::new(text).unwrap() }),
        name().prop_map(|name| Request::DiskRemove { name }),
    ]
}

fn info() -> impl Strategy<Value = DiskInfo> {
    let lease = (user(), any::<(u32, u64)>()).prop_map(|(user, (epoch, left_ms))| DiskLeaseInfo {
        user,
        epoch,
        left_ms,
    });
    let numbers = any::<([u8; 16], u64, u16, Option<u64>, u32)>();
    (name(), user(), numbers, prop::option::of(lease), prop::option::of("[a-z ]{0,40}")).prop_map(
        |(name, owner, (unit, created_ms, key_epoch, root_version, failures), lease, text)| DiskInfo {
            name,
            unit,
            owner,
            created_ms,
            key_epoch,
            root_version,
            lease,
            failures,
            last_failure: text.map(|text| Text::new(text).unwrap()),
        },
    )
}

pub(super) fn response() -> impl Strategy<Value = Response> {
    let keys = (prop::option::of(bytes()), prop::collection::vec(bytes(), 0..4), prop::option::of(bytes()));
    prop_oneof![
        prop::option::of(bytes()).prop_map(|public| Response::DiskPublicKey { public }),
        (info(), prop::collection::vec(user(), 0..4), keys).prop_map(
            |(info, users, (wrapped, previous, root))| Response::Disk {
                access: DiskAccess { info, users, wrapped, previous, root }
            }
        ),
        (prop::collection::vec(info(), 0..4), any::<bool>())
            .prop_map(|(disks, more)| Response::Disks { disks, more }),
        any::<(u32, u32)>().prop_map(|(epoch, valid_ms)| Response::DiskLeased { epoch, valid_ms }),
    ]
}
