//! ICMP errors about packets of sessions.

use super::Worker;
use super::claim::Claim;
use super::column::Burst;
use crate::packet::{Embedded, Ip, Ports};
use crate::session::{Direction, Key, Match};
use crate::{DropReason, Flow};

impl Worker {
    /// Forwards an ICMP error if the quoted packet belongs to a session and the error goes to that packet's sender (RFC 792, RFC 4443
    /// §2.4). Its source may be any router on the path.
    pub(super) fn judge_error(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        ip: &Ip,
        embedded: Option<&Embedded>,
    ) -> Result<(), DropReason> {
        self.settle_pending(burst);
        let embedded = embedded.filter(|e| e.src == ip.flow.dst).ok_or(DropReason::IcmpErrorWithoutSession)?;
        let (key, from_low) = Key::of(embedded.src, embedded.dst, embedded.protocol, embedded.ports);
        let wire_hash = self.sessions.hash(&key);
        let Some(slot) = self.find_current(burst, wire_hash, &key) else {
            let worker = self.sessions.elsewhere(&key).ok_or(DropReason::IcmpErrorWithoutSession)?;
            burst.hand_over(at, worker);
            return Ok(());
        };
        let (sport, dport) = match embedded.ports {
            Ports::Pair(sport, dport) => (sport, dport),
            _ => (0, 0),
        };
        let of_embedded =
            Flow { src: embedded.src, dst: embedded.dst, protocol: embedded.protocol, sport, dport, icmp: None };
        if self.sessions.entry(slot).refused().is_some() {
            return Err(DropReason::IcmpErrorWithoutSession);
        }
        // The error's direction is opposite to the quoted packet's.
        let matched = self.sessions.matched(slot, &key, from_low);
        let (Match::Key(of) | Match::Alias(of)) = matched;
        let forward = self.forward_flow(slot, of, &of_embedded);
        let direction = match of {
            Direction::Forward => Direction::Reply,
            Direction::Reply => Direction::Forward,
        };
        let hop_limit = ip.hop_limit;
        let mut claim =
            Claim { slot, key, hash: wire_hash, wire_hash, direction, forward, hop_limit, flags: None, error: None };
        if self.sessions.entry(slot).is_translated() {
            claim.key = self.sessions.entry(slot).key();
            claim.hash = self.sessions.hash(&claim.key);
        }
        claim.error = Some(self.sessions.translated_error(slot, matched, &ip.flow));
        let follows = self.follow(burst, at, &claim)?;
        if follows { Ok(()) } else { Err(DropReason::IcmpErrorWithoutSession) }
    }
}
