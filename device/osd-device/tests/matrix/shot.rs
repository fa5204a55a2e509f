//! Converts a case to the bytes that are sent, and to the expected condition.

use sealstone_crypto::RustCrypto;
use sealstone_osd::cdb::pointer;
use sealstone_osd::{CapabilityBytes, Cdb, Generation, SecurityMethod};
use sealstone_seal::{
    Algorithm, AlgorithmSlots, Hash, IcvKeys, InitialKey, KeyHierarchy, KeySelector, SecurityToken, selector,
};

use super::cases::{Case, Finish, Further, Key, found_first, full};
use super::conditions::{self as condition, Condition};
use super::samples::Sample;
use super::support::{Bench, MASTER, PID, Ready, SIGN_HERE, SYSTEM_ID};

/// A request ready to be sent.
pub struct Shot {
    pub cdb: Vec<u8>,
    pub data_out: Vec<u8>,
    pub data_in_max: usize,
    pub expected: Condition,
    /// State to verify the reply with.
    pub ready: Option<Ready>,
}

/// Builds a case. Returns `None` if its change makes the CDB unparsable, which is not a refusal of
/// authority.
pub fn build(bench: &Bench, token: SecurityToken, sample: &Sample, case: &Case) -> Option<Shot> {
    let mut capability = full(sample, case.method);
    (case.edit)(&mut capability);
    let used = if matches!(case.finish, Finish::Token) { SecurityToken([9; 32]) } else { token };
    let ready = bench.build(
        sample.command,
        &case.lists,
        sample.data(),
        &capability,
        continuation(sample, &case.further),
        &used,
    );
    let mut cdb = ready.cdb.clone();
    let mut data_out = ready.data_out.clone();
    let mut expected = Condition { ..case.condition };
    let mut genuine = true;
    match &case.finish {
        Finish::AsIs | Finish::Twice | Finish::Token => {}
        Finish::Sign(patches) => {
            genuine = false;
            for (at, bytes) in patches {
                cdb[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let (keys, selector) = (bench.keys.lock(), signer_of(sample, &cdb));
            sign(&mut cdb, sample.generation, &keys, selector, &token);
        }
        Finish::Nonce(off) => {
            genuine = false;
            let at = usize::from(pointer::nonce(sample.generation));
            let time = super::support::START_MS.wrapping_add_signed(*off);
            cdb[at..at + 6].copy_from_slice(&time.to_be_bytes()[2..]);
            let (keys, selector) = (bench.keys.lock(), signer_of(sample, &cdb));
            sign(&mut cdb, sample.generation, &keys, selector, &token);
        }
        Finish::Tamper(patches) => {
            for (at, bits) in patches {
                cdb[*at..at + bits.len()].iter_mut().zip(bits).for_each(|(byte, bits)| *byte ^= bits);
            }
            expected = tampered(bench, sample.generation, &cdb, expected)?;
        }
        Finish::Key(key) => {
            let (hierarchy, selector) = other_key(*key, signer_of(sample, &cdb));
            sign(&mut cdb, sample.generation, &hierarchy, selector, &token);
        }
        Finish::DataOut(from_end) => {
            let at = data_out.len() - from_end;
            data_out[at] ^= 1;
        }
        Finish::DataOutFront(at) => data_out[*at] ^= 1,
        Finish::List => {
            let attributes = Cdb::parse(&cdb).unwrap().attributes;
            let segment = attributes.set_segment().or(attributes.get_list_segment()).unwrap();
            data_out[segment.end() as usize - 1] ^= 1;
        }
        Finish::Short => drop(data_out.pop()),
        Finish::Empty => data_out.clear(),
    }
    let data_in_max = ready.data_in_max;
    Some(Shot { cdb, data_out, data_in_max, expected, ready: genuine.then_some(ready) })
}

/// Returns the continuation segment with the extension capability of the case.
fn continuation(sample: &Sample, further: &Further) -> Vec<u8> {
    match (further, sample.further) {
        (Further::Sound, _) | (_, None) => sample.continuation.clone(),
        (Further::Changed(edit), Some(mut capability)) => {
            edit(&mut capability);
            sample.continuation_with(Some(&capability), SIGN_HERE)
        }
        (Further::Unproven, Some(capability)) => sample.continuation_with(Some(&capability), [0x11; 32]),
        (Further::Missing, Some(_)) => sample.continuation_with(None, SIGN_HERE),
    }
}

/// Returns the key that must sign a CDB.
fn signer_of(sample: &Sample, cdb: &[u8]) -> KeySelector {
    selector(&sample.command, cdb[81] >> 4)
}

/// Returns the condition for a changed CDB.
fn tampered(bench: &Bench, generation: Generation, cdb: &[u8], expected: Condition) -> Option<Condition> {
    if expected.reason != condition::REQUEST_ICV.reason {
        return Some(expected);
    }
    let parsed = Cdb::parse(cdb).ok()?;
    let bytes = CapabilityBytes::new(generation, &cdb[80..80 + generation.capability_len()]).unwrap();
    let capability = bytes.parse().unwrap();
    let keys = bench.keys.lock();
    let known = keys.signing_key(selector(&parsed.command, capability.key_version)).is_some();
    found_first(cdb, bytes.is_canonical(), known)
}

/// Returns a hierarchy and a wrong key of it.
fn other_key(key: Key, right: KeySelector) -> (KeyHierarchy<RustCrypto>, KeySelector) {
    let hierarchy = |master: [u8; 32], system_id| {
        let mut keys = KeyHierarchy::factory(Hash::Sha256, &InitialKey::new(&master).unwrap(), system_id);
        keys.add_partition(PID).unwrap();
        keys
    };
    match key {
        Key::ForeignDevice => (hierarchy(MASTER, [3; 20]), right),
        Key::StaleMaster => (hierarchy([9; 32], SYSTEM_ID), right),
        Key::WrongLevel => {
            let working = |partition| KeySelector::Working { partition, version: 0 };
            let other = if right == working(0) { working(PID) } else { working(0) };
            (hierarchy(MASTER, SYSTEM_ID), other)
        }
    }
}

/// Signs a CDB with any content.
fn sign(
    cdb: &mut [u8],
    generation: Generation,
    keys: &KeyHierarchy<RustCrypto>,
    selector: KeySelector,
    token: &SecurityToken,
) {
    let width = generation.icv_len();
    let bytes = CapabilityBytes::new(generation, &cdb[80..80 + generation.capability_len()]).unwrap();
    let algorithm = AlgorithmSlots::DEFAULT
        .get(cdb[81] & 0x0F)
        .filter(|algorithm| algorithm.hash().tag_len() <= width)
        .unwrap_or(generation.select([Algorithm::HmacSha1, Algorithm::HmacSha256Split]));
    let zero = KeySelector::Working { partition: 0, version: 0 };
    let signing = keys.signing_key(selector).or_else(|| keys.signing_key(zero)).unwrap();
    let key = signing.capability_key(algorithm, &bytes, keys.system_id());
    let method = SecurityMethod::from_nibble(cdb[82]).unwrap_or(SecurityMethod::AllData);
    let icv = IcvKeys::<RustCrypto>::new(algorithm, &key, method);
    let at = usize::from(pointer::request_icv(generation));
    cdb[at..at + width].fill(0);
    let tag = if method < SecurityMethod::CmdRsp {
        icv.token(token)
    } else {
        icv.request(generation, &cdb[..generation.cdb_len()]).unwrap()
    };
    assert!(tag.place(&mut cdb[at..at + width]));
}
