//! Extended attributes.

use sealstone_mds_protocol::{
    ErrorCode, Node, Request, Response, XATTR_BYTES_MAX, XATTR_VALUE_MAX, XATTRS_MAX, XattrMode, XattrName,
    XattrValue,
};

use super::super::world::{ADMIN, ALICE, BOB, World};
use super::remove;
use crate::open_files::CLIENT_TIMEOUT_MS;

fn xattr(text: &str) -> XattrName {
    XattrName::new(text).unwrap()
}

fn set_xattr(node: Node, at: &str, value: Vec<u8>, mode: XattrMode) -> Request {
    Request::SetXattr { node, name: xattr(at), value: XattrValue::new(value).unwrap(), mode }
}

#[test]
fn xattrs_are_separated_by_namespace() {
    let mut world = World::with_devices(1);
    let file = world.file(ALICE, "f");
    let (bobs, admins) = (world.node(BOB, file.inode), world.node(ADMIN, file.inode));
    let get = |node, at: &str| Request::GetXattr { node, name: xattr(at) };
    assert_eq!(world.refused(ALICE, get(file, "user.a")), ErrorCode::NoAttribute);
    assert_eq!(
        world.refused(ALICE, set_xattr(file, "user.a", vec![1], XattrMode::Replace)),
        ErrorCode::NoAttribute
    );
    assert_eq!(world.ask(ALICE, set_xattr(file, "user.a", vec![1], XattrMode::Create)), Response::Done {});
    assert_eq!(
        world.refused(ALICE, set_xattr(file, "user.a", vec![1], XattrMode::Create)),
        ErrorCode::Exists
    );
    world.ask(ALICE, set_xattr(file, "user.a", vec![2, 0], XattrMode::Replace));
    assert_eq!(
        world.ask(BOB, get(bobs, "user.a")),
        Response::Xattr { value: XattrValue::new([2, 0]).unwrap() }
    );
    assert_eq!(world.refused(BOB, set_xattr(bobs, "user.b", vec![], XattrMode::Set)), ErrorCode::Denied);
    for at in ["trusted.t", "security.s"] {
        assert_eq!(
            world.refused(ALICE, set_xattr(file, at, vec![3], XattrMode::Set)),
            ErrorCode::NotPermitted
        );
        assert_eq!(world.ask(ADMIN, set_xattr(admins, at, vec![3], XattrMode::Set)), Response::Done {});
    }
    assert_eq!(world.refused(ALICE, get(file, "trusted.t")), ErrorCode::NoAttribute);
    assert!(matches!(world.ask(BOB, get(bobs, "security.s")), Response::Xattr { .. }));
    for at in ["system.posix_acl", "user", "user.", "other.x"] {
        assert_eq!(
            world.refused(ALICE, set_xattr(file, at, vec![], XattrMode::Set)),
            ErrorCode::NotSupported
        );
    }
    assert_eq!(
        world.refused(ADMIN, set_xattr(admins, "sealstone.version", vec![], XattrMode::Set)),
        ErrorCode::NotPermitted
    );
    let list = |world: &mut World, caller, node| match world.ask(caller, Request::ListXattr { node }) {
        Response::Xattrs { names } => names,
        other => panic!("{other:?}"),
    };
    assert_eq!(list(&mut world, ALICE, file), [xattr("security.s"), xattr("user.a")]);
    assert_eq!(list(&mut world, ADMIN, admins).len(), 3);
    world.write(ALICE, file, 9);
    assert_eq!(
        world.ask(BOB, get(bobs, "sealstone.layout")),
        Response::Xattr { value: XattrValue::new("single").unwrap() }
    );
    assert_eq!(
        world.ask(BOB, get(bobs, "sealstone.method")),
        Response::Xattr { value: XattrValue::new("cmdrsp").unwrap() }
    );
    assert_eq!(
        world.ask(ALICE, Request::RemoveXattr { node: file, name: xattr("user.a") }),
        Response::Done {}
    );
    assert_eq!(
        world.refused(ALICE, Request::RemoveXattr { node: file, name: xattr("user.a") }),
        ErrorCode::NoAttribute
    );
    world.node_stat(ALICE, remove(Node::ROOT, "f"));
    while world.mds.tidy(world.now + 10 * CLIENT_TIMEOUT_MS).unwrap() {}
    assert_eq!((world.records(b'y'), world.records(b'i')), (0, 1));
}

#[test]
fn xattr_space_is_bounded() {
    let mut world = World::with_devices(1);
    let (many, large) = (world.file(ALICE, "many"), world.file(ALICE, "large"));
    for i in 0..XATTRS_MAX {
        let set = set_xattr(many, &format!("user.{i}"), vec![1], XattrMode::Set);
        assert_eq!(world.ask(ALICE, set), Response::Done {});
    }
    assert_eq!(
        world.refused(ALICE, set_xattr(many, "user.more", vec![], XattrMode::Set)),
        ErrorCode::NoSpace
    );
    assert_eq!(world.ask(ALICE, set_xattr(many, "user.0", vec![1, 2], XattrMode::Set)), Response::Done {});
    let whole = XATTR_BYTES_MAX as usize / XATTR_VALUE_MAX;
    for i in 0..whole {
        let set = set_xattr(large, &format!("user.{i}"), vec![7; XATTR_VALUE_MAX], XattrMode::Set);
        assert_eq!(world.ask(ALICE, set), Response::Done {});
    }
    let names: usize = (0..whole).map(|i| format!("user.{i}").len()).sum();
    let left = XATTR_BYTES_MAX as usize - whole * XATTR_VALUE_MAX - names - "user.x".len();
    assert_eq!(
        world.refused(ALICE, set_xattr(large, "user.x", vec![0; left + 1], XattrMode::Set)),
        ErrorCode::NoSpace
    );
    assert_eq!(
        world.ask(ALICE, set_xattr(large, "user.x", vec![0; left], XattrMode::Set)),
        Response::Done {}
    );
}
