//! JAR files: functions that javac compiles, and archives with mistakes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::zygotes::ENGINE;

/// The Java sources of tests and examples.
const SOURCES: [&str; 6] = [
    "tests/functions/Behaviours.java",
    "tests/functions/EveryCall.java",
    "tests/functions/Escapes.java",
    "java/examples/io/sealstone/examples/WordCount.java",
    "java/examples/io/sealstone/examples/Grep.java",
    "java/examples/io/sealstone/examples/CopyObject.java",
];

/// A file of an archive.
#[derive(Clone, Debug)]
pub(crate) struct JarEntry {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    /// The size that the archive states.
    pub(crate) length: u32,
}

impl JarEntry {
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        Self { name: name.into(), content: content.to_vec(), length: content.len() as u32 }
    }
}

fn checksum(content: &[u8]) -> u32 {
    let mut value = u32::MAX;
    for byte in content {
        value ^= u32::from(*byte);
        for _ in 0..8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
        }
    }
    !value
}

/// Returns an archive of stored entries.
pub(crate) fn archive(entries: &[JarEntry]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for JarEntry { name, content, length } in entries {
        let offset = (bytes.len() as u32).to_le_bytes();
        let sizes = [checksum(content), content.len() as u32, *length].map(u32::to_le_bytes).concat();
        let common = [&[0; 8][..], &sizes, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        bytes.extend([b"PK\x03\x04\x14\0", &common[..], name.as_bytes(), content].concat());
        directory
            .extend([b"PK\x01\x02\x14\0\x14\0", &common[..], &[0; 10], &offset, name.as_bytes()].concat());
    }
    let count = (entries.len().min(0xFFFF) as u16).to_le_bytes();
    let sizes = [directory.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
    bytes.extend(directory);
    bytes.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &sizes, &[0, 0]].concat());
    bytes
}

/// Returns a manifest that names a class.
pub(crate) fn manifest(class: &str) -> JarEntry {
    let text = format!("Manifest-Version: 1.0\r\nSealstone-Function: {class}\r\n");
    JarEntry::new("META-INF/MANIFEST.MF", text.as_bytes())
}

fn collect(folder: &Path, base: &Path, entries: &mut Vec<JarEntry>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, base, entries);
        } else {
            let name = path.strip_prefix(base).expect("below").to_string_lossy().into_owned();
            entries.push(JarEntry::new(&name, &std::fs::read(&path).expect("read")));
        }
    }
}

/// Compiles sources with the SDK beside the engine; returns the class files.
pub(crate) fn compile(sources: &[PathBuf]) -> Vec<JarEntry> {
    let folder = tempfile::tempdir().expect("a folder");
    let sdk = Path::new(ENGINE).with_file_name("sealstone-function.jar");
    let output = Command::new("javac")
        .args(["--release", "17", "-nowarn", "-cp"])
        .arg(sdk)
        .arg("-d")
        .arg(folder.path())
        .args(sources)
        .output()
        .expect("javac starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut entries = Vec::new();
    collect(folder.path(), folder.path(), &mut entries);
    entries
}

/// Returns the class files of the functions of tests and examples.
pub(crate) fn classes() -> &'static [JarEntry] {
    static CLASSES: OnceLock<Vec<JarEntry>> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        compile(&SOURCES.map(|source| folder.join(source)))
    })
}

/// Returns a JAR file with the functions of the tests, whose manifest names this class.
pub(crate) fn jar(class: &str) -> Vec<u8> {
    archive(&[&[manifest(class)], classes()].concat())
}
