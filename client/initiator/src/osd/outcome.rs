//! Decoding of responses: verifies check values and interprets sense data.
//!
//! Does: decides what a response proves.
//! Does not: retry; `client` does.
//! Contract: under CMDRSP and ALLDATA, a success, and every refusal that changes what a caller
//! believes about data, counts only with a valid check value.
//! Truth: docs/design/security.md §3.2–3.4; t10-osd §1.10, §5.

use sealstone_osd::Generation;
use sealstone_osd::cdb::pointer;
use sealstone_osd::function::ExecuteRequest;
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, Status, additional};
use sealstone_seal::ReceivedDigests;
use sealstone_seal::signer::{ReceivedReply, ReplyError, SignedCommand};

use super::bearer::Bearer;
use crate::{Operation, OsdError, ScsiResponse};

/// The outcome of a command according to its response.
#[derive(Debug)]
pub(crate) enum ResponseOutcome {
    /// The command succeeded.
    Done(Parts),
    /// READ beyond the end of the object; with the number of existing bytes.
    Short(Parts, u64),
    /// Refused or failed; final unless the caller knows better.
    Failed(OsdError),
    /// Status and sense are authenticated, but the data do not match the stored digests: the medium
    /// or the transport changed them.
    WrongData(&'static str),
    /// The nonce's time was out of range; the sense data is authenticated and has the device's
    /// clock.
    Skewed(Sense),
    /// The nonce was used before.
    Replayed,
    /// The device is not ready until its clock is right; it reports that before it checks the
    /// command.
    NotReady(AdditionalSense),
    /// The device is busy.
    Busy {
        /// Whether it is authenticated that the command was not executed.
        proven: bool,
    },
    /// A unit attention: the command was not executed because of an earlier event.
    Attention {
        /// Whether it is authenticated that the command was not executed.
        proven: bool,
    },
}

/// The parts of a verified response.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Command data.
    pub(crate) data: Vec<u8>,
    /// Retrieved attributes list.
    pub(crate) attributes: Vec<u8>,
}

/// Fields of descriptor FF01h in the continuation segment.
const FUNCTION_REQUEST_AT: u16 = 48;
const FUNCTION_OPERATION_AT: u16 = 49;
const FUNCTION_ENGINE_AT: u16 = 50;
const FUNCTION_API_AT: u16 = 52;
const FUNCTION_JOB_AT: u16 = 80;
const FUNCTION_DIGEST_AT: u16 = 96;
/// Bytes of the segment: the descriptor 0003h, and its CODE BUNDLE OBJECT_ID.
const PAPER_DESCRIPTOR_AT: u16 = 40;
const PAPER_CODE_BUNDLE_AT: u16 = 48;

/// Decodes the response to one command.
///
/// `arrived` has the digests of the data received so far.
pub(crate) fn decode_response(
    bearer: &Bearer,
    signed: &SignedCommand,
    operation: &Operation,
    response: ScsiResponse,
    arrived: Option<&ReceivedDigests>,
) -> ResponseOutcome {
    let Some(status) = Status::from_byte(response.status) else {
        return ResponseOutcome::Failed(OsdError::Malformed("an unknown status"));
    };
    let ScsiResponse { sense, mut data_in, .. } = response;
    let reply = ReceivedReply { status: status.byte(), sense: &sense, data_in: &data_in };
    let (parts, proven) = match bearer.signer().verify_arrived(signed, &reply, arrived) {
        Ok(checked) => {
            // Command data is at the start of the buffer, so the buffer itself is returned.
            let (length, attributes) = (checked.data.len(), checked.attributes.to_vec());
            data_in.truncate(length);
            (Parts { data: data_in, attributes }, true)
        }
        Err(ReplyError::Unsealed(_)) if status != Status::Good => (Parts::default(), false),
        Err(error @ (ReplyError::DataInIcv | ReplyError::DataInMissing)) => {
            return ResponseOutcome::WrongData(wrong(error));
        }
        Err(error) => return ResponseOutcome::Failed(OsdError::IntegrityFailure(wrong(error))),
    };
    match status {
        Status::Good => ResponseOutcome::Done(parts),
        Status::Busy | Status::TaskSetFull => ResponseOutcome::Busy { proven },
        Status::CheckCondition => check(bearer.generation(), operation, &sense, parts, proven),
        Status::ConditionMet | Status::ReservationConflict | Status::AcaActive | Status::TaskAborted => {
            ResponseOutcome::Failed(OsdError::UnexpectedStatus { status })
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

fn check(
    generation: Generation,
    operation: &Operation,
    sense: &[u8],
    parts: Parts,
    proven: bool,
) -> ResponseOutcome {
    let Ok(sense) = Sense::parse(sense) else {
        return ResponseOutcome::Failed(OsdError::Malformed("sense data"));
    };
    if sense.key == SenseKey::UnitAttention {
        return ResponseOutcome::Attention { proven };
    }
    let error = match (sense.key, sense.code) {
        (SenseKey::RecoveredError, additional::READ_PAST_END_OF_USER_OBJECT) => {
            if !proven {
                return ResponseOutcome::Failed(OsdError::IntegrityFailure(
                    "an end of object without a check value",
                ));
            }
            return ResponseOutcome::Short(parts, sense.command_specific.unwrap_or(0));
        }
        (SenseKey::RecoveredError | SenseKey::NoSense, _) if proven => return ResponseOutcome::Done(parts),
        (_, additional::NONCE_TIMESTAMP_OUT_OF_RANGE) if proven => return ResponseOutcome::Skewed(sense),
        (_, additional::NONCE_TIMESTAMP_OUT_OF_RANGE) => OsdError::ClockSkew { skew_ms: None },
        (_, additional::NONCE_NOT_UNIQUE) => return ResponseOutcome::Replayed,
        // It starts, or its clock is wrong.
        (
            SenseKey::NotReady,
            code @ (additional::BECOMING_READY | additional::MANUAL_INTERVENTION_REQUIRED),
        ) => return ResponseOutcome::NotReady(code),
        (SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB) => {
            let field = sense.field.filter(|field| field.in_cdb).map(|field| field.byte);
            match sense.field.filter(|field| !field.in_cdb) {
                Some(at) => refused_function(operation, at.byte),
                None => refused(generation, operation, field),
            }
        }
        (SenseKey::MediumError, code) => OsdError::Medium { sense: code, offset: sense.information },
        (key, code) => failed(key, code, operation),
    };
    if !proven && changes_beliefs(&error) {
        return ResponseOutcome::Failed(OsdError::IntegrityFailure("a refusal without a check value"));
    }
    ResponseOutcome::Failed(error)
}

/// Whether a caller would conclude something about stored data from the error. An attacker must not
/// be able to forge these.
const fn changes_beliefs(error: &OsdError) -> bool {
    matches!(
        error,
        OsdError::NotFound
            | OsdError::Exists
            | OsdError::NotEmpty
            | OsdError::ReadPastEnd { .. }
            | OsdError::Medium { .. }
    )
}

/// Decodes INVALID FIELD IN CDB by its field pointer; without one it is about the credential.
fn refused(generation: Generation, operation: &Operation, field: Option<u16>) -> OsdError {
    let Some(field) = field else { return OsdError::AccessDenied { field } };
    // A refusal of an extension capability points at the length of the segment that has it.
    let is_extension = field == pointer::CONTINUATION && generation == Generation::Osd2;
    if field >= pointer::CAPABILITY || is_extension {
        return OsdError::AccessDenied { field: Some(field) };
    }
    let creates_partition = match operation {
        Operation::CreatePartition { .. } => true,
        Operation::CreateWith { object, .. } => object.is_partition(),
        _ => false,
    };
    let creates = match operation {
        Operation::Create { .. } | Operation::CreateWith { .. } | Operation::CreateAndWrite { .. } => true,
        Operation::Collection(what) => what.made().is_some(),
        _ => false,
    };
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

/// Decodes INVALID FIELD IN CDB that points into the continuation segment.
fn refused_function(operation: &Operation, at: u16) -> OsdError {
    match (operation, at) {
        (Operation::ExecuteFunction { .. }, FUNCTION_ENGINE_AT | FUNCTION_API_AT) => {
            OsdError::FunctionUnsupported
        }
        // A request about a job is subject to no policy.
        (Operation::ExecuteFunction { request, .. }, FUNCTION_OPERATION_AT)
            if matches!(**request, ExecuteRequest::Run(_)) =>
        {
            OsdError::FunctionExcluded
        }
        (Operation::ExecutePaperFunction { .. }, FUNCTION_OPERATION_AT) => OsdError::FunctionExcluded,
        (Operation::ExecutePaperFunction { .. }, PAPER_DESCRIPTOR_AT) => {
            OsdError::NotImplemented("descriptor 0003h of the ASF paper")
        }
        (Operation::ExecutePaperFunction { .. }, PAPER_CODE_BUNDLE_AT) => OsdError::CodeMismatch,
        (Operation::ExecuteFunction { .. }, FUNCTION_JOB_AT) => OsdError::UnknownJob,
        (Operation::ExecuteFunction { .. }, FUNCTION_DIGEST_AT) => OsdError::CodeMismatch,
        // Both sides agree on the rules, so the device does not know the value of the field.
        (Operation::ExecuteFunction { .. }, at) if at >= FUNCTION_REQUEST_AT => {
            OsdError::FunctionRequestUnknown { at: at - FUNCTION_REQUEST_AT }
        }
        _ => OsdError::AccessDenied { field: None },
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
        (key, sense) => OsdError::DeviceFailed { key, sense },
    }
}

#[cfg(test)]
mod tests {
    use super::super::assemble::assemble;
    use super::super::translate::draft;
    use super::*;
    use crate::SystemEnvironment;
    use bytes::Bytes;
    use proptest::prelude::*;
    use sealstone_osd::capability::{Range, Scope};
    use sealstone_osd::function::{JobAction, JobId, JobRequest};
    use sealstone_osd::{Capability, Descriptor, ObjectId, ObjectType, Permissions, SecurityMethod};
    use sealstone_scsi::FieldPointer;
    use sealstone_seal::algorithm::preferred_slot;

    const OBJECT: ObjectId = ObjectId::new(0x1_0000, 0x1_0000);

    fn bearer(method: SecurityMethod) -> Bearer {
        let capability = Capability {
            generation: Generation::Osd2,
            format: Generation::Osd2,
            key_version: 1,
            icv_algorithm: preferred_slot(Generation::Osd2, method),
            method,
            expires_ms: 0,
            audit: [0; 20],
            discriminator: [7; 12],
            object_created_ms: 0,
            object_type: ObjectType::User,
            permissions: Permissions::READ,
            descriptor: Descriptor::User { scope: Scope::default(), allowed: OBJECT, range: Range::ALL },
        };
        Bearer::new(&capability.encode(), &[5; 32]).unwrap()
    }

    fn read() -> Operation {
        Operation::Read { object: OBJECT, offset: 0, length: 100, buffer: Vec::new() }
    }

    fn create() -> Operation {
        Operation::CreateAndWrite { object: OBJECT, offset: 0, data: Bytes::from_static(b"x") }
    }

    /// Returns the outcome of a response from a peer without the key.
    fn forged(
        method: SecurityMethod,
        operation: &Operation,
        status: Status,
        sense: Option<Sense>,
    ) -> ResponseOutcome {
        let bearer = bearer(method);
        let draft = draft(Generation::Osd2, operation).unwrap();
        let sent = assemble(&bearer, &draft, 1_800_000_000_000, None, &SystemEnvironment).unwrap();
        let response = ScsiResponse {
            status: status.byte(),
            sense: sense.map(|sense| sense.encode()).unwrap_or_default(),
            data_in: vec![0xEE; usize::try_from(sent.signed.data_in_len).unwrap()],
            read_residual: crate::Residual::None,
            write_residual: crate::Residual::None,
        };
        decode_response(&bearer, &sent.signed, operation, response, None)
    }

    fn invalid_field(at: u16) -> Sense {
        Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB)
            .with_field(FieldPointer::cdb(at))
    }

    const SEALED: [SecurityMethod; 2] = [SecurityMethod::CmdRsp, SecurityMethod::AllData];

    #[test]
    fn unsigned_success_is_not_accepted() {
        for method in SEALED {
            let outcome = forged(method, &read(), Status::Good, None);
            assert!(matches!(outcome, ResponseOutcome::Failed(OsdError::IntegrityFailure(_))), "{outcome:?}");
        }
    }

    #[test]
    fn unauthenticated_refusals_say_nothing_about_data() {
        let past_end = Sense::new(SenseKey::RecoveredError, additional::READ_PAST_END_OF_USER_OBJECT);
        for method in SEALED {
            for (operation, sense) in [
                (read(), past_end.clone().with_command_specific(0)),
                (read(), invalid_field(pointer::OBJECT)),
                (read(), invalid_field(pointer::start(Generation::Osd2))),
                (create(), invalid_field(pointer::OBJECT)),
                (read(), Sense::new(SenseKey::MediumError, additional::UNRECOVERED_READ_ERROR)),
            ] {
                let outcome = forged(method, &operation, Status::CheckCondition, Some(sense));
                assert!(
                    matches!(outcome, ResponseOutcome::Failed(OsdError::IntegrityFailure(_))),
                    "{outcome:?}"
                );
            }
        }
    }

    #[test]
    fn unsigned_clock_is_ignored() {
        let mut sense = Sense::new(SenseKey::IllegalRequest, additional::NONCE_TIMESTAMP_OUT_OF_RANGE);
        sense.information = Some(1_900_000_000_000);
        let outcome = forged(SecurityMethod::CmdRsp, &read(), Status::CheckCondition, Some(sense));
        assert!(matches!(outcome, ResponseOutcome::Failed(OsdError::ClockSkew { .. })), "{outcome:?}");
    }

    #[test]
    fn busy_and_attention_without_proof_say_so() {
        let outcome = forged(SecurityMethod::AllData, &read(), Status::Busy, None);
        assert!(matches!(outcome, ResponseOutcome::Busy { proven: false }), "{outcome:?}");
        let attention = Sense::new(SenseKey::UnitAttention, additional::POWER_ON_OCCURRED);
        let outcome = forged(SecurityMethod::AllData, &read(), Status::CheckCondition, Some(attention));
        assert!(matches!(outcome, ResponseOutcome::Attention { proven: false }), "{outcome:?}");
    }

    #[test]
    fn unauthenticated_refusal_is_access_denied() {
        let sense = Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB);
        let outcome = forged(SecurityMethod::CmdRsp, &read(), Status::CheckCondition, Some(sense));
        assert!(
            matches!(outcome, ResponseOutcome::Failed(OsdError::AccessDenied { field: None })),
            "{outcome:?}"
        );
    }

    #[test]
    fn field_pointers_become_names() {
        // Without check values (NOSEC) the field pointers are trusted.
        let outcome = |operation: &Operation, at| {
            forged(SecurityMethod::NoSec, operation, Status::CheckCondition, Some(invalid_field(at)))
        };
        assert!(matches!(outcome(&read(), pointer::OBJECT), ResponseOutcome::Failed(OsdError::NotFound)));
        assert!(matches!(outcome(&create(), pointer::OBJECT), ResponseOutcome::Failed(OsdError::Exists)));
        assert!(matches!(
            outcome(&create(), pointer::PARTITION),
            ResponseOutcome::Failed(OsdError::NotFound)
        ));
        let denied = outcome(&read(), pointer::PERMISSIONS);
        assert!(matches!(denied, ResponseOutcome::Failed(OsdError::AccessDenied { field: Some(_) })));
        let start = pointer::start(Generation::Osd2);
        assert!(matches!(outcome(&read(), start), ResponseOutcome::Failed(OsdError::ReadPastEnd { .. })));
        assert!(matches!(outcome(&create(), start), ResponseOutcome::Failed(OsdError::InvalidField { .. })));
        let extension = outcome(&read(), pointer::CONTINUATION);
        assert!(matches!(extension, ResponseOutcome::Failed(OsdError::AccessDenied { field: Some(48) })));
    }

    #[test]
    fn unknown_request_fields_name_older_device() {
        let action = JobAction::Status;
        let request = ExecuteRequest::Job(JobRequest { action, job: JobId([1; 16]) });
        let operation = Operation::ExecuteFunction {
            object: OBJECT,
            request: Box::new(request),
            reply_max: 128,
            data: Vec::new(),
        };
        let at = |at| refused_function(&operation, at);
        assert!(matches!(at(48 + 3), OsdError::FunctionRequestUnknown { at: 3 }), "FLAGS");
        assert!(matches!(at(80), OsdError::UnknownJob));
        assert!(at(48 + 3).to_string().contains("newer version"));
        assert!(matches!(refused_function(&read(), 51), OsdError::AccessDenied { field: None }));
    }

    proptest! {
        #[test]
        fn no_answer_panics_and_none_is_a_success(status: u8, sense: Vec<u8>, data_in: Vec<u8>) {
            let bearer = bearer(SecurityMethod::AllData);
            let draft = draft(Generation::Osd2, &read()).unwrap();
            let sent = assemble(&bearer, &draft, 1, None, &SystemEnvironment).unwrap();
            let (read_residual, write_residual) = Default::default();
            let response = ScsiResponse { status, sense, data_in, read_residual, write_residual };
            let outcome = decode_response(&bearer, &sent.signed, &read(), response, None);
            prop_assert!(!matches!(outcome, ResponseOutcome::Done(_) | ResponseOutcome::Short(..) | ResponseOutcome::Skewed(_)));
        }
    }
}
