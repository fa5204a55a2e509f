//! Tests of the dentry table, without locks and with a simulated clock.

mod model;

use std::sync::LazyLock;

use sealstone_mds_protocol::{LeaseKind, UserName};

use super::*;

/// Directories of the tests. The first and the last share a change counter.
const DIRECTORIES: [InodeId; 3] = [InodeId(1), InodeId(2), InodeId(1 + CHANGE_STRIPES as u64)];

static NAMES: LazyLock<[Name; 4]> =
    LazyLock::new(|| ["a", "b", "c", "d"].map(|name| Name::new(name).unwrap()));

fn lease(number: u64) -> NodeLease {
    NodeLease { kind: LeaseKind::Read, number, epoch: 1 }
}

fn stat(inode: InodeId, kind: FileKind) -> Stat {
    Stat {
        inode,
        proof: [0; 8],
        kind,
        mode: 0o644,
        owner: UserName::new("ada").unwrap(),
        group: None,
        links: if kind == FileKind::Directory { 2 } else { 1 },
        rdev: 0,
        size: 0,
        version: 0,
        generation: 0,
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        birth_ns: 0,
        width: 0,
        checksum: None,
    }
}

fn present(inode: u64) -> Dentry {
    Dentry::of(&stat(InodeId(inode), FileKind::File))
}

fn entry(name: &Name, inode: u64) -> DirEntry {
    let stat = stat(InodeId(inode), FileKind::File);
    DirEntry { name: name.clone(), inode: stat.inode, kind: stat.kind, stat: Some(stat) }
}

/// Caches the answer to a lookup that nothing overlapped.
fn record(table: &mut DentryTable, directory: InodeId, name: &Name, found: Dentry, now: Instant) -> bool {
    let snapshot = table.snapshot(directory, now);
    table.record_lookup(&snapshot, &lease(1), (name, found), now)
}

#[test]
fn lookup_is_cached_under_its_lease_only() {
    let (mut table, now, [directory, ..]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let [name, other, ..] = &*NAMES;
    record(&mut table, directory, name, present(10), now);
    assert_eq!(table.lookup(directory, &lease(1), name, now), present(10));
    assert_eq!(table.lookup(directory, &lease(1), other, now), Dentry::NotCached);
    assert_eq!(table.lookup(directory, &lease(2), name, now), Dentry::NotCached);
    table.move_to_lease(directory, 1, &lease(2));
    assert_eq!(table.lookup(directory, &lease(2), name, now), present(10));
    table.invalidate(directory);
    assert_eq!(table.lookup(directory, &lease(2), name, now), Dentry::NotCached);
}

#[test]
fn second_miss_requests_listing_of_directory() {
    let (mut table, now, [directory, ..]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let misses = NAMES.each_ref().map(|name| record(&mut table, directory, name, Dentry::Absent, now));
    assert_eq!(misses, [false, true, false, false]);
}

#[test]
fn complete_listing_makes_other_names_absent() {
    let (mut table, now, [directory, ..]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let [first, second, third, _] = &*NAMES;
    let pages = [(None, entry(first, 10), true), (Some(first), entry(third, 11), false)];
    for (after, entry, more) in pages {
        assert!(!table.is_listable(directory, &lease(1)));
        let snapshot = table.snapshot(directory, now);
        table.record_listing(&snapshot, &lease(1), after, (&[entry], more), now);
    }
    assert_eq!(table.lookup(directory, &lease(1), second, now), Dentry::Absent);
    let mut listed = Vec::new();
    let end = table.list((directory, &lease(1)), None, now, |name, inode, _| {
        listed.push((name.clone(), inode.0));
        false
    });
    assert_eq!((end, listed), (CacheListing::End, vec![(first.clone(), 10), (third.clone(), 11)]));
}

#[test]
fn unknown_outcome_disables_caching_for_a_time() {
    let (mut table, now, [directory, other, _]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let [name, ..] = &*NAMES;
    record(&mut table, other, name, present(10), now);
    let change = table.begin_change(&[(directory, Some(name))], now);
    table.end_change(&change, ChangeOutcome::Unknown, now);
    assert_eq!(table.lookup(other, &lease(1), name, now), Dentry::NotCached);
    let end = now + UNCERTAIN_FOR;
    for (at, known) in [(end - Duration::from_millis(1), Dentry::NotCached), (end, present(10))] {
        record(&mut table, other, name, present(10), at);
        assert_eq!(table.lookup(other, &lease(1), name, at), known);
    }
}

/// The change with an unknown outcome may be done after the request and before its answer.
#[test]
fn late_answer_to_uncertain_request_is_not_cached() {
    let (mut table, now, [directory, made, _]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let [name, other, ..] = &*NAMES;
    let change = table.begin_change(&[(directory, Some(name))], now);
    table.end_change(&change, ChangeOutcome::Unknown, now);
    let (sent, end) = (now + UNCERTAIN_FOR - Duration::from_millis(1), now + UNCERTAIN_FOR);
    let snapshot = table.snapshot(directory, sent);
    table.record_lookup(&snapshot, &lease(1), (name, present(10)), end);
    table.record_listing(&snapshot, &lease(1), None, (&[entry(name, 10)], false), end);
    assert_eq!(table.lookup(directory, &lease(1), name, end), Dentry::NotCached);
    table.record_attributes(&snapshot, &lease(1), &stat(InodeId(10), FileKind::File));
    assert_eq!(table.cached_node(InodeId(10), &lease(1)), None);
    let change = table.begin_change(&[(directory, Some(name))], sent);
    let stat = stat(made, FileKind::Directory);
    table.record_created_directory(&change, &lease(1), (&stat, true), end);
    assert_eq!(table.lookup(made, &lease(1), other, end), Dentry::NotCached);
}

#[test]
fn result_of_change_after_unknown_outcome_is_not_cached() {
    let (mut table, now, [directory, ..]) = (DentryTable::new(), Instant::now(), DIRECTORIES);
    let [name, ..] = &*NAMES;
    record(&mut table, directory, name, present(10), now);
    let unlink = table.begin_change(&[(directory, Some(name))], now);
    table.end_change(&unlink, ChangeOutcome::Unknown, now);
    // The server may do the unlink after this change.
    let replace = table.begin_change(&[(directory, Some(name))], now);
    table.end_change(&replace, ChangeOutcome::Done { entries: &[present(11)], others: &[] }, now);
    assert_eq!(table.lookup(directory, &lease(1), name, now), Dentry::NotCached);
}

#[test]
fn created_directory_is_complete_unless_something_changed() {
    let (now, [parent, made, _]) = (Instant::now(), DIRECTORIES);
    let [name, other, ..] = &*NAMES;
    for overlaps in [false, true] {
        let mut table = DentryTable::new();
        let change = table.begin_change(&[(parent, Some(name))], now);
        if overlaps {
            let second = table.begin_change(&[(made, Some(other))], now);
            table.end_change(&second, ChangeOutcome::Refused, now);
        }
        let stat = stat(made, FileKind::Directory);
        table.record_created_directory(&change, &lease(1), (&stat, true), now);
        let known = if overlaps { Dentry::NotCached } else { Dentry::Absent };
        assert_eq!(table.lookup(made, &lease(1), other, now), known);
        assert_eq!(table.cached_node(made, &lease(1)), (!overlaps).then_some(stat));
    }
}

#[test]
fn least_recently_used_directory_is_evicted() {
    let mut table = DentryTable::new();
    let [old, used, new] = DIRECTORIES;
    let at = |seconds| Instant::now() + Duration::from_secs(seconds);
    let [name, ..] = &*NAMES;
    record(&mut table, used, name, present(10), at(0));
    record(&mut table, old, name, present(11), at(1));
    assert_eq!(table.lookup(used, &lease(1), name, at(2)), present(10));
    let snapshot = table.snapshot(new, at(3));
    for number in 0..NAMES_MAX - 1 {
        let name = Name::new(format!("n{number}")).unwrap();
        table.record_lookup(&snapshot, &lease(1), (&name, present(12)), at(3));
    }
    assert_eq!(table.lookup(old, &lease(1), name, at(4)), Dentry::NotCached);
    assert_eq!(table.lookup(used, &lease(1), name, at(4)), present(10));
    assert_eq!(table.names, NAMES_MAX);
}
