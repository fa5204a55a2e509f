//! State machine of reservations: persistent ones (SPC-4 §5.13) and those of SPC-2 (SPC-4 annex on
//! RESERVE and RELEASE).
//!
//! Does: keep registrations and reservations, decide which commands pass.
//! Does not: parse CDBs, store anything, notify initiators; `reserve` does.
//! Contract: a change is made on a copy, which replaces the state only after it is durable, if it
//! has to be. A change returns the notices to send; none is sent for a change that failed.
//! Truth: SPC-4 §5.13 and tables of commands allowed in the presence of reservations;
//! `docs/standards/block.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_scsi::lu::NexusId;
use sealstone_scsi::{AdditionalSense, additional};

use crate::failure::BlockFailure;
use crate::ports::PortIdentity;

/// Registrations of a unit.
pub(crate) const REGISTRANTS_MAX: usize = 64;

/// Type of a persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
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

    /// Whether other initiators may read.
    const fn is_write_exclusive(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants
        )
    }

    /// Whether every registrant holds the reservation.
    pub(crate) const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether registrants have the access of the holder.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// Access class of a command with respect to reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandAccess {
    /// Passes any reservation.
    Any,
    /// Passes persistent reservations, not those of SPC-2.
    Harmless,
    /// Reads: passes write-exclusive reservations.
    Read,
    /// Writes, or changes the unit.
    Write,
    /// The command checks reservations itself.
    Own,
}

/// One registered port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegisteredPort {
    pub(crate) port: PortIdentity,
    pub(crate) key: u64,
    /// Registered with ALL_TG_PT. There is one target port, so it only affects reports.
    pub(crate) all_ports: bool,
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersistentReservation {
    pub(crate) kind: ReservationType,
    /// Port that reserved. With a type of all registrants each of them is a holder.
    pub(crate) port: PortIdentity,
}

/// Unit attentions to queue after a change takes effect.
pub(crate) type ReservationNotices = Vec<(PortIdentity, AdditionalSense)>;

/// Holder of the SPC-2 reservation. Clones share it, because a reset or the loss of the nexus ends
/// it without waiting for the command lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct LegacyReservation(Arc<AtomicU64>);

/// No nexus has this id.
const NO_HOLDER: u64 = 0;

impl LegacyReservation {
    pub(crate) fn holder(&self) -> Option<NexusId> {
        Some(NexusId(self.0.load(Ordering::Acquire))).filter(|nexus| nexus.0 != NO_HOLDER)
    }

    fn set(&self, nexus: NexusId) {
        self.0.store(nexus.0, Ordering::Release);
    }

    /// Ends the reservation if this nexus holds it.
    pub(crate) fn end(&self, nexus: NexusId) {
        // A reservation of another nexus stays.
        let _ = self.0.compare_exchange(nexus.0, NO_HOLDER, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn clear(&self) {
        self.0.store(NO_HOLDER, Ordering::Release);
    }
}

impl PartialEq for LegacyReservation {
    fn eq(&self, other: &Self) -> bool {
        self.holder() == other.holder()
    }
}

impl Eq for LegacyReservation {}

/// Registrations and reservations of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReservationState {
    /// PRGENERATION: counts changes of the registrations.
    pub(crate) generation: u32,
    pub(crate) registrants: Vec<RegisteredPort>,
    pub(crate) held: Option<PersistentReservation>,
    /// Whether registrations and reservation survive power loss (APTPL of the last registration).
    pub(crate) durable: bool,
    /// Reservation by RESERVE of SPC-2.
    pub(crate) legacy: LegacyReservation,
}

/// Keys in the parameter list of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservationKeys {
    /// RESERVATION KEY: key of the sending nexus.
    pub(crate) own: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(crate) action: u64,
}

impl ReservationState {
    /// Returns the registration of a port.
    pub(crate) fn registrant(&self, port: &PortIdentity) -> Option<&RegisteredPort> {
        self.registrants.iter().find(|registrant| registrant.port == *port)
    }

    /// Whether the port holds the persistent reservation.
    pub(crate) fn holds(&self, port: &PortIdentity) -> bool {
        match &self.held {
            None => false,
            Some(held) if held.kind.is_of_all() => self.registrant(port).is_some(),
            Some(held) => held.port == *port,
        }
    }

    /// Returns the key for READ RESERVATION: that of the holder; 0 if all registrants hold it.
    pub(crate) fn held_key(&self) -> u64 {
        match &self.held {
            Some(held) if !held.kind.is_of_all() => {
                self.registrant(&held.port).map_or(0, |registrant| registrant.key)
            }
            _ => 0,
        }
    }

    /// Checks whether a command of this class may pass.
    pub(crate) fn check(
        &self,
        nexus: NexusId,
        port: &PortIdentity,
        access: CommandAccess,
    ) -> Result<(), BlockFailure> {
        if matches!(access, CommandAccess::Any | CommandAccess::Own) {
            return Ok(());
        }
        if self.legacy.holder().is_some_and(|holder| holder != nexus) {
            return Err(BlockFailure::Conflict);
        }
        let Some(held) = &self.held else { return Ok(()) };
        let passes = access == CommandAccess::Harmless
            || (access == CommandAccess::Read && held.kind.is_write_exclusive())
            || self.holds(port)
            || (held.kind.admits_registrants() && self.registrant(port).is_some());
        if passes { Ok(()) } else { Err(BlockFailure::Conflict) }
    }

    /// Checks that the port is registered with this key.
    fn authorize(&self, port: &PortIdentity, keys: ReservationKeys) -> Result<(), BlockFailure> {
        match self.registrant(port) {
            Some(registrant) if registrant.key == keys.own => Ok(()),
            _ => Err(BlockFailure::Conflict),
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns all registered ports except one.
    fn others(&self, port: &PortIdentity) -> impl Iterator<Item = PortIdentity> {
        let ports: Vec<PortIdentity> =
            self.registrants.iter().map(|registrant| registrant.port.clone()).collect();
        let port = port.clone();
        ports.into_iter().filter(move |other| *other != port)
    }

    /// REGISTER; with `ignore`, REGISTER AND IGNORE EXISTING KEY.
    pub(crate) fn register(
        &mut self,
        port: &PortIdentity,
        keys: ReservationKeys,
        ignore: bool,
        all_ports: bool,
    ) -> Result<ReservationNotices, BlockFailure> {
        match self.registrants.iter().position(|registrant| registrant.port == *port) {
            None if !ignore && keys.own != 0 => return Err(BlockFailure::Conflict),
            None if keys.action == 0 => return Ok(ReservationNotices::new()),
            None => self.add(RegisteredPort { port: port.clone(), key: keys.action, all_ports })?,
            Some(at) if !ignore && self.registrants[at].key != keys.own => {
                return Err(BlockFailure::Conflict);
            }
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
        Ok(ReservationNotices::new())
    }

    fn add(&mut self, registrant: RegisteredPort) -> Result<(), BlockFailure> {
        if self.registrants.len() >= REGISTRANTS_MAX {
            return Err(BlockFailure::Registrations);
        }
        self.registrants.push(registrant);
        Ok(())
    }

    /// Removes a registration, and the reservation if this was its only holder (SPC-4 §5.13.11.3).
    fn unregister(&mut self, port: &PortIdentity) -> ReservationNotices {
        self.registrants.retain(|registrant| registrant.port != *port);
        let released = match &self.held {
            Some(held) if held.kind.is_of_all() => self.registrants.is_empty(),
            Some(held) => held.port == *port,
            None => false,
        };
        if !released {
            return ReservationNotices::new();
        }
        let held = self.held.take();
        let notify = held.is_some_and(|held| held.kind.admits_registrants());
        if notify {
            self.others(port).map(|other| (other, additional::RESERVATIONS_RELEASED)).collect()
        } else {
            ReservationNotices::new()
        }
    }

    /// Applies RESERVE.
    pub(crate) fn reserve(
        &mut self,
        port: &PortIdentity,
        keys: ReservationKeys,
        kind: ReservationType,
    ) -> Result<ReservationNotices, BlockFailure> {
        self.authorize(port, keys)?;
        match &self.held {
            None => self.held = Some(PersistentReservation { kind, port: port.clone() }),
            Some(held) if held.kind == kind && self.holds(port) => {}
            Some(_) => return Err(BlockFailure::Conflict),
        }
        Ok(ReservationNotices::new())
    }

    /// Applies RELEASE.
    pub(crate) fn release(
        &mut self,
        port: &PortIdentity,
        keys: ReservationKeys,
        kind: ReservationType,
    ) -> Result<ReservationNotices, BlockFailure> {
        self.authorize(port, keys)?;
        if !self.holds(port) {
            return Ok(ReservationNotices::new());
        }
        if self.held.as_ref().is_some_and(|held| held.kind != kind) {
            return Err(BlockFailure::InvalidRelease);
        }
        self.held = None;
        if !kind.admits_registrants() {
            return Ok(ReservationNotices::new());
        }
        Ok(self.others(port).map(|other| (other, additional::RESERVATIONS_RELEASED)).collect())
    }

    /// Applies CLEAR.
    pub(crate) fn clear(
        &mut self,
        port: &PortIdentity,
        keys: ReservationKeys,
    ) -> Result<ReservationNotices, BlockFailure> {
        self.authorize(port, keys)?;
        let notices = self.others(port).map(|other| (other, additional::RESERVATIONS_PREEMPTED)).collect();
        self.registrants.clear();
        self.held = None;
        self.changed();
        Ok(notices)
    }

    /// PREEMPT (SPC-4 §5.13.11.4). Also PREEMPT AND ABORT, since no command of another nexus is in
    /// progress while this runs.
    pub(crate) fn preempt(
        &mut self,
        port: &PortIdentity,
        keys: ReservationKeys,
        kind: ReservationType,
    ) -> Result<ReservationNotices, BlockFailure> {
        self.authorize(port, keys)?;
        let of_all = self.held.as_ref().is_some_and(|held| held.kind.is_of_all());
        let takes_over = match &self.held {
            None => false,
            Some(_) if of_all => keys.action == 0,
            Some(_) => self.held_key() == keys.action,
        };
        if keys.action == 0 && !takes_over {
            return Err(BlockFailure::parameter(8));
        }
        let is_victim = |registrant: &RegisteredPort| keys.action == 0 || registrant.key == keys.action;
        if !takes_over && !self.registrants.iter().any(is_victim) {
            return Err(BlockFailure::Conflict);
        }
        let mut notices = ReservationNotices::new();
        self.registrants.retain(|registrant| {
            // A nexus that preempts with its own key keeps its registration.
            let removed = is_victim(registrant) && (registrant.port != *port || !takes_over);
            if removed && registrant.port != *port {
                notices.push((registrant.port.clone(), additional::REGISTRATIONS_PREEMPTED));
            }
            !removed
        });
        if takes_over {
            let old = self.held.replace(PersistentReservation { kind, port: port.clone() });
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
        port: &PortIdentity,
        keys: ReservationKeys,
        to: PortIdentity,
        unregister: bool,
    ) -> Result<ReservationNotices, BlockFailure> {
        self.authorize(port, keys)?;
        let Some(held) = &self.held else { return Err(BlockFailure::field(1)) };
        if held.kind.is_of_all() || held.port != *port {
            return Err(BlockFailure::Conflict);
        }
        let kind = held.kind;
        if keys.action == 0 {
            return Err(BlockFailure::parameter(8));
        }
        if to == *port {
            return Err(BlockFailure::parameter(24));
        }
        match self.registrants.iter_mut().find(|registrant| registrant.port == to) {
            Some(registrant) => registrant.key = keys.action,
            None => self.add(RegisteredPort { port: to.clone(), key: keys.action, all_ports: false })?,
        }
        self.held = Some(PersistentReservation { kind, port: to });
        if unregister {
            self.registrants.retain(|registrant| registrant.port != *port);
        }
        self.changed();
        Ok(ReservationNotices::new())
    }

    /// RESERVE(6). While registrations exist it does nothing for a registrant and conflicts for
    /// others (CRH).
    pub(crate) fn reserve_legacy(&self, nexus: NexusId, port: &PortIdentity) -> Result<(), BlockFailure> {
        if !self.registrants.is_empty() {
            return if self.registrant(port).is_some() { Ok(()) } else { Err(BlockFailure::Conflict) };
        }
        match self.legacy.holder() {
            Some(holder) if holder != nexus => Err(BlockFailure::Conflict),
            _ => {
                self.legacy.set(nexus);
                Ok(())
            }
        }
    }

    /// RELEASE(6). Releasing the reservation of another nexus is ignored.
    pub(crate) fn release_legacy(&self, nexus: NexusId, port: &PortIdentity) -> Result<(), BlockFailure> {
        if !self.registrants.is_empty() {
            return if self.registrant(port).is_some() { Ok(()) } else { Err(BlockFailure::Conflict) };
        }
        self.legacy.end(nexus);
        Ok(())
    }
}

/// Stored form of registrations and reservation.
mod record {
    use super::{PersistentReservation, PortIdentity, RegisteredPort, ReservationState, ReservationType};

    /// The first layout had no accounts.
    const WITHOUT_ACCOUNTS: u8 = 1;
    const VERSION: u8 = 2;
    const NO_HOLDER: u16 = u16::MAX;

    /// Encodes the state.
    pub(super) fn encode(state: &ReservationState) -> Vec<u8> {
        let holder = state.held.as_ref().and_then(|held| {
            let at = state.registrants.iter().position(|registrant| registrant.port == held.port);
            // With a type of all registrants, the port that reserved may have unregistered: any
            // other stands for it.
            at.or(held.kind.is_of_all().then_some(0)).and_then(|at| u16::try_from(at).ok())
        });
        let kind = state.held.as_ref().map_or(0, |held| held.kind as u8);
        let mut out = vec![VERSION, kind];
        out.extend(holder.unwrap_or(NO_HOLDER).to_be_bytes());
        for RegisteredPort { port, key, all_ports } in &state.registrants {
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

    /// Decodes the state; `None` if the record is invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<ReservationState> {
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
            let port = PortIdentity { name, isid: [a, b, c, d, e, f], account };
            registrants.push(RegisteredPort {
                port,
                key: u64::from_be_bytes(*key),
                all_ports: all_ports != 0,
            });
            rest = next;
        }
        let held = match (ReservationType::from_code(*kind), u16::from_be_bytes([*high, *low])) {
            (Some(kind), at) if at != NO_HOLDER => {
                Some(PersistentReservation { kind, port: registrants.get(usize::from(at))?.port.clone() })
            }
            (None, NO_HOLDER) if *kind == 0 => None,
            _ => return None,
        };
        Some(ReservationState { registrants, held, durable: true, ..ReservationState::default() })
    }
}

impl ReservationState {
    /// Returns the record to store, which is empty if nothing must survive.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        if self.durable { record::encode(self) } else { Vec::new() }
    }

    /// Reads a record; `None` if it is damaged.
    pub(crate) fn from_record(bytes: &[u8]) -> Option<Self> {
        record::decode(bytes)
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;
