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
//! their order.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, OriginId, Rule, Tables};

use crate::contract::{Endpoint, EndpointRules, TieredList, Transaction};
use crate::object::PodName;
use crate::origin::Origins;
use crate::renderer::acl::{AclTable, Attachment, Interface, NodeTables};
use crate::renderer::plain::{PlainList, PlainLists, PlainRule};
use crate::renderer::{Instead, Refusal};

/// The name of a pod that a transaction changes, and its new state. `None` if the pod was removed.
type ChangedPod = (PodName, Option<Arc<Endpoint>>);

/// A pod with an egress table.
#[derive(Debug)]
struct Pod {
    node: Arc<str>,
    list: Arc<PlainList>,
    tables: Arc<Tables>,
    /// The reason why `tables` deny everything. `None` if they have the pod's rules.
    refused: Option<String>,
}

/// The tables of a list. If the list could not be compiled, they deny everything, and the text is the reason. `None` if they have its
/// rules.
type Compiled = (Arc<Tables>, Option<String>);

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
    /// Whether one of these changed pods is the first whose egress rules name domains. Then only a resync, with the whole state, creates
    /// its egress table.
    pub(super) fn needs_all(&self, endpoints: &[ChangedPod]) -> bool {
        self.lists.is_none() && names_any(endpoints)
    }

    /// Updates the egress tables to the state after a transaction. The transaction has all egress rules in [`EndpointRules::egress`].
    pub(super) fn follow(&mut self, transaction: &Transaction) {
        self.follow_nodes(transaction);
        if transaction.resync {
            self.lists = names_any(&transaction.endpoints).then(PlainLists::with_names);
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
        self.compile(pods, &before);
        if self.pods.is_empty() {
            self.lists = None;
        }
    }

    fn follow_nodes(&mut self, transaction: &Transaction) {
        if transaction.resync {
            self.nodes.clear();
        }
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.nodes.insert(name.clone(), node.addresses.clone()),
                None => self.nodes.remove(name),
            };
        }
    }

    /// Compiles the egress tables of `pods`, given by node and list. Pods of a node with the same list share tables. Tables of `before`
    /// with the same rules are kept. Counts a change if any pod's tables differ from `before`.
    fn compile(&mut self, pods: BTreeMap<PodName, (Arc<str>, Arc<PlainList>)>, before: &BTreeMap<PodName, Pod>) {
        let mut known: BTreeMap<(Arc<str>, u64), Compiled> = BTreeMap::new();
        for (name, (node, list)) in pods {
            let (tables, refused) = known
                .entry((node.clone(), list.revision))
                .or_insert_with(|| {
                    let rules = self.rules(&node, &list);
                    let same = before.values().find(|pod| pod.refused.is_none() && *pod.tables.rules() == *rules);
                    match same {
                        Some(pod) => (pod.tables.clone(), None),
                        None => compiled(rules),
                    }
                })
                .clone();
            self.pods.insert(name, Pod { node, list, tables, refused });
        }
        let is_same = |(old, new): ((&PodName, &Pod), (&PodName, &Pod))| {
            old.0 == new.0 && old.1.node == new.1.node && Arc::ptr_eq(&old.1.tables, &new.1.tables)
        };
        let is_all_same = before.len() == self.pods.len() && before.iter().zip(&self.pods).all(is_same);
        self.changes += u64::from(!is_all_same);
    }

    /// Returns the rules of a list for pods of this node, in order of evaluation. The rule about the pod's own node has the node's
    /// addresses.
    fn rules(&self, node: &str, list: &PlainList) -> Vec<Rule> {
        let own: AddressSet = self.nodes.get(node).into_iter().flatten().copied().collect();
        let own_node = Rule { dst: Addresses::from(own), ..Rule::any(Action::Allow, Origins::OWN_NODE) };
        let (before, after) = list.rules.split_at(list.own_node.unwrap_or(0));
        let own_node = list.own_node.map(|_| own_node);
        before.iter().map(PlainRule::to_peers).chain(own_node).chain(after.iter().map(PlainRule::to_peers)).collect()
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

    /// Returns a refusal for each list that is too complex to compile, and for each pod whose egress table denies everything instead.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = self.lists.as_ref().map(PlainLists::refusals).unwrap_or_default();
        let closed = self.pods.iter().filter_map(|(name, pod)| {
            let subject = format!("the egress of {name}");
            Some(Refusal { subject, instead: Instead::Closed, why: pod.refused.clone()? })
        });
        refusals.extend(closed);
        refusals
    }
}

/// Compiles the rules of a list. If they exceed a limit, returns tables that deny everything, and the reason.
fn compiled(rules: Vec<Rule>) -> Compiled {
    match Tables::build(rules) {
        Ok(tables) => (Arc::new(tables), None),
        Err(error) => {
            let closed = Tables::scanned(Vec::new()).expect("no rules are not too many");
            (Arc::new(closed), Some(error.to_string()))
        }
    }
}
