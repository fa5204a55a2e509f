//! Cycles of modules inside a crate: groups of modules that all refer to each other, directly or
//! through others.
//!
//! Does: compares the largest group of each crate with a ceiling, which only falls.
//! Does not: parse Rust; reads `use` declarations, and paths that start with `crate` or `super`.
//! Tests are left out.
//! Truth: the ceilings in `xtask/cycles.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex_lite::Regex;

/// File with the ceilings.
const CEILINGS: &str = "xtask/cycles.toml";
/// First lines of that file.
const CEILINGS_HEADER: &str = "# Largest cycle of modules in each crate, in modules; crates without one are not listed.\n\
     # They only fall: `cargo run -p xtask -- cycles --lower` writes what the tree has now.\n\n";

static USE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);").expect("it parses"));
static PATH: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b(?:crate|super)(?:::\w+)+").expect("it parses"));

/// A module by its names below the root of its crate, which is empty.
type ModulePath = Vec<String>;

/// Compares the tree with the ceilings.
pub(crate) fn check(areas: &[String], files: &[PathBuf], findings: &mut Vec<String>) {
    match read_ceilings() {
        Ok(ceilings) => {
            findings.extend(exceeded(&largest_cycles(areas, files), &ceilings));
            findings.extend(raised(&ceilings, &committed_ceilings()));
        }
        Err(error) => findings.push(error),
    }
}

/// Shows the largest cycle of each crate; with `lower`, writes each ceiling that has fallen.
pub(crate) fn run(areas: &[String], files: &[PathBuf], lower: bool) -> Result<String, Vec<String>> {
    let cycles = largest_cycles(areas, files);
    let ceilings = read_ceilings().map_err(|error| vec![error])?;
    let excess = exceeded(&cycles, &ceilings);
    if !excess.is_empty() {
        return Err(excess);
    }
    let shown: Vec<String> =
        cycles.iter().map(|(area, cycle)| format!("{area}: {}: {}", cycle.len(), cycle.join(", "))).collect();
    let lowered: BTreeMap<String, usize> =
        cycles.iter().map(|(area, cycle)| (area.clone(), cycle.len())).collect();
    if lower && lowered != ceilings {
        let lines: String = lowered.iter().map(|(area, count)| format!("\"{area}\" = {count}\n")).collect();
        fs::write(CEILINGS, format!("{CEILINGS_HEADER}{lines}"))
            .map_err(|error| vec![format!("{CEILINGS}: {error}")])?;
    }
    Ok(shown.join("\n"))
}

fn read_ceilings() -> Result<BTreeMap<String, usize>, String> {
    parse(&fs::read_to_string(CEILINGS).map_err(|error| format!("{CEILINGS}: {error}"))?)
}

/// Returns the ceilings of the last commit; none if it has none.
fn committed_ceilings() -> BTreeMap<String, usize> {
    let output = Command::new("git").args(["show", &format!("HEAD:{CEILINGS}")]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.and_then(|text| parse(&String::from_utf8(text).ok()?).ok()).unwrap_or_default()
}

/// Returns a finding for each ceiling above the committed one.
fn raised(ceilings: &BTreeMap<String, usize>, committed: &BTreeMap<String, usize>) -> Vec<String> {
    let finding = |(area, count): (&String, &usize)| {
        let before = committed.get(area).filter(|before| *before < count)?;
        Some(format!("{CEILINGS}: {area} raised from {before} to {count}; ceilings only fall"))
    };
    ceilings.iter().filter_map(finding).collect()
}

fn parse(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("{CEILINGS}: {error}"))?;
    let ceiling = |(area, count): (String, toml::Value)| {
        let count = count.as_integer().and_then(|count| usize::try_from(count).ok());
        Ok((area.clone(), count.ok_or_else(|| format!("{CEILINGS}: {area}: not a number of modules"))?))
    };
    table.into_iter().map(ceiling).collect()
}

/// Returns a finding for each crate with a larger cycle than its ceiling.
fn exceeded(cycles: &BTreeMap<String, Vec<String>>, ceilings: &BTreeMap<String, usize>) -> Vec<String> {
    let finding = |(area, cycle): (&String, &Vec<String>)| {
        let ceiling = ceilings.get(area).copied().unwrap_or(1);
        (cycle.len() > ceiling).then(|| {
            format!(
                "{area}: a cycle of {} modules, ceiling {ceiling}: move what they share below them; {}",
                cycle.len(),
                cycle.join(", ")
            )
        })
    };
    cycles.iter().filter_map(finding).collect()
}

/// Returns the largest cycle of each crate that has one, as names of modules.
fn largest_cycles(areas: &[String], files: &[PathBuf]) -> BTreeMap<String, Vec<String>> {
    let mut cycles = BTreeMap::new();
    for area in areas {
        let root = Path::new(area).join("src");
        let modules: BTreeMap<ModulePath, String> = files
            .iter()
            .filter_map(|file| {
                let module = module_of(file.strip_prefix(&root).ok()?)?;
                Some((module, code_of(&fs::read_to_string(file).ok()?)))
            })
            .collect();
        if let Some(cycle) = largest_cycle(&modules) {
            cycles.insert(area.clone(), cycle);
        }
    }
    cycles
}

/// Returns the module of a source file, by its path in `src`; none for tests.
fn module_of(file: &Path) -> Option<ModulePath> {
    let mut names: ModulePath =
        file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if file.extension()? != "rs" || names.iter().any(|name| name == "tests") {
        return None;
    }
    if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        names.pop();
    }
    Some(names)
}

/// Returns the text without comments and without the module of tests at its end.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the paths that the code of a module names.
fn paths_of(code: &str) -> Vec<String> {
    let uses = USE.captures_iter(code).filter_map(|found| found.get(1));
    let mut paths: Vec<String> = uses.flat_map(|tree| expand(tree.as_str())).collect();
    paths.extend(PATH.find_iter(code).map(|path| path.as_str().to_owned()));
    paths
}

/// Returns the paths of a tree of a `use` declaration.
fn expand(tree: &str) -> Vec<String> {
    let tree: String = tree.split_whitespace().collect();
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree] };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let (mut paths, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, character) in inner.char_indices().chain([(inner.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = &inner[start..at];
                if !part.is_empty() {
                    paths.extend(expand(&format!("{prefix}{part}")));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// Returns the module that a path in `module` leads to; none outside of the crate.
fn target_of<'m>(
    module: &ModulePath,
    path: &str,
    modules: &'m BTreeMap<ModulePath, String>,
) -> Option<&'m ModulePath> {
    let mut names: Vec<&str> = path.split("::").filter(|name| !name.is_empty()).collect();
    let mut base = module.clone();
    match *names.first()? {
        "crate" => base.clear(),
        "super" => {
            while names.get(1) == Some(&"super") {
                base.pop();
                names.remove(0);
            }
            base.pop();
        }
        "self" => {}
        _ => return None,
    }
    let full: ModulePath = base.into_iter().chain(names[1..].iter().map(|name| (*name).to_owned())).collect();
    (1..=full.len()).rev().find_map(|length| modules.get_key_value(&full[..length])).map(|(found, _)| found)
}

/// Returns the largest group of modules that all reach each other, sorted; none if each reaches
/// itself only.
fn largest_cycle(modules: &BTreeMap<ModulePath, String>) -> Option<Vec<String>> {
    let edges: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = modules
        .iter()
        .map(|(module, code)| {
            let targets = paths_of(code).iter().filter_map(|path| target_of(module, path, modules)).collect();
            (module, targets)
        })
        .collect();
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        edges.keys().map(|module| (*module, reachable(module, &edges))).collect();
    let group = |module: &&ModulePath| -> Vec<&ModulePath> {
        let both = |other: &&&ModulePath| reached[**other].contains(module);
        reached[*module].iter().filter(both).copied().collect()
    };
    let largest = edges.keys().map(group).filter(|group| group.len() > 1).max_by_key(Vec::len)?;
    Some(largest.into_iter().map(|module| module.join("::")).collect())
}

/// Returns the modules that a module reaches in one step or more.
fn reachable<'m>(
    module: &'m ModulePath,
    edges: &BTreeMap<&'m ModulePath, BTreeSet<&'m ModulePath>>,
) -> BTreeSet<&'m ModulePath> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![module]);
    while let Some(next) = open.pop() {
        open.extend(edges[next].iter().filter(|target| reached.insert(**target)).copied());
    }
    reached
}

#[cfg(test)]
mod cycle_tests {
    use super::*;

    fn modules(sources: &[(&str, &str)]) -> BTreeMap<ModulePath, String> {
        let module = |(file, text): &(&str, &str)| Some((module_of(Path::new(file))?, code_of(text)));
        sources.iter().filter_map(module).collect()
    }

    #[test]
    fn largest_cycle_counts_all_its_modules() {
        let sources = [
            ("lib.rs", "mod a; use a::A;"),
            ("a.rs", "use crate::b::{B, c::C};\nuse std::fmt;"),
            ("b/mod.rs", "mod c;\n// use crate::d::D;"),
            ("b/c.rs", "use super::super::d::D;"),
            ("d.rs", "fn f() -> crate::a::A {}"),
            ("e.rs", "use super::a::A;"),
            ("f.rs", "#[cfg(test)]\nmod tests {\n    use super::super::f;\n    use crate::a::A;\n}"),
        ];
        let cycle = largest_cycle(&modules(&sources));
        assert_eq!(cycle, Some(["a", "b::c", "d"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn modules_in_order_have_no_cycle() {
        let sources =
            [("main.rs", "use crate::a::A;"), ("a.rs", "use crate::b;"), ("b.rs", "use self::c::C;")];
        assert_eq!(largest_cycle(&modules(&sources)), None);
    }

    #[test]
    fn cycle_above_its_ceiling_is_refused() {
        let cycles: BTreeMap<String, Vec<String>> =
            [("a/b".to_owned(), ["x", "y", "z"].map(str::to_owned).to_vec())].into();
        let with = |count| exceeded(&cycles, &[("a/b".to_owned(), count)].into());
        assert_eq!(with(3), Vec::<String>::new());
        assert_eq!(with(2).len(), 1);
        assert_eq!(exceeded(&cycles, &BTreeMap::new()).len(), 1, "a crate without a ceiling has none");
        let [low, high] = ["\"a/b\" = 2", "\"a/b\" = 3"].map(|text| parse(text).expect("it parses"));
        assert_eq!((raised(&high, &low).len(), raised(&low, &high).len()), (1, 0));
        assert!(parse("\"a/b\" = -1").is_err());
    }
}
