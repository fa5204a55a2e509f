//! Options of the commands that make and move names.

use std::ffi::OsString;

use clap::Args;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  sealstone mkdir -p /backup/2026/november")]
pub(crate) struct Mkdir {
    /// Directories.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    /// Make missing ones above too; be content if it exists.
    #[arg(long, short)]
    pub(crate) parents: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone mv /draft.txt /docs/final.txt
  sealstone mv --no-replace /draft.txt /docs")]
pub(crate) struct Mv {
    /// What to move.
    pub(crate) from: OsString,
    /// Its new path; an existing directory takes it under its old name.
    pub(crate) to: OsString,
    /// Do not replace what exists.
    #[arg(long)]
    pub(crate) no_replace: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone ln /docs/final.txt /shared/final.txt
  sealstone ln -s ../docs/final.txt /shared/latest")]
pub(crate) struct Ln {
    /// An existing file; with -s any target, which need not exist.
    pub(crate) target: OsString,
    /// The new name; in an existing directory the last name of the target.
    pub(crate) path: OsString,
    /// A symbolic link.
    #[arg(long, short)]
    pub(crate) symbolic: bool,
}
