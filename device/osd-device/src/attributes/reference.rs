//! Generates `docs/reference/attributes.md` from the attribute table.
//!
//! `SEALSTONE_WRITE_DOCS=1 cargo test -p sealstone-osd-device attributes::reference` writes the
//! file.

use std::fmt::Write as _;
use std::path::PathBuf;

use sealstone_osd::attribute::{self, page};
use sealstone_osd::{AttributeId, Generation, ObjectType};

use super::rows::{self, AttributeRow, LengthRule, PageKind, ROWS, SetRule, ValueSource};

const HEAD: &str = "\
# Attributes

Every attribute that the device knows by itself; generated from its table
(`device/osd-device/src/attributes/rows.rs`), do not edit. Numbers are hexadecimal, lengths are
bytes. A number that is not here is undefined on these pages: its length is 0, and it cannot be set.
`docs/standards/osd.md` lists the attributes of the standard that this device lacks.

Besides these pages:

- Pages from offset 10000h of each type's range, and pages F0000000h to FFFFFFFDh on objects of any
  type, are the applications'. There can be any number; a value has 1 to 65534 bytes, all of one
  object 4 MiB. A value of no bytes removes the attribute. Attribute 0 identifies the page, in 40
  bytes: 8 for the vendor, 32 for the title.
- Page 0 of each range is the directory: attribute *n* is the name of page *n*, of pages that have
  something.
- Page FFFFFFFEh, Current Command, describes the running command.
- Pages C0000000h to EFFFFFFFh, and pages of another type of object, are refused.

";

/// Describes which values may be set.
fn access(set: SetRule) -> String {
    match set {
        SetRule::Never => "-".into(),
        SetRule::Stored => "yes".into(),
        SetRule::LogicalLength => "yes: truncates or extends".into(),
        SetRule::Method => "0 to 3, never weaker than allowed".into(),
        SetRule::NonceLimit(most) => format!("at most {most}"),
        SetRule::Isolation => "1, 2, 4, 5".into(),
        SetRule::OneOf(codes) => {
            let codes: Vec<_> = codes.iter().map(|code| format!("{code:X}h")).collect();
            codes.join(", ")
        }
        SetRule::Names => "pages and numbers, 8 bytes each".into(),
        SetRule::Profile => "0 to 5, while there are no objects; 2 and 3 only with --insecure-adhash".into(),
        SetRule::Clock => "24 h ahead, 54 s back".into(),
        #[allow(unreachable_patterns, reason = "what rows may say grows with the device")]
        other => format!("{other:?}"),
    }
}

/// Describes where the value comes from, or its default.
fn value(source: ValueSource) -> String {
    let text = |bytes: &[u8]| {
        let printable = !bytes.is_empty() && bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
        match bytes {
            [] => "undefined".into(),
            _ if printable && bytes.len() > 3 => format!("`{}`", String::from_utf8_lossy(bytes)),
            [0xFF, rest @ ..] if rest.iter().all(|&byte| byte == 0xFF) => "all ones".into(),
            _ => {
                let digits = bytes.iter().fold(String::new(), |mut all, byte| {
                    let _ = write!(all, "{byte:02X}");
                    all
                });
                match digits.trim_start_matches('0') {
                    "" => "0".into(),
                    _ if bytes.len() > 8 => format!("{}h, then zeros", digits.trim_end_matches('0')),
                    short => format!("{short}h"),
                }
            }
        }
    };
    match source {
        ValueSource::Fixed(bytes) => text(bytes),
        ValueSource::Stored(bytes) => format!("stored; at first {}", text(bytes)),
        ValueSource::Live(live) => words(&format!("{live:?}")),
    }
}

/// Converts `UsedCapacity` to "used capacity".
fn words(name: &str) -> String {
    name.chars().fold(String::new(), |mut all, letter| {
        if letter.is_uppercase() && !all.is_empty() {
            all.push(' ');
        }
        all.extend(letter.to_lowercase());
        all
    })
}

fn length(length: LengthRule) -> String {
    match length {
        LengthRule::Exactly(bytes) => format!("{bytes}"),
        LengthRule::AtMost(bytes) => format!("0-{bytes}"),
    }
}

/// Returns the names of pages that are specific to this device.
fn own_name(page: u32) -> String {
    let identification = [ObjectType::Root, ObjectType::Partition, ObjectType::Collection, ObjectType::User]
        .into_iter()
        .find(|&kind| rows::sort_page(kind, page) == PageKind::Own)
        .and_then(|kind| rows::identification(kind, page));
    let bytes = identification.expect("every own page names itself");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches(['\0', ' ']).to_owned();
    format!("{} {}", text(&bytes[..8]), text(&bytes[8..]))
}

fn line(row: &AttributeRow) -> String {
    let name_of = |number| attribute::standard(AttributeId::new(row.page, number)).map_or("", |row| row.name);
    let name = match (name_of(row.first), name_of(row.last)) {
        (first, last) if first == last => first.to_owned(),
        (first, last) => format!("{first}; {last}"),
    };
    let numbers = if row.first == row.last {
        format!("{:X}", row.first)
    } else {
        format!("{:X}-{:X}", row.first, row.last)
    };
    let (length, set, value) = (length(row.length), access(row.set), value(row.source));
    format!("| {numbers} | {length} | {set} | {value} | {name} |\n")
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    for rows in ROWS {
        let AttributeRow { kind, page, .. } = rows[0];
        let _ = write!(text, "## {page:08X} {}\n\n{kind:?}. ", own_name(page));
        let lengths = [Generation::Osd1, Generation::Osd2]
            .map(|generation| page::layout(generation, page).map(|layout| layout.length));
        let _ = match lengths {
            [Some(one), Some(two)] if one == two => write!(text, "Page format: {one:X}h bytes.\n\n"),
            [Some(one), Some(two)] => {
                write!(text, "Page format: {one:X}h bytes in OSD-1, {two:X}h in OSD-2.\n\n")
            }
            _ => write!(text, "No page format of fixed length.\n\n"),
        };
        text.push_str("| number | length | settable | value | what |\n|---|---|---|---|---|\n");
        rows.iter().for_each(|row| text.push_str(&line(row)));
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[test]
fn attribute_reference_matches_table() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/reference/attributes.md"].iter().collect();
    let document = document();
    if std::env::var_os("SEALSTONE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).expect("the folder exists");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == document, "out of date: run this test with SEALSTONE_WRITE_DOCS=1");
}
