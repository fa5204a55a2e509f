//! Shipped functions on striped files and directories give the results of local tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use sealstone_tests::{System, run_with_input, store_shipped, text};
use serde_json::Value;

/// Returns lines of 0 to 120 bytes, and some of 150 kB, about 3 MB together.
pub(crate) fn log_text(seed: u64) -> String {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut out = String::new();
    while out.len() < 3_000_000 {
        match random(4000) {
            0 => out.extend(std::iter::repeat_n("longword ", 17_000)),
            1 => out.push('\n'),
            _ => (0..random(20))
                .for_each(|_| out.push_str(["ab ", "error\t", "timeout ", "x"][random(4) as usize])),
        }
        out.push('\n');
    }
    out.push_str("error without a line feed");
    out
}

fn table_text() -> String {
    let mut out = String::from("id,status,path\n");
    for row in 0..150_000u32 {
        out.push_str(&format!("{row},{},/p/{}\n", 200 + row.wrapping_mul(7919) % 400, row % 97));
    }
    out
}

/// Writes a local file, and stores it under the same path.
pub(crate) fn store(system: &System, root: &Path, path: &str, content: &str) {
    let local = root.join(path.trim_start_matches('/'));
    std::fs::create_dir_all(local.parent().expect("a folder")).expect("created");
    std::fs::write(&local, content).expect("written");
    if let Some((folder, _)) = path.rsplit_once('/').filter(|(folder, _)| !folder.is_empty()) {
        system.run(&["mkdir", "-p", folder]).ok();
    }
    system.run(&["put", text(&local), path]).ok();
}

/// Runs a local tool in the folder of the local files.
fn local(root: &Path, words: &[&str]) -> String {
    let done = Command::new(words[0])
        .args(&words[1..])
        .current_dir(root)
        .env("LC_ALL", "C")
        .output()
        .expect("the tool starts");
    String::from_utf8(done.stdout).expect("text")
}

pub(crate) fn start(devices: usize) -> (System, PathBuf) {
    let system = System::start(devices);
    let root = system.path("local");
    (system, root)
}

pub(crate) fn is_striped(system: &System, path: &str) -> bool {
    system.run(&["--json", "stat", path]).ok().json()["files"][0]["width"].as_u64() > Some(1)
}

/// Runs a search and a filter with results of several MiB; compares them with those of local tools.
#[test]
fn long_results_are_computed_on_devices() {
    let (system, root) = start(2);
    store_shipped(&system, &["grep", "filter"]);
    let log: String = (0..90_000).map(|line| format!("line {line} of the log, with a word\n")).collect();
    store(&system, &root, "/log", &log);
    let mut table = String::from("id,text\n");
    (0..90_000).for_each(|row| table.push_str(&format!("{row},a field of some length in a row\n")));
    store(&system, &root, "/table.csv", &table);
    let runs: [(&str, &[&str], &[&str]); 2] = [
        ("/log", &["grep", "--fixed", "--pattern", "with a word"], &["grep", "-n", "with a word", "log"]),
        ("/table.csv", &["filter", "--where", "id >= 0"], &["cat", "table.csv"]),
    ];
    for (path, function, tool) in runs {
        assert!(is_striped(&system, path));
        let found = system.path("found");
        let command = [&["--json", "run"], function, &["--output", text(&found), path]].concat();
        let run = system.run(&command).ok().json();
        let jobs = run["jobs"].as_array().expect("a list");
        assert!(jobs.len() > 1, "{run}");
        for job in jobs {
            // The device ran it: a job at the client has no device.
            assert_eq!((&job["state"], &job["exit"]), (&"done".into(), &"success".into()), "{run}");
            assert!(job["result_bytes"].as_u64() > Some(1 << 20), "{run}");
        }
        let expected = local(&root, tool);
        let found = std::fs::read_to_string(&found).expect("written");
        assert!(found == expected, "{path}: {} and {} bytes", found.len(), expected.len());
    }
}

fn check_striped_files(devices: usize) {
    let (system, root) = start(devices);
    store_shipped(&system, &["count", "grep", "filter", "sha256"]);
    for (path, seed) in [("/logs/a", 1), ("/logs/b", 2)] {
        store(&system, &root, path, &log_text(seed));
        assert!(is_striped(&system, path));
    }
    store(&system, &root, "/logs/deep/empty", "");
    store(&system, &root, "/table.csv", &table_text());
    assert!(is_striped(&system, "/table.csv"));

    let wc = local(&root, &["wc", "-lwc", "logs/a", "logs/b"]);
    let numbers: Vec<u64> = wc.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let run = system.run(&["--json", "run", "count", "--by", "lines,words,bytes", "/logs"]).ok().json();
    let count = |value: &Value| {
        ["lines", "words", "bytes"].map(|name| value["count"][name].as_u64().expect("a count")).to_vec()
    };
    let files = run["files"].as_array().expect("a list");
    assert_eq!(files.len(), 3, "{run}");
    let counted: Vec<u64> = files[..2].iter().chain([&run["total"]]).flat_map(count).collect();
    assert_eq!(counted, numbers, "{wc}");
    assert_eq!(count(&files[2]), [0, 0, 0]);
    assert_eq!(run["totals"]["devices"], devices, "{run}");

    for pattern in ["error", "^$", "timeout x*$", "longword longword"] {
        let expected = local(&root, &["grep", "-n", "-E", pattern, "logs/a"]);
        let found = system.run(&["run", "grep", "--pattern", pattern, "/logs/a"]).ok().text();
        assert!(found == expected, "{pattern}: {} and {} bytes", found.len(), expected.len());
    }
    let expected = local(&root, &["grep", "-n", "timeout error", "logs/a", "logs/b", "logs/deep/empty"]);
    let expected: String = expected.lines().map(|line| format!("/{line}\n")).collect();
    let grep = ["run", "grep", "--fixed", "--pattern", "timeout error", "/logs"];
    assert!(system.run(&grep).ok().text() == expected);
    assert!(system.run(&[&grep[..], &["--together"]].concat()).ok().text() == expected);
    let matches = local(&root, &["grep", "-c", "error", "logs/a"]);
    assert_eq!(system.run(&["run", "grep", "--count", "--pattern", "error", "/logs/a"]).ok().text(), matches);

    let expected = local(&root, &["awk", "-F,", "NR == 1 || $2 >= 590", "table.csv"]);
    let filtered = system.path("filtered.csv");
    system
        .run(&["run", "filter", "--where", "status >= 590", "--output", text(&filtered), "/table.csv"])
        .ok();
    assert!(std::fs::read_to_string(&filtered).expect("written") == expected);

    let expected = local(&root, &["sha256sum", "logs/a", "logs/b", "logs/deep/empty"]);
    let digests = system.run(&["run", "sha256", "/logs"]).ok().text();
    assert_eq!(digests.replace("  /", "  "), expected);
}

#[test]
fn striped_files_on_two_devices_equal_local_tools() {
    check_striped_files(2);
}

#[test]
fn striped_files_on_three_devices_equal_local_tools() {
    check_striped_files(3);
}

#[test]
fn failed_files_do_not_stop_others() {
    let (system, root) = start(2);
    store_shipped(&system, &["count", "filter"]);
    store(&system, &root, "/a.csv", "id,status\n1,500\n");
    store(&system, &root, "/b.csv", "id,state\n1,500\n");
    let run = system.run(&["--json", "run", "count", "/a.csv", "/missing", "/b.csv"]);
    let value: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!(value["total"]["count"]["lines"], 4, "{value}");
    assert_eq!(value["failed_count"], 1, "{value}");
    run.fails(1).says(&["/missing"]);
    let filter = ["--json", "run", "filter", "--where", "id = 1", "/a.csv", "/b.csv"];
    system.run(&filter).fails(1).says(&[".csv", "header differs"]);
    let together = ["--json", "run", "filter", "--together", "--where", "id = 1", "/a.csv", "/b.csv"];
    system.run(&together).fails(1).says(&[".csv", "header differs"]);
    system.run(&["run", "filter", "/a.csv"]).fails(2).says(&["--where"]);
    system.run(&["run", "count", "--pattern", "x", "/a.csv"]).fails(2).says(&["pattern"]);
}

#[test]
fn pair_of_files_is_copied_on_devices() {
    let (system, root) = start(2);
    store_shipped(&system, &["copy"]);
    let content = log_text(3);
    store(&system, &root, "/from", &content);
    store(&system, &root, "/to", &"x".repeat(content.len()));
    system.run(&["run", "copy", "--together", "--update", "/from", "/to"]).ok();
    assert!(system.run(&["cat", "/to"]).ok().text() == content, "the second file is a copy");
}

#[test]
fn foreign_results_are_refused_unless_raw() {
    let system = System::start(1);
    run_with_input(system.command(&["put", "-", "/a"]), b"one\n").ok();
    let text =
        "#include \"osd.h\"\nint64_t osd_main(const osd_call *call) { osd_result(\"7\\n\", 2); return 0; }\n";
    crate::function_runs::store_text(&system, "count", text);
    system.run(&["--json", "run", "count", "/a"]).fails(1).says(&["shipped function count", "--raw"]);
    assert_eq!(system.run(&["run", "count", "--raw", "/a"]).ok().text(), "7\n");
}
