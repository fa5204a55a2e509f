//! `sealstone osd rebalance`.

use clap::Args;

use crate::output::parse_size;

/// How devices are to be made equally full.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone osd rebalance                    after `sealstone mds add-osd`: the new device gets its part of what is there
  sealstone osd rebalance --rate 50M         no more than 50 MiB a second; said again it changes the rate
  sealstone osd rebalance --no-wait          the metadata server goes on by itself, also after a restart
  sealstone osd rebalance --show             how far it is
  sealstone osd rebalance --stop             what was moved stays where it is
  sealstone --json osd rebalance --show | jq .left_bytes
Needs the session of an administrator or operator. Files stay readable and writable: one that is open to write stays where it is.
It ends when every device is within 2 % as full as all together, or nothing more can be moved; exit code 0 either way.")]
pub(crate) struct Rebalance {
    /// Bytes that are moved in a second at most [default: as many as can be].
    #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) rate: u64,
    /// Begin it and do not wait for its end.
    #[arg(long, conflicts_with_all = ["show", "stop"])]
    pub(crate) no_wait: bool,
    /// Seconds to wait for its end [default: as long as it takes]; it goes on after that.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["show", "stop", "no_wait"])]
    pub(crate) wait: Option<u64>,
    /// Only show how far it is.
    #[arg(long, conflicts_with = "stop")]
    pub(crate) show: bool,
    /// End it.
    #[arg(long)]
    pub(crate) stop: bool,
}
