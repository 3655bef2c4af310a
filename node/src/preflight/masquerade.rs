//! Checks whether masquerading can work with the configured ports.

use bulkhead_dataplane::PortKind;

use super::{Finding, Severity};
use crate::config::Config;

/// Returns a warning if the node's own connections may use ports of the first range of masqueraded connections. The other ranges may overlap: they are
/// used only when the first one is nearly used up for a destination. `range` is `ip_local_port_range`, which holds for both families. `reserved` is
/// `ip_local_reserved_ports`, for example `8080,61000-65535`.
fn of_ports(config: &Config, range: &str, reserved: &str) -> Option<Finding> {
    let ports = config.masquerade.as_ref()?.ports.ranges().first()?;
    let (first, last) = range.trim().split_once(char::is_whitespace)?;
    let [first, last] = [first, last].map(|number| number.trim().parse::<u16>().ok());
    let (first, last) = (first?, last?);
    let is_left_out = |part: &str| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let holds = |from: u16, to: u16| from <= *ports.start() && *ports.end() <= to;
        from.parse().ok().zip(to.parse().ok()).is_some_and(|(from, to)| holds(from, to))
    };
    let overlaps = first <= *ports.end() && *ports.start() <= last && !reserved.split(',').any(is_left_out);
    overlaps.then(|| Finding {
        severity: Severity::Warning,
        what: format!(
            "masquerade.ports {}-{} overlap the node's own ephemeral ports {first}-{last}",
            ports.start(),
            ports.end()
        ),
        why: "a connection of the node with the same port and destination as a masqueraded one is refused (session_clash)".to_owned(),
        remedy: format!("sysctl -w net.ipv4.ip_local_reserved_ports={}-{}, or set masquerade.ports outside that range", ports.start(), ports.end()),
        comes_again: false,
    })
}

/// Returns a warning if cluster addresses may count as the world: the vswitch does not know Services, and no range is excepted.
fn without_services(config: &Config) -> Option<Finding> {
    let is_known = config.services.is_some() || !config.masquerade.as_ref()?.except.is_empty();
    (!is_known).then(|| Finding {
        severity: Severity::Warning,
        what: "masquerade is on with services: off, and masquerade.except is empty".to_owned(),
        why:
            "packets of pods to Services leave for the world with the node's address, and kube-proxy does not see them"
                .to_owned(),
        remedy: "add the cluster's service range: masquerade: {except: [10.96.0.0/12]}".to_owned(),
        comes_again: false,
    })
}

/// Returns a warning if masquerading cannot work. `None` if it can, or is off.
pub(crate) fn check(config: &Config) -> Option<Finding> {
    config.masquerade.as_ref()?;
    let has = |kind| config.ports.iter().any(|port| port.kind == kind);
    let has_card = config.masquerades_at_card();
    let (what, why, remedy) = match (has(PortKind::Uplink) || has_card, has(PortKind::Host)) {
        (true, true) => {
            let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
            return of_ports(config, &read("ip_local_port_range"), &read("ip_local_reserved_ports"))
                .or_else(|| without_services(config).filter(|_| has_card));
        }
        (false, _) => (
            "masquerade is on, but there is no port of kind uplink, and no host port with `create` and `attach: tc`",
            "packets from pods to outside addresses go through the host port to the node's kernel, and the vswitch \
             cannot masquerade them there",
            "masquerade in the node's kernel; for pods in 10.244.0.0/16: nft add table ip pods; nft add chain ip pods post '{ type nat \
             hook postrouting priority srcnat; }'; nft add rule ip pods post ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade",
        ),
        (true, false) => (
            "masquerade is on, but no port of kind host is configured",
            "the node has no address behind the vswitch, so packets from pods to outside addresses are dropped (not_masqueraded)",
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_card_of_the_nodes_kernel_suffices_if_services_are_known_or_excepted() {
        let config = |more: &str| {
            let port = "ports: [{kind: host, interface: h, peer: n, create: {}}]";
            Config::parse("c", &format!("node: n\nstate: {{paths: [s]}}\n{port}\n{more}\n"), Path::new("")).unwrap()
        };
        assert_eq!(check(&config("masquerade: true")), None);
        let told = |more| check(&config(more)).map(|finding| finding.what).unwrap_or_default();
        assert!(told("masquerade: true\nservices: off").contains("services: off"));
        assert_eq!(told("masquerade: {except: [10.96.0.0/12]}\nservices: off"), "");
        assert!(told("masquerade: true\nattach: xdp").contains("no port of kind uplink"));
    }

    #[test]
    fn ports_of_the_nodes_own_connections_are_told_unless_the_kernel_leaves_them_out() {
        let text = "node: n\nstate: {paths: [s]}\nports: []\nmasquerade: true\n";
        let config = Config::parse("c", text, Path::new("")).unwrap();
        let told = |range, reserved| of_ports(&config, range, reserved).is_some();
        assert!(!told("32768\t60999\n", "\n"), "the kernel's default");
        assert!(told("1024\t65535\n", "\n") && told("32768 61000", "8080,61000-65000\n"));
        assert!(!told("1024\t65535\n", "8080,60000-65535\n") && !told("", ""));
    }
}
