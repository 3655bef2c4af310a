//! Connections that are translated: the backend that one to a Service's address is given, and the source that is seen there.
//!
//! The order is: the packet's sender is who he says he is; the Service's own limits; a backend; policy on the true client and the
//! backend; then the rewrite. So no rule knows a virtual address, and the tables are the same as without Services. What a Service
//! refuses is not remembered: the next packet may find an endpoint.

use std::net::{IpAddr, SocketAddr};

use bulkhead_classifier::protocol;

use super::column::Burst;
use super::{Team, Worker, masquerade};
use crate::packet::{Ip, Ports, Transport};
use crate::service::{Answer, Backend, Client, Eligible, Remembered, Vip};
use crate::session::{Direction, Key, Match, NewSession, Rewrite, Slot};
use crate::{DropReason, Flow, Services, Snapshot};

/// How many source ports are tried before a connection is refused for want of one: with 98 of 100 in use one of them is free seven
/// times in eight, and a hundred lookups take some microseconds.
const TRIES: u16 = 100;

/// Ports that a source is given where the client's own is taken: none that a service listens at (RFC 6335 §6).
const FIRST_SOURCE_PORT: u16 = 1024;

/// Places of the session table that are looked at with each burst after Services have changed: some ten microseconds.
const REVIEWED: Slot = 512;

/// What a new connection is.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it comes from, and a packet must not allocate")]
pub(super) enum Opening {
    /// One whose addresses stay.
    Direct,
    /// One to a Service's address, or one that is masqueraded: who talks to whom in truth, and the session that it asks for.
    Translated(Flow, NewSession),
    /// One whose session belongs to this worker, from 0.
    Elsewhere(usize),
}

/// The backend of a new connection to a Service's address.
#[derive(Clone, Copy)]
struct Given {
    backend: SocketAddr,
    /// The source that it sees.
    source: IpAddr,
}

impl Worker {
    /// The session or refusal with this key. A UDP session whose backend does not answer any more ends here.
    pub(super) fn find_current(&mut self, burst: &Burst<'_>, hash: u64, key: &Key) -> Option<Slot> {
        let slot = self.sessions.find(hash, key, self.now.time)?;
        if self.sessions.entry(slot).epoch != burst.epoch && self.is_unmasked(burst.snapshot, slot) {
            self.sessions.replace(slot);
            return None;
        }
        if let Some(services) = burst.snapshot.services()
            && self.sessions.may_be_stale(slot, burst.services)
        {
            let ends = self.sessions.true_ends(slot).zip(self.sessions.rewrite(slot));
            let is_over = ends
                .is_some_and(|([_, backend], rewrite)| !is_serving(services, rewrite.vip(), key.protocol(), backend));
            if is_over {
                self.sessions.replace(slot);
                return None;
            }
            self.sessions.set_serving(slot, burst.services);
        }
        Some(slot)
    }

    /// Which way a packet goes that has a session's key or alias. None for one that is no packet of it and may start its own.
    ///
    /// # Errors
    /// When it is no packet of it and cannot have its own.
    pub(super) fn direction_of(
        &self,
        slot: Slot,
        matched: Match,
        transport: &Transport,
    ) -> Result<Option<Direction>, DropReason> {
        let entry = self.sessions.entry(slot);
        match matched {
            Match::Key(Direction::Forward) if entry.is_translated() => {
                let is_free = entry.refused().is_some() || (entry.is_closed() && transport.opens());
                if is_free { Ok(None) } else { Err(DropReason::SessionClash) }
            }
            // Nobody answers in the name of a virtual address but the vswitch.
            Match::Alias(Direction::Reply) => Err(DropReason::ReplyWithoutSession),
            Match::Key(direction) | Match::Alias(direction) => Ok(Some(direction)),
        }
    }

    /// What becomes of a new connection: it may be one to a Service's address, or one of a pod to the world.
    pub(super) fn open(&mut self, burst: &mut Burst<'_>, ip: &Ip, new: NewSession) -> Result<Opening, DropReason> {
        let (snapshot, flow) = (burst.snapshot, &ip.flow);
        let given = self.backend(snapshot, ip, &new)?;
        let (dst, dport) = given.map_or((flow.dst, flow.dport), |given| (given.backend.ip(), given.backend.port()));
        let masquerade = masquerade::source(snapshot, (new.in_port, new.in_kind), dst)?;
        let source = match (masquerade, given) {
            (Some((source, _)), _) => source,
            (None, Some(given)) => given.source,
            (None, None) => return Ok(Opening::Direct),
        };
        self.check_start(&ip.transport)?;
        let ports = ip.transport.ports(flow);
        if ports == Ports::None {
            // Nothing would tell its answers from those to the node itself.
            return Err(DropReason::NotMasqueraded);
        }
        if let Some(Team { affinity, id, workers }) = &self.team {
            // Answers come to this one.
            let owner = affinity.worker_of_pair(source, dst, *workers);
            if owner != *id {
                return Ok(Opening::Elsewhere(owner));
            }
        }
        let forward = Flow { dst, dport, ..*flow };
        let rewrite = Rewrite::new(flow.src, flow.dst, flow.protocol, ports, burst.services);
        for tried in 0..TRIES {
            let number = |own| match masquerade {
                Some((_, masquerade)) => masquerade.port(own, new.wire_hash, tried),
                None => source_port(own, new.wire_hash, tried),
            };
            let ports = match ports {
                Ports::EchoRequest(id) => Ports::EchoRequest(number(id)),
                _ => Ports::Pair(number(flow.sport), dport),
            };
            let (key, from_low) = Key::of(source, dst, flow.protocol, ports);
            let hash = self.sessions.hash(&key);
            if self.pending.may_hold(hash) {
                self.settle_pending(burst);
            }
            if self.sessions.is_available(hash, &key, self.now.time) {
                let new = NewSession { key, hash, from_low, rewrite: Some(rewrite), ..new };
                return Ok(Opening::Translated(forward, new));
            }
        }
        Err(DropReason::SourcePortsExhausted)
    }

    /// The backend for a connection to a Service's address, none for any other one.
    fn backend(&mut self, snapshot: &Snapshot, ip: &Ip, new: &NewSession) -> Result<Option<Given>, DropReason> {
        let Some(services) = snapshot.services().filter(|services| !services.is_empty()) else { return Ok(None) };
        let flow = &ip.flow;
        let client = Client::new(snapshot.node(), services, new.in_kind, flow.src);
        let eligible = match services.answer(&client, flow, has_ports(ip)) {
            Answer::NotOurs => return Ok(None),
            Answer::Drop(reason) => return Err(reason),
            Answer::Choose(eligible) => eligible,
        };
        self.check_start(&ip.transport)?;
        let backend = self.choose(services, &eligible, flow);
        let rewrites_source = eligible.rewrites_all || client.needs_rewrite(flow.dst, &backend);
        let source = match rewrites_source {
            true => services.source_for(flow.src).ok_or(DropReason::SourcePortsExhausted)?,
            false => flow.src,
        };
        Ok(Some(Given { backend: backend.socket, source }))
    }

    /// The backend for a new connection: the client's last one where the Service wants that and it is still eligible.
    fn choose(&mut self, services: &Services, eligible: &Eligible<'_>, flow: &Flow) -> Backend {
        let Some(timeout) = eligible.port.affinity else { return eligible.choose(services, flow) };
        let seconds = self.now.time / 1_000_000_000;
        let last = self.clients.last(flow.src, eligible.port.identity, seconds, timeout);
        let kept = last.and_then(|last| eligible.find(|backend| last.is(&backend.socket)));
        let backend = kept.unwrap_or_else(|| eligible.choose(services, flow));
        let counts = &mut self.counters.clients;
        match self.clients.remember(flow.src, eligible.port.identity, &backend.socket, seconds) {
            Remembered::Again => {}
            Remembered::Newly => counts.remembered += 1,
            Remembered::Instead | Remembered::Not => counts.forgotten += 1,
        }
        backend
    }

    /// After a change of Services: UDP sessions whose backend does not answer any more end, and so does, but for connections, what was
    /// begun or refused before its destination was a Service's. Some places with each burst.
    pub(super) fn review_sessions(&mut self, snapshot: &Snapshot) {
        let (Some(from), Some(services)) = (self.review_from, snapshot.services()) else { return };
        let is_over = |entry: &crate::session::Entry, rewrite: Option<&Rewrite>| {
            let protocol = entry.key().protocol();
            let [_, backend] = entry.endpoints(Direction::Forward);
            match rewrite {
                Some(rewrite) => protocol == protocol::UDP && !is_serving(services, rewrite.vip(), protocol, backend),
                None => {
                    let vip = Vip { address: backend.0, protocol, port: backend.1 };
                    let may_end = protocol == protocol::UDP || entry.refused().is_some();
                    may_end && services.vip(&vip).is_some()
                }
            }
        };
        self.review_from = self.sessions.review(from, REVIEWED, is_over);
    }
}

/// Whether the backend of a virtual address still answers. Where that is none any more, no backend of it does; where it is the backend
/// itself, it never was one: the connection is masqueraded.
fn is_serving(services: &Services, vip: (IpAddr, u16), protocol: u8, backend: (IpAddr, u16)) -> bool {
    let known = services.vip(&Vip { address: vip.0, protocol, port: vip.1 });
    known.map_or(vip == backend, |(_, port)| port.is_serving(&backend.into()))
}

/// Whether the packet's protocol is one that Services know.
fn has_ports(ip: &Ip) -> bool {
    matches!(ip.flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
        && matches!(ip.transport.ports(&ip.flow), Ports::Pair(..))
}

/// The client's own port first, then others, in an order that nobody outside can know.
fn source_port(own: u16, secret: u64, tried: u16) -> u16 {
    let Some(turn) = tried.checked_sub(1) else { return own };
    let range = u32::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
    // The range is a multiple of powers of two, three and seven only: an odd step visits a hundred different ports at least.
    #[expect(clippy::cast_possible_truncation, reason = "some bits of the hash are wanted")]
    let (start, step) = (secret as u32 % range, (secret >> 32) as u32 % (range / 128) * 2 + 1);
    let offset = (start + u32::from(turn) * step) % range;
    FIRST_SOURCE_PORT + u16::try_from(offset).expect("less than the range of ports")
}
