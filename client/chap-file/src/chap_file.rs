//! CHAP file of a client or metadata server: its account at each target.
//!
//! Does: read and check the file, find the entry for a target.
//! Does not: log in; the initiator does.
//! Contract: secrets come from private files only. The file is read for each login, so that a
//! change needs no restart.
//! Truth: RFC 7143 §12.1.3; docs/reference/files.md.

use std::path::{Path, PathBuf};

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_initiator::chap::ChapAlgorithm;
use sealstone_initiator::{Proof, ProofError, Proofs};
use serde::Deserialize;

use crate::access::{self, FILE_BYTES_MAX};

/// Maximum number of entries of a file.
const TARGETS_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChapFile {
    algorithms: Option<Vec<String>>,
    #[serde(default)]
    target: Vec<TargetTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetTable {
    names: Vec<String>,
    user: String,
    secret: String,
    target_user: Option<String>,
    target_secret: Option<String>,
}

/// The account for some targets.
struct ChapEntry {
    names: Vec<String>,
    proof: Proof,
}

/// Returns the CHAP accounts for targets; none without a file. Fails at once if the file is wrong.
pub fn proofs(path: Option<&PathBuf>) -> Outcome<Proofs> {
    let Some(path) = path.cloned() else { return Ok(Proofs::default()) };
    read(&path)?;
    // Small: read without a blocking thread.
    Ok(Proofs::new(move |target| match read(&path) {
        Ok(entries) => Ok(find(entries, target)),
        Err(failure) => Err(ProofError(failure.to_string())),
    }))
}

fn find(entries: Vec<ChapEntry>, target: &str) -> Option<Proof> {
    let target = target.to_ascii_lowercase();
    let matches_pattern =
        |entry: &ChapEntry| entry.names.iter().any(|name| access::matches_pattern(name, &target));
    entries.into_iter().find(matches_pattern).map(|entry| entry.proof)
}

fn read(path: &Path) -> Outcome<Vec<ChapEntry>> {
    let text = secret_file::read_up_to(path, FILE_BYTES_MAX)?;
    parse(&text).map_err(|failure| failure.at(path.shown()).hint("docs/reference/files.md shows a CHAP file"))
}

fn parse(text: &str) -> Outcome<Vec<ChapEntry>> {
    let file: ChapFile = access::parse_toml(text)?;
    if file.target.is_empty() || file.target.len() > TARGETS_MAX {
        return Err(Failure::usage(format!(
            "has {} [[target]] entries; 1 to {TARGETS_MAX} are needed",
            file.target.len()
        )));
    }
    let algorithms = access::algorithms(file.algorithms)?;
    file.target.into_iter().map(|target| entry(target, &algorithms)).collect()
}

fn entry(target: TargetTable, algorithms: &[ChapAlgorithm]) -> Outcome<ChapEntry> {
    let TargetTable { names, user, secret, target_user, target_secret } = target;
    if names.is_empty() {
        return Err(Failure::usage("a [[target]] has no names"));
    }
    let names = names.iter().map(|name| access::iscsi_name(name)).collect::<Outcome<_>>()?;
    let account = access::account(user, secret)?;
    let target = match (target_user, target_secret) {
        (None, None) => None,
        (Some(user), Some(secret)) => Some(access::account(user, secret)?),
        _ => return Err(Failure::usage("a [[target]] has a target_user or a target_secret, but not both")),
    };
    // RFC 7143 §12.1.3: otherwise responses of one direction could be used in the other.
    if target.as_ref().is_some_and(|target| target.secret.same(&account.secret)) {
        return Err(Failure::usage("a [[target]] has the same secret for both directions"));
    }
    Ok(ChapEntry { names, proof: Proof { account, target, algorithms: algorithms.to_vec() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
algorithms = ["sha256", "md5"]
[[target]]
names = ["iqn.2026-11.org.sealstone:osd.OSD1"]
user = "ann"
secret = "what ann says to osd1"
target_user = "osd1"
target_secret = "what osd1 says to ann"
[[target]]
names = ["iqn.2026-11.org.sealstone:*"]
user = "ann"
secret = "0x000102030405060708090a0b"
"#;

    #[test]
    fn first_matching_entry_is_used() {
        let of = |target| find(parse(WHOLE).expect("right"), target);
        let first = of("iqn.2026-11.org.sealstone:osd.osd1").expect("named");
        assert_eq!((first.account.name.as_str(), first.target.is_some()), ("ann", true));
        assert_eq!(first.algorithms, [ChapAlgorithm::Sha256, ChapAlgorithm::Md5]);
        assert!(of("iqn.2026-11.org.sealstone:osd.osd2").expect("by prefix").target.is_none());
        assert!(of("iqn.2026-11.org.example:disk").is_none(), "nothing is proven to others");
    }

    #[test]
    fn errors_name_the_fault_without_secrets() {
        let entry = |body: &str| format!("[[target]]\nnames = [\"iqn.a\"]\n{body}\n");
        let right = "user = \"ann\"\nsecret = \"hush hush hush\"";
        for (text, says) in [
            (String::new(), "0 [[target]] entries"),
            (format!("[[target]]\nnames = []\n{right}"), "no names"),
            (format!("[[target]]\nnames = [\"osd1\"]\n{right}"), "'osd1' is no iSCSI name"),
            (entry("user = \"ann\""), "missing field"),
            (entry("user = \"ann\"\nsecret = \"hush\""), "12 to 256 bytes, this one has 4"),
            (entry(&format!("{right}\ntarget_user = \"t\"")), "but not both"),
            (
                entry(&format!("{right}\ntarget_user = \"t\"\ntarget_secret = \"hush hush hush\"")),
                "the same secret",
            ),
            (entry("user = \"ann\"\nsecret = hush hush hush"), "line 4"),
            (format!("algorithms = [\"sha1\"]\n{}", entry(right)), "unknown CHAP algorithm 'sha1'"),
        ] {
            let message = parse(&text).err().expect(says).message;
            assert!(message.contains(says), "{message} / {says}");
            assert!(!message.contains("hush"), "{message}");
        }
    }
}
