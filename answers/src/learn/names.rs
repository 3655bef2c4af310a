//! Finds the outside destinations that a policy can name by domain instead of by address.
//!
//! ```text
//!  sessions of a workload to an outside address at a port --each has a name that all pods of the workload have resolved?
//!     yes --> the names, in a ClusterNetworkPolicy of the tier Admin     no --> the address, in the NetworkPolicy
//! ```
//! The workload's NetworkPolicy still isolates its egress. The tier Admin decides before it, so the names open their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Order, PodName, Tier, Transport};
use bulkhead_control::origin::Direction;
use bulkhead_control::renderer::mirror::Mirror;

use super::evidence::{Contact, EdgeEnd, Evidence, Wants};
use super::policy::{LearnedPolicy, MAX_LISTED, NameRule};
use super::workload::{Workload, Workloads};
use crate::fabric::End;
use crate::flows::ResolvedNames;

/// The highest priority value. Source: ClusterNetworkPolicy v1alpha2.
const LAST_PRIORITY: u16 = 1_000;

/// The lowest priority of a learned policy, so that other policies of the tier come first and later learned ones after it.
const LEARNED_PRIORITY: u16 = 900;

/// Protocol and port.
type Service = (Transport, u16);

/// Some of the names that all pods of a workload have resolved.
type Names<'a> = BTreeSet<&'a Arc<str>>;

/// A wanted connection of a pod to the outside.
pub(super) struct Outside<'a> {
    pod: &'a PodName,
    to: IpAddr,
    service: Service,
    /// The names in the flows of the connection.
    names: &'a BTreeSet<ResolvedNames>,
}

impl<'a> Outside<'a> {
    /// Returns the connection of a contact. `None` unless it is from a pod to an address outside of the cluster.
    pub(super) fn of(contact: &'a Contact, service: Service) -> Option<Self> {
        match (&contact.from, &contact.to) {
            (End::Pod { name, .. }, &End::External(to)) => Some(Self { pod: name, to, service, names: &contact.names }),
            _ => None,
        }
    }

    /// Returns those of the names in `usual` that the connection's flows have. `None` if a flow has none of them, or if rules that name
    /// domains would not decide.
    fn names_in<'b>(&self, usual: &'b BTreeSet<Arc<str>>, mirror: &Mirror) -> Option<Names<'b>> {
        let mut names = BTreeSet::new();
        for resolved in self.names {
            let own: Vec<_> = resolved.set().iter().filter_map(|name| usual.get(name)).collect();
            if own.is_empty() {
                return None;
            }
            names.extend(own);
        }
        (!self.is_passed(mirror)).then_some(names)
    }

    /// Whether a rule of the tier Admin matches, whose action can only be Pass. The other rules of the tier, also learned ones, are skipped
    /// then.
    fn is_passed(&self, mirror: &Mirror) -> bool {
        let (transport, port) = self.service;
        let mut matching = mirror.matching(self.pod, Direction::Egress, self.to, transport.number(), port);
        matching.any(|rule| rule.tier == Tier::Admin)
    }
}

/// Returns the priority of learned policies: after all others of the tier Admin. `None` if there is none left.
pub(super) fn priority(cache: &Cache) -> Option<u16> {
    let ranks = cache.cluster_policies().values().map(|policy| &policy.rank);
    let last = ranks.filter(|rank| rank.tier == Tier::Admin).map(|rank| rank.order).max();
    (LEARNED_PRIORITY..=LAST_PRIORITY).find(|&next| last.is_none_or(|last| last < Order::of(next.into())))
}

/// Moves the connections of a workload that names can allow from `wants` to rules, which it returns. `outside` are the workload's
/// connections behind `wants`. Returns no rules if they would exceed what a policy may have.
pub(super) fn take(workload: &Workload, outside: &[Outside<'_>], mirror: &Mirror, wants: &mut Wants) -> Vec<NameRule> {
    let usual = resolved_by_all(workload, outside);
    // The names of a destination. `None` if one of its connections has none.
    let mut destinations: BTreeMap<(IpAddr, Service), Option<Names<'_>>> = BTreeMap::new();
    for connection in outside {
        let destination = (connection.to, connection.service);
        let known = destinations.entry(destination).or_insert_with(|| Some(BTreeSet::new()));
        *known = known.take().zip(connection.names_in(&usual, mirror)).map(|(known, own)| &known | &own);
    }
    let mut ports_of: BTreeMap<&Arc<str>, BTreeSet<Service>> = BTreeMap::new();
    for ((_, service), names) in &destinations {
        for name in names.iter().flatten() {
            ports_of.entry(name).or_default().insert(*service);
        }
    }
    let mut names_of: BTreeMap<BTreeSet<Service>, BTreeSet<Arc<str>>> = BTreeMap::new();
    for (name, ports) in ports_of {
        names_of.entry(ports).or_default().insert(name.clone());
    }
    let rules: Vec<NameRule> = names_of.into_iter().map(|(ports, names)| NameRule { names, ports }).collect();
    if rules.len() > MAX_LISTED || !rules.iter().all(NameRule::fits) {
        return Vec::new();
    }
    for ((to, service), _) in destinations.iter().filter(|(_, names)| names.is_some()) {
        if let Some(services) = wants.get_mut(&EdgeEnd::Address(*to)) {
            services.remove(service);
        }
    }
    wants.retain(|_, services| !services.is_empty());
    rules
}

/// Returns the names that all pods of the workload had resolved to an address when they connected to it. A policy selects all pods, and what
/// is known about some of them may not hold for the others.
fn resolved_by_all(workload: &Workload, outside: &[Outside<'_>]) -> BTreeSet<Arc<str>> {
    let mut pods_of: BTreeMap<&Arc<str>, BTreeSet<&PodName>> = BTreeMap::new();
    for connection in outside {
        for name in connection.names.iter().flat_map(ResolvedNames::set) {
            pods_of.entry(name).or_default().insert(connection.pod);
        }
    }
    let pods = || workload.pods.iter().filter(|pod| !pod.addresses.is_empty());
    let is_of_all = |of: &BTreeSet<&PodName>| pods().all(|pod| of.contains(&pod.name));
    pods_of.into_iter().filter(|(_, of)| is_of_all(of)).map(|(name, _)| name.clone()).collect()
}

/// What the names in a learned policy allow beyond the traffic seen.
#[derive(Debug)]
pub(super) struct NameExcess {
    /// Printed name of the workload.
    pub(super) title: String,
    /// Number of names, each of which allows all addresses that the pods will resolve it to.
    pub(super) names: usize,
    /// Number of pods of the workload.
    pub(super) pods: usize,
    /// Names with a protocol and port, and the number of pods that had no session to it by this name.
    pub(super) unused: BTreeMap<(Arc<str>, Service), usize>,
}

impl NameExcess {
    /// Returns one element per policy that names domains.
    pub(super) fn of(policies: &[LearnedPolicy], workloads: &Workloads, evidence: &Evidence) -> Vec<Self> {
        let mut used: BTreeSet<(&PodName, &Arc<str>, Service)> = BTreeSet::new();
        for (&(.., transport, port), contact) in &evidence.contacts {
            if let Some(Outside { pod, service, names, .. }) = Outside::of(contact, (transport, port)) {
                used.extend(names.iter().flat_map(ResolvedNames::set).map(|name| (pod, name, service)));
            }
        }
        let of = |policy: &LearnedPolicy| {
            let (workload, rules) = (&workloads.all[policy.workload], &policy.by_name.as_ref()?.rules);
            let pods = || workload.pods.iter().filter(|pod| !pod.addresses.is_empty());
            let allowed = rules.iter().flat_map(|NameRule { names, ports }| {
                names.iter().flat_map(move |name| ports.iter().map(move |&service| (name, service)))
            });
            let unused = allowed.filter_map(|(name, service)| {
                let count = pods().filter(|pod| !used.contains(&(&pod.name, name, service))).count();
                (count > 0).then(|| ((name.clone(), service), count))
            });
            let names: BTreeSet<&Arc<str>> = rules.iter().flat_map(|rule| &rule.names).collect();
            Some(Self { title: workload.title(), names: names.len(), pods: pods().count(), unused: unused.collect() })
        };
        policies.iter().filter_map(of).collect()
    }
}
