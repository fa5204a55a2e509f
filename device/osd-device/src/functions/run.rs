//! Executes a prepared call by the function service, and encodes its reply.

use sealstone_osd::function::{REPLY_HEADER_LEN, ReplyParts};

use super::prepare::PreparedFunction;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::function_runner::FunctionRefusal;

/// Makes a prepared call and writes the reply to the start of the Data-In Buffer; returns its
/// length. The caller has no lock.
pub(crate) fn run(
    device: &OsdDevice,
    prepared: PreparedFunction,
    into: &mut [u8],
) -> Result<usize, OsdFailure> {
    let runner = device.functions.get().ok_or(OsdFailure::NoFunctions)?;
    let reply = match prepared {
        PreparedFunction::Run(call) => runner.execute(*call),
        PreparedFunction::Job(call) => runner.job(call),
    };
    let bytes = fit(reply.map_err(OsdFailure::Function)?, into.len());
    let bytes = bytes.ok_or(OsdFailure::Function(FunctionRefusal::ServiceFailed))?;
    if device.config.write_through {
        device.flush()?;
    }
    into[..bytes.len()].copy_from_slice(&bytes);
    Ok(bytes.len())
}

/// Encodes a reply of at most `max` bytes: the receipt is left out first, then inline bytes.
fn fit(mut reply: ReplyParts, max: usize) -> Option<Vec<u8>> {
    let free = max.checked_sub(REPLY_HEADER_LEN)?;
    if reply.inline.len() + reply.receipt.len() > free {
        reply.receipt.clear();
    }
    reply.inline.truncate(free);
    reply.encode()
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::{JobId, JobState, ReplyHeader};

    use super::*;

    #[test]
    fn reply_drops_receipt_before_result() {
        let header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
        let reply = ReplyParts { header, inline: vec![2; 10], receipt: vec![3; 10] };
        let sizes = |max: usize| {
            let bytes = fit(reply.clone(), max)?;
            assert!(bytes.len() <= max);
            let reply = ReplyParts::parse(&bytes).unwrap();
            Some((reply.inline.len(), reply.receipt.len()))
        };
        assert_eq!(sizes(148), Some((10, 10)));
        assert_eq!(sizes(147), Some((10, 0)));
        assert_eq!(sizes(130), Some((2, 0)));
        assert_eq!(sizes(127), None);
    }
}
