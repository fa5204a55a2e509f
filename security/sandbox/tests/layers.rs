//! Single layers, the report on them, and the code that they confine.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use sealstone_sandbox::{
    EngineCode, EngineExitCause, EngineKind, EngineLimits, EngineRequest, IsolationLayer, LayerState,
    ReadOnlyBind, SandboxError, Zygote,
};
use sealstone_test_support::left_out;

use crate::support::{AttackTargets, descendants, is_root, options, wait, zygote};

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

/// A tmpfs whose mount is shared, as all mounts are where systemd runs. Mounts below it propagate.
struct SharedMount(PathBuf);

impl SharedMount {
    fn new(place: &Path) -> rustix::io::Result<Self> {
        mount("sealstone-test", place, "tmpfs", MountFlags::empty(), None)?;
        let mounted = Self(place.to_owned());
        mount_change(place, MountPropagationFlags::SHARED)?;
        Ok(mounted)
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Returns the mounts of a process, one a line.
fn mounts(process: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).expect("mounts");
    text.lines().map(str::to_owned).collect()
}

/// Whether a mount has an optional field of this kind, as `shared:7`.
fn has_field(line: &str, kind: &str) -> bool {
    line.split(' ').skip(6).take_while(|field| *field != "-").any(|field| field.starts_with(kind))
}

#[test]
fn unmounted_file_system_is_released_by_engines() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("disk");
    let shown = place.display().to_string();
    let _shared = match SharedMount::new(folder.path()) {
        Ok(mounted) => mounted,
        Err(error) => return left_out(&format!("no file system can be mounted: {error}")),
    };
    std::fs::create_dir(&place).expect("created");
    let mounted = SharedMount::new(&place).expect("mounted");
    let (zygote, targets) = (zygote(), AttackTargets::create());
    let engine = targets.start(&zygote, "sleep", EngineLimits::default());
    let processes = descendants(zygote.id());
    assert_eq!(processes.len(), 3, "zygote, init process, engine: {processes:?}");
    let count = |process: u32| mounts(process).iter().filter(|line| line.contains(&shown)).count();
    assert_eq!(count(zygote.id()), 1, "the mount is copied");
    for process in &processes {
        // No mount is in a peer group, so none that is made here reaches the machine.
        assert!(mounts(*process).iter().all(|line| !has_field(line, "shared:")), "{process}");
    }
    for process in &processes[1..] {
        assert!(mounts(*process).iter().all(|line| !has_field(line, "master:")), "{process}");
        assert_eq!(count(*process), 0, "{process}");
    }
    drop(mounted);
    assert_eq!(processes.iter().map(|process| count(*process)).sum::<usize>(), 0);
    let mounted = SharedMount::new(&place).expect("mounted again");
    assert_eq!(count(zygote.id()), 1);
    assert!(processes[1..].iter().all(|process| count(*process) == 0), "a later mount reaches no engine");
    drop((mounted, engine));
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

/// Compiles C source to the code of an engine; `None` without a compiler or the library.
fn compile(source: &str, libraries: &[PathBuf]) -> Option<EngineCode> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (source_file, object) = (folder.path().join("fn.c"), folder.path().join("fn.so"));
    std::fs::write(&source_file, source).expect("write");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source_file).args(libraries);
    compiler.status().ok().filter(|status| status.success())?;
    Some(EngineCode::new("fn.so", &std::fs::read(object).expect("read")).expect("memory file"))
}

#[test]
fn constructor_of_code_is_confined() {
    let Some(code) = compile(FUNCTION, &[]) else { return left_out("cc is not installed") };
    let request =
        EngineRequest { code: Some(code), parameters: b"call-code".to_vec(), ..EngineRequest::default() };
    let exit = wait(&zygote().start(&request).expect("start"));
    assert_eq!(exit.cause, EngineExitCause::Exited(42));
}

/// Runs a program in an embedded interpreter; returns 42 if it succeeds.
fn python_function(program: &str) -> String {
    format!(
        "int setenv(const char *, const char *, int); void Py_InitializeEx(int); \
         int PyRun_SimpleStringFlags(const char *, void *);\n\
         int answer(void) {{ setenv(\"PYTHONHOME\", \"/usr\", 1); Py_InitializeEx(0); \
         return PyRun_SimpleStringFlags(\"{program}\", 0) == 0 ? 42 : 1; }}"
    )
}

/// Returns the interpreter's library where Debian and its descendants have it.
fn python_library() -> Option<PathBuf> {
    let folder = std::fs::read_dir(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)).ok()?;
    folder.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libpython3.") && name.ends_with(".so.1.0")
    })
}

#[test]
fn python_interpreter_runs_confined() {
    let Some(library) = python_library() else {
        return left_out("libpython is not installed (scripts/setup --all)");
    };
    let mut options = options(&[]);
    options.kind = EngineKind::Python;
    options.binds.push(ReadOnlyBind { source: "/usr/lib".into(), target: "/usr/lib".into() });
    let zygote = Zygote::spawn(options).expect("a zygote for Python");
    let works = "import json, re, struct, hashlib, io, os, time, threading\\n\
                 assert json.loads('[1, 2]') == [1, 2] and re.sub('a', 'b', 'aa') == 'bb'\\n\
                 assert len(hashlib.sha256(bytes(1 << 20)).digest()) == 32\\n\
                 t = threading.Thread(target=time.sleep, args=(0.01,)); t.start(); t.join()\\n\
                 assert any(name.startswith('python3') for name in os.listdir('/usr/lib'))\\n";
    for (program, cause) in [
        (works, EngineExitCause::Exited(42)),
        ("import os; os.fork()", EngineExitCause::ForbiddenCall),
        ("import _socket; _socket.socket()", EngineExitCause::Exited(1)),
        ("open('/evil', 'w')", EngineExitCause::Exited(1)),
        ("import os; os.execv('/bin/sh', ['sh'])", EngineExitCause::ForbiddenCall),
        ("open('/etc/passwd')", EngineExitCause::Exited(1)),
    ] {
        let libraries = [library.clone()];
        let Some(code) = compile(&python_function(program), &libraries) else {
            return left_out("cc is not installed");
        };
        let limits = EngineLimits { threads: 4, ..EngineLimits::default() };
        let parameters = b"call-code".to_vec();
        let request = EngineRequest { code: Some(code), parameters, limits, ..EngineRequest::default() };
        let exit = wait(&zygote.start(&request).expect("start"));
        assert_eq!(exit.cause, cause, "{program}");
    }
}

/// Starts a virtual machine, loads a class, stops the thread for a while, and ends the machine.
const JAVA_FUNCTION: &str = "
#include <jni.h>
int answer(void) {
  JavaVMOption options[] = {{\"-XX:-UsePerfData\", 0}, {\"-XX:-UseContainerSupport\", 0},
    {\"-XX:-MaxFDLimit\", 0}, {\"-Xmx64m\", 0}, {\"-XX:+UseSerialGC\", 0}};
  JavaVMInitArgs arguments = {JNI_VERSION_10, 5, options, 0};
  JavaVM *machine;
  void *pointer;
  if (JNI_CreateJavaVM(&machine, &pointer, &arguments)) return 1;
  JNIEnv *env = pointer;
  jclass thread = (*env)->FindClass(env, \"java/lang/Thread\");
  if (!thread) return 2;
  jmethodID sleep = (*env)->GetStaticMethodID(env, thread, \"sleep\", \"(J)V\");
  (*env)->CallStaticVoidMethod(env, thread, sleep, (jlong)20);
  (*machine)->DestroyJavaVM(machine);
  return 42;
}
";

/// Returns the folder of the installed JDK, if it has headers.
fn java_home() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib/jvm").ok()?;
    let folders = folders.flatten().filter_map(|entry| entry.path().canonicalize().ok());
    folders.into_iter().find(|home| home.join("include/jni.h").is_file() && home.starts_with("/usr/lib"))
}

#[test]
fn java_machine_runs_confined() {
    let Some(home) = java_home() else { return left_out("no JDK is installed (scripts/setup --all)") };
    let machine = home.join("lib/server/libjvm.so");
    let headers =
        ["include", "include/linux"].map(|folder| format!("-I{}", home.join(folder).display()).into());
    let path = format!("-Wl,-rpath,{}", home.join("lib/server").display()).into();
    let [first, second] = headers;
    let Some(code) = compile(JAVA_FUNCTION, &[first, second, path, machine]) else {
        return left_out("cc is not installed");
    };
    let mut options = options(&[]);
    options.kind = EngineKind::Java;
    options.binds.push(ReadOnlyBind { source: "/usr/lib".into(), target: "/usr/lib".into() });
    // Debian keeps the configuration there, behind symbolic links.
    let configuration =
        PathBuf::from("/etc").join(home.file_name().expect("a name").to_string_lossy().replace("-amd64", ""));
    if configuration.is_dir() {
        options.binds.push(ReadOnlyBind { source: configuration.clone(), target: configuration });
    }
    let zygote = Zygote::spawn(options).expect("a zygote for Java");
    let limits =
        EngineLimits { address_space_bytes: None, threads: 64, descriptors: 64, ..EngineLimits::default() };
    let parameters = b"call-code".to_vec();
    let request = EngineRequest { code: Some(code), parameters, limits, ..EngineRequest::default() };
    let exit = wait(&zygote.start(&request).expect("start"));
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
    // Never both at once, and nothing after the compilation.
    for attempt in ["write-and-execute", "map-executable"] {
        let exit = targets.run(&zygote, attempt, EngineLimits::default());
        assert_eq!(exit.cause, EngineExitCause::ForbiddenCall, "{attempt}");
    }
    let exit = targets.run(&zygote, "refuse-new-code", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::Exited(libc::EACCES));
    // This kind has no threads.
    let limits = EngineLimits { threads: 4, ..EngineLimits::default() };
    let exit = targets.run(&zygote, "start-thread", limits);
    assert_eq!(exit.cause, EngineExitCause::ForbiddenCall);
}

#[test]
fn private_memory_limit_ignores_reservations() {
    let targets = AttackTargets::create();
    let zygote = Zygote::spawn(options(&[])).expect("a zygote");
    let limits = |data_bytes| EngineLimits {
        address_space_bytes: Some(8 << 30),
        data_bytes: Some(data_bytes),
        ..EngineLimits::default()
    };
    let exit = targets.run(&zygote, "use-memory", limits(128 << 20));
    assert_eq!(exit.cause, EngineExitCause::Exited(0));
    let exit = targets.run(&zygote, "use-memory", limits(32 << 20));
    assert_eq!(exit.cause, EngineExitCause::Signalled(libc::SIGABRT));
}

#[test]
fn engines_with_threads_have_a_limit() {
    let targets = AttackTargets::create();
    let mut options = options(&[]);
    options.kind = EngineKind::Java;
    let zygote = Zygote::spawn(options).expect("a zygote of another kind");
    let limits = EngineLimits { threads: 4, ..EngineLimits::default() };
    let exit = targets.run(&zygote, "start-thread", limits);
    assert_eq!(exit.cause, EngineExitCause::Exited(crate::support::SUCCEEDED));
    let exit = targets.run(&zygote, "fork-bomb", EngineLimits::default());
    assert_eq!(exit.cause, EngineExitCause::ForbiddenCall);
}
