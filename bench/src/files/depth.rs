//! Latency by depth of the directory, with and without a mount's caches: the OBS paper's Figure 9.
//!
//! Without caches a mount looks up each name of a path; with them none, but an open always
//! validates the file. The library sends a path as a whole.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sealstone_client::Method;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::folder::Folder;
use super::system::{Metadata, System};
use super::{LeftOut, passthrough};
use crate::Outcome;
use crate::latency::CommandLatency;

/// Directories above the file.
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Consecutive samples of one file system at one depth, before the next one's turn.
const TURN: usize = 20;

/// Latency of one operation at one depth.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DepthLatency {
    pub(crate) subject: String,
    /// `stat`, or `open` with the first byte read.
    pub(crate) operation: &'static str,
    pub(crate) depth: usize,
    pub(crate) latency: CommandLatency,
}

/// The measured file system.
enum MeasuredSystem {
    Folder(Folder),
    Library { runtime: Arc<Runtime>, client: sealstone_client::Client, _system: Rc<System> },
}

impl MeasuredSystem {
    fn name(&self) -> &str {
        match self {
            Self::Folder(folder) => super::Subject::name(folder),
            Self::Library { .. } => "library, whole paths",
        }
    }

    fn stat(&self, path: &Path) -> Outcome {
        match self {
            Self::Folder(folder) => Ok(fs::symlink_metadata(folder.root().join(path)).map(drop)?),
            Self::Library { runtime, client, .. } => {
                Ok(runtime.block_on(client.stat(&stored(path)?)).map(drop)?)
            }
        }
    }

    fn open(&self, path: &Path) -> Outcome {
        match self {
            Self::Folder(folder) => Ok(File::open(folder.root().join(path))?.read_exact(&mut [0])?),
            Self::Library { runtime, client, .. } => {
                let path = stored(path)?;
                let read = async { client.open(&path, Method::AllData).await?.read(0..1).await };
                let read = runtime.block_on(read)?;
                if read.len() == 1 { Ok(()) } else { Err("a file without its byte".into()) }
            }
        }
    }
}

fn stored(path: &Path) -> Outcome<String> {
    Ok(format!("/{}", path.to_str().ok_or("a path that is not UTF-8")?))
}

/// Returns the path of the file with this many directories above it.
fn at(depth: usize) -> PathBuf {
    (0..depth).map(|level| format!("d{level}")).collect::<PathBuf>().join("file")
}

/// Creates the files in a folder.
fn make(root: &Path) -> Outcome {
    for depth in DEPTHS {
        let path = root.join(at(depth));
        fs::create_dir_all(path.parent().ok_or("no directory")?)?;
        fs::write(&path, b"x")?;
        File::open(&path)?.sync_all()?;
    }
    Ok(())
}

/// Measures; missing file systems are skipped.
pub(crate) fn measure(
    binary: &Path,
    folder: &Path,
    runtime: &Arc<Runtime>,
    samples: usize,
    left_out: &mut Vec<LeftOut>,
) -> Outcome<Vec<DepthLatency>> {
    let system = System::start(binary, &folder.join("depth"), super::DEVICES, Metadata::Embedded)?;
    let mut asked = Vec::new();
    for (name, believed_s) in [("passthrough without caches", 0.0), ("passthrough with caches", 60.0)] {
        match passthrough::low_level(&folder.join(name.replace(' ', "-")), name, believed_s) {
            Ok(folder) => {
                make(folder.root())?;
                asked.push(MeasuredSystem::Folder(folder));
            }
            Err(error) => left_out.push(LeftOut { name: name.to_owned(), reason: error.to_string() }),
        }
    }
    for (name, metadata) in [
        ("sealstone-postgres-without-caches", Metadata::Postgres),
        ("sealstone-ldap-without-caches", Metadata::Ldap),
    ] {
        let other = System::start(binary, &folder.join(name), super::DEVICES, metadata)
            .and_then(|system| system.mount(name, &["--attr-timeout", "0"]));
        match other {
            Ok(mount) => {
                make(mount.root())?;
                asked.push(MeasuredSystem::Folder(mount));
            }
            Err(error) => left_out.push(LeftOut { name: name.to_owned(), reason: error.to_string() }),
        }
    }
    for (name, believed) in [("sealstone-without-caches", "0"), ("sealstone-with-caches", "60")] {
        let mount = system.mount(name, &["--attr-timeout", believed])?;
        if believed == "0" {
            make(mount.root())?;
        }
        asked.push(MeasuredSystem::Folder(mount));
    }
    let client = {
        let _inside = runtime.enter();
        system.client()?
    };
    asked.push(MeasuredSystem::Library { runtime: runtime.clone(), client, _system: system });
    let mut found = Vec::new();
    for depth in DEPTHS {
        let path = at(depth);
        for operation in ["stat", "open"] {
            let work = |asked: &MeasuredSystem| match operation {
                "stat" => asked.stat(&path),
                _ => asked.open(&path),
            };
            let mut times: Vec<Vec<_>> = asked.iter().map(|_| Vec::new()).collect();
            for turn in 0..samples.div_ceil(TURN) {
                for number in 0..asked.len() {
                    let number = (number + turn) % asked.len();
                    // The first one fills caches.
                    work(&asked[number])?;
                    for _ in 0..TURN {
                        let begin = Instant::now();
                        work(&asked[number])?;
                        times[number].push(begin.elapsed());
                    }
                }
            }
            found.extend(asked.iter().zip(times).map(|(asked, times)| DepthLatency {
                subject: asked.name().to_owned(),
                operation,
                depth,
                latency: CommandLatency::of(operation, "", times),
            }));
        }
    }
    Ok(found)
}

/// Formats a table: a line for each operation and file system, a column for each depth.
pub(crate) fn text(found: &[DepthLatency]) -> String {
    let mut text = String::new();
    for operation in ["stat", "open"] {
        let own: Vec<&DepthLatency> = found.iter().filter(|row| row.operation == operation).collect();
        let Some(first) = own.first() else { continue };
        let reads = if operation == "open" { ", first byte, close" } else { "" };
        text.push_str(&format!("{operation}{reads}: median us by directories above the file\n  {:34}", ""));
        DEPTHS.iter().for_each(|depth| text.push_str(&format!("{depth:>10}")));
        text.push('\n');
        let names = own.iter().filter(|row| row.depth == first.depth).map(|row| &row.subject);
        for name in names {
            text.push_str(&format!("  {name:34}"));
            for row in own.iter().filter(|row| row.subject == *name) {
                text.push_str(&format!("{:>10.1}", row.latency.median_us));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn table_has_a_column_per_depth() {
        assert_eq!(at(2), Path::new("d0/d1/file"));
        let row = |subject: &str, depth| DepthLatency {
            subject: subject.to_owned(),
            operation: "stat",
            depth,
            latency: CommandLatency::of("stat", "", vec![Duration::from_micros(10 * depth as u64)]),
        };
        let found: Vec<DepthLatency> =
            DEPTHS.into_iter().flat_map(|depth| [row("one", depth), row("other", depth)]).collect();
        let text = text(&found);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].trim_start().starts_with('1') && lines[1].ends_with("32"));
        assert!(lines[2].trim_start().starts_with("one") && lines[2].ends_with("320.0"), "{text}");
        assert!(lines[3].trim_start().starts_with("other"));
    }
}
