//! Which logical unit a command goes to, and what is said for those that are not there (SAM-5 §4.7, SPC-4).
//!
//! Logical units come and go while the target serves; whoever holds one keeps it for the command at hand.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use parking_lot::RwLock;
use sealstone_scsi::{
    Sense, SenseKey,
    additional::INTERNAL_TARGET_FAILURE,
    lu::{LogicalUnit, ScsiReply},
    primary,
    spc::{self, Select, SpcCommand},
};

use crate::ConfigError;

/// Flat space addressing says 14 bits.
const LUN_MAX: u64 = 0x3FFF;
/// Most logical units of one target: what REPORT LUNS tells in 16 KiB.
const LUNS_MAX: usize = 2047;

pub(crate) struct Luns(RwLock<BTreeMap<u16, Arc<dyn LogicalUnit>>>);

/// Who answers a command.
pub(crate) enum Addressee {
    Unit(u64, Arc<dyn LogicalUnit>),
    /// The target itself already did.
    Answered(ScsiReply),
    /// REPORT LUNS, likewise; the attention about it is no news any more.
    Reported(ScsiReply),
}

impl Luns {
    pub(crate) fn new(units: Vec<(u64, Arc<dyn LogicalUnit>)>) -> Result<Self, ConfigError> {
        let luns = Self(RwLock::default());
        for (number, unit) in units {
            luns.insert(number, unit)?;
        }
        Ok(luns)
    }

    /// One more logical unit.
    pub(crate) fn insert(&self, number: u64, unit: Arc<dyn LogicalUnit>) -> Result<(), ConfigError> {
        let mut luns = self.0.write();
        let place = u16::try_from(number).ok().filter(|_| number <= LUN_MAX && luns.len() < LUNS_MAX);
        match place {
            Some(place) if !luns.contains_key(&place) => {
                luns.insert(place, unit);
                Ok(())
            }
            _ => Err(ConfigError::Lun(number)),
        }
    }

    /// One less; commands that hold it end as they would.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<dyn LogicalUnit>> {
        self.0.write().remove(&u16::try_from(number).ok()?)
    }

    pub(crate) fn units(&self) -> Vec<Arc<dyn LogicalUnit>> {
        self.0.read().values().cloned().collect()
    }

    pub(crate) fn find(&self, wire: u64, seen: Seen<'_>) -> Option<(u64, Arc<dyn LogicalUnit>)> {
        let number = spc::flat_lun(wire.to_be_bytes())?;
        let place = u16::try_from(number).ok().filter(|place| sees(seen, *place))?;
        let unit = self.0.read().get(&place).cloned()?;
        Some((number, unit))
    }

    /// `seen` are the logical units that the initiator may see; the others are not there for it.
    pub(crate) fn address(&self, wire: u64, cdb: &[u8], data_in_max: usize, seen: Seen<'_>) -> Addressee {
        if cdb.first() == Some(&spc::opcode::REPORT_LUNS) {
            let descriptor = self.find(wire, seen).is_some_and(|(_, unit)| unit.has_descriptor_sense());
            return self.report(cdb, data_in_max, seen, descriptor);
        }
        match self.find(wire, seen) {
            Some((number, unit)) => Addressee::Unit(number, unit),
            None => Addressee::Answered(primary::absent(cdb, data_in_max)),
        }
    }

    fn report(&self, cdb: &[u8], data_in_max: usize, seen: Seen<'_>, descriptor: bool) -> Addressee {
        let (select, allocation) = match SpcCommand::parse(cdb) {
            Ok(SpcCommand::ReportLuns { select, allocation }) => (select, allocation),
            Ok(_) => return Addressee::Answered(failed(descriptor)),
            Err(error) => return Addressee::Answered(check(&error.sense(), descriptor)),
        };
        let visible = |place: &u16| select != Select::WellKnown && sees(seen, *place);
        let numbers: Vec<u16> = self.0.read().keys().copied().filter(visible).collect();
        let mut data = spc::report_luns(&numbers);
        data.truncate(allocation as usize);
        Addressee::Reported(ScsiReply::data(Bytes::from(data), data_in_max))
    }
}

/// The numbers that an initiator may see; `None`: all.
pub(crate) type Seen<'a> = Option<&'a [u16]>;

fn sees(seen: Seen<'_>, place: u16) -> bool {
    seen.is_none_or(|seen| seen.contains(&place))
}

/// CHECK CONDITION in the format of the logical unit.
fn check(sense: &Sense, descriptor: bool) -> ScsiReply {
    ScsiReply::check(if descriptor { sense.encode() } else { sense.encode_fixed() })
}

/// HARDWARE ERROR, INTERNAL TARGET FAILURE.
pub(crate) fn failed(descriptor: bool) -> ScsiReply {
    check(&Sense::new(SenseKey::HardwareError, INTERNAL_TARGET_FAILURE), descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_ill_formed_luns_have_no_unit() {
        let luns = Luns::new(Vec::new()).unwrap();
        for wire in [0, 1, 0x0100_0000_0000_0000, 0x8000_0000_0000_0000, 0xC101_0000_0000_0000] {
            assert!(luns.find(wire, None).is_none(), "{wire:#x}");
        }
    }

    #[test]
    fn short_cdbs_never_panic() {
        let luns = Luns::new(Vec::new()).unwrap();
        for opcode in [0x12, 0x03, 0xA0, 0] {
            for len in 0..16 {
                let mut cdb = vec![0xFF; len];
                if let Some(first) = cdb.first_mut() {
                    *first = opcode;
                }
                let _ = luns.address(0, &cdb, 255, None);
            }
        }
    }
}
