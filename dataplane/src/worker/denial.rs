//! Which rule denies a packet, asked again after it was dropped.
//!
//! The pipeline remembers no rule with a live packet's verdict. Only whoever wants to tell the sender needs it, a bounded
//! number of times a second, so it is looked up once more.

use bulkhead_classifier::OriginId;

use super::conversation::policy_key;
use super::exit::{self, Check};
use crate::service::{Answer, Client};
use crate::{Flow, PortId, Snapshot};

/// The origin of the rule that denies the packet as the first one of a conversation. None when it would be allowed, when no
/// rule decides, and when there is no way out. Sessions are not asked.
pub(crate) fn denied_by(snapshot: &Snapshot, in_port: PortId, flow: &Flow) -> Option<OriginId> {
    let translated = translated(snapshot, in_port, flow);
    let flow = translated.as_ref().unwrap_or(flow);
    let exit = exit::find(snapshot, in_port, (flow.src, flow.dst), translated.is_some()).ok()?;
    let Check::Table(bound) = exit.check else { return None };
    let table = snapshot.table(bound.table)?;
    let verdict = table.lookup(&policy_key(flow));
    let rule = table.deciding_rule(verdict)?;
    (!verdict.is_allow()).then_some(rule.origin)
}

/// Who talks to whom in truth, when the destination is a Service's. The backend is that of a client who comes for the first time: policy
/// is seldom another one for the next.
fn translated(snapshot: &Snapshot, in_port: PortId, flow: &Flow) -> Option<Flow> {
    let services = snapshot.services()?;
    let client = Client::new(snapshot.node(), services, snapshot.port(in_port)?.kind, flow.src);
    let Answer::Choose(eligible) = services.answer(&client, flow, flow.dport != 0) else { return None };
    let backend = eligible.choose(services, flow);
    Some(Flow { dst: backend.socket.ip(), dport: backend.socket.port(), ..*flow })
}
