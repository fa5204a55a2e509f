//! MODE SENSE and MODE SELECT (SPC-4 §6.11 to §6.14, §7.5).
//!
//! Does: headers, page control, selection of pages, checks of selected values.
//! Does not: store any value.
//! Contract: a device's page is as long as its changeable mask and, if it can be saved, as its
//! saved values.

use alloc::vec::Vec;

use super::SpcError;
use crate::{FieldPointer, Sense, SenseKey, additional};

/// One mode page of a logical unit: the bytes after its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModePage {
    /// PAGE CODE, below 3Fh.
    pub code: u8,
    /// SUBPAGE CODE; 0 is the page itself.
    pub subpage: u8,
    /// The values in effect.
    pub current: Vec<u8>,
    /// The values of a new logical unit.
    pub default: Vec<u8>,
    /// The values after power on or a reset; `None` if the page cannot be saved (PS 0).
    pub saved: Option<Vec<u8>>,
    /// Bits that MODE SELECT may change; the same length.
    pub changeable: Vec<u8>,
}

/// Fields of the mode parameter header of a logical unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeHeader {
    /// DEVICE-SPECIFIC PARAMETER.
    pub device_specific: u8,
    /// Block descriptor of 8 bytes; empty if there is none.
    pub short_block: Vec<u8>,
    /// Block descriptor of 16 bytes for LLBAA; empty if there is none.
    pub long_block: Vec<u8>,
}

/// CONTROL page.
pub const CONTROL: u8 = 0x0A;
/// All pages.
pub const ALL_PAGES: u8 = 0x3F;
/// All subpages.
pub const ALL_SUBPAGES: u8 = 0xFF;

/// Returns the control page of a logical unit whose values cannot be changed: sense data in
/// descriptor format or not, commands reordered freely, no status for tasks aborted by another
/// nexus (TAS 0), one task set, no ACA.
#[must_use]
pub fn control_page(descriptor_sense: bool) -> ModePage {
    let d_sense = if descriptor_sense { 0x04 } else { 0 };
    // QUEUE ALGORITHM MODIFIER 1: unrestricted reordering. BUSY TIMEOUT PERIOD FFFFh: unlimited.
    let values = [d_sense, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0].to_vec();
    ModePage {
        code: CONTROL,
        subpage: 0,
        default: values.clone(),
        saved: None,
        current: values,
        changeable: alloc::vec![0; 10],
    }
}

/// PC: the kind of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// 00b, the values in effect.
    Current,
    /// 01b, the changeable bits.
    Changeable,
    /// 10b, the values of a new logical unit.
    Default,
    /// 11b, the saved values.
    Saved,
}

/// MODE SENSE of either length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSense {
    /// The 10-byte command.
    pub ten: bool,
    /// DBD: no block descriptor.
    pub no_block: bool,
    /// LLBAA: whether a long block descriptor is accepted.
    pub long_block: bool,
    /// The PC field.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
}

/// PS in a page's first byte: the page can be saved.
const PS: u8 = 0x80;
/// SPF in a page's first byte.
const SPF: u8 = 0x40;
/// LONGLBA in the header of the 10-byte command.
const LONGLBA: u8 = 0x01;

impl ModeSense {
    /// Returns the response, before it is truncated to the allocation length.
    ///
    /// # Errors
    /// Saved values of a page that cannot be saved, or a page that does not exist.
    pub fn answer(&self, header: &ModeHeader, pages: &[ModePage]) -> Result<Vec<u8>, Sense> {
        let not_saved = || Sense::new(SenseKey::IllegalRequest, additional::SAVING_PARAMETERS_NOT_SUPPORTED);
        if self.control == PageControl::Saved && !can_save(pages) {
            return Err(not_saved());
        }
        let wanted = |page: &&ModePage| {
            (self.page == ALL_PAGES || page.code == self.page)
                && (self.subpage == ALL_SUBPAGES || page.subpage == self.subpage)
        };
        let mut body = Vec::new();
        let mut any = false;
        for page in pages.iter().filter(wanted) {
            any = true;
            let values = match self.control {
                PageControl::Changeable => &page.changeable,
                PageControl::Default => &page.default,
                PageControl::Current => &page.current,
                PageControl::Saved => page.saved.as_ref().ok_or_else(not_saved)?,
            };
            let ps = if page.saved.is_some() { PS } else { 0 };
            let length = u16::try_from(values.len()).unwrap_or(u16::MAX);
            if page.subpage == 0 {
                body.extend([ps | page.code, length.to_be_bytes()[1]]);
            } else {
                body.extend([ps | SPF | page.code, page.subpage]);
                body.extend(length.to_be_bytes());
            }
            body.extend_from_slice(values);
        }
        if !any {
            let at =
                if pages.iter().any(|page| page.code == self.page) || self.page == ALL_PAGES { 3 } else { 2 };
            return Err(SpcError::Field { at }.sense());
        }
        let long = self.ten && self.long_block && !header.long_block.is_empty();
        let block: &[u8] = match (self.no_block, long) {
            (true, _) => &[],
            (false, true) => &header.long_block,
            (false, false) => &header.short_block,
        };
        let mut out = Vec::with_capacity(8 + block.len() + body.len());
        if self.ten {
            let length = u16::try_from(6 + block.len() + body.len()).unwrap_or(u16::MAX);
            out.extend(length.to_be_bytes());
            out.extend([0, header.device_specific, if long { LONGLBA } else { 0 }, 0]);
            out.extend((block.len() as u16).to_be_bytes());
        } else {
            let length = u8::try_from(3 + block.len() + body.len()).unwrap_or(u8::MAX);
            out.extend([length, 0, header.device_specific, block.len() as u8]);
        }
        out.extend_from_slice(block);
        out.append(&mut body);
        Ok(out)
    }
}

/// MODE SELECT of either length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSelect {
    /// The 10-byte command.
    pub ten: bool,
    /// SP: every page that can be saved is saved.
    pub save: bool,
    /// PARAMETER LIST LENGTH in bytes.
    pub length: u16,
}

/// Whether any of the pages can be saved.
#[must_use]
pub fn can_save(pages: &[ModePage]) -> bool {
    pages.iter().any(|page| page.saved.is_some())
}

/// A page with its new values.
pub type NewPage = (u8, u8, Vec<u8>);

impl ModeSelect {
    /// Returns the pages that change, in the order of the list; fails if any part of the list is
    /// wrong.
    ///
    /// # Errors
    /// The list is truncated, has a page that does not exist, or changes a value that cannot be
    /// changed. The field pointer shows where.
    pub fn changes(
        &self,
        header: &ModeHeader,
        pages: &[ModePage],
        list: &[u8],
    ) -> Result<Vec<NewPage>, Sense> {
        let wrong = |at: usize| {
            let at = FieldPointer::parameter(u16::try_from(at).unwrap_or(u16::MAX));
            Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_PARAMETER_LIST).with_field(at)
        };
        let cut = || Sense::new(SenseKey::IllegalRequest, additional::PARAMETER_LIST_LENGTH_ERROR);
        let list = list.get(..usize::from(self.length)).ok_or_else(cut)?;
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let (head, block_at) = if self.ten { (8, 6) } else { (4, 3) };
        if list.len() < head {
            return Err(cut());
        }
        let block =
            if self.ten { usize::from(u16::from_be_bytes([list[6], list[7]])) } else { usize::from(list[3]) };
        let long = self.ten && list[4] & LONGLBA != 0;
        let given = list.get(head..head + block).ok_or_else(cut)?;
        let ours = if long { &header.long_block } else { &header.short_block };
        if !given.is_empty() && given.len() != ours.len() {
            return Err(wrong(block_at));
        }
        // Medium size zero requests no change. Other values must equal the present ones.
        if let Some(at) = given.iter().zip(ours).position(|(given, ours)| *given != 0 && given != ours) {
            return Err(wrong(head + at));
        }
        let mut changes: Vec<NewPage> = Vec::new();
        let mut at = head + block;
        while let Some(&first) = list.get(at) {
            let code = first & 0x3F;
            let (subpage, length, header_len) = if first & SPF == 0 {
                (0, usize::from(*list.get(at + 1).ok_or_else(cut)?), 2)
            } else {
                let rest = list.get(at + 1..at + 4).ok_or_else(cut)?;
                (rest[0], usize::from(u16::from_be_bytes([rest[1], rest[2]])), 4)
            };
            let page = pages.iter().find(|page| (page.code, page.subpage) == (code, subpage));
            let page = page.ok_or_else(|| wrong(at))?;
            if page.current.len() != length {
                return Err(wrong(at + header_len - 1));
            }
            let values = list.get(at + header_len..at + header_len + length).ok_or_else(cut)?;
            let fixed = values.iter().zip(&page.current).zip(&page.changeable);
            if let Some(offset) =
                fixed.map(|((new, old), mask)| (new ^ old) & !mask).position(|bits| bits != 0)
            {
                return Err(wrong(at + header_len + offset));
            }
            if values != page.current {
                changes.push((code, subpage, values.to_vec()));
            }
            at += header_len + length;
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Vec<ModePage> {
        let caching = ModePage {
            code: 8,
            subpage: 0,
            current: alloc::vec![0x04, 0, 7],
            default: alloc::vec![0x04, 0, 0],
            saved: None,
            changeable: alloc::vec![0x04, 0, 0],
        };
        let extension = ModePage {
            code: CONTROL,
            subpage: 1,
            current: alloc::vec![1; 28],
            default: alloc::vec![1; 28],
            saved: None,
            changeable: alloc::vec![0; 28],
        };
        alloc::vec![caching, control_page(true), extension]
    }

    fn header() -> ModeHeader {
        ModeHeader {
            device_specific: 0x90,
            short_block: alloc::vec![0, 0, 1, 0, 0, 0, 2, 0],
            long_block: Vec::new(),
        }
    }

    const SENSE: ModeSense = ModeSense {
        ten: false,
        no_block: false,
        long_block: false,
        control: PageControl::Current,
        page: ALL_PAGES,
        subpage: 0,
    };

    #[test]
    fn mode_sense_returns_header_block_and_requested_pages() {
        let all = SENSE.answer(&header(), &pages()).unwrap();
        assert_eq!(all.len(), usize::from(all[0]) + 1);
        assert_eq!(all[..4], [28, 0, 0x90, 8]);
        assert_eq!(all[12..17], [8, 3, 0x04, 0, 7]);
        let ten = ModeSense { ten: true, no_block: true, page: CONTROL, subpage: ALL_SUBPAGES, ..SENSE };
        let both = ten.answer(&header(), &pages()).unwrap();
        assert_eq!(both[..8], [0, 6 + 12 + 32, 0, 0x90, 0, 0, 0, 0]);
        assert_eq!((&both[8..10], &both[20..24]), (&[0x0A, 10][..], &[0x4A, 1, 0, 28][..]));
        let changeable = ModeSense { control: PageControl::Changeable, page: 8, no_block: true, ..SENSE };
        assert_eq!(changeable.answer(&header(), &pages()).unwrap()[4..], [8, 3, 4, 0, 0]);
    }

    #[test]
    fn mode_sense_refuses_absent_pages() {
        let code = |sense: &ModeSense| sense.answer(&header(), &pages()).unwrap_err();
        let saved = code(&ModeSense { control: PageControl::Saved, ..SENSE });
        assert_eq!(saved.code, additional::SAVING_PARAMETERS_NOT_SUPPORTED);
        let absent = code(&ModeSense { page: 0x1D, ..SENSE });
        assert_eq!(absent.field, Some(FieldPointer::cdb(2)));
        let subpage = code(&ModeSense { page: 8, subpage: 9, ..SENSE });
        assert_eq!(subpage.field, Some(FieldPointer::cdb(3)));
    }

    #[test]
    fn savable_page_has_ps_and_saved_values() {
        let mut pages = pages();
        pages[0].saved = Some(alloc::vec![0, 0, 5]);
        let page = ModeSense { page: 8, no_block: true, ..SENSE };
        assert_eq!(page.answer(&header(), &pages).unwrap()[4..], [0x88, 3, 4, 0, 7]);
        let saved = ModeSense { control: PageControl::Saved, ..page };
        assert_eq!(saved.answer(&header(), &pages).unwrap()[4..], [0x88, 3, 0, 0, 5]);
        let other = ModeSense { page: CONTROL, ..saved }.answer(&header(), &pages).unwrap_err();
        assert_eq!(other.code, additional::SAVING_PARAMETERS_NOT_SUPPORTED);
    }

    fn select(list: &[u8]) -> Result<Vec<NewPage>, Sense> {
        ModeSelect { ten: false, save: false, length: list.len() as u16 }.changes(&header(), &pages(), list)
    }

    #[test]
    fn mode_select_changes_only_changeable_bits() {
        assert_eq!(select(&[0, 0, 0, 0, 8, 3, 0, 0, 7]), Ok(alloc::vec![(8, 0, alloc::vec![0, 0, 7])]));
        assert_eq!(select(&[0, 0, 0, 0, 8, 3, 4, 0, 7]), Ok(Vec::new()), "nothing new");
        assert_eq!(select(&[]), Ok(Vec::new()));
        let at = |list: &[u8]| select(list).unwrap_err().field;
        assert_eq!(at(&[0, 0, 0, 0, 8, 3, 4, 1, 7]), Some(FieldPointer::parameter(7)));
        assert_eq!(at(&[0, 0, 0, 0, 8, 2, 4, 0]), Some(FieldPointer::parameter(5)));
        assert_eq!(at(&[0, 0, 0, 0, 0x1D, 1, 0]), Some(FieldPointer::parameter(4)));
        assert_eq!(at(&[0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 4, 0]), Some(FieldPointer::parameter(10)));
        for cut in [&[0, 0, 0][..], &[0, 0, 0, 8, 0], &[0, 0, 0, 0, 8], &[0, 0, 0, 0, 8, 3, 4]] {
            assert_eq!(select(cut).unwrap_err().code, additional::PARAMETER_LIST_LENGTH_ERROR, "{cut:?}");
        }
        let longer = ModeSelect { ten: true, save: false, length: 9 }
            .changes(&header(), &pages(), &[0; 8])
            .unwrap_err();
        assert_eq!(longer.code, additional::PARAMETER_LIST_LENGTH_ERROR);
    }
}
