//! Tests with a real LDAP server as the directory: requests, trust in answers, silent servers and
//! impostors.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

#[path = "../../meta-store/tests/support/slapd.rs"]
mod slapd;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sealstone_mds::{DIRECTORY_GROUPS_MAX, DirectoryEntry, DirectoryError, DirectoryLookup};
use sealstone_mds_protocol::{GroupName, UserName};
use sealstone_mds_server::{DirectorySettings, LdapDirectory};
use slapd::{AttributeChange, GROUPS, READER, READER_PASSWORD, Slapd, USERS};
use zeroize::Zeroizing;

fn settings(url: &str) -> DirectorySettings {
    DirectorySettings {
        bind: Some((READER.to_owned(), Zeroizing::new(READER_PASSWORD.to_owned()))),
        timeout: Duration::from_secs(20),
        ..DirectorySettings::new(url, USERS, GROUPS)
    }
}

fn found(settings: DirectorySettings, name: &str) -> Result<DirectoryLookup, DirectoryError> {
    LdapDirectory::new(settings).unwrap().look_up_name(name)
}

fn entry(settings: DirectorySettings, name: &str) -> DirectoryEntry {
    match found(settings, name) {
        Ok(DirectoryLookup::Entry(entry)) => entry,
        other => panic!("{name}: {other:?}"),
    }
}

fn groups(settings: DirectorySettings, name: &str) -> Vec<String> {
    entry(settings, name).groups.iter().map(GroupName::to_string).collect()
}

/// A fake server that sends `answer` to every client, repeatedly if `endless`, and counts
/// connections.
struct FakeDirectory {
    address: SocketAddr,
    came: Arc<AtomicUsize>,
    heard: Arc<parking_lot::Mutex<Vec<u8>>>,
    over: Arc<AtomicBool>,
}

impl FakeDirectory {
    fn start(answer: &[u8], endless: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (came, heard, over) =
            (Arc::<AtomicUsize>::default(), Arc::default(), Arc::<AtomicBool>::default());
        let this = Self { address, came: came.clone(), heard: Arc::clone(&heard), over: over.clone() };
        let answer = answer.to_vec();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                came.fetch_add(1, Ordering::Relaxed);
                let Ok(mut stream) = stream else { continue };
                let (answer, heard) = (answer.clone(), Arc::clone(&heard));
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        heard.lock().extend_from_slice(&bytes[..count]);
                        while stream.write_all(&answer).is_ok() && endless {}
                    }
                });
            }
        });
        this
    }

    fn url(&self) -> String {
        format!("ldap://{}", self.address)
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for FakeDirectory {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

#[test]
fn users_and_their_groups_are_found() {
    let slapd = Slapd::start();
    let usual = || settings(&slapd.url());
    // By member, by uniqueMember, by memberUid; a group whose name is invalid here is omitted.
    assert_eq!(groups(usual(), "erika"), ["all", "board", "research"]);
    assert!(matches!(found(usual(), "nobody"), Ok(DirectoryLookup::NotFound)));
    assert!(matches!(found(usual(), "twin"), Err(DirectoryError::Ambiguous)));
    // Filters and attributes are configured.
    let staff = DirectorySettings { user_filter: "(employeeType=staff)".into(), ..usual() };
    assert!(
        matches!(found(staff, "erika"), Ok(DirectoryLookup::NotFound)),
        "the filter says who may work here"
    );
    let one = DirectorySettings { group_filter: "(|(cn=research)(cn=maxes))".into(), ..usual() };
    assert_eq!(groups(one, "erika"), ["research"]);
    let dns = DirectorySettings { member_name_attributes: Vec::new(), ..usual() };
    assert_eq!(groups(dns, "erika"), ["board", "research"]);
    let names = DirectorySettings { member_attributes: Vec::new(), ..usual() };
    assert_eq!(groups(names, "erika"), ["all"]);
    let number = DirectorySettings { user_attribute: "employeeNumber".into(), ..usual() };
    assert_eq!(groups(number, "7"), ["board", "research"]);
    let titles = DirectorySettings { group_attribute: "gidNumber".into(), ..usual() };
    assert_eq!(groups(titles, "erika"), ["100"]);
    let unknown = DirectorySettings { id_attribute: "objectGUID".into(), ..usual() };
    assert!(matches!(found(unknown, "erika"), Err(DirectoryError::NoLastingName(_))));
}

/// A name with filter syntax: taken as text, `*` would match every user and every member.
#[test]
fn names_are_escaped_in_filters() {
    let slapd = Slapd::start();
    let usual = || settings(&slapd.url());
    for name in
        ["*", "*)(uid=*", "erika)(|(uid=*", "erika*", "eri\\6ba", "\\2a", "e\0", "", ")", "(uid=erika)"]
    {
        assert!(matches!(found(usual(), name), Ok(DirectoryLookup::NotFound)), "{name}");
    }
    // No account can have such a name either.
    for name in ["*", "*)(uid=*", "erika)(|(uid=*", "a\\2a", "a\0"] {
        assert!(UserName::new(name).is_err(), "{name}");
    }
    // A DN is a value too: this one has filter syntax, and its member is in no other group.
    assert_eq!(groups(usual(), "max"), ["all", "maxes"]);
}

#[test]
fn closed_accounts_differ_from_missing_ones() {
    let slapd = Slapd::start();
    let erika = format!("uid=erika,{USERS}");
    let closed = || match found(settings(&slapd.url()), "erika") {
        Ok(DirectoryLookup::Closed(mark)) => Some(mark),
        Ok(DirectoryLookup::Entry(_)) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(closed(), None);
    slapd.change(&erika, AttributeChange::Replace, "shadowExpire", &["1"]);
    assert_eq!(closed(), Some("shadowExpire"));
    slapd.change(&erika, AttributeChange::Replace, "shadowExpire", &["-1"]);
    assert_eq!(closed(), None);
    slapd.change(&erika, AttributeChange::Add, "pwdAccountLockedTime", &["000001010000Z"]);
    assert_eq!(closed(), Some("pwdAccountLockedTime"));
    slapd.change(&erika, AttributeChange::Delete, "pwdAccountLockedTime", &[]);
    assert_eq!(closed(), None);
}

/// An entry with the name of a removed one must not inherit its account.
#[test]
fn entries_are_identified_by_id_attribute() {
    let slapd = Slapd::start();
    let erika = format!("uid=erika,{USERS}");
    let lasting = || entry(settings(&slapd.url()), "erika").entry;
    let first = lasting();
    assert_eq!(lasting(), first);
    slapd.change(&erika, AttributeChange::Replace, "sn", &["Married"]);
    assert_eq!(lasting(), first, "the same person");
    slapd.remove(&erika);
    slapd.add(
        &erika,
        &[("objectClass", "inetOrgPerson"), ("uid", "erika"), ("cn", "Erika"), ("sn", "Another")],
    );
    assert_ne!(lasting(), first, "another one");
}

#[test]
fn silent_and_refusing_directories_are_distinguished() {
    let mut slapd = Slapd::start();
    let usual = |url: &str| settings(url);
    let wrong = Some((READER.to_owned(), Zeroizing::new("wrong".to_owned())));
    let refused = found(DirectorySettings { bind: wrong, ..usual(&slapd.url()) }, "erika").unwrap_err();
    assert!(matches!(refused, DirectoryError::Refused(_)));
    assert!(refused.to_string().contains("bind: result 49 (invalid credentials)"), "{refused}");
    // An anonymous client gets "no such object" for hidden entries: that must not be taken for "no
    // such user".
    let nobody = found(DirectorySettings { bind: None, ..usual(&slapd.url()) }, "erika");
    assert!(matches!(nobody, Err(DirectoryError::Refused(_))), "{nobody:?}");
    let misspelt =
        DirectorySettings { user_base: "ou=poeple,dc=example,dc=org".into(), ..usual(&slapd.url()) };
    assert!(matches!(found(misspelt, "erika"), Err(DirectoryError::Refused(_))));
    slapd.stop();
    let silent = found(usual(&slapd.url()), "erika");
    assert!(matches!(silent, Err(DirectoryError::Unreachable(_))), "{silent:?}");
}

#[test]
fn missing_endless_and_malformed_answers_fail() {
    let ask = |impostor: &FakeDirectory, seconds| {
        let settings =
            DirectorySettings { timeout: Duration::from_secs(seconds), ..settings(&impostor.url()) };
        found(settings, "erika").expect_err("no answer").to_string()
    };
    let bound = b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\x00\x04\x00\x04\x00";
    let entry = b"\x30\x10\x02\x01\x02\x64\x0B\x04\x07uid=any\x30\x00";
    let reference = b"\x30\x09\x02\x01\x02\x73\x04\x04\x02xx";
    for (answer, endless, seconds, says) in [
        (&b""[..], false, 1, "no complete response within 1 s"),
        // The header of a message that is never sent.
        (&b"\x30\x82\xFF\xFF"[..], false, 1, "no complete response"),
        (b"\x30\x84\x7F\xFF\xFF\xFF", false, 20, "at most 262144"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", false, 20, "missing message"),
        (b"\x30\x03\x02\x01\x01", false, 20, "truncated element"),
        (b"\x30\x0C\x02\x01\x07\x61\x07\x0A\x01\x00\x04\x00\x04\x00", false, 20, "another message id"),
        // Notice of disconnection.
        (b"\x30\x0C\x02\x01\x00\x78\x07\x0A\x01\x34\x04\x00\x04\x00", false, 20, "closed the connection"),
        // The bind is answered, the search with endless references.
        (&[&bound[..], &reference.repeat(2000)].concat(), false, 20, "unexpected response to search"),
    ] {
        let impostor = FakeDirectory::start(answer, endless);
        let message = ask(&impostor, seconds);
        assert!(message.contains(says), "{answer:?}: {message}");
    }
    // Endless entries: two show that the name is ambiguous.
    let impostor = FakeDirectory::start(&[&bound[..], &entry.repeat(3)].concat(), false);
    assert!(ask(&impostor, 20).contains("several entries"));
    // Long references, up to the byte limit of a lookup.
    let tlv = |tag: u8, content: &[u8]| {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x83][..], &length[1..], content].concat()
    };
    let long = tlv(0x30, &[&b"\x02\x01\x02"[..], &tlv(0x73, &tlv(0x04, &[b'x'; 200_000]))].concat());
    let impostor = FakeDirectory::start(&[&bound[..], &long.repeat(30)].concat(), false);
    assert!(ask(&impostor, 20).contains("more than 4194304 bytes"));
    // Endless bytes.
    let flood = [&bound[..], &b"\x30\x09\x02\x01\x01\x79\x04\x80\x02xx".repeat(100)].concat();
    let impostor = FakeDirectory::start(&flood, true);
    assert!(!ask(&impostor, 20).is_empty());
}

/// A hanging directory must not delay every login for the whole timeout.
#[test]
fn lookups_pause_after_a_timeout() {
    let impostor = FakeDirectory::start(b"", false);
    let directory = LdapDirectory::new(DirectorySettings {
        timeout: Duration::from_secs(1),
        ..settings(&impostor.url())
    })
    .unwrap();
    assert!(directory.look_up_name("erika").is_err());
    assert_eq!(impostor.came(), 1);
    for _ in 0..100 {
        assert!(matches!(directory.look_up_name("erika"), Err(DirectoryError::Unreachable(_))));
    }
    assert!(impostor.came() < 10, "{} connections", impostor.came());
}

struct Certificates {
    ca: String,
    certificate: String,
    key: String,
}

/// Creates an authority, and a certificate of it for `name`.
fn certificates(name: &str) -> Certificates {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    Certificates { ca, certificate: certificate.pem(), key: key.serialize_pem() }
}

#[test]
fn tls_requires_a_certificate_for_the_host() {
    let (mine, other) = (certificates("localhost"), certificates("localhost"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        Some(path)
    };
    let (ca, wrong) = (file("ca.pem", &mine.ca), file("other.pem", &other.ca));
    let both = file("both.pem", &[other.ca.as_str(), mine.ca.as_str()].concat());
    let slapd = Slapd::start_with("", Some((&mine.certificate, &mine.key)));
    let ask = |url: String, ca_file: &Option<std::path::PathBuf>| {
        found(DirectorySettings { ca_file: ca_file.clone(), ..settings(&url) }, "erika")
    };
    let ldaps = |host: &str| format!("ldaps://{host}:{}", slapd.tls_port);
    let starttls = |host: &str| format!("ldap://{host}:{}", slapd.port);
    for url in [ldaps("localhost"), starttls("localhost")] {
        assert!(
            matches!(ask(url.clone(), &ca), Ok(DirectoryLookup::Entry(_))),
            "{url}: {:?}",
            ask(url.clone(), &ca)
        );
        assert!(matches!(ask(url.clone(), &both), Ok(DirectoryLookup::Entry(_))), "one of two authorities");
        let message = ask(url.clone(), &wrong).unwrap_err().to_string();
        assert!(message.contains("UnknownIssuer") || message.contains("BadSignature"), "{url}: {message}");
    }
    // Signed by the right authority, for another name.
    for url in [ldaps("127.0.0.1"), starttls("127.0.0.1")] {
        let message = ask(url.clone(), &ca).unwrap_err().to_string();
        assert!(
            message.contains("not valid for name") || message.contains("NotValidForName"),
            "{url}: {message}"
        );
    }
    // A server without TLS where TLS is required.
    assert!(matches!(
        ask(format!("ldaps://localhost:{}", slapd.port), &ca),
        Err(DirectoryError::Unreachable(_))
    ));
}

/// A man in the middle that refuses StartTLS, or answers as the directory, learns neither name nor
/// password.
#[test]
fn no_credentials_are_sent_without_required_tls() {
    let mine = certificates("localhost");
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, &mine.ca).unwrap();
    let good = b"\x30\x0C\x02\x01\x01\x78\x07\x0A\x01\x00\x04\x00\x04\x00";
    let refusal = b"\x30\x0C\x02\x01\x01\x78\x07\x0A\x01\x02\x04\x00\x04\x00";
    let forged_bind = b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\x00\x04\x00\x04\x00";
    for (answer, says) in [
        (&refusal[..], "StartTLS: result 2"),
        // A forged bind response, injected before TLS.
        (&[&good[..], &forged_bind[..]].concat(), "bytes between StartTLS and TLS"),
        (&forged_bind[..], "unexpected response to StartTLS"),
        (&good[..], "TLS:"),
    ] {
        let impostor = FakeDirectory::start(answer, false);
        let url = format!("ldap://localhost:{}", impostor.address.port());
        let settings = DirectorySettings { ca_file: Some(ca.clone()), ..settings(&url) };
        let message = found(settings, "erika").unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
        let heard = impostor.heard.lock();
        let has = |part: &str| heard.windows(part.len()).any(|window| window == part.as_bytes());
        assert!(
            !has(READER_PASSWORD) && !has(READER) && !has("erika"),
            "{:?}",
            String::from_utf8_lossy(&heard)
        );
    }
}

#[test]
fn referrals_are_not_followed() {
    let elsewhere = FakeDirectory::start(b"", false);
    let slapd = Slapd::start_with(
        &format!(
            "dn: ou=elsewhere,{USERS}\nobjectClass: referral\nobjectClass: extensibleObject\nou: elsewhere\n\
             ref: {url}/{USERS}\n\ndn: ou=elsewhere,{GROUPS}\nobjectClass: referral\nobjectClass: extensibleObject\n\
             ou: elsewhere\nref: {url}/{GROUPS}\n",
            url = elsewhere.url()
        ),
        None,
    );
    assert_eq!(groups(settings(&slapd.url()), "erika"), ["all", "board", "research"]);
    assert!(matches!(found(settings(&slapd.url()), "nobody"), Ok(DirectoryLookup::NotFound)));
    // The base of users is a referral to another server.
    let moved = DirectorySettings { user_base: format!("ou=elsewhere,{USERS}"), ..settings(&slapd.url()) };
    let message = found(moved, "erika").unwrap_err().to_string();
    assert!(message.contains("(referral)"), "{message}");
    assert_eq!(elsewhere.came(), 0);
}

#[test]
fn user_above_group_limit_is_rejected() {
    let more = |count: usize| -> String {
        let group = |i| {
            format!(
                "dn: cn=g{i},{GROUPS}\nobjectClass: posixGroup\ncn: g{i}\ngidNumber: {i}\nmemberUid: max\n\n"
            )
        };
        (1..=count).map(group).collect()
    };
    // The user is already in two groups: "all" and "maxes".
    let slapd = Slapd::start_with(&more(DIRECTORY_GROUPS_MAX - 2), None);
    assert_eq!(groups(settings(&slapd.url()), "max").len(), DIRECTORY_GROUPS_MAX);
    // One group more; and more than a server returns at once (500 for slapd).
    for count in [DIRECTORY_GROUPS_MAX - 1, 600] {
        let slapd = Slapd::start_with(&more(count), None);
        let error = found(settings(&slapd.url()), "max").unwrap_err();
        assert!(matches!(error, DirectoryError::TooManyGroups), "{error}");
        assert_eq!(groups(settings(&slapd.url()), "erika").len(), 3, "others are not held up");
    }
}
