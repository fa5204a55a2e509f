//! `sealstone osd drain`.

use clap::Args;

use crate::output::parse_size;

/// What is to happen with a device.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone osd drain osd2                   nothing new goes there, and all that is there goes elsewhere
  sealstone osd drain osd2 --rate 50M        no more than 50 MiB a second
  sealstone osd drain osd2 --no-wait         the metadata server goes on by itself, also after a restart
  sealstone osd drain osd2 --show            how far it is
  sealstone osd drain osd2 --undo            the device takes new files again; what was moved stays where it is
  sealstone --json osd drain osd2 --show | jq .drain.left_objects
Needs the session of an administrator or operator. Files stay readable and writable: one that is open to write is moved when it
is closed. Exit code 0 when no file is on the device any more, and what was there has been removed from it.")]
pub(crate) struct Drain {
    /// Name of the device, as `sealstone df` lists it.
    pub(crate) device: String,
    /// Bytes that are moved in a second at most [default: as many as can be].
    #[arg(long, default_value = "0", hide_default_value = true, value_parser = parse_size, value_name = "SIZE")]
    pub(crate) rate: u64,
    /// Begin it and do not wait for its end.
    #[arg(long, conflicts_with_all = ["show", "undo"])]
    pub(crate) no_wait: bool,
    /// Seconds to wait for its end [default: as long as it takes]; it goes on after that.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["show", "undo", "no_wait"])]
    pub(crate) wait: Option<u64>,
    /// Only show how far it is.
    #[arg(long, conflicts_with = "undo")]
    pub(crate) show: bool,
    /// Take the device into use again.
    #[arg(long)]
    pub(crate) undo: bool,
}
