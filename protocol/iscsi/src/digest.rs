//! CRC32C, in tables: the fallback that needs no processor features (RFC 7143 §13.1).
//!
//! Shells pass a faster function with the same contract.

/// Continues a CRC32C over more bytes; starts with 0.
pub type Crc32c = fn(u32, &[u8]) -> u32;

const POLYNOMIAL: u32 = 0x82F6_3B78;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut level = 1;
    while level < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[level - 1][byte];
            tables[level][byte] = (crc >> 8) ^ tables[0][(crc & 0xFF) as usize];
            byte += 1;
        }
        level += 1;
    }
    tables
}

/// Returns the CRC32C of the bytes already covered by `crc`, followed by `bytes`.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (blocks, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in blocks {
        let [w, x, y, z] = bytes_of(crc);
        crc = TABLES[7][usize::from(a ^ w)]
            ^ TABLES[6][usize::from(b ^ x)]
            ^ TABLES[5][usize::from(c ^ y)]
            ^ TABLES[4][usize::from(d ^ z)]
            ^ TABLES[3][usize::from(e)]
            ^ TABLES[2][usize::from(f)]
            ^ TABLES[1][usize::from(g)]
            ^ TABLES[0][usize::from(h)];
    }
    for &byte in rest {
        crc = (crc >> 8) ^ TABLES[0][usize::from(low_byte(crc) ^ byte)];
    }
    !crc
}

const fn low_byte(word: u32) -> u8 {
    (word & 0xFF) as u8
}

/// Returns the bytes, least significant first.
const fn bytes_of(word: u32) -> [u8; 4] {
    [low_byte(word), low_byte(word >> 8), low_byte(word >> 16), low_byte(word >> 24)]
}

/// Returns a digest in wire form: least significant byte first (RFC 7143 §13.1, appendix A).
pub(crate) fn wire(crc: u32) -> [u8; 4] {
    bytes_of(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_the_standard_match() {
        let ascending: [u8; 32] = core::array::from_fn(|i| u8::try_from(i).unwrap());
        assert_eq!(wire(crc32c_append(0, &[0; 32])), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(wire(crc32c_append(0, &[0xFF; 32])), [0x43, 0xAB, 0xA8, 0x62]);
        assert_eq!(wire(crc32c_append(0, &ascending)), [0x4E, 0x79, 0xDD, 0x46]);
    }

    proptest::proptest! {
        #[test]
        fn tables_and_hardware_agree_on_any_split(bytes: std::vec::Vec<u8>, cut: usize) {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let whole = crc32c::crc32c(&bytes);
            proptest::prop_assert_eq!(crc32c_append(crc32c_append(0, head), tail), whole);
        }
    }
}
