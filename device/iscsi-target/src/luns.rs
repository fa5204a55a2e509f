//! Routes commands to logical units, and answers for LUNs that do not exist (SAM-5 §4.7, SPC-4).
//!
//! Logical units are added and removed while the target serves; a running command keeps its unit
//! alive.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use parking_lot::RwLock;
use sealstone_block_protection::ProtectionSettings;
use sealstone_scsi::{
    Sense, SenseKey,
    additional::INTERNAL_TARGET_FAILURE,
    lu::{LogicalUnit, ScsiReply},
    primary,
    spc::{self, Select, SpcCommand},
};

use crate::ConfigError;

/// Flat space addressing has 14 bits.
const LUN_MAX: u64 = 0x3FFF;
/// Logical units of one target: as many as REPORT LUNS lists in 16 KiB.
const LUNS_MAX: usize = 2047;

pub(crate) struct LunMap(RwLock<BTreeMap<u16, AttachedUnit>>);

struct AttachedUnit {
    unit: Arc<dyn LogicalUnit>,
    /// Protection that a session must have to use the unit.
    protection: Option<ProtectionSettings>,
}

/// Where a command is answered.
pub(crate) enum CommandRoute {
    Unit(u64, Arc<dyn LogicalUnit>),
    /// The target has answered it.
    Answered(ScsiReply),
    /// The target has answered REPORT LUNS, which clears the unit attention about the list.
    Reported(ScsiReply),
}

impl LunMap {
    pub(crate) fn new(units: Vec<(u64, Arc<dyn LogicalUnit>)>) -> Result<Self, ConfigError> {
        let luns = Self(RwLock::default());
        for (number, unit) in units {
            luns.insert(number, unit, None)?;
        }
        Ok(luns)
    }

    /// Adds a logical unit, with the protection that it requires of sessions.
    pub(crate) fn insert(
        &self,
        number: u64,
        unit: Arc<dyn LogicalUnit>,
        protection: Option<ProtectionSettings>,
    ) -> Result<(), ConfigError> {
        let mut luns = self.0.write();
        let place = u16::try_from(number).ok().filter(|_| number <= LUN_MAX && luns.len() < LUNS_MAX);
        match place {
            Some(place) if !luns.contains_key(&place) => {
                luns.insert(place, AttachedUnit { unit, protection });
                Ok(())
            }
            _ => Err(ConfigError::Lun(number)),
        }
    }

    /// Removes a logical unit. Running commands keep it until they end.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<dyn LogicalUnit>> {
        self.0.write().remove(&u16::try_from(number).ok()?).map(|attached| attached.unit)
    }

    pub(crate) fn units(&self) -> Vec<Arc<dyn LogicalUnit>> {
        self.0.read().values().map(|attached| Arc::clone(&attached.unit)).collect()
    }

    /// Returns every protection that gives access to a unit, once.
    pub(crate) fn protections(&self) -> Vec<ProtectionSettings> {
        let mut all = Vec::new();
        let required = self.0.read();
        let required = required.values().filter_map(|attached| attached.protection);
        for settings in required.flat_map(ProtectionSettings::fulfilling) {
            if !all.contains(&settings) {
                all.push(settings);
            }
        }
        all
    }

    /// Whether the session sees no unit only because of its protection.
    pub(crate) fn are_all_protected(&self, visible: VisibleLuns<'_>) -> bool {
        let any_protection = VisibleLuns { any_protection: true, ..visible };
        let luns = self.0.read();
        let sees = |visible: VisibleLuns<'_>| {
            luns.iter().any(|(place, attached)| visible.includes(*place, attached.protection))
        };
        sees(any_protection) && !sees(visible)
    }

    pub(crate) fn find(&self, wire: u64, visible: VisibleLuns<'_>) -> Option<(u64, Arc<dyn LogicalUnit>)> {
        let number = spc::flat_lun(wire.to_be_bytes())?;
        let place = u16::try_from(number).ok()?;
        let luns = self.0.read();
        let attached = luns.get(&place).filter(|attached| visible.includes(place, attached.protection))?;
        Some((number, Arc::clone(&attached.unit)))
    }

    /// Routes a command. LUNs that are not in `visible` do not exist for the initiator.
    pub(crate) fn address(
        &self,
        wire: u64,
        cdb: &[u8],
        data_in_max: usize,
        visible: VisibleLuns<'_>,
    ) -> CommandRoute {
        if cdb.first() == Some(&spc::opcode::REPORT_LUNS) {
            let descriptor = self.find(wire, visible).is_some_and(|(_, unit)| unit.has_descriptor_sense());
            return self.report(cdb, data_in_max, visible, descriptor);
        }
        match self.find(wire, visible) {
            Some((number, unit)) => CommandRoute::Unit(number, unit),
            None => CommandRoute::Answered(primary::absent(cdb, data_in_max)),
        }
    }

    fn report(
        &self,
        cdb: &[u8],
        data_in_max: usize,
        visible: VisibleLuns<'_>,
        descriptor: bool,
    ) -> CommandRoute {
        let (select, allocation) = match SpcCommand::parse(cdb) {
            Ok(SpcCommand::ReportLuns { select, allocation }) => (select, allocation),
            Ok(_) => return CommandRoute::Answered(failed(descriptor)),
            Err(error) => return CommandRoute::Answered(check(&error.sense(), descriptor)),
        };
        let luns = self.0.read();
        let listed = luns.iter().filter(|(place, attached)| {
            select != Select::WellKnown && visible.includes(**place, attached.protection)
        });
        let numbers: Vec<u16> = listed.map(|(place, _)| *place).collect();
        let mut data = spc::report_luns(&numbers);
        data.truncate(allocation as usize);
        CommandRoute::Reported(ScsiReply::data(Bytes::from(data), data_in_max))
    }
}

/// LUNs visible to a session.
#[derive(Clone, Copy)]
pub(crate) struct VisibleLuns<'a> {
    /// LUNs that the access rules permit. `None`: all.
    pub(crate) permitted: Option<&'a [u16]>,
    /// Protection of the session. Units that require more are invisible.
    pub(crate) protection: Option<ProtectionSettings>,
    /// Whether protection is ignored.
    any_protection: bool,
}

impl<'a> VisibleLuns<'a> {
    /// Every LUN, for queries of the target itself.
    pub(crate) const ALL: Self = Self { permitted: None, protection: None, any_protection: true };

    /// Returns what a session may see.
    pub(crate) const fn of_session(
        permitted: Option<&'a [u16]>,
        protection: Option<ProtectionSettings>,
    ) -> Self {
        Self { permitted, protection, any_protection: false }
    }

    fn includes(&self, place: u16, required: Option<ProtectionSettings>) -> bool {
        let fulfils =
            required.is_none_or(|required| self.protection.is_some_and(|own| own.fulfils(&required)));
        (self.any_protection || fulfils) && self.permitted.is_none_or(|permitted| permitted.contains(&place))
    }
}

/// Returns CHECK CONDITION in the sense format of the logical unit.
fn check(sense: &Sense, descriptor: bool) -> ScsiReply {
    ScsiReply::check(if descriptor { sense.encode() } else { sense.encode_fixed() })
}

/// Returns HARDWARE ERROR, INTERNAL TARGET FAILURE.
pub(crate) fn failed(descriptor: bool) -> ScsiReply {
    check(&Sense::new(SenseKey::HardwareError, INTERNAL_TARGET_FAILURE), descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_and_ill_formed_luns_have_no_unit() {
        let luns = LunMap::new(Vec::new()).unwrap();
        for wire in [0, 1, 0x0100_0000_0000_0000, 0x8000_0000_0000_0000, 0xC101_0000_0000_0000] {
            assert!(luns.find(wire, VisibleLuns::ALL).is_none(), "{wire:#x}");
        }
    }

    #[test]
    fn short_cdbs_never_panic() {
        let luns = LunMap::new(Vec::new()).unwrap();
        for opcode in [0x12, 0x03, 0xA0, 0] {
            for len in 0..16 {
                let mut cdb = vec![0xFF; len];
                if let Some(first) = cdb.first_mut() {
                    *first = opcode;
                }
                let _ = luns.address(0, &cdb, 255, VisibleLuns::ALL);
            }
        }
    }
}
