//! Outputs of functions that make a new file of each file, such as `compress`.
//!
//! Does: choose the destination and the names before any job starts, and write the bytes there. The
//! tables that `filter` selected from several files become one file if one is named.
//! Contract: an output replaces a stored file only when all its bytes are there. No output replaces
//! a file that the command reads.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sealstone_client::{Client, ClientError, Devices, FileKind, FilePath, Metadata, Method, PutOptions};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::{JoinError, OutputLine, ResultLine, ShippedFunction, has_argument, join_parquet};
use sealstone_mds_protocol::{ErrorCode, shown};
use sealstone_transfer::{StoredPath, write_whole};

use crate::files::InputFile;
use crate::observer::{ResultDestination, RunObserver};
use crate::result_sink::ResultSink;

/// Maximum bytes of all outputs that wait to be stored.
const WAITING_BYTES_MAX: usize = 512 << 20;
/// Bytes of a table that the observer receives at once.
const TABLE_PIECE_BYTES: usize = 1 << 20;
/// Maximum bytes of an output that the client computed and writes after those of other files.
const ORDERED_OUTPUT_MAX: u64 = 64 << 20;

/// Destination of outputs.
#[derive(Debug)]
enum OutputTarget {
    /// The observer or a local file, in the order of the files.
    Sink,
    /// A local file with the rows of all tables.
    Table(PathBuf),
    /// A local folder with one file for each.
    Folder(PathBuf),
    /// Stored paths, one for each file.
    Stored(Vec<FilePath>),
}

/// The outputs of a command.
#[derive(Debug)]
pub(crate) struct FileOutputs {
    target: OutputTarget,
    /// Names of the outputs by the number of their file; empty if one path has all.
    names: Vec<Vec<u8>>,
    method: Method,
    waiting: Vec<(usize, Vec<u8>)>,
    waiting_bytes: usize,
    /// Whether the outputs of all files are parts of one Parquet file.
    is_joined: bool,
}

/// Returns the name of the output of a file.
fn output_name(function: &ShippedFunction, arguments: &[u8], path: &FilePath) -> Outcome<Vec<u8>> {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match function.name {
        "compress" => {
            let is_gzip = has_argument(arguments, "format=gzip");
            Ok([name, if is_gzip { b".gz" } else { b".zst" }].concat())
        }
        "decompress" => {
            let short = [&b".gz"[..], b".zst"].into_iter().find_map(|end| name.strip_suffix(end));
            let short = short.filter(|name| !name.is_empty()).ok_or_else(|| {
                Failure::usage("its name ends neither in .gz nor in .zst")
                    .at(path)
                    .hint("name the output of a single file with --output FILE or --to PATH")
            })?;
            Ok(short.to_vec())
        }
        _ => Ok(name.to_vec()),
    }
}

impl FileOutputs {
    /// Chooses the destination and the names.
    ///
    /// # Errors
    /// For outputs of one name, those that would replace an input, and a terminal.
    pub(crate) async fn plan<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        (function, arguments): (&ShippedFunction, &[u8]),
        (files, is_many): (&[InputFile], bool),
        (local, stored, method): (&ResultDestination, Option<&StoredPath>, Method),
    ) -> Outcome<Self> {
        let names = || -> Outcome<Vec<Vec<u8>>> {
            let names = files.iter().map(|file| output_name(function, arguments, &file.path));
            let names: Vec<Vec<u8>> = names.collect::<Outcome<_>>()?;
            let mut known = BTreeSet::new();
            match names.iter().find(|name| !known.insert(name.as_slice())) {
                Some(name) => Err(Failure::usage(format!("two outputs have the name {}", shown(name)))
                    .hint("run the function on one directory at a time")),
                None => Ok(names),
            }
        };
        let is_joined = is_many && function.name == "filter";
        let new = |target, names: Vec<Vec<u8>>, is_joined| Self {
            target,
            names,
            method,
            waiting: Vec::new(),
            waiting_bytes: 0,
            is_joined,
        };
        let Some(stored) = stored else {
            return match local.path() {
                Some(path) if path.is_dir() => Ok(new(OutputTarget::Folder(path.into()), names()?, false)),
                Some(path) if is_joined => Ok(new(OutputTarget::Table(path.into()), Vec::new(), true)),
                _ => Ok(new(OutputTarget::Sink, Vec::new(), is_joined)),
            };
        };
        let top: &FilePath = stored;
        let is_directory = match client.stat(top).await {
            Ok(stat) => stat.kind == FileKind::Directory,
            Err(ClientError::Refused(refused)) if refused.code == ErrorCode::NotFound => false,
            Err(error) => return Err(Failure::from(error).at(top)),
        };
        if !is_directory && ((is_many && !is_joined) || stored.trailing_slash) {
            return Err(Failure::usage("not a directory; outputs of several files need one")
                .at(top)
                .hint(format!("sealstone mkdir {}", top.shown())));
        }
        let names = if is_directory { names()? } else { Vec::new() };
        let paths: Vec<FilePath> = match is_directory {
            false => vec![top.clone(); files.len()],
            true => names.iter().map(|name| below(top, name)).collect::<Outcome<_>>()?,
        };
        if let Some(path) = paths.iter().find(|path| files.iter().any(|file| file.path == **path)) {
            return Err(Failure::usage("the output would replace a file that the function reads").at(path));
        }
        Ok(new(OutputTarget::Stored(paths), names, is_joined && !is_directory))
    }

    /// Whether the outputs go to the sink of results.
    pub(crate) const fn is_sink(&self) -> bool {
        matches!(self.target, OutputTarget::Sink)
    }

    /// Whether the outputs of all files become one file.
    pub(crate) const fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// Returns the local or stored path of an output; none in the sink.
    pub(crate) fn path_of(&self, file: usize) -> Option<Vec<u8>> {
        match &self.target {
            OutputTarget::Sink => None,
            OutputTarget::Table(path) => Some(path.as_os_str().as_bytes().to_vec()),
            OutputTarget::Folder(folder) => {
                let name = OsStr::from_bytes(self.names.get(file)?);
                Some(folder.join(name).into_os_string().into_encoded_bytes())
            }
            OutputTarget::Stored(paths) => Some(paths.get(file)?.as_bytes().to_vec()),
        }
    }

    /// Takes an output that is in memory; returns the bytes if they belong in the sink.
    pub(crate) fn take(&mut self, file: usize, bytes: Vec<u8>) -> Outcome<Option<Vec<u8>>> {
        match &self.target {
            OutputTarget::Sink if !self.is_joined => return Ok(Some(bytes)),
            OutputTarget::Folder(folder) => {
                let name = self.names.get(file).ok_or_else(Failure::unexpected_response)?;
                write_local(&folder.join(OsStr::from_bytes(name)), &mut bytes.as_slice())?;
            }
            OutputTarget::Sink | OutputTarget::Table(_) | OutputTarget::Stored(_) => {
                if self.waiting_bytes + bytes.len() > WAITING_BYTES_MAX {
                    return Err(Failure::operation("the outputs have more than 512 MiB together")
                        .hint("run the function on fewer files"));
                }
                self.waiting_bytes += bytes.len();
                self.waiting.push((file, bytes));
            }
        }
        Ok(None)
    }

    /// Takes an output in a temporary file; returns the bytes if they belong in the sink.
    pub(crate) async fn take_spool<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        (file, mode): (usize, u16),
        mut spool: File,
        (sink, is_only): (&mut ResultSink, bool),
    ) -> Outcome<Option<Vec<u8>>> {
        spool.seek(SeekFrom::Start(0))?;
        match &self.target {
            OutputTarget::Sink => {
                if let (ResultSink::File(out, _), true) = (sink, is_only) {
                    io::copy(&mut spool, out)?;
                    return Ok(Some(Vec::new()));
                }
                let length = spool.metadata()?.len();
                if length > ORDERED_OUTPUT_MAX {
                    return Err(Failure::operation("the output has more than 64 MiB")
                        .hint("write it with --output FILE, or the outputs of several files to a folder"));
                }
                let mut bytes = Vec::new();
                spool.read_to_end(&mut bytes)?;
                return Ok(Some(bytes));
            }
            OutputTarget::Table(_) => return Err(Failure::unexpected_response()),
            OutputTarget::Folder(folder) => {
                let name = self.names.get(file).ok_or_else(Failure::unexpected_response)?;
                write_local(&folder.join(OsStr::from_bytes(name)), &mut spool)?;
            }
            OutputTarget::Stored(paths) => {
                let path = paths.get(file).ok_or_else(Failure::unexpected_response)?;
                let size = spool.metadata()?.len();
                let options = self.put_options(mode, size);
                let spool = tokio::fs::File::from_std(spool);
                client.put(path, spool, options).await.map_err(|error| Failure::from(error).at(path))?;
            }
        }
        Ok(None)
    }

    fn put_options(&self, mode: u16, size: u64) -> PutOptions {
        PutOptions { size: Some(size), mode, method: self.method, ..PutOptions::default() }
    }

    /// Stores the outputs that wait; returns the numbers of files that failed.
    pub(crate) async fn store_waiting<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        files: &[InputFile],
    ) -> Vec<(usize, Failure)> {
        let mut failed = Vec::new();
        let OutputTarget::Stored(paths) = &self.target else { return failed };
        if self.is_joined {
            return failed;
        }
        for (file, bytes) in std::mem::take(&mut self.waiting) {
            let (Some(path), Some(input)) = (paths.get(file), files.get(file)) else { continue };
            let options = self.put_options(input.output_mode(), bytes.len() as u64);
            if let Err(error) = client.put(path, &bytes[..], options).await {
                failed.push((file, Failure::from(error).at(path)));
            }
        }
        self.waiting_bytes = 0;
        failed
    }
}

impl FileOutputs {
    /// Writes one Parquet file of the outputs of all files, in the order of the files.
    ///
    /// # Errors
    /// Without files; for outputs that have other columns, with the path of their file.
    pub(crate) async fn write_joined<M: Metadata, D: Devices>(
        &mut self,
        client: &Client<M, D>,
        files: &[InputFile],
        observer: &dyn RunObserver,
    ) -> Outcome {
        if files.is_empty() {
            return Err(Failure::operation("no table was found, so the output would have no columns"));
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        if waiting.len() != files.len() {
            return Err(Failure::unexpected_response());
        }
        waiting.sort_unstable_by_key(|(file, _)| *file);
        let (numbers, parts): (Vec<usize>, Vec<Vec<u8>>) = waiting.into_iter().unzip();
        let mut spool = tempfile::tempfile()?;
        let mut buffered = io::BufWriter::new(&mut spool);
        let size = join_parquet(&parts, &mut buffered).map_err(|error| {
            let (part, failure) = match error {
                JoinError::Write(error) => return Failure::from(error),
                JoinError::Malformed { part, .. } => (part, Failure::operation(error)),
                JoinError::Schema { part } => {
                    let hint = "run the function on files with the same columns";
                    (part, Failure::operation(error).hint(hint))
                }
            };
            match numbers.get(part).and_then(|file| files.get(*file)) {
                Some(file) => failure.at(&file.path),
                None => failure,
            }
        })?;
        buffered.flush()?;
        drop(buffered);
        spool.seek(SeekFrom::Start(0))?;
        match &self.target {
            OutputTarget::Stored(paths) => {
                let (path, file) =
                    paths.first().zip(files.first()).ok_or_else(Failure::unexpected_response)?;
                let options = self.put_options(file.output_mode(), size);
                let spool = tokio::fs::File::from_std(spool);
                client.put(path, spool, options).await.map_err(|error| Failure::from(error).at(path))?;
            }
            OutputTarget::Table(path) => {
                let mut spool = tokio::fs::File::from_std(spool);
                write_whole(path.as_os_str(), async |out| Ok(tokio::io::copy(&mut spool, out).await?))
                    .await?;
            }
            OutputTarget::Sink | OutputTarget::Folder(_) => {
                let mut piece = vec![0; TABLE_PIECE_BYTES];
                loop {
                    match spool.read(&mut piece)? {
                        0 => break,
                        length => observer.result(&piece[..length])?,
                    }
                }
            }
        }
        Ok(())
    }
}

fn below(top: &FilePath, name: &[u8]) -> Outcome<FilePath> {
    let base = top.as_bytes().strip_suffix(b"/").unwrap_or(top.as_bytes());
    FilePath::new([base, b"/", name].concat()).map_err(|error| Failure::usage(error).at(shown(name)))
}

/// Writes a local file; removes it if that fails.
fn write_local(path: &Path, source: &mut impl io::Read) -> Outcome {
    let mut file = File::create(path).map_err(|error| Failure::from(error).at(path.as_os_str().shown()))?;
    let written = io::copy(source, &mut file).and_then(|_| file.sync_all());
    written.map_err(|error| {
        // The failure of the write is the one to report.
        let _ = std::fs::remove_file(path);
        Failure::from(error).at(path.as_os_str().shown())
    })
}

/// Returns the bytes of the `data` lines, and the total after them.
pub(crate) fn split_output(lines: Vec<ResultLine>) -> Outcome<(Vec<u8>, OutputLine)> {
    let (mut bytes, mut end) = (Vec::new(), None);
    for line in lines {
        match line {
            ResultLine::Data(line) => {
                bytes.append(&mut line.data.into_bytes().map_err(Failure::operation)?);
            }
            ResultLine::Output(line) => end = Some(line),
            _ => return Err(Failure::unexpected_response()),
        }
    }
    let end = end.filter(|end| end.bytes_out == bytes.len() as u64);
    Ok((bytes, end.ok_or_else(Failure::unexpected_response)?))
}

/// A result of a local run, whose `data` lines go to a temporary file.
pub(crate) struct SpooledResult {
    spool: File,
    line: Vec<u8>,
    lines: Vec<ResultLine>,
}

/// Maximum bytes of a line of a result.
const LINE_BYTES_MAX: usize = 1 << 20;

impl SpooledResult {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { spool: tempfile::tempfile()?, line: Vec::new(), lines: Vec::new() })
    }

    /// Returns the bytes and their total.
    pub(crate) fn finish(self) -> Outcome<(File, OutputLine)> {
        let length = self.spool.metadata()?.len();
        match <[ResultLine; 1]>::try_from(self.lines) {
            Ok([ResultLine::Output(line)]) if line.bytes_out == length => Ok((self.spool, line)),
            _ => Err(Failure::unexpected_response()),
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = serde_json::from_slice(&self.line).map_err(io::Error::other)?;
        self.line.clear();
        match line {
            ResultLine::Data(line) => {
                self.spool.write_all(&line.data.into_bytes().map_err(io::Error::other)?)
            }
            line if self.lines.is_empty() => {
                self.lines.push(line);
                Ok(())
            }
            _ => Err(io::Error::other("more than one total of an output")),
        }
    }
}

impl io::Write for SpooledResult {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a line has more than 1 MiB"));
            }
            self.line.extend_from_slice(part);
            if parts.peek().is_some() {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sealstone_functions::{DataLine, RecordText, find_function};

    use super::*;

    fn name_of(function: &str, arguments: &[u8], path: &str) -> Outcome<String> {
        let path = FilePath::new(path.as_bytes()).unwrap();
        let name = output_name(find_function(function).unwrap(), arguments, &path)?;
        Ok(String::from_utf8(name).unwrap())
    }

    #[test]
    fn output_names_follow_their_formats() {
        assert_eq!(name_of("compress", b"", "/logs/a.log").unwrap(), "a.log.zst");
        assert_eq!(name_of("compress", b"format=gzip\0", "/logs/a.log").unwrap(), "a.log.gz");
        assert_eq!(name_of("decompress", b"", "/logs/a.log.zst").unwrap(), "a.log");
        assert_eq!(name_of("decompress", b"", "/logs/a.tar.gz").unwrap(), "a.tar");
        for path in ["/logs/a.log", "/logs/.gz"] {
            let failure = name_of("decompress", b"", path).unwrap_err();
            assert!(failure.message.contains("neither in .gz nor in .zst"), "{}", failure.message);
        }
    }

    #[test]
    fn spooled_lines_become_bytes() {
        let data = |bytes: &[u8]| {
            let RecordText::Base64(text) = RecordText::new(&[bytes, b"\xff"].concat()) else {
                panic!("text")
            };
            ResultLine::Data(DataLine { object: 0, unit: 0, data: RecordText::Base64(text) })
        };
        let end = ResultLine::Output(OutputLine { object: 0, bytes_in: 9, bytes_out: 6 });
        let lines = [data(b"ab"), data(b"cd"), end];
        let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        for size in [1, 7, text.len()] {
            let mut result = SpooledResult::new().unwrap();
            text.as_bytes().chunks(size).for_each(|part| result.write_all(part).unwrap());
            let (mut spool, line) = result.finish().unwrap();
            assert_eq!((line.bytes_in, line.bytes_out), (9, 6));
            spool.seek(SeekFrom::Start(0)).unwrap();
            let mut bytes = Vec::new();
            spool.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"ab\xffcd\xff");
            assert_eq!(split_output(lines.to_vec()).unwrap().0, bytes);
        }
        let mut short = SpooledResult::new().unwrap();
        short.write_all(text.lines().last().unwrap().as_bytes()).unwrap();
        short.write_all(b"\n").unwrap();
        assert!(short.finish().is_err(), "bytes are missing");
        assert!(split_output(lines[..2].to_vec()).is_err());
    }
}
