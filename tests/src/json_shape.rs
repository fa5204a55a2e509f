//! Checks JSON lines of the command line against the tables of docs/reference/json.md.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

const REFERENCE: &str = include_str!("../../docs/reference/json.md");

/// A field of a table: its name, whether it can be absent, and the object that it or its elements
/// are.
#[derive(Debug)]
struct Field {
    name: String,
    optional: bool,
    object: Option<String>,
}

/// The fields of a command or object.
type Form = Vec<Field>;

/// Forms by the name of a command or object. A command with several rows has several.
fn shapes() -> &'static BTreeMap<String, Vec<Form>> {
    static SHAPES: OnceLock<BTreeMap<String, Vec<Form>>> = OnceLock::new();
    SHAPES.get_or_init(|| {
        let mut shapes: BTreeMap<String, Vec<Form>> = BTreeMap::new();
        let tables = REFERENCE.split_once("\n## Commands\n").expect("has the section").1;
        for line in tables.lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [names, fields] = cells[..] else { panic!("two columns: {line}") };
            if !fields.starts_with('`') {
                continue;
            }
            for name in names.split(", ") {
                // Words after the quoted name distinguish the rows of a command.
                let name = name.split('`').nth(1).unwrap_or(name);
                shapes.entry(name.to_owned()).or_default().push(fields.split(", ").map(field).collect());
            }
        }
        shapes
    })
}

fn field(text: &str) -> Field {
    let (name, object) = text.split_once(": ").map_or((text, None), |(name, object)| (name, Some(object)));
    let name = name.trim_matches('`');
    Field {
        name: name.trim_end_matches('?').to_owned(),
        optional: name.ends_with('?'),
        object: object.map(|object| object.trim_start_matches("list of ").to_owned()),
    }
}

/// Fails the test unless a line of the command line has the documented fields.
#[track_caller]
pub(crate) fn check(line: &Value) {
    assert_eq!(line["schema_version"], 1, "{line}");
    let command = line["command"].as_str().unwrap_or_else(|| panic!("a command: {line}"));
    let fields = line.as_object().expect("an object");
    if let Some(error) = fields.get("error") {
        return check_object("error", error);
    }
    let forms = shapes().get(command).unwrap_or_else(|| panic!("'{command}' is not documented: {line}"));
    check_fields(forms, fields, line);
}

#[track_caller]
fn check_object(name: &str, value: &Value) {
    match value {
        Value::Array(list) => list.iter().for_each(|one| check_object(name, one)),
        Value::Object(fields) => {
            if let Some(forms) = shapes().get(name) {
                check_fields(forms, fields, value);
            }
        }
        Value::Null => {}
        other => panic!("{name} is an object: {other}"),
    }
}

#[track_caller]
fn check_fields(forms: &[Form], fields: &serde_json::Map<String, Value>, whole: &Value) {
    let unknown = |form: &Form| fields.keys().find(|name| !is_known(form, name));
    let Some(form) = forms.iter().find(|form| unknown(form).is_none()) else {
        let names: Vec<_> = forms.iter().filter_map(unknown).collect();
        panic!("{names:?}: not documented: {whole}");
    };
    for field in form {
        match fields.get(&field.name) {
            None => assert!(field.optional, "'{}' is missing in {whole}", field.name),
            Some(value) => {
                if let Some(object) = &field.object {
                    check_object(object, value);
                }
            }
        }
    }
}

fn is_known(form: &Form, name: &str) -> bool {
    let plain = name.strip_suffix("_base64").unwrap_or(name);
    matches!(plain, "schema_version" | "command") || form.iter().any(|field| field.name == plain)
}
