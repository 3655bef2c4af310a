//! The measured policy, as a NetworkPolicy for the vswitch and as nftables rules for the kernel. It isolates one pod, the sink. Only its
//! last two rules allow traffic: an ipBlock each with the cluster's pods. All others name networks that send nothing, so a program that
//! checks rules in order checks all of them.

use std::fmt::Write as _;

/// Number of rules: large for one pod in enforcers' issue trackers, but still a policy that people write.
pub(crate) const RULES: u16 = 1_000;
/// The UDP port that the policy allows.
pub(crate) const UDP_PORT: u16 = 9_000;
/// The allowed TCP ports: those of iperf3 (5201), redis (6379) and the benchmark's servers.
pub(crate) const TCP_PORTS: [u16; 2] = [5_000, 9_999];
/// The addresses of the cluster's pods.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// A rule: an allowed source and its ports.
struct Rule {
    prefix: String,
    protocol: &'static str,
    /// The first and the last allowed port.
    ports: [u16; 2],
}

fn rules() -> impl Iterator<Item = Rule> {
    let silent = (0..RULES - 2).map(|number| Rule {
        prefix: format!("172.{}.{}.0/24", 16 + number / 256, number % 256),
        protocol: if number % 2 == 0 { "UDP" } else { "TCP" },
        ports: [1_000 + number; 2],
    });
    let open = [("UDP", [UDP_PORT; 2]), ("TCP", TCP_PORTS)];
    silent.chain(open.map(|(protocol, ports)| Rule { prefix: PODS.to_owned(), protocol, ports }))
}

/// Returns a NetworkPolicy in namespace `x` that isolates the pods with the label `app: sink`.
pub(crate) fn network_policy() -> String {
    let mut text =
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: rules, namespace: x}\n\
                    spec:\n  podSelector: {matchLabels: {app: sink}}\n  policyTypes: [Ingress]\n  ingress:\n"
            .to_owned();
    for Rule { prefix, protocol, ports: [first, last] } in rules() {
        let end = if first == last { String::new() } else { format!("endPort: {last}, ") };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "    - {{from: [{{ipBlock: {{cidr: {prefix}}}}}], ports: [{{port: {first}, {end}protocol: {protocol}}}]}}"
        );
    }
    text
}

/// Returns the same policy as nftables rules, for a node that routes to the sink through this interface. As in other enforcers, the pod has
/// a chain behind connection tracking.
pub(crate) fn nftables(interface: &str) -> String {
    let mut text = "table ip bench {\n  chain sink {\n".to_owned();
    for Rule { prefix, protocol, ports: [first, last] } in rules() {
        let protocol = protocol.to_ascii_lowercase();
        let ports = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let _ = writeln!(text, "    ip saddr {prefix} {protocol} dport {ports} ct state new accept");
    }
    let _ = writeln!(
        text,
        "    drop\n  }}\n  chain forward {{\n    type filter hook forward priority 0; policy accept;\n    \
         ct state established,related accept\n    oifname \"{interface}\" goto sink\n  }}\n}}"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_have_all_rules() {
        let (policy, nftables) = (network_policy(), nftables("hB"));
        assert_eq!(policy.matches("ipBlock").count(), usize::from(RULES));
        assert_eq!(nftables.matches(" dport ").count(), usize::from(RULES));
        for open in ["port: 9000, protocol: UDP", "port: 5000, endPort: 9999, protocol: TCP"] {
            assert_eq!(policy.matches(open).count(), 1, "{open}");
        }
        for open in ["udp dport 9000 ", "tcp dport 5000-9999 ", "oifname \"hB\" goto sink"] {
            assert_eq!(nftables.matches(open).count(), 1, "{open}");
        }
    }
}
