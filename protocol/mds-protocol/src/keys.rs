//! Descriptions of the devices' keys as KeyList returns them: level, version, use and age. Never
//! the key bytes.

use crate::layout::DeviceId;
use crate::wire::{code, record};

code! {
    /// A level of the key hierarchy.
    pub enum KeyLevel: u8 as "key level" {
        /// The master key of a device.
        Master = 1,
        /// Authorizes setting partition keys.
        Root = 2,
        /// Authorizes setting working keys.
        Partition = 3,
        /// Signs credentials.
        Working = 4,
    }
}

code! {
    /// Current use of a key.
    pub enum KeyUse: u8 as "key use" {
        /// New credentials, or keys of the level below, use it.
        Current = 1,
        /// Its credentials are accepted until they expire; no new ones are issued.
        Superseded = 2,
        /// It is being rotated, or a rotation was interrupted.
        Changing = 3,
        /// The initial key of the device, to be replaced.
        Factory = 4,
        /// No key is set.
        Unset = 5,
    }
}

record! {
    /// One key of a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KeyInfo {
        /// The device that the key belongs to.
        pub device: DeviceId,
        pub level: KeyLevel,
        /// Partition of a partition or working key; zero is the root's partition.
        pub partition: u64,
        /// Version of a working key.
        pub version: u8,
        /// Key identifier; not secret. `None` for an initial key.
        pub identifier: Option<[u8; 7]>,
        /// Time when it was set, milliseconds since 1970; 0 for an initial key.
        pub set_ms: u64,
        /// Time when a superseded key is overwritten.
        pub dead_ms: u64,
        pub usage: KeyUse,
        /// Number of credentials issued with it, as stored.
        pub credentials: u64,
    }
}

record! {
    /// Start position of a page of keys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyCursor {
        pub device: DeviceId,
        /// Partition; `None`: the keys above the partitions.
        pub partition: Option<u64>,
    }
}
