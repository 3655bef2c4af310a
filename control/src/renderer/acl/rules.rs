//! The rules of a node: turns each pod's two rule lists into one table per interface, and tells which tables a transaction changed.
//!
//! A packet is judged once, where it leaves the vswitch: at the destination pod's interface, or at the node's exit. So the denials of the
//! *source's* egress policies are in the destination's table (Contiv: `CombineRules`). For destinations outside the node, they are in the
//! node-exit table (`BuildGlobalTable`):
//!
//! ```text
//!  table of pod P                                          node-exit table
//!  1 own node                         allow                1 own node                       allow
//!  2 for each class of local sources: deny what their      2 for each class of local sources with the same
//!    egress rules do not allow towards P                     egress rules: sources x peers x services
//!  3 P's ingress rules                allow                                                 allow, rest deny
//!  4 everything else                  deny                 3 everything else                allow
//! ```
//! The table of a pod that no policy isolates contains the egress rules of the classes that are restricted towards it, then an allow.
//!
//! **Why not Contiv's algorithm.** Contiv visits every pair of pods and, if their lists differ, writes the intersection of their ports.
//! That takes O(pods^2 x rules), and the result names neither list as the reason. Here, sources with the same egress rules are one class.
//! Each class adds what its list denies: one rule with NetworkPolicy alone, the complement of the allowed services. The verdict then names
//! the side that denied. Both methods enforce "the source's list AND the destination's list". If a list has rules of the Admin tier, its
//! own-node rule follows them instead of being first, as do other products' rules about the own node.
//!
//! Pods with equal tables share one.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, Change, OriginId, Rule};

use super::allowance::Allowance;
use super::classes::{Classes, EgressClass, Restrictions};
use super::interned::Interned;
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::plain::{PlainList, PlainPod, PlainRule, on_node};

/// Identifies the inputs of a pod's table. Equal numbers mean equal tables. A number is never reused.
pub(super) type LocalId = u64;

/// The inputs of a pod's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LocalKey {
    ingress: Option<u64>,
    restrictions: RestrictionsId,
}

/// Identifies [`Restrictions`]. A number is never reused.
type RestrictionsId = u64;

/// The parts of a node's tables that a transaction changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether any pod's table changed.
    pub(super) locals: bool,
    /// Whether a pod was added, removed, or changed its addresses.
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

/// The inputs of a node's tables: its addresses, its pods with their rule lists, and its egress classes.
#[derive(Debug, Default)]
pub(super) struct NodeRules {
    node_addresses: Arc<AddressSet>,
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    classes: Classes,
    ids: BTreeMap<PodName, LocalId>,
    keys: Interned<LocalKey>,
    restrictions: Interned<Restrictions>,
}

impl NodeRules {
    /// Returns the number of stored keys, restrictions, allowances and source sets.
    #[cfg(test)]
    pub(super) fn interned(&self) -> usize {
        self.keys.len() + self.restrictions.len() + self.classes.interned()
    }

    /// Returns the pods, sorted by name.
    pub(super) fn pods(&self) -> &BTreeMap<PodName, Arc<PlainPod>> {
        &self.pods
    }

    /// Returns the number of each pod's table, sorted by pod.
    pub(super) fn ids(&self) -> &BTreeMap<PodName, LocalId> {
        &self.ids
    }

    /// Sets the node's own addresses. Returns whether they changed.
    pub(super) fn set_node_addresses(&mut self, addresses: AddressSet) -> bool {
        let changed = *self.node_addresses != addresses;
        if changed {
            self.node_addresses = Arc::new(addresses);
        }
        changed
    }

    /// Applies changed pods with their new rule lists, `None` for a removed pod. With `resync`, removes all other pods. Returns which parts
    /// of the node's tables changed.
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
        let (rows, global) = self.classes.group(&self.pods, interfaces);
        let keys = self.rebuild_keys(rows || interfaces, pods);
        Changes { locals: keys || interfaces, interfaces, global }
    }

    /// Updates the keys of all pods if the classes' rows changed, otherwise those of the transaction's pods. Returns whether any key
    /// changed.
    fn rebuild_keys(&mut self, all: bool, of: &[(PodName, Option<Arc<PlainPod>>)]) -> bool {
        let mut changed = false;
        if all {
            let mut ids = BTreeMap::new();
            for (at, (name, config)) in self.pods.iter().enumerate() {
                let restrictions = self.restrictions.id(self.classes.restrictions(at));
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

    /// Removes values that nothing uses.
    fn sweep(&mut self) {
        self.classes.sweep();
        let (ids, keys) = (&self.ids, &mut self.keys);
        keys.sweep(|| ids.values().copied().collect());
        self.restrictions.sweep(|| ids.values().filter_map(|id| Some(keys.get(id)?.restrictions)).collect());
    }

    /// Returns the restricted sources with their allowances. `None` if the key is no longer in use.
    fn restrictions<'a>(
        &'a self,
        key: &LocalKey,
    ) -> Option<impl Iterator<Item = (&'a Arc<AddressSet>, &'a Arc<Allowance>)> + use<'a>> {
        let restrictions = self.restrictions.get(&key.restrictions)?;
        Some(restrictions.iter().filter_map(|restriction| self.classes.restriction(restriction)))
    }

    /// Returns the local sources that any egress rule restricts.
    pub(super) fn restricted(&self) -> AddressSet {
        self.classes.sources()
    }

    /// Returns the denials to put before an outdated exit table that restricts only the sources `known`: one per other restricted class.
    pub(super) fn denied_at_exit(&self, known: &AddressSet) -> Vec<Rule> {
        let denial = |class: &EgressClass| {
            let origin = class.list.rules.last()?.origin;
            denial(class.sources.subtract(known), origin)
        };
        self.classes.all().iter().filter_map(denial).collect()
    }

    /// Returns the denials to put before the table of number `old` if it replaces the table of number `id`: for the sources that only the
    /// latter restricts.
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

    /// Returns the rules of a pod's table, in order of evaluation. The first match decides.
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
        // No class contains a node address, so the first rules about the own node can precede those of the classes.
        let first = ingress.own_node.partition_point(|own| own.before == 0);
        let (first, inside) = ingress.own_node.split_at(first);
        rules.extend(first.iter().filter_map(|own| own.on(&self.node_addresses)).map(|rule| from_peers(&rule)));
        for (sources, allowance) in restrictions {
            rules.extend(allowance.denied.iter().map(|(services, origin)| Rule {
                src: Addresses::Set(sources.clone()),
                services: services.clone(),
                ..Rule::any(Action::Deny, *origin)
            }));
        }
        if inside.is_empty() {
            rules.extend(ingress.rules.iter().map(from_peers));
        } else {
            rules.extend(on_node(&ingress.rules, inside, &self.node_addresses).iter().map(from_peers));
        }
        rules
    }

    /// Returns the changes that turn the table of one number, with `rules` rules, into that of another. `None` if more than sets of the
    /// ingress list changed.
    pub(super) fn replaced(
        &self,
        (old_id, old): (LocalId, &PlainList),
        (id, new): (LocalId, &PlainList),
        rules: usize,
    ) -> Option<Vec<Change>> {
        let [before, after] = [self.keys.get(&old_id)?, self.keys.get(&id)?];
        // If a rule about the own node is inside the list, the list is not the end of the table.
        let is_end = old.own_node == new.own_node && new.own_node.iter().all(|own| own.before == 0);
        if before.restrictions != after.restrictions || !is_end || old.rules.len() != new.rules.len() {
            return None;
        }
        let first = rules.checked_sub(new.rules.len())?;
        let different = old.rules.iter().zip(&new.rules).enumerate().filter(|(_, (old, new))| old != new);
        Some(different.map(|(at, (_, new))| Change::Replace { at: first + at, rule: from_peers(new) }).collect())
    }

    /// Returns the rules of the node-exit table, in order of evaluation. The first match decides.
    pub(super) fn global_rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        let dst = Addresses::Set(self.node_addresses.clone());
        let own_node = Rule { dst, ..Rule::any(Action::Allow, Origins::OWN_NODE) };
        let knows_node = !self.node_addresses.is_empty();
        // One own-node rule serves all classes, unless a class has rules before its own.
        let first = knows_node && self.classes.all().iter().all(|class| class.list.accepts_own_node_first());
        rules.extend((first && !self.classes.all().is_empty()).then(|| own_node.clone()));
        for class in self.classes.all() {
            let src = Addresses::Set(class.sources.clone());
            let listed = |rule: &PlainRule| Rule { src: src.clone(), ..rule.to_peers() };
            if first || !knows_node || class.list.own_node.is_empty() {
                rules.extend(class.list.rules.iter().map(listed));
            } else {
                rules.extend(class.list.on_node(&self.node_addresses).iter().map(listed));
            }
        }
        rules.push(Rule::any(Action::Allow, Origins::not_isolated(Direction::Egress)));
        rules
    }
}

fn denial(sources: AddressSet, origin: OriginId) -> Option<Rule> {
    let denies = !sources.is_empty();
    denies.then(|| Rule { src: sources.into(), ..Rule::any(Action::Deny, origin) })
}

/// Converts a rule of a pod's ingress list to a rule of its table.
fn from_peers(rule: &PlainRule) -> Rule {
    Rule { src: rule.peers.clone(), services: rule.services.clone(), ..Rule::any(rule.action, rule.origin) }
}
