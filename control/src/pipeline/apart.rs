//! Egress tables: each judges the egress of pods whose egress rules name domains.
//!
//! ```text
//!   transaction --+-- other pods ---------------------------------------> renderer --> tables, one judges a packet
//!                 `-- pod whose egress names domains: without egress ---> renderer --> tables judge its packets' ingress
//!                                               `------ egress ---------> Apart -----> table of its own, which judges first
//! ```
//! The engines combine a sender's egress rules with the receiver's ingress rules in one table. A rule that names domains depends on what
//! the sender has learned, which differs between pods and changes with each DNS answer. So the egress of these pods is not combined: their
//! own table judges their packets first, then the receiver's. Packets of all other pods meet one table.
//!
//! **Rejected.** *Rules that name domains in the combined tables*: a denial of one sender's egress would need a condition "unless it has
//! learned", in every receiver's table and in three engines. *A new table whenever a pod has learned an address*: thousands of times per
//! second, and the pod's first packet would wait for it.
//!
//! **Invariant.** A pod has an egress table exactly while some of its egress rules name domains. The table has all of its egress rules, in
//! their order. If they do not fit, the pod keeps its previous egress table. Without one, all its egress is denied.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, BuildOptions, OriginId, Rule, Tables};

use crate::contract::{Endpoint, EndpointRules, TieredList, Transaction};
use crate::object::PodName;
use crate::renderer::acl::{AclTable, Attachment, Interface, NodeTables};
use crate::renderer::plain::{PlainList, PlainLists, PlainRule};
use crate::renderer::{Instead, Refusal};

/// The name of a pod that a transaction changes, and its new state. `None` if the pod was removed.
type ChangedPod = (PodName, Option<Arc<Endpoint>>);

/// A pod with an egress table.
#[derive(Clone, Debug)]
struct Pod {
    node: Arc<str>,
    list: Arc<PlainList>,
    tables: Arc<Tables>,
    /// The reason why `tables` do not have the rules of `list`, and what they have instead. `None` if they have the rules.
    refused: Option<(String, Instead)>,
}

/// The egress tables of pods, and the tables of all nodes with the egress tables added.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// The lists of the pods with an egress table, with addresses instead of sets. `None` while no pod's egress rules name domains.
    lists: Option<PlainLists>,
    /// The addresses of each node, by the node's name.
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// The pods with an egress table.
    pods: BTreeMap<PodName, Pod>,
    /// Number of changes to egress tables since the start. Added to the generation of the renderer's tables.
    changes: u64,
    /// Whether the renderer failed on a transaction, which is not in the egress tables either. Then only a resync changes them.
    is_behind: bool,
    /// Memory limit of an egress table in bytes. `None` for the classifier's default.
    pub(super) max_bytes: Option<usize>,
    /// By node: the renderer's tables, the value of `changes` when egress tables were added to them, and the result.
    combined: BTreeMap<Arc<str>, (Arc<NodeTables>, u64, Arc<NodeTables>)>,
}

/// Returns an endpoint as renderers of tables get it. If any egress rule names domains, all egress rules are in [`EndpointRules::apart`].
pub(super) fn without_names(endpoint: &Arc<Endpoint>) -> Arc<Endpoint> {
    match &endpoint.rules.egress {
        Some(list) if list.has_names() => {
            let (ingress, apart) = (endpoint.rules.ingress.clone(), Some(list.clone()));
            let rules = EndpointRules { ingress, egress: None, apart };
            Arc::new(Endpoint { rules, ..Endpoint::clone(endpoint) })
        }
        _ => endpoint.clone(),
    }
}

/// Returns a transaction as renderers of tables get it, each endpoint by [`without_names`].
pub(super) fn for_tables(transaction: &Transaction) -> Cow<'_, Transaction> {
    let of = |(name, endpoint): &ChangedPod| (name.clone(), endpoint.as_ref().map(without_names));
    match names_any(&transaction.endpoints) {
        false => Cow::Borrowed(transaction),
        true => {
            Cow::Owned(Transaction { endpoints: transaction.endpoints.iter().map(of).collect(), ..transaction.clone() })
        }
    }
}

/// Whether the egress rules of any of these pods name domains.
fn names_any(endpoints: &[ChangedPod]) -> bool {
    endpoints.iter().any(|(_, endpoint)| endpoint.as_deref().is_some_and(|pod| list_of(pod).is_some()))
}

/// Returns a pod's egress rules. `None` if none of them names domains.
fn list_of(endpoint: &Endpoint) -> Option<&Arc<TieredList>> {
    endpoint.rules.egress.as_ref().filter(|list| list.has_names())
}

impl Apart {
    /// Whether the next transaction must be a resync. True if one of these changed pods is the first whose egress rules name domains, and
    /// after a failure of the renderer.
    pub(super) fn needs_all(&self, endpoints: &[ChangedPod]) -> bool {
        self.is_behind || self.lists.is_none() && names_any(endpoints)
    }

    /// Updates the egress tables to the state after a transaction. The transaction has all egress rules in [`EndpointRules::egress`].
    /// `is_rendered` is false if the renderer failed on it: the egress tables then stay as they are, like the renderer's tables.
    pub(super) fn follow(&mut self, transaction: &Transaction, is_rendered: bool) {
        self.is_behind = !is_rendered || self.is_behind && !transaction.resync;
        if self.is_behind {
            return;
        }
        let moved = self.follow_nodes(transaction);
        if transaction.resync {
            // Known lists stay, because pods may keep one instead of a new list that does not fit.
            let lists = self.lists.take().unwrap_or_else(PlainLists::with_names);
            self.lists = names_any(&transaction.endpoints).then_some(lists);
        }
        let Some(lists) = &mut self.lists else {
            self.changes += u64::from(!self.pods.is_empty());
            self.pods.clear();
            return;
        };
        let before = std::mem::take(&mut self.pods);
        let only_named = |(name, endpoint): &ChangedPod| {
            let named = endpoint.as_deref().filter(|endpoint| list_of(endpoint).is_some());
            let named = named.map(|endpoint| {
                let rules = EndpointRules { ingress: None, ..endpoint.rules.clone() };
                Arc::new(Endpoint { rules, ..endpoint.clone() })
            });
            (name.clone(), named)
        };
        let endpoints = transaction.endpoints.iter().map(only_named).collect();
        let plain = lists.follow(&Transaction { endpoints, ..transaction.clone() });
        let mut pods: BTreeMap<PodName, (Arc<str>, Arc<PlainList>)> = BTreeMap::new();
        if !plain.resync {
            pods.extend(before.iter().map(|(name, pod)| (name.clone(), (pod.node.clone(), pod.list.clone()))));
        }
        for (name, pod) in plain.pods {
            match pod.and_then(|pod| Some((pod.node.clone(), pod.egress.clone()?))) {
                Some(pod) => drop(pods.insert(name, pod)),
                None => drop(pods.remove(&name)),
            }
        }
        self.compile(pods, &before, &moved);
        if self.pods.is_empty() {
            self.lists = None;
        }
    }

    /// Updates the addresses of nodes. Returns the names of the nodes whose addresses may have changed.
    fn follow_nodes(&mut self, transaction: &Transaction) -> HashSet<Arc<str>> {
        let mut moved: HashSet<_> = transaction.nodes.iter().map(|(name, _)| name.clone()).collect();
        if transaction.resync {
            moved.extend(std::mem::take(&mut self.nodes).into_keys());
        }
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.nodes.insert(name.clone(), node.addresses.clone()),
                None => self.nodes.remove(name),
            };
        }
        moved
    }

    /// Compiles the egress tables of `pods`, given by node and list. Pods of a node with the same list share tables. Keeps the tables of
    /// `before` for an unchanged list, unless its node is in `moved`, and for equal rules. Counts a change if any pod's tables differ from
    /// `before`.
    fn compile(
        &mut self,
        pods: BTreeMap<PodName, (Arc<str>, Arc<PlainList>)>,
        before: &BTreeMap<PodName, Pod>,
        moved: &HashSet<Arc<str>>,
    ) {
        let mut known: BTreeMap<(Arc<str>, u64), Result<Arc<Tables>, String>> = BTreeMap::new();
        for (name, (node, list)) in pods {
            let last = before.get(&name).filter(|last| last.node == node);
            if let Some(last) = last.filter(|last| Arc::ptr_eq(&last.list, &list) && !moved.contains(&node)) {
                self.pods.insert(name, last.clone());
                continue;
            }
            let compiled = known.entry((node.clone(), list.revision)).or_insert_with(|| {
                let rules = self.rules(&node, &list);
                match before.values().find(|pod| *pod.tables.rules() == *rules) {
                    Some(same) => Ok(same.tables.clone()),
                    None => self.compiled(rules),
                }
            });
            let (tables, refused) = match (&*compiled, last) {
                (Ok(tables), _) => (tables.clone(), None),
                (Err(why), Some(last)) => {
                    let instead = last.refused.as_ref().map_or(Instead::LastGood, |(_, instead)| *instead);
                    (last.tables.clone(), Some((why.clone(), instead)))
                }
                (Err(why), None) => (closed(), Some((why.clone(), Instead::Closed))),
            };
            self.pods.insert(name, Pod { node, list, tables, refused });
        }
        let is_same = |(old, new): ((&PodName, &Pod), (&PodName, &Pod))| {
            // Pods that got equal rules in different transactions have tables of their own, of which a resync keeps one.
            let (before, now) = (&old.1.tables, &new.1.tables);
            let has_same_rules = || Arc::ptr_eq(before, now) || before.rules() == now.rules();
            old.0 == new.0 && old.1.node == new.1.node && has_same_rules()
        };
        let is_all_same = before.len() == self.pods.len() && before.iter().zip(&self.pods).all(is_same);
        self.changes += u64::from(!is_all_same);
    }

    /// Returns the rules of a list for pods of this node, in order of evaluation. The rules about the pod's own node have the
    /// node's addresses.
    fn rules(&self, node: &str, list: &PlainList) -> Vec<Rule> {
        let own: AddressSet = self.nodes.get(node).into_iter().flatten().copied().collect();
        list.on_node(&Arc::new(own)).iter().map(PlainRule::to_peers).collect()
    }

    /// Compiles the rules of a list. If they exceed a limit, returns the reason.
    fn compiled(&self, rules: Vec<Rule>) -> Result<Arc<Tables>, String> {
        let default = BuildOptions::default();
        let options = BuildOptions { max_bytes: self.max_bytes.unwrap_or(default.max_bytes), ..default };
        Tables::build_with(rules, &options).map(Arc::new).map_err(|error| error.to_string())
    }

    /// Replaces the tables of all nodes: `nodes` are the renderer's tables, to which this adds the egress tables of each node's pods.
    pub(super) fn combine(&mut self, nodes: Vec<Arc<NodeTables>>) {
        let before = std::mem::take(&mut self.combined);
        for base in nodes {
            let known = before.get(&base.node);
            let combined = match known {
                Some((of, changes, combined)) if Arc::ptr_eq(of, &base) && *changes == self.changes => combined.clone(),
                _ => self.with_egress(&base),
            };
            self.combined.insert(base.node.clone(), (base, self.changes, combined));
        }
    }

    /// Returns a node's tables with the egress tables of its pods added, and with [`Interface::egress_table`] set.
    fn with_egress(&self, base: &Arc<NodeTables>) -> Arc<NodeTables> {
        if self.changes == 0 {
            return base.clone();
        }
        let mut tables = base.tables.clone();
        let mut places: BTreeMap<*const Tables, usize> = BTreeMap::new();
        let mut with = |interface: &Interface| {
            let Attachment::Pod(name) = &interface.attachment else { return interface.clone() };
            let of_pod = self.pods.get(name).filter(|pod| pod.node == base.node);
            let egress_table = of_pod.map(|pod| {
                *places.entry(Arc::as_ptr(&pod.tables)).or_insert_with(|| {
                    let name = format!("egress:{name}").into();
                    tables.push(AclTable { name, tables: pod.tables.clone() });
                    tables.len() - 1
                })
            });
            Interface { egress_table, ..interface.clone() }
        };
        let interfaces: Vec<Interface> = base.interfaces.iter().map(&mut with).collect();
        let generation = base.generation + self.changes;
        Arc::new(NodeTables { generation, interfaces: interfaces.into(), tables, ..NodeTables::clone(base) })
    }

    /// Returns the tables of a node, including its egress tables. `None` if the node is unknown.
    pub(super) fn tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.combined.get(node).map(|(_, _, combined)| combined)
    }

    /// Returns the tables of all nodes, including egress tables, sorted by the node's name.
    pub(super) fn all_tables(&self) -> impl Iterator<Item = &Arc<NodeTables>> {
        self.combined.values().map(|(_, _, combined)| combined)
    }

    /// Returns the origins of all rules in lists of egress tables.
    pub(super) fn origins(&self) -> HashSet<OriginId> {
        self.pods.values().flat_map(|pod| &pod.list.rules).map(|rule| rule.origin).collect()
    }

    /// Returns a refusal for each list that is too complex to translate, and for each pod whose egress table does not have its rules.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = self.lists.as_ref().map(PlainLists::refusals).unwrap_or_default();
        let refused = self.pods.iter().filter_map(|(name, pod)| {
            let (why, instead) = pod.refused.clone()?;
            Some(Refusal { subject: format!("the egress of {name}"), instead, why })
        });
        refusals.extend(refused);
        refusals
    }
}

/// Returns tables that deny everything.
fn closed() -> Arc<Tables> {
    Arc::new(Tables::scanned(Vec::new()).expect("no rules are not too many"))
}
