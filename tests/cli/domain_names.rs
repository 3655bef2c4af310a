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
