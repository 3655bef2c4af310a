//! Maps observed flows to contacts between ends of the state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_control::object::Transport;

use super::judge::Rules;
use super::workload::Workloads;
use crate::fabric::End;
use crate::flows::find::{Connection, Resolved};
use crate::flows::verdict::Fate;
use crate::flows::{ObservedFlow, ResolvedNames, Tally};
use crate::translate::Leg;

/// Identifies a contact: client, server, protocol, destination port.
pub(super) type ContactKey = (IpAddr, IpAddr, Transport, u16);

/// An observed connection, or one that an observed connection to a Service may have become.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    pub(super) from: End,
    pub(super) to: End,
    /// Whether only the client's vswitch judges the contact, because that rewrites the packets.
    pub(super) is_departure: bool,
    /// The names of the server in the flows behind the contact: one element per flow, empty for a flow without names.
    pub(super) names: BTreeSet<ResolvedNames>,
}

/// One end of an edge: a workload, or an address that no policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EdgeEnd {
    Workload(usize),
    Address(IpAddr),
}

/// Protocols and ports that a workload needs in one direction, by peer.
pub(super) type Wants = BTreeMap<EdgeEnd, BTreeSet<(Transport, u16)>>;

/// The evidence to learn from: contacts, and what was observed about them.
pub(super) struct Evidence {
    pub(super) contacts: BTreeMap<ContactKey, Contact>,
    /// Observed traffic between workloads or addresses, by protocol and port.
    pub(super) edges: BTreeMap<(EdgeEnd, EdgeEnd, Transport, u16), Tally>,
    /// The flows behind the contacts.
    pub(super) flows: Vec<ObservedFlow>,
    /// Sessions that could not be resolved, by reason.
    pub(super) unknown: BTreeMap<String, u64>,
    /// Sessions that were logged as dropped.
    pub(super) dropped: u64,
    /// Unanswered sessions that the state denies. They are attempts, for which no policy is learned.
    pub(super) refused: u64,
    /// Indexes of the workloads seen as clients; `servers` has those seen as servers.
    pub(super) clients: BTreeSet<usize>,
    pub(super) servers: BTreeSet<usize>,
}

impl Evidence {
    pub(super) fn of(flows: &[ObservedFlow], judge: &mut Rules<'_>, workloads: &Workloads) -> anyhow::Result<Self> {
        let mut evidence = Self {
            contacts: BTreeMap::new(),
            edges: BTreeMap::new(),
            flows: Vec::new(),
            unknown: BTreeMap::new(),
            dropped: 0,
            refused: 0,
            clients: BTreeSet::new(),
            servers: BTreeSet::new(),
        };
        for flow in flows {
            if flow.said.dropped {
                evidence.dropped += flow.tally.sessions;
                continue;
            }
            let is_unproven = flow.tally.answered == 0 && flow.said.words.is_empty();
            if is_unproven && judge.is(&Fate::Deny, flow)? {
                evidence.refused += flow.tally.sessions;
                continue;
            }
            match judge.resolve(&flow.conversation)? {
                Resolved::Unknown(why) => {
                    let why = format!("{} -> {}: {why}", flow.conversation.from, flow.conversation.to);
                    *evidence.unknown.entry(why).or_default() += flow.tally.sessions;
                }
                Resolved::Direct(Connection { from, to, port }) => {
                    evidence.take(&[Leg::whole(&from, &to, port)], flow, &flow.names, workloads);
                }
                Resolved::Translated(connection, translation) => match translation.refusal {
                    Some(refusal) => {
                        let why =
                            format!("{} -> {}: its Service refuses it: {refusal}", connection.from, connection.to);
                        *evidence.unknown.entry(why).or_default() += flow.tally.sessions;
                    }
                    None => {
                        let legs: Vec<Leg> = translation
                            .before
                            .into_iter()
                            .chain(translation.routes.into_iter().flat_map(|route| route.legs))
                            .collect();
                        // Names of a Service's address are not those of its endpoints.
                        evidence.take(&legs, flow, &ResolvedNames::default(), workloads);
                    }
                },
            }
        }
        Ok(evidence)
    }

    fn take(&mut self, legs: &[Leg], flow: &ObservedFlow, names: &ResolvedNames, workloads: &Workloads) {
        self.flows.push(flow.clone());
        for Leg { from, to, port, is_departure, is_hairpin: _ } in legs {
            // Only connections of TCP, UDP and SCTP have legs.
            let Some(transport) = port.protocol.transport() else { continue };
            let key = (from.address(), to.address(), transport, port.port);
            let contact = || {
                let names = BTreeSet::new();
                Contact { from: from.clone(), to: to.clone(), is_departure: *is_departure, names }
            };
            let known = self.contacts.entry(key).or_insert_with(contact);
            known.is_departure &= is_departure;
            known.names.insert(names.clone());
            let ends = (edge_end(from, workloads), edge_end(to, workloads));
            if let EdgeEnd::Workload(at) = ends.0 {
                self.clients.insert(at);
            }
            if let (EdgeEnd::Workload(at), false) = (ends.1, *is_departure) {
                self.servers.insert(at);
            }
            match self.edges.entry((ends.0, ends.1, transport, port.port)) {
                std::collections::btree_map::Entry::Vacant(vacant) => drop(vacant.insert(flow.tally.clone())),
                std::collections::btree_map::Entry::Occupied(mut occupied) => occupied.get_mut().add(&flow.tally),
            }
        }
    }

    /// Returns the number of sessions behind the contacts.
    pub(super) fn sessions(&self) -> u64 {
        self.flows.iter().map(|flow| flow.tally.sessions).sum()
    }
}

/// Returns the end's workload, or its address if no policy selects it.
pub(super) fn edge_end(end: &End, workloads: &Workloads) -> EdgeEnd {
    let workload = match end {
        End::Pod { name, host_network: false, .. } => workloads.of_pod(name),
        _ => None,
    };
    workload.map_or(EdgeEnd::Address(end.address()), EdgeEnd::Workload)
}
