//! Resolves the ends of claims to addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, ServiceSet};
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Labels, Object, Pod};
use bulkhead_control::reachability::Reachability;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::service;
use crate::args::{EndName, ServiceTarget};
use crate::named::{self, Named};

/// One end of a claim.
#[derive(Debug)]
pub(super) enum Who {
    /// Every address, inside and outside the cluster.
    Anyone,
    /// Every address that belongs to no pod and no node.
    Outside,
    /// Every address in the block.
    Block(IpNet),
    /// A node, or pods that one name selects. `NAMESPACE/NAME` selects the pod and also the pods of the workload with that name, so that
    /// `never` covers both.
    Named(EndName),
    /// Pods by their properties.
    Pods(PodsOf),
    /// The endpoints of a Service. Only the end `to` of a claim can be a Service.
    Service(ServiceTarget),
    /// The union of these ends.
    AnyOf(Vec<Self>),
}

/// The properties that a claim's end demands of pods. A pod must have all of them.
#[derive(Debug, Default)]
pub(super) struct PodsOf {
    /// The namespaces, of which the pod must be in one. Empty means any.
    pub(super) namespaces: Vec<Arc<str>>,
    pub(super) namespace_labels: Labels,
    pub(super) labels: Labels,
    pub(super) workload: Option<Arc<str>>,
    /// Kind of the workload, such as `Deployment`. `None` matches any kind.
    pub(super) kind: Option<Arc<str>>,
    pub(super) pod: Option<Arc<str>>,
}

/// The addresses of an end.
#[derive(Debug, Default)]
pub(super) struct Selected {
    pub(super) addresses: AddressSet,
    /// Selected pods without a usable address.
    pub(super) nowhere: Vec<String>,
    /// Selected pods on the host network, to which no policy applies.
    pub(super) on_host: Vec<String>,
    /// A sentence that suggests an existing name, such as `did you mean shop/web?`. `None` if every name of the end exists in the state, or
    /// if nothing is similar to one that does not.
    pub(super) similar: Option<String>,
}

impl Who {
    /// Returns the addresses in a state to which a claim's connections go, if this end is the claim's `to`. Each set of addresses has the
    /// destination ports of the connections there. `ports` are the claim's: a Service's own ports if the end is one, else destination
    /// ports. `services` are the state's Services and `EndpointSlices`. An unknown Service gives a set without addresses.
    pub(super) fn targets(
        &self,
        cache: &Cache,
        reachability: &Reachability,
        services: &[Object],
        ports: &ServiceSet,
    ) -> Vec<(ServiceSet, Selected)> {
        match self {
            Self::Service(target) => match service::endpoints(target, ports, services) {
                Ok(found) => found.into_iter().map(|(ports, addresses)| (ports, of(addresses))).collect(),
                Err(similar) => vec![(ports.clone(), Selected { similar: Some(similar), ..Selected::default() })],
            },
            Self::AnyOf(all) if self.names_service() => {
                all.iter().flat_map(|one| one.targets(cache, reachability, services, ports)).collect()
            }
            _ => vec![(ports.clone(), self.select(cache, reachability))],
        }
    }

    /// Whether a Service is among the ends.
    pub(super) fn names_service(&self) -> bool {
        match self {
            Self::Service(_) => true,
            Self::AnyOf(all) => all.iter().any(Self::names_service),
            _ => false,
        }
    }

    /// Returns the addresses of the end in a state. A Service, which is a target only, has none here: see [`targets`](Self::targets).
    pub(super) fn select(&self, cache: &Cache, reachability: &Reachability) -> Selected {
        match self {
            Self::Anyone => of(everything()),
            Self::Outside => of(reachability.outside().intersect(&everything())),
            Self::Block(block) => {
                of(AddressSet::of_ranges([(block.network(), block.broadcast())]).intersect(&everything()))
            }
            Self::Named(name) => {
                // A pod or workload of a namespace called `node` is written like a node.
                let in_node = match name {
                    EndName::Node(node) => Some(EndName::Pod(EndName::of_namespace_node(node))),
                    _ => None,
                };
                let by_name = |pod: &Pod| named::means(in_node.as_ref().unwrap_or(name), pod);
                match named::find(cache, name) {
                    Ok(Named::Node(addresses)) => {
                        of(AddressSet::of_ranges(addresses.into_iter().map(|address| (address, address))))
                    }
                    Ok(_) => select_pods(cache, reachability, by_name),
                    Err(unknown) => Selected { similar: unknown.similar, ..select_pods(cache, reachability, by_name) },
                }
            }
            Self::Pods(pods) => select_pods(cache, reachability, |pod| pods.means(cache, pod)),
            Self::Service(_) => Selected::default(),
            Self::AnyOf(all) => all.iter().fold(Selected::default(), |mut all, one| {
                let one = one.select(cache, reachability);
                all.addresses = all.addresses.union(&one.addresses);
                all.nowhere.extend(one.nowhere);
                all.on_host.extend(one.on_host);
                all.similar = all.similar.or(one.similar);
                all
            }),
        }
    }
}

/// Returns a selection of these addresses, in which no pod lacks an address or is on the host network.
fn of(addresses: AddressSet) -> Selected {
    Selected { addresses, ..Selected::default() }
}

/// Addresses that no forwarded packet can have: every vswitch drops them regardless of policy (RFC 1812 §5.3.7, RFC 4291 §2.5), so claims
/// do not cover them.
const NEVER_TRAVELS: [IpNet; 8] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6(Ipv6Addr::UNSPECIFIED, 128),
    v6(Ipv6Addr::LOCALHOST, 128),
    v6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    v6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(address: Ipv6Addr, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address, length))
}

/// Returns all addresses of both families that packets can have.
pub(super) fn everything() -> AddressSet {
    let v4 = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::BROADCAST));
    let v6 = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)));
    let never = NEVER_TRAVELS.iter().map(|block| (block.network(), block.broadcast()));
    AddressSet::of_ranges([v4, v6]).subtract(&AddressSet::of_ranges(never))
}

fn of_workload(pod: &Pod, name: &str, kind: Option<&str>) -> bool {
    let workload = pod.workload();
    *workload.name == *name && kind.is_none_or(|kind| workload.kind.eq_ignore_ascii_case(kind))
}

impl PodsOf {
    fn means(&self, cache: &Cache, pod: &Pod) -> bool {
        let has = |all: &Labels, wanted: &Labels| wanted.iter().all(|(key, value)| all.get(key) == Some(value));
        let namespace = &pod.name.namespace;
        let in_namespace = || {
            let known = cache.namespaces().get(namespace);
            self.namespace_labels.is_empty() || known.is_some_and(|known| has(&known.labels, &self.namespace_labels))
        };
        (self.namespaces.is_empty() || self.namespaces.contains(namespace))
            && has(&pod.labels, &self.labels)
            && self.pod.as_ref().is_none_or(|name| pod.name.name == *name)
            && self.workload.as_ref().is_none_or(|name| of_workload(pod, name, self.kind.as_deref()))
            && in_namespace()
    }
}

fn select_pods(cache: &Cache, reachability: &Reachability, is_meant: impl Fn(&Pod) -> bool) -> Selected {
    let mut selected = Selected::default();
    let mut addresses = Vec::new();
    for (_, pod) in cache.pods().filter(|(_, pod)| !pod.finished && is_meant(pod)) {
        let members = reachability.members_of(&pod.name);
        addresses.extend(members.iter().map(|member| (member.address, member.address)));
        if members.is_empty() {
            selected.nowhere.push(pod.name.to_string());
        } else if pod.host_network {
            selected.on_host.push(pod.name.to_string());
        }
    }
    selected.nowhere.sort_unstable();
    selected.on_host.sort_unstable();
    selected.addresses = AddressSet::of_ranges(addresses);
    selected
}
