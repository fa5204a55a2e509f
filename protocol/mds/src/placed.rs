//! Why the bytes of a file lie where they lie, as the server noted it when it chose.
//!
//! Truth: docs/standards/mds/layouts.md §6.2.

use alloc::vec::Vec;

use crate::wire::{Text, code, record};

code! {
    /// How well a device suited new objects; the better come first.
    pub enum DeviceCondition: u8 as "condition" {
        /// Nothing speaks against it.
        Good = 1,
        /// Its stated speed is less than half of the middle one.
        Slow = 2,
        /// Nine tenths of it are in use.
        Filling = 3,
        /// Something went wrong when the server last tried it.
        Troubled = 4,
    }
}

code! {
    /// What decided how many devices a file has.
    pub enum WidthBound: u8 as "bound of a width" {
        /// It is small: one object.
        Small = 1,
        /// It has no more stripe units.
        Units = 2,
        /// No more devices were in as good a condition.
        Devices = 3,
        /// Their stated speeds add up to what one reader takes.
        Speed = 4,
        /// Fewer or others had room for their share.
        Room = 5,
        /// The server uses no more.
        Configured = 6,
    }
}

impl DeviceCondition {
    /// The word for people and scripts.
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
    /// The word for scripts.
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
    /// A device as it was when it was chosen.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ChosenDevice {
        /// How well it suited.
        pub condition: DeviceCondition,
        /// How full it was, thousandths.
        pub fill: u16,
        /// Its chance against what its capacity alone would give it, hundredths.
        pub weight: u16,
    }
}

record! {
    /// A device that is being emptied.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Drain {
        /// Since when, milliseconds since 1970.
        pub began_ms: u64,
        /// Bytes that are moved in a second at most; 0: as many as can be.
        pub rate: u64,
        /// Objects moved.
        pub moved_objects: u64,
        /// Their bytes.
        pub moved_bytes: u64,
        /// Objects of files that were there when it was last looked through, less those moved since.
        pub left_objects: u64,
        /// Their bytes.
        pub left_bytes: u64,
        /// Of them, those that could not be moved then since somebody had them.
        pub in_use: u64,
        /// Objects that no file has any more and that were not removed yet, when it was last looked through.
        pub removing: u64,
        /// What went wrong then; empty if nothing.
        pub problem: Text<96>,
        /// When nothing was left; none before that.
        pub done_ms: Option<u64>,
    }
}

record! {
    /// Devices that are being made equally full.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Rebalance {
        /// Since when, milliseconds since 1970.
        pub began_ms: u64,
        /// Bytes that are moved in a second at most; 0: as many as can be.
        pub rate: u64,
        /// Objects moved.
        pub moved_objects: u64,
        /// Their bytes.
        pub moved_bytes: u64,
        /// Bytes that have to move at least, as of the last look, less those moved since.
        pub left_bytes: u64,
        /// Objects that would have helped and could not be moved at the last look since somebody had them.
        pub in_use: u64,
        /// What went wrong then; empty if nothing.
        pub problem: Text<96>,
        /// When it ended; none before that.
        pub done_ms: Option<u64>,
        /// Did it end because somebody said so?
        pub stopped: bool,
    }
}

record! {
    /// Why a file has the layout that it has.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PlacementRecord {
        /// When it was chosen, milliseconds since 1970.
        pub at_ms: u64,
        /// Size that was known to be coming.
        pub size_hint: Option<u64>,
        /// What decided how many devices it has.
        pub bound: WidthBound,
        /// Devices that could have been chosen.
        pub considered: u32,
        /// All others at that time: joining, draining, silent, full.
        pub left_out: u32,
        /// The devices of the layout, in its order.
        pub chosen: Vec<ChosenDevice>,
        /// Objects of the layout before, if the file had outgrown it and was carried over.
        pub outgrew: Option<u16>,
    }
}
