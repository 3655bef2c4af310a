//! The answer of a running vswitch.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use super::end_text;
use crate::admin::{Connection, Explanation, LiveWalk, Request, ask};
use crate::args::{EndName, Explain, Format, Target};
use crate::output::printable;

pub(super) fn run(args: &Explain) -> anyhow::Result<ExitCode> {
    let name = |end: &EndName| match end {
        EndName::Pod(name) => name.to_string(),
        EndName::Address(address) => address.to_string(),
    };
    let Target::End(to) = &args.to else {
        bail!("--live knows pods and addresses only\n  help: leave --live out to ask a state about a Service");
    };
    let port = args.port.context("--port is missing\n  help: write for example --port 80/TCP")?;
    let service = format!("{}/{}", port.port, port.transport);
    let asked = Connection { from: name(&args.from), to: name(to), port: service.clone() };
    let answer: Value = ask(&args.socket, &Request::Explain(asked))?;
    let told = Explanation::deserialize(&answer)?;
    let mut out = io::stdout().lock();
    match args.output {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &answer)?;
            writeln!(out)?;
        }
        Format::Text => write(&told, &service, &mut out)?,
    }
    let is_allowed = told.walks.iter().all(|walk| walk.verdict == "allow");
    Ok(ExitCode::from(u8::from(!is_allowed)))
}

fn write(told: &Explanation, service: &str, out: &mut impl Write) -> io::Result<()> {
    let node = printable(&told.node);
    for (at, walk) in told.walks.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        let LiveWalk { from, from_address, to, to_address, verdict, judged_elsewhere, steps, not_open } = walk;
        let (from, to, verdict) =
            (end_text(from, *from_address), end_text(to, *to_address), printable(verdict).to_uppercase());
        writeln!(
            out,
            "{from} -> {to} {service}: {verdict}, as node {node} enforces now (generation {})",
            told.generation
        )?;
        if told.denying {
            writeln!(
                out,
                "there is no state to judge by, so nothing passes but the node's own traffic; `bulkhead status` says why"
            )?;
        }
        for port in not_open {
            let why = port.why.as_deref().and_then(|why| why.lines().next());
            let why = why.map(|why| format!(": {}", printable(why))).unwrap_or_default();
            writeln!(out, "port {} is {}{why}", printable(&port.port), printable(&port.state))?;
        }
        for (number, step) in (1..).zip(steps) {
            step.write(number, out)?;
        }
        if *judged_elsewhere && verdict == "ALLOW" {
            writeln!(
                out,
                "\nThe other end is not on this node. If it is a pod, the vswitch of its node judges as well: ask there, too."
            )?;
        }
    }
    Ok(())
}
