//! Checks: consistent state has no findings, and inconsistent state has.

use std::sync::Arc;

use sealstone_mds_protocol::{
    CheckFinding, CheckPhase, CheckScope, DeviceId, ErrorCode, FindingKind, InodeId, Layout, Name, Node,
    NodeKind, ObjectRef, Request, Response, XattrMode, XattrName, XattrValue,
};
use sealstone_osd::ObjectId;

use super::nodes::{make, name};
use super::world::{ADMIN, ALICE, World, user};
use crate::check::{CheckJob, ObjectWindow};
use crate::keys;
use crate::quota::QuotaRecord;
use crate::records::{Inode, load, save};
use crate::store::Transaction;

impl World {
    /// Begins a check and takes it as the daemon does.
    fn begun(&mut self, scope: CheckScope, repair: bool) -> Arc<CheckJob> {
        let answer = self.ask(ADMIN, Request::CheckBegin { scope, repair });
        assert!(matches!(answer, Response::Check { check: Some(_) }), "{answer:?}");
        assert_eq!(self.refused(ADMIN, Request::CheckBegin { scope, repair }), ErrorCode::Exists);
        let job = self.mds.take_check().unwrap();
        assert!(self.mds.take_check().is_none(), "once");
        job
    }

    fn findings(&mut self) -> Vec<CheckFinding> {
        let Response::Check { check: Some(check) } = self.ask(ADMIN, Request::CheckShow {}) else { panic!() };
        assert!(matches!(check.phase, CheckPhase::Done | CheckPhase::Failed));
        match self.ask(ADMIN, Request::CheckFindings { number: check.number, from: 0 }) {
            Response::CheckFindings { findings, more: false } => findings,
            other => panic!("{other:?}"),
        }
    }

    /// Checks all records, a few nodes at a time.
    pub(super) fn run_check(&mut self, scope: CheckScope, repair: bool) -> Vec<CheckFinding> {
        let job = self.begun(scope, repair);
        self.mds.check_records_in(&job, 3).unwrap();
        self.mds.check_paths(&job).unwrap();
        job.finish(Ok(()));
        let mut findings = self.findings();
        // Test worlds create accounts and sessions without counting them.
        let is_of_worlds = |said: &str| said.starts_with("count/users") || said.starts_with("count/sessions");
        findings.retain(|finding| !is_of_worlds(finding.said.as_str()));
        findings
    }

    fn layout(&self, id: InodeId) -> Layout {
        let node: Inode = load(&*self.mds.store.snapshot().unwrap(), &keys::inode(id)).unwrap().unwrap();
        node.layout.unwrap()
    }

    fn damage(&self, damage: impl Fn(&mut dyn Transaction) -> crate::Result<()>) {
        self.mds.update(|tx| damage(tx)).unwrap();
    }
}

fn remove(at: &str) -> Request {
    Request::RemoveNode { parent: Node::ROOT, name: name(at), directory: false }
}

/// Creates a directory with a file of two names, a file with bytes, an attribute and an open
/// create.
fn some() -> (World, InodeId, InodeId) {
    let mut world = World::with_accounts(2);
    world.mkdir(ALICE, "/d", 0o755);
    world.mkdir(ALICE, "/d/e", 0o755);
    world.put(ALICE, "/d/f", 70);
    let (d, file) = (world.stat(ALICE, "/d").unwrap(), world.stat(ALICE, "/d/f").unwrap());
    world.ask(ALICE, Request::LinkNode { node: file.node(), parent: d.node(), name: name("g") });
    let (attribute, value) = (XattrName::new("user.a").unwrap(), XattrValue::new([1]).unwrap());
    let set = Request::SetXattr { node: file.node(), name: attribute, value, mode: XattrMode::Set };
    assert_eq!(world.ask(ALICE, set), Response::Done {});
    world.create(ALICE, "/d/under-way", None);
    world.node_stat(ALICE, make(Node::ROOT, "other", NodeKind::File, 0o600));
    assert_eq!(world.run_check(CheckScope::Names, false), []);
    (world, d.inode, file.inode)
}

#[test]
fn check_finds_each_kind_of_damage() {
    type Damage = fn(&mut dyn Transaction, InodeId, InodeId) -> crate::Result<()>;
    fn altered(tx: &mut dyn Transaction, id: InodeId, change: fn(&mut Inode)) -> crate::Result<()> {
        let mut node: Inode = load(tx, &keys::inode(id))?.unwrap();
        change(&mut node);
        Ok(save(tx, &keys::inode(id), &node)?)
    }
    fn entry(directory: InodeId, name: &str) -> Vec<u8> {
        keys::entry(directory, &Name::new(name).unwrap())
    }
    let damages: [(Damage, FindingKind, &str); 9] = [
        (|tx, d, _| Ok(tx.delete(&entry(d, "g"))?), FindingKind::Node, "/d/"),
        (|tx, _, _| Ok(tx.delete(&entry(crate::ROOT, "other"))?), FindingKind::Node, ""),
        (|tx, d, _| Ok(save(tx, &entry(d, "x"), &InodeId(9_999))?), FindingKind::Name, "/d"),
        (|tx, _, file| altered(tx, file, |file| file.links = 3), FindingKind::Node, "/d/"),
        (|tx, d, _| altered(tx, d, |d| d.links = 2), FindingKind::Node, "/d"),
        (|tx, _, file| altered(tx, file, |file| file.xattrs = 2), FindingKind::Record, "/d/"),
        (|tx, _, file| Ok(tx.put(&keys::inode(file), b"\x01rubbish")?), FindingKind::Record, "/d/"),
        (|tx, _, file| altered(tx, file, |file| file.truncated_from = Some(1)), FindingKind::Record, "/d/"),
        (|tx, _, file| Ok(save(tx, &keys::clear(InodeId(file.0 + 77)), &())?), FindingKind::Record, ""),
    ];
    for (at, (damage, kind, path)) in damages.into_iter().enumerate() {
        let (mut world, d, file) = some();
        world.damage(|tx| damage(tx, d, file));
        let job = world.begun(CheckScope::Names, false);
        let ended = world.mds.check_records_in(&job, 3);
        world.mds.check_paths(&job).unwrap();
        job.finish(ended.map_err(|error| error.to_string()));
        let findings = world.findings();
        let reported = |finding: &CheckFinding| {
            finding.kind == kind && (path.is_empty() || finding.path.as_str().starts_with(path))
        };
        assert!(findings.iter().any(reported), "{at}: {findings:?}");
    }
}

#[test]
fn check_finds_directory_cycles() {
    let (mut world, d, _) = some();
    let e = world.stat(ALICE, "/d/e").unwrap().inode;
    // A rename cannot do this: into itself.
    world.damage(|tx| {
        let name = Name::new("d").unwrap();
        tx.delete(&keys::entry(crate::ROOT, &name))?;
        save(tx, &keys::entry(e, &name), &d)?;
        let mut node: Inode = load(tx, &keys::inode(d))?.unwrap();
        node.parent = e;
        Ok(save(tx, &keys::inode(d), &node)?)
    });
    let findings = world.run_check(CheckScope::Names, false);
    assert!(
        findings.iter().any(|finding| finding.said.as_str().contains("not below the root")),
        "{findings:?}"
    );
}

#[test]
fn counts_are_repaired_during_concurrent_changes() {
    let (mut world, ..) = some();
    let off = |tx: &mut dyn Transaction| {
        let key = keys::quota_of_user(&user("alice"));
        let mut record: QuotaRecord = load(tx, &key)?.unwrap();
        record.bytes += 1_000;
        save(tx, &key, &record)?;
        Ok(crate::records::count(tx, crate::records::counter::FILES, 7)?)
    };
    world.damage(off);
    let found = world.run_check(CheckScope::Names, false);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|finding| finding.kind == FindingKind::Count && !finding.repaired));
    let found = world.run_check(CheckScope::Names, true);
    assert!(found.len() == 2 && found.iter().all(|finding| finding.repaired), "{found:?}");
    assert_eq!(world.run_check(CheckScope::Names, false), []);
    // A difference counted in one state is repaired in a later one.
    world.damage(off);
    let drifts = crate::quota::count(&*world.mds.store.snapshot().unwrap(), || Ok(())).unwrap();
    world.put(ALICE, "/later", 30);
    world.node_stat(ALICE, remove("other"));
    world.mds.update(|tx| crate::quota::apply_drifts(tx, &drifts)).unwrap();
    let left = world.run_check(CheckScope::Counts, false);
    assert_eq!(left, [], "and no more than was wrong");
}

#[test]
fn check_finds_lost_and_leaked_objects() {
    let (mut world, _, file) = some();
    let removed = world.put(ALICE, "/removed", 9).layout.objects()[0];
    let under_way = world.create(ALICE, "/under-way", Some(9)).layout.objects()[0];
    world.node_stat(ALICE, remove("removed"));
    let live = world.layout(file).objects()[0];
    let left = ObjectRef { device: DeviceId(1), object: ObjectId::new(live.object.partition, 1 << 60) };
    let mut listed = vec![live, removed, under_way, left];
    listed.sort();
    let job = world.begun(CheckScope::Objects, true);
    let compared =
        world.mds.compare_objects(&job, &ObjectWindow { listed, ..ObjectWindow::default() }).unwrap();
    assert_eq!((compared.unknown, compared.missing), (vec![left], vec![]));
    let compared = world.mds.compare_objects(&job, &ObjectWindow::default()).unwrap();
    assert_eq!(compared.missing, [(file, live)]);
    assert!(world.mds.has_object(file, live).unwrap() && !world.mds.has_object(file, left).unwrap());
    // A silent device has lost nothing, nor has one that was not listed that far.
    for window in [
        ObjectWindow { silent: vec![live.device], ..ObjectWindow::default() },
        ObjectWindow { after: Some(live), ..ObjectWindow::default() },
    ] {
        assert_eq!(world.mds.compare_objects(&job, &window).unwrap().missing, []);
    }
    world.mds.report_leaked(&job, &[left], world.now).unwrap();
    world.mds.report_lost(&job, file, live);
    world.mds.check_paths(&job).unwrap();
    job.finish(Ok(()));
    let findings = world.findings();
    assert_eq!((findings[0].kind, findings[0].repaired), (FindingKind::Leaked, true));
    assert_eq!((findings[1].kind, findings[1].repaired), (FindingKind::Lost, false));
    assert!(findings[1].path.as_str().starts_with("/d/"), "{findings:?}");
    assert!(world.reap_all().contains(&left), "it is removed");
    assert_eq!(world.run_check(CheckScope::Names, false), []);
}

#[test]
fn checks_need_administrator_and_end_with_server() {
    let mut world = World::with_accounts(1);
    for request in [
        Request::CheckBegin { scope: CheckScope::Counts, repair: false },
        Request::CheckShow {},
        Request::CheckFindings { number: 1, from: 0 },
    ] {
        assert_eq!(world.refused(ALICE, request), ErrorCode::Denied);
    }
    assert_eq!(world.ask(ADMIN, Request::CheckShow {}), Response::Check { check: None });
    let job = world.begun(CheckScope::Names, false);
    job.stop();
    assert!(world.mds.check_records(&job).is_err());
    job.finish(Err("the server ends".to_owned()));
    assert_eq!(world.run_check(CheckScope::Names, false), []);
    assert_eq!(world.refused(ADMIN, Request::CheckFindings { number: 1, from: 0 }), ErrorCode::NotFound);
}
