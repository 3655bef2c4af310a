//! A verdict as Hubble tells it: one object of `hubble observe -o json`, with what only Bulkhead knows in a field of its own.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use bulkhead_classifier::protocol;
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_dataplane::vswitch::stream::Judgement;
use bulkhead_dataplane::{Decision, Flow, Outcome, Snapshot};
use serde_json::{Map, Value, json};

use super::ends::{End, Ends};
use super::reasons;
use super::repeats::Event;
use super::select::Selector;
use crate::admin::{Failure, Monitor};
use crate::live::origins::SharedOrigins;

/// Numbers of event types (`pkg/monitor/api`): a packet was dropped; policy has decided about a connection.
mod event {
    pub(super) const DROP: u32 = 1;
    pub(super) const POLICY_VERDICT: u32 = 5;
}

/// A verdict, and who is concerned.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) event: Event,
    from: End,
    to: End,
    in_port: Option<String>,
    out_port: Option<String>,
    table: Option<String>,
}

/// What a client wants to see.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowFilter {
    ends: Selector,
    verdicts: Vec<&'static str>,
    ports: Vec<u16>,
    protocols: Vec<u8>,
}

impl FlowFilter {
    /// Reads what was asked for.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn new(asked: &Monitor) -> Result<Self, Failure> {
        let protocol = |name: &String| {
            let number = match &*name.to_ascii_uppercase() {
                "TCP" => Some(protocol::TCP),
                "UDP" => Some(protocol::UDP),
                "SCTP" => Some(protocol::SCTP),
                "ICMP" | "ICMPV4" => Some(protocol::ICMP),
                "ICMPV6" => Some(protocol::ICMPV6),
                _ => name.parse().ok(),
            };
            let message = || format!("{} is no protocol", crate::output::printable(name));
            number.ok_or_else(|| Failure::new("malformed", message(), "TCP, UDP, SCTP, ICMP, ICMPv6, or a number"))
        };
        Ok(Self {
            ends: Selector::new(&asked.pods, &asked.namespaces, &asked.labels)?,
            verdicts: verdicts(&asked.verdicts)?,
            ports: asked.ports.clone(),
            protocols: asked.protocols.iter().map(protocol).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn selects(&self, told: &Told) -> bool {
        let flow = told.event.judgement.outcome.flow;
        let has_port = |flow: &Flow| self.ports.contains(&flow.sport) || self.ports.contains(&flow.dport);
        (self.verdicts.is_empty() || self.verdicts.contains(&told.verdict()))
            && (self.ports.is_empty() || flow.as_ref().is_some_and(has_port))
            && (self.protocols.is_empty() || flow.is_some_and(|flow| self.protocols.contains(&flow.protocol)))
            && (self.ends.is_everything()
                || [&told.from, &told.to]
                    .into_iter()
                    .any(|end| self.ends.selects_named(end.name(), end.labels.as_ref())))
    }
}

/// Verdicts by Hubble's names.
pub(super) fn verdicts(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = |name: &String| {
        let known = ["FORWARDED", "DROPPED", "AUDIT"].into_iter().find(|known| known.eq_ignore_ascii_case(name));
        let message = || format!("{} is no verdict", crate::output::printable(name));
        known.ok_or_else(|| Failure::new("malformed", message(), "FORWARDED, DROPPED or AUDIT"))
    };
    names.iter().map(known).collect()
}

impl Told {
    pub(super) fn new(event: Event, ends: &Ends, snapshot: &Snapshot) -> Self {
        let Outcome { in_port, verdict, decision, flow, translation, .. } = event.judgement.outcome;
        let name = |id| snapshot.port(id).map(|port| port.name.to_string());
        // Policy is about the endpoint, and not about the Service's address.
        let to = translation.map(|translation| translation.dst).or(flow.map(|flow| flow.dst));
        let of = |address: Option<IpAddr>| address.map(|address| ends.of(address)).unwrap_or_default();
        let table = decision.and_then(|decision| decision.table);
        let owner = table.and_then(|table| snapshot.ports().iter().find(|port| port.table() == Some(table)));
        Self {
            event,
            from: of(flow.map(|flow| flow.src)),
            to: of(to),
            in_port: name(in_port),
            out_port: verdict.out_port().and_then(name),
            table: owner.map(|port| port.name.to_string()),
        }
    }

    /// By Hubble's name.
    pub(super) fn verdict(&self) -> &'static str {
        match (self.event.is_session(), self.event.judgement.outcome.audited) {
            (true, Some(_)) => "AUDIT",
            (true, None) => "FORWARDED",
            (false, _) => "DROPPED",
        }
    }

    /// One line, of this node, whose rules have these origins.
    pub(super) fn json(&self, node: &str, origins: &SharedOrigins) -> Value {
        let Judgement { time, generation, outcome, tcp_flags, .. } = self.event.judgement;
        let origin_of =
            |decision: Option<Decision>| decision.and_then(|decision| decision.origin).and_then(|id| origins.get(id));
        let origin = origin_of(outcome.decision);
        let time = rfc3339(time);
        let mut flow = Map::new();
        flow.insert("time".into(), time.clone().into());
        flow.insert("verdict".into(), self.verdict().into());
        let reason = outcome.verdict.drop_reason();
        let code = reason.map(reasons::hubble);
        if let Some((number, _)) = code {
            flow.insert("drop_reason".into(), number.into());
        }
        if let Some(seen) = &outcome.flow {
            // As policy has judged it; the Service's address is below.
            let sent = outcome.translation.map_or(*seen, |sent| Flow { dst: sent.dst, dport: sent.dport, ..*seen });
            flow.insert("IP".into(), addresses(&sent));
            flow.insert("l4".into(), layer4(&sent, tcp_flags));
            flow.insert("source".into(), self.from.json());
            flow.insert("destination".into(), self.to.json());
        }
        flow.insert("Type".into(), "L3_L4".into());
        flow.insert("node_name".into(), node.into());
        let is_of_policy = reason.is_none_or(|reason| reason == bulkhead_dataplane::DropReason::PolicyDenied);
        flow.insert(
            "event_type".into(),
            match code {
                Some((number, _)) if !is_of_policy => json!({ "type": event::DROP, "sub_type": number }),
                _ => json!({ "type": event::POLICY_VERDICT }),
            },
        );
        flow.insert("traffic_direction".into(), self.direction(origin.as_ref()).into());
        if let Some((_, name)) = code {
            flow.insert("drop_reason_desc".into(), name.into());
        }
        if let Some(is_reply) = self.is_reply(tcp_flags, is_of_policy) {
            flow.insert("is_reply".into(), is_reply.into());
        }
        if let Some((list, policies)) = origin.as_ref().and_then(|origin| deciding(origin, self.event.is_session())) {
            flow.insert(list.into(), policies);
        }
        flow.insert("Summary".into(), summary(outcome.flow.as_ref(), tcp_flags).into());
        let own = json!({
            "reason": reason.map(|reason| reason.name()),
            "means": reason.map(|reason| reason.describe()),
            "count": self.event.count,
            "in": self.in_port,
            "out": self.out_port,
            "table": self.table,
            "rule": outcome.decision.and_then(|decision| decision.rule),
            "origin": origin.map(|origin| origin.to_string()),
            "audited_by": origin_of(outcome.audited).map(|origin| origin.to_string()),
            "generation": generation,
            "service": outcome.translation.zip(outcome.flow).map(|(_, flow)| end(flow.dst, flow.dport)),
            "source": outcome.translation.zip(outcome.flow)
                .filter(|(sent, flow)| (sent.src, sent.sport) != (flow.src, flow.sport))
                .map(|(sent, _)| end(sent.src, sent.sport)),
        });
        flow.insert("bulkhead".into(), own);
        json!({ "flow": flow, "node_name": node, "time": time })
    }

    /// From the pod's point of view whose policy has decided, or where none has, of the pod that is here.
    fn direction(&self, origin: Option<&Origin>) -> &'static str {
        let of = |direction: &Direction| match direction {
            Direction::Ingress => "INGRESS",
            Direction::Egress => "EGRESS",
        };
        match origin {
            Some(
                Origin::Policy { direction, .. }
                | Origin::ClusterPolicy { direction, .. }
                | Origin::Isolation { direction, .. }
                | Origin::NotIsolated(direction),
            ) => of(direction),
            _ if self.to.name().is_some() => "INGRESS",
            _ if self.from.name().is_some() => "EGRESS",
            _ => "TRAFFIC_DIRECTION_UNKNOWN",
        }
    }

    /// Whether the packet goes against the direction in which its conversation was opened; none where nothing tells.
    fn is_reply(&self, tcp_flags: Option<u8>, is_of_policy: bool) -> Option<bool> {
        use bulkhead_dataplane::wire::tcp::flags::{ACK, SYN};
        match tcp_flags {
            _ if self.event.is_session() => Some(false),
            Some(flags) if flags & SYN != 0 => Some(flags & ACK != 0),
            Some(_) => None,
            None => is_of_policy.then_some(false),
        }
    }
}

/// The name of the list of policies that a decision belongs in, and the list.
fn deciding(origin: &Origin, allowed: bool) -> Option<(&'static str, Value)> {
    let list = |direction: Direction| match (direction, allowed) {
        (Direction::Ingress, true) => "ingress_allowed_by",
        (Direction::Ingress, false) => "ingress_denied_by",
        (Direction::Egress, true) => "egress_allowed_by",
        (Direction::Egress, false) => "egress_denied_by",
    };
    match origin {
        Origin::Policy { policy, direction, .. } => {
            let named = json!([{ "name": policy.name, "namespace": policy.namespace, "kind": "NetworkPolicy" }]);
            Some((list(*direction), named))
        }
        Origin::ClusterPolicy { policy, direction, .. } => {
            Some((list(*direction), json!([{ "name": policy.to_string(), "kind": "ClusterNetworkPolicy" }])))
        }
        Origin::Isolation { policies, direction } => {
            let named = |policy: &bulkhead_control::object::PolicyName| json!({ "name": policy.name, "namespace": policy.namespace, "kind": "NetworkPolicy" });
            Some((list(*direction), policies.iter().map(named).collect()))
        }
        Origin::NotIsolated(_) | Origin::OwnNode | Origin::OwnPod => None,
    }
}

fn addresses(flow: &Flow) -> Value {
    let version = if flow.src.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({ "source": flow.src, "destination": flow.dst, "ipVersion": version })
}

fn layer4(flow: &Flow, tcp_flags: Option<u8>) -> Value {
    let mut ports = json!({ "source_port": flow.sport, "destination_port": flow.dport });
    match (flow.protocol, flow.icmp) {
        (protocol::TCP, _) => {
            if let Some(flags) = tcp_flags {
                ports["flags"] = flag_names(flags)
                    .into_iter()
                    .map(|name| (name.to_owned(), true.into()))
                    .collect::<Map<_, Value>>()
                    .into();
            }
            json!({ "TCP": ports })
        }
        (protocol::UDP, _) => json!({ "UDP": ports }),
        (protocol::SCTP, _) => json!({ "SCTP": ports }),
        (protocol::ICMP, Some((kind, code))) => json!({ "ICMPv4": { "type": kind, "code": code } }),
        (protocol::ICMPV6, Some((kind, code))) => json!({ "ICMPv6": { "type": kind, "code": code } }),
        _ => json!({}),
    }
}

/// The names of the bits that are set.
pub(super) fn flag_names(flags: u8) -> Vec<&'static str> {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    NAMES.into_iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1).map(|(_, name)| name).collect()
}

/// `TCP Flags: SYN`, `UDP`, `ICMPv4 EchoRequest`, as Hubble has it.
pub(super) fn summary(flow: Option<&Flow>, tcp_flags: Option<u8>) -> String {
    let Some(flow) = flow else { return String::new() };
    match (flow.protocol, flow.icmp) {
        (protocol::TCP, _) => {
            tcp_flags.map_or_else(|| "TCP".to_owned(), |flags| format!("TCP Flags: {}", flag_names(flags).join(", ")))
        }
        (protocol::UDP, _) => "UDP".to_owned(),
        (protocol::SCTP, _) => "SCTP".to_owned(),
        (protocol::ICMP, Some((8, _))) => "ICMPv4 EchoRequest".to_owned(),
        (protocol::ICMP, Some((0, _))) => "ICMPv4 EchoReply".to_owned(),
        (protocol::ICMPV6, Some((128, _))) => "ICMPv6 EchoRequest".to_owned(),
        (protocol::ICMPV6, Some((129, _))) => "ICMPv6 EchoReply".to_owned(),
        (protocol::ICMP, Some((kind, code))) => format!("ICMPv4 type {kind} code {code}"),
        (protocol::ICMPV6, Some((kind, code))) => format!("ICMPv6 type {kind} code {code}"),
        (number, _) => format!("protocol {number}"),
    }
}

/// An address, with a port where there is one.
pub(super) fn end(address: IpAddr, port: u16) -> String {
    if port == 0 { address.to_string() } else { std::net::SocketAddr::new(address, port).to_string() }
}

/// A time in nanoseconds since 1970.
pub(super) fn rfc3339(time: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(time)).to_string()
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::OriginId;
    use bulkhead_control::object::PolicyName;
    use bulkhead_control::origin::Origins;
    use bulkhead_dataplane::{DropReason, PortId, SessionState, Verdict};

    use super::*;
    use crate::flows;

    /// A packet from 10.0.0.1:4000 to 10.0.0.2:80, or over another protocol.
    fn event(verdict: Verdict, protocol: u8, icmp: Option<(u8, u8)>, origin: Option<OriginId>) -> Event {
        let mut outcome = Outcome::UNJUDGED;
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let (sport, dport) = if icmp.is_some() { (0, 0) } else { (4000, 80) };
        outcome.flow = Some(Flow { src, dst, protocol, sport, dport, icmp });
        outcome.verdict = verdict;
        outcome.session = verdict.out_port().map(|_| SessionState::New);
        outcome.decision = origin.map(|origin| Decision { table: None, rule: Some(2), origin: Some(origin) });
        let tcp_flags = (protocol == protocol::TCP).then_some(2);
        let time = 1_764_000_000_123_456_789;
        Event { judgement: Judgement { time, generation: 7, len: 60, tcp_flags, outcome }, count: 3 }
    }

    fn told(event: Event, origins: &SharedOrigins) -> Value {
        Told::new(event, &Ends::default(), &Snapshot::empty()).json("node-1", origins)
    }

    #[test]
    fn a_default_deny_names_who_isolates_and_is_read_back_as_a_flow_log() {
        let (shared, mut numbered) = (SharedOrigins::default(), Origins::default());
        let policies = [PolicyName::new("shop", "db"), PolicyName::new("shop", "all")].into();
        let id = numbered.id(Origin::Isolation { policies, direction: Direction::Ingress });
        shared.follow(&numbered);
        let denied = told(event(Verdict::Drop(DropReason::PolicyDenied), protocol::TCP, None, Some(id)), &shared);
        let flow = &denied["flow"];
        assert_eq!(flow["ingress_denied_by"][1]["name"], "all");
        assert_eq!((&flow["event_type"]["type"], &flow["traffic_direction"]), (&5.into(), &"INGRESS".into()));
        assert_eq!((&flow["l4"]["TCP"]["flags"]["SYN"], &flow["bulkhead"]["count"]), (&true.into(), &3.into()));
        assert_eq!((&denied["node_name"], &flow["time"]), (&"node-1".into(), &"2025-11-24T16:00:00.123456789Z".into()));
        let allowed = told(event(Verdict::Forward(PortId(1)), protocol::UDP, None, None), &shared);
        assert_eq!((&allowed["flow"]["verdict"], &allowed["flow"]["is_reply"]), (&"FORWARDED".into(), &false.into()));
        let mut audited = event(Verdict::Forward(PortId(1)), protocol::UDP, None, None);
        audited.judgement.outcome.audited = Some(Decision { table: None, rule: None, origin: Some(id) });
        let audited = &told(audited, &shared)["flow"];
        assert_eq!(audited["verdict"], "AUDIT");
        let by = audited["bulkhead"]["audited_by"].as_str().unwrap();
        assert!(by.contains("shop/db") && by.contains("shop/all"), "{by}");
        let expired = told(event(Verdict::Drop(DropReason::TtlExpired), protocol::ICMP, Some((8, 0)), None), &shared);
        let kind = serde_json::json!({ "type": 1, "sub_type": 196 });
        assert_eq!(
            (&expired["flow"]["event_type"], &expired["flow"]["Summary"]),
            (&kind, &"ICMPv4 EchoRequest".into())
        );
        let lost = told(Event::lost(1, DropReason::TxFull, 9), &shared);
        let log = format!("{denied}\n{allowed}\n{expired}\n{lost}\n");
        let mut read = flows::Observations::default();
        flows::read("monitor", log.as_bytes(), false, &mut read).unwrap();
        let said: Vec<_> = read
            .flows()
            .into_iter()
            .filter(|flow| flow.conversation.protocol.is_some())
            .map(|flow| (flow.conversation.service_name(), flow.said.words.to_string(), flow.conversation.missing))
            .collect();
        let expected =
            [("ICMP echo", "DROPPED (TTL_EXCEEDED)"), ("TCP 80", "DROPPED (POLICY_DENIED)"), ("UDP 80", "FORWARDED")];
        assert_eq!(said, expected.map(|(service, words)| (service.to_owned(), words.to_owned(), None)));
    }
}
