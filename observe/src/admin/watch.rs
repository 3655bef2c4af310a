//! `bulkhead monitor`, `trace` and `capture`: streams from a running vswitch.

mod files;
mod text;

use std::io::Write;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

use super::client::{OnSignal, watch};
use super::protocol::{Monitor, Request, Trace, Watching};
use crate::args;
use crate::args::Traced;
use bulkhead_answers::args::Format;
use bulkhead_answers::output::{self, note, some_of, warn};
use files::Files;

/// Prints verdicts as they arrive.
pub fn monitor(args: &args::Monitor) -> anyhow::Result<ExitCode> {
    let asked = Monitor {
        pods: args.ends.pods.clone(),
        namespaces: args.ends.namespaces.clone(),
        labels: args.ends.labels.clone(),
        verdicts: args.verdicts.clone(),
        ports: args.ports.clone(),
        protocols: args.protocols.clone(),
        last: args.last.unwrap_or_default(),
        is_over: args.last.is_some() && !args.follow,
        count: args.count.and_then(NonZeroU64::new),
        rate: NonZeroU32::new(args.rate),
    };
    let mut out = output::stdout();
    let begin = |watching: Watching| {
        if args.last.is_some() && watching.remembered == 0 {
            note("the vswitch remembers no flows: it remembers only flows that it sent to a monitor");
        } else if args.last.is_none() {
            note(&format!("watching node {}, generation {}", watching.node, watching.generation));
        }
        say_nobody(&watching);
        Ok(())
    };
    watch(&args.socket, &Request::Monitor(asked), OnSignal::Die, begin, |line| {
        match args.output {
            Format::Json => writeln!(out, "{line}")?,
            Format::Text => text::write_flow(&mut out, &parsed(line)?)?,
        }
        out.flush()?;
        Ok(while_read())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns `Break`, which ends a stream, once the reader of standard output has exited.
fn while_read() -> ControlFlow<()> {
    if output::has_reader() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

fn parsed(line: &str) -> anyhow::Result<Value> {
    serde_json::from_str(line).context("cannot parse the vswitch's event")
}

/// Returns the request for the packets that the arguments select. `snap` is the number of bytes to send of each packet.
fn asked(traced: &Traced, snap: u16) -> Trace {
    let verdicts = if traced.dropped_only { vec!["DROPPED".to_owned()] } else { traced.verdicts.clone() };
    Trace {
        filter: traced.filter.join(" "),
        pods: traced.ends.pods.clone(),
        namespaces: traced.ends.namespaces.clone(),
        labels: traced.ends.labels.clone(),
        verdicts,
        snap,
        cached: traced.cached,
        count: traced.count.and_then(NonZeroU64::new),
        rate: NonZeroU32::new(traced.rate),
    }
}

/// Prints a warning that names the filters of the request which select no pod or node, such as misspelt names. Prints nothing if there are
/// none.
fn say_nobody(watching: &Watching) {
    if !watching.nobody.is_empty() {
        let filters: Vec<&str> = watching.nobody.iter().map(String::as_str).collect();
        warn(&format!(
            "no pod or node of the state is selected by {}: nothing is shown until one is created\n  help: `kubectl get pods,nodes -A --show-labels` lists them",
            some_of(&filters, MAX_NOBODY)
        ));
    }
}

/// Maximum number of filters named in one line.
const MAX_NOBODY: usize = 5;

fn say(watching: &Watching, traced: &Traced) {
    note(&format!("watching node {}, generation {}", watching.node, watching.generation));
    say_nobody(watching);
    if !traced.cached {
        note(
            "packets that the kernel forwards by itself are not shown; --cached redirects matching flows to the workers",
        );
    }
}

/// Prints packets as they arrive.
pub fn trace(args: &args::Trace) -> anyhow::Result<ExitCode> {
    let mut out = output::stdout();
    let begin = |watching: Watching| {
        say(&watching, &args.traced);
        Ok(())
    };
    watch(&args.socket, &Request::Trace(asked(&args.traced, 0)), OnSignal::Die, begin, |line| {
        match args.output {
            Format::Json => writeln!(out, "{line}")?,
            Format::Text => text::write_packet(&mut out, &parsed(line)?)?,
        }
        out.flush()?;
        Ok(while_read())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes packets to files as they arrive.
pub fn capture(args: &args::Capture) -> anyhow::Result<ExitCode> {
    let files = std::cell::RefCell::new(None);
    let begin = |watching: Watching| {
        say(&watching, &args.traced);
        *files.borrow_mut() = Some(Files::new(args, &watching)?);
        Ok(())
    };
    watch(&args.socket, &Request::Trace(asked(&args.traced, args.snaplen)), OnSignal::Finish, begin, |line| {
        let line = parsed(line)?;
        match (files.borrow_mut().as_mut(), line.get("packet")) {
            (Some(files), Some(packet)) => files.write(packet)?,
            _ => text::note_lost(&line),
        }
        Ok(while_read())
    })?;
    let written = files.into_inner().map(Files::finish).transpose()?.unwrap_or_default();
    note(&format!("captured {written} packets"));
    Ok(ExitCode::SUCCESS)
}
