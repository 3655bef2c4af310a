//! Lowering translates ordered rules in tiers into ordered rules that allow or deny, with the same verdicts.
//!
//! ```text
//!  Admin          1 Accept A        allow A
//!                 2 Pass   B
//!                 3 Deny   C        deny  C without B
//!  NetworkPolicy  4 Accept D        allow D              (what is in B and C gets here)
//!                 5 Deny   any      deny  any
//! ```
//! A rule applies only to traffic that no earlier Pass of its tier matches. So the region of a Pass is subtracted from the later rules of
//! the tier, and the Pass is removed. The regions of earlier accepts and denies are not subtracted, because those rules still come first.
//! After a rule that decides all remaining traffic, no rule follows.
//!
//! **Rejected alternatives.** Repeating the later tiers, restricted to its region, for each Pass: those tiers have most of the rules, and a
//! changed set would change each copy. A third verdict in the packet path: each packet would pay for it.

use bulkhead_classifier::{Action, AddressSet, Addresses, NameSet, OriginId, ServiceSet, Services};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{OwnNodeRule, PlainRule};
use crate::contract::{RuleAction, Tier};
use crate::origin::{Direction, Origins};

/// Traffic with these peers over these protocols and ports.
pub(in crate::renderer) type Product = (Addresses, Services);

/// Maximum number of rules into which one rule may be cut. Each step keeps at most one rule per remainder of services, so only a dozen
/// preceding Pass rules with overlapping ports reach this limit.
const MAX_PIECES: usize = 4_096;

/// A rule cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooComplex {
    /// The Pass rules of a tier cut a rule into too many pieces.
    #[error(
        "Pass rules split a later rule of the {} tier into more than {MAX_PIECES}; use fewer Pass rules with \
         overlapping ports",
        tier.name()
    )]
    Pieces {
        /// The rule's tier.
        tier: Tier,
        /// The origin of the rule.
        origin: OriginId,
    },
    /// A Pass rule names the pods' own nodes, whose addresses the later rules of the tier would have to omit.
    #[error("a rule of the {} tier passes traffic with the pods' own nodes; accept or deny it instead", tier.name())]
    PassOfOwnNode {
        /// The rule's tier.
        tier: Tier,
        /// The origin of the rule.
        origin: OriginId,
    },
}

impl TooComplex {
    /// Returns the origin of the rule that cannot be translated.
    pub const fn origin(&self) -> OriginId {
        match self {
            Self::Pieces { origin, .. } | Self::PassOfOwnNode { origin, .. } => *origin,
        }
    }
}

/// A rule of a tier, with addresses.
#[derive(Clone, Debug)]
pub(in crate::renderer) struct Tiered {
    pub(in crate::renderer) tier: Tier,
    /// The addresses of the other end. `None` for the pod's own node.
    pub(in crate::renderer) peers: Option<Addresses>,
    pub(in crate::renderer) services: Services,
    /// Patterns of domain names: the rule matches only if the pod has learned a matching name for the other end's address. `None` if the
    /// rule matches whatever the names. Only rules that accept have names.
    pub(in crate::renderer) names: Option<NameSet>,
    pub(in crate::renderer) action: RuleAction,
    pub(in crate::renderer) origin: OriginId,
}

/// The result of [`lower`]: ordered rules that allow or deny.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::renderer) struct Lowered {
    pub(in crate::renderer) rules: Vec<PlainRule>,
    /// The rules about the pod's own node, in order.
    pub(in crate::renderer) own_node: Vec<OwnNodeRule>,
}

/// Translates one direction's rules, sorted by tier, to an ordered list without Pass. Allows traffic that no rule matches.
///
/// # Errors
/// If Pass rules cut a rule into too many pieces, or pass traffic with the own node.
pub(in crate::renderer) fn lower(
    rules: impl IntoIterator<Item = Tiered>,
    direction: Direction,
) -> Result<Lowered, TooComplex> {
    let mut lowered = Lowered { rules: Vec::new(), own_node: Vec::new() };
    let (mut tier, mut passed) = (None, Vec::<Product>::new());
    for Tiered { tier: of, peers, services, names, action, origin } in rules {
        debug_assert!(tier.as_ref() <= Some(&of), "rules come by tier");
        if tier.as_ref() != Some(&of) {
            (tier, passed) = (Some(of.clone()), Vec::new());
        }
        let is_own_node = peers.is_none();
        let peers = peers.unwrap_or(Addresses::Any);
        let action = match action {
            RuleAction::Accept => Action::Allow,
            RuleAction::Deny => Action::Deny,
            // Only rules that accept name domains. A Pass by name would pass packets that it may not match, so it is ignored.
            RuleAction::Pass if names.is_some() => continue,
            RuleAction::Pass if is_own_node => return Err(TooComplex::PassOfOwnNode { tier: of, origin }),
            RuleAction::Pass => {
                passed.push((peers, services));
                continue;
            }
        };
        let rule = |(peers, services)| PlainRule { peers, services, names: names.clone(), action, origin };
        if is_own_node {
            let left = if passed.is_empty() { Some(vec![(peers, services)]) } else { cut((peers, services), &passed) };
            let left = left.ok_or(TooComplex::Pieces { tier: of, origin })?;
            let before = lowered.rules.len();
            lowered.own_node.extend(left.into_iter().map(rule).map(|rule| OwnNodeRule { before, rule }));
        } else if passed.is_empty() {
            let decides_everything = peers == Addresses::Any && services == Services::Any && names.is_none();
            lowered.rules.push(rule((peers, services)));
            if decides_everything {
                return Ok(lowered);
            }
        } else {
            let left = cut((peers, services), &passed).ok_or(TooComplex::Pieces { tier: of, origin })?;
            lowered.rules.extend(left.into_iter().map(rule));
        }
    }
    let origin = Origins::not_isolated(direction);
    let (peers, services, names) = (Addresses::Any, Services::Any, None);
    lowered.rules.push(PlainRule { peers, services, names, action: Action::Allow, origin });
    Ok(lowered)
}

/// Returns `region` without the products in `without`, in disjoint pieces. `None` if more than [`MAX_PIECES`] are needed.
fn cut(region: Product, without: &[Product]) -> Option<Vec<Product>> {
    let mut pieces = vec![region];
    for hole in without {
        let mut left: Vec<Product> = Vec::with_capacity(pieces.len());
        for (peers, services) in pieces.iter().flat_map(|piece| subtract(piece, hole)) {
            match left.iter_mut().find(|(_, same)| *same == services) {
                Some((others, _)) => *others = addresses(others).union(&addresses(&peers)).into(),
                None => left.push((peers, services)),
            }
        }
        pieces = left;
        if pieces.len() > MAX_PIECES {
            return None;
        }
    }
    Some(pieces)
}

/// Returns the first product without the second: other peers with all of its ports, and common peers with the remaining ports.
pub(in crate::renderer) fn subtract(piece: &Product, hole: &Product) -> Vec<Product> {
    let (peers, denied_peers) = (addresses(&piece.0), addresses(&hole.0));
    let same_peers = peers.intersect(&denied_peers);
    if same_peers.is_empty() {
        return vec![piece.clone()];
    }
    let (services, denied_services) = (service_set(&piece.1), service_set(&hole.1));
    if services.intersect(&denied_services).is_empty() {
        return vec![piece.clone()];
    }
    let mut left = Vec::new();
    let other_peers = peers.subtract(&denied_peers);
    if !other_peers.is_empty() {
        left.push((other_peers.into(), piece.1.clone()));
    }
    let other_services = services.subtract(&denied_services);
    if !other_services.is_empty() {
        left.push((same_peers.into(), other_services.into()));
    }
    left
}

fn addresses(addresses: &Addresses) -> AddressSet {
    let any = || [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())].into_iter().collect();
    addresses.members().map_or_else(any, AddressSet::clone)
}

fn service_set(services: &Services) -> ServiceSet {
    match services {
        Services::Any => ServiceSet::all(),
        Services::Set(set) => ServiceSet::clone(set),
    }
}

#[cfg(test)]
mod tests;
