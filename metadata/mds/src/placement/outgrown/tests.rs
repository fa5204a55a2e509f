//! Properties of the rule for outgrown layouts, for any devices.

use proptest::prelude::*;
use sealstone_mds_protocol::DeviceId;

use super::super::{Candidate, SINGLE_MAX};
use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn pool(count: usize, total: u64) -> DevicePool {
    let device = |number| Candidate { device: DeviceId(number), total, used: 0, speed: 0, troubled: false };
    DevicePool::new(&(1..=count as u32).map(device).collect::<Vec<_>>())
}

fn any_pool() -> impl Strategy<Value = DevicePool> {
    prop::collection::vec((0..64 * GIB, 0..=100u64, 0..3u64, any::<bool>()), 0..80).prop_map(|figures| {
        let device =
            |(number, (total, percent, speed, troubled)): (usize, (u64, u64, u64, bool))| Candidate {
                device: DeviceId(number as u32),
                total,
                used: total / 100 * percent,
                speed: speed * 500_000_000,
                troubled,
            };
        DevicePool::new(&figures.into_iter().enumerate().map(device).collect::<Vec<_>>())
    })
}

fn any_form() -> impl Strategy<Value = LayoutForm> {
    let striped = (12..27u32, 1..=WIDTH_MAX).prop_map(|(bits, width)| LayoutForm {
        unit: Some(1 << bits),
        width,
        is_fixed: false,
    });
    prop_oneof![Just(LayoutForm { unit: None, width: 1, is_fixed: false }), striped]
}

fn placed(choice: &PlacementChoice, size_hint: Option<u64>) -> PlacementRecord {
    let bound = choice.bound;
    let chosen = choice.chosen.clone();
    PlacementRecord { at_ms: 0, size_hint, bound, considered: 0, left_out: 0, chosen, outgrew: None }
}

/// A growing file: its layout, and the bytes copied for it.
struct Growing {
    seed: u64,
    form: LayoutForm,
    placed: PlacementRecord,
    size: u64,
    mark: bool,
    copied: u64,
    carries: u32,
}

impl Growing {
    fn begin(pool: &DevicePool, seed: u64, hint: Option<u64>, width_max: usize) -> Self {
        let choice = pool.place(hint, seed, width_max).unwrap();
        let form = LayoutForm::from(&choice.shape);
        let size = hint.unwrap_or(0);
        Self { seed, form, placed: placed(&choice, hint), size, mark: false, copied: 0, carries: 0 }
    }

    fn grow(&mut self, size: u64) {
        self.mark |= is_marked(self.form, Some(&self.placed), self.size, size);
        self.size = self.size.max(size);
    }

    /// Handles a mark as the mover does.
    fn look(&mut self, pool: &DevicePool, width_max: usize) {
        if !core::mem::take(&mut self.mark) {
            return;
        }
        if let Some(choice) = pool.outgrown(self.form, self.size, self.seed, width_max) {
            (self.form, self.placed) = (LayoutForm::from(&choice.shape), placed(&choice, Some(self.size)));
            self.copied += self.size;
            self.carries += 1;
        }
    }
}

proptest! {
    #[test]
    fn outgrown_layout_is_much_better_than_before(
        pool in any_pool(), form in any_form(), size in 0..1u64 << 40, seed: u64, width_max in 1..=WIDTH_MAX
    ) {
        let Some(choice) = pool.outgrown(form, size, seed, width_max) else { return Ok(()) };
        let now = LayoutForm::from(&choice.shape);
        prop_assert!(size >= OUTGROWN_MIN);
        prop_assert_eq!(pool.place(Some(size), seed, width_max), Ok(choice.clone()));
        let larger = now.width >= form.width && now.unit >= form.unit.map(|unit| unit * UNIT_BY);
        prop_assert!(now.width >= form.width * WIDER_BY || larger);
        prop_assert!(choice.bound != WidthBound::Room);
        // Not a second time.
        prop_assert_eq!(pool.outgrown(now, size, seed, width_max), None);
    }

    #[test]
    fn fresh_file_has_not_outgrown_its_layout(
        pool in any_pool(), size in 1..1u64 << 36, seed: u64, width_max in 1..=WIDTH_MAX
    ) {
        let Ok(choice) = pool.place(Some(size), seed, width_max) else { return Ok(()) };
        prop_assert_eq!(pool.outgrown(LayoutForm::from(&choice.shape), size, seed, width_max), None);
    }

    #[test]
    fn file_is_migrated_a_few_times_at_most(
        pools in prop::collection::vec((any_pool(), 1..4u64), 1..200), seed: u64, width_max in 1..=WIDTH_MAX
    ) {
        let (mut form, mut size, mut carries) = (LayoutForm { unit: None, width: 1, is_fixed: false }, OUTGROWN_MIN, 0);
        for (pool, factor) in pools {
            size = (size * factor).min(1 << 50);
            if let Some(choice) = pool.outgrown(form, size, seed, width_max) {
                form = LayoutForm::from(&choice.shape);
                carries += 1;
            }
        }
        prop_assert!(carries <= 2 * WIDTH_MAX.ilog2() + 1, "{carries}");
    }

    #[test]
    fn growing_file_ends_with_layout_of_fresh_file(
        count in 1..100usize, hint in prop::option::of(0..=20 * MIB), steps in prop::collection::vec(1..400u64, 1..60),
        seed: u64, width_max in 1..=WIDTH_MAX
    ) {
        let pool = pool(count, 1 << 50);
        let mut file = Growing::begin(&pool, seed, hint, width_max);
        for percent in steps {
            let size = file.size + (file.size.max(MIB) / 100 * percent).min(1 << 40);
            file.grow(size);
            file.look(&pool, width_max);
        }
        // The last doubling may have just been missed; the next one marks the file.
        let size = file.size;
        file.grow(2 * size);
        file.look(&pool, width_max);
        let fresh = LayoutForm::from(&pool.place(Some(size), seed, width_max).unwrap().shape);
        if size >= OUTGROWN_MIN {
            prop_assert!(file.form.width * WIDER_BY > fresh.width, "{:?}, fresh {fresh:?}", file.form);
        }
        if size > 2 * UNIT_OUTGROWN {
            // A single object has no stripe unit.
            let unit = file.form.unit.is_none_or(|unit| Some(unit) >= fresh.unit);
            prop_assert!(unit || fresh.width < file.form.width, "{:?}, fresh {fresh:?}", file.form);
        }
        prop_assert!(file.carries <= 8, "{}", file.carries);
        prop_assert!(file.copied <= 3 * file.size, "{} of {}", file.copied, file.size);
    }

    #[test]
    fn unmarked_file_has_not_outgrown_its_layout(
        count in 1..100usize, hint in 0..=20 * MIB, size in 0..1u64 << 36, seed: u64, width_max in 1..=WIDTH_MAX
    ) {
        let pool = pool(count, 1 << 50);
        let mut file = Growing::begin(&pool, seed, Some(hint), width_max);
        let form = file.form;
        file.grow(size);
        if size > hint && pool.outgrown(form, size, seed, width_max).is_some() {
            // Immediately, or before it has doubled once more.
            let mark = file.mark;
            file.grow(2 * size);
            prop_assert!(mark || file.mark, "{form:?} at {size}");
        }
    }
}

#[test]
fn small_files_and_useless_migrations_are_skipped() {
    let single = LayoutForm { unit: None, width: 1, is_fixed: false };
    let wide =
        |count, size| pool(count, GIB << 10).outgrown(single, size, 1, 8).map(|choice| choice.chosen.len());
    assert_eq!(wide(8, SINGLE_MAX + 1), None);
    assert_eq!(wide(8, OUTGROWN_MIN - 1), None);
    assert_eq!(wide(8, OUTGROWN_MIN), Some(8));
    assert_eq!(wide(2, GIB), Some(2));
    assert_eq!(wide(1, GIB), None);
    assert_eq!(wide(0, GIB), None);
    // Without enough free space nothing is copied.
    assert_eq!(pool(4, 300 * MIB).outgrown(single, 2 * GIB, 1, 8), None);
    // 1.5 times as wide is not enough.
    let form = LayoutForm { unit: Some(UNIT_LARGE), width: 5, is_fixed: false };
    assert_eq!(pool(9, GIB << 10).outgrown(form, GIB, 1, 64), None);
    assert!(pool(10, GIB << 10).outgrown(form, GIB, 1, 64).is_some());
    // A larger unit on fewer devices is not enough.
    let small = LayoutForm { unit: Some(UNIT_MEDIUM), width: 8, is_fixed: false };
    assert!(pool(8, GIB << 10).outgrown(small, UNIT_OUTGROWN + 1, 1, 8).is_some());
    assert_eq!(pool(8, GIB << 10).outgrown(small, UNIT_OUTGROWN, 1, 8), None);
    assert_eq!(pool(7, GIB << 10).outgrown(small, GIB, 1, 8), None);
}
