//! The filter of system calls.
//!
//! Does: compile the table to BPF programs, and install them. Each filter first checks the
//! architecture of the call, so 32-bit calls kill the engine, as do calls that no row allows.

#[cfg(test)]
mod reference;
mod table;

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use table::{ArgumentCondition, FilteredProcess, ROWS, SyscallRow, SyscallVerdict};

use crate::options::EngineKind;

/// The compiled filters of one kind of engine and of its init process.
#[derive(Debug)]
pub(crate) struct CompiledFilters {
    engine: Vec<BpfProgram>,
    init: Vec<BpfProgram>,
}

impl CompiledFilters {
    /// Compiles the rows of the table.
    pub(crate) fn compile(kind: EngineKind) -> io::Result<Self> {
        Ok(Self { engine: compile(kind.into())?, init: compile(FilteredProcess::Init)? })
    }

    /// Confines the calling thread, which must be the only one of its process, as an engine.
    pub(crate) fn confine_engine(&self) -> io::Result<()> {
        install(&self.engine)
    }

    /// Confines the calling thread as the init process of an engine.
    pub(crate) fn confine_init(&self) -> io::Result<()> {
        install(&self.init)
    }
}

fn install(programs: &[BpfProgram]) -> io::Result<()> {
    programs.iter().try_for_each(|program| seccompiler::apply_filter(program).map_err(io_error))
}

/// Keeps the error of the kernel if there is one.
fn io_error(error: seccompiler::Error) -> io::Error {
    match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// Compiles one program per error number, and last the one that kills. The kernel runs all of them
/// and applies the severest result, so the last one also allows the calls that get an error.
fn compile(process: FilteredProcess) -> io::Result<Vec<BpfProgram>> {
    let rows: Vec<_> = ROWS.iter().filter(|row| row.processes.contains(process)).collect();
    let mut errors: Vec<u32> = rows.iter().filter_map(|row| row.verdict.error()).collect();
    errors.sort_unstable();
    errors.dedup();
    let mut programs = Vec::new();
    for errno in errors {
        let refused = rows.iter().filter(|row| row.verdict == SyscallVerdict::Fail(errno));
        programs.push(program(refused, SeccompAction::Allow, SeccompAction::Errno(errno))?);
    }
    programs.push(program(rows.iter(), SeccompAction::KillProcess, SeccompAction::Allow)?);
    Ok(programs)
}

fn program<'a>(
    rows: impl Iterator<Item = &'a &'a SyscallRow>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for row in rows {
        let of_call = rules.entry(row.number).or_default();
        // A call without rules matches always.
        if !row.conditions.is_empty() {
            let conditions = row.conditions.iter().map(condition).collect::<Result<_, _>>();
            of_call.push(
                conditions.and_then(SeccompRule::new).map_err(|error| io::Error::other(error.to_string()))?,
            );
        }
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH);
    let filter =
        architecture.and_then(|architecture| SeccompFilter::new(rules, otherwise, matched, architecture));
    filter.and_then(BpfProgram::try_from).map_err(|error| io::Error::other(error.to_string()))
}

fn condition(condition: &ArgumentCondition) -> Result<SeccompCondition, seccompiler::BackendError> {
    // The kernel ignores the upper half of an `int`, and so must the filter.
    let length =
        if condition.mask > u64::from(u32::MAX) { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
    SeccompCondition::new(condition.argument, length, SeccompCmpOp::MaskedEq(condition.mask), condition.value)
}
