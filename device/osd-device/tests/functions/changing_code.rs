//! Code that changes while a device loads it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Bytes of each version of the code: more than a store reads at once.
const CODE_BYTES: usize = 300_000;
/// Writes of the code during the runs.
const WRITES: usize = 60;

/// The digest is of the bytes that run, and they are of one version.
#[test]
fn code_changed_while_it_loads_runs_whole() {
    let stage = Stage::new();
    let versions = [b'A', b'B'].map(|byte| vec![byte; CODE_BYTES]);
    let write = |bytes: &[u8]| {
        let extent = Extent { object: user(CODE), start: 0, length: bytes.len() as u64 };
        stage.bench.run(Command::Write(extent), ListPair::default(), bytes).good();
    };
    write(&versions[0]);
    stage.function(|call| {
        let bytes = code(call);
        let is_whole = bytes.len() == CODE_BYTES && bytes.iter().all(|byte| *byte == bytes[0]);
        vec![bytes[0], u8::from(is_whole), u8::from(call.digest == *blake3::hash(bytes).as_bytes())]
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..WRITES {
                write(&versions[number % 2]);
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut runs = 0;
        while !done.load(Ordering::SeqCst) || runs < 3 {
            let version = &versions[runs % 2];
            // Every third run accepts any version.
            let digest = (runs % 3 > 0).then(|| *blake3::hash(version).as_bytes());
            let answer = stage.run_with(RunRequest { digest, ..request(Vec::new()) }, &[]);
            if digest.is_some() && answer.status != Status::Good {
                assert_eq!(answer.sense(), (5, 0x2400), "another version");
            } else {
                let ran = ReplyParts::parse(&answer.good().data).unwrap().inline;
                assert_eq!(ran[1..], [1, 1], "one version, and its digest");
                assert!(digest.is_none() || ran[0] == version[0], "the version of the request");
            }
            runs += 1;
        }
    });
}
