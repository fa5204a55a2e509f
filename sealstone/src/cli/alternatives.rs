//! Options that exclude each other: an option overrides variables of the others, and two options
//! are an error.
//!
//! clap counts a variable as a given option, so that `--mds` would conflict with an exported
//! `SEALSTONE_CLUSTER`.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Identifiers of options that exclude each other; at least one of each row has a variable.
const ALTERNATIVES: &[&[&str]] = &[
    &["cluster", "mds"],
    &["password_file", "enrol", "service"],
    &["password_file", "key_file"],
    &["meta_password_file", "meta_credential"],
    &["keystore_key", "passphrase_file", "keystore_credential"],
    &["directory_bind_password_file", "directory_bind_credential"],
];

/// Name of a variable that is never set; it replaces the variable of an overridden option.
const NO_VARIABLE: &str = "SEALSTONE_NO_VARIABLE";

/// Returns the command (names from the top down) and its options whose environment variables are
/// overridden.
///
/// # Errors
/// Two options of the command line exclude each other.
pub(crate) fn overridden(
    command: &Command,
    matches: &ArgMatches,
) -> Result<(Vec<String>, Vec<&'static str>), Error> {
    let (mut path, mut command, mut matches) = (Vec::new(), command, matches);
    while let Some((name, below)) = matches.subcommand() {
        path.push(name.to_owned());
        command = command.find_subcommand(name).expect("clap found it");
        matches = below;
    }
    let known = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
    let mut overridden = Vec::new();
    for row in ALTERNATIVES {
        let given = |from: ValueSource| {
            let known = row.iter().copied().filter(|id| known(id));
            known.filter(|id| matches.value_source(id) == Some(from)).collect::<Vec<_>>()
        };
        let (flags, variables) = (given(ValueSource::CommandLine), given(ValueSource::EnvVariable));
        if let [first, second, ..] = flags[..] {
            let flag = |id: &str| ContextValue::String(format!("--{}", id.replace('_', "-")));
            let mut error = Error::new(ErrorKind::ArgumentConflict).with_cmd(command);
            error.insert(ContextKind::InvalidArg, flag(second));
            error.insert(ContextKind::PriorArg, flag(first));
            return Err(error);
        }
        if !flags.is_empty() {
            overridden.extend(variables);
        }
    }
    Ok((path, overridden))
}

/// Returns the command with options of a subcommand that ignore the environment.
pub(crate) fn without_variables(command: Command, path: &[String], ids: &[&'static str]) -> Command {
    match path.split_first() {
        Some((name, below)) => command.mut_subcommand(name, |sub| without_variables(sub, below, ids)),
        None => {
            ids.iter().fold(command, |command, id| command.mut_arg(id, |argument| argument.env(NO_VARIABLE)))
        }
    }
}
