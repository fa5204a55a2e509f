//! The objects of one file and the credentials for them, renewed before they expire.
//!
//! Does: hold grants, renew all of them in one request, run operations under them.
//! Does not: know files or stripes; `put` and `get` do.
//! Contract: at most one renewal of a file is under way; for one command a refused credential is renewed
//! [`RENEWALS_MAX`] times at most: while keys are being changed, one that was fresh may be refused again.
//! Truth: security.md §3.5 (client cache).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sealstone_initiator::{Bearer, Completion, Environment, Operation, OsdError};
use sealstone_mds_protocol::{
    Device, DeviceId, ErrorCode, Failure, Grant, Handle, Layout, Method, ObjectRef, PAGE_MAX, Request,
    Response,
};
use sealstone_osd::{AttributeId, ObjectId};
use tokio::sync::Mutex;

use crate::{ClientError, Devices, Metadata};

/// A credential is renewed this long before it expires, milliseconds.
pub const RENEW_BEFORE_MS: u64 = 5_000;
/// Renewals for one command at most.
pub(crate) const RENEWALS_MAX: u32 = 3;
/// The boot epoch as an attribute of user objects, a page of ours (docs/standards/device.md).
const BOOT_EPOCH: AttributeId = AttributeId::new(0xF003, 1);
/// Pages of the device list read at most: as many devices as that are 1 048 576.
const DEVICE_PAGES_MAX: usize = 4096;

/// What all transfers of a client share.
pub(crate) struct Core<M, D> {
    pub(crate) metadata: M,
    pub(crate) devices: D,
    pub(crate) environment: Arc<dyn Environment>,
    /// Server's clock minus ours, milliseconds: grants speak of the server's clock.
    pub(crate) clock_offset_ms: Arc<AtomicI64>,
    pub(crate) known: Mutex<BTreeMap<DeviceId, Arc<Device>>>,
    pub(crate) budget: crate::MemoryBudget,
    pub(crate) buffers: crate::buffers::Buffers,
    pub(crate) tuning: crate::Tuning,
}

impl<M: Metadata, D: Devices> Core<M, D> {
    /// The server's clock, milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.environment.now_ms().saturating_add_signed(self.clock_offset_ms.load(Ordering::Relaxed))
    }

    /// A device by number; an unknown one makes us ask for the list again.
    pub(crate) async fn device(&self, id: DeviceId) -> Result<Arc<Device>, ClientError> {
        let mut known = self.known.lock().await;
        if let Some(device) = known.get(&id) {
            return Ok(device.clone());
        }
        for device in self.list_devices().await? {
            known.insert(device.id, Arc::new(device));
        }
        known.get(&id).cloned().ok_or(ClientError::UnknownDevice(id))
    }

    /// Every device that the server knows.
    pub(crate) async fn list_devices(&self) -> Result<Vec<Device>, ClientError> {
        let mut all = Vec::new();
        let mut after = None;
        for _ in 0..DEVICE_PAGES_MAX {
            let request = Request::DeviceList { after, limit: PAGE_MAX };
            let Response::Devices { devices, more } = self.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            let last = devices.last().map(|device| device.id);
            if last.is_some() && last <= after {
                return Err(ClientError::Protocol("the device list does not ascend"));
            }
            all.extend(devices);
            if !more || last.is_none() {
                break;
            }
            after = last;
        }
        Ok(all)
    }
}

/// What is it if bytes within the size of a file are not in its objects?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A loss.
    Lost,
    /// Zeros: nobody wrote them.
    Zeros,
    /// The same of all of it: there are no objects.
    All,
}

/// An open file, or a create under way, as its objects.
pub(crate) struct OpenObjects<M, D> {
    pub(crate) core: Arc<Core<M, D>>,
    pub(crate) layout: Layout,
    pub(crate) missing: Missing,
    /// None: by a capability file; nothing is renewed.
    handle: Option<Handle>,
    method: Method,
    devices: Vec<Arc<Device>>,
    bearers: Mutex<Bearers>,
}

struct Bearers {
    /// Counts renewals, so that two commands refused under one credential make one renewal.
    generation: u64,
    expires_ms: u64,
    /// One per object of the layout; none where a capability file has none.
    bearers: Vec<Option<Bearer>>,
}

impl Bearers {
    fn new(generation: u64, layout: &Layout, grants: &[Grant]) -> Result<Self, ClientError> {
        let matching = grants.len() == layout.width()
            && grants.iter().zip(layout.objects()).all(|(grant, object)| grant.object == *object);
        if !matching {
            return Err(ClientError::Protocol("grants that do not match the layout"));
        }
        let bearers = grants
            .iter()
            .map(|grant| Bearer::new(grant.capability.as_slice(), grant.key.expose()).map(Some))
            .collect::<Result<_, _>>()
            .map_err(|_| ClientError::Protocol("a grant without a usable credential"))?;
        // 0 means "never" in a capability; the server gives none of those for files, but it would be honoured.
        let expires_ms = grants
            .iter()
            .map(|grant| if grant.expires_ms == 0 { u64::MAX } else { grant.expires_ms })
            .min()
            .unwrap_or(u64::MAX);
        Ok(Self { generation, expires_ms, bearers })
    }
}

impl<M: Metadata, D: Devices> OpenObjects<M, D> {
    /// Takes over what Create or Open answered.
    pub(crate) async fn new(
        core: Arc<Core<M, D>>,
        handle: Handle,
        method: Method,
        layout: Layout,
        grants: &[Grant],
    ) -> Result<Self, ClientError> {
        let bearers = Mutex::new(Bearers::new(0, &layout, grants)?);
        let handle = Some(handle);
        let mut devices = Vec::with_capacity(layout.width());
        for object in layout.objects() {
            devices.push(core.device(object.device).await?);
        }
        Ok(Self { core, layout, missing: Missing::Lost, handle, method, devices, bearers })
    }

    /// By a capability file: some objects of the layout, nothing to be renewed.
    pub(crate) fn delegated(
        core: Arc<Core<M, D>>,
        layout: Layout,
        grants: &[Grant],
        known: &BTreeMap<DeviceId, Arc<Device>>,
    ) -> Result<Self, ClientError> {
        const UNUSABLE: ClientError = ClientError::CapabilityFile("a credential in it cannot be used");
        let mut bearers = Vec::with_capacity(layout.width());
        let mut devices = Vec::with_capacity(layout.width());
        for object in layout.objects() {
            let grant = grants.iter().find(|grant| grant.object == *object);
            let bearer = grant.map(|grant| Bearer::new(grant.capability.as_slice(), grant.key.expose()));
            bearers.push(bearer.transpose().map_err(|_| UNUSABLE)?);
            devices.push(known.get(&object.device).ok_or(ClientError::UnknownDevice(object.device))?.clone());
        }
        let bearers = Mutex::new(Bearers { generation: 0, expires_ms: u64::MAX, bearers });
        let missing = Missing::Lost;
        Ok(Self { core, layout, missing, handle: None, method: Method::AllData, devices, bearers })
    }

    /// A file without objects: all of it is zeros, and no device is asked.
    pub(crate) fn empty(core: Arc<Core<M, D>>) -> Self {
        // Never asked for; it makes the arithmetic of one object.
        let nowhere = ObjectRef { device: DeviceId(0), object: ObjectId::new(0, 0) };
        let bearers = Mutex::new(Bearers { generation: 0, expires_ms: u64::MAX, bearers: Vec::new() });
        Self {
            core,
            layout: Layout::single(nowhere),
            missing: Missing::All,
            handle: None,
            method: Method::AllData,
            devices: Vec::new(),
            bearers,
        }
    }

    /// The boot epoch of an object's device, asked of the object.
    pub(crate) async fn boot_epoch(&self, index: usize) -> Result<u16, ClientError> {
        let place =
            self.layout.objects().get(index).ok_or(ClientError::Protocol("an object outside the layout"))?;
        let ask = || Operation::GetAttributes { object: place.object, ids: vec![BOOT_EPOCH], length_max: 64 };
        let answer = self.execute(index, ask).await?;
        let value = answer.attributes.first().and_then(|(_, value)| value.as_deref()?.try_into().ok());
        value
            .map(u16::from_be_bytes)
            .ok_or(ClientError::Protocol("a device that does not tell its boot epoch"))
    }

    /// Runs an operation on object `index`; `make` is called again if a refused credential is renewed.
    pub(crate) async fn execute(
        &self,
        index: usize,
        mut make: impl FnMut() -> Operation + Send,
    ) -> Result<Completion, ClientError> {
        let device = self.devices.get(index).ok_or(ClientError::Protocol("an object outside the layout"))?;
        let (mut bearer, mut generation) = self.bearer(index, None).await?;
        let mut outcome = self.core.devices.execute(device, &bearer, make()).await;
        for _ in 0..RENEWALS_MAX {
            let Err(error) = &outcome else { break };
            if !error.is_denied() || self.handle.is_none() {
                break;
            }
            tracing::debug!(device = device.id.0, %error, "renewing a refused credential");
            (bearer, generation) = self.bearer(index, Some(generation)).await?;
            outcome = self.core.devices.execute(device, &bearer, make()).await;
        }
        outcome.map_err(|error| match (error, self.layout.objects().get(index)) {
            (error @ OsdError::Medium { .. }, Some(place)) => ClientError::Damaged {
                device: device.id,
                name: device.name.shown().into_owned(),
                object: place.object,
                error,
            },
            (error, _) => ClientError::Device { device: device.id, error },
        })
    }

    /// The credential of object `index`, renewed if it is about to expire or is of the generation `refused`.
    async fn bearer(&self, index: usize, refused: Option<u64>) -> Result<(Bearer, u64), ClientError> {
        let mut held = self.bearers.lock().await;
        let about_to_expire = self.core.now_ms().saturating_add(RENEW_BEFORE_MS) >= held.expires_ms;
        if let Some(handle) = self.handle
            && (about_to_expire || refused == Some(held.generation))
        {
            let request = Request::RenewGrants { handle, method: self.method };
            let Response::Grants { grants } = self.core.metadata.call(request).await? else {
                return Err(ClientError::OTHER_ANSWER);
            };
            let other = |(grant, object): (&Grant, &ObjectRef)| grant.object != *object;
            if matches!(handle, Handle::Node { .. })
                && (grants.len() != self.layout.width()
                    || grants.iter().zip(self.layout.objects()).any(other))
            {
                // Cut to nothing and written anew by somebody else.
                return Err(Failure::new(ErrorCode::Stale, "the file has other objects meanwhile").into());
            }
            *held = Bearers::new(held.generation + 1, &self.layout, &grants)?;
        }
        let bearer = held.bearers.get(index).ok_or(ClientError::Protocol("an object outside the layout"))?;
        let bearer = bearer.clone().ok_or(ClientError::NotDelegated("an object without a credential"))?;
        Ok((bearer, held.generation))
    }

    /// Is the file still what it was when it was opened?
    ///
    /// # Errors
    /// `Refused` with `Stale` if it was replaced or removed.
    pub(crate) async fn check_current(&self) -> Result<(), ClientError> {
        if self.handle.is_none() {
            return Ok(());
        }
        let generation = self.bearers.lock().await.generation;
        self.bearer(0, Some(generation)).await.map(drop)
    }

    /// Is this what a device says when an object has fewer bytes than asked for?
    pub(crate) const fn is_short(error: &ClientError) -> bool {
        matches!(error, ClientError::Device { error: OsdError::ReadPastEnd { .. } | OsdError::NotFound, .. })
    }
}
