//! Users and groups from a real LDAP server, through the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::slapd::{Change, GROUPS, READER, READER_PASSWORD, Slapd, USERS};
use sealstone_tests::{Ended, System, command, run, text};
use tempfile::TempDir;

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tries until it succeeds: the directory is asked again every few seconds.
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

struct Office {
    folder: TempDir,
    slapd: Slapd,
    system: System,
    password: String,
}

impl Office {
    /// A system whose directory is a slapd with `more` entries, asked again after two seconds.
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

    /// Makes the account, or a new code for it, and uses the code.
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

    /// What somebody does in his own session.
    fn by(&self, name: &str, arguments: &[&str]) -> Ended {
        let mut command = self.system.command(arguments);
        command.env("SEALSTONE_SESSION", self.path(&format!("{name}.toml")));
        Ended::from(command.output().expect("the binary starts"))
    }

    fn login(&self, name: &str) -> Ended {
        self.by(name, &["login", name, "--cluster", &self.cluster(), "--password-file", &self.password])
    }

    /// Logs in as soon as that is decided: a directory that was away is asked again after a while, and attempts are limited.
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

    /// The log is written by a thread of its own, a moment after the answer.
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
fn a_user_of_the_directory_works_with_its_groups_until_it_says_that_she_left() {
    let office = Office::open(1, "", &[]);
    // The configuration is tried before anybody is invited.
    let bind = office.private("try.pw", READER_PASSWORD);
    let tried = |name: &str| {
        let mut all = vec!["--json", "mds", "directory", name, "--directory-url"];
        let url = office.slapd.url();
        all.extend([url.as_str(), "--directory-bind-dn", READER, "--directory-bind-password-file", &bind]);
        all.extend(["--directory-user-base", USERS, "--directory-group-base", GROUPS]);
        run(&all)
    };
    let said = tried("erika").ok().text();
    assert!(said.contains(r#""groups":["all","board","research"]"#), "{said}");
    tried("*)(uid=*").fails(4).says(&["not in the directory"]);
    tried("twin").fails(1).says(&["more than one entry"]);
    // Who is not there gets no account.
    office.system.run(&["user", "add", "ghost", "--directory", "--enrol"]).fails(4).says(&["directory"]);
    office.enrol("erika", false);
    assert!(office.system.run(&["user", "list"]).ok().text().contains("directory"));
    // The password that the directory has is worth nothing here; nobody ever sends it there.
    let theirs = office.private("theirs.pw", "nobody asks for this\n");
    let cluster = office.cluster();
    office.by("erika", &["login", "erika", "--cluster", &cluster, "--password-file", &theirs]).fails(3);
    office.login("erika").ok();
    assert!(office.by("erika", &["whoami"]).ok().text().contains("in all, board, research"));
    office.system.run(&["group", "add", "local"]).ok();
    office.system.run(&["group", "join", "local", "erika"]).fails(1).says(&["directory"]);

    // Her group's files are hers to read, until the directory says otherwise.
    let note = office.private("note", "for research");
    office.system.run(&["put", &note, "/note"]).ok();
    office.system.run(&["chmod", "640", "/note"]).ok();
    office.by("erika", &["cat", "/note"]).fails(3);
    office.system.run(&["chgrp", "research", "/note"]).ok();
    assert_eq!(office.by("erika", &["cat", "/note"]).ok().text(), "for research");
    let twin = format!("uid=twin,{USERS}");
    office.slapd.change(&format!("cn=research,{GROUPS}"), Change::Replace, "member", &[&twin]);
    assert!(in_time(|| office.by("erika", &["cat", "/note"]).code == 3), "she is not in the group any more");
    office.by("erika", &["whoami"]).ok();
    office.slapd.remove(&format!("uid=erika,{USERS}"));
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "her session ended");
    assert!(office.is_audited("directory", "erika", "not in the directory"));
    office.login("erika").fails(3).says(&["wrong user name or password"]);
    assert!(office.is_audited("login", "erika", "not in the directory"));

    // Another one gets the name: neither the password nor anything else of the first one is his.
    let another = [("objectClass", "inetOrgPerson"), ("uid", "erika"), ("cn", "E"), ("sn", "Another")];
    office.slapd.add(&format!("uid=erika,{USERS}"), &another);
    assert_eq!(office.login_decided("erika"), 3);
    assert!(office.is_audited("login", "erika", "another entry in the directory"));
    office.enrol("erika", true);
    office.login("erika").ok();
    // What the directory's password for the server is, no log and no store has.
    for file in ["audit.jsonl", "meta.redb", "meta.redb.journal-0"] {
        let bytes = std::fs::read(office.system.path("mds").join(file)).expect("a file of the server");
        assert!(
            !bytes.windows(READER_PASSWORD.len()).any(|part| part == READER_PASSWORD.as_bytes()),
            "{file}"
        );
    }
}

#[test]
fn a_user_who_is_locked_in_the_directory_is_out_and_comes_back_when_he_is_not() {
    let office = Office::open(0, "", &[]);
    let erika = format!("uid=erika,{USERS}");
    office.enrol("erika", false);
    for (mark, value) in [("shadowExpire", "1"), ("pwdAccountLockedTime", "000001010000Z")] {
        assert_eq!(office.login_decided("erika"), 0);
        office.slapd.change(&erika, Change::Add, mark, &[value]);
        assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "her session ended: {mark}");
        assert!(office.is_audited("directory", "erika", "closed in the directory"));
        office.login("erika").fails(3);
        assert!(office.is_audited("login", "erika", "closed in the directory"));
        office.system.run(&["user", "reset", "erika"]).fails(1).says(&["closed in the directory", mark]);
        office.slapd.change(&erika, Change::Delete, mark, &[]);
    }
    assert_eq!(office.login_decided("erika"), 0);
}

#[test]
fn a_directory_that_is_down_opens_no_session_and_ends_none_before_its_grace_is_over() {
    let mut office = Office::open(0, "", &["--directory-grace-s-max", "20"]);
    office.enrol("erika", false);
    let before = Instant::now();
    office.login("erika").ok();
    office.slapd.stop();
    // The wire says what it must to who knows the password, the logs say why, and others learn nothing.
    let second = |office: &Office, password: &str| {
        office.by("second", &["login", "erika", "--cluster", &office.cluster(), "--password-file", password])
    };
    let password = office.password.clone();
    second(&office, &password).fails(1).says(&["directory", "does not answer"]);
    assert!(office.is_audited("login", "erika", "no directory"));
    let guess = office.private("guess.pw", "guess\n");
    second(&office, &guess).fails(3).says(&["wrong user name or password"]);
    let who = office.by("erika", &["whoami"]);
    // On a machine so slow that the grace is over by now, there is nothing to be seen of it.
    if before.elapsed() < Duration::from_secs(15) {
        who.ok();
    }
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "the grace is over");
    assert!(before.elapsed() >= Duration::from_secs(20), "and not before");
    assert!(office.is_audited("directory", "erika", "no directory for too long"));
    // An administrator of ours is none of the directory's, and is told why nobody can be invited.
    office.system.run(&["whoami"]).ok();
    office.system.run(&["user", "add", "max", "--directory", "--enrol"]).fails(1).says(&["does not answer"]);
    office.slapd.restart();
    assert_eq!(office.login_decided("erika"), 0, "it is asked again");
}

#[test]
fn groups_of_the_directory_say_roles_and_a_server_that_starts_again_remembers_what_was_said() {
    let role_groups = format!(
        "dn: cn=storage-admins,{GROUPS}\nobjectClass: posixGroup\ncn: storage-admins\ngidNumber: 1\nmemberUid: nobody\n\n\
         dn: cn=readers,{GROUPS}\nobjectClass: posixGroup\ncn: readers\ngidNumber: 2\nmemberUid: erika\n"
    );
    let flags = ["--directory-admin-group", "storage-admins", "--directory-read-only-group", "readers"];
    let mut office = Office::open(0, &role_groups, &flags);
    office.enrol("erika", false);
    office.login("erika").ok();
    assert!(office.by("erika", &["whoami"]).ok().text().contains("(read-only"));
    office.by("erika", &["mkdir", "/d"]).fails(3);
    office.system.run(&["user", "role", "erika", "user"]).fails(1).says(&["directory"]);
    // A kill takes the sessions of the last moment, unless something durable came after them.
    office.system.run(&["mkdir", "/durable"]).ok();
    // Killed and started, with the directory away: the session goes on with what was said.
    office.slapd.stop();
    office.system.end_mds(sealstone_tests::Signal::Kill);
    office.system.start_mds();
    assert!(
        office.by("erika", &["whoami"]).ok().text().contains("(read-only, in all, board, readers, research)")
    );
    office.slapd.restart();
    let (admins, readers) = (format!("cn=storage-admins,{GROUPS}"), format!("cn=readers,{GROUPS}"));
    office.slapd.change(&admins, Change::Add, "memberUid", &["erika"]);
    assert!(in_time(|| office.by("erika", &["whoami"]).code == 3), "another role, another session");
    assert!(office.is_audited("directory", "erika", "another role in the directory"));
    assert_eq!(office.login_decided("erika"), 0);
    office.by("erika", &["user", "list"]).ok();
    // The administrator who needs no directory must stay.
    office.by("erika", &["user", "disable", "admin"]).fails(3);
    // Out of every group with a role.
    office.slapd.change(&admins, Change::Delete, "memberUid", &["erika"]);
    office.slapd.change(&readers, Change::Delete, "memberUid", &["erika"]);
    assert!(in_time(|| office.by("erika", &["user", "list"]).code == 3));
    assert_eq!(office.login_decided("erika"), 3);
    assert!(office.is_audited("login", "erika", "in no group of the directory with a role"));
}

#[test]
fn a_directory_is_configured_safely_or_not_at_all() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("mds");
    run(&["mds", "init", "--data", text(&data)]).ok();
    let bases = ["--directory-user-base", USERS, "--directory-group-base", GROUPS];
    let serve = |flags: &[&str]| {
        let mut all = vec!["mds", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
        all.extend(flags);
        Ended::from(command(&all).output().expect("the binary starts"))
    };
    let elsewhere = [&["--directory-url", "ldap://ldap.example.org"][..], &bases].concat();
    serve(&elsewhere).fails(2).says(&["CA file is missing"]);
    let ldaps = [&["--directory-url", "ldaps://localhost", "--insecure-directory"][..], &bases].concat();
    serve(&ldaps).fails(2).says(&["CA file is missing"]);
    let open = private(&folder, "open.pw", "secret\n");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("its mode");
    let here = [&["--directory-url", "ldap://localhost", "--directory-bind-dn", READER][..], &bases].concat();
    let exposed = [&here[..], &["--directory-bind-password-file", &open]].concat();
    serve(&exposed).fails(3).says(&["lets others read it"]);
    serve(&here).fails(2).says(&["go together"]);
    let argument = serve(&[&here[..], &["--directory-bind-password", "secret"]].concat());
    assert_eq!(argument.code, 2, "there is no flag with the password itself");
    let filter =
        [&["--directory-url", "ldap://localhost", "--directory-user-filter", "(uid=a"][..], &bases].concat();
    serve(&filter).fails(2).says(&["no closing parenthesis at byte 6"]);
    serve(&["--directory-admin-group", "admins"]).fails(2).says(&["without directory_url"]);
}
