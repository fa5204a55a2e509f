//! Every parser of external bytes is covered by a target.
//!
//! Reads the sources: a new public `parse`, `decode` or similar function fails this test until a
//! target lists it in `covers`, or [`EXEMPT`] gives a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sealstone_fuzz::TARGETS;

/// Folders of the crates that parse external bytes, with short names.
const CRATES: &[(&str, &str)] = &[
    ("protocol/scsi", "scsi"),
    ("protocol/osd", "osd"),
    ("protocol/iscsi", "iscsi"),
    ("protocol/mds-protocol", "mds-protocol"),
    ("protocol/ldap", "ldap"),
    ("protocol/sntp", "sntp"),
    ("security/digest", "digest"),
    ("security/block-protection", "block-protection"),
    ("security/block-e2e", "block-e2e"),
    ("security/seal", "seal"),
    ("security/login", "login"),
    ("security/channel", "channel"),
    ("active/function-abi", "function-abi"),
    ("active/wasm-module", "wasm-module"),
    ("active/java-archive", "java-archive"),
    ("active/functions", "functions"),
    ("device/store", "store"),
    ("device/osd-device", "osd-device"),
    ("device/block", "block"),
    ("device/block-lazy", "block-lazy"),
    ("device/iscsi-target", "iscsi-target"),
    ("client/initiator", "initiator"),
    ("client/block-client", "block-client"),
    ("client/nbd", "nbd"),
    ("client/client", "client"),
    ("client/fuse", "fuse"),
];

/// Prefixes of the names of parsing functions.
const READING: &[&str] = &["parse", "decode", "from_bytes", "from_str", "content", "designations"];

/// Parsing functions without a target.
const EXEMPT: &[(&str, &str)] = &[
    ("osd::Permissions::from_bytes", "any five bytes are permissions"),
    ("osd::ApiVersion::from_bytes", "any four bytes are a version"),
    ("scsi::AdditionalSense::from_bytes", "any two bytes are a code"),
    ("digest::LtHash::from_bytes", "any 2048 bytes are a sum"),
    ("login::PassphraseKey::from_bytes", "any twenty bytes are a key"),
    ("block::BlockSize::from_bytes", "a number of bytes, not bytes"),
    ("block-protection::BlockSeal::decode", "any bytes of its length are keys and a MAC"),
    ("block-protection::Generation::from_bytes", "any eight bytes are a generation"),
    ("block-protection::RecordSize::from_bytes", "a number of bytes, not bytes"),
    ("block-protection::UnitProtection::parse", "a name, compared with each of a few"),
];

/// Entry points with other names, which are not found by name.
const OTHERS: &[&str] = &[
    "iscsi::target_side::TargetConnection::received",
    "iscsi::initiator::InitiatorConnection::received",
    "store::DiskStore::open",
    "osd-device::OsdUnit::execute",
    "mds::Connection::receive",
    "login::Opener::open",
    "block::BlockUnit::execute",
    "block-lazy::LazyVolume::open",
    "block-e2e::JournalRecord::open",
    "block-e2e::DiskRoot::open",
    "block-e2e::UserSecretKey::unwrap",
    "block-protection::HeaderOpener::finish",
    "block-protection::PduProtection::open",
    "block-protection::RecordOpener::open",
    "block-protection::ReceivedSettings::check",
    "iscsi-target::IscsiTarget::serve_stream",
    "osd-device::DataDir::open",
    "osd::ObjectValues::entries",
    "scsi::spc::flat_lun",
    "seal::KeyHierarchy::put_partition",
    "seal::paper::mceliece::reveal",
    "seal::sense::response_icv_field",
    "seal::sense::good_carrier",
    "mds-protocol::Name::new",
    "mds-protocol::FilePath::new",
    "mds-protocol::UserName::new",
    "mds-protocol::GroupName::new",
    "mds-protocol::unshown",
    "sntp::Query::read",
    "sntp::Responder::answer",
    "client::SavedSession::load",
    "client::ServiceKey::from_text",
    "client::MdsClient::resume",
    "fuse::examine",
    "functions::entry::run_decompress",
    "functions::reduce_files",
    "functions::join_parquet",
    "functions::ThriftReader::structure",
    "function-formats::run_filter",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("the folder is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// `Name` of `impl Name`, `impl<'a> Name<'a>` or `impl Trait for Name`.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        })?;
        &rest[end + 1..]
    } else {
        rest
    };
    let rest = rest.split(" for ").last()?.trim();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| rest[..end].to_owned())
}

/// The parsing functions of a source file, as `Type::name` or `module::name`.
fn readers(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let above = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    let file = if stem == "mod" { above } else { stem };
    let mut owner: Option<String> = None;
    let mut module: Option<String> = None;
    for line in text.lines().take_while(|line| *line != "mod tests {") {
        if let Some(name) =
            line.trim_start().strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(" {"))
        {
            module = Some(name.to_owned());
        }
        if let Some(name) = implemented(line) {
            owner = Some(name);
        }
        if line == "}" {
            (owner, module) = (None, None);
        }
        let code = line.trim_start();
        let public = code.strip_prefix("pub const fn ").or_else(|| code.strip_prefix("pub fn "));
        let Some(rest) = public.or_else(|| code.strip_prefix("fn from_str").map(|_| &code[3..])) else {
            continue;
        };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if READING.iter().any(|word| name == *word || name.starts_with(&format!("{word}_"))) {
            let holder = owner.as_deref().or(module.as_deref()).unwrap_or(file);
            found.push(format!("{holder}::{name}"));
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The parsing functions of each crate.
fn entry_points() -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut all: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for (folder, short) in
        CRATES.iter().filter(|(_, short)| cfg!(feature = "client") || !["client", "fuse"].contains(short))
    {
        let mut files = Vec::new();
        sources(&root().join(folder).join("src"), &mut files);
        assert!(!files.is_empty(), "{folder} has moved");
        for path in files.iter().filter(|path| path.file_stem().is_none_or(|stem| stem != "tests")) {
            let text = fs::read_to_string(path).expect("sources are text");
            all.entry(*short)
                .or_default()
                .extend(readers(path, &text).into_iter().map(|one| format!("{short}::{one}")));
        }
    }
    all
}

#[test]
fn every_reading_function_has_a_target() {
    let covered: BTreeSet<&str> = TARGETS.iter().flat_map(|target| target.covers).copied().collect();
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(name, _)| *name).collect();
    let missing: Vec<String> = entry_points()
        .into_values()
        .flatten()
        .filter(|name| !covered.contains(&**name) && !exempt.contains(&**name))
        .collect();
    assert!(missing.is_empty(), "no target covers: {missing:#?}");
}

#[test]
fn every_target_covers_existing_functions() {
    let known = entry_points();
    for target in TARGETS {
        for name in target.covers {
            let found = OTHERS.contains(name) || known.values().any(|names| names.contains(*name));
            assert!(found, "{} covers {name}, which is not there", target.name);
        }
    }
    for (name, reason) in EXEMPT {
        assert!(
            !reason.is_empty() && known.values().any(|names| names.contains(*name)),
            "{name} is not there"
        );
    }
}

#[test]
fn every_crate_with_parsers_is_checked() {
    for (short, names) in entry_points() {
        let others = OTHERS.iter().filter(|name| name.starts_with(&format!("{short}::"))).count();
        assert!(names.len() + others > 0, "{short}: no reading function found, is the search still right?");
    }
}

/// cargo-fuzz runs programs; a target without one would be skipped.
#[test]
fn every_target_has_a_program_for_libfuzzer() {
    let manifest = root().join("fuzz/libfuzzer/Cargo.toml");
    let text = fs::read_to_string(manifest).expect("the manifest is there");
    for target in TARGETS.iter().filter(|target| !target.name.starts_with("client-")) {
        assert!(text.contains(&format!("name = \"{}\"\n", target.name)), "{} has no [[bin]]", target.name);
    }
}
