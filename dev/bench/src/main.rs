//! # bulkhead-bench: measures the vswitch on this machine
//!
//! **Purpose.** Measures the values that `benches/README.md` promises. Most are ratios between the vswitch and an alternative, measured in
//! turns within one run.
//!
//! **Not its purpose.** It decides no test and is no part of the vswitch. Traffic generators, namespaces and kernel rules live here, so
//! that the program on nodes contains none of them.
//!
//! | module | measures |
//! |---|---|
//! | [`pipeline`] | a worker between ports in memory |
//! | [`frames`] | raw frames through workers on veths, beside a bare AF_XDP loop |
//! | [`wire`] | the program as nodes run it, beside the kernel |
//! | [`nodes`] | pods of two nodes over a wire, routed and in a tunnel, beside the kernel |
//! | [`cluster`] | the program as a node's daemon of a cluster, with an API server and a CNI plugin |
//! | [`names`] | rules that name domains: workers in memory that learn from DNS answers |
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod frames;
mod memory_ports;
mod names;
mod nodes;
mod pipeline;
mod policy;
mod random;
mod rounds;
mod rows;
mod services;
mod table;
mod testbed;
mod wire;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let outcome = match &args::Args::parse().work {
        args::Work::Pipeline(pipeline) => pipeline::run(pipeline),
        args::Work::Frames(frames) => frames::run(frames),
        args::Work::Wire(wire) => wire::run(wire),
        args::Work::Nodes(nodes) => nodes::run(nodes),
        args::Work::Cluster(cluster) => cluster::run(cluster),
        args::Work::Names(names) => names::run(names),
    };
    outcome.unwrap_or_else(|error| {
        // Without standard error the message cannot be printed.
        let _ = writeln!(std::io::stderr().lock(), "error: {error:#}");
        ExitCode::from(2)
    })
}
