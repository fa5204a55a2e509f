//! Assembling a command: CDB and Data-Out Buffer, signed with the credential's method.
//!
//! Does: lays out both buffers, builds the CDB, has it signed.
//! Does not: send, or compute check values; `seal` does.
//! Contract: command data is never copied; the other parts are one small allocation.
//! Truth: t10-osd §1.5–1.7.

use bytes::Bytes;
use sealstone_osd::attribute::list;
use sealstone_osd::cdb::{GetList, Segment};
use sealstone_osd::{AttributeId, AttributeParameters, Cdb, Command, Generation, offset};
use sealstone_seal::SecurityToken;
use sealstone_seal::signer::{SentParts, SignError, SignedCommand};

use super::bearer::Bearer;
use crate::{Environment, OsdError};

/// The parts of a command before they are laid out.
#[derive(Clone, Debug)]
pub(crate) struct CommandDraft {
    pub(crate) command: Command,
    /// CDB continuation segment without its check value; empty if there is none.
    pub(crate) continuation: Vec<u8>,
    pub(crate) data_out: Bytes,
    /// Set attributes list, encoded.
    pub(crate) set: Vec<u8>,
    /// Get attributes list, encoded.
    pub(crate) get: Vec<u8>,
    /// Maximum bytes of retrieved attributes.
    pub(crate) retrieved_max: u32,
    /// Force unit access: the answer is sent when the change is durable.
    pub(crate) durable: bool,
    /// Credentials whose capabilities are in the segment; space for their proofs is at its end.
    pub(crate) extensions: Vec<Bearer>,
}

impl CommandDraft {
    /// Creates a command without attributes.
    pub(crate) const fn new(command: Command, data_out: Bytes) -> Self {
        Self {
            command,
            continuation: Vec::new(),
            data_out,
            set: Vec::new(),
            get: Vec::new(),
            retrieved_max: 0,
            durable: false,
            extensions: Vec::new(),
        }
    }

    /// Adds attributes to retrieve with the answer; few and short ones.
    pub(crate) fn asking(self, generation: Generation, ids: &[AttributeId]) -> Self {
        Self { get: list::encode_get(generation, ids), retrieved_max: ASKED_ROOM, ..self }
    }
}

/// Space for two attributes of 8 bytes with their headers.
const ASKED_ROOM: u32 = 128;

/// A command ready to be sent.
pub(crate) struct AssembledCommand {
    pub(crate) signed: SignedCommand,
    pub(crate) data_out: Vec<Bytes>,
}

/// Builds and signs a command; `time_ms` is the estimate of the device's clock, `token` the value
/// that CAPKEY signs.
pub(crate) fn assemble(
    bearer: &Bearer,
    draft: &CommandDraft,
    time_ms: u64,
    token: Option<&SecurityToken>,
    environment: &dyn Environment,
) -> Result<AssembledCommand, OsdError> {
    let generation = bearer.generation();
    let mut continuation = draft.continuation.clone();
    let base = (continuation.len() + draft.data_out.len()) as u64;
    let mut out = DataOffset { generation, at: base };
    let set = out.take(draft.set.len())?;
    let get = out.take(draft.get.len())?;
    let mut inward = DataOffset { generation, at: draft.command.data_in_len() };
    let retrieved = if get.is_some() { inward.take(draft.retrieved_max as usize)? } else { None };

    let mut cdb = Cdb::new(generation, draft.command);
    cdb.options.fua = draft.durable;
    cdb.continuation_length = u32::try_from(continuation.len())
        .map_err(|_| OsdError::Malformed("the command cannot be encoded"))?;
    let get_list = get.map(|list| GetList { list, retrieved: retrieved.unwrap_or_default() });
    cdb.attributes = AttributeParameters::List { get: get_list, set };
    let data: &[&[u8]] = if draft.data_out.is_empty() { &[] } else { &[&draft.data_out] };
    let mut parts = SentParts {
        continuation: &mut continuation,
        data,
        set_attributes: &draft.set,
        get_attributes: &draft.get,
    };
    let mut random = |into: &mut [u8]| environment.fill_random(into);
    let extensions: Vec<_> = draft.extensions.iter().map(Bearer::signer).collect();
    let signed = bearer
        .signer()
        .sign_extended(cdb, &mut parts, &extensions, time_ms, token, &mut random)
        .map_err(unsigned)?;

    let integrity = signed.integrity.as_ref();
    let end = integrity.map_or(out.at, |block| block.offset.saturating_add(block.as_bytes().len() as u64));
    let mut tail = vec![0; usize::try_from(end.saturating_sub(base)).unwrap_or(0)];
    let mut place = |at: u64, bytes: &[u8]| {
        let start = usize::try_from(at.saturating_sub(base)).unwrap_or(usize::MAX);
        if let Some(target) = tail.get_mut(start..start.saturating_add(bytes.len())) {
            target.copy_from_slice(bytes);
        }
    };
    for (segment, bytes) in [(set, &draft.set), (get, &draft.get)] {
        if let Some(segment) = segment {
            place(segment.offset, bytes);
        }
    }
    if let Some(block) = integrity {
        place(block.offset, block.as_bytes());
    }
    let pieces = [Bytes::from(continuation), draft.data_out.clone(), Bytes::from(tail)];
    let data_out = pieces.into_iter().filter(|piece| !piece.is_empty());
    Ok(AssembledCommand { data_out: data_out.collect(), signed })
}

fn unsigned(error: SignError) -> OsdError {
    match error {
        SignError::NoToken => OsdError::Malformed("the device gave no security token"),
        SignError::Generation(_) => OsdError::Malformed("the command is of another generation"),
        SignError::Capability(_) | SignError::Algorithm(_) => OsdError::Malformed("the credential"),
        SignError::Parts | SignError::Place(_) | SignError::Encode(_) => {
            OsdError::Malformed("the command cannot be encoded")
        }
    }
}

/// Allocates consecutive places of a buffer at offsets that an offset field can encode.
struct DataOffset {
    generation: Generation,
    at: u64,
}

impl DataOffset {
    fn take(&mut self, length: usize) -> Result<Option<Segment>, OsdError> {
        let too_long = || OsdError::TooLong { what: "a data buffer", actual: length, max: u32::MAX as usize };
        if length == 0 {
            return Ok(None);
        }
        let offset = offset::align_up(self.generation, self.at).ok_or_else(too_long)?;
        let length = u32::try_from(length).map_err(|_| too_long())?;
        self.at = offset.checked_add(u64::from(length)).ok_or_else(too_long)?;
        Ok(Some(Segment { offset, length }))
    }
}
