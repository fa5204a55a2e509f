//! k, the key derived from a passphrase, and values derived from it: cookies and k_i.
//!
//! k is equivalent to the passphrase: it suffices for a login. That is a weakness of the paper's
//! protocol, and why the server's record of it is a secret.

use core::net::IpAddr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::paper::{COOKIE_BYTES, Cookie, Nonce, Proof};
use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq as _;
use unicode_normalization::UnicodeNormalization as _;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::PaperFailure;

const LABEL: &[u8] = b"OSDK1";

/// Addresses of the two ends, as seen by the sockets of the computing end. Address translation
/// (NAT) between them makes the cookies differ: a false alarm that the protocol cannot distinguish
/// from an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client's.
    pub client: IpAddr,
    /// The server's.
    pub server: IpAddr,
}

impl Addresses {
    /// Whether one of them has exactly these bytes. A nonce must not.
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        [self.client, self.server].iter().any(|address| match address {
            IpAddr::V4(address) => address.octets() == bytes,
            IpAddr::V6(address) => address.octets() == bytes,
        })
    }
}

/// The key k. Wiped when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct PassphraseKey([u8; 20]);

impl PassphraseKey {
    /// Returns `SHA-1("OSDK1" ‖ lv16(UID) ‖ passphrase)`, the passphrase as UTF-8 in normalization
    /// form C. It is a single hash: nothing slows down guesses.
    #[must_use]
    pub fn derive(user: &UserName, passphrase: &str) -> Self {
        let mut hash = Sha1::new();
        hash.update(LABEL);
        // A user's name has at most 64 bytes.
        hash.update((user.as_str().len() as u16).to_be_bytes());
        hash.update(user.as_str());
        let mut utf8 = Zeroizing::new([0; 4]);
        for character in passphrase.nfc() {
            hash.update(character.encode_utf8(&mut *utf8));
        }
        Self(hash.finalize().into())
    }

    /// Restores a stored key.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 20]) -> Self {
        Self(bytes)
    }

    /// Returns the key, to be stored as a secret.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; 20]> {
        Zeroizing::new(self.0)
    }

    /// Whether both are the same key, in constant time.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns an unknown key for an unknown user: the login takes the same path and time.
    #[must_use]
    pub fn dummy(secret: &[u8; 32], user: &UserName) -> Self {
        let mut mac = Hmac::<Sha1>::new_from_slice(secret).expect("HMAC takes any key");
        mac.update(user.as_str().as_bytes());
        Self(mac.finalize().into_bytes().into())
    }

    /// Returns the enhanced cookie of one address: the first 8 bytes of `SHA-1(address ‖ k)`.
    #[must_use]
    pub fn cookie(&self, address: IpAddr) -> Cookie {
        let mut hash = Sha1::new();
        match address.to_canonical() {
            IpAddr::V4(address) => hash.update(address.octets()),
            IpAddr::V6(address) => hash.update(address.octets()),
        }
        hash.update(self.0);
        let digest: [u8; 20] = hash.finalize().into();
        core::array::from_fn::<u8, COOKIE_BYTES, _>(|at| digest[at])
    }

    pub(crate) fn has_cookie(&self, address: IpAddr, cookie: &Cookie) -> bool {
        self.cookie(address).ct_eq(cookie).into()
    }

    /// Returns `k_i = SHA-1(N_c ‖ k)`.
    pub(crate) fn signing(&self, nonce: &Nonce) -> SigningKey {
        let mut hash = Sha1::new();
        hash.update(nonce.as_slice());
        hash.update(self.0);
        SigningKey(hash.finalize().into())
    }
}

impl core::fmt::Debug for PassphraseKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PassphraseKey")
    }
}

/// k_i, with which both ends sign in one login.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct SigningKey([u8; 20]);

impl SigningKey {
    fn mac(&self, text: &[u8]) -> Hmac<Sha1> {
        let mut mac = Hmac::<Sha1>::new_from_slice(&self.0).expect("HMAC takes any key");
        mac.update(text);
        mac
    }

    pub(crate) fn sign(&self, text: &[u8]) -> Proof {
        let signature: [u8; 20] = self.mac(text).finalize().into_bytes().into();
        Proof::new(signature).expect("20 bytes are a signature")
    }

    /// Verifies the signature with number `which` of the protocol.
    pub(crate) fn verify(&self, text: &[u8], which: u8, signature: &Proof) -> Result<(), PaperFailure> {
        let verified = self.mac(text).verify_slice(signature.as_slice());
        verified.map_err(|_| PaperFailure::Signature(which))
    }
}
