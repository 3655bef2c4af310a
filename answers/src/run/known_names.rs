//! The addresses of domain names, which a state does not have: from the file of `--names`, or as a journal's verdicts show them.
//!
//! Every pod counts as having resolved all these names: rules match these addresses instead of domain names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use bulkhead_classifier::NamePattern;
use bulkhead_control::object::{ClusterPolicy, IpBlock, Object, Peer, Region};
use bulkhead_control::source;
use serde::Deserialize;
use serde_saphyr::Spanned;

/// The addresses of each domain name. Names are in lower case without a final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNames(BTreeMap<String, Vec<IpAddr>>);

/// The part of the output of `bulkhead names -o json` that this module reads.
#[derive(Deserialize)]
struct Listed {
    /// The number of addresses, of which `names` may have only the first.
    matching: Option<usize>,
    names: Vec<Spanned<Row>>,
}

/// An element of `names`.
#[derive(Deserialize)]
struct Row {
    name: Option<String>,
    address: Option<String>,
}

/// What a file may have.
const HELP: &str = "write a line `www.example.com: [192.0.2.7, '2001:db8::7']` for each name, or give the output of `bulkhead names -o json`";

impl KnownNames {
    /// Reads a file of `--names`.
    ///
    /// # Errors
    /// If the file cannot be read or parsed. The error has the file, the line if known, and a remedy.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = path.display();
        let text =
            source::text_of_file(path).map_err(|(problem, help)| anyhow!("{file}: {problem}\n  help: {help}"))?;
        Self::parse(&file.to_string(), &text)
    }

    fn parse(file: &str, text: &str) -> anyhow::Result<Self> {
        if let Ok(listed) = serde_saphyr::from_str(text) {
            return Self::listed(file, &listed);
        }
        let mut known = Self::default();
        let names: BTreeMap<String, Vec<Spanned<String>>> = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map_or(String::new(), |at| format!(":{}", at.line()));
            anyhow!("{file}{line}: not a list of addresses by name\n  help: {HELP}")
        })?;
        for (name, addresses) in names {
            // Keys have no position in the parser's output.
            known.add(file, &name, &[])?;
            for text in addresses {
                known.add(&format!("{file}:{}", text.referenced.line()), &name, &[&text.value])?;
            }
        }
        Ok(known)
    }

    /// Reads the output of `bulkhead names -o json`.
    fn listed(file: &str, listed: &Listed) -> anyhow::Result<Self> {
        let mut known = Self::default();
        let (all, here) = (listed.matching.unwrap_or_default(), listed.names.len());
        if all > here {
            bail!(
                "{file}: has only {here} of {all} addresses\n  help: use the output of `bulkhead names -o json --limit {all}`"
            );
        }
        for row in &listed.names {
            let place = format!("{file}:{}", row.referenced.line());
            let field = |field: &'static str, value: &Option<String>| {
                value.clone().ok_or_else(|| anyhow!("{place}: an element of `names` has no `{field}`\n  help: {HELP}"))
            };
            let (name, address) = (field("name", &row.value.name)?, field("address", &row.value.address)?);
            known.add(&place, &name, &[&address])?;
        }
        Ok(known)
    }

    /// Adds addresses of a name. `place` is their file, and their line if known.
    fn add(&mut self, place: &str, name: &str, addresses: &[&str]) -> anyhow::Result<()> {
        if name.contains(['*', ':']) || name.parse::<NamePattern>().is_err() {
            bail!("{place}: `{name}` is not a domain name\n  help: {HELP}");
        }
        for text in addresses {
            let address = text.parse();
            self.insert(
                name,
                address.map_err(|_| anyhow!("{place}: `{text}` is not an address of {name}\n  help: {HELP}"))?,
            );
        }
        Ok(())
    }

    /// Adds an address of a name.
    pub fn insert(&mut self, name: &str, address: IpAddr) {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.0.entry(name).or_default().push(address);
    }

    /// Whether no name is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns an object with the domain names in its rules replaced by their addresses. Keeps patterns that match none of the names: they
    /// match no address.
    pub fn resolve(&self, object: Object) -> Object {
        match object {
            Object::ClusterPolicy(policy) => self.resolved(Arc::unwrap_or_clone(policy)).into(),
            other => other,
        }
    }

    fn resolved(&self, mut policy: ClusterPolicy) -> ClusterPolicy {
        for rule in &mut policy.egress {
            for peers in rule.traffic.peers.iter_mut() {
                let resolve = |peer: Peer| match peer {
                    Peer::Names(patterns) => self.peers(&patterns),
                    Peer::Region(region) => match region.names() {
                        Some((patterns, rest)) => self.regions(&patterns, &rest),
                        None => vec![Peer::Region(region)],
                    },
                    other => vec![other],
                };
                *peers = std::mem::take(peers).into_iter().flat_map(resolve).collect();
            }
        }
        policy
    }

    /// Returns the parts of the region in which the address has a known name, and in which it has one of the other patterns' names.
    fn regions(&self, patterns: &[Arc<str>], region: &Region) -> Vec<Peer> {
        let (unknown, known): (Vec<_>, Vec<_>) =
            self.peers(patterns).into_iter().partition(|peer| matches!(peer, Peer::Names(_)));
        let part = |union: Vec<Peer>| {
            let all = region.all.iter().cloned().chain([union]).collect();
            Peer::Region(Arc::new(Region { all, none: region.none.clone() }))
        };
        [known, unknown].into_iter().filter(|union| !union.is_empty()).map(part).collect()
    }

    /// Returns the addresses of all names that any of these patterns matches, each as a peer, and the patterns that match no name.
    fn peers(&self, patterns: &[Arc<str>]) -> Vec<Peer> {
        let (mut addresses, mut unknown) = (BTreeSet::new(), Vec::new());
        for text in patterns {
            let pattern: Option<NamePattern> = text.parse().ok();
            let mut named =
                self.0.iter().filter(|(name, _)| pattern.as_ref().is_some_and(|own| own.matches(name))).peekable();
            if named.peek().is_none() {
                unknown.push(text.clone());
            }
            addresses.extend(named.flat_map(|(_, addresses)| addresses));
        }
        let block = |&address: &IpAddr| Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() });
        let unknown = (!unknown.is_empty()).then(|| Peer::Names(unknown.into()));
        addresses.into_iter().map(block).chain(unknown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str, pattern: &str) -> Vec<String> {
        let blocks = KnownNames::parse("names.yaml", text).unwrap().peers(&[pattern.into()]);
        let address = |peer: Peer| match peer {
            Peer::Block(block) => block.cidr.addr().to_string(),
            Peer::Names(unknown) => format!("unknown {}", unknown.join(" ")),
            other => panic!("{other:?}"),
        };
        blocks.into_iter().map(address).collect()
    }

    #[test]
    fn a_mapping_and_the_output_of_a_vswitch_are_read() {
        let mapping = "WWW.example.com.: [192.0.2.7, '2001:db8::7']\na.example.org: [192.0.2.8]\n";
        assert_eq!(addresses(mapping, "www.example.com"), ["192.0.2.7", "2001:db8::7"]);
        assert_eq!(addresses(mapping, "*.example.org"), ["192.0.2.8"]);
        assert_eq!(addresses(mapping, "other.example.org"), ["unknown other.example.org"]);
        let listed = r#"{"node": "n", "pods": 1, "names": [{"pod": "x/a", "name": "www.example.com", "address": "192.0.2.9", "seconds": 7}]}"#;
        assert_eq!(addresses(listed, "*.example.com"), ["192.0.2.9"]);
    }

    #[test]
    fn faults_name_file_line_and_remedy() {
        for (text, begin) in [
            (
                "www.example.com: [192.0.2.7]\nb.example.com: [192.0.2.7, x]\n",
                "names.yaml:2: `x` is not an address of b.example.com",
            ),
            ("'*.example.com': [192.0.2.7]\n", "names.yaml: `*.example.com` is not a domain name"),
            ("www.example.com: 192.0.2.7\n", "names.yaml"),
            ("- www.example.com\n", "names.yaml"),
            (
                "{\"names\": [\n{\"name\": \"a.example.com\", \"address\": \"here\"}]}",
                "names.yaml:2: `here` is not an address of a.example.com",
            ),
            ("{\"names\": [\n{\"name\": \"a.example.com\"}]}", "names.yaml:2: an element of `names` has no `address`"),
            (
                "{\"names\": [\n{\"name\": \"a\", \"address\": \"192.0.2.7\"}]}",
                "names.yaml:2: `a` is not a domain name",
            ),
        ] {
            let error = KnownNames::parse("names.yaml", text).unwrap_err().to_string();
            assert!(error.starts_with(begin) && error.contains("help: write a line"), "{error}");
        }
        let some = r#"{"matching": 9, "names": [{"pod": "x/a", "name": "www.example.com", "address": "192.0.2.9", "seconds": 7}]}"#;
        let error = KnownNames::parse("names.json", some).unwrap_err().to_string();
        assert!(error.starts_with("names.json: has only 1 of 9 addresses\n") && error.contains("--limit 9"), "{error}");
    }
}
