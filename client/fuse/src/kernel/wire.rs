//! Requests of the kernel: parsing bytes into types.
//!
//! Does: reads headers, fields and names, and refuses short requests.
//! Does not: answer.
//! Contract: arbitrary bytes never panic. A malformed request is [`MalformedRequest`], with its
//! number if it has one.
//! Truth: include/uapi/linux/fuse.h of Linux, protocol 7.36.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The header of a request: the caller and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// Number of the request, which its answer repeats.
    pub(crate) unique: u64,
    /// The kernel's inode number.
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The waiting thread; 0 if there is none.
    pub(crate) pid: u32,
}

/// A time in the kernel's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelTime {
    Now,
    At { seconds: i64, nanoseconds: u32 },
}

/// Flags of requests that remove set-user-ID and set-group-ID bits.
const OPEN_KILLS: u32 = 1;
const WRITE_KILLS: u32 = 1 << 2;
/// A write of pages that were changed through a mapping or written back late.
const WRITE_CACHE: u32 = 1 << 0;
/// `O_APPEND` among the flags of an open file.
pub(crate) const O_APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
/// `O_DSYNC` among them; `O_SYNC` includes it.
const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();

/// The changes of SETATTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) handle: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<KernelTime>,
    pub(crate) mtime: Option<KernelTime>,
    /// Whether it removes the set-user-ID and set-group-ID bits.
    pub(crate) kills: bool,
}

/// A byte-range or whole-file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRequest {
    /// The open file through which it is requested.
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) start: u64,
    /// The last byte (inclusive).
    pub(crate) end: u64,
    /// F_RDLCK 0, F_WRLCK 1, F_UNLCK 2.
    pub(crate) kind: u32,
    pub(crate) pid: u32,
    /// Whether it is a lock of flock(2).
    pub(crate) whole: bool,
}

/// An operation that the kernel requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget {
        count: u64,
    },
    /// Pairs of node and count, 16 bytes each.
    BatchForget {
        nodes: &'a [u8],
    },
    GetAttr,
    SetAttr(Changes),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a [u8],
    },
    MakeNode {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MakeDirectory {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a OsStr,
    },
    RemoveDirectory {
        name: &'a OsStr,
    },
    Rename {
        from: &'a OsStr,
        to_parent: u64,
        to: &'a OsStr,
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a OsStr,
    },
    Open {
        flags: i32,
        /// Whether truncating the file removes its set-user-ID and set-group-ID bits.
        kills: bool,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        /// Whether it removes the set-user-ID and set-group-ID bits.
        kills: bool,
        /// Whether the file is open with `O_APPEND`: the bytes go to its end, whatever `offset`
        /// says.
        appends: bool,
        /// Whether the file is open with `O_DSYNC` or `O_SYNC`.
        synchronous: bool,
    },
    StatFs,
    Release {
        handle: u64,
        owner: u64,
        unlock: bool,
    },
    Fsync {
        handle: u64,
    },
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a OsStr,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a OsStr,
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Init {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
        /// Flags from bit 32 on; 0 from a kernel that has none.
        flags_high: u32,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    FsyncDirectory,
    GetLock(LockRequest),
    SetLock {
        request: LockRequest,
        wait: bool,
    },
    Create {
        name: &'a OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// Finds data or a hole from `offset` on.
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    /// An operation that is not supported; the kernel then works without it.
    Other {
        code: u32,
    },
}

/// A malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedRequest {
    pub(crate) unique: Option<u64>,
}

/// Reads fields in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    // The kernel runs on the same machine, so its byte order is the native one.
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// Reads text up to its NUL.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(text)
    }

    fn name(&mut self) -> Option<&'a OsStr> {
        self.text().map(OsStr::from_bytes)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Parses a request.
pub(crate) fn parse(bytes: &[u8]) -> Result<(RequestHeader, Operation<'_>), MalformedRequest> {
    let mut fields = Fields(bytes);
    let (header, code, length) = header(&mut fields).ok_or(MalformedRequest { unique: None })?;
    let unreadable = MalformedRequest { unique: Some(header.unique) };
    // The header has the length, and the kernel delivers complete requests.
    if length as usize != bytes.len() {
        return Err(unreadable);
    }
    let operation = operation(code, &mut fields).ok_or(unreadable)?;
    Ok((header, operation))
}

fn header(fields: &mut Fields<'_>) -> Option<(RequestHeader, u32, u32)> {
    let length = fields.u32()?;
    let code = fields.u32()?;
    let (unique, node) = (fields.u64()?, fields.u64()?);
    let (uid, gid, pid) = (fields.u32()?, fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    Some((RequestHeader { unique, node, uid, gid, pid }, code, length))
}

fn operation<'a>(code: u32, fields: &mut Fields<'a>) -> Option<Operation<'a>> {
    Some(match code {
        1 => Operation::Lookup { name: fields.name()? },
        2 => Operation::Forget { count: fields.u64()? },
        3 => Operation::GetAttr,
        4 => Operation::SetAttr(changes(fields)?),
        5 => Operation::ReadLink,
        6 => Operation::Symlink { name: fields.name()?, target: fields.text()? },
        8 => {
            let (mode, rdev, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
            fields.skip(4)?;
            Operation::MakeNode { name: fields.name()?, mode, umask, rdev }
        }
        9 => {
            let (mode, umask) = (fields.u32()?, fields.u32()?);
            Operation::MakeDirectory { name: fields.name()?, mode, umask }
        }
        10 => Operation::Unlink { name: fields.name()? },
        11 => Operation::RemoveDirectory { name: fields.name()? },
        12 => {
            let to_parent = fields.u64()?;
            Operation::Rename { to_parent, from: fields.name()?, to: fields.name()?, flags: 0 }
        }
        13 => Operation::Link { node: fields.u64()?, name: fields.name()? },
        14 => Operation::Open { flags: fields.u32()? as i32, kills: fields.u32()? & OPEN_KILLS != 0 },
        15 => {
            let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
            Operation::Read { handle, offset, size }
        }
        16 => {
            let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
            let write_flags = fields.u32()?;
            fields.skip(8)?;
            let open_flags = fields.u32()?;
            fields.skip(4)?;
            let kills = write_flags & WRITE_KILLS != 0;
            let appends = open_flags & O_APPEND != 0 && write_flags & WRITE_CACHE == 0;
            let synchronous = open_flags & O_DSYNC != 0;
            Operation::Write {
                handle,
                offset,
                data: fields.bytes(size as usize)?,
                kills,
                appends,
                synchronous,
            }
        }
        17 => Operation::StatFs,
        18 => {
            let handle = fields.u64()?;
            fields.skip(4)?;
            let (flags, owner) = (fields.u32()?, fields.u64()?);
            Operation::Release { handle, owner, unlock: flags & 2 != 0 }
        }
        20 => Operation::Fsync { handle: fields.u64()? },
        21 => {
            let (size, flags) = (fields.u32()?, fields.u32()?);
            Operation::SetXattr { name: fields.name()?, value: fields.bytes(size as usize)?, flags }
        }
        22 => {
            let size = fields.u32()?;
            fields.skip(4)?;
            Operation::GetXattr { name: fields.name()?, size }
        }
        23 => Operation::ListXattr { size: fields.u32()? },
        24 => Operation::RemoveXattr { name: fields.name()? },
        25 => {
            let handle = fields.u64()?;
            fields.skip(8)?;
            Operation::Flush { handle, owner: fields.u64()? }
        }
        26 => Operation::Init {
            major: fields.u32()?,
            minor: fields.u32()?,
            readahead_max: fields.u32()?,
            flags: fields.u32()?,
            flags_high: fields.u32().unwrap_or(0),
        },
        27 => Operation::OpenDirectory,
        28 | 44 => {
            let (handle, offset, size) = (fields.u64()?, fields.u64()?, fields.u32()?);
            Operation::ReadDirectory { handle, offset, size, plus: code == 44 }
        }
        29 => Operation::ReleaseDirectory { handle: fields.u64()? },
        30 => Operation::FsyncDirectory,
        31 => Operation::GetLock(lock_request(fields)?),
        32 | 33 => Operation::SetLock { request: lock_request(fields)?, wait: code == 33 },
        35 => {
            let (flags, mode, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
            fields.skip(4)?;
            Operation::Create { name: fields.name()?, mode, umask, flags: flags as i32 }
        }
        36 => Operation::Interrupt { unique: fields.u64()? },
        38 => Operation::Destroy,
        42 => {
            let count = fields.u32()? as usize;
            fields.skip(4)?;
            Operation::BatchForget { nodes: fields.bytes(count.checked_mul(16)?)? }
        }
        43 => Operation::Allocate {
            handle: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u64()?,
            mode: fields.u32()?,
        },
        45 => {
            let (to_parent, flags) = (fields.u64()?, fields.u32()?);
            fields.skip(4)?;
            Operation::Rename { to_parent, flags, from: fields.name()?, to: fields.name()? }
        }
        46 => Operation::Seek { handle: fields.u64()?, offset: fields.u64()?, whence: fields.u32()? },
        code => Operation::Other { code },
    })
}

fn changes(fields: &mut Fields<'_>) -> Option<Changes> {
    let valid = fields.u32()?;
    fields.skip(4)?;
    let (handle, size) = (fields.u64()?, fields.u64()?);
    fields.skip(8)?;
    let (atime, mtime) = (fields.u64()?, fields.u64()?);
    fields.skip(8)?;
    let (atime_ns, mtime_ns) = (fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let when = |set: u32, now: u32, seconds: u64, nanoseconds: u32| match (valid & set, valid & now) {
        (0, _) => None,
        (_, 0) => Some(KernelTime::At { seconds: seconds as i64, nanoseconds: nanoseconds.min(999_999_999) }),
        _ => Some(KernelTime::Now),
    };
    Some(Changes {
        mode: (valid & 1 != 0).then_some(mode),
        uid: (valid & 1 << 1 != 0).then_some(uid),
        gid: (valid & 1 << 2 != 0).then_some(gid),
        size: (valid & 1 << 3 != 0).then_some(size),
        atime: when(1 << 4, 1 << 7, atime, atime_ns),
        mtime: when(1 << 5, 1 << 8, mtime, mtime_ns),
        handle: (valid & 1 << 6 != 0).then_some(handle),
        kills: valid & 1 << 11 != 0,
    })
}

fn lock_request(fields: &mut Fields<'_>) -> Option<LockRequest> {
    let handle = fields.u64()?;
    let (owner, start, end) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let (kind, pid, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
    Some(LockRequest { handle, owner, start, end, kind, pid, whole: flags & 1 != 0 })
}

/// Returns the pairs of a BATCH_FORGET: node and count.
pub(crate) fn forgets(nodes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    nodes.chunks_exact(16).filter_map(|pair| {
        let mut fields = Fields(pair);
        Some((fields.u64()?, fields.u64()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes before the fields of a request.
    const HEADER_BYTES: usize = 40;

    fn request(code: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend(code.to_ne_bytes());
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(1u64.to_ne_bytes());
        for number in [1000u32, 100, 4242, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    #[test]
    fn kernel_requests_parse_to_their_fields() {
        let bytes = request(1, b"name\0");
        let (header, operation) = parse(&bytes).unwrap();
        assert_eq!(header, RequestHeader { unique: 7, node: 1, uid: 1000, gid: 100, pid: 4242 });
        assert_eq!(operation, Operation::Lookup { name: OsStr::new("name") });
        let mut body = 3u64.to_ne_bytes().to_vec();
        body.extend(4096u64.to_ne_bytes());
        body.extend(5u32.to_ne_bytes());
        body.extend(WRITE_KILLS.to_ne_bytes());
        body.extend([0; 16]);
        body.extend(b"bytes");
        let bytes = request(16, &body);
        let write = Operation::Write {
            handle: 3,
            offset: 4096,
            data: b"bytes",
            kills: true,
            appends: false,
            synchronous: false,
        };
        assert_eq!(parse(&bytes).unwrap().1, write);
        // One byte less than the header says.
        body.pop();
        let bytes = request(16, &body);
        assert_eq!(parse(&bytes), Err(MalformedRequest { unique: Some(7) }));
        let bytes = request(6, b"link\0to/here\0");
        assert_eq!(
            parse(&bytes).unwrap().1,
            Operation::Symlink { name: OsStr::new("link"), target: b"to/here" }
        );
    }

    #[test]
    fn append_flag_is_read_except_for_written_back_pages() {
        for (write_flags, open_flags, expected) in
            [(0, O_APPEND | O_DSYNC | 1, true), (WRITE_CACHE, O_APPEND | 1, false), (0, 1, false)]
        {
            let mut body = [3u64.to_ne_bytes(), 4096u64.to_ne_bytes()].concat();
            body.extend([1u32.to_ne_bytes(), write_flags.to_ne_bytes()].concat());
            body.extend(9u64.to_ne_bytes());
            body.extend([open_flags.to_ne_bytes(), [0; 4]].concat());
            body.push(b'x');
            let bytes = request(16, &body);
            let Operation::Write { appends, synchronous, .. } = parse(&bytes).unwrap().1 else {
                panic!("a write")
            };
            assert_eq!(appends, expected, "{write_flags:x} {open_flags:o}");
            assert_eq!(synchronous, open_flags & O_DSYNC != 0);
        }
    }

    #[test]
    fn lock_request_names_its_open_file() {
        let mut body: Vec<u8> = [11u64, 12, 5, 9].iter().flat_map(|number| number.to_ne_bytes()).collect();
        body.extend([1u32, 77, 0, 0].iter().flat_map(|number| number.to_ne_bytes()));
        let bytes = request(32, &body);
        let request = LockRequest { handle: 11, owner: 12, start: 5, end: 9, kind: 1, pid: 77, whole: false };
        assert_eq!(parse(&bytes).unwrap().1, Operation::SetLock { request, wait: false });
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(code in 0u32..60, body in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..240) {
            let bytes = request(code, &body);
            if let Ok((_, Operation::BatchForget { nodes })) = parse(&bytes) {
                prop_assert!(forgets(nodes).count() * 16 <= body.len());
            }
            let _ = parse(&bytes[..cut.min(bytes.len())]);
            let _ = parse(&body);
        }
    }
}
