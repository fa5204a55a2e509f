//! A confined engine whose requests this process serves: the loop that all measurements of engines
//! share.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, CallErrno, HeapRange, RequestBody};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions};
use sealstone_sandbox::{
    EngineCode, EngineKind, EngineLimits, EngineRequest, SandboxedEngine, Zygote, ZygoteOptions,
};

use crate::Outcome;

/// Longest wait for a request of the engine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory of an engine, as on a device.
const MEMORY_BYTES: u64 = 256 << 20;
/// Addresses of an engine beside its memory, as on a device; and of the memory of a module.
const ADDRESS_SPACE_EXTRA: u64 = 512 << 20;
const MODULE_RESERVATION: u64 = 5 << 30;

/// The objects that an engine reads and writes.
pub(super) trait EngineData {
    /// Fills a range of the heap with bytes of the input; returns how many.
    fn read(&mut self, ring: &mut HostRing, offset: u64, into: HeapRange) -> Outcome<usize>;
    /// Stores bytes of a range of the heap in the output.
    fn write(&mut self, ring: &mut HostRing, offset: u64, from: HeapRange) -> Outcome<usize>;
}

/// No object.
pub(super) struct NoData;

/// Bytes in memory, and the memory that a function writes.
pub(super) struct MemoryData<'a> {
    pub(super) source: &'a [u8],
    pub(super) target: Vec<u8>,
}

impl EngineData for NoData {
    fn read(&mut self, _: &mut HostRing, _: u64, _: HeapRange) -> Outcome<usize> {
        Ok(0)
    }

    fn write(&mut self, _: &mut HostRing, _: u64, _: HeapRange) -> Outcome<usize> {
        Ok(0)
    }
}

impl EngineData for File {
    fn read(&mut self, ring: &mut HostRing, offset: u64, into: HeapRange) -> Outcome<usize> {
        Ok(ring.fill_heap(into, |at, bytes| self.read_at(bytes, offset + at))?)
    }

    fn write(&mut self, ring: &mut HostRing, offset: u64, from: HeapRange) -> Outcome<usize> {
        let written = ring.drain_heap(from, |at, bytes| self.write_all_at(bytes, offset + at));
        Ok(written.map_err(|(_, error)| error)?)
    }
}

impl EngineData for MemoryData<'_> {
    fn read(&mut self, ring: &mut HostRing, offset: u64, into: HeapRange) -> Outcome<usize> {
        let start = self.source.len().min(usize::try_from(offset)?);
        let end = self.source.len().min(start + into.length() as usize);
        Ok(ring.copy_to_heap(into, self.source.get(start..end).unwrap_or_default()))
    }

    fn write(&mut self, ring: &mut HostRing, offset: u64, from: HeapRange) -> Outcome<usize> {
        let start = usize::try_from(offset)?;
        let part = self.target.get_mut(start..start + from.length() as usize);
        Ok(ring.copy_from_heap(from, part.ok_or("a write beyond the end of the output")?))
    }
}

/// Returns the number of cores that this process may use, as a device counts them.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A confined engine with one function.
pub(super) struct MeasuredEngine {
    ring: HostRing,
    /// Killed when dropped.
    _process: SandboxedEngine,
}

impl MeasuredEngine {
    pub(super) fn start(zygote: &Zygote, kind: EngineKind, code: &EngineCode) -> Outcome<Self> {
        let memory = Arc::new(HostMemory::create(RingOptions::for_cores(cores()))?);
        let request = EngineRequest {
            code: Some(code.clone()),
            descriptors: memory.descriptors().to_vec(),
            limits: limits(kind),
            ..EngineRequest::default()
        };
        let process = zygote.start(&request)?;
        Ok(Self { ring: HostRing::new(memory), _process: process })
    }

    /// Runs one call; returns its time and its result.
    pub(super) fn run(
        &mut self,
        call: &CallDescriptor<'_>,
        data: &mut impl EngineData,
    ) -> Outcome<(Duration, Vec<u8>)> {
        let begin = Instant::now();
        self.ring.begin_call(call)?;
        let (mut result, mut log) = (Vec::new(), String::new());
        loop {
            let request = self.ring.next_request(REQUEST_TIMEOUT)?;
            let request = request.ok_or("the engine sends no request")?;
            let copy = |ring: &HostRing, range: HeapRange| {
                let mut bytes = vec![0; range.length() as usize];
                let count = ring.copy_from_heap(range, &mut bytes);
                bytes.truncate(count);
                bytes
            };
            let status = match request.body {
                RequestBody::Return { status: 0 } => return Ok((begin.elapsed(), result)),
                RequestBody::Return { status } => {
                    return Err(format!("{} returned {status}: {log}", call.method).into());
                }
                RequestBody::Read { offset, buffer, .. } => data.read(&mut self.ring, offset, buffer)? as i64,
                RequestBody::Write { offset, data: range, .. } => {
                    data.write(&mut self.ring, offset, range)? as i64
                }
                RequestBody::Result { data: range } => {
                    result.extend(copy(&self.ring, range));
                    range.length().into()
                }
                RequestBody::Log { data: range, .. } => {
                    log.push_str(&String::from_utf8_lossy(&copy(&self.ring, range)));
                    0
                }
                _ => CallErrno::Unsupported.result(),
            };
            self.ring.complete(request.cookie, status, 0);
        }
    }
}

/// Starts the zygote of an engine program beside another program. A runtime is found as by a
/// device.
pub(super) fn zygote(programs: &Path, kind: EngineKind) -> Outcome<Zygote> {
    let name = match kind {
        EngineKind::C => "sealstone-engine-c",
        EngineKind::Wasm => "sealstone-engine-wasm",
        EngineKind::Java => "sealstone-engine-java",
        EngineKind::Python => "sealstone-engine-python",
    };
    let program = programs.join(name);
    if !program.is_file() {
        return Err(format!("{} does not exist; run `make engines`", program.display()).into());
    }
    let mut options = ZygoteOptions::new(&program, kind);
    if matches!(kind, EngineKind::Java | EngineKind::Python) {
        let runtime = Command::new(&program).arg("--runtime").output()?;
        if !runtime.status.success() {
            return Err(String::from_utf8_lossy(&runtime.stderr).trim().to_owned().into());
        }
        options.add_runtime(&String::from_utf8(runtime.stdout)?)?;
    }
    Ok(Zygote::spawn(options)?)
}

/// Returns limits like those of a device.
fn limits(kind: EngineKind) -> EngineLimits {
    let address_space = MEMORY_BYTES + ADDRESS_SPACE_EXTRA;
    let (address_space_bytes, threads, descriptors) = match kind {
        EngineKind::C | EngineKind::Python => (Some(address_space), 1, 32),
        EngineKind::Wasm => (Some(address_space + MODULE_RESERVATION), 1, 32),
        EngineKind::Java => (None, 64, 64),
    };
    EngineLimits {
        memory_bytes: MEMORY_BYTES,
        address_space_bytes,
        data_bytes: matches!(kind, EngineKind::Wasm | EngineKind::Java).then_some(MEMORY_BYTES),
        threads,
        descriptors,
        ..EngineLimits::default()
    }
}
