//! Mounts behind a gate, and the metadata server's work on objects that move.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sealstone_client::nodes::{CreateParams, File, Nodes, NodesOptions};
use sealstone_client::{Client, Device, DeviceId, DevicePool, Devices, Metadata, Name, OsdError, PutOptions};
use sealstone_initiator::{Bearer, Completion, Operation};
use sealstone_mds::ServerPurpose;
use sealstone_mds_protocol::{Access, FilePath, InodeId, Node, NodeKind, ObjectRef, Request, Response};

use super::{Direct, Gate, World, tuning};

/// Devices behind a gate.
pub struct Gated {
    pool: DevicePool,
    gate: Arc<Gate>,
}

impl Devices for Gated {
    async fn execute(
        &self,
        device: &Device,
        bearer: &Bearer,
        operation: Operation,
    ) -> Result<Completion, OsdError> {
        self.gate.pass(operation.name()).await;
        self.pool.execute(device, bearer, operation).await
    }
}

pub type OpenFile = File<Direct, Gated>;

pub struct Mount {
    pub nodes: Nodes<Direct, Gated>,
    pub client: Client<Direct, Gated>,
    pub gate: Arc<Gate>,
}

impl Mount {
    pub async fn of(world: &World) -> Self {
        Self::with(world, NodesOptions::default()).await
    }

    /// Creates a mount with leases.
    pub async fn leased(world: &World) -> Self {
        world.leads.store(true, Ordering::Relaxed);
        let mount = Self::with(world, NodesOptions { leases: true, ..NodesOptions::default() }).await;
        // Receives its epoch.
        let _ = mount.nodes.lookup(Node::ROOT, &Name::new("nothing").unwrap()).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        mount
    }

    async fn with(world: &World, options: NodesOptions) -> Self {
        let gate = Arc::<Gate>::default();
        let devices = Gated { pool: world.pool(), gate: gate.clone() };
        let client = world.client_over(devices, tuning()).await;
        Self { nodes: Nodes::new(&client, options), client, gate }
    }

    pub async fn put(&self, path: &str, bytes: &[u8]) {
        let options = PutOptions { size: Some(bytes.len() as u64), ..PutOptions::default() };
        self.client.put(path, bytes, options).await.unwrap();
    }

    pub async fn create(&self, name: &str) -> OpenFile {
        let create_params =
            CreateParams { what: NodeKind::File, mode: 0o644, umask: 0, owner: None, group: None };
        self.nodes.create(Node::ROOT, &Name::new(name).unwrap(), create_params).await.unwrap().1
    }

    pub async fn open(&self, name: &str, access: Access) -> OpenFile {
        let stat = self.nodes.lookup(Node::ROOT, &Name::new(name).unwrap()).await.unwrap();
        self.nodes.open(stat.node(), access).await.unwrap().0
    }
}

pub async fn seen(world: &World, name: &str) -> Vec<u8> {
    let file = Mount::of(world).await.open(name, Access::Read).await;
    let size = file.size() as usize;
    file.read(0, size + 10).await.unwrap().to_vec()
}

pub fn place_of(world: &World, device: DeviceId) -> u8 {
    let place = world.mds.devices().iter().position(|(known, _)| known.id == device).unwrap();
    u8::try_from(place).unwrap()
}

/// Returns the locations of a file's objects.
pub async fn objects<D: Devices>(client: &Client<Direct, D>, path: &str) -> (InodeId, Vec<ObjectRef>) {
    let path = FilePath::new(path).unwrap();
    let Response::Placement { layout, .. } =
        client.metadata().call(Request::Placement { path: path.clone() }).await.unwrap()
    else {
        panic!("a placement")
    };
    let Response::Stat { stat } = client.metadata().call(Request::Stat { path }).await.unwrap() else {
        panic!("a stat")
    };
    (stat.inode, layout.unwrap().objects().to_vec())
}

/// Runs the server's distribution of new tags to devices.
pub async fn tell_tags(world: &World) {
    for (device, _) in world.mds.devices() {
        let items = world.mds.next_retags(device.id, 99).unwrap();
        let place = place_of(world, device.id);
        for item in &items {
            let object = item.object.object;
            let (id, value) = sealstone_mds::object_attribute(item.tag);
            let values = vec![(id, bytes::Bytes::copy_from_slice(&value))];
            let bearer = world.own(place, ServerPurpose::Retag { object, creates: item.creates });
            let set = Operation::SetAttributes { object, values: values.clone(), durable: false };
            match world.osd(place).execute(&bearer, set).await {
                Err(OsdError::NotFound) if item.creates => {
                    let create = Operation::CreateWith { object, values };
                    world.osd(place).execute(&bearer, create).await.unwrap();
                }
                Ok(_) | Err(OsdError::NotFound) => {}
                Err(error) => panic!("not told: {error}"),
            }
        }
        world.mds.retagged(&items, world.clock.now()).unwrap();
    }
}

/// Runs the server's removal of objects that belong to no file.
pub async fn reap(world: &World) {
    let now = world.clock.now();
    let items = world.mds.next_reap(None, 99, now).unwrap();
    for item in &items {
        let place = place_of(world, item.object.device);
        let object = item.object.object;
        let bearer = world.own(place, ServerPurpose::RemoveObject(object));
        match world.osd(place).execute(&bearer, Operation::Remove { object }).await {
            Ok(_) | Err(OsdError::NotFound) => {}
            Err(error) => panic!("not removed: {error}"),
        }
    }
    world.mds.reaped(&items, now).unwrap();
}

pub fn power_fails(world: &World, device: DeviceId) {
    let machine = world.machine(place_of(world, device));
    machine.power_cut();
    machine.boot();
}

/// Advances time so that the server drops all clients, after a minute of silence.
pub fn forget_clients(world: &World) {
    world.mds.tidy_memory(world.clock.now() + 61_000);
}

/// Creates a file with bytes that are acknowledged but not flushed, whose writer the server has
/// forgotten.
pub async fn forgotten_writer(world: &World, mount: &Mount, bytes: &[u8]) -> (OpenFile, ObjectRef) {
    let file = mount.create("f").await;
    file.write(0, &vec![7; bytes.len()]).await.unwrap();
    file.sync().await.unwrap();
    let at = objects(&mount.client, "/f").await.1[0];
    file.write(0, bytes).await.unwrap();
    // Acknowledged and reported: other clients see the bytes.
    file.flush().await.unwrap();
    assert!(seen(world, "f").await == bytes);
    forget_clients(world);
    (file, at)
}
