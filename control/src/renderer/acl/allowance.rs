//! What a pod's egress rules allow towards one address of the node.

use std::net::IpAddr;

use bulkhead_classifier::{Action, Addresses, OriginId, ServiceSet, Services};

use crate::renderer::plain::PlainRule;

/// The part of a list of egress rules that applies to one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Allowance {
    /// The rules that name the address, in order.
    pub(super) rules: Vec<(Services, Action, OriginId)>,
    /// The protocols and ports that each rule denies and no earlier rule matches.
    pub(super) denied: Vec<(Services, OriginId)>,
}

/// Whether `peers` contains the address. Compares with the ends first, which is enough for most sets.
pub(super) fn names(peers: &Addresses, address: IpAddr) -> bool {
    let Addresses::Set(set) = peers else { return peers.contains(address) };
    let between = match address {
        IpAddr::V4(v4) => {
            let (all, point) = (set.v4_intervals(), u32::from(v4));
            all.first().is_some_and(|first| first.0 <= point) && all.last().is_some_and(|last| point <= last.1)
        }
        IpAddr::V6(v6) => {
            let (all, point) = (set.v6_intervals(), u128::from(v6));
            all.first().is_some_and(|first| first.0 <= point) && all.last().is_some_and(|last| point <= last.1)
        }
    };
    between && set.contains(address)
}

impl Allowance {
    /// Returns the rules at the positions `naming`, which contain the address. `None` if they allow everything.
    pub(super) fn of(list: &[PlainRule], naming: &[usize]) -> Option<Self> {
        let mut open = ServiceSet::all();
        let (mut rules, mut denied) = (Vec::with_capacity(naming.len()), Vec::new());
        for rule in naming.iter().map(|&at| &list[at]) {
            rules.push((rule.services.clone(), rule.action, rule.origin));
            let decided = match &rule.services {
                Services::Any => std::mem::take(&mut open),
                Services::Set(set) => {
                    let decided = open.intersect(set);
                    open = open.subtract(&decided);
                    decided
                }
            };
            if rule.action == Action::Deny && !decided.is_empty() {
                denied.push((decided.into(), rule.origin));
            }
        }
        (!denied.is_empty()).then_some(Self { rules, denied })
    }
}
