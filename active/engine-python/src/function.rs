//! Functions in the interpreter: loading a source file, and running calls.

use std::io::Read as _;
use std::path::Path;

use sealstone_function_abi::{CallErrno, OwnedCallDescriptor};

use crate::calls::{self, RING};
use crate::library::{self, LibraryError, PythonObject, RaisedException};

/// The Python code above the module `_sealstone`; the package for authors has the same file.
const PACKAGE: &str = include_str!("../python/sealstone_function/__init__.py");
/// Name of the package.
const PACKAGE_NAME: &str = "sealstone_function";
/// Name of the package's code in tracebacks.
const PACKAGE_PATH: &str = "<sealstone>";
/// Python code that compiles the package to bytes, and executes such bytes as a module.
const PACKER: &str = "
import marshal
import sys

def pack(source, path):
    return marshal.dumps(compile(source, path, 'exec', dont_inherit=True))

def unpack(code, name, path):
    module = type(sys)(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(marshal.loads(code), module.__dict__)
    return module
";
/// Name of the module with that code.
const PACKER_NAME: &str = "_sealstone_packer";
/// Name of a function's module.
const FUNCTION_MODULE: &str = "function";
/// Maximum size of a source file in bytes. The compiler needs a multiple of it.
const SOURCE_BYTES_MAX: u64 = 4 << 20;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// With a status.
    Returned(i64),
    /// With an exception that is no error number; the log has its traceback.
    Raised,
}

/// Why the interpreter cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The library cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The package of the engine does not run.
    #[error("the package of the engine does not run in this version of Python")]
    Package,
}

/// Why a source file is refused before it is compiled.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("cannot read the code: {0}")]
    Read(#[from] std::io::Error),
    #[error("the source has more than {SOURCE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the code has zero bytes or is not UTF-8: store Python source, not a compiled file")]
    NotText,
}

/// An interpreter with the package of the engine.
#[derive(Debug)]
pub(crate) struct FunctionInterpreter {
    load: PythonObject,
    run: PythonObject,
}

impl FunctionInterpreter {
    /// Starts the interpreter. A confined process calls it before it reads any code of a function.
    ///
    /// `package` has the bytes of [`compile_package`], or none.
    pub(crate) fn start(home: &str, package: &[u8]) -> Result<Self, StartError> {
        library::initialize(home)?;
        library::create_module("_sealstone", calls::BUILTINS).map_err(failed)?;
        let package = if package.is_empty() {
            PythonObject::execute_module(PACKAGE_NAME, PACKAGE, PACKAGE_PATH)
        } else {
            unpack_package(package)
        };
        let package = package.map_err(failed)?;
        let load = package.attribute("_load").map_err(failed)?;
        let run = package.attribute("_run").map_err(failed)?;
        Ok(Self { load, run })
    }

    /// Compiles and executes a source file during a call; its errors are in the log of the job.
    pub(crate) fn load(&self, path: &Path) -> Result<LoadedFunction<'_>, CallErrno> {
        let source = read_source(path).map_err(|error| {
            RING.log_error(&error.to_string());
            CallErrno::NotExecutable
        })?;
        let loaded = PythonObject::bytes(&source).and_then(|source| {
            let path = PythonObject::text(&path.to_string_lossy())?;
            self.load.call(vec![source, PythonObject::text(FUNCTION_MODULE)?, path])
        });
        match loaded {
            Ok(function) => Ok(LoadedFunction { interpreter: self, function }),
            Err(error) => {
                let is_memory = error.is_memory();
                error.clear();
                Err(if is_memory { CallErrno::NoMemory } else { CallErrno::NotExecutable })
            }
        }
    }
}

/// Clears an exception of the engine's own Python code.
fn failed(error: RaisedException) -> StartError {
    error.clear();
    StartError::Package
}

/// Compiles the package to bytes, which an interpreter of the same library reads in less time. Only
/// a process that starts no functions calls it.
pub(crate) fn compile_package(home: &str) -> Result<Vec<u8>, StartError> {
    library::initialize(home)?;
    let pack = || {
        let packer = PythonObject::execute_module(PACKER_NAME, PACKER, PACKAGE_PATH)?;
        let arguments = vec![PythonObject::text(PACKAGE)?, PythonObject::text(PACKAGE_PATH)?];
        packer.attribute("pack")?.call(arguments)?.to_bytes()
    };
    pack().map_err(failed)
}

fn unpack_package(package: &[u8]) -> Result<PythonObject, RaisedException> {
    let packer = PythonObject::execute_module(PACKER_NAME, PACKER, PACKAGE_PATH)?;
    let [name, path] = [PACKAGE_NAME, PACKAGE_PATH].map(PythonObject::text);
    packer.attribute("unpack")?.call(vec![PythonObject::bytes(package)?, name?, path?])
}

/// Reads a source file.
fn read_source(path: &Path) -> Result<Vec<u8>, SourceError> {
    let mut source = Vec::new();
    std::fs::File::open(path)?.take(SOURCE_BYTES_MAX + 1).read_to_end(&mut source)?;
    if source.len() as u64 > SOURCE_BYTES_MAX {
        return Err(SourceError::TooLong);
    }
    if source.contains(&0) || std::str::from_utf8(&source).is_err() {
        return Err(SourceError::NotText);
    }
    Ok(source)
}

/// A function whose module was executed.
#[derive(Debug)]
pub(crate) struct LoadedFunction<'a> {
    interpreter: &'a FunctionInterpreter,
    function: PythonObject,
}

impl LoadedFunction<'_> {
    /// Runs one call.
    pub(crate) fn run(&self, call: &OwnedCallDescriptor) -> CallEnd {
        let status =
            self.arguments(call).and_then(|arguments| self.interpreter.run.call(arguments)?.to_number());
        match status {
            Ok(status) => CallEnd::Returned(status),
            Err(error) => {
                let is_memory = error.is_memory();
                error.clear();
                if is_memory { CallEnd::Returned(CallErrno::NoMemory.result()) } else { CallEnd::Raised }
            }
        }
    }

    /// Returns the arguments of `_run`.
    fn arguments(&self, call: &OwnedCallDescriptor) -> Result<Vec<PythonObject>, RaisedException> {
        let objects = call.objects.iter().map(|object| {
            let kind = object.kind().map_or(0, |kind| kind as u64);
            let fields =
                [object.partition(), object.number(), object.length(), kind, object.rights().bits().into()];
            PythonObject::tuple(fields.into_iter().map(PythonObject::unsigned).collect::<Result<_, _>>()?)
        });
        Ok(vec![
            self.function.clone(),
            PythonObject::text(&call.method)?,
            PythonObject::bytes(&call.arguments)?,
            PythonObject::tuple(objects.collect::<Result<_, _>>()?)?,
            PythonObject::unsigned(call.timeout_ms.into())?,
            PythonObject::unsigned(call.result_bytes_max)?,
            PythonObject::flag(call.secret_arguments)?,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_and_long_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fn.py");
        let refused = |content: &[u8]| {
            std::fs::write(&path, content).expect("written");
            read_source(&path).expect_err("refused")
        };
        // The first bytes of a file that Python 3.11 compiled.
        assert!(matches!(refused(b"\xa7\r\r\n\0\0\0\0"), SourceError::NotText));
        assert!(matches!(refused(b"x = 1\0"), SourceError::NotText));
        assert!(matches!(refused(&vec![b'#'; SOURCE_BYTES_MAX as usize + 1]), SourceError::TooLong));
        std::fs::write(&path, "x = 1\n").expect("written");
        assert_eq!(read_source(&path).expect("accepted"), b"x = 1\n");
    }
}
