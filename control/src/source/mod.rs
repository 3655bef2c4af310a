//! # Objects from files: YAML and JSON in, checked objects out
//!
//! **Purpose.** Reads any mix of files, directories and standard input (manifests, or what `kubectl get -o yaml|json`
//! prints) into [`Object`]s, and names file, line, object, field and remedy for everything it does not understand.
//!
//! **Not its purpose.** It asks no API server, and decides nothing about traffic: semantics begin at the cache.
//!
//! ```text
//!  paths --read--> text --parse--> documents, list items --decode--> kind
//!                   |                                                 |-- NetworkPolicy --policy--.
//!                   |                                                 |-- ClusterNetworkPolicy, ... --cluster_policy--+
//!                   |                                                 |-- Pod, Node, ... --cluster-+--> objects
//!                   |                                                 |-- Deployment, ... --template--planned--> pods, where they are asked for
//!                   |                                                 |-- Service, EndpointSlice --service, where they are asked for
//!                   |                                                 |-- other policies: an error |
//!                   |                                                 `-- any other: counted       |
//!                   `------------------------locate: lines of -----------------------> errors, warnings
//! ```
//!
//! **Invariant.** Nothing that is not understood widens what is allowed. In [`Strictness::Strict`] any fault refuses the
//! whole input. In [`Strictness::Lenient`] a fault stays with the object that has it, and something stands for this object
//! that allows no more than any object that could be meant:
//!
//! * A policy isolates its subjects in both directions and allows nothing; where they are not known, its whole namespace. One
//!   without a name is called after its place. One in a namespace that cannot exist concerns nobody and is left out.
//! * A rule of a cluster policy matches nothing if it accepts, and denies everything otherwise.
//! * A namespace keeps its name, is isolated if it has the annotation and that counts ([`Semantics::V1beta1`]), and of the peers
//!   that select namespaces only those select it that ask for nothing but the name.
//! * A pod keeps everything but its faulty ports. With any other fault it is nobody: its interface has no table, so nothing
//!   passes there, and no rule allows it anything by its labels. So are two pods of one name that differ.
//! * A node keeps its name and the addresses and blocks that can be read.
//! * A Service is left out, and an endpoint slice keeps the endpoints that can be read.
//! * An object that does not say its kind is a policy if it looks like one, and is left out otherwise.
//!
//! Only what hides which objects there are is refused in both modes: a file that cannot be read, that is neither YAML nor JSON, or
//! a list that has no items. So is a cluster policy without a readable tier, priority or subject, or one that is given twice with
//! differences, and one that denies by labels of namespaces or nodes that could not be read: nothing else would close what it may mean.
//!
//! A field of a policy's metadata that is not known is worth a warning in both modes, for versions of Kubernetes differ there and no
//! policy depends on it. What looks like a typo of `name` or `namespace` is a fault: the policy would be another one's.
//!
//! **Choices.** The structs are our own: those of `k8s-openapi` drop unknown fields, so the typo `ingres:` would silently
//! become a policy that denies everything, and a typo inside a peer one that allows everything. Text becomes an untyped
//! `serde_json::Value` first: parsing straight into a type turns `version: 1.10` into a string where `kubectl` refuses it.
//! Lists are decoded item by item while they are parsed, since the untyped tree of a large cluster is several times
//! as large as its text.
//!
//! A missing `metadata.namespace` is `default`. (`kubectl apply` would take the namespace of its context, which a file
//! does not tell.)

mod address;
mod cluster;
mod cluster_policy;
mod decode;
mod document;
mod enforcement;
mod error;
mod fallback;
mod foreign;
mod json;
mod kinds;
mod labels;
mod load;
mod locate;
mod metadata;
mod names;
mod options;
mod outcome;
mod owner;
mod parse;
mod path;
mod planned;
mod policy;
mod raw;
mod read;
mod service;
pub mod single;
mod template;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_beta;
#[cfg(test)]
mod tests_cluster;
#[cfg(test)]
mod tests_fallback;
#[cfg(test)]
mod tests_files;
#[cfg(test)]
mod tests_places;
#[cfg(test)]
mod tests_properties;
#[cfg(test)]
mod tests_services;
#[cfg(test)]
mod tests_templates;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use error::{MAX_SHOWN, SourceError, SourceErrors};
pub use options::{KindName, Options, Semantics, ServiceKinds, Strictness, Templates, Unenforced};

use crate::object::{Object, Position};

/// What the inputs held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The objects, in the order of the inputs.
    pub objects: Vec<Object>,
    /// How many objects of each other kind were passed over, by `apiVersion kind` (`apps/v1 Deployment`).
    pub skipped: BTreeMap<String, usize>,
    /// The same of kinds that restrict traffic and may be ignored.
    pub ignored: BTreeMap<String, usize>,
    /// What is accepted but deserves a look; in [`Strictness::Lenient`] also every fault that was survived.
    pub warnings: SourceErrors,
    /// How many files were read, standard input among them.
    pub files: usize,
    /// How many objects had a fault that was survived.
    pub faulty: usize,
    /// The first object of each kind that restricts traffic and is not enforced; only with [`Unenforced::Report`].
    pub unenforced: SourceErrors,
    /// Rules of NetworkPolicies that have no effect, because `policyTypes` does not list their direction; among the warnings as well.
    pub idle_rules: SourceErrors,
    /// Lists of NetworkPolicies' rules that are written and empty: they mean everybody, or every port. No warnings, for that may be meant.
    pub empty_lists: SourceErrors,
}

/// Reads the files, in the order given; of a directory those that end in `.yaml`, `.yml` or `.json`, sorted, with all
/// directories below. A file that is named itself is read whatever its name; `-` is standard input.
///
/// # Errors
/// Everything that is wrong with the input, the first [`MAX_SHOWN`] in full: files that cannot be read or parsed, objects
/// that are repeated, and in [`Strictness::Strict`] every faulty object; and kinds that restrict traffic and are not enforced,
/// unless [`Options`] say otherwise.
pub fn load(paths: &[PathBuf], options: impl Into<Options>) -> Result<Loaded, SourceErrors> {
    let mut loader = load::Loader::new(options.into());
    for path in paths {
        loader.read_path(path);
    }
    loader.finish()
}

/// Reads one text as if it were the contents of the file `file_name`.
///
/// # Errors
/// As [`load()`].
pub fn load_text(file_name: &str, text: &str, options: impl Into<Options>) -> Result<Loaded, SourceErrors> {
    let mut loader = load::Loader::new(options.into());
    loader.read_text(&file_name.into(), text.strip_prefix('\u{feff}').unwrap_or(text));
    loader.finish()
}

/// The line, from 1, of a field such as `spec.ingress[0]` of the object at `position`; of the nearest field around it where
/// the object does not write it. Reads the file again: [`lines_of`] finds many fields at once.
///
/// None when the file cannot be read any more (standard input never can) or no longer holds such an object.
pub fn line_of(position: &Position, sub_path: &str) -> Option<usize> {
    lines_of(&[(position, sub_path)]).pop().flatten()
}

/// The lines of many fields, in the same order, each as [`line_of`] tells it: each file is read and walked once.
pub fn lines_of(fields: &[(&Position, &str)]) -> Vec<Option<usize>> {
    let mut by_file: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, (position, _)) in fields.iter().enumerate().filter(|(_, (position, _))| &*position.file != read::STDIN) {
        by_file.entry(&position.file).or_default().push(at);
    }
    let mut lines = vec![None; fields.len()];
    for (file, places) in by_file {
        let Ok(text) = read::file_text(file.as_ref()) else { continue };
        let here: Vec<_> = places.iter().map(|&at| fields[at]).collect();
        for (at, line) in places.into_iter().zip(lines_in(&text, &here)) {
            lines[at] = line;
        }
    }
    lines
}

/// [`line_of`] in a text that is at hand.
pub fn line_in(text: &str, position: &Position, sub_path: &str) -> Option<usize> {
    lines_in(text, &[(position, sub_path)]).pop().flatten()
}

fn lines_in(text: &str, fields: &[(&Position, &str)]) -> Vec<Option<usize>> {
    let wanted = |(position, sub_path): &(&Position, &str)| {
        let path = path::FieldPath::parse(&position.path)?.join(&path::FieldPath::parse(sub_path)?);
        Some(locate::Wanted { document: position.document, path })
    };
    let wanted: Vec<Option<locate::Wanted>> = fields.iter().map(wanted).collect();
    let readable: Vec<locate::Wanted> = wanted.iter().flatten().cloned().collect();
    let mut lines = locate::lines(text, parse::syntax_of(text), &readable).into_iter();
    wanted.iter().map(|wanted| wanted.as_ref().and_then(|_| lines.next().flatten())).collect()
}

/// A block of addresses, or what is wrong with it and the remedy.
pub(crate) fn block(text: &str) -> Result<ipnet::IpNet, (String, String)> {
    address::parse_block(text).map(|(block, _)| block).map_err(|fault| (fault.text, fault.help))
}

/// A block of addresses, or the block of a single address, or what is wrong with it and the remedy.
///
/// # Errors
/// The two, when it is neither.
pub fn block_or_address(text: &str) -> Result<ipnet::IpNet, (String, String)> {
    if text.contains('/') { block(text) } else { address(text).map(ipnet::IpNet::from) }
}

/// An address, or what is wrong with it and the remedy.
pub(crate) fn address(text: &str) -> Result<std::net::IpAddr, (String, String)> {
    address::parse_address(text).map_err(|fault| (fault.text, fault.help))
}

/// The known word that the one given is a typo of.
pub fn nearest_word<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names::nearest(word, known)
}

/// The text with everything escaped that a terminal would obey.
pub fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    error::printable(text)
}
