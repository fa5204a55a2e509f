//! Requests and responses that address nodes, a seed for each row.

use sealstone_mds_protocol::{
    Access, ChangeRequest, ClientId, CreateOp, DirLeaseId, ErrorCode, Failure, InodeId, InodeLease,
    InodeRange, LOCK_TO_END, LeaseKind, LinkTarget, Lock, LockKind, Method, NameChange, Node, NodeChange,
    NodeKind, NodeLease, OpenHandle, OpenedNode, Recall, RenameMode, RenameOp, Request, RequestId, Response,
    SetTime, UnlinkOp, XattrMode, XattrName, XattrValue,
};

use super::{group, layouts, name, stat, user};

pub(super) const NODE: Node = Node { inode: InodeId(7), proof: [9; 8] };
const CLIENT: ClientId = ClientId { number: 3 };

fn attribute() -> XattrName {
    XattrName::new("user.a").expect("a proper name")
}

fn target() -> LinkTarget {
    LinkTarget::new("../b/c").expect("a proper target")
}

fn lock(kind: LockKind) -> Lock {
    Lock { kind, whole: false, start: 4, end: LOCK_TO_END, owner: 5, pid: 6 }
}

fn make(what: NodeKind) -> Request {
    // The root needs no proof, so that inputs mutated from this seed reach the handlers.
    let (parent, owner, group) = (Node::ROOT, None, Some(group("staff")));
    let client_id = Some(CLIENT);
    Request::MakeNode { parent, name: name("f"), what, mode: 0o666, umask: 0o022, owner, group, client_id }
}

/// One change of each kind.
fn name_changes() -> Vec<NameChange> {
    let there = DirLeaseId { inode: Node::ROOT.inode, epoch: 7, lease: 2 };
    let (inode, at_ms) = (InodeId(9), 5);
    let made = CreateOp {
        directory: there,
        name: name("f"),
        inode,
        what: NodeKind::File,
        mode: 0o666,
        umask: 0o022,
        owner: None,
        group: Some(group("staff")),
        at_ms,
        held: true,
    };
    let renamed = RenameOp {
        from_directory: there,
        from: name("f"),
        inode,
        to_directory: there,
        to: name("g"),
        replaced: None,
        at_ms,
        close: false,
    };
    let removed = UnlinkOp { directory: there, name: name("g"), inode, at_ms, close: true };
    let close = NameChange::Close(InodeId(10));
    vec![NameChange::Create(made), NameChange::Rename(renamed), NameChange::Unlink(removed), close]
}

/// A request of every row.
pub(super) fn requests() -> Vec<Request> {
    let (node, parent, client_id, method) = (NODE, Node::ROOT, CLIENT, Method::AllData);
    let change = NodeChange {
        mode: Some(0o600),
        owner: Some(user("bob")),
        group: Some(None),
        size: Some(9),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(-1)),
    };
    let once = ChangeRequest::new(Request::RemoveNode { parent, name: name("f"), directory: false });
    let once = once.expect("it changes names");
    let ahead = ChangeRequest::new(Request::NameBatch { changes: name_changes() }).expect("it changes names");
    vec![
        Request::RenewGrants { handle: OpenHandle::Node { node, access: Access::Update, client_id }, method },
        Request::Lookup { parent, name: name("f"), client_id: Some(client_id) },
        Request::GetNode { node },
        Request::ReadNodes { directory: parent, after: Some(name("a")), limit: 9, client_id: None },
        make(NodeKind::File),
        make(NodeKind::Symlink(target())),
        make(NodeKind::CharDevice(0x103)),
        Request::LinkNode { node, parent, name: name("g") },
        Request::RemoveNode { parent, name: name("g"), directory: true },
        Request::RenameNode {
            from_parent: parent,
            from: name("a"),
            to_parent: Node::ROOT,
            to: name("b"),
            mode: RenameMode::Exchange,
        },
        Request::SetNode { node, change, client_id: Some(client_id), through: true },
        Request::SetNode { node, change: NodeChange::default(), client_id: None, through: false },
        Request::ReadLink { node },
        Request::OpenNode { node, access: Access::Update, method, client_id, reclaim: true },
        Request::Allocate { node, size_hint: Some(1 << 20), method, client_id },
        Request::Written {
            node,
            size_at_least: 4096,
            mtime_ns: Some(1),
            generation: 2,
            made: true,
            fit: true,
            client_id,
        },
        Request::CloseNode { node, client_id },
        Request::GetXattr { node, name: attribute() },
        Request::SetXattr {
            node: parent,
            name: attribute(),
            value: XattrValue::new("v").expect("a short value"),
            mode: XattrMode::Create,
        },
        Request::ListXattr { node },
        Request::RemoveXattr { node, name: attribute() },
        Request::StatFs { node: Some(node) },
        Request::KeepNodes { client_id },
        Request::EndClient { client_id },
        Request::LockNode { node, client_id, lock: lock(LockKind::Write), test: false, reclaim: true },
        Request::UnlockNode { node, client_id, owner: 5 },
        Request::Recalls { client_id, epoch: 7, known: 8, wait_ms: 0 },
        Request::LeaseNode { node, client_id, kind: LeaseKind::Write },
        Request::ReturnLease { inode: node.inode, client_id, number: 9 },
        Request::DelegateDir { directory: Some(node), client_id, numbers: 64 },
        Request::NameBatch { changes: name_changes() },
        Request::Once { id: RequestId { client_id, slot: 4, sequence: 9 }, request: ahead },
        Request::Once { id: RequestId { client_id, slot: 3, sequence: 9 }, request: once },
    ]
}

/// A response of every row.
pub(super) fn responses() -> Vec<Response> {
    let layout = layouts().into_iter().next();
    let lease = NodeLease { kind: LeaseKind::Read, number: 2, epoch: 3 };
    vec![
        Response::Renamed { moved: stat(), other: Some(stat()) },
        Response::Target { target: target() },
        Response::NodeOpened {
            node: OpenedNode {
                stat: stat(),
                layout,
                grants: Vec::new(),
                made: true,
                sparse: false,
                held_until_ms: 5,
                lease: Some(lease),
            },
        },
        Response::Made { stat: stat(), lease },
        Response::LookedUp { stat: Some(stat()), directory: Some(lease), lease: None },
        Response::Listed { entries: Vec::new(), more: true, lease },
        Response::Leased { stat: stat(), lease: Some(lease) },
        Response::Recalls {
            epoch: 3,
            lease_ms: 4,
            last: 5,
            recalls: vec![Recall { inode: InodeId(7), number: 2 }],
        },
        Response::DirDelegated {
            lease: Some(lease),
            before: Some(1),
            numbers: Some(InodeRange { first: InodeId(9), proofs: vec![[8; 8]; 2] }),
        },
        Response::NameBatchApplied {
            done: 1,
            leases: vec![InodeLease { inode: InodeId(9), lease }],
            failure: Some(Failure::new(ErrorCode::Fenced, "f")),
        },
        Response::Xattr { value: XattrValue::new("v").expect("a short value") },
        Response::Xattrs { names: vec![attribute(); 2] },
        Response::FileSystem { total: 1, used: 2, nodes: 3, nodes_free: 4 },
        Response::Kept { held: 1, until_ms: 2 },
        Response::Locked { conflict: Some(lock(LockKind::Read)) },
    ]
}
