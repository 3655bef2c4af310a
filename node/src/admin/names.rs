//! Answers `names`: the addresses that pods have learned by name.

use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;

use bulkhead_dataplane::{Holder, NameCounters, Snapshot};
use bulkhead_observe::admin::{LearnedName, LearnedNames, NameFilter, NameTotals};

use crate::clock;
use crate::observer::Observation;

/// Maximum number of addresses in one answer.
const MOST: usize = 10_000;

/// Returns the valid addresses that pods have learned and that match the filter: their number, and the first by pod, name and address, at
/// most `filter.limit` and [`MOST`].
pub(super) fn list(now: &Observation, filter: &NameFilter) -> LearnedNames {
    let pods = holders(&now.snapshot);
    let (mut matching, mut first) = (0, First { most: filter.limit.min(MOST), rows: BinaryHeap::new() });
    let time = clock::now();
    if let Some(learned) = &now.learned {
        learned.for_each(time, |holder, name, address, until| {
            let Some(pod) = pods.get(&holder) else { return };
            let is_wanted = filter.pod.as_ref().is_none_or(|wanted| wanted == pod)
                && filter.name.as_ref().is_none_or(|wanted| wanted == name);
            if is_wanted {
                matching += 1;
                first.add(pod, name, address, until.saturating_sub(time) / 1_000_000_000);
            }
        });
    }
    let names = now.snapshot.names();
    let grace = names.map_or(0, |names| names.grace());
    LearnedNames {
        node: now.about.node.to_string(),
        pods: pods.len(),
        servers: names.map(|names| names.servers().prefixes().collect()).unwrap_or_default(),
        grace_seconds: std::time::Duration::from_nanos(grace).as_secs_f64(),
        matching,
        names: first.rows.into_sorted_vec(),
        counters: totals(now),
    }
}

/// The first rows in order of pod, name and address.
struct First {
    most: usize,
    /// At most `most` rows.
    rows: BinaryHeap<LearnedName>,
}

impl First {
    /// Adds a row, unless `most` others come before it. A row that no longer fits is removed.
    fn add(&mut self, pod: &str, name: &str, address: IpAddr, seconds: u64) {
        if self.rows.len() >= self.most {
            let last = self.rows.peek();
            if last.is_none_or(|last| (pod, name, address) >= (&*last.pod, &*last.name, last.address)) {
                return;
            }
            self.rows.pop();
        }
        self.rows.push(LearnedName { pod: pod.to_owned(), name: name.to_owned(), address, seconds });
    }
}

/// Returns the sums of all workers' counts of DNS messages.
pub(super) fn totals(now: &Observation) -> NameTotals {
    let mut all = NameCounters::default();
    now.counters.workers.iter().for_each(|worker| all.add(&worker.names));
    let NameCounters { queries, answers, addresses, unasked, malformed, incomplete, full, matched, mismatched } = all;
    NameTotals { queries, answers, addresses, unasked, malformed, incomplete, full, matched, mismatched }
}

/// Returns the name of each holder's port. Empty if no rule names domains.
fn holders(snapshot: &Snapshot) -> BTreeMap<Holder, String> {
    let Some(names) = snapshot.names() else { return BTreeMap::new() };
    let ports = snapshot.ids().zip(snapshot.ports());
    ports.filter_map(|(id, port)| Some((names.holder(id)?, port.name.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_rows_the_first_are_kept_in_order_and_no_more() {
        let row = |number: u32| (format!("x/{}", number % 3), IpAddr::from([10, 0, 0, (number * 7 % 100) as u8]));
        let all: Vec<_> = (0..100).map(row).collect();
        for most in [0, 1, 10, 1000] {
            let mut first = First { most, rows: BinaryHeap::new() };
            for (pod, address) in &all {
                first.add(pod, "www.example.com", *address, 9);
                assert!(first.rows.len() <= most);
            }
            let mut expected = all.clone();
            expected.sort_unstable();
            expected.truncate(most);
            let rows = first.rows.into_sorted_vec().into_iter().map(|row| (row.pod, row.address));
            assert_eq!(rows.collect::<Vec<_>>(), expected);
        }
    }
}
