//! Arithmetic over bits: words of up to 128 bits, and matrices whose rows are words.

use alloc::vec::Vec;

use crate::provider::Random;

/// A row of bits; bit 0 is the first.
pub(super) type Word = u128;

/// Rows of bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BitMatrix(Vec<Word>);

impl BitMatrix {
    /// Creates `rows` rows of `columns` bits, each as returned by the function.
    pub(super) fn new(rows: usize, columns: usize, bit: impl Fn(usize, usize) -> bool) -> Self {
        let row = |row| (0..columns).fold(0, |word, column| word | Word::from(bit(row, column)) << column);
        Self((0..rows).map(row).collect())
    }

    pub(super) fn rows(&self) -> &[Word] {
        &self.0
    }

    pub(super) fn get(&self, row: usize, column: usize) -> bool {
        self.0[row] >> column & 1 != 0
    }

    /// Returns all bits of the first `columns` columns, row by row.
    pub(super) fn bits(&self, columns: usize) -> impl Iterator<Item = bool> {
        self.0.iter().flat_map(move |row| (0..columns).map(move |column| row >> column & 1 != 0))
    }

    /// Multiplies a row vector by the matrix: the sum of the rows that its bits select.
    pub(super) fn times(&self, vector: Word) -> Word {
        // Without a branch per bit: the time must not reveal what is concealed.
        self.0.iter().enumerate().fold(0, |sum, (at, row)| sum ^ row & (vector >> at & 1).wrapping_neg())
    }

    /// Returns one bit per row: the parity of the bits that row and word share.
    pub(super) fn each_parity(&self, word: Word) -> Word {
        let parity = |row: &Word| Word::from((row & word).count_ones() & 1);
        self.0.iter().enumerate().fold(0, |sum, (at, row)| sum | parity(row) << at)
    }

    /// Multiplies this matrix by another.
    pub(super) fn of(&self, other: &Self) -> Self {
        Self(self.0.iter().map(|row| other.times(*row)).collect())
    }

    /// Moves column `c` to column `order[c]`.
    pub(super) fn permuted(&self, order: &[usize]) -> Self {
        let permuted =
            |row: &Word| order.iter().enumerate().fold(0, |sum, (from, to)| sum | (row >> from & 1) << to);
        Self(self.0.iter().map(permuted).collect())
    }

    /// Returns the inverse of a square matrix; `None` if it has none.
    fn inverted(&self) -> Option<Self> {
        let size = self.0.len();
        let (mut left, mut right) = (self.0.clone(), Self::new(size, size, |row, column| row == column).0);
        for column in 0..size {
            let pivot = (column..size).find(|row| left[*row] >> column & 1 != 0)?;
            left.swap(column, pivot);
            right.swap(column, pivot);
            for row in 0..size {
                if row != column && left[row] >> column & 1 != 0 {
                    left[row] ^= left[column];
                    right[row] ^= right[column];
                }
            }
        }
        Some(Self(right))
    }
}

/// Draws S and S⁻¹. Of random matrices 0.2888 can be inverted, so this ends after 3.5 tries on
/// average; there is no safe upper bound.
pub(super) fn invertible(size: usize, random: &mut dyn Random) -> (BitMatrix, BitMatrix) {
    let mask = Word::MAX >> (128 - size);
    loop {
        let mut drawn = alloc::vec![[0; 16]; size];
        drawn.iter_mut().for_each(|row| random.fill(row));
        let matrix = BitMatrix(drawn.into_iter().map(|row| Word::from_be_bytes(row) & mask).collect());
        if let Some(inverse) = matrix.inverted() {
            return (matrix, inverse);
        }
    }
}

/// Draws P: the new position of each of `size` columns (Fisher and Yates).
pub(super) fn permutation(size: usize, random: &mut dyn Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..size).collect();
    for left in (1..size).rev() {
        let mut chance = [0; 8];
        random.fill(&mut chance);
        order.swap(left, (u64::from_be_bytes(chance) % (left as u64 + 1)) as usize);
    }
    order
}

/// Returns the columns of the Hamming code's check matrix: for the K bits of the message different
/// numbers of two bits or more, in ascending order (a shortened code omits the last ones), then the
/// units.
pub(super) fn check_columns(length: usize, dimension: usize) -> Vec<u32> {
    let parities = length - dimension;
    let checks = (1..1u32 << parities).filter(|check| check.count_ones() > 1).take(dimension);
    checks.chain((0..parities).map(|parity| 1 << parity)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance() -> impl FnMut(&mut [u8]) {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        move |into: &mut [u8]| {
            for byte in into {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
        }
    }

    #[test]
    fn a_matrix_times_its_inverse_is_the_unit() {
        for size in [1, 4, 11, 16, 57, 120] {
            let (matrix, inverse) = invertible(size, &mut chance());
            assert_eq!(matrix.of(&inverse), BitMatrix::new(size, size, |row, column| row == column));
        }
    }

    #[test]
    fn a_singular_matrix_has_no_inverse() {
        assert_eq!(BitMatrix(alloc::vec![0b11, 0b11]).inverted(), None);
    }

    #[test]
    fn a_permutation_names_each_place_once() {
        let mut order = permutation(127, &mut chance());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..127));
    }

    #[test]
    fn check_matrix_columns_are_distinct_and_nonzero() {
        for (length, dimension) in [(7, 4), (15, 11), (21, 16), (31, 26), (63, 57), (71, 64), (127, 120)] {
            let mut columns = check_columns(length, dimension);
            assert_eq!(columns.len(), length);
            columns.sort_unstable();
            columns.dedup();
            assert!(columns.len() == length && columns[0] != 0);
        }
    }
}
