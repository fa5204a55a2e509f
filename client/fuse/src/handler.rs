//! Requests of the kernel, answered from nodes at once or in a task of their own.
//!
//! Does: converts inode numbers to nodes, requests to calls, and results to answers.
//! Does not: check permissions; the metadata server does, or on a mount for many users the kernel,
//! by the attributes that it gets.
//! Contract: a write is answered when its bytes are in memory. A flush is answered when they are on
//! the devices, or for an asynchronous close when storing has begun. An fsync is answered when they
//! are durable.
//! Truth: docs/adr/0037-fuse-mount.md; docs/adr/0051-asynchronous-close.md.

use core::ops::Range;
use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use sealstone_client::nodes::{Nodes, SeekTarget};
use sealstone_client::{ClientError, errno};
use sealstone_mds_protocol::Access;
use sealstone_mds_protocol::{
    LOCK_TO_END, LinkTarget, Lock, LockKind, Node, NodeChange, NodeKind, RenameMode, SetTime, XattrMode,
    XattrName, XattrValue,
};

use crate::acl::{is_list, to_kernel};
use crate::attributes::nanoseconds;
use crate::directory::OpenDirectory;
use crate::id_map::IdMap;
use crate::kernel::{
    AnswerFields, Changes, KernelReply, KernelTime, LockRequest, Operation, RequestHandler, RequestHeader,
    WriteTarget,
};
use crate::lock_owners::LockOwners;
use crate::mount_state::{MountState, RequestUser, name};
use crate::pages::KernelPages;
use crate::set_ids::SetIdFiles;
use crate::table::{self, HandleTable};

/// Bytes of a block in `statfs`.
const BLOCK: u64 = 4096;
/// The kind of file in the mode bits of mknod, and the kinds.
const S_IFMT: u32 = 0o170_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFREG: u32 = 0o100_000;
const S_IFSOCK: u32 = 0o140_000;
/// Flags of renameat2.
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
/// Flags of setxattr.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// Kinds of locks, and the last byte of one that extends to the end.
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Targets of lseek.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// First and longest pause between requests for a lock that is being waited for; the pause doubles.
const LOCK_PAUSE_MIN: Duration = Duration::from_millis(5);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// An attribute that the kernel reads before every write; file capabilities are not supported.
const CAPABILITY: &str = "security.capability";

/// A mounted file system.
pub(crate) struct MountHandler {
    inner: Arc<MountState>,
}

/// Unwraps a result, or answers with its error and returns.
macro_rules! or_reply {
    ($reply:ident, $outcome:expr) => {
        match $outcome {
            Ok(value) => value,
            Err(error) => return $reply.error(error),
        }
    };
}

impl MountHandler {
    pub(crate) fn new(nodes: Nodes, root: Node, id_map: IdMap, pages: Arc<KernelPages>) -> Self {
        let attr_timeout = nodes.options().attr_timeout;
        let inner = MountState {
            nodes,
            table: table::NodeTable::new(root),
            files: HandleTable::new(),
            directories: HandleTable::new(),
            id_map,
            attr_timeout,
            pages,
            set_ids: SetIdFiles::default(),
            lock_owners: LockOwners::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Polls the answer to a request once on this thread, which often completes it, and runs the
    /// rest in a task.
    fn task<F: Future<Output = ()> + Send + 'static>(&self, answer: impl FnOnce(Arc<MountState>) -> F) {
        let mut answer = Box::pin(answer(self.inner.clone()));
        // The task polls again, and is the one that is woken.
        let mut context = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(&mut context)));
        match polled {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => self.inner.nodes.spawn(answer),
            // The dropped reply has answered the request; serving continues.
            Err(_) => tracing::error!("handler of a kernel request panicked; the request failed with EIO"),
        }
    }
}

impl RequestHandler for MountHandler {
    fn handle(&self, header: RequestHeader, operation: Operation<'_>, reply: KernelReply) {
        let node = header.node;
        if self.is_unknown_caller(&header) && acts_for_caller(&operation) {
            return reply.error(Errno::ACCESS);
        }
        match operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::GetAttr => self.get_attributes(node, reply),
            Operation::SetAttr(changes) => self.set_attributes(node, changes, reply),
            Operation::ReadLink => self.read_link(node, reply),
            Operation::Symlink { name, target } => match LinkTarget::new(target) {
                Ok(target) => self.make(&header, name, NodeKind::Symlink(target), (0o777, 0), reply),
                Err(_) => reply.error(Errno::NAMETOOLONG),
            },
            Operation::MakeNode { name, mode, umask, rdev } => {
                let what = match mode & S_IFMT {
                    0 | S_IFREG => NodeKind::File,
                    S_IFIFO => NodeKind::Fifo,
                    S_IFSOCK => NodeKind::Socket,
                    S_IFCHR => NodeKind::CharDevice(rdev),
                    S_IFBLK => NodeKind::BlockDevice(rdev),
                    _ => return reply.error(Errno::INVAL),
                };
                self.make(&header, name, what, (mode, umask), reply);
            }
            Operation::MakeDirectory { name, mode, umask } => {
                self.make(&header, name, NodeKind::Directory, (mode, umask), reply);
            }
            Operation::Unlink { name } => self.remove(node, name, false, reply),
            Operation::RemoveDirectory { name } => self.remove(node, name, true, reply),
            Operation::Rename { from, to_parent, to, flags } => {
                self.rename((node, from), (to_parent, to), flags, reply);
            }
            Operation::Link { node: linked, name } => self.link(header, linked, name, reply),
            Operation::Open { flags, kills } => self.open(node, (flags, kills), reply),
            Operation::Create { name, mode, umask, flags } => {
                self.create(&header, name, (mode, umask), flags, reply);
            }
            Operation::Read { handle, offset, size } => self.read(handle, offset, size, reply),
            Operation::Write { handle, offset, data, kills, appends, synchronous } => {
                self.write(WriteTarget { node, handle, offset, kills, appends, synchronous }, data, reply);
            }
            Operation::Flush { handle, owner } => self.flush(node, handle, owner, reply),
            Operation::Fsync { handle } => self.fsync(handle, reply),
            Operation::Release { handle, owner, unlock } => {
                let file = self.inner.files.remove(handle);
                // For OFD locks this is the only notice.
                let mut owners = self.inner.lock_owners.release(node, handle);
                if unlock && !owners.contains(&owner) {
                    owners.push(owner);
                }
                match file.filter(|_| !owners.is_empty()) {
                    None => reply.ok(),
                    Some(file) => self.task(|inner| async move {
                        let mut outcome = Ok(());
                        for owner in owners {
                            outcome = outcome.and(inner.nodes.unlock_all(file.node(), owner).await);
                        }
                        answer(reply, outcome);
                    }),
                }
            }
            Operation::OpenDirectory => {
                let (ino, node) = (node, or_reply!(reply, self.inner.node(node)));
                let kept = self.inner.pages.listings.open(ino, self.inner.nodes.edition(node));
                let (list, flags) = kept.unzip();
                let handle = self.inner.directories.insert(OpenDirectory::new(&self.inner.nodes, node, list));
                if !reply.naming(AnswerFields::default().open(handle, flags.unwrap_or(0)).as_bytes()) {
                    drop(self.inner.directories.remove(handle));
                    if flags.is_some() {
                        self.inner.pages.listings.close(ino);
                    }
                }
            }
            Operation::ReadDirectory { handle, offset, size, plus } => {
                self.read_directory(node, handle, (offset, size, plus), reply);
            }
            Operation::ReleaseDirectory { handle } => {
                if self.inner.directories.remove(handle).is_some_and(|directory| directory.is_kept()) {
                    self.inner.pages.listings.close(node);
                }
                reply.ok();
            }
            // Directory fsync covers local changes of names, and files that were closed
            // asynchronously; programs expect everything below it to be stored.
            Operation::FsyncDirectory => {
                self.task(|inner| async move { answer(reply, inner.nodes.sync_all().await) });
            }
            Operation::StatFs => self.file_system(node, reply),
            Operation::SetXattr { name, value, flags } => self.set_xattr(node, name, (value, flags), reply),
            Operation::GetXattr { name, size } => self.get_xattr(node, name, size, reply),
            Operation::ListXattr { size } => self.list_xattr(node, size, reply),
            Operation::RemoveXattr { name } => self.remove_xattr(node, name, reply),
            Operation::Allocate { handle, offset, length, mode } => {
                // The request does not say whether the caller may keep the set-user-ID bits.
                let kills = header.uid != 0;
                self.task(move |inner| async move {
                    match inner.allocate((handle, kills), offset, length, mode as i32).await {
                        Ok(()) => reply.ok(),
                        Err(error) => reply.error(error),
                    }
                });
            }
            Operation::Seek { handle, offset, whence } => self.seek(handle, offset, whence, reply),
            Operation::Destroy => reply.ok(),
            Operation::GetLock(request) => self.test_lock(node, request, reply),
            Operation::SetLock { request, wait } => self.lock(node, request, wait, reply),
            // The kernel then works without it: it copies ranges through memory, for instance.
            Operation::Other { .. } => reply.error(Errno::NOSYS),
            // These have no answer, or are handled before.
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Interrupt { .. }
            | Operation::Init { .. } => reply.error(Errno::PROTO),
        }
    }

    fn write_whole(
        &self,
        to: WriteTarget,
        memory: Vec<u8>,
        part: Range<usize>,
        reply: KernelReply,
    ) -> Vec<u8> {
        if to.appends || (to.kills && self.inner.set_ids.may_have(to.node)) {
            self.write(to, &memory[part], reply);
            return memory;
        }
        let memory = match self.inner.file(to.handle) {
            Ok(file) => match file.try_write_whole(to.offset, memory, part.clone()) {
                Ok(other) => {
                    reply.bytes(AnswerFields::count(part.len() as u32).as_bytes());
                    return other;
                }
                Err(memory) => memory,
            },
            Err(error) => {
                reply.error(error);
                return memory;
            }
        };
        self.write(to, &memory[part], reply);
        memory
    }

    fn forget(&self, node: u64, count: u64) {
        if self.inner.table.forget(node, count) {
            self.inner.pages.listings.forget(node);
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner.nodes.spawn(task);
    }

    fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.inner.nodes.enter()
    }
}

impl MountHandler {
    /// Whether the caller has a number for unknown accounts: the kernel would treat it as owner of
    /// their files.
    fn is_unknown_caller(&self, header: &RequestHeader) -> bool {
        let id_map = &self.inner.id_map;
        id_map.mounter().others && (id_map.is_unknown_uid(header.uid) || id_map.is_unknown_gid(header.gid))
    }

    fn lookup(&self, parent: u64, entry: &OsStr, reply: KernelReply) {
        let entry = or_reply!(reply, name(entry));
        let parent = or_reply!(reply, self.inner.node(parent));
        self.task(|inner| async move {
            match inner.nodes.lookup(parent, &entry).await {
                // A missing name is cached as long as an existing one.
                Err(error) if error.is_not_found() && !inner.attr_timeout.is_zero() => {
                    let cache_time = (inner.attr_timeout, inner.attr_timeout);
                    reply.bytes(AnswerFields::default().entry(None, cache_time).as_bytes());
                }
                outcome => inner.answer_entry(reply, outcome),
            }
        });
    }

    fn get_attributes(&self, ino: u64, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        self.task(|inner| async move {
            match inner.nodes.node(node).await {
                Ok(stat) => {
                    // Reads request the attributes first, so no older page is left then.
                    inner.pages.clean(ino).await;
                    let cache_time = inner.nodes.attr_validity(stat.inode);
                    reply.bytes(AnswerFields::attr(&inner.attr(&stat), cache_time).as_bytes());
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn set_attributes(&self, ino: u64, changes: Changes, reply: KernelReply) {
        let set = |when: KernelTime| nanoseconds(when).map_or(SetTime::Now, SetTime::At);
        let change = NodeChange {
            mode: changes.mode.map(|mode| (mode & 0o7777) as u16),
            size: changes.size,
            atime: changes.atime.map(set),
            mtime: changes.mtime.map(set),
            ..NodeChange::default()
        };
        let (who, handle) = ((changes.uid, changes.gid), changes.handle);
        self.task(|inner| async move {
            match inner.change_owner(ino, who, change, (handle, changes.kills)).await {
                Ok(stat) => {
                    let cache_time = inner.nodes.attr_validity(stat.inode);
                    reply.bytes(AnswerFields::attr(&inner.attr(&stat), cache_time).as_bytes());
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn read_link(&self, ino: u64, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        self.task(|inner| async move {
            match inner.nodes.read_link(node).await {
                Ok(target) => reply.bytes(target.as_bytes()),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn make(
        &self,
        header: &RequestHeader,
        entry: &OsStr,
        what: NodeKind,
        modes: (u32, u32),
        reply: KernelReply,
    ) {
        let entry = or_reply!(reply, name(entry));
        let parent = or_reply!(reply, self.inner.node(header.node));
        let who = RequestUser::from(header);
        self.task(|inner| async move {
            let made = inner.make(who, parent, &entry, what, modes).await;
            inner.answer_entry(reply, made);
        });
    }

    fn remove(&self, parent: u64, entry: &OsStr, directory: bool, reply: KernelReply) {
        let entry = or_reply!(reply, name(entry));
        let parent = or_reply!(reply, self.inner.node(parent));
        self.task(|inner| async move {
            answer(reply, inner.nodes.remove(parent, &entry, directory).await);
        });
    }

    fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32, reply: KernelReply) {
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::INVAL),
        };
        let (old, new) = (or_reply!(reply, name(from.1)), or_reply!(reply, name(to.1)));
        let from = or_reply!(reply, self.inner.node(from.0));
        let to = or_reply!(reply, self.inner.node(to.0));
        self.task(|inner| async move {
            answer(reply, inner.nodes.rename((from, &old), (to, &new), mode).await);
        });
    }

    fn link(&self, header: RequestHeader, ino: u64, new: &OsStr, reply: KernelReply) {
        let new = or_reply!(reply, name(new));
        let node = or_reply!(reply, self.inner.node(ino));
        let parent = or_reply!(reply, self.inner.node(header.node));
        self.task(move |inner| async move {
            or_reply!(reply, inner.needs_link(header, node).await);
            let linked = inner.nodes.link(node, parent, &new).await;
            inner.answer_entry(reply, linked);
        });
    }

    fn open(&self, ino: u64, (flags, kills): (i32, bool), reply: KernelReply) {
        self.task(move |inner| async move {
            match inner.open(ino, flags, kills).await {
                Ok((handle, flags)) => {
                    if !reply.naming(AnswerFields::default().open(handle, flags).as_bytes()) {
                        drop(inner.files.remove(handle));
                    }
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn create(
        &self,
        header: &RequestHeader,
        entry: &OsStr,
        modes: (u32, u32),
        flags: i32,
        reply: KernelReply,
    ) {
        let entry = or_reply!(reply, name(entry));
        let (who, parent) = (RequestUser::from(header), header.node);
        self.task(|inner| async move {
            match inner.create(who, parent, &entry, modes, flags).await {
                Ok((stat, handle, flags)) => {
                    let entry =
                        AnswerFields::default().entry(Some(&inner.attr(&stat)), inner.cache_time(&stat));
                    if !reply.naming(entry.open(handle, flags).as_bytes()) {
                        drop(inner.files.remove(handle));
                        inner.table.forget(inner.table.ino(stat.node()), 1);
                    }
                }
                Err(error) => reply.error(error),
            }
        });
    }

    fn read(&self, handle: u64, offset: u64, size: u32, reply: KernelReply) {
        let file = or_reply!(reply, self.inner.file(handle));
        self.task(|_| async move {
            match file.read(offset, size as usize).await {
                Ok(bytes) => reply.bytes(&bytes),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn seek(&self, handle: u64, offset: u64, whence: u32, reply: KernelReply) {
        let file = or_reply!(reply, self.inner.file(handle));
        let what = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        self.task(|_| async move {
            match file.seek(offset, what).await {
                Ok(Some(at)) => reply.bytes(AnswerFields::offset(at).as_bytes()),
                Ok(None) => reply.error(Errno::NXIO),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(&self, to: WriteTarget, data: &[u8], reply: KernelReply) {
        let WriteTarget { node, handle, offset, kills, appends, .. } = to;
        let file = or_reply!(reply, self.inner.file(handle));
        let written = AnswerFields::count(data.len() as u32);
        let kills = kills && self.inner.set_ids.may_have(node);
        if appends && !kills {
            match file.try_append(data) {
                Ok(Some(at)) => return self.inner.appended(node, (offset, at), data.len(), reply),
                Ok(None) => {}
                Err(error) => return reply.error(errno(&error)),
            }
        }
        if appends || kills {
            let data = data.to_vec();
            return self.task(move |inner| async move {
                if kills {
                    or_reply!(reply, inner.take_set_ids(node).await);
                }
                if appends {
                    return match file.append(&data).await {
                        Ok(at) => inner.appended(node, (offset, at), data.len(), reply),
                        Err(error) => reply.error(errno(&error)),
                    };
                }
                match file.write(offset, &data).await {
                    Ok(()) => reply.bytes(written.as_bytes()),
                    Err(error) => reply.error(errno(&error)),
                }
            });
        }
        // If memory is available no task is needed, and the bytes are copied once.
        match file.try_write(offset, data) {
            Ok(true) => reply.bytes(written.as_bytes()),
            Ok(false) => {
                let data = data.to_vec();
                self.task(|_| async move {
                    match file.write(offset, &data).await {
                        Ok(()) => reply.bytes(written.as_bytes()),
                        Err(error) => reply.error(errno(&error)),
                    }
                });
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&self, ino: u64, handle: u64, owner: u64, reply: KernelReply) {
        let file = or_reply!(reply, self.inner.file(handle));
        // `unlock_all` below releases this owner's locks of all open files.
        self.inner.lock_owners.flush(ino, owner);
        self.task(|inner| async move {
            if file.access() == Access::Read {
                return answer(reply, inner.nodes.unlock_all(file.node(), owner).await);
            }
            if let Some(closing) = file.begin_async_close() {
                // The file has no locks.
                reply.ok();
                file.finish_async_close(closing).await;
                inner.table.pages_are_of(ino, file.version());
                return;
            }
            let flushed = file.flush().await;
            // The kernel's pages have the bytes that were written, so its next open may keep them.
            inner.table.pages_are_of(ino, file.version());
            // POSIX: closing any descriptor of a file releases the process's locks on it.
            let unlocked = inner.nodes.unlock_all(file.node(), owner).await;
            answer(reply, flushed.and(unlocked));
        });
    }

    fn lock(&self, ino: u64, request: LockRequest, wait: bool, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        let lock = or_reply!(reply, lock_of(&request));
        self.task(|inner| async move {
            let mut pause = LOCK_PAUSE_MIN;
            loop {
                match inner.nodes.lock(node, lock).await {
                    Ok(None) => {
                        if lock.kind != LockKind::Unlock {
                            inner.lock_owners.insert(ino, request.handle, lock.owner);
                            inner.revalidate(ino, node).await;
                        }
                        // The waiting program was interrupted and does not know of the lock.
                        if !reply.naming(&[]) && lock.kind != LockKind::Unlock {
                            let back = Lock { kind: LockKind::Unlock, ..lock };
                            drop(inner.nodes.lock(node, back).await);
                        }
                        return;
                    }
                    Ok(Some(_)) if !wait => return reply.error(Errno::AGAIN),
                    Ok(Some(_)) => {}
                    Err(error) => return reply.error(errno(&error)),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOCK_PAUSE_MAX);
                if !reply.is_wanted() {
                    return;
                }
            }
        });
    }

    fn test_lock(&self, ino: u64, request: LockRequest, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        let lock = or_reply!(reply, lock_of(&request));
        self.task(|inner| async move {
            match inner.nodes.test_lock(node, lock).await {
                Ok(None) => {
                    reply.bytes(AnswerFields::lock(request.start, request.end, F_UNLCK, 0).as_bytes())
                }
                Ok(Some(held)) => {
                    let kind = if held.kind == LockKind::Read { F_RDLCK } else { F_WRLCK };
                    let end = if held.end == LOCK_TO_END { OFFSET_MAX } else { held.end - 1 };
                    reply.bytes(AnswerFields::lock(held.start, end, kind, held.pid).as_bytes());
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn fsync(&self, handle: u64, reply: KernelReply) {
        let file = or_reply!(reply, self.inner.file(handle));
        self.task(|_| async move { answer(reply, file.sync().await) });
    }

    fn read_directory(
        &self,
        ino: u64,
        handle: u64,
        (offset, size, plus): (u64, u32, bool),
        reply: KernelReply,
    ) {
        let directory = or_reply!(reply, self.inner.directories.get(handle).ok_or(Errno::BADF));
        self.task(|inner| async move {
            let over = directory.begin(&inner.nodes, &inner.pages.listings, (ino, offset == 0));
            inner.answer_entries(ino, &directory, (offset, size, plus), reply).await;
            if over || directory.is_over(&inner.nodes) {
                inner.pages.drop_soon(ino);
            }
        });
    }

    fn file_system(&self, ino: u64, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        self.task(|inner| async move {
            match inner.nodes.file_system(node).await {
                Ok(stat) => {
                    let free = stat.total.saturating_sub(stat.used) / BLOCK;
                    let nodes = (stat.nodes.saturating_add(stat.nodes_free), stat.nodes_free);
                    let answer = AnswerFields::file_system((stat.total / BLOCK, free), nodes, BLOCK as u32);
                    reply.bytes(answer.as_bytes());
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn set_xattr(&self, ino: u64, attribute: &OsStr, (value, flags): (&[u8], u32), reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        let list = is_list(attribute);
        let attribute = or_reply!(reply, xattr_name(attribute));
        if list {
            let value = value.to_vec();
            return self.task(|inner| async move {
                match inner.set_list(node, attribute, &value).await {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(error),
                }
            });
        }
        let value = or_reply!(reply, XattrValue::new(value).map_err(|_| Errno::TOOBIG));
        let mode = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        self.task(|inner| async move {
            answer(reply, inner.nodes.set_xattr(node, attribute, value, mode).await);
        });
    }

    fn get_xattr(&self, ino: u64, attribute: &OsStr, size: u32, reply: KernelReply) {
        if attribute == CAPABILITY {
            return reply.error(Errno::NODATA);
        }
        let node = or_reply!(reply, self.inner.node(ino));
        let list = is_list(attribute);
        let attribute = or_reply!(reply, xattr_name(attribute));
        self.task(|inner| async move {
            if list {
                return match inner.list(node, attribute).await {
                    Ok(Some(acl)) => answer_xattr(reply, &to_kernel(&acl, &inner.id_map), size),
                    Ok(None) => reply.error(Errno::NODATA),
                    Err(error) => reply.error(error),
                };
            }
            match inner.nodes.xattr(node, attribute).await {
                Ok(value) => answer_xattr(reply, value.as_bytes(), size),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn list_xattr(&self, ino: u64, size: u32, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        self.task(|inner| async move {
            match inner.nodes.xattrs(node).await {
                Ok(names) => {
                    let mut all = Vec::new();
                    for name in names {
                        all.extend_from_slice(name.as_bytes());
                        all.push(0);
                    }
                    answer_xattr(reply, &all, size);
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn remove_xattr(&self, ino: u64, attribute: &OsStr, reply: KernelReply) {
        let node = or_reply!(reply, self.inner.node(ino));
        let attribute = or_reply!(reply, xattr_name(attribute));
        self.task(|inner| async move {
            answer(reply, inner.nodes.remove_xattr(node, attribute).await);
        });
    }
}

/// Whether an operation opens or changes something with the rights of its caller.
const fn acts_for_caller(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::SetAttr(_)
            | Operation::ReadLink
            | Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Open { .. }
            | Operation::OpenDirectory
            | Operation::Create { .. }
            | Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::RemoveXattr { .. }
    )
}

/// Returns a lock in the protocol's form, whose end is exclusive.
pub(crate) fn lock_of(request: &LockRequest) -> Result<Lock, Errno> {
    let kind = match request.kind {
        F_RDLCK => LockKind::Read,
        F_WRLCK => LockKind::Write,
        F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::INVAL),
    };
    let (start, end) = match request.whole {
        true => (0, LOCK_TO_END),
        false if request.end >= OFFSET_MAX => (request.start, LOCK_TO_END),
        false => (request.start, request.end + 1),
    };
    Ok(Lock { kind, whole: request.whole, start, end, owner: request.owner, pid: request.pid })
}

pub(crate) fn xattr_name(name: &OsStr) -> Result<XattrName, Errno> {
    XattrName::new(std::os::unix::ffi::OsStrExt::as_bytes(name)).map_err(|_| Errno::RANGE)
}

fn answer(reply: KernelReply, outcome: Result<(), ClientError>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers a request for an attribute: with its length, if `size` is 0, or with its bytes.
fn answer_xattr(reply: KernelReply, value: &[u8], size: u32) {
    let length = value.len() as u32;
    if size == 0 {
        reply.bytes(AnswerFields::count(length).as_bytes());
    } else if length > size {
        reply.error(Errno::RANGE);
    } else {
        reply.bytes(value);
    }
}
