//! Messages about addresses that several objects claim.

use anyhow::bail;
use bulkhead_control::claims::{Contest, Holder};
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;

use crate::output;

/// Number of contests printed one by one. The rest is only counted.
const MAX_TOLD: usize = 10;

/// Number of pods named in one line.
const MAX_NAMED: usize = 5;

/// Returns a warning of two lines: the owner of the address and the other claimants, then the remedy.
pub fn told(contest: &Contest) -> String {
    let address = contest.address;
    let others: Vec<String> = contest.others.iter().map(PodName::to_string).collect();
    let others = output::some_of(&others.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED);
    match &contest.holder {
        Holder::Pod(holder) => format!(
            "{address} is the address of {holder}, and of {others} according to an older object: no traffic from or to the latter passes\n  \
             help: remove the pod that has ended from the state"
        ),
        Holder::Node => format!(
            "{address} is the address of a node, and of {others}: no traffic from or to the pod passes\n  \
             help: correct status.podIPs, or spec.hostNetwork"
        ),
        Holder::Nobody => format!(
            "{address} is the address of {others}, and its owner is unknown: no traffic from or to these pods passes\n  \
             help: remove the pod that has ended from the state; among running pods, the one with the latest status.startTime owns the address"
        ),
    }
}

/// Prints all contests as warnings.
///
/// # Errors
/// If the owner of an address is unknown or a node, unless `lenient` is set: answers about the state would depend on it.
pub fn check(pipeline: &Pipeline, lenient: bool) -> anyhow::Result<()> {
    let contests = pipeline.contests();
    let is_fault = |contest: &&Contest| !lenient && !matches!(contest.holder, Holder::Pod(_));
    let (faults, rest): (Vec<_>, Vec<_>) = contests.iter().partition(is_fault);
    let several = |contests: &[&Contest]| {
        let mut lines: Vec<String> = contests.iter().take(MAX_TOLD).map(|contest| told(contest)).collect();
        let more = contests.len().saturating_sub(MAX_TOLD);
        lines.extend((more > 0).then(|| format!("and {more} more")));
        lines
    };
    several(&rest).iter().for_each(output::warn);
    if !faults.is_empty() {
        bail!("{}", several(&faults).join("\n"));
    }
    Ok(())
}
