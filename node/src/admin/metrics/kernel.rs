//! The metrics with `dataplane: nftables`: of the names of the other dataplane those that there is something to say of.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_dataplane::OriginCounters;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::{Kind, Labels, Metrics, Value, bounded, labels_of};
use crate::nft::{Counter, Told, reasons};

/// All metrics as text.
///
/// # Errors
/// Never in fact: what is written to is a string.
pub(crate) fn render_kernel(told: &Told, counters: &[Counter]) -> Result<String, fmt::Error> {
    let mut metrics = Metrics::default();
    add_program(&mut metrics, told);
    add_decided(&mut metrics, told, counters);
    let dropped = reasons(counters)
        .map(|(reason, _, packets)| (vec![("reason", reason.to_owned())], Value::Count(packets)))
        .collect();
    metrics.add("forward_dropped_packets", "Packets dropped, by reason", None, Kind::Counter, dropped);
    if let Some(source) = told.source() {
        metrics.gauge("source_connected", "1 while the API server is heard", source.is_connected.into());
        if let Some(age) = source.age() {
            metrics.seconds("source_age", "Age of what is known of the API server's objects", age);
        }
    }
    let ports = told.ports();
    metrics.gauge("ports_configured", "Interfaces that are judged, and pods without one", ports.len() as u64);
    let open = ports.iter().filter(|port| port.state == "open").count();
    metrics.gauge("ports_open", "Interfaces that are judged and there", open as u64);
    let mut registry = Registry::with_prefix("bulkhead");
    registry.register_collector(Box::new(metrics));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn add_program(metrics: &mut Metrics, told: &Told) {
    let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("node", told.node.to_string())];
    metrics.add("build_info", "The program, always 1", None, Kind::Gauge, vec![(labels, Value::Count(1))]);
    metrics.seconds("process_uptime", "Time since the start", told.started.elapsed());
    metrics.gauge("process_ready", "1 when there is a policy in force that is not too old", told.is_ready().into());
    let state = told.state.read();
    metrics.gauge("policy_generation", "Changes of the kernel's ruleset", told.changes);
    metrics.seconds("policy_age", "Time since the ruleset in force was taken", told.since.elapsed());
    let help = "Time from when the last change was seen until the kernel had it";
    metrics.seconds("policy_enforce", help, told.took);
    metrics.gauge("policy_denying", "1 while nothing may pass for lack of a state", told.is_denying.into());
    metrics.gauge("policy_pending", "1 while a newer ruleset cannot be put into force", told.is_refused.into());
    metrics.counter("policy_states_applied", "States that took effect", state.applied);
    metrics.counter("policy_states_refused", "States that did not load", state.refused);
    metrics.gauge("policy_faulty_objects", "Objects that were not understood", state.faulty);
    metrics.gauge("policy_contested_addresses", "Addresses that several pods claim", state.contested_addresses);
    let help = "Kinds that restrict traffic and are not enforced";
    metrics.gauge("policy_unenforced_kinds", help, state.unenforced_kinds);
}

fn add_decided(metrics: &mut Metrics, told: &Told, counters: &[Counter]) {
    let mut sums: BTreeMap<Labels, OriginCounters> = BTreeMap::new();
    for counter in counters {
        let Some((allows, origin)) = told.rule(counter) else { continue };
        let sum = sums.entry(labels_of(told.origins.get(origin))).or_default();
        *(if allows { &mut sum.allowed } else { &mut sum.denied }) += counter.packets;
    }
    let decided = bounded(sums);
    let values = |count: fn(&OriginCounters) -> u64| {
        let all = decided.iter().map(|(labels, counters)| (labels.clone(), count(counters)));
        all.filter(|&(_, count)| count > 0).map(|(labels, count)| (labels, Value::Count(count))).collect()
    };
    let help =
        "Packets that were judged and let through, by who allowed them: of each connection one after each change";
    metrics.add("policy_allowed_packets", help, None, Kind::Counter, values(|counters| counters.allowed));
    let help = "Packets dropped, by who denied them";
    metrics.add("policy_denied_packets", help, None, Kind::Counter, values(|counters| counters.denied));
}
