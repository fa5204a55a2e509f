//! Which logical unit a command goes to, and what is said for those that are not there (SAM-5 §4.7, SPC-4).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use sealstone_scsi::{
    Status,
    lu::{LogicalUnit, ScsiReply},
};

use crate::ConfigError;

/// Flat space addressing says 14 bits.
const LUN_MAX: u64 = 0x3FFF;
const INQUIRY: u8 = 0x12;
const REQUEST_SENSE: u8 = 0x03;
const REPORT_LUNS: u8 = 0xA0;

pub(crate) struct Luns(BTreeMap<u64, Arc<dyn LogicalUnit>>);

/// Who answers a command.
pub(crate) enum Addressee {
    Unit(u64, Arc<dyn LogicalUnit>),
    /// The target itself already did.
    Answered(ScsiReply),
}

impl Luns {
    pub(crate) fn new(units: Vec<(u64, Arc<dyn LogicalUnit>)>) -> Result<Self, ConfigError> {
        let mut luns = BTreeMap::new();
        for (number, unit) in units {
            if number > LUN_MAX || luns.insert(number, unit).is_some() {
                return Err(ConfigError::Lun(number));
            }
        }
        Ok(Self(luns))
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Arc<dyn LogicalUnit>> {
        self.0.values()
    }

    pub(crate) fn find(&self, wire: u64) -> Option<(u64, &Arc<dyn LogicalUnit>)> {
        let number = decode(wire)?;
        Some((number, self.0.get(&number)?))
    }

    pub(crate) fn address(&self, wire: u64, cdb: &[u8]) -> Addressee {
        if cdb.first() == Some(&REPORT_LUNS) {
            return Addressee::Answered(self.report(cdb));
        }
        match self.find(wire) {
            Some((number, unit)) => Addressee::Unit(number, Arc::clone(unit)),
            None => Addressee::Answered(absent(cdb)),
        }
    }

    fn report(&self, cdb: &[u8]) -> ScsiReply {
        const WELL_KNOWN_ONLY: u8 = 1;
        const ALL_SELECTIONS: u8 = 2;
        let Some((&[select], &allocation)) = cdb
            .get(2..3)
            .and_then(|s| s.first_chunk())
            .zip(cdb.get(6..10).and_then(|bytes| bytes.first_chunk::<4>()))
        else {
            return check(0x05, 0x24, 0);
        };
        if select > ALL_SELECTIONS {
            return check(0x05, 0x24, 0);
        }
        let numbers: Vec<u64> =
            if select == WELL_KNOWN_ONLY { Vec::new() } else { self.0.keys().copied().collect() };
        let mut data = u32::try_from(numbers.len() * 8).unwrap_or_default().to_be_bytes().to_vec();
        data.extend_from_slice(&[0; 4]);
        data.extend(numbers.into_iter().flat_map(|number| encode(number).to_be_bytes()));
        data.truncate(u32::from_be_bytes(allocation) as usize);
        ScsiReply::data(Bytes::from(data), usize::MAX)
    }
}

/// Peripheral (bus 0) and flat space addressing of a single level.
fn decode(wire: u64) -> Option<u64> {
    let [high, low, rest @ ..] = wire.to_be_bytes();
    let flat = high >> 6 == 1;
    let peripheral = high == 0;
    (rest == [0; 6] && (flat || peripheral)).then(|| u64::from(high & 0x3F) << 8 | u64::from(low))
}

fn encode(number: u64) -> u64 {
    if number < 256 { number << 48 } else { (0x4000 | number) << 48 }
}

fn absent(cdb: &[u8]) -> ScsiReply {
    match cdb.first() {
        Some(&INQUIRY) => {
            // Peripheral qualifier 3, no device type; SPC-4; response data format 2.
            let mut data = [0_u8; 36];
            data[..5].copy_from_slice(&[0x7F, 0, 6, 2, 31]);
            let allocation =
                cdb.get(3..5).map_or(0, |bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
            ScsiReply::data(Bytes::copy_from_slice(&data[..allocation.min(36)]), usize::MAX)
        }
        Some(&REQUEST_SENSE) => {
            let allocation = cdb.get(4).map_or(0, |length| usize::from(*length));
            let mut sense = fixed_sense(0x05, 0x25, 0);
            sense.truncate(allocation);
            ScsiReply::data(Bytes::from(sense), usize::MAX)
        }
        _ => check(0x05, 0x25, 0), // LOGICAL UNIT NOT SUPPORTED
    }
}

fn fixed_sense(key: u8, code: u8, qualifier: u8) -> Vec<u8> {
    vec![0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]
}

/// CHECK CONDITION said by the target itself.
pub(crate) fn check(key: u8, code: u8, qualifier: u8) -> ScsiReply {
    ScsiReply { status: Status::CheckCondition, ..ScsiReply::check(fixed_sense(key, code, qualifier)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn luns_come_back_from_their_wire_form() {
        for number in [0, 1, 255, 256, LUN_MAX] {
            assert_eq!(decode(encode(number)), Some(number));
        }
        for wrong in [1, 0x0100_0000_0000_0000, 0x8000_0000_0000_0000, 0xC101_0000_0000_0000] {
            assert_eq!(decode(wrong), None, "{wrong:#x}");
        }
        assert_eq!(decode(0x4000_0000_0000_0000), Some(0), "flat zero is zero");
    }

    #[test]
    fn short_cdbs_never_panic() {
        let luns = Luns::new(Vec::new()).unwrap();
        for opcode in [INQUIRY, REQUEST_SENSE, REPORT_LUNS, 0] {
            for len in 0..16 {
                let mut cdb = vec![0xFF; len];
                if let Some(first) = cdb.first_mut() {
                    *first = opcode;
                }
                let _ = luns.address(0, &cdb);
            }
        }
    }
}
