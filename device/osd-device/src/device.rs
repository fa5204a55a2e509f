//! One device: the store, catalogue, locks, keys and caches that handlers, the attribute engine and
//! admission share.
//!
//! Does: hold the parts of one device, and operations that need several of them.
//! Does not: run commands.
//! Contract: an access to an object needs its lock (`locks`).
//! Truth: docs/design/architecture.md section 3 (`device/osd-device`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sealstone_osd::{AttributeId, ObjectId, SecurityMethod};
use sealstone_seal::freshness::CLOCK_BACK_MAX_MS;
use sealstone_seal::paper::mceliece::Parameters;
use sealstone_seal::{AlgorithmSlots, ClockBehind};
use sealstone_store::{ObjectStore, StoreError};

use crate::attributes::rows::{self, POLICY_ACCESS_TAG, ROOT, SEALSTONE, page};
use crate::cache::{AccessTimes, CachedFacts, ObjectCache};
use crate::catalog::{self, Catalog, UNLIMITED};
use crate::change_cache::ChangeCache;
use crate::clock::OsdClock;
use crate::damage::{DamageList, Examiner};
use crate::failure::OsdFailure;
use crate::function_runner::FunctionRunner;
use crate::guard::Guard;
use crate::hashing::Hashing;
use crate::locks::ObjectLocks;
use crate::paper::concealment::Concealment;
use crate::partition_locks::PartitionLocks;
use crate::partition_policy::PartitionPolicy;
use crate::running::RunningCommands;
use crate::scrub_pass::DeviceScrub;
use crate::stored_code::StoredCode;
use crate::stranded::Stranded;

/// Configuration of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OsdConfig {
    /// Accept OSD-1 service actions too.
    pub allow_osd1: bool,
    /// Accept NOSEC where no attribute requires more. Insecure.
    pub insecure_nosec: bool,
    /// Accept CAPKEY on unencrypted channels. Insecure.
    pub insecure_capkey: bool,
    /// Minimum method of any command, and of new partitions. A minimum below CMDRSP needs a
    /// suitable channel: CAPKEY inside TLS or with `insecure_capkey`, NOSEC with `insecure_nosec`.
    /// `None`: determined by these two flags.
    pub method_floor: Option<SecurityMethod>,
    /// Accept check values over AdHash digests: slot 4 has F5h. Broken (security.md 5.2).
    pub insecure_adhash: bool,
    /// Require CDBs with a method concealed by the paper's cipher. Provides no protection
    /// (security.md 4.3).
    pub method_cipher: Option<Parameters>,
    /// Accept only sealed capabilities.
    pub sealed_only: bool,
    /// Audit read commands too.
    pub audit_reads: bool,
    /// Accept descriptor 0003h of the ASF paper for EXECUTE FUNCTION.
    pub paper_functions: bool,
    /// Make every change durable before it is acknowledged.
    pub write_through: bool,
}

impl OsdConfig {
    /// Returns the minimum method of a new device, below which no floor can be lowered.
    pub(crate) fn least_method(&self) -> SecurityMethod {
        self.method_floor.unwrap_or(match (self.insecure_nosec, self.insecure_capkey) {
            (true, _) => SecurityMethod::NoSec,
            (false, true) => SecurityMethod::CapKey,
            (false, false) => SecurityMethod::CmdRsp,
        })
    }
}

/// One device.
pub(crate) struct OsdDevice {
    pub(crate) config: OsdConfig,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) catalog: Catalog,
    pub(crate) cache: ObjectCache,
    pub(crate) locks: ObjectLocks,
    pub(crate) partition_locks: PartitionLocks,
    pub(crate) clock: OsdClock,
    pub(crate) guard: Guard,
    pub(crate) system_id: [u8; 20],
    pub(crate) name: String,
    /// iSCSI name of the target that offers the logical unit, once known.
    pub(crate) target: OnceLock<String>,
    pub(crate) boot_epoch: u16,
    pub(crate) slots: AlgorithmSlots,
    pub(crate) concealment: Concealment,
    pub(crate) formatting: AtomicBool,
    /// Locked while an OBJECT STRUCTURE CHECK runs; one runs at a time.
    pub(crate) checking: Mutex<()>,
    /// Objects known to be damaged.
    pub(crate) damaged: DamageList,
    /// The scrub that searches for damage.
    pub(crate) scrub: DeviceScrub,
    pub(crate) running: RunningCommands,
    /// Partitions whose duplication must be retried.
    pub(crate) stranded: Stranded,
    pub(crate) hashing: Hashing,
    /// The service that runs functions, once set.
    pub(crate) functions: OnceLock<Arc<dyn FunctionRunner>>,
    /// Code of functions that ran lately.
    pub(crate) codes: ChangeCache<StoredCode>,
    /// Policies of partitions in which functions ran lately.
    pub(crate) policies: ChangeCache<Arc<PartitionPolicy>>,
}

/// Guard that exists while a FORMAT OSD runs.
pub(crate) struct Formatting<'a>(&'a AtomicBool);

impl Drop for Formatting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl OsdDevice {
    /// Returns the time for the check of a signed command.
    ///
    /// # Errors
    /// [`ClockBehind`] if the clock is behind, or at a time that an era before the last step back
    /// already used.
    pub(crate) fn time(&self) -> Result<u64, ClockBehind> {
        let now_ms = self.clock.now_ms()?;
        match self.guard.spent_for_ms(now_ms) {
            0 => Ok(now_ms),
            wait_ms if wait_ms <= CLOCK_BACK_MAX_MS => Err(ClockBehind::Settling { wait_ms }),
            behind_ms => Err(ClockBehind::Wrong { behind_ms }),
        }
    }

    /// Returns an examiner that reads objects under their locks.
    pub(crate) fn examiner(&self) -> Examiner<'_> {
        Examiner { store: &*self.store, locks: Some(&self.locks) }
    }

    /// Returns the unique part of the system id as hex.
    pub(crate) fn serial_number(&self) -> String {
        self.system_id[8..].iter().map(|byte| format!("{byte:02X}")).collect()
    }

    /// Returns the bit mask of the methods that a command may use.
    pub(crate) fn supported_methods(&self) -> u16 {
        let allowed = |method: &SecurityMethod| *method > SecurityMethod::NoSec || self.config.insecure_nosec;
        SecurityMethod::ALL
            .iter()
            .filter(|method| allowed(method))
            .fold(0, |mask, method| mask | method.mask())
    }

    /// Returns the bytes that objects may use: at most the formatted capacity, and less while the
    /// disk has less free space.
    pub(crate) fn total_capacity(&self) -> u64 {
        let space = self.store.space();
        self.catalog.root().formatted_capacity.min(space.used.saturating_add(space.available))
    }

    /// Whether the used capacity may grow by this many bytes. FORMAT OSD may have limited it below
    /// the store's capacity.
    pub(crate) fn has_room(&self, growth: u64) -> bool {
        let space = self.store.space();
        let usable = self.catalog.root().formatted_capacity;
        usable >= space.total || space.used.saturating_add(growth) <= usable
    }

    /// Returns the facts that a check needs about a user object.
    pub(crate) fn facts(&self, id: ObjectId) -> Result<CachedFacts, StoreError> {
        self.cache.facts(id, || {
            let store = &*self.store;
            let base = rows::base(store.stat(id)?.kind);
            let number = |page: u32, number: u32, default: u64| {
                catalog::number(store, id, AttributeId::new(base + page, number), default)
            };
            let tag = number(page::SECURITY, POLICY_ACCESS_TAG, 0)?;
            let method = number(SEALSTONE, 1, 0)?;
            Ok(CachedFacts {
                created_ms: number(page::TIMESTAMPS, 1, 0)?,
                tag: u32::try_from(tag).unwrap_or(u32::MAX),
                method: u8::try_from(method).unwrap_or(u8::MAX),
                max_length: number(page::QUOTAS, 1, UNLIMITED)?,
            })
        })
    }

    /// Records access times in the cache.
    pub(crate) fn note(&self, id: ObjectId, accesses: AccessTimes) -> Result<(), OsdFailure> {
        for (id, accesses) in self.cache.note(id, accesses) {
            self.store_accesses(id, accesses)?;
        }
        Ok(())
    }

    /// Stores all cached access times.
    pub(crate) fn spill_accesses(&self) -> Result<(), OsdFailure> {
        for (id, accesses) in self.cache.take_all() {
            self.store_accesses(id, accesses)?;
        }
        Ok(())
    }

    /// Stores the cached access times of one object.
    pub(crate) fn store_accesses_of(&self, id: ObjectId) -> Result<(), OsdFailure> {
        match self.cache.take(id) {
            Some(accesses) => self.store_accesses(id, accesses),
            None => Ok(()),
        }
    }

    fn store_accesses(&self, id: ObjectId, accesses: AccessTimes) -> Result<(), OsdFailure> {
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
                // The object was removed meanwhile.
                Ok(()) | Err(StoreError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Starts a format. Other commands get FORMAT IN PROGRESS until the guard is dropped.
    pub(crate) fn begin_format(&self) -> Formatting<'_> {
        self.formatting.store(true, Ordering::Release);
        Formatting(&self.formatting)
    }

    pub(crate) fn is_formatting(&self) -> bool {
        self.formatting.load(Ordering::Acquire)
    }

    /// FORMAT OSD: resets the root's attributes except Policy/Security, because a format must not
    /// lower a floor.
    pub(crate) fn reset_root_attributes(&self) -> Result<(), OsdFailure> {
        let keep = [ROOT + page::SECURITY, ROOT + rows::FROZEN_AUDITS, rows::INTERNAL];
        for (id, _) in self.store.attributes(ObjectId::ROOT, None)? {
            if !keep.contains(&id.page) {
                self.store.set_attribute(ObjectId::ROOT, id, &[])?;
            }
        }
        Ok(())
    }

    /// Makes everything acknowledged durable, including access times.
    pub(crate) fn flush(&self) -> Result<(), OsdFailure> {
        self.spill_accesses()?;
        Ok(self.store.flush()?)
    }
}
