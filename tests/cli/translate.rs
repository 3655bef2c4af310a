//! `bulkhead translate`: objects for `kubectl` on standard output, the proof on standard error, exit codes.

use std::fs;

use crate::support::{bulkhead, scratch};

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: red}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, serviceAccountName: robot}
status: {podIPs: [{ip: 10.1.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1}
status: {podIPs: [{ip: 10.1.0.3}]}
---
";

/// Returns standard output and standard error of the translation of policies in the cluster. Panics if the exit code differs.
fn translated(name: &str, policies: &str, code: i32, more: &[&str]) -> [String; 2] {
    let cluster = scratch(&format!("translate-{name}-cluster.yaml"), CLUSTER);
    let policies = scratch(&format!("translate-{name}.yaml"), policies);
    let args = ["translate", "--state", &cluster, &policies];
    let output = bulkhead(&[&args[..], more].concat());
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    [out, err]
}

#[test]
fn policies_of_a_namespace_become_network_policies_with_their_comments() {
    let policy = "
# Who may use the database.
# Ask the team first.
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  selector: app == 'db'
  ingress:
  # The shop.
  - action: Allow
    protocol: TCP
    source: {selector: app == 'web'}
    destination: {ports: [5432]}
";
    let [out, err] = translated("comments", policy, 0, &[]);
    let expected = r#"# Who may use the database.
# Ask the team first.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: db
  namespace: shop
  annotations:
    bulkhead.dev/translated-from: "Calico NetworkPolicy shop/db"
spec:
  podSelector:
    matchLabels:
      app: db
  policyTypes: [Ingress]
  ingress:
    # The shop.
    - from:
        - podSelector:
            matchLabels:
              app: web
      ports:
        - protocol: TCP
          port: 5432
"#;
    assert_eq!(out, expected);
    assert!(err.contains("every first packet and every reply") && err.contains("by construction"), "{err}");
}

#[test]
fn what_is_different_has_a_witness_and_both_rules_and_what_cannot_be_said_a_place_and_a_remedy() {
    let policy = "
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: db}}]
    toPorts:
    - ports: [{port: \"80\", protocol: TCP}]
      rules: {http: [{method: GET}]}
";
    let [out, err] = translated("http", policy, 1, &[]);
    assert!(out.contains("kind: NetworkPolicy") && !out.contains("port: 80"), "{out}");
    for part in
        ["shop/db -> shop/web  TCP 80", "newly denied", "spec.ingress[0]", "HTTP rules decide", ".yaml:8", "help:"]
    {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn what_holds_for_this_cluster_only_is_listed_with_what_would_show_it() {
    let policy = "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: db}
spec:
  selector: app contains 'd'
  types: [Ingress]
  ingress: [{action: Allow, source: {serviceAccounts: {names: [robot]}}}]
";
    let [out, err] = translated("here", policy, 0, &[]);
    assert!(out.contains("namespace: shop") && out.contains("app: db") && out.contains("app: web"), "{out}");
    for part in
        ["another value of `app`", "`service account=robot` holds", "a namespace that this cluster does not have"]
    {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn admin_network_policies_keep_their_priorities_around_those_of_the_state() {
    let policies = "
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: first}
spec:
  priority: 7
  subject: {namespaces: {}}
  ingress: [{name: web, action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP, port: 80}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: known}
spec:
  tier: Admin
  priority: 9
  subject: {namespaces: {}}
  ingress: [{action: Accept, from: [{namespaces: {}}]}]
";
    let [out, err] = translated("admin", policies, 0, &[]);
    assert!(out.contains("tier: Admin\n  priority: 7\n") && out.contains("tier: Baseline"), "{out}");
    assert!(out.contains("name: web") && !out.contains("known") && err.contains("by construction"), "{out}{err}");
}

#[test]
fn the_objects_can_be_written_to_a_file_as_json() {
    let policy = "
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: names}
spec:
  endpointSelector: {matchLabels: {app: web}}
  egress:
  - toFQDNs: [{matchName: example.com}]
    toPorts: [{ports: [{port: \"443\", protocol: TCP}]}]
";
    let file = scratch("translate-out.json", "");
    let [out, err] = translated("json", policy, 0, &["-o", "json", "--out", &file]);
    assert!(out.is_empty() && err.contains("by construction"), "{out}{err}");
    let list: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let text = list.to_string();
    assert!(list["kind"] == "List" && text.contains(r#""domainNames":["example.com"]"#), "{text}");
    assert!(text.contains(r#""tier":"Baseline""#), "{text}");
}

#[test]
fn a_state_that_cannot_be_read_is_an_error() {
    let [out, err] =
        translated("error", "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: p}}\n", 2, &[]);
    assert!(out.is_empty() && err.contains("help:"), "{err}");
}

/// A tier before `default` that denies a block, and allows probes of an office.
const SECURITY: &str = "
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: security}, spec: {order: 10}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: security.world}
spec:
  tier: security
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {nets: [198.51.100.0/24]}, destination: {ports: [9100]}}
  - {action: Deny, source: {nets: [203.0.113.0/24, 198.51.100.0/24]}}
  - {action: Pass}
";

const WEB: &str = "
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: all}
spec:
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, destination: {ports: [80]}}
";

#[test]
fn what_a_tier_before_default_decides_about_the_world_is_said_by_network_policies() {
    let [out, err] = translated("world", &format!("{SECURITY}---{WEB}"), 0, &[]);
    assert!(err.contains("every first packet") && !err.contains("Not translated"), "{err}");
    assert!(out.contains("except:") && out.contains("port: 9100"), "{out}");
    assert!(err.contains("a pod with an address in the blocks"), "{err}");
    // Without a policy in `default`, one is made that allows all others.
    let [out, err] = translated("world-open", SECURITY, 0, &[]);
    assert!(err.contains("every first packet") && out.contains("203.0.113.0/24"), "{out}{err}");
}

#[test]
fn a_denial_of_the_world_that_a_network_policy_of_the_cluster_opens_is_not_translated() {
    let open = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open, namespace: shop}
spec: {podSelector: {}, ingress: [{}]}
";
    let [_, err] = translated("world-opened", &format!("{SECURITY}---{open}"), 1, &[]);
    assert!(err.contains("203.0.113.") && err.contains("only pods as sources"), "{err}");
}

#[test]
fn rules_about_requests_are_not_translated_in_any_tier() {
    let policy = "
{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: security}, spec: {order: 10}}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: security.get}
spec:
  tier: security
  selector: app == 'web'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: TCP, source: {selector: app == 'db'}, http: {methods: [GET]}}
";
    let [out, err] = translated("requests", policy, 1, &[]);
    assert!(!out.contains("Accept") && err.contains("HTTP rules"), "{out}{err}");
}

#[test]
fn egress_to_the_world_is_equal_by_construction_and_names_no_address_of_the_cluster() {
    let policy = "
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: out, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  egress:
  - toEntities: [world]
    toPorts: [{ports: [{port: \"443\", protocol: TCP}]}]
  - toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.9.0.0/16]}]
";
    let [out, err] = translated("out", policy, 0, &[]);
    assert!(err.contains("every first packet") && err.contains("by construction"), "{err}");
    assert!(out.contains("action: Pass") && !out.contains("10.1.0.") && !out.contains("192.168.0.1"), "{out}");
}
