//! `sealstone-client`: session files, service keys, capability files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use sealstone_client::{
    CapabilityDevice, CapabilityFile, Delegated, FilePath, Proofs, RunFile, SavedSession, ServiceKey,
    SessionTicket, UserName, tls::Fingerprint,
};
use sealstone_login::SessionKeys;
use sealstone_mds_protocol::{DelegatedFile, Response};
use sha2::{Digest as _, Sha256};

use crate::Target;

/// A folder for test files, kept until the process ends.
fn scratch() -> &'static tempfile::TempDir {
    static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();
    SCRATCH.get_or_init(|| tempfile::tempdir().expect("a folder for temporary files"))
}

/// A private file, one for each thread.
fn private(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().path().join(format!("{name}-{:?}", std::thread::current().id()));
    fs::write(&path, bytes).expect("the folder is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    path
}

fn session_file(input: &[u8]) {
    let path = private("session", input);
    let Ok(Some(saved)) = SavedSession::load(&path) else { return };
    saved.save(&path).expect("the folder is writable");
    let again = SavedSession::load(&path).expect("our own file").expect("just written");
    assert_eq!((&again.server, again.fingerprint), (&saved.server, saved.fingerprint));
    let (one, other) = (again.ticket, saved.ticket);
    assert_eq!((one.user, one.server_id, one.session), (other.user, other.server_id, other.session));
    assert_eq!((one.expires_ms, one.keys.to_bytes()), (other.expires_ms, other.keys.to_bytes()));
}

fn session_seeds() -> Vec<Vec<u8>> {
    let saved = SavedSession {
        server: "mds.example:3270".to_owned(),
        fingerprint: Some(Fingerprint::certificate(b"it")),
        ticket: SessionTicket {
            user: UserName::new("alice").expect("a proper account"),
            server_id: [1; 16],
            session: [2; 16],
            keys: SessionKeys::from_bytes(&[3; 32]).into(),
            expires_ms: 1_800_000_000_000,
        },
    };
    let path = private("seed", b"");
    saved.save(&path).expect("the folder is writable");
    vec![fs::read(&path).expect("just written")]
}

pub(crate) const SESSION_FILE: Target = Target {
    name: "client-session-file",
    about: "a session file; what loads saves and loads the same",
    run: session_file,
    seeds: session_seeds,
    cost: 60,
    quarantine: None,
    covers: &["client::SavedSession::load", "channel::Pin::from_str"],
};

fn key_file(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(key) = ServiceKey::from_text(&text) else { return };
    let again = ServiceKey::from_text(&key.to_text()).expect("our own text");
    assert_eq!((&again.user, again.suite), (&key.user, key.suite));
    assert_eq!(*again.to_text(), *key.to_text());
}

pub(crate) const KEY_FILE: Target = Target {
    name: "client-key-file",
    about: "a service's key file; what loads is written as a text that loads the same",
    run: key_file,
    seeds: || {
        let text = |suite: &str, digits: &str| {
            format!("user = \"backup\"\nsuite = {suite}\nsecret = \"{}\"\n", digits.repeat(32)).into_bytes()
        };
        vec![text("257", "0a"), text("258", "F9"), text("1", "ab"), text("257", "äa")]
    },
    cost: 4,
    quarantine: None,
    covers: &["client::ServiceKey::from_text"],
};

/// First bytes of the file. Its last bytes are a digest of all others.
const CAPABILITY_MAGIC: &[u8] = b"OSDCAP01";
const RUN_MAGIC: &[u8] = b"OSDRUN01";
const DIGEST_BYTES: usize = 32;

/// Parses the bytes as the body of a run file with the correct digest.
fn run_file(input: &[u8]) {
    let mut bytes = [RUN_MAGIC, input].concat();
    bytes.extend_from_slice(&Sha256::digest(&bytes));
    if let Ok(file) = RunFile::parse(&bytes) {
        assert_eq!(*file.encode().expect("what parses is within the limits"), bytes);
    }
}

/// Parses the bytes as given, and as the body of a file with the correct digest.
fn capability_file(input: &[u8]) {
    let _ = CapabilityFile::parse(input);
    run_file(input);
    let mut bytes = [CAPABILITY_MAGIC, input].concat();
    bytes.extend_from_slice(&Sha256::digest(&bytes));
    let Ok(file) = CapabilityFile::parse(&bytes) else { return };
    assert_eq!(*file.encode().expect("what parses is within the limits"), bytes);
    let range = file.delegated.start..file.delegated.end;
    // Only parses its credentials; sends nothing.
    if let Ok(delegated) = Delegated::open(file, Proofs::default()) {
        assert_eq!(delegated.range(), range);
    }
}

fn capability_seeds() -> Vec<Vec<u8>> {
    let all = super::mds::responses();
    let found = all.into_iter().find_map(|response| match response {
        Response::Delegated { file } => Some(file),
        _ => None,
    });
    let delegated = found.expect("a seed for each row");
    let device = |id| CapabilityDevice {
        id,
        name: sealstone_mds_protocol::Name::new("osd").expect("a name"),
        system_id: [1; 20],
        url: sealstone_mds_protocol::Text::truncated("iscsi://h:3260/iqn.x/0"),
        pin: None,
    };
    let mut devices: Vec<_> = delegated.layout.objects().iter().map(|object| object.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut grants = delegated.grants.clone();
    grants.truncate(1);
    for (grant, object) in grants.iter_mut().zip(delegated.layout.objects()) {
        grant.object = *object;
    }
    let file = CapabilityFile {
        path: FilePath::new("/f").expect("a path"),
        delegated: DelegatedFile { grants, ..delegated },
        devices: devices.into_iter().map(device).collect(),
    };
    let bytes = file.encode().expect("a short file");
    let body = &bytes[CAPABILITY_MAGIC.len()..bytes.len() - DIGEST_BYTES];
    let DelegatedFile { stat, layout, .. } = file.delegated.clone();
    let of = |read, path| {
        let (start, end) = (0, stat.size);
        let layout = sealstone_mds_protocol::Layout::single(layout.objects()[0]);
        let grants = file.delegated.grants.clone();
        let delegated =
            DelegatedFile { read, write: false, start, end, layout, grants, ..file.delegated.clone() };
        let path = FilePath::new(path).expect("a path");
        CapabilityFile { path, delegated, devices: file.devices.clone() }
    };
    let run = RunFile::new(of(false, "/fn"), vec![of(true, "/f")]).expect("a run file").encode();
    let run = run.expect("a short file");
    let run_body = &run[RUN_MAGIC.len()..run.len() - DIGEST_BYTES];
    vec![body.to_vec(), bytes.to_vec(), run_body.to_vec()]
}

pub(crate) const CAPABILITY_FILE: Target = Target {
    name: "client-capability-file",
    about: "a capability or run file, with any digest and the right one; what parses encodes to the same bytes",
    run: capability_file,
    seeds: capability_seeds,
    cost: 10,
    quarantine: None,
    covers: &["client::CapabilityFile::parse", "client::RunFile::parse"],
};
