//! Arguments of `bulkhead policies`.

use std::str::FromStr;

use bulkhead_control::object::PodName;

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
    /// List the policies of the state that select this pod, and their effect
    #[arg(long, value_name = "NAMESPACE/POD", requires = "paths", value_parser = pod)]
    pub pod: Option<PodName>,
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// How to treat workloads without pods in the state.
    #[command(flatten)]
    pub planned: Planned,
}

fn pod(text: &str) -> Result<PodName, String> {
    match EndName::from_str(text) {
        Ok(EndName::Pod(name)) => Ok(name),
        _ => Err(format!("`{text}` is no pod; write NAMESPACE/NAME")),
    }
}
