//! A device that serves clients: from its configuration to the end of its last flush.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::{LossSink, UnitOptions};
use sealstone_channel::Pin;
use sealstone_chap_file::read_access_file;
use sealstone_daemon::machine_clock::KeptClock;
use sealstone_daemon::metrics::Observed;
use sealstone_daemon::time::{FollowedClock, Following, ResponseAuth};
use sealstone_daemon::{AUDIT_FILE, AuditLog, Shutdown, ShutdownTrigger, bind, check_data_folder};
use sealstone_failure::{Failure, Outcome, chain};
use sealstone_function_service::{FunctionService, RunRecorder};
use sealstone_iscsi_target::{IscsiTarget, RefusalSink, RefusalSinkHandle};
use sealstone_osd::SecurityMethod;
use sealstone_osd_device::audit::AuditSink;
use sealstone_osd_device::boot::{self, RunningDevice};
use sealstone_osd_device::{DeviceEnvironment, OsdConfig, OsdUnit, Worker};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_sntp::{FollowPolicy, TimeKey};
use sealstone_store::disk::BackgroundThread;
use sealstone_store::{BLOCK, ObjectStore, StoreOptions};
use tokio::task::JoinHandle;

use crate::audit::DeviceAudit;
use crate::blocks::{self, Blocks, Exposure, TARGET_PREFIX};
use crate::config::{DeviceServerConfig, PortalTls};
use crate::control::{self, ControlHandler, ControlSocket};
use crate::environment::{FollowedEnvironment, MachineEnvironment};
use crate::failures::boot_failure;
use crate::metrics::ObservedOsd;
use crate::scrub::{ScrubSettings, Scrubber};
use crate::stopped::open_folder;
use crate::target::{listener_tls, target_config};
use crate::upkeep::{UpkeepThread, VerificationThread, off_pool};
use crate::{functions, identity};

/// Interval at which the store checks whether a commit is due.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// A running device. Dropping it stops it without waiting for its end.
pub struct DeviceServer {
    name: String,
    url: String,
    address: SocketAddr,
    tls: PortalTls,
    /// Pin of its certificate; `None` without TLS.
    pin: Option<Pin>,
    /// The time server that the clock follows.
    time_server: Option<String>,
    observed: Arc<ObservedOsd>,
    running: JoinHandle<Outcome>,
    trigger: ShutdownTrigger,
}

/// Tasks and threads of a running device.
struct DeviceTasks {
    unit: Arc<OsdUnit>,
    serving: JoinHandle<std::io::Result<()>>,
    /// Task that stores the state of the machine's clock.
    kept: JoinHandle<()>,
    /// Task that follows the time server.
    following: Option<JoinHandle<()>>,
    upkeep: UpkeepThread,
    verification: VerificationThread,
    worker: Worker,
    background: BackgroundThread,
    control: ControlSocket,
    scrubber: Arc<Scrubber>,
    functions: Arc<FunctionService>,
    blocks: Arc<Blocks>,
}

impl DeviceTasks {
    /// Waits for the shutdown, then stops in order: connections, upkeep, store.
    async fn run(self, shutdown: Shutdown) -> Outcome {
        shutdown.wait().await;
        drop(self.control);
        // A command that waits for a function would delay the end of its connection.
        let service = self.functions;
        off_pool("stop-functions", move || service.shut_down()).await?;
        self.serving.await.map_err(Failure::operation)?.map_err(|error| Failure::from(error).at("target"))?;
        let _ = self.kept.await;
        if let Some(following) = self.following {
            // It stores the last served time, so that a restart serves no earlier one.
            let _ = following.await;
        }
        let (unit, scrubber, blocks) = (self.unit, self.scrubber, self.blocks);
        off_pool("stop-device", move || {
            drop(self.upkeep);
            drop(self.verification);
            scrubber.end();
            drop(self.worker);
            let flushed = unit.shut_down();
            blocks.close();
            drop(self.background);
            flushed
        })
        .await?
        .map_err(|error| Failure::operation(chain(&error)).at("the last flush"))
    }
}

impl DeviceServer {
    /// Opens the device and listens. It serves until `shutdown`, or until [`Self::shutdown`].
    ///
    /// # Errors
    /// The configuration is wrong, or the folder, the store or the port cannot be used.
    pub async fn start(config: DeviceServerConfig, shutdown: &Shutdown) -> Outcome<Self> {
        let data = config.data.as_path();
        let (trigger, shutdown) = shutdown.child();
        check_methods(&config.osd)?;
        let limits = functions::limits(&config.functions)?;
        // Read first: a wrong file must not leave the device unrestricted.
        let access = config.access_file.as_deref().map(read_access_file).transpose()?;
        // A second daemon on the same port fails before it touches the folder.
        let (listener, address) = bind(&config.listen, "listen").await?;
        if config.osd.insecure_adhash && !address.ip().is_loopback() && !config.accept_insecure {
            return Err(Failure::usage("--insecure-adhash is allowed on loopback only")
                .at(format!("listen {address}"))
                .hint("F5h is insecure; --i-accept-insecure allows it"));
        }
        let tls = listener_tls(&config, address)?;
        let store_options = store_options(&config);
        // Checked before the log is opened, so that a wrong folder stays untouched.
        check_data_folder(data)?;
        open_folder(data)?;
        let log = AuditLog::open(&data.join(AUDIT_FILE), config.audit_mib_max.saturating_mul(1 << 20))?;
        let (audit_state, log) = (log.state(), Arc::new(log));
        let audit = Arc::new(DeviceAudit(Arc::clone(&log)));
        let refusal_sink = RefusalSinkHandle::by(Arc::clone(&audit) as Arc<dyn RefusalSink>);
        let kept = KeptClock::open(data)?;
        let clock = match config.time {
            Some(_) => Some(FollowedClock::open(data, FollowPolicy::SIGNED)?),
            None => None,
        };
        let environment: Arc<dyn DeviceEnvironment> = match &clock {
            Some(clock) => Arc::new(FollowedEnvironment(Arc::clone(clock))),
            None => Arc::new(MachineEnvironment),
        };
        // Before the keys are loaded, so that no engine program can inherit them.
        let engines = functions::start_engines(config.engines.as_deref(), config.strict_isolation)?;
        let running = {
            let (folder, osd) = (data.to_owned(), config.osd);
            let environment = Arc::clone(&environment);
            let recorder = Arc::clone(&audit) as Arc<dyn AuditSink>;
            tokio::task::spawn_blocking(move || {
                boot::start(&folder, osd, store_options, environment, recorder)
            })
            .await
            .map_err(Failure::operation)?
            .map_err(|error| boot_failure(error, data))?
        };
        let RunningDevice { unit, store, identity, .. } = running;
        let recorder = Arc::clone(&audit) as Arc<dyn RunRecorder>;
        let service = functions::start_service(data, limits, engines, environment, recorder, &unit)?;
        let time = match config.time.as_deref().zip(clock) {
            Some((server, clock)) => Some(follow(server, clock, Arc::clone(&log), &unit).await),
            None => None,
        };
        let followed = time.as_ref().map(|time| Arc::clone(time.clock()));
        let kept = kept.start(followed, &shutdown);
        let background = BackgroundThread::start(Arc::clone(&store), TICK_INTERVAL)?;
        let own = match tls {
            PortalTls::Off => None,
            PortalTls::Required | PortalTls::Optional => Some(identity::open(data, &identity.system_id)?),
        };

        let target_name = format!("{TARGET_PREFIX}{}", identity.name);
        let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let url = format!("iscsi://{advertised}/{target_name}/0");
        let restricted = blocks::restricts_block_units(access.as_ref());
        let mut settings = target_config(&config, &target_name, own.as_ref().map(|own| (tls, own)))?;
        settings.refusal_sink = refusal_sink;
        settings.protocol.access = access.map(Arc::new);
        if config.advertise.is_some()
            && let Some(entry) = settings.protocol.targets.first_mut()
        {
            entry.addresses.push(advertised);
        }
        let target = IscsiTarget::new(settings, vec![(0, Arc::clone(&unit) as Arc<dyn LogicalUnit>)])
            .map_err(|error| {
                Failure::usage(error).hint("`sealstone config example osd` explains the limits")
            })?;
        let exposure = Exposure { address, restricted, insecure: config.insecure_block };
        let portal = url.trim_end_matches("/0").to_owned();
        let (objects, exporting) = (Arc::clone(&store) as Arc<dyn ObjectStore>, target.clone());
        unit.set_target_name(&target_name);
        let unit_options = UnitOptions {
            write_through: config.osd.write_through,
            losses: Arc::clone(&audit) as Arc<dyn LossSink>,
            ..blocks::unit_options()
        };
        let folder = data.to_owned();
        let blocks = tokio::task::spawn_blocking(move || {
            let mut blocks = Blocks::open_serving(objects, &target_name, unit_options, folder)?;
            blocks.export(&exporting, portal, exposure).map(|()| Arc::new(blocks))
        })
        .await
        .map_err(Failure::operation)??;
        let scrubber = Scrubber::start(identity.name.clone(), Arc::clone(&unit), scrub_settings(&config))?;
        let scrubber = Arc::new(scrubber);
        let handler = ControlHandler {
            blocks: Arc::clone(&blocks),
            audit: Some(Arc::clone(&log)),
            scrubber: Some(Arc::clone(&scrubber)),
            functions: Some(Arc::clone(&service)),
        };
        let control = control::serve(data, handler, &shutdown)?;
        let observed = Arc::new(ObservedOsd {
            name: identity.name.clone(),
            insecure_adhash: config.osd.insecure_adhash,
            blocks: Arc::clone(&blocks),
            unit: Arc::clone(&unit),
            store,
            target: target.clone(),
            audit: audit_state,
            scrubber: Arc::clone(&scrubber),
            functions: Arc::clone(&service),
            time: time.clone(),
        });
        let until = shutdown.wait();
        let serving = tokio::spawn(async move { target.serve(listener, until).await });
        let upkeep = UpkeepThread::start(Arc::clone(&unit), Arc::clone(&blocks), Arc::clone(&service))?;
        let verification = VerificationThread::start(Arc::clone(&blocks))?;
        let worker = Worker::start(Arc::clone(&unit))?;
        let tasks = DeviceTasks {
            unit,
            serving,
            kept,
            following: time.as_ref().map(|time| time.start(&shutdown)),
            upkeep,
            verification,
            worker,
            background,
            control,
            scrubber,
            functions: service,
            blocks,
        };
        Ok(Self {
            name: identity.name,
            url,
            address,
            tls,
            pin: own.and_then(|own| own.pin().ok()),
            time_server: time.map(|time| time.server().to_owned()),
            observed,
            running: tokio::spawn(tasks.run(shutdown)),
            trigger,
        })
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL for clients, `iscsi://HOST:PORT/IQN/0`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address of its portal.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the TLS mode of its portal.
    #[must_use]
    pub const fn tls(&self) -> PortalTls {
        self.tls
    }

    /// Returns the pin of its certificate; `None` without TLS.
    #[must_use]
    pub const fn pin(&self) -> Option<Pin> {
        self.pin
    }

    /// Returns the time server that its clock follows.
    #[must_use]
    pub fn time_server(&self) -> Option<&str> {
        self.time_server.as_deref()
    }

    /// Returns the source of its metrics, which holds its store open.
    #[must_use]
    pub fn observed(&self) -> Arc<dyn Observed> {
        Arc::clone(&self.observed) as Arc<dyn Observed>
    }

    /// Stops the device and waits for its end, as [`Self::join`] does.
    ///
    /// # Errors
    /// The last flush failed.
    pub async fn shutdown(self) -> Outcome {
        self.trigger.trigger();
        self.join().await
    }

    /// Waits for the shutdown and the end of the device.
    ///
    /// # Errors
    /// The portal or the last flush failed.
    pub async fn join(self) -> Outcome {
        self.running.await.map_err(Failure::operation)?
    }
}

/// Refuses a minimum method that needs an insecure option, and logs insecure options.
fn check_methods(config: &OsdConfig) -> Outcome {
    if config.method_floor == Some(SecurityMethod::NoSec) && !config.insecure_nosec {
        return Err(Failure::usage("--method-floor nosec requires --insecure-nosec")
            .hint("without it the minimum is capkey, with TLS"));
    }
    if config.insecure_nosec {
        tracing::warn!("--insecure-nosec: all peers that reach the port can read and write all objects");
    }
    if config.insecure_capkey {
        tracing::warn!("--insecure-capkey: CAPKEY without TLS stops neither injection nor replay");
    }
    if config.insecure_adhash {
        tracing::warn!("--insecure-adhash: data under algorithm F5h can be replaced in transit");
    }
    if let Some(cipher) = config.method_cipher {
        tracing::warn!(cipher = cipher.name(), "--method-cipher: reproduces a paper; it protects nothing");
    }
    Ok(())
}

fn store_options(config: &DeviceServerConfig) -> StoreOptions {
    StoreOptions {
        group_age_max: Duration::from_secs(config.group_s_max),
        io: config.io,
        discard_blocks_min: match config.discard_kib_min {
            0 => u64::MAX,
            kib => kib.saturating_mul(1024).div_ceil(BLOCK),
        },
        ..blocks::store_options()
    }
}

fn scrub_settings(config: &DeviceServerConfig) -> ScrubSettings {
    let interval_h = config.scrub_interval_h;
    ScrubSettings {
        interval: (interval_h > 0).then(|| Duration::from_secs(interval_h.saturating_mul(3600))),
        bytes_per_s: config.scrub_mib_s_max.saturating_mul(1 << 20),
    }
}

/// Starts to follow the metadata server's clock, and waits for the first response before the device
/// serves clients.
async fn follow(
    server: &str,
    clock: Arc<FollowedClock>,
    audit: Arc<AuditLog>,
    unit: &Arc<OsdUnit>,
) -> Arc<Following> {
    let keys = Arc::downgrade(unit);
    let proof = ResponseAuth::Key(Arc::new(move || Some(TimeKey::derived(&*keys.upgrade()?.time_key()?))));
    let following = Following::new(server, proof, Arc::clone(&clock), audit);
    following.first().await;
    clock.begin();
    following
}
