//! The installed Java virtual machine: the locations of its library, its files and the SDK.
//!
//! Does: search the folders of Debian, Fedora and local installations.
//! Does not: load anything.
//! Contract: a runtime has version 17 or higher. The device binds only its folders to the roots of
//! engines.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Variable with the folder of a JDK or JRE, instead of a search.
pub(crate) const HOME_VARIABLE: &str = "SEALSTONE_JAVA_HOME";
/// Name of the SDK, which lies beside the engine program.
const SDK_NAME: &str = "sealstone-function.jar";
/// Lowest supported version of Java.
const VERSION_MIN: u32 = 17;
/// Folders whose entries are installations of Java.
const INSTALLATION_FOLDERS: [&str; 4] = ["/usr/lib/jvm", "/usr/lib64/jvm", "/usr/java", "/opt/java"];
/// Depth to which configuration folders are searched for links.
const LINK_DEPTH_MAX: u32 = 3;

/// Why no virtual machine can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// No folder has an installation.
    #[error(
        "no JDK or JRE {VERSION_MIN} or newer is installed (Debian 12: apt-get install openjdk-17-jre-headless)"
    )]
    Missing,
    /// A folder is not an installation.
    #[error("{0} is not the folder of a JDK or JRE: it needs lib/server/libjvm.so and the file release")]
    NotHome(PathBuf),
    /// The installation is too old.
    #[error("{home} has Java {version}; functions need {VERSION_MIN} or newer")]
    Version {
        /// The installation.
        home: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The SDK is absent.
    #[error("{0} is missing (scripts/engine-java build creates it)")]
    NoSdk(PathBuf),
    /// A path is not absolute UTF-8 without line feeds.
    #[error("{0:?} is not an absolute path in UTF-8")]
    Path(PathBuf),
}

/// An installation of Java, and the SDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JavaRuntime {
    /// Folder of the installation.
    pub(crate) home: PathBuf,
    /// Path of the SDK.
    pub(crate) sdk: PathBuf,
}

impl JavaRuntime {
    /// Returns the installation that the variable names, or else the newest one of the machine.
    pub(crate) fn find(named: Option<&OsStr>, program: &Path) -> Result<Self, RuntimeError> {
        let home = match named {
            Some(home) => checked_home(Path::new(home))?.1,
            None => search(INSTALLATION_FOLDERS.map(Path::new))?,
        };
        let sdk = program.with_file_name(SDK_NAME);
        if !sdk.is_file() {
            return Err(RuntimeError::NoSdk(sdk));
        }
        for path in [&home, &sdk] {
            let is_plain = path.is_absolute() && path.to_str().is_some_and(|text| !text.contains('\n'));
            if !is_plain {
                return Err(RuntimeError::Path(path.clone()));
            }
        }
        Ok(Self { home, sdk })
    }

    /// Returns the description for the device: a line for each bind and each argument.
    pub(crate) fn description(&self) -> String {
        let (home, sdk) = (self.home.display(), self.sdk.display());
        let mut lines = format!("bind {home}\n");
        for folder in self.configuration_folders() {
            lines += &format!("bind {}\n", folder.display());
        }
        lines + &format!("argument --home\nargument {home}\nargument --sdk\nargument {sdk}\n")
    }

    /// Returns the folders in `/etc` that the installation has links to, as in Debian.
    fn configuration_folders(&self) -> BTreeSet<PathBuf> {
        let mut folders = BTreeSet::new();
        for folder in ["conf", "lib/security"] {
            collect_links(&self.home.join(folder), LINK_DEPTH_MAX, &mut folders);
        }
        folders
    }
}

/// Collects the folders of Java in `/etc` to which links in a folder lead.
fn collect_links(folder: &Path, depth: u32, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 1 => collect_links(&path, depth - 1, found),
            Ok(kind) if kind.is_symlink() => {
                found.extend(path.canonicalize().ok().and_then(|target| etc_folder(&target)));
            }
            _ => {}
        }
    }
}

/// Returns the folder directly in `/etc` of a path, if its name is that of a Java installation.
fn etc_folder(path: &Path) -> Option<PathBuf> {
    let mut parts = path.strip_prefix("/etc").ok()?.components();
    let Some(Component::Normal(folder)) = parts.next() else { return None };
    let name = folder.to_str()?;
    let is_java = name.contains("java") || name.contains("jdk") || name.contains("jre");
    (is_java && parts.next().is_some()).then(|| Path::new("/etc").join(folder))
}

/// Returns the newest installation in these folders.
fn search<const COUNT: usize>(folders: [&Path; COUNT]) -> Result<PathBuf, RuntimeError> {
    let (mut newest, mut last): (Option<(u32, PathBuf)>, _) = (None, RuntimeError::Missing);
    let entries = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    for entry in entries.flatten() {
        match checked_home(&entry.path()) {
            // Of two names of one version, the choice is the same on each start.
            Ok(found) => newest = newest.max(Some(found)),
            Err(error @ RuntimeError::Version { .. }) => last = error,
            Err(_) => {}
        }
    }
    newest.map(|(_, home)| home).ok_or(last)
}

/// Returns the version and the real path of an installation.
fn checked_home(home: &Path) -> Result<(u32, PathBuf), RuntimeError> {
    let refused = || RuntimeError::NotHome(home.to_owned());
    let real = home.canonicalize().map_err(|_| refused())?;
    let release = std::fs::read_to_string(real.join("release")).map_err(|_| refused())?;
    let version = release.lines().find_map(java_version).ok_or_else(refused)?;
    if !library(&real).is_file() {
        return Err(refused());
    }
    if version < VERSION_MIN {
        return Err(RuntimeError::Version { home: real, version });
    }
    Ok((version, real))
}

/// Returns the path of the library of the virtual machine.
pub(crate) fn library(home: &Path) -> PathBuf {
    home.join("lib/server/libjvm.so")
}

/// Returns the feature version in a line of the file `release`.
fn java_version(line: &str) -> Option<u32> {
    let version = line.strip_prefix("JAVA_VERSION=\"")?;
    // Java 8 and older are versions 1.8 and so on.
    let version = version.strip_prefix("1.").unwrap_or(version);
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(folder: &Path, name: &str, version: &str) -> PathBuf {
        let home = folder.join(name);
        std::fs::create_dir_all(home.join("lib/server")).expect("created");
        std::fs::write(library(&home), "").expect("written");
        std::fs::write(home.join("release"), format!("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"{version}\"\n"))
            .expect("written");
        home.canonicalize().expect("a path")
    }

    #[test]
    fn newest_installation_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(search([folder.path()]), Err(RuntimeError::Missing));
        let old = install(folder.path(), "java-8", "1.8.0_412");
        assert_eq!(search([folder.path()]), Err(RuntimeError::Version { home: old, version: 8 }));
        install(folder.path(), "java-17", "17.0.15");
        let newest = install(folder.path(), "jdk-25", "25");
        std::fs::create_dir(folder.path().join("openjdk-99")).expect("created");
        assert_eq!(search([folder.path()]), Ok(newest));
    }

    #[test]
    fn wrong_homes_and_missing_sdk_have_reasons() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("sealstone-engine-java");
        let find = |home: &Path| JavaRuntime::find(Some(home.as_os_str()), &program);
        assert!(matches!(find(folder.path()), Err(RuntimeError::NotHome(_))));
        let old = install(folder.path(), "old", "11.0.2");
        assert!(matches!(find(&old), Err(RuntimeError::Version { version: 11, .. })));
        let home = install(folder.path(), "new", "21.0.1");
        assert!(matches!(find(&home), Err(RuntimeError::NoSdk(_))));
        std::fs::write(folder.path().join(SDK_NAME), "").expect("written");
        let description = find(&home).expect("complete").description();
        assert!(description.starts_with(&format!("bind {}\nargument --home\n", home.display())));
    }

    #[test]
    fn only_java_folders_of_etc_are_bound() {
        let folder = etc_folder(Path::new("/etc/java-17-openjdk/security/java.security"));
        assert_eq!(folder, Some("/etc/java-17-openjdk".into()));
        for path in ["/etc/ssl/certs/java/cacerts", "/etc/passwd", "/etc/java.conf", "/home/java/x"] {
            assert_eq!(etc_folder(Path::new(path)), None, "{path}");
        }
    }
}
