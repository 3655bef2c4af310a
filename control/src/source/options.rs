//! How objects are read.

use std::collections::BTreeSet;
use std::str::FromStr;

use ipnet::IpNet;

use super::foreign;
use crate::object::IngressIsolation;

/// What a faulty object does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// It refuses the whole input.
    #[default]
    Strict,
    /// It alone fails closed, with a warning.
    Lenient,
}

/// What NetworkPolicies of `extensions/v1beta1` mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Semantics {
    /// The same as those of `networking.k8s.io/v1`, as servers since Kubernetes 1.7 have it. The annotation of namespaces means
    /// nothing.
    #[default]
    V1,
    /// What they meant in 2016: the annotation of the namespace isolates, policies only allow ingress, and an empty list allows
    /// nothing. Policies of `networking.k8s.io/v1` mean what they mean.
    /// Source: Kubernetes proposal "NetworkPolicy" (2016).
    V1beta1 {
        /// What namespaces do whose annotation does not say.
        default: IngressIsolation,
    },
}

impl Semantics {
    /// What namespaces do that do not say.
    pub fn default_isolation(self) -> IngressIsolation {
        match self {
            Self::V1 => IngressIsolation::ClusterDefault,
            Self::V1beta1 { default } => default,
        }
    }
}

/// What objects do that restrict traffic and are of a kind that is not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unenforced {
    /// They refuse the whole input.
    #[default]
    Refuse,
    /// They are told in [`super::Loaded::unenforced`].
    Report,
}

/// Whether Services and endpoint slices are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceKinds {
    /// They are passed over: no policy depends on them, so that no fault of one refuses an input that is about policy.
    #[default]
    Skip,
    /// They are among the objects.
    Read,
}

/// Whether workloads count that have no pods in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Templates {
    /// Only pods do. A vswitch must know no others: nobody has their addresses.
    #[default]
    Skip,
    /// Pods that workloads' templates make stand for them ([`Pod::planned`](crate::object::Pod::planned)), so that what was never
    /// applied can be asked about. Their addresses are of these blocks; without any, of blocks that are nobody's.
    Read(Vec<IpNet>),
}

/// How objects are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What a faulty object does.
    pub strictness: Strictness,
    /// What `extensions/v1beta1` means.
    pub semantics: Semantics,
    /// Kinds that restrict traffic and may be passed over.
    pub ignored: BTreeSet<KindName>,
    /// What other such kinds do.
    pub unenforced: Unenforced,
    /// Whether Services are read.
    pub services: ServiceKinds,
    /// Whether pods are made from workloads' templates.
    pub templates: Templates,
}

impl From<Strictness> for Options {
    fn from(strictness: Strictness) -> Self {
        Self { strictness, ..Self::default() }
    }
}

/// A kind as users name it: `CiliumNetworkPolicy`, or with its group `NetworkPolicy.projectcalico.org`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindName {
    kind: String,
    group: Option<String>,
}

impl KindName {
    /// Whether it names this kind of this group.
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
            return Err(format!("`{text}` is no kind; write CiliumNetworkPolicy, or NetworkPolicy.projectcalico.org"));
        }
        match group {
            None if kind.eq_ignore_ascii_case(foreign::OWN_KIND) => {
                Err(format!("`{text}` alone is Kubernetes' own; write whose it is: NetworkPolicy.projectcalico.org"))
            }
            Some(group) if kind.eq_ignore_ascii_case(foreign::OWN_KIND) && foreign::is_own_group(group) => {
                Err(format!("`{text}` is enforced and cannot be passed over"))
            }
            _ => Ok(Self { kind: kind.to_owned(), group: group.map(str::to_owned) }),
        }
    }
}
