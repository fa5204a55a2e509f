//! Secure object storage: daemons and command line.
//!
//! The only place where everything meets: sockets, clocks, files and the pure parts.

mod cli;
mod config;
mod failure;
mod logging;
mod metrics;
mod output;
mod secret_file;

use clap::Parser;

fn main() {
    let cli = cli::Cli::parse();
    logging::start(cli.global.log_format, "warn");
}
