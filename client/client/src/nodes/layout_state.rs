//! The layout of an open inode: its objects with their flush state, and whether the layout is
//! current.
//!
//! `inode_state` owns it; `send`, `read` and `durability` use it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::open::{DeviceEpoch, OpenObjects};

/// The objects of a file with the state of each.
pub(super) struct ObjectSet<M, D> {
    pub(super) open: Arc<OpenObjects<M, D>>,
    /// One entry for each object.
    pub(super) each: Vec<ObjectState>,
}

impl<M, D> Clone for ObjectSet<M, D> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone(), each: self.each.clone() }
    }
}

impl<M, D> ObjectSet<M, D> {
    /// Whether both are objects of the same layout.
    pub(super) fn is_same_layout(&self, other: &Self) -> bool {
        self.open.layout.number() == other.open.layout.number()
    }
}

/// State of one object.
#[derive(Clone)]
pub(super) struct ObjectState {
    /// Locked while the object is created; true when it exists.
    pub(super) created: Arc<tokio::sync::Mutex<bool>>,
    pub(super) flush_state: Arc<Mutex<ObjectFlushState>>,
}

impl ObjectState {
    /// Clears the flush state: no buffered write of this object could be lost by a restart of its
    /// device.
    pub(super) fn clear_flush_state(&self) {
        let mut flush_state = self.flush_state.lock();
        (flush_state.has_unflushed, flush_state.unflushed_writes, flush_state.device_epoch) =
            (false, 0, None);
    }
}

#[derive(Default)]
pub(super) struct ObjectFlushState {
    /// Boot epoch of the device as of before the first unflushed command.
    pub(super) device_epoch: Option<DeviceEpoch>,
    /// Number of unflushed commands after the one that created the object.
    pub(super) unflushed_writes: u32,
    /// Whether there are unflushed commands.
    pub(super) has_unflushed: bool,
    /// Whether the object was flushed: a restart cannot lose it.
    pub(super) durable: bool,
}

/// The current layout.
pub(super) struct LayoutState<M, D> {
    pub(super) objects: Option<ObjectSet<M, D>>,
    /// Whether the credentials of `objects` permit writing.
    pub(super) writable: bool,
    /// Whether the layout may be stale: since it was fetched the file was truncated, or others
    /// wrote it, perhaps in other objects.
    pub(super) stale: bool,
    /// Number of layouts received from the server.
    pub(super) received: u64,
    /// Generation (number of truncations) of the objects that are written.
    pub(super) generation: u32,
    /// Whether the objects were allocated for this client, which then has to create all of them.
    pub(super) allocated_here: bool,
    /// Whether the server knows that all objects exist on their devices.
    pub(super) all_created: bool,
    /// From here on the objects may contain truncated bytes that are not cleared yet; these read as
    /// zeros.
    pub(super) clean_until: u64,
    /// Whether the file was written in place: then missing bytes at the end of an object are zeros.
    pub(super) sparse: bool,
}

impl<M, D> Default for LayoutState<M, D> {
    fn default() -> Self {
        Self {
            objects: None,
            writable: false,
            stale: false,
            received: 0,
            generation: 0,
            allocated_here: false,
            all_created: false,
            clean_until: u64::MAX,
            sparse: false,
        }
    }
}

impl<M, D> LayoutState<M, D> {
    /// Whether these are the current objects, with credentials to write.
    pub(super) fn writes_to(&self, objects: &ObjectSet<M, D>) -> bool {
        self.writable && self.objects.as_ref().is_some_and(|known| Arc::ptr_eq(&known.open, &objects.open))
    }

    /// Sets new objects; keeps the state of each one if the layout is the same.
    pub(super) fn set_objects(&mut self, mut objects: ObjectSet<M, D>) -> ObjectSet<M, D> {
        if let Some(known) = self.objects.take().filter(|known| known.is_same_layout(&objects)) {
            objects.each = known.each;
        }
        self.objects = Some(objects.clone());
        objects
    }

    /// Forgets the objects.
    pub(super) fn drop_objects(&mut self) {
        (self.objects, self.allocated_here) = (None, false);
    }

    /// Marks the layout as possibly stale, if there is one.
    pub(super) fn mark_stale(&mut self) {
        self.stale |= self.objects.is_some();
    }
}
