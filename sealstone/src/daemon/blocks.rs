//! The block units of a running device: which are offered, to whom, and what the command line may change.
//!
//! Contract: a block unit has no capabilities; whoever may log in may read and write it. So it is offered only where
//! nobody can log in from elsewhere (loopback), or where the target asks who it is (CHAP, a list of initiators), or
//! where the operator says so.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealstone_block::{BlockSize, BlockUnit, BlockUnits, CatalogError, NewUnit, UnitOptions, UnitStatus};
use sealstone_iscsi::target::{Access, Rule};
use sealstone_scsi::lu::LogicalUnit;
use sealstone_target::IscsiTarget;
use serde::{Deserialize, Serialize};

use super::{now_ms, random};
use crate::failure::{Failure, Kind, Outcome, chain};
use crate::metrics::{Kind as Sample, Page};

/// What a new unit is to be, as the command line says it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) lun: Option<u16>,
    pub(crate) thin: bool,
    pub(crate) removable: bool,
    pub(crate) write_through: bool,
}

/// A unit as `--json` tells it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) lun: u16,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) thin: bool,
    pub(crate) removable: bool,
    /// Made so by the administrator.
    pub(crate) write_through: bool,
    /// Whether a write may be acknowledged before it is durable (WCE).
    pub(crate) write_cache: bool,
    pub(crate) serial: String,
    pub(crate) created_ms: u64,
    pub(crate) used: u64,
    pub(crate) reserved_by: u64,
    /// iSCSI name of the target that offers it.
    pub(crate) target: String,
    /// For initiators; only while the device runs.
    pub(crate) url: Option<String>,
}

/// Where the kernel has the identifier of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The options of block units that follow from the machine.
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

/// Makes and removes units, on a store that nobody else has open.
pub(crate) struct Blocks {
    units: BlockUnits,
    target_name: String,
    /// Where initiators find the target, while it runs.
    offered: Option<Offered>,
}

struct Offered {
    target: IscsiTarget,
    /// `iscsi://HOST:PORT/IQN`.
    url: String,
}

/// Who can reach the port, and whether it asks who they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    pub(crate) address: SocketAddr,
    /// CHAP is demanded, or a list of initiators set.
    pub(crate) restricted: bool,
    /// The operator said `--insecure-block`.
    pub(crate) insecure: bool,
}

/// Does an access file keep strangers from block units? It does if every rule that lets somebody at them names whom, or
/// demands CHAP.
pub(crate) fn keeps_strangers_out(access: Option<&Access>) -> bool {
    /// What every iSCSI name begins with (RFC 7143 §4.2.7.3): a pattern that says no more means everybody.
    const KINDS: [&str; 3] = ["iqn.", "eui.", "naa."];
    let is_everybody = |name: &String| {
        name.strip_suffix('*').is_some_and(|prefix| KINDS.iter().any(|kind| kind.starts_with(prefix)))
    };
    let is_closed = |rule: &Rule| {
        rule.account.is_some()
            || rule.luns.as_ref().is_some_and(|luns| luns.iter().all(|lun| *lun == 0))
            || !rule.initiators.iter().any(is_everybody)
    };
    access.is_some_and(|access| access.rules.iter().all(is_closed))
}

impl Exposure {
    fn check(self) -> Outcome {
        if self.restricted || self.insecure || self.address.ip().is_loopback() {
            return Ok(());
        }
        Err(Failure::new(
            Kind::Denied,
            format!(
                "block units have no capabilities, and anybody who reaches {} could read and write them",
                self.address
            ),
        )
        .hint("listen on loopback, demand CHAP, set a list of initiators, or say --insecure-block"))
    }
}

impl Blocks {
    /// Opens the units of a store. They are not offered yet.
    pub(crate) fn open(
        store: Arc<dyn sealstone_store::ObjectStore>,
        target_name: &str,
        options: UnitOptions,
    ) -> Outcome<Self> {
        let units = BlockUnits::open_with(store, target_name, options).map_err(failure)?;
        Ok(Self { units, target_name: target_name.to_owned(), offered: None })
    }

    /// Offers all of them on a target; `url` is `iscsi://HOST:PORT/IQN`.
    pub(crate) fn offer(&mut self, target: &IscsiTarget, url: String, exposure: Exposure) -> Outcome {
        let units = self.units.units();
        if units.is_empty() {
            // What is made later is refused by the same rule.
            self.offered = exposure.check().is_ok().then(|| Offered { target: target.clone(), url });
            return Ok(());
        }
        exposure.check()?;
        if !exposure.address.ip().is_loopback() && !exposure.restricted {
            tracing::warn!("--insecure-block: anybody who reaches the port can read and write block units");
        }
        for unit in units {
            attach(target, &unit)?;
        }
        self.offered = Some(Offered { target: target.clone(), url });
        Ok(())
    }

    /// Makes a unit, and offers it if the device runs.
    pub(crate) fn create(&self, wanted: Wanted, running: bool) -> Outcome<Told> {
        let block = BlockSize::from_bytes(wanted.block_size).ok_or_else(|| {
            Failure::usage(format!("a block of {} bytes", wanted.block_size)).hint("512 or 4096")
        })?;
        if running && self.offered.is_none() {
            return Err(Failure::new(
                Kind::Denied,
                "this device listens beyond loopback and asks nobody who they are",
            )
            .hint("demand CHAP, set a list of initiators, or restart it with --insecure-block"));
        }
        let unit = self
            .units
            .create(NewUnit {
                name: wanted.name,
                lun: wanted.lun,
                bytes: wanted.size,
                block,
                thin: wanted.thin,
                removable: wanted.removable,
                write_through: wanted.write_through,
                serial: random(),
                now_ms: now_ms(),
            })
            .map_err(failure)?;
        tracing::info!(unit = unit.description().name, lun = unit.description().lun, "block unit made");
        if let Some(offered) = &self.offered {
            attach(&offered.target, &unit)?;
        }
        self.show(&unit.description().name)
    }

    /// Makes a unit write-through, or lets initiators choose again.
    pub(crate) fn set(&self, name: &str, write_through: bool) -> Outcome<Told> {
        self.units.set_write_through(name, write_through).map_err(failure)?;
        tracing::info!(unit = name, write_through, "block unit changed");
        self.show(name)
    }

    /// Returns one unit.
    pub(crate) fn show(&self, name: &str) -> Outcome<Told> {
        let found = self.list()?.into_iter().find(|told| told.name == name);
        found.ok_or_else(|| failure(CatalogError::NotFound(name.to_owned())))
    }

    /// Removes the marks of unflushed writes of idle initiators.
    pub(crate) fn tick(&self, now: Duration) {
        self.units.tick(now);
    }

    /// Ends all units in order, when no command can come any more.
    pub(crate) fn close(&self) {
        self.units.close();
    }

    /// Removes a unit with all that is in it.
    pub(crate) fn remove(&self, name: &str, force: bool) -> Outcome<u16> {
        let gone = self.units.remove(name, force).map_err(failure)?;
        if let Some(offered) = &self.offered {
            offered.target.detach(u64::from(gone.lun));
        }
        tracing::info!(unit = gone.name, lun = gone.lun, "block unit removed");
        Ok(gone.lun)
    }

    /// All units.
    pub(crate) fn list(&self) -> Outcome<Vec<Told>> {
        let told = |listed: UnitStatus| {
            let unit = &listed.description;
            Told {
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
                url: self.offered.as_ref().map(|offered| format!("{}/{}", offered.url, unit.lun)),
            }
        };
        Ok(self.units.list().map_err(failure)?.into_iter().map(told).collect())
    }

    /// Figures of every unit.
    pub(crate) fn observe(&self, device: &str, page: &mut Page) {
        let units = self.units.units();
        let mut family = |name: &str, help: &str, figure: &dyn Fn(&BlockUnit) -> u64| {
            for unit in &units {
                let lun = unit.description().lun.to_string();
                let labels = [("device", device), ("lun", &lun), ("unit", &unit.description().name)];
                page.family(Sample::Counter, name, help, [(&labels[..], figure(unit))]);
            }
        };
        family("sealstone_block_commands_total", "Commands to block units.", &|unit| {
            unit.counters().commands
        });
        family("sealstone_block_failed_total", "Commands that did not end well.", &|unit| {
            unit.counters().failed
        });
        family("sealstone_block_conflicts_total", "Commands refused for a reservation.", &|unit| {
            unit.counters().conflicts
        });
        family("sealstone_block_read_bytes_total", "Bytes of blocks sent.", &|unit| {
            unit.counters().read_bytes
        });
        family("sealstone_block_written_bytes_total", "Bytes of blocks taken.", &|unit| {
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
            Failure { kind: Kind::Usage, ..failure }
        }
        CatalogError::NotFound(_) => Failure { kind: Kind::NotFound, ..failure },
        CatalogError::Reserved { .. } => failure.hint("--force removes it all the same"),
        CatalogError::NoSpace { .. } => {
            failure.hint("leave --thick out to take space only when it is written to")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule for everybody without CHAP keeps nobody out, unless it leads to the OSD alone.
    #[test]
    fn an_access_file_counts_if_it_asks_who_comes() {
        let rule = |name: &str, luns: Option<Vec<u16>>| Rule {
            initiators: vec![name.to_owned()],
            luns,
            ..Rule::default()
        };
        let asks = |rules: Vec<Rule>| keeps_strangers_out(Some(&Access::new(rules)));
        assert!(!keeps_strangers_out(None));
        assert!(asks(vec![rule("iqn.x:a", None), rule("iqn.x:b*", Some(vec![1]))]));
        assert!(!asks(vec![rule("iqn.x:a", None), rule("*", None)]));
        assert!(!asks(vec![rule("*", Some(vec![0, 1]))]) && !asks(vec![rule("iqn.*", None)]));
        assert!(asks(vec![rule("*", Some(vec![0])), rule("iqn.x:a", None)]));
    }

    /// Loopback, or somebody who asks, or the operator's word: nothing else lets block units out.
    #[test]
    fn block_units_are_offered_only_where_somebody_asks_or_nobody_comes() {
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
