//! # Bulkhead: a Kubernetes node's vswitch in user space
//!
//! **Purpose.** The command line, and the wiring of the three crates that do the work: `control` turns Kubernetes objects
//! into tables, `classifier` answers which rule decides, `dataplane` judges and forwards packets.
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
//!  resolve, diff, sync: ask `control` alone
//!  run: packets of interfaces (`live`)
//! ```
//!
//! **Invariant.** Every subcommand asks the same engine. What `reach` and `explain` say is what the vswitch does.
#![forbid(unsafe_code)]

mod admin;
pub mod args;
mod claims;
mod classify;
mod cni;
mod compile;
mod contests;
mod diff;
mod explain;
pub mod fabric;
pub mod flows;
mod learn;
mod live;
mod output;
mod reach;
mod replay;
mod resolve;
pub mod run;
mod selected;
pub mod services;
pub mod set_elements;
mod shell;
mod sync;
mod translate;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program as the user typed it, or as a container runtime runs the plugin: by that name. Returns the exit code: 0 ok, 1 the
/// answer is "no" or the plugin's error, 2 an error.
pub fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if words.first().is_some_and(|name| cni::is_named_so(name)) {
        if words.len() == 1 {
            return cni::run();
        }
        // `bulkhead-cni install` is `bulkhead cni install`.
        words.splice(..1, ["bulkhead".into(), "cni".into()]);
    }
    let args = <args::Args as clap::Parser>::parse_from(words);
    let outcome = match &args.command {
        args::Command::Replay(replay) => replay::run(replay),
        args::Command::Learn(learn) => learn::run(learn),
        args::Command::Reach(reach) => reach::run(reach),
        args::Command::Explain(explain) => explain::run(explain),
        args::Command::Diff(diff) => diff::run(diff),
        args::Command::Resolve(resolve) => resolve::run(resolve),
        args::Command::Test(test) => claims::run(test),
        args::Command::Compile(compile) => compile::run(compile),
        args::Command::Sync(sync) => sync::run(sync),
        args::Command::Classify(classify) => classify::run(classify),
        args::Command::Run(run) => live::run(run),
        args::Command::Cleanup(cleanup) => live::cleanup(cleanup),
        args::Command::Status(status) => admin::status(status),
        args::Command::Ports(ports) => admin::ports(ports),
        args::Command::Policies(policies) => match &policies.pod {
            Some(pod) => selected::run(policies, pod),
            None => admin::policies(&policies.admin),
        },
        args::Command::Sessions(sessions) => admin::sessions(sessions),
        args::Command::Tables(tables) => admin::tables(tables),
        args::Command::Audit(args::Audit { action: args::AuditAction::Report(report) }) => admin::report(report),
        args::Command::Reload(reload) => admin::reload(reload),
        args::Command::Cni(args::Cni { action: None }) => return cni::run(),
        args::Command::Cni(args::Cni { action: Some(args::CniAction::Install(install)) }) => cni::install(install),
        args::Command::Cni(args::Cni { action: Some(args::CniAction::Uninstall(place)) }) => cni::uninstall(place),
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
