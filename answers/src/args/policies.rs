//! Which policies there are: those that a running vswitch counts, or those of a state that concern a pod.

use std::str::FromStr;

use bulkhead_control::object::PodName;

use super::{Admin, EndName, Planned, State};

/// `bulkhead policies`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("paths", |paths| paths.required(false).requires("pod")),
    after_help = "Examples:\n  bulkhead policies\n  bulkhead policies --pod default/db --state pcaps/redis-policy\n\n\
    Without --pod the running vswitch is asked what each policy and rule has let through and denied. With --pod and --state: which policies\n\
    of the state select the pod, in which direction, and what follows."
)]
pub struct Policies {
    /// Which vswitch, and the form of the answer.
    #[command(flatten)]
    pub admin: Admin,
    /// Which policies of the state select this pod, and what follows
    #[arg(long, value_name = "NAMESPACE/POD", requires = "paths", value_parser = pod)]
    pub pod: Option<PodName>,
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
}

fn pod(text: &str) -> Result<PodName, String> {
    match EndName::from_str(text) {
        Ok(EndName::Pod(name)) => Ok(name),
        _ => Err(format!("`{text}` is no pod; write NAMESPACE/NAME")),
    }
}
