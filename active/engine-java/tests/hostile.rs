//! Hostile functions in the confined engine. Each ends with its reason, and harms no other.

use sealstone_sandbox::{EngineExitCause, EngineLimits};

use crate::confined_engine::plain_call;
use crate::jars::{JarEntry, archive, jar, manifest};
use crate::support::MemoryDevice;
use crate::zygotes::{has_java, homes, limits, start, zygote, zygote_of};

/// The end of a hostile function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostileEnd {
    /// The function returns a status.
    Status(i64),
    /// The engine ends.
    Cause(EngineExitCause),
}

use HostileEnd::{Cause, Status};

/// A function whose exception ends the engine, or that ends its virtual machine.
const RAISED: HostileEnd = Cause(EngineExitCause::Exited(1));
/// A function that makes a forbidden system call.
const FORBIDDEN: HostileEnd = Cause(EngineExitCause::ForbiddenCall);

/// Runs a method of a function in an engine of its own.
fn end_of(
    zygote: &sealstone_sandbox::Zygote,
    code: &[u8],
    method: &str,
    limits: EngineLimits,
) -> (HostileEnd, String) {
    let mut engine = start(zygote, code, limits);
    let mut device = MemoryDevice::new(&[b"hello"]);
    let objects = device.descriptions();
    let call = sealstone_function_abi::CallDescriptor { objects: &objects, ..plain_call(method, b"") };
    let end = match engine.run(&mut device, &call) {
        Some(status) => Status(status),
        None => Cause(engine.wait().cause),
    };
    let log: Vec<_> = device.log.iter().map(|(_, line)| line.as_str()).collect();
    (end, log.join("\n"))
}

#[test]
fn escape_attempts_of_java_fail() {
    if !has_java() {
        return;
    }
    let code = jar("Escapes");
    for home in homes() {
        let zygote = zygote_of(Some(&home));
        for (method, expected, text) in [
            ("passwd", &[RAISED][..], "FileNotFoundException: /etc/passwd (No such file or directory)"),
            ("passwd-up", &[RAISED], "NoSuchFileException"),
            ("proc", &[RAISED], "NoSuchFileException"),
            ("write-file", &[RAISED], "FileNotFoundException: /evil (Permission denied)"),
            ("write-code", &[RAISED], "FileNotFoundException: /fn.jar (Permission denied)"),
            ("write-java", &[RAISED], "Permission denied"),
            ("temporary", &[RAISED], "AccessDeniedException"),
            ("map-file", &[RAISED], "AccessDeniedException: /fn.jar"),
            ("remove", &[FORBIDDEN], ""),
            ("mkdir", &[FORBIDDEN], ""),
            ("link", &[FORBIDDEN], ""),
            ("connect", &[RAISED, FORBIDDEN], "SocketException"),
            ("listen", &[RAISED, FORBIDDEN], "SocketException"),
            ("channel", &[RAISED, FORBIDDEN], "Permission denied"),
            ("exec", &[FORBIDDEN, RAISED], ""),
            ("builder", &[FORBIDDEN, RAISED], ""),
            ("kill", &[FORBIDDEN, RAISED, Status(0)], ""),
            ("library", &[RAISED], "UnsatisfiedLinkError"),
            ("library-name", &[RAISED], "UnsatisfiedLinkError"),
            (
                "poke",
                &[RAISED, Cause(EngineExitCause::Signalled(11)), Cause(EngineExitCause::Signalled(6))],
                "",
            ),
            (
                "peek",
                &[RAISED, Cause(EngineExitCause::Signalled(11)), Cause(EngineExitCause::Signalled(6))],
                "",
            ),
            ("host-null", &[Status(0)], ""),
            ("loader", &[Status(0)], ""),
        ] {
            let (end, log) = end_of(&zygote, &code, method, limits());
            assert!(expected.contains(&end), "{}: {method}: {end:?}: {log}", home.display());
            assert!(end != RAISED || log.contains(text), "{}: {method}: {log}", home.display());
        }
    }
}

#[test]
fn endless_loops_reach_processor_limit() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let limits = EngineLimits { cpu_seconds: 2, ..limits() };
    let (end, log) = end_of(&zygote, &jar("Behaviours"), "spin", limits);
    assert_eq!(end, Cause(EngineExitCause::CpuLimit), "{log}");
}

#[test]
fn little_memory_has_a_reason() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let low = EngineLimits { memory_bytes: 64 << 20, data_bytes: Some(64 << 20), ..limits() };
    let (end, log) = end_of(&zygote, &jar("Behaviours"), "count", low);
    assert_eq!(end, Cause(EngineExitCause::Exited(4)));
    assert!(log.contains("needs a memory limit of 70 MiB at least"), "{log}");
    let least = EngineLimits { memory_bytes: 70 << 20, data_bytes: Some(70 << 20), ..limits() };
    let (end, log) = end_of(&zygote, &jar("Behaviours"), "count", least);
    assert_eq!(end, Status(1), "{log}");
}

#[test]
fn hostile_archives_never_end_engine() {
    if !has_java() {
        return;
    }
    let zygote = zygote();
    let valid = jar("Behaviours");
    let rubbish: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let class = JarEntry::new("Rubbish.class", &[b"\xCA\xFE\xBA\xBE", &rubbish[..]].concat());
    let mut codes = vec![Vec::new(), rubbish, archive(&[manifest("Rubbish"), class])];
    // Each part of a valid archive is damaged once.
    for at in (0..valid.len()).step_by(valid.len() / 12) {
        let mut code = valid.clone();
        code[at] ^= 0x55;
        codes.push(code);
    }
    for (index, code) in codes.iter().enumerate() {
        let (end, log) = end_of(&zygote, code, "count", limits());
        assert!([Status(-8), Status(1)].contains(&end), "archive {index}: {end:?}: {log}");
        assert!(end == Status(1) || !log.is_empty(), "archive {index} has no reason");
    }
}
