//! From the layers of the target to objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_control::cache::scope_covers;
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, Direction, NamespaceScope, Peer, PodPeer, RuleAction, Tier,
};

use super::cluster::Cluster;
use super::lists::{MAX_LISTED, Rule, rules};
use super::priorities::{priorities, priority_of};
use super::report::Report;
use super::say::{Say, Traffic};
use super::terms::{Network, Plan, Slot, Step, Zone, namespace_of};

/// The kind of an object of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A NetworkPolicy in a namespace.
    Network(Arc<str>),
    /// A ClusterNetworkPolicy in a tier with a priority.
    Cluster(Tier, u16),
}

/// An object of the target.
#[derive(Clone, Debug)]
pub(super) struct Translated {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) subject: PodPeer,
    /// The policy that the object comes from.
    pub(super) policy: Arc<ClusterPolicy>,
    /// Of a NetworkPolicy, `None` if it does not concern ingress.
    pub(super) ingress: Option<Vec<Rule>>,
    pub(super) egress: Option<Vec<Rule>>,
}

impl Translated {
    fn list(&mut self, direction: Direction) -> &mut Option<Vec<Rule>> {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }
}

/// Objects of one tier by their place, policy and pods.
type OfTier = BTreeMap<(Slot, usize, PodPeer), Translated>;

/// Makes the objects of all layers.
pub(super) struct Maker<'a> {
    pub(super) cluster: &'a Cluster<'a>,
    pub(super) report: &'a mut Report,
    /// The numbers of policies in order of evaluation.
    pub(super) numbers: BTreeMap<*const ClusterPolicy, usize>,
}

impl Maker<'_> {
    /// Returns the objects: NetworkPolicies first, then those of the tiers Admin and Baseline in order of evaluation.
    ///
    /// # Errors
    /// If there are not enough priorities.
    pub(super) fn make(&mut self, plans: [Plan; 2]) -> anyhow::Result<Vec<Translated>> {
        let (mut admin, mut baseline) = (OfTier::new(), OfTier::new());
        let mut networks = BTreeMap::new();
        for plan in plans {
            plan.networks.iter().for_each(|network| self.network(network, &mut networks));
            plan.admin.iter().for_each(|step| self.step(step, &Tier::Admin, &mut admin));
            plan.baseline.iter().for_each(|step| self.step(step, &Tier::Baseline, &mut baseline));
        }
        let mut all: Vec<Translated> = networks.into_values().collect();
        all.extend(self.ranked(admin, &Tier::Admin)?);
        all.extend(self.ranked(baseline, &Tier::Baseline)?);
        self.name(&mut all);
        Ok(all)
    }

    fn say(&mut self) -> Say<'_> {
        Say { cluster: self.cluster, report: self.report }
    }

    fn number(&self, policy: &Arc<ClusterPolicy>) -> usize {
        self.numbers.get(&Arc::as_ptr(policy)).copied().unwrap_or_default()
    }

    /// Adds a rule of the tier Admin or Baseline.
    fn step(&mut self, step: &Step, tier: &Tier, objects: &mut OfTier) {
        let step = &self.closed(step);
        let subjects = match self.say().pods(step, &step.subject) {
            Ok(subjects) => subjects,
            Err(reason) => {
                self.report.refuse(step, format!("its pods: {reason}"), "select pods by labels");
                if step.action == RuleAction::Accept {
                    return;
                }
                // More pods than are meant, so that nothing is allowed by mistake.
                vec![PodPeer { filter: None, ..step.subject.clone() }]
            }
        };
        let rules = rules(step);
        for subject in subjects.into_iter().filter(|_| !rules.is_empty()) {
            let key = (step.slot, self.number(&step.policy), subject.clone());
            let object = objects.entry(key).or_insert_with(|| Translated {
                kind: Kind::Cluster(tier.clone(), 0),
                name: String::new(),
                subject,
                policy: step.policy.clone(),
                ingress: None,
                egress: None,
            });
            let list = object.list(step.direction).get_or_insert_default();
            for rule in &rules {
                let is_same = |known: &Rule| known.traffic == rule.traffic && known.step.action == rule.step.action;
                if !list.iter().any(is_same) {
                    list.push(rule.clone());
                }
            }
        }
    }

    /// Returns the step with terms of the target. What an Accept cannot say is left out. A Deny or Pass that cannot be said denies everything.
    fn closed(&mut self, step: &Step) -> Step {
        let (peers, mut missing) = self.say().peers(step);
        let (ports, of_ports) = self.say().ports(step);
        missing.extend(of_ports);
        let is_said = missing.is_empty();
        let is_of_default = step.policy.rank.tier == Tier::NetworkPolicy;
        if step.direction == Direction::Ingress && step.has_others() && !is_of_default && !step.is_said_by_networks {
            missing.push("a ClusterNetworkPolicy has only pods as sources".into());
        }
        for reason in &missing {
            let help = "write the rule in other terms, or keep the policy";
            self.report.refuse(step, reason.clone(), help);
        }
        match step.action {
            RuleAction::Deny | RuleAction::Pass if !is_said => {
                Step { action: RuleAction::Deny, peers: None, ports: None, ..step.clone() }
            }
            _ => Step { peers, ports, ..step.clone() },
        }
    }

    /// Adds the NetworkPolicies that say what a policy allows.
    fn network(&mut self, network: &Network, objects: &mut BTreeMap<(usize, Arc<str>, PodPeer), Translated>) {
        let end = Step {
            subject: network.subject.clone(),
            ..Step::everything(&network.policy, network.direction, RuleAction::Deny, first_slot())
        };
        for subject in [&network.subject].into_iter().chain(network.allows.iter().map(|step| &step.subject)) {
            let subjects = match self.say().pods(&end, subject) {
                Ok(subjects) => subjects,
                Err(reason) => {
                    self.report.refuse(&end, format!("its pods: {reason}"), "select pods by labels");
                    vec![PodPeer { filter: None, ..subject.clone() }]
                }
            };
            for subject in subjects {
                for namespace in self.namespaces(&end, &subject.namespaces) {
                    self.add_network(network, subject.clone(), &namespace, objects);
                }
            }
        }
    }

    /// Adds the NetworkPolicy for pods in one namespace. If the rules are for fewer pods than the policy isolates, they get their own.
    fn add_network(
        &mut self,
        network: &Network,
        subject: PodPeer,
        namespace: &Arc<str>,
        objects: &mut BTreeMap<(usize, Arc<str>, PodPeer), Translated>,
    ) {
        let key = (
            self.number(&network.policy),
            namespace.clone(),
            PodPeer { namespaces: NamespaceScope::Own(namespace.clone()), ..subject.clone() },
        );
        let mut rules: Vec<Rule> = Vec::new();
        for step in &network.allows {
            let Ok(subjects) = self.say().pods(step, &step.subject) else { continue };
            if !subjects.contains(&subject) {
                continue;
            }
            for rule in self.allowed(step) {
                if !rules.iter().any(|known| known.traffic == rule.traffic) {
                    rules.push(rule);
                }
            }
        }
        let object = objects.entry(key).or_insert_with(|| Translated {
            kind: Kind::Network(namespace.clone()),
            name: String::new(),
            subject,
            policy: network.policy.clone(),
            ingress: None,
            egress: None,
        });
        *object.list(network.direction) = Some(rules);
    }

    /// Returns the rules of a NetworkPolicy that say a step.
    fn allowed(&mut self, step: &Step) -> Vec<Rule> {
        let (peers, mut missing) = self.say().peers(step);
        let (ports, of_ports) = self.say().ports(step);
        missing.extend(of_ports);
        for reason in missing {
            self.report.refuse(step, reason, "write the rule in other terms, or keep the policy");
        }
        let mut peers = peers;
        if let Some(peers) = &mut peers {
            let (nodes, mut others): (Vec<Peer>, Vec<Peer>) =
                std::mem::take(peers).into_iter().partition(|peer| matches!(peer, Peer::Nodes(_)));
            for peer in nodes {
                if let Peer::Nodes(selector) = peer {
                    others.extend(self.say().node_blocks(step, &selector));
                }
            }
            *peers = others;
        }
        let is_nothing = peers.as_ref().is_some_and(Vec::is_empty) || ports.as_ref().is_some_and(Vec::is_empty);
        if is_nothing { Vec::new() } else { vec![Rule { step: step.clone(), traffic: Traffic { peers, ports } }] }
    }

    /// Returns the namespaces of this cluster in a scope.
    fn namespaces(&mut self, step: &Step, scope: &NamespaceScope) -> Vec<Arc<str>> {
        if let NamespaceScope::Own(name) = scope {
            return vec![name.clone()];
        }
        self.report
            .only_here(step, "a namespace that this cluster does not have: it needs a copy of the NetworkPolicies");
        let of_pods = self.cluster.cache.pods().map(|(_, pod)| &pod.name.namespace);
        let all: BTreeSet<&Arc<str>> = self.cluster.cache.namespaces().keys().chain(of_pods).collect();
        let covers = |name: &Arc<str>| {
            let labels = self.cluster.cache.namespaces().get(name).map(|namespace| &namespace.labels);
            scope_covers(scope, name, labels)
        };
        all.into_iter().filter(|name| covers(name)).cloned().collect()
    }

    /// Gives the objects of a tier their priorities, which leave the policies of the state in their places.
    fn ranked(&mut self, objects: OfTier, tier: &Tier) -> anyhow::Result<Vec<Translated>> {
        let known = self.cluster.cache.cluster_policies().values().filter(|policy| {
            policy.rank.name.kind == ClusterPolicyKind::ClusterNetworkPolicy && policy.rank.tier == *tier
        });
        let mut taken: Vec<u16> = known.filter_map(|policy| priority_of(policy.rank.order)).collect();
        taken.sort_unstable();
        taken.dedup();
        let mut slots: Vec<(Slot, Vec<Translated>)> = Vec::new();
        for ((slot, ..), object) in objects {
            for (part, object) in parts(&object).into_iter().enumerate() {
                let part = if slot.phase.is_shared() { 0 } else { part };
                let slot = Slot { part, ..slot };
                match slots.iter_mut().find(|(known, _)| *known == slot) {
                    Some((_, all)) => all.push(object),
                    None => slots.push((slot, vec![object])),
                }
            }
        }
        slots.sort_by_key(|(slot, _)| *slot);
        let orders: Vec<_> =
            slots.iter().filter_map(|(slot, all)| Some((*slot, all.first()?.policy.rank.order))).collect();
        let priorities = priorities(&orders, &taken).ok_or_else(|| {
            anyhow::anyhow!(
                "the tier {} needs {} priorities between those of the state's ClusterNetworkPolicies, and has not as many\n  \
                 help: give these policies other priorities, or join policies before the translation",
                tier.name(),
                slots.len()
            )
        })?;
        let all = slots
            .into_iter()
            .zip(priorities)
            .flat_map(|((_, objects), priority)| objects.into_iter().map(move |object| (priority, object)));
        Ok(all.map(|(priority, object)| Translated { kind: Kind::Cluster(tier.clone(), priority), ..object }).collect())
    }

    /// Names the objects after their policies.
    fn name(&self, objects: &mut [Translated]) {
        let mut taken: BTreeSet<(Option<Arc<str>>, String)> = BTreeSet::new();
        taken.extend(
            self.cluster.cache.policies().keys().map(|name| (Some(name.namespace.clone()), name.name.to_string())),
        );
        let known = self.cluster.cache.cluster_policies().keys();
        let known = known.filter(|name| name.kind == ClusterPolicyKind::ClusterNetworkPolicy);
        taken.extend(known.map(|name| (None, name.name.to_string())));
        for object in objects {
            let base = base_name(object);
            let namespace = match &object.kind {
                Kind::Network(namespace) => Some(namespace.clone()),
                Kind::Cluster(..) => None,
            };
            let mut name = base.clone();
            let mut count = 1;
            while !taken.insert((namespace.clone(), name.clone())) {
                count += 1;
                name = format!("{base}-{count}");
            }
            object.name = name;
        }
    }
}

const fn first_slot() -> Slot {
    Slot { zone: Zone::Before, tier: 0, phase: super::terms::Phase::Ordered, policy: 0, part: 0 }
}

/// Returns the name of an object without a number that distinguishes it: the policy's own, with its namespace if the object has none.
fn base_name(object: &Translated) -> String {
    let written = &object.policy.rank.name.name;
    let name = match (&object.kind, namespace_of(&object.policy.subject)) {
        (Kind::Network(namespace), Some(own)) if namespace == own => {
            written.strip_prefix(&format!("{namespace}/")).unwrap_or(written)
        }
        _ => written,
    };
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let plain: String = name.to_ascii_lowercase().chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
    // Room for a number in the 253 characters of a name.
    let short: String = plain.chars().take(240).collect();
    let trimmed = short.trim_matches(|c| c == '-' || c == '.');
    if trimmed.is_empty() { "translated".to_owned() } else { trimmed.to_owned() }
}

/// Splits an object with too many rules.
fn parts(object: &Translated) -> Vec<Translated> {
    let chunks = |list: &Option<Vec<Rule>>| -> Vec<Vec<Rule>> {
        list.iter().flat_map(|rules| rules.chunks(MAX_LISTED).map(<[Rule]>::to_vec)).collect()
    };
    let (ingress, egress) = (chunks(&object.ingress), chunks(&object.egress));
    let count = ingress.len().max(egress.len());
    let part =
        |at: usize| Translated { ingress: ingress.get(at).cloned(), egress: egress.get(at).cloned(), ..object.clone() };
    (0..count).map(part).collect()
}
