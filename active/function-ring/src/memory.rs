//! Mappings of shared memory, and the only accesses to them: atomic words and copies, never
//! references.
#![allow(unsafe_code, reason = "memory that another process writes")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Shortest copy into shared memory that bypasses the caches.
const UNCACHED_BYTES_MIN: usize = 4096;
/// Bytes that are copied before their lines are removed from the caches.
const FLUSH_BYTES: usize = 4096;
/// Size of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

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

    /// Copies bytes out of the mapping as [`Self::copy_out`] does, and removes their lines from the
    /// caches. Stores of the other side to these lines then need not wait for this core.
    pub(crate) fn copy_out_once(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut copied = 0;
        // While a page is in the first cache, its lines are removed quickly.
        for page in into.chunks_mut(FLUSH_BYTES) {
            let length = self.copy_out(offset + copied, page);
            if length == 0 {
                break;
            }
            self.flush(offset + copied, length);
            copied += length;
        }
        copied
    }

    /// Removes a range within the mapping from the caches, if the processor can do that without
    /// waiting.
    fn flush(&self, offset: usize, bytes: usize) {
        #[cfg(target_arch = "x86_64")]
        if has_line_flush() && self.contains(offset, bytes) {
            let first = offset - offset % LINE_BYTES;
            for line in (first..offset + bytes).step_by(LINE_BYTES) {
                // SAFETY: the line begins within the mapping, which starts at a page. The
                // instruction changes no memory, and the processor has it.
                unsafe {
                    std::arch::asm!(
                        "clflushopt [{line}]",
                        line = in(reg) self.base.add(line).as_ptr(),
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, bytes);
    }

    /// Copies bytes into the mapping; returns how many, 0 if the range is not within it.
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) -> usize {
        if !self.writable || !self.contains(offset, from.len()) {
            return 0;
        }
        let to = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: the destination is within the mapping, which is writable; the rest as in
        // `copy_out`.
        unsafe {
            if from.len() < UNCACHED_BYTES_MIN {
                copy_opaque(from.as_ptr(), to, from.len());
            } else {
                copy_uncached(from.as_ptr(), to, from.len());
            }
        }
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

/// Whether the processor has CLFLUSHOPT, which does not wait for earlier flushes.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "CPUID is unsafe to call up to Rust 1.93, with which this builds too")]
fn has_line_flush() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;
    static HAS_LINE_FLUSH: OnceLock<bool> = OnceLock::new();
    *HAS_LINE_FLUSH.get_or_init(|| {
        // SAFETY: every x86-64 has CPUID. Leaf 7, if it exists, has a bit for the instruction.
        unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 23 != 0 }
    })
}

/// Copies bytes past the caches, in whole cache lines, as [`copy_opaque`] does.
///
/// A normal store to a line that another core has read waits until that core has dropped it, about
/// 25 ns for each line. These stores do not wait.
///
/// # Safety
///
/// As for [`copy_opaque`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_uncached(from: *const u8, to: *mut u8, bytes: usize) {
    let lead = to.addr().wrapping_neg() % LINE_BYTES;
    let (lead, lines) = (lead.min(bytes), bytes.saturating_sub(lead) / LINE_BYTES);
    let middle = lines * LINE_BYTES;
    // SAFETY: the three parts are within the ranges that the caller guarantees. As in `copy_opaque`
    // the compiler does not look into the instructions. `to + lead` is aligned to a line wherever
    // there is a whole one. SSE2 belongs to every x86-64. The fence orders the stores before later
    // ones, by which the other side learns of the bytes.
    unsafe {
        copy_opaque(from, to, lead);
        if lines > 0 {
            std::arch::asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                "sfence",
                from = inout(reg) from.add(lead) => _,
                to = inout(reg) to.add(lead) => _,
                lines = inout(reg) lines => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
        copy_opaque(from.add(lead + middle), to.add(lead + middle), bytes - lead - middle);
    }
}

/// Copies bytes as [`copy_opaque`] does, where no stores past the caches are known.
///
/// # Safety
///
/// As for [`copy_opaque`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_uncached(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees the same.
    unsafe { copy_opaque(from, to, bytes) }
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
    fn long_copies_arrive_at_every_alignment() {
        let file = create_file("test", 4 << 12).expect("memory file");
        let mapping = SharedMapping::new(file.as_fd(), 4 << 12, true).expect("map");
        let source: Vec<u8> = (0..3 << 12).map(|n: usize| (n % 251) as u8 + 1).collect();
        for (offset, start, length) in [
            (0, 0, UNCACHED_BYTES_MIN),
            (1, 3, UNCACHED_BYTES_MIN),
            (63, 1, UNCACHED_BYTES_MIN + 1),
            (64, 17, 2 * UNCACHED_BYTES_MIN + 127),
            (100, 0, source.len()),
        ] {
            mapping.clear(0, 4 << 12);
            let bytes = &source[start..start + length];
            assert_eq!(mapping.copy_in(offset, bytes), length);
            let mut all = vec![0; 4 << 12];
            assert_eq!(mapping.copy_out_once(0, &mut all), all.len());
            let mut part = vec![0; length];
            assert_eq!(mapping.copy_out_once(offset, &mut part), length);
            assert!(part == *bytes);
            assert!(all[offset..offset + length] == *bytes, "{length} bytes at {offset}");
            let outside = all[..offset].iter().chain(&all[offset + length..]);
            assert!(outside.copied().all(|byte| byte == 0), "only these: {length} bytes at {offset}");
        }
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
