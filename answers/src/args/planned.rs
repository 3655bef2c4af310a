//! Arguments about workloads that have no pods in the state yet.

use bulkhead_control::source::{Options, Templates};
use ipnet::IpNet;

/// How to treat workloads without pods in the state, such as the Deployments and Jobs of a rendered chart.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Planned {
    /// Pod CIDR of the cluster; may be repeated. A workload without pods in the state is judged by its pod template, whose future address
    /// is unknown. If omitted, an `ipBlock` covers such pods only if it covers all addresses
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub pod_cidrs: Vec<IpNet>,
}

impl Planned {
    /// Returns the options, extended to create pods from workloads' templates.
    pub fn with(&self, options: Options) -> Options {
        Options { templates: Templates::Read(self.pod_cidrs.clone()), ..options }
    }
}
