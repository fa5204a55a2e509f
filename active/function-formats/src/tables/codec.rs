//! Decompression of pages. The size is known before, and more is an error.

use std::io::Read as _;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use parquet::basic::Compression;
use ruzstd::decoding::FrameDecoder;
use sealstone_functions::WINDOW_BYTES_MAX;

/// Decompresses the bytes of a page, which become exactly `size` bytes.
pub(super) fn decompress(codec: Compression, data: &[u8], size: usize) -> Result<Bytes, String> {
    let mut out = Vec::new();
    match codec {
        Compression::UNCOMPRESSED => out.extend_from_slice(data),
        Compression::SNAPPY => {
            let found = snap::raw::decompress_len(data).map_err(|error| error.to_string())?;
            check_size(found, size)?;
            out.resize(size, 0);
            snap::raw::Decoder::new().decompress(data, &mut out).map_err(|error| error.to_string())?;
        }
        Compression::GZIP(_) => {
            // One more byte shows that there is more.
            let mut reader = MultiGzDecoder::new(data).take(size as u64 + 1);
            reader.read_to_end(&mut out).map_err(|error| error.to_string())?;
        }
        Compression::ZSTD(_) => {
            out.resize(size, 0);
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(WINDOW_BYTES_MAX);
            let found = decoder.decode_all(data, &mut out).map_err(|error| error.to_string())?;
            out.truncate(found);
        }
        other => {
            let name = other.to_string();
            let name = name.split('(').next().unwrap_or_default();
            return Err(format!("compression {name} is not supported, only snappy, gzip and zstd"));
        }
    }
    check_size(out.len(), size)?;
    Ok(out.into())
}

fn check_size(found: usize, expected: usize) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("it has {found} bytes, and its header says {expected}")),
    }
}
