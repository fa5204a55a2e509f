//! Users and groups from a real LDAP server, through the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::slapd::{AttributeChange, GROUPS, READER, READER_PASSWORD, Slapd, USERS};
use sealstone_tests::{CommandResult, System, command, run, text};
use tempfile::TempDir;

/// Timeout; long enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Retries until it succeeds: the directory is queried every few seconds.
fn in_time(mut works: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if works() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    false
}

struct DirectorySystem {
    folder: TempDir,
    slapd: Slapd,
    system: System,
    password: String,
}

impl DirectorySystem {
    /// Starts a system whose directory is a slapd with `more` entries, queried again after two
    /// seconds.
    fn open(osds: usize, more: &str, flags: &[&str]) -> Self {
        let slapd = Slapd::start_with(more, None);
        let folder = tempfile::tempdir().expect("temporary folder");
        let bind = private(&folder, "bind.pw", &format!("{READER_PASSWORD}\n"));
        let url = slapd.url();
        let mut all = vec!["--directory-url", &url, "--directory-bind-dn", READER];
        all.extend(["--directory-bind-password-file", &bind, "--directory-user-base", USERS]);
        all.extend(["--directory-group-base", GROUPS, "--directory-age-s-max", "2"]);
        all.extend(flags);
        let system = System::start_with_mds(osds, "2G", &[], &all);
        let password = private(&folder, "own.pw", "his own\n");
        Self { folder, slapd, system, password }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn private(&self, name: &str, contents: &str) -> String {
        private(&self.folder, name, contents)
    }

    fn cluster(&self) -> String {
        text(&self.system.cluster()).to_owned()
    }

    /// Creates the account, or a new code for it, and uses the code.
    fn enrol(&self, name: &str, reset: bool) {
        let code = self.path(&format!("{name}-{reset}.code"));
        let code = text(&code);
        if reset {
            self.system.run(&["user", "reset", name, "--code-file", code]).ok();
        } else {
            self.system.run(&["user", "add", name, "--directory", "--enrol", "--code-file", code]).ok();
        }
        let cluster = self.cluster();
        let password = &self.password;
        run(&[
            "enrol",
            "--user",
            name,
            "--cluster",
            &cluster,
            "--code-file",
            code,
            "--password-file",
            password,
        ])
        .ok();
    }

    /// Runs a command in a user's own session.
    fn by(&self, name: &str, arguments: &[&str]) -> CommandResult {
        let mut command = self.system.command(arguments);
        command.env("SEALSTONE_SESSION", self.path(&format!("{name}.toml")));
        CommandResult::from(command.output().expect("the binary starts"))
    }

    fn login(&self, name: &str) -> CommandResult {
        self.by(name, &["login", name, "--cluster", &self.cluster(), "--password-file", &self.password])
    }

    /// Logs in and retries until the result is definite: an unavailable directory is queried again
    /// after a pause, and attempts are limited.
    fn login_decided(&self, name: &str) -> i32 {
        let until = Instant::now() + PATIENCE;
        loop {
            let code = self.login(name).code;
            if code != 1 || Instant::now() > until {
                return code;
            }
            std::thread::sleep(Duration::from_secs(3));
        }
    }

    fn audit(&self) -> String {
        std::fs::read_to_string(self.system.path("mds").join("audit.jsonl")).expect("the log")
    }

    /// Waits for an audit record, which is written shortly after the answer.
    fn is_audited(&self, action: &str, user: &str, verdict: &str) -> bool {
        in_time(|| {
            self.audit().lines().any(|line| {
                let record: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
                record["action"] == action && record["user"] == user && record["verdict"] == verdict
            })
        })
    }
}

fn private(folder: &TempDir, name: &str, contents: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, contents).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    text(&path).to_owned()
}

#[test]
fn directory_user_works_until_removed() {
    let office = DirectorySystem::open(1, "", &[]);
    // The configuration is tested before a user is enrolled.
    let bind = office.private("try.pw", READER_PASSWORD);
    let tried = |name: &str| {
        let mut all = vec!["--json", "mds", "directory", name, "--directory-url"];
        let url = office.slapd.url();
        all.extend([url.as_str(), "--directory-bind-dn", READER, "--directory-bind-password-file", &bind]);
        all.extend(["--directory-user-base", USERS, "--directory-group-base", GROUPS]);
        run(&all)
    };
    let printed = tried("erika").ok().text();
    assert!(printed.contains(r#""groups":["all","board","research"]"#), "{printed}");
    tried("*)(uid=*").fails(4).says(&["not in the directory"]);
    tried("twin").fails(1).says(&["several entries"]);
    // Names without an entry in the directory get no account.
    office.system.run(&["user", "add", "ghost", "--directory", "--enrol"]).fails(4).says(&["directory"]);
    office.enrol("erika", false);
    assert!(office.system.run(&["user", "list"]).ok().text().contains("directory"));
    // The directory's password does not work here; it is never sent to the directory.
    let theirs = office.private("theirs.pw", "nobody asks for this\n");
    let cluster = office.cluster();
    office.by("erika", &["login", "erika", "--cluster", &cluster, "--password-file", &theirs]).fails(3);
    office.login("erika").ok();
    assert!(office.by("erika", &["whoami"]).ok().text().contains("in all, board, research"));
    office.system.run(&["group", "add", "local"]).ok();
    office.system.run(&["group", "join", "local", "erika"]).fails(1).says(&["directory"]);

    // Files of her group are readable until the directory removes her from it.
    let note = office.private("note", "for research");
    office.system.run(&["put", &note, "/note"]).ok();
    office.system.run(&["chmod", "640", "/note"]).ok();
    office.by("erika", &["cat", "/note"]).fails(3);
    office.system.run(&["chgrp", "research", "/note"]).ok();
    assert_eq!(office.by("erika", &["cat", "/note"]).ok().text(), "for research");
    let twin = format!("uid=twin,{USERS}");
    office.slapd.change(&format!("cn=research,{GROUPS}"), AttributeChange::Replace, "member", &[&twin]);
    assert!(in_time(|| office.by("erika", &["cat", "/note"]).code == 3), "she is not in the group any more");
    office.by("erika", &["whoami"]).ok();
    office.slapd.remove(&format!("uid=erika,{USERS}"));
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "her session ended");
    assert!(office.is_audited("directory", "erika", "not in the directory"));
    office.login("erika").fails(3).says(&["wrong user name or password"]);
    assert!(office.is_audited("login", "erika", "not in the directory"));

    // Another person gets the name: the first one's password and rights do not apply.
    let another = [("objectClass", "inetOrgPerson"), ("uid", "erika"), ("cn", "E"), ("sn", "Another")];
    office.slapd.add(&format!("uid=erika,{USERS}"), &another);
    assert_eq!(office.login_decided("erika"), 3);
    assert!(office.is_audited("login", "erika", "another entry in the directory"));
    office.enrol("erika", true);
    office.login("erika").ok();
    // The bind password is in no log and not in the store.
    for file in ["audit.jsonl", "meta.redb", "meta.redb.journal-0"] {
        let bytes = std::fs::read(office.system.path("mds").join(file)).expect("a file of the server");
        assert!(
            !bytes.windows(READER_PASSWORD.len()).any(|part| part == READER_PASSWORD.as_bytes()),
            "{file}"
        );
    }
}

#[test]
fn locked_directory_user_is_out_until_unlocked() {
    let office = DirectorySystem::open(0, "", &[]);
    let erika = format!("uid=erika,{USERS}");
    office.enrol("erika", false);
    for (mark, value) in [("shadowExpire", "1"), ("pwdAccountLockedTime", "000001010000Z")] {
        assert_eq!(office.login_decided("erika"), 0);
        office.slapd.change(&erika, AttributeChange::Add, mark, &[value]);
        assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "her session ended: {mark}");
        assert!(office.is_audited("directory", "erika", "closed in the directory"));
        office.login("erika").fails(3);
        assert!(office.is_audited("login", "erika", "closed in the directory"));
        office.system.run(&["user", "reset", "erika"]).fails(1).says(&["closed in the directory", mark]);
        office.slapd.change(&erika, AttributeChange::Delete, mark, &[]);
    }
    assert_eq!(office.login_decided("erika"), 0);
}

#[test]
fn directory_outage_ends_sessions_after_the_grace_time() {
    let mut office = DirectorySystem::open(0, "", &["--directory-grace-s-max", "20"]);
    office.enrol("erika", false);
    let before = Instant::now();
    office.login("erika").ok();
    office.slapd.stop();
    // A client with the correct password gets the reason, the logs too, and others do not.
    let second = |office: &DirectorySystem, password: &str| {
        office.by("second", &["login", "erika", "--cluster", &office.cluster(), "--password-file", password])
    };
    let password = office.password.clone();
    second(&office, &password).fails(1).says(&["directory", "does not answer"]);
    assert!(office.is_audited("login", "erika", "no directory"));
    let guess = office.private("guess.pw", "guess\n");
    second(&office, &guess).fails(3).says(&["wrong user name or password"]);
    let who = office.by("erika", &["whoami"]);
    // On a very slow machine the grace period may be over already.
    if before.elapsed() < Duration::from_secs(15) {
        who.ok();
    }
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "the grace is over");
    assert!(before.elapsed() >= Duration::from_secs(20), "and not before");
    assert!(office.is_audited("directory", "erika", "no directory for too long"));
    // A local administrator does not need the directory, and sees why enrolment fails.
    office.system.run(&["whoami"]).ok();
    office.system.run(&["user", "add", "max", "--directory", "--enrol"]).fails(1).says(&["unavailable"]);
    office.slapd.restart();
    assert_eq!(office.login_decided("erika"), 0, "it is asked again");
}

#[test]
fn directory_groups_give_roles_across_restarts() {
    let role_groups = format!(
        "dn: cn=storage-admins,{GROUPS}\nobjectClass: posixGroup\ncn: storage-admins\ngidNumber: 1\nmemberUid: nobody\n\n\
         dn: cn=readers,{GROUPS}\nobjectClass: posixGroup\ncn: readers\ngidNumber: 2\nmemberUid: erika\n"
    );
    let flags = ["--directory-admin-group", "storage-admins", "--directory-read-only-group", "readers"];
    let mut office = DirectorySystem::open(0, &role_groups, &flags);
    office.enrol("erika", false);
    office.login("erika").ok();
    assert!(office.by("erika", &["whoami"]).ok().text().contains("(read-only"));
    office.by("erika", &["mkdir", "/d"]).fails(3);
    office.system.run(&["user", "role", "erika", "user"]).fails(1).says(&["directory"]);
    // A kill loses the latest sessions, unless a durable change followed.
    office.system.run(&["mkdir", "/durable"]).ok();
    // Killed and restarted while the directory is down: the session continues with the stored
    // answer.
    office.slapd.stop();
    office.system.end_mds(sealstone_tests::Signal::Kill);
    office.system.start_mds();
    assert!(
        office.by("erika", &["whoami"]).ok().text().contains("(read-only, in all, board, readers, research)")
    );
    office.slapd.restart();
    let (admins, readers) = (format!("cn=storage-admins,{GROUPS}"), format!("cn=readers,{GROUPS}"));
    office.slapd.change(&admins, AttributeChange::Add, "memberUid", &["erika"]);
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "another role, another session");
    assert!(office.is_audited("directory", "erika", "another role in the directory"));
    assert_eq!(office.login_decided("erika"), 0);
    office.by("erika", &["user", "list"]).ok();
    // The local administrator cannot be disabled by a directory administrator.
    office.by("erika", &["user", "disable", "admin"]).fails(3);
    // In no group with a role any more.
    office.slapd.change(&admins, AttributeChange::Delete, "memberUid", &["erika"]);
    office.slapd.change(&readers, AttributeChange::Delete, "memberUid", &["erika"]);
    assert!(in_time(|| office.by("erika", &["user", "list"]).code == 3));
    assert_eq!(office.login_decided("erika"), 3);
    assert!(office.is_audited("login", "erika", "in no group of the directory with a role"));
}

#[test]
fn unsafe_directory_settings_are_rejected() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    let bases = ["--directory-user-base", USERS, "--directory-group-base", GROUPS];
    let serve = |flags: &[&str]| {
        let mut all = vec!["mds", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
        all.extend(flags);
        CommandResult::from(command(&all).output().expect("the binary starts"))
    };
    let elsewhere = [&["--directory-url", "ldap://ldap.example.org"][..], &bases].concat();
    serve(&elsewhere).fails(2).says(&["needs a CA file"]);
    let ldaps = [&["--directory-url", "ldaps://localhost", "--insecure-directory"][..], &bases].concat();
    serve(&ldaps).fails(2).says(&["needs a CA file"]);
    let open = private(&folder, "open.pw", "secret\n");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    let here = [&["--directory-url", "ldap://localhost", "--directory-bind-dn", READER][..], &bases].concat();
    let exposed = [&here[..], &["--directory-bind-password-file", &open]].concat();
    serve(&exposed).fails(3).says(&["lets others read it"]);
    serve(&here).fails(2).says(&["requires a password"]);
    let argument = serve(&[&here[..], &["--directory-bind-password", "secret"]].concat());
    assert_eq!(argument.code, 2, "there is no flag with the password itself");
    let filter =
        [&["--directory-url", "ldap://localhost", "--directory-user-filter", "(uid=a"][..], &bases].concat();
    serve(&filter).fails(2).says(&["closing parenthesis expected at byte 6"]);
    serve(&["--directory-admin-group", "admins"]).fails(2).says(&["requires directory_url"]);
}
