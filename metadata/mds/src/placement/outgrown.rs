//! Which layouts a file has outgrown.
//!
//! Contract: a file is carried over for at least twice the devices, or four times the unit, and for nothing that the
//! placement would not do better at that moment. So its width doubles each time, or its unit grows, once for each width: it is
//! carried over a few times at most, whatever devices do. Small files never are.
//! Truth: docs/standards/mds/layouts.md §6.6; docs/adr/0047-restriping-of-grown-files.md.

use sealstone_mds_protocol::{Layout, Placed, WIDTH_MAX, WidthBound};

use super::{Choice, MEDIUM_MAX, Pool, Shape, UNIT_LARGE, UNIT_MEDIUM};

/// Smaller files stay as they are, bytes: to copy one costs more than it ever gives back.
pub const OUTGROWN_MIN: u64 = 4 * 1024 * 1024;
/// A layout that is so many times as wide is worth a copy.
pub const WIDER_BY: usize = 2;
/// So is a unit that is so many times as large, …
pub const UNIT_BY: u32 = 4;
/// … for files beyond this, bytes: four times what the smaller unit is chosen for, so that a file about that size is not
/// carried over for it.
pub const UNIT_OUTGROWN: u64 = 4 * MEDIUM_MAX;

/// The shape of a layout: its unit, if it is striped, and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Bytes of a stripe unit; none: one object.
    pub unit: Option<u32>,
    /// Objects.
    pub width: usize,
}

impl Form {
    /// Of a layout.
    #[must_use]
    pub fn of(layout: &Layout) -> Self {
        Self { unit: layout.stripe_unit(), width: layout.width() }
    }

    /// Is its unit too small for a file of that size?
    fn unit_is_small(self, size: u64) -> bool {
        size > UNIT_OUTGROWN && self.unit.is_some_and(|unit| unit.saturating_mul(UNIT_BY) <= UNIT_LARGE)
    }
}

impl From<&Shape> for Form {
    fn from(shape: &Shape) -> Self {
        match shape {
            Shape::Single(_) => Self { unit: None, width: 1 },
            Shape::Striped(unit, devices) => Self { unit: Some(*unit), width: devices.len() },
        }
    }
}

/// Is it worth a look whether a file that grew from `before` to `size` bytes has outgrown its layout? Said without figures
/// of devices, for a transaction that records the growth: at [`OUTGROWN_MIN`], and each time the size has doubled since, as
/// long as size is what bounds the layout.
#[must_use]
pub fn is_marked(form: Form, placed: Option<&Placed>, before: u64, size: u64) -> bool {
    let doubled = |size: u64| (size / OUTGROWN_MIN).checked_ilog2();
    if size <= before || doubled(size) == doubled(before) {
        return false;
    }
    let unit = if size <= MEDIUM_MAX { UNIT_MEDIUM } else { UNIT_LARGE };
    let units = usize::try_from(size.div_ceil(u64::from(unit))).unwrap_or(usize::MAX);
    // With another bound only other devices could make it wider, whatever its size.
    let by_size = placed.is_none_or(|placed| matches!(placed.bound, WidthBound::Small | WidthBound::Units));
    (by_size && form.width.saturating_mul(WIDER_BY) <= units.min(WIDTH_MAX)) || form.unit_is_small(size)
}

impl Pool {
    /// What a file of that size would get now, if it has outgrown its layout; `seed` is its number.
    #[must_use]
    pub fn outgrown(&self, form: Form, size: u64, seed: u64, width_max: usize) -> Option<Choice> {
        if size < OUTGROWN_MIN {
            return None;
        }
        let choice = self.place(Some(size), seed, width_max).ok()?;
        // Where room is short, two copies are the last thing that is needed.
        if choice.bound == WidthBound::Room {
            return None;
        }
        let now = Form::from(&choice.shape);
        let wider = now.width >= form.width.saturating_mul(WIDER_BY);
        let unit = form.unit_is_small(size) && now.width >= form.width;
        (wider || unit).then_some(choice)
    }
}

#[cfg(test)]
mod tests;
