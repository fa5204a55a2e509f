//! Utilisation of devices: several commands in flight on several devices, and small writes gathered
//! into large ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::{World, content};
use sealstone_client::{Device, DeviceId, DevicePool, Devices, GetOptions, OsdError, PutOptions, Tuning};
use sealstone_initiator::{Bearer, Completion, Operation};
use tokio::io::AsyncWriteExt;

/// The observed commands.
#[derive(Default)]
struct Seen {
    under_way: BTreeMap<DeviceId, usize>,
    most: BTreeMap<DeviceId, usize>,
    most_together: usize,
    /// Bytes of each WRITE and CREATE AND WRITE.
    written: Vec<usize>,
    /// Other commands, by name.
    others: BTreeMap<&'static str, usize>,
}

/// Devices that take 10 ms for each command and record it.
struct Watched(DevicePool, Arc<Mutex<Seen>>);

impl Devices for Watched {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        {
            let mut seen = self.1.lock().unwrap();
            match operation.done() {
                Operation::Write { data, .. } | Operation::CreateAndWrite { data, .. } => {
                    seen.written.push(data.len());
                }
                other => *seen.others.entry(other.name()).or_default() += 1,
            }
            let now = seen.under_way.entry(device.id).or_default();
            *now += 1;
            let now = *now;
            let most = seen.most.entry(device.id).or_default();
            *most = now.max(*most);
            seen.most_together = seen.most_together.max(seen.under_way.values().sum());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let result = self.0.execute(device, bearer, operation).await;
        *self.1.lock().unwrap().under_way.get_mut(&device.id).unwrap() -= 1;
        result
    }
}

#[tokio::test(start_paused = true)]
async fn several_commands_are_under_way_at_several_devices() {
    const DEVICES: usize = 3;
    let tuning = Tuning { memory_bytes: 16 << 20, command_bytes: 128 << 10, depth: 4 };
    let world = World::new(DEVICES as u8).await;
    let bytes = content(9 << 20);
    let seen = Arc::<Mutex<Seen>>::default();
    let client = world.client_over(Watched(world.pool(), seen.clone()), tuning).await;
    let options = PutOptions { size: Some(bytes.len() as u64), ..PutOptions::default() };
    client.put("/file", &bytes[..], options).await.unwrap();
    {
        let seen = core::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen.most.len(), DEVICES, "all devices are used");
        // A flush or a read of the epoch may run beside the writes.
        assert!(
            seen.most.values().all(|most| (tuning.depth..=tuning.depth + 2).contains(most)),
            "{:?}",
            seen.most
        );
        assert!(seen.most_together >= DEVICES * tuning.depth, "{}", seen.most_together);
    }
    let mut back = Vec::new();
    client.get("/file", &mut back, GetOptions::default()).await.unwrap();
    assert!(back == bytes);
    let seen = seen.lock().unwrap();
    assert!(seen.most_together >= DEVICES * 2, "reads: {} under way", seen.most_together);
}

#[tokio::test(start_paused = true)]
async fn small_pieces_of_a_source_become_large_writes() {
    const COMMAND: usize = 256 << 10;
    let tuning = Tuning { memory_bytes: 32 << 20, command_bytes: COMMAND, depth: 4 };
    let world = World::new(2).await;
    let seen = Arc::<Mutex<Seen>>::default();
    let client = world.client_over(Watched(world.pool(), seen.clone()), tuning).await;
    let bytes = content((5 << 20) + 1234);
    let (mut tap, source) = tokio::io::duplex(4096);
    let pour = async {
        for piece in bytes.chunks(1000) {
            tap.write_all(piece).await.unwrap();
        }
        drop(tap);
    };
    let (put, ()) = tokio::join!(client.put("/pieces", source, PutOptions::default()), pour);
    put.unwrap();
    let seen = seen.lock().unwrap();
    let full = bytes.len() / COMMAND;
    assert!(seen.written.len() <= full + 2, "{} writes for {full} commands of bytes", seen.written.len());
    assert!(seen.written.iter().filter(|length| **length == COMMAND).count() >= full, "{:?}", seen.written);
    // Few flushes make them durable, not one for each write.
    assert!(seen.others["FLUSH"] <= 4, "{:?}", seen.others);
}
