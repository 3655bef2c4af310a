//! Adds planned pods, from workloads' templates and from manifests that were never applied.
//!
//! ```text
//!  Deployment shop/web, replicas: 3  -->  shop/web, shop/web#2    250.a.b.c, 250.d.e.f    (the state has no pod of it)
//!  Pod shop/probe without a status   -->  shop/probe              250.g.h.i
//! ```
//! One pod represents all pods of a workload, because policies treat them alike. A workload that runs several pods at a time gets a second
//! one, so that traffic between its pods can be judged. A workload with 0 replicas also gets a pod, since it may be scaled up. A workload
//! with a pod in the state gets none.
//!
//! A planned pod has the workload's name. If a pod or a workload of another kind also has that name, the kind is put before it
//! (`shop/job/web`). Names of real pods contain neither `/` nor `#`.
//!
//! **Addresses.** The future addresses of the pods are unknown. Planned pods get addresses that no real pod can have. They depend only on
//! the pod's name, so two states give a workload the same addresses; addresses in use are skipped. Families are those of the state's
//! addresses. A block of all addresses covers planned pods, as it will cover the real ones. For any other block inside the usual pod ranges
//! the answer is unknown, so it counts as covering no planned pod, with a warning. If the caller names the pods' blocks, planned pods get
//! addresses there and no warning is needed.
//!
//! **Invariant.** Planned pods exist only with [`Templates::Read`](super::Templates::Read). Only commands that answer questions set it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::cluster_policy::parts;
use super::error::{SourceError, SourceErrors};
use super::template::{Template, precedence};
use crate::foreign;
use crate::object::{IpBlock, Object, ObjectName, Peer, Pod, PodName, Position, Workload};

/// The default block of planned pods: the end of 240.0.0.0/4, which is reserved for future use (RFC 1112 §4). Clusters use at most its
/// start. Large enough that a thousand names rarely collide.
const RESERVED_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(250, 0, 0, 0), 8);

/// The default IPv6 block: the end of 3fff::/20, which is for documentation (RFC 9637). 2001:db8::/32 is too, but many examples use it for
/// outside addresses.
const RESERVED_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x3fff, 0xfff, 0, 0, 0, 0, 0, 0), 104);

/// Ranges in which clusters have their pods: private and shared addresses (RFC 1918, RFC 6598, RFC 4193), benchmarking addresses (RFC 2544)
/// and reserved ones, which large clusters use. A block outside covers no pod.
const POD_SPACE: [IpNet; 7] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)),
];

/// A template and the position of its workload.
pub(super) struct Placed {
    pub(super) template: Template,
    pub(super) position: Position,
}

/// Adds the templates' pods, marks pods of unapplied manifests as planned, and gives addresses to all planned pods.
pub(super) fn add(objects: &mut Vec<Object>, templates: Vec<Placed>, blocks: &[IpNet], warnings: &mut SourceErrors) {
    let made = made(objects, templates);
    let is_manifest = |pod: &Pod| {
        let has_begun = pod.node.is_some() || pod.finished || !pod.lifetime.running || pod.lifetime.started.is_some();
        pod.addresses.is_empty() && !pod.host_network && !has_begun
    };
    objects.iter_mut().filter_map(pod_mut).filter(|pod| is_manifest(pod)).for_each(|pod| pod.planned = true);
    objects.extend(made.into_iter().map(Object::from));
    // A pod on the host network has its node's addresses, but a planned one has no node.
    let is_addressed = |pod: &Pod| pod.planned && !pod.host_network;
    if !objects.iter().filter_map(pod_of).any(is_addressed) {
        return;
    }
    let resolved = resolved(objects);
    let policies = resolved.as_deref().unwrap_or(objects);
    let mut pools = Pools::new(objects, policies, blocks);
    if blocks.is_empty() {
        warn_of_blocks(policies, pools.is_v6, warnings);
    }
    for pod in objects.iter_mut().filter_map(pod_mut).filter(|pod| is_addressed(pod)) {
        pod.addresses = pools.of(&pod.name);
    }
}

fn pod_of(object: &Object) -> Option<&Pod> {
    match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    }
}

fn pod_mut(object: &mut Object) -> Option<&mut Pod> {
    match object {
        Object::Pod(pod) => Some(Arc::make_mut(pod)),
        _ => None,
    }
}

/// Returns the planned pods of workloads without pods in the state, ordered by kind and name.
fn made(objects: &[Object], mut templates: Vec<Placed>) -> Vec<Pod> {
    let workload = |template: &Template| template.pod.owner.clone().map(|owner| (namespace_of(template), owner));
    let running: HashSet<(Arc<str>, Arc<Workload>)> = objects
        .iter()
        .filter_map(pod_of)
        .filter(|pod| !pod.finished)
        .filter_map(|pod| Some((pod.name.namespace.clone(), pod.owner.clone()?)))
        .collect();
    let known: HashSet<(Arc<str>, Arc<Workload>)> =
        templates.iter().filter_map(|placed| workload(&placed.template)).collect();
    templates.retain(|Placed { template, .. }| {
        let managed = template.manager.clone().map(|manager| (namespace_of(template), Arc::new(manager)));
        // A workload made by another one in the state adds no pods, nor does an idle one, such as a Deployment's old `ReplicaSet`.
        let is_part = managed.as_ref().is_some_and(|manager| known.contains(manager) || template.is_idle);
        let has_pod = workload(template).into_iter().chain(managed).any(|workload| running.contains(&workload));
        !is_part && !has_pod && !template.is_over
    });
    let order = |pod: &Pod| (precedence(pod.owner.as_ref().map_or("", |owner| &owner.kind)), pod.name.clone());
    templates.sort_by_cached_key(|placed| order(&placed.template.pod));
    let mut names: BTreeSet<PodName> = objects.iter().filter_map(pod_of).map(|pod| pod.name.clone()).collect();
    let mut pods = Vec::with_capacity(templates.len());
    for Placed { template, .. } in templates {
        let name = free_name(&template.pod, &names);
        for number in 1..=1 + u64::from(template.is_many) {
            let own = if number == 1 { name.clone() } else { numbered(&name, number) };
            let mut pod = Pod { name: own.clone(), ..template.pod.clone() };
            if let Some(first) = template.first_ordinal {
                add_ordinal(&mut pod, first.saturating_add(number - 1));
            }
            names.insert(own);
            pods.push(pod);
        }
    }
    pods
}

fn namespace_of(template: &Template) -> Arc<str> {
    template.pod.name.namespace.clone()
}

/// Returns the workload's name, with its kind before it if another pod has that name.
fn free_name(pod: &Pod, taken: &BTreeSet<PodName>) -> PodName {
    let kind = pod.owner.as_ref().map_or("", |owner| &owner.kind).to_ascii_lowercase();
    let PodName { namespace, name } = &pod.name;
    match taken.contains(&pod.name) {
        true => ObjectName::new(namespace.clone(), format!("{kind}/{name}")),
        false => pod.name.clone(),
    }
}

fn numbered(name: &PodName, number: u64) -> PodName {
    ObjectName::new(name.namespace.clone(), format!("{}#{number}", name.name))
}

/// Adds the labels that the `StatefulSet` controller sets on each pod, which policies may select by.
/// Source: Kubernetes "StatefulSets", "Pod name label" and "Pod index label".
fn add_ordinal(pod: &mut Pod, ordinal: u64) {
    let workload = pod.workload();
    pod.labels.insert("statefulset.kubernetes.io/pod-name".into(), format!("{}-{ordinal}", workload.name).into());
    pod.labels.insert("apps.kubernetes.io/pod-index".into(), ordinal.to_string().into());
}

/// Assigns addresses to planned pods.
struct Pools {
    blocks: Vec<IpNet>,
    is_v6: bool,
    taken: HashSet<IpAddr>,
}

impl Pools {
    fn new(objects: &[Object], policies: &[Object], blocks: &[IpNet]) -> Self {
        let mut taken = HashSet::new();
        let mut families = [false; 2];
        for object in objects {
            match object {
                Object::Pod(pod) => taken.extend(pod.addresses.iter().copied()),
                Object::Node(node) => {
                    taken.extend(node.addresses.iter().copied());
                    node.pod_cidrs.iter().for_each(|block| families[usize::from(block.addr().is_ipv6())] = true);
                }
                _ => {}
            }
        }
        taken.iter().for_each(|address| families[usize::from(address.is_ipv6())] = true);
        if families == [false; 2] {
            // The state has no addresses: assume IPv4, and IPv6 if a rule names an IPv6 block.
            families = [true, each_block(policies).any(|(_, _, block)| block.cidr.addr().is_ipv6())];
        }
        let blocks = match blocks {
            [] => {
                let reserved = [IpNet::V4(RESERVED_V4), IpNet::V6(RESERVED_V6)];
                reserved.into_iter().zip(families).filter_map(|(block, has)| has.then_some(block)).collect()
            }
            given => given.to_vec(),
        };
        let is_v6 = blocks.iter().any(|block| block.addr().is_ipv6());
        Self { blocks, is_v6, taken }
    }

    /// Returns the addresses for the pod of this name, at most one per family. A family whose blocks are full has no address.
    fn of(&mut self, name: &PodName) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for &block in &self.blocks {
            if addresses.iter().any(|address| address.is_ipv4() == block.addr().is_ipv4()) {
                continue;
            }
            if let Some(address) = free_address(block, name, &self.taken) {
                self.taken.insert(address);
                addresses.push(address);
            }
        }
        addresses
    }
}

/// Number of address bits that the name decides. With 24 bits, a block holds every pod of a cluster.
const NAME_BITS: u32 = 24;

/// Returns a free address of the block, or `None` if all are taken. Never the first and last address of a block.
fn free_address(block: IpNet, name: &PodName, taken: &HashSet<IpAddr>) -> Option<IpAddr> {
    /// The offset basis and prime of 32-bit FNV-1a. Any hash works that is the same on all machines.
    const BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let host_bits = u32::from(block.max_prefix_len() - block.prefix_len()).min(NAME_BITS);
    let count = (1u32 << host_bits).saturating_sub(2);
    let text = name.to_string();
    let hash = text.bytes().fold(BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    let at = |offset: u32| match block.network() {
        IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + offset)),
        IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() + u128::from(offset))),
    };
    let start = hash.checked_rem(count)?;
    (0..count).map(|step| at(1 + (start + step) % count)).find(|address| !taken.contains(address))
}

/// Returns the ranked policies to which policies of other products resolve, and all other policies. `None` if no product has objects here.
fn resolved(objects: &[Object]) -> Option<Vec<Object>> {
    objects.iter().any(|object| matches!(object, Object::Foreign(_))).then(|| {
        // Endpoints of Services are addresses of today's pods, not of planned ones.
        let is_needed = |object: &&Object| {
            !matches!(object, Object::Pod(_) | Object::Node(_) | Object::Service(_) | Object::EndpointSlice(_))
        };
        foreign::resolved(objects.iter().filter(is_needed).cloned())
    })
}

/// Returns every block in a policy's rules, with the policy's name and position.
fn each_block(objects: &[Object]) -> impl Iterator<Item = (String, Option<&Position>, &IpBlock)> {
    objects.iter().flat_map(|object| {
        let (name, position, peers): (String, _, Vec<&Peer>) = match object {
            Object::Policy(policy) => {
                let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                let peers = rules.filter_map(|rule| rule.peers.as_ref()).flatten().collect();
                (format!("NetworkPolicy {}", policy.name), policy.position.as_ref(), peers)
            }
            Object::ClusterPolicy(policy) => {
                let peers = policy
                    .ingress
                    .iter()
                    .chain(&policy.egress)
                    .filter_map(|rule| rule.traffic.peers.as_ref())
                    .flatten()
                    .collect();
                (policy.rank.name.to_string(), policy.position.as_ref(), peers)
            }
            _ => (String::new(), None, Vec::new()),
        };
        peers.into_iter().flat_map(parts).filter_map(move |peer| match peer {
            Peer::Block(block) => Some((name.clone(), position, block)),
            Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
        })
    })
}

/// Warns, once per policy, about a block that may or may not cover the future pods.
fn warn_of_blocks(objects: &[Object], is_v6: bool, warnings: &mut SourceErrors) {
    let is_open = |block: &IpNet| {
        let overlaps = |space: &IpNet| space.contains(block) || block.contains(space);
        block.prefix_len() > 0 && (is_v6 || block.addr().is_ipv4()) && POD_SPACE.iter().any(overlaps)
    };
    let mut told: BTreeMap<String, SourceError> = BTreeMap::new();
    for (name, position, block) in each_block(objects) {
        let open = std::iter::once(&block.cidr).chain(&block.except).find(|one| is_open(one));
        let (Some(position), Some(open)) = (position, open) else { continue };
        told.entry(name.clone()).or_insert_with(|| SourceError {
            file: position.file.clone(),
            document: position.document,
            line: Some(position.line),
            object: Some(name),
            path: String::new(),
            problem: format!("block {open} may or may not cover the addresses of planned pods; assumed to cover none"),
            help: "name the block of the pods' addresses, for example --pod-cidr 10.244.0.0/16".to_owned(),
        });
    }
    for warning in told.into_values() {
        warnings.push(warning);
    }
}
