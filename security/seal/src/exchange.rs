//! SET MASTER KEY: derives the next master key from the secret of a Diffie-Hellman exchange.
//!
//! Does: the two derivations, and the state of the exchange.
//! Does not: Diffie-Hellman itself; `sealstone-crypto` does.
//! Contract: both ends pass the same arguments and get the same pair.
//! Source of truth: t10-osd 4.9; docs/design/security.md 3.6; choices in
//! `docs/standards/security.md`.

use crate::algorithm::Hash;
use crate::hierarchy::{KeyHierarchy, SystemId, derive_with};
use crate::key::{AuthenticationKey, GenerationKey, KeyPair};
use crate::provider::Provider;

/// Validity of a seed exchange, milliseconds.
pub const EXCHANGE_MS: u64 = 10_000;

/// How a key pair is derived from an agreed secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// The standard's: MAC under the present generation key over secret and OSD SYSTEM ID; the last
    /// bit of the secret is 0 for the generation key and 1 for the authentication key.
    Standard,
    /// Ours, for groups that the standard does not have: HKDF (RFC 5869) with the present
    /// generation key as salt and the transcript as info, so that a changed value changes the keys.
    Transcript,
}

/// The shared state of both ends after a seed exchange.
#[derive(Clone, Copy)]
pub struct SeedExchange<'a> {
    /// How the pair is derived.
    pub derivation: Derivation,
    /// Code of the group.
    pub group: u8,
    /// The application client's public value.
    pub client: &'a [u8],
    /// The device server's public value.
    pub device: &'a [u8],
    /// The agreed secret, as long as a public value.
    pub secret: &'a [u8],
}

const LABEL_AUTHENTICATION: &[u8] = b"sealstone master authentication v1";
const LABEL_GENERATION: &[u8] = b"sealstone master generation v1";

/// Derives the pair of an exchange under the present master generation key.
#[must_use]
pub fn derive_exchanged<P: Provider>(
    hash: Hash,
    present: &GenerationKey,
    system_id: &SystemId,
    exchange: &SeedExchange<'_>,
) -> KeyPair {
    match exchange.derivation {
        Derivation::Standard => derive_with::<P>(hash, present.expose(), exchange.secret, system_id),
        Derivation::Transcript => {
            let salt = P::mac_key(hash, present.expose());
            let mut extracted = P::tag(&salt, &[exchange.secret]);
            let key = P::mac_key(hash, extracted.as_bytes());
            zeroize::Zeroize::zeroize(&mut extracted);
            let lengths = [exchange.client.len() as u64, exchange.device.len() as u64].map(u64::to_be_bytes);
            let expand = |label: &[u8]| {
                let [client, device] = &lengths;
                let group = [exchange.group];
                P::tag(
                    &key,
                    &[label, system_id, &group, client, exchange.client, device, exchange.device, &[0x01]],
                )
            };
            KeyPair {
                authentication: AuthenticationKey::from_tag(expand(LABEL_AUTHENTICATION)),
                generation: GenerationKey::from_tag(expand(LABEL_GENERATION)),
            }
        }
    }
}

impl<P: Provider> KeyHierarchy<P> {
    /// Derives the pair of an exchange under this hierarchy's master key.
    #[must_use]
    pub fn exchanged(&self, exchange: &SeedExchange<'_>) -> KeyPair {
        derive_exchanged::<P>(self.hash, &self.master.generation, &self.system_id, exchange)
    }
}
