//! `enforce: source`: the vswitch judges packets where they enter: at the sending pod's port, and for packets from outside by one table.

use crate::lab::netns::Netns;
use crate::lab::{Lab, policy};
use crate::require;
use serde_json::Value;

/// A policy: the server accepts TCP 80 and UDP 53 from the client, and has no egress.
fn only_from_client() -> String {
    let spec = "{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress], ingress: [{\
        from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}, {port: 53, protocol: UDP}]}]}";
    policy("only-from-client", spec)
}

/// A lab with three pods, an outside machine, a host port, and a server in one of the pods.
fn lab() -> Lab {
    let mut lab = Lab::new();
    for name in ["client", "server", "other"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.outside();
    lab.host();
    lab.more_config = "enforce: source\n".to_owned();
    lab
}

fn connects(netns: &Netns, to: &str, port: u16) -> bool {
    netns.output(&format!("nc -n -z -w 1 {to} {port}")).status.success()
}

/// Whether a UDP datagram is answered.
fn answers(netns: &Netns, to: &str) -> bool {
    let line = format!("echo question | timeout 2 socat -t 1 - UDP6:[{to}]:53");
    let output = netns.command("sh", &["-c", &line]).output().unwrap();
    output.stdout == b"question\n"
}

/// The exit code of `explain --live`, and the first step for the first address family.
fn explain(lab: &Lab, from: &str, to: &str, port: &str) -> (Option<i32>, Value) {
    let (code, text) = lab.ask(&["explain", "--live", "--from", from, "--to", to, "--port", port, "-o", "json"]);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}"));
    (code, told["walks"][0]["steps"][0].clone())
}

#[test]
fn tcp_and_udp_are_judged_at_the_sender_and_what_enters_the_node_by_one_table() {
    require!("nc", "socat", "ss", "ping");
    let mut lab = lab();
    lab.start(&only_from_client());
    let server = lab.get("server");
    let (v4, v6) = (server.v4.clone(), server.v6.clone());
    let _tcp = server.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    let _closed = server.netns.serve("socat TCP6-LISTEN:81,fork,reuseaddr EXEC:cat", 81);
    let _udp = server.netns.spawn("socat UDP6-RECVFROM:53,fork EXEC:cat");
    let outside = lab.outside.as_ref().unwrap();
    for to in [&v4, &v6] {
        assert!(lab.connects("client", to, 80), "{to}");
        assert!(!lab.connects("client", to, 81) && !lab.connects("other", to, 80), "{to}");
        assert!(!connects(outside, to, 80), "from outside to {to}");
        assert!(connects(&lab.node, to, 81), "the own node to {to}");
    }
    crate::lab::netns::eventually("a datagram of the client is answered", || answers(&lab.get("client").netns, &v6));
    assert!(!answers(&lab.get("other").netns, &v6));
    // Policy allows no ICMP.
    let client = lab.get("client").v4.clone();
    assert!(!lab.pings("client", &v4) && !lab.pings("server", &client) && lab.pings("other", &client));
    assert!(!lab.connects("server", "172.18.0.100", 80), "the server's own egress");

    // `explain` names the table that decides.
    let (code, step) = explain(&lab, "default/other", "default/server", "80");
    assert_eq!((code, &step["table"]), (Some(1), &"default/other".into()), "{step:#}");
    assert_eq!(step["isolated_by"][0]["name"], "only-from-client");
    let (code, step) = explain(&lab, "default/client", "default/server", "80");
    assert_eq!((code, &step["table"]), (Some(0), &"default/client".into()), "{step:#}");
    assert_eq!(step["policy"]["name"], "only-from-client");
    let (code, step) = explain(&lab, "172.18.0.100", "default/server", "80");
    assert_eq!((code, &step["table"]), (Some(1), &"uplink".into()), "{step:#}");
    let summary = lab.stop();
    assert!(summary["dropped"]["policy_denied"].as_u64() >= Some(8), "{summary:#}");
}

#[test]
fn a_change_of_the_receivers_policy_ends_the_senders_connection_and_no_other() {
    require!("socat", "ss", "nc");
    let mut lab = lab();
    lab.start("");
    let server = lab.get("server");
    let v4 = server.v4.clone();
    let _server = server.netns.serve("socat TCP6-LISTEN:80,fork,reuseaddr EXEC:cat", 80);
    let dialogue = |pod: &str| {
        let program = "import socket, sys\nc = socket.create_connection((sys.argv[1], 80), 5)\nc.settimeout(1)\n\
            print('ready', flush=True)\n\
            for line in sys.stdin:\n    try:\n        c.send(b'x'); print(c.recv(9).decode() or 'end', flush=True)\n\
            \x20   except OSError: print('silence', flush=True)\n";
        let mut dialogue = crate::lab::netns::Dialogue::start(&lab.get(pod).netns, program, &v4);
        assert_eq!(dialogue.hear(), "ready");
        dialogue
    };
    let (mut client, mut other) = (dialogue("client"), dialogue("other"));
    assert_eq!((client.say("go"), other.say("go")), ("x".to_owned(), "x".to_owned()));
    lab.apply(&only_from_client());
    assert_eq!((client.say("go"), other.say("go")), ("x".to_owned(), "silence".to_owned()));
    drop((client, other));
    let summary = lab.stop();
    assert!(summary["sessions"]["revoked"].as_u64() >= Some(1), "{summary:#}");
}
