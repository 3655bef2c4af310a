//! Compares the server names that clients send with the names that the policy allows: see [`crate::names`] and
//! [`ServerNameCheck`].
//!
//! ```text
//!   new session, allowed by name, port 443 -> marked: every packet takes the full path, and the flow cache gets none
//!   packet of a marked session -> Hellos --name--> judged again, as if this were the address's only name
//!                                    |                `--denied--> Drop: cut · Audit: reported
//!                                    `--settled--> the mark goes, and the session is like any other
//! ```
//! The mark is kept with the session, over restarts as well, but the readers of names are not. A marked session without a reader has a
//! message that nobody has read, and counts as one without a name.

use bulkhead_classifier::protocol;

use super::Worker;
use super::audit::{Audited, Noted};
use super::claim::{flow_of, policy_key};
use super::column::Burst;
use super::names::Asked;
use crate::names::{Hello, Holder, Names, Sent, ServerNameCheck, names_its_server};
use crate::packet::Ports;
use crate::session::{Direction, Key, Match, Slot};
use crate::{DropReason, Flow, PortId, SessionState, Snapshot, Verdict};

/// A packet of a marked session.
struct Marked {
    slot: Slot,
    holder: Holder,
    /// The pod's port and the server's.
    ports: (PortId, PortId),
    /// The flow from the client to the server, as the policy judges it.
    flow: Flow,
    is_client: bool,
}

impl Names {
    /// Whether the server name of a new session that was allowed by name must be compared: it may have one, and not all names are allowed.
    pub(super) fn checks(&self, asked: &Asked<'_>) -> bool {
        let table = asked.snapshot.port(asked.in_port).and_then(|port| port.named_table);
        self.server_names() != ServerNameCheck::Off
            && names_its_server(asked.key.protocol(), asked.key.dst_port())
            && table.is_some_and(|table| !asked.judge_as(table, None).is_allow())
    }
}

impl Worker {
    /// Whether the session's server name must be compared before its packets take the fast path.
    pub(super) fn awaits_name(&mut self, snapshot: &Snapshot, slot: Slot) -> bool {
        let Some(names) = snapshot.names().filter(|_| self.sessions.is_unchecked(slot)) else { return false };
        let is_checking = names.server_names() != ServerNameCheck::Off;
        // What the client sends meanwhile is not read, so the mark would cut the session later.
        self.sessions.set_unchecked(slot, is_checking);
        is_checking
    }

    /// Whether a SYN of the session's client may open another connection whose server name must be compared. The session need not know that
    /// the server has closed the last one.
    pub(super) fn needs_name_again(&self, snapshot: &Snapshot, slot: Slot) -> bool {
        snapshot.names().is_some_and(|names| names.server_names() != ServerNameCheck::Off)
            && self.sessions.name(slot).is_some()
            && !self.sessions.is_unchecked(slot)
    }

    /// Whether packet `at` may belong to a session whose server name is not compared yet. Sessions on the fast path have no mark.
    pub(super) fn may_be_hello(&self, burst: &Burst<'_>, at: usize, names: &Names) -> bool {
        if names.server_names() == ServerNameCheck::Off || burst.misses.last() != Some(&at) {
            return false;
        }
        let waiting = self.pending.last(at).map(|(_, translation)| translation);
        let sent = burst.sent(waiting.unwrap_or(burst.judged[at].translation));
        burst.flow(at).is_some_and(|flow| {
            let ports = [Some((flow.sport, flow.dport)), sent.map(|sent| (sent.sport, sent.dport))];
            let is_named = |port| names_its_server(flow.protocol, port);
            ports.into_iter().flatten().any(|(sport, dport)| is_named(sport) || is_named(dport))
        })
    }

    /// Reads packet `at` if it belongs to a session whose server name is not compared yet. The packet must be judged.
    #[cold]
    pub(super) fn check_server_name(&mut self, burst: &mut Burst<'_>, at: usize, names: &Names) {
        let Some(marked) = self.marked(burst, at, names) else { return };
        let payload = burst.payload(at);
        let Some((payload, data)) = payload.and_then(|payload| Some((payload, payload.data()?))) else {
            // A fragment could bring a part of a hello.
            if marked.is_client && names.server_names() == ServerNameCheck::Drop {
                burst.drop(at, DropReason::ServerName);
            }
            return;
        };
        let is_first = burst.judged[at].session == Some(SessionState::New);
        let ack = payload.segment().and_then(|span| span.ack);
        let sent = Sent { data, ack, is_client: marked.is_client, is_first, now: self.now.time };
        let (snapshot, key) = (burst.snapshot, policy_key(&marked.flow));
        let asked =
            Asked { snapshot, in_port: marked.ports.0, out: marked.ports.1, key: &key, kept: None, now: self.now.time };
        let Some(named) = snapshot.port(marked.ports.0).and_then(|port| port.named_table) else { return };
        let Self { learning, .. } = self;
        let hello = learning
            .hellos
            .read(marked.holder, &marked.flow, &sent, |name| asked.judge_as(named, Some(name)).is_allow());
        match hello {
            Hello::Reading => {}
            Hello::Settled => {
                learning.reader.counters.matched += 1;
                self.sessions.set_unchecked(marked.slot, false);
            }
            Hello::Mismatch(name) => {
                learning.reader.counters.mismatched += 1;
                let denial = snapshot.decision(named, asked.judge_as(named, name.as_deref()));
                self.act_on_mismatch(burst, at, names, &marked, denial);
            }
            Hello::Unreadable if names.server_names() == ServerNameCheck::Drop => {
                burst.drop(at, DropReason::ServerName);
            }
            Hello::Unreadable => {}
        }
    }

    fn act_on_mismatch(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        names: &Names,
        marked: &Marked,
        denial: crate::Decision,
    ) {
        let slot = marked.slot;
        if names.server_names() == ServerNameCheck::Drop {
            // A QUIC flow goes on: the client may be testing the negotiation of versions, and the reader must stay.
            if marked.flow.protocol == protocol::TCP {
                let decision = self.sessions.decision(slot);
                self.sessions.revoke(slot, burst.epoch, &decision, DropReason::ServerName, self.now);
            }
            burst.drop(at, DropReason::ServerName);
            return;
        }
        self.sessions.set_unchecked(slot, false);
        self.sessions.set_audited(slot, true);
        let (flow, (in_port, out_port)) = (flow_of(&policy_key(&marked.flow)), marked.ports);
        let audited = Audited { time: self.now.time, flow, in_port, out_port, decision: denial, is_new: true };
        self.audits.push(Noted { at, audited });
    }

    /// Returns the marked session of a forwarded packet. `None` for all other packets.
    fn marked(&self, burst: &Burst<'_>, at: usize, names: &Names) -> Option<Marked> {
        let Verdict::Forward(out) = burst.judged[at].verdict else { return None };
        if burst.judged[at].elsewhere.is_some() {
            return None;
        }
        let (received, in_port) = (burst.flow(at)?, burst.in_port(at));
        let (key, from_low) =
            Key::of(received.src, received.dst, received.protocol, Ports::Pair(received.sport, received.dport));
        let slot = self.sessions.lookup(self.sessions.hash(&key), &key)?;
        if !self.sessions.is_unchecked(slot) {
            return None;
        }
        let (Match::Key(direction) | Match::Alias(direction)) = self.sessions.matched(slot, &key, from_low);
        let flow = self.forward_flow(slot, direction, &received);
        let ports = match direction {
            Direction::Forward => (in_port, out),
            Direction::Reply => (out, in_port),
        };
        let holder = names.holder(ports.0)?;
        Some(Marked { slot, holder, ports, flow, is_client: direction == Direction::Forward })
    }
}
