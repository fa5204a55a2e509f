//! The interpreter of the machine: where its library and its standard library are.
//!
//! Does: search the folders of Debian, Fedora and local builds.
//! Does not: load anything.
//! Contract: a runtime has a standard library of the version of its library. The device binds only
//! its folders to the roots of engines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::library::minor_version;

/// Variable with the path of a libpython, instead of a search.
pub(crate) const LIBRARY_VARIABLE: &str = "SEALSTONE_PYTHON_LIBRARY";

/// Why no interpreter was found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// No folder has a library.
    #[error("no libpython 3.9 to 3.14 is installed (Debian 12: apt-get install libpython3.11)")]
    Missing,
    /// The name of the library has no version.
    #[error("{0} is not named libpython3.N.so.1.0 with N from 9 to 14")]
    Name(PathBuf),
    /// The standard library of a library is absent.
    #[error("{library} has no standard library {folder}")]
    StandardLibrary {
        /// The library.
        library: PathBuf,
        /// The folder that was searched last.
        folder: PathBuf,
    },
    /// A path is not absolute UTF-8.
    #[error("{0} is not an absolute path in UTF-8")]
    Path(PathBuf),
}

/// An interpreter of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonRuntime {
    /// Path of libpython.
    pub(crate) libpython: PathBuf,
    /// Prefix of the installation, as `PYTHONHOME` names it.
    pub(crate) home: String,
    /// Folder of the standard library.
    pub(crate) modules: PathBuf,
}

impl PythonRuntime {
    /// Returns the interpreter that the variable names, or else the newest one of the machine.
    pub(crate) fn find(named: Option<&OsStr>) -> Result<Self, RuntimeError> {
        match named {
            Some(path) => Self::of_library(Path::new(path)),
            None => Self::search(&library_folders()),
        }
    }

    fn search(folders: &[PathBuf]) -> Result<Self, RuntimeError> {
        let mut libraries: Vec<(u32, PathBuf)> = Vec::new();
        for entry in folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
            if let Some(minor) = library_version(&entry.file_name()) {
                libraries.push((minor, entry.path()));
            }
        }
        // The sort is stable: of one version, the library of the first folder counts.
        libraries.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
        let mut last = RuntimeError::Missing;
        for (_, library) in libraries {
            match Self::of_library(&library) {
                Ok(runtime) => return Ok(runtime),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn of_library(library: &Path) -> Result<Self, RuntimeError> {
        let minor = library.file_name().and_then(library_version);
        let minor = minor.ok_or_else(|| RuntimeError::Name(library.to_owned()))?;
        if !library.is_absolute() {
            return Err(RuntimeError::Path(library.to_owned()));
        }
        let mut folder = PathBuf::new();
        for prefix in prefixes(library) {
            for part in ["lib", "lib64"] {
                folder = prefix.join(part).join(format!("python3.{minor}"));
                if folder.join("os.py").is_file() {
                    let home = prefix.to_str().ok_or_else(|| RuntimeError::Path(prefix.to_owned()))?;
                    let (libpython, home) = (library.to_owned(), home.to_owned());
                    return Ok(Self { libpython, home, modules: folder });
                }
            }
        }
        Err(RuntimeError::StandardLibrary { library: library.to_owned(), folder })
    }

    /// Returns the description for the device: a line for each bind and each argument.
    pub(crate) fn description(&self) -> String {
        let (modules, library) = (self.modules.display(), self.libpython.display());
        format!(
            "bind {modules}\nargument --library\nargument {library}\nargument --home\nargument {}\n",
            self.home
        )
    }
}

/// Returns the installations that a library may belong to: its folder is `lib` or `lib64` of one,
/// or a folder of an architecture below `lib`.
fn prefixes(library: &Path) -> impl Iterator<Item = &Path> {
    let folder = library.parent();
    let direct = folder.and_then(Path::parent);
    let of_architecture = direct.filter(|above| above.file_name() == Some(OsStr::new("lib")));
    direct.into_iter().chain(of_architecture.and_then(Path::parent))
}

/// Returns the minor version in the name of a library.
fn library_version(name: &OsStr) -> Option<u32> {
    let version = name.to_str()?.strip_prefix("libpython")?.strip_suffix(".so.1.0")?;
    let is_plain = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    minor_version(version).filter(|_| is_plain)
}

fn library_folders() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [&*multiarch, "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"].map(PathBuf::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an installation of a version, with or without its standard library.
    fn install(prefix: &Path, libraries: &str, minor: u32, has_modules: bool) -> PathBuf {
        let folder = prefix.join(libraries);
        std::fs::create_dir_all(&folder).expect("created");
        let library = folder.join(format!("libpython3.{minor}.so.1.0"));
        std::fs::write(&library, "").expect("written");
        if has_modules {
            let modules = prefix.join(format!("lib/python3.{minor}"));
            std::fs::create_dir_all(&modules).expect("created");
            std::fs::write(modules.join("os.py"), "").expect("written");
        }
        library
    }

    #[test]
    fn newest_complete_interpreter_is_found() {
        let prefix = tempfile::tempdir().expect("a folder");
        let folders = ["lib/x86_64-linux-gnu", "lib"].map(|folder| prefix.path().join(folder));
        assert_eq!(PythonRuntime::search(&folders), Err(RuntimeError::Missing));
        let expected = install(prefix.path(), "lib/x86_64-linux-gnu", 11, true);
        install(prefix.path(), "lib", 9, true);
        install(prefix.path(), "lib", 12, false);
        install(prefix.path(), "lib", 15, true);
        let runtime = PythonRuntime::search(&folders).expect("found");
        assert_eq!(runtime.libpython, expected);
        assert_eq!(Path::new(&runtime.home), prefix.path());
        assert_eq!(runtime.modules, prefix.path().join("lib/python3.11"));
        let description = runtime.description();
        assert!(description.starts_with(&format!("bind {}\n", runtime.modules.display())), "{description}");
    }

    #[test]
    fn wrong_libraries_are_refused() {
        let prefix = tempfile::tempdir().expect("a folder");
        let library = install(prefix.path(), "lib", 10, false);
        let error = PythonRuntime::find(Some(library.as_os_str())).unwrap_err();
        assert!(matches!(error, RuntimeError::StandardLibrary { .. }), "{error}");
        for name in ["libpython3.11.so", "libpython3.8.so.1.0", "libpython3.13t.so.1.0", "libm.so.6"] {
            let error = PythonRuntime::find(Some(OsStr::new(name))).unwrap_err();
            assert_eq!(error, RuntimeError::Name(name.into()), "{name}");
        }
        let relative = PythonRuntime::find(Some(OsStr::new("libpython3.11.so.1.0"))).unwrap_err();
        assert!(matches!(relative, RuntimeError::Path(_)));
    }
}
