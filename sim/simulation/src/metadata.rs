//! The machine of the metadata server: the real server and housekeeper over an in-memory store.
//!
//! Contract: only the store survives, with exactly the committed transactions; the last lazy ones
//! may be lost.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sealstone_client::{MdsDial, MdsOptions, SecureChannel, SessionTicket, UserName};
use sealstone_initiator::{Dial, Dialed, Dialing, SessionError, TargetUrl};
use sealstone_login::ChannelBinding;
use sealstone_mds::store::MemoryMeta;
use sealstone_mds::{Config, LoginSource, Mds};
use sealstone_mds_protocol::Role;
use sealstone_mds_protocol::login::SUITE_LIGHT;
use sealstone_mds_server::{Environment, Housekeeper, InitiatorDevices, Limits, serve_stream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::{START_MS, SimulatedClock};
use crate::device::device_number;
use crate::history::History;
use crate::network::{Host, Network, WireEnd};
use crate::random::RandomSource;
use crate::tasks::TaskSet;

const PASSWORD: &[u8] = b"correct horse battery staple";

/// Accounts of every world besides the administrator; a password is the name with a suffix.
pub const USERS: [&str; 3] = ["alice", "bob", "carol"];

/// Returns the password of an account of [`USERS`].
#[must_use]
pub fn password(user: &str) -> Vec<u8> {
    format!("{user}'s own").into_bytes()
}

/// Returns the client options of a world, with the cheaper login suite, because password stretching
/// is not simulated.
#[must_use]
pub fn options() -> MdsOptions {
    MdsOptions { suite: SUITE_LIGHT, ..MdsOptions::default() }
}

/// Returns the exporter value of a connection's simulated channel.
#[must_use]
fn binding(end: &WireEnd) -> [u8; 32] {
    let mut binding = [0xB1; 32];
    binding[..8].copy_from_slice(&end.number().to_be_bytes());
    binding
}

/// Connections from one host to the metadata server.
pub struct ToMds {
    /// The network.
    pub network: Arc<Network>,
    /// Host that connects.
    pub from: Host,
}

impl MdsDial for ToMds {
    fn dial(&self) -> core::pin::Pin<Box<dyn Future<Output = std::io::Result<SecureChannel>> + Send + '_>> {
        Box::pin(async move {
            let end = self.network.dial(self.from, Host::Mds).await?;
            let binding = binding(&end);
            Ok((Box::new(end) as Box<dyn sealstone_client::ByteStream>, binding))
        })
    }
}

/// Connections through a man in the middle with a channel to either end that relays
/// everything. The exporter values of the ends differ.
pub struct RelayedMdsDial(pub ToMds);

impl MdsDial for RelayedMdsDial {
    fn dial(&self) -> core::pin::Pin<Box<dyn Future<Output = std::io::Result<SecureChannel>> + Send + '_>> {
        Box::pin(async move {
            let (stream, mut binding) = self.0.dial().await?;
            binding[31] ^= 1;
            Ok((stream, binding))
        })
    }
}

/// Connections from one host to one device.
pub struct ToDevice {
    /// The network.
    pub network: Arc<Network>,
    /// Host that connects.
    pub from: Host,
    /// Number of the device.
    pub place: u8,
}

impl ToDevice {
    /// Returns a dialer from `from` to the device that a URL names.
    #[must_use]
    pub fn way(network: &Arc<Network>, from: Host, url: &TargetUrl) -> Arc<dyn Dial> {
        Arc::new(Self { network: network.clone(), from, place: device_number(&url.target) })
    }
}

impl Dial for ToDevice {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async move {
            let end = self.network.dial(self.from, Host::Device(self.place)).await;
            let end = end.map_err(|error| SessionError::Unreachable(error.kind()))?;
            Ok(Dialed::plain(Box::new(end)))
        })
    }
}

/// Sessions of one world.
#[derive(Clone)]
pub struct SessionTickets {
    /// Session of the administrator.
    pub admin: SessionTicket,
    /// Sessions of [`USERS`], in order.
    pub users: Vec<SessionTicket>,
}

/// An initialised store with its accounts and a session of each, so that passwords are stretched
/// once for all worlds.
static FRESH: LazyLock<(MemoryMeta, SessionTickets)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can be made").block_on(set_up())
});

/// Returns a copy of the initialised store and its sessions. The first call must be outside of a
/// runtime.
#[must_use]
pub fn fresh() -> (MemoryMeta, SessionTickets) {
    let (store, tickets) = &*FRESH;
    (store.copy(), tickets.clone())
}

async fn set_up() -> (MemoryMeta, SessionTickets) {
    let history = Arc::new(History::new(false));
    let chance = RandomSource::new(0, "set up");
    let clock = SimulatedClock::new(Instant::now(), 0, chance.clone());
    let store = MemoryMeta::new();
    let admin = UserName::new("admin").expect("a plain name");
    Mds::set_up(&store, &admin, PASSWORD, START_MS, &mut StdRng::seed_from_u64(1))
        .expect("an empty store can be set up");
    let weather = crate::network::NetworkFaults {
        latency_us: (10, 20),
        bytes_per_ms: 1 << 20,
        window: 1 << 16,
        refused_percent: 0,
        breaks_percent: 0,
    };
    let network = Network::new(weather, chance.clone(), history.clone());
    let host =
        MdsHost::new(store.clone(), Config::default(), clock.clone(), network.clone(), history, chance);
    host.start();
    let dial = Arc::new(ToMds { network, from: Host::Client(0) });
    let login = sealstone_client::MdsClient::login(
        dial.clone(),
        clock.clone(),
        MdsOptions::default(),
        &admin,
        PASSWORD,
    );
    let admin = login.await.expect("the password is right").ticket().clone();
    let registrar =
        sealstone_client::MdsClient::resume(dial.clone(), clock.clone(), options(), admin.clone());
    let mut users = Vec::new();
    for name in USERS {
        let user = UserName::new(name).expect("a plain name");
        let password = password(name);
        registrar
            .register(&user, options().suite, &password, Role::User, false, None)
            .await
            .expect("an administrator may");
        let login =
            sealstone_client::MdsClient::login(dial.clone(), clock.clone(), options(), &user, &password)
                .await;
        users.push(login.expect("the password is right").ticket().clone());
    }
    let found = store.copy();
    host.kill();
    (found, SessionTickets { admin, users })
}

struct RunningServer {
    tasks: Arc<TaskSet>,
    _stop: watch::Sender<bool>,
}

/// The machine.
pub struct MdsHost {
    /// The store, which survives.
    pub store: MemoryMeta,
    config: Config,
    running: Mutex<Option<RunningServer>>,
    clock: Arc<SimulatedClock>,
    network: Arc<Network>,
    history: Arc<History>,
    chance: Arc<RandomSource>,
}

impl MdsHost {
    /// Creates a stopped machine with an initialised store.
    #[must_use]
    pub fn new(
        store: MemoryMeta,
        config: Config,
        clock: Arc<SimulatedClock>,
        network: Arc<Network>,
        history: Arc<History>,
        chance: Arc<RandomSource>,
    ) -> Arc<Self> {
        Arc::new(Self { store, config, running: Mutex::default(), clock, network, history, chance })
    }

    /// Starts the server, unless it runs.
    pub fn start(&self) {
        let mut running = self.running.lock();
        if running.is_some() {
            return;
        }
        self.store.fail_after(None);
        let mds = match Mds::open(Arc::new(self.store.clone()), self.config.clone()) {
            Ok(mds) => Arc::new(mds),
            Err(error) => {
                self.history.violate(format!("the metadata server does not start: {error:?}"));
                return;
            }
        };
        self.history.add_line("mds starts");
        let (clock, chance) = (self.clock.clone(), self.chance.clone());
        let environment = Environment {
            now_ms: Arc::new(move || clock.now_ms()),
            entropy: Arc::new(move || Box::new(chance.generator())),
            inline: true,
        };
        let limits = Limits {
            logins_max: 4,
            reap_retry: Duration::from_secs(5),
            tidy_every: Duration::from_secs(1),
            poll_every: Duration::from_secs(5),
            ..Limits::default()
        };
        let tasks = TaskSet::new(self.history.clone());
        let network = self.network.clone();
        let dialer = Box::new(move |url: &_, _: &_| ToDevice::way(&network, Host::Mds, url));
        let devices = Arc::new(InitiatorDevices::new(self.clock.clone(), dialer));
        let keeper = Housekeeper::new(mds.clone(), devices, environment.clone(), limits.clone());
        let (stop, stopped) = watch::channel(false);
        tasks.spawn("the metadata server", keeper.clone().run(stopped.clone()));
        tasks.spawn("the metadata server", keeper.clone().run_own(stopped.clone()));
        tasks.spawn("the metadata server", keeper.clone().run_clearer(stopped.clone()));
        tasks.spawn("the metadata server", keeper.run_settler(stopped));
        let serve_tasks = Arc::downgrade(&tasks);
        self.network.serve(Host::Mds, move |end| {
            let channel = ChannelBinding(binding(&end));
            let serving = serve_stream(
                end,
                channel,
                LoginSource::default(),
                mds.clone(),
                environment.clone(),
                limits.clone(),
            );
            if let Some(tasks) = serve_tasks.upgrade() {
                tasks.spawn("the metadata server", async move {
                    // The client handles the end of its connection.
                    let _ = serving.await;
                });
            }
        });
        *running = Some(RunningServer { tasks, _stop: stop });
    }

    /// Kills the process.
    pub fn kill(&self) {
        if let Some(RunningServer { tasks, .. }) = self.running.lock().take() {
            tasks.end();
        }
        let unsettled = self.store.unsettled();
        self.store.crash(self.chance.range(0..=unsettled as u64) as usize);
        self.history.add_line("mds is killed");
        self.network.down(Host::Mds);
    }
}
