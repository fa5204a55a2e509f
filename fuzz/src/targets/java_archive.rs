//! `sealstone-java-archive`: the checks of a JAR file before a virtual machine sees it.

use sealstone_java_archive::limits::{CONTENT_BYTES_MAX, ENTRIES_MAX, NAME_BYTES_MAX};
use sealstone_java_archive::{JavaArchive, is_archive};

use crate::Target;

/// CRC-32 of ZIP, one bit at a time.
fn checksum(content: &[u8]) -> u32 {
    !content.iter().fold(u32::MAX, |value, byte| {
        (0..8).fold(value ^ u32::from(*byte), |value, _| {
            if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 }
        })
    })
}

/// An archive of stored entries.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let offset = (bytes.len() as u32).to_le_bytes();
        let length = content.len() as u32;
        let sizes = [checksum(content), length, length].map(u32::to_le_bytes).concat();
        let common = [&[0; 8][..], &sizes, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        bytes.extend([b"PK\x03\x04\x14\0", &common[..], name.as_bytes(), content].concat());
        let row = [b"PK\x01\x02\x14\0\x14\0", &common[..], &[0; 10], &offset, name.as_bytes()].concat();
        directory.extend(row);
    }
    let count = (entries.len() as u16).to_le_bytes();
    let sizes = [directory.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend(directory);
    bytes.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &sizes, &[0, 0]].concat());
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let manifest = b"Manifest-Version: 1.0\r\nSealstone-Function: a.Co\r\n unt\r\n\r\n";
    let class = b"\xCA\xFE\xBA\xBE\0\0\0\x3D";
    let entries: [(&str, &[u8]); 3] =
        [("META-INF/MANIFEST.MF", manifest), ("a/Count.class", class), ("data", b"text")];
    let mut deflated = archive(&entries);
    // The content `text` as one block that is not compressed; its method is 8 in both records.
    let stored = archive(&[entries[0], entries[1], ("data", b"\x01\x04\0\xFB\xFFtext")]);
    for (at, row) in stored.windows(4).enumerate() {
        let (method, length) = match row {
            b"PK\x03\x04" if stored[at + 30..].starts_with(b"data") => (at + 8, at + 14),
            b"PK\x01\x02" if stored[at + 46..].starts_with(b"data") => (at + 10, at + 16),
            _ => continue,
        };
        if deflated.len() != stored.len() {
            deflated.clone_from(&stored);
        }
        deflated[method] = 8;
        deflated[length..length + 4].copy_from_slice(&checksum(b"text").to_le_bytes());
        deflated[length + 8..length + 12].copy_from_slice(&4u32.to_le_bytes());
    }
    let seeds = vec![archive(&entries), deflated];
    for seed in &seeds {
        let parsed = JavaArchive::parse(seed).expect("a seed is a valid archive");
        assert_eq!(parsed.entry("data"), Ok(Some(b"text".to_vec())));
    }
    seeds
}

fn jar(input: &[u8]) {
    let library = JavaArchive::parse_library(input);
    let Ok(parsed) = JavaArchive::parse(input) else { return };
    assert_eq!(library.map(|library| library.entry_count()), Ok(parsed.entry_count()));
    assert!(is_archive(input) && parsed.entry_count() <= ENTRIES_MAX);
    assert!(parsed.class(parsed.function_class()).is_ok_and(|class| class.is_some()));
    let mut bytes = 0;
    for name in parsed.names() {
        assert!(name.len() <= NAME_BYTES_MAX);
        bytes += parsed.entry(name).ok().flatten().map_or(0, |content| content.len() as u64);
    }
    assert!(bytes <= CONTENT_BYTES_MAX);
}

pub(crate) const ARCHIVE: Target = Target {
    name: "java-archive",
    about: "a JAR file of a function; within all limits if it is accepted",
    run: jar,
    seeds,
    cost: 1,
    quarantine: None,
    covers: &["java-archive::JavaArchive::parse", "java-archive::JavaArchive::parse_library"],
};
