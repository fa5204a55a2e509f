//! `compress` and `decompress`: gzip (RFC 1952) and Zstandard (RFC 8878).
//!
//! Does: one gzip member or Zstandard frame for each stripe unit, so that their concatenation in
//! the order of the file is valid; checks of checksums, truncation and garbage.
//! Does not: decompress a part of a file. A striped file is the error ENOSYS.
//! Contract: memory is bounded by [`WINDOW_BYTES_MAX`], and output by the argument `max-bytes`.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, FrameCompressor};
use sealstone_function_host::{
    CHUNK_BYTES, FunctionArguments, FunctionCall, FunctionErrno, FunctionFailure, StripeUnit,
};

use crate::result::{DATA_LINE_BYTES, OutputLine, ResultLine, emit, emit_data};

/// Maximum size of the window of a Zstandard frame, bytes: the memory that its decoder needs.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Default of the maximum size of the decompressed bytes of a file.
const DECOMPRESSED_BYTES_DEFAULT: u64 = 1 << 30;
/// Blocks that are decoded before their bytes are written; a block has at most 128 KiB.
const BLOCKS_AT_ONCE: usize = 8;

/// A compressed format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompressionFormat {
    Gzip,
    Zstd,
}

impl CompressionFormat {
    fn from_arguments(arguments: &FunctionArguments<'_>) -> Result<Option<Self>, FunctionFailure> {
        match arguments.get("format") {
            None => Ok(None),
            Some("gzip") => Ok(Some(Self::Gzip)),
            Some("zstd") => Ok(Some(Self::Zstd)),
            Some(_) => Err(FunctionFailure::invalid("argument format: expected gzip or zstd")),
        }
    }

    /// Returns the format that begins with these bytes.
    fn detect(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// Reader and writer of a unit share the call. The first failure of a host call is kept here,
/// because the libraries only pass errors of the system.
struct UnitStream<'s, 'a> {
    call: RefCell<&'s mut FunctionCall<'a>>,
    failure: RefCell<Option<FunctionFailure>>,
    object: u32,
    unit: StripeUnit,
}

impl<'s, 'a> UnitStream<'s, 'a> {
    fn new(call: &'s mut FunctionCall<'a>, object: u32, unit: StripeUnit) -> Self {
        call.read_ahead(object, unit.object_offset, unit.length);
        Self { call: RefCell::new(call), failure: RefCell::new(None), object, unit }
    }

    fn keep(&self, failure: FunctionFailure) -> io::Error {
        self.failure.borrow_mut().get_or_insert(failure);
        io::Error::other("host call failed")
    }

    /// Returns the failure of a host call, if there was one.
    fn check(&self) -> Result<(), FunctionFailure> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }
}

/// Bytes of a unit, in order. A hole is read as zeros.
struct UnitReader<'s, 'a> {
    stream: &'s UnitStream<'s, 'a>,
    position: u64,
    /// Whether bytes beyond the end were requested.
    has_ended: bool,
}

impl Read for UnitReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let unit = &self.stream.unit;
        let rest = unit.length - self.position;
        if rest == 0 {
            self.has_ended = true;
            return Ok(0);
        }
        let count = usize::try_from(rest).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let offset = unit.object_offset + self.position;
        let read =
            self.stream.call.borrow_mut().read_zero_filled(self.stream.object, offset, &mut buffer[..count]);
        read.map_err(|failure| self.stream.keep(failure))?;
        self.position += count as u64;
        Ok(count)
    }
}

/// Writes `data` lines of a unit.
struct UnitWriter<'s, 'a> {
    stream: &'s UnitStream<'s, 'a>,
    buffer: Vec<u8>,
    /// Bytes that were written, with those in the buffer.
    written: u64,
    written_max: u64,
}

impl<'s, 'a> UnitWriter<'s, 'a> {
    fn new(stream: &'s UnitStream<'s, 'a>, written_max: u64) -> Self {
        Self { stream, buffer: Vec::with_capacity(DATA_LINE_BYTES), written: 0, written_max }
    }

    fn send(&mut self) -> io::Result<()> {
        let UnitStream { object, unit, .. } = self.stream;
        let sent = emit_data(&mut self.stream.call.borrow_mut(), *object, unit.number, &self.buffer);
        self.buffer.clear();
        sent.map_err(|failure| self.stream.keep(failure))
    }
}

impl Write for UnitWriter<'_, '_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = data.len().min(DATA_LINE_BYTES - self.buffer.len());
        if self.written_max - self.written < count as u64 {
            let UnitStream { object, .. } = self.stream;
            let message =
                format!("object {object}: more than {} bytes, the limit max-bytes", self.written_max);
            return Err(self.stream.keep(FunctionFailure::new(FunctionErrno::TOO_LARGE, message)));
        }
        self.buffer.extend_from_slice(&data[..count]);
        self.written += count as u64;
        if self.buffer.len() == DATA_LINE_BYTES {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send() }
    }
}

/// Runs `compress` on each object.
pub fn run_compress(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["format", "level", "stripe."])?;
    let format = CompressionFormat::from_arguments(&arguments)?.unwrap_or(CompressionFormat::Zstd);
    let level = match (arguments.get("level"), format) {
        (None, _) => Compression::default(),
        (Some(_), CompressionFormat::Zstd) => {
            return Err(FunctionFailure::invalid("argument level: only gzip has levels"));
        }
        (Some(text), CompressionFormat::Gzip) => match text.parse() {
            Ok(level @ 1..=9) => Compression::new(level),
            _ => return Err(FunctionFailure::invalid("argument level: expected 1 to 9")),
        },
    };
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        let mut line = OutputLine { object, bytes_in: 0, bytes_out: 0 };
        for unit in geometry.units() {
            line.bytes_in += unit.length;
            line.bytes_out += compress_unit(call, object, unit, format, level)?;
        }
        emit(call, &ResultLine::Output(line))?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Compresses a unit; returns the number of compressed bytes.
fn compress_unit(
    call: &mut FunctionCall<'_>,
    object: u32,
    unit: StripeUnit,
    format: CompressionFormat,
    level: Compression,
) -> Result<u64, FunctionFailure> {
    let stream = UnitStream::new(call, object, unit);
    let mut reader = UnitReader { stream: &stream, position: 0, has_ended: false };
    let mut writer = UnitWriter::new(&stream, u64::MAX);
    match format {
        CompressionFormat::Gzip => {
            let mut encoder = GzEncoder::new(&mut writer, level);
            let copied = copy_in_chunks(&mut reader, &mut encoder).and_then(|()| encoder.finish().map(drop));
            finish(&stream, copied.and_then(|()| writer.flush()))?;
        }
        CompressionFormat::Zstd => {
            // The library panics on errors, so reader and writer report none to it.
            let mut encoder = FrameCompressor::new(CompressionLevel::Fastest);
            encoder.set_source(EndOnError(BufReader::with_capacity(CHUNK_BYTES, &mut reader)));
            encoder.set_drain(DropOnError { inner: &mut writer, has_failed: false });
            encoder.compress();
            drop(encoder);
            stream.check()?;
            finish(&stream, writer.flush())?;
        }
    }
    Ok(writer.written)
}

/// A reader that ends where its source fails; the stream keeps the failure.
struct EndOnError<R>(R);

impl<R: Read> Read for EndOnError<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.read(buffer).unwrap_or(0))
    }
}

/// A writer that drops bytes after a failure; the stream keeps the failure.
struct DropOnError<W> {
    inner: W,
    has_failed: bool,
}

impl<W: Write> Write for DropOnError<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if !self.has_failed {
            self.has_failed = self.inner.write_all(data).is_err();
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the failure of a host call, or that of a library.
fn finish(stream: &UnitStream<'_, '_>, outcome: io::Result<()>) -> Result<(), FunctionFailure> {
    stream.check()?;
    outcome.map_err(|error| {
        let message = format!("object {}: {error}", stream.object);
        FunctionFailure::new(FunctionErrno::IO, message)
    })
}

fn copy_in_chunks(reader: &mut impl Read, writer: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(()),
            count => writer.write_all(&buffer[..count])?,
        }
    }
}

/// Runs `decompress` on each object.
pub fn run_decompress(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["format", "max-bytes", "stripe."])?;
    let format = CompressionFormat::from_arguments(&arguments)?;
    let written_max = arguments.number("max-bytes", DECOMPRESSED_BYTES_DEFAULT)?;
    for object in 0..call.object_count() {
        let geometry = call.geometry(object)?;
        let Some(unit) = geometry.unit_at(0).filter(|unit| unit.is_last) else {
            let message = format!("decompress object {object}: the file is striped; read it at the client");
            return Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, message));
        };
        let bytes_out = decompress_unit(call, object, unit, format, written_max)?;
        emit(call, &ResultLine::Output(OutputLine { object, bytes_in: unit.length, bytes_out }))?;
        call.progress(u64::from(object) + 1, u64::from(call.object_count()));
    }
    Ok(())
}

/// Decompresses a file; returns the number of decompressed bytes.
fn decompress_unit(
    call: &mut FunctionCall<'_>,
    object: u32,
    unit: StripeUnit,
    format: Option<CompressionFormat>,
    written_max: u64,
) -> Result<u64, FunctionFailure> {
    let bad_data =
        |reason: &str| FunctionFailure::new(FunctionErrno::BAD_DATA, format!("object {object}: {reason}"));
    let stream = UnitStream::new(call, object, unit);
    let inner = UnitReader { stream: &stream, position: 0, has_ended: false };
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, inner);
    let mut writer = UnitWriter::new(&stream, written_max);
    let head = match reader.fill_buf() {
        Ok(head) => head,
        Err(error) => return finish(&stream, Err(error)).map(|()| 0),
    };
    if head.is_empty() {
        return Err(bad_data("the file is empty, so it is neither gzip nor zstd"));
    }
    let format = match (format, CompressionFormat::detect(head)) {
        (None, None) => return Err(bad_data("the file begins neither as gzip nor as zstd")),
        (None, Some(found)) => found,
        (Some(expected), found) if found == Some(expected) => expected,
        (Some(expected), _) => {
            return Err(bad_data(&format!("the file does not begin as {}", expected.name())));
        }
    };
    let outcome = match format {
        CompressionFormat::Gzip => copy_in_chunks(&mut MultiGzDecoder::new(&mut reader), &mut writer)
            .map_err(|error| error.to_string()),
        CompressionFormat::Zstd => decompress_frames(&mut reader, &mut writer),
    };
    let outcome = outcome.and_then(|()| writer.flush().map_err(|error| error.to_string()));
    stream.check()?;
    let name = format.name();
    outcome.map_err(|reason| match reader.get_ref().has_ended {
        true => bad_data(&format!("the {name} data end early, after {} bytes", unit.length)),
        false => {
            let position = reader.get_ref().position - reader.buffer().len() as u64;
            bad_data(&format!("invalid {name} data before offset {position}: {reason}"))
        }
    })?;
    Ok(writer.written)
}

/// Decompresses Zstandard frames up to the end; skippable frames are skipped.
fn decompress_frames(reader: &mut impl BufRead, writer: &mut impl Write) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW_BYTES_MAX);
    while !reader.fill_buf().map_err(|error| error.to_string())?.is_empty() {
        match decoder.reset(&mut *reader) {
            Ok(()) => decompress_frame(&mut decoder, reader, writer)?,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                skip(reader, length.into())?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn decompress_frame(
    decoder: &mut FrameDecoder,
    reader: &mut impl BufRead,
    writer: &mut impl Write,
) -> Result<(), String> {
    loop {
        let strategy = BlockDecodingStrategy::UptoBlocks(BLOCKS_AT_ONCE);
        decoder.decode_blocks(&mut *reader, strategy).map_err(|error| error.to_string())?;
        decoder.collect_to_writer(&mut *writer).map_err(|error| error.to_string())?;
        if decoder.is_finished() {
            break;
        }
    }
    match (decoder.get_checksum_from_data(), decoder.get_calculated_checksum()) {
        (Some(stored), Some(computed)) if stored != computed => {
            Err("the checksum of a frame does not match its content".to_owned())
        }
        _ => Ok(()),
    }
}

/// Skips bytes; fails if the input ends before.
fn skip(reader: &mut impl BufRead, length: u64) -> Result<(), String> {
    let skipped = io::copy(&mut reader.take(length), &mut io::sink()).map_err(|error| error.to_string())?;
    if skipped < length {
        // The reader knows now that the input ended.
        reader.fill_buf().map_err(|error| error.to_string())?;
        return Err("a skippable frame ends early".to_owned());
    }
    Ok(())
}

#[cfg(test)]
#[path = "compression_tests.rs"]
mod tests;
