//! The primitives behind the provider trait of seal.
//!
//! Does: HMAC over SHA-1 and SHA-256 from RustCrypto, with cached midstates; Diffie-Hellman
//! ([`dh`]); signatures of publishers ([`signature`]); secrets at rest ([`vault`], [`record`]);
//! with feature `std` also the system's random bytes and mutexes.
//! Does not: define any wire format.
//! Contract: a [`MacKey`] is 2 midstates; a tag costs the blocks of its message plus two, and never
//! allocates.
//! Source of truth: RFC 2104, FIPS 180-4; tests hold the vectors of RFC 2202 and RFC 4231.

#![no_std]

#[cfg(any(feature = "std", test))]
extern crate std;

extern crate alloc;

pub mod dh;
mod mac;
pub mod record;
pub mod signature;
#[cfg(feature = "std")]
mod system;
pub mod vault;

pub use mac::{MacKey, RustCrypto};
#[cfg(feature = "std")]
pub use system::{ParkingLot, ParkingLotMutex, SystemRandom};
