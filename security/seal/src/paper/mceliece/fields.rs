//! Location of a code word in a CDB: bits of the capability, and reserved bits for the redundancy.
//!
//! The locations are the same in both generations; codes with more than 12 bits of redundancy would
//! differ, but there are none.

use super::code::Word;
use super::{CODE_BITS_MAX, CipherError, Parameters};

/// Bit of CONTROL, byte 1, that marks a concealed CDB: SAM leaves bits 7 and 6 to the vendor.
pub const CONCEALED: u8 = 0x80;

/// Bits of one byte, the highest first: (byte, highest bit, number).
type Run = (u8, u8, u8);

const METHOD: Run = (82, 3, 4);
const ALGORITHM: Run = (81, 3, 4);
const KEY_VERSION: Run = (81, 7, 4);
const FORMAT: Run = (80, 3, 4);
/// After the message: reserved bits beside the method, then the reserved byte after it.
const REDUNDANCY: [Run; 2] = [(82, 7, 4), (83, 7, 8)];
/// Of fields that a message includes in part: the capability's EXPIRATION and AUDIT, which are
/// adjacent.
const EXPIRATION: u8 = 84;
const AUDIT: u8 = 90;

/// Location of each bit of a code word.
pub(super) struct CodeFields {
    places: [(u8, u8); CODE_BITS_MAX],
    dimension: usize,
    length: usize,
}

const fn put(
    mut places: [(u8, u8); CODE_BITS_MAX],
    mut at: usize,
    run: Run,
) -> ([(u8, u8); CODE_BITS_MAX], usize) {
    let mut bit = 0;
    while bit < run.2 {
        places[at] = (run.0, run.1 - bit);
        at += 1;
        bit += 1;
    }
    (places, at)
}

/// Adds `bits` bits from the start of `first` on.
const fn put_bytes(
    mut places: [(u8, u8); CODE_BITS_MAX],
    mut at: usize,
    first: u8,
    bits: u8,
) -> ([(u8, u8); CODE_BITS_MAX], usize) {
    let mut bit = 0;
    while bit < bits {
        places[at] = (first + bit / 8, 7 - bit % 8);
        at += 1;
        bit += 1;
    }
    (places, at)
}

const fn fields(parameters: Parameters) -> CodeFields {
    let empty = ([(0, 0); CODE_BITS_MAX], 0);
    let (places, at) = match parameters {
        Parameters::H3 => put(empty.0, empty.1, METHOD),
        Parameters::H4 => {
            let (places, at) = put(empty.0, empty.1, (81, 6, 3));
            let (places, at) = put(places, at, ALGORITHM);
            put(places, at, METHOD)
        }
        _ => {
            let (places, at) = put(empty.0, empty.1, FORMAT);
            let (places, at) = put(places, at, KEY_VERSION);
            let (places, at) = put(places, at, ALGORITHM);
            put(places, at, METHOD)
        }
    };
    let (expiration, audit) = match parameters {
        Parameters::H3 | Parameters::H4 | Parameters::H5Short => (0, 0),
        Parameters::H5 => (10, 0),
        Parameters::H6 => (41, 0),
        Parameters::H7Short => (48, 0),
        Parameters::H7 => (48, 56),
    };
    let (places, at) = put_bytes(places, at, EXPIRATION, expiration);
    let (places, at) = put_bytes(places, at, AUDIT, audit);
    assert!(at == parameters.dimension());
    let (mut places, mut at, mut run, mut bit) = (places, at, 0, 0);
    while at < parameters.length() {
        let (byte, highest, bits) = REDUNDANCY[run];
        places[at] = (byte, highest - bit);
        at += 1;
        bit += 1;
        if bit == bits {
            run += 1;
            bit = 0;
        }
    }
    CodeFields { places, dimension: parameters.dimension(), length: parameters.length() }
}

static TABLE: [CodeFields; 7] = [
    fields(Parameters::H3),
    fields(Parameters::H4),
    fields(Parameters::H5Short),
    fields(Parameters::H5),
    fields(Parameters::H6),
    fields(Parameters::H7Short),
    fields(Parameters::H7),
];

/// Bytes of the shorter generation's CDB.
const CDB_LEN_MIN: usize = sealstone_osd::Generation::Osd1.cdb_len();

impl CodeFields {
    pub(super) fn of(parameters: Parameters) -> &'static Self {
        &TABLE[parameters as usize]
    }

    /// Returns the concealed fields of a CDB in the clear, in the code word's first bits.
    pub(super) fn message(&self, cdb: &[u8]) -> Word {
        self.read(cdb, self.dimension)
    }

    /// Returns the code word in a concealed CDB.
    pub(super) fn word(&self, cdb: &[u8]) -> Word {
        self.read(cdb, self.length)
    }

    /// Writes a code word into a CDB, or a message, which makes the bits of the redundancy zero
    /// again.
    pub(super) fn write(&self, cdb: &mut [u8], word: Word) {
        for (at, (byte, bit)) in self.places[..self.length].iter().enumerate() {
            let byte = &mut cdb[usize::from(*byte)];
            *byte = *byte & !(1 << bit) | ((word >> at & 1) as u8) << bit;
        }
    }

    fn read(&self, cdb: &[u8], bits: usize) -> Word {
        let bit = |(byte, bit): &(u8, u8)| Word::from(cdb[usize::from(*byte)] >> bit & 1);
        self.places[..bits].iter().enumerate().fold(0, |word, (at, place)| word | bit(place) << at)
    }

    pub(super) fn check_length(&self, cdb: &[u8]) -> Result<(), CipherError> {
        if cdb.len() < CDB_LEN_MIN { Err(CipherError::Length(cdb.len())) } else { Ok(()) }
    }

    /// Checks that the bits for the redundancy are zero.
    pub(super) fn check_clear(&self, cdb: &[u8]) -> Result<(), CipherError> {
        self.check_length(cdb)?;
        if cdb[1] & CONCEALED != 0 {
            return Err(CipherError::Twice);
        }
        if self.word(cdb) >> self.dimension == 0 { Ok(()) } else { Err(CipherError::Reserved) }
    }
}
