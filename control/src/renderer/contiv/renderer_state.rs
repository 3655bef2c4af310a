//! The cache's state and its update: finds the pairs of pods that a transaction affects, and the resulting tables.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::Action;

use self::changes::in_table_order;
use super::combine::{self, Overlay};
use super::list::{PeerList, PodLists};
use super::rules::Rules;
use super::table::{Table, TableName};
use super::{Orientation, TooManyTuples};
use crate::object::PodName;
use crate::renderer::contiv::tuple::SixTuple;

/// The pods, lists and tables of the cache after a transaction.
#[derive(Clone, Debug)]
pub struct RendererState {
    orientation: Orientation,
    limit: usize,
    pods: BTreeMap<PodName, PodLists>,
    /// Pods by the list on which their own table is based.
    owners: AHashMap<Arc<PeerList>, Arc<BTreeSet<PodName>>>,
    claims: BTreeMap<IpAddr, Arc<BTreeSet<PodName>>>,
    /// Lists to enforce in the tables of other pods, by the pod's address.
    others: BTreeMap<IpAddr, Arc<PeerList>>,
    overlays: BTreeMap<PodName, Arc<Overlay>>,
    made: AHashMap<(Arc<PeerList>, Arc<Overlay>), Arc<Table>>,
    table_of: BTreeMap<PodName, Arc<Table>>,
    tables: BTreeMap<TableName, Shared>,
    global: Arc<Table>,
    /// The number of 6-tuples in all tables together.
    tuples: usize,
    /// Whether the tables come from a dump, so that the lists behind them are unknown.
    recovered: bool,
}

/// A table and the pods that share it.
#[derive(Clone, Debug)]
struct Shared {
    table: Arc<Table>,
    pods: Arc<BTreeSet<PodName>>,
}

/// Changed addresses with their previous lists.
type Exchanged = BTreeMap<IpAddr, Option<Arc<PeerList>>>;

/// The pods that a transaction changed, with their previous and new addresses.
#[derive(Debug, Default)]
struct Touched {
    pods: BTreeSet<PodName>,
    addresses: BTreeSet<IpAddr>,
}

impl RendererState {
    pub(super) fn new(orientation: Orientation, limit: usize) -> Self {
        Self {
            orientation,
            limit,
            pods: BTreeMap::new(),
            owners: AHashMap::new(),
            claims: BTreeMap::new(),
            others: BTreeMap::new(),
            overlays: BTreeMap::new(),
            made: AHashMap::new(),
            table_of: BTreeMap::new(),
            tables: BTreeMap::new(),
            global: Arc::new(Table::of(Rules::default())),
            tuples: 0,
            recovered: false,
        }
    }

    /// Creates a state from the tables of a dump. Returns a pod that is in two of them as the error.
    pub(super) fn recovered(
        orientation: Orientation,
        limit: usize,
        locals: impl IntoIterator<Item = (Vec<SixTuple>, BTreeSet<PodName>)>,
        global: Vec<SixTuple>,
    ) -> Result<Self, PodName> {
        let mut fresh = Self::new(orientation, limit);
        fresh.recovered = true;
        let sorted = |mut rules: Vec<SixTuple>| {
            rules.sort_unstable();
            Arc::new(Table::of(Rules::of_sorted(&rules)))
        };
        for (rules, pods) in locals {
            let table = fresh.insert(sorted(rules));
            for name in pods {
                if fresh.table_of.insert(name.clone(), table.clone()).is_some() {
                    return Err(name);
                }
                fresh.share(&table, name);
            }
        }
        fresh.global = sorted(global);
        fresh.tuples += fresh.global.rules.len();
        Ok(fresh)
    }

    pub(super) const fn is_recovered(&self) -> bool {
        self.recovered
    }

    /// Returns the pods with their lists.
    pub fn pods(&self) -> &BTreeMap<PodName, PodLists> {
        &self.pods
    }

    /// Returns each pod's table. A pod without an entry is not restricted.
    pub fn locals(&self) -> &BTreeMap<PodName, Arc<Table>> {
        &self.table_of
    }

    /// Returns the local tables and the pods that share each, in Contiv's order: by number of rules, then by rules.
    pub fn tables(&self) -> Vec<(&Arc<Table>, &BTreeSet<PodName>)> {
        let mut tables: Vec<_> = self.tables.values().map(|shared| (&shared.table, &*shared.pods)).collect();
        tables.sort_by(|(a, _), (b, _)| in_table_order(a, b));
        tables
    }

    /// Returns the table of the node's exit (egress orientation) or entrance (ingress orientation). Not applied if it has no rules.
    pub fn global(&self) -> &Arc<Table> {
        &self.global
    }

    fn lists(&self, config: &PodLists) -> (Arc<PeerList>, Arc<PeerList>) {
        let PodLists { ingress, egress, .. } = config;
        match self.orientation {
            Orientation::Egress => (ingress.clone(), egress.clone()),
            Orientation::Ingress => (egress.clone(), ingress.clone()),
        }
    }

    /// Applies a transaction. After an error the state is invalid and must be discarded.
    pub(super) fn apply(&mut self, updates: &[(PodName, Option<PodLists>)]) -> Result<(), TooManyTuples> {
        let mut touched = Touched::default();
        for (name, config) in updates {
            self.configure(name, config.as_ref(), &mut touched);
        }
        let (closed, exchanged) = self.exchange_others(&touched.addresses)?;
        let moved = self.combine(&touched.pods, &closed);
        for name in &moved {
            self.detach(name);
        }
        if self.recovered || !exchanged.is_empty() {
            self.exchange_global(&exchanged)?;
        }
        for name in &moved {
            self.attach(name)?;
        }
        let tables = &self.tables;
        self.made.retain(|_, table| tables.get(&table.id).is_some_and(|shared| Arc::ptr_eq(&shared.table, table)));
        self.recovered = false;
        Ok(())
    }

    fn configure(&mut self, name: &PodName, config: Option<&PodLists>, touched: &mut Touched) {
        if self.pods.get(name) == config && !self.recovered {
            return;
        }
        touched.pods.insert(name.clone());
        if let Some(old) = self.pods.remove(name) {
            let (own, _) = self.lists(&old);
            if let Some(owners) = self.owners.get_mut(&own) {
                Arc::make_mut(owners).remove(name);
                if owners.is_empty() {
                    self.owners.remove(&own);
                }
            }
            for address in &old.addresses {
                if let Some(claimants) = self.claims.get_mut(address) {
                    Arc::make_mut(claimants).remove(name);
                    if claimants.is_empty() {
                        self.claims.remove(address);
                    }
                }
                touched.addresses.insert(*address);
            }
        }
        if let Some(config) = config {
            let (own, _) = self.lists(config);
            Arc::make_mut(self.owners.entry(own).or_default()).insert(name.clone());
            for address in &config.addresses {
                Arc::make_mut(self.claims.entry(*address).or_default()).insert(name.clone());
                touched.addresses.insert(*address);
            }
            self.pods.insert(name.clone(), config.clone());
        }
    }

    /// Updates the lists behind these addresses. Returns the addresses whose closed list changed, and all changed addresses with their
    /// previous lists.
    fn exchange_others(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(Vec<IpAddr>, Exchanged), TooManyTuples> {
        let (mut closed, mut exchanged) = (Vec::new(), Exchanged::new());
        for &address in addresses {
            let mut list: Option<Arc<PeerList>> = None;
            for name in self.claims.get(&address).into_iter().flat_map(|names| names.iter()) {
                let (_, other) = self.lists(&self.pods[name]);
                list = Some(match list {
                    Some(list) if list != other => Arc::new(self.both(address, &list, &other)?),
                    _ => other,
                });
            }
            let list = list.filter(|list| !list.rules().is_empty());
            let old = match &list {
                Some(list) => self.others.insert(address, list.clone()),
                None => self.others.remove(&address),
            };
            if old != list {
                let is_closed = |list: &Option<Arc<PeerList>>| list.as_ref().is_some_and(|list| list.is_closed());
                if is_closed(&old) || is_closed(&list) {
                    closed.push(address);
                }
                exchanged.insert(address, old);
            }
        }
        Ok((closed, exchanged))
    }

    fn both(&self, address: IpAddr, a: &PeerList, b: &PeerList) -> Result<PeerList, TooManyTuples> {
        if a.is_closed() && b.is_closed() {
            let product = a.rules().len().saturating_mul(b.rules().len());
            self.check(|| format!("the common rules of two pods that claim {address}"), product)?;
        }
        Ok(a.intersect(b))
    }

    /// Updates the overlays. Returns the pods whose table may change.
    fn combine(&mut self, changed: &BTreeSet<PodName>, closed: &[IpAddr]) -> BTreeSet<PodName> {
        let mut moved = changed.clone();
        for name in changed {
            self.overlays.remove(name);
            if let Some(config) = self.pods.get(name) {
                let (own, _) = self.lists(config);
                let owner = config.addresses.iter().copied().collect();
                let overlay = combine::overlay(&own, &owner, &self.others);
                self.overlays.insert(name.clone(), Arc::new(overlay));
            }
        }
        let others = |pods: &BTreeSet<PodName>| pods.difference(changed).cloned().collect::<Vec<_>>();
        let unchanged = self.owners.iter().map(|(own, pods)| (own, others(pods))).filter(|(_, pods)| !pods.is_empty());
        let unchanged: Vec<_> = unchanged.collect();
        for &address in closed {
            let open = Arc::new(PeerList::default());
            let other = self.others.get(&address).filter(|list| list.is_closed()).unwrap_or(&open);
            for (own, owners) in &unchanged {
                let allowed = own.allowed(address);
                if allowed.is_nothing() {
                    continue;
                }
                for name in owners {
                    let owner = self.pods[name].addresses.iter().copied().collect();
                    let rules = combine::pair(&allowed, address, other, &owner);
                    let overlay = self.overlays.entry(name.clone()).or_default();
                    if overlay.get(&address) == rules.as_ref() {
                        continue;
                    }
                    match rules {
                        Some(rules) => Arc::make_mut(overlay).insert(address, rules),
                        None => Arc::make_mut(overlay).remove(&address),
                    };
                    moved.insert(name.clone());
                }
            }
        }
        moved
    }

    fn detach(&mut self, name: &PodName) {
        let Some(table) = self.table_of.remove(name) else { return };
        let Some(shared) = self.tables.get_mut(&table.id) else { return };
        Arc::make_mut(&mut shared.pods).remove(name);
        if shared.pods.is_empty() {
            self.tables.remove(&table.id);
            self.tuples -= table.rules.len();
        }
    }

    fn attach(&mut self, name: &PodName) -> Result<(), TooManyTuples> {
        let Some(config) = self.pods.get(name) else { return Ok(()) };
        let (own, _) = self.lists(config);
        let overlay = self.overlays.get(name).cloned().unwrap_or_default();
        if own.rules().is_empty() && overlay.is_empty() {
            return Ok(());
        }
        let key = (own, overlay);
        let table = match self.made.get_key_value(&key) {
            Some(((_, overlay), table)) => {
                self.overlays.insert(name.clone(), overlay.clone());
                table.clone()
            }
            None => {
                let (own, overlay) = &key;
                self.check(|| format!("the table of pod {name}"), self.tuples + combine::size(own, overlay))?;
                Arc::new(Table::of(combine::local_rules(self.orientation, own, overlay)))
            }
        };
        let table = self.insert(table);
        self.check(|| format!("the table of pod {name}"), self.tuples)?;
        self.share(&table, name.clone());
        self.made.insert(key, table.clone());
        self.table_of.insert(name.clone(), table);
        Ok(())
    }

    /// Returns the cache's table with the same rules, or adds `table`. If another table has its name, the next free name is used. (Contiv
    /// treats equal names as equal content, which can leave a pod without a table.)
    fn insert(&mut self, table: Arc<Table>) -> Arc<Table> {
        let mut id = table.id;
        while let Some(shared) = self.tables.get(&id) {
            if Arc::ptr_eq(&shared.table, &table) || shared.table.rules == table.rules {
                return shared.table.clone();
            }
            id = TableName(id.0.wrapping_add(1));
        }
        let table = if table.id == id { table } else { Arc::new(Table { id, rules: table.rules.clone() }) };
        self.tuples += table.rules.len();
        self.tables.insert(id, Shared { table: table.clone(), pods: Arc::default() });
        table
    }

    fn share(&mut self, table: &Table, name: PodName) {
        if let Some(shared) = self.tables.get_mut(&table.id) {
            Arc::make_mut(&mut shared.pods).insert(name);
        }
    }

    /// Replaces the rules of these addresses in the global table. Replaces all rules if their origin is unknown.
    fn exchange_global(&mut self, exchanged: &Exchanged) -> Result<(), TooManyTuples> {
        let before = if self.recovered { Rules::default() } else { self.global.rules.clone() };
        let addresses: Vec<IpAddr> =
            if self.recovered { self.others.keys().copied().collect() } else { exchanged.keys().copied().collect() };
        let nothing = PeerList::default();
        let lists = || {
            addresses.iter().map(|address| {
                let old = exchanged.get(address).and_then(Option::as_deref).filter(|_| !self.recovered);
                (*address, old.unwrap_or(&nothing), self.others.get(address).map_or(&nothing, |list| &**list))
            })
        };
        let closing = [SixTuple::any(Action::Allow)];
        let ours: usize = lists().map(|(address, old, _)| combine::global_size(address, old)).sum();
        let others = before.len().saturating_sub(ours + usize::from(!before.is_empty()));
        let more: usize = lists().map(|(.., new)| new.rules().len()).sum();
        let locals = self.tuples - self.global.rules.len();
        self.check(|| "the global table".into(), locals + others + more + 1)?;
        let (mut gone, mut new, mut count) = (Vec::new(), Vec::new(), others);
        for (address, before, after) in lists() {
            let (out, come) = before.difference(after);
            gone.extend(combine::global_rules(self.orientation, address, out));
            new.extend(combine::global_rules(self.orientation, address, come));
            count += combine::global_size(address, after);
        }
        gone.sort_unstable();
        new.sort_unstable();
        // The allow of the rest is last, if any other rule exists.
        match (before.is_empty(), count == 0) {
            (true, false) => new.extend(closing),
            (false, true) => gone.extend(closing),
            _ => {}
        }
        let rules = before.changed(&gone, &new);
        self.tuples = locals + rules.len();
        if rules != self.global.rules {
            self.global = Arc::new(Table::of(rules));
        }
        Ok(())
    }

    fn check(&self, what: impl FnOnce() -> String, tuples: usize) -> Result<(), TooManyTuples> {
        if tuples <= self.limit {
            return Ok(());
        }
        Err(TooManyTuples { what: format!("{} (with all other tables)", what()), tuples, limit: self.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tables_with_one_fingerprint_both_live_and_are_found_again() {
        // Contiv's fault B1: two tables with one name were treated as equal. The second table was refused, and its pod was not restricted.
        let mut state = RendererState::new(Orientation::Egress, 100);
        let table =
            |action| Arc::new(Table { id: TableName(u64::MAX), rules: Rules::of_sorted(&[SixTuple::any(action)]) });
        let allow = state.insert(table(Action::Allow));
        let deny = state.insert(table(Action::Deny));
        assert_ne!(allow.id, deny.id);
        assert_eq!([&allow, &deny].map(|table| table.rules.last().unwrap().action), [Action::Allow, Action::Deny]);
        for (again, first) in [(Action::Allow, &allow), (Action::Deny, &deny)] {
            assert!(Arc::ptr_eq(&state.insert(table(again)), first));
        }
        assert_eq!(state.tuples, 2);
    }
}
