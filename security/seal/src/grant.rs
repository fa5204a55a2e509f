//! What an admitted command may do: from proof of possession to permit.
//!
//! Does: compare what the capability allows with what the command wants. Does not: check the capability's
//! integrity; only [`crate::Gate`] makes an [`Admitted`].
//! Contract: a [`Permit`] is made by [`Admitted::permit`] alone and is what every handler of the device takes. Call
//! it under the object's lock, so that a changed policy access tag takes effect at once.
//! Truth: docs/design/security.md 3.3 step 8; t10-osd 4.2, 4.5, 4.10.

use core::ops::Deref;

use sealstone_osd::attribute::user_information;
use sealstone_osd::capability::Range;
use sealstone_osd::cdb::{Action, BytesNeeded};
use sealstone_osd::table::Continuation;
use sealstone_osd::{
    AttributeId, Capability, Cdb, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};

use crate::denial::Denial;
use crate::facts::{Facts, ObjectFacts};
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

/// By what right a command came through the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Its bearer proved possession of the credential.
    Proven(Verified<Capability>),
    /// The device accepts NOSEC here: only the permission bits count, and nothing proves them.
    Unsecured(Permissions),
}

/// The key that signed a command's credential: which one it was, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedBy {
    pub(crate) selector: KeySelector,
    pub(crate) key: KeyIdentity,
}

impl SignedBy {
    /// Is that key still set in its place? Ask again under the lock under which the command runs: SET KEY may have
    /// come between.
    #[must_use]
    pub fn holds<P: Provider>(&self, keys: &KeyHierarchy<P>) -> bool {
        keys.holds(self.selector, self.key)
    }
}

/// A command that passed the gate.
pub struct Admitted<P: Provider> {
    grant: Grant,
    signed: Option<SignedBy>,
    reply: ReplySeal<P>,
}

impl<P: Provider> Admitted<P> {
    pub(crate) const fn new(grant: Grant, signed: Option<SignedBy>, reply: ReplySeal<P>) -> Self {
        Self { grant, signed, reply }
    }

    /// The key behind the credential; `None` under NOSEC.
    #[must_use]
    pub const fn signed_by(&self) -> Option<SignedBy> {
        self.signed
    }

    /// The capability; `None` under NOSEC, where nothing in it is to be believed.
    #[must_use]
    pub const fn capability(&self) -> Option<&Verified<Capability>> {
        match &self.grant {
            Grant::Proven(capability) => Some(capability),
            Grant::Unsecured(_) => None,
        }
    }

    /// Has its key or its audit value been frozen since it came in? Ask before each step of a long command.
    ///
    /// # Errors
    /// [`Denial::KeyFrozen`], [`Denial::AuditFrozen`].
    pub fn check_unfrozen(&self, facts: &dyn Facts) -> Result<(), Denial> {
        match (&self.grant, self.signed) {
            (Grant::Proven(capability), Some(signed)) => unfrozen(capability, signed.selector, facts),
            (Grant::Proven(_) | Grant::Unsecured(_), _) => Ok(()),
        }
    }

    /// Seals the reply.
    #[must_use]
    pub const fn reply(&self) -> &ReplySeal<P> {
        &self.reply
    }

    /// Compares the capability with what the command wants: type, object, created time, policy access tag, range,
    /// permissions for the command and for getting and setting attributes.
    ///
    /// # Errors
    /// [`Denial`]; seal the reply with [`Self::reply`], the client proved itself.
    pub fn permit(&self, cdb: &Cdb, facts: &dyn Facts) -> Result<Permit, Denial> {
        let need = Need::of(cdb);
        match &self.grant {
            Grant::Proven(capability) => capability.permit(&need, facts),
            Grant::Unsecured(bits) => {
                let asked = need.permissions.without(NOT_ENFORCED_WITHOUT_SECURITY);
                if !bits.contains(asked) {
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

/// OSD-2's own permission bits: open-osd never sends them, so NOSEC does not ask for them.
pub const NOT_ENFORCED_WITHOUT_SECURITY: Permissions =
    Permissions::M_OBJECT.union(Permissions::QUERY).union(Permissions::GBL_REM);

/// What a command wants, from its row and its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Layout of the capability, for its range and field pointers.
    pub generation: Generation,
    /// The addressed object; number 0 where a create lets the device choose.
    pub object: ObjectId,
    /// The types it may have.
    pub types: &'static [ObjectType],
    /// Whose created time and policy access tag count: the object, or what contains it if it is being made.
    pub subject: ObjectId,
    /// Permissions of the row, of attribute parameters besides.
    pub permissions: Permissions,
    /// The bytes that the allowed range must cover.
    pub bytes: BytesNeeded,
    /// Whether the bytes follow from a scatter/gather list instead. Then each piece needs [`Permit::check_range`].
    pub scattered: bool,
}

impl Need {
    /// What a CDB wants.
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
    /// Compares with what a command wants; also for a further object that the command reaches.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn permit(&self, need: &Need, facts: &dyn Facts) -> Result<Permit, Denial> {
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
        // A user object that is not there has neither: its client must hear that, after a device lost what it had not made
        // durable. What cannot be read is refused. The permit then says that it is for nothing, and nothing may run by it:
        // an object could be made in the meantime.
        let asked = capability.object_created_ms != 0 || scope.policy_access_tag != 0;
        let lost = asked && capability.object_type == ObjectType::User && facts.is_absent(need.subject);
        if asked && !lost {
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

    fn object_type(&self, need: &Need, facts: &dyn Facts) -> Result<(), Denial> {
        let claimed = self.0.object_type;
        let possible = need.types.contains(&claimed);
        let told = need.types.len() == 1
            || facts.object(need.object).is_none_or(|ObjectFacts { kind, .. }| kind == claimed);
        if possible && told { Ok(()) } else { Err(Denial::ObjectType) }
    }
}

/// Numbers of the User Object Information page that reveal the length: used capacity, logical length, data space, and
/// the page as a whole.
const LENGTH_NUMBERS: [u32; 5] = [
    user_information::USED_CAPACITY.number,
    user_information::LOGICAL_LENGTH.number,
    user_information::ACTUAL_DATA_SPACE.number,
    user_information::RESERVED_DATA_SPACE.number,
    u32::MAX,
];

/// Pages whose attributes need POL/SEC besides: Policy/Security of every object type (t10-osd 3.1, 4.2).
pub const POLICY_SECURITY_PAGES: [u32; 4] = [0x9000_0005, 0x3000_0005, 0x6000_0005, 0x0000_0005];
/// Our own page with frozen audit values: POL/SEC besides.
const FROZEN_AUDITS_PAGE: u32 = 0x9000_F005;
/// Our own page with an object's least method: POL/SEC besides (security.md 4.4).
pub const MINIMUM_METHOD_PAGE: u32 = 0x0000_F001;
/// Attributes Access of a partition: what capabilities may reach follows from it, so POL/SEC besides to be set.
const ATTRIBUTES_ACCESS_PAGE: u32 = 0x3000_0004;
/// Pages whose attributes need OBJ_MGMT besides to be set: Quotas of root, partition and user object.
pub const QUOTAS_PAGES: [u32; 3] = [0x9000_0002, 0x3000_0002, 0x0000_0002];

/// The right to run one command on one object: what handlers take.
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
    /// The object; number 0 where a create lets the device choose.
    #[must_use]
    pub const fn object(&self) -> ObjectId {
        self.object
    }

    /// Was the object not there, so that neither its created time nor its tag was compared? Then the command ends by
    /// saying so, whatever is there when it would run.
    #[must_use]
    pub const fn is_for_nothing(&self) -> bool {
        self.lost
    }

    /// Layout of the capability, for field pointers of a later [`Denial`].
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// By which method the command came.
    #[must_use]
    pub const fn method(&self) -> SecurityMethod {
        self.method
    }

    /// Does it grant every one of these bits?
    #[must_use]
    pub const fn allows(&self, permissions: Permissions) -> bool {
        self.permissions.contains(permissions)
    }

    /// Compares the allowed range with the bytes that a command needs. A scatter/gather list is compared later.
    fn check_bytes(&mut self, need: &Need, facts: &dyn Facts) -> Result<(), Denial> {
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

    /// Whether the capability leaves any byte out.
    const fn is_restricted(&self) -> bool {
        !self.range.permits(0, u64::MAX)
    }

    /// May these bytes be touched? For every entry of a scatter/gather list.
    ///
    /// # Errors
    /// [`Denial::Range`].
    pub const fn check_range(&self, start: u64, length: u64) -> Result<(), Denial> {
        if self.range.permits(start, length) { Ok(()) } else { Err(Denial::Range) }
    }

    /// May this attribute be retrieved? For every one that is asked for by name; of a wildcard the refused ones are
    /// left out.
    ///
    /// # Errors
    /// [`Denial::Permission`], [`Denial::AttributesAccess`], [`Denial::Range`] for what reveals the length of the object
    /// to a capability for a part of it.
    pub fn check_get(&self, attribute: AttributeId, facts: &dyn Facts) -> Result<(), Denial> {
        self.check_attribute(attribute, Permissions::GET_ATTR, facts)?;
        self.check_length_shown(attribute)
    }

    fn check_length_shown(&self, attribute: AttributeId) -> Result<(), Denial> {
        let shows = attribute.page == user_information::PAGE && LENGTH_NUMBERS.contains(&attribute.number);
        if shows && self.is_restricted() { Err(Denial::Range) } else { Ok(()) }
    }

    /// May this attribute be compared with bounds, by a command that needs no right to retrieve any? The access list of
    /// the capability binds it all the same: comparing tells what a value is.
    ///
    /// # Errors
    /// [`Denial::AttributesAccess`], [`Denial::Range`].
    pub fn check_compared(&self, attribute: AttributeId, facts: &dyn Facts) -> Result<(), Denial> {
        self.check_length_shown(attribute)?;
        self.check_listed(attribute, facts)
    }

    fn check_listed(&self, attribute: AttributeId, facts: &dyn Facts) -> Result<(), Denial> {
        if self.attributes_access != 0
            && !facts.attribute_allowed(self.object.partition, self.attributes_access, attribute)
        {
            return Err(Denial::AttributesAccess);
        }
        Ok(())
    }

    /// May this attribute be set? Ask for all of a list before anything is changed. Policy pages are not set by
    /// CAPKEY, which protects no list; by NOSEC only where the administrator wants no security at all.
    ///
    /// # Errors
    /// [`Denial::Permission`], [`Denial::AttributesAccess`], [`Denial::BelowFloor`], [`Denial::Range`] for a logical
    /// length that truncates or extends bytes outside the range.
    pub fn check_set(&self, attribute: AttributeId, value: &[u8], facts: &dyn Facts) -> Result<(), Denial> {
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

    /// The range must cover every byte between the logical length and the new one.
    fn check_resize(&self, value: &[u8], facts: &dyn Facts) -> Result<(), Denial> {
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
        facts: &dyn Facts,
    ) -> Result<(), Denial> {
        let needed = if guarded(attribute.page) { access.union(Permissions::POL_SEC) } else { access };
        if !self.allows(needed) {
            return Err(Denial::Permission);
        }
        self.check_listed(attribute, facts)
    }
}

/// Does POL/SEC guard the page?
fn guarded(page: u32) -> bool {
    POLICY_SECURITY_PAGES.contains(&page) || page == MINIMUM_METHOD_PAGE || page == FROZEN_AUDITS_PAGE
}
