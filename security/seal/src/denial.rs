//! Why a command was refused, and what is reported to the initiator.
//!
//! Does: has one variant per reason, a name for audit and metrics, sense data.
//! Does not: decide.
//! Contract: until possession of a credential is proven, the initiator receives INVALID FIELD IN
//! CDB without a field pointer, whatever the reason; afterwards pointers name the field. No `_`
//! arm: a new reason must choose what is reported.
//! Source of truth: docs/design/security.md 3.3 (sense table, pointers); t10-osd 4.5, 5.3.

use sealstone_osd::capability::offset;
use sealstone_osd::cdb::pointer;
use sealstone_osd::{CapabilityError, Generation, SecurityMethod};
use sealstone_scsi::{AdditionalSense, FieldPointer, Sense, SenseKey, Status, additional};
use thiserror::Error;

use crate::freshness::NonceError;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Denial {
    /// The capability cannot be parsed, or is of the other generation.
    #[error("capability: {0}")]
    Capability(CapabilityError),
    /// CAPABILITY FORMAT is that of the other generation.
    #[error("capability format is not that of the CDB")]
    Format,
    /// Reserved bits of the capability are set.
    #[error("reserved bits of the capability are set")]
    Reserved,
    /// The method is weaker than the policy requires.
    #[error("method {method} is below the required {floor}")]
    BelowFloor {
        /// The capability's method.
        method: SecurityMethod,
        /// The device's floor.
        floor: SecurityMethod,
    },
    /// The capability is not sealed although the device requires it, was changed, or was sealed
    /// under another key.
    #[error("the capability's seal is missing or broken")]
    Seal,
    /// The CDB is not concealed although the device requires it, is concealed although it does not,
    /// or has no valid code word.
    #[error("the method is not concealed as this device requires")]
    Concealment,
    /// The capability's algorithm slot is empty, or its tags do not fit this generation's fields.
    #[error("no usable algorithm in slot {0}")]
    Algorithm(u8),
    /// The key for the capability's signature is not set.
    #[error("the signing key is not set")]
    KeyUnknown,
    /// CAPKEY on a nexus without a security token.
    #[error("the nexus has no security token")]
    NoToken,
    /// The request's check value is wrong.
    #[error("request integrity check value is wrong")]
    RequestIcv,
    /// This request was seen before.
    #[error("nonce not unique")]
    Replayed,
    /// The nonce's time is not within the window.
    #[error("nonce timestamp out of range")]
    OutOfWindow {
        /// The device's clock, milliseconds since 1970: the client corrects its estimate.
        clock_ms: u64,
    },
    /// The nonce memory of that second is full.
    #[error("nonce memory full")]
    NonceFull,
    /// This credential used up its share of that second.
    #[error("too many requests of one credential in one second")]
    NonceShare,
    /// The working key is frozen.
    #[error("working key frozen")]
    KeyFrozen,
    /// The capability's audit value is frozen.
    #[error("audit value frozen")]
    AuditFrozen,
    /// The capability has expired.
    #[error("capability expired")]
    Expired,
    /// Issued for another start of the device.
    #[error("boot epoch differs")]
    BootEpoch,
    /// The capability is for another type of object.
    #[error("object type differs")]
    ObjectType,
    /// The descriptor does not fit the object type.
    #[error("descriptor does not fit the object type")]
    DescriptorType,
    /// The capability is for another partition.
    #[error("partition differs")]
    Partition,
    /// The capability is for another object.
    #[error("object differs")]
    Object,
    /// The object is not the one that the capability was issued for: its created time differs.
    #[error("object created time differs")]
    CreatedTime,
    /// The object's policy access tag changed.
    #[error("policy access tag differs")]
    PolicyAccessTag,
    /// The bytes are outside the allowed range.
    #[error("outside the allowed range")]
    Range,
    /// A permission is missing.
    #[error("permission missing")]
    Permission,
    /// The attribute is not in the list that the capability refers to.
    #[error("attribute not in the allowed list")]
    AttributesAccess,
    /// The check value of the CDB continuation segment is wrong.
    #[error("continuation segment integrity check value is wrong")]
    ContinuationIcv,
    /// A part of the Data-Out Buffer is missing or overlaps another.
    #[error("data-out layout")]
    DataOutLayout,
    /// The location of the data-out integrity information is missing, outside the buffer, or
    /// overlaps another part.
    #[error("data-out integrity check value offset")]
    DataOutIcvOffset,
    /// The location of the data-in integrity information is missing or overlaps another part.
    #[error("data-in integrity check value offset")]
    DataInIcvOffset,
    /// The data-out check value is wrong.
    #[error("data-out integrity check value is wrong")]
    DataOutIcv,
}

impl Denial {
    /// Returns a short stable name, for audit records and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Capability(_) => "capability",
            Self::Format => "format",
            Self::Reserved => "reserved",
            Self::BelowFloor { .. } => "below_floor",
            Self::Seal => "seal",
            Self::Concealment => "concealment",
            Self::Algorithm(_) => "algorithm",
            Self::KeyUnknown => "key_unknown",
            Self::NoToken => "no_token",
            Self::RequestIcv => "request_icv",
            Self::Replayed => "replayed",
            Self::OutOfWindow { .. } => "out_of_window",
            Self::NonceFull => "nonce_full",
            Self::NonceShare => "nonce_share",
            Self::KeyFrozen => "key_frozen",
            Self::AuditFrozen => "audit_frozen",
            Self::Expired => "expired",
            Self::BootEpoch => "boot_epoch",
            Self::ObjectType => "object_type",
            Self::DescriptorType => "descriptor_type",
            Self::Partition => "partition",
            Self::Object => "object",
            Self::CreatedTime => "created_time",
            Self::PolicyAccessTag => "policy_access_tag",
            Self::Range => "range",
            Self::Permission => "permission",
            Self::AttributesAccess => "attributes_access",
            Self::ContinuationIcv => "continuation_icv",
            Self::DataOutLayout => "data_out_layout",
            Self::DataOutIcvOffset => "data_out_icv_offset",
            Self::DataInIcvOffset => "data_in_icv_offset",
            Self::DataOutIcv => "data_out_icv",
        }
    }

    /// Whether possession of the credential was proven before this refusal.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        match self {
            Self::Capability(_)
            | Self::Format
            | Self::Reserved
            | Self::BelowFloor { .. }
            | Self::Seal
            | Self::Concealment
            | Self::Algorithm(_)
            | Self::KeyUnknown
            | Self::NoToken
            | Self::RequestIcv => false,
            Self::Replayed
            | Self::OutOfWindow { .. }
            | Self::NonceFull
            | Self::NonceShare
            | Self::KeyFrozen
            | Self::AuditFrozen
            | Self::Expired
            | Self::BootEpoch
            | Self::ObjectType
            | Self::DescriptorType
            | Self::Partition
            | Self::Object
            | Self::CreatedTime
            | Self::PolicyAccessTag
            | Self::Range
            | Self::Permission
            | Self::AttributesAccess
            | Self::ContinuationIcv
            | Self::DataOutLayout
            | Self::DataOutIcvOffset
            | Self::DataInIcvOffset
            | Self::DataOutIcv => true,
        }
    }

    /// Whether only the bearer of the credential can have caused it. False for refusals that a
    /// replay of a recorded command causes.
    #[must_use]
    pub const fn is_bearers(&self) -> bool {
        self.is_proven()
            && !matches!(self, Self::Replayed | Self::OutOfWindow { .. } | Self::NonceFull | Self::NonceShare)
    }

    /// Returns the status of the reply: TASK SET FULL where a later retry helps, CHECK CONDITION
    /// otherwise.
    #[must_use]
    pub const fn status(&self) -> Status {
        if matches!(self, Self::NonceFull | Self::NonceShare) {
            Status::TaskSetFull
        } else {
            Status::CheckCondition
        }
    }

    /// Returns the additional sense code.
    #[must_use]
    pub const fn code(&self) -> AdditionalSense {
        match self {
            Self::Replayed => additional::NONCE_NOT_UNIQUE,
            Self::OutOfWindow { .. } => additional::NONCE_TIMESTAMP_OUT_OF_RANGE,
            Self::KeyFrozen => additional::SECURITY_WORKING_KEY_FROZEN,
            Self::AuditFrozen => additional::SECURITY_AUDIT_VALUE_FROZEN,
            Self::DataOutIcv => additional::INVALID_DATA_OUT_BUFFER_ICV,
            Self::NonceFull | Self::NonceShare => additional::NO_ADDITIONAL_SENSE,
            Self::Capability(_)
            | Self::Format
            | Self::Reserved
            | Self::BelowFloor { .. }
            | Self::Seal
            | Self::Concealment
            | Self::Algorithm(_)
            | Self::KeyUnknown
            | Self::NoToken
            | Self::RequestIcv
            | Self::Expired
            | Self::BootEpoch
            | Self::ObjectType
            | Self::DescriptorType
            | Self::Partition
            | Self::Object
            | Self::CreatedTime
            | Self::PolicyAccessTag
            | Self::Range
            | Self::Permission
            | Self::AttributesAccess
            | Self::ContinuationIcv
            | Self::DataOutLayout
            | Self::DataOutIcvOffset
            | Self::DataInIcvOffset => additional::INVALID_FIELD_IN_CDB,
        }
    }

    /// Returns the offset of the wrong CDB byte; `None` if it must not be reported, or the error is
    /// not in a field.
    #[must_use]
    pub const fn field_pointer(&self, generation: Generation) -> Option<u16> {
        let field = match self {
            Self::Capability(_)
            | Self::Format
            | Self::Reserved
            | Self::BelowFloor { .. }
            | Self::Seal
            | Self::Concealment
            | Self::Algorithm(_)
            | Self::KeyUnknown
            | Self::NoToken
            | Self::RequestIcv
            | Self::Replayed
            | Self::OutOfWindow { .. }
            | Self::NonceFull
            | Self::NonceShare
            | Self::KeyFrozen
            | Self::AuditFrozen
            | Self::DataOutIcv => return None,
            Self::ContinuationIcv => return Some(pointer::CONTINUATION),
            Self::DataOutLayout => return Some(pointer::ATTRIBUTES),
            Self::DataOutIcvOffset => return Some(pointer::data_out_icv_offset(generation)),
            Self::DataInIcvOffset => return Some(pointer::data_in_icv_offset(generation)),
            Self::Expired => offset::EXPIRATION,
            Self::BootEpoch => offset::BOOT_EPOCH,
            Self::ObjectType => offset::OBJECT_TYPE,
            Self::DescriptorType => offset::DESCRIPTOR_TYPE,
            Self::Partition => generation.select(offset::PARTITION),
            Self::Object => generation.select(offset::OBJECT),
            Self::CreatedTime => offset::CREATED,
            Self::PolicyAccessTag => generation.select(offset::POLICY_ACCESS_TAG),
            Self::Range => offset::RANGE,
            Self::Permission => offset::PERMISSIONS,
            Self::AttributesAccess => offset::ATTRIBUTES_ACCESS,
        };
        Some(pointer::CAPABILITY + field)
    }

    /// Returns the sense data; `None` with status TASK SET FULL, which carries none.
    #[must_use]
    pub fn sense(&self, generation: Generation) -> Option<Sense> {
        if !matches!(self.status(), Status::CheckCondition) {
            return None;
        }
        let sense = Sense::new(SenseKey::IllegalRequest, self.code());
        let sense = match self.field_pointer(generation) {
            Some(at) => sense.with_field(FieldPointer::cdb(at)),
            None => sense,
        };
        let information = if let Self::OutOfWindow { clock_ms } = self { Some(*clock_ms) } else { None };
        Some(Sense { information, ..sense })
    }
}

impl Denial {
    pub(crate) const fn of_nonce(error: NonceError, clock_ms: u64) -> Self {
        match error {
            NonceError::Replayed => Self::Replayed,
            NonceError::OutOfWindow => Self::OutOfWindow { clock_ms },
            NonceError::Full => Self::NonceFull,
            NonceError::Share => Self::NonceShare,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const CLOCK: u64 = 5;
    const ALL: [Denial; 32] = [
        Denial::Capability(CapabilityError::Absent),
        Denial::Format,
        Denial::Reserved,
        Denial::BelowFloor { method: SecurityMethod::NoSec, floor: SecurityMethod::CmdRsp },
        Denial::Seal,
        Denial::Concealment,
        Denial::Algorithm(3),
        Denial::KeyUnknown,
        Denial::NoToken,
        Denial::RequestIcv,
        Denial::Replayed,
        Denial::OutOfWindow { clock_ms: CLOCK },
        Denial::NonceFull,
        Denial::NonceShare,
        Denial::KeyFrozen,
        Denial::AuditFrozen,
        Denial::Expired,
        Denial::BootEpoch,
        Denial::ObjectType,
        Denial::DescriptorType,
        Denial::Partition,
        Denial::Object,
        Denial::CreatedTime,
        Denial::PolicyAccessTag,
        Denial::Range,
        Denial::Permission,
        Denial::AttributesAccess,
        Denial::ContinuationIcv,
        Denial::DataOutLayout,
        Denial::DataOutIcvOffset,
        Denial::DataInIcvOffset,
        Denial::DataOutIcv,
    ];

    #[test]
    fn every_reason_has_its_own_name() {
        let names: BTreeSet<_> = ALL.iter().map(Denial::name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    /// An initiator that proved nothing cannot distinguish the reasons.
    #[test]
    fn unauthenticated_refusals_are_indistinguishable() {
        for generation in [Generation::Osd1, Generation::Osd2] {
            let senses: BTreeSet<_> = ALL
                .iter()
                .filter(|denial| !denial.is_proven())
                .map(|denial| denial.sense(generation).map(|sense| sense.encode()))
                .collect();
            assert_eq!(senses.len(), 1);
            let all = ALL.iter().filter_map(|denial| denial.sense(generation));
            assert!(all.clone().all(|sense| sense.key == SenseKey::IllegalRequest));
            assert_eq!(all.filter_map(|sense| sense.information).collect::<std::vec::Vec<_>>(), [CLOCK]);
        }
    }

    /// The generations have the fields at different offsets.
    #[test]
    fn pointers_follow_the_generation() {
        for (denial, osd1, osd2) in [
            (Denial::Permission, 129, 129),
            (Denial::PolicyAccessTag, 136, 140),
            (Denial::Partition, 140, 152),
            (Denial::Object, 148, 160),
            (Denial::DataOutIcvOffset, 196, 232),
            (Denial::DataInIcvOffset, 192, 228),
        ] {
            assert_eq!(denial.field_pointer(Generation::Osd1), Some(osd1), "{denial}");
            assert_eq!(denial.field_pointer(Generation::Osd2), Some(osd2), "{denial}");
        }
    }
}
