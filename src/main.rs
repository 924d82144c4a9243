//! The binary `tailrace`: a node, and the client commands that go with it.
//!
//! Read in this order: [`cli`], [`settings`], [`start`] (the process around a node), [`data_dir`], [`fitness`], [`office`] (admin HTTP, signals),
//! [`client`]. The node itself is the crate `node`. This one may use the operating system and tokio; what runs on a shard may not (see `engine::rt`).
//!
//! Exit codes: [`exit::Exit`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is here runs before the shards, beside them or without them"
)]

mod admin_door;
mod allocator;
mod cli;
mod client;
mod data_dir;
mod exit;
mod fitness;
mod logging;
mod machine;
mod office;
mod settings;
mod start;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, ConfigArgs, SettingsArgs};
use exit::{Exit, Fatal};
use node::exit::say;
use settings::Settings;

/// Batches are often freed on another shard than the one that made them: that must not take a lock (measured: docs/decisions/2026-11-30-allocator.md).
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    cli::complete::answer_the_shell();
    let cli = Cli::parse_from(cli::words(std::env::args_os()));
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            say(format_args!("tailrace: {fatal}"));
            ExitCode::from(fatal.exit as u8)
        }
    }
}

fn run(cli: Cli) -> Result<(), Fatal> {
    let before = cli.settings;
    let of_a_node = matches!(
        cli.command,
        None | Some(Command::Serve(_) | Command::Config(ConfigArgs { command: None, .. }))
    );
    if let Some(flag) = before.first().filter(|_| !of_a_node) {
        return Err(Fatal::new(
            Exit::Usage,
            format!(
                "{flag} is a setting of a node: it goes with `tailrace serve` and `tailrace config`, and what this command takes stands behind it (--help)"
            ),
        ));
    }
    match cli.command {
        None => serve(&before),
        Some(Command::Serve(args)) => serve(&before.and(&args)),
        Some(Command::Config(ConfigArgs {
            command: Some(command),
            ..
        })) => {
            end_with_the_reader();
            for_clients()?;
            client::configs::run(command)
        }
        Some(Command::Config(args)) => {
            end_with_the_reader();
            let shown = resolve(&before.and(&args.settings))?.show();
            std::io::stdout()
                .write_all(shown.as_bytes())
                .map_err(|e| exit::cannot_print(&e))
        }
        Some(Command::Topic(command)) => {
            end_with_the_reader();
            for_clients()?;
            client::topics::run(command)
        }
        Some(Command::Group(command)) => {
            end_with_the_reader();
            for_clients()?;
            client::groups::run(command)
        }
        Some(Command::Cluster(command)) => {
            end_with_the_reader();
            for_clients()?;
            client::overview::run(command)
        }
        Some(Command::Quota(command)) => {
            end_with_the_reader();
            for_clients()?;
            client::quotas::run(command)
        }
        Some(Command::Produce(args)) => {
            for_clients()?;
            client::produce::run(args)
        }
        Some(Command::Consume(args)) => {
            for_clients()?;
            client::consume::run(args)
        }
        Some(Command::Bench(command)) => {
            end_with_the_reader();
            for_clients()?;
            bench::cli::run(command).map_err(|e| match e {
                bench::Error::Usage(_) => Fatal::new(Exit::Usage, e.to_string()),
                _ => Fatal::new(Exit::Failure, e.to_string()),
            })
        }
        Some(Command::Completion { shell, names }) => {
            end_with_the_reader();
            cli::complete::print_script(&shell, names)
        }
    }
}

/// Client commands take nothing from the environment but the broker's address; a mistyped variable is refused all the same.
fn for_clients() -> Result<(), Fatal> {
    settings::from_environment(std::env::vars_os())?;
    Ok(())
}

/// What only prints ends quietly when nobody reads it any more (`tailrace topic list | head -1`).
fn end_with_the_reader() {
    // SAFETY: called before any thread is started; the default action is the system's own.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// The settings of this call.
fn resolve(args: &SettingsArgs) -> Result<Settings, Fatal> {
    let file = args
        .config
        .clone()
        .or_else(|| std::env::var_os("TAILRACE_CONFIG").map(Into::into));
    let file = match file {
        Some(path) => settings::read_file(&path)?,
        None => settings::Layer::new(),
    };
    let environment = settings::from_environment(std::env::vars_os())?;
    let layers = [file, environment, args.layer.clone()];
    Ok(Settings::resolve(&layers, machine::look())?)
}

fn serve(args: &SettingsArgs) -> Result<(), Fatal> {
    let settings = resolve(args)?;
    let loggers = logging::start(&settings.log)?;
    start::serve(&settings, loggers)
}
