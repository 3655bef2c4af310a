//! Parses `hubble observe -o json`: `{"flow":{..},"node_name":..}`, or the flow alone, the JSON form of Cilium's `flow.proto`.
//!
//! A line is one event, such as a packet that left or arrived, so several lines form a session. A missing field means unknown. `is_reply`
//! is a message to distinguish "not a reply" from "unknown"; without it, only TCP flags show which end opened the connection. A pod named
//! by Hubble is that pod, even if another pod has its address today.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bulkhead_classifier::protocol;
use bulkhead_control::object::PodName;
use serde::Deserialize;
use serde_json::Value;

use super::{Conversation, Missing, Observations, Read1, ResolvedNames, Said, SeenEnd, Sign};

#[derive(Deserialize)]
struct Flow {
    time: Option<String>,
    verdict: Option<Verdict>,
    drop_reason_desc: Option<Verdict>,
    #[serde(rename = "IP")]
    ip: Option<Ip>,
    l4: Option<Layer4>,
    source: Option<Endpoint>,
    destination: Option<Endpoint>,
    is_reply: Option<bool>,
    /// Domain names of the packet's source that its receiver had resolved, and of its destination that the sender had resolved.
    source_names: Option<Vec<String>>,
    destination_names: Option<Vec<String>>,
}

/// An enum value: its name, or its number if the writer did not know the name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Verdict {
    Name(String),
    Number(i64),
}

#[derive(Deserialize)]
struct Ip {
    source: Option<String>,
    destination: Option<String>,
}

#[derive(Deserialize)]
#[allow(clippy::upper_case_acronyms, non_snake_case, reason = "the names of the protocol")]
struct Layer4 {
    #[serde(rename = "TCP")]
    tcp: Option<Ports>,
    #[serde(rename = "UDP")]
    udp: Option<Ports>,
    #[serde(rename = "SCTP")]
    sctp: Option<Ports>,
    #[serde(rename = "ICMPv4")]
    icmpv4: Option<Icmp>,
    #[serde(rename = "ICMPv6")]
    icmpv6: Option<Icmp>,
}

#[derive(Deserialize)]
struct Ports {
    source_port: Option<u16>,
    destination_port: Option<u16>,
    flags: Option<Flags>,
}

#[derive(Deserialize)]
struct Flags {
    #[serde(rename = "SYN", default)]
    syn: bool,
    #[serde(rename = "ACK", default)]
    ack: bool,
}

#[derive(Deserialize)]
struct Icmp {
    #[serde(rename = "type", default)]
    kind: u8,
    #[serde(default)]
    code: u8,
}

#[derive(Default, Deserialize)]
struct Endpoint {
    namespace: Option<String>,
    pod_name: Option<String>,
}

/// Fields by which Hubble's messages other than flows are recognised. Such lines are skipped.
const ASIDE: [&str; 5] = ["node_status", "agent_event", "debug_event", "relay_version", "status"];

pub(super) fn read(file: &Arc<str>, value: &Value, line: u64, into: &mut Observations) -> Read1 {
    if let Some(lost) = value.get("lost_events") {
        let lost = lost.get("num_events_lost").and_then(number).unwrap_or(1);
        into.remark(format!("events that Hubble lost, according to {file}"), lost);
        return Ok(());
    }
    if let Some(aside) = ASIDE.into_iter().find(|aside| value.get(aside).is_some()) {
        into.remark(format!("lines of {file} of kind `{aside}` instead of a flow"), 1);
        return Ok(());
    }
    let bare = ["verdict", "IP", "l4"].into_iter().any(|field| value.get(field).is_some()).then_some(value);
    let Some(flow) = value.get("flow").or(bare) else {
        return Err("the JSON object is neither a Hubble flow nor a Bulkhead session list".to_owned());
    };
    let flow: Flow = serde_path_to_error::deserialize(flow)
        .map_err(|error| format!("cannot parse the Hubble flow: {}: {}", error.path(), error.inner()))?;
    let said = said(&flow);
    if ["TRANSLATED", "TRACED"].contains(&&*said.words) {
        // A socket event has the address before translation. The packets that follow have the translated one.
        into.remark(format!("socket events in {file}; the packets that follow are separate flows"), 1);
        return Ok(());
    }
    into.add(file, sign(&flow, said, line)?);
    Ok(())
}

/// Parses a 64-bit integer, which Protocol Buffers' JSON writes as a string. `None` if the value is no such integer.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn name(value: &Verdict) -> String {
    match value {
        Verdict::Name(name) => name.clone(),
        Verdict::Number(number) => number.to_string(),
    }
}

fn said(flow: &Flow) -> Said {
    let verdict = flow.verdict.as_ref().map(name).unwrap_or_default();
    // An AUDIT flow would have been dropped but was forwarded.
    let dropped = verdict == "DROPPED" || verdict == "ERROR";
    let why = flow.drop_reason_desc.as_ref().map(name).filter(|why| dropped && why != "DROP_REASON_UNKNOWN");
    let words = match why {
        Some(why) => format!("{verdict} ({why})"),
        None => verdict,
    };
    Said { dropped, words: words.into() }
}

/// Protocol, source port, destination port, and ICMP type and code.
type Layer = (Option<u8>, Option<u16>, Option<u16>, Option<(u8, u8)>);

fn layer(flow: &Flow) -> Layer {
    let Some(l4) = &flow.l4 else { return (None, None, None, None) };
    for (number, ports) in [(protocol::TCP, &l4.tcp), (protocol::UDP, &l4.udp), (protocol::SCTP, &l4.sctp)] {
        if let Some(ports) = ports {
            return (Some(number), ports.source_port, ports.destination_port, None);
        }
    }
    for (number, message) in [(protocol::ICMP, &l4.icmpv4), (protocol::ICMPV6, &l4.icmpv6)] {
        if let Some(message) = message {
            return (Some(number), None, None, Some((message.kind, message.code)));
        }
    }
    (None, None, None, None)
}

/// Whether the event is against the direction of the connection. `None` if unknown.
fn is_reply(flow: &Flow, icmp: Option<(u8, u8)>) -> Option<bool> {
    let by_flags = || {
        let flags = flow.l4.as_ref()?.tcp.as_ref()?.flags.as_ref()?;
        flags.syn.then_some(flags.ack)
    };
    // Echo and echo reply (RFC 792, RFC 4443).
    let by_message = || match icmp?.0 {
        8 | 128 => Some(false),
        0 | 129 => Some(true),
        _ => None,
    };
    flow.is_reply.or_else(by_flags).or_else(by_message)
}

fn end(address: Option<&String>, endpoint: Option<&Endpoint>) -> Result<SeenEnd, String> {
    let address: Option<IpAddr> = address
        .filter(|text| !text.is_empty())
        .map(|text| text.parse().map_err(|_| format!("`{}` is not an IP address", crate::output::printable(text))))
        .transpose()?;
    let pod = endpoint.and_then(|endpoint| {
        let (namespace, pod) = (endpoint.namespace.as_deref()?, endpoint.pod_name.as_deref()?);
        (!namespace.is_empty() && !pod.is_empty()).then(|| PodName::new(namespace, pod))
    });
    Ok(SeenEnd { address, pod })
}

fn sign(flow: &Flow, said: Said, line: u64) -> Result<Sign, String> {
    let (protocol, sport, dport, icmp) = layer(flow);
    let ip = flow.ip.as_ref();
    let source = end(ip.and_then(|ip| ip.source.as_ref()), flow.source.as_ref())?;
    let destination = end(ip.and_then(|ip| ip.destination.as_ref()), flow.destination.as_ref())?;
    let reply = is_reply(flow, icmp);
    let (from, to, client_port, port) = match reply {
        Some(true) => (destination, source, dport, sport),
        _ => (source, destination, sport, dport),
    };
    let icmp = icmp.map(|(kind, code)| match kind {
        0 if reply == Some(true) => (8, code),
        129 if reply == Some(true) => (128, code),
        _ => (kind, code),
    });
    let missing = reply.is_none().then_some(Missing::Opener);
    let mut names = ResolvedNames::default();
    let of_server = if reply == Some(true) { &flow.source_names } else { &flow.destination_names };
    of_server.iter().flatten().for_each(|name| names.add(name));
    let time = flow.time.as_deref().map(time).transpose()?;
    Ok(Sign {
        conversation: Conversation { from, to, protocol, port, icmp, service: None::<SocketAddr>, missing },
        client_port,
        said,
        names,
        sessions: 1,
        answered: reply == Some(true),
        ends: false,
        counts: None,
        times: (time, time),
        line,
    })
}

/// Parses RFC 3339 into nanoseconds since 1970.
fn time(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is not an RFC 3339 time", crate::output::printable(text));
    // `+00:00` equals `Z`. The exporter writes no other zone.
    let text = text.strip_suffix("+00:00").map_or_else(|| text.to_owned(), |text| format!("{text}Z"));
    let time = humantime::parse_rfc3339(&text).map_err(|_| wrong())?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).map_err(|_| wrong())
}
