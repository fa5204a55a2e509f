//! Rows that address nodes.

use super::*;
use crate::name_changes::*;
use crate::nodes::*;

pub(super) fn node() -> impl Strategy<Value = Node> {
    any::<(u64, [u8; 8])>().prop_map(|(inode, proof)| Node { inode: InodeId(inode), proof })
}

pub(super) fn client_id() -> impl Strategy<Value = ClientId> {
    any::<u64>().prop_map(|number| ClientId { number })
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8..=255, 1..=max)
}

fn kind() -> impl Strategy<Value = NodeKind> {
    prop_oneof![
        Just(NodeKind::File),
        Just(NodeKind::Directory),
        bytes(99).prop_map(|target| NodeKind::Symlink(LinkTarget::new(target).unwrap())),
        Just(NodeKind::Fifo),
        Just(NodeKind::Socket),
        any::<u32>().prop_map(NodeKind::CharDevice),
        any::<u32>().prop_map(NodeKind::BlockDevice),
    ]
}

fn time() -> impl Strategy<Value = Option<SetTime>> {
    prop::option::of(prop_oneof![Just(SetTime::Now), any::<i64>().prop_map(SetTime::At)])
}

fn change() -> impl Strategy<Value = NodeChange> {
    let owners = (prop::option::of(user()), prop::option::of(prop::option::of(group())));
    (any::<(Option<u16>, Option<u64>)>(), owners, time(), time()).prop_map(
        |((mode, size), (owner, group), atime, mtime)| NodeChange { mode, owner, group, size, atime, mtime },
    )
}

fn xattr() -> impl Strategy<Value = XattrName> {
    bytes(XATTR_NAME_MAX).prop_map(|name| XattrName::new(name).unwrap())
}

fn value() -> impl Strategy<Value = XattrValue> {
    prop::collection::vec(any::<u8>(), 0..200).prop_map(|value| XattrValue::new(value).unwrap())
}

fn lock() -> impl Strategy<Value = Lock> {
    (of(LockKind::ALL), any::<(bool, u64, u64, u64, u32)>())
        .prop_map(|(kind, (whole, start, end, owner, pid))| Lock { kind, whole, start, end, owner, pid })
}

fn lease() -> impl Strategy<Value = NodeLease> {
    (of(LeaseKind::ALL), any::<(u64, u64)>()).prop_map(|(kind, (number, epoch))| NodeLease {
        kind,
        number,
        epoch,
    })
}

fn ahead_in() -> impl Strategy<Value = DirLeaseId> {
    any::<(u64, u64, u64)>().prop_map(|(inode, epoch, lease)| DirLeaseId {
        inode: InodeId(inode),
        epoch,
        lease,
    })
}

fn name_change() -> impl Strategy<Value = NameChange> {
    let what = prop_oneof![
        Just(NodeKind::File),
        bytes(99).prop_map(|target| NodeKind::Symlink(LinkTarget::new(target).unwrap())),
        Just(NodeKind::Fifo),
        Just(NodeKind::Socket),
    ];
    let whose = (prop::option::of(user()), prop::option::of(group()));
    prop_oneof![
        any::<u64>().prop_map(|inode| NameChange::Close(InodeId(inode))),
        ((ahead_in(), name(), what), whose, any::<(u64, u16, u16, u64, bool)>()).prop_map(
            |((directory, name, what), (owner, group), (inode, mode, umask, at_ms, held))| {
                let inode = InodeId(inode);
                let made = CreateOp { directory, name, inode, what, mode, umask, owner, group, at_ms, held };
                NameChange::Create(made)
            }
        ),
        (ahead_in(), name(), any::<(u64, u64, bool)>()).prop_map(
            |(directory, name, (inode, at_ms, close))| {
                let inode = InodeId(inode);
                NameChange::Unlink(UnlinkOp { directory, name, inode, at_ms, close })
            }
        ),
        ((ahead_in(), name()), (ahead_in(), name()), any::<(u64, Option<u64>, u64, bool)>()).prop_map(
            |((from_directory, from), (to_directory, to), (inode, replaced, at_ms, close))| {
                let (inode, replaced) = (InodeId(inode), replaced.map(InodeId));
                NameChange::Rename(RenameOp {
                    from_directory,
                    from,
                    inode,
                    to_directory,
                    to,
                    replaced,
                    at_ms,
                    close,
                })
            }
        ),
    ]
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    let names = prop_oneof![
        (node(), name(), prop::option::of(client_id()))
            .prop_map(|(parent, name, client_id)| Request::Lookup { parent, name, client_id }),
        node().prop_map(|node| Request::GetNode { node }),
        (node(), prop::option::of(name()), any::<u16>(), prop::option::of(client_id())).prop_map(
            |(directory, after, limit, client_id)| Request::ReadNodes { directory, after, limit, client_id }
        ),
        (
            (node(), name(), kind(), any::<(u16, u16)>()),
            (prop::option::of(user()), prop::option::of(group()), prop::option::of(client_id()))
        )
            .prop_map(|((parent, name, what, (mode, umask)), (owner, group, client_id))| {
                Request::MakeNode { parent, name, what, mode, umask, owner, group, client_id }
            }),
        (node(), node(), name()).prop_map(|(node, parent, name)| Request::LinkNode { node, parent, name }),
        (node(), name(), any::<bool>()).prop_map(|(parent, name, directory)| Request::RemoveNode {
            parent,
            name,
            directory
        }),
        (node(), name(), node(), name(), of(RenameMode::ALL)).prop_map(
            |(from_parent, from, to_parent, to, mode)| Request::RenameNode {
                from_parent,
                from,
                to_parent,
                to,
                mode
            }
        ),
        (node(), change(), prop::option::of(client_id()), any::<bool>()).prop_map(
            |(node, change, client_id, through)| Request::SetNode { node, change, client_id, through }
        ),
        node().prop_map(|node| Request::ReadLink { node }),
    ];
    let bytes = prop_oneof![
        (node(), of(Access::ALL), of(Method::ALL), client_id(), any::<bool>()).prop_map(
            |(node, access, method, client_id, reclaim)| Request::OpenNode {
                node,
                access,
                method,
                client_id,
                reclaim
            }
        ),
        (node(), any::<Option<u64>>(), of(Method::ALL), client_id()).prop_map(
            |(node, size_hint, method, client_id)| Request::Allocate { node, size_hint, method, client_id }
        ),
        (node(), client_id(), any::<(u64, Option<i64>, u32, bool, bool)>()).prop_map(
            |(node, client_id, (size_at_least, mtime_ns, generation, made, fit))| Request::Written {
                node,
                size_at_least,
                mtime_ns,
                generation,
                made,
                fit,
                client_id
            }
        ),
        (node(), client_id()).prop_map(|(node, client_id)| Request::CloseNode { node, client_id }),
        client_id().prop_map(|client_id| Request::KeepNodes { client_id }),
        (node(), client_id(), lock(), any::<(bool, bool)>()).prop_map(
            |(node, client_id, lock, (test, reclaim))| {
                Request::LockNode { node, client_id, lock, test, reclaim }
            }
        ),
        (node(), client_id(), any::<u64>()).prop_map(|(node, client_id, owner)| Request::UnlockNode {
            node,
            client_id,
            owner
        }),
        (client_id(), any::<(u64, u64, u32)>()).prop_map(|(client_id, (epoch, known, wait_ms))| {
            Request::Recalls { client_id, epoch, known, wait_ms }
        }),
        (node(), client_id(), of(LeaseKind::ALL)).prop_map(|(node, client_id, kind)| Request::LeaseNode {
            node,
            client_id,
            kind
        }),
        (any::<u64>(), client_id(), any::<u64>()).prop_map(|(inode, client_id, number)| {
            Request::ReturnLease { inode: InodeId(inode), client_id, number }
        }),
        (prop::option::of(node()), client_id(), any::<u16>()).prop_map(|(directory, client_id, numbers)| {
            Request::DelegateDir { directory, client_id, numbers }
        }),
    ];
    let others = prop_oneof![
        (node(), xattr()).prop_map(|(node, name)| Request::GetXattr { node, name }),
        (node(), xattr(), value(), of(XattrMode::ALL))
            .prop_map(|(node, name, value, mode)| Request::SetXattr { node, name, value, mode }),
        node().prop_map(|node| Request::ListXattr { node }),
        (node(), xattr()).prop_map(|(node, name)| Request::RemoveXattr { node, name }),
        prop::option::of(node()).prop_map(|node| Request::StatFs { node }),
    ];
    let once = prop_oneof![
        (node(), node(), name()).prop_map(|(node, parent, name)| Request::LinkNode { node, parent, name }),
        (node(), xattr()).prop_map(|(node, name)| Request::RemoveXattr { node, name }),
        prop::collection::vec(name_change(), 0..4).prop_map(|changes| Request::NameBatch { changes }),
    ];
    let once = (once, client_id(), any::<(u16, u64)>()).prop_map(|(request, client_id, (slot, sequence))| {
        Request::Once {
            id: RequestId { client_id, slot, sequence },
            request: ChangeRequest::new(request).unwrap(),
        }
    });
    prop_oneof![names.boxed(), bytes.boxed(), others.boxed(), once.boxed()]
}

#[test]
fn once_accepts_change_requests_only() {
    let id = RequestId { client_id: ClientId { number: 1 }, slot: 2, sequence: 3 };
    let inner = Request::RemoveNode { parent: Node::ROOT, name: Name::new("a").unwrap(), directory: false };
    let once = Request::Once { id, request: ChangeRequest::new(inner.clone()).unwrap() };
    assert_eq!(ChangeRequest::new(once.clone()), Err(once.clone()));
    assert_eq!(ChangeRequest::new(Request::WhoAmI {}), Err(Request::WhoAmI {}));
    let body = once.encode(7).unwrap();
    assert_eq!(Request::decode(&body), Ok((7, once)));
    // Offset of the inner operation: after the body's header and the request id.
    let at = 12 + 8 + 2 + 8;
    for operation in [0x0075_u16, 0x0002, 0x0061, 0xFFFF] {
        let mut other = body.clone();
        other[at..at + 2].copy_from_slice(&operation.to_be_bytes());
        let code = u32::from(operation);
        assert_eq!(Request::decode(&other), Err((Some(7), WireError::UnknownCode { what: "change", code })));
    }
}

pub(super) fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        (stat(), prop::option::of(stat())).prop_map(|(moved, other)| Response::Renamed { moved, other }),
        bytes(99).prop_map(|target| Response::Target { target: LinkTarget::new(target).unwrap() }),
        (
            stat(),
            prop::option::of(object()),
            prop::collection::vec(grant(), 0..9),
            any::<(bool, bool, u64)>(),
            prop::option::of(lease())
        )
            .prop_map(|(stat, object, grants, (made, sparse, held_until_ms), lease)| {
                let layout = object.map(Layout::single);
                Response::NodeOpened {
                    node: OpenedNode { stat, layout, grants, made, sparse, held_until_ms, lease },
                }
            }),
        (stat(), lease()).prop_map(|(stat, lease)| Response::Made { stat, lease }),
        (prop::option::of(stat()), prop::option::of(lease()), prop::option::of(lease()))
            .prop_map(|(stat, directory, lease)| Response::LookedUp { stat, directory, lease }),
        (any::<bool>(), lease()).prop_map(|(more, lease)| Response::Listed {
            entries: Vec::new(),
            more,
            lease
        }),
        (stat(), prop::option::of(lease())).prop_map(|(stat, lease)| Response::Leased { stat, lease }),
        (any::<(u64, u32, u64)>(), prop::collection::vec(any::<(u64, u64)>(), 0..9)).prop_map(
            |((epoch, lease_ms, last), recalls)| {
                let recall = |(inode, number)| Recall { inode: InodeId(inode), number };
                let recalls = recalls.into_iter().map(recall).collect();
                Response::Recalls { epoch, lease_ms, last, recalls }
            }
        ),
        (prop::option::of(lease()), any::<(Option<u64>, Option<(u64, [[u8; 8]; 3])>)>()).prop_map(
            |(lease, (before, numbers))| {
                let numbers = numbers
                    .map(|(first, proofs)| InodeRange { first: InodeId(first), proofs: proofs.to_vec() });
                Response::DirDelegated { lease, before, numbers }
            }
        ),
        (any::<u16>(), prop::collection::vec((any::<u64>(), lease()), 0..5), any::<bool>()).prop_map(
            |(done, leases, refused)| {
                let on = |(inode, lease)| InodeLease { inode: InodeId(inode), lease };
                let leases = leases.into_iter().map(on).collect();
                let failure = refused.then(|| Failure::new(ErrorCode::Fenced, "x"));
                Response::NameBatchApplied { done, leases, failure }
            }
        ),
        value().prop_map(|value| Response::Xattr { value }),
        prop::collection::vec(xattr(), 0..9).prop_map(|names| Response::Xattrs { names }),
        any::<[u64; 4]>().prop_map(|[total, used, nodes, nodes_free]| Response::FileSystem {
            total,
            used,
            nodes,
            nodes_free
        }),
        any::<(u32, u64)>().prop_map(|(held, until_ms)| Response::Kept { held, until_ms }),
        prop::option::of(lock()).prop_map(|conflict| Response::Locked { conflict }),
    ]
}

#[test]
fn byte_string_limits_are_enforced() {
    assert!(LinkTarget::new(vec![b'x'; TARGET_MAX]).is_ok());
    assert_eq!(LinkTarget::new(vec![b'x'; TARGET_MAX + 1]), Err(WireError::TooLong { limit: TARGET_MAX }));
    assert_eq!(LinkTarget::new(""), Err(WireError::Malformed("target")));
    assert_eq!(LinkTarget::new("a\0"), Err(WireError::Malformed("target")));
    assert!(XattrName::new(vec![b'x'; XATTR_NAME_MAX]).is_ok());
    assert_eq!(
        XattrName::new(vec![b'x'; XATTR_NAME_MAX + 1]),
        Err(WireError::TooLong { limit: XATTR_NAME_MAX })
    );
    assert_eq!(
        XattrValue::new(vec![0; XATTR_VALUE_MAX + 1]),
        Err(WireError::TooLong { limit: XATTR_VALUE_MAX })
    );
}

#[test]
fn maximum_reserved_inodes_fit_frame() {
    let proofs = vec![[9; NODE_PROOF_BYTES]; usize::from(RESERVED_INODES_MAX)];
    let numbers = Some(InodeRange { first: InodeId(1), proofs });
    assert!(Response::DirDelegated { lease: None, before: None, numbers }.encode(0).is_ok());
}

#[test]
fn largest_xattr_and_list_fit_frame() {
    let name = XattrName::new(vec![b'x'; XATTR_NAME_MAX]).unwrap();
    let value = XattrValue::new(vec![0; XATTR_VALUE_MAX]).unwrap();
    let node = Node::ROOT;
    assert!(Request::SetXattr { node, name: name.clone(), value, mode: XattrMode::Set }.encode(0).is_ok());
    assert!(Response::Xattrs { names: vec![name; usize::from(XATTRS_MAX)] }.encode(0).is_ok());
}
