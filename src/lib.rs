//! # Bulkhead: a Kubernetes node's vswitch in user space
//!
//! **Purpose.** Parses the command line and dispatches each subcommand to its crate.
//!
//! **Not its purpose.** No policy, table or packet logic.
//!
//! ```text
//!                       src: arguments, dispatch, exit code
//!        .----------------+----------------+---------------.
//!     answers          observe           node             cni
//!   questions about   a running        the vswitch      the CNI
//!   a state           vswitch shows    of a node        plugin
//! ```
//!
//! **Invariant.** The exit code is 0 for success, 1 for the answer "no", 2 for an error.
#![forbid(unsafe_code)]

pub mod args;
mod shell;
#[cfg(target_os = "linux")]
mod sync;

use std::ffi::OsString;
use std::process::ExitCode;

use bulkhead_answers::progress::Progress;
use bulkhead_answers::{
    claims, classify, compile, diff, explain, learn, lint, output, reach, replay, resolve, selected,
};
use bulkhead_migrate::translate;
use bulkhead_observe::{admin, why};

/// Runs the program. Acts as the CNI plugin if a container runtime started it under the plugin's name.
///
/// Returns exit code 0 for success, 1 if the answer is "no" or the plugin failed, 2 for an error.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    #[cfg(target_os = "linux")]
    let words = match bulkhead_cni::words(words) {
        Some(words) => words,
        None => return bulkhead_cni::run(),
    };
    let args = <args::Args as clap::Parser>::parse_from(words);
    // Commands for a running vswitch do not report steps: they print what arrives, or wait on purpose.
    #[cfg(target_os = "linux")]
    let is_live = matches!(&args.command, args::Command::Live(_));
    #[cfg(not(target_os = "linux"))]
    let is_live = false;
    let progress = (!is_live).then(Progress::start);
    let outcome = match &args.command {
        args::Command::Replay(replay) => replay::run(replay),
        args::Command::Learn(learn) => learn::run(learn),
        args::Command::Reach(reach) => reach::run(reach),
        #[cfg(target_os = "linux")]
        args::Command::Explain(explain) if explain.live => bulkhead_observe::explain::run(explain),
        args::Command::Explain(explain) => explain::run(explain),
        args::Command::Why(why) => why::run(why),
        args::Command::Diff(diff) => diff::run(diff),
        args::Command::Lint(lint) => lint::run(lint, &admin::counters),
        args::Command::Resolve(resolve) => resolve::run(resolve),
        args::Command::Test(test) => claims::run(test),
        args::Command::Compile(compile) => compile::run(compile),
        args::Command::Translate(args) => translate::run(args),
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
    drop(progress);
    match outcome {
        Ok(answer) => answer,
        Err(error) => {
            output::report(&error);
            ExitCode::from(2)
        }
    }
}

/// Dispatches the subcommands that run on Linux only.
#[cfg(target_os = "linux")]
fn live_command(command: &args::LiveCommand) -> anyhow::Result<ExitCode> {
    use args::LiveCommand;
    use bulkhead_cni::args::{Cni, CniAction};
    use bulkhead_node as node;
    use bulkhead_observe::args::{Audit, AuditAction};
    use bulkhead_observe::{bundle, top};
    match command {
        LiveCommand::Sync(sync) => sync::run(sync),
        LiveCommand::Run(run) => node::run(run),
        LiveCommand::Cleanup(cleanup) => node::cleanup(cleanup),
        LiveCommand::Status(status) => admin::status(status),
        LiveCommand::Ports(ports) => admin::ports(ports),
        LiveCommand::Nodes(nodes) => admin::nodes(nodes),
        LiveCommand::Names(names) => admin::names(names),
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
        LiveCommand::Cni(Cni { action: None }) => Ok(bulkhead_cni::run()),
        LiveCommand::Cni(Cni { action: Some(CniAction::Install(install)) }) => bulkhead_cni::install(install),
        LiveCommand::Cni(Cni { action: Some(CniAction::Uninstall(place)) }) => bulkhead_cni::uninstall(place),
    }
}
