//! The device file through which the kernel sends requests and receives answers.
//!
//! Contract: each request is answered exactly once, even if its handler panics. A program that is
//! killed while it waits ends at once; its request continues, and the answer is dropped.
//! Truth: Documentation/filesystems/fuse.rst of Linux (interrupting filesystem operations).

use core::ops::Range;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::answer::{AnswerFields, HEADER_BYTES};
use super::wire::{self, Operation, RequestHeader, forgets, parse};

/// Maximum bytes of one write or read.
const REQUEST_MAX: u32 = 1 << 20;
const WRITE_MAX: usize = REQUEST_MAX as usize;
/// Bytes before the data of a write: the header of the request and that of the write.
const WRITE_HEAD: usize = 80;
/// Bytes of a memory page.
const PAGE: usize = 4096;
/// Maximum background requests of the kernel in flight, such as read-ahead.
const BACKGROUND_MAX: u16 = 64;
/// Protocol version that is spoken.
const MAJOR: u32 = 7;
const MINOR: u32 = 36;
/// Minimum minor version of the kernel; older versions have shorter answers.
const MINOR_MIN: u32 = 23;
/// How often it is checked whether a waiting program was killed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Notification code: attributes or pages of an inode are invalid.
const INVALIDATE_INODE: i32 = 2;
/// SIGKILL in the masks of `/proc/PID/status`.
const KILLED: u64 = 1 << 8;

/// Capabilities that are requested of the kernel.
const FEATURES: u32 = ASYNC_READ
    | RANGE_LOCKS
    | WHOLE_LOCKS
    | ATOMIC_TRUNCATE
    | BIG_WRITES
    | AUTO_INVALIDATE
    | READ_PLUS
    | READ_PLUS_AUTO
    | ASYNC_DIRECT
    | PARALLEL_DIRECTORIES
    | MAX_PAGES
    | CACHE_LINKS
    | TELL_UMASK
    | WRITES_TAKE_SET_IDS
    | MORE_FLAGS;
/// Capabilities for the one file of a disk: no names, and the kernel keeps its locks.
const DISK_FEATURES: u32 =
    ASYNC_READ | ATOMIC_TRUNCATE | BIG_WRITES | ASYNC_DIRECT | MAX_PAGES | WRITES_TAKE_SET_IDS | MORE_FLAGS;
const ASYNC_READ: u32 = 1 << 0;
const RANGE_LOCKS: u32 = 1 << 1;
const WHOLE_LOCKS: u32 = 1 << 10;
const ATOMIC_TRUNCATE: u32 = 1 << 3;
const BIG_WRITES: u32 = 1 << 5;
const AUTO_INVALIDATE: u32 = 1 << 12;
const READ_PLUS: u32 = 1 << 13;
const READ_PLUS_AUTO: u32 = 1 << 14;
const ASYNC_DIRECT: u32 = 1 << 15;
const PARALLEL_DIRECTORIES: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_LINKS: u32 = 1 << 23;
/// The kernel sends the umask; the file system applies it.
const TELL_UMASK: u32 = 1 << 6;
/// Writes remove set-user-ID bits here. The kernel says when, and does not request
/// `security.capability` before each write.
const WRITES_TAKE_SET_IDS: u32 = 1 << 28;
/// There are flags from bit 32 on.
const MORE_FLAGS: u32 = 1 << 30;
/// Of the flags from bit 32 on: files that bypass the page cache can be mapped shared (Linux 6.6).
const FEATURES_HIGH: u32 = DIRECT_MAPPINGS;
const DIRECT_MAPPINGS: u32 = 1 << 4;
/// The kernel checks access control lists, together with owners and permission bits.
const LISTS: u32 = 1 << 20;

/// Handles the requests of a channel.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Answers a request, now or later.
    fn handle(&self, header: RequestHeader, operation: Operation<'_>, reply: KernelReply);
    /// Answers a write of maximum size, whose bytes are a part of `memory`. The memory may be kept;
    /// the returned buffer of the same size is used for the next requests.
    fn write_whole(
        &self,
        to: WriteTarget,
        memory: Vec<u8>,
        part: Range<usize>,
        reply: KernelReply,
    ) -> Vec<u8>;
    /// Removes references of the kernel to a node.
    fn forget(&self, node: u64, count: u64);
    /// Runs a task in the background.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
    /// Enters the runtime: while the guard lives, this thread may start futures.
    fn enter(&self) -> tokio::runtime::EnterGuard<'_>;
}

/// The target of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTarget {
    pub(crate) node: u64,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    /// Whether it removes the set-user-ID and set-group-ID bits.
    pub(crate) kills: bool,
    /// Whether the bytes go to the end of the file, and the offset is ignored.
    pub(crate) appends: bool,
    /// Whether the file is open with `O_DSYNC` or `O_SYNC`.
    pub(crate) synchronous: bool,
}

/// The device file of a mount.
#[derive(Debug)]
pub(crate) struct FuseChannel {
    device: File,
    /// Requests without an answer.
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// A program that waits for an answer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its thread.
    pid: u32,
    /// Whether any signal ends the wait, as for locks; for other requests only SIGKILL does, as on
    /// a local disk.
    any_signal: bool,
}

impl FuseChannel {
    /// Negotiates the protocol over the device of a mount. With `checks` the kernel checks
    /// permissions.
    ///
    /// # Errors
    /// The kernel speaks an older protocol, or the mount no longer exists.
    pub(crate) fn open(device: OwnedFd, checks: bool) -> io::Result<Arc<Self>> {
        Self::negotiate(device, FEATURES, checks)
    }

    /// As [`Self::open`], for a file system of one file.
    pub(crate) fn open_disk(device: OwnedFd) -> io::Result<Arc<Self>> {
        Self::negotiate(device, DISK_FEATURES, false)
    }

    fn negotiate(device: OwnedFd, features: u32, checks: bool) -> io::Result<Arc<Self>> {
        let channel = Self { device: File::from(device), waiting: Mutex::default() };
        let mut buffer = vec![0; REQUEST_MAX as usize + 4096];
        let length = channel.read(&mut buffer)?.ok_or(Errno::NOTCONN)?;
        let (header, operation) = parse(&buffer[..length]).map_err(|_| Errno::PROTO)?;
        let Operation::Init { major, minor, readahead_max, flags, flags_high } = operation else {
            return Err(Errno::PROTO.into());
        };
        if major != MAJOR || minor < MINOR_MIN {
            channel.write(header.unique, Errno::PROTO.raw_os_error(), &[])?;
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel speaks FUSE {major}.{minor}; {MAJOR}.{MINOR_MIN} is needed"),
            ));
        }
        if checks && flags & LISTS == 0 {
            // Otherwise the kernel would apply the mask of a list as the rights of the group.
            channel.write(header.unique, Errno::PROTO.raw_os_error(), &[])?;
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel does not check access control lists of FUSE, which a mount for many users needs: take Linux 4.9 \
                 or later, or mount without --allow-other",
            ));
        }
        let readahead = readahead_max.min(REQUEST_MAX);
        let features = flags & if checks { features | LISTS } else { features };
        let features = (features, if features & MORE_FLAGS == 0 { 0 } else { flags_high & FEATURES_HIGH });
        let answer = AnswerFields::init(MINOR.min(minor), readahead, features, BACKGROUND_MAX, REQUEST_MAX);
        channel.write(header.unique, 0, &[answer.as_bytes()])?;
        Ok(Arc::new(channel))
    }

    /// Reads one request; none if the file system was unmounted.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.device).read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => match Errno::from_io_error(&error) {
                    // ENOENT: the request was cancelled while it was being read.
                    Some(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                    Some(Errno::NODEV) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    fn write(&self, unique: u64, errno: i32, parts: &[&[u8]]) -> io::Result<()> {
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let mut slices = vec![IoSlice::new(&header)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        // The kernel accepts an answer completely or not at all.
        (&self.device).write_vectored(&slices).map(drop)
    }

    /// Invalidates the kernel's attributes of a node, so that it requests them before the next use.
    /// Does not wait.
    pub(crate) fn invalidate_attributes(&self, ino: u64) {
        self.notify_inode(ino, -1, 0);
    }

    /// Drops all pages of a file in the kernel, after writing back what programs wrote through a
    /// mapping. Waits for requests on these pages.
    pub(crate) fn drop_pages(&self, ino: u64) {
        self.notify_inode(ino, 0, 0);
    }

    fn notify_inode(&self, ino: u64, offset: i64, length: i64) {
        let range = [ino.to_ne_bytes(), offset.to_ne_bytes(), length.to_ne_bytes()].concat();
        // A notification has its code in place of the error, and no request number.
        if let Err(error) = self.write(0, -INVALIDATE_INODE, &[&range]) {
            // ENOENT: the kernel does not know the node. ENODEV: unmounted.
            let ignored = matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV));
            if !ignored {
                tracing::warn!(ino, %error, "could not invalidate the kernel's cache of a file");
            }
        }
    }

    /// Sends an answer; returns whether the kernel accepted it. Otherwise the kernel knows nothing
    /// of its contents.
    fn answer(&self, unique: u64, errno: i32, parts: &[&[u8]]) -> bool {
        if self.waiting.lock().remove(&unique).is_none() {
            return false;
        }
        let Err(error) = self.write(unique, errno, parts) else { return true };
        // ENOENT: the request was interrupted. ENODEV: unmounted.
        let ignored = matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV));
        if !ignored {
            tracing::warn!(%error, "the kernel did not accept an answer");
        }
        false
    }

    /// Serves requests until the file system is unmounted.
    ///
    /// # Errors
    /// Reading the device failed.
    pub(crate) fn serve(self: &Arc<Self>, handler: &impl RequestHandler) -> io::Result<()> {
        let _inside = handler.enter();
        let mut memory = request_memory();
        let mut start = request_start(&memory);
        while let Some(length) = self.read(&mut memory[start..])? {
            match parse(&memory[start..start + length]) {
                Ok((header, Operation::Write { handle, offset, data, kills, appends, synchronous }))
                    if data.len() == WRITE_MAX =>
                {
                    let to = WriteTarget { node: header.node, handle, offset, kills, appends, synchronous };
                    let part = start + WRITE_HEAD..start + length;
                    let reply = self.expect(header, false);
                    memory = handler.write_whole(to, memory, part, reply);
                    start = request_start(&memory);
                }
                Ok((header, operation)) => self.dispatch(handler, header, operation),
                Err(wire::MalformedRequest { unique: Some(unique) }) => {
                    tracing::warn!(unique, "malformed request from the kernel");
                    self.write(unique, Errno::IO.raw_os_error(), &[])?;
                }
                Err(wire::MalformedRequest { unique: None }) => return Err(Errno::PROTO.into()),
            }
        }
        Ok(())
    }

    fn dispatch(
        self: &Arc<Self>,
        handler: &impl RequestHandler,
        header: RequestHeader,
        operation: Operation<'_>,
    ) {
        match operation {
            Operation::Forget { count } => handler.forget(header.node, count),
            Operation::BatchForget { nodes } => {
                forgets(nodes).for_each(|(node, count)| handler.forget(node, count));
            }
            Operation::Interrupt { unique } => self.interrupt(handler, header, unique),
            operation => {
                let any_signal = matches!(operation, Operation::SetLock { wait: true, .. });
                let reply = self.expect(header, any_signal);
                handler.handle(header, operation, reply);
            }
        }
    }

    /// Whether any program waits for an answer.
    fn expect(self: &Arc<Self>, header: RequestHeader, any_signal: bool) -> KernelReply {
        self.waiting.lock().insert(header.unique, Waiting { pid: header.pid, any_signal });
        KernelReply { channel: Some(self.clone()), unique: header.unique }
    }

    /// Handles a signal to a waiting program. Most signals may wait, as on a local disk; SIGKILL
    /// may not.
    fn interrupt(self: &Arc<Self>, handler: &impl RequestHandler, header: RequestHeader, unique: u64) {
        let Some(waiting) = self.waiting.lock().get(&unique).copied() else {
            // The interrupt arrived before its request, or after the answer. EAGAIN makes the
            // kernel send it again if needed.
            let _ = self.write(header.unique, Errno::AGAIN.raw_os_error(), &[]);
            return;
        };
        if waiting.any_signal {
            self.answer(unique, Errno::INTR.raw_os_error(), &[]);
            return;
        }
        let channel = self.clone();
        handler.spawn(async move {
            while channel.waiting.lock().contains_key(&unique) {
                if is_killed(waiting.pid) {
                    channel.answer(unique, Errno::INTR.raw_os_error(), &[]);
                    return;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
    }
}

/// Returns a buffer for requests.
fn request_memory() -> Vec<u8> {
    vec![0; WRITE_MAX + 3 * PAGE]
}

/// Returns where requests begin in it, so that the data of writes is page-aligned. The kernel
/// copies page by page, and partial pages take twice the work.
fn request_start(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE).min(PAGE) + PAGE - WRITE_HEAD
}

/// Whether SIGKILL is pending for this thread.
fn is_killed(pid: u32) -> bool {
    // The program name in it need not be UTF-8.
    let Ok(status) = std::fs::read(format!("/proc/{pid}/status")) else { return false };
    String::from_utf8_lossy(&status).lines().any(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILLED != 0)
    })
}

/// The answer to one request. Dropping it without an answer sends an error.
#[derive(Debug)]
pub(crate) struct KernelReply {
    channel: Option<Arc<FuseChannel>>,
    unique: u64,
}

impl KernelReply {
    fn send(mut self, errno: i32, parts: &[&[u8]]) -> bool {
        self.channel.take().is_some_and(|channel| channel.answer(self.unique, errno, parts))
    }

    /// Whether a program still waits for the answer.
    pub(crate) fn is_wanted(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.waiting.lock().contains_key(&self.unique))
    }

    pub(crate) fn ok(self) {
        self.send(0, &[]);
    }

    pub(crate) fn bytes(self, bytes: &[u8]) {
        self.send(0, &[bytes]);
    }

    /// As [`Self::bytes`], for an answer with a reference that the kernel will release later.
    /// Returns false if the kernel did not accept it, because the program was killed; then it will
    /// release nothing.
    #[must_use]
    pub(crate) fn naming(self, bytes: &[u8]) -> bool {
        self.send(0, &[bytes])
    }

    pub(crate) fn error(self, errno: Errno) {
        self.send(errno.raw_os_error(), &[]);
    }
}

impl Drop for KernelReply {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            channel.answer(self.unique, Errno::IO.raw_os_error(), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_request_has_no_answer() {
        let (ours, mut kernel) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let device = File::from(OwnedFd::from(ours));
        let channel = Arc::new(FuseChannel { device, waiting: Mutex::default() });
        let wait = |unique| {
            channel.waiting.lock().insert(unique, Waiting { pid: 1, any_signal: true });
            KernelReply { channel: Some(channel.clone()), unique }
        };
        let (killed, other) = (wait(2), wait(4));
        assert!(channel.answer(2, Errno::INTR.raw_os_error(), &[]));
        assert!(!killed.naming(b"a handle"), "nobody will let go of it");
        assert!(other.naming(b"another"));
        drop(channel);
        let mut answers = Vec::new();
        kernel.read_to_end(&mut answers).expect("answers");
        assert_eq!(answers.len(), 2 * HEADER_BYTES + b"another".len());
    }

    #[test]
    fn kernel_without_acl_checks_is_refused_if_needed() {
        for (flags, checks, taken) in [(0, false, true), (0, true, false), (LISTS, true, true)] {
            let (ours, mut kernel) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let mut init = Vec::new();
            for word in [56, 26, 7, 0, 1, 0, 0, 0, 0, 0, 7, 31, 1 << 17, flags] {
                init.extend(u32::to_ne_bytes(word));
            }
            kernel.write_all(&init).expect("a request");
            let opened = FuseChannel::open(OwnedFd::from(ours), checks);
            assert_eq!(opened.is_ok(), taken, "{flags:x} {checks}");
            drop(opened);
            let mut answer = Vec::new();
            kernel.read_to_end(&mut answer).expect("an answer");
            assert_eq!(answer[4..8] == [0; 4], taken, "{flags:x} {checks}");
        }
    }

    #[test]
    fn write_data_is_page_aligned_and_fits() {
        let memory = request_memory();
        let start = request_start(&memory);
        assert_eq!(memory[start + WRITE_HEAD..].as_ptr().align_offset(PAGE), 0);
        assert!(memory.len() - start >= REQUEST_MAX as usize + PAGE);
    }

    #[test]
    fn live_thread_is_not_reported_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(0));
    }
}
