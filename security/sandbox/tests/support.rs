//! Zygotes of the attack engine, and the targets of its attempts.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use sealstone_sandbox::{
    EngineCode, EngineExit, EngineKind, EngineLimits, EngineRequest, IsolationLayer, SandboxedEngine, Zygote,
    ZygoteOptions,
};

/// The engine program of these tests.
pub(crate) const ATTACK_ENGINE: &str = env!("CARGO_BIN_EXE_sealstone-attack-engine");
/// Exit code of an attempt that succeeded; the attack engine has the same constant.
pub(crate) const SUCCEEDED: i32 = 200;
/// Maximum time of any single engine in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Size of the memory file that engines receive, in bytes.
const MEMORY_FILE_BYTES: u64 = 8192;
/// Where the memory file has the port of the listener.
const PORT_OFFSET: u64 = 64;
/// First byte of the memory file.
pub(crate) const FIRST_BYTE: u8 = 77;

/// Whether the test runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns options for the attack engine without some layers.
pub(crate) fn options(omitted: &[IsolationLayer]) -> ZygoteOptions {
    let arguments = omitted.iter().flat_map(|layer| ["--without".into(), layer.name().into()]).collect();
    ZygoteOptions { arguments, ..ZygoteOptions::new(ATTACK_ENGINE, EngineKind::C) }
}

/// Starts a zygote of the attack engine with all layers.
pub(crate) fn zygote() -> Zygote {
    Zygote::spawn(options(&[])).expect("the machine can confine engines")
}

/// The targets of attempts: a sealed memory file, a file that is open to read, two listeners.
pub(crate) struct AttackTargets {
    memory: OwnedFd,
    read_only: File,
    _abstract_listener: Option<UnixListener>,
    _listener: TcpListener,
}

impl AttackTargets {
    pub(crate) fn create() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let memory = rustix::fs::memfd_create("attack", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let mut memory = File::from(memory.expect("memory file"));
        memory.set_len(MEMORY_FILE_BYTES).expect("size");
        memory.write_all(&[FIRST_BYTE]).expect("write");
        memory.seek(std::io::SeekFrom::Start(PORT_OFFSET)).expect("seek");
        memory.write_all(&port.to_be_bytes()).expect("write");
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).expect("seal");
        // Its mode lets everyone write, so only the root without /proc prevents a second open.
        let object = rustix::fs::memfd_create("object", MemfdFlags::CLOEXEC).expect("memory file");
        let mut object = File::from(object);
        object.write_all(b"object").expect("write");
        let read_only = File::open(format!("/proc/self/fd/{}", object.as_raw_fd()));
        // Several test processes may have it at one time; one listener is enough for all.
        let name = SocketAddr::from_abstract_name("sealstone-attack").expect("name");
        Self {
            memory: memory.into(),
            read_only: read_only.expect("open to read"),
            _abstract_listener: UnixListener::bind_addr(&name).ok(),
            _listener: listener,
        }
    }

    /// Starts an engine with one behaviour of the attack engine.
    pub(crate) fn start(&self, zygote: &Zygote, behaviour: &str, limits: EngineLimits) -> SandboxedEngine {
        let request = EngineRequest {
            code: Some(EngineCode::new("fn.so", b"code").expect("memory file")),
            descriptors: vec![self.memory.as_fd(), self.read_only.as_fd()],
            parameters: behaviour.as_bytes().to_vec(),
            limits,
        };
        zygote.start(&request).unwrap_or_else(|error| panic!("{behaviour}: {error:?}"))
    }

    /// Runs one behaviour to its end.
    pub(crate) fn run(&self, zygote: &Zygote, behaviour: &str, limits: EngineLimits) -> EngineExit {
        wait(&self.start(zygote, behaviour, limits))
    }

    /// Panics if an attempt changed the size of a target.
    pub(crate) fn assert_sizes(&self) {
        let memory = rustix::fs::fstat(&self.memory).expect("stat");
        assert_eq!(memory.st_size as u64, MEMORY_FILE_BYTES, "the memory file has its size");
        assert_eq!(self.read_only.metadata().expect("stat").len(), 6, "the file has its size");
    }

    /// Panics if an attempt changed a target.
    pub(crate) fn assert_unchanged(&self) {
        self.assert_sizes();
        let mut byte = [0];
        rustix::io::pread(&self.memory, &mut byte, 0).expect("read");
        assert_eq!(byte, [FIRST_BYTE], "the memory file has its content");
    }
}

/// Waits for the end of an engine.
pub(crate) fn wait(engine: &SandboxedEngine) -> EngineExit {
    engine.wait(Some(PATIENCE)).expect("wait").expect("the engine ends")
}

/// Returns a process and all processes below it.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let below = children.split_whitespace().filter_map(|id| id.parse().ok()).flat_map(descendants);
    std::iter::once(process).chain(below).collect()
}

/// Returns the folders of a zygote below `/sys/fs/cgroup`.
pub(crate) fn cgroup_folders(zygote: u32) -> Vec<String> {
    fn search(folder: &Path, name: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name() == name {
                found.push(entry.path().display().to_string());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                search(&entry.path(), name, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), &format!("sealstone-engines-{zygote}"), &mut found);
    found
}
