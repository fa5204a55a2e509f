//! Answers to the kernel as bytes.
//!
//! Truth: include/uapi/linux/fuse.h of Linux, protocol 7.36.

use std::time::Duration;

/// Bytes before the fields of an answer.
pub(crate) const HEADER_BYTES: usize = 16;
/// Flag of an open answer: reads and writes bypass the page cache, each write as one request.
pub(crate) const DIRECT_IO: u32 = 1 << 0;
/// Flag of an open answer: the kernel may keep its cached pages.
pub(crate) const KEEP_CACHE: u32 = 1 << 1;
/// Flag of an open answer: direct writes to one file run in parallel (Linux 6.2).
pub(crate) const PARALLEL_WRITES: u32 = 1 << 6;
/// Flag of an open answer for a directory: the kernel may cache its entries.
pub(crate) const CACHE_DIRECTORY: u32 = 1 << 3;

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Nanoseconds since 1970, as all times.
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
    /// Kind and permission bits.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) block_bytes: u32,
}

/// The fields of an answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerFields(Vec<u8>);

impl AnswerFields {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn attributes(self, a: &Attributes) -> Self {
        let seconds = |ns: i64| ns.div_euclid(1_000_000_000) as u64;
        let rest = |ns: i64| ns.rem_euclid(1_000_000_000) as u32;
        self.u64(a.ino)
            .u64(a.size)
            .u64(a.blocks)
            .u64(seconds(a.atime_ns))
            .u64(seconds(a.mtime_ns))
            .u64(seconds(a.ctime_ns))
            .u32(rest(a.atime_ns))
            .u32(rest(a.mtime_ns))
            .u32(rest(a.ctime_ns))
            .u32(a.mode)
            .u32(a.links)
            .u32(a.uid)
            .u32(a.gid)
            .u32(a.rdev)
            .u32(a.block_bytes)
            .u32(0)
    }

    /// Answer with a node, and how long its name and its attributes may be cached. Without
    /// attributes it is a negative entry.
    pub(crate) fn entry(
        self,
        attributes: Option<&Attributes>,
        (cache_time, attribute_time): (Duration, Duration),
    ) -> Self {
        let none = Attributes::default();
        let a = attributes.unwrap_or(&none);
        self.u64(a.ino)
            .u64(0)
            .u64(cache_time.as_secs())
            .u64(attribute_time.as_secs())
            .u32(cache_time.subsec_nanos())
            .u32(attribute_time.subsec_nanos())
            .attributes(a)
    }

    /// Answer to GETATTR and SETATTR.
    pub(crate) fn attr(attributes: &Attributes, cache_time: Duration) -> Self {
        Self::default().u64(cache_time.as_secs()).u32(cache_time.subsec_nanos()).u32(0).attributes(attributes)
    }

    /// Answer to OPEN, and, after the entry, to CREATE.
    pub(crate) fn open(self, handle: u64, flags: u32) -> Self {
        self.u64(handle).u32(flags).u32(0)
    }

    /// Answer with the number of bytes written, or the length of an attribute.
    pub(crate) fn count(count: u32) -> Self {
        Self::default().u32(count).u32(0)
    }

    /// Answer to LSEEK.
    pub(crate) fn offset(offset: u64) -> Self {
        Self::default().u64(offset)
    }

    /// Answer to STATFS: blocks of `block` bytes, and numbers of nodes.
    pub(crate) fn file_system(
        (blocks, free): (u64, u64),
        (nodes, nodes_free): (u64, u64),
        block: u32,
    ) -> Self {
        let head = Self::default().u64(blocks).u64(free).u64(free).u64(nodes).u64(nodes_free);
        let head = head.u32(block).u32(255).u32(block).u32(0);
        (0..6).fold(head, |answer, _| answer.u32(0))
    }

    /// Answer to GETLK.
    pub(crate) fn lock(start: u64, end: u64, kind: u32, pid: u32) -> Self {
        Self::default().u64(start).u64(end).u32(kind).u32(pid)
    }

    /// Answer to INIT.
    pub(crate) fn init(
        minor: u32,
        readahead_max: u32,
        (flags, flags_high): (u32, u32),
        background_max: u16,
        write_max: u32,
    ) -> Self {
        let pages = (write_max / 4096).clamp(1, 256) as u16;
        let head = Self::default().u32(7).u32(minor).u32(readahead_max).u32(flags);
        let head = head.u16(background_max).u16(background_max / 4 * 3).u32(write_max).u32(1);
        let head = head.u16(pages).u16(0).u32(flags_high);
        (0..7).fold(head, |answer, _| answer.u32(0))
    }
}

/// Directory entries, up to the size that the kernel requested.
#[derive(Debug)]
pub(crate) struct EntryBuffer {
    answer: AnswerFields,
    capacity: usize,
}

/// Initial capacity for entries, in bytes; it grows when needed.
const ROOM_USUAL: u32 = 64 << 10;
/// Bytes of an entry before its name, and of the attributes before it in READDIRPLUS.
const ENTRY_BYTES: usize = 24;
const PLUS_BYTES: usize = 128;

impl EntryBuffer {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            answer: AnswerFields(Vec::with_capacity(capacity.min(ROOM_USUAL) as usize)),
            capacity: capacity as usize,
        }
    }

    /// Adds an entry with the offset of the next one; returns false if it does not fit. With `plus`
    /// it includes the attributes.
    pub(crate) fn push(
        &mut self,
        (ino, kind): (u64, u32),
        next: u64,
        name: &[u8],
        plus: Option<(Option<&Attributes>, (Duration, Duration))>,
    ) -> bool {
        let extra = if plus.is_some() { PLUS_BYTES } else { 0 };
        let length = (extra + ENTRY_BYTES + name.len()).next_multiple_of(8);
        if self.answer.0.len() + length > self.capacity {
            return false;
        }
        let mut answer = core::mem::take(&mut self.answer);
        let end = answer.0.len() + length;
        if let Some((attributes, cache_time)) = plus {
            answer = answer.entry(attributes, cache_time);
        }
        answer = answer.u64(ino).u64(next).u32(name.len() as u32).u32(kind);
        answer.0.extend_from_slice(name);
        answer.0.resize(end, 0);
        self.answer = answer;
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.answer.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_expected_lengths() {
        let a = Attributes::default();
        assert_eq!(AnswerFields::attr(&a, Duration::ZERO).0.len(), 104);
        assert_eq!(AnswerFields::default().entry(Some(&a), (Duration::ZERO, Duration::ZERO)).0.len(), 128);
        assert_eq!(
            AnswerFields::default().entry(Some(&a), (Duration::ZERO, Duration::ZERO)).open(1, 0).0.len(),
            144
        );
        assert_eq!(AnswerFields::file_system((1, 1), (1, 1), 4096).0.len(), 80);
        assert_eq!(AnswerFields::init(36, 1, (1, 1), 1, 1 << 20).0.len(), 64);
        assert_eq!(AnswerFields::lock(0, 0, 0, 0).0.len(), 24);
        assert_eq!(AnswerFields::count(1).0.len(), 8);
        assert_eq!(AnswerFields::offset(1).0.len(), 8);
    }

    #[test]
    fn entries_stop_where_the_room_ends() {
        let mut entries = EntryBuffer::new(100);
        assert!(entries.push((5, 8), 1, b"name", None));
        assert_eq!(entries.as_bytes().len(), 32);
        assert!(entries.push((6, 8), 2, &[b'n'; 40], None));
        assert!(!entries.push((7, 8), 3, b"x", None));
        assert_eq!(entries.as_bytes().len(), 96);
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        let a = Attributes { mtime_ns: -1, ..Attributes::default() };
        let bytes = AnswerFields::attr(&a, Duration::ZERO).0;
        assert_eq!(bytes[16 + 32..16 + 40], (-1i64).to_ne_bytes());
        assert_eq!(bytes[16 + 52..16 + 56], 999_999_999u32.to_ne_bytes());
    }
}
