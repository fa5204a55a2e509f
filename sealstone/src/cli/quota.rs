//! Options of `sealstone quota`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use sealstone_units::parse_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Set limits (administrators). Limits that are not given stay; files above a limit stay but
    /// cannot grow.
    #[command(after_help = "\
Examples:
  sealstone quota set --user alice --size 10GiB --files 100000
  sealstone quota set --tree /projects/apollo --size 2T
  sealstone quota set --user alice --files none           no limit of their number
A directory becomes a tree when its quota is first set; it must be empty then. Renames and links cannot cross the border of a
tree; copy instead, as between two file systems.")]
    Set {
        #[command(flatten)]
        of: Of,
        /// Maximum bytes, the sum of all file sizes; or `none`.
        #[arg(long, value_name = "SIZE", value_parser = parse_limit, required_unless_present = "files")]
        size: Option<Limit>,
        /// Maximum number of files, including directories and links; or `none`.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        files: Option<Limit>,
    },
    /// Show use and limits of yourself, a user, or a tree.
    #[command(after_help = "\
Examples:
  sealstone quota show
  sealstone quota show --user alice                       administrators, for others
  sealstone quota show --tree /projects/apollo/src
  sealstone --json quota show | jq .bytes")]
    Show {
        /// This user [default: yourself].
        #[arg(long, value_name = "NAME", conflicts_with = "tree")]
        user: Option<String>,
        /// The tree that contains this path.
        #[arg(long, value_name = "PATH")]
        tree: Option<OsString>,
    },
    /// Show use and limits of all users and trees; without administrator rights only your own.
    #[command(after_help = "\
Examples:
  sealstone quota list
  sealstone --json quota list | jq '.quotas[] | select(.bytes_max != null)'")]
    #[command(visible_alias = "ls")]
    List,
    /// Remove limits (administrators). An empty directory is then no tree.
    #[command(after_help = "\
Examples:
  sealstone quota clear --user alice
  sealstone quota clear --tree /projects/apollo")]
    Clear {
        #[command(flatten)]
        of: Of,
    },
    /// Recount all files and compare (administrators). Exit code 1 if a count is wrong.
    #[command(after_help = "\
Examples:
  sealstone quota check
  sealstone quota check --repair
Counts are updated with the files, so none should be wrong. It runs beside all other requests. `sealstone check` includes
it.")]
    Check {
        /// Correct wrong counts.
        #[arg(long)]
        repair: bool,
    },
}

/// User or tree of a quota.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Of {
    /// Quota of all files of this user.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Quota of this directory and everything below it.
    #[arg(long, value_name = "PATH")]
    pub(crate) tree: Option<OsString>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<u64>);

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { parse_size(text).map(|max| Limit(Some(max))) }
}

fn parse_count(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    text.parse().map(|max| Limit(Some(max))).map_err(|_| format!("'{text}' is neither a number nor `none`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(parse_limit("10GiB"), Ok(Limit(Some(10 << 30))));
        assert_eq!((parse_limit("none"), parse_count("none")), (Ok(Limit(None)), Ok(Limit(None))));
        assert_eq!(parse_count("100000"), Ok(Limit(Some(100_000))));
        assert!(parse_count("10k").is_err() && parse_count("-1").is_err() && parse_limit("much").is_err());
    }
}
