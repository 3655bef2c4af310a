//! # Bulkhead: a Kubernetes node's vswitch in user space
//!
//! **Purpose.** The command line, and the wiring of the crates that do the work: `cluster` follows an API server, `control` turns Kubernetes
//! objects into tables, `classifier` answers which rule decides, `dataplane` judges and forwards packets.
//!
//! **Not its purpose.** No policy, table or packet logic lives here. A subcommand reads its input, calls the crates and
//! shows the answer.
//!
//! ```text
//!  files --control--> tables, Services --run, services--> snapshot --dataplane--> outcome of every packet
//!                                                            ^
//!  replay: packets of a capture          reach, explain: first packets and replies that `fabric` makes
//!                                        of connections to Services, as `translate` has them
//!  replay --flows, learn: sessions of logs and captures that `flows` reads, judged by `fabric`
//!  why: the states of a journal, as explain; bundle: what a vswitch knows, in one file
//!  resolve, diff, lint: ask `control` alone
//!  sync: asks `control`, and `cluster` to send what it says
//!  run: packets of interfaces (`live`)
//! ```
//!
//! **Invariant.** Every subcommand asks the same engine. What `reach` and `explain` say is what the vswitch does.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, unused_imports, reason = "only what is Linux's uses some of it")
)]

mod admin;
pub mod args;
mod bundle;
mod claims;
mod classify;
#[cfg(target_os = "linux")]
mod cni;
mod compile;
mod contests;
mod diff;
mod explain;
pub mod fabric;
pub mod flows;
#[cfg(target_os = "linux")]
pub mod hubble;
mod journal;
mod learn;
mod lint;
#[cfg(target_os = "linux")]
mod live;
mod output;
mod places;
mod reach;
mod replay;
mod resolve;
pub mod run;
mod sarif;
mod selected;
pub mod services;
#[cfg(target_os = "linux")]
pub mod set_elements;
mod shell;
#[cfg(target_os = "linux")]
mod sync;
#[cfg(target_os = "linux")]
mod top;
mod translate;
mod why;
mod workload;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program as the user typed it, or as a container runtime runs the plugin: by that name. Returns the exit code: 0 ok, 1 the
/// answer is "no" or the plugin's error, 2 an error.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    #[cfg(target_os = "linux")]
    let words = match cni::words(words) {
        Some(words) => words,
        None => return cni::run(),
    };
    let args = <args::Args as clap::Parser>::parse_from(words);
    let outcome = match &args.command {
        args::Command::Replay(replay) => replay::run(replay),
        args::Command::Learn(learn) => learn::run(learn),
        args::Command::Reach(reach) => reach::run(reach),
        args::Command::Explain(explain) => explain::run(explain),
        args::Command::Why(why) => why::run(why),
        args::Command::Diff(diff) => diff::run(diff),
        args::Command::Lint(lint) => lint::run(lint),
        args::Command::Resolve(resolve) => resolve::run(resolve),
        args::Command::Test(test) => claims::run(test),
        args::Command::Compile(compile) => compile::run(compile),
        args::Command::Classify(classify) => classify::run(classify),
        args::Command::Policies(policies) => match &policies.pod {
            Some(pod) => selected::run(policies, pod),
            None => admin::policies(&policies.admin),
        },
        #[cfg(target_os = "linux")]
        args::Command::Live(command) => live_command(command),
        args::Command::Completions(completions) => shell::completions(completions),
        args::Command::Man(man) => shell::man(man),
    };
    match outcome {
        Ok(answer) => answer,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(&error);
            ExitCode::from(2)
        }
    }
}

/// The commands about a machine that has a vswitch or shall have one, and the one that changes another system.
#[cfg(target_os = "linux")]
fn live_command(command: &args::LiveCommand) -> anyhow::Result<ExitCode> {
    use args::{Audit, AuditAction, Cni, CniAction, LiveCommand};
    match command {
        LiveCommand::Sync(sync) => sync::run(sync),
        LiveCommand::Run(run) => live::run(run),
        LiveCommand::Cleanup(cleanup) => live::cleanup(cleanup),
        LiveCommand::Status(status) => admin::status(status),
        LiveCommand::Ports(ports) => admin::ports(ports),
        LiveCommand::Sessions(sessions) => admin::sessions(sessions),
        LiveCommand::Tables(tables) => admin::tables(tables),
        LiveCommand::Top(top) => top::run(top),
        LiveCommand::Monitor(monitor) => admin::monitor(monitor),
        LiveCommand::Trace(trace) => admin::trace(trace),
        LiveCommand::Capture(capture) => admin::capture(capture),
        LiveCommand::Bundle(bundle) => bundle::write(bundle),
        LiveCommand::Audit(Audit { action: AuditAction::Report(report) }) => admin::report(report),
        LiveCommand::Wait(wait) => admin::wait(wait),
        LiveCommand::Reload(reload) => admin::reload(reload),
        LiveCommand::Cni(Cni { action: None }) => Ok(cni::run()),
        LiveCommand::Cni(Cni { action: Some(CniAction::Install(install)) }) => cni::install(install),
        LiveCommand::Cni(Cni { action: Some(CniAction::Uninstall(place)) }) => cni::uninstall(place),
    }
}
