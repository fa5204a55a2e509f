//! Properties of the placement policy, for any devices.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn device(number: u32, total: u64, used: u64) -> Candidate {
    Candidate { device: DeviceId(number), total, used, speed: 0, troubled: false }
}

fn devices(totals: &[u64]) -> Vec<Candidate> {
    totals.iter().enumerate().map(|(i, &total)| device(i as u32 + 1, total, 0)).collect()
}

fn place(
    size: Option<u64>,
    seed: u64,
    devices: &[Candidate],
    width: usize,
) -> Result<PlacementChoice, NoSpace> {
    DevicePool::new(devices).place(size, seed, width)
}

fn single(seed: u64, devices: &[Candidate]) -> DeviceId {
    place(Some(1), seed, devices, 8).unwrap().shape.devices()[0]
}

fn any_devices() -> impl Strategy<Value = Vec<Candidate>> {
    prop::collection::vec((0..64 * GIB, 0..=100u64, 0..3u64, any::<bool>()), 0..12).prop_map(|figures| {
        let candidate = |(i, (total, percent, speed, troubled)): (usize, (u64, u64, u64, bool))| Candidate {
            speed: speed * 500_000_000,
            troubled,
            ..device(i as u32, total, total / 100 * percent)
        };
        figures.into_iter().enumerate().map(candidate).collect()
    })
}

proptest! {
    #[test]
    fn chosen_devices_are_distinct_and_have_space(
        devices in any_devices(), seed: u64, size in prop::option::of(0..200 * GIB), width in 0..100usize
    ) {
        let Ok(choice) = place(size, seed, &devices, width) else { return Ok(()) };
        let chosen = choice.shape.devices();
        prop_assert_eq!(chosen.len(), choice.chosen.len());
        let share = size.unwrap_or(0) / chosen.len() as u64;
        for (i, id) in chosen.iter().enumerate() {
            let device = devices.iter().find(|d| d.device == *id).unwrap();
            prop_assert!(device.free_bytes() >= share && device.free_bytes() > 0);
            prop_assert!(!chosen[..i].contains(id));
        }
        prop_assert!(chosen.len() <= width.clamp(1, WIDTH_MAX));
    }

    #[test]
    fn file_that_fits_one_device_is_placed(devices in any_devices(), seed: u64, size in 0..64 * GIB) {
        if devices.iter().any(|d| d.free_bytes() > 0 && d.free_bytes() >= size) {
            prop_assert!(place(Some(size), seed, &devices, 8).is_ok());
        }
    }

    #[test]
    fn placement_does_not_depend_on_device_order(
        devices in any_devices(), seed: u64, size in prop::option::of(0..GIB), turn in 0..12usize
    ) {
        let mut turned = devices.clone();
        turned.rotate_left(turn.min(devices.len()));
        prop_assert_eq!(place(size, seed, &devices, 8), place(size, seed, &turned, 8));
    }

    #[test]
    fn added_device_moves_files_only_to_itself(seed: u64, count in 1..9usize) {
        let (old, new) = (single(seed, &devices(&vec![GIB; count])), single(seed, &devices(&vec![GIB; count + 1])));
        prop_assert!(old == new || new == DeviceId(count as u32 + 1));
    }

    #[test]
    fn removed_device_moves_only_its_own_files(seed: u64, count in 2..9usize, removed in 0..9usize) {
        let before = devices(&vec![GIB; count]);
        let mut after = before.clone();
        let removed = after.remove(removed % count).device;
        let old = single(seed, &before);
        prop_assert!(old == removed || single(seed, &after) == old);
    }

    #[test]
    fn added_device_replaces_one_stripe_member(seed: u64, count in 8..20usize) {
        let (before, after) = (devices(&vec![GIB; count]), devices(&vec![GIB; count + 1]));
        let old = place(None, seed, &before, 8).unwrap().shape;
        let new = place(None, seed, &after, 8).unwrap().shape;
        let added: Vec<_> = new.devices().iter().filter(|id| !old.devices().contains(id)).collect();
        prop_assert!(added.is_empty() || added == [&DeviceId(count as u32 + 1)]);
    }

    #[test]
    fn large_files_use_devices_in_best_condition(devices in any_devices(), seed: u64) {
        let Ok(choice) = place(None, seed, &devices, 8) else { return Ok(()) };
        let worst = choice.chosen.iter().map(|one| one.condition).max().unwrap();
        let better = |one: &&RatedDevice| one.condition < worst;
        let pool = DevicePool::new(&devices);
        prop_assert!(pool.with_room().filter(better).count() < WIDTH_FEW);
    }

    #[test]
    fn successor_has_space_and_is_unused(
        devices in any_devices(), seed: u64, length in 0..64 * GIB, taken in prop::collection::vec(0..12u32, 0..4)
    ) {
        let taken: Vec<DeviceId> = taken.into_iter().map(DeviceId).collect();
        let able = |one: &Candidate| !taken.contains(&one.device) && one.free_bytes() > 0 && one.free_bytes() >= length;
        match DevicePool::new(&devices).successor(seed, length, &taken) {
            Ok((id, _)) => prop_assert!(devices.iter().any(|one| one.device == id && able(one))),
            Err(NoSpace) => prop_assert!(!devices.iter().any(able)),
        }
    }

    #[test]
    fn balancing_moves_to_emptier_devices_and_ends(devices in any_devices(), seed: u64) {
        let (mut devices, length) = (devices, GIB / 4);
        let far = |devices: &[Candidate]| {
            let (used, total) = devices.iter().fold((0.0, 0.0), |(used, total), one| {
                (used + one.used as f64, total + one.total as f64)
            });
            let square = |one: &Candidate| {
                let excess = one.used as f64 - used / total * one.total as f64;
                excess * excess / one.total.max(1) as f64
            };
            devices.iter().map(square).sum::<f64>()
        };
        for round in 0..2000u64 {
            let pool = DevicePool::new(&devices);
            let step = devices.iter().find_map(|from| {
                (from.used >= length)
                    .then(|| pool.balancing_target(seed ^ round, length, from.device, &[]))?
                    .map(|(to, _)| (from.device, to))
            });
            let Some((from, to)) = step else { return Ok(()) };
            let before = far(&devices);
            for one in &mut devices {
                if one.device == from { one.used -= length }
                if one.device == to { one.used += length }
            }
            prop_assert!(far(&devices) < before, "every step brings them closer");
        }
        prop_assert!(false, "it does not end");
    }
}

#[test]
fn small_files_spread_in_proportion_to_capacity() {
    let devices = devices(&[GIB, 3 * GIB]);
    let on_second = (0..10_000).filter(|&seed| single(seed, &devices) == DeviceId(2)).count();
    assert!((7_200..7_800).contains(&on_second), "{on_second}");
}

#[test]
fn fuller_device_gets_less_emptier_gets_more() {
    let devices = [device(1, GIB, GIB / 2), device(2, GIB, GIB * 11 / 20), device(3, GIB, GIB * 9 / 20)];
    let mut counts = [0; 3];
    for seed in 0..9_000 {
        counts[single(seed, &devices).0 as usize - 1] += 1;
    }
    assert!(counts[1] < counts[0] / 2 && counts[0] < counts[2] * 3 / 4, "{counts:?}");
}

#[test]
fn width_grows_with_size() {
    let devices = devices(&[GIB; 6]);
    let width = |size| {
        let choice = place(size, 1, &devices, 4).unwrap();
        let unit = if let FileShape::Striped(unit, _) = choice.shape { unit } else { 0 };
        (unit, choice.shape.devices().len(), choice.bound)
    };
    assert_eq!(width(Some(SINGLE_MAX)), (0, 1, WidthBound::Small));
    assert_eq!(width(Some(SINGLE_MAX + 1)), (UNIT_MEDIUM, 3, WidthBound::Units));
    assert_eq!(width(Some(MEDIUM_MAX + 1)), (UNIT_LARGE, 4, WidthBound::Configured));
    assert_eq!(width(None), (UNIT_LARGE, 4, WidthBound::Configured));
    let two = self::devices(&[GIB; 2]);
    assert_eq!(place(None, 1, &two, 4).unwrap().bound, WidthBound::Devices);
}

#[test]
fn stated_speeds_limit_width_to_one_stream() {
    let with_speed = |speed| {
        let one = |one: Candidate| Candidate { speed, ..one };
        devices(&[GIB; 10]).into_iter().map(one).collect::<Vec<_>>()
    };
    let width = |devices: &[Candidate]| {
        let choice = place(None, 5, devices, 8).unwrap();
        (choice.shape.devices().len(), choice.bound)
    };
    assert_eq!(width(&with_speed(0)), (8, WidthBound::Configured));
    assert_eq!(width(&with_speed(150_000_000)), (8, WidthBound::Configured));
    assert_eq!(width(&with_speed(300_000_000)), (4, WidthBound::Speed));
    assert_eq!(width(&with_speed(5_000_000_000)), (2, WidthBound::Speed));
}

#[test]
fn large_files_avoid_slow_filling_troubled_devices() {
    let mut devices = devices(&[GIB; 8]);
    for device in &mut devices {
        device.speed = 200_000_000;
        device.used = GIB / 2;
    }
    devices[0].speed = 50_000_000;
    devices[1].used = GIB / 100 * 95;
    devices[2].troubled = true;
    let conditions: Vec<_> =
        DevicePool::new(&devices).rated.iter().take(4).map(|one| one.condition).collect();
    assert_eq!(
        conditions,
        [DeviceCondition::Slow, DeviceCondition::Filling, DeviceCondition::Troubled, DeviceCondition::Good]
    );
    for seed in 0..50 {
        let choice = place(None, seed, &devices, 8).unwrap();
        assert!(choice.shape.devices().iter().all(|id| id.0 > 3), "{choice:?}");
        assert_eq!((choice.shape.devices().len(), choice.bound), (5, WidthBound::Devices));
        assert_ne!(single(seed, &devices), DeviceId(3), "not even small ones go to a device in trouble");
    }
    assert!((0..200).any(|seed| single(seed, &devices) == DeviceId(1)), "small ones go to slow devices");
}

#[test]
fn width_is_smallest_with_fitting_shares() {
    let devices = devices(&[100 << 20; 4]);
    let choice = place(Some(300 << 20), 1, &devices, 8).unwrap();
    assert_eq!(choice.shape.devices().len(), 4);
    assert_eq!(place(Some(500 << 20), 1, &devices, 8), Err(NoSpace));
    // Fast devices would suffice, but have too little free space alone.
    let fast: Vec<_> = devices.into_iter().map(|one| Candidate { speed: STREAM_SPEED, ..one }).collect();
    let choice = place(Some(300 << 20), 1, &fast, 8).unwrap();
    assert_eq!((choice.shape.devices().len(), choice.bound), (4, WidthBound::Room));
}

#[test]
fn full_devices_get_no_files() {
    let mut devices = devices(&[GIB, GIB]);
    devices[0].used = GIB - RESERVE_MIN;
    assert_eq!(single(3, &devices), DeviceId(2));
    devices[1].used = GIB / 100 * 99 + 100;
    assert_eq!(place(Some(1), 3, &devices, 8), Err(NoSpace));
    assert_eq!(place(None, 3, &[], 8), Err(NoSpace));
}
