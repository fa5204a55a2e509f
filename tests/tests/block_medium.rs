//! Attacks on block units of the real device at its medium, and full ones: rows L7, L10 and L12 of
//! docs/design/block-lazy.md.
//!
//! Contract of every test: no wrong bytes. A block is what was written last, or an error that the
//! device counts and records.

use std::fs;

use sealstone_osd::ObjectId;
use sealstone_store::{DiskStore, IoMode, ObjectStore, StoreOptions, open_store_medium};
use sealstone_tests::Signal;

use crate::block_attacks::{AttackedUnit, BLOCK, EIO, WRITE, read, stamp, write};
use crate::block_protection::{NEW, OLD, block};

const ENOSPC: u32 = 28;
/// Partitions of blocks, and of keys and versions.
const BLOCKS: u64 = 0xB10C;
const KEYS: u64 = 0xB10D;

impl AttackedUnit {
    /// Changes the store of the device while it is stopped, as the owner of its medium can.
    fn with_store(&mut self, signal: Signal, change: impl FnOnce(&DiskStore)) {
        self.bench.device.end(signal);
        let folder = self.bench.device.data().join("store");
        let medium = open_store_medium(&folder, IoMode::Auto).expect("the store");
        let options = StoreOptions { undigested: [BLOCKS].into(), ..StoreOptions::default() };
        let store = DiskStore::open(medium, options).expect("open");
        change(&store);
        store.flush().expect("flushed");
        drop(store);
        self.bench.start(&[]);
    }
}

/// Returns the objects of a partition with their lengths.
fn objects(store: &DiskStore, partition: u64) -> Vec<(ObjectId, u64)> {
    let listed = store.list(ObjectId::new(partition, 1), 1000).expect("listed");
    let own = listed.into_iter().map(|(id, _)| id).take_while(|id| id.partition == partition);
    own.map(|id| (id, store.stat(id).expect("there").length)).filter(|(_, length)| *length > 0).collect()
}

fn bytes_of(store: &DiskStore, id: ObjectId, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = store.read(id, offset, &mut bytes).expect("read");
    bytes.truncate(read);
    bytes
}

fn flip(store: &DiskStore, id: ObjectId, offset: u64) {
    let byte = bytes_of(store, id, offset, 1)[0] ^ 0x20;
    store.write(id, offset, &[byte]).expect("written");
}

/// L7: a full log makes writes eager, or the device busy in the paper's profile. No write is lost.
#[test]
fn full_version_log_loses_nothing() {
    const LENGTH: u32 = 16 << 20;
    for is_paper in [false, true] {
        let unit = AttackedUnit::new("paper:S1-2", is_paper);
        let (mut attach, mut client) = unit.attach();
        let figure = if is_paper { "busy" } else { "eager" };
        let image = |round: u8| -> Vec<u8> {
            (0..LENGTH / BLOCK as u32).flat_map(|at| stamp(at.into(), round)).collect()
        };
        let mut last = 0;
        for round in 0..20_u8 {
            // Both at once; each takes 19.3 MiB of the log of 20 MiB.
            for half in 0..2 {
                client.send(WRITE, half * u64::from(LENGTH), LENGTH, &image(round));
            }
            assert_eq!((client.error(), client.error()), (0, 0));
            last = round;
            if unit.count(figure) > 0 {
                break;
            }
        }
        let status = unit.status();
        assert!(unit.count(figure) > 0, "{status}");
        assert!(status["log_bytes"].as_u64() <= status["log_bytes_max"].as_u64(), "{status}");
        assert_eq!(client.flush(), 0);
        for half in 0..2 {
            assert!(client.read(half * u64::from(LENGTH), LENGTH) == image(last));
        }
        assert_eq!(unit.count("rejected"), 0);
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L10: with a wrong secret of the keys, the unit is unavailable and nothing is deleted.
#[test]
fn wrong_page_secret_deletes_nothing() {
    for level in ["paper:S2-5", "lazy"] {
        let mut unit = AttackedUnit::new(level, false);
        let (mut attach, mut client) = unit.attach();
        write(&mut client, 0, &block(OLD));
        assert_eq!(client.flush(), 0);
        write(&mut client, 1, &block(NEW));
        let _ = attach.end(Signal::Kill);
        let file = unit.bench.device.data().join("block-keys.secret");
        let secret = fs::read(&file).expect("the secret");
        unit.bench.device.end(Signal::Kill);
        fs::write(&file, [0x5A; 32]).expect("written");
        unit.bench.start(&[]);
        fs::remove_file(unit.bench.socket()).ok();
        assert!(unit.try_attach().is_none(), "{level}");
        unit.wait_for_audit(&["INTEGRITY", "\"unit\":\"disk\"", "keys_unavailable"]);
        let status = unit.status();
        assert!(status["available"] == false, "{level}: {status}");
        unit.bench.device.end(Signal::Kill);
        fs::write(&file, secret).expect("restored");
        unit.bench.start(&[]);
        fs::remove_file(unit.bench.socket()).ok();
        let (mut attach, mut client) = unit.attach();
        assert_eq!((client.read(0, 4096), client.read(4096, 4096)), (block(OLD), block(NEW)), "{level}");
        assert_eq!(client.flush(), 0);
        assert_eq!(attach.end(Signal::Terminate), 0);
    }
}

/// L10: a bit changed anywhere in blocks, keys or versions, with right checksums of the store.
#[test]
fn changed_bits_of_the_medium_are_errors() {
    const USED: u64 = 16;
    for (partition, level) in [(BLOCKS, "paper:S1-2"), (KEYS, "paper:S1-2"), (KEYS, "paper:S2-5")] {
        let mut unit = AttackedUnit::new(level, false);
        let (mut attach, mut client) = unit.attach();
        (0..USED).for_each(|at| write(&mut client, at, &stamp(at, 1)));
        assert_eq!(client.flush(), 0);
        (0..USED).for_each(|at| write(&mut client, at, &stamp(at, 2)));
        // Otherwise some are verified by then, and others are in the log.
        if partition == BLOCKS {
            assert_eq!(client.flush(), 0);
        }
        let _ = attach.end(Signal::Kill);
        unit.with_store(Signal::Kill, |store| {
            for (id, length) in objects(store, partition) {
                let used = bytes_of(store, id, 0, usize::try_from(length).expect("small").min(4 << 20));
                let last = used.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64;
                (1..4).for_each(|part| flip(store, id, last * part / 4));
            }
        });
        fs::remove_file(unit.bench.socket()).ok();
        let Some((mut attach, mut client)) = unit.try_attach() else {
            // A record of the log does not show its block any more.
            assert_eq!(unit.status()["available"], false, "{level}, {partition:#x}");
            unit.wait_for_audit(&["INTEGRITY", "keys_unavailable"]);
            continue;
        };
        let mut errors = 0;
        for at in 0..USED {
            match read(&mut client, at) {
                Some(found) => assert!(found == stamp(at, 2), "{level}, {partition:#x}: block {at} is wrong"),
                None => errors += 1,
            }
        }
        assert!(errors > 0, "{level}, {partition:#x}");
        unit.wait_for_audit(&["INTEGRITY", "\"unit\":\"disk\""]);
        let status = unit.status();
        let shown =
            ["damaged", "unverifiable", "rejected"].map(|field| status[field].as_u64().expect("a number"));
        assert!(shown.iter().sum::<u64>() > 0, "{status}");
        // Blocks that are written again are sound, unless their keys cannot be stored.
        let _ = attach.end(Signal::Kill);
    }
}

/// L12: blocks exchanged with their keys, with right checksums of the store, are errors; other
/// blocks are not concerned. In the paper's profile they are read at the wrong place: expected, and
/// broken.
#[test]
fn exchanged_blocks_with_keys_are_detected() {
    /// Blocks of 512 bytes whose keys are in one page, and in one block of the file system.
    const SLOTS: u64 = 63;
    for is_paper in [false, true] {
        let mut unit = AttackedUnit::new("paper:S1-2", is_paper);
        let (mut attach, mut client) = unit.attach();
        let slots = if is_paper { SLOTS + 1 } else { SLOTS };
        let place = |page: u64| page * slots * 512;
        let contents = [1, 2, 3].map(|page| stamp(page, 1)[..512].repeat(slots as usize));
        for (page, content) in (0..).zip(&contents) {
            client.write(place(page), content);
        }
        assert_eq!(client.flush(), 0);
        if is_paper {
            // The paper's profile commits what a reader found to be authentic.
            assert_eq!(client.read(0, 3 * (slots * 512) as u32), contents.concat());
        }
        assert_eq!(client.flush(), 0);
        unit.wait_for("unverified", 0);
        assert_eq!(attach.end(Signal::Terminate), 0);
        unit.with_store(Signal::Terminate, |store| {
            let [(data, _)] = objects(store, BLOCKS)[..] else { panic!("one unit") };
            let (keys, _) = objects(store, KEYS)[0];
            let swap = |id: ObjectId, length: u64, at: [u64; 2]| {
                let [one, two] = at.map(|at| bytes_of(store, id, at, length as usize));
                store.write(id, at[0], &two).expect("written");
                store.write(id, at[1], &one).expect("written");
            };
            swap(data, slots * 512, [place(0), place(1)]);
            swap(keys, 4096, [0, 4096]);
        });
        let (mut attach, mut client) = unit.attach();
        if is_paper {
            assert_eq!(client.read(0, 512), contents[1][..512], "expected, and broken");
        } else {
            assert_eq!(client.request(0, place(0), 512, &[]), EIO);
            assert_eq!(client.request(0, place(1), 512, &[]), EIO);
            unit.wait_for_audit(&["INTEGRITY", "damaged"]);
            assert!(unit.count("damaged") >= 2);
        }
        assert_eq!(client.read(place(2), (slots * 512) as u32), contents[2]);
        let _ = attach.end(Signal::Terminate);
    }
}

/// L12: single blocks exchanged without their keys, or set back to an older content.
#[test]
fn exchanged_and_older_data_are_detected() {
    let mut unit = AttackedUnit::new("paper:S1-2", false);
    let (mut attach, mut client) = unit.attach();
    (0..3).for_each(|at| write(&mut client, at, &stamp(at, 1)));
    assert_eq!(client.flush(), 0);
    let mut older = Vec::new();
    unit.with_store(Signal::Terminate, |store| {
        older = bytes_of(store, objects(store, BLOCKS)[0].0, 0, BLOCK);
    });
    write(&mut client, 0, &stamp(0, 2));
    assert_eq!(client.flush(), 0);
    unit.with_store(Signal::Terminate, |store| {
        let (id, _) = objects(store, BLOCKS)[0];
        store.write(id, 0, &older).expect("written");
        let moved = bytes_of(store, id, BLOCK as u64, BLOCK);
        store.write(id, 2 * BLOCK as u64, &moved).expect("written");
    });
    assert_eq!(read(&mut client, 0), None, "older");
    assert_eq!(read(&mut client, 1), Some(stamp(1, 1)));
    assert_eq!(read(&mut client, 2), None, "moved");
    unit.wait_for_audit(&["INTEGRITY", "damaged"]);
    assert!(unit.count("unverifiable") >= 2, "{}", unit.status());
    // A new write repairs a block.
    write(&mut client, 0, &stamp(0, 3));
    assert_eq!(client.flush(), 0);
    assert_eq!(read(&mut client, 0), Some(stamp(0, 3)));
    assert_eq!(attach.end(Signal::Terminate), 0);
}

/// A device without space refuses writes of protected blocks, and keeps all that it acknowledged.
#[test]
fn full_device_keeps_acknowledged_blocks() {
    let mut unit = AttackedUnit::new("paper:S2-5", false);
    unit.bench.device.block(&["create", "filler", "--size", "400M"]).ok();
    let filler = unit.bench.device.url(2);
    let (mut attach, mut client) = unit.attach();
    (0..64).for_each(|at| write(&mut client, at, &stamp(at, 1)));
    assert_eq!(client.flush(), 0);
    // The account of the client sees LUN 1 alone; the observer fills the other unit.
    unit.bench.fill(&filler);
    let mut version = [1_u8; 128];
    let mut is_full = false;
    for at in 0..128_u64 {
        match client.request(WRITE, at * BLOCK as u64, BLOCK as u32, &stamp(at, 2)) {
            0 => version[at as usize] = 2,
            ENOSPC | EIO => is_full = true,
            error => panic!("write of block {at}: {error}"),
        }
    }
    let flushed = client.flush();
    for at in 0..128_u64 {
        let expected = match version[at as usize] {
            1 if at >= 64 => vec![0; BLOCK],
            version => stamp(at, version),
        };
        // Without a flush that succeeded, the older version of a block may be there after a loss,
        // never before.
        assert_eq!(read(&mut client, at), Some(expected), "block {at}, full: {is_full}, flush: {flushed}");
    }
    assert!(is_full, "the device was filled");
    unit.bench.device.block(&["rm", "filler", "--force"]).ok();
    (0..128).for_each(|at| write(&mut client, at, &stamp(at, 3)));
    assert_eq!(client.flush(), 0);
    unit.restart(Signal::Kill);
    (0..128).for_each(|at| assert_eq!(read(&mut client, at), Some(stamp(at, 3))));
    assert_eq!(unit.count("rejected"), 0);
    assert_eq!(attach.end(Signal::Terminate), 0);
}
