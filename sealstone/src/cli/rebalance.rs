//! `sealstone osd rebalance`.

use clap::Args;
use sealstone_units::parse_size;

/// Arguments of `osd rebalance`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone osd rebalance                    move files to a device that was added
  sealstone osd rebalance --rate 50M         at most 50 MiB per second; also changes a running one
  sealstone osd rebalance --no-wait          the metadata server continues, also after a restart
  sealstone osd rebalance --show             progress
  sealstone osd rebalance --stop             stop it; moved files stay
  sealstone --json osd rebalance --show | jq .rebalance.left_bytes
For administrators and operators. Files stay readable and writable; files that are open for writing are not moved.
It stops when every device is within 2 % of the average, or nothing else can move; exit code 0 in both cases.")]
pub(crate) struct RebalanceArgs {
    /// Maximum bytes per second [default: unlimited].
    #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) rate: u64,
    /// Start it without waiting.
    #[arg(long, conflicts_with_all = ["show", "stop"])]
    pub(crate) no_wait: bool,
    /// Maximum seconds to wait [default: until it ends]; then it continues in the background.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["show", "stop", "no_wait"])]
    pub(crate) wait: Option<u64>,
    /// Only show the progress.
    #[arg(long, conflicts_with = "stop")]
    pub(crate) show: bool,
    /// Stop it.
    #[arg(long)]
    pub(crate) stop: bool,
}
