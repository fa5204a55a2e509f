//! The engine programs of a device.
//!
//! Does: find the programs and start their zygotes.
//! Does not: start engines; `pool` does.
//! Contract: the daemon creates the set before it loads keys. A program that is missing or does not
//! start makes its engine unavailable, with the reason, and nothing else.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sealstone_function_abi::{API_MAJOR, API_MINOR};
use sealstone_osd::function::attributes::EngineEntry;
use sealstone_osd::function::{ApiVersion, EngineType};
use sealstone_osd_device::EngineInfo;
use sealstone_sandbox::{EngineKind, EngineUsers, LayerState, Zygote, ZygoteOptions};

/// The API versions of all engines of this service.
pub(crate) const API_VERSIONS: RangeInclusive<ApiVersion> = RangeInclusive::new(
    ApiVersion { major: API_MAJOR, minor: 0 },
    ApiVersion { major: API_MAJOR, minor: API_MINOR },
);
/// User ids of the engines of one type.
const USERS_PER_ENGINE: u32 = 1024;

/// Maximum length of the reason why an engine program has no runtime, in characters.
const REASON_CHARACTERS_MAX: usize = 200;

/// An engine program, with its zygote if it runs.
struct EngineProgram {
    engine: EngineType,
    path: Option<PathBuf>,
    zygote: Result<Zygote, String>,
}

/// The engine programs of a device, one for each engine type.
pub struct EngineSet {
    programs: Vec<EngineProgram>,
    strict: bool,
}

/// Status of an engine, for `osd status`.
#[derive(Clone, Debug)]
pub struct EngineStatus {
    /// The engine.
    pub engine: EngineType,
    /// Its program, if one was found.
    pub program: Option<PathBuf>,
    /// Whether functions can run in it.
    pub available: bool,
    /// Why not; empty if it is available.
    pub detail: String,
    /// The layers that confine it.
    pub layers: Vec<IsolationStatus>,
}

/// Status of a layer of confinement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationStatus {
    /// Name of the layer.
    pub layer: &'static str,
    /// Its state.
    pub state: IsolationState,
    /// The reason, unless the layer is active.
    pub detail: String,
}

/// State of a layer of confinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationState {
    /// It confines all engines.
    Active,
    /// A part of it is missing.
    Partial,
    /// It is missing.
    Unavailable,
    /// The engine does not need it.
    NotApplicable,
}

impl IsolationState {
    /// Returns its name, for `osd status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Partial => "partial",
            Self::Unavailable => "unavailable",
            Self::NotApplicable => "not-applicable",
        }
    }

    /// Whether functions have less isolation than intended.
    #[must_use]
    pub const fn is_lacking(self) -> bool {
        matches!(self, Self::Partial | Self::Unavailable)
    }
}

impl EngineSet {
    /// Starts the zygote of each program that one of the folders has. Where several folders have
    /// it, the first one counts. With `strict`, an engine whose confinement lacks a layer is
    /// unavailable.
    #[must_use]
    pub fn start(folders: &[PathBuf], strict: bool) -> Self {
        let start = |engine: &EngineType| EngineProgram::start(*engine, folders, strict);
        Self { programs: EngineType::ALL.iter().map(start).collect(), strict }
    }

    /// Starts the zygote of one program, as [`start`](Self::start) does without `strict`.
    #[must_use]
    pub fn start_only(engine: EngineType, folders: &[PathBuf]) -> Self {
        Self { programs: vec![EngineProgram::start(engine, folders, false)], strict: false }
    }

    /// Returns the zygote of an engine.
    pub(crate) fn zygote(&self, engine: EngineType) -> Option<&Zygote> {
        let program = self.programs.iter().find(|program| program.engine == engine)?;
        program.zygote.as_ref().ok().filter(|zygote| zygote.is_running())
    }

    /// Whether an engine is unavailable if a layer of its confinement is missing.
    #[must_use]
    pub const fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the engines as the root's attribute page describes them.
    #[must_use]
    pub fn infos(&self) -> Vec<EngineInfo> {
        let info = |status: EngineStatus| EngineInfo {
            engine: status.engine,
            entry: EngineEntry {
                available: status.available,
                api_lowest: *API_VERSIONS.start(),
                api_highest: *API_VERSIONS.end(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                detail: status.detail,
            },
        };
        self.status().into_iter().map(info).collect()
    }

    /// Returns the status of each engine.
    #[must_use]
    pub fn status(&self) -> Vec<EngineStatus> {
        self.programs.iter().map(EngineProgram::status).collect()
    }
}

impl EngineProgram {
    fn start(engine: EngineType, folders: &[PathBuf], strict: bool) -> Self {
        let path = find_program(folders, engine);
        let zygote = match &path {
            Some(path) => start_zygote(path, engine, strict),
            None => Err(format!("no program {}", program_name(engine))),
        };
        Self { engine, path, zygote }
    }

    fn status(&self) -> EngineStatus {
        let (available, detail, layers) = match &self.zygote {
            Err(detail) => (false, detail.clone(), Vec::new()),
            Ok(zygote) if !zygote.is_running() => {
                (false, "its zygote has ended; restart the device".to_owned(), Vec::new())
            }
            Ok(zygote) => (true, String::new(), layers(zygote)),
        };
        EngineStatus { engine: self.engine, program: self.path.clone(), available, detail, layers }
    }
}

fn layers(zygote: &Zygote) -> Vec<IsolationStatus> {
    let status = |(layer, state): (sealstone_sandbox::IsolationLayer, &LayerState)| {
        let (state, detail) = match state {
            LayerState::Active => (IsolationState::Active, ""),
            LayerState::Partial(detail) => (IsolationState::Partial, detail.as_str()),
            LayerState::Unavailable(detail) => (IsolationState::Unavailable, detail.as_str()),
            LayerState::NotApplicable(detail) => (IsolationState::NotApplicable, detail.as_str()),
        };
        IsolationStatus { layer: layer.name(), state, detail: detail.to_owned() }
    };
    zygote.isolation().layers().map(status).collect()
}

/// Returns the name of the program of an engine.
fn program_name(engine: EngineType) -> String {
    format!("sealstone-engine-{}", engine.name())
}

fn find_program(folders: &[PathBuf], engine: EngineType) -> Option<PathBuf> {
    let candidates = folders.iter().map(|folder| folder.join(program_name(engine)));
    candidates.filter(|path| path.is_file()).find_map(|path| std::path::absolute(path).ok())
}

fn start_zygote(path: &Path, engine: EngineType, strict: bool) -> Result<Zygote, String> {
    let (kind, index) = match engine {
        EngineType::C => (EngineKind::C, 0),
        EngineType::Wasm => (EngineKind::Wasm, 1),
        EngineType::Java => (EngineKind::Java, 2),
        EngineType::Python => (EngineKind::Python, 3),
    };
    let first = EngineUsers::default().first + index * USERS_PER_ENGINE;
    let users = EngineUsers { first, count: USERS_PER_ENGINE };
    let mut options = ZygoteOptions { users, strict, ..ZygoteOptions::new(path, kind) };
    if matches!(engine, EngineType::Java | EngineType::Python) {
        add_runtime(&mut options)?;
    }
    Zygote::spawn(options).map_err(|error| describe(&error))
}

/// Adds the binds and arguments that the runtime of an engine program needs. The program finds the
/// runtime of the machine, and prints a line for each.
fn add_runtime(options: &mut ZygoteOptions) -> Result<(), String> {
    let output = Command::new(&options.program).arg("--runtime").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start the program: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(match reason.trim().lines().next() {
            Some(reason) => reason.chars().take(REASON_CHARACTERS_MAX).collect(),
            None => format!("the program does not describe its runtime ({})", output.status),
        });
    }
    let unknown = || "the program describes its runtime in an unknown way".to_owned();
    let description = String::from_utf8(output.stdout).map_err(|_| unknown())?;
    options.add_runtime(&description).map_err(|_| unknown())
}

/// Returns an error with its causes in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_make_engines_unavailable() {
        let folder = tempfile::tempdir().unwrap();
        let set = EngineSet::start(&[folder.path().to_owned()], false);
        let infos = set.infos();
        assert_eq!(infos.len(), EngineType::ALL.len());
        assert_eq!(infos[0].entry.detail, "no program sealstone-engine-c");
        assert!(infos.iter().all(|info| !info.entry.available));
    }

    #[test]
    fn program_without_runtime_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(program_name(EngineType::Python));
        let detail = |script: &str| {
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            let mut options = ZygoteOptions::new(&path, EngineKind::Python);
            add_runtime(&mut options).map(|()| options)
        };
        let missing = detail("echo 'no libpython is installed' >&2; exit 1").unwrap_err();
        assert_eq!(missing, "no libpython is installed");
        assert!(detail("exit 3").unwrap_err().contains("exit status: 3"));
        assert!(detail("echo nothing").unwrap_err().contains("unknown way"));
        let options = detail("echo bind /usr/lib/python; echo argument --home").unwrap();
        assert_eq!(options.binds[0].source, Path::new("/usr/lib/python"));
        assert_eq!(options.arguments, ["--home"]);
    }

    #[test]
    fn program_of_other_kind_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(program_name(EngineType::C));
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        let status = EngineSet::start(&[folder.path().to_owned()], false).status();
        assert!(!status[0].available && !status[0].detail.is_empty());
        assert_eq!(status[0].program.as_deref(), Some(path.as_path()));
    }
}
