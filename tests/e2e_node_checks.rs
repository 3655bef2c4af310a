//! What `run --check` and the running vswitch report about a node whose kernel forwards for pods: each fault with its remedy, and nothing on a
//! node without a fault.

use std::time::Duration;

use crate::e2e_host_port::card;
use crate::lab::Lab;
use crate::lab::netns::{Netns, eventually, eventually_within};
use crate::require;
use serde_json::Value;

/// A node with one pod and one card, and a machine outside.
struct Node {
    lab: Lab,
    outside: Netns,
}

impl Node {
    fn new() -> Self {
        let mut lab = Lab::new();
        lab.pod("a", "{app: a}");
        let outside = card(&lab);
        lab.node.ip("route add default via 172.18.0.100");
        lab.node.ip("-6 route add default via fd00:18::100");
        lab.more_ports = "  - {kind: host, interface: bh-host, peer: bh-node, create: {}}\n".to_owned();
        lab.more_config = "routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]\n".to_owned();
        lab.write_state("");
        lab.write_config();
        Self { lab, outside }
    }

    /// Returns the warnings and errors of `run --check`. With `notes`, the notes too.
    fn findings(&self, notes: bool) -> Vec<Value> {
        let (code, text) = self.lab.try_run("config.yaml", &["--check", "-o", "json"]);
        assert_eq!(code, Some(0), "{text}");
        let said: Value = serde_json::from_str(&text).unwrap();
        let all = said["findings"].as_array().unwrap().iter();
        all.filter(|finding| notes || finding["severity"] != "note").cloned().collect()
    }

    /// Makes a fault with shell commands in the node, and checks that it is the only finding. Then follows the remedy, which must end it.
    fn fault(&self, commands: &str, severity: &str, what: &str, remedy: &str) {
        let before = self.findings(true);
        self.shell(commands);
        let found: Vec<Value> = self.findings(true).into_iter().filter(|finding| !before.contains(finding)).collect();
        let [finding] = &found[..] else { panic!("{commands}: {found:#?}") };
        let text = |field: &str| finding[field].as_str().unwrap();
        assert!(text("severity") == severity && text("what").contains(what), "{commands}: {finding:#}");
        assert!(text("remedy").contains(remedy), "{commands}: {finding:#}");
        // The lines that are commands.
        let is_command = |line: &&str| {
            ["sysctl", "iptables", "ip6tables", "nft", "ip "].iter().any(|program| line.starts_with(program))
        };
        text("remedy").lines().filter(is_command).for_each(|line| self.shell(line));
        assert_eq!(self.findings(true), before, "{commands}: {remedy}");
    }

    fn shell(&self, commands: &str) {
        let output = self.lab.node.command("sh", &["-ec", commands]).output().unwrap();
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Removes all rules of nf_tables.
    fn flush(&self) {
        self.shell("nft flush ruleset");
    }
}

#[test]
fn a_node_without_a_fault_gives_no_warning_and_each_fault_is_told_with_its_remedy() {
    require!("nft", "iptables", "ip6tables");
    only_with_tc!();
    let node = Node::new();
    assert_eq!(node.findings(false), [Value::Null; 0]);

    node.fault("sysctl -qw net.ipv4.ip_forward=0", "warning", "does not forward IPv4", "net.ipv4.ip_forward=1");
    let [off, on] = ["0", "1"].map(|value| format!("net.ipv6.conf.all.forwarding={value}"));
    node.fault(&format!("sysctl -qw {off}"), "warning", "does not forward IPv6", &on);

    // The shape of Docker's rules.
    let docker = "iptables -P FORWARD DROP; iptables -N DOCKER-USER; iptables -A DOCKER-USER -j RETURN; \
        iptables -A FORWARD -j DOCKER-USER; iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
        iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT";
    node.fault(
        docker,
        "warning",
        "chain ip filter FORWARD) drops packets from or to pods",
        "iptables -I FORWARD -i bh-node",
    );
    node.flush();
    node.fault("ip6tables -P FORWARD DROP", "warning", "ip6 filter FORWARD) drops", "ip6tables -I FORWARD -o bh-node");
    node.flush();
    // Those of UFW and firewalld: connections that exist pass, others end at a policy or a rule.
    let table = |rules: &str, policy: &str| {
        format!(
            "nft add table inet fw; nft 'add chain inet fw transit {{ type filter hook forward priority 0; policy {policy}; }}'; \
             nft 'add rule inet fw transit ct state established,related accept'; {rules}"
        )
    };
    node.fault(
        &table("", "drop"),
        "warning",
        "inet fw transit) drops",
        "nft insert rule inet fw transit iifname \"bh-node\" accept",
    );
    node.flush();
    let reject = "nft add chain inet fw zone; nft add rule inet fw zone iifname eth9 accept; nft add rule inet fw transit jump zone; \
        nft add rule inet fw transit reject with icmpx type admin-prohibited";
    node.fault(&table(reject, "accept"), "warning", "inet fw transit) drops", "oifname \"bh-node\" accept");
    node.flush();
    // Whether an address is in the set is not known.
    let set = "nft add rule inet fw transit ip saddr '{ 10.0.0.0/8, 172.16.0.0/12 }' accept; nft add rule inet fw transit meta nfproto ipv6 accept";
    node.fault(&table(set, "drop"), "warning", "inet fw transit) may drop", "iifname \"bh-node\" accept");
    node.flush();
    // Rules that drop little, and those of kube-proxy, are no fault.
    let harmless = "iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP; iptables -A FORWARD -s 192.0.2.0/24 -j DROP; \
        iptables -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT; iptables -A INPUT -p tcp --dport 23 -j REJECT";
    node.shell(&format!("{harmless}; {}", table("nft add rule inet fw transit oifname docker0 drop", "accept")));
    assert_eq!(node.findings(false), [Value::Null; 0]);
    node.flush();

    // UDP port 4789.
    let input = "nft add table inet in; nft 'add chain inet in input { type filter hook input priority 0; policy drop; }'; \
        nft add rule inet in input tcp dport 22 accept; nft add rule inet in input udp dport 53 accept";
    let open = "nft insert rule inet in input udp dport 4789 accept";
    node.fault(input, "note", "inet in input) drops packets of the tunnel (UDP port 4789)", open);
    node.flush();
    node.fault(
        "iptables -P INPUT DROP",
        "note",
        "ip filter INPUT) drops",
        "iptables -I INPUT -p udp --dport 4789 -j ACCEPT",
    );
    node.flush();
    let vxlan = "ip link add other type vxlan id 7 dstport 4789 local 172.18.0.11";
    node.fault(vxlan, "warning", "the VXLAN device other uses UDP port 4789", "ip link del other");
    node.fault(
        "ip link add flannel.1 type vxlan id 1 dstport 8472 local 172.18.0.11",
        "warning",
        "Flannel",
        "ip link del flannel.1",
    );
    let nc = node.lab.node.spawn("nc -u -l 4789");
    eventually("the port is taken", || !node.findings(false).is_empty());
    let found = node.findings(false);
    assert!(found.len() == 1 && found[0]["remedy"].as_str().unwrap().contains("ss -ulpn sport = :4789"), "{found:#?}");
    drop(nc);

    // The tunnel's own device is no other one, and packets from it are forwarded, too.
    node.shell("ip link add bh-vxlan type vxlan external dstport 4789 nolearning; ip link set bh-vxlan up");
    assert_eq!(node.findings(false), [Value::Null; 0]);
    let card_alone = "iptables -P FORWARD DROP; iptables -A FORWARD -i card -o bh-node -j ACCEPT; \
        iptables -A FORWARD -i bh-node -o card -j ACCEPT";
    node.fault(card_alone, "warning", "ip filter FORWARD) drops", "iptables -I FORWARD -o bh-node");
    node.flush();

    // Remains.
    let calico = "ip link add cali7 type bridge; iptables -N cali-FORWARD; iptables -A FORWARD -j cali-FORWARD";
    node.fault(
        calico,
        "warning",
        "Calico runs on this node, or has left something: the interfaces cali7, the chains cali-FORWARD",
        "iptables-save | grep -v cali- | iptables-restore",
    );
    node.fault("ip link add cni0 type bridge", "warning", "cni0", "ip link del cni0");
}

#[test]
fn what_the_tunnel_needs_is_a_warning_where_it_is_needed_and_nothing_where_it_is_forbidden() {
    require!("nft", "iptables-legacy");
    only_with_tc!();
    let mut node = Node::new();
    let config = node.lab.more_config.clone();
    let with = |node: &mut Node, mode: &str| {
        node.lab.more_config = format!("{config}encapsulation: {mode}\n");
        node.lab.write_config();
        node.findings(true).into_iter().filter(|finding| finding["what"].as_str().unwrap().contains("4789")).collect()
    };
    node.shell("iptables -P INPUT DROP; ip link add other type vxlan id 7 dstport 4789 local 172.18.0.11");
    let found: Vec<Value> = with(&mut node, "always");
    assert_eq!(
        found.iter().map(|finding| &finding["severity"]).collect::<Vec<_>>(),
        ["warning", "warning"],
        "{found:#?}"
    );
    assert_eq!(with(&mut node, "never"), [Value::Null; 0]);
    // Rules of legacy iptables are not read.
    node.shell("iptables-legacy -P FORWARD DROP");
    let found = node.findings(true);
    let legacy = found.iter().find(|finding| finding["what"].as_str().unwrap().contains("iptables-legacy"));
    let legacy = legacy.unwrap_or_else(|| panic!("{found:#?}"));
    assert!(legacy["severity"] == "note" && legacy["remedy"].as_str().unwrap().contains("iptables-legacy -S FORWARD"));
}

#[test]
fn a_firewall_that_is_loaded_later_is_logged_and_shown_by_status_and_its_remedy_lets_packets_pass() {
    require!("nft", "ping", "iptables");
    only_with_tc!();
    let mut node = Node::new();
    node.lab.start("");
    let Node { lab, outside } = &node;
    let pod = lab.get("a").v4.clone();
    let pings = || outside.output(&format!("ping -n -c 1 -W 1 {pod}")).status.success();
    eventually("another machine reaches the pod", pings);
    let status = || lab.ask(&["status"]).1;
    eventually("status shows the ways", || status().contains("other nodes' pod networks"));
    assert!(!status().contains("FORWARD"), "{}", status());
    lab.node.exec("iptables -P FORWARD DROP");
    assert!(!pings());
    // The vswitch looks every 30 seconds, as rules of a firewall are no message. A changed link makes it look sooner.
    let looks = |holds: &dyn Fn() -> bool| {
        lab.node.ip("link set card alias changed");
        std::thread::sleep(Duration::from_secs(1));
        holds()
    };
    let told = "ip filter FORWARD) drops packets from or to pods";
    eventually_within(60, "status shows the chain", || looks(&|| status().contains(told)));
    assert_eq!(lab.count(told), 1, "{}", lab.log());
    for end in ["-i", "-o"] {
        assert!(lab.log().contains(&format!("iptables -I FORWARD {end} bh-node -j ACCEPT")), "{}", lab.log());
        lab.node.exec(&format!("iptables -I FORWARD {end} bh-node -j ACCEPT"));
    }
    assert!(pings());
    eventually_within(60, "status shows nothing more", || looks(&|| !status().contains("FORWARD")));
    node.lab.stop();
}
