//! Converts results of commands to status and sense data, with the list of command functions that
//! ran or failed (OSD error identification).
//!
//! Does: track the functions of a command, build sense data.
//! Does not: sign it.
//! Contract: a function that was started and not completed has failed; at most one can.
//! Truth: docs/design/t10-osd.md 5.1, 5.2.

use sealstone_osd::cdb::pointer;
use sealstone_osd::{Generation, ObjectId};
use sealstone_scsi::additional::READ_PAST_END_OF_USER_OBJECT;
use sealstone_scsi::lu::ScsiReply;
use sealstone_scsi::{FieldPointer, Functions, OsdError, Sense, SenseKey, Status};
use sealstone_seal::Denial;
use sealstone_store::StoreError;

use crate::commands::StatusDetail;
use crate::failure::{ErrorPointer, OsdFailure};

/// Why a command did not do all of its work.
#[derive(Debug)]
pub(crate) enum OsdRefusal {
    /// Authority was missing.
    Denied(Denial),
    /// Authority for a second object, from an extension capability, was missing.
    ExtensionDenied(Denial),
    /// Any other failure.
    Failed(OsdFailure),
}

impl From<OsdFailure> for OsdRefusal {
    fn from(failure: OsdFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Denial> for OsdRefusal {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<StoreError> for OsdRefusal {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl OsdRefusal {
    /// Returns the missing authority, if that was the reason.
    pub(crate) const fn denial(&self) -> Option<&Denial> {
        match self {
            Self::Denied(denial) | Self::ExtensionDenied(denial) => Some(denial),
            Self::Failed(_) => None,
        }
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Denied(denial) | Self::ExtensionDenied(denial) => denial.status(),
            Self::Failed(failure) => failure.status(),
        }
    }

    /// Returns the sense data, if the status carries any.
    pub(crate) fn sense(&self, generation: Generation) -> Option<Sense> {
        match self {
            Self::Denied(denial) => denial.sense(generation),
            // The field is in the extension capability, which is in the continuation segment.
            Self::ExtensionDenied(denial) => denial.sense(generation).map(|sense| Sense {
                field: sense.field.map(|_| FieldPointer::cdb(pointer::CONTINUATION)),
                ..sense
            }),
            Self::Failed(failure) if failure.status() != Status::CheckCondition => None,
            Self::Failed(OsdFailure::Embedded(sense)) => Some((**sense).clone()),
            Self::Failed(failure) => {
                let (key, code, pointer) = failure.sense();
                let sense = Sense::new(key, code);
                let sense = match pointer {
                    Some(ErrorPointer::Cdb(byte)) => sense.with_field(FieldPointer::cdb(byte)),
                    Some(ErrorPointer::DataOut(byte)) => sense.with_field(FieldPointer::parameter(byte)),
                    None => sense,
                };
                Some(match failure {
                    OsdFailure::Attribute(id) => sense.with_attribute(id.page, id.number),
                    OsdFailure::Miscompare(byte) => Sense { information: Some(*byte), ..sense },
                    // The first byte of the object that cannot be read.
                    OsdFailure::Store(StoreError::Damaged { offset, .. }) => {
                        Sense { information: Some(*offset), ..sense }
                    }
                    _ => sense,
                })
            }
        }
    }
}

impl OsdRefusal {
    /// Returns an unsigned reply.
    pub(crate) fn bare_reply(&self) -> ScsiReply {
        match self.sense(Generation::Osd2) {
            Some(sense) => ScsiReply::check(sense.encode()),
            None => ScsiReply::status(self.status()),
        }
    }
}

/// Returns the sense data of a status detail, for example READ PAST END.
pub(crate) fn status_detail(status_detail: StatusDetail) -> Sense {
    match status_detail {
        StatusDetail::ReadPastEnd { transferred } => {
            Sense::new(SenseKey::RecoveredError, READ_PAST_END_OF_USER_OBJECT)
                .with_command_specific(transferred)
        }
    }
}

/// Functions of a command that were planned, started and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionProgress {
    planned: Functions,
    started: Functions,
    done: Functions,
}

impl FunctionProgress {
    /// Creates the progress of a command that may set and get attributes.
    pub(crate) fn new(sets: bool, gets: bool) -> Self {
        let mut planned = Functions::VALIDATION
            | Functions::COMMAND_CAPABILITY
            | Functions::COMMAND
            | Functions::IMPLICIT_SET;
        if sets {
            planned = planned | Functions::SET_CAPABILITY | Functions::SET_ATTRIBUTES;
        }
        if gets {
            planned = planned | Functions::GET_CAPABILITY | Functions::GET_ATTRIBUTES;
        }
        Self { planned, started: Functions::NONE, done: Functions::NONE }
    }

    /// Records the start of a function.
    pub(crate) fn begin(&mut self, function: Functions) {
        self.started = self.started | function;
    }

    /// Records the completion of a function.
    pub(crate) fn complete(&mut self, function: Functions) {
        self.started = self.started | function;
        self.done = self.done | function;
    }

    /// Returns the OSD error identification.
    pub(crate) fn error(&self, object: ObjectId) -> OsdError {
        OsdError {
            not_initiated: Functions(self.planned.0 & !self.started.0),
            completed: Functions(self.planned.0 & self.done.0),
            partition: object.partition,
            object: object.object,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_function_is_in_neither_set() {
        let mut progress = FunctionProgress::new(true, false);
        progress.complete(Functions::VALIDATION);
        progress.complete(Functions::COMMAND_CAPABILITY);
        progress.complete(Functions::COMMAND);
        progress.begin(Functions::SET_ATTRIBUTES);
        let error = progress.error(ObjectId::ROOT);
        assert_eq!(error.completed.0, 0xB000_0000);
        assert_eq!(error.not_initiated.0, 0x0010_2000);
    }
}
