//! One call of a function in an engine.
//!
//! Does: describe the call, serve the requests of the engine on this thread, enforce the limits of
//! the run, and find out why it ended.
//! Does not: keep jobs or store results.
//! Contract: every request is checked against the handles of this call, and each handle checks its
//! authority again. An engine that breaks the protocol is killed.
//! Truth: docs/design/active.md (RPC, limits, cancellation), `sealstone-function-abi`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sealstone_function_abi::limits::{HANDLES_MAX, LIST_ENTRIES_MAX};
use sealstone_function_abi::{
    CallDescriptor, CallErrno, GuestObject, HeapRange, ObjectKind, ObjectRights, RequestBody,
};
use sealstone_function_ring::{HostRing, RingControl};
use sealstone_osd::function::{EngineType, ExitReason};
use sealstone_osd::{AttributeId, ObjectType, Permissions};
use sealstone_osd_device::{FunctionCall, GrantError, GrantedObject};
use sealstone_sandbox::{EngineExit, EngineExitCause, SandboxedEngine};

use crate::job_table::JobUsage;
use crate::limits::{CANCEL_GRACE, RunLimits, UNREQUESTED_DIGEST_BYTES_MAX};
use crate::pool::PooledEngine;
use crate::service::JobObserver;

/// First and longest time between two looks at an engine that sends no request.
const SLICE_MIN: Duration = Duration::from_millis(1);
const SLICE_MAX: Duration = Duration::from_millis(20);
/// Time between two measurements of a running engine.
const MEASURE_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for the end of a killed engine.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// Stops a run from another thread.
#[derive(Default)]
pub(crate) struct RunCancel {
    requested: AtomicBool,
    control: Mutex<Option<RingControl>>,
}

impl RunCancel {
    /// Asks the function to return; its engine is killed after [`CANCEL_GRACE`].
    pub(crate) fn cancel(&self) {
        self.requested.store(true, Ordering::SeqCst);
        if let Some(control) = &*self.control.lock() {
            control.set_cancelled();
            control.interrupt();
        }
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}

/// How a call ended.
pub(crate) struct InvocationEnd {
    pub(crate) exit: ExitReason,
    pub(crate) error: i32,
    pub(crate) usage: JobUsage,
    pub(crate) result: Vec<u8>,
    /// Requests that were refused for lack of authority.
    pub(crate) denials: u64,
    /// Digests of the bytes that were read for the function, by handle; `None` for a handle without
    /// reads, or with more bytes than are hashed.
    pub(crate) read_digests: Vec<Option<[u8; 32]>>,
    /// Whether the engine returned and can serve another call.
    pub(crate) reusable: bool,
}

/// Digests of the bytes that are read for a function from the objects of its call. They include
/// bytes that its engine reads ahead.
struct ReadDigests {
    /// Maximum bytes of an object with a digest.
    bytes_max: u64,
    objects: Vec<ReadDigest>,
}

/// Digest of the bytes that are read from one object.
#[derive(Clone, Default)]
struct ReadDigest {
    bytes: u64,
    /// `None` before the first byte, and after more bytes than the maximum.
    hasher: Option<Box<blake3::Hasher>>,
}

impl ReadDigests {
    /// Returns the digests of a call. An asynchronous job has them, and a synchronous one that
    /// requests them; others have those of short reads. A run with secrets has none, because the
    /// digest of a short secret can be found by trying all values.
    fn of(call: &FunctionCall) -> Self {
        let has_all = call.input_digests || call.timeout_ms == 0;
        let objects = if call.secret_arguments { 0 } else { call.objects.len() };
        Self {
            bytes_max: if has_all { u64::MAX } else { UNREQUESTED_DIGEST_BYTES_MAX },
            objects: vec![ReadDigest::default(); objects],
        }
    }

    /// Adds bytes that were read for the function.
    fn add(&mut self, handle: u32, bytes: &[u8]) {
        let object = usize::try_from(handle).ok().and_then(|handle| self.objects.get_mut(handle));
        let Some(digest) = object else { return };
        digest.bytes = digest.bytes.saturating_add(bytes.len() as u64);
        // Compared before they are hashed: a long read costs nothing.
        if digest.bytes > self.bytes_max {
            digest.hasher = None;
        } else {
            digest.hasher.get_or_insert_default().update(bytes);
        }
    }

    fn finish(self) -> Vec<Option<[u8; 32]>> {
        let digest = |object: ReadDigest| object.hasher.map(|hasher| *hasher.finalize().as_bytes());
        self.objects.into_iter().map(digest).collect()
    }
}

/// Runs a call in an engine, with `objects` as its handles.
pub(crate) fn run_call(
    engine: &mut PooledEngine,
    call: &FunctionCall,
    objects: Vec<Arc<dyn GrantedObject>>,
    limits: &RunLimits,
    cancel: &RunCancel,
    observer: &JobObserver<'_>,
) -> InvocationEnd {
    let started = Instant::now();
    let PooledEngine { process, ring, cpu_charged, .. } = engine;
    // Includes what the engine used since its last call.
    let cpu_before = *cpu_charged;
    *cancel.control.lock() = Some(ring.control());
    let mut invocation = Invocation {
        objects,
        limits,
        observer,
        usage: JobUsage::default(),
        progress: (0, 0),
        result: Vec::new(),
        denials: 0,
        read_digests: ReadDigests::of(call),
        handles_used_up: false,
        ring,
    };
    let stop = match invocation.begin(call) {
        Ok(()) => invocation.serve(process, started, cpu_before, cancel),
        Err(stop) => stop,
    };
    *cancel.control.lock() = None;
    let Invocation { mut usage, result, denials, progress, handles_used_up, read_digests, .. } = invocation;
    let memory = MemoryEnd { engine: call.engine, limit: limits.memory, handles_used_up };
    let (exit, error) = conclude(&stop, process, cancel, observer, &memory);
    let reusable = matches!(stop, CallStop::Returned(_));
    usage.wall_us = micros(started.elapsed());
    *cpu_charged = process.cpu_time();
    usage.cpu_us = micros(cpu_charged.saturating_sub(cpu_before));
    if !reusable || !observer.keeps_engines() || started.elapsed() > SLICE_MAX {
        usage.peak_memory = usage.peak_memory.max(process.peak_memory());
    }
    observer.report(progress, usage);
    InvocationEnd { exit, error, usage, result, denials, read_digests: read_digests.finish(), reusable }
}

/// Why the service stopped serving a call.
enum CallStop {
    /// The function returned this value.
    Returned(i64),
    /// The engine ended by itself.
    Ended(EngineExit),
    /// A limit or a cancellation: the engine must be killed. With a line for the log.
    Limit(ExitReason, String),
}

/// Decides whether the limit of memory ended a run.
struct MemoryEnd {
    engine: EngineType,
    /// The limit in bytes.
    limit: u64,
    /// Whether an object was not created for lack of a handle.
    handles_used_up: bool,
}

impl MemoryEnd {
    /// Whether an engine has used so much that its next allocation fails.
    const fn is_reached(&self, peak: u64) -> bool {
        peak >= self.limit / 16 * 15
    }

    /// Returns the exit reason of a run that returned -ENOMEM, with a line for the log.
    fn of_status(&self, peak: u64) -> (ExitReason, String) {
        let used = format!("{} of {} MiB used", peak >> 20, self.limit >> 20);
        // These catch failed allocations of the function, and report them by this status.
        let is_reported = matches!(self.engine, EngineType::Java | EngineType::Python | EngineType::Wasm);
        if self.handles_used_up {
            let text = format!("ENOMEM: all {HANDLES_MAX} handles of the run are in use");
            (ExitReason::FunctionError, text)
        } else if is_reported || self.is_reached(peak) {
            (ExitReason::Memory, format!("no memory left below the limit of the job ({used})"))
        } else {
            (ExitReason::FunctionError, format!("the function returned ENOMEM ({used})"))
        }
    }

    /// Returns a line for the log if an engine ended because an allocation failed.
    fn of_end(&self, cause: EngineExitCause, peak: u64) -> Option<String> {
        let may_be = matches!(cause, EngineExitCause::Exited(_) | EngineExitCause::Signalled(SIGABRT));
        let used = format!("{} of {} MiB used", peak >> 20, self.limit >> 20);
        (may_be && self.is_reached(peak))
            .then(|| format!("the engine ended at the memory limit of the job ({used})"))
    }
}

/// Kills the engine unless it returned; returns exit reason and error code.
fn conclude(
    stop: &CallStop,
    process: &SandboxedEngine,
    cancel: &RunCancel,
    observer: &JobObserver<'_>,
    memory: &MemoryEnd,
) -> (ExitReason, i32) {
    let ended = match stop {
        CallStop::Returned(_) if cancel.is_requested() => return (ExitReason::Cancelled, 0),
        CallStop::Returned(0) => return (ExitReason::Success, 0),
        CallStop::Returned(status) if *status == CallErrno::NoMemory.result() => {
            let (reason, text) = memory.of_status(process.peak_memory());
            observer.log(format!("device: {text}").as_bytes());
            return (reason, CallErrno::NoMemory.result() as i32);
        }
        CallStop::Returned(status) => {
            let error = i32::try_from(*status).unwrap_or(if *status < 0 { i32::MIN } else { i32::MAX });
            return (ExitReason::FunctionError, error);
        }
        CallStop::Limit(reason, text) => {
            observer.log(format!("device: {text}").as_bytes());
            process.kill();
            // It is reaped later if the machine is that slow.
            let _ = process.wait(Some(REAP_TIMEOUT));
            return (*reason, 0);
        }
        CallStop::Ended(exit) => exit,
    };
    if let Some(text) = memory.of_end(ended.cause, ended.peak_memory) {
        observer.log(format!("device: {text}").as_bytes());
        return (ExitReason::Memory, CallErrno::NoMemory.result() as i32);
    }
    let (reason, error, text) = match ended.cause {
        EngineExitCause::Exited(code) => {
            (ExitReason::Trap, 0, format!("the engine exited with code {code} during the call"))
        }
        EngineExitCause::Signalled(signal) => {
            (ExitReason::Trap, signal, format!("signal {signal} ended the function"))
        }
        EngineExitCause::ForbiddenCall => {
            (ExitReason::Trap, SIGSYS, "the function made a forbidden system call".to_owned())
        }
        EngineExitCause::MemoryLimit => {
            let text =
                format!("the kernel killed the engine at its memory limit of {} MiB", memory.limit >> 20);
            (ExitReason::Memory, 0, text)
        }
        EngineExitCause::CpuLimit => {
            (ExitReason::CpuTime, 0, "the function used all its CPU time".to_owned())
        }
        EngineExitCause::Killed | EngineExitCause::Lost => {
            (ExitReason::Killed, 0, "the engine was killed".to_owned())
        }
    };
    observer.log(format!("device: {text}").as_bytes());
    (reason, error)
}

/// Number of SIGABRT, by which a program ends itself, for instance if an allocation fails.
const SIGABRT: i32 = 6;
/// Number of SIGSYS, which ends a process after a forbidden system call.
const SIGSYS: i32 = 31;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A call that is being served.
struct Invocation<'a> {
    ring: &'a mut HostRing,
    /// The handles, by index.
    objects: Vec<Arc<dyn GrantedObject>>,
    limits: &'a RunLimits,
    observer: &'a JobObserver<'a>,
    usage: JobUsage,
    progress: (u64, u64),
    result: Vec<u8>,
    denials: u64,
    read_digests: ReadDigests,
    /// Whether an object was not created for lack of a handle.
    handles_used_up: bool,
}

/// Result and value of a completion.
type Completed = Result<(i64, u64), CallErrno>;

impl Invocation<'_> {
    fn begin(&mut self, call: &FunctionCall) -> Result<(), CallStop> {
        let objects: Vec<GuestObject> = self.objects.iter().map(|object| describe(&**object)).collect();
        let descriptor = CallDescriptor {
            method: &call.method,
            arguments: &call.arguments,
            objects: &objects,
            timeout_ms: u32::try_from(self.limits.wall.as_millis()).unwrap_or(u32::MAX),
            result_bytes_max: self.limits.output,
            secret_arguments: call.secret_arguments,
        };
        self.ring.begin_call(&descriptor).map_err(|error| {
            CallStop::Limit(ExitReason::ProtocolViolation, format!("the call cannot begin: {error}"))
        })
    }

    /// Serves requests until the function returns, the engine ends, or a limit is reached.
    fn serve(
        &mut self,
        process: &SandboxedEngine,
        started: Instant,
        cpu_before: Duration,
        cancel: &RunCancel,
    ) -> CallStop {
        let cpu_max = Duration::from_secs(self.limits.cpu_s);
        let (mut slice, mut measured) = (SLICE_MIN, started);
        let mut cancelled_at = None;
        loop {
            let now = Instant::now();
            if cancel.is_requested() {
                let since = *cancelled_at.get_or_insert_with(|| {
                    // The request may be older than the control.
                    self.ring.control().set_cancelled();
                    now
                });
                if now.saturating_duration_since(since) >= CANCEL_GRACE {
                    return CallStop::Limit(ExitReason::Cancelled, "cancelled; the engine was killed".into());
                }
                slice = SLICE_MIN;
            }
            let elapsed = now.saturating_duration_since(started);
            if elapsed >= self.limits.wall {
                let text = format!("the run exceeded {} ms", self.limits.wall.as_millis());
                return CallStop::Limit(ExitReason::WallTime, text);
            }
            if now.saturating_duration_since(measured) >= MEASURE_INTERVAL {
                measured = now;
                let cpu = process.cpu_time().saturating_sub(cpu_before);
                if cpu >= cpu_max {
                    let text = format!("the function exceeded {} s of CPU time", self.limits.cpu_s);
                    return CallStop::Limit(ExitReason::CpuTime, text);
                }
                self.usage.cpu_us = micros(cpu);
                self.usage.wall_us = micros(elapsed);
                self.observer.report(self.progress, self.usage);
                if self.observer.is_abandoned() {
                    cancel.cancel();
                }
            }
            match self.ring.next_request(slice.min(self.limits.wall - elapsed)) {
                Err(violation) => {
                    let text = format!("the engine broke the protocol: {violation}");
                    return CallStop::Limit(ExitReason::ProtocolViolation, text);
                }
                Ok(None) => {
                    // A request that was sent before the end is served first.
                    match process.wait(Some(Duration::ZERO)) {
                        Ok(Some(exit)) => return CallStop::Ended(exit),
                        Ok(None) => slice = (slice * 2).min(SLICE_MAX),
                        Err(error) => return CallStop::Limit(ExitReason::Killed, error.to_string()),
                    }
                }
                Ok(Some(request)) => {
                    if let RequestBody::Return { status } = request.body {
                        return CallStop::Returned(status);
                    }
                    slice = SLICE_MIN;
                    self.usage.calls += 1;
                    if self.usage.calls > self.limits.calls {
                        let text = format!("the function made more than {} calls", self.limits.calls);
                        return CallStop::Limit(ExitReason::Killed, text);
                    }
                    let completed = self.answer(&request.body);
                    let (result, value) = completed.unwrap_or_else(|error| (error.result(), 0));
                    self.ring.complete(request.cookie, result, value);
                    if let Some(stop) = self.exceeded() {
                        return stop;
                    }
                }
            }
        }
    }

    /// Returns the stop for a limit of bytes that the last request exceeded.
    fn exceeded(&self) -> Option<CallStop> {
        if self.result.len() as u64 > self.limits.output {
            let text = format!("the result exceeded {} bytes", self.limits.output);
            return Some(CallStop::Limit(ExitReason::Output, text));
        }
        if self.usage.bytes_read.saturating_add(self.usage.bytes_written) > self.limits.bytes {
            let text = format!("the function moved more than {} bytes", self.limits.bytes);
            return Some(CallStop::Limit(ExitReason::Output, text));
        }
        None
    }

    fn answer(&mut self, body: &RequestBody) -> Completed {
        match *body {
            RequestBody::Read { object: handle, offset, buffer } => {
                let object = self.object(handle)?;
                // For the function the object ends where its granted range ends.
                let end = object.range().end();
                let length = end.saturating_sub(offset).min(buffer.length().into()) as u32;
                let read = if length == 0 {
                    // Nothing is read, but the authority is checked.
                    object.read(offset.min(end), &mut [])
                } else {
                    let digests = &mut self.read_digests;
                    let read = |at: u64, into: &mut [u8]| {
                        let count = object.read(offset.saturating_add(at), into)?;
                        digests.add(handle, &into[..count.min(into.len())]);
                        Ok(count)
                    };
                    self.ring.fill_heap(buffer.first(length), read)
                };
                let count = self.granted(read)? as u64;
                self.usage.bytes_read += count;
                Ok((signed(count), 0))
            }
            RequestBody::Write { object, offset, data } => {
                let object = self.object(object)?;
                let mut written = 0;
                let done = self.ring.drain_heap(data, |at, bytes| {
                    object.write(offset.saturating_add(at), bytes)?;
                    written += bytes.len() as u64;
                    Ok(())
                });
                self.usage.bytes_written += written;
                let count = self.granted(done.map_err(|(_, error)| error))?;
                Ok((signed(count as u64), 0))
            }
            RequestBody::Append { object, data } => {
                let object = self.object(object)?;
                let bytes = self.copy(data);
                let at = self.granted(object.append(&bytes))?;
                self.usage.bytes_written += bytes.len() as u64;
                Ok((signed(bytes.len() as u64), at))
            }
            RequestBody::Punch { object, offset, length } => {
                let object = self.object(object)?;
                self.usage.bytes_written += self.granted(object.punch(offset, length))?;
                Ok((0, 0))
            }
            RequestBody::Length { object } => {
                let object = self.object(object)?;
                Ok((0, self.granted(object.length())?))
            }
            RequestBody::GetAttribute { object, page, number, buffer } => {
                let object = self.object(object)?;
                let value = self.granted(object.attribute(AttributeId::new(page, number)))?;
                let value = value.ok_or(CallErrno::NotFound)?;
                self.ring.copy_to_heap(buffer, &value);
                self.usage.bytes_read += value.len() as u64;
                Ok((signed(value.len() as u64), 0))
            }
            RequestBody::SetAttribute { object, page, number, data } => {
                let object = self.object(object)?;
                let value = self.copy(data);
                self.granted(object.set_attribute(AttributeId::new(page, number), &value))?;
                self.usage.bytes_written += value.len() as u64;
                Ok((0, 0))
            }
            RequestBody::List { object, after, buffer } => {
                let object = self.object(object)?;
                self.list(&*object, after, buffer)
            }
            RequestBody::Create { object } => self.create(object, |partition| partition.create()),
            RequestBody::CreateCollection { collection } => {
                self.create(collection, |collection| collection.create_collection())
            }
            RequestBody::Clear { object, offset, length } => {
                let object = self.object(object)?;
                self.usage.bytes_written += self.granted(object.clear(offset, length))?;
                Ok((0, 0))
            }
            RequestBody::RemoveCollection { collection, force } => {
                let collection = self.object(collection)?;
                self.granted(collection.remove_collection(force))?;
                Ok((0, 0))
            }
            RequestBody::AddMember { collection, object } => {
                let (collection, object) = (self.object(collection)?, self.object(object)?);
                self.granted(collection.add_member(&*object))?;
                Ok((0, 0))
            }
            RequestBody::RemoveMember { collection, object } => {
                let (collection, object) = (self.object(collection)?, self.object(object)?);
                self.granted(collection.remove_member(&*object))?;
                Ok((0, 0))
            }
            RequestBody::IsMember { collection, object } => {
                let (collection, object) = (self.object(collection)?, self.object(object)?);
                let is_member = self.granted(collection.is_member(&*object))?;
                Ok((is_member.into(), 0))
            }
            RequestBody::Remove { object } => {
                let object = self.object(object)?;
                self.granted(object.remove())?;
                Ok((0, 0))
            }
            RequestBody::Flush { object } => {
                let object = self.object(object)?;
                self.granted(object.flush())?;
                Ok((0, 0))
            }
            RequestBody::Result { data } => {
                let bytes = self.copy(data);
                self.usage.bytes_written += bytes.len() as u64;
                self.result.extend_from_slice(&bytes);
                Ok((signed(bytes.len() as u64), 0))
            }
            RequestBody::Log { level, data } => {
                let prefix: &[u8] = match level {
                    1 => b"error: ",
                    2 => b"warning: ",
                    _ => b"",
                };
                self.observer.log(&[prefix, &self.copy(data)].concat());
                Ok((0, 0))
            }
            RequestBody::Progress { done, total } => {
                self.progress = (done, total);
                Ok((0, 0))
            }
            // The loop ends at a return.
            RequestBody::Return { .. } => Err(CallErrno::Invalid),
        }
    }

    /// Creates an object through a handle, and adds a handle of it.
    fn create(
        &mut self,
        through: u32,
        create: impl FnOnce(&dyn GrantedObject) -> Result<Arc<dyn GrantedObject>, GrantError>,
    ) -> Completed {
        let through = self.object(through)?;
        let handle = u32::try_from(self.objects.len()).unwrap_or(u32::MAX);
        if handle >= HANDLES_MAX {
            self.handles_used_up = true;
            return Err(CallErrno::NoMemory);
        }
        let created = self.granted(create(&*through))?;
        let number = created.object().object;
        self.objects.push(created);
        Ok((i64::from(handle), number))
    }

    fn object(&self, handle: u32) -> Result<Arc<dyn GrantedObject>, CallErrno> {
        let object = usize::try_from(handle).ok().and_then(|handle| self.objects.get(handle));
        object.map(Arc::clone).ok_or(CallErrno::BadHandle)
    }

    /// Copies a range of the heap once; the engine can change it meanwhile.
    fn copy(&self, data: HeapRange) -> Vec<u8> {
        let mut bytes = vec![0; data.length() as usize];
        let length = self.ring.copy_from_heap(data, &mut bytes);
        bytes.truncate(length);
        bytes
    }

    /// Converts the error of a handle, and counts refusals.
    fn granted<T>(&mut self, done: Result<T, GrantError>) -> Result<T, CallErrno> {
        done.map_err(|error| {
            if error == GrantError::AccessDenied {
                self.denials += 1;
            }
            call_errno(error)
        })
    }

    fn list(&mut self, object: &dyn GrantedObject, after: u64, buffer: HeapRange) -> Completed {
        let max = (buffer.length() / 8).min(LIST_ENTRIES_MAX) as usize;
        let mut bytes = Vec::new();
        let mut from = after.checked_add(1);
        let mut count = 0;
        while let Some(start) = from
            && count < max
        {
            let page = self.granted(object.list(start, max - count))?;
            for number in page.numbers.iter().take(max - count) {
                bytes.extend_from_slice(&number.to_le_bytes());
                count += 1;
            }
            // A page without progress would loop forever.
            from = page.next.filter(|next| *next > start);
        }
        self.ring.copy_to_heap(buffer, &bytes);
        Ok((signed(count as u64), 0))
    }
}

/// Returns the error that a function receives.
pub(crate) const fn call_errno(error: GrantError) -> CallErrno {
    match error {
        GrantError::AccessDenied => CallErrno::AccessRefused,
        GrantError::NotFound => CallErrno::NotFound,
        GrantError::Invalid => CallErrno::Invalid,
        GrantError::TooLarge => CallErrno::TooLarge,
        GrantError::NoSpace => CallErrno::NoSpace,
        GrantError::NotEmpty => CallErrno::NotEmpty,
        GrantError::Io => CallErrno::InputOutput,
    }
}

/// Describes an object to the engine.
fn describe(object: &dyn GrantedObject) -> GuestObject {
    let id = object.object();
    let kind = match object.kind() {
        ObjectType::Collection => ObjectKind::Collection,
        ObjectType::Partition | ObjectType::Root => ObjectKind::Partition,
        ObjectType::User => ObjectKind::User,
    };
    let rights = object.rights();
    let shows_length = kind == ObjectKind::User && rights.contains(Permissions::READ);
    let length = if shows_length { object.length().unwrap_or(0) } else { 0 };
    let rights = ObjectRights::from_bits(rights.bytes()[0]);
    GuestObject::new(id.partition, id.object, kind, rights, length)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(engine: EngineType) -> MemoryEnd {
        MemoryEnd { engine, limit: 256 * MIB, handles_used_up: false }
    }

    #[test]
    fn returned_enomem_is_memory_limit_with_evidence_only() {
        let of = |memory: &MemoryEnd, peak| memory.of_status(peak);
        let (reason, text) = of(&memory(EngineType::C), 20 * MIB);
        assert_eq!(reason, ExitReason::FunctionError);
        assert!(text.contains("20 of 256 MiB"), "{text}");
        assert_eq!(of(&memory(EngineType::C), 250 * MIB).0, ExitReason::Memory);
        for engine in [EngineType::Java, EngineType::Python, EngineType::Wasm] {
            assert_eq!(of(&memory(engine), 100 * MIB).0, ExitReason::Memory, "{engine}");
        }
        let handles = MemoryEnd { handles_used_up: true, ..memory(EngineType::Java) };
        let (reason, text) = of(&handles, 100 * MIB);
        assert_eq!(reason, ExitReason::FunctionError);
        assert!(text.contains("handles"), "{text}");
    }

    #[test]
    fn abort_at_the_limit_is_memory_limit() {
        let memory = memory(EngineType::C);
        let abort = EngineExitCause::Signalled(SIGABRT);
        assert!(memory.of_end(abort, 255 * MIB).is_some_and(|text| text.contains("255 of 256 MiB")));
        assert!(memory.of_end(EngineExitCause::Exited(12), 300 * MIB).is_some());
        assert_eq!(memory.of_end(abort, 100 * MIB), None);
        assert_eq!(memory.of_end(EngineExitCause::Signalled(11), 255 * MIB), None, "not an allocation");
        assert_eq!(memory.of_end(EngineExitCause::ForbiddenCall, 255 * MIB), None);
    }
}
