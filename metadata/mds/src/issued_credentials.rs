//! Issued credentials that devices still accept: which user and session holds which object.
//!
//! Does: keep every credential until it expires, by session and object; when the table is full,
//! keep only the partitions of the dropped ones.
//! Does not: revoke; a device does, by the policy access tag of an object or the key of a
//! partition.
//! Contract: the number of entries is limited (`ISSUED_CREDENTIALS_MAX` unless configured). A
//! full table drops entries of the user that has the most, never of a user with less than an equal
//! share. For each user either all entries are here, or [`UnlistedCredentials`] names the
//! partitions of the others, so a revocation of a user can always be complete. Entries of
//! capability files are never dropped: their number is limited when they are issued. The table is
//! in memory; after a restart the log of credentials (`issue`) fills it.
//! Truth: docs/adr/0062-bounds-per-user.md.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{CredentialHolder, DeviceId, ErrorCode, ObjectRef, UserName};

use crate::error::{MdsError, Result};
use crate::limits::GRANT_LIFETIME_MAX_MS;
use crate::share;

/// The smallest table that can be configured.
const ISSUED_CREDENTIALS_MIN: usize = 1_024;
/// At most one in this many entries may be of a capability file; a user has a share of these (see
/// [`share::is_free`]).
const DELEGATED_PART: usize = 4;
/// Maximum number of entries dropped at a time.
const DROP_BATCH: usize = 1_024;
/// Partitions of dropped entries kept for one user; with more, every partition counts as one of
/// them.
const PARTITIONS_MAX: usize = 1_024;

/// An object as a key: [`ObjectRef`] has no order.
type ObjectKey = (u32, u64, u64);

/// The rights of an issued credential, or of several for one object together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IssuedRights {
    /// Whether it allows writes.
    pub(crate) writes: bool,
    /// Whether it allows to create the object.
    pub(crate) creates: bool,
    /// Expiry of a capability file, whose program cannot get another one, milliseconds since 1970;
    /// 0: there is none.
    pub(crate) lasting_until_ms: u64,
    /// Expiry, milliseconds since 1970.
    pub(crate) expires_ms: u64,
}

/// Credentials of a user that are valid and not in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnlistedCredentials {
    /// Latest expiry of them, milliseconds since 1970.
    until_ms: u64,
    /// Latest expiry of those that allow writes.
    writes_until_ms: u64,
    /// Their partitions; empty: any partition of any device.
    partitions: Option<BTreeSet<(DeviceId, u64)>>,
}

impl UnlistedCredentials {
    fn add(&mut self, at: &ObjectKey, rights: &IssuedRights, now_ms: u64) {
        if self.until_ms < now_ms {
            *self = Self { partitions: Some(BTreeSet::new()), ..Self::default() };
        }
        self.until_ms = self.until_ms.max(rights.expires_ms);
        if rights.writes {
            self.writes_until_ms = self.writes_until_ms.max(rights.expires_ms);
        }
        if let Some(partitions) = &mut self.partitions {
            partitions.insert((DeviceId(at.0), at.1));
            if partitions.len() > PARTITIONS_MAX {
                self.partitions = None;
            }
        }
    }

    /// Latest expiry of them, milliseconds since 1970.
    pub(crate) const fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// Whether a credential for this partition may be one of them.
    pub(crate) fn includes(&self, device: DeviceId, partition: u64) -> bool {
        self.partitions.as_ref().is_none_or(|all| all.contains(&(device, partition)))
    }
}

#[derive(Default)]
struct OfSession {
    user: Option<UserName>,
    objects: BTreeMap<ObjectKey, IssuedRights>,
}

/// Entries of one user.
#[derive(Default)]
struct OfUser {
    /// Entries that may be dropped.
    by_expiry: BTreeSet<(u64, SessionId, ObjectKey)>,
    /// Entries of capability files.
    lasting: BTreeSet<(u64, SessionId, ObjectKey)>,
    unlisted: UnlistedCredentials,
}

impl OfUser {
    fn order(&mut self, rights: &IssuedRights) -> &mut BTreeSet<(u64, SessionId, ObjectKey)> {
        if rights.lasting_until_ms > 0 { &mut self.lasting } else { &mut self.by_expiry }
    }
}

/// The table of issued credentials.
pub(crate) struct IssuedCredentials {
    sessions: HashMap<SessionId, OfSession>,
    users: HashMap<UserName, OfUser>,
    max: usize,
    /// Number of entries, and of those for capability files.
    count: usize,
    lasting: usize,
    /// Time until which credentials of any user may be valid that are not in the table.
    unknown_until_ms: u64,
    /// Time until which such credentials may allow writes.
    unknown_writes_until_ms: u64,
    /// Number of entries dropped since the start.
    dropped: u64,
}

/// Credentials of a user, a session or an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialList {
    /// The valid ones in the table.
    pub holders: Vec<CredentialHolder>,
    /// Whether these are all: not if some were dropped from a full table, or the log of credentials
    /// had a gap at the start.
    pub complete: bool,
}

impl core::fmt::Display for CredentialList {
    /// For the audit log.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let until = self.holders.iter().map(|holder| holder.expires_ms).max();
        write!(f, "{} grants alive", self.holders.len())?;
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        f.write_str(if self.complete { "" } else { ", and some that are not listed" })
    }
}

fn key(object: &ObjectRef) -> ObjectKey {
    (object.device.0, object.object.partition, object.object.object)
}

fn holder(session: &SessionId, user: &UserName, at: &ObjectKey, rights: &IssuedRights) -> CredentialHolder {
    let object = object_of(at);
    CredentialHolder {
        user: user.clone(),
        session: *session,
        object,
        writes: rights.writes,
        expires_ms: rights.expires_ms,
    }
}

fn object_of(at: &ObjectKey) -> ObjectRef {
    ObjectRef { device: DeviceId(at.0), object: sealstone_osd::ObjectId { partition: at.1, object: at.2 } }
}

/// Credentials to write at some moment.
#[derive(Debug, Default)]
pub(crate) struct WriteCredentials {
    of: HashMap<ObjectKey, Vec<(SessionId, u64)>>,
    /// Time until which any object may have others.
    unlisted_until_ms: u64,
    until_ms: u64,
}

impl WriteCredentials {
    /// Whether all of them have expired.
    pub(crate) const fn are_over(&self, now_ms: u64) -> bool {
        self.until_ms < now_ms
    }

    /// Whether another session may write one of these objects.
    pub(crate) fn others_write(&self, objects: &[ObjectRef], session: &SessionId, now_ms: u64) -> bool {
        let mut of = objects.iter().filter_map(|object| self.of.get(&key(object))).flatten();
        let listed = of.any(|(writer, expires_ms)| writer != session && *expires_ms >= now_ms);
        listed || (self.unlisted_until_ms >= now_ms && !objects.is_empty())
    }
}

impl IssuedCredentials {
    /// Returns an empty table of `max` entries for a new store.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            sessions: HashMap::new(),
            users: HashMap::new(),
            max: max.max(ISSUED_CREDENTIALS_MIN),
            count: 0,
            lasting: 0,
            unknown_until_ms: 0,
            unknown_writes_until_ms: 0,
            dropped: 0,
        }
    }

    /// Returns an empty table after a restart at `now_ms`: earlier credentials may be valid.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        self.is_unknown_until(now_ms.saturating_add(GRANT_LIFETIME_MAX_MS), 0);
    }

    /// Sets until when unlisted credentials of any user may be valid, and those to write.
    pub(crate) fn is_unknown_until(&mut self, until_ms: u64, writes_until_ms: u64) {
        self.unknown_until_ms = self.unknown_until_ms.max(until_ms);
        self.unknown_writes_until_ms = self.unknown_writes_until_ms.max(writes_until_ms);
    }

    /// Refuses a capability file for this many objects if the user's share is used up.
    ///
    /// # Errors
    /// `Limit`.
    pub(crate) fn check_delegation(&mut self, user: &UserName, more: usize, now_ms: u64) -> Result<()> {
        self.expire_of(user, now_ms);
        let own = self.users.get(user).map_or(0, |of| of.lasting.len());
        if share::is_free(own, self.lasting, more, self.max / DELEGATED_PART) {
            return Ok(());
        }
        let why = format!(
            "capability files: user {user} has {own} objects in valid ones; revoke some or wait until they expire"
        );
        Err(MdsError::refused(ErrorCode::Limit, why))
    }

    /// Adds credentials that are about to be issued.
    pub(crate) fn add(
        &mut self,
        session: &SessionId,
        user: &UserName,
        objects: &[ObjectRef],
        given: IssuedRights,
        now_ms: u64,
    ) {
        self.expire_of(user, now_ms);
        let of_session = self.sessions.entry(*session).or_default();
        let user = of_session.user.get_or_insert_with(|| user.clone());
        let of_user = match self.users.get_mut(user) {
            Some(of_user) => of_user,
            None => self.users.entry(user.clone()).or_default(),
        };
        for object in objects {
            let at = key(object);
            let before = of_session.objects.get(&at).copied();
            let mut rights = before.unwrap_or_default();
            // An older credential for the object may last longer or allow more: the entry is for
            // both.
            rights.writes |= given.writes;
            rights.creates |= given.creates;
            rights.lasting_until_ms = rights.lasting_until_ms.max(given.lasting_until_ms);
            rights.expires_ms = rights.expires_ms.max(given.expires_ms);
            of_session.objects.insert(at, rights);
            match before {
                Some(before) => {
                    of_user.order(&before).remove(&(before.expires_ms, *session, at));
                    self.lasting -= usize::from(before.lasting_until_ms > 0);
                }
                None => self.count += 1,
            }
            of_user.order(&rights).insert((rights.expires_ms, *session, at));
            self.lasting += usize::from(rights.lasting_until_ms > 0);
        }
        while self.count > self.max {
            if !self.drop_of_largest(now_ms) {
                break;
            }
        }
    }

    /// Drops entries of the user that has the most, down to an equal share at most. O(users), once
    /// for many entries.
    fn drop_of_largest(&mut self, now_ms: u64) -> bool {
        let equal = self.count / self.users.len().max(1);
        let largest = self.users.iter().max_by_key(|(_, of)| of.by_expiry.len());
        let Some((user, of)) = largest.filter(|(_, of)| !of.by_expiry.is_empty()) else { return false };
        let (user, batch) = (user.clone(), of.by_expiry.len().saturating_sub(equal).clamp(1, DROP_BATCH));
        for _ in 0..batch {
            let Some(of) = self.users.get_mut(&user) else { break };
            let Some(first) = of.by_expiry.pop_first() else { break };
            if let Some(rights) = Self::forget(&mut self.sessions, &first) {
                of.unlisted.add(&first.2, &rights, now_ms);
            }
            self.count -= 1;
            self.dropped += 1;
        }
        true
    }

    fn forget(
        sessions: &mut HashMap<SessionId, OfSession>,
        (_, session, at): &(u64, SessionId, ObjectKey),
    ) -> Option<IssuedRights> {
        let of = sessions.get_mut(session)?;
        let rights = of.objects.remove(at);
        if of.objects.is_empty() {
            sessions.remove(session);
        }
        rights
    }

    /// Removes all entries that have expired. O(users), and O(log entries) for each.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let users: Vec<UserName> = self.users.keys().cloned().collect();
        users.iter().for_each(|user| self.expire_of(user, now_ms));
    }

    fn expire_of(&mut self, user: &UserName, now_ms: u64) {
        let Some(of) = self.users.get_mut(user) else { return };
        for lasting in [false, true] {
            let order = if lasting { &mut of.lasting } else { &mut of.by_expiry };
            while order.first().is_some_and(|first| first.0 < now_ms) {
                let Some(first) = order.pop_first() else { break };
                Self::forget(&mut self.sessions, &first);
                self.count -= 1;
                self.lasting -= usize::from(lasting);
            }
        }
        if of.by_expiry.is_empty() && of.lasting.is_empty() && of.unlisted.until_ms < now_ms {
            self.users.remove(user);
        }
    }

    fn select(
        &self,
        now_ms: u64,
        of: impl Fn(&SessionId, &UserName) -> bool,
        what: impl Fn(&ObjectKey) -> bool,
    ) -> CredentialList {
        let mut holders = Vec::new();
        for (session, rights) in &self.sessions {
            let Some(user) = rights.user.as_ref().filter(|user| of(session, user)) else { continue };
            let alive = rights.objects.iter().filter(|(at, rights)| rights.expires_ms >= now_ms && what(at));
            holders.extend(alive.map(|(at, rights)| holder(session, user, at, rights)));
        }
        holders.sort_by(|a, b| {
            (b.expires_ms, &a.user, key(&a.object)).cmp(&(a.expires_ms, &b.user, key(&b.object)))
        });
        CredentialList { holders, complete: now_ms > self.unknown_until_ms }
    }

    /// Returns the valid credentials of a user that are not in the table, if any.
    pub(crate) fn unlisted_of(&self, user: &UserName, now_ms: u64) -> Option<UnlistedCredentials> {
        if now_ms <= self.unknown_until_ms {
            return Some(UnlistedCredentials {
                until_ms: self.unknown_until_ms,
                ..UnlistedCredentials::default()
            });
        }
        self.users.get(user).map(|of| &of.unlisted).filter(|one| one.until_ms >= now_ms).cloned()
    }

    /// Returns the credentials of a user in all sessions, ended ones included.
    pub(crate) fn of_user(&self, user: &UserName, now_ms: u64) -> CredentialList {
        let found = self.select(now_ms, |_, holder| holder == user, |_| true);
        CredentialList { complete: self.unlisted_of(user, now_ms).is_none(), ..found }
    }

    /// Returns the objects of a user's credentials, each with whether one allows to create it. One
    /// may appear more than once.
    pub(crate) fn objects_of(&self, user: &UserName, now_ms: u64) -> Vec<(ObjectRef, bool)> {
        let of = self.sessions.values().filter(|of| of.user.as_ref() == Some(user));
        of.flat_map(|of| &of.objects)
            .filter(|(_, rights)| rights.expires_ms >= now_ms)
            .map(|(at, rights)| (object_of(at), rights.creates))
            .collect()
    }

    /// Returns the objects of a session's credentials, as [`IssuedCredentials::objects_of`] does.
    pub(crate) fn objects_of_session(&self, session: &SessionId, now_ms: u64) -> Vec<(ObjectRef, bool)> {
        let of = self.sessions.get(session).into_iter().flat_map(|of| &of.objects);
        of.filter(|(_, rights)| rights.expires_ms >= now_ms)
            .map(|(at, rights)| (object_of(at), rights.creates))
            .collect()
    }

    /// Whether a capability file is valid for an object. O(sessions).
    pub(crate) fn is_lasting(&self, object: ObjectRef, now_ms: u64) -> bool {
        let mut rights = self.sessions.values().filter_map(|of| of.objects.get(&key(&object)));
        rights.any(|rights| rights.lasting_until_ms >= now_ms)
    }

    /// Notes new tags of objects: no earlier credential counts as lasting, in a capability file or
    /// not.
    pub(crate) fn forget_lasting(&mut self, objects: &[(ObjectRef, bool)]) {
        for (session, of) in &mut self.sessions {
            let Some(of_user) = of.user.as_ref().and_then(|user| self.users.get_mut(user)) else { continue };
            for (object, _) in objects {
                let at = key(object);
                let Some(rights) = of.objects.get_mut(&at).filter(|rights| rights.lasting_until_ms > 0)
                else {
                    continue;
                };
                rights.lasting_until_ms = 0;
                of_user.lasting.remove(&(rights.expires_ms, *session, at));
                of_user.by_expiry.insert((rights.expires_ms, *session, at));
                self.lasting -= 1;
            }
        }
    }

    /// Returns the valid credentials to write.
    pub(crate) fn writers(&self, now_ms: u64) -> WriteCredentials {
        let mut writers: HashMap<ObjectKey, Vec<(SessionId, u64)>> = HashMap::new();
        for (session, of) in &self.sessions {
            for (at, rights) in
                of.objects.iter().filter(|(_, rights)| rights.writes && rights.expires_ms >= now_ms)
            {
                writers.entry(*at).or_default().push((*session, rights.expires_ms));
            }
        }
        let unlisted = self.users.values().map(|of| of.unlisted.writes_until_ms).max().unwrap_or_default();
        let unlisted_until_ms = unlisted.max(self.unknown_writes_until_ms);
        let listed = writers.values().flatten().map(|(_, expires_ms)| *expires_ms).max().unwrap_or_default();
        WriteCredentials { of: writers, unlisted_until_ms, until_ms: listed.max(unlisted_until_ms) }
    }

    /// Returns the credentials of one session of a user.
    pub(crate) fn of_session(&self, session: &SessionId, user: &UserName, now_ms: u64) -> CredentialList {
        let found = self.select(now_ms, |id, _| id == session, |_| true);
        CredentialList { complete: self.unlisted_of(user, now_ms).is_none(), ..found }
    }

    /// Returns the credentials for any of these objects.
    pub(crate) fn of_objects(&self, objects: &[ObjectRef], now_ms: u64) -> CredentialList {
        let wanted: BTreeSet<ObjectKey> = objects.iter().map(key).collect();
        let found = self.select(now_ms, |_, _| true, |at| wanted.contains(at));
        let is_unlisted = |object: &ObjectRef| {
            let mut unlisted = self.users.values().map(|of| &of.unlisted);
            unlisted.any(|one| one.until_ms >= now_ms && one.includes(object.device, object.object.partition))
        };
        let complete = found.complete && !objects.iter().any(is_unlisted);
        CredentialList { complete, ..found }
    }

    /// Returns the number of entries, and of those dropped since the start: for metrics.
    pub(crate) const fn figures(&self) -> (usize, u64) {
        (self.count, self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_osd::ObjectId;

    /// Entries of a small table.
    const MAX: usize = 4_096;

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn rights(writes: bool, expires_ms: u64) -> IssuedRights {
        IssuedRights { writes, creates: false, lasting_until_ms: 0, expires_ms }
    }

    fn object(number: u64) -> ObjectRef {
        ObjectRef { device: DeviceId(1), object: ObjectId::new(0x1_0000, 0x1_0000 + number) }
    }

    #[test]
    fn credential_is_listed_until_it_expires() {
        let mut table = IssuedCredentials::new(MAX);
        table.add(&[1; 16], &user("alice"), &[object(1), object(2)], rights(false, 300), 10);
        table.add(&[2; 16], &user("alice"), &[object(1)], rights(true, 200), 10);
        table.add(&[3; 16], &user("bob"), &[object(2)], rights(false, 300), 10);
        assert_eq!(table.of_user(&user("alice"), 200).holders.len(), 3);
        assert_eq!(table.of_session(&[1; 16], &user("alice"), 200).holders.len(), 2);
        let of = table.of_objects(&[object(1)], 200);
        let seen: Vec<_> = of.holders.iter().map(|one| (one.session[0], one.writes)).collect();
        assert_eq!(seen, [(1, false), (2, true)]);
        assert_eq!(table.of_objects(&[object(1)], 201).holders.len(), 1, "one has expired");
        table.expire(301);
        assert!(table.sessions.is_empty() && table.users.is_empty());
        assert_eq!((table.count, table.lasting), (0, 0));
    }

    #[test]
    fn renewal_never_shortens_or_weakens_entry() {
        let mut table = IssuedCredentials::new(MAX);
        table.add(&[1; 16], &user("a"), &[object(1)], rights(true, 300), 1);
        table.add(&[1; 16], &user("a"), &[object(1)], rights(false, 200), 1);
        table.add(&[1; 16], &user("a"), &[object(1)], rights(false, 400), 1);
        let rights = table.of_user(&user("a"), 350);
        assert_eq!(rights.holders.len(), 1);
        assert!(rights.holders[0].writes && rights.holders[0].expires_ms == 400);
        assert_eq!(table.count, 1);
    }

    #[test]
    fn table_after_restart_without_log_is_incomplete() {
        let mut table = IssuedCredentials::new(MAX);
        table.begin(1_000);
        assert!(!table.of_user(&user("a"), 1_000 + GRANT_LIFETIME_MAX_MS).complete);
        assert!(table.of_user(&user("a"), 1_001 + GRANT_LIFETIME_MAX_MS).complete);
        let unlisted = table.unlisted_of(&user("a"), 1_000).unwrap();
        assert!(unlisted.includes(DeviceId(9), 7), "any partition");
    }

    #[test]
    fn full_table_drops_only_entries_of_largest_user() {
        let (mut table, eve, bob) = (IssuedCredentials::new(MAX), user("eve"), user("bob"));
        let few: Vec<ObjectRef> = (0..100).map(object).collect();
        // Bob's expire first: by age alone they would be dropped first.
        table.add(&[2; 16], &bob, &few, rights(true, 400), 1);
        let all: Vec<ObjectRef> = (0..MAX as u64 + 1_000).map(object).collect();
        all.chunks(64).for_each(|some| table.add(&[1; 16], &eve, some, rights(false, 500), 1));
        assert!(table.count <= MAX);
        let his = table.of_user(&bob, 300);
        assert_eq!((his.holders.len(), his.complete), (few.len(), true));
        let hers = table.of_user(&eve, 300);
        assert!(!hers.complete && hers.holders.len() > MAX / 2);
        let unlisted = table.unlisted_of(&eve, 300).unwrap();
        assert!(unlisted.includes(DeviceId(1), 0x1_0000) && !unlisted.includes(DeviceId(2), 0x1_0000));
        assert!(!table.of_objects(&[object(1)], 300).complete, "she may hold it too");
        assert!(table.of_user(&eve, 501).complete, "all dropped entries have expired");
        // Credentials to write that were dropped count as writers of every object.
        assert!(!table.writers(300).others_write(&[object(4_000_000)], &[3; 16], 300));
        all.chunks(64).for_each(|some| table.add(&[4; 16], &eve, some, rights(true, 600), 1));
        assert!(table.writers(300).others_write(&[object(999_999)], &[3; 16], 300));
    }

    #[test]
    fn capability_files_are_never_dropped_and_limited_per_user() {
        let (mut table, eve, bob) = (IssuedCredentials::new(MAX), user("eve"), user("bob"));
        let lasting = IssuedRights { lasting_until_ms: 900, ..rights(false, 900) };
        let mut given = 0;
        while table.check_delegation(&eve, 1, 1).is_ok() {
            table.add(&[1; 16], &eve, &[object(given)], lasting, 1);
            given += 1;
        }
        assert_eq!(given as usize, MAX / DELEGATED_PART / 2, "half of them is free for others");
        table.check_delegation(&bob, 1, 1).unwrap();
        let all: Vec<ObjectRef> = (0..2 * MAX as u64).map(object).collect();
        all.chunks(64).for_each(|some| table.add(&[2; 16], &eve, some, rights(false, 500), 1));
        assert!((0..given).all(|number| table.is_lasting(object(number), 600)));
        table.check_delegation(&eve, 1, 901).unwrap();
    }
}
