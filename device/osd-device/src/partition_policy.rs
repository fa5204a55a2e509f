//! The policy of a partition about the functions in it.
//!
//! Does: check functions, and keep the verdicts about signatures that were valid.
//! Contract: a kept verdict is about key, signature and message together, so a change of code,
//! description or key needs a new one. A changed policy is a new value without verdicts.
//! Truth: docs/standards/active.md, attribute pages.

use std::collections::VecDeque;

use parking_lot::Mutex;
use sealstone_crypto::signature;
use sealstone_osd::AttributeId;
use sealstone_osd::function::CODE_DIGEST_LEN;
use sealstone_osd::function::attributes::{
    ALLOWED_CODE, FunctionAttributes, FunctionPolicy, POLICY, POLICY_ENTRIES_MAX, PUBLIC_KEY_LEN,
    SIGNATURE_LEN, TRUSTED_KEYS, signed_message,
};

/// Maximum number of signatures of a policy whose verdict is kept.
const VERIFIED_MAX: usize = 32;

/// The policy page of a partition.
pub(crate) struct PartitionPolicy {
    /// `None` for a reserved code: nothing may run.
    policy: Option<FunctionPolicy>,
    values: Vec<(AttributeId, Vec<u8>)>,
    /// BLAKE3-256 of key, signature and message of each valid signature; the last one is the
    /// newest.
    verified: Mutex<VecDeque<[u8; 32]>>,
}

impl PartitionPolicy {
    /// Maximum bytes of all policies that are kept. Each has at most 512 entries of 32 bytes.
    pub(crate) const CACHE_BYTES_MAX: usize = 1 << 20;

    /// Returns the policy of the attributes of its page.
    pub(crate) fn new(values: Vec<(AttributeId, Vec<u8>)>) -> Self {
        let policy =
            values.iter().find(|(id, _)| *id == POLICY).and_then(|(_, value)| value.first().copied());
        // A reserved code cannot be set; if it is stored nevertheless, nothing may run.
        let policy = policy.map_or(Some(FunctionPolicy::Any), FunctionPolicy::from_code);
        Self { policy, values, verified: Mutex::default() }
    }

    /// Returns the bytes of the attributes.
    pub(crate) fn bytes(&self) -> usize {
        self.values.iter().map(|(_, value)| value.len()).sum()
    }

    fn lists(&self, first: AttributeId, wanted: &[u8]) -> bool {
        let numbers = first.number..first.number + POLICY_ENTRIES_MAX;
        self.values.iter().any(|(id, value)| numbers.contains(&id.number) && value == wanted)
    }

    /// Whether a function may run.
    pub(crate) fn permits(&self, digest: &[u8; CODE_DIGEST_LEN], attributes: &FunctionAttributes) -> bool {
        match self.policy {
            None => false,
            Some(FunctionPolicy::Any) => true,
            Some(FunctionPolicy::AllowList) => self.lists(ALLOWED_CODE, digest),
            Some(FunctionPolicy::Signed) => match (&attributes.publisher_key, &attributes.signature) {
                (Some(key), Some(signed)) => {
                    self.lists(TRUSTED_KEYS, key)
                        && self.is_signed(key, &signed_message(digest, attributes), signed)
                }
                _ => false,
            },
        }
    }

    /// Whether a signature is valid. Only valid ones are kept, so invalid ones remove no verdict.
    fn is_signed(&self, key: &[u8; PUBLIC_KEY_LEN], message: &[u8], signed: &[u8; SIGNATURE_LEN]) -> bool {
        let mut hasher = blake3::Hasher::new();
        hasher.update(key).update(signed).update(message);
        let subject = *hasher.finalize().as_bytes();
        if self.verified.lock().contains(&subject) {
            return true;
        }
        if !signature::verify(key, message, signed) {
            return false;
        }
        let mut verified = self.verified.lock();
        if verified.len() == VERIFIED_MAX {
            verified.pop_front();
        }
        verified.push_back(subject);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: [u8; CODE_DIGEST_LEN] = [1; CODE_DIGEST_LEN];

    fn signed_by(seed: u8, code: &[u8; CODE_DIGEST_LEN], version: &str) -> FunctionAttributes {
        let pair = signature::PublisherKey::from_seed(&[seed; 32]);
        let mut attributes = FunctionAttributes {
            version: version.to_owned(),
            publisher_key: Some(pair.public()),
            ..FunctionAttributes::default()
        };
        attributes.signature = Some(pair.sign(&signed_message(code, &attributes)));
        attributes
    }

    fn trusting(attributes: &FunctionAttributes) -> PartitionPolicy {
        let key = attributes.publisher_key.unwrap().to_vec();
        PartitionPolicy::new(vec![(POLICY, vec![FunctionPolicy::Signed as u8]), (TRUSTED_KEYS, key)])
    }

    #[test]
    fn kept_verdict_is_about_all_that_was_signed() {
        let signed = signed_by(1, &CODE, "1");
        let policy = trusting(&signed);
        assert!(policy.permits(&CODE, &signed) && policy.permits(&CODE, &signed));
        assert_eq!(policy.verified.lock().len(), 1, "verified once");
        assert!(!policy.permits(&[2; CODE_DIGEST_LEN], &signed), "other code");
        let other = FunctionAttributes { version: "2".to_owned(), ..signed.clone() };
        assert!(!policy.permits(&CODE, &other), "another description");
        let mut forged = signed.clone();
        forged.signature.as_mut().unwrap()[0] ^= 1;
        assert!(!policy.permits(&CODE, &forged), "another signature");
        assert!(!policy.permits(&CODE, &signed_by(2, &CODE, "1")), "an untrusted key");
        assert_eq!(policy.verified.lock().len(), 1, "refusals are not kept");
        let without_key = PartitionPolicy::new(vec![(POLICY, vec![FunctionPolicy::Signed as u8])]);
        assert!(!without_key.permits(&CODE, &signed), "a changed policy has no verdicts");
    }

    #[test]
    fn kept_verdicts_are_limited() {
        let policy = trusting(&signed_by(1, &CODE, ""));
        for number in 0..=VERIFIED_MAX {
            assert!(policy.permits(&CODE, &signed_by(1, &CODE, &number.to_string())));
        }
        assert_eq!(policy.verified.lock().len(), VERIFIED_MAX);
        assert!(policy.permits(&CODE, &signed_by(1, &CODE, "0")), "it is verified again");
    }
}
