//! Attacks with a device's public key alone: no private key, no captured secret.

use sealstone_seal::paper::mceliece::PublicKey;

/// Decrypts with the public key alone. Any check matrix of a Hamming code decodes it: the columns
/// all differ, so the syndrome of one wrong bit identifies it, whatever the private form of the
/// code was.
pub(crate) struct Breaker {
    length: usize,
    /// Columns of a check matrix, one for each bit of a code word.
    checks: Vec<u128>,
    /// For each bit of the message: where it is in a code word, and what else must be added.
    pivots: Vec<(usize, u128)>,
}

impl Breaker {
    /// Takes O(K²·N) once.
    pub(crate) fn new(public: &PublicKey) -> Self {
        let (length, dimension) = (public.parameters().length(), public.parameters().dimension());
        // Reduced row echelon form, with the combination of rows that produced each row.
        let mut rows: Vec<(u128, u128)> =
            public.rows().iter().enumerate().map(|(at, row)| (*row, 1 << at)).collect();
        let mut pivots = Vec::new();
        for column in 0..length {
            let done = pivots.len();
            let Some(found) = (done..dimension).find(|row| rows[*row].0 >> column & 1 != 0) else { continue };
            rows.swap(done, found);
            let pivot = rows[done];
            for (at, row) in rows.iter_mut().enumerate() {
                if at != done && row.0 >> column & 1 != 0 {
                    *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
                }
            }
            pivots.push(column);
        }
        // Free columns check the pivots: column p of the check matrix is the bits of row p there.
        let free: Vec<usize> = (0..length).filter(|column| !pivots.contains(column)).collect();
        let checks = (0..length)
            .map(|column| match pivots.iter().position(|pivot| *pivot == column) {
                Some(row) => {
                    free.iter().enumerate().fold(0, |sum, (at, free)| sum | (rows[row].0 >> free & 1) << at)
                }
                None => 1 << free.iter().position(|free| *free == column).expect("neither pivot nor free"),
            })
            .collect();
        let pivots = pivots.into_iter().zip(rows).map(|(column, (_, made_of))| (column, made_of)).collect();
        Self { length, checks, pivots }
    }

    /// Returns the message of a code word with at most one wrong bit.
    pub(crate) fn decrypt(&self, mut word: u128) -> Option<u128> {
        let set = |word: u128| (0..self.length).filter(move |at| word >> at & 1 != 0);
        let syndrome = set(word).fold(0, |sum, at| sum ^ self.checks[at]);
        if syndrome != 0 {
            word ^= 1 << self.checks.iter().position(|check| *check == syndrome)?;
        }
        Some(
            self.pivots.iter().filter(|(column, _)| word >> column & 1 != 0).fold(0, |sum, (_, of)| sum ^ of),
        )
    }
}

/// Returns what must be added to a code word to change its message in these bits; nothing is
/// decrypted.
pub(crate) fn difference(public: &PublicKey, message_bits: u128) -> u128 {
    let rows = public.rows().iter().enumerate();
    rows.filter(|(at, _)| message_bits >> at & 1 != 0).fold(0, |sum, (_, row)| sum ^ row)
}
