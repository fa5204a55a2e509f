//! The table of targets.

use crate::targets::{
    block, block_e2e, block_lazy, block_protection, device, function_ring, functions, initiator, iscsi,
    iscsi_login, java_archive, ldap, login, mds, mds_connection, nbd, osd, osd_function, osd_lists, paper,
    receipt, scsi, seal, shell, sntp, store, tables, wasm_module,
};
#[cfg(feature = "client")]
use crate::targets::{client, client_link, fuse};

/// One entry point for external bytes.
pub struct Target {
    /// Name on the command line and of the corpus folder.
    pub name: &'static str,
    /// The tested function, and the properties verified beyond the absence of panics.
    pub about: &'static str,
    /// Runs one input. Panics if a property is violated.
    pub run: fn(&[u8]),
    /// Real inputs to start from, the same on every call.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Cost of one run, relative to a cheap target. The smoke run does proportionally fewer.
    pub cost: u32,
    /// Reason for exclusion from the smoke run and `--all`: a known external failure that cannot be
    /// caught.
    pub quarantine: Option<&'static str>,
    /// The covered entry points, as `crate::Type::function` or `crate::module::function`.
    pub covers: &'static [&'static str],
}

/// Every target.
pub static TARGETS: &[Target] = &[
    osd::CDB,
    osd::CAPABILITY,
    osd::CONTINUATION,
    osd::INTEGRITY,
    osd::MASTER_KEY,
    osd::OFFSET,
    osd::TASK,
    osd_function::FUNCTION,
    function_ring::RING,
    functions::COMPRESSED,
    functions::EXPRESSION,
    functions::RESULT,
    tables::TABLE,
    tables::PARTS,
    java_archive::ARCHIVE,
    wasm_module::MODULE,
    osd_lists::ATTRIBUTE_LISTS,
    osd_lists::ATTRIBUTE_PAGES,
    osd_lists::LISTING,
    osd_lists::QUERY,
    osd_lists::MAP,
    scsi::SENSE,
    scsi::SPC,
    iscsi::TARGET,
    iscsi::INITIATOR,
    iscsi::SESSION,
    iscsi_login::LOGIN,
    shell::SHELL,
    mds::FRAME,
    mds::LOGIN,
    mds::REQUEST,
    mds::RESPONSE,
    mds::LAYOUT,
    mds::NAMES,
    mds_connection::CONNECTION,
    ldap::MESSAGE,
    ldap::FILTER,
    login::SERVER,
    login::CLIENT,
    login::RESUME,
    paper::MESSAGES,
    paper::ENDS,
    paper::RECORDS,
    seal::KEYSTORE,
    seal::METHOD_CIPHER,
    seal::GATE,
    seal::DATA_OUT,
    seal::REPLY,
    receipt::RECEIPT,
    store::OPEN,
    store::INDEX_PAGES,
    store::WHOLE_SUPERBLOCK,
    store::RECORDS,
    store::WRITE_LOG,
    initiator::URL,
    nbd::STREAM,
    nbd::UNIT,
    sntp::PACKET,
    sntp::TALK,
    sntp::KEY_LINE,
    #[cfg(feature = "client")]
    client::SESSION_FILE,
    #[cfg(feature = "client")]
    client::KEY_FILE,
    #[cfg(feature = "client")]
    client::CAPABILITY_FILE,
    #[cfg(feature = "client")]
    client_link::LINK,
    #[cfg(feature = "client")]
    fuse::REQUEST,
    device::UNIT,
    device::LOCKED_UNIT,
    device::DIRECTORY,
    device::KEY_FILE,
    block::UNIT,
    block::KEYED_UNIT,
    block_lazy::VOLUME,
    block_e2e::BLOCKS,
    block_e2e::ROOTS,
    block_protection::HEADERS,
    block_protection::PDUS,
    block_protection::RECORDS,
    block_protection::SETTINGS,
    block_protection::UNIT_KEYS,
];

/// Finds a target by name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Returns bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use core::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses hexadecimal digits, with optional blanks; `None` if invalid.
#[must_use]
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_for_folders() {
        for (at, target) in TARGETS.iter().enumerate() {
            assert!(
                target.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{}",
                target.name
            );
            assert!(TARGETS[..at].iter().all(|other| other.name != target.name), "{}", target.name);
            assert!(
                target.cost > 0 && !target.about.is_empty() && !target.covers.is_empty(),
                "{}",
                target.name
            );
        }
    }

    #[test]
    fn hex_reads_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        assert_eq!(unhex("0 1\n"), Some(vec![1]));
        assert_eq!((unhex("0"), unhex("0g")), (None, None));
    }
}
