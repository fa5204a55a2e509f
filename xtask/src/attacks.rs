//! Checks the table of attacks on the login against the tests.
//!
//! Contract of the page: a table of places (`| X | path |`), and rows
//! `| number | attack | X name in backquotes, … | log | answer |`. Each named test exists; each
//! verdict in backquotes occurs in a test of its row.

use std::collections::BTreeMap;
use std::fs;

const PAGE: &str = "docs/standards/login-attacks.md";
/// Minimum number of rows.
const ROWS_MIN: usize = 80;

/// Returns the findings of the page.
pub(crate) fn check(findings: &mut Vec<String>) {
    match fs::read_to_string(PAGE) {
        Ok(page) => check_page(&page, |path| fs::read_to_string(path).ok(), findings),
        Err(error) => findings.push(format!("{PAGE}: {error}")),
    }
}

fn check_page(page: &str, read: impl Fn(&str) -> Option<String>, findings: &mut Vec<String>) {
    let mut places: BTreeMap<&str, String> = BTreeMap::new();
    let mut rows = 0;
    for (number, line) in page.lines().enumerate() {
        let mut found = |text: String| findings.push(format!("{PAGE}:{}: {text}", number + 1));
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [letter, path] = cells[..]
            && letter.len() == 1
        {
            match read(path.trim_matches('`')) {
                Some(source) => drop(places.insert(letter, source)),
                None => found(format!("no file {path}")),
            }
        }
        let [row, _, tests, log, _] = cells[..] else { continue };
        let Ok(row) = row.parse::<usize>() else { continue };
        rows += 1;
        if row != rows {
            found(format!("row {row} where {rows} belongs"));
        }
        let mut bodies = Vec::new();
        for test in tests.split(", ") {
            let body = test.split_once(' ').and_then(|(letter, name)| {
                let name = name.strip_prefix('`')?.strip_suffix('`')?;
                body_of(places.get(letter)?, name)
            });
            match body {
                Some(body) => bodies.push(body),
                None => found(format!("no test {test}")),
            }
        }
        // Metrics are not verdicts.
        for verdict in log.split('`').skip(1).step_by(2).filter(|word| !word.ends_with("_total")) {
            if !bodies.iter().any(|body| body.contains(&format!("{verdict}\""))) {
                found(format!("no test of this row looks for the verdict {verdict}"));
            }
        }
    }
    if rows < ROWS_MIN {
        findings.push(format!("{PAGE}: {rows} rows; at least {ROWS_MIN}"));
    }
}

/// Returns the body of a test: from its name to the brace in the column of its first line.
fn body_of<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let at = source.find(&format!("fn {name}("))?;
    let line = source[..at].rfind('\n').map_or(0, |end| end + 1);
    let before: Vec<&str> = source[..line].lines().rev().take(3).collect();
    if !before.iter().any(|line| line.contains("#[test]") || line.contains("#[tokio::test")) {
        return None;
    }
    let indent: String = source[line..].chars().take_while(|c| *c == ' ').collect();
    let end = source[at..].find(&format!("\n{indent}}}\n"))?;
    Some(&source[at..at + end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn one() {\n    refused(\"late\");\n}\n\nfn none() {\n}\n";

    fn findings(row: &str) -> Vec<String> {
        let page = format!("| X | `there.rs` |\n{row}\n");
        let mut findings = Vec::new();
        check_page(&page, |path| (path == "there.rs").then(|| SOURCE.to_owned()), &mut findings);
        // The page is too short, which is said last.
        findings.pop();
        findings
    }

    #[test]
    fn a_row_with_its_test_and_verdict_is_in_order() {
        assert!(findings("| 1 | a | X `one` | `late` | 9 |").is_empty());
        assert!(findings("| 1 | a | X `one` | counted (`x_total`) | 9 |").is_empty());
    }

    #[test]
    fn a_row_without_them_is_found() {
        for row in [
            "| 1 | a | X `two` | – | 9 |",
            "| 1 | a | X `none` | – | 9 |",
            "| 1 | a | Y `one` | – | 9 |",
            "| 1 | a | same | – | 9 |",
            "| 1 | a | X `one` | `early` | 9 |",
            "| 2 | a | X `one` | – | 9 |",
        ] {
            assert_eq!(findings(row).len(), 1, "{row}");
        }
    }
}
