//! Projects for new functions: the files that `sealstone fn new` writes.
//!
//! Each project builds as it is, and runs without a device.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Maximum length of a function's name, bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 64;
/// The dependency of a Rust project on the SDK in the project.
const RUST_SDK_IN_PROJECT: &str = r#"{ path = "sdk/fn" }"#;

/// Returns paths and contents of files of an SDK, which a project contains.
macro_rules! sdk {
    ($folder:literal from $source:literal: $($file:literal),* $(,)?) => {
        &[$((concat!($folder, "/", $file), include_str!(concat!("../../", $source, "/", $file)))),*]
    };
}

/// Paths in a project and contents of files of an SDK.
type SdkFiles = &'static [(&'static str, &'static str)];

/// Language of a new function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateLanguage {
    /// A shared object for the C engine.
    C,
    /// A crate that builds for the C engine and for the WebAssembly engine.
    Rust,
    /// A JAR file for the Java engine.
    Java,
    /// A source file for the Python engine.
    Python,
}

/// The sources of the Java SDK: a project builds with javac alone.
const JAVA_SDK: SdkFiles = sdk![
    "sdk/io/sealstone/function" from "engine-java/java/src/io/sealstone/function":
    "Call.java",
    "CallHost.java",
    "EngineHost.java",
    "FunctionLoader.java",
    "FunctionRunner.java",
    "LocalHost.java",
    "LocalRunner.java",
    "LogOutput.java",
    "Osd.java",
    "OsdException.java",
    "OsdFunction.java",
    "OsdObject.java",
    "OsdReader.java",
    "OsdWriter.java",
];

/// The Python package: a project runs and tests its function with an interpreter alone.
const PYTHON_SDK: SdkFiles = sdk![
    "sdk/sealstone_function" from "engine-python/python/sealstone_function":
    "__init__.py",
    "__init__.pyi",
    "__main__.py",
    "local/__init__.py",
    "py.typed",
];

/// The sources of the crate `sealstone-fn`.
const RUST_SDK: SdkFiles = sdk!["sdk/fn/src" from "fn/src": "engine.rs", "lib.rs"];

/// The sources of the crate on which `sealstone-fn` depends.
const RUST_SDK_HOST: SdkFiles = sdk![
    "sdk/function-host/src" from "function-host/src":
    "arguments.rs",
    "call.rs",
    "failure.rs",
    "host.rs",
    "lib.rs",
    "memory.rs",
    "records.rs",
    "stripe.rs",
];

impl TemplateLanguage {
    /// All languages with their names.
    pub const NAMES: [(Self, &'static str); 4] =
        [(Self::C, "c"), (Self::Rust, "rust"), (Self::Java, "java"), (Self::Python, "python")];

    /// Returns the language of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, other)| *other == name).map(|(language, _)| language)
    }
}

/// A project that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The name cannot be that of a file and of a crate.
    #[error(
        "{name:?} cannot be the name of a function: use a-z, 0-9 and -, start with a letter, at most \
         {FUNCTION_NAME_BYTES_MAX}"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The path of the SDK cannot be written to a manifest.
    #[error("the path of the SDK is not UTF-8: {path:?}")]
    SdkPath {
        /// The path.
        path: PathBuf,
    },
    /// A file cannot be written; existing files are not replaced.
    #[error("cannot write {path:?}: {source}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
}

/// A file of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFile {
    /// Path in the project's folder.
    pub path: String,
    /// Contents of the file.
    pub contents: String,
}

/// Returns files of an SDK as files of a project.
fn sdk_files(files: SdkFiles) -> impl Iterator<Item = TemplateFile> {
    files
        .iter()
        .map(|(path, contents)| TemplateFile { path: (*path).to_owned(), contents: (*contents).to_owned() })
}

/// Returns the files of a project. `sdk` is the folder of a local `sealstone-fn`.
fn template_files(
    language: TemplateLanguage,
    name: &str,
    sdk: Option<&Path>,
) -> Result<Vec<TemplateFile>, TemplateError> {
    let is_valid = name.len() <= FUNCTION_NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_valid {
        return Err(TemplateError::Name { name: name.to_owned() });
    }
    let file = |path: &str, contents: &str| TemplateFile {
        path: path.replace("FUNCTION", name),
        contents: contents.replace("FUNCTION", name),
    };
    Ok(match language {
        TemplateLanguage::C => vec![
            file("FUNCTION.c", include_str!("../templates/c/function.c")),
            file("Makefile", include_str!("../templates/c/Makefile")),
            TemplateFile {
                path: "osd.h".to_owned(),
                contents: include_str!("../../engine-c/include/osd.h").to_owned(),
            },
            file("osd-local.c", include_str!("../templates/c/osd-local.c")),
            file(".gitignore", "*.so\nFUNCTION-local\n"),
        ],
        TemplateLanguage::Java => {
            let own = [
                file("src/LongestLine.java", include_str!("../templates/java/LongestLine.java")),
                file("Makefile", include_str!("../templates/java/Makefile")),
                file("manifest.txt", "Sealstone-Function: LongestLine\n"),
                file("pom.xml", include_str!("../templates/java/pom.xml.in")),
                file(".gitignore", "/build\n/target\nFUNCTION.jar\n"),
            ];
            own.into_iter().chain(sdk_files(JAVA_SDK)).collect()
        }
        TemplateLanguage::Python => {
            let own = [
                file("FUNCTION.py", include_str!("../templates/python/function.py")),
                file("test_function.py", include_str!("../templates/python/test_function.py")),
                file("Makefile", include_str!("../templates/python/Makefile")),
                file(".gitignore", "__pycache__/\n"),
            ];
            own.into_iter().chain(sdk_files(PYTHON_SDK)).collect()
        }
        TemplateLanguage::Rust => {
            let dependency = match sdk {
                None => RUST_SDK_IN_PROJECT.to_owned(),
                Some(path) => {
                    let text =
                        path.to_str().ok_or_else(|| TemplateError::SdkPath { path: path.to_owned() })?;
                    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                    format!("{{ path = \"{escaped}\" }}")
                }
            };
            let manifest = include_str!("../templates/rust/Cargo.toml.in").replace("SDK", &dependency);
            let mut files = vec![
                file("Cargo.toml", &manifest),
                file("src/lib.rs", include_str!("../templates/rust/lib.rs.in")),
                file(".gitignore", "/target\n"),
            ];
            if sdk.is_none() {
                files.push(file("sdk/fn/Cargo.toml", include_str!("../templates/rust/sdk-fn.toml")));
                let host = include_str!("../templates/rust/sdk-function-host.toml");
                files.push(file("sdk/function-host/Cargo.toml", host));
                files.extend(sdk_files(RUST_SDK).chain(sdk_files(RUST_SDK_HOST)));
            }
            files
        }
    })
}

/// Writes a project to a folder, which is created; returns the paths of its files below it. Writes
/// nothing if one of them exists.
pub fn write_project(
    folder: &Path,
    language: TemplateLanguage,
    name: &str,
    sdk: Option<&Path>,
) -> Result<Vec<String>, TemplateError> {
    let files = template_files(language, name, sdk)?;
    let existing = files.iter().map(|file| folder.join(&file.path)).find(|path| path.exists());
    if let Some(path) = existing {
        return Err(TemplateError::Write { path, source: io::ErrorKind::AlreadyExists.into() });
    }
    for file in &files {
        let path = folder.join(&file.path);
        let failed = |source| TemplateError::Write { path: path.clone(), source };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut created = fs::File::create_new(&path).map_err(failed)?;
        io::Write::write_all(&mut created, file.contents.as_bytes()).map_err(failed)?;
    }
    Ok(files.into_iter().map(|file| file.path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_name_is_refused() {
        for name in ["", "1a", "a/b", "..", "A", "a b", "ä", &"a".repeat(65)] {
            assert!(template_files(TemplateLanguage::C, name, None).is_err(), "{name}");
        }
    }

    #[test]
    fn existing_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("osd.h");
        fs::write(&header, "mine").unwrap();
        let error = write_project(folder.path(), TemplateLanguage::C, "mine", None).unwrap_err();
        assert!(error.to_string().contains("osd.h"), "{error}");
        assert_eq!(fs::read(&header).unwrap(), b"mine");
        assert!(!folder.path().join("mine.c").exists(), "nothing is written");
    }

    /// Adds the sources below a folder, as paths in a project.
    fn add_sources(folder: &Path, project: &str, paths: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{project}/{name}");
            match entry.file_type().unwrap().is_dir() {
                true if name != "__pycache__" => add_sources(&entry.path(), &path, paths),
                true => {}
                false => paths.push(path),
            }
        }
    }

    #[test]
    fn projects_have_all_sources_of_sdk() {
        for (sdk, source, project) in [
            (JAVA_SDK, "engine-java/java/src/io/sealstone/function", "sdk/io/sealstone/function"),
            (PYTHON_SDK, "engine-python/python/sealstone_function", "sdk/sealstone_function"),
            (RUST_SDK, "fn/src", "sdk/fn/src"),
            (RUST_SDK_HOST, "function-host/src", "sdk/function-host/src"),
        ] {
            let mut expected = Vec::new();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(source);
            add_sources(&folder, project, &mut expected);
            let mut paths: Vec<_> = sdk.iter().map(|(path, _)| (*path).to_owned()).collect();
            expected.sort();
            paths.sort();
            assert_eq!(paths, expected, "{source}");
        }
    }

    #[test]
    fn manifests_of_rust_sdk_follow_workspace() {
        let workspace = include_str!("../../../Cargo.toml");
        let line = |name: &str| workspace.lines().find(|line| line.starts_with(name)).unwrap();
        let host = include_str!("../templates/rust/sdk-function-host.toml");
        assert!(host.lines().any(|found| found == line("memchr = ")), "{host}");
        for manifest in [host, include_str!("../templates/rust/sdk-fn.toml")] {
            for name in ["version = ", "edition = ", "rust-version = ", "license = "] {
                assert!(manifest.lines().any(|found| found == line(name)), "{name} {manifest}");
            }
        }
        // Each dependency of the crates has a line in the manifests of projects.
        for (manifest, crate_manifest) in [
            (host, include_str!("../../function-host/Cargo.toml")),
            (include_str!("../templates/rust/sdk-fn.toml"), include_str!("../../fn/Cargo.toml")),
        ] {
            let (_, dependencies) = crate_manifest.split_once("[dependencies]\n").unwrap();
            for dependency in dependencies.lines().take_while(|line| !line.is_empty()) {
                let name = dependency.split('.').next().unwrap();
                assert!(manifest.contains(&format!("\n{name} = ")), "{name}");
            }
        }
    }

    #[test]
    fn placeholders_are_replaced_everywhere() {
        for (language, _) in TemplateLanguage::NAMES {
            let files = template_files(language, "mine", None).unwrap();
            for file in files.into_iter().filter(|file| !file.path.starts_with("sdk/")) {
                let is_clean = ["FUNCTION.", "FUNCTION-", "\"FUNCTION", "= SDK", "FUNCTION:"]
                    .iter()
                    .all(|text| !file.contents.contains(text));
                assert!(is_clean && !file.path.contains("FUNCTION"), "{}", file.path);
            }
        }
    }
}
