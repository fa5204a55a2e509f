//! The right to execute function files, and copies of their code.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealstone_mds_protocol::{
    Access, CreatedFile, DeviceId, ErrorCode, IssueKind, Layout, Method, OpenHandle, OpenedFile, QuotaChange,
    QuotaSubject, ReceiptBytes, ReceiptVerdict, Request, Response, Role,
};
use sealstone_osd::capability::Range;
use sealstone_osd::function::attributes::{ALLOWED_CODE, POLICY};
use sealstone_osd::{
    AttributeId, Capability, CapabilityBytes, Descriptor, Generation, ObjectId, Permissions, SecurityMethod,
};
use sealstone_seal::{FunctionReceipt, ReceiptLimits};

use super::world::{ADMIN, ALICE, BOB, World, create, path};
use crate::Mds;
use crate::namespace::{ENDED_RESULTS_PER_USER_MAX, RESULTS_PER_USER_MAX};

const METHOD: Method = Method::AllData;
const CODE_BYTES: u64 = 10_000;

fn parsed(bytes: &[u8]) -> Capability {
    CapabilityBytes::new(Generation::Osd2, bytes).unwrap().parse().unwrap()
}

fn open(at: &str, access: Access) -> Request {
    Request::Open { path: path(at), access, method: METHOD }
}

fn copy(at: &str, device: DeviceId) -> Request {
    Request::CopyFunction { path: path(at), device, method: METHOD }
}

impl World {
    /// Creates a world with a function file of alice at `/fn` that has this mode.
    fn with_function(devices: u8, mode: u16) -> Self {
        let mut world = Self::with_accounts(devices);
        world.put(ALICE, "/fn", CODE_BYTES);
        world.ask(ALICE, Request::SetMode { path: path("/fn"), mode });
        world
    }

    fn open_ok(&mut self, caller: [u8; 16], at: &str, access: Access) -> OpenedFile {
        self.open(caller, open(at, access))
    }

    /// Begins a copy on a device.
    fn begin_copy(&mut self, caller: [u8; 16], device: DeviceId) -> CreatedFile {
        match self.ask(caller, copy("/fn", device)) {
            Response::Created { file } => file,
            other => panic!("{other:?}"),
        }
    }

    fn code_layout(&mut self) -> Layout {
        self.open_ok(ALICE, "/fn", Access::Read).layout.unwrap()
    }

    /// Returns the devices without a copy.
    fn other_devices(&mut self) -> Vec<DeviceId> {
        let layout = self.code_layout();
        let taken: BTreeSet<_> = layout.objects().iter().map(|object| object.device).collect();
        let all = self.mds.devices();
        all.iter().map(|(device, _)| device.id).filter(|id| !taken.contains(id)).collect()
    }
}

#[test]
fn execute_needs_x_and_grants_only_it() {
    let mut world = World::with_function(1, 0o710);
    let file = world.open_ok(ALICE, "/fn", Access::Execute);
    let capability = parsed(file.grants[0].capability.as_slice());
    assert_eq!(capability.permissions, Permissions::EXECUTE | Permissions::GET_ATTR);
    assert_eq!(world.refused(BOB, open("/fn", Access::Execute)), ErrorCode::Denied);
    // The right to execute is neither that to read nor that to copy the code.
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o711 });
    assert_eq!(world.open_ok(BOB, "/fn", Access::Execute).grants.len(), 1);
    assert_eq!(world.refused(BOB, open("/fn", Access::Read)), ErrorCode::Denied);
    assert_eq!(world.refused(BOB, copy("/fn", DeviceId(1))), ErrorCode::Denied);
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o644 });
    assert_eq!(world.refused(ALICE, open("/fn", Access::Execute)), ErrorCode::Denied);
    assert_eq!(world.refused(ALICE, open("/", Access::Execute)), ErrorCode::IsADirectory);
}

#[test]
fn credentials_of_calls_protect_their_arguments() {
    let mut world = World::with_function(1, 0o755);
    world.mds.config.method_floor = Method::NoSec;
    for access in [Access::Execute, Access::CallRead, Access::CallUpdate] {
        let request = |method| Request::Open { path: path("/fn"), access, method };
        for (requested, expected) in
            [(Method::CapKey, SecurityMethod::CmdRsp), (Method::AllData, SecurityMethod::AllData)]
        {
            let file = world.open(ALICE, request(requested));
            let capability = parsed(file.grants[0].capability.as_slice());
            assert_eq!(capability.method, expected, "{access:?}");
        }
    }
}

#[test]
fn roles_limit_execution_and_description() {
    let mut world = World::with_function(2, 0o777);
    let (reader, operator) = ([7; 16], [8; 16]);
    world.session_as(reader, "carol", Role::ReadOnly);
    world.session_as(operator, "oscar", Role::Operator);
    assert_eq!(world.open_ok(reader, "/fn", Access::Execute).grants.len(), 1);
    assert_eq!(world.open_ok(reader, "/fn", Access::CallRead).grants.len(), 1);
    for access in [Access::CallUpdate, Access::Describe] {
        assert_eq!(world.refused(reader, open("/fn", access)), ErrorCode::Denied);
    }
    let device = world.other_devices()[0];
    assert_eq!(world.refused(reader, copy("/fn", device)), ErrorCode::Denied);
    assert_eq!(world.refused(operator, open("/fn", Access::Execute)), ErrorCode::Denied);
    let description = world.open_ok(ALICE, "/fn", Access::Describe);
    let capability = parsed(description.grants[0].capability.as_slice());
    assert_eq!(capability.permissions, Permissions::GET_ATTR | Permissions::SET_ATTR);
    // With bytes in its range it could truncate the object.
    let Descriptor::User { range, .. } = capability.descriptor else { panic!("a user object") };
    assert!(!range.permits(0, CODE_BYTES) && !range.permits(CODE_BYTES, 1), "{range:?}");
}

#[test]
fn data_of_calls_is_limited_to_existing_bytes() {
    let mut world = World::with_accounts(3);
    let file = world.put(ALICE, "/data", (4 << 20) + 5);
    let layout = file.layout;
    let given = world.open_ok(ALICE, "/data", Access::CallUpdate);
    for (index, grant) in given.grants.iter().enumerate() {
        let capability = parsed(grant.capability.as_slice());
        let expected = Permissions::READ | Permissions::WRITE | Permissions::GET_ATTR | Permissions::OBJ_MGMT;
        assert_eq!(capability.permissions, expected);
        let Descriptor::User { range, .. } = capability.descriptor else { panic!("a user object") };
        assert_eq!(range, Range { start: 0, length: layout.object_length(index, (4 << 20) + 5) });
    }
    let version = world.stat(ALICE, "/data").unwrap().version;
    assert_eq!(version, 2, "the bytes may differ from the checksum now");
    let given = world.open_ok(ALICE, "/data", Access::CallRead);
    let capability = parsed(given.grants[0].capability.as_slice());
    assert_eq!(capability.permissions, Permissions::READ | Permissions::GET_ATTR);
    world.ask(ALICE, Request::SetMode { path: path("/data"), mode: 0o644 });
    assert_eq!(world.open_ok(BOB, "/data", Access::CallRead).grants.len(), layout.width());
    assert_eq!(world.refused(BOB, open("/data", Access::CallUpdate)), ErrorCode::Denied);
}

#[test]
fn data_of_calls_is_never_sealed() {
    let mut world = World::with_function(1, 0o755);
    let mut config = world.mds.config.clone();
    config.seal_capabilities = true;
    world.mds = Mds::open(Arc::new(world.disk.clone()), config).unwrap();
    world.take_up();
    let is_sealed = |file: OpenedFile| {
        CapabilityBytes::new(Generation::Osd2, file.grants[0].capability.as_slice()).unwrap().is_sealed()
    };
    assert!(is_sealed(world.open_ok(ALICE, "/fn", Access::Execute)));
    assert!(is_sealed(world.open_ok(ALICE, "/fn", Access::Read)));
    assert!(!is_sealed(world.open_ok(ALICE, "/fn", Access::CallRead)));
    let stat = world.stat(ALICE, "/fn").unwrap();
    let handle = OpenHandle::File { node: stat.node(), access: Access::CallUpdate };
    let Response::Grants { grants, .. } = world.ask(ALICE, Request::RenewGrants { handle, method: METHOD })
    else {
        panic!("not renewed")
    };
    assert!(!CapabilityBytes::new(Generation::Osd2, grants[0].capability.as_slice()).unwrap().is_sealed());
}

#[test]
fn committed_copy_joins_layout_of_file() {
    let mut world = World::with_function(3, 0o755);
    let before = world.code_layout();
    let device = world.other_devices()[0];
    let begun = world.begin_copy(ALICE, device);
    assert_eq!(begun.layout.objects().len(), 1);
    let rights = parsed(begun.grants[0].capability.as_slice()).permissions;
    assert!(rights.contains(Permissions::CREATE | Permissions::WRITE | Permissions::SET_ATTR));
    assert!(!rights.contains(Permissions::READ) && !rights.contains(Permissions::EXECUTE));
    assert_eq!(world.code_layout(), before, "nothing is visible before the commit");
    world.commit(ALICE, begun.intent, CODE_BYTES).unwrap();
    let after = world.code_layout();
    assert_eq!((after.width(), after.number(), after.kind_name()), (2, before.number(), "copies"));
    assert_eq!(after.objects()[1].device, device);
    assert_eq!(world.open_ok(ALICE, "/fn", Access::Execute).grants.len(), 2);
    assert_eq!(world.refused(ALICE, copy("/fn", device)), ErrorCode::Exists);
    // The objects are removed with the file.
    world.ask(ALICE, Request::Remove { path: path("/fn"), recursive: false });
    world.now += 3_600_000;
    let removed: BTreeSet<_> = world.reap_all().into_iter().collect();
    assert!(after.objects().iter().all(|object| removed.contains(object)));
}

#[test]
fn copy_of_changed_function_is_refused() {
    let mut world = World::with_function(2, 0o755);
    let device = world.other_devices()[0];
    let wrong_size = world.begin_copy(ALICE, device);
    assert_eq!(world.commit(ALICE, wrong_size.intent, CODE_BYTES - 1), Err(ErrorCode::Stale));
    let begun = world.begin_copy(ALICE, device);
    world.put(ALICE, "/fn", CODE_BYTES);
    assert_eq!(world.commit(ALICE, begun.intent, CODE_BYTES), Err(ErrorCode::Stale));
    assert_eq!(world.code_layout().width(), 1);
}

#[test]
fn second_copy_on_one_device_is_refused() {
    let mut world = World::with_function(2, 0o755);
    let device = world.other_devices()[0];
    let (first, second) = (world.begin_copy(ALICE, device), world.begin_copy(BOB, device));
    world.commit(BOB, second.intent, CODE_BYTES).unwrap();
    assert_eq!(world.commit(ALICE, first.intent, CODE_BYTES), Err(ErrorCode::Exists));
    assert_eq!(world.code_layout().width(), 2);
}

#[test]
fn abandoned_and_expired_copies_are_removed() {
    let mut world = World::with_function(3, 0o755);
    let devices = world.other_devices();
    let (left, expired) = (world.begin_copy(ALICE, devices[0]), world.begin_copy(ALICE, devices[1]));
    world.ask(ALICE, Request::Abandon { intent: left.intent });
    world.now += 24 * 3_600_000;
    world.session(ALICE, "alice", false);
    let removed: BTreeSet<_> = world.reap_all().into_iter().collect();
    for begun in [left, expired] {
        assert!(removed.contains(&begun.layout.objects()[0]));
        assert_eq!(world.commit(ALICE, begun.intent, CODE_BYTES), Err(ErrorCode::Stale));
    }
    assert_eq!(world.code_layout().width(), 1);
}

#[test]
fn striped_file_cannot_be_copied() {
    let mut world = World::with_accounts(3);
    let file = world.put(ALICE, "/big", 8 << 20);
    assert!(file.layout.width() > 1);
    world.ask(ALICE, Request::SetMode { path: path("/big"), mode: 0o755 });
    assert_eq!(world.refused(ALICE, copy("/big", DeviceId(1))), ErrorCode::Invalid);
    assert!(matches!(world.ask(ALICE, create("/empty", Some(0))), Response::Created { .. }));
    assert_eq!(world.refused(ALICE, copy("/fn", DeviceId(99))), ErrorCode::Invalid);
}

#[test]
fn copied_function_never_outgrows_its_layout() {
    let mut world = World::with_accounts(3);
    let size = 6 << 20;
    // The hint keeps the code in one object.
    let begun = world.create(ALICE, "/fn", Some(4096));
    world.commit(ALICE, begun.intent, size).unwrap();
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o755 });
    let device = world.other_devices()[0];
    let copied = world.begin_copy(ALICE, device);
    world.commit(ALICE, copied.intent, size).unwrap();
    let inode = world.stat(ALICE, "/fn").unwrap().inode;
    world.now += 24 * 3_600_000;
    let begun = world.mds.begin_migration(inode, world.now).unwrap();
    assert_eq!(begun, crate::MoveStart::NothingToMove);
}

/// A function of one object without further copies; it is stored like any other file.
#[test]
fn described_function_never_outgrows_its_layout() {
    let mut world = World::with_accounts(3);
    let size = 6 << 20;
    let begun = world.create(ALICE, "/fn", Some(4096));
    world.commit(ALICE, begun.intent, size).unwrap();
    let inode = world.stat(ALICE, "/fn").unwrap().inode;
    assert_eq!(world.mds.next_outgrown(None).unwrap(), [inode]);
    let described = world.open_ok(ALICE, "/fn", Access::Describe).layout.unwrap();
    assert_eq!((described.kind_name(), described.number()), ("copies", begun.layout.number()));
    assert_eq!(described.objects(), begun.layout.objects());
    // A striped file is no function.
    world.put(ALICE, "/big", 8 << 20);
    assert_eq!(world.refused(ALICE, open("/big", Access::Describe)), ErrorCode::Invalid);
    world.now += 24 * 3_600_000;
    assert_eq!(world.mds.begin_migration(inode, world.now).unwrap(), crate::MoveStart::NothingToMove);
    assert!(world.mds.next_outgrown(None).unwrap().is_empty());
}

#[test]
fn copy_is_charged_once_within_quota() {
    let mut world = World::with_function(2, 0o755);
    let subject = QuotaSubject::User(super::world::user("bob"));
    let change = QuotaChange { bytes_max: Some(Some(15_000)), nodes_max: None };
    world.ask(ADMIN, Request::QuotaSet { of: subject.clone(), change });
    let used = |world: &mut World| {
        let Response::Quota { quota } = world.ask(ADMIN, Request::QuotaShow { of: subject.clone() }) else {
            panic!("no quota")
        };
        quota.bytes
    };
    let device = world.other_devices()[0];
    let begun = world.begin_copy(BOB, device);
    assert_eq!(used(&mut world), CODE_BYTES);
    let Descriptor::User { range, .. } = parsed(begun.grants[0].capability.as_slice()).descriptor else {
        panic!("a user object")
    };
    assert_eq!(range, Range { start: 0, length: CODE_BYTES }, "no bytes that are not charged");
    // The bytes are written, and measured before the commit.
    world.now += 310_000;
    for item in world.mds.next_length_checks(9, world.now).unwrap() {
        world.mds.lengths_found(&item, &[CODE_BYTES], world.now).unwrap();
    }
    assert_eq!(used(&mut world), CODE_BYTES);
    world.commit(BOB, begun.intent, CODE_BYTES).unwrap();
    assert_eq!(used(&mut world), 0);
}

#[test]
fn result_object_is_reserved_and_never_committed() {
    let mut world = World::with_function(2, 0o711);
    let subject = QuotaSubject::User(super::world::user("bob"));
    let change = QuotaChange { bytes_max: Some(Some(15_000)), nodes_max: None };
    world.ask(ADMIN, Request::QuotaSet { of: subject.clone(), change });
    let device = world.other_devices()[0];
    let reserve = |size_max| Request::ReserveResult { path: path("/fn"), device, size_max, method: METHOD };
    assert_eq!(world.refused(BOB, reserve(15_001)), ErrorCode::Quota);
    let Response::Created { file } = world.ask(BOB, reserve(9_000)) else { panic!("not reserved") };
    assert_eq!(file.layout.objects()[0].device, device);
    assert_eq!(world.refused(BOB, reserve(6_001)), ErrorCode::Quota, "it is charged");
    let check = |grant: &sealstone_mds_protocol::Grant| {
        let capability = parsed(grant.capability.as_slice());
        let Descriptor::User { range, .. } = capability.descriptor else { panic!("a user object") };
        assert_eq!(range, Range { start: 0, length: 9_000 });
        let rights = Permissions::CREATE | Permissions::WRITE | Permissions::READ;
        assert!(capability.permissions.contains(rights), "{:?}", capability.permissions);
    };
    check(&file.grants[0]);
    let handle = OpenHandle::Intent(file.intent);
    let Response::Grants { grants, .. } = world.ask(BOB, Request::RenewGrants { handle, method: METHOD })
    else {
        panic!("not renewed")
    };
    check(&grants[0]);
    assert_eq!(world.commit(BOB, file.intent, 9_000).unwrap_err(), ErrorCode::Invalid);
    world.ask(BOB, Request::Abandon { intent: file.intent });
    assert!(world.reap_all().contains(&file.layout.objects()[0]));
    // One that a lost client leaves behind is removed too.
    let Response::Created { file } = world.ask(BOB, reserve(9_000)) else { panic!("not reserved") };
    world.now += 700_000;
    assert!(world.reap_all().contains(&file.layout.objects()[0]));
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o644 });
    assert_eq!(world.refused(BOB, reserve(10)), ErrorCode::Denied);
}

impl World {
    /// Reserves an object for a result of a function on the first device.
    fn reserve(&mut self, caller: [u8; 16], at: &str, size_max: u64, method: Method) -> Response {
        self.ask(caller, Request::ReserveResult { path: path(at), device: DeviceId(1), size_max, method })
    }

    fn renew_result(&mut self, file: &CreatedFile, method: Method) -> Response {
        self.ask(BOB, Request::RenewGrants { handle: OpenHandle::Intent(file.intent), method })
    }
}

fn failed_with(response: Response, code: ErrorCode) -> bool {
    matches!(response, Response::Failed { failure } if failure.code == code)
}

#[test]
fn result_of_job_outlives_its_client() {
    let mut world = World::with_function(1, 0o711);
    let lifetime_ms = world.mds.config.delegated_lifetime_ms();
    let request =
        Request::ReserveJobResult { path: path("/fn"), device: DeviceId(1), size_max: 9_000, method: METHOD };
    let Response::Created { file } = world.ask(BOB, request.clone()) else { panic!("not reserved") };
    let capability = parsed(file.grants[0].capability.as_slice());
    assert_eq!(capability.expires_ms, world.now + lifetime_ms);
    assert_eq!(file.expires_ms, world.now + 2 * lifetime_ms);
    // A client that returns reads it with a fresh credential.
    world.now += lifetime_ms + 1;
    world.session(BOB, "bob", false);
    let Response::Grants { grants, .. } = world.renew_result(&file, METHOD) else { panic!("not renewed") };
    assert!(parsed(grants[0].capability.as_slice()).permissions.contains(Permissions::READ));
    assert_eq!(world.commit(BOB, file.intent, 9_000).unwrap_err(), ErrorCode::Invalid);
    assert!(!world.reap_all().contains(&file.layout.objects()[0]));
    // Without a client it is removed.
    world.now += lifetime_ms;
    assert!(world.reap_all().contains(&file.layout.objects()[0]));
    for (session, name) in [(ALICE, "alice"), (BOB, "bob")] {
        world.session(session, name, false);
    }
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o644 });
    assert_eq!(world.refused(BOB, request), ErrorCode::Denied);
}

#[test]
fn reservations_do_not_use_up_open_creates() {
    let mut world = World::with_function(1, 0o711);
    let mut reserved = Vec::new();
    for _ in 0..RESULTS_PER_USER_MAX {
        match world.reserve(BOB, "/fn", 1, METHOD) {
            Response::Created { file } => reserved.push(file.intent),
            other => panic!("{other:?}"),
        }
    }
    let Response::Failed { failure } = world.reserve(BOB, "/fn", 1, METHOD) else { panic!("reserved") };
    assert_eq!(failure.code, ErrorCode::Limit);
    assert!(failure.subject.as_str().starts_with("reservations for results: user bob has 1024"), "{failure}");
    // Other users and files are not affected.
    world.put(BOB, "/bob", 1);
    assert!(matches!(world.reserve(ALICE, "/fn", 1, METHOD), Response::Created { .. }));
    // A run that ends releases its reservation at once.
    world.ask(BOB, Request::Abandon { intent: reserved[0] });
    assert!(matches!(world.reserve(BOB, "/fn", 1, METHOD), Response::Created { .. }));
    // Those of clients that ended without Abandon expire.
    world.now += world.mds.config.intent_lifetime_ms + 1;
    while world.mds.tidy(world.now).unwrap() {}
    world.session(BOB, "bob", false);
    assert!(matches!(world.reserve(BOB, "/fn", 1, METHOD), Response::Created { .. }));
}

#[test]
fn loop_of_runs_leaves_creates_and_expires() {
    let mut world = World::with_function(1, 0o711);
    for _ in 0..ENDED_RESULTS_PER_USER_MAX {
        let Response::Created { file } = world.reserve(BOB, "/fn", 1, METHOD) else { panic!("not reserved") };
        world.ask(BOB, Request::Abandon { intent: file.intent });
    }
    let Response::Failed { failure } = world.reserve(BOB, "/fn", 1, METHOD) else { panic!("reserved") };
    assert!(failure.subject.as_str().starts_with("ended reservations for results"), "{failure}");
    world.put(BOB, "/bob", 1);
    world.now += world.mds.config.grant_lifetime_ms() + 1;
    while world.mds.tidy(world.now).unwrap() {}
    assert!(matches!(world.reserve(BOB, "/fn", 1, METHOD), Response::Created { .. }));
    let drifts = crate::quota::count(&*crate::store::MetaStore::snapshot(&world.disk).unwrap(), || Ok(()));
    assert_eq!(drifts.unwrap(), []);
}

#[test]
fn long_result_is_refused_and_tree_charged() {
    let mut world = World::with_accounts(1);
    world.ask(ALICE, Request::MakeDir { path: path("/tree"), parents: false, mode: 0o755 });
    let of = QuotaSubject::Tree(path("/tree"));
    let change = QuotaChange { bytes_max: Some(Some(CODE_BYTES + 5_000)), nodes_max: None };
    world.ask(ADMIN, Request::QuotaSet { of, change });
    for at in ["/fn", "/tree/fn"] {
        world.put(ALICE, at, CODE_BYTES);
        world.ask(ALICE, Request::SetMode { path: path(at), mode: 0o711 });
    }
    let over = world.reserve(BOB, "/fn", (256 << 20) + 1, METHOD);
    assert!(failed_with(over, ErrorCode::Limit));
    assert!(matches!(world.reserve(BOB, "/fn", 256 << 20, METHOD), Response::Created { .. }));
    let over = world.reserve(BOB, "/tree/fn", 5_001, METHOD);
    assert!(failed_with(over, ErrorCode::Quota));
    assert!(matches!(world.reserve(BOB, "/tree/fn", 5_000, METHOD), Response::Created { .. }));
}

#[test]
fn renewed_result_keeps_method_of_calls() {
    let mut world = World::with_function(1, 0o711);
    world.mds.config.method_floor = Method::NoSec;
    let Response::Created { file } = world.reserve(BOB, "/fn", 9_000, Method::CapKey) else {
        panic!("not reserved")
    };
    let Response::Grants { grants, .. } = world.renew_result(&file, Method::CapKey) else {
        panic!("not renewed")
    };
    for grant in [&file.grants[0], &grants[0]] {
        assert_eq!(parsed(grant.capability.as_slice()).method, SecurityMethod::CmdRsp);
    }
}

#[test]
fn result_renewal_needs_x_and_has_end() {
    let mut world = World::with_function(1, 0o711);
    let Response::Created { file } = world.reserve(BOB, "/fn", 9_000, METHOD) else { panic!("not reserved") };
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o700 });
    assert!(failed_with(world.renew_result(&file, METHOD), ErrorCode::Denied));
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o711 });
    let end = world.now + 48 * 3_600_000;
    while world.now < end {
        world.now = end.min(world.now + 500_000);
        world.session(BOB, "bob", false);
        let renewed = world.renew_result(&file, METHOD);
        assert!(matches!(renewed, Response::Grants { .. }), "{renewed:?}");
    }
    world.now += 1;
    assert!(failed_with(world.renew_result(&file, METHOD), ErrorCode::Stale));
}

#[test]
fn delegated_execution_has_no_other_right() {
    let mut world = World::with_function(2, 0o711);
    let until_ms = world.now + 60_000;
    let request = Request::DelegateExecution { path: path("/fn"), until_ms, method: METHOD };
    let Response::Delegated { file } = world.ask(BOB, request.clone()) else { panic!("not delegated") };
    assert_eq!((file.read, file.write, file.start, file.end), (false, false, 0, CODE_BYTES));
    assert_eq!(file.expires_ms, until_ms);
    let capability = parsed(file.grants[0].capability.as_slice());
    assert_eq!(capability.permissions, Permissions::EXECUTE | Permissions::GET_ATTR);
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o644 });
    assert_eq!(world.refused(BOB, request), ErrorCode::Denied);
    let late = Request::DelegateExecution { path: path("/fn"), until_ms: u64::MAX, method: METHOD };
    assert_eq!(world.refused(ADMIN, late), ErrorCode::Limit);
}

#[test]
fn delegated_call_data_is_readable_and_bounded() {
    let mut world = World::with_function(2, 0o640);
    let mut config = world.mds.config.clone();
    config.seal_capabilities = true;
    world.mds = Mds::open(Arc::new(world.disk.clone()), config).unwrap();
    world.take_up();
    let until_ms = world.now + 60_000;
    let request = |until_ms| Request::DelegateCallData { path: path("/fn"), until_ms, method: METHOD };
    assert_eq!(world.refused(BOB, request(until_ms)), ErrorCode::Denied);
    let Response::Delegated { file } = world.ask(ALICE, request(until_ms)) else { panic!("not delegated") };
    assert_eq!((file.read, file.write, file.start, file.end), (true, false, 0, CODE_BYTES));
    let capability = parsed(file.grants[0].capability.as_slice());
    assert_eq!(capability.permissions, Permissions::READ | Permissions::GET_ATTR);
    assert_eq!(capability.expires_ms, until_ms);
    let Descriptor::User { range, .. } = capability.descriptor else { panic!("a user object") };
    assert_eq!(range, Range { start: 0, length: CODE_BYTES });
    assert_eq!(world.refused(ALICE, request(world.now)), ErrorCode::Invalid);
    assert_eq!(world.refused(ALICE, request(u64::MAX)), ErrorCode::Limit);
    world.put(ALICE, "/empty", 0);
    let empty = Request::DelegateCallData { path: path("/empty"), until_ms, method: METHOD };
    assert_eq!(world.refused(ALICE, empty), ErrorCode::Invalid);
}

#[test]
fn recorded_policy_applies_to_new_partitions() {
    let mut world = World::with_devices(1);
    let set = |partition, policy, digests: &[[u8; 32]]| Request::FunctionPolicySet {
        partition,
        policy,
        keys: Vec::new(),
        digests: digests.to_vec(),
    };
    assert_eq!(world.refused(BOB, set(None, 2, &[[1; 32]])), ErrorCode::Denied);
    assert_eq!(world.refused(ADMIN, set(Some(1), 2, &[[1; 32]])), ErrorCode::NotFound);
    assert_eq!(world.refused(ADMIN, set(None, 3, &[])), ErrorCode::Invalid);
    assert_eq!(world.refused(ADMIN, set(None, 2, &[[1; 32]; 257])), ErrorCode::Limit);
    assert_eq!(world.mds.policy_attributes(0x10000).unwrap(), [], "never set");
    world.ask(ADMIN, set(None, 2, &[[1; 32], [2; 32]]));
    let expected = vec![
        (POLICY, vec![2]),
        (ALLOWED_CODE, vec![1; 32]),
        (AttributeId::new(ALLOWED_CODE.page, ALLOWED_CODE.number + 1), vec![2; 32]),
    ];
    for partition in [0x10000, 0x10FFF] {
        assert_eq!(world.mds.policy_attributes(partition).unwrap(), expected);
    }
    let whole = world.mds.whole_policy_attributes(0x10000).unwrap();
    assert_eq!(whole.len(), 1 + 2 * 256);
    assert_eq!(whole.iter().filter(|(_, value)| !value.is_empty()).count(), 3);
    // A partition of its own, until all are set again.
    world.ask(ADMIN, set(Some(0x10000), 0, &[]));
    assert_eq!(world.mds.policy_attributes(0x10000).unwrap(), [(POLICY, vec![0])]);
    assert_eq!(world.mds.policy_attributes(0x10001).unwrap(), expected);
    world.ask(ADMIN, set(None, 1, &[]));
    assert_eq!(world.mds.policy_attributes(0x10000).unwrap(), [(POLICY, vec![1])]);
}

#[test]
fn missed_policy_withholds_execute_right() {
    let mut world = World::with_function(2, 0o755);
    let set =
        Request::FunctionPolicySet { partition: None, policy: 1, keys: Vec::new(), digests: Vec::new() };
    let rights = |world: &mut World| -> Vec<Permissions> {
        let file = world.open_ok(ALICE, "/fn", Access::Execute);
        file.grants.iter().map(|grant| parsed(grant.capability.as_slice()).permissions).collect()
    };
    let execute = Permissions::EXECUTE | Permissions::GET_ATTR;
    let before = rights(&mut world);
    assert!(!before.is_empty() && before.iter().all(|rights| *rights == execute));
    world.ask(ADMIN, set.clone());
    let due = world.mds.due_policies().unwrap();
    assert_eq!(due.len(), 2, "one for each device");
    assert_eq!(rights(&mut world), before, "they are reachable");
    for one in &due {
        world.mds.policy_missed(one).unwrap();
    }
    assert!(rights(&mut world).iter().all(|rights| *rights == Permissions::NONE));
    // A change since then counts, not the earlier one.
    world.ask(ADMIN, set);
    for one in &due {
        world.mds.policy_given(one).unwrap();
    }
    let due = world.mds.due_policies().unwrap();
    assert_eq!(due.len(), 2);
    for one in &due {
        world.mds.policy_given(one).unwrap();
    }
    assert_eq!(world.mds.due_policies().unwrap(), []);
    assert_eq!(rights(&mut world), before);
}

#[test]
fn joining_device_gets_policy_changed_meanwhile() {
    let mut world = World::with_devices(1);
    let device = world.add_device(1);
    let set =
        Request::FunctionPolicySet { partition: None, policy: 1, keys: Vec::new(), digests: Vec::new() };
    world.ask(ADMIN, set);
    let due = world.mds.due_policies().unwrap();
    assert!(due.iter().any(|due| due.device == device), "{due:?}");
}

#[test]
fn policy_access_is_for_administrators_only() {
    let mut world = World::with_devices(1);
    let id = world.mds.devices()[0].0.id;
    let request = |partition, change| Request::FunctionPolicyAccess { id, partition, change, method: METHOD };
    assert_eq!(world.refused(BOB, request(0x10000, false)), ErrorCode::Denied);
    for partition in [0, 1, 0x20000] {
        assert_eq!(world.refused(ADMIN, request(partition, true)), ErrorCode::NotFound);
    }
    for change in [true, false] {
        let Response::DeviceGrant { grant } = world.ask(ADMIN, request(0x10000, change)) else {
            panic!("no grant")
        };
        let capability = parsed(grant.capability.as_slice());
        assert_eq!(capability.permissions.contains(Permissions::SET_ATTR), change);
        assert!(capability.permissions.contains(Permissions::POL_SEC | Permissions::GET_ATTR));
        assert!(matches!(capability.descriptor, Descriptor::Partition { partition: 0x10000, .. }));
        assert_eq!(capability.method, SecurityMethod::AllData);
    }
}

#[test]
fn device_attributes_give_no_access_to_data() {
    let mut world = World::with_devices(1);
    let id = world.mds.devices()[0].0.id;
    let Response::DeviceGrant { grant } = world.ask(BOB, Request::DeviceAttributes { id, method: METHOD })
    else {
        panic!("no grant")
    };
    let capability = parsed(grant.capability.as_slice());
    assert_eq!(capability.permissions, Permissions::GET_ATTR);
    assert!(matches!(capability.descriptor, Descriptor::Partition { partition: 0, .. }));
    let unknown = Request::DeviceAttributes { id: DeviceId(77), method: METHOD };
    assert_eq!(world.refused(BOB, unknown), ErrorCode::NotFound);
}

#[test]
fn receipts_are_verified_by_device_key() {
    let mut world = World::with_devices(2);
    let (key, receipt) = {
        let (keys, _) = world.mds.devices.key_state(world.mds.devices()[1].0.id).unwrap();
        (keys.receipt_key().unwrap(), receipt())
    };
    let genuine = key.seal(&receipt).unwrap();
    let mut verify = |receipt: Vec<u8>| match world
        .ask(BOB, Request::ReceiptVerify { receipt: ReceiptBytes::new(receipt).unwrap() })
    {
        Response::Receipt { verdict, device } => (verdict, device),
        other => panic!("{other:?}"),
    };
    let second = Some(DeviceId(2));
    assert_eq!(verify(genuine.clone()), (ReceiptVerdict::Genuine, second));
    let mut forged = genuine.clone();
    forged[150] ^= 1;
    assert_eq!(verify(forged).0, ReceiptVerdict::Forged);
    let mut other_device = genuine.clone();
    other_device[8..28].copy_from_slice(&[1; 20]);
    assert_ne!(verify(other_device).0, ReceiptVerdict::Genuine);
    let mut unknown = genuine.clone();
    unknown[8..28].copy_from_slice(&[77; 20]);
    assert_eq!(verify(unknown), (ReceiptVerdict::UnknownDevice, None));
    assert_eq!(verify(genuine[..100].to_vec()), (ReceiptVerdict::Malformed, None));
}

/// Returns a receipt of a run without inputs.
fn receipt() -> FunctionReceipt {
    FunctionReceipt {
        engine: 1,
        exit: 0,
        error: 0,
        secret_arguments: false,
        system_id: [0; 20],
        job: [3; 16],
        function: ObjectId::new(0x1_0000, 0x2_0000),
        code_digest: [4; 32],
        arguments_digest: [5; 32],
        result_digest: [6; 32],
        result_length: 7,
        result_object: None,
        api: (1, 0),
        audit: [8; 20],
        started_ms: 9,
        ended_ms: 10,
        limits: ReceiptLimits::default(),
        bytes_read: 11,
        bytes_written: 12,
        cpu_us: 13,
        inputs: Vec::new(),
    }
}

#[test]
fn execution_is_recorded_as_such() {
    let (mut world, _log) = World::logged(1);
    world.put(ALICE, "/fn", CODE_BYTES);
    world.ask(ALICE, Request::SetMode { path: path("/fn"), mode: 0o700 });
    world.open_ok(ALICE, "/fn", Access::Execute);
    world.refused(BOB, open("/fn", Access::Execute));
    let request =
        Request::IssueList { path: path("/fn"), user: None, since_ms: 0, until_ms: u64::MAX, from: None };
    let Response::Issues { entries, .. } = world.ask(ALICE, request) else { panic!("no list") };
    assert!(entries.iter().any(|entry| entry.kind == IssueKind::Execute));
}

#[test]
fn nodes_are_not_opened_with_call_accesses() {
    let mut world = World::with_function(1, 0o777);
    let node = world.stat(ALICE, "/fn").unwrap().node();
    for access in [Access::Execute, Access::CallRead, Access::CallUpdate, Access::Describe] {
        let request = Request::OpenNode { node, access, method: METHOD, client_id: client(), reclaim: false };
        assert_eq!(world.refused(ALICE, request), ErrorCode::Invalid);
        let handle = OpenHandle::Node { node, access, client_id: client() };
        assert_eq!(world.refused(ALICE, Request::RenewGrants { handle, method: METHOD }), ErrorCode::Invalid);
    }
}

fn client() -> sealstone_mds_protocol::ClientId {
    sealstone_mds_protocol::ClientId { number: 5 }
}
