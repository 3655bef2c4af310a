//! `bulkhead status`, `ports`, `policies`, `sessions`, `tables` and `reload`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use bulkhead_answers::lint::Running;

use super::client::ask;
use super::json::print_json;
use super::nodes;
use super::protocol::{
    AuditStatus, Condition, EndedSessions, PolicyRow, PortKey, PortRow, RemoteNodesStatus, Request, ServiceHealth,
    SessionFilter, SessionRow, Sessions, Status, TableRow,
};
use crate::args;
use bulkhead_answers::args::{Admin, Format};
use bulkhead_answers::output::{self, Columns, printable, some_of};
use bulkhead_answers::services;

/// Polling interval of `--wait`.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of drop reasons in `status`, which should fit a screen.
const MAX_REASONS: usize = 5;
/// Maximum number of late ports in `status`.
const MAX_LATE: usize = 10;

/// Prints the health of the vswitch. Returns exit code 1 if it is not ready.
pub fn status(args: &args::Status) -> anyhow::Result<ExitCode> {
    let deadline = args.wait.then(|| Instant::now() + args.timeout);
    loop {
        let asked = ask::<Status>(&args.admin.socket, &Request::Status);
        let is_ready = asked.as_ref().is_ok_and(|status| status.ready);
        if !is_ready && deadline.is_some_and(|deadline| Instant::now() < deadline) {
            std::thread::sleep(INTERVAL);
            continue;
        }
        let status = asked?;
        let mut out = output::stdout();
        match args.admin.output {
            Format::Json => print_json(&mut out, &status)?,
            Format::Text => write_status(&mut out, &status)?,
        }
        return Ok(ExitCode::from(u8::from(!is_ready)));
    }
}

fn write_remote_nodes(out: &mut impl Write, remote: &RemoteNodesStatus) -> io::Result<()> {
    let RemoteNodesStatus { routed, tunneled, problems, tunnel_mtu, tunnel_dropped, probes } = remote;
    let mtu = tunnel_mtu.map_or_else(String::new, |mtu| format!(" (MTU {mtu})"));
    writeln!(out, "other nodes' pod networks: {routed} by routes, {tunneled} through the tunnel{mtu}")?;
    for problem in problems.iter().take(MAX_LATE) {
        writeln!(out, "  {}", printable(problem))?;
    }
    if let Some(more) = problems.len().checked_sub(MAX_LATE).filter(|&more| more > 0) {
        writeln!(out, "  and {more} more; see the log")?;
    }
    if *tunnel_dropped > 0 {
        writeln!(
            out,
            "  {tunnel_dropped} packets from the tunnel dropped: their sender is no node, or not the owner of their source"
        )?;
    }
    probes.iter().try_for_each(|probes| nodes::write_summary(out, probes))
}

fn write_status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let seconds = |seconds: u64| humantime::format_duration(Duration::from_secs(seconds));
    let reason = if status.condition() == Condition::Denying { ": there is no state to judge by" } else { "" };
    let word = status.condition().name();
    writeln!(out, "node {}: {word}{reason}; up {}", printable(&status.node), seconds(status.uptime_seconds))?;
    if let Some(judging) = &status.judging {
        writeln!(out, "judged: {}", printable(&judging.to_string()))?;
    }
    let policy = &status.policy;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time since the start, in whole seconds"
    )]
    let age = policy.age_seconds as u64;
    writeln!(
        out,
        "policy: generation {}, in force for {}, which took {:.1} ms; states {} applied, {} refused",
        status.generation,
        seconds(age),
        policy.enforce_seconds * 1e3,
        policy.states_applied,
        policy.states_refused
    )?;
    if policy.refused {
        writeln!(out, "  cannot apply a newer state or new ports; retrying. See the log")?;
    }
    for (count, what) in [
        (policy.faulty_objects, "objects could not be parsed"),
        (policy.contested_addresses, "addresses are claimed by several pods"),
        (policy.unenforced_kinds, "kinds restrict traffic but are not enforced"),
        (policy.refused_tables, "tables are too large: the previous ones stay in force, or nothing passes"),
    ] {
        if count > 0 {
            writeln!(out, "  {count} {what}; see the log")?;
        }
    }
    write_audit(out, &status.audit)?;
    if let Some(source) = &status.source {
        let how = if source.connected { "connected" } else { "not connected" };
        let age =
            source.age_seconds.map_or_else(|| "no state yet".to_owned(), |age| format!("the state is {age:.0} s old"));
        writeln!(out, "API server: {how} for {}; {age}", seconds(source.since_seconds))?;
        if let Some(error) = &source.last_error {
            writeln!(out, "  {}", printable(error.lines().next().unwrap_or_default()))?;
        }
    }
    writeln!(out, "Services: {}", services::told(status.services.as_ref()))?;
    if let Some(health) = &status.service_health {
        write_health(out, health)?;
    }
    let added = match status.ports.added {
        0 => String::new(),
        added => format!("; {added} of them were added"),
    };
    writeln!(out, "ports: {} of {} open{added}", status.ports.open, status.ports.configured)?;
    for port in status.late.iter().take(MAX_LATE) {
        let why = port.why.as_deref().unwrap_or(&port.state).lines().next().unwrap_or_default();
        writeln!(out, "  {} ({}): {}", printable(&port.name), printable(&port.interface), printable(why))?;
    }
    if let Some(more) = status.late.len().checked_sub(MAX_LATE).filter(|&more| more > 0) {
        writeln!(out, "  and {more} more; see `bulkhead ports`")?;
    }
    if let Some(remote) = &status.remote_nodes {
        write_remote_nodes(out, remote)?;
    }
    let sum = |field: fn(&super::protocol::WorkerRow) -> u64| status.workers.iter().map(field).sum::<u64>();
    writeln!(
        out,
        "workers: {}; {} packets in, {} out; {} forwarded in the kernel",
        status.workers.len(),
        sum(|worker| worker.received),
        sum(|worker| worker.sent),
        status.flow_cache.forwarded
    )?;
    for (at, _) in status.workers.iter().enumerate().filter(|(_, worker)| worker.silent) {
        writeln!(out, "  worker {at} does not respond: its counters are stale")?;
    }
    match sum(|worker| worker.restarts) {
        0 => {}
        restarts => writeln!(out, "  workers failed and restarted {restarts} times; see the log")?,
    }
    let sessions = &status.sessions;
    writeln!(out, "sessions: {} of {}; {} refused", sessions.used, sessions.capacity, sessions.refused)?;
    let dropped: u64 = status.dropped.iter().map(|row| row.packets).sum();
    writeln!(out, "dropped: {dropped} packets")?;
    for row in status.dropped.iter().take(MAX_REASONS) {
        writeln!(out, "  {} {}: {}", row.packets, row.reason, row.means)?;
    }
    match &status.last_error {
        None => writeln!(out, "last error: none"),
        Some(error) => {
            writeln!(out, "last error: {} {}", error.at, printable(error.text.lines().next().unwrap_or_default()))
        }
    }
}

/// Writes the audit status. Nothing if all policies are enforced.
fn write_audit(out: &mut impl Write, audit: &AuditStatus) -> io::Result<()> {
    if audit.audited > 0 {
        let names: Vec<&str> = audit.policies.iter().map(|name| &**name).collect();
        let more = audit.audited.saturating_sub(names.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (are, they) = if audit.audited == 1 { ("policy is", "it") } else { ("policies are", "they") };
        writeln!(
            out,
            "audit: {} {are} not enforced ({}{more}); {they} would have denied {} connections: `bulkhead audit report`",
            audit.audited,
            printable(&names.join(", ")),
            audit.connections
        )?;
    }
    if audit.refused_files > 0 {
        writeln!(out, "  earlier audit counts could not be read; see the log")?;
    }
    Ok(())
}

/// Writes the health that the vswitch reports to load balancers.
fn write_health(out: &mut impl Write, health: &ServiceHealth) -> io::Result<()> {
    let how = match (health.healthy, health.leaving) {
        (false, _) => "not healthy",
        (true, true) => "the node is being deleted",
        (true, false) => "healthy",
    };
    let ports: Vec<String> = health.ports.iter().map(ToString::to_string).collect();
    let ports = some_of(&ports.iter().map(|port| &**port).collect::<Vec<_>>(), MAX_LATE);
    writeln!(out, "  health reported to load balancers: {how}; address {}, ports {ports}", health.listen)?;
    for port in health.refused.iter().take(MAX_LATE) {
        writeln!(out, "  cannot listen on port {}: {}", port.port, printable(&port.why))?;
    }
    Ok(())
}

/// Prints the ports of the vswitch with their state and traffic counters.
pub fn ports(args: &Admin) -> anyhow::Result<ExitCode> {
    show(args, &Request::Ports, |rows: &[PortRow], out| {
        let headings = [
            "PORT",
            "STATE",
            "INTERFACE",
            "CONTAINER",
            "ADDRESSES",
            "RECEIVED",
            "BYTES",
            "SENT",
            "BYTES",
            "LIMITED",
            "BYPASSED",
        ];
        let mut table = Columns::new(&headings);
        for row in rows {
            let numbers = [row.received, row.received_bytes, row.sent, row.sent_bytes, row.limited, row.bypassed];
            let container = row.container.as_ref().map_or_else(|| "-".to_owned(), short);
            let words =
                [row.name.clone(), row.state.clone(), row.interface.clone(), container, row.addresses.join(",")];
            table.row(words.into_iter().chain(numbers.map(|number| number.to_string())));
        }
        table.write(out)?;
        for row in rows {
            if let Some(why) = &row.why {
                writeln!(out, "{}: {}", printable(&row.name), printable(why))?;
            }
        }
        Ok(())
    })
}

/// Returns the start of the container's ID.
fn short(key: &PortKey) -> String {
    /// The length that `crictl` and `docker` show.
    const LETTERS: usize = 12;
    key.container.chars().take(LETTERS).collect()
}

/// Reads the counters of the vswitch at this admin socket, for `lint --hits`.
///
/// # Errors
/// If no vswitch answers.
pub fn counters(socket: &Path) -> anyhow::Result<Running> {
    /// Fields of a status that all versions have.
    #[derive(serde::Deserialize)]
    struct Since {
        node: String,
        uptime_seconds: u64,
    }

    let policies = ask(socket, &Request::Policies)?;
    let Since { node, uptime_seconds } = ask(socket, &Request::Status)?;
    Ok(Running { node, uptime_seconds, policies })
}

/// Prints the counters of each policy and rule.
pub fn policies(args: &Admin) -> anyhow::Result<ExitCode> {
    show(args, &Request::Policies, |rows: &[PolicyRow], out| {
        if rows.iter().all(|row| !row.not_enforced && row.audited == 0) {
            let mut table = Columns::new(&["ALLOWED", "DENIED", "POLICY"]);
            for row in rows {
                table.row([row.allowed.to_string(), row.denied.to_string(), row.origin.clone()]);
            }
            return table.write(out);
        }
        let mut table = Columns::new(&["ALLOWED", "DENIED", "WOULD DENY", "POLICY"]);
        for row in rows {
            let beside = if row.not_enforced { " (not enforced)" } else { "" };
            let numbers = [row.allowed, row.denied, row.audited].map(|number| number.to_string());
            table.row(numbers.into_iter().chain([format!("{}{beside}", row.origin)]));
        }
        table.write(out)
    })
}

/// Prints the tables in force with their numbers of rules, or the rules of one port.
pub fn tables(args: &args::Tables) -> anyhow::Result<ExitCode> {
    let request = Request::Tables { port: args.port.clone() };
    show(&args.admin, &request, |rows: &[TableRow], out| {
        if args.port.is_some() {
            for row in rows {
                row.list.iter().try_for_each(|rule| writeln!(out, "{}", printable(rule)))?;
                if !row.not_enforced.is_empty() {
                    writeln!(out, "# not enforced: {}", printable(&row.not_enforced.join(", ")))?;
                }
            }
            return Ok(());
        }
        if rows.iter().all(|row| row.not_enforced.is_empty()) {
            let mut table = Columns::new(&["RULES", "PORT"]);
            for row in rows {
                table.row([row.rules.to_string(), row.port.clone()]);
            }
            return table.write(out);
        }
        let mut table = Columns::new(&["RULES", "PORT", "NOT ENFORCED"]);
        for row in rows {
            let names: Vec<&str> = row.not_enforced.iter().map(|name| &**name).collect();
            let names = if names.is_empty() { "-".to_owned() } else { some_of(&names, MAX_LATE) };
            table.row([row.rules.to_string(), row.port.clone(), names]);
        }
        table.write(out)
    })
}

/// Prints the sessions that match the filter, or ends them with `--kill`.
pub fn sessions(args: &args::Sessions) -> anyhow::Result<ExitCode> {
    let filter =
        SessionFilter { port: args.port.clone(), address: args.address, service: args.service, limit: args.limit };
    if args.kill {
        return kill(args, filter);
    }
    let told: Sessions = ask(&args.admin.socket, &Request::Sessions(filter))?;
    let mut out = output::stdout();
    if args.admin.output == Format::Json {
        print_json(&mut out, &told)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Columns::new(&["PROTOCOL", "FROM", "TO", "IN", "OUT", "STATE", "IDLE", "ALLOWED BY"]);
    for row in &told.sessions {
        let SessionRow { protocol, from, to, service, source, in_port, out_port, state, idle_seconds, origin } =
            row.clone();
        let from = source.map_or(from.clone(), |source| format!("{from} as {source}"));
        let to = service.map_or(to.clone(), |service| format!("{to} for {service}"));
        table.row([protocol, from, to, in_port, out_port, state, format!("{idle_seconds:.0}s"), origin]);
    }
    table.write(&mut out)?;
    writeln!(out, "\n{} sessions match, {} are shown", told.matching, told.sessions.len())?;
    for (port, count) in &told.ports {
        writeln!(out, "  {count} of {}", printable(port))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kill(args: &args::Sessions, filter: SessionFilter) -> anyhow::Result<ExitCode> {
    let is_filtered = filter.port.is_some() || filter.address.is_some() || filter.service.is_some();
    anyhow::ensure!(
        is_filtered || args.all,
        "--kill without a filter would end every session of the node\n  help: add --port, --address or --service, or confirm with --all"
    );
    let told: EndedSessions = ask(&args.admin.socket, &Request::EndSessions(filter))?;
    let mut out = output::stdout();
    match args.admin.output {
        Format::Json => print_json(&mut out, &told)?,
        Format::Text => writeln!(out, "{} sessions ended", told.ended)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the vswitch re-read its configuration and state.
pub fn reload(args: &args::Reload) -> anyhow::Result<ExitCode> {
    ask::<Value>(&args.socket, &Request::Reload)?;
    Ok(ExitCode::SUCCESS)
}

/// Sends a request for rows and prints the answer.
fn show<T: Serialize + DeserializeOwned>(
    args: &Admin,
    request: &Request,
    write: impl FnOnce(&[T], &mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    let rows: Vec<T> = ask(Path::new(&args.socket), request)?;
    let mut out = output::stdout();
    match args.output {
        Format::Json => print_json(&mut out, &rows)?,
        Format::Text => write(&rows, &mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{
        DropRow, FlowCacheRow, LastError, PolicyStatus, PortTotals, RefusedPort, SessionTotals, WorkerRow,
    };
    use super::*;

    fn sample() -> Status {
        let worker = WorkerRow {
            received: 10,
            sent: 8,
            dropped: 2,
            sessions: 3,
            restarts: 0,
            judged: None,
            busy_ns: None,
            silent: false,
        };
        let late = PortRow {
            name: "x/web".into(),
            kind: "pod".into(),
            interface: "veth1".into(),
            container: None,
            state: "absent".into(),
            why: Some("waits for its interface: there is no veth1\nhelp: make it".into()),
            addresses: Vec::new(),
            received: 0,
            received_bytes: 0,
            sent: 0,
            sent_bytes: 0,
            limited: 0,
            bypassed: 0,
            dropped: None,
            sessions_started: None,
            sessions_reached: None,
            epoch: 0,
        };
        Status {
            program: "0.1.0".into(),
            node: "node-1".into(),
            pod_networks: Vec::new(),
            ready: true,
            remote_nodes: Some(RemoteNodesStatus {
                routed: 2,
                tunneled: 1,
                problems: vec!["node-4: the kernel has no route".into()],
                tunnel_mtu: Some(1450),
                tunnel_dropped: 7,
                probes: None,
            }),
            denying: false,
            judging: Some(crate::admin::Judging {
                renderer: "identity".into(),
                place: "destination".into(),
                automatic: true,
            }),
            uptime_seconds: 61,
            uptime_ms: None,
            instance: None,
            generation: 7,
            policy: PolicyStatus {
                age_seconds: 5.5,
                enforce_seconds: 0.0123,
                refused: false,
                states_applied: 2,
                states_refused: 1,
                faulty_objects: 3,
                contested_addresses: 0,
                unenforced_kinds: 0,
                refused_tables: 0,
            },
            audit: AuditStatus::default(),
            source: None,
            services: None,
            service_health: Some(ServiceHealth {
                listen: "[::]:10256".into(),
                healthy: true,
                leaving: false,
                ports: vec![10_256],
                refused: vec![RefusedPort { port: 30_000, why: "in use".into() }],
            }),
            ports: PortTotals { configured: 2, added: 1, open: 1 },
            late: vec![late],
            workers: vec![worker.clone(), worker],
            sessions: SessionTotals { used: 6, capacity: 100, refused: 0, created: None },
            dropped: vec![DropRow { reason: "policy_denied".into(), means: "denied by policy".into(), packets: 4 }],
            flow_cache: FlowCacheRow { forwarded: 99, added: 2, refused: 0 },
            last_error: Some(LastError { at: "T".into(), text: "a fault\nhelp: mend it".into() }),
        }
    }

    #[test]
    fn the_status_is_one_screen_that_says_what_is_late_and_what_went_wrong() {
        let mut text = Vec::new();
        write_status(&mut text, &sample()).unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            "node node-1: ready; up 1m 1s",
            "judged: by identity, where packets leave (engine: auto)",
            "generation 7, in force for 5s, which took 12.3 ms; states 2 applied, 1 refused",
            "3 objects could not be parsed",
            "  health reported to load balancers: healthy; address [::]:10256, ports 10256\n  cannot listen on port 30000: in use",
            "ports: 1 of 2 open; 1 of them were added",
            "x/web (veth1): waits for its interface: there is no veth1",
            "other nodes' pod networks: 2 by routes, 1 through the tunnel (MTU 1450)\n  node-4: the kernel has no route\n  7 packets from",
            "workers: 2; 20 packets in, 16 out; 99 forwarded in the kernel",
            "sessions: 6 of 100; 0 refused",
            "4 policy_denied: denied by policy",
            "last error: T a fault",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(text.lines().count() < 24 && !text.contains("does not respond"), "{text}");
        let mut hung = sample();
        hung.workers[1].silent = true;
        let mut text = Vec::new();
        write_status(&mut text, &hung).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("\n  worker 1 does not respond: its counters are stale\n"), "{text}");
        let source = super::super::protocol::SourceStatus {
            connected: false,
            since_seconds: 400,
            age_seconds: Some(401.2),
            last_error: Some("connection refused".into()),
        };
        let mut text = Vec::new();
        write_status(&mut text, &Status { ready: false, source: Some(source), ..sample() }).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("node node-1: not ready"), "{text}");
        assert!(
            text.contains("API server: not connected for 6m 40s; the state is 401 s old\n  connection refused"),
            "{text}"
        );
        let denying = Status { ready: false, denying: true, ..sample() };
        let mut text = Vec::new();
        write_status(&mut text, &denying).unwrap();
        assert!(String::from_utf8(text).unwrap().starts_with("node node-1: denying everything"));
    }
}
