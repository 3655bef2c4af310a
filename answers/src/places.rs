//! Finds the file and line of rules.
//!
//! Objects do not store the lines of their rules, because only messages need them. One pass over a file finds all its rules: an answer may
//! name every rule of a file with a thousand policies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bulkhead_control::object::Position;
use bulkhead_control::origin::{Direction, Origin};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source;

use crate::run;

/// Position of a policy or rule in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Name of the policy.
    pub policy: String,
    /// Path as given by the user.
    pub file: Arc<str>,
    /// Line number, from 1.
    pub line: usize,
}

/// A rule in a file: document number, path of the object, path of the rule in the object.
type RuleKey = (usize, Arc<str>, String);

type Lines = HashMap<RuleKey, usize>;

/// Finds positions of rules. Reads each file once, on the first question about one of its rules.
pub(crate) struct Places<'a> {
    pipeline: &'a Pipeline,
    files: RefCell<HashMap<Arc<str>, Rc<Lines>>>,
}

impl<'a> Places<'a> {
    pub(crate) fn of(pipeline: &'a Pipeline) -> Self {
        Self { pipeline, files: RefCell::default() }
    }

    /// Returns the positions of the rule, or of the isolating policies, behind an origin. Empty if no object in a file is behind it.
    pub(crate) fn of_origin(&self, origin: Option<&Origin>) -> Vec<Written> {
        let cache = self.pipeline.cache();
        let rule = |policy: String, position: Option<&Position>, path| {
            let position = position?;
            let line = self.of_rule(position, path).unwrap_or(position.line);
            Some(Written { policy, file: position.file.clone(), line })
        };
        match origin {
            Some(Origin::Policy { policy, direction, rule: at }) => {
                let position = run::position(self.pipeline, policy);
                rule(policy.to_string(), position, format!("spec.{direction}[{at}]")).into_iter().collect()
            }
            Some(Origin::ClusterPolicy { policy, direction, rule: at, rule_name, .. }) => {
                let position = cache.cluster_policies().get(policy).and_then(|policy| policy.position.as_ref());
                let path = policy.rule_path(*direction, *at, rule_name.as_deref());
                rule(policy.to_string(), position, path).into_iter().collect()
            }
            Some(Origin::Isolation { policies, others, .. }) => {
                let own = policies.iter().map(|policy| (policy.to_string(), run::position(self.pipeline, policy)));
                let others = others.iter().map(|policy| {
                    let object = cache.cluster_policies().get(policy);
                    (policy.to_string(), object.and_then(|policy| policy.position.as_ref()))
                });
                let written = own.chain(others).filter_map(|(policy, position)| {
                    let position = position?;
                    Some(Written { policy, file: position.file.clone(), line: position.line })
                });
                written.collect()
            }
            Some(Origin::NotIsolated(_) | Origin::OwnNode | Origin::OwnPod) | None => Vec::new(),
        }
    }

    /// Returns the line of the rule with this path in the policy at `position`. `None` if the file can no longer be read or has changed.
    pub(crate) fn of_rule(&self, position: &Position, path: String) -> Option<usize> {
        let known = self.files.borrow().get(&position.file).cloned();
        let lines = known.unwrap_or_else(|| {
            let found = Rc::new(self.of_file(&position.file));
            self.files.borrow_mut().insert(position.file.clone(), found.clone());
            found
        });
        lines.get(&(position.document, position.path.clone(), path)).copied()
    }

    fn of_file(&self, file: &str) -> Lines {
        let cache = self.pipeline.cache();
        let is_here = |position: &Position| *position.file == *file;
        let own = cache.policies().values().filter_map(|policy| {
            let count = |rules: &Option<Vec<_>>| rules.as_ref().map_or(0, Vec::len);
            let lists = [(Direction::Ingress, count(&policy.ingress)), (Direction::Egress, count(&policy.egress))];
            let position = policy.position.as_ref().filter(|position| is_here(position))?;
            let paths = lists.map(|(direction, rules)| (0..rules).map(move |rule| format!("spec.{direction}[{rule}]")));
            Some(paths.into_iter().flatten().map(move |path| (position, path)).collect::<Vec<_>>())
        });
        let ranked = cache.cluster_policies().values().filter_map(|policy| {
            let position = policy.position.as_ref().filter(|position| is_here(position))?;
            let lists = [(Direction::Ingress, &policy.ingress), (Direction::Egress, &policy.egress)];
            let paths = lists.into_iter().flat_map(|(direction, rules)| {
                rules.iter().enumerate().map(move |(at, rule)| {
                    policy.rank.name.rule_path(direction, rule.at.unwrap_or(at), rule.name.as_deref())
                })
            });
            Some(paths.map(|path| (position, path)).collect::<Vec<_>>())
        });
        let rules = own.chain(ranked).flatten();
        let rules: Vec<_> = rules.collect();
        let fields: Vec<(&Position, &str)> = rules.iter().map(|(position, path)| (*position, &**path)).collect();
        let lines = source::lines_of(&fields);
        let found = rules.iter().zip(lines).filter_map(|((position, path), line)| {
            Some(((position.document, position.path.clone(), path.clone()), line?))
        });
        found.collect()
    }
}
