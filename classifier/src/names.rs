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

/// A domain name, all names below one, or all names of a form: `www.example.com`, `*.example.com`, `matchPattern:www*.example.com`.
///
/// The star of `*.example.com` matches one or more whole labels. Source: ClusterNetworkPolicy v1alpha2, `domainNames`. In the third form, a
/// star matches any number of characters inside one label, `**.` at the start matches one or more whole labels, and a lone star matches
/// every name. Source: Cilium, `matchPattern` of `toFQDNs`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamePattern {
    /// The name in lower case without a final dot. For [`Form::Below`] without the star, for [`Form::Glob`] with its stars.
    name: Box<str>,
    form: Form,
}

/// The names that a pattern matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Form {
    /// The name itself.
    Exact,
    /// The names below it, and not the name itself.
    Below,
    /// The names of a form with stars.
    Glob,
}

/// What precedes the text of a pattern of the third form. A domain name has no colon.
const GLOB: &str = "matchPattern:";

/// The error for a text that is not a pattern of domain names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has at least two labels of letters, digits, `-` and `_`; `*.` may precede it")]
pub struct InvalidName;

impl FromStr for NamePattern {
    type Err = InvalidName;

    /// Parses a pattern. Ignores case and a final dot.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if let Some(glob) = text.strip_prefix(GLOB) {
            return Self::glob(glob);
        }
        let (name, form) = text.strip_prefix("*.").map_or((text, Form::Exact), |name| (name, Form::Below));
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_label = |label: &str| {
            let bytes = label.as_bytes();
            let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            label.len() <= MAX_LABEL
                && ends(bytes.first())
                && ends(bytes.last())
                && bytes.iter().all(|&byte| is_name_byte(byte))
        };
        let is_name = name.len() <= MAX_NAME && name.contains('.') && name.split('.').all(is_label);
        is_name.then(|| Self { name: name.to_ascii_lowercase().into(), form }).ok_or(InvalidName)
    }
}

impl NamePattern {
    /// Parses the text after `matchPattern:`. Ignores case, a final dot and repeated stars inside a label.
    ///
    /// # Errors
    /// If the text has other characters than those of names and stars, an empty label, or is too long.
    pub fn glob(text: &str) -> Result<Self, InvalidName> {
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(|byte| byte == b'*' || is_name_byte(byte));
        if text.len() > MAX_NAME || !text.split('.').all(is_label) {
            return Err(InvalidName);
        }
        let (depth, rest) = match text.split_once('.') {
            Some((first, rest)) if first.len() > 1 && is_stars(first) => ("**.", rest),
            _ => ("", &*text),
        };
        let mut name = depth.to_owned();
        for c in rest.chars() {
            // The second star of `**.` is no repeated star of the label after it.
            if c != '*' || !name[depth.len()..].ends_with('*') {
                name.push(c);
            }
        }
        Ok(Self { name: name.into(), form: Form::Glob })
    }

    /// Returns the estimated use of memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }

    /// Whether the pattern has the form `matchPattern:`, which only policies of other products use.
    pub fn is_glob(&self) -> bool {
        self.form == Form::Glob
    }

    /// Returns the place of the pattern in an index of names.
    pub(crate) fn place(&self) -> Indexed<'_> {
        match (self.form, self.name.rfind('*')) {
            (Form::Exact, _) | (Form::Glob, None) => Indexed::At(&self.name),
            (Form::Below, _) => Indexed::Below(&self.name),
            (Form::Glob, Some(star)) => {
                Indexed::Among(self.name[star..].split_once('.').map_or("", |(_, above)| above))
            }
        }
    }

    /// Whether the pattern matches a name in lower case without a final dot.
    pub fn matches(&self, name: &str) -> bool {
        match self.form {
            Form::Exact => *self.name == *name,
            Form::Below => {
                name.strip_suffix(&*self.name).is_some_and(|labels| labels.len() > 1 && labels.ends_with('.'))
            }
            Form::Glob if *self.name == *"*" => true,
            Form::Glob => match self.name.strip_prefix("**.") {
                Some(rest) => {
                    // As many labels from the end as the rest of the pattern has.
                    let dot = name.rmatch_indices('.').nth(rest.matches('.').count());
                    dot.is_some_and(|(dot, _)| dot > 0 && fits(rest, &name[dot + 1..]))
                }
                None => fits(&self.name, name),
            },
        }
    }
}

/// The place of a pattern in an index of names.
pub(crate) enum Indexed<'a> {
    /// The pattern matches this name.
    At(&'a str),
    /// The pattern matches all names below this one.
    Below(&'a str),
    /// The pattern matches some of the names below this one. Empty for a pattern whose last label has a star.
    Among(&'a str),
}

/// Whether a byte may be in a label of a name.
const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn is_stars(text: &str) -> bool {
    text.bytes().all(|byte| byte == b'*')
}

/// Whether a name has the form of a pattern in which each star matches any number of characters inside one label.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut read) = (0, 0);
    // The last star, and the end of the characters that it matches. A later star never needs an earlier one to match more.
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if byte == name[read] => (at, read) = (at + 1, read + 1),
            _ => match star {
                Some((place, end)) if is_name_byte(name[end]) => {
                    star = Some((place, end + 1));
                    (at, read) = (place + 1, end + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = match self.form {
            Form::Exact => "",
            Form::Below => "*.",
            Form::Glob => GLOB,
        };
        write!(f, "{before}{}", self.name)
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

    #[test]
    fn a_star_of_a_form_stays_inside_one_label() {
        for (text, good, bad) in [
            ("*.example.com", &["www.example.com", "a-b_c.example.com"][..], &["example.com", "a.b.example.com"][..]),
            (
                "sub*.example.com.",
                &["sub.example.com", "subway.example.com"],
                &["xsub.example.com", "sub.x.example.com"],
            ),
            ("*example.com", &["example.com", "myexample.com"], &["www.example.com"]),
            ("*.ci*.IO", &["a.ci.io", "a.cilium.io"], &["ci.io", "a.b.ci.io", "a.xci.io", "a.ci.b.io"]),
            ("a*b*c.x", &["abc.x", "axxbxxbc.x", "a-b-c-bc.x"], &["ab.x", "a.b.c.x", "abcd.x"]),
            ("**.example.com", &["a.example.com", "a.b.example.com"], &["example.com", ".example.com", "aexample.com"]),
            ("***.a*.com", &["x.a.com", "y.x.ab.com"], &["a.com", "x.b.com"]),
            ("a**.com", &["a.com", "ab.com"], &["a.b.com"]),
            ("**a.com", &["a.com", "ba.com"], &["b.a.com"]),
            ("*", &["a", "a.b.c"], &[]),
            ("**.", &["a", "a.b.c"], &[]),
            ("www.*", &["www.a"], &["www.a.b", "www"]),
            ("www.example.com", &["www.example.com"], &["a.www.example.com"]),
        ] {
            let glob = NamePattern::glob(text).unwrap();
            for name in good {
                assert!(glob.matches(name), "{text} {name}");
            }
            for name in bad {
                assert!(!glob.matches(name), "{text} {name}");
            }
            let again: NamePattern = glob.to_string().parse().unwrap();
            assert!(again == glob && glob.is_glob(), "{glob}");
        }
        for bad in ["", ".", "a..b", ".com", "a b.com", "a:b", &"a".repeat(300)] {
            assert_eq!(NamePattern::glob(bad), Err(InvalidName), "{bad}");
        }
        assert!(!pattern("*.example.com").is_glob());
    }
}
