//! Acknowledged files survive SIGKILL of any process during a put, and acknowledged OSD commands
//! that of the device.

pub(crate) mod raw_osd;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use raw_osd::RawOsd;
use sealstone_initiator::{OsdClient, OsdError};
use sealstone_osd::{AttributeId, ObjectId};
use sealstone_tests::{Signal, System, run_with_input};

/// Bytes of the file that is being written when a process is killed.
const LARGE: usize = 24 << 20;

fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Mds,
    Osd(usize),
}

/// Kills `victim` when half of a large file is written, restarts it, and checks the guarantees.
fn drill(victim: Victim) {
    let mut system = System::start(2);
    let before: Vec<(String, Vec<u8>)> = (0..4)
        .map(|index| (format!("/before-{index}"), content(index, 200_000 * usize::from(index + 1))))
        .collect();
    for (path, bytes) in &before {
        run_with_input(system.command(&["put", "-", path]), bytes).ok();
    }

    let large = content(77, LARGE);
    let mut put = system
        .command(&["put", "-", "/large"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("put starts");
    let mut stdin = put.stdin.take().expect("piped");
    stdin.write_all(&large[..LARGE / 2]).expect("the first half goes in");
    std::thread::sleep(Duration::from_millis(150));
    match victim {
        Victim::Mds => drop(system.end_mds(Signal::Kill)),
        Victim::Osd(index) => drop(system.end_osd(index, Signal::Kill)),
    }
    let rest = large[LARGE / 2..].to_vec();
    let feeder = std::thread::spawn(move || {
        // If put gave up, its pipe is closed; that is checked below.
        let _ = stdin.write_all(&rest);
    });
    std::thread::sleep(Duration::from_millis(300));
    match victim {
        Victim::Mds => system.start_mds(),
        Victim::Osd(index) => system.start_osd(index),
    }
    let output = put.wait_with_output().expect("put ends by itself");
    feeder.join().expect("the feeder does not panic");

    let after = system.run(&["cat", "/large"]);
    // A restarted device gets unflushed data again: the put must succeed.
    if output.status.success() || matches!(victim, Victim::Osd(_)) {
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{victim:?}: {printed}");
        assert!(after.ok().stdout == large, "{victim:?}: put said it was stored");
    } else {
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(printed.trim_end().lines().count(), 1, "{victim:?}: one line of error: {printed}");
        // The put reported failure: then there is no file, or the whole one if only the answer was
        // lost.
        assert!(after.code == 4 || after.stdout == large, "{victim:?}: neither nothing nor everything");
    }
    for (path, bytes) in &before {
        assert!(system.run(&["cat", path]).ok().stdout == *bytes, "{victim:?}: {path} was acknowledged");
    }
    run_with_input(system.command(&["put", "-", "/after"]), b"life goes on").ok();
    assert_eq!(system.run(&["cat", "/after"]).ok().stdout, b"life goes on");
}

#[test]
fn a_killed_mds_loses_nothing_acknowledged() {
    drill(Victim::Mds);
}

#[test]
fn a_killed_first_device_loses_nothing_acknowledged() {
    drill(Victim::Osd(0));
}

#[test]
fn a_killed_second_device_loses_nothing_acknowledged() {
    drill(Victim::Osd(1));
}

/// A clean end and a restart keep everything.
#[test]
fn sigterm_ends_cleanly_and_nothing_is_lost() {
    let mut system = System::start(1);
    run_with_input(system.command(&["put", "-", "/kept"]), b"kept").ok();
    assert_eq!(system.end_osd(0, Signal::Terminate), 0);
    assert_eq!(system.end_mds(Signal::Terminate), 0);
    system.start_mds();
    system.start_osd(0);
    assert_eq!(system.run(&["cat", "/kept"]).ok().stdout, b"kept");
}

/// Partition of the objects.
const PARTITION: u64 = 0x1_0000;
/// Number of the first object.
const FIRST: u64 = 0x1_0000;
/// An attribute of an application page.
const TAG: AttributeId = AttributeId { page: 0x1_0000, number: 1 };
/// Objects created in each run.
const OBJECTS: u64 = 12;
/// Runs of a device, each of which ends by SIGKILL.
const LIVES: u64 = 3;

/// Bytes and attribute of each object.
type Objects = BTreeMap<ObjectId, (Vec<u8>, Option<Vec<u8>>)>;

/// Creates and changes the objects of one run, without flush or FUA.
async fn change(osd: &RawOsd, client: &OsdClient, life: u64, objects: &mut Objects) -> Result<(), OsdError> {
    for number in 0..OBJECTS {
        let id = ObjectId::new(PARTITION, FIRST + life * OBJECTS + number);
        let bearer = osd.object(id);
        let mut bytes = content(number as u8, [0, 100, 4096, 70_000][number as usize % 4]);
        match bytes.is_empty() {
            true => drop(client.create(&bearer, id).await?),
            false => drop(client.create_and_write(&bearer, id, 0, Bytes::from(bytes.clone())).await?),
        }
        let piece = content(0x55, 4096);
        client.write(&bearer, id, 8192, Bytes::from(piece.clone())).await?;
        bytes.resize(bytes.len().max(8192 + piece.len()), 0);
        bytes[8192..8192 + piece.len()].copy_from_slice(&piece);
        let at = client.append(&bearer, id, Bytes::from_static(b"appended")).await?;
        assert_eq!(at, bytes.len() as u64, "{id}");
        bytes.extend_from_slice(b"appended");
        client.clear(&bearer, id, 10, 4096).await?;
        bytes[10..10 + 4096].fill(0);
        let tag = content(0xAA, 10 + 300 * number as usize);
        client.set_attributes(&bearer, id, vec![(TAG, Bytes::from(tag.clone()))]).await?;
        objects.insert(id, (bytes, Some(tag)));
    }
    // Objects of earlier runs are changed, and one is removed.
    let earlier: Vec<ObjectId> = objects.keys().copied().collect();
    for id in earlier.iter().step_by(3) {
        let (bytes, _) = objects.get_mut(id).expect("one of them");
        client.write(&osd.object(*id), *id, 1, Bytes::from_static(b"again")).await?;
        bytes[1..6].copy_from_slice(b"again");
    }
    client.remove(&osd.object(earlier[1]), earlier[1]).await?;
    objects.remove(&earlier[1]);
    Ok(())
}

async fn compare(osd: &RawOsd, client: &OsdClient, objects: &Objects) {
    for (id, (bytes, tag)) in objects {
        let bearer = osd.object(*id);
        let read = client.read(&bearer, *id, 0, bytes.len()).await;
        let read = read.unwrap_or_else(|error| panic!("{id}: {error:?}"));
        assert!(read == *bytes, "{id} has other bytes");
        let past = client.read(&bearer, *id, 0, bytes.len() + 1).await;
        assert!(matches!(past, Err(OsdError::ReadPastEnd { .. })), "{id} is longer");
        let found = client.attributes(&bearer, *id, vec![TAG]).await.expect("attributes");
        assert_eq!(found[0].1.as_deref(), tag.as_deref(), "{id}");
    }
}

/// Kills a device after each run, and compares everything with the acknowledged state.
fn kill_raw_osd(init_flags: &[&str], serve_flags: &[&str]) {
    let mut osd = RawOsd::init(init_flags, serve_flags, PARTITION);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut objects = Objects::new();
    for life in 0..=LIVES {
        let client = osd.start();
        runtime.block_on(async {
            if life == 0 {
                let partition = client.create_partition(&osd.new_partition(PARTITION), PARTITION).await;
                partition.expect("CREATE PARTITION");
            }
            compare(&osd, &client, &objects).await;
            if life < LIVES {
                change(&osd, &client, life, &mut objects).await.expect("a command");
            }
        });
        let listed = runtime.block_on(client.list(&osd.partition(PARTITION), PARTITION, 0, 1000));
        let listed: Vec<ObjectId> =
            listed.expect("LIST").ids.iter().map(|id| ObjectId::new(PARTITION, *id)).collect();
        assert!(listed.iter().eq(objects.keys()), "life {life}: {listed:?}");
        osd.kill();
    }
}

/// Commit interval longer than a run.
const NO_COMMIT: [&str; 2] = ["--group-s-max", "60"];

#[test]
fn osd_commands_without_flush_survive_kill() {
    kill_raw_osd(&["--capacity", "64M"], &NO_COMMIT);
}

#[test]
fn osd_commands_on_raw_device_survive_kill() {
    kill_raw_osd(&["--device", "BACKING"], &NO_COMMIT);
}

#[test]
fn osd_commands_of_write_through_device_survive_kill() {
    kill_raw_osd(&["--capacity", "64M"], &["--write-through"]);
}
