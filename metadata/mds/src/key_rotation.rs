//! Key changes of devices: requests and housekeeping.
//!
//! Does: plan steps for the daemon and apply their outcomes, one device at a time; answer KeyList,
//! KeyRotate, KeyProgress.
//! Contract: as in `device_keys`: a key change is durable before its step is given out, and in use
//! after the device's answer is durable too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sealstone_mds_protocol::{DeviceId, ErrorCode, KeyCursor, KeyLevel, Response};
use zeroize::Zeroizing;

use crate::access::Principal;
use crate::counters::add;
use crate::device_keys::{
    ASKED_MASTER, ASKED_PARTITION, ASKED_REVOKE, ASKED_ROOT, ASKED_WORKING, DeviceKeyState, KeyAction,
    KeyStep, Keys, RotationPolicy, StepOutcome, StepProgress, UnsavedKeys, apply, apply_device_value, plan,
};
use crate::entropy::Entropy;
use crate::error::{MdsError, Result};
use crate::server::Mds;

/// Result of a device's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStepsResult {
    /// There may be more steps at once.
    Going,
    /// No step now: the device did not answer, or has to settle.
    Stuck,
    /// The device accepts none of the server's keys: an operator has to intervene.
    Lost,
}

impl Mds {
    fn policy(&self) -> RotationPolicy {
        // Credentials of other servers are not known here, so a key is kept for their longest
        // lifetime.
        let config = &self.config;
        let grant_ms = if config.shared { config.longest_life_ms() } else { config.grant_lifetime_ms() };
        RotationPolicy {
            working_age_ms: self.config.working_key_age_ms,
            partition_age_ms: self.config.partition_key_age_ms,
            credentials_max: self.config.credentials_per_key_max,
            grant_ms,
            group: self.config.master_key_group,
        }
    }

    /// Stores the touched parts of a key state, a bounded number of partitions in each transaction.
    /// The caller holds the key lock.
    pub(crate) fn store_keys(
        &self,
        device: DeviceId,
        keys: &Keys,
        key_state: &DeviceKeyState,
        touched: &UnsavedKeys,
    ) -> Result<()> {
        key_state.store_in_steps(device, keys, touched, |work| self.update(work))
    }

    /// Returns the next steps for the keys of a device, at most `limit`; none if all keys are as
    /// they should be. They may be performed in any order or in parallel. [`Mds::key_steps_done`]
    /// has to follow with all outcomes before the next call.
    ///
    /// # Errors
    /// `Store`; `Refused` if there is no such device.
    pub fn key_steps(
        &self,
        device: DeviceId,
        limit: usize,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<Vec<KeyStep>> {
        let mut turn = self.key_lock.lock();
        let (keys, mut key_state) = self.devices.key_state(device)?;
        let exchange = turn.entry(device).or_default();
        let (mut steps, touched) = plan(&mut key_state, &keys, exchange, &self.policy(), limit, now_ms, rng)?;
        if !touched.is_empty() {
            self.store_keys(device, &keys, &key_state, &touched)?;
        }
        self.devices.set_key_state(device, keys, key_state);
        for step in &mut steps {
            if let KeyAction::CreatePartition { partition, policy } = &mut step.action {
                *policy = self.policy_attributes(*partition)?;
            }
        }
        Ok(steps)
    }

    /// Applies the outcomes of steps.
    ///
    /// # Errors
    /// `Store`: the outcomes are lost then, and the steps are planned again.
    pub fn key_steps_done(
        &self,
        device: DeviceId,
        outcomes: Vec<(KeyStep, StepOutcome)>,
        now_ms: u64,
        rng: &mut dyn Entropy,
    ) -> Result<KeyStepsResult> {
        let mut turn = self.key_lock.lock();
        let (before, mut key_state) = self.devices.key_state(device)?;
        let mut keys = (*before).clone();
        let mut touched = UnsavedKeys::default();
        let policy = self.policy();
        let (mut going, mut lost, mut changed) = (false, false, 0);
        for (step, outcome) in outcomes {
            changed += u64::from(step.changes_a_key() && matches!(outcome, StepOutcome::Done));
            let progress = match outcome {
                StepOutcome::Value(value) => {
                    let exchange = turn.entry(device).or_default();
                    apply_device_value(&mut key_state, &mut keys, exchange, value, &mut touched, now_ms, rng)
                }
                outcome => apply(&mut key_state, &mut keys, &step, &outcome, &policy, &mut touched, now_ms),
            };
            going |= progress == StepProgress::Going;
            lost |= progress == StepProgress::Lost;
        }
        if !touched.is_empty() {
            self.store_keys(device, &keys, &key_state, &touched)?;
        }
        self.devices.set_key_state(device, Arc::new(keys), key_state);
        add(&self.counters.keys_changed, changed);
        Ok(if lost {
            KeyStepsResult::Lost
        } else if going {
            KeyStepsResult::Going
        } else {
            KeyStepsResult::Stuck
        })
    }

    /// Returns the current keys that authenticate time messages to each device.
    #[must_use]
    pub fn time_keys(&self) -> Vec<(DeviceId, Zeroizing<[u8; 32]>)> {
        self.devices.time_keys()
    }

    /// Whether all keys of the device were set by the server and all its partitions exist.
    #[must_use]
    pub fn keys_ready(&self, device: DeviceId) -> bool {
        self.devices.keys_ready(device)
    }

    /// Requests a comparison of the device's keys with ours in the next steps. Call it from time to
    /// time, and after the device was unavailable.
    ///
    /// # Errors
    /// `Refused` if there is no such device.
    pub fn check_keys(&self, device: DeviceId) -> Result<()> {
        let _turn = self.key_lock.lock();
        let (keys, mut key_state) = self.devices.key_state(device)?;
        // Partition zero and one file partition are enough: a formatted device has lost all file
        // partitions.
        key_state.parts.values_mut().take(2).for_each(|part| part.checked = false);
        self.devices.set_key_state(device, keys, key_state);
        Ok(())
    }

    pub(crate) fn key_list(&self, device: Option<DeviceId>, from: Option<KeyCursor>) -> Result<Response> {
        let (keys, next) = self.devices.key_page(device, from);
        Ok(Response::Keys { keys, next })
    }

    pub(crate) fn key_progress(&self, device: Option<DeviceId>, now_ms: u64) -> Result<Response> {
        let (open, stuck) = self.devices.pending_keys(device, now_ms);
        let changed = self.counters.keys_changed.load(Ordering::Relaxed);
        Ok(Response::KeyProgress { open, stuck, changed })
    }

    /// Durably requests key changes; housekeeping performs them.
    pub(crate) fn key_rotate(
        &self,
        principal: &Principal,
        level: KeyLevel,
        device: Option<DeviceId>,
        partition: Option<u64>,
        revoke: bool,
        now_ms: u64,
    ) -> Result<Response> {
        principal.needs_admin()?;
        let above = matches!(level, KeyLevel::Master | KeyLevel::Root);
        if above && (partition.is_some() || revoke) {
            let what = "master and root keys have no partition, and changing one revokes all credentials";
            return Err(MdsError::refused(ErrorCode::Invalid, what));
        }
        let mut found = false;
        let _turn = self.key_lock.lock();
        for (address, _) in self.devices.addresses() {
            if device.is_some_and(|device| device != address.id) {
                continue;
            }
            let (keys, mut key_state) = self.devices.key_state(address.id)?;
            let mut touched = UnsavedKeys::default();
            if above {
                found = true;
                touched.top = true;
                key_state.asked |= if level == KeyLevel::Master { ASKED_MASTER } else { ASKED_ROOT };
            }
            for (id, part) in &mut key_state.parts {
                if above || partition.is_some_and(|partition| partition != *id) {
                    continue;
                }
                found = true;
                part.asked |= if level == KeyLevel::Partition { ASKED_PARTITION } else { ASKED_WORKING };
                part.asked |= if revoke && level == KeyLevel::Working { ASKED_REVOKE } else { 0 };
                touched.parts.insert(*id);
            }
            if !touched.is_empty() {
                self.store_keys(address.id, &keys, &key_state, &touched)?;
                self.devices.set_key_state(address.id, keys, key_state);
            }
        }
        if !found {
            return Err(MdsError::refused(ErrorCode::NotFound, "no such device or partition"));
        }
        self.devices_changed.store(true, Ordering::Release);
        self.key_progress(device, now_ms)
    }

    /// Durably requests new working keys for these partitions of a device; the old ones are
    /// overwritten at once.
    pub(crate) fn request_new_keys(&self, device: DeviceId, partitions: &[u64]) -> Result<()> {
        let _turn = self.key_lock.lock();
        let (keys, mut key_state) = self.devices.key_state(device)?;
        let mut touched = UnsavedKeys::default();
        for (id, part) in key_state.parts.iter_mut().filter(|(id, _)| partitions.contains(id)) {
            part.asked |= ASKED_WORKING | ASKED_REVOKE;
            touched.parts.insert(*id);
        }
        self.store_keys(device, &keys, &key_state, &touched)?;
        self.devices.set_key_state(device, keys, key_state);
        self.devices_changed.store(true, Ordering::Release);
        Ok(())
    }
}
