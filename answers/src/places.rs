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

/// A rule in a file: document number, path of the object, direction, index in the list.
type RuleKey = (usize, Arc<str>, Direction, usize);

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
        let rule = |policy: String, position: Option<&Position>, direction, rule| {
            let position = position?;
            let line = self.of_rule(position, direction, rule).unwrap_or(position.line);
            Some(Written { policy, file: position.file.clone(), line })
        };
        match origin {
            Some(Origin::Policy { policy, direction, rule: at }) => {
                let position = run::position(self.pipeline, policy);
                rule(policy.to_string(), position, *direction, *at).into_iter().collect()
            }
            Some(Origin::ClusterPolicy { policy, direction, rule: at, .. }) => {
                let position = cache.cluster_policies().get(policy).and_then(|policy| policy.position.as_ref());
                rule(policy.to_string(), position, *direction, *at).into_iter().collect()
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

    /// Returns the line of a rule of the policy at `position`. `None` if the file can no longer be read or has changed.
    pub(crate) fn of_rule(&self, position: &Position, direction: Direction, rule: usize) -> Option<usize> {
        let known = self.files.borrow().get(&position.file).cloned();
        let lines = known.unwrap_or_else(|| {
            let found = Rc::new(self.of_file(&position.file));
            self.files.borrow_mut().insert(position.file.clone(), found.clone());
            found
        });
        lines.get(&(position.document, position.path.clone(), direction, rule)).copied()
    }

    fn of_file(&self, file: &str) -> Lines {
        let cache = self.pipeline.cache();
        let count = |rules: &Option<Vec<_>>| rules.as_ref().map_or(0, Vec::len);
        let policies = cache
            .policies()
            .values()
            .filter_map(|policy| Some((policy.position.as_ref()?, count(&policy.ingress), count(&policy.egress))));
        let around = cache
            .cluster_policies()
            .values()
            .filter_map(|policy| Some((policy.position.as_ref()?, policy.ingress.len(), policy.egress.len())));
        let here = policies.chain(around).filter(|(position, ..)| *position.file == *file);
        let rules = here.flat_map(|(position, ingress, egress)| {
            let ingress = (0..ingress).map(|rule| (Direction::Ingress, rule));
            let all = ingress.chain((0..egress).map(|rule| (Direction::Egress, rule)));
            all.map(move |(direction, rule)| (position, direction, rule, format!("spec.{direction}[{rule}]")))
        });
        let rules: Vec<_> = rules.collect();
        let fields: Vec<(&Position, &str)> = rules.iter().map(|(position, .., path)| (*position, &**path)).collect();
        let lines = source::lines_of(&fields);
        let found = rules.iter().zip(lines).filter_map(|((position, direction, rule, _), line)| {
            Some(((position.document, position.path.clone(), *direction, *rule), line?))
        });
        found.collect()
    }
}
