//! Detects other content on a device, so that no other file system is overwritten by mistake.
//!
//! Does: names the best known signatures, and detects whether there is any content at all.
//! Does not: decide whether the device may be formatted.
//! Source of truth: the magic numbers of blkid(8)'s tables, each from the description of its
//! format.

use std::io;

use super::super::MediumFile;

/// Bytes examined at the start and at the end of the device.
pub(super) const LOOKED_AT: u64 = 1 << 20;

/// Name, offset in bytes, and the bytes there.
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xEF]),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("a LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("an LVM physical volume", 0x018, b"LVM2 001"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("a member of an md array", 0, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("a member of an md array", 4096, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    ("a bcache device", 0x1018, &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA]),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an EROFS file system", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 82, b"FAT32   "),
    ("a FAT file system", 54, b"FAT16   "),
    ("a FAT file system", 54, b"FAT12   "),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    // Last: boot sectors of file systems end like this, too.
    ("an MBR partition table", 510, &[0x55, 0xAA]),
];

/// Returns what is on a device; `None` if the start is all zeros. The end of the device is checked
/// for a copy of a partition table and for any other content.
pub(super) fn contents(device: &dyn MediumFile, length: u64) -> io::Result<Option<&'static str>> {
    let looked_at = LOOKED_AT.min(length);
    let mut bytes = vec![0; looked_at as usize];
    device.read_at(0, &mut bytes)?;
    if let Some(name) = known(&bytes) {
        return Ok(Some(name));
    }
    let blank_start = is_blank(&bytes);
    device.read_at(length - looked_at, &mut bytes)?;
    if blank_start && is_blank(&bytes) { Ok(None) } else { Ok(Some("data of an unknown kind")) }
}

fn known(bytes: &[u8]) -> Option<&'static str> {
    let fits = |&&(_, at, magic): &&(_, usize, &[u8])| bytes.get(at..at + magic.len()) == Some(magic);
    SIGNATURES.iter().find(fits).map(|(name, ..)| *name)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_named() {
        for (name, at, magic) in SIGNATURES {
            let mut bytes = vec![0; LOOKED_AT as usize];
            bytes[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(known(&bytes), Some(*name));
        }
        assert_eq!(known(&[0; 4096]), None);
    }
}
