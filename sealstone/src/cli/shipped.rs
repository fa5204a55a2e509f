//! Options of `run` for the arguments of the shipped functions, from the table of these functions.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use sealstone_function_runs::is_reducible;
use sealstone_functions::{FunctionParameter, SHIPPED_FUNCTIONS};

/// Heading of these options in the help text.
const HEADING: &str = "Arguments of shipped functions";

/// Arguments of a shipped function, as `NAME=VALUE` pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShippedArguments(pub(crate) Vec<(String, String)>);

/// A parameter, and the functions that have it in this form.
type KnownParameter = (&'static FunctionParameter, Vec<&'static str>);

/// Returns the parameters of all functions by name. One name can have several forms.
fn parameters() -> BTreeMap<&'static str, Vec<KnownParameter>> {
    let mut all: BTreeMap<&'static str, Vec<KnownParameter>> = BTreeMap::new();
    for function in SHIPPED_FUNCTIONS.iter().filter(|function| is_reducible(function)) {
        for parameter in function.parameters.iter().filter(|parameter| !parameter.secret) {
            let forms = all.entry(parameter.name).or_default();
            match forms.iter_mut().find(|(known, _)| known.help == parameter.help) {
                Some((_, functions)) => functions.push(function.name),
                None => forms.push((parameter, vec![function.name])),
            }
        }
    }
    all
}

fn option(forms: &[KnownParameter]) -> Option<Arg> {
    let (parameter, _) = forms.first()?;
    let help =
        |(parameter, functions): &KnownParameter| format!("{}: {}", functions.join(", "), parameter.help);
    let help = forms.iter().map(help).collect::<Vec<_>>().join("; ");
    let option = Arg::new(parameter.name).long(parameter.name).help(help).help_heading(HEADING);
    Some(match parameter.is_switch {
        true => option.action(ArgAction::SetTrue),
        false => option.value_name("VALUE").allow_hyphen_values(true),
    })
}

impl Args for ShippedArguments {
    fn augment_args(command: Command) -> Command {
        command.args(parameters().values().filter_map(|forms| option(forms)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ShippedArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |parameter: &FunctionParameter| match parameter.is_switch {
            true => matches.get_flag(parameter.name).then(|| "true".to_owned()),
            false => matches.get_one::<String>(parameter.name).cloned(),
        };
        let all = parameters();
        let known = all.values().filter_map(|forms| forms.first());
        let given = known.filter_map(|(known, _)| Some((known.name.to_owned(), value(known)?)));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> ShippedArguments {
        let command = ShippedArguments::augment_args(Command::new("run").no_binary_name(true));
        ShippedArguments::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn options_become_arguments_of_function() {
        let arguments = parse(&["--pattern", "-x", "--ignore-case"]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(arguments.0, [pair("ignore-case", "true"), pair("pattern", "-x")]);
    }
}
