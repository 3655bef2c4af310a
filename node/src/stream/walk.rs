//! Formats a packet's way through the vswitch for a trace.

use bulkhead_control::object::Transport;
use bulkhead_dataplane::vswitch::stream::Judgement;
use bulkhead_dataplane::{Outcome, PortId, Snapshot};
use serde_json::{Value, json};

use super::words::{rfc3339, summary};
use crate::admin::explain::Node;
use crate::observer::Observer;
use bulkhead_answers::args::PortProtocol;
use bulkhead_answers::output::end;

/// A packet that a tracepoint has selected.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    /// What the vswitch did with the packet, and why.
    pub(super) judgement: &'a Judgement,
    /// The port to which the packet should have been sent, if it was lost at output. `None` otherwise.
    pub(super) meant_for: Option<PortId>,
    pub(super) bytes: &'a [u8],
}

/// Formats one line: the packet, its way in the words of `explain --live`, and its bytes in hexadecimal.
pub(super) fn json(observer: &Observer, snapshot: &Snapshot, seen: &Seen<'_>) -> Value {
    let Seen { judgement, meant_for, bytes } = *seen;
    let Judgement { time, generation, len, tcp_flags, outcome } = *judgement;
    let Outcome { flow, translation, verdict, in_port, .. } = outcome;
    let node = Node {
        name: observer.node().clone(),
        snapshot,
        origins: observer.origins(),
        ports: &[],
        learned: observer.learned(),
        time,
        is_denying: false,
    };
    let protocol = flow.map_or(0, |flow| flow.protocol);
    let transport = Transport::ALL.into_iter().find(|known| known.number() == protocol).unwrap_or(Transport::Udp);
    let step = node.step(false, &outcome, PortProtocol::new(flow.map_or(0, |flow| flow.dport), transport));
    let name = |id| snapshot.port(id).map(|port| port.name.to_string());
    let packet = json!({
        "time": rfc3339(time),
        "node_name": observer.node(),
        "generation": generation,
        "length": len,
        "verdict": if verdict.out_port().is_some() { "FORWARDED" } else { "DROPPED" },
        "reason": verdict.drop_reason().map(|reason| reason.name()),
        "means": verdict.drop_reason().map(|reason| reason.describe()),
        "protocol": flow.map(|flow| flow.protocol),
        "summary": summary(flow.as_ref(), tcp_flags),
        "from": flow.map(|flow| end(flow.src, flow.sport)),
        "to": flow.map(|flow| end(flow.dst, flow.dport)),
        "translated_from": translation.map(|sent| end(sent.src, sent.sport)),
        "translated_to": translation.map(|sent| end(sent.dst, sent.dport)),
        "in": name(in_port),
        "meant_for": meant_for.and_then(name),
        "walk": step,
        "bytes": hexadecimal(bytes),
    });
    json!({ "packet": packet })
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
