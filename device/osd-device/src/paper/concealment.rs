//! The paper's cipher for the security method, applied before the parser, on devices that enable
//! it.
//!
//! Does: decrypt a concealed CDB before anything parses it; refuse one in the clear.
//! Does not: provide any protection (`sealstone_seal::paper::mceliece` explains why). The key pair
//! is new at each start of the device.
//! Truth: docs/design/security.md 4.2.

use std::borrow::Cow;

use sealstone_seal::Denial;
use sealstone_seal::paper::mceliece::{Parameters, PrivateKey};

use crate::environment::Env;

/// Decryption of concealed CDBs, if enabled.
pub(crate) struct Concealment(Option<PrivateKey>);

impl Concealment {
    pub(crate) fn new(parameters: Option<Parameters>, env: &Env) -> Self {
        Self(
            parameters.map(|parameters| {
                PrivateKey::generate(parameters, &mut |into: &mut [u8]| env.fill_random(into))
            }),
        )
    }

    /// Whether CDBs must be concealed.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the encoded public key; `None` if CDBs are sent in the clear.
    pub(crate) fn public(&self) -> Option<Vec<u8>> {
        self.0.as_ref().map(|key| key.public().encode())
    }

    /// Returns the CDB as it was signed: unchanged, or decrypted.
    ///
    /// # Errors
    /// [`Denial::Concealment`] if the CDB is in the clear but must not be, or vice versa, or is not
    /// a code word.
    pub(crate) fn reveal<'a>(&self, cdb: &'a [u8]) -> Result<Cow<'a, [u8]>, Denial> {
        match (&self.0, PrivateKey::is_concealed(cdb)) {
            (None, false) => Ok(Cow::Borrowed(cdb)),
            (Some(key), true) => {
                let mut clear = cdb.to_vec();
                key.reveal(&mut clear).map_err(|_| Denial::Concealment)?;
                Ok(Cow::Owned(clear))
            }
            (None, true) | (Some(_), false) => Err(Denial::Concealment),
        }
    }
}
