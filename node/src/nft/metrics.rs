//! The metrics with `dataplane: nftables`: the subset of the vswitch's metrics that applies to it.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_dataplane::OriginCounters;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::kernel::Counter;
use super::status::{Told, reasons};
use crate::admin::exposition::{Kind, Labels, Metrics, Value};
use crate::admin::policy_labels::{bounded, labels_of};

/// Renders all metrics as OpenMetrics text.
///
/// # Errors
/// Never in practice: the text is written to a string.
pub(crate) fn render(told: &Told, counters: &[Counter]) -> Result<String, fmt::Error> {
    let mut metrics = Metrics::default();
    add_program(&mut metrics, told);
    add_decided(&mut metrics, told, counters);
    let dropped = reasons(counters)
        .map(|(reason, _, packets)| (vec![("reason", reason.to_owned())], Value::Count(packets)))
        .collect();
    metrics.add("forward_dropped_packets", "Packets dropped, by reason", None, Kind::Counter, dropped);
    if let Some(source) = told.source() {
        metrics.gauge("source_connected", "1 while connected to the API server", source.is_connected.into());
        if let Some(age) = source.age() {
            metrics.seconds("source_age", "Age of the objects from the API server", age);
        }
    }
    let ports = told.ports();
    metrics.gauge("ports_configured", "Interfaces with policy, plus pods without an interface", ports.len() as u64);
    let open = ports.iter().filter(|port| port.state == "open").count();
    metrics.gauge("ports_open", "Interfaces with policy that exist", open as u64);
    let mut registry = Registry::with_prefix("bulkhead");
    registry.register_collector(Box::new(metrics));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn add_program(metrics: &mut Metrics, told: &Told) {
    let labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("node", told.node.to_string())];
    metrics.add(
        "build_info",
        "Version and node as labels; always 1",
        None,
        Kind::Gauge,
        vec![(labels, Value::Count(1))],
    );
    metrics.seconds("process_uptime", "Time since the process started", told.started.elapsed());
    metrics.gauge("process_ready", "1 if a policy is in force and not too old", told.is_ready().into());
    let state = told.state.read();
    metrics.gauge("policy_generation", "Number of changes to the kernel's ruleset", told.changes);
    metrics.seconds("policy_age", "Time since the ruleset in force was loaded", told.since.elapsed());
    let help = "Time from detecting the last policy change until the kernel enforced it";
    metrics.seconds("policy_enforce", help, told.took);
    metrics.gauge("policy_denying", "1 while pod traffic is denied because no state is loaded", told.is_denying.into());
    metrics.gauge("policy_pending", "1 while a newer ruleset cannot be loaded", told.is_refused.into());
    metrics.counter("policy_states_applied", "States that took effect", state.applied);
    metrics.counter("policy_states_refused", "States that could not be loaded or enforced", state.refused);
    metrics.gauge("policy_faulty_objects", "Objects that could not be parsed", state.faulty);
    metrics.gauge("policy_contested_addresses", "Addresses that several pods claim", state.contested_addresses);
    let help = "Kinds of objects that restrict traffic and are not enforced";
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
    let help = "Allowed packets that were classified, by policy: one per connection after each change";
    metrics.add("policy_allowed_packets", help, None, Kind::Counter, values(|counters| counters.allowed));
    let help = "Packets dropped, by the policy that denied them";
    metrics.add("policy_denied_packets", help, None, Kind::Counter, values(|counters| counters.denied));
}
