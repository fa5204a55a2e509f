//! Pixels in memory: limits, reduction, and orientation.

/// Maximum memory of a decoder for pixels and coefficients, bytes.
pub const PICTURE_MEMORY_MAX: u64 = 176 << 20;

/// Why a file has no thumbnail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PictureError {
    /// The file is neither JPEG nor PNG.
    #[error("the file is neither a JPEG nor a PNG picture")]
    NotAPicture,
    /// The decoder refuses the data.
    #[error("invalid {format} picture: {reason}")]
    Invalid {
        /// Format of the file.
        format: &'static str,
        /// Reason of the decoder.
        reason: String,
    },
    /// Pixels and coefficients would need too much memory.
    #[error(
        "a picture of {width} x {height} pixels needs {bytes} bytes of memory; at most {PICTURE_MEMORY_MAX}"
    )]
    TooLarge {
        /// Pixels in a row.
        width: u32,
        /// Number of rows.
        height: u32,
        /// Memory of its decoder.
        bytes: u64,
    },
    /// The encoder failed.
    #[error("the thumbnail cannot be encoded: {0}")]
    Encode(String),
}

/// Samples of 8 bits, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Samples of a pixel: 3 for RGB, 4 with alpha.
    pub(crate) channels: usize,
    pub(crate) samples: Vec<u8>,
}

/// Compares the memory of a picture with its limit. `pixel_bytes` is that of one pixel.
pub(crate) fn check_memory(width: u32, height: u32, pixel_bytes: u64) -> Result<(), PictureError> {
    let bytes = u64::from(width) * u64::from(height) * pixel_bytes;
    match bytes > PICTURE_MEMORY_MAX {
        true => Err(PictureError::TooLarge { width, height, bytes }),
        false => Ok(()),
    }
}

impl Picture {
    /// Returns the dimensions of the thumbnail with this longer side.
    fn reduced_size(&self, side: u32) -> (u32, u32) {
        let longer = self.width.max(self.height);
        if longer <= side {
            return (self.width, self.height);
        }
        let scale = |length: u32| {
            let rounded = (u64::from(length) * u64::from(side) + u64::from(longer) / 2) / u64::from(longer);
            u32::try_from(rounded).unwrap_or(side).max(1)
        };
        (scale(self.width), scale(self.height))
    }

    /// Returns the picture with at most `side` pixels on its longer side. A pixel is the average of
    /// those that it covers; transparent ones have no weight.
    pub(crate) fn reduced(&self, side: u32) -> Self {
        let (width, height) = self.reduced_size(side);
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let channels = self.channels;
        let mut samples = Vec::with_capacity(width as usize * height as usize * channels);
        let span = |at: u32, of: u32, total: u32| {
            let edge = |at: u32| (u64::from(at) * u64::from(total) / u64::from(of)) as usize;
            edge(at)..edge(at + 1).max(edge(at) + 1)
        };
        for y in 0..height {
            let rows = span(y, height, self.height);
            for x in 0..width {
                let columns = span(x, width, self.width);
                let (mut sums, mut weights, mut count) = ([0u64; 3], 0u64, 0u64);
                for row in rows.clone() {
                    let start = (row * self.width as usize + columns.start) * channels;
                    let pixels = &self.samples[start..start + columns.len() * channels];
                    for pixel in pixels.chunks_exact(channels) {
                        let weight = pixel.get(3).map_or(255, |alpha| u64::from(*alpha));
                        for (sum, sample) in sums.iter_mut().zip(pixel) {
                            *sum += u64::from(*sample) * weight;
                        }
                        weights += weight;
                        count += 1;
                    }
                }
                for sum in sums {
                    let average = (sum + weights / 2).checked_div(weights).unwrap_or(0);
                    samples.push(average as u8);
                }
                if channels == 4 {
                    samples.push(((weights + count / 2) / count) as u8);
                }
            }
        }
        Self { width, height, channels, samples }
    }

    /// Returns the upright picture of one with an Exif orientation: 1 to 8, others are ignored.
    pub(crate) fn turned(self, orientation: u32) -> Self {
        let (width, height) = (self.width, self.height);
        let is_transposed = matches!(orientation, 5..=8);
        if !matches!(orientation, 2..=8) {
            return self;
        }
        let (new_width, new_height) = if is_transposed { (height, width) } else { (width, height) };
        let mut samples = Vec::with_capacity(self.samples.len());
        for y in 0..new_height {
            for x in 0..new_width {
                let (from_x, from_y) = match orientation {
                    2 => (width - 1 - x, y),
                    3 => (width - 1 - x, height - 1 - y),
                    4 => (x, height - 1 - y),
                    5 => (y, x),
                    6 => (y, height - 1 - x),
                    7 => (width - 1 - y, height - 1 - x),
                    _ => (width - 1 - y, x),
                };
                let start = (from_y as usize * width as usize + from_x as usize) * self.channels;
                samples.extend_from_slice(&self.samples[start..start + self.channels]);
            }
        }
        Self { width: new_width, height: new_height, channels: self.channels, samples }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(width: u32, height: u32, channels: usize) -> Picture {
        let samples = (0..width as usize * height as usize * channels).map(|at| (at * 31) as u8).collect();
        Picture { width, height, channels, samples }
    }

    #[test]
    fn orientations_turn_corners() {
        // a b c
        // d e f
        let samples: Vec<u8> = b"abcdef".iter().flat_map(|letter| [*letter; 3]).collect();
        let source = Picture { width: 3, height: 2, channels: 3, samples };
        for (orientation, width, expected) in [
            (1, 3, "abcdef"),
            (2, 3, "cbafed"),
            (3, 3, "fedcba"),
            (4, 3, "defabc"),
            (5, 2, "adbecf"),
            (6, 2, "daebfc"),
            (7, 2, "fcebda"),
            (8, 2, "cfbead"),
            (0, 3, "abcdef"),
            (9, 3, "abcdef"),
        ] {
            let turned = source.clone().turned(orientation);
            let letters: Vec<u8> = turned.samples.chunks(3).map(|pixel| pixel[0]).collect();
            assert_eq!((turned.width, &letters[..]), (width, expected.as_bytes()), "{orientation}");
        }
    }

    #[test]
    fn average_ignores_transparent_pixels() {
        let samples = vec![200, 100, 50, 255, 0, 0, 0, 0];
        let source = Picture { width: 2, height: 1, channels: 4, samples };
        assert_eq!(source.reduced(1).samples, [200, 100, 50, 128]);
        let clear = Picture { width: 2, height: 1, channels: 4, samples: vec![9, 9, 9, 0, 7, 7, 7, 0] };
        assert_eq!(clear.reduced(1).samples, [0; 4]);
    }

    proptest! {
        #[test]
        fn reduction_keeps_bounds_and_range(
            width in 1u32..200,
            height in 1u32..200,
            side in 1u32..100,
            level: u8,
            alpha: bool,
        ) {
            let channels = if alpha { 4 } else { 3 };
            let small = picture(width, height, channels).reduced(side);
            prop_assert!(small.width >= 1 && small.height >= 1);
            prop_assert!(small.width.max(small.height) <= side.max(1).min(width.max(height)));
            prop_assert_eq!(small.samples.len(), small.width as usize * small.height as usize * channels);
            // A picture of one colour keeps it.
            let mut plain = picture(width, height, channels);
            plain.samples.chunks_mut(channels).for_each(|pixel| {
                pixel.fill(255);
                pixel[..3].fill(level);
            });
            prop_assert!(plain.reduced(side).samples.chunks(channels).all(|pixel| pixel[..3] == [level; 3]));
        }
    }
}
