//! Every row round-trips; no bytes cause a panic.

use super::*;
use crate::error::{ErrorCode, Failure};
use crate::grants::{
    DelegatedFile, IssueEntry, IssueKind, ReceiptBytes, ReceiptVerdict, Revocation, WaitingDevice,
};
use crate::keys::{KeyInfo, KeyUse};
use crate::layout::{Layout, ObjectRef};
use crate::login::*;
use crate::placement::{ChosenDevice, DeviceCondition, PlacementRecord, WidthBound};
use crate::records::*;
use crate::secret::Secret;
use alloc::string::String;
use alloc::vec;
use proptest::prelude::*;
use sealstone_osd::ObjectId;

mod check;
mod disks;
mod nodes;
mod quota;

use nodes::{client_id, node};

fn name() -> impl Strategy<Value = Name> {
    prop::collection::vec(any::<u8>(), 1..=255).prop_filter_map("no name", |bytes| {
        Name::new(bytes.into_iter().filter(|b| !b"/\0".contains(b)).collect::<Vec<_>>()).ok()
    })
}

fn path() -> impl Strategy<Value = FilePath> {
    "(/[a-z]{1,9}){0,9}"
        .prop_map(|s| FilePath::new(&if s.is_empty() { String::from("/") } else { s }).unwrap())
}

fn user() -> impl Strategy<Value = UserName> {
    "[a-z][a-z0-9._@-]{0,20}".prop_map(|s| UserName::new(s).unwrap())
}

fn group() -> impl Strategy<Value = GroupName> {
    "[a-z][a-z0-9._@-]{0,20}".prop_map(|s| GroupName::new(s).unwrap())
}

fn of<T: Copy + core::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(move |i| all[i])
}

fn secret() -> impl Strategy<Value = Secret> {
    prop::collection::vec(any::<u8>(), 0..=Secret::MAX).prop_map(|b| Secret::new(b).unwrap())
}

fn pin() -> impl Strategy<Value = Option<DevicePin>> {
    prop::option::of(
        (of(PinKind::ALL), any::<[u8; PIN_BYTES]>()).prop_map(|(kind, hash)| DevicePin { kind, hash }),
    )
}

fn checksum() -> impl Strategy<Value = Option<Checksum>> {
    prop::option::of(
        (of(ChecksumKind::ALL), any::<[u8; 32]>()).prop_map(|(kind, value)| Checksum { kind, value }),
    )
}

fn stat() -> impl Strategy<Value = Stat> {
    (any::<(u64, u16, u64, u64, i64)>(), of(FileKind::ALL), user(), prop::option::of(group()), checksum())
        .prop_map(|((inode, mode, size, version, time), kind, owner, group, checksum)| Stat {
            inode: InodeId(inode),
            proof: inode.to_be_bytes(),
            kind,
            mode,
            owner,
            group,
            links: mode.into(),
            rdev: 7,
            size,
            version,
            generation: mode.into(),
            atime_ns: !time,
            mtime_ns: time,
            ctime_ns: time ^ 1,
            birth_ns: time ^ 2,
            width: mode,
            checksum,
        })
}

fn object() -> impl Strategy<Value = ObjectRef> {
    any::<(u32, u64, u64)>()
        .prop_map(|(device, p, o)| ObjectRef { device: DeviceId(device), object: ObjectId::new(p, o) })
}

fn grant() -> impl Strategy<Value = Grant> {
    (object(), of(Method::ALL), any::<u64>(), prop::collection::vec(any::<u8>(), 0..=104), secret()).prop_map(
        |(object, method, expires_ms, capability, key)| Grant {
            object,
            method,
            expires_ms,
            capability: CapabilityBlob::new(capability).unwrap(),
            key,
        },
    )
}

fn handle() -> impl Strategy<Value = OpenHandle> {
    prop_oneof![
        (node(), of(Access::ALL)).prop_map(|(node, access)| OpenHandle::File { node, access }),
        any::<u64>().prop_map(|i| OpenHandle::Intent(IntentId(i))),
        (node(), of(Access::ALL), client_id()).prop_map(|(node, access, client_id)| OpenHandle::Node {
            node,
            access,
            client_id
        }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let files = prop_oneof![
        path().prop_map(|path| Request::Stat { path }),
        path().prop_map(|path| Request::Lstat { path }),
        path().prop_map(|path| Request::Placement { path }),
        (path(), prop::option::of(name()), any::<u16>()).prop_map(|(path, after, limit)| Request::ReadDir {
            path,
            after,
            limit
        }),
        (path(), any::<(bool, u16)>()).prop_map(|(path, (parents, mode))| Request::MakeDir {
            path,
            parents,
            mode
        }),
        (path(), any::<(Option<u64>, u16, bool)>(), of(Method::ALL)).prop_map(
            |(path, (size_hint, mode, replace), method)| Request::Create {
                path,
                size_hint,
                mode,
                replace,
                method
            }
        ),
        (path(), of(Access::ALL), of(Method::ALL)).prop_map(|(path, access, method)| Request::Open {
            path,
            access,
            method
        }),
        (handle(), of(Method::ALL)).prop_map(|(handle, method)| Request::RenewGrants { handle, method }),
        (any::<(u64, u64, Option<i64>)>(), checksum()).prop_map(|((i, size, mtime_ns), checksum)| {
            Request::Commit { intent: IntentId(i), size, mtime_ns, checksum }
        }),
        any::<u64>().prop_map(|i| Request::Abandon { intent: IntentId(i) }),
        (path(), path(), any::<bool>()).prop_map(|(from, to, replace)| Request::Rename { from, to, replace }),
        (path(), any::<bool>()).prop_map(|(path, recursive)| Request::Remove { path, recursive }),
        (path(), any::<u16>()).prop_map(|(path, mode)| Request::SetMode { path, mode }),
    ];
    let others = prop_oneof![
        ("[a-z]{0,20}", any::<(u16, u16)>()).prop_map(|(s, (oldest, newest))| Request::Hello {
            oldest,
            newest,
            software: Text::new(s).unwrap()
        }),
        Just(Request::WhoAmI {}),
        Just(Request::ServerInfo {}),
        Just(Request::DiskFree {}),
        any::<(Option<u32>, u16)>()
            .prop_map(|(after, limit)| Request::DeviceList { after: after.map(DeviceId), limit }),
        (name(), any::<[u8; 20]>(), pin(), any::<(u64, u64)>(), secret()).prop_map(
            |(name, system_id, pin, (capacity, speed), master_key)| {
                Request::DeviceAdd {
                    device: NewDevice {
                        name,
                        system_id,
                        url: Text::new("iscsi://h:3260/iqn/0").unwrap(),
                        pin,
                        capacity,
                        speed,
                        master_key,
                    },
                }
            }
        ),
        (any::<u32>(), of(DeviceState::ALL))
            .prop_map(|(id, state)| Request::DeviceSetState { id: DeviceId(id), state }),
        any::<(u32, u64)>().prop_map(|(id, rate)| Request::DeviceDrain { id: DeviceId(id), rate }),
        any::<u64>().prop_map(|rate| Request::Rebalance { rate }),
        Just(Request::RebalanceStop {}),
        Just(Request::RebalanceShow {}),
        (user(), any::<([u8; 32], bool)>()).prop_map(|(name, (request, own))| {
            let proof =
                own.then(|| LoginStart { suite: 1, user: name.clone(), capabilities: 0, ke1: [7; 96] });
            Request::UserRegisterStart { name, request, proof }
        }),
        (user(), of(Role::ALL), any::<(u16, bool, bool)>(), prop::collection::vec(any::<u8>(), 192))
            .prop_map(|(name, role, (suite, replace, own), record)| Request::UserRegisterFinish {
                name,
                record: record.try_into().unwrap(),
                suite,
                role,
                replace,
                proof: own.then_some(LoginFinish { login_id: [8; 16], ke3: [9; 64] }),
            }),
        (prop::option::of(user()), any::<u16>())
            .prop_map(|(after, limit)| Request::UserList { after, limit }),
        (user(), any::<bool>()).prop_map(|(name, enabled)| Request::UserSetEnabled { name, enabled }),
        user().prop_map(|name| Request::UserRemove { name }),
        (user(), any::<Option<[u8; 20]>>()).prop_map(|(name, key)| Request::UserSetPaperKey {
            name,
            key: key.map(|key| Secret::new(key.to_vec()).unwrap()),
        }),
    ];
    let accounts = prop_oneof![
        (user(), of(Role::ALL)).prop_map(|(name, role)| Request::UserSetRole { name, role }),
        group().prop_map(|name| Request::GroupCreate { name }),
        group().prop_map(|name| Request::GroupRemove { name }),
        (group(), user()).prop_map(|(group, user)| Request::GroupAddMember { group, user }),
        (group(), user()).prop_map(|(group, user)| Request::GroupRemoveMember { group, user }),
        (prop::option::of(group()), any::<u16>())
            .prop_map(|(after, limit)| Request::GroupList { after, limit }),
        (group(), prop::option::of(user()), any::<u16>())
            .prop_map(|(group, after, limit)| Request::GroupMembers { group, after, limit }),
        (path(), prop::option::of(user()), prop::option::of(prop::option::of(group())))
            .prop_map(|(path, owner, group)| Request::SetOwner { path, owner, group }),
        (user(), of(AccountKind::ALL), of(Role::ALL), any::<(u32, bool)>()).prop_map(
            |(name, kind, role, (lifetime_s, replace))| {
                Request::UserInvite { name, kind, role, lifetime_s, replace }
            }
        ),
        (user(), any::<u16>()).prop_map(|(name, suite)| Request::UserRetireKey { name, suite }),
        path().prop_map(|path| Request::GrantHolders { path }),
    ];
    // Boxed to limit stack use.
    prop_oneof![
        files.boxed(),
        others.boxed(),
        accounts.boxed(),
        key_request().boxed(),
        grant_request().boxed(),
        nodes::request().boxed(),
        prop_oneof![quota::request(), check::request()].boxed(),
        disks::request().boxed()
    ]
}

fn key_place() -> impl Strategy<Value = KeyCursor> {
    any::<(u32, Option<u64>)>()
        .prop_map(|(device, partition)| KeyCursor { device: DeviceId(device), partition })
}

fn key_request() -> impl Strategy<Value = Request> {
    let device = || any::<Option<u32>>().prop_map(|device| device.map(DeviceId));
    prop_oneof![
        (device(), prop::option::of(key_place()))
            .prop_map(|(device, from)| Request::KeyList { device, from }),
        (of(KeyLevel::ALL), device(), any::<Option<u64>>(), any::<bool>()).prop_map(
            |(level, device, partition, revoke)| Request::KeyRotate { level, device, partition, revoke }
        ),
        device().prop_map(|device| Request::KeyProgress { device }),
    ]
}

fn revoke_what() -> impl Strategy<Value = RevocationTarget> {
    prop_oneof![
        path().prop_map(RevocationTarget::Object),
        user().prop_map(RevocationTarget::User),
        any::<[u8; 16]>().prop_map(RevocationTarget::Session)
    ]
}

fn issue_place() -> impl Strategy<Value = IssueCursor> {
    any::<(u8, u64)>().prop_map(|(stream, at)| IssueCursor { stream, at })
}

fn grant_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (path(), of(Method::ALL), any::<(bool, bool, u64, Option<u64>, u64)>()).prop_map(
            |(path, method, (read, write, start, end, until_ms))| Request::Delegate {
                path,
                read,
                write,
                start,
                end,
                until_ms,
                method
            }
        ),
        (path(), of(Method::ALL), any::<u64>())
            .prop_map(|(path, method, until_ms)| Request::DelegateExecution { path, until_ms, method }),
        (path(), of(Method::ALL), any::<u64>())
            .prop_map(|(path, method, until_ms)| Request::DelegateCallData { path, until_ms, method }),
        (path(), of(Method::ALL), any::<u32>()).prop_map(|(path, method, device)| {
            Request::CopyFunction { path, device: DeviceId(device), method }
        }),
        (path(), of(Method::ALL), any::<(u32, u64)>()).prop_map(|(path, method, (device, size_max))| {
            Request::ReserveResult { path, device: DeviceId(device), size_max, method }
        }),
        (path(), of(Method::ALL), any::<(u32, u64)>()).prop_map(|(path, method, (device, size_max))| {
            Request::ReserveJobResult { path, device: DeviceId(device), size_max, method }
        }),
        (any::<(Option<u64>, u8)>(), prop::collection::vec(any::<[u8; 32]>(), 0..5)).prop_map(
            |((partition, policy), keys)| Request::FunctionPolicySet {
                partition,
                policy,
                digests: keys.iter().rev().copied().collect(),
                keys,
            }
        ),
        (of(Method::ALL), any::<(u32, u64, bool)>()).prop_map(|(method, (device, partition, change))| {
            Request::FunctionPolicyAccess { id: DeviceId(device), partition, change, method }
        }),
        (of(Method::ALL), any::<u32>())
            .prop_map(|(method, device)| Request::DeviceAttributes { id: DeviceId(device), method }),
        prop::collection::vec(any::<u8>(), 0..99)
            .prop_map(|receipt| Request::ReceiptVerify { receipt: ReceiptBytes::new(receipt).unwrap() }),
        revoke_what().prop_map(|what| Request::Revoke { what }),
        any::<u64>().prop_map(|id| Request::RevocationProgress { id }),
        Just(Request::RevocationList {}),
        (path(), prop::option::of(user()), any::<(u64, u64)>(), prop::option::of(issue_place())).prop_map(
            |(path, user, (since_ms, until_ms), from)| Request::IssueList {
                path,
                user,
                since_ms,
                until_ms,
                from
            }
        ),
    ]
}

fn placed() -> impl Strategy<Value = PlacementRecord> {
    let chosen = (of(DeviceCondition::ALL), any::<(u16, u16)>())
        .prop_map(|(condition, (fill, weight))| ChosenDevice { condition, fill, weight });
    let figures = any::<(u64, Option<u64>, u32, u32, Option<u16>)>();
    (figures, of(WidthBound::ALL), prop::collection::vec(chosen, 0..9)).prop_map(
        |((at_ms, size_hint, considered, left_out, outgrew), bound, chosen)| PlacementRecord {
            at_ms,
            size_hint,
            bound,
            considered,
            left_out,
            chosen,
            outgrew,
        },
    )
}

fn revocation() -> impl Strategy<Value = Revocation> {
    let numbers = any::<(u64, u64, u64, u64, bool, bool, Option<u64>)>();
    let waiting = (any::<(u32, u32)>(), ".{0,20}").prop_map(|((device, objects), problem)| WaitingDevice {
        device: DeviceId(device),
        objects,
        problem: Text::truncated(&problem),
    });
    (numbers, revoke_what(), prop::collection::vec(waiting, 0..4)).prop_map(
        |((id, began_ms, total, open, collecting, complete, done_ms), what, waiting)| Revocation {
            id,
            what,
            began_ms,
            total,
            open,
            collecting,
            complete,
            keys: u32::from(complete),
            keys_open: u32::from(collecting),
            done_ms,
            waiting,
        },
    )
}

fn issue_entry() -> impl Strategy<Value = IssueEntry> {
    let numbers = any::<(u64, [u8; 16], u32, u16, u64, u64, u64)>();
    (numbers, user(), of(IssueKind::ALL), of(Method::ALL)).prop_map(
        |((time_ms, session, number, permissions, expires_ms, start, end), user, kind, method)| IssueEntry {
            time_ms,
            kind,
            user,
            session,
            number,
            permissions,
            method,
            expires_ms,
            start,
            end,
        },
    )
}

fn grant_response() -> impl Strategy<Value = Response> {
    let numbers = any::<(u64, u64, bool, bool, u64, [u8; 20])>();
    prop_oneof![
        (stat(), object(), prop::collection::vec(grant(), 0..9), numbers).prop_map(
            |(stat, object, grants, (start, end, read, write, expires_ms, principal))| {
                let layout = Layout::single(object);
                let file =
                    DelegatedFile { stat, layout, grants, start, end, read, write, expires_ms, principal };
                Response::Delegated { file }
            }
        ),
        grant().prop_map(|grant| Response::DeviceGrant { grant }),
        (of(ReceiptVerdict::ALL), any::<Option<u32>>())
            .prop_map(|(verdict, device)| Response::Receipt { verdict, device: device.map(DeviceId) }),
        revocation().prop_map(|revocation| Response::Revocation { revocation }),
        prop::collection::vec(revocation(), 0..4)
            .prop_map(|revocations| Response::Revocations { revocations }),
        (prop::collection::vec(issue_entry(), 0..9), any::<u64>(), prop::option::of(issue_place()))
            .prop_map(|(entries, known_since_ms, next)| Response::Issues { entries, known_since_ms, next }),
    ]
}

fn key_info() -> impl Strategy<Value = KeyInfo> {
    let numbers = any::<(u32, u64, u8, Option<[u8; 7]>, u64, u64, u64)>();
    (numbers, of(KeyLevel::ALL), of(KeyUse::ALL)).prop_map(
        |((device, partition, version, identifier, set_ms, dead_ms, credentials), level, usage)| KeyInfo {
            device: DeviceId(device),
            level,
            partition,
            version,
            identifier,
            set_ms,
            dead_ms,
            usage,
            credentials,
        },
    )
}

fn response() -> impl Strategy<Value = Response> {
    let grants = || prop::collection::vec(grant(), 0..9);
    prop_oneof![
        grant_response(),
        nodes::response(),
        quota::response(),
        check::response(),
        disks::response(),
        (of(ErrorCode::ALL), ".{0,300}")
            .prop_map(|(code, text)| Response::Failed { failure: Failure::new(code, &text) }),
        (any::<(u16, u64)>(), any::<[u8; 16]>()).prop_map(|((version, time_ms), server_id)| {
            Response::Hello { version, software: Text::default(), server_id, time_ms }
        }),
        (user(), of(Role::ALL), prop::collection::vec(group(), 0..5), any::<([u8; 16], u64)>()).prop_map(
            |(user, role, groups, (session, expires_ms))| {
                Response::WhoAmI { user, role, groups, session, expires_ms }
            }
        ),
        Just(Response::Done {}),
        stat().prop_map(|stat| Response::Stat { stat }),
        (prop::collection::vec((name(), stat(), any::<bool>()), 0..40), any::<bool>()).prop_map(
            |(entries, more)| {
                let entry = |(name, stat, reported): (_, Stat, bool)| {
                    let (inode, kind) = (stat.inode, stat.kind);
                    DirEntry { name, inode, kind, stat: reported.then_some(stat) }
                };
                let entries = entries.into_iter().map(entry).collect();
                Response::Directory { entries, more }
            }
        ),
        (any::<(u64, u64, u64)>(), object(), grants()).prop_map(
            |((intent, inode, expires_ms), object, grants)| {
                let (intent, inode, layout) = (IntentId(intent), InodeId(inode), Layout::single(object));
                Response::Created { file: CreatedFile { intent, inode, expires_ms, layout, grants } }
            }
        ),
        (stat(), prop::option::of(object()), grants(), any::<bool>()).prop_map(
            |(stat, object, grants, sparse)| {
                let layout = object.map(Layout::single);
                Response::Opened { file: OpenedFile { stat, layout, grants, sparse } }
            }
        ),
        (object(), any::<u32>(), grants()).prop_map(|(object, generation, grants)| {
            Response::Grants { layout: Layout::single(object), generation, grants }
        }),
        (any::<u64>(), any::<bool>()).prop_map(|(count, more)| Response::Removed { count, more }),
        (prop::option::of(object()), prop::option::of(placed())).prop_map(|(object, placed)| {
            Response::Placement { layout: object.map(Layout::single), placed }
        }),
        any::<(u64, u64, u32, u32)>().prop_map(|(total, used, active, devices)| Response::DiskFree {
            total,
            used,
            active,
            devices
        }),
        (user(), of(Role::ALL), of(AccountKind::ALL), any::<(bool, u64, Vec<u16>, Option<u64>)>()).prop_map(
            |(name, role, kind, (enabled, created_ms, suites, code_until_ms))| {
                let user = User { name, role, kind, enabled, created_ms, suites, code_until_ms };
                Response::Users { users: vec![user; 3], more: enabled }
            }
        ),
        (group(), any::<(u64, bool)>()).prop_map(|(name, (created_ms, more))| Response::Groups {
            groups: vec![Group { name, created_ms }; 3],
            more
        }),
        (prop::collection::vec(user(), 0..5), any::<bool>())
            .prop_map(|(members, more)| Response::Members { members, more }),
        any::<([u8; 16], u64, bool)>().prop_map(|(login_id, time_ms, own)| {
            let challenge = LoginChallenge { login_id, ke2: [3; 320], time_ms, max_error_ms: 5 };
            Response::UserRegisterStart { response: [4; 64], challenge: own.then_some(challenge) }
        }),
        (secret(), any::<u64>()).prop_map(|(code, expires_ms)| Response::Invitation { code, expires_ms }),
        (user(), object(), any::<([u8; 16], bool, u64)>()).prop_map(
            |(user, object, (session, writes, expires_ms))| {
                let client_id = CredentialHolder { user, session, object, writes, expires_ms };
                Response::Holders { holders: vec![client_id; 2], complete: writes }
            }
        ),
        (prop::collection::vec(key_info(), 0..9), prop::option::of(key_place()))
            .prop_map(|(keys, next)| Response::Keys { keys, next }),
        any::<(u64, u32, u64)>().prop_map(|(open, stuck, changed)| Response::KeyProgress {
            open,
            stuck,
            changed
        }),
    ]
}

proptest! {
    #[test]
    fn every_request_survives_the_wire(id: u64, request in request()) {
        let body = request.encode(id).unwrap();
        prop_assert_eq!(Request::decode(&body), Ok((id, request)));
    }

    #[test]
    fn every_response_survives_the_wire(id: u64, response in response()) {
        let body = response.encode(id).unwrap();
        prop_assert_eq!(Response::decode(&body), Ok((id, response)));
    }

    #[test]
    fn arbitrary_bytes_are_a_message_or_an_error(mut body in prop::collection::vec(any::<u8>(), 0..400), row: prop::sample::Index) {
        if body.len() > 12 {
            // Most bytes get a valid operation number.
            body[8..10].copy_from_slice(&row.get(REQUESTS).0.to_be_bytes());
            body[10..12].copy_from_slice(&[SCHEMA, 0]);
        }
        if let Ok((id, request)) = Request::decode(&body) {
            prop_assert_eq!(Request::decode(&request.encode(id).unwrap()), Ok((id, request)));
        }
        let _ = Response::decode(&body);
        let _ = crate::decode_message::<LoginStart>(&body);
        let _ = crate::decode_message::<LoginOk>(&body);
        let _ = crate::decode_message::<RegisterUpload>(&body);
    }

    #[test]
    fn a_damaged_request_is_a_message_or_an_error(id: u64, request in request(), at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
        let mut body = request.encode(id).unwrap();
        let position = at.index(body.len());
        body[position] = value;
        let _ = Request::decode(&body);
        let _ = Request::decode(&body[..cut.index(body.len())]);
    }

    #[test]
    fn a_later_schema_may_append_fields(id: u64, request in request(), tail in prop::collection::vec(any::<u8>(), 1..20)) {
        let mut body = request.encode(id).unwrap();
        body.extend_from_slice(&tail);
        prop_assert_eq!(Request::decode(&body), Err((Some(id), WireError::Trailing(tail.len()))));
        body[10] = SCHEMA + 1;
        prop_assert_eq!(Request::decode(&body), Ok((id, request)));
    }
}

#[test]
fn row_numbers_are_unique_and_sorted() {
    for table in [REQUESTS, RESPONSES] {
        assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}

#[test]
fn largest_grants_and_pages_fit_frame() {
    let grant = Grant {
        object: ObjectRef { device: DeviceId(1), object: ObjectId::new(1, 1) },
        method: Method::AllData,
        expires_ms: 0,
        capability: CapabilityBlob::new(vec![0; CapabilityBlob::MAX]).unwrap(),
        key: Secret::new(vec![0; 32]).unwrap(),
    };
    let grants = vec![grant; crate::WIDTH_MAX];
    let object = |number| ObjectRef { device: DeviceId(1), object: ObjectId::new(1, number) };
    let layout = Layout::striped(1 << 20, (0..crate::WIDTH_MAX as u64).map(object).collect()).unwrap();
    assert!(Response::Grants { layout, generation: u32::MAX, grants }.encode(0).is_ok());
}

#[test]
fn encode_refuses_message_over_frame_limit() {
    let entry = User {
        name: UserName::new("x".repeat(64)).unwrap(),
        role: Role::User,
        kind: AccountKind::Password,
        enabled: true,
        created_ms: 0,
        suites: vec![SUITE_STANDARD],
        code_until_ms: Some(0),
    };
    let users = vec![entry; 1024];
    assert_eq!(Response::Users { users, more: false }.encode(0), Err(WireError::TooLong { limit: BODY_MAX }));
}

#[test]
fn login_bodies_have_the_documented_sizes() {
    let mut out = WireWriter::new();
    LoginChallenge { login_id: [0; 16], ke2: [0; KE2_BYTES], time_ms: 0, max_error_ms: 0 }.put(&mut out);
    assert_eq!(out.len(), 16 + 320 + 8 + 4);
    let mut out = WireWriter::new();
    Resume { session: [0; 16], nonce: [0; 16], mac: [0; 32] }.put(&mut out);
    assert_eq!(out.len(), 64);
    let mut out = WireWriter::new();
    Retry { cookie: [0; 40], retry_ms: 1 }.put(&mut out);
    assert_eq!(out.len(), 44);
}

#[test]
fn only_lookup_requests_are_classified_as_lookups() {
    let root = Node::ROOT;
    let lookup =
        Request::Lookup { parent: root, name: Name::new("a").unwrap(), client_id: None }.encode(7).unwrap();
    let looks_up = [lookup.clone(), Request::GetNode { node: root }.encode(8).unwrap()];
    assert!(looks_up.iter().all(|body| Request::only_looks_up(body)));
    for request in [
        Request::WhoAmI {},
        Request::StatFs { node: None },
        Request::ReadNodes { directory: root, after: None, limit: 9, client_id: None },
        Request::RemoveNode { parent: root, name: Name::new("a").unwrap(), directory: false },
    ] {
        assert!(!Request::only_looks_up(&request.encode(9).unwrap()), "{request:?}");
    }
    assert!(!Request::only_looks_up(&lookup[..9]) && !Request::only_looks_up(&[]));
}
