//! Revocation: issued credentials become invalid before they expire, by new policy access tags or
//! new working keys.
//!
//! Does: store revocations, find their objects, keep the list of those whose device has not
//! confirmed yet, count.
//! Does not: access devices; the daemon sends the new tags, and repeats that until each device has
//! confirmed.
//! Contract: a revocation that was answered is durable and continues after a crash at any point. An
//! object is done when its device has confirmed the tag by a signed reply: then it refuses the old
//! tag. New credentials carry the new tag from the transaction on that allocated it. If a user may
//! have credentials that are not in the table of issued ones (see `issued_credentials`), the
//! working keys of their partitions are replaced, so that the revocation of a user is complete.
//! Truth: docs/standards/mds/operations.md §5.6; docs/standards/mds/store.md §8.5;
//! docs/adr/0029-record-of-issued-credentials.md; docs/adr/0062-bounds-per-user.md.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    DeviceId, ErrorCode, FilePath, InodeId, ObjectRef, Response, Revocation, RevocationTarget, Text,
    UserName, WaitingDevice, record,
};

use crate::access::Principal;
use crate::accounts;
use crate::error::{MdsError, Result};
use crate::issued_credentials::UnlistedCredentials;
use crate::keys;
use crate::leases::LeaseAccess;
use crate::limits::CREDENTIAL_LIFETIME_MAX_MS;
use crate::namespace;
use crate::records::{Inode, counter, decode, load, next_number, save};
use crate::server::Mds;
use crate::server_registry::ServerName;
use crate::share;
use crate::store::{Snapshot, Transaction, each_between};
use crate::tags::{PendingTag, objects_of, pending_devices, retag};

/// Maximum number of stored revocations, including pending ones. Disabling or removing a user adds
/// one even if all are pending, but never a second one of the same user.
pub(crate) const REVOCATIONS_MAX: usize = 256;
/// Maximum number of pending revocations begun by users who are not administrators.
pub(crate) const REVOCATIONS_OF_USERS_MAX: usize = 192;
/// Maximum number of pending revocations begun by one such user.
pub(crate) const REVOCATIONS_PER_USER_MAX: usize = 16;
/// Objects retagged in one transaction.
const COLLECT_BATCH: usize = 512;
/// Creates read in one transaction.
const INTENT_PAGE: usize = 1024;
/// Maximum number of devices listed in a response, and of objects counted for each.
const WAITING_DEVICES_MAX: usize = 64;
const WAITING_OBJECTS_MAX: usize = 1024;
/// Maximum number of revocations listed in a response.
const LISTED_MAX: usize = 64;

record! {
    /// A server that has not yet found all its issued credentials of a revocation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevocationPart {
        /// Name of the server.
        pub server: ServerName,
        /// Last object that it found.
        pub cursor: Option<ObjectRef>,
    }
}

record! {
    /// A revocation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevocationRecord {
        /// Subject of the revocation.
        pub what: RevocationTarget,
        /// User that requested it.
        pub by: UserName,
        /// Whether the requester was an administrator or the server itself.
        pub privileged: bool,
        /// Time of the request.
        pub began_ms: u64,
        /// Inode number if its subject is a file.
        pub inode: Option<InodeId>,
        /// Servers that may find more objects.
        pub parts: Vec<RevocationPart>,
        /// Whether all issued credentials were known.
        pub complete: bool,
        /// Number of objects found.
        pub total: u64,
        /// Number of objects not confirmed by their devices.
        pub open: u64,
        /// Time at which the last one was confirmed.
        pub done_ms: Option<u64>,
    }
}

record! {
    /// Partitions of a device whose working keys a revocation replaces.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevokedKeys {
        /// Partition ids.
        pub partitions: Vec<u64>,
        /// Whether the device's key state has the request.
        pub requested: bool,
        /// Whether the device has the new keys and no old ones.
        pub replaced: bool,
    }
}

/// A tag that has to be set on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetagItem {
    /// Object to retag.
    pub object: ObjectRef,
    /// New tag of the object.
    pub tag: u32,
    /// Whether a missing object has to be created with this tag, because a credential could still
    /// create it.
    pub creates: bool,
}

/// Stores a revocation. The credentials of a user or session are found later, by
/// [`Mds::collect_revocations`] on each server.
pub(crate) fn begin(
    tx: &mut dyn Transaction,
    by: &Principal,
    what: RevocationTarget,
    servers: Vec<ServerName>,
    complete: bool,
    now_ms: u64,
) -> Result<u64> {
    let known = all_revocations(tx)?;
    if !by.is_admin() {
        let under_way = || known.iter().map(|(_, record)| record).filter(|record| record.done_ms.is_none());
        let own = under_way().filter(|record| record.by == by.user).count();
        let of_users = under_way().filter(|record| !record.privileged).count();
        let shared = share::is_free(own, of_users, 1, REVOCATIONS_OF_USERS_MAX);
        if own >= REVOCATIONS_PER_USER_MAX || !shared {
            let why = format!("pending revocations: user {} has {own}; wait until one is done", by.user);
            return Err(MdsError::refused(ErrorCode::Limit, why));
        }
    }
    let asked = RevocationRequest { by: by.user.clone(), privileged: by.is_admin(), what, servers, complete };
    store_revocation(tx, &known, asked, true, now_ms)
}

/// Stores the revocation of all credentials of a user who lost access. It is never refused,
/// whatever else is pending.
pub(crate) fn begin_for_user(
    tx: &mut dyn Transaction,
    by: &UserName,
    user: &UserName,
    servers: Vec<ServerName>,
    now_ms: u64,
) -> Result<u64> {
    let what = RevocationTarget::User(user.clone());
    let asked = RevocationRequest { by: by.clone(), privileged: true, what, servers, complete: true };
    let known = all_revocations(tx)?;
    store_revocation(tx, &known, asked, false, now_ms)
}

/// Returns all stored revocations, the oldest first.
fn all_revocations<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<(u64, RevocationRecord)>> {
    let (all, mut known) = (keys::revocations(), Vec::new());
    each_between(view, &all, &keys::after_prefix(&all), |key, value| {
        if let Some(id) = keys::revocation_id(key) {
            known.push((id, decode(value)?));
        }
        Ok::<_, MdsError>(())
    })?;
    Ok(known)
}

struct RevocationRequest {
    by: UserName,
    privileged: bool,
    what: RevocationTarget,
    servers: Vec<ServerName>,
    complete: bool,
}

fn store_revocation(
    tx: &mut dyn Transaction,
    known: &[(u64, RevocationRecord)],
    asked: RevocationRequest,
    bounded: bool,
    now_ms: u64,
) -> Result<u64> {
    let RevocationRequest { by, privileged, what, servers, complete } = asked;
    let parts = servers.into_iter().map(|server| RevocationPart { server, cursor: None }).collect();
    let same = |record: &RevocationRecord| record.done_ms.is_none() && record.what == what;
    if let (RevocationTarget::User(_), Some((id, record))) =
        (&what, known.iter().find(|(_, record)| same(record)))
    {
        // A second search from the beginning finds credentials issued since.
        let record =
            RevocationRecord { parts, complete: record.complete && complete, privileged, ..record.clone() };
        save(tx, &keys::revocation(*id), &record)?;
        return Ok(*id);
    }
    if known.len() >= REVOCATIONS_MAX {
        match known.iter().find(|(_, record)| record.done_ms.is_some()) {
            Some((over, _)) => {
                let of = keys::revoked_keys_of(*over);
                for (key, _) in tx.scan(&of, &keys::after_prefix(&of), usize::MAX)? {
                    tx.delete(&key)?;
                }
                tx.delete(&keys::revocation(*over))?;
            }
            None if bounded => {
                return Err(MdsError::refused(ErrorCode::Limit, "too many pending revocations"));
            }
            None => {}
        }
    }
    let id = next_number(tx, counter::REVOCATION)?;
    let record = RevocationRecord {
        what,
        by,
        privileged,
        began_ms: now_ms,
        inode: None,
        parts,
        complete,
        total: 0,
        open: 0,
        done_ms: None,
    };
    save(tx, &keys::revocation(id), &record)?;
    Ok(id)
}

impl RevocationRecord {
    fn part(&self, server: &ServerName) -> Option<&RevocationPart> {
        self.parts.iter().find(|part| part.server == *server)
    }
}

/// Counts objects that a server found; `more` says whether it may find more.
fn count_found(
    record: &mut RevocationRecord,
    server: &ServerName,
    objects: &[(ObjectRef, bool)],
    more: bool,
) {
    record.total += objects.len() as u64;
    record.open += objects.len() as u64;
    if let Some(part) = record.parts.iter_mut().find(|part| part.server == *server) {
        part.cursor = objects.last().map(|(object, _)| *object).or(part.cursor);
    }
    if !more {
        record.parts.retain(|part| part.server != *server);
    }
}

/// Marks a revocation as done if nothing of it is pending.
fn settle<S: Snapshot + ?Sized>(view: &S, id: u64, record: &mut RevocationRecord, now_ms: u64) -> Result<()> {
    let finished = record.parts.is_empty() && record.open == 0 && record.done_ms.is_none();
    if finished && revoked_keys(view, id)?.1 == 0 {
        record.done_ms = Some(now_ms);
    }
    Ok(())
}

/// Returns the number of partitions whose working keys a revocation replaces, and of those not
/// replaced yet.
fn revoked_keys<S: Snapshot + ?Sized>(view: &S, id: u64) -> Result<(u32, u32)> {
    let (from, mut all, mut open) = (keys::revoked_keys_of(id), 0_u32, 0_u32);
    each_between(view, &from, &keys::after_prefix(&from), |_, value| {
        let one: RevokedKeys = decode(value)?;
        let count = u32::try_from(one.partitions.len()).unwrap_or(u32::MAX);
        all = all.saturating_add(count);
        open = open.saturating_add(if one.replaced { 0 } else { count });
        Ok::<_, MdsError>(())
    })?;
    Ok((all, open))
}

fn unknown(id: u64) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, format!("revocation {id}"))
}

impl Mds {
    pub(crate) fn revoke(
        &self,
        principal: &Principal,
        what: RevocationTarget,
        now_ms: u64,
    ) -> Result<Response> {
        let id = match what {
            RevocationTarget::Object(path) => self.revoke_object(principal, path, now_ms)?,
            RevocationTarget::User(name) => {
                principal.needs_admin()?;
                let credentials = self.credentials_of(&name, now_ms);
                let view = self.store.snapshot()?;
                if credentials.holders.is_empty() && self.servers(&*view)?.len() == 1 {
                    // A removed user may still have credentials, but a name without any is a
                    // mistake.
                    accounts::existing(&*view, &name)?;
                }
                drop(view);
                // Waits for requests that are issuing credentials, so that these are found.
                let _stopped = self.issuing.write();
                self.update(|tx| {
                    let servers = self.servers(tx)?;
                    begin(tx, principal, RevocationTarget::User(name.clone()), servers, true, now_ms)
                })?
            }
            RevocationTarget::Session(_) => {
                let what = "credentials of a session are revoked by its logout";
                return Err(MdsError::refused(ErrorCode::Invalid, what));
            }
        };
        self.revocations_changed.store(true, Ordering::Release);
        self.revocation(id)
    }

    fn revoke_object(&self, principal: &Principal, path: FilePath, now_ms: u64) -> Result<u64> {
        let _stopped = self.issuing.write();
        let (id, inode) = self.update(|tx| {
            let (inode, file) = namespace::resolve(tx, principal, &path)?;
            principal.needs_ownership(&file, &path.shown())?;
            if file.is_directory() {
                return Err(MdsError::refused(ErrorCode::IsADirectory, path.shown()));
            }
            let objects = objects_of(&file, now_ms);
            let mut servers = self.servers(tx)?;
            servers.retain(|server| *server != self.config.server);
            let id = begin(tx, principal, RevocationTarget::Object(path.clone()), servers, true, now_ms)?;
            retag(tx, &objects, id)?;
            let mut record: RevocationRecord = load(tx, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
            record.inode = Some(inode);
            count_found(&mut record, &self.config.server, &objects, false);
            settle(tx, id, &mut record, now_ms)?;
            save(tx, &keys::revocation(id), &record)?;
            Ok((id, inode))
        })?;
        self.forget_lasting(inode, now_ms)?;
        // Clients that have the file open are checked again before they get another credential.
        self.open_files.drop_cached_access(inode);
        self.leases.check_conflicts(inode, None, LeaseAccess::Change, false, now_ms);
        Ok(id)
    }

    /// Forgets capability files of a file whose objects have new tags; the caller stops issuing
    /// meanwhile.
    fn forget_lasting(&self, inode: InodeId, now_ms: u64) -> Result<()> {
        let file: Option<Inode> = load(&*self.store.snapshot()?, &keys::inode(inode))?;
        let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
        self.issued_table(now_ms).forget_lasting(&objects);
        Ok(())
    }

    /// Finds the credentials of users and sessions that are being revoked, and ends creates of such
    /// users, a bounded number of each. Returns whether there may be more to do at once. After a
    /// crash it continues.
    ///
    /// # Errors
    /// `Store`.
    pub fn collect_revocations(&self, now_ms: u64) -> Result<bool> {
        let mut more = false;
        for (id, record) in all_revocations(&*self.store.snapshot()?)? {
            if self.is_leading(now_ms) {
                self.drop_silent_servers(id, &record, now_ms)?;
            }
            let Some(part) = record.part(&self.config.server) else { continue };
            // The user may still finish a session's creates in another session.
            if let (RevocationTarget::User(user), None) = (&record.what, part.cursor) {
                self.end_creates_of(user, now_ms)?;
            }
            more |= match record.inode {
                Some(inode) => self.retag_open_file(id, inode, now_ms)?,
                None => self.collect(id, (&record.what, &record.by), part.cursor, now_ms)?,
            };
        }
        if self.is_leading(now_ms) {
            self.replace_revoked_keys(now_ms)?;
        }
        Ok(more)
    }

    /// Requests the new working keys that revocations need, and records those that are replaced.
    fn replace_revoked_keys(&self, now_ms: u64) -> Result<()> {
        let (from, mut all) = (keys::all_revoked_keys(), Vec::new());
        each_between(&*self.store.snapshot()?, &from, &keys::after_prefix(&from), |key, value| {
            if let Some((id, device)) = keys::revoked_keys_parts(key) {
                let wait: RevokedKeys = decode(value)?;
                all.extend((!wait.replaced).then_some((id, device, wait)));
            }
            Ok::<_, MdsError>(())
        })?;
        for (id, device, wait) in all {
            let known = self.devices.get(device).is_some();
            if known && !wait.requested {
                // After a crash in between it is requested again: a second new key revokes as well.
                self.request_new_keys(device, &wait.partitions)?;
            } else if known && !self.devices.are_keys_replaced(device, &wait.partitions, now_ms) {
                continue;
            }
            self.update(|tx| {
                let key = keys::revoked_keys(id, device);
                // Another server may have added partitions since.
                if load::<RevokedKeys, _>(tx, &key)?.as_ref() != Some(&wait) {
                    return Ok(());
                }
                if known && !wait.requested {
                    return Ok(save(tx, &key, &RevokedKeys { requested: true, ..wait.clone() })?);
                }
                save(tx, &key, &RevokedKeys { replaced: true, ..wait.clone() })?;
                let Some(mut record) = load::<RevocationRecord, _>(tx, &keys::revocation(id))? else {
                    return Ok(());
                };
                settle(tx, id, &mut record, now_ms)?;
                Ok(save(tx, &keys::revocation(id), &record)?)
            })?;
        }
        Ok(())
    }

    /// Adds the partitions of credentials that are not in the table to those whose working keys a
    /// revocation replaces.
    fn add_revoked_keys(
        &self,
        tx: &mut dyn Transaction,
        id: u64,
        unlisted: &UnlistedCredentials,
    ) -> Result<()> {
        for (device, _) in self.devices.addresses() {
            let mut partitions: Vec<u64> =
                self.file_partitions().filter(|partition| unlisted.includes(device.id, *partition)).collect();
            let key = keys::revoked_keys(id, device.id);
            let known: Option<RevokedKeys> = load(tx, &key)?;
            let known = known.map(|known| known.partitions).unwrap_or_default();
            if partitions.iter().all(|partition| known.contains(partition)) {
                continue;
            }
            partitions.extend(known);
            partitions.sort_unstable();
            partitions.dedup();
            save(tx, &key, &RevokedKeys { partitions, requested: false, replaced: false })?;
        }
        Ok(())
    }

    /// Stops waiting for a server that did not return until all its credentials have expired.
    fn drop_silent_servers(&self, id: u64, record: &RevocationRecord, now_ms: u64) -> Result<()> {
        if record.parts.is_empty() || record.began_ms.saturating_add(CREDENTIAL_LIFETIME_MAX_MS) >= now_ms {
            return Ok(());
        }
        self.update(|tx| {
            let key = keys::revocation(id);
            let Some(mut record) = load::<RevocationRecord, _>(tx, &key)? else { return Ok(()) };
            record.parts.retain(|part| part.server == self.config.server);
            settle(tx, id, &mut record, now_ms)?;
            Ok(save(tx, &key, &record)?)
        })
    }

    /// Collects the next objects of a user or session.
    fn collect(
        &self,
        id: u64,
        (what, by): (&RevocationTarget, &UserName),
        after: Option<ObjectRef>,
        now_ms: u64,
    ) -> Result<bool> {
        if after.is_none() {
            // Another server may have begun the revocation. Requests that are issuing credentials
            // finish first and are found. After that, ended sessions get none, and open files give
            // no right to any.
            let _stopped = self.issuing.write();
            if let RevocationTarget::User(user) = what {
                self.open_files.drop_cached_access_of_user(user);
                self.leases.recall_all_of_user(user);
            }
            self.catch_up()?;
            let sessions = match what {
                RevocationTarget::User(user) => self.sessions.of_user_in_use(user),
                RevocationTarget::Session(session) => vec![*session],
                RevocationTarget::Object(_) => Vec::new(),
            };
            for session in sessions {
                self.recheck_session(&session)?;
            }
        }
        let (open_before, unlisted) = {
            let table = self.issued_table(now_ms);
            match what {
                RevocationTarget::User(user) => {
                    (table.objects_of(user, now_ms), table.unlisted_of(user, now_ms))
                }
                RevocationTarget::Session(session) => {
                    (table.objects_of_session(session, now_ms), table.unlisted_of(by, now_ms))
                }
                // They were found when it began.
                RevocationTarget::Object(_) => (Vec::new(), None),
            }
        };
        let mut objects: BTreeMap<ObjectRef, bool> = BTreeMap::new();
        for (object, creates) in open_before {
            if after.is_none_or(|after| object > after) {
                *objects.entry(object).or_default() |= creates;
            }
        }
        let more = objects.len() > COLLECT_BATCH;
        let objects: Vec<_> = objects.into_iter().take(COLLECT_BATCH).collect();
        let lasting = objects.iter().any(|(object, _)| self.issued_table(now_ms).is_lasting(*object, now_ms));
        // Capability files issued meanwhile have the new tags, and must stay in the table.
        let _stopped = lasting.then(|| self.issuing.write());
        self.update(|tx| {
            let Some(mut record) = load::<RevocationRecord, _>(tx, &keys::revocation(id))? else {
                return Ok(());
            };
            if record.part(&self.config.server).is_none_or(|part| part.cursor != after) {
                return Ok(());
            }
            match (&unlisted, what) {
                (Some(unlisted), RevocationTarget::User(_)) => self.add_revoked_keys(tx, id, unlisted)?,
                // The logout of a user must not end credentials of other users.
                (Some(_), _) => record.complete = false,
                (None, _) => {}
            }
            retag(tx, &objects, id)?;
            count_found(&mut record, &self.config.server, &objects, more);
            settle(tx, id, &mut record, now_ms)?;
            Ok(save(tx, &keys::revocation(id), &record)?)
        })?;
        if lasting {
            self.issued_table(now_ms).forget_lasting(&objects);
        }
        Ok(more)
    }

    /// Handles the revocation of a file by another server: clients that have it open here are
    /// checked again. Credentials issued to them since may already have the new tags, so the
    /// objects get new ones once more.
    fn retag_open_file(&self, id: u64, inode: InodeId, now_ms: u64) -> Result<bool> {
        let _stopped = self.issuing.write();
        let open_before = self.open_files.drop_cached_access(inode);
        self.update(|tx| {
            let Some(mut record) = load::<RevocationRecord, _>(tx, &keys::revocation(id))? else {
                return Ok(());
            };
            if record.part(&self.config.server).is_none() {
                return Ok(());
            }
            let file = load::<Inode, _>(tx, &keys::inode(inode))?.filter(|_| open_before);
            let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
            retag(tx, &objects, id)?;
            count_found(&mut record, &self.config.server, &objects, false);
            settle(tx, id, &mut record, now_ms)?;
            Ok(save(tx, &keys::revocation(id), &record)?)
        })?;
        self.forget_lasting(inode, now_ms)?;
        Ok(false)
    }

    /// Ends a user's creates. Their objects stay until no credential can create them again.
    fn end_creates_of(&self, user: &UserName, now_ms: u64) -> Result<()> {
        let mut from = keys::intents();
        let until = keys::after_prefix(&from);
        loop {
            let page = self.store.snapshot()?.scan(&from, &until, INTENT_PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from = [&last[..], &[0]].concat();
            self.update(|tx| namespace::end_creates(tx, &page, user, now_ms))?;
        }
    }

    /// Returns the devices with pending tags.
    ///
    /// # Errors
    /// `Store`.
    pub fn retag_devices(&self) -> Result<Vec<DeviceId>> {
        pending_devices(&*self.store.snapshot()?)
    }

    /// Returns up to `limit` pending tags of a device.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_retags(&self, device: DeviceId, limit: usize) -> Result<Vec<RetagItem>> {
        let of = keys::retags_of(device);
        let pairs = self.store.snapshot()?.scan(&of, &keys::after_prefix(&of), limit)?;
        let item = |(key, value): (Vec<u8>, Vec<u8>)| -> Result<Option<RetagItem>> {
            let PendingTag { tag, creates, .. } = decode(&value)?;
            Ok(keys::retag_object(&key).map(|object| RetagItem { object, tag, creates }))
        };
        let items = pairs.into_iter().filter_map(|pair| item(pair).transpose()).collect::<Result<_>>()?;
        self.wait_durable(items)
    }

    /// Records that a device has confirmed these tags and refuses older ones.
    ///
    /// # Errors
    /// `Store`: the tags are sent again then, which is harmless.
    pub fn retagged(&self, items: &[RetagItem], now_ms: u64) -> Result<()> {
        self.update(|tx| {
            let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
            for item in items {
                let key = keys::retag(item.object);
                // A newer tag was allocated meanwhile; this answer does not confirm it.
                let Some(known) = load::<PendingTag, _>(tx, &key)?.filter(|known| known.tag == item.tag)
                else {
                    continue;
                };
                tx.delete(&key)?;
                for id in known.waits {
                    *answered.entry(id).or_default() += 1;
                }
            }
            for (id, count) in answered {
                let key = keys::revocation(id);
                if let Some(mut record) = load::<RevocationRecord, _>(tx, &key)? {
                    record.open = record.open.saturating_sub(count);
                    settle(tx, id, &mut record, now_ms)?;
                    save(tx, &key, &record)?;
                }
            }
            Ok(())
        })
    }

    /// Whether the devices of a file's objects have confirmed their last tags.
    pub(crate) fn is_retagged(&self, inode: InodeId) -> Result<bool> {
        let view = self.store.snapshot()?;
        let file: Option<Inode> = load(&*view, &keys::inode(inode))?;
        for object in file.iter().flat_map(|file| &file.layout).flat_map(|layout| layout.objects()) {
            if view.get(&keys::retag(*object))?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the revocation waits for a server.
    #[cfg(test)]
    pub(crate) fn revocation_waits(&self, id: u64) -> bool {
        let record: Option<RevocationRecord> =
            self.store.snapshot().ok().and_then(|view| load(&*view, &keys::revocation(id)).ok()?);
        record.is_some_and(|record| !record.parts.is_empty())
    }

    /// Returns the progress of a revocation.
    pub(crate) fn revocation_progress(&self, principal: &Principal, id: u64) -> Result<Response> {
        let record: RevocationRecord =
            load(&*self.store.snapshot()?, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
        // A revocation of another user looks like one that does not exist.
        if record.by == principal.user || principal.is_admin() {
            self.revocation(id)
        } else {
            Err(unknown(id))
        }
    }

    pub(crate) fn revocation(&self, id: u64) -> Result<Response> {
        let view = self.store.snapshot()?;
        let record = load(&*view, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
        Ok(Response::Revocation { revocation: self.describe(&*view, id, record)? })
    }

    pub(crate) fn revocation_list(&self) -> Result<Response> {
        let view = self.store.snapshot()?;
        let newest = all_revocations(&*view)?.into_iter().rev().take(LISTED_MAX);
        let revocations =
            newest.map(|(id, record)| self.describe(&*view, id, record)).collect::<Result<_>>()?;
        Ok(Response::Revocations { revocations })
    }

    fn describe(&self, view: &dyn Snapshot, id: u64, record: RevocationRecord) -> Result<Revocation> {
        let devices = if record.open == 0 { Vec::new() } else { pending_devices(view)? };
        let mut waiting = Vec::new();
        for device in devices.into_iter().take(WAITING_DEVICES_MAX) {
            let of = keys::retags_of(device);
            let pairs = view.scan(&of, &keys::after_prefix(&of), WAITING_OBJECTS_MAX)?;
            let mut objects = 0;
            for (_, value) in &pairs {
                objects += u32::from(decode::<PendingTag>(value)?.waits.contains(&id));
            }
            if objects > 0 {
                let problem = self.devices.get(device).and_then(|device| device.problem);
                let problem = problem.map_or_else(Text::default, |problem| problem.said);
                waiting.push(WaitingDevice { device, objects, problem });
            }
        }
        let collecting = !record.parts.is_empty();
        let RevocationRecord { what, began_ms, complete, total, open, done_ms, .. } = record;
        let (keys, keys_open) = revoked_keys(view, id)?;
        Ok(Revocation {
            id,
            what,
            began_ms,
            total,
            open,
            collecting,
            complete,
            keys,
            keys_open,
            done_ms,
            waiting,
        })
    }

    /// Whether a revocation was added since the last call. Then tags have to be sent to devices.
    #[must_use]
    pub fn take_revocations_changed(&self) -> bool {
        self.revocations_changed.load(Ordering::Relaxed)
            && self.revocations_changed.swap(false, Ordering::AcqRel)
    }
}
