//! `filter` of Parquet files on devices: rows as JSON and as one table, also of striped files.

use std::path::Path;

use sealstone_functions::join_parquet;
use sealstone_tests::{System, store_shipped, text};
use serde_json::Value;

use crate::function_reduction::is_striped;

/// Tables of 60 rows that pyarrow wrote.
const TABLES: [(&str, &[u8]); 2] = [
    ("a", include_bytes!("../../active/function-formats/tests/data/snappy.parquet")),
    ("b", include_bytes!("../../active/function-formats/tests/data/zstd.parquet")),
];

/// Starts a system with the tables in a directory.
fn start() -> System {
    let system = System::start(2);
    store_shipped(&system, &["filter"]);
    system.run(&["mkdir", "/tables"]).ok();
    for (name, table) in TABLES {
        let local = system.path(name);
        std::fs::write(&local, table).expect("written");
        system.run(&["put", text(&local), &format!("/tables/{name}.parquet")]).ok();
    }
    system
}

/// Stores a local table, and returns the number of its rows for which an expression is true.
fn count_of(system: &System, local: &Path, expression: &str) -> String {
    system.run(&["put", text(local), "/check.parquet"]).ok();
    let run = ["run", "filter", "--where", expression, "--count", "/check.parquet"];
    system.run(&run).ok().text().trim().to_owned()
}

#[test]
fn rows_of_tables_are_json_lines() {
    let system = start();
    let run =
        ["run", "filter", "--where", "status = 500 and id < 20", "--columns", "id,user", "/tables/*.parquet"];
    let lines = system.run(&run).ok().text();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let ids: Vec<u64> = rows.iter().map(|row| row["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids, [7, 11, 15, 19, 7, 11, 15, 19], "{lines}");
    assert_eq!(rows[0]["user"]["name"], "u1");
    let count = ["run", "filter", "--where", "day > '2026-12-29' or price = 1.99", "--count", "/tables"];
    assert_eq!(system.run(&count).ok().text(), "4\n");
    // Row groups without such rows are not read.
    let one = ["--json", "run", "filter", "--where", "id = 1000", "--count", "/tables/a.parquet"];
    let run = system.run(&one).ok().json();
    assert_eq!(run["jobs"][0]["exit"], "success", "{run}");
    let unknown = ["--json", "run", "filter", "--where", "none = 1", "/tables/a.parquet"];
    let failed: Value = serde_json::from_slice(&system.run(&unknown).stdout).expect("JSON");
    let job = failed["jobs"][0]["job"].as_str().expect("an id").to_owned();
    let log = system.run(&["job", "log", &job]).ok().text();
    assert!(log.contains("where: the table has no column none"), "{log}");
}

#[test]
fn rows_of_tables_are_one_table() {
    let system = start();
    let output = system.path("errors.parquet");
    let run = ["run", "filter", "--where", "status >= 400", "-o", text(&output), "/tables"];
    system.run(&run).ok();
    // Rows with a null are not selected.
    let expected: usize = (0..60).filter(|id| id % 4 >= 2 && id % 7 != 3).count() * 2;
    assert_eq!(count_of(&system, &output, "status >= 400"), expected.to_string());
    assert_eq!(count_of(&system, &output, "status is null or status < 400"), "0");
    let stored = ["run", "filter", "--where", "id < 5", "--to", "/few.parquet", "/tables"];
    system.run(&stored).ok();
    let lines = system.run(&["run", "filter", "--where", "id >= 0", "/few.parquet"]).ok().text();
    assert_eq!(lines.lines().count(), 10, "{lines}");
    // A table without rows is a valid one.
    let none = ["run", "filter", "--where", "id < 0", "-o", text(&output), "/tables"];
    system.run(&none).ok();
    assert_eq!(count_of(&system, &output, "id >= 0"), "0");
    // Other columns are refused, and nothing is stored.
    let projected = [
        "run",
        "filter",
        "--where",
        "id < 5",
        "--columns",
        "id",
        "--to",
        "/tables/c.parquet",
        "/few.parquet",
    ];
    system.run(&projected).ok();
    let mixed = ["run", "filter", "--where", "id < 5", "--to", "/mixed.parquet", "/tables"];
    let refused = system.run(&mixed);
    let reason = "/tables/c.parquet: its columns differ from those of the first file";
    assert!(refused.code == 1 && refused.stderr.contains(reason), "{}", refused.stderr);
    system.run(&["stat", "/mixed.parquet"]).fails(4);
    // A local table stays as it was.
    let before = std::fs::read(&output).expect("a table");
    let mixed = ["run", "filter", "--where", "id < 5", "-o", text(&output), "/tables"];
    let refused = system.run(&mixed);
    assert!(refused.code == 1 && refused.stderr.contains(reason), "{}", refused.stderr);
    let missing = ["run", "filter", "--where", "user.name = 'u1'", "-o", text(&output), "/tables"];
    let refused = system.run(&missing);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("the table is not written"), "{}", refused.stderr);
    assert_eq!(std::fs::read(&output).expect("a table"), before);
    let json = ["--json", "run", "filter", "--where", "id < 5", "--result-format", "parquet", "/tables"];
    system.run(&json).fails(2);
}

#[test]
fn striped_table_is_filtered_at_client() {
    let system = start();
    let part = system.path("part.parquet");
    let run = ["run", "filter", "--where", "id >= 0", "-o", text(&part), "/tables/a.parquet"];
    system.run(&run).ok();
    let part = std::fs::read(&part).expect("written");
    let copies = 1_000_000 / part.len();
    let large = system.path("large.parquet");
    let mut file = std::fs::File::create(&large).expect("created");
    join_parquet(&vec![part; copies], &mut file).expect("joined");
    system.run(&["put", text(&large), "/large.parquet"]).ok();
    assert!(is_striped(&system, "/large.parquet"));
    // The engine of the client translates the module first, which takes seconds.
    let filter = ["run", "filter", "--timeout", "10m", "/large.parquet", "--where"];
    let count = [&filter[..], &["id in (3, 4)", "--count"]].concat();
    let counted = system.run(&count).ok().says(&["the client reads 1 file", "needs whole files"]);
    assert_eq!(counted.text(), format!("{}\n", 2 * copies));
    let output = system.path("some.parquet");
    let run = [&filter[..], &["id = 7", "--json", "-o", text(&output)]].concat();
    let run = system.run(&run).ok().json();
    assert!(run["jobs"].as_array().expect("a list").iter().all(|job| job["code"] == -38), "{run}");
    assert_eq!(count_of(&system, &output, "user.name = 'u1'"), copies.to_string());
}
