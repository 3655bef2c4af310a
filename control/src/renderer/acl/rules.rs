//! A node's rules: pods' two rule lists in, one table per interface out, and which of them a transaction changed.
//!
//! A packet is judged once, where it leaves the vswitch: at the destination pod's interface, or at the node's exit. So
//! what the *source's* egress policies forbid has to stand in the destination's table (Contiv: `CombineRules`) and, for
//! destinations outside the node, in the node-exit table (`BuildGlobalTable`):
//!
//! ```text
//!  table of pod P                                          node-exit table
//!  1 own node                         allow                1 own node                       allow
//!  2 for each class of local sources: deny what their      2 for each class of local sources with the same
//!    egress rules do not allow towards P                     egress rules: sources x peers x services
//!  3 P's ingress rules                allow                                                 allow, rest deny
//!  4 everything else                  deny                 3 everything else                allow
//! ```
//! A pod that no policy isolates has, instead of 1-4, the egress rules of those classes that concern it, then allow.
//!
//! **Why not Contiv's algorithm.** It visits every pair of pods and writes, for each pair whose lists differ, the
//! intersection of their ports: O(pods^2 x rules), and neither list can be named as the reason any more. Here sources
//! with the same egress rules are one class, a class adds what its list denies (with NetworkPolicy alone one rule, the complement of
//! what it allows), and the verdict says which side refused. Both mean "the source's list AND the destination's list".
//! Where a list has rules of the Admin tier, its own-node rule stands behind them instead of first.
//!
//! Pods whose tables would be the same share one.
//!
//! **Work follows the change.** What a class allows towards each local address is worked out once per rule list and kept
//! as a number in a row with one cell per pod. A list that changed for other destinations only gives the same row, and
//! then no local table is looked at.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{Action, AddressSet, Addresses, Change, OriginId, PortRange, Rule};

use super::allowance::{Allowance, names};
use super::interned::Interned;
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::plain::{PlainList, PlainPod, PlainRule};

/// Stands for what decides a pod's table: equal numbers, equal tables. A number is never given to another table.
pub(super) type LocalId = u64;

/// What decides a pod's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LocalKey {
    ingress: Option<u64>,
    restrictions: RestrictionsId,
}

/// For each class that is restricted towards a pod: its sources, and what they may do.
type Restrictions = Vec<(SourcesId, AllowanceId)>;

/// Stands for [`Restrictions`]. A number is never given to others.
type RestrictionsId = u64;

/// Stands for a set of source addresses. A number is never given to another set.
type SourcesId = u64;

/// Stands for a [`Allowance`]. A number is never given to another one.
type AllowanceId = u64;

/// The class may do everything.
const OPEN: AllowanceId = 0;

/// Local pods with the same egress rules.
#[derive(Clone, Debug)]
struct EgressClass {
    list: Arc<PlainList>,
    sources: Arc<AddressSet>,
    v4: (SourcesId, Arc<AddressSet>),
    v6: (SourcesId, Arc<AddressSet>),
    /// What the class may do towards each pod, in the order of the pods, for its IPv4 and its IPv6 address.
    reach: Arc<[[AllowanceId; 2]]>,
}

/// What a transaction changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether any pod has another table now.
    pub(super) locals: bool,
    /// Whether any pod came, went, or has other addresses.
    pub(super) interfaces: bool,
    /// Whether the node-exit table changed.
    pub(super) global: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct NodeRules {
    node_addresses: Arc<AddressSet>,
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    /// Sorted by each class's first pod.
    classes: Vec<EgressClass>,
    /// The pods that the classes' rows are about, in their order.
    columns: Vec<(PodName, Vec<IpAddr>)>,
    ids: BTreeMap<PodName, LocalId>,
    keys: Interned<LocalKey>,
    restrictions: Interned<Restrictions>,
    reach: Interned<Allowance>,
    sources: AHashMap<Arc<AddressSet>, SourcesId>,
    source_sets: AHashMap<SourcesId, Arc<AddressSet>>,
    sources_given: SourcesId,
}

/// The class with another list, when that says the same about every pod of the node: what an event of another node
/// comes to in a list that names large groups.
fn follow(before: &EgressClass, list: &Arc<PlainList>, moves: &mut Moves<'_>) -> Option<EgressClass> {
    let (old, new) = (&before.list.rules, &list.rules);
    let same =
        |(a, b): (&PlainRule, &PlainRule)| a.action == b.action && a.origin == b.origin && a.services == b.services;
    if before.list.own_node != list.own_node || old.len() != new.len() || !old.iter().zip(new).all(same) {
        return None;
    }
    let mut pairs = old.iter().zip(new).map(|(a, b)| (&a.peers, &b.peers));
    pairs.all(|(a, b)| !moves.concern(a, b)).then(|| EgressClass { list: list.clone(), ..before.clone() })
}

/// Whether sets that took the place of others differ in pods of the node: each pair of sets is compared once, however many classes
/// name them.
struct Moves<'a> {
    columns: &'a [(PodName, Vec<IpAddr>)],
    /// All addresses of the columns, once they were asked for.
    local: Option<AddressSet>,
    /// By the addresses of the two sets, which somebody holds meanwhile.
    known: AHashMap<[usize; 2], bool>,
}

impl<'a> Moves<'a> {
    fn new(columns: &'a [(PodName, Vec<IpAddr>)]) -> Self {
        Self { columns, local: None, known: AHashMap::new() }
    }

    fn concern(&mut self, old: &Addresses, new: &Addresses) -> bool {
        let pair = match (old, new) {
            (Addresses::Any, Addresses::Any) => return false,
            (Addresses::Set(old), Addresses::Set(new)) => [Arc::as_ptr(old).addr(), Arc::as_ptr(new).addr()],
            (Addresses::Parted(old), Addresses::Parted(new)) => [Arc::as_ptr(old).addr(), Arc::as_ptr(new).addr()],
            // A set that grew into parts, or into everybody.
            _ => return true,
        };
        if pair[0] == pair[1] {
            return false;
        }
        if let Some(&known) = self.known.get(&pair) {
            return known;
        }
        let moved = match (old, new) {
            (Addresses::Set(old), Addresses::Set(new)) => old.difference(new),
            (Addresses::Parted(old), Addresses::Parted(new)) => old.difference(new),
            _ => AddressSet::default(),
        };
        let columns = self.columns;
        let local = self.local.get_or_insert_with(|| columns.iter().flat_map(|(_, all)| all.iter().copied()).collect());
        let concerns = !moved.intersect(local).is_empty();
        self.known.insert(pair, concerns);
        concerns
    }
}

impl NodeRules {
    /// How many numbers stand for values.
    #[cfg(test)]
    pub(super) fn interned(&self) -> usize {
        self.keys.len() + self.restrictions.len() + self.reach.len() + self.sources.len()
    }

    /// The pods with their configuration, sorted.
    pub(super) fn pods(&self) -> &BTreeMap<PodName, Arc<PlainPod>> {
        &self.pods
    }

    /// What decides each pod's table, sorted by pod.
    pub(super) fn ids(&self) -> &BTreeMap<PodName, LocalId> {
        &self.ids
    }

    /// Sets the addresses that are the node's own. Returns whether they changed.
    pub(super) fn set_node_addresses(&mut self, addresses: AddressSet) -> bool {
        let changed = *self.node_addresses != addresses;
        if changed {
            self.node_addresses = Arc::new(addresses);
        }
        changed
    }

    /// Takes in pods with their new lists, none for one that is gone; all there are with `resync`. Returns what changed.
    pub(super) fn apply(&mut self, resync: bool, pods: &[(PodName, Option<Arc<PlainPod>>)]) -> Changes {
        let before = if resync { std::mem::take(&mut self.pods) } else { BTreeMap::new() };
        let (mut configs, mut interfaces) = (false, false);
        let interface = |config: Option<&Arc<PlainPod>>| config.map(|config| (config.addresses.clone(), config.mac));
        for (name, config) in pods {
            let old = match config {
                Some(config) => self.pods.insert(name.clone(), config.clone()),
                None => self.pods.remove(name),
            };
            configs |= old.as_ref() != config.as_ref();
            interfaces |= interface(old.as_ref()) != interface(config.as_ref());
        }
        if resync {
            configs = before != self.pods;
            interfaces = true;
        }
        if !configs {
            return Changes::default();
        }
        let (rows, global) = self.rebuild_classes(interfaces);
        let keys = self.rebuild_keys(rows || interfaces, pods);
        Changes { locals: keys || interfaces, interfaces, global }
    }

    /// Groups the pods by their egress rules. Returns whether what the classes may do towards local pods changed, and
    /// whether anything about the classes changed.
    fn rebuild_classes(&mut self, addresses_changed: bool) -> (bool, bool) {
        let mut order: Vec<(Arc<PlainList>, Vec<IpAddr>)> = Vec::new();
        let mut at_revision: AHashMap<u64, usize> = AHashMap::new();
        for config in self.pods.values() {
            let Some(list) = &config.egress else { continue };
            let at = *at_revision.entry(list.revision).or_insert_with(|| {
                order.push((list.clone(), Vec::new()));
                order.len() - 1
            });
            order[at].1.extend(&config.addresses);
        }
        // In their order, which is that of the rules: a pod may come or go that leaves every set of sources as it is, since
        // another one has its address, and yet another class is the first.
        let row = |class: &EgressClass| (class.v4.0, class.v6.0, class.reach.clone());
        let (old_rows, old_order): (Vec<_>, Vec<_>) =
            self.classes.iter().map(|class| (row(class), class.list.revision)).unzip();
        let mut old: AHashMap<u64, EgressClass> =
            std::mem::take(&mut self.classes).into_iter().map(|class| (class.list.revision, class)).collect();
        let mut by_sources: AHashMap<Arc<AddressSet>, Vec<EgressClass>> = AHashMap::new();
        for class in old.values().filter(|_| !addresses_changed) {
            by_sources.entry(class.sources.clone()).or_default().push(class.clone());
        }
        let mut changed = order.len() != old.len();
        let places = if addresses_changed { self.move_columns() } else { Vec::new() };
        let columns = std::mem::take(&mut self.columns);
        let mut moves = Moves::new(&columns);
        for (list, addresses) in order {
            let sources: AddressSet = addresses.into_iter().collect();
            let before = old.remove(&list.revision);
            let same = before.as_ref().filter(|class| *class.sources == sources && !addresses_changed);
            changed |= same.is_none();
            let same = same.cloned().or_else(|| follow(by_sources.get(&sources)?.first()?, &list, &mut moves));
            let class = same.unwrap_or_else(|| self.new_class(list, sources, before.as_ref(), &places));
            self.classes.push(class);
        }
        self.columns = columns;
        changed |= !self.classes.iter().map(|class| class.list.revision).eq(old_order);
        (!self.classes.iter().map(row).eq(old_rows), changed)
    }

    /// Makes the columns those of the present pods. Returns where each of them stood before, none for a pod that is new or has
    /// other addresses.
    fn move_columns(&mut self) -> Vec<Option<usize>> {
        let mut before = self.columns.iter().enumerate().peekable();
        let places = self.pods.iter().map(|(name, pod)| {
            while before.next_if(|(_, (old, _))| old < name).is_some() {}
            let (at, _) = before.next_if(|(_, (old, _))| old == name).filter(|(_, (_, old))| *old == pod.addresses)?;
            Some(at)
        });
        let places = places.collect();
        self.columns = self.pods.iter().map(|(name, pod)| (name.clone(), pod.addresses.clone())).collect();
        places
    }

    /// A class of these sources. What the same list allowed towards pods that are as they were is taken from `before`, by their
    /// `places` there.
    fn new_class(
        &mut self,
        list: Arc<PlainList>,
        sources: AddressSet,
        before: Option<&EgressClass>,
        places: &[Option<usize>],
    ) -> EgressClass {
        let (v4, v6) = (sources.only_v4(), sources.only_v6());
        let families = |v4: &AddressSet, v6: &AddressSet| (v4.is_empty(), v6.is_empty());
        let before = before.filter(|before| families(&before.v4.1, &before.v6.1) == families(&v4, &v6));
        let kept = |at: usize| before?.reach.get((*places.get(at)?)?).copied();
        // Most pods are named by the same rules, the last one alone: what those allow is worked out once.
        let mut by_naming: AHashMap<Vec<usize>, AllowanceId> = AHashMap::new();
        let mut naming = Vec::new();
        let mut towards = |pod: &PlainPod, is_v4: bool, sources: &AddressSet| {
            let mut addresses = pod.addresses.iter().copied().filter(|address| address.is_ipv4() == is_v4);
            let Some(address) = addresses.next().filter(|_| !sources.is_empty()) else { return OPEN };
            naming.clear();
            naming.extend((0..list.rules.len()).filter(|&at| names(&list.rules[at].peers, address)));
            if let Some(&reach) = by_naming.get(naming.as_slice()) {
                return reach;
            }
            let reach = Allowance::of(&list.rules, &naming).map_or(OPEN, |reach| self.reach.id(reach));
            by_naming.insert(naming.clone(), reach);
            reach
        };
        let row = self.pods.values().enumerate();
        let row = row.map(|(at, pod)| kept(at).unwrap_or_else(|| [towards(pod, true, &v4), towards(pod, false, &v6)]));
        let reach: Vec<[AllowanceId; 2]> = row.collect();
        let (v4, v6) = (self.sources_id(v4), self.sources_id(v6));
        EgressClass { list, sources: Arc::new(sources), v4, v6, reach: reach.into() }
    }

    fn sources_id(&mut self, set: AddressSet) -> (SourcesId, Arc<AddressSet>) {
        if let Some((set, &id)) = self.sources.get_key_value(&set) {
            return (id, set.clone());
        }
        self.sources_given += 1;
        let set = Arc::new(set);
        self.sources.insert(set.clone(), self.sources_given);
        self.source_sets.insert(self.sources_given, set.clone());
        (self.sources_given, set)
    }

    /// Works out the keys: of all pods when the classes' rows changed, else of the transaction's pods. Returns whether
    /// any key changed.
    fn rebuild_keys(&mut self, all: bool, of: &[(PodName, Option<Arc<PlainPod>>)]) -> bool {
        let mut changed = false;
        if all {
            let mut ids = BTreeMap::new();
            for (at, (name, config)) in self.pods.iter().enumerate() {
                let restrictions = self.restrictions.id(restrictions(&self.classes, at));
                let ingress = config.ingress.as_ref().map(|list| list.revision);
                ids.insert(name.clone(), self.keys.id(LocalKey { ingress, restrictions }));
            }
            changed = ids != self.ids;
            self.ids = ids;
            self.sweep();
            return changed;
        }
        for (name, _) in of {
            let (Some(config), Some(id)) = (self.pods.get(name), self.ids.get_mut(name)) else { continue };
            let Some(key) = self.keys.get(id) else { continue };
            let ingress = config.ingress.as_ref().map(|list| list.revision);
            if key.ingress != ingress {
                let key = LocalKey { ingress, ..**key };
                *id = self.keys.id(key);
                changed = true;
            }
        }
        self.keys.sweep(|| self.ids.values().copied().collect());
        changed
    }

    /// Forgets what no class has any more.
    fn sweep(&mut self) {
        let classes = &self.classes;
        self.reach.sweep(|| classes.iter().flat_map(|class| class.reach.iter().flatten()).copied().collect());
        let live: ahash::AHashSet<_> = classes.iter().flat_map(|class| [class.v4.0, class.v6.0]).collect();
        self.sources.retain(|_, id| live.contains(id));
        self.source_sets.retain(|id, _| live.contains(id));
        let (ids, keys) = (&self.ids, &mut self.keys);
        keys.sweep(|| ids.values().copied().collect());
        self.restrictions.sweep(|| ids.values().filter_map(|id| Some(keys.get(id)?.restrictions)).collect());
    }

    /// The sources that are restricted, with what they may do; none when the key is not in use any more.
    fn restrictions<'a>(
        &'a self,
        key: &LocalKey,
    ) -> Option<impl Iterator<Item = (&'a Arc<AddressSet>, &'a Arc<Allowance>)> + use<'a>> {
        let restrictions = self.restrictions.get(&key.restrictions)?;
        let known = |&(sources, reach): &_| Some((self.source_sets.get(&sources)?, self.reach.get(&reach)?));
        Some(restrictions.iter().filter_map(known))
    }

    /// The local sources that any egress rules restrict.
    pub(super) fn restricted(&self) -> AddressSet {
        self.classes.iter().fold(AddressSet::default(), |all, class| all.union(&class.sources))
    }

    /// Denials of what an exit whose rules restrict the sources `known` would let through: all from the others that are
    /// restricted.
    pub(super) fn denied_at_exit(&self, known: &AddressSet) -> Vec<Rule> {
        let denial = |class: &EgressClass| {
            let origin = class.list.rules.last()?.origin;
            denial(class.sources.subtract(known), origin)
        };
        self.classes.iter().filter_map(denial).collect()
    }

    /// Denials of what the table of the number `old` would let through in the place of another's: all from sources that it does
    /// not restrict, and the other does.
    pub(super) fn denied_locally(&self, id: LocalId, old: LocalId) -> Vec<Rule> {
        let key = |id| self.keys.get(&id).and_then(|key| self.restrictions(key));
        let sources = key(old).into_iter().flatten().map(|(sources, _)| sources);
        let known = sources.fold(AddressSet::default(), |all, sources| all.union(sources));
        let denial = |(sources, allowance): (&Arc<AddressSet>, &Arc<Allowance>)| {
            let (_, origin) = allowance.denied.first()?;
            denial(sources.subtract(&known), *origin)
        };
        key(id).into_iter().flatten().filter_map(denial).collect()
    }

    /// The rules of a pod's table.
    pub(super) fn local_rules(&self, pod: &PlainPod, id: LocalId) -> Vec<Rule> {
        let mut rules = Vec::new();
        let key = self.keys.get(&id).expect("a pod's number is in use");
        let restrictions = self.restrictions(key).expect("that of a pod's restrictions too");
        let Some(ingress) = &pod.ingress else {
            for (sources, allowance) in restrictions {
                rules.extend(allowance.rules.iter().map(|(services, action, origin)| Rule {
                    src: Addresses::Set(sources.clone()),
                    services: services.clone(),
                    ..Rule::any(*action, *origin)
                }));
            }
            rules.push(Rule::any(Action::Allow, Origins::not_isolated(Direction::Ingress)));
            return rules;
        };
        let src = Addresses::Set(self.node_addresses.clone());
        let own_node = Rule { src, ..Rule::any(Action::Allow, Origins::OWN_NODE) };
        let own_node = ingress.own_node.filter(|_| !self.node_addresses.is_empty()).map(|at| (at, own_node));
        // No class has the node's addresses among its sources, so that it comes first where it may.
        rules.extend(own_node.iter().filter(|(at, _)| *at == 0).map(|(_, rule)| rule.clone()));
        for (sources, allowance) in restrictions {
            rules.extend(allowance.denied.iter().map(|(services, origin)| Rule {
                src: Addresses::Set(sources.clone()),
                services: services.clone(),
                ..Rule::any(Action::Deny, *origin)
            }));
        }
        let (before, after) = ingress.rules.split_at(own_node.as_ref().map_or(0, |(at, _)| *at));
        rules.extend(before.iter().map(from_peers));
        rules.extend(own_node.filter(|(at, _)| *at > 0).map(|(_, rule)| rule));
        rules.extend(after.iter().map(from_peers));
        rules
    }

    /// How the table of one number becomes that of another, when only sets of the ingress list have changed. `rules` is how many rules
    /// the table has. None when more has changed.
    pub(super) fn replaced(
        &self,
        (old_id, old): (LocalId, &PlainList),
        (id, new): (LocalId, &PlainList),
        rules: usize,
    ) -> Option<Vec<Change>> {
        let [before, after] = [self.keys.get(&old_id)?, self.keys.get(&id)?];
        // With the own node among its rules the list is not the end of the table.
        let is_end = old.own_node == new.own_node && new.own_node.is_none_or(|at| at == 0);
        if before.restrictions != after.restrictions || !is_end || old.rules.len() != new.rules.len() {
            return None;
        }
        let first = rules.checked_sub(new.rules.len())?;
        let different = old.rules.iter().zip(&new.rules).enumerate().filter(|(_, (old, new))| old != new);
        Some(different.map(|(at, (_, new))| Change::Replace { at: first + at, rule: from_peers(new) }).collect())
    }

    /// The rules of the node-exit table.
    pub(super) fn global_rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        let dst = Addresses::Set(self.node_addresses.clone());
        let own_node = Rule { dst, ..Rule::any(Action::Allow, Origins::OWN_NODE) };
        let knows_node = !self.node_addresses.is_empty();
        // One rule serves all classes, unless one of them asks other rules first.
        let first = knows_node && self.classes.iter().all(|class| class.list.own_node == Some(0));
        rules.extend((first && !self.classes.is_empty()).then(|| own_node.clone()));
        for class in &self.classes {
            let src = Addresses::Set(class.sources.clone());
            let listed = |rule: &PlainRule| Rule {
                src: src.clone(),
                dst: rule.peers.clone(),
                src_ports: PortRange::ALL,
                services: rule.services.clone(),
                action: rule.action,
                origin: rule.origin,
            };
            let own_at = class.list.own_node.filter(|_| knows_node && !first);
            let (before, after) = class.list.rules.split_at(own_at.unwrap_or(0));
            rules.extend(before.iter().map(listed));
            rules.extend(own_at.map(|_| Rule { src: src.clone(), ..own_node.clone() }));
            rules.extend(after.iter().map(listed));
        }
        rules.push(Rule::any(Action::Allow, Origins::not_isolated(Direction::Egress)));
        rules
    }
}

fn denial(sources: AddressSet, origin: OriginId) -> Option<Rule> {
    let denies = !sources.is_empty();
    denies.then(|| Rule { src: sources.into(), ..Rule::any(Action::Deny, origin) })
}

/// A rule of a pod's ingress list in its table.
fn from_peers(rule: &PlainRule) -> Rule {
    Rule { src: rule.peers.clone(), services: rule.services.clone(), ..Rule::any(rule.action, rule.origin) }
}

/// What the classes may not do towards the pod of a column.
fn restrictions(classes: &[EgressClass], at: usize) -> Restrictions {
    let mut restrictions = Vec::new();
    for class in classes {
        let [v4, v6] = class.reach[at];
        restrictions.extend((v4 != OPEN).then_some((class.v4.0, v4)));
        restrictions.extend((v6 != OPEN).then_some((class.v6.0, v6)));
    }
    restrictions
}
