//! Runs the conformance tests against a target: `sealstone-conformance [--target URL [--key FILE |
//! --no-osd] [--block URL]] [FILTER]`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use sealstone_conformance::{RunOptions, TESTS, Target, run};

const USAGE: &str =
    "usage: sealstone-conformance [--target iscsi://HOST:PORT/TARGET/LUN [--key FILE | --no-osd] [--block URL]] [--list] [FILTER]
Makes and removes partitions on the target, unless it is said to have no OSD, and overwrites the block unit if one is named. Without --target the real device is started.";

fn main() -> ExitCode {
    let (mut url, mut key, mut block) = (std::env::var("SEALSTONE_TARGET").ok(), None, None);
    let mut osd = true;
    let mut options = RunOptions { verbose: true, ..RunOptions::default() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--target" => url = arguments.next(),
            "--key" => key = arguments.next().map(PathBuf::from),
            "--no-osd" => osd = false,
            "--block" => block = arguments.next(),
            "--list" => {
                TESTS.iter().copied().flatten().for_each(|test| {
                    println!("{:24} {:14} {}: {}", test.area, test.runs(), test.clause, test.name);
                });
                return ExitCode::SUCCESS;
            }
            option if option.starts_with('-') => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
            filter => options.filter = Some(filter.to_owned()),
        }
    }
    let mut targets = match &url {
        Some(url) => match Target::at(url, key.as_deref(), block.as_deref()) {
            Ok(target) if osd => vec![target],
            Ok(target) => vec![target.without_osd()],
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        },
        None => Target::own(),
    };
    let report = run(&mut targets, &options);
    print!("{}", report.text);
    if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
