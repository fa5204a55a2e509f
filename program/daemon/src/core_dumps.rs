//! Core dumps of a program, which would contain keys, passwords and secret arguments.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Variable that permits core dumps, and inspection by processes of the same user.
const PERMITTED: &str = "SEALSTONE_CORE_DUMPS";

/// Forbids core dumps of this process and of programs that it starts, unless `SEALSTONE_CORE_DUMPS`
/// is set.
///
/// # Errors
/// Those of the system.
pub fn forbid() -> io::Result<()> {
    if std::env::var_os(PERMITTED).is_some() {
        return Ok(());
    }
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // The limit has no effect where a program of the machine collects core dumps.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn process_has_no_core_dump() {
        forbid().unwrap();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
