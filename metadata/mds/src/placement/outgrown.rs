//! Detection of files that have outgrown their layout.
//!
//! Contract: a file is migrated only for at least twice the devices or four times the stripe unit,
//! and only if the placement would choose that now. Each migration doubles the width, or enlarges
//! the unit once for each width, so a file is migrated a few times at most, whatever devices do.
//! Small files are never migrated.
//! Truth: docs/standards/mds/layouts.md §6.6; docs/adr/0047-restriping-of-grown-files.md.

use sealstone_mds_protocol::{Layout, PlacementRecord, WIDTH_MAX, WidthBound};

use super::{DevicePool, FileShape, MEDIUM_MAX, PlacementChoice, UNIT_LARGE, UNIT_MEDIUM};

/// Smaller files are never migrated, bytes: the copy costs more than it gains.
pub const OUTGROWN_MIN: u64 = 4 * 1024 * 1024;
/// A layout this many times as wide is worth a copy.
pub const WIDER_BY: usize = 2;
/// A stripe unit this many times as large is worth a copy, …
pub const UNIT_BY: u32 = 4;
/// … for files beyond this size, bytes: four times the limit of the smaller unit, so that files
/// near that limit are not migrated.
pub const UNIT_OUTGROWN: u64 = 4 * MEDIUM_MAX;

/// The shape of a layout: stripe unit and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutForm {
    /// Bytes of a stripe unit; none: one object.
    pub unit: Option<u32>,
    /// Number of objects with different bytes.
    pub width: usize,
    /// Whether each object has to keep all bytes: such a file never outgrows its layout.
    pub is_fixed: bool,
}

impl LayoutForm {
    /// Returns the form of a layout.
    #[must_use]
    pub fn of(layout: &Layout) -> Self {
        let is_fixed = layout.is_copied();
        Self { unit: layout.stripe_unit(), width: if is_fixed { 1 } else { layout.width() }, is_fixed }
    }

    /// Whether its unit is too small for a file of that size.
    fn unit_is_small(self, size: u64) -> bool {
        size > UNIT_OUTGROWN && self.unit.is_some_and(|unit| unit.saturating_mul(UNIT_BY) <= UNIT_LARGE)
    }
}

impl From<&FileShape> for LayoutForm {
    fn from(shape: &FileShape) -> Self {
        match shape {
            FileShape::Single(_) => Self { unit: None, width: 1, is_fixed: false },
            FileShape::Striped(unit, devices) => {
                Self { unit: Some(*unit), width: devices.len(), is_fixed: false }
            }
        }
    }
}

/// Whether a file that grew from `before` to `size` bytes has to be checked for a larger layout. It
/// needs no device figures, so it runs in the transaction that records the growth. True at
/// [`OUTGROWN_MIN`] and at each doubling after it, while size limits the layout.
#[must_use]
pub fn is_marked(form: LayoutForm, placed: Option<&PlacementRecord>, before: u64, size: u64) -> bool {
    let doubled = |size: u64| (size / OUTGROWN_MIN).checked_ilog2();
    if form.is_fixed || size <= before || doubled(size) == doubled(before) {
        return false;
    }
    let unit = if size <= MEDIUM_MAX { UNIT_MEDIUM } else { UNIT_LARGE };
    let units = usize::try_from(size.div_ceil(u64::from(unit))).unwrap_or(usize::MAX);
    // With another limit, only more devices could make the layout wider.
    let by_size = placed.is_none_or(|placed| matches!(placed.bound, WidthBound::Small | WidthBound::Units));
    (by_size && form.width.saturating_mul(WIDER_BY) <= units.min(WIDTH_MAX)) || form.unit_is_small(size)
}

impl DevicePool {
    /// Returns the placement of a file of that size, if it has outgrown its layout; `seed` is its
    /// number.
    #[must_use]
    pub fn outgrown(
        &self,
        form: LayoutForm,
        size: u64,
        seed: u64,
        width_max: usize,
    ) -> Option<PlacementChoice> {
        if size < OUTGROWN_MIN || form.is_fixed {
            return None;
        }
        let choice = self.place(Some(size), seed, width_max).ok()?;
        // Where space is short, a second copy would make it worse.
        if choice.bound == WidthBound::Room {
            return None;
        }
        let now = LayoutForm::from(&choice.shape);
        let wider = now.width >= form.width.saturating_mul(WIDER_BY);
        let unit = form.unit_is_small(size) && now.width >= form.width;
        (wider || unit).then_some(choice)
    }
}

#[cfg(test)]
mod tests;
