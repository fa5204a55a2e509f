//! `sealstone check`.

use clap::Args;

/// What is looked through.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone check                            names, nodes, counts, and what lies on every device
  sealstone check --no-objects               without asking the devices
  sealstone check --repair                   puts counts right, and removes objects that belong to nothing
  sealstone check --show                     how far the last one is, and what it found
  sealstone --json check | jq '.findings[] | select(.kind == \"Lost\")'
Administrators. Everything goes on meanwhile: what is compared is the state of one moment. Exit code 1 if something is not as it
should be, and was not repaired. `sealstone scrub` reads the bytes themselves.")]
pub(crate) struct Check {
    /// Put right what can be: counts, and objects that belong to nothing.
    #[arg(long, conflicts_with = "show")]
    pub(crate) repair: bool,
    /// Only what is on record: devices are not asked.
    #[arg(long, conflicts_with = "show")]
    pub(crate) no_objects: bool,
    /// Begin it and do not wait for its end.
    #[arg(long, conflicts_with = "show")]
    pub(crate) no_wait: bool,
    /// Only show how far the last one is, and what it found.
    #[arg(long)]
    pub(crate) show: bool,
}
