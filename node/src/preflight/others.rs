//! Detects other handlers of pods' packets: programs at the configured interfaces, other network plugins and their remains, and hardware.

use std::collections::BTreeSet;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::TcProgram;

use super::{Facts, Findings, Severity};
use crate::config::{Attach, Config, XdpModeName};
use bulkhead_answers::output;

/// Another network plugin, with the names of interfaces and chains that it leaves on a node. kube-proxy is not among them:
/// [`kube_proxy`](super::kube_proxy) detects it.
struct Plugin {
    /// The name in findings.
    name: &'static str,
    /// Prefixes of the names of its interfaces.
    interfaces: &'static [&'static str],
    /// Prefixes of the names of its iptables or nftables chains.
    chains: &'static [&'static str],
    /// Whether the plugin enforces NetworkPolicies. Others only route, which disturbs a vswitch that routes between nodes itself.
    enforces: bool,
}

/// The known plugins. The interface `tunl0` is no sign of Calico, because the kernel creates it when it loads the module `ipip`.
const PLUGINS: [Plugin; 8] = [
    Plugin { name: "Cilium", interfaces: &["cilium_"], chains: &["CILIUM_"], enforces: true },
    Plugin {
        name: "Calico",
        interfaces: &["cali", "vxlan.calico", "vxlan-v6.calico"],
        chains: &["cali-"],
        enforces: true,
    },
    Plugin { name: "OVN", interfaces: &["ovn"], chains: &["OVN-KUBE-"], enforces: true },
    Plugin { name: "Antrea", interfaces: &["antrea-"], chains: &["ANTREA-"], enforces: true },
    Plugin {
        name: "kube-router",
        interfaces: &["kube-bridge"],
        chains: &["KUBE-ROUTER", "KUBE-POD-FW-"],
        enforces: true,
    },
    Plugin { name: "Weave Net", interfaces: &["weave"], chains: &["WEAVE"], enforces: true },
    Plugin { name: "Flannel", interfaces: &["flannel"], chains: &["FLANNEL-"], enforces: false },
    Plugin { name: "the plugin `bridge`", interfaces: &["cni0"], chains: &[], enforces: false },
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
            // Reading a program's name needs CAP_SYS_ADMIN, which the vswitch does without. So it knows its predecessor's programs by their links.
            let is_own = |program: &&TcProgram| {
                program.name.starts_with(OWN) || program.link.is_some_and(|link| facts.pinned_links.contains(&link))
            };
            for program in found.iter().filter(|program| !is_own(program)) {
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

    /// Warns about other network plugins, one finding for each.
    pub(super) fn plugins(&mut self, config: &Config, facts: &Facts) {
        let routes_itself = config.created_host.is_some() && config.uplink().is_none();
        for plugin in PLUGINS.iter().filter(|plugin| plugin.enforces || routes_itself) {
            let named = |names: &BTreeSet<String>, prefixes: &[&str]| -> Vec<String> {
                let is_theirs = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
                names.iter().filter(is_theirs).cloned().collect()
            };
            let (interfaces, chains) =
                (named(&facts.interfaces, plugin.interfaces), named(&facts.chains, plugin.chains));
            let told = |kind: &str, names: &[String]| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                (!names.is_empty()).then(|| format!("the {kind} {}", output::some_of(&names, MAX_NAMED)))
            };
            let signs = [told("interfaces", &interfaces), told("chains", &chains)];
            let signs: Vec<String> = signs.into_iter().flatten().collect();
            if signs.is_empty() {
                continue;
            }
            let why = match plugin.enforces {
                true => {
                    "if two programs enforce NetworkPolicy, both must allow a connection, and each may take over the other's interfaces; \
                     rules that a removed program has left go on dropping packets"
                }
                false => {
                    "its routes and rules lead packets for pods past the vswitch, or conflict with the vswitch's routes"
                }
            };
            let what = format!("{} runs on this node, or has left something: {}", plugin.name, signs.join(", "));
            self.add(Severity::Warning, what, why, plugin.remedy(&interfaces, &chains));
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
            if features.generic_receive_offload && config.xdp_mode != XdpModeName::Drv {
                let severity = if config.xdp_mode == XdpModeName::Skb { Severity::Warning } else { Severity::Note };
                self.add(
                    severity,
                    format!("port {port}: {name} has generic receive offload on"),
                    "in mode skb the kernel merges packets of a connection before the vswitch receives them, and packets longer than \
                     the MTU cannot be forwarded",
                    format!("ethtool -K {name} gro off\nor set xdp_mode: drv, if the driver supports it"),
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

impl Plugin {
    /// Returns what to do, with the commands that remove these interfaces and chains.
    fn remedy(&self, interfaces: &[String], chains: &[String]) -> String {
        let first = match self.enforces {
            true => format!(
                "stop {0}, or turn off policy in one of the two; if {0} no longer runs, restart the node or run:",
                self.name
            ),
            false => format!("stop {0}; if {0} no longer runs, restart the node or run:", self.name),
        };
        let links = interfaces.iter().take(MAX_NAMED).map(|name| format!("ip link del {name}"));
        let prefixes = self.chains.iter().filter(|prefix| chains.iter().any(|chain| chain.starts_with(**prefix)));
        let rules = prefixes.map(|prefix| {
            let without = |iptables: &str| format!("{iptables}-save | grep -v {prefix} | {iptables}-restore");
            format!("{}; {}", without("iptables"), without("ip6tables"))
        });
        std::iter::once(first).chain(links).chain(rules).collect::<Vec<_>>().join("\n")
    }
}
