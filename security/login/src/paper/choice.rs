//! Negotiation of a session's algorithms: the client's offer (EHAO) and the server's choice (EHAS).

use sealstone_mds_protocol::paper::Offers;

use super::PaperFailure;

const ENCRYPTION: u8 = 1;
const HASH: u8 = 2;
const AUTHENTICATION: u8 = 3;
/// Class 3: HMAC under k_i. "Signature" in the paper needs this reading, since k_i is symmetric.
const HMAC_KI: u8 = 1;

/// Class 1. 3DES-CBC (2) is not implemented: it is obsolete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// AES-128-CBC, then HMAC.
    Aes128Cbc,
    /// AES-256 in GCM mode.
    Aes256Gcm,
}

/// Class 2. MD5 (1) is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// The SHA-1 hash.
    Sha1,
    /// The SHA-256 hash.
    Sha256,
}

impl Encryption {
    /// Returns its number in class 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Aes128Cbc => 1,
            Self::Aes256Gcm => 9,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Aes128Cbc),
            9 => Some(Self::Aes256Gcm),
            _ => None,
        }
    }
}

impl Hash {
    /// Returns its number in class 2.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sha1 => 2,
            Self::Sha256 => 3,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            2 => Some(Self::Sha1),
            3 => Some(Self::Sha256),
            _ => None,
        }
    }
}

/// The chosen algorithms. Cookies, k, k_i and signatures always use SHA-1: they precede the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithms {
    /// Encryption of records.
    pub encryption: Encryption,
    /// Hash of the prf that derives the session's keys, and of records' check values.
    pub hash: Hash,
}

impl Algorithms {
    /// The paper's: AES-128-CBC and SHA-1.
    pub const PAPER: Self = Self { encryption: Encryption::Aes128Cbc, hash: Hash::Sha1 };

    /// Returns what our client offers: the paper's first.
    #[must_use]
    pub fn offers() -> Offers {
        let pairs = [(ENCRYPTION, 1), (ENCRYPTION, 9), (HASH, 2), (HASH, 3), (AUTHENTICATION, HMAC_KI)];
        Offers::new(pairs).expect("five pairs are a list")
    }

    /// Returns these as EHAS, or as the only offer.
    #[must_use]
    pub fn list(self) -> Offers {
        let pairs =
            [(ENCRYPTION, self.encryption.code()), (HASH, self.hash.code()), (AUTHENTICATION, HMAC_KI)];
        Offers::new(pairs).expect("three pairs are a list")
    }

    /// Server: returns the first known algorithm of each class.
    pub(crate) fn choose(offers: &Offers) -> Result<Self, PaperFailure> {
        fn first<T>(offers: &Offers, class: u8, known: impl Fn(u8) -> Option<T>) -> Result<T, PaperFailure> {
            let mut of_class = offers.pairs().iter().filter(|(of, _)| *of == class);
            of_class.find_map(|&(_, algorithm)| known(algorithm)).ok_or(PaperFailure::NoCommon(class))
        }
        let encryption = first(offers, ENCRYPTION, Encryption::from_code)?;
        let hash = first(offers, HASH, Hash::from_code)?;
        first(offers, AUTHENTICATION, |code| (code == HMAC_KI).then_some(()))?;
        Ok(Self { encryption, hash })
    }

    /// Client: accepts exactly one algorithm of each class, all of them offered.
    pub(crate) fn chosen(choice: &Offers, offers: &Offers) -> Result<Self, PaperFailure> {
        let pairs = choice.pairs();
        let one_of_each = pairs.len() == 3
            && [ENCRYPTION, HASH, AUTHENTICATION]
                .iter()
                .all(|class| pairs.iter().filter(|(of, _)| of == class).count() == 1);
        if !one_of_each || !pairs.iter().all(|pair| offers.pairs().contains(pair)) {
            return Err(PaperFailure::ChoiceNotOffered);
        }
        Self::choose(choice).map_err(|_| PaperFailure::ChoiceNotOffered)
    }
}
