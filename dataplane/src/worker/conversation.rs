//! Sessions and what comes of them: hit, renewal, start, and ICMP errors about a session's packets.

use bulkhead_classifier::Key as PolicyKey;

use super::exit::{self, Exit, Gate};
use super::pending::{Renewal, Wish};
use super::{Burst, Worker};
use crate::packet::{Embedded, Ip, Ports, TcpFlags, Transport};
use crate::session::{Direction, Key, NewSession, Slot};
use crate::{Decision, DropReason, Flow, PortId, PortKind, SessionState, Snapshot};

/// A packet that belongs to a session if its ports fit.
struct Claim {
    slot: Slot,
    key: Key,
    hash: u64,
    /// Which way the packet goes.
    direction: Direction,
    /// Who talks to whom in the session's forward direction.
    forward: Flow,
    hop_limit: u8,
    flags: Option<TcpFlags>,
    /// The packet is an ICMP error about the session.
    is_error: bool,
}

impl Worker {
    /// A packet of a conversation: everything but ICMP errors.
    pub(super) fn judge_conversation(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip) -> Result<(), DropReason> {
        let flow = &ip.flow;
        let ports = ip.transport.ports(flow);
        let flags = match ip.transport {
            Transport::Tcp(flags) => Some(flags),
            _ => None,
        };
        let (key, from_low) = Key::of(flow.src, flow.dst, flow.protocol, ports);
        let hash = self.sessions.hash(&key);
        if self.pending.may_hold(hash) {
            self.settle_pending(burst);
        }
        if let Some(slot) = self.sessions.find(hash, &key, self.now.time) {
            let entry = self.sessions.entry(slot);
            let direction = entry.direction(from_low);
            let starts_anew = entry.is_closed() && flags.is_some_and(TcpFlags::opens);
            let forward = match direction {
                Direction::Forward => *flow,
                Direction::Reply => turned(flow),
            };
            let claim = Claim { slot, key, hash, direction, forward, hop_limit: ip.hop_limit, flags, is_error: false };
            if !starts_anew && self.follow(burst, at, &claim)? {
                return Ok(());
            }
        }
        let new = NewSession {
            key,
            hash,
            from_low,
            protocol: flow.protocol,
            ports,
            flags,
            generation: burst.snapshot.generation(),
            decision: Decision { table: None, rule: None, origin: None },
            in_port: burst.packets[at].in_port,
            out_port: burst.packets[at].in_port,
        };
        self.start(burst, at, ip, new)
    }

    /// An ICMP error passes when the packet in it belongs to a session, and the error goes back to that packet's
    /// sender (RFC 792, RFC 4443 §2.4). Its own source may be any router on the way.
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
        let hash = self.sessions.hash(&key);
        let slot = self.sessions.find(hash, &key, self.now.time).ok_or(DropReason::IcmpErrorWithoutSession)?;
        let (sport, dport) = match embedded.ports {
            Ports::Pair(sport, dport) => (sport, dport),
            _ => (0, 0),
        };
        let of_embedded =
            Flow { src: embedded.src, dst: embedded.dst, protocol: embedded.protocol, sport, dport, icmp: None };
        // The error goes the other way than the packet that it is about.
        let (direction, forward) = match self.sessions.entry(slot).direction(from_low) {
            Direction::Forward => (Direction::Reply, of_embedded),
            Direction::Reply => (Direction::Forward, turned(&of_embedded)),
        };
        let claim = Claim { slot, key, hash, direction, forward, hop_limit: ip.hop_limit, flags: None, is_error: true };
        let follows = self.follow(burst, at, &claim)?;
        if follows { Ok(()) } else { Err(DropReason::IcmpErrorWithoutSession) }
    }

    /// Forwards a packet in its session, or lets it wait for the new generation's word on the session. False when
    /// the session's ports do not fit: then it is not a packet of the session.
    fn follow(&mut self, burst: &mut Burst<'_>, at: usize, claim: &Claim) -> Result<bool, DropReason> {
        let entry = self.sessions.entry(claim.slot);
        if entry.generation != burst.snapshot.generation() {
            return self.renew(burst, at, claim);
        }
        let (comes_in, leaves) = entry.ports(claim.direction);
        if !claim.fits(burst.snapshot, burst.packets[at].in_port, comes_in) {
            return Ok(false);
        }
        exit::check_hop_limit(burst.snapshot, claim.hop_limit, leaves)?;
        let decision = entry.decision;
        if !claim.is_error {
            self.sessions.touch(claim.slot, claim.direction, claim.flags, self.now);
        }
        burst.forward_in_session(at, leaves, decision, SessionState::Hit);
        Ok(true)
    }

    /// The session is of another generation: its forward direction is routed and classified anew.
    fn renew(&mut self, burst: &mut Burst<'_>, at: usize, claim: &Claim) -> Result<bool, DropReason> {
        let snapshot = burst.snapshot;
        let arrived = burst.packets[at].in_port;
        let Some(in_port) = self.forward_in_port(snapshot, arrived, claim) else { return Ok(false) };
        let forward = &claim.forward;
        let exit = match exit::find(snapshot, in_port, forward.src, forward.dst) {
            Ok(exit) => exit,
            Err(reason) => {
                self.sessions.revoke(claim.slot);
                return Err(reason);
            }
        };
        let (comes_in, leaves) = match claim.direction {
            Direction::Forward => (in_port, exit.port),
            Direction::Reply => (exit.port, in_port),
        };
        if !claim.fits(snapshot, arrived, comes_in) {
            return Ok(false);
        }
        exit::check_hop_limit(snapshot, claim.hop_limit, leaves)?;
        let renewal = Renewal {
            key: claim.key,
            hash: claim.hash,
            generation: snapshot.generation(),
            ports: (in_port, exit.port),
            direction: claim.direction,
            flags: claim.flags,
            is_error: claim.is_error,
        };
        match exit.gate {
            Gate::Hairpin(origin) => {
                let decision = hairpin(origin);
                renewal.apply(&mut self.sessions, claim.slot, decision, self.now);
                burst.forward_in_session(at, leaves, decision, SessionState::Hit);
            }
            Gate::Table(table) => {
                let key = policy_key(forward);
                self.pending.push(at, table, key, leaves, self.now, Wish::Keep(renewal));
            }
        }
        Ok(true)
    }

    /// The port on which the session's forward direction comes in, in this snapshot; port numbers may have changed.
    /// None when no port is left for it.
    fn forward_in_port(&self, snapshot: &Snapshot, arrived: PortId, claim: &Claim) -> Option<PortId> {
        if claim.direction == Direction::Forward && !claim.is_error {
            return Some(arrived);
        }
        let source = claim.forward.src;
        let old = self.sessions.entry(claim.slot).in_port;
        let is_still_shared = |id: &PortId| snapshot.port(*id).is_some_and(|port| port.kind != PortKind::Pod);
        snapshot
            .owner(source)
            .or_else(|| Some(old).filter(is_still_shared))
            .or_else(|| snapshot.routes().lookup(source))
    }

    /// The packet belongs to no session: may it start one?
    fn start(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip, new: NewSession) -> Result<(), DropReason> {
        let may_start = |flags: TcpFlags| flags.opens() || (self.tcp_pickup && flags.continues());
        if new.flags.is_some_and(|flags| !may_start(flags)) {
            return Err(DropReason::TcpWithoutSession);
        }
        let Exit { port, gate } = exit::find(burst.snapshot, new.in_port, ip.flow.src, ip.flow.dst)?;
        exit::check_hop_limit(burst.snapshot, ip.hop_limit, port)?;
        // When the table is nearly full, who finds room depends on the order: one packet at a time then.
        let is_tight = self.sessions.room() <= self.pending.len();
        if is_tight {
            self.settle_pending(burst);
        }
        let new = NewSession { out_port: port, ..new };
        match gate {
            Gate::Hairpin(origin) => {
                let decision = hairpin(origin);
                burst.outcomes[at].decision = Some(decision);
                self.sessions.create(&NewSession { decision, ..new }, self.now).ok_or(DropReason::SessionTableFull)?;
                burst.forward_in_session(at, port, decision, SessionState::New);
            }
            Gate::Table(table) => {
                self.pending.push(at, table, policy_key(&ip.flow), port, self.now, Wish::Start(new));
                if is_tight {
                    self.settle_pending(burst);
                }
            }
        }
        Ok(())
    }
}

impl Claim {
    /// Whether a packet of the session that goes this way may come in on `arrived`. Errors may also come from the
    /// node itself, which is a router on the way.
    fn fits(&self, snapshot: &Snapshot, arrived: PortId, expected: PortId) -> bool {
        arrived == expected || (self.is_error && snapshot.host() == Some(arrived))
    }
}

/// What the tables look at. Only protocols with ports have any; an ICMP type or an echo identifier must never match
/// a rule's port.
fn policy_key(flow: &Flow) -> PolicyKey {
    PolicyKey::new(flow.src, flow.dst, flow.protocol, flow.sport, flow.dport)
}

/// The same conversation seen from the other side.
fn turned(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}

const fn hairpin(origin: bulkhead_classifier::OriginId) -> Decision {
    Decision { table: None, rule: None, origin: Some(origin) }
}
