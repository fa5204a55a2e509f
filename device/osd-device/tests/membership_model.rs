//! Collections against a plain model: after any sequence of changes both ends of every membership
//! and all counts agree, on both stores, and after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, PID, user};
use proptest::prelude::*;
use sealstone_osd::attribute::page::parse_memberships;
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::*;
use sealstone_osd::listing::Listing;
use sealstone_osd::{Command, Descriptor, Generation, ObjectId, ObjectType, SecurityMethod};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_store::{DiskStore, FileMedium, FormatOptions, MemoryStore, ObjectStore, StoreOptions};

const OID: u64 = 0x10000;
const CID: u64 = 0x20000;
const EVERYTHING: u64 = 0x1082;

#[derive(Clone, Debug)]
enum Step {
    Create(u64),
    Remove(u64),
    CreateCollection(u64),
    /// Collection, source: one of the collections, or all objects.
    Track(u64, Option<u64>),
    RemoveCollection(u64, bool),
    /// Object, number, collection; `None` leaves.
    Put(u64, u32, Option<u64>),
    RemoveMembers(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let object = || 0..6_u64;
    let collection = || 0..4_u64;
    prop_oneof![
        4 => object().prop_map(Step::Create),
        2 => object().prop_map(Step::Remove),
        3 => collection().prop_map(Step::CreateCollection),
        2 => (collection(), proptest::option::of(collection())).prop_map(|(one, from)| Step::Track(one, from)),
        2 => (collection(), any::<bool>()).prop_map(|(one, force)| Step::RemoveCollection(one, force)),
        12 => (object(), 1..4_u32, proptest::option::weighted(0.8, collection()))
            .prop_map(|(one, number, into)| Step::Put(one, number, into)),
        1 => collection().prop_map(Step::RemoveMembers),
        1 => Just(Step::Restart),
    ]
}

#[derive(Default)]
struct Model {
    /// Objects, with the collection of each of their numbers.
    objects: BTreeMap<u64, BTreeMap<u32, u64>>,
    /// Linked collections.
    linked: BTreeSet<u64>,
    /// Tracking collections and their members.
    tracking: BTreeMap<u64, BTreeSet<u64>>,
}

impl Model {
    fn is_taken(&self, cid: u64) -> bool {
        self.linked.contains(&cid) || self.tracking.contains_key(&cid)
    }

    fn members(&self, cid: u64) -> BTreeSet<u64> {
        match self.tracking.get(&cid) {
            Some(members) => members.clone(),
            None => {
                let names = |numbers: &BTreeMap<u32, u64>| numbers.values().any(|&one| one == cid);
                self.objects.iter().filter(|(_, numbers)| names(numbers)).map(|(&oid, _)| oid).collect()
            }
        }
    }

    fn remove(&mut self, oid: u64) -> bool {
        for members in self.tracking.values_mut() {
            members.remove(&oid);
        }
        self.objects.remove(&oid).is_some()
    }

    /// Applies a step. Returns whether it succeeds.
    fn apply(&mut self, step: &Step) -> bool {
        match *step {
            Step::Create(oid) => {
                let is_new = !self.objects.contains_key(&oid);
                self.objects.entry(oid).or_default();
                is_new
            }
            Step::Remove(oid) => self.remove(oid),
            Step::CreateCollection(cid) => !self.is_taken(cid) && self.linked.insert(cid),
            Step::Track(cid, source) => {
                let members = match source {
                    None => self.objects.keys().copied().collect(),
                    Some(source) if self.is_taken(source) => self.members(source),
                    Some(_) => return false,
                };
                !self.is_taken(cid) && self.tracking.insert(cid, members).is_none()
            }
            Step::RemoveCollection(cid, force) => {
                if !self.is_taken(cid) || !force && !self.members(cid).is_empty() {
                    return false;
                }
                self.objects.values_mut().for_each(|numbers| numbers.retain(|_, one| *one != cid));
                self.linked.remove(&cid) | self.tracking.remove(&cid).is_some()
            }
            Step::Put(oid, number, into) => {
                let linked = into.is_none_or(|cid| self.linked.contains(&cid));
                let Some(numbers) = self.objects.get_mut(&oid) else { return false };
                let elsewhere = |cid| numbers.iter().any(|(&at, &one)| at != number && one == cid);
                match into {
                    None => drop(numbers.remove(&number)),
                    Some(cid) if linked && !elsewhere(cid) => drop(numbers.insert(number, cid)),
                    Some(_) => return false,
                }
                true
            }
            Step::RemoveMembers(cid) => {
                let members = self.members(cid);
                for oid in members {
                    self.remove(oid);
                }
                self.is_taken(cid)
            }
            Step::Restart => true,
        }
    }
}

/// Runs a command with a capability of the object's type.
fn run(bench: &Bench, command: Command, lists: ListPair) -> Answer {
    let mut capability = bench.capability(&command, SecurityMethod::AllData);
    let object = command.object();
    if command.object_types().len() > 1 && object.object >= CID {
        capability.object_type = ObjectType::Collection;
        capability.descriptor = Descriptor::Collection { scope: Scope::default(), allowed: object };
    }
    bench.run_with(command, lists, &[], &capability)
}

fn send(bench: &Bench, step: &Step) -> bool {
    let none = ListPair::default;
    let answer = match *step {
        Step::Create(oid) => {
            run(bench, Command::Create(Create { object: user(OID + oid), count: 1 }), none())
        }
        Step::Remove(oid) => run(bench, Command::Remove(Target { object: user(OID + oid) }), none()),
        Step::CreateCollection(cid) => {
            run(bench, Command::CreateCollection(Target { object: user(CID + cid) }), none())
        }
        Step::Track(cid, source) => {
            let source = source.map_or(EVERYTHING, |source| CID + source);
            let create = CreateTracking { object: user(CID + cid), source, immediate: false };
            bench.track(create)
        }
        Step::RemoveCollection(cid, force) => {
            let remove = RemoveCollection { object: user(CID + cid), force };
            run(bench, Command::RemoveCollection(remove), none())
        }
        Step::Put(oid, number, into) => {
            let value = into.map(|cid| (CID + cid).to_be_bytes());
            let value = value.as_ref().map_or(&[][..], |value| &value[..]);
            let set = Command::SetAttributes(Target { object: user(OID + oid) });
            run(bench, set, ListPair::set(&[(4, number, value)]))
        }
        Step::RemoveMembers(cid) => {
            let members = Members { object: user(CID + cid), immediate: false };
            run(bench, Command::RemoveMemberObjects(members), none())
        }
        Step::Restart => return true,
    };
    answer.status == Status::Good
}

fn check(bench: &Bench, model: &Model) -> Result<(), TestCaseError> {
    let list = |object: ObjectId| {
        let list = List { object, list_id: 0, allocation: 4096, initial: 0, with_attributes: false };
        let answer = run(bench, Command::ListCollection(list), ListPair::default()).good();
        Listing::parse(Generation::Osd2, &answer.data).unwrap().ids().collect::<Vec<_>>()
    };
    let collections: BTreeSet<u64> = model.linked.iter().chain(model.tracking.keys()).copied().collect();
    prop_assert_eq!(
        list(ObjectId::of_partition(PID)),
        collections.iter().map(|c| CID + c).collect::<Vec<_>>()
    );
    for &cid in &collections {
        let expected: Vec<u64> = model.members(cid).into_iter().map(|oid| OID + oid).collect();
        prop_assert_eq!(list(user(CID + cid)), expected);
        prop_assert_eq!(bench.store.member_count(user(CID + cid)).unwrap(), model.members(cid).len() as u64);
    }
    for (&oid, numbers) in &model.objects {
        let get = Command::GetAttributes(Target { object: user(OID + oid) });
        let page = run(bench, get, ListPair::page(4)).good().attributes;
        let expected: Vec<u64> = numbers.values().map(|cid| CID + cid).collect();
        prop_assert_eq!(parse_memberships(&page).unwrap(), expected);
    }
    let count = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
    let count =
        crate::support::value(&run(bench, count, ListPair::get(&[(0x3000_0001, 0xC1)])).good().attributes);
    prop_assert_eq!(count, ((model.objects.len() + collections.len()) as u64).to_be_bytes());
    Ok(())
}

fn compare(store: Arc<dyn ObjectStore>, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut bench = Bench::with(OsdConfig::default(), store.clone());
    bench.create_partition(PID);
    let mut model = Model::default();
    for step in steps {
        if let Step::Restart = step {
            bench.unit.shut_down().unwrap();
            drop(bench);
            bench = Bench::start(OsdConfig::default(), store.clone(), 2, 0);
            bench.keys.lock().add_partition(PID).unwrap();
        }
        let expected = model.apply(step);
        prop_assert_eq!(send(&bench, step), expected, "{:?}", step);
        check(&bench, &model)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memberships_in_memory_are_those_of_the_model(steps in proptest::collection::vec(step(), 1..60)) {
        compare(Arc::new(MemoryStore::new(16 << 20)), &steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memberships_on_disk_are_those_of_the_model(steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let medium = Arc::new(FileMedium::open(folder.path()).unwrap());
        let options = FormatOptions { segment: Some(16 << 20), ..FormatOptions::new(64 << 20, [1; 16]) };
        sealstone_store::format(&*medium, &options).unwrap();
        compare(Arc::new(DiskStore::open(medium, StoreOptions::default()).unwrap()), &steps)?;
    }
}
