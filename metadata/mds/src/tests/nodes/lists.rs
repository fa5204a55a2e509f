//! Access control lists.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    ACL_ACCESS, ACL_DEFAULT, Access, ErrorCode, Node, NodeChange, NodeKind, Request, Response, UserName,
    XattrMode, XattrName, XattrValue,
};

use super::super::world::{ADMIN, ALICE, BOB, World, path};
use super::{CLIENT, make, open, target};

fn set(node: Node, which: &str, text: &str, mode: XattrMode) -> Request {
    let value = XattrValue::new(text).unwrap();
    Request::SetXattr { node, name: XattrName::new(which).unwrap(), value, mode }
}

fn remove(node: Node, which: &str) -> Request {
    Request::RemoveXattr { node, name: XattrName::new(which).unwrap() }
}

impl World {
    fn list(&mut self, caller: SessionId, node: Node, which: &str) -> Result<String, ErrorCode> {
        match self.ask(caller, Request::GetXattr { node, name: XattrName::new(which).unwrap() }) {
            Response::Xattr { value } => Ok(String::from_utf8(value.as_bytes().to_vec()).unwrap()),
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    fn opens(&mut self, caller: SessionId, node: Node, access: Access) -> bool {
        let opened = self.ask(caller, open(node, access));
        let closed = Request::CloseNode { node, client_id: CLIENT };
        match opened {
            Response::NodeOpened { .. } => matches!(self.ask(caller, closed), Response::Kept { .. }),
            Response::Failed { failure } => {
                assert_eq!(failure.code, ErrorCode::Denied);
                false
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn acl_entries_are_limited_by_mask() {
    let mut world = World::logged(1).0;
    let stat = world.make(ALICE, Node::ROOT, "f", NodeKind::File, 0o600);
    let (file, bobs) = (stat.node(), world.node(BOB, stat.inode));
    let chmod = |mode| {
        let change = NodeChange { mode: Some(mode), ..NodeChange::default() };
        Request::SetNode { node: file, change, client_id: None, through: false }
    };
    assert_eq!(world.list(BOB, bobs, ACL_ACCESS), Err(ErrorCode::NoAttribute));
    assert!(!world.opens(BOB, bobs, Access::Read));
    let text = "user::rw-,user:bob:rw-,group::---,mask::rw-,other::---";
    assert_eq!(world.refused(BOB, set(bobs, ACL_ACCESS, text, XattrMode::Set)), ErrorCode::NotPermitted);
    assert_eq!(world.refused(ALICE, set(file, ACL_ACCESS, text, XattrMode::Replace)), ErrorCode::NoAttribute);
    assert_eq!(world.ask(ALICE, set(file, ACL_ACCESS, text, XattrMode::Create)), Response::Done {});
    assert_eq!(world.refused(ALICE, set(file, ACL_ACCESS, text, XattrMode::Create)), ErrorCode::Exists);
    assert_eq!(world.list(BOB, bobs, ACL_ACCESS).as_deref(), Ok(text));
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).mode, 0o660);
    let Response::Xattrs { names } = world.ask(BOB, Request::ListXattr { node: bobs }) else { panic!() };
    assert_eq!(names, [XattrName::new(ACL_ACCESS).unwrap()]);
    assert!(world.opens(BOB, bobs, Access::Update));
    // The group bits of a mode are the mask.
    world.node_stat(ALICE, chmod(0o640));
    assert_eq!(
        world.list(ALICE, file, ACL_ACCESS).unwrap(),
        "user::rw-,user:bob:rw-,group::---,mask::r--,other::---"
    );
    assert!(world.opens(BOB, bobs, Access::Read) && !world.opens(BOB, bobs, Access::Update));
    // Without the list they are the group's bits again, which were zero.
    assert_eq!(world.refused(BOB, remove(bobs, ACL_ACCESS)), ErrorCode::NotPermitted);
    assert_eq!(world.ask(ALICE, remove(file, ACL_ACCESS)), Response::Done {});
    assert_eq!(world.refused(ALICE, remove(file, ACL_ACCESS)), ErrorCode::NoAttribute);
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).mode, 0o600);
    assert!(!world.opens(BOB, bobs, Access::Read));
    // A list that a mode can express is stored as a mode.
    let plain = "user::rw-,group::r--,other::r--";
    assert_eq!(world.ask(ALICE, set(file, ACL_ACCESS, plain, XattrMode::Set)), Response::Done {});
    assert_eq!(world.node_stat(ALICE, Request::GetNode { node: file }).mode, 0o644);
    assert_eq!(world.list(ALICE, file, ACL_ACCESS), Err(ErrorCode::NoAttribute));
}

#[test]
fn invalid_acl_is_refused() {
    let mut world = World::logged(1).0;
    let file = world.file(ALICE, "f");
    let link = world.make(ALICE, Node::ROOT, "l", NodeKind::Symlink(target("f")), 0).node();
    let plain = "user::rw-,group::r--,other::r--";
    for text in ["", "user::rw-", "user::rw-,user:bob:r--,group::r--,other::r--", "\u{ff}"] {
        assert_eq!(world.refused(ALICE, set(file, ACL_ACCESS, text, XattrMode::Set)), ErrorCode::Invalid);
    }
    assert_eq!(world.refused(ALICE, set(file, ACL_DEFAULT, plain, XattrMode::Set)), ErrorCode::Denied);
    assert_eq!(world.refused(ALICE, set(link, ACL_ACCESS, plain, XattrMode::Set)), ErrorCode::NotSupported);
}

#[test]
fn acl_refuses_unknown_names() {
    let mut world = World::logged(1).0;
    let file = world.file(ALICE, "f");
    let list = |names: &str| format!("user::rw-,{names}group::r--,mask::r--,other::---");
    let lists = |names: &str| set(file, ACL_ACCESS, &list(names), XattrMode::Set);
    for names in ["user:carol:r--,", "user:bob:r--,user:carol:r--,"] {
        assert_eq!(world.refused(ALICE, lists(names)), ErrorCode::NotFound, "{names}");
    }
    let groups = "user::rw-,group::r--,group:dev:r--,mask::r--,other::---";
    assert_eq!(world.refused(ALICE, set(file, ACL_ACCESS, groups, XattrMode::Set)), ErrorCode::NotFound);
    assert_eq!(world.list(ALICE, file, ACL_ACCESS), Err(ErrorCode::NoAttribute));
    // Numeric names belong to no account.
    let numbers = "user::rw-,user:uid-7:r--,group::r--,group:gid-7:r--,mask::r--,other::---";
    assert_eq!(world.ask(ALICE, set(file, ACL_ACCESS, numbers, XattrMode::Set)), Response::Done {});
    assert_eq!(world.ask(ALICE, lists("user:bob:r--,")), Response::Done {});
    // An entry of a removed account can be kept.
    world.ask(ADMIN, Request::UserRemove { name: UserName::new("bob").unwrap() });
    assert_eq!(world.ask(ALICE, lists("user:alice:r--,user:bob:r--,")), Response::Done {});
    assert_eq!(world.ask(ALICE, lists("")), Response::Done {});
    assert_eq!(world.refused(ALICE, lists("user:bob:r--,")), ErrorCode::NotFound);
}

#[test]
fn new_nodes_inherit_default_acl() {
    let mut world = World::logged(1).0;
    let directory = world.make(ALICE, Node::ROOT, "d", NodeKind::Directory, 0o755).node();
    let text = "user::rwx,user:bob:rwx,group::r-x,mask::rwx,other::---";
    assert_eq!(world.ask(ALICE, set(directory, ACL_DEFAULT, text, XattrMode::Set)), Response::Done {});
    assert_eq!(world.list(ALICE, directory, ACL_ACCESS), Err(ErrorCode::NoAttribute));
    let made = |parent, at, what, bits, mask| match make(parent, at, what, bits) {
        Request::MakeNode { parent, name, what, mode, owner, group, client_id, .. } => {
            Request::MakeNode { parent, name, what, mode, umask: mask, owner, group, client_id }
        }
        other => other,
    };
    // The umask applies only without a default list.
    let file = world.node_stat(ALICE, made(directory, "f", NodeKind::File, 0o666, 0o077));
    assert_eq!(file.mode, 0o660);
    assert_eq!(
        world.list(ALICE, file.node(), ACL_ACCESS).unwrap(),
        "user::rw-,user:bob:rwx,group::r-x,mask::rw-,other::---"
    );
    let bobs = world.node(BOB, file.inode);
    assert!(world.opens(BOB, bobs, Access::Update));
    let below = world.node_stat(ALICE, made(directory, "e", NodeKind::Directory, 0o700, 0));
    assert_eq!((below.mode, world.list(ALICE, below.node(), ACL_DEFAULT).as_deref()), (0o700, Ok(text)));
    let plain = world.node_stat(ALICE, made(Node::ROOT, "f", NodeKind::File, 0o4666, 0o027));
    assert_eq!(plain.mode, 0o4640);
    // By path too.
    let request = Request::MakeDir { path: path("/d/g/h"), parents: true, mode: 0o755 };
    let Response::Stat { stat } = world.ask(ALICE, request) else { panic!() };
    assert_eq!((stat.mode, world.list(ALICE, stat.node(), ACL_DEFAULT).as_deref()), (0o750, Ok(text)));
}
