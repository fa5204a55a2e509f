//! The list of tests in the documentation is current.

use std::collections::BTreeSet;
use std::path::Path;

use sealstone_conformance::{TESTS, page};

/// `SEALSTONE_BLESS=1` rewrites the page.
#[test]
fn the_page_of_the_documentation_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/standards/conformance.md");
    if std::env::var_os("SEALSTONE_BLESS").is_some() {
        std::fs::write(&path, page()).expect("the page can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page(),
        "docs/standards/conformance.md: SEALSTONE_BLESS=1 cargo test -p sealstone-conformance --test page"
    );
}

#[test]
fn tests_have_clauses_and_unique_names() {
    let mut names = BTreeSet::new();
    for test in TESTS.iter().copied().flatten() {
        assert!(!test.clause.is_empty() && !test.area.is_empty(), "{}", test.name);
        assert!(names.insert(test.name), "{} twice", test.name);
    }
    assert!(names.len() > 100, "{}", names.len());
}
