//! Domain names as destinations: patterns and sets of them.
//!
//! A rule with [`Rule::names`] matches destinations for which the sender has learned a matching name. The classifier does not know who has
//! learned which names: the caller passes each of the destination's names to [`Tables::lookup_name`]. [`Tables::lookup`] never matches such
//! a rule.
//!
//! [`Rule::names`]: crate::Rule::names
//! [`Tables::lookup`]: crate::Tables::lookup
//! [`Tables::lookup_name`]: crate::Tables::lookup_name

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum length of a domain name, and of one of its labels, in octets. Source: RFC 1035 §2.3.4.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A domain name, or all names below one: `www.example.com`, `*.example.com`. The star matches one or more whole labels.
///
/// Source: ClusterNetworkPolicy v1alpha2, `domainNames`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamePattern {
    /// The name in lower case without the star and without a final dot.
    name: Box<str>,
    /// Whether the pattern has the star. It then matches the names below `name`, and not `name` itself.
    is_below: bool,
}

/// The error for a text that is not a pattern of domain names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has at least two labels of letters, digits, `-` and `_`; `*.` may precede it")]
pub struct InvalidName;

impl FromStr for NamePattern {
    type Err = InvalidName;

    /// Parses a pattern. Ignores case and a final dot.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (name, is_below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            label.len() <= MAX_LABEL
                && ends(bytes.first())
                && ends(bytes.last())
                && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
        };
        let is_name = name.len() <= MAX_NAME && name.contains('.') && name.split('.').all(is_label);
        is_name.then(|| Self { name: name.to_ascii_lowercase().into(), is_below }).ok_or(InvalidName)
    }
}

impl NamePattern {
    /// Returns the pattern's name without the star, and whether the pattern has a star.
    pub(crate) const fn parts(&self) -> (&str, bool) {
        (&self.name, self.is_below)
    }

    /// Whether the pattern matches a name in lower case without a final dot.
    pub fn matches(&self, name: &str) -> bool {
        match self.is_below {
            false => *self.name == *name,
            true => name.strip_suffix(&*self.name).is_some_and(|labels| labels.len() > 1 && labels.ends_with('.')),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_below { "*." } else { "" }, self.name)
    }
}

/// A set of patterns, sorted and without duplicates. Clones share the patterns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameSet(Arc<[NamePattern]>);

impl NameSet {
    /// Returns the patterns, sorted.
    pub fn patterns(&self) -> &[NamePattern] {
        &self.0
    }
}

impl FromIterator<NamePattern> for NameSet {
    fn from_iter<I: IntoIterator<Item = NamePattern>>(patterns: I) -> Self {
        let mut patterns: Vec<_> = patterns.into_iter().collect();
        patterns.sort_unstable();
        patterns.dedup();
        Self(patterns.into())
    }
}

impl fmt::Display for NameSet {
    /// Writes the patterns, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pattern) in self.0.iter().enumerate() {
            write!(f, "{}{pattern}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_star_stands_first_and_alone() {
        for good in ["example.com", "*.example.com", "a-b.c_d.example.com.", "*.io.x"] {
            assert!(good.parse::<NamePattern>().is_ok(), "{good}");
        }
        for bad in ["", "*", "*.", "com", "*.com", "www.*.com", "*x.com", "-a.com", "a..com", "a^b.com", "*.*.com"] {
            assert_eq!(bad.parse::<NamePattern>(), Err(InvalidName), "{bad}");
        }
    }

    #[test]
    fn a_star_stands_for_one_or_more_whole_labels() {
        let below = pattern("*.Kubernetes.IO.");
        assert_eq!(below.to_string(), "*.kubernetes.io");
        for name in ["blog.kubernetes.io", "latest.blog.kubernetes.io"] {
            assert!(below.matches(name), "{name}");
        }
        for name in ["kubernetes.io", ".kubernetes.io", "notkubernetes.io", "kubernetes.io.evil.com", "io"] {
            assert!(!below.matches(name), "{name}");
        }
        let one = pattern("WWW.example.com.");
        assert!(one.matches("www.example.com") && !one.matches("a.www.example.com"));
    }
}
