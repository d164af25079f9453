//! The `blockwire` binary: `serve`, `demo`, `doctor`, `generate`.
//!
//! Exit status: 0 done, 1 failed while running, 2 wrong arguments or a model that cannot be used.

#![forbid(unsafe_code)]

mod args;
mod config;
mod demo;
mod doctor;
mod fetch;
mod generate;
mod key;
mod model;
mod node;
mod progress;
mod runtime;
mod serve;
mod stop;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use args::Command;
use config::ConfigError;

fn main() -> ExitCode {
    let cli = match config::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(ConfigError::Flags(error)) => error.exit(),
        Err(error) => {
            eprintln!("blockwire: {error}");
            return ExitCode::from(2);
        }
    };
    let filter = EnvFilter::try_from_env("BLOCKWIRE_LOG")
        .unwrap_or_else(|_| EnvFilter::new(default_level(&cli.command)));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Generate(args) => generate::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blockwire: {error:#}");
            ExitCode::from(if error.is::<model::Unusable>() { 2 } else { 1 })
        }
    }
}

/// What is worth a line when nobody asked: everything of a server, warnings of a command.
fn default_level(command: &Command) -> &'static str {
    match command {
        Command::Serve(_) => "info",
        Command::Demo(_) | Command::Doctor(_) | Command::Generate(_) => "warn",
    }
}
