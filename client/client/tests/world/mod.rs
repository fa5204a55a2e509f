//! A whole cluster in one process and one thread, on paused time: real devices behind real targets,
//! the real metadata server, and streams that can break or corrupt bytes.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod cutting;
pub mod faults;
pub mod gate;
pub mod machine;
pub mod mounts;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::{
    Client, ClientError, DeviceId, DevicePool, Devices, DialFactory, MdsClient, MdsOptions, Metadata,
    OsdOptions, Tuning, UserName,
};
use sealstone_initiator::{Bearer, Dial, Dialed, Dialing, Environment, Operation, OsdClient, TargetUrl};
use sealstone_login::ChannelBinding;
use sealstone_mds::store::MemoryMeta;
use sealstone_mds::{Config, Connection, LoginSource, Mds, ServerPurpose};
use sealstone_mds_protocol::login::{SUITE_SERVICE_A, SUITE_STANDARD, SessionId};
use sealstone_mds_protocol::{
    Access, ErrorCode, Failure, FilePath, FrameHeader, HEADER_BYTES, MessageType, Name, NewDevice, Request,
    Response, Role, Secret, Text,
};
use sealstone_osd::ObjectId;
use sealstone_osd_device::OsdConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

pub use faults::Faults;
pub use gate::Gate;
pub use machine::Machine;

/// Commands of 64 KiB and a memory budget of 512 KiB.
pub fn tuning() -> Tuning {
    Tuning { memory_bytes: 2 << 20, command_bytes: 64 << 10, depth: 2 }
}

/// Returns bytes in which swapped blocks are detected.
pub fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(31)) as u8).collect()
}

pub const GIB: u64 = 1 << 30;
pub const START_MS: u64 = 1_800_000_000_000;
/// The account that set up the metadata server, and its password.
pub const FOUNDER: &str = "founder";
pub const PASSWORD: &[u8] = b"correct horse";
/// Key of the service `admin`, as which clients log in: keys are not stretched.
const ADMIN_KEY: [u8; 32] = [0xAD; 32];
const BINDING: [u8; 32] = [0xB1; 32];

/// Paused tokio time as wall clock; random bytes from a seed.
pub struct Clockwork {
    began: Instant,
    rng: Mutex<StdRng>,
    /// Offset of the clock, in milliseconds.
    pub skew_ms: AtomicI64,
}

impl Clockwork {
    pub fn new(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { began: Instant::now(), rng, skew_ms: AtomicI64::new(0) })
    }

    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        (START_MS + elapsed).saturating_add_signed(self.skew_ms.load(Ordering::Relaxed))
    }

    fn fill(&self, into: &mut [u8]) {
        rand::RngCore::fill_bytes(&mut *self.rng.lock().unwrap(), into);
    }
}

impl Environment for Clockwork {
    fn now_ms(&self) -> u64 {
        self.now()
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.fill(into);
    }
}

/// The same for devices.
struct DeviceClockwork(Arc<Clockwork>);

impl sealstone_osd_device::DeviceEnvironment for DeviceClockwork {
    fn now_ms(&self) -> u64 {
        self.0.now()
    }
    fn fill_random(&self, into: &mut [u8]) {
        self.0.fill(into);
    }
}

/// The cluster.
pub struct World {
    /// Clock of the servers.
    pub clock: Arc<Clockwork>,
    /// Clock of the client.
    pub client_clock: Arc<Clockwork>,
    pub mds: Arc<Mds>,
    pub machines: Arc<BTreeMap<String, Machine>>,
    /// Faults of new streams to devices.
    pub faults: Arc<Faults>,
    /// Number of frames that the metadata server answered.
    pub answered: Arc<AtomicU64>,
    /// Whether new clients use leases.
    pub leads: AtomicBool,
}

impl World {
    /// Starts `devices` devices of 1 GiB, with a partition, in use.
    pub async fn new(devices: u8) -> Self {
        Self::with(devices, Config::default()).await
    }

    pub async fn with(devices: u8, config: Config) -> Self {
        Self::of(devices, config, OsdConfig::default()).await
    }

    pub async fn of(devices: u8, config: Config, device_config: OsdConfig) -> Self {
        let clock = Clockwork::new(1);
        let mut rng = StdRng::seed_from_u64(2);
        let mds = Arc::new(Mds::open(Arc::new(FRESH.copy()), config).unwrap());
        let machine = |i| (iqn(i), Machine::new(i, &clock, device_config));
        let machines = (0..devices).map(machine).collect();
        let world = Self::around(clock, mds, machines);
        let client = world.client(Tuning::default()).await;
        for i in 0..devices {
            world.add_device(&client, i, &mut rng).await;
        }
        world
    }

    fn around(clock: Arc<Clockwork>, mds: Arc<Mds>, machines: BTreeMap<String, Machine>) -> Self {
        Self {
            clock,
            client_clock: Clockwork::new(3),
            mds,
            machines: Arc::new(machines),
            faults: Arc::default(),
            answered: Arc::default(),
            leads: AtomicBool::new(false),
        }
    }

    async fn add_device(&self, client: &TestClient, i: u8, rng: &mut StdRng) {
        let device = NewDevice {
            name: Name::new(format!("osd{i}")).unwrap(),
            system_id: [i + 1; 20],
            url: Text::new(url(i)).unwrap(),
            pin: None,
            capacity: GIB,
            speed: 0,
            master_key: Secret::new(vec![i + 1; 32]).unwrap(),
        };
        let Response::Device { device } =
            client.metadata().call(Request::DeviceAdd { device }).await.unwrap()
        else {
            panic!("no device")
        };
        self.prepare(device.id, i, rng).await;
    }

    /// Runs the housekeeping of the metadata server.
    async fn prepare(&self, id: DeviceId, i: u8, rng: &mut StdRng) {
        let credential =
            self.mds.own_credential(id, ServerPurpose::PreparePartition, self.clock.now(), rng).unwrap();
        let device = self.osd(i);
        let bearer = Bearer::of(&credential).unwrap();
        let values = sealstone_mds::partition_attributes();
        let values = values.into_iter().map(|(id, value)| (id, bytes::Bytes::copy_from_slice(&value)));
        let object = ObjectId::of_partition(0x1_0000);
        device.execute(&bearer, Operation::CreateWith { object, values: values.collect() }).await.unwrap();
        self.mds.device_answered(&self.mds.device_address(id).unwrap(), GIB, 0).unwrap();
        self.mds.device_prepared(&self.mds.device_address(id).unwrap()).unwrap();
    }

    /// Runs the clearing of truncated files of the metadata server.
    pub async fn clear(&self) {
        let items = self.mds.next_clears(None, 1000).unwrap();
        let places: Vec<_> = self.mds.devices().iter().map(|(device, _)| device.id).collect();
        for (object, length) in items.iter().flat_map(|item| &item.objects) {
            let place = places.iter().position(|id| *id == object.device).unwrap();
            self.cut_object(u8::try_from(place).unwrap(), object.object, *length).await;
        }
        self.mds.cleared(&items).unwrap();
    }

    /// Truncates an object to this length.
    pub async fn cut_object(&self, place: u8, object: ObjectId, length: u64) {
        let bearer = self.own(place, ServerPurpose::TruncateObject(object));
        let length = bytes::Bytes::copy_from_slice(&length.to_be_bytes());
        let values = vec![(sealstone_osd::attribute::user_information::LOGICAL_LENGTH, length)];
        let cut = Operation::SetAttributes { object, values, durable: false };
        for operation in [cut, Operation::Flush { object }] {
            match self.osd(place).execute(&bearer, operation).await {
                Ok(_) | Err(sealstone_client::OsdError::NotFound) => {}
                Err(error) => panic!("not cut: {error}"),
            }
        }
    }

    /// Returns the machine of a device.
    pub fn machine(&self, i: u8) -> &Machine {
        &self.machines[&iqn(i)]
    }

    /// Returns a client of one device.
    pub fn osd(&self, i: u8) -> OsdClient {
        let url: TargetUrl = url(i).parse().unwrap();
        let options = OsdOptions::new(&*self.client_clock);
        let dial = ToTarget {
            machines: self.machines.clone(),
            target: url.target.clone(),
            faults: self.faults.clone(),
        };
        OsdClient::new(Arc::new(dial), &url, self.client_clock.clone(), options)
    }

    /// Returns a credential of the metadata server itself.
    pub fn own(&self, i: u8, purpose: ServerPurpose) -> Bearer {
        let mut rng = StdRng::seed_from_u64(9);
        let id = self.mds.devices()[usize::from(i)].0.id;
        Bearer::of(&self.mds.own_credential(id, purpose, self.clock.now(), &mut rng).unwrap()).unwrap()
    }

    pub fn dial(&self) -> DialFactory {
        let (machines, faults) = (self.machines.clone(), self.faults.clone());
        Box::new(move |url, _| {
            let (machines, target) = (machines.clone(), url.target.clone());
            Ok(Arc::new(ToTarget { machines, target, faults: faults.clone() }))
        })
    }

    /// Returns a client that is logged in as the administrator.
    pub async fn client(&self, tuning: Tuning) -> TestClient {
        self.client_over(self.pool(), tuning).await
    }

    /// As `client`, over devices of the test.
    pub async fn client_over<D: Devices>(&self, devices: D, tuning: Tuning) -> Client<Direct, D> {
        let direct = Direct::login(self).await;
        Client::new(direct, devices, self.client_clock.clone(), Arc::default(), tuning)
    }

    pub fn pool(&self) -> DevicePool {
        let mut options = OsdOptions::new(&*self.client_clock);
        options.session.command_timeout = core::time::Duration::from_secs(20);
        DevicePool::new(self.dial(), self.client_clock.clone(), options)
    }
}

pub type TestClient = Client<Direct, DevicePool>;

fn iqn(i: u8) -> String {
    format!("iqn.2026-11.org.sealstone:osd.{i}")
}

fn url(i: u8) -> String {
    format!("iscsi://memory:3260/{}/0", iqn(i))
}

/// Streams in memory to a target.
struct ToTarget {
    machines: Arc<BTreeMap<String, Machine>>,
    target: String,
    faults: Arc<Faults>,
}

impl Dial for ToTarget {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(64 * 1024);
            self.machines[&self.target].serve(far);
            Ok(Dialed::plain(Box::new(self.faults.apply(near))))
        })
    }
}

/// The metadata server behind a function call.
pub struct Direct {
    mds: Arc<Mds>,
    clock: Arc<Clockwork>,
    session: SessionId,
    rng: Mutex<StdRng>,
    /// All requests by name, in order.
    pub calls: Mutex<Vec<&'static str>>,
    /// Accesses with which files were opened again, in order.
    pub opened: Mutex<Vec<Access>>,
    /// The answer to the next request of this name is lost.
    pub lose: Mutex<Option<&'static str>>,
    /// The next request of this name is refused.
    pub refuse: Mutex<Option<&'static str>>,
    /// The next answer to Allocate has no objects: the file was truncated to zero before the answer
    /// was sent.
    pub cut_while_answered: AtomicBool,
    /// Leases on files are removed from answers.
    pub no_leases_on_files: AtomicBool,
    /// The gate for answers.
    pub gate: Gate,
    /// The gate for answers to Recalls.
    pub recalls: Arc<Gate>,
    /// Maximum random delay of requests and answers in milliseconds, by which they overtake each
    /// other.
    pub jitter_ms: AtomicU64,
    /// Nothing arrives, on the second connection neither.
    pub cut: Arc<AtomicBool>,
    leads: bool,
}

impl Direct {
    async fn login(world: &World) -> Self {
        // One login for a session id; later requests go directly to the server.
        let mds = connect(world).await.unwrap();
        let session = mds.ticket().session;
        Self {
            mds: world.mds.clone(),
            clock: world.clock.clone(),
            session,
            rng: Mutex::new(StdRng::seed_from_u64(4)),
            calls: Mutex::default(),
            opened: Mutex::default(),
            lose: Mutex::default(),
            refuse: Mutex::default(),
            cut_while_answered: AtomicBool::new(false),
            no_leases_on_files: AtomicBool::new(false),
            gate: Gate::default(),
            recalls: Arc::default(),
            jitter_ms: AtomicU64::new(0),
            cut: Arc::default(),
            leads: world.leads.load(Ordering::Relaxed),
        }
    }

    /// Waits as the server does if nothing is recalled.
    async fn wait(&self, request: &Request) {
        let Request::Recalls { wait_ms, .. } = request else { return };
        let body = request.encode(0).unwrap();
        let waiting = self.mds.waiting(&self.session, &body).unwrap();
        let news = core::future::poll_fn(|context| match self.mds.has_recalls(&waiting, context.waker()) {
            true => core::task::Poll::Ready(()),
            false => core::task::Poll::Pending,
        });
        let _ = tokio::time::timeout(core::time::Duration::from_millis(u64::from(*wait_ms)), news).await;
        self.recalls.pass("Recalls").await;
    }

    /// Delays a request or an answer.
    async fn travel(&self) {
        let most_ms = self.jitter_ms.load(Ordering::Relaxed);
        if most_ms > 0 {
            let ms = self.rng.lock().unwrap().gen_range(0..=most_ms);
            tokio::time::sleep(core::time::Duration::from_millis(ms)).await;
        }
    }

    /// Number of requests of all names.
    pub fn requests(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    pub fn called(&self, name: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| **call == name).count()
    }
}

impl Metadata for Direct {
    fn second(&self) -> Option<Self> {
        self.leads.then(|| Self {
            mds: self.mds.clone(),
            clock: self.clock.clone(),
            session: self.session,
            rng: Mutex::new(StdRng::seed_from_u64(5)),
            calls: Mutex::default(),
            opened: Mutex::default(),
            lose: Mutex::default(),
            refuse: Mutex::default(),
            cut_while_answered: AtomicBool::new(false),
            no_leases_on_files: AtomicBool::new(false),
            gate: Gate::default(),
            recalls: self.recalls.clone(),
            jitter_ms: AtomicU64::new(0),
            cut: self.cut.clone(),
            leads: false,
        })
    }

    async fn call(&self, request: Request) -> Result<Response, ClientError> {
        let (once, name) = match &request {
            Request::Once { request, .. } => (true, request.request().name()),
            request => (false, request.name()),
        };
        self.calls.lock().unwrap().push(name);
        if let Request::OpenNode { access, reclaim: true, .. } = &request {
            self.opened.lock().unwrap().push(*access);
        }
        if self.refuse.lock().unwrap().take_if(|refused| *refused == name).is_some() {
            return Err(Failure::new(ErrorCode::Denied, "refused by a test").into());
        }
        self.wait(&request).await;
        self.travel().await;
        if self.cut.load(Ordering::Relaxed) {
            tokio::time::sleep(core::time::Duration::from_secs(1)).await;
            return Err(ClientError::Connection(std::io::ErrorKind::TimedOut.into()));
        }
        let mut response = {
            let mut rng = self.rng.lock().unwrap();
            self.mds.handle(Some(&self.session), request, self.clock.now(), &mut *rng)
        };
        if let ("Allocate", Response::NodeOpened { node }) = (name, &mut response)
            && self.cut_while_answered.swap(false, Ordering::Relaxed)
        {
            node.layout = None;
            node.grants.clear();
        }
        if self.no_leases_on_files.load(Ordering::Relaxed) {
            match &mut response {
                Response::NameBatchApplied { leases, .. } => leases.clear(),
                Response::Leased { lease, .. } => *lease = None,
                _ => {}
            }
        }
        self.gate.pass(name).await;
        self.travel().await;
        // The answer is lost, not the request.
        if self.lose.lock().unwrap().take_if(|lost| *lost == name).is_some() {
            return Err(match once {
                true => ClientError::Connection(std::io::ErrorKind::ConnectionReset.into()),
                false => ClientError::OutcomeUnknown { request: name },
            });
        }
        match response {
            Response::Failed { failure } => Err(failure.into()),
            response => Ok(response),
        }
    }
}

/// Logs in as the administrator over a stream in memory, by a key.
pub async fn connect(world: &World) -> Result<MdsClient, ClientError> {
    login_with(world, SUITE_SERVICE_A, "admin", &ADMIN_KEY).await
}

/// Logs in with a password, as the founder.
pub async fn login(world: &World, password: &[u8]) -> Result<MdsClient, ClientError> {
    login_with(world, SUITE_STANDARD, FOUNDER, password).await
}

async fn login_with(world: &World, suite: u16, user: &str, secret: &[u8]) -> Result<MdsClient, ClientError> {
    let dial = Arc::new(ToMds::of(world));
    let user = UserName::new(user).unwrap();
    let options = MdsOptions { suite, ..MdsOptions::default() };
    MdsClient::login(dial, world.client_clock.clone(), options, &user, secret).await
}

/// An initialised store with the service `admin`, so that a password is stretched once for all
/// tests.
static FRESH: LazyLock<MemoryMeta> = LazyLock::new(|| {
    // The runtime of the caller cannot wait for another one.
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(set_up())
    });
    thread.join().unwrap()
});

async fn set_up() -> MemoryMeta {
    let (clock, store) = (Clockwork::new(1), MemoryMeta::new());
    let (founder, admin) = (UserName::new(FOUNDER).unwrap(), UserName::new("admin").unwrap());
    Mds::set_up(&store, &founder, PASSWORD, clock.now(), &mut StdRng::seed_from_u64(2)).unwrap();
    let mds = Arc::new(Mds::open(Arc::new(store.clone()), Config::default()).unwrap());
    let world = World::around(clock, mds, BTreeMap::new());
    let session = login(&world, PASSWORD).await.unwrap();
    session.register(&admin, SUITE_SERVICE_A, &ADMIN_KEY, Role::Admin, false, None).await.unwrap();
    let request = Request::SetOwner { path: FilePath::root(), owner: Some(admin), group: None };
    session.call(request).await.unwrap();
    session.logout().await.unwrap();
    world.mds.settle().unwrap();
    store
}

/// Streams in memory to the metadata server.
pub struct ToMds {
    mds: Arc<Mds>,
    clock: Arc<Clockwork>,
    answered: Arc<AtomicU64>,
    /// Streams break after this many answers of a session; the last one is not sent.
    pub break_after: Arc<AtomicU64>,
}

impl ToMds {
    pub fn of(world: &World) -> Self {
        let break_after = Arc::new(AtomicU64::new(u64::MAX));
        Self {
            mds: world.mds.clone(),
            clock: world.clock.clone(),
            answered: world.answered.clone(),
            break_after,
        }
    }
}

impl sealstone_client::MdsDial for ToMds {
    fn dial(
        &self,
    ) -> core::pin::Pin<Box<dyn Future<Output = std::io::Result<sealstone_client::SecureChannel>> + Send + '_>>
    {
        let (mds, clock) = (self.mds.clone(), self.clock.clone());
        let (answered, break_after) = (self.answered.clone(), self.break_after.clone());
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(64 * 1024);
            tokio::spawn(serve(far, mds, clock, answered, break_after));
            Ok((Box::new(near) as Box<dyn sealstone_client::ByteStream>, BINDING))
        })
    }
}

async fn serve(
    mut stream: tokio::io::DuplexStream,
    mds: Arc<Mds>,
    clock: Arc<Clockwork>,
    answered: Arc<AtomicU64>,
    break_after: Arc<AtomicU64>,
) {
    let mut connection = Connection::new(ChannelBinding(BINDING), LoginSource::default());
    let mut rng = StdRng::seed_from_u64(answered.load(Ordering::Relaxed) + 77);
    loop {
        let mut header = [0; HEADER_BYTES];
        if stream.read_exact(&mut header).await.is_err() {
            return;
        }
        let header = FrameHeader::parse(&header).unwrap();
        let mut body = vec![0; header.body_length as usize];
        stream.read_exact(&mut body).await.unwrap();
        let output = connection.receive(&mds, &header, &body, clock.now(), &mut rng);
        if header.kind == MessageType::Request && header.sequence != 0 {
            answered.fetch_add(1, Ordering::Relaxed);
            if break_after.fetch_sub(1, Ordering::Relaxed) == 1 {
                break_after.store(u64::MAX, Ordering::Relaxed);
                return;
            }
        }
        if let Some(frame) = output.frame
            && stream.write_all(&frame).await.is_err()
        {
            return;
        }
        if output.close {
            return;
        }
    }
}
