//! `bulkhead reach`: the connectivity matrix of all pods and given external addresses, or the clients of a Service.
//!
//! Text and JSON list every pod; each verdict is the vswitches' decision on a first packet and its reply. Tables and graphs merge identical
//! pods of a workload ([`merged`]).

mod graph;
mod merged;
mod service;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::bail;
use bulkhead_control::object::Pod;
use serde::Serialize;

use self::merged::Merged;
use crate::args::{PortProtocol, Reach, ReachFormat};
use crate::fabric::{End, Fabric, Reached};
use crate::{output, run};

/// Spaces between columns of the matrix.
const LABEL_GAP: usize = 1;

/// Maximum number of columns with names, in text and Markdown: with names of twenty letters they fill a wide screen.
const NAMED_COLUMNS: usize = 12;

#[derive(Serialize)]
struct ProbeLine<'a> {
    from: &'a str,
    to: &'a str,
    family: &'static str,
    protocol: &'static str,
    port: u16,
    verdict: &'static str,
    /// Whether the connection is allowed only because a policy is audited.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    audited: bool,
}

/// Prints who can reach whom.
///
/// # Errors
/// If the state cannot be read, or lacks an end in question.
pub fn run(args: &Reach) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    match args.output {
        ReachFormat::Text | ReachFormat::Json if !args.focus.is_empty() => {
            bail!("--focus needs a table or graph\n  help: add -o md, csv, dot or mermaid")
        }
        ReachFormat::Text | ReachFormat::Json if args.to.is_empty() => of_pods(args, &mut out)?,
        ReachFormat::Text | ReachFormat::Json => service::run(args, &mut out)?,
        _ if !args.to.is_empty() => {
            bail!("--to supports only the formats text and json\n  help: use -o text or -o json, or omit --to")
        }
        _ => of_workloads(args, &mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn of_pods(args: &Reach, out: &mut impl Write) -> anyhow::Result<()> {
    let pipeline = run::load_planned(&args.state, &args.planned)?;
    let ends = ends(&pipeline, &args.external)?;
    let ports = distinct(&args.ports);
    let mut fabric = Fabric::new(&pipeline)?;
    match args.output {
        ReachFormat::Json => json(&mut fabric, &ends, &ports, out),
        _ => text(&mut fabric, &ends, &ports, out),
    }
}

fn of_workloads(args: &Reach, out: &mut impl Write) -> anyhow::Result<()> {
    let pipeline = run::load_without_tables(&args.state, &args.planned)?;
    let ends = ends(&pipeline, &args.external)?;
    let mut merged = Merged::of(pipeline, &ends, &distinct(&args.ports))?;
    merged.focus(&args.focus)?;
    match args.output {
        ReachFormat::Csv => Ok(table::csv(&merged, out)?),
        ReachFormat::Dot => graph::dot(&merged, out),
        ReachFormat::Mermaid => graph::mermaid(&merged, out),
        _ => Ok(table::markdown_table(&merged, out)?),
    }
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

/// One address of an end, with the end's name.
struct NamedEnd {
    name: String,
    end: End,
}

fn ends(pipeline: &bulkhead_control::pipeline::Pipeline, external: &[IpAddr]) -> anyhow::Result<Vec<NamedEnd>> {
    let cache = pipeline.cache();
    let mut pods: Vec<_> = cache.pods().map(|(_, pod)| pod).filter(|pod| !pod.finished).collect();
    pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    // A pod on the host network is located by its node.
    let nowhere = |pod: &Pod| pod.addresses.is_empty() || (pod.host_network && pod.node.is_none());
    let waiting: Vec<String> = pods.iter().filter(|pod| nowhere(pod)).map(|pod| pod.name.to_string()).collect();
    if !waiting.is_empty() {
        let names: Vec<&str> = waiting.iter().map(String::as_str).collect();
        output::warn(&format!("skipped pods without an address or a node: {}", output::some_of(&names, 5)));
        pods.retain(|pod| !nowhere(pod));
    }
    let mut ends: Vec<NamedEnd> =
        pods.into_iter().flat_map(|pod| End::of_pod(pod)).map(|end| NamedEnd { name: end.to_string(), end }).collect();
    if ends.is_empty() {
        bail!(
            "no pod with an address in the state\n  help: add the output of `kubectl get pods -A -o yaml` to --state"
        );
    }
    for address in distinct(external) {
        let end = End::at(pipeline, address);
        if let End::Pod { name, .. } = &end {
            bail!("--external {address} is the address of pod {name}\n  help: pass an address outside the cluster");
        }
        ends.push(NamedEnd { name: address.to_string(), end });
    }
    Ok(ends)
}

/// Whether policy can concern a connection between the ends. Two pods on one node's host network share an address.
fn askable(from: &NamedEnd, to: &NamedEnd) -> bool {
    let (a, b) = (from.end.address(), to.end.address());
    let outside = |end: &End| !matches!(end, End::Pod { .. });
    a != b && a.is_ipv4() == b.is_ipv4() && from.name != to.name && !(outside(&from.end) && outside(&to.end))
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn json(fabric: &mut Fabric, ends: &[NamedEnd], ports: &[PortProtocol], out: &mut impl Write) -> anyhow::Result<()> {
    // Stream the lines: the table of a large cluster may not fit in memory.
    write!(out, "{{\"probes\":[")?;
    let mut first = true;
    for &port in ports {
        for from in ends {
            for to in ends.iter().filter(|to| askable(from, to)) {
                let reached = fabric.reached(&from.end, &to.end, port)?;
                let line = ProbeLine {
                    from: &from.name,
                    to: &to.name,
                    family: family(to.end.address()),
                    protocol: port.transport.name(),
                    port: port.port,
                    verdict: reached.verdict(),
                    audited: reached == Reached::Audited,
                };
                writeln!(out, "{}", if first { "" } else { "," })?;
                serde_json::to_writer(&mut *out, &line)?;
                first = false;
            }
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}

fn text(fabric: &mut Fabric, ends: &[NamedEnd], ports: &[PortProtocol], out: &mut impl Write) -> anyhow::Result<()> {
    let mut has_audited = false;
    for (at, &port) in ports.iter().enumerate() {
        for v4 in [true, false] {
            let shown: Vec<&NamedEnd> = ends.iter().filter(|end| end.end.address().is_ipv4() == v4).collect();
            if !shown.is_empty() {
                if at > 0 || !v4 {
                    writeln!(out)?;
                }
                let family = family(shown[0].end.address());
                writeln!(out, "{} {} over {family}: rows connect to columns", port.transport, port.port)?;
                has_audited |= matrix(fabric, &shown, port, out)?;
            }
        }
    }
    let audited = if has_audited { "   a allowed, because a policy is audited and not enforced" } else { "" };
    writeln!(out, "\n. allowed   X denied   # the same end{audited}")?;
    Ok(())
}

/// Writes the matrix of one port. Returns whether a verdict depends on an audited policy.
fn matrix(fabric: &mut Fabric, ends: &[&NamedEnd], port: PortProtocol, out: &mut impl Write) -> anyhow::Result<bool> {
    let mut has_audited = false;
    let names: Vec<String> = ends.iter().map(|end| output::printable(&end.name)).collect();
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    // Put the names above the columns if they fit a screen. Otherwise columns have one character, in the order of the rows.
    let wide = names.len() <= NAMED_COLUMNS;
    if wide {
        write!(out, "{:label$}", "")?;
        for name in &names {
            write!(out, "{:LABEL_GAP$}{name}", "")?;
        }
        writeln!(out)?;
    } else {
        writeln!(out, "columns are in the same order as rows")?;
    }
    for (from, name) in ends.iter().zip(&names) {
        write!(out, "{name:<label$}{}", if wide { "" } else { " " })?;
        for (to, column) in ends.iter().zip(&names) {
            let reached = askable(from, to).then(|| fabric.reached(&from.end, &to.end, port)).transpose()?;
            let cell = match reached {
                None => '#',
                Some(Reached::Yes) => '.',
                Some(Reached::Audited) => 'a',
                Some(Reached::No) => 'X',
            };
            has_audited |= cell == 'a';
            if wide {
                write!(out, "{:LABEL_GAP$}{cell:^width$}", "", width = column.chars().count())?;
            } else {
                write!(out, "{cell}")?;
            }
        }
        writeln!(out)?;
    }
    Ok(has_audited)
}
