//! Finds the pod or node behind an address.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_answers::named::KnownEnd;
use bulkhead_control::object::{Labels, Workload};
use bulkhead_dataplane::{PortKind, Snapshot};

use super::super::end_facts::EndFacts;
use super::super::observer::Observer;
use bulkhead_observe::hubble::flow::{self, Endpoint};

/// How long the state's answer about an address is cached. Soon after, another pod may have the address.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Maximum number of cached addresses: a large cluster's pods. Beyond that, the cache is cleared.
const MOST: usize = 1 << 15;

/// How long to wait for the policy thread. While it compiles, ends have no labels.
const PATIENCE: Duration = Duration::from_millis(50);

/// Identities that Cilium reserves, and its range for pods. Tools expect them.
mod reserved {
    pub(super) const HOST: u32 = 1;
    pub(super) const WORLD: u32 = 2;
    pub(super) const REMOTE_NODE: u32 = 6;
    /// The smallest identity number of a pod.
    pub(super) const FIRST: u32 = 256;
    /// The largest identity number of a pod.
    pub(super) const LAST: u32 = (1 << 24) - 1;
}

/// One end of a flow: a pod, a node, or an address outside the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    pub(super) namespace: Option<Arc<str>>,
    pub(super) pod: Option<Arc<str>>,
    pub(super) labels: Option<Labels>,
    workload: Option<Arc<Workload>>,
    /// The name of the node. `None` if the end is not a node of the state.
    node: Option<Arc<str>>,
    /// The end's address. `None` if the packet has none.
    address: Option<IpAddr>,
    reserved: u32,
}

impl End {
    /// Returns the pod's namespace and name. `None` if the end is not a pod.
    pub(super) fn name(&self) -> Option<(&str, &str)> {
        self.namespace.as_deref().zip(self.pod.as_deref())
    }

    /// Returns what a selector looks at.
    pub(super) fn known(&self) -> KnownEnd<'_> {
        KnownEnd {
            address: self.address,
            node: self.node.as_deref(),
            name: self.name(),
            labels: self.labels.as_ref(),
            workload: self.workload.as_deref(),
        }
    }

    /// Returns a reserved identity, or for a pod a hash (FNV-1a) of namespace and labels, equal on all nodes. Hashes may collide.
    fn identity(&self) -> u32 {
        let Some(namespace) = &self.namespace else { return self.reserved };
        let labels = self.labels.iter().flatten().flat_map(|(key, value)| [&**key, &**value]);
        let words = std::iter::once(&**namespace).chain(labels);
        let hash = words
            .flat_map(|word| word.bytes().chain([0]))
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let range = u64::from(reserved::LAST - reserved::FIRST + 1);
        reserved::FIRST + u32::try_from(hash % range).expect("less than 2^24")
    }

    /// Converts the end to an `Endpoint` of Hubble's API.
    pub(super) fn message(&self) -> Endpoint {
        let mut end = Endpoint { identity: self.identity(), ..Endpoint::default() };
        if let Some((namespace, pod)) = self.name() {
            (end.namespace, end.pod_name) = (namespace.to_owned(), pod.to_owned());
            end.labels.extend(self.labels.iter().flatten().map(|(key, value)| format!("k8s:{key}={value}")));
            end.labels.push(format!("k8s:io.kubernetes.pod.namespace={namespace}"));
            end.labels.sort_unstable();
            let workload =
                |made: &Arc<Workload>| flow::Workload { name: made.name.to_string(), kind: made.kind.to_string() };
            end.workloads.extend(self.workload.as_ref().map(workload));
            return end;
        }
        let name = match self.reserved {
            reserved::HOST => "reserved:host",
            reserved::REMOTE_NODE => "reserved:remote-node",
            _ => "reserved:world",
        };
        end.labels.push(name.to_owned());
        end
    }
}

/// A cache of the ends by address.
#[derive(Debug, Default)]
pub(super) struct Ends {
    known: HashMap<IpAddr, (Instant, End)>,
}

impl Ends {
    /// Looks up all addresses that are not cached, with one query to the policy thread.
    pub(super) fn learn(
        &mut self,
        addresses: impl Iterator<Item = IpAddr>,
        observer: &Observer,
        snapshot: &Snapshot,
        now: Instant,
    ) {
        let is_known =
            |address: &IpAddr| self.known.get(address).is_some_and(|(since, _)| now.duration_since(*since) < GOOD_FOR);
        let unknown: BTreeSet<IpAddr> = addresses.filter(|address| !is_known(address)).collect();
        if unknown.is_empty() {
            return;
        }
        if self.known.len() + unknown.len() > MOST {
            self.known.clear();
        }
        let unknown: Vec<IpAddr> = unknown.into_iter().collect();
        // Without an answer, ends have the names of their ports.
        let facts = observer.ends_of(unknown.clone(), PATIENCE).unwrap_or_default();
        for (at, address) in unknown.into_iter().enumerate() {
            let facts = facts.get(at).cloned().unwrap_or_default();
            self.known.insert(address, (now, end(address, facts, snapshot)));
        }
    }

    pub(super) fn of(&self, address: IpAddr) -> End {
        let known = self.known.get(&address).map(|(_, end)| end.clone());
        known.unwrap_or_else(|| End { address: Some(address), ..End::default() })
    }
}

fn end(address: IpAddr, facts: EndFacts, snapshot: &Snapshot) -> End {
    let at_address = End { address: Some(address), ..End::default() };
    let port = snapshot.owner(address).and_then(|id| snapshot.port(id));
    if let Some(port) = port.filter(|port| port.kind == PortKind::Pod)
        && let Some((namespace, pod)) = port.name.split_once('/')
    {
        // This node's pods are known without an answer. The state may not have their labels yet.
        let known = facts.pod.filter(|known| *known.name.namespace == *namespace && *known.name.name == *pod);
        let (labels, workload) =
            known.map(|known| (Some(known.labels.clone()), known.owner.clone())).unwrap_or_default();
        let (namespace, pod) = (Some(namespace.into()), Some(pod.into()));
        return End { namespace, pod, labels, workload, ..at_address };
    }
    if let Some(pod) = facts.pod {
        let (namespace, name) = (pod.name.namespace.clone(), pod.name.name.clone());
        let (labels, workload) = (Some(pod.labels.clone()), pod.owner.clone());
        return End { namespace: Some(namespace), pod: Some(name), labels, workload, ..at_address };
    }
    let is_own = port.is_some_and(|port| port.kind == PortKind::Host);
    let reserved = match (is_own, facts.node.is_some()) {
        (true, _) => reserved::HOST,
        (false, true) => reserved::REMOTE_NODE,
        (false, false) => reserved::WORLD,
    };
    End { reserved, node: facts.node, ..at_address }
}
