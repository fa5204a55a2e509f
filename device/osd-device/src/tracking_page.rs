//! The Command Tracking page of a collection: stored values, or those of the running command.
//!
//! Truth: docs/design/t10-osd.md 3.5 (C+4).

use sealstone_osd::{AttributeId, ObjectId};
use sealstone_scsi::{Sense, SenseKey, additional};

use crate::attributes::rows::{COLLECTION, page};
use crate::catalog;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::running::RunningCommand;

/// Attribute numbers of the Command Tracking page.
pub(crate) mod number {
    pub(crate) const PERCENT: u32 = 0x1;
    pub(crate) const ACTIVE: u32 = 0x2;
    pub(crate) const ENDED: u32 = 0x3;
    pub(crate) const SENSE: u32 = 0x4;
    pub(crate) const PROCESSED: u32 = 0x11;
    pub(crate) const NEWER: u32 = 0x12;
    pub(crate) const MISSING: u32 = 0x13;
}

/// Returns an attribute of the page.
pub(crate) const fn attribute(number: u32) -> AttributeId {
    AttributeId::new(COLLECTION + page::TRACKING, number)
}

/// Returns one attribute of the Command Tracking page; `None` if it is undefined.
pub(crate) fn value(
    device: &OsdDevice,
    collection: ObjectId,
    wanted: u32,
) -> Result<Option<Vec<u8>>, OsdFailure> {
    let stored = |number: u32| catalog::get(&*device.store, collection, attribute(number));
    let running = device.running.get(collection);
    let cut_off = || -> Result<Option<Vec<u8>>, OsdFailure> { Ok(stored(number::ACTIVE)?) };
    if let Some(RunningCommand { action, total, progress }) = running {
        let done = progress.processed.saturating_add(progress.missing);
        return Ok(match wanted {
            number::PERCENT => Some(vec![percent(done, total)]),
            number::ACTIVE => Some(action.to_be_bytes().to_vec()),
            number::ENDED => Some(vec![0; 2]),
            number::PROCESSED => Some(progress.processed.to_be_bytes().to_vec()),
            number::NEWER => Some(vec![0; 8]),
            number::MISSING => Some(progress.missing.to_be_bytes().to_vec()),
            _ => None,
        });
    }
    match wanted {
        number::PERCENT => Ok(Some(vec![100])),
        number::ACTIVE => Ok(Some(vec![0; 2])),
        number::ENDED => Ok(cut_off()?.or(stored(number::ENDED)?).or(Some(vec![0; 2]))),
        number::SENSE if cut_off()?.is_some() => Ok(Some(aborted().encode())),
        number::SENSE | number::PROCESSED | number::NEWER | number::MISSING => Ok(stored(wanted)?),
        _ => Ok(None),
    }
}

/// Returns the sense data of a command that did not end.
pub(crate) fn aborted() -> Sense {
    Sense::new(SenseKey::AbortedCommand, additional::NO_ADDITIONAL_SENSE)
}

/// Returns the percentage, which is below 100 while the command runs.
fn percent(done: u64, total: u64) -> u8 {
    let hundredths = u128::from(done) * 100 / u128::from(total.max(1));
    u8::try_from(hundredths).unwrap_or(u8::MAX).min(99)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_under_way_is_never_complete() {
        assert_eq!(percent(0, 0), 0);
        assert_eq!(percent(1, 2), 50);
        assert_eq!(percent(7, 7), 99);
        assert_eq!(percent(u64::MAX, 1), 99);
    }
}
