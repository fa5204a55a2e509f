//! The words of a command line that name its command, found before the line is parsed.

use std::ffi::OsString;

/// Returns the words of the command in a command line, such as `user add`; empty if there are none.
pub(crate) fn command_words(root: &clap::Command, words: &[OsString]) -> &'static str {
    let globals = || root.get_arguments().filter(|option| option.is_global_set());
    let mut command = root;
    let (mut found, mut skip_value) = (Vec::new(), false);
    for word in words.iter().skip(1).map(|word| word.to_string_lossy()) {
        if std::mem::take(&mut skip_value) {
            continue;
        }
        if let Some(flag) = word.strip_prefix("--") {
            let mut options = command.get_arguments().chain(globals());
            let option = options.find(|option| option.get_long() == Some(flag));
            skip_value = option.is_some_and(|option| option.get_action().takes_values());
        } else if let Some(below) = command.find_subcommand(&*word) {
            found.push(below.get_name().to_owned());
            command = below;
        } else if !word.starts_with('-') {
            break;
        }
    }
    // Once per process, and needed until its end.
    found.join(" ").leak()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    #[test]
    fn command_words_skip_options_and_values() {
        let words = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            command_words(&Cli::command(), &words)
        };
        assert_eq!(words("sealstone --json user add alice"), "user add");
        assert_eq!(words("sealstone --session get user ls"), "user list");
        assert_eq!(words("sealstone user --session get ls"), "user list");
        assert_eq!(words("sealstone put ls get"), "put");
        assert_eq!(words("sealstone --help"), "");
    }
}
