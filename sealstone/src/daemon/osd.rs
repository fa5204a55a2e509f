//! `sealstone osd init` and `osd serve`.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealstone_block::{LossSink, UnitOptions};
use sealstone_channel::{Identity, Pin};
use sealstone_device::boot::{self, BootError, RunningDevice};
use sealstone_device::provision::DataDir;
use sealstone_device::{Environment, OsdConfig, OsdUnit, Worker};
use sealstone_osd::SecurityMethod;
use sealstone_scsi::lu::LogicalUnit;
use sealstone_sntp::{FollowPolicy, TimeKey};
use sealstone_store::disk::BackgroundThread;
use sealstone_store::{BLOCK, DiskStore, FormatError, ObjectStore, StoreOptions};
use sealstone_target::{
    CommandPacing, ConnectionRate, Counter, IscsiTarget, ListenerTls, RefusalSinkHandle, TargetConfig,
    TlsMode,
};
use tokio::task::JoinHandle;

use super::access;
use super::audit_log::{AuditLog, AuditState};
use super::blocks::{self, Blocks, Exposure};
use super::control::{self, Control, Served};
use super::identity;
use super::machine_clock::{self, KeptClock};
use super::osd_create::{Place, init, new_key};
use super::scrub::{self, Scrubber};
use super::time::{FollowedClock, Following, Proof};
use super::{AUDIT_FILE, MetricsPort, OSD_AUDIT_MIB_DEFAULT, Shutdown, bind, check_data_folder, now_ms};
use crate::cli::{Global, Osd};
use crate::command::check;
use crate::config::{self, OsdOptions, TlsName};
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::metrics::{Kind as Sample, Observed, Page};
use crate::output::{Output, human_bytes};
use crate::text::{ShownPath as _, with_paths};

/// What every target name begins with (RFC 7143 §4.2.7.1).
pub(crate) const TARGET_PREFIX: &str = "iqn.2026-11.org.sealstone:osd.";
/// How often the nonce lease is looked after.
const UPKEEP_EVERY: Duration = Duration::from_millis(500);
/// How often the store looks whether a transaction group is due.
const TICK_EVERY: Duration = Duration::from_millis(250);

const LISTEN_DEFAULT: &str = "127.0.0.1:3260";
const CONNECTIONS_DEFAULT: usize = 256;
const CONNECTS_S_DEFAULT: u32 = 128;
/// Connections of one address that may come at once, as a multiple of those in a second.
const CONNECTS_BURST: u32 = 4;
const LOGINS_DEFAULT: usize = 64;
const BUFFER_MIB_DEFAULT: usize = 256;
const IDLE_S_DEFAULT: u64 = 60;
const LOGIN_S_DEFAULT: u64 = 15;
const PDU_S_DEFAULT: u64 = 30;
const GROUP_S_DEFAULT: u64 = 5;
/// Short commands go first: measured, see ADR 14.
const SHORT_FIRST_DEFAULT: bool = true;
/// Bytes of a write that come unasked while writes are pulled.
const PULL_FIRST_BURST: u32 = 64 * 1024;

/// The machine's clock and random bytes.
pub(super) struct Machine;

impl Environment for Machine {
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
        getrandom::fill(into).expect("the system gives random bytes");
    }
}

pub(super) fn boot_failure(error: BootError, data: &Path) -> Failure {
    use sealstone_device::ProvisionError as P;
    let error = match error {
        BootError::Store(error) => return store_failure(error, data),
        other => other,
    };
    let failure = Failure::operation(chain(&error));
    match &error {
        BootError::Provision(P::NotInitialised(_)) => Failure { kind: Kind::NotFound, ..failure },
        BootError::Provision(P::KeyMode { path, .. }) => {
            Failure { kind: Kind::Denied, ..failure }.hint(format!("chmod 600 {}", path.shown()))
        }
        BootError::Provision(P::Io { path, source }) => medium_hint(failure, source, path),
        BootError::Provision(P::Name(_)) => Failure { kind: Kind::Usage, ..failure }.hint("use --name"),
        _ => failure,
    }
}

/// Why a device's store cannot be opened, and what to do about it.
pub(crate) fn store_failure(error: FormatError, data: &Path) -> Failure {
    store_hint(error, data).at(data.join("store").shown())
}

pub(super) fn store_hint(error: FormatError, data: &Path) -> Failure {
    let place = data.join("store");
    let failure = Failure::operation(chain(&error));
    let check = format!("sealstone osd check --data {}", data.shown());
    match &error {
        FormatError::InUse => failure.hint(format!(
            "another process has the device open: stop it first, or ask it: sealstone scrub --data {}",
            data.shown()
        )),
        FormatError::Occupied { .. } | FormatError::AlreadyFormatted => failure.hint("--force overwrites it"),
        FormatError::NotFormatted => failure.hint(
            "its superblock is not there: bring the folder back from a copy, or make a new device with \
             `sealstone osd init`",
        ),
        FormatError::Missing { name } | FormatError::Truncated { name, .. } => failure.hint(format!(
            "bring {name} back from a copy of this folder; without it put the files of this device again on others"
        )),
        FormatError::Superblock(_) | FormatError::Foreign => {
            failure.hint("bring the folder back from a copy, all files of one moment")
        }
        FormatError::Index { .. } | FormatError::IndexLost => {
            failure.hint(format!("the index is damaged; `{check}` tells what can be read"))
        }
        FormatError::Io { source, .. } => medium_hint(failure, source, &place),
        _ => failure,
    }
}

/// What to do about an error of the file system.
pub(crate) fn medium_hint(failure: Failure, error: &std::io::Error, place: &Path) -> Failure {
    use std::io::ErrorKind as E;
    match error.kind() {
        E::PermissionDenied => Failure { kind: Kind::Denied, ..failure }
            .hint(format!("{} must be the daemon's own and writable", place.shown())),
        E::ReadOnlyFilesystem => {
            failure.hint("the file system is mounted for reading only: mount it for writing")
        }
        E::StorageFull | E::QuotaExceeded => {
            failure.hint("free some space on this file system and start again")
        }
        _ => failure,
    }
}

/// A device that serves.
pub(crate) struct OsdDaemon {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) tls: TlsName,
    /// What clients know it by; none without TLS.
    pub(crate) pin: Option<Pin>,
    pub(crate) observed: Arc<dyn Observed>,
    /// Keeps the machine's clock.
    kept: JoinHandle<()>,
    /// Whose clock it follows.
    time: Option<(Arc<Following>, JoinHandle<()>)>,
    unit: Arc<OsdUnit>,
    serving: JoinHandle<std::io::Result<()>>,
    upkeep: JoinHandle<()>,
    worker: Worker,
    background: BackgroundThread,
    control: Control,
    scrubber: Arc<Scrubber>,
    blocks: Arc<Blocks>,
    shutdown: Shutdown,
}

/// What the metrics page asks.
struct Watched {
    name: String,
    unit: Arc<OsdUnit>,
    store: Arc<DiskStore>,
    target: IscsiTarget,
    audit: Arc<AuditState>,
    blocks: Arc<Blocks>,
    scrubber: Arc<Scrubber>,
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
            sealed_only: flag(options.sealed_only),
            audit_reads: flag(options.audit_reads),
            write_through: flag(options.write_through),
        };
        if config.method_floor == Some(SecurityMethod::NoSec) && !config.insecure_nosec {
            return Err(Failure::usage("--method-floor nosec needs --insecure-nosec")
                .hint("without it the least is capkey, inside TLS"));
        }
        if config.insecure_nosec {
            tracing::warn!("--insecure-nosec: anybody who reaches the port can read and write everything");
        }
        if config.insecure_capkey {
            tracing::warn!("--insecure-capkey: CAPKEY without TLS stops neither injection nor replay");
        }
        if config.insecure_adhash {
            tracing::warn!("--insecure-adhash: data under algorithm F5h can be exchanged on the wire");
        }
        if let Some(cipher) = config.method_cipher {
            tracing::warn!(
                cipher = cipher.name(),
                "--method-cipher: reproduces a paper, and protects nothing"
            );
        }
        // Before anything is touched: a wrong file must not open the door wider.
        let access = options.access_file.as_deref().map(access::read).transpose()?;
        // The port first: a second daemon on the same folder and port fails without having touched anything.
        let (listener, address) = bind(options.listen.as_deref().unwrap_or(LISTEN_DEFAULT), "listen").await?;
        if config.insecure_adhash && !address.ip().is_loopback() && !flag(options.i_accept_insecure) {
            return Err(Failure::usage("--insecure-adhash is for loopback addresses")
                .at(format!("listen {address}"))
                .hint("F5h protects nothing; --i-accept-insecure serves it nevertheless"));
        }
        let tls = listener_tls(options, address)?;
        let store_options = StoreOptions {
            group_age_max: Duration::from_secs(options.group_s_max.unwrap_or(GROUP_S_DEFAULT)),
            io: options.io.map_or_else(Default::default, Into::into),
            discard_blocks_min: match options.discard_kib_min {
                None | Some(0) => u64::MAX,
                Some(kib) => kib.saturating_mul(1024).div_ceil(BLOCK),
            },
            ..StoreOptions::default()
        };
        // Checked before the log is opened, so that a wrong folder stays untouched.
        check_data_folder(data)?;
        DataDir::open(data).map_err(|error| boot_failure(error.into(), data))?;
        let audit_mib = options.audit_mib_max.unwrap_or(OSD_AUDIT_MIB_DEFAULT);
        let audit = AuditLog::open(&data.join(AUDIT_FILE), audit_mib.saturating_mul(1 << 20))?;
        let audit_state = audit.state();
        let audit = Arc::new(audit);
        let refusal_sink =
            RefusalSinkHandle::by(Arc::clone(&audit) as Arc<dyn sealstone_target::RefusalSink>);
        let kept = KeptClock::open(data)?;
        let clock = match options.time {
            Some(_) => Some(FollowedClock::open(data, FollowPolicy::SIGNED)?),
            None => None,
        };
        let environment: Arc<dyn Environment> = match &clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Environment>,
            None => Arc::new(Machine),
        };
        let (folder, recorder) = (data.to_owned(), Arc::clone(&audit));
        let running = tokio::task::spawn_blocking(move || {
            boot::start(&folder, config, store_options, environment, recorder)
        })
        .await
        .map_err(Failure::operation)?
        .map_err(|error| boot_failure(error, data))?;
        let RunningDevice { unit, store, identity, .. } = running;
        let time = match options.time.as_deref().zip(clock) {
            Some((server, clock)) => Some(follow(server, clock, Arc::clone(&audit), &unit).await),
            None => None,
        };
        let followed = time.as_ref().map(|time| Arc::clone(time.clock()));
        let kept = kept.start(followed, &shutdown);
        let background = BackgroundThread::start(Arc::clone(&store), TICK_EVERY)?;
        let own = match tls {
            TlsName::Off => None,
            TlsName::Required | TlsName::Optional => Some(identity::open(data, &identity.system_id)?),
        };

        let target_name = format!("{TARGET_PREFIX}{}", identity.name);
        let advertised = options.advertise.clone().unwrap_or_else(|| address.to_string());
        let url = format!("iscsi://{advertised}/{target_name}/0");
        let mut target_config = TargetConfig::new(target_name.clone());
        target_config.connections_max = options.connections_max.unwrap_or(CONNECTIONS_DEFAULT);
        // A few places stay for others, whoever comes first.
        let fair = target_config.connections_max - target_config.connections_max / 16;
        target_config.connections_per_source_max = options.connections_per_address_max.unwrap_or(fair);
        let per_second = options.connects_per_address_s_max.map_or(CONNECTS_S_DEFAULT, NonZeroU32::get);
        let burst = per_second.saturating_mul(CONNECTS_BURST);
        target_config.connection_rate_per_source = ConnectionRate { burst, per_second };
        target_config.logins_per_source_max =
            options.logins_per_address_max.map_or(LOGINS_DEFAULT, NonZeroUsize::get);
        target_config.refusal_sink = refusal_sink;
        target_config.memory_max = options.buffer_mib_max.unwrap_or(BUFFER_MIB_DEFAULT) << 20;
        // Half of the processor for the long commands of one address: the other half is for everybody's short ones.
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        target_config.long_per_source_max = (cores / 2).max(1);
        // Whoever does not read what he asked for holds buffers: half of them at most.
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
        let restricted = blocks::keeps_strangers_out(access.as_ref());
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
        let (objects, offering) = (Arc::clone(&store) as Arc<dyn ObjectStore>, target.clone());
        unit.set_target_name(&target_name);
        let unit_options = UnitOptions {
            write_through: flag(options.write_through),
            losses: Arc::clone(&audit) as Arc<dyn LossSink>,
            ..blocks::unit_options()
        };
        let blocks = tokio::task::spawn_blocking(move || {
            let mut blocks = Blocks::open(objects, &target_name, unit_options)?;
            blocks.offer(&offering, portal, exposure).map(|()| Arc::new(blocks))
        })
        .await
        .map_err(Failure::operation)??;
        let interval_h = options.scrub_interval_h.unwrap_or(scrub::INTERVAL_H_DEFAULT);
        let settings = scrub::Settings {
            interval: (interval_h > 0).then(|| Duration::from_secs(interval_h.saturating_mul(3600))),
            bytes_per_s: options
                .scrub_mib_s_max
                .map_or(scrub::MIB_S_DEFAULT, NonZeroU64::get)
                .saturating_mul(1 << 20),
        };
        let scrubber = Arc::new(Scrubber::start(identity.name.clone(), Arc::clone(&unit), settings)?);
        let served_blocks = Arc::clone(&blocks);
        let served = Served { blocks: Arc::clone(&blocks), scrubber: Some(Arc::clone(&scrubber)) };
        let control = control::serve(data, served, &shutdown)?;
        let observed = Arc::new(Watched {
            name: identity.name.clone(),
            insecure_adhash: config.insecure_adhash,
            blocks: Arc::clone(&blocks),
            unit: Arc::clone(&unit),
            store,
            target: target.clone(),
            audit: audit_state,
            scrubber: Arc::clone(&scrubber),
            time: time.clone(),
        });
        let until = shutdown.wait();
        let serving = tokio::spawn(async move { target.serve(listener, until).await });
        let upkeep = tokio::spawn(keep_up(Arc::clone(&unit), Arc::clone(&blocks)));
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
            worker,
            background,
            control,
            scrubber,
            blocks: served_blocks,
            shutdown,
        })
    }

    /// Serves until the shutdown, then ends in order: connections, upkeep, store.
    pub(crate) async fn finish(self) -> Outcome {
        self.shutdown.wait().await;
        drop(self.control);
        self.serving.await.map_err(Failure::operation)?.map_err(|error| Failure::from(error).at("target"))?;
        self.upkeep.abort();
        let _ = self.kept.await;
        if let Some((_, task)) = self.time {
            // It writes down what was told, so that no later start tells less.
            let _ = task.await;
        }
        let (unit, scrubber, blocks) = (self.unit, self.scrubber, self.blocks);
        tokio::task::spawn_blocking(move || {
            scrubber.end();
            drop(self.worker);
            let flushed = unit.shut_down();
            blocks.close();
            drop(self.background);
            flushed
        })
        .await
        .map_err(Failure::operation)?
        .map_err(|error| Failure::operation(chain(&error)).at("the last flush"))
    }
}

/// Who must speak TLS on a portal at this address.
fn listener_tls(options: &OsdOptions, address: SocketAddr) -> Outcome<TlsName> {
    let here = address.ip().to_canonical().is_loopback();
    let tls = options.tls.unwrap_or(if here { TlsName::Optional } else { TlsName::Required });
    if tls == TlsName::Off && !here && !options.insecure_no_tls.unwrap_or(false) {
        return Err(Failure::usage("TLS is off only on loopback addresses")
            .at(format!("listen {address}"))
            .hint("leave --tls out; --insecure-no-tls serves plain text to the network nevertheless"));
    }
    if tls != TlsName::Required && !here {
        tracing::warn!(tls = tls.name(), "whoever does not ask for TLS is served in plain text");
    }
    Ok(tls)
}

/// TLS of the portal.
fn portal_tls(tls: TlsName, own: &Identity, options: &OsdOptions, data: &Path) -> Outcome<ListenerTls> {
    Ok(ListenerTls {
        mode: if tls == TlsName::Required { TlsMode::Required } else { TlsMode::Optional },
        timeout: Duration::from_secs(options.login_s_max.unwrap_or(LOGIN_S_DEFAULT)),
        server: identity::server(own, data)?,
    })
}

/// Has the device's clock follow the metadata server's: its first answer is waited for before anybody is served.
async fn follow(
    server: &str,
    clock: Arc<FollowedClock>,
    audit: Arc<AuditLog>,
    unit: &Arc<OsdUnit>,
) -> Arc<Following> {
    let keys = Arc::downgrade(unit);
    let proof = Proof::Key(Arc::new(move || Some(TimeKey::derived(&*keys.upgrade()?.time_key()?))));
    let following = Following::new(server, proof, Arc::clone(&clock), audit);
    following.first().await;
    clock.begin();
    following
}

/// Keeps the nonce lease ahead of the clock; the write is an fsync, so it runs where it may block.
async fn keep_up(unit: Arc<OsdUnit>, blocks: Arc<Blocks>) {
    let began = Instant::now();
    let mut every = tokio::time::interval(UPKEEP_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut complained = false;
    loop {
        every.tick().await;
        let (unit, blocks) = (Arc::clone(&unit), Arc::clone(&blocks));
        let keep = move || {
            blocks.tick(began.elapsed());
            unit.upkeep()
        };
        match tokio::task::spawn_blocking(keep).await {
            Ok(Ok(())) => complained = false,
            Ok(Err(error)) if !complained => {
                complained = true;
                tracing::error!(%error, "the nonce lease cannot be kept; signed commands are refused");
            }
            Ok(Err(_)) => {}
            // The runtime is ending.
            Err(_) => return,
        }
    }
}

impl Observed for Watched {
    fn observe(&self, page: &mut Page) {
        page.raw(&self.unit.metrics().prometheus(&self.name));
        self.blocks.observe(&self.name, page);
        self.scrubber.observe(page);
        if let Some(time) = &self.time {
            time.observe(&self.name, page);
        }
        let usage = self.unit.usage();
        let labels = [("device", self.name.as_str())];
        let mechanism = [("device", self.name.as_str()), ("mechanism", "adhash")];
        let insecure = [(&mechanism[..], u64::from(self.insecure_adhash))];
        page.family(
            Sample::Gauge,
            "sealstone_osd_insecure_profile",
            "Mechanisms that are known to be broken and were switched on.",
            insecure,
        );
        let mut one =
            |kind, name: &str, help: &str, value| page.family(kind, name, help, [(&labels[..], value)]);
        one(Sample::Gauge, "sealstone_osd_capacity_bytes", "Bytes that objects may use.", usage.total);
        one(Sample::Gauge, "sealstone_osd_used_bytes", "Bytes in use.", usage.used);
        let (free, handed_out) = self.store.fragmentation();
        let help = "Runs that the store's free blocks of 4 KiB are in.";
        one(Sample::Gauge, "sealstone_store_free_runs", help, free.runs);
        let help = "Length of the longest run of free blocks.";
        one(Sample::Gauge, "sealstone_store_free_run_longest_bytes", help, free.longest * BLOCK);
        one(Sample::Gauge, "sealstone_store_free_bytes", "Bytes of free blocks.", free.blocks * BLOCK);
        let help = "Bytes of blocks handed out for writes since the start.";
        one(Sample::Counter, "sealstone_store_allocated_bytes_total", help, handed_out.blocks * BLOCK);
        let help = "Runs that those blocks were in: the more for each MiB, the more fragmented is new data.";
        one(Sample::Counter, "sealstone_store_allocated_runs_total", help, handed_out.runs);
        let inline = self.store.inline_use();
        let help = "Small objects whose bytes lie in the store's index.";
        one(Sample::Gauge, "sealstone_store_inline_objects", help, inline.blocks);
        let help = "What they take of the index.";
        one(Sample::Gauge, "sealstone_store_inline_bytes", help, inline.bytes);
        let help = "How much of the index they may take; small objects beyond it go to blocks.";
        one(Sample::Gauge, "sealstone_store_inline_limit_bytes", help, inline.bytes_max);
        one(Sample::Gauge, "sealstone_osd_partitions", "Partitions.", usage.partitions);
        let work = self.unit.work_counts();
        one(
            Sample::Gauge,
            "sealstone_osd_immediate_commands",
            "Immediate commands that were begun and have not ended.",
            work.immediate,
        );
        one(
            Sample::Counter,
            "sealstone_osd_immediate_commands_ended_total",
            "Immediate commands that have ended.",
            work.immediate_ended,
        );
        one(
            Sample::Gauge,
            "sealstone_osd_stranded_partitions",
            "Partitions out of sight because a restore or refresh failed midway; it is tried again.",
            work.stranded,
        );
        one(
            Sample::Counter,
            "sealstone_osd_audit_records_total",
            "Audit records written.",
            self.audit.records(),
        );
        one(
            Sample::Counter,
            "sealstone_osd_audit_suppressed_total",
            "Audit records that are in the count of another line.",
            self.audit.suppressed(),
        );
        one(
            Sample::Counter,
            "sealstone_osd_audit_lost_total",
            "Audit records that the disk did not take.",
            self.audit.lost(),
        );
        one(
            Sample::Counter,
            "sealstone_osd_connections_evicted_total",
            "Connections closed for those of others with fewer.",
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
            one(Sample::Counter, name, help, value);
        }
        let counters = self.target.counters();
        for &counter in Counter::ALL {
            let kind = if counter.name().ends_with("_total") { Sample::Counter } else { Sample::Gauge };
            one(kind, &format!("sealstone_iscsi_{}", counter.name()), counter.help(), counters.get(counter));
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.audit.is_failing() {
            return Err("the audit log cannot be written".into());
        }
        if self.store.is_poisoned() {
            let faults: Vec<String> = self.store.health().faults.iter().map(ToString::to_string).collect();
            return Err(match faults.is_empty() {
                true => "the store failed to flush and refuses writes; restart the device".into(),
                false => format!("the store can only be read: {}", faults.join("; ")),
            });
        }
        let space = self.store.space();
        if space.used > space.total { Err("the store uses more than its capacity".into()) } else { Ok(()) }
    }
}

/// `sealstone osd …`.
pub(crate) fn command(global: &Global, output: Output, command: Osd) -> Outcome {
    match command {
        Osd::Init { data, capacity, preallocate, device, force, name, key_out } => {
            let place = match (device, capacity) {
                (Some(path), capacity) => Place::Raw { path, capacity, force },
                (None, Some(capacity)) => Place::Files { capacity, preallocate },
                (None, None) => return Err(Failure::usage("a device in files needs --capacity")),
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
                    "device {} of {} in {}\nsystem id {}\npin {} (of its certificate: it must reach the metadata server \
                     unaltered)\ninitial key {} (guard it: it is the device's master key)",
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
                "all keys of {} are void; take it over with `sealstone mds add-osd URL --key {}`",
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
        Osd::Check { data, repair } => check::check(output, &data, repair),
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
