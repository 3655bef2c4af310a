//! Reads the protocols and destination ports of Calico's rules.

use bulkhead_classifier::protocol;

use super::super::error::{Findings, quoted};
use super::super::path::FieldPath;
use super::super::raw::{Mapping, Part, PortRef};
use super::raw::{RawEntity, RawIcmp, RawRule};
use crate::object::{PolicyPort, Transport};

/// The names of protocols with their IANA numbers.
const PROTOCOLS: [(&str, u8); 6] = [
    ("TCP", protocol::TCP),
    ("UDP", protocol::UDP),
    ("SCTP", protocol::SCTP),
    ("ICMP", protocol::ICMP),
    ("ICMPv6", protocol::ICMPV6),
    ("UDPLite", 136),
];

const PROTOCOL_HELP: &str = "write TCP, UDP, SCTP, ICMP, ICMPv6, UDPLite or a number from 1 to 255";

/// The highest number of a port's range.
const LAST: u16 = u16::MAX;

/// Returns the protocols and ports of a rule. `None` for all. The rule may be used only if no problem was found.
pub(super) fn read(
    raw: &RawRule,
    destination: &RawEntity,
    base: &FieldPath,
    findings: &mut Findings,
) -> Option<Vec<PolicyPort>> {
    let mut number = |raw: &Option<PortRef>, field: &str| {
        raw.as_ref().and_then(|raw| protocol_number(raw, &base.key(field), findings))
    };
    let (of, not) = (number(&raw.protocol, "protocol"), number(&raw.not_protocol, "notProtocol"));
    let path = base.key("destination");
    let has = |ports: &Option<Vec<PortRef>>| ports.as_ref().is_some_and(|ports| !ports.is_empty());
    if has(&destination.ports) || has(&destination.not_ports) {
        return with_ports(of, not, destination, &path, findings);
    }
    let icmp = icmp_ranges(&raw.icmp, of, &base.key("icmp"), findings);
    let not_icmp = icmp_ranges(&raw.not_icmp, of, &base.key("notICMP"), findings);
    match (of, not) {
        (Some(of), not) if not == Some(of) => Some(Vec::new()),
        (Some(of), _) => {
            let ranges = icmp.unwrap_or_else(|| vec![(0, LAST)]);
            Some(numbers(of, &without(&ranges, not_icmp.as_deref().unwrap_or_default())))
        }
        (None, Some(not)) => {
            let below = (not > 0).then(|| (0, not - 1));
            let above = (not < u8::MAX).then(|| (not + 1, u8::MAX));
            let all = below.into_iter().chain(above);
            Some(all.map(|protocols| PolicyPort::Numbers { protocols, first: 0, last: LAST }).collect())
        }
        (None, None) => None,
    }
}

/// Returns entries for ports of a protocol. ICMP's ports are the type times 256 plus the code.
fn numbers(of: u8, ranges: &[(u16, u16)]) -> Vec<PolicyPort> {
    let transport = Transport::ALL.into_iter().find(|transport| transport.number() == of);
    let port = |&(first, last): &(u16, u16)| match transport {
        Some(transport) if (first, last) == (0, LAST) => PolicyPort::All(transport),
        Some(transport) => PolicyPort::Range { transport, first, last },
        None => PolicyPort::Numbers { protocols: (of, of), first, last },
    };
    ranges.iter().map(port).collect()
}

fn protocol_number(raw: &PortRef, path: &FieldPath, findings: &mut Findings) -> Option<u8> {
    let (number, text) = match raw {
        PortRef::Number(number) => (u8::try_from(*number).ok(), number.to_string()),
        PortRef::Name(name) => {
            let known = PROTOCOLS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            (known.map(|(_, number)| *number).or_else(|| name.parse().ok()), name.clone())
        }
    };
    let number = number.filter(|&number| number > 0);
    if number.is_none() {
        findings.problem(path, format!("unknown protocol {}", quoted(&text)), PROTOCOL_HELP);
    }
    number
}

/// Returns the types and codes of an ICMP field. `None` if it is absent, with a problem if it is invalid.
fn icmp_ranges(
    raw: &Part<RawIcmp>,
    of: Option<u8>,
    path: &FieldPath,
    findings: &mut Findings,
) -> Option<Vec<(u16, u16)>> {
    let Mapping(raw) = raw.as_ref()?;
    if !matches!(of, Some(protocol::ICMP | protocol::ICMPV6)) {
        findings.problem(path, "types of ICMP require the protocol", "write `protocol: ICMP` or `protocol: ICMPv6`");
        return None;
    }
    let mut number = |field: &str, number: Option<i64>, most: u8| {
        let valid = number.map(|number| u8::try_from(number).ok().filter(|&number| number <= most));
        if valid == Some(None) {
            findings.problem(&path.key(field), "a number out of range", format!("write a number from 0 to {most}"));
        }
        valid
    };
    let (kind, code) = (number("type", raw.kind, 254), number("code", raw.code, 255));
    let first = |kind: u8| u16::from(kind) << 8;
    match (kind, code) {
        (None, None) => Some(vec![(0, LAST)]),
        (None, Some(_)) => {
            findings.problem(path, "`code` requires `type`", "add the type");
            None
        }
        (Some(kind), None) => kind.map(|kind| vec![(first(kind), first(kind) + 255)]),
        (Some(kind), Some(code)) => kind.zip(code).map(|(kind, code)| {
            let port = first(kind) + u16::from(code);
            vec![(port, port)]
        }),
    }
}

/// Returns the ports of a rule with `ports` or `notPorts`.
fn with_ports(
    of: Option<u8>,
    not: Option<u8>,
    destination: &RawEntity,
    base: &FieldPath,
    findings: &mut Findings,
) -> Option<Vec<PolicyPort>> {
    let mut read = |raw: &Option<Vec<PortRef>>, field: &str| {
        let all = raw.iter().flatten().enumerate();
        all.filter_map(|(at, raw)| port(raw, &base.key(field).index(at), findings)).collect::<Vec<_>>()
    };
    let (ports, not_ports) = (read(&destination.ports, "ports"), read(&destination.not_ports, "notPorts"));
    let ranges = |ports: &[Port]| ports.iter().filter_map(Port::range).collect::<Vec<_>>();
    let names = || ports.iter().filter_map(Port::name);
    let has_names = names().next().is_some();
    if not_ports.iter().any(|port| port.name().is_some()) {
        let help = "write the port's number";
        findings.problem(&base.key("notPorts"), "names of ports cannot be excluded", help);
    }
    if has_names && !not_ports.is_empty() {
        let help = "write the number instead of the name, or write two rules";
        findings.problem(base, "names of ports cannot be combined with `notPorts`", help);
    }
    let transports: Vec<Transport> = match of {
        Some(of) => Transport::ALL.into_iter().filter(|transport| transport.number() == of).collect(),
        None => Transport::ALL.to_vec(),
    };
    let is_numbered = !not_ports.is_empty() || ports.iter().any(|port| port.range().is_some());
    if transports.is_empty() || (of.is_none() && is_numbered) {
        let help = "write `protocol: TCP`, UDP or SCTP in the rule";
        findings.problem(base, "ports require a protocol that has ports", help);
        return None;
    }
    let all = if destination.ports.as_ref().is_none_or(Vec::is_empty) { vec![(0, LAST)] } else { ranges(&ports) };
    let left = without(&all, &ranges(&not_ports));
    let mut entries = Vec::new();
    for transport in transports.into_iter().filter(|transport| Some(transport.number()) != not) {
        entries.extend(numbers(transport.number(), &left));
        entries.extend(names().map(|name| PolicyPort::Named { transport, name: name.into() }));
    }
    Some(entries)
}

/// A port of a list: a name or a range of numbers.
enum Port {
    Named(String),
    Range(u16, u16),
}

impl Port {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Range(..) => None,
        }
    }

    const fn range(&self) -> Option<(u16, u16)> {
        match self {
            Self::Named(_) => None,
            Self::Range(first, last) => Some((*first, *last)),
        }
    }
}

/// Reads a port: a number, a range such as `1:5`, or a name.
fn port(raw: &PortRef, path: &FieldPath, findings: &mut Findings) -> Option<Port> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|&number| number > 0);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (port, text) = match raw {
        PortRef::Number(raw) => (number(&raw.to_string()).map(|port| Port::Range(port, port)), raw.to_string()),
        PortRef::Name(text) => {
            let port = match text.split_once(':') {
                Some((first, last)) if is_number(first) && is_number(last) => {
                    let ends = number(first).zip(number(last));
                    ends.filter(|(first, last)| first <= last).map(|(first, last)| Port::Range(first, last))
                }
                None if is_number(text) => number(text).map(|port| Port::Range(port, port)),
                _ => is_name(text).then(|| Port::Named(text.clone())),
            };
            (port, text.clone())
        }
    };
    if port.is_none() {
        let help = "write a number from 1 to 65535, a range such as 1000:2000 or the name of a port";
        findings.problem(path, format!("invalid port {}", quoted(&text)), help);
    }
    port
}

/// Whether the text may be a port's name. Calico permits more than Kubernetes.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns the numbers of `ranges` that are in none of `others`, sorted, as ranges that neither touch nor overlap.
fn without(ranges: &[(u16, u16)], others: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let mut left: Vec<(u16, u16)> = Vec::new();
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    for (first, last) in sorted {
        match left.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => left.push((first, last)),
        }
    }
    for &(first, last) in others {
        left = left
            .into_iter()
            .flat_map(|(start, end)| {
                let below = (start < first).then(|| (start, end.min(first.saturating_sub(1))));
                let above = (end > last).then(|| (start.max(last.saturating_add(1)), end));
                below.into_iter().chain(above)
            })
            .collect();
    }
    left
}
