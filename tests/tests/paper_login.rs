//! The paper's login through the real daemon and the real command line: it works if enabled, and
//! what it must not permit.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use sealstone_login::paper::PassphraseKey;
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::decode_message;
use sealstone_mds_protocol::paper::Init;
use sealstone_tests::{System, command, run_with_input, text};
use serde_json::Value;

const PASSPHRASE: &str = "swordfish";

fn system() -> System {
    System::start_with_mds(1, "1G", &[], &["--insecure-paper-login", "127.0.0.1:0"])
}

fn private(system: &System, name: &str, content: &str) -> PathBuf {
    let path = system.path(name);
    fs::write(&path, content).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("narrowed");
    path
}

/// Forwards connections to the server and records what clients send, as an attacker on the network.
fn recorder(server: &str) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let recording = Arc::new(Mutex::new(Vec::new()));
    let (kept, server) = (Arc::clone(&recording), server.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let upstream = TcpStream::connect(&server).expect("the server is there");
            let (mut answers, mut to_client) =
                (upstream.try_clone().expect("a handle"), client.try_clone().expect("a handle"));
            thread::spawn(move || std::io::copy(&mut answers, &mut to_client));
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                use std::io::{Read as _, Write as _};
                let (mut from, mut to) = (client, upstream);
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    kept.lock().expect("no panic").extend_from_slice(&buffer[..length]);
                    if to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, recording)
}

#[test]
fn recorded_paper_login_reveals_the_passphrase() {
    let system = system();
    let server = system.mds().field("insecure_paper_login").to_owned();
    let password = private(&system, "paper-passphrase", &format!("{PASSPHRASE}\n"));
    system.run(&["user", "paper", "carol", "--password-file", text(&password)]).ok();
    let session = system.path("carol.toml");
    let as_carol = |arguments: &[&str], input: &[u8]| {
        let mut command = system.command(arguments);
        command.env("SEALSTONE_SESSION", &session);
        run_with_input(command, input)
    };
    let (wire, recording) = recorder(&server);
    let login = ["login", "carol", "--paper-profile", &wire, "--password-file", text(&password), "--json"];
    let output = as_carol(&login, b"").ok().json();
    assert_eq!(
        (output["user"].as_str(), output["profile"].as_str()),
        (Some("carol"), Some("paper")),
        "{output}"
    );
    // The session continues in further processes, over their own connections.
    as_carol(&["put", "-", "/paper"], b"through the paper's profile").ok();
    assert_eq!(as_carol(&["cat", "/paper"], b"").ok().text(), "through the paper's profile");
    let kept = fs::read_to_string(&session).expect("the session file");
    assert!(kept.contains("profile = \"paper\""), "{kept}");
    // Accounts cannot be changed through it.
    let passwd =
        ["user", "passwd", "--old-password-file", text(&password), "--password-file", text(&password)];
    as_carol(&passwd, b"").fails(3);
    as_carol(&["user", "list"], b"").fails(3);

    // On the wire: INIT first. The client's address is in every packet's header.
    let recorded = recording.lock().expect("no panic").clone();
    let length = u32::from_be_bytes(recorded[8..12].try_into().expect("four bytes")) as usize;
    let init: Init = decode_message(&recorded[16..16 + length]).expect("an INIT");
    let carol = UserName::new("carol").expect("a name");
    let client = "127.0.0.1".parse().expect("an address");
    let guess = |word: &&str| PassphraseKey::derive(&carol, word).cookie(client) == init.client_cookie;
    assert_eq!(
        ["letmein", "password1", PASSPHRASE, "zzz"].iter().find(|word| guess(word)),
        Some(&PASSPHRASE)
    );

    as_carol(&["logout"], b"").ok();
    assert!(!session.exists());
    let log = fs::read_to_string(system.path("mds").join("audit.jsonl")).expect("the audit log");
    let records: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let is = |action: &str| {
        records.iter().any(|record| {
            record["user"] == "carol" && record["action"] == action && record["verdict"] == "ok"
        })
    };
    assert!(is("paper-login") && is("logout"), "{log}");
}

#[test]
fn paper_accounts_follow_their_login_profile() {
    let system = system();
    let server = system.mds().field("insecure_paper_login").to_owned();
    let password = private(&system, "paper-passphrase", &format!("{PASSPHRASE}\n"));
    let wrong = private(&system, "wrong", "wrong\n");
    system.run(&["user", "paper", "carol", "--password-file", text(&password)]).ok();
    let as_carol = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        command.env("SEALSTONE_SESSION", system.path("carol.toml"));
        run_with_input(command, b"")
    };
    let login = |file: &PathBuf, more: &[&str]| {
        let mut arguments = vec!["login", "carol", "--paper-profile", &server, "--password-file", text(file)];
        arguments.extend(more);
        as_carol(&arguments)
    };
    login(&password, &["--conservative"]).ok();
    as_carol(&["whoami"]).ok();
    login(&wrong, &[]).fails(3);
    login(&wrong, &["--conservative"]).fails(3);
    // The account has no modern password.
    let cluster = system.cluster();
    as_carol(&["login", "carol", "--cluster", text(&cluster), "--password-file", text(&password)]).fails(3);
    // After its removal the account cannot log in, and its session has ended.
    system.run(&["user", "paper", "carol", "--remove"]).ok();
    as_carol(&["whoami"]).fails(3);
    login(&password, &[]).fails(3);
}

#[test]
fn paper_login_requires_its_flags() {
    let system = System::start(1);
    let password = private(&system, "paper-passphrase", &format!("{PASSPHRASE}\n"));
    let refused = system.run(&["user", "paper", "carol", "--password-file", text(&password)]);
    refused.fails(3);
    // The modern listener rejects frames of the paper's profile.
    let address = system.mds().field("address").to_owned();
    let login = ["login", "carol", "--paper-profile", &address, "--password-file", text(&password)];
    assert_ne!(run_with_input(system.command(&login), b"").code, 0);
    let beyond = ["login", "carol", "--paper-profile", "192.0.2.1:3271", "--password-file", text(&password)];
    run_with_input(system.command(&beyond), b"").fails(2);
    let data = system.path("another");
    run_with_input(command(&["mds", "init", "--data", text(&data)]), b"").ok();
    let arguments = [
        "mds",
        "serve",
        "--data",
        text(&data),
        "--listen",
        "127.0.0.1:0",
        "--insecure-paper-login",
        "0.0.0.0:0",
    ];
    run_with_input(command(&arguments), b"").fails(2);
}
