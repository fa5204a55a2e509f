//! Migration of files to another layout while they are read and written.

use std::time::Duration;

use crate::world::mounts::{
    Mount, OpenFile, forget_clients, objects, place_of, power_fails, reap, seen, tell_tags,
};
use crate::world::{World, content};
use sealstone_client::{ClientError, GetOptions, Metadata, OsdError};
use sealstone_initiator::Operation;
use sealstone_mds::{MigrationOrder, MoveStart, ServerPurpose};
use sealstone_mds_protocol::{Access, ErrorCode, FilePath, Method, NodeChange, Request, RevocationTarget};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

const UNIT: usize = 64 << 10;
/// Size of a file that has outgrown one object.
const GROWN: usize = (5 << 20) + 77;

/// Steps of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Noted,
    Fenced,
    Copied,
    Changed,
    Removed,
}

const STEPS: [Step; 5] = [Step::Noted, Step::Fenced, Step::Copied, Step::Changed, Step::Removed];

/// A file being migrated.
struct Way<'a> {
    world: &'a World,
    order: MigrationOrder,
}

impl<'a> Way<'a> {
    async fn begin(world: &'a World, mount: &Mount) -> Self {
        tell_tags(world).await;
        let (inode, _) = objects(&mount.client, "/f").await;
        assert_eq!(world.mds.next_outgrown(None).unwrap(), [inode], "its growth left a mark");
        match world.mds.begin_migration(inode, world.clock.now()).unwrap() {
            MoveStart::Started(order) => Self { world, order },
            other => panic!("{other:?}"),
        }
    }

    /// Executes the next step; returns false if the migration was aborted.
    async fn reach(&self, step: Step) -> bool {
        match step {
            Step::Noted => {}
            Step::Fenced => tell_tags(self.world).await,
            Step::Copied => self.copy().await,
            Step::Changed => {
                let (now, size) = (self.world.clock.now(), self.order.size);
                return self.world.mds.finish_migration(&self.order, size, now).unwrap();
            }
            Step::Removed => reap(self.world).await,
        }
        true
    }

    /// Executes all steps, copying the file's bytes.
    async fn copy(&self) {
        let order = &self.order;
        assert!(self.world.mds.is_migration_fenced(order).unwrap());
        let mut file = Vec::new();
        for (index, object) in order.from.objects().iter().enumerate() {
            let place = place_of(self.world, object.device);
            let reader = self.world.own(place, ServerPurpose::CopyFrom(object.object));
            let (mut offset, device) = (0u64, self.world.osd(place));
            loop {
                let read =
                    Operation::Read { object: object.object, offset, length: UNIT, buffer: Vec::new() };
                let data = match device.execute(&reader, read).await {
                    Ok(completion) => completion.data,
                    Err(OsdError::ReadPastEnd { data }) => data,
                    Err(error) => panic!("not read: {error}"),
                };
                // A read of the test lies within one stripe unit.
                let at = order.from.file_offset(index, offset).unwrap() as usize;
                file.resize(file.len().max(at + data.len()), 0);
                file[at..at + data.len()].copy_from_slice(&data);
                offset += data.len() as u64;
                if data.len() < UNIT {
                    break;
                }
            }
        }
        for object in order.to.objects() {
            self.write(object, |object| Operation::Create { object }).await;
        }
        let file = bytes::Bytes::from(file);
        for extent in order.to.extents(0..file.len() as u64) {
            let (mut done, object) = (0, &order.to.objects()[extent.index]);
            while done < extent.length {
                let length = (extent.length - done).min(UNIT as u64);
                let from = (extent.file_offset + done) as usize;
                let (offset, data) = (extent.object_offset + done, file.slice(from..from + length as usize));
                self.write(object, |object| Operation::Write { object, offset, data: data.clone() }).await;
                done += length;
            }
        }
        for object in order.to.objects() {
            self.write(object, |object| Operation::Flush { object }).await;
        }
    }

    async fn write(
        &self,
        at: &sealstone_mds_protocol::ObjectRef,
        make: impl Fn(sealstone_osd::ObjectId) -> Operation,
    ) {
        let place = place_of(self.world, at.device);
        let writer = self.world.own(place, ServerPurpose::CopyTo(at.object));
        self.world.osd(place).execute(&writer, make(at.object)).await.unwrap();
    }
}

/// Creates a small file that grew through a mount and is not open.
async fn grown(mount: &Mount, bytes: &[u8]) {
    let file = growing(mount, bytes).await;
    file.close().await.unwrap();
    sleep(Duration::from_secs(20)).await;
}

async fn growing(mount: &Mount, bytes: &[u8]) -> OpenFile {
    mount.put("/f", &bytes[..10]).await;
    let file = mount.open("f", Access::Update).await;
    file.write(0, bytes).await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(objects(&mount.client, "/f").await.1.len(), 1);
    file
}

#[tokio::test(start_paused = true)]
async fn reader_in_place_follows_each_migration_step() {
    let world = World::new(4).await;
    let bytes = content(GROWN);
    let mount = Mount::of(&world).await;
    grown(&mount, &bytes).await;
    let file = mount.open("f", Access::Read).await;
    assert!(file.read(0, 3 * UNIT).await.unwrap() == bytes[..3 * UNIT]);
    let way = Way::begin(&world, &mount).await;
    for (turn, step) in STEPS.into_iter().enumerate() {
        assert!(way.reach(step).await, "{step:?}");
        // A device without the new tag yet refuses credentials with it for about a second.
        if step != Step::Noted {
            let at = turn * 11 * UNIT + 5;
            assert!(file.read(at as u64, 4 * UNIT).await.unwrap() == bytes[at..at + 4 * UNIT], "{step:?}");
            assert!(file.read(0, bytes.len()).await.unwrap() == bytes, "{step:?}");
        }
    }
    let now = objects(&mount.client, "/f").await.1;
    assert_eq!(now, way.order.to.objects());
    assert_eq!(now.len(), 4);
    assert!(seen(&world, "f").await == bytes);
    assert!(file.read(0, bytes.len() + 9).await.unwrap() == bytes);
}

#[tokio::test(start_paused = true)]
async fn running_get_follows_migrated_file() {
    let bytes = content(GROWN);
    for step in STEPS {
        let world = World::new(4).await;
        let mount = Mount::of(&world).await;
        grown(&mount, &bytes).await;
        let client = mount.client.clone();
        let (sink, mut taken) = tokio::io::duplex(3 * UNIT + 7);
        let got = tokio::spawn(async move { client.get("/f", sink, GetOptions::default()).await });
        let mut back = vec![0; UNIT];
        taken.read_exact(&mut back).await.unwrap();
        let way = Way::begin(&world, &mount).await;
        for reached in STEPS.into_iter().take_while(|reached| *reached <= step) {
            assert!(way.reach(reached).await, "{reached:?}");
        }
        if step == Step::Noted {
            tell_tags(&world).await;
        }
        taken.read_to_end(&mut back).await.unwrap();
        got.await.unwrap().unwrap();
        assert!(back == bytes, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn range_read_follows_moved_object() {
    let world = World::new(4).await;
    let bytes = content(GROWN);
    let mount = Mount::of(&world).await;
    grown(&mount, &bytes).await;
    let file = mount.client.open("/f", Method::AllData).await.unwrap();
    assert!(file.read(10..2000).await.unwrap() == bytes[10..2000]);
    let way = Way::begin(&world, &mount).await;
    for step in STEPS {
        assert!(way.reach(step).await, "{step:?}");
    }
    assert!(file.read(100..GROWN as u64).await.unwrap() == bytes[100..]);
    assert!(file.read(10..2000).await.unwrap() == bytes[10..2000]);
    // Again: each migration has to be followed.
    assert_eq!(mount.client.metadata().called("Open"), 1);
}

#[tokio::test(start_paused = true)]
async fn client_of_unavailable_device_requests_new_location() {
    let world = World::new(4).await;
    let bytes = content(GROWN);
    let mount = Mount::of(&world).await;
    grown(&mount, &bytes).await;
    let file = mount.open("f", Access::Read).await;
    let by_path = mount.client.open("/f", Method::AllData).await.unwrap();
    assert!(file.read(0, 10).await.unwrap() == bytes[..10]);
    assert!(by_path.read(0..10).await.unwrap() == bytes[..10]);
    // The new objects are to be on other devices.
    let old = objects(&mount.client, "/f").await.1[0].device;
    mount.client.metadata().call(Request::DeviceDrain { id: old, rate: 0 }).await.unwrap();
    let way = Way::begin(&world, &mount).await;
    assert!(way.order.to.objects().iter().all(|object| object.device != old));
    for step in STEPS.into_iter().filter(|step| *step < Step::Removed) {
        assert!(way.reach(step).await, "{step:?}");
    }
    world.machine(place_of(&world, old)).power_cut();
    assert!(file.read(0, GROWN).await.unwrap() == bytes);
    assert!(by_path.read(0..GROWN as u64).await.unwrap() == bytes);
}

#[tokio::test(start_paused = true)]
async fn other_content_is_not_taken_for_migrated_file() {
    let world = World::new(3).await;
    let bytes = content(GROWN);
    let mount = Mount::of(&world).await;
    let other = Mount::of(&world).await;
    grown(&mount, &bytes).await;
    let file = mount.client.open("/f", Method::AllData).await.unwrap();
    assert!(file.read(10..2000).await.unwrap() == bytes[10..2000]);
    let writer = other.open("f", Access::Update).await;
    let change = NodeChange { size: Some(0), ..NodeChange::default() };
    other.nodes.set(writer.node(), change, false).await.unwrap();
    writer.write(0, &vec![9; GROWN]).await.unwrap();
    writer.sync().await.unwrap();
    drop(writer);
    sleep(Duration::from_secs(20)).await;
    reap(&world).await;
    match file.read(10..2000).await {
        Err(ClientError::Refused(failure)) => assert_eq!(failure.code, ErrorCode::Stale),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn leased_reader_follows_move() {
    let bytes = content(GROWN);
    for open_again in [false, true] {
        let world = World::new(4).await;
        grown(&Mount::of(&world).await, &bytes).await;
        let (mount, other) = (Mount::leased(&world).await, Mount::leased(&world).await);
        let file = mount.open("f", Access::Read).await;
        assert!(file.read(0, bytes.len()).await.unwrap() == bytes);
        let way = Way::begin(&world, &mount).await;
        for step in STEPS.into_iter().filter(|step| *step < Step::Removed) {
            assert!(way.reach(step).await, "{step:?}");
            if step != Step::Noted {
                // Credentials with the current tag may read the old objects as long as they exist.
                assert!(file.read(0, bytes.len()).await.unwrap() == bytes, "{step:?}");
            }
        }
        let writer = other.open("f", Access::Update).await;
        writer.write(0, b"newer").await.unwrap();
        assert_eq!(file.read(0, 5).await.unwrap(), &b"newer"[..]);
        writer.write(7, b"and again").await.unwrap();
        writer.close().await.unwrap();
        let file = if open_again { mount.open("f", Access::Read).await } else { file };
        let mut expected = bytes.clone();
        expected[..5].copy_from_slice(b"newer");
        expected[7..16].copy_from_slice(b"and again");
        assert!(file.read(0, bytes.len()).await.unwrap() == expected, "{open_again}");
    }
}

#[tokio::test(start_paused = true)]
async fn truncation_of_rewritten_file_reads_remaining_bytes() {
    for looked_at in [true, false] {
        let world = World::new(3).await;
        let (mount, other) = (Mount::of(&world).await, Mount::of(&world).await);
        let (old, new) = (content(3 * UNIT), vec![9; 2 * UNIT]);
        let file = mount.create("f").await;
        file.write(0, &old).await.unwrap();
        file.sync().await.unwrap();
        let writer = other.open("f", Access::Update).await;
        let cut = |size| NodeChange { size: Some(size), ..NodeChange::default() };
        other.nodes.set(writer.node(), cut(0), true).await.unwrap();
        writer.write(0, &new).await.unwrap();
        writer.close().await.unwrap();
        if looked_at {
            assert_eq!(mount.nodes.node(file.node()).await.unwrap().size, new.len() as u64);
        }
        let stat = mount.nodes.set(file.node(), cut(UNIT as u64), true).await.unwrap();
        assert_eq!(stat.size, UNIT as u64);
        // The old objects exist for a while.
        assert!(file.read(0, old.len()).await.unwrap() == new[..UNIT], "looked at: {looked_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn writer_opened_during_migration_uses_current_objects() {
    let bytes = content(GROWN);
    for step in STEPS {
        let world = World::new(3).await;
        let mount = Mount::of(&world).await;
        grown(&mount, &bytes).await;
        let way = Way::begin(&world, &mount).await;
        let mut expected = bytes.clone();
        expected[UNIT..UNIT + 5].copy_from_slice(b"newer");
        for reached in STEPS {
            let goes_on = way.reach(reached).await;
            assert_eq!(goes_on, reached != Step::Changed || step >= Step::Changed, "{step:?} {reached:?}");
            if reached == step {
                if step == Step::Noted {
                    tell_tags(&world).await;
                }
                let file = mount.open("f", Access::Update).await;
                file.write(UNIT as u64, b"newer").await.unwrap();
                file.sync().await.unwrap();
                drop(file);
            }
            if !goes_on {
                break;
            }
        }
        reap(&world).await;
        assert!(seen(&world, "f").await == expected, "{step:?}");
        let width = if step >= Step::Changed { 3 } else { 1 };
        assert_eq!(objects(&mount.client, "/f").await.1.len(), width, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn forgotten_writer_loses_nothing_during_migration() {
    let bytes = content(GROWN);
    for (step, power) in STEPS.into_iter().flat_map(|step| [(step, false), (step, true)]) {
        let world = World::new(4).await;
        let mount = Mount::of(&world).await;
        let file = growing(&mount, &vec![7; GROWN]).await;
        // Acknowledged and reported, but not flushed.
        file.write(0, &bytes[..2 * UNIT]).await.unwrap();
        file.flush().await.unwrap();
        forget_clients(&world);
        let at = objects(&mount.client, "/f").await.1[0];
        if power {
            power_fails(&world, at.device);
            // None of the new objects is on a device from which the client would learn of the
            // restart.
            mount.client.metadata().call(Request::DeviceDrain { id: at.device, rate: 0 }).await.unwrap();
        }
        let way = Way::begin(&world, &mount).await;
        for reached in STEPS {
            let goes_on = way.reach(reached).await;
            if reached == step {
                if step == Step::Noted {
                    tell_tags(&world).await;
                }
                // The file grows beyond its size at the start of the migration.
                file.write(2 * UNIT as u64, &bytes[2 * UNIT..]).await.unwrap();
                file.write(bytes.len() as u64, b"end").await.unwrap();
                file.flush().await.unwrap();
            }
            if !goes_on {
                assert!(step < Step::Changed, "{step:?}");
                break;
            }
        }
        reap(&world).await;
        file.sync().await.unwrap();
        for object in objects(&mount.client, "/f").await.1 {
            power_fails(&world, object.device);
        }
        assert!(seen(&world, "f").await == [&bytes[..], b"end"].concat(), "{step:?}, power {power}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_reported_after_migration_are_kept() {
    let world = World::new(3).await;
    let bytes = content(GROWN + 2 * UNIT);
    let mount = Mount::of(&world).await;
    let file = growing(&mount, &bytes[..GROWN]).await;
    // The bytes are on their device, but the size is not reported yet.
    mount.client.metadata().gate.close("Written");
    file.write(GROWN as u64, &bytes[GROWN..]).await.unwrap();
    let flushed = tokio::spawn(async move {
        file.flush().await.unwrap();
        file
    });
    mount.client.metadata().gate.reached().await;
    forget_clients(&world);
    let way = Way::begin(&world, &mount).await;
    for step in STEPS {
        assert!(way.reach(step).await, "{step:?}");
    }
    mount.client.metadata().gate.open();
    let file = flushed.await.unwrap();
    assert!(seen(&world, "f").await == bytes);
    file.sync().await.unwrap();
    for object in objects(&mount.client, "/f").await.1 {
        power_fails(&world, object.device);
    }
    assert!(seen(&world, "f").await == bytes);
}

#[tokio::test(start_paused = true)]
async fn holes_read_as_zeros_wherever_they_are() {
    let world = World::new(3).await;
    let mount = Mount::of(&world).await;
    mount.put("/f", b"head").await;
    let file = mount.open("f", Access::Update).await;
    file.write(3 << 20, b"middle").await.unwrap();
    file.grow(9 << 20).await.unwrap();
    file.close().await.unwrap();
    sleep(Duration::from_secs(20)).await;
    let mut expected = vec![0; 9 << 20];
    expected[..4].copy_from_slice(b"head");
    expected[3 << 20..(3 << 20) + 6].copy_from_slice(b"middle");
    assert!(seen(&world, "f").await == expected);
    let way = Way::begin(&world, &mount).await;
    for step in STEPS {
        assert!(way.reach(step).await, "{step:?}");
    }
    assert!(seen(&world, "f").await == expected);
    let mut back = Vec::new();
    mount.client.get("/f", &mut back, GetOptions::default()).await.unwrap();
    assert!(back == expected);
}

#[tokio::test(start_paused = true)]
async fn server_restart_aborts_migration_unnoticed_by_readers() {
    let bytes = content(GROWN);
    for step in STEPS {
        let world = World::new(3).await;
        let mount = Mount::of(&world).await;
        grown(&mount, &bytes).await;
        let file = mount.open("f", Access::Read).await;
        let way = Way::begin(&world, &mount).await;
        for reached in STEPS.into_iter().take_while(|reached| *reached <= step) {
            assert!(way.reach(reached).await, "{reached:?}");
        }
        let given_up = world.mds.abandon_moves(world.clock.now()).unwrap();
        assert_eq!(given_up, usize::from(step < Step::Changed));
        tell_tags(&world).await;
        reap(&world).await;
        assert!(file.read(0, bytes.len()).await.unwrap() == bytes, "{step:?}");
        if given_up == 0 {
            continue;
        }
        // A late end of the previous migration changes nothing.
        assert!(!way.reach(Step::Changed).await);
        let again = Way::begin(&world, &mount).await;
        for reached in STEPS {
            assert!(again.reach(reached).await, "{reached:?}");
        }
        assert!(file.read(0, bytes.len()).await.unwrap() == bytes, "{step:?}");
        assert!(seen(&world, "f").await == bytes, "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn revocation_has_priority_over_migration() {
    let world = World::new(3).await;
    let bytes = content(GROWN);
    let mount = Mount::of(&world).await;
    grown(&mount, &bytes).await;
    let way = Way::begin(&world, &mount).await;
    for step in [Step::Noted, Step::Fenced, Step::Copied] {
        assert!(way.reach(step).await);
    }
    let what = RevocationTarget::Object(FilePath::new("/f").unwrap());
    mount.client.metadata().call(Request::Revoke { what }).await.unwrap();
    assert!(!way.reach(Step::Changed).await);
    tell_tags(&world).await;
    reap(&world).await;
    assert!(seen(&world, "f").await == bytes);
}
