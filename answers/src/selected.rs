//! `bulkhead policies --pod`: lists the policies of a state that select a pod, per direction, and their effect.
//!
//! Evaluates no connection: `explain` does that.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use bulkhead_classifier::protocol;
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{
    ClusterPolicy, ClusterRule, Enforcement, IpBlock, Labels, NamespaceScope, Peer, Pod, PodPeer, Policy, PolicyPort,
    PolicyRule, PolicyVersion, Position, Tier,
};
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::{AuditedPolicy, Pipeline};
use bulkhead_control::selector::Selector;
use serde::Serialize;

use crate::args::{EndName, Policies};
use crate::named::{self, Named};
use crate::output::{self, printable};
use crate::places::Places;
use crate::run::{self, Input};
use crate::workload;

/// The answer: a pod, and the policies that select it, by direction.
#[derive(Serialize)]
struct Answer {
    pod: String,
    /// `Deployment web`, or `Pod web` for a pod without an owner.
    workload: String,
    labels: String,
    /// Whether policies can select the pod: it is not on the host network, has not terminated and has an address.
    selectable: bool,
    ingress: Side,
    egress: Side,
}

/// The policies that select the pod in one direction, and their effect.
#[derive(Serialize)]
struct Side {
    /// Whether a NetworkPolicy isolates the pod, so that only what a rule allows passes.
    isolated: bool,
    /// The policies that select the pod, in evaluation order: Admin, NetworkPolicies, Baseline.
    policies: Vec<Selecting>,
}

/// A policy that selects the pod.
#[derive(Serialize)]
struct Selecting {
    policy: String,
    /// Tier of the policy: `Admin`, `NetworkPolicy` or `Baseline`.
    tier: String,
    /// The policy's pod selector as text.
    selects: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Place>,
    /// Parse error. `None` if the policy was parsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Whether the policy is audited: it neither isolates nor allows nor denies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_enforced: bool,
    rules: Vec<Rule>,
}

/// Position in a file.
#[derive(Serialize)]
struct Place {
    file: String,
    line: usize,
}

/// A rule of the policy, as text.
#[derive(Serialize)]
struct Rule {
    /// Index in the policy's list, from 0.
    rule: usize,
    /// Action of the rule: `Accept`, `Deny` or `Pass`.
    action: &'static str,
    peers: Vec<String>,
    ports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

/// Maximum number of pods named in an error.
const MAX_NAMED: usize = 8;

/// Prints the policies of a state that select the pod, and their effect.
///
/// # Errors
/// If the state cannot be read or has no such pod.
pub fn run(args: &Policies, pod: &EndName) -> anyhow::Result<ExitCode> {
    let pipeline = run::load(&Input::open(&args.state)?, Some(&args.planned))?;
    let cache = pipeline.cache();
    let found = of_name(cache, pod)?;
    let places = Places::of(&pipeline);
    let side = |direction| side(&pipeline, &places, found, direction);
    let labels: Vec<String> = found.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let answer = Answer {
        pod: found.name.to_string(),
        workload: found.workload().to_string(),
        labels: labels.join(","),
        selectable: found.is_endpoint(),
        ingress: side(Direction::Ingress),
        egress: side(Direction::Egress),
    };
    output::answer(args.admin.output, &answer, |out| answer.write(out))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the pod that the name means: of several, one that represents all, because policies select by labels.
///
/// # Errors
/// If the name means no pod, or pods with different labels.
fn of_name<'a>(cache: &'a Cache, name: &EndName) -> anyhow::Result<&'a Arc<Pod>> {
    let pods = match name {
        EndName::Address(address) => {
            let pods = || cache.pods_at(*address).map(|(_, pod)| pod).filter(|pod| !pod.finished);
            match pods().any(|pod| !pod.host_network) {
                true => pods().filter(|pod| !pod.host_network).collect(),
                false => pods().collect(),
            }
        }
        // A namespace may be called `node`.
        EndName::Node(node) => match named::find(cache, name)? {
            Named::Pods(pods) => pods,
            Named::Node(_) | Named::Address(_) => {
                bail!("no policy selects a node, such as {node}\n  help: name a pod, as namespace/pod")
            }
        },
        // Also a terminated pod, about which the answer says that no policy selects it.
        EndName::Pod(name) => match cache.pod_key(name).and_then(|key| cache.pod(key)) {
            Some(pod) => vec![pod],
            None => named::pods(cache, &EndName::Pod(name.clone()))?,
        },
        EndName::Workload(_) | EndName::Labels(_) => named::pods(cache, name)?,
    };
    let Some(first) = pods.first() else { bail!("no pod has the address {name}\n  help: write namespace/pod") };
    let kinds: BTreeSet<(Labels, bool)> =
        pods.iter().map(|pod| (workload::stable(&pod.labels), pod.is_endpoint())).collect();
    if kinds.len() > 1 {
        let names: Vec<String> = pods.iter().map(|pod| pod.name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        bail!(
            "the pods of {name} have different labels, so different policies may select them\n  help: choose one of {}",
            output::some_of(&names, MAX_NAMED)
        );
    }
    if pods.len() > 1 {
        output::note(&format!("{} pods with these labels; shown for {}", pods.len(), first.name));
    }
    Ok(first)
}

fn side(pipeline: &Pipeline, places: &Places<'_>, pod: &Pod, direction: Direction) -> Side {
    let cache = pipeline.cache();
    let mut side = Side { isolated: false, policies: Vec::new() };
    if !pod.is_endpoint() {
        return side;
    }
    let mut around: Vec<&ClusterPolicy> = cache.cluster_policies().values().map(|policy| &**policy).collect();
    around.retain(|policy| cache.is_selected(&policy.subject, pod));
    around.sort_by(|one, other| one.rank.cmp(&other.rank));
    let is_audited = |policy: AuditedPolicy| pipeline.enforcement_of(&policy) == Some(Enforcement::Audit);
    let of_tiers = |place| around.iter().filter(move |policy| policy.rank.tier.cmp(&Tier::NetworkPolicy) == place);
    let cluster = |policy: &ClusterPolicy| {
        let not_enforced = is_audited(AuditedPolicy::Cluster(policy.rank.name.clone()));
        cluster(places, policy, direction).map(|selecting| Selecting { not_enforced, ..selecting })
    };
    side.policies.extend(of_tiers(Ordering::Less).filter_map(|policy| cluster(policy)));
    side.policies.extend(of_tiers(Ordering::Equal).filter_map(|policy| cluster(policy)));
    side.isolated = around.iter().any(|policy| {
        policy.isolates.of(direction)
            && policy.rank.tier == Tier::NetworkPolicy
            && !is_audited(AuditedPolicy::Cluster(policy.rank.name.clone()))
    });
    for policy in cache.policies_in(&pod.name.namespace).filter(|policy| policy.subject.matches(&pod.labels)) {
        let Some(selecting) = own(places, policy, pod, direction) else { continue };
        let not_enforced = is_audited(AuditedPolicy::Namespaced(policy.name.clone()));
        side.isolated |= policy.version != PolicyVersion::V1beta1 && !not_enforced;
        side.policies.push(Selecting { not_enforced, ..selecting });
    }
    side.policies.extend(of_tiers(Ordering::Greater).filter_map(|policy| cluster(policy)));
    side
}

/// Describes a NetworkPolicy that selects the pod. `None` if the policy does not cover the direction.
fn own(places: &Places<'_>, policy: &Policy, pod: &Pod, direction: Direction) -> Option<Selecting> {
    let rules = match direction {
        Direction::Ingress => policy.ingress.as_ref()?,
        Direction::Egress => policy.egress.as_ref()?,
    };
    let line = |at| places.of_rule(policy.position.as_ref()?, format!("spec.{direction}[{at}]"));
    let rule = |(at, rule): (usize, &PolicyRule)| told(at, "Accept", rule, line(at), direction, Some(pod));
    Some(Selecting {
        policy: policy.name.to_string(),
        tier: Tier::NetworkPolicy.name().to_owned(),
        selects: pods(&policy.subject),
        at: policy.position.as_ref().map(place),
        fault: policy.fault.as_ref().map(ToString::to_string),
        not_enforced: false,
        rules: rules.iter().enumerate().map(rule).collect(),
    })
}

/// Describes a cluster policy that selects the pod. `None` if the policy has no rule in the direction.
fn cluster(places: &Places<'_>, policy: &ClusterPolicy, direction: Direction) -> Option<Selecting> {
    let rules = match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    };
    let rule = |(at, rule): (usize, &ClusterRule)| {
        let at = rule.at.unwrap_or(at);
        let path = policy.rank.name.rule_path(direction, at, rule.name.as_deref());
        let line = policy.position.as_ref().and_then(|position| places.of_rule(position, path));
        told(at, rule.action.name(), &rule.traffic, line, direction, None)
    };
    let rules: Vec<Rule> = rules.iter().enumerate().map(rule).collect();
    (!rules.is_empty() || policy.isolates.of(direction)).then(|| Selecting {
        policy: policy.rank.name.to_string(),
        tier: policy.rank.tier.name().to_owned(),
        selects: pods_in(&policy.subject),
        at: policy.position.as_ref().map(place),
        fault: policy.fault.as_ref().map(ToString::to_string),
        not_enforced: false,
        rules,
    })
}

fn place(position: &Position) -> Place {
    Place { file: position.file.to_string(), line: position.line }
}

fn told(
    at: usize,
    action: &'static str,
    rule: &PolicyRule,
    line: Option<usize>,
    direction: Direction,
    target: Option<&Pod>,
) -> Rule {
    // A named port refers to the destination's ports: for ingress, the pod's own.
    let target = target.filter(|_| direction == Direction::Ingress);
    Rule {
        rule: at,
        action,
        peers: match &rule.peers {
            None => vec!["anyone".to_owned()],
            Some(peers) => peers.iter().map(peer).collect(),
        },
        ports: match &rule.ports {
            None => vec!["every port".to_owned()],
            Some(ports) => ports.iter().map(|one| port(one, target)).collect(),
        },
        line,
    }
}

/// Describes the pods that a selector matches, as text.
fn pods(selector: &Selector) -> String {
    match selector.requirements() {
        [] => "every pod".to_owned(),
        _ => format!("pods {selector}"),
    }
}

/// Describes the pods that a peer matches, by label and namespace, as text.
fn pods_in(peer: &PodPeer) -> String {
    let mut pods = pods(&peer.pods);
    if let Some(filter) = &peer.filter {
        // Writing to a string cannot fail.
        let _ = write!(pods, " where {filter}");
    }
    match &peer.namespaces {
        NamespaceScope::Own(namespace) => format!("{pods} of namespace {namespace}"),
        NamespaceScope::Selected(selector) if selector.requirements().is_empty() => {
            format!("{pods} of every namespace")
        }
        NamespaceScope::Selected(selector) => format!("{pods} of namespaces {selector}"),
    }
}

fn peer(peer: &Peer) -> String {
    match peer {
        Peer::Pods(peer) => pods_in(peer),
        Peer::Block(IpBlock { cidr, except }) => {
            let mut text = cidr.to_string();
            for (at, block) in except.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = write!(text, "{} {block}", if at == 0 { " except" } else { "," });
            }
            text
        }
        Peer::Nodes(selector) if selector.requirements().is_empty() => "every node".to_owned(),
        Peer::Nodes(selector) => format!("nodes {selector}"),
        Peer::Names(names) => names.join(" "),
        Peer::OwnNode => "its own node".to_owned(),
        Peer::Region(region) => {
            let list = |peers: &[Peer]| peers.iter().map(self::peer).collect::<Vec<_>>().join(" or ");
            let mut text = match &*region.all {
                [] => "anyone".to_owned(),
                all => all.iter().map(|union| format!("({})", list(union))).collect::<Vec<_>>().join(" and "),
            };
            if !region.none.is_empty() {
                let _ = write!(text, " but not ({})", list(&region.none));
            }
            text
        }
    }
}

/// Describes a port. A named port includes its number at `target`, if known.
fn port(port: &PolicyPort, target: Option<&Pod>) -> String {
    match port {
        PolicyPort::All(transport) => format!("every port/{transport}"),
        PolicyPort::Range { transport, first, last } if first == last => format!("{first}/{transport}"),
        PolicyPort::Range { transport, first, last } => format!("{first}-{last}/{transport}"),
        PolicyPort::Numbers { protocols, first, last } => numbers(*protocols, (*first, *last)),
        PolicyPort::Named { transport, name } => match target {
            None => format!("{name}/{transport}"),
            Some(pod) => {
                let mut having = pod.ports.iter().filter(|port| port.name == *name && port.transport == *transport);
                match having.next() {
                    Some(port) => format!("{name}/{transport} ({})", port.port),
                    None => format!("{name}/{transport} (the pod has no such port)"),
                }
            }
        },
    }
}

/// Describes protocols and ports by their numbers.
fn numbers((low, high): (u8, u8), (first, last): (u16, u16)) -> String {
    let protocols = if low == high { format!("protocol {low}") } else { format!("protocols {low}-{high}") };
    let is_icmp = low == high && matches!(low, protocol::ICMP | protocol::ICMPV6);
    match (first, last) {
        (0, u16::MAX) => protocols,
        _ if is_icmp && first == last => format!("{protocols}, type {}, code {}", first >> 8, first & 0xff),
        _ if is_icmp && first >> 8 == last >> 8 => format!("{protocols}, type {}", first >> 8),
        _ if first == last => format!("{first}/{protocols}"),
        _ => format!("{first}-{last}/{protocols}"),
    }
}

impl Answer {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let labels = if self.labels.is_empty() { "none" } else { &self.labels };
        writeln!(out, "{}, {}, labels: {}", printable(&self.pod), printable(&self.workload), printable(labels))?;
        if !self.selectable {
            return writeln!(out, "no policy selects it: it is on the host network, has ended, or has no address");
        }
        self.ingress.write("ingress", "from", out)?;
        self.egress.write("egress", "to", out)
    }
}

impl Side {
    fn write(&self, direction: &str, word: &str, out: &mut impl Write) -> io::Result<()> {
        let state = match (self.isolated, self.policies.is_empty()) {
            (true, _) => "isolated: what no rule allows is denied",
            (false, true) => "not isolated: everything is allowed",
            (false, false) => "not isolated: what no rule denies is allowed",
        };
        writeln!(out, "\n{direction}: {state}")?;
        for policy in &self.policies {
            let place = policy.at.as_ref().map_or_else(String::new, |at| format!(" ({}:{})", at.file, at.line));
            let tier = if policy.tier == "NetworkPolicy" { String::new() } else { format!("{} tier, ", policy.tier) };
            let beside = if policy.not_enforced { ": audited, not enforced" } else { "" };
            let (name, selects) = (printable(&policy.policy), printable(&policy.selects));
            writeln!(out, "  {tier}{name}{}, which selects {selects}{beside}", printable(&place))?;
            if let Some(fault) = &policy.fault {
                writeln!(out, "    was not understood: {}", printable(fault))?;
            }
            if policy.rules.is_empty() {
                writeln!(out, "    allows nothing")?;
            }
            for rule in &policy.rules {
                let list =
                    |all: &[String]| if all.is_empty() { "nobody".to_owned() } else { printable(&all.join("; ")) };
                let ports =
                    if rule.ports.is_empty() { "no port".to_owned() } else { printable(&rule.ports.join(", ")) };
                let line = rule.line.map_or_else(String::new, |line| format!(" (line {line})"));
                let action = match rule.action {
                    "Accept" => "allows",
                    "Deny" => "denies",
                    _ => "passes on",
                };
                writeln!(out, "    rule {} {action} {word} {} at {ports}{line}", rule.rule, list(&rule.peers))?;
            }
        }
        Ok(())
    }
}
