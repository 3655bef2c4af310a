//! Derives from an expression the sets that contain every matching packet.

use std::collections::HashSet;
use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::{Bits, Hosts, Kinds, Ports, V4, V6, halves, kind, whole};
use crate::filter::parse::Tree;
use crate::filter::predicate::Predicate;

/// A set of addresses that contains at least one end of every matching packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    All,
    V4(V4),
    V6(V6),
    Hosts(Hosts),
}

impl Addresses {
    pub(super) fn among(addresses: &HashSet<IpAddr>) -> Self {
        let mut hosts = Hosts(Bits::none());
        addresses.iter().for_each(|address| hosts.add(*address));
        Self::Hosts(hosts)
    }

    /// Estimates the fraction of addresses in the set.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub(super) fn part(&self) -> f64 {
        let net = |ones: u32| 0.5f64.powi(ones.try_into().unwrap_or(i32::MAX));
        match self {
            Self::All => 1.0,
            Self::V4(V4 { mask, .. }) => net(mask.count_ones()),
            Self::V6(V6 { mask: [0, 0], .. }) => 1.0,
            // All addresses of a cluster share their first 48 bits or so.
            Self::V6(V6 { mask, .. }) => net(whole(*mask).count_ones().saturating_sub(48)).min(0.9),
            Self::Hosts(hosts) => hosts.0.len() as f64 / Bits::<256>::LEN as f64,
        }
    }

    /// Returns the only address of the set. `None` if the set is not a network of one address.
    fn host(&self) -> Option<IpAddr> {
        match *self {
            Self::V4(V4 { net, mask: u32::MAX }) => Some(IpAddr::V4(net.into())),
            Self::V6(V6 { net, mask: [u64::MAX, u64::MAX] }) => Some(IpAddr::V6(whole(net).into())),
            _ => None,
        }
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Hosts(one), Self::Hosts(other)) => Self::Hosts(Hosts(one.0.or(&other.0))),
            (Self::Hosts(mut hosts), other) | (other, Self::Hosts(mut hosts)) => match other.host() {
                Some(address) => {
                    hosts.add(address);
                    Self::Hosts(hosts)
                }
                None => Self::All,
            },
            (one, other) if one.host().is_some() && other.host().is_some() => {
                let mut hosts = Hosts(Bits::none());
                one.host().into_iter().chain(other.host()).for_each(|address| hosts.add(address));
                Self::Hosts(hosts)
            }
            (Self::V4(one), Self::V4(other)) => Self::V4(one.or(other)),
            (Self::V6(one), Self::V6(other)) => Self::V6(one.or(other)),
            _ => Self::All,
        }
    }
}

/// Sets that contain every matching packet's protocol, a port and an address. `ports` is `None` if the filter does not limit ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) kinds: Kinds,
    pub(super) ports: Option<Ports>,
    pub(super) addresses: Addresses,
}

impl Bounds {
    fn all() -> Self {
        Self { kinds: Kinds(Bits::all()), ports: None, addresses: Addresses::All }
    }

    fn of_kinds(is_in: impl Fn(u8, bool) -> bool) -> Self {
        let mut bits = Bits::none();
        for (number, v6) in (0..=u8::MAX).flat_map(|number| [(number, false), (number, true)]) {
            if is_in(number, v6) {
                bits.add(kind(number, v6));
            }
        }
        Self { kinds: Kinds(bits), ..Self::all() }
    }

    /// Returns the sets that contain every packet that matches the tree, or with `is_turned` its negation.
    pub(super) fn of(tree: &Tree, is_turned: bool) -> Self {
        let each = |parts: &[Tree], join: fn(Self, Self) -> Self| {
            parts.iter().map(|part| Self::of(part, is_turned)).reduce(join).unwrap_or_else(Self::all)
        };
        match tree {
            Tree::Test(predicate) => Self::of_test(predicate, is_turned),
            Tree::Not(tree) => Self::of(tree, !is_turned),
            Tree::All(parts) if !is_turned => each(parts, Self::and),
            Tree::Any(parts) if is_turned => each(parts, Self::and),
            Tree::All(parts) | Tree::Any(parts) => each(parts, Self::or),
        }
    }

    fn of_test(predicate: &Predicate, is_turned: bool) -> Self {
        match predicate {
            Predicate::Family(wanted) => Self::of_kinds(|_, v6| (v6 == *wanted) != is_turned),
            Predicate::Protocol(wanted) => Self::of_kinds(|number, _| (number == *wanted) != is_turned),
            // A negated port or address may still be that of the packet's other end.
            _ if is_turned => Self::all(),
            Predicate::Ports(_, low, high) => {
                let has_ports = |number, _| matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP);
                Self { ports: Some(Ports::of(*low, *high)), ..Self::of_kinds(has_ports) }
            }
            Predicate::V4(_, net, mask) => {
                Self { addresses: Addresses::V4(V4 { net: *net, mask: *mask }), ..Self::of_kinds(|_, v6| !v6) }
            }
            Predicate::V6(_, net, mask) => {
                let (net, mask) = (halves(*net), halves(*mask));
                Self { addresses: Addresses::V6(V6 { net, mask }), ..Self::of_kinds(|_, v6| v6) }
            }
            Predicate::Among(_, addresses) => Self { addresses: Addresses::among(addresses), ..Self::all() },
        }
    }

    /// Returns the bounds of packets within both. Keeps the smaller set of ports and of addresses, because each set may hold another end.
    fn and(self, other: Self) -> Self {
        let ports = match (self.ports, other.ports) {
            (Some(one), Some(other)) => Some(if one.0.len() <= other.0.len() { one } else { other }),
            (one, other) => one.or(other),
        };
        let is_smaller = self.addresses.part() <= other.addresses.part();
        let addresses = if is_smaller { self.addresses } else { other.addresses };
        Self { kinds: Kinds(self.kinds.0.and(&other.kinds.0)), ports, addresses }
    }

    fn or(self, other: Self) -> Self {
        Self {
            kinds: Kinds(self.kinds.0.or(&other.kinds.0)),
            ports: self.ports.zip(other.ports).map(|(one, other)| Ports(one.0.or(&other.0))),
            addresses: self.addresses.or(other.addresses),
        }
    }
}
