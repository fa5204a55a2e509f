//! State of the logical unit for each I_T nexus.
//!
//! Does: initiator name, whether the channel is secure, security token, pending unit attentions.
//! Does not: sessions or connections; the target does.
//! Contract: a nexus that was not announced gets a record at its first command, without a secure
//! channel.
//! Truth: SPC-4 (unit attention), docs/design/t10-osd.md 4.4 (security token), 6.3 (attention after
//! login).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use sealstone_scsi::additional::BUS_DEVICE_RESET_OCCURRED;
use sealstone_scsi::lu::{InitiatorPort, NexusId};
use sealstone_scsi::{AdditionalSense, Attentions};

use crate::environment::Env;

/// Bytes of a security token (VPD page B1h). This length cannot be mistaken for a CDB.
pub const TOKEN_LEN: usize = 32;
/// Nexuses remembered. Beyond that an arbitrary one is forgotten, and gets a new token and unit
/// attention.
const NEXUSES_MAX: usize = 65_536;

/// State of one nexus.
pub(crate) struct OsdNexus {
    pub(crate) id: NexusId,
    pub(crate) initiator: String,
    pub(crate) secure_channel: bool,
    state: Mutex<NexusState>,
    lost: AtomicBool,
    env: Env,
}

struct NexusState {
    token: [u8; TOKEN_LEN],
    attentions: Attentions,
}

impl OsdNexus {
    /// Returns the security token that binds CAPKEY requests to this nexus.
    pub(crate) fn token(&self) -> [u8; TOKEN_LEN] {
        self.state.lock().token
    }

    /// Takes the oldest unit attention.
    pub(crate) fn take_attention(&self) -> Option<AdditionalSense> {
        self.state.lock().attentions.take()
    }

    /// Returns the oldest unit attention without clearing it.
    pub(crate) fn first_attention(&self) -> Option<AdditionalSense> {
        self.state.lock().attentions.first()
    }

    /// I_T NEXUS RESET: requests signed with the old token become invalid. Inside TLS the token
    /// belongs to the channel and stays, because no other peer can send such a request there.
    pub(crate) fn renew(&self) {
        if !self.secure_channel {
            self.state.lock().token = self.env.random();
        }
    }

    /// Whether its connection ended, so that no client waits for its commands.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn luns_reported(&self) {
        self.state.lock().attentions.luns_reported();
    }
}

/// All nexuses of a logical unit.
pub(crate) struct OsdNexusTable {
    known: RwLock<HashMap<NexusId, Arc<OsdNexus>>>,
    env: Env,
}

impl OsdNexusTable {
    pub(crate) fn new(env: Env) -> Self {
        Self { known: RwLock::new(HashMap::new()), env }
    }

    /// Adds a nexus that logged in, with its channel's token or a new one, and its first unit
    /// attention.
    pub(crate) fn establish(&self, id: NexusId, port: &InitiatorPort<'_>) -> Arc<OsdNexus> {
        let token = port.channel.map_or_else(|| self.env.random(), |channel| channel.0);
        let state = NexusState { token, attentions: Attentions::begin(port.attention()) };
        let nexus = Arc::new(OsdNexus {
            id,
            initiator: port.name.to_owned(),
            secure_channel: port.channel.is_some(),
            state: Mutex::new(state),
            lost: AtomicBool::new(false),
            env: self.env.clone(),
        });
        let mut known = self.known.write();
        if known.len() >= NEXUSES_MAX
            && let Some(&other) = known.keys().next()
        {
            known.remove(&other);
        }
        known.insert(id, Arc::clone(&nexus));
        nexus
    }

    pub(crate) fn lose(&self, id: NexusId) {
        if let Some(nexus) = self.known.write().remove(&id) {
            nexus.lost.store(true, Ordering::Release);
        }
    }

    /// Marks a nexus whose connection ended. Its commands may still run.
    pub(crate) fn connection_ended(&self, id: NexusId) {
        if let Some(nexus) = self.known.read().get(&id) {
            nexus.lost.store(true, Ordering::Release);
        }
    }

    pub(crate) fn get(&self, id: NexusId) -> Arc<OsdNexus> {
        let known = self.known.read().get(&id).cloned();
        known.unwrap_or_else(|| self.establish(id, &InitiatorPort::new("")))
    }

    /// LOGICAL UNIT RESET: new tokens outside of TLS, and a unit attention for every nexus.
    pub(crate) fn reset(&self) {
        for nexus in self.known.read().values() {
            nexus.renew();
            let mut state = nexus.state.lock();
            state.attentions.raise(BUS_DEVICE_RESET_OCCURRED);
        }
    }

    /// Queues a unit attention for a nexus, if it is known.
    pub(crate) fn attention(&self, id: NexusId, code: AdditionalSense) {
        if let Some(nexus) = self.known.read().get(&id) {
            nexus.state.lock().attentions.raise(code);
        }
    }
}
