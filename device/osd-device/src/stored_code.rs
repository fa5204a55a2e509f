//! Code of a function as it is kept between runs.

use std::sync::Arc;

use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::FunctionAttributes;

/// A function object as the store had it after some number of changes.
#[derive(Clone)]
pub(crate) struct StoredCode {
    pub(crate) attributes: FunctionAttributes,
    pub(crate) bytes: Arc<[u8]>,
    /// BLAKE3-256 of the bytes.
    pub(crate) digest: [u8; CODE_DIGEST_LEN],
}

impl StoredCode {
    /// Maximum bytes of all code that is kept.
    pub(crate) const CACHE_BYTES_MAX: usize = 16 << 20;
}
