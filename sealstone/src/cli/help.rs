//! Layout of the help texts: groups of commands and of options.
//!
//! Does: groups the commands of `sealstone --help`, hides global options from commands that ignore
//! them, and puts rarely used options under a heading of their own. Does not change what is parsed:
//! a hidden option is still accepted.

use clap::{Arg, Command};

/// Heading of options that few users need.
pub(super) const ADVANCED: &str = "Advanced options";
/// Heading of the options that most commands have.
pub(super) const GLOBAL: &str = "Global options";

/// Groups of commands, in the order of the help text. Every command is in one.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Files",
        &["put", "get", "cat", "ls", "stat", "mkdir", "mv", "ln", "rm", "chmod", "chown", "chgrp", "df"],
    ),
    ("Functions", &["fn", "run", "job"]),
    ("Mounts", &["mount", "umount"]),
    ("Session", &["login", "logout", "whoami", "enrol"]),
    ("Credentials", &["cap", "revoke", "audit"]),
    ("Accounts", &["user", "group", "quota"]),
    ("Servers", &["up", "mds", "osd", "block", "scrub", "check"]),
    ("Other", &["config", "completion", "demo", "help"]),
];

/// Commands that take stored paths, which `--escaped` decodes.
const WITH_STORED_PATHS: &[&str] = &[
    "put",
    "get",
    "cat",
    "ls",
    "stat",
    "mkdir",
    "mv",
    "ln",
    "rm",
    "chmod",
    "chown",
    "chgrp",
    "mount",
    "fn",
    "run",
    "cap issue",
    "revoke",
    "audit",
    "quota set",
    "quota show",
    "quota clear",
];

/// Commands, or groups of them, that use the session file.
const WITH_SESSION: &[&str] = &[
    "put",
    "get",
    "cat",
    "ls",
    "stat",
    "mkdir",
    "mv",
    "ln",
    "rm",
    "chmod",
    "chown",
    "chgrp",
    "df",
    "mount",
    "fn",
    "run",
    "job",
    "login",
    "logout",
    "whoami",
    "enrol",
    "cap issue",
    "revoke",
    "audit",
    "user",
    "group",
    "quota",
    "check",
    "osd approve",
    "osd drain",
    "osd rebalance",
    "mds add-osd",
    "mds keys list",
    "mds keys rotate",
];

/// Commands that send commands to devices.
const WITH_DEVICES: &[&str] = &["put", "get", "cat", "mount", "fn", "run", "job", "cap get", "cap put"];

/// Returns whether a global option has an effect in a command. A group of commands has the options
/// of its members.
fn has_effect(option: &str, command: &str) -> bool {
    let listed = |list: &[&str]| {
        list.iter().any(|entry| {
            let is_below = |whole: &str, part: &str| {
                whole.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            };
            is_below(command, entry) || is_below(entry, command)
        })
    };
    match option {
        "session" => listed(WITH_SESSION),
        "escaped" => listed(WITH_STORED_PATHS),
        "chap_file" | "device_tls" => listed(WITH_DEVICES) || listed(&["block attach"]),
        "conceal_method" => listed(WITH_DEVICES),
        _ => true,
    }
}

/// Returns the command line with its help texts laid out.
pub(super) fn lay_out(root: Command) -> Command {
    let globals: Vec<Arg> = root.get_arguments().filter(|option| option.is_global_set()).cloned().collect();
    let names: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut root = names
        .iter()
        .fold(root, |root, name| root.mut_subcommand(name, |command| lay_out_below(command, name, &globals)));
    let text = overview(&root);
    root = root.override_help(text);
    root
}

/// Joins the lines of each paragraph, so that their text wraps at the width of the terminal. Lines
/// that begin with a blank are examples, and lines that end with a colon are headings.
fn reflow(text: &str) -> String {
    let mut flowed = String::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_text = !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        if !flowed.is_empty() {
            flowed.push(if is_open && is_text { ' ' } else { '\n' });
        }
        flowed.push_str(line);
        is_open = is_text;
    }
    flowed
}

fn lay_out_below(command: Command, path: &str, globals: &[Arg]) -> Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(reflow(&text)),
        None => command,
    };
    let names: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    // An option that a command declares itself is not inherited from its parent.
    let declares =
        |command: &Command, id: &clap::Id| command.get_arguments().any(|option| option.get_id() == id);
    let command = globals.iter().fold(command, |command, option| {
        // `mds serve` has a CHAP file of its own.
        if declares(&command, option.get_id()) {
            return command;
        }
        let hidden = !has_effect(option.get_id().as_str(), path);
        command.arg(option.clone().hide(hidden))
    });
    let own: Vec<String> = command.get_arguments().map(|option| option.get_id().to_string()).collect();
    let command = own.iter().fold(command, |command, id| match heading(path, id) {
        Some(heading) => command.mut_arg(id, |option| option.help_heading(heading).hide_short_help(true)),
        None => command,
    });
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |below| lay_out_below(below, &format!("{path} {name}"), globals))
    })
}

/// Returns the heading of an option of a command, if it is not a common one.
fn heading(path: &str, id: &str) -> Option<&'static str> {
    let is_daemon = matches!(path, "osd serve" | "mds serve" | "mds directory");
    if id.starts_with("insecure_") || id == "i_accept_insecure" {
        return Some("Insecure options");
    }
    if is_daemon {
        let (limit, audit) = (id.ends_with("_max") || id.ends_with("_min"), id.starts_with("audit_"));
        return match id {
            _ if id.starts_with("directory_") => Some("Options for an LDAP directory of users"),
            _ if id.starts_with("time") && id != "time_slices" => Some("Options for the time"),
            _ if id == "meta" || id.starts_with("meta_") => Some("Options for the metadata store"),
            "keystore_key" | "passphrase_file" | "keystore_credential" => Some("Options for the keystore"),
            "short_first" | "time_slices" | "pull_kib" | "io" | "allow_target_reset" | "allow_osd1"
            | "method_cipher" | "method_floor" | "paper_functions" | "sealed_only" | "seal_capabilities"
            | "conceal_method" | "discard_kib_min" | "group_s_max" | "default_method" => Some(ADVANCED),
            _ if limit || audit => Some("Limits"),
            _ => None,
        };
    }
    match (path, id) {
        ("put" | "get" | "cat" | "cap issue", "method")
        | ("run", "security" | "together" | "commit")
        | (
            "mount",
            "attr_timeout" | "no_leases" | "dirsync" | "timeout" | "memory" | "unknown_uid" | "unknown_gid",
        )
        | ("login", "paper_profile" | "conservative")
        | ("mds add-osd", "speed" | "wait")
        | ("block create", "lun" | "block_size" | "removable")
        | (
            "block attach",
            "export" | "timeout" | "sessions" | "initiator_name" | "pin" | "protect" | "protect_block",
        ) => Some(ADVANCED),
        (_, "meta" | "meta_ca_file" | "meta_password_file" | "meta_credential" | "meta_wait_s_max") => {
            Some("Options for the metadata store")
        }
        _ => None,
    }
}

/// Returns the text of `sealstone --help`: clap's, with the commands in groups.
fn overview(root: &Command) -> String {
    let names: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let without_commands =
        names.iter().fold(root.clone(), |root, name| root.mut_subcommand(name, |command| command.hide(true)));
    let options: Vec<String> = root.get_arguments().map(|option| option.get_id().to_string()).collect();
    let mut without_commands = options.iter().fold(without_commands, |root, id| {
        root.mut_arg(id, |option| {
            let advanced = option.get_help_heading() == Some(ADVANCED);
            option.hide(advanced)
        })
    });
    let help = without_commands.render_help().to_string().replacen("[OPTIONS]\n", "[OPTIONS] <COMMAND>\n", 1);
    let mut groups = String::new();
    for (group, commands) in GROUPS {
        groups += &format!("{group}:\n");
        for name in *commands {
            let about = root.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(|| "Show the help of a command".to_owned(), ToString::to_string);
            groups += &format!("  {name:10}  {about}\n");
        }
        groups.push('\n');
    }
    // The options follow an empty line after the usage.
    let at = help.find("\n\nUsage:").and_then(|usage| Some(usage + 2 + help[usage + 2..].find("\n\n")? + 2));
    let at = at.unwrap_or(help.len());
    let more = "`sealstone COMMAND --help` has the options of a command, with examples.\n\n";
    format!("{}{groups}{more}{}", &help[..at], &help[at..])
}

/// Returns the words of an example, of which a text in quotes is one. Two blanks begin a remark; a
/// pipe or `>` ends the command.
#[cfg(test)]
pub(super) fn example_words(example: &str) -> Vec<&str> {
    let line = example.split("  ").next().unwrap_or_default();
    let mut words = vec!["sealstone"];
    for (at, part) in line.split('\'').enumerate() {
        let is_quoted = at % 2 == 1;
        let end = part.find(['|', '>']).filter(|_| !is_quoted);
        match is_quoted {
            true => words.push(part),
            false => words.extend(part[..end.unwrap_or(part.len())].split_whitespace()),
        }
        if end.is_some() {
            break;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn find<'a>(root: &'a Command, path: &str) -> Option<&'a Command> {
        path.split(' ').try_fold(root, |command, name| command.find_subcommand(name))
    }

    #[test]
    fn paragraphs_after_examples_are_joined() {
        let text = "Examples:\n  sealstone a    one\n  sealstone b\nThe first\nsentence.\n\nNext:\n  c\nend";
        let joined = "Examples:\n  sealstone a    one\n  sealstone b\nThe first sentence.\n\nNext:\n  c\nend";
        assert_eq!(reflow(text), joined);
    }

    #[test]
    fn every_command_is_in_one_group() {
        let root = Cli::tree();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut names: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
        names.retain(|name| *name != "help");
        grouped.retain(|name| *name != "help");
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn tables_name_existing_commands() {
        let root = Cli::tree();
        for path in [WITH_SESSION, WITH_STORED_PATHS, WITH_DEVICES].concat() {
            assert!(find(&root, path).is_some(), "{path}");
        }
    }

    #[test]
    fn options_without_effect_are_not_shown() {
        let mut root = Cli::tree();
        root.build();
        let shows = |path: &str, flag: &str| {
            let mut command = find(&root, path).expect("exists").clone();
            command.render_long_help().to_string().contains(flag)
        };
        for path in ["osd serve", "up", "osd init", "mds serve", "config example", "cap show", "umount"] {
            assert!(!shows(path, "--session"), "{path}");
            assert!(!shows(path, "--device-tls"), "{path}");
            assert!(!shows(path, "--escaped"), "{path}");
        }
        for path in ["put", "mount"] {
            assert!(shows(path, "--session") && shows(path, "--device-tls") && shows(path, "--escaped"));
        }
        assert!(shows("whoami", "--session") && !shows("whoami", "--device-tls"));
        assert!(shows("osd", "--session") && shows("osd drain", "--session"));
    }

    #[test]
    fn global_options_work_everywhere() {
        for words in [
            ["sealstone", "--json", "--session", "/s", "ls"],
            ["sealstone", "ls", "--json", "--session", "/s"],
        ] {
            let parsed = Cli::parse_words(Cli::command(), words.map(Into::into)).expect("parses");
            assert!(parsed.global.json, "{words:?}");
            assert_eq!(parsed.global.session, Some("/s".into()), "{words:?}");
        }
        let hidden = ["sealstone", "up", "--session", "/s"];
        assert!(Cli::parse_words(Cli::command(), hidden.map(Into::into)).is_ok());
    }

    #[test]
    fn overview_has_groups_and_examples() {
        let help = Cli::tree().render_help().to_string();
        for part in ["Files:\n  put ", "Servers:\n  up ", "Global options:", "Examples:", "--json"] {
            assert!(help.contains(part), "{part} is missing in: {help}");
        }
        assert!(!help.contains("--conceal-method"), "{help}");
    }
}
