//! Serial numbers of 32 bits (RFC 1982, RFC 7143 §4.2.2).

/// Whether `a` is before `b`.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// Whether `first <= n <= last`; the window is empty when `last + 1 == first`.
pub(crate) const fn within(n: u32, first: u32, last: u32) -> bool {
    !before(n, first) && !before(last, n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(before(u32::MAX, 0) && !before(0, u32::MAX) && !before(7, 7));
        assert!(within(1, u32::MAX, 3) && !within(4, u32::MAX, 3) && !within(u32::MAX - 1, u32::MAX, 3));
        assert!(!within(5, 5, 4), "an empty window holds nothing");
    }
}
