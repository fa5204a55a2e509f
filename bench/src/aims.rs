//! Lists all targets of a full run, from the files that its parts wrote.
//!
//! Does: reads the results of `run` and of the store's examples, and compares them with the
//! targets.
//! Does not: measure; report failures by its exit code. A part without a file is listed as not
//! measured.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Outcome;
use crate::targets::Verdict;
use crate::trust;

/// Durable 4 KiB writes: minimum rate of sixteen writers relative to one.
const GROUP_RATIO_MIN: f64 = 8.0;
/// Sequential writes to the store: minimum rate relative to an equally durable plain file.
const SEQUENTIAL_RATIO_MIN: f64 = 0.8;
/// Objects in the store of the open test.
const OBJECTS: u64 = 1_000_000;
/// Maximum time to open it, in seconds.
const OPEN_S_MAX: f64 = 2.0;
/// Maximum memory of it, in KiB.
const OPEN_KIB_MAX: u64 = 512 << 10;

/// Files of the parts, in the folder of a run.
pub(crate) const METHODS: &str = "figures.json";
pub(crate) const ALGORITHMS: &str = "algorithms.json";
const READS: &str = "reads.json";
const DURABLE: &str = "durable.json";
const OPEN: &str = "open.json";
const TRUST: &str = "trust.json";
const ROTATION: &str = "rotation.json";
pub(crate) const LOGINS: &str = "logins.json";
const FILES: &str = "files.json";
const ACTIVE: &str = "active.json";
const LAZY: &str = "lazy.json";

/// Prints the list, and writes it to `aims.json` beside the other files.
pub(crate) fn run(folder: &Path) -> Outcome {
    let mut verdicts = Vec::new();
    let mut missing = Vec::new();
    let mut part = |name: &str, of: fn(&str) -> Outcome<Vec<Verdict>>| -> Outcome {
        match fs::read_to_string(folder.join(name)) {
            Ok(text) => verdicts.extend(of(&text).map_err(|error| format!("{name}: {error}"))?),
            Err(_) => missing.push(format!("{} does not exist", folder.join(name).display())),
        }
        Ok(())
    };
    part(METHODS, of_run)?;
    part(ALGORITHMS, of_run)?;
    part(READS, of_reads)?;
    part(DURABLE, of_durable)?;
    part(OPEN, of_open)?;
    part(TRUST, trust::own_verdicts)?;
    part(ROTATION, trust::rotation_verdicts)?;
    part(LOGINS, trust::login_verdicts)?;
    part(FILES, of_run)?;
    part(ACTIVE, of_run)?;
    part(LAZY, of_run)?;
    for name in [ACTIVE, LAZY] {
        if let Ok(text) = fs::read_to_string(folder.join(name)) {
            missing.extend(left_out_rows(&text)?);
        }
    }
    fs::write(folder.join("aims.json"), serde_json::to_vec_pretty(&verdicts)?)?;
    for verdict in &verdicts {
        println!("{}", verdict.line(66));
    }
    for name in missing {
        println!("not measured: {name}");
    }
    Ok(())
}

/// Returns the rows of tables that a run could not measure, with the reasons.
fn left_out_rows(text: &str) -> Outcome<Vec<String>> {
    let findings: Value = serde_json::from_str(text)?;
    let tables = findings["tables"].as_array().into_iter().flatten();
    let rows = tables.flat_map(|table| table["left_out"].as_array().into_iter().flatten());
    Ok(rows.filter_map(|row| row.as_str().map(str::to_owned)).collect())
}

/// Returns the verdicts of a run; targets without workloads are omitted.
fn of_run(text: &str) -> Outcome<Vec<Verdict>> {
    let findings: Value = serde_json::from_str(text)?;
    let algorithms = findings["settings"]["contenders"].as_array().is_some_and(|names| names.len() > 5);
    let verdicts = findings["verdicts"].as_array().ok_or("no verdicts")?;
    let word = |verdict: &Value, key: &str| verdict[key].as_str().unwrap_or_default().to_owned();
    Ok(verdicts
        .iter()
        .map(|verdict| Verdict {
            aim: word(verdict, "aim") + if algorithms { " (by algorithm)" } else { "" },
            reached: verdict["reached"].as_bool().unwrap_or(false),
            measured: word(verdict, "measured"),
        })
        // Starts and idle memory are listed once.
        .filter(|verdict| !algorithms || verdict.aim.starts_with("ALLDATA"))
        .collect())
}

/// Returns the verdicts that only the reads with a hashing client give.
fn of_reads(text: &str) -> Outcome<Vec<Verdict>> {
    let mut verdicts = of_run(text)?;
    verdicts.retain(|verdict| verdict.aim.contains("client hashes"));
    Ok(verdicts)
}

fn of_durable(text: &str) -> Outcome<Vec<Verdict>> {
    let found: Value = serde_json::from_str(text)?;
    let mut verdicts = Vec::new();
    for (kind, of) in found.as_object().ok_or("no object")? {
        let writers = &of["durable_4k_writes_per_s"];
        let ratio = writers["ratio"].as_f64().ok_or("no ratio of writers")?;
        verdicts.push(Verdict {
            aim: format!("{kind}: 16 writers of durable 4 KiB: 8 times the rate of one"),
            reached: ratio >= GROUP_RATIO_MIN,
            measured: format!("{ratio:.1} times; {} and {} a second", writers["one"], writers["sixteen"]),
        });
        for (name, rates) in of["sequential_mib_per_s"].as_object().ok_or("no sequential writes")? {
            let ratio = rates["ratio"].as_f64().ok_or("no ratio of sequential writes")?;
            verdicts.push(Verdict {
                aim: format!("{kind}: sequential writes, {name}: 80 % of a plain file's"),
                reached: ratio >= SEQUENTIAL_RATIO_MIN,
                measured: format!("{:.0} %; {} and {} MiB/s", 100.0 * ratio, rates["store"], rates["plain"]),
            });
        }
    }
    Ok(verdicts)
}

fn of_open(text: &str) -> Outcome<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let opened: Value = serde_json::from_str(line)?;
        let number = |key: &str| opened[key].as_u64().ok_or(format!("no {key}"));
        let (objects, peak_kib) = (number("objects")?, number("peak_kib")?);
        let seconds = opened["seconds"].as_f64().ok_or("no seconds")?;
        let how = opened["opened"].as_str().unwrap_or_default();
        verdicts.push(Verdict {
            aim: format!("{objects} objects, opened {how}: under 2 s and 512 MiB"),
            reached: objects >= OBJECTS && seconds < OPEN_S_MAX && peak_kib < OPEN_KIB_MAX,
            measured: format!("{seconds:.2} s, {:.1} MiB", peak_kib as f64 / 1024.0),
        });
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_goals_parse_from_example_output() {
        let durable = r#"{"files":{"durable_4k_writes_per_s":{"one":81,"sixteen":600,"ratio":7.41,"ratios":[7.41]},
            "sequential_mib_per_s":{"new":{"store":800,"plain":1000,"ratio":0.80,"ratios":[0.8]}}}}"#;
        let verdicts = of_durable(durable).unwrap();
        assert_eq!(verdicts.iter().map(|verdict| verdict.reached).collect::<Vec<_>>(), [false, true]);
        let open = "{\"opened\":\"after a kill\",\"seconds\":2.5,\"objects\":1000000,\"peak_kib\":20480}\n\
                    {\"opened\":\"after closing\",\"seconds\":1.5,\"objects\":1000000,\"peak_kib\":20480}\n";
        let verdicts = of_open(open).unwrap();
        assert_eq!(verdicts.iter().map(|verdict| verdict.reached).collect::<Vec<_>>(), [false, true]);
        assert!(verdicts[1].measured.contains("20.0 MiB"), "{verdicts:?}");
    }

    #[test]
    fn rows_that_were_left_out_are_listed() {
        let active = r#"{"verdicts":[],"tables":[{"left_out":[]},{"left_out":["Java: no JDK"]}]}"#;
        assert_eq!(left_out_rows(active).unwrap(), ["Java: no JDK"]);
        assert!(left_out_rows("{}").unwrap().is_empty());
    }

    #[test]
    fn missing_parts_are_allowed_and_broken_ones_fail() {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path()).unwrap();
        fs::write(folder.path().join(DURABLE), "{").unwrap();
        assert!(run(folder.path()).unwrap_err().to_string().contains(DURABLE));
    }
}
