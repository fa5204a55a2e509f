//! Secure object storage: daemons and command line.
//!
//! The only place where everything meets: sockets, clocks, files and the pure parts.

mod chap_file;
mod cli;
mod command;
mod config;
mod daemon;
mod demo;
mod failure;
mod log_limit;
mod logging;
mod metrics;
mod output;
mod secret_file;
mod text;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Command, ConfigCommand};
use crate::command::{block_on, cap, files, groups, revoke, session, transfer, users};
use crate::failure::{Failure, Outcome};
use crate::output::Output;

fn main() -> ExitCode {
    let parsed = match cli::mount::helper_arguments(std::env::args_os()) {
        Ok(None) => Cli::parse_words(std::env::args_os()),
        Ok(Some(words)) => Cli::parse_words(words),
        Err(said) => {
            let failure = Failure::usage(said).hint("sealstone mount --help");
            Output::new(false, false).failure(&failure);
            return failure.kind.into();
        }
    };
    let cli = match parsed {
        Ok(cli) => cli,
        // Scripts that asked for JSON get it here too; help and version are no failures.
        Err(error) if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") => {
            let said = error.to_string();
            let line = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let failure = Failure::usage(line).hint("sealstone --help");
            Output::new(true, true).failure(&failure);
            return failure.kind.into();
        }
        // Arguments that it repeats must not change the terminal.
        Err(error) if error.use_stderr() => {
            Output::new(false, false).usage(&error.render().to_string());
            return failure::Kind::Usage.into();
        }
        Err(error) => error.exit(),
    };
    let output = Output::new(cli.global.json, cli.global.quiet);
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
        command => matches!(command, Command::Up(_) | Command::Mds(_)),
    };
    let filter = match &cli.command {
        // A person watches it: what needs no attention is left out.
        Command::Up(_) if std::io::stderr().is_terminal() => "warn",
        _ if daemon => "info",
        _ => "off",
    };
    logging::start(cli.global.log_format, filter);
    match run(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.kind.into()
        }
    }
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
        Command::Block(command) => command::block::command(output, command),
        Command::Scrub(arguments) => command::scrub::command(output, &arguments),
        Command::Logout { revoke } => block_on(session::logout(global, output, revoke)),
        Command::Whoami => block_on(session::whoami(global, output)),
        Command::Put(arguments) => block_on(transfer::put(global, output, &arguments)),
        Command::Get(arguments) => block_on(transfer::get(global, output, &arguments)),
        Command::Cat(arguments) => block_on(transfer::cat(global, &arguments)),
        Command::Ls(arguments) => block_on(files::ls(global, output, &arguments)),
        Command::Stat(arguments) => block_on(files::stat(global, output, &arguments)),
        Command::Mkdir(arguments) => block_on(files::mkdir(global, output, &arguments)),
        Command::Mv(arguments) => block_on(files::mv(global, output, &arguments)),
        Command::Ln(arguments) => block_on(files::ln(global, output, &arguments)),
        Command::Rm(arguments) => block_on(files::rm(global, output, &arguments)),
        Command::Chmod(arguments) => block_on(files::chmod(global, output, &arguments)),
        Command::Chown(arguments) => block_on(files::chown(global, output, &arguments)),
        Command::Chgrp(arguments) => block_on(files::chgrp(global, output, &arguments)),
        Command::Cap(command) => block_on(cap::run(global, output, &command)),
        Command::Revoke(arguments) => block_on(revoke::run(global, output, &arguments)),
        Command::Audit(arguments) => block_on(command::audit::run(global, output, &arguments)),
        Command::Check(arguments) => block_on(command::look_through::run(global, output, &arguments)),
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
            clap_complete::generate(shell, &mut Cli::command(), "sealstone", &mut script);
            output::print_bytes(&script)
        }
        Command::Demo(arguments) => demo::command(output, &arguments),
    }
}
