//! System calls that rustix has no safe wrapper for.
//!
//! Does: one function per call, with owned or borrowed descriptors and `io::Result`.
//! Does not: decide anything. Every unsafe block of the crate but those around `fork` is in this
//! file.
#![allow(unsafe_code, reason = "system calls without a safe wrapper")]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Version 3 of the capability structures, two 32-bit words each.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Capabilities are numbered below this.
const CAPABILITY_NUMBERS: libc::c_ulong = 64;
/// `SECBIT_NOROOT`, `SECBIT_KEEP_CAPS_LOCKED`, `SECBIT_NO_CAP_AMBIENT_RAISE` and all other locks.
/// With them no later uid change or execve gives capabilities back.
const SECURE_BITS: libc::c_ulong = 0b1110_1011;

/// Result of a fork: the child's side, or the parent's with the child.
pub(crate) enum ForkSide<T> {
    Child,
    Parent(T),
}

/// A child process as its parent refers to it.
pub(crate) struct ForkedChild {
    pub(crate) pid: libc::pid_t,
    pub(crate) pidfd: OwnedFd,
}

/// A child that ended, as `wait4` reports it.
pub(crate) struct ReapedChild {
    pub(crate) pid: libc::pid_t,
    pub(crate) status: libc::c_int,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_memory: u64,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_long(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks a child into new namespaces (`CLONE_NEW…` flags), and returns a pidfd of it.
///
/// The child must not return into code that expects the parent.
pub(crate) fn fork_into_namespaces(namespaces: libc::c_int) -> io::Result<ForkSide<ForkedChild>> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data, for which all zeros is a valid value.
    let mut arguments: libc::clone_args = unsafe { zeroed() };
    arguments.flags = (namespaces | libc::CLONE_PIDFD) as u32 as u64;
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: the structure is valid for its size, `pidfd` outlives the call, no memory is shared
    // with the child (no CLONE_VM) and stack 0 keeps the copy of the caller's. `serve`
    // checked that one thread exists, so no other one holds a lock of the allocator.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, (&raw mut arguments), size_of::<libc::clone_args>()) };
    match check_long(pid)? {
        0 => Ok(ForkSide::Child),
        pid => {
            // SAFETY: the kernel stored a new descriptor there, which belongs to nothing else.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(ForkSide::Parent(ForkedChild { pid: pid as libc::pid_t, pidfd }))
        }
    }
}

/// Forks as the C library does, which corrects its notion of the thread's number.
pub(crate) fn fork() -> io::Result<ForkSide<libc::pid_t>> {
    // SAFETY: the caller is the forked child of a zygote, which `serve` checked to have one thread.
    // So no other thread holds a lock, and the copy of each lock in the child is free.
    match check(unsafe { libc::fork() })? {
        0 => Ok(ForkSide::Child),
        pid => Ok(ForkSide::Parent(pid)),
    }
}

/// Whether the process has one thread, which the two forks above rely on.
pub(crate) fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// Ends the process without running destructors or exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes any value and does not return.
    unsafe { libc::_exit(code) }
}

/// Moves the process to new namespaces.
pub(crate) fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare takes flags only.
    check(unsafe { libc::unshare(namespaces) }).map(drop)
}

fn set_process_option(option: libc::c_int, arguments: [libc::c_ulong; 4]) -> io::Result<()> {
    let [first, second, third, fourth] = arguments;
    // SAFETY: the options used here take integers, no pointers.
    check(unsafe { libc::prctl(option, first, second, third, fourth) }).map(drop)
}

/// Sends `signal` to this process when the thread that created it ends.
pub(crate) fn set_parent_death_signal(signal: libc::c_int) -> io::Result<()> {
    set_process_option(libc::PR_SET_PDEATHSIG, [signal as libc::c_ulong, 0, 0, 0])
}

/// Gives orphaned descendants to this process.
pub(crate) fn set_subreaper() -> io::Result<()> {
    set_process_option(libc::PR_SET_CHILD_SUBREAPER, [1, 0, 0, 0])
}

/// Prevents core dumps, ptrace and access to `/proc/PID` by processes of the same user.
pub(crate) fn clear_dumpable() -> io::Result<()> {
    set_process_option(libc::PR_SET_DUMPABLE, [0; 4])
}

/// Prevents any gain of privileges by execve.
pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    set_process_option(libc::PR_SET_NO_NEW_PRIVS, [1, 0, 0, 0])
}

/// Refuses memory that is writable and executable, or becomes executable later.
pub(crate) fn refuse_writable_code() -> io::Result<()> {
    set_process_option(libc::PR_SET_MDWE, [libc::c_ulong::from(libc::PR_MDWE_REFUSE_EXEC_GAIN), 0, 0, 0])
}

/// Locks the secure bits and empties the bounding and ambient sets. Needs `CAP_SETPCAP`.
pub(crate) fn empty_bounding_set() -> io::Result<()> {
    set_process_option(libc::PR_SET_SECUREBITS, [SECURE_BITS, 0, 0, 0])?;
    for number in 0..CAPABILITY_NUMBERS {
        match set_process_option(libc::PR_CAPBSET_DROP, [number, 0, 0, 0]) {
            Ok(()) => {}
            // The first number above those that the kernel has.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    set_process_option(libc::PR_CAP_AMBIENT, [libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0])
}

/// Empties the permitted, effective and inheritable capability sets.
pub(crate) fn empty_capability_sets() -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let sets = [CapabilityWords { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: version 3 reads one header and two sets; both live until the call returns.
    check_long(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) }).map(drop)
}

/// Changes real, effective and saved user and group, and removes all other groups.
pub(crate) fn set_identity(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: with a count of 0 the list is not read.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: setresgid and setresuid take integers only.
    check(unsafe { libc::setresgid(gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::setresuid(uid, uid, uid) }).map(drop)
}

/// Returns the user and group of this process.
pub(crate) fn identity() -> (u32, u32) {
    // SAFETY: geteuid and getegid have no arguments and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Returns the process that created this one, as this process's namespace numbers it.
pub(crate) fn parent_id() -> libc::pid_t {
    // SAFETY: getppid has no arguments and cannot fail.
    unsafe { libc::getppid() }
}

/// Makes a mount and all below it read-only, without set-user-id programs and devices.
pub(crate) fn set_mount_read_only(target: &CStr) -> io::Result<()> {
    // SAFETY: mount_attr is plain data, for which all zeros is a valid value.
    let mut attributes: libc::mount_attr = unsafe { zeroed() };
    attributes.attr_set = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    // SAFETY: the path ends with a zero byte, and the structure is valid for its size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    check_long(result).map(drop)
}

/// Sets close-on-exec on all descriptors from `first` on. Safe between fork and exec.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes the descriptors from `first` to `last`, which nothing of this process uses any more.
pub(crate) fn close_descriptors(first: u32, last: u32) -> io::Result<()> {
    close_range(first, last, 0)
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range takes integers only; the callers own the descriptors of the range.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Moves a descriptor to `number`, which is closed first if it is open. It survives no execve.
pub(crate) fn move_descriptor(from: OwnedFd, number: RawFd) -> io::Result<OwnedFd> {
    if from.as_raw_fd() == number {
        return Ok(from);
    }
    // SAFETY: `from` is open, and the caller owns the target number.
    check(unsafe { libc::dup3(from.as_raw_fd(), number, libc::O_CLOEXEC) })?;
    drop(from);
    // SAFETY: dup3 created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Duplicates a descriptor to a number that is at least `lowest`.
pub(crate) fn duplicate_above(from: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes an integer; the result is a new descriptor.
    let number = check(unsafe { libc::fcntl(from.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) })?;
    // SAFETY: fcntl created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes standard input over, which must be open and used by nothing else in this process.
pub(crate) fn take_standard_input() -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no further argument; it fails if the descriptor is not open.
    check(unsafe { libc::fcntl(libc::STDIN_FILENO, libc::F_GETFD) })?;
    // SAFETY: the descriptor is open, and engine programs do not use `std::io::stdin`.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::STDIN_FILENO) })
}

/// Gives a descriptor up without closing it.
pub(crate) fn forget_descriptor(descriptor: OwnedFd) {
    let _ = descriptor.into_raw_fd();
}

/// Waits until one of the descriptors is readable or has lost its peer; returns which are.
///
/// Without a timeout it waits for as long as that takes.
pub(crate) fn wait_readable<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let deadline = timeout.map(|timeout| std::time::Instant::now() + timeout);
    let mut entries =
        descriptors.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    loop {
        let remaining =
            deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
        let limit = remaining.map(|left| libc::timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: left.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array has N entries, the limit lives until the call returns or is null, and
        // without a mask the signals stay as they are.
        let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), N as libc::nfds_t, limit, std::ptr::null()) };
        match check(ready) {
            Ok(_) => return Ok(entries.map(|entry| entry.revents != 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reaps a child, any if `pid` is `None`; without `block`, `None` means that none has ended.
pub(crate) fn reap_child(pid: Option<libc::pid_t>, block: bool) -> io::Result<Option<ReapedChild>> {
    let mut status = 0;
    // SAFETY: rusage is plain data, for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { zeroed() };
    let options = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: both pointers are valid for the whole call.
        let reaped = unsafe { libc::wait4(pid.unwrap_or(-1), &raw mut status, options, &raw mut usage) };
        match check(reaped) {
            Ok(0) => return Ok(None),
            Ok(pid) => {
                let of = |time: libc::timeval| {
                    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
                };
                let cpu_time = of(usage.ru_utime) + of(usage.ru_stime);
                // The kernel counts in KiB.
                let peak_memory = usage.ru_maxrss as u64 * 1024;
                return Ok(Some(ReapedChild { pid, status, cpu_time, peak_memory }));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Kills a child that was not yet reaped, so that its number cannot belong to another process.
pub(crate) fn kill_child(pid: libc::pid_t) {
    // SAFETY: kill takes integers only.
    let _ = unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Blocks SIGCHLD and SIGTERM and returns a descriptor that receives them.
pub(crate) fn receive_signals() -> io::Result<OwnedFd> {
    let signals = signal_set(&[libc::SIGCHLD, libc::SIGTERM]);
    set_signal_mask(&signals)?;
    // SAFETY: the set is valid until the call returns; -1 asks for a new descriptor.
    let fd =
        check(unsafe { libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
    // SAFETY: signalfd created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads one signal number, if one is pending.
pub(crate) fn next_signal(signals: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(signals, &mut bytes) {
        // The number is the first field.
        Ok(length) if length == bytes.len() => {
            Ok(Some(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
        }
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Unblocks all signals.
pub(crate) fn unblock_signals() -> io::Result<()> {
    set_signal_mask(&signal_set(&[]))
}

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset then gives it its defined value.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: the set is valid for both calls, and the numbers are those of real signals.
    unsafe {
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
    }
    set
}

fn set_signal_mask(signals: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the new set is valid, and the old one is not asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) }).map(drop)
}

/// Returns the processor time of a process so far.
pub(crate) fn process_cpu_time(pid: libc::pid_t) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the pointer is valid; the call returns an error number instead of setting errno.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid until the call returns.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Gives up real-time scheduling, which engines must not inherit from a daemon.
pub(crate) fn use_normal_scheduling() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure lives until the call returns.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) }).map(drop)
}

/// Sets the host name of the UTS namespace.
pub(crate) fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: the pointer is valid for the length, and the call only reads.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Rights that a Landlock ruleset handles, as the kernel reads them; each version appends a field.
#[repr(C)]
pub(crate) struct RulesetAttributes {
    pub(crate) files: u64,
    pub(crate) ports: u64,
    pub(crate) scopes: u64,
}

#[repr(C, packed)]
struct PathRule {
    allowed: u64,
    parent: RawFd,
}

/// Returns the version of Landlock that the kernel has.
pub(crate) fn landlock_version() -> io::Result<u32> {
    /// The flag `LANDLOCK_CREATE_RULESET_VERSION`.
    const QUERY_VERSION: libc::c_uint = 1;
    let no_attributes = std::ptr::null::<RulesetAttributes>();
    // SAFETY: with this flag the kernel requires a null pointer and a size of 0.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_attributes, 0usize, QUERY_VERSION) };
    check_long(version).map(|version| version as u32)
}

/// Creates a Landlock ruleset from the first `size` bytes of the attributes.
pub(crate) fn create_ruleset(attributes: &RulesetAttributes, size: usize) -> io::Result<OwnedFd> {
    assert!(size <= size_of::<RulesetAttributes>(), "the kernel must not read past the structure");
    // SAFETY: the structure is valid for `size` bytes until the call returns.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(attributes),
            size,
            0 as libc::c_uint,
        )
    };
    let fd = check_long(fd)?;
    // SAFETY: the call created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Allows rights on a file, or on a folder and all below it.
pub(crate) fn allow_path(ruleset: BorrowedFd<'_>, path: BorrowedFd<'_>, allowed: u64) -> io::Result<()> {
    /// The rule type `LANDLOCK_RULE_PATH_BENEATH`.
    const PATH_BENEATH: libc::c_int = 1;
    let rule = PathRule { allowed, parent: path.as_raw_fd() };
    // SAFETY: the structure has the kernel's layout and lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0 as libc::c_uint,
        )
    };
    check_long(result).map(drop)
}

/// Confines the calling thread by a ruleset. Needs `no_new_privs`.
pub(crate) fn restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes integers only.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0 as libc::c_uint) };
    check_long(result).map(drop)
}
