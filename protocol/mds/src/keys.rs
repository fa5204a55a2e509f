//! What administrators see of the devices' keys: never the keys.

use crate::layout::DeviceId;
use crate::wire::{code, record};

code! {
    /// A level of the hierarchy.
    pub enum KeyLevel: u8 as "key level" {
        /// The device's.
        Master = 1,
        /// Signs what sets partition keys.
        Root = 2,
        /// Signs what sets working keys.
        Partition = 3,
        /// Signs credentials.
        Working = 4,
    }
}

code! {
    /// What a key is used for now.
    pub enum KeyUse: u8 as "key use" {
        /// New credentials are made with it, or keys below it.
        Current = 1,
        /// Credentials made with it are accepted until they expire; no new ones are made.
        Superseded = 2,
        /// It is being changed, or a change was interrupted.
        Changing = 3,
        /// The key that the device came with; it is about to be replaced.
        Factory = 4,
        /// There is none.
        Unset = 5,
    }
}

record! {
    /// One key of a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KeyInfo {
        /// Device.
        pub device: DeviceId,
        /// Level.
        pub level: KeyLevel,
        /// Partition of a partition or working key; zero is the root's own.
        pub partition: u64,
        /// Version of a working key.
        pub version: u8,
        /// What both ends call it; not secret. None for a key of the factory.
        pub identifier: Option<[u8; 7]>,
        /// Since when, milliseconds since 1970; 0 for a key of the factory.
        pub set_ms: u64,
        /// When a superseded one is overwritten.
        pub dead_ms: u64,
        /// What it is for.
        pub usage: KeyUse,
        /// Credentials made with it, as far as is stored.
        pub credentials: u64,
    }
}

record! {
    /// Where a page of keys begins.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyPlace {
        /// Device.
        pub device: DeviceId,
        /// Partition; none: with the keys above the partitions.
        pub partition: Option<u64>,
    }
}
