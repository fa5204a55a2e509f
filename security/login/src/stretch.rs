//! Key stretching: the Argon2id parameters of each suite, with lower limits. They set the cost of
//! guessing a password.

use opaque_ke::argon2::{Algorithm, Argon2, Params, Version};
use sealstone_mds_protocol::login::{SUITE_LIGHT, SUITE_SERVICE_A, SUITE_SERVICE_B, SUITE_STANDARD};

use crate::LoginFailure;

/// Minimum memory of Argon2id, KiB.
pub const ARGON2_FLOOR_MEMORY_KIB: u32 = 19 * 1024;
/// Minimum passes of Argon2id.
pub const ARGON2_FLOOR_PASSES: u32 = 2;

/// Argon2id with parameters not below the minimum; for key files, whose 256 random bits need no
/// stretching, with the smallest that the function supports.
pub struct Stretch(Argon2<'static>);

impl Stretch {
    /// Returns the parameters of a suite number.
    ///
    /// # Errors
    /// `OpaqueSuite` for an unknown number.
    pub fn for_suite(suite: u16) -> Result<Self, LoginFailure> {
        match suite {
            SUITE_STANDARD => Self::new(64 * 1024, 3, 4),
            SUITE_LIGHT => Self::new(ARGON2_FLOOR_MEMORY_KIB, ARGON2_FLOOR_PASSES, 1),
            SUITE_SERVICE_A | SUITE_SERVICE_B => Self::unchecked(8, 1, 1),
            #[cfg(test)]
            CHEAP_FOR_TESTS => Self::unchecked(64, 1, 1),
            other => Err(LoginFailure::Suite(other)),
        }
    }

    fn new(memory_kib: u32, passes: u32, lanes: u32) -> Result<Self, LoginFailure> {
        if memory_kib < ARGON2_FLOOR_MEMORY_KIB || passes < ARGON2_FLOOR_PASSES {
            return Err(LoginFailure::Stretch);
        }
        Self::unchecked(memory_kib, passes, lanes)
    }

    fn unchecked(memory_kib: u32, passes: u32, lanes: u32) -> Result<Self, LoginFailure> {
        let parameters = Params::new(memory_kib, passes, lanes, None).map_err(|_| LoginFailure::Stretch)?;
        Ok(Self(Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters)))
    }

    pub(crate) const fn ksf(&self) -> &Argon2<'static> {
        &self.0
    }
}

/// Maximum memory of a stretched passphrase, KiB: values from a header are limited before they are
/// authenticated.
pub const STRETCH_MEMORY_KIB_MAX: u32 = 1 << 20;
/// Maximum passes and lanes of a stretched passphrase.
pub const STRETCH_PASSES_MAX: u32 = 64;

/// Computes Argon2id of a passphrase that protects stored data: 32 bytes.
///
/// # Errors
/// `Stretch` for parameters outside the limits, or if there is no memory.
pub fn stretch_passphrase(
    passphrase: &[u8],
    salt: &[u8; 16],
    memory_kib: u32,
    passes: u32,
    lanes: u32,
) -> Result<zeroize::Zeroizing<[u8; 32]>, LoginFailure> {
    let within =
        memory_kib <= STRETCH_MEMORY_KIB_MAX && passes <= STRETCH_PASSES_MAX && lanes <= STRETCH_PASSES_MAX;
    if !within {
        return Err(LoginFailure::Stretch);
    }
    let mut out = zeroize::Zeroizing::new([0; 32]);
    let stretch = Stretch::new(memory_kib, passes, lanes)?;
    stretch.0.hash_password_into(passphrase, salt, &mut *out).map_err(|_| LoginFailure::Stretch)?;
    Ok(out)
}

/// Below the minimum, so that unit tests are quick; exists in no other build.
#[cfg(test)]
pub(crate) const CHEAP_FOR_TESTS: u16 = 0xFFFF;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_below_the_floor_are_refused() {
        assert!(Stretch::new(ARGON2_FLOOR_MEMORY_KIB - 1, 3, 4).is_err());
        assert!(Stretch::new(64 * 1024, 1, 4).is_err());
        assert_eq!(Stretch::for_suite(7).err(), Some(LoginFailure::Suite(7)));
        assert!(Stretch::for_suite(SUITE_STANDARD).is_ok() && Stretch::for_suite(SUITE_LIGHT).is_ok());
    }
}
