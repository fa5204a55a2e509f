//! Who holds credentials that devices still accept: for "who could touch this object", and for whoever revokes them.
//!
//! Does: remember every grant until it expires, by session and object. Does not: revoke; a device does, by the policy
//! access tag of the object or the key of the partition.
//! Contract: bounded; what it had to forget, and what was given out before it began, it says is missing
//! ([`Holdings::complete`]). Kept in memory: a grant lives for an hour at most, and a write for every open would cost
//! more than it tells. After a restart the record of credentials (`issue`) fills it again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{DeviceId, Holder, ObjectRef, UserName};

use crate::config::GRANT_LIFETIME_MAX_MS;

/// Grants remembered at most; some 200 bytes each.
pub(crate) const HOLDINGS_MAX: usize = 262_144;

/// An object as a key: [`ObjectRef`] has no order.
type At = (u32, u64, u64);

/// What one grant gives, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// May it change the object?
    pub(crate) writes: bool,
    /// May it make the object?
    pub(crate) creates: bool,
    /// Until when a program may have it that cannot get another one, milliseconds since 1970; 0: none has.
    pub(crate) lasting_until_ms: u64,
    /// Not valid after, milliseconds since 1970.
    pub(crate) expires_ms: u64,
}

#[derive(Default)]
struct OfSession {
    user: Option<UserName>,
    objects: BTreeMap<At, Held>,
}

/// Grants that are alive.
pub(crate) struct HoldingTable {
    sessions: HashMap<SessionId, OfSession>,
    by_expiry: BTreeSet<(u64, SessionId, At)>,
    /// Until then grants may be alive that are not in the table.
    unknown_until_ms: u64,
}

/// What somebody holds, or who holds something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Grants that are alive.
    pub holders: Vec<Holder>,
    /// Is none missing? Not within the longest life of a grant after a start, or after the table was full.
    pub complete: bool,
}

impl core::fmt::Display for Holdings {
    /// For the audit log.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let until = self.holders.iter().map(|holder| holder.expires_ms).max();
        write!(f, "{} grants alive", self.holders.len())?;
        if let Some(until) = until {
            write!(f, " until {until}")?;
        }
        f.write_str(if self.complete { "" } else { ", and maybe some given out before the server began" })
    }
}

fn key(object: &ObjectRef) -> At {
    (object.device.0, object.object.partition, object.object.object)
}

fn holder(session: &SessionId, user: &UserName, at: &At, held: &Held) -> Holder {
    let object = object_of(at);
    Holder { user: user.clone(), session: *session, object, writes: held.writes, expires_ms: held.expires_ms }
}

fn object_of(at: &At) -> ObjectRef {
    ObjectRef { device: DeviceId(at.0), object: sealstone_osd::ObjectId { partition: at.1, object: at.2 } }
}

/// Credentials to write as they were at some moment.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    of: HashMap<At, Vec<(SessionId, u64)>>,
    until_ms: u64,
}

impl Writers {
    /// Has all of it expired?
    pub(crate) const fn are_over(&self, now_ms: u64) -> bool {
        self.until_ms < now_ms
    }

    /// Is one of these objects written with a credential of another session, still?
    pub(crate) fn others_write(&self, objects: &[ObjectRef], session: &SessionId, now_ms: u64) -> bool {
        let mut of = objects.iter().filter_map(|object| self.of.get(&key(object))).flatten();
        of.any(|(writer, expires_ms)| writer != session && *expires_ms >= now_ms)
    }
}

impl HoldingTable {
    /// A table that begins now: what a server before it gave out is not in it.
    pub(crate) fn new() -> Self {
        Self { sessions: HashMap::new(), by_expiry: BTreeSet::new(), unknown_until_ms: 0 }
    }

    /// The server began at `now_ms`: grants of the one before it may be alive.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        self.unknown_until_ms = now_ms.saturating_add(GRANT_LIFETIME_MAX_MS);
    }

    /// Remembers grants that are about to be given out.
    pub(crate) fn add(
        &mut self,
        session: &SessionId,
        user: &UserName,
        objects: &[ObjectRef],
        given: Held,
        now_ms: u64,
    ) {
        self.expire(now_ms);
        for object in objects {
            let at = key(object);
            let of = self.sessions.entry(*session).or_default();
            of.user.get_or_insert_with(|| user.clone());
            let held = of.objects.entry(at).or_default();
            // An older grant for the same object may last longer, or give more: both are true of the two together.
            held.writes |= given.writes;
            held.creates |= given.creates;
            held.lasting_until_ms = held.lasting_until_ms.max(given.lasting_until_ms);
            if given.expires_ms > held.expires_ms {
                self.by_expiry.remove(&(held.expires_ms, *session, at));
                held.expires_ms = given.expires_ms;
                self.by_expiry.insert((given.expires_ms, *session, at));
            }
        }
        while self.by_expiry.len() > HOLDINGS_MAX {
            let Some(first) = self.by_expiry.first().copied() else { break };
            self.unknown_until_ms = self.unknown_until_ms.max(first.0);
            self.drop_one(first);
        }
    }

    /// Forgets what has expired.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        while let Some(first) = self.by_expiry.first().copied().filter(|first| first.0 < now_ms) {
            self.drop_one(first);
        }
    }

    fn drop_one(&mut self, one: (u64, SessionId, At)) {
        self.by_expiry.remove(&one);
        if let Some(of) = self.sessions.get_mut(&one.1) {
            of.objects.remove(&one.2);
            if of.objects.is_empty() {
                self.sessions.remove(&one.1);
            }
        }
    }

    fn select(
        &self,
        now_ms: u64,
        of: impl Fn(&SessionId, &UserName) -> bool,
        what: impl Fn(&At) -> bool,
    ) -> Holdings {
        let mut holders = Vec::new();
        for (session, held) in &self.sessions {
            let Some(user) = held.user.as_ref().filter(|user| of(session, user)) else { continue };
            let alive = held.objects.iter().filter(|(at, held)| held.expires_ms >= now_ms && what(at));
            holders.extend(alive.map(|(at, held)| holder(session, user, at, held)));
        }
        holders.sort_by(|a, b| {
            (b.expires_ms, &a.user, key(&a.object)).cmp(&(a.expires_ms, &b.user, key(&b.object)))
        });
        Holdings { holders, complete: now_ms > self.unknown_until_ms }
    }

    /// What a user holds, over all his sessions, those that ended included.
    pub(crate) fn of_user(&self, user: &UserName, now_ms: u64) -> Holdings {
        self.select(now_ms, |_, holder| holder == user, |_| true)
    }

    /// The objects of what a user holds, each with whether he may make it. One may come more than once.
    pub(crate) fn objects_of(&self, user: &UserName, now_ms: u64) -> Vec<(ObjectRef, bool)> {
        let of = self.sessions.values().filter(|of| of.user.as_ref() == Some(user));
        of.flat_map(|of| &of.objects)
            .filter(|(_, held)| held.expires_ms >= now_ms)
            .map(|(at, held)| (object_of(at), held.creates))
            .collect()
    }

    /// The objects of what one session holds, as [`HoldingTable::objects_of`] gives them.
    pub(crate) fn objects_of_session(&self, session: &SessionId, now_ms: u64) -> Vec<(ObjectRef, bool)> {
        let of = self.sessions.get(session).into_iter().flat_map(|of| &of.objects);
        of.filter(|(_, held)| held.expires_ms >= now_ms)
            .map(|(at, held)| (object_of(at), held.creates))
            .collect()
    }

    /// Does a program have a credential for an object that cannot get another one? O(sessions).
    pub(crate) fn is_lasting(&self, object: ObjectRef, now_ms: u64) -> bool {
        let mut held = self.sessions.values().filter_map(|of| of.objects.get(&key(&object)));
        held.any(|held| held.lasting_until_ms >= now_ms)
    }

    /// The objects have other tags: no credential that was given out before, in a capability file or not, counts as lasting.
    pub(crate) fn forget_lasting(&mut self, objects: &[(ObjectRef, bool)]) {
        for of in self.sessions.values_mut() {
            for (object, _) in objects {
                if let Some(held) = of.objects.get_mut(&key(object)) {
                    held.lasting_until_ms = 0;
                }
            }
        }
    }

    /// The credentials to write that are alive.
    pub(crate) fn writers(&self, now_ms: u64) -> Writers {
        let mut writers: HashMap<At, Vec<(SessionId, u64)>> = HashMap::new();
        for (session, of) in &self.sessions {
            for (at, held) in of.objects.iter().filter(|(_, held)| held.writes && held.expires_ms >= now_ms) {
                writers.entry(*at).or_default().push((*session, held.expires_ms));
            }
        }
        let until_ms =
            writers.values().flatten().map(|(_, expires_ms)| *expires_ms).max().unwrap_or_default();
        Writers { of: writers, until_ms }
    }

    /// What one session holds.
    pub(crate) fn of_session(&self, session: &SessionId, now_ms: u64) -> Holdings {
        self.select(now_ms, |id, _| id == session, |_| true)
    }

    /// Who holds any of these objects.
    pub(crate) fn of_objects(&self, objects: &[ObjectRef], now_ms: u64) -> Holdings {
        let wanted: BTreeSet<At> = objects.iter().map(key).collect();
        self.select(now_ms, |_, _| true, |at| wanted.contains(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealstone_osd::ObjectId;

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn held(writes: bool, expires_ms: u64) -> Held {
        Held { writes, creates: false, lasting_until_ms: 0, expires_ms }
    }

    fn object(number: u64) -> ObjectRef {
        ObjectRef { device: DeviceId(1), object: ObjectId::new(0x1_0000, 0x1_0000 + number) }
    }

    #[test]
    fn a_grant_is_known_until_it_expires_whatever_its_session_does() {
        let mut table = HoldingTable::new();
        table.add(&[1; 16], &user("alice"), &[object(1), object(2)], held(false, 300), 10);
        table.add(&[2; 16], &user("alice"), &[object(1)], held(true, 200), 10);
        table.add(&[3; 16], &user("bob"), &[object(2)], held(false, 300), 10);
        assert_eq!(table.of_user(&user("alice"), 200).holders.len(), 3);
        assert_eq!(table.of_session(&[1; 16], 200).holders.len(), 2);
        let of = table.of_objects(&[object(1)], 200);
        let seen: Vec<_> = of.holders.iter().map(|one| (one.session[0], one.writes)).collect();
        assert_eq!(seen, [(1, false), (2, true)]);
        assert_eq!(table.of_objects(&[object(1)], 201).holders.len(), 1, "one has expired");
        table.expire(301);
        assert!(table.sessions.is_empty() && table.by_expiry.is_empty());
    }

    #[test]
    fn a_renewal_counts_once_and_never_shortens_or_weakens_what_is_known() {
        let mut table = HoldingTable::new();
        table.add(&[1; 16], &user("a"), &[object(1)], held(true, 300), 1);
        table.add(&[1; 16], &user("a"), &[object(1)], held(false, 200), 1);
        table.add(&[1; 16], &user("a"), &[object(1)], held(false, 400), 1);
        let held = table.of_user(&user("a"), 350);
        assert_eq!(held.holders.len(), 1);
        assert!(held.holders[0].writes && held.holders[0].expires_ms == 400);
        assert_eq!(table.by_expiry.len(), 1);
    }

    #[test]
    fn what_may_be_missing_is_said() {
        let mut table = HoldingTable::new();
        table.begin(1_000);
        assert!(!table.of_user(&user("a"), 1_000 + GRANT_LIFETIME_MAX_MS).complete);
        assert!(table.of_user(&user("a"), 1_001 + GRANT_LIFETIME_MAX_MS).complete);
    }

    #[test]
    fn memory_is_bounded_and_a_full_table_says_so() {
        let mut table = HoldingTable::new();
        let all: Vec<ObjectRef> = (0..=HOLDINGS_MAX as u64).map(object).collect();
        table.add(&[1; 16], &user("a"), &all, held(false, 500), 1);
        assert_eq!(table.by_expiry.len(), HOLDINGS_MAX);
        let held = table.of_user(&user("a"), 400);
        assert_eq!((held.holders.len(), held.complete), (HOLDINGS_MAX, false));
        assert!(table.of_user(&user("a"), 501).complete, "all that was forgotten has expired");
    }
}
