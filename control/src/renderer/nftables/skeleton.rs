//! The fixed part of the ruleset: hooks, source address checks, and the remembering of connections.

use std::fmt::Write as _;

use super::comment::comment;
use super::rules::OWN_SETS;
use super::{Epoch, MARK_MASK, Suspects, TABLE};

/// Drop reasons other than policy: the counter's name and its meaning.
pub const REASONS: [(&str, &str); 8] = [
    ("unknown_interface", "an unknown interface that may belong to a pod"),
    ("spoofed_source", "the source address does not belong to the sender"),
    ("unplaced_pod", "the address belongs to a pod whose interface is unknown"),
    ("misrouted", "the packet would reach a pod without its destination address"),
    ("untracked", "connection tracking does not know the packet"),
    ("invalid", "the packet belongs to no connection and starts none"),
    ("stale_error", "an ICMP error of a connection that must be judged again first"),
    ("closed", "the pod is unknown, or its rules cannot be enforced"),
];

/// Returns the script of [`super::remember`].
pub(super) fn remember(epoch: Epoch) -> String {
    let (mask, mark) = (MARK_MASK, epoch.mark());
    format!(
        "flush chain {TABLE} remember\n\
         add rule {TABLE} remember ct state related return\n\
         add rule {TABLE} remember ct mark and {mask:#010x} != {mark:#010x} ct mark set ct mark and {:#010x} or {mark:#010x}\n",
        !mask
    )
}

/// Returns the script that creates the table without any policy.
pub(super) fn skeleton(node: &str, suspects: &Suspects) -> String {
    let mut text = format!("table {TABLE} {{\n  comment \"{}\"\n", comment(format_args!("policy of node {node}")));
    for (name, why) in REASONS {
        writeln!(text, "  counter {name} {{ comment \"{why}\"; }}").expect("a text takes anything");
    }
    for (name, kind) in [("known", "ifname"), ("pods", "ifname"), ("epoch", "mark")] {
        writeln!(text, "  set {name} {{ type {kind}; }}").expect("a text takes anything");
    }
    text.push_str("  set sources4 { type ifname . ipv4_addr; }\n  set sources6 { type ifname . ipv6_addr; }\n");
    for (name, kind, _) in OWN_SETS {
        writeln!(text, "  set {name} {{ type {kind}; }}").expect("a text takes anything");
    }
    for name in ["unplaced", "local"] {
        text.push_str(&format!("  set {name}4 {{ type ipv4_addr; }}\n  set {name}6 {{ type ipv6_addr; }}\n"));
    }
    text.push_str("  map from { type ifname : verdict; }\n  map to { type ifname : verdict; }\n");
    let unknown = |end: &str| match suspects {
        Suspects::Veth => {
            format!("    {end}ifname != @known meta {end}ifkind \"veth\" counter name \"unknown_interface\" drop\n")
        }
        Suspects::Prefixes(prefixes) => prefixes.iter().fold(String::new(), |text, prefix| {
            text + &format!(
                "    {end}ifname != @known {end}ifname \"{prefix}*\" counter name \"unknown_interface\" drop\n"
            )
        }),
    };
    text.push_str("  chain source {\n    type filter hook prerouting priority raw; policy accept;\n");
    text.push_str("    iifname @pods goto speaks\n");
    text.push_str("    ip saddr @unplaced4 counter name \"unplaced_pod\" drop\n");
    text.push_str("    ip6 saddr @unplaced6 counter name \"unplaced_pod\" drop\n");
    // Only the node's pods may use their addresses, and only the node its own. For the node, the kernel itself checks IPv4 only.
    for set in ["local", "own"] {
        text.push_str(&format!("    iifname != \"lo\" ip saddr @{set}4 counter name \"spoofed_source\" drop\n"));
        text.push_str(&format!("    iifname != \"lo\" ip6 saddr @{set}6 counter name \"spoofed_source\" drop\n"));
    }
    text.push_str(&unknown("i"));
    text.push_str("  }\n");
    text.push_str(&SPEAKS.replace("SPOOFED", "counter name \"spoofed_source\" drop"));
    let mark = format!("    ct mark and {MARK_MASK:#010x} @epoch accept\n");
    text.push_str(&format!("  chain established {{\n{mark}"));
    text.push_str("    ct state related meta l4proto { 1, 58 } counter name \"stale_error\" drop\n  }\n");
    text.push_str(BASE.split("UNKNOWN").collect::<Vec<_>>().join(&unknown("o")).as_str());
    text.push_str("}\n");
    text
}

/// Traffic that a pod may send: packets from its own addresses, and what IPv6 needs on a link, from link-local addresses. Router
/// advertisements are not allowed, because a pod could become a router with them (CVE-2020-10749).
const SPEAKS: &str = "  chain speaks {
    iifname . ip saddr @sources4 accept
    iifname . ip6 saddr @sources6 accept
    ip6 saddr fe80::/10 ip6 daddr { fe80::/10, ff02::/16 } icmpv6 type { 131, 132, 133, 135, 136, 143 } accept
    ip6 saddr :: ip6 daddr { fe80::/10, ff02::/16 } icmpv6 type { 131, 132, 133, 135, 143 } accept
    SPOOFED
  }
";

/// The chains at the hooks. In input, IPVS handles Services at priorities 98 and 99, and sources are translated at 100. In postrouting,
/// sources are translated at 100 too. Priorities are numbers, because nft knows their names at some hooks only. Source: Linux,
/// `NF_IP_PRI_NAT_SRC` and `ip_vs_ops4`.
///
/// Connection tracking ignores neighbour and listener discovery. A routed neighbour discovery packet has a hop limit below 255 (RFC 4861
/// §7.1), and listener discovery stays on its link (RFC 3810 §5), so neither bypasses policy.
const BASE: &str = r#"  chain untracked {
    ip6 hoplimit 255 icmpv6 type { 133, 135, 136 } accept
    ip6 hoplimit 255 iifname != @pods icmpv6 type 134 accept
    ip6 daddr { fe80::/10, ff02::/16 } icmpv6 type { 130, 131, 132, 143 } accept
    iifname @pods ct state invalid counter name "invalid" drop
    oifname @pods ct state invalid counter name "invalid" drop
    iifname @pods counter name "untracked" drop
    oifname @pods counter name "untracked" drop
  }
  chain remember { }
  chain node {
    type filter hook input priority 110; policy accept;
    ct state invalid,untracked goto untracked
    ct direction original iifname vmap @from
    ct direction reply iifname vmap @to
  }
  chain egress {
    type filter hook postrouting priority 88; policy accept;
UNKNOWN    oifname != @pods ip daddr @unplaced4 counter name "unplaced_pod" drop
    oifname != @pods ip6 daddr @unplaced6 counter name "unplaced_pod" drop
    oifname @pods ip daddr != { 224.0.0.0/4, 255.255.255.255 } oifname . ip daddr != @sources4 counter name "misrouted" drop
    oifname @pods ip6 daddr != { fe80::/10, ff00::/8 } oifname . ip6 daddr != @sources6 counter name "misrouted" drop
    ct state invalid,untracked goto untracked
    ct direction original iifname vmap @from
    ct direction reply oifname vmap @from
  }
  chain ingress {
    type filter hook postrouting priority 89; policy accept;
    ct direction original oifname vmap @to
    ct direction reply iifname vmap @to
  }
  chain judged_node {
    type filter hook input priority 111; policy accept;
    iifname @pods goto remember
  }
  chain judged {
    type filter hook postrouting priority 90; policy accept;
    iifname @pods goto remember
    oifname @pods goto remember
  }
"#;
