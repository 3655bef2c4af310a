//! What the target cannot say, and what is equal in this cluster only.

use bulkhead_control::object::{ClusterPolicyName, Peer, Position, RuleAction};
use bulkhead_control::source;
use indexmap::{IndexMap, IndexSet};

use super::terms::Step;

/// A remark about a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Remark {
    policy: ClusterPolicyName,
    /// The policy's position. `None` if it comes from an API server.
    position: Option<Position>,
    /// The rule's path in its object.
    path: String,
    text: String,
}

impl Remark {
    fn about(step: &Step, text: String) -> Self {
        let policy = &step.policy;
        Self { policy: policy.rank.name.clone(), position: policy.position.clone(), path: path(step), text }
    }
}

/// Returns the remarks as text: file and line, the policy, the rule's path, and what the remark says. Each file is read once.
pub(super) fn texts<'a>(remarks: impl Iterator<Item = &'a Remark>) -> Vec<String> {
    let remarks: Vec<&Remark> = remarks.collect();
    let placed = || remarks.iter().filter_map(|remark| Some((remark.position.as_ref()?, remark.path.as_str())));
    let mut lines = source::lines_of(&placed().collect::<Vec<_>>()).into_iter();
    let text = |remark: &&Remark| {
        let at = remark.position.as_ref().map(|position| {
            let line = lines.next().flatten().unwrap_or(position.line);
            format!("{}:{line}: ", position.file)
        });
        format!("{}{} {}: {}", at.unwrap_or_default(), remark.policy, remark.path, remark.text)
    };
    remarks.iter().map(text).collect()
}

/// The remarks about one translation, each once.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Rules that the target cannot say, each with the reason as its text, and the remedy.
    pub(super) refused: IndexMap<Remark, String>,
    /// Which pod, label, node or namespace would show a difference in another cluster.
    pub(super) only_here: IndexSet<Remark>,
}

impl Report {
    /// Adds a rule that the target cannot say, with the reason and the remedy.
    pub(super) fn refuse(&mut self, step: &Step, reason: String, help: impl Into<String>) {
        self.refused.entry(Remark::about(step, reason)).or_insert_with(|| help.into());
    }

    /// Reports the step as not translated, and returns true, if it is an Accept after which rules about requests, such as HTTP rules, decide.
    /// Otherwise returns false.
    pub(super) fn refuse_requests(&mut self, step: &Step) -> bool {
        let rule = step.rule.map(|rule| &super::terms::rules(&step.policy, step.direction)[rule]);
        let Some(then) = rule.and_then(|rule| rule.then.as_ref()).filter(|_| step.action == RuleAction::Accept) else {
            return false;
        };
        let reason = format!("{then} decide, which the target does not have");
        self.refuse(step, reason, "enforce them in the application or a proxy, or remove them");
        true
    }

    /// Adds the remark that a pod with an address in the blocks of this Deny would show a difference in another cluster: the NetworkPolicies except
    /// the blocks, and still allow pods that they select by label. Adds nothing for a Deny without blocks.
    pub(super) fn only_here_by_blocks(&mut self, deny: &Step) {
        if deny.peers.iter().flatten().any(|peer| matches!(peer, Peer::Block(_))) {
            self.only_here(deny, "a pod with an address in the blocks that the rule denies");
        }
    }

    /// Adds what would show a difference in another cluster.
    pub(super) fn only_here(&mut self, step: &Step, what: &str) {
        self.only_here.insert(Remark::about(step, what.to_owned()));
    }
}

/// Returns the path of the step's rule in its object.
pub(super) fn path(step: &Step) -> String {
    let Some(rule) = step.rule else { return "spec".into() };
    let rule = &super::terms::rules(&step.policy, step.direction)[rule];
    let at = rule.at.or(step.rule).unwrap_or_default();
    step.policy.rank.name.rule_path(step.direction, at, rule.name.as_deref())
}
