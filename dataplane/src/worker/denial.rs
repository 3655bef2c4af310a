//! Finds the rule that denied a packet.
//!
//! The pipeline does not store the rule with a live packet's verdict. It is only needed to notify senders, which is rate limited, so it is
//! looked up again.

use bulkhead_classifier::OriginId;

use super::claim::policy_key;
use super::exit::{self, Check};
use crate::service::{Answer, Client};
use crate::{Flow, PortId, Snapshot};

/// Returns the origin of the rule that denies the packet as the first of a conversation: a rule of the receiver's table or, if that allows
/// the packet, of the sender's `named_table`. `None` if both allow it, if no rule decides, or if there is no route. Ignores sessions, and
/// rules that name domains: they only allow, and the packet was denied.
pub(crate) fn denied_by(snapshot: &Snapshot, in_port: PortId, flow: &Flow) -> Option<OriginId> {
    let translated = translated(snapshot, in_port, flow);
    let flow = translated.as_ref().unwrap_or(flow);
    let exit = exit::find(snapshot, in_port, (flow.src, flow.dst), translated.is_some()).ok()?;
    let Check::Table(bound) = exit.check else { return None };
    let denying = |table| {
        let table = snapshot.table(table)?;
        let verdict = table.lookup(&policy_key(flow));
        (!verdict.is_allow()).then(|| table.deciding_rule(verdict).map(|rule| rule.origin))
    };
    let is_named = exit::is_named(snapshot, (in_port, exit.port), (flow.src, flow.dst));
    let named = snapshot.port(in_port).and_then(|port| port.named_table).filter(|_| is_named);
    denying(bound.table).or_else(|| denying(named?))?
}

/// Returns the flow after translation to a Service's backend. The backend is that of a new client, since policy rarely differs between
/// backends.
fn translated(snapshot: &Snapshot, in_port: PortId, flow: &Flow) -> Option<Flow> {
    let services = snapshot.services()?;
    let client = Client::new(snapshot.node(), services, snapshot.port(in_port)?.kind, flow.src);
    let Answer::Choose(eligible) = services.answer(&client, flow, flow.dport != 0) else { return None };
    let backend = eligible.choose(services, flow);
    Some(Flow { dst: backend.socket.ip(), dport: backend.socket.port(), ..*flow })
}
