//! Answers `names`: the addresses that pods have learned by name.

use std::collections::BTreeMap;

use bulkhead_dataplane::{Holder, Learned, NameCounters, Snapshot};
use bulkhead_observe::admin::{LearnedName, LearnedNames, NameFilter, NameTotals};

use crate::clock;
use crate::observer::Observation;

/// Returns the addresses that pods have learned, are still valid and match the filter: the first `filter.limit` by pod, name and address.
/// `learned` is `None` while the vswitch ends: no address is then listed.
pub(super) fn list(now: &Observation, learned: Option<&Learned>, filter: &NameFilter) -> LearnedNames {
    let pods = holders(&now.snapshot);
    let mut found = Vec::new();
    let time = clock::now();
    if let Some(learned) = learned {
        learned.for_each(time, |holder, name, address, until| {
            let Some(pod) = pods.get(&holder) else { return };
            let is_asked = filter.pod.as_ref().is_none_or(|asked| asked == pod)
                && filter.name.as_ref().is_none_or(|asked| asked == name);
            if is_asked {
                let seconds = until.saturating_sub(time) / 1_000_000_000;
                found.push(LearnedName { pod: pod.clone(), name: name.to_owned(), address, seconds });
            }
        });
    }
    found.sort_unstable();
    let matching = found.len();
    found.truncate(filter.limit);
    let names = now.snapshot.names();
    let grace = names.map_or(0, |names| names.grace());
    LearnedNames {
        node: now.about.node.to_string(),
        pods: pods.len(),
        servers: names.map(|names| names.servers().prefixes().collect()).unwrap_or_default(),
        grace_seconds: std::time::Duration::from_nanos(grace).as_secs_f64(),
        matching,
        names: found,
        counters: totals(now),
    }
}

/// Returns the sums of all workers' counts of DNS messages.
pub(super) fn totals(now: &Observation) -> NameTotals {
    let mut all = NameCounters::default();
    now.counters.workers.iter().for_each(|worker| all.add(&worker.names));
    let NameCounters { queries, answers, addresses, unasked, malformed, incomplete, full } = all;
    NameTotals { queries, answers, addresses, unasked, malformed, incomplete, full }
}

/// Returns the name of each holder's port. Empty if no rule names domains.
fn holders(snapshot: &Snapshot) -> BTreeMap<Holder, String> {
    let Some(names) = snapshot.names() else { return BTreeMap::new() };
    let ports = snapshot.ids().zip(snapshot.ports());
    ports.filter_map(|(id, port)| Some((names.holder(id)?, port.name.to_string()))).collect()
}
