//! Selects the endpoints of a service port's two lists, and explains why an endpoint is in none. All functions are pure.

use std::net::IpAddr;
use std::sync::Arc;

use crate::object::{Endpoint, EndpointSlice, Hints};

/// Selects one of the two backend lists of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Backends on all nodes.
    Cluster,
    /// Backends on this node.
    Local,
}

/// The node's name and zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) node: Arc<str>,
    /// The zone label's value. `None` if the node has no such label or an empty one.
    pub(super) zone: Option<Arc<str>>,
}

/// An endpoint and the number of one of its ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) endpoint: &'a Endpoint,
}

impl Candidate<'_> {
    /// Ranks how unusable the endpoint is, 0 if ready. If slices disagree, the lowest value counts.
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

/// Returns the endpoints of one family that slices list for a service port, sorted by address and port, without duplicates.
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
    // The sort is stable: of two equally usable duplicates, the one from the first slice counts.
    all.sort_by_key(|candidate| (candidate.address, candidate.port, candidate.reluctance()));
    all.dedup_by_key(|candidate| (candidate.address, candidate.port));
    all
}

/// The rules by which a service port's candidates enter its lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    location: &'a Location,
    cluster: Cluster,
    /// Whether this node has a ready candidate.
    local_ready: bool,
}

/// The candidates that the cluster list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cluster {
    /// Serving candidates that terminate, because none is ready.
    Draining,
    Ready,
    /// Ready candidates with a hint for this node.
    ForNode,
    /// Ready candidates with a hint for this node's zone.
    ForZone,
}

/// The reason why an endpoint is not in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exclusion {
    NotReady,
    /// The endpoint terminates while others are ready.
    Terminating,
    /// The endpoint terminates and no longer serves.
    NotServing,
    OtherNode,
    HintedElsewhere(List),
}

impl<'a> Selection<'a> {
    pub(super) fn of(candidates: &[Candidate<'_>], location: &'a Location) -> Self {
        let ready = || candidates.iter().filter(|candidate| candidate.endpoint.ready);
        let local_ready = ready().any(|candidate| candidate.is_on(&location.node));
        let hinted = |for_this: &dyn Fn(&Hints) -> Option<bool>| {
            // Hints count only if every ready candidate has one and at least one names this node or zone.
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

    /// Checks that the candidate is in the list. The error is the reason why not.
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

    /// Whether the cluster list holds only endpoints with a hint for this node.
    pub(super) fn is_by_node(&self) -> bool {
        self.cluster == Cluster::ForNode
    }
}

/// Whether hints contain `this`. `None` if the list of hints is empty.
fn is_for(hints: &[Arc<str>], this: &str) -> Option<bool> {
    (!hints.is_empty()).then(|| hints.iter().any(|hint| **hint == *this))
}
