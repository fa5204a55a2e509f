//! `sealstone check`.

use clap::Args;

/// Arguments of `check`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone check                            metadata, and the objects of every device
  sealstone check --no-objects               metadata only
  sealstone check --repair                   correct counts and remove orphan objects
  sealstone check --show                     progress and findings of the last check
  sealstone --json check | jq '.check.findings[] | select(.kind == \"lost\")'
For administrators. It runs beside all other requests, on a consistent snapshot. Exit code 1 if problems remain.
`sealstone scrub` verifies the bytes of files.")]
pub(crate) struct CheckArgs {
    /// Correct counts, and remove orphan objects.
    #[arg(long, conflicts_with = "show")]
    pub(crate) repair: bool,
    /// Check the metadata only.
    #[arg(long, conflicts_with = "show")]
    pub(crate) no_objects: bool,
    /// Start it without waiting.
    #[arg(long, conflicts_with = "show")]
    pub(crate) no_wait: bool,
    /// Only show progress and findings of the last check.
    #[arg(long)]
    pub(crate) show: bool,
}
