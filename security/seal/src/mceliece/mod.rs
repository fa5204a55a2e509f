//! The paper's cipher for the security method: McEliece's scheme over a Hamming code, in the CDB's own bits.
//!
//! Does: make a key pair, conceal the method and its neighbours in a CDB, reveal them again. Does not: authenticate
//! anybody: whoever has the public key conceals NOSEC as well as ALLDATA, and whoever has it can also decrypt
//! (`tests/mceliece`). It is here so that what the paper proposes can be seen, measured and broken; what keeps a method
//! from being lowered is the device's floor, in the gate.
//! Contract: check values are computed over the CDB as it was before [`PublicKey::conceal`], and is again after
//! [`PrivateKey::reveal`], to the bit. Both leave a CDB that they refuse as it was.
//! Truth: the ESM paper, section 3; docs/design/security.md 4.2 (fields, places of the redundancy), 4.3 (why it breaks).

mod code;
mod fields;

use alloc::vec::Vec;

use thiserror::Error;

use crate::provider::Random;
use code::{Matrix, Word};
pub use fields::CONCEALED;

/// Most bits of a code word: H7.
pub const CODE_BITS_MAX: usize = 127;

/// Which code, and with it which fields of the capability are concealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameters {
    /// (7, 4): the security method alone.
    H3,
    /// (15, 11): method, algorithm, three bits of the key version.
    H4,
    /// (21, 16), shortened: format, key version, algorithm, method. What the paper calls the fields that matter.
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

struct Row {
    parameters: Parameters,
    name: &'static str,
    code: u8,
    length: u8,
    dimension: u8,
}

const fn row(parameters: Parameters, name: &'static str, code: u8, length: u8, dimension: u8) -> Row {
    Row { parameters, name, code, length, dimension }
}

const ROWS: [Row; 7] = [
    row(Parameters::H3, "h3", 1, 7, 4),
    row(Parameters::H4, "h4", 2, 15, 11),
    row(Parameters::H5Short, "h5s", 3, 21, 16),
    row(Parameters::H5, "h5", 4, 31, 26),
    row(Parameters::H6, "h6", 5, 63, 57),
    row(Parameters::H7Short, "h7s", 6, 71, 64),
    row(Parameters::H7, "h7", 7, 127, 120),
];

impl Parameters {
    /// All of them, the shortest code first.
    pub const ALL: [Self; 7] =
        [Self::H3, Self::H4, Self::H5Short, Self::H5, Self::H6, Self::H7Short, Self::H7];

    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// A short stable name, as in `--method-cipher h5s`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The one with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.parameters)
    }

    /// N: bits of a code word.
    #[must_use]
    pub const fn length(self) -> usize {
        self.row().length as usize
    }

    /// K: bits that are concealed.
    #[must_use]
    pub const fn dimension(self) -> usize {
        self.row().dimension as usize
    }

    /// N − K: bits of redundancy.
    #[must_use]
    pub const fn redundancy(self) -> usize {
        self.length() - self.dimension()
    }

    /// Bits of a public key, K · N.
    #[must_use]
    pub const fn key_bits(self) -> usize {
        self.length() * self.dimension()
    }
}

/// Why a CDB was not concealed or revealed, or bytes are no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CipherError {
    /// Too short for an OSD CDB.
    #[error("a CDB of {0} bytes")]
    Length(usize),
    /// The CDB says already that it is concealed.
    #[error("the CDB is concealed already")]
    Twice,
    /// Bits that are reserved, and that the redundancy would take the place of, are set.
    #[error("reserved bits are set where the redundancy belongs")]
    Reserved,
    /// The CDB does not say that it is concealed.
    #[error("the CDB is not concealed")]
    Clear,
    /// More than one bit of the code word is wrong.
    #[error("not a code word, nor next to one")]
    NoCodeWord,
    /// The public key's bytes are none.
    #[error("not a public key")]
    PublicKey,
}

/// What a device publishes: G′ = S · G · P.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    parameters: Parameters,
    rows: Matrix,
}

impl PublicKey {
    /// Bytes before the rows of an encoded key.
    const HEAD_LEN: usize = 5;

    /// Which code.
    #[must_use]
    pub const fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// The rows of G′, bit 0 of a row the first of a code word: with them anybody can do what `tests/mceliece` does.
    #[must_use]
    pub fn rows(&self) -> &[u128] {
        self.rows.rows()
    }

    /// As published in R+F001h, 1: code 1, N 2, K 2, then the rows, packed, the first bit of a row first.
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

    /// Reads what [`Self::encode`] wrote. Whether the rows belong to a code cannot be told without the private key.
    ///
    /// # Errors
    /// [`CipherError::PublicKey`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CipherError> {
        let (head, packed) = bytes.split_at_checked(Self::HEAD_LEN).ok_or(CipherError::PublicKey)?;
        let row = ROWS.iter().find(|row| row.code == head[0]).ok_or(CipherError::PublicKey)?;
        let said = [0, row.length, 0, row.dimension];
        let parameters = row.parameters;
        let bits = parameters.key_bits();
        let tail = packed.last().copied().unwrap_or(0).trailing_zeros() as usize;
        if head[1..] != said || packed.len() != bits.div_ceil(8) || tail < packed.len() * 8 - bits {
            return Err(CipherError::PublicKey);
        }
        let bit = |at: usize| packed[at / 8] >> (7 - at % 8) & 1 != 0;
        let (rows, columns) = (parameters.dimension(), parameters.length());
        let rows = Matrix::new(rows, columns, |row, column| bit(row * columns + column));
        Ok(Self { parameters, rows })
    }

    /// Conceals the fields of a CDB in place, and says so in its CONTROL byte. One bit at most is wrong on purpose.
    ///
    /// # Errors
    /// [`CipherError::Length`], [`CipherError::Twice`], [`CipherError::Reserved`]; the CDB is as it was.
    pub fn conceal(&self, cdb: &mut [u8], random: &mut dyn Random) -> Result<(), CipherError> {
        let fields = fields::Fields::of(self.parameters);
        fields.check_clear(cdb)?;
        let mut chance = [0; 8];
        random.fill(&mut chance);
        // The error is in one of N places, or nowhere: a bias of 2^-57 hides in the remainder.
        let place = (u64::from_be_bytes(chance) % (self.parameters.length() as u64 + 1)) as u32;
        let error = if place as usize == self.parameters.length() { 0 } else { 1 << place };
        fields.write(cdb, self.rows.times(fields.message(cdb)) ^ error);
        cdb[1] |= CONCEALED;
        Ok(())
    }
}

/// What a device keeps: S, G and P, folded into what [`Self::reveal`] needs.
///
/// It is not wiped: nothing is secret that can be computed from it and not from the public key.
pub struct PrivateKey {
    public: PublicKey,
    /// One mask for each bit of the syndrome, over a code word as it comes.
    syndrome: Matrix,
    /// The place in a code word, as it comes, whose error has a syndrome; 255 for none.
    places: Vec<u8>,
    /// One mask for each bit of the message, over the code word: P⁻¹, G's unit part and S⁻¹ at once.
    message: Matrix,
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
        let generator = Matrix::new(dimension, length, |row, column| match column.checked_sub(dimension) {
            None => row == column,
            Some(parity) => columns.get(row).is_some_and(|check| check >> parity & 1 != 0),
        });
        let product = scramble.of(&generator);
        // Bit `order[c]` of what goes out is bit c of S · G.
        let rows = product.permuted(&order);
        // Which column of the code stands at a place of what goes out.
        let mut column_at = alloc::vec![0; length];
        order.iter().enumerate().for_each(|(column, place)| column_at[*place] = column);
        let syndrome = Matrix::new(parameters.redundancy(), length, |bit, place| {
            columns.get(column_at[place]).is_some_and(|check| check >> bit & 1 != 0)
        });
        let mut places = alloc::vec![u8::MAX; 1 << parameters.redundancy()];
        for (at, check) in columns.iter().enumerate() {
            places[*check as usize] = order[at] as u8;
        }
        // m = m′ · S⁻¹, and bit j of m′ came in place order[j].
        let message = Matrix::new(dimension, length, |bit, place| {
            let column = column_at[place];
            column < dimension && inverse.get(column, bit)
        });
        let public = PublicKey { parameters, rows };
        Self { public, syndrome, places, message }
    }

    /// What is published.
    #[must_use]
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Does a CDB say that it is concealed?
    #[must_use]
    pub fn is_concealed(cdb: &[u8]) -> bool {
        cdb.get(1).is_some_and(|control| control & CONCEALED != 0)
    }

    /// Brings a concealed CDB back, to the bit.
    ///
    /// # Errors
    /// [`CipherError::Length`], [`CipherError::Clear`], [`CipherError::NoCodeWord`]; the CDB is as it was.
    pub fn reveal(&self, cdb: &mut [u8]) -> Result<(), CipherError> {
        let fields = fields::Fields::of(self.public.parameters);
        fields.check_length(cdb)?;
        if !Self::is_concealed(cdb) {
            return Err(CipherError::Clear);
        }
        let message = self.decrypt(fields.word(cdb)).ok_or(CipherError::NoCodeWord)?;
        fields.write(cdb, message);
        cdb[1] &= !CONCEALED;
        Ok(())
    }

    /// The message of a code word with at most one wrong bit.
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
