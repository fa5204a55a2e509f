//! iSCSI access: CHAP accounts and access lists with libiscsi's tools, and time limits.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use sealstone_tests::initiator::{header, login};
use sealstone_tests::{CommandResult, Daemon, command, run, text};
use tempfile::TempDir;

const ACCESS: &str = r#"
algorithms = ["sha256", "md5"]

[target]
user = "osd0"
secret = "the device says so"

[[initiator]]
names = ["iqn.2026-11.org.example:proven"]
user = "ann"
secret = "ann's long secret"

[[initiator]]
names = ["iqn.2026-11.org.example:open*"]
luns = [0]

[[initiator]]
names = ["iqn.2026-11.org.example:blind"]
luns = [7]
"#;

/// A device with an access file.
struct DeviceWithAccess {
    _folder: TempDir,
    osd: Daemon,
}

impl DeviceWithAccess {
    fn start(access: &str, flags: &[&str]) -> Self {
        let (folder, file) = prepared(access);
        let data = folder.path().join("osd0");
        let mut serve =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        serve.args(["--access-file", text(&file)]).args(flags);
        Self { _folder: folder, osd: Daemon::start(serve) }
    }

    /// Returns the unit's URL with this account before its address, and this query behind.
    fn url(&self, account: &str, query: &str) -> String {
        let plain = self.osd.field("url").strip_prefix("iscsi://").expect("an iSCSI URL");
        format!("iscsi://{account}{plain}{query}")
    }

    fn inquiry(&self, initiator: &str, account: &str, query: &str) -> (bool, String) {
        tool("iscsi-inq", &["-i", initiator, &self.url(account, query)])
    }
}

/// Initialises a device and writes its private access file.
fn prepared(access: &str) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("osd0");
    run(&["osd", "init", "--data", text(&data), "--capacity", "1G", "--name", "osd0"]).ok();
    let file = folder.path().join("access.toml");
    fs::write(&file, access).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("narrowed");
    (folder, file)
}

/// Runs a tool of libiscsi. If it is not installed the test fails and says how to install it.
fn tool(name: &str, arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}: run scripts/setup --tests (package libiscsi-bin)"));
    let printed = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    // Some versions report a failure on standard error only.
    (status.success() && !printed.to_lowercase().contains("fail"), printed)
}

const PROVEN: &str = "iqn.2026-11.org.example:proven";

/// libiscsi supports MD5 only, so it stands for old initiators here.
#[test]
fn chap_accepts_only_the_right_secret() {
    let guarded = DeviceWithAccess::start(ACCESS, &[]);
    let (ok, printed) = guarded.inquiry(PROVEN, "ann%ann's long secret@", "");
    assert!(ok && printed.contains("SEALSTON"), "{printed}");
    let mutual = "?target_user=osd0&target_password=the device says so";
    let (ok, printed) = guarded.inquiry(PROVEN, "ann%ann's long secret@", mutual);
    assert!(ok && printed.contains("SEALSTON"), "mutual: {printed}");
    for (initiator, account, query) in [
        (PROVEN, "ann%some other secret@", ""),
        (PROVEN, "bob%ann's long secret@", ""),
        (PROVEN, "", ""),
        ("iqn.2026-11.org.example:stranger", "ann%ann's long secret@", ""),
        ("iqn.2026-11.org.example:stranger", "", ""),
        (PROVEN, "ann%ann's long secret@", "?target_user=osd0&target_password=not what it says"),
    ] {
        let (ok, printed) = guarded.inquiry(initiator, account, query);
        assert!(!ok && !printed.contains("SEALSTON"), "{initiator} {account} {query}: {printed}");
    }
    let (ok, printed) = guarded.inquiry("iqn.2026-11.org.example:open-1", "", "");
    assert!(ok, "no proof is asked of these: {printed}");
}

#[test]
fn discovery_and_report_luns_follow_access_rules() {
    let guarded = DeviceWithAccess::start(ACCESS, &[]);
    let address = guarded.osd.field("address");
    let list = |initiator: &str, account: &str| {
        tool("iscsi-ls", &["-s", "-i", initiator, &format!("iscsi://{account}{address}")])
    };
    let (ok, printed) = list(PROVEN, "ann%ann's long secret@");
    assert!(ok && printed.contains("osd.osd0") && printed.contains("Lun:0"), "{printed}");
    let (ok, printed) = list(PROVEN, "");
    assert!(!ok && !printed.contains("osd.osd0"), "{printed}");
    let (ok, printed) = list("iqn.2026-11.org.example:stranger", "");
    assert!(!ok && !printed.contains("osd.osd0"), "{printed}");
    let (_, printed) = list("iqn.2026-11.org.example:blind", "");
    assert!(
        printed.contains("osd.osd0") && !printed.contains("Lun:0"),
        "its only unit is not there: {printed}"
    );
    let (ok, printed) = guarded.inquiry("iqn.2026-11.org.example:blind", "", "");
    assert!(!ok || !printed.contains("SEALSTONE OSD"), "a unit that is not shown is not there: {printed}");
}

#[test]
fn many_wrong_secrets_lock_the_account() {
    let guarded = DeviceWithAccess::start(ACCESS, &[]);
    for _ in 0..10 {
        assert!(!guarded.inquiry(PROVEN, "ann%some other secret@", "").0);
    }
    assert!(!guarded.inquiry(PROVEN, "ann%ann's long secret@", "").0, "for a while");
    assert!(guarded.inquiry("iqn.2026-11.org.example:open", "", "").0, "who proves nothing is not meant");
}

#[test]
fn invalid_or_readable_access_file_prevents_start() {
    let (folder, file) = prepared(ACCESS);
    let data = folder.path().join("osd0");
    let serve = || {
        let mut command = command(&["osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        command.args(["--access-file", text(&file)]);
        CommandResult::from(command.output().expect("the binary starts"))
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("widened");
    serve().fails(3).says(&["640", "chmod 600"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("narrowed");
    fs::write(&file, ACCESS.replace("ann's long secret", "short")).expect("written");
    serve().fails(2).says(&["12 to 256 bytes", "access.toml"]);
    fs::write(&file, ACCESS.replace("ann's long secret", "the device says so")).expect("written");
    serve().fails(2).says(&["the same secret"]);
    fs::write(&file, "[[initiator]]\nnames = [\"iqn.a\"]\nsecrets = \"hush hush hush\"\n").expect("written");
    serve().fails(2).says(&["line 3"]);
    fs::remove_file(&file).expect("removed");
    serve().fails(4).says(&["access.toml"]);
}

/// A PDU that is never completed, sent byte by byte in a valid session.
#[test]
fn incomplete_pdu_closes_connection_after_timeout() {
    let guarded = DeviceWithAccess::start(ACCESS.trim_start(), &["--pdu-s-max", "1"]);
    let url = guarded.osd.field("url");
    let target = url.rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN");
    let mut stream = TcpStream::connect(guarded.osd.field("address")).expect("the port is open");
    stream.write_all(&login("open-slow", target)).expect("taken");
    let mut answer = [0; 48];
    stream.read_exact(&mut answer).expect("a login response");
    assert_eq!((answer[0], answer[36]), (0x23, 0), "logged in");
    let start = Instant::now();
    let half = &header(0x40, 0x80, 4096)[..20];
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout can be set");
    stream.write_all(half).expect("taken");
    let ended = loop {
        // Still alive, one byte at a time; a read shows the end.
        let written = stream.write_all(&[0]);
        let mut rest = [0; 4096];
        match stream.read(&mut rest) {
            Ok(0) => break start.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && written.is_ok() => {}
            Err(_) => break start.elapsed(),
        }
        assert!(start.elapsed() < Duration::from_secs(100), "the connection is still open");
    };
    assert!(ended >= Duration::from_millis(900), "not before its time: {ended:?}");
    let (ok, printed) = guarded.inquiry("iqn.2026-11.org.example:open", "", "");
    assert!(ok, "others are served: {printed}");
}
