//! Options for reading objects.

use std::collections::BTreeSet;
use std::str::FromStr;

use ipnet::IpNet;

use super::foreign;
use crate::object::IngressIsolation;

/// The effect of a faulty object. Callers choose between refusing the input and isolating the fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Rejects the whole input if it contains a faulty object.
    #[default]
    Strict,
    /// Replaces a faulty object with a stand-in that allows no more, and adds a warning.
    Lenient,
}

/// The semantics of NetworkPolicies of `extensions/v1beta1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Semantics {
    /// The same as for `networking.k8s.io/v1`, as in API servers since Kubernetes 1.7. The namespaces' isolation annotation has no effect.
    #[default]
    V1,
    /// The semantics of 2016: the namespace's annotation isolates, policies only allow ingress, and an empty list allows nothing. Policies
    /// of `networking.k8s.io/v1` keep their meaning. Source: Kubernetes proposal "NetworkPolicy" (2016).
    V1beta1 {
        /// The isolation of namespaces whose annotation does not set it.
        default: IngressIsolation,
    },
}

impl Semantics {
    /// Returns the isolation of namespaces without an effective isolation annotation.
    pub fn default_isolation(self) -> IngressIsolation {
        match self {
            Self::V1 => IngressIsolation::ClusterDefault,
            Self::V1beta1 { default } => default,
        }
    }
}

/// The effect of an object whose kind restricts traffic and is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unenforced {
    /// Rejects the whole input if it contains such an object.
    #[default]
    Refuse,
    /// Adds the first object of each such kind to [`super::Loaded::unenforced`].
    Report,
}

/// Whether to read Services and endpoint slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceKinds {
    /// Skips them. No policy depends on them, so a fault in one must not refuse input about policy.
    #[default]
    Skip,
    /// Returns them with the other objects.
    Read,
}

/// Whether and for what to read policies of other products, with the objects that they refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignKinds {
    /// Skips them, and counts the policies among them in [`Loaded::foreign`](super::Loaded::foreign).
    #[default]
    Skip,
    /// Returns them as [`Object::Foreign`](crate::object::Object::Foreign), for answers.
    Read,
    /// Returns them, with every policy audited. A faulty object without a stand-in is left out, because it decides nothing.
    Audit,
    /// Returns them. A rule that allows traffic about which other conditions decide, such as HTTP rules, is a fault.
    Enforce,
}

/// Whether to add planned pods for workloads that have no pods in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Templates {
    /// Adds no pods. A vswitch must use this value, because planned pods have invented addresses.
    #[default]
    Skip,
    /// Adds pods made from the workloads' templates ([`Pod::planned`](crate::object::Pod::planned)), so that questions can be asked about
    /// manifests before they are applied. Their addresses are in these blocks, or in reserved blocks if the list is empty.
    Read(Vec<IpNet>),
}

/// What a directory's files may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folders {
    /// Every file that ends in `.yaml`, `.yml` or `.json` holds objects. A vswitch must use this value, because a file that it cannot read
    /// may hold a policy.
    #[default]
    OfObjects,
    /// Files may also be a repository's others, such as the values of a chart. They are passed over and listed in
    /// [`Loaded::passed_over`](super::Loaded::passed_over), unless they look like a policy.
    Mixed,
}

/// Options for reading objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The effect of a faulty object.
    pub strictness: Strictness,
    /// The semantics of `extensions/v1beta1` objects.
    pub semantics: Semantics,
    /// Kinds that restrict traffic and are skipped at the user's request.
    pub ignored: BTreeSet<KindName>,
    /// The effect of objects of all other kinds that restrict traffic and are not enforced.
    pub unenforced: Unenforced,
    /// Whether to read Services and endpoint slices.
    pub services: ServiceKinds,
    /// Whether and for what to read policies of other products.
    pub foreign: ForeignKinds,
    /// Whether to add planned pods made from workloads' templates, and in which blocks.
    pub templates: Templates,
    /// What a directory's files may be.
    pub folders: Folders,
}

impl Options {
    /// Whether the user has named the kind among [`Options::ignored`].
    pub(super) fn ignores(&self, api_version: &str, kind: &str) -> bool {
        self.ignored.iter().any(|name| name.is(foreign::group_of(api_version), kind))
    }
}

impl From<Strictness> for Options {
    fn from(strictness: Strictness) -> Self {
        Self { strictness, ..Self::default() }
    }
}

/// A kind as users write it: `CiliumNetworkPolicy`, or with its group `NetworkPolicy.projectcalico.org`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindName {
    kind: String,
    group: Option<String>,
}

impl KindName {
    /// Whether this name matches `kind` in `group`, ignoring case. A name without a group matches every group.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.kind.eq_ignore_ascii_case(kind) && self.group.as_ref().is_none_or(|own| own.eq_ignore_ascii_case(group))
    }
}

impl FromStr for KindName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, group) = match text.split_once('.') {
            Some((kind, group)) => (kind, Some(group)),
            None => (text, None),
        };
        if kind.is_empty() || group.is_some_and(str::is_empty) || text.contains(['/', ' ']) {
            return Err(format!(
                "`{text}` is not a kind; write CiliumNetworkPolicy, or NetworkPolicy.projectcalico.org"
            ));
        }
        match group {
            None if kind.eq_ignore_ascii_case(foreign::OWN_KIND) => {
                Err(format!("`{text}` alone is Kubernetes' own; add the group: NetworkPolicy.projectcalico.org"))
            }
            Some(group) if kind.eq_ignore_ascii_case(foreign::OWN_KIND) && foreign::is_own_group(group) => {
                Err(format!("`{text}` is enforced and cannot be ignored"))
            }
            _ => Ok(Self { kind: kind.to_owned(), group: group.map(str::to_owned) }),
        }
    }
}
