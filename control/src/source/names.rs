//! Checks the syntax of names and labels. Source: Kubernetes "Object Names and IDs", "Labels and Selectors", and RFC 6335 §5.1 for port
//! names.

/// Maximum length of a DNS label (RFC 1035), a label value and a label name, in bytes.
const MAX_LABEL: usize = 63;
/// Maximum length of a DNS subdomain in Kubernetes (RFC 1123), in bytes.
const MAX_SUBDOMAIN: usize = 253;
/// Maximum length of a port name (RFC 6335), in bytes.
const MAX_PORT_NAME: usize = 15;

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether the first and last byte satisfy `edge`, and all other bytes satisfy `edge` or are in `inner`. False for an empty text.
fn is_word(text: &str, edge: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let edges = bytes.first().zip(bytes.last());
    edges.is_some_and(|(&first, &last)| edge(first) && edge(last))
        && bytes.iter().all(|&byte| edge(byte) || inner.contains(&byte))
}

/// Whether `text` is a DNS label, as a namespace's name must be.
pub(super) fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_word(text, is_lower_alphanumeric, b"-")
}

/// Whether `text` is a DNS subdomain, as the names of most objects must be. As in Kubernetes, its parts may exceed a DNS label's length.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(|part| is_word(part, is_lower_alphanumeric, b"-"))
}

/// Whether `text` is a label key: a name, optionally after a DNS subdomain and `/`.
pub(super) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether `text` is a label value.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= MAX_LABEL && is_word(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Whether `text` is a port name (`IANA_SVC_NAME`): with at least one letter and without two hyphens in a row.
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= MAX_PORT_NAME
        && is_word(text, is_lower_alphanumeric, b"-")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.contains("--")
}

/// Returns the entry of `known` that is most similar to `word`, or `None` if no entry is similar enough for a typo.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long words are not typos of field names, and computing the distance costs the product of the lengths.
    if word.len() > MAX_LABEL {
        return None;
    }
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&lower, &candidate.to_lowercase()), candidate))
        // A typo changes at most a third of the letters: `prot` matches `port`, `foo` does not match `from`.
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
