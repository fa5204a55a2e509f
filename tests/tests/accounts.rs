//! Accounts of users and programs: codes, roles, groups, key files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use sealstone_tests::{CommandResult, System, run, run_with_input, text};

/// Runs a command with another session file.
fn other(system: &System, session: &str, arguments: &[&str]) -> CommandResult {
    let mut command = system.command(arguments);
    command.env("SEALSTONE_SESSION", system.path(session));
    CommandResult::from(command.output().expect("the binary starts"))
}

fn private(system: &System, name: &str, contents: &str) -> String {
    let path = system.path(name);
    fs::write(&path, contents).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    text(&path).to_owned()
}

#[test]
fn user_enrols_and_shares_with_a_group() {
    let system = System::start(1);
    let cluster = text(&system.cluster()).to_owned();
    let (code, password) = (system.path("carol.code"), private(&system, "carol.pw", "carol's own\n"));
    let code = text(&code);
    system.run(&["user", "add", "carol", "--enrol", "--code-file", code]).ok();
    system.run(&["user", "add", "carol", "--enrol"]).fails(1);
    assert_eq!(fs::metadata(code).expect("written").permissions().mode() & 0o777, 0o600);
    let enrol = ["enrol", "--user", "carol", "--cluster", &cluster, "--code-file", code, "--password-file"];
    run(&[&enrol[..], &[&password]].concat()).ok();
    run(&[&enrol[..], &[&password]].concat()).fails(3);
    let login = ["login", "carol", "--cluster", &cluster, "--password-file", &password];
    other(&system, "carol.toml", &login).ok();
    let carol = |arguments: &[&str]| other(&system, "carol.toml", arguments);

    // A directory of a group that she is in, and then not any more.
    system.run(&["group", "add", "staff", "carol"]).ok();
    system.run(&["mkdir", "/team"]).ok();
    system.run(&["chgrp", "staff", "/team"]).ok();
    system.run(&["chmod", "2770", "/team"]).ok();
    let note = private(&system, "note", "for the team");
    carol(&["put", &note, "/team/note"]).ok();
    let listed = carol(&["ls", "-l", "/team"]).ok().text();
    assert!(listed.contains("carol") && listed.contains("staff"), "{listed}");
    system.run(&["chown", "admin", "/team/note"]).ok();
    carol(&["chown", "carol", "/team/note"]).fails(3);
    system.run(&["chmod", "640", "/team/note"]).ok();
    assert_eq!(carol(&["cat", "/team/note"]).ok().text(), "for the team");
    system.run(&["group", "leave", "staff", "carol"]).ok();
    carol(&["cat", "/team/note"]).fails(3);
    system.run(&["group", "join", "staff", "carol"]).ok();

    // With the read-only role she can only read; her old session has ended.
    system.run(&["user", "role", "carol", "read-only"]).ok();
    carol(&["whoami"]).fails(3);
    other(&system, "carol.toml", &login).ok();
    assert!(carol(&["whoami"]).ok().text().contains("read-only, in staff"));
    carol(&["cat", "/team/note"]).ok();
    carol(&["put", &note, "/team/more"]).fails(3);
    carol(&["user", "role", "carol", "admin"]).fails(3);
    system.run(&["user", "role", "admin", "user"]).fails(3);

    // Disabled: session, login, and a code that was created before are invalid.
    let fresh = system.path("fresh.code");
    system.run(&["user", "reset", "carol", "--code-file", text(&fresh)]).ok();
    system.run(&["user", "disable", "carol"]).ok();
    carol(&["whoami"]).fails(3);
    other(&system, "carol.toml", &login).fails(3);
    run(&[
        "enrol",
        "--user",
        "carol",
        "--cluster",
        &cluster,
        "--code-file",
        text(&fresh),
        "--password-file",
        &password,
    ])
    .fails(3);
}

#[test]
fn service_rotates_its_key_without_interruption() {
    let system = System::start(1);
    let cluster = text(&system.cluster()).to_owned();
    let (old, new) = (system.path("old.key"), system.path("new.key"));
    let (old, new) = (text(&old), text(&new));
    let add = ["user", "add", "backup", "--service", "--role", "read-only", "--key-file", old];
    system.run(&add).ok();
    assert_eq!(fs::metadata(old).expect("written").permissions().mode() & 0o777, 0o600);
    system.run(&add).fails(1);
    let login = |session: &str, key: &str| {
        other(&system, session, &["login", "--key-file", key, "--cluster", &cluster])
    };
    login("a.toml", old).ok();
    assert!(other(&system, "a.toml", &["whoami"]).ok().text().contains("backup (read-only)"));
    // The service creates its own next key.
    let rotate = ["user", "rotate-key", "backup", "--old-key", old, "--key-file", new];
    other(&system, "a.toml", &rotate).ok();
    login("b.toml", new).ok();
    login("c.toml", old).ok();
    system.run(&["user", "rotate-key", "backup", "--key-file", text(&system.path("third.key"))]).fails(1);
    system.run(&["user", "retire-key", "backup", "--key-file", old]).ok();
    login("c.toml", old).fails(3);
    other(&system, "a.toml", &["whoami"]).fails(3);
    other(&system, "b.toml", &["whoami"]).ok();
    // A key file that others can read is refused; a password never works for a service.
    fs::set_permissions(new, fs::Permissions::from_mode(0o644)).expect("its mode");
    login("d.toml", new).fails(3);
    let password = private(&system, "pw", "guess\n");
    other(&system, "d.toml", &["login", "backup", "--cluster", &cluster, "--password-file", &password])
        .fails(3);
    // The ids of the keys are shown, the keys are not.
    let list = system.run(&["--json", "user", "list"]).ok().text();
    assert!(list.contains("\"0102\"") && list.contains("service"), "{list}");
    let secret = fs::read_to_string(new).expect("the key");
    let secret =
        secret.lines().last().and_then(|line| line.split('"').nth(1)).expect("its secret").to_owned();
    assert!(!list.contains(&secret));
    for log in ["audit.jsonl", "meta.redb", "meta.redb.journal-0"] {
        let bytes = fs::read(system.path("mds").join(log)).expect("a file of the server");
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{log}");
    }
}

/// A stolen session file must not be enough to take over the account.
#[test]
fn password_change_requires_the_old_password() {
    let system = System::start(0);
    let cluster = text(&system.cluster()).to_owned();
    let (old, new) =
        (private(&system, "old.pw", "the old one\n"), private(&system, "new.pw", "the new one\n"));
    let guess = private(&system, "guess.pw", "a guess\n");
    system.run(&["user", "add", "carol", "--password-file", &old]).ok();
    let login = |password: &str| {
        other(&system, "carol.toml", &["login", "carol", "--cluster", &cluster, "--password-file", password])
    };
    login(&old).ok();
    let passwd = |proof: &[&str]| {
        other(&system, "carol.toml", &[&["user", "passwd", "--password-file", &new][..], proof].concat())
    };
    passwd(&[]).fails(2).says(&["--password-file"]);
    passwd(&["--old-password-file", &guess]).fails(3).says(&["wrong old password or key"]);
    passwd(&["--old-password-file", &new]).fails(3);
    passwd(&["--old-password-file", &old]).ok();
    other(&system, "carol.toml", &["whoami"]).ok();
    login(&old).fails(3);
    login(&new).ok();
    // An administrator's own password is no exception; others' passwords are set without the old
    // one.
    let admin =
        |flags: &[&str]| system.run(&[&["user", "passwd", "--password-file", &new][..], flags].concat());
    admin(&["admin", "--old-password-file", &guess]).fails(3);
    admin(&["carol"]).ok();
    admin(&["carol", "--old-password-file", &old]).fails(2);
    admin(&["--old-password-file", text(&system.path("mds").join("admin-secret"))]).ok();
}

#[test]
fn flags_win_over_variables_that_they_exclude() {
    let system = System::start(0);
    let cluster = fs::read_to_string(system.cluster()).expect("readable");
    let value = |key: &str| {
        let line = cluster.lines().find(|line| line.starts_with(key)).expect("there");
        line.split('"').nth(1).expect("quoted").to_owned()
    };
    let secret = system.path("mds").join("admin-secret");
    let (mds, pin) = (value("mds"), value("pin"));
    let login = ["login", "admin", "--mds", &mds, "--pin", &pin, "--password-file", text(&secret)];
    let run = |arguments: &[&str]| {
        let mut command = system.command(arguments);
        command
            .env("SEALSTONE_CLUSTER", "/no/such/cluster.toml")
            .env("SEALSTONE_PASSWORD_FILE", text(&secret));
        run_with_input(command, b"")
    };
    run(&login).ok();
    let key = system.path("backup.key");
    run(&["user", "add", "backup", "--service", "--key-file", text(&key)]).ok();
    run(&["login", "--key-file", text(&key), "--mds", &mds, "--pin", &pin]).ok();
    let cluster = system.cluster();
    let both = [&login[..], &["--cluster", text(&cluster)]].concat();
    let refused = run(&both);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--cluster") && refused.stderr.contains("--mds"), "{}", refused.stderr);
}
