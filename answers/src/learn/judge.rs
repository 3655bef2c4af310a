//! Judges flows by rules and sets, which is quicker than the packets of [`flows::verdict`](crate::flows::verdict): those need the tables of
//! every node on the flows' paths. Packets decide about the connections that rules alone do not: those of a pod to itself through a Service,
//! and those that not every endpoint allows.

use bulkhead_control::reachability::Reachability;

use crate::flows::find::{Connection, Resolved};
use crate::flows::verdict::{Fate, FlowVerdict, Judge};
use crate::flows::{Conversation, ObservedFlow, ResolvedNames};
use crate::translate::{Leg, Source, Translation};

/// Judges flows in one state.
pub(super) struct Rules<'a> {
    /// Judges by packets.
    packets: Judge<'a>,
    reachability: &'a Reachability,
}

impl<'a> Rules<'a> {
    pub(super) const fn new(packets: Judge<'a>, reachability: &'a Reachability) -> Self {
        Self { packets, reachability }
    }

    /// Returns what a flow corresponds to in the state.
    pub(super) fn resolve(&mut self, conversation: &Conversation) -> anyhow::Result<Resolved> {
        self.packets.resolve(conversation)
    }

    /// Whether the verdict on a flow is `fate`. Rules that name domains match the flow by its names.
    pub(super) fn is(
        &mut self,
        fate: &Fate,
        ObservedFlow { conversation, names, .. }: &ObservedFlow,
    ) -> anyhow::Result<bool> {
        let is_allowed = match self.packets.resolve(conversation)? {
            Resolved::Unknown(_) => None,
            Resolved::Direct(Connection { from, to, port }) => self.allows(&Leg::whole(&from, &to, port), names),
            Resolved::Translated(_, translation) => self.allows_all(&translation).filter(|&is_allowed| is_allowed),
        };
        match is_allowed {
            Some(true) => Ok(*fate == Fate::Allow),
            Some(false) => Ok(*fate == Fate::Deny),
            None => Ok(self.verdict(conversation)?.fate == *fate),
        }
    }

    /// Returns the verdict on a flow, with its reason. Rules that name domains match no packet.
    pub(super) fn verdict(&mut self, conversation: &Conversation) -> anyhow::Result<FlowVerdict> {
        self.packets.judge(conversation)
    }

    /// Whether policy allows the connection to every endpoint. `None` if rules do not tell.
    fn allows_all(&self, translation: &Translation) -> Option<bool> {
        let is_plain = translation.refusal.is_none() && !translation.routes.is_empty();
        // An endpoint that no pod and no node has may be an address of a node's pods, which no packet reaches.
        let is_routed =
            translation.routes.iter().all(|route| route.source != Source::Missing && route.to.node().is_some());
        (is_plain && is_routed).then_some(())?;
        let legs = translation.before.iter().chain(translation.routes.iter().flat_map(|route| &route.legs));
        // The names of a Service's address are not those of its endpoints.
        let none = ResolvedNames::default();
        legs.map(|leg| self.allows(leg, &none)).try_fold(true, |all, is_allowed| Some(all && is_allowed?))
    }

    /// Whether policy allows a leg. `None` if rules do not tell.
    fn allows(&self, leg: &Leg, names: &ResolvedNames) -> Option<bool> {
        if leg.is_hairpin || leg.from.is_same(&leg.to) {
            return None;
        }
        let verdicts = self.reachability.between_by_name(leg.from.address(), leg.to.address(), names.set())?;
        let verdict = verdicts.at(leg.port.protocol, leg.port.port);
        // Only the client's vswitch judges a connection that it rewrites.
        Some(if leg.is_departure { verdict.egress.allowed } else { verdict.allowed() })
    }
}
