//! The rules of one family in the compiler's form: every field as intervals of numbers.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::address::Address;
use crate::{Addresses, Rule, Services, Verdict};

/// Classes of protocol numbers that no rule distinguishes, numbered in order. A service is `class << 16 | port`, so "every protocol, port
/// 80" is a handful of intervals instead of 256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Protocols {
    pub(crate) class_of: [u8; 256],
}

impl Protocols {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut begins = [false; 257];
        for rule in rules {
            if let Services::Set(set) = &rule.services {
                for service in set.services() {
                    begins[usize::from(service.protocols.0)] = true;
                    begins[usize::from(service.protocols.1) + 1] = true;
                }
            }
        }
        let mut class_of = [0; 256];
        for number in 1..256 {
            class_of[number] = class_of[number - 1] + u8::from(begins[number]);
        }
        Self { class_of }
    }

    /// Returns a packet's service as a point of the service axis.
    #[inline(always)]
    pub(crate) fn point(&self, protocol: u8, port: u16) -> u32 {
        u32::from(self.class_of[usize::from(protocol)]) << 16 | u32::from(port)
    }

    /// Appends a rule's services to `into`, as intervals of points.
    fn intervals(&self, services: &Services, into: &mut Vec<(u32, u32)>) {
        let Services::Set(set) = services else {
            into.push((0, u32::MAX));
            return;
        };
        for service in set.services() {
            let (first, last) = service.protocols;
            let (low, high) = (self.point(first, service.ports.first), self.point(last, service.ports.last));
            if service.ports == crate::PortRange::ALL {
                // The axis extends above the last class; no packet is there.
                into.push((low, if last == u8::MAX { u32::MAX } else { high }));
            } else {
                let (first, last) = (low >> 16, high >> 16);
                into.extend((first..=last).map(|class| (class << 16 | low & 0xffff, class << 16 | high & 0xffff)));
            }
        }
    }
}

/// A rule that at least one packet of the family can match.
#[derive(Clone, Debug)]
pub(crate) struct Live<'a, A> {
    /// The verdict's code, ascending with the rule's position.
    pub(crate) code: u32,
    pub(crate) src: &'a [(A, A)],
    pub(crate) dst: &'a [(A, A)],
    pub(crate) src_ports: (u32, u32),
    /// Range of the rule's services in [`LiveRules::services`].
    services: (u32, u32),
}

/// The rules of one family in order, up to the first that matches every packet.
#[derive(Clone, Debug)]
pub(crate) struct LiveRules<'a, A> {
    pub(crate) rules: Vec<Live<'a, A>>,
    services: Arc<[(u32, u32)]>,
    /// The highest point of the service axis that a packet can have.
    pub(crate) last_service: u32,
}

impl<'a, A: Address> LiveRules<'a, A> {
    /// Takes the rules that some packet of the family can match. `srcs` and `dsts` return the intervals of a rule's source or destination, as
    /// first and last address or number, ascending; none if no packet of the family matches it.
    pub(crate) fn new(
        rules: &'a [Rule],
        protocols: &Protocols,
        srcs: impl Fn(&'a Addresses) -> &'a [(A, A)],
        dsts: impl Fn(&'a Addresses) -> &'a [(A, A)],
    ) -> Self {
        let last_service = protocols.point(u8::MAX, u16::MAX);
        let (mut live, mut all) = (Vec::new(), Vec::new());
        // Each set of services is expanded once, so that rules that share it also share the intervals.
        let mut known: HashMap<Option<usize>, (u32, u32), RandomState> = HashMap::default();
        for (at, rule) in (0u32..).zip(rules) {
            let (src, dst) = (srcs(&rule.src), dsts(&rule.dst));
            if src.is_empty() || dst.is_empty() {
                continue;
            }
            let set = match &rule.services {
                Services::Any => None,
                Services::Set(set) => Some(Arc::as_ptr(set).addr()),
            };
            let services = *known.entry(set).or_insert_with(|| {
                let index = |at: usize| u32::try_from(at).expect("MAX_RULES keeps lists far below 2^32 services");
                let from = index(all.len());
                protocols.intervals(&rule.services, &mut all);
                (from, index(all.len()))
            });
            if services.0 == services.1 {
                continue;
            }
            let src_ports = (u32::from(rule.src_ports.first), u32::from(rule.src_ports.last));
            let code = Verdict::by(rule.action, at).code();
            live.push(Live { code, src, dst, src_ports, services });
            if *rule == Rule::any(rule.action, rule.origin) {
                break;
            }
        }
        Self { rules: live, services: all.into(), last_service }
    }

    /// Returns the value with these rules only, and with the same services and protocol classes.
    pub(crate) fn with(&self, rules: &[Live<'a, A>]) -> Self {
        Self { rules: rules.to_vec(), services: self.services.clone(), last_service: self.last_service }
    }

    /// Returns the services of a rule as intervals of points.
    pub(crate) fn services(&self, rule: &Live<'_, A>) -> &[(u32, u32)] {
        &self.services[rule.services.0 as usize..rule.services.1 as usize]
    }
}

/// Returns the intervals of addresses of a field, as first and last address, ascending. Empty if the field has none of this family.
pub(crate) fn intervals<A: Address>(addresses: &Addresses) -> &[(A, A)] {
    match addresses {
        Addresses::Any => A::EVERY,
        Addresses::Set(set) => A::intervals(set),
        Addresses::Parted(set) => A::intervals(set.flat()),
    }
}

/// Returns a rule's source ports as an interval of the axis, which extends above the last port.
pub(crate) fn port_interval((first, last): (u32, u32)) -> (u32, u32) {
    (first, if last == u32::from(u16::MAX) { u32::MAX } else { last })
}

/// Calls `take` with each prefix of the interval, ascending: its first address and length.
pub(crate) fn prefixes<A: Address>((mut first, last): (A, A), mut take: impl FnMut(A, u8)) {
    loop {
        let aligned = u8::try_from(first.trailing_zeros()).expect("at most 128").min(A::BITS);
        let mut length = A::BITS - aligned;
        let end = loop {
            let end = first ^ !A::mask(length);
            if end <= last {
                break end;
            }
            length += 1;
        };
        take(first, length);
        match end.next().filter(|_| end < last) {
            Some(next) => first = next,
            None => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_covered_by_its_prefixes() {
        let cover = |interval| {
            let mut all = Vec::new();
            prefixes::<u32>(interval, |first, length| all.push((first, length)));
            all
        };
        assert_eq!(cover((0, u32::MAX)), [(0, 0)]);
        assert_eq!(cover((5, 5)), [(5, 32)]);
        assert_eq!(cover((1, 6)), [(1, 32), (2, 31), (4, 31), (6, 32)]);
        assert_eq!(cover((u32::MAX - 1, u32::MAX)), [(u32::MAX - 1, 31)]);
        let mut count = 0;
        prefixes::<u128>((1, u128::MAX - 1), |_, _| count += 1);
        assert_eq!(count, 254);
    }
}
