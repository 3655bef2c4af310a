//! Addresses that several say are theirs, in words.

use anyhow::bail;
use bulkhead_control::claims::{Contest, Holder};
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;

use crate::output;

/// Number of contests printed one by one. The rest is only counted.
const MAX_TOLD: usize = 10;

/// Pods that are named in one line.
const MAX_NAMED: usize = 5;

/// Who has the address, who has not, and what to do about it: a line, and one with the remedy.
pub fn told(contest: &Contest) -> String {
    let address = contest.address;
    let others: Vec<String> = contest.others.iter().map(PodName::to_string).collect();
    let others = output::some_of(&others.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED);
    match &contest.holder {
        Holder::Pod(holder) => format!(
            "{address} is the address of {holder}, and of {others} by an object that is older: nothing passes from or to that one\n  \
             help: remove the pod that has ended from the state"
        ),
        Holder::Node => format!(
            "{address} is a node's address, and that of {others}: nothing passes from or to the pod\n  \
             help: correct status.podIPs, or spec.hostNetwork"
        ),
        Holder::Nobody => format!(
            "{address} is the address of {others}, and whose it is cannot be told: nothing passes from or to either\n  \
             help: remove the pod that has ended from the state; of pods that run the one with the later status.startTime has it"
        ),
    }
}

/// Tells of all contests.
///
/// # Errors
/// When one cannot be decided, unless the user is `lenient`: what is asked about the state depends on it.
pub fn check(pipeline: &Pipeline, lenient: bool) -> anyhow::Result<()> {
    let contests = pipeline.contests();
    let is_fault = |contest: &&Contest| !lenient && !matches!(contest.holder, Holder::Pod(_));
    let (faults, rest): (Vec<_>, Vec<_>) = contests.iter().partition(is_fault);
    let several = |contests: &[&Contest]| {
        let mut lines: Vec<String> = contests.iter().take(MAX_TOLD).map(|contest| told(contest)).collect();
        let more = contests.len().saturating_sub(MAX_TOLD);
        lines.extend((more > 0).then(|| format!("and {more} more of such")));
        lines
    };
    several(&rest).iter().for_each(output::warn);
    if !faults.is_empty() {
        bail!("{}", several(&faults).join("\n"));
    }
    Ok(())
}
