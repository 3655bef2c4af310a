//! Explains to users why endpoints are unused. Evaluates the objects again with the rules that built the lists.

use std::net::SocketAddr;
use std::sync::Arc;

use super::select::{Candidate, Exclusion, Selection, candidates};
use super::{List, PortName, Reached, Resolver, ServicePortId};
use crate::object::{EndpointSlice, TrafficPolicy};

/// An endpoint or slice that gets no new connections of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// The endpoint's address and port, or the slice's name.
    pub what: String,
    /// The reason, as a phrase for users.
    pub why: String,
}

impl Resolver {
    /// Returns the endpoints that connections to `reached` do not use, sorted by address, then slices without endpoints for this port.
    /// Empty for a host port.
    pub fn unused(&self, reached: Reached) -> Vec<Unused> {
        let Some(port) = self.port(reached.port) else { return Vec::new() };
        let service = port.name.owner.service();
        let Some(known) = service.and_then(|service| self.services.get(service)) else { return Vec::new() };
        let name = &port.name;
        let slices = || known.slices.values().map(|slice| &**slice);
        let candidates = candidates(slices(), (&name.port, name.transport), name.ipv4);
        let selection = Selection::of(&candidates, self.location());
        let excluded = candidates.iter().filter_map(|candidate| {
            let why = selection.check(reached.list, candidate).err()?;
            let what = SocketAddr::new(candidate.address, candidate.port).to_string();
            Some(Unused { what, why: self.told(reached, candidate, why, &selection) })
        });
        excluded.chain(slices().filter_map(|slice| other_slice(slice, name))).collect()
    }

    fn told(&self, reached: Reached, candidate: &Candidate<'_>, why: Exclusion, selection: &Selection<'_>) -> String {
        let endpoint = candidate.endpoint;
        let list = |names: &[Arc<str>]| names.join(", ");
        match why {
            Exclusion::NotReady => "not ready".into(),
            Exclusion::Terminating => "terminating, and others are ready".into(),
            Exclusion::NotServing => "terminating, and no longer serving".into(),
            Exclusion::OtherNode => {
                let place = endpoint.node.as_ref().map_or("without a node".into(), |node| format!("on node {node}"));
                let policy = if reached.kind == super::VipKind::ClusterIp { "internal" } else { "external" };
                format!("{place}, and {policy}TrafficPolicy is {}", TrafficPolicy::Local.name())
            }
            Exclusion::HintedElsewhere(_) => {
                let hints = endpoint.hints.as_deref();
                let zone = self.location().zone.as_deref().unwrap_or_default();
                match (hints, selection.is_by_node()) {
                    (Some(hints), true) => {
                        format!("meant for node {}, and others are meant for this one", list(&hints.nodes))
                    }
                    (Some(hints), false) => {
                        format!("meant for zone {}, and this node is in {zone}", list(&hints.zones))
                    }
                    (None, _) => "meant for no zone or node".into(),
                }
            }
        }
    }

    /// Returns the endpoints of a list with their nodes' names, sorted by address. A node is `None` if the slice names none.
    pub fn places(&self, id: ServicePortId, list: List) -> Vec<(SocketAddr, Option<Arc<str>>)> {
        let Some(port) = self.port(id) else { return Vec::new() };
        let Some(service) = port.name.owner.service() else {
            let backends = port.list(list).iter().map(|&id| self.backend(id).socket());
            return backends.map(|socket| (socket, Some(self.node().clone()))).collect();
        };
        self.services.get(service).map_or(Vec::new(), |known| {
            let slices = known.slices.values().map(|slice| &**slice);
            let candidates = candidates(slices, (&port.name.port, port.name.transport), port.name.ipv4);
            let selection = Selection::of(&candidates, self.location());
            let used = candidates.iter().filter(|candidate| selection.check(list, candidate).is_ok());
            let place = |candidate: &Candidate<'_>| {
                (SocketAddr::new(candidate.address, candidate.port), candidate.endpoint.node.clone())
            };
            used.map(place).collect()
        })
    }
}

/// Explains why a slice has no endpoints for a service port. `None` if the slice's ports and family fit.
fn other_slice(slice: &EndpointSlice, name: &PortName) -> Option<Unused> {
    let port = |name: &str, transport| {
        if name.is_empty() { format!("without a name ({transport})") } else { format!("{name} ({transport})") }
    };
    let serves = slice.ports.iter().any(|port| port.name == name.port && port.transport == name.transport);
    let is_family = slice.endpoints.iter().any(|endpoint| endpoint.address.is_ipv4() == name.ipv4);
    let why = if slice.headless {
        "labelled as that of a headless Service".to_owned()
    } else if !slice.endpoints.is_empty() && !is_family {
        let (other, own) = if name.ipv4 { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
        format!("its endpoints are {other}, and the requested address is {own}")
    } else if !serves {
        let has: Vec<String> = slice.ports.iter().map(|other| port(&other.name, other.transport)).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        format!("has no port {}; it has {has}", port(&name.port, name.transport))
    } else {
        return None;
    };
    Some(Unused { what: format!("slice {}", slice.name), why })
}
