//! Arguments of `mkdir`, `mv` and `ln`.

use std::ffi::OsString;

use clap::Args;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  sealstone mkdir -p /backup/2026/november")]
pub(crate) struct MkdirArgs {
    /// Directories to create.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    /// Create parents as needed; no error if it exists.
    #[arg(long, short)]
    pub(crate) parents: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone mv /draft.txt /docs/final.txt
  sealstone mv --no-replace /draft.txt /docs")]
pub(crate) struct MvArgs {
    /// Stored file or directory.
    pub(crate) from: OsString,
    /// New path, or an existing directory to move it into.
    pub(crate) to: OsString,
    /// Fail if the destination exists.
    #[arg(long)]
    pub(crate) no_replace: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone ln /docs/final.txt /shared/final.txt
  sealstone ln -s ../docs/final.txt /shared/latest")]
pub(crate) struct LnArgs {
    /// An existing file; with -s any target, which need not exist.
    pub(crate) target: OsString,
    /// New path, or an existing directory for a link with the last name of the target.
    pub(crate) path: OsString,
    /// Create a symbolic link.
    #[arg(long, short)]
    pub(crate) symbolic: bool,
}
