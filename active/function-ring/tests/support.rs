//! A device in memory that serves the requests of an engine, for the tests of several crates.
#![allow(dead_code, reason = "each program uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_function_abi::{CallDescriptor, CallErrno, GuestObject, ObjectKind, ObjectRights, RequestBody};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions, RingRequest, RingViolation};

/// Longest test call.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(120);
/// Object numbers begin here.
pub(crate) const FIRST_NUMBER: u64 = 0x10000;

/// Objects, attributes and output of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryDevice {
    /// Objects by handle; `None` for a removed one.
    pub(crate) objects: Vec<Option<Vec<u8>>>,
    /// Attributes by handle, page and number.
    pub(crate) attributes: BTreeMap<(u32, u32, u32), Vec<u8>>,
    /// Members by the handle of their collection.
    pub(crate) members: BTreeMap<u32, BTreeSet<u32>>,
    /// Result of the call.
    pub(crate) result: Vec<u8>,
    /// Lines of the log.
    pub(crate) log: Vec<(u8, String)>,
    /// Last progress.
    pub(crate) progress: (u64, u64),
    /// Objects that were flushed.
    pub(crate) flushed: Vec<u32>,
}

impl MemoryDevice {
    /// Returns a device with these objects.
    pub(crate) fn new(objects: &[&[u8]]) -> Self {
        Self { objects: objects.iter().map(|bytes| Some(bytes.to_vec())).collect(), ..Self::default() }
    }

    /// Returns the descriptions of the objects.
    pub(crate) fn descriptions(&self) -> Vec<GuestObject> {
        let describe = |(index, object): (usize, &Option<Vec<u8>>)| {
            let length = object.as_ref().map_or(0, Vec::len) as u64;
            let rights = ObjectRights::from_bits(0xFF);
            GuestObject::new(FIRST_NUMBER, FIRST_NUMBER + index as u64, ObjectKind::User, rights, length)
        };
        self.objects.iter().enumerate().map(describe).collect()
    }

    fn object(&mut self, handle: u32) -> Result<&mut Vec<u8>, CallErrno> {
        match self.objects.get_mut(handle as usize) {
            Some(Some(object)) => Ok(object),
            Some(None) => Err(CallErrno::NotFound),
            None => Err(CallErrno::BadHandle),
        }
    }

    /// Serves one request; returns result and value.
    fn execute(&mut self, ring: &mut HostRing, body: &RequestBody) -> Result<(i64, u64), CallErrno> {
        match *body {
            RequestBody::Read { object, offset, buffer } => {
                let bytes = self.object(object)?;
                let start = bytes.len().min(offset as usize);
                let end = bytes.len().min(start + buffer.length() as usize);
                Ok((ring.copy_to_heap(buffer, &bytes[start..end]) as i64, 0))
            }
            RequestBody::Write { object, offset, data } => {
                let target = self.object(object)?;
                let (start, length) = (offset as usize, data.length() as usize);
                if target.len() < start + length {
                    target.resize(start + length, 0);
                }
                Ok((ring.copy_from_heap(data, &mut target[start..start + length]) as i64, 0))
            }
            RequestBody::Append { object, data } => {
                let target = self.object(object)?;
                let start = target.len();
                target.resize(start + data.length() as usize, 0);
                Ok((ring.copy_from_heap(data, &mut target[start..]) as i64, start as u64))
            }
            RequestBody::Punch { object, offset, length } => {
                let target = self.object(object)?;
                let start = target.len().min(offset as usize);
                let end = target.len().min(start.saturating_add(length as usize));
                target.drain(start..end);
                Ok((0, 0))
            }
            RequestBody::Length { object } => Ok((0, self.object(object)?.len() as u64)),
            RequestBody::GetAttribute { object, page, number, buffer } => {
                self.object(object)?;
                let value = self.attributes.get(&(object, page, number)).ok_or(CallErrno::NotFound)?;
                ring.copy_to_heap(buffer, value);
                Ok((value.len() as i64, 0))
            }
            RequestBody::SetAttribute { object, page, number, data } => {
                self.object(object)?;
                let mut value = vec![0; data.length() as usize];
                ring.copy_from_heap(data, &mut value);
                if value.is_empty() {
                    self.attributes.remove(&(object, page, number));
                } else {
                    self.attributes.insert((object, page, number), value);
                }
                Ok((0, 0))
            }
            RequestBody::List { object, after, buffer } => {
                let members = self.members.get(&object);
                let numbers = (0..self.objects.len() as u64).filter(|&handle| {
                    let is_listed = members.is_none_or(|members| members.contains(&(handle as u32)));
                    is_listed && self.objects[handle as usize].is_some() && FIRST_NUMBER + handle > after
                });
                let bytes: Vec<u8> = numbers
                    .take(buffer.length() as usize / 8)
                    .flat_map(|handle| (FIRST_NUMBER + handle).to_le_bytes())
                    .collect();
                Ok((ring.copy_to_heap(buffer, &bytes) as i64 / 8, 0))
            }
            RequestBody::Create { .. } => {
                self.objects.push(Some(Vec::new()));
                let handle = self.objects.len() as u64 - 1;
                Ok((handle as i64, FIRST_NUMBER + handle))
            }
            RequestBody::Remove { object } => {
                self.object(object)?;
                self.objects[object as usize] = None;
                Ok((0, 0))
            }
            RequestBody::Flush { object } => {
                self.object(object)?;
                self.flushed.push(object);
                Ok((0, 0))
            }
            RequestBody::Result { data } => {
                let result = &mut self.result;
                let drained = ring.drain_heap(data, |_, part| {
                    result.extend_from_slice(part);
                    Ok::<_, CallErrno>(())
                });
                drained.map(|count| (count as i64, 0)).map_err(|(_, error)| error)
            }
            RequestBody::Log { level, data } => {
                let mut text = vec![0; data.length() as usize];
                ring.copy_from_heap(data, &mut text);
                self.log.push((level, String::from_utf8_lossy(&text).into_owned()));
                Ok((0, 0))
            }
            RequestBody::Progress { done, total } => {
                self.progress = (done, total);
                Ok((0, 0))
            }
            RequestBody::Clear { object, offset, length } => {
                let target = self.object(object)?;
                if length > 0 {
                    let (start, end) = (offset as usize, (offset + length) as usize);
                    target.resize(target.len().max(end), 0);
                    target[start..end].fill(0);
                }
                Ok((0, 0))
            }
            RequestBody::CreateCollection { .. } => {
                self.objects.push(Some(Vec::new()));
                let handle = self.objects.len() as u64 - 1;
                self.members.insert(handle as u32, BTreeSet::new());
                Ok((handle as i64, FIRST_NUMBER + handle))
            }
            RequestBody::RemoveCollection { collection, force } => {
                if !force && !self.collection(collection)?.is_empty() {
                    return Err(CallErrno::NotEmpty);
                }
                self.members.remove(&collection).ok_or(CallErrno::Invalid)?;
                self.objects[collection as usize] = None;
                Ok((0, 0))
            }
            RequestBody::AddMember { collection, object } => {
                self.object(object)?;
                self.collection(collection)?.insert(object);
                Ok((0, 0))
            }
            RequestBody::RemoveMember { collection, object } => {
                let was_member = self.collection(collection)?.remove(&object);
                if was_member { Ok((0, 0)) } else { Err(CallErrno::NotFound) }
            }
            RequestBody::IsMember { collection, object } => {
                Ok((self.collection(collection)?.contains(&object).into(), 0))
            }
            RequestBody::Return { .. } => Err(CallErrno::Invalid),
        }
    }

    fn collection(&mut self, handle: u32) -> Result<&mut BTreeSet<u32>, CallErrno> {
        self.object(handle)?;
        self.members.get_mut(&handle).ok_or(CallErrno::Invalid)
    }

    /// Serves one request if one arrives within 20 ms; returns the status if the call returned.
    pub(crate) fn serve_next(&mut self, ring: &mut HostRing) -> Option<i64> {
        while let Some(RingRequest { cookie, body }) =
            ring.next_request(Duration::from_millis(20)).expect("no violation")
        {
            if let RequestBody::Return { status } = body {
                return Some(status);
            }
            let (result, value) = self.execute(ring, &body).unwrap_or_else(|error| (error.result(), 0));
            ring.complete(cookie, result, value);
        }
        None
    }

    /// Serves requests until the call returns; `Err` for a violation.
    pub(crate) fn serve(&mut self, ring: &mut HostRing) -> Result<i64, RingViolation> {
        let deadline = Instant::now() + CALL_LIMIT;
        loop {
            let Some(RingRequest { cookie, body }) = ring.next_request(Duration::from_secs(1))? else {
                assert!(Instant::now() < deadline, "the call does not return");
                continue;
            };
            if let RequestBody::Return { status } = body {
                return Ok(status);
            }
            let (result, value) = self.execute(ring, &body).unwrap_or_else(|error| (error.result(), 0));
            ring.complete(cookie, result, value);
        }
    }

    /// Runs one call with a method and arguments.
    pub(crate) fn run(
        &mut self,
        ring: &mut HostRing,
        method: &str,
        arguments: &[u8],
    ) -> Result<i64, RingViolation> {
        let objects = self.descriptions();
        let call = CallDescriptor {
            method,
            arguments,
            objects: &objects,
            timeout_ms: 1000,
            result_bytes_max: 1 << 20,
            secret_arguments: false,
        };
        ring.begin_call(&call).expect("a valid call");
        self.serve(ring)
    }
}

/// Returns a memory with the smallest heap, and its host's end.
pub(crate) fn small_ring() -> (Arc<HostMemory>, HostRing) {
    let options = RingOptions { heap_bytes: 8 << 20, ..RingOptions::default() };
    let memory = Arc::new(HostMemory::create(options).expect("memory files"));
    (Arc::clone(&memory), HostRing::new(memory))
}

/// An engine process without confinement, and the host's end of its ring.
pub(crate) struct LocalEngine {
    pub(crate) ring: HostRing,
    pub(crate) process: Child,
}

impl LocalEngine {
    /// Starts an engine program with the code of a function.
    pub(crate) fn start(program: &str, code: &Path) -> Self {
        let (memory, ring) = small_ring();
        let files =
            memory.descriptors().map(|file| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let process = Command::new(program).arg("--local").arg(code).args(files).spawn();
        Self { ring, process: process.expect("start the engine") }
    }

    /// Stops the engine; returns how it ended.
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.ring.control().stop_engine();
        self.process.wait().expect("the engine ends")
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        // An engine without a host would wait for ever.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
