//! Devices that lose power when a test requests it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sealstone_client::{Device, DevicePool, Devices, OsdError};
use sealstone_initiator::{Bearer, Completion, Operation};
use sealstone_osd::ObjectId;

use super::{Machine, World};

/// Number of executions of each command.
pub type Counts = Arc<Mutex<BTreeMap<&'static str, usize>>>;

/// Devices that count commands and lose power after the n-th of one kind; they boot again at once.
pub struct Cutting {
    pool: DevicePool,
    machines: Arc<BTreeMap<String, Machine>>,
    at: Vec<(&'static str, usize)>,
    /// Creates lost objects again, empty, before the next command: as the server does to fence a
    /// client.
    pub remakes: bool,
    pub counts: Counts,
    pub cuts: Arc<AtomicUsize>,
}

impl Cutting {
    pub fn new(world: &World, at: &[(&'static str, usize)]) -> Self {
        let (pool, machines) = (world.pool(), world.machines.clone());
        let (at, counts, cuts) = (at.to_vec(), Arc::default(), Arc::default());
        Self { pool, machines, at, remakes: false, counts, cuts }
    }
}

impl Devices for Cutting {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        let name = operation.name();
        let made = made(operation.done());
        let result = self.pool.execute(device, bearer, operation).await;
        let count = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(name).or_default();
            *count += 1;
            *count
        };
        if self.at.contains(&(name, count)) {
            let found = self.machines.iter().find(|(iqn, _)| device.url.as_str().contains(&***iqn));
            let machine = found.unwrap().1;
            machine.power_cut();
            machine.boot();
            self.cuts.fetch_add(1, Ordering::Relaxed);
            if let Some(object) = made.filter(|_| self.remakes) {
                self.pool.execute(device, bearer, Operation::Create { object }).await.unwrap();
            }
        }
        result
    }
}

fn made(operation: &Operation) -> Option<ObjectId> {
    match operation {
        Operation::CreateAndWrite { object, .. } => Some(*object),
        _ => None,
    }
}
