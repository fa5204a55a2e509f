//! Bytes of one file that were written on this client and are not stored yet.
//!
//! Does: keeps dirty bytes and the pieces in flight consistent with what devices acknowledged and
//! with what the metadata server knows; drops pieces that are durable and reported.
//! Does not: send, wait, lock, or read a clock.
//! Contract: a piece leaves the buffer when it is durable and its size was reported, or when its
//! bytes are truncated or lost. Bytes whose size was reported belong to the file at the server, and
//! a truncation there drops them. Bytes whose size was not reported count as written afterwards.

use core::ops::Range;
use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::dirty::DirtyPieces;
use crate::budget::MemoryPermit;
use crate::buffers::Buffers;

/// One written piece that is sent, or being sent.
#[derive(Clone)]
pub(super) struct InFlightWrite {
    pub(super) offset: u64,
    pub(super) data: Bytes,
    /// Whether a command with these bytes was sent.
    pub(super) sent: bool,
    pub(super) acknowledged: bool,
    /// Whether a size that includes these bytes was reported to the server.
    pub(super) size_reported: bool,
    /// Whether a flush made these bytes durable.
    pub(super) durable: bool,
}

impl InFlightWrite {
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// A position in the sequence of local writes.
#[derive(Clone, Copy)]
pub(super) struct WritePosition {
    /// Number of changes at that time; none if some of them are on no device.
    pub(super) changes: Option<u64>,
    /// Number of the first piece after the position.
    pub(super) next: u64,
    /// End of the bytes before the position whose size was not reported.
    pub(super) end: u64,
}

/// Which sent bytes have to be sent again before a flush makes them durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResendScope {
    #[default]
    Nothing,
    /// Bytes whose size was not reported: the file was truncated or replaced remotely, so they may
    /// be missing in its objects.
    Unreported,
    /// All bytes: a device restarted and may have lost them.
    All,
}

/// The written bytes of one file.
pub(super) struct WriteBuffer {
    pub(super) dirty: DirtyPieces,
    /// Memory reserved for dirty bytes.
    pub(super) reserved: MemoryPermit,
    /// Pieces that are sent or being sent, in order of dispatch.
    pub(super) in_flight: BTreeMap<u64, InFlightWrite>,
    /// Number of the next piece.
    pub(super) next_number: u64,
    /// Bytes of the pieces that are acknowledged and not dropped yet.
    pub(super) unflushed_bytes: usize,
    /// When a piece was last acknowledged.
    pub(super) last_progress: Option<Instant>,
    /// Time of the last local change of content that was not reported, in nanoseconds since 1970.
    pub(super) changed_ns: Option<i64>,
    /// Number of local changes of content.
    pub(super) changes: u64,
    /// End of the written bytes whose size was not reported; 0 if all are.
    pub(super) unreported_end: u64,
    pub(super) resend: ResendScope,
    /// Whether written bytes were lost since the file was last truncated to zero.
    pub(super) data_lost: bool,
}

impl WriteBuffer {
    /// Creates an empty buffer with pieces of at most `unit` bytes.
    pub(super) fn new(unit: usize, reserved: MemoryPermit, buffers: Buffers) -> Self {
        Self {
            dirty: DirtyPieces::new(unit, buffers),
            reserved,
            in_flight: BTreeMap::new(),
            next_number: 0,
            unflushed_bytes: 0,
            last_progress: None,
            changed_ns: None,
            changes: 0,
            unreported_end: 0,
            resend: ResendScope::Nothing,
            data_lost: false,
        }
    }

    /// Whether there is nothing to send or report.
    pub(super) fn is_stored(&self) -> bool {
        self.has_no_bytes() && self.changed_ns.is_none()
    }

    /// Whether no written bytes are buffered.
    pub(super) fn has_no_bytes(&self) -> bool {
        self.dirty.is_empty() && self.in_flight.is_empty()
    }

    /// Returns the position after all writes so far, all of which were dispatched.
    pub(super) fn position(&self) -> WritePosition {
        WritePosition { changes: Some(self.changes), next: self.next_number, end: self.unreported_end }
    }

    /// Returns the position up to which all pieces are acknowledged; none if all of that was
    /// reported.
    pub(super) fn acknowledged_position(&self) -> Option<WritePosition> {
        let waits = self.in_flight.iter().find(|(_, piece)| !piece.acknowledged);
        if waits.is_none() && self.dirty.is_empty() {
            return self.changed_ns.map(|_| self.position());
        }
        let next = waits.map_or(self.next_number, |(number, _)| *number);
        let unreported = self.in_flight.range(..next).filter(|(_, piece)| !piece.size_reported);
        let end = unreported.map(|(_, piece)| piece.range().end).max()?;
        Some(WritePosition { changes: None, next, end })
    }

    /// Records a local change of content.
    pub(super) fn record_change(&mut self, now_ns: i64) {
        self.changed_ns = Some(now_ns);
        self.changes += 1;
    }

    /// Adds a piece that is about to be sent; returns its number.
    pub(super) fn add_in_flight(&mut self, offset: u64, data: Bytes) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let (sent, acknowledged, size_reported, durable) = (false, false, false, false);
        let piece = InFlightWrite { offset, data, sent, acknowledged, size_reported, durable };
        self.in_flight.insert(number, piece);
        number
    }

    /// Records that the devices acknowledged a piece.
    pub(super) fn acknowledge(&mut self, number: u64, now: Instant) {
        self.last_progress = Some(now);
        if let Some(piece) = self.in_flight.get_mut(&number)
            && !piece.acknowledged
        {
            piece.acknowledged = true;
            self.unflushed_bytes += piece.data.len();
        }
    }

    /// Requires sent bytes to be sent again.
    pub(super) fn require_resend(&mut self, scope: ResendScope) {
        self.resend = self.resend.max(scope);
    }

    /// Records that bytes of this scope are being sent again.
    pub(super) fn clear_resend(&mut self, scope: ResendScope) {
        if self.resend <= scope {
            self.resend = ResendScope::Nothing;
        }
    }

    /// Records that the server knows everything up to a position. Returns the ranges of the pieces
    /// that leave the buffer.
    #[must_use]
    pub(super) fn on_size_reported(&mut self, upto: &WritePosition) -> Vec<Range<u64>> {
        for piece in self.in_flight.range_mut(..upto.next).map(|(_, piece)| piece) {
            piece.size_reported |= piece.acknowledged;
        }
        if upto.changes == Some(self.changes) {
            self.changed_ns = None;
            self.unreported_end = 0;
        }
        self.drop_stored()
    }

    /// Records that a flush made these pieces durable. Returns the ranges of the pieces that leave
    /// the buffer.
    #[must_use]
    pub(super) fn mark_durable(&mut self, numbers: &[u64]) -> Vec<Range<u64>> {
        for number in numbers {
            if let Some(piece) = self.in_flight.get_mut(number) {
                piece.durable = true;
            }
        }
        self.drop_stored()
    }

    /// Drops durable bytes that cannot be reported, and returns their ranges; the writer gets an
    /// error.
    #[must_use]
    pub(super) fn drop_unreported(&mut self) -> Vec<Range<u64>> {
        self.data_lost = true;
        for piece in self.in_flight.values_mut() {
            piece.size_reported |= piece.durable;
        }
        self.drop_stored()
    }

    /// Drops pieces that are durable and reported. Others are kept, since a remote truncation could
    /// remove them.
    fn drop_stored(&mut self) -> Vec<Range<u64>> {
        let mut dropped = Vec::new();
        self.in_flight.retain(|_, piece| {
            let is_stored = piece.durable && piece.size_reported;
            if is_stored {
                dropped.push(piece.range());
            }
            !is_stored
        });
        self.unflushed_bytes -= dropped.iter().map(|range| (range.end - range.start) as usize).sum::<usize>();
        dropped
    }

    /// Removes a piece that could not be stored.
    pub(super) fn on_write_failed(&mut self, number: u64) {
        self.remove(number);
        self.data_lost = true;
        self.unreported_end = self.unreported_end.min(self.end_of_unreported());
    }

    fn remove(&mut self, number: u64) {
        if let Some(piece) = self.in_flight.remove(&number)
            && piece.acknowledged
        {
            self.unflushed_bytes -= piece.data.len();
        }
    }

    /// The file was migrated to other objects. Acknowledged bytes that were not flushed may have
    /// been lost before the copy.
    pub(super) fn on_migrated(&mut self) {
        if self.in_flight.values().any(|piece| piece.sent && !piece.durable) {
            self.require_resend(ResendScope::All);
        }
    }

    /// Follows a truncation by another client to `end`, perhaps with other objects: bytes that were
    /// reported are dropped, and others are written again.
    pub(super) fn on_remote_truncation(&mut self, end: u64) {
        self.truncate_reported(end);
        for piece in self.in_flight.values_mut().filter(|piece| !piece.size_reported) {
            piece.durable = false;
        }
        self.unreported_end = self.end_of_unreported();
        if self.in_flight.values().any(|piece| piece.sent && !piece.size_reported) {
            self.require_resend(ResendScope::Unreported);
        }
    }

    /// Drops reported bytes from `end` on.
    pub(super) fn truncate_reported(&mut self, end: u64) {
        self.truncate_matching(end, |piece| piece.size_reported);
    }

    /// Drops all bytes from `end` on: the file was truncated by this client.
    pub(super) fn truncate(&mut self, end: u64) {
        self.dirty.truncate(end);
        self.release_excess_memory();
        self.truncate_matching(end, |_| true);
        self.unreported_end = self.unreported_end.min(end);
        self.data_lost &= end > 0;
        let unreported = !self.dirty.is_empty() || self.in_flight.values().any(|piece| !piece.size_reported);
        if !unreported {
            // The server set version and time with the truncation, so nothing is left to report.
            (self.changed_ns, self.unreported_end) = (None, 0);
        }
    }

    fn truncate_matching(&mut self, end: u64, which: impl Fn(&InFlightWrite) -> bool) {
        let behind = |(number, piece): (&u64, &InFlightWrite)| {
            (which(piece) && piece.range().end > end).then_some(*number)
        };
        let behind: Vec<u64> = self.in_flight.iter().filter_map(behind).collect();
        for number in behind {
            let Some(piece) = self.in_flight.get_mut(&number) else { continue };
            let left =
                usize::try_from(end.saturating_sub(piece.offset)).unwrap_or(usize::MAX).min(piece.data.len());
            if left == 0 {
                self.remove(number);
                continue;
            }
            if piece.acknowledged {
                self.unflushed_bytes -= piece.data.len() - left;
            }
            piece.data.truncate(left);
        }
        if self.in_flight.is_empty() {
            self.resend = ResendScope::Nothing;
        }
    }

    /// Returns the end of the bytes whose size was not reported.
    fn end_of_unreported(&self) -> u64 {
        let unreported =
            self.in_flight.values().filter(|piece| !piece.size_reported).map(|piece| piece.range().end);
        unreported.max().unwrap_or(0).max(self.dirty.end())
    }

    /// Releases reserved memory that the dirty bytes do not need.
    pub(super) fn release_excess_memory(&mut self) {
        let more = self.reserved.bytes().saturating_sub(self.dirty.memory());
        if more > 0 {
            drop(self.reserved.split(more));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::MemoryBudget;

    const UNIT: u64 = 8192;

    #[derive(Clone, Debug)]
    enum Step {
        Write { offset: u64, length: usize },
        Dispatch,
        Acknowledge(prop::sample::Index),
        Flush,
        Report,
        ReportAcknowledged,
        Fail(prop::sample::Index),
        Truncate(u64),
        RemoteTruncation(u64),
        Migrate,
    }

    fn step() -> impl Strategy<Value = Step> {
        let offset = 0..6 * UNIT;
        prop_oneof![
            5 => (offset.clone(), 1..UNIT as usize).prop_map(|(offset, length)| Step::Write { offset, length }),
            3 => Just(Step::Dispatch),
            5 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
            2 => Just(Step::Flush),
            2 => Just(Step::Report),
            2 => Just(Step::ReportAcknowledged),
            1 => any::<prop::sample::Index>().prop_map(Step::Fail),
            1 => offset.clone().prop_map(Step::Truncate),
            1 => offset.prop_map(Step::RemoteTruncation),
            1 => Just(Step::Migrate),
        ]
    }

    /// Events of each dispatched piece.
    #[derive(Default)]
    struct History {
        acknowledged: BTreeSet<u64>,
        durable: BTreeSet<u64>,
        reported: BTreeSet<u64>,
        ranges: BTreeMap<u64, Range<u64>>,
    }

    impl History {
        fn report(&mut self, upto: &WritePosition) {
            self.reported.extend(self.acknowledged.iter().filter(|number| **number < upto.next));
        }

        fn truncate(&mut self, end: u64, only_reported: bool) {
            for (number, range) in &mut self.ranges {
                if !only_reported || self.reported.contains(number) {
                    range.end = range.end.min(end).max(range.start);
                }
            }
            self.forget_stored();
        }

        /// Forgets pieces without bytes, and those that are durable and reported.
        fn forget_stored(&mut self) {
            let Self { durable, reported, ranges, .. } = self;
            ranges.retain(|number, range| {
                let is_stored = durable.contains(number) && reported.contains(number);
                !range.is_empty() && !is_stored
            });
        }
    }

    /// Returns the pieces that are not acknowledged.
    fn unacknowledged(buffer: &WriteBuffer) -> Vec<u64> {
        buffer.in_flight.iter().filter(|(_, piece)| !piece.acknowledged).map(|(number, _)| *number).collect()
    }

    fn pick(buffer: &WriteBuffer, index: prop::sample::Index) -> Option<u64> {
        let waiting = unacknowledged(buffer);
        (!waiting.is_empty()).then(|| waiting[index.index(waiting.len())])
    }

    proptest! {
        /// Pieces stay exactly as long as the contract says, and the sums agree with them.
        #[test]
        fn buffer_agrees_with_its_history(steps in prop::collection::vec(step(), 0..60)) {
            let budget = MemoryBudget::new(1 << 20);
            let mut buffer = WriteBuffer::new(UNIT as usize, budget.empty(), Buffers::new(0));
            let mut history = History::default();
            for step in steps {
                match step {
                    Step::Write { offset, length } => {
                        buffer.dirty.write(offset, &vec![1; length]);
                        buffer.unreported_end = buffer.unreported_end.max(offset + length as u64);
                        buffer.record_change(1);
                    }
                    Step::Dispatch => {
                        for piece in buffer.dirty.take_all() {
                            let data = Bytes::from(piece.data).slice(piece.part);
                            let range = piece.offset..piece.offset + data.len() as u64;
                            let number = buffer.add_in_flight(piece.offset, data);
                            history.ranges.insert(number, range);
                        }
                    }
                    Step::Acknowledge(index) => {
                        if let Some(number) = pick(&buffer, index) {
                            buffer.acknowledge(number, Instant::now());
                            history.acknowledged.insert(number);
                        }
                    }
                    Step::Flush => {
                        let numbers: Vec<u64> = history.acknowledged.iter().copied().collect();
                        let _dropped = buffer.mark_durable(&numbers);
                        history.durable.extend(numbers);
                        history.forget_stored();
                    }
                    // The size of all bytes is reported when they are in the objects.
                    Step::Report if buffer.dirty.is_empty() && unacknowledged(&buffer).is_empty() => {
                        let upto = buffer.position();
                        let _dropped = buffer.on_size_reported(&upto);
                        history.report(&upto);
                        history.forget_stored();
                    }
                    Step::Report => {}
                    Step::ReportAcknowledged => {
                        if let Some(upto) = buffer.acknowledged_position() {
                            let _dropped = buffer.on_size_reported(&upto);
                            history.report(&upto);
                            history.forget_stored();
                        }
                    }
                    Step::Fail(index) => {
                        if let Some(number) = pick(&buffer, index) {
                            buffer.on_write_failed(number);
                            history.ranges.remove(&number);
                            prop_assert!(buffer.data_lost);
                        }
                    }
                    Step::Truncate(end) => {
                        buffer.truncate(end);
                        history.truncate(end, false);
                    }
                    Step::RemoteTruncation(end) => {
                        buffer.on_remote_truncation(end);
                        history.truncate(end, true);
                        history.durable.retain(|number| history.reported.contains(number));
                    }
                    Step::Migrate => buffer.on_migrated(),
                }
                let ranges: BTreeMap<u64, Range<u64>> =
                    buffer.in_flight.iter().map(|(number, piece)| (*number, piece.range())).collect();
                prop_assert_eq!(&ranges, &history.ranges);
                let acknowledged = buffer.in_flight.values().filter(|piece| piece.acknowledged);
                prop_assert_eq!(buffer.unflushed_bytes, acknowledged.map(|piece| piece.data.len()).sum::<usize>());
                if buffer.changed_ns.is_some() {
                    prop_assert!(buffer.end_of_unreported() <= buffer.unreported_end);
                }
            }
        }
    }

    #[test]
    fn resend_of_unreported_bytes_leaves_lost_ones() {
        let budget = MemoryBudget::new(1 << 20);
        let mut buffer = WriteBuffer::new(UNIT as usize, budget.empty(), Buffers::new(0));
        buffer.require_resend(ResendScope::All);
        buffer.require_resend(ResendScope::Unreported);
        buffer.clear_resend(ResendScope::Unreported);
        assert_eq!(buffer.resend, ResendScope::All);
        buffer.clear_resend(ResendScope::All);
        assert_eq!(buffer.resend, ResendScope::Nothing);
    }
}
