//! Projects for new functions: the files that `sealstone fn new` writes.
//!
//! Each project builds as it is, and runs without a device.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Maximum length of a function's name, bytes.
pub const FUNCTION_NAME_BYTES_MAX: usize = 64;
/// The dependency of a Rust project, unless a local copy of the SDK is given.
const SDK_REPOSITORY: &str = r#"{ git = "https://github.com/sealstone/sealstone" }"#;

/// Returns paths and contents of classes of the Java SDK.
macro_rules! java_sdk {
    ($($class:literal),* $(,)?) => {
        [$((
            concat!("sdk/io/sealstone/function/", $class, ".java"),
            include_str!(concat!("../../engine-java/java/src/io/sealstone/function/", $class, ".java")),
        )),*]
    };
}

/// Language of a new function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateLanguage {
    /// A shared object for the C engine.
    C,
    /// A crate that builds for the C engine and for the WebAssembly engine.
    Rust,
    /// A JAR file for the Java engine.
    Java,
}

/// The sources of the Java SDK, which a project contains so that it builds with javac alone.
const JAVA_SDK: [(&str, &str); 14] = java_sdk![
    "Call",
    "CallHost",
    "EngineHost",
    "FunctionLoader",
    "FunctionRunner",
    "LocalHost",
    "LocalRunner",
    "LogOutput",
    "Osd",
    "OsdException",
    "OsdFunction",
    "OsdObject",
    "OsdReader",
    "OsdWriter",
];

impl TemplateLanguage {
    /// All languages with their names.
    pub const NAMES: [(Self, &'static str); 3] = [(Self::C, "c"), (Self::Rust, "rust"), (Self::Java, "java")];

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
            let sdk = JAVA_SDK.map(|(path, contents)| TemplateFile {
                path: path.to_owned(),
                contents: contents.to_owned(),
            });
            let own = [
                file("src/LongestLine.java", include_str!("../templates/java/LongestLine.java")),
                file("Makefile", include_str!("../templates/java/Makefile")),
                file("manifest.txt", "Sealstone-Function: LongestLine\n"),
                file("pom.xml", include_str!("../templates/java/pom.xml.in")),
                file(".gitignore", "/build\n/target\nFUNCTION.jar\n"),
            ];
            own.into_iter().chain(sdk).collect()
        }
        TemplateLanguage::Rust => {
            let dependency = match sdk {
                None => SDK_REPOSITORY.to_owned(),
                Some(path) => {
                    let text =
                        path.to_str().ok_or_else(|| TemplateError::SdkPath { path: path.to_owned() })?;
                    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                    format!("{{ path = \"{escaped}\" }}")
                }
            };
            let manifest = include_str!("../templates/rust/Cargo.toml.in").replace("SDK", &dependency);
            vec![
                file("Cargo.toml", &manifest),
                file("src/lib.rs", include_str!("../templates/rust/lib.rs.in")),
                file(".gitignore", "/target\n"),
            ]
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

    #[test]
    fn java_project_has_all_sources_of_sdk() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine-java/java/src/io/sealstone/function");
        let mut sources: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| format!("sdk/io/sealstone/function/{}", entry.unwrap().file_name().display()))
            .collect();
        sources.sort();
        assert_eq!(sources, JAVA_SDK.map(|(path, _)| path));
    }

    #[test]
    fn placeholders_are_replaced_everywhere() {
        for (language, _) in TemplateLanguage::NAMES {
            for file in template_files(language, "mine", None).unwrap() {
                let is_clean = ["FUNCTION.", "FUNCTION-", "\"FUNCTION", "= SDK"]
                    .iter()
                    .all(|text| !file.contents.contains(text));
                assert!(is_clean && !file.path.contains("FUNCTION"), "{}", file.path);
            }
        }
    }
}
