//! The list of tests as a page of the documentation.

use std::fmt::Write as _;

use crate::suite::TESTS;

/// Returns the page: clauses and tests by area.
#[must_use]
pub fn page() -> String {
    let count: usize = TESTS.iter().map(|tests| tests.len()).sum();
    let mut text = format!(
        "# Conformance suite: clause to test\n\n\
         Generated from the table of tests in `tests/conformance`; a test fails when it is not current.\n\
         {count} behaviours. Each runs through a socket against any target:\n\n\
         ```\n\
         cargo run -p sealstone-conformance -- --target iscsi://HOST:PORT/IQN/LUN [--key FILE | --no-osd] [--block URL] [FILTER]\n\
         ```\n\n\
         Without `--target` (and in `make test`) the real device is started twice, secured and open. With a\n\
         key file a target is used under ALLDATA, otherwise under NOSEC. \"t10-osd\" is\n\
         [t10-osd.md](../design/t10-osd.md).\n"
    );
    for tests in TESTS {
        let Some(first) = tests.first() else { continue };
        let _ = writeln!(text, "\n## {}\n\n| clause | test | runs |\n|---|---|---|", first.area);
        for test in *tests {
            let _ = writeln!(text, "| {} | `test:{}` | {} |", test.clause, test.name, test.runs());
        }
    }
    text
}
