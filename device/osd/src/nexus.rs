//! What the logical unit remembers about each I_T nexus.
//!
//! Does: initiator name, whether the channel is sealed, security token, pending unit attentions.
//! Does not: sessions or connections; the target does.
//! Contract: a nexus that was never announced gets a record at its first command, as an open channel.
//! Truth: SPC-4 (unit attention), docs/design/t10-osd.md 4.4 (security token), 6.3 (attention after login).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sealstone_scsi::additional::{BUS_DEVICE_RESET_OCCURRED, POWER_ON_OR_RESET};
use sealstone_scsi::{AdditionalSense, lu::NexusId};

use crate::environment::Surroundings;

/// Bytes of a security token (VPD page B1h). Exactly this many, so that it can never look like a CDB.
pub const TOKEN_LEN: usize = 32;
/// Most nexuses remembered; beyond it an arbitrary one is forgotten and gets a new token and attention.
const NEXUSES_MAX: usize = 65_536;
/// Most unit attentions waiting on one nexus; more are merged into the ones that wait.
const ATTENTIONS_MAX: usize = 8;

/// One nexus.
pub(crate) struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) initiator: String,
    pub(crate) secure_channel: bool,
    state: Mutex<State>,
}

struct State {
    token: [u8; TOKEN_LEN],
    attentions: VecDeque<AdditionalSense>,
}

impl Nexus {
    /// The security token that binds CAPKEY requests to this nexus.
    pub(crate) fn token(&self) -> [u8; TOKEN_LEN] {
        self.state.lock().token
    }

    /// Takes the oldest unit attention.
    pub(crate) fn take_attention(&self) -> Option<AdditionalSense> {
        self.state.lock().attentions.pop_front()
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

    /// A nexus logged in: new token, and the attention every initiator expects first.
    pub(crate) fn establish(&self, id: NexusId, initiator: &str, secure_channel: bool) -> Arc<Nexus> {
        let state =
            State { token: self.surroundings.random(), attentions: VecDeque::from([POWER_ON_OR_RESET]) };
        let nexus =
            Arc::new(Nexus { id, initiator: initiator.to_owned(), secure_channel, state: Mutex::new(state) });
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
        known.unwrap_or_else(|| self.establish(id, "", false))
    }

    /// LOGICAL UNIT RESET: new tokens, and every nexus hears of it.
    pub(crate) fn reset(&self) {
        for nexus in self.known.read().values() {
            let mut state = nexus.state.lock();
            state.token = self.surroundings.random();
            if state.attentions.len() < ATTENTIONS_MAX
                && !state.attentions.contains(&BUS_DEVICE_RESET_OCCURRED)
            {
                state.attentions.push_back(BUS_DEVICE_RESET_OCCURRED);
            }
        }
    }
}
