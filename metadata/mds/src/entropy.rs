//! Randomness, passed in.

use sealstone_login::{CryptoRng, RngCore};

/// A generator good enough for keys. The shell passes the system's, a simulation a seeded one.
pub trait Entropy: RngCore + CryptoRng {}

impl<T: RngCore + CryptoRng + ?Sized> Entropy for T {}

/// Fresh random bytes.
pub(crate) fn random<const N: usize>(rng: &mut dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    rng.fill_bytes(&mut bytes);
    bytes
}
