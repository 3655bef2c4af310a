//! Judges sessions by the next snapshot without their packets, so that flows in the kernel survive a change that leaves them allowed.

use super::Worker;
use super::claim::policy_key;
use super::conversation::hairpin;
use super::exit::{self, Bound, Check};
use super::names::{Asked, Ruling};
use crate::flow::Translation;
use crate::packet::Ports;
use crate::session::{Direction, Key, Match};
use crate::{Decision, Flow, PortId, Snapshot};

/// A flow in the kernel that the next snapshot's tables allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JudgedFlow {
    /// The output port.
    pub(crate) out: PortId,
    /// The translation. `None` if the session is not translated.
    pub(crate) translation: Option<Translation>,
    /// The decision that allows the session.
    pub(crate) decision: Decision,
}

impl Worker {
    /// Asks the next snapshot's tables about the session of a flow that the kernel forwards. `in_port` receives the flow's packets.
    ///
    /// The worker continues with its own snapshot, and the session stays as it is: its next packet is judged as usual. `None` if the worker
    /// has no such session, if a table denies or audits it, if another port would receive its packets, or if no host has the destination.
    pub(crate) fn judge_flow(&self, next: &Snapshot, flow: &Flow, in_port: PortId) -> Option<JudgedFlow> {
        let (key, from_low) = Key::of(flow.src, flow.dst, flow.protocol, Ports::Pair(flow.sport, flow.dport));
        let (slot, _) = self.sessions.established(self.sessions.hash(&key), &key)?;
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let entry = self.sessions.entry(slot);
        if entry.refused().is_some() {
            return None;
        }
        let forward = self.forward_flow(slot, direction, flow);
        let (initiator, _) = self.forward_in_port(next, slot, &forward)?;
        let exit = exit::find(next, initiator, (forward.src, forward.dst), entry.is_translated()).ok()?;
        let (comes_in, out, is_unreachable) = match direction {
            Direction::Forward => (initiator, exit.port, exit.is_unreachable),
            Direction::Reply => (exit.port, initiator, next.is_gone(initiator)),
        };
        if is_unreachable || comes_in != in_port {
            return None;
        }
        let decision = match exit.check {
            Check::Hairpin(origin) => hairpin(origin),
            // Audited connections are reported with their packets.
            Check::Table(Bound { audit: Some(_), .. }) => return None,
            Check::Table(bound) => {
                let key = policy_key(&forward);
                let verdict = next.table(bound.table)?.lookup(&key);
                let (in_port, out) = (initiator, exit.port);
                let ruling = if exit::is_named(next, (in_port, out), (forward.src, forward.dst)) {
                    let kept = self.sessions.name(slot);
                    let asked = Asked { snapshot: next, in_port, out, key: &key, kept, now: self.now.time };
                    self.learning.judge(&asked, bound, verdict)
                } else {
                    let decision = next.decision(bound.table, verdict);
                    Ruling { is_allowed: verdict.is_allow(), decision, denial: None }
                };
                (ruling.is_allowed && ruling.denial.is_none()).then_some(ruling.decision)?
            }
        };
        let translation = self.sessions.rewritten(slot, direction).map(|rewritten| rewritten.sent().translation());
        Some(JudgedFlow { out, translation, decision })
    }
}
