//! Directory accounts: access, loss of access, and an unavailable directory. The directory here is
//! a stub; `metadata/mds-server/tests/directory.rs` tests a real one.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sealstone_mds_protocol::login::{LoginErrorCode, LoginOk, SUITE_LIGHT, SessionId};
use sealstone_mds_protocol::{AccountKind, ErrorCode, GroupName, MessageType, Request, Response, Role};

use super::logins::{CHANNEL, answer};
use super::world::{ADMIN, World, path, user};
use crate::audit::{AuditRecord, AuditSink};
use crate::records::SessionRecord;
use crate::sessions::SessionTable;
use crate::user_directory::{
    DIRECTORY_GROUPS_MAX, DirectoryEntry, DirectoryError, DirectoryLookup, DirectoryRoles, UserDirectory,
};
use crate::{Connection, Mds};

type Answer = fn() -> Result<DirectoryLookup, DirectoryError>;

#[derive(Default)]
struct Told(Mutex<BTreeMap<String, Result<DirectoryLookup, Answer>>>);

impl UserDirectory for Told {
    fn look_up(&self, user: &sealstone_mds_protocol::UserName) -> Result<DirectoryLookup, DirectoryError> {
        match self.0.lock().get(user.as_str()) {
            None => Ok(DirectoryLookup::NotFound),
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err(answer)) => answer(),
        }
    }
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn entry(number: u8, groups: &[&str]) -> DirectoryLookup {
    let groups = groups.iter().map(|name| group(name)).collect();
    DirectoryLookup::Entry(DirectoryEntry { entry: [number; 32], groups })
}

fn silent() -> Result<DirectoryLookup, DirectoryError> {
    Err(DirectoryError::Unreachable("no answer".to_owned()))
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<String>>>);

impl AuditSink for Written {
    fn record(&self, record: &AuditRecord<'_>) {
        self.0.lock().push(format!("{} {}: {}", record.action, record.user, record.verdict));
    }
}

/// A server with the user Erika, with an entry in the directory and a password here.
struct Office {
    world: World,
    told: Arc<Told>,
    written: Written,
}

impl Office {
    fn with(roles: DirectoryRoles) -> Self {
        let (mut world, told, written) = (World::empty(), Arc::<Told>::default(), Written::default());
        world.mds.config.directory_roles = roles;
        let mut office = Self { world, told, written };
        office.open();
        office.says("erika", entry(1, &["research", "all"]));
        let code = office.invites("erika", false);
        office.world.enrols("erika", &code, b"her own").unwrap();
        office
    }

    fn new() -> Self {
        Self::with(DirectoryRoles::default())
    }

    /// Starts the server on the current store.
    fn open(&mut self) {
        let config = self.world.mds.config.clone();
        let mds = Mds::open(Arc::new(self.world.disk.clone()), config).unwrap();
        self.world.mds = mds.with_audit(Arc::new(self.written.clone()));
        self.world.mds.set_directory(self.told.clone());
        let admin = self.world.mds.sessions.find(&self.world.disk, &ADMIN, u64::MAX, self.world.now).unwrap();
        if let Some((record, _)) = admin {
            self.world.mds.sessions.resume(ADMIN, record, self.world.now);
        }
    }

    fn says(&self, name: &str, found: DirectoryLookup) {
        self.told.0.lock().insert(name.to_owned(), Ok(found));
    }

    fn fails(&self, name: &str, answer: Answer) {
        self.told.0.lock().insert(name.to_owned(), Err(answer));
    }

    fn invites(&mut self, name: &str, replace: bool) -> sealstone_mds_protocol::Secret {
        let (kind, role, lifetime_s) = (AccountKind::Directory, Role::User, 3600);
        let request = Request::UserInvite { name: user(name), kind, role, lifetime_s, replace };
        match self.world.ask(ADMIN, request) {
            Response::Invitation { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    fn logs_in(&mut self, name: &str, password: &[u8]) -> Result<LoginOk, LoginErrorCode> {
        // Avoids the login throttle.
        self.world.now += 60_000;
        let mut connection = self.world.connect();
        let ok = self.world.login_with(&mut connection, (name, SUITE_LIGHT), password);
        connection.ended(&self.world.mds, self.world.now);
        ok.map(|(ok, _)| ok).map_err(|error| error.code)
    }

    fn erika(&mut self) -> Result<LoginOk, LoginErrorCode> {
        self.logs_in("erika", b"her own")
    }

    fn refresh(&mut self) {
        while self.world.mds.refresh_directory(self.world.now, &|| true).unwrap() {}
    }

    /// Returns role and groups of the session.
    fn role_and_groups(&mut self, session: SessionId) -> Result<(Role, Vec<String>), ErrorCode> {
        match self.world.ask(session, Request::WhoAmI {}) {
            Response::WhoAmI { role, groups, .. } => {
                Ok((role, groups.iter().map(GroupName::to_string).collect()))
            }
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    fn audit(&self, line: &str) -> bool {
        self.written.0.lock().iter().any(|written| written == line)
    }

    /// Keeps the administrator's session alive.
    fn admin(&self) {
        let record = SessionRecord {
            user: user("admin"),
            role: Role::Admin,
            suite: SUITE_LIGHT,
            expires_ms: u64::MAX,
            last_used_ms: self.world.now,
            keys: [0; 32],
            directory: None,
        };
        self.world.mds.update_and(|tx| SessionTable::open(tx, &ADMIN, &record)).unwrap();
        self.world.mds.sessions.insert(ADMIN, record);
    }
}

const OVER: Result<(Role, Vec<String>), ErrorCode> = Err(ErrorCode::NotLoggedIn);

#[test]
fn directory_user_logs_in_with_directory_groups() {
    let mut office = Office::new();
    let ok = office.erika().unwrap();
    assert_eq!(ok.roles.as_str(), "user");
    assert_eq!(office.role_and_groups(ok.session), Ok((Role::User, vec!["research".into(), "all".into()])));
    assert_eq!(office.logs_in("erika", b"wrong").unwrap_err(), LoginErrorCode::Refused);
    // Only the directory determines her groups.
    office.world.ask(ADMIN, Request::GroupCreate { name: group("local") });
    let join = Request::GroupAddMember { group: group("local"), user: user("erika") };
    assert_eq!(office.world.refused(ADMIN, join), ErrorCode::Invalid);
    // An administrator may give files to groups that are not stored here.
    office.world.mkdir(ADMIN, "/r", 0o750);
    let stat = Request::ReadDir { path: path("/r"), after: None, limit: 1 };
    assert_eq!(office.world.refused(ok.session, stat.clone()), ErrorCode::Denied);
    let give = Request::SetOwner { path: path("/r"), owner: None, group: Some(Some(group("research"))) };
    assert!(matches!(office.world.ask(ADMIN, give), Response::Stat { .. }));
    assert!(matches!(office.world.ask(ok.session, stat), Response::Directory { .. }));
}

#[test]
fn directory_is_queried_only_after_password_proof() {
    let mut office = Office::new();
    let before = office.world.mds.directory_questions();
    for (name, password) in [("erika", &b"wrong"[..]), ("nobody", b"pw"), ("admin", b"pw")] {
        assert!(office.logs_in(name, password).is_err());
    }
    assert_eq!(office.world.mds.directory_questions(), before);
    office.erika().unwrap();
    assert_eq!(office.world.mds.directory_questions(), before + 1);
}

#[test]
fn removed_directory_user_loses_sessions() {
    let ways: [(fn(&Office), &str); 5] = [
        (|office| office.says("erika", DirectoryLookup::NotFound), "not in the directory"),
        (|office| office.says("erika", DirectoryLookup::Closed("shadowExpire")), "closed in the directory"),
        (|office| office.says("erika", entry(2, &["research"])), "another entry in the directory"),
        (|office| office.fails("erika", || Err(DirectoryError::Ambiguous)), "twice in the directory"),
        (
            |office| office.fails("erika", || Err(DirectoryError::TooManyGroups)),
            "too many groups in the directory",
        ),
    ];
    for (change, verdict) in ways {
        let mut office = Office::new();
        let session = office.erika().unwrap().session;
        let age = office.world.mds.config.directory_age_ms;
        change(&office);
        office.world.now += age;
        office.refresh();
        assert!(office.role_and_groups(session).is_ok(), "not asked again before its time");
        office.world.now += 1;
        office.refresh();
        assert_eq!(office.role_and_groups(session), OVER, "{verdict}");
        assert!(office.audit(&format!("directory erika: {verdict}")), "{:?}", office.written.0.lock());
        // Not in the store either, so it cannot be resumed after a restart.
        office.open();
        let found = office.world.mds.sessions.find(&office.world.disk, &session, u64::MAX, office.world.now);
        assert!(found.unwrap().is_none());
        assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused);
        assert!(office.audit(&format!("login erika: {verdict}")), "{:?}", office.written.0.lock());
    }
}

#[test]
fn unavailable_directory_keeps_sessions_for_grace_time() {
    let mut office = Office::new();
    let session = office.erika().unwrap().session;
    let opened = office.world.now;
    office.fails("erika", silent);
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Directory);
    assert!(office.audit("login erika: no directory"));
    assert_eq!(
        office.logs_in("erika", b"wrong").unwrap_err(),
        LoginErrorCode::Refused,
        "others learn nothing"
    );
    let grace = office.world.mds.config.directory_grace_ms;
    // In use all the time, and queried all the time without an answer.
    while office.world.now + 600_000 < opened + grace {
        office.world.now += 600_000;
        office.refresh();
        assert!(office.role_and_groups(session).is_ok());
    }
    office.world.now = opened + grace;
    assert!(office.role_and_groups(session).is_ok());
    // Over even without another query: the request itself checks.
    office.world.now += 1;
    assert_eq!(office.role_and_groups(session), OVER);
    assert!(office.audit("directory erika: no directory for too long"));
    office.world.now -= 1;
    assert_eq!(office.role_and_groups(session), OVER, "it does not come back");
    office.says("erika", entry(1, &[]));
    assert!(office.erika().is_ok());
}

#[test]
fn directory_answer_restarts_grace_and_updates_groups() {
    let mut office = Office::new();
    let session = office.erika().unwrap().session;
    let (age, grace) = (office.world.mds.config.directory_age_ms, office.world.mds.config.directory_grace_ms);
    office.says("erika", entry(1, &["board"]));
    office.world.now += age + 1;
    office.refresh();
    assert_eq!(office.role_and_groups(session), Ok((Role::User, vec!["board".into()])));
    office.fails("erika", silent);
    let mut rest = grace;
    while rest > 600_000 {
        (office.world.now, rest) = (office.world.now + 600_000, rest - 600_000);
        assert!(office.role_and_groups(session).is_ok());
    }
    // A restart changes nothing.
    office.open();
    let record =
        office.world.mds.sessions.find(&office.world.disk, &session, u64::MAX, office.world.now).unwrap();
    office.world.mds.sessions.resume(session, record.unwrap().0, office.world.now);
    assert_eq!(office.role_and_groups(session), Ok((Role::User, vec!["board".into()])));
    office.world.now += rest + 1;
    assert_eq!(office.role_and_groups(session), OVER);
}

#[test]
fn resumption_queries_directory_after_answer_expires() {
    let mut office = Office::new();
    let (age, grace) = (office.world.mds.config.directory_age_ms, office.world.mds.config.directory_grace_ms);
    let resume = |office: &mut Office, ok: &LoginOk, keys: &sealstone_login::SessionKeys| {
        office.open();
        let mut connection = office.world.connect();
        let resume = keys.resume(ok.session, &CHANNEL, [1; 16]);
        let output = office.world.message(&mut connection, MessageType::Resume, 0, &resume);
        answer::<LoginOk>(&output, MessageType::LoginOk).map(|_| ()).map_err(|error| error.code)
    };
    let login = |office: &mut Office| {
        office.world.now += 60_000;
        let mut connection: Connection = office.world.connect();
        office.world.login_with(&mut connection, ("erika", SUITE_LIGHT), b"her own").unwrap()
    };
    // In time, no query is made.
    let (ok, keys) = login(&mut office);
    office.fails("erika", silent);
    office.world.now += age;
    assert_eq!(resume(&mut office, &ok, &keys), Ok(()));
    assert_eq!(office.world.mds.directory_questions(), 0);
    // Later a query is made; without an answer the session continues for the grace time, then ends.
    office.world.now += 1;
    assert_eq!(resume(&mut office, &ok, &keys), Ok(()));
    assert_eq!(office.world.mds.directory_questions(), 1);
    office.world.mds.config.session_idle_ms = u64::MAX;
    office.world.now += grace - age;
    assert_eq!(resume(&mut office, &ok, &keys), Err(LoginErrorCode::SessionExpired));
    // An answer takes effect immediately.
    office.says("erika", entry(1, &["board"]));
    let (ok, keys) = login(&mut office);
    office.says("erika", entry(1, &["new"]));
    office.world.now += age + 1;
    assert_eq!(resume(&mut office, &ok, &keys), Ok(()));
    assert_eq!(office.role_and_groups(ok.session), Ok((Role::User, vec!["new".into()])));
    office.says("erika", DirectoryLookup::NotFound);
    office.world.now += age + 1;
    assert_eq!(resume(&mut office, &ok, &keys), Err(LoginErrorCode::SessionExpired));
    office.says("erika", entry(1, &["new"]));
    assert_eq!(resume(&mut office, &ok, &keys), Err(LoginErrorCode::SessionExpired), "it ended");
}

#[test]
fn directory_groups_set_role_and_end_sessions() {
    let roles = DirectoryRoles {
        admin: Some(group("admins")),
        user: Some(group("research")),
        read_only: Some(group("all")),
        ..DirectoryRoles::default()
    };
    let mut office = Office::with(roles);
    let session = office.erika().unwrap().session;
    assert_eq!(office.role_and_groups(session).unwrap().0, Role::User, "the first that fits");
    let age = office.world.mds.config.directory_age_ms;
    for (groups, role) in
        [(&["all"][..], Role::ReadOnly), (&["all", "admins"], Role::Admin), (&["research"], Role::User)]
    {
        let before = office.erika().unwrap().session;
        office.says("erika", entry(1, groups));
        office.world.now += age + 1;
        office.refresh();
        assert_eq!(office.role_and_groups(before), OVER, "opened in another role");
        let session = office.erika().unwrap().session;
        assert_eq!(office.role_and_groups(session).unwrap().0, role);
    }
    assert!(office.audit("directory erika: another role in the directory"));
    // Without any of the groups the user has no access.
    let session = office.erika().unwrap().session;
    office.says("erika", entry(1, &["canteen"]));
    office.world.now += age + 1;
    office.refresh();
    assert_eq!(office.role_and_groups(session), OVER);
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused);
    assert!(office.audit("login erika: in no group of the directory with a role"));
    // The role cannot be set otherwise; without such groups an administrator sets it.
    let request = || Request::UserSetRole { name: user("erika"), role: Role::Operator };
    office.admin();
    assert_eq!(office.world.refused(ADMIN, request()), ErrorCode::Invalid);
    office.world.mds.config.directory_roles = DirectoryRoles::default();
    assert_eq!(office.world.ask(ADMIN, request()), Response::Done {});
    let session = office.erika().unwrap().session;
    assert_eq!(office.role_and_groups(session).unwrap().0, Role::Operator);
}

#[test]
fn reused_directory_name_needs_new_code() {
    let mut office = Office::new();
    // A new code for the same user keeps the old password valid until it is used.
    office.invites("erika", true);
    let session = office.erika().unwrap().session;
    office.says("erika", entry(2, &["research"]));
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused, "the password is that of who left");
    let code = office.invites("erika", true);
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused, "nor does the new code make it good");
    assert_eq!(office.role_and_groups(session), OVER, "nor the session that it opened");
    office.world.enrols("erika", &code, b"another's").unwrap();
    assert!(office.logs_in("erika", b"another's").is_ok());
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused);
}

#[test]
fn code_needs_directory_entry() {
    let mut office = Office::new();
    let request = |name: &str, replace| {
        let (kind, role, lifetime_s) = (AccountKind::Directory, Role::User, 60);
        Request::UserInvite { name: user(name), kind, role, lifetime_s, replace }
    };
    assert_eq!(office.world.refused(ADMIN, request("ghost", false)), ErrorCode::NotFound);
    office.says("ghost", DirectoryLookup::Closed("nsAccountLock"));
    assert_eq!(office.world.refused(ADMIN, request("ghost", false)), ErrorCode::Invalid);
    office.fails("ghost", || Err(DirectoryError::Ambiguous));
    assert_eq!(office.world.refused(ADMIN, request("ghost", false)), ErrorCode::Invalid);
    office.fails("ghost", silent);
    match office.world.ask(ADMIN, request("ghost", false)) {
        Response::Failed { failure } => {
            assert_eq!(failure.code, ErrorCode::Internal);
            assert!(failure.subject.as_str().contains("unavailable"), "an administrator sees the reason");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(office.world.refused(ADMIN, request("ghost", true)), ErrorCode::NotFound, "nothing was made");
    // Not by others, and not for accounts that are not the directory's.
    let before = office.world.mds.directory_questions();
    let session = office.erika().unwrap().session;
    assert_eq!(office.world.refused(session, request("erika", true)), ErrorCode::Denied);
    assert_eq!(office.world.mds.directory_questions(), before + 1, "her login");
}

#[test]
fn error_of_one_user_spares_other_queries() {
    let mut office = Office::new();
    let mut sessions = Vec::new();
    for number in 10..90 {
        let name = format!("u{number}");
        office.says(&name, entry(number, &["g"]));
        office.invites(&name, false);
        let id = [number; 16];
        let printed = crate::records::DirectoryGroups { groups: Vec::new(), asked_ms: office.world.now };
        let record = SessionRecord {
            user: user(&name),
            role: Role::User,
            suite: SUITE_LIGHT,
            expires_ms: u64::MAX,
            last_used_ms: office.world.now,
            keys: [0; 32],
            directory: Some(printed),
        };
        office.world.mds.update_and(|tx| SessionTable::open(tx, &id, &record)).unwrap();
        office.world.mds.sessions.insert(id, record);
        sessions.push(id);
    }
    office.fails("u20", || Err(DirectoryError::Ambiguous));
    office.says("u30", DirectoryLookup::NotFound);
    // It stops when requested, and later continues.
    office.world.now += office.world.mds.config.directory_age_ms + 1;
    let before = office.world.mds.directory_questions();
    assert!(!office.world.mds.refresh_directory(office.world.now, &|| false).unwrap());
    assert_eq!(office.world.mds.directory_questions(), before);
    office.refresh();
    assert_eq!(office.world.mds.directory_questions(), before + 80);
    for id in sessions {
        let expected = if id[0] == 20 || id[0] == 30 { OVER } else { Ok((Role::User, vec!["g".into()])) };
        assert_eq!(office.role_and_groups(id), expected, "{}", id[0]);
    }
    // Too many groups count as no access for that user.
    office.fails("erika", || {
        let groups = (0..=DIRECTORY_GROUPS_MAX).map(|i| group(&format!("g{i}"))).collect();
        Ok(DirectoryLookup::Entry(DirectoryEntry { entry: [1; 32], groups }))
    });
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Refused);
}

#[test]
fn last_local_administrator_stays() {
    let mut office = Office::new();
    office.world.ask(ADMIN, Request::UserSetRole { name: user("erika"), role: Role::Admin });
    let session = office.erika().unwrap().session;
    assert_eq!(office.role_and_groups(session).unwrap().0, Role::Admin);
    let disable = Request::UserSetEnabled { name: user("admin"), enabled: false };
    assert_eq!(
        office.world.refused(session, disable),
        ErrorCode::Denied,
        "the directory's silence would be the end"
    );
}

#[test]
fn directory_accounts_need_a_directory() {
    let mut office = Office::new();
    let session = office.erika().unwrap().session;
    let config = office.world.mds.config.clone();
    office.world.mds = Mds::open(Arc::new(office.world.disk.clone()), config).unwrap();
    assert_eq!(office.erika().unwrap_err(), LoginErrorCode::Directory);
    let grace = office.world.mds.config.directory_grace_ms;
    let record =
        office.world.mds.sessions.find(&office.world.disk, &session, u64::MAX, office.world.now).unwrap();
    office.world.mds.sessions.resume(session, record.unwrap().0, office.world.now);
    assert!(office.role_and_groups(session).is_ok());
    office.world.now += grace + 1;
    assert_eq!(office.role_and_groups(session), OVER);
}
