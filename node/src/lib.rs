//! `bulkhead run`: a live vswitch.
//!
//! **Purpose.** Reads the configuration and the state, opens the interfaces, publishes policy and Services to the workers, and keeps all of
//! that up to date until a signal stops the process.
//!
//! **Not its purpose.** Forwarding: the workers of [`bulkhead_dataplane::vswitch`] process packets on their own threads, and continue with
//! the last snapshot if anything fails here.
//!
//! ```text
//!   thread       owns                                      is woken by
//!   main         configuration, summary ([`daemon`])       signals, the configuration file, notices of other threads
//!   interfaces   every interface ([`interfaces`])          the kernel's messages ([`links`]), workers, commands, retries
//!   policy       the state, its pipeline ([`policy`])      the state's files, the kubernetes thread, added ports
//!   ports        the list of ports ([`ports`])             requests at the admin socket, main, interfaces, policy
//!   admin        the admin socket, HTTP ([`admin`]), gRPC  clients
//!               ([`hubble`])
//!   stream       clients that watch ([`stream`])           a timer, while a client watches
//!   journal      the flight recorder ([`journal`])         policy, stream
//!   kubernetes   connections to the API server ([`api`])   the server
//!   worker 0..n  packets, sessions, queues                 packets, commands
//!
//!     admin --add, remove--.
//!     main --Configured----+--> ports --all ports--> interfaces --hand over, remove--> workers --a port has failed--> interfaces
//!                                 |                       |  set_ports
//!                                 |                       v
//!                                 |                  Composer [ tables | ports | routes ] --Snapshot, published--> workers
//!                                 |                       ^  set_policy
//!                                 `--attached pods---> policy <--batches-- kubernetes
//!                            state files --watch----------'
//! ```
//!
//! Each resource has one owner. The interfaces thread never waits for policy to load or compile, so it closes a new interface as soon as
//! the kernel reports it. The policy thread never waits for an interface. Both wait for each other only in the [`composer`], while it
//! composes a snapshot. One thread for everything, running every 10 ms, was rejected: compiling a large state left new interfaces
//! unprotected meanwhile, and the idle rounds cost CPU time.
//!
//! **Invariant.** Every published snapshot is complete and valid. A failure (of a file, an interface or a port) affects nothing else, is
//! logged once and counted. No packet of a configured interface reaches the host's stack, even if its port is closed ([`interfaces`]).
#![forbid(unsafe_code)]

mod admin;
mod api;
pub mod args;
mod audit;
mod capture;
mod changes;
mod cleanup;
mod clock;
mod composer;
mod config;
mod daemon;
mod datapath;
mod end_facts;
mod host_port;
mod hubble;
mod ids;
mod interfaces;
mod journal;
mod kept;
mod kernel;
mod last_good;
mod links;
mod listener;
mod log;
mod names;
mod next_hops;
mod nft;
mod notice;
mod observer;
mod origins;
mod outlet;
mod own_addresses;
mod policy;
mod ports;
mod preflight;
mod remote_nodes;
#[cfg(test)]
mod scratch;
pub mod set_elements;
mod signals;
mod standby;
mod state;
mod stream;
mod summary;
mod tables;
mod view;
mod watch;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ipnet::IpNet;

use crate::args::Run;
use bulkhead_answers::args::Format;
use bulkhead_answers::output;
pub use cleanup::cleanup;
use config::{Config, Dataplane};
use daemon::Daemon;
use preflight::{Facts, Finding, Severity};

/// Runs the vswitch until a signal ends it, or with `--check` only the checks of a start. Exit code 1 if a check fails. Other errors
/// (an invalid configuration, a failed start) are returned with `--check`, else logged, with exit code 2.
pub fn run(args: &Run) -> anyhow::Result<ExitCode> {
    if args.check {
        let config = Config::read(&args.config, args.node.as_deref())?;
        if config.dataplane == Dataplane::Nftables {
            return check(&preflight::nftables::check(&config), args.output);
        }
        let pods = preflight::routes::pod_networks(&config);
        let mut findings = told(&config, args, &pods);
        findings.extend(preflight::handover::check(&config));
        findings.extend(preflight::routes::check(&config, &pods));
        findings.extend(preflight::services::known(&config));
        findings.extend(preflight::remote_nodes::check(&config));
        // Only here: a normal start logs each failed attempt to reach the server.
        findings.extend(preflight::server::check(&config));
        return check(&findings, args.output);
    }
    // Errors are logged here rather than by the caller: a stalled reader of stderr does not block the logger, and a broken pipe of a
    // capture is a failure.
    let config = Config::read(&args.config, args.node.as_deref());
    let log = config.as_ref().map(|config| config.log).unwrap_or_default();
    log::start(log::LogConfig { format: args.log_format.unwrap_or(log.format), ..log });
    let code = config.map_err(Into::into).and_then(|config| start(config, args)).unwrap_or_else(|error| {
        log::last(&error);
        ExitCode::from(2)
    });
    log::finish();
    Ok(code)
}

/// Returns the findings of all checks that run both at a start and with `--check`. `pods` are the networks of the node's pods; empty if they are not
/// known yet.
fn told(config: &Config, args: &Run, pods: &[IpNet]) -> Vec<Finding> {
    let facts = Facts::gather(config);
    let mut findings = preflight::judge(config, &facts, args.force);
    findings.extend(preflight::kube_proxy::judge(config, &facts.kube_proxy));
    findings.extend(preflight::server::bootstrap(config, &facts));
    findings.extend(preflight::masquerade::check(config));
    findings.extend(preflight::forwarding::check(config, pods));
    findings.extend(preflight::cni::check(Path::new(preflight::cni::FOLDER)));
    findings.extend(preflight::hubble::check(&config.hubble));
    findings
}

/// Runs the vswitch, or the nftables renderer, until a signal ends it.
fn start(config: Config, args: &Run) -> anyhow::Result<ExitCode> {
    // Installed first, so that a signal stops everything below in order.
    let requests = signals::listen().context("cannot listen to signals")?;
    if config.dataplane != Dataplane::Nftables {
        // Before the other process ends, so that an update can still be stopped.
        say(&preflight::handover::check(&config));
    }
    if args.standby && !standby::stand_by(&requests)? {
        return Ok(ExitCode::SUCCESS);
    }
    if config.dataplane == Dataplane::Nftables {
        preflight::nftables::check(&config)
            .iter()
            .filter(|finding| finding.severity != Severity::Error)
            .for_each(log::warn);
        return nft::start(config, args, &requests);
    }
    let findings = told(&config, args, &[]);
    say(&findings);
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    if errors > 0 {
        bail!("{errors} of the checks at start failed; nothing was touched");
    }
    Daemon::start(config, args, requests)?.run()
}

/// Logs the findings by their severity, except those that the running vswitch logs too.
fn say(findings: &[Finding]) {
    for finding in findings.iter().filter(|finding| !finding.comes_again) {
        match finding.severity {
            Severity::Error => log::error(finding),
            Severity::Warning => log::warn(finding),
            Severity::Note => log::info(finding),
        }
    }
}

/// Prints the findings. Exit code 1 if the vswitch would not start.
fn check(findings: &[Finding], format: Format) -> anyhow::Result<ExitCode> {
    let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
    let mut out = output::stdout();
    match format {
        Format::Json => writeln!(out, "{}", serde_json::json!({ "ok": !failed, "findings": findings }))?,
        Format::Text => {
            for Finding { severity, what, why, remedy, .. } in findings {
                let severity = format!("{severity:?}").to_lowercase();
                writeln!(out, "{severity}: {}", output::printable(what))?;
                writeln!(out, "  why: {}", output::printable(why))?;
                for line in remedy.lines() {
                    writeln!(out, "  help: {}", output::printable(line))?;
                }
            }
            writeln!(out, "{}", if failed { "not ok: the vswitch would not start" } else { "ok" })?;
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}
