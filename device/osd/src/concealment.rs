//! The paper's cipher for the security method, in front of the parser: for a device that asks for it.
//!
//! Does: bring a concealed CDB back before anything looks at it; refuse one in the clear. Does not: protect anything
//! (`sealstone_seal::mceliece` says why). The key pair lives as long as this start of the device.
//! Truth: docs/design/security.md 4.2.

use sealstone_osd::Generation;
use sealstone_seal::Denial;
use sealstone_seal::mceliece::{Parameters, PrivateKey};

use crate::environment::Surroundings;

/// Bytes of the longer CDB with its transport padding.
pub(crate) const CDB_MAX: usize = Generation::Osd2.cdb_len() + 4;

/// Room for a CDB that was brought back.
pub(crate) type Room = [u8; CDB_MAX];

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
    pub(crate) fn reveal<'a>(&self, cdb: &'a [u8], room: &'a mut Room) -> Result<&'a [u8], Denial> {
        match (&self.0, PrivateKey::is_concealed(cdb)) {
            (None, false) => Ok(cdb),
            (Some(key), true) => {
                let clear = room.get_mut(..cdb.len()).ok_or(Denial::Concealment)?;
                clear.copy_from_slice(cdb);
                key.reveal(clear).map_err(|_| Denial::Concealment)?;
                Ok(clear)
            }
            (None, true) | (Some(_), false) => Err(Denial::Concealment),
        }
    }
}
