//! Arguments of `bulkhead policies`.

use super::{Admin, EndName, Planned, State};

/// `bulkhead policies`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("paths", |paths| paths.required(false).requires("pod")),
    after_help = "Examples:\n  bulkhead policies\n  bulkhead policies --pod default/db --state pcaps/redis-policy\n\n\
    Without --pod, prints how much each policy and rule of the running vswitch allowed and denied. With --pod and --state, lists the\n\
    policies of the state that select the pod, per direction, and their effect."
)]
pub struct Policies {
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
    /// List the policies of the state that select this pod, and their effect: namespace/pod, the pods of a workload (deploy/shop/web) or
    /// with labels (`app=web -n shop`), or a pod's address
    #[arg(long, value_name = "NAMESPACE/POD|KIND/NAMESPACE/NAME|LABELS -n NAMESPACE|IP", requires = "paths")]
    pub pod: Option<EndName>,
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
}
