//! Placement: chooses the devices and the shape of a new file.
//!
//! Does: the hybrid scheme of OBS: one object by weighted hashing for small files; stripes for
//! large ones, over the devices in the best condition. It is a pure function of the devices'
//! figures and the file's number, and returns the reason with the result.
//! Does not: reserve space, because devices refuse objects that do not fit; move objects, but it
//! also chooses their new devices.
//! Contract: equal inputs give equal results. A device is chosen in proportion to its capacity as
//! long as all are equally full. With fixed weights, adding or removing a device moves only objects
//! to or from it. For `n` devices and a width of `w`: O(n) for a [`DevicePool`], O(n + w log w) for
//! a file, one logarithm for each device; O(n w) where space is short.
//! Truth: OBS (hybrid allocation); docs/standards/mds/layouts.md §6.2;
//! docs/adr/0040-placement-feedback.md.

use sealstone_mds_protocol::{ChosenDevice, DeviceCondition, DeviceId, WIDTH_MAX, WidthBound};

pub mod move_target;
pub mod outgrown;
#[cfg(test)]
mod tests;

/// Files up to this size are one object, bytes (OBS).
pub const SINGLE_MAX: u64 = 512 * 1024;
/// Stripe unit up to [`MEDIUM_MAX`], bytes: small enough that a file of a few megabytes uses
/// several devices.
pub const UNIT_MEDIUM: u32 = 256 * 1024;
/// Files up to this size get [`UNIT_MEDIUM`], bytes.
pub const MEDIUM_MAX: u64 = 16 * 1024 * 1024;
/// Stripe unit of large files and of files of unknown size, bytes. One command moves one unit: a
/// megabyte spreads the cost of a command (check value, round trip) over four times the data of 256
/// KiB, and four commands in flight still keep a device busy.
pub const UNIT_LARGE: u32 = 1024 * 1024;
/// A device with less free space than this gets no new objects, bytes: attributes and metadata need
/// space too.
pub const RESERVE_MIN: u64 = 4 * 1024 * 1024;
/// A device with less free space than this fraction of its capacity gets no new objects either.
pub const RESERVE_FRACTION: u64 = 100;
/// Default of the maximum number of devices that a file is striped over.
pub const WIDTH_DEFAULT: usize = 8;
/// A large file uses devices in a worse condition only if fewer than this are in a better one.
pub const WIDTH_FEW: usize = 2;
/// Speed of one reader or writer, bytes per second: faster devices together are not needed. Wider
/// stripes than needed are lost with more devices.
pub const STREAM_SPEED: u64 = 1_200_000_000;
/// Large files avoid devices with more than this part in use, thousandths.
pub const FILLING: u16 = 900;
/// Factor by which the excess of a fuller device lowers its weight. The excess is relative to the
/// mean fill level.
const GAIN: f64 = 20.0;
/// Below this mean fill level, the excess is relative to this instead, so that nearly empty devices
/// do not all count as over or under.
const FILL_FLOOR: f64 = 0.02;
/// Maximum weight factor of an emptier device, so that not all writes go to a new one.
const BOOST_MAX: f64 = 2.0;
/// Minimum weight factor of a fuller device.
const BOOST_MIN: f64 = 0.25;

/// A device that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the device.
    pub device: DeviceId,
    /// Capacity in bytes.
    pub total: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes per second as configured by its operator; 0: not configured.
    pub speed: u64,
    /// Whether the last access to it failed.
    pub troubled: bool,
}

impl Candidate {
    /// Returns the free bytes for new objects.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let reserve = RESERVE_MIN.max(self.total / RESERVE_FRACTION);
        self.total.saturating_sub(self.used).saturating_sub(reserve)
    }

    /// Returns the fill level, 0 to 1.
    fn fill(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.used as f64 / self.total as f64 }
    }

    fn condition(&self, slow_below: u64) -> DeviceCondition {
        if self.troubled {
            DeviceCondition::Troubled
        } else if self.used >= self.total / 1000 * u64::from(FILLING) {
            DeviceCondition::Filling
        } else if self.speed > 0 && self.speed < slow_below {
            DeviceCondition::Slow
        } else {
            DeviceCondition::Good
        }
    }
}

/// The shape of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileShape {
    /// One object.
    Single(DeviceId),
    /// Stripe unit in bytes, and the devices in order.
    Striped(u32, Vec<DeviceId>),
}

impl FileShape {
    /// Returns the devices in the order of the layout.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        match self {
            Self::Single(device) => core::slice::from_ref(device),
            Self::Striped(_, devices) => devices,
        }
    }
}

/// A shape and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementChoice {
    /// The shape.
    pub shape: FileShape,
    /// Limit that determined its width.
    pub bound: WidthBound,
    /// State of its devices at that time, in its order.
    pub chosen: Vec<ChosenDevice>,
}

/// No device, or too few of them, have enough free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no device has enough free space")]
pub struct NoSpace;

/// A device with the values that do not depend on the file.
#[derive(Clone, Copy, Debug)]
struct RatedDevice {
    device: DeviceId,
    total: u64,
    used: u64,
    free_bytes: u64,
    speed: u64,
    boost: f64,
    condition: DeviceCondition,
}

impl RatedDevice {
    fn fill(&self) -> f64 {
        if self.total == 0 { 1.0 } else { self.used as f64 / self.total as f64 }
    }

    fn chosen(&self) -> ChosenDevice {
        let fill = (self.fill() * 1000.0).min(1000.0);
        let weight = (self.boost * 100.0).round();
        ChosenDevice { condition: self.condition, fill: fill as u16, weight: weight as u16 }
    }
}

/// The devices that can be chosen, with their figures at one time.
#[derive(Clone, Debug, Default)]
pub struct DevicePool {
    /// Sorted by number; includes full devices.
    rated: Vec<RatedDevice>,
    /// Number of devices with free space.
    open: usize,
    /// Bytes in use of all devices.
    used: u64,
    /// Capacity of all devices.
    total: u64,
}

impl DevicePool {
    /// Creates a pool from the figures of all devices in use.
    #[must_use]
    pub fn new(devices: &[Candidate]) -> Self {
        let sum = |of: fn(&Candidate) -> u64| devices.iter().map(of).fold(0u64, u64::saturating_add);
        let (used, total) = (sum(|device| device.used), sum(|device| device.total));
        let mean = if total == 0 { 0.0 } else { used as f64 / total as f64 };
        let mut speeds: Vec<u64> = devices.iter().map(|one| one.speed).filter(|speed| *speed > 0).collect();
        let middle = speeds.len() / 2;
        let slow_below = if speeds.is_empty() { 0 } else { *speeds.select_nth_unstable(middle).1 / 2 };
        let rate = |device: &Candidate| RatedDevice {
            device: device.device,
            total: device.total,
            used: device.used,
            free_bytes: device.free_bytes(),
            speed: device.speed,
            boost: boost(device.fill(), mean),
            condition: device.condition(slow_below),
        };
        let mut rated: Vec<RatedDevice> = devices.iter().map(rate).collect();
        rated.sort_unstable_by_key(|device| device.device);
        let open = rated.iter().filter(|device| device.free_bytes > 0).count();
        Self { rated, open, used, total }
    }

    /// Returns the number of devices with free space.
    #[must_use]
    pub const fn open(&self) -> usize {
        self.open
    }

    /// Whether new objects may be placed on the device.
    pub(crate) fn has(&self, device: DeviceId) -> bool {
        self.rated.binary_search_by_key(&device, |one| one.device).is_ok()
    }

    fn with_room(&self) -> impl Iterator<Item = &RatedDevice> {
        self.rated.iter().filter(|device| device.free_bytes > 0)
    }

    /// Places a file. `seed` is its number, so that equal figures give an equal result.
    ///
    /// # Errors
    /// [`NoSpace`].
    pub fn place(
        &self,
        size_hint: Option<u64>,
        seed: u64,
        width_max: usize,
    ) -> Result<PlacementChoice, NoSpace> {
        match size_hint {
            Some(size) if size <= SINGLE_MAX => self.single(size, seed),
            _ => self.stripe(size_hint, seed, width_max),
        }
    }

    /// Small files are placed by weighted hashing alone; only devices with problems are avoided.
    fn single(&self, size: u64, seed: u64) -> Result<PlacementChoice, NoSpace> {
        let fits = self.with_room().filter(|device| device.free_bytes >= size);
        let first = fits.map(|device| ScoredDevice::of(device, seed)).max_by(|a, b| {
            let sound = |one: &ScoredDevice<'_>| one.device.condition != DeviceCondition::Troubled;
            sound(a)
                .cmp(&sound(b))
                .then_with(|| a.score.total_cmp(&b.score))
                .then_with(|| b.id().cmp(&a.id()))
        });
        let device = first.ok_or(NoSpace)?.device;
        let (shape, chosen) = (FileShape::Single(device.device), vec![device.chosen()]);
        Ok(PlacementChoice { shape, bound: WidthBound::Small, chosen })
    }

    fn stripe(
        &self,
        size_hint: Option<u64>,
        seed: u64,
        width_max: usize,
    ) -> Result<PlacementChoice, NoSpace> {
        let unit = match size_hint {
            Some(size) if size <= MEDIUM_MAX => UNIT_MEDIUM,
            _ => UNIT_LARGE,
        };
        let size = size_hint.unwrap_or(0);
        let units = size_hint.map_or(u64::MAX, |size| size.div_ceil(u64::from(unit)));
        let share = |width: usize| units.div_ceil(width as u64).saturating_mul(u64::from(unit)).min(size);
        let scored: Vec<ScoredDevice<'_>> =
            self.with_room().map(|device| ScoredDevice::of(device, seed)).collect();
        let done = |devices: Vec<&RatedDevice>, bound| {
            let chosen = devices.iter().map(|device| device.chosen()).collect();
            let devices = devices.iter().map(|device| device.device).collect();
            PlacementChoice { shape: FileShape::Striped(unit, devices), bound, chosen }
        };

        let (most, bound) = bounded([
            (width_max.clamp(1, WIDTH_MAX), WidthBound::Configured),
            (usize::try_from(units).unwrap_or(usize::MAX), WidthBound::Units),
            (self.in_best_condition(), WidthBound::Devices),
        ]);
        let mut devices = first(&scored, most, 0);
        let (width, bound) = bounded([(devices.len(), bound), (enough(&devices), WidthBound::Speed)]);
        devices.truncate(width);
        if width > 0 && devices.iter().all(|device| device.free_bytes >= share(width)) {
            return Ok(done(devices, bound));
        }
        // Free space decides now. A wider stripe needs less of each device, so if no width works,
        // the file does not fit.
        let (most, _) = bounded([
            (width_max.clamp(1, WIDTH_MAX), WidthBound::Configured),
            (usize::try_from(units).unwrap_or(usize::MAX), WidthBound::Units),
            (scored.len(), WidthBound::Devices),
        ]);
        for width in (1..=most).rev() {
            let devices = first(&scored, width, share(width));
            if devices.len() == width {
                return Ok(done(devices, WidthBound::Room));
            }
        }
        Err(NoSpace)
    }

    /// Returns the maximum width of a large file: the number of devices in the best condition, and
    /// in the next ones while they are few.
    fn in_best_condition(&self) -> usize {
        let mut count = 0;
        for condition in DeviceCondition::ALL {
            count += self.with_room().filter(|device| device.condition == *condition).count();
            if count >= WIDTH_FEW {
                break;
            }
        }
        count
    }
}

/// Returns how many devices are fast enough for one stream, if the speed of each is known.
fn enough(devices: &[&RatedDevice]) -> usize {
    let mut sum = 0u64;
    for (index, device) in devices.iter().enumerate() {
        if device.speed == 0 {
            break;
        }
        sum = sum.saturating_add(device.speed);
        if sum >= STREAM_SPEED {
            return (index + 1).max(WIDTH_FEW);
        }
    }
    usize::MAX
}

/// Returns the smallest of several limits and its kind; of equal ones the first.
fn bounded<const N: usize>(bounds: [(usize, WidthBound); N]) -> (usize, WidthBound) {
    let none = (usize::MAX, WidthBound::Configured);
    bounds.into_iter().fold(none, |least, bound| if bound.0 < least.0 { bound } else { least })
}

/// A device with its score for one file.
struct ScoredDevice<'a> {
    device: &'a RatedDevice,
    score: f64,
}

impl<'a> ScoredDevice<'a> {
    fn of(device: &'a RatedDevice, seed: u64) -> Self {
        Self { device, score: score(device.device, device.total as f64 * device.boost, seed) }
    }

    const fn id(&self) -> DeviceId {
        self.device.device
    }

    /// Orders by condition, then by score, and equal scores (which do not occur) by number, so that
    /// the order is total.
    fn order(&self, other: &Self) -> core::cmp::Ordering {
        let condition = self.device.condition.cmp(&other.device.condition);
        condition.then_with(|| other.score.total_cmp(&self.score)).then_with(|| self.id().cmp(&other.id()))
    }
}

/// Returns the first `width` devices with `share` bytes free, in order. O(n + w log w).
fn first<'a>(scored: &[ScoredDevice<'a>], width: usize, share: u64) -> Vec<&'a RatedDevice> {
    let mut fits: Vec<&ScoredDevice<'a>> =
        scored.iter().filter(|one| one.device.free_bytes >= share).collect();
    if width < fits.len() && width > 0 {
        fits.select_nth_unstable_by(width - 1, |a, b| a.order(b));
    }
    fits.truncate(width);
    fits.sort_unstable_by(|a, b| a.order(b));
    fits.into_iter().map(|one| one.device).collect()
}

/// Returns the weight factor of a device: 1 at the mean fill level.
fn boost(fill: f64, mean: f64) -> f64 {
    (1.0 - GAIN * (fill - mean) / mean.max(FILL_FLOOR)).clamp(BOOST_MIN, BOOST_MAX)
}

/// Weighted rendezvous hashing (the draw of CRUSH's straw2): a device is first with a probability
/// in proportion to its weight. Another device never changes the order of the rest.
fn score(device: DeviceId, weight: f64, seed: u64) -> f64 {
    let hash = mix(seed ^ mix(u64::from(device.0).wrapping_add(0x9E37_79B9_7F4A_7C15)));
    // 53 bits, strictly between 0 and 1.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / uniform.ln()
}

/// The finaliser of SplitMix64: every input bit moves every output bit.
const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
