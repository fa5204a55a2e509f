//! The page of ways through the code: each row names a file and a function in it.
//!
//! Does: compares the rows with the sources.
//! Does not: check the order of the calls.
//! Truth: `docs/design/walks.md`.

use std::fs;

/// The page.
const PAGE: &str = "docs/design/walks.md";

/// Reports rows whose file does not have the function.
pub(crate) fn check(findings: &mut Vec<String>) {
    let Ok(text) = fs::read_to_string(PAGE) else {
        findings.push(format!("{PAGE}: cannot be read"));
        return;
    };
    findings.extend(unfounded(&text, |file| fs::read_to_string(file).unwrap_or_default()));
}

/// Returns a finding for each row whose file, read by `source`, does not have the function, and one
/// if there are no rows.
fn unfounded(page: &str, source: impl Fn(&str) -> String) -> Vec<String> {
    let rows: Vec<(usize, &str, &str)> = page
        .lines()
        .enumerate()
        .filter_map(|(at, line)| row(line).map(|(file, name)| (at, file, name)))
        .collect();
    if rows.is_empty() {
        return vec![format!("{PAGE}: no rows of a file and a function")];
    }
    let finding = |(at, file, name): (usize, &str, &str)| {
        let text = source(file);
        let declared = ["(", "<"].iter().any(|next| text.contains(&format!("fn {name}{next}")));
        (!declared).then(|| format!("{PAGE}:{}: {file} has no function {name}", at + 1))
    };
    rows.into_iter().filter_map(finding).collect()
}

/// Returns file and function of a row of a table; none of other lines.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let mut quoted = || cells.next()?.trim().strip_prefix('`')?.strip_suffix('`');
    let (file, name) = (quoted()?, quoted()?);
    file.ends_with(".rs").then_some((file, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_without_its_function_is_found() {
        let page =
            "| file | function | what |\n|---|---|---|\n| `a.rs` | `put` | x |\n| `a.rs` | `pu` | x |\n";
        let source = |file: &str| if file == "a.rs" { "pub fn put<T>()".to_owned() } else { String::new() };
        assert_eq!(unfounded(page, source), [format!("{PAGE}:4: a.rs has no function pu")]);
        assert_eq!(unfounded("text", source).len(), 1);
    }
}
