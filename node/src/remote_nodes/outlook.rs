//! The ways to other nodes before a start, for `run --check`.

use super::plan::Links;
use super::{RemoteNode, targets, uncontested};
use crate::config::Config;
use crate::host_port::Destinations;

/// The ways that a start would choose, in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outlook {
    /// A way for each node and address family.
    pub ways: Vec<String>,
    /// The number of ways by a route, and through the tunnel.
    pub counts: [usize; 2],
    /// A message for each node and family without a way.
    pub problems: Vec<String>,
}

/// Returns the ways to these nodes that a start with this configuration would choose now.
///
/// # Errors
/// If the kernel's routes cannot be read.
pub(crate) fn outlook(nodes: &[RemoteNode], config: &Config) -> std::io::Result<Outlook> {
    let (nodes, mut problems) = uncontested(nodes, &Destinations::default());
    let plan = Links::read()?.plan(&nodes, config.encapsulation.mode);
    problems.extend(plan.problems.iter().cloned());
    // The tunnel's interface need not exist for this.
    let ways = targets::targets(&plan, Some(0), &[]).iter().filter_map(targets::described).collect();
    Ok(Outlook { ways, counts: plan.counts(), problems: problems.into_iter().collect() })
}
