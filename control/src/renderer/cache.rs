//! The renderer cache: pods' two rule lists in, one table per interface out, and which of them a transaction changed.
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
//! with the same egress rules are one class, a class adds one deny of the complement, and the verdict says which side
//! refused. Both mean "the source's list AND the destination's list".
//!
//! Pods whose tables would be the same share one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{Action, AddressSet, Addresses, PortRange, Rule, ServiceSet, Services};

use super::{PodConfig, Transaction};
use crate::contiv::{ContivRule, RuleList};
use crate::object::PodName;
use crate::origin::{Direction, Origin, Origins};

/// What decides a pod's table. Equal keys, equal tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey {
    ingress: Option<u64>,
    restrictions: Vec<Restriction>,
}

/// What one class of local sources may not do to the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Restriction {
    egress: u64,
    sources: Arc<AddressSet>,
    reach: Arc<Reach>,
}

/// What a list of egress rules allows towards one address.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Reach {
    /// The rules that name the address, by position.
    rules: Vec<usize>,
    /// What they allow together.
    allowed: ServiceSet,
}

/// Local pods with the same egress rules.
#[derive(Debug)]
struct EgressClass {
    list: Arc<RuleList>,
    sources: Arc<AddressSet>,
}

/// A table and the pods that share it.
#[derive(Debug)]
pub struct LocalTable {
    /// The rules in order.
    pub rules: Vec<Rule>,
    /// The pods, sorted.
    pub pods: Vec<PodName>,
}

/// What a transaction changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether any pod came, went or has another table now, or a pod's addresses changed.
    pub locals: bool,
    /// Whether the node-exit table changed.
    pub global: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct RendererCache {
    node_addresses: Arc<AddressSet>,
    pods: BTreeMap<PodName, Arc<PodConfig>>,
    /// Sorted by each class's first pod.
    classes: Vec<EgressClass>,
    keys: BTreeMap<PodName, LocalKey>,
    reach: AHashMap<(u64, IpAddr), Arc<Reach>>,
}

impl RendererCache {
    /// The pods with their configuration, sorted.
    pub fn pods(&self) -> &BTreeMap<PodName, Arc<PodConfig>> {
        &self.pods
    }

    /// What decides each pod's table, sorted by pod.
    pub fn keys(&self) -> &BTreeMap<PodName, LocalKey> {
        &self.keys
    }

    /// Sets the addresses that are the node's own. Answers whether they changed.
    pub fn set_node_addresses(&mut self, addresses: AddressSet) -> bool {
        let changed = *self.node_addresses != addresses;
        if changed {
            self.node_addresses = Arc::new(addresses);
        }
        changed
    }

    /// Takes in the pods of a transaction. Answers what changed.
    pub fn apply(&mut self, transaction: &Transaction) -> Changes {
        let mut pods = if transaction.resync { BTreeMap::new() } else { std::mem::take(&mut self.pods) };
        let mut locals = false;
        for (name, config) in &transaction.pods {
            let before = match config {
                Some(config) => pods.insert(name.clone(), config.clone()),
                None => pods.remove(name),
            };
            locals |= !transaction.resync && before.as_ref() != config.as_ref();
        }
        if transaction.resync {
            locals = pods != self.pods;
        }
        self.pods = pods;
        if !locals {
            return Changes::default();
        }
        let global = self.rebuild_classes();
        let keys = self.pods.values().cloned().collect::<Vec<_>>();
        self.keys = keys.iter().map(|config| (config.pod.clone(), self.local_key(config))).collect();
        self.sweep();
        Changes { locals, global }
    }

    /// Groups the pods by their egress rules. Answers whether any group changed.
    fn rebuild_classes(&mut self) -> bool {
        let mut order: Vec<(Arc<RuleList>, Vec<IpAddr>)> = Vec::new();
        let mut at_revision: AHashMap<u64, usize> = AHashMap::new();
        for config in self.pods.values() {
            let Some(list) = &config.rules.egress else { continue };
            let at = *at_revision.entry(list.revision).or_insert_with(|| {
                order.push((list.clone(), Vec::new()));
                order.len() - 1
            });
            order[at].1.extend(&config.addresses);
        }
        let class = |(list, addresses): (Arc<RuleList>, Vec<IpAddr>)| EgressClass {
            list,
            sources: Arc::new(addresses.into_iter().collect()),
        };
        let classes: Vec<_> = order.into_iter().map(class).collect();
        let same = |(a, b): (&EgressClass, &EgressClass)| a.list.revision == b.list.revision && a.sources == b.sources;
        let changed = classes.len() != self.classes.len() || !classes.iter().zip(&self.classes).all(same);
        if changed {
            self.classes = classes;
        }
        changed
    }

    fn local_key(&mut self, pod: &PodConfig) -> LocalKey {
        let mut restrictions = Vec::new();
        for class in &self.classes {
            // A pod has at most one address of each family, and traffic stays within a family.
            for &address in &pod.addresses {
                let reach = self
                    .reach
                    .entry((class.list.revision, address))
                    .or_insert_with(|| Arc::new(Reach::of(&class.list.rules, address)));
                if reach.allowed == ServiceSet::all() {
                    continue;
                }
                let sources = family_of(&class.sources, address);
                if !sources.is_empty() {
                    let reach = reach.clone();
                    restrictions.push(Restriction { egress: class.list.revision, sources: Arc::new(sources), reach });
                }
            }
        }
        LocalKey { ingress: pod.rules.ingress.as_ref().map(|list| list.revision), restrictions }
    }

    fn sweep(&mut self) {
        let live: ahash::AHashSet<u64> = self.classes.iter().map(|class| class.list.revision).collect();
        let addresses: ahash::AHashSet<IpAddr> = self.pods.values().flat_map(|pod| pod.addresses.clone()).collect();
        self.reach.retain(|(revision, address), _| live.contains(revision) && addresses.contains(address));
    }

    /// The rules of a pod's table.
    pub fn local_rules(&self, pod: &PodConfig, key: &LocalKey, origins: &mut Origins) -> Vec<Rule> {
        let mut rules = Vec::new();
        let list_of =
            |revision| self.classes.iter().find(|class| class.list.revision == revision).map(|c| &c.list.rules);
        let Some(ingress) = &pod.rules.ingress else {
            for restriction in &key.restrictions {
                let list = list_of(restriction.egress).into_iter().flatten().enumerate();
                let named = list.filter(|(at, _)| restriction.reach.rules.contains(at));
                rules.extend(named.map(|(_, rule)| from(&restriction.sources, rule)));
            }
            rules.push(Rule::any(Action::Allow, origins.id(Origin::NotIsolated(Direction::Ingress))));
            return rules;
        };
        if !self.node_addresses.is_empty() {
            let src = Addresses::Set(self.node_addresses.clone());
            rules.push(Rule { src, ..Rule::any(Action::Allow, origins.id(Origin::OwnNode)) });
        }
        for restriction in &key.restrictions {
            let Some(isolation) = list_of(restriction.egress).and_then(|list| list.last()) else { continue };
            let services = ServiceSet::all().subtract(&restriction.reach.allowed).into();
            let src = Addresses::Set(restriction.sources.clone());
            rules.push(Rule { src, services, ..Rule::any(Action::Deny, isolation.origin) });
        }
        rules.extend(ingress.rules.iter().map(|rule| Rule {
            src: rule.peers.clone(),
            dst: Addresses::Any,
            src_ports: PortRange::ALL,
            services: rule.services.clone(),
            action: rule.action,
            origin: rule.origin,
        }));
        rules
    }

    /// The rules of the node-exit table.
    pub fn global_rules(&self, origins: &mut Origins) -> Vec<Rule> {
        let mut rules = Vec::new();
        if !self.node_addresses.is_empty() && !self.classes.is_empty() {
            let dst = Addresses::Set(self.node_addresses.clone());
            rules.push(Rule { dst, ..Rule::any(Action::Allow, origins.id(Origin::OwnNode)) });
        }
        for class in &self.classes {
            rules.extend(
                class.list.rules.iter().map(|rule| Rule { dst: rule.peers.clone(), ..from(&class.sources, rule) }),
            );
        }
        rules.push(Rule::any(Action::Allow, origins.id(Origin::NotIsolated(Direction::Egress))));
        rules
    }
}

impl Reach {
    fn of(rules: &[ContivRule], address: IpAddr) -> Self {
        let (mut allowed, mut open) = (ServiceSet::default(), ServiceSet::all());
        let mut naming = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            if !rule.peers.contains(address) {
                continue;
            }
            naming.push(at);
            let decided = match &rule.services {
                Services::Any => open.clone(),
                Services::Set(set) => open.intersect(set),
            };
            open = open.subtract(&decided);
            if rule.action == Action::Allow {
                allowed = allowed.union(&decided);
            }
        }
        Self { rules: naming, allowed }
    }
}

/// A source's egress rule as it stands in the table of one destination.
fn from(sources: &Arc<AddressSet>, rule: &ContivRule) -> Rule {
    Rule {
        src: Addresses::Set(sources.clone()),
        dst: Addresses::Any,
        src_ports: PortRange::ALL,
        services: rule.services.clone(),
        action: rule.action,
        origin: rule.origin,
    }
}

fn family_of(set: &AddressSet, address: IpAddr) -> AddressSet {
    match address {
        IpAddr::V4(_) => set.only_v4(),
        IpAddr::V6(_) => set.only_v6(),
    }
}
