//! Whether masquerading can work with the ports that there are, for whoever looks before a start.

use bulkhead_dataplane::PortKind;

use super::{Finding, Severity};
use crate::live::config::Config;

/// That it cannot.
pub(in crate::live) fn check(config: &Config) -> Option<Finding> {
    config.masquerade.as_ref()?;
    let has = |kind| config.ports.iter().any(|port| port.kind == kind);
    let (what, why, remedy) = match (has(PortKind::Uplink), has(PortKind::Host)) {
        (true, true) => return None,
        (false, _) => (
            "masquerade is on, and there is no uplink port",
            "what pods send to the world goes through the host port to the node's kernel with the pods' addresses, and the vswitch \
             cannot send it there with the node's own",
            "let the node's kernel do it, here for pods in 10.244.0.0/16: nft add table ip pods; nft add chain ip pods post '{ type nat \
             hook postrouting priority srcnat; }'; nft add rule ip pods post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade",
        ),
        (true, false) => (
            "masquerade is on, and there is no host port",
            "the node has no address behind the vswitch, so that pods' packets to the world are dropped (not_masqueraded)",
            "add a port of kind host, whose end has the node's addresses",
        ),
    };
    Some(Finding {
        severity: Severity::Warning,
        what: what.to_owned(),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
        comes_again: false,
    })
}
