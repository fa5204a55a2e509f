//! Invalid passwords, sessions and methods are refused; broken pipes and signals end commands
//! cleanly.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use sealstone_tests::{CommandResult, Signal, System, run_with_input, text};
use serde_json::Value;

/// Writes a private file.
fn secret(system: &System, name: &str, content: &str) -> std::path::PathBuf {
    let path = system.path(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("narrowed");
    path
}

#[test]
fn passwords_that_cannot_be_right_are_refused() {
    let system = System::start(0);
    let cluster = system.cluster();
    let login = |user: &str, file: &str| {
        let mut command =
            system.command(&["login", user, "--cluster", text(&cluster), "--password-file", file]);
        command.env("SEALSTONE_SESSION", system.path("other.toml"));
        run_with_input(command, b"from a pipe\n")
    };
    let wrong = secret(&system, "wrong", "incorrect\n");
    login("admin", text(&wrong)).fails(3).says(&["wrong user name or password"]);
    // The message does not reveal whether a name exists.
    login("nobody", text(&wrong)).fails(3).says(&["wrong user name or password"]);
    login("admin", "-").fails(3).says(&["wrong user name or password"]);
    login("admin", text(&secret(&system, "empty", "\n"))).fails(2).says(&["empty"]);
    login("admin", text(&system.path("missing"))).fails(4).says(&["missing"]);
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).expect("widened");
    login("admin", text(&wrong)).fails(3).says(&["644", "chmod 600"]);
    login("not/a name", "-").fails(2);
    assert!(!system.path("other.toml").exists(), "no login, no session");
    system.run(&["whoami"]).ok();
}

#[test]
fn sessions_that_are_over_or_altered_are_refused() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/x"]), b"x").ok();
    let file = system.path("session.toml");
    let right = fs::read_to_string(&file).expect("there");
    let with = |content: &str| {
        let mut command = system.command(&["cat", "/x"]);
        command.env("SEALSTONE_SESSION", secret(&system, "copy.toml", content));
        run_with_input(command, b"")
    };
    assert_eq!(with(&right).ok().stdout, b"x", "a faithful copy works");
    let field = |name: &str| {
        let start = right.find(&format!("{name} = ")).expect("a field of the file") + name.len() + 3;
        let end = start + right[start..].find('\n').expect("a line");
        (start, end)
    };
    let replaced = |name: &str, by: &str| {
        let (start, end) = field(name);
        format!("{}{by}{}", &right[..start], &right[end..])
    };
    // One digit of a secret or an identity is changed: the server does not know it.
    for name in ["keys", "session"] {
        let (start, end) = field(name);
        let value = &right[start..end];
        let flipped = if value.as_bytes()[1] == b'0' { '1' } else { '0' };
        with(&replaced(name, &format!("\"{flipped}{}", &value[2..]))).fails(3).says(&["sealstone login"]);
    }
    with(&replaced("server_id", &format!("\"{}\"", "00".repeat(16))))
        .fails(1)
        .says(&["different metadata server"]);
    with(&replaced("fingerprint", &format!("\"{}\"", "00".repeat(32)))).fails(3).says(&["certificate"]);
    with(&replaced("keys", "\"00\"")).fails(1).says(&["session file", "damaged", "sealstone login"]);
    with("neither = toml").fails(1).says(&["session file", "damaged", "sealstone login"]);
    with("").fails(1).says(&["session file", "sealstone login"]);
    let path = secret(&system, "copy.toml", &right);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("widened");
    let mut command = system.command(&["cat", "/x"]);
    command.env("SEALSTONE_SESSION", &path);
    run_with_input(command, b"").fails(1).says(&["others may read"]);

    // Logged out: copies of the file are invalid.
    system.run(&["logout"]).ok();
    assert!(!file.exists());
    with(&right).fails(3).says(&["not logged in", "sealstone login"]);
    system.run(&["cat", "/x"]).fails(3).says(&["not logged in", "sealstone login"]);
    system.run(&["logout"]).fails(3);
}

#[test]
fn method_below_the_minimum_is_refused() {
    let system = System::start_with(1, "2G", &["--metrics", "127.0.0.1:0"]);
    let content = vec![0xA5; 700_000];
    // The MDS raises the requested method to its floor, so data is never unprotected.
    for method in ["nosec", "capkey", "cmdrsp", "alldata"] {
        let path = format!("/{method}");
        run_with_input(system.command(&["put", "--method", method, "-", &path]), &content).ok();
        assert!(system.run(&["cat", "--method", method, &path]).ok().stdout == content, "{method}");
    }
    // The device got no command below CMDRSP: it would have refused it, and it refused none.
    let page = sealstone_tests::get(system.osd(0).field("metrics"), "/metrics").1;
    let denials = page.lines().filter(|line| line.starts_with("sealstone_osd_denials_total{")).count();
    assert_eq!(denials, 0, "{page}");
    system.run(&["put", "--method", "rot13", "x", "/x"]).fails_usage();
}

/// Checks for a usage error of clap, whose message has several lines.
trait Usage {
    fn fails_usage(self);
}

impl Usage for CommandResult {
    #[track_caller]
    fn fails_usage(self) {
        assert_eq!(self.code, 2, "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"));
    }
}

#[test]
fn with_json_every_failure_is_one_object() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/x"]), b"x").ok();
    let failure = |arguments: &[&str], code: i32, kind: &str| -> Value {
        let ended = system.run(&[&["--json"], arguments].concat()).fails(code);
        assert!(ended.stdout.is_empty(), "{arguments:?}: {}", ended.text());
        let value: Value = serde_json::from_str(&ended.stderr).expect("one JSON object");
        assert_eq!((&value["error"]["kind"], &value["schema_version"]), (&kind.into(), &1.into()), "{value}");
        assert!(value["error"]["next_step"].is_string() || kind == "failed", "{arguments:?}: {value}");
        assert!(value["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{value}");
        value
    };
    failure(&["stat", "/none"], 4, "not_found");
    failure(&["cat", "/none"], 4, "not_found");
    failure(&["rm", "/none"], 4, "not_found");
    failure(&["get", "/none", "here"], 4, "not_found");
    failure(&["put", "/no/such/source", "/y"], 4, "not_found");
    failure(&["mkdir", "/x"], 1, "failed");
    failure(&["mkdir", "/x/y"], 1, "failed");
    failure(&["put", "--no-replace", "/etc/hostname", "/x"], 1, "failed");
    failure(&["chmod", "999", "/x"], 2, "usage");
    failure(&["stat", &format!("/{}", "n".repeat(300))], 2, "usage");
    failure(&["stat", "no-slash/../x"], 2, "usage");
    failure(&["no-such-verb"], 2, "usage");
    failure(&["put", "only-one"], 2, "usage");
    failure(&["put", "--method", "rot13", "x", "/x"], 2, "usage");
    let denied = {
        let mut command = system.command(&["--json", "ls"]);
        command.env("SEALSTONE_SESSION", system.path("none.toml"));
        run_with_input(command, b"").fails(3)
    };
    let value: Value = serde_json::from_str(&denied.stderr).expect("one JSON object");
    assert_eq!(value["error"]["kind"], "denied");
    assert_eq!(value["error"]["next_step"], "sealstone login NAME");
}

#[test]
fn closed_stdout_ends_commands_as_sigpipe_does() {
    let system = System::start(2);
    let content: Vec<u8> = (0..24u32 << 20).map(|index| (index >> 12) as u8).collect();
    run_with_input(system.command(&["put", "-", "/big"]), &content).ok();
    for arguments in [&["cat", "/big"][..], &["get", "/big", "-"]] {
        let mut cat =
            system.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut first = [0];
        let mut stdout = cat.stdout.take().expect("piped");
        stdout.read_exact(&mut first).expect("one byte");
        drop(stdout);
        let ended = CommandResult::from(cat.wait_with_output().expect("waited"));
        assert_eq!((ended.code, ended.stderr.as_str()), (141, ""), "{arguments:?}");
    }
    for arguments in [&["ls", "-l"][..], &["--json", "ls"], &["completion", "bash"]] {
        let mut ls = system.command(arguments);
        let mut ls = ls.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        drop(ls.stdout.take());
        let ended = CommandResult::from(ls.wait_with_output().expect("waited"));
        assert_eq!((ended.code, ended.stderr.as_str()), (141, ""), "{arguments:?}");
    }
}

/// SIGTERM to a daemon during a put ends it cleanly and in time. A restarted device gets unflushed
/// data again and the put succeeds; without its metadata server the put fails or succeeds, with one
/// line.
#[test]
fn sigterm_during_a_put_ends_in_order() {
    let mut system = System::start(1);
    let half = vec![3u8; 6 << 20];
    for victim in ["osd", "mds"] {
        let path = format!("/{victim}");
        let mut put = system
            .command(&["put", "-", &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdin = put.stdin.take().expect("piped");
        stdin.write_all(&half).expect("taken");
        std::thread::sleep(Duration::from_millis(100));
        let start = std::time::Instant::now();
        let code = if victim == "osd" {
            system.end_osd(0, Signal::Terminate)
        } else {
            system.end_mds(Signal::Terminate)
        };
        assert_eq!(code, 0, "{victim} ends cleanly");
        assert!(start.elapsed() < Duration::from_secs(60), "{victim} takes {:?}", start.elapsed());
        if victim == "osd" {
            system.start_osd(0)
        } else {
            system.start_mds()
        }
        let _ = stdin.write_all(&half);
        drop(stdin);
        let ended = CommandResult::from(put.wait_with_output().expect("waited"));
        let after = system.run(&["cat", &path]);
        if ended.code == 0 || victim == "osd" {
            ended.ok();
            assert_eq!(after.ok().stdout.len(), 2 * half.len());
        } else {
            ended.fails(1);
            after.fails(4);
        }
        run_with_input(system.command(&["put", "-", "/again"]), b"again").ok();
    }
}

/// Whether this process inherited the signal as ignored, as its children then do.
fn is_ignored(signal: rustix::process::Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("signals are told");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("hexadecimal");
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn a_put_that_is_ended_leaves_nothing_visible() {
    let system = System::start(1);
    let signals =
        [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::KILL];
    // A shell starts background jobs with SIGINT ignored, and programs keep that.
    for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
        let mut put = system
            .command(&["put", "-", "/half"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdin = put.stdin.take().expect("piped");
        stdin.write_all(&vec![1; 3 << 20]).expect("taken");
        std::thread::sleep(Duration::from_millis(100));
        rustix::process::kill_process(rustix::process::Pid::from_child(&put), signal).expect("it runs");
        let ended = CommandResult::from(put.wait_with_output().expect("waited"));
        assert_ne!(ended.code, 0);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        system.run(&["stat", "/half"]).fails(4);
    }
    run_with_input(system.command(&["put", "-", "/half"]), b"whole").ok();
    assert_eq!(system.run(&["cat", "/half"]).ok().stdout, b"whole");
}
