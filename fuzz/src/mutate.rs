//! A small deterministic mutator. From real inputs it gets past length and magic checks.
//!
//! Coverage-guided fuzzing of the same targets is in `fuzz/libfuzzer`. This mutator needs no
//! special toolchain and produces the same inputs from the same seed on every machine.

/// Maximum length of an input, in bytes.
pub(crate) const INPUT_BYTES_MAX: usize = 8192;
/// Boundary values of length fields.
const INTERESTING: [u64; 12] =
    [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, u64::MAX];

/// xorshift64*: small, sufficient for mutations, and identical on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Accepts any seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9E37_79B9_7F4A_7C15 | 1)
    }

    /// Returns the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.draw() % bound as u64) as usize }
    }
}

/// Mutates `input`, sometimes with a part of `other`.
#[must_use]
pub fn mutate(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        step(&mut bytes, other, random);
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn step(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.draw() as u8,
        2 => bytes.truncate(at),
        3 => bytes.extend((0..random.below(64)).map(|index| (index as u8).wrapping_mul(at as u8))),
        4 if !bytes.is_empty() => {
            // A field of 1, 2, 4 or 8 bytes gets a boundary value.
            let width = 1 << random.below(4);
            let value = INTERESTING[random.below(INTERESTING.len())].to_be_bytes();
            for (offset, byte) in value[8 - width..].iter().enumerate() {
                if let Some(slot) = bytes.get_mut(at + offset) {
                    *slot = *byte;
                }
            }
        }
        5 if !bytes.is_empty() => {
            let length = random.below(bytes.len() - at).min(64);
            bytes.drain(at..at + length);
        }
        6 if !bytes.is_empty() => {
            let length = random.below(bytes.len() - at).min(256);
            let copy = bytes[at..at + length].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        7 if !other.is_empty() => {
            let from = random.below(other.len());
            let piece = &other[from..from + random.below(other.len() - from).min(512)];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ => bytes.insert(at, random.draw() as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures are reproducible on other machines.
    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let make = || {
            let mut random = Random::new(7);
            (0..100).fold(vec![1, 2, 3], |input, _| mutate(&input, b"other", &mut random))
        };
        assert_eq!(make(), make());
    }

    /// Inputs do not grow beyond the limit.
    #[test]
    fn inputs_stay_bounded() {
        let mut random = Random::new(1);
        let mut input = Vec::new();
        for _ in 0..10_000 {
            input = mutate(&input, &[7; 512], &mut random);
            assert!(input.len() <= INPUT_BYTES_MAX);
        }
    }
}
