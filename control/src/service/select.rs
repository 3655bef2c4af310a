//! Which endpoints of a service port make its two lists. Pure, and asked twice: for the lists, and for why an endpoint is in none.

use std::net::IpAddr;
use std::sync::Arc;

use crate::object::{Endpoint, EndpointSlice, Hints};

/// One of the two lists of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// The backends of all nodes.
    Cluster,
    /// Those of this node.
    Local,
}

/// Where the node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) node: Arc<str>,
    /// The name of its zone; none where it has no label, or an empty one.
    pub(super) zone: Option<Arc<str>>,
}

/// An endpoint with the number of one of its ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) endpoint: &'a Endpoint,
}

impl Candidate<'_> {
    /// How usable it is, more is less: of slices that disagree the better one counts.
    fn reluctance(&self) -> u8 {
        match () {
            () if self.endpoint.ready => 0,
            () if self.endpoint.is_draining() => 1,
            () if self.endpoint.serving => 2,
            () => 3,
        }
    }

    pub(super) fn is_on(&self, node: &str) -> bool {
        self.endpoint.node.as_deref() == Some(node)
    }
}

/// The endpoints that slices have for a service port of a family, sorted by address and port, each once.
pub(super) fn candidates<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    (name, transport): (&str, crate::object::Transport),
    ipv4: bool,
) -> Vec<Candidate<'a>> {
    let mut all = Vec::new();
    for slice in slices.filter(|slice| !slice.headless) {
        let ports = slice.ports.iter().filter(|port| *port.name == *name && port.transport == transport);
        for port in ports {
            let endpoints = slice.endpoints.iter().filter(|endpoint| endpoint.address.is_ipv4() == ipv4);
            all.extend(endpoints.map(|endpoint| Candidate { address: endpoint.address, port: port.port, endpoint }));
        }
    }
    // The sort is stable: of two that are equally usable the one of the slice that comes first counts.
    all.sort_by_key(|candidate| (candidate.address, candidate.port, candidate.reluctance()));
    all.dedup_by_key(|candidate| (candidate.address, candidate.port));
    all
}

/// How the lists are made of the candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    location: &'a Location,
    cluster: Cluster,
    /// Whether there is a ready one on this node.
    local_ready: bool,
}

/// What the cluster list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cluster {
    /// Nothing is ready: what still serves until its end.
    Draining,
    /// All that is ready.
    Ready,
    /// What is ready and hinted for this node.
    ForNode,
    /// What is ready and hinted for this node's zone.
    ForZone,
}

/// Why an endpoint is not in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exclusion {
    NotReady,
    /// It ends, and others are ready.
    Terminating,
    /// It ends, and does not answer any more.
    NotServing,
    OtherNode,
    HintedElsewhere(List),
}

impl<'a> Selection<'a> {
    pub(super) fn of(candidates: &[Candidate<'_>], location: &'a Location) -> Self {
        let ready = || candidates.iter().filter(|candidate| candidate.endpoint.ready);
        let local_ready = ready().any(|candidate| candidate.is_on(&location.node));
        let hinted = |for_this: &dyn Fn(&Hints) -> Option<bool>| {
            // All have such hints, and one of them is for here.
            let mut here = false;
            let all = ready().all(|candidate| {
                let hint = candidate.endpoint.hints.as_deref().and_then(for_this);
                here |= hint == Some(true);
                hint.is_some()
            });
            all && here
        };
        let cluster = if ready().next().is_none() {
            Cluster::Draining
        } else if hinted(&|hints| is_for(&hints.nodes, &location.node)) {
            Cluster::ForNode
        } else if location.zone.as_ref().is_some_and(|zone| hinted(&|hints| is_for(&hints.zones, zone))) {
            Cluster::ForZone
        } else {
            Cluster::Ready
        };
        Self { location, cluster, local_ready }
    }

    /// Whether the candidate is in the list, or why not.
    pub(super) fn check(&self, list: List, candidate: &Candidate<'_>) -> Result<(), Exclusion> {
        let endpoint = candidate.endpoint;
        let is_draining = endpoint.is_draining();
        let wants_draining = match list {
            List::Cluster => self.cluster == Cluster::Draining,
            List::Local => !self.local_ready,
        };
        if list == List::Local && !candidate.is_on(&self.location.node) {
            return Err(Exclusion::OtherNode);
        }
        match (endpoint.ready, is_draining) {
            (true, _) => {}
            (false, true) if wants_draining => return Ok(()),
            (false, true) => return Err(Exclusion::Terminating),
            (false, false) if endpoint.terminating => return Err(Exclusion::NotServing),
            (false, false) => return Err(Exclusion::NotReady),
        }
        let hints = endpoint.hints.as_deref();
        let is_here = match (list, self.cluster, hints) {
            (List::Cluster, Cluster::ForNode, Some(hints)) => is_for(&hints.nodes, &self.location.node),
            (List::Cluster, Cluster::ForZone, Some(hints)) => {
                is_for(&hints.zones, self.location.zone.as_deref().unwrap_or_default())
            }
            _ => Some(true),
        };
        if is_here == Some(true) { Ok(()) } else { Err(Exclusion::HintedElsewhere(list)) }
    }

    /// Whether the cluster list is narrowed to the endpoints that are hinted for this node itself.
    pub(super) fn is_by_node(&self) -> bool {
        self.cluster == Cluster::ForNode
    }
}

/// Whether hints name this one; none where there are none.
fn is_for(hints: &[Arc<str>], this: &str) -> Option<bool> {
    (!hints.is_empty()).then(|| hints.iter().any(|hint| **hint == *this))
}
