//! Which rule denies a packet, asked again after it was dropped.
//!
//! The pipeline remembers no rule with a live packet's verdict. Only whoever wants to tell the sender needs it, a bounded
//! number of times a second, so it is looked up once more.

use bulkhead_classifier::OriginId;

use super::conversation::policy_key;
use super::exit::{self, Check};
use crate::{Flow, PortId, Snapshot};

/// The origin of the rule that denies the packet as the first one of a conversation. None when it would be allowed, when no
/// rule decides, and when there is no way out. Sessions are not asked.
pub(crate) fn denied_by(snapshot: &Snapshot, in_port: PortId, flow: &Flow) -> Option<OriginId> {
    let exit = exit::find(snapshot, in_port, flow.src, flow.dst).ok()?;
    let Check::Table(table) = exit.check else { return None };
    let table = snapshot.table(table)?;
    let verdict = table.lookup(&policy_key(flow));
    let rule = table.deciding_rule(verdict)?;
    (!verdict.is_allow()).then_some(rule.origin)
}
