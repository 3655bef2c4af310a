//! The domain names by which the client of a session knew the server.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead_classifier::NamePattern;

/// Maximum number of names of a session. Sites of one CDN share addresses, but a pod rarely talks to more of them at a time. 131,072 flows
/// with as many names as this take 300 MB.
const MOST_NAMES: usize = 32;

/// The names that the client had resolved to the server's address when the session began: in lower case, without a final dot, and at most
/// [`MOST_NAMES`]. Empty if it had resolved none, if the source does not tell, or if the start of the session is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResolvedNames(BTreeSet<Arc<str>>);

impl ResolvedNames {
    /// Adds a name. Ignores texts that no rule can name, and names beyond the maximum.
    pub(super) fn add(&mut self, text: &str) {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_name = !name.starts_with('*') && name.parse::<NamePattern>().is_ok();
        if is_name && self.0.len() < MOST_NAMES {
            self.0.insert(name.into());
        }
    }

    /// Adds the names of another observation of the session.
    pub(super) fn join(&mut self, other: &Self) {
        let room = MOST_NAMES.saturating_sub(self.0.len());
        let new: Vec<Arc<str>> = other.0.difference(&self.0).take(room).cloned().collect();
        self.0.extend(new);
    }

    /// Returns these names.
    #[cfg(test)]
    pub(crate) fn of(texts: &[&str]) -> Self {
        let mut names = Self::default();
        texts.iter().for_each(|text| names.add(text));
        names
    }

    /// Returns the names.
    pub const fn set(&self) -> &BTreeSet<Arc<str>> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_bounded_and_such_that_rules_can_name_them() {
        let mut names = ResolvedNames::default();
        for text in ["B.example.com.", "b.example.com", "a.example.com", "*.example.com", "com", "a\nb.com", ""] {
            names.add(text);
        }
        assert_eq!(names.0.iter().map(|name| &**name).collect::<Vec<_>>(), ["a.example.com", "b.example.com"]);
        let mut others = ResolvedNames::default();
        (0..2 * MOST_NAMES).for_each(|at| others.add(&format!("n{at}.example.com")));
        names.join(&others);
        assert_eq!((others.0.len(), names.0.len()), (MOST_NAMES, MOST_NAMES));
        assert!(names.0.contains("a.example.com"));
    }
}
