//! Egress that is judged apart: the tables of pods with rules that name domains.
//!
//! ```text
//!   transaction --+-- other pods ---------------------------------------> renderer --> tables, one judges a packet
//!                 `-- pod whose egress names domains: without egress ---> renderer --> tables judge its packets' ingress
//!                                               `------ egress ---------> this ------> table of its own, which judges first
//! ```
//! The engines combine a sender's egress rules with the receiver's ingress rules in one table. A rule that names domains depends on what the
//! sender has learned, which is different for each packet and pod. So the egress of these pods is not combined: their packets are judged
//! by their own table, then by the receiver's. Pods without such rules, and clusters without them, have the same tables as before.
//!
//! **Rejected.** *Rules that name domains in the combined tables*: a denial of one sender's egress would need a condition "unless it has
//! learned", in every receiver's table and in three engines. *A new table whenever a pod has learned an address*: thousands of times per
//! second, and the pod's first packet would wait for it.
//!
//! **Invariant.** A pod has an egress table exactly while its egress rules name domains. Its other rules are evaluated in their places.

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

/// A pod of a transaction. `None` if it was removed.
type ChangedPod = (PodName, Option<Arc<Endpoint>>);

/// A pod with an egress table.
#[derive(Debug)]
struct Pod {
    node: Arc<str>,
    list: Arc<PlainList>,
    tables: Arc<Tables>,
    /// The reason why the table denies everything. `None` if it has the pod's rules.
    refused: Option<String>,
}

/// A compiled list, and the reason why it denies everything instead. No reason if it has the list's rules.
type Compiled = (Arc<Tables>, Option<String>);

/// The egress tables, and the tables of nodes with them.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// `None` while no pod's rules name domains.
    lists: Option<PlainLists>,
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    pods: BTreeMap<PodName, Pod>,
    /// Number of changes since the start. Added to the generation of the tables that the egress tables are added to.
    changes: u64,
    /// By node: the renderer's tables, the number of changes, and both combined.
    combined: BTreeMap<Arc<str>, (Arc<NodeTables>, u64, Arc<NodeTables>)>,
}

/// Returns the endpoint for the renderers of tables: without egress rules that name domains.
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

/// Returns the transaction for the renderers of tables: without egress rules that name domains.
pub(super) fn for_tables(transaction: &Transaction) -> Cow<'_, Transaction> {
    let of = |(name, endpoint): &ChangedPod| (name.clone(), endpoint.as_ref().map(without_names));
    match names_any(&transaction.endpoints) {
        false => Cow::Borrowed(transaction),
        true => {
            Cow::Owned(Transaction { endpoints: transaction.endpoints.iter().map(of).collect(), ..transaction.clone() })
        }
    }
}

fn names_any(endpoints: &[ChangedPod]) -> bool {
    endpoints.iter().any(|(_, endpoint)| endpoint.as_deref().is_some_and(|pod| list_of(pod).is_some()))
}

/// Returns a pod's egress rules. `None` if they name no domain.
fn list_of(endpoint: &Endpoint) -> Option<&Arc<TieredList>> {
    endpoint.rules.egress.as_ref().filter(|list| list.has_names())
}

impl Apart {
    /// Whether a transaction that is no resync has the first pod whose rules name domains, so that the whole state is needed.
    pub(super) fn needs_all(&self, endpoints: &[ChangedPod]) -> bool {
        self.lists.is_none() && names_any(endpoints)
    }

    /// Compiles the tables of the pods that the transaction changes.
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

    /// Compiles the lists. Pods of a node with the same list share a table, also with the time before.
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

    /// Returns the rules of a list on a node, in order of evaluation.
    fn rules(&self, node: &str, list: &PlainList) -> Vec<Rule> {
        let own: AddressSet = self.nodes.get(node).into_iter().flatten().copied().collect();
        let own_node = Rule { dst: Addresses::from(own), ..Rule::any(Action::Allow, Origins::OWN_NODE) };
        let (before, after) = list.rules.split_at(list.own_node.unwrap_or(0));
        let own_node = list.own_node.map(|_| own_node);
        before.iter().map(PlainRule::to_peers).chain(own_node).chain(after.iter().map(PlainRule::to_peers)).collect()
    }

    /// Adds the egress tables to the tables of these nodes.
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

    /// Returns the tables of a node. `None` if the node is unknown.
    pub(super) fn tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.combined.get(node).map(|(_, _, combined)| combined)
    }

    /// Returns the tables of all nodes, sorted by name.
    pub(super) fn all_tables(&self) -> impl Iterator<Item = &Arc<NodeTables>> {
        self.combined.values().map(|(_, _, combined)| combined)
    }

    /// Returns the origins of the rules in force.
    pub(super) fn origins(&self) -> HashSet<OriginId> {
        self.pods.values().flat_map(|pod| &pod.list.rules).map(|rule| rule.origin).collect()
    }

    /// Returns the lists and tables that exceed a limit.
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

/// Compiles a list. If it does not fit, returns tables that deny everything, and the reason.
fn compiled(rules: Vec<Rule>) -> Compiled {
    match Tables::build(rules) {
        Ok(tables) => (Arc::new(tables), None),
        Err(error) => {
            let closed = Tables::scanned(Vec::new()).expect("no rules are not too many");
            (Arc::new(closed), Some(error.to_string()))
        }
    }
}
