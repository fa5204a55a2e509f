//! Attempts of a C function to leave its sandbox, each through the real engine and service.
//!
//! The same attempts without seccomp, and more of them, are those of the attack engine
//! (`security/sandbox/tests/attacks.rs`).

use std::sync::{Arc, OnceLock};

use sealstone_osd::function::{ExitReason, JobState};
use sealstone_osd_device::{FunctionCall, FunctionCode, GrantedObject};

use crate::functions::{ReservingRunner as _, TestService, build_module, call, reserved};
use crate::objects::{ALL, GrantedMemory};

/// Each method is an attempt. It returns -errno if it is refused, and 1 if it succeeds.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include "osd.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <netinet/in.h>
#include <sched.h>
#include <unistd.h>
static int64_t end(long result) { return result == -1 ? -errno : 1; }
static int64_t open_to_read(const char *path) { return end(open(path, O_RDONLY)); }
int64_t osd_main(const osd_call *call) {
    const char *m = osd_method(call);
    if (!strcmp(m, "open-passwd")) return open_to_read("/etc/passwd");
    if (!strcmp(m, "open-above-root")) return open_to_read("../../../../etc/passwd");
    if (!strcmp(m, "open-own-maps")) return open_to_read("/proc/self/maps");
    if (!strcmp(m, "create-file")) return end(open("/tmp/evil", O_CREAT | O_WRONLY, 0600));
    if (!strcmp(m, "connect-tcp")) {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = 0x1600 };
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        return fd < 0 ? -errno : end(connect(fd, (void *)&to, sizeof to));
    }
    if (!strcmp(m, "connect-abstract-socket")) {
        struct sockaddr_un to = { .sun_family = AF_UNIX, .sun_path = "\0evil" };
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        return fd < 0 ? -errno : end(connect(fd, (void *)&to, sizeof to));
    }
    if (!strcmp(m, "raw-socket")) return end(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    if (!strcmp(m, "ptrace-init")) return end(ptrace(PTRACE_ATTACH, 1, 0, 0));
    if (!strcmp(m, "read-memory-of-init")) {
        char byte;
        struct iovec own = { &byte, 1 }, other = { (void *)0x400000, 1 };
        return end(process_vm_readv(1, &own, 1, &other, 1, 0));
    }
    if (!strcmp(m, "kill-init")) return end(kill(1, SIGKILL));
    if (!strcmp(m, "kill-all")) return end(kill(-1, SIGKILL));
    if (!strcmp(m, "fork-bomb")) { for (;;) if (fork() < 0) return -errno; }
    if (!strcmp(m, "memory-bomb")) { for (;;) { char *p = malloc(1 << 20); if (!p) abort(); memset(p, 1, 1 << 20); } }
    if (!strcmp(m, "descriptor-exhaustion")) { for (;;) if (open("/fn.so", O_RDONLY) < 0) return -errno; }
    if (!strcmp(m, "processor-spin")) { for (volatile uint64_t i = 0;; i++) {} }
    if (!strcmp(m, "execute-shell")) { char *none[] = { NULL }; return end(execve("/bin/sh", none, none)); }
    if (!strcmp(m, "user-namespace")) return end(unshare(CLONE_NEWUSER));
    if (!strcmp(m, "io-uring")) { char parameters[120] = { 0 }; return end(syscall(425, 8, parameters)); }
    if (!strcmp(m, "userfaultfd")) return end(syscall(SYS_userfaultfd, 1));
    if (!strcmp(m, "memory-file")) return end(syscall(SYS_memfd_create, "evil", 0));
    if (!strcmp(m, "shared-memory")) return end(syscall(SYS_shmget, 0, 4096, 01600));
    if (!strcmp(m, "performance-events")) { char attributes[128] = { 0 }; return end(syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0)); }
    if (!strcmp(m, "become-root")) return end(syscall(SYS_setuid, 0));
    if (!strcmp(m, "change-root")) return end(syscall(SYS_chroot, "/"));
    if (!strcmp(m, "bpf")) { char attributes[128] = { 0 }; return end(syscall(SYS_bpf, 0, attributes, sizeof attributes)); }
    if (!strcmp(m, "thirty-two-bit-call")) { int result; __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory"); return 1; }
    if (!strcmp(m, "x32-call")) return end(syscall(0x40000000 | 39));
    if (!strcmp(m, "shrink-memory-file")) { long last = -1; for (int fd = 0; fd < 64; fd++) last &= ftruncate(fd, 0); return end(last); }
    if (!strcmp(m, "reopen-to-write")) return end(open("/fn.so", O_RDWR));
    if (!strcmp(m, "map-heap-executable")) {
        void *data = NULL;
        int64_t writer = osd_writer_open(0, 0);
        int64_t failed = writer < 0 ? writer : osd_writer_buffer(writer, &data);
        return failed < 0 ? failed : end(mprotect((void *)((uintptr_t)data & ~4095ul), 4096, PROT_READ | PROT_EXEC));
    }
    if (!strcmp(m, "none")) return 0;
    return 2;
}
"#;

fn code() -> Arc<[u8]> {
    static CODE: OnceLock<Arc<[u8]>> = OnceLock::new();
    Arc::clone(CODE.get_or_init(|| build_module(SOURCE)))
}

/// Runs an attempt in an engine of its own; returns its end.
fn attempt(test: &TestService, method: &str) -> (ExitReason, i32) {
    run(test, code(), method)
}

fn run(test: &TestService, code: Arc<[u8]>, method: &str) -> (ExitReason, i32) {
    let call = FunctionCall {
        digest: *blake3::hash(&code).as_bytes(),
        code: Some(FunctionCode { bytes: code, reservation: reserved() }),
        ..call(1, method, 30_000, vec![GrantedMemory::object(ALL, b"initial") as Arc<dyn GrantedObject>])
    };
    let header = test.service.reserve_and_run(call).unwrap().header;
    assert_ne!(header.state, JobState::Running);
    (header.exit, header.error)
}

const EACCES: i32 = -13;
const ENOENT: i32 = -2;
const EMFILE: i32 = -24;

/// A system call that the filter does not permit: SIGSYS.
const FILTERED: (ExitReason, i32) = (ExitReason::Trap, 31);

/// The attempts and their ends with all layers.
const ATTEMPTS: [(&str, (ExitReason, i32)); 30] = [
    ("open-passwd", (ExitReason::FunctionError, ENOENT)),
    ("open-above-root", (ExitReason::FunctionError, ENOENT)),
    ("open-own-maps", (ExitReason::FunctionError, ENOENT)),
    ("create-file", FILTERED),
    ("connect-tcp", FILTERED),
    ("connect-abstract-socket", FILTERED),
    ("raw-socket", FILTERED),
    ("ptrace-init", FILTERED),
    ("read-memory-of-init", FILTERED),
    ("kill-init", FILTERED),
    ("kill-all", FILTERED),
    ("fork-bomb", FILTERED),
    ("memory-bomb", (ExitReason::Memory, 0)),
    ("descriptor-exhaustion", (ExitReason::FunctionError, EMFILE)),
    ("processor-spin", (ExitReason::CpuTime, 0)),
    ("execute-shell", FILTERED),
    ("user-namespace", FILTERED),
    ("io-uring", FILTERED),
    ("userfaultfd", FILTERED),
    ("memory-file", FILTERED),
    ("shared-memory", FILTERED),
    ("performance-events", FILTERED),
    ("become-root", FILTERED),
    ("change-root", FILTERED),
    ("bpf", FILTERED),
    ("thirty-two-bit-call", FILTERED),
    ("x32-call", FILTERED),
    ("shrink-memory-file", FILTERED),
    ("reopen-to-write", FILTERED),
    ("map-heap-executable", (ExitReason::FunctionError, EACCES)),
];

#[test]
fn escape_attempts_of_c_fail() {
    let test = TestService::with(|limits| {
        limits.run.cpu_s = 1;
        limits.run.memory = 64 << 20;
    });
    for (method, expected) in ATTEMPTS {
        let (reason, error) = attempt(&test, method);
        // At its limit of memory an engine ends by the cgroup, or by an abort without one.
        let error = if reason == ExitReason::Memory { 0 } else { error };
        assert_eq!((reason, error), expected, "{method}");
        assert_eq!(attempt(&test, "none"), (ExitReason::Success, 0), "another run after {method}");
    }
}

/// A damaged shared object is refused, or ends its engine. Damage to bytes that the loader does not
/// read has no effect.
#[test]
fn damaged_shared_objects_harm_one_run_only() {
    const SIGSEGV: i32 = 11;
    const SIGBUS: i32 = 7;
    let test = TestService::new();
    let code = code();
    let length = code.len();
    let refused = (ExitReason::FunctionError, -8);
    for cut in [0, 1, 4, 63, 64] {
        assert_eq!(run(&test, code[..cut].into(), "none"), refused, "{cut} bytes");
    }
    let cuts = [1000, length / 4, length / 2, length / 4 * 3].map(|cut| code[..cut].to_vec());
    // Each byte of the header that has an offset, a count or a type, and of the first segment.
    let flips = [16, 18, 24, 32, 40, 54, 56, 68, 72, 80, 96, 104, 112].map(|at: usize| {
        let mut changed = code.to_vec();
        changed[at] ^= 0xFF;
        changed
    });
    let allowed =
        [refused, (ExitReason::Success, 0), (ExitReason::Trap, SIGBUS), (ExitReason::Trap, SIGSEGV)];
    for (number, damaged) in cuts.into_iter().chain(flips).enumerate() {
        let end = run(&test, damaged.into(), "none");
        assert!(allowed.contains(&end), "{number}: {end:?}");
    }
    assert_eq!(attempt(&test, "none"), (ExitReason::Success, 0), "other runs are not affected");
}
