//! # bulkhead-bench: what the vswitch can do on this machine
//!
//! **Purpose.** Figures for the promises of `benches/README.md`: ratios between the vswitch and what else could do its work, taken
//! in turns within one run.
//!
//! **Not its purpose.** Nothing here decides a test, and nothing here is a part of the vswitch: traffic generators, namespaces
//! and the kernel's own rules live in this program so that the one that runs on nodes has none of them.
//!
//! | module | measures |
//! |---|---|
//! | [`pipeline`] | a worker between ports in memory |
//! | [`frames`] | raw frames through workers on veths, beside a bare AF_XDP loop |
//! | [`wire`] | the program as nodes run it, beside the kernel |
//! | [`cluster`] | the program as a node's daemon of a cluster, with an API server and a CNI plugin |
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod frames;
mod pipeline;
mod policy;
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
        args::Work::Cluster(cluster) => cluster::run(cluster),
    };
    outcome.unwrap_or_else(|error| {
        // When standard error is gone there is nobody to tell.
        let _ = writeln!(std::io::stderr().lock(), "error: {error:#}");
        ExitCode::from(2)
    })
}
