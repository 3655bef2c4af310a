//! Formats parts of a flow like `hubble observe -o json`, from the message for Hubble's clients, so that both agree.

use serde_json::{Map, Value, json};

use bulkhead_observe::hubble::flow::{
    Endpoint, Ip, IpVersion, Layer4, Policy, Protocol, TcpFlags, TrafficDirection, Verdict,
};

/// Returns Hubble's name of the verdict.
pub(super) const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forwarded => "FORWARDED",
        Verdict::Dropped => "DROPPED",
        Verdict::Audit => "AUDIT",
        Verdict::Unknown => "VERDICT_UNKNOWN",
    }
}

pub(super) const fn direction(direction: TrafficDirection) -> &'static str {
    match direction {
        TrafficDirection::Ingress => "INGRESS",
        TrafficDirection::Egress => "EGRESS",
        TrafficDirection::Unknown => "TRAFFIC_DIRECTION_UNKNOWN",
    }
}

pub(super) fn addresses(ip: &Ip) -> Value {
    let version = if ip.ip_version == IpVersion::V4 as i32 { "IPv4" } else { "IPv6" };
    json!({ "source": ip.source, "destination": ip.destination, "ipVersion": version })
}

pub(super) fn layer4(l4: &Layer4) -> Value {
    let ports = |source: u32, destination: u32| json!({ "source_port": source, "destination_port": destination });
    match &l4.protocol {
        Some(Protocol::Tcp(tcp)) => {
            let mut value = ports(tcp.source_port, tcp.destination_port);
            if let Some(flags) = &tcp.flags {
                value["flags"] = set(flags);
            }
            json!({ "TCP": value })
        }
        Some(Protocol::Udp(udp)) => json!({ "UDP": ports(udp.source_port, udp.destination_port) }),
        Some(Protocol::Sctp(sctp)) => json!({ "SCTP": ports(sctp.source_port, sctp.destination_port) }),
        Some(Protocol::Icmpv4(icmp)) => json!({ "ICMPv4": { "type": icmp.r#type, "code": icmp.code } }),
        Some(Protocol::Icmpv6(icmp)) => json!({ "ICMPv6": { "type": icmp.r#type, "code": icmp.code } }),
        None => json!({}),
    }
}

fn set(flags: &TcpFlags) -> Value {
    let names = bulkhead_answers::output::flag_names(u8::try_from(flags.bits() & 0xff).unwrap_or_default());
    names.into_iter().map(|name| (name.to_owned(), true.into())).collect::<Map<_, Value>>().into()
}

pub(super) fn endpoint(end: &Endpoint) -> Value {
    let mut value = json!({ "identity": end.identity });
    if !end.namespace.is_empty() {
        value["namespace"] = end.namespace.as_str().into();
    }
    value["labels"] = end.labels.as_slice().into();
    if !end.pod_name.is_empty() {
        value["pod_name"] = end.pod_name.as_str().into();
    }
    if !end.workloads.is_empty() {
        let workload =
            |made: &bulkhead_observe::hubble::flow::Workload| json!({ "name": made.name, "kind": made.kind });
        value["workloads"] = end.workloads.iter().map(workload).collect();
    }
    value
}

pub(super) fn policies(policies: &[Policy]) -> Value {
    let named = |policy: &Policy| match &*policy.namespace {
        "" => json!({ "name": policy.name, "kind": policy.kind }),
        namespace => json!({ "name": policy.name, "namespace": namespace, "kind": policy.kind }),
    };
    policies.iter().map(named).collect()
}
