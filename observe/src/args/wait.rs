//! Arguments of `bulkhead wait`.

use std::str::FromStr;
use std::time::Duration;

use bulkhead_control::object::ClusterPolicyKind;

use bulkhead_answers::args::Admin;

/// `bulkhead wait`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl apply -f policy.yaml && bulkhead wait netpol/allow-web -n shop --timeout 5s\n  \
    bulkhead wait netpol/allow-web -n shop --generation \"$(kubectl get netpol allow-web -n shop -o jsonpath='{.metadata.generation}')\"\n  \
    bulkhead wait cnp/deny-metadata --gone\n\n\
    Without --generation or --uid, any version of the policy counts. Exit code 0 if the policy applies to every packet from now on,\n\
    including flows cached in the kernel; 1 with the reason if the timeout expires; 2 if no vswitch answers."
)]
pub struct Wait {
    /// Policy: netpol/NAME, cnp/NAME (ClusterNetworkPolicy), anp/NAME, banp/NAME, or the full name of the kind, such as
    /// ciliumnetworkpolicy/NAME or networkpolicy.projectcalico.org/NAME
    #[arg(value_name = "KIND/NAME")]
    pub policy: PolicyReference,
    /// Namespace of the policy, if its kind has namespaces
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Minimum `metadata.generation` of the policy; available only for NetworkPolicies from an API server
    #[arg(long, value_name = "N", conflicts_with = "gone")]
    pub generation: Option<u64>,
    /// `metadata.uid` of the policy, to exclude another policy of the same name
    #[arg(long, value_name = "UID", conflicts_with = "gone")]
    pub uid: Option<String>,
    /// Wait until no policy of this name is enforced
    #[arg(long)]
    pub gone: bool,
    /// Maximum time to wait
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
}

/// A policy as `kubectl` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReference {
    /// Kind of a cluster policy. `None` for a NetworkPolicy.
    pub cluster: Option<ClusterPolicyKind>,
    /// Name without the kind.
    pub name: String,
}

impl FromStr for PolicyReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "`{text}` is no policy; write netpol/NAME, cnp/NAME, anp/NAME, banp/NAME or KIND/NAME, as in `netpol/allow-web`"
            )
        };
        let (kind, name) = text.split_once('/').ok_or_else(unknown)?;
        let kind = kind.to_ascii_lowercase();
        // `kubectl` also accepts `networkpolicies.networking.k8s.io`.
        let (resource, group) = kind.split_once('.').unwrap_or((&kind, ""));
        let is_of_calico = group.ends_with("projectcalico.org");
        let cluster = match resource {
            "networkpolicy" | "networkpolicies" if is_of_calico => Some(ClusterPolicyKind::CalicoNetworkPolicy),
            "globalnetworkpolicy" | "globalnetworkpolicies" => Some(ClusterPolicyKind::CalicoGlobalNetworkPolicy),
            "stagednetworkpolicy" | "stagednetworkpolicies" => Some(ClusterPolicyKind::CalicoStagedNetworkPolicy),
            "stagedglobalnetworkpolicy" | "stagedglobalnetworkpolicies" => {
                Some(ClusterPolicyKind::CalicoStagedGlobalNetworkPolicy)
            }
            "stagedkubernetesnetworkpolicy" | "stagedkubernetesnetworkpolicies" => {
                Some(ClusterPolicyKind::CalicoStagedKubernetesNetworkPolicy)
            }
            "ciliumnetworkpolicy" | "ciliumnetworkpolicies" => Some(ClusterPolicyKind::CiliumNetworkPolicy),
            "ccnp" | "ciliumclusterwidenetworkpolicy" | "ciliumclusterwidenetworkpolicies" => {
                Some(ClusterPolicyKind::CiliumClusterwideNetworkPolicy)
            }
            "netpol" | "networkpolicy" | "networkpolicies" => None,
            "cnp" | "clusternetworkpolicy" | "clusternetworkpolicies" => Some(ClusterPolicyKind::ClusterNetworkPolicy),
            "anp" | "adminnetworkpolicy" | "adminnetworkpolicies" => Some(ClusterPolicyKind::AdminNetworkPolicy),
            "banp" | "baselineadminnetworkpolicy" | "baselineadminnetworkpolicies" => {
                Some(ClusterPolicyKind::BaselineAdminNetworkPolicy)
            }
            _ => return Err(unknown()),
        };
        if name.is_empty() || name.contains('/') {
            return Err(unknown());
        }
        Ok(Self { cluster, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_as_kubectl_names_it() {
        let reference = |text: &str| text.parse::<PolicyReference>();
        let netpol = PolicyReference { cluster: None, name: "x".into() };
        for text in ["netpol/x", "NetworkPolicy/x", "networkpolicies.networking.k8s.io/x"] {
            assert_eq!(reference(text), Ok(netpol.clone()), "{text}");
        }
        let cluster = reference("banp/default").unwrap().cluster;
        assert_eq!(cluster, Some(ClusterPolicyKind::BaselineAdminNetworkPolicy));
        for (text, kind) in [
            ("networkpolicies.crd.projectcalico.org/x", ClusterPolicyKind::CalicoNetworkPolicy),
            ("GlobalNetworkPolicy/x", ClusterPolicyKind::CalicoGlobalNetworkPolicy),
            ("ciliumnetworkpolicies.cilium.io/x", ClusterPolicyKind::CiliumNetworkPolicy),
            ("ccnp/x", ClusterPolicyKind::CiliumClusterwideNetworkPolicy),
        ] {
            assert_eq!(reference(text).unwrap().cluster, Some(kind), "{text}");
        }
        for text in ["x", "pod/x", "netpol/", "netpol/a/b", "/x"] {
            assert!(reference(text).unwrap_err().contains("netpol/NAME"), "{text}");
        }
    }
}
