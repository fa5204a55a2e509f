//! The OSD logical unit, as a target uses it.
//!
//! Does: dispatch by operation code, nexus bookkeeping, audit and metrics of every OSD command.
//! Does not: transport, sockets, clocks.
//! Contract: [`LogicalUnit`]; commands on any thread, in any order.
//! Truth: SPC-4; docs/design/t10-osd.md 6.2, 6.3; docs/design/security.md section 8 (audit of
//! refusals).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use sealstone_crypto::RustCrypto;
use sealstone_osd::capability::offset;
use sealstone_osd::cdb::{Cdb, CdbError, Command, DhStep, OPERATION_CODE};
use sealstone_osd::table::{self, SERVICE_ACTIONS};
use sealstone_osd::{Generation, ObjectId};
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, primary};
use sealstone_seal::freshness::NonceHistory;
use sealstone_seal::{AlgorithmSlots, ClockBehind, Denial, GatePolicy, InitialKey, ReceiptKey};
use sealstone_store::{ObjectStore, StoreError};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::audit::{AuditRecord, AuditSink, AuditVerdict, Principal};
use crate::cache::ObjectCache;
use crate::catalog::{self, Catalog, MethodDefaults};
use crate::change_cache::ChangeCache;
use crate::clock::OsdClock;
use crate::commands;
use crate::cost;
use crate::damage::DamageList;
use crate::device::{OsdConfig, OsdDevice};
use crate::environment::{DeviceEnvironment, Env};
use crate::execute::{Execution, Outcome};
use crate::failure::OsdFailure;
use crate::function_runner::FunctionRunner;
use crate::guard::{Guard, LeaseStore};
use crate::hashing::{Hashing, HashingCount};
use crate::keyring::{KeyRecord, Keyring, KeyringError};
use crate::locks::ObjectLocks;
use crate::metrics::{CommandEnding, Metrics};
use crate::nexus::{OsdNexus, OsdNexusTable};
use crate::paper::concealment::Concealment;
use crate::partition_locks::PartitionLocks;
use crate::partition_policy::PartitionPolicy;
use crate::report::OsdRefusal;
use crate::running::RunningCommands;
use crate::scrub_pass::DeviceScrub;
use crate::spc::OsdServer;
use crate::stored_code::StoredCode;
use crate::stranded::Stranded;
use crate::tracking::JobQueue;

/// Name of an unknown OSD command in metrics and audit records.
const UNKNOWN: &str = "UNKNOWN SERVICE ACTION";

/// Parts of a device.
pub struct DeviceParts {
    /// Object store.
    pub store: Arc<dyn ObjectStore>,
    /// Configuration of the device.
    pub config: OsdConfig,
    /// OSD SYSTEM ID.
    pub system_id: [u8; 20],
    /// Name of the device.
    pub name: String,
    /// Initial master key, from which all factory keys are derived.
    pub master_key: InitialKey,
    /// The last stored keys, and where changes are stored.
    pub keys: KeyRecord,
    /// Boot epoch of this start.
    pub boot_epoch: u16,
    /// The last stored nonce lease and eras.
    pub nonces: NonceHistory,
    /// Storage of the lease and the eras.
    pub lease: Box<dyn LeaseStore>,
    /// Time and random bytes.
    pub environment: Arc<dyn DeviceEnvironment>,
    /// Receiver of audit records.
    pub audit: Arc<dyn AuditSink>,
}

/// Why a device cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The store could not be read.
    #[error("store failed")]
    Store(#[from] StoreError),
    /// The keys could not be opened.
    #[error("keys cannot be opened")]
    Keys(#[from] KeyringError),
}

/// An OSD as a logical unit.
pub struct OsdUnit {
    pub(crate) device: Arc<OsdDevice>,
    nexuses: OsdNexusTable,
    jobs: JobQueue,
    pub(crate) audit: Arc<dyn AuditSink>,
    metrics: Metrics,
}

impl OsdUnit {
    /// Starts a device: reads its partitions and counts from the store.
    ///
    /// # Errors
    /// [`StartError`] if the store or the keys are unusable.
    pub fn start(parts: DeviceParts) -> Result<Self, StartError> {
        let env = Env::from(parts.environment);
        let least = parts.config.least_method();
        let defaults = MethodDefaults { root_method: least, partition_method: least };
        let catalog = Catalog::load(&*parts.store, defaults)?;
        let policy = GatePolicy {
            insecure_nosec: parts.config.insecure_nosec,
            insecure_capkey: parts.config.insecure_capkey,
            least: parts.config.method_floor.unwrap_or(sealstone_osd::SecurityMethod::NoSec),
            sealed_only: parts.config.sealed_only,
            slots: match parts.config.insecure_adhash {
                true => AlgorithmSlots::WITH_BROKEN,
                false => AlgorithmSlots::DEFAULT,
            },
            ..GatePolicy::default()
        };
        let seen = catalog.partition_ids(0, usize::MAX);
        let partitions = seen.into_iter().chain(catalog.unfinished_ids()).collect();
        // A partition with a damaged record, or on a lost page of the index, needs its keys when it
        // is restored.
        let may_exist =
            |id| !matches!(parts.store.stat(ObjectId::of_partition(id)), Err(StoreError::NotFound(_)));
        let keys = Keyring::open(parts.keys, &parts.master_key, parts.system_id, &partitions, may_exist)?;
        let lease_ms = parts.nonces.lease_ms();
        let guard = Guard::new(policy, keys, parts.lease, parts.nonces, &env);
        let offset_ms = catalog::clock_offset(&*parts.store)?;
        let damaged = DamageList::load(&*parts.store);
        let scrub = DeviceScrub::load(&*parts.store);
        let names = SERVICE_ACTIONS.iter().map(|row| row.name).chain([UNKNOWN]).collect();
        let unit = Self {
            device: Arc::new(OsdDevice {
                config: parts.config,
                store: parts.store,
                catalog,
                cache: ObjectCache::new(),
                locks: ObjectLocks::new(),
                partition_locks: PartitionLocks::new(),
                clock: OsdClock::new(env.clone(), lease_ms, offset_ms),
                guard,
                system_id: parts.system_id,
                name: parts.name,
                target: OnceLock::new(),
                boot_epoch: parts.boot_epoch,
                slots: policy.slots,
                concealment: Concealment::new(parts.config.method_cipher, &env),
                formatting: AtomicBool::new(false),
                checking: Mutex::new(()),
                damaged,
                scrub,
                running: RunningCommands::default(),
                stranded: Stranded::default(),
                hashing: Hashing::default(),
                functions: OnceLock::new(),
                codes: ChangeCache::new(StoredCode::CACHE_BYTES_MAX),
                policies: ChangeCache::new(PartitionPolicy::CACHE_BYTES_MAX),
            }),
            nexuses: OsdNexusTable::new(env),
            jobs: JobQueue::default(),
            audit: parts.audit,
            metrics: Metrics::new(names),
        };
        commands::finish_duplicates(&unit.device);
        Ok(unit)
    }

    /// Sets the iSCSI name of the target that offers the logical unit, for its device
    /// identification. Only the first call has an effect.
    pub fn set_target_name(&self, name: &str) {
        // A unit has one target, so a second name is ignored.
        let _ = self.device.target.set(name.to_owned());
    }

    /// Sets the service that runs functions. Only the first call has an effect. Without it, EXECUTE
    /// FUNCTION is refused.
    pub fn set_function_runner(&self, runner: Arc<dyn FunctionRunner>) {
        // A unit has one service, so a second one is ignored.
        let _ = self.device.functions.set(runner);
    }

    /// Renews the nonce lease and frees unused memory. Call about twice a second.
    ///
    /// # Errors
    /// The lease could not be stored, or the clock is too far behind. Signed commands will be
    /// refused.
    pub fn upkeep(&self) -> Result<(), UpkeepError> {
        if let Some(back_ms) = self.device.clock.set_back_target_ms() {
            self.device.guard.set_back(back_ms).map_err(|_| UpkeepError::Lease)?;
            self.device.clock.set_back(back_ms);
            tracing::warn!(
                clock_ms = back_ms,
                "device clock set back; nonces of times already used are refused"
            );
        }
        let now_ms = self.device.clock.now_ms().map_err(|behind| match behind {
            ClockBehind::Wrong { .. } => UpkeepError::Clock,
            ClockBehind::Settling { .. } => UpkeepError::Settling,
        })?;
        self.device.guard.upkeep(now_ms).map_err(|_| UpkeepError::Lease)
    }

    /// Runs one job to its end: an immediate command whose status was sent, or a duplication that
    /// failed midway. Returns false if no job can run now. It locks step by step, like other
    /// commands on many objects. A [`Worker`](crate::Worker) calls it on its own thread.
    pub fn work(&self) -> bool {
        // A job waits while its partition is being duplicated or replaced. Jobs of other partitions
        // do not.
        let ready = self.jobs.take(|job| self.device.partition_locks.acquire(job.claim()).ok());
        let Some((job, _contents)) = ready else { return commands::finish_stranded(&self.device) };
        let result = job.run(&self.device).and_then(|done| match self.device.config.write_through {
            true => self.device.flush().map(|()| done).map_err(OsdRefusal::from),
            false => Ok(done),
        });
        let (verdict, sense) = match &result {
            Ok(_) => (AuditVerdict::Done, None),
            Err(refusal) => {
                let verdict = match refusal {
                    OsdRefusal::Denied(denial) | OsdRefusal::ExtensionDenied(denial) => {
                        AuditVerdict::Refused(denial.name())
                    }
                    OsdRefusal::Failed(failure) => AuditVerdict::Failed(failure.name()),
                };
                (verdict, refusal.sense(job.cdb.generation))
            }
        };
        self.audit.record(&AuditRecord {
            time_ms: job.now_ms,
            principal: principal(&job.cdb),
            proven: true,
            nexus: job.nexus,
            initiator: &job.initiator,
            action: job.cdb.command.row().name,
            object: job.cdb.command.object(),
            verdict,
            sense: sense.as_ref().map(triple),
        });
        true
    }

    /// Waits until there may be a job for [`work`](Self::work), at most for this time.
    pub fn wait_for_work(&self, at_most: Duration) {
        self.jobs.wait(&self.device.running, at_most);
    }

    /// Stops all immediate commands at their next step, at a clean shutdown. They end with ABORTED
    /// COMMAND.
    pub fn stop_work(&self) {
        self.device.running.stop();
        self.jobs.wake();
    }

    /// Returns the key that authenticates time messages between the security manager and the
    /// device; `None` while there is no root key. It changes with the root key, so it must not be
    /// cached.
    #[must_use]
    pub fn time_key(&self) -> Option<Zeroizing<[u8; 32]>> {
        self.device.guard.keys.read().time_key()
    }

    /// Returns the key of receipts of functions; `None` while there is no root key. It changes with
    /// the root key, so it must not be cached.
    #[must_use]
    pub fn receipt_key(&self) -> Option<ReceiptKey<RustCrypto>> {
        self.device.guard.keys.read().receipt_key()
    }

    /// Returns counts of background work, for metrics.
    #[must_use]
    pub fn work_counts(&self) -> WorkCounts {
        let (immediate, immediate_ended) = self.device.running.counts();
        WorkCounts { immediate, immediate_ended, stranded: self.device.stranded.count() as u64 }
    }

    /// Makes everything durable at a clean shutdown. Signed commands are refused from now on, so
    /// that the nonce lease can be reduced to the last accepted nonce, and the next start need not
    /// wait.
    ///
    /// # Errors
    /// [`StoreError`]; then acknowledged commands without FUA may be lost.
    pub fn shut_down(&self) -> Result<(), StoreError> {
        // If the clock is unknown or writing fails, the lease stays ahead, which is safe.
        if let Ok(now_ms) = self.device.clock.now_ms()
            && let Err(error) = self.device.guard.retire(now_ms)
        {
            tracing::warn!(%error, "cannot reduce the nonce lease; the next start may have to wait");
        }
        self.scrub_save();
        match self.device.flush() {
            Err(OsdFailure::Store(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the command counters.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns counts of stored digests that were used and of bytes that were hashed.
    #[must_use]
    pub fn hashing(&self) -> HashingCount {
        self.device.hashing.count()
    }

    /// Returns usable and used bytes and the number of partitions, for metrics and health.
    #[must_use]
    pub fn usage(&self) -> DeviceUsage {
        DeviceUsage {
            total: self.device.total_capacity(),
            used: self.device.store.space().used,
            partitions: self.device.catalog.partition_count(),
        }
    }

    fn osd(&self, nexus: &Arc<OsdNexus>, command: &ScsiCommand<'_>) -> ScsiReply {
        match self.device.concealment.reveal(command.cdb) {
            Ok(cdb) => self.execute_clear(nexus, &ScsiCommand { cdb: &cdb, ..*command }),
            Err(denial) => self.refuse_concealed(nexus, command, denial),
        }
    }

    /// Refuses a CDB whose concealment is wrong. Nothing in it is trusted.
    fn refuse_concealed(&self, nexus: &OsdNexus, command: &ScsiCommand<'_>, denial: Denial) -> ScsiReply {
        let row = cost::service_action(command.cdb).and_then(table::find).map(|(row, _)| row);
        let ending = CommandEnding::Refused(denial.name());
        let sense = OsdRefusal::Denied(denial).sense(Generation::Osd2);
        self.record_unparsed(nexus, row, ending, AuditVerdict::Refused(denial.name()), sense.as_ref());
        OsdRefusal::Denied(denial).bare_reply()
    }

    fn execute_clear(&self, nexus: &Arc<OsdNexus>, command: &ScsiCommand<'_>) -> ScsiReply {
        let cdb = match Cdb::parse(command.cdb) {
            Ok(cdb) => cdb,
            Err(error) => return self.malformed(nexus, command, error),
        };
        let action = cdb.command.action();
        let osd1 = cdb.generation == Generation::Osd1 && !self.device.config.allow_osd1;
        let row = commands::row(action).filter(|_| !osd1);
        let now_ms = self.device.time();
        let early = match (row, &now_ms) {
            (None, _) => OsdFailure::UnsupportedAction,
            (Some(_), _) if self.device.is_formatting() => OsdFailure::Formatting,
            (Some(_), &Err(behind)) => behind.into(),
            (Some(_), &Ok(now_ms)) if self.ends_no_exchange(nexus, &cdb, now_ms) => OsdFailure::Sequence,
            (Some(row), &Ok(now_ms)) => match self.device.guard.check_lease(now_ms) {
                Ok(()) => {
                    let execution =
                        Execution::new((&self.device, &self.jobs), nexus, command, &cdb, row, now_ms);
                    let outcome = execution.finish();
                    let changes = row.changes || row.executes || cdb.attributes.sets();
                    self.record(nexus, &cdb, changes, now_ms, &outcome);
                    return outcome.reply;
                }
                Err(failure) => failure,
            },
        };
        let outcome = refused(early);
        self.record(nexus, &cdb, true, now_ms.unwrap_or_else(|_| self.device.clock.machine_ms()), &outcome);
        outcome.reply
    }

    /// Whether this is the change step of SET MASTER KEY without an exchange of this nexus. Then
    /// there is no key to verify its check value, which is no secret.
    fn ends_no_exchange(&self, nexus: &OsdNexus, cdb: &Cdb, now_ms: u64) -> bool {
        matches!(cdb.command, Command::SetMasterKey(set) if set.step == DhStep::ChangeMasterKey)
            && !self.device.guard.keys.awaits_change(nexus.id, now_ms)
    }

    /// Refuses a CDB that cannot be parsed.
    fn malformed(&self, nexus: &OsdNexus, command: &ScsiCommand<'_>, error: CdbError) -> ScsiReply {
        let row = cost::service_action(command.cdb).and_then(table::find).map(|(row, _)| row);
        let sense = match error {
            // An action that is not implemented is reported as such, whatever its fields are.
            CdbError::Field { .. } if row.is_some_and(|row| commands::row(row.action).is_none()) => {
                CdbError::ServiceAction(0).sense()
            }
            // The position of an error in a CDB is reported only to authenticated initiators,
            // unless NOSEC is allowed. Missing support is no secret.
            CdbError::Field { .. } if !self.device.config.insecure_nosec => {
                Sense::new(SenseKey::IllegalRequest, error.code())
            }
            _ => error.sense(),
        };
        self.record_unparsed(
            nexus,
            row,
            CommandEnding::Failed,
            AuditVerdict::Failed("malformed_cdb"),
            Some(&sense),
        );
        ScsiReply::check(sense.encode())
    }

    /// Records metrics and audit of a command that could not be parsed beyond its service action.
    fn record_unparsed(
        &self,
        nexus: &OsdNexus,
        row: Option<&table::ServiceAction>,
        ending: CommandEnding,
        verdict: AuditVerdict,
        sense: Option<&Sense>,
    ) {
        let index = row.map_or(SERVICE_ACTIONS.len(), |row| row.action as usize);
        self.metrics.count(index, ending, 0, 0);
        self.audit.record(&AuditRecord {
            time_ms: self.device.clock.machine_ms(),
            principal: Principal([0; 20]),
            proven: false,
            nexus: nexus.id,
            initiator: &nexus.initiator,
            action: row.map_or(UNKNOWN, |row| row.name),
            object: ObjectId::ROOT,
            verdict,
            sense: sense.map(triple),
        });
    }

    /// Records metrics and audit of a command.
    fn record(&self, nexus: &OsdNexus, cdb: &Cdb, changes: bool, now_ms: u64, outcome: &Outcome) {
        let (ending, verdict) = match &outcome.refusal {
            None => (CommandEnding::Done, AuditVerdict::Done),
            Some(OsdRefusal::Denied(denial) | OsdRefusal::ExtensionDenied(denial)) => {
                (CommandEnding::Refused(denial.name()), AuditVerdict::Refused(denial.name()))
            }
            Some(OsdRefusal::Failed(failure)) => {
                (CommandEnding::Failed, AuditVerdict::Failed(failure.name()))
            }
        };
        self.suspect(&cdb.command, changes, outcome);
        let row = cdb.command.row();
        let reply = &outcome.reply;
        self.metrics.count(row.action as usize, ending, reply.data_out_used, reply.data_in.len() as u64);
        // A command that changes nothing is audited if authority was missing. Other failures, such
        // as a read past the end, are only counted.
        let refused = matches!(ending, CommandEnding::Refused(_));
        if !refused && !changes && !self.device.config.audit_reads {
            return;
        }
        self.audit.record(&AuditRecord {
            time_ms: now_ms,
            principal: principal(cdb),
            proven: outcome.proven,
            nexus: nexus.id,
            initiator: &nexus.initiator,
            action: row.name,
            object: cdb.command.object(),
            verdict,
            sense: outcome.sense.as_ref().map(triple),
        });
    }
}

/// Returns the AUDIT field of the capability of a command.
fn principal(cdb: &Cdb) -> Principal {
    let audit = offset::AUDIT.into();
    let principal = cdb.capability.get(audit..).and_then(|rest: &[u8]| rest.first_chunk());
    Principal(principal.copied().unwrap_or_default())
}

/// Counts of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCounts {
    /// Immediate commands that have not ended.
    pub immediate: u64,
    /// Immediate commands that have ended since the start.
    pub immediate_ended: u64,
    /// Hidden partitions whose duplication failed midway and is retried.
    pub stranded: u64,
}

/// Capacity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Usable bytes.
    pub total: u64,
    /// Used bytes.
    pub used: u64,
    /// Number of partitions.
    pub partitions: u64,
}

/// Why [`OsdUnit::upkeep`] failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UpkeepError {
    /// The machine's clock is too far behind the nonce lease.
    #[error("the clock is too far behind; set it")]
    Clock,
    /// The device was restarted several times within seconds and waits for its clock.
    #[error("the clock is settling after several restarts; wait some seconds")]
    Settling,
    /// The lease could not be stored.
    #[error("the nonce lease could not be stored")]
    Lease,
}

/// Returns an unsigned refusal before admission.
fn refused(failure: OsdFailure) -> Outcome {
    let refusal = OsdRefusal::Failed(failure);
    let sense = refusal.sense(Generation::Osd2);
    Outcome { reply: refusal.bare_reply(), sense, refusal: Some(refusal), proven: false }
}

fn triple(sense: &Sense) -> (u8, u8, u8) {
    (sense.key.nibble(), sense.code.code(), sense.code.qualifier())
}

impl LogicalUnit for OsdUnit {
    fn has_descriptor_sense(&self) -> bool {
        true
    }

    fn cost(&self, _: NexusId, cdb: &[u8]) -> Cost {
        cost::of(&self.device, cdb)
    }

    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let nexus = self.nexuses.get(command.nexus);
        let server = OsdServer { device: &self.device, nexus: &nexus };
        if command.cdb.first() != Some(&OPERATION_CODE) {
            return primary::answer(&server, &command);
        }
        primary::attention(&server, nexus.id).unwrap_or_else(|| self.osd(&nexus, &command))
    }

    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        self.nexuses.establish(nexus, port);
    }

    fn connection_ended(&self, nexus: NexusId) {
        self.nexuses.connection_ended(nexus);
    }

    fn nexus_lost(&self, nexus: NexusId) {
        self.nexuses.lose(nexus);
        self.device.guard.keys.lose(nexus);
    }

    fn reset(&self) {
        self.nexuses.reset();
        self.device.guard.keys.reset();
    }

    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        self.nexuses.attention(nexus, code);
    }

    fn luns_reported(&self, nexus: NexusId) {
        self.nexuses.get(nexus).luns_reported();
    }
}
