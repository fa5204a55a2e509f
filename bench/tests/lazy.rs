//! `sealstone-bench lazy` in its quick mode: real devices, every part.
//!
//! Performance is not a subject of this test: it checks that each table exists and is complete, and
//! that two initiators on one unit lose no write.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::path::Path;
use std::process::Command;

use sealstone_test_support::program_folder;
use serde_json::Value;

const LEVELS: [&str; 5] = ["S0", "S1-1u", "S1-2", "S2-5+safe", "E2E"];

#[test]
fn quick_run_measures_every_part() {
    let program = Path::new(env!("CARGO_BIN_EXE_sealstone-bench"));
    // It starts the devices beside itself.
    assert_eq!(program.parent(), Some(program_folder()));
    let folder = tempfile::tempdir().unwrap();
    let (json, plots) = (folder.path().join("lazy.json"), folder.path().join("plots"));
    let mut command = Command::new(program);
    command.args([
        "lazy",
        "--quick",
        "--turn",
        "30",
        "--clients",
        "1,2",
        "--sizes",
        "512,65536",
        "--let-sleep",
    ]);
    command.args(["--levels", &LEVELS.join(","), "--json"]).arg(&json).arg("--plots").arg(&plots);
    let output = command.arg("--folder").arg(folder.path()).output().unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{errors}");
    let results: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // Reads and writes, sequential and random, two sizes, two numbers of clients. One client has
    // the lease of an end-to-end protected disk, whose blocks have 4 KiB.
    let cells = results["levels"]["results"].as_array().unwrap();
    assert_eq!(cells.len(), 16 * (LEVELS.len() - 1) + 4, "{text}");
    for cell in cells {
        assert!(cell["mib_per_s"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["server_cpu_s_per_gib"].as_f64().unwrap() >= 0.0, "{cell}");
    }
    for title in ["Figure 2", "Figure 6", "Table 3", "Table 4", "space of keys", "time from an acknowledged"]
    {
        let tables = results["tables"].as_array().unwrap();
        let table = tables.iter().find(|table| table["title"].as_str().unwrap().starts_with(title));
        let table = table.unwrap_or_else(|| panic!("no table {title}"));
        let (rows, reasons) = (table["rows"].as_array().unwrap(), table["left_out"].as_array().unwrap());
        assert!(!rows.is_empty() || !reasons.is_empty(), "{table}");
        assert!(text.contains(table["title"].as_str().unwrap()), "{table}");
    }
    let verdicts = results["verdicts"].as_array().unwrap();
    let of = |aim: &str| {
        let found = verdicts.iter().find(|verdict| verdict["aim"].as_str().unwrap().contains(aim));
        found.unwrap_or_else(|| panic!("no verdict on {aim}"))
    };
    let shared = of("every block has the bytes of its writer");
    assert_eq!(shared["reached"].as_bool(), Some(true), "{shared}");
    for aim in [
        "server CPU of S1-2 at most",
        "throughput of S1-2 above S1-1u",
        "E2E at least 80 %",
        "E2E at least 70 %",
        "server CPU of E2E",
        "unverified window",
    ] {
        of(aim);
    }
    let drawn = std::fs::read_dir(&plots).unwrap().count();
    assert_eq!(drawn, 5, "four curves of levels and one of streams");
}
