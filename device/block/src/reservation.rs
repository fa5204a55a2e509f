//! Reservations: persistent ones (SPC-4 §5.13) and those of SPC-2 (SPC-4 annex on RESERVE and RELEASE).
//!
//! Does: who is registered, who holds what, which commands pass. Does not: read CDBs, keep anything on the medium, tell
//! anybody; `reserve` does.
//! Contract: a change is made on a copy and taken over only when it is durable, if it has to be. A change tells whom to
//! notify; nobody is notified of what was not taken over.
//! Truth: SPC-4 §5.13 and tables of commands allowed in the presence of reservations; `docs/standards/block.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_scsi::lu::NexusId;
use sealstone_scsi::{AdditionalSense, additional};

use crate::failure::Failure;
use crate::nexus::Port;

/// Most registrations of a unit.
pub(crate) const REGISTRANTS_MAX: usize = 64;

/// Type of a persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Others may read.
    const fn is_write_exclusive(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }

    /// Every registrant holds it.
    pub(crate) const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Every registrant may do what the holder may.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// What a command does, as far as reservations care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Passes whatever is reserved.
    Any,
    /// Passes persistent reservations, not those of SPC-2.
    Harmless,
    /// Reads: passes write exclusive ones.
    Read,
    /// Writes, or changes the unit.
    Write,
    /// Sees to reservations itself.
    Own,
}

/// One registered port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registrant {
    pub(crate) port: Port,
    pub(crate) key: u64,
    /// Registered with ALL_TG_PT; there is one target port, so it makes no difference but in what is reported.
    pub(crate) all_ports: bool,
}

/// The persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) kind: Kind,
    /// Who made it; with a type of all registrants each of them holds it.
    pub(crate) port: Port,
}

/// Whom to tell what, once a change counts.
pub(crate) type Notices = Vec<(Port, AdditionalSense)>;

/// Who holds the reservation of SPC-2. Clones are one: it ends with a reset or with its nexus, and neither may have to
/// wait for whoever has the unit to itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Legacy(Arc<AtomicU64>);

/// No nexus has this number.
const NOBODY: u64 = 0;

impl Legacy {
    pub(crate) fn holder(&self) -> Option<NexusId> {
        Some(NexusId(self.0.load(Ordering::Acquire))).filter(|nexus| nexus.0 != NOBODY)
    }

    fn set(&self, nexus: NexusId) {
        self.0.store(nexus.0, Ordering::Release);
    }

    /// It ends, if this one has it.
    pub(crate) fn end(&self, nexus: NexusId) {
        // Another's stays.
        let _ = self.0.compare_exchange(nexus.0, NOBODY, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn clear(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

impl PartialEq for Legacy {
    fn eq(&self, other: &Self) -> bool {
        self.holder() == other.holder()
    }
}

impl Eq for Legacy {}

/// Everything reserved and registered on a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// PRGENERATION.
    pub(crate) generation: u32,
    pub(crate) registrants: Vec<Registrant>,
    pub(crate) held: Option<Held>,
    /// Registrations and reservation survive power loss (APTPL was set last).
    pub(crate) durable: bool,
    /// RESERVE of SPC-2.
    pub(crate) legacy: Legacy,
}

/// Fields that most actions of PERSISTENT RESERVE OUT have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// RESERVATION KEY: the nexus's own.
    pub(crate) own: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) action: u64,
}

impl Reservations {
    /// The registration of a port.
    pub(crate) fn registrant(&self, port: &Port) -> Option<&Registrant> {
        self.registrants.iter().find(|registrant| registrant.port == *port)
    }

    /// Does the port hold the persistent reservation?
    pub(crate) fn holds(&self, port: &Port) -> bool {
        match &self.held {
            None => false,
            Some(held) if held.kind.is_of_all() => self.registrant(port).is_some(),
            Some(held) => held.port == *port,
        }
    }

    /// Key that READ RESERVATION tells: the holder's; 0 if all hold it.
    pub(crate) fn held_key(&self) -> u64 {
        match &self.held {
            Some(held) if !held.kind.is_of_all() => {
                self.registrant(&held.port).map_or(0, |registrant| registrant.key)
            }
            _ => 0,
        }
    }

    /// May a command of this class pass?
    pub(crate) fn check(&self, nexus: NexusId, port: &Port, access: Access) -> Result<(), Failure> {
        if matches!(access, Access::Any | Access::Own) {
            return Ok(());
        }
        if self.legacy.holder().is_some_and(|holder| holder != nexus) {
            return Err(Failure::Conflict);
        }
        let Some(held) = &self.held else { return Ok(()) };
        let passes = access == Access::Harmless
            || (access == Access::Read && held.kind.is_write_exclusive())
            || self.holds(port)
            || (held.kind.admits_registrants() && self.registrant(port).is_some());
        if passes { Ok(()) } else { Err(Failure::Conflict) }
    }

    /// The registration that a command with this key comes from.
    fn authorize(&self, port: &Port, keys: Keys) -> Result<(), Failure> {
        match self.registrant(port) {
            Some(registrant) if registrant.key == keys.own => Ok(()),
            _ => Err(Failure::Conflict),
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// All registered ports but one.
    fn others(&self, port: &Port) -> impl Iterator<Item = Port> {
        let ports: Vec<Port> = self.registrants.iter().map(|registrant| registrant.port.clone()).collect();
        let port = port.clone();
        ports.into_iter().filter(move |other| *other != port)
    }

    /// REGISTER; with `ignore` REGISTER AND IGNORE EXISTING KEY.
    pub(crate) fn register(
        &mut self,
        port: &Port,
        keys: Keys,
        ignore: bool,
        all_ports: bool,
    ) -> Result<Notices, Failure> {
        match self.registrants.iter().position(|registrant| registrant.port == *port) {
            None if !ignore && keys.own != 0 => return Err(Failure::Conflict),
            None if keys.action == 0 => return Ok(Notices::new()),
            None => self.add(Registrant { port: port.clone(), key: keys.action, all_ports })?,
            Some(at) if !ignore && self.registrants[at].key != keys.own => return Err(Failure::Conflict),
            Some(_) if keys.action == 0 => {
                self.changed();
                return Ok(self.unregister(port));
            }
            Some(at) => {
                self.registrants[at].key = keys.action;
                self.registrants[at].all_ports = all_ports;
            }
        }
        self.changed();
        Ok(Notices::new())
    }

    fn add(&mut self, registrant: Registrant) -> Result<(), Failure> {
        if self.registrants.len() >= REGISTRANTS_MAX {
            return Err(Failure::Registrations);
        }
        self.registrants.push(registrant);
        Ok(())
    }

    /// Takes a registration away; the reservation goes with its only holder (SPC-4 §5.13.11.3).
    fn unregister(&mut self, port: &Port) -> Notices {
        self.registrants.retain(|registrant| registrant.port != *port);
        let released = match &self.held {
            Some(held) if held.kind.is_of_all() => self.registrants.is_empty(),
            Some(held) => held.port == *port,
            None => false,
        };
        if !released {
            return Notices::new();
        }
        let held = self.held.take();
        let told = held.is_some_and(|held| held.kind.admits_registrants());
        if told {
            self.others(port).map(|other| (other, additional::RESERVATIONS_RELEASED)).collect()
        } else {
            Notices::new()
        }
    }

    /// RESERVE.
    pub(crate) fn reserve(&mut self, port: &Port, keys: Keys, kind: Kind) -> Result<Notices, Failure> {
        self.authorize(port, keys)?;
        match &self.held {
            None => self.held = Some(Held { kind, port: port.clone() }),
            Some(held) if held.kind == kind && self.holds(port) => {}
            Some(_) => return Err(Failure::Conflict),
        }
        Ok(Notices::new())
    }

    /// RELEASE.
    pub(crate) fn release(&mut self, port: &Port, keys: Keys, kind: Kind) -> Result<Notices, Failure> {
        self.authorize(port, keys)?;
        if !self.holds(port) {
            return Ok(Notices::new());
        }
        if self.held.as_ref().is_some_and(|held| held.kind != kind) {
            return Err(Failure::InvalidRelease);
        }
        self.held = None;
        if !kind.admits_registrants() {
            return Ok(Notices::new());
        }
        Ok(self.others(port).map(|other| (other, additional::RESERVATIONS_RELEASED)).collect())
    }

    /// CLEAR.
    pub(crate) fn clear(&mut self, port: &Port, keys: Keys) -> Result<Notices, Failure> {
        self.authorize(port, keys)?;
        let notices = self.others(port).map(|other| (other, additional::RESERVATIONS_PREEMPTED)).collect();
        self.registrants.clear();
        self.held = None;
        self.changed();
        Ok(notices)
    }

    /// PREEMPT (SPC-4 §5.13.11.4); PREEMPT AND ABORT too, since no command of another nexus is under way while this
    /// runs.
    pub(crate) fn preempt(&mut self, port: &Port, keys: Keys, kind: Kind) -> Result<Notices, Failure> {
        self.authorize(port, keys)?;
        let of_all = self.held.as_ref().is_some_and(|held| held.kind.is_of_all());
        let takes_over = match &self.held {
            None => false,
            Some(_) if of_all => keys.action == 0,
            Some(_) => self.held_key() == keys.action,
        };
        if keys.action == 0 && !takes_over {
            return Err(Failure::parameter(8));
        }
        let is_victim = |registrant: &Registrant| keys.action == 0 || registrant.key == keys.action;
        if !takes_over && !self.registrants.iter().any(is_victim) {
            return Err(Failure::Conflict);
        }
        let mut notices = Notices::new();
        self.registrants.retain(|registrant| {
            // A nexus that names its own key keeps its registration when it takes the reservation over.
            let goes = is_victim(registrant) && (registrant.port != *port || !takes_over);
            if goes && registrant.port != *port {
                notices.push((registrant.port.clone(), additional::REGISTRATIONS_PREEMPTED));
            }
            !goes
        });
        if takes_over {
            let old = self.held.replace(Held { kind, port: port.clone() });
            if old.is_some_and(|old| old.kind != kind && old.kind.admits_registrants()) {
                notices.extend(self.others(port).map(|other| (other, additional::RESERVATIONS_RELEASED)));
            }
        } else if of_all && self.registrants.is_empty() {
            self.held = None;
        }
        self.changed();
        Ok(notices)
    }

    /// REGISTER AND MOVE.
    pub(crate) fn register_and_move(
        &mut self,
        port: &Port,
        keys: Keys,
        to: Port,
        unregister: bool,
    ) -> Result<Notices, Failure> {
        self.authorize(port, keys)?;
        let Some(held) = &self.held else { return Err(Failure::field(1)) };
        if held.kind.is_of_all() || held.port != *port {
            return Err(Failure::Conflict);
        }
        let kind = held.kind;
        if keys.action == 0 {
            return Err(Failure::parameter(8));
        }
        if to == *port {
            return Err(Failure::parameter(24));
        }
        match self.registrants.iter_mut().find(|registrant| registrant.port == to) {
            Some(registrant) => registrant.key = keys.action,
            None => self.add(Registrant { port: to.clone(), key: keys.action, all_ports: false })?,
        }
        self.held = Some(Held { kind, port: to });
        if unregister {
            self.registrants.retain(|registrant| registrant.port != *port);
        }
        self.changed();
        Ok(Notices::new())
    }

    /// RESERVE(6): beside registrations it does nothing for a registrant and conflicts for others (CRH).
    pub(crate) fn reserve_legacy(&self, nexus: NexusId, port: &Port) -> Result<(), Failure> {
        if !self.registrants.is_empty() {
            return if self.registrant(port).is_some() { Ok(()) } else { Err(Failure::Conflict) };
        }
        match self.legacy.holder() {
            Some(holder) if holder != nexus => Err(Failure::Conflict),
            _ => {
                self.legacy.set(nexus);
                Ok(())
            }
        }
    }

    /// RELEASE(6): of another's reservation it is ignored.
    pub(crate) fn release_legacy(&self, nexus: NexusId, port: &Port) -> Result<(), Failure> {
        if !self.registrants.is_empty() {
            return if self.registrant(port).is_some() { Ok(()) } else { Err(Failure::Conflict) };
        }
        self.legacy.end(nexus);
        Ok(())
    }
}

/// How registrations and reservation are kept on the medium.
mod record {
    use super::{Held, Kind, Port, Registrant, Reservations};

    /// The first had no accounts.
    const WITHOUT_ACCOUNTS: u8 = 1;
    const VERSION: u8 = 2;
    const NOBODY: u16 = u16::MAX;

    /// The state as bytes.
    pub(super) fn encode(state: &Reservations) -> Vec<u8> {
        let holder = state.held.as_ref().and_then(|held| {
            let at = state.registrants.iter().position(|registrant| registrant.port == held.port);
            // With a type of all registrants the one that made it may be gone: any other stands for it.
            at.or(held.kind.is_of_all().then_some(0)).and_then(|at| u16::try_from(at).ok())
        });
        let kind = state.held.as_ref().map_or(0, |held| held.kind as u8);
        let mut out = vec![VERSION, kind];
        out.extend(holder.unwrap_or(NOBODY).to_be_bytes());
        for Registrant { port, key, all_ports } in &state.registrants {
            out.extend(key.to_be_bytes());
            out.extend(port.isid);
            out.push(u8::from(*all_ports));
            let name = port.name.as_bytes();
            out.push(u8::try_from(name.len()).expect("an iSCSI name has at most 223 bytes"));
            out.extend_from_slice(name);
            let account = port.account.as_deref().unwrap_or_default().as_bytes();
            out.push(u8::try_from(account.len()).expect("a CHAP name has at most 255 bytes"));
            out.extend_from_slice(account);
        }
        out
    }

    /// The state of such bytes; `None` if they are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Reservations> {
        let [version @ (WITHOUT_ACCOUNTS | VERSION), kind, high, low, rest @ ..] = bytes else { return None };
        let mut rest = rest;
        let mut registrants = Vec::new();
        while !rest.is_empty() {
            let (fixed, tail) = rest.split_first_chunk::<16>()?;
            let (key, tail_of_fixed) = fixed.split_first_chunk::<8>()?;
            let &[a, b, c, d, e, f, all_ports, length] = tail_of_fixed.first_chunk::<8>()?;
            let (name, mut next) = tail.split_at_checked(usize::from(length))?;
            let mut account = None;
            if *version == VERSION {
                let (&length, tail) = next.split_first()?;
                let (bytes, after) = tail.split_at_checked(usize::from(length))?;
                account = Some(std::str::from_utf8(bytes).ok()?.to_owned()).filter(|name| !name.is_empty());
                next = after;
            }
            let name = std::str::from_utf8(name).ok()?.to_owned();
            let port = Port { name, isid: [a, b, c, d, e, f], account };
            registrants.push(Registrant { port, key: u64::from_be_bytes(*key), all_ports: all_ports != 0 });
            rest = next;
        }
        let held = match (Kind::from_code(*kind), u16::from_be_bytes([*high, *low])) {
            (Some(kind), at) if at != NOBODY => {
                Some(Held { kind, port: registrants.get(usize::from(at))?.port.clone() })
            }
            (None, NOBODY) if *kind == 0 => None,
            _ => return None,
        };
        Some(Reservations { registrants, held, durable: true, ..Reservations::default() })
    }
}

impl Reservations {
    /// What is kept on the medium; empty if nothing has to survive.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        if self.durable { record::encode(self) } else { Vec::new() }
    }

    /// What was kept; `None` if it is damaged.
    pub(crate) fn from_record(bytes: &[u8]) -> Option<Self> {
        record::decode(bytes)
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;
