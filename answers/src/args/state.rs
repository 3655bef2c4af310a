//! Where a state comes from, and how its objects are read.

use std::path::PathBuf;

use bulkhead_control::object::{Enforcement, IngressIsolation};
use bulkhead_control::source::{KindName, Options, Semantics, Strictness};
use clap::ValueEnum;
use serde::Deserialize;

/// Where the cluster's state comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct State {
    /// Files or folders of Kubernetes objects: YAML, JSON, or what `kubectl get -o yaml|json` printed; `-` for standard input; or what
    /// `bulkhead bundle` has written
    #[arg(long = "state", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Go on when an object is not understood, as `run` does: such a policy then isolates its pods and allows nothing, such a
    /// pod is nobody. Without this it is an error. A file that is not YAML or JSON is refused all the same
    #[arg(long)]
    pub lenient: bool,
    /// What NetworkPolicies of extensions/v1beta1 mean: the same as those of networking.k8s.io/v1, as servers since Kubernetes 1.7 have
    /// it, or what they meant in 2016: the annotation of the namespace isolates, policies only allow ingress, an empty list nothing. v1 unless
    /// a bundle says otherwise
    #[arg(long, value_enum, value_name = "VERSION")]
    pub policy_semantics: Option<PolicySemantics>,
    /// With --policy-semantics v1beta1, what a namespace does with ingress when its annotation does not say: open unless a bundle says otherwise
    #[arg(long, value_enum, value_name = "ISOLATION")]
    pub namespace_default: Option<NamespaceDefault>,
    /// Go on though objects of this kind restrict traffic and are not enforced, such as CiliumNetworkPolicy or
    /// NetworkPolicy.projectcalico.org; without this they are an error. May be repeated
    #[arg(long, value_name = "KIND")]
    pub ignore: Vec<KindName>,
    /// Whether policies are enforced that do not say, nor their namespaces (bulkhead.dev/enforcement): as `enforcement` in the configuration
    /// of `run`; enforce unless a bundle says otherwise. Audited policies deny nothing (docs/audit.md)
    #[arg(long, value_enum, value_name = "ENFORCEMENT")]
    pub enforcement: Option<EnforcementName>,
}

/// Whether policies are enforced that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementName {
    /// They are.
    #[default]
    Enforce,
    /// They are audited: what they would deny passes, and is counted.
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
    /// How the objects are read, by the command line alone.
    ///
    /// # Errors
    /// When two arguments contradict each other.
    pub fn options(&self) -> anyhow::Result<Options> {
        let (version, default) =
            (self.policy_semantics.unwrap_or_default(), self.namespace_default.unwrap_or_default());
        let semantics = semantics(version, default).ok_or_else(|| {
            anyhow::anyhow!(
                "--namespace-default default-deny has no effect\n  help: only with --policy-semantics v1beta1 do namespaces isolate"
            )
        })?;
        let strictness = if self.lenient { Strictness::Lenient } else { Strictness::Strict };
        let ignored = self.ignore.iter().cloned().collect();
        Ok(Options { strictness, semantics, ignored, ..Options::default() })
    }
}

/// What `extensions/v1beta1` means; none where the default for namespaces would have no effect.
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

/// What NetworkPolicies of `extensions/v1beta1` mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicySemantics {
    /// The same as those of `networking.k8s.io/v1`.
    #[default]
    V1,
    /// What they meant in 2016.
    V1beta1,
}

/// What namespaces do that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceDefault {
    /// Their pods are open unless a policy isolates them.
    #[default]
    Open,
    /// Nothing comes in but what a policy allows.
    DefaultDeny,
}

/// Paths of states and of captures, told by the ends of their names: an option that takes several paths takes the captures behind them as
/// well.
pub fn without_captures(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_capture = |path: &PathBuf| {
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| ["pcap", "pcapng", "cap"].contains(&end))
    };
    paths.iter().cloned().partition(|path| !is_capture(path))
}
