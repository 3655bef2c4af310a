//! `bulkhead explain --live`: a running vswitch explains a connection.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::{Connection, Explanation, LiveWalk, Request, ask};
use bulkhead_answers::args::{Explain, Target};
use bulkhead_answers::explain::end_text;
use bulkhead_answers::explain::service::{Judged, Translated};
use bulkhead_answers::explain::step::Step;
use bulkhead_answers::output::{self, printable};

/// Queries the vswitch and prints its answer. Returns exit code 1 if the connection is denied.
///
/// # Errors
/// If no vswitch answers, or it rejects the question.
pub fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    let to = match &args.asked.to {
        Target::End(to) => to.to_string(),
        Target::Service(to) => to.to_string(),
    };
    if args.asked.port.is_none() && matches!(args.asked.to, Target::End(_)) {
        bail!("--port is missing\n  help: add it, for example --port 80/TCP");
    }
    let port = args.asked.port.map(|port| port.to_string());
    let asked = Connection { from: args.asked.from.to_string(), to, port: port.clone() };
    let answer: Value = ask(&args.socket, &Request::Explain(asked))?;
    let told = Explanation::deserialize(&answer)?;
    output::answer(args.output, &answer, |out| write(&told, port.as_deref().unwrap_or_default(), out))?;
    let is_allowed = told.walks.iter().all(Judged::is_allowed) && told.services.iter().all(Translated::is_allowed);
    Ok(ExitCode::from(u8::from(!is_allowed)))
}

fn write(told: &Explanation, service: &str, out: &mut impl Write) -> io::Result<()> {
    let as_enforced = format!("as node {} enforces now (generation {})", printable(&told.node), told.generation);
    for (at, walk) in told.walks.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let LiveWalk { from, from_address, to, to_address, verdict, .. } = walk;
        let (from, to, verdict) =
            (end_text(from, *from_address), end_text(to, *to_address), printable(verdict).to_uppercase());
        let is_audited = walk.steps.iter().any(Step::is_audited);
        let beside = if is_audited { ", because a policy is audited and not enforced" } else { "" };
        writeln!(out, "{from} -> {to} {service}: {verdict}, {as_enforced}{beside}")?;
        write_denying(told, out)?;
        write_steps(walk, out)?;
    }
    for (at, translated) in told.services.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        translated.write(out, write_steps)?;
        writeln!(out, "\nThis is {as_enforced}.")?;
        write_denying(told, out)?;
    }
    Ok(())
}

fn write_denying(told: &Explanation, out: &mut impl Write) -> io::Result<()> {
    if told.denying {
        writeln!(out, "the vswitch has no valid state, so only the node's own traffic passes; see `bulkhead status`")?;
    }
    Ok(())
}

/// Writes the steps of the path, the ports that are not open, and whether another node's vswitch also judges the connection.
fn write_steps<W: Write>(walk: &LiveWalk, out: &mut W) -> io::Result<()> {
    let LiveWalk { judged_elsewhere, seen_as, steps, not_open, .. } = walk;
    for port in not_open {
        let why = port.why.as_deref().and_then(|why| why.lines().next());
        let why = why.map(|why| format!(": {}", printable(why))).unwrap_or_default();
        writeln!(out, "port {} is {}{why}", printable(&port.port), printable(&port.state))?;
    }
    for (number, step) in (1..).zip(steps) {
        step.write(number, out)?;
    }
    if let Some(address) = seen_as {
        writeln!(out, "\nIt leaves masqueraded: the other end sees {address}.")?;
    }
    if *judged_elsewhere && walk.is_allowed() {
        writeln!(
            out,
            "\nThe other end is not on this node. If it is a pod, the vswitch of its node also judges the connection: run the command there, too."
        )?;
    }
    Ok(())
}
