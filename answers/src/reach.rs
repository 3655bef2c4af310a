//! `bulkhead reach`: the connectivity matrix of all pods and given external addresses, or the clients of a Service.
//!
//! ```text
//!  ends --kinds: ends that no rule distinguishes--> verdicts between kinds --> text | json: every pod, or groups that connect alike
//!                                                                         `-> merged: workloads, as md, csv, dot, mermaid
//! ```
//! **Invariant.** The verdict on a pair is what the vswitches decide about a first packet and its reply, as [`crate::fabric`] simulates
//! them. Tests compare both.

mod ends;
mod graph;
mod json;
mod kinds;
mod merged;
mod names;
mod service;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod twins;

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::bail;
use bulkhead_control::object::Transport;

use self::ends::ends;
use self::kinds::{Kinds, States};
use self::merged::Merged;
use crate::args::{PortProtocol, Reach, ReachFormat};
use crate::output;
use crate::progress;
use crate::run::{self, Input};

/// Maximum number of columns with names, in text and Markdown: with names of twenty letters they fill a wide screen.
const NAMED_COLUMNS: usize = 12;

/// Maximum number of ports named in a note.
const MAX_NAMED: usize = 20;

/// Prints who can reach whom.
///
/// # Errors
/// If the state cannot be read, or lacks an end in question.
pub fn run(args: &Reach) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(output::stdout());
    let is_plain = matches!(args.output, ReachFormat::Text | ReachFormat::Json);
    if is_plain && !args.focus.is_empty() {
        bail!("--focus needs a table or graph\n  help: add -o md, csv, dot or mermaid")
    }
    if args.all && args.output != ReachFormat::Text {
        bail!("--all needs the format text\n  help: omit -o; -o json has every pod without --all")
    }
    match (args.to.is_empty(), is_plain) {
        (true, _) => of_ends(args, &mut out)?,
        (false, true) => service::run(args, &mut out)?,
        (false, false) => {
            bail!("--to supports only the formats text and json\n  help: use -o text or -o json, or omit --to")
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Answers for all pods, and for the given external addresses.
fn of_ends(args: &Reach, out: &mut impl Write) -> anyhow::Result<()> {
    let (pipeline, declared_ports) = run::load_with_ports(&Input::open(&args.state)?, &args.planned)?;
    run::unknown_names(&pipeline).iter().for_each(output::warn);
    let ends = ends(&pipeline, &args.external)?;
    let ports = if args.ports.is_empty() { declared(&declared_ports)? } else { distinct(&args.ports) };
    progress::step("asking about every pair");
    let states = States::of(&pipeline)?;
    let kinds = Kinds::of(&ends, &states);
    match args.output {
        ReachFormat::Text => Ok(text::write(pipeline.cache(), &ends, &kinds, &ports, args.all, out)?),
        ReachFormat::Json => json::write(&ends, &kinds, &ports, out),
        ReachFormat::Md | ReachFormat::Csv | ReachFormat::Dot | ReachFormat::Mermaid => {
            let mut merged = Merged::of(pipeline.cache(), &ends, &kinds, &ports);
            merged.focus(pipeline.cache(), &args.focus)?;
            match args.output {
                ReachFormat::Csv => Ok(table::csv(&merged, out)?),
                ReachFormat::Dot => graph::dot(&merged, out),
                ReachFormat::Mermaid => graph::mermaid(&merged, out),
                _ => Ok(table::markdown_table(&merged, out)?),
            }
        }
    }
}

/// Returns the ports that pods declare, and names them on standard error, because a server may listen on others.
///
/// # Errors
/// If no pod declares a port.
fn declared(ports: &BTreeSet<(u16, Transport)>) -> anyhow::Result<Vec<PortProtocol>> {
    let ports: Vec<PortProtocol> = ports.iter().map(|&(port, transport)| PortProtocol::new(port, transport)).collect();
    if ports.is_empty() {
        bail!("no pod in the state declares a port\n  help: choose the ports, for example --port 80/TCP");
    }
    let texts: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    output::note(&format!(
        "asked at the ports that pods declare: {}; --port chooses others",
        output::some_of(&texts, MAX_NAMED)
    ));
    Ok(ports)
}

/// Returns the values without duplicates, in the given order.
fn distinct<T: Copy + PartialEq>(given: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for &value in given {
        if !kept.contains(&value) {
            kept.push(value);
        }
    }
    kept
}
