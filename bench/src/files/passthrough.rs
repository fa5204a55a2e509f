//! The limits of FUSE: file systems that forward everything to a folder of the disk.
//!
//! The ceiling is libfuse's own example, `passthrough_ll`, whose source Debian has in
//! `libfuse3-dev`: low-level API, many threads, spliced data. `bindfs` is a packaged one with the
//! high-level API.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::folder::Folder;
use super::served::{ServerProcess, can_mount, needed, new_folder};
use crate::Outcome;

/// Path of the example's source on Debian.
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
const PACKAGE: &str = "libfuse3-dev";

/// Builds the example into a folder.
fn build(folder: &Path) -> Outcome<PathBuf> {
    let (compiler, config) = (needed("gcc", "gcc")?, needed("pkg-config", "pkg-config")?);
    if !Path::new(SOURCE).is_file() {
        return Err(format!("{SOURCE} is not there (package {PACKAGE})").into());
    }
    let flags = Command::new(config).args(["--cflags", "--libs", "fuse3"]).output()?;
    if !flags.status.success() {
        return Err(format!("libfuse 3 is not there to build with (package {PACKAGE})").into());
    }
    let flags = String::from_utf8(flags.stdout)?;
    let program = folder.join("passthrough_ll");
    let built = Command::new(compiler)
        .args(["-O2", "-w", SOURCE, "-o"])
        .arg(&program)
        .args(flags.split_whitespace())
        .output()?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        return Err(format!("passthrough_ll cannot be built: {}", said.lines().next().unwrap_or("")).into());
    }
    Ok(program)
}

/// Mounts the ceiling at a new folder; names and attributes are cached for `believed_s` seconds.
pub(crate) fn low_level(folder: &Path, name: &str, believed_s: f64) -> Outcome<Folder> {
    can_mount()?;
    new_folder(folder)?;
    let program = build(folder)?;
    let (backing, place) = (new_folder(&folder.join("backing"))?, new_folder(&folder.join("mount"))?);
    let mut command = Command::new(program);
    let options = format!("source={},cache=auto,timeout={believed_s}", backing.display());
    command.args(["-f", "-o", &options]).arg(&place);
    let served = ServerProcess::start(command, &folder.join("log"))?.mounts(&place)?;
    Ok(Folder::new(name, &place, vec![Box::new(served)]))
}

/// Mounts `bindfs` at a new folder.
pub(crate) fn bindfs(folder: &Path) -> Outcome<Folder> {
    can_mount()?;
    let program = needed("bindfs", "bindfs")?;
    let (backing, place) = (new_folder(&folder.join("backing"))?, new_folder(&folder.join("mount"))?);
    let mut command = Command::new(program);
    command.args(["-f", "--multithreaded"]).arg(&backing).arg(&place);
    let served = ServerProcess::start(command, &folder.join("log"))?.mounts(&place)?;
    Ok(Folder::new("bindfs", &place, vec![Box::new(served)]))
}

/// Returns the disk itself, without FUSE.
pub(crate) fn disk(folder: &Path) -> Outcome<Folder> {
    fs::create_dir_all(folder)?;
    Ok(Folder::new("disk", folder, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::job::{ClientGroup, FileOperation, Subject as _};
    use std::time::Duration;

    /// A real mount if the machine supports it; otherwise the reason is printed.
    #[test]
    fn passthrough_serves_a_folder_and_unmounts() {
        let scratch = tempfile::tempdir().unwrap();
        let place = match low_level(scratch.path(), "passthrough", 1.0) {
            Ok(folder) => {
                assert_eq!(folder.processes().len(), 1);
                let mut crew = ClientGroup::new(&folder, 1, "t", 2, Duration::from_secs(60)).unwrap();
                crew.aside(FileOperation::MakeDirectory, 'f', true).unwrap();
                assert_eq!(crew.step(FileOperation::Put, 'f').unwrap().0, 2);
                assert!(scratch.path().join("backing/t-0/f1").is_file());
                folder.root().to_owned()
            }
            Err(reason) => return assert!(!reason.to_string().is_empty()),
        };
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(place.to_str().unwrap()), "{table}");
    }
}
