//! Rules of Calico and Cilium on types of ICMP, in the answers about a state.

use crate::support::{bulkhead, scratch, stdout};

/// Two pods of two families, and their node.
const PODS: &str = "apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1}
status: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1}
status: {podIPs: [{ip: 10.0.0.2}, {ip: 'fd00::2'}]}
";

const CALICO: &str = "---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: ping, namespace: shop}
spec:
  selector: app == 'db'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: ICMP, icmp: {type: 8}}
  - {action: Allow, protocol: ICMPv6, icmp: {type: 128}}
";

const CILIUM: &str = "---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: ping, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: db}}
  ingress:
  - fromEndpoints: [{}]
    icmps: [{fields: [{type: 8}, {family: IPv6, type: EchoRequest}]}]
";

fn explained(state: &str, port: &str) -> (Option<i32>, String) {
    let output = bulkhead(&["explain", "--state", state, "--from", "shop/web", "--to", "shop/db", "--port", port]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_rule_on_echo_requests_allows_them_and_no_other_message() {
    for (name, policy) in [("calico", CALICO), ("cilium", CILIUM)] {
        let state = scratch(&format!("icmp-{name}.yaml"), &format!("{PODS}{policy}"));
        for (port, code, headline) in [
            ("8/ICMP", 0, "shop/web (10.0.0.1) -> shop/db (10.0.0.2) ICMP 8: ALLOW"),
            ("icmpv6", 0, "shop/web (fd00::1) -> shop/db (fd00::2) ICMPv6 128: ALLOW"),
            ("13/ICMP", 1, "shop/web (10.0.0.1) -> shop/db (10.0.0.2) ICMP 13: DENY"),
            ("80/TCP", 1, "shop/web (10.0.0.1) -> shop/db (10.0.0.2) TCP 80: DENY"),
        ] {
            let (was, text) = explained(&state, port);
            assert_eq!((was, text.lines().next()), (Some(code), Some(headline)), "{name}");
        }
        let args = [
            "reach",
            "--state",
            &state,
            "--port",
            "8/ICMP",
            "--port",
            "13:0/ICMP",
            "--port",
            "128/ICMPv6",
            "-o",
            "csv",
        ];
        let csv = stdout(&bulkhead(&args), 0);
        let to_db = |family: &str, port: &str| {
            let wanted = format!("shop/db,1,{family},{port},");
            csv.lines().find(|line| line.contains(&wanted)).map(|line| line.contains(",allow,"))
        };
        assert_eq!(to_db("IPv4", "ICMP,8"), Some(true), "{csv}");
        assert_eq!(to_db("IPv4", "ICMP,13"), Some(false), "{csv}");
        assert_eq!((to_db("IPv6", "ICMPv6,128"), to_db("IPv6", "ICMP,8")), (Some(true), None), "{csv}");
    }
}

#[test]
fn a_difference_in_types_of_icmp_is_shown_apart_from_other_protocols() {
    let isolated = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
";
    let old = scratch("icmp-old.yaml", &format!("{PODS}{isolated}"));
    for (name, policy) in [("calico", CALICO), ("cilium", CILIUM)] {
        let new = scratch(&format!("icmp-new-{name}.yaml"), &format!("{PODS}{policy}"));
        let diff = |form: &str| stdout(&bulkhead(&["diff", "--state", &old, "--against", &new, "-o", form]), 1);
        let text = diff("text");
        assert!(text.contains("-> shop/db  ICMP 8 (IPv4)"), "{name}: {text}");
        assert!(text.contains("-> shop/db  ICMPv6 128 (IPv6)"), "{name}: {text}");
        assert!(!text.contains("other protocols") && !text.contains("ICMPv6 128 (IPv4)"), "{name}: {text}");
        let json: serde_json::Value = serde_json::from_str(&diff("json")).unwrap();
        let icmp = json["changes"].as_array().unwrap().iter().find(|change| change["protocol"] == "ICMP").unwrap();
        assert_eq!(icmp["ports"], serde_json::json!([[0x0800, 0x08ff]]), "{name}");
    }
    let pings = scratch("icmp-pings.yaml", &format!("{PODS}{CALICO}"));
    let open = scratch("icmp-open.yaml", PODS);
    let text = stdout(&bulkhead(&["diff", "--state", &pings, "--against", &open]), 1);
    assert!(text.contains("ICMP 0-7, 9-255") && text.contains("other protocols except ICMP"), "{text}");
}
