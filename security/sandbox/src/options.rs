//! Parameters of a zygote and of one engine.
//!
//! Contract: `ZygoteOptions::check` and `EngineRequest::check` refuse every value that the other
//! side could not apply, before anything is started.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use crate::SandboxError;

/// Maximum number of descriptors that one engine receives.
pub const DESCRIPTORS_MAX: usize = 16;
/// Maximum number of read-only binds of a zygote.
pub const BINDS_MAX: usize = 64;
/// Maximum length of the parameters of an engine program, in bytes.
pub const PARAMETERS_BYTES_MAX: usize = 4096;
/// Maximum size of the code of a function, in bytes.
pub const CODE_BYTES_MAX: u64 = 256 << 20;
/// Minimum memory limit of an engine, in bytes: less would not start its program.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Maximum length of the file name of the code, in bytes.
pub const CODE_NAME_BYTES_MAX: usize = 64;

/// First user id of engines unless `ZygoteOptions::users` says otherwise. It lies above the ids
/// that systemd gives to containers, and below those that it reserves.
const FIRST_USER: u32 = 1_900_000_000;
/// Number of user ids of engines unless `ZygoteOptions::users` says otherwise.
const USER_COUNT: u32 = 4096;

/// The language of an engine, which selects its allow-list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EngineKind {
    /// Shared objects that a C compiler built.
    C,
    /// WebAssembly, which the engine compiles.
    Wasm,
    /// A Java virtual machine.
    Java,
    /// A Python interpreter.
    Python,
}

impl EngineKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::C, Self::Wasm, Self::Java, Self::Python];

    /// Returns the name of the language.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Wasm => "Wasm",
            Self::Java => "Java",
            Self::Python => "Python",
        }
    }
}

/// A file or folder of the machine that engines can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyBind {
    /// Absolute path on the machine.
    pub source: PathBuf,
    /// Absolute path in the root of the engine.
    pub target: PathBuf,
}

/// A range of user ids that belong to engines only; daemons of one machine should have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineUsers {
    /// Lowest user id. Each engine also has the group of the same number.
    pub first: u32,
    /// Number of user ids, and maximum number of engines at one time.
    pub count: u32,
}

impl Default for EngineUsers {
    fn default() -> Self {
        Self { first: FIRST_USER, count: USER_COUNT }
    }
}

/// How a zygote is started, and what all its engines share.
#[derive(Clone, Debug)]
pub struct ZygoteOptions {
    /// Absolute path of the engine program, which calls [`engine_main`](crate::engine_main).
    pub program: PathBuf,
    /// Arguments of the program. They are visible to all users of the machine.
    pub arguments: Vec<OsString>,
    /// Selects the allow-list of system calls.
    pub kind: EngineKind,
    /// Files that engines can read besides their code.
    pub binds: Vec<ReadOnlyBind>,
    /// User ids of engines, if the daemon runs as root.
    pub users: EngineUsers,
    /// Whether a layer that this machine does not offer makes `Zygote::spawn` fail.
    pub strict: bool,
}

impl ZygoteOptions {
    /// Returns options without arguments or binds, and not strict.
    pub fn new(program: impl Into<PathBuf>, kind: EngineKind) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            kind,
            binds: Vec::new(),
            users: EngineUsers::default(),
            strict: false,
        }
    }

    /// Adds what an engine program prints with `--runtime`: a line `bind PATH` for each file that
    /// engines read, and `argument VALUE` for each argument of the zygote.
    ///
    /// # Errors
    ///
    /// [`SandboxError::InvalidOption`] for another line; what stands before it was added.
    pub fn add_runtime(&mut self, description: &str) -> Result<(), SandboxError> {
        for line in description.lines() {
            match line.split_once(' ') {
                Some(("bind", path)) => {
                    self.binds.push(ReadOnlyBind { source: path.into(), target: path.into() });
                }
                Some(("argument", value)) => self.arguments.push(value.into()),
                _ => return Err(SandboxError::InvalidOption(format!("runtime with a line {line:?}"))),
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let refuse = |what: String| Err(SandboxError::InvalidOption(what));
        if !self.program.is_absolute() {
            return refuse(format!("program {} is not an absolute path", self.program.display()));
        }
        if self.binds.len() > BINDS_MAX {
            return refuse(format!("{} binds, at most {BINDS_MAX}", self.binds.len()));
        }
        for path in self.binds.iter().flat_map(|bind| [&bind.source, &bind.target]) {
            if !is_plain_absolute(path) {
                return refuse(format!("bind path {} is not absolute and plain UTF-8", path.display()));
            }
        }
        let is_valid = self.users.first > 0
            && self.users.count > 0
            && self.users.first.checked_add(self.users.count).is_some_and(|end| end < u32::MAX);
        if !is_valid {
            return refuse(format!("user ids from {}, {} of them", self.users.first, self.users.count));
        }
        Ok(())
    }
}

/// Whether a path is absolute, below the root, UTF-8, and has no `..`.
fn is_plain_absolute(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && path.to_str().is_some()
        && components.clone().next().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// The limits of one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLimits {
    /// Memory of the memory cgroup, in bytes, with all pages that the engine touches first.
    pub memory_bytes: u64,
    /// Address space in bytes; `None` for engines that reserve more than they use.
    pub address_space_bytes: Option<u64>,
    /// Private writable memory in bytes; for engines whose address space says little about it.
    pub data_bytes: Option<u64>,
    /// Processor time in seconds. The kernel kills the engine one second later at the latest.
    pub cpu_seconds: u64,
    /// Maximum number of threads.
    pub threads: u32,
    /// Maximum number of open descriptors.
    pub descriptors: u32,
    /// Weight against other cgroups, where 100 is the weight of a daemon; 1 to 10 000.
    pub cpu_weight: u32,
    /// Processor time as a percentage of one core; `None` for no such limit.
    pub cpu_percent: Option<u32>,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            address_space_bytes: Some(768 << 20),
            data_bytes: None,
            cpu_seconds: 30,
            threads: 1,
            descriptors: 32,
            cpu_weight: 50,
            cpu_percent: None,
        }
    }
}

/// The code of a function: a file name, and a sealed memory file that nothing can change.
///
/// Clones share the memory file, so that a cache can start many engines from one copy.
#[derive(Clone, Debug)]
pub struct EngineCode {
    name: String,
    content: Arc<OwnedFd>,
    length: u64,
}

impl EngineCode {
    /// Copies `bytes` to a sealed memory file. Engines find it as `/name`.
    ///
    /// # Errors
    ///
    /// The name has other characters than letters, digits, `.`, `_` and `-`, the code is too long,
    /// or no memory file can be created.
    pub fn new(name: &str, bytes: &[u8]) -> Result<Self, SandboxError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty()
            || name.len() > CODE_NAME_BYTES_MAX
            || name.starts_with('.')
            || !name.bytes().all(is_plain)
        {
            return Err(SandboxError::InvalidRequest(format!("code name {name:?}")));
        }
        let length = bytes.len() as u64;
        if length > CODE_BYTES_MAX {
            return Err(SandboxError::InvalidRequest(format!(
                "code of {length} bytes, at most {CODE_BYTES_MAX}"
            )));
        }
        let failed = |source| SandboxError::System { action: "create the memory file of the code", source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("sealstone-code", flags).map_err(|error| failed(error.into()))?;
        let mut file = std::fs::File::from(file);
        file.write_all(bytes).map_err(failed)?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|error| failed(error.into()))?;
        Ok(Self { name: name.to_owned(), content: Arc::new(file.into()), length })
    }

    /// Returns the path of the code in the root of the engine.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/").join(&self.name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn content(&self) -> BorrowedFd<'_> {
        self.content.as_fd()
    }
}

/// One engine to be started.
#[derive(Clone, Debug, Default)]
pub struct EngineRequest<'a> {
    /// The code, which the engine finds as a read-only file.
    pub code: Option<EngineCode>,
    /// Descriptors that the engine receives, in this order.
    pub descriptors: Vec<BorrowedFd<'a>>,
    /// Bytes that the engine program receives as `EngineContext::parameters`; no secrets.
    pub parameters: Vec<u8>,
    /// The limits.
    pub limits: EngineLimits,
}

impl EngineRequest<'_> {
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let refuse = |what: String| Err(SandboxError::InvalidRequest(what));
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return refuse(format!("{} descriptors, at most {DESCRIPTORS_MAX}", self.descriptors.len()));
        }
        if self.parameters.len() > PARAMETERS_BYTES_MAX {
            return refuse(format!(
                "parameters of {} bytes, at most {PARAMETERS_BYTES_MAX}",
                self.parameters.len()
            ));
        }
        let limits = &self.limits;
        if limits.memory_bytes < MEMORY_BYTES_MIN {
            return refuse(format!(
                "memory limit of {} bytes, at least {MEMORY_BYTES_MIN}",
                limits.memory_bytes
            ));
        }
        if limits.address_space_bytes.is_some_and(|bytes| bytes < limits.memory_bytes) {
            return refuse("address space below the memory limit".to_owned());
        }
        if limits.data_bytes.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
            return refuse(format!("private memory below {MEMORY_BYTES_MIN} bytes"));
        }
        if limits.cpu_seconds == 0 || limits.threads == 0 {
            return refuse("no processor time or no thread".to_owned());
        }
        // Standard input, output and error, those of the caller, and one for files.
        let needed = self.descriptors.len() + 4;
        if (limits.descriptors as usize) < needed {
            return refuse(format!("limit of {} descriptors, at least {needed}", limits.descriptors));
        }
        if !(1..=10_000).contains(&limits.cpu_weight) || limits.cpu_percent == Some(0) {
            return refuse("processor weight not in 1 to 10 000, or a share of 0 percent".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn plain_paths_are_accepted_others_refused() {
        assert!(is_plain_absolute(Path::new("/usr/lib/python3")));
        for path in ["/", "usr", "/usr/../etc", ""] {
            assert!(!is_plain_absolute(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn each_request_limit_is_enforced() {
        let null = std::fs::File::open("/dev/null").expect("open /dev/null");
        let good = EngineRequest { descriptors: vec![null.as_fd()], ..EngineRequest::default() };
        good.check().expect("the default limits are valid");
        let bad: [&dyn Fn(&mut EngineRequest<'_>); 10] = [
            &|request| request.limits.memory_bytes = MEMORY_BYTES_MIN - 1,
            &|request| request.limits.address_space_bytes = Some(request.limits.memory_bytes - 1),
            &|request| request.limits.data_bytes = Some(MEMORY_BYTES_MIN - 1),
            &|request| request.limits.cpu_seconds = 0,
            &|request| request.limits.threads = 0,
            &|request| request.limits.descriptors = 4,
            &|request| request.limits.cpu_weight = 10_001,
            &|request| request.limits.cpu_percent = Some(0),
            &|request| request.parameters = vec![0; PARAMETERS_BYTES_MAX + 1],
            &|request| request.descriptors = vec![request.descriptors[0]; DESCRIPTORS_MAX + 1],
        ];
        for (index, change) in bad.iter().enumerate() {
            let mut request = good.clone();
            change(&mut request);
            assert!(matches!(request.check(), Err(SandboxError::InvalidRequest(_))), "change {index}");
        }
    }

    #[test]
    fn code_is_sealed_and_its_name_checked() {
        let code = EngineCode::new("fn.so", b"bytes").expect("memory file");
        assert_eq!(code.path(), Path::new("/fn.so"));
        let refused = rustix::io::pwrite(code.content(), b"other", 0);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
        for name in ["", ".hidden", "a/b", "..", "a b", &"n".repeat(CODE_NAME_BYTES_MAX + 1)] {
            assert!(EngineCode::new(name, b"").is_err(), "{name}");
        }
    }
}
