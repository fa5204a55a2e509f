//! Replay cache.

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    Access, ChangeRequest, ClientId, ErrorCode, Method, Node, NodeChange, NodeKind, Request, RequestId,
    Response, SLOTS_MAX,
};

use super::nodes::{make, name};
use super::world::{ADMIN, ALICE, BOB, World};
use crate::limits::REPLAY_MS;
use crate::replay_cache::{ANSWERS_BY_USER_MAX, REPLAY_CROWDED_MS};
use crate::{Config, Mds};

const CLIENT: ClientId = ClientId { number: 5 };

fn turn(place: u16, number: u64) -> RequestId {
    RequestId { client_id: CLIENT, slot: place, sequence: number }
}

fn once(turn: RequestId, request: Request) -> Request {
    Request::Once { id: turn, request: ChangeRequest::new(request).unwrap() }
}

fn directory(at: &str) -> Request {
    make(Node::ROOT, at, NodeKind::Directory, 0o755)
}

fn remove(at: &str) -> Request {
    Request::RemoveNode { parent: Node::ROOT, name: name(at), directory: true }
}

fn code(response: &Response) -> Option<ErrorCode> {
    match response {
        Response::Failed { failure } => Some(failure.code),
        _ => None,
    }
}

impl World {
    fn is_there(&mut self, caller: SessionId, at: &str) -> bool {
        let found = self.ask(caller, Request::Lookup { parent: Node::ROOT, name: name(at), client_id: None });
        matches!(found, Response::Stat { .. })
    }
}

#[test]
fn repeated_request_returns_stored_answer() {
    let mut world = World::empty();
    let asked = once(turn(0, 1), directory("d"));
    let first = world.ask(ADMIN, asked.clone());
    assert!(matches!(first, Response::Stat { .. }), "{first:?}");
    assert_eq!(world.ask(ADMIN, asked.clone()), first, "with the proof, too");
    // Another client has removed it since.
    assert_eq!(code(&world.ask(ADMIN, remove("d"))), None);
    assert_eq!(world.ask(ADMIN, asked), first);
    assert!(!world.is_there(ADMIN, "d"), "nothing was done");
    // Without a request id it is a new request.
    assert_eq!(code(&world.ask(ADMIN, directory("d"))), None);
    assert_eq!(code(&world.ask(ADMIN, once(turn(0, 2), directory("d")))), Some(ErrorCode::Exists));
}

#[test]
fn refused_request_is_checked_again() {
    let mut world = World::empty();
    let asked = once(turn(0, 1), remove("d"));
    assert_eq!(code(&world.ask(ADMIN, asked.clone())), Some(ErrorCode::NotFound));
    world.ask(ADMIN, directory("d"));
    assert_eq!(code(&world.ask(ADMIN, asked.clone())), None);
    assert_eq!(code(&world.ask(ADMIN, asked)), None, "remembered now");
}

#[test]
fn lower_sequence_number_is_stale() {
    let mut world = World::empty();
    world.ask(ADMIN, once(turn(3, 9), directory("later")));
    let late = world.ask(ADMIN, once(turn(3, 8), directory("late")));
    assert_eq!(code(&late), Some(ErrorCode::Stale));
    assert!(!world.is_there(ADMIN, "late"));
    assert_eq!(code(&world.ask(ADMIN, once(turn(4, 8), directory("late")))), None, "another place");
}

#[test]
fn stored_answers_are_separate_per_user() {
    let mut world = World::empty();
    world.ask(ADMIN, Request::SetMode { path: super::world::path("/"), mode: 0o777 });
    let asked = once(turn(0, 1), directory("d"));
    let hers = world.ask(ALICE, asked.clone());
    assert!(matches!(hers, Response::Stat { .. }), "{hers:?}");
    assert_eq!(code(&world.ask(BOB, asked)), Some(ErrorCode::Exists), "his own change, judged by itself");
}

/// The answer to another request would grant a right to its node.
#[test]
fn sequence_number_is_valid_for_one_request() {
    let mut world = World::with_accounts(1);
    world.ask(ADMIN, Request::SetMode { path: super::world::path("/"), mode: 0o777 });
    let secret = world.ask(ALICE, make(Node::ROOT, "secret", NodeKind::File, 0o600));
    assert!(matches!(secret, Response::Stat { .. }), "{secret:?}");
    let Response::Stat { stat } =
        world.ask(BOB, Request::Lookup { parent: Node::ROOT, name: name("secret"), client_id: None })
    else {
        panic!("the directory may be listed");
    };
    let link = Request::LinkNode { node: stat.node(), parent: Node::ROOT, name: name("link") };
    let linked = world.ask(BOB, once(turn(0, 1), link));
    let held = |at: &str| Request::MakeNode {
        parent: Node::ROOT,
        name: name(at),
        what: NodeKind::File,
        mode: 0o600,
        umask: 0,
        owner: None,
        group: None,
        client_id: Some(CLIENT),
    };
    if matches!(linked, Response::Stat { .. }) {
        let other = world.ask(BOB, once(turn(0, 1), held("other")));
        assert_eq!(code(&other), Some(ErrorCode::Invalid));
    }
    let (access, method) = (Access::Update, Method::AllData);
    let open = Request::OpenNode { node: stat.node(), access, method, client_id: CLIENT, reclaim: false };
    assert_eq!(code(&world.ask(BOB, open)), Some(ErrorCode::Denied));
    // A repeated create does not open the file if it belongs to another user now.
    let mine = once(turn(1, 2), held("mine"));
    let Response::Stat { stat } = world.ask(BOB, mine.clone()) else { panic!("made") };
    world.ask(BOB, Request::CloseNode { node: stat.node(), client_id: CLIENT });
    let owner = Some(super::world::user("alice"));
    let change = NodeChange { owner, ..NodeChange::default() };
    let node = world.node(ADMIN, stat.inode);
    let given = world.ask(ADMIN, Request::SetNode { node, change, client_id: None, through: false });
    assert_eq!(code(&given), None, "{given:?}");
    assert_eq!(code(&world.ask(BOB, mine)), None);
    let open = Request::OpenNode { node: stat.node(), access, method, client_id: CLIENT, reclaim: false };
    assert_eq!(code(&world.ask(BOB, open)), Some(ErrorCode::Denied));
}

#[test]
fn stored_answers_survive_restart_and_are_shared() {
    let mut world = World::empty();
    let asked = once(turn(0, 1), directory("d"));
    let first = world.ask(ADMIN, asked.clone());
    world.ask(ADMIN, remove("d"));
    world.restart();
    assert_eq!(world.ask(ADMIN, asked.clone()), first);
    let other = Mds::open(std::sync::Arc::new(world.disk.clone()), Config::default()).unwrap();
    world.mds = other;
    world.session(ADMIN, "admin", true);
    assert_eq!(world.ask(ADMIN, asked), first);
    assert!(!world.is_there(ADMIN, "d"));
}

#[test]
fn stored_answers_are_bounded_and_expire() {
    let mut world = World::empty();
    let outside = once(turn(SLOTS_MAX, 1), directory("d"));
    assert_eq!(code(&world.ask(ADMIN, outside)), Some(ErrorCode::Invalid));
    world.ask(ADMIN, directory("d"));
    let name = name("d");
    let key = sealstone_mds_protocol::XattrName::new("user.k").unwrap();
    let value = sealstone_mds_protocol::XattrValue::new("v").unwrap();
    let Response::Stat { stat } =
        world.ask(ADMIN, Request::Lookup { parent: Node::ROOT, name, client_id: None })
    else {
        panic!("it is there");
    };
    let mode = sealstone_mds_protocol::XattrMode::Set;
    let set = Request::SetXattr { node: stat.node(), name: key, value, mode };
    let ask = |world: &mut World, number: u64| {
        let client_id = ClientId { number: number / u64::from(SLOTS_MAX) };
        let place = (number % u64::from(SLOTS_MAX)) as u16;
        code(&world.ask(ADMIN, once(RequestId { client_id, slot: place, sequence: 1 }, set.clone())))
    };
    // Refusals take no space.
    for number in 0..ANSWERS_BY_USER_MAX as u64 + 9 {
        let client_id = ClientId { number: u64::MAX - number };
        let exists = world.ask(ADMIN, once(RequestId { client_id, slot: 0, sequence: 1 }, directory("d")));
        assert_eq!(code(&exists), Some(ErrorCode::Exists));
    }
    for number in 0..ANSWERS_BY_USER_MAX as u64 {
        assert_eq!(ask(&mut world, number), None);
    }
    assert_eq!(ask(&mut world, 1 << 20), Some(ErrorCode::Busy), "no room for another one");
    assert_eq!(ask(&mut world, 7), None, "places that there are stay good");
    // The scan counts the same number.
    world.mds.tidy_memory(world.now);
    assert_eq!(ask(&mut world, 1 << 20), Some(ErrorCode::Busy));
    // Beyond half of the maximum, answers are kept for an hour.
    let later = world.now + REPLAY_CROWDED_MS + 1;
    world.mds.tidy_memory(later);
    assert_eq!(ask(&mut world, 1 << 20), None);
    let prefix = crate::keys::answers();
    let left = world.mds.store.snapshot().unwrap().scan(&prefix, &crate::keys::after_prefix(&prefix), 9);
    assert_eq!(left.unwrap().len(), 1);
    world.mds.tidy_memory(later + REPLAY_MS);
    assert_eq!(ask(&mut world, 5), None, "there is room");
    let none = world.mds.store.snapshot().unwrap().scan(&prefix, &crate::keys::after_prefix(&prefix), 9);
    assert_eq!(none.unwrap().len(), 1, "only the last one");
}
