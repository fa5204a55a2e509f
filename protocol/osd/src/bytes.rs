//! Big-endian fields at offsets of a slice; nothing here panics on short input.

/// Copies `N` bytes at `at`; `None` past the end.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Reads one byte.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// Reads two bytes.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Reads four bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Reads eight bytes.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Converts a 48-bit time in milliseconds since 1970-01-01 UT.
pub(crate) const fn time_from(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns the low 48 bits of a time in milliseconds; the year 10889 saturates.
pub(crate) const fn time_bytes(ms: u64) -> [u8; 6] {
    let ms = if ms > TIME_MAX { TIME_MAX } else { ms };
    let [_, _, a, b, c, d, e, f] = ms.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Latest time that fits the six bytes of the wire.
pub(crate) const TIME_MAX: u64 = 0xFFFF_FFFF_FFFF;
