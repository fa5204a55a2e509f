//! An engine program that attacks its sandbox, for the tests and for `examples/start_cost.rs`.
//!
//! Contract: the parameters of the request are the name of an attempt, or of a plain behaviour. The
//! exit code is [`SUCCEEDED`], or the error number with which the kernel refused the attempt.
//! `--without LAYER` omits a layer, so that a test can show what the other layers stop. With
//! `--daemon` the program is a daemon with one engine instead, which a test kills.
#![allow(unsafe_code, reason = "attacks are system calls that no safe wrapper has")]

mod attempts;

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;

use sealstone_sandbox::{
    EngineContext, EngineKind, EngineRequest, IsolationLayer, Zygote, ZygoteOptions, engine_main_without,
};

/// Exit code of an attempt that succeeded; no error number is that large.
const SUCCEEDED: i32 = 200;
/// Exit code for an unknown name.
const UNKNOWN: i32 = 201;
/// Exit code of a behaviour that failed where it must not.
const BROKEN: i32 = 202;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut omitted = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--daemon" => return run_daemon(),
            "--without" => {
                let name = arguments.next().unwrap_or_default();
                omitted.extend(IsolationLayer::ALL.into_iter().filter(|layer| layer.name() == name));
            }
            _ => return ExitCode::FAILURE,
        }
    }
    engine_main_without(&omitted, run)
}

/// Starts a zygote and an engine, writes the zygote's process id, and waits to be killed.
fn run_daemon() -> ExitCode {
    let started = std::env::current_exe().map(|program| {
        let zygote = Zygote::spawn(ZygoteOptions::new(program, EngineKind::C))?;
        let parameters = b"processor-spin".to_vec();
        let engine = zygote.start(&EngineRequest { parameters, ..EngineRequest::default() })?;
        Ok::<_, sealstone_sandbox::SandboxError>((zygote, engine))
    });
    let Ok(Ok((zygote, _engine))) = started else { return ExitCode::FAILURE };
    if writeln!(std::io::stdout(), "{}", zygote.id()).is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}

fn run(context: EngineContext) -> i32 {
    let name = String::from_utf8_lossy(&context.parameters).into_owned();
    match name.as_str() {
        "succeed" => SUCCEEDED,
        "sleep" => sleep(),
        "abort" => std::process::abort(),
        "panic" => panic!("the program must not unwind"),
        "fault" => fault(),
        "count-descriptors" => count_descriptors(),
        "read-descriptor" => read_descriptor(&context),
        "call-code" => call_code(&context),
        "read-bind" => read_bind(),
        "write-bind" => write_bind(),
        "use-memory" => use_memory(),
        "refuse-new-code" => refuse_new_code(),
        "count-attempts" => attempts::ATTEMPTS.len() as i32,
        other => match attempts::ATTEMPTS.iter().find(|(name, _)| *name == other) {
            Some((_, attempt)) => match attempt() {
                Ok(_) => SUCCEEDED,
                Err(error) => error.raw_os_error().unwrap_or(BROKEN),
            },
            None => UNKNOWN,
        },
    }
}

fn sleep() -> i32 {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Writes to address 0.
fn fault() -> i32 {
    // SAFETY: there is none; the fault is the purpose, and nothing of this process is used later.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    BROKEN
}

/// Returns how many descriptors are open.
fn count_descriptors() -> i32 {
    let is_open = |fd: &i32| {
        // SAFETY: fstat writes to a valid structure only; the descriptor may be closed.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { libc::fstat(*fd, &raw mut status) == 0 }
    };
    (0..1024).filter(is_open).count() as i32
}

/// Returns the first byte of the first descriptor.
fn read_descriptor(context: &EngineContext) -> i32 {
    let Some(descriptor) = context.descriptors.first() else { return BROKEN };
    let mut byte = 0u8;
    // SAFETY: the buffer has one byte, and the descriptor is open.
    let length = unsafe { libc::pread(descriptor.as_raw_fd(), (&raw mut byte).cast(), 1, 0) };
    if length == 1 && descriptor.as_raw_fd() == 3 { byte.into() } else { BROKEN }
}

/// Returns the first byte of a file in the bind of the tests.
fn read_bind() -> i32 {
    std::fs::read("/data/file").ok().and_then(|bytes| bytes.first().copied()).map_or(BROKEN, i32::from)
}

/// Opens a file in the bind of the tests to write.
fn write_bind() -> i32 {
    let opened = std::fs::File::options().write(true).open("/data/file");
    opened.map_or_else(|error| error.raw_os_error().unwrap_or(BROKEN), |_| SUCCEEDED)
}

/// Loads the code as a shared object and calls its function `answer`.
fn call_code(context: &EngineContext) -> i32 {
    let path = context
        .code
        .as_ref()
        .and_then(|path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok());
    let Some(path) = path else { return BROKEN };
    // SAFETY: loading runs foreign code, which this process is confined for.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return BROKEN;
    }
    // SAFETY: the handle is valid, and the name ends with a zero byte.
    let symbol = unsafe { libc::dlsym(handle, c"answer".as_ptr()) };
    if symbol.is_null() {
        return BROKEN;
    }
    // SAFETY: the tests compile `int answer(void)`.
    let answer: extern "C" fn() -> i32 = unsafe { std::mem::transmute(symbol) };
    answer()
}

/// Refuses new code as an engine does after its compilation, and then tries to create some.
fn refuse_new_code() -> i32 {
    if let Err(error) = sealstone_sandbox::refuse_new_code() {
        return error.raw_os_error().unwrap_or(BROKEN);
    }
    let attempt = attempts::ATTEMPTS.iter().find(|(name, _)| *name == "write-then-execute");
    match attempt.map(|(_, attempt)| attempt()) {
        Some(Err(error)) => error.raw_os_error().unwrap_or(BROKEN),
        _ => SUCCEEDED,
    }
}

/// Touches 64 MiB and uses some processor time.
fn use_memory() -> i32 {
    let bytes = vec![1u8; 64 << 20];
    let mut sum = 0u64;
    for round in 0..2 {
        sum = bytes.iter().fold(sum ^ round, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }
    i32::from(sum == 0)
}
