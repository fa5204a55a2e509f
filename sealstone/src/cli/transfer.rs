//! Arguments of `put`, `get` and `cat`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Security method of commands to devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MethodName {
    /// No protection; devices refuse it unless started with --insecure-nosec.
    Nosec,
    /// The capability key is proved once per connection.
    Capkey,
    /// Command and response are authenticated.
    Cmdrsp,
    /// Data is authenticated too.
    Alldata,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TransferArgs {
    /// Security method on the wire.
    #[arg(long, env = "SEALSTONE_METHOD", default_value = "alldata")]
    pub(crate) method: MethodName,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone put report.pdf /docs/report.pdf
  sealstone put -r src /src                  repeat to continue; src/. is its contents
  sealstone put -r --update src /backup/     to /backup/src; skips files of equal size and time
  tar c photos | sealstone put - /backup/photos.tar
With -r modes, times, symbolic and hard links, and holes are kept, as by cp -a. Exit code 1 if an entry failed or was skipped.")]
pub(crate) struct PutArgs {
    /// Local files or folders; `-` is standard input. The last argument is the stored destination.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "PATH"])]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) tree: TreeOptions,
}

/// Common options of `put` and `get`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeOptions {
    /// Transfer directories and their contents, with modes, times, links and holes.
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// As -r, and set the mode of existing files to that of the source. By default they keep their
    /// own mode, restricted to that of the source.
    #[arg(long, short)]
    pub(crate) archive: bool,
    /// Set exactly the mode of the source, without the umask, also for existing files.
    #[arg(long, short)]
    pub(crate) preserve: bool,
    /// Skip existing files of equal size and modification time.
    #[arg(long, short)]
    pub(crate) update: bool,
    /// Do not replace existing files.
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Treat the destination as the copy itself, not as a directory to copy into.
    #[arg(long, short = 'T')]
    pub(crate) no_target_directory: bool,
    /// Transfer extended attributes of the namespace `user`.
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// Exclude entries by name, or by path below the source if it has a slash; `*` and `?` are
    /// wildcards.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,
    /// Only show what would be transferred.
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone get /docs/report.pdf
  sealstone get -r /src copy-of-src          repeat to continue
  sealstone get /backup/photos.tar - | tar x
With -r modes, times, symbolic and hard links, and holes are kept, as by cp -a. Exit code 1 if an entry failed or was skipped.")]
pub(crate) struct GetArgs {
    /// Stored files, then an optional local destination; `-` is standard output.
    #[arg(required = true, num_args = 1.., value_names = ["PATH", "DESTINATION"])]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) tree: TreeOptions,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone cat /docs/notes.txt
  sealstone cat /logs/monday /logs/tuesday | grep error")]
pub(crate) struct CatArgs {
    /// Stored files.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) transfer: TransferArgs,
}
