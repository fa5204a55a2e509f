//! INQUIRY: standard data and vital product data pages (SPC-4 §6.4, §7.8; SBC-3 §6.6).

use sealstone_scsi::spc::vpd;
use sealstone_scsi::spc::{DEVICE_TYPE_BLOCK, Identity, VENDOR, version};

use crate::catalog::UnitDescription;
use crate::geometry::Geometry;
use crate::limits::{
    COMPARE_BLOCKS_MAX, TARGET_PORT, TRANSFER_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_MAX,
};

/// PRODUCT IDENTIFICATION.
const PRODUCT: &str = "SEALSTONE BLOCK";
/// PRODUCT REVISION LEVEL.
const REVISION: &str = "0001";
/// OPTIMAL TRANSFER LENGTH in bytes: one chunk of the store.
const TRANSFER_OPTIMAL: u64 = 1 << 20;

/// Extended INQUIRY data.
const EXTENDED: u8 = 0x86;
/// Block limits.
const LIMITS: u8 = 0xB0;
/// Block device characteristics.
const CHARACTERISTICS: u8 = 0xB1;
/// Logical block provisioning.
const PROVISIONING: u8 = 0xB2;
/// Vendor-specific: promises about power failures.
const PROMISES: u8 = 0xC0;

/// Page codes of every block unit, ascending.
pub(crate) const PAGES: [u8; 8] = [
    vpd::SUPPORTED,
    vpd::SERIAL,
    vpd::IDENTIFICATION,
    EXTENDED,
    LIMITS,
    CHARACTERISTICS,
    PROVISIONING,
    PROMISES,
];

/// Returns the standard INQUIRY data of a unit.
pub(crate) fn identity(unit: &UnitDescription) -> Identity<'static> {
    Identity {
        device_type: DEVICE_TYPE_BLOCK,
        removable: unit.removable,
        vendor: VENDOR,
        product: PRODUCT,
        revision: REVISION,
        versions: &[version::SAM_5, version::ISCSI, version::SPC_4, version::SBC_3],
    }
}

/// Returns the content of a page; `None` if there is no such page. `target` is the iSCSI name of
/// the target.
pub(crate) fn page(unit: &UnitDescription, target: &str, number: u8) -> Option<Vec<u8>> {
    Some(match number {
        vpd::SERIAL => unit.serial_text().into_bytes(),
        vpd::IDENTIFICATION => identification(unit, target),
        EXTENDED => extended(),
        LIMITS => limits(&unit.geometry, unit.thin),
        CHARACTERISTICS => {
            let mut content = vec![0; 60];
            content[1] = 1; // MEDIUM ROTATION RATE: does not rotate
            content
        }
        PROVISIONING => provisioning(unit.thin),
        PROMISES => promises(unit),
        _ => return None,
    })
}

/// Returns the names of the unit, of its target port and of the target.
fn identification(unit: &UnitDescription, target: &str) -> Vec<u8> {
    let mut content = vpd::local_naa(unit.serial.first_chunk().expect("16 bytes"));
    content.extend(vpd::vendor_designation(&unit.serial_text()));
    content.extend(vpd::iscsi_designations(target, TARGET_PORT));
    content
}

fn extended() -> Vec<u8> {
    /// HEADSUP, ORDSUP, SIMPSUP.
    const TASKS: u8 = 0x07;
    /// V_SUP: the cache is volatile.
    const VOLATILE: u8 = 0x01;
    /// LUICLR: unit attentions are cleared as in SAM-4.
    const CLEARS: u8 = 0x01;
    let mut content = vec![0; 60];
    (content[1], content[2], content[3]) = (TASKS, VOLATILE, CLEARS);
    content
}

fn limits(geometry: &Geometry, thin: bool) -> Vec<u8> {
    /// WSNZ: WRITE SAME with zero blocks is refused.
    const WSNZ: u8 = 0x01;
    /// UGAVALID: the unmap granularity alignment is valid.
    const ALIGNED: u32 = 0x8000_0000;
    let physical = geometry.block().per_physical();
    let blocks = |bytes| geometry.blocks_of(bytes).to_be_bytes();
    let mut content = Vec::with_capacity(60);
    content.extend([WSNZ, COMPARE_BLOCKS_MAX]);
    content.extend(u16::try_from(physical).expect("at most 8").to_be_bytes());
    content.extend(blocks(TRANSFER_MAX));
    content.extend(blocks(TRANSFER_OPTIMAL));
    content.extend([0; 4]); // MAXIMUM PREFETCH LENGTH: no limit
    if thin {
        content.extend(UNMAP_BLOCKS_MAX.to_be_bytes());
        content.extend(UNMAP_DESCRIPTORS_MAX.to_be_bytes());
        content.extend(physical.to_be_bytes());
        content.extend(ALIGNED.to_be_bytes());
    } else {
        content.extend([0; 16]);
    }
    content.extend(u64::from(geometry.blocks_of(WRITE_SAME_MAX)).to_be_bytes());
    // Atomic writes: as long as any other, no alignment, no boundaries. Their length field has 16
    // bits.
    content.extend(geometry.blocks_of(TRANSFER_MAX).min(u32::from(u16::MAX)).to_be_bytes());
    content.resize(60, 0);
    content
}

fn provisioning(thin: bool) -> Vec<u8> {
    const LBPU: u8 = 0x80;
    const LBPWS: u8 = 0x40;
    const LBPWS10: u8 = 0x20;
    const LBPRZ: u8 = 0x04;
    const THIN: u8 = 2;
    if thin { vec![0, LBPU | LBPWS | LBPWS10 | LBPRZ, THIN, 0] } else { vec![0; 4] }
}

/// ORDERED: a write that survives a power failure has all writes beside it that were acknowledged
/// before it was sent. The store keeps a prefix of its operations. A unit with keys of blocks may
/// delete single writes later.
fn promises(unit: &UnitDescription) -> Vec<u8> {
    const ORDERED: u8 = 0x01;
    vec![if unit.protection.stores_block_keys() { 0 } else { ORDERED }, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BlockSize;

    fn unit(thin: bool) -> UnitDescription {
        UnitDescription {
            lun: 1,
            name: "disk".into(),
            geometry: Geometry::new(BlockSize::B512, 1 << 30).unwrap(),
            thin,
            removable: false,
            write_through: false,
            protection: crate::UnitProtection::NONE,
            serial: [0xAB; 16],
            created_ms: 0,
        }
    }

    #[test]
    fn vpd_pages_ascend_with_standard_lengths() {
        assert!(PAGES.windows(2).all(|pair| pair[0] < pair[1]));
        for thin in [false, true] {
            for (number, length) in [(EXTENDED, 60), (LIMITS, 60), (CHARACTERISTICS, 60), (PROVISIONING, 4)] {
                assert_eq!(page(&unit(thin), "iqn.t", number).unwrap().len(), length, "{number:#x}");
            }
        }
        assert_eq!(page(&unit(true), "iqn.t", 0xC1), None);
    }

    #[test]
    fn units_with_block_keys_promise_no_order() {
        assert_eq!(page(&unit(true), "iqn.t", PROMISES), Some(vec![1, 0, 0, 0]));
        let protection = crate::UnitProtection::parse("lazy").unwrap();
        let lazy = UnitDescription { protection, ..unit(true) };
        assert_eq!(page(&lazy, "iqn.t", PROMISES), Some(vec![0; 4]));
    }

    #[test]
    fn block_limits_page_matches_standard() {
        let content = limits(&unit(true).geometry, true);
        let at = |page_byte: usize| u32::from_be_bytes(content[page_byte - 4..page_byte].try_into().unwrap());
        assert_eq!(content[..4], [1, 255, 0, 8]);
        assert_eq!(at(8), 16 << 11, "MAXIMUM TRANSFER LENGTH");
        assert_eq!(at(20), 1 << 20, "MAXIMUM UNMAP LBA COUNT");
        assert_eq!((at(24), at(28), at(32)), (256, 8, 0x8000_0000));
        assert_eq!(at(40), 16 << 11, "MAXIMUM WRITE SAME LENGTH, low half");
        assert_eq!(at(44), 16 << 11, "MAXIMUM ATOMIC TRANSFER LENGTH");
        let thick = limits(&unit(false).geometry, false);
        assert_eq!(thick[16..32], [0; 16]);
    }

    #[test]
    fn block_unit_designator_is_unique() {
        let content = identification(&unit(true), "iqn.2026-11.org.sealstone:osd.a");
        let all: Vec<_> = vpd::designations(&content).collect();
        assert_eq!(all[0], (1, 3, &[0x3B, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB][..]));
        assert_eq!((all.len(), all[1].1, all[2].2), (5, 1, &[0, 0, 0, 1][..]));
        assert!(all[3].2.starts_with(b"iqn.2026-11.org.sealstone:osd.a,t,0x0001\0"));
        assert!(all.iter().skip(3).all(|(set, kind, name)| (*set, *kind, name.len() % 4) == (3, 8, 0)));
    }
}
