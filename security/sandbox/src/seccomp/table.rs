//! The reviewed table of system calls that engines may make.
//!
//! Contract: a row names the call, the processes, a condition on its arguments and the reason. A
//! call without a row kills the engine. Several rows of one call are alternatives. The filter and
//! `docs/reference/sandbox.md` are generated from these rows.

use crate::options::EngineKind;

/// A kind of process that has its own filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilteredProcess {
    /// The init process of an engine's process namespace.
    Init,
    /// An engine of one language.
    Engine(EngineKind),
}

impl From<EngineKind> for FilteredProcess {
    fn from(kind: EngineKind) -> Self {
        Self::Engine(kind)
    }
}

/// The processes that a row applies to, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessSet(u8);

impl ProcessSet {
    const fn of(process: FilteredProcess) -> Self {
        Self(match process {
            FilteredProcess::Init => 1,
            FilteredProcess::Engine(EngineKind::C) => 2,
            FilteredProcess::Engine(EngineKind::Wasm) => 4,
            FilteredProcess::Engine(EngineKind::Java) => 8,
            FilteredProcess::Engine(EngineKind::Python) => 16,
        })
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn contains(self, process: FilteredProcess) -> bool {
        self.0 & Self::of(process).0 != 0
    }
}

const INIT: ProcessSet = ProcessSet::of(FilteredProcess::Init);
const C: ProcessSet = ProcessSet::of(FilteredProcess::Engine(EngineKind::C));
const WASM: ProcessSet = ProcessSet::of(FilteredProcess::Engine(EngineKind::Wasm));
const JAVA: ProcessSet = ProcessSet::of(FilteredProcess::Engine(EngineKind::Java));
const PYTHON: ProcessSet = ProcessSet::of(FilteredProcess::Engine(EngineKind::Python));
/// Engines without a runtime that reads files.
const NATIVE: ProcessSet = C.and(WASM);
/// Engines whose runtime reads its library from binds.
const INTERPRETERS: ProcessSet = JAVA.and(PYTHON);
/// Engines that create code while they run.
const COMPILERS: ProcessSet = WASM.and(INTERPRETERS);
/// Engines that map code from files, or whose runtime maps it as it likes.
const CODE_MAPPERS: ProcessSet = C.and(INTERPRETERS);
const ENGINES: ProcessSet = NATIVE.and(INTERPRETERS);
const ENGINES_AND_INIT: ProcessSet = ENGINES.and(INIT);

/// Result of a call that a row matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyscallVerdict {
    Allow,
    /// The call has no effect and returns this error number.
    Fail(u32),
}

impl SyscallVerdict {
    pub(super) const fn error(self) -> Option<u32> {
        match self {
            Self::Allow => None,
            Self::Fail(errno) => Some(errno),
        }
    }
}

/// A condition on one argument: the bits of the mask have these values.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArgumentCondition {
    pub(super) argument: u8,
    pub(super) mask: u64,
    pub(super) value: u64,
    #[cfg_attr(not(test), allow(dead_code, reason = "for the generated page"))]
    pub(super) text: &'static str,
}

const fn equals(argument: u8, value: i32, text: &'static str) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u32::MAX as u64, value: value as u32 as u64, text }
}

const ADVICE_DONTNEED: ArgumentCondition = equals(2, libc::MADV_DONTNEED, "advice is MADV_DONTNEED");
const ADVICE_FREE: ArgumentCondition = equals(2, libc::MADV_FREE, "advice is MADV_FREE");
const ADVICE_HUGE: ArgumentCondition = equals(2, libc::MADV_HUGEPAGE, "advice is MADV_HUGEPAGE");
const ADVICE_NO_HUGE: ArgumentCondition = equals(2, libc::MADV_NOHUGEPAGE, "advice is MADV_NOHUGEPAGE");
const ADVICE_POPULATE: ArgumentCondition =
    equals(2, libc::MADV_POPULATE_WRITE, "advice is MADV_POPULATE_WRITE");
/// Huge pages of the machine are not charged to the memory of the cgroup.
const NO_HUGE_PAGES: ArgumentCondition =
    ArgumentCondition { argument: 3, mask: libc::MAP_HUGETLB as u64, value: 0, text: "without MAP_HUGETLB" };
const SIGNAL_ABORT: ArgumentCondition = equals(2, libc::SIGABRT, "signal is SIGABRT");
/// HotSpot stops its threads with this signal.
const SIGNAL_SAFEPOINT: ArgumentCondition = equals(2, libc::SIGUSR2, "signal is SIGUSR2");
const TO_STANDARD_OUTPUT: ArgumentCondition = equals(0, libc::STDOUT_FILENO, "to standard output");
const TO_STANDARD_ERROR: ArgumentCondition = equals(0, libc::STDERR_FILENO, "to standard error");
const NAME_OF_THREAD: ArgumentCondition = equals(0, libc::PR_SET_NAME, "option is PR_SET_NAME");
const NAME_OF_MEMORY: ArgumentCondition = equals(0, libc::PR_SET_VMA, "option is PR_SET_VMA");
const REFUSE_NEW_CODE: ArgumentCondition = equals(0, libc::PR_SET_MDWE, "option is PR_SET_MDWE");
const NOT_EXECUTABLE: ArgumentCondition =
    ArgumentCondition { argument: 2, mask: libc::PROT_EXEC as u64, value: 0, text: "not executable" };
const EXECUTABLE_NOT_WRITABLE: ArgumentCondition = ArgumentCondition {
    argument: 2,
    mask: (libc::PROT_EXEC | libc::PROT_WRITE) as u64,
    value: libc::PROT_EXEC as u64,
    text: "executable and not writable",
};
const READ_DESCRIPTOR_FLAGS: ArgumentCondition = equals(1, libc::F_GETFD, "command is F_GETFD");
const SET_DESCRIPTOR_FLAGS: ArgumentCondition = equals(1, libc::F_SETFD, "command is F_SETFD");
const READ_STATUS_FLAGS: ArgumentCondition = equals(1, libc::F_GETFL, "command is F_GETFL");
const READ_LIMIT: ArgumentCondition =
    ArgumentCondition { argument: 2, mask: u64::MAX, value: 0, text: "no new limit" };
const READ_ONLY: ArgumentCondition = ArgumentCondition {
    argument: 2,
    // O_TMPFILE contains O_DIRECTORY, which is harmless.
    mask: (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u64,
    value: 0,
    text: "only to read",
};
const OPEN_WRITE_ONLY: ArgumentCondition = ArgumentCondition {
    argument: 2,
    mask: libc::O_ACCMODE as u64,
    value: libc::O_WRONLY as u64,
    text: "only to write",
};
const OPEN_READ_WRITE: ArgumentCondition = ArgumentCondition {
    argument: 2,
    mask: libc::O_ACCMODE as u64,
    value: libc::O_RDWR as u64,
    text: "to read and write",
};
const THREAD_FLAGS: libc::c_int = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
const NAMESPACE_FLAGS: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const THREAD_ONLY: ArgumentCondition = ArgumentCondition {
    argument: 0,
    mask: (THREAD_FLAGS | NAMESPACE_FLAGS) as u32 as u64,
    value: THREAD_FLAGS as u64,
    text: "a thread in the same namespaces",
};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyscallRow {
    #[cfg_attr(not(test), allow(dead_code, reason = "for the generated page"))]
    pub(super) name: &'static str,
    pub(super) number: libc::c_long,
    pub(super) processes: ProcessSet,
    /// All of them must hold.
    pub(super) conditions: &'static [ArgumentCondition],
    pub(super) verdict: SyscallVerdict,
    #[cfg_attr(not(test), allow(dead_code, reason = "for the generated page"))]
    pub(super) reason: &'static str,
}

const fn allow(
    name: &'static str,
    number: libc::c_long,
    processes: ProcessSet,
    conditions: &'static [ArgumentCondition],
    reason: &'static str,
) -> SyscallRow {
    SyscallRow { name, number, processes, conditions, verdict: SyscallVerdict::Allow, reason }
}

const fn fail(
    name: &'static str,
    number: libc::c_long,
    processes: ProcessSet,
    conditions: &'static [ArgumentCondition],
    errno: libc::c_int,
    reason: &'static str,
) -> SyscallRow {
    SyscallRow { name, number, processes, conditions, verdict: SyscallVerdict::Fail(errno as u32), reason }
}

/// All rows: first those of every engine, then those of runtimes, then those of the init process.
#[rustfmt::skip] // One row is one line.
pub(super) const ROWS: &[SyscallRow] = &[
    allow("exit", libc::SYS_exit, ENGINES_AND_INIT, &[], "ends a thread; without it a process could not end"),
    allow("exit_group", libc::SYS_exit_group, ENGINES_AND_INIT, &[], "ends the process"),
    allow("rt_sigreturn", libc::SYS_rt_sigreturn, ENGINES_AND_INIT, &[], "returns from a signal handler"),
    allow("restart_syscall", libc::SYS_restart_syscall, ENGINES_AND_INIT, &[], "continues an interrupted wait after SIGCONT"),
    allow("brk", libc::SYS_brk, ENGINES_AND_INIT, &[], "memory of the C library's allocator"),
    allow("mmap", libc::SYS_mmap, CODE_MAPPERS.and(INIT), &[NO_HUGE_PAGES], "memory of allocators, and segments of the code"),
    allow("mmap", libc::SYS_mmap, WASM, &[NOT_EXECUTABLE, NO_HUGE_PAGES], "memory of allocators and of modules; compiled code is not mapped, but protected"),
    allow("munmap", libc::SYS_munmap, ENGINES_AND_INIT, &[], "returns memory"),
    allow("mremap", libc::SYS_mremap, ENGINES_AND_INIT, &[], "grows a large allocation; needs no descriptor"),
    allow("mprotect", libc::SYS_mprotect, CODE_MAPPERS, &[], "protects relocations of loaded code, and code of just-in-time compilers"),
    allow("mprotect", libc::SYS_mprotect, WASM, &[NOT_EXECUTABLE], "memory of a module grows"),
    allow("mprotect", libc::SYS_mprotect, WASM, &[EXECUTABLE_NOT_WRITABLE], "compiled code: executable, and no longer writable"),
    allow("madvise", libc::SYS_madvise, ENGINES_AND_INIT, &[ADVICE_DONTNEED], "returns pages; on the shared heap it drops a mapping, never content"),
    allow("madvise", libc::SYS_madvise, ENGINES, &[ADVICE_FREE], "returns pages lazily"),
    allow("madvise", libc::SYS_madvise, ENGINES, &[ADVICE_HUGE], "huge pages for a heap"),
    allow("madvise", libc::SYS_madvise, INTERPRETERS, &[ADVICE_NO_HUGE], "stacks of threads without huge pages"),
    fail("madvise", libc::SYS_madvise, JAVA, &[ADVICE_POPULATE], libc::EINVAL, "newer virtual machines test it, and touch pages instead"),
    allow("futex", libc::SYS_futex, ENGINES, &[], "doorbell of the ring, and locks"),
    allow("clock_gettime", libc::SYS_clock_gettime, ENGINES, &[], "time where the vDSO cannot answer"),
    allow("clock_getres", libc::SYS_clock_getres, INTERPRETERS, &[], "resolution of clocks, read when a runtime starts"),
    allow("gettimeofday", libc::SYS_gettimeofday, INTERPRETERS, &[], "time where the vDSO cannot answer"),
    allow("clock_nanosleep", libc::SYS_clock_nanosleep, ENGINES, &[], "bounded waits for a completion"),
    allow("nanosleep", libc::SYS_nanosleep, ENGINES, &[], "bounded waits of older libraries"),
    allow("sched_yield", libc::SYS_sched_yield, ENGINES, &[], "spinning before a wait"),
    allow("sched_getaffinity", libc::SYS_sched_getaffinity, ENGINES, &[], "number of usable cores"),
    allow("getpid", libc::SYS_getpid, ENGINES, &[], "abort sends SIGABRT to itself"),
    allow("gettid", libc::SYS_gettid, ENGINES, &[], "abort sends SIGABRT to itself"),
    allow("tgkill", libc::SYS_tgkill, ENGINES, &[SIGNAL_ABORT], "abort; the process namespace holds no other engine"),
    allow("rt_sigaction", libc::SYS_rt_sigaction, ENGINES, &[], "handlers of traps, and abort"),
    allow("rt_sigprocmask", libc::SYS_rt_sigprocmask, ENGINES, &[], "abort blocks signals"),
    allow("sigaltstack", libc::SYS_sigaltstack, ENGINES, &[], "stack of the handler of traps"),
    allow("getrandom", libc::SYS_getrandom, ENGINES, &[], "seeds of hash tables"),
    allow("openat", libc::SYS_openat, ENGINES, &[READ_ONLY], "opens the code: the root has nothing else, and cannot be written"),
    allow("read", libc::SYS_read, ENGINES, &[], "headers of the code; other descriptors are those that were granted"),
    allow("pread64", libc::SYS_pread64, ENGINES_AND_INIT, &[], "headers of the code; the init process reads its memory events"),
    allow("lseek", libc::SYS_lseek, ENGINES, &[], "position in the code"),
    allow("close", libc::SYS_close, ENGINES, &[], "closes the code"),
    allow("fstat", libc::SYS_fstat, ENGINES, &[], "size of the code"),
    allow("newfstatat", libc::SYS_newfstatat, ENGINES, &[], "size of the code, as newer C libraries ask for it"),
    allow("write", libc::SYS_write, ENGINES, &[TO_STANDARD_OUTPUT], "messages of the C library to /dev/null"),
    allow("write", libc::SYS_write, ENGINES, &[TO_STANDARD_ERROR], "messages of the C library to /dev/null"),
    allow("writev", libc::SYS_writev, ENGINES, &[TO_STANDARD_ERROR], "messages of the C library to /dev/null"),
    allow("prctl", libc::SYS_prctl, WASM, &[REFUSE_NEW_CODE], "after the compilation, no other memory becomes executable"),
    fail("prctl", libc::SYS_prctl, ENGINES, &[NAME_OF_MEMORY], libc::EINVAL, "allocators name their memory, and do without"),
    fail("clone3", libc::SYS_clone3, INTERPRETERS, &[], libc::ENOSYS, "its flags are in memory, where a filter cannot read them; libraries then use clone"),
    allow("clone", libc::SYS_clone, INTERPRETERS, &[THREAD_ONLY], "threads of the runtime; never a process or a namespace"),
    allow("set_robust_list", libc::SYS_set_robust_list, INTERPRETERS, &[], "start of a thread"),
    allow("rseq", libc::SYS_rseq, INTERPRETERS, &[], "start of a thread"),
    allow("prctl", libc::SYS_prctl, INTERPRETERS, &[NAME_OF_THREAD], "name of a thread"),
    allow("prlimit64", libc::SYS_prlimit64, INTERPRETERS, &[READ_LIMIT], "size of the stack; a limit cannot be set, so Java needs -XX:-MaxFDLimit"),
    allow("membarrier", libc::SYS_membarrier, COMPILERS, &[], "barriers of generated code"),
    allow("dup", libc::SYS_dup, PYTHON, &[], "streams of the interpreter; the limit of descriptors applies"),
    allow("fcntl", libc::SYS_fcntl, ENGINES, &[READ_DESCRIPTOR_FLAGS], "whether a descriptor is open; Rust checks that before it closes one"),
    allow("fcntl", libc::SYS_fcntl, INTERPRETERS, &[SET_DESCRIPTOR_FLAGS], "close-on-exec"),
    allow("fcntl", libc::SYS_fcntl, INTERPRETERS, &[READ_STATUS_FLAGS], "mode of a standard stream"),
    fail("ioctl", libc::SYS_ioctl, INTERPRETERS, &[], libc::ENOTTY, "whether a stream is a terminal: it is not"),
    fail("openat", libc::SYS_openat, INTERPRETERS, &[OPEN_WRITE_ONLY], libc::EACCES, "a program that writes a file receives an error that it can show"),
    fail("openat", libc::SYS_openat, INTERPRETERS, &[OPEN_READ_WRITE], libc::EACCES, "the virtual machine sets up its core dumps, and does without"),
    fail("socket", libc::SYS_socket, INTERPRETERS, &[], libc::EACCES, "the C library asks a daemon for names of users, and does without"),
    fail("epoll_create1", libc::SYS_epoll_create1, PYTHON, &[], libc::ENOSYS, "the module selectors, which socket and subprocess import, tests it and does without"),
    allow("getdents64", libc::SYS_getdents64, INTERPRETERS, &[], "folders of the library"),
    fail("readlinkat", libc::SYS_readlinkat, INTERPRETERS, &[], libc::EINVAL, "as readlink"),
    allow("getcwd", libc::SYS_getcwd, INTERPRETERS, &[], "the root"),
    allow("faccessat", libc::SYS_faccessat, INTERPRETERS, &[], "whether a file of the library exists"),
    allow("faccessat2", libc::SYS_faccessat2, INTERPRETERS, &[], "whether a file of the library exists"),
    allow("statx", libc::SYS_statx, ENGINES, &[], "size of the code, as Rust asks for it"),
    allow("statfs", libc::SYS_statfs, JAVA, &[], "kind of file system below the class archive"),
    allow("fstatfs", libc::SYS_fstatfs, JAVA, &[], "kind of file system below the class archive"),
    allow("getuid", libc::SYS_getuid, INTERPRETERS, &[], "user id, which is the engine's own"),
    allow("geteuid", libc::SYS_geteuid, INTERPRETERS, &[], "user id, which is the engine's own"),
    allow("getgid", libc::SYS_getgid, INTERPRETERS, &[], "group id, which is the engine's own"),
    allow("getegid", libc::SYS_getegid, INTERPRETERS, &[], "group id, which is the engine's own"),
    allow("uname", libc::SYS_uname, INTERPRETERS, &[], "version of the kernel, which libraries check"),
    allow("sysinfo", libc::SYS_sysinfo, INTERPRETERS, &[], "size of memory, which sizes heaps"),
    allow("ppoll", libc::SYS_ppoll, INTERPRETERS, &[], "waits for the doorbell"),
    allow("mincore", libc::SYS_mincore, JAVA, &[], "whether guard pages of a stack are mapped"),
    allow("sched_getparam", libc::SYS_sched_getparam, JAVA, &[], "priority of a thread that starts"),
    allow("sched_getscheduler", libc::SYS_sched_getscheduler, JAVA, &[], "policy of a thread that starts"),
    allow("getrusage", libc::SYS_getrusage, INTERPRETERS, &[], "processor time of the runtime"),
    allow("times", libc::SYS_times, JAVA, &[], "processor time of the runtime"),
    allow("getpriority", libc::SYS_getpriority, JAVA, &[], "priority of a thread"),
    allow("set_tid_address", libc::SYS_set_tid_address, INTERPRETERS, &[], "start of a runtime"),
    allow("tgkill", libc::SYS_tgkill, JAVA, &[SIGNAL_SAFEPOINT], "stops a thread of the same virtual machine; other processes do not exist"),
    allow("wait4", libc::SYS_wait4, INIT, &[], "waits for the engine"),
    allow("sendmsg", libc::SYS_sendmsg, INIT, &[], "reports the end of the engine"),
    #[cfg(target_arch = "x86_64")]
    fail("readlink", libc::SYS_readlink, INTERPRETERS, &[], libc::EINVAL, "no path of the root is a symbolic link that matters"),
    #[cfg(target_arch = "x86_64")]
    allow("access", libc::SYS_access, INTERPRETERS, &[], "whether a file of the library exists"),
    #[cfg(target_arch = "x86_64")]
    allow("stat", libc::SYS_stat, INTERPRETERS, &[], "files of the library, as older libraries ask"),
    #[cfg(target_arch = "x86_64")]
    allow("lstat", libc::SYS_lstat, INTERPRETERS, &[], "files of the library, as older libraries ask"),
    #[cfg(target_arch = "x86_64")]
    allow("poll", libc::SYS_poll, INTERPRETERS, &[], "waits for the doorbell; the module selectors tests it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(process: FilteredProcess) -> impl Iterator<Item = &'static SyscallRow> {
        ROWS.iter().filter(move |row| row.processes.contains(process))
    }

    #[test]
    fn every_process_can_end() {
        let processes = EngineKind::ALL.map(FilteredProcess::Engine);
        for process in processes.into_iter().chain([FilteredProcess::Init]) {
            for call in ["exit", "exit_group"] {
                let row = rows_of(process).find(|row| row.name == call);
                assert!(row.is_some_and(|row| row.conditions.is_empty()), "{call} of {process:?}");
            }
        }
    }

    #[test]
    fn unconditional_row_stands_alone() {
        let processes = EngineKind::ALL.map(FilteredProcess::Engine);
        for process in processes.into_iter().chain([FilteredProcess::Init]) {
            for row in rows_of(process).filter(|row| row.conditions.is_empty()) {
                let same = rows_of(process).filter(|other| other.number == row.number).count();
                assert_eq!(same, 1, "{} of {process:?} has a row without condition", row.name);
            }
        }
    }

    #[test]
    fn dangerous_calls_have_no_row() {
        for call in [
            "execve",
            "execveat",
            "fork",
            "vfork",
            "unshare",
            "setns",
            "ptrace",
            "process_vm_readv",
            "kill",
            "io_uring_setup",
            "userfaultfd",
            "memfd_create",
            "shmget",
            "perf_event_open",
            "bpf",
            "connect",
            "mount",
            "pivot_root",
            "chroot",
            "setuid",
            "keyctl",
            "ftruncate",
            "fallocate",
            "fcntl64",
            "pidfd_getfd",
            "open_by_handle_at",
            "pkey_mprotect",
            "process_madvise",
            "name_to_handle_at",
        ] {
            assert!(ROWS.iter().all(|row| row.name != call), "{call}");
        }
    }

    #[test]
    fn every_row_has_reason_and_matching_conditions() {
        for row in ROWS {
            assert!(row.reason.len() > 3 && !row.reason.contains('|'), "{}", row.name);
            for condition in row.conditions {
                assert_eq!(condition.value & !condition.mask, 0, "{}: {}", row.name, condition.text);
                assert!(condition.argument < 6);
            }
        }
    }
}
