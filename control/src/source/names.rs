//! The syntax of names and labels. Source: Kubernetes "Object Names and IDs", "Labels and Selectors", and RFC 6335 §5.1
//! for port names.

/// The longest DNS label, label value and label name (RFC 1035).
const MAX_LABEL: usize = 63;
/// The longest DNS subdomain that Kubernetes takes (RFC 1123).
const MAX_SUBDOMAIN: usize = 253;
/// The longest service name (RFC 6335).
const MAX_PORT_NAME: usize = 15;

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Bytes of which the first and last satisfy `edge` and all the others `edge` or `inner`.
fn is_word(text: &str, edge: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let edges = bytes.first().zip(bytes.last());
    edges.is_some_and(|(&first, &last)| edge(first) && edge(last))
        && bytes.iter().all(|&byte| edge(byte) || inner.contains(&byte))
}

/// A namespace's name: a DNS label.
pub(super) fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_word(text, is_lower_alphanumeric, b"-")
}

/// The name of most objects: a DNS subdomain. As in Kubernetes its parts may be longer than a DNS label.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(|part| is_word(part, is_lower_alphanumeric, b"-"))
}

/// A label key: a name, and a DNS subdomain and `/` before it or not.
pub(super) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// A label value.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= MAX_LABEL && is_word(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// A port's name (`IANA_SVC_NAME`): at least one letter, and no two hyphens in a row.
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= MAX_PORT_NAME
        && is_word(text, is_lower_alphanumeric, b"-")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.contains("--")
}

/// The known word that is most like the one given, when it is like it enough to be a typo of it.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long words are no typos of field names, and the distance costs the product of the lengths.
    if word.len() > MAX_LABEL {
        return None;
    }
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&lower, &candidate.to_lowercase()), candidate))
        // Up to a third of the letters may differ: `prot` is still `port`, `foo` is not `from`.
        .filter(|&(distance, candidate)| distance * 3 <= candidate.len().max(word.len()))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_syntax_of_kubernetes() {
        let long = "a".repeat(64);
        for (check, good, bad) in [
            (
                is_dns_label as fn(&str) -> bool,
                vec!["a", "a-b", "0a", &long[..63]],
                vec!["", "-a", "a-", "A", "a.b", "a_b", &long],
            ),
            (is_dns_subdomain, vec!["a", "a.b-c", &long], vec!["", "a..b", ".a", "a/b", "A"]),
            (
                is_label_key,
                vec!["a", "A_b.c", "x.y/a", &long[..63]],
                vec!["", "/a", "x/", "x/y/z", "X/a", "a b", &long, "-a"],
            ),
            (is_label_value, vec!["", "a", "A_b.c-d", "1"], vec!["-a", "a-", "a b", "a/b", &long, "\u{e9}"]),
            (is_port_name, vec!["http", "a", "p-1", "123456789012345"][..3].to_vec(), vec!["", "80", "a--b", "-a"]),
        ] {
            for text in good {
                assert!(check(text), "{text:?}");
            }
            for text in bad {
                assert!(!check(text), "{text:?}");
            }
        }
        assert!(!is_port_name("sixteen-letters-"));
        assert!(is_port_name("fifteen-letters"));
    }

    #[test]
    fn a_typo_finds_its_word_and_a_stranger_does_not() {
        assert_eq!(nearest("ingres", ["egress", "ingress"]), Some("ingress"));
        assert_eq!(nearest("matchLables", ["matchLabels", "matchExpressions"]), Some("matchLabels"));
        assert_eq!(nearest("in", ["In", "NotIn"]), Some("In"));
        assert_eq!(nearest("colour", ["ports", "from"]), None);
    }
}
