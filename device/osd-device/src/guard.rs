//! Security state of the device: its keys, the gate that admits commands, the nonce lease, and the
//! object attributes that checks read.
//!
//! Does: apply `sealstone_seal` to this device.
//! Does not: decide anything itself.
//! Contract: no nonce is accepted whose time is later than the durable lease.
//! Truth: docs/design/security.md 3.3, 3.4, 3.6, 4.4.

use parking_lot::Mutex;
use sealstone_crypto::{ParkingLot, RustCrypto};
use sealstone_osd::{CapabilityBytes, Cdb};
use sealstone_seal::freshness::NonceHistory;
use sealstone_seal::{
    Admitted, Denial, DeviceFacts, Gate, GatePolicy, GateRefusal, GateRequest, KeyError,
    NexusSecurity as SealNexus, SecurityToken, SignedBy, VerifiedExtension,
};

use crate::environment::Env;
use crate::failure::OsdFailure;
use crate::keyring::Keyring;
use crate::nexus::OsdNexus;
use crate::provision::ProvisionError;

/// If maintenance is this late, in milliseconds, a command renews the lease itself.
const UPKEEP_LATE_MS: u64 = 1000;

/// Stores the nonce lease and earlier eras across restarts.
pub trait LeaseStore: Send + Sync {
    /// Makes the lease and the eras durable before returning.
    ///
    /// # Errors
    /// The device refuses signed commands until a call succeeds.
    fn persist(&self, history: &NonceHistory) -> Result<(), ProvisionError>;
}

/// Stores nothing. For tests, and for devices whose objects do not survive a restart either.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolatileLease;

impl LeaseStore for VolatileLease {
    fn persist(&self, _: &NonceHistory) -> Result<(), ProvisionError> {
        Ok(())
    }
}

/// Keys, admission and lease of one device.
pub(crate) struct Guard {
    pub(crate) keys: Keyring,
    gate: Gate<RustCrypto, ParkingLot>,
    lease: Mutex<LeaseState>,
}

/// The durable nonce history, and where it is stored.
struct LeaseState {
    store: Box<dyn LeaseStore>,
    history: NonceHistory,
    /// Lease at the start of the current era. The next start must not begin before it.
    before_ms: u64,
}

impl Guard {
    pub(crate) fn new(
        policy: GatePolicy,
        keys: Keyring,
        store: Box<dyn LeaseStore>,
        history: NonceHistory,
        env: &Env,
    ) -> Self {
        let mut random = |into: &mut [u8]| env.fill_random(into);
        let before_ms = history.lease_ms();
        let gate = Gate::new(policy, before_ms, &mut random);
        gate.nonces().refuse_spent(history.spent());
        let lease = Mutex::new(LeaseState { store, history, before_ms });
        Self { keys, gate, lease }
    }

    /// Starts an era at `now_ms`, to which the clock is set back. It is durable before any nonce of
    /// it is accepted.
    ///
    /// # Errors
    /// [`OsdFailure::BootRecord`]; then the old era continues.
    pub(crate) fn set_back(&self, now_ms: u64) -> Result<(), OsdFailure> {
        let mut lease = self.lease.lock();
        let history = lease.history.set_back(now_ms);
        lease.store.persist(&history).map_err(|_| OsdFailure::BootRecord)?;
        self.gate.nonces().begin_era(&history);
        lease.before_ms = now_ms;
        lease.history = history;
        Ok(())
    }

    /// Returns for how many milliseconds nonces will be refused because an earlier era used these
    /// times.
    pub(crate) fn spent_for_ms(&self, now_ms: u64) -> u64 {
        self.gate.nonces().spent_for_ms(now_ms)
    }

    /// Forgets earlier eras. Called after all keys were replaced, so nothing signed in them
    /// verifies.
    pub(crate) fn forget_eras(&self) -> Result<(), OsdFailure> {
        let mut lease = self.lease.lock();
        let history = lease.history.without_spent();
        lease.store.persist(&history).map_err(|_| OsdFailure::BootRecord)?;
        self.gate.nonces().refuse_spent(&[]);
        lease.history = history;
        Ok(())
    }

    /// Creates the keys of a partition durably, before the partition is stored, so that no
    /// partition lacks keys.
    pub(crate) fn add_partition(&self, id: u64, signed: Option<SignedBy>) -> Result<(), OsdFailure> {
        self.keys.change(signed, |keys| {
            keys.add_partition(id).map_err(|error| match error {
                KeyError::PartitionExists(_) => OsdFailure::Field(crate::failure::PARTITION),
                KeyError::Full => OsdFailure::Quota("partition keys"),
                KeyError::ParentUnset | KeyError::NoPartition(_) | KeyError::Version(_) => {
                    OsdFailure::Keys(error)
                }
            })
        })
    }

    /// Whether the key of a credential is still set. A revoked command must not run, however long
    /// it waited.
    pub(crate) fn still_signed(&self, signed: Option<SignedBy>) -> bool {
        signed.is_none_or(|signed| signed.holds(&self.keys.read()))
    }

    /// Ends this start: nothing signed is accepted any more, and the lease is reduced to the latest
    /// accepted or reported time. The next start then needs no wait if the clock is correct.
    pub(crate) fn retire(&self, now_ms: u64) -> Result<(), ProvisionError> {
        let lease = self.lease.lock();
        let newest_ms = self.gate.nonces().retire();
        lease.store.persist(&lease.history.retired(newest_ms.max(now_ms).max(lease.before_ms)))
    }

    /// Renews the lease and frees idle memory. Call about twice a second.
    pub(crate) fn upkeep(&self, now_ms: u64) -> Result<(), OsdFailure> {
        self.gate.nonces().sweep(now_ms);
        self.keys.expire_exchange(now_ms);
        self.renew(now_ms)
    }

    fn renew(&self, now_ms: u64) -> Result<(), OsdFailure> {
        if self.gate.nonces().lease_due(now_ms).is_none() {
            return Ok(());
        }
        let mut lease = self.lease.lock();
        // Another thread may have renewed it, or the clock may have been set back.
        if let Some(due) = self.gate.nonces().lease_due(now_ms) {
            let history = lease.history.extended(due, self.gate.nonces().limits().old_ms);
            lease.store.persist(&history).map_err(|_| OsdFailure::BootRecord)?;
            if history.spent() != lease.history.spent() {
                self.gate.nonces().refuse_spent(history.spent());
            }
            self.gate.nonces().extend_lease(due);
            lease.history = history;
        }
        Ok(())
    }

    /// Renews a lease that maintenance has not renewed in time.
    pub(crate) fn check_lease(&self, now_ms: u64) -> Result<(), OsdFailure> {
        let late = now_ms.saturating_sub(UPKEEP_LATE_MS);
        if self.gate.nonces().lease_due(late).is_some() { self.renew(now_ms) } else { Ok(()) }
    }

    /// Runs steps 2 to 6 of the order of checks.
    pub(crate) fn admit(
        &self,
        facts: &dyn DeviceFacts,
        context: &CommandContext<'_>,
    ) -> Result<Admitted<RustCrypto>, GateRefusal<RustCrypto>> {
        self.with_request(facts, context, |request| self.gate.admit(request))
    }

    /// Checks an extension capability of an admitted command.
    pub(crate) fn extend(
        &self,
        facts: &dyn DeviceFacts,
        context: &CommandContext<'_>,
        capability: &CapabilityBytes,
        proof: &[u8],
    ) -> Result<VerifiedExtension, Denial> {
        self.with_request(facts, context, |request| self.gate.extend(request, capability, proof))
    }

    /// Runs a check with the present keys.
    fn with_request<T>(
        &self,
        facts: &dyn DeviceFacts,
        context: &CommandContext<'_>,
        check: impl FnOnce(&GateRequest<'_, RustCrypto>) -> T,
    ) -> T {
        let token = Some(SecurityToken(context.nexus.token()));
        let seal_nexus = SealNexus { token, secure_channel: context.nexus.secure_channel };
        check(&GateRequest {
            cdb: context.cdb,
            bytes: context.bytes,
            nexus: &seal_nexus,
            clock_ms: context.now_ms,
            boot_epoch: context.boot_epoch,
            keys: &self.keys.read(),
            facts,
        })
    }
}

/// A received command, for its checks.
#[derive(Clone, Copy)]
pub(crate) struct CommandContext<'a> {
    pub(crate) nexus: &'a OsdNexus,
    pub(crate) cdb: &'a Cdb,
    pub(crate) bytes: &'a [u8],
    pub(crate) now_ms: u64,
    pub(crate) boot_epoch: u16,
}
