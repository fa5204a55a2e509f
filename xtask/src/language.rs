//! The language ratchet: counts prose and names that break the house rules, against ceilings that
//! only fall.
//!
//! Does: count, per crate and for all Markdown, sentences in literary English, prose lines that are
//! too long, doc comments of one word; and, for the workspace, names that several types share.
//! Does not: judge a sentence. A reader does; the counter only keeps old habits from growing back.
//! Truth: the ceilings in `xtask/language.toml`; `cargo run -p xtask -- language` explains and
//! lowers them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use regex_lite::Regex;

/// File with the ceilings.
pub(crate) const CEILINGS: &str = "xtask/language.toml";
/// Maximum length of a line of prose, characters.
const PROSE_LINE_CHARS_MAX: usize = 100;
/// Maximum length of a sentence in documentation, words.
const SENTENCE_WORDS_MAX: usize = 35;
/// Shorter fragments are labels, not sentences, words.
const SENTENCE_WORDS_MIN: usize = 3;
/// Modules that may declare a type of one name without a listed reason.
const MODULES_PER_TYPE_NAME_MAX: usize = 2;
/// Findings shown for each ceiling that is exceeded.
const SHOWN_MAX: usize = 5;

/// Patterns of literary English. The field writes "the client", "the caller", "sends", "again".
const LITERARY: &[&str] = &[
    r"^(Who|Whoever|Whose|Whom|What|Whatever)\b.*[^?]$",
    r"(?i)\b(whoever|who (asks|has|is|writes|reads|opens|waits|closes|makes|may|gives|holds|told|was|knows|comes|looks|does|wants|sends|needs|tells|listens|goes|takes))\b",
    r"(?i)\b(some|no|any|every)body\b",
    r"(?i)\b(told|tells?|hears?|heard)\b",
    r"\b(he|his|him)\b",
    r"(?i)\banew\b|\bto be had\b|\bgo(es)? on\b|\bfor so long\b",
];

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    file: PathBuf,
    line: usize,
    text: String,
}

/// A rule whose findings are counted per area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    LiterarySentence,
    LongProseLine,
    LongSentence,
    OneWordDoc,
}

impl Rule {
    const ALL: [Self; 4] =
        [Self::LiterarySentence, Self::LongProseLine, Self::LongSentence, Self::OneWordDoc];

    /// Returns the rule's table in the file of ceilings.
    fn key(self) -> &'static str {
        match self {
            Self::LiterarySentence => "literary_sentences",
            Self::LongProseLine => "long_prose_lines",
            Self::LongSentence => "long_sentences",
            Self::OneWordDoc => "one_word_docs",
        }
    }

    /// Returns the sentence that explains the rule to its reader.
    fn advice(self) -> &'static str {
        match self {
            Self::LiterarySentence => {
                "name the program's thing as subject (client, server, caller) and use the field's verb"
            }
            Self::LongProseLine => "wrap prose at 100 characters",
            Self::LongSentence => "at most 35 words; make two sentences of it",
            Self::OneWordDoc => "say what the item is, or allow missing docs on the record",
        }
    }
}

/// The compiled patterns of literary English.
struct Literary(Vec<Regex>);

impl Literary {
    fn new() -> Self {
        Self(LITERARY.iter().map(|pattern| constant(pattern)).collect())
    }

    fn is_match(&self, sentence: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(sentence))
    }
}

/// The findings of a tree.
#[derive(Debug, Default)]
struct Survey {
    /// By rule and area; the area is a crate's folder, or `docs` for all Markdown.
    findings: BTreeMap<(Rule, String), Vec<Finding>>,
    /// Modules that declare a type, by its name.
    types: BTreeMap<String, BTreeSet<PathBuf>>,
}

/// The checked-in ceilings.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ceilings {
    counts: BTreeMap<(Rule, String), usize>,
    /// Names that more than two modules declare today, with their number.
    shared_names: BTreeMap<String, usize>,
    /// Names that may be shared, with the reason.
    allowed_names: BTreeMap<String, String>,
}

/// Checks the tree against the ceilings; used by `tidy`.
pub(crate) fn check(files: &[PathBuf], areas: &[String], findings: &mut Vec<String>) {
    let ceilings = match read_ceilings() {
        Ok(ceilings) => ceilings,
        Err(error) => return findings.push(error),
    };
    findings.extend(exceeded(&survey(files, areas), &ceilings));
    if let Some(committed) = committed_ceilings() {
        findings.extend(raised(&ceilings, &committed));
    }
}

/// Shows the counts; with `lower`, writes each ceiling that has fallen.
pub(crate) fn run(files: &[PathBuf], areas: &[String], lower: bool) -> Result<String, Vec<String>> {
    let survey = survey(files, areas);
    let ceilings = read_ceilings().map_err(|error| vec![error])?;
    let excess = exceeded(&survey, &ceilings);
    if !excess.is_empty() {
        return Err(excess);
    }
    let lowered = lowered(&survey, &ceilings);
    let count: usize = survey.findings.values().map(Vec::len).sum();
    if lowered == ceilings {
        return Ok(format!("language: {count} findings; no ceiling can be lowered"));
    }
    if !lower {
        return Ok(format!("language: {count} findings; `language --lower` lowers the ceilings to them"));
    }
    fs::write(CEILINGS, render(&lowered)).map_err(|error| vec![format!("{CEILINGS}: {error}")])?;
    Ok(format!("language: {count} findings; {CEILINGS} lowered"))
}

fn survey(files: &[PathBuf], areas: &[String]) -> Survey {
    let literary = Literary::new();
    let mut survey = Survey::default();
    for file in files {
        let Ok(text) = fs::read_to_string(file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => survey.add_rust(file, &text, &area_of(file, areas), &literary),
            Some("md") => survey.add_markdown(file, &text, &literary),
            _ => {}
        }
    }
    survey
}

/// Returns the crate that a file belongs to, by the longest folder.
fn area_of(file: &Path, areas: &[String]) -> String {
    let matching = areas.iter().filter(|area| file.starts_with(area));
    matching.max_by_key(|area| area.len()).map_or_else(|| "workspace".to_owned(), Clone::clone)
}

impl Survey {
    fn add(&mut self, rule: Rule, area: &str, file: &Path, line: usize, text: &str) {
        let finding = Finding { file: file.to_owned(), line, text: text.to_owned() };
        self.findings.entry((rule, area.to_owned())).or_default().push(finding);
    }

    fn add_rust(&mut self, file: &Path, text: &str, area: &str, literary: &Literary) {
        let mut comment: Option<(usize, String)> = None;
        let mut in_tests = is_test_file(file);
        for (index, line) in text.lines().chain([""]).enumerate() {
            if let Some(words) = comment_text(line) {
                if line.chars().count() > PROSE_LINE_CHARS_MAX {
                    self.add(Rule::LongProseLine, area, file, index + 1, words);
                }
                let (_, block) = comment.get_or_insert_with(|| (index + 1, String::new()));
                block.push(' ');
                block.push_str(words);
                continue;
            }
            if let Some((first, block)) = comment.take() {
                self.add_block(file, area, first, block.trim(), literary);
            }
            in_tests |= line.trim_start().starts_with("#[cfg(test)]");
            if let Some(name) = declared_type(line).filter(|_| !in_tests) {
                self.types.entry(name.to_owned()).or_default().insert(file.to_owned());
            }
        }
    }

    fn add_block(&mut self, file: &Path, area: &str, line: usize, block: &str, literary: &Literary) {
        if block.ends_with('.') && block.split_whitespace().count() == 1 {
            self.add(Rule::OneWordDoc, area, file, line, block);
        }
        for sentence in sentences(block).iter().filter(|sentence| literary.is_match(sentence)) {
            self.add(Rule::LiterarySentence, area, file, line, sentence);
        }
    }

    fn add_markdown(&mut self, file: &Path, text: &str, literary: &Literary) {
        let mut paragraph: Option<(usize, String)> = None;
        let mut in_code = false;
        for (index, line) in text.lines().chain([""]).enumerate() {
            let is_fence = line.trim_start().starts_with("```");
            in_code ^= is_fence;
            let line = if in_code || is_fence { "" } else { line.trim() };
            let starts_block = line.is_empty() || line.starts_with(['#', '|']) || starts_list_item(line);
            if starts_block && let Some((first, block)) = paragraph.take() {
                self.add_paragraph(file, first, &block, literary);
            }
            if line.is_empty() {
                continue;
            }
            let can_wrap = !line.starts_with(['|', '#']) && !line.contains("](");
            if can_wrap && line.chars().count() > PROSE_LINE_CHARS_MAX {
                self.add(Rule::LongProseLine, "docs", file, index + 1, line);
            }
            let (_, block) = paragraph.get_or_insert_with(|| (index + 1, String::new()));
            block.push(' ');
            block.push_str(line);
        }
    }

    fn add_paragraph(&mut self, file: &Path, line: usize, block: &str, literary: &Literary) {
        let cells: Vec<&str> = if block.trim_start().starts_with('|') {
            block.split('|').collect()
        } else {
            vec![block.trim_start_matches(['-', '#', ' '])]
        };
        for sentence in cells.into_iter().flat_map(|cell| sentences(&without_code(cell))) {
            if literary.is_match(&sentence) {
                self.add(Rule::LiterarySentence, "docs", file, line, &sentence);
            }
            if sentence.split_whitespace().count() > SENTENCE_WORDS_MAX {
                self.add(Rule::LongSentence, "docs", file, line, &sentence);
            }
        }
    }
}

/// Whether a file holds tests only: their helper types may share names.
fn is_test_file(file: &Path) -> bool {
    let is_test = |part: &str| matches!(part, "tests" | "tests.rs" | "examples" | "benches");
    file.iter().filter_map(|part| part.to_str()).any(is_test)
}

/// Returns the text of a comment line.
fn comment_text(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim()).filter(|text| !text.is_empty())
}

/// Returns the name of the type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    if !matches!(words.next()?, "struct" | "enum" | "trait") {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Whether a line starts an item of a list, with a hyphen or a number.
fn starts_list_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with("- ") || (after_number.len() < line.len() && after_number.starts_with(". "))
}

/// Splits prose into sentences; fragments of one or two words are left out.
fn sentences(text: &str) -> Vec<String> {
    static BOUNDARY: LazyLock<Regex> = LazyLock::new(|| constant(r"[.?!]\s+"));
    let mut sentences = Vec::new();
    let mut start = 0;
    let ends = BOUNDARY.find_iter(text).filter(|found| {
        text[found.end()..].starts_with(|c: char| c.is_uppercase() || matches!(c, '`' | '[' | '*' | '"'))
    });
    for (mark, next) in ends.map(|found| (found.start() + 1, found.end())).chain([(text.len(), text.len())]) {
        sentences.push(text[start..mark].trim().to_owned());
        start = next;
    }
    sentences.retain(|sentence| sentence.split_whitespace().count() >= SENTENCE_WORDS_MIN);
    sentences
}

/// Replaces quoted code by a capital letter, which can begin a sentence, and a link by its text.
fn without_code(text: &str) -> String {
    static QUOTED: LazyLock<Regex> = LazyLock::new(|| constant(r"`[^`]*`"));
    static LINK: LazyLock<Regex> = LazyLock::new(|| constant(r"\[([^\]]*)\]\([^)]*\)"));
    LINK.replace_all(&QUOTED.replace_all(text, "X"), "$1").into_owned()
}

fn constant(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}

/// Returns a finding for each ceiling that the tree exceeds.
fn exceeded(survey: &Survey, ceilings: &Ceilings) -> Vec<String> {
    let mut excess = Vec::new();
    for ((rule, area), found) in &survey.findings {
        let ceiling = ceilings.counts.get(&(*rule, area.clone())).copied().unwrap_or(0);
        if found.len() <= ceiling {
            continue;
        }
        let (key, advice) = (rule.key(), rule.advice());
        excess.push(format!("{area}: {} {key}, ceiling {ceiling}: {advice}; for instance:", found.len()));
        // New findings are unknown; those of the files that changed last are the likely ones.
        excess.extend(
            newest_first(found)
                .into_iter()
                .take(SHOWN_MAX)
                .map(|finding| format!("  {}:{}: {}", finding.file.display(), finding.line, finding.text)),
        );
    }
    for (name, modules) in shared_names(survey) {
        let ceiling = ceilings.shared_names.get(name).copied().unwrap_or(MODULES_PER_TYPE_NAME_MAX);
        if modules.len() > ceiling && !ceilings.allowed_names.contains_key(name) {
            let places: Vec<String> = modules.iter().map(|module| module.display().to_string()).collect();
            excess.push(format!(
                "type name {name}: declared in {} modules, at most {ceiling}: add a noun that is unique ({})",
                modules.len(),
                places.join(", ")
            ));
        }
    }
    excess
}

/// Sorts findings so that files changed last are first.
fn newest_first(findings: &[Finding]) -> Vec<&Finding> {
    let changed = |finding: &&Finding| fs::metadata(&finding.file).and_then(|data| data.modified()).ok();
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(changed(finding)));
    sorted
}

/// Returns the names that more than two modules declare.
fn shared_names(survey: &Survey) -> impl Iterator<Item = (&String, &BTreeSet<PathBuf>)> {
    survey.types.iter().filter(|(_, modules)| modules.len() > MODULES_PER_TYPE_NAME_MAX)
}

/// Returns a finding for each ceiling above the committed one.
fn raised(ceilings: &Ceilings, committed: &Ceilings) -> Vec<String> {
    let counts = ceilings.counts.iter().filter_map(|((rule, area), &count)| {
        let before = committed.counts.get(&(*rule, area.clone())).copied();
        before
            .filter(|&before| count > before)
            .map(|before| (format!("{area} {}", rule.key()), count, before))
    });
    let names = ceilings.shared_names.iter().filter_map(|(name, &count)| {
        let before = committed.shared_names.get(name).copied();
        before.filter(|&before| count > before).map(|before| (name.clone(), count, before))
    });
    counts
        .chain(names)
        .map(|(what, count, before)| {
            format!("{CEILINGS}: {what} raised from {before} to {count}; ceilings only fall")
        })
        .collect()
}

/// Returns the ceilings at what the tree has now; a rule or a name without findings has none.
fn lowered(survey: &Survey, ceilings: &Ceilings) -> Ceilings {
    let counts = survey.findings.iter().map(|(key, found)| (key.clone(), found.len())).collect();
    let names = shared_names(survey)
        .filter(|(name, _)| !ceilings.allowed_names.contains_key(*name))
        .map(|(name, modules)| (name.clone(), modules.len()))
        .collect();
    Ceilings { counts, shared_names: names, allowed_names: ceilings.allowed_names.clone() }
}

fn read_ceilings() -> Result<Ceilings, String> {
    let text = fs::read_to_string(CEILINGS).map_err(|error| format!("{CEILINGS}: {error}"))?;
    parse(&text)
}

/// Returns the ceilings of the last commit, if there is one that has them.
fn committed_ceilings() -> Option<Ceilings> {
    let output = Command::new("git").args(["show", &format!("HEAD:{CEILINGS}")]).output().ok()?;
    if !output.status.success() {
        return None;
    }
    parse(&String::from_utf8(output.stdout).ok()?).ok()
}

fn parse(text: &str) -> Result<Ceilings, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("{CEILINGS}: {error}"))?;
    let counts_of = |key: &str| -> Result<Vec<(String, usize)>, String> {
        let Some(entries) = table.get(key).and_then(toml::Value::as_table) else { return Ok(Vec::new()) };
        let count = |value: &toml::Value| value.as_integer().and_then(|count| usize::try_from(count).ok());
        let entry = |(name, value): (&String, &toml::Value)| {
            count(value)
                .map(|count| (name.clone(), count))
                .ok_or(format!("{CEILINGS}: {key}.{name}: not a count"))
        };
        entries.iter().map(entry).collect()
    };
    let mut ceilings = Ceilings::default();
    for rule in Rule::ALL {
        let counts = counts_of(rule.key())?.into_iter();
        ceilings.counts.extend(counts.map(|(area, count)| ((rule, area), count)));
    }
    ceilings.shared_names = counts_of("shared_type_names")?.into_iter().collect();
    if let Some(allowed) = table.get("allowed_type_names").and_then(toml::Value::as_table) {
        for (name, reason) in allowed {
            let reason = reason.as_str().filter(|reason| !reason.is_empty());
            let reason = reason.ok_or(format!("{CEILINGS}: allowed_type_names.{name}: needs a reason"))?;
            ceilings.allowed_names.insert(name.clone(), reason.to_owned());
        }
    }
    Ok(ceilings)
}

fn render(ceilings: &Ceilings) -> String {
    let mut text = String::from(
        "# Ceilings of the language ratchet, by crate folder; `docs` is all Markdown. They only fall:\n\
         # `cargo run -p xtask -- language --lower` writes what the tree has now. HACKING.md has the rules.\n",
    );
    let mut push_table = |name: &str, entries: Vec<(String, String)>| {
        text.push_str(&format!("\n[{name}]\n"));
        for (key, value) in entries {
            text.push_str(&format!("{key} = {value}\n"));
        }
    };
    for rule in Rule::ALL {
        let of_rule = ceilings.counts.iter().filter(|((other, _), _)| *other == rule);
        push_table(
            rule.key(),
            of_rule.map(|((_, area), count)| (format!("\"{area}\""), count.to_string())).collect(),
        );
    }
    let shared = ceilings.shared_names.iter();
    push_table("shared_type_names", shared.map(|(name, count)| (name.clone(), count.to_string())).collect());
    let allowed = ceilings.allowed_names.iter();
    push_table(
        "allowed_type_names",
        allowed
            .map(|(name, reason)| (name.clone(), toml::Value::from(reason.as_str()).to_string()))
            .collect(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey_of(name: &str, text: &str) -> Survey {
        let literary = Literary::new();
        let mut survey = Survey::default();
        match name.ends_with(".rs") {
            true => survey.add_rust(Path::new(name), text, "a", &literary),
            false => survey.add_markdown(Path::new(name), text, &literary),
        }
        survey
    }

    fn count(survey: &Survey, rule: Rule) -> usize {
        survey.findings.iter().filter(|((other, _), _)| *other == rule).map(|(_, found)| found.len()).sum()
    }

    #[test]
    fn literary_sentences_are_counted() {
        // Each line is one habit that the rule names; the second list is the plain form of each.
        for text in [
            "Who holds a lease writes.",
            "It waits for whoever holds it.",
            "Sent when somebody else has it.",
            "The server is told of it.",
            "The user gets his key.",
            "It begins anew after that.",
        ] {
            let survey = survey_of("a/b.rs", &format!("/// {text}\nfn f() {{}}\n"));
            assert_eq!(count(&survey, Rule::LiterarySentence), 1, "{text}");
        }
        for text in
            ["The client that has the lease writes.", "Returns the key of this user.", "Restarts after that."]
        {
            let survey = survey_of("a/b.rs", &format!("/// {text}\nfn f() {{}}\n"));
            assert_eq!(count(&survey, Rule::LiterarySentence), 0, "{text}");
        }
    }

    #[test]
    fn sentences_split_across_comment_lines() {
        let survey = survey_of(
            "a/b.rs",
            "// Sends the batch. It is kept\n// until somebody reads it. Then it is freed.\n",
        );
        let found: Vec<&str> =
            survey.findings.values().flatten().map(|finding| finding.text.as_str()).collect();
        assert_eq!(found, ["It is kept until somebody reads it."]);
    }

    #[test]
    fn code_and_tables_are_no_long_lines() {
        let long = "word ".repeat(30);
        let text = format!("```\n{long}\n```\n\n| {long} |\n\n{long}\n");
        assert_eq!(count(&survey_of("docs/a.md", &text), Rule::LongProseLine), 1);
    }

    #[test]
    fn long_sentences_are_counted_in_docs() {
        let words = |n: usize| format!("{}end.\n", "word ".repeat(n - 1));
        assert_eq!(count(&survey_of("a.md", &words(SENTENCE_WORDS_MAX)), Rule::LongSentence), 0);
        assert_eq!(count(&survey_of("a.md", &words(SENTENCE_WORDS_MAX + 1)), Rule::LongSentence), 1);
    }

    #[test]
    fn list_items_emphasis_and_code_start_sentences() {
        let words = |n: usize| format!("{}end.", "word ".repeat(n - 1));
        let half = words(SENTENCE_WORDS_MAX / 2 + 2);
        let texts = [
            format!("1. A {half}\n2. **B** {half}\n"),
            format!("A {half} **B** {half}\n"),
            format!("A {half} `b` {half}\n"),
        ];
        for text in texts {
            assert_eq!(count(&survey_of("a.md", &text), Rule::LongSentence), 0, "{text}");
        }
    }

    #[test]
    fn one_word_docs_are_counted() {
        let survey = survey_of("a/b.rs", "/// Which.\na: u8,\n/// Bytes of the record.\nb: u8,\n");
        assert_eq!(count(&survey, Rule::OneWordDoc), 1);
    }

    #[test]
    fn type_name_in_three_modules_is_refused() {
        let mut survey = Survey::default();
        let literary = Literary::new();
        for file in ["a/x.rs", "a/y.rs", "b/z.rs"] {
            survey.add_rust(Path::new(file), "pub(crate) struct Place<T>(T);\n", "a", &literary);
        }
        // Types of tests do not count.
        survey.add_rust(Path::new("c/tests/w.rs"), "struct Place;\n", "c", &literary);
        assert_eq!(survey.types["Place"].len(), 3);
        assert_eq!(exceeded(&survey, &Ceilings::default()).len(), 1);
        let allowed = [("Place".to_owned(), "a reason".to_owned())].into();
        assert!(exceeded(&survey, &Ceilings { allowed_names: allowed, ..Ceilings::default() }).is_empty());
    }

    #[test]
    fn ceilings_survive_render_and_parse() {
        let survey =
            survey_of("a/b.rs", "/// Whoever asks for it waits.\nstruct A;\n/// Which.\nstruct B;\n");
        let mut ceilings = lowered(&survey, &Ceilings::default());
        ceilings.allowed_names.insert("Error".to_owned(), "each crate has \"one\"".to_owned());
        ceilings.shared_names.insert("Place".to_owned(), 4);
        assert_eq!(parse(&render(&ceilings)), Ok(ceilings));
    }

    #[test]
    fn raised_ceiling_is_refused() {
        let with = |count| Ceilings {
            counts: [((Rule::OneWordDoc, "a".to_owned()), count)].into(),
            ..Ceilings::default()
        };
        assert_eq!(raised(&with(3), &with(2)).len(), 1);
        assert!(raised(&with(2), &with(3)).is_empty());
    }

    #[test]
    fn area_is_the_longest_folder() {
        let areas = ["tests".to_owned(), "tests/torture".to_owned()];
        assert_eq!(area_of(Path::new("tests/torture/src/main.rs"), &areas), "tests/torture");
        assert_eq!(area_of(Path::new("tests/src/lib.rs"), &areas), "tests");
    }
}
