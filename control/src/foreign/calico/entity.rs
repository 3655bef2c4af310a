//! The source or destination of a rule: conditions that all must hold.

use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Entity, Families, Selector, pods};
use crate::foreign::{Needs, Surroundings};
use crate::object::{IpBlock, Peer, Region};

/// What an entity's peers contain beside pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct With {
    /// Whether selectors also select the blocks of sets of networks.
    pub(super) sets: bool,
    /// Whether domain names are among the peers, also those of sets.
    pub(super) names: bool,
}

impl Families {
    /// Both families.
    pub const BOTH: Self = Self { v4: true, v6: true };

    /// No family.
    pub const NONE: Self = Self { v4: false, v6: false };

    /// Returns the families that are in both sets.
    pub const fn and(self, other: Self) -> Self {
        Self { v4: self.v4 && other.v4, v6: self.v6 && other.v6 }
    }

    const fn has(self, block: &IpNet) -> bool {
        match block {
            IpNet::V4(_) => self.v4,
            IpNet::V6(_) => self.v6,
        }
    }

    /// Returns the blocks of all addresses of these families.
    fn blocks(self) -> Vec<IpNet> {
        let all = [(self.v4, IpNet::V4(Ipv4Net::default())), (self.v6, IpNet::V6(Ipv6Net::default()))];
        all.into_iter().filter(|(has, _)| *has).map(|(_, block)| block).collect()
    }
}

impl Entity {
    /// Returns the families for which the entity's blocks leave the rule in place. A list of blocks that are all of the other family removes
    /// the rule for a family, as does a block of all addresses in `not_nets`. Source: `felix/rules/policy.go`, `FilterRuleToIPVersion`.
    pub(super) fn families(&self) -> Families {
        let of = |is_v4: bool| {
            let stays = |nets: &[IpNet]| nets.is_empty() || nets.iter().any(|net| net.addr().is_ipv4() == is_v4);
            let is_all = |net: &IpNet| net.addr().is_ipv4() == is_v4 && net.prefix_len() == 0;
            stays(&self.nets) && stays(&self.not_nets) && !self.not_nets.iter().any(is_all)
        };
        Families { v4: of(true), v6: of(false) }
    }

    /// Returns the condition on endpoints and sets. `None` without one. In a policy with a namespace, each selector field limits the entity to
    /// that namespace, also `not_selector`. Source: `updateprocessors/rules.go`, `getEndpointSelector`.
    fn endpoints(&self, namespace: Option<&str>) -> Option<Selector> {
        let accounts = self.accounts.as_ref().and_then(|accounts| {
            let names = (!accounts.names.is_empty()).then(|| pods::with_accounts(&accounts.names));
            let labels = accounts.selector.as_ref().map(pods::of_accounts);
            conjunction(labels.into_iter().chain(names))
        });
        let own = conjunction(accounts.into_iter().chain(self.selector.clone()));
        let namespaces = match (&self.namespaces, namespace) {
            (Some(selector), _) => Some(pods::of_namespaces(selector)),
            (None, Some(namespace)) if own.is_some() || self.not_selector.is_some() => {
                Some(pods::in_namespace(namespace))
            }
            (None, _) => None,
        };
        conjunction(namespaces.into_iter().chain(own))
    }

    /// Returns the condition on one endpoint, `not_selector` included. `None` without one.
    pub(super) fn condition(&self, namespace: Option<&str>) -> Option<Selector> {
        let not = self.not_selector.clone().map(|selector| Selector::Not(Box::new(selector)));
        conjunction(self.endpoints(namespace).into_iter().chain(not))
    }

    /// Returns the kinds of objects that the entity depends on. `namespace` is the policy's.
    pub(super) fn needs(&self, namespace: Option<&str>) -> Needs {
        let mut needs = if self.service.is_some() { Needs::SERVICES } else { Needs::NOTHING };
        for selector in self.endpoints(namespace).iter().chain(&self.not_selector) {
            needs |= pods::needs(selector);
            needs |= pods::needs_of_sets(selector);
        }
        needs
    }

    /// Whether some addresses of the entity have no named ports: those of sets of networks and of domain names.
    pub(super) fn has_unnamed_ports(&self, namespace: Option<&str>, surroundings: &Surroundings) -> bool {
        let is_limited = self.endpoints(namespace).is_some();
        let has_any = |selector: &Selector| {
            !pods::blocks(selector, surroundings).is_empty() || !pods::names(selector, surroundings).is_empty()
        };
        !self.names.is_empty() || is_limited && self.condition(namespace).is_some_and(|selector| has_any(&selector))
    }

    /// Returns the peers at which the entity is the other end of the traffic. `None` for every address. Does not look at `service`.
    pub(super) fn peers(
        &self,
        namespace: Option<&str>,
        families: Families,
        with: With,
        surroundings: &Surroundings,
    ) -> Option<Vec<Peer>> {
        let selected = |selector: &Selector, with_sets: bool| {
            let blocks = if with_sets { pods::blocks(selector, surroundings) } else { Vec::new() };
            pods::of(selector, surroundings).map(Peer::Pods).into_iter().chain(blocks).collect::<Vec<_>>()
        };
        let of_families = |nets: &[IpNet]| nets.iter().filter(|net| families.has(net)).copied().collect::<Vec<_>>();
        let (nets, not_nets) = (of_families(&self.nets), of_families(&self.not_nets));
        let mut all = Vec::new();
        if !self.nets.is_empty() {
            all.push(without(&nets, &not_nets));
        } else if !not_nets.is_empty() || families != Families::BOTH {
            all.push(without(&families.blocks(), &not_nets));
        }
        // Beside other selectors, `notSelector` is a condition on the same endpoint: a set that it matches excludes no pod in the set's blocks.
        // Source: `felix/calc/rule_scanner.go`, `combineMatchesIfPossible`.
        let (mut names, mut none) = (self.names.clone(), Vec::new());
        let chosen = match (self.endpoints(namespace), &self.not_selector) {
            _ if !names.is_empty() => Some(Vec::new()),
            (Some(_), _) => self.condition(namespace).map(|selector| {
                names = pods::names(&selector, surroundings);
                selected(&selector, with.sets)
            }),
            (None, Some(selector)) => {
                none = selected(selector, true);
                None
            }
            (None, None) => None,
        };
        if !with.names || names.is_empty() {
            all.extend(chosen);
            return in_all(all, none);
        }
        // Domain names are a peer of their own: within a region, they do not stand beside pods and blocks.
        let by_name = in_all([all.clone(), vec![vec![Peer::Names(names.into())]]].concat(), none.clone());
        all.extend(chosen);
        in_all(all, none).map(|peers| peers.into_iter().chain(by_name.into_iter().flatten()).collect())
    }
}

/// Returns the peers that together are the addresses in every union of `all` and in no peer of `none`. `None` if these are all addresses,
/// an empty list if there are none.
fn in_all(mut all: Vec<Vec<Peer>>, none: Vec<Peer>) -> Option<Vec<Peer>> {
    if all.iter().any(Vec::is_empty) {
        return Some(Vec::new());
    }
    match (&mut *all, none.is_empty()) {
        ([], true) => None,
        ([one], true) => Some(std::mem::take(one)),
        _ => Some(vec![Peer::Region(Arc::new(Region { all, none }))]),
    }
}

/// Returns the blocks without others.
fn without(blocks: &[IpNet], others: &[IpNet]) -> Vec<Peer> {
    let is_left = |block: &&IpNet| !others.iter().any(|other| other.contains(*block));
    let block = |&cidr: &IpNet| {
        let except = others.iter().filter(|other| cidr.contains(*other)).copied().collect();
        Peer::Block(IpBlock { cidr, except })
    };
    blocks.iter().filter(is_left).map(block).collect()
}

fn conjunction(selectors: impl Iterator<Item = Selector>) -> Option<Selector> {
    let mut all: Vec<_> = selectors.collect();
    match all.len() {
        0 => None,
        1 => Some(all.remove(0)),
        _ => Some(Selector::And(all)),
    }
}
