//! `osd clock` and `mds clock`.

use std::path::PathBuf;

use clap::Subcommand;

/// What to do with the clock of a device or a metadata server on this machine.
#[derive(Debug, Subcommand)]
pub(crate) enum Clock {
    /// Show the clock as the folder keeps it, beside this machine's wall clock.
    #[command(after_help = "\
Examples:
  sealstone osd clock show --data /srv/osd1
  sealstone --json mds clock show --data /srv/mds")]
    Show {
        /// Folder of the device or the server.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Take this machine's wall clock over, also where it is before a time that held. For a clock that was wrong for long.
    #[command(after_help = "\
Examples:
  sealstone osd clock reset --data /srv/osd1
  sealstone mds clock reset --data /srv/mds
A running daemon does it at once, one that does not run at its next start. Commands that were captured before are refused
all the same. Credentials and sessions that expired between the two times are valid until they expire again; \
`sealstone mds keys rotate working --revoke` ends the credentials.")]
    Reset {
        /// Folder of the device or the server.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
}
