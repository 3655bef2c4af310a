//! What the flows prove: who was in contact with whom in terms of the state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_control::object::Transport;

use super::workload::Workloads;
use crate::fabric::End;
use crate::flows::find::{Connection, Resolved};
use crate::flows::verdict::{Fate, Judge};
use crate::flows::{ObservedFlow, Tally};
use crate::translate::Leg;

/// Who, whom, over what.
pub(super) type ContactKey = (IpAddr, IpAddr, Transport, u16);

/// A connection that was seen, or one that a seen connection to a Service may have become.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    pub(super) from: End,
    pub(super) to: End,
    /// Whether only the sender's own vswitch judges it: it is rewritten behind that.
    pub(super) is_departure: bool,
}

/// One end of an edge: a workload, or an address that no policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EdgeEnd {
    Workload(usize),
    Address(IpAddr),
}

/// See the module.
pub(super) struct Evidence {
    pub(super) contacts: BTreeMap<ContactKey, Contact>,
    /// Between workloads, with what was seen of each.
    pub(super) edges: BTreeMap<(EdgeEnd, EdgeEnd, Transport, u16), Tally>,
    /// The flows behind them.
    pub(super) flows: Vec<ObservedFlow>,
    /// Flows of which it cannot be told what they are: why, and how many sessions.
    pub(super) unknown: BTreeMap<String, u64>,
    /// Sessions that were logged as dropped.
    pub(super) dropped: u64,
    /// Sessions that nobody answered and that the state denies: attempts, of which no policy is to be made.
    pub(super) refused: u64,
    /// Workloads that were seen as a client, and as a server.
    pub(super) clients: BTreeSet<usize>,
    pub(super) servers: BTreeSet<usize>,
}

impl Evidence {
    pub(super) fn of(flows: &[ObservedFlow], judge: &mut Judge<'_>, workloads: &Workloads) -> anyhow::Result<Self> {
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
            if is_unproven && judge.judge(&flow.conversation)?.fate == Fate::Deny {
                evidence.refused += flow.tally.sessions;
                continue;
            }
            match judge.resolve(&flow.conversation)? {
                Resolved::Unknown(why) => {
                    let why = format!("{} -> {}: {why}", flow.conversation.from, flow.conversation.to);
                    *evidence.unknown.entry(why).or_default() += flow.tally.sessions;
                }
                Resolved::Direct(Connection { from, to, port }) => {
                    evidence.take(&[Leg::whole(&from, &to, port)], flow, workloads);
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
                        evidence.take(&legs, flow, workloads);
                    }
                },
            }
        }
        Ok(evidence)
    }

    fn take(&mut self, legs: &[Leg], flow: &ObservedFlow, workloads: &Workloads) {
        self.flows.push(flow.clone());
        for Leg { from, to, port, is_departure } in legs {
            let key = (from.address(), to.address(), port.transport, port.port);
            let contact = || Contact { from: from.clone(), to: to.clone(), is_departure: *is_departure };
            let known = self.contacts.entry(key).or_insert_with(contact);
            known.is_departure &= is_departure;
            let ends = (edge_end(from, workloads), edge_end(to, workloads));
            if let EdgeEnd::Workload(at) = ends.0 {
                self.clients.insert(at);
            }
            if let (EdgeEnd::Workload(at), false) = (ends.1, *is_departure) {
                self.servers.insert(at);
            }
            match self.edges.entry((ends.0, ends.1, port.transport, port.port)) {
                std::collections::btree_map::Entry::Vacant(vacant) => drop(vacant.insert(flow.tally.clone())),
                std::collections::btree_map::Entry::Occupied(mut occupied) => occupied.get_mut().add(&flow.tally),
            }
        }
    }

    /// Sessions that were learned from.
    pub(super) fn sessions(&self) -> u64 {
        self.flows.iter().map(|flow| flow.tally.sessions).sum()
    }
}

/// Whether policies select it, and as which workload.
pub(super) fn edge_end(end: &End, workloads: &Workloads) -> EdgeEnd {
    let workload = match end {
        End::Pod { name, host_network: false, .. } => workloads.of_pod(name),
        _ => None,
    };
    workload.map_or(EdgeEnd::Address(end.address()), EdgeEnd::Workload)
}
