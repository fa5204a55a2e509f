//! Options of the commands that move files in and out.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// How data travels to and from the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MethodName {
    /// No protection; devices refuse it unless started with --insecure-nosec.
    Nosec,
    /// The capability is proven once per connection.
    Capkey,
    /// Command and response are authenticated.
    Cmdrsp,
    /// Data too.
    Alldata,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Transfer {
    /// Security method on the wire.
    #[arg(long, env = "SEALSTONE_METHOD", default_value = "alldata")]
    pub(crate) method: MethodName,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone put report.pdf /docs/report.pdf
  sealstone put -r src /src                  again: continues there; src/. is what is in it
  sealstone put -r --update src /backup/     as /backup/src; skips files of the same size and time
  tar c photos | sealstone put - /backup/photos.tar
With -r modes, times, symbolic and hard links, and holes are kept, as by cp -a. Exit code 1 if anything was left out.")]
pub(crate) struct Put {
    /// Files or folders of this machine; `-` is standard input. The last argument is the place to store them.
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "PATH"])]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) tree: TreeOptions,
}

/// What `put` and `get` have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeOptions {
    /// Directories with all below them, their modes, times, links and holes.
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// As -r, and entries that exist get the mode of their source too; without this they keep theirs, as far as the source
    /// allows it.
    #[arg(long, short)]
    pub(crate) archive: bool,
    /// The mode of the source exactly: for a new file without regard to the umask, and for one that exists.
    #[arg(long, short)]
    pub(crate) preserve: bool,
    /// Skip files that exist with the same size and time of change.
    #[arg(long, short)]
    pub(crate) update: bool,
    /// Do not replace what exists.
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// The destination is the copy itself, and not a directory that receives it.
    #[arg(long, short = 'T')]
    pub(crate) no_target_directory: bool,
    /// Extended attributes in the namespace `user` too.
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// Leave out entries of this name, or with a slash of this path below the source; `*` and `?` are wildcards.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<OsString>,
    /// Say what would be transferred, and transfer nothing.
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone get /docs/report.pdf
  sealstone get -r /src copy-of-src          again: continues there
  sealstone get /backup/photos.tar - | tar x
With -r modes, times, symbolic and hard links, and holes are kept, as by cp -a. Exit code 1 if anything was left out.")]
pub(crate) struct Get {
    /// Stored files, then (optionally) the place on this machine; `-` is standard output.
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
pub(crate) struct Cat {
    /// Stored files.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) transfer: Transfer,
}
