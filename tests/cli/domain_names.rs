//! Rules that name domains, in the commands about a state.

use super::stderr;
use crate::support::{bulkhead, scratch, stdout};

/// A pod that may reach two names on port 443 and nothing else.
const STATE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 172.18.0.11}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop, labels: {app: agent}}
spec: {nodeName: node-1, containers: []}
status: {phase: Running, podIP: 10.244.1.5, podIPs: [{ip: 10.244.1.5}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: agents}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {podSelector: {matchLabels: {app: agent}}}}
  egress:
  - name: models
    action: Accept
    to: [{domainNames: [api.example.com, '*.models.example.org']}]
    protocols: [{tcp: {destinationPort: {number: 443}}}]
  - name: rest
    action: Deny
    to: [{networks: [0.0.0.0/0, '::/0']}]
";

#[test]
fn a_state_has_no_addresses_of_names_unless_a_file_gives_them() {
    let (state, names) =
        (scratch("domain-names-state.yaml", STATE), scratch("domain-names.yaml", "API.example.com: [203.0.113.7]\n"));
    let explain = ["explain", "--state", &state, "--from", "shop/agent", "--to", "203.0.113.7", "--port", "443"];
    assert!(stdout(&bulkhead(&explain), 1).contains("egress[1] (rest)"));
    let with_names = [&explain[..], &["--names", &names]].concat();
    assert!(stdout(&bulkhead(&with_names), 0).contains("egress[0] (models)"));
    // Which rules the node enforces, and that no rule is called idle.
    let compiled = stdout(&bulkhead(&["compile", "--state", &state, "--node", "node-1", "--renderer", "acl"]), 0);
    assert!(compiled.contains("egress:shop/agent, local:shop/agent"), "{compiled}");
    assert!(compiled.contains("allow any -> any TCP:443 by name api.example.com *.models.example.org"), "{compiled}");
    assert_eq!(stdout(&bulkhead(&["lint", "--state", &state]), 0), "nothing found\n");
    // Without the last rule, names resolved over HTTPS would open nothing.
    let open = STATE.replace("action: Deny", "action: Accept");
    let open = scratch("domain-names-open.yaml", &open);
    assert!(stdout(&bulkhead(&["lint", "--state", &open]), 1).contains("shop/agent may reach 1.1.1.1 at 853/TCP"));
    let script = ["compile", "--state", &state, "--node", "node-1", "--renderer", "nftables"];
    let said = stderr(&script, 0);
    assert!(said.contains("ClusterNetworkPolicy agents: rules with domain names allow nothing"), "{said}");
    let wrong = scratch("domain-names-wrong.yaml", "api.example.com: [203.0.113.7]\nb.example.com: [here]\n");
    let said = stderr(&[&explain[..], &["--names", &wrong]].concat(), 2);
    assert!(said.contains("domain-names-wrong.yaml:2: `here` is not an address of b.example.com"), "{said}");
}

#[test]
fn a_changed_list_of_names_is_a_difference_also_without_addresses() {
    let state = scratch("domain-names-before.yaml", STATE);
    let diff = |name: &str, text: &str, more: &[&str]| {
        let against = scratch(name, text);
        let args = ["diff", "--state", &state, "--against", &against, "-o", "json"];
        stdout(&bulkhead(&[&args[..], more].concat()), i32::from(text != STATE))
    };
    assert!(!diff("domain-names-same.yaml", STATE, &[]).contains("\"from\""));
    let added = STATE.replace("[api.example.com,", "[api.example.com, evil.example.net,");
    for more in [&[][..], &["--ungrouped"]] {
        let told = diff("domain-names-added.yaml", &added, more);
        assert!(told.contains("\"to\":\"name evil.example.net\""), "{told}");
        assert_eq!(told.matches("after\":\"allow").count(), 1, "{told}");
        assert!(told.contains("[[443,443]]"), "{told}");
    }
    let narrowed = STATE.replace("'*.models.example.org'", "a.models.example.org");
    let told = diff("domain-names-narrowed.yaml", &narrowed, &[]);
    assert!(told.contains("name *.models.example.org") && !told.contains("name a.models"), "{told}");
    // What changes for all addresses is not listed for each name.
    let clock = "  - {name: clock, action: Accept, to: [{networks: [0.0.0.0/0]}], protocols: [{udp: {destinationPort: {number: 123}}}]}\n";
    let opened = STATE.replace("  - name: rest", &format!("{clock}  - name: rest"));
    let told = diff("domain-names-opened.yaml", &opened, &[]);
    assert!(told.contains("0.0.0.0/0") && !told.contains("\"name "), "{told}");
}

#[test]
fn answers_from_a_state_say_that_they_do_not_know_the_names() {
    let state = scratch("domain-names-unknown.yaml", STATE);
    let claims = scratch(
        "domain-names-claims.yaml",
        "claims:\n- name: closed\n  never: {from: shop/agent, to: outside, ports: [443/TCP]}\n",
    );
    let names =
        scratch("domain-names-known.yaml", "api.example.com: [203.0.113.7]\na.models.example.org: [203.0.113.8]\n");
    let some = scratch("domain-names-some.yaml", "api.example.com: [203.0.113.7]\n");
    let explain = ["explain", "--from", "shop/agent", "--to", "203.0.113.7", "--port", "443"];
    for (args, code) in [(&explain[..], 1), (&["reach", "--port", "443/TCP"], 0), (&["test", &claims], 0)] {
        let args = [args, &["--state", &state]].concat();
        let warns = |more: &[&str], code| {
            stderr(&[&args[..], more].concat(), code).contains("addresses of domain names are unknown")
        };
        assert!(warns(&[], code), "{args:?}");
        let code = match args[0] {
            "explain" => 0,
            "test" => 1,
            _ => code,
        };
        assert!(warns(&["--names", &some], code), "{args:?}: the models' addresses are missing");
        assert!(!warns(&["--names", &names], code), "{args:?}");
    }
}

#[test]
fn replay_trusts_the_dns_servers_that_are_given() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/names/");
    let capture = format!("{folder}in.pcap");
    let state = std::fs::read_to_string(format!("{folder}state.yaml")).unwrap();
    // Another namespace's pods are no servers of the cluster.
    let state = scratch("domain-names-servers.yaml", &state.replace("kube-system", "dns-system"));
    let replay = |more: &[&str]| {
        let args = ["replay", "--state", &state, "--node", "node-1", &capture];
        stdout(&bulkhead(&[&args[..], more].concat()), 0)
            .contains("forward  Admin tier, ClusterNetworkPolicy agents egress[1] (models)")
    };
    assert!(!replay(&[]));
    assert!(replay(&["--dns-server", "10.244.1.2"]) && replay(&["--dns-server", "10.244.1.0/30", "--dns-grace", "1h"]));
    assert!(
        stderr(&["replay", "--state", &state, "--node", "node-1", &capture, "--dns-grace", "25h"], 2)
            .contains("up to 24h")
    );
}

#[test]
fn replay_forwards_by_learned_names_what_learn_has_seen() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/names/");
    let capture = format!("{folder}in.pcap");
    let state = std::fs::read_to_string(format!("{folder}state.yaml")).unwrap();
    let open = &state[..state.find("---\napiVersion: policy").unwrap()];
    let open = scratch("domain-names-unlearned.yaml", open);
    let learned = stdout(&bulkhead(&["learn", "--state", &open, &capture]), 0);
    assert!(learned.contains("- www.models.example.org\n"), "{learned}");
    let learned = scratch("domain-names-learned.yaml", &learned);
    let told = stdout(&bulkhead(&["replay", "--state", &open, &learned, "--node", "node-1", &capture]), 0);
    assert!(told.contains("42 forwarded, 0 dropped") && told.contains("by the name www.models.example.org"), "{told}");
    // Who does not ask the cluster's DNS has no names.
    let elsewhere =
        scratch("domain-names-elsewhere.yaml", &std::fs::read_to_string(&open).unwrap().replace("kube-system", "x"));
    let learn = |more: &[&str]| stdout(&bulkhead(&[&["learn", "--state", &elsewhere, &capture], more].concat()), 0);
    assert!(!learn(&[]).contains("domainNames") && learn(&["--dns-server", "10.244.1.2"]).contains("domainNames"));
}

/// Returns the capture with a client's HTTP request after the handshake of the connection from this port.
fn with_request(capture: &[u8], sport: u16) -> Vec<u8> {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    const ACK: u8 = 0x10;
    let (mut made, mut rest, mut is_made) = (capture[..24].to_vec(), &capture[24..], false);
    while let Some(header) = rest.first_chunk::<16>() {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (record, more) = rest.split_at(16 + len);
        made.extend(record);
        // Ethernet, IPv4 without options, TCP with 12 bytes of options.
        let packet = &record[16..];
        if !is_made && packet.len() == 66 && packet[34..36] == sport.to_be_bytes() && packet[47] == ACK {
            is_made = true;
            let (packet_len, total) = (len + REQUEST.len(), 52 + REQUEST.len());
            made.extend(&header[..8]);
            made.extend([u32::try_from(packet_len).unwrap().to_le_bytes(); 2].concat());
            made.extend(&packet[..16]);
            made.extend(u16::try_from(total).unwrap().to_be_bytes());
            made.extend(&packet[18..]);
            made.extend(REQUEST);
        }
        rest = more;
    }
    assert!(is_made);
    made
}

#[test]
fn replay_shows_what_the_check_of_server_names_would_do() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/pcaps/names/");
    let state = format!("{folder}state.yaml");
    let capture = with_request(&std::fs::read(format!("{folder}in.pcap")).unwrap(), 60376);
    let path = scratch("domain-names-request.pcap", "");
    std::fs::write(&path, capture).unwrap();
    let replay = |check: &str| {
        let args =
            ["replay", "--state", &state, "--node", "node-1", "-o", "json", "--verify-server-name", check, &path];
        stdout(&bulkhead(&args), 0)
    };
    for (check, is_dropped) in [("off", false), ("audit", false), ("drop", true)] {
        assert_eq!(replay(check).contains("\"server_name\""), is_dropped, "{check}");
    }
    assert_ne!(replay("off"), replay("audit"), "an audit reports it");
    let wrong = ["replay", "--state", &state, "--node", "node-1", &path, "--verify-server-name", "warn"];
    assert!(stderr(&wrong, 2).contains("write off, audit or drop"));
}

#[test]
fn names_of_cilium_never_mean_pods() {
    let (objects, _) = STATE.split_once("---\napiVersion: policy.networking").unwrap();
    let other = "
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: node-1, containers: []}
status: {phase: Running, podIP: 10.244.1.6, podIPs: [{ip: 10.244.1.6}]}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: models, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: agent}}
  egress: [{toFQDNs: [{matchName: api.example.com}]}]
";
    let state = scratch("domain-names-cilium.yaml", &format!("{objects}---{other}"));
    let names = scratch("domain-names-of-a-pod.yaml", "api.example.com: [10.244.1.6, 203.0.113.7]\n");
    let explain = |to| ["explain", "--state", &state, "--from", "shop/agent", "--to", to, "--port", "443"];
    for (to, code) in [("203.0.113.7", 0), ("shop/db", 1)] {
        stdout(&bulkhead(&[&explain(to)[..], &["--names", &names]].concat()), code);
    }
}
