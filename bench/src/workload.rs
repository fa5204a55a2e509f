//! Workloads: direction, pattern, size, depth, method.

use serde::Serialize;

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Device to client.
    Read,
    /// Client to device.
    Write,
}

impl Direction {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Order of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pattern {
    /// One after the other.
    Sequential,
    /// Uniform over the object, aligned to the size.
    Random,
    /// Uniform over the object, [`OFF`] bytes after a multiple of the size: aligned to nothing.
    Unaligned,
}

/// Offset of unaligned commands after a multiple of their size, in bytes: as in the figures of the
/// paper.
pub(crate) const OFF: u64 = 4000;

/// One cell of the table, without its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Workload {
    pub(crate) direction: Direction,
    pub(crate) pattern: Pattern,
    pub(crate) bytes: usize,
    pub(crate) depth: usize,
}

impl Workload {
    /// Returns a name such as `read-sequential-64k-d16`.
    pub(crate) fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Sequential => "sequential",
            Pattern::Random => "random",
            Pattern::Unaligned => "unaligned",
        };
        let size = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
            bytes if bytes < 1 << 10 => format!("{bytes}b"),
            bytes => format!("{}k", bytes >> 10),
        };
        format!("{}-{pattern}-{size}-d{}", self.direction.name(), self.depth)
    }

    /// Returns the workload without its offsets.
    pub(crate) const fn ignoring_pattern(&self) -> (Direction, usize, usize) {
        (self.direction, self.bytes, self.depth)
    }
}

/// Sizes of the grid.
pub(crate) const SIZES: [usize; 4] = [4 << 10, 8 << 10, 64 << 10, 1 << 20];
/// Depths of the grid.
pub(crate) const DEPTHS: [usize; 2] = [1, 16];

/// Returns the whole grid.
pub(crate) fn grid() -> impl Iterator<Item = Workload> {
    [Direction::Read, Direction::Write].into_iter().flat_map(|direction| {
        [Pattern::Sequential, Pattern::Random].into_iter().flat_map(move |pattern| {
            SIZES.into_iter().flat_map(move |bytes| {
                DEPTHS.into_iter().map(move |depth| Workload { direction, pattern, bytes, depth })
            })
        })
    })
}

/// Sizes of a run about algorithms: around the borders of units, and far above.
const ALGORITHM_SIZES: [usize; 6] = [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Sizes of small writes, which change a part of one unit.
const SMALL_SIZES: [usize; 2] = [512, 1 << 10];
/// Depth that keeps both ends busy.
const ALGORITHM_DEPTH: usize = 16;

/// Returns the grid of a run about algorithms: aligned and unaligned.
pub(crate) fn algorithm_grid() -> impl Iterator<Item = Workload> {
    let of = |direction, pattern, bytes| Workload { direction, pattern, bytes, depth: ALGORITHM_DEPTH };
    let small = SMALL_SIZES.into_iter().map(move |bytes| of(Direction::Write, Pattern::Unaligned, bytes));
    [Direction::Read, Direction::Write]
        .into_iter()
        .flat_map(move |direction| {
            [Pattern::Sequential, Pattern::Unaligned].into_iter().flat_map(move |pattern| {
                ALGORITHM_SIZES.into_iter().map(move |bytes| of(direction, pattern, bytes))
            })
        })
        .chain(small)
}

/// Returns the median, which single disturbances do not affect.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Random offsets (xorshift64*), so that a run can be repeated.
pub(crate) struct Offsets {
    state: u64,
    next: u64,
    slots: u64,
    bytes: u64,
    off: u64,
    pattern: Pattern,
}

impl Offsets {
    pub(crate) fn new(workload: &Workload, object_bytes: u64, seed: u64) -> Self {
        let bytes = workload.bytes as u64;
        let off = if workload.pattern == Pattern::Unaligned { OFF } else { 0 };
        let slots = (object_bytes - off) / bytes;
        Self { state: seed | 1, next: 0, slots, bytes, off, pattern: workload.pattern }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let slot = match self.pattern {
            Pattern::Sequential => {
                self.next = (self.next + 1) % self.slots;
                self.next
            }
            Pattern::Random | Pattern::Unaligned => {
                self.state ^= self.state >> 12;
                self.state ^= self.state << 25;
                self.state ^= self.state >> 27;
                self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) % self.slots
            }
        };
        Some(slot * self.bytes + self.off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One outlier does not change the median.
    #[test]
    fn the_median_ignores_an_outlier() {
        assert!((median(&mut [5.0, 1.0, 1000.0, 2.0, 3.0]) - 3.0).abs() < f64::EPSILON);
    }

    /// Every offset is inside the object and aligned to the size.
    #[test]
    fn offsets_stay_inside_and_aligned() {
        for workload in grid().chain(algorithm_grid()) {
            let off = if workload.pattern == Pattern::Unaligned { OFF } else { 0 };
            for offset in Offsets::new(&workload, 64 << 20, 7).take(1000) {
                assert!(offset + workload.bytes as u64 <= 64 << 20);
                assert!((offset - off).is_multiple_of(workload.bytes as u64));
            }
        }
    }
}
