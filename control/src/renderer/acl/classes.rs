//! Groups the pods of a node into classes: the pods of a class have the same egress rules.
//!
//! ```text
//!                      web     db      log    columns: the pods
//!   class of web        .     3, .    7, 7    what it may send to each pod's IPv4 and IPv6 address:
//!   class of db, log   5, 5    .       .      the number of an Allowance, or everything (.)
//! ```
//! The number of an [`Allowance`] identifies what a class may send to one address.
//!
//! **Cost.** What a class may send to each local address is computed once per rule list. If a list changed only for other destinations, the
//! row is unchanged and no local table is recomputed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{AddressSet, Addresses};

use super::allowance::{Allowance, names};
use super::interned::Interned;
use crate::object::PodName;
use crate::renderer::plain::{PlainList, PlainPod, PlainRule};

/// The classes restricted towards a pod: their source addresses and allowances.
pub(super) type Restrictions = Vec<(SourcesId, AllowanceId)>;

/// Identifies a set of source addresses. A number is never reused.
pub(super) type SourcesId = u64;

/// Identifies an [`Allowance`]. A number is never reused.
pub(super) type AllowanceId = u64;

/// The number for a class that may send everything to an address.
const OPEN: AllowanceId = 0;

/// Local pods with the same egress rules.
#[derive(Clone, Debug)]
pub(super) struct EgressClass {
    pub(super) list: Arc<PlainList>,
    pub(super) sources: Arc<AddressSet>,
    v4: (SourcesId, Arc<AddressSet>),
    v6: (SourcesId, Arc<AddressSet>),
    /// For each destination pod, in the order of [`Classes::columns`]: the allowance for its IPv4 and for its IPv6 address.
    reach: Arc<[[AllowanceId; 2]]>,
}

/// The egress classes of a node.
#[derive(Debug, Default)]
pub(super) struct Classes {
    /// All classes, sorted by each class's first pod.
    all: Vec<EgressClass>,
    /// The destination pods to which the entries of [`EgressClass::reach`] refer, in the same order, each with its addresses.
    columns: Vec<(PodName, Vec<IpAddr>)>,
    allowances: Interned<Allowance>,
    sources: AHashMap<Arc<AddressSet>, SourcesId>,
    source_sets: AHashMap<SourcesId, Arc<AddressSet>>,
    sources_given: SourcesId,
}

impl Classes {
    /// Returns all classes, sorted by each class's first pod.
    pub(super) fn all(&self) -> &[EgressClass] {
        &self.all
    }

    /// Returns the number of stored allowances and source sets.
    #[cfg(test)]
    pub(super) fn interned(&self) -> usize {
        self.allowances.len() + self.sources.len()
    }

    pub(super) fn sources(&self) -> AddressSet {
        self.all.iter().fold(AddressSet::default(), |all, class| all.union(&class.sources))
    }

    /// Returns the restrictions that apply towards the pod of a column.
    pub(super) fn restrictions(&self, column: usize) -> Restrictions {
        let mut restrictions = Vec::with_capacity(self.all.len());
        for class in &self.all {
            let [v4, v6] = class.reach[column];
            restrictions.extend((v4 != OPEN).then_some((class.v4.0, v4)));
            restrictions.extend((v6 != OPEN).then_some((class.v6.0, v6)));
        }
        restrictions
    }

    /// Looks up a restriction: the source addresses, and what they may send. `None` if either number is no longer in use.
    pub(super) fn restriction(
        &self,
        (sources, allowance): &(SourcesId, AllowanceId),
    ) -> Option<(&Arc<AddressSet>, &Arc<Allowance>)> {
        Some((self.source_sets.get(sources)?, self.allowances.get(allowance)?))
    }

    /// Removes allowances and source sets that no class uses.
    pub(super) fn sweep(&mut self) {
        let classes = &self.all;
        self.allowances.sweep(|| classes.iter().flat_map(|class| class.reach.iter().flatten()).copied().collect());
        let live: ahash::AHashSet<_> = classes.iter().flat_map(|class| [class.v4.0, class.v6.0]).collect();
        self.sources.retain(|_, id| live.contains(id));
        self.source_sets.retain(|id, _| live.contains(id));
    }

    /// Groups the pods by egress rules. Returns two flags: whether any restriction towards a local pod changed, and whether anything about
    /// the classes changed.
    pub(super) fn group(&mut self, pods: &BTreeMap<PodName, Arc<PlainPod>>, addresses_changed: bool) -> (bool, bool) {
        let mut order: Vec<(Arc<PlainList>, Vec<IpAddr>)> = Vec::new();
        let mut at_revision: AHashMap<u64, usize> = AHashMap::new();
        for config in pods.values() {
            let Some(list) = &config.egress else { continue };
            let at = *at_revision.entry(list.revision).or_insert_with(|| {
                order.push((list.clone(), Vec::new()));
                order.len() - 1
            });
            order[at].1.extend(&config.addresses);
        }
        // Compares in order, which is the order of the rules. A pod can change the order without changing any source set, if another pod
        // has its address.
        let row = |class: &EgressClass| (class.v4.0, class.v6.0, class.reach.clone());
        let (old_rows, old_order): (Vec<_>, Vec<_>) =
            self.all.iter().map(|class| (row(class), class.list.revision)).unzip();
        let mut old: AHashMap<u64, EgressClass> =
            std::mem::take(&mut self.all).into_iter().map(|class| (class.list.revision, class)).collect();
        let mut by_sources: AHashMap<Arc<AddressSet>, Vec<EgressClass>> = AHashMap::new();
        for class in old.values().filter(|_| !addresses_changed) {
            by_sources.entry(class.sources.clone()).or_default().push(class.clone());
        }
        let mut changed = order.len() != old.len();
        let places = if addresses_changed { self.move_columns(pods) } else { Vec::new() };
        let columns = std::mem::take(&mut self.columns);
        let mut differences = Differences::new(&columns);
        for (list, addresses) in order {
            let sources: AddressSet = addresses.into_iter().collect();
            let before = old.remove(&list.revision);
            let same = before.as_ref().filter(|class| *class.sources == sources && !addresses_changed);
            changed |= same.is_none();
            let same = same.cloned().or_else(|| follow(by_sources.get(&sources)?.first()?, &list, &mut differences));
            let class = same.unwrap_or_else(|| self.new_class(pods, list, sources, before.as_ref(), &places));
            self.all.push(class);
        }
        self.columns = columns;
        changed |= !self.all.iter().map(|class| class.list.revision).eq(old_order);
        (!self.all.iter().map(row).eq(old_rows), changed)
    }

    /// Replaces the columns with those of the present pods. Returns each column's previous index: `None` if the pod is new or has other
    /// addresses.
    fn move_columns(&mut self, pods: &BTreeMap<PodName, Arc<PlainPod>>) -> Vec<Option<usize>> {
        let mut before = self.columns.iter().enumerate().peekable();
        let places = pods.iter().map(|(name, pod)| {
            while before.next_if(|(_, (old, _))| old < name).is_some() {}
            let (at, _) = before.next_if(|(_, (old, _))| old == name).filter(|(_, (_, old))| *old == pod.addresses)?;
            Some(at)
        });
        let places = places.collect();
        self.columns = pods.iter().map(|(name, pod)| (name.clone(), pod.addresses.clone())).collect();
        places
    }

    /// Creates a class. Reuses the allowances of the same list for unchanged pods, from `before` at the indices `places`.
    fn new_class(
        &mut self,
        pods: &BTreeMap<PodName, Arc<PlainPod>>,
        list: Arc<PlainList>,
        sources: AddressSet,
        before: Option<&EgressClass>,
        places: &[Option<usize>],
    ) -> EgressClass {
        let (v4, v6) = (sources.only_v4(), sources.only_v6());
        let families = |v4: &AddressSet, v6: &AddressSet| (v4.is_empty(), v6.is_empty());
        let before = before.filter(|before| families(&before.v4.1, &before.v6.1) == families(&v4, &v6));
        let kept = |at: usize| before?.reach.get((*places.get(at)?)?).copied();
        // Most pods match the same rules, often only the last one. Each such combination is evaluated once.
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
            let reach = Allowance::of(&list.rules, &naming).map_or(OPEN, |reach| self.allowances.id(reach));
            by_naming.insert(naming.clone(), reach);
            reach
        };
        let row = pods.values().enumerate();
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
}

/// Returns the class with its list replaced by `list` if both lists mean the same for every pod of the node. `None` otherwise. This is the
/// common case when a list with large groups changes because of another node's pod.
fn follow(before: &EgressClass, list: &Arc<PlainList>, differences: &mut Differences<'_>) -> Option<EgressClass> {
    let (old, new) = (&before.list.rules, &list.rules);
    let same =
        |(a, b): (&PlainRule, &PlainRule)| a.action == b.action && a.origin == b.origin && a.services == b.services;
    if before.list.own_node != list.own_node || old.len() != new.len() || !old.iter().zip(new).all(same) {
        return None;
    }
    let mut pairs = old.iter().zip(new).map(|(a, b)| (&a.peers, &b.peers));
    pairs.all(|(a, b)| !differences.concern_pods(a, b)).then(|| EgressClass { list: list.clone(), ..before.clone() })
}

/// Tells whether a replaced set differs from its successor in addresses of local pods. Each pair of sets is compared once for all classes.
struct Differences<'a> {
    columns: &'a [(PodName, Vec<IpAddr>)],
    /// All addresses of the columns. `None` until first needed.
    local: Option<AddressSet>,
    /// Results by the memory addresses of both sets, which the caller keeps alive.
    known: AHashMap<[usize; 2], bool>,
}

impl<'a> Differences<'a> {
    fn new(columns: &'a [(PodName, Vec<IpAddr>)]) -> Self {
        Self { columns, local: None, known: AHashMap::new() }
    }

    fn concern_pods(&mut self, old: &Addresses, new: &Addresses) -> bool {
        let pair = match (old, new) {
            (Addresses::Any, Addresses::Any) => return false,
            (Addresses::Set(old), Addresses::Set(new)) => [Arc::as_ptr(old).addr(), Arc::as_ptr(new).addr()],
            (Addresses::Parted(old), Addresses::Parted(new)) => [Arc::as_ptr(old).addr(), Arc::as_ptr(new).addr()],
            // A set that gained parts, or became "any".
            _ => return true,
        };
        if pair[0] == pair[1] {
            return false;
        }
        if let Some(&known) = self.known.get(&pair) {
            return known;
        }
        let changed = match (old, new) {
            (Addresses::Set(old), Addresses::Set(new)) => old.difference(new),
            (Addresses::Parted(old), Addresses::Parted(new)) => old.difference(new),
            _ => AddressSet::default(),
        };
        let columns = self.columns;
        let local = self.local.get_or_insert_with(|| columns.iter().flat_map(|(_, all)| all.iter().copied()).collect());
        let concerns = !changed.intersect(local).is_empty();
        self.known.insert(pair, concerns);
        concerns
    }
}
