//! The `sealstone` program: command line and daemons.
//!
//! Does: connects sockets, clocks and files with the pure crates.

mod cli;
mod command;
mod config;
mod daemon;
mod output;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::CommandFactory;
use sealstone_failure::{Failure, FailureKind, Outcome};

use crate::cli::{Cli, Command, ConfigCommand};
use crate::command::{block_on, cap, demo, files, groups, revoke, session, transfer, users};
use crate::output::Output;

fn main() -> ExitCode {
    if let Err(error) = sealstone_daemon::core_dumps::forbid() {
        let failure = Failure::operation(format!("core dumps cannot be forbidden: {error}"))
            .hint("permit the calls setrlimit and prctl, or set SEALSTONE_CORE_DUMPS=1");
        Output::new(false, false, "").failure(&failure);
        return exit_code(failure.kind);
    }
    let words: Vec<OsString> = match sealstone_mounts::helper_arguments(std::env::args_os()) {
        Ok(None) => std::env::args_os().collect(),
        Ok(Some(words)) => words,
        Err(message) => {
            let failure = Failure::usage(message).hint("sealstone mount --help");
            Output::new(false, false, "mount").failure(&failure);
            return exit_code(failure.kind);
        }
    };
    let tree = Cli::command();
    let command = cli::command_words(&tree, &words);
    let cli = match Cli::parse_words(tree, words) {
        Ok(cli) => cli,
        // Help and version are no failures.
        Err(error) if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") => {
            let failure = Failure::usage(usage_message(&error.to_string()))
                .hint(format!("sealstone {command} --help").replace("  ", " "));
            Output::new(true, true, command).failure(&failure);
            return exit_code(failure.kind);
        }
        // Repeated arguments must not send control characters to the terminal.
        Err(error) if error.use_stderr() => {
            Output::new(false, false, command).usage(&error.render().to_string());
            return exit_code(FailureKind::Usage);
        }
        Err(error) => error.exit(),
    };
    let output = Output::new(cli.global.json, cli.global.quiet, command);
    let daemon = match &cli.command {
        Command::Osd(command) => {
            use cli::Osd;
            !matches!(
                command,
                Osd::Approve { .. } | Osd::Check { .. } | Osd::Clock(_) | Osd::Drain(_) | Osd::Rebalance(_)
            )
        }
        Command::Mds(cli::Mds::Clock(_)) => false,
        Command::Mount(arguments) => arguments.foreground,
        Command::Block(cli::Block::Attach(_)) => true,
        command => matches!(command, Command::Up(_) | Command::Mds(_)),
    };
    let filter = match &cli.command {
        // On a terminal `up` logs warnings and errors only.
        Command::Up(_) if std::io::stderr().is_terminal() => "warn",
        _ if daemon => "info",
        _ => "off",
    };
    sealstone_logs::start(cli.global.log_format.into(), filter);
    match run(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = output.with_default_hint(failure);
            output.failure(&failure);
            exit_code(failure.kind)
        }
    }
}

/// Returns the exit code of a failure: docs/reference/cli.md lists them.
fn exit_code(kind: FailureKind) -> ExitCode {
    ExitCode::from(match kind {
        FailureKind::Operation => 1,
        FailureKind::Usage => 2,
        FailureKind::Denied => 3,
        FailureKind::NotFound => 4,
        FailureKind::Signal(number) => 128u8.saturating_add(number),
    })
}

/// Returns the message of a parse error as one line, without its usage and tips.
fn usage_message(error: &str) -> String {
    let lines = error.lines().take_while(|line| !line.is_empty()).map(str::trim);
    lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
}

fn run(cli: Cli, output: Output) -> Outcome {
    let global = &cli.global;
    match cli.command {
        Command::Up(arguments) => daemon::up::command(output, &arguments),
        Command::Osd(command) => daemon::osd::command(global, output, command),
        Command::Mds(command) => daemon::mds::command(global, output, command),
        Command::User(command) => block_on(users::run(global, output, &command)),
        Command::Group(command) => block_on(groups::run(global, output, &command)),
        Command::Enrol(arguments) => block_on(session::enrol(global, output, &arguments)),
        Command::Login(arguments) => block_on(session::login(global, output, &arguments)),
        Command::Block(command) => command::block::command(global, output, command),
        Command::Scrub(arguments) => command::maintenance::scrub(output, &arguments),
        Command::Logout { revoke } => block_on(session::logout(global, output, revoke)),
        Command::Whoami => block_on(session::whoami(global, output)),
        Command::Put(arguments) => block_on(transfer::put(global, output, &arguments)),
        Command::Get(arguments) => block_on(transfer::get(global, output, &arguments)),
        Command::Cat(arguments) => block_on(transfer::cat(global, output, &arguments)),
        Command::Ls(arguments) => block_on(files::ls(global, output, &arguments)),
        Command::Stat(arguments) => block_on(files::stat(global, output, &arguments)),
        Command::Mkdir(arguments) => block_on(files::mkdir(global, output, &arguments)),
        Command::Mv(arguments) => block_on(files::mv(global, output, &arguments)),
        Command::Ln(arguments) => block_on(files::ln(global, output, &arguments)),
        Command::Rm(arguments) => block_on(files::rm(global, output, &arguments)),
        Command::Chmod(arguments) => block_on(files::chmod(global, output, &arguments)),
        Command::Chown(arguments) => block_on(files::chown(global, output, &arguments)),
        Command::Chgrp(arguments) => block_on(files::chgrp(global, output, &arguments)),
        Command::Function(command) => block_on(command::functions::run(global, output, &command)),
        Command::Run(arguments) => block_on(command::run::run(global, output, &arguments)),
        Command::Job(command) => block_on(command::jobs::run(global, output, &command)),
        Command::Cap(command) => block_on(cap::run(global, output, &command)),
        Command::Revoke(arguments) => block_on(revoke::run(global, output, &arguments)),
        Command::Audit(arguments) => block_on(command::audit::run(global, output, &arguments)),
        Command::Check(arguments) => block_on(command::maintenance::check(global, output, &arguments)),
        Command::Quota(command) => block_on(command::quotas::run(global, output, &command)),
        Command::Mount(arguments) => command::mount::mount(global, output, &arguments),
        Command::Umount(arguments) => command::mount::umount(output, &arguments),
        Command::Df => block_on(files::df(global, output)),
        Command::Config(ConfigCommand::Example { daemon }) => {
            let text = config::example(&daemon)?;
            output.result(&serde_json::json!({ "example": text }), || text.trim_end().to_owned())
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::tree(), "sealstone", &mut script);
            if output.is_json() {
                let script = String::from_utf8_lossy(&script);
                return output.done(&serde_json::json!({ "shell": shell.to_string(), "script": script }));
            }
            output::print_bytes(&script)
        }
        Command::Demo(arguments) => demo::command(output, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_message_names_missing_arguments() {
        let error =
            "error: the following required arguments were not provided:\n  --key-file <FILE>\n\nUsage: x\n";
        assert_eq!(
            usage_message(error),
            "the following required arguments were not provided: --key-file <FILE>"
        );
    }
}
