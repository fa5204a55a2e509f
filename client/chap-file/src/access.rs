//! Access file of a device: which initiators can log in, with which CHAP secret, to which logical
//! units.
//!
//! Does: read and check the file.
//! Does not: authenticate; the protocol machine does.
//! Contract: secrets come from private files only.
//! Truth: RFC 7143 §4.2.7 (names), §12.1.3 (secrets); docs/reference/files.md.

use std::path::Path;

use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_iscsi::chap::{ChapAccount, ChapAlgorithm, ChapSecret};
use sealstone_iscsi::limits::NAME_MAX;
use sealstone_iscsi::target_side::{AccessRule, AccessRules};
use serde::Deserialize;
use zeroize::Zeroizing;

/// Maximum number of entries of a file.
const INITIATORS_MAX: usize = 1024;
/// Maximum size of a file of accounts, bytes: 1 KiB per entry.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a CHAP name, by the length of a text value.
const USER_MAX: usize = 255;
/// Largest logical unit number of single-level addressing.
const LUN_MAX: u16 = 0x3FFF;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    algorithms: Option<Vec<String>>,
    target: Option<TargetAccount>,
    #[serde(default)]
    initiator: Vec<Initiator>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetAccount {
    user: String,
    secret: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Initiator {
    names: Vec<String>,
    user: Option<String>,
    secret: Option<String>,
    luns: Option<Vec<u16>>,
}

/// Reads an access file. Refuses a file that others can read.
///
/// # Errors
/// The file cannot be read, is not private, or has a wrong entry.
pub fn read_access_file(path: &Path) -> Outcome<AccessRules> {
    let text = secret_file::read_up_to(path, FILE_BYTES_MAX)?;
    parse(&text)
        .map_err(|failure| failure.at(path.shown()).hint("docs/reference/files.md shows an access file"))
}

fn parse(text: &str) -> Outcome<AccessRules> {
    let file: AccessFile = parse_toml(text)?;
    if file.initiator.is_empty() || file.initiator.len() > INITIATORS_MAX {
        return Err(Failure::usage(format!(
            "has {} [[initiator]] entries; 1 to {INITIATORS_MAX} are needed",
            file.initiator.len()
        )));
    }
    let rules: Vec<AccessRule> = file.initiator.into_iter().map(rule).collect::<Outcome<_>>()?;
    let mut access = AccessRules::new(rules);
    access.algorithms = algorithms(file.algorithms)?;
    if let Some(TargetAccount { user, secret }) = file.target {
        let own = account(user, secret)?;
        let mut accounts = access.rules.iter().filter_map(|rule| rule.account.as_ref());
        // RFC 7143 §12.1.3: otherwise responses of one direction could be used in the other.
        if accounts.any(|account| account.secret.same(&own.secret)) {
            return Err(Failure::usage("[target] and an [[initiator]] have the same secret"));
        }
        access.own = Some(own);
    }
    Ok(access)
}

/// Parses a file of secrets. Messages quote no line, which could contain a secret.
pub(crate) fn parse_toml<T: for<'a> Deserialize<'a>>(text: &str) -> Outcome<T> {
    toml::from_str(text).map_err(|error| {
        let line =
            error.span().map_or(0, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let message = error.message();
        // The name of a missing key is no secret.
        let said = if message.starts_with("missing field") { message } else { without_values(message) };
        Failure::usage(format!("line {line}: {said}"))
    })
}

/// Returns CHAP algorithms by name, or the default.
pub(crate) fn algorithms(names: Option<Vec<String>>) -> Outcome<Vec<ChapAlgorithm>> {
    let Some(names) = names else { return Ok(ChapAlgorithm::DEFAULT.to_vec()) };
    if names.is_empty() {
        return Err(Failure::usage("algorithms is empty"));
    }
    names.iter().map(|name| algorithm(name)).collect()
}

/// Whether a pattern matches a name, both in lower case.
pub(crate) fn matches_pattern(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or_else(|| pattern == name, |prefix| name.starts_with(prefix))
}

/// Returns the message of a parser up to the first quotation of the input.
fn without_values(message: &str) -> &str {
    message.split(['"', '`']).next().unwrap_or_default().trim_end_matches([' ', ':', ','])
}

fn rule(entry: Initiator) -> Outcome<AccessRule> {
    let Initiator { names, user, secret, luns } = entry;
    if names.is_empty() {
        return Err(Failure::usage("an [[initiator]] has no names"));
    }
    let initiators = names.iter().map(|name| iscsi_name(name)).collect::<Outcome<_>>()?;
    let account = match (user, secret) {
        (None, None) => None,
        (Some(user), Some(secret)) => Some(account(user, secret)?),
        _ => {
            return Err(Failure::usage(format!("{} has a user or a secret, but not both", names.join(", "))));
        }
    };
    if let Some(lun) = luns.iter().flatten().find(|lun| **lun > LUN_MAX) {
        return Err(Failure::usage(format!("LUN {lun} is above {LUN_MAX}")));
    }
    Ok(AccessRule { initiators, account, targets: Vec::new(), luns })
}

/// Returns an iSCSI name or pattern in lower case.
///
/// # Errors
/// It is no iSCSI name.
pub fn iscsi_name(name: &str) -> Outcome<String> {
    let lower = name.to_ascii_lowercase();
    let body = lower.strip_suffix('*').unwrap_or(&lower);
    let kind = ["iqn.", "eui.", "naa."].iter().any(|prefix| lower.starts_with(prefix)) || lower == "*";
    let characters = body.chars().all(|c| c.is_ascii_alphanumeric() || "-.:".contains(c) || !c.is_ascii());
    if !kind || !characters || lower.len() > NAME_MAX {
        let message =
            format!("'{name}' is no iSCSI name (iqn., eui. or naa.; * at its end stands for any rest)");
        return Err(Failure::usage(message));
    }
    Ok(lower)
}

/// Returns an account with the name and secret of a file.
pub(crate) fn account(user: String, secret: String) -> Outcome<ChapAccount> {
    let secret = Zeroizing::new(secret);
    if user.is_empty() || user.len() > USER_MAX || user.chars().any(char::is_control) {
        return Err(Failure::usage(format!("a user has 1 to {USER_MAX} bytes and no control characters")));
    }
    let bytes = match secret.strip_prefix("0x") {
        Some(digits) => secret_file::from_hex(digits).ok_or_else(|| {
            Failure::usage(format!("the secret of '{user}' begins with 0x but is not hexadecimal"))
        })?,
        None => Zeroizing::new(secret.as_bytes().to_vec()),
    };
    let secret = ChapSecret::new(&bytes)
        .map_err(|error| Failure::usage(error).at(format!("the secret of '{user}'")))?;
    Ok(ChapAccount { name: user, secret })
}

fn algorithm(name: &str) -> Outcome<ChapAlgorithm> {
    ChapAlgorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
        let known: Vec<&str> = ChapAlgorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
        Failure::usage(format!("unknown CHAP algorithm '{name}'; known are {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
algorithms = ["sha3-256", "sha256"]
[target]
user = "osd1"
secret = "what the device says"
[[initiator]]
names = ["iqn.1994-05.com.redhat:Host1", "iqn.2026-11.org.example:*"]
user = "host1"
secret = "0x000102030405060708090a0b"
luns = [0, 16383]
[[initiator]]
names = ["eui.02004567A425678D"]
"#;

    #[test]
    fn complete_file_is_parsed() {
        let access = parse(WHOLE).expect("right");
        assert_eq!(access.algorithms, [ChapAlgorithm::Sha3, ChapAlgorithm::Sha256]);
        assert_eq!(access.rules[0].initiators, ["iqn.1994-05.com.redhat:host1", "iqn.2026-11.org.example:*"]);
        assert_eq!(access.rules[0].luns.as_deref(), Some(&[0, 16383][..]));
        assert!(access.rules[1].account.is_none() && access.own.is_some());
    }

    #[test]
    fn md5_requires_its_name() {
        let entry = "[[initiator]]\nnames = [\"iqn.a\"]\n";
        assert_eq!(parse(entry).expect("right").algorithms, [ChapAlgorithm::Sha256, ChapAlgorithm::Sha3]);
        let named = format!("algorithms = [\"sha256\", \"md5\"]\n{entry}");
        assert_eq!(parse(&named).expect("right").algorithms, [ChapAlgorithm::Sha256, ChapAlgorithm::Md5]);
    }

    #[test]
    fn file_of_maximum_entries_is_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("access");
        let entries = |count: usize| -> String {
            let entry = |n| {
                format!(
                    "[[initiator]]\nnames = [\"iqn.2026-11.org.example:a-rather-long-name.host-{n}\"]\nuser = \"host-{n}\"\nsecret = \"0x{n:064x}\"\n"
                )
            };
            (0..count).map(entry).collect()
        };
        for (count, right) in [(INITIATORS_MAX, true), (INITIATORS_MAX + 1, false)] {
            std::fs::write(&path, entries(count)).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("narrowed");
            assert_eq!(read_access_file(&path).is_ok(), right, "{count}");
        }
    }

    #[test]
    fn errors_name_the_fault_without_secrets() {
        let entry = |body: &str| format!("[[initiator]]\nnames = [\"iqn.a\"]\n{body}\n");
        for (text, says) in [
            (String::new(), "0 [[initiator]] entries"),
            ("[[initiator]]\nnames = []".into(), "no names"),
            ("[[initiator]]\nnames = [\"host1\"]".into(), "'host1' is no iSCSI name"),
            ("[[initiator]]\nnames = [\"iqn.a b\"]".into(), "no iSCSI name"),
            (entry("user = \"ann\""), "but not both"),
            (entry("secret = \"hush hush hush\""), "but not both"),
            (entry("user = \"ann\"\nsecret = \"hush\""), "12 to 256 bytes, this one has 4"),
            (entry("user = \"ann\"\nsecret = \"0xhush\""), "not hexadecimal"),
            (entry("user = \"\"\nsecret = \"hush hush hush\""), "1 to 255 bytes"),
            (entry("luns = [16384]"), "LUN 16384"),
            (entry("passwort = \"hush hush hush\""), "line 3"),
            (entry("user = \"ann\"\nsecret = hush hush hush"), "line 4"),
            (format!("algorithms = [\"sha1\"]\n{}", entry("")), "unknown CHAP algorithm 'sha1'"),
            (format!("algorithms = []\n{}", entry("")), "algorithms is empty"),
            (
                format!(
                    "[target]\nuser = \"o\"\nsecret = \"hush hush hush\"\n{}",
                    entry("user = \"ann\"\nsecret = \"hush hush hush\"")
                ),
                "the same secret",
            ),
        ] {
            let message = parse(&text).expect_err(says).message;
            assert!(message.contains(says), "{message} / {says}");
            assert!(!message.contains("hush"), "{message}");
        }
    }
}
