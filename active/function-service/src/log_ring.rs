//! The log of one job: its last 64 KiB, safe to print.
//!
//! Does: keep the newest bytes, and escape control characters.
//! Does not: store or format lines.
//! Contract: an offset counts all bytes that were ever written, so a reader that continues at the
//! returned offset misses nothing that is still kept.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// Bytes of a log that are kept.
pub(crate) const LOG_LEN_MAX: usize = 64 << 10;
/// Bytes of one message that are used; the rest is dropped.
pub(crate) const LOG_MESSAGE_MAX: usize = 4 << 10;

/// The newest bytes of a log.
#[derive(Debug, Default)]
pub(crate) struct LogRing {
    bytes: VecDeque<u8>,
    /// Offset of the first kept byte.
    start: u64,
}

impl LogRing {
    /// Appends a message as one line. Control characters become escapes such as `\x1b`, so a log
    /// cannot move the cursor of a terminal or forge lines.
    pub(crate) fn push(&mut self, message: &[u8]) {
        let message = &message[..message.len().min(LOG_MESSAGE_MAX)];
        let mut line = String::with_capacity(message.len() + 1);
        for chunk in message.utf8_chunks() {
            for character in chunk.valid().chars() {
                push_escaped(&mut line, character);
            }
            for byte in chunk.invalid() {
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
        line.push('\n');
        self.bytes.extend(line.into_bytes());
        let excess = self.bytes.len().saturating_sub(LOG_LEN_MAX);
        self.bytes.drain(..excess);
        self.start += excess as u64;
    }

    /// Returns bytes from `offset` on, at most `max`, and the offset of the first one. It is higher
    /// than `offset` if older bytes were dropped.
    #[must_use]
    pub(crate) fn read(&self, offset: u64, max: usize) -> (u64, Vec<u8>) {
        let from = offset.clamp(self.start, self.end());
        let skipped = usize::try_from(from - self.start).unwrap_or(usize::MAX);
        (from, self.bytes.iter().skip(skipped).take(max).copied().collect())
    }

    /// Returns the number of bytes that were ever written.
    #[must_use]
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns the number of bytes that are kept.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends a character. A tab stays; bidirectional controls and line separators are escaped too,
/// since they change how other text is shown.
fn push_escaped(line: &mut String, character: char) {
    match character {
        '\t' => line.push('\t'),
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            let _ = write!(line, "\\u{{{:x}}}", character as u32);
        }
        _ if character.is_control() => {
            let _ = write!(line, "\\x{:02x}", character as u32);
        }
        _ => line.push(character),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(ring: &LogRing) -> String {
        String::from_utf8(ring.read(0, usize::MAX).1).expect("UTF-8")
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut ring = LogRing::default();
        ring.push(b"a\tb\x1b[2J\r\nforged\x00\xff\xc2\x85");
        assert_eq!(text(&ring), "a\tb\\x1b[2J\\x0d\\x0aforged\\x00\\xff\\x85\n");
        ring.push("\u{202e}x".as_bytes());
        assert!(text(&ring).ends_with("\\u{202e}x\n"));
    }

    #[test]
    fn flood_keeps_newest_bytes_and_offsets() {
        let mut ring = LogRing::default();
        for number in 0..100_000 {
            ring.push(format!("line {number}").as_bytes());
        }
        assert_eq!(ring.len(), LOG_LEN_MAX);
        let (offset, bytes) = ring.read(0, 10);
        assert_eq!((offset, bytes.len()), (ring.end() - LOG_LEN_MAX as u64, 10));
        assert!(text(&ring).ends_with("line 99999\n"));
        assert_eq!(ring.read(u64::MAX, 10), (ring.end(), Vec::new()));
    }

    proptest! {
        #[test]
        fn reads_continue_where_they_ended(messages in proptest::collection::vec(any::<Vec<u8>>(), 0..20), step in 1_usize..50) {
            let (mut ring, mut seen, mut offset) = (LogRing::default(), Vec::new(), 0);
            for message in &messages {
                ring.push(message);
                loop {
                    let (from, bytes) = ring.read(offset, step);
                    prop_assert_eq!(from, offset);
                    if bytes.is_empty() { break }
                    offset += bytes.len() as u64;
                    seen.extend(bytes);
                }
            }
            let seen = String::from_utf8(seen).expect("UTF-8");
            prop_assert_eq!(seen.lines().count(), messages.len());
            prop_assert!(!seen.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
