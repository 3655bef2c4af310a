//! Pods that a state has no object of, but a workload that will make them.

use bulkhead_control::source::{Options, Templates};
use ipnet::IpNet;

/// How workloads count that have no pod in the state: Deployments, Jobs and others of a rendered chart.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Planned {
    /// Where pods get their addresses; may be repeated. A workload without pods in the state is judged by its template, and nobody knows
    /// which `ipBlock` will cover its pods: without this, only one that covers all addresses does
    #[arg(long = "pod-cidr", value_name = "CIDR")]
    pub pod_cidrs: Vec<IpNet>,
}

impl Planned {
    /// The same options, with the pods that workloads' templates make.
    pub fn with(&self, options: Options) -> Options {
        Options { templates: Templates::Read(self.pod_cidrs.clone()), ..options }
    }
}
