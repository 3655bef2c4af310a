//! The sessions of pods that are gone: their end, and what happens to the packets of their other ends.

use super::Worker;
use super::claim::Claim;
use super::column::Burst;
use super::conversation::NO_DECISION;
use crate::session::{Direction, Survivor};
use crate::{DropReason, PortId, Snapshot};

/// Maximum number of survivors that wait to be notified. Only a port that is added again at once ends more sessions than a round notifies.
/// Survivors beyond it learn the end of their session when they next send.
const WAITING: usize = 1 << 14;

impl Worker {
    /// Begins to end the sessions of a port whose pod is gone: see [`Worker::next_survivor`]. Sessions of uplink and host stay.
    pub fn end_port(&mut self, port: PortId) {
        self.sessions.end_port(port);
    }

    /// Adds a port, possibly with the id of one whose pod is gone. Remaining sessions of that pod end now.
    pub fn add_port(&mut self, port: PortId) {
        while self.sessions.is_ending(port) {
            self.end_next();
        }
    }

    /// Whether [`Worker::next_survivor`] has work to do.
    pub(crate) fn has_gone(&self) -> bool {
        self.sessions.has_gone() || !self.survivors.is_empty()
    }

    /// Ends up to `sessions` sessions of pods that are gone until one has another end to be told, and returns that end. Subtracts the ended
    /// ones from `sessions`. `None` if no such session is left, or `sessions` is 0.
    pub(crate) fn next_survivor(&mut self, sessions: &mut usize, now: u64) -> Option<Survivor> {
        self.now.time = self.now.time.max(now);
        while self.survivors.is_empty() && self.sessions.has_gone() && *sessions > 0 {
            *sessions -= 1;
            self.end_next();
        }
        self.survivors.pop_front()
    }

    fn end_next(&mut self) {
        let survivor = self.sessions.end_next_of_gone(self.epoch, self.now);
        self.survivors.extend(survivor.filter(|_| self.survivors.len() < WAITING));
    }

    /// Whether a session that has ended with its pod stays so although the snapshot does not say that the pod is gone. It may know only that
    /// the port towards the pod, `leaves`, is closed.
    pub(super) fn stays_ended(&self, snapshot: &Snapshot, claim: &Claim, leaves: PortId) -> bool {
        let has_ended = self.sessions.entry(claim.slot).refused() == Some(DropReason::NoSuchPod);
        has_ended && snapshot.port(leaves).is_some_and(|port| port.link.is_none())
    }

    /// Judges a session of an older generation whose initiator is no port of this one. Returns false if the packet is not the responder's,
    /// or if another port may have the initiator's address. No table is consulted: the packet passes in no case.
    pub(super) fn renew_without_initiator(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        claim: &Claim,
    ) -> Result<bool, DropReason> {
        let entry = self.sessions.entry(claim.slot);
        let is_responders = claim.direction == Direction::Reply
            && claim.error.is_none()
            && entry.ports(Direction::Reply).0 == burst.in_port(at);
        let is_cut_by_policy = entry.refused().is_some_and(|reason| reason != DropReason::NoSuchPod);
        if !is_responders || is_cut_by_policy || !burst.snapshot.is_unreachable(claim.forward.src) {
            return Ok(false);
        }
        let translation = self.translation_of(burst, claim);
        self.sessions.abandon(claim.slot, burst.epoch, &NO_DECISION, self.now);
        burst.translate(at, translation);
        Err(DropReason::NoSuchPod)
    }
}
