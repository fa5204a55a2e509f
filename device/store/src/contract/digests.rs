//! Contract of stored digests.

use sealstone_digest::{CoveredDigests, DigestCover, Profile};
use sealstone_osd::{ObjectId, ObjectType};

use super::{content, pattern, user};
use crate::{AttributeId, BLOCK, DigestCheck, MAX_TRANSFER, ObjectStore, StoreError};

/// Returns the units of an object whose stored digest does not match their bytes; empty in a
/// correct store.
///
/// # Errors
/// Errors of the store.
pub fn wrong_digests<S: ObjectStore + ?Sized>(
    store: &S,
    id: ObjectId,
    content: &[u8],
) -> Result<Vec<u64>, StoreError> {
    let known = store.digests(id, 0, content.len() as u64)?;
    let Some(profile) = known.profile else { return Ok(Vec::new()) };
    let units = content.chunks(profile.unit_bytes() as usize);
    assert_eq!((known.first_unit, known.values.len()), (0, units.len()), "one value for each unit");
    let rows = (0..).zip(units).zip(known.values);
    Ok(rows
        .filter(|((unit, bytes), value)| value.is_some_and(|value| value != profile.value(*unit, bytes)))
        .map(|((unit, _), _)| unit)
        .collect())
}

/// Creates a partition with this profile, and an object in it.
fn partition<S: ObjectStore>(store: &S, number: u64, profile: Option<Profile>) -> ObjectId {
    store.create(ObjectId::of_partition(number), ObjectType::Partition).expect("create a partition");
    store.set_profile(number, profile).expect("set the profile of an empty partition");
    let id = ObjectId::new(number, 1);
    store.create(id, ObjectType::User).expect("create an object");
    id
}

/// Checks the digests that a read returns with the bytes, and the digests of the whole object.
fn check<S: ObjectStore>(store: &S, id: ObjectId, what: &str) {
    let bytes = content(store, id);
    assert_eq!(wrong_digests(store, id, &bytes).expect("digests"), [0; 0], "{what}");
    let profile = store.profile(id.partition).map(Profile::values);
    let length = bytes.len() as u64;
    for (offset, count) in [(0, length), (5000, 30_000), (16 << 10, 16 << 10), (length / 2, u64::MAX >> 40)] {
        let mut into = vec![0xEE; count.min(1 << 20) as usize];
        let mut unchecked = into.clone();
        let read =
            store.read_digested(id, offset, &mut into, DigestCheck::ByStore).expect("read with digests");
        let same = store.read_digested(id, offset, &mut unchecked, DigestCheck::ByReceiver).expect("read");
        assert_eq!((same == read, unchecked == into), (true, true), "{what}: read of {count} at {offset}");
        into.truncate(read.count);
        let end = (offset + count).min(length);
        assert_eq!(into, bytes.get(offset as usize..end as usize).unwrap_or_default(), "{what}");
        assert_eq!(read.object_length, length);
        let expected = profile.map(|profile| {
            CoveredDigests::of(DigestCover::new(profile, offset, into.len() as u64, length), &into)
        });
        assert_eq!(read.covered, expected, "{what}: read of {count} at {offset}");
    }
}

pub(super) fn any_change_leaves_digests_of_what_is_there<S: ObjectStore>(store: &S) {
    let profiles = Profile::ALL.map(Some).into_iter().chain([None]);
    for (number, profile) in (0x2_0000..).zip(profiles) {
        let id = partition(store, number, profile);
        let other = ObjectId::new(number, 2);
        store.create(other, ObjectType::User).expect("create");
        for (step, (offset, length)) in
            [(0, 100), (0, 5000), (60_000, 40_000), (16_384, 16_384), (20_000, 1), (8191, 2), (8192, 50_000)]
                .into_iter()
                .enumerate()
        {
            store.write(id, offset, &pattern(step as u64, length)).expect("write");
            check(store, id, &format!("{profile:?} after write {step}"));
        }
        store.share(id, other).expect("share");
        check(store, other, "a share");
        let changes: [(&str, fn(&S, ObjectId) -> Result<(), StoreError>); 9] = [
            ("extend", |store, id| store.resize(id, 105_000)),
            ("cut", |store, id| store.resize(id, 70_001)),
            ("clear inside a unit", |store, id| store.clear(id, 1000, 50)),
            ("clear blocks of a unit", |store, id| store.clear(id, BLOCK, 2 * BLOCK)),
            ("clear units", |store, id| store.clear(id, 30_000, 20_000)),
            ("clear beyond the end", |store, id| store.clear(id, 69_000, 9000)),
            ("punch blocks", |store, id| store.punch(id, 4 * BLOCK, BLOCK)),
            ("punch bytes", |store, id| store.punch(id, 20_000, 77)),
            ("write far beyond the end", |store, id| store.write(id, 300_000, b"x")),
        ];
        for (what, change) in changes {
            change(store, id).expect(what);
            check(store, id, &format!("{profile:?}: {what}"));
            check(store, other, what);
        }
        store.flush().expect("flush");
        check(store, id, "flush");
        store.remove(id).expect("remove");
        store.remove(other).expect("remove");
    }
}

pub(super) fn digests_that_the_caller_has_are_taken<S: ObjectStore>(store: &S) {
    for (number, profile) in (0x2_0000..).zip(Profile::ALL) {
        let id = partition(store, number, Some(profile));
        // Once as if the object ended with the data, once not; and once for a writer that does not
        // know.
        for (offset, length) in [(0, 100_000), (10_000, 40_000), (5, 3), (98_000, 30_000)] {
            let data = pattern(offset, length);
            let end = offset + length as u64;
            for cover in [
                DigestCover::new(profile, offset, length as u64, end),
                DigestCover::of_write(profile, offset, length as u64),
            ] {
                store.write_digested(id, offset, &data, &CoveredDigests::of(cover, &data)).expect("write");
                check(store, id, &format!("{profile:?} at {offset}"));
            }
        }
        // The store ignores digests of other data.
        let data = pattern(7, 50_000);
        let other = if profile == Profile::Sha1 { Profile::Blake3 } else { Profile::Sha1 };
        for cover in
            [DigestCover::of_write(other, 0, 50_000), DigestCover::of_write(profile, 1 << 14, 50_000)]
        {
            store.write_digested(id, 0, &data, &CoveredDigests::of(cover, &data)).expect("write");
            check(store, id, "digests of something else");
        }
    }
}

pub(super) fn a_partitions_profile_is_set_while_it_is_empty<S: ObjectStore>(store: &S) {
    let number = 0x2_0000;
    assert_eq!(store.profile(number), Some(Profile::DEFAULT));
    refuses!(store.set_profile(number, None), StoreError::NotFound(_));
    let id = partition(store, number, Some(Profile::Sha1));
    assert_eq!(store.profile(number), Some(Profile::Sha1));
    match store.set_profile(number, None) {
        Err(StoreError::Exists(object)) => assert_eq!(object, id),
        other => panic!("{other:?}"),
    }
    store.remove(id).expect("remove");
    for profile in [None, Some(Profile::DEFAULT), Some(Profile::LtHash)] {
        store.set_profile(number, profile).expect("set");
        assert_eq!(store.profile(number), profile);
        store.flush().expect("flush");
        assert_eq!(store.profile(number), profile);
    }
    // The profile is deleted with the partition.
    store.remove(ObjectId::of_partition(number)).expect("remove");
    assert_eq!(store.profile(number), Some(Profile::DEFAULT));
    store.create(ObjectId::of_partition(number), ObjectType::Partition).expect("create");
    assert_eq!(store.profile(number), Some(Profile::DEFAULT));
    refuses!(store.set_profile(0x3_0000, None), StoreError::NotFound(_));
}

pub(super) fn digests_of_nothing_are_refused_or_empty<S: ObjectStore>(store: &S) {
    let id = user(1);
    refuses!(store.digests(id, 0, 1), StoreError::NotFound(_));
    refuses!(store.read_digested(id, 0, &mut [0; 1], DigestCheck::ByReceiver), StoreError::NotFound(_));
    refuses!(store.page_digest(id, 1), StoreError::NotFound(_));
    store.create(id, ObjectType::User).expect("create");
    refuses!(store.digests(id, 0, MAX_TRANSFER + 1), StoreError::TooLarge { .. });
    assert!(store.digests(id, 0, MAX_TRANSFER).expect("digests").values.is_empty());
    assert!(store.digests(id, u64::MAX, 5).expect("digests").values.is_empty());
    let read = store.read_digested(id, 5, &mut [0; 9], DigestCheck::ByReceiver).expect("read");
    assert_eq!((read.count, read.object_length), (0, 0));
    assert!(read.covered.is_some_and(|covered| covered.values().is_empty()));
    // Holes have no stored digests; a read computes them.
    store.resize(id, 50_000).expect("resize");
    assert_eq!(store.digests(id, 0, 50_000).expect("digests").values, [None; 4]);
    check(store, id, "a hole");
}

pub(super) fn a_pages_digest_is_that_of_its_attributes<S: ObjectStore>(store: &S) {
    let id = user(1);
    store.create(id, ObjectType::User).expect("create");
    let expected = |page| {
        let mut digest = sealstone_digest::AttributePage::new(Profile::DEFAULT, page);
        for (attribute, value) in store.attributes(id, Some(page)).expect("attributes") {
            digest.push(attribute.number, &value);
        }
        Some(digest.finish())
    };
    let check = |what: &str| {
        for page in 0..4 {
            let first = store.page_digest(id, page).expect("digest");
            assert_eq!(first, expected(page), "{what}");
            assert_eq!(store.page_digest(id, page).expect("digest again"), first, "{what}");
        }
    };
    check("no attributes");
    for step in 0..20_u32 {
        let attribute = AttributeId { page: step % 3, number: step % 7 };
        let length = if step % 5 == 4 { 0 } else { step as usize };
        store.set_attribute(id, attribute, &pattern(u64::from(step), length)).expect("set");
        check(&format!("step {step}"));
        if step % 6 == 0 {
            store.flush().expect("flush");
            check(&format!("flush after step {step}"));
        }
    }
    // A later object with the same id must not inherit any digest.
    store.remove(id).expect("remove");
    store.create(id, ObjectType::User).expect("create");
    check("made again");
}
