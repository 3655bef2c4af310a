//! New translated connections: the choice of a backend and of the source that it sees.
//!
//! The order is: check the sender's address, apply the Service's own limits, choose a backend, ask policy about the client and the backend,
//! then rewrite. So rules never contain virtual addresses, and the tables are the same as without Services. Refusals by a Service are not
//! stored, because the next packet may find an endpoint.

use std::net::{IpAddr, SocketAddr};

use bulkhead_classifier::protocol;

use super::column::Burst;
use super::{Team, Worker, masquerade};
use crate::packet::{Ip, Ports, Transport};
use crate::service::{Answer, Backend, Client, Eligible, Remembered, Vip};
use crate::session::{Direction, Key, Match, NewSession, Rewrite, Slot};
use crate::source_ports::Tried;
use crate::{DropReason, Flow, Services, Snapshot};

/// Source ports tried before a connection to a Service is refused. With 98 of 100 in use, a free one is found seven times in eight. A hundred
/// lookups take a few microseconds.
const TRIES: u16 = 100;
/// How long a pod's masqueraded connections to a destination without free ports are refused without a search, in nanoseconds: long enough that a flood of
/// them costs the worker little, and shorter than a client waits before it repeats a packet.
const EXHAUSTED: u64 = 50_000_000;
/// Binary logarithm of the time in nanoseconds for which a connection's search tries the same ports: half a second, which is less than a client waits
/// before it repeats a packet.
const SEARCHED: u32 = 29;

/// First source port used if the client's own is taken. Services do not listen below it (RFC 6335 §6).
const FIRST_SOURCE_PORT: u16 = 1024;

/// Slots of the session table reviewed per burst after a change of Services: about ten microseconds.
const REVIEWED: Slot = 512;

/// How a new connection is handled.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it comes from, and a packet must not allocate")]
pub(super) enum Opening {
    /// The connection is not translated.
    Direct,
    /// The connection goes to a Service or is masqueraded. Has the flow that policy judges, and the session to create.
    Translated(Flow, NewSession),
    /// The session belongs to the worker with this number, from 0.
    Elsewhere(usize),
}

/// A pod's connections to a destination for which no source port is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted {
    /// The pod's address.
    client: IpAddr,
    /// The destination's address and port.
    destination: (IpAddr, u16),
    /// The number of the IP protocol.
    protocol: u8,
    /// The source address whose ports are in use.
    source: IpAddr,
}

/// The backend and the source of a new connection to a Service.
#[derive(Clone, Copy)]
struct Given {
    backend: SocketAddr,
    /// The source address that the backend sees.
    source: IpAddr,
}

impl Worker {
    /// Returns the slot of the session or refusal with this key, or `None`. Ends a UDP session whose backend no longer serves.
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

    /// Returns a packet's direction in the session with its key or alias. `None` if the packet is not part of the session and may start its
    /// own.
    ///
    /// # Errors
    /// If the packet is not part of the session and may not start its own.
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
            // Only the vswitch sends packets from a virtual address.
            Match::Alias(Direction::Reply) => Err(DropReason::ReplyWithoutSession),
            Match::Key(direction) | Match::Alias(direction) => Ok(Some(direction)),
        }
    }

    /// Classifies a new connection: to a Service, masqueraded, or direct.
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
        if !matches!(ports, Ports::Pair(..) | Ports::EchoRequest(_)) {
            // Its answers could not be distinguished from those to the node itself.
            return Err(DropReason::NotMasqueraded);
        }
        if let Some(Team { affinity, id, workers }) = &self.team {
            // The worker that receives the answers.
            let owner = affinity.worker_of_pair(source, dst, *workers);
            if owner != *id {
                return Ok(Opening::Elsewhere(owner));
            }
        }
        let forward = Flow { dst, dport, ..*flow };
        let rewrite = Rewrite::new(flow.src, flow.dst, flow.protocol, ports, burst.services);
        let exhausted = Exhausted { client: flow.src, destination: (dst, dport), protocol: flow.protocol, source };
        if self.exhausted.is_some_and(|(last, until)| last == exhausted && self.now.time < until) {
            return Err(DropReason::SourcePortsExhausted);
        }
        let mut vain = Tried::default();
        // A client that repeats its packet after a vain search finds other ports.
        let secret = new.wire_hash ^ (self.now.time >> SEARCHED);
        for tried in 0..masquerade.map_or(TRIES, |(_, masquerade)| masquerade.ports().tries()) {
            let number = |own| match masquerade {
                Some((_, masquerade)) => masquerade.ports().port(own, secret, tried),
                None => source_port(own, secret, tried),
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
            let Some(holder) = self.sessions.holder(hash, &key, self.now.time) else {
                let new = NewSession { key, hash, from_low, rewrite: Some(rewrite), ..new };
                return Ok(Opening::Translated(forward, new));
            };
            vain = Tried { ports: vain.ports + 1, own: vain.own + u16::from(holder == flow.src) };
            if masquerade.is_some_and(|(_, masquerade)| !masquerade.ports().leaves(vain)) {
                return Err(DropReason::SourcePortsQuota);
            }
        }
        // The search for a Service's port is shorter, and now and then in vain although ports are free.
        if masquerade.is_some() {
            self.exhausted = Some((exhausted, self.now.time + EXHAUSTED));
        }
        Err(DropReason::SourcePortsExhausted)
    }

    /// Returns the backend for a connection to a Service. `None` for other connections.
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

    /// Chooses the backend: the client's last one if the Service has session affinity and it is still eligible.
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

    /// Reviews sessions after a change of Services, some slots per burst. Ends UDP sessions whose backend no longer serves. Also ends
    /// connectionless sessions and refusals that began before their destination was a Service's.
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

/// Whether the backend still serves the VIP. False if the VIP no longer exists. True if the VIP is the backend itself: the connection is
/// masqueraded.
fn is_serving(services: &Services, vip: (IpAddr, u16), protocol: u8, backend: (IpAddr, u16)) -> bool {
    let known = services.vip(&Vip { address: vip.0, protocol, port: vip.1 });
    known.map_or(vip == backend, |(_, port)| port.is_serving(&backend.into()))
}

/// Whether Services support the packet's protocol.
fn has_ports(ip: &Ip) -> bool {
    matches!(ip.flow.protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
        && matches!(ip.transport.ports(&ip.flow), Ports::Pair(..))
}

/// Returns a source port to try: first the client's own, then others in an unpredictable order.
fn source_port(own: u16, secret: u64, tried: u16) -> u16 {
    let Some(turn) = tried.checked_sub(1) else { return own };
    let range = u32::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
    // The range is a multiple of powers of two, three and seven only: an odd step visits a hundred different ports at least.
    #[expect(clippy::cast_possible_truncation, reason = "some bits of the hash are wanted")]
    let (start, step) = (secret as u32 % range, (secret >> 32) as u32 % (range / 128) * 2 + 1);
    let offset = (start + u32::from(turn) * step) % range;
    FIRST_SOURCE_PORT + u16::try_from(offset).expect("less than the range of ports")
}
