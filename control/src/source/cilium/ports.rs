//! Reads ports and types of ICMP of Cilium's rules, and names what else their proxy would decide.

use std::sync::Arc;

use bulkhead_classifier::protocol;

use super::super::error::{Problem, quoted};
use super::super::names;
use super::super::path::FieldPath;
use super::super::raw::{List, Mapping, PortRef};
use super::raw::{RawEntry, RawIcmpField, RawPort, RawPorts, RawRules};
use super::{List as RuleList, Reader};
use crate::object::{PolicyPort, RuleAction, Transport};
use crate::origin::Direction;

/// Maximum number of ports, and of types of ICMP, in one list. Source: Cilium, `pkg/policy/api/rule_validation.go`, as for all here.
const MOST: usize = 40;

/// Names of types of ICMP for IPv4, and their numbers.
const TYPES: [(&str, u8); 14] = [
    ("EchoReply", 0),
    ("DestinationUnreachable", 3),
    ("Redirect", 5),
    ("Echo", 8),
    ("EchoRequest", 8),
    ("RouterAdvertisement", 9),
    ("RouterSelection", 10),
    ("TimeExceeded", 11),
    ("ParameterProblem", 12),
    ("Timestamp", 13),
    ("TimestampReply", 14),
    ("Photuris", 40),
    ("ExtendedEchoRequest", 42),
    ("ExtendedEchoReply", 43),
];

/// Names of types of ICMP for IPv6, and their numbers.
const TYPES_V6: [(&str, u8); 27] = [
    ("DestinationUnreachable", 1),
    ("PacketTooBig", 2),
    ("TimeExceeded", 3),
    ("ParameterProblem", 4),
    ("EchoRequest", 128),
    ("EchoReply", 129),
    ("MulticastListenerQuery", 130),
    ("MulticastListenerReport", 131),
    ("MulticastListenerDone", 132),
    ("RouterSolicitation", 133),
    ("RouterAdvertisement", 134),
    ("NeighborSolicitation", 135),
    ("NeighborAdvertisement", 136),
    ("RedirectMessage", 137),
    ("RouterRenumbering", 138),
    ("ICMPNodeInformationQuery", 139),
    ("ICMPNodeInformationResponse", 140),
    ("InverseNeighborDiscoverySolicitation", 141),
    ("InverseNeighborDiscoveryAdvertisement", 142),
    ("HomeAgentAddressDiscoveryRequest", 144),
    ("HomeAgentAddressDiscoveryReply", 145),
    ("MobilePrefixSolicitation", 146),
    ("MobilePrefixAdvertisement", 147),
    ("DuplicateAddressRequestCodeSuffix", 157),
    ("DuplicateAddressConfirmationCodeSuffix", 158),
    ("ExtendedEchoRequest", 160),
    ("ExtendedEchoReply", 161),
];

/// Protocols and ports with the same further conditions.
pub(super) struct Part {
    /// `None` for all protocols and ports.
    pub(super) ports: Option<Vec<PolicyPort>>,
    /// What else decides about the traffic. `None` if nothing does.
    pub(super) then: Option<Arc<str>>,
}

impl Part {
    /// Whether a port is given by its name.
    pub(super) fn has_names(&self) -> bool {
        self.ports.iter().flatten().any(|port| matches!(port, PolicyPort::Named { .. }))
    }
}

impl Reader<'_> {
    /// Returns the protocols and ports of a rule, those without further conditions first. `None` and a problem if any is invalid.
    pub(super) fn ports(&mut self, list: RuleList, raw: &RawEntry, base: &FieldPath) -> Option<Vec<Part>> {
        let before = self.findings.problems.len();
        let authentication = raw.authentication.as_ref().and_then(|Mapping(raw)| raw.mode.as_deref());
        let of_all = authentication.filter(|mode| *mode != "disabled").map(|_| "mutual authentication");
        let ports = raw.to_ports.as_deref().unwrap_or_default();
        let icmps = raw.icmps.as_deref().unwrap_or_default();
        if !ports.is_empty() && !icmps.is_empty() {
            let text = "`icmps` and `toPorts` cannot be combined in one element";
            return self.fail(Problem::new(base, text, "write two elements, each after a `- `"));
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut add =
            |ports: Vec<PolicyPort>, then: Option<Arc<str>>| match parts.iter_mut().find(|part| part.then == then) {
                Some(part) => part.ports.get_or_insert_default().extend(ports),
                None => parts.push(Part { ports: Some(ports), then }),
            };
        for (at, Mapping(raw)) in ports.iter().enumerate() {
            let path = base.key("toPorts").index(at);
            let numbers = self.port_list(&raw.ports, &path.key("ports"));
            let then = self.conditions(list, raw, of_all, &path);
            add(numbers, then);
        }
        for (at, Mapping(raw)) in icmps.iter().enumerate() {
            let path = base.key("icmps").index(at).key("fields");
            let fields = raw.fields.as_deref().unwrap_or_default();
            self.at_most(fields.len(), "types", &path);
            let fields = fields.iter().enumerate();
            let types = fields.filter_map(|(at, Mapping(field))| self.icmp(field, &path.index(at))).collect();
            add(types, of_all.map(Arc::from));
        }
        if parts.is_empty() {
            parts.push(Part { ports: None, then: of_all.map(Arc::from) });
        }
        parts.sort_by_key(|part| part.then.is_some());
        (self.findings.problems.len() == before).then_some(parts)
    }

    fn at_most(&mut self, count: usize, what: &str, path: &FieldPath) {
        if count > MOST {
            let text = format!("{count} {what}: the maximum is {MOST}");
            self.findings.problem(path, text, "split the list into several");
        }
    }

    fn port_list(&mut self, raw: &List<RawPort>, base: &FieldPath) -> Vec<PolicyPort> {
        let raw = raw.as_deref().unwrap_or_default();
        if raw.is_empty() {
            let help = "add at least one port; write port \"0\" for all ports";
            self.findings.problem(base, "no ports, whose meaning depends on Cilium's version", help);
        }
        self.at_most(raw.len(), "ports", base);
        let mut ports = Vec::new();
        for (at, Mapping(raw)) in raw.iter().enumerate() {
            ports.extend(self.port(raw, &base.index(at)).into_iter().flatten());
        }
        ports
    }

    fn port(&mut self, raw: &RawPort, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        let transports = match raw.protocol.as_deref() {
            None | Some("" | "ANY") => Transport::ALL.to_vec(),
            Some(name) => match Transport::from_name(name) {
                Some(transport) => vec![transport],
                None => {
                    let text = format!("unknown protocol {}", quoted(name));
                    let help = "write TCP, UDP, SCTP or ANY; types of ICMP are in `icmps`";
                    return self.fail(Problem::new(&base.key("protocol"), text, help));
                }
            },
        };
        let lower = raw.port.to_ascii_lowercase();
        if names::is_port_name(&lower) {
            let name: Arc<str> = lower.into();
            return Some(
                transports.into_iter().map(|transport| PolicyPort::Named { transport, name: name.clone() }).collect(),
            );
        }
        let (first, last) = self.range(raw, base)?;
        let port = |transport| match first {
            0 => PolicyPort::All(transport),
            _ => PolicyPort::Range { transport, first, last },
        };
        Some(transports.into_iter().map(port).collect())
    }

    /// Returns the lowest and the highest port. Zero for all ports.
    fn range(&mut self, raw: &RawPort, base: &FieldPath) -> Option<(u16, u16)> {
        // Cilium reads a number after a zero as octal.
        let is_decimal =
            raw.port.bytes().all(|byte| byte.is_ascii_digit()) && (raw.port == "0" || !raw.port.starts_with('0'));
        let Some(first) = raw.port.parse::<u16>().ok().filter(|_| is_decimal) else {
            let text = format!("invalid port {}", quoted(&raw.port));
            let help =
                "write a number from 1 to 65535 without leading zeros, \"0\" for all ports, or the name of a port";
            return self.fail(Problem::new(&base.key("port"), text, help));
        };
        let Some(end) = raw.end_port.filter(|&end| end != 0) else { return Some((first, first)) };
        match u16::try_from(end).ok().filter(|&last| first > 0 && last >= first) {
            Some(last) => Some((first, last)),
            None => {
                let text = format!("endPort {end} does not follow port {first}");
                self.fail(Problem::new(&base.key("endPort"), text, "write a port from the first one to 65535"))
            }
        }
    }

    fn icmp(&mut self, raw: &RawIcmpField, base: &FieldPath) -> Option<PolicyPort> {
        let (number, types) = match raw.family.as_deref() {
            None | Some("" | "IPv4") => (protocol::ICMP, &TYPES[..]),
            Some("IPv6") => (protocol::ICMPV6, &TYPES_V6[..]),
            Some(family) => {
                let text = format!("unknown family {}", quoted(family));
                return self.fail(Problem::new(&base.key("family"), text, "write IPv4 or IPv6"));
            }
        };
        let of_type = match &raw.r#type {
            PortRef::Number(number) => u8::try_from(*number).ok(),
            PortRef::Name(name) => {
                let known = types.iter().find(|(known, _)| known == name);
                known
                    .map(|(_, number)| *number)
                    .or_else(|| name.parse().ok().filter(|number: &u8| number.to_string() == *name))
            }
        };
        let Some(of_type) = of_type else {
            let near = match &raw.r#type {
                PortRef::Name(name) => names::nearest(name, types.iter().map(|(known, _)| *known)),
                PortRef::Number(_) => None,
            };
            let help = near
                .map_or_else(|| "write a number from 0 to 255".to_owned(), |near| format!("did you mean `{near}`?"));
            return self.fail(Problem::new(&base.key("type"), "unknown type of ICMP", help));
        };
        let first = u16::from(of_type) << 8;
        Some(PolicyPort::Numbers { protocols: (number, number), first, last: first | 0xff })
    }

    /// Names the conditions on requests (`HTTP rules, server names`) that decide after these ports match. `None` if there are none. Adds a
    /// problem for each condition in a list of rules that deny.
    fn conditions(
        &mut self,
        (list, direction, action): RuleList,
        raw: &RawPorts,
        of_all: Option<&'static str>,
        base: &FieldPath,
    ) -> Option<Arc<str>> {
        let is_set = |value: &Option<serde_json::Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let names = raw.server_names.as_ref().is_some_and(|names| !names.is_empty());
        let rules = raw.rules.as_ref().and_then(|Mapping(rules)| self.rules_of(rules, direction, &base.key("rules")));
        let fields = [
            ("rules", raw.rules.is_some(), rules),
            ("serverNames", names, Some("server names")),
            ("listener", is_set(&raw.listener), Some("an Envoy listener")),
            ("terminatingTLS", is_set(&raw.terminating_tls), Some("TLS interception")),
            ("originatingTLS", is_set(&raw.originating_tls), Some("TLS interception")),
        ];
        let mut all: Vec<&str> = Vec::new();
        for (field, is_set, what) in fields {
            if is_set && action == RuleAction::Deny {
                let text = format!("`{list}` has no `{field}`");
                self.findings.problem(&base.key(field), text, "remove it: rules that deny apply to packets");
            }
            all.extend(what.filter(|what| is_set && !all.contains(what)));
        }
        all.extend(of_all);
        (!all.is_empty()).then(|| all.join(", ").into())
    }

    /// Returns what the rules for requests are about. `None` if they allow all requests.
    fn rules_of(&mut self, raw: &RawRules, direction: Direction, base: &FieldPath) -> Option<&'static str> {
        let is_set = [
            ("HTTP rules", raw.http.is_some()),
            ("Kafka rules", raw.kafka.is_some()),
            ("DNS rules", raw.dns.is_some()),
            ("rules of another protocol", raw.l7proto.is_some() || raw.l7.is_some()),
        ];
        let mut kinds = is_set.into_iter().filter(|(_, is_set)| *is_set).map(|(kind, _)| kind);
        let kind = kinds.next()?;
        if kinds.next().is_some() {
            self.findings.problem(base, "rules for two protocols", "write two elements of `toPorts`");
        }
        if let Some(rules) = &raw.dns {
            if direction == Direction::Ingress {
                self.findings.problem(&base.key("dns"), "DNS rules are for egress only", "remove them");
            }
            let is_star = |pattern: &str| {
                !pattern.trim_end_matches('.').is_empty()
                    && pattern.trim_end_matches('.').bytes().all(|byte| byte == b'*')
            };
            let allows_all = rules.iter().any(|Mapping(rule)| rule.match_pattern.as_deref().is_some_and(is_star));
            return (!allows_all).then_some(kind);
        }
        Some(kind)
    }
}
