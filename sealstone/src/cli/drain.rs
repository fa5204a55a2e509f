//! `sealstone osd drain`.

use clap::Args;
use sealstone_units::parse_size;

/// Arguments of `osd drain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone osd drain osd2                   move all files to other devices
  sealstone osd drain osd2 --rate 50M        at most 50 MiB per second
  sealstone osd drain osd2 --no-wait         the metadata server continues, also after a restart
  sealstone osd drain osd2 --show            progress
  sealstone osd drain osd2 --undo            the device takes new files again; moved files stay
  sealstone --json osd drain osd2 --show | jq .drain.left_objects
For administrators and operators. Files stay readable and writable; files that are open for writing are moved after they
are closed. Exit code 0 when no file is on the device and its objects are removed.")]
pub(crate) struct DrainArgs {
    /// Name of the device, as `sealstone df` lists it.
    pub(crate) device: String,
    /// Maximum bytes per second [default: unlimited].
    #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) rate: u64,
    /// Start it without waiting.
    #[arg(long, conflicts_with_all = ["show", "undo"])]
    pub(crate) no_wait: bool,
    /// Maximum seconds to wait [default: until it ends]; then it continues in the background.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["show", "undo", "no_wait"])]
    pub(crate) wait: Option<u64>,
    /// Only show the progress.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) show: bool,
    /// Stop the drain and use the device again.
    #[arg(long)]
    pub(crate) undo: bool,
}
