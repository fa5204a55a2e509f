//! Time and random bytes of this machine.

/// Returns milliseconds since 1970 by this machine's clock, which follows only confirmed steps.
pub fn now_ms() -> u64 {
    sealstone_initiator::machine::now_ms()
}

/// Returns random bytes of the system.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}
