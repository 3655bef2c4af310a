//! Says how the vswitch would reach the pods of each node that the state knows.
//!
//! Reads only the state's files: a check does not connect to an API server. `bulkhead nodes` shows the ways of a running vswitch, which are
//! also probed.

use bulkhead_control::object::Object;
use bulkhead_control::source::{Options, Strictness, Unenforced};

use super::{Finding, Severity};
use crate::config::Config;
use crate::remote_nodes::{Outlook, RemoteNode, outlook};
use bulkhead_answers::output;

/// Maximum number of nodes named in one finding.
const MAX_NAMED: usize = 5;

/// Returns the ways to the nodes of the state's files. Empty if this vswitch sets up none, or the files do not load, which the start reports
/// separately.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    if config.host_to_nodes().is_none() {
        return Vec::new();
    }
    let options = &config.state.options;
    let options = Options { strictness: Strictness::Lenient, unenforced: Unenforced::Report, ..options.clone() };
    let loaded = config.state.load(options);
    let objects = loaded.map(|loaded| loaded.objects).unwrap_or_default();
    let of_object = |object: &Object| match object {
        Object::Node(node) if node.name != config.node => Some(RemoteNode::of(node)),
        _ => None,
    };
    let nodes: Vec<RemoteNode> = objects.iter().filter_map(of_object).collect();
    // Routes that cannot be read are omitted, as in `Facts`.
    outlook(&nodes, config).map(|outlook| judge(&outlook)).unwrap_or_default()
}

/// Derives the findings: one for all ways, and one for all nodes without.
fn judge(outlook: &Outlook) -> Vec<Finding> {
    let named = |texts: &[String]| output::some_of(&texts.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED);
    let mut findings = Vec::new();
    if !outlook.problems.is_empty() {
        findings.push(Finding {
            severity: Severity::Warning,
            what: format!("no way leads to pods of other nodes: {}", named(&outlook.problems)),
            why: "packets between these pods and the pods of this node are lost".to_owned(),
            remedy: "the end of each message says what to change".to_owned(),
            comes_again: true,
        });
    }
    if !outlook.ways.is_empty() {
        findings.push(Finding {
            severity: Severity::Note,
            what: format!("ways to pods of other nodes: {}", named(&outlook.ways)),
            why: format!(
                "{} by routes, {} through the tunnel; these are chosen by the kernel's routes to the nodes' addresses",
                outlook.counts[0], outlook.counts[1]
            ),
            remedy: "nothing; `bulkhead nodes` shows whether packets arrive when the vswitch runs".to_owned(),
            comes_again: true,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_are_one_finding_and_those_without_a_way_another() {
        let ways = (2..100).map(|at| format!("node-{at}: 10.244.{at}.0/24 by the tunnel to 192.0.2.{at} (MTU 1450)"));
        let problems = vec!["node-100 (10.244.100.0/24): the kernel has no route".to_owned()];
        let outlook = Outlook { ways: ways.collect(), counts: [0, 98], problems };
        let findings = judge(&outlook);
        let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Warning, Severity::Note]);
        assert!(findings[0].what.contains("node-100 (10.244.100.0/24): the kernel has no route"), "{findings:?}");
        assert!(
            findings[1].what.ends_with("and 93 more") && findings[1].why.starts_with("0 by routes, 98 through"),
            "{findings:?}"
        );
        assert!(judge(&Outlook::default()).is_empty(), "without other nodes");
    }
}
