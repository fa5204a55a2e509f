//! The paper's cipher for the security method, in front of the parser: for a device that asks for it.
//!
//! Does: bring a concealed CDB back before anything looks at it; refuse one in the clear. Does not: protect anything
//! (`sealstone_seal::mceliece` says why). The key pair lives as long as this start of the device.
//! Truth: docs/design/security.md 4.2.

use std::borrow::Cow;

use sealstone_seal::Denial;
use sealstone_seal::mceliece::{Parameters, PrivateKey};

use crate::environment::Surroundings;

/// What a device does with concealed CDBs.
pub(crate) struct Concealment(Option<PrivateKey>);

impl Concealment {
    pub(crate) fn new(parameters: Option<Parameters>, surroundings: &Surroundings) -> Self {
        Self(parameters.map(|parameters| {
            PrivateKey::generate(parameters, &mut |into: &mut [u8]| surroundings.fill_random(into))
        }))
    }

    /// Are CDBs to come concealed?
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The published key, encoded; `None` if CDBs come in the clear.
    pub(crate) fn public(&self) -> Option<Vec<u8>> {
        self.0.as_ref().map(|key| key.public().encode())
    }

    /// The CDB as it was signed: the same bytes, or what was concealed in them.
    ///
    /// # Errors
    /// [`Denial::Concealment`]: in the clear where it should not be, the other way round, or no code word.
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
