//! The kernel's side of a mount: requests as types, answers as bytes, the device file, and
//! mounting.

mod answer;
mod channel;
mod mount;
mod wire;

pub(crate) use answer::{
    AnswerFields, Attributes, CACHE_DIRECTORY, DIRECT_IO, EntryBuffer, KEEP_CACHE, PARALLEL_WRITES,
};
pub(crate) use channel::{FuseChannel, KernelReply, RequestHandler, WriteTarget};
pub use mount::{MountError, MountRoot, check_mountpoint, helper};
pub(crate) use mount::{mount, read_ahead};
pub(crate) use wire::{
    Changes, KernelTime, LockRequest, MalformedRequest, O_APPEND, Operation, RequestHeader, forgets, parse,
};
