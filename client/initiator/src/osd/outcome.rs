//! From the bytes that came back to what happened: check values verified, sense data understood.
//!
//! Does: decide what an answer proves. Does not: retry; `client` does.
//! Contract: under CMDRSP and ALLDATA a success, and every refusal that changes what a caller believes about data,
//! counts only with the right check value. What counts without one is listed in [`Heard::Unsigned`].
//! Truth: security.md §3.2–3.4; t10-osd §1.10, §5.

use sealstone_osd::Generation;
use sealstone_osd::cdb::pointer;
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, Status, additional};
use sealstone_seal::signer::{Reply, ReplyError, Signed};

use super::bearer::Bearer;
use crate::{Operation, OsdError, ScsiResponse};

/// What an answer says.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Done.
    Done(Parts),
    /// Done as far as the object goes: READ beyond the end. The number of bytes that are there.
    Short(Parts, u64),
    /// Refused or failed; final unless the caller knows better.
    Failed(OsdError),
    /// The nonce's time was off; the sense data is proven and tells the device's clock.
    Skewed(Sense),
    /// The nonce was seen before.
    Replayed,
    /// Not now; `proven` if the device itself said so.
    Busy {
        /// May it be believed that nothing was done?
        proven: bool,
    },
    /// A unit attention: something happened before this command, which was not run.
    Attention {
        /// May it be believed that nothing was done?
        proven: bool,
    },
}

/// The parts of a verified answer.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Command data.
    pub(crate) data: Vec<u8>,
    /// Retrieved attributes list.
    pub(crate) attributes: Vec<u8>,
}

/// Understands the answer to one command.
pub(crate) fn hear(bearer: &Bearer, signed: &Signed, operation: &Operation, response: ScsiResponse) -> Heard {
    let Some(status) = Status::from_byte(response.status) else {
        return Heard::Failed(OsdError::Malformed("an unknown status"));
    };
    let ScsiResponse { sense, mut data_in, .. } = response;
    let reply = Reply { status: status.byte(), sense: &sense, data_in: &data_in };
    let (parts, proven) = match bearer.signer().verify(signed, &reply) {
        Ok(checked) => {
            // Command data begins the buffer, so the buffer itself is handed on.
            let (length, attributes) = (checked.data.len(), checked.attributes.to_vec());
            data_in.truncate(length);
            (Parts { data: data_in, attributes }, true)
        }
        Err(ReplyError::Unsealed(_)) if status != Status::Good => (Parts::default(), false),
        Err(error) => return Heard::Failed(OsdError::IntegrityFailure(wrong(error))),
    };
    match status {
        Status::Good => Heard::Done(parts),
        Status::Busy | Status::TaskSetFull => Heard::Busy { proven },
        Status::CheckCondition => check(bearer.generation(), operation, &sense, parts, proven),
        Status::ConditionMet | Status::ReservationConflict | Status::AcaActive | Status::TaskAborted => {
            Heard::Failed(OsdError::UnexpectedStatus { status })
        }
    }
}

const fn wrong(error: ReplyError) -> &'static str {
    match error {
        ReplyError::Unsealed(_) => "GOOD without a check value",
        ReplyError::ResponseIcv => "the check value of status and sense is wrong",
        ReplyError::DataInMissing => "data without a check value",
        ReplyError::DataInIcv => "the check value of the data is wrong",
    }
}

fn check(generation: Generation, operation: &Operation, sense: &[u8], parts: Parts, proven: bool) -> Heard {
    let Ok(sense) = Sense::parse(sense) else {
        return Heard::Failed(OsdError::Malformed("sense data"));
    };
    if sense.key == SenseKey::UnitAttention {
        return Heard::Attention { proven };
    }
    let error = match (sense.key, sense.code) {
        (SenseKey::RecoveredError, additional::READ_PAST_END_OF_USER_OBJECT) => {
            if !proven {
                return Heard::Failed(OsdError::IntegrityFailure("an end of object without a check value"));
            }
            return Heard::Short(parts, sense.command_specific.unwrap_or(0));
        }
        (SenseKey::RecoveredError | SenseKey::NoSense, _) if proven => return Heard::Done(parts),
        (_, additional::NONCE_TIMESTAMP_OUT_OF_RANGE) if proven => return Heard::Skewed(sense),
        (_, additional::NONCE_TIMESTAMP_OUT_OF_RANGE) => OsdError::ClockSkew { skew_ms: 0 },
        (_, additional::NONCE_NOT_UNIQUE) => return Heard::Replayed,
        (SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB) => {
            let field = sense.field.filter(|field| field.in_cdb).map(|field| field.byte);
            refused(generation, operation, field)
        }
        (key, code) => failed(key, code, operation),
    };
    if !proven && changes_beliefs(&error) {
        return Heard::Failed(OsdError::IntegrityFailure("a refusal without a check value"));
    }
    Heard::Failed(error)
}

/// Would a caller conclude something about stored data from it? An attacker must not be able to say such things.
const fn changes_beliefs(error: &OsdError) -> bool {
    matches!(error, OsdError::NotFound | OsdError::Exists | OsdError::NotEmpty | OsdError::ReadPastEnd { .. })
}

/// INVALID FIELD IN CDB says everything through its field pointer; without one it is about the credential.
fn refused(generation: Generation, operation: &Operation, field: Option<u16>) -> OsdError {
    let Some(field) = field else { return OsdError::AccessDenied { field } };
    if field >= pointer::CAPABILITY {
        return OsdError::AccessDenied { field: Some(field) };
    }
    let creates_partition = matches!(operation, Operation::CreatePartition { .. });
    let creates = matches!(operation, Operation::Create { .. } | Operation::CreateAndWrite { .. });
    match field {
        pointer::PARTITION if creates_partition => OsdError::Exists,
        pointer::OBJECT if creates => OsdError::Exists,
        pointer::PARTITION | pointer::OBJECT => OsdError::NotFound,
        // A READ that begins behind the end.
        _ if field == pointer::start(generation) && matches!(operation, Operation::Read { .. }) => {
            OsdError::ReadPastEnd { data: Vec::new() }
        }
        _ => OsdError::InvalidField { field },
    }
}

fn failed(key: SenseKey, sense: AdditionalSense, operation: &Operation) -> OsdError {
    match (key, sense) {
        (_, additional::SECURITY_WORKING_KEY_FROZEN | additional::SECURITY_AUDIT_VALUE_FROZEN) => {
            OsdError::KeyFrozen
        }
        (_, additional::INVALID_DATA_OUT_BUFFER_ICV) => OsdError::DataOutAltered,
        (_, additional::QUOTA_ERROR | additional::SPACE_ALLOCATION_FAILED) => OsdError::NoSpace,
        (_, additional::CONTAINS_USER_OBJECTS) => OsdError::NotEmpty,
        (_, additional::INVALID_COMMAND_OPERATION_CODE) => OsdError::NotImplemented(operation.name()),
        (SenseKey::IllegalRequest, _) => OsdError::InvalidParameter { sense },
        (SenseKey::NotReady, _) => OsdError::NotReady(sense),
        (SenseKey::MediumError, _) => OsdError::Medium(sense),
        (key, sense) => OsdError::DeviceFailed { key, sense },
    }
}
