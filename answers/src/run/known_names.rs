//! `--names`: a file with the addresses of domain names, which a state does not have.
//!
//! Every pod counts as having resolved all names of the file: rules match these addresses instead of domain names.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use bulkhead_classifier::NamePattern;
use bulkhead_control::object::{ClusterPolicy, IpBlock, Object, Peer};
use bulkhead_control::source;
use serde::Deserialize;
use serde_saphyr::Spanned;

/// The addresses of each domain name. Names are in lower case without a final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownNames(BTreeMap<String, Vec<IpAddr>>);

/// The part of the output of `bulkhead names -o json` that this module reads.
#[derive(Deserialize)]
struct Listed {
    names: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    address: IpAddr,
}

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
        const HELP: &str = "write a line `www.example.com: [192.0.2.7, '2001:db8::7']` for each name, or give the output of \
                            `bulkhead names -o json`";
        let mut known = Self::default();
        if let Ok(Listed { names }) = serde_saphyr::from_str(text) {
            names.iter().for_each(|Row { name, address }| known.insert(name, *address));
            return Ok(known);
        }
        let names: BTreeMap<String, Vec<Spanned<String>>> = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.location().map_or(String::new(), |at| format!(":{}", at.line()));
            anyhow!("{file}{line}: not a list of addresses by name\n  help: {HELP}")
        })?;
        for (name, addresses) in names {
            if name.starts_with('*') || name.parse::<NamePattern>().is_err() {
                bail!("{file}: `{name}` is not a domain name\n  help: {HELP}");
            }
            for text in addresses {
                let line = text.referenced.line();
                let address = text.value.parse().map_err(|_| {
                    anyhow!("{file}:{line}: `{}` is not an address of {name}\n  help: {HELP}", text.value)
                })?;
                known.insert(&name, address);
            }
        }
        Ok(known)
    }

    fn insert(&mut self, name: &str, address: IpAddr) {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.0.entry(name).or_default().push(address);
    }

    /// Returns an object with the domain names in its rules replaced by their addresses. Names that are not in the file match nothing.
    pub(super) fn resolve(&self, object: Object) -> Object {
        match object {
            Object::ClusterPolicy(policy) => Object::ClusterPolicy(self.resolved(policy)),
            other => other,
        }
    }

    fn resolved(&self, mut policy: ClusterPolicy) -> ClusterPolicy {
        for rule in &mut policy.egress {
            for peers in rule.traffic.peers.iter_mut() {
                let resolve = |peer: Peer| match peer {
                    Peer::Names(names) => self.blocks(&names),
                    other => vec![other],
                };
                *peers = std::mem::take(peers).into_iter().flat_map(resolve).collect();
            }
        }
        policy
    }

    /// Returns the addresses of all names of the file that any of these patterns matches, each as a peer.
    fn blocks(&self, patterns: &[Arc<str>]) -> Vec<Peer> {
        let patterns: Vec<NamePattern> = patterns.iter().filter_map(|pattern| pattern.parse().ok()).collect();
        let named = self.0.iter().filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)));
        let block = |&address: &IpAddr| Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() });
        named.flat_map(|(_, addresses)| addresses.iter().map(block)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str, pattern: &str) -> Vec<String> {
        let blocks = KnownNames::parse("names.yaml", text).unwrap().blocks(&[pattern.into()]);
        let address = |peer: Peer| match peer {
            Peer::Block(block) => block.cidr.addr().to_string(),
            other => panic!("{other:?}"),
        };
        blocks.into_iter().map(address).collect()
    }

    #[test]
    fn a_mapping_and_the_output_of_a_vswitch_are_read() {
        let mapping = "WWW.example.com.: [192.0.2.7, '2001:db8::7']\na.example.org: [192.0.2.8]\n";
        assert_eq!(addresses(mapping, "www.example.com"), ["192.0.2.7", "2001:db8::7"]);
        assert_eq!(addresses(mapping, "*.example.org"), ["192.0.2.8"]);
        assert!(addresses(mapping, "other.example.org").is_empty());
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
        ] {
            let error = KnownNames::parse("names.yaml", text).unwrap_err().to_string();
            assert!(error.starts_with(begin) && error.contains("help: write a line"), "{error}");
        }
    }
}
