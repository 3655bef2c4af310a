//! From the layers of the target to objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_classifier::AddressSet;
use bulkhead_control::cache::{Cache, scope_covers};
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, Direction, IpBlock, NamespaceScope, Order, Peer, PodPeer, PolicyPort, RuleAction,
    Tier,
};
use bulkhead_control::selector::Selector;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::default_tier::has_others;
use super::plan::{Network, Plan, Slot, Step, Zone, namespace_of};
use super::report::Report;
use super::say::{Say, Traffic};

/// Maximum number of rules per direction, of peers and protocols of a rule, and of networks and names of a peer of a ClusterNetworkPolicy.
/// Source: the API of v1alpha2.
pub(super) const MAX_LISTED: usize = 25;

/// The highest priority number, and thus the lowest precedence, of a ClusterNetworkPolicy.
const MAX_PRIORITY: u16 = 1000;

/// Distance of priorities, so that others can be inserted later.
const STEP: u16 = 10;

/// A rule of the target.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The step that the rule comes from.
    pub(super) step: Step,
    pub(super) traffic: Traffic,
}

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
    pub(super) cache: &'a Cache,
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
        Say { cache: self.cache, report: self.report }
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
        let rules = self.rules(step);
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
        let is_of_default = step.policy.rank.tier == Tier::NetworkPolicy;
        if step.direction == Direction::Ingress && has_others(step) && !is_of_default {
            missing.push("a ClusterNetworkPolicy has only pods as sources".into());
        }
        for reason in &missing {
            let help = "write the rule in other terms, or keep the policy";
            self.report.refuse(step, reason.clone(), help);
        }
        let is_about_sources = missing.len() == 1 && missing[0].contains("as sources");
        match step.action {
            RuleAction::Deny | RuleAction::Pass if !missing.is_empty() && !is_about_sources => {
                Step { action: RuleAction::Deny, peers: None, ports: None, ..step.clone() }
            }
            _ => Step { peers, ports, ..step.clone() },
        }
    }

    /// Returns the rules that say a step, without more peers and protocols than a rule may have.
    fn rules(&self, step: &Step) -> Vec<Rule> {
        let everybody = || match step.direction {
            Direction::Ingress => {
                let namespaces = NamespaceScope::Selected(Selector::everything());
                vec![Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })]
            }
            Direction::Egress => {
                let all = [Ipv4Net::default().into(), Ipv6Net::default().into()];
                all.map(|cidr| Peer::Block(IpBlock { cidr, except: Vec::new() })).to_vec()
            }
        };
        let peers: Vec<Peer> = step.peers.clone().unwrap_or_else(everybody);
        let (pods, others): (Vec<Peer>, Vec<Peer>) = peers.into_iter().partition(|peer| matches!(peer, Peer::Pods(_)));
        let others = match step.direction {
            Direction::Ingress => Vec::new(),
            Direction::Egress => without_except(others),
        };
        let is_named = |port: &PolicyPort| matches!(port, PolicyPort::Named { .. });
        let named: Vec<PolicyPort> = step.ports.iter().flatten().filter(|port| is_named(port)).cloned().collect();
        let numbered: Option<Vec<PolicyPort>> =
            step.ports.as_ref().map(|ports| ports.iter().filter(|port| !is_named(port)).cloned().collect());
        let mut all = Vec::new();
        let mut add = |peers: &[Peer], ports: Option<Vec<PolicyPort>>| {
            if peers.is_empty() || ports.as_ref().is_some_and(Vec::is_empty) {
                return;
            }
            let parts: Vec<Option<Vec<PolicyPort>>> = match ports {
                None => vec![None],
                Some(ports) => ports.chunks(MAX_LISTED).map(|ports| Some(ports.to_vec())).collect(),
            };
            for peers in grouped(peers) {
                for ports in &parts {
                    let traffic = Traffic { peers: Some(peers.clone()), ports: ports.clone() };
                    all.push(Rule { step: step.clone(), traffic });
                }
            }
        };
        if named.is_empty() {
            add(&[pods, others].concat(), numbered);
        } else {
            // Only pods have names of ports.
            let of_pods = match &step.peers {
                None if step.direction == Direction::Egress => {
                    let namespaces = NamespaceScope::Selected(Selector::everything());
                    vec![Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })]
                }
                _ => pods.clone(),
            };
            add(&of_pods, Some(named));
            add(&[pods, others].concat(), numbered);
        }
        all
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
        let of_pods = self.cache.pods().map(|(_, pod)| &pod.name.namespace);
        let all: BTreeSet<&Arc<str>> = self.cache.namespaces().keys().chain(of_pods).collect();
        let covers = |name: &Arc<str>| {
            let labels = self.cache.namespaces().get(name).map(|namespace| &namespace.labels);
            scope_covers(scope, name, labels)
        };
        all.into_iter().filter(|name| covers(name)).cloned().collect()
    }

    /// Gives the objects of a tier their priorities, which leave the policies of the state in their places.
    fn ranked(&mut self, objects: OfTier, tier: &Tier) -> anyhow::Result<Vec<Translated>> {
        let known = self.cache.cluster_policies().values().filter(|policy| {
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
        let priorities = priorities(&slots, &taken).ok_or_else(|| {
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
        taken.extend(self.cache.policies().keys().map(|name| (Some(name.namespace.clone()), name.name.to_string())));
        let known = self.cache.cluster_policies().keys();
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
    Slot { zone: Zone::Before, tier: 0, phase: super::plan::Phase::Ordered, policy: 0, part: 0 }
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

/// Returns the peers in groups that fit into a rule.
fn grouped(peers: &[Peer]) -> Vec<Vec<Peer>> {
    let (listed, others): (Vec<&Peer>, Vec<&Peer>) =
        peers.iter().partition(|peer| matches!(peer, Peer::Block(_) | Peer::Names(_)));
    let mut groups: Vec<Vec<Peer>> = Vec::new();
    let mut add = |part: Vec<Peer>, size: usize, left: &mut usize| {
        if *left < size || groups.is_empty() {
            groups.push(Vec::new());
            *left = MAX_LISTED;
        }
        if let Some(group) = groups.last_mut() {
            group.extend(part);
        }
        *left -= size;
    };
    let mut left = 0;
    for peer in others {
        add(vec![peer.clone()], 1, &mut left);
    }
    for part in listed.chunks(MAX_LISTED) {
        // Blocks share a peer, names another.
        let has = |is: fn(&Peer) -> bool| part.iter().any(|peer| is(peer));
        let size = usize::from(has(|peer| matches!(peer, Peer::Block(_))))
            + part.iter().filter(|peer| matches!(peer, Peer::Names(_))).count();
        add(part.iter().map(|peer| (*peer).clone()).collect(), size.min(MAX_LISTED), &mut left);
    }
    groups
}

/// Replaces blocks with exceptions by blocks without.
fn without_except(peers: Vec<Peer>) -> Vec<Peer> {
    let plain = |cidr: IpNet| Peer::Block(IpBlock { cidr, except: Vec::new() });
    let each = |peer: Peer| match peer {
        Peer::Block(IpBlock { cidr, except }) if !except.is_empty() => {
            let rest = AddressSet::from_iter([cidr]).subtract(&except.iter().copied().collect());
            rest.prefixes().map(plain).collect()
        }
        Peer::Names(names) => names.chunks(MAX_LISTED).map(|names| Peer::Names(names.into())).collect::<Vec<_>>(),
        peer => vec![peer],
    };
    let mut all = Vec::new();
    for peer in peers.into_iter().flat_map(each) {
        if !all.contains(&peer) {
            all.push(peer);
        }
    }
    all
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

/// Returns the priority that an order is. `None` if it is none.
fn priority_of(order: Order) -> Option<u16> {
    (0..=MAX_PRIORITY).find(|priority| Order::of(f64::from(*priority)) == order)
}

/// Returns a priority for each slot, ascending and not among those taken. `None` if there are not enough.
fn priorities(slots: &[(Slot, Vec<Translated>)], taken: &[u16]) -> Option<Vec<u16>> {
    let wish = |(slot, objects): &(Slot, Vec<Translated>)| {
        let order = objects.first()?.policy.rank.order;
        (slot.zone == Zone::Among).then_some(order)
    };
    let mut all = Vec::with_capacity(slots.len());
    // From the last to the first, each slot as late as its successors allow; then the first ones as early as possible.
    let before: Vec<&(Slot, Vec<Translated>)> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Before).collect();
    let behind: Vec<_> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Behind).collect();
    let among: Vec<_> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Among).collect();
    let mut middle: Vec<u16> = Vec::new();
    for slot in &among {
        // A policy without a number, such as a BaselineAdminNetworkPolicy, comes last.
        let wanted = wish(slot).and_then(priority_of);
        let least = middle.last().map_or(0, |last| last + 1);
        let place = wish(slot).map_or(MAX_PRIORITY, |order| {
            (0..=MAX_PRIORITY).find(|priority| Order::of(f64::from(*priority)) >= order).unwrap_or(MAX_PRIORITY)
        });
        let start = wanted.unwrap_or(place).max(least);
        let free = (start..=MAX_PRIORITY).find(|priority| !taken.contains(priority))?;
        // Another policy of the state must not come between the two.
        let skipped = taken.iter().any(|of| (place..free).contains(of) && Some(*of) != wanted);
        if skipped {
            return None;
        }
        middle.push(free);
    }
    let first = taken.iter().chain(&middle).min().copied();
    let last = taken.iter().chain(&middle).max().copied();
    all.extend(spread(before.len(), 0, first.unwrap_or(if behind.is_empty() { MAX_PRIORITY + 1 } else { 500 }))?);
    all.extend(&middle);
    let start = last.or(all.last().copied()).map_or(0, |last| last + 1);
    all.extend(spread(behind.len(), start, MAX_PRIORITY + 1)?);
    Some(all)
}

/// Returns so many ascending numbers from `first` up to `end`. `None` if there are not as many.
fn spread(count: usize, first: u16, end: u16) -> Option<Vec<u16>> {
    let count = u16::try_from(count).ok()?;
    let room = end.saturating_sub(first);
    if count > room {
        return None;
    }
    let step = (room / count.max(1)).clamp(1, STEP);
    let offset = if room >= count * step + step { step } else { 0 };
    Some((0..count).map(|at| first + offset + at * step).map(|at| at.min(end - 1)).collect())
}
