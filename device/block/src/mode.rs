//! Mode pages and their settings (SPC-4 §7.5, SBC-3 §6.5).
//!
//! Does: keep D_SENSE, SWP and WCE, which MODE SELECT can change and save; `unit` stores the saved
//! values.
//! Contract: while WCE is clear, no write is acknowledged before it is durable.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sealstone_scsi::spc::mode::{self, ModeHeader, ModePage, ModeSense, NewPage, PageControl};

use crate::geometry::Geometry;

/// Read-Write Error Recovery page.
const RECOVERY: u8 = 0x01;
/// Caching page.
const CACHING: u8 = 0x08;
/// Informational Exceptions Control page.
const EXCEPTIONS: u8 = 0x1C;
/// WCE: caching page, byte 2 (0 after the header).
const WCE: u8 = 0x04;
/// D_SENSE and SWP: control page, bytes 2 and 4 (0 and 2 after the header).
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;
/// DEVICE-SPECIFIC PARAMETER: WP and DPOFUA.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;

/// Values that MODE SELECT changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeValues {
    pub(crate) descriptor_sense: bool,
    pub(crate) write_protect: bool,
    pub(crate) write_cache: bool,
}

impl ModeValues {
    /// The values of a new unit.
    const DEFAULT: Self = Self { descriptor_sense: false, write_protect: false, write_cache: true };

    /// Returns the record of saved values.
    pub(crate) fn encode(self) -> [u8; 2] {
        let flags = [(self.descriptor_sense, 0x01), (self.write_protect, 0x02), (self.write_cache, 0x04)];
        [RECORD_VERSION, flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag)]
    }

    /// Reads a record of saved values. An unreadable one turns the write cache off, which is safe.
    fn decode(record: &[u8]) -> Self {
        match record {
            [RECORD_VERSION, flags] => Self {
                descriptor_sense: flags & 0x01 != 0,
                write_protect: flags & 0x02 != 0,
                write_cache: flags & 0x04 != 0,
            },
            _ => Self { write_cache: false, ..Self::DEFAULT },
        }
    }
}

/// Layout version of the record of saved values.
const RECORD_VERSION: u8 = 1;

/// Mode values of a unit: current and saved.
#[derive(Debug)]
pub(crate) struct ModeSettings {
    descriptor_sense: AtomicBool,
    write_protect: AtomicBool,
    write_cache: AtomicBool,
    saved: Mutex<ModeValues>,
    /// Whether WCE is fixed at 0, by the configuration of the unit or of the device.
    write_through: AtomicBool,
}

impl ModeSettings {
    /// Creates the settings from a record of saved values, or from the defaults.
    pub(crate) fn new(record: Option<&[u8]>, write_through: bool) -> Self {
        let values = record.map_or(ModeValues::DEFAULT, ModeValues::decode);
        Self {
            descriptor_sense: AtomicBool::new(values.descriptor_sense),
            write_protect: AtomicBool::new(values.write_protect),
            write_cache: AtomicBool::new(values.write_cache),
            saved: Mutex::new(values),
            write_through: AtomicBool::new(write_through),
        }
    }

    pub(crate) fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Acquire)
    }

    pub(crate) fn write_protect(&self) -> bool {
        self.write_protect.load(Ordering::Acquire)
    }

    /// Returns WCE as MODE SENSE reports it.
    pub(crate) fn write_cache(&self) -> bool {
        !self.write_through.load(Ordering::Acquire) && self.write_cache.load(Ordering::Acquire)
    }

    /// Fixes WCE at 0, or ends that.
    pub(crate) fn set_write_through(&self, write_through: bool) {
        self.write_through.store(write_through, Ordering::Release);
    }

    /// Returns the current values. WCE is the value without the fixed write-through.
    pub(crate) fn values(&self) -> ModeValues {
        ModeValues {
            descriptor_sense: self.descriptor_sense(),
            write_protect: self.write_protect(),
            write_cache: self.write_cache.load(Ordering::Acquire),
        }
    }

    pub(crate) fn saved(&self) -> ModeValues {
        *self.saved.lock()
    }

    pub(crate) fn set_saved(&self, values: ModeValues) {
        *self.saved.lock() = values;
    }

    /// Makes all values current.
    pub(crate) fn set_current(&self, values: ModeValues) {
        self.descriptor_sense.store(values.descriptor_sense, Ordering::Release);
        self.write_protect.store(values.write_protect, Ordering::Release);
        self.write_cache.store(values.write_cache, Ordering::Release);
    }

    /// Applies pages that were checked against their changeable bits.
    pub(crate) fn select(&self, pages: &[NewPage]) {
        for (code, _, values) in pages {
            let is_set = |byte: usize, bit: u8| values.get(byte).is_some_and(|value| value & bit != 0);
            match *code {
                CACHING => self.write_cache.store(is_set(0, WCE), Ordering::Release),
                mode::CONTROL => {
                    self.descriptor_sense.store(is_set(0, D_SENSE), Ordering::Release);
                    self.write_protect.store(is_set(2, SWP), Ordering::Release);
                }
                _ => {}
            }
        }
    }

    /// Whether a MODE SENSE returns the current WCE.
    pub(crate) fn reports_cache(sense: &ModeSense) -> bool {
        sense.control == PageControl::Current && matches!(sense.page, CACHING | mode::ALL_PAGES)
    }

    /// Returns the pages, ascending. All of them can be saved.
    pub(crate) fn pages(&self) -> Vec<ModePage> {
        let fixed = |code, values: Vec<u8>| ModePage {
            code,
            subpage: 0,
            changeable: vec![0; values.len()],
            default: values.clone(),
            saved: Some(values.clone()),
            current: values,
        };
        let saved = self.saved();
        let forced = self.write_through.load(Ordering::Acquire);
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let mut caching = fixed(CACHING, vec![0; 18]);
        caching.default[0] = bit(!forced, WCE);
        caching.changeable[0] = bit(!forced, WCE);
        caching.current[0] = bit(self.write_cache(), WCE);
        caching.saved = Some([&[bit(!forced && saved.write_cache, WCE)], &[0; 17][..]].concat());
        let mut control = mode::control_page(false);
        control.changeable[0] |= D_SENSE;
        control.changeable[2] |= SWP;
        let mut saved_control = control.default.clone();
        saved_control[0] |= bit(saved.descriptor_sense, D_SENSE);
        saved_control[2] |= bit(saved.write_protect, SWP);
        control.saved = Some(saved_control);
        control.current[0] |= bit(self.descriptor_sense(), D_SENSE);
        control.current[2] |= bit(self.write_protect(), SWP);
        let mut exceptions = vec![0; 10];
        exceptions[0] = 0x08; // DEXCPT: none are reported
        vec![fixed(RECOVERY, vec![0; 10]), caching, control, fixed(EXCEPTIONS, exceptions)]
    }

    /// Returns the mode parameter header with its block descriptors.
    pub(crate) fn header(&self, geometry: &Geometry) -> ModeHeader {
        let blocks = geometry.blocks();
        let length = u32::try_from(geometry.block().bytes()).expect("at most 4096").to_be_bytes();
        let mut short_block = u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        short_block.extend(length);
        let mut long_block = blocks.to_be_bytes().to_vec();
        long_block.extend([0; 4]);
        long_block.extend(length);
        let protected = if self.write_protect() { WP } else { 0 };
        ModeHeader { device_specific: protected | DPOFUA, short_block, long_block }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_select_values_are_sensed() {
        let settings = ModeSettings::new(None, false);
        let mut pages = settings.pages();
        assert!(pages.windows(2).all(|pair| pair[0].code < pair[1].code));
        for page in &mut pages {
            let flipped = page.current.iter().zip(&page.changeable).map(|(now, mask)| now ^ mask).collect();
            settings.select(&[(page.code, page.subpage, flipped)]);
        }
        assert!(settings.write_protect() && settings.descriptor_sense() && !settings.write_cache());
        for (page, old) in settings.pages().iter().zip(&pages) {
            let changed: Vec<u8> =
                page.current.iter().zip(&old.current).map(|(new, old)| new ^ old).collect();
            assert_eq!(changed, page.changeable, "{:#x}", page.code);
        }
        settings.set_current(settings.saved());
        assert!(settings.pages().iter().all(|page| page.current == page.default));
    }

    #[test]
    fn damaged_saved_mode_values_disable_write_cache() {
        for flags in 0..8_u8 {
            let values = ModeValues {
                descriptor_sense: flags & 1 != 0,
                write_protect: flags & 2 != 0,
                write_cache: flags & 4 != 0,
            };
            assert_eq!(ModeValues::decode(&values.encode()), values);
        }
        assert!(!ModeValues::decode(&[7]).write_cache);
    }

    #[test]
    fn write_through_unit_reports_unchangeable_wce() {
        let page = ModeSettings::new(None, true).pages().remove(1);
        assert_eq!((page.current[0], page.default[0], page.changeable[0]), (0, 0, 0));
        assert_eq!(page.saved.unwrap()[0], 0);
    }
}
