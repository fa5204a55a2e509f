//! Check values over stored digests: which bytes the device hashes, and which not.

use std::sync::Arc;

use crate::support::{Answer, Bench, ListPair, NEXUS, PID, user, values};
use sealstone_digest::Profile;
use sealstone_osd::capability::Scope;
use sealstone_osd::cdb::*;
use sealstone_osd::{AttributeId, Capability, Command, Descriptor, ObjectId, ObjectType, SecurityMethod};
use sealstone_osd_device::{HashingCount, OsdConfig};
use sealstone_scsi::lu::{Cost, LogicalUnit as _};
use sealstone_scsi::{SenseKey, Status, additional};
use sealstone_seal::algorithm::{SLOT_HMAC_SHA256, SLOT_UNITS_ADHASH, SLOT_UNITS_BLAKE3, SLOT_UNITS_SHA1};
use sealstone_seal::signer::ReplyError;
use sealstone_store::{DiskStore, FileMedium, FormatOptions, MemoryStore, ObjectStore, StoreOptions, format};

const OID: u64 = 0x1_0000;
const PAGE: u32 = 0x1_0007;
/// Attribute with the partition's digest profile.
const PROFILE: (u32, u32) = (0x3000_F006, 1);

/// Returns a store that keeps digests.
fn disk() -> (tempfile::TempDir, Arc<dyn ObjectStore>) {
    let folder = tempfile::tempdir().unwrap();
    let medium = Arc::new(FileMedium::open(folder.path()).unwrap());
    let options = FormatOptions { segment: Some(16 << 20), ..FormatOptions::new(128 << 20, [1; 16]) };
    format(&*medium, &options).unwrap();
    (folder, Arc::new(DiskStore::open(medium, StoreOptions::default()).unwrap()))
}

/// Returns each kind of store. The memory store computes every digest.
fn stores() -> [(tempfile::TempDir, Arc<dyn ObjectStore>); 2] {
    [(tempfile::tempdir().unwrap(), Arc::new(MemoryStore::new(64 << 20))), disk()]
}

fn content(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at * 7 + at / 251 + at / 65_521) as u8).collect()
}

/// Runs a command with the algorithm of a slot.
fn run(bench: &Bench, slot: u8, command: Command, lists: ListPair, data: &[u8]) -> Answer {
    let capability =
        Capability { icv_algorithm: slot, ..bench.capability(&command, SecurityMethod::AllData) };
    bench.run_with(command, lists, data, &capability)
}

fn extent(start: u64, length: u64) -> Extent {
    Extent { object: user(OID), start, length }
}

fn read(bench: &Bench, slot: u8, start: u64, length: u64) -> Vec<u8> {
    run(bench, slot, Command::Read(extent(start, length)), ListPair::default(), &[]).good().data
}

fn write(bench: &Bench, slot: u8, start: u64, data: &[u8]) {
    run(bench, slot, Command::Write(extent(start, data.len() as u64)), ListPair::default(), data).good();
}

fn create(bench: &Bench) {
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
}

/// Returns the counts of hashed bytes and used digests during `work`.
fn during(bench: &Bench, work: impl FnOnce()) -> HashingCount {
    let before = bench.unit.hashing();
    work();
    let after = bench.unit.hashing();
    HashingCount {
        hashed_bytes: after.hashed_bytes - before.hashed_bytes,
        stored_units: after.stored_units - before.stored_units,
        stored_pages: after.stored_pages - before.stored_pages,
    }
}

fn set_profile(bench: &Bench, code: u8) -> Answer {
    let command = Command::SetAttributes(Target { object: ObjectId::of_partition(PID) });
    bench.run(command, ListPair::set(&[(PROFILE.0, PROFILE.1, &[code])]), &[])
}

fn bench_on(store: Arc<dyn ObjectStore>, insecure_adhash: bool) -> Bench {
    let bench = Bench::with(OsdConfig { insecure_adhash, ..OsdConfig::default() }, store);
    bench.create_partition(PID);
    bench
}

/// The device hashes no byte of a whole unit when it is read.
#[test]
fn a_protected_read_hashes_only_its_edges() {
    let (_folder, store) = disk();
    {
        let bench = bench_on(store, true);
        create(&bench);
        let bytes = content(300_000);
        write(&bench, SLOT_UNITS_BLAKE3, 0, &bytes);
        for (start, length, units, edges) in [
            (0, 262_144, 16, 0),
            (16_384, 65_536, 4, 0),
            // The last unit is whole if the object ends there.
            (262_144, 37_856, 3, 0),
            (5000, 65_536, 3, 65_536 - 3 * 16_384),
            (5000, 100, 0, 100),
            (16_383, 16_386, 1, 2),
        ] {
            let counted = during(&bench, || {
                let found = read(&bench, SLOT_UNITS_BLAKE3, start, length);
                assert!(found == bytes[start as usize..(start + length) as usize], "{start} {length}");
            });
            assert_eq!((counted.stored_units, counted.hashed_bytes), (units, edges), "{start} {length}");
        }
    }
}

/// The client verifies data that it has digests of. The device does so on request, and where no
/// client can.
#[test]
fn corruption_found_by_client_or_fua_read() {
    let (folder, store) = disk();
    let bench = bench_on(store, false);
    create(&bench);
    // No two blocks are equal.
    let bytes: Vec<u8> =
        (0..25_000_u32).flat_map(|word| word.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    write(&bench, SLOT_UNITS_BLAKE3, 0, &bytes);
    bench.store.flush().unwrap();
    let file = folder.path().join("segment-00000");
    let mut stored = std::fs::read(&file).unwrap();
    let block = bytes[40_960..45_056].to_vec();
    let place = stored.windows(4096).position(|window| window == block).unwrap();
    stored[place + 9] ^= 0x20;
    std::fs::write(&file, &stored).unwrap();
    let ready = |slot, method, start, length, fua| {
        let command = Command::Read(extent(start, length));
        let capability = Capability { icv_algorithm: slot, ..bench.capability(&command, method) };
        bench.ready(command, &ListPair { fua, ..ListPair::default() }, &[], &capability)
    };
    let (all, signed) = (SecurityMethod::AllData, SecurityMethod::CmdRsp);
    let received = |slot, method, start, length, fua| {
        let ready = ready(slot, method, start, length, fua);
        let reply = bench.send(&ready);
        (reply.status, bench.verify(&ready, &reply).map(|answer| (answer.data, answer.sense)))
    };
    // As the device sends it, with the digests of the original data.
    let (status, answer) = received(SLOT_UNITS_BLAKE3, all, 0, 100_000, false);
    assert_eq!((status, answer.unwrap_err()), (Status::Good, ReplyError::DataInIcv));
    assert!(bench.store.known_damage(user(OID)).is_empty());
    // The device verifies in these cases: a unit cut by the range, a MAC over all bytes, digests
    // that are not stored, no check value, FUA.
    for (slot, method, start, length, fua) in [
        (SLOT_UNITS_BLAKE3, all, 0, 100_000, true),
        (SLOT_UNITS_BLAKE3, all, 40_000, 5000, false),
        (SLOT_HMAC_SHA256, all, 0, 100_000, false),
        (SLOT_UNITS_SHA1, all, 0, 100_000, false),
        (SLOT_HMAC_SHA256, signed, 0, 100_000, false),
        // Now the damage is known and reported in any case.
        (SLOT_UNITS_BLAKE3, all, 0, 100_000, false),
    ] {
        let (status, answer) = received(slot, method, start, length, fua);
        let sense = answer.unwrap().1.unwrap();
        assert_eq!((status, sense.key), (Status::CheckCondition, SenseKey::MediumError), "{slot} {start}");
        assert_eq!((sense.code, sense.information), (additional::UNRECOVERED_READ_ERROR, Some(40_960)));
    }
    let damage = bench.store.known_damage(user(OID));
    assert_eq!(damage.iter().map(|piece| (piece.offset, piece.length)).collect::<Vec<_>>(), [(40_960, 4096)]);
    assert!(read(&bench, SLOT_UNITS_BLAKE3, 49_152, 50_848) == bytes[49_152..]);
}

/// A large read answered from stored digests costs as little as one without check values.
#[test]
fn read_cost_depends_on_stored_digests() {
    const LENGTH: u64 = 1 << 20;
    let (_folder, store) = disk();
    let bench = bench_on(store, false);
    set_profile(&bench, Profile::Blake3.code()).good();
    let cost = |slot, method, command: Command| {
        let capability = Capability { icv_algorithm: slot, ..bench.capability(&command, method) };
        let data = if matches!(command, Command::Write(_)) { &[0; LENGTH as usize][..] } else { &[] };
        bench.unit.cost(NEXUS, &bench.ready(command, &ListPair::default(), data, &capability).cdb)
    };
    let (all, reading) = (SecurityMethod::AllData, Command::Read(extent(5, LENGTH)));
    assert_eq!(cost(SLOT_UNITS_BLAKE3, all, reading), Cost::Inline);
    assert_eq!(cost(SLOT_HMAC_SHA256, SecurityMethod::CmdRsp, reading), Cost::Inline);
    for slot in [SLOT_HMAC_SHA256, SLOT_UNITS_SHA1] {
        assert_eq!(cost(slot, all, reading), Cost::Heavy(LENGTH));
    }
    assert_eq!(cost(SLOT_UNITS_BLAKE3, all, Command::Write(extent(5, LENGTH))), Cost::Heavy(LENGTH));
    set_profile(&bench, 0).good();
    assert_eq!(cost(SLOT_UNITS_BLAKE3, all, reading), Cost::Heavy(LENGTH));
}

/// Data written by any method can be read and verified with every algorithm, in every profile of
/// the partition.
#[test]
fn every_algorithm_reads_from_every_profile() {
    let slots = [SLOT_HMAC_SHA256, SLOT_UNITS_BLAKE3, SLOT_UNITS_SHA1, SLOT_UNITS_ADHASH];
    for (number, (_folder, store)) in stores().into_iter().enumerate() {
        let keeps = number == 1;
        for (code, own) in [
            (0, None),
            (Profile::Sha1.code(), Some(SLOT_UNITS_SHA1)),
            (Profile::AdHash256.code(), Some(SLOT_UNITS_ADHASH)),
            (Profile::Blake3.code(), Some(SLOT_UNITS_BLAKE3)),
            (Profile::LtHash.code(), Some(SLOT_UNITS_BLAKE3)),
        ] {
            let bench = bench_on(Arc::clone(&store), true);
            set_profile(&bench, code).good();
            create(&bench);
            let mut bytes = content(200_000);
            write(&bench, SLOT_UNITS_SHA1, 0, &bytes);
            // Changes of every alignment, with each algorithm.
            for (number, slot) in slots.into_iter().enumerate() {
                for (start, length) in [(4000, 700), (8192, 8192), (60_000, 50_000), (199_000, 3000)] {
                    let patch = vec![number as u8 ^ 0x5A; length];
                    write(&bench, slot, start as u64, &patch);
                    bytes.resize(bytes.len().max(start + length), 0);
                    bytes[start..start + length].copy_from_slice(&patch);
                }
            }
            for slot in slots {
                for (start, length) in
                    [(0, 202_000), (32_768, 65_536), (5000, 40_000), (199_999, 2001), (0, 1)]
                {
                    let counted = during(&bench, || {
                        let found = read(&bench, slot, start as u64, length as u64);
                        assert!(found == bytes[start..start + length], "profile {code} slot {slot} {start}");
                    });
                    match (own == Some(slot), slot) {
                        (_, SLOT_HMAC_SHA256) => assert_eq!(counted, HashingCount::default()),
                        (true, _) if keeps => assert!(counted.hashed_bytes < 2 * 16_384, "{counted:?}"),
                        // The partition keeps other digests: computed from the bytes, never
                        // refused.
                        _ => {
                            assert_eq!((counted.hashed_bytes, counted.stored_units), (length as u64, 0))
                        }
                    }
                }
            }
            let remove = Command::RemovePartition(RemovePartition { partition: PID, with_contents: true });
            assert_eq!(bench.run(remove, ListPair::default(), &[]).status, Status::Good);
        }
    }
}

/// Data changed by commands other than WRITE has digests too.
#[test]
fn reads_verify_after_every_kind_of_change() {
    for (_folder, store) in stores() {
        let bench = bench_on(store, false);
        create(&bench);
        let mut bytes = content(100_000);
        write(&bench, SLOT_UNITS_BLAKE3, 0, &bytes);
        let run = |command, data: &[u8]| bench.run(command, ListPair::default(), data).good();
        let check = |bytes: &[u8]| {
            for (start, length) in [(0, bytes.len()), (16_384, 32_768), (20_000, 30_000)] {
                let length = length.min(bytes.len() - start);
                let found = read(&bench, SLOT_UNITS_BLAKE3, start as u64, length as u64);
                assert!(found == bytes[start..start + length], "{start}");
            }
        };
        run(Command::Append(Append { object: user(OID), length: 5000 }), &[9; 5000]);
        bytes.extend([9; 5000]);
        check(&bytes);
        run(Command::Clear(extent(30_000, 20_000)), &[]);
        bytes[30_000..50_000].fill(0);
        check(&bytes);
        run(Command::Punch(extent(10_000, 7000)), &[]);
        bytes.drain(10_000..17_000);
        check(&bytes);
        let resize = ListPair::set(&[(1, 0x82, &70_000_u64.to_be_bytes())]);
        bench.run(Command::SetAttributes(Target { object: user(OID) }), resize, &[]).good();
        bytes.truncate(70_000);
        check(&bytes);
        let resize = ListPair::set(&[(1, 0x82, &90_000_u64.to_be_bytes())]);
        bench.run(Command::SetAttributes(Target { object: user(OID) }), resize, &[]).good();
        bytes.resize(90_000, 0);
        check(&bytes);
    }
}

#[test]
fn digest_profile_changes_only_while_empty() {
    for (_folder, store) in stores() {
        let bench = bench_on(store, false);
        let current_values = || {
            let command = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
            let answer = bench.run(command, ListPair::get(&[PROFILE]), &[]).good();
            values(&answer.attributes)[0].1.clone()
        };
        assert_eq!(current_values(), [Profile::DEFAULT.code()]);
        set_profile(&bench, Profile::Sha1.code()).good();
        assert_eq!(current_values(), [Profile::Sha1.code()]);
        for wrong in [6, 255] {
            assert_eq!(set_profile(&bench, wrong).sense(), (5, 0x2600), "{wrong}");
        }
        // Broken profiles only if the administrator enabled them.
        for broken in [Profile::AdHash128, Profile::AdHash256] {
            assert_eq!(set_profile(&bench, broken.code()).sense(), (5, 0x2600));
        }
        create(&bench);
        assert_eq!(set_profile(&bench, Profile::Blake3.code()).sense(), (5, 0x2600));
        assert_eq!(current_values(), [Profile::Sha1.code()]);
    }
}

/// If the profile cannot be set, nothing else in the list is set.
#[test]
fn refused_profile_refuses_whole_set_list() {
    const OLDEST_NONCE: (u32, u32) = (0x3000_0005, 2);
    const TEN_SECONDS: [u8; 6] = [0, 0, 0, 0, 0x27, 0x10];
    for (_folder, store) in stores() {
        let bench = bench_on(store, false);
        let target = Target { object: ObjectId::of_partition(PID) };
        let set = |code: u8| {
            let code = [code];
            let list =
                [(OLDEST_NONCE.0, OLDEST_NONCE.1, &TEN_SECONDS[..]), (PROFILE.0, PROFILE.1, &code[..])];
            bench.run(Command::SetAttributes(target), ListPair::set(&list), &[])
        };
        let current_values = || {
            let lists = ListPair::get(&[OLDEST_NONCE, PROFILE]);
            values(&bench.run(Command::GetAttributes(target), lists, &[]).good().attributes)
        };
        let before = current_values();
        assert_ne!(before[0].1, TEN_SECONDS);
        assert_eq!(set(Profile::AdHash256.code()).sense(), (5, 0x2600));
        create(&bench);
        for other in [0, Profile::Sha1.code(), Profile::AdHash256.code()] {
            assert_eq!(set(other).sense(), (5, 0x2600), "{other}");
        }
        assert_eq!(current_values(), before);
        // Setting the present profile again is allowed.
        set(Profile::DEFAULT.code()).good();
        assert_eq!(current_values()[0].1, TEN_SECONDS);
        assert_eq!(current_values()[1], before[1]);
    }
}

/// One page of application attributes is covered by its stored digest.
#[test]
fn a_whole_page_of_attributes_is_not_hashed() {
    for (_folder, store) in stores() {
        let bench = bench_on(store, false);
        create(&bench);
        let set =
            ListPair::set(&[(PAGE, 1, b"one"), (PAGE, 9, &[7; 900]), (PAGE + 1, 2, b"of another page")]);
        bench.run(Command::SetAttributes(Target { object: user(OID) }), set, &[]).good();
        let get = |names: &[(u32, u32)], allocation| {
            let lists = ListPair { allocation, ..ListPair::get(names) };
            run(&bench, SLOT_UNITS_BLAKE3, Command::GetAttributes(Target { object: user(OID) }), lists, &[])
                .good()
        };
        let all = [(PAGE, AttributeId::ALL)];
        let one = |number, value: &[u8]| (AttributeId::new(PAGE, number), value.to_vec());
        let counted = during(&bench, || {
            assert_eq!(values(&get(&all, 4096).attributes), [one(1, b"one"), one(9, &[7; 900])]);
        });
        assert_eq!(counted.stored_pages, 1);
        // After a change the page has another digest.
        let set = ListPair::set(&[(PAGE, 1, b"ONE!")]);
        bench.run(Command::SetAttributes(Target { object: user(OID) }), set, &[]).good();
        assert_eq!(values(&get(&all, 4096).attributes)[0], one(1, b"ONE!"));
        // Truncated, or requested by name: the bytes of the list are hashed.
        let counted = during(&bench, || {
            assert_eq!(values(&get(&all, 64).attributes).len(), 1);
            assert_eq!(values(&get(&[(PAGE, 1)], 4096).attributes), [one(1, b"ONE!")]);
        });
        assert_eq!(counted.stored_pages, 0);
        // With an algorithm whose digest differs from the partition's profile.
        let lists = ListPair::get(&all);
        let command = Command::GetAttributes(Target { object: user(OID) });
        let answer = run(&bench, SLOT_UNITS_SHA1, command, lists, &[]).good();
        assert_eq!(values(&answer.attributes).len(), 2);
    }
}

/// The spontaneous collection is not stored, so its pages have no stored digest.
#[test]
fn spontaneous_collection_page_is_empty() {
    for (_folder, store) in stores() {
        let bench = bench_on(store, false);
        let everything = user(0x1082);
        let command = Command::GetAttributes(Target { object: everything });
        let capability = Capability {
            icv_algorithm: SLOT_UNITS_BLAKE3,
            object_type: ObjectType::Collection,
            descriptor: Descriptor::Collection { scope: Scope::default(), allowed: everything },
            ..bench.capability(&command, SecurityMethod::AllData)
        };
        let lists = ListPair::get(&[(0x6001_0000, AttributeId::ALL)]);
        let answer = bench.run_with(command, lists, &[], &capability).good();
        assert!(values(&answer.attributes).is_empty());
    }
}

/// A duplicate shares stored data with its digests.
#[test]
fn a_clone_keeps_the_digests_of_its_source() {
    const CLONE: u64 = PID + 1;
    let (_folder, store) = disk();
    let bench = bench_on(store, false);
    set_profile(&bench, Profile::Sha1.code()).good();
    create(&bench);
    let bytes = content(100_000);
    write(&bench, SLOT_UNITS_SHA1, 0, &bytes);
    let clone = Duplicate { partition: CLONE, source: PID, method: 0 };
    bench.run(Command::CreateClone(clone), ListPair::default(), &[]).good();
    bench.keys.lock().add_partition(CLONE).unwrap();
    let object = ObjectId::new(CLONE, OID);
    let counted = during(&bench, || {
        let command = Command::Read(Extent { object, start: 8192, length: 81_920 });
        let found = run(&bench, SLOT_UNITS_SHA1, command, ListPair::default(), &[]).good().data;
        assert!(found == bytes[8192..90_112]);
    });
    assert_eq!((counted.stored_units, counted.hashed_bytes), (10, 0));
}
