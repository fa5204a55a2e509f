//! Unit attention conditions of one I_T nexus (SAM-5 §5.14, SPC-4 §4.5).
//!
//! Does: queues the conditions to report to the initiator, most urgent first.
//! Does not: lock; its owner does.
//! Contract: at most [`ATTENTIONS_MAX`] are pending; a pending one is not added again.

use alloc::vec::Vec;

use crate::{AdditionalSense, additional};

/// Maximum number of pending unit attentions on one nexus; further ones are merged into pending
/// ones.
pub const ATTENTIONS_MAX: usize = 8;

/// Additional sense code of all resets and losses of a nexus.
const RESETS: u8 = 0x29;

/// The pending unit attentions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attentions(Vec<AdditionalSense>);

impl Attentions {
    /// Creates the queue with the first attention of a new nexus.
    #[must_use]
    pub fn begin(code: AdditionalSense) -> Self {
        Self(Vec::from([code]))
    }

    /// Adds a condition: resets before everything else, the rest in order.
    pub fn raise(&mut self, code: AdditionalSense) {
        if self.0.contains(&code) || self.0.len() >= ATTENTIONS_MAX {
            return;
        }
        let at = if code.code() == RESETS {
            self.0.iter().take_while(|waiting| waiting.code() == RESETS).count()
        } else {
            self.0.len()
        };
        self.0.insert(at, code);
    }

    /// Returns the next one without removing it.
    #[must_use]
    pub fn first(&self) -> Option<AdditionalSense> {
        self.0.first().copied()
    }

    /// Removes and returns the next one.
    pub fn take(&mut self) -> Option<AdditionalSense> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Removes a condition that was reported in another way.
    pub fn clear(&mut self, code: AdditionalSense) {
        self.0.retain(|waiting| *waiting != code);
    }

    /// Removes the condition about changed LUNs, which REPORT LUNS has reported (SPC-4 §6.33).
    pub fn luns_reported(&mut self) {
        self.clear(additional::REPORTED_LUNS_CHANGED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::additional::*;

    #[test]
    fn resets_are_reported_first_and_once() {
        let mut waiting = Attentions::begin(POWER_ON_OR_RESET);
        for code in [
            REPORTED_LUNS_CHANGED,
            MODE_PARAMETERS_CHANGED,
            BUS_DEVICE_RESET_OCCURRED,
            MODE_PARAMETERS_CHANGED,
        ] {
            waiting.raise(code);
        }
        assert_eq!(waiting.first(), Some(POWER_ON_OR_RESET));
        assert_eq!(waiting.take(), Some(POWER_ON_OR_RESET));
        assert_eq!(waiting.take(), Some(BUS_DEVICE_RESET_OCCURRED));
        waiting.luns_reported();
        assert_eq!(waiting.take(), Some(MODE_PARAMETERS_CHANGED));
        assert_eq!(waiting.take(), None);
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut waiting = Attentions::default();
        for code in 0..1000 {
            waiting.raise(AdditionalSense(code));
        }
        assert_eq!(core::iter::from_fn(|| waiting.take()).count(), ATTENTIONS_MAX);
    }
}
