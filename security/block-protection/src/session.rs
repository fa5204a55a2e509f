//! The session key and its parts.
//!
//! Does: derives all keys of a session from the secrets of the login and from its transcript.
//! Does not: log in; CHAP and TLS do.
//! Contract: two ends that saw different settings, names or nonces derive different keys, so that a
//! changed negotiation is detected at the proof, or at the first PDU.
//! Truth: `docs/standards/block-protection.md`, "Session key"; ADR 74.

use alloc::vec::Vec;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::header::{HeaderKeys, PduDirection};
use crate::negotiation::{LoginNonce, ProtectionSettings};
use crate::record::RecordKeys;

/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
const DOMAIN: &[u8] = b"sealstone block protection v1";

/// The login has no secret: neither CHAP nor TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a protected session needs CHAP or TLS: the login has no secret to derive keys from")]
pub struct NoSessionSecret;

/// Secrets of a login. At least one must not be empty.
#[derive(Clone, Copy)]
pub struct SessionSecrets<'a> {
    /// Secret of the initiator's CHAP account; empty without CHAP.
    pub chap: &'a [u8],
    /// Exported keying material of the TLS connection; empty without TLS.
    pub tls_exporter: &'a [u8],
}

/// The parts of a login on which both ends must agree.
#[derive(Clone, Copy, Debug)]
pub struct LoginTranscript<'a> {
    /// iSCSI name of the initiator.
    pub initiator: &'a str,
    /// iSCSI name of the target.
    pub target: &'a str,
    /// Session identifier of the initiator.
    pub isid: [u8; 6],
    /// Settings of the protection.
    pub settings: ProtectionSettings,
    /// Random bytes of the initiator.
    pub initiator_nonce: LoginNonce,
    /// Random bytes of the target.
    pub target_nonce: LoginNonce,
}

impl LoginTranscript<'_> {
    fn hash(&self) -> [u8; 32] {
        let settings = self.settings.encode();
        let mut hash = Sha256::new();
        let parts: [&[u8]; 7] = [
            DOMAIN,
            self.initiator.as_bytes(),
            self.target.as_bytes(),
            &self.isid,
            settings.as_bytes(),
            &self.initiator_nonce,
            &self.target_nonce,
        ];
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// The end that computes a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofRole {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
}

/// Keys of a session. Wiped when dropped.
pub struct SessionKeys {
    secret: Zeroizing<[u8; 32]>,
    transcript: [u8; 32],
}

impl core::fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

impl SessionKeys {
    /// Derives the keys: HKDF-SHA256 with the nonces as salt and the transcript as info.
    ///
    /// # Errors
    /// [`NoSessionSecret`] if both secrets are empty.
    pub fn derive(
        secrets: SessionSecrets<'_>,
        transcript: &LoginTranscript<'_>,
    ) -> Result<Self, NoSessionSecret> {
        if secrets.chap.is_empty() && secrets.tls_exporter.is_empty() {
            return Err(NoSessionSecret);
        }
        let salt = [transcript.initiator_nonce, transcript.target_nonce].concat();
        let (chap, exporter) = (secrets.chap.len() as u64, secrets.tls_exporter.len() as u64);
        let parts: [&[u8]; 4] =
            [&chap.to_be_bytes(), secrets.chap, &exporter.to_be_bytes(), secrets.tls_exporter];
        let secret = Zeroizing::new(hmac_sha256(&salt, &parts));
        Ok(Self { secret, transcript: transcript.hash() })
    }

    fn expand<const N: usize>(&self, label: &[u8]) -> [u8; N] {
        let mut block = hmac_sha256(&*self.secret, &[DOMAIN, &[0], label, &[0], &self.transcript, &[1]]);
        let part = *block.first_chunk().expect("a key of at most 32 bytes");
        block.zeroize();
        part
    }

    /// Returns the keys of headers, of both directions.
    #[must_use]
    pub fn header_keys(&self) -> HeaderKeys {
        HeaderKeys {
            encryption: self.expand(b"header encryption"),
            authentication: self.expand(b"header authentication"),
        }
    }

    /// Returns the keys of records of one direction.
    #[must_use]
    pub fn record_keys(&self, direction: PduDirection) -> RecordKeys {
        match direction {
            PduDirection::ToTarget => RecordKeys {
                encryption: self.expand(b"record encryption to target"),
                authentication: self.expand(b"record authentication to target"),
            },
            PduDirection::ToInitiator => RecordKeys {
                encryption: self.expand(b"record encryption to initiator"),
                authentication: self.expand(b"record authentication to initiator"),
            },
        }
    }

    /// Returns the proof that an end has these keys.
    #[must_use]
    pub fn proof(&self, role: ProofRole) -> [u8; PROOF_LEN] {
        self.expand(match role {
            ProofRole::Initiator => b"proof of initiator",
            ProofRole::Target => b"proof of target",
        })
    }

    /// Whether a proof is that of the role.
    #[must_use]
    pub fn is_proof(&self, role: ProofRole, proof: &[u8]) -> bool {
        self.proof(role).ct_eq(proof).into()
    }

    /// Returns the proof as text of a login key.
    #[must_use]
    pub fn proof_text(&self, role: ProofRole) -> alloc::string::String {
        crate::negotiation::hex_text(&self.proof(role))
    }

    /// Whether the text of a login key is the proof of the role.
    #[must_use]
    pub fn is_proof_text(&self, role: ProofRole, text: &str) -> bool {
        crate::negotiation::bytes_of_hex(text).is_some_and(|proof: Vec<u8>| self.is_proof(role, &proof))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::{ProtectedBlock, ProtectionLevel, ProtectionProfile};
    use crate::record::RecordSize;

    const SECRETS: SessionSecrets<'static> = SessionSecrets { chap: b"a secret of CHAP", tls_exporter: &[] };

    fn settings() -> ProtectionSettings {
        ProtectionSettings {
            level: ProtectionLevel::S2LazyCipherMac,
            block: ProtectedBlock::B512,
            profile: ProtectionProfile::PaperSafe,
            record: None,
        }
    }

    fn transcript() -> LoginTranscript<'static> {
        LoginTranscript {
            initiator: "iqn.i",
            target: "iqn.t",
            isid: [1; 6],
            settings: settings(),
            initiator_nonce: [2; 32],
            target_nonce: [3; 32],
        }
    }

    /// A changed negotiation cannot go unnoticed.
    #[test]
    fn every_difference_of_login_changes_the_proof() {
        let keys = SessionKeys::derive(SECRETS, &transcript()).unwrap();
        assert!(keys.is_proof(ProofRole::Target, &keys.proof(ProofRole::Target)));
        assert!(keys.is_proof_text(ProofRole::Target, &keys.proof_text(ProofRole::Target)));
        assert!(!keys.is_proof(ProofRole::Target, &keys.proof(ProofRole::Initiator)));
        let good = transcript();
        let lower = ProtectionSettings { level: ProtectionLevel::S1LazyMac, ..settings() };
        let weaker = ProtectionSettings { profile: ProtectionProfile::Paper, ..settings() };
        let other = ProtectionSettings { block: ProtectedBlock::B4096, ..settings() };
        let records = ProtectionSettings {
            level: ProtectionLevel::S1RecordMac,
            record: Some(RecordSize::Packet),
            ..settings()
        };
        let large = ProtectionSettings { record: Some(RecordSize::Large), ..records };
        let mut proofs = std::vec![keys.proof(ProofRole::Target)];
        for changed in [
            LoginTranscript { initiator: "iqn.x", ..good },
            LoginTranscript { target: "iqn.x", ..good },
            LoginTranscript { initiator: "iqn.ii", target: "qn.t", ..good },
            LoginTranscript { isid: [9; 6], ..good },
            LoginTranscript { settings: lower, ..good },
            LoginTranscript { settings: weaker, ..good },
            LoginTranscript { settings: other, ..good },
            LoginTranscript { settings: records, ..good },
            LoginTranscript { settings: large, ..good },
            LoginTranscript { initiator_nonce: [9; 32], ..good },
            LoginTranscript { target_nonce: [9; 32], ..good },
        ] {
            let proof = SessionKeys::derive(SECRETS, &changed).unwrap().proof(ProofRole::Target);
            assert!(!proofs.contains(&proof), "{changed:?}");
            proofs.push(proof);
        }
        for secrets in [
            SessionSecrets { chap: b"another secret", tls_exporter: &[] },
            SessionSecrets { chap: SECRETS.chap, tls_exporter: &[1; 32] },
            SessionSecrets { chap: &[], tls_exporter: SECRETS.chap },
        ] {
            let proof = SessionKeys::derive(secrets, &good).unwrap().proof(ProofRole::Target);
            assert!(!proofs.contains(&proof));
            proofs.push(proof);
        }
    }

    #[test]
    fn login_without_secret_has_no_keys() {
        let none = SessionSecrets { chap: &[], tls_exporter: &[] };
        assert_eq!(SessionKeys::derive(none, &transcript()).unwrap_err(), NoSessionSecret);
    }

    #[test]
    fn keys_of_each_purpose_differ() {
        let keys = SessionKeys::derive(SECRETS, &transcript()).unwrap();
        let (header, to, from) = (
            keys.header_keys(),
            keys.record_keys(PduDirection::ToTarget),
            keys.record_keys(PduDirection::ToInitiator),
        );
        let (own_encryption, own_authentication) = (&header.encryption[..24], &header.authentication[..16]);
        let encryption = [own_encryption, &to.encryption, &from.encryption];
        let authentication = [own_authentication, &to.authentication, &from.authentication];
        for at in 0..3 {
            assert_ne!(encryption[at], encryption[(at + 1) % 3]);
            assert_ne!(authentication[at], authentication[(at + 1) % 3]);
            assert_ne!(encryption[at][..16], *authentication[at]);
        }
    }
}
