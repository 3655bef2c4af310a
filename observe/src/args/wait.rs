//! What is waited for: that a policy is enforced.

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
    Without --generation or --uid any state of the policy that the vswitch knows counts. Exit code 0 when it is in force for every\n\
    packet from now on, of the workers and of the flows in the kernel; 1 when it is not in time, with the reason; 2 when no vswitch answers."
)]
pub struct Wait {
    /// The policy: netpol/NAME, cnp/NAME (ClusterNetworkPolicy), anp/NAME or banp/NAME, or the kind's whole name
    #[arg(value_name = "KIND/NAME")]
    pub policy: PolicyReference,
    /// The NetworkPolicy's namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// At least this state of the policy (`metadata.generation`); only NetworkPolicies from an API server say theirs
    #[arg(long, value_name = "N", conflicts_with = "gone")]
    pub generation: Option<u64>,
    /// The policy with this `metadata.uid`, and no other one of its name
    #[arg(long, value_name = "UID", conflicts_with = "gone")]
    pub uid: Option<String>,
    /// Wait until no policy of this name is in force any more
    #[arg(long)]
    pub gone: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Which vswitch, and the form of the answer.
    #[command(flatten)]
    pub admin: Admin,
}

/// A policy as `kubectl` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReference {
    /// The kind of a cluster policy; none for a NetworkPolicy.
    pub cluster: Option<ClusterPolicyKind>,
    /// Its name.
    pub name: String,
}

impl FromStr for PolicyReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "`{text}` is no policy; write netpol/NAME, cnp/NAME, anp/NAME or banp/NAME, as in `netpol/allow-web`"
            )
        };
        let (kind, name) = text.split_once('/').ok_or_else(unknown)?;
        let kind = kind.to_ascii_lowercase();
        // `kubectl` takes `networkpolicies.networking.k8s.io` as well.
        let cluster = match kind.split('.').next().unwrap_or_default() {
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
        for text in ["x", "pod/x", "netpol/", "netpol/a/b", "/x"] {
            assert!(reference(text).unwrap_err().contains("netpol/NAME"), "{text}");
        }
    }
}
