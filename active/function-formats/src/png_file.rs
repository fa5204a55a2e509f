//! PNG files as pictures.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Encoder, Limits, Transformations};

use crate::picture::{PICTURE_MEMORY_MAX, Picture, PictureError, check_memory};

/// Memory for a pixel: as the decoder returns it, and as four samples.
const PIXEL_BYTES: u64 = 4;
/// Maximum memory for other parts of the file, bytes.
const OTHER_BYTES_MAX: usize = 8 << 20;

fn invalid(error: impl core::fmt::Display) -> PictureError {
    PictureError::Invalid { format: "PNG", reason: error.to_string() }
}

/// Decodes the first frame of a file to RGBA, or to RGB without transparency.
pub(crate) fn decode(file: &[u8]) -> Result<Picture, PictureError> {
    let limits = Limits { bytes: PICTURE_MEMORY_MAX as usize + OTHER_BYTES_MAX };
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    let header = decoder.read_header_info().map_err(invalid)?;
    check_memory(header.width, header.height, PIXEL_BYTES)?;
    let mut reader = decoder.read_info().map_err(invalid)?;
    let (width, height) = reader.info().size();
    check_memory(width, height, PIXEL_BYTES)?;
    let length = reader.output_buffer_size().ok_or_else(|| invalid("the picture is too large"))?;
    let mut samples = vec![0; length];
    let frame = reader.next_frame(&mut samples).map_err(invalid)?;
    if (frame.width, frame.height, frame.bit_depth) != (width, height, BitDepth::Eight) {
        return Err(invalid("its first frame is not the whole picture"));
    }
    samples.truncate(frame.buffer_size());
    let (channels, samples) = match frame.color_type {
        ColorType::Rgb => (3, samples),
        ColorType::Rgba => (4, samples),
        ColorType::Grayscale => (3, samples.iter().flat_map(|level| [*level; 3]).collect()),
        ColorType::GrayscaleAlpha => {
            let pixels = samples.chunks_exact(2);
            (4, pixels.flat_map(|pixel| [pixel[0], pixel[0], pixel[0], pixel[1]]).collect())
        }
        ColorType::Indexed => return Err(invalid("its palette was not applied")),
    };
    if samples.len() as u64 != u64::from(width) * u64::from(height) * channels as u64 {
        return Err(invalid("its pixels are incomplete"));
    }
    Ok(Picture { width, height, channels, samples })
}

/// Encodes a picture.
pub(crate) fn encode(picture: &Picture) -> Result<Vec<u8>, PictureError> {
    let failed = |error: png::EncodingError| PictureError::Encode(error.to_string());
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, picture.width, picture.height);
    encoder.set_color(if picture.channels == 4 { ColorType::Rgba } else { ColorType::Rgb });
    encoder.set_depth(BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&picture.samples).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(out)
}
