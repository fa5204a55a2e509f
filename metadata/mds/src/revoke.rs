//! Revocation: issued credentials become invalid before they expire, by new policy access tags or new working keys.
//!
//! Does: store what is to be revoked, find the objects, keep the list of those whose device has not
//! answered yet, count. Does not: talk to devices; the shell sends each the new tags, and repeats
//! that until it has answered. Contract: a revocation that was answered is in the store, and
//! continues after a crash at any point. An object is done when its device has answered under a
//! signed reply: from then on it refuses the old tag. New credentials carry the new tag from the
//! transaction on that drew it. A user may hold credentials that are not in the table of issued
//! ones (see `holdings`): then the working keys of their partitions are replaced, so that a
//! revocation of a user is complete. Truth: docs/standards/mds/operations.md §5.6, §8.5;
//! docs/adr/0029-record-of-issued-credentials.md, 0062-bounds-per-user.md.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{
    DeviceId, ErrorCode, FilePath, InodeId, ObjectRef, Response, Revocation, RevokeWhat, Text, UserName,
    WaitingDevice, record,
};

use crate::access::Principal;
use crate::accounts;
use crate::config::CREDENTIAL_LIFETIME_MAX_MS;
use crate::error::{MdsError, Result};
use crate::holdings::Unlisted;
use crate::keys;
use crate::leases::Use;
use crate::namespace;
use crate::records::{Inode, counter, decode, load, next_number, save};
use crate::server::Mds;
use crate::share;
use crate::shared::ServerName;
use crate::store::{Snapshot, Transaction, each_between};
use crate::tags;

/// Revocations that are remembered, those under way among them. Putting a user out adds one to them even if all are under
/// way, and never a second one of the same user.
pub(crate) const REVOCATIONS_MAX: usize = 256;
/// Of them, at most so many under way that others than administrators began.
pub(crate) const REVOCATIONS_OF_USERS_MAX: usize = 192;
/// Of them, at most so many under way that one user began who is no administrator.
pub(crate) const REVOCATIONS_PER_USER_MAX: usize = 16;
/// Objects of one transaction.
const COLLECT_BATCH: usize = 512;
/// Creates that are looked at in one transaction.
const INTENT_PAGE: usize = 1024;
/// Devices told of in one answer, and objects counted of each.
const WAITING_DEVICES_MAX: usize = 64;
const WAITING_OBJECTS_MAX: usize = 1024;
/// Revocations told of in one answer.
const LISTED_MAX: usize = 64;

record! {
    /// A server that has not found yet all that it gave out.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevocationPart {
        /// Which.
        pub server: ServerName,
        /// The last object that it found so far.
        pub cursor: Option<ObjectRef>,
    }
}

record! {
    /// A revocation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevocationRecord {
        /// Whose credentials end.
        pub what: RevokeWhat,
        /// Who asked.
        pub by: UserName,
        /// Was it an administrator, or the server itself?
        pub privileged: bool,
        /// When.
        pub began_ms: u64,
        /// The file, if one is meant.
        pub inode: Option<InodeId>,
        /// The servers that may find more.
        pub parts: Vec<RevocationPart>,
        /// Was everything that is out known?
        pub complete: bool,
        /// Objects found.
        pub total: u64,
        /// Of them, not answered for.
        pub open: u64,
        /// When the last one was.
        pub done_ms: Option<u64>,
    }
}

record! {
    /// An object whose device was not told its tag yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Retag {
        /// The tag.
        pub tag: u32,
        /// May somebody hold a credential that makes the object? Then it is made first, so that he cannot.
        pub creates: bool,
        /// The revocations that wait for it.
        pub waits: Vec<u64>,
    }
}

record! {
    /// Partitions of a device whose working keys a revocation replaces.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RevokedKeys {
        /// Which partitions.
        pub partitions: Vec<u64>,
        /// Whether the device's key state has the request.
        pub requested: bool,
        /// Whether the device has the new keys, and the old ones no more.
        pub replaced: bool,
    }
}

/// A device has to be told the tag of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetagItem {
    /// Which object.
    pub object: ObjectRef,
    /// Its tag from here on.
    pub tag: u32,
    /// If it is not there, somebody may still make it: it has to be made, with this tag.
    pub creates: bool,
}

/// Writes a revocation down. What a user or a session holds is found later, by [`Mds::collect_revocations`] of each of the
/// servers.
pub(crate) fn begin(
    tx: &mut dyn Transaction,
    by: &Principal,
    what: RevokeWhat,
    servers: Vec<ServerName>,
    complete: bool,
    now_ms: u64,
) -> Result<u64> {
    let known = known(tx)?;
    if !by.is_admin() {
        let under_way = || known.iter().map(|(_, record)| record).filter(|record| record.done_ms.is_none());
        let own = under_way().filter(|record| record.by == by.user).count();
        let of_users = under_way().filter(|record| !record.privileged).count();
        let shared = share::is_free(own, of_users, 1, REVOCATIONS_OF_USERS_MAX);
        if own >= REVOCATIONS_PER_USER_MAX || !shared {
            let why = format!("revocations under way: user {} has {own}; wait until one is done", by.user);
            return Err(MdsError::refused(ErrorCode::Limit, why));
        }
    }
    let asked = Asked { by: by.user.clone(), privileged: by.is_admin(), what, servers, complete };
    write_down(tx, &known, asked, true, now_ms)
}

/// Writes down that what a user has is revoked because he is out. That is never refused: whoever must not get in any more
/// must not depend on how much else is under way.
pub(crate) fn begin_putting_out(
    tx: &mut dyn Transaction,
    by: &UserName,
    user: &UserName,
    servers: Vec<ServerName>,
    now_ms: u64,
) -> Result<u64> {
    let what = RevokeWhat::User(user.clone());
    let asked = Asked { by: by.clone(), privileged: true, what, servers, complete: true };
    let known = known(tx)?;
    write_down(tx, &known, asked, false, now_ms)
}

/// All that are remembered, the oldest first.
fn known<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<(u64, RevocationRecord)>> {
    let (all, mut known) = (keys::revocations(), Vec::new());
    each_between(view, &all, &keys::after_prefix(&all), |key, value| {
        if let Some(id) = keys::revocation_id(key) {
            known.push((id, decode(value)?));
        }
        Ok::<_, MdsError>(())
    })?;
    Ok(known)
}

struct Asked {
    by: UserName,
    privileged: bool,
    what: RevokeWhat,
    servers: Vec<ServerName>,
    complete: bool,
}

fn write_down(
    tx: &mut dyn Transaction,
    known: &[(u64, RevocationRecord)],
    asked: Asked,
    bounded: bool,
    now_ms: u64,
) -> Result<u64> {
    let Asked { by, privileged, what, servers, complete } = asked;
    let parts = servers.into_iter().map(|server| RevocationPart { server, cursor: None }).collect();
    let same = |record: &RevocationRecord| record.done_ms.is_none() && record.what == what;
    if let (RevokeWhat::User(_), Some((id, record))) = (&what, known.iter().find(|(_, record)| same(record)))
    {
        // What he has got since is found when all of it is gone through once more.
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
            None if bounded => return Err(MdsError::refused(ErrorCode::Limit, "revocations under way")),
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

/// Gives objects new tags, and puts them on the list of those whose device has to be told; for a revocation, if there is one.
fn retag(tx: &mut dyn Transaction, objects: &[(ObjectRef, bool)], id: impl Into<Option<u64>>) -> Result<()> {
    let id = id.into();
    let first = tags::draw(tx, objects.len())?;
    for (tag, (object, creates)) in (first..).zip(objects) {
        save(tx, &keys::tag(*object), &tag)?;
        let key = keys::retag(*object);
        let mut item =
            load::<Retag, _>(tx, &key)?.unwrap_or(Retag { tag, creates: false, waits: Vec::new() });
        item.tag = tag;
        item.creates |= creates;
        item.waits.extend(id);
        save(tx, &key, &item)?;
    }
    Ok(())
}

/// Gives the objects of a file new tags, of which their devices are told as of a revocation's.
pub(crate) fn retag_file(tx: &mut dyn Transaction, inode: InodeId, now_ms: u64) -> Result<()> {
    let file: Option<Inode> = load(tx, &keys::inode(inode))?;
    let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
    retag(tx, &objects, None)
}

impl RevocationRecord {
    fn part(&self, server: &ServerName) -> Option<&RevocationPart> {
        self.parts.iter().find(|part| part.server == *server)
    }
}

/// A server found these; are there more?
fn found(record: &mut RevocationRecord, server: &ServerName, objects: &[(ObjectRef, bool)], more: bool) {
    record.total += objects.len() as u64;
    record.open += objects.len() as u64;
    if let Some(part) = record.parts.iter_mut().find(|part| part.server == *server) {
        part.cursor = objects.last().map(|(object, _)| *object).or(part.cursor);
    }
    if !more {
        record.parts.retain(|part| part.server != *server);
    }
}

/// Marks a revocation as done if nothing of it is open.
fn settle<S: Snapshot + ?Sized>(view: &S, id: u64, record: &mut RevocationRecord, now_ms: u64) -> Result<()> {
    let finished = record.parts.is_empty() && record.open == 0 && record.done_ms.is_none();
    if finished && revoked_keys(view, id)?.1 == 0 {
        record.done_ms = Some(now_ms);
    }
    Ok(())
}

/// Number of partitions whose working keys a revocation replaces, and of those it has not replaced yet.
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

/// The objects of a file, and whether somebody may hold a credential to make them.
fn objects_of(file: &Inode, now_ms: u64) -> Vec<(ObjectRef, bool)> {
    let creates = file.create_grants_until_ms >= now_ms;
    let objects = file.layout.iter().flat_map(|layout| layout.objects());
    objects.map(|object| (*object, creates)).collect()
}

fn unknown(id: u64) -> MdsError {
    MdsError::refused(ErrorCode::NotFound, format!("revocation {id}"))
}

/// The devices that have something on the list.
fn waiting<S: Snapshot + ?Sized>(view: &S) -> Result<Vec<DeviceId>> {
    let until = keys::after_prefix(&keys::retags());
    let (mut from, mut devices) = (keys::retags(), Vec::new());
    while let Some((key, _)) = view.scan(&from, &until, 1)?.first() {
        let Some(object) = keys::retag_object(key) else { break };
        devices.push(object.device);
        from = keys::after_prefix(&keys::retags_of(object.device));
    }
    Ok(devices)
}

impl Mds {
    pub(crate) fn revoke(&self, who: &Principal, what: RevokeWhat, now_ms: u64) -> Result<Response> {
        let id = match what {
            RevokeWhat::Object(path) => self.revoke_object(who, path, now_ms)?,
            RevokeWhat::User(name) => {
                who.needs_admin()?;
                let held = self.held_by(&name, now_ms);
                let view = self.store.snapshot()?;
                if held.holders.is_empty() && self.servers(&*view)?.len() == 1 {
                    // Whoever was removed may hold something still; a name that nobody has is a mistake.
                    accounts::existing(&*view, &name)?;
                }
                drop(view);
                // Who is in the middle of being given something is waited for: it is found then.
                let _stopped = self.issuing.write();
                self.update(|tx| {
                    let servers = self.servers(tx)?;
                    begin(tx, who, RevokeWhat::User(name.clone()), servers, true, now_ms)
                })?
            }
            RevokeWhat::Session(_) => {
                let what = "what a session holds is revoked by its logout";
                return Err(MdsError::refused(ErrorCode::Invalid, what));
            }
        };
        self.revocations_changed.store(true, Ordering::Release);
        self.revocation(id)
    }

    fn revoke_object(&self, who: &Principal, path: FilePath, now_ms: u64) -> Result<u64> {
        let _stopped = self.issuing.write();
        let (id, inode) = self.update(|tx| {
            let (inode, file) = namespace::resolve(tx, who, &path)?;
            who.needs_ownership(&file, &path.shown())?;
            if file.is_directory() {
                return Err(MdsError::refused(ErrorCode::IsADirectory, path.shown()));
            }
            let objects = objects_of(&file, now_ms);
            let mut servers = self.servers(tx)?;
            servers.retain(|server| *server != self.config.server);
            let id = begin(tx, who, RevokeWhat::Object(path.clone()), servers, true, now_ms)?;
            retag(tx, &objects, id)?;
            let mut record: RevocationRecord = load(tx, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
            record.inode = Some(inode);
            found(&mut record, &self.config.server, &objects, false);
            settle(tx, id, &mut record, now_ms)?;
            save(tx, &keys::revocation(id), &record)?;
            Ok((id, inode))
        })?;
        self.forget_lasting(inode, now_ms)?;
        // Whoever has it open is asked for his right again before he gets another credential.
        self.holds.ask_anew(inode);
        self.leases.may(inode, None, Use::Change, false, now_ms);
        Ok(id)
    }

    /// The objects of a file were given other tags while nothing was being issued: a program with a capability file is not
    /// waited for any more.
    fn forget_lasting(&self, inode: InodeId, now_ms: u64) -> Result<()> {
        let file: Option<Inode> = load(&*self.store.snapshot()?, &keys::inode(inode))?;
        let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
        self.holdings(now_ms).forget_lasting(&objects);
        Ok(())
    }

    /// Finds what the users and sessions hold whose credentials are being revoked, and ends creates of such users; a
    /// bounded number of each.
    /// Returns whether there may be more to do at once. After a crash it goes on where it was.
    ///
    /// # Errors
    /// `Store`.
    pub fn collect_revocations(&self, now_ms: u64) -> Result<bool> {
        let mut more = false;
        for (id, record) in known(&*self.store.snapshot()?)? {
            if self.is_leading(now_ms) {
                self.give_up_on_servers(id, &record, now_ms)?;
            }
            let Some(part) = record.part(&self.config.server) else { continue };
            // What a session was creating, its user may still finish in another one.
            if let (RevokeWhat::User(user), None) = (&record.what, part.cursor) {
                self.end_creates_of(user, now_ms)?;
            }
            more |= match record.inode {
                Some(inode) => self.collect_holders(id, inode, now_ms)?,
                None => self.collect(id, (&record.what, &record.by), part.cursor, now_ms)?,
            };
        }
        if self.is_leading(now_ms) {
            self.replace_revoked_keys(now_ms)?;
        }
        Ok(more)
    }

    /// Requests the replacement of the working keys that revocations need, and ends the waits for those that are replaced.
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
                // Requested again after a crash in between: a second new key revokes as the first one does.
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

    /// Adds the partitions of credentials that are not in the table to those whose working keys a revocation replaces.
    fn add_revoked_keys(&self, tx: &mut dyn Transaction, id: u64, unlisted: &Unlisted) -> Result<()> {
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

    /// A server that did not come back until nothing of what it gave out can be alive is not waited for.
    fn give_up_on_servers(&self, id: u64, record: &RevocationRecord, now_ms: u64) -> Result<()> {
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

    /// One step of the objects of one user or session.
    fn collect(
        &self,
        id: u64,
        (what, by): (&RevokeWhat, &UserName),
        after: Option<ObjectRef>,
        now_ms: u64,
    ) -> Result<bool> {
        if after.is_none() {
            // Another server may have begun it: whoever is in the middle of being given something here is found, and who
            // has no session any more gets nothing from here on, nor does anybody for having had a file open.
            let _stopped = self.issuing.write();
            if let RevokeWhat::User(user) = what {
                self.holds.ask_anew_of(user);
                self.leases.recall_of(user);
            }
            self.catch_up()?;
            let sessions = match what {
                RevokeWhat::User(user) => self.sessions.of_user_in_use(user),
                RevokeWhat::Session(session) => vec![*session],
                RevokeWhat::Object(_) => Vec::new(),
            };
            for session in sessions {
                self.reconfirm(&session)?;
            }
        }
        let (held, unlisted) = {
            let table = self.holdings(now_ms);
            match what {
                RevokeWhat::User(user) => (table.objects_of(user, now_ms), table.unlisted_of(user, now_ms)),
                RevokeWhat::Session(session) => {
                    (table.objects_of_session(session, now_ms), table.unlisted_of(by, now_ms))
                }
                // They were found when it began.
                RevokeWhat::Object(_) => (Vec::new(), None),
            }
        };
        let mut objects: BTreeMap<ObjectRef, bool> = BTreeMap::new();
        for (object, creates) in held {
            if after.is_none_or(|after| object > after) {
                *objects.entry(object).or_default() |= creates;
            }
        }
        let more = objects.len() > COLLECT_BATCH;
        let objects: Vec<_> = objects.into_iter().take(COLLECT_BATCH).collect();
        let lasting = objects.iter().any(|(object, _)| self.holdings(now_ms).is_lasting(*object, now_ms));
        // Capability files that are issued meanwhile have the new tags, and must not be forgotten.
        let _stopped = lasting.then(|| self.issuing.write());
        self.update(|tx| {
            let Some(mut record) = load::<RevocationRecord, _>(tx, &keys::revocation(id))? else {
                return Ok(());
            };
            if record.part(&self.config.server).is_none_or(|part| part.cursor != after) {
                return Ok(());
            }
            match (&unlisted, what) {
                (Some(unlisted), RevokeWhat::User(_)) => self.add_revoked_keys(tx, id, unlisted)?,
                // A user does not end the credentials of others by a logout.
                (Some(_), _) => record.complete = false,
                (None, _) => {}
            }
            retag(tx, &objects, id)?;
            found(&mut record, &self.config.server, &objects, more);
            settle(tx, id, &mut record, now_ms)?;
            Ok(save(tx, &keys::revocation(id), &record)?)
        })?;
        if lasting {
            self.holdings(now_ms).forget_lasting(&objects);
        }
        Ok(more)
    }

    /// A file is revoked at another server: whoever has it open here is asked for his right again. What he was given by it
    /// since may have the new tags already, so that the objects get others once more.
    fn collect_holders(&self, id: u64, inode: InodeId, now_ms: u64) -> Result<bool> {
        let _stopped = self.issuing.write();
        let held = self.holds.ask_anew(inode);
        self.update(|tx| {
            let Some(mut record) = load::<RevocationRecord, _>(tx, &keys::revocation(id))? else {
                return Ok(());
            };
            if record.part(&self.config.server).is_none() {
                return Ok(());
            }
            let file = load::<Inode, _>(tx, &keys::inode(inode))?.filter(|_| held);
            let objects = file.map_or_else(Vec::new, |file| objects_of(&file, now_ms));
            retag(tx, &objects, id)?;
            found(&mut record, &self.config.server, &objects, false);
            settle(tx, id, &mut record, now_ms)?;
            Ok(save(tx, &keys::revocation(id), &record)?)
        })?;
        self.forget_lasting(inode, now_ms)?;
        Ok(false)
    }

    /// A user's creates are over. Their objects stay until nobody can make them again: one that was removed before
    /// could be.
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

    /// The devices that have to be told something.
    ///
    /// # Errors
    /// `Store`.
    pub fn retag_devices(&self) -> Result<Vec<DeviceId>> {
        waiting(&*self.store.snapshot()?)
    }

    /// Up to `limit` objects that a device has to be told the tags of.
    ///
    /// # Errors
    /// `Store`.
    pub fn next_retags(&self, device: DeviceId, limit: usize) -> Result<Vec<RetagItem>> {
        let of = keys::retags_of(device);
        let pairs = self.store.snapshot()?.scan(&of, &keys::after_prefix(&of), limit)?;
        let item = |(key, value): (Vec<u8>, Vec<u8>)| -> Result<Option<RetagItem>> {
            let Retag { tag, creates, .. } = decode(&value)?;
            Ok(keys::retag_object(&key).map(|object| RetagItem { object, tag, creates }))
        };
        let items = pairs.into_iter().filter_map(|pair| item(pair).transpose()).collect::<Result<_>>()?;
        self.durably(items)
    }

    /// The device has answered: it refuses the older tags of these objects.
    ///
    /// # Errors
    /// `Store`; the device is told once more then, which changes nothing.
    pub fn retagged(&self, items: &[RetagItem], now_ms: u64) -> Result<()> {
        self.update(|tx| {
            let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
            for item in items {
                let key = keys::retag(item.object);
                // A newer tag was drawn meanwhile: this answer says nothing of that one.
                let Some(known) = load::<Retag, _>(tx, &key)?.filter(|known| known.tag == item.tag) else {
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

    /// Do the devices of a file's objects refuse all tags but the last ones?
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

    /// Is a server waited for?
    #[cfg(test)]
    pub(crate) fn revocation_waits(&self, id: u64) -> bool {
        let record: Option<RevocationRecord> =
            self.store.snapshot().ok().and_then(|view| load(&*view, &keys::revocation(id)).ok()?);
        record.is_some_and(|record| !record.parts.is_empty())
    }

    /// How far a revocation is.
    pub(crate) fn revocation_progress(&self, who: &Principal, id: u64) -> Result<Response> {
        let record: RevocationRecord =
            load(&*self.store.snapshot()?, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
        // Somebody else's number looks like no number.
        if record.by == who.user || who.is_admin() { self.revocation(id) } else { Err(unknown(id)) }
    }

    pub(crate) fn revocation(&self, id: u64) -> Result<Response> {
        let view = self.store.snapshot()?;
        let record = load(&*view, &keys::revocation(id))?.ok_or_else(|| unknown(id))?;
        Ok(Response::Revocation { revocation: self.told(&*view, id, record)? })
    }

    pub(crate) fn revocation_list(&self) -> Result<Response> {
        let view = self.store.snapshot()?;
        let newest = known(&*view)?.into_iter().rev().take(LISTED_MAX);
        let revocations = newest.map(|(id, record)| self.told(&*view, id, record)).collect::<Result<_>>()?;
        Ok(Response::Revocations { revocations })
    }

    fn told(&self, view: &dyn Snapshot, id: u64, record: RevocationRecord) -> Result<Revocation> {
        let devices = if record.open == 0 { Vec::new() } else { waiting(view)? };
        let mut told = Vec::new();
        for device in devices.into_iter().take(WAITING_DEVICES_MAX) {
            let of = keys::retags_of(device);
            let pairs = view.scan(&of, &keys::after_prefix(&of), WAITING_OBJECTS_MAX)?;
            let mut objects = 0;
            for (_, value) in &pairs {
                objects += u32::from(decode::<Retag>(value)?.waits.contains(&id));
            }
            if objects > 0 {
                let problem = self.devices.get(device).and_then(|device| device.problem);
                let problem = problem.map_or_else(Text::default, |problem| problem.said);
                told.push(WaitingDevice { device, objects, problem });
            }
        }
        let collecting = !record.parts.is_empty();
        let RevocationRecord { what, began_ms, complete, total, open, done_ms, .. } = record;
        let (keys, keys_open) = revoked_keys(view, id)?;
        let waiting = told;
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

    /// Was something revoked since the last call? Then devices want to be told.
    #[must_use]
    pub fn take_revocations_changed(&self) -> bool {
        self.revocations_changed.load(Ordering::Relaxed)
            && self.revocations_changed.swap(false, Ordering::AcqRel)
    }
}
