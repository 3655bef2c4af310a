//! What keeps pods from other machines in the node's kernel, looked at again while the vswitch runs: a firewall is often loaded later.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::log;
use crate::preflight::Finding;
use crate::preflight::forwarding::KernelPath;

/// The shortest time between two looks. A look at 20,000 chains takes tens of milliseconds.
const EVERY: Duration = Duration::from_secs(10);

/// The obstacles of the last look.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    /// Each as one line with its remedy.
    found: BTreeSet<String>,
    /// When the last look was. `None` before the first.
    looked: Option<Instant>,
}

impl Obstacles {
    /// Looks at the path of pods' packets, unless that was done a moment ago. Logs what the last look did not find.
    pub(super) fn look(&mut self, path: &KernelPath<'_>) {
        if self.looked.is_some_and(|looked| looked.elapsed() < EVERY) {
            return;
        }
        let findings: Vec<Finding> = path.check().into_iter().filter(|finding| finding.comes_again).collect();
        let text = |Finding { what, remedy, .. }: &Finding| format!("{what}; {}", remedy.replace('\n', "; "));
        for finding in findings.iter().filter(|finding| !self.found.contains(&text(finding))) {
            log::warn(finding);
        }
        self.found = findings.iter().map(text).collect();
        self.looked = Some(Instant::now());
    }

    /// Returns the obstacles, each as one line with its remedy.
    pub(super) fn found(&self) -> impl Iterator<Item = String> {
        self.found.iter().cloned()
    }
}
