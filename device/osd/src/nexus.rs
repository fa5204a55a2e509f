//! What the logical unit remembers about each I_T nexus.
//!
//! Does: initiator name, whether the channel is sealed, security token, pending unit attentions.
//! Does not: sessions or connections; the target does.
//! Contract: a nexus that was never announced gets a record at its first command, as an open channel.
//! Truth: SPC-4 (unit attention), docs/design/t10-osd.md 4.4 (security token), 6.3 (attention after login).

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sealstone_scsi::additional::BUS_DEVICE_RESET_OCCURRED;
use sealstone_scsi::lu::{InitiatorPort, NexusId};
use sealstone_scsi::{AdditionalSense, Attentions};

use crate::environment::Surroundings;

/// Bytes of a security token (VPD page B1h). Exactly this many, so that it can never look like a CDB.
pub const TOKEN_LEN: usize = 32;
/// Most nexuses remembered; beyond it an arbitrary one is forgotten and gets a new token and attention.
const NEXUSES_MAX: usize = 65_536;

/// One nexus.
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) initiator: String,
    pub(crate) secure_channel: bool,
    state: Mutex<State>,
    surroundings: Surroundings,
}

struct State {
    token: [u8; TOKEN_LEN],
    attentions: Attentions,
}

impl Nexus {
    /// The security token that binds CAPKEY requests to this nexus.
    pub(crate) fn token(&self) -> [u8; TOKEN_LEN] {
        self.state.lock().token
    }

    /// Takes the oldest unit attention.
    pub(crate) fn take_attention(&self) -> Option<AdditionalSense> {
        self.state.lock().attentions.take()
    }

    /// The oldest unit attention, which stays.
    pub(crate) fn first_attention(&self) -> Option<AdditionalSense> {
        self.state.lock().attentions.first()
    }

    /// I_T NEXUS RESET: requests that were signed with the old token end with it. Inside TLS the token is the channel's and
    /// stays: nobody else can bring such a request there.
    pub(crate) fn renew(&self) {
        if !self.secure_channel {
            self.state.lock().token = self.surroundings.random();
        }
    }

    pub(crate) fn luns_reported(&self) {
        self.state.lock().attentions.luns_reported();
    }
}

/// Every nexus of a logical unit.
pub(crate) struct Nexuses {
    known: RwLock<HashMap<NexusId, Arc<Nexus>>>,
    surroundings: Surroundings,
}

impl Nexuses {
    pub(crate) fn new(surroundings: Surroundings) -> Self {
        Self { known: RwLock::new(HashMap::new()), surroundings }
    }

    /// A nexus logged in: its channel's token, or a new one, and the attention every initiator expects first.
    pub(crate) fn establish(&self, id: NexusId, port: &InitiatorPort<'_>) -> Arc<Nexus> {
        let token = port.channel.map_or_else(|| self.surroundings.random(), |channel| channel.0);
        let state = State { token, attentions: Attentions::begin(port.attention()) };
        let nexus = Arc::new(Nexus {
            id,
            initiator: port.name.to_owned(),
            secure_channel: port.channel.is_some(),
            state: Mutex::new(state),
            surroundings: self.surroundings.clone(),
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
        self.known.write().remove(&id);
    }

    pub(crate) fn get(&self, id: NexusId) -> Arc<Nexus> {
        let known = self.known.read().get(&id).cloned();
        known.unwrap_or_else(|| self.establish(id, &InitiatorPort::new("")))
    }

    /// LOGICAL UNIT RESET: new tokens outside of TLS, and every nexus hears of it.
    pub(crate) fn reset(&self) {
        for nexus in self.known.read().values() {
            nexus.renew();
            let mut state = nexus.state.lock();
            state.attentions.raise(BUS_DEVICE_RESET_OCCURRED);
        }
    }

    /// A unit attention for one nexus, if it is known.
    pub(crate) fn attention(&self, id: NexusId, code: AdditionalSense) {
        if let Some(nexus) = self.known.read().get(&id) {
            nexus.state.lock().attentions.raise(code);
        }
    }
}
