//! Histories of clients that follow the protocol.

use super::delegation_ends::ENDS_MAX;
use super::*;
use proptest::prelude::*;

const FILES: usize = 2;
const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client sends `Recalls`.
    Poll(usize),
    /// It returns the leases that it knows are recalled.
    GiveBack(usize),
    Read(usize, usize),
    Write(usize, usize),
    /// A client without leases changes the file.
    Plain(usize),
    /// It crashes and restarts with the same client id.
    Die(usize),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let (client, file) = (0..CLIENTS, 0..FILES);
    prop_oneof![
        4 => client.clone().prop_map(Step::Poll),
        3 => client.clone().prop_map(Step::GiveBack),
        6 => (client.clone(), file.clone()).prop_map(|(client, file)| Step::Read(client, file)),
        6 => (client.clone(), file.clone()).prop_map(|(client, file)| Step::Write(client, file)),
        1 => file.prop_map(Step::Plain),
        1 => client.prop_map(Step::Die),
        3 => (1..6_000u64).prop_map(Step::Wait),
    ]
}

/// State of a client for a file.
#[derive(Clone, Debug, Default)]
struct Copy {
    lease: Option<NodeLease>,
    cached: Option<u64>,
    dirty: Option<u64>,
    called: bool,
    /// The client received the recall of this lease.
    until_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Client {
    epoch: u64,
    known: u64,
    until_ms: u64,
    copies: [Copy; FILES],
}

struct Model {
    leases: Leases,
    now_ms: u64,
    clients: Vec<Client>,
    /// Stored bytes, and the last completed write.
    stored: [u64; FILES],
    last: [u64; FILES],
    next: u64,
}

fn client_key(client: usize) -> ClientKey {
    (UserName::new("alice").unwrap(), ClientId { number: client as u64 })
}

fn id(file: usize) -> InodeId {
    InodeId(100 + file as u64)
}

impl Model {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn has_valid_lease(&self, client: usize, file: usize, kind: LeaseKind) -> bool {
        let one = &self.clients[client];
        let copy = &one.copies[file];
        let until_ms = if copy.called { copy.until_ms } else { one.until_ms };
        copy.lease.is_some_and(|lease| lease.epoch == one.epoch && lease.kind >= kind)
            && self.now_ms < until_ms
    }

    /// Checks for conflicts; fences clients if needed, whose unsent writes are then lost.
    fn may(&mut self, by: Option<usize>, file: usize, what: LeaseAccess) -> bool {
        let by = by.map(client_key);
        match self.leases.check_conflicts(id(file), by.as_ref(), what, false, self.now_ms).0 {
            ConflictVerdict::Free => true,
            ConflictVerdict::Wait => false,
            ConflictVerdict::Fence(lost) => {
                for one in lost {
                    let client = (0..CLIENTS).find(|client| client_key(*client) == one).unwrap();
                    assert!(
                        !self.has_valid_lease(client, file, LeaseKind::Read),
                        "fenced while its lease is valid"
                    );
                    self.leases.on_fenced(id(file), &one, false);
                    self.clients[client].copies[file].dirty = None;
                    self.last[file] = self.stored[file];
                }
                false
            }
        }
    }

    fn flush(&mut self, client: usize, file: usize) {
        if let Some(value) = self.clients[client].copies[file].dirty.take() {
            self.stored[file] = value;
        }
    }

    fn poll(&mut self, client: usize) {
        let rights = SessionRights { role: Role::User, groups: Default::default() };
        let fresh = self.number() << 32;
        let Client { epoch, known, .. } = self.clients[client];
        let answer =
            self.leases.poll_recalls(&client_key(client), rights, (epoch, known), fresh, self.now_ms);
        if answer.epoch != epoch {
            for file in 0..FILES {
                self.flush(client, file);
                self.clients[client].copies[file] = Copy::default();
            }
            self.clients[client].epoch = answer.epoch;
            self.clients[client].until_ms = 0;
            return;
        }
        let one = &mut self.clients[client];
        for recall in &answer.recalls {
            let file = (recall.inode.0 - 100) as usize;
            let copy = &mut one.copies[file];
            if copy.lease.is_some_and(|lease| lease.number == recall.number) && !copy.called {
                // The answer with the recall does not renew it.
                (copy.called, copy.until_ms) = (true, one.until_ms);
            }
        }
        (one.known, one.until_ms) = (answer.last, self.now_ms + LEASE_VALID_MS);
    }

    /// Uses its lease, or requests one.
    fn have(&mut self, client: usize, file: usize, kind: LeaseKind) -> bool {
        if self.has_valid_lease(client, file, kind) {
            return true;
        }
        if self.clients[client].copies[file].called
            || !self.may(Some(client), file, LeaseAccess::needed_for(kind))
        {
            return false;
        }
        let request =
            LeaseRequest { kind, waits: true, others_write: false, opportunistic: false, delegation: false };
        let given = self.leases.grant(id(file), &client_key(client), request, self.now_ms);
        let Ok(Some(lease)) = given else { return false };
        let copy = &mut self.clients[client].copies[file];
        if copy.lease.map(|known| known.number) != Some(lease.number) {
            copy.cached = None;
        }
        copy.lease = Some(lease);
        self.has_valid_lease(client, file, kind)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Poll(client) => self.poll(client),
            Step::GiveBack(client) => {
                for file in 0..FILES {
                    let copy = &self.clients[client].copies[file];
                    if let (Some(lease), true) = (copy.lease, copy.called) {
                        self.flush(client, file);
                        self.clients[client].copies[file] = Copy::default();
                        self.leases.return_lease(
                            id(file),
                            &client_key(client),
                            Some(lease.number),
                            self.now_ms,
                        );
                    }
                }
            }
            Step::Read(client, file) => {
                if self.have(client, file, LeaseKind::Read) {
                    let copy = &mut self.clients[client].copies[file];
                    let cached = *copy.cached.get_or_insert(self.stored[file]);
                    assert_eq!(copy.dirty.unwrap_or(cached), self.last[file], "client {client} file {file}");
                }
            }
            Step::Write(client, file) => {
                if self.have(client, file, LeaseKind::Write) {
                    let value = self.number();
                    self.clients[client].copies[file].dirty = Some(value);
                    self.clients[client].copies[file].cached = Some(value);
                    self.last[file] = value;
                }
            }
            Step::Plain(file) => {
                if self.may(None, file, LeaseAccess::Change) {
                    let value = self.number();
                    (self.stored[file], self.last[file]) = (value, value);
                }
            }
            Step::Die(client) => {
                for file in 0..FILES {
                    if self.clients[client].copies[file].dirty.is_some() {
                        self.last[file] = self.stored[file];
                    }
                }
                self.clients[client] = Client::default();
            }
            Step::Wait(ms) => {
                self.now_ms += ms;
                self.leases.expire(60_000, self.now_ms);
            }
        }
        let table = self.leases.table.lock();
        let given: usize = table.files.values().map(|file| file.leases.len()).sum();
        assert_eq!(table.count, given);
        for file in table.files.values() {
            let alone = file.leases.iter().any(|one| one.kind == LeaseKind::Write);
            assert!(!alone || file.leases.len() == 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// A client with a valid lease reads the last completed write, unless a crash or fence lost it.
    #[test]
    fn leased_reads_see_last_completed_write(
        steps in prop::collection::vec(any_step(), 1..120)
    ) {
        let mut model = Model {
            leases: Leases::default(),
            now_ms: 1_000_000,
            clients: vec![Client::default(); CLIENTS],
            stored: [0; FILES],
            last: [0; FILES],
            next: 0,
        };
        for client in 0..CLIENTS {
            model.poll(client);
            model.poll(client);
        }
        for step in steps {
            model.step(step);
        }
    }
}

fn rights() -> SessionRights {
    SessionRights { role: Role::User, groups: Default::default() }
}

/// It receives its epoch and confirms it.
fn come(leases: &Leases, client: usize, now_ms: u64) {
    let answer = leases.poll_recalls(&client_key(client), rights(), (0, 0), 77, now_ms);
    leases.poll_recalls(&client_key(client), rights(), (answer.epoch, 0), 78, now_ms);
}

fn opportunistic(leases: &Leases, client: usize, now_ms: u64) -> Option<NodeLease> {
    let request = LeaseRequest {
        kind: LeaseKind::Read,
        waits: false,
        others_write: false,
        opportunistic: true,
        delegation: false,
    };
    leases.grant(id(0), &client_key(client), request, now_ms).unwrap()
}

#[test]
fn no_lease_on_directory_changed_during_recovery() {
    let leases = Leases::new([client_key(1)], []);
    assert!(leases.is_recovering(1_000));
    assert_eq!(leases.begin_change((&[], &[id(0)]), None, false, 1_000).0, Vec::new());
    come(&leases, 1, 1_001);
    assert!(!leases.is_recovering(1_001));
    assert_eq!(opportunistic(&leases, 1, 1_001), None, "no opportunistic lease after a recall");
    leases.end_change(&[id(0)], 1_002);
    assert!(opportunistic(&leases, 1, 1_002).is_some());
    assert_eq!(
        leases.begin_change((&[], &[id(0)]), None, false, 1_003).0,
        vec![(id(0), ConflictVerdict::Wait)]
    );
}

#[test]
fn client_that_misses_recall_gets_no_lease_for_a_time() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    assert!(opportunistic(&leases, 1, 0).is_some());
    assert_eq!(leases.check_conflicts(id(0), None, LeaseAccess::Change, false, 0).0, ConflictVerdict::Wait);
    let later_ms = REVOKE_AFTER_MS;
    // It stays active, and receives the new epoch.
    come(&leases, 1, later_ms - 1);
    assert_eq!(
        leases.check_conflicts(id(0), None, LeaseAccess::Change, false, later_ms).0,
        ConflictVerdict::Free
    );
    let answer = leases.poll_recalls(&client_key(1), rights(), (0, 0), 79, later_ms);
    leases.poll_recalls(&client_key(1), rights(), (answer.epoch, 0), 80, later_ms);
    come(&leases, 1, later_ms + penalty::FIRST_MS - 1);
    assert_eq!(opportunistic(&leases, 1, later_ms + penalty::FIRST_MS - 1), None);
    come(&leases, 1, later_ms + penalty::FIRST_MS);
    assert!(opportunistic(&leases, 1, later_ms + penalty::FIRST_MS).is_some());
}

fn to_be_ahead() -> LeaseRequest {
    LeaseRequest {
        kind: LeaseKind::Write,
        waits: false,
        others_write: false,
        opportunistic: true,
        delegation: true,
    }
}

#[test]
fn only_stale_name_reads_are_repeated() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    let [one, other] = [0, 1]
        .map(|file| leases.grant_or_upgrade(id(file), &client_key(1), to_be_ahead(), 0).unwrap().unwrap());
    // Reads of both directories may be as of this read point.
    let moment = leases.read_point();
    assert_eq!(leases.recall_dir_writer(id(0), None, moment, 0), ConflictVerdict::Wait);
    leases.return_lease(id(0), &client_key(1), Some(one.lease.number), 0);
    assert_eq!(
        leases.recall_dir_writer(id(0), None, moment, 0),
        ConflictVerdict::Wait,
        "the client sent a change in between"
    );
    assert_eq!(
        leases.recall_dir_writer(id(2), None, moment, 0),
        ConflictVerdict::Free,
        "nobody was ahead there"
    );
    assert_eq!(leases.recall_dir_writer(id(1), Some(&client_key(1)), moment, 0), ConflictVerdict::Free);
    assert_eq!(leases.recall_dir_writer(id(0), None, leases.read_point(), 0), ConflictVerdict::Free);
    leases.return_lease(id(1), &client_key(1), Some(other.lease.number), 0);
    assert_eq!(leases.recall_dir_writer(id(1), None, moment, 0), ConflictVerdict::Wait);
}

#[test]
fn delegation_ends_are_bounded_and_never_missed() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    let end = |file: usize| {
        let new = leases.grant_or_upgrade(id(file), &client_key(1), to_be_ahead(), 0).unwrap().unwrap();
        leases.return_lease(id(file), &client_key(1), Some(new.lease.number), 0);
    };
    let moment = leases.read_point();
    end(0);
    let later = leases.read_point();
    for file in 1..=ENDS_MAX {
        end(file);
    }
    assert_eq!(
        leases.recall_dir_writer(id(0), None, moment, 0),
        ConflictVerdict::Wait,
        "it is not known any more"
    );
    assert_eq!(leases.recall_dir_writer(id(0), None, later, 0), ConflictVerdict::Free);
    let table = leases.table.lock();
    assert_eq!((table.ends.of.len(), table.ends.order.len()), (ENDS_MAX, ENDS_MAX));
    assert_eq!(table.files.len(), 0);
}

#[test]
fn undone_grant_restores_previous_lease() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    // There was no lease.
    let new = leases.grant_or_upgrade(id(0), &client_key(1), to_be_ahead(), 0).unwrap().unwrap();
    leases.undo_upgrade(id(0), &client_key(1), new);
    assert_eq!((leases.count(), leases.on_node(id(0))), (0, vec![]));
    // There was a read lease.
    let read = opportunistic(&leases, 1, 0).unwrap();
    let new = leases.grant_or_upgrade(id(0), &client_key(1), to_be_ahead(), 0).unwrap().unwrap();
    assert_eq!(new.before, Some(read.number));
    assert_eq!(leases.check_conflicts(id(0), None, LeaseAccess::Read, false, 0).0, ConflictVerdict::Wait);
    leases.undo_upgrade(id(0), &client_key(1), new);
    assert_eq!(leases.existing_lease(id(0), &client_key(1), 0), Some(Some(read)));
    assert_eq!(leases.check_conflicts(id(0), None, LeaseAccess::Read, false, 0).0, ConflictVerdict::Free);
    // The client had the delegation already and made changes under it.
    let first = leases.grant_or_upgrade(id(1), &client_key(1), to_be_ahead(), 0).unwrap().unwrap();
    let again = leases.grant_or_upgrade(id(1), &client_key(1), to_be_ahead(), 0).unwrap().unwrap();
    assert_eq!(first.lease, again.lease);
    leases.undo_upgrade(id(1), &client_key(1), again);
    assert!(leases.has_delegation(id(1), &client_key(1), first.lease.number));
    assert_eq!(leases.count(), 2);
}

#[test]
fn recalled_lease_is_not_granted_again_early() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    assert!(leases.grant_or_upgrade(id(0), &client_key(1), to_be_ahead(), 0).unwrap().is_some());
    assert_eq!(leases.recall_dir_writer(id(0), None, leases.read_point(), 0), ConflictVerdict::Wait);
    assert_eq!(leases.grant_or_upgrade(id(0), &client_key(1), to_be_ahead(), 1).unwrap(), None);
    assert_eq!(
        leases.recall_dir_writer(id(0), Some(&client_key(1)), leases.read_point(), 1),
        ConflictVerdict::Free
    );
}
