//! Histories of clients that follow the protocol.

use super::ends::ENDS_MAX;
use super::*;
use proptest::prelude::*;

const FILES: usize = 2;
const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client asks what to give back.
    Poll(usize),
    /// It gives back what it knows to be called in.
    GiveBack(usize),
    Read(usize, usize),
    Write(usize, usize),
    /// Somebody without leases changes the file.
    Plain(usize),
    /// It dies and comes again as a new one with the same name.
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

/// What a client has of a file.
#[derive(Clone, Debug, Default)]
struct Copy {
    lease: Option<NodeLease>,
    cached: Option<u64>,
    dirty: Option<u64>,
    called: bool,
    /// It was told under this belief that it is called in.
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
    /// What is on the devices, and what the last write that returned was.
    stored: [u64; FILES],
    last: [u64; FILES],
    next: u64,
}

fn who(client: usize) -> Who {
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

    fn believes(&self, client: usize, file: usize, kind: LeaseKind) -> bool {
        let one = &self.clients[client];
        let copy = &one.copies[file];
        let until_ms = if copy.called { copy.until_ms } else { one.until_ms };
        copy.lease.is_some_and(|lease| lease.epoch == one.epoch && lease.kind >= kind)
            && self.now_ms < until_ms
    }

    /// May it be done? Whoever is to be fenced is, and then what he has not sent is lost.
    fn may(&mut self, by: Option<usize>, file: usize, what: Use) -> bool {
        let by = by.map(who);
        match self.leases.may(id(file), by.as_ref(), what, false, self.now_ms).0 {
            Verdict::Free => true,
            Verdict::Wait => false,
            Verdict::Fence(lost) => {
                for one in lost {
                    let client = (0..CLIENTS).find(|client| who(*client) == one).unwrap();
                    assert!(!self.believes(client, file, LeaseKind::Read), "fenced while it believes");
                    self.leases.fenced(id(file), &one, false);
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
        let standing = Standing { role: Role::User, groups: Default::default() };
        let fresh = self.number() << 32;
        let Client { epoch, known, .. } = self.clients[client];
        let told = self.leases.heard(&who(client), standing, (epoch, known), fresh, self.now_ms);
        if told.epoch != epoch {
            for file in 0..FILES {
                self.flush(client, file);
                self.clients[client].copies[file] = Copy::default();
            }
            self.clients[client].epoch = told.epoch;
            self.clients[client].until_ms = 0;
            return;
        }
        let one = &mut self.clients[client];
        for recall in &told.recalls {
            let file = (recall.inode.0 - 100) as usize;
            let copy = &mut one.copies[file];
            if copy.lease.is_some_and(|lease| lease.number == recall.number) && !copy.called {
                // What came with the recall does not prolong it.
                (copy.called, copy.until_ms) = (true, one.until_ms);
            }
        }
        (one.known, one.until_ms) = (told.last, self.now_ms + BELIEVED_MS);
    }

    /// Has a lease, or asks for one.
    fn have(&mut self, client: usize, file: usize, kind: LeaseKind) -> bool {
        if self.believes(client, file, kind) {
            return true;
        }
        if self.clients[client].copies[file].called || !self.may(Some(client), file, Use::under(kind)) {
            return false;
        }
        let wish = Wish { kind, waits: true, others_write: false, in_passing: false, ahead: false };
        let given = self.leases.give(id(file), &who(client), wish, self.now_ms);
        let Ok(Some(lease)) = given else { return false };
        let copy = &mut self.clients[client].copies[file];
        if copy.lease.map(|known| known.number) != Some(lease.number) {
            copy.cached = None;
        }
        copy.lease = Some(lease);
        self.believes(client, file, kind)
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
                        self.leases.give_back(id(file), &who(client), Some(lease.number), self.now_ms);
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
                if self.may(None, file, Use::Change) {
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
                self.leases.tidy(60_000, self.now_ms);
            }
        }
        let table = self.leases.table.lock();
        let given: usize = table.files.values().map(|file| file.given.len()).sum();
        assert_eq!(table.count, given);
        for file in table.files.values() {
            let alone = file.given.iter().any(|one| one.kind == LeaseKind::Write);
            assert!(!alone || file.given.len() == 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// Whoever believes in a lease reads the last write that returned, unless a crash or a fence took it.
    #[test]
    fn who_has_a_lease_reads_the_last_write_that_returned(
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

fn standing() -> Standing {
    Standing { role: Role::User, groups: Default::default() }
}

/// It hears of its era, and confirms it.
fn come(leases: &Leases, client: usize, now_ms: u64) {
    let told = leases.heard(&who(client), standing(), (0, 0), 77, now_ms);
    leases.heard(&who(client), standing(), (told.epoch, 0), 78, now_ms);
}

fn in_passing(leases: &Leases, client: usize, now_ms: u64) -> Option<NodeLease> {
    let wish =
        Wish { kind: LeaseKind::Read, waits: false, others_write: false, in_passing: true, ahead: false };
    leases.give(id(0), &who(client), wish, now_ms).unwrap()
}

#[test]
fn a_directory_that_is_changed_while_others_are_waited_for_is_given_to_nobody_who_comes_meanwhile() {
    let leases = Leases::new([who(1)], []);
    assert!(leases.waits(1_000));
    assert_eq!(leases.may_change((&[], &[id(0)]), None, false, 1_000).0, Vec::new());
    come(&leases, 1, 1_001);
    assert!(!leases.waits(1_001));
    assert_eq!(in_passing(&leases, 1, 1_001), None, "it would be told of what was there before");
    leases.changed(&[id(0)], 1_002);
    assert!(in_passing(&leases, 1, 1_002).is_some());
    assert_eq!(leases.may_change((&[], &[id(0)]), None, false, 1_003).0, vec![(id(0), Verdict::Wait)]);
}

#[test]
fn client_that_misses_recall_gets_no_lease_for_a_time() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    assert!(in_passing(&leases, 1, 0).is_some());
    assert_eq!(leases.may(id(0), None, Use::Change, false, 0).0, Verdict::Wait);
    let later_ms = GIVE_UP_MS;
    // It is heard of all the time, and hears that it lost what it had.
    come(&leases, 1, later_ms - 1);
    assert_eq!(leases.may(id(0), None, Use::Change, false, later_ms).0, Verdict::Free);
    let told = leases.heard(&who(1), standing(), (0, 0), 79, later_ms);
    leases.heard(&who(1), standing(), (told.epoch, 0), 80, later_ms);
    come(&leases, 1, later_ms + penalty::FIRST_MS - 1);
    assert_eq!(in_passing(&leases, 1, later_ms + penalty::FIRST_MS - 1), None);
    come(&leases, 1, later_ms + penalty::FIRST_MS);
    assert!(in_passing(&leases, 1, later_ms + penalty::FIRST_MS).is_some());
}

fn to_be_ahead() -> Wish {
    Wish { kind: LeaseKind::Write, waits: false, others_write: false, in_passing: true, ahead: true }
}

#[test]
fn whoever_saw_names_of_before_they_were_told_looks_again_and_nobody_else_does() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    let [one, other] =
        [0, 1].map(|file| leases.give_over(id(file), &who(1), to_be_ahead(), 0).unwrap().unwrap());
    // What is seen in either directory may be as of this moment.
    let moment = leases.moment();
    assert_eq!(leases.sees_names(id(0), None, moment, 0), Verdict::Wait);
    leases.give_back(id(0), &who(1), Some(one.lease.number), 0);
    assert_eq!(leases.sees_names(id(0), None, moment, 0), Verdict::Wait, "he told of something in between");
    assert_eq!(leases.sees_names(id(2), None, moment, 0), Verdict::Free, "nobody was ahead there");
    assert_eq!(leases.sees_names(id(1), Some(&who(1)), moment, 0), Verdict::Free);
    assert_eq!(leases.sees_names(id(0), None, leases.moment(), 0), Verdict::Free);
    leases.give_back(id(1), &who(1), Some(other.lease.number), 0);
    assert_eq!(leases.sees_names(id(1), None, moment, 0), Verdict::Wait);
}

#[test]
fn of_ends_no_more_than_so_many_are_remembered_and_none_is_overlooked() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    let end = |file: usize| {
        let new = leases.give_over(id(file), &who(1), to_be_ahead(), 0).unwrap().unwrap();
        leases.give_back(id(file), &who(1), Some(new.lease.number), 0);
    };
    let moment = leases.moment();
    end(0);
    let later = leases.moment();
    for file in 1..=ENDS_MAX {
        end(file);
    }
    assert_eq!(leases.sees_names(id(0), None, moment, 0), Verdict::Wait, "it is not known any more");
    assert_eq!(leases.sees_names(id(0), None, later, 0), Verdict::Free);
    let table = leases.table.lock();
    assert_eq!((table.ends.of.len(), table.ends.order.len()), (ENDS_MAX, ENDS_MAX));
    assert_eq!(table.files.len(), 0);
}

#[test]
fn a_lease_that_is_not_told_of_after_all_leaves_what_there_was() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    // There was none.
    let new = leases.give_over(id(0), &who(1), to_be_ahead(), 0).unwrap().unwrap();
    leases.put_back(id(0), &who(1), new);
    assert_eq!((leases.count(), leases.of(id(0))), (0, vec![]));
    // There was one to read.
    let read = in_passing(&leases, 1, 0).unwrap();
    let new = leases.give_over(id(0), &who(1), to_be_ahead(), 0).unwrap().unwrap();
    assert_eq!(new.before, Some(read.number));
    assert_eq!(leases.may(id(0), None, Use::Read, false, 0).0, Verdict::Wait);
    leases.put_back(id(0), &who(1), new);
    assert_eq!(leases.known(id(0), &who(1), 0), Some(Some(read)));
    assert_eq!(leases.may(id(0), None, Use::Read, false, 0).0, Verdict::Free);
    // He was ahead already, and did things under that.
    let first = leases.give_over(id(1), &who(1), to_be_ahead(), 0).unwrap().unwrap();
    let again = leases.give_over(id(1), &who(1), to_be_ahead(), 0).unwrap().unwrap();
    assert_eq!(first.lease, again.lease);
    leases.put_back(id(1), &who(1), again);
    assert!(leases.is_ahead(id(1), &who(1), first.lease.number));
    assert_eq!(leases.count(), 2);
}

#[test]
fn what_is_called_back_is_not_asked_for_again_meanwhile() {
    let leases = Leases::default();
    come(&leases, 1, 0);
    assert!(leases.give_over(id(0), &who(1), to_be_ahead(), 0).unwrap().is_some());
    assert_eq!(leases.sees_names(id(0), None, leases.moment(), 0), Verdict::Wait);
    assert_eq!(leases.give_over(id(0), &who(1), to_be_ahead(), 1).unwrap(), None);
    assert_eq!(leases.sees_names(id(0), Some(&who(1)), leases.moment(), 1), Verdict::Free);
}
