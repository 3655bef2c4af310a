//! `bulkhead nodes`: the ways to other nodes, with the proof that packets arrive.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use super::client::ask;
use super::json::print_json;
use super::protocol::{NodeWayRow, NodeWays, ProbesStatus, Request, WayState};
use bulkhead_answers::args::{Admin, Format};
use bulkhead_answers::output::{self, Columns, printable};

/// Prints the way to each other node. Returns exit code 1 if packets do not arrive on one of them.
pub fn nodes(args: &Admin) -> anyhow::Result<ExitCode> {
    let told: NodeWays = ask(&args.socket, &Request::Nodes)?;
    let mut out = output::stdout();
    match args.output {
        Format::Json => print_json(&mut out, &told)?,
        Format::Text => write_ways(&mut out, &told)?,
    }
    let is_broken = told.ways.iter().any(|way| way.state == WayState::Broken);
    Ok(ExitCode::from(u8::from(is_broken)))
}

fn write_ways(out: &mut impl Write, told: &NodeWays) -> io::Result<()> {
    let mut table =
        Columns::new(&["NODE", "FAMILY", "NETWORKS", "WAY", "SINCE", "MTU", "LAST PROOF", "ROUND TRIP", "STATE"]);
    for row in &told.ways {
        let networks: Vec<String> = row.networks.iter().map(ToString::to_string).collect();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            row.node.clone(),
            row.family.clone(),
            or_dash(Some(networks.join(",")).filter(|text| !text.is_empty())),
            way(row),
            ago(row.since_seconds),
            or_dash(row.mtu.map(|mtu| mtu.to_string())),
            or_dash(
                row.proof_age_seconds.map(|age| ago(Duration::try_from_secs_f64(age).unwrap_or_default().as_secs())),
            ),
            or_dash(row.round_trip_ms.map(|time| format!("{time:.2} ms"))),
            state(row).to_owned(),
        ]);
    }
    table.write(out)?;
    for row in &told.ways {
        if let Some(fault) = &row.fault {
            writeln!(out, "{} ({}): {}", printable(&row.node), printable(&row.family), printable(&fault.text))?;
        }
    }
    match told.probe_port {
        None => writeln!(out, "nothing is probed: probe.port is 0"),
        Some(_) if told.ways.is_empty() => writeln!(out, "no other nodes are known"),
        Some(_) => Ok(()),
    }
}

fn way(row: &NodeWayRow) -> String {
    let via = row.to.map_or_else(String::new, |to| format!(" {to}"));
    match (&*row.way, &row.interface) {
        ("route", Some(interface)) => format!("route via{via} dev {interface}"),
        ("tunnel", _) => format!("tunnel to{via}"),
        (other, _) => other.to_owned(),
    }
}

const fn state(row: &NodeWayRow) -> &'static str {
    match row.state {
        WayState::Proven => "proven",
        WayState::Broken => "broken",
        WayState::Waiting => "no answer yet",
        WayState::NotProbed => "not probed",
    }
}

fn ago(seconds: u64) -> String {
    format!("{} ago", humantime::format_duration(Duration::from_secs(seconds)))
}

/// Writes the summary of `bulkhead status`.
pub(super) fn write_summary(out: &mut impl Write, probes: &ProbesStatus) -> io::Result<()> {
    let ProbesStatus { proven, broken, waiting, not_probed, faults } = probes;
    if proven + broken + waiting + not_probed == 0 {
        return Ok(());
    }
    let more = [(waiting, "without an answer yet"), (not_probed, "not probed")];
    let more = more.iter().filter(|(count, _)| **count > 0).map(|(count, what)| format!(", {count} {what}"));
    writeln!(out, "  probed: {proven} proven, {broken} broken{}: `bulkhead nodes`", more.collect::<String>())?;
    faults.iter().try_for_each(|fault| writeln!(out, "  {}", printable(fault)))
}

#[cfg(test)]
mod tests {
    use super::super::protocol::WayFault;
    use super::*;

    fn row(node: &str) -> NodeWayRow {
        NodeWayRow {
            node: node.to_owned(),
            family: "IPv4".to_owned(),
            networks: vec!["10.244.2.0/24".parse().unwrap()],
            way: "route".to_owned(),
            to: Some("192.0.2.2".parse().unwrap()),
            interface: Some("eth0".to_owned()),
            since_seconds: 3723,
            mtu: Some(1500),
            state: WayState::Proven,
            proof_age_seconds: Some(4.2),
            round_trip_ms: Some(0.217),
            fault: None,
        }
    }

    #[test]
    fn each_way_is_a_line_and_each_fault_a_sentence() {
        let fault = WayFault { cause: "no_answer".to_owned(), text: "192.0.2.3 does not answer".to_owned() };
        let broken = NodeWayRow {
            way: "tunnel".to_owned(),
            interface: None,
            state: WayState::Broken,
            proof_age_seconds: None,
            round_trip_ms: None,
            fault: Some(fault),
            ..row("node-3")
        };
        let told = NodeWays {
            node: "node-1".to_owned(),
            probe_port: Some(4792),
            probe_interval_seconds: Some(10.0),
            ways: vec![row("node-2"), broken],
        };
        let mut text = Vec::new();
        write_ways(&mut text, &told).unwrap();
        let text = String::from_utf8(text).unwrap();
        let expected = "\
NODE    FAMILY  NETWORKS       WAY                         SINCE         MTU   LAST PROOF  ROUND TRIP  STATE
node-2  IPv4    10.244.2.0/24  route via 192.0.2.2 dev eth0  1h 2m 3s ago  1500  4s ago      0.22 ms     proven
node-3  IPv4    10.244.2.0/24  tunnel to 192.0.2.2           1h 2m 3s ago  1500  -           -           broken
node-3 (IPv4): 192.0.2.3 does not answer
";
        assert_eq!(
            text.split_whitespace().collect::<Vec<_>>(),
            expected.split_whitespace().collect::<Vec<_>>(),
            "{text}"
        );
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn the_summary_is_one_line_and_the_first_faults() {
        let probes = ProbesStatus {
            proven: 3,
            broken: 1,
            waiting: 2,
            not_probed: 0,
            faults: vec!["node-3 (IPv4): x".to_owned()],
        };
        let mut text = Vec::new();
        write_summary(&mut text, &probes).unwrap();
        let expected = "  probed: 3 proven, 1 broken, 2 without an answer yet: `bulkhead nodes`\n  node-3 (IPv4): x\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let mut text = Vec::new();
        write_summary(&mut text, &ProbesStatus::default()).unwrap();
        assert!(text.is_empty(), "without other nodes");
    }
}
