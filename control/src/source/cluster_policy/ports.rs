//! Reads protocols and destination ports of cluster policies: `protocols` of v1alpha2, `ports` of v1alpha1.

use std::sync::Arc;

use super::super::error::{Problem, quoted};
use super::super::names;
use super::super::path::FieldPath;
use super::super::policy::{port_number, transport};
use super::super::raw::Mapping;
use super::raw::{RawDestinationPort, RawPort, RawProtocol, RawRange, RawRule, RawTransport};
use super::{Reader, Version};
use crate::object::{PolicyPort, Transport};

/// Whether any port is named.
pub(super) fn name_some(ports: &[PolicyPort]) -> bool {
    ports.iter().any(|port| matches!(port, PolicyPort::Named { .. }))
}

impl Reader<'_> {
    /// Returns the valid protocols and ports of a rule. `None` means every protocol and port. The rule may be used only if no problem was
    /// found.
    pub(super) fn ports_of(&mut self, raw: &RawRule, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        let (key, own, other) = (self.version().ports(), raw.protocols.is_some(), raw.ports.is_some());
        let path = base.key(key);
        let mut all = Vec::new();
        let count = match self.version() {
            Version::V1alpha2 => {
                if other {
                    self.unknown(base, "ports", "write `protocols: [{tcp: {destinationPort: {number: 80}}}]`");
                }
                for (at, Mapping(entry)) in raw.protocols.iter().flatten().enumerate() {
                    all.extend(self.protocol(entry, &path.index(at)).into_iter().flatten());
                }
                raw.protocols.as_ref().map(Vec::len)
            }
            Version::V1alpha1 => {
                if own {
                    self.unknown(base, "protocols", "write `ports: [{portNumber: {protocol: TCP, port: 80}}]`");
                }
                for (at, Mapping(entry)) in raw.ports.iter().flatten().enumerate() {
                    all.extend(self.port(entry, &path.index(at)).into_iter().flatten());
                }
                raw.ports.as_ref().map(Vec::len)
            }
        }?;
        if count == 0 {
            let help = format!("remove `{key}` if every protocol is meant");
            self.findings.problem(&path, format!("`{key}` is empty"), help);
        }
        self.at_most(count, key, &path);
        Some(all)
    }

    fn protocol(&mut self, raw: &RawProtocol, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        let transports = [
            ("tcp", Transport::Tcp, &raw.tcp),
            ("udp", Transport::Udp, &raw.udp),
            ("sctp", Transport::Sctp, &raw.sctp),
        ];
        let there: Vec<_> = transports.iter().filter_map(|(key, of, raw)| Some((key, of, raw.as_ref()?))).collect();
        match (there.as_slice(), &raw.destination_named_port) {
            ([(key, transport, Mapping(raw))], None) => self.numbered(**transport, raw, &base.key(key)),
            ([], Some(name)) => self.named(name, &base.key("destinationNamedPort")),
            ([], None) => {
                let text = "the entry is empty: an API server of another version may have dropped its field";
                let help = "write tcp, udp or sctp with a destinationPort, or a destinationNamedPort";
                self.fail(Problem::new(base, text, help))
            }
            _ => {
                let text = "the entry has more than one field";
                self.fail(Problem::new(base, text, "write two entries, each after a `- `"))
            }
        }
    }

    fn numbered(&mut self, transport: Transport, raw: &RawTransport, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        let Some(Mapping(RawDestinationPort { number, range })) = &raw.destination_port else {
            let text = format!(
                "no destinationPort: an API server of another version may have dropped a field, so this does not mean every {transport} port"
            );
            let help = "write `destinationPort: {range: {start: 1, end: 65535}}` if every port is meant";
            return self.fail(Problem::new(base, text, help));
        };
        let path = base.key("destinationPort");
        match (number, range) {
            (Some(number), None) => {
                let number = port_number(*number, || path.key("number"), self.findings)?;
                Some(vec![PolicyPort::Range { transport, first: number, last: number }])
            }
            (None, Some(Mapping(range))) => self.range(transport, range, &path.key("range")),
            _ => {
                let text = "exactly one of `number` and `range` is required";
                self.fail(Problem::new(&path, text, "write `number: 80`, or `range: {start: 80, end: 90}`"))
            }
        }
    }

    fn range(&mut self, transport: Transport, raw: &RawRange, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        if self.version() == Version::V1alpha2 && raw.protocol.is_some() {
            self.unknown(base, "protocol", "remove it: the field around the range gives the protocol");
        }
        let mut end = |key: &str, number: Option<i64>| match number {
            Some(number) => port_number(number, || base.key(key), self.findings),
            None => {
                let help = "write a number from 1 to 65535";
                self.findings.problem(&base.key(key), format!("missing field `{key}`"), help);
                None
            }
        };
        let (first, last) = (end("start", raw.start), end("end", raw.end));
        let (first, last) = (first?, last?);
        if first >= last {
            let text = format!("start {first} is not less than end {last}");
            return self.fail(Problem::new(base, text, "write the lower port first, and a single port as a number"));
        }
        Some(vec![PolicyPort::Range { transport, first, last }])
    }

    /// Returns a named port, for all protocols: the container's declaration decides which one applies.
    fn named(&mut self, name: &str, path: &FieldPath) -> Option<Vec<PolicyPort>> {
        if !names::is_port_name(name) {
            let help = "write up to 15 lower-case letters, digits and single hyphens, at least one letter";
            return self.fail(Problem::new(path, format!("invalid port name {}", quoted(name)), help));
        }
        let name: Arc<str> = name.into();
        Some(Transport::ALL.map(|transport| PolicyPort::Named { transport, name: Arc::clone(&name) }).into())
    }

    fn port(&mut self, raw: &RawPort, base: &FieldPath) -> Option<Vec<PolicyPort>> {
        match (&raw.port_number, &raw.port_range, &raw.named_port) {
            (Some(Mapping(number)), None, None) => {
                let path = base.key("portNumber");
                let transport = transport(number.protocol.as_deref(), || path.key("protocol"), self.findings);
                let Some(port) = number.port else {
                    return self.fail(Problem::new(&path, "missing field `port`", "write a number from 1 to 65535"));
                };
                let port = port_number(port, || path.key("port"), self.findings);
                let (transport, port) = (transport?, port?);
                Some(vec![PolicyPort::Range { transport, first: port, last: port }])
            }
            (None, Some(Mapping(range)), None) => {
                let path = base.key("portRange");
                let transport = transport(range.protocol.as_deref(), || path.key("protocol"), self.findings);
                let range = self.range(transport.unwrap_or(Transport::Tcp), range, &path);
                transport.and(range)
            }
            (None, None, Some(name)) => self.named(name, &base.key("namedPort")),
            (None, None, None) => {
                let text = "the entry is empty: an API server of another version may have dropped its field";
                self.fail(Problem::new(base, text, "write portNumber, portRange or namedPort"))
            }
            _ => {
                let text = "the entry has more than one field";
                self.fail(Problem::new(base, text, "write two entries, each after a `- `"))
            }
        }
    }
}
