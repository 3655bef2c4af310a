//! Reads ClusterNetworkPolicy v1alpha2, AdminNetworkPolicy and BaselineAdminNetworkPolicy v1alpha1, with the checks of the API and those
//! that its schema cannot express.
//!
//! ```text
//!  metadata, tier, priority, subject --any fault--> input refused: the pods or the precedence of the policy are unknown
//!  each rule --any fault--> strict: input refused; lenient: an Accept matches nothing, any other rule denies everything
//! ```
//! An object that passed through an API server of another version has lost the fields unknown to that server. So a peer or protocol without
//! any field is probably the rest of one. It is a fault, and means neither everything nor nothing.
//!
//! Source: `apis/v1alpha2` and `apis/v1alpha1` of kubernetes-sigs/network-policy-api, and its issue 252 for the treatment of invalid rules.

mod peers;
mod ports;
mod raw;
mod unlabelled;
mod version;

use std::sync::Arc;

use serde_json::Value;

use self::raw::{RawPods, RawRule, RawSpec, RawSubject};
pub(super) use self::unlabelled::parts;
pub use self::unlabelled::{Unknown, needs_labels};
use self::version::Version;
use super::error::{Findings, Problem, quoted};
use super::labels::{optional_selector, selector};
use super::metadata::plain_name;
use super::names;
use super::outcome::{ObjectKey, Outcome, Read};
use super::path::FieldPath;
use super::raw::{Mapping, Part, typed};
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Isolation, NamespaceScope, Order, PodPeer,
    PolicyRule, Rank, RuleAction, Tier,
};
use crate::origin::Direction;
use crate::selector::Selector;

/// The API group of all cluster policies.
const GROUP: &str = "policy.networking.k8s.io";

/// The highest priority number, and thus the lowest precedence.
const MAX_PRIORITY: i64 = 1000;

/// Maximum length of a rule's name, in characters.
const MAX_RULE_NAME: usize = 100;

/// Reads a cluster policy. `None` if the object belongs to another API group.
pub(super) fn read(api_version: &str, kind: &str, value: &Value) -> Option<Read> {
    let (group, version) = api_version.split_once('/')?;
    if group != GROUP {
        return None;
    }
    let known = ClusterPolicyKind::ALL.into_iter().find(|known| known.name() == kind);
    Some(match known {
        Some(kind) if Version::of(kind).name() == version => read_kind(kind, value),
        Some(known) => {
            let text = format!("{kind} of {} is not supported", quoted(api_version));
            let help = format!("write `apiVersion: {GROUP}/{}`", Version::of(known).name());
            unreadable(kind, value, Problem::new(&FieldPath::of("apiVersion"), text, help))
        }
        None => {
            let near = names::nearest(kind, ClusterPolicyKind::ALL.map(ClusterPolicyKind::name));
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("write {}", ClusterPolicyKind::ALL.map(ClusterPolicyKind::name).join(", ")),
            };
            let text = format!("unknown kind {} of {GROUP}", quoted(kind));
            unreadable(kind, value, Problem::new(&FieldPath::of("kind"), text, help))
        }
    })
}

fn unreadable(kind: &str, value: &Value, problem: Problem) -> Read {
    let findings = Findings { problems: vec![problem], ..Findings::default() };
    Read { label: label_of(kind, value), key: None, outcome: Outcome::Unreadable, findings }
}

/// Returns the object's kind, and its name if that is readable, for messages.
fn label_of(kind: &str, value: &Value) -> String {
    match value.pointer("/metadata/name").and_then(Value::as_str) {
        Some(name) => format!("{kind} {name}"),
        None => kind.to_owned(),
    }
}

fn read_kind(kind: ClusterPolicyKind, value: &Value) -> Read {
    let mut findings = Findings::default();
    let name = policy_name(kind, value, &mut findings);
    let policy = name.clone().and_then(|name| Reader { kind, findings: &mut findings }.policy(name, value));
    let outcome = match (policy, findings.problems.first()) {
        (Some(policy), None) => Outcome::Object(policy.into()),
        (Some(mut policy), Some(first)) => {
            policy.fault = Some(first.to_string().into());
            Outcome::Closed(policy.into())
        }
        (None, _) => Outcome::Unreadable,
    };
    let key = name.map(|name| ObjectKey { kind: kind.name(), namespace: "".into(), name });
    Read { label: label_of(kind.name(), value), key, outcome, findings }
}

/// Returns the object's name. `None` and a problem if the name is missing or invalid, or if a namespace is set.
fn policy_name(kind: ClusterPolicyKind, value: &Value, findings: &mut Findings) -> Option<Arc<str>> {
    let base = FieldPath::of("metadata");
    if value.pointer("/metadata/namespace").is_some_and(|namespace| !namespace.is_null() && namespace != "") {
        let text = format!("a {} has no namespace", kind.name());
        findings.problem(&base.key("namespace"), text, "remove it: the policy applies to the whole cluster");
        return None;
    }
    let text = value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    let name = plain_name(text, &mut findings.problems)?;
    if kind == ClusterPolicyKind::BaselineAdminNetworkPolicy && name != "default" {
        let text = format!("a {} must be named `default`, not {}", kind.name(), quoted(&name));
        findings.problem(&base.key("name"), text, "rename it to `default`: a cluster has only one");
        return None;
    }
    Some(name.into())
}

/// Reads one cluster policy.
struct Reader<'a> {
    kind: ClusterPolicyKind,
    findings: &'a mut Findings,
}

impl Reader<'_> {
    fn version(&self) -> Version {
        Version::of(self.kind)
    }

    /// Adds a problem about a field that this kind or version does not have. `instead` is the remedy; empty means to remove the field.
    fn unknown(&mut self, path: &FieldPath, field: &str, instead: &str) {
        let help = if instead.is_empty() { "remove it".to_owned() } else { instead.to_owned() };
        let text = format!("unknown field `{field}` in a {}", self.kind.name());
        self.findings.problem(&path.key(field), text, help);
    }

    /// Returns the policy. `closed` replaces each invalid rule. `None` if the spec's shape, tier, priority or subject is invalid.
    fn policy(&mut self, name: Arc<str>, value: &Value) -> Option<ClusterPolicy> {
        let base = FieldPath::of("spec");
        let object = match typed::<raw::RawObject>(value, &FieldPath::default()) {
            Ok(object) => object,
            Err(problem) => return self.fail(problem),
        };
        let Some(spec) = object.spec.filter(|spec| !spec.is_null()) else {
            return self.fail(Problem::new(&FieldPath::default(), "missing field `spec`", "add `spec`"));
        };
        let spec = match typed::<RawSpec>(&spec, &base) {
            Ok(spec) => spec,
            Err(problem) => return self.fail(problem),
        };
        let tier = self.tier(&spec, &base);
        let priority = self.priority(&spec, &base);
        let subject = self.subject(&spec.subject, &base.key("subject"));
        let ingress = self.rules(Direction::Ingress, spec.ingress.as_deref(), &base);
        let egress = self.rules(Direction::Egress, spec.egress.as_deref(), &base);
        let name = ClusterPolicyName { kind: self.kind, name };
        let rank = Rank { tier: tier?, order: Order::of(f64::from(priority?)), tie: "".into(), name };
        let enforcement = super::enforcement::of(value, self.findings);
        Some(ClusterPolicy {
            rank,
            subject: subject?,
            ingress,
            egress,
            isolates: Isolation::default(),
            is_union: false,
            fault: None,
            position: None,
            enforcement,
        })
    }

    fn fail<T>(&mut self, problem: Problem) -> Option<T> {
        self.findings.problems.push(problem);
        None
    }

    fn tier(&mut self, spec: &RawSpec, base: &FieldPath) -> Option<Tier> {
        let of_kind = match self.kind {
            ClusterPolicyKind::AdminNetworkPolicy => Some(Tier::Admin),
            ClusterPolicyKind::BaselineAdminNetworkPolicy => Some(Tier::Baseline),
            _ => None,
        };
        match (of_kind, spec.tier.as_deref()) {
            (Some(tier), None) => Some(tier),
            (Some(_), Some(_)) => {
                self.unknown(base, "tier", "remove it: the kind determines the tier");
                None
            }
            (None, Some("Admin")) => Some(Tier::Admin),
            (None, Some("Baseline")) => Some(Tier::Baseline),
            (None, Some(other)) => {
                self.findings.problem(
                    &base.key("tier"),
                    format!("unknown tier {}", quoted(other)),
                    "write Admin or Baseline",
                );
                None
            }
            (None, None) => {
                self.findings.problem(&base.key("tier"), "missing field `tier`", "write Admin or Baseline");
                None
            }
        }
    }

    fn priority(&mut self, spec: &RawSpec, base: &FieldPath) -> Option<u16> {
        let path = base.key("priority");
        let help = format!("write a number from 0 (evaluated first) to {MAX_PRIORITY}");
        match (self.kind, spec.priority) {
            (ClusterPolicyKind::BaselineAdminNetworkPolicy, None) => Some(u16::MAX),
            (ClusterPolicyKind::BaselineAdminNetworkPolicy, Some(_)) => {
                self.unknown(base, "priority", "remove it: a cluster has only one such policy");
                None
            }
            (_, None) => {
                self.findings.problem(&path, "missing field `priority`", help);
                None
            }
            (_, Some(priority)) => {
                let valid = u16::try_from(priority).ok().filter(|_| priority <= MAX_PRIORITY);
                if valid.is_none() {
                    self.findings.problem(&path, format!("invalid priority {priority}"), help);
                }
                valid
            }
        }
    }

    fn subject(&mut self, raw: &Option<Value>, base: &FieldPath) -> Option<PodPeer> {
        const HELP: &str = "write `namespaces: {}` for every pod, or `namespaces` or `pods` with selectors";
        let Some(raw) = raw.as_ref().filter(|raw| !raw.is_null()) else {
            return self.fail(Problem::new(base, "missing field `subject`", HELP));
        };
        let raw = match typed::<RawSubject>(raw, base) {
            Ok(raw) => raw,
            Err(problem) => return self.fail(problem),
        };
        match (&raw.namespaces, &raw.pods) {
            (Some(Mapping(namespaces)), None) => {
                let namespaces = selector(namespaces, &base.key("namespaces"), self.findings)?;
                Some(pods_of(namespaces, Selector::everything()))
            }
            (None, Some(Mapping(pods))) => {
                let before = self.findings.problems.len();
                let pods = self.pods(pods, &base.key("pods"));
                pods.filter(|_| self.findings.problems.len() == before)
            }
            (None, None) => self.fail(Problem::new(base, "the subject is empty", HELP)),
            (Some(_), Some(_)) => {
                let text = "`namespaces` and `pods` cannot be combined";
                self.fail(Problem::new(base, text, "write one of them; `pods` takes a `namespaceSelector` too"))
            }
        }
    }

    /// Returns the pods selected by the labels of their namespaces and their own.
    fn pods(&mut self, raw: &RawPods, base: &FieldPath) -> Option<PodPeer> {
        let required = |selector: &Part<super::raw::RawSelector>| selector.is_none();
        if required(&raw.pod_selector) {
            let help = "write `podSelector: {}` if every pod of these namespaces is meant";
            self.findings.problem(&base.key("podSelector"), "missing field `podSelector`", help);
        }
        if self.version() == Version::V1alpha1 && required(&raw.namespace_selector) {
            let help = "write `namespaceSelector: {}` if every namespace is meant";
            self.findings.problem(&base.key("namespaceSelector"), "missing field `namespaceSelector`", help);
        }
        let namespaces = optional_selector(&raw.namespace_selector, &base.key("namespaceSelector"), self.findings);
        let pods = optional_selector(&raw.pod_selector, &base.key("podSelector"), self.findings);
        Some(pods_of(namespaces?, pods?))
    }

    fn rules(&mut self, direction: Direction, raw: Option<&[Value]>, base: &FieldPath) -> Vec<ClusterRule> {
        let raw = raw.unwrap_or_default();
        let base = base.key(direction.name());
        self.at_most(raw.len(), "rules", &base);
        raw.iter().enumerate().map(|(at, rule)| self.rule_or_closed(direction, rule, &base.index(at))).collect()
    }

    fn at_most(&mut self, count: usize, what: &str, path: &FieldPath) {
        let most = self.version().most();
        if count > most {
            self.findings.problem(
                path,
                format!("{count} {what}: the maximum is {most}"),
                "split them into several policies or rules",
            );
        }
    }

    fn rule_or_closed(&mut self, direction: Direction, value: &Value, base: &FieldPath) -> ClusterRule {
        let before = self.findings.problems.len();
        let rule = match typed::<RawRule>(value, base) {
            Ok(raw) => self.rule(direction, &raw, base),
            Err(problem) => self.fail(problem),
        };
        rule.filter(|_| self.findings.problems.len() == before).unwrap_or_else(|| self.closed(value))
    }

    /// Returns the replacement for an invalid rule: an Accept that matches nothing, or a Deny that matches everything.
    fn closed(&self, value: &Value) -> ClusterRule {
        let accepts = value.get("action").and_then(Value::as_str).and_then(|text| self.action_of(text));
        let name = value.get("name").and_then(Value::as_str).filter(|name| is_rule_name(name)).map(Arc::from);
        let (action, peers) = match accepts {
            Some(RuleAction::Accept) => (RuleAction::Accept, Some(Vec::new())),
            _ => (RuleAction::Deny, None),
        };
        ClusterRule { name, action, traffic: PolicyRule { peers, ports: None }, then: None, at: None }
    }

    fn action_of(&self, text: &str) -> Option<RuleAction> {
        match (self.kind, text) {
            (ClusterPolicyKind::ClusterNetworkPolicy, "Accept") => Some(RuleAction::Accept),
            (ClusterPolicyKind::AdminNetworkPolicy | ClusterPolicyKind::BaselineAdminNetworkPolicy, "Allow") => {
                Some(RuleAction::Accept)
            }
            (_, "Deny") => Some(RuleAction::Deny),
            (ClusterPolicyKind::ClusterNetworkPolicy | ClusterPolicyKind::AdminNetworkPolicy, "Pass") => {
                Some(RuleAction::Pass)
            }
            _ => None,
        }
    }

    fn rule(&mut self, direction: Direction, raw: &RawRule, base: &FieldPath) -> Option<ClusterRule> {
        if raw.name.as_deref().is_some_and(|name| !is_rule_name(name)) {
            let text = format!("a name of more than {MAX_RULE_NAME} characters");
            self.findings.problem(&base.key("name"), text, "shorten it");
        }
        let action = self.action(raw.action.as_deref(), &base.key("action"));
        let (key, own, other_key, other) = match direction {
            Direction::Ingress => ("from", &raw.from, "to", &raw.to),
            Direction::Egress => ("to", &raw.to, "from", &raw.from),
        };
        if other.is_some() {
            self.unknown(base, other_key, &format!("did you mean `{key}`?"));
        }
        let peers = self.peers(direction, action, own, &base.key(key));
        let ports = self.ports_of(raw, base);
        let named = ports.as_ref().is_some_and(|ports| ports::name_some(ports));
        let lists = own.iter().flatten().any(|Mapping(peer)| peer.names_no_pods());
        if named && lists {
            let text =
                "a named port cannot be combined with networks, nodes or domain names, which have no named ports";
            self.findings.problem(base, text, "write two rules; in the one with these peers, write the port's number");
        }
        let name = raw.name.as_deref().filter(|name| !name.is_empty()).map(Arc::from);
        Some(ClusterRule {
            name,
            action: action?,
            traffic: PolicyRule { peers: Some(peers), ports },
            then: None,
            at: None,
        })
    }

    fn action(&mut self, raw: Option<&str>, path: &FieldPath) -> Option<RuleAction> {
        let help = match self.kind {
            ClusterPolicyKind::AdminNetworkPolicy => "write Allow, Deny or Pass",
            ClusterPolicyKind::BaselineAdminNetworkPolicy => "write Allow or Deny",
            _ => "write Accept, Deny or Pass",
        };
        let Some(text) = raw else {
            return self.fail(Problem::new(path, "missing field `action`", help));
        };
        let action = self.action_of(text);
        if action.is_none() {
            self.findings.problem(path, format!("unknown action {}", quoted(text)), help);
        }
        action
    }
}

fn is_rule_name(name: &str) -> bool {
    name.chars().count() <= MAX_RULE_NAME
}

fn pods_of(namespaces: Selector, pods: Selector) -> PodPeer {
    PodPeer { namespaces: NamespaceScope::Selected(namespaces), pods, filter: None }
}
