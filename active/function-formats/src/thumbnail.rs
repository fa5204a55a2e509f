//! `thumbnail`: small pictures of JPEG and PNG files, in the format of the file.
//!
//! Does: decode, turn by the Exif orientation, reduce by averaging, encode.
//! Does not: enlarge.
//! Contract: the dimensions in the header are compared with the limits before pixels are decoded.

use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionFailure};
use sealstone_functions::{OutputLine, ResultLine, emit, emit_data};

use crate::picture::{Picture, PictureError};
use crate::whole_file::{open_whole, read_whole};
use crate::{jpeg, png_file};

/// Maximum size of a picture file, bytes.
pub const PICTURE_FILE_BYTES_MAX: u64 = 48 << 20;
/// Default of the longer side of a thumbnail, pixels.
const SIDE_DEFAULT: u64 = 256;
/// Least and greatest longer side of a thumbnail, pixels.
const SIDES: core::ops::RangeInclusive<u64> = 16..=4096;

/// Runs `thumbnail` on each object.
pub fn run_thumbnail(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["size", "stripe."])?;
    let side = arguments.number("size", SIDE_DEFAULT)?;
    if !SIDES.contains(&side) {
        let (least, greatest) = (SIDES.start(), SIDES.end());
        return Err(FunctionFailure::invalid(format!(
            "argument size: expected {least} to {greatest} pixels"
        )));
    }
    for object in 0..call.object_count() {
        let length = open_whole(call, object, "thumbnail")?;
        let file = read_whole(call, object, length, PICTURE_FILE_BYTES_MAX)?;
        let small = make_thumbnail(file, side as u32).map_err(|error| {
            let errno = match error {
                PictureError::TooLarge { .. } => FunctionErrno::TOO_LARGE,
                _ => FunctionErrno::BAD_DATA,
            };
            FunctionFailure::new(errno, format!("object {object}: {error}"))
        })?;
        emit_data(call, object, 0, &small)?;
        let line = OutputLine { object, bytes_in: length, bytes_out: small.len() as u64 };
        emit(call, &ResultLine::Output(line))?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Returns a picture file whose longer side has at most `side` pixels.
fn make_thumbnail(file: Vec<u8>, side: u32) -> Result<Vec<u8>, PictureError> {
    let reduce = |picture: &Picture| picture.reduced(side);
    match file.get(..4) {
        Some([0xff, 0xd8, ..]) => {
            let (picture, orientation) = jpeg::decode(&file)?;
            drop(file);
            jpeg::encode(&reduce(&picture).turned(orientation))
        }
        Some([0x89, b'P', b'N', b'G']) => {
            let picture = png_file::decode(&file)?;
            drop(file);
            png_file::encode(&reduce(&picture))
        }
        _ => Err(PictureError::NotAPicture),
    }
}

#[cfg(test)]
#[path = "thumbnail_tests.rs"]
mod tests;
