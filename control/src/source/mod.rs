//! # Objects from files: YAML and JSON in, checked objects out
//!
//! **Purpose.** Reads files, directories and standard input (manifests, or the output of `kubectl get -o yaml|json`) into [`Object`]s. Each
//! error names file, line, object, field and remedy.
//!
//! **Not its purpose.** Connections to an API server, and decisions about traffic: the cache gives objects their meaning.
//!
//! ```text
//!  paths --read--> text --parse--> documents, list items --decode--> kind
//!                   |                                                 |-- NetworkPolicy --policy--.
//!                   |                                                 |-- ClusterNetworkPolicy, ... --cluster_policy--+
//!                   |                                                 |-- Pod, Node, ... --cluster-+--> objects
//!                   |                                                 |-- Deployment, ... --template--planned--> pods (`Templates::Read`)
//!                   |                                                 |-- Service, EndpointSlice --service (`ServiceKinds::Read`)
//!                   |                                                 |-- Calico's, Cilium's, ServiceAccount (`ForeignKinds::Read`)
//!                   |                                                 |-- other policies: an error |
//!                   |                                                 `-- any other: counted       |
//!                   `------------------------locate: lines of -----------------------> errors, warnings
//! ```
//!
//! **Invariant.** Input that cannot be parsed never widens what is allowed. In [`Strictness::Strict`] any fault refuses the whole input. In
//! [`Strictness::Lenient`] only the faulty object is affected. A stand-in replaces it, which allows no more than any possible meaning:
//!
//! * A policy isolates its subjects in both directions and allows nothing. If its subject is unreadable, it isolates its whole namespace.
//!   If its name is unreadable, the policy is named after its position. If its namespace is invalid, it is left out: no pod can be there.
//! * A rule of a cluster policy matches nothing if it accepts, and denies everything otherwise.
//! * A namespace keeps its name. It is isolated if it has the isolation annotation and [`Semantics::V1beta1`] applies. A peer's selector
//!   matches it only if the selector refers to nothing but the name.
//! * A pod keeps everything but its faulty ports. With any other fault the pod is left out: its interface gets no table, so it passes no
//!   traffic, and no rule allows anything to it by its labels. The same applies to two pods with one name that differ.
//! * A node keeps its name and its readable addresses and blocks.
//! * A Service is left out. An endpoint slice keeps its readable endpoints.
//! * An object without a kind is read as a policy if it looks like one, and left out otherwise.
//!
//! Both modes refuse input that hides objects: a file that is unreadable or neither YAML nor JSON, and a list without `items`. Both also
//! refuse cluster policies and policies of other products that no stand-in can replace: one without a readable tier, priority or subject, one that is given twice with
//! differences, and one that denies by labels or addresses of a namespace, pod or node that could not be read.
//!
//! An unknown field in a policy's metadata is a warning in both modes: Kubernetes versions differ there, and no policy depends on it. A
//! probable typo of `name` or `namespace` is a fault, because the policy would apply to other pods.
//!
//! **Choices.** We define our own structs, because those of `k8s-openapi` drop unknown fields. The typo `ingres:` would silently make a
//! policy deny everything, and a typo inside a peer would make it allow everything. Text becomes an untyped `serde_json::Value` first:
//! parsing straight into a type accepts `version: 1.10` as a string, which `kubectl` refuses. List items are decoded while they are parsed,
//! since the untyped tree of a large cluster is several times as large as its text.
//!
//! A missing `metadata.namespace` means `default`. (`kubectl apply` would use the namespace of its context, which a file does not name.)

mod address;
mod calico;
mod cilium;
mod cluster;
mod cluster_policy;
mod custom;
mod decode;
mod document;
mod enforcement;
mod error;
mod fallback;
mod foreign;
mod foreign_policies;
mod json;
mod kinds;
mod labels;
mod load;
mod locate;
mod metadata;
mod names;
mod nearby;
mod options;
mod outcome;
mod owner;
mod parse;
mod path;
mod pieces;
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
mod tests_notation;
#[cfg(test)]
mod tests_places;
#[cfg(test)]
mod tests_properties;
#[cfg(test)]
mod tests_services;
#[cfg(test)]
mod tests_templates;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use custom::CustomResource;
pub use error::{MAX_SHOWN, SourceError, SourceErrors};
pub use options::{
    Folders, ForeignKinds, KindName, Options, Semantics, ServiceKinds, Strictness, Templates, Unenforced,
};

use crate::object::{Object, Position, Transport};

/// The objects of all inputs, with counts and warnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The objects, in the order of the inputs.
    pub objects: Vec<Object>,
    /// Number of skipped objects per kind that is unsupported or not selected by [`Options`]. The key is `apiVersion kind`, such as
    /// `apps/v1 Deployment`.
    pub skipped: BTreeMap<String, usize>,
    /// Number of skipped objects per kind in [`Options::ignored`], with the same keys. These kinds restrict traffic.
    pub ignored: BTreeMap<String, usize>,
    /// Number of policies of other products that [`ForeignKinds::Skip`] skipped, per kind, with the same keys.
    pub foreign: BTreeMap<String, usize>,
    /// The skipped custom resources whose operators may make pods. Empty unless [`Templates::Read`] is set.
    pub custom: Vec<CustomResource>,
    /// The ports that containers of pods and of pod templates declare. Empty unless [`Templates::Read`] is set.
    pub declared_ports: BTreeSet<(u16, Transport)>,
    /// Warnings about accepted input. In [`Strictness::Lenient`] also every fault, since none refuses the input.
    pub warnings: SourceErrors,
    /// Number of files read, including standard input.
    pub files: usize,
    /// Files of directories that hold no object. Empty unless [`Folders::Mixed`] is set.
    pub passed_over: Vec<Arc<str>>,
    /// Number of objects with a fault. Greater than 0 only in [`Strictness::Lenient`].
    pub faulty: usize,
    /// The first object of each kind that restricts traffic and is not enforced. Empty unless [`Unenforced::Report`] is set.
    pub unenforced: SourceErrors,
    /// Rules of NetworkPolicies without effect, because `policyTypes` does not list their direction. `warnings` contains them too.
    pub idle_rules: SourceErrors,
    /// Empty lists in NetworkPolicies' rules, which allow every peer or every port. `warnings` does not contain them: that may be intended.
    pub empty_lists: SourceErrors,
}

/// Reads the files in the given order. From a directory, reads the files that end in `.yaml`, `.yml` or `.json`, also with `.gz`, sorted and
/// recursively. A file that `paths` names may have any name; `-` is standard input. Text is UTF-8, or UTF-16 with a byte order mark; it may
/// be compressed by gzip.
///
/// # Errors
/// All faults of the input, the first [`MAX_SHOWN`] in full: files that cannot be read or parsed, objects that are given twice, and in
/// [`Strictness::Strict`] every faulty object. Kinds that restrict traffic and are not enforced are also errors, unless [`Options`] permits
/// them.
pub fn load(paths: &[PathBuf], options: impl Into<Options>) -> Result<Loaded, SourceErrors> {
    let mut loader = load::Loader::new(options.into());
    for path in paths {
        loader.read_path(path);
    }
    loader.finish()
}

/// Reads `text` as the contents of the file `file_name`, which messages name.
///
/// # Errors
/// The same as for [`load()`].
pub fn load_text(file_name: &str, text: &str, options: impl Into<Options>) -> Result<Loaded, SourceErrors> {
    let mut loader = load::Loader::new(options.into());
    loader.read_text(&file_name.into(), text.strip_prefix('\u{feff}').unwrap_or(text));
    loader.finish()
}

/// Opens a file or a named pipe for reading.
///
/// # Errors
/// The problem and its remedy, if the path is a device or cannot be opened.
pub fn open(path: &Path) -> Result<File, (String, String)> {
    read::open(path).map_err(|fault| (fault.problem, fault.help))
}

/// Returns the text of a file without a byte order mark. The file may be UTF-8, or UTF-16 with its mark, and compressed by gzip.
///
/// # Errors
/// The problem and its remedy, if the file is a device, cannot be read, is larger than 4 GiB, or is no text.
pub fn text_of_file(path: &Path) -> Result<String, (String, String)> {
    read::file_text(path).map_err(|fault| (fault.problem, fault.help))
}

/// Returns the line, from 1, of a field such as `spec.ingress[0]` of the object at `position`. If the object does not contain the field,
/// returns the line of the nearest enclosing field. Reads the file again up to the object; use [`lines_of`] for several fields.
///
/// `None` if the file cannot be read again (standard input never can) or no longer contains the object.
pub fn line_of(position: &Position, sub_path: &str) -> Option<usize> {
    lines_of(&[(position, sub_path)]).pop().flatten()
}

/// Returns the lines of several fields, in the same order and each as for [`line_of`].
pub fn lines_of(fields: &[(&Position, &str)]) -> Vec<Option<usize>> {
    let mut by_file: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, (position, _)) in fields.iter().enumerate().filter(|(_, (position, _))| &*position.file != read::STDIN) {
        by_file.entry(&position.file).or_default().push(at);
    }
    let mut lines = vec![None; fields.len()];
    for (file, places) in by_file {
        let here: Vec<_> = places.iter().map(|&at| fields[at]).collect();
        let found = nearby::in_file(file.as_ref(), &here);
        places.into_iter().zip(found).for_each(|(at, line)| lines[at] = line);
    }
    lines
}

/// Like [`line_of`], but searches `text` instead of reading the file.
pub fn line_in(text: &str, position: &Position, sub_path: &str) -> Option<usize> {
    nearby::in_text(text, &[(position, sub_path)]).pop().flatten()
}

/// Parses a block of addresses. The error is the problem and its remedy.
pub(crate) fn block(text: &str) -> Result<ipnet::IpNet, (String, String)> {
    address::parse_block(text).map(|(block, _)| block).map_err(|fault| (fault.text, fault.help))
}

/// Parses a block of addresses, or a single address as a block of full length.
///
/// # Errors
/// The problem and its remedy, if `text` is neither.
pub fn block_or_address(text: &str) -> Result<ipnet::IpNet, (String, String)> {
    if text.contains('/') { block(text) } else { address(text).map(ipnet::IpNet::from) }
}

/// Parses an address. The error is the problem and its remedy.
pub(crate) fn address(text: &str) -> Result<std::net::IpAddr, (String, String)> {
    address::parse_address(text).map_err(|fault| (fault.text, fault.help))
}

/// Returns the entry of `known` that `word` is probably a typo of. `None` if no entry is similar enough.
pub fn nearest_word<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names::nearest(word, known)
}

/// Escapes control and formatting characters that a terminal would interpret.
pub fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    error::printable(text)
}
