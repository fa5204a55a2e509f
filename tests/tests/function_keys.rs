//! Keys that functions read by a handle: no argument has them, and their capabilities decide.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use sealstone_client::functions::{CallGrouping, FunctionRun};
use sealstone_tests::{System, run_with_input, store_shipped, text};

use crate::api::connect;
use crate::function_jobs::{HeldRun, until};
use crate::function_reduction::is_striped;
use crate::function_runs::store_text;
use crate::revocation::{add_user, other};

const IV: &str = "000102030405060708090a0b0c0d0e0f";
const KEY: [u8; 16] = *b"\x5e\xc4\xe7\x5e\xc4\xe7\x00\xff\x10\x32\x54\x76\x98\xba\xdc\xfe";
const KEY_DIGITS: &str = "5ec4e75ec4e700ff1032547698badcfe";

fn content() -> Vec<u8> {
    (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn put(system: &System, path: &str, bytes: &[u8]) {
    run_with_input(system.command(&["put", "-", path]), bytes).ok();
}

#[test]
fn key_object_encrypts_as_argument_does() {
    let system = System::start(1);
    store_shipped(&system, &["aes"]);
    let local = |name: &str, bytes: &[u8]| {
        let path = system.path(name);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("changed");
        path
    };
    let plain = local("plain", &content());
    for path in ["/plain", "/by-handle", "/by-argument", "/again"] {
        system.run(&["put", text(&plain), path]).ok();
    }
    system.run(&["put", text(&local("key", &KEY)), "/key"]).ok();
    let aes = |from: &str, to: &str, options: &[&str]| {
        let fixed = ["run", "aes", "--together", "--update"];
        system.run(&[&fixed, options, &[from, to]].concat())
    };
    let iv = format!("iv={IV}");
    let by_handle = ["--key-object", "/key", "--arg", &iv];
    aes("/plain", "/by-handle", &by_handle).ok();

    let arguments = local("arguments", format!("key={KEY_DIGITS}\niv={IV}\n").as_bytes());
    aes("/plain", "/by-argument", &["--arg-file", text(&arguments)]).ok();
    let encrypted = system.run(&["cat", "/by-handle"]).ok().stdout;
    assert!(encrypted == system.run(&["cat", "/by-argument"]).ok().stdout && encrypted != content());
    aes("/by-handle", "/again", &by_handle).ok();
    assert!(system.run(&["cat", "/again"]).ok().stdout == content());

    // A file that is no key, and one that is none for any function.
    system.run(&["put", text(&local("short", b"too short")), "/short"]).ok();
    aes("/plain", "/again", &["--key-object", "/short", "--arg", &iv]).fails(1).says(&["code -74"]);
    aes("/plain", "/again", &["--key-object", "/plain", "--arg", &iv])
        .fails(2)
        .says(&["/plain is not a file with a key"]);
    assert!(system.run(&["cat", "/again"]).ok().stdout == content(), "nothing was written");
}

#[test]
fn key_is_copied_to_devices_with_rights() {
    let system = System::start(2);
    store_text(&system, "hold", KEY_READER);
    // An administrator may read and copy any file.
    add_user(&system, "carol");
    let carol = |words: &[&str]| other(&system, "carol", words);
    let local = system.path("data");
    std::fs::write(&local, vec![b'g'; 3_000_000]).expect("written");
    carol(&["put", text(&local), "/striped"]).ok();
    assert!(is_striped(&system, "/striped"));
    std::fs::write(&local, KEY).expect("written");
    carol(&["put", text(&local), "/key"]).ok();
    let run = ["run", "hold", "--key-object", "/key", "/striped"];
    carol(&["chmod", "600", "/key"]).ok();
    carol(&run).fails(3).says(&["has no copy of /key", "chmod 700"]);
    carol(&["chmod", "700", "/key"]).ok();
    for _ in 0..2 {
        assert_eq!(carol(&run).ok().text(), "read\nread\n", "a job on each device");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_argument_has_the_key() {
    let system = System::start(1);
    store_shipped(&system, &["aes"]);
    for path in ["/from", "/to"] {
        put(&system, path, b"some text");
    }
    put(&system, "/key", KEY_DIGITS.as_bytes());
    let client = connect(&system).await;
    let mut call = FunctionRun::new("/.functions/aes");
    call.read("/from");
    call.update("/to");
    call.grouping = CallGrouping::PerDevice;
    call.key_file = Some(b"/key".to_vec());
    call.arguments.add("iv", IV).expect("a new argument");
    let mut replies = Vec::new();
    let summary = call.run(&client, |reply| replies.push(reply)).await.expect("it runs");
    assert_eq!((summary.jobs, summary.failed), (1, 0), "{:?}", replies[0].outcome);
    let received = String::from_utf8(replies[0].arguments.to_vec()).expect("text");
    assert_eq!(received, format!("iv={IV}\0key-object=2\0"));
    assert_ne!(system.run(&["cat", "/to"]).ok().text(), "some text");
    if rustix::process::geteuid().is_root() {
        let limits =
            std::fs::read_to_string(format!("/proc/{}/limits", system.osd(0).id())).expect("it runs");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    }
    // The engine had the key in its memory, so no idle one is kept.
    for page in [format!("{replies:?}"), system.run(&["osd", "status"]).text()] {
        assert!(!page.contains(KEY_DIGITS), "{page}");
    }
}

/// Reads the last object until the first byte of object 0 is `g`; returns the error of a read.
const KEY_READER: &str = r#"#include "osd.h"
#include <time.h>
int64_t osd_main(const osd_call *call) {
    const struct timespec pause = {0, 2000000};
    char key[16], first = 0;
    osd_progress(1, 2);
    while (first != 'g') {
        if (osd_cancelled()) return -OSD_ECANCELED;
        int64_t count = osd_read(call->object_count - 1, 0, key, sizeof key);
        if (count < 0) return count;
        if (osd_write(call->object_count - 1, 0, "x", 1) != -OSD_EACCES) return -OSD_EIO;
        if ((count = osd_read(0, 0, &first, 1)) < 0) return count;
        nanosleep(&pause, 0);
    }
    return osd_result("read\n", 5) < 0;
}
"#;

#[test]
fn revoked_key_stops_function() {
    let held = HeldRun::start(&[], &[]);
    store_text(&held.system, "hold", KEY_READER);
    put(&held.system, "/key", &KEY);
    let key = ["--key-object", "/key"];
    let id = held.start_job(&key);
    held.system.run(&["revoke", "--object", "/key"]).ok();
    held.system.run(&["job", "wait", &id]).fails(1).says(&["function-error", "code -13"]);
    // A new credential reads it again; a user without rights gets none.
    let id = held.start_job(&key);
    held.open();
    held.system.run(&["job", "wait", &id]).ok();
    until("the job ends", || held.status(&id)["state"] == "done");
    add_user(&held.system, "carol");
    held.system.run(&["chmod", "600", "/key"]).ok();
    let run = ["run", "hold", "--key-object", "/key", "/gate"];
    other(&held.system, "carol", &run).fails(3).says(&["/key"]);
}
