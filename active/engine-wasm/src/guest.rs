//! The state of one call, and the memory of its instance.
//!
//! Contract: an address of the function is an offset that is checked against the size of the memory
//! at each use. Stream buffers are pages that the memory gained at its end, so that no allocator of
//! the function has them.

use std::ops::Range;

use sealstone_function_abi::limits::BUFFER_BYTES;
use sealstone_function_abi::{CallErrno, HeapRange};
use sealstone_function_ring::{EngineRing, StreamId};
use sealstone_wasm_module::limits::{PAGE_BYTES, TABLE_ENTRIES_MAX, TABLES_MAX};
use wasmtime::{Caller, Extern, Memory, StoreLimits, StoreLimitsBuilder};

/// Pages of a stream buffer.
const BUFFER_PAGES: u64 = BUFFER_BYTES as u64 / PAGE_BYTES;

/// A buffer of a stream in the memory of the function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamBuffer {
    address: u32,
    /// The open stream that uses it, and whether that one writes.
    stream: Option<(StreamId, bool)>,
    /// Part of the shared heap that the function fills by way of this buffer.
    filled: Option<HeapRange>,
}

/// State of one call.
pub(crate) struct CallState {
    pub(crate) ring: EngineRing,
    pub(crate) limits: StoreLimits,
    memory: Option<Memory>,
    buffers: Vec<StreamBuffer>,
}

impl CallState {
    pub(crate) fn new(ring: EngineRing, memory_max: u64) -> Self {
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(memory_max).unwrap_or(usize::MAX))
            .table_elements(TABLE_ENTRIES_MAX as usize)
            .tables(TABLES_MAX as usize)
            .memories(1)
            .instances(1)
            .build();
        Self { ring, limits, memory: None, buffers: Vec::new() }
    }
}

/// An instance that makes a call.
pub(crate) type CallingGuest<'a> = Caller<'a, CallState>;

/// Returns the memory of an instance. Its start function may call before the instance exists.
fn memory_of(guest: &mut CallingGuest<'_>) -> Result<Memory, CallErrno> {
    if let Some(memory) = guest.data().memory {
        return Ok(memory);
    }
    let memory = guest.get_export("memory").and_then(Extern::into_memory).ok_or(CallErrno::BadHandle)?;
    guest.data_mut().memory = Some(memory);
    Ok(memory)
}

/// Runs `body` with the memory of an instance and the state of its call.
pub(crate) fn with_memory<T>(
    guest: &mut CallingGuest<'_>,
    body: impl FnOnce(&mut [u8], &mut CallState) -> Result<T, CallErrno>,
) -> Result<T, CallErrno> {
    let memory = memory_of(guest)?;
    let (bytes, state) = memory.data_and_store_mut(guest);
    body(bytes, state)
}

/// Returns the range of bytes at an address; `EINVAL` for null and for a range outside the memory.
pub(crate) fn guest_range(memory: &[u8], address: u32, length: u64) -> Result<Range<usize>, CallErrno> {
    if length == 0 {
        return Ok(0..0);
    }
    let end = u64::from(address).checked_add(length).ok_or(CallErrno::Invalid)?;
    if address == 0 || end > memory.len() as u64 {
        return Err(CallErrno::Invalid);
    }
    // Both are at most the length of the memory.
    Ok(address as usize..end as usize)
}

/// Checks an address to which a call will store a value, unless it is null.
pub(crate) fn check_store(memory: &[u8], address: u32, length: usize) -> Result<(), CallErrno> {
    if address == 0 { Ok(()) } else { guest_range(memory, address, length as u64).map(drop) }
}

/// Stores a value unless the address is null.
pub(crate) fn store_value(memory: &mut [u8], address: u32, value: &[u8]) -> Result<(), CallErrno> {
    if address != 0 {
        let range = guest_range(memory, address, value.len() as u64)?;
        memory[range].copy_from_slice(value);
    }
    Ok(())
}

/// Opens a stream with a buffer in the memory of the function.
pub(crate) fn open_buffered(
    guest: &mut CallingGuest<'_>,
    is_writer: bool,
    open: impl FnOnce(&mut EngineRing) -> Result<StreamId, CallErrno>,
) -> Result<i64, CallErrno> {
    let index = free_buffer(guest)?;
    let state = guest.data_mut();
    let stream = open(&mut state.ring)?;
    state.buffers[index].stream = Some((stream, is_writer));
    state.buffers[index].filled = None;
    Ok(stream.number())
}

/// Returns the index of a buffer that no stream uses; the memory grows if there is none.
fn free_buffer(guest: &mut CallingGuest<'_>) -> Result<usize, CallErrno> {
    let free = guest.data().buffers.iter().position(|buffer| buffer.stream.is_none());
    if let Some(index) = free {
        return Ok(index);
    }
    let memory = memory_of(guest)?;
    let pages = memory.grow(&mut *guest, BUFFER_PAGES).map_err(|_| CallErrno::NoMemory)?;
    // The memory has at most 2^32 bytes, and the buffer is within it.
    let address = u32::try_from(pages * PAGE_BYTES).map_err(|_| CallErrno::NoMemory)?;
    let buffers = &mut guest.data_mut().buffers;
    buffers.push(StreamBuffer { address, stream: None, filled: None });
    Ok(buffers.len() - 1)
}

impl CallState {
    fn buffer(&mut self, stream: StreamId) -> Result<&mut StreamBuffer, CallErrno> {
        let uses = |buffer: &&mut StreamBuffer| buffer.stream.is_some_and(|(id, _)| id == stream);
        self.buffers.iter_mut().find(uses).ok_or(CallErrno::BadHandle)
    }

    /// Copies the next bytes of a reader to its buffer; returns its address and their number.
    pub(crate) fn read_next(&mut self, memory: &mut [u8], reader: StreamId) -> Result<(u32, u64), CallErrno> {
        let address = self.buffer(reader)?.address;
        let delivered = self.ring.read_next(reader)?;
        let length = u64::from(delivered.length());
        let range = guest_range(memory, address, length)?;
        self.ring.copy_from_heap(delivered, &mut memory[range]);
        Ok((address, length))
    }

    /// Returns the address of the buffer of a writer, and its size.
    pub(crate) fn write_buffer(&mut self, writer: StreamId) -> Result<(u32, u64), CallErrno> {
        self.buffer(writer)?;
        let free = self.ring.write_buffer(writer)?;
        let buffer = self.buffer(writer)?;
        buffer.filled = Some(free);
        Ok((buffer.address, free.length().into()))
    }

    /// Copies the first bytes of the buffer of a writer to the heap, and sends them.
    pub(crate) fn commit_buffer(
        &mut self,
        memory: &[u8],
        writer: StreamId,
        length: u64,
    ) -> Result<(), CallErrno> {
        let StreamBuffer { address, filled, .. } = *self.buffer(writer)?;
        if let Some(heap) = filled
            && let Ok(bytes) = u32::try_from(length)
            && bytes <= heap.length()
        {
            let range = guest_range(memory, address, length)?;
            self.ring.copy_to_heap(heap.first(bytes), &memory[range]);
        }
        self.ring.commit_buffer(writer, length)?;
        self.buffer(writer)?.filled = None;
        Ok(())
    }

    /// Closes a stream; its buffer is free for another one.
    pub(crate) fn close_stream(&mut self, stream: StreamId, is_writer: bool) -> Result<(), CallErrno> {
        if let Ok(buffer) = self.buffer(stream)
            && buffer.stream == Some((stream, is_writer))
        {
            buffer.stream = None;
            buffer.filled = None;
        }
        self.ring.close_stream(stream, is_writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_memory_are_refused() {
        let memory = [0; 100];
        assert_eq!(guest_range(&memory, 1, 99), Ok(1..100));
        assert_eq!(guest_range(&memory, 100, 0), Ok(0..0));
        assert_eq!(guest_range(&memory, 0, 0), Ok(0..0));
        for (address, length) in
            [(0, 1), (1, 100), (100, 1), (u32::MAX, 1), (u32::MAX, u64::MAX), (50, u64::from(u32::MAX))]
        {
            assert_eq!(guest_range(&memory, address, length), Err(CallErrno::Invalid), "{address} {length}");
        }
    }

    #[test]
    fn values_are_stored_within_memory_only() {
        let mut memory = [0; 16];
        store_value(&mut memory, 0, &[1; 4]).expect("null stores nothing");
        assert_eq!(memory, [0; 16]);
        store_value(&mut memory, 12, &[1; 4]).expect("the last bytes");
        assert_eq!(memory[12..], [1; 4]);
        assert_eq!(store_value(&mut memory, 13, &[2; 4]), Err(CallErrno::Invalid));
        assert_eq!(check_store(&memory, 13, 4), Err(CallErrno::Invalid));
        assert_eq!(memory[13..], [1; 3]);
    }
}
