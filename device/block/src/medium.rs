//! Medium of a removable unit.
//!
//! Does: whether the medium is loaded, and which nexuses prevent its removal.
//! Truth: SBC-3 §5.20.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use sealstone_scsi::lu::NexusId;

use crate::failure::BlockFailure;

/// Medium of a removable unit: loaded or ejected (SBC-3 §5.20).
#[derive(Debug, Default)]
pub(crate) struct RemovableMedium(Mutex<MediumState>);

#[derive(Debug, Default)]
struct MediumState {
    ejected: bool,
    prevented_by: BTreeSet<NexusId>,
}

impl RemovableMedium {
    /// Checks that the medium is loaded.
    pub(crate) fn check(&self) -> Result<(), BlockFailure> {
        if self.0.lock().ejected { Err(BlockFailure::NoMedium) } else { Ok(()) }
    }

    /// Loads or ejects the medium. Fails while any nexus prevents it.
    pub(crate) fn load(&self, load: bool) -> Result<(), BlockFailure> {
        let mut state = self.0.lock();
        if !state.prevented_by.is_empty() {
            return Err(BlockFailure::RemovalPrevented);
        }
        state.ejected = !load;
        Ok(())
    }

    /// Records whether a nexus prevents removal.
    pub(crate) fn prevent(&self, nexus: NexusId, prevent: bool) {
        let mut state = self.0.lock();
        if prevent {
            state.prevented_by.insert(nexus);
        } else {
            state.prevented_by.remove(&nexus);
        }
    }

    /// Clears all preventions of removal.
    pub(crate) fn reset(&self) {
        self.0.lock().prevented_by.clear();
    }
}
