//! Everything that the handlers, the attribute engine and the gatekeeper share.
//!
//! Does: hold the parts of one device; what needs two of them. Does not: run commands.
//! Contract: who touches an object holds its lock (`locks`).
//! Truth: docs/design/architecture.md section 3 (`device/osd`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_osd::{AttributeId, ObjectId, SecurityMethod};
use sealstone_seal::freshness::CLOCK_BACK_MAX_MS;
use sealstone_seal::mceliece::Parameters;
use sealstone_seal::{AlgorithmSlots, ClockBehind};
use sealstone_store::{ObjectStore, StoreError};

use crate::attributes::rows::{self, POLICY_ACCESS_TAG, ROOT, SEALSTONE, page};
use crate::cache::{Accesses, Facts, ObjectCache};
use crate::catalog::{self, Catalog, UNLIMITED};
use crate::clock::DeviceClock;
use crate::concealment::Concealment;
use crate::contents::Contents;
use crate::damage::{Book, Examiner};
use crate::digests::Hashing;
use crate::failure::Failure;
use crate::guard::Guard;
use crate::locks::Locks;
use crate::scrub::Scrub;
use crate::stranded::Stranded;
use crate::tracking::Tracking;

/// What an operator decides about a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdConfig {
    /// Answer OSD-1 service actions too.
    pub allow_osd1: bool,
    /// NOSEC is enough where no attribute asks for more. Insecure.
    pub insecure_nosec: bool,
    /// CAPKEY is enough on channels that are not sealed. Insecure.
    pub insecure_capkey: bool,
    /// The least method of any command, and what new partitions ask for. Below CMDRSP it is what the channel allows:
    /// CAPKEY inside TLS or with `insecure_capkey`, NOSEC with `insecure_nosec`. None: as these two say.
    pub method_floor: Option<SecurityMethod>,
    /// Check values over AdHash digests are accepted: slot 4 has F5h. Broken (security.md 5.2).
    pub insecure_adhash: bool,
    /// CDBs must have their method concealed by the paper's cipher. Worth nothing (security.md 4.3).
    pub method_cipher: Option<Parameters>,
    /// Take sealed capabilities alone.
    pub sealed_only: bool,
    /// Audit commands that only read, too.
    pub audit_reads: bool,
    /// Every change is durable before it is acknowledged.
    pub write_through: bool,
}

impl OsdConfig {
    /// The least method that a device starts with, and that a floor may ever be lowered to.
    pub(crate) fn least_method(&self) -> SecurityMethod {
        self.method_floor.unwrap_or(match (self.insecure_nosec, self.insecure_capkey) {
            (true, _) => SecurityMethod::NoSec,
            (false, true) => SecurityMethod::CapKey,
            (false, false) => SecurityMethod::CmdRsp,
        })
    }
}

/// One device.
pub(crate) struct Device {
    pub(crate) config: OsdConfig,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) catalog: Catalog,
    pub(crate) cache: ObjectCache,
    pub(crate) locks: Locks,
    pub(crate) contents: Contents,
    pub(crate) clock: DeviceClock,
    pub(crate) guard: Guard,
    pub(crate) system_id: [u8; 20],
    pub(crate) name: String,
    /// iSCSI name of the target that offers the logical unit, once it is known.
    pub(crate) target: OnceLock<String>,
    pub(crate) boot_epoch: u16,
    pub(crate) slots: AlgorithmSlots,
    pub(crate) concealment: Concealment,
    pub(crate) formatting: AtomicBool,
    /// An OBJECT STRUCTURE CHECK runs; one at a time.
    pub(crate) checking: Mutex<()>,
    /// The objects that are known to be damaged.
    pub(crate) damaged: Book,
    /// The walk that looks for them.
    pub(crate) scrub: Scrub,
    pub(crate) tracking: Tracking,
    /// Partitions whose duplication is to be tried again.
    pub(crate) stranded: Stranded,
    pub(crate) hashing: Hashing,
}

/// Lives as long as a FORMAT OSD runs.
pub(crate) struct Formatting<'a>(&'a AtomicBool);

impl Drop for Formatting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Device {
    /// The time at which a signed command may be accepted.
    ///
    /// # Errors
    /// [`ClockBehind`]: the clock is behind, or in a time that an era before the last set-back had already.
    pub(crate) fn time(&self) -> Result<u64, ClockBehind> {
        let now_ms = self.clock.now_ms()?;
        match self.guard.spent_for_ms(now_ms) {
            0 => Ok(now_ms),
            wait_ms if wait_ms <= CLOCK_BACK_MAX_MS => Err(ClockBehind::Settling { wait_ms }),
            behind_ms => Err(ClockBehind::Wrong { behind_ms }),
        }
    }

    /// Reads objects under their locks.
    pub(crate) fn examiner(&self) -> Examiner<'_> {
        Examiner { store: &*self.store, locks: Some(&self.locks) }
    }

    /// The unique part of the system id, as hex.
    pub(crate) fn serial_number(&self) -> String {
        self.system_id[8..].iter().map(|byte| format!("{byte:02X}")).collect()
    }

    /// Bit mask of the methods that some command may be sent with.
    pub(crate) fn supported_methods(&self) -> u16 {
        let allowed = |method: &SecurityMethod| *method > SecurityMethod::NoSec || self.config.insecure_nosec;
        SecurityMethod::ALL
            .iter()
            .filter(|method| allowed(method))
            .fold(0, |mask, method| mask | method.mask())
    }

    /// Returns the bytes that objects use and may use now: at most the formatted capacity, and less while the medium
    /// beneath has less than that.
    pub(crate) fn total_capacity(&self) -> u64 {
        let space = self.store.space();
        self.catalog.root().formatted_capacity.min(space.used.saturating_add(space.available))
    }

    /// May the used capacity grow by so many bytes? FORMAT OSD may have left less than the store has.
    pub(crate) fn has_room(&self, growth: u64) -> bool {
        let space = self.store.space();
        let usable = self.catalog.root().formatted_capacity;
        usable >= space.total || space.used.saturating_add(growth) <= usable
    }

    /// What a check must know about a user object.
    pub(crate) fn facts(&self, id: ObjectId) -> Result<Facts, StoreError> {
        self.cache.facts(id, || {
            let store = &*self.store;
            let base = rows::base(store.stat(id)?.kind);
            let number = |page: u32, number: u32, default: u64| {
                catalog::number(store, id, AttributeId::new(base + page, number), default)
            };
            let tag = number(page::SECURITY, POLICY_ACCESS_TAG, 0)?;
            let method = number(SEALSTONE, 1, 0)?;
            Ok(Facts {
                created_ms: number(page::TIMESTAMPS, 1, 0)?,
                tag: u32::try_from(tag).unwrap_or(u32::MAX),
                method: u8::try_from(method).unwrap_or(u8::MAX),
                max_length: number(page::QUOTAS, 1, UNLIMITED)?,
            })
        })
    }

    /// Notes an access in memory.
    pub(crate) fn note(&self, id: ObjectId, accesses: Accesses) -> Result<(), Failure> {
        for (id, accesses) in self.cache.note(id, accesses) {
            self.store_accesses(id, accesses)?;
        }
        Ok(())
    }

    /// Stores all times of access that wait in memory.
    pub(crate) fn spill_accesses(&self) -> Result<(), Failure> {
        for (id, accesses) in self.cache.take_all() {
            self.store_accesses(id, accesses)?;
        }
        Ok(())
    }

    /// Stores those of one object.
    pub(crate) fn store_accesses_of(&self, id: ObjectId) -> Result<(), Failure> {
        match self.cache.take(id) {
            Some(accesses) => self.store_accesses(id, accesses),
            None => Ok(()),
        }
    }

    fn store_accesses(&self, id: ObjectId, accesses: Accesses) -> Result<(), Failure> {
        let base = match (id.partition, id.object) {
            (0, 0) => ROOT,
            (_, 0) => rows::PARTITION,
            _ => match self.store.stat(id) {
                Ok(stat) => rows::base(stat.kind),
                Err(StoreError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        let times = [(2, accesses.attributes_ms), (4, accesses.data_ms), (5, accesses.modified_ms)];
        for (number, time) in times {
            let Some(ms) = time else { continue };
            let attribute = AttributeId::new(base + page::TIMESTAMPS, number);
            match catalog::set(&*self.store, id, attribute, &catalog::time(ms)) {
                // Removed in the meantime: then nobody asks.
                Ok(()) | Err(StoreError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Others hear FORMAT IN PROGRESS until the guard is dropped.
    pub(crate) fn begin_format(&self) -> Formatting<'_> {
        self.formatting.store(true, Ordering::Release);
        Formatting(&self.formatting)
    }

    pub(crate) fn is_formatting(&self) -> bool {
        self.formatting.load(Ordering::Acquire)
    }

    /// FORMAT OSD: the root's attributes are as new, but for Policy/Security: a format must not lower a floor.
    pub(crate) fn reset_root_attributes(&self) -> Result<(), Failure> {
        let keep = [ROOT + page::SECURITY, ROOT + rows::FROZEN_AUDITS, rows::INTERNAL];
        for (id, _) in self.store.attributes(ObjectId::ROOT, None)? {
            if !keep.contains(&id.page) {
                self.store.set_attribute(ObjectId::ROOT, id, &[])?;
            }
        }
        Ok(())
    }

    /// Durable when this returns: everything acknowledged, and the times of access.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        self.spill_accesses()?;
        Ok(self.store.flush()?)
    }
}
