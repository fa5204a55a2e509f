//! Which devices hold a new file, and in what shape.
//!
//! Does: the hybrid scheme of OBS: one object by weighted hashing for small files, stripes for large ones. A pure
//! function of the devices' figures and the file's number. Does not: reserve space; devices refuse what does not fit.
//! Truth: OBS (hybrid allocation); docs/standards/mds.md §6.2.

use sealstone_mds_protocol::{DeviceId, WIDTH_MAX};

/// Files up to this size are one object, bytes (OBS).
pub const SINGLE_MAX: u64 = 512 * 1024;
/// Stripe unit up to [`MEDIUM_MAX`], bytes: small enough that a file of a few megabytes uses several devices.
pub const UNIT_MEDIUM: u32 = 256 * 1024;
/// Files up to this size get [`UNIT_MEDIUM`], bytes.
pub const MEDIUM_MAX: u64 = 16 * 1024 * 1024;
/// Stripe unit of large files and of files of unknown size, bytes. One command moves one unit: a megabyte spreads the
/// price of a command (its check value, its round trip) over four times the data of 256 KiB, and four of them in
/// flight still keep a device busy.
pub const UNIT_LARGE: u32 = 1024 * 1024;
/// A device with less free than this takes no new objects, bytes: room for attributes and metadata.
pub const RESERVE_MIN: u64 = 4 * 1024 * 1024;
/// Nor does one with less free than this part of its capacity.
pub const RESERVE_FRACTION: u64 = 100;
/// Devices a file is striped over unless configured otherwise.
pub const WIDTH_DEFAULT: usize = 8;

/// A device that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub device: DeviceId,
    /// Capacity in bytes.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
}

impl Candidate {
    /// Bytes that new objects may take.
    fn room(&self) -> u64 {
        let reserve = RESERVE_MIN.max(self.total / RESERVE_FRACTION);
        self.total.saturating_sub(self.used).saturating_sub(reserve)
    }
}

/// The shape of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One object.
    Single(DeviceId),
    /// Stripes of so many bytes over these devices, in this order.
    Striped(u32, Vec<DeviceId>),
}

/// No device, or too few, have room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device has room")]
pub struct NoSpace;

/// Places a file: `seed` is its number, so that a retry gives the same answer.
///
/// # Errors
/// [`NoSpace`].
pub fn place(
    size_hint: Option<u64>,
    seed: u64,
    devices: &[Candidate],
    width_max: usize,
) -> Result<Shape, NoSpace> {
    let mut ranked: Vec<Candidate> = devices.iter().filter(|device| device.room() > 0).copied().collect();
    // The highest score first; equal scores (they do not happen) by number, so that the order is total.
    ranked.sort_by(|a, b| score(b, seed).total_cmp(&score(a, seed)).then(a.device.cmp(&b.device)));
    match size_hint {
        Some(size) if size <= SINGLE_MAX => ranked
            .iter()
            .find(|device| device.room() >= size)
            .map(|device| Shape::Single(device.device))
            .ok_or(NoSpace),
        _ => stripe(size_hint, &ranked, width_max),
    }
}

fn stripe(size_hint: Option<u64>, ranked: &[Candidate], width_max: usize) -> Result<Shape, NoSpace> {
    let unit = match size_hint {
        Some(size) if size <= MEDIUM_MAX => UNIT_MEDIUM,
        _ => UNIT_LARGE,
    };
    let size = size_hint.unwrap_or(0);
    let units = size_hint.map_or(u64::MAX, |size| size.div_ceil(u64::from(unit)));
    let most =
        width_max.clamp(1, WIDTH_MAX).min(usize::try_from(units).unwrap_or(usize::MAX)).min(ranked.len());
    // The wider, the less each device needs room for; so if no width works, the file does not fit.
    for width in (1..=most).rev() {
        let share = units_per_device(units, width).saturating_mul(u64::from(unit)).min(size);
        let chosen: Vec<DeviceId> = ranked
            .iter()
            .filter(|device| device.room() >= share)
            .take(width)
            .map(|device| device.device)
            .collect();
        if chosen.len() == width {
            return Ok(Shape::Striped(unit, chosen));
        }
    }
    Err(NoSpace)
}

const fn units_per_device(units: u64, width: usize) -> u64 {
    units.div_ceil(width as u64)
}

/// Weighted rendezvous hashing: a device is first with a probability in proportion to its capacity, and adding one
/// moves only the files that go to it.
fn score(device: &Candidate, seed: u64) -> f64 {
    let hash = mix(seed ^ mix(u64::from(device.device.0).wrapping_add(0x9E37_79B9_7F4A_7C15)));
    // 53 bits, strictly between 0 and 1.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -(device.total as f64) / uniform.ln()
}

/// The finaliser of SplitMix64: every input bit moves every output bit.
const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn devices(totals: &[u64]) -> Vec<Candidate> {
        let candidate =
            |(i, &total): (usize, &u64)| Candidate { device: DeviceId(i as u32 + 1), total, used: 0 };
        totals.iter().enumerate().map(candidate).collect()
    }

    fn any_devices() -> impl Strategy<Value = Vec<Candidate>> {
        prop::collection::vec((0..64 * GIB, 0..=100u64), 0..12).prop_map(|figures| {
            let candidate = |(i, (total, percent)): (usize, (u64, u64))| Candidate {
                device: DeviceId(i as u32),
                total,
                used: total / 100 * percent,
            };
            figures.into_iter().enumerate().map(candidate).collect()
        })
    }

    proptest! {
        #[test]
        fn only_devices_with_room_are_chosen_and_none_twice(
            devices in any_devices(), seed: u64, size in prop::option::of(0..200 * GIB), width in 0..100usize
        ) {
            let chosen = match place(size, seed, &devices, width) {
                Err(NoSpace) => return Ok(()),
                Ok(Shape::Single(device)) => vec![device],
                Ok(Shape::Striped(_, devices)) => devices,
            };
            let share = size.unwrap_or(0) / chosen.len() as u64;
            for (i, id) in chosen.iter().enumerate() {
                let device = devices.iter().find(|d| d.device == *id).unwrap();
                prop_assert!(device.room() >= share && device.room() > 0);
                prop_assert!(!chosen[..i].contains(id));
            }
            prop_assert!(chosen.len() <= width.clamp(1, WIDTH_MAX));
        }

        #[test]
        fn a_file_that_fits_on_one_device_is_never_refused(devices in any_devices(), seed: u64, size in 0..64 * GIB) {
            if devices.iter().any(|d| d.room() > 0 && d.room() >= size) {
                prop_assert!(place(Some(size), seed, &devices, 8).is_ok());
            }
        }

        #[test]
        fn a_new_device_takes_files_only_to_itself(seed: u64, count in 1..9usize) {
            let before = devices(&vec![GIB; count]);
            let after = devices(&vec![GIB; count + 1]);
            let (old, new) = (place(Some(1), seed, &before, 8).unwrap(), place(Some(1), seed, &after, 8).unwrap());
            prop_assert!(old == new || new == Shape::Single(DeviceId(count as u32 + 1)));
        }
    }

    #[test]
    fn small_files_spread_in_proportion_to_capacity() {
        let devices = devices(&[GIB, 3 * GIB]);
        let on_second = (0..10_000)
            .filter(|&seed| place(Some(1), seed, &devices, 8) == Ok(Shape::Single(DeviceId(2))))
            .count();
        assert!((7_200..7_800).contains(&on_second), "{on_second}");
    }

    #[test]
    fn width_grows_with_size() {
        let devices = devices(&[GIB; 6]);
        let width = |size| match place(size, 1, &devices, 4).unwrap() {
            Shape::Single(_) => (0, 1),
            Shape::Striped(unit, devices) => (unit, devices.len()),
        };
        assert_eq!(width(Some(SINGLE_MAX)), (0, 1));
        assert_eq!(width(Some(SINGLE_MAX + 1)), (UNIT_MEDIUM, 3));
        assert_eq!(width(Some(MEDIUM_MAX + 1)), (UNIT_LARGE, 4));
        assert_eq!(width(None), (UNIT_LARGE, 4));
    }

    #[test]
    fn full_devices_mean_no_space() {
        let mut devices = devices(&[GIB; 2]);
        for device in &mut devices {
            device.used = GIB - RESERVE_MIN;
        }
        assert_eq!(place(Some(1), 1, &devices, 8), Err(NoSpace));
        assert_eq!(place(None, 1, &devices, 8), Err(NoSpace));
        assert_eq!(place(Some(1), 1, &[], 8), Err(NoSpace));
        devices[0].used = 0;
        assert_eq!(place(None, 1, &devices, 8), Ok(Shape::Striped(UNIT_LARGE, vec![DeviceId(1)])));
    }
}
