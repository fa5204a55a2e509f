//! State that all requests of a mount share, and operations of several server calls: open, create,
//! append, access control lists, directory reads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use sealstone_client::nodes::{CreateParams, File, Nodes};
use sealstone_client::{ClientError, errno};
use sealstone_mds_protocol::{
    ACL_ACCESS, ACL_NAMES_MAX, Access, Acl, ErrorCode, Failure, FileKind, Name, Stat, XattrMode, XattrName,
    XattrValue,
};
use sealstone_mds_protocol::{Node, NodeChange, NodeKind};

use crate::acl::from_kernel;
use crate::attributes::{attributes, kind_number};
use crate::directory::{DOTS, OpenDirectory, ShownEntry};
use crate::id_map::IdMap;
use crate::kernel::{
    AnswerFields, Attributes, DIRECT_IO, EntryBuffer, KEEP_CACHE, KernelReply, O_APPEND, RequestHeader,
};
use crate::link_rights::{LinkCaller, may_link};
use crate::lock_owners::LockOwners;
use crate::pages::KernelPages;
use crate::set_ids::{SetIdFiles, without};
use crate::table::{self, HandleTable};

/// Open flags that are handled here.
const O_ACCMODE: i32 = 3;
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
/// Modes of fallocate.
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;

/// State that all requests share.
pub(crate) struct MountState {
    pub(crate) nodes: Nodes,
    pub(crate) table: table::NodeTable,
    pub(crate) files: HandleTable<File>,
    pub(crate) directories: HandleTable<OpenDirectory>,
    pub(crate) id_map: IdMap,
    pub(crate) attr_timeout: Duration,
    pub(crate) pages: Arc<KernelPages>,
    pub(crate) set_ids: SetIdFiles,
    pub(crate) lock_owners: LockOwners,
}

/// Parses a name from the kernel.
pub(crate) fn name(name: &OsStr) -> Result<Name, Errno> {
    Name::new(name.as_bytes()).map_err(|error| errno(&ClientError::Name(error)))
}

impl MountState {
    pub(crate) fn node(&self, ino: u64) -> Result<Node, Errno> {
        self.table.node(ino).ok_or(Errno::STALE)
    }

    pub(crate) fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.files.get(handle).ok_or(Errno::BADF)
    }

    pub(crate) fn attr(&self, stat: &Stat) -> Attributes {
        self.sent_attributes(self.table.ino(stat.node()), stat)
    }

    /// Returns the attributes to send for a node with a known inode number, and records them.
    fn sent_attributes(&self, ino: u64, stat: &Stat) -> Attributes {
        self.set_ids.note(ino, stat);
        self.table.note_sent(ino, stat);
        attributes(ino, stat, &self.id_map)
    }

    /// Removes the set-user-ID and set-group-ID bits before another user changes the file.
    pub(crate) async fn take_set_ids(&self, ino: u64) -> Result<(), Errno> {
        if !self.set_ids.may_have(ino) {
            return Ok(());
        }
        let node = self.node(ino)?;
        // Removed first: attributes that are sent from here on are recorded again.
        self.set_ids.drop(ino);
        let taken = async {
            let stat = self.nodes.node(node).await?;
            let mode = without(stat.mode);
            if mode != stat.mode {
                let change = NodeChange { mode: Some(mode), ..NodeChange::default() };
                self.nodes.set(node, change, false).await?;
            }
            Ok(())
        };
        let outcome: Result<(), ClientError> = taken.await;
        match outcome {
            Ok(()) => self.pages.invalidate_attributes(ino),
            Err(_) => self.set_ids.add(ino),
        }
        outcome.map_err(|error| errno(&error))
    }

    /// Returns how long a name and its node's attributes may be cached.
    pub(crate) fn cache_time(&self, stat: &Stat) -> (Duration, Duration) {
        (self.attr_timeout, self.nodes.attr_validity(stat.inode))
    }

    /// Answers with a node, which adds a reference of the kernel.
    pub(crate) fn entry(&self, reply: KernelReply, stat: &Stat) {
        let ino = self.table.count(stat);
        let attributes = self.sent_attributes(ino, stat);
        if !reply.naming(AnswerFields::default().entry(Some(&attributes), self.cache_time(stat)).as_bytes()) {
            self.table.forget(ino, 1);
        }
    }

    pub(crate) fn answer_entry(&self, reply: KernelReply, outcome: Result<Stat, ClientError>) {
        match outcome {
            Ok(stat) => self.entry(reply, &stat),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create_params(
        &self,
        request: &RequestUser,
        what: NodeKind,
        (mode, umask): (u32, u32),
    ) -> CreateParams {
        let (owner, group) = self.id_map.new_node_owner(request.uid, request.gid);
        CreateParams { what, mode: (mode & 0o7777) as u16, umask: (umask & 0o777) as u16, owner, group }
    }

    fn opened(&self, file: File, stat: &Stat, open_flags: i32) -> (u64, u32) {
        let ino = self.table.ino(file.node());
        if self.table.has_other_attributes(ino, stat) {
            // The kernel may still cache the attributes of the lookup, which limit where a read
            // ends.
            self.pages.invalidate_attributes(ino);
        }
        let kept = if self.table.pages_are_of(ino, Some(stat.version)) { KEEP_CACHE } else { 0 };
        // Through the page cache the kernel splits an append at page boundaries, and writes at an
        // end that may be old.
        let direct = if open_flags as u32 & O_APPEND != 0 { DIRECT_IO } else { 0 };
        (self.files.insert(file), kept | direct)
    }

    /// Opens a file. `kills`: truncating it removes its set-user-ID and set-group-ID bits.
    pub(crate) async fn open(&self, ino: u64, flags: i32, kills: bool) -> Result<(u64, u32), Errno> {
        let node = self.node(ino)?;
        let mode = flags & O_ACCMODE;
        let access = if mode == O_RDONLY { Access::Read } else { Access::Update };
        let opened = match self.nodes.open(node, access).await {
            // A caller that only writes may have only that right. Otherwise both are requested,
            // since other programs may read it.
            Err(ClientError::Refused(failure)) if failure.code.is_denial() && mode == O_WRONLY => {
                self.nodes.open(node, Access::Write).await
            }
            opened => opened,
        };
        let (file, stat) = opened.map_err(|error| errno(&error))?;
        self.pages.clean(ino).await;
        if kills && flags & O_TRUNC != 0 {
            self.take_set_ids(ino).await?;
        }
        if flags & O_TRUNC != 0 && access != Access::Read && stat.size > 0 {
            let change = NodeChange { size: Some(0), ..NodeChange::default() };
            let stat = self.nodes.set(node, change, true).await.map_err(|error| errno(&error))?;
            return Ok(self.opened(file, &stat, flags));
        }
        Ok(self.opened(file, &stat, flags))
    }

    pub(crate) async fn create(
        &self,
        user: RequestUser,
        parent: u64,
        name: &Name,
        modes: (u32, u32),
        flags: i32,
    ) -> Result<(Stat, u64, u32), Errno> {
        let parent = self.node(parent)?;
        let create_params = || self.create_params(&user, NodeKind::File, modes);
        let made = match self.nodes.create(parent, name, create_params()).await {
            Err(error) if self.by_number(&error, Some(user.uid), Some(user.gid)) => {
                self.nodes.create(parent, name, create_params()).await
            }
            outcome => outcome,
        };
        match made {
            Ok((stat, file)) => {
                self.table.count(&stat);
                let (handle, flags) = self.opened(file, &stat, flags);
                Ok((stat, handle, flags))
            }
            // It was created by another client meanwhile: open it, unless the caller requires a new
            // file.
            Err(ClientError::Refused(failure))
                if failure.code == ErrorCode::Exists && flags & O_EXCL == 0 =>
            {
                // The kernel takes the file in this answer as created by the caller and checks no
                // rights. If the kernel does the checks, ESTALE makes it look up the name again.
                if self.id_map.mounter().others {
                    return Err(Errno::STALE);
                }
                let stat = self.nodes.lookup(parent, name).await.map_err(|error| errno(&error))?;
                let ino = self.table.count(&stat);
                match self.open(ino, flags, user.uid != 0).await {
                    Ok((handle, flags)) => Ok((stat, handle, flags)),
                    Err(error) => {
                        self.table.forget(ino, 1);
                        Err(error)
                    }
                }
            }
            Err(error) => Err(errno(&error)),
        }
    }

    /// Whether to retry with numeric names, because the server does not know a name.
    fn by_number(&self, error: &ClientError, uid: Option<u32>, gid: Option<u32>) -> bool {
        error.is_not_found() && self.id_map.by_number(uid, gid)
    }

    pub(crate) async fn make(
        &self,
        user: RequestUser,
        parent: Node,
        name: &Name,
        what: NodeKind,
        modes: (u32, u32),
    ) -> Result<Stat, ClientError> {
        match self.nodes.create_node(parent, name, self.create_params(&user, what.clone(), modes)).await {
            Err(error) if self.by_number(&error, Some(user.uid), Some(user.gid)) => {
                self.nodes.create_node(parent, name, self.create_params(&user, what, modes)).await
            }
            outcome => outcome,
        }
    }

    /// Returns the access control list in an attribute.
    pub(crate) async fn list(&self, node: Node, attribute: XattrName) -> Result<Option<Acl>, Errno> {
        match self.nodes.xattr(node, attribute).await {
            Ok(value) => {
                let text = core::str::from_utf8(value.as_bytes()).map_err(|_| Errno::IO)?;
                Acl::parse(text).map(Some).map_err(|_| Errno::IO)
            }
            Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NoAttribute => Ok(None),
            Err(error) => Err(errno(&error)),
        }
    }

    /// Sets the access control list in an attribute.
    pub(crate) async fn set_list(&self, node: Node, attribute: XattrName, value: &[u8]) -> Result<(), Errno> {
        let before = self.list(node, attribute.clone()).await?;
        // Names that the server does not know are replaced by numeric ones, one in each round.
        for _ in 0..=ACL_NAMES_MAX {
            let Some(acl) = from_kernel(value, before.as_ref(), &self.id_map)? else {
                return match before {
                    None => Ok(()),
                    Some(_) => self.nodes.remove_xattr(node, attribute).await.map_err(|error| errno(&error)),
                };
            };
            let text = XattrValue::new(acl.to_string()).map_err(|_| Errno::TOOBIG)?;
            match self.nodes.set_xattr(node, attribute.clone(), text, XattrMode::Set).await {
                Err(ClientError::Refused(failure))
                    if failure.code == ErrorCode::NotFound
                        && self.id_map.listed_by_number(&acl, failure.subject.as_str()) => {}
                set => return set.map_err(|error| errno(&error)),
            }
        }
        Err(Errno::NOENT)
    }

    pub(crate) async fn change_owner(
        &self,
        ino: u64,
        (uid, gid): (Option<u32>, Option<u32>),
        mut change: NodeChange,
        (handle, kills): (Option<u64>, bool),
    ) -> Result<Stat, Errno> {
        let (uid, gid) = self.named_ids(ino, (uid, gid)).await?;
        if kills && change.mode.is_none() && self.set_ids.may_have(ino) {
            let stat = self.nodes.node(self.node(ino)?).await.map_err(|error| errno(&error))?;
            change.mode = Some(without(stat.mode)).filter(|mode| *mode != stat.mode);
        }
        let named = |change: &NodeChange| NodeChange {
            owner: uid.map(|uid| self.id_map.user(uid)),
            group: gid.map(|gid| self.id_map.group(gid)),
            ..change.clone()
        };
        match self.change(ino, named(&change), handle).await {
            Err(error) if self.by_number(&error, uid, gid) => self.change(ino, named(&change), handle).await,
            outcome => outcome,
        }
        .map_err(|error| errno(&error))
    }

    /// Returns the owner and group of a change. The numbers for unknown accounts are refused, or
    /// left out if the node has them already.
    async fn named_ids(
        &self,
        ino: u64,
        (uid, gid): (Option<u32>, Option<u32>),
    ) -> Result<(Option<u32>, Option<u32>), Errno> {
        let unknown_uid = uid.is_some_and(|uid| self.id_map.is_unknown_uid(uid));
        let unknown_gid = gid.is_some_and(|gid| self.id_map.is_unknown_gid(gid));
        if !unknown_uid && !unknown_gid {
            return Ok((uid, gid));
        }
        let stat = self.nodes.node(self.node(ino)?).await.map_err(|error| errno(&error))?;
        let keeps_uid = uid == Some(self.id_map.uid(&stat.owner));
        let keeps_gid = gid == Some(self.id_map.gid(stat.group.as_ref()));
        if (unknown_uid && !keeps_uid) || (unknown_gid && !keeps_gid) {
            return Err(Errno::INVAL);
        }
        Ok((uid.filter(|_| !unknown_uid), gid.filter(|_| !unknown_gid)))
    }

    /// Refuses a hard link to another user's file, as the server does for its accounts: the session
    /// of a mount for many users may link any file.
    pub(crate) async fn needs_link(&self, header: RequestHeader, node: Node) -> Result<(), Errno> {
        if !self.id_map.mounter().others || header.uid == 0 {
            return Ok(());
        }
        let stat = self.nodes.node(node).await.map_err(|error| errno(&error))?;
        if self.id_map.uid(&stat.owner) == header.uid {
            return Ok(());
        }
        let list = XattrName::new(ACL_ACCESS).map_err(|_| Errno::INVAL)?;
        let acl = self.list(node, list).await?;
        let caller = LinkCaller::new(header.uid, header.gid, header.pid);
        match may_link(&stat, acl.as_ref(), &caller, &self.id_map) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    async fn change(&self, ino: u64, change: NodeChange, handle: Option<u64>) -> Result<Stat, ClientError> {
        let node = self.table.node(ino).ok_or_else(|| Failure::new(ErrorCode::Stale, ""))?;
        let file = handle.and_then(|handle| self.files.get(handle));
        let through = file.is_some_and(|file| file.access() != Access::Read);
        let stat = self.nodes.set(node, change, through).await?;
        Ok(stat)
    }

    /// Answers an append. `offset` is where the kernel assumes the bytes, `at` where they are.
    pub(crate) fn appended(&self, ino: u64, (offset, at): (u64, u64), length: usize, reply: KernelReply) {
        if offset != at {
            // The pages of this write are at the wrong offset in the kernel's cache, and its file
            // size is old.
            self.pages.invalidate_attributes(ino);
            self.pages.drop_soon(ino);
        }
        reply.bytes(AnswerFields::count(length as u32).as_bytes());
    }

    /// Drops the kernel's cache of a file without a lease after a lock was acquired, so that
    /// changes made under the lock are seen.
    pub(crate) async fn revalidate(&self, ino: u64, node: Node) {
        if self.nodes.is_leased(node) {
            return;
        }
        self.pages.invalidate_attributes(ino);
        self.pages.drop_soon(ino);
        self.pages.wait_dropped_briefly(ino).await;
    }

    /// Answers a read of a directory.
    pub(crate) async fn answer_entries(
        &self,
        ino: u64,
        directory: &OpenDirectory,
        (offset, size, plus): (u64, u32, bool),
        reply: KernelReply,
    ) {
        let mut entries = EntryBuffer::new(size);
        let mut counted = Vec::new();
        let none = plus.then_some((None, (Duration::ZERO, Duration::ZERO)));
        for (number, dots) in [(0, &b"."[..]), (1, b"..")] {
            // The kernel knows the attributes of these two.
            let kind = kind_number(FileKind::Directory);
            if number >= offset && !entries.push((ino, kind), number + 1, dots, none) {
                return reply.bytes(entries.as_bytes());
            }
        }
        let read = directory
            .read(&self.nodes, offset.max(DOTS), plus, |next, ShownEntry { name, inode, kind, stat }| {
                let (kind, name) = (kind_number(kind), name.as_bytes());
                // An entry without attributes may not be accessible: the kernel's lookup returns
                // the reason.
                let Some(stat) = stat else {
                    return !entries.push((self.table.number(inode), kind), next, name, none);
                };
                // The file may have been written to since the page arrived.
                let better = self.nodes.with_local_changes(stat);
                let stat = better.as_ref().unwrap_or(stat);
                // An entry that did not fit was not sent, so it gets no reference.
                let ino = self.table.count(stat);
                let all = self.sent_attributes(ino, stat);
                let pushed = entries.push((ino, kind), next, name, Some((Some(&all), self.cache_time(stat))));
                match pushed {
                    true => counted.push(ino),
                    false => drop(self.table.forget(ino, 1)),
                }
                !pushed
            })
            .await;
        match read {
            Ok(()) => {
                if reply.naming(entries.as_bytes()) {
                    counted.clear();
                }
            }
            Err(error) => reply.error(errno(&error)),
        }
        // The kernel did not receive the answer, so it will not forget these nodes.
        for ino in counted {
            self.table.forget(ino, 1);
        }
    }

    /// Allocates or zeroes a range. `kills`: removes the set-user-ID and set-group-ID bits.
    pub(crate) async fn allocate(
        &self,
        (handle, kills): (u64, bool),
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::FBIG)?;
        let zeroes = match mode & !FALLOC_KEEP_SIZE {
            0 => false,
            FALLOC_PUNCH_HOLE if mode & FALLOC_KEEP_SIZE != 0 => true,
            FALLOC_ZERO_RANGE => true,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if kills {
            self.take_set_ids(self.table.ino(file.node())).await?;
        }
        // Another client may have extended the file: zeroing covers that, and the file is never
        // truncated here.
        let stat = self.nodes.node(file.node()).await.map_err(|error| errno(&error))?;
        if zeroes {
            file.zero(offset..end).await.map_err(|error| errno(&error))?;
        }
        if mode & FALLOC_KEEP_SIZE == 0 && end > stat.size {
            file.grow(end).await.map_err(|error| errno(&error))?;
        }
        Ok(())
    }
}

/// The user of a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl From<&RequestHeader> for RequestUser {
    fn from(header: &RequestHeader) -> Self {
        Self { uid: header.uid, gid: header.gid }
    }
}
