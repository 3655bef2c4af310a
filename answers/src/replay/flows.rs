//! The flow table of the text output: ends, verdict and reason.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use bulkhead_classifier::{OriginId, protocol};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_dataplane::{DropReason, Flow, NameId, Outcome, PortId, SessionState, Snapshot};

use super::translated::Translated;
use crate::output::Columns;

/// Maximum number of rows. The rest is counted in one line below the table.
const MAX_ROWS: usize = 1_000;

/// Counts packets by flow. Both directions of a session count in the row of its first packet.
#[derive(Default)]
pub(super) struct Flows {
    rows: Vec<(Row, u64)>,
    index: HashMap<Row, usize>,
    others: u64,
    /// Audited policy by row: the vswitch reports it with the first packet only.
    audited: HashMap<Row, OriginId>,
    /// Words about the destination's domain names by row: those of the row's first packet that has any.
    names: HashMap<Row, String>,
    /// Service by the address and port that clients used.
    services: HashMap<(IpAddr, u16), String>,
}

/// The key of a row: what its packets have in common. Excludes client ports, so that a thousand requests are one row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    ends: Ends,
    /// The backend of a connection to a Service. `None` for other connections.
    backend: Option<SocketAddr>,
    reason: Option<DropReason>,
    origin: Option<OriginId>,
    /// The domain name by which a rule matched. `None` if none did.
    name: Option<NameId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Ends {
    Flow {
        src: IpAddr,
        dst: IpAddr,
        service: Service,
    },
    /// The row of packets without usable addresses (not IP, or malformed): their ingress port.
    Port {
        from: PortId,
        to: Option<PortId>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Service {
    protocol: u8,
    port: u16,
    icmp: Option<(u8, u8)>,
}

impl Flows {
    /// Counts a packet. `names` are words about its destination's domain names, `None` if they do not matter.
    pub(super) fn count(&mut self, outcome: &Outcome, translated: Option<Translated>, names: Option<String>) {
        let reason = outcome.verdict.drop_reason();
        let origin = outcome.decision.and_then(|decision| decision.origin);
        let backend = translated.as_ref().and_then(|translated| translated.backend);
        let name = outcome.decision.and_then(|decision| decision.name());
        let row = |ends| Row { ends, backend, reason, origin, name };
        let Some(flow) = outcome.flow else {
            return self.add(row(Ends::Port { from: outcome.in_port, to: outcome.verdict.out_port() }));
        };
        if let Some(Translated { service, address, client, .. }) = translated {
            if let Some(service) = service {
                self.services.insert((address.ip(), address.port()), service);
            }
            // Both directions, as the client sees them.
            let (src, sport, dst, dport) = (client.ip(), client.port(), address.ip(), address.port());
            let row = row(ends(&Flow { src, dst, sport, dport, ..flow }));
            self.note(row, outcome, names);
            return self.add(row);
        }
        let forth = row(ends(&flow));
        if outcome.session == Some(SessionState::Hit) && !self.index.contains_key(&forth) {
            let back = row(ends(&reversed(&flow)));
            if self.index.contains_key(&back) {
                return self.add(back);
            }
        }
        self.note(forth, outcome, names);
        self.add(forth);
    }

    fn note(&mut self, row: Row, outcome: &Outcome, names: Option<String>) {
        if let Some(names) = names.filter(|_| self.names.len() < MAX_ROWS) {
            self.names.entry(row).or_insert(names);
        }
        if let Some(origin) = outcome.audited.and_then(|decision| decision.origin)
            && self.audited.len() < MAX_ROWS
        {
            self.audited.insert(row, origin);
        }
    }

    fn add(&mut self, row: Row) {
        if let Some(&at) = self.index.get(&row) {
            self.rows[at].1 += 1;
        } else if self.rows.len() < MAX_ROWS {
            self.index.insert(row, self.rows.len());
            self.rows.push((row, 1));
        } else {
            self.others += 1;
        }
    }

    pub(super) fn write(&self, pipeline: &Pipeline, snapshot: &Snapshot, out: &mut impl Write) -> io::Result<()> {
        let has_backends = self.rows.iter().any(|(row, _)| row.backend.is_some());
        let headings = ["PACKETS", "FROM", "TO", "SERVICE", "BACKEND", "VERDICT", "WHY"];
        let kept = |heading: &&str| *heading != "BACKEND" || has_backends;
        let mut table = Columns::new(&headings.into_iter().filter(kept).collect::<Vec<_>>());
        for (row, packets) in &self.rows {
            let (from, to, service) = self.names(row.ends, snapshot);
            let name = |id| pipeline.origins().get(id).map_or_else(String::new, |origin| origin.to_string());
            let audited = self.audited.get(row).map(|&id| name(id));
            let verdict = match (row.reason, &audited) {
                (Some(_), _) => "drop",
                (None, Some(_)) => "audit",
                (None, None) => "forward",
            };
            let origin = row.origin.and_then(|id| pipeline.origins().get(id)).map(|origin| origin.to_string());
            let why = match (row.reason, origin) {
                (None, _) if audited.is_some() => {
                    format!("allowed, would be denied by {}", audited.unwrap_or_default())
                }
                (Some(DropReason::PolicyDenied), Some(origin)) | (None, Some(origin)) => origin,
                (Some(reason), _) => reason.describe().to_owned(),
                (None, None) => String::new(),
            };
            let why = match self.names.get(row) {
                Some(names) if why.is_empty() => names.clone(),
                Some(names) => format!("{why}, {names}"),
                None => why,
            };
            let backend = row.backend.map_or_else(String::new, |backend| {
                format!("{} {}", address_name(backend.ip(), snapshot), backend.port())
            });
            let backend = has_backends.then_some(backend);
            let before = [packets.to_string(), from, to, service];
            table.row(before.into_iter().chain(backend).chain([verdict.into(), why]));
        }
        table.write(out)?;
        match self.others {
            0 => Ok(()),
            others => writeln!(out, "... and {others} packets of conversations beyond the first {MAX_ROWS}"),
        }
    }

    fn names(&self, ends: Ends, snapshot: &Snapshot) -> (String, String, String) {
        match ends {
            Ends::Flow { src, dst, service } => {
                let named = self.services.get(&(dst, service.port));
                let to = named.map_or_else(|| address_name(dst, snapshot), |name| format!("{name} ({dst})"));
                (address_name(src, snapshot), to, service_name(service))
            }
            Ends::Port { from, to } => {
                let name = |port: PortId| snapshot.port(port).map_or_else(String::new, |port| port.name.to_string());
                (name(from), to.map(name).unwrap_or_default(), if to.is_some() { "ARP" } else { "not IP" }.into())
            }
        }
    }
}

fn ends(flow: &Flow) -> Ends {
    let service = Service { protocol: flow.protocol, port: flow.dport, icmp: flow.icmp.map(request_of) };
    // An echo's port fields hold its identifier, which differs between pings.
    let service = if flow.icmp.is_some() { Service { port: 0, ..service } } else { service };
    Ends::Flow { src: flow.src, dst: flow.dst, service }
}

fn reversed(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}

/// Maps an echo reply to its request (RFC 792: 0 answers 8; RFC 4443: 129 answers 128).
fn request_of((kind, code): (u8, u8)) -> (u8, u8) {
    match kind {
        0 => (8, code),
        129 => (128, code),
        _ => (kind, code),
    }
}

fn address_name(address: IpAddr, snapshot: &Snapshot) -> String {
    match snapshot.owner(address).and_then(|port| snapshot.port(port)) {
        Some(port) => port.name.to_string(),
        None => address.to_string(),
    }
}

fn service_name(service: Service) -> String {
    match (service.protocol, service.icmp) {
        (protocol::ICMP, Some((kind, code))) => icmp_name(kind, code),
        (_, Some((kind, code))) => icmpv6_name(kind, code),
        (protocol::TCP, _) => format!("TCP {}", service.port),
        (protocol::UDP, _) => format!("UDP {}", service.port),
        (protocol::SCTP, _) => format!("SCTP {}", service.port),
        (number, _) => format!("protocol {number}"),
    }
}

/// Returns the name of an ICMP message. Source: IANA "ICMP Type Numbers".
fn icmp_name(kind: u8, code: u8) -> String {
    match kind {
        3 => format!("ICMP unreachable, code {code}"),
        8 => "ICMP echo".into(),
        11 => "ICMP time exceeded".into(),
        _ => format!("ICMP type {kind} code {code}"),
    }
}

/// Returns the name of an ICMPv6 message. Source: IANA "ICMPv6 type Numbers".
fn icmpv6_name(kind: u8, code: u8) -> String {
    match kind {
        1 => format!("ICMPv6 unreachable, code {code}"),
        2 => "ICMPv6 packet too big".into(),
        3 => "ICMPv6 time exceeded".into(),
        128 => "ICMPv6 echo".into(),
        130 | 131 | 132 | 143 => "multicast listeners".into(),
        133 => "router solicitation".into(),
        134 => "router advertisement".into(),
        135 => "neighbour solicitation".into(),
        136 => "neighbour advertisement".into(),
        _ => format!("ICMPv6 type {kind} code {code}"),
    }
}
