//! The session key sKEYID, and the keys and proofs that are derived from it.

use alloc::vec::Vec;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sealstone_mds_protocol::paper::{Cookie, Nonce, Proof};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::{Algorithms, Encryption, Hash};

/// Bytes of a session's keys as both ends may store them.
pub const PAPER_SESSION_BYTES: usize = 34;
/// Bytes of the longest hash.
pub(crate) const HASH_MAX: usize = 32;

/// Computes HMAC with the hash of a session.
pub(crate) fn mac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    macro_rules! with {
        ($hash:ty) => {{
            let mut mac = Hmac::<$hash>::new_from_slice(key).expect("HMAC takes any key");
            parts.iter().for_each(|part| mac.update(part));
            Zeroizing::new(mac.finalize().into_bytes().to_vec())
        }};
    }
    match hash {
        Hash::Sha1 => with!(Sha1),
        Hash::Sha256 => with!(Sha256),
    }
}

/// The result of a login at both ends: sKEYID and its algorithms. Wiped when dropped, never
/// printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PaperSession {
    #[zeroize(skip)]
    algorithms: Algorithms,
    /// As long as the hash.
    skeyid: Vec<u8>,
}

/// The keys of one direction.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct DirectionKeys {
    #[zeroize(skip)]
    pub(crate) algorithms: Algorithms,
    /// 32 bytes; AES-128 uses the first 16.
    pub(crate) encryption: [u8; 32],
    pub(crate) authentication: Vec<u8>,
}

impl PaperSession {
    /// Computes `prf(N_c | N_m, g^xy | CKY-C | CKY-M)`.
    pub(crate) fn new(
        algorithms: Algorithms,
        nonces: [&Nonce; 2],
        shared: &[u8],
        cookies: [&Cookie; 2],
    ) -> Self {
        let key = [nonces[0].as_slice(), nonces[1].as_slice()].concat();
        let skeyid = mac(algorithms.hash, &key, &[shared, cookies[0], cookies[1]]).to_vec();
        Self { algorithms, skeyid }
    }

    /// Returns the negotiated algorithms.
    #[must_use]
    pub const fn algorithms(&self) -> Algorithms {
        self.algorithms
    }

    /// Returns sKEYID: for vectors; as secret as the session.
    #[must_use]
    pub fn skeyid(&self) -> &[u8] {
        &self.skeyid
    }

    /// Returns the bytes to be stored as a secret: encryption, hash, sKEYID filled with zeros.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; PAPER_SESSION_BYTES]> {
        let mut bytes = Zeroizing::new([0; PAPER_SESSION_BYTES]);
        bytes[0] = self.algorithms.encryption.code();
        bytes[1] = self.algorithms.hash.code();
        bytes[2..2 + self.skeyid.len()].copy_from_slice(&self.skeyid);
        bytes
    }

    /// Restores a stored session; `None` if its bytes are damaged.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; PAPER_SESSION_BYTES]) -> Option<Self> {
        let encryption = Encryption::from_code(bytes[0])?;
        let hash = Hash::from_code(bytes[1])?;
        let length = match hash {
            Hash::Sha1 => 20,
            Hash::Sha256 => HASH_MAX,
        };
        let skeyid = bytes[2..2 + length].to_vec();
        Some(Self { algorithms: Algorithms { encryption, hash }, skeyid })
    }

    /// Computes `T1 ‖ T2 ‖ …`, `Ti = prf(sKEYID, label ‖ context ‖ i)`, truncated to `length`.
    fn expand(&self, label: &[u8], context: &[u8], length: usize) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(length + HASH_MAX));
        for counter in 1u8.. {
            if out.len() >= length {
                break;
            }
            out.extend_from_slice(&mac(self.algorithms.hash, &self.skeyid, &[label, context, &[counter]]));
        }
        out.truncate(length);
        out
    }

    /// Returns the keys of one direction. `context` is empty on the connection of the login, the
    /// two fresh nonces on a later one.
    pub(crate) fn direction(&self, to_server: bool, context: &[u8]) -> DirectionKeys {
        let (encryption, authentication): (&[u8], &[u8]) =
            if to_server { (b"e c2m", b"a c2m") } else { (b"e m2c", b"a m2c") };
        let encryption = self.expand(encryption, context, 32);
        DirectionKeys {
            algorithms: self.algorithms,
            encryption: core::array::from_fn(|at| encryption[at]),
            authentication: self.expand(authentication, context, self.skeyid.len()).to_vec(),
        }
    }

    /// Returns a proof of the session's key, for a new connection.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> Proof {
        let key = self.expand(b"continue", &[], self.skeyid.len());
        Proof::new(mac(self.algorithms.hash, &key, parts).as_slice()).expect("a hash is a proof")
    }

    pub(crate) fn proves(&self, parts: &[&[u8]], proof: &Proof) -> bool {
        self.proof(parts).as_slice().ct_eq(proof.as_slice()).into()
    }
}

impl core::fmt::Debug for PaperSession {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PaperSession")
    }
}
