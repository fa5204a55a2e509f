//! Users and permissions on a mount: set-user-ID bits, permission checks at open, and accounts that
//! the machine does not know.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sealstone_tests::{Mounted, System, can_mount, is_installed, text};

use super::sh;

#[test]
fn write_clears_the_set_id_bits() {
    if !can_mount() || !is_installed("setpriv") {
        return;
    }
    let system = System::start(1);
    let mount = Mounted::with(&system, "mnt", &["--allow-other"]);
    let run = |script: &str| sh(mount.place(), script);
    let user = |script: &str| {
        run(&format!("setpriv --reuid=71000 --regid=71000 --clear-groups sh -c '{script}'"));
        run("stat -c %a f")
    };
    let set = |mode: &str| run(&format!("chmod {mode} f && stat -c %a f"));
    run("echo first > f && chmod 666 f");
    for way in [
        "echo x >> f",
        "echo x > f",
        "truncate -s 3 f",
        "fallocate -l 9000 f",
        "dd if=/dev/zero of=f bs=1M count=2 conv=notrunc 2>/dev/null",
    ] {
        assert_eq!(set("6777"), "6777\n");
        assert_eq!(user(way), "777\n", "{way}");
    }
    // A privileged writer keeps the set-user-ID bit. Without group execute, the set-group-ID bit
    // means mandatory locking and stays.
    set("6777");
    assert_eq!(run("echo x >> f && truncate -s 9 f && stat -c %a f"), "6777\n");
    set("6766");
    assert_eq!(user("echo x >> f"), "2766\n");
    set("6777");
    assert_eq!(run("chown 71000 f && stat -c %a f"), "777\n");
    assert_eq!(run("mkfifo p && chmod 6555 p && chown 71000 p && stat -c %a p"), "555\n");
    assert_eq!(run("mkdir s && chmod 6755 s && chown 71000 s && stat -c %a s"), "6755\n");
    // A file that was created with the bit and is still open.
    let open = "exec 3>>g && chmod 4777 g && echo x >&3 && stat -c %a g";
    assert_eq!(
        run(&format!(
            "mkdir -m 777 d && cd d && setpriv --reuid=71000 --regid=71000 --clear-groups sh -c '{open}'"
        )),
        "777\n"
    );
}

#[test]
fn negative_lookup_entries_do_not_bypass_checks() {
    if !can_mount() || !is_installed("setpriv") {
        return;
    }
    let system = System::start(1);
    let one = Mounted::with(&system, "one", &["--allow-other", "--attr-timeout", "600"]);
    let two = Mounted::with(&system, "two", &["--allow-other"]);
    let user = |script: &str| {
        sh(one.place(), &format!("setpriv --reuid=71000 --regid=71000 --clear-groups sh -c '{script}'"))
    };
    sh(one.place(), "mkdir -m 777 d && test ! -e d/f && test ! -e d/g && test ! -e d/h");
    sh(two.place(), "cd d && echo secret > f && chmod 600 f && echo open > g && chmod 666 g");
    // Opened with create: the kernel still caches that the name does not exist.
    assert_eq!(user("cat <> d/f || echo refused"), "refused\n");
    assert_eq!(user("echo more >> d/f || echo refused"), "refused\n");
    assert_eq!(user("echo more >> d/g && cat d/g"), "open\nmore\n");
    assert_eq!(user("echo mine > d/h && stat -c %u d/h"), "71000\n");
    assert_eq!(sh(two.place(), "cat d/f"), "secret\n");
}

#[test]
fn unknown_accounts_give_no_local_user_rights() {
    if !can_mount() || !is_installed("setpriv") {
        return;
    }
    let system = System::start(1);
    let key = system.path("carol.key");
    let session = system.path("carol.toml");
    system.run(&["user", "add", "carol", "--service", "--role", "user", "--key-file", text(&key)]).ok();
    let carol = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        let output = command.env("SEALSTONE_SESSION", &session).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    carol(&["login", "--key-file", text(&key), "--cluster", text(&system.cluster())]);
    let local = system.path("local");
    fs::write(&local, b"secret").unwrap();
    system.run(&["mkdir", "/home"]).ok();
    system.run(&["chmod", "777", "/home"]).ok();
    carol(&["put", text(&local), "/home/mine"]);
    carol(&["chmod", "660", "/home/mine"]);
    let mount = Mounted::with(&system, "mnt", &["--allow-other"]);
    let run = |script: &str| sh(&mount.path("home"), script);
    let user = |uid: u32, gid: u32, script: &str| {
        run(&format!("setpriv --reuid={uid} --regid={gid} --clear-groups sh -c '{script}'"))
    };
    const UNKNOWN: u32 = 0xFFFE_FFFE;
    // Neither the account nor a group is known: both are shown under a number that no local user
    // has.
    assert_eq!(run("stat -c '%u %g %a' mine"), format!("{UNKNOWN} {UNKNOWN} 660\n"));
    let attempts = [
        "cat mine",
        "echo x >> mine",
        "echo x > mine",
        "chmod 666 mine",
        "truncate -s 0 mine",
        "touch -d 2001-01-01 mine",
        "setfacl -m o::rw mine",
        "ln mine other",
    ];
    // Local users that must not own the file: 65534, the mounting user's group, and a local user
    // with the number for unknown accounts.
    for (uid, gid) in [(65_534, 65_534), (71_000, 0), (71_000, 65_534), (UNKNOWN, 71_000), (71_000, UNKNOWN)]
    {
        for attempt in attempts {
            let outcome = user(uid, gid, &format!("{attempt} >/dev/null 2>&1 && echo done || echo refused"));
            assert_eq!(outcome, "refused\n", "{attempt} by {uid}:{gid}");
        }
    }
    assert_eq!(run("stat -c '%u %a %s' mine && cat mine"), format!("{UNKNOWN} 660 6\nsecret"));
    // Entries created by a local user without an account belong to that user locally, and to no
    // account.
    assert_eq!(user(65_534, 65_534, "echo own > made && stat -c %u:%g made"), "65534:65534\n");
    assert_eq!(run("echo root > rooted && stat -c %u:%g rooted"), "0:0\n");
    // The number is only displayed: it cannot be an owner.
    for refused in [&format!("chown {UNKNOWN} rooted"), &format!("chgrp {UNKNOWN} rooted")] {
        assert_eq!(run(&format!("{refused} 2>/dev/null || echo refused")), "refused\n", "{refused}");
    }
    assert_eq!(
        run(&format!("chown {UNKNOWN} mine && chown {UNKNOWN}:0 mine && stat -c %u:%g mine")),
        format!("{UNKNOWN}:0\n")
    );
    if is_installed("setfacl") {
        let outcome = run(&format!("setfacl -m u:{UNKNOWN}:rwx rooted 2>/dev/null || echo refused"));
        assert_eq!(outcome, "refused\n");
    }
    // A number that a local user has is refused; another free one is accepted.
    let second = system.path("second");
    fs::create_dir(&second).unwrap();
    let taken = ["mount", text(&second), "--allow-other", "--foreground", "--unknown-uid", "65534"];
    system.run(&taken).fails(2).says(&["nobody", "--unknown-uid"]);
    let other = Mounted::with(&system, "third", &["--allow-other", "--unknown-uid", "4026531840"]);
    assert_eq!(fs::metadata(other.path("home/mine")).unwrap().uid(), 4_026_531_840);
}
