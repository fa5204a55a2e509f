//! Block units of a device: export on the iSCSI target, and administration by the command line.
//!
//! Contract: block units have no capabilities; every initiator that logs in can read and write
//! them. They are exported only on loopback, on a target that restricts initiators (CHAP or a
//! list), or with `--insecure-block`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_block::{
    BLOCK_PARTITION, BlockSize, BlockUnit, BlockUnits, CatalogError, DamagedUnit, LazyStatus, NewUnit,
    UnitDescription, UnitOptions, UnitProtection, UnitStatus, seals_keys_at_rest,
};
use sealstone_block_e2e::{BLOCK_LEN, DiskHeader};
use sealstone_block_protection::{ProtectedBlock, ProtectionProfile, ProtectionSettings};
use sealstone_daemon::machine::{now_ms, random};
use sealstone_daemon::metrics::{MetricKind, Page};
use sealstone_failure::{Failure, FailureKind, Outcome, chain};
use sealstone_iscsi::target_side::{AccessRule, AccessRules};
use sealstone_iscsi_target::{Counter, IscsiTarget};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_store::{ObjectStore, StoreOptions};
use serde::{Deserialize, Serialize};

use crate::block_secret::{
    SecretState, lazy_options, load_secret, read_secret, secret_failure_text, secret_state,
};

/// Parameters of a new unit, as the command line sends them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UnitParams {
    /// Name of the unit.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Logical unit number; `None`: the next free one.
    pub lun: Option<u16>,
    /// Whether space is allocated on write.
    pub thin: bool,
    /// Whether initiators see a removable medium.
    pub removable: bool,
    /// Whether every write is durable before it is acknowledged.
    pub write_through: bool,
    /// Name of the least protection of sessions.
    pub protect: String,
    /// Profile of a level with keys of blocks, if it is not paper+safe.
    #[serde(default)]
    pub profile: Option<String>,
}

/// A unit as `--json` prints it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct UnitReport {
    /// Name of the unit.
    pub name: String,
    /// Logical unit number.
    pub lun: u16,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u64,
    /// Whether space is allocated on write.
    pub thin: bool,
    /// Whether initiators see a removable medium.
    pub removable: bool,
    /// Whether the administrator set write-through.
    pub write_through: bool,
    /// Whether a write may be acknowledged before it is durable (WCE).
    pub write_cache: bool,
    /// Name of the least protection of sessions; e2e: the unit has the header of such a disk; none.
    pub protect: String,
    /// Profile of a level with keys of blocks.
    pub profile: Option<String>,
    /// Serial number.
    pub serial: String,
    /// Time of creation, milliseconds since 1970.
    pub created_ms: u64,
    /// Allocated bytes.
    pub used: u64,
    /// Number of initiators with a reservation or registration.
    pub reserved_by: u64,
    /// iSCSI name of the target that exports it.
    pub target: String,
    /// URL for initiators; `None` if the device is stopped.
    pub url: Option<String>,
    /// Why the unit cannot be used, and the next step. If its record is damaged, size, kind and
    /// serial number are unknown: 0, false or empty.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// Prefix of every target name (RFC 7143 §4.2.7.1).
pub(crate) const TARGET_PREFIX: &str = "iqn.2026-11.org.sealstone:osd.";

/// Name of the protection of a unit with an end-to-end protected disk.
pub const END_TO_END: &str = "e2e";

impl UnitReport {
    /// Returns the report of a unit with a damaged record.
    fn damaged(unit: DamagedUnit, used: u64, target: &str) -> Self {
        Self {
            name: unit.name,
            lun: unit.lun,
            size: 0,
            block_size: 0,
            thin: false,
            removable: false,
            write_through: false,
            write_cache: false,
            protect: UNKNOWN_PROTECTION.to_owned(),
            profile: None,
            serial: String::new(),
            created_ms: 0,
            used,
            reserved_by: 0,
            target: target.to_owned(),
            url: None,
            unavailable: Some(unit.reason),
        }
    }
}

/// Name of the protection of a unit whose record is damaged.
const UNKNOWN_PROTECTION: &str = "unknown";

/// A removed unit.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RemovedUnit {
    /// Name of the removed unit.
    pub removed: String,
    /// Its logical unit number.
    pub lun: u16,
    /// Identifier of the end-to-end protected disk that it had.
    pub disk: Option<[u8; 16]>,
}

/// A unit with a new key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RotatedUnit {
    /// Name of the unit.
    pub unit: String,
    /// The new epoch of its key.
    pub key_epoch: u32,
}

/// State of the protection of a unit, as `--json` prints it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ProtectionReport {
    /// Name of the unit.
    pub name: String,
    /// Name of its protection.
    pub protect: String,
    /// Profile of a level with keys of blocks.
    pub profile: Option<String>,
    /// Whether the device runs and can use the keys of the unit.
    pub available: bool,
    /// Why it cannot use them, and the next step.
    #[serde(default)]
    pub unavailable: Option<String>,
    /// Epoch of the unit's key; at levels of the paper 1 if keys are sealed. Otherwise 0.
    pub key_epoch: u32,
    /// Versions that wait for verification.
    pub unverified: u64,
    /// Blocks whose keys or versions are damaged.
    pub unverifiable: u64,
    /// Age of the oldest unverified version, milliseconds.
    pub oldest_ms: u64,
    /// Time from write to verification, 99th percentile, milliseconds.
    pub window_p99_ms: u64,
    /// Longest time from write to verification, milliseconds.
    pub window_max_ms: u64,
    /// Bytes of the version log.
    pub log_bytes: u64,
    /// Maximum bytes of the version log.
    pub log_bytes_max: u64,
    /// Versions that were verified.
    pub verified: u64,
    /// Acknowledged writes that were not authentic.
    pub rejected: u64,
    /// Writes that were verified at once.
    pub eager: u64,
    /// Writes refused because the version log was full.
    pub busy: u64,
    /// Reports of readers about intact blocks.
    pub false_reports: u64,
    /// Writes that were verified at once and refused, because they were not authentic.
    pub refused_writes: u64,
    /// Commands that failed because of damaged blocks, keys or versions.
    pub damaged: u64,
    /// Events of all sessions of the device.
    pub sessions: SessionFailures,
}

/// Failures of the sessions of a device, for all of its units, since it started.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct SessionFailures {
    /// Sessions that ended because received bytes were not authentic.
    pub forged: u64,
    /// Writes that were rejected because their keys do not match their blocks.
    pub malformed_writes: u64,
    /// Logins that were refused because of the protection of units.
    pub refused_logins: u64,
}

impl SessionFailures {
    fn of(target: &IscsiTarget) -> Self {
        let counters = target.counters();
        Self {
            forged: counters.get(Counter::NotAuthentic),
            malformed_writes: counters.get(Counter::MalformedSeals),
            refused_logins: counters.get(Counter::ProtectionRefused),
        }
    }
}

/// File with the identifier of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the options of a store that may have block units.
pub(crate) fn store_options() -> StoreOptions {
    // Blocks have checksums; no command of a plain unit uses digests.
    StoreOptions { undigested: [BLOCK_PARTITION].into(), ..StoreOptions::default() }
}

/// Returns the options of block units that depend on the machine.
pub(crate) fn unit_options() -> UnitOptions {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut boot_id = [0; 16];
    for (byte, pair) in boot_id.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    UnitOptions { boot_id, ..UnitOptions::default() }
}

/// The block units of a store that this process has open.
pub(crate) struct Blocks {
    units: BlockUnits,
    store: Arc<dyn ObjectStore>,
    /// Folder of the secret of block keys; `None` if the device is stopped.
    folder: Option<PathBuf>,
    /// State of the file with the secret when it was read the last time.
    secret_seen: Mutex<Option<SecretState>>,
    target_name: String,
    /// The target that exports them; `None` if the device is stopped or must not export them.
    export: Option<BlockExport>,
}

struct BlockExport {
    target: IscsiTarget,
    /// URL of the target, `iscsi://HOST:PORT/IQN`.
    url: String,
}

/// How far the target is exposed to unauthenticated initiators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    /// Address of the portal.
    pub(crate) address: SocketAddr,
    /// Whether CHAP or a list of initiators is required.
    pub(crate) restricted: bool,
    /// Whether `--insecure-block` is set.
    pub(crate) insecure: bool,
}

/// Whether an access file restricts block units: every rule that admits initiators to them names
/// them or requires CHAP.
pub(crate) fn restricts_block_units(access: Option<&AccessRules>) -> bool {
    /// Prefixes of all iSCSI names (RFC 7143 §4.2.7.3): a pattern that is no longer matches every
    /// initiator.
    const NAME_TYPES: [&str; 3] = ["iqn.", "eui.", "naa."];
    let matches_all = |name: &String| {
        name.strip_suffix('*').is_some_and(|prefix| NAME_TYPES.iter().any(|kind| kind.starts_with(prefix)))
    };
    let is_closed = |rule: &AccessRule| {
        rule.account.is_some()
            || rule.luns.as_ref().is_some_and(|luns| luns.iter().all(|lun| *lun == 0))
            || !rule.initiators.iter().any(matches_all)
    };
    access.is_some_and(|access| access.rules.iter().all(is_closed))
}

impl Exposure {
    fn check(self) -> Outcome {
        if self.restricted || self.insecure || self.address.ip().is_loopback() {
            return Ok(());
        }
        Err(Failure::new(
            FailureKind::Denied,
            format!(
                "refusing to export block units on {}: every initiator could read and write them",
                self.address
            ),
        )
        .hint("listen on loopback, require CHAP, set a list of initiators, or use --insecure-block"))
    }
}

impl Blocks {
    /// Opens the units of a store. They are not exported yet.
    pub(crate) fn open(
        store: Arc<dyn ObjectStore>,
        target_name: &str,
        options: UnitOptions,
    ) -> Outcome<Self> {
        let units = BlockUnits::open_with(Arc::clone(&store), target_name, options).map_err(failure)?;
        let (folder, export) = (None, None);
        let secret_seen = Mutex::default();
        Ok(Self { units, store, folder, secret_seen, target_name: target_name.to_owned(), export })
    }

    /// Opens the units of a store for a device that serves them, with the secret of its folder.
    pub(crate) fn open_serving(
        store: Arc<dyn ObjectStore>,
        target_name: &str,
        options: UnitOptions,
        folder: PathBuf,
    ) -> Outcome<Self> {
        // Before it is read: a change meanwhile is noticed later.
        let secret_seen = Mutex::new(secret_state(&folder));
        let lazy = Some(lazy_options(&folder, &*store));
        let blocks = Self::open(store, target_name, UnitOptions { lazy, ..options })?;
        Ok(Self { folder: Some(folder), secret_seen, ..blocks })
    }

    /// Whether a unit needs the secret, and its file has changed since it was read. The caller then
    /// calls [`Self::restore_secret`] on a thread of its own, because opening units can take long.
    pub(crate) fn has_restored_secret(&self) -> bool {
        let Some(folder) = self.folder.as_ref().filter(|_| self.units.needs_secret()) else { return false };
        let state = secret_state(folder);
        let mut seen = self.secret_seen.lock();
        let is_changed = *seen != state;
        *seen = state;
        is_changed && state.is_some()
    }

    /// Reads a restored secret, and opens the units that were unavailable without it.
    pub(crate) fn restore_secret(&self) {
        let Some(folder) = &self.folder else { return };
        match read_secret(folder) {
            Ok(secret) => {
                for unit in self.units.restore_secret(secret) {
                    tracing::info!(unit, "the block unit is available again");
                }
            }
            Err(failure) => {
                let reason = secret_failure_text(&failure);
                tracing::error!(reason, "the restored secret of block keys cannot be used");
            }
        }
    }

    /// Loads or creates the secret for a new unit, if it was missing when the device started.
    fn require_secret(&self) -> Outcome {
        if let Some(folder) = self.folder.as_ref().filter(|_| self.units.lacks_secret()) {
            self.units.set_secret(load_secret(folder, &*self.store)?);
        }
        Ok(())
    }

    /// Exports all units on a target; `url` is `iscsi://HOST:PORT/IQN`.
    pub(crate) fn export(&mut self, target: &IscsiTarget, url: String, exposure: Exposure) -> Outcome {
        let units = self.units.units();
        if units.is_empty() {
            // The same rule applies to units that are created later.
            self.export = exposure.check().is_ok().then(|| BlockExport { target: target.clone(), url });
            return Ok(());
        }
        exposure.check()?;
        if !exposure.address.ip().is_loopback() && !exposure.restricted {
            tracing::warn!("--insecure-block: every initiator can read and write block units");
        }
        for unit in units {
            attach(target, &unit)?;
        }
        self.export = Some(BlockExport { target: target.clone(), url });
        Ok(())
    }

    /// Creates a unit, and exports it if the device runs.
    pub(crate) fn create(&self, params: UnitParams, running: bool) -> Outcome<UnitReport> {
        let block = BlockSize::from_bytes(params.block_size).ok_or_else(|| {
            Failure::usage(format!("unsupported block size {}", params.block_size)).hint("use 512 or 4096")
        })?;
        let protection = UnitProtection::parse(&params.protect).map_err(Failure::usage)?;
        let profile = match params.profile.as_deref() {
            None => protection.profile(),
            Some(name) => ProtectionProfile::from_name(name)
                .filter(|_| protection.stores_block_keys())
                .ok_or_else(|| Failure::usage(format!("{name} is no profile of {}", params.protect)))?,
        };
        let protection = UnitProtection::new(protection.level(), profile);
        if protection.profile() != profile {
            return Err(Failure::usage(format!("{} is no profile of {}", profile.name(), params.protect)));
        }
        if running && self.export.is_none() {
            return Err(Failure::new(
                FailureKind::Denied,
                "the device listens beyond loopback and does not restrict initiators",
            )
            .hint("require CHAP, set a list of initiators, or restart it with --insecure-block"));
        }
        if seals_keys_at_rest(protection) {
            self.require_secret()?;
        }
        let unit = self
            .units
            .create(NewUnit {
                name: params.name,
                lun: params.lun,
                bytes: params.size,
                block,
                thin: params.thin,
                removable: params.removable,
                write_through: params.write_through,
                protection,
                serial: random(),
                now_ms: now_ms(),
            })
            .map_err(failure)?;
        tracing::info!(unit = unit.description().name, lun = unit.description().lun, "block unit created");
        if let Some(export) = &self.export {
            attach(&export.target, &unit)?;
        }
        self.show(&unit.description().name)
    }

    /// Sets or clears write-through of a unit.
    pub(crate) fn set(&self, name: &str, write_through: bool) -> Outcome<UnitReport> {
        self.units.set_write_through(name, write_through).map_err(failure)?;
        tracing::info!(unit = name, write_through, "block unit changed");
        self.show(name)
    }

    /// Begins the next epoch of a unit's key.
    pub(crate) fn rotate_key(&self, name: &str) -> Outcome<RotatedUnit> {
        let key_epoch = self.units.rotate_key(name).map_err(failure)?;
        tracing::info!(unit = name, key_epoch, "key of a block unit rotated");
        Ok(RotatedUnit { unit: name.to_owned(), key_epoch })
    }

    /// Returns one unit.
    pub(crate) fn show(&self, name: &str) -> Outcome<UnitReport> {
        let found = self.list()?.into_iter().find(|unit| unit.name == name);
        found.ok_or_else(|| failure(CatalogError::NotFound(name.to_owned())))
    }

    /// Returns the state of the protection of one unit.
    pub(crate) fn status(&self, name: &str) -> Outcome<ProtectionReport> {
        let all = self.units.list().map_err(failure)?;
        let found = all.into_iter().find(|unit| unit.description.name == name);
        let Some(unit) = found else {
            let damaged = self.units.damaged().into_iter().find(|(unit, _)| unit.name == name);
            let (unit, _) = damaged.ok_or_else(|| failure(CatalogError::NotFound(name.to_owned())))?;
            return Ok(ProtectionReport {
                name: unit.name,
                protect: UNKNOWN_PROTECTION.to_owned(),
                unavailable: Some(unit.reason),
                ..ProtectionReport::default()
            });
        };
        let protection = unit.description.protection;
        let is_keyed = protection.stores_block_keys();
        let state = unit.lazy.unwrap_or_default();
        let export = self.export.as_ref();
        Ok(ProtectionReport {
            name: name.to_owned(),
            protect: self.protect_name(&unit.description),
            profile: is_keyed.then(|| protection.profile().name().to_owned()),
            available: self.export.is_some() && (!is_keyed || unit.lazy.is_some()),
            unavailable: unit.unavailable,
            key_epoch: match protection.profile() {
                ProtectionProfile::Modern => state.key_epoch,
                profile => u32::from(is_keyed && profile.binds_address()),
            },
            unverified: state.unverified as u64,
            unverifiable: state.unverifiable as u64,
            oldest_ms: state.oldest_ms,
            window_p99_ms: state.window_p99_ms,
            window_max_ms: state.window_max_ms,
            log_bytes: state.log_bytes,
            log_bytes_max: state.log_bytes_max,
            verified: state.verified,
            rejected: state.rejected,
            eager: state.eager,
            busy: state.busy,
            false_reports: state.false_reports,
            refused_writes: unit.counters.refused_writes,
            damaged: unit.counters.damaged,
            sessions: export.map(|export| SessionFailures::of(&export.target)).unwrap_or_default(),
        })
    }

    /// Removes the marks of unflushed writes of idle initiators.
    pub(crate) fn tick(&self, now: Duration) {
        self.units.tick(now);
    }

    /// Verifies blocks of units with keys.
    pub(crate) fn verify_due(&self) {
        self.units.verify_due();
    }

    /// Closes all units, after the last command.
    pub(crate) fn close(&self) {
        self.units.close();
    }

    /// Removes a unit and its data.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Outcome<RemovedUnit> {
        let unit = self.units.units().into_iter().find(|unit| unit.description().name == name);
        let disk = unit.and_then(|unit| disk_header(&unit));
        let lun = self.units.remove(name, force).map_err(failure)?;
        if let Some(export) = &self.export {
            export.target.detach(u64::from(lun));
        }
        tracing::info!(unit = name, lun, "block unit removed");
        Ok(RemovedUnit { removed: name.to_owned(), lun, disk: disk.map(|disk| disk.unit.0) })
    }

    /// Returns the name of the protection of a unit: `e2e` if it has the header of such a disk.
    fn protect_name(&self, unit: &UnitDescription) -> String {
        let is_disk = || {
            let units = self.units.units();
            let found = units.iter().find(|found| found.description().lun == unit.lun);
            found.is_some_and(|found| disk_header(found).is_some())
        };
        match unit.protection {
            UnitProtection::NONE if is_disk() => END_TO_END.to_owned(),
            sessions => sessions.name(),
        }
    }

    /// Returns all units, also unavailable ones.
    pub(crate) fn list(&self) -> Outcome<Vec<UnitReport>> {
        let report = |listed: UnitStatus| {
            let unit = &listed.description;
            UnitReport {
                name: unit.name.clone(),
                lun: unit.lun,
                size: unit.geometry.bytes(),
                block_size: unit.geometry.block().bytes(),
                thin: unit.thin,
                removable: unit.removable,
                write_through: unit.write_through,
                write_cache: listed.write_cache,
                protect: self.protect_name(unit),
                profile: unit
                    .protection
                    .stores_block_keys()
                    .then(|| unit.protection.profile().name().to_owned()),
                serial: unit.serial_text(),
                created_ms: unit.created_ms,
                used: listed.used_bytes,
                reserved_by: listed.reserved_by as u64,
                target: self.target_name.clone(),
                url: self.export.as_ref().map(|export| format!("{}/{}", export.url, unit.lun)),
                unavailable: listed.unavailable.clone(),
            }
        };
        let mut all: Vec<UnitReport> = self.units.list().map_err(failure)?.into_iter().map(report).collect();
        let damaged = self.units.damaged().into_iter();
        all.extend(damaged.map(|(unit, used)| UnitReport::damaged(unit, used, &self.target_name)));
        all.sort_by_key(|unit| unit.lun);
        Ok(all)
    }

    /// Adds the metrics of every unit.
    pub(crate) fn observe(&self, device: &str, page: &mut Page) {
        let units = self.units.units();
        let mut family = |name: &str, help: &str, value: &dyn Fn(&BlockUnit) -> u64| {
            for unit in &units {
                let lun = unit.description().lun.to_string();
                let labels = [("device", device), ("lun", &lun), ("unit", &unit.description().name)];
                page.family(MetricKind::Counter, name, help, [(&labels[..], value(unit))]);
            }
        };
        family("sealstone_block_commands_total", "Commands to block units.", &|unit| {
            unit.counters().commands
        });
        family("sealstone_block_failed_total", "Commands that failed.", &|unit| unit.counters().failed);
        family("sealstone_block_conflicts_total", "Commands refused because of a reservation.", &|unit| {
            unit.counters().conflicts
        });
        family("sealstone_block_read_bytes_total", "Bytes read by initiators.", &|unit| {
            unit.counters().read_bytes
        });
        family("sealstone_block_written_bytes_total", "Bytes written by initiators.", &|unit| {
            unit.counters().written_bytes
        });
        family(
            "sealstone_block_damaged_total",
            "Commands that failed because of damaged blocks, keys or versions.",
            &|unit| unit.counters().damaged,
        );
        family(
            "sealstone_block_refused_writes_total",
            "Writes that were verified at once and not authentic.",
            &|unit| unit.counters().refused_writes,
        );
        let unusable = units.iter().filter(|unit| unit.unavailable_reason().is_some()).count();
        let unavailable = (unusable + self.units.damaged().len()) as u64;
        let labels = [("device", device)];
        let help = "Block units with a damaged record, or with keys that cannot be used.";
        let name = "sealstone_block_unavailable_units";
        page.family(MetricKind::Gauge, name, help, [(&labels[..], unavailable)]);
        let keyed: Vec<(&Arc<BlockUnit>, LazyStatus)> =
            units.iter().filter_map(|unit| Some((unit, unit.lazy_status()?))).collect();
        if keyed.is_empty() {
            return;
        }
        let mut family = |kind: MetricKind, name: &str, help: &str, value: &dyn Fn(&LazyStatus) -> u64| {
            for (unit, status) in &keyed {
                let lun = unit.description().lun.to_string();
                let labels = [("device", device), ("lun", &lun), ("unit", &unit.description().name)];
                page.family(kind, name, help, [(&labels[..], value(status))]);
            }
        };
        let (gauge, counter) = (MetricKind::Gauge, MetricKind::Counter);
        family(
            gauge,
            "sealstone_block_unverified_versions",
            "Versions that wait for verification.",
            &|status| status.unverified as u64,
        );
        family(
            gauge,
            "sealstone_block_unverifiable_blocks",
            "Blocks whose keys or versions are damaged.",
            &|status| status.unverifiable as u64,
        );
        family(
            gauge,
            "sealstone_block_window_p99_ms",
            "Time from write to verification, 99th percentile.",
            &|status| status.window_p99_ms,
        );
        family(gauge, "sealstone_block_log_bytes", "Bytes of the version log.", &|status| status.log_bytes);
        family(counter, "sealstone_block_verified_total", "Versions that were verified.", &|status| {
            status.verified
        });
        family(
            counter,
            "sealstone_block_rejected_total",
            "Acknowledged writes that were not authentic.",
            &|status| status.rejected,
        );
        family(counter, "sealstone_block_eager_total", "Writes that were verified at once.", &|status| {
            status.eager
        });
        family(
            counter,
            "sealstone_block_busy_total",
            "Writes refused because the version log was full.",
            &|status| status.busy,
        );
        family(
            counter,
            "sealstone_block_false_reports_total",
            "Reports of readers about intact blocks.",
            &|status| status.false_reports,
        );
    }
}

/// Returns the header of an end-to-end protected disk, if the unit has one. It is in the clear.
fn disk_header(unit: &BlockUnit) -> Option<DiskHeader> {
    let mut block = Box::new([0; BLOCK_LEN]);
    if unit.read_head(&mut block[..]) { DiskHeader::parse(&block).ok() } else { None }
}

fn attach(target: &IscsiTarget, unit: &Arc<BlockUnit>) -> Outcome {
    let lun = u64::from(unit.description().lun);
    let logical = Arc::clone(unit) as Arc<dyn LogicalUnit>;
    match session_settings(unit.description()) {
        Some(settings) => target.attach_protected(lun, logical, settings),
        None => target.attach(lun, logical),
    }
    .map_err(Failure::operation)
}

/// Returns the least protection of sessions that use the unit; `None` if it needs none.
fn session_settings(unit: &UnitDescription) -> Option<ProtectionSettings> {
    let block = match unit.geometry.block() {
        BlockSize::B512 => ProtectedBlock::B512,
        BlockSize::B4096 => ProtectedBlock::B4096,
    };
    unit.protection.settings(block)
}

fn failure(error: CatalogError) -> Failure {
    let failure = Failure::operation(chain(&error));
    match &error {
        CatalogError::Name(_) | CatalogError::Lun(_) | CatalogError::Size(_) => {
            Failure { kind: FailureKind::Usage, ..failure }
        }
        CatalogError::NotFound(_) => Failure { kind: FailureKind::NotFound, ..failure },
        CatalogError::Rotation { .. } => {
            failure.hint("the device must run, and the unit must have been created with --protect lazy")
        }
        CatalogError::Reserved { .. } => failure.hint("--force removes it anyway"),
        CatalogError::NoSpace { .. } => failure.hint("omit --thick to allocate space on write"),
        // The reason of `Unavailable` has the next step.
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule without CHAP that matches all initiators restricts nothing, unless it is for LUN 0
    /// alone.
    #[test]
    fn access_file_without_open_rules_restricts_units() {
        let rule = |name: &str, luns: Option<Vec<u16>>| AccessRule {
            initiators: vec![name.to_owned()],
            luns,
            ..AccessRule::default()
        };
        let restricts = |rules: Vec<AccessRule>| restricts_block_units(Some(&AccessRules::new(rules)));
        assert!(!restricts_block_units(None));
        assert!(restricts(vec![rule("iqn.x:a", None), rule("iqn.x:b*", Some(vec![1]))]));
        assert!(!restricts(vec![rule("iqn.x:a", None), rule("*", None)]));
        assert!(!restricts(vec![rule("*", Some(vec![0, 1]))]) && !restricts(vec![rule("iqn.*", None)]));
        assert!(restricts(vec![rule("*", Some(vec![0])), rule("iqn.x:a", None)]));
    }

    #[test]
    fn units_are_exported_only_where_restricted() {
        let exposure = |address: &str, restricted, insecure| Exposure {
            address: address.parse().expect("an address"),
            restricted,
            insecure,
        };
        for (address, restricted, insecure, fine) in [
            ("127.0.0.1:3260", false, false, true),
            ("[::1]:3260", false, false, true),
            ("0.0.0.0:3260", false, false, false),
            ("[::]:3260", false, false, false),
            ("10.0.0.7:3260", false, false, false),
            ("10.0.0.7:3260", true, false, true),
            ("10.0.0.7:3260", false, true, true),
        ] {
            let outcome = exposure(address, restricted, insecure).check();
            assert_eq!(outcome.is_ok(), fine, "{address}");
            assert!(outcome.is_ok_and(|()| true) || !fine);
        }
    }
}
