//! Label selectors of `hubble observe --label`: Kubernetes' syntax, with an optional source before each key, as in `k8s:app=web`.

use bulkhead_answers::output::printable;

/// A label selector: a flow's labels must meet all requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    /// The label's source: `k8s` or `reserved`. `None` for any source.
    source: Option<String>,
    key: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// The key exists, with any value.
    Present,
    Absent,
    /// The key exists and has one of these values.
    In(Vec<String>),
    /// The key is absent or has none of these values.
    NotIn(Vec<String>),
}

impl LabelSelector {
    /// Parses a selector such as `app=web,tier!=back`, `app in (web, db)`, `!canary`, `k8s:app` or `reserved:host`.
    ///
    /// # Errors
    /// If the text is not a label selector.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{}` is not a label selector: write key=value, key in (a,b), key or !key", printable(text));
        let parts = split(text).ok_or_else(wrong)?;
        parts.into_iter().map(requirement).collect::<Option<_>>().map(Self).ok_or_else(wrong)
    }

    /// Whether the selector matches a flow's labels, which have the form `k8s:app=web` or `reserved:host`.
    pub(super) fn selects(&self, labels: &[String]) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(labels))
    }
}

impl Requirement {
    fn is_met(&self, labels: &[String]) -> bool {
        let value = labels.iter().find_map(|label| {
            let (source, rest) = label.split_once(':')?;
            let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
            (key == self.key && self.source.as_ref().is_none_or(|wanted| wanted == source)).then_some(value)
        });
        let is_one_of = |values: &[String]| value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
        match &self.wanted {
            Wanted::Present => value.is_some(),
            Wanted::Absent => value.is_none(),
            Wanted::In(values) => is_one_of(values),
            Wanted::NotIn(values) => !is_one_of(values),
        }
    }
}

/// Splits a selector at commas outside parentheses. `None` if the parentheses are unbalanced or nested.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' if !is_inside => is_inside = true,
            ')' if is_inside => is_inside = false,
            '(' | ')' => return None,
            ',' if !is_inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (!is_inside).then_some(parts)
}

fn requirement(text: &str) -> Option<Requirement> {
    let text = text.trim();
    if let Some(key) = text.strip_prefix('!') {
        return with(key, Wanted::Absent);
    }
    if let Some((left, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(value).collect::<Option<_>>()?;
        let (key, word) = left.trim_end().rsplit_once(char::is_whitespace)?;
        return match word {
            "in" => with(key, Wanted::In(values)),
            "notin" => with(key, Wanted::NotIn(values)),
            _ => None,
        };
    }
    if let Some((key, text)) = text.split_once("!=") {
        return with(key, Wanted::NotIn(vec![value(text)?]));
    }
    match text.split_once('=') {
        Some((key, text)) => with(key, Wanted::In(vec![value(text.strip_prefix('=').unwrap_or(text))?])),
        None => with(text, Wanted::Present),
    }
}

fn with(key: &str, wanted: Wanted) -> Option<Requirement> {
    let (source, key) = match key.trim().split_once(':') {
        Some(("any", key)) => (None, key),
        Some((source, key)) => (Some(word(source).filter(|source| !source.is_empty())?), key),
        None => (None, key.trim()),
    };
    let is_named = !key.is_empty() && key.chars().all(|letter| is_of_word(letter) || letter == '/');
    is_named.then(|| Requirement { source, key: key.to_owned(), wanted })
}

fn value(text: &str) -> Option<String> {
    word(text.trim())
}

fn word(text: &str) -> Option<String> {
    text.chars().all(is_of_word).then(|| text.to_owned())
}

/// Whether the letter is allowed in keys and values.
fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.".contains(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_as_kubernetes_selects_them() {
        let labels =
            ["k8s:app=web", "k8s:tier=", "k8s:io.kubernetes.pod.namespace=shop", "reserved:host"].map(str::to_owned);
        for selected in [
            "app=web",
            "app == web",
            "k8s:app=web",
            "any:app=web",
            "app",
            "app in (db, web)",
            "app notin (db),tier=",
            "!canary",
            "canary!=yes",
            "app!=db,k8s:io.kubernetes.pod.namespace=shop",
            "reserved:host",
        ] {
            assert!(LabelSelector::parse(selected).unwrap().selects(&labels), "{selected}");
        }
        for other in
            ["app=db", "reserved:app=web", "canary", "!app", "app in (db)", "app notin (web)", "app!=web", "app=web,x"]
        {
            assert!(!LabelSelector::parse(other).unwrap().selects(&labels), "{other}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for wrong in [
            "",
            ",",
            "app=web,",
            "app in (a",
            "app in a)",
            "app>1",
            "a b",
            "=x",
            ":x",
            "app=(x)",
            "app in ((a))",
            "ä=b",
            "a=b=c",
        ] {
            assert!(LabelSelector::parse(wrong).is_err(), "{wrong}");
        }
    }
}
