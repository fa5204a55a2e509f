//! Success cases and specific refusals of every command, signed under ALLDATA.

use crate::support::{Bench, ListPair, PID, user, value, values};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::cdb::*;
use sealstone_osd::listing::Listing;
use sealstone_osd::{Capability, Command, Descriptor, Generation, ObjectId, Permissions, SecurityMethod};
use sealstone_scsi::Status;

const OID: u64 = 0x10000;

fn extent(object: ObjectId, start: u64, length: u64) -> Extent {
    Extent { object, start, length }
}

fn create(bench: &Bench, oid: u64) {
    bench.run(Command::Create(Create { object: user(oid), count: 1 }), ListPair::default(), &[]).good();
}

fn write(bench: &Bench, oid: u64, start: u64, data: &[u8]) {
    let command = Command::Write(extent(user(oid), start, data.len() as u64));
    bench.run(command, ListPair::default(), data).good();
}

fn read(bench: &Bench, oid: u64, start: u64, length: u64) -> crate::support::Answer {
    bench.run(Command::Read(extent(user(oid), start, length)), ListPair::default(), &[])
}

fn get(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let command = Command::GetAttributes(Target { object });
    value(&bench.run(command, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

fn length(bench: &Bench, oid: u64) -> u64 {
    u64::from_be_bytes(get(bench, user(oid), 1, 0x82).try_into().unwrap())
}

#[test]
fn written_data_is_read_back() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 3, b"objects");
    assert_eq!(read(&bench, OID, 0, 10).good().data, b"\0\0\0objects");
    assert_eq!(length(&bench, OID), 10);
}

#[test]
fn read_past_end_returns_data_and_length() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"12345");
    let answer = read(&bench, OID, 2, 100);
    assert_eq!(answer.status, Status::CheckCondition);
    assert_eq!(answer.sense(), (1, 0x3B17));
    assert_eq!(answer.sense.as_ref().unwrap().command_specific, Some(3));
    assert_eq!(answer.data, b"345");
    assert_eq!(read(&bench, OID, 5, 1).sense(), (1, 0x3B17));
    let beyond = read(&bench, OID, 6, 1);
    assert_eq!(beyond.sense(), (5, 0x2400));
    assert_eq!(beyond.sense.unwrap().field.unwrap().byte, 40);
}

#[test]
fn read_past_end_also_returns_attributes() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"12345");
    let command = Command::Read(extent(user(OID), 0, 8));
    let answer = bench.run(command, ListPair::get(&[(1, 0x82)]), &[]);
    assert_eq!(answer.sense(), (1, 0x3B17));
    assert_eq!(value(&answer.attributes), 5u64.to_be_bytes());
    assert_eq!(answer.data, b"12345");
}

#[test]
fn append_writes_at_end_and_reports_offset() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    for (start, data) in [(0u64, &b"ab"[..]), (2, b"cde")] {
        let command = Command::Append(Append { object: user(OID), length: data.len() as u64 });
        let answer = bench.run(command, ListPair::get(&[(0xFFFF_FFFE, 5)]), data).good();
        assert_eq!(value(&answer.attributes), start.to_be_bytes());
    }
    assert_eq!(read(&bench, OID, 0, 5).good().data, b"abcde");
}

#[test]
fn clear_and_punch_change_only_their_range() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"0123456789");
    bench.run(Command::Clear(extent(user(OID), 2, 3)), ListPair::default(), &[]).good();
    assert_eq!(read(&bench, OID, 0, 10).good().data, b"01\0\0\x0056789");
    bench.run(Command::Clear(extent(user(OID), 9, 3)), ListPair::default(), &[]).good();
    assert_eq!(length(&bench, OID), 12);
    bench.run(Command::Punch(extent(user(OID), 1, 4)), ListPair::default(), &[]).good();
    assert_eq!(read(&bench, OID, 0, 8).good().data, b"05678\0\0\0");
    bench.run(Command::Punch(extent(user(OID), 4, 100)), ListPair::default(), &[]).good();
    assert_eq!(length(&bench, OID), 4);
    let beyond = bench.run(Command::Punch(extent(user(OID), 5, 1)), ListPair::default(), &[]);
    assert_eq!(beyond.sense(), (5, 0x2400));
    bench.run(Command::Punch(extent(user(OID), 4, 0)), ListPair::default(), &[]).good();
}

#[test]
fn create_and_write_makes_one_object_with_data() {
    let bench = Bench::with_partition();
    let command = Command::CreateAndWrite(extent(user(0), 0, 4));
    let answer = bench.run(command, ListPair::get(&[(0xFFFF_FFFE, 4)]), b"data").good();
    assert_eq!(value(&answer.attributes), OID.to_be_bytes());
    assert_eq!(read(&bench, OID, 0, 4).good().data, b"data");
}

#[test]
fn several_objects_are_created_at_once() {
    let bench = Bench::with_partition();
    let command = Command::Create(Create { object: user(0), count: 3 });
    let answer = bench.run(command, ListPair::get(&[(1, 2)]), &[]).good();
    let list = sealstone_osd::attribute::list::ObjectValues::parse(&answer.attributes).unwrap();
    let ids: Vec<_> =
        list.map(|entry| (entry.object, entry.values.iter().next().unwrap().1.to_vec())).collect();
    assert_eq!(ids, [0, 1, 2].map(|n| (OID + n, (OID + n).to_be_bytes().to_vec())));
    // From several objects only the Current Command page can be retrieved.
    let page = bench.run(command, ListPair::page(1), &[]);
    assert_eq!(page.sense(), (5, 0x1A00));
    let current = bench.run(command, ListPair::page(0xFFFF_FFFE), &[]).good();
    assert_eq!(current.attributes[52..60], (OID + 5).to_be_bytes());
}

#[test]
fn ids_are_checked() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    let again = bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]);
    assert_eq!(again.sense(), (5, 0x2400));
    let reserved = bench.run(Command::Create(Create { object: user(5), count: 1 }), ListPair::default(), &[]);
    assert_eq!(reserved.sense.unwrap().field.unwrap().byte, 24);
    let partition = Command::CreatePartition(CreatePartition { partition: PID });
    assert_eq!(bench.run(partition, ListPair::default(), &[]).sense.unwrap().field.unwrap().byte, 16);
    let small = Command::CreatePartition(CreatePartition { partition: 5 });
    assert_eq!(bench.run(small, ListPair::default(), &[]).sense.unwrap().field.unwrap().byte, 16);
    let missing = bench.run(Command::Read(extent(user(0x55555), 0, 1)), ListPair::default(), &[]);
    assert_eq!(missing.sense.unwrap().field.unwrap().byte, 24);
}

#[test]
fn remove_returns_attributes_then_removes() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"x");
    let remove = Command::Remove(Target { object: user(OID) });
    let answer = bench.run(remove, ListPair::get(&[(1, 0x82)]), &[]).good();
    assert_eq!(value(&answer.attributes), 1u64.to_be_bytes());
    assert_eq!(read(&bench, OID, 0, 1).sense(), (5, 0x2400));
    assert_eq!(bench.run(remove, ListPair::default(), &[]).sense(), (5, 0x2400));
}

#[test]
fn remove_partition_requires_empty_or_with_contents() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    let remove = |with_contents| Command::RemovePartition(RemovePartition { partition: PID, with_contents });
    assert_eq!(bench.run(remove(false), ListPair::default(), &[]).sense(), (5, 0x2C0A));
    bench.run(remove(true), ListPair::default(), &[]).good();
    assert_eq!(bench.run(remove(true), ListPair::default(), &[]).sense(), (5, 0x2400));
    bench.create_partition(PID);
    assert_eq!(read(&bench, OID, 0, 1).sense(), (5, 0x2400));
    bench.run(remove(false), ListPair::default(), &[]).good();
}

#[test]
fn the_device_chooses_a_partition_id() {
    let bench = Bench::with_partition();
    let command = Command::CreatePartition(CreatePartition { partition: 0 });
    let answer = bench.run(command, ListPair::get(&[(0xFFFF_FFFE, 3)]), &[]).good();
    assert_eq!(value(&answer.attributes), (PID + 1).to_be_bytes());
}

#[test]
fn format_removes_partitions_and_sets_capacity() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    let format = |capacity| Command::FormatOsd(FormatOsd { capacity });
    assert_eq!(bench.run(format(1 << 40), ListPair::default(), &[]).sense(), (5, 0x2400));
    let name = ListPair::set(&[(0x9000_0001, 9, b"fresh")]);
    bench.run(format(1 << 20), name, &[]).good();
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9000_0001, 0xC0), 0u64.to_be_bytes());
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9000_0001, 0x80), (1u64 << 20).to_be_bytes());
    assert_eq!(get(&bench, ObjectId::ROOT, 0x9000_0001, 9), b"fresh");
    bench.create_partition(PID);
    create(&bench, OID);
    let big = vec![1; 2 << 20];
    let command = Command::Write(extent(user(OID), 0, big.len() as u64));
    assert_eq!(bench.run(command, ListPair::default(), &big).sense(), (7, 0x5507));
    write(&bench, OID, 0, &big[..1 << 19]);
}

#[test]
fn flushes_and_fua_are_answered_when_durable() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    let flush = Flush { object: user(OID), scope: FlushScope::Everything, start: 0, length: 0 };
    bench.run(Command::Flush(flush), ListPair::default(), &[]).good();
    let everything = |object| FlushContainer { object, scope: ContainerScope::Everything };
    bench
        .run(Command::FlushPartition(everything(ObjectId::of_partition(PID))), ListPair::default(), &[])
        .good();
    bench.run(Command::FlushOsd(everything(ObjectId::ROOT)), ListPair::default(), &[]).good();
    let command = Command::Write(extent(user(OID), 0, 1));
    bench.run(command, ListPair { fua: true, ..ListPair::default() }, b"x").good();
    let missing = everything(ObjectId::of_partition(0x77777));
    assert_eq!(
        bench.run(Command::FlushPartition(missing), ListPair::default(), &[]).status,
        Status::CheckCondition
    );
}

fn list(
    bench: &Bench,
    object: ObjectId,
    allocation: u64,
    initial: u64,
    lists: ListPair,
) -> crate::support::Answer {
    let with_attributes = !lists.get.is_empty();
    let command = Command::List(List { object, list_id: 0, allocation, initial, with_attributes });
    bench.run(command, lists, &[])
}

#[test]
fn list_truncates_at_entries_and_continues() {
    let bench = Bench::with_partition();
    bench.run(Command::Create(Create { object: user(0), count: 5 }), ListPair::default(), &[]).good();
    let partition = ObjectId::of_partition(PID);
    let mut ids = Vec::new();
    let mut initial = 0;
    loop {
        let answer = list(&bench, partition, 24 + 2 * 8 + 3, initial, ListPair::default()).good();
        let page = Listing::parse(Generation::Osd2, &answer.data).unwrap();
        if initial == 0 {
            assert_eq!(page.full_len, Some(24 + 5 * 8));
        }
        ids.extend(page.ids());
        initial = page.next;
        if initial == 0 {
            break;
        }
    }
    assert_eq!(ids, (OID..OID + 5).collect::<Vec<_>>());
    let root = list(&bench, ObjectId::ROOT, 4096, 0, ListPair::default()).good();
    assert_eq!(Listing::parse(Generation::Osd2, &root.data).unwrap().ids().collect::<Vec<_>>(), [PID]);
    list(&bench, partition, 0, 0, ListPair::default()).good();
    assert_eq!(list(&bench, partition, 23, 0, ListPair::default()).sense(), (5, 0x2400));
    let series = Command::List(List {
        object: partition,
        list_id: 9,
        allocation: 4096,
        initial: 0,
        with_attributes: false,
    });
    assert_eq!(bench.run(series, ListPair::default(), &[]).sense.unwrap().field.unwrap().byte, 48);
}

#[test]
fn a_list_carries_attributes() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    create(&bench, OID + 1);
    write(&bench, OID + 1, 0, b"1234567");
    let lists = ListPair { allocation: 0, ..ListPair::get(&[(1, 0x82), (0x1_0000, 1)]) };
    let answer = list(&bench, ObjectId::of_partition(PID), 4096, 0, lists).good();
    let page = Listing::parse(Generation::Osd2, &answer.data).unwrap();
    let lengths: Vec<_> = page
        .entries()
        .map(|entry| {
            let values: Vec<_> = entry.values.iter().collect();
            assert_eq!(values.len(), 2, "an undefined attribute is there with no bytes");
            (entry.object, u64::from_be_bytes(values[0].1.try_into().unwrap()))
        })
        .collect();
    assert_eq!(lengths, [(OID, 0), (OID + 1, 7)]);
}

#[test]
fn scattered_pieces_are_written_at_listed_offsets() {
    use sealstone_osd::continuation::{Piece, Segment};
    let bench = Bench::with_partition();
    create(&bench, OID);
    let pieces = vec![Piece { offset: 8, length: 2 }, Piece { offset: 0, length: 3 }];
    let segment = Segment { scatter_gather: Some(pieces), ..Segment::default() };
    let send = |command: Command, data: &[u8]| {
        let action = command.row().osd2.unwrap();
        let capability = bench.capability(&command, SecurityMethod::AllData);
        let bytes = segment.encode(action).unwrap();
        let ready = bench.ready_scattered(command, &ListPair::default(), data, &capability, bytes);
        let reply = bench.send(&ready);
        bench.verify(&ready, &reply).unwrap().good()
    };
    send(Command::Write(extent(user(OID), 1, 5)), b"YZabc");
    assert_eq!(read(&bench, OID, 0, 11).good().data, b"\0abc\0\0\0\0\0YZ");
    assert_eq!(send(Command::Read(extent(user(OID), 1, 5)), &[]).data, b"YZabc");
}

/// A capability for a byte range accepts lists whose pieces are all in the range.
#[test]
fn scatter_pieces_must_fit_capability_range() {
    use sealstone_osd::continuation::{Piece, Segment};
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, &[b'.'; 64]);
    let send = |command: Command, data: &[u8], pieces: Option<&[(u64, u64)]>| {
        let mut capability = bench.capability(&command, SecurityMethod::AllData);
        let range = Range { start: 16, length: 16 };
        capability.descriptor = Descriptor::User { scope: Scope::default(), allowed: user(OID), range };
        let list =
            |pieces: &[(u64, u64)]| pieces.iter().map(|&(offset, length)| Piece { offset, length }).collect();
        let segment = Segment { scatter_gather: pieces.map(list), ..Segment::default() };
        let bytes = segment.encode(command.row().osd2.unwrap()).unwrap();
        let data = &data[..usize::try_from(command.data_out_len()).unwrap()];
        let ready = bench.ready_scattered(command, &ListPair::default(), data, &capability, bytes);
        bench.verify(&ready, &bench.send(&ready)).unwrap()
    };
    let read = |start, length| Command::Read(extent(user(OID), start, length));
    let written = |start, length| Command::Write(extent(user(OID), start, length));
    // The first byte, the last one, both, and an empty piece at the end of the range.
    for pieces in [&[(16, 4)][..], &[(28, 4)], &[(31, 1), (16, 3)], &[(16, 4), (32, 0)]] {
        assert_eq!(send(read(0, 4), &[], Some(pieces)).good().data, b"....", "{pieces:?}");
    }
    send(written(0, 4), b"abcd", Some(&[(16, 2), (30, 2)])).good();
    // Offsets are relative to STARTING BYTE.
    assert_eq!(send(read(14, 4), &[], Some(&[(2, 2), (16, 2)])).good().data, b"abcd");
    let before = bench.state_hash();
    let outside: [(Command, Option<&[(u64, u64)]>); 7] = [
        (written(0, 4), Some(&[(15, 4)])),
        (written(0, 4), Some(&[(29, 4)])),
        (written(0, 4), Some(&[(16, 3), (32, 1)])),
        (written(0, 4), Some(&[(15, 1), (16, 3)])),
        (written(0, 4), Some(&[(16, 4), (33, 0)])),
        (written(1, 4), Some(&[(15, 3), (31, 1)])),
        // A segment without a list: the range in the CDB counts.
        (written(15, 4), None),
    ];
    for (command, pieces) in outside {
        let answer = send(command, b"EVIL", pieces);
        assert_eq!(answer.sense(), (5, 0x2400), "{pieces:?}");
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, 168, "ALLOWED RANGE LENGTH");
        assert_eq!(bench.state_hash(), before, "{pieces:?}");
    }
    send(written(16, 4), b"good", None).good();
}

#[test]
fn objects_survive_a_restart_and_counts_are_right() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, &[1; 5000]);
    let again = Bench::start(sealstone_osd_device::OsdConfig::default(), bench.store.clone(), 2, 0);
    again.keys.lock().add_partition(PID).unwrap();
    assert_eq!(read(&again, OID, 4998, 2).good().data, [1, 1]);
    let partition = ObjectId::of_partition(PID);
    assert_eq!(get(&again, partition, 0x3000_0001, 0x81), 8192u64.to_be_bytes());
    assert_eq!(get(&again, partition, 0x3000_0001, 0xC1), 1u64.to_be_bytes());
    let all = values(
        &bench
            .run(
                Command::GetAttributes(Target { object: partition }),
                ListPair::get(&[(0x3000_0001, !0)]),
                &[],
            )
            .good()
            .attributes,
    );
    assert!(all.iter().any(|(id, _)| id.number == 0xC1));
}

#[test]
fn short_data_in_reports_full_length() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"0123456789");
    let command = Command::Read(extent(user(OID), 0, 10));
    let capability = bench.capability(&command, SecurityMethod::CmdRsp);
    for max in [0, 4, 10, 100] {
        let ready = bench.ready(command, &ListPair::default(), &[], &capability);
        let reply = bench.raw(crate::support::NEXUS, &ready.cdb, &[], max);
        assert_eq!(reply.data_in, b"0123456789"[..max.min(10)]);
        assert_eq!((reply.status, reply.data_in_wanted), (Status::Good, 10));
    }
    let huge = Command::Read(extent(user(OID), 0, u64::MAX));
    let capability = bench.capability(&huge, SecurityMethod::CmdRsp);
    let ready = bench.ready(huge, &ListPair::default(), &[], &capability);
    let reply = bench.raw(crate::support::NEXUS, &ready.cdb, &[], 16);
    assert_eq!(reply.data_in[..], *b"0123456789\0\0\0\0\0\0");
    assert_eq!(bench.verify(&ready, &reply).unwrap().sense.unwrap().command_specific, Some(10));
    // More than the pool has: BUSY.
    let ready = bench.ready(huge, &ListPair::default(), &[], &capability);
    assert_eq!(bench.raw(crate::support::NEXUS, &ready.cdb, &[], usize::MAX).status, Status::Busy);
}

#[test]
fn appends_of_many_threads_do_not_overlap() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    std::thread::scope(|scope| {
        for byte in 0..8u8 {
            let bench = &bench;
            scope.spawn(move || {
                let command = Command::Append(Append { object: user(OID), length: 100 });
                (0..20).for_each(|_| drop(bench.run(command, ListPair::default(), &[byte; 100]).good()));
            });
        }
    });
    let data = read(&bench, OID, 0, 16_000).good().data;
    assert!(data.chunks(100).all(|chunk| chunk.iter().all(|byte| *byte == chunk[0])));
    for byte in 0..8u8 {
        assert_eq!(data.iter().filter(|other| **other == byte).count(), 2000);
    }
}

#[test]
fn list_with_attributes_accepts_only_get_list() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    let command = Command::List(List {
        object: ObjectId::of_partition(PID),
        list_id: 0,
        allocation: 4096,
        initial: 0,
        with_attributes: true,
    });
    for lists in [ListPair::page(1), ListPair::set(&[(0x1_0000, 1, b"x")])] {
        assert_eq!(bench.run(command, lists, &[]).sense(), (5, 0x2400));
    }
}

#[test]
fn every_command_has_a_documented_cost() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/limits.md");
    let text = std::fs::read_to_string(page).unwrap();
    let (_, costs) = text.split_once("\n## Costs of device commands\n").expect("the section");
    for row in SERVICE_ACTIONS {
        assert!(costs.contains(&format!("\n| `{}` | ", row.name)), "{} has no row in {page}", row.name);
    }
}

/// Returns a capability with every permission, for a byte range of the object.
fn for_bytes(bench: &Bench, command: &Command, start: u64, length: u64) -> Capability {
    let whole = bench.capability(command, SecurityMethod::AllData);
    let descriptor = Descriptor::User {
        scope: Scope::default(),
        allowed: command.object(),
        range: Range { start, length },
    };
    Capability { permissions: Permissions::ALL_OSD2, descriptor, ..whole }
}

fn denied(answer: &crate::support::Answer) {
    assert_eq!((answer.status, answer.sense()), (Status::CheckCondition, (5, 0x2400)));
}

#[test]
fn restricted_capability_leaves_length_and_other_bytes_alone() {
    let bench = Bench::with_partition();
    create(&bench, OID);
    write(&bench, OID, 0, b"data");
    let run = |command: Command, lists: ListPair, data: &[u8], (start, length): (u64, u64)| {
        let capability = for_bytes(&bench, &command, start, length);
        bench.run_with(command, lists, data, &capability)
    };
    let length_set = |length: u64| ListPair::set(&[(1, 0x82, &length.to_be_bytes())]);
    let append = Command::Append(Append { object: user(OID), length: 4 });
    let four = Command::Write(extent(user(OID), 0, 4));
    let target = Target { object: user(OID) };
    let map = ReadMap { object: user(OID), allocation: 64, start: 0, kind: 0 };
    let before = bench.state_hash();
    // The object has 4 bytes, the capability covers them.
    let only = (0, 4);
    for (command, lists, data) in [
        (append, ListPair::default(), &b"more"[..]),
        (Command::SetAttributes(target), length_set(5), b""),
        (four, length_set(5), b"DATA"),
        (Command::GetAttributes(target), ListPair::get(&[(1, 0x82)]), b""),
        (Command::GetAttributes(target), ListPair::get(&[(1, u32::MAX)]), b""),
        (Command::Read(extent(user(OID), 0, 4)), ListPair::get(&[(1, 0x81)]), b""),
        (Command::ReadMap(map), ListPair::default(), b""),
        (Command::Punch(extent(user(OID), 0, 4)), ListPair::default(), b""),
        (Command::Remove(target), ListPair::default(), b""),
        (Command::Clear(extent(user(OID), 0, 5)), ListPair::default(), b""),
    ] {
        let answer = run(command, lists, data, only);
        denied(&answer);
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, 168, "{command:?}");
        assert_eq!(bench.state_hash(), before, "{command:?}");
    }
    // Without the first byte the length cannot become 0, nor anything below the range.
    for length in [0, 1] {
        denied(&run(Command::SetAttributes(target), length_set(length), b"", (2, 10)));
    }
    run(four, ListPair::default(), b"DATA", only).good();
    run(Command::SetAttributes(target), length_set(3), b"", only).good();
    run(Command::SetAttributes(target), length_set(4), b"", only).good();
    // APPEND writes at the end, which the range covers once.
    run(append, ListPair::default(), b"more", (4, 4)).good();
    denied(&run(append, ListPair::default(), b"more", (4, 4)));
    // A write beyond the end stays within its range, and so does the new length.
    let beyond = Command::Write(Extent { object: user(OID), start: 20, length: 4 });
    run(beyond, ListPair::default(), b"DATA", (20, 4)).good();
    assert_eq!(bench.store.stat(user(OID)).unwrap().length, 24);
    let removed = Command::Append(Append { object: user(0x7_7777), length: 4 });
    denied(&run(removed, ListPair::default(), b"more", (9, 1)));
}
