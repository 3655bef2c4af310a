//! The terms of the target: selectors, peers and ports that NetworkPolicy and ClusterNetworkPolicy can say.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead_classifier::NamePattern;
use bulkhead_control::object::filter::Filter;
use bulkhead_control::object::{
    Direction, NAMESPACE_NAME_LABEL, NamespaceScope, Peer, Pod, PodPeer, PolicyPort, RuleAction, Transport,
};
use bulkhead_control::selector::{Condition, Requirement, Selector};

use super::cluster::Cluster;
use super::meet::{are_disjoint_pods, is_within_pods, meet_pods, numbers};
use super::report::Report;
use super::terms::Step;

/// Maximum number of conjunctions to which the selector of one peer is expanded.
const MAX_CONJUNCTIONS: usize = 50;

/// A condition of a conjunction.
#[derive(Clone, Debug)]
enum Atom {
    Pod(Requirement),
    Namespace(Requirement),
}

/// Says the terms of one step.
pub(super) struct Say<'a> {
    pub(super) cluster: &'a Cluster<'a>,
    pub(super) report: &'a mut Report,
}

/// The peers and ports of a rule in terms of the target. `None` is everybody, and everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) peers: Option<Vec<Peer>>,
    pub(super) ports: Option<Vec<PolicyPort>>,
}

impl Say<'_> {
    /// Returns the pods as conjunctions of labels.
    pub(super) fn pods(&mut self, step: &Step, pods: &PodPeer) -> Result<Vec<PodPeer>, String> {
        let base = PodPeer { filter: None, ..pods.clone() };
        let all = match &pods.filter {
            None => vec![Vec::new()],
            Some(filter) => self.conjunctions(step, &base, filter, false)?,
        };
        let mut found: Vec<PodPeer> = Vec::new();
        for atoms in all {
            let (mut of_pods, mut of_namespaces) = (
                pods.pods.requirements().to_vec(),
                match &pods.namespaces {
                    NamespaceScope::Own(_) => Vec::new(),
                    NamespaceScope::Selected(selector) => selector.requirements().to_vec(),
                },
            );
            for atom in atoms {
                match atom {
                    Atom::Pod(requirement) => of_pods.push(requirement),
                    Atom::Namespace(requirement) => of_namespaces.push(requirement),
                }
            }
            let of_pods = self.enumerated(step, of_pods, false);
            let of_namespaces = self.enumerated(step, of_namespaces, true);
            let (Some(of_pods), Some(of_namespaces)) = (of_pods, of_namespaces) else { continue };
            let scope = NamespaceScope::Selected(Selector::new(of_namespaces.iter().cloned()));
            let namespaces = match &pods.namespaces {
                NamespaceScope::Own(name) if of_namespaces.is_empty() => NamespaceScope::Own(name.clone()),
                NamespaceScope::Own(_) => {
                    let selected = PodPeer { namespaces: scope, pods: Selector::everything(), filter: None };
                    let Some(both) = meet_pods(&base, &selected) else { continue };
                    both.namespaces
                }
                NamespaceScope::Selected(_) => scope,
            };
            let conjunction = PodPeer { namespaces, pods: Selector::new(of_pods), filter: None };
            // A selector that contradicts itself selects nothing.
            if are_disjoint_pods(&conjunction, &conjunction) || found.iter().any(|of| is_within_pods(&conjunction, of))
            {
                continue;
            }
            found.retain(|of| !is_within_pods(of, &conjunction));
            found.push(conjunction);
        }
        Ok(found)
    }

    /// Returns the filter, or its opposite, as a disjunction of conjunctions.
    fn conjunctions(
        &mut self,
        step: &Step,
        base: &PodPeer,
        filter: &Filter,
        is_negated: bool,
    ) -> Result<Vec<Vec<Atom>>, String> {
        match filter {
            Filter::All(parts) if !is_negated => self.product(step, base, parts, is_negated),
            Filter::Any(parts) if is_negated => self.product(step, base, parts, is_negated),
            Filter::All(parts) | Filter::Any(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    all.extend(self.conjunctions(step, base, part, is_negated)?);
                }
                Ok(all)
            }
            Filter::Not(part) => self.conjunctions(step, base, part, !is_negated),
            Filter::Label(requirement) => Ok(vec![vec![Atom::Pod(self.signed(step, requirement, is_negated, false))]]),
            Filter::NamespaceLabel(requirement) => {
                Ok(vec![vec![Atom::Namespace(self.signed(step, requirement, is_negated, true))]])
            }
            Filter::Namespaces(names) => {
                let condition = if is_negated { Condition::NotIn(names.clone()) } else { Condition::In(names.clone()) };
                Ok(vec![vec![Atom::Namespace(Requirement { key: NAMESPACE_NAME_LABEL.into(), condition })]])
            }
            Filter::ServiceAccount(_) => self.by_label(step, base, filter, is_negated),
        }
    }

    fn product(
        &mut self,
        step: &Step,
        base: &PodPeer,
        parts: &[Filter],
        is_negated: bool,
    ) -> Result<Vec<Vec<Atom>>, String> {
        let mut all = vec![Vec::new()];
        for part in parts {
            let more = self.conjunctions(step, base, part, is_negated)?;
            let each = |one: &Vec<Atom>| more.iter().map(|more| [&one[..], &more[..]].concat()).collect::<Vec<_>>();
            all = all.iter().flat_map(each).collect();
            if all.len() > MAX_CONJUNCTIONS {
                return Err(format!("its selector is more than {MAX_CONJUNCTIONS} conjunctions of labels"));
            }
        }
        Ok(all)
    }

    /// Returns the requirement, or the opposite one.
    fn signed(&mut self, step: &Step, requirement: &Requirement, is_negated: bool, of_namespace: bool) -> Requirement {
        if !is_negated {
            return requirement.clone();
        }
        let condition = match &requirement.condition {
            Condition::In(values) => Condition::NotIn(values.clone()),
            Condition::NotIn(values) => Condition::In(values.clone()),
            Condition::Exists => Condition::DoesNotExist,
            Condition::DoesNotExist => Condition::Exists,
            _ => Condition::NotIn(self.values(step, requirement, of_namespace)),
        };
        Requirement { key: requirement.key.clone(), condition }
    }

    /// Replaces conditions on parts of values by the values of this cluster. `None` if no pod can meet them all.
    fn enumerated(
        &mut self,
        step: &Step,
        requirements: Vec<Requirement>,
        of_namespace: bool,
    ) -> Option<Vec<Requirement>> {
        let mut all = Vec::new();
        for requirement in requirements {
            let condition = match &requirement.condition {
                Condition::Contains(_) | Condition::StartsWith(_) | Condition::EndsWith(_) => {
                    Condition::In(self.values(step, &requirement, of_namespace))
                }
                // Without values, the one selects nothing and the other everything.
                Condition::NotIn(values) if values.is_empty() => continue,
                condition => condition.clone(),
            };
            if matches!(&condition, Condition::In(values) if values.is_empty()) {
                return None;
            }
            all.push(Requirement { key: requirement.key, condition });
        }
        Some(all)
    }

    /// Returns the values of a label in this cluster that meet a condition.
    fn values(&mut self, step: &Step, requirement: &Requirement, of_namespace: bool) -> Vec<Arc<str>> {
        let key = &requirement.key;
        let mut found = BTreeSet::new();
        let mut take = |labels: &bulkhead_control::object::Labels| {
            if requirement.holds(labels) {
                found.extend(labels.get(key).cloned());
            }
        };
        match of_namespace {
            true => self.cluster.cache.namespaces().values().for_each(|namespace| take(&namespace.labels)),
            false => self.cluster.cache.pods().for_each(|(_, pod)| take(&pod.labels)),
        }
        let (what, condition) = (if of_namespace { "namespace" } else { "pod" }, Selector::new([requirement.clone()]));
        self.report.only_here(step, &format!("a {what} with another value of `{key}` that meets `{condition}`"));
        found.into_iter().collect()
    }

    /// Returns a label by which the pods of a service account can be told from the others.
    fn by_label(
        &mut self,
        step: &Step,
        base: &PodPeer,
        filter: &Filter,
        is_negated: bool,
    ) -> Result<Vec<Vec<Atom>>, String> {
        let namespace = |pod: &Pod| self.cluster.cache.namespaces().get(&pod.name.namespace).map(|of| &**of);
        let selected = self.cluster.cache.pods_matching(&base.namespaces, &base.pods).map(|(_, pod)| pod);
        let selected = selected.filter(|pod| base.filter.is_none() || self.cluster.cache.is_selected(base, pod));
        let (meant, others): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
            selected.partition(|pod| filter.holds(pod, namespace(pod)) != is_negated);
        let what =
            format!("a pod for which `{filter}` holds or not, unlike for the pods of this cluster with the same label");
        if meant.is_empty() {
            self.report.only_here(step, &what);
            return Ok(Vec::new());
        }
        if others.is_empty() {
            self.report.only_here(step, &what);
            return Ok(vec![Vec::new()]);
        }
        let keys = meant[0].labels.keys();
        let values = |pods: &[&Arc<Pod>], key: &Arc<str>| -> BTreeSet<Option<Arc<str>>> {
            pods.iter().map(|pod| pod.labels.get(key).cloned()).collect()
        };
        let tells = |key: &&Arc<str>| {
            let own = values(&meant, key);
            !own.contains(&None) && own.is_disjoint(&values(&others, key))
        };
        let Some(key) = keys.clone().find(tells).cloned() else {
            return Err(format!("no label tells the pods for which `{filter}` holds from others"));
        };
        let condition = Condition::In(values(&meant, &key).into_iter().flatten().collect());
        self.report.only_here(step, &what);
        Ok(vec![vec![Atom::Pod(Requirement { key, condition })]])
    }

    /// Returns the peers in terms of the target: pods by labels, blocks, nodes, names. The second value is the reasons why some are missing.
    pub(super) fn peers(&mut self, step: &Step) -> (Option<Vec<Peer>>, Vec<String>) {
        let Some(peers) = &step.peers else { return (None, Vec::new()) };
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for peer in peers {
            match self.peer(step, peer) {
                Ok(said) => said.into_iter().for_each(|peer| {
                    if !all.contains(&peer) {
                        all.push(peer);
                    }
                }),
                Err(reason) => missing.push(reason),
            }
        }
        (Some(all), missing)
    }

    pub(super) fn peer(&mut self, step: &Step, peer: &Peer) -> Result<Vec<Peer>, String> {
        match peer {
            Peer::Pods(pods) => Ok(self.pods(step, pods)?.into_iter().map(Peer::Pods).collect()),
            Peer::Block(_) | Peer::Nodes(_) => Ok(vec![peer.clone()]),
            // Traffic from the own node is always allowed.
            Peer::OwnNode if step.direction == Direction::Ingress => Ok(Vec::new()),
            Peer::OwnNode => Err("it names the pod's own node, which the target cannot tell from others".into()),
            Peer::Names(names) => {
                let is_glob = |name: &&Arc<str>| name.parse::<NamePattern>().map_or(true, |pattern| pattern.is_glob());
                match names.iter().find(is_glob) {
                    Some(name) => Err(format!("the target has no pattern such as `{name}`")),
                    None if step.action != RuleAction::Accept => {
                        Err("domain names are possible with Accept only".into())
                    }
                    None => Ok(vec![peer.clone()]),
                }
            }
            Peer::Region(region) => self.region(step, region),
        }
    }

    /// Returns the ports in terms of the target. The second value is the reasons why some are missing.
    pub(super) fn ports(&self, step: &Step) -> (Option<Vec<PolicyPort>>, Vec<String>) {
        let Some(ports) = &step.ports else { return (None, Vec::new()) };
        let is_whole = |protocol: u8| {
            let of = |port: &PolicyPort| {
                numbers(port).is_some_and(|(protocols, ports)| {
                    (protocols.0..=protocols.1).contains(&protocol) && ports == (0, u16::MAX)
                })
            };
            ports.iter().any(of)
        };
        if (0..=u8::MAX).all(is_whole) {
            return (None, Vec::new());
        }
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for port in ports {
            let PolicyPort::Numbers { protocols, first, last } = *port else {
                all.push(port.clone());
                continue;
            };
            let transports: Vec<Transport> = Transport::ALL
                .into_iter()
                .filter(|transport| (protocols.0..=protocols.1).contains(&transport.number()))
                .collect();
            all.extend(transports.iter().map(|&transport| match (first, last) {
                (0, u16::MAX) => PolicyPort::All(transport),
                _ => PolicyPort::Range { transport, first, last },
            }));
            if usize::from(protocols.1 - protocols.0) + 1 > transports.len() {
                let text = match protocols {
                    (1, 1) | (58, 58) => "the target has no ICMP".to_owned(),
                    (first, last) if first == last => format!("the target has no protocol {first}"),
                    (first, last) => {
                        format!("of the protocols {first} to {last} the target has only TCP, UDP and SCTP")
                    }
                };
                missing.push(text);
            }
        }
        all.dedup();
        (Some(all), missing)
    }
}
