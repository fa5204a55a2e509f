//! `sealstone-fuse`: kernel requests to a mount.

use sealstone_fuse::examine;

use crate::Target;

/// Length of a request header, in bytes.
const HEADER_BYTES: usize = 40;

/// A kernel request with this opcode.
fn seed(code: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(code.to_ne_bytes());
    bytes.extend(7u64.to_ne_bytes());
    bytes.extend(1u64.to_ne_bytes());
    bytes.extend([1000u32, 100, 4242, 0].into_iter().flat_map(u32::to_ne_bytes));
    bytes.extend(body);
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().copied().flat_map(u64::to_ne_bytes).collect() };
    let zeros = [0; 64];
    let mut all = vec![
        // LOOKUP, FORGET, GETATTR; SETATTR of all attributes.
        seed(1, &[b"name\0"]),
        seed(2, &[&words(&[3])]),
        seed(3, &[&zeros[..16]]),
        seed(4, &[&words(&[0x1FF, 5, 1 << 20, 0, 1_800_000_000, 1_800_000_000, 0]), &zeros[..32]]),
        seed(5, &[]),
        // SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK.
        seed(6, &[b"link\0to/here\0"]),
        seed(8, &[&words(&[0o100_644, 0]), b"node\0"]),
        seed(9, &[&words(&[0o755]), b"folder\0"]),
        seed(10, &[b"name\0"]),
        seed(11, &[b"folder\0"]),
        seed(12, &[&words(&[2]), b"from\0to\0"]),
        seed(13, &[&words(&[2]), b"name\0"]),
        // OPEN, READ, WRITE, STATFS, RELEASE, FSYNC.
        seed(14, &[&words(&[0x8002])]),
        seed(15, &[&words(&[5, 4096, 131_072, 0, 0])]),
        seed(16, &[&words(&[5, 4096, 5, 0, 0]), b"bytes"]),
        seed(17, &[]),
        seed(18, &[&words(&[5, 2 << 32, 9])]),
        seed(20, &[&words(&[5, 1])]),
        // SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, FLUSH, INIT.
        seed(21, &[&words(&[5]), b"user.name\0value"]),
        seed(22, &[&words(&[256]), b"user.name\0"]),
        seed(23, &[&words(&[256])]),
        seed(24, &[b"user.name\0"]),
        seed(25, &[&words(&[5, 0, 9])]),
        seed(26, &[&words(&[36 << 32 | 7, 131_072])]),
        // Directories, locks, CREATE, INTERRUPT, DESTROY.
        seed(27, &[&words(&[0])]),
        seed(28, &[&words(&[5, 0, 4096, 0, 0])]),
        seed(44, &[&words(&[5, 2, 4096, 0, 0])]),
        seed(29, &[&words(&[5, 0, 0])]),
        seed(30, &[&words(&[5, 1])]),
        seed(31, &[&words(&[5, 9, 10, 20, 1 << 32, 0])]),
        seed(32, &[&words(&[5, 9, 0, i64::MAX as u64, 1, 1])]),
        seed(33, &[&words(&[5, 9, u64::MAX, 0, 2, 0])]),
        seed(35, &[&words(&[0o644 << 32 | 0x42, 0]), b"file\0"]),
        seed(36, &[&words(&[6])]),
        seed(38, &[]),
        // BATCH_FORGET, FALLOCATE, RENAME2, LSEEK, an unsupported one.
        seed(42, &[&words(&[2, 3, 1, 4, 9])]),
        seed(43, &[&words(&[5, 0, 4096, 3])]),
        seed(45, &[&words(&[2, 1]), b"from\0to\0"]),
        seed(46, &[&words(&[5, 4096, 4])]),
        seed(47, &[&zeros[..56]]),
    ];
    // Counts larger than the following data.
    all.push(seed(42, &[&words(&[u64::from(u32::MAX), 3, 1])]));
    all.push(seed(16, &[&words(&[5, u64::MAX, u64::MAX, 0, 0]), b"bytes"]));
    all
}

fn request(input: &[u8]) {
    let number =
        |bytes: &[u8]| bytes.get(8..16).and_then(|number| number.try_into().ok()).map(u64::from_ne_bytes);
    let check = |bytes: &[u8]| match examine(bytes) {
        Ok(unique) => assert_eq!(Some(unique), number(bytes)),
        Err(Some(unique)) => assert_eq!(Some(unique), number(bytes)),
        Err(None) => assert!(bytes.len() < HEADER_BYTES, "a request with a number gets a reply"),
    };
    check(input);
    // The same request with the correct length in its header.
    if input.len() >= HEADER_BYTES {
        let mut honest = input.to_vec();
        honest[..4].copy_from_slice(&(input.len() as u32).to_ne_bytes());
        check(&honest);
    }
}

pub(crate) const REQUEST: Target = Target {
    name: "client-fuse-request",
    about: "a request of the kernel; each that has a header has its number, and an answer can be sent",
    run: request,
    seeds,
    cost: 1,
    quarantine: None,
    covers: &["fuse::examine"],
};
