//! `bulkhead names`: the addresses that pods have learned by name.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::client::ask;
use super::json::print_json;
use super::protocol::{LearnedNames, NameFilter, NameTotals, Request};
use crate::args::Names;
use bulkhead_answers::args::Format;
use bulkhead_answers::output::{self, Columns};

/// Prints the addresses that pods may connect to by rules that name domains.
pub fn names(args: &Names) -> anyhow::Result<ExitCode> {
    let name = args.name.as_deref().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    let filter = NameFilter { pod: args.pod.clone(), name, limit: args.limit };
    let told: LearnedNames = ask(&args.admin.socket, &Request::Names(filter))?;
    let mut out = output::stdout();
    match args.admin.output {
        Format::Json => print_json(&mut out, &told)?,
        Format::Text => write_names(&mut out, &told)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_names(out: &mut impl Write, told: &LearnedNames) -> io::Result<()> {
    if told.pods == 0 {
        return writeln!(out, "no rule of this node's pods names domains");
    }
    let mut table = Columns::new(&["POD", "NAME", "ADDRESS", "OPEN FOR"]);
    for row in &told.names {
        let time = humantime::format_duration(Duration::from_secs(row.seconds)).to_string();
        table.row([row.pod.clone(), row.name.clone(), row.address.to_string(), time]);
    }
    table.write(out)?;
    let more = told.matching.saturating_sub(told.names.len());
    if more > 0 {
        writeln!(out, "and {more} more: --pod and --name select, one answer has at most 10,000")?;
    }
    let NameTotals { queries, answers, addresses, unasked, malformed, incomplete, full, matched, mismatched } =
        told.counters;
    writeln!(
        out,
        "\n{} pods have rules that name domains. Since the start: {queries} queries, {answers} answers with {addresses} addresses",
        told.pods
    )?;
    for (count, what) in [
        (unasked, "answers to no open question, which opened nothing"),
        (malformed, "messages that were not understood"),
        (incomplete, "messages of which a part was missing"),
        (full, "addresses not opened, because a pod or name has too many"),
        (matched, "connections whose client has named an allowed server"),
        (mismatched, "connections whose client has named another server or none"),
    ] {
        if count > 0 {
            writeln!(out, "  {count} {what}")?;
        }
    }
    let servers: Vec<String> = told
        .servers
        .iter()
        .map(|server| match server.prefix_len() == server.max_prefix_len() {
            true => server.addr().to_string(),
            false => server.to_string(),
        })
        .collect();
    writeln!(out, "answers count from {}", servers.join(", "))
}
