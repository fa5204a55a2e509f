//! The scrub: reads all objects slowly and verifies their checksums and stored digests.
//!
//! Does: run in small steps; save its position in the internal page of the root, so that it resumes
//! there after a restart; first examine objects on which a command failed, and known damage again;
//! have the store compute missing digests.
//! Does not: create threads, wait or control its rate: the caller of [`OsdUnit::scrub_step`] does.
//! Contract: a step reads at most 1 MiB under one object's lock, and the same amount again if
//! digests are missing. When it returns, its findings are in the Error Recovery attributes, in the
//! audit log (action `SCRUB`) and in [`OsdUnit::damaged`]. An object that cannot be examined counts
//! as damaged after two attempts, and the pass continues with the next one.
//! Truth: docs/standards/device.md; docs/how-to/check-and-repair.md.

use std::sync::atomic::{AtomicU64, Ordering};

use sealstone_osd::{Command, ObjectId, ObjectType};
use sealstone_scsi::lu::NexusId;
use sealstone_store::{BLOCK, StoreError};

use crate::audit::{AuditRecord, AuditVerdict, Principal};
use crate::damage::{self, Damage, Examination, ExamineStep, Range};
use crate::device::OsdDevice;
use crate::execute::Outcome;
use crate::failure::OsdFailure;
use crate::partition_locks::PartitionUse;
use crate::report::OsdRefusal;
use crate::scrub_pass::{ScrubPass, Suspicion, UnreadObject, WALK};
use crate::unit::OsdUnit;

/// Action name of findings in the audit log.
const ACTION: &str = "SCRUB";
/// Sense of a finding: MEDIUM ERROR, UNRECOVERED READ ERROR.
const SENSE: (u8, u8, u8) = (3, 0x11, 0);
/// Interval at which the position is saved, in ms.
const SAVE_EVERY_MS: u64 = 5_000;
/// Interval at which known damage is examined again, in ms: the data may have been rewritten
/// without a command.
const RECHECK_EVERY_MS: u64 = 30_000;
/// Objects for which the reason of a failed examination is kept.
const UNREAD_MAX: usize = 1000;
/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubStep {
    /// There was nothing to do.
    Idle,
    /// The step read data, and there may be more to do.
    Worked {
        /// Bytes read.
        bytes: u64,
    },
    /// A pass over all objects ended with this step.
    Ended,
}

/// State of the scrub. Times are ms since 1970, 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubState {
    /// Whether a pass is running.
    pub running: bool,
    /// Start of the current or last pass.
    pub began_ms: u64,
    /// End of the last complete pass.
    pub ended_ms: u64,
    /// Objects read in this pass.
    pub objects: u64,
    /// Objects in the store.
    pub objects_total: u64,
    /// Bytes read in this pass. Shared blocks count once per object.
    pub bytes: u64,
    /// Bytes in use.
    pub bytes_total: u64,
    /// Objects that this pass could not examine completely. They count as damaged until they can be
    /// examined.
    pub unread: u64,
    /// Units for which this pass stored a missing digest.
    pub digested: u64,
    /// Objects known to be damaged.
    pub damaged: u64,
    /// Whether there are more than the device lists.
    pub more_damaged: bool,
    /// Bytes read since the start of the device, in all passes.
    pub bytes_since_start: u64,
    /// Objects read since the start of the device, in all passes.
    pub objects_since_start: u64,
    /// Digests stored since the start of the device, in all passes.
    pub digested_since_start: u64,
    /// Passes completed since the start of the device.
    pub passes_since_start: u64,
}

impl OsdUnit {
    /// Starts a pass over all objects, if none is running.
    ///
    /// # Errors
    /// [`StoreError`] if the start could not be stored; then no pass is running.
    pub fn scrub_begin(&self) -> Result<(), StoreError> {
        let mut walk = self.device.scrub.walk.lock();
        if !walk.running {
            walk.begin(self.device.clock.machine_ms());
            self.device.damaged.forget_more();
            if let Err(error) = save(&self.device, &mut walk) {
                walk.running = false;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops the running pass. The next one starts at the first object.
    ///
    /// # Errors
    /// [`StoreError`] if the stop could not be stored; after a restart the pass would resume.
    pub fn scrub_stop(&self) -> Result<(), StoreError> {
        let mut walk = self.device.scrub.walk.lock();
        walk.running = false;
        (walk.now, walk.aside) = (None, None);
        save(&self.device, &mut walk)
    }

    /// Returns the state of the scrub.
    #[must_use]
    pub fn scrub_state(&self) -> ScrubState {
        let space = self.device.store.space();
        let (damaged, more_damaged) = self.device.damaged.count();
        let scrub = &self.device.scrub;
        let since_start = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let walk = scrub.walk.lock();
        ScrubState {
            running: walk.running,
            began_ms: walk.began_ms,
            ended_ms: walk.ended_ms,
            objects: walk.objects,
            objects_total: space.objects,
            bytes: walk.bytes,
            bytes_total: space.used,
            unread: walk.unread,
            digested: walk.digested,
            damaged,
            more_damaged,
            bytes_since_start: since_start(&scrub.bytes),
            objects_since_start: since_start(&scrub.objects),
            digested_since_start: since_start(&scrub.digested),
            passes_since_start: since_start(&scrub.passes),
        }
    }

    /// Returns the objects known to be damaged, in order of their ids, at most 4000.
    #[must_use]
    pub fn damaged(&self) -> Vec<(ObjectId, Damage)> {
        self.device.damaged.all()
    }

    /// Returns the objects that the current or last pass could not examine: the first ones, since
    /// the start.
    #[must_use]
    pub fn unread(&self) -> Vec<UnreadObject> {
        self.device.scrub.walk.lock().unread_objects.clone()
    }

    /// Runs one step: first objects on which commands failed, then the running pass. Call it
    /// repeatedly while it works, at the wanted rate, and about twice a second in any case.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed as a whole. Damage is not an error.
    pub fn scrub_step(&self) -> Result<ScrubStep, StoreError> {
        let device = &self.device;
        let mut walk = device.scrub.walk.lock();
        let walk = &mut *walk;
        let now_ms = device.clock.machine_ms();
        if now_ms.abs_diff(walk.rechecked_ms) >= RECHECK_EVERY_MS {
            walk.rechecked_ms = now_ms;
            if !device.damaged.is_empty() {
                device
                    .damaged
                    .all()
                    .into_iter()
                    .for_each(|(id, _)| device.scrub.suspect(id, Suspicion::Known));
            }
        }
        let outcome = match self.examine_suspect(walk, now_ms) {
            Ok(None) if walk.running => self.advance(walk, now_ms),
            Ok(None) => Ok(ScrubStep::Idle),
            Ok(Some(bytes)) => Ok(ScrubStep::Worked { bytes }),
            Err(error) => Err(error),
        };
        self.report_damage_changes(now_ms);
        outcome
    }

    /// Saves the position of the pass at a clean shutdown.
    pub(crate) fn scrub_save(&self) {
        let mut walk = self.device.scrub.walk.lock();
        if walk.running
            && let Err(error) = save(&self.device, &mut walk)
        {
            tracing::warn!(%error, "cannot save the scrub position; it will resume at the last saved one");
        }
    }

    /// Queues objects for examination before all others.
    pub(crate) fn suspect_objects(&self, objects: impl Iterator<Item = ObjectId>) {
        objects.for_each(|id| self.device.scrub.suspect(id, Suspicion::Whole));
    }

    /// Queues examinations after a command that met damage, or changed something that is damaged.
    pub(crate) fn suspect(&self, command: &Command, changes: bool, outcome: &Outcome) {
        let scrub = &self.device.scrub;
        match &outcome.refusal {
            Some(OsdRefusal::Failed(OsdFailure::Store(error))) => {
                scrub.suspect_error(error, Some(command.object()));
            }
            Some(_) => {}
            None if changes && !self.device.damaged.is_empty() => {
                let object = command.object();
                let members = command.row().objects.contains(&ObjectType::Collection);
                let touched = self.device.damaged.touched_by(object, members);
                touched.into_iter().for_each(|id| scrub.suspect(id, Suspicion::Known));
            }
            None => {}
        }
    }

    /// Examines one queued object. Returns the bytes read; `None` if the queue is empty.
    fn examine_suspect(&self, walk: &mut ScrubPass, now_ms: u64) -> Result<Option<u64>, StoreError> {
        let device = &self.device;
        let examiner = device.examiner();
        if let Some(mut aside) = walk.aside.take() {
            let id = aside.id();
            let step = match examiner.step(&mut aside) {
                Ok(step) => step,
                Err(error) if !walk.gives_up(id) => {
                    walk.aside = Some(aside);
                    return Err(error);
                }
                Err(error) => {
                    self.give_up(&mut aside, &error);
                    ExamineStep::End(0)
                }
            };
            let (bytes, found) = match step {
                ExamineStep::More(read) => {
                    walk.aside = Some(aside);
                    return Ok(Some(read));
                }
                ExamineStep::End(read) => (read, aside.found),
                ExamineStep::Gone => (0, Damage::default()),
            };
            if !self.settle(id, &found, now_ms)? {
                device.scrub.suspect(id, Suspicion::Whole);
            }
            return Ok(Some(bytes));
        }
        let Some((id, why)) = device.scrub.suspects.lock().pop_first() else { return Ok(None) };
        let mut doubted = damage::known(&*device.store, id).unwrap_or_default();
        let mut bytes = doubted.bytes();
        match why {
            Suspicion::Known => {}
            Suspicion::Byte(at) => {
                let block = Range { offset: at - at % BLOCK, length: BLOCK };
                bytes += BLOCK;
                if !doubted.ranges.iter().any(|range| range.offset <= at && at < range.end()) {
                    doubted.ranges.push(block);
                    doubted.ranges.sort_unstable_by_key(|range| range.offset);
                }
            }
            Suspicion::Whole => {
                walk.aside = Some(Examination::of(id));
                return Ok(Some(0));
            }
        }
        if !self.settle(id, &doubted, now_ms)? {
            device.scrub.suspect(id, why);
            return Ok(None);
        }
        device.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Some(bytes))
    }

    /// Reads the next piece of the pass.
    fn advance(&self, walk: &mut ScrubPass, now_ms: u64) -> Result<ScrubStep, StoreError> {
        let device = &self.device;
        let examiner = device.examiner();
        let Some(mut now) = walk.next(examiner)? else {
            (walk.running, walk.ended_ms) = (false, now_ms);
            device.scrub.passes.fetch_add(1, Ordering::Relaxed);
            let (damaged, _) = device.damaged.count();
            let ScrubPass { objects, bytes, digested, unread, .. } = *walk;
            tracing::info!(objects, bytes, damaged, unread, digested, "scrub finished");
            save(device, walk)?;
            return Ok(ScrubStep::Ended);
        };
        let (id, before) = (now.id(), now.clone());
        let step = match examiner.step(&mut now) {
            Ok(step) => step,
            Err(error) if !walk.gives_up(id) => {
                // The store may have failed instead of the object: retry later.
                walk.now = Some(now);
                return Err(error);
            }
            Err(error) => {
                let unread = self.give_up(&mut now, &error);
                walk.unread += 1;
                if walk.unread_objects.len() < UNREAD_MAX {
                    walk.unread_objects.push(unread);
                }
                ExamineStep::End(0)
            }
        };
        let read = match step {
            ExamineStep::More(read) | ExamineStep::End(read) => read,
            ExamineStep::Gone => 0,
        };
        device.scrub.bytes.fetch_add(read, Ordering::Relaxed);
        let incomplete = now.incomplete.take();
        let completed = match step {
            ExamineStep::Gone => 0,
            _ => incomplete.map_or(0, |at| self.complete(walk, id, at)),
        };
        match step {
            ExamineStep::More(_) => walk.now = Some(now),
            ExamineStep::End(_) if self.settle(id, &now.found, now_ms)? => {
                walk.objects += 1;
                device.scrub.objects.fetch_add(1, Ordering::Relaxed);
            }
            ExamineStep::End(_) => {
                // Its partition is being duplicated: the last piece is read again and recorded
                // later.
                walk.now = Some(before);
                return Ok(ScrubStep::Worked { bytes: read + completed });
            }
            ExamineStep::Gone => drop(self.settle(id, &Damage::default(), now_ms)?),
        }
        walk.bytes += read;
        if now_ms.abs_diff(walk.saved_ms) >= SAVE_EVERY_MS {
            if let Some(now) = walk.now.as_ref().filter(|now| !now.found.is_none()) {
                let mut found = now.found.clone();
                let known = damage::known(&*device.store, now.id()).unwrap_or_default();
                found.ranges.extend(known.ranges.into_iter().filter(|range| range.offset >= now.at()));
                found.attributes |= known.attributes;
                self.settle(now.id(), &found, now_ms)?;
            }
            save(device, walk)?;
        }
        Ok(ScrubStep::Worked { bytes: read + completed })
    }

    /// Records that an object cannot be examined completely.
    fn give_up(&self, examination: &mut Examination, error: &StoreError) -> UnreadObject {
        let (id, at) = (examination.id(), examination.at());
        tracing::error!(%id, at, %error, "object cannot be read; scrub continues with the next one");
        examination.give_up(self.device.store.stat(id).ok().map(|stat| stat.length));
        UnreadObject { id, at, error: error.to_string() }
    }

    /// Has the store compute the missing digests of a piece. Returns the bytes read. A failure is
    /// not damage.
    fn complete(&self, walk: &mut ScrubPass, id: ObjectId, at: u64) -> u64 {
        match self.device.store.complete_digests(id, at) {
            Ok(done) => {
                walk.digested += done.units;
                self.device.scrub.digested.fetch_add(done.units, Ordering::Relaxed);
                done.bytes
            }
            Err(error) => {
                tracing::debug!(%id, at, %error, "cannot store missing digests");
                0
            }
        }
    }

    /// Records a finding. Returns false if another command has an exclusive claim of the partition.
    fn settle(&self, id: ObjectId, found: &Damage, now_ms: u64) -> Result<bool, StoreError> {
        let device = &self.device;
        let Ok(_contents) = device.partition_locks.acquire(PartitionUse::Change(id.partition)) else {
            return Ok(false);
        };
        device.damaged.settle(device.examiner(), id, found, now_ms)?;
        Ok(true)
    }

    /// Reports changes of damage to log and audit log.
    fn report_damage_changes(&self, now_ms: u64) {
        while let Some(news) = self.device.damaged.news() {
            let damaged = !news.damage.is_none();
            if damaged {
                let ranges: Vec<String> = news
                    .damage
                    .ranges
                    .iter()
                    .map(|range| format!("{}+{}", range.offset, range.length))
                    .collect();
                let ranges = ranges.join(",");
                let (object, records) = (news.id, news.damage.attributes);
                tracing::error!(%object, bytes = ranges, records, "object is damaged on disk; write its data again");
            } else {
                tracing::info!(object = %news.id, "object is no longer damaged: rewritten or removed");
            }
            self.audit.record(&AuditRecord {
                time_ms: now_ms,
                principal: Principal([0; 20]),
                proven: true,
                nexus: NexusId(0),
                initiator: "",
                action: ACTION,
                object: news.id,
                verdict: if damaged { AuditVerdict::Failed("damaged") } else { AuditVerdict::Done },
                sense: damaged.then_some(SENSE),
            });
        }
    }
}

/// Saves the position. A store that refuses writes, or a root whose attributes are full, keeps the
/// last saved one.
fn save(device: &OsdDevice, walk: &mut ScrubPass) -> Result<(), StoreError> {
    walk.saved_ms = device.clock.machine_ms();
    match device.store.set_attribute(ObjectId::ROOT, WALK, &walk.encode()) {
        Err(StoreError::Poisoned | StoreError::TooLarge { .. }) => Ok(()),
        other => other,
    }
}
