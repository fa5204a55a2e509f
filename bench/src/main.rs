//! Workloads and figures: what protection costs, beside what the machine can do.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod ceiling;
mod process;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    for workload in workload::grid() {
        let mut rates: Vec<f64> = Vec::new();
        for _ in 0..5 {
            match ceiling::run(workload.direction, workload.bytes, workload.depth, Duration::from_millis(200))
            {
                Ok((done, time)) => {
                    rates.push(done as f64 * workload.bytes as f64 / time.as_secs_f64() / 1048576.0)
                }
                Err(error) => {
                    eprintln!("sealstone-bench: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        println!("{workload:?} {:.0} MiB/s", workload::median(&mut rates));
    }
    let _ = process::own();
    ExitCode::SUCCESS
}
