//! Moves of objects to other devices while their files are read and written.

use std::time::Duration;

use crate::world::mounts::{
    Mount, forget_clients, forgotten_writer, objects, place_of, power_fails, reap, seen, tell_tags,
};
use crate::world::{World, content};
use sealstone_client::{DeviceId, GetOptions, Metadata, OsdError};
use sealstone_initiator::Operation;
use sealstone_mds::{MoveOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{Access, FilePath, InodeId, NodeChange, ObjectRef, Request, RevocationTarget};
use tokio::time::sleep;

const UNIT: usize = 64 << 10;
/// Bytes of a file on three devices.
const STRIPED: usize = 11 * UNIT + 77;

fn begin(world: &World, inode: InodeId, device: DeviceId) -> MoveStart {
    world.mds.begin_move(inode, device, world.clock.now()).unwrap()
}

async fn copy(world: &World, order: &MoveOrder) -> u64 {
    assert!(world.mds.is_fenced(order).unwrap());
    let (from, to) = (place_of(world, order.from.device), place_of(world, order.to.device));
    let reader = world.own(from, ServerPurpose::CopyFrom(order.from.object));
    let object = order.to.object;
    let writer = world.own(to, ServerPurpose::CopyTo(object));
    let (source, target) = (world.osd(from), world.osd(to));
    let mut done = 0;
    loop {
        // In pieces that a device handles without a thread of its own, since paused time would
        // advance meanwhile.
        let (object_read, offset) = (order.from.object, done);
        let read = Operation::Read { object: object_read, offset, length: UNIT, buffer: Vec::new() };
        let data = match source.execute(&reader, read).await {
            Ok(completion) => completion.data,
            Err(OsdError::ReadPastEnd { data }) => data,
            Err(OsdError::NotFound) => return 0,
            Err(error) => panic!("not read: {error}"),
        };
        let length = data.len();
        let data: bytes::Bytes = data.into();
        let write = match (done, length) {
            (0, 0) => Operation::Create { object },
            (0, _) => Operation::CreateAndWrite { object, offset, data },
            (_, 0) => break,
            _ => Operation::Write { object, offset, data },
        };
        target.execute(&writer, write).await.unwrap();
        done += length as u64;
        if length < UNIT {
            break;
        }
    }
    target.execute(&writer, Operation::Flush { object }).await.unwrap();
    done
}

/// Moves one object off its device and removes the old one; returns the new location.
async fn move_off(world: &World, mount: &Mount, path: &str, index: usize) -> ObjectRef {
    tell_tags(world).await;
    let (inode, before) = objects(&mount.client, path).await;
    let MoveStart::Started(order) = begin(world, inode, before[index].device) else { panic!("it is in use") };
    assert_eq!(order.from, before[index]);
    tell_tags(world).await;
    let bytes = copy(world, &order).await;
    assert!(world.mds.finish_move(&order, bytes, world.clock.now()).unwrap());
    reap(world).await;
    assert_eq!(objects(&mount.client, path).await.1[index], order.to);
    order.to
}

#[tokio::test(start_paused = true)]
async fn reader_in_place_follows_moves() {
    let world = World::new(5).await;
    let bytes = content(STRIPED);
    let mount = Mount::of(&world).await;
    mount.put("/f", &bytes).await;
    let file = mount.open("f", Access::Read).await;
    assert!(file.read(0, bytes.len()).await.unwrap() == bytes);
    let width = objects(&mount.client, "/f").await.1.len();
    assert_eq!(width, 3);
    for round in 0..6 {
        move_off(&world, &mount, "/f", round % width).await;
        let at = round * UNIT + 5;
        assert!(file.read(at as u64, 3 * UNIT).await.unwrap() == bytes[at..at + 3 * UNIT], "round {round}");
        assert!(file.read(0, bytes.len()).await.unwrap() == bytes, "round {round}");
    }
    assert!(seen(&world, "f").await == bytes);
}

#[tokio::test(start_paused = true)]
async fn open_and_leased_reads_follow_migration() {
    let bytes = content(STRIPED);
    for leased in [true, false] {
        let world = World::new(5).await;
        Mount::of(&world).await.put("/f", &bytes).await;
        let mount = if leased { Mount::leased(&world).await } else { Mount::of(&world).await };
        let other = if leased { Mount::leased(&world).await } else { Mount::of(&world).await };
        let file = mount.open("f", Access::Read).await;
        tell_tags(&world).await;
        let (inode, before) = objects(&mount.client, "/f").await;
        let MoveStart::Started(order) = begin(&world, inode, before[0].device) else {
            panic!("it is in use")
        };
        tell_tags(&world).await;
        let copied = copy(&world, &order).await;
        // Credentials with the current tag may read the old object as long as it exists.
        assert!(file.read(0, bytes.len()).await.unwrap() == bytes);
        assert!(world.mds.finish_move(&order, copied, world.clock.now()).unwrap());
        let writer = other.open("f", Access::Update).await;
        writer.write(0, b"newer").await.unwrap();
        writer.close().await.unwrap();
        let reads = if leased { &file } else { &mount.open("f", Access::Read).await };
        assert_eq!(reads.read(0, 5).await.unwrap(), &b"newer"[..], "leased {leased}");
        assert!(reads.read(5, bytes.len()).await.unwrap() == bytes[5..]);
    }
}

#[tokio::test(start_paused = true)]
async fn moved_object_is_never_a_hole() {
    let world = World::new(3).await;
    let mount = Mount::of(&world).await;
    let bytes = content(UNIT);
    // Written in place: missing bytes read as zeros.
    let written = mount.create("f").await;
    written.write(0, &bytes).await.unwrap();
    written.close().await.unwrap();
    sleep(Duration::from_secs(10)).await;
    let file = mount.open("f", Access::Read).await;
    assert!(file.read(0, UNIT).await.unwrap() == bytes);
    move_off(&world, &mount, "/f", 0).await;
    *mount.client.metadata().refuse.lock().unwrap() = Some("RenewGrants");
    // An error is acceptable, zeros are not.
    if let Ok(read) = file.read(0, UNIT).await {
        assert!(read == bytes);
    }
    assert!(file.read(0, UNIT).await.unwrap() == bytes);
}

#[tokio::test(start_paused = true)]
async fn running_get_follows_moved_object() {
    let world = World::new(5).await;
    let bytes = content(STRIPED);
    let mount = Mount::of(&world).await;
    mount.put("/f", &bytes).await;
    mount.gate.close("READ");
    let client = mount.client.clone();
    let got = tokio::spawn(async move {
        let mut back = Vec::new();
        client.get("/f", &mut back, GetOptions::default()).await.map(|_| back)
    });
    mount.gate.reached().await;
    for index in 0..objects(&mount.client, "/f").await.1.len() {
        move_off(&world, &mount, "/f", index).await;
    }
    mount.gate.open();
    assert!(got.await.unwrap().unwrap() == bytes);
}

#[tokio::test(start_paused = true)]
async fn file_open_for_writing_is_not_moved() {
    let world = World::new(2).await;
    let bytes = content(3 * UNIT);
    let mount = Mount::of(&world).await;
    let file = mount.create("f").await;
    file.write(0, &bytes).await.unwrap();
    file.sync().await.unwrap();
    let (inode, at) = objects(&mount.client, "/f").await;
    file.write(0, &bytes[..10]).await.unwrap();
    file.close().await.unwrap();
    assert_eq!(begin(&world, inode, at[0].device), MoveStart::InUse, "what was closed is not proven yet");
    let what = RevocationTarget::Object(FilePath::new("/f").unwrap());
    mount.client.metadata().call(Request::Revoke { what }).await.unwrap();
    tell_tags(&world).await;
    assert_eq!(
        begin(&world, inode, at[0].device),
        MoveStart::InUse,
        "nor by who is asked for his right anew"
    );
    sleep(Duration::from_secs(10)).await;
    move_off(&world, &mount, "/f", 0).await;
    assert!(seen(&world, "f").await == bytes);
}

#[tokio::test(start_paused = true)]
async fn bytes_lost_before_copy_are_resent() {
    for power in [true, false] {
        let world = World::new(2).await;
        let bytes = content(UNIT);
        let mount = Mount::of(&world).await;
        let (file, at) = forgotten_writer(&world, &mount, &bytes).await;
        if power {
            power_fails(&world, at.device);
        }
        move_off(&world, &mount, "/f", 0).await;
        if power {
            assert!(seen(&world, "f").await == vec![7; UNIT], "nobody was promised that they are durable");
        }
        file.sync().await.unwrap();
        let now = objects(&mount.client, "/f").await.1[0];
        power_fails(&world, now.device);
        assert!(seen(&world, "f").await == bytes, "that was a promise");
    }
}

#[tokio::test(start_paused = true)]
async fn write_during_object_copy_wins() {
    let world = World::new(2).await;
    let bytes = content(UNIT);
    let mount = Mount::of(&world).await;
    let (file, at) = forgotten_writer(&world, &mount, &bytes).await;
    tell_tags(&world).await;
    let (inode, _) = objects(&mount.client, "/f").await;
    let MoveStart::Started(order) = begin(&world, inode, at.device) else { panic!("it is in use") };
    tell_tags(&world).await;
    let copied = copy(&world, &order).await;
    // The old credential is refused; after a renewal the write goes to the new location.
    file.write(0, b"newer").await.unwrap();
    file.flush().await.unwrap();
    assert!(!world.mds.finish_move(&order, copied, world.clock.now()).unwrap());
    reap(&world).await;
    file.sync().await.unwrap();
    assert_eq!(objects(&mount.client, "/f").await.1[0], at);
    power_fails(&world, at.device);
    assert!(seen(&world, "f").await == [b"newer", &bytes[5..]].concat());
}

#[tokio::test(start_paused = true)]
async fn writer_keeps_remaining_bytes_after_truncate_and_move() {
    let world = World::new(2).await;
    let bytes = content(UNIT);
    let mount = Mount::of(&world).await;
    let (file, at) = forgotten_writer(&world, &mount, &bytes).await;
    let other = Mount::of(&world).await;
    let change = NodeChange { size: Some(1000), ..NodeChange::default() };
    let cut = other.open("f", Access::Update).await;
    other.nodes.set(cut.node(), change, false).await.unwrap();
    drop(cut);
    world.clear().await;
    // The other client has closed it, and this one was not asked yet whether it is still open.
    sleep(Duration::from_secs(5)).await;
    // The server drops the writer's state again.
    forget_clients(&world);
    power_fails(&world, at.device);
    move_off(&world, &mount, "/f", 0).await;
    file.sync().await.unwrap();
    let now = objects(&mount.client, "/f").await.1[0];
    power_fails(&world, now.device);
    assert!(seen(&world, "f").await == bytes[..1000], "what was told and not cut was promised");
}

#[tokio::test(start_paused = true)]
async fn other_content_is_not_taken_for_moved_object() {
    let world = World::new(2).await;
    let (old, new) = (content(UNIT), vec![9; UNIT]);
    let mount = Mount::of(&world).await;
    let other = Mount::of(&world).await;
    mount.put("/f", &old).await;
    let file = mount.open("f", Access::Read).await;
    assert!(file.read(0, 10).await.unwrap() == old[..10]);
    let writer = other.open("f", Access::Update).await;
    let change = NodeChange { size: Some(0), ..NodeChange::default() };
    other.nodes.set(writer.node(), change, false).await.unwrap();
    writer.write(0, &new).await.unwrap();
    writer.sync().await.unwrap();
    drop(writer);
    sleep(Duration::from_secs(20)).await;
    move_off(&world, &mount, "/f", 0).await;
    reap(&world).await;
    assert!(
        file.read(0, UNIT).await.unwrap() == new,
        "the old object is gone, the new one is another file's bytes"
    );
}
