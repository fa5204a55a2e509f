//! Requests and responses that address nodes: a seed for each row, and byte strings of nodes.

use sealstone_mds_protocol::{
    Access, AheadIn, Change, ErrorCode, Failure, Handle, HolderId, InodeId, LOCK_TO_END, Lease, LeaseKind,
    LeaseOn, Lock, LockKind, MadeAhead, Method, NameChange, Node, NodeChange, NodeKind, Numbers, OpenedNode,
    Recall, RemovedAhead, RenameMode, RenamedAhead, Request, Response, SetTime, Target, Turn, XattrMode,
    XattrName, XattrValue,
};

use super::{group, layouts, name, stat, user};

pub(super) const NODE: Node = Node { inode: InodeId(7), proof: [9; 8] };
const HOLDER: HolderId = HolderId { number: 3 };

fn attribute() -> XattrName {
    XattrName::new("user.a").expect("a proper name")
}

fn target() -> Target {
    Target::new("../b/c").expect("a proper target")
}

fn lock(kind: LockKind) -> Lock {
    Lock { kind, whole: false, start: 4, end: LOCK_TO_END, owner: 5, pid: 6 }
}

fn make(what: NodeKind) -> Request {
    // The root needs no proof, so that what grows from this seed gets as far as a server does.
    let (parent, owner, group) = (Node::ROOT, None, Some(group("staff")));
    let holder = Some(HOLDER);
    Request::MakeNode { parent, name: name("f"), what, mode: 0o666, umask: 0o022, owner, group, holder }
}

/// One of each kind.
fn name_changes() -> Vec<NameChange> {
    let there = AheadIn { inode: Node::ROOT.inode, era: 7, lease: 2 };
    let (inode, at_ms) = (InodeId(9), 5);
    let made = MadeAhead {
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
    let renamed = RenamedAhead {
        from_directory: there,
        from: name("f"),
        inode,
        to_directory: there,
        to: name("g"),
        replaced: None,
        at_ms,
        let_go: false,
    };
    let removed = RemovedAhead { directory: there, name: name("g"), inode, at_ms, let_go: true };
    let let_go = NameChange::LetGo(InodeId(10));
    vec![NameChange::Made(made), NameChange::Renamed(renamed), NameChange::Removed(removed), let_go]
}

/// A request of every row.
pub(super) fn requests() -> Vec<Request> {
    let (node, parent, holder, method) = (NODE, Node::ROOT, HOLDER, Method::AllData);
    let change = NodeChange {
        mode: Some(0o600),
        owner: Some(user("bob")),
        group: Some(None),
        size: Some(9),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(-1)),
    };
    let once = Change::new(Request::RemoveNode { parent, name: name("f"), directory: false });
    let once = once.expect("it changes names");
    let ahead = Change::new(Request::ChangeNames { changes: name_changes() }).expect("it changes names");
    vec![
        Request::RenewGrants { handle: Handle::Node { node, access: Access::Update, holder }, method },
        Request::Lookup { parent, name: name("f"), holder: Some(holder) },
        Request::GetNode { node },
        Request::ReadNodes { directory: parent, after: Some(name("a")), limit: 9, holder: None },
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
        Request::SetNode { node, change, holder: Some(holder), through: true },
        Request::SetNode { node, change: NodeChange::default(), holder: None, through: false },
        Request::ReadLink { node },
        Request::OpenNode { node, access: Access::Update, method, holder, again: true },
        Request::Allocate { node, size_hint: Some(1 << 20), method, holder },
        Request::Written {
            node,
            size_at_least: 4096,
            mtime_ns: Some(1),
            generation: 2,
            made: true,
            fit: true,
            holder,
        },
        Request::CloseNode { node, holder },
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
        Request::KeepNodes { holder },
        Request::EndHolder { holder },
        Request::LockNode { node, holder, lock: lock(LockKind::Write), test: false, again: true },
        Request::UnlockNode { node, holder, owner: 5 },
        Request::Recalls { holder, era: 7, known: 8, wait_ms: 0 },
        Request::LeaseNode { node, holder, kind: LeaseKind::Write },
        Request::ReturnLease { inode: node.inode, holder, number: 9 },
        Request::LeadNames { directory: Some(node), holder, numbers: 64 },
        Request::ChangeNames { changes: name_changes() },
        Request::Once { turn: Turn { holder, place: 4, number: 9 }, change: ahead },
        Request::Once { turn: Turn { holder, place: 3, number: 9 }, change: once },
    ]
}

/// A response of every row.
pub(super) fn responses() -> Vec<Response> {
    let layout = layouts().into_iter().next();
    let lease = Lease { kind: LeaseKind::Read, number: 2, era: 3 };
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
            era: 3,
            believed_ms: 4,
            last: 5,
            recalls: vec![Recall { inode: InodeId(7), number: 2 }],
        },
        Response::Leads {
            lease: Some(lease),
            before: Some(1),
            numbers: Some(Numbers { first: InodeId(9), proofs: vec![[8; 8]; 2] }),
        },
        Response::NamesChanged {
            done: 1,
            leases: vec![LeaseOn { inode: InodeId(9), lease }],
            failure: Some(Failure::new(ErrorCode::Fenced, "f")),
        },
        Response::Xattr { value: XattrValue::new("v").expect("a short value") },
        Response::Xattrs { names: vec![attribute(); 2] },
        Response::FileSystem { total: 1, used: 2, nodes: 3, nodes_free: 4 },
        Response::Kept { held: 1, until_ms: 2 },
        Response::Locked { conflict: Some(lock(LockKind::Read)) },
    ]
}
