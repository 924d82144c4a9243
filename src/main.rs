//! The binary `tailrace`: a node, and the client commands that go with it.
//!
//! Read in this order: [`cli`], [`settings`], [`node`] (a node's start and end), [`data_dir`], [`fitness`], [`office`] (admin HTTP, signals),
//! [`client`]. This crate may use the operating system and tokio; what runs on a shard may not (see `engine::rt`).
//!
//! Exit codes: [`exit::Exit`].

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is here runs before the shards, beside them or without them; the modules that run on a shard take this back"
)]

mod allocator;
mod cli;
mod client;
mod data_dir;
mod exit;
mod fitness;
mod logging;
mod machine;
mod node;
mod office;
mod settings;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command, SettingsArgs};
use exit::Fatal;
use settings::Settings;

/// Batches are often freed on another shard than the one that made them: that must not take a lock (measured: docs/decisions/2026-11-30-allocator.md).
#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        None => serve(&cli.settings),
        Some(Command::Serve(args)) => serve(&args),
        Some(Command::Config(args)) => {
            end_with_the_reader();
            resolve(&args).map(|(settings, _)| print!("{}", settings.show()))
        }
        Some(Command::Topic(command)) => {
            end_with_the_reader();
            client::topics::run(command)
        }
        Some(Command::Produce(args)) => client::produce::run(args),
        Some(Command::Consume(args)) => client::consume::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            eprintln!("tailrace: {fatal}");
            ExitCode::from(fatal.exit as u8)
        }
    }
}

/// What only prints ends quietly when nobody reads it any more (`tailrace topic list | head -1`).
fn end_with_the_reader() {
    // SAFETY: called before any thread is started; the default action is the system's own.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// The settings of this call, and variables that look like settings but aren't.
fn resolve(args: &SettingsArgs) -> Result<(Settings, Vec<String>), Fatal> {
    let file = args
        .config
        .clone()
        .or_else(|| std::env::var_os("TAILRACE_CONFIG").map(Into::into));
    let file = match file {
        Some(path) => settings::read_file(&path)?,
        None => settings::Layer::new(),
    };
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let (environment, strangers) = settings::from_environment(variables);
    let layers = [file, environment, args.layer.clone()];
    Ok((Settings::resolve(&layers, machine::look())?, strangers))
}

fn serve(args: &SettingsArgs) -> Result<(), Fatal> {
    let (settings, strangers) = resolve(args)?;
    logging::start(&settings.log)?;
    for name in strangers {
        tracing::warn!(
            "the environment variable {name} is no setting of Tailrace and does nothing"
        );
    }
    node::serve(&settings)
}
