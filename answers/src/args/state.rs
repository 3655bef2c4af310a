//! The arguments that name a state and say how to read its objects.

use std::path::PathBuf;

use bulkhead_control::object::{Enforcement, IngressIsolation};
use bulkhead_control::source::{Folders, ForeignKinds, KindName, Options, Semantics, Strictness};
use clap::ValueEnum;
use serde::Deserialize;

/// The arguments that name a state and say how to read its objects.
#[derive(Clone, Debug, clap::Args)]
pub struct State {
    /// Files or folders of Kubernetes objects (YAML, JSON, output of `kubectl get -o yaml|json`), or a file from `bulkhead bundle`; `-` for
    /// standard input
    #[arg(long = "state", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Continue if an object cannot be parsed, as `run` does: such a policy isolates its pods and allows nothing, such a pod matches no
    /// selector. If omitted, this is an error. A file that is neither YAML nor JSON is always an error
    #[arg(long)]
    pub lenient: bool,
    /// Refuse a folder that also holds files without a Kubernetes object, such as the values of a chart. If omitted, such files are passed
    /// over and named. A file that looks like a policy is always an error
    #[arg(long, conflicts_with = "lenient")]
    pub strict: bool,
    /// Meaning of extensions/v1beta1 NetworkPolicies. v1: the same as networking.k8s.io/v1, as in Kubernetes since 1.7. v1beta1: the
    /// meaning of 2016, where a namespace annotation isolates, policies only allow ingress, and an empty list allows nothing. Default: the
    /// bundle's, else v1
    #[arg(long, value_enum, value_name = "VERSION")]
    pub policy_semantics: Option<PolicySemantics>,
    /// With --policy-semantics v1beta1: ingress default of namespaces without an annotation. Default: the bundle's, else open
    #[arg(long, value_enum, value_name = "ISOLATION")]
    pub namespace_default: Option<NamespaceDefault>,
    /// Continue if the state has objects of this kind, which restrict traffic but are not enforced, such as CiliumNetworkPolicy or
    /// NetworkPolicy.projectcalico.org. If omitted, they are an error. May be repeated
    #[arg(long, value_name = "KIND")]
    pub ignore: Vec<KindName>,
    /// Enforcement of policies without a bulkhead.dev/enforcement annotation of their own or of their namespace, like `enforcement` in the
    /// configuration of `run`. Default: the bundle's, else enforce. Audited policies deny nothing (docs/audit.md)
    #[arg(long, value_enum, value_name = "ENFORCEMENT")]
    pub enforcement: Option<EnforcementName>,
    /// Addresses of the domain names in policies, as if every pod had resolved them: a YAML mapping of names to lists of addresses, or the
    /// output of `bulkhead names -o json`. If omitted, rules that name domains allow nothing (docs/names.md)
    #[arg(long, value_name = "FILE")]
    pub names: Option<PathBuf>,
}

/// Enforcement of policies without an annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementName {
    /// Policies deny traffic.
    #[default]
    Enforce,
    /// Policies are audited: connections that they would deny pass and are counted.
    Audit,
}

impl From<EnforcementName> for Enforcement {
    fn from(name: EnforcementName) -> Self {
        match name {
            EnforcementName::Enforce => Self::Enforce,
            EnforcementName::Audit => Self::Audit,
        }
    }
}

impl State {
    /// Returns whether faults of objects, and rules that exceed a table's limits, are errors or warnings.
    pub const fn strictness(&self) -> Strictness {
        if self.lenient { Strictness::Lenient } else { Strictness::Strict }
    }

    /// Returns the options that the command line gives, without those of a bundle.
    ///
    /// # Errors
    /// If two arguments contradict each other.
    pub fn options(&self) -> anyhow::Result<Options> {
        let (version, default) =
            (self.policy_semantics.unwrap_or_default(), self.namespace_default.unwrap_or_default());
        let semantics = semantics(version, default).ok_or_else(|| {
            anyhow::anyhow!(
                "--namespace-default default-deny has no effect\n  help: only with --policy-semantics v1beta1 do namespaces isolate"
            )
        })?;
        let ignored = self.ignore.iter().cloned().collect();
        let folders = if self.strict { Folders::OfObjects } else { Folders::Mixed };
        let foreign = ForeignKinds::Read;
        Ok(Options { strictness: self.strictness(), semantics, ignored, folders, foreign, ..Options::default() })
    }
}

/// Returns the meaning of `extensions/v1beta1`. `None` if the namespace default would have no effect.
pub fn semantics(version: PolicySemantics, default: NamespaceDefault) -> Option<Semantics> {
    match (version, default) {
        (PolicySemantics::V1, NamespaceDefault::Open) => Some(Semantics::V1),
        (PolicySemantics::V1, NamespaceDefault::DefaultDeny) => None,
        (PolicySemantics::V1beta1, NamespaceDefault::Open) => {
            Some(Semantics::V1beta1 { default: IngressIsolation::ClusterDefault })
        }
        (PolicySemantics::V1beta1, NamespaceDefault::DefaultDeny) => {
            Some(Semantics::V1beta1 { default: IngressIsolation::DefaultDeny })
        }
    }
}

/// Meaning of `extensions/v1beta1` NetworkPolicies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicySemantics {
    /// The same as `networking.k8s.io/v1`.
    #[default]
    V1,
    /// The meaning of 2016: a namespace annotation isolates, policies only allow ingress.
    V1beta1,
}

/// Ingress default of namespaces without an annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceDefault {
    /// Pods are open unless a policy isolates them.
    #[default]
    Open,
    /// Pods accept only what a policy allows.
    DefaultDeny,
}

/// Splits paths into states and captures by file extension. Clap assigns captures after an option with several values to that option.
pub fn without_captures(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_capture = |path: &PathBuf| {
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| ["pcap", "pcapng", "cap"].contains(&end))
    };
    paths.iter().cloned().partition(|path| !is_capture(path))
}
