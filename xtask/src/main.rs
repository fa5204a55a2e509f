//! Checks and tools of the workspace: `cargo run -p xtask -- COMMAND`.
//!
//! A remark that was made twice in review becomes a check here.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod attacks;
mod cycles;
mod language;
mod purity;
mod tests;
mod tidy;
mod walks;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- COMMAND

  tidy     rules that neither compiler nor linter knows (sizes, order of crates, reasons beside dependencies)
  language count prose and names that break the house rules; with --lower, lower their ceilings
  cycles   show the largest cycle of modules in each crate; with --lower, lower the ceilings
  purity   build the pure crates for a target without an operating system
  tests    every test of the workspace, several test programs beside each other";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy::run(),
        ["language"] => tidy::language(false),
        ["language", "--lower"] => tidy::language(true),
        ["cycles"] => tidy::cycles(false),
        ["cycles", "--lower"] => tidy::cycles(true),
        ["purity"] => purity::run(),
        ["tests"] => tests::run(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(findings) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            eprintln!("xtask: {} finding(s)", findings.len());
            ExitCode::FAILURE
        }
    }
}
