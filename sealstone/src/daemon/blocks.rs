//! Block units of a device: export on the iSCSI target, and administration by the command line.
//!
//! Contract: block units have no capabilities; every initiator that logs in can read and write
//! them. They are exported only on loopback, on a target that restricts initiators (CHAP or a
//! list), or with `--insecure-block`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::{
    BLOCK_PARTITION, BlockSize, BlockUnit, BlockUnits, CatalogError, NewUnit, UnitOptions, UnitStatus,
};
use sealstone_iscsi::target_side::{AccessRule, AccessRules};
use sealstone_iscsi_target::IscsiTarget;
use sealstone_scsi::lu::LogicalUnit;
use sealstone_store::StoreOptions;
use serde::{Deserialize, Serialize};

use super::{now_ms, random};
use crate::failure::{Failure, FailureKind, Outcome, chain};
use crate::metrics::{MetricKind, Page};

/// Parameters of a new unit, as the command line sends them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnitParams {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) lun: Option<u16>,
    pub(crate) thin: bool,
    pub(crate) removable: bool,
    pub(crate) write_through: bool,
}

/// A unit as `--json` prints it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct UnitReport {
    pub(crate) name: String,
    pub(crate) lun: u16,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) thin: bool,
    pub(crate) removable: bool,
    /// Whether the administrator set write-through.
    pub(crate) write_through: bool,
    /// Whether a write may be acknowledged before it is durable (WCE).
    pub(crate) write_cache: bool,
    pub(crate) serial: String,
    pub(crate) created_ms: u64,
    pub(crate) used: u64,
    pub(crate) reserved_by: u64,
    /// iSCSI name of the target that exports it.
    pub(crate) target: String,
    /// URL for initiators; `None` if the device is stopped.
    pub(crate) url: Option<String>,
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
        store: Arc<dyn sealstone_store::ObjectStore>,
        target_name: &str,
        options: UnitOptions,
    ) -> Outcome<Self> {
        let units = BlockUnits::open_with(store, target_name, options).map_err(failure)?;
        Ok(Self { units, target_name: target_name.to_owned(), export: None })
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
        if running && self.export.is_none() {
            return Err(Failure::new(
                FailureKind::Denied,
                "the device listens beyond loopback and does not restrict initiators",
            )
            .hint("require CHAP, set a list of initiators, or restart it with --insecure-block"));
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

    /// Returns one unit.
    pub(crate) fn show(&self, name: &str) -> Outcome<UnitReport> {
        let found = self.list()?.into_iter().find(|unit| unit.name == name);
        found.ok_or_else(|| failure(CatalogError::NotFound(name.to_owned())))
    }

    /// Removes the marks of unflushed writes of idle initiators.
    pub(crate) fn tick(&self, now: Duration) {
        self.units.tick(now);
    }

    /// Closes all units, after the last command.
    pub(crate) fn close(&self) {
        self.units.close();
    }

    /// Removes a unit and its data; returns its LUN.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Outcome<u16> {
        let removed = self.units.remove(name, force).map_err(failure)?;
        if let Some(export) = &self.export {
            export.target.detach(u64::from(removed.lun));
        }
        tracing::info!(unit = removed.name, lun = removed.lun, "block unit removed");
        Ok(removed.lun)
    }

    /// Returns all units.
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
                serial: unit.serial_text(),
                created_ms: unit.created_ms,
                used: listed.used_bytes,
                reserved_by: listed.reserved_by as u64,
                target: self.target_name.clone(),
                url: self.export.as_ref().map(|export| format!("{}/{}", export.url, unit.lun)),
            }
        };
        Ok(self.units.list().map_err(failure)?.into_iter().map(report).collect())
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
    }
}

fn attach(target: &IscsiTarget, unit: &Arc<BlockUnit>) -> Outcome {
    let lun = u64::from(unit.description().lun);
    target.attach(lun, Arc::clone(unit) as Arc<dyn LogicalUnit>).map_err(Failure::operation)
}

fn failure(error: CatalogError) -> Failure {
    let failure = Failure::operation(chain(&error));
    match &error {
        CatalogError::Name(_) | CatalogError::Lun(_) | CatalogError::Size(_) => {
            Failure { kind: FailureKind::Usage, ..failure }
        }
        CatalogError::NotFound(_) => Failure { kind: FailureKind::NotFound, ..failure },
        CatalogError::Reserved { .. } => failure.hint("--force removes it anyway"),
        CatalogError::NoSpace { .. } => failure.hint("omit --thick to allocate space on write"),
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
