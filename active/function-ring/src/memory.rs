//! Mappings of shared memory, and the only accesses to them: atomic words and copies, never
//! references.
#![allow(unsafe_code, reason = "memory that another process writes")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Creates a memory file of a fixed size, which cannot be executed if the kernel knows that seal.
pub(crate) fn create_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        result => result?,
    };
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(file)
}

/// Fixes the size of a file, and with `read_only` refuses new writers.
pub(crate) fn seal(file: &OwnedFd, read_only: bool) -> io::Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW;
    if read_only {
        seals |= SealFlags::FUTURE_WRITE;
    }
    rustix::fs::fcntl_add_seals(file, seals | SealFlags::SEAL)?;
    Ok(())
}

/// A mapping of a memory file that another process may change at any time.
///
/// No reference to its bytes exists outside of this file, except to atomic words. Accesses outside
/// of the mapping do nothing.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the mapping lives until the value is dropped, whichever thread drops it, and every access
// is atomic or opaque to the compiler, so concurrent accesses of several threads are no data races.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first bytes of a file.
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an unused address, so no existing object is replaced. The file
        // cannot shrink (the host seals it), so no access within `bytes` faults.
        let address =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::from(rustix::io::Errno::NOMEM))?;
        Ok(Self { base, bytes, writable })
    }

    fn contains(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Returns the address of an offset, for code that receives pointers to the heap.
    pub(crate) fn address(&self, offset: usize) -> Option<NonNull<u8>> {
        // SAFETY: the offset is within the mapping, one past its end at most.
        self.contains(offset, 0).then(|| unsafe { self.base.add(offset) })
    }

    /// Returns an atomic word. The offset is a constant of the layout: aligned, within the mapping.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && self.contains(offset, 4), "offset of the layout");
        // SAFETY: the address is aligned, and valid for as long as the mapping that `self` borrows.
        // The other process also accesses it only as an atomic word, or is hostile, in which case
        // the processor still makes its accesses to an aligned word atomic.
        unsafe { AtomicU32::from_ptr(self.base.add(offset).cast().as_ptr()) }
    }

    fn long_word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.contains(offset, 8), "offset of the layout");
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast().as_ptr()) }
    }

    /// Reads a word, and everything that was written before it.
    ///
    /// Memory that is mapped read-only allows only relaxed loads; the fence orders them.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        let value = self.word(offset).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Reads a word of 64 bits.
    pub(crate) fn load_long(&self, offset: usize) -> u64 {
        self.long_word(offset).load(Ordering::Relaxed)
    }

    /// Writes a word after everything that was written before.
    pub(crate) fn store(&self, offset: usize, value: u32) {
        debug_assert!(self.writable);
        self.word(offset).store(value, Ordering::Release);
    }

    /// Writes a word of 64 bits.
    pub(crate) fn store_long(&self, offset: usize, value: u64) {
        debug_assert!(self.writable);
        self.long_word(offset).store(value, Ordering::Relaxed);
    }

    /// Reads an entry once, in words of 8 bytes. A concurrent write can mix old and new words, but
    /// the copy does not change afterwards.
    pub(crate) fn copy_entry<const BYTES: usize>(&self, offset: usize) -> [u8; BYTES] {
        let mut entry = [0; BYTES];
        for (index, bytes) in entry.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.load_long(offset + index * 8).to_ne_bytes());
        }
        entry
    }

    /// Writes an entry, in words of 8 bytes.
    pub(crate) fn store_entry<const BYTES: usize>(&self, offset: usize, entry: &[u8; BYTES]) {
        for (index, bytes) in entry.chunks_exact(8).enumerate() {
            let word = bytes.try_into().map_or(0, u64::from_ne_bytes);
            self.store_long(offset + index * 8, word);
        }
    }

    /// Copies bytes out of the mapping; returns how many, 0 if the range is not within it.
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) -> usize {
        if !self.contains(offset, into.len()) {
            return 0;
        }
        // SAFETY: the source is within the mapping, which is readable; the destination is a slice
        // of this process, and the kernel never places a mapping over existing memory.
        unsafe { copy_opaque(self.base.add(offset).as_ptr(), into.as_mut_ptr(), into.len()) };
        into.len()
    }

    /// Copies bytes into the mapping; returns how many, 0 if the range is not within it.
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> usize {
        if !self.writable || !self.contains(offset, from.len()) {
            return 0;
        }
        // SAFETY: the destination is within the mapping, which is writable; the rest as in
        // `copy_out`.
        unsafe { copy_opaque(from.as_ptr(), self.base.add(offset).as_ptr(), from.len()) };
        from.len()
    }

    /// Overwrites a range with zeros, in a way that is not optimised away.
    pub(crate) fn clear(&self, offset: usize, bytes: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut cleared = 0;
        while cleared < bytes {
            let part = ZEROS.len().min(bytes - cleared);
            if self.copy_in(offset + cleared, &ZEROS[..part]) == 0 {
                return;
            }
            cleared += part;
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the one that was mapped, and no reference into it outlives
        // `self`. A failure would leave the memory mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Copies bytes of which another process may write some at the same time.
///
/// # Safety
///
/// `from` is readable and `to` writable for `bytes`, and the ranges do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_opaque(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees both ranges. The compiler does not look into the instruction,
    // so a concurrent write changes which bytes are copied and nothing else. The direction flag is
    // clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies bytes of which another process may write some at the same time.
///
/// # Safety
///
/// `from` is readable and `to` writable for `bytes`, and the ranges do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_opaque(from: *const u8, to: *mut u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: both addresses are within the ranges that the caller guarantees. Volatile
        // accesses are neither merged nor repeated, so a concurrent write changes only which bytes
        // are copied.
        unsafe {
            if bytes - done >= 8 {
                let value = from.add(done).cast::<[u8; 8]>().read_volatile();
                to.add(done).cast::<[u8; 8]>().write_volatile(value);
                done += 8;
            } else {
                to.add(done).write_volatile(from.add(done).read_volatile());
                done += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn access_outside_mapping_does_nothing() {
        let file = create_file("test", 4096).expect("memory file");
        let mapping = SharedMapping::new(file.as_fd(), 4096, true).expect("map");
        let mut bytes = [7; 8];
        assert_eq!(mapping.copy_out(4089, &mut bytes), 0);
        assert_eq!(mapping.copy_in(usize::MAX, &bytes), 0);
        assert_eq!(bytes, [7; 8]);
        assert_eq!(mapping.copy_in(4088, &bytes), 8);
        mapping.clear(4090, 6);
        assert_eq!(mapping.copy_out(4088, &mut bytes), 8);
        assert_eq!(bytes, [7, 7, 0, 0, 0, 0, 0, 0]);
        assert!(mapping.address(4097).is_none());
    }

    #[test]
    fn sealed_file_refuses_writers_and_resizing() {
        let file = create_file("test", 4096).expect("memory file");
        let host = SharedMapping::new(file.as_fd(), 4096, true).expect("map");
        seal(&file, true).expect("seal");
        for size in [0, 8192] {
            assert_eq!(rustix::fs::ftruncate(&file, size), Err(rustix::io::Errno::PERM));
        }
        assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(rustix::io::Errno::PERM));
        assert!(SharedMapping::new(file.as_fd(), 4096, true).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        let engine = SharedMapping::new(file.as_fd(), 4096, false).expect("map read-only");
        let upgrade = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the range is the whole mapping; the test only observes the error.
        let result = unsafe { rustix::mm::mprotect(engine.base.as_ptr().cast(), 4096, upgrade) };
        assert_eq!(result, Err(rustix::io::Errno::ACCESS));
        host.store(8, 5);
        assert_eq!(engine.load(8), 5);
    }
}
