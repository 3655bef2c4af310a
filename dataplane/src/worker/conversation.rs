//! Judges packets of conversations: hits, renewals, new sessions and refusals.

use std::num::NonZeroU32;

use super::claim::{Claim, policy_key};
use super::column::Burst;
use super::exit::{self, Check, Exit};
use super::pending::{IfAllowed, Renewal};
use super::services::Opening;
use super::{Worker, admission};
use crate::packet::{Ip, TcpFlags, Transport};
use crate::session::{Direction, Key, Match, NewSession};
use crate::{Decision, DropReason, Flow, PortConfig, SessionState, Verdict};

/// The decision of entries about which no table has decided.
pub(super) const NO_DECISION: Decision = Decision { by: None, rule: None, origin: None };

impl Worker {
    /// Judges a packet of a conversation, which is anything but an ICMP error.
    pub(super) fn judge_conversation(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip) -> Result<(), DropReason> {
        let flow = &ip.flow;
        #[cfg(test)]
        assert_ne!(flow.dport, crate::testbed::FATAL_PORT, "a test wants this");
        let ports = ip.transport.ports(flow);
        let flags = ip.transport.flags();
        let (key, from_low) = Key::of(flow.src, flow.dst, flow.protocol, ports);
        let hash = self.sessions.hash(&key);
        if self.pending.may_hold(hash) {
            self.settle_pending(burst);
        }
        let in_port = burst.in_port(at);
        let new = NewSession {
            key,
            hash,
            wire_hash: hash,
            from_low,
            flags,
            epoch: burst.epoch,
            decision: NO_DECISION,
            in_port,
            in_kind: burst.snapshot.port(in_port).ok_or(DropReason::UnknownPort)?.kind,
            out_port: in_port,
            direction: Direction::Forward,
            span: None,
            icmp: None,
            rewrite: None,
        };
        if let Some(slot) = self.find_current(burst, hash, &key) {
            let matched = self.sessions.matched(slot, &key, from_low);
            let Some(direction) = self.direction_of(slot, matched, &ip.transport)? else {
                return self.start(burst, at, ip, flow, new);
            };
            let entry = self.sessions.entry(slot);
            let refused = entry.refused();
            let opens_back = direction == Direction::Reply && ip.transport.opens();
            // A SYN against the direction of an open connection opens another connection, or is half of a simultaneous open (RFC 9293
            // §3.5). Both tables must allow it.
            let opens = flags.is_some_and(TcpFlags::opens);
            let is_other = self.is_other_message(slot, direction, flow);
            let starts_anew =
                is_other || (opens && (entry.is_closed() || opens_back || self.needs_name_again(burst.snapshot, slot)));
            let (was_session, is_translated) = (entry.was_session(), entry.is_translated());
            if starts_anew && (matched == Match::Alias(Direction::Forward) || refused == Some(DropReason::NoSuchPod)) {
                // The client reuses its port. The ended session is removed, so that the new connection may get another backend, or reach a
                // new pod.
                self.sessions.replace(slot);
                return self.start_any(burst, at, ip, new);
            }
            let claim = self.claim(slot, direction, ip, hash);
            match refused {
                _ if is_other => {}
                Some(_) if was_session && !ip.transport.opens() && self.resume(burst, at, &claim)? => return Ok(()),
                Some(reason) if !opens_back => return self.judge_refused(burst, at, ip, &claim, reason, new),
                Some(_) => {}
                None if !starts_anew && self.follow(burst, at, &claim)? => return Ok(()),
                None => {}
            }
            if is_translated && refused.is_none() && !starts_anew && matched == Match::Key(Direction::Reply) {
                // The client's location is unknown. A conversation started by the backend would take the session's place.
                return Err(DropReason::SessionClash);
            }
            if matched == Match::Alias(Direction::Forward) {
                // The client now arrives on another port. A second session with its alias would never be found.
                self.sessions.replace(slot);
            }
        }
        self.start_any(burst, at, ip, new)
    }

    /// Judges a packet without a session, which may start one, translated or not.
    fn start_any(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip, new: NewSession) -> Result<(), DropReason> {
        if let Some(worker) = self.sessions.elsewhere(&new.key) {
            burst.hand_over(at, worker);
            return Ok(());
        }
        match self.open(burst, ip, new)? {
            Opening::Direct => self.start(burst, at, ip, &ip.flow, new),
            Opening::Translated(forward, new) => self.start(burst, at, ip, &forward, new),
            Opening::Elsewhere(worker) => {
                burst.hand_over(at, worker);
                Ok(())
            }
        }
    }

    /// Judges a packet of a refused conversation, in either direction. Its receiving port does not matter, because the refusal is for the
    /// flow.
    fn judge_refused(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        ip: &Ip,
        claim: &Claim,
        reason: DropReason,
        new: NewSession,
    ) -> Result<(), DropReason> {
        let (epoch, decision, was_session) = {
            let entry = self.sessions.entry(claim.slot);
            (entry.epoch, self.sessions.decision(claim.slot), entry.was_session())
        };
        let is_forward = claim.direction == Direction::Forward;
        let may_start = || self.may_have_learned(burst, at, claim) && self.check_start(&ip.transport).is_ok();
        if epoch != burst.epoch || may_start() {
            if is_forward {
                let is_translated = self.sessions.entry(claim.slot).is_translated();
                if is_translated {
                    self.sessions.replace(claim.slot);
                }
                return self.start_any(burst, at, ip, new);
            }
            // The new tables judge the refused direction. The packet only passes as its reply.
            if let Some((in_port, port)) = self.forward_in_port(burst.snapshot, claim.slot, &claim.forward) {
                let (from_low, direction) = (!new.from_low, Direction::Reply);
                let rewrite = self.sessions.rewrite(claim.slot);
                let turned = NewSession { from_low, direction, in_port, in_kind: port, decision, rewrite, ..new };
                return self.start(burst, at, ip, &claim.forward, turned);
            }
        } else if is_forward || (was_session && claim.flags.is_some()) {
            // Either side may retry a cut connection, which may be allowed again. Other replies do not extend a refusal: with fixed ports
            // they may be the other side's own conversation.
            self.sessions.touch(claim.slot, claim.direction, None, self.now);
        }
        let translation = self.translation_of(burst, claim);
        burst.translate(at, translation);
        burst.decisions.set(at, (decision != NO_DECISION).then_some(decision));
        Err(reason)
    }

    /// Judges a session that a policy has cut again, if the tables are newer or its initiator may have learned the destination's address
    /// since. Returns false if it stays cut.
    fn resume(&mut self, burst: &mut Burst<'_>, at: usize, claim: &Claim) -> Result<bool, DropReason> {
        let is_stale = self.sessions.entry(claim.slot).epoch != burst.epoch || self.may_have_learned(burst, at, claim);
        Ok(is_stale && self.renew(burst, at, claim)?)
    }

    /// Whether the sender of a packet that policy has refused may have learned the destination's address since, so that the packet must be
    /// judged again.
    fn may_have_learned(&self, burst: &Burst<'_>, at: usize, claim: &Claim) -> bool {
        let is_by_policy = self.sessions.entry(claim.slot).refused() == Some(DropReason::PolicyDenied);
        let sender = burst.snapshot.port(burst.in_port(at));
        claim.direction == Direction::Forward && is_by_policy && sender.is_some_and(PortConfig::is_named)
    }

    /// Forwards a packet in its session, or lets it wait until the new generation has judged the session. Returns false if the session's
    /// ports do not match, so that the packet is not part of it.
    pub(super) fn follow(&mut self, burst: &mut Burst<'_>, at: usize, claim: &Claim) -> Result<bool, DropReason> {
        let entry = self.sessions.entry(claim.slot);
        if entry.epoch != burst.epoch {
            return self.renew(burst, at, claim);
        }
        let (comes_in, leaves) = entry.ports(claim.direction);
        if !claim.fits(burst.snapshot, burst.in_port(at), comes_in) {
            return Ok(false);
        }
        exit::check_hop_limit(burst.snapshot, claim.hop_limit, burst.in_port(at), leaves)?;
        let decision = self.sessions.decision(claim.slot);
        if claim.error.is_none() {
            if let Some(flags) = self.believe(burst, at, claim)? {
                // Waiting packets were checked for room before this packet needs some.
                let closes = self.sessions.would_close(claim.slot, claim.direction, flags);
                if closes && self.sessions.half_open_room() <= self.pending.len() {
                    self.settle_pending(burst);
                }
                if self.sessions.is_opening(claim.slot, claim.direction, flags) {
                    burst.open(at);
                }
                self.sessions.touch(claim.slot, claim.direction, flags, self.now);
            }
            if !self.awaits_name(burst.snapshot, claim.slot) {
                self.sessions.set_checked(claim.slot, claim.direction);
            }
        }
        let translation = self.translation_of(burst, claim);
        burst.allow(at, Verdict::Forward(leaves), decision, SessionState::Hit);
        burst.translate(at, translation);
        Ok(true)
    }

    /// Stores the translation of a session's packet, or of an ICMP error about one. Returns its position. `None` without translation.
    pub(super) fn translation_of(&self, burst: &mut Burst<'_>, claim: &Claim) -> Option<NonZeroU32> {
        match claim.error {
            None => burst.add_translation(self.sessions.rewritten(claim.slot, claim.direction)?),
            Some(translated) => burst.add_translated_error(translated?),
        }
    }

    /// Judges a session of an older generation by the current tables: routes and classifies its forward direction.
    fn renew(&mut self, burst: &mut Burst<'_>, at: usize, claim: &Claim) -> Result<bool, DropReason> {
        let snapshot = burst.snapshot;
        let arrived = burst.in_port(at);
        let Some((in_port, _)) = self.forward_in_port(snapshot, claim.slot, &claim.forward) else {
            return self.renew_without_initiator(burst, at, claim);
        };
        let forward = &claim.forward;
        let is_translated = self.sessions.entry(claim.slot).is_translated();
        let exit = match exit::find(snapshot, in_port, (forward.src, forward.dst), is_translated) {
            Ok(exit) => exit,
            Err(reason) => {
                self.sessions.revoke(claim.slot, burst.epoch, &NO_DECISION, reason, self.now);
                return Err(reason);
            }
        };
        let (comes_in, leaves, is_unreachable) = match claim.direction {
            Direction::Forward => (in_port, exit.port, exit.is_unreachable),
            Direction::Reply => (exit.port, in_port, snapshot.is_gone(in_port)),
        };
        if !claim.fits(snapshot, arrived, comes_in) {
            return Ok(false);
        }
        let is_unreachable = is_unreachable || self.stays_ended(snapshot, claim, leaves);
        let allowed = exit::verdict(snapshot, claim.hop_limit, (arrived, leaves), is_unreachable);
        let news = if claim.error.is_some() { None } else { self.believe(burst, at, claim)? };
        let translation = self.translation_of(burst, claim);
        let renewal = Renewal {
            key: claim.key,
            hash: claim.hash,
            wire_hash: claim.wire_hash,
            epoch: burst.epoch,
            ports: (in_port, exit.port),
            direction: claim.direction,
            news,
            is_error: claim.error.is_some(),
        };
        match exit.check {
            Check::Hairpin(origin) => {
                let decision = hairpin(origin);
                renewal.apply(&mut self.sessions, claim.slot, decision, self.now);
                burst.allow(at, allowed, decision, SessionState::Hit);
                burst.translate(at, translation);
            }
            Check::Table(bound) => {
                let key = policy_key(forward);
                self.pending.push(at, (bound, key), allowed, self.now, translation, IfAllowed::Keep(renewal));
            }
        }
        Ok(true)
    }

    /// Starts a session for a packet without one, if that is allowed. `forward` is the session's flow.
    fn start(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        ip: &Ip,
        forward: &Flow,
        new: NewSession,
    ) -> Result<(), DropReason> {
        // Any packet may learn that no host has its destination, also one from the middle of a connection.
        self.check_start(&ip.transport).or_else(|reason| {
            let may_learn = new.rewrite.is_none() && burst.snapshot.is_unreachable(forward.dst);
            if may_learn { Ok(()) } else { Err(reason) }
        })?;
        let mut new = self.check_opening(burst, at, new)?;
        new.icmp = forward.icmp;
        let exit = exit::find(burst.snapshot, new.in_port, (forward.src, forward.dst), new.rewrite.is_some());
        if let Ok(exit) = &exit {
            new.out_port = exit.port;
        }
        // If the table is nearly full, the order decides which packet finds room, so packets are judged one at a time.
        let is_tight = self.sessions.room_for(&new) <= self.pending.len();
        if is_tight {
            self.settle_pending(burst);
        }
        let Exit { port, check, is_unreachable } = match exit {
            Ok(exit) => exit,
            Err(reason) => {
                // An answer must not open a closed port either.
                if reason == DropReason::TableMissing {
                    self.sessions.refuse(&new, reason, self.now);
                }
                return Err(reason);
            }
        };
        admission::check_link_local(burst.snapshot, new.in_kind, port, forward)?;
        admission::check_tunnel_port(burst.snapshot, new.in_kind, port, forward)?;
        let (leaves, is_unreachable) = match new.direction {
            Direction::Forward => (port, is_unreachable),
            Direction::Reply if burst.in_port(at) == port => (new.in_port, burst.snapshot.is_gone(new.in_port)),
            // An answer may not come from the port that the request left through.
            Direction::Reply => {
                burst.decisions.set(at, Some(new.decision));
                return Err(DropReason::PolicyDenied);
            }
        };
        let allowed = exit::verdict(burst.snapshot, ip.hop_limit, (burst.in_port(at), leaves), is_unreachable);
        let translation = new.rewritten().and_then(|rewritten| burst.add_translation(rewritten));
        match check {
            Check::Hairpin(origin) => {
                let decision = hairpin(origin);
                burst.decisions.set(at, Some(decision));
                self.sessions.create(&NewSession { decision, ..new }, self.now)?;
                burst.allow(at, allowed, decision, SessionState::New);
                burst.translate(at, translation);
            }
            Check::Table(bound) => {
                let key = policy_key(forward);
                self.pending.push(at, (bound, key), allowed, self.now, translation, IfAllowed::Start(new));
                if is_tight {
                    self.settle_pending(burst);
                }
            }
        }
        Ok(())
    }

    /// Rejects packets that must not start a session, such as a SYN-ACK or an echo reply: their request was refused or never seen.
    pub(super) fn check_start(&self, transport: &Transport) -> Result<(), DropReason> {
        match *transport {
            Transport::Tcp(flags) if flags.opens() || (self.tcp_pickup && flags.continues()) => Ok(()),
            Transport::Tcp(_) => Err(DropReason::TcpWithoutSession),
            Transport::Echo { .. } | Transport::Sctp(_) if !transport.opens() => Err(DropReason::ReplyWithoutSession),
            _ => Ok(()),
        }
    }
}

pub(super) const fn hairpin(origin: bulkhead_classifier::OriginId) -> Decision {
    Decision { by: None, rule: None, origin: Some(origin) }
}
