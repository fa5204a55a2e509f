//! Hostile functions in the confined engine. Each ends with its reason, and harms no other.

use sealstone_sandbox::{EngineExitCause, EngineLimits};

use crate::confined_engine::plain_call;
use crate::support::MemoryDevice;
use crate::zygotes::{has_interpreter, limits, start, zygote};

/// The end of a hostile function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostileEnd {
    /// The function returns a status.
    Status(i64),
    /// The engine ends.
    Cause(EngineExitCause),
}

use HostileEnd::{Cause, Status};

/// A function whose exception ends the engine.
const RAISED: HostileEnd = Cause(EngineExitCause::Exited(1));
/// A function that makes a forbidden system call.
const FORBIDDEN: HostileEnd = Cause(EngineExitCause::ForbiddenCall);
/// A source that cannot be loaded.
const REFUSED: HostileEnd = Status(-8);

/// Runs the body of `run`, or a whole module, in an engine of its own.
fn end_of(zygote: &sealstone_sandbox::Zygote, source: &str, limits: EngineLimits) -> (HostileEnd, String) {
    let mut engine = start(zygote, source, limits);
    let mut device = MemoryDevice::new(&[b"hello"]);
    let objects = device.descriptions();
    let call = sealstone_function_abi::CallDescriptor { objects: &objects, ..plain_call("", b"") };
    let end = match engine.run(&mut device, &call) {
        Some(status) => Status(status),
        None => Cause(engine.wait().cause),
    };
    let log: Vec<_> = device.log.iter().map(|(_, line)| line.as_str()).collect();
    (end, log.join("\n"))
}

fn function(body: &str) -> String {
    let body: String = body.lines().map(|line| format!("    {line}\n")).collect();
    format!("import os, sys\ndef run(osd, call):\n{body}")
}

#[test]
fn escape_attempts_of_python_fail() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    for (body, expected, text) in [
        // No memory file is left that could be mapped again, to be executed.
        (
            "def is_open(file):\n    try:\n        os.fstat(file)\n    except OSError:\n        return False\n    \
             return True\nreturn sum(map(is_open, range(3, 256)))",
            Status(0),
            "",
        ),
        ("os.fork()", FORBIDDEN, ""),
        ("os.execv('/bin/sh', ['sh'])", FORBIDDEN, ""),
        ("import subprocess\nsubprocess.run(['/bin/sh'])", FORBIDDEN, ""),
        ("os.kill(1, 9)", FORBIDDEN, ""),
        ("os.kill(-1, 9)", FORBIDDEN, ""),
        ("os.setuid(0)", FORBIDDEN, ""),
        ("os.chroot('/')", FORBIDDEN, ""),
        ("os.memfd_create('x')", FORBIDDEN, ""),
        ("os.mkdir('/tmp')", FORBIDDEN, ""),
        ("os.symlink('/etc', '/x')", FORBIDDEN, ""),
        ("os.ftruncate(3, 0)", FORBIDDEN, ""),
        ("os.pipe()", FORBIDDEN, ""),
        ("os.openpty()", Status(-13), "PermissionError"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1))", Status(-13), "PermissionError"),
        ("import socket\nsocket.socket(socket.AF_INET)", Status(-13), "PermissionError"),
        ("import socket\nsocket.socket(socket.AF_UNIX)", Status(-13), "PermissionError"),
        ("open('/etc/passwd')", Status(-2), "FileNotFoundError"),
        ("open('/../../../etc/passwd')", Status(-2), "FileNotFoundError"),
        ("open('/proc/self/maps')", Status(-2), "FileNotFoundError"),
        ("open('/evil', 'w')", Status(-13), "PermissionError"),
        ("open(sys.path[1] + '/evil.py', 'w')", Status(-13), "PermissionError"),
        ("open('/fn.py', 'r+')", Status(-13), "PermissionError"),
        ("import ctypes", RAISED, "ImportError"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", FORBIDDEN, ""),
        ("import mmap\nmmap.mmap(4, 4096)", FORBIDDEN, ""),
        ("os.write(4, b'x')", FORBIDDEN, ""),
        ("os.dup2(3, 4)", FORBIDDEN, ""),
    ] {
        let (end, log) = end_of(&zygote, &function(body), limits());
        assert_eq!(end, expected, "{body}: {log}");
        assert!(log.contains(text), "{body}: {log}");
    }
}

#[test]
fn hostile_sources_end_with_a_reason() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    let brackets = format!("x = {}{}\n", "[".repeat(1_000_000), "]".repeat(1_000_000));
    let operators = format!("x = {}1\n", "-".repeat(1_000_000));
    let names = (0..100_000).map(|n| format!("name_{n} = {n}\n")).collect::<String>();
    let refused = [REFUSED, Status(-12)];
    for (source, expected) in [
        (brackets.as_str(), &refused[..]),
        (&operators, &refused),
        (&names, &[REFUSED]),
        ("import sys\nsys.exit(0)\n", &[REFUSED]),
        ("import os\nos.fork()\n", &[FORBIDDEN]),
        ("raise MemoryError\n", &[Status(-12)]),
        ("while True: pass\n", &[Cause(EngineExitCause::CpuLimit)]),
        ("run = lambda osd, call: [0][call.timeout_ms]\n", &[Status(0)]),
        ("class run:\n    def __init__(self, osd, call): raise ValueError\n", &[RAISED]),
    ] {
        let limits = EngineLimits { cpu_seconds: 2, ..limits() };
        let (end, log) = end_of(&zygote, source, limits);
        let shown: String = source.chars().take(60).collect();
        assert!(expected.contains(&end), "{shown}: {end:?}: {log}");
        assert!(log.len() < 100_000, "{shown}");
    }
}

#[test]
fn hostile_functions_end_with_a_reason() {
    if !has_interpreter() {
        return;
    }
    let zygote = zygote();
    let (memory, fault, abort) = (
        Cause(EngineExitCause::MemoryLimit),
        Cause(EngineExitCause::Signalled(11)),
        Cause(EngineExitCause::Signalled(6)),
    );
    // Python 3.9 and 3.10 abort where recursion has no limit.
    let exhausted = [Status(-12), memory, fault, abort];
    for (body, expected, text) in [
        ("def f(): f()\nf()", &[RAISED][..], "RecursionError"),
        ("sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", &exhausted, ""),
        ("l = []\nfor _ in range(10**6): l = [l]\nreturn repr(l)", &[RAISED, fault], ""),
        ("bytes(10**11)", &[Status(-12)], "MemoryError"),
        ("keep = []\nwhile True: keep.append(bytearray(b'x' * (1 << 24)))", &exhausted, ""),
        ("return osd.read(0, 0, 10**18)", &[Status(-27)], "OSError"),
        ("while True: pass", &[Cause(EngineExitCause::CpuLimit)], ""),
        (
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            &[Cause(EngineExitCause::CpuLimit)],
            "",
        ),
        ("sys.modules.clear()\nreturn 3", &[Status(3)], ""),
        ("sys.modules['sealstone_function'].__dict__.clear()\nreturn 3", &[RAISED, Status(3)], ""),
        ("import builtins\nbuiltins.__dict__.clear()", &[RAISED, Status(0)], ""),
        ("import _sealstone\n_sealstone.log = None\nraise ValueError", &[RAISED], ""),
        ("import _sealstone\n_sealstone.read(1)", &[RAISED], "IndexError"),
        ("import _sealstone\n_sealstone.reader_bytes(-1)", &[Status(-22)], ""),
        ("import _sealstone\n_sealstone.writer_commit(0, bytes(2 << 20))", &[Status(-22)], ""),
        ("import _sealstone\n_sealstone.reader_view(1 << 63)", &[Status(-9)], ""),
        ("import threading\nthreading.Thread(target=print).start()", &[RAISED], "can't start new thread"),
        ("import faulthandler\nfaulthandler._sigsegv()", &[fault, FORBIDDEN], ""),
        ("os.abort()", &[abort], ""),
        ("raise ValueError('x' * 10**7)", &[RAISED], "ValueError: xxx"),
        ("for _ in range(10**4): print('x' * 10**4)", &[Status(0)], ""),
        ("raise OSError(10**30, 'text')", &[RAISED], "OSError"),
        ("class E(BaseException):\n    def __str__(self): raise E\nraise E", &[RAISED], ""),
        ("return 1 << 70", &[RAISED], "TypeError"),
        ("return '\\ud800'", &[RAISED], "UnicodeEncodeError"),
    ] {
        let limits = EngineLimits { cpu_seconds: 2, ..limits() };
        let (end, log) = end_of(&zygote, &function(body), limits);
        let shown: String = log.chars().take(400).collect();
        assert!(expected.contains(&end), "{body}: {end:?}: {shown}");
        assert!(log.contains(text), "{body}: {shown}");
    }
}
