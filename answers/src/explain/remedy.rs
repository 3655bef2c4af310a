//! Suggests a rule that would allow a denied connection.

use std::io::{self, Write};

use bulkhead_control::object::{ClusterPolicyName, Labels, NAMESPACE_NAME_LABEL, Tier};
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;

use crate::args::PortProtocol;
use crate::fabric::End;
use crate::output::printable;
use crate::workload::stable;

/// Writes a suggestion for a connection that `origin` denies.
pub fn write(
    pipeline: &Pipeline,
    from: &End,
    to: &End,
    port: PortProtocol,
    origin: &Origin,
    out: &mut impl Write,
) -> io::Result<()> {
    let (policies, direction) = match origin {
        Origin::Isolation { policies, others, direction, .. } => {
            for policy in others.iter().filter_map(|name| pipeline.cache().cluster_policies().get(name)) {
                write_fault(&policy.rank.name, policy.fault.as_deref(), out)?;
            }
            (policies, direction)
        }
        Origin::ClusterPolicy { tier, policy, direction, .. } => {
            return write_cluster(pipeline, tier, policy, *direction, out);
        }
        _ => return Ok(()),
    };
    let Some(transport) = port.protocol.transport() else {
        return writeln!(
            out,
            "\nWhat would have to change: a NetworkPolicy allows {} only by a rule without `ports`.",
            port.protocol
        );
    };
    let cache = pipeline.cache();
    for policy in policies.iter().filter_map(|name| cache.policies().get(name)) {
        if let Some(fault) = &policy.fault {
            let (name, fault) = (&policy.name, printable(fault));
            writeln!(out, "\n{name} was not understood, so it isolates its pods and allows nothing: {fault}")?;
        }
    }
    let (subject, peer, list, word) = match direction {
        Direction::Ingress => (to, from, "ingress", "from"),
        Direction::Egress => (from, to, "egress", "to"),
    };
    writeln!(out, "\nWhat would have to change: a policy that selects {subject} needs this {list} rule:")?;
    writeln!(out, "    - {word}:")?;
    write_peer(pipeline, subject, peer, out)?;
    writeln!(out, "      ports:")?;
    writeln!(out, "      - {{protocol: {}, port: {}}}", transport, port.port)?;
    if *direction == Direction::Egress && matches!(to, End::Pod { .. }) {
        writeln!(out, "Policies for the ingress of {to} are looked at after that; explain again.")?;
    }
    Ok(())
}

/// Writes the fault of a cluster policy. Writes nothing if the policy has none.
fn write_fault(policy: &ClusterPolicyName, fault: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    let Some(fault) = fault else { return Ok(()) };
    let fault = printable(fault);
    writeln!(out, "\n{policy} was not understood, so what of it does not accept denies everything: {fault}")
}

/// Writes a suggestion against a rule of a cluster policy.
fn write_cluster(
    pipeline: &Pipeline,
    tier: &Tier,
    policy: &ClusterPolicyName,
    direction: Direction,
    out: &mut impl Write,
) -> io::Result<()> {
    let fault = pipeline.cache().cluster_policies().get(policy).and_then(|policy| policy.fault.as_deref());
    write_fault(policy, fault, out)?;
    match tier {
        Tier::NetworkPolicy | Tier::Other(_) => writeln!(
            out,
            "\nWhat would have to change: a rule before it in the tier {} accepts this, or a rule of an earlier tier does.",
            printable(tier.name())
        ),
        Tier::Baseline => writeln!(
            out,
            "\nWhat would have to change: a rule before it in the tier Baseline accepts this, or a NetworkPolicy with an {direction} \
             rule for it selects the pod: what a NetworkPolicy isolates is not Baseline's business."
        ),
        Tier::Admin => writeln!(
            out,
            "\nWhat would have to change: a rule before it in the tier Admin, in this policy or in one of a lower priority, accepts \
             this, or passes it to the NetworkPolicies. No NetworkPolicy can allow what this tier denies."
        ),
    }
}

fn write_peer(pipeline: &Pipeline, subject: &End, peer: &End, out: &mut impl Write) -> io::Result<()> {
    let cache = pipeline.cache();
    let pod = match peer {
        End::Pod { name, host_network: false, .. } => cache.pod_key(name).and_then(|key| cache.pod(key)),
        End::Pod { .. } | End::Node { .. } | End::External(_) => None,
    };
    let Some(pod) = pod else {
        let bits = if peer.address().is_ipv4() { 32 } else { 128 };
        return writeln!(out, "      - ipBlock: {{cidr: {}/{bits}}}", peer.address());
    };
    // An empty selector would match all pods.
    let labels = Some(stable(&pod.labels)).filter(|stable| !stable.is_empty()).unwrap_or_else(|| pod.labels.clone());
    let own = matches!(subject, End::Pod { name, .. } if name.namespace == pod.name.namespace);
    if own {
        return writeln!(out, "      - podSelector: {}", selector(&labels));
    }
    let namespace: Labels = [(NAMESPACE_NAME_LABEL.into(), pod.name.namespace.clone())].into();
    writeln!(out, "      - namespaceSelector: {}", selector(&namespace))?;
    writeln!(out, "        podSelector: {}", selector(&labels))
}

/// Formats labels as a selector in YAML flow style.
pub fn selector(labels: &Labels) -> String {
    if labels.is_empty() {
        return "{}".into();
    }
    // JSON strings are YAML strings. The quotes keep `"1"` and `"true"` strings.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}: {}", quote(value))).collect();
    format!("{{matchLabels: {{{}}}}}", pairs.join(", "))
}
