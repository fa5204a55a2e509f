//! Attempts to leave the sandbox, to disturb others, or to use up the machine.

use std::arch::asm;
use std::ffi::CStr;
use std::io;

/// An attempt: what it returns if the kernel let it pass, or the error.
type Attempt = fn() -> io::Result<i64>;

/// Descriptors 3 and 4 in the tests: a sealed memory file, and a file that is open to read.
const MEMORY_FILE: usize = 3;
const READ_ONLY_FILE: usize = 4;
/// Abstract socket on which the test listens.
const ABSTRACT_NAME: &[u8] = b"\0sealstone-attack";
/// Port on which the test listens is in the memory file; see `connect_tcp`.
const PORT_OFFSET: i64 = 64;
const LOOPS: usize = 1000;
/// Memory that a memory bomb touches, in bytes.
const BOMB_BYTES: usize = 4 << 30;
const PAGE_BYTES: usize = 4096;

/// All attempts by name.
pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("open-passwd", || open(c"/etc/passwd", libc::O_RDONLY)),
    ("open-above-root", || open(c"../../../../etc/passwd", libc::O_RDONLY)),
    ("open-own-maps", || open(c"/proc/self/maps", libc::O_RDONLY)),
    ("open-memory-device", || open(c"/dev/mem", libc::O_RDONLY)),
    ("list-root", || open(c"/", libc::O_RDONLY | libc::O_DIRECTORY)),
    ("create-file", || open(c"/tmp/evil", libc::O_WRONLY | libc::O_CREAT)),
    ("create-in-root", || open(c"/evil", libc::O_WRONLY | libc::O_CREAT)),
    ("write-code", || open(c"/fn.so", libc::O_WRONLY)),
    ("make-folder", || path_call(libc::SYS_mkdirat, c"/evil", 0o777)),
    ("make-device", || path_call(libc::SYS_mknodat, c"/evil", libc::S_IFCHR as usize | 0o666)),
    ("remove-code", || path_call(libc::SYS_unlinkat, c"/fn.so", 0)),
    ("reopen-to-write", || open(c"/proc/self/fd/4", libc::O_RDWR)),
    ("write-read-only-file", || call(libc::SYS_pwrite64, [READ_ONLY_FILE, address(b"x"), 1, 0, 0])),
    ("truncate-read-only-file", || call(libc::SYS_ftruncate, [READ_ONLY_FILE, 0, 0, 0, 0])),
    ("open-by-handle", open_by_handle),
    ("connect-tcp", connect_tcp),
    ("connect-abstract-socket", connect_abstract),
    ("raw-socket", || socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("netlink-socket", || socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)),
    ("packet-socket", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("vsock-socket", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("ptrace-init", || call(libc::SYS_ptrace, [libc::PTRACE_ATTACH as usize, 1, 0, 0, 0])),
    ("read-memory-of-init", read_memory_of_init),
    ("descriptor-of-init", descriptor_of_init),
    ("kill-init", || call(libc::SYS_kill, [1, libc::SIGKILL as usize, 0, 0, 0])),
    ("kill-all", || call(libc::SYS_kill, [usize::MAX, libc::SIGKILL as usize, 0, 0, 0])),
    ("fork-bomb", fork_bomb),
    ("vfork", || call(libc::SYS_vfork, [0; 5])),
    ("start-thread", start_thread),
    ("memory-bomb", memory_bomb),
    ("huge-page-memory", huge_page_memory),
    ("descriptor-exhaustion", || repeat(|| open(c"/fn.so", libc::O_RDONLY))),
    ("processor-spin", || {
        loop {
            std::hint::spin_loop()
        }
    }),
    ("execute-shell", || execute(c"/bin/sh")),
    ("execute-code", || execute(c"/fn.so")),
    ("execute-memory-file", execute_memory_file),
    ("user-namespace", || call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0])),
    ("mount-namespace", || call(libc::SYS_unshare, [libc::CLONE_NEWNS as usize, 0, 0, 0, 0])),
    ("io-uring", io_uring),
    ("userfaultfd", || call(libc::SYS_userfaultfd, [0; 5])),
    ("memory-file", || call(libc::SYS_memfd_create, [c"evil".as_ptr() as usize, 0, 0, 0, 0])),
    ("shared-memory", || call(libc::SYS_shmget, [0, PAGE_BYTES, libc::IPC_CREAT as usize | 0o666, 0, 0])),
    ("message-queue", || call(libc::SYS_msgget, [0, libc::IPC_CREAT as usize | 0o666, 0, 0, 0])),
    ("performance-events", performance_events),
    ("become-root", || call(libc::SYS_setuid, [0; 5])),
    ("become-other-user", || call(libc::SYS_setresuid, [1000, 1000, 1000, 0, 0])),
    ("take-capabilities", take_capabilities),
    ("change-root", || call(libc::SYS_chroot, [c"/".as_ptr() as usize, 0, 0, 0, 0])),
    ("mount", mount),
    ("remount-root", remount_root),
    ("unmount-root", || {
        call(libc::SYS_umount2, [c"/".as_ptr() as usize, libc::MNT_DETACH as usize, 0, 0, 0])
    }),
    ("bpf", bpf),
    ("load-module", || call(libc::SYS_finit_module, [READ_ONLY_FILE, c"".as_ptr() as usize, 0, 0, 0])),
    ("add-key", add_key),
    ("kernel-log", || call(libc::SYS_syslog, [10, 0, 0, 0, 0])),
    ("reboot", || call(libc::SYS_reboot, [0xfee1_dead, 672_274_793, 0, 0, 0])),
    ("set-host-name", || call(libc::SYS_sethostname, [address(b"evil"), 4, 0, 0, 0])),
    ("set-time", set_time),
    ("raise-limit", raise_limit),
    ("become-dumpable", || call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0])),
    ("outlive-parent", || call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, 0, 0, 0, 0])),
    ("personality", || call(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0])),
    ("shrink-memory-file", || call(libc::SYS_ftruncate, [MEMORY_FILE, 0, 0, 0, 0])),
    ("grow-memory-file", || call(libc::SYS_ftruncate, [MEMORY_FILE, 1 << 30, 0, 0, 0])),
    ("punch-memory-file", punch_memory_file),
    ("unseal-memory-file", || {
        call(libc::SYS_fcntl, [MEMORY_FILE, libc::F_ADD_SEALS as usize, libc::F_SEAL_WRITE as usize, 0, 0])
    }),
    ("write-then-execute", write_then_execute),
    ("write-and-execute", write_and_execute),
    ("map-executable", map_executable),
    ("inject-terminal-input", || call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, address(b"x"), 0, 0])),
    ("broken-pointer", || call(libc::SYS_pipe2, [0; 5])),
    ("bind-to-processor", || {
        call(libc::SYS_sched_setaffinity, [0, 8, address(&[1, 0, 0, 0, 0, 0, 0, 0]), 0, 0])
    }),
    ("thirty-two-bit-call", thirty_two_bit_call),
    ("x32-call", || call(0x4000_0000 + 39, [0; 5])),
];

/// Makes a system call with integers, or with addresses of data that lives until the call returns.
fn call(number: i64, arguments: [usize; 5]) -> io::Result<i64> {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: the callers pass addresses of live data, sized as the call expects. A call that ends
    // or replaces the process is an attack that the tests expect to fail.
    let result = unsafe { libc::syscall(number, first, second, third, fourth, fifth, 0usize) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn address(bytes: &[u8]) -> usize {
    bytes.as_ptr() as usize
}

fn open(path: &CStr, flags: i32) -> io::Result<i64> {
    call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0o666, 0])
}

fn path_call(number: i64, path: &CStr, argument: usize) -> io::Result<i64> {
    call(number, [libc::AT_FDCWD as usize, path.as_ptr() as usize, argument, 0, 0])
}

fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<i64> {
    call(libc::SYS_socket, [family as usize, kind as usize, protocol as usize, 0, 0])
}

fn repeat(attempt: Attempt) -> io::Result<i64> {
    (0..LOOPS).try_fold(0, |_, _| attempt())
}

fn open_by_handle() -> io::Result<i64> {
    // The handle of inode 2, which is the root of many file systems.
    let mut handle = [0u32; 8];
    (handle[0], handle[1], handle[2]) = (8, 1, 2);
    call(libc::SYS_open_by_handle_at, [READ_ONLY_FILE, handle.as_ptr() as usize, 0, 0, 0])
}

fn connect_tcp() -> io::Result<i64> {
    let mut port = [0u8; 2];
    call(libc::SYS_pread64, [MEMORY_FILE, port.as_mut_ptr() as usize, 2, PORT_OFFSET as usize, 0])?;
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let family = (libc::AF_INET as u16).to_ne_bytes();
    let place = [family[0], family[1], port[0], port[1], 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    call(libc::SYS_connect, [socket as usize, address(&place), place.len(), 0, 0])
}

fn connect_abstract() -> io::Result<i64> {
    let socket = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)?;
    let mut place = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    place.extend(ABSTRACT_NAME);
    call(libc::SYS_connect, [socket as usize, address(&place), place.len(), 0, 0])
}

fn read_memory_of_init() -> io::Result<i64> {
    let mut byte = 0u8;
    let local = [(&raw mut byte) as usize, 1];
    // The init process has the same program at the same address.
    let remote = [BOMB_BYTES.min(call as *const () as usize), 1];
    let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
    call(libc::SYS_process_vm_readv, [1, local, 1, remote, 1])
}

fn descriptor_of_init() -> io::Result<i64> {
    let init = call(libc::SYS_pidfd_open, [1, 0, 0, 0, 0])?;
    call(libc::SYS_pidfd_getfd, [init as usize, 0, 0, 0, 0])
}

fn fork_bomb() -> io::Result<i64> {
    for _ in 0..LOOPS {
        // The children end with the namespace.
        if call(libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0])? == 0 {
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
    }
    Ok(0)
}

fn start_thread() -> io::Result<i64> {
    std::thread::Builder::new().spawn(|| ()).map(|_| 0)
}

fn memory_bomb() -> io::Result<i64> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // In parts, so that the limit of the address space does not refuse the first one.
    const PART_BYTES: usize = 1 << 20;
    for _ in 0..BOMB_BYTES / PART_BYTES {
        let start = call(libc::SYS_mmap, [0, PART_BYTES, protection, flags, usize::MAX])? as usize;
        for page in (start..start + PART_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: the page was mapped above and belongs to nothing else.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
    }
    Ok(0)
}

fn huge_page_memory() -> io::Result<i64> {
    const HUGE_PAGE_BYTES: usize = 2 << 20;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) as usize;
    call(libc::SYS_mmap, [0, HUGE_PAGE_BYTES, protection, flags, usize::MAX])
}

fn execute(path: &CStr) -> io::Result<i64> {
    let arguments = [path.as_ptr() as usize, 0];
    let arguments = arguments.as_ptr() as usize;
    call(libc::SYS_execve, [path.as_ptr() as usize, arguments, 0, 0, 0])
}

fn execute_memory_file() -> io::Result<i64> {
    let flags = libc::AT_EMPTY_PATH as usize;
    call(libc::SYS_execveat, [MEMORY_FILE, c"".as_ptr() as usize, 0, 0, flags])
}

fn io_uring() -> io::Result<i64> {
    let parameters = [0u8; 120];
    call(libc::SYS_io_uring_setup, [8, address(&parameters), 0, 0, 0])
}

fn performance_events() -> io::Result<i64> {
    // A software clock of this process.
    let mut attributes = [0u32; 32];
    (attributes[0], attributes[1]) = (1, 128);
    call(libc::SYS_perf_event_open, [attributes.as_ptr() as usize, 0, usize::MAX, usize::MAX, 0])
}

fn take_capabilities() -> io::Result<i64> {
    let (header, sets) = ([0x2008_0522u32, 0], [u32::MAX; 6]);
    call(libc::SYS_capset, [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0])
}

fn mount() -> io::Result<i64> {
    let (kind, target) = (c"tmpfs".as_ptr() as usize, c"/".as_ptr() as usize);
    call(libc::SYS_mount, [kind, target, kind, 0, 0])
}

fn remount_root() -> io::Result<i64> {
    let target = c"/".as_ptr() as usize;
    call(libc::SYS_mount, [0, target, 0, (libc::MS_REMOUNT | libc::MS_BIND) as usize, 0])
}

fn bpf() -> io::Result<i64> {
    // An array map with one value of four bytes.
    let attributes = [2u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    call(libc::SYS_bpf, [0, attributes.as_ptr() as usize, 72, 0, 0])
}

fn add_key() -> io::Result<i64> {
    let (kind, name) = (c"user".as_ptr() as usize, c"evil".as_ptr() as usize);
    // The keyring of the user.
    call(libc::SYS_add_key, [kind, name, address(b"x"), 1, -4isize as usize])
}

fn set_time() -> io::Result<i64> {
    let time = [0i64, 0];
    call(libc::SYS_clock_settime, [0, time.as_ptr() as usize, 0, 0, 0])
}

fn raise_limit() -> io::Result<i64> {
    let limit = [u64::MAX, u64::MAX];
    call(libc::SYS_prlimit64, [0, libc::RLIMIT_AS as usize, limit.as_ptr() as usize, 0, 0])
}

fn punch_memory_file() -> io::Result<i64> {
    let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
    call(libc::SYS_fallocate, [MEMORY_FILE, mode, 0, PAGE_BYTES, 0])
}

fn write_then_execute() -> io::Result<i64> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let page = call(libc::SYS_mmap, [0, PAGE_BYTES, protection, flags, usize::MAX])?;
    call(libc::SYS_mprotect, [page as usize, PAGE_BYTES, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0])
}

/// Makes a page writable and executable at once.
fn write_and_execute() -> io::Result<i64> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let page = call(libc::SYS_mmap, [0, PAGE_BYTES, libc::PROT_READ as usize, flags, usize::MAX])?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize;
    call(libc::SYS_mprotect, [page as usize, PAGE_BYTES, protection, 0, 0])
}

/// Maps memory that is executable from the start.
fn map_executable() -> io::Result<i64> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize;
    call(libc::SYS_mmap, [0, PAGE_BYTES, protection, flags, usize::MAX])
}

/// Calls `getpid` of the 32-bit table, which no filter for 64-bit calls sees.
fn thirty_two_bit_call() -> io::Result<i64> {
    let result: i64;
    // SAFETY: the call has no arguments and changes registers only, all of which are listed.
    unsafe {
        asm!("int 0x80", inout("rax") 20i64 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result) }
}
