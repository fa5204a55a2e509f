//! Archives with each mistake.

use std::format;
use std::string::{String, ToString as _};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::limits::{CONTENT_BYTES_MAX, ENTRIES_MAX, ENTRY_BYTES_MAX};
use crate::{ArchiveError, JavaArchive};

const MANIFEST: &str = "META-INF/MANIFEST.MF";
const CLASS: &[u8] = b"\xCA\xFE\xBA\xBE\0\0\0\x3D";

/// A row of an archive under test. Its fields can contradict its content.
#[derive(Clone, Debug)]
struct TestEntry {
    name: String,
    data: Vec<u8>,
    method: u16,
    flags: u16,
    length: u32,
    checksum: u32,
}

fn crc(content: &[u8]) -> u32 {
    let mut value = u32::MAX;
    for byte in content {
        value ^= u32::from(*byte);
        for _ in 0..8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
        }
    }
    !value
}

fn stored(name: &str, content: &[u8]) -> TestEntry {
    let (length, checksum) = (content.len() as u32, crc(content));
    TestEntry { name: name.into(), data: content.to_vec(), method: 0, flags: 0, length, checksum }
}

fn deflated(name: &str, content: &[u8]) -> TestEntry {
    let data = miniz_oxide::deflate::compress_to_vec(content, 6);
    TestEntry { data, method: 8, ..stored(name, content) }
}

fn archive(entries: &[TestEntry]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let offset = bytes.len() as u32;
        let name = entry.name.as_bytes();
        let common = [
            &entry.flags.to_le_bytes()[..],
            &entry.method.to_le_bytes(),
            &[0; 4],
            &entry.checksum.to_le_bytes(),
            &(entry.data.len() as u32).to_le_bytes(),
            &entry.length.to_le_bytes(),
            &(name.len() as u16).to_le_bytes(),
            &[0; 2],
        ]
        .concat();
        bytes.extend([&b"PK\x03\x04\x14\0"[..], &common, name, &entry.data].concat());
        directory.extend(
            [&b"PK\x01\x02\x14\0\x14\0"[..], &common, &[0; 10], &offset.to_le_bytes(), name].concat(),
        );
    }
    let count = (entries.len() as u16).to_le_bytes();
    let sizes = [directory.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend(directory);
    bytes.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &sizes, &[0, 0]].concat());
    bytes
}

fn manifest(text: &str) -> TestEntry {
    deflated(MANIFEST, text.as_bytes())
}

fn function() -> Vec<TestEntry> {
    let text = "Manifest-Version: 1.0\r\nsealstone-function: com.example.Co\r\n unt\r\n\r\nName: x\r\n";
    vec![manifest(text), stored("com/example/Count.class", CLASS), deflated("data/words.txt", b"words")]
}

#[test]
fn archive_of_function_is_read() {
    let bytes = archive(&function());
    let parsed = JavaArchive::parse(&bytes).unwrap();
    assert_eq!(parsed.function_class(), "com.example.Count");
    assert_eq!(parsed.entry_count(), 3);
    assert_eq!(parsed.entry("data/words.txt"), Ok(Some(b"words".to_vec())));
    assert_eq!(parsed.class("com.example.Count"), Ok(Some(CLASS.to_vec())));
    assert_eq!(parsed.class("com.example.Other"), Ok(None));
    assert!(parsed.names().is_sorted());
}

#[test]
fn each_mistake_has_its_error() {
    let class = || stored("Count.class", CLASS);
    let named = |text: &str| vec![manifest(text), class()];
    let changed = |change: &dyn Fn(&mut TestEntry)| {
        let mut entries = function();
        change(&mut entries[2]);
        entries
    };
    let many = |count: usize| (0..count).map(|n| stored(&format!("n{n}"), b"")).collect::<Vec<_>>();
    let large = ENTRY_BYTES_MAX;
    let bomb = (0..=CONTENT_BYTES_MAX / u64::from(large))
        .map(|n| TestEntry { length: large, ..stored(&format!("bomb{n}"), b"x") })
        .collect();
    for (entries, says) in [
        (vec![class()], "no META-INF/MANIFEST.MF"),
        (named("Manifest-Version: 1.0\n"), "no attribute Sealstone-Function"),
        (named("Manifest-Version: 1.0\n\nSealstone-Function: Count\n"), "no attribute"),
        (named("Manifest-Version 1.0\n"), "line 1 of the manifest"),
        (named(" Count\n"), "line 1 of the manifest"),
        (named("Sealstone-Function: a/Count\n"), "not the name of a class"),
        (named("Sealstone-Function: \n"), "not the name of a class"),
        (named("Sealstone-Function: Missing\n"), "names the class Missing"),
        (vec![manifest("Sealstone-Function: Count\n"), stored("Count.class", b"text")], "not a class file"),
        (vec![stored(MANIFEST, b"\xFF"), class()], "not UTF-8"),
        (vec![manifest(&" ".repeat(1 << 20)), class()], "more than 65536 bytes"),
        (changed(&|entry| entry.name = "com/example/Count.class".into()), "two entries are named"),
        (changed(&|entry| entry.method = 12), "neither stored nor deflated"),
        (changed(&|entry| entry.flags = 1), "encrypted"),
        (changed(&|entry| entry.length = ENTRY_BYTES_MAX + 1), "has 16777217 bytes, at most"),
        (changed(&|entry| entry.length = u32::MAX), "ZIP64"),
        (changed(&|entry| entry.name = "n".repeat(1025)), "a name above 1024 bytes"),
        (many(ENTRIES_MAX + 1), "16385 entries, at most"),
        (many(0xFFFF), "ZIP64"),
        (bomb, "more than 134217728 bytes together"),
    ] {
        let error = JavaArchive::parse(&archive(&entries)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}, not {says}");
    }
}

#[test]
fn damaged_entries_are_found_when_read() {
    for change in [
        (|entry: &mut TestEntry| entry.checksum ^= 1) as fn(&mut TestEntry),
        |entry| entry.length += 1,
        |entry| entry.length -= 1,
        |entry| entry.data.truncate(2),
        |entry| entry.data = vec![0xFF; 9],
    ] {
        let mut entries = function();
        change(&mut entries[2]);
        let bytes = archive(&entries);
        let parsed = JavaArchive::parse(&bytes).unwrap();
        let damaged = ArchiveError::Damaged("data/words.txt".into());
        assert_eq!(parsed.entry("data/words.txt"), Err(damaged));
    }
}

#[test]
fn truncated_archives_are_refused() {
    let bytes = archive(&function());
    for length in 0..bytes.len() {
        let error = JavaArchive::parse(&bytes[..length]).unwrap_err();
        let expected = if length < 4 { ArchiveError::NotArchive } else { ArchiveError::Truncated };
        assert_eq!(error, expected, "{length}");
    }
    let long = [&bytes[..], &vec![0; 32 << 20]].concat();
    assert_eq!(JavaArchive::parse(&long), Err(ArchiveError::Length(long.len())));
}

#[test]
fn comment_after_archive_is_accepted() {
    let mut bytes = archive(&function());
    let end = bytes.len();
    bytes[end - 2] = 4;
    bytes.extend(b"PK\x05\x06");
    assert!(JavaArchive::parse(&bytes).is_ok());
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(at in any::<proptest::sample::Index>(), byte: u8, cut in any::<proptest::sample::Index>()) {
        let mut bytes = archive(&function());
        let position = at.index(bytes.len());
        bytes[position] = byte;
        bytes.drain(..cut.index(bytes.len() / 8));
        if let Ok(parsed) = JavaArchive::parse(&bytes) {
            for name in parsed.names() {
                let _ = parsed.entry(name);
            }
        }
    }
}
