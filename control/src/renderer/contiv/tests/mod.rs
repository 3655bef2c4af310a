//! Tests of the whole folder: known answers, Contiv's own scenarios, and properties.

mod pipeline;
mod properties;
mod refusals;
mod scenarios;
mod vectors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_classifier::{Action, PortRange, Service, protocol};

use super::Orientation;
use super::cache::{RendererCache, RendererState};
use super::list::{PeerList, PeerRule, PodLists};
use super::rules::Rules;
use super::table::{Table, TableChange};
use crate::object::PodName;
use crate::renderer::contiv::tuple::SixTuple;

/// A stack that knows only the reported changes.
#[derive(Clone, Debug, Default)]
struct Stack {
    locals: BTreeMap<PodName, Rules>,
    global: Rules,
}

impl Stack {
    fn apply(&mut self, changes: &[TableChange]) {
        for (at, change) in changes.iter().enumerate() {
            match change {
                TableChange::Local { table, previous, pods } => {
                    assert!(!table.rules.is_empty(), "a table without rules is never reported");
                    assert_ne!(previous, pods, "a change changes something");
                    for gone in previous.difference(pods) {
                        if self.locals.get(gone) == Some(&table.rules) {
                            self.locals.remove(gone);
                        }
                    }
                    for pod in pods {
                        self.locals.insert(pod.clone(), table.rules.clone());
                    }
                }
                TableChange::Global { table } => {
                    assert_eq!(at + 1, changes.len(), "the global table comes last");
                    assert_ne!(self.global, table.rules, "and only if it changed");
                    self.global = table.rules.clone();
                }
            }
        }
    }

    fn of(state: &RendererState) -> Self {
        let locals = state.locals().iter().map(|(pod, table)| (pod.clone(), table.rules.clone())).collect();
        Self { locals, global: state.global().rules.clone() }
    }
}

type Update = (PodName, Option<PodLists>);

/// Commits a transaction and checks invariants: the stack that applied the changes has the tables; a fresh cache with the same pods has
/// equal tables; equal tables are one; repeating the transaction changes nothing.
fn commit(cache: &mut RendererCache, orientation: Orientation, updates: &[Update]) -> Vec<TableChange> {
    let mut stack = Stack::of(cache.state());
    let staged = cache.stage(false, updates.to_vec()).unwrap();
    let ahead = Stack::of(staged.state());
    let changes = staged.commit();
    stack.apply(&changes);
    let now = Stack::of(cache.state());
    assert_eq!((&ahead.locals, &ahead.global), (&now.locals, &now.global), "a view ahead of the commit");
    assert_eq!((&stack.locals, &stack.global), (&now.locals, &now.global), "changes lead to the tables");

    let mut fresh = RendererCache::new(orientation, super::MAX_TUPLES);
    let pods = cache.state().pods().iter().map(|(name, lists)| (name.clone(), Some(lists.clone())));
    fresh.stage(true, pods.collect()).unwrap().commit();
    let restarted = Stack::of(fresh.state());
    assert_eq!((&restarted.locals, &restarted.global), (&now.locals, &now.global), "step by step equals a fresh start");
    let names = |cache: &RendererCache| -> Vec<(Arc<Table>, BTreeSet<PodName>)> {
        cache.state().tables().into_iter().map(|(table, pods)| (table.clone(), pods.clone())).collect()
    };
    assert_eq!(names(cache), names(&fresh), "names and sharing too");
    assert!(names(cache).is_sorted_by(|(a, _), (b, _)| {
        a.rules.len().cmp(&b.rules.len()).then_with(|| a.rules.iter().cmp(&b.rules)).is_lt()
    }));
    assert!(now.locals.values().all(|rules| rules.iter().is_sorted_by(|a, b| a < b)), "sorted, each rule once");
    assert!(now.global.iter().is_sorted_by(|a, b| a < b));

    assert_eq!(cache.stage(false, updates.to_vec()).unwrap().commit(), [], "a repetition changes nothing");
    changes
}

fn service(number: u8, first: u16, last: u16) -> Option<Service> {
    Some(Service { protocols: (number, number), ports: PortRange { first, last } })
}

/// `TCP:80`, `UDP:0` for all ports, `ANY`.
fn service_of(text: &str) -> Option<Service> {
    let (name, port) = text.split_once(':').unwrap_or((text, "0"));
    let number = match name {
        "TCP" => protocol::TCP,
        "UDP" => protocol::UDP,
        "SCTP" => protocol::SCTP,
        "ANY" => return None,
        _ => panic!("protocol {name}"),
    };
    match port.parse().unwrap() {
        0 => service(number, 0, u16::MAX),
        port => service(number, port, port),
    }
}

/// `P 10.0.0.0/8 TCP:80`, `P any UDP:0`, `D` for the deny of the rest.
fn rule(text: &str) -> PeerRule {
    let fields: Vec<_> = text.split(' ').collect();
    match fields[..] {
        ["D"] => PeerRule::DENY_THE_REST,
        ["P", peer, service] => PeerRule {
            peer: (peer != "any").then(|| peer.parse().unwrap()),
            service: service_of(service),
            action: Action::Allow,
        },
        _ => panic!("rule {text}"),
    }
}

fn list(rules: &[&str]) -> Arc<PeerList> {
    Arc::new(PeerList::new(rules.iter().map(|text| rule(text))).unwrap())
}

fn pod(number: usize) -> PodName {
    PodName::new("default", format!("pod{number}"))
}
