//! Calls of a function without a network: shared memory rings, a socket, and direct system calls.
//!
//! Does: runs the same code in a confined engine whose requests this process serves from a plain
//! file, in a local program that reads the file itself, and in that program over a Unix socket with
//! one message for each call, as SunRPC does.
//! Does not: use a device.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use sealstone_function_abi::CallDescriptor;
use sealstone_sandbox::{EngineCode, EngineKind, Zygote};

use super::device::MeasuredCall;
use super::engine::{MeasuredEngine, zygote};
use crate::Outcome;

const SOURCE: &str = include_str!("functions.c");
const HEADER: &str = include_str!("../../../active/engine-c/include/osd.h");
/// Bytes of the header of a call over the socket, and of the answer.
const CALL_BYTES: usize = 20;
const ANSWER_BYTES: usize = 8;
/// Maximum bytes of one call over the socket.
const CALL_DATA_MAX: usize = 4 << 20;

/// The functions as a module for the C engine, and as a program.
pub(super) struct BuiltFunctions {
    pub(super) module: PathBuf,
    pub(super) program: PathBuf,
}

impl BuiltFunctions {
    /// Compiles both with `cc -O2`.
    pub(super) fn build(folder: &Path) -> Outcome<Self> {
        let source = folder.join("functions.c");
        std::fs::write(&source, SOURCE)?;
        std::fs::write(folder.join("osd.h"), HEADER)?;
        let built = Self { module: folder.join("functions.so"), program: folder.join("functions") };
        let compile = |flags: &[&str], output: &Path| -> Outcome {
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-I"]).arg(folder).args(flags).arg("-o").arg(output).arg(&source);
            let status = compiler.status().map_err(|error| format!("no C compiler `cc`: {error}"))?;
            if status.success() { Ok(()) } else { Err("`cc` failed".into()) }
        };
        compile(&["-shared", "-fPIC"], &built.module)?;
        compile(&["-DLOCAL"], &built.program)?;
        Ok(built)
    }

    /// Runs a method in the local program.
    pub(super) fn run_locally(&self, method: &str, length: u64, files: &[&Path]) -> Outcome<MeasuredCall> {
        let mut program = Command::new(&self.program);
        let output = program.arg(method).arg(length.to_string()).args(files).output()?;
        if !output.status.success() {
            return Err(format!("the local program failed: {}", output.status).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok(MeasuredCall::of(&numbers).ok_or("the local program printed no measurement")?)
    }
}

/// A confined engine whose requests are served from a file.
pub(super) struct FileEngine {
    engine: MeasuredEngine,
    file: File,
    _zygote: Zygote,
}

impl FileEngine {
    pub(super) fn start(programs: &Path, built: &BuiltFunctions, file: &Path) -> Outcome<Self> {
        let zygote = zygote(programs, EngineKind::C)?;
        let code = EngineCode::new("fn.so", &std::fs::read(&built.module)?)?;
        let engine = MeasuredEngine::start(&zygote, EngineKind::C, &code)?;
        let file = File::options().read(true).write(true).open(file)?;
        Ok(Self { engine, file, _zygote: zygote })
    }

    pub(super) fn run(&mut self, method: &str, length: u64) -> Outcome<MeasuredCall> {
        let arguments = length.to_le_bytes();
        let call = CallDescriptor {
            method,
            arguments: &arguments,
            result_bytes_max: 1 << 20,
            ..CallDescriptor::default()
        };
        let (_, result) = self.engine.run(&call, &mut self.file)?;
        let numbers: Vec<u64> =
            result.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        Ok(MeasuredCall::of(&numbers).ok_or("the function returned no measurement")?)
    }
}

/// Serves a file over a Unix socket to the local program, and runs it.
pub(super) fn run_over_socket(
    built: &BuiltFunctions,
    method: &str,
    length: u64,
    file: &Path,
) -> Outcome<MeasuredCall> {
    let path = file.with_extension("socket");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let file = File::options().read(true).write(true).open(file)?;
    let server = thread::spawn(move || -> std::io::Result<()> {
        let (stream, _) = listener.accept()?;
        serve(stream, &file)
    });
    let measured = built.run_locally(method, length, &[Path::new(&format!("unix:{}", path.display()))]);
    if measured.is_err() {
        // The server may still wait for a client.
        drop(UnixStream::connect(&path));
    }
    server.join().map_err(|_| "the server of calls panicked")??;
    measured
}

fn serve(mut stream: UnixStream, file: &File) -> std::io::Result<()> {
    let mut data = vec![0; CALL_DATA_MAX];
    let mut header = [0; CALL_BYTES];
    while stream.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| header[at + byte]));
        let (procedure, length) = (word(4), (word(16) as usize).min(CALL_DATA_MAX));
        let offset = u64::from(word(8)) << 32 | u64::from(word(12));
        let mut answer = [0; ANSWER_BYTES];
        answer[..4].copy_from_slice(&header[..4]);
        let part = &mut data[..length];
        let count = if procedure == 0 {
            file.read_at(part, offset)?
        } else {
            stream.read_exact(part)?;
            file.write_all_at(part, offset)?;
            length
        };
        answer[4..].copy_from_slice(&(count as u32).to_be_bytes());
        stream.write_all(&answer)?;
        if procedure == 0 {
            stream.write_all(&part[..count])?;
        }
    }
    Ok(())
}
