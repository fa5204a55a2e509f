//! Throughput of shipped functions on data in memory, by CPU time, as one JSON object.
//!
//! `cargo run --release -p sealstone-functions --example function_rates -- [MIB] [RUNS]`
#![allow(clippy::print_stdout, reason = "the output of this program")]

use rustix::time::{ClockId, clock_gettime};
use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionHost, LogLevel};
use sealstone_functions::find_function;

/// Functions with arguments and the name of the figure.
const CASES: &[(&str, &str, &[u8])] = &[
    ("wordcount", "wordcount", b"byte= \0"),
    ("count", "count", b"by=lines,words,bytes\0"),
    ("grep-text", "grep", b"pattern=timeout\0"),
    ("grep-regex", "grep", b"pattern=status [45]\\d\\d.*timeout$\0"),
    ("grep-paper", "grep", b"pattern=timeout\0record-bytes=128\0"),
    ("filter-csv", "filter", b"format=csv\0where=status >= 500\0header.0=status,path,text\0"),
    ("sha256", "sha256", b""),
    ("blake3", "blake3", b""),
    ("copy", "copy", b""),
    ("aes", "aes", b"key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000000\0"),
];

/// Host with one input and one output in memory; the result is counted.
struct BenchHost {
    input: Vec<u8>,
    output: Vec<u8>,
    result_bytes: usize,
}

impl FunctionHost for BenchHost {
    fn read(&mut self, _: u32, offset: u64, buffer: &mut [u8]) -> Result<usize, FunctionErrno> {
        let rest = self.input.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&mut self, _: u32, offset: u64, data: &[u8]) -> Result<(), FunctionErrno> {
        let start = offset as usize;
        let target = self.output.get_mut(start..start + data.len()).ok_or(FunctionErrno::NO_SPACE)?;
        target.copy_from_slice(data);
        Ok(())
    }

    fn length(&mut self, _: u32) -> Result<u64, FunctionErrno> {
        Ok(self.input.len() as u64)
    }

    fn result(&mut self, data: &[u8]) -> Result<(), FunctionErrno> {
        self.result_bytes += data.len();
        Ok(())
    }

    fn log(&mut self, _: LogLevel, _: &str) {}

    fn progress(&mut self, _: u64, _: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Returns the CPU time of this thread: other programs on the machine change it little.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Rows of a log; each hundredth is an error.
fn sample(bytes: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes + 128);
    for number in 0u64.. {
        if data.len() >= bytes {
            break;
        }
        let (status, text) = if number % 100 == 99 { (503, "upstream timeout") } else { (200, "ok") };
        let path = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        data.extend_from_slice(format!("{status},/api/items/{path:08x},status {status} {text}\n").as_bytes());
    }
    data.truncate(bytes);
    data
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap_or(0));
    let mib = arguments.next().filter(|mib| *mib > 0).unwrap_or(64);
    let runs = arguments.next().filter(|runs| *runs > 0).unwrap_or(5);
    let bytes = mib << 20;
    let mut host = BenchHost { input: sample(bytes), output: vec![0; bytes], result_bytes: 0 };
    let mut figures = serde_json::Map::new();
    for (figure, name, arguments) in CASES {
        let function = find_function(name).expect("a shipped function");
        let objects = if matches!(*name, "copy" | "aes") { 2 } else { 1 };
        let mut times: Vec<f64> = (0..runs)
            .map(|_| {
                host.result_bytes = 0;
                let begin = cpu_seconds();
                let call = FunctionCall::new(&mut host, "", arguments, objects);
                call.run(function.run).expect("the function succeeds");
                cpu_seconds() - begin
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let median = bytes as f64 / 1e6 / times[times.len() / 2];
        let best = bytes as f64 / 1e6 / times[0];
        let figure_value = serde_json::json!({
            "mb_per_cpu_s_median": median.round(), "mb_per_cpu_s_best": best.round(), "result_bytes": host.result_bytes
        });
        figures.insert((*figure).to_owned(), figure_value);
    }
    println!("{}", serde_json::json!({ "mib": mib, "runs": runs, "functions": figures }));
}
