//! The comments of the original policies: before an object, and before a rule.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bulkhead_control::object::{Direction, Position};
use bulkhead_control::source;

use super::lists::Rule;
use super::objects::Translated;
use super::report::path;
use super::yaml::Comments;

/// The lines of the source files. A file that cannot be read again, such as standard input, has none.
#[derive(Debug, Default)]
pub(super) struct Sources(HashMap<Arc<str>, Vec<String>>);

impl Sources {
    fn lines(&mut self, file: &Arc<str>) -> &[String] {
        self.0.entry(file.clone()).or_insert_with(|| {
            let text = source::text_of_file(Path::new(&**file)).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        })
    }

    /// Returns the lines of comment directly before a line, which is counted from 1.
    fn before(&mut self, file: &Arc<str>, line: usize) -> Vec<String> {
        let lines = self.lines(file);
        let end = line.saturating_sub(1).min(lines.len());
        let is_comment = |line: &&String| line.trim_start().starts_with('#');
        let mut found: Vec<String> =
            lines[..end].iter().rev().take_while(is_comment).map(|line| line.trim().to_owned()).collect();
        found.reverse();
        found
    }

    /// Returns the comments of the objects by their path in each, in the same order.
    pub(super) fn comments(&mut self, objects: &[Translated]) -> Vec<Comments> {
        let mut wanted: Vec<(&Position, String)> = Vec::new();
        let mut places: Vec<(usize, String)> = Vec::new();
        for (at, object) in objects.iter().enumerate() {
            let Some(position) = &object.policy.position else { continue };
            let lists = [(Direction::Ingress, &object.ingress), (Direction::Egress, &object.egress)];
            for (direction, rules) in lists {
                for (index, rule) in rules.iter().flatten().enumerate().filter(|(_, rule)| is_own(rule, object)) {
                    wanted.push((position, path(&rule.step)));
                    places.push((at, format!("/spec/{direction}/{index}")));
                }
            }
        }
        let fields: Vec<(&Position, &str)> = wanted.iter().map(|(position, path)| (*position, path.as_str())).collect();
        let lines = source::lines_of(&fields);
        let mut all: Vec<Comments> = vec![Comments::new(); objects.len()];
        for (object, comments) in objects.iter().zip(&mut all) {
            if let Some(position) = &object.policy.position {
                let own = self.before(&position.file, position.line);
                comments.insert(String::new(), own);
            }
        }
        let mut known: HashMap<(usize, usize), ()> = HashMap::new();
        for (((at, place), (position, _)), line) in places.into_iter().zip(&wanted).zip(lines) {
            // The first of several rules from one has its comment.
            if let Some(line) = line
                && line != position.line
                && known.insert((at, line), ()).is_none()
            {
                let own = self.before(&position.file, line);
                all[at].insert(place, own);
            }
        }
        all
    }
}

/// Whether the rule is one of the policy that the object is named after.
fn is_own(rule: &Rule, object: &Translated) -> bool {
    rule.step.rule.is_some() && rule.step.policy.rank.name == object.policy.rank.name
}
