//! Paths of fields in an object, for messages and to find lines.

use std::fmt;

/// A path such as `spec.ingress[0].ports`, or `metadata.labels["app.kubernetes.io/name"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<Step>);

/// One step of a path: a mapping's key, or a list's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl FieldPath {
    /// Returns the path of a top-level field.
    pub(super) fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub(super) fn join(&self, rest: &Self) -> Self {
        Self(self.0.iter().chain(&rest.0).cloned().collect())
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    pub(super) fn from_steps(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    /// Parses the output of `Display`. `None` if the text is not a path.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inner) = rest.strip_prefix("[\"") {
                let end = inner.find("\"]")?;
                steps.push(Step::Key(inner[..end].to_owned()));
                rest = &inner[end + 2..];
            } else if let Some(inner) = rest.strip_prefix('[') {
                let end = inner.find(']')?;
                steps.push(Step::Index(inner[..end].parse().ok()?));
                rest = &inner[end + 1..];
            } else {
                let key = rest.strip_prefix('.').unwrap_or(rest);
                let end = key.find(['.', '[']).unwrap_or(key.len());
                if end == 0 {
                    return None;
                }
                steps.push(Step::Key(key[..end].to_owned()));
                rest = &key[end..];
            }
        }
        Some(Self(steps))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if key.is_empty() || key.contains(['.', '[', ']', '"']) => write!(f, "[\"{key}\"]")?,
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_back_as_it_was_written() {
        let path = FieldPath::of("items").index(7).key("metadata").key("labels").key("app.kubernetes.io/name");
        assert_eq!(path.to_string(), r#"items[7].metadata.labels["app.kubernetes.io/name"]"#);
        assert_eq!(FieldPath::parse(&path.to_string()), Some(path));
        assert_eq!(FieldPath::parse(""), Some(FieldPath::default()));
        for wrong in ["a..b", "a[x]", "a[", "[\"a", ".", "a."] {
            assert_eq!(FieldPath::parse(wrong), None, "{wrong}");
        }
    }
}
