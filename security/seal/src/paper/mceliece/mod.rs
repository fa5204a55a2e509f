//! The paper's cipher for the security method: McEliece's scheme over a Hamming code, in the CDB's
//! own bits.
//!
//! Does: creates a key pair, conceals the method and neighbouring fields in a CDB, reveals them
//! again.
//! Does not: authenticate: anyone with the public key can conceal NOSEC as well as ALLDATA, and can
//! also decrypt (`tests/mceliece`). It exists so that the paper's proposal can be examined,
//! measured and broken. The device's floor in the gate is what prevents a downgrade.
//! Contract: check values are computed over the CDB before [`PublicKey::conceal`], and
//! [`PrivateKey::reveal`] restores it bit for bit. Both leave a CDB that they refuse unchanged.
//! Source of truth: the ESM paper, section 3; docs/design/security.md 4.2 (fields, places of the
//! redundancy), 4.3 (why it breaks).

mod code;
mod fields;

use alloc::vec::Vec;

use thiserror::Error;

use crate::provider::Random;
use code::{BitMatrix, Word};
pub use fields::CONCEALED;

/// Maximum bits of a code word: H7.
pub const CODE_BITS_MAX: usize = 127;

/// The code, which determines the concealed fields of the capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameters {
    /// (7, 4): the security method alone.
    H3,
    /// (15, 11): method, algorithm, three bits of the key version.
    H4,
    /// (21, 16), shortened: format, key version, algorithm, method: the fields that matter,
    /// according to the paper.
    H5Short,
    /// (31, 26): the same and ten bits of the expiration.
    H5,
    /// (63, 57): the same and 41 bits of the expiration.
    H6,
    /// (71, 64), shortened: the same and all of the expiration.
    H7Short,
    /// (127, 120): the same and 56 bits of the audit field.
    H7,
}

struct CodeRow {
    parameters: Parameters,
    name: &'static str,
    code: u8,
    length: u8,
    dimension: u8,
}

const fn row(parameters: Parameters, name: &'static str, code: u8, length: u8, dimension: u8) -> CodeRow {
    CodeRow { parameters, name, code, length, dimension }
}

const ROWS: [CodeRow; 7] = [
    row(Parameters::H3, "h3", 1, 7, 4),
    row(Parameters::H4, "h4", 2, 15, 11),
    row(Parameters::H5Short, "h5s", 3, 21, 16),
    row(Parameters::H5, "h5", 4, 31, 26),
    row(Parameters::H6, "h6", 5, 63, 57),
    row(Parameters::H7Short, "h7s", 6, 71, 64),
    row(Parameters::H7, "h7", 7, 127, 120),
];

impl Parameters {
    /// All codes, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::H3, Self::H4, Self::H5Short, Self::H5, Self::H6, Self::H7Short, Self::H7];

    const fn row(self) -> &'static CodeRow {
        &ROWS[self as usize]
    }

    /// Returns a short stable name, as in `--method-cipher h5s`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the code with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.parameters)
    }

    /// Returns N: bits of a code word.
    #[must_use]
    pub const fn length(self) -> usize {
        self.row().length as usize
    }

    /// Returns K: bits that are concealed.
    #[must_use]
    pub const fn dimension(self) -> usize {
        self.row().dimension as usize
    }

    /// Returns N − K: bits of redundancy.
    #[must_use]
    pub const fn redundancy(self) -> usize {
        self.length() - self.dimension()
    }

    /// Returns the bits of a public key, K · N.
    #[must_use]
    pub const fn key_bits(self) -> usize {
        self.length() * self.dimension()
    }
}

/// Why a CDB was not concealed or revealed, or bytes are no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CipherError {
    /// Too short for an OSD CDB.
    #[error("a CDB of {0} bytes is too short")]
    Length(usize),
    /// The CDB is marked as concealed already.
    #[error("the CDB is concealed already")]
    Twice,
    /// Reserved bits that the redundancy would use are set.
    #[error("reserved bits are set where the redundancy belongs")]
    Reserved,
    /// The CDB is not marked as concealed.
    #[error("the CDB is not concealed")]
    Clear,
    /// More than one bit of the code word is wrong.
    #[error("not a code word, even with one bit corrected")]
    NoCodeWord,
    /// The bytes are no public key.
    #[error("not a public key")]
    PublicKey,
}

/// The key that a device publishes: G′ = S · G · P.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    parameters: Parameters,
    rows: BitMatrix,
}

impl PublicKey {
    /// Bytes before the rows of an encoded key.
    const HEAD_LEN: usize = 5;

    /// Returns the code.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Returns the rows of G′, bit 0 of a row being the first of a code word: they suffice for the
    /// attacks in `tests/mceliece`.
    #[must_use]
    pub fn rows(&self) -> &[u128] {
        self.rows.rows()
    }

    /// Encodes the key as published in R+F001h, 1: code 1, N 2, K 2, then the rows, packed, the
    /// first bit of a row first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let row = self.parameters.row();
        let mut out = Vec::with_capacity(Self::HEAD_LEN + self.parameters.key_bits().div_ceil(8));
        out.push(row.code);
        out.extend_from_slice(&u16::from(row.length).to_be_bytes());
        out.extend_from_slice(&u16::from(row.dimension).to_be_bytes());
        out.resize(out.capacity(), 0);
        for (at, bit) in self.rows.bits(self.parameters.length()).enumerate() {
            out[Self::HEAD_LEN + at / 8] |= u8::from(bit) << (7 - at % 8);
        }
        out
    }

    /// Parses the result of [`Self::encode`]. Whether the rows belong to a code cannot be checked
    /// without the private key.
    ///
    /// # Errors
    /// [`CipherError::PublicKey`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CipherError> {
        let (head, packed) = bytes.split_at_checked(Self::HEAD_LEN).ok_or(CipherError::PublicKey)?;
        let row = ROWS.iter().find(|row| row.code == head[0]).ok_or(CipherError::PublicKey)?;
        let expected_head = [0, row.length, 0, row.dimension];
        let parameters = row.parameters;
        let bits = parameters.key_bits();
        let tail = packed.last().copied().unwrap_or(0).trailing_zeros() as usize;
        if head[1..] != expected_head || packed.len() != bits.div_ceil(8) || tail < packed.len() * 8 - bits {
            return Err(CipherError::PublicKey);
        }
        let bit = |at: usize| packed[at / 8] >> (7 - at % 8) & 1 != 0;
        let (rows, columns) = (parameters.dimension(), parameters.length());
        let rows = BitMatrix::new(rows, columns, |row, column| bit(row * columns + column));
        Ok(Self { parameters, rows })
    }

    /// Conceals the fields of a CDB in place, and marks it in its CONTROL byte. At most one bit is
    /// wrong on purpose.
    ///
    /// # Errors
    /// [`CipherError::Length`], [`CipherError::Twice`], [`CipherError::Reserved`]; the CDB is
    /// unchanged.
    pub fn conceal(&self, cdb: &mut [u8], random: &mut dyn Random) -> Result<(), CipherError> {
        let fields = fields::CodeFields::of(self.parameters);
        fields.check_clear(cdb)?;
        let mut chance = [0; 8];
        random.fill(&mut chance);
        // The error is at one of N positions, or nowhere; the remainder has a bias of 2^-57.
        let place = (u64::from_be_bytes(chance) % (self.parameters.length() as u64 + 1)) as u32;
        let error = if place as usize == self.parameters.length() { 0 } else { 1 << place };
        fields.write(cdb, self.rows.times(fields.message(cdb)) ^ error);
        cdb[1] |= CONCEALED;
        Ok(())
    }
}

/// The key that a device keeps: S, G and P, combined into what [`Self::reveal`] needs.
///
/// It is not wiped: it contains no secret that cannot be computed from the public key.
pub struct PrivateKey {
    public: PublicKey,
    /// One mask for each bit of the syndrome, over a received code word.
    syndrome: BitMatrix,
    /// The position in a received code word whose error has a syndrome; 255 for none.
    places: Vec<u8>,
    /// One mask for each bit of the message, over the code word: P⁻¹, G's unit part and S⁻¹
    /// combined.
    message: BitMatrix,
}

impl PrivateKey {
    /// Draws a key pair. S is drawn until it can be inverted: 3.5 times on average.
    #[must_use]
    pub fn generate(parameters: Parameters, random: &mut dyn Random) -> Self {
        let (length, dimension) = (parameters.length(), parameters.dimension());
        let (scramble, inverse) = code::invertible(dimension, random);
        let columns = code::check_columns(length, dimension);
        let order = code::permutation(length, random);
        // G is a unit matrix beside the parity of each row: its check column.
        let generator =
            BitMatrix::new(dimension, length, |row, column| match column.checked_sub(dimension) {
                None => row == column,
                Some(parity) => columns.get(row).is_some_and(|check| check >> parity & 1 != 0),
            });
        let product = scramble.of(&generator);
        // Bit `order[c]` of the output is bit c of S · G.
        let rows = product.permuted(&order);
        // The column of the code at each output position.
        let mut column_at = alloc::vec![0; length];
        order.iter().enumerate().for_each(|(column, place)| column_at[*place] = column);
        let syndrome = BitMatrix::new(parameters.redundancy(), length, |bit, place| {
            columns.get(column_at[place]).is_some_and(|check| check >> bit & 1 != 0)
        });
        let mut places = alloc::vec![u8::MAX; 1 << parameters.redundancy()];
        for (at, check) in columns.iter().enumerate() {
            places[*check as usize] = order[at] as u8;
        }
        // m = m′ · S⁻¹, and bit j of m′ is at position order[j].
        let message = BitMatrix::new(dimension, length, |bit, place| {
            let column = column_at[place];
            column < dimension && inverse.get(column, bit)
        });
        let public = PublicKey { parameters, rows };
        Self { public, syndrome, places, message }
    }

    /// Returns the public key.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Whether a CDB is marked as concealed.
    #[must_use]
    pub fn is_concealed(cdb: &[u8]) -> bool {
        cdb.get(1).is_some_and(|control| control & CONCEALED != 0)
    }

    /// Restores a concealed CDB, bit for bit.
    ///
    /// # Errors
    /// [`CipherError::Length`], [`CipherError::Clear`], [`CipherError::NoCodeWord`]; the CDB is
    /// unchanged.
    pub fn reveal(&self, cdb: &mut [u8]) -> Result<(), CipherError> {
        let fields = fields::CodeFields::of(self.public.parameters);
        fields.check_length(cdb)?;
        if !Self::is_concealed(cdb) {
            return Err(CipherError::Clear);
        }
        let message = self.decrypt(fields.word(cdb)).ok_or(CipherError::NoCodeWord)?;
        fields.write(cdb, message);
        cdb[1] &= !CONCEALED;
        Ok(())
    }

    /// Returns the message of a code word with at most one wrong bit.
    fn decrypt(&self, mut word: Word) -> Option<Word> {
        let syndrome = self.syndrome.each_parity(word) as usize;
        if syndrome != 0 {
            let place = *self.places.get(syndrome)?;
            if place == u8::MAX {
                return None;
            }
            word ^= 1 << place;
        }
        Some(self.message.each_parity(word))
    }
}
