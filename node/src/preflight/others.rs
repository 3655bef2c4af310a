//! Detects other handlers of the configured interfaces' packets: programs, network plugins that enforce policy, and hardware.

use std::collections::BTreeSet;

use bulkhead_dataplane::PortKind;

use super::{Facts, Findings, Severity};
use crate::config::{Attach, Config, Mode};
use bulkhead_answers::output;

/// Interface name prefixes of other network plugins that enforce NetworkPolicies. Rules are no sign of them: reading rules needs `nft` or
/// `iptables`, and kube-proxy adds rules on every node.
const ENFORCERS: [(&str, &str); 6] = [
    ("cilium_", "Cilium"),
    ("cali", "Calico"),
    ("ovn", "OVN"),
    ("antrea-gw", "Antrea"),
    ("kube-bridge", "kube-router"),
    ("weave", "Weave Net"),
];

/// Name prefix of the vswitch's own programs.
const OWN: &str = "bulkhead";

/// Maximum number of names in one finding.
const MAX_NAMED: usize = 5;

impl Findings {
    /// Reports foreign tc programs in one finding, as another network may have some at each of a hundred pods.
    pub(super) fn tc_programs(&mut self, config: &Config, facts: &Facts) {
        let (mut interfaces, mut programs) = (BTreeSet::new(), BTreeSet::new());
        for (interface, found) in &facts.tc_programs {
            for program in found.iter().filter(|program| !program.name.starts_with(OWN)) {
                interfaces.insert(&**interface);
                programs.insert(&*program.name);
            }
        }
        let Some(first) = interfaces.first() else { return };
        let why = match config.attach {
            Attach::Xdp => {
                "the vswitch receives packets before these programs and sends without them: they neither enforce nor count anything"
            }
            Attach::Tc => {
                "at each interface, the first program that decides about a packet hides it from the others: either their policy \
                 has no effect, or the vswitch's"
            }
        };
        let [at, named] = [&interfaces, &programs]
            .map(|names| output::some_of(&names.iter().copied().collect::<Vec<_>>(), MAX_NAMED));
        self.add(
            Severity::Warning,
            format!("{at}: other programs are at tc: {named}"),
            why,
            format!(
                "use only one of the two at this interface; `bpftool net` lists the attached programs\n\
                 remove leftover filters with: tc qdisc del dev {first} clsact"
            ),
        );
    }

    /// Warns if pods reach other machines through the node's kernel, and it does not forward.
    pub(super) fn forwarding(&mut self, config: &Config, facts: &Facts) {
        let has_uplink = config.ports.iter().any(|port| port.kind == PortKind::Uplink);
        if config.created_host.is_some() && !has_uplink && !facts.forwards {
            self.add(
                Severity::Warning,
                "the node's kernel does not forward",
                "no uplink is configured, so pods reach other machines through the kernel",
                "sysctl -w net.ipv4.ip_forward=1 (and net.ipv6.conf.all.forwarding=1)",
            );
        }
    }

    /// Warns about other network plugins that enforce policy.
    pub(super) fn enforcers(&mut self, facts: &Facts) {
        for (prefix, name) in ENFORCERS {
            let theirs = facts.interfaces.iter().filter(|interface| interface.starts_with(prefix));
            let theirs: Vec<&str> = theirs.map(String::as_str).collect();
            if theirs.is_empty() {
                continue;
            }
            let theirs = output::some_of(&theirs, MAX_NAMED);
            self.add(
                Severity::Warning,
                format!("{name} seems to run on this node: it has the interfaces {theirs}"),
                "if two programs enforce NetworkPolicy, both must allow a connection, and each may take over the other's interfaces",
                format!("turn off policy in one of them, or stop {name} and remove its interfaces and rules"),
            );
        }
    }

    /// Reports offloads that change an uplink's packets before the vswitch receives them. Skips a veth, where its other end decides.
    pub(super) fn uplinks(&mut self, config: &Config, facts: &Facts) {
        for entry in config.ports.iter().filter(|entry| entry.kind == PortKind::Uplink) {
            let (name, port) = (&entry.interface, &entry.name);
            let Some(features) = facts.features.get(name).filter(|features| features.driver != "veth") else {
                continue;
            };
            if features.large_receive_offload {
                self.add(
                    Severity::Warning,
                    format!("port {port}: {name} has large receive offload on"),
                    "the network card merges packets of a connection, and packets longer than the MTU cannot be forwarded; some \
                     drivers refuse XDP for it",
                    format!("ethtool -K {name} lro off"),
                );
            }
            // In native mode, the vswitch receives packets before the kernel merges them.
            if features.generic_receive_offload && config.mode != Mode::Drv {
                let severity = if config.mode == Mode::Skb { Severity::Warning } else { Severity::Note };
                self.add(
                    severity,
                    format!("port {port}: {name} has generic receive offload on"),
                    "in mode skb the kernel merges packets of a connection before the vswitch receives them, and packets longer than \
                     the MTU cannot be forwarded",
                    format!("ethtool -K {name} gro off\nor set mode: drv, if the driver supports it"),
                );
            }
            if features.receive_vlan_offload {
                self.add(
                    Severity::Warning,
                    format!("port {port}: {name} removes VLAN tags from packets (rxvlan)"),
                    "packets of all VLANs look untagged to the vswitch",
                    format!("ethtool -K {name} rxvlan off"),
                );
            }
        }
    }
}
