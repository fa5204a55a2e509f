//! Checks that `docs/standards/osd.md` shows the rows of the code.

use std::fmt::Write as _;

use sealstone_osd::Generation;
use sealstone_osd::attribute::{Access, Length, STANDARD};
use sealstone_osd::table::SERVICE_ACTIONS;

const DOCUMENT: &str = include_str!("../../../docs/standards/osd.md");

/// One line per row; a missing line is printed, to be added to the document.
fn missing(rows: impl Iterator<Item = String>) -> String {
    rows.filter(|row| !DOCUMENT.contains(row.as_str())).fold(String::new(), |mut all, row| {
        let _ = writeln!(all, "{row}");
        all
    })
}

#[test]
fn every_service_action_is_documented_as_it_is() {
    let rows = SERVICE_ACTIONS.iter().map(|row| {
        let code = |generation| row.code(generation).map_or("-".into(), |code| format!("{code:04X}"));
        let deep = if row.deep_permissions.is_empty() {
            String::new()
        } else {
            format!(" (deep: {})", row.deep_permissions)
        };
        format!(
            "| {} | {} | {} | {:?} | {:?} | {}{deep} | {:?} | {:?} | {:?} |",
            row.name,
            code(Generation::Osd1),
            code(Generation::Osd2),
            row.support,
            row.objects,
            row.permissions,
            row.transfer,
            row.continuation,
            row.bytes,
        )
    });
    let missing = missing(rows);
    assert!(missing.is_empty(), "lines missing:\n{missing}");
}

#[test]
fn every_standard_attribute_is_documented_as_it_is() {
    let rows = STANDARD.iter().map(|row| {
        let numbers = if row.last == row.id.number {
            format!("{:X}", row.last)
        } else {
            format!("{:X}-{:X}", row.id.number, row.last)
        };
        let length = match row.length {
            Length::Fixed(bytes) => format!("{bytes}"),
            Length::Optional(bytes) => format!("0,{bytes}"),
            Length::Variable => "any".into(),
        };
        let access = match row.access {
            Access::ReadOnly => "device",
            Access::Settable => "anybody",
        };
        format!("| {:08X} | {numbers} | {length} | {access} | {} |", row.id.page, row.name)
    });
    let missing = missing(rows);
    assert!(missing.is_empty(), "lines missing:\n{missing}");
}
