//! `sealstone-mds-protocol`: frames, login bodies, requests, responses, layouts, names.

use sealstone_mds_protocol::login::{
    KE1_BYTES, KE2_BYTES, KE3_BYTES, LoginAgain, LoginChallenge, LoginError, LoginErrorCode, LoginFinish,
    LoginOk, LoginStart, Logout, LogoutOk, REGISTRATION_REQUEST_BYTES, REGISTRATION_RESPONSE_BYTES,
    REGISTRATION_UPLOAD_BYTES, RegisterOk, RegisterResponse, RegisterStart, RegisterUpload, Resume, Retry,
    Revoking, SUITE_LIGHT, SUITE_SERVICE_A,
};
use sealstone_mds_protocol::{
    Access, AccountKind, Acl, BODY_MAX, CapabilityBlob, Checksum, ChecksumKind, ChosenDevice, CreatedFile,
    CredentialHolder, DelegatedFile, Device, DeviceCondition, DeviceId, DevicePin, DeviceProblem,
    DeviceState, DirEntry, Drain, ErrorCode, FILE_SIZE_MAX, Failure, FileKind, FilePath, FrameHeader, Grant,
    Group, GroupName, HEADER_BYTES, InodeId, IntentId, IssueCursor, IssueEntry, IssueKind, KeyCursor,
    KeyInfo, KeyLevel, KeyUse, Layout, MessageType, Method, Name, NewDevice, ObjectRef, OpenHandle,
    OpenedFile, PinKind, PlacementRecord, ProblemKind, REQUESTS, RESPONSES, Rebalance, ReceiptBytes,
    ReceiptVerdict, Request, Response, Revocation, RevocationTarget, Role, SCHEMA, STRIPE_UNIT_MIN, Secret,
    Stat, Text, User, UserName, WaitingDevice, WidthBound, Wire, WireWriter, decode_message, frame, unshown,
};
use sealstone_osd::ObjectId;

use crate::Target;
use crate::input::{Input, array, seed};

mod disks;
mod nodes;
mod quotas;

/// Maximum number of extents compared per range.
const EXTENTS_MAX: usize = 64;

fn name(text: &str) -> Name {
    Name::new(text).expect("a proper name")
}

fn path(text: &str) -> FilePath {
    FilePath::new(text).expect("a proper path")
}

pub(crate) fn user(text: &str) -> UserName {
    UserName::new(text).expect("a proper account")
}

fn group(text: &str) -> GroupName {
    GroupName::new(text).expect("a proper group")
}

fn text<const MAX: usize>(text: &str) -> Text<MAX> {
    Text::new(text).expect("a short text")
}

pub(super) fn body(message: &impl Wire) -> Vec<u8> {
    let mut out = WireWriter::new();
    message.put(&mut out);
    out.finish(BODY_MAX).expect("seeds are short")
}

/// A body that decodes must encode to the same bytes: each value has one encoding.
pub(super) fn one<T: Wire>(bytes: &[u8]) {
    if let Ok(message) = decode_message::<T>(bytes) {
        assert_eq!(body(&message), bytes);
    }
}

/// Decodes a login body by its type; false for types without a body here.
fn login_body(kind: MessageType, bytes: &[u8]) -> bool {
    match kind {
        MessageType::LoginStart => one::<LoginStart>(bytes),
        MessageType::LoginChallenge => one::<LoginChallenge>(bytes),
        MessageType::LoginFinish => one::<LoginFinish>(bytes),
        MessageType::LoginOk => one::<LoginOk>(bytes),
        MessageType::Resume => one::<Resume>(bytes),
        MessageType::LoginAgain => one::<LoginAgain>(bytes),
        MessageType::RegisterOk => one::<RegisterOk>(bytes),
        MessageType::Logout => one::<Logout>(bytes),
        MessageType::LogoutOk => one::<LogoutOk>(bytes),
        MessageType::Retry => one::<Retry>(bytes),
        MessageType::RegisterStart => one::<RegisterStart>(bytes),
        MessageType::RegisterResponse => one::<RegisterResponse>(bytes),
        MessageType::RegisterUpload => one::<RegisterUpload>(bytes),
        MessageType::Error => one::<LoginError>(bytes),
        MessageType::Request | MessageType::Response => return false,
    }
    true
}

/// An encoded message of every login type.
fn login_messages() -> Vec<(MessageType, Vec<u8>)> {
    let start = LoginStart { suite: SUITE_LIGHT, user: user("alice"), capabilities: 0, ke1: [1; KE1_BYTES] };
    let challenge = LoginChallenge { login_id: [2; 16], ke2: [3; KE2_BYTES], time_ms: 4, max_error_ms: 5 };
    let ok = LoginOk {
        session: [6; 16],
        epoch: 0,
        expires_ms: 7,
        idle_s: 8,
        roles: text("read-only"),
        confirm: [9; 32],
    };
    let code = |text: &[u8]| Secret::new(text.to_vec()).expect("a short code");
    let upload = RegisterUpload {
        user: user("bob"),
        code: code(b"x"),
        record: [1; REGISTRATION_UPLOAD_BYTES],
        suite: SUITE_LIGHT,
    };
    let code = code(b"one-time-code");
    let revoking = Revoking { id: 1, objects: 2, until_ms: 3, complete: true };
    vec![
        (MessageType::LoginStart, body(&start)),
        (MessageType::LoginChallenge, body(&challenge)),
        (MessageType::LoginFinish, body(&LoginFinish { login_id: [2; 16], ke3: [5; KE3_BYTES] })),
        (MessageType::LoginOk, body(&ok)),
        (MessageType::Resume, body(&Resume { session: [6; 16], nonce: [1; 16], mac: [2; 32] })),
        (MessageType::LoginAgain, body(&LoginAgain { cookie: [7; 40], start })),
        (MessageType::RegisterOk, body(&RegisterOk { time_ms: 9 })),
        (MessageType::Logout, body(&Logout { session: [6; 16], flags: 1 })),
        (MessageType::LogoutOk, body(&LogoutOk { session: [6; 16], revoking: Some(revoking) })),
        (MessageType::Retry, body(&Retry { cookie: [7; 40], retry_ms: 9 })),
        (
            MessageType::RegisterStart,
            body(&RegisterStart { user: user("bob"), code, request: [1; REGISTRATION_REQUEST_BYTES] }),
        ),
        (
            MessageType::RegisterResponse,
            body(&RegisterResponse { response: [1; REGISTRATION_RESPONSE_BYTES] }),
        ),
        (MessageType::RegisterUpload, body(&upload)),
        (MessageType::Error, body(&LoginError { code: LoginErrorCode::Busy, retry_ms: 100 })),
    ]
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let logins = login_messages().into_iter().map(|(kind, body)| (kind, 0, body));
    let requests = requests().into_iter().map(|request| (MessageType::Request, 1, encoded(&request)));
    let responses = responses().into_iter().take(3).map(|one| (MessageType::Response, 2, answered(&one)));
    let all = logins.chain(requests.take(3)).chain(responses);
    all.map(|(kind, sequence, body)| frame(kind, sequence, &body).expect("seeds are short")).collect()
}

fn frames(input: &[u8]) {
    let mut input = Input::new(input);
    // Several frames may follow each other, as on a connection.
    for _ in 0..8 {
        let head: [u8; HEADER_BYTES] = input.array();
        let Ok(header) = FrameHeader::parse(&head) else { return };
        assert_eq!(header.encode(), head);
        let length = usize::try_from(header.body_length).expect("bounded by BODY_MAX");
        assert!(length <= BODY_MAX);
        let bytes = input.take(length);
        if bytes.len() < length {
            return;
        }
        let again = frame(header.kind, header.sequence, bytes).expect("within the limit");
        assert_eq!(again[..HEADER_BYTES], head);
        if !login_body(header.kind, bytes) {
            request(bytes);
            response(bytes);
        }
    }
}

pub(crate) const FRAME: Target = Target {
    name: "mds-frame",
    about: "frames with their bodies; a header that parses encodes to its own bytes",
    run: frames,
    seeds: frame_seeds,
    cost: 1,
    quarantine: None,
    covers: &["mds-protocol::Header::parse", "mds-protocol::frame::decode_message"],
};

fn login_seeds() -> Vec<Vec<u8>> {
    let at = |kind| MessageType::ALL.iter().position(|one| *one == kind).expect("one of all") as u8;
    login_messages().into_iter().map(|(kind, body)| seed(&[at(kind)], &body)).collect()
}

fn login(input: &[u8]) {
    let mut input = Input::new(input);
    let kind = MessageType::ALL[usize::from(input.byte()) % MessageType::ALL.len()];
    let _ = login_body(kind, input.rest());
}

pub(crate) const LOGIN: Target = Target {
    name: "mds-login",
    about: "which login message, then its body; what decodes encodes to the same bytes",
    run: login,
    seeds: login_seeds,
    cost: 1,
    quarantine: None,
    covers: &["mds-protocol::frame::decode_message"],
};

fn encoded(request: &Request) -> Vec<u8> {
    request.encode(7).expect("seeds are short")
}

/// A request of every row.
pub(crate) fn requests() -> Vec<Request> {
    let checksum = Checksum { kind: ChecksumKind::Sha256, value: [5; 32] };
    let device = NewDevice {
        name: name("osd-1"),
        system_id: [1; 20],
        url: text("iscsi://h:3260/iqn.2026-11.org.sealstone:osd.a/0"),
        pin: Some(DevicePin { kind: PinKind::Certificate, hash: [9; 32] }),
        capacity: 1 << 40,
        speed: 500_000_000,
        master_key: Secret::new(vec![7; 32]).expect("a short key"),
    };
    let handle = OpenHandle::File { node: stat().node(), access: Access::Update };
    let method = Method::AllData;
    let mut all = vec![
        Request::Hello { oldest: 1, newest: 1, software: text("fuzz 1") },
        Request::WhoAmI {},
        Request::ServerInfo {},
        Request::Stat { path: path("/a/b") },
        Request::Lstat { path: path("/a/b") },
        Request::Placement { path: path("/a/b") },
        Request::ReadDir { path: path("/"), after: Some(name("x")), limit: 10 },
        Request::MakeDir { path: path("/d"), parents: true, mode: 0o755 },
        Request::Create { path: path("/f"), size_hint: Some(9), mode: 0o644, replace: true, method },
        Request::Open { path: path("/f"), access: Access::Read, method },
        Request::RenewGrants { handle, method },
        Request::RenewGrants { handle: OpenHandle::Intent(IntentId(3)), method: Method::CmdRsp },
        Request::Commit { intent: IntentId(1), size: 9, mtime_ns: Some(1), checksum: Some(checksum) },
        Request::Abandon { intent: IntentId(1) },
        Request::Rename { from: path("/f"), to: path("/g"), replace: false },
        Request::Remove { path: path("/d"), recursive: true },
        Request::SetMode { path: path("/g"), mode: 0o600 },
        Request::DiskFree {},
        Request::DeviceList { after: Some(DeviceId(1)), limit: 5 },
        Request::DeviceAdd { device },
        Request::DeviceSetState { id: DeviceId(1), state: DeviceState::Draining },
        Request::DeviceDrain { id: DeviceId(1), rate: 1 << 20 },
        Request::Rebalance { rate: 1 << 20 },
        Request::RebalanceStop {},
        Request::RebalanceShow {},
        Request::UserRegisterStart {
            name: user("bob"),
            request: [1; REGISTRATION_REQUEST_BYTES],
            proof: Some(LoginStart { suite: 1, user: user("bob"), capabilities: 0, ke1: [3; KE1_BYTES] }),
        },
        Request::UserRegisterFinish {
            name: user("bob"),
            record: [2; REGISTRATION_UPLOAD_BYTES],
            suite: SUITE_LIGHT,
            role: Role::Admin,
            replace: false,
            proof: Some(LoginFinish { login_id: [4; 16], ke3: [5; KE3_BYTES] }),
        },
        Request::UserList { after: None, limit: 3 },
        Request::UserSetEnabled { name: user("bob"), enabled: false },
        Request::UserRemove { name: user("bob") },
        Request::UserSetRole { name: user("bob"), role: Role::Operator },
        Request::GroupCreate { name: group("staff") },
        Request::GroupRemove { name: group("staff") },
        Request::GroupAddMember { group: group("staff"), user: user("bob") },
        Request::GroupRemoveMember { group: group("staff"), user: user("bob") },
        Request::GroupList { after: Some(group("a")), limit: 4 },
        Request::GroupMembers { group: group("staff"), after: None, limit: 4 },
        Request::SetOwner { path: path("/g"), owner: Some(user("bob")), group: Some(None) },
        Request::SetOwner { path: path("/g"), owner: None, group: Some(Some(group("staff"))) },
        Request::UserInvite {
            name: user("eve"),
            kind: AccountKind::Directory,
            role: Role::ReadOnly,
            lifetime_s: 60,
            replace: false,
        },
        Request::UserRetireKey { name: user("backup"), suite: SUITE_SERVICE_A },
        Request::GrantHolders { path: path("/f") },
        Request::Delegate {
            path: path("/f"),
            read: true,
            write: true,
            start: 1,
            end: Some(5),
            until_ms: 60_000,
            method,
        },
        Request::DelegateExecution { path: path("/f"), until_ms: 60_000, method },
        Request::DelegateCallData { path: path("/f"), until_ms: 60_000, method },
        Request::FunctionPolicySet {
            partition: None,
            policy: 2,
            keys: vec![[1; 32]],
            digests: vec![[2; 32]],
        },
        Request::FunctionPolicyAccess { id: DeviceId(1), partition: 1 << 16, change: true, method },
        Request::CopyFunction { path: path("/f"), device: DeviceId(1), method },
        Request::ReserveResult { path: path("/f"), device: DeviceId(1), size_max: 1 << 20, method },
        Request::ReserveJobResult { path: path("/f"), device: DeviceId(1), size_max: 1 << 20, method },
        Request::DeviceAttributes { id: DeviceId(1), method },
        Request::ReceiptVerify { receipt: ReceiptBytes::new(vec![1; 352]).expect("a receipt fits") },
        Request::Revoke { what: RevocationTarget::Object(path("/f")) },
        Request::Revoke { what: RevocationTarget::User(user("bob")) },
        Request::Revoke { what: RevocationTarget::Session([6; 16]) },
        Request::RevocationProgress { id: 1 },
        Request::RevocationList {},
        Request::IssueList {
            path: path("/f"),
            user: Some(user("bob")),
            since_ms: 1,
            until_ms: 2,
            from: Some(IssueCursor { stream: 1, at: 3 }),
        },
        Request::KeyList {
            device: Some(DeviceId(1)),
            from: Some(KeyCursor { device: DeviceId(1), partition: Some(1 << 16) }),
        },
        Request::KeyRotate {
            level: KeyLevel::Working,
            device: Some(DeviceId(1)),
            partition: Some(1 << 16),
            revoke: true,
        },
        Request::KeyProgress { device: None },
        Request::UserSetPaperKey { name: user("bob"), key: Secret::new(vec![7; 20]).ok() },
    ];
    all.extend(nodes::requests());
    all.extend(quotas::requests());
    all.extend(disks::requests());
    all
}

fn request_seeds() -> Vec<Vec<u8>> {
    let all = requests();
    assert!(
        REQUESTS.iter().all(|(row, _)| all.iter().any(|one| one.operation() == *row)),
        "a seed for each row"
    );
    all.iter().map(encoded).collect()
}

/// A decoded body encodes to the same bytes, or for a later schema to a prefix apart from the
/// schema byte.
fn same_bytes(given: &[u8], encoded: &[u8]) {
    assert_eq!((&given[..10], &given[11..12]), (&encoded[..10], &encoded[11..12]));
    assert!(given[12..].starts_with(&encoded[12..]));
    assert!(given[10] > SCHEMA || given == encoded);
}

fn request(bytes: &[u8]) {
    if let Ok((id, request)) = Request::decode(bytes) {
        let encoded = request.encode(id).expect("what decodes is within the limits");
        // A decoded path loses redundant slashes.
        if encoded.len() == bytes.len() {
            same_bytes(bytes, &encoded);
        }
        assert_eq!(Request::decode(&encoded).as_ref(), Ok(&(id, request.clone())));
        assert!(REQUESTS.contains(&(request.operation(), request.name())));
    }
}

pub(crate) const REQUEST: Target = Target {
    name: "mds-request",
    about: "a request body; what decodes encodes to the same bytes but for slashes, and decodes the same",
    run: request,
    seeds: request_seeds,
    cost: 1,
    quarantine: None,
    covers: &["mds-protocol::table::decode"],
};

fn objects(width: u32) -> Vec<ObjectRef> {
    let object =
        |at| ObjectRef { device: DeviceId(at), object: ObjectId::new(0x1_0000, 0x1_0000 + u64::from(at)) };
    (0..width).map(object).collect()
}

fn layouts() -> Vec<Layout> {
    let striped = |unit, width| Layout::striped(unit, objects(width)).expect("a proper layout");
    vec![Layout::single(objects(1)[0]), striped(STRIPE_UNIT_MIN, 3), striped(1 << 20, 64)]
}

fn stat() -> Stat {
    Stat {
        inode: InodeId(2),
        proof: [4; 8],
        kind: FileKind::File,
        mode: 0o644,
        owner: user("alice"),
        group: Some(group("staff")),
        links: 1,
        rdev: 0,
        size: 9,
        version: 1,
        generation: 1,
        atime_ns: -1,
        mtime_ns: 1,
        ctime_ns: 2,
        birth_ns: 3,
        width: 3,
        checksum: Some(Checksum { kind: ChecksumKind::Crc32c, value: [5; 32] }),
    }
}

/// A response of every row.
pub(crate) fn responses() -> Vec<Response> {
    let layout = layouts()[1].clone();
    let grant = Grant {
        object: objects(1)[0],
        method: Method::AllData,
        expires_ms: 5,
        capability: CapabilityBlob::new(vec![2; 104]).expect("a short capability"),
        key: Secret::new(vec![7; 32]).expect("a short key"),
    };
    let grants = vec![grant; 3];
    let device = Device {
        id: DeviceId(1),
        name: name("osd-1"),
        system_id: [1; 20],
        url: text("iscsi://h/iqn.x/0"),
        pin: Some(DevicePin { kind: PinKind::Authority, hash: [8; 32] }),
        state: DeviceState::Active,
        total: 9,
        used: 1,
        speed: 2,
        problem: Some(DeviceProblem { kind: ProblemKind::Denied, said: text("another key") }),
        drain: Some(Drain {
            left_objects: 3,
            problem: text("no other device has enough free space"),
            ..Drain::default()
        }),
    };
    let entry = DirEntry { name: name("f"), inode: InodeId(2), kind: FileKind::File, stat: Some(stat()) };
    let account = User {
        name: user("bob"),
        role: Role::Admin,
        kind: AccountKind::Service,
        enabled: true,
        created_ms: 1,
        suites: vec![SUITE_SERVICE_A],
        code_until_ms: Some(2),
    };
    let client_id = CredentialHolder {
        user: user("bob"),
        session: [6; 16],
        object: objects(1)[0],
        writes: true,
        expires_ms: 9,
    };
    let code = Secret::new(b"abcd".to_vec()).expect("a short code");
    let created = CreatedFile {
        intent: IntentId(1),
        inode: InodeId(2),
        expires_ms: 3,
        layout: layout.clone(),
        grants: grants.clone(),
    };
    let delegated = DelegatedFile {
        stat: stat(),
        layout: layout.clone(),
        grants: grants.clone(),
        start: 1,
        end: 5,
        read: true,
        write: false,
        expires_ms: 9,
        principal: [4; 20],
    };
    let revocation = Revocation {
        id: 1,
        what: RevocationTarget::User(user("bob")),
        began_ms: 2,
        total: 3,
        open: 1,
        keys: 2,
        keys_open: 1,
        collecting: false,
        complete: true,
        done_ms: None,
        waiting: vec![WaitingDevice { device: DeviceId(1), objects: 1, problem: text("away") }],
    };
    let issued = IssueEntry {
        time_ms: 1,
        kind: IssueKind::Delegate,
        user: user("bob"),
        session: [6; 16],
        number: 2,
        permissions: 0x8000,
        method: Method::AllData,
        expires_ms: 9,
        start: 0,
        end: 5,
    };
    let mut all = vec![
        Response::Failed { failure: Failure::new(ErrorCode::ALL[0], "why") },
        Response::Hello { version: 1, software: text("fuzz"), server_id: [1; 16], time_ms: 2 },
        Response::WhoAmI {
            user: user("alice"),
            role: Role::User,
            groups: vec![group("staff"); 2],
            session: [6; 16],
            expires_ms: 9,
        },
        Response::ServerInfo {
            time_ms: 1,
            method_floor: Method::CmdRsp,
            files: 2,
            directories: 3,
            intents: 4,
            reap_queue: 5,
            sessions: 6,
            devices: 7,
        },
        Response::Done {},
        Response::Stat { stat: stat() },
        Response::Directory { entries: vec![entry; 3], more: true },
        Response::Created { file: created },
        Response::Opened {
            file: OpenedFile { stat: stat(), layout: Some(layout), grants: grants.clone(), sparse: false },
        },
        Response::Grants { layout: Layout::single(objects(1)[0]), generation: 7, grants: grants.clone() },
        Response::Removed { count: 4, more: false },
        Response::Placement {
            layout: Some(Layout::single(objects(1)[0])),
            placed: Some(PlacementRecord {
                at_ms: 1,
                size_hint: Some(2),
                bound: WidthBound::Small,
                considered: 3,
                left_out: 4,
                chosen: vec![ChosenDevice { condition: DeviceCondition::Good, fill: 5, weight: 100 }],
                outgrew: Some(1),
            }),
        },
        Response::DiskFree { total: 1, used: 2, active: 3, devices: 4 },
        Response::Devices { devices: vec![device.clone(); 2], more: false },
        Response::Device { device },
        Response::Rebalance {
            rebalance: Some(Rebalance {
                began_ms: 1,
                rate: 2,
                moved_objects: 3,
                moved_bytes: 4,
                left_bytes: 5,
                in_use: 6,
                problem: Text::new("no room").expect("short"),
                done_ms: Some(7),
                stopped: true,
            }),
        },
        Response::UserRegisterStart {
            response: [1; REGISTRATION_RESPONSE_BYTES],
            challenge: Some(LoginChallenge {
                login_id: [1; 16],
                ke2: [2; KE2_BYTES],
                time_ms: 3,
                max_error_ms: 4,
            }),
        },
        Response::Users { users: vec![account; 2], more: false },
        Response::Groups { groups: vec![Group { name: group("staff"), created_ms: 1 }; 2], more: true },
        Response::Members { members: vec![user("bob"); 2], more: false },
        Response::Invitation { code, expires_ms: 5 },
        Response::Holders { holders: vec![client_id; 2], complete: true },
        Response::DeviceGrant { grant: grants[0].clone() },
        Response::Receipt { verdict: ReceiptVerdict::Genuine, device: Some(DeviceId(1)) },
        Response::Delegated { file: delegated },
        Response::Revocation { revocation: revocation.clone() },
        Response::Revocations { revocations: vec![revocation; 2] },
        Response::Issues {
            entries: vec![issued; 2],
            known_since_ms: 1,
            next: Some(IssueCursor { stream: 0, at: 7 }),
        },
        Response::Keys {
            keys: vec![KeyInfo {
                device: DeviceId(1),
                level: KeyLevel::Working,
                partition: 1 << 16,
                version: 3,
                identifier: Some([7; 7]),
                set_ms: 1,
                dead_ms: 2,
                usage: KeyUse::Current,
                credentials: 9,
            }],
            next: Some(KeyCursor { device: DeviceId(1), partition: None }),
        },
        Response::KeyProgress { open: 3, stuck: 1, changed: 2 },
    ];
    all.extend(nodes::responses());
    all.extend(quotas::responses());
    all.extend(disks::responses());
    all
}

fn answered(response: &Response) -> Vec<u8> {
    response.encode(7).expect("seeds are short")
}

fn response_seeds() -> Vec<Vec<u8>> {
    let all = responses();
    assert!(
        RESPONSES.iter().all(|(row, _)| all.iter().any(|one| one.operation() == *row)),
        "a seed for each row"
    );
    all.iter().map(answered).collect()
}

fn response(bytes: &[u8]) {
    if let Ok((id, response)) = Response::decode(bytes) {
        same_bytes(bytes, &response.encode(id).expect("what decodes is within the limits"));
        assert!(RESPONSES.contains(&(response.operation(), response.name())));
    }
}

pub(crate) const RESPONSE: Target = Target {
    name: "mds-response",
    about: "a response body; what decodes encodes to the same bytes",
    run: response,
    seeds: response_seeds,
    cost: 1,
    quarantine: None,
    covers: &["mds-protocol::table::decode"],
};

fn layout_seeds() -> Vec<Vec<u8>> {
    let range = [1_000_000_u64.to_be_bytes(), 9_000_000_u64.to_be_bytes()];
    layouts().iter().map(|layout| seed(range.as_flattened(), &body(layout))).collect()
}

fn layout(input: &[u8]) {
    let mut input = Input::new(input);
    let (start, end) = (input.long(), input.long());
    let bytes = input.rest();
    one::<Layout>(bytes);
    let Ok(layout) = decode_message::<Layout>(bytes) else { return };
    let mut at = start;
    for extent in layout.extents(start..end).take(EXTENTS_MAX) {
        assert!(extent.file_offset == at && extent.length > 0 && extent.index < layout.width());
        assert_eq!(layout.file_offset(extent.index, extent.object_offset), Some(at));
        at += extent.length;
        assert!(at <= end.min(FILE_SIZE_MAX));
    }
    let width = layout.width();
    let lengths: Vec<u64> = (0..width).map(|index| layout.object_length(index, start)).collect();
    assert_eq!(layout.file_size(&lengths), start.min(FILE_SIZE_MAX));
    for index in [0, width - 1, width, usize::MAX] {
        let _ = layout.object_range(index, start..end);
        let back = layout.file_offset(index, end).map(|at| layout.object_length(index, at + 1));
        assert!(back.is_none_or(|length| length == end + 1));
    }
}

pub(crate) const LAYOUT: Target = Target {
    name: "mds-layout",
    about: "a file range, then a layout; the arithmetic there and back agrees for any range",
    run: layout,
    seeds: layout_seeds,
    cost: 4,
    quarantine: None,
    covers: &["mds-protocol::frame::decode_message"],
};

fn names(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(name) = Name::new(input) {
        assert_eq!(unshown(&name.shown()).as_deref(), Some(input));
        let whole = FilePath::root().join(&name).expect("one name fits");
        assert_eq!(whole.split_last(), Some((FilePath::root(), name)));
    }
    let _ = unshown(&text);
    if let Ok(path) = FilePath::new(input) {
        assert_eq!(FilePath::new(path.as_bytes()).as_ref(), Ok(&path));
        assert!(path.names().all(|name| Name::new(name.as_bytes()).is_ok()));
        match path.split_last() {
            Some((above, name)) => assert_eq!(above.join(&name), Ok(path)),
            None => assert!(path.is_root()),
        }
    }
    if let Ok(user) = UserName::new(&*text) {
        assert_eq!(UserName::new(user.as_str()).as_ref(), Ok(&user));
        // Group names follow the rules of user names.
        assert_eq!(GroupName::new(user.as_str()).as_ref().map(GroupName::as_str), Ok(user.as_str()));
    }
    if let Ok(list) = Acl::parse(&text) {
        assert_eq!(Acl::parse(&list.to_string()).as_ref(), Ok(&list));
        assert_eq!(list.clone().with_mode(list.mode()), list);
    }
    let short = Text::<16>::truncated(&text);
    assert!(short.as_str().len() <= 16 && text.starts_with(short.as_str()));
    one::<Name>(input);
    if let Ok(path) = decode_message::<FilePath>(input) {
        one::<FilePath>(&body(&path));
    }
    one::<UserName>(input);
    let bare: [u8; 2] = array(input);
    one::<Text<255>>(&bare);
}

pub(crate) const NAMES: Target = Target {
    name: "mds-names",
    about: "text as name, path, account, access list; what is taken is canonical, and paths split and join",
    run: names,
    seeds: || {
        let texts = [
            "a",
            "/",
            "/a/b/c",
            "/ä ö/ß",
            "alice",
            "a.b-c_d@e",
            "//",
            "/../x",
            ".",
            "..",
            "/a/",
            "\u{202e}x",
            "user::rw-,group::r--,other::r--",
            "user::rwx,user:ann:rw-,group::r-x,group:dev:-w-,mask::rwx,other::---",
        ];
        texts.map(|text| text.as_bytes().to_vec()).to_vec()
    },
    cost: 1,
    quarantine: None,
    covers: &[
        "mds-protocol::Name::new",
        "mds-protocol::FilePath::new",
        "mds-protocol::UserName::new",
        "mds-protocol::GroupName::new",
        "mds-protocol::unshown",
        "mds-protocol::Acl::parse",
    ],
};
