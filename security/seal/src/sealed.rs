//! Sealed capabilities: only the device can read a capability, and it cannot be changed by others.
//!
//! Does: seals a capability under the working key that signs it, and opens it.
//! Does not: prove possession; the check values of the command do that as usual, and the capability
//! key is derived from the sealed bytes.
//! Contract: the seal is deterministic and covers every byte, including the security method: a CDB
//! whose method was changed opens under no key. [`open`] returns exactly what [`seal`] took, except
//! the discriminator, for which there is no space: two sealed capabilities differ by their audit
//! fields.
//! Source of truth: docs/design/security.md 4.6; docs/standards/security.md, sealed capabilities.
//!
//! Layout (OSD-2): bytes 0 to 3 in the clear, format Eh; ciphertext 4–9; tag 10–25; ciphertext
//! 26–103. The plaintext is: expiration 6, audit 20, created time 6, object type 1, permissions 5,
//! reserved 1, descriptor type 1, attributes access 4, policy access tag 4, boot epoch 2, partition
//! 8, object 8, range 16, zero 2 (byte offsets of the open form: 4–29, 42–65, 72–103).

use sealstone_osd::{Capability, CapabilityBytes, Generation};

use crate::hierarchy::{SigningKey, SystemId};
use crate::provider::{Provider, SIV_LEN};

/// Label of the sealing key under a working key.
const LABEL: &[u8] = b"sealstone capability seal v1";
/// Number of bytes in the clear, which the seal covers.
const CLEAR: usize = 4;
/// Location of the tag.
const TAG: core::ops::Range<usize> = 10..10 + SIV_LEN;
/// Number of encrypted bytes.
const SECRET_LEN: usize = Generation::Osd2.capability_len() - CLEAR - SIV_LEN;
/// The parts of an open capability that are encrypted.
const PARTS: [core::ops::Range<usize>; 3] = [CLEAR..30, 42..66, 72..104];
/// Bytes before the tag.
const HEAD: usize = TAG.start - CLEAR;

const _: () = assert!(26 + 24 + 32 <= SECRET_LEN);

/// Seals an OSD-2 capability under the key that signs it; `None` for the other generation, which
/// has no space for a seal. The discriminator is left out.
pub(crate) fn seal<P: Provider>(
    capability: &Capability,
    key: &SigningKey<P>,
    system_id: &SystemId,
) -> Option<CapabilityBytes> {
    let open = capability.encode();
    if capability.generation != Generation::Osd2 || capability.format != Generation::Osd2 {
        return None;
    }
    let mut secret = [0; SECRET_LEN];
    let mut at = 0;
    for part in PARTS {
        let bytes = &open[part];
        secret[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    let mut wire = [0; Generation::Osd2.capability_len()];
    wire[..CLEAR].copy_from_slice(&open[..CLEAR]);
    wire[0] = CapabilityBytes::SEALED_FORMAT;
    let tag = P::seal_deterministically(&sealing_key(key, system_id), &wire[..CLEAR], &mut secret);
    wire[CLEAR..TAG.start].copy_from_slice(&secret[..HEAD]);
    wire[TAG].copy_from_slice(&tag);
    wire[TAG.end..].copy_from_slice(&secret[HEAD..]);
    CapabilityBytes::new(Generation::Osd2, &wire)
}

/// Opens a sealed capability; `None` if it was not sealed under this key, or was changed.
pub(crate) fn open<P: Provider>(
    sealed: &CapabilityBytes,
    key: &SigningKey<P>,
    system_id: &SystemId,
) -> Option<Capability> {
    if !sealed.is_sealed() {
        return None;
    }
    let mut secret = [0; SECRET_LEN];
    secret[..HEAD].copy_from_slice(&sealed[CLEAR..TAG.start]);
    secret[HEAD..].copy_from_slice(&sealed[TAG.end..]);
    let tag = sealed[TAG].first_chunk()?;
    if !P::open_deterministically(&sealing_key(key, system_id), &sealed[..CLEAR], &mut secret, tag) {
        return None;
    }
    let mut wire = [0; Generation::Osd2.capability_len()];
    wire[..CLEAR].copy_from_slice(&sealed[..CLEAR]);
    wire[0] = Generation::Osd2.number();
    let mut at = 0;
    for part in PARTS {
        let bytes = &mut wire[part];
        bytes.copy_from_slice(&secret[at..at + bytes.len()]);
        at += bytes.len();
    }
    if secret[at..].iter().any(|byte| *byte != 0) {
        return None;
    }
    let bytes = CapabilityBytes::new(Generation::Osd2, &wire)?;
    bytes.parse().ok().filter(|capability| capability.encode() == bytes)
}

/// Returns a key of its own for each working key and device: a capability sealed for one opens
/// nowhere else.
fn sealing_key<P: Provider>(key: &SigningKey<P>, system_id: &SystemId) -> zeroize::Zeroizing<[u8; 32]> {
    zeroize::Zeroizing::new(key.derive(&[LABEL, system_id]))
}
