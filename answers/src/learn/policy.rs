//! Learned policies and their YAML form.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::{NAMESPACE_NAME_LABEL, Transport};
use bulkhead_control::origin::Direction;
use bulkhead_control::selector::{Condition, Selector};
use ipnet::IpNet;

use super::workload::{Workload, Workloads};
use crate::output::{some_of, yaml_word as word};

/// Maximum number of rules of a ClusterNetworkPolicy, of peers and protocols of a rule, and of names of a peer. Source: the API of v1alpha2.
pub(super) const MAX_LISTED: usize = 25;

/// Maximum number of names in a comment.
const MAX_NAMES: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PortName {
    Number(u16),
    Name(Arc<str>),
}

/// Ports that a rule's peers may use.
pub(super) type PortNames = BTreeSet<(Transport, PortName)>;

/// A peer of a rule: a workload by index, or a block of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Workload(usize),
    Block(IpNet),
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub peers: Vec<Peer>,
    pub ports: PortNames,
}

#[derive(Clone, Debug)]
pub(super) struct LearnedPolicy {
    pub workload: usize,
    /// Name of the NetworkPolicy object.
    pub name: String,
    pub rules: BTreeMap<&'static str, Vec<Rule>>,
    /// The domain names that the pods had resolved to the destinations of egress rules.
    pub names: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
    /// `None` if no rule names domains.
    pub by_name: Option<ByName>,
}

/// A ClusterNetworkPolicy for the same pods whose rules name domains, which NetworkPolicies cannot.
#[derive(Clone, Debug)]
pub(super) struct ByName {
    pub name: String,
    /// The place in the tier Admin.
    pub priority: u16,
    pub rules: Vec<NameRule>,
}

/// An egress rule that names domains.
#[derive(Clone, Debug)]
pub(super) struct NameRule {
    pub names: BTreeSet<Arc<str>>,
    pub ports: BTreeSet<(Transport, u16)>,
}

impl NameRule {
    /// Whether the rule has no more names and ranges of ports than a policy may have.
    pub(super) fn fits(&self) -> bool {
        self.names.len() <= MAX_LISTED * MAX_LISTED && self.protocols().len() <= MAX_LISTED
    }

    /// Returns the ranges of ports: protocol, first and last number.
    fn protocols(&self) -> Vec<(Transport, u16, u16)> {
        let of = |transport: Transport| {
            let numbers = self.ports.iter().filter(move |(of, _)| *of == transport).map(|(_, number)| *number);
            runs(numbers).into_iter().map(move |(first, last)| (transport, first, last))
        };
        Transport::ALL.into_iter().flat_map(of).collect()
    }
}

impl LearnedPolicy {
    /// Returns a comment with the names that the pods had resolved to addresses in the block. Empty if there are none.
    fn comment(&self, block: &IpNet) -> String {
        let within = self.names.range(block.network()..=block.broadcast());
        let names: BTreeSet<&str> = within.flat_map(|(_, names)| names).map(|name| &**name).collect();
        if names.is_empty() {
            return String::new();
        }
        format!(" # asked by the pod: {}", some_of(&names.into_iter().collect::<Vec<_>>(), MAX_NAMES))
    }
}

pub(super) fn yaml(policies: &[LearnedPolicy], workloads: &Workloads) -> String {
    let mut text = String::new();
    for (at, policy) in policies.iter().enumerate() {
        if at > 0 {
            text.push_str("---\n");
        }
        write(policy, workloads, &mut text);
        if let Some(by_name) = &policy.by_name {
            text.push_str("---\n");
            write_by_name(by_name, &workloads.all[policy.workload], &mut text);
        }
    }
    text
}

macro_rules! line {
    ($out:expr, $($arg:tt)*) => {{
        // Writing to a string cannot fail.
        let _ = writeln!($out, $($arg)*);
    }};
}

fn write(policy: &LearnedPolicy, workloads: &Workloads, out: &mut String) {
    let workload = &workloads.all[policy.workload];
    line!(out, "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:");
    line!(out, "  name: {}\n  namespace: {}\nspec:", word(&policy.name), word(&workload.namespace));
    selector(out, "  ", "podSelector", &workload.selector);
    line!(out, "  policyTypes:");
    let types = [(Direction::Ingress, "Ingress"), (Direction::Egress, "Egress")];
    for (direction, name) in types {
        if policy.rules.contains_key(direction.name()) {
            line!(out, "    - {name}");
        }
    }
    for (direction, peers) in [(Direction::Ingress, "from"), (Direction::Egress, "to")] {
        let Some(rules) = policy.rules.get(direction.name()) else { continue };
        if rules.is_empty() {
            line!(out, "  {}: []", direction.name());
            continue;
        }
        line!(out, "  {}:", direction.name());
        for rule in rules {
            line!(out, "    - {peers}:");
            for of in &rule.peers {
                let comment = |block: &IpNet| match direction {
                    Direction::Ingress => String::new(),
                    Direction::Egress => policy.comment(block),
                };
                peer(out, of, comment, (workload, workloads));
            }
            ports(out, &rule.ports);
        }
    }
}

fn peer(out: &mut String, peer: &Peer, comment: impl Fn(&IpNet) -> String, (own, workloads): (&Workload, &Workloads)) {
    match peer {
        Peer::Block(block) => {
            line!(out, "        - ipBlock:\n            cidr: {}{}", word(&block.to_string()), comment(block));
        }
        Peer::Workload(at) => {
            let workload = &workloads.all[*at];
            if workload.namespace == own.namespace {
                return selector(out, "        - ", "podSelector", &workload.selector);
            }
            selectors(out, "        - ", workload);
        }
    }
}

/// Writes a selector of the workload's namespace, then one of its pods. `first` is the indentation of the first line.
fn selectors(out: &mut String, first: &str, workload: &Workload) {
    let pad = " ".repeat(first.len());
    line!(out, "{first}namespaceSelector:\n{pad}  matchLabels:");
    line!(out, "{pad}    {NAMESPACE_NAME_LABEL}: {}", word(&workload.namespace));
    selector(out, &pad, "podSelector", &workload.selector);
}

fn selector(out: &mut String, indent: &str, field: &str, selector: &Selector) {
    if selector.requirements().is_empty() {
        return line!(out, "{indent}{field}: {{}}");
    }
    line!(out, "{indent}{field}:");
    let pad = " ".repeat(indent.len() + 2);
    let single = |condition: &Condition| matches!(condition, Condition::In(values) if values.len() == 1);
    let (equal, others): (Vec<_>, Vec<_>) = selector.requirements().iter().partition(|of| single(&of.condition));
    if !equal.is_empty() {
        line!(out, "{pad}matchLabels:");
    }
    for requirement in equal {
        if let Condition::In(values) = &requirement.condition {
            line!(out, "{pad}  {}: {}", word(&requirement.key), word(&values[0]));
        }
    }
    if !others.is_empty() {
        line!(out, "{pad}matchExpressions:");
    }
    for requirement in others {
        let (operator, values): (_, &[Arc<str>]) = match &requirement.condition {
            Condition::In(values) => ("In", values),
            Condition::NotIn(values) => ("NotIn", values),
            Condition::Exists => ("Exists", &[]),
            Condition::DoesNotExist => ("DoesNotExist", &[]),
            // Kubernetes has no such operators, and no policy of its kinds has them.
            Condition::Contains(_) | Condition::StartsWith(_) | Condition::EndsWith(_) => continue,
        };
        line!(out, "{pad}  - key: {}\n{pad}    operator: {operator}", word(&requirement.key));
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(|value| word(value)).collect();
            line!(out, "{pad}    values: [{}]", values.join(", "));
        }
    }
}

fn ports(out: &mut String, ports: &PortNames) {
    line!(out, "      ports:");
    for transport in Transport::ALL {
        let own = || ports.iter().filter(move |(of, _)| *of == transport).map(|(_, port)| port);
        let numbers = own().filter_map(|port| if let PortName::Number(number) = port { Some(*number) } else { None });
        for (first, last) in runs(numbers) {
            line!(out, "        - protocol: {transport}\n          port: {first}");
            if last > first {
                line!(out, "          endPort: {last}");
            }
        }
        for port in own() {
            if let PortName::Name(name) = port {
                line!(out, "        - protocol: {transport}\n          port: {}", word(name));
            }
        }
    }
}

/// Returns ascending numbers as ranges.
fn runs(numbers: impl Iterator<Item = u16>) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

/// Writes a ClusterNetworkPolicy for the pods of a workload.
fn write_by_name(policy: &ByName, workload: &Workload, out: &mut String) {
    let ByName { name, priority, rules } = policy;
    line!(out, "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata:");
    line!(out, "  name: {}\nspec:\n  tier: Admin\n  priority: {priority}\n  subject:\n    pods:", word(name));
    selectors(out, "      ", workload);
    line!(out, "  egress:");
    for rule in rules {
        line!(out, "    - action: Accept\n      to:");
        for (at, name) in rule.names.iter().enumerate() {
            if at % MAX_LISTED == 0 {
                line!(out, "        - domainNames:");
            }
            line!(out, "            - {}", word(name));
        }
        line!(out, "      protocols:");
        for (transport, first, last) in rule.protocols() {
            line!(out, "        - {}:\n            destinationPort:", transport.name().to_ascii_lowercase());
            if first == last {
                line!(out, "              number: {first}");
            } else {
                line!(out, "              range:\n                start: {first}\n                end: {last}");
            }
        }
    }
}
