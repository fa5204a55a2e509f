//! Rows that address nodes.

use super::*;
use crate::ahead::*;
use crate::nodes::*;

pub(super) fn node() -> impl Strategy<Value = Node> {
    any::<(u64, [u8; 8])>().prop_map(|(inode, proof)| Node { inode: InodeId(inode), proof })
}

pub(super) fn holder() -> impl Strategy<Value = HolderId> {
    any::<u64>().prop_map(|number| HolderId { number })
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8..=255, 1..=max)
}

fn kind() -> impl Strategy<Value = NodeKind> {
    prop_oneof![
        Just(NodeKind::File),
        Just(NodeKind::Directory),
        bytes(99).prop_map(|target| NodeKind::Symlink(Target::new(target).unwrap())),
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

fn lease() -> impl Strategy<Value = Lease> {
    (of(LeaseKind::ALL), any::<(u64, u64)>()).prop_map(|(kind, (number, era))| Lease { kind, number, era })
}

fn ahead_in() -> impl Strategy<Value = AheadIn> {
    any::<(u64, u64, u64)>().prop_map(|(inode, era, lease)| AheadIn { inode: InodeId(inode), era, lease })
}

fn name_change() -> impl Strategy<Value = NameChange> {
    let what = prop_oneof![
        Just(NodeKind::File),
        bytes(99).prop_map(|target| NodeKind::Symlink(Target::new(target).unwrap())),
        Just(NodeKind::Fifo),
        Just(NodeKind::Socket),
    ];
    let whose = (prop::option::of(user()), prop::option::of(group()));
    prop_oneof![
        ((ahead_in(), name(), what), whose, any::<(u64, u16, u16, u64, bool)>()).prop_map(
            |((directory, name, what), (owner, group), (inode, mode, umask, at_ms, held))| {
                let inode = InodeId(inode);
                let made = MadeAhead { directory, name, inode, what, mode, umask, owner, group, at_ms, held };
                NameChange::Made(made)
            }
        ),
        (ahead_in(), name(), any::<(u64, u64, bool)>()).prop_map(
            |(directory, name, (inode, at_ms, let_go))| {
                let inode = InodeId(inode);
                NameChange::Removed(RemovedAhead { directory, name, inode, at_ms, let_go })
            }
        ),
        ((ahead_in(), name()), (ahead_in(), name()), any::<(u64, Option<u64>, u64, bool)>()).prop_map(
            |((from_directory, from), (to_directory, to), (inode, replaced, at_ms, let_go))| {
                let (inode, replaced) = (InodeId(inode), replaced.map(InodeId));
                NameChange::Renamed(RenamedAhead {
                    from_directory,
                    from,
                    inode,
                    to_directory,
                    to,
                    replaced,
                    at_ms,
                    let_go,
                })
            }
        ),
    ]
}

pub(super) fn request() -> impl Strategy<Value = Request> {
    let names = prop_oneof![
        (node(), name(), prop::option::of(holder())).prop_map(|(parent, name, holder)| Request::Lookup {
            parent,
            name,
            holder
        }),
        node().prop_map(|node| Request::GetNode { node }),
        (node(), prop::option::of(name()), any::<u16>(), prop::option::of(holder())).prop_map(
            |(directory, after, limit, holder)| Request::ReadNodes { directory, after, limit, holder }
        ),
        (
            (node(), name(), kind(), any::<(u16, u16)>()),
            (prop::option::of(user()), prop::option::of(group()), prop::option::of(holder()))
        )
            .prop_map(|((parent, name, what, (mode, umask)), (owner, group, holder))| {
                Request::MakeNode { parent, name, what, mode, umask, owner, group, holder }
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
        (node(), change(), prop::option::of(holder()), any::<bool>())
            .prop_map(|(node, change, holder, through)| Request::SetNode { node, change, holder, through }),
        node().prop_map(|node| Request::ReadLink { node }),
    ];
    let bytes = prop_oneof![
        (node(), of(Access::ALL), of(Method::ALL), holder(), any::<bool>()).prop_map(
            |(node, access, method, holder, again)| Request::OpenNode { node, access, method, holder, again }
        ),
        (node(), any::<Option<u64>>(), of(Method::ALL), holder()).prop_map(
            |(node, size_hint, method, holder)| Request::Allocate { node, size_hint, method, holder }
        ),
        (node(), holder(), any::<(u64, Option<i64>, u32, bool, bool)>()).prop_map(
            |(node, holder, (size_at_least, mtime_ns, generation, made, fit))| Request::Written {
                node,
                size_at_least,
                mtime_ns,
                generation,
                made,
                fit,
                holder
            }
        ),
        (node(), holder()).prop_map(|(node, holder)| Request::CloseNode { node, holder }),
        holder().prop_map(|holder| Request::KeepNodes { holder }),
        (node(), holder(), lock(), any::<(bool, bool)>()).prop_map(|(node, holder, lock, (test, again))| {
            Request::LockNode { node, holder, lock, test, again }
        }),
        (node(), holder(), any::<u64>()).prop_map(|(node, holder, owner)| Request::UnlockNode {
            node,
            holder,
            owner
        }),
        (holder(), any::<(u64, u64, u32)>()).prop_map(|(holder, (era, known, wait_ms))| Request::Recalls {
            holder,
            era,
            known,
            wait_ms
        }),
        (node(), holder(), of(LeaseKind::ALL)).prop_map(|(node, holder, kind)| Request::LeaseNode {
            node,
            holder,
            kind
        }),
        (any::<u64>(), holder(), any::<u64>()).prop_map(|(inode, holder, number)| Request::ReturnLease {
            inode: InodeId(inode),
            holder,
            number
        }),
        (prop::option::of(node()), holder(), any::<u16>())
            .prop_map(|(directory, holder, numbers)| Request::LeadNames { directory, holder, numbers }),
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
        prop::collection::vec(name_change(), 0..4).prop_map(|changes| Request::ChangeNames { changes }),
    ];
    let once = (once, holder(), any::<(u16, u64)>()).prop_map(|(request, holder, (place, number))| {
        Request::Once { turn: Turn { holder, place, number }, change: Change::new(request).unwrap() }
    });
    prop_oneof![names.boxed(), bytes.boxed(), others.boxed(), once.boxed()]
}

#[test]
fn only_a_change_is_inside_a_request_that_is_done_once() {
    let turn = Turn { holder: HolderId { number: 1 }, place: 2, number: 3 };
    let inner = Request::RemoveNode { parent: Node::ROOT, name: Name::new("a").unwrap(), directory: false };
    let once = Request::Once { turn, change: Change::new(inner.clone()).unwrap() };
    assert_eq!(Change::new(once.clone()), Err(once.clone()));
    assert_eq!(Change::new(Request::WhoAmI {}), Err(Request::WhoAmI {}));
    let body = once.encode(7).unwrap();
    assert_eq!(Request::decode(&body), Ok((7, once)));
    // Operation of the change: behind the body's header and the turn.
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
        bytes(99).prop_map(|target| Response::Target { target: Target::new(target).unwrap() }),
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
            |((era, believed_ms, last), recalls)| {
                let recall = |(inode, number)| Recall { inode: InodeId(inode), number };
                let recalls = recalls.into_iter().map(recall).collect();
                Response::Recalls { era, believed_ms, last, recalls }
            }
        ),
        (prop::option::of(lease()), any::<(Option<u64>, Option<(u64, [[u8; 8]; 3])>)>()).prop_map(
            |(lease, (before, numbers))| {
                let numbers =
                    numbers.map(|(first, proofs)| Numbers { first: InodeId(first), proofs: proofs.to_vec() });
                Response::Leads { lease, before, numbers }
            }
        ),
        (any::<u16>(), prop::collection::vec((any::<u64>(), lease()), 0..5), any::<bool>()).prop_map(
            |(done, leases, refused)| {
                let on = |(inode, lease)| LeaseOn { inode: InodeId(inode), lease };
                let leases = leases.into_iter().map(on).collect();
                let failure = refused.then(|| Failure::new(ErrorCode::Fenced, "x"));
                Response::NamesChanged { done, leases, failure }
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
fn every_limit_of_a_byte_string_is_kept() {
    assert!(Target::new(vec![b'x'; TARGET_MAX]).is_ok());
    assert_eq!(Target::new(vec![b'x'; TARGET_MAX + 1]), Err(WireError::TooLong { limit: TARGET_MAX }));
    assert_eq!(Target::new(""), Err(WireError::Malformed("target")));
    assert_eq!(Target::new("a\0"), Err(WireError::Malformed("target")));
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
fn as_many_numbers_as_are_given_at_once_fit_into_a_frame() {
    let proofs = vec![[9; NODE_PROOF_BYTES]; usize::from(NUMBERS_MAX)];
    let numbers = Some(Numbers { first: InodeId(1), proofs });
    assert!(Response::Leads { lease: None, before: None, numbers }.encode(0).is_ok());
}

#[test]
fn the_largest_attribute_and_the_longest_list_fit_into_a_frame() {
    let name = XattrName::new(vec![b'x'; XATTR_NAME_MAX]).unwrap();
    let value = XattrValue::new(vec![0; XATTR_VALUE_MAX]).unwrap();
    let node = Node::ROOT;
    assert!(Request::SetXattr { node, name: name.clone(), value, mode: XattrMode::Set }.encode(0).is_ok());
    assert!(Response::Xattrs { names: vec![name; usize::from(XATTRS_MAX)] }.encode(0).is_ok());
}
