//! Formats a verdict for Hubble: the message for its clients, and the same as an object of `hubble observe -o json`, where a separate field
//! has the facts that only Bulkhead knows.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::PolicyName;
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_dataplane::vswitch::stream::Judgement;
use bulkhead_dataplane::{DropReason, Flow, Outcome, Snapshot};
use serde_json::{Map, Value, json};

use super::ends::{End, Ends};
use super::repeats::Event;
use super::words::{rfc3339, summary};
use super::{json as parts, reasons};
use crate::origins::SharedOrigins;
use crate::tables;
use bulkhead_answers::output::end;
use bulkhead_observe::hubble::Timestamp;
use bulkhead_observe::hubble::flow::{
    self as message, EventType, FlowType, Icmp, Ip, IpVersion, Layer4, Policy, Ports, Protocol, Tcp, TcpFlags,
    TrafficDirection,
};

/// Numbers of event types (`pkg/monitor/api`): a dropped packet, and a policy's verdict on a connection.
mod event {
    pub(super) const DROP: i32 = 1;
    pub(super) const POLICY_VERDICT: i32 = 5;
}

/// A verdict, with the ends of its flow.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) event: Event,
    from: End,
    to: End,
    in_port: Option<String>,
    out_port: Option<String>,
    table: Option<Arc<str>>,
}

impl Told {
    pub(super) fn new(event: Event, ends: &Ends, snapshot: &Snapshot) -> Self {
        let outcome = &event.judgement.outcome;
        let Outcome { in_port, verdict, flow, translation, .. } = *outcome;
        let table = tables::deciding(snapshot, outcome).and_then(|id| tables::name(snapshot, id));
        let name = |id| snapshot.port(id).map(|port| port.name.to_string());
        // Policy applies to the endpoint, not to the Service's address.
        let to = translation.map(|translation| translation.dst).or(flow.map(|flow| flow.dst));
        let of = |address: Option<IpAddr>| address.map(|address| ends.of(address)).unwrap_or_default();
        Self {
            event,
            from: of(flow.map(|flow| flow.src)),
            to: of(to),
            in_port: name(in_port),
            out_port: verdict.out_port().and_then(name),
            table,
        }
    }

    pub(super) const fn ends(&self) -> [&End; 2] {
        [&self.from, &self.to]
    }

    /// Returns Hubble's name of the verdict: `FORWARDED`, `DROPPED` or `AUDIT`.
    pub(super) fn verdict(&self) -> &'static str {
        parts::verdict(self.kind())
    }

    fn kind(&self) -> message::Verdict {
        match (self.event.is_session(), self.event.judgement.outcome.audited) {
            (true, Some(_)) => message::Verdict::Audit,
            (true, None) => message::Verdict::Forwarded,
            (false, _) => message::Verdict::Dropped,
        }
    }

    /// Formats the verdict as a `Flow` for Hubble's clients. `node` is this node's name, `origins` has the origins of its rules.
    pub(super) fn message(&self, node: &str, origins: &SharedOrigins) -> message::Flow {
        self.message_of(node, self.origin(origins).as_ref())
    }

    /// Returns the origin of the rule that decided. `None` if no rule decided.
    fn origin(&self, origins: &SharedOrigins) -> Option<Origin> {
        origins.get(self.event.judgement.outcome.decision?.origin?)
    }

    fn message_of(&self, node: &str, origin: Option<&Origin>) -> message::Flow {
        let Judgement { time, outcome, tcp_flags, .. } = self.event.judgement;
        let names = self.event.names.as_deref();
        let reason = outcome.verdict.drop_reason();
        let code = reason.map_or(0, |reason| reasons::hubble(reason).0);
        let number = i32::try_from(code).unwrap_or_default();
        // As judged by policy. Hubble has no field for the Service's address.
        let sent = outcome
            .flow
            .map(|seen| outcome.translation.map_or(seen, |sent| Flow { dst: sent.dst, dport: sent.dport, ..seen }));
        let is_of_policy = reason.is_none_or(|reason| reason == DropReason::PolicyDenied);
        let event_type = match reason {
            Some(_) if !is_of_policy => EventType { r#type: event::DROP, sub_type: number },
            _ => EventType { r#type: event::POLICY_VERDICT, sub_type: 0 },
        };
        let mut message = message::Flow {
            time: Some(Timestamp::from_nanoseconds(time)),
            verdict: self.kind() as i32,
            drop_reason: code,
            ip: sent.as_ref().map(addresses),
            l4: sent.as_ref().map(|sent| layer4(sent, tcp_flags)),
            source: sent.is_some().then(|| self.from.message()),
            destination: sent.is_some().then(|| self.to.message()),
            r#type: FlowType::L3L4 as i32,
            node_name: node.to_owned(),
            event_type: Some(event_type),
            traffic_direction: self.direction(origin) as i32,
            drop_reason_desc: number,
            is_reply: self.is_reply(tcp_flags, is_of_policy),
            summary: summary(outcome.flow.as_ref(), tcp_flags),
            destination_names: names.iter().flat_map(|names| names.names()).map(|name| name.name.to_string()).collect(),
            ..message::Flow::default()
        };
        if let Some((direction, policies)) = origin.and_then(deciding) {
            let list = match (direction, self.event.is_session()) {
                (Direction::Ingress, true) => &mut message.ingress_allowed_by,
                (Direction::Ingress, false) => &mut message.ingress_denied_by,
                (Direction::Egress, true) => &mut message.egress_allowed_by,
                (Direction::Egress, false) => &mut message.egress_denied_by,
            };
            *list = policies;
        }
        message
    }

    /// Formats the verdict as one JSON object. `node` and `origins` as in [`Self::message`].
    pub(super) fn json(&self, node: &str, origins: &SharedOrigins) -> Value {
        let Judgement { time, generation, outcome, .. } = self.event.judgement;
        let origin = self.origin(origins);
        let message = self.message_of(node, origin.as_ref());
        let reason = outcome.verdict.drop_reason();
        let time = rfc3339(time);
        let mut flow = Map::new();
        flow.insert("time".into(), time.clone().into());
        flow.insert("verdict".into(), self.verdict().into());
        if reason.is_some() {
            flow.insert("drop_reason".into(), message.drop_reason.into());
        }
        let fields = [
            ("IP", message.ip.as_ref().map(parts::addresses)),
            ("l4", message.l4.as_ref().map(parts::layer4)),
            ("source", message.source.as_ref().map(parts::endpoint)),
            ("destination", message.destination.as_ref().map(parts::endpoint)),
        ];
        flow.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        if !message.destination_names.is_empty() {
            flow.insert("destination_names".into(), message.destination_names.into());
        }
        flow.insert("Type".into(), "L3_L4".into());
        flow.insert("node_name".into(), node.into());
        let event = message.event_type.unwrap_or_default();
        let event = match event.r#type {
            event::DROP => json!({ "type": event.r#type, "sub_type": event.sub_type }),
            _ => json!({ "type": event.r#type }),
        };
        flow.insert("event_type".into(), event);
        flow.insert("traffic_direction".into(), parts::direction(self.direction(origin.as_ref())).into());
        if let Some(reason) = reason {
            flow.insert("drop_reason_desc".into(), reasons::hubble(reason).1.into());
        }
        if let Some(is_reply) = message.is_reply {
            flow.insert("is_reply".into(), is_reply.into());
        }
        let lists = [
            ("ingress_allowed_by", &message.ingress_allowed_by),
            ("ingress_denied_by", &message.ingress_denied_by),
            ("egress_allowed_by", &message.egress_allowed_by),
            ("egress_denied_by", &message.egress_denied_by),
        ];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            flow.insert(name.into(), parts::policies(list));
        }
        flow.insert("Summary".into(), message.summary.into());
        let audited = outcome.audited.and_then(|decision| origins.get(decision.origin?));
        let own = json!({
            "reason": reason.map(|reason| reason.name()),
            "means": reason.map(|reason| reason.describe()),
            "count": self.event.count,
            "in": self.in_port,
            "out": self.out_port,
            "table": self.table,
            "rule": outcome.decision.and_then(|decision| decision.rule),
            "origin": origin.map(|origin| origin.to_string()),
            "audited_by": audited.map(|origin| origin.to_string()),
            "names": self.event.names,
            "generation": generation,
            "service": outcome.translation.zip(outcome.flow).map(|(_, flow)| end(flow.dst, flow.dport)),
            "source": outcome.translation.zip(outcome.flow)
                .filter(|(sent, flow)| (sent.src, sent.sport) != (flow.src, flow.sport))
                .map(|(sent, _)| end(sent.src, sent.sport)),
        });
        flow.insert("bulkhead".into(), own);
        json!({ "flow": flow, "node_name": node, "time": time })
    }

    /// Returns the direction as seen by the pod whose policy decided, otherwise by the local pod.
    fn direction(&self, origin: Option<&Origin>) -> TrafficDirection {
        let of = |direction: &Direction| match direction {
            Direction::Ingress => TrafficDirection::Ingress,
            Direction::Egress => TrafficDirection::Egress,
        };
        match origin {
            Some(
                Origin::Policy { direction, .. }
                | Origin::ClusterPolicy { direction, .. }
                | Origin::Isolation { direction, .. }
                | Origin::NotIsolated(direction),
            ) => of(direction),
            _ if self.to.name().is_some() => TrafficDirection::Ingress,
            _ if self.from.name().is_some() => TrafficDirection::Egress,
            _ => TrafficDirection::Unknown,
        }
    }

    /// Whether the packet is a reply in its connection. `None` if unknown.
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

/// Returns the policies that decided, with their direction. `None` if no policy decided.
fn deciding(origin: &Origin) -> Option<(Direction, Vec<Policy>)> {
    let named = |policy: &PolicyName| Policy {
        name: policy.name.to_string(),
        namespace: policy.namespace.to_string(),
        kind: "NetworkPolicy".to_owned(),
    };
    match origin {
        Origin::Policy { policy, direction, .. } => Some((*direction, vec![named(policy)])),
        Origin::ClusterPolicy { policy, direction, .. } => {
            let kind = if policy.kind.is_foreign() { policy.kind.name() } else { "ClusterNetworkPolicy" }.to_owned();
            Some((*direction, vec![Policy { name: policy.to_string(), namespace: String::new(), kind }]))
        }
        Origin::Isolation { policies, others, direction, .. } => {
            let others = others.iter().map(|policy| Policy {
                name: policy.to_string(),
                namespace: String::new(),
                kind: policy.kind.name().to_owned(),
            });
            Some((*direction, policies.iter().map(named).chain(others).collect()))
        }
        Origin::NotIsolated(_) | Origin::OwnNode | Origin::OwnPod => None,
    }
}

fn addresses(flow: &Flow) -> Ip {
    let ip_version = if flow.src.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 } as i32;
    Ip { source: flow.src.to_string(), destination: flow.dst.to_string(), ip_version }
}

fn layer4(flow: &Flow, tcp_flags: Option<u8>) -> Layer4 {
    let (source_port, destination_port) = (flow.sport.into(), flow.dport.into());
    let ports = Ports { source_port, destination_port };
    let icmp = |(kind, code): (u8, u8)| Icmp { r#type: kind.into(), code: code.into() };
    let protocol = match (flow.protocol, flow.icmp) {
        (protocol::TCP, _) => {
            Some(Protocol::Tcp(Tcp { source_port, destination_port, flags: tcp_flags.map(TcpFlags::of) }))
        }
        (protocol::UDP, _) => Some(Protocol::Udp(ports)),
        (protocol::SCTP, _) => Some(Protocol::Sctp(ports)),
        (protocol::ICMP, Some(seen)) => Some(Protocol::Icmpv4(icmp(seen))),
        (protocol::ICMPV6, Some(seen)) => Some(Protocol::Icmpv6(icmp(seen))),
        _ => None,
    };
    Layer4 { protocol }
}

#[cfg(test)]
mod tests {
    use bulkhead_classifier::OriginId;
    use bulkhead_control::origin::Origins;
    use bulkhead_dataplane::{Decision, PortId, SessionState, Verdict};

    use super::*;
    use bulkhead_answers::destination::{DestinationNames, KnownName};
    use bulkhead_answers::flows;

    /// Returns a packet from 10.0.0.1:4000 to 10.0.0.2:80, or over another protocol.
    fn event(verdict: Verdict, protocol: u8, icmp: Option<(u8, u8)>, origin: Option<OriginId>) -> Event {
        let mut outcome = Outcome::UNJUDGED;
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let (sport, dport) = if icmp.is_some() { (0, 0) } else { (4000, 80) };
        outcome.flow = Some(Flow { src, dst, protocol, sport, dport, icmp });
        outcome.verdict = verdict;
        outcome.session = verdict.out_port().map(|_| SessionState::New);
        outcome.decision = origin.map(|origin| Decision { by: None, rule: Some(2), origin: Some(origin) });
        let tcp_flags = (protocol == protocol::TCP).then_some(2);
        let time = 1_764_000_000_123_456_789;
        Event { judgement: Judgement { time, generation: 7, len: 60, tcp_flags, outcome }, count: 3, names: None }
    }

    fn told(event: Event, origins: &SharedOrigins) -> Value {
        Told::new(event, &Ends::default(), &Snapshot::empty()).json("node-1", origins)
    }

    #[test]
    fn a_default_deny_names_who_isolates_and_is_read_back_as_a_flow_log() {
        let (shared, mut numbered) = (SharedOrigins::default(), Origins::default());
        let policies = [PolicyName::new("shop", "db"), PolicyName::new("shop", "all")];
        let id = numbered.id(Origin::isolation(policies, Direction::Ingress));
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
        audited.judgement.outcome.audited = Some(Decision { by: None, rule: None, origin: Some(id) });
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
        let mut read = flows::Observations::new(false);
        flows::read("monitor", log.as_bytes(), &mut read).unwrap();
        let said: Vec<_> = read
            .flows()
            .unwrap()
            .into_iter()
            .filter(|flow| flow.conversation.protocol.is_some())
            .map(|flow| (flow.conversation.service_name(), flow.said.words.to_string(), flow.conversation.missing))
            .collect();
        let expected =
            [("ICMP echo", "DROPPED (TTL_EXCEEDED)"), ("TCP 80", "DROPPED (POLICY_DENIED)"), ("UDP 80", "FORWARDED")];
        assert_eq!(said, expected.map(|(service, words)| (service.to_owned(), words.to_owned(), None)));
    }

    #[test]
    fn the_names_of_the_destination_are_in_the_message_and_the_line() {
        let name = KnownName { name: "a.example.com".into(), until: Some(1_764_000_030_000_000_000) };
        let mut event = event(Verdict::Forward(PortId(1)), protocol::TCP, None, None);
        event.names = Some(Box::new(DestinationNames::Matched(name)));
        let line = told(event.clone(), &SharedOrigins::default());
        assert_eq!(line["flow"]["destination_names"], json!(["a.example.com"]));
        let until = &line["flow"]["bulkhead"]["names"]["matched"]["until"];
        assert_eq!(*until, "2025-11-24T16:00:30Z");
        let told = Told::new(event, &Ends::default(), &Snapshot::empty());
        assert_eq!(told.message("node-1", &SharedOrigins::default()).destination_names, ["a.example.com"]);
    }

    #[test]
    fn clients_of_hubble_get_what_monitor_prints() {
        use prost::Message;
        let (shared, mut numbered) = (SharedOrigins::default(), Origins::default());
        let policies = [PolicyName::new("shop", "db"), PolicyName::new("shop", "all")];
        let id = numbered.id(Origin::isolation(policies, Direction::Egress));
        shared.follow(&numbered);
        let (ends, empty) = (Ends::default(), Snapshot::empty());
        for (verdict, protocol, icmp, origin) in [
            (Verdict::Drop(DropReason::PolicyDenied), protocol::TCP, None, Some(id)),
            (Verdict::Forward(PortId(1)), protocol::UDP, None, Some(id)),
            (Verdict::Forward(PortId(1)), protocol::SCTP, None, None),
            (Verdict::Drop(DropReason::TtlExpired), protocol::ICMP, Some((8, 0)), None),
            (Verdict::Drop(DropReason::NoBuffer), protocol::ICMPV6, Some((128, 1)), None),
            (Verdict::Drop(DropReason::NoRoute), 47, None, None),
        ] {
            let told = Told::new(event(verdict, protocol, icmp, origin), &ends, &empty);
            let line = told.json("node-1", &shared);
            let (printed, sent) = (&line["flow"], told.message("node-1", &shared).encode_to_vec());
            let sent = message::Flow::decode(&*sent).unwrap();
            assert_eq!(printed["time"], rfc3339(sent.time.unwrap().nanoseconds()));
            assert_eq!(printed["verdict"], parts::verdict(message::Verdict::try_from(sent.verdict).unwrap()));
            let number = printed["drop_reason"].as_u64().unwrap_or_default();
            assert_eq!(
                (number, i64::try_from(number).unwrap()),
                (sent.drop_reason.into(), sent.drop_reason_desc.into())
            );
            let ip = sent.ip.unwrap();
            assert_eq!(
                (&printed["IP"]["source"], &printed["IP"]["destination"]),
                (&ip.source.into(), &ip.destination.into())
            );
            assert_eq!((&printed["IP"]["ipVersion"], ip.ip_version), (&"IPv4".into(), 1));
            assert_eq!(printed["l4"], parts::layer4(&sent.l4.unwrap()));
            assert_eq!(printed["source"]["identity"], sent.source.unwrap().identity);
            assert_eq!(printed["destination"]["labels"][0], sent.destination.unwrap().labels[0]);
            assert_eq!((&printed["Type"], sent.r#type), (&"L3_L4".into(), 1));
            assert_eq!(printed["node_name"], sent.node_name);
            let event = sent.event_type.unwrap();
            assert_eq!(
                (&printed["event_type"]["type"], printed["event_type"]["sub_type"].as_i64().unwrap_or_default()),
                (&event.r#type.into(), event.sub_type.into())
            );
            let direction = TrafficDirection::try_from(sent.traffic_direction).unwrap();
            assert_eq!(printed["traffic_direction"], parts::direction(direction));
            assert_eq!(printed["is_reply"].as_bool(), sent.is_reply);
            assert_eq!(printed["Summary"], sent.summary);
            let lists = [
                ("ingress_allowed_by", sent.ingress_allowed_by),
                ("ingress_denied_by", sent.ingress_denied_by),
                ("egress_allowed_by", sent.egress_allowed_by),
                ("egress_denied_by", sent.egress_denied_by),
            ];
            for (name, list) in lists {
                let expected = if list.is_empty() { Value::Null } else { parts::policies(&list) };
                assert_eq!(printed[name], expected, "{name}");
            }
        }
    }
}
