//! Landlock: no rights on files, ports and processes but to read some paths.
//!
//! Does: handle every right that the kernel's version knows, up to the ones listed here. Three
//! system calls without any of the choices that a library would make.
//! Truth: landlock(7).

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::report::LayerState;
use crate::system::{self, RulesetAttributes};

/// `LANDLOCK_ACCESS_FS_READ_FILE` and `LANDLOCK_ACCESS_FS_READ_DIR`.
const READ_FILE: u64 = 1 << 2;
const READ_FOLDER: u64 = 1 << 3;
/// The version with scopes for abstract sockets and signals; an older one confines less.
const COMPLETE_VERSION: u32 = 6;

/// Rights of the first version on files, and the ones that later versions added.
const FILE_RIGHTS: [(u32, u64); 4] = [(1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];
/// Bind and connect by TCP.
const PORT_RIGHTS: (u32, u64) = (4, 0b11);
/// Abstract Unix sockets and signals.
const SCOPES: (u32, u64) = (6, 0b11);

/// Denies everything to the calling thread but reading `paths` and what is below them.
pub(crate) fn allow_reading_only<'a>(paths: impl Iterator<Item = &'a Path>) -> io::Result<LayerState> {
    let version = match system::landlock_version() {
        Ok(version) => version,
        Err(error) => {
            return Ok(LayerState::Unavailable(format!(
                "the kernel has no Landlock, or not in lsm=: {error}"
            )));
        }
    };
    let (attributes, size) = attributes_of(version);
    let ruleset = system::create_ruleset(&attributes, size)?;
    for path in paths {
        // A path that cannot be opened stays denied.
        let Ok(opened) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        let allowed = if path.is_dir() { READ_FILE | READ_FOLDER } else { READ_FILE };
        system::allow_path(ruleset.as_fd(), opened.as_fd(), allowed)?;
    }
    system::restrict_self(ruleset.as_fd())?;
    Ok(if version < COMPLETE_VERSION {
        LayerState::Partial(format!("Landlock {version} of this kernel; Linux 6.12 has {COMPLETE_VERSION}"))
    } else {
        LayerState::Active
    })
}

/// Returns the rights that a version handles, and how many bytes of the structure it reads.
fn attributes_of(version: u32) -> (RulesetAttributes, usize) {
    let known = |(since, rights): (u32, u64)| if version >= since { rights } else { 0 };
    let attributes = RulesetAttributes {
        files: FILE_RIGHTS.into_iter().map(known).fold(0, |all, rights| all | rights),
        ports: known(PORT_RIGHTS),
        scopes: known(SCOPES),
    };
    let size = match version {
        ..4 => 8,
        4..6 => 16,
        _ => 24,
    };
    (attributes, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_handles_its_rights() {
        for (version, files, ports, scopes, size) in
            [(1, 0x1FFF, 0, 0, 8), (3, 0x7FFF, 0, 0, 8), (4, 0x7FFF, 3, 0, 16), (6, 0xFFFF, 3, 3, 24)]
        {
            let (attributes, bytes) = attributes_of(version);
            assert_eq!((attributes.files, attributes.ports, attributes.scopes), (files, ports, scopes));
            assert_eq!(bytes, size, "version {version}");
        }
    }
}
