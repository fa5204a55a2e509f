//! Rules that neither the compiler nor clippy knows: sizes of files, order and names of crates,
//! cycles of modules, reasons of dependencies, test files in a program, and names and paths in
//! documentation that must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{attacks, cycles, language, walks};

/// Crates that do no I/O and read no clock; each is `no_std`.
pub(crate) const PURE_CRATES: &[&str] = &[
    "sealstone-scsi",
    "sealstone-osd",
    "sealstone-iscsi",
    "sealstone-mds-protocol",
    "sealstone-ldap",
    "sealstone-sntp",
    "sealstone-digest",
    "sealstone-block-protection",
    "sealstone-block-e2e",
    "sealstone-seal",
    "sealstone-login",
    "sealstone-crypto",
    "sealstone-function-abi",
    "sealstone-function-host",
    "sealstone-wasm-module",
    "sealstone-java-archive",
];

/// Folders of crates that need unsafe code. Each has the lints of the workspace, but denies unsafe
/// code instead of forbidding it, so that single modules can allow it with a reason.
const UNSAFE_CRATES: &[&str] = &[
    "security/sandbox",
    "active/function-ring",
    "active/engine-c",
    "active/engine-java",
    "active/engine-python",
    "active/fn",
    "active/function-modules",
    "active/function-formats",
];

/// Maximum number of lines of a file.
const LINES_PER_FILE_MAX: usize = 800;
/// Refuses binaries and captures.
const BYTES_PER_FILE_MAX: u64 = 512 * 1024;

pub(crate) fn run() -> Result<String, Vec<String>> {
    let mut findings = Vec::new();
    let files = tracked_files().map_err(|error| vec![error])?;
    for file in &files {
        check_file(file, &mut findings);
    }
    match members() {
        Ok(members) => {
            check_crates(&members, &mut findings);
            check_test_modules(&members, &mut findings);
        }
        Err(error) => findings.push(error),
    }
    check_reasons(&mut findings);
    check_names(&files, &mut findings);
    check_paths(&files, &mut findings);
    attacks::check(&mut findings);
    walks::check(&mut findings);
    match areas() {
        Ok(areas) => {
            language::check(&files, &areas, &mut findings);
            cycles::check(&areas, &files, &mut findings);
        }
        Err(error) => findings.push(error),
    }
    if findings.is_empty() { Ok(format!("tidy: {} files in order", files.len())) } else { Err(findings) }
}

/// Runs the language ratchet alone.
pub(crate) fn language(lower: bool) -> Result<String, Vec<String>> {
    let files = tracked_files().map_err(|error| vec![error])?;
    let areas = areas().map_err(|error| vec![error])?;
    language::run(&files, &areas, lower)
}

/// Runs the check of module cycles alone.
pub(crate) fn cycles(lower: bool) -> Result<String, Vec<String>> {
    let files = tracked_files().map_err(|error| vec![error])?;
    let areas = areas().map_err(|error| vec![error])?;
    cycles::run(&areas, &files, lower)
}

/// Returns the folders of all crates.
fn areas() -> Result<Vec<String>, String> {
    Ok(members()?.into_iter().map(|(folder, _)| folder).collect())
}

fn tracked_files() -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("tidy: cannot run git: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .collect())
}

fn check_file(path: &Path, findings: &mut Vec<String>) {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > BYTES_PER_FILE_MAX && !path.ends_with("Cargo.lock") => {
            findings.push(format!("{shown}: {} bytes; at most {BYTES_PER_FILE_MAX}", metadata.len()));
        }
        _ => {}
    }
    let Ok(text) = fs::read_to_string(path) else { return };
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') && extension != "json" {
        findings.push(format!("{shown}: does not end with a newline"));
    }
    if extension != "rs" {
        return;
    }
    let lines = text.lines().count();
    if lines > LINES_PER_FILE_MAX {
        findings
            .push(format!("{shown}: {lines} lines; at most {LINES_PER_FILE_MAX}: look for the missing noun"));
    }
    let is_crate_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    if is_crate_root && !text.starts_with("//!") {
        findings.push(format!("{shown}: a crate opens with what it does"));
    }
    for (number, line) in text.lines().enumerate() {
        // In two parts, so that this file does not contain the marker.
        for marker in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")] {
            if line.contains(marker) {
                findings.push(format!("{shown}:{}: {marker}: finish it or take it out", number + 1));
            }
        }
        if line.contains(concat!("#[", "ignore")) {
            findings.push(format!("{shown}:{}: an ignored test promises nothing", number + 1));
        }
    }
}

/// Folder and manifest of each member, in the order of the workspace manifest.
fn members() -> Result<Vec<(String, toml::Table)>, String> {
    let manifest = read_toml(Path::new("Cargo.toml"))?;
    let list = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("members"))
        .and_then(toml::Value::as_array)
        .ok_or("Cargo.toml: no workspace members")?;
    list.iter()
        .filter_map(toml::Value::as_str)
        .map(|folder| Ok((folder.to_owned(), read_toml(&Path::new(folder).join("Cargo.toml"))?)))
        .collect()
}

fn read_toml(path: &Path) -> Result<toml::Table, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse().map_err(|error| format!("{}: {error}", path.display()))
}

/// Finds test files that no program contains, which cargo ignores where `autotests` is off.
fn check_test_modules(members: &[(String, toml::Table)], findings: &mut Vec<String>) {
    for (folder, _) in members {
        let tests = Path::new(folder).join("tests");
        let Ok(root) = fs::read_to_string(tests.join("main.rs")) else { continue };
        let Ok(entries) = fs::read_dir(&tests) else { continue };
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_owned()))
            .filter(|name| name != "main")
            .collect();
        names.sort();
        findings.extend(
            unnamed_modules(&root, &names)
                .into_iter()
                .map(|name| format!("{}/main.rs: no `mod {name};`: its tests never run", tests.display())),
        );
    }
}

/// Returns the names that a program's root does not declare as modules.
fn unnamed_modules<'a>(root: &str, names: &'a [String]) -> Vec<&'a str> {
    let is_declared = |name: &str| root.lines().any(|line| line.trim() == format!("mod {name};"));
    names.iter().map(String::as_str).filter(|name| !is_declared(name)).collect()
}

/// A crate uses only crates above it on the map; versions and lints come from the workspace.
fn check_crates(members: &[(String, toml::Table)], findings: &mut Vec<String>) {
    let name_of = |manifest: &toml::Table| -> String {
        manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(toml::Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let place: BTreeMap<String, usize> =
        members.iter().enumerate().map(|(index, (_, manifest))| (name_of(manifest), index)).collect();
    let workspace_lints = read_toml(Path::new("Cargo.toml"))
        .ok()
        .and_then(|manifest| Some(manifest.get("workspace")?.get("lints")?.as_table()?.clone()));
    for (index, (folder, manifest)) in members.iter().enumerate() {
        let name = name_of(manifest);
        if !is_named_after_folder(&name, folder) {
            findings.push(format!("{folder}/Cargo.toml: {name} is not named after its folder"));
        }
        if UNSAFE_CRATES.contains(&folder.as_str()) {
            if !has_lints_that_deny_unsafe(manifest, workspace_lints.as_ref()) {
                findings
                    .push(format!("{folder}/Cargo.toml: lints differ in more than `unsafe_code = \"deny\"`"));
            }
        } else if manifest.get("lints").and_then(|lints| lints.get("workspace")).is_none() {
            findings.push(format!("{folder}/Cargo.toml: lacks `[lints] workspace = true`"));
        }
        let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
            continue;
        };
        for (dependency, specification) in dependencies {
            let from_workspace = specification.get("workspace").and_then(toml::Value::as_bool) == Some(true);
            if !from_workspace {
                findings.push(format!("{folder}/Cargo.toml: {dependency} is not taken from the workspace"));
            }
            // For instance, the seal crate is above the crypto crate that implements its provider.
            if place.get(dependency).is_some_and(|&other| other > index) {
                findings
                    .push(format!("{folder}/Cargo.toml: {name} uses {dependency}, which stands below it"));
            }
        }
        let root = Path::new(folder).join("src/lib.rs");
        if PURE_CRATES.contains(&name.as_str()) {
            let text = fs::read_to_string(&root).unwrap_or_default();
            if !text.contains("#![no_std]") {
                findings.push(format!("{}: a pure crate is no_std", root.display()));
            }
        }
    }
}

/// Whether a crate has the lints of the workspace, or these with `unsafe_code = "deny"`.
fn has_lints_that_deny_unsafe(manifest: &toml::Table, workspace: Option<&toml::Table>) -> bool {
    let (Some(workspace), Some(own)) = (workspace, manifest.get("lints").and_then(toml::Value::as_table))
    else {
        return false;
    };
    let mut expected = workspace.clone();
    if let Some(rust) = expected.get_mut("rust").and_then(toml::Value::as_table_mut) {
        rust.insert("unsafe_code".to_owned(), "deny".into());
    }
    own.get("workspace").is_some() || *own == expected
}

/// Whether a crate has the name of its folder, with or without the name of the project before it.
fn is_named_after_folder(name: &str, folder: &str) -> bool {
    let last = folder.rsplit('/').next().unwrap_or(folder);
    last != "target" && name.strip_prefix("sealstone-").unwrap_or(name) == last
}

/// Each dependency of the workspace has its reason on the line above it.
fn check_reasons(findings: &mut Vec<String>) {
    let text = fs::read_to_string("Cargo.toml").unwrap_or_default();
    let Some(section) = text.split("[workspace.dependencies]").nth(1) else { return };
    let section = section.split("\n[").next().unwrap_or_default();
    let mut reasoned = false;
    for line in section.lines() {
        if line.trim().is_empty() {
            reasoned = false;
        } else if line.starts_with('#') {
            reasoned = true;
        } else if line.contains(" = ") && !line.contains("path = ") && !reasoned {
            let name = line.split(" = ").next().unwrap_or_default();
            findings.push(format!("Cargo.toml: {name} has no reason beside it"));
        }
    }
}

/// Checks that names in the documentation exist: tests (`test: name`, `module::name`, `name` of
/// four words and more; `…` stands for any rest), keys, metrics and fields.
fn check_names(files: &[PathBuf], findings: &mut Vec<String>) {
    let mut words = BTreeSet::new();
    for file in files {
        // A name must exist outside of the documentation.
        if is_markdown(file) {
            continue;
        }
        words.insert(file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned());
        let text = fs::read_to_string(file).unwrap_or_default();
        words.extend(
            text.split(|c: char| !is_of_a_word(c)).filter(|word| !word.is_empty()).map(str::to_owned),
        );
    }
    for file in files.iter().filter(|file| file.starts_with("docs") && is_markdown(file)) {
        // Design pages and ADRs also name parts of other systems, and refused options.
        if file.starts_with("docs/design") || file.starts_with("docs/adr") {
            continue;
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2).filter(|quoted| !is_known(quoted, &words)) {
                findings.push(format!("{}:{}: no such name: {name}", file.display(), number + 1));
            }
        }
    }
}

/// Checks that source files and pages that Markdown names in backquotes exist. A path may begin at
/// the workspace, at a crate or at a folder of it.
fn check_paths(files: &[PathBuf], findings: &mut Vec<String>) {
    for file in files.iter().filter(|file| is_markdown(file) && !file.ends_with("CHANGELOG.md")) {
        let text = fs::read_to_string(file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let quotes = line.split('`').skip(1).step_by(2);
            for path in quotes.filter(|quoted| is_source_path(quoted) && !is_tracked(quoted, files)) {
                findings.push(format!("{}:{}: no such file: {path}", file.display(), number + 1));
            }
        }
    }
}

/// Whether a quotation is the path of a source file: a folder, and a name with the extension `rs`.
fn is_source_path(quoted: &str) -> bool {
    let is_plain = |c: char| is_of_a_word(c) || matches!(c, '/' | '.' | '-');
    quoted.contains('/') && quoted.ends_with(".rs") && quoted.chars().all(is_plain)
}

fn is_tracked(path: &str, files: &[PathBuf]) -> bool {
    files.iter().any(|file| file.ends_with(path))
}

fn is_of_a_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether a quotation is not a name of this project, or an existing one.
fn is_known(quoted: &str, words: &BTreeSet<String>) -> bool {
    let required = quoted.strip_prefix("test:").map(str::trim);
    let path = required.unwrap_or(quoted);
    // "login tests::name": the crate, then the path within it.
    let path = path.rsplit(' ').next().unwrap_or(path);
    let is_ours =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':' | '…' | '*');
    if path.is_empty()
        || !path.chars().all(is_ours)
        || !path.starts_with(|c: char| c.is_ascii_lowercase() || c == '…')
    {
        return true;
    }
    let parts: Vec<&str> = path.split("::").collect();
    let last = parts.last().copied().unwrap_or_default();
    let is_long = last.matches('_').count() >= 3;
    if required.is_none() && parts.len() < 2 && !is_long {
        return true;
    }
    parts.iter().all(|part| {
        let mut pieces = part.split(['…', '*']);
        let (start, end) = (pieces.next().unwrap_or_default(), pieces.next_back().unwrap_or_default());
        if start == *part { words.contains(*part) } else { has_word(words, start, end) }
    })
}

/// Whether a word has this start and end.
fn has_word(words: &BTreeSet<String>, start: &str, end: &str) -> bool {
    words.range(start.to_owned()..).take_while(|word| word.starts_with(start)).any(|word| word.ends_with(end))
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that names a marker is reported with its line.
    #[test]
    fn an_unfinished_line_is_found() {
        let folder = std::env::temp_dir().join(format!("xtask-tidy-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("temporary folder");
        let path = folder.join("sample.rs");
        fs::write(&path, format!("fn sample() {{}}\n// {}DO: later\n", "TO")).expect("write");
        let mut findings = Vec::new();
        check_file(&path, &mut findings);
        fs::remove_dir_all(&folder).expect("clean up");
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("sample.rs:2"));
    }

    #[test]
    fn crate_named_unlike_its_folder_is_found() {
        assert!(is_named_after_folder("sealstone-store", "device/store"));
        assert!(is_named_after_folder("xtask", "xtask"));
        assert!(!is_named_after_folder("sealstone-device", "device/osd"));
        assert!(!is_named_after_folder("sealstone-target", "device/target"));
    }

    #[test]
    fn lints_of_unsafe_crate_are_compared() {
        let table = |text: &str| text.parse::<toml::Table>().expect("TOML");
        let workspace = table("[rust]\nunsafe_code = \"forbid\"\nmissing_docs = \"warn\"\n");
        let lints = |text: &str| table(&format!("[lints.rust]\n{text}"));
        let is_right = |manifest: &toml::Table| has_lints_that_deny_unsafe(manifest, Some(&workspace));
        assert!(is_right(&lints("unsafe_code = \"deny\"\nmissing_docs = \"warn\"\n")));
        assert!(!is_right(&lints("unsafe_code = \"deny\"\n")));
        assert!(!is_right(&lints("unsafe_code = \"allow\"\nmissing_docs = \"warn\"\n")));
    }

    #[test]
    fn missing_source_path_is_found() {
        let files = ["device/store/tests/crash.rs", "xtask/src/tidy.rs"].map(PathBuf::from);
        assert!(["tests/crash.rs", "xtask/src/tidy.rs"].iter().all(|path| is_tracked(path, &files)));
        assert!(!is_tracked("xtask/src/gone.rs", &files) && !is_tracked("ash.rs", &files));
        assert!(is_source_path("xtask/src/gone.rs"));
        assert!(!["tidy.rs", "a/b.md", "src/*.rs"].iter().any(|quoted| is_source_path(quoted)));
    }

    #[test]
    fn test_file_without_module_is_found() {
        let names = ["audit", "clock"].map(str::to_owned);
        assert_eq!(unnamed_modules("//! mod clock;\nmod audit;\n", &names), ["clock"]);
        assert_eq!(unnamed_modules("mod audit;\nmod clock;\n", &names), [""; 0]);
    }

    #[test]
    fn documented_name_must_exist() {
        let words: BTreeSet<String> =
            ["frame", "tests", "a_reader_of_much_waits", "busy_s_max"].map(str::to_owned).into();
        for known in [
            "a_reader_of_much_waits",
            "frame::a_reader_of_much_waits",
            "a_reader_of_…",
            "…_of_much_waits",
            "frame::tests::*",
            "login tests::a_reader_of_much_waits",
            "test:busy_s_max",
            "put",
            "K_resume = expand(1)",
        ] {
            assert!(is_known(known, &words), "{known}");
        }
        for unknown in [
            "a_reader_of_much_runs",
            "other::a_reader_of_much_waits",
            "a_writer_of_…",
            "test:gone",
            "frame::gone",
        ] {
            assert!(!is_known(unknown, &words), "{unknown}");
        }
    }
}
