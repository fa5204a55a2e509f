//! JPEG files as pictures.

use exif::{In, Tag};
use jpeg_encoder::{ColorType, Encoder};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::picture::{Picture, PictureError, check_memory};

/// Quality of thumbnails, of 100.
const QUALITY: u8 = 85;
/// Maximum dimension in the format, pixels.
const SIDE_MAX: usize = 65_535;
/// Memory for a pixel: 3 samples.
const PIXEL_BYTES: u64 = 3;
/// Memory for a pixel of a progressive file: 3 samples, and 3 coefficients of 16 bits.
const PROGRESSIVE_PIXEL_BYTES: u64 = 9;
/// Maximum number of scans of a progressive file: each one visits all blocks again.
const SCANS_MAX: usize = 64;

fn invalid(reason: impl core::fmt::Display) -> PictureError {
    // The library puts some of its texts in quotes.
    PictureError::Invalid { format: "JPEG", reason: reason.to_string().trim_matches('"').to_owned() }
}

/// Decodes a file; returns its pixels and Exif orientation.
pub(crate) fn decode(file: &[u8]) -> Result<(Picture, u32), PictureError> {
    let options = DecoderOptions::new_cmd()
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .set_strict_mode(true)
        .jpeg_set_max_scans(SCANS_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(invalid)?;
    let info = decoder.info().ok_or_else(|| invalid("no header"))?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    let pixel_bytes = if info.sof.is_sequential_dct() { PIXEL_BYTES } else { PROGRESSIVE_PIXEL_BYTES };
    check_memory(width, height, pixel_bytes)?;
    let samples = decoder.decode().map_err(invalid)?;
    if samples.len() as u64 != u64::from(width) * u64::from(height) * 3 {
        return Err(invalid("its pixels are incomplete"));
    }
    let orientation = decoder.exif().map_or(1, |data| orientation(data));
    Ok((Picture { width, height, channels: 3, samples }, orientation))
}

/// Returns the orientation in Exif data; 1 if they are malformed.
fn orientation(data: &[u8]) -> u32 {
    let parsed = exif::Reader::new().read_raw(data.to_vec());
    let field = parsed.ok().and_then(|exif| exif.get_field(Tag::Orientation, In::PRIMARY)?.value.get_uint(0));
    field.unwrap_or(1)
}

/// Encodes a picture of RGB samples.
pub(crate) fn encode(picture: &Picture) -> Result<Vec<u8>, PictureError> {
    let side = |length: u32| u16::try_from(length).map_err(|error| PictureError::Encode(error.to_string()));
    let mut out = Vec::new();
    Encoder::new(&mut out, QUALITY)
        .encode(&picture.samples, side(picture.width)?, side(picture.height)?, ColorType::Rgb)
        .map_err(|error| PictureError::Encode(error.to_string()))?;
    Ok(out)
}
