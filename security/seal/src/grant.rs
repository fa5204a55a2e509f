//! Authorization: compares the capability of an admitted command with the rights that the command
//! needs, and returns the permit to run it.
//!
//! Does: compares what the capability allows with what the command needs.
//! Does not: check the capability's integrity; only [`crate::Gate`] creates an [`Admitted`].
//! Contract: [`Admitted::permit`] is the only constructor of [`Permit`], which every handler of the
//! device takes. Call it under the object's lock, so that a changed policy access tag takes effect
//! at once.
//! Source of truth: docs/design/security.md 3.3 step 8; t10-osd 4.2, 4.5, 4.10.

use core::ops::Deref;

use sealstone_osd::attribute::user_information;
use sealstone_osd::capability::Range;
use sealstone_osd::cdb::{Action, BytesNeeded};
use sealstone_osd::table::Continuation;
use sealstone_osd::{
    AttributeId, Capability, Cdb, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};

use crate::denial::Denial;
use crate::facts::{DeviceFacts, ObjectFacts};
use crate::gate::unfrozen;
use crate::hierarchy::{KeyHierarchy, KeyIdentity, KeySelector};
use crate::provider::Provider;
use crate::reply::ReplySeal;

/// A value whose integrity check passed. The check is its only constructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    pub(crate) const fn by_the_gate(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// By what right a command was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionBasis {
    /// Its bearer proved possession of the credential.
    Proven(Verified<Capability>),
    /// The device accepts NOSEC here: only the permission bits count, and they are unproven.
    Unsecured(Permissions),
}

/// The key that signed a command's credential: its selector and identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedBy {
    pub(crate) selector: KeySelector,
    pub(crate) key: KeyIdentity,
}

impl SignedBy {
    /// Whether that key is still set. Call it again under the lock under which the command runs: a
    /// SET KEY may have intervened.
    #[must_use]
    pub fn holds<P: Provider>(&self, keys: &KeyHierarchy<P>) -> bool {
        keys.holds(self.selector, self.key)
    }
}

/// A command that the gate admitted.
pub struct Admitted<P: Provider> {
    grant: AdmissionBasis,
    signed: Option<SignedBy>,
    reply: ReplySeal<P>,
}

impl<P: Provider> Admitted<P> {
    pub(crate) const fn new(grant: AdmissionBasis, signed: Option<SignedBy>, reply: ReplySeal<P>) -> Self {
        Self { grant, signed, reply }
    }

    /// Returns the key of the credential; `None` under NOSEC.
    #[must_use]
    pub const fn signed_by(&self) -> Option<SignedBy> {
        self.signed
    }

    /// Returns the capability; `None` under NOSEC, where it is unverified.
    #[must_use]
    pub const fn capability(&self) -> Option<&Verified<Capability>> {
        match &self.grant {
            AdmissionBasis::Proven(capability) => Some(capability),
            AdmissionBasis::Unsecured(_) => None,
        }
    }

    /// Checks that its key and its audit value have not been frozen since it was admitted. Call it
    /// before each step of a long command.
    ///
    /// # Errors
    /// [`Denial::KeyFrozen`], [`Denial::AuditFrozen`].
    pub fn check_unfrozen(&self, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        match (&self.grant, self.signed) {
            (AdmissionBasis::Proven(capability), Some(signed)) => capability.check_unfrozen(signed, facts),
            (AdmissionBasis::Proven(_) | AdmissionBasis::Unsecured(_), _) => Ok(()),
        }
    }

    /// Returns the seal for the reply.
    #[must_use]
    pub const fn reply(&self) -> &ReplySeal<P> {
        &self.reply
    }

    /// Compares the capability with what the command needs: type, object, created time, policy
    /// access tag, range, permissions for the command and for getting and setting attributes.
    ///
    /// # Errors
    /// [`Denial`]; seal the reply with [`Self::reply`], since possession was proven.
    pub fn permit(&self, cdb: &Cdb, facts: &dyn DeviceFacts) -> Result<Permit, Denial> {
        let need = RequiredRights::of(cdb);
        match &self.grant {
            AdmissionBasis::Proven(capability) => capability.permit(&need, facts),
            AdmissionBasis::Unsecured(bits) => {
                let required = need.permissions.without(NOT_ENFORCED_WITHOUT_SECURITY);
                if !bits.contains(required) {
                    return Err(Denial::Permission);
                }
                Ok(Permit {
                    generation: need.generation,
                    method: SecurityMethod::NoSec,
                    object: need.object,
                    permissions: *bits,
                    range: Range::ALL,
                    attributes_access: 0,
                    lost: false,
                })
            }
        }
    }
}

/// OSD-2's own permission bits: open-osd never sends them, so NOSEC does not require them.
pub const NOT_ENFORCED_WITHOUT_SECURITY: Permissions =
    Permissions::M_OBJECT.union(Permissions::QUERY).union(Permissions::GBL_REM);

/// The rights that a command needs, from its row and its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredRights {
    /// Layout of the capability, for its range and field pointers.
    pub generation: Generation,
    /// The addressed object; number 0 where a create lets the device choose.
    pub object: ObjectId,
    /// The permitted object types.
    pub types: &'static [ObjectType],
    /// The object whose created time and policy access tag count: the addressed one, or its
    /// container if it is being created.
    pub subject: ObjectId,
    /// Permissions of the row, and of attribute parameters.
    pub permissions: Permissions,
    /// The bytes that the allowed range must cover.
    pub bytes: BytesNeeded,
    /// Whether the bytes follow from a scatter/gather list instead. Then each piece needs
    /// [`Permit::check_range`].
    pub scattered: bool,
}

impl RequiredRights {
    /// Returns what a CDB needs.
    #[must_use]
    pub fn of(cdb: &Cdb) -> Self {
        let command = &cdb.command;
        let object = command.object();
        let mut permissions = command.permissions();
        if cdb.attributes.gets() {
            permissions = permissions | Permissions::GET_ATTR;
        }
        if cdb.attributes.sets() {
            permissions = permissions | Permissions::SET_ATTR;
        }
        Self {
            generation: cdb.generation,
            object,
            types: command.object_types(),
            subject: match command.action() {
                Action::Create
                | Action::CreateAndWrite
                | Action::CreateCollection
                | Action::CreateTrackingCollection
                | Action::CopyUserObjects => ObjectId::of_partition(object.partition),
                Action::CreatePartition | Action::CreateSnapshot | Action::CreateClone => ObjectId::ROOT,
                _ => object,
            },
            permissions,
            bytes: command.bytes_needed(),
            scattered: cdb.continuation_length != 0
                && command.row().continuation == Continuation::ScatterGather,
        }
    }
}

impl Verified<Capability> {
    /// Checks that the key that signed it and its audit value have not been frozen since it was
    /// verified.
    ///
    /// # Errors
    /// [`Denial::KeyFrozen`], [`Denial::AuditFrozen`].
    pub fn check_unfrozen(&self, signed: SignedBy, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        unfrozen(&self.0, signed.selector, facts)
    }

    /// Checks that it has not expired since it was verified.
    ///
    /// # Errors
    /// [`Denial::Expired`].
    pub fn check_expiry(&self, clock_ms: u64) -> Result<(), Denial> {
        let expires_ms = self.0.expires_ms;
        if expires_ms != 0 && clock_ms > expires_ms { Err(Denial::Expired) } else { Ok(()) }
    }

    /// Compares with what a command needs; also for a second object that the command uses.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn permit(&self, need: &RequiredRights, facts: &dyn DeviceFacts) -> Result<Permit, Denial> {
        let capability = &self.0;
        self.object_type(need, facts)?;
        let (scope, allowed, range) = match (capability.descriptor, capability.object_type) {
            (Descriptor::User { scope, allowed, range }, ObjectType::User) => (scope, allowed, range),
            // In OSD-1 one descriptor type serves user objects and collections.
            (Descriptor::User { scope, allowed, .. }, ObjectType::Collection)
                if capability.generation == Generation::Osd1 =>
            {
                (scope, allowed, Range::ALL)
            }
            (Descriptor::Partition { scope, partition }, ObjectType::Partition | ObjectType::Root) => {
                (scope, ObjectId::of_partition(partition), Range::ALL)
            }
            (Descriptor::Collection { scope, allowed }, ObjectType::Collection) => {
                (scope, allowed, Range::ALL)
            }
            _ => return Err(Denial::DescriptorType),
        };
        if allowed.partition != need.object.partition {
            return Err(Denial::Partition);
        }
        if allowed.object != need.object.object {
            return Err(Denial::Object);
        }
        // A missing user object has neither value. Its client must get "not found" after a device
        // lost an object that was not durable; an unreadable object is refused. The permit then
        // records that there was no object, and no handler may use it: an object could be created
        // meanwhile.
        let is_bound_to_object = capability.object_created_ms != 0 || scope.policy_access_tag != 0;
        let lost =
            is_bound_to_object && capability.object_type == ObjectType::User && facts.is_absent(need.subject);
        if is_bound_to_object && !lost {
            let facts = facts.object(need.subject);
            if capability.object_created_ms != 0
                && facts.is_none_or(|facts| facts.created_ms != capability.object_created_ms)
            {
                return Err(Denial::CreatedTime);
            }
            if scope.policy_access_tag != 0
                && facts.is_none_or(|facts| facts.policy_access_tag != scope.policy_access_tag)
            {
                return Err(Denial::PolicyAccessTag);
            }
        }
        let mut permit = Permit {
            generation: need.generation,
            method: capability.method,
            object: need.object,
            permissions: capability.permissions,
            range,
            attributes_access: scope.attributes_access,
            lost,
        };
        permit.check_bytes(need, facts)?;
        if !permit.allows(need.permissions) {
            return Err(Denial::Permission);
        }
        Ok(permit)
    }

    fn object_type(&self, need: &RequiredRights, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        let claimed = self.0.object_type;
        let possible = need.types.contains(&claimed);
        let is_certain = need.types.len() == 1
            || facts.object(need.object).is_none_or(|ObjectFacts { kind, .. }| kind == claimed);
        if possible && is_certain { Ok(()) } else { Err(Denial::ObjectType) }
    }
}

/// Numbers of the User Object Information page that reveal the length: used capacity, logical
/// length, data space, and the page as a whole.
const LENGTH_NUMBERS: [u32; 5] = [
    user_information::USED_CAPACITY.number,
    user_information::LOGICAL_LENGTH.number,
    user_information::ACTUAL_DATA_SPACE.number,
    user_information::RESERVED_DATA_SPACE.number,
    u32::MAX,
];

/// Pages whose attributes also need POL/SEC: Policy/Security of every object type (t10-osd 3.1,
/// 4.2).
pub const POLICY_SECURITY_PAGES: [u32; 4] = [0x9000_0005, 0x3000_0005, 0x6000_0005, 0x0000_0005];
/// Our own page with frozen audit values: also needs POL/SEC.
const FROZEN_AUDITS_PAGE: u32 = 0x9000_F005;
/// Our own page with an object's minimum method: also needs POL/SEC (security.md 4.4).
pub const MINIMUM_METHOD_PAGE: u32 = 0x0000_F001;
/// Our own page of a partition that determines which functions may run: also needs POL/SEC.
pub const FUNCTION_POLICY_PAGE: u32 = 0x3000_F002;
/// Attributes Access of a partition: it determines what capabilities may reach, so setting it also
/// needs POL/SEC.
const ATTRIBUTES_ACCESS_PAGE: u32 = 0x3000_0004;
/// Pages whose attributes also need OBJ_MGMT to be set: Quotas of root, partition and user object.
pub const QUOTAS_PAGES: [u32; 3] = [0x9000_0002, 0x3000_0002, 0x0000_0002];

/// The right to run one command on one object; handlers take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    generation: Generation,
    method: SecurityMethod,
    object: ObjectId,
    permissions: Permissions,
    range: Range,
    attributes_access: u32,
    lost: bool,
}

impl Permit {
    /// Returns the object; number 0 where a create lets the device choose.
    #[must_use]
    pub const fn object(&self) -> ObjectId {
        self.object
    }

    /// Whether the object did not exist, so that neither its created time nor its tag was compared.
    /// Then the command must end with that error, whatever exists when it would run.
    #[must_use]
    pub const fn is_for_nothing(&self) -> bool {
        self.lost
    }

    /// Returns the layout of the capability, for field pointers of a later [`Denial`].
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the method of the command.
    #[must_use]
    pub const fn method(&self) -> SecurityMethod {
        self.method
    }

    /// Whether it grants every one of these bits.
    #[must_use]
    pub const fn allows(&self, permissions: Permissions) -> bool {
        self.permissions.contains(permissions)
    }

    /// Returns a permit for one object of a command with several, with those of these rights that
    /// this permit grants.
    #[must_use]
    pub const fn restricted_to(self, object: ObjectId, rights: Permissions) -> Self {
        let excess = self.permissions.without(rights);
        Self { object, permissions: self.permissions.without(excess), ..self }
    }

    /// Returns the permit of a command that was authenticated by this method.
    pub(crate) const fn under(self, method: SecurityMethod) -> Self {
        Self { method, ..self }
    }

    /// Checks that the method of the command is not below the minimum of a further object that it
    /// accesses. The gate checked that of the addressed one.
    ///
    /// # Errors
    /// [`Denial::BelowFloor`].
    pub fn check_floor(&self, object: ObjectId, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        let (method, floor) = (self.method, facts.floor(object));
        if method < floor { Err(Denial::BelowFloor { method, floor }) } else { Ok(()) }
    }

    /// Compares the allowed range with the bytes that a command needs. A scatter/gather list is
    /// compared later.
    fn check_bytes(&mut self, need: &RequiredRights, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        match need.bytes {
            BytesNeeded::Range(wanted) if !need.scattered => self.check_range(wanted.start, wanted.length),
            BytesNeeded::AtEnd(_) if !self.is_restricted() => Ok(()),
            // The command ends by reporting that the object does not exist.
            BytesNeeded::AtEnd(_) if facts.is_absent(need.object) => {
                self.lost = true;
                Ok(())
            }
            BytesNeeded::AtEnd(length) => {
                let end = facts.length(need.object).ok_or(Denial::Range)?;
                self.check_range(end, length)
            }
            BytesNeeded::Range(_) | BytesNeeded::None => Ok(()),
        }
    }

    /// Whether the capability excludes any byte.
    const fn is_restricted(&self) -> bool {
        !self.range.permits(0, u64::MAX)
    }

    /// Checks that these bytes are in the allowed range. For every entry of a scatter/gather list.
    ///
    /// # Errors
    /// [`Denial::Range`].
    pub const fn check_range(&self, start: u64, length: u64) -> Result<(), Denial> {
        if self.range.permits(start, length) { Ok(()) } else { Err(Denial::Range) }
    }

    /// Checks that this attribute may be retrieved. For every attribute that is requested by name;
    /// from a wildcard, refused ones are omitted.
    ///
    /// # Errors
    /// [`Denial::Permission`], [`Denial::AttributesAccess`], [`Denial::Range`] for an attribute
    /// that reveals the length of the object to a capability for a part of it.
    pub fn check_get(&self, attribute: AttributeId, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        self.check_attribute(attribute, Permissions::GET_ATTR, facts)?;
        self.check_length_shown(attribute)
    }

    fn check_length_shown(&self, attribute: AttributeId) -> Result<(), Denial> {
        let shows = attribute.page == user_information::PAGE && LENGTH_NUMBERS.contains(&attribute.number);
        if shows && self.is_restricted() { Err(Denial::Range) } else { Ok(()) }
    }

    /// Checks that this attribute may be compared with bounds, by a command that needs no right to
    /// retrieve any. The access list of the capability still applies: a comparison reveals the
    /// value.
    ///
    /// # Errors
    /// [`Denial::AttributesAccess`], [`Denial::Range`].
    pub fn check_compared(&self, attribute: AttributeId, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        self.check_length_shown(attribute)?;
        self.check_listed(attribute, facts)
    }

    fn check_listed(&self, attribute: AttributeId, facts: &dyn DeviceFacts) -> Result<(), Denial> {
        if self.attributes_access != 0
            && !facts.attribute_allowed(self.object.partition, self.attributes_access, attribute)
        {
            return Err(Denial::AttributesAccess);
        }
        Ok(())
    }

    /// Checks that this attribute may be set. Check all of a list before anything is changed.
    /// CAPKEY cannot set policy pages, since it protects no list; NOSEC can only where the
    /// administrator turned security off.
    ///
    /// # Errors
    /// [`Denial::Permission`], [`Denial::AttributesAccess`], [`Denial::BelowFloor`],
    /// [`Denial::Range`] for a logical length that truncates or extends bytes outside the range.
    pub fn check_set(
        &self,
        attribute: AttributeId,
        value: &[u8],
        facts: &dyn DeviceFacts,
    ) -> Result<(), Denial> {
        let access_list = attribute.page == ATTRIBUTES_ACCESS_PAGE;
        if (guarded(attribute.page) || access_list) && self.method == SecurityMethod::CapKey {
            return Err(Denial::BelowFloor { method: self.method, floor: SecurityMethod::CmdRsp });
        }
        let besides = match attribute.page {
            page if QUOTAS_PAGES.contains(&page) => Permissions::OBJ_MGMT,
            ATTRIBUTES_ACCESS_PAGE => Permissions::POL_SEC,
            _ => Permissions::NONE,
        };
        self.check_attribute(attribute, Permissions::SET_ATTR.union(besides), facts)?;
        if attribute == user_information::LOGICAL_LENGTH { self.check_resize(value, facts) } else { Ok(()) }
    }

    /// Checks that the range covers every byte between the logical length and the new one.
    fn check_resize(&self, value: &[u8], facts: &dyn DeviceFacts) -> Result<(), Denial> {
        if !self.is_restricted() {
            return Ok(());
        }
        let wanted = value.try_into().map(u64::from_be_bytes).map_err(|_| Denial::Range)?;
        let length = facts.length(self.object).ok_or(Denial::Range)?;
        self.check_range(length.min(wanted), length.abs_diff(wanted))
    }

    fn check_attribute(
        &self,
        attribute: AttributeId,
        access: Permissions,
        facts: &dyn DeviceFacts,
    ) -> Result<(), Denial> {
        let needed = if guarded(attribute.page) { access.union(Permissions::POL_SEC) } else { access };
        if !self.allows(needed) {
            return Err(Denial::Permission);
        }
        self.check_listed(attribute, facts)
    }
}

/// Whether the page needs POL/SEC.
fn guarded(page: u32) -> bool {
    POLICY_SECURITY_PAGES.contains(&page)
        || [MINIMUM_METHOD_PAGE, FROZEN_AUDITS_PAGE, FUNCTION_POLICY_PAGE].contains(&page)
}
