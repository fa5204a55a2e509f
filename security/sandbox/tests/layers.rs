//! Single layers, the report on them, and the code that they confine.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use sealstone_sandbox::{
    EngineCode, EngineExitCause, EngineKind, EngineLimits, EngineRequest, IsolationLayer, LayerState,
    ReadOnlyBind, SandboxError, Zygote,
};

use crate::support::{AttackTargets, descendants, is_root, left_out, options, wait, zygote};

/// User and group of the daemon in the test without root.
const PLAIN_USER: u32 = 65_500;
/// A function whose constructor tries to read a file of the machine before `answer` is called.
const FUNCTION: &str = "
#include <fcntl.h>
static int opened = 1;
__attribute__((constructor)) static void attack(void) { opened = open(\"/etc/passwd\", O_RDONLY) >= 0; }
int answer(void) { return opened ? 1 : 42; }
";

#[test]
fn strict_zygote_needs_every_layer() {
    let plain = zygote();
    let missing: Vec<_> = plain.isolation().missing().map(|(layer, _)| layer.name()).collect();
    let mut strict = options(&[]);
    strict.strict = true;
    match Zygote::spawn(strict) {
        Ok(_) => assert!(missing.is_empty(), "{missing:?}"),
        Err(SandboxError::LayersMissing(text)) => {
            assert!(!missing.is_empty() && missing.iter().all(|name| text.contains(name)), "{text}");
        }
        Err(error) => panic!("{error:?}"),
    }
    assert_eq!(plain.isolation().layers().count(), IsolationLayer::ALL.len());
    let own_user = plain.isolation().is_active(IsolationLayer::OwnUser);
    assert_eq!(own_user, is_root(), "{}", plain.isolation());
}

#[test]
fn strict_zygote_refuses_omitted_layer() {
    let mut strict = options(&[IsolationLayer::Seccomp]);
    strict.strict = true;
    let refused = Zygote::spawn(strict);
    assert!(
        matches!(&refused, Err(SandboxError::LayersMissing(text)) if text.contains("seccomp")),
        "{refused:?}"
    );
}

#[test]
fn unprivileged_daemon_reports_missing_layers() {
    if !is_root() {
        return left_out("the user can be changed by root only");
    }
    for test in ["strict_zygote_needs_every_layer", "constructor_of_code_is_confined"] {
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args(["--exact", "--nocapture", &format!("layers::{test}")])
            .uid(PLAIN_USER)
            .gid(PLAIN_USER)
            .env("TMPDIR", "/tmp")
            .output()
            .expect("start this test program as another user");
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    }
}

#[test]
fn engines_have_different_users() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    if !zygote.isolation().is_active(IsolationLayer::OwnUser) {
        return left_out("user ids of engines need root");
    }
    let engines = [(); 2].map(|()| targets.start(&zygote, "sleep", EngineLimits::default()));
    let users: Vec<_> = descendants(zygote.id()).into_iter().map(user_line).collect();
    // The zygote, and for each engine its init process and itself.
    assert_eq!(users.len(), 5, "{users:?}");
    assert!(users[0].ends_with("\t0") && users[1] == users[2] && users[3] == users[4], "{users:?}");
    assert!(users[1] != users[3] && !users[1].ends_with("\t0"), "{users:?}");
    drop(engines);
}

/// Returns the line with the user ids of a process.
fn user_line(process: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).expect("status");
    text.lines().find(|line| line.starts_with("Uid:")).expect("user ids").to_owned()
}

#[test]
fn engine_status_shows_confinement() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let engine = targets.start(&zygote, "sleep", EngineLimits::default());
    let process = *descendants(zygote.id()).last().expect("the engine");
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}: {status}")).trim().to_owned()
    };
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    assert_eq!(
        (field("NoNewPrivs"), field("Seccomp"), field("Threads")),
        ("1".into(), "2".into(), "1".into())
    );
    // Both its own number and that of the init process are of the inner namespace.
    assert!(field("NSpid").ends_with("\t2"), "{}", field("NSpid"));
    drop(engine);
}

#[test]
fn memory_group_kills_engine_without_address_limit() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    if !zygote.isolation().is_active(IsolationLayer::MemoryCgroup) {
        return left_out("cgroups need root or a delegated subtree");
    }
    let limits =
        EngineLimits { memory_bytes: 32 << 20, address_space_bytes: None, ..EngineLimits::default() };
    let exit = targets.run(&zygote, "memory-bomb", limits);
    assert_eq!(exit.cause, EngineExitCause::MemoryLimit);
    assert!(exit.peak_memory <= 40 << 20, "{exit:?}");
}

#[test]
fn address_limit_refuses_memory() {
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let address_space_bytes = Some(64 << 20);
    let limits = EngineLimits { memory_bytes: 64 << 20, address_space_bytes, ..EngineLimits::default() };
    let exit = targets.run(&zygote, "memory-bomb", limits);
    assert_eq!(exit.cause, EngineExitCause::Exited(libc::ENOMEM));
}

#[test]
fn constructor_of_code_is_confined() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (source, object) = (folder.path().join("fn.c"), folder.path().join("fn.so"));
    std::fs::write(&source, FUNCTION).expect("write");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return left_out("cc is not installed");
    }
    let code = EngineCode::new("fn.so", &std::fs::read(object).expect("read")).expect("memory file");
    let request =
        EngineRequest { code: Some(code), parameters: b"call-code".to_vec(), ..EngineRequest::default() };
    let exit = wait(&zygote().start(&request).expect("start"));
    assert_eq!(exit.cause, EngineExitCause::Exited(42));
}

#[test]
fn bind_is_readable_and_never_writable() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("mode");
    let file = folder.path().join("file");
    std::fs::write(&file, b"Z").expect("write");
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o666)).expect("mode");
    let bind = ReadOnlyBind { source: folder.path().to_owned(), target: "/data".into() };
    let targets = AttackTargets::create();
    for omitted in [&[][..], &[IsolationLayer::Seccomp], &[IsolationLayer::Seccomp, IsolationLayer::Landlock]]
    {
        let mut options = options(omitted);
        options.binds.push(bind.clone());
        let zygote = Zygote::spawn(options).expect("a zygote with a bind");
        let exit = targets.run(&zygote, "read-bind", EngineLimits::default());
        assert_eq!(exit.cause, EngineExitCause::Exited(b'Z'.into()), "{omitted:?}");
        let expected = match omitted.is_empty() {
            true => EngineExitCause::ForbiddenCall,
            false => EngineExitCause::Exited(libc::EROFS),
        };
        let exit = targets.run(&zygote, "write-bind", EngineLimits::default());
        assert_eq!(exit.cause, expected, "{omitted:?}");
    }
}

#[test]
fn missing_bind_names_failed_step() {
    let mut options = options(&[]);
    options.binds.push(ReadOnlyBind { source: "/no/such/folder".into(), target: "/data".into() });
    let refused = Zygote::spawn(options);
    assert!(
        matches!(&refused, Err(SandboxError::Confinement { step, .. }) if step.contains("/no/such/folder")),
        "{refused:?}"
    );
}

#[test]
fn engines_that_compile_may_write_code() {
    let targets = AttackTargets::create();
    let mut options = options(&[]);
    options.kind = EngineKind::Wasm;
    let zygote = Zygote::spawn(options).expect("a zygote of another kind");
    let state = zygote.isolation().state(IsolationLayer::NoWritableCode);
    assert!(matches!(state, Some(LayerState::NotApplicable(_))), "{state:?}");
    let exit = targets.run(&zygote, "write-then-execute", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::Exited(crate::support::SUCCEEDED));
    // Threads are possible for this kind, up to the limit.
    let limits = EngineLimits { threads: 4, ..EngineLimits::default() };
    let exit = targets.run(&zygote, "start-thread", limits);
    assert_eq!(exit.cause, EngineExitCause::Exited(crate::support::SUCCEEDED));
    let exit = targets.run(&zygote, "fork-bomb", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::ForbiddenCall);
}
