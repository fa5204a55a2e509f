//! `sealstone-bench active` in its quick mode: real devices, the real engine, every table.
//!
//! Performance is not a subject of this test: it checks that each table exists and is complete.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

use std::path::Path;
use std::process::Command;

use sealstone_test_support::program_folder;

#[test]
fn quick_run_prints_all_tables() {
    let program = Path::new(env!("CARGO_BIN_EXE_sealstone-bench"));
    // It starts the device and the engine beside itself.
    assert_eq!(program.parent(), Some(program_folder()));
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("active.json");
    let mut command = Command::new(program);
    command.args(["active", "--quick", "--rounds", "1", "--mib", "4", "--count-mib", "4", "--let-sleep"]);
    let output = command.arg("--folder").arg(folder.path()).arg("--json").arg(&json).output().unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(output.status.success(), "{errors}");
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let tables = results["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 11, "{text}");
    for table in tables {
        let columns = table["columns"].as_array().unwrap().len();
        let rows = table["rows"].as_array().unwrap();
        let reasons = table["left_out"].as_array().unwrap();
        // The engine for WebAssembly is built by `make engines` only, and Java needs a JDK.
        assert!(!rows.is_empty() || !reasons.is_empty(), "{table}");
        assert!(text.contains(table["title"].as_str().unwrap()), "{table}");
        for row in rows {
            let values = row["values"].as_array().unwrap();
            assert!(values.len() == columns && values.iter().all(serde_json::Value::is_number), "{row}");
        }
    }
    for aim in [
        "small jobs slow reads of 64 KiB",
        "cancel",
        "cold start in C",
        "empty function",
        "reads, and a count, of 4 MiB",
        "writes, of 4 MiB",
    ] {
        let verdicts = results["verdicts"].as_array().unwrap();
        assert!(verdicts.iter().any(|verdict| verdict["aim"].as_str().unwrap().contains(aim)), "{aim}");
    }
}
