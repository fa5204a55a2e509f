//! Options of `sealstone quota`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::output::parse_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Set limits (administrators). What is not said stays as it is; what is in use already stays, and does not grow.
    #[command(after_help = "\
Examples:
  sealstone quota set --user alice --size 10GiB --files 100000
  sealstone quota set --tree /projects/apollo --size 2T
  sealstone quota set --user alice --files none           no limit on their number any more
A directory becomes a tree when its quota is first set, and must be empty then. What is in a tree is not moved or linked
out of it, nor into it: it is copied, as between two file systems.")]
    Set {
        #[command(flatten)]
        of: Of,
        /// Bytes at most, the sum of the sizes of all files; `none` for no limit.
        #[arg(long, value_name = "SIZE", value_parser = parse_limit, required_unless_present = "files")]
        size: Option<Limit>,
        /// Files at most: directories, links and all else that has a number count too; `none` for no limit.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        files: Option<Limit>,
    },
    /// What is used and allowed: of yourself, or of the tree that a path lies in.
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
        /// The tree that this path lies in.
        #[arg(long, value_name = "PATH")]
        tree: Option<OsString>,
    },
    /// What every user and every tree uses and may use; your own, if you are no administrator.
    #[command(after_help = "\
Examples:
  sealstone quota list
  sealstone --json quota list | jq '.[] | select(.bytes_max != null)'")]
    #[command(visible_alias = "ls")]
    List,
    /// Take limits away (administrators). An empty directory is no tree any more after that.
    #[command(after_help = "\
Examples:
  sealstone quota clear --user alice
  sealstone quota clear --tree /projects/apollo")]
    Clear {
        #[command(flatten)]
        of: Of,
    },
    /// Count everything anew and compare (administrators); exit code 1 if a count is wrong.
    #[command(after_help = "\
Examples:
  sealstone quota check
  sealstone quota check --repair
Counts change with what they count, so none should ever be wrong. Everything goes on meanwhile. `sealstone check` looks at these
and at all else.")]
    Check {
        /// Put right what is wrong.
        #[arg(long)]
        repair: bool,
    },
}

/// Whose quota.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Of {
    /// Of everything that this user owns.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Of this directory and everything below it.
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
    text.parse().map(|max| Limit(Some(max))).map_err(|_| format!("'{text}' is not a number, and not `none`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is no limit is said, and what is no number is refused.
    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(parse_limit("10GiB"), Ok(Limit(Some(10 << 30))));
        assert_eq!((parse_limit("none"), parse_count("none")), (Ok(Limit(None)), Ok(Limit(None))));
        assert_eq!(parse_count("100000"), Ok(Limit(Some(100_000))));
        assert!(parse_count("10k").is_err() && parse_count("-1").is_err() && parse_limit("much").is_err());
    }
}
