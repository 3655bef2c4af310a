//! Contiv's ACL renderer tests, with the probes of its mock engine: first packets between local pods, a remote pod and the Internet.
//! Policies replace Contiv's rule lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet};
use bulkhead_control::contract::{SetDelta, Transaction};
use bulkhead_control::renderer::Renderer;
use bulkhead_control::renderer::acl::AclRenderer;

use super::manifest::{node, pod, policy};
use super::probe::{NODE, Vswitch, guarded};

/// To pod1 (Contiv: TS5): only TCP from 10.10/16.
const TCP_IN: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress],
    ingress: [{from: [{ipBlock: {cidr: 10.10.0.0/16}}], ports: [{protocol: TCP}]}]";

/// As `TCP_IN`, for pod1 and pod2.
const TCP_IN_TWO: &str = "podSelector: {matchExpressions: [{key: pod, operator: In, values: [pod1, pod2]}]},
    policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 10.10.0.0/16}}], ports: [{protocol: TCP}]}]";

/// From pod1 (Contiv: TS6): only TCP to 10.10/16.
const TCP_OUT: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress],
    egress: [{to: [{ipBlock: {cidr: 10.10.0.0/16}}], ports: [{protocol: TCP}]}]";

/// From pod1 in Contiv's first transaction of TS7.
const POD1_OUT_FIRST: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress],
    egress: [{ports: [{port: 161, protocol: UDP}]}]";

/// To pod1 in the first transaction. Contiv's list has no final deny, which leaves all other traffic open.
const POD1_IN_FIRST: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
    {from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 53, protocol: UDP}]},
    {from: [{ipBlock: {cidr: 192.168.0.0/16}}], ports: [{port: 514, protocol: UDP}]},
    {}]";

/// From pod1 in the second transaction.
const POD1_OUT_SECOND: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress], egress: [
    {to: [{ipBlock: {cidr: 10.10.0.0/16}}], ports: [{port: 80}]},
    {ports: [{port: 161, protocol: UDP}]}]";

/// To pod1 in the second transaction.
const POD1_IN_SECOND: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
    {from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 53, protocol: UDP}]},
    {from: [{ipBlock: {cidr: 192.168.0.0/16}}], ports: [{port: 514, protocol: UDP}]}]";

/// From pod3, in both transactions.
const POD3_OUT: &str = "podSelector: {matchLabels: {pod: pod3}}, policyTypes: [Egress], egress: [
    {to: [{ipBlock: {cidr: 10.10.1.1/32}}], ports: [{protocol: UDP}]},
    {ports: [{port: 22}]}]";

/// To pod3, in both transactions.
const POD3_IN: &str = "podSelector: {matchLabels: {pod: pod3}}, policyTypes: [Ingress], ingress: [
    {from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}, {port: 443}]},
    {ports: [{port: 67, protocol: UDP}]}]";

const AFTER_FIRST: &str = "
    pod1        -> pod3         nothing
    pod1        -> pod2         UDP:161
    pod1        -> pod6         UDP:161
    pod1        -> 8.8.8.8      UDP:161
    pod3        -> pod1         TCP:22 UDP:*
    pod3        -> pod2         TCP:22
    pod3        -> pod6         TCP:22
    pod3        -> 8.8.8.8      TCP:22
    pod2        -> pod1         all
    pod6        -> pod1         all
    8.8.8.8     -> pod1         all
    pod2        -> pod3         TCP:80 TCP:443 UDP:67
    pod6        -> pod3         TCP:80 TCP:443 UDP:67
    10.200.0.1  -> pod3         TCP:80 TCP:443 UDP:67
    8.8.8.8     -> pod3         UDP:67
    pod1        -> pod1         all
    pod3        -> pod3         all
    pod2        -> pod4         all
    pod6        -> pod2         all
    pod2        -> 8.8.8.8      all";

const AFTER_SECOND: &str = "
    pod1        -> pod3         TCP:80
    pod1        -> pod2         TCP:80 UDP:161
    pod1        -> pod6         TCP:80 UDP:161
    pod1        -> 10.11.0.1    UDP:161
    pod1        -> 8.8.8.8      UDP:161
    pod3        -> pod1         UDP:53
    pod3        -> pod2         TCP:22
    pod3        -> pod6         TCP:22
    pod3        -> 8.8.8.8      TCP:22
    pod2        -> pod1         UDP:53
    pod6        -> pod1         UDP:53
    192.168.9.9 -> pod1         UDP:514
    8.8.8.8     -> pod1         nothing
    pod2        -> pod3         TCP:80 TCP:443 UDP:67
    pod6        -> pod3         TCP:80 TCP:443 UDP:67
    8.8.8.8     -> pod3         UDP:67
    pod1        -> pod1         all
    pod3        -> pod3         all
    pod2        -> pod4         all
    pod6        -> pod2         all
    pod2        -> 8.8.8.8      all";

/// Contiv's pods by number. The last one is on another node.
const PODS: [(&str, &str, &str); 6] = [
    ("pod1", "10.10.1.1", NODE),
    ("pod2", "10.10.1.2", NODE),
    ("pod3", "10.10.2.1", NODE),
    ("pod4", "10.10.2.2", NODE),
    ("pod5", "10.10.2.3", NODE),
    ("pod6", "10.10.10.1", "node-2"),
];

/// Both nodes, and the pods except those left out.
fn cluster_without(left_out: &[&str]) -> Vec<String> {
    let pods = PODS.into_iter().filter(|(name, ..)| !left_out.contains(name));
    let pods =
        pods.map(|(name, address, node)| pod(&format!("default/{name}"), address, node, &format!("pod: {name}")));
    [node(NODE, "172.16.0.1"), node("node-2", "172.16.0.2")].into_iter().chain(pods).collect()
}

fn policies(named: &[(&str, &str)]) -> Vec<String> {
    named.iter().map(|(name, spec)| policy(&format!("default/{name}"), spec)).collect()
}

fn vswitch(named: &[(&str, &str)]) -> Vswitch {
    Vswitch::of(&[cluster_without(&[]), policies(named)].concat())
}

fn first() -> Vec<String> {
    policies(&[("in-1", POD1_IN_FIRST), ("out-1", POD1_OUT_FIRST), ("in-3", POD3_IN), ("out-3", POD3_OUT)])
}

fn second() -> Vec<String> {
    policies(&[("in-1", POD1_IN_SECOND), ("out-1", POD1_OUT_SECOND), ("in-3", POD3_IN), ("out-3", POD3_OUT)])
}

#[test]
fn a_rule_towards_a_pod_guards_its_interface_alone() {
    let vswitch = vswitch(&[("tcp-in", TCP_IN)]);
    assert_eq!(vswitch.guarded(), ["pod1"]);
    vswitch.expect(
        "pod6       -> pod1        TCP:*
         pod2       -> pod1        TCP:*
         10.10.50.1 -> pod1        TCP:*
         10.11.0.1  -> pod1        nothing
         8.8.8.8    -> pod1        nothing
         pod1       -> pod1        all
         pod1       -> pod2        all
         pod1       -> pod6        all
         pod1       -> 10.10.50.1  all
         pod1       -> 8.8.8.8     all
         8.8.8.8    -> pod2        all",
    );
}

#[test]
fn a_rule_from_a_pod_guards_the_exit_and_the_other_pods_of_the_node() {
    let vswitch = vswitch(&[("tcp-out", TCP_OUT)]);
    assert_eq!(vswitch.guarded(), ["pod1", "pod2", "pod3", "pod4", "pod5", "uplink", "host"]);
    assert_eq!(vswitch.sharing("pod1"), ["pod1", "pod2", "pod3", "pod4", "pod5"], "one table says it for all pods");
    vswitch.expect(
        "pod1    -> pod6        TCP:*
         pod1    -> pod2        TCP:*
         pod1    -> 10.10.50.1  TCP:*
         pod1    -> 10.11.0.1   nothing
         pod1    -> 8.8.8.8     nothing
         pod1    -> pod1        all
         pod6    -> pod1        all
         pod2    -> pod1        all
         8.8.8.8 -> pod1        all
         pod2    -> pod6        all
         pod2    -> 8.8.8.8     all",
    );
}

#[test]
fn a_pod_and_its_own_node_reach_each_other_where_contiv_dropped_probes_of_the_kubelet() {
    vswitch(&[("tcp-in", TCP_IN), ("tcp-out", TCP_OUT)]).expect(
        "node-1 -> pod1    all
         pod1   -> node-1  all
         node-2 -> pod1    nothing
         pod1   -> node-2  nothing",
    );
}

#[test]
fn pods_with_equal_rules_share_one_table_and_it_outlives_one_of_them() {
    let mut vswitch = vswitch(&[("tcp-in", TCP_IN_TWO)]);
    let towards = |pod: &str| {
        format!(
            "pod6    -> {pod}  TCP:*
             8.8.8.8 -> {pod}  nothing"
        )
    };
    assert_eq!(vswitch.guarded(), ["pod1", "pod2"]);
    assert_eq!(vswitch.sharing("pod1"), ["pod1", "pod2"]);
    let compiled = |vswitch: &Vswitch| {
        let tables = vswitch.tables();
        tables.tables[tables.interfaces[0].table].tables.clone()
    };
    let before = compiled(&vswitch);
    ["pod1", "pod2"].iter().for_each(|pod| vswitch.expect(&towards(pod)));
    vswitch.delete_pod("pod2");
    assert_eq!(vswitch.guarded(), ["pod1"]);
    vswitch.expect(&towards("pod1"));
    vswitch.expect("8.8.8.8 -> pod2 all"); // No pod has the address any more, so it goes to the open uplink.
    assert!(Arc::ptr_eq(&before, &compiled(&vswitch)), "the table of the pod that stays is not made again");
}

#[test]
fn a_pod_that_its_policy_no_longer_selects_is_open_again() {
    let mut vswitch = vswitch(&[("tcp-in", TCP_IN_TWO)]);
    vswitch.apply(&pod("default/pod2", "10.10.1.2", NODE, "pod: other"));
    assert_eq!(vswitch.guarded(), ["pod1"]);
    vswitch.expect(
        "8.8.8.8 -> pod2  all
         8.8.8.8 -> pod1  nothing",
    );
}

#[test]
fn two_isolated_pods_reach_each_other_by_what_the_rules_of_both_allow_step_by_step() {
    let mut vswitch = Vswitch::of(&cluster_without(&[]));
    assert_eq!(vswitch.guarded(), [""; 0]);
    first().iter().for_each(|manifest| vswitch.apply(manifest));
    vswitch.expect(AFTER_FIRST);
    second().iter().for_each(|manifest| vswitch.apply(manifest));
    vswitch.expect(AFTER_SECOND);
    first().iter().for_each(|manifest| vswitch.apply(manifest));
    vswitch.expect(AFTER_FIRST);
}

#[test]
fn a_restart_and_a_resync_at_run_time_enforce_the_same_as_single_steps() {
    let mut vswitch = Vswitch::of(&[cluster_without(&[]), second()].concat());
    vswitch.expect(AFTER_SECOND);
    vswitch.resync(&[cluster_without(&[]), first()].concat());
    vswitch.expect(AFTER_FIRST);
    vswitch.resync(&[cluster_without(&[]), second()].concat());
    vswitch.expect(AFTER_SECOND);
}

#[test]
fn a_resync_without_a_pods_policies_opens_the_pod_and_keeps_what_restricts_its_peers() {
    let mut vswitch = Vswitch::of(&[cluster_without(&[]), second()].concat());
    vswitch.resync(&[cluster_without(&[]), second()[..2].to_vec()].concat());
    vswitch.expect(
        "8.8.8.8 -> pod3     all
         pod6    -> pod3     all
         pod2    -> pod3     all
         pod3    -> 8.8.8.8  all
         pod3    -> pod2     all
         pod3    -> pod1     UDP:53
         pod1    -> pod3     TCP:80 UDP:161
         pod1    -> pod6     TCP:80 UDP:161
         8.8.8.8 -> pod1     nothing",
    );
    assert_eq!(vswitch.sharing("pod2"), ["pod2", "pod3", "pod4", "pod5"], "pod3 is like any other pod");
    vswitch.resync(&[cluster_without(&[]), second()].concat());
    vswitch.expect(AFTER_SECOND);
}

#[test]
fn a_resync_without_a_pod_leaves_its_address_to_the_uplink_where_only_its_peers_are_restricted() {
    let mut vswitch = Vswitch::of(&[cluster_without(&[]), second()].concat());
    vswitch.resync(&[cluster_without(&["pod3"]), second()].concat());
    assert!(!vswitch.guarded().contains(&"pod3".to_owned()));
    vswitch.expect(
        "8.8.8.8 -> pod3     all
         pod2    -> pod3     all
         pod3    -> 8.8.8.8  all
         pod3    -> pod1     UDP:53
         pod1    -> pod3     TCP:80 UDP:161",
    );
    vswitch.resync(&[cluster_without(&[]), second()].concat());
    vswitch.expect(AFTER_SECOND);
}

#[test]
fn removing_the_isolated_pods_one_by_one_leaves_nothing_guarded() {
    let mut vswitch = Vswitch::of(&[cluster_without(&[]), second()].concat());
    vswitch.delete_pod("pod3");
    assert_eq!(vswitch.guarded(), ["pod1", "pod2", "pod4", "pod5", "uplink", "host"]);
    vswitch.expect(
        "pod1    -> pod2     TCP:80 UDP:161
         pod1    -> 8.8.8.8  UDP:161
         pod2    -> pod1     UDP:53
         8.8.8.8 -> pod1     nothing
         pod2    -> pod3     all",
    );
    vswitch.delete_pod("pod1");
    assert_eq!(vswitch.guarded(), [""; 0]);
    let tables = vswitch.tables();
    assert_eq!(tables.tables.len(), 2, "one open table for the pods that are left, and the exit");
    assert!(tables.tables.iter().all(|table| table.tables.constant_action() == Some(Action::Allow)));
    ["pod2", "pod4", "pod5"].iter().for_each(|pod| vswitch.delete_pod(pod));
    assert_eq!(vswitch.tables().interfaces.len(), 2, "uplink and host stay");
}

#[test]
fn repeating_a_transaction_or_a_resync_publishes_nothing() {
    let mut vswitch = Vswitch::of(&cluster_without(&[]));
    second().iter().for_each(|manifest| vswitch.apply(manifest));
    let transactions = vswitch.recorder.transactions();
    assert_eq!(transactions.len(), 1 + second().len(), "the start, and one for each policy");

    let mut renderer = AclRenderer::of_node(NODE.into());
    let mut generations = Vec::new();
    for transaction in &transactions {
        for _ in 0..2 {
            renderer.render(transaction).unwrap();
            generations.push(renderer.node_tables(NODE).unwrap().generation);
        }
    }
    assert_eq!(generations, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5], "the first time counts, the second does not");

    // The whole state, as in a resync.
    let mut latest = BTreeMap::new();
    transactions.iter().for_each(|transaction| latest.extend(transaction.endpoints.iter().cloned()));
    let sets = vswitch.recorder.sets();
    let whole =
        |(set, members): (_, &AddressSet)| SetDelta { set, added: Arc::new(members.clone()), removed: Arc::default() };
    let resync = Transaction {
        resync: true,
        sets: sets.sets().map(whole).collect(),
        endpoints: latest.into_iter().collect(),
        nodes: transactions[0].nodes.clone(),
        dropped: Vec::new(),
    };
    renderer.render(&resync).unwrap();
    let tables = renderer.node_tables(NODE).unwrap();
    assert_eq!(tables.generation, 5);
    assert_eq!(guarded(tables), vswitch.guarded());

    // An event without a change does not reach the renderers.
    let generation = vswitch.generation();
    second().iter().for_each(|manifest| vswitch.apply(manifest));
    assert_eq!((vswitch.generation(), vswitch.recorder.transactions().len()), (generation, transactions.len()));
}

#[test]
fn a_resync_of_the_pipeline_with_the_same_objects_in_any_order_publishes_nothing() {
    let manifests = [cluster_without(&[]), second()].concat();
    let mut vswitch = Vswitch::of(&manifests);
    let before = vswitch.generation();
    vswitch.resync(&manifests);
    vswitch.resync(&manifests.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(vswitch.generation(), before);
    vswitch.resync(&[cluster_without(&[]), first()].concat());
    assert_eq!(vswitch.generation(), before + 1, "a resync with a change is published once");
}
