//! What the target cannot say, and what is equal in this cluster only.

use bulkhead_control::source;

use super::terms::Step;

/// A rule that the target cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// File and line, then the policy and the rule's path.
    pub(super) place: String,
    pub(super) reason: String,
    pub(super) help: String,
}

/// The remarks about one translation, each once.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) refused: Vec<Refused>,
    /// Which pod, label, node or namespace would show a difference in another cluster.
    pub(super) only_here: Vec<String>,
}

impl Report {
    /// Adds a rule that the target cannot say, with the reason and the remedy.
    pub(super) fn refuse(&mut self, step: &Step, reason: String, help: impl Into<String>) {
        let refused = Refused { place: place(step), reason, help: help.into() };
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }

    /// Adds what would show a difference in another cluster.
    pub(super) fn only_here(&mut self, step: &Step, what: &str) {
        let text = format!("{}: {what}", place(step));
        if !self.only_here.contains(&text) {
            self.only_here.push(text);
        }
    }
}

/// Returns the path of the step's rule in its object.
pub(super) fn path(step: &Step) -> String {
    let Some(rule) = step.rule else { return "spec".into() };
    let rule = &super::terms::rules(&step.policy, step.direction)[rule];
    let at = rule.at.or(step.rule).unwrap_or_default();
    step.policy.rank.name.rule_path(step.direction, at, rule.name.as_deref())
}

/// Returns file and line, the policy and the rule's path.
fn place(step: &Step) -> String {
    let path = path(step);
    let position = step.policy.position.as_ref();
    let at = position.map(|position| {
        let line = source::line_of(position, &path).unwrap_or(position.line);
        format!("{}:{line}: ", position.file)
    });
    format!("{}{} {path}", at.unwrap_or_default(), step.policy.rank.name)
}
