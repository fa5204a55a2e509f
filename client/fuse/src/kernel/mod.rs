//! The kernel's side of a mount: requests as types, answers as bytes, the device file, and
//! mounting.

mod answer;
mod channel;
mod place;
mod wire;

pub(crate) use answer::{Answer, Attributes, CACHE_DIRECTORY, DIRECT_IO, Entries, KEEP_CACHE};
pub(crate) use channel::{Channel, Handler, Reply, Writing};
pub use place::{MountError, check_place, helper};
pub(crate) use place::{mount, read_ahead};
pub(crate) use wire::{
    Changes, LockWish, O_APPEND, Operation, RequestHeader, Unreadable, When, forgets, parse,
};
