//! Priorities of ClusterNetworkPolicies, which leave those of the state in their places.

use bulkhead_control::object::Order;

use super::terms::{Slot, Zone};

/// The highest priority number, and thus the lowest precedence, of a ClusterNetworkPolicy.
const MAX_PRIORITY: u16 = 1000;

/// Distance of priorities, so that others can be inserted later.
const STEP: u16 = 10;

/// Returns the priority that an order is. `None` if it is none.
pub(super) fn priority_of(order: Order) -> Option<u16> {
    (0..=MAX_PRIORITY).find(|priority| Order::of(f64::from(*priority)) == order)
}

/// Returns a priority for each slot with the order of its policy, ascending and not among those taken. `None` if there are not enough.
pub(super) fn priorities(slots: &[(Slot, Order)], taken: &[u16]) -> Option<Vec<u16>> {
    let mut all = Vec::with_capacity(slots.len());
    let before: Vec<_> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Before).collect();
    let behind: Vec<_> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Behind).collect();
    let among: Vec<_> = slots.iter().filter(|(slot, _)| slot.zone == Zone::Among).collect();
    let mut middle: Vec<u16> = Vec::new();
    for (_, order) in &among {
        // A policy without a number, such as a BaselineAdminNetworkPolicy, comes last.
        let wanted = priority_of(*order);
        let least = middle.last().map_or(0, |last| last + 1);
        let is_behind = |priority: &u16| Order::of(f64::from(*priority)) >= *order;
        let place = (0..=MAX_PRIORITY).find(is_behind).unwrap_or(MAX_PRIORITY);
        let start = wanted.unwrap_or(place).max(least);
        let free = (start..=MAX_PRIORITY).find(|priority| !taken.contains(priority))?;
        // Another policy of the state must not come between the two.
        let skipped = taken.iter().any(|of| (place..free).contains(of) && Some(*of) != wanted);
        if skipped {
            return None;
        }
        middle.push(free);
    }
    let first = taken.iter().chain(&middle).min().copied();
    let last = taken.iter().chain(&middle).max().copied();
    all.extend(spread(before.len(), 0, first.unwrap_or(if behind.is_empty() { MAX_PRIORITY + 1 } else { 500 }))?);
    all.extend(&middle);
    let start = last.or(all.last().copied()).map_or(0, |last| last + 1);
    all.extend(spread(behind.len(), start, MAX_PRIORITY + 1)?);
    Some(all)
}

/// Returns `count` ascending numbers from `first`, all less than `end`. `None` if there are fewer.
fn spread(count: usize, first: u16, end: u16) -> Option<Vec<u16>> {
    let count = u16::try_from(count).ok()?;
    let room = end.saturating_sub(first);
    if count > room {
        return None;
    }
    let step = (room / count.max(1)).clamp(1, STEP);
    let offset = if room >= count * step + step { step } else { 0 };
    Some((0..count).map(|at| first + offset + at * step).map(|at| at.min(end - 1)).collect())
}
