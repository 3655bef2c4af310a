//! Findings and the kinds of checks.

use std::collections::{BTreeSet, HashMap};

use bulkhead_control::object::{PolicyName, Position};
use bulkhead_control::origin::Direction;
use bulkhead_control::source;
use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// The policy does something other than what it says.
    Error,
    /// Something has no effect, or probably an unintended one.
    Warning,
    /// A fact that may be intended.
    Note,
}

impl Severity {
    /// Returns the name in output and in SARIF.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// A kind of finding that `lint` looks for.
#[derive(Debug)]
pub(super) struct Check {
    /// Name of the check. Never changes, because scripts and annotations refer to it.
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    pub(super) text: &'static str,
}

macro_rules! checks {
    ($($name:ident $severity:ident $id:literal $text:literal;)*) => {
        $(pub(super) const $name: &Check = &Check { id: $id, severity: Severity::$severity, text: $text };)*
        /// All checks, in the order of docs/lint.md.
        pub(super) const CHECKS: &[&Check] = &[$($name),*];
    };
}

checks! {
    POLICY_SELECTS_NOBODY Warning "policy-selects-nobody" "A policy selects no pod";
    POLICY_CHANGES_NOTHING Warning "policy-changes-nothing" "Without the whole policy every verdict would be the same";
    PEER_SELECTS_NOBODY Warning "peer-selects-nobody" "A peer of a rule names nobody";
    RULE_NAMES_NOTHING Warning "rule-names-nothing" "A rule names no connection at all";
    REDUNDANT_RULE Warning "redundant-rule" "Without the rule others decide the same";
    SHADOWED_RULE Warning "shadowed-rule" "Rules that come before leave the rule nothing to decide";
    BLOCKED_RULE Warning "blocked-rule" "What the rule is about is denied at the other end of every connection";
    NAMES_ITSELF Note "names-itself" "The only peer of the rule is the pod itself";
    SEPARATE_SELECTORS Error "separate-selectors" "Two peers were written where one with two selectors is meant";
    NAMED_PORT_MISSING Error "named-port-missing" "No pod has the port of this name";
    SERVICE_PORT Warning "service-port" "The rule names the port of a Service, and the pods behind it listen on another one";
    EXCEPT_REOPENED Warning "except-reopened" "Another rule allows what an except leaves out";
    BLOCK_NAMES_PODS Warning "block-names-pods" "An ipBlock names addresses of pods";
    BLOCK_NAMES_SERVICE Warning "block-names-service" "An ipBlock names addresses of Services, which policy never sees";
    RULES_WITHOUT_TYPE Error "rules-without-type" "policyTypes does not list the direction of rules";
    EMPTY_LIST Warning "empty-list" "An empty list means everybody or everything";
    EGRESS_WITHOUT_DNS Warning "egress-without-dns" "Pods may connect to somebody, and not to a DNS server";
    ENCRYPTED_DNS Warning "encrypted-dns" "Pods with rules about domain names may reach a resolver whose answers cannot be read";
    SAME_PRIORITY Warning "same-priority" "Cluster policies of one priority disagree";
    UNUSED_RULE Note "unused-rule" "The rule has decided nothing in the time looked at";
}

/// Returns the ids of all checks.
pub fn ids() -> Vec<&'static str> {
    CHECKS.iter().map(|check| check.id).collect()
}

/// A rule, peer, port or whole policy that a finding is about.
#[derive(Clone, Debug)]
pub(super) struct At<'a> {
    /// The printed rule or policy: `shop/web ingress[1]`.
    pub(super) text: String,
    pub(super) position: Option<&'a Position>,
    pub(super) path: String,
}

/// A finding whose file and line are not looked up yet.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub(super) check: &'static Check,
    /// Name; for cluster policies it includes the kind.
    pub(super) policy: PolicyName,
    pub(super) rule: Option<(Direction, usize)>,
    pub(super) at: At<'a>,
    pub(super) reason: String,
    pub(super) mend: String,
    /// What the findings of a policy that are reported as one have in common. `None` if that is the reason itself.
    pub(super) cause: Option<String>,
    /// The rules, policies and custom resources that the reason names.
    pub(super) by: Vec<At<'a>>,
    /// For a dead rule: whether it can be removed together with all other dead rules that have `Some(true)`. `None` for other checks.
    pub(super) together: Option<bool>,
    /// File and line. `None` if [`placed`] must look them up.
    pub(super) line: Option<(String, usize)>,
}

/// A finding as printed: one cause, with its first place. The field names are part of the JSON format.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) severity: Severity,
    /// Printed name of the policy: `shop/web`, `ClusterNetworkPolicy isolate`.
    pub(super) policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<usize>,
    /// Path of the faulty field in the object. Empty for the whole policy.
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
    pub(super) reason: String,
    pub(super) mend: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) by: Vec<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) removable_together: Option<bool>,
    /// Number of places with this cause, of which the fields above name the first.
    pub(super) count: usize,
    /// Indices of all rules with this cause. Empty if `count` is 1, or for a finding about a whole policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<usize>,
    /// The places after the first, at most [`MAX_PLACES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) places: Vec<Also>,
}

/// Another place with the same cause as a finding.
#[derive(Debug, Serialize)]
pub(super) struct Also {
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
    /// `None` if equal to that of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// A rule, policy or custom resource with its position.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    pub(super) rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
}

/// Maximum number of places named beside the first. The others are only counted, because the remedy is the same for all.
const MAX_PLACES: usize = 9;

/// Maximum number of `by` entries of a finding.
pub(super) const MAX_BY: usize = 5;

/// Joins the findings of one cause, adds files and lines, and sorts the result by them.
pub(super) fn placed(found: &[Found<'_>]) -> Vec<Finding> {
    let causes: Vec<Cause<'_, '_>> = by_cause(found).into_iter().map(Cause::new).collect();
    let fields = causes.iter().flat_map(|cause| cause.shown.iter().map(|one| &one.at).chain(cause.by.iter().copied()));
    let wanted: Vec<(&Position, &str)> = fields.filter_map(|at| Some((at.position?, at.path.as_str()))).collect();
    let lines = source::lines_of(&wanted);
    let mut lines = wanted.iter().zip(lines).map(|((position, _), line)| line.unwrap_or(position.line));
    let mut line = |at: &At<'_>| {
        let line = at.position.and_then(|_| lines.next());
        (at.position.map(|position| position.file.to_string()), line)
    };
    let mut all: Vec<Finding> = causes.iter().map(|cause| cause.finding(&mut line)).collect();
    all.sort_by(|a, b| (&a.file, a.line, &a.policy, &a.path, a.id).cmp(&(&b.file, b.line, &b.policy, &b.path, b.id)));
    all
}

/// Groups findings by their cause, in the order of each cause's first finding.
fn by_cause<'f, 'a>(found: &'f [Found<'a>]) -> Vec<Vec<&'f Found<'a>>> {
    let mut causes: Vec<Vec<&Found<'a>>> = Vec::new();
    let mut known = HashMap::new();
    for one in found {
        let direction = one.rule.map(|(direction, _)| direction);
        let text = one.cause.as_ref().unwrap_or(&one.reason);
        let key = (one.check.id, &one.policy, direction, text, &one.mend, one.together);
        let at = *known.entry(key).or_insert_with(|| {
            causes.push(Vec::new());
            causes.len() - 1
        });
        causes[at].push(one);
    }
    causes
}

/// The findings of one cause.
struct Cause<'f, 'a> {
    /// The places to print, at least one.
    shown: Vec<&'f Found<'a>>,
    by: Vec<&'f At<'a>>,
    count: usize,
    rules: Vec<usize>,
}

impl<'f, 'a> Cause<'f, 'a> {
    fn new(all: Vec<&'f Found<'a>>) -> Self {
        let mut by: Vec<&At<'a>> = Vec::new();
        for at in all.iter().flat_map(|one| &one.by) {
            if by.len() < MAX_BY && !by.iter().any(|known| known.text == at.text) {
                by.push(at);
            }
        }
        let count = all.len();
        let rules: BTreeSet<usize> = all.iter().filter(|_| count > 1).filter_map(|one| Some(one.rule?.1)).collect();
        let shown = all.into_iter().take(1 + MAX_PLACES).collect();
        Self { shown, by, count, rules: rules.into_iter().collect() }
    }

    /// Returns the finding. `line` returns the file and line of each place, in the order of `shown` and `by`.
    fn finding(&self, line: &mut impl FnMut(&At<'_>) -> (Option<String>, Option<usize>)) -> Finding {
        let mut place = |one: &Found<'_>| {
            let (file, own) = line(&one.at);
            match &one.line {
                Some((file, line)) => (Some(file.clone()), Some(*line)),
                None => (file, own),
            }
        };
        let first = self.shown[0];
        let (file, own_line) = place(first);
        let also = |one: &&Found<'_>| {
            let (file, line) = place(one);
            let reason = (one.reason != first.reason).then(|| one.reason.clone());
            Also { path: one.at.path.clone(), file, line, reason }
        };
        let places = self.shown[1..].iter().map(also).collect();
        let by = self.by.iter().map(|at| {
            let (file, line) = line(at);
            Place { rule: at.text.clone(), file, line }
        });
        Finding {
            id: first.check.id,
            severity: first.check.severity,
            policy: label(&first.policy),
            direction: first.rule.map(|(direction, _)| direction.name()),
            rule: first.rule.map(|(_, at)| at),
            path: first.at.path.clone(),
            file,
            line: own_line,
            reason: first.reason.clone(),
            mend: first.mend.clone(),
            by: by.collect(),
            removable_together: first.together,
            count: self.count,
            rules: self.rules.clone(),
            places,
        }
    }
}

/// Returns the printed name of a policy.
pub(super) fn label(policy: &PolicyName) -> String {
    match policy.name.split_once('/') {
        Some((kind, name)) if policy.namespace.is_empty() => format!("{kind} {name}"),
        _ => policy.to_string(),
    }
}
