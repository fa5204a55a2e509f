//! Mode pages and what they set (SPC-4 §7.5, SBC-3 §6.5).
//!
//! Does: D_SENSE, SWP and WCE, which MODE SELECT may change. Does not: keep them over a reset or a restart; they are not
//! saved, and the pages say so.
//! Contract: WCE is the truth: with it clear no write is acknowledged before it is durable.

use std::sync::atomic::{AtomicBool, Ordering};

use sealstone_scsi::spc::mode::{self, ModeHeader, ModePage, NewPage};

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

/// What MODE SELECT may change.
#[derive(Debug)]
pub(crate) struct Settings {
    descriptor_sense: AtomicBool,
    write_protect: AtomicBool,
    write_cache: AtomicBool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            descriptor_sense: AtomicBool::new(false),
            write_protect: AtomicBool::new(false),
            write_cache: AtomicBool::new(true),
        }
    }
}

impl Settings {
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Ordering::Acquire)
    }

    pub(crate) fn write_protect(&self) -> bool {
        self.write_protect.load(Ordering::Acquire)
    }

    pub(crate) fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Acquire)
    }

    /// D_SENSE, SWP and WCE.
    pub(crate) fn values(&self) -> [bool; 3] {
        [self.descriptor_sense(), self.write_protect(), self.write_cache()]
    }

    /// All of them anew.
    pub(crate) fn take(&self, [descriptor_sense, write_protect, write_cache]: [bool; 3]) {
        self.descriptor_sense.store(descriptor_sense, Ordering::Release);
        self.write_protect.store(write_protect, Ordering::Release);
        self.write_cache.store(write_cache, Ordering::Release);
    }

    /// As after power on.
    pub(crate) fn reset(&self) {
        self.take([false, false, true]);
    }

    /// Takes pages over that were checked against their changeable bits.
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

    /// The pages, ascending.
    pub(crate) fn pages(&self) -> Vec<ModePage> {
        let fixed = |code, values: Vec<u8>| ModePage {
            code,
            subpage: 0,
            changeable: vec![0; values.len()],
            default: values.clone(),
            current: values,
        };
        let mut caching = fixed(CACHING, vec![0; 18]);
        caching.default[0] = WCE;
        caching.changeable[0] = WCE;
        caching.current[0] = if self.write_cache() { WCE } else { 0 };
        let mut control = mode::control_page(false);
        control.changeable[0] |= D_SENSE;
        control.changeable[2] |= SWP;
        if self.descriptor_sense() {
            control.current[0] |= D_SENSE;
        }
        if self.write_protect() {
            control.current[2] |= SWP;
        }
        let mut exceptions = vec![0; 10];
        exceptions[0] = 0x08; // DEXCPT: none are reported
        vec![fixed(RECOVERY, vec![0; 10]), caching, control, fixed(EXCEPTIONS, exceptions)]
    }

    /// The mode parameter header with its block descriptors.
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
    fn what_is_selected_is_what_is_sensed() {
        let settings = Settings::default();
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
        settings.reset();
        assert!(settings.pages().iter().all(|page| page.current == page.default));
    }
}
