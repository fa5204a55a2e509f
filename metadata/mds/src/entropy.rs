//! Source of randomness, passed in by the caller.

use sealstone_login::{CryptoRng, RngCore};

/// A generator good enough for keys: the system's in production, a seeded one in simulation.
pub trait Entropy: RngCore + CryptoRng {}

impl<T: RngCore + CryptoRng + ?Sized> Entropy for T {}

/// Returns fresh random bytes.
pub(crate) fn random<const N: usize>(rng: &mut dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    rng.fill_bytes(&mut bytes);
    bytes
}
