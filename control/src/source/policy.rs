//! Reads NetworkPolicies, with the checks that an API server would make.
//!
//! Source: the API reference of `networking.k8s.io/v1` and the validation described there.

use std::sync::Arc;

use ipnet::IpNet;
use serde_json::Value;

use super::address::{AddressFault, parse_block};
use super::enforcement;
use super::error::{Findings, Problem, quoted};
use super::labels::{optional_selector, selector};
use super::metadata::{self, Place};
use super::names;
use super::outcome::{ObjectKey, Outcome, Read};
use super::path::FieldPath;
use super::raw::{self, List, Mapping, PortRef, RawBlock, RawPeer, RawPort, RawSelector, RawSpec};
use crate::object::{
    IpBlock, NamespaceScope, Peer, PodPeer, Policy, PolicyIdentity, PolicyName, PolicyPort, PolicyRule, PolicyVersion,
    Transport,
};
use crate::selector::Selector;

const KIND: &str = "NetworkPolicy";

/// Reads a policy. If the caller has already found a `fault`, the result is a stand-in.
pub(super) fn read(value: &Value, version: PolicyVersion, fault: Option<Problem>) -> Read {
    let mut findings = Findings::default();
    findings.problems.extend(fault);
    let Place { namespace, name } = metadata::place(value, &mut findings);
    let label = label_of(value);
    let enforcement = enforcement::of(value, &mut findings);
    let Some(namespace) = namespace else {
        return Read { label, key: None, outcome: Outcome::Nothing, findings };
    };
    let spec = read_spec(value, &mut findings);
    let whole = name.clone().map(|name| PolicyName { namespace: namespace.clone(), name });
    let policy = whole.as_ref().zip(spec).and_then(|(name, spec)| checked(name, &spec, version, &mut findings));
    let outcome = match (policy, findings.problems.first()) {
        (Some(policy), None) => Outcome::Object(Policy { identity: identity(value), enforcement, ..policy }.into()),
        (_, first) => {
            let fault = first.map_or_else(|| "invalid policy".to_owned(), Problem::to_string);
            // The loader names an unnamed policy after its position.
            let name = PolicyName { namespace, name: name.unwrap_or_default() };
            let closed = closed(name, value, fault.into());
            Outcome::Closed(Policy { identity: identity(value), enforcement, ..closed }.into())
        }
    };
    let key = whole.map(|name| ObjectKey { kind: KIND, namespace: name.namespace, name: name.name });
    Read { label, key, outcome, findings }
}

/// Returns the stand-in that isolates the policy's subjects in both directions and allows nothing. If the subject is unreadable, the
/// stand-in isolates every pod of the namespace.
fn closed(name: PolicyName, value: &Value, fault: Arc<str>) -> Policy {
    let base = FieldPath::of("spec").key("podSelector");
    let subject = match value.pointer("/spec/podSelector") {
        None | Some(Value::Null) => None,
        Some(subject) => {
            let mut findings = Findings::default();
            let subject = raw::typed::<RawSelector>(subject, &base).ok().map(Mapping);
            let subject = subject.and_then(|subject| selector(&subject.0, &base, &mut findings));
            subject.filter(|_| findings.problems.is_empty())
        }
    };
    Policy {
        name,
        subject: subject.unwrap_or_else(Selector::everything),
        ingress: Some(Vec::new()),
        egress: Some(Vec::new()),
        version: PolicyVersion::V1,
        fault: Some(fault),
        position: None,
        identity: None,
        enforcement: None,
    }
}

/// Returns the policy's kind, and its namespace and name if they are readable, for messages.
fn label_of(value: &Value) -> String {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (namespace, Some(name)) => format!("{KIND} {}/{name}", namespace.unwrap_or("default")),
        _ => KIND.to_owned(),
    }
}

/// Returns the UID and generation that the API server has set. `None` without a UID.
fn identity(value: &Value) -> Option<Arc<PolicyIdentity>> {
    let uid = value.pointer("/metadata/uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())?;
    let generation = value.pointer("/metadata/generation").and_then(Value::as_u64).unwrap_or_default();
    Some(Arc::new(PolicyIdentity { uid: uid.into(), generation }))
}

fn read_spec(value: &Value, findings: &mut Findings) -> Option<RawSpec> {
    match raw::typed::<raw::RawPolicy>(value, &FieldPath::default()) {
        Ok(policy) => Some(match policy.spec {
            Some(Mapping(spec)) => spec,
            None => {
                let text = "the policy has no spec: it selects every pod of its namespace and allows no ingress";
                findings.warning(&FieldPath::default(), text, "write `spec: {podSelector: {}}` if that is meant");
                RawSpec { pod_selector: None, ingress: None, egress: None, policy_types: None }
            }
        }),
        Err(problem) => {
            findings.problems.push(problem);
            None
        }
    }
}

/// Returns the policy. If `findings` contains a problem, parts are missing and the policy must not be used. `None` without a valid subject.
fn checked(name: &PolicyName, spec: &RawSpec, version: PolicyVersion, findings: &mut Findings) -> Option<Policy> {
    let base = FieldPath::of("spec");
    let subject = optional_selector(&spec.pod_selector, &base.key("podSelector"), findings);
    if version == PolicyVersion::V1beta1 {
        refuse_later_fields(spec, &base, findings);
    }
    let (ingress_on, egress_on) = directions(spec, &base, findings);
    let mut rules = Rules { namespace: &name.namespace, version, findings };
    let ingress = spec.ingress.as_ref().map(|list| {
        let rule = |(at, Mapping(rule)): (usize, &Mapping<raw::RawIngress>)| {
            rules.rule(&rule.from, "from", &rule.ports, &base.key("ingress").index(at))
        };
        list.iter().enumerate().map(rule).collect::<Vec<_>>()
    });
    let egress = spec.egress.as_ref().map(|list| {
        let rule = |(at, Mapping(rule)): (usize, &Mapping<raw::RawEgress>)| {
            rules.rule(&rule.to, "to", &rule.ports, &base.key("egress").index(at))
        };
        list.iter().enumerate().map(rule).collect::<Vec<_>>()
    });
    Some(Policy {
        name: name.clone(),
        subject: subject?,
        ingress: ingress_on.then(|| ingress.unwrap_or_default()),
        egress: egress_on.then(|| egress.unwrap_or_default()),
        version,
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
    })
}

/// Adds problems for fields that `extensions/v1beta1` does not have. Its policies only allow ingress from pods.
fn refuse_later_fields(spec: &RawSpec, base: &FieldPath, findings: &mut Findings) {
    for (key, there) in [("egress", spec.egress.is_some()), ("policyTypes", spec.policy_types.is_some())] {
        if there {
            findings.problem(&base.key(key), format!("extensions/v1beta1 has no `{key}`"), LATER_FIELD);
        }
    }
}

const LATER_FIELD: &str =
    "write `apiVersion: networking.k8s.io/v1`, where the policy itself isolates its pods, or use --policy-semantics v1";

/// Returns whether the policy applies to ingress and to egress. As in the API server, a policy without `policyTypes` always applies to
/// ingress, and to egress if it has egress rules.
fn directions(spec: &RawSpec, base: &FieldPath, findings: &mut Findings) -> (bool, bool) {
    let has_ingress = spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty());
    let has_egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    let types = match spec.policy_types.as_deref() {
        None | Some([]) => return (true, has_egress),
        Some(types) => types,
    };
    for (at, kind) in types.iter().enumerate() {
        if !matches!(kind.as_str(), "Ingress" | "Egress") {
            let path = base.key("policyTypes").index(at);
            findings.problem(&path, format!("unknown policy type {}", quoted(kind)), "write Ingress or Egress");
        }
    }
    let listed = |word: &str| types.iter().any(|kind| kind == word);
    for (key, word, has_rules) in [("ingress", "Ingress", has_ingress), ("egress", "Egress", has_egress)] {
        if has_rules && !listed(word) {
            let text = format!("these rules have no effect: policyTypes does not list {word}");
            findings.idle_rules(&base.key(key), &text, &format!("add {word} to policyTypes, or remove the rules"));
        }
    }
    (listed("Ingress"), listed("Egress"))
}

/// Reads the rules of one policy.
struct Rules<'a> {
    namespace: &'a Arc<str>,
    version: PolicyVersion,
    findings: &'a mut Findings,
}

impl Rules<'_> {
    /// Returns a rule without its invalid parts. The rule may be used only if no problem was found.
    fn rule(&mut self, peers: &List<RawPeer>, peers_key: &str, ports: &List<RawPort>, base: &FieldPath) -> PolicyRule {
        // An empty list means everything in v1, but nothing in v1beta1.
        let empty_is_nothing = self.version == PolicyVersion::V1beta1;
        if !empty_is_nothing {
            self.empty_lists(peers.as_ref().map(Vec::len), peers_key, ports.as_ref().map(Vec::len), base);
        }
        let peers = peers.as_ref().filter(|peers| empty_is_nothing || !peers.is_empty()).map(|peers| {
            let peer =
                |(at, Mapping(peer)): (usize, &Mapping<RawPeer>)| self.peer(peer, &base.key(peers_key).index(at));
            peers.iter().enumerate().filter_map(peer).collect()
        });
        let ports = ports.as_ref().filter(|ports| empty_is_nothing || !ports.is_empty()).map(|ports| {
            let port = |(at, Mapping(port)): (usize, &Mapping<RawPort>)| self.port(port, &base.key("ports").index(at));
            ports.iter().enumerate().filter_map(port).collect()
        });
        PolicyRule { peers, ports }
    }

    /// Reports peer and port lists that are present but empty.
    fn empty_lists(&mut self, peers: Option<usize>, peers_key: &str, ports: Option<usize>, base: &FieldPath) {
        for (count, key, whom) in [(peers, peers_key, "everybody"), (ports, "ports", "every port of every protocol")] {
            if count == Some(0) {
                let text = format!("an empty `{key}` means {whom}, not nothing");
                let help = format!("omit `{key}` if that is meant; remove the rule to allow nothing");
                self.findings.empty_list(&base.key(key), &text, &help);
            }
        }
    }

    fn peer(&mut self, peer: &RawPeer, base: &FieldPath) -> Option<Peer> {
        let both = peer.pod_selector.is_some() && peer.namespace_selector.is_some();
        if self.version == PolicyVersion::V1beta1 && (both || peer.ip_block.is_some()) {
            let text = "in extensions/v1beta1 a peer is exactly one of `podSelector` and `namespaceSelector`";
            self.findings.problem(base, text, LATER_FIELD);
            return None;
        }
        match (&peer.pod_selector, &peer.namespace_selector, &peer.ip_block) {
            (None, None, None) => {
                let help = "write `podSelector: {}` for the policy's own namespace, `namespaceSelector: {}` for every pod, \
                            or leave out the list for everyone";
                self.findings.problem(base, "the peer is empty", help);
                None
            }
            (None, None, Some(Mapping(block))) => self.block(block, &base.key("ipBlock")).map(Peer::Block),
            (_, _, Some(_)) => {
                let text = "`ipBlock` cannot be combined with a selector";
                self.findings.problem(&base.key("ipBlock"), text, "write two peers, each after a `- `");
                None
            }
            (pods, namespaces, None) => {
                let pods = optional_selector(pods, &base.key("podSelector"), self.findings);
                let namespaces = match namespaces {
                    None => Some(NamespaceScope::Own(Arc::clone(self.namespace))),
                    Some(Mapping(raw)) => {
                        let path = base.key("namespaceSelector");
                        selector(raw, &path, self.findings).map(NamespaceScope::Selected)
                    }
                };
                Some(Peer::Pods(PodPeer { namespaces: namespaces?, pods: pods?, filter: None }))
            }
        }
    }

    fn block(&mut self, block: &RawBlock, base: &FieldPath) -> Option<IpBlock> {
        let cidr = block_of(&block.cidr, &base.key("cidr"), self.findings);
        let mut except = Vec::new();
        for (at, text) in block.except.iter().flatten().enumerate() {
            let path = base.key("except").index(at);
            let Some(inner) = block_of(text, &path, self.findings) else { continue };
            let Some(cidr) = cidr else { continue };
            // `contains` is false across families.
            if cidr.contains(&inner) && inner.prefix_len() > cidr.prefix_len() {
                except.push(inner);
            } else {
                let text = format!("{} is not strictly inside cidr {}", quoted(text), quoted(&block.cidr));
                self.findings.problem(&path, text, "write a smaller block of the cidr, of the same address family");
            }
        }
        Some(IpBlock { cidr: cidr?, except })
    }

    fn port(&mut self, raw: &RawPort, base: &FieldPath) -> Option<PolicyPort> {
        let transport = transport(raw.protocol.as_deref(), || base.key("protocol"), self.findings);
        let end_path = base.key("endPort");
        if self.version == PolicyVersion::V1beta1 && raw.end_port.is_some() {
            self.findings.problem(&end_path, "extensions/v1beta1 has no `endPort`", LATER_FIELD);
            return None;
        }
        match (&raw.port, raw.end_port) {
            (None, None) => transport.map(PolicyPort::All),
            (None, Some(_)) => {
                self.findings.problem(&end_path, "`endPort` requires `port`", "add the first port of the range");
                None
            }
            (Some(PortRef::Name(_)), Some(_)) => {
                let help = "write the first port of the range as a number, or remove `endPort`";
                self.findings.problem(&end_path, "`endPort` cannot be combined with a named port", help);
                None
            }
            (Some(PortRef::Name(name)), None) => {
                let name = self.port_name(name, &base.key("port"))?;
                Some(PolicyPort::Named { transport: transport?, name })
            }
            (Some(PortRef::Number(first)), end) => {
                let first = port_number(*first, || base.key("port"), self.findings);
                let last = end.map_or(first, |end| port_number(end, || end_path.clone(), self.findings));
                let (first, last) = (first?, last?);
                if last < first {
                    let text = format!("endPort {last} is less than port {first}");
                    self.findings.problem(&end_path, text, format!("write a port from {first} to 65535"));
                    return None;
                }
                Some(PolicyPort::Range { transport: transport?, first, last })
            }
        }
    }

    fn port_name(&mut self, name: &str, path: &FieldPath) -> Option<Arc<str>> {
        if names::is_port_name(name) {
            return Some(name.into());
        }
        let help = if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("write {} without quotes", quoted(name).trim_matches('"'))
        } else {
            "write up to 15 lower-case letters, digits and single hyphens, at least one letter".to_owned()
        };
        self.findings.problem(path, format!("invalid port name {}", quoted(name)), help);
        None
    }
}

/// Parses a block. Host bits are cleared with a warning, as in the API server. `None` and a problem if the block is invalid.
pub(super) fn block_of(text: &str, path: &FieldPath, findings: &mut Findings) -> Option<IpNet> {
    match parse_block(text) {
        Ok((block, host_bits)) => {
            if host_bits {
                let problem = format!("{} has host bits set; read as {block}", quoted(text));
                findings.warning(path, problem, format!("write {block}"));
            }
            Some(block)
        }
        Err(AddressFault { text, help }) => {
            findings.problem(path, text, help);
            None
        }
    }
}

/// Returns the port number. `None` and a problem at `path` if it is not between 1 and 65535.
pub(super) fn port_number(number: i64, path: impl FnOnce() -> FieldPath, findings: &mut Findings) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|&port| port > 0);
    if port.is_none() {
        findings.problem(&path(), format!("port {number} does not exist"), "write a number from 1 to 65535");
    }
    port
}

/// Returns the protocol, TCP if it is not given. `None` and a problem at `path` if it is unknown.
pub(super) fn transport(
    name: Option<&str>,
    path: impl FnOnce() -> FieldPath,
    findings: &mut Findings,
) -> Option<Transport> {
    let Some(name) = name else { return Some(Transport::Tcp) };
    let transport = Transport::from_name(name);
    if transport.is_none() {
        findings.problem(&path(), format!("unknown protocol {}", quoted(name)), "write TCP, UDP or SCTP");
    }
    transport
}
