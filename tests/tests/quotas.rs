//! Quotas through the real binaries: limits hold, are reported with the next step, and survive a
//! kill.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use std::sync::Arc;

use sealstone_client::{Client, Metadata as _};
use sealstone_initiator::{
    Bearer, Operation, OsdClient, OsdOptions, Pin, SystemEnvironment, TargetUrl, TcpDial, TlsPolicy,
};
use sealstone_mds_protocol::{
    Access, CreatedFile, Device, ErrorCode, FilePath, Grant, Method, Name, Node, Request, Response,
    XattrMode, XattrName, XattrValue,
};
use sealstone_tests::{CommandResult, Mounted, Signal, System, can_mount, text};

/// Runs a command with another session file.
fn other(system: &System, session: &str, arguments: &[&str]) -> CommandResult {
    let mut command = system.command(arguments);
    command.env("SEALSTONE_SESSION", system.path(session));
    CommandResult::from(command.output().expect("the binary starts"))
}

fn file(system: &System, name: &str, length: usize) -> String {
    let path = system.path(name);
    fs::write(&path, vec![b'x'; length]).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    text(&path).to_owned()
}

/// Runs a shell script in a folder. Returns whether it succeeded, and its output.
fn sh(folder: &Path, script: &str) -> (bool, String) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).env("LC_ALL", "C").output();
    let output = output.expect("sh runs");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn quotas_of_users_and_trees_survive_kills() {
    let mut system = System::start(1);
    let cluster = text(&system.cluster()).to_owned();
    let password = file(&system, "bob.pw", 20);
    system.run(&["user", "add", "bob", "--password-file", &password]).ok();
    other(&system, "bob.toml", &["login", "bob", "--cluster", &cluster, "--password-file", &password]).ok();
    system.run(&["quota", "set", "--user", "bob", "--size", "1MiB", "--files", "3"]).ok();
    let (big, small) = (file(&system, "big", 2 << 20), file(&system, "small", 100));
    let bob = |system: &System, arguments: &[&str]| other(system, "bob.toml", arguments);
    bob(&system, &["put", &big, "/big"]).fails(1).says(&[
        "user bob",
        "quota exceeded",
        "sealstone quota set",
    ]);
    bob(&system, &["put", &small, "/small"]).ok();
    let shown = bob(&system, &["--json", "quota", "show"]).ok().json();
    let expected = serde_json::json!({
        "user": "bob", "tree": null, "inode": null, "bytes": 100, "bytes_max": 1 << 20, "files": 1, "files_max": 3,
    });
    assert_eq!(shown, expected);
    bob(&system, &["quota", "set", "--user", "bob", "--size", "1G"]).fails(3);
    bob(&system, &["quota", "show", "--user", "admin"]).fails(3);
    system.run(&["quota", "set", "--user", "nobody", "--size", "1"]).fails(4);
    system.run(&["--json", "quota", "set", "--user", "bob"]).fails(2);

    // A tree quota applies to all users, and a file leaves the tree only as a copy.
    system.run(&["mkdir", "/t"]).ok();
    system.run(&["chmod", "777", "/t"]).ok();
    system.run(&["quota", "set", "--tree", "/t", "--size", "150"]).ok();
    bob(&system, &["put", &small, "/t/a"]).ok();
    system
        .run(&["put", &small, "/t/b"])
        .fails(1)
        .says(&["tree /t: 100 of 150 bytes in use, 100 more requested"]);
    bob(&system, &["mv", "/t/a", "/a"]).fails(1).says(&["copy it instead"]);
    system.run(&["quota", "set", "--tree", "/", "--size", "1"]).fails(1).says(&["begins empty"]);
    let before = system.run(&["--json", "quota", "list"]).ok().json();
    assert_eq!(before["quotas"].as_array().map(Vec::len), Some(3), "{before}");
    assert_eq!(before["quotas"][2]["tree"], "/t");
    assert!(system.run(&["quota", "list"]).ok().text().contains("tree /t"));
    assert_eq!(
        bob(&system, &["--json", "quota", "list"]).ok().json(),
        serde_json::json!({ "quotas": [before["quotas"][1]] })
    );

    system.end_mds(Signal::Kill);
    system.start_mds();
    assert_eq!(system.run(&["--json", "quota", "list"]).ok().json(), before);
    system.run(&["put", &small, "/t/b"]).fails(1);
    let checked = system.run(&["--json", "quota", "check"]).ok().json();
    // The root, the tree, and two files.
    assert_eq!((&checked["nodes"], &checked["wrong"]), (&4.into(), &serde_json::json!([])));
    bob(&system, &["quota", "check"]).fails(3);

    // Removed files release their space; without limits everything fits.
    bob(&system, &["rm", "/t/a"]).ok();
    system.run(&["put", &small, "/t/b"]).ok();
    system.run(&["quota", "clear", "--user", "bob"]).ok();
    bob(&system, &["put", &big, "/big"]).ok();
    assert_eq!(bob(&system, &["--json", "quota", "show"]).ok().json()["bytes"], (2 << 20) + 100);
}

#[test]
fn programs_on_a_mount_get_edquot() {
    if !can_mount() {
        return;
    }
    let system = System::start(2);
    system.run(&["mkdir", "/t"]).ok();
    system.run(&["quota", "set", "--tree", "/t", "--size", "1MiB"]).ok();
    let mount = Mounted::at(&system, "mnt");
    let tree = mount.path("t");
    // df shows the limit.
    let (_, room) = sh(&tree, "stat -f -c '%b %a %S' .");
    let room: Vec<u64> = room.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((room[0] * room[2], room[1] * room[2]), (1 << 20, 1 << 20));
    // A writer gets an error, and the bytes that fit are stored, for all mounts.
    fs::write(tree.join("old"), vec![b'o'; 300_000]).unwrap();
    let (done, printed) = sh(&tree, "dd if=/dev/zero of=new bs=64k count=40 conv=fsync");
    assert!(!done && printed.contains("quota exceeded"), "{printed}");
    let fits = (1u64 << 20) - 300_000;
    assert_eq!(fs::metadata(tree.join("new")).unwrap().len(), fits);
    assert_eq!(system.run(&["cat", "/t/new"]).ok().stdout, vec![0; fits as usize]);
    let shown = system.run(&["--json", "quota", "show", "--tree", "/t"]).ok().json();
    assert_eq!((&shown["bytes"], &shown["files"]), (&(1 << 20).into(), &3.into()));
    let (done, printed) = sh(&tree, "truncate -s 2M old");
    assert!(!done && printed.contains("quota exceeded"), "{printed}");
    // mv copies where a rename would leave the tree.
    let (done, printed) = sh(mount.place(), "mv t/new . && test ! -e t/new");
    assert!(done, "{printed}");
    assert_eq!(fs::metadata(mount.path("new")).unwrap().len(), fits);
    // It no longer counts as soon as the mount has released it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while system.run(&["--json", "quota", "show", "--tree", "/t"]).ok().json()["bytes"] != 300_000 {
        assert!(Instant::now() < deadline, "what was removed is counted still");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (done, printed) = sh(&tree, "dd if=/dev/zero of=new bs=64k count=10 conv=fsync");
    assert!(done, "{printed}");
    assert!(system.run(&["quota", "check"]).ok().text().contains("all counts are correct"));
}

/// A user's program that implements the protocol itself.
struct ProtocolClient {
    client: Client,
    device: Device,
}

impl ProtocolClient {
    /// Adds the user, with a quota of 1 MiB.
    async fn of(system: &System, name: &str) -> Self {
        let password = file(system, &format!("{name}.pw"), 20);
        system.run(&["user", "add", name, "--password-file", &password]).ok();
        system.run(&["quota", "set", "--user", name, "--size", "1MiB"]).ok();
        let (address, pin) = (system.mds().field("address"), system.mds().field("pin"));
        let pin = pin.parse().expect("the server prints it as the client reads it");
        let client = Client::connect(address, pin, name, &[b'x'; 20]).await.expect("the password is right");
        let device = match client.metadata().call(Request::DeviceList { after: None, limit: 1 }).await {
            Ok(Response::Devices { mut devices, .. }) => devices.remove(0),
            other => panic!("{other:?}"),
        };
        Self { client, device }
    }

    async fn create(&self, at: &str) -> Result<CreatedFile, ErrorCode> {
        let path = FilePath::new(at).unwrap();
        let (size_hint, mode, replace, method) = (Some(1), 0o644, true, Method::CmdRsp);
        match self.client.metadata().call(Request::Create { path, size_hint, mode, replace, method }).await {
            Ok(Response::Created { file }) => Ok(file),
            Ok(other) => panic!("{other:?}"),
            Err(sealstone_client::ClientError::Refused(failure)) => Err(failure.code),
            Err(other) => panic!("{other:?}"),
        }
    }

    async fn commit(&self, file: &CreatedFile, size: u64) {
        let request = Request::Commit { intent: file.intent, size, mtime_ns: None, checksum: None };
        let done = self.client.metadata().call(request).await;
        assert!(matches!(done, Ok(Response::Stat { .. })), "{done:?}");
    }

    /// Runs an operation with a credential at the device; `None` if it is refused.
    async fn operate(&self, grant: &Grant, operation: Operation) -> Option<Vec<u8>> {
        let url: TargetUrl = self.device.url.as_str().parse().expect("its URL");
        let bearer = Bearer::new(grant.capability.as_slice(), grant.key.expose()).expect("a credential");
        let environment = Arc::new(SystemEnvironment);
        let options = OsdOptions::new(&*environment);
        let pin = self.device.pin.map(Pin::from);
        let dial =
            TcpDial::by_policy(&url, pin, &self.device.system_id, TlsPolicy::Auto).expect("a way there");
        let client = OsdClient::new(Arc::new(dial), &url, environment, options);
        let done = client.execute(&bearer, operation).await;
        client.close().await;
        done.ok().map(|done| done.data)
    }

    /// Writes bytes far behind the reported size.
    async fn write_beyond(&self, grant: &Grant) {
        let object = grant.object.object;
        self.operate(grant, Operation::Create { object }).await;
        let data = bytes::Bytes::from(vec![7; 64 * 1024]);
        for offset in [0, 8 << 20] {
            let write = Operation::Write { object, offset, data: data.clone() };
            self.operate(grant, write).await.expect("written");
        }
    }

    /// Returns the number of bytes that the object has at the far offset.
    async fn has_beyond(&self, at: &str) -> usize {
        let (path, method) = (FilePath::new(at).unwrap(), Method::CmdRsp);
        let opened = self.client.metadata().call(Request::Open { path, access: Access::Read, method }).await;
        let Ok(Response::Opened { file }) = opened else { panic!("{opened:?}") };
        let object = file.grants[0].object.object;
        let read = Operation::Read { object, offset: 8 << 20, length: 1024, buffer: Vec::new() };
        self.operate(&file.grants[0], read).await.unwrap_or_default().len()
    }
}

fn used(system: &System, name: &str) -> u64 {
    let shown = system.run(&["--json", "quota", "show", "--user", name]).ok().json();
    shown["bytes"].as_u64().expect("a number")
}

/// A client writes objects longer than it reports: the bytes are truncated, or counted, when its
/// credentials have expired.
#[test]
fn bytes_written_beyond_the_reported_size_are_found() {
    let system = System::start_with_mds(1, "1G", &[], &["--grant-s", "3"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let program = ProtocolClient::of(&system, "eve").await;
        let committed = program.create("/small").await.unwrap();
        program.write_beyond(&committed.grants[0]).await;
        program.commit(&committed, 100).await;
        assert_eq!(program.has_beyond("/small").await, 1024, "a client may do that");
        // And one that is never committed.
        let open = program.create("/open").await.unwrap();
        program.write_beyond(&open.grants[0]).await;
        let started = Instant::now();
        while program.has_beyond("/small").await > 0 {
            assert!(started.elapsed() < Duration::from_secs(120), "it is cut");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        // It exceeds the quota, so that the create ends.
        let request = Request::RenewGrants {
            handle: sealstone_mds_protocol::OpenHandle::Intent(open.intent),
            method: Method::CmdRsp,
        };
        while program.client.metadata().call(request.clone()).await.is_ok() {
            assert!(started.elapsed() < Duration::from_secs(120), "it ends");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(used(&system, "eve"), 100);
    });
}

/// Creates that are started and never finished: visible, limited, counted, without effect on other
/// users.
#[test]
fn open_creates_of_a_user_are_limited() {
    let system = System::start(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (eve, bob) = (ProtocolClient::of(&system, "eve").await, ProtocolClient::of(&system, "bob").await);
        let mut begun = 0;
        let refused = loop {
            match eve.create(&format!("/{begun}")).await {
                Ok(_) => begun += 1,
                Err(code) => break code,
            }
        };
        assert_eq!((begun, refused), (4096, ErrorCode::Limit));
        assert_eq!(used(&system, "eve"), 4096, "each counts for the byte that it announced");
        let file = bob.create("/bob").await.unwrap();
        bob.commit(&file, 1).await;
    });
}

/// Extended attributes count, and another user cannot keep a file that counts against a quota.
#[test]
fn attributes_count_and_others_cannot_keep_a_file() {
    let system = System::start(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (eve, bob) = (ProtocolClient::of(&system, "eve").await, ProtocolClient::of(&system, "bob").await);
        system.run(&["quota", "set", "--user", "eve", "--size", "1000"]).ok();
        let file = eve.create("/f").await.unwrap();
        eve.commit(&file, 1).await;
        system.run(&["chmod", "666", "/f"]).ok();
        let node = async |program: &ProtocolClient| {
            let path = FilePath::new("/f").unwrap();
            match program.client.metadata().call(Request::Stat { path }).await {
                Ok(Response::Stat { stat }) => stat.node(),
                other => panic!("{other:?}"),
            }
        };
        let set = |node, length: usize| Request::SetXattr {
            node,
            name: XattrName::new("user.a").unwrap(),
            value: XattrValue::new(vec![7; length]).unwrap(),
            mode: XattrMode::Set,
        };
        let hers = node(&eve).await;
        let refused = eve.client.metadata().call(set(hers, 1000)).await.expect_err("too much");
        assert!(refused.to_string().contains("quota exceeded"), "{refused}");
        assert!(matches!(eve.client.metadata().call(set(hers, 500)).await, Ok(Response::Done {})));
        assert_eq!(used(&system, "eve"), 507);
        let (his, name) = (node(&bob).await, Name::new("kept").unwrap());
        let link = Request::LinkNode { node: his, parent: Node::ROOT, name };
        let refused = bob.client.metadata().call(link).await.expect_err("not his");
        assert_eq!(refused.exit_code(), 3, "{refused}");
    });
}
