//! Types that describe why a file was placed on its devices, and the progress of drains and
//! rebalances.
//!
//! Truth: docs/standards/mds/layouts.md §6.2.

use alloc::vec::Vec;

use crate::wire::{Text, code, record};

code! {
    /// Suitability of a device for new objects, best first.
    pub enum DeviceCondition: u8 as "condition" {
        /// No known problem.
        Good = 1,
        /// Its configured speed is less than half of the median.
        Slow = 2,
        /// It is 90 % full.
        Filling = 3,
        /// The server's last attempt to use it failed.
        Troubled = 4,
    }
}

code! {
    /// Which limit decided the number of objects of a file.
    pub enum WidthBound: u8 as "bound of a width" {
        /// The file is small: one object.
        Small = 1,
        /// The file has no more stripe units.
        Units = 2,
        /// No more devices were equally suitable.
        Devices = 3,
        /// Their configured speeds add up to what one reader can use.
        Speed = 4,
        /// More devices did not have enough free space.
        Room = 5,
        /// The configured maximum.
        Configured = 6,
    }
}

impl DeviceCondition {
    /// Returns the name for users and scripts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Slow => "slow",
            Self::Filling => "filling",
            Self::Troubled => "troubled",
        }
    }
}

impl WidthBound {
    /// Returns the name for scripts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Units => "units",
            Self::Devices => "devices",
            Self::Speed => "speed",
            Self::Room => "room",
            Self::Configured => "configured",
        }
    }
}

record! {
    /// State of a device when it was chosen.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ChosenDevice {
        /// Suitability of the device.
        pub condition: DeviceCondition,
        /// Fill level in thousandths.
        pub fill: u16,
        /// Weight relative to its capacity alone, in hundredths.
        pub weight: u16,
    }
}

record! {
    /// Progress of a drain.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Drain {
        /// Start time, milliseconds since 1970.
        pub began_ms: u64,
        /// Limit in bytes per second; 0: no limit.
        pub rate: u64,
        /// Objects moved.
        pub moved_objects: u64,
        /// Their bytes.
        pub moved_bytes: u64,
        /// Objects left at the last scan, minus those moved since.
        pub left_objects: u64,
        /// Their bytes.
        pub left_bytes: u64,
        /// Objects that could not be moved at the last scan because they were in use.
        pub in_use: u64,
        /// Objects of removed files that still existed at the last scan.
        pub removing: u64,
        /// Error of the last scan; empty if none.
        pub problem: Text<96>,
        /// Time of completion, if complete.
        pub done_ms: Option<u64>,
    }
}

record! {
    /// Progress of a rebalance.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Rebalance {
        /// Start time, milliseconds since 1970.
        pub began_ms: u64,
        /// Limit in bytes per second; 0: no limit.
        pub rate: u64,
        /// Objects moved.
        pub moved_objects: u64,
        /// Their bytes.
        pub moved_bytes: u64,
        /// Minimum of bytes left to move at the last scan, minus those moved since.
        pub left_bytes: u64,
        /// Candidate objects that could not be moved at the last scan because they were in use.
        pub in_use: u64,
        /// Error of the last scan; empty if none.
        pub problem: Text<96>,
        /// Time of the end, if it ended.
        pub done_ms: Option<u64>,
        /// Whether an operator stopped it.
        pub stopped: bool,
    }
}

record! {
    /// Why the layout of a file was chosen.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PlacementRecord {
        /// Time of the decision, milliseconds since 1970.
        pub at_ms: u64,
        /// Expected size, if known.
        pub size_hint: Option<u64>,
        /// Limit that decided the number of objects.
        pub bound: WidthBound,
        /// Number of eligible devices.
        pub considered: u32,
        /// Number of other devices at that time: joining, draining, unreachable, full.
        pub left_out: u32,
        /// Devices of the layout, in its order.
        pub chosen: Vec<ChosenDevice>,
        /// Number of objects of the previous layout, if the file outgrew it and was migrated.
        pub outgrew: Option<u16>,
    }
}
