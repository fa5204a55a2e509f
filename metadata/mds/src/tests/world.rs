//! A server on a store in memory, with sessions created without the cost of a login.

use std::sync::{Arc, LazyLock};

use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_mds_protocol::login::SessionId;
use sealstone_mds_protocol::{
    AccountKind, CreatedFile, DeviceId, ErrorCode, FilePath, IntentId, Method, Name, NewDevice, OpenedFile,
    Request, Response, Role, Secret, Stat, Text, UserName,
};

use crate::keys;
use crate::records::{Account, SessionRecord, save};
use crate::sessions::SessionTable;
use crate::store::MemoryMeta;
use crate::{Config, Mds};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

pub(crate) fn user(name: &str) -> UserName {
    UserName::new(name).unwrap()
}

pub(crate) struct World {
    pub(crate) disk: MemoryMeta,
    pub(crate) mds: Mds,
    pub(crate) rng: StdRng,
    pub(crate) now: u64,
}

pub(crate) const ADMIN: SessionId = [1; 16];
pub(crate) const ALICE: SessionId = [2; 16];
pub(crate) const BOB: SessionId = [3; 16];

impl World {
    /// Creates a server with an administrator, two users and no devices.
    pub(crate) fn empty() -> Self {
        // Setup runs Argon2id at its full cost, so it runs once for all tests.
        static FRESH: LazyLock<MemoryMeta> = LazyLock::new(|| {
            let disk = MemoryMeta::new();
            Mds::set_up(&disk, &user("admin"), b"secret", 1_000, &mut StdRng::seed_from_u64(7)).unwrap();
            disk
        });
        let disk = FRESH.copy();
        let rng = StdRng::seed_from_u64(7);
        let mds = Mds::open(Arc::new(disk.clone()), Config::default()).unwrap();
        let world = Self { disk, mds, rng, now: 1_000 };
        world.session(ADMIN, "admin", true);
        world.session(ALICE, "alice", false);
        world.session(BOB, "bob", false);
        world.mds.settle().unwrap();
        world
    }

    /// Creates a world with `devices` active devices of 1 GiB.
    pub(crate) fn with_devices(devices: u8) -> Self {
        let mut world = Self::empty();
        for i in 0..devices {
            let id = world.add_device(i);
            world.mds.device_answered(&world.mds.device_address(id).unwrap(), GIB, 0).unwrap();
            world.mds.device_prepared(&world.mds.device_address(id).unwrap()).unwrap();
        }
        world
    }

    pub(crate) fn add_device(&mut self, i: u8) -> DeviceId {
        let device = new_device(i);
        match self.ask(ADMIN, Request::DeviceAdd { device }) {
            Response::Device { device } => device.id,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a world with devices, and with accounts for all sessions.
    pub(crate) fn with_accounts(devices: u8) -> Self {
        let world = Self::with_devices(devices);
        let account = Account {
            kind: AccountKind::Password,
            role: Role::User,
            enabled: true,
            created_ms: 0,
            credentials: Vec::new(),
            invitation: None,
            entry: None,
        };
        for name in ["alice", "bob"] {
            world.mds.update(|tx| Ok(save(tx, &keys::user(&user(name)), &account)?)).unwrap();
        }
        world
    }

    /// Opens a session as a login would.
    pub(crate) fn session(&self, id: SessionId, name: &str, admin: bool) {
        self.session_as(id, name, if admin { Role::Admin } else { Role::User });
    }

    /// Opens a session with any role.
    pub(crate) fn session_as(&self, id: SessionId, name: &str, role: Role) {
        let record = SessionRecord {
            user: user(name),
            role,
            suite: sealstone_mds_protocol::login::SUITE_STANDARD,
            expires_ms: self.now + self.mds.config.session_ttl_ms,
            last_used_ms: self.now,
            keys: [0; 32],
            directory: None,
        };
        self.mds.update_and(|tx| SessionTable::open(tx, &id, &record)).unwrap();
        self.mds.sessions.insert(id, record);
    }

    /// Restarts after a power failure; lazy commits are lost.
    pub(crate) fn restart(&mut self) {
        self.disk.crash(0);
        self.disk.fail_after(None);
        self.mds = Mds::open(Arc::new(self.disk.clone()), self.mds.config.clone()).unwrap();
        self.take_up();
    }

    /// Loads the stored sessions into the table.
    pub(super) fn take_up(&self) {
        for id in [ADMIN, ALICE, BOB] {
            if let Some((record, _)) = self.mds.sessions.find(&self.disk, &id, u64::MAX, self.now).unwrap() {
                self.mds.sessions.resume(id, record, self.now);
            }
        }
    }

    pub(crate) fn ask(&mut self, caller: SessionId, request: Request) -> Response {
        self.mds.handle(Some(&caller), request, self.now, &mut self.rng)
    }

    pub(crate) fn refused(&mut self, caller: SessionId, request: Request) -> ErrorCode {
        match self.ask(caller, request) {
            Response::Failed { failure } => failure.code,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(crate) fn stat(&mut self, caller: SessionId, at: &str) -> Result<Stat, ErrorCode> {
        match self.ask(caller, Request::Stat { path: path(at) }) {
            Response::Stat { stat } => Ok(stat),
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn mkdir(&mut self, caller: SessionId, at: &str, mode: u16) {
        let made = self.ask(caller, Request::MakeDir { path: path(at), parents: false, mode });
        assert!(matches!(made, Response::Stat { .. }), "{made:?}");
    }

    pub(crate) fn create(&mut self, caller: SessionId, at: &str, size: Option<u64>) -> CreatedFile {
        match self.ask(caller, create(at, size)) {
            Response::Created { file } => file,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn commit(
        &mut self,
        caller: SessionId,
        intent: IntentId,
        size: u64,
    ) -> Result<Stat, ErrorCode> {
        match self.ask(caller, Request::Commit { intent, size, mtime_ns: None, checksum: None }) {
            Response::Stat { stat } => Ok(stat),
            Response::Failed { failure } => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn put(&mut self, caller: SessionId, at: &str, size: u64) -> CreatedFile {
        let file = self.create(caller, at, Some(size));
        self.commit(caller, file.intent, size).unwrap();
        file
    }

    pub(crate) fn open(&mut self, caller: SessionId, request: Request) -> OpenedFile {
        match self.ask(caller, request) {
            Response::Opened { file } => file,
            other => panic!("{other:?}"),
        }
    }

    /// Runs the daemon's removals with devices that confirm all of them; returns the removed
    /// objects.
    pub(crate) fn reap_all(&mut self) -> Vec<sealstone_mds_protocol::ObjectRef> {
        while self.mds.tidy(self.now).unwrap() {}
        let mut removed = Vec::new();
        loop {
            let items = self.mds.next_reap(None, 3, self.now).unwrap();
            if items.is_empty() {
                return removed;
            }
            removed.extend(items.iter().map(|item| item.object));
            self.mds.reaped(&items, self.now).unwrap();
        }
    }
}

pub(crate) fn new_device(i: u8) -> NewDevice {
    NewDevice {
        name: Name::new(format!("osd-{i}")).unwrap(),
        system_id: [i + 1; 20],
        url: Text::new(format!("iscsi://127.0.0.1:326{i}/iqn.2026-11.org.sealstone:osd.{i}/0")).unwrap(),
        pin: None,
        capacity: 0,
        speed: 0,
        master_key: Secret::new(vec![i + 100; 32]).unwrap(),
    }
}

pub(crate) fn create(at: &str, size_hint: Option<u64>) -> Request {
    Request::Create { path: path(at), size_hint, mode: 0o644, replace: true, method: Method::AllData }
}
