//! SET KEY and SET MASTER KEY through the logical unit (docs/design/security.md 3.6, 8.7; t10-osd
//! 4.7 to 4.9).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Answer, Bench, ListPair, NEXUS, PID, START_MS, user, value};
use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_osd::cdb::*;
use sealstone_osd::master_key::{BothValues, parse_device_value};
use sealstone_osd::{
    AttributeId, Capability, Command, Descriptor, Generation, ObjectId, Permissions, SecurityMethod,
};
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_scsi::lu::{LogicalUnit as _, NexusId};
use sealstone_seal::exchange::{EXCHANGE_MS, SeedExchange};
use sealstone_seal::{KeySelector, SecurityToken};
use sealstone_store::MemoryStore;

const OID: u64 = 0x10000;
const OTHER_PID: u64 = PID + 1;

fn bench() -> Bench {
    let bench = Bench::with_partition();
    bench.create_partition(OTHER_PID);
    for partition in [PID, OTHER_PID] {
        let object = ObjectId::new(partition, OID);
        bench.run(Command::Create(Create { object, count: 1 }), ListPair::default(), &[]).good();
    }
    bench
}

fn set_key(partition: u64, key: KeyToSet, fill: u8) -> Command {
    Command::SetKey(SetKey { partition, key, identifier: [fill; 7], seed: [fill; 20] })
}

fn look(partition: u64) -> Command {
    Command::GetAttributes(Target { object: ObjectId::new(partition, OID) })
}

/// Sends a command under a working key of the bench's own hierarchy; returns whether it was
/// admitted.
fn enters(bench: &Bench, partition: u64, version: u8) -> bool {
    let command = look(partition);
    let capability =
        Capability { key_version: version, ..bench.capability(&command, SecurityMethod::CmdRsp) };
    let answer = bench.run_with(command, ListPair::get(&[(1, 0x82)]), &[], &capability);
    match answer.status {
        Status::Good => true,
        _ => {
            assert_eq!(answer.sense(), (5, 0x2400));
            false
        }
    }
}

fn identifier(bench: &Bench, object: ObjectId, page: u32, number: u32) -> Vec<u8> {
    let get = Command::GetAttributes(Target { object });
    value(&bench.run(get, ListPair::get(&[(page, number)]), &[]).good().attributes)
}

#[test]
fn set_working_key_replaces_only_its_version() {
    let bench = bench();
    assert!(enters(&bench, PID, 0), "the factory's");
    // Version 3 was never set.
    assert_eq!(identifier(&bench, ObjectId::of_partition(PID), 0x3000_0005, 0x8003), b"");
    bench.run(set_key(PID, KeyToSet::Working(3), 7), ListPair::default(), &[]).good();
    bench.keys.lock().set_working(PID, 3, &[7; 20], [7; 7]).unwrap();
    assert!(enters(&bench, PID, 3) && enters(&bench, PID, 0) && enters(&bench, OTHER_PID, 0));
    assert_eq!(identifier(&bench, ObjectId::of_partition(PID), 0x3000_0005, 0x8003), [7; 7]);

    // A cached credential of the old key is refused too, and one of the new key admitted.
    bench.run(set_key(PID, KeyToSet::Working(0), 9), ListPair::default(), &[]).good();
    assert!(!enters(&bench, PID, 0), "the bench still signs with the factory's key");
    assert!(enters(&bench, PID, 3) && enters(&bench, OTHER_PID, 0));
    bench.keys.lock().set_working(PID, 0, &[9; 20], [9; 7]).unwrap();
    assert!(enters(&bench, PID, 0));
}

#[test]
fn set_partition_key_voids_its_working_keys() {
    let bench = bench();
    bench.run(set_key(PID, KeyToSet::Partition, 5), ListPair::default(), &[]).good();
    assert!(!enters(&bench, PID, 0) && enters(&bench, OTHER_PID, 0));
    bench.keys.lock().set_partition(PID, &[5; 20], [5; 7]).unwrap();
    bench.run(set_key(PID, KeyToSet::Working(0), 6), ListPair::default(), &[]).good();
    bench.keys.lock().set_working(PID, 0, &[6; 20], [6; 7]).unwrap();
    assert!(enters(&bench, PID, 0));
    assert_eq!(identifier(&bench, ObjectId::of_partition(PID), 0x3000_0005, 0x7FFF), [5; 7]);
    // The page lists the existing identifiers.
    let page = Command::GetAttributes(Target { object: ObjectId::of_partition(PID) });
    let page = bench.run(page, ListPair::page(0x3000_0005), &[]).good().attributes;
    assert_eq!(page.len(), 0x96 + 8);
    assert_eq!((page[36] & 1, page[37], page[38]), (1, 1, 0));
    assert_eq!((&page[39..46], &page[46..53], &page[53..60]), (&[5; 7][..], &[6; 7][..], &[0; 7][..]));
}

#[test]
fn set_root_key_voids_keys_below() {
    let bench = bench();
    bench.run(set_key(0, KeyToSet::Root, 3), ListPair::default(), &[]).good();
    assert!(!enters(&bench, PID, 0) && !enters(&bench, OTHER_PID, 0));
    let list = Command::List(List {
        object: ObjectId::ROOT,
        list_id: 0,
        allocation: 64,
        initial: 0,
        with_attributes: false,
    });
    assert_eq!(
        bench.run(list, ListPair::default(), &[]).sense(),
        (5, 0x2400),
        "partition zero has no key either"
    );
    bench.keys.lock().set_root(&[3; 20], [3; 7]);
    for partition in [0, PID, OTHER_PID] {
        bench.run(set_key(partition, KeyToSet::Partition, 4), ListPair::default(), &[]).good();
        bench.keys.lock().set_partition(partition, &[4; 20], [4; 7]).unwrap();
        bench.run(set_key(partition, KeyToSet::Working(0), 5), ListPair::default(), &[]).good();
        bench.keys.lock().set_working(partition, 0, &[5; 20], [5; 7]).unwrap();
    }
    assert!(enters(&bench, PID, 0) && enters(&bench, OTHER_PID, 0));
    bench.run(list, ListPair::default(), &[]).good();
    assert_eq!(identifier(&bench, ObjectId::ROOT, 0x9000_0005, 0x7FFE), [3; 7]);
    assert_eq!(identifier(&bench, ObjectId::ROOT, 0x9000_0005, 0x7FFD), b"", "the factory's master key");
}

#[test]
fn keys_are_set_in_osd1_too() {
    let config = OsdConfig { allow_osd1: true, ..OsdConfig::default() };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let command = set_key(PID, KeyToSet::Working(1), 8);
    // Slot 0 is HMAC-SHA1: a SHA-256 check value does not fit the fields of OSD-1.
    let capability = Capability {
        generation: Generation::Osd1,
        format: Generation::Osd1,
        icv_algorithm: 0,
        ..bench.capability(&command, SecurityMethod::CmdRsp)
    };
    bench.run_with(command, ListPair::default(), &[], &capability).good();
    bench.keys.lock().set_working(PID, 1, &[8; 20], [8; 7]).unwrap();
    assert!(enters(&bench, PID, 1));
}

#[test]
fn set_key_requires_parent_key() {
    let bench = bench();
    let other_keys = [
        KeySelector::Master,
        KeySelector::Root,
        KeySelector::Partition(PID),
        KeySelector::Partition(OTHER_PID),
        KeySelector::Working { partition: PID, version: 0 },
    ];
    let commands = [
        (set_key(0, KeyToSet::Root, 1), KeySelector::Master),
        (set_key(PID, KeyToSet::Partition, 1), KeySelector::Root),
        (set_key(PID, KeyToSet::Working(0), 1), KeySelector::Partition(PID)),
    ];
    for (command, right) in commands {
        let capability = bench.capability(&command, SecurityMethod::AllData);
        for wrong in other_keys.into_iter().filter(|key| *key != right) {
            let ready = bench.ready_under(command, &ListPair::default(), &[], &capability, wrong);
            let reply = bench.send(&ready);
            assert_eq!(reply.status, Status::CheckCondition, "{command:?} under {wrong:?}");
            assert_eq!(reply.sense[1..4], [5, 0x24, 0], "{command:?} under {wrong:?}");
        }
    }
    assert!(enters(&bench, PID, 0));
}

#[test]
fn set_key_requires_cmdrsp_polsec_and_freshness() {
    let bench = bench();
    let command = set_key(PID, KeyToSet::Working(0), 1);
    for method in [SecurityMethod::NoSec, SecurityMethod::CapKey] {
        let capability = bench.capability(&command, method);
        let answer = bench.run_with(command, ListPair::default(), &[], &capability);
        assert_eq!(answer.sense(), (5, 0x2400), "{method}");
    }
    let capability = bench.capability(&command, SecurityMethod::CmdRsp);
    let weaker =
        Capability { permissions: capability.permissions.without(Permissions::POL_SEC), ..capability };
    let answer = bench.run_with(command, ListPair::default(), &[], &weaker);
    assert_eq!(answer.sense(), (5, 0x2400));
    assert_eq!(answer.sense.unwrap().field.unwrap().byte, 129, "permissions");
    assert!(enters(&bench, PID, 0));
    // Replayed by the network.
    let ready = bench.ready(command, &ListPair::default(), &[], &capability);
    assert_eq!(bench.send(&ready).status, Status::Good);
    assert_eq!(bench.send(&ready).sense[1..4], [5, 0x24, 6]);
}

#[test]
fn invalid_key_operands_point_to_field() {
    let bench = bench();
    let field = |answer: Answer| {
        assert_eq!(answer.sense(), (5, 0x2400));
        answer.sense.unwrap().field.unwrap().byte
    };
    // A root key of a partition: the credential is the master's, and its capability is for that
    // partition.
    let command = set_key(PID, KeyToSet::Root, 1);
    assert_eq!(field(bench.run(command, ListPair::default(), &[])), 16);
    let command = set_key(0x77777, KeyToSet::Partition, 1);
    assert_eq!(field(bench.run(command, ListPair::default(), &[])), 16);
    assert!(enters(&bench, PID, 0));
}

/// The client's side of an exchange.
struct Client {
    secret: DhSecret,
    value: Vec<u8>,
    device: Vec<u8>,
}

fn master(step: DhStep, group: u8, identifier: u8, parameters: usize) -> Command {
    Command::SetMasterKey(SetMasterKey {
        step,
        group,
        identifier: [identifier; 7],
        parameter_length: u32::try_from(parameters).unwrap(),
        allocation: if step == DhStep::SeedExchange { 4 + 512 } else { 0 },
    })
}

fn seed(bench: &Bench, group: DhGroup) -> (Answer, Client) {
    let secret = DhSecret::draw(group, &mut |into: &mut [u8]| bench.fill_random(into));
    let value = secret.public();
    let command = master(DhStep::SeedExchange, group.code(), 1, value.len());
    let answer = bench.run(command, ListPair::default(), &value);
    let device = parse_device_value(&answer.data).map(<[u8]>::to_vec).unwrap_or_default();
    (answer, Client { secret, value, device })
}

/// Proposes the pair in the bench's own hierarchy, so that the change step is signed with it.
fn propose(bench: &Bench, client: &Client) {
    let group = client.secret.group();
    let secret = client.secret.agree(&client.device).unwrap();
    let mut keys = bench.keys.lock();
    let pair = keys.exchanged(&SeedExchange {
        derivation: group.derivation(),
        group: group.code(),
        client: &client.value,
        device: &client.device,
        secret: &secret,
    });
    keys.propose_master(pair);
}

fn change(bench: &Bench, client: &Client, values: [&[u8]; 2]) -> Answer {
    let parameters = BothValues { client: values[0], device: values[1] }.encode().unwrap();
    let command = master(DhStep::ChangeMasterKey, client.secret.group().code(), 2, parameters.len());
    bench.run(command, ListPair::default(), &parameters)
}

#[test]
fn the_master_key_is_exchanged_in_every_group() {
    for group in DhGroup::ALL {
        let bench = bench();
        let (answer, client) = seed(&bench, group);
        assert_eq!(answer.good().data.len(), 4 + group.value_len());
        assert!(enters(&bench, PID, 0), "a seed exchange alone changes nothing");
        propose(&bench, &client);
        change(&bench, &client, [&client.value, &client.device]).good();
        bench.keys.lock().accept_master([2; 7]);
        assert!(!enters(&bench, PID, 0), "{group:?}: everything below is void");
        // Root and partition zero first, then everything can be read again.
        bench.run(set_key(0, KeyToSet::Root, 3), ListPair::default(), &[]).good();
        bench.keys.lock().set_root(&[3; 20], [3; 7]);
        for partition in [0, PID] {
            bench.run(set_key(partition, KeyToSet::Partition, 4), ListPair::default(), &[]).good();
            bench.keys.lock().set_partition(partition, &[4; 20], [4; 7]).unwrap();
            bench.run(set_key(partition, KeyToSet::Working(0), 5), ListPair::default(), &[]).good();
            bench.keys.lock().set_working(partition, 0, &[5; 20], [5; 7]).unwrap();
        }
        assert!(enters(&bench, PID, 0));
        assert_eq!(identifier(&bench, ObjectId::ROOT, 0x9000_0005, 0x7FFD), [2; 7]);
    }
}

#[test]
fn attributes_report_dh_groups() {
    let bench = bench();
    for (slot, group) in DhGroup::ALL.iter().enumerate() {
        let number = 0x8000_0010 + u32::try_from(slot).unwrap();
        assert_eq!(identifier(&bench, ObjectId::ROOT, 0x9000_0005, number), [group.code()]);
    }
    assert_eq!(identifier(&bench, ObjectId::ROOT, 0x9000_0005, 0x8000_001F), [0]);
}

#[test]
fn mismatched_exchange_values_keep_keys() {
    let bench = bench();
    for wrong in 0..2 {
        let (answer, client) = seed(&bench, DhGroup::X25519);
        answer.good();
        propose(&bench, &client);
        let mut values = [client.value.clone(), client.device.clone()];
        values[wrong][3] ^= 1;
        let answer = change(&bench, &client, [&values[0], &values[1]]);
        assert_eq!(answer.sense(), (5, 0x2600));
        let at = [0, 4 + 32][wrong];
        assert_eq!(answer.sense.unwrap().field.unwrap().byte, at);
        assert!(enters(&bench, PID, 0));
        // The exchange has ended.
        assert_eq!(change(&bench, &client, [&client.value, &client.device]).sense(), (5, 0x2C00));
    }
}

#[test]
fn key_exchange_is_exclusive_and_expires() {
    let bench = bench();
    let (answer, client) = seed(&bench, DhGroup::X25519);
    answer.good();
    assert_eq!(seed(&bench, DhGroup::X25519).0.sense(), (5, 0x2C00));
    propose(&bench, &client);
    // Another nexus cannot end it, and a failed attempt does not end it.
    let other = NexusId(2);
    bench.login(other);
    let parameters = BothValues { client: &client.value, device: &client.device }.encode().unwrap();
    let command = master(DhStep::ChangeMasterKey, client.secret.group().code(), 2, parameters.len());
    let capability = bench.capability(&command, SecurityMethod::CmdRsp);
    let ready = bench.ready(command, &ListPair::default(), &parameters, &capability);
    let reply = bench.raw(other, &ready.cdb, &ready.data_out, ready.data_in_max);
    assert_eq!(reply.sense[1..4], [5, 0x2C, 0]);
    // A wrong check value on the right nexus does not end it either.
    let mut forged = ready.cdb.clone();
    forged[25] ^= 1;
    assert_eq!(bench.raw(NEXUS, &forged, &ready.data_out, ready.data_in_max).sense[1..4], [5, 0x24, 0]);
    change(&bench, &client, [&client.value, &client.device]).good();
    bench.keys.lock().accept_master([2; 7]);

    // Too late.
    let (answer, client) = seed(&bench, DhGroup::X25519);
    answer.good();
    propose(&bench, &client);
    bench.fake.ms.store(START_MS + EXCHANGE_MS + 1, Ordering::SeqCst);
    assert_eq!(change(&bench, &client, [&client.value, &client.device]).sense(), (5, 0x2C00));
    // The nexus was lost, or the logical unit was reset.
    for end in [|bench: &Bench| bench.unit.nexus_lost(NEXUS), |bench: &Bench| bench.unit.reset()] {
        let (answer, client) = seed(&bench, DhGroup::X25519);
        answer.good();
        propose(&bench, &client);
        end(&bench);
        bench.login(NEXUS);
        let answer = change(&bench, &client, [&client.value, &client.device]);
        assert_eq!(answer.sense(), (5, 0x2C00));
    }
}

#[test]
fn bad_groups_lengths_and_values_are_refused() {
    let bench = bench();
    let send = |group: u8, value: &[u8]| {
        bench.run(master(DhStep::SeedExchange, group, 1, value.len()), ListPair::default(), value)
    };
    let answer = send(99, &[1; 32]);
    assert_eq!((answer.sense(), answer.sense.clone().unwrap().field.unwrap().byte), ((5, 0x2400), 24));
    assert_eq!(send(DhGroup::X25519.code(), &[1; 31]).sense(), (5, 0x1A00));
    assert_eq!(send(DhGroup::Modp2048.code(), &[]).sense(), (5, 0x1A00));
    assert_eq!(send(DhGroup::X25519.code(), &[0; 32]).sense(), (5, 0x2600));
    for weak in [0, 1] {
        let mut value = [0; 256];
        value[255] = weak;
        assert_eq!(send(DhGroup::Modp2048.code(), &value).sense(), (5, 0x2600));
    }
    assert_eq!(send(DhGroup::Modp2048.code(), &[0xFF; 256]).sense(), (5, 0x2600));
    // None of them starts an exchange.
    seed(&bench, DhGroup::X25519).0.good();
}

#[test]
fn device_value_truncates_to_allocation() {
    let bench = bench();
    let secret = DhSecret::draw(DhGroup::X25519, &mut |into: &mut [u8]| bench.fill_random(into));
    let command = Command::SetMasterKey(SetMasterKey {
        step: DhStep::SeedExchange,
        group: DhGroup::X25519.code(),
        identifier: [1; 7],
        parameter_length: 32,
        allocation: 8,
    });
    let data = bench.run(command, ListPair::default(), &secret.public()).good().data;
    assert_eq!((data.len(), &data[..4]), (8, &[0, 0, 0, 32][..]), "the length is that of the whole value");
}

/// Waiting commands whose key is replaced do not run afterwards.
#[test]
fn replaced_key_stops_waiting_commands() {
    let bench = bench();
    let write = Command::Write(Extent { object: user(OID), start: 0, length: 4 });
    let capability = bench.capability(&write, SecurityMethod::CmdRsp);
    let old: Vec<_> =
        (0..400).map(|_| bench.ready(write, &ListPair::default(), b"old!", &capability)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in old.chunks(100) {
            let (bench, done) = (&bench, &done);
            scope.spawn(move || {
                for ready in part {
                    // Read before sending: once it is set, no old credential may be admitted.
                    let after = done.load(Ordering::SeqCst);
                    let status = bench.send(ready).status;
                    assert!(!(after && status == Status::Good), "a revoked credential wrote");
                }
            });
        }
        bench.run(set_key(PID, KeyToSet::Working(0), 9), ListPair::default(), &[]).good();
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn recreated_partition_has_no_keys() {
    let bench = bench();
    let write = Command::Write(Extent { object: user(OID), start: 0, length: 4 });
    let capability = bench.capability(&write, SecurityMethod::CmdRsp);
    let ready = bench.ready(write, &ListPair::default(), b"once", &capability);
    assert_eq!(bench.send(&ready).status, Status::Good);
    let remove = Command::RemovePartition(RemovePartition { partition: PID, with_contents: true });
    bench.run(remove, ListPair::default(), &[]).good();
    assert!(!enters(&bench, PID, 0), "no partition, no key");
    let factory = bench.keys.lock().clone();
    let create = Command::CreatePartition(CreatePartition { partition: PID });
    bench.run(create, ListPair::default(), &[]).good();
    let old = bench.ready(write, &ListPair::default(), b"once", &capability);
    for stale in [&ready, &old] {
        assert_eq!(bench.send(stale).sense[1..4], [5, 0x24, 0]);
    }
    assert!(!enters(&bench, PID, 0), "there are no factory keys");
    bench.renew_keys(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    assert!(enters(&bench, PID, 0));
    let renewed = std::mem::replace(&mut *bench.keys.lock(), factory);
    assert!(!enters(&bench, PID, 0));
    *bench.keys.lock() = renewed;
    // A clone under an old id has none either, and FORMAT OSD forgets no id.
    bench.run(Command::FormatOsd(FormatOsd { capacity: 0 }), ListPair::default(), &[]).good();
    for partition in [PID, OTHER_PID] {
        bench.run(Command::CreatePartition(CreatePartition { partition }), ListPair::default(), &[]).good();
        assert!(!enters(&bench, partition, 0));
    }
    bench
        .run(Command::CreatePartition(CreatePartition { partition: PID + 99 }), ListPair::default(), &[])
        .good();
    bench.keys.lock().add_partition(PID + 99).unwrap();
    let look = Command::GetAttributes(Target { object: ObjectId::of_partition(PID + 99) });
    bench.run(look, ListPair::default(), &[]).good();
}

#[test]
fn format_keeps_root_key_and_revocations() {
    let bench = bench();
    bench.run(set_key(0, KeyToSet::Working(0), 6), ListPair::default(), &[]).good();
    let factory = bench.keys.lock().clone();
    bench.keys.lock().set_working(0, 0, &[6; 20], [6; 7]).unwrap();
    let format = Command::FormatOsd(FormatOsd { capacity: 0 });
    bench.run(format, ListPair::default(), &[]).good();
    // A credential of the factory key of partition zero stays refused.
    let current = std::mem::replace(&mut *bench.keys.lock(), factory);
    let list = Command::CreatePartition(CreatePartition { partition: PID });
    assert_eq!(bench.run(list, ListPair::default(), &[]).sense(), (5, 0x2400));
    *bench.keys.lock() = current;
    bench.create_partition(PID);
}

#[test]
fn capkey_credentials_die_with_their_key_too() {
    let config = OsdConfig { insecure_capkey: true, ..OsdConfig::default() };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(64 << 20)));
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    let page = bench.raw(NEXUS, &[0x12, 1, 0xB1, 0, 64, 0], &[], 64);
    let token = SecurityToken(page.data_in[4..36].try_into().unwrap());
    let command = look(PID);
    let capability = bench.capability(&command, SecurityMethod::CapKey);
    let ready = bench.ready_with_token(command, &ListPair::get(&[(1, 0x82)]), &[], &capability, &token);
    assert_eq!(bench.send(&ready).status, Status::Good);
    bench.run(set_key(PID, KeyToSet::Working(0), 9), ListPair::default(), &[]).good();
    assert_eq!(bench.send(&ready).sense[1..4], [5, 0x24, 0]);
}

/// The pages of keys and policy need POL/SEC, and identifiers of keys cannot be set.
#[test]
fn key_identifiers_need_polsec_and_are_readonly() {
    let bench = bench();
    let object = ObjectId::of_partition(PID);
    let get = Command::GetAttributes(Target { object });
    let capability = bench.capability(&get, SecurityMethod::CmdRsp);
    let weaker =
        Capability { permissions: capability.permissions.without(Permissions::POL_SEC), ..capability };
    let answer = bench.run_with(get, ListPair::get(&[(0x3000_0005, 0x8000)]), &[], &weaker);
    assert_eq!(answer.sense(), (5, 0x2400));
    let set = Command::SetAttributes(Target { object });
    for number in [0x7FFF, 0x8000, 0x800F] {
        let answer = bench.run(set, ListPair::set(&[(0x3000_0005, number, &[1; 7])]), &[]);
        assert_eq!(answer.sense(), (5, 0x2600), "{number:#x}");
    }
    assert!(matches!(capability.descriptor, Descriptor::Partition { partition: PID, .. }));
    assert_eq!(AttributeId::new(0x3000_0005, 0x8000).page, 0x3000_0005);
}

/// Vendor attributes: the security manager freezes one audit value, which affects no other.
#[test]
fn frozen_audit_value_is_refused_until_cleared() {
    const PAGE: u32 = 0x9000_F005;
    let bench = bench();
    let command = look(PID);
    let capability = bench.capability(&command, SecurityMethod::AllData);
    let suspect = Capability { audit: *b"suspected of a crime", ..capability };
    let set = |number: u32, value: &[u8]| {
        let set = Command::SetAttributes(Target { object: ObjectId::ROOT });
        bench.run(set, ListPair::set(&[(PAGE, number, value)]), &[])
    };
    let ask = |capability: &Capability| bench.run_with(command, ListPair::get(&[(1, 0x82)]), &[], capability);
    ask(&suspect).good();
    set(7, &suspect.audit).good();
    assert_eq!(ask(&suspect).sense(), (5, 0x2404));
    ask(&capability).good();
    // Neither a format nor a client without POL/SEC clears it. Values have 20 bytes or none, and
    // there are at most 64.
    bench.run(Command::FormatOsd(FormatOsd { capacity: 0 }), ListPair::default(), &[]).good();
    bench.create_partition(PID);
    bench.run(Command::Create(Create { object: user(OID), count: 1 }), ListPair::default(), &[]).good();
    assert_eq!(ask(&suspect).sense(), (5, 0x2404));
    assert_eq!(set(8, &[1; 19]).sense(), (5, 0x2600));
    assert_eq!(set(65, &[1; 20]).sense(), (5, 0x2600));
    let thaw = Command::SetAttributes(Target { object: ObjectId::ROOT });
    let root = bench.capability(&thaw, SecurityMethod::AllData);
    let weaker = Capability { permissions: root.permissions.without(Permissions::POL_SEC), ..root };
    let answer = bench.run_with(thaw, ListPair::set(&[(PAGE, 7, b"")]), &[], &weaker);
    assert_eq!(answer.sense(), (5, 0x2400));
    set(7, b"").good();
    ask(&suspect).good();
}
