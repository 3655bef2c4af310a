//! Takes rules out of a cross product: the cells where they decided get the next rule that matches.
//!
//! ```text
//!   cells of the rules --one point of each class--> scan of the rules behind them --> the same table, these cells changed
//! ```
//!
//! Every point of a cell matches the same rules, so one tells what the cell becomes. An address that has entered or left a set
//! since the build does not: it stands for no others, and its own packets are decided by the rules that name it
//! ([`Exceptions`](super::Exceptions)). Axes and cells, mostly some hundred kilobytes, are copied, so a removal costs a lookup
//! nothing afterwards: on a pod's 5,000 rules 0.15 ms instead of a build of 4 to 7, on 1,000 rules 0.03 instead of 0.3. Two
//! alternatives lost. Axes behind a pointer, shared with the table before, are 3 to 5 % of every lookup of a small table. A mark
//! instead of the rule, and a list of what it hid, is a branch and a search in each lookup.

use super::Axes;
use super::address::Address;
use super::axis::Axis;
use super::cross::Cross;
use super::exceptions::Changed;
use super::rules::Protocols;
use crate::addresses::interval_contains;
use crate::{AddressSet, Addresses, Rule};

/// The most rules that are looked at, one by one, for all cells of the rules: about a millisecond. Building a cross product
/// takes up to four.
const MOST_CHECKS: usize = 1 << 16;

/// What remains of a compiled list behind the first rule that is taken out.
pub(crate) struct Remaining<'a> {
    /// The rules with their codes, in order.
    pub(crate) rules: Vec<(u32, &'a Rule)>,
    /// For which addresses they are not those that were compiled.
    pub(crate) changed: &'a Changed,
}

/// One point of each class of the four axes; of an axis of addresses one that has not changed, where there is one.
struct Points<A> {
    src: Vec<A>,
    dst: Vec<A>,
    service: Vec<u32>,
    src_port: Vec<u32>,
}

impl Cross {
    /// The table without the rules of these codes. None when they decide in too many cells, or when a rule that remains is not in
    /// the table.
    pub(super) fn without<A: Address>(
        &self,
        axes: &Axes<A>,
        codes: &[u32],
        remaining: &Remaining<'_>,
        protocols: &Protocols,
    ) -> Option<Self> {
        let behind = &remaining.rules;
        let mut patched = self.clone();
        let mut is_gone = vec![false; self.codes.len()];
        for code in codes {
            is_gone[self.codes.binary_search(code).ok()?] = true;
        }
        let points = self.points(axes, remaining.changed);
        let [_, dsts, services, src_ports] = self.classes;
        let mut checks = 0;
        let mut from: Option<(usize, Vec<_>)> = None;
        let mut both: Option<(usize, Vec<_>)> = None;
        for (at, cell) in patched.cells.iter_mut().enumerate().filter(|(_, cell)| is_gone[usize::from(**cell)]) {
            let (pair, rest) = (at / (services * src_ports), at % (services * src_ports));
            let (src, dst) = (pair / dsts, pair % dsts);
            if from.as_ref().is_none_or(|&(other, _)| other != src) {
                checks += behind.len();
                let matching = |(_, rule): &&(u32, &Rule)| contains(&rule.src, points.src[src]);
                from = Some((src, behind.iter().filter(matching).collect()));
                both = None;
            }
            if both.as_ref().is_none_or(|&(other, _)| other != pair) {
                let rules = from.iter().flat_map(|(_, rules)| rules).copied();
                let matching = |(_, rule): &&(u32, &Rule)| contains(&rule.dst, points.dst[dst]);
                checks += rules.clone().count();
                both = Some((pair, rules.filter(matching).collect()));
            }
            let (protocol, port) = protocols.of_point(points.service[rest / src_ports])?;
            let src_port = u16::try_from(points.src_port[rest % src_ports]).ok()?;
            let rules = both.iter().flat_map(|(_, rules)| rules);
            let mut seen = 0;
            let next = rules
                .inspect(|_| seen += 1)
                .find(|(_, rule)| rule.src_ports.contains(src_port) && rule.services.contains(protocol, port));
            checks += seen;
            if checks > MOST_CHECKS {
                return None;
            }
            // The last code stands for no rule.
            let next = next.map_or(Some(self.codes.len() - 1), |(code, _)| self.codes.binary_search(code).ok())?;
            *cell = u16::try_from(next).expect("MAX_RULES is below 2^16");
        }
        Some(patched)
    }

    fn points<A: Address>(&self, axes: &Axes<A>, changed: &Changed) -> Points<A> {
        let [srcs, dsts, services, src_ports] = self.classes;
        let class = |addend: u32, factor: usize| addend as usize / factor;
        let mut points = Points {
            src: vec![A::ZERO; srcs],
            dst: vec![A::ZERO; dsts],
            service: vec![0; services],
            src_port: vec![0; src_ports],
        };
        each_unchanged(&axes.src, &changed.src, |point, at| points.src[class(at, dsts * services * src_ports)] = point);
        each_unchanged(&axes.dst, &changed.dst, |point, at| points.dst[class(at, services * src_ports)] = point);
        axes.service.each(|point, addend| points.service[class(addend, src_ports)] = point);
        axes.src_port.each(|point, addend| points.src_port[class(addend, 1)] = point);
        points
    }
}

/// Calls `take` with a point of each piece that has one which has not changed, and the piece's class.
fn each_unchanged<A: Address>(axis: &Axis<A>, changed: &AddressSet, mut take: impl FnMut(A, u32)) {
    let changed = A::intervals(changed);
    let mut first = A::ZERO;
    axis.each(|last, class| {
        let after = changed.partition_point(|&(begin, _)| begin <= last);
        let around = changed[..after].last().filter(|&&(_, end)| last <= end);
        // Changed intervals do not touch, so that the address before one has not changed.
        let point = around.map_or(Some(last), |&(begin, _)| begin.previous().filter(|&before| first <= before));
        if let Some(point) = point {
            take(point, class);
        }
        first = last.next().unwrap_or(last);
    });
}

fn contains<A: Address>(addresses: &Addresses, point: A) -> bool {
    match addresses {
        Addresses::Any => true,
        Addresses::Set(set) => interval_contains(A::intervals(set), point),
        Addresses::Parted(set) => A::is_in(set, point),
    }
}
