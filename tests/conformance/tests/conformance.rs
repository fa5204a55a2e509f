//! Every behaviour on the real device: nothing fails, nothing is skipped.
//!
//! A custom harness: arguments without a leading dash are the filter. `SEALSTONE_TARGET`,
//! `SEALSTONE_TARGET_KEY` and `SEALSTONE_TARGET_BLOCK` select another device, its key file and its
//! block unit.

#![allow(clippy::print_stdout, reason = "a test tells its result")]

use std::path::PathBuf;
use std::process::ExitCode;

use sealstone_conformance::{RunOptions, Target, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("conformance: test");
        return ExitCode::SUCCESS;
    }
    let filter = arguments.into_iter().find(|argument| !argument.starts_with('-'));
    let options = RunOptions { filter, verbose: false };
    let mut targets = match std::env::var("SEALSTONE_TARGET") {
        Ok(url) => {
            let key = std::env::var_os("SEALSTONE_TARGET_KEY").map(PathBuf::from);
            let block = std::env::var("SEALSTONE_TARGET_BLOCK").ok();
            let target = Target::at(&url, key.as_deref(), block.as_deref());
            vec![target.unwrap_or_else(|error| panic!("{error}"))]
        }
        Err(_) => Target::own(),
    };
    let report = run(&mut targets, &options);
    print!("{}", report.text);
    if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
