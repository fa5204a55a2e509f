//! Full feature phase, target side: encodes the PDUs to send, Data-In, R2T and responses.

use alloc::vec::Vec;

use bytes::Bytes;

use super::{
    CommandReply, TargetConnection,
    session::PendingPdu,
    task::{TargetTask, TaskState},
};
use crate::{
    Residual,
    pdu::{self, Bhs, NO_TAG, flag, opcode},
};

/// Maximum sense bytes sent: with its length it fits the smallest data segment that an initiator
/// may declare.
const SENSE_MAX: usize = 510;

enum DataInStep {
    /// One Data-In PDU; more follow.
    More,
    Last,
}

impl TargetConnection {
    /// Encodes the next PDU; returns false if there is none.
    pub(super) fn transmit_next(&mut self) -> bool {
        match self.out.pop_front() {
            None => return false,
            Some(PendingPdu::Control { bhs, data, advances }) => {
                self.send(bhs, true, advances, data.len(), core::iter::once(data));
            }
            Some(PendingPdu::Reply { slot }) => {
                if let Some(DataInStep::More) = self.reply_next(slot) {
                    self.out.push_front(PendingPdu::Reply { slot });
                }
            }
        }
        true
    }

    /// All PDUs of a target have StatSN, ExpCmdSN and MaxCmdSN at the same offset.
    fn send(
        &mut self,
        mut bhs: Bhs,
        shows_status: bool,
        advances: bool,
        length: usize,
        data: impl Iterator<Item = Bytes>,
    ) {
        let stat_sn = if shows_status { self.stat_sn } else { 0 };
        bhs[24..28].copy_from_slice(&stat_sn.to_be_bytes());
        bhs[28..32].copy_from_slice(&self.exp_cmd_sn.to_be_bytes());
        bhs[32..36].copy_from_slice(&self.max_cmd_sn().to_be_bytes());
        if advances {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        self.tx.pdu(bhs, &[], length, data);
    }

    fn reply_next(&mut self, slot: u16) -> Option<DataInStep> {
        let agreed = &self.agreed;
        let task = self.tasks.get(slot)?;
        let TaskState::Replying { reply, sent } = &mut task.state else { return None };
        let total = reply.data_in.len().min(task.read_expected as usize);
        if *sent >= total {
            let task = self.tasks.remove(slot)?;
            self.scsi_response(task);
            return Some(DataInStep::Last);
        }
        let burst = agreed.max_burst as usize;
        let burst_left = burst - *sent % burst;
        let length = (total - *sent).min(agreed.max_send as usize).min(burst_left);
        let at_end = *sent + length == total;
        let with_status = at_end
            && reply.status == 0
            && reply.sense.is_empty()
            && !reply.separate_status
            && !task.bidirectional;

        let mut pdu = pdu::DataIn::new(opcode::DATA_IN, 0);
        if at_end || length == burst_left {
            pdu.flags |= flag::FINAL;
        }
        pdu.tag.set(task.tag);
        pdu.transfer.set(NO_TAG);
        pdu.data_sn.set(task.data_in_sn);
        pdu.offset.set(u32::try_from(*sent).ok()?);
        task.data_in_sn = task.data_in_sn.wrapping_add(1);
        let from = *sent;
        *sent += length;
        if !with_status {
            // Sharing costs a reference count; the reply itself stays with its task until its last
            // PDU is encoded.
            let data = reply.data_in.clone();
            self.send(pdu.wire(), false, false, length, data.range(from, length));
            return Some(DataInStep::More);
        }
        let (overflow, underflow, count) =
            Residual::between(task.read_expected, reply.data_in_wanted).parts();
        pdu.flags |= flag::STATUS | bit(overflow, flag::OVERFLOW) | bit(underflow, flag::UNDERFLOW);
        pdu.status = reply.status;
        pdu.residual.set(count);
        // The slot is freed before the PDU is encoded, so that it opens the window.
        if let TargetTask { state: TaskState::Replying { reply, .. }, .. } = self.tasks.remove(slot)? {
            self.send(pdu.wire(), true, true, length, reply.data_in.range(from, length));
        }
        Some(DataInStep::Last)
    }

    fn scsi_response(&mut self, task: TargetTask) {
        let TaskState::Replying { reply, .. } = task.state else { return };
        let CommandReply { status, mut sense, data_in_wanted, data_out_wanted, .. } = reply;
        let read = Residual::between(task.read_expected, data_in_wanted).parts();
        let write = Residual::between(task.write_expected, data_out_wanted).parts();
        let mut pdu = pdu::ScsiResponse::new(opcode::SCSI_RESPONSE, flag::FINAL);
        pdu.status = status;
        pdu.tag.set(task.tag);
        let plain = if task.bidirectional {
            pdu.flags |= bit(read.0, flag::BIDI_OVERFLOW) | bit(read.1, flag::BIDI_UNDERFLOW);
            pdu.bidi_residual.set(read.2);
            write
        } else if task.write_expected > 0 || data_out_wanted > 0 {
            write
        } else {
            read
        };
        pdu.flags |= bit(plain.0, flag::OVERFLOW) | bit(plain.1, flag::UNDERFLOW);
        pdu.residual.set(plain.2);
        pdu.exp_data_sn.set(task.data_in_sn);
        let data = if sense.is_empty() {
            Bytes::new()
        } else {
            sense.truncate(SENSE_MAX);
            let length = u16::try_from(sense.len()).unwrap_or_default().to_be_bytes();
            let mut data = Vec::with_capacity(2 + sense.len());
            data.extend_from_slice(&length);
            data.append(&mut sense);
            Bytes::from(data)
        };
        self.send(pdu.wire(), true, true, data.len(), core::iter::once(data));
    }
}

const fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}
