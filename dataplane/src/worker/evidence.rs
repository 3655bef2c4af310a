//! Checks packets that would change a session more closely: see [`crate::session`].

use bulkhead_classifier::protocol;

use super::Worker;
use super::claim::Claim;
use super::column::Burst;
use crate::DropReason;
use crate::packet::{Checksum, Payload, TcpFlags};
use crate::session::{Belief, Direction, Evidence, Match, NewSession, Slot};

impl Worker {
    /// Returns the conclusion that the session accepts from its packet. `None` if the packet must not even extend the session's life.
    pub(super) fn believe(
        &mut self,
        burst: &Burst<'_>,
        at: usize,
        claim: &Claim,
    ) -> Result<Option<Option<TcpFlags>>, DropReason> {
        let evidence = self.evidence(burst, at, claim.slot, claim.direction, claim.flags);
        let belief = self.sessions.assess(claim.slot, claim.direction, claim.flags, &evidence)?;
        if let Some(flags) = claim.flags {
            self.sessions.track(claim.slot, claim.direction, flags, &evidence);
        }
        match belief {
            Belief::Flags(flags) => Ok(Some(flags)),
            Belief::Silence => Ok(None),
            Belief::Doubt => {
                self.sessions.doubt(claim.slot, self.now);
                Ok(None)
            }
        }
    }

    /// Verifies the checksum and reads the sequence numbers of a packet of a session.
    fn evidence(
        &self,
        burst: &Burst<'_>,
        at: usize,
        slot: Slot,
        direction: Direction,
        flags: Option<TcpFlags>,
    ) -> Evidence {
        let is_news = self.sessions.is_news(slot, direction, flags);
        if !is_news && flags.is_none() {
            return Evidence { checksum: Checksum::Unknown, span: None, is_bound: false };
        }
        let payload = burst.payload(at);
        let checksum = payload.as_ref().filter(|_| is_news).map_or(Checksum::Unknown, Payload::checksum);
        let span = payload.and_then(|payload| payload.segment());
        let source = match self.sessions.rewritten(slot, direction) {
            Some(rewritten) => rewritten.received().translation().src,
            None => self.sessions.entry(slot).endpoints(direction)[0].0,
        };
        let is_bound = burst.snapshot.owner(source) == Some(burst.in_port(at));
        Evidence { checksum, span, is_bound }
    }

    /// Records the sequence numbers of a hit whose session was not sampled for some seconds.
    #[cold]
    #[inline(never)]
    pub(super) fn sample(&mut self, burst: &Burst<'_>, at: usize) {
        let meta = &burst.metas[at];
        let (slot, flags) = (meta.guess, meta.flags);
        if meta.key.protocol() == protocol::TCP {
            let (Match::Key(direction) | Match::Alias(direction)) =
                self.sessions.matched(slot, &meta.key, meta.from_low);
            let evidence = self.evidence(burst, at, slot, direction, Some(flags));
            self.sessions.track(slot, direction, flags, &evidence);
        }
    }

    /// Checks the checksum of a packet that opens a connection, and reads its sequence range. UDP is not checked: an unanswered datagram
    /// has little effect.
    pub(super) fn check_opening(
        &self,
        burst: &Burst<'_>,
        at: usize,
        new: NewSession,
    ) -> Result<NewSession, DropReason> {
        if new.flags.is_none() {
            return Ok(new);
        }
        let Some(payload) = burst.payload(at) else { return Ok(new) };
        if self.sessions.verifies() && payload.checksum() == Checksum::Wrong {
            return Err(DropReason::BadChecksum);
        }
        Ok(NewSession { span: payload.segment(), ..new })
    }
}
