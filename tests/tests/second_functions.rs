//! Reduction of results by a second function, on a device and at the client.

use sealstone_tests::{Signal, System, run_with_input};
use serde_json::Value;

use crate::function_runs::{jobs, store_text};

/// Counts the line feeds of each object, and returns `NUMBER\n`.
const LINES: &str = r#"#include "osd.h"
#include <stdio.h>
int64_t osd_main(const osd_call *call) {
    static char part[65536];
    char text[32];
    long lines = 0;
    for (uint64_t at = 0;;) {
        int64_t count = osd_read(0, at, part, sizeof part);
        if (count < 0) return count;
        if (count == 0) break;
        for (int64_t i = 0; i < count; i++) lines += part[i] == '\n';
        at += (uint64_t)count;
    }
    return osd_result(text, (size_t)snprintf(text, sizeof text, "%ld\n", lines));
}
"#;

/// Adds the numbers of its object, and returns `sum SUM of COUNT\n`.
const SUM: &str = r#"#include "osd.h"
#include <stdio.h>
#include <stdlib.h>
int64_t osd_main(const osd_call *call) {
    static char text[65536];
    char out[64], *next = text;
    long sum = 0, count = 0;
    int64_t length = osd_read(0, 0, text, sizeof text - 1);
    if (length < 0) return length;
    while (*next) {
        sum += strtol(next, &next, 10);
        count++;
        if (*next == '\n') next++;
    }
    return osd_result(out, (size_t)snprintf(out, sizeof out, "sum %ld of %ld\n", sum, count));
}
"#;

fn start() -> System {
    let system = System::start(2);
    store_text(&system, "lines", LINES);
    store_text(&system, "sum", SUM);
    let long: String = (0..400_000).map(|line| format!("line {line}\n")).collect();
    run_with_input(system.command(&["put", "-", "/long"]), long.as_bytes()).ok();
    run_with_input(system.command(&["put", "-", "/short"]), b"one\ntwo\nthree\n").ok();
    system
}

#[test]
fn second_function_gives_same_result_everywhere() {
    let system = start();
    let single = system.run(&["--json", "run", "lines", "/long", "/short"]).ok().json();
    let count = jobs(&single).len();
    assert!(count > 2, "one file is striped: {single}");
    let expected = format!("sum 400003 of {count}\n");
    for place in ["device", "client"] {
        let run = ["run", "lines", "--reduce", "sum", "--reduce-on", place, "/long", "/short"];
        assert_eq!(system.run(&run).ok().text(), expected, "{place}");
        let run = system.run(&[&["--json"], &run[..]].concat()).ok().json();
        let reduced = &run["reduced"];
        assert_eq!((&reduced["result"], &reduced["exit"]), (&expected.clone().into(), &"success".into()));
        assert_eq!(reduced["at_client"] == true, place == "client", "{run}");
    }
    // Nothing is left of the results.
    system.run(&["check"]).ok();
    let used = system.run(&["--json", "quota", "show", "--user", "admin"]).ok().json();
    let listed: u64 = ["/long", "/short", "/.functions/lines", "/.functions/sum"]
        .iter()
        .map(|path| {
            system.run(&["--json", "stat", path]).ok().json()["files"][0]["size"].as_u64().unwrap_or(0)
        })
        .sum();
    assert_eq!(used["bytes"], listed, "{used}");
}

#[test]
fn second_function_needs_all_results() {
    let mut system = start();
    let run = ["--json", "run", "lines", "--reduce", "sum", "/short", "/missing"];
    let failed = system.run(&run);
    let value: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
    assert!(value["reduced"].is_null() && value["failed_count"] == 1, "{value}");
    failed.fails(1);
    system
        .run(&["--quiet", "run", "lines", "--reduce", "missing", "/short"])
        .fails(4)
        .says(&["/.functions/missing"]);
    let usage = system.run(&["run", "lines", "--reduce-on", "client", "/short"]);
    assert_eq!(usage.says(&["--reduce <FUNCTION>"]).code, 2);
    // Another device takes over for one that is away.
    let copies = system.run(&["--json", "fn", "show", "sum"]).ok().json();
    assert_eq!(copies["copies"].as_array().map(Vec::len), Some(2), "{copies}");
    let placed = system.run(&["--json", "stat", "/short"]).ok().json();
    let name = placed["files"][0]["placement"]["objects"][0]["name"].as_str().expect("a name").to_owned();
    let other = usize::from(name == "osd0");
    system.end_osd(other, Signal::Kill);
    assert_eq!(system.run(&["run", "lines", "--reduce", "sum", "/short"]).ok().text(), "sum 3 of 1\n");
}
