//! Tables and wrapped lines of text.

/// Width of a terminal, columns.
const LINE_COLUMNS: usize = 80;

/// Aligns rows of text; each column but the last is as wide as its longest field.
#[must_use]
pub fn columns<const N: usize>(rows: &[[String; N]], right: [bool; N]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let text = |row: &[String; N]| {
        let mut text = String::new();
        for (at, field) in row.iter().enumerate() {
            let width = widths[at];
            text += &if right[at] { format!("{field:>width$}  ") } else { format!("{field:width$}  ") };
        }
        text.trim_end().to_owned()
    };
    rows.iter().map(text).collect::<Vec<_>>().join("\n")
}

/// Wraps a line at blanks to the width of a terminal; further lines are indented. A longer word is
/// not broken.
#[must_use]
pub fn wrap(line: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut rest = line;
    let mut width = LINE_COLUMNS;
    loop {
        let fits = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        if fits == rest.len() {
            return out + rest;
        }
        let start = if out.is_empty() { indent.min(rest.len()) } else { 0 };
        let found = rest.get(..=fits).unwrap_or(rest).rfind(' ').filter(|at| *at > start);
        let found = found.or_else(|| rest.get(fits..)?.find(' ').map(|at| at + fits));
        let Some(at) = found else { return out + rest };
        out += &rest[..at];
        out += "\n";
        out += &" ".repeat(indent);
        rest = rest[at..].trim_start();
        width = LINE_COLUMNS.saturating_sub(indent).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_blanks() {
        let line = format!("    path  {} b", "a ".repeat(60));
        let text = wrap(&line, 10);
        assert!(text.lines().all(|line| line.chars().count() <= LINE_COLUMNS), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("          ")), "{text}");
        assert_eq!(wrap("short", 10), "short");
        let word = format!("    path  {}", "x".repeat(100));
        assert_eq!(wrap(&word, 10), word);
    }

    #[test]
    fn columns_are_as_wide_as_their_fields() {
        let rows = [["A", "B", "C"], ["long name", "1", "x"]].map(|row| row.map(ToOwned::to_owned));
        assert_eq!(columns(&rows, [false, true, false]), "A          B  C\nlong name  1  x");
    }
}
