//! Turns rules of the contract into lines that a security group can hold: independent allows without an order.
//!
//! A line has no address family. A group creates its rules for the families of its ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, Addresses, PortRange, Services, protocol};
use ipnet::IpNet;

use super::Allow;
use super::members::Members;
use crate::contract::{Peers, SetId, TieredList};
use crate::origin::Direction;
use crate::renderer::plain::{Lowered, Product, Tiered, lower, on_node, subtract};

/// The remote end of a [`Line`]: sources of ingress, destinations of egress.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Remote {
    Any,
    Prefix(IpNet),
    /// The ports in any of these sets that is exact (see [`Members::is_exact`]).
    Peers(Arc<[SetId]>),
}

/// A protocol number with optional ports. `None` for all protocols, and inside for all ports.
pub(super) type Service = Option<(u8, Option<PortRange>)>;

/// Traffic that a security group allows: a direction, a protocol with ports, and a remote end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Line {
    pub(super) direction: Direction,
    pub(super) service: Service,
    pub(super) remote: Remote,
}

/// Maximum number of pieces into which denies may cut a rule. As in [`plain`](crate::renderer::plain), a dozen denies of overlapping ports
/// reach it.
const MAX_PIECES: usize = 4_096;

/// The reason why rules cannot be expressed.
pub(super) type Why = String;

/// Returns the lines of a policy's rules. An error if there are more than `limit`.
pub(super) fn of_policy(
    members: &Members,
    direction: Direction,
    rules: &[Allow],
    limit: usize,
    lines: &mut BTreeSet<Line>,
) -> Result<(), Why> {
    for Allow { peers, services, .. } in rules {
        let services = services_of(services)?;
        let mut put = |remote: Remote| {
            lines.extend(services.iter().map(|&service| Line { direction, service, remote: remote.clone() }));
            if lines.len() > limit { Err(too_many(limit)) } else { Ok(()) }
        };
        let sets = match peers {
            Peers::Any => {
                put(Remote::Any)?;
                continue;
            }
            // Security groups have no domain names: such a rule allows nothing.
            Peers::OwnNode | Peers::Names { .. } => continue,
            Peers::Sets(sets) => sets,
        };
        let (exact, others): (Vec<SetId>, Vec<_>) = sets.iter().partition(|set| members.is_exact(**set));
        if !exact.is_empty() {
            put(Remote::Peers(sets.clone()))?;
        }
        // Checked before the addresses are listed, because listing all addresses of a large cluster takes long.
        if others.iter().map(|set| members.intervals(*set)).sum::<usize>() > limit.saturating_mul(2) {
            return Err(too_many(limit));
        }
        let blocks = others.iter().fold(AddressSet::default(), |all, set| all.union(&members.address_set(*set)));
        blocks.prefixes().try_for_each(|prefix| put(Remote::Prefix(prefix)))?;
    }
    Ok(())
}

/// Returns the lines of a list with cluster policies: its accepts without the preceding denies and passes, as blocks. `node` has the own
/// node's addresses.
pub(super) fn of_tiers(
    members: &Members,
    direction: Direction,
    list: &TieredList,
    node: &[IpAddr],
    limit: usize,
) -> Result<BTreeSet<Line>, Why> {
    let tiered = list.rules.iter().map(|rule| Tiered {
        tier: rule.tier.clone(),
        peers: match &rule.peers {
            Peers::Any => Some(Addresses::Any),
            Peers::OwnNode => None,
            Peers::Names { .. } => Some(AddressSet::default().into()),
            Peers::Sets(sets) => {
                let all = sets.iter().fold(AddressSet::default(), |all, set| all.union(&members.address_set(*set)));
                Some(all.into())
            }
        },
        services: rule.services.clone(),
        names: None,
        action: rule.action,
        origin: rule.origin,
    });
    let lowered = lower(tiered, direction).map_err(|error| error.to_string())?;
    let mut lines = BTreeSet::new();
    for (peers, services) in allowed(lowered, node)? {
        let services = services_of(&services)?;
        let remotes: Vec<Remote> = match peers.members() {
            None => vec![Remote::Any],
            Some(set) => set.prefixes().map(Remote::Prefix).take(limit + 1).collect(),
        };
        let all = remotes
            .iter()
            .flat_map(|remote| services.iter().map(|&service| Line { direction, service, remote: remote.clone() }));
        lines.extend(all);
        if lines.len() > limit {
            return Err(too_many(limit));
        }
    }
    Ok(lines)
}

/// Returns the traffic that ordered rules allow, as products that may overlap.
fn allowed(Lowered { rules, own_node }: Lowered, node: &[IpAddr]) -> Result<Vec<Product>, Why> {
    let node: Arc<AddressSet> = Arc::new(node.iter().copied().collect());
    let rules = on_node(&rules, &own_node, &node);
    let (mut denies, mut open) = (Vec::<Product>::new(), Vec::<Product>::new());
    let mut take = |region: Product, denies: &[Product]| {
        let mut pieces = vec![region];
        for deny in denies {
            pieces = pieces.iter().flat_map(|piece| subtract(piece, deny)).collect();
            if pieces.len() > MAX_PIECES {
                return Err(format!("the denies before a rule split it into more than {MAX_PIECES} pieces"));
            }
        }
        for (peers, services) in pieces {
            match open.iter_mut().find(|(_, same)| *same == services) {
                Some((others, _)) => *others = union(others, &peers),
                None => open.push((peers, services)),
            }
        }
        Ok(())
    };
    for rule in rules {
        match rule.action {
            Action::Deny => denies.push((rule.peers, rule.services)),
            Action::Allow => take((rule.peers, rule.services), &denies)?,
        }
    }
    Ok(open)
}

fn union(one: &Addresses, other: &Addresses) -> Addresses {
    match (one.members(), other.members()) {
        (Some(one), Some(other)) => one.union(other).into(),
        _ => Addresses::Any,
    }
}

/// Converts protocols and ports to the API's form. An error if the API cannot express them.
fn services_of(services: &Services) -> Result<Vec<Service>, Why> {
    let Services::Set(set) = services else { return Ok(vec![None]) };
    let mut all = Vec::new();
    for service in set.services() {
        let (first, last) = service.protocols;
        if first != last || !matches!(first, protocol::TCP | protocol::UDP | protocol::SCTP) {
            return Err(format!(
                "what is left after a deny or Pass is {service}, but a rule names one protocol or all: the API's protocol 0 means all, and \
                 some protocols exist in one family only"
            ));
        }
        let ports = match service.ports {
            PortRange::ALL => None,
            // The API has no port 0, and no application listens on it.
            PortRange { last: 0, .. } => continue,
            PortRange { first, last } => Some(PortRange { first: first.max(1), last }),
        };
        all.push(Some((first, ports)));
    }
    Ok(all)
}

fn too_many(limit: usize) -> Why {
    format!("the security group would have more than {limit} rules")
}
