//! Random numbers of temporary names.

/// Returns a random number.
pub(crate) fn random_number() -> u64 {
    getrandom::u64().expect("the system gives random bytes")
}
