//! `bulkhead audit report`: what would break.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::client::ask;
use super::protocol::{AuditReport, AuditedConnection, Request};
use bulkhead_answers::args::Admin;
use bulkhead_answers::output::{self, Columns, printable};

/// Maximum number of connections printed. JSON has all.
const MAX_ROWS: usize = 50;

/// Prints what the audited policies would have denied. Returns exit code 1 if they would have denied anything.
pub fn report(args: &Admin) -> anyhow::Result<ExitCode> {
    let report: AuditReport = ask(&args.socket, &Request::AuditReport)?;
    output::answer(args.output, &report, |out| write(out, &report))?;
    let would_break = report.untold > 0 || report.policies.iter().any(|policy| policy.connections > 0);
    Ok(ExitCode::from(u8::from(would_break)))
}

fn write(out: &mut impl Write, report: &AuditReport) -> io::Result<()> {
    let node = printable(&report.node);
    if report.policies.is_empty() {
        return writeln!(out, "node {node}: no policy of its pods is audited: all are enforced");
    }
    let policies = if report.policies.len() == 1 { "policy" } else { "policies" };
    writeln!(out, "node {node}: {} audited {policies}, not enforced\n", report.policies.len())?;
    let mut table = Columns::new(&["WOULD DENY", "POLICY", "AUDITED SINCE", "LAST NEW", "QUIET FOR"]);
    for row in &report.policies {
        let quiet = humantime::format_duration(Duration::from_secs(row.quiet_seconds)).to_string();
        let last = row.last_seen.clone().unwrap_or_else(|| "never".to_owned());
        table.row([row.connections.to_string(), row.policy.clone(), row.since.clone(), last, quiet]);
    }
    table.write(out)?;
    if report.connections.is_empty() && report.left_out + report.untold == 0 {
        writeln!(out, "\nEnforcing them would break no connection seen since the audit began.")?;
    } else {
        writeln!(out, "\nEnforcing them would break:")?;
        let mut table = Columns::new(&["CONNECTIONS", "FROM", "TO", "PORT", "FIRST SEEN", "LAST SEEN", "DENIED BY"]);
        for row in report.connections.iter().take(MAX_ROWS) {
            let AuditedConnection { from, to, protocol, port, first_seen, last_seen, denied_by, .. } = row.clone();
            let port = port.map_or_else(|| protocol.clone(), |port| format!("{port}/{protocol}"));
            table.row([row.connections.to_string(), from, to, port, first_seen, last_seen, denied_by]);
        }
        table.write(out)?;
        if let Some(more) = report.connections.len().checked_sub(MAX_ROWS).filter(|&more| more > 0) {
            writeln!(out, "and {more} more; -o json has all of them")?;
        }
    }
    if report.left_out > 0 {
        writeln!(
            out,
            "{} connections are counted above but not listed: too many distinct connections",
            report.left_out
        )?;
    }
    if report.untold > 0 {
        writeln!(
            out,
            "{} connections are not counted above because of overload; `bulkhead policies` counts them",
            report.untold
        )?;
    }
    if report.file.is_none() {
        writeln!(
            out,
            "These counts are lost when the vswitch stops: the configuration has neither audit.folder nor sessions.folder."
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::protocol::AuditedPolicyRow;
    use super::*;

    fn text(report: &AuditReport) -> String {
        let mut text = Vec::new();
        write(&mut text, report).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_report_says_what_would_break_since_when_and_whether_it_is_quiet() {
        let quiet = AuditedPolicyRow {
            policy: "x/quiet".into(),
            since: "2026-01-01T00:00:00Z".into(),
            connections: 0,
            first_seen: None,
            last_seen: None,
            quiet_seconds: 7200,
        };
        let mut report = AuditReport {
            node: "n".into(),
            at: "2026-01-01T02:00:00Z".into(),
            file: Some("/run/a".into()),
            policies: vec![quiet.clone()],
            connections: Vec::new(),
            left_out: 0,
            untold: 0,
        };
        let told = text(&report);
        assert!(told.contains("x/quiet") && told.contains("never") && told.contains("2h"), "{told}");
        assert!(told.contains("would break no connection seen"), "{told}");
        let seen = Some("2026-01-01T01:59:00Z".to_owned());
        report.policies.push(AuditedPolicyRow {
            policy: "x/p".into(),
            connections: 3,
            first_seen: seen.clone(),
            last_seen: seen,
            quiet_seconds: 60,
            ..quiet
        });
        report.connections.push(AuditedConnection {
            from: "x/frontend".into(),
            to: "x/db".into(),
            protocol: "TCP".into(),
            port: Some(6379),
            denied_by: "ingress isolated by x/p".into(),
            policies: vec!["x/p".into()],
            connections: 3,
            first_seen: "2026-01-01T01:59:00Z".into(),
            last_seen: "2026-01-01T01:59:00Z".into(),
        });
        (report.untold, report.file) = (2, None);
        let told = text(&report);
        assert!(told.contains("2 audited policies, not enforced"), "{told}");
        assert!(told.contains("6379/TCP") && told.contains("ingress isolated by x/p"), "{told}");
        assert!(
            told.contains("2 connections are not counted above") && told.contains("lost when the vswitch stops"),
            "{told}"
        );
        report.policies.clear();
        assert!(text(&report).contains("no policy of its pods is audited: all are enforced"));
    }
}
