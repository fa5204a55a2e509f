//! Modules in text form, and processes that run them.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, RequestBody};
use sealstone_function_ring::HostRing;

use crate::support::small_ring;

/// Longest time until a process ends.
const END_LIMIT: Duration = Duration::from_secs(120);

/// A module that uses every call; `osd_main` returns the number of the first failed check.
pub(crate) const EVERY_CALL: &str = include_str!("modules/every_call.wat");

/// Returns a module whose `osd_main` has this body, with a memory of two pages.
pub(crate) fn main_module(items: &str, body: &str) -> String {
    format!(
        "(module {items} (memory (export \"memory\") 2)
           (func (export \"osd_main\") (param $call i32) (result i64) {body}))"
    )
}

/// Encodes a module.
pub(crate) fn encode(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("a module in text form")
}

/// An engine process without confinement, and the host's end of its ring.
pub(crate) struct LocalEngine {
    pub(crate) ring: HostRing,
    process: Child,
    _folder: tempfile::TempDir,
}

impl LocalEngine {
    pub(crate) fn start(module: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let code = folder.path().join("fn.wasm");
        std::fs::write(&code, module).expect("write the module");
        let (memory, ring) = small_ring();
        let [a, b] =
            memory.descriptors().map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let process = Command::new(Path::new(env!("CARGO_BIN_EXE_sealstone-engine-wasm")))
            .arg("--local")
            .arg(code)
            .args([a, b])
            .spawn()
            .expect("start the engine");
        Self { ring, process, _folder: folder }
    }

    /// Starts an engine with a module in text form.
    pub(crate) fn with_text(text: &str) -> Self {
        Self::start(&encode(text))
    }

    pub(crate) fn stop(mut self) -> ExitStatus {
        self.ring.control().stop_engine();
        self.process.wait().expect("the engine ends")
    }

    /// Runs a call without objects until the process has ended; returns the log and the status.
    pub(crate) fn run_to_end(mut self) -> (Vec<String>, ExitStatus) {
        self.ring.begin_call(&CallDescriptor::default()).expect("a valid call");
        let mut log = Vec::new();
        let deadline = Instant::now() + END_LIMIT;
        loop {
            assert!(Instant::now() < deadline, "the engine does not end: {log:?}");
            if collect_log(&mut self.ring, &mut log) {
                continue;
            }
            if let Some(status) = self.process.try_wait().expect("the state of the process") {
                collect_log(&mut self.ring, &mut log);
                return (log, status);
            }
        }
    }
}

/// Serves one request if there is any; a line of the log is kept.
pub(crate) fn collect_log(ring: &mut HostRing, log: &mut Vec<String>) -> bool {
    let Some(request) = ring.next_request(Duration::from_millis(20)).expect("no violation") else {
        return false;
    };
    match request.body {
        RequestBody::Return { status } => panic!("the function returned {status}: {log:?}"),
        RequestBody::Log { data, .. } => {
            let mut text = vec![0; data.length() as usize];
            ring.copy_from_heap(data, &mut text);
            log.push(String::from_utf8_lossy(&text).into_owned());
        }
        _ => {}
    }
    ring.complete(request.cookie, 0, 0);
    true
}
