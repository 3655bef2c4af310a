//! Checks whether the kernel can enforce policy with nftables.

use bulkhead_control::object::Denied;

use super::{Finding, Severity};
use crate::config::{Config, HubbleConfig};
use crate::nft;
use bulkhead_answers::output;

/// Reports what prevents `dataplane: nftables`, and settings that have no effect with it.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = nft::check() {
        findings.push(Finding {
            severity: Severity::Error,
            what: output::told(&error).lines().next().unwrap_or_default().to_owned(),
            why: "bulkhead loads the kernel's ruleset with nft".to_owned(),
            remedy: "use Linux 5.14 or newer, install nftables (apt install nftables), and start as root or with CAP_NET_ADMIN"
                .to_owned(),
            comes_again: true,
        });
    }
    let not_done = [
        ("masquerade", config.masquerade.is_some(), "leave this to the network plugin or to your own rule"),
        ("routes", !config.routes.is_empty(), "the node's kernel has routes of its own; remove them here"),
        ("hubble", config.hubble != HubbleConfig::Off, "the kernel does not report flows; remove it"),
        (
            "denied: refuse",
            config.denied == Denied::Refuse,
            "the kernel cannot reject a packet in this place; denied packets are dropped",
        ),
    ];
    for (field, is_set, remedy) in not_done {
        if is_set {
            findings.push(Finding {
                severity: Severity::Warning,
                what: format!("{field} has no effect"),
                why: "with dataplane: nftables the kernel forwards".to_owned(),
                remedy: remedy.to_owned(),
                comes_again: false,
            });
        }
    }
    findings
}
