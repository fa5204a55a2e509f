//! `sealstone osd init` and `osd serve`.
//!
//! Does: builds a device from its configuration: store, keys, iSCSI portal, block units, functions,
//! scrub, clock, metrics and audit log; starts and ends them in order.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::{LossSink, UnitOptions};
use sealstone_channel::{Pin, TlsIdentity};
use sealstone_function_service::{FunctionService, RunRecorder};
use sealstone_iscsi_target::{
    CommandPacing, ConnectionRate, Counter, IscsiTarget, ListenerTls, RefusalSinkHandle, TargetConfig,
    TlsMode,
};
use sealstone_osd::SecurityMethod;
use sealstone_osd_device::boot::{self, BootError, RunningDevice};
use sealstone_osd_device::provision::DataDir;
use sealstone_osd_device::{DeviceEnvironment, OsdConfig, OsdUnit, Worker};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_sntp::{FollowPolicy, TimeKey};
use sealstone_store::disk::BackgroundThread;
use sealstone_store::{BLOCK, DiskStore, FormatError, ObjectStore, StoreOptions};
use tokio::task::JoinHandle;

use super::access;
use super::audit_log::{AuditLog, AuditState};
use super::blocks::{self, Blocks, Exposure};
use super::control::{self, ControlHandler, ControlSocket};
use super::functions;
use super::identity;
use super::machine_clock::{self, KeptClock};
use super::osd_create::{StorePlace, init, new_key};
use super::scrub::{self, Scrubber};
use super::time::{FollowedClock, Following, ResponseAuth};
use super::upkeep::{UpkeepThread, VerificationThread, off_pool};
use super::{AUDIT_FILE, MetricsPort, OSD_AUDIT_MIB_DEFAULT, Shutdown, bind, check_data_folder, now_ms};
use crate::cli::{GlobalArgs, Osd};
use crate::command::osd_check;
use crate::config::{self, OsdOptions, TlsName};
use crate::failure::{Failure, FailureKind, Outcome, chain};
use crate::metrics::{MetricKind, Observed, Page};
use crate::output::{Output, human_bytes};
use crate::text::{ShownPath as _, with_paths};

/// Prefix of every target name (RFC 7143 §4.2.7.1).
pub(crate) const TARGET_PREFIX: &str = "iqn.2026-11.org.sealstone:osd.";
/// Interval at which the store checks whether a commit is due.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

const LISTEN_DEFAULT: &str = "127.0.0.1:3260";
const CONNECTIONS_DEFAULT: usize = 256;
const CONNECTS_S_DEFAULT: u32 = 128;
/// Burst of new connections of one address, as a multiple of those per second.
const CONNECTS_BURST: u32 = 4;
const LOGINS_DEFAULT: usize = 64;
const BUFFER_MIB_DEFAULT: usize = 256;
const IDLE_S_DEFAULT: u64 = 60;
const LOGIN_S_DEFAULT: u64 = 15;
const PDU_S_DEFAULT: u64 = 30;
const GROUP_S_DEFAULT: u64 = 5;
/// Measured: see ADR 14.
const SHORT_FIRST_DEFAULT: bool = true;
/// Unsolicited bytes of a write if the data of writes is limited.
const PULL_FIRST_BURST: u32 = 64 * 1024;

/// Clock and random numbers of the machine.
pub(crate) struct Machine;

impl DeviceEnvironment for Machine {
    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn is_sound(&self) -> bool {
        machine_clock::is_sound()
    }

    fn known_behind_ms(&self) -> Option<u64> {
        machine_clock::known_behind_ms()
    }

    fn fill_random(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the system has random bytes");
    }
}

pub(super) fn boot_failure(error: BootError, data: &Path) -> Failure {
    use sealstone_osd_device::ProvisionError as P;
    let error = match error {
        BootError::Store(error) => return store_failure(error, data),
        other => other,
    };
    let failure = Failure::operation(chain(&error));
    match &error {
        BootError::Provision(P::NotInitialised(_)) => Failure { kind: FailureKind::NotFound, ..failure },
        BootError::Provision(P::KeyMode { path, .. }) => {
            Failure { kind: FailureKind::Denied, ..failure }.hint(format!("chmod 600 {}", path.shown()))
        }
        BootError::Provision(P::Io { path, source }) => failure.medium_hint(source, path),
        BootError::Provision(P::Name(_)) => {
            Failure { kind: FailureKind::Usage, ..failure }.hint("use --name")
        }
        _ => failure,
    }
}

/// Returns the failure of a store that cannot be opened, with its path and the next step.
pub(crate) fn store_failure(error: FormatError, data: &Path) -> Failure {
    store_hint(error, data).at(data.join("store").shown())
}

pub(super) fn store_hint(error: FormatError, data: &Path) -> Failure {
    let place = data.join("store");
    let failure = Failure::operation(chain(&error));
    let check = format!("sealstone osd check --data {}", data.shown());
    match &error {
        FormatError::InUse => failure.hint(format!(
            "stop the device first, or check it while it runs: sealstone scrub --data {}",
            data.shown()
        )),
        FormatError::Occupied { .. } | FormatError::AlreadyFormatted => failure.hint("--force overwrites it"),
        FormatError::NotFormatted => {
            failure.hint("restore the folder from a backup, or create a new device with `sealstone osd init`")
        }
        FormatError::Missing { name } | FormatError::Truncated { name, .. } => failure.hint(format!(
            "restore {name} from a backup of this folder; without it put the files of this device again"
        )),
        FormatError::Superblock(_) | FormatError::Foreign => {
            failure.hint("restore all files of the folder from one backup")
        }
        FormatError::Index { .. } | FormatError::IndexLost => {
            failure.hint(format!("the index is damaged; `{check}` shows what can be read"))
        }
        FormatError::Io { source, .. } => failure.medium_hint(source, &place),
        _ => failure,
    }
}

/// A running device.
pub(crate) struct OsdDaemon {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) tls: TlsName,
    /// Pin of its certificate; `None` without TLS.
    pub(crate) pin: Option<Pin>,
    pub(crate) observed: Arc<dyn Observed>,
    /// Task that stores the state of the machine's clock.
    kept: JoinHandle<()>,
    /// The time server that the clock follows.
    time: Option<(Arc<Following>, JoinHandle<()>)>,
    unit: Arc<OsdUnit>,
    serving: JoinHandle<std::io::Result<()>>,
    upkeep: UpkeepThread,
    verification: VerificationThread,
    worker: Worker,
    background: BackgroundThread,
    control: ControlSocket,
    scrubber: Arc<Scrubber>,
    functions: Arc<FunctionService>,
    blocks: Arc<Blocks>,
    shutdown: Shutdown,
}

/// Sources of the metrics page.
struct ObservedOsd {
    name: String,
    unit: Arc<OsdUnit>,
    store: Arc<DiskStore>,
    target: IscsiTarget,
    audit: Arc<AuditState>,
    blocks: Arc<Blocks>,
    scrubber: Arc<Scrubber>,
    functions: Arc<FunctionService>,
    time: Option<Arc<Following>>,
    insecure_adhash: bool,
}

impl OsdDaemon {
    /// Opens the device in `data` and listens.
    pub(crate) async fn start(data: &Path, options: &OsdOptions, shutdown: Shutdown) -> Outcome<Self> {
        let flag = |option: Option<bool>| option.unwrap_or(false);
        let config = OsdConfig {
            allow_osd1: flag(options.allow_osd1),
            insecure_nosec: flag(options.insecure_nosec),
            insecure_capkey: flag(options.insecure_capkey),
            method_floor: options.method_floor.map(Into::into),
            insecure_adhash: flag(options.insecure_adhash),
            method_cipher: options.method_cipher.map(|name| name.0),
            paper_functions: flag(options.paper_functions),
            sealed_only: flag(options.sealed_only),
            audit_reads: flag(options.audit_reads),
            write_through: flag(options.write_through),
        };
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
            tracing::warn!(
                cipher = cipher.name(),
                "--method-cipher: reproduces a paper; it protects nothing"
            );
        }
        let limits = functions::limits(options)?;
        // Read first: a wrong file must not leave the device unrestricted.
        let access = options.access_file.as_deref().map(access::read).transpose()?;
        // A second daemon on the same port fails before it touches the folder.
        let (listener, address) = bind(options.listen.as_deref().unwrap_or(LISTEN_DEFAULT), "listen").await?;
        if config.insecure_adhash && !address.ip().is_loopback() && !flag(options.i_accept_insecure) {
            return Err(Failure::usage("--insecure-adhash is allowed on loopback only")
                .at(format!("listen {address}"))
                .hint("F5h is insecure; --i-accept-insecure allows it"));
        }
        let tls = listener_tls(options, address)?;
        let store_options = StoreOptions {
            group_age_max: Duration::from_secs(options.group_s_max.unwrap_or(GROUP_S_DEFAULT)),
            io: options.io.map_or_else(Default::default, Into::into),
            discard_blocks_min: match options.discard_kib_min {
                None | Some(0) => u64::MAX,
                Some(kib) => kib.saturating_mul(1024).div_ceil(BLOCK),
            },
            ..blocks::store_options()
        };
        // Checked before the log is opened, so that a wrong folder stays untouched.
        check_data_folder(data)?;
        DataDir::open(data).map_err(|error| boot_failure(error.into(), data))?;
        let audit_mib = options.audit_mib_max.unwrap_or(OSD_AUDIT_MIB_DEFAULT);
        let audit = AuditLog::open(&data.join(AUDIT_FILE), audit_mib.saturating_mul(1 << 20))?;
        let audit_state = audit.state();
        let audit = Arc::new(audit);
        let refusal_sink =
            RefusalSinkHandle::by(Arc::clone(&audit) as Arc<dyn sealstone_iscsi_target::RefusalSink>);
        let kept = KeptClock::open(data)?;
        let clock = match options.time {
            Some(_) => Some(FollowedClock::open(data, FollowPolicy::SIGNED)?),
            None => None,
        };
        let environment: Arc<dyn DeviceEnvironment> = match &clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn DeviceEnvironment>,
            None => Arc::new(Machine),
        };
        // Before the keys are loaded, so that no engine program can inherit them.
        let engines = functions::start_engines(options)?;
        let (folder, recorder) = (data.to_owned(), Arc::clone(&audit));
        let service_environment = Arc::clone(&environment);
        let running = tokio::task::spawn_blocking(move || {
            boot::start(&folder, config, store_options, environment, recorder)
        })
        .await
        .map_err(Failure::operation)?
        .map_err(|error| boot_failure(error, data))?;
        let RunningDevice { unit, store, identity, .. } = running;
        let recorder = Arc::clone(&audit) as Arc<dyn RunRecorder>;
        let service = functions::start_service(data, limits, engines, service_environment, recorder, &unit)?;
        let time = match options.time.as_deref().zip(clock) {
            Some((server, clock)) => Some(follow(server, clock, Arc::clone(&audit), &unit).await),
            None => None,
        };
        let followed = time.as_ref().map(|time| Arc::clone(time.clock()));
        let kept = kept.start(followed, &shutdown);
        let background = BackgroundThread::start(Arc::clone(&store), TICK_INTERVAL)?;
        let own = match tls {
            TlsName::Off => None,
            TlsName::Required | TlsName::Optional => Some(identity::open(data, &identity.system_id)?),
        };

        let target_name = format!("{TARGET_PREFIX}{}", identity.name);
        let advertised = options.advertise.clone().unwrap_or_else(|| address.to_string());
        let url = format!("iscsi://{advertised}/{target_name}/0");
        let mut target_config = TargetConfig::new(target_name.clone());
        target_config.connections_max = options.connections_max.unwrap_or(CONNECTIONS_DEFAULT);
        // A sixteenth is reserved for other addresses.
        let fair = target_config.connections_max - target_config.connections_max / 16;
        target_config.connections_per_source_max = options.connections_per_address_max.unwrap_or(fair);
        let per_second = options.connects_per_address_s_max.map_or(CONNECTS_S_DEFAULT, NonZeroU32::get);
        let burst = per_second.saturating_mul(CONNECTS_BURST);
        target_config.connection_rate_per_source = ConnectionRate { burst, per_second };
        target_config.logins_per_source_max =
            options.logins_per_address_max.map_or(LOGINS_DEFAULT, NonZeroUsize::get);
        target_config.refusal_sink = refusal_sink;
        target_config.memory_max = options.buffer_mib_max.unwrap_or(BUFFER_MIB_DEFAULT) << 20;
        // Long commands of one address use half of the processors; short commands of all clients
        // have the others.
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        target_config.long_per_source_max = (cores / 2).max(1);
        // An address that does not read its responses can hold half of the buffers.
        let longest = (target_config.protocol.data_out_max as usize).next_power_of_two();
        target_config.memory_per_source_max =
            (target_config.memory_max / 2).max(longest).min(target_config.memory_max);
        target_config.memory_per_connection_max =
            target_config.memory_per_connection_max.min(target_config.memory_max);
        target_config.protocol.ping_after_ms = options.idle_s_max.unwrap_or(IDLE_S_DEFAULT) * 1000;
        target_config.protocol.login_timeout_ms = options.login_s_max.unwrap_or(LOGIN_S_DEFAULT) * 1000;
        target_config.tls = own.as_ref().map(|own| portal_tls(tls, own, options, data)).transpose()?;
        let pdu_ms = options.pdu_s_max.unwrap_or(PDU_S_DEFAULT).saturating_mul(1000);
        target_config.protocol.pdu_timeout_ms = pdu_ms;
        target_config.protocol.transfer_timeout_ms = pdu_ms;
        let pace = CommandPacing::default();
        target_config.pace = CommandPacing {
            short_first: options.short_first.unwrap_or(SHORT_FIRST_DEFAULT),
            slices: options.time_slices.unwrap_or(pace.slices),
        };
        if let Some(kib) = options.pull_kib.filter(|kib| *kib > 0) {
            target_config.protocol.pull_bytes = Some(kib.saturating_mul(1024));
            target_config.protocol.policy.first_burst = PULL_FIRST_BURST;
        }
        let restricted = blocks::restricts_block_units(access.as_ref());
        target_config.protocol.access = access.map(Arc::new);
        target_config.protocol.allow_target_reset = flag(options.allow_target_reset);
        if options.advertise.is_some()
            && let Some(entry) = target_config.protocol.targets.first_mut()
        {
            entry.addresses.push(advertised);
        }
        let target = IscsiTarget::new(target_config, vec![(0, Arc::clone(&unit) as Arc<dyn LogicalUnit>)])
            .map_err(|error| {
                Failure::usage(error).hint("`sealstone config example osd` explains the limits")
            })?;
        let exposure = Exposure { address, restricted, insecure: flag(options.insecure_block) };
        let portal = url.trim_end_matches("/0").to_owned();
        let (objects, exporting) = (Arc::clone(&store) as Arc<dyn ObjectStore>, target.clone());
        unit.set_target_name(&target_name);
        let unit_options = UnitOptions {
            write_through: flag(options.write_through),
            losses: Arc::clone(&audit) as Arc<dyn LossSink>,
            lazy: Some(blocks::lazy_options(data)?),
            ..blocks::unit_options()
        };
        let blocks = tokio::task::spawn_blocking(move || {
            let mut blocks = Blocks::open(objects, &target_name, unit_options)?;
            blocks.export(&exporting, portal, exposure).map(|()| Arc::new(blocks))
        })
        .await
        .map_err(Failure::operation)??;
        let interval_h = options.scrub_interval_h.unwrap_or(scrub::INTERVAL_H_DEFAULT);
        let settings = scrub::ScrubSettings {
            interval: (interval_h > 0).then(|| Duration::from_secs(interval_h.saturating_mul(3600))),
            bytes_per_s: options
                .scrub_mib_s_max
                .map_or(scrub::MIB_S_DEFAULT, NonZeroU64::get)
                .saturating_mul(1 << 20),
        };
        let scrubber = Arc::new(Scrubber::start(identity.name.clone(), Arc::clone(&unit), settings)?);
        let served_blocks = Arc::clone(&blocks);
        let handler = ControlHandler {
            blocks: Arc::clone(&blocks),
            scrubber: Some(Arc::clone(&scrubber)),
            functions: Some(Arc::clone(&service)),
        };
        let control = control::serve(data, handler, &shutdown)?;
        let observed = Arc::new(ObservedOsd {
            name: identity.name.clone(),
            insecure_adhash: config.insecure_adhash,
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
        let time = time.map(|time| {
            let task = time.start(&shutdown);
            (time, task)
        });
        Ok(Self {
            name: identity.name,
            url,
            address,
            tls,
            kept,
            time,
            pin: own.and_then(|own| own.pin().ok()),
            observed,
            unit,
            serving,
            upkeep,
            verification,
            worker,
            background,
            control,
            scrubber,
            functions: service,
            blocks: served_blocks,
            shutdown,
        })
    }

    /// Serves until the shutdown, then stops in order: connections, upkeep, store.
    pub(crate) async fn finish(self) -> Outcome {
        self.shutdown.wait().await;
        drop(self.control);
        // A command that waits for a function would delay the end of its connection.
        let service = self.functions;
        off_pool("stop-functions", move || service.shut_down()).await?;
        self.serving.await.map_err(Failure::operation)?.map_err(|error| Failure::from(error).at("target"))?;
        let _ = self.kept.await;
        if let Some((_, task)) = self.time {
            // It stores the last served time, so that a restart serves no earlier one.
            let _ = task.await;
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

/// Returns the TLS mode of a portal at this address.
fn listener_tls(options: &OsdOptions, address: SocketAddr) -> Outcome<TlsName> {
    let here = address.ip().to_canonical().is_loopback();
    let tls = options.tls.unwrap_or(if here { TlsName::Optional } else { TlsName::Required });
    if tls == TlsName::Off && !here && !options.insecure_no_tls.unwrap_or(false) {
        return Err(Failure::usage("TLS can be off on loopback addresses only")
            .at(format!("listen {address}"))
            .hint("omit --tls; --insecure-no-tls allows plain text"));
    }
    if tls != TlsName::Required && !here {
        tracing::warn!(tls = tls.name(), "clients that do not start TLS are served in plain text");
    }
    Ok(tls)
}

/// Returns the TLS configuration of the portal.
fn portal_tls(tls: TlsName, own: &TlsIdentity, options: &OsdOptions, data: &Path) -> Outcome<ListenerTls> {
    Ok(ListenerTls {
        mode: if tls == TlsName::Required { TlsMode::Required } else { TlsMode::Optional },
        timeout: Duration::from_secs(options.login_s_max.unwrap_or(LOGIN_S_DEFAULT)),
        server: identity::server(own, data)?,
    })
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

impl Observed for ObservedOsd {
    fn observe(&self, page: &mut Page) {
        page.raw(&self.unit.metrics().prometheus(&self.name));
        self.blocks.observe(&self.name, page);
        self.scrubber.observe(page);
        page.raw(&self.functions.prometheus(&self.name));
        if let Some(time) = &self.time {
            time.observe(&self.name, page);
        }
        let usage = self.unit.usage();
        let labels = [("device", self.name.as_str())];
        let mechanism = [("device", self.name.as_str()), ("mechanism", "adhash")];
        let insecure = [(&mechanism[..], u64::from(self.insecure_adhash))];
        page.family(
            MetricKind::Gauge,
            "sealstone_osd_insecure_profile",
            "Enabled mechanisms that are known to be broken.",
            insecure,
        );
        let mut one =
            |kind, name: &str, help: &str, value| page.family(kind, name, help, [(&labels[..], value)]);
        one(MetricKind::Gauge, "sealstone_osd_capacity_bytes", "Bytes that objects may use.", usage.total);
        one(MetricKind::Gauge, "sealstone_osd_used_bytes", "Bytes in use.", usage.used);
        let (free, handed_out) = self.store.fragmentation();
        let help = "Runs of free blocks of 4 KiB in the store.";
        one(MetricKind::Gauge, "sealstone_store_free_runs", help, free.runs);
        let help = "Length of the longest run of free blocks.";
        one(MetricKind::Gauge, "sealstone_store_free_run_longest_bytes", help, free.longest * BLOCK);
        one(MetricKind::Gauge, "sealstone_store_free_bytes", "Bytes of free blocks.", free.blocks * BLOCK);
        let help = "Bytes of blocks allocated for writes since the start.";
        one(MetricKind::Counter, "sealstone_store_allocated_bytes_total", help, handed_out.blocks * BLOCK);
        let help = "Runs of these blocks: more runs per MiB mean more fragmented data.";
        one(MetricKind::Counter, "sealstone_store_allocated_runs_total", help, handed_out.runs);
        let inline = self.store.inline_use();
        let help = "Small objects whose bytes are in the store's index.";
        one(MetricKind::Gauge, "sealstone_store_inline_objects", help, inline.blocks);
        let help = "Bytes of small objects in the index.";
        one(MetricKind::Gauge, "sealstone_store_inline_bytes", help, inline.bytes);
        let help = "Maximum bytes of small objects in the index; further ones use blocks.";
        one(MetricKind::Gauge, "sealstone_store_inline_limit_bytes", help, inline.bytes_max);
        one(MetricKind::Gauge, "sealstone_osd_partitions", "Partitions.", usage.partitions);
        let work = self.unit.work_counts();
        one(
            MetricKind::Gauge,
            "sealstone_osd_immediate_commands",
            "Immediate commands in progress.",
            work.immediate,
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_immediate_commands_ended_total",
            "Finished immediate commands.",
            work.immediate_ended,
        );
        one(
            MetricKind::Gauge,
            "sealstone_osd_stranded_partitions",
            "Partitions that are hidden because a restore or refresh is incomplete; it is retried.",
            work.stranded,
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_records_total",
            "Audit records written.",
            self.audit.records(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_suppressed_total",
            "Audit records that are in the count of another line.",
            self.audit.suppressed(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_audit_lost_total",
            "Audit records that the disk refused.",
            self.audit.lost(),
        );
        one(
            MetricKind::Counter,
            "sealstone_osd_connections_evicted_total",
            "Connections closed in favour of accounts or addresses with fewer.",
            self.target.evicted(),
        );
        let hashing = self.unit.hashing();
        for (name, help, value) in [
            (
                "sealstone_osd_alldata_hashed_bytes_total",
                "Bytes of data hashed for check values of reads.",
                hashing.hashed_bytes,
            ),
            (
                "sealstone_osd_alldata_stored_units_total",
                "Units of reads whose stored digest was used.",
                hashing.stored_units,
            ),
            (
                "sealstone_osd_alldata_stored_pages_total",
                "Attribute pages whose stored digest was used.",
                hashing.stored_pages,
            ),
        ] {
            one(MetricKind::Counter, name, help, value);
        }
        let counters = self.target.counters();
        for &counter in Counter::ALL {
            let kind =
                if counter.name().ends_with("_total") { MetricKind::Counter } else { MetricKind::Gauge };
            one(kind, &format!("sealstone_iscsi_{}", counter.name()), counter.help(), counters.get(counter));
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.audit.is_failing() {
            return Err("cannot write the audit log".into());
        }
        if self.store.is_poisoned() {
            let faults: Vec<String> = self.store.health().faults.iter().map(ToString::to_string).collect();
            return Err(match faults.is_empty() {
                true => "the store failed to flush and refuses writes; restart the device".into(),
                false => format!("the store is read-only: {}", faults.join("; ")),
            });
        }
        let space = self.store.space();
        if space.used > space.total { Err("the store uses more than its capacity".into()) } else { Ok(()) }
    }
}

/// `sealstone osd …`.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Osd) -> Outcome {
    match command {
        Osd::Init { data, capacity, preallocate, device, force, name, key_out } => {
            let place = match (device, capacity) {
                (Some(path), capacity) => StorePlace::Raw { path, capacity, force },
                (None, Some(capacity)) => StorePlace::Files { capacity, preallocate },
                (None, None) => return Err(Failure::usage("a device in files requires --capacity")),
            };
            let made = init(&data, place, name.as_deref(), key_out.as_deref())?;
            if let Some(warning) = &made.warning {
                output.remark(warning);
            }
            let capacity = made.capacity;
            let value = serde_json::json!({
                "system_id": made.system_id, "name": made.name, "capacity": capacity, "pin": made.pin.to_string(),
                "warning": made.warning,
            });
            let value = with_paths(value, [("key", &made.key), ("data", &data)]);
            output.result(&value, || {
                format!(
                    "device {} of {} in {}\nsystem id {}\npin {} (of its certificate; must not be altered on the way to the metadata \
                     server)\ninitial key {} (secret: it is the device's master key)",
                    made.name,
                    human_bytes(capacity),
                    data.shown(),
                    made.system_id,
                    made.pin,
                    made.key.shown(),
                )
            })
        }
        Osd::NewKey { data, key_out } => {
            let (made, key) = new_key(&data, key_out.as_deref())?;
            output.remark(format!(
                "all keys of {} are void; add it again with `sealstone mds add-osd URL --key {}`",
                made.identity.name,
                key.shown()
            ));
            let value = serde_json::json!({ "name": made.identity.name });
            output.done(&with_paths(value, [("data", &data), ("key", &key)]))
        }
        Osd::Clock(command) => crate::command::clock::run(output, command, "device.toml"),
        Osd::Approve { device, show, wait } => {
            crate::command::block_on(crate::command::approve::run(global, output, &device, (show, wait)))
        }
        Osd::Drain(arguments) => {
            crate::command::block_on(crate::command::drain::run(global, output, &arguments))
        }
        Osd::Rebalance(arguments) => {
            crate::command::block_on(crate::command::rebalance::run(global, output, &arguments))
        }
        Osd::Status { data } => crate::command::osd_status::run(output, &data),
        Osd::Check { data, repair } => osd_check::check(output, &data, repair),
        Osd::Serve { data, config, options } => {
            let options = options.or(config::read(config.as_ref())?);
            super::run(serve(output, &data, &options))
        }
    }
}

async fn serve(output: Output, data: &Path, options: &OsdOptions) -> Outcome {
    let shutdown = Shutdown::on_signals()?;
    let metrics = MetricsPort::bind(options.metrics.as_deref()).await?;
    let daemon = OsdDaemon::start(data, options, shutdown.clone()).await?;
    let metrics = metrics.serve(Arc::clone(&daemon.observed), &shutdown);
    let value = serde_json::json!({
        "ready": "osd", "name": daemon.name, "url": daemon.url, "address": daemon.address.to_string(),
        "tls": daemon.tls.name(), "pin": daemon.pin.map(|pin| pin.to_string()),
        "time": daemon.time.as_ref().map(|(time, _)| time.server()),
        "metrics": metrics.map(|address| address.to_string()),
    });
    let value = with_paths(value, [("audit", &data.join(AUDIT_FILE))]);
    output.ready(&value, || match daemon.pin {
        Some(pin) => format!("ready {}\npin {pin} (TLS {})", daemon.url, daemon.tls.name()),
        None => format!("ready {} (no TLS)", daemon.url),
    });
    daemon.finish().await
}
