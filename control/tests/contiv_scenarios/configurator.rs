//! Contiv's configurator tests. Its mock renderer answered ALLOWED, DENIED or UNMATCHED from the pods' rules. Here a registered renderer's
//! rules and the tables answer, and must agree.

use std::sync::Arc;

use bulkhead_control::contract::Transaction;
use bulkhead_control::object::PolicyName;
use bulkhead_control::origin::Origin;
use bulkhead_control::renderer::{BoxError, Renderer};

use super::manifest::{pod, policy};
use super::probe::{NODE, Recorder, Vswitch};

const FROM_POD2: &str = "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
    {from: [{podSelector: {matchLabels: {pod: pod2}}}], ports: [{port: 80}, {port: 443}]}]";

/// Contiv's pods, all on the vswitch's node.
fn pods() -> Vec<String> {
    let pods = [("pod1", "192.168.1.1"), ("pod2", "192.168.1.2"), ("pod3", "192.168.3.1")];
    pods.map(|(name, address)| pod(&format!("default/{name}"), address, NODE, &format!("pod: {name}"))).into()
}

/// A vswitch with the pods and policies, which are named `policy-1` and so on in the given order.
fn under(specs: &[&str]) -> Vswitch {
    let mut manifests = pods();
    manifests.extend(specs.iter().enumerate().map(|(at, spec)| policy(&format!("default/policy-{}", at + 1), spec)));
    Vswitch::of(&manifests)
}

#[test]
fn an_ingress_policy_lets_one_pod_in_at_two_ports_and_leaves_egress_open() {
    under(&[FROM_POD2]).expect_rules(
        "pod1 <- pod2     TCP:80 TCP:443
         pod1 <- pod3     nothing
         pod1 <- 8.8.8.8  nothing
         pod1 -> pod2     unmatched
         pod1 -> 8.8.8.8  unmatched
         pod2 <- pod1     unmatched
         pod2 -> pod3     unmatched",
    );
}

#[test]
fn an_ingress_block_lets_its_addresses_in_but_for_those_of_its_exception() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
        {from: [{ipBlock: {cidr: 192.168.2.0/24, except: [192.168.2.4/30]}}], ports: [{port: 80}, {port: 443}]}]"])
    .expect_rules(
        "pod1 <- 192.168.2.1    TCP:80 TCP:443
         pod1 <- 192.168.2.3    TCP:80 TCP:443
         pod1 <- 192.168.2.4    nothing
         pod1 <- 192.168.2.5    nothing
         pod1 <- 192.168.2.7    nothing
         pod1 <- 192.168.2.8    TCP:80 TCP:443
         pod1 <- 192.168.2.20   TCP:80 TCP:443
         pod1 <- 192.168.2.255  TCP:80 TCP:443
         pod1 <- 192.168.3.0    nothing
         pod1 <- pod2           nothing
         pod1 -> 192.168.2.5    unmatched",
    );
}

#[test]
fn one_policy_on_two_pods_gives_both_the_same_rules_and_one_table() {
    let vswitch = under(&["podSelector: {matchExpressions: [{key: pod, operator: In, values: [pod1, pod2]}]},
        policyTypes: [Ingress], ingress: [{
            from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16]}},
                   {podSelector: {matchLabels: {pod: pod3}}}],
            ports: [{port: 8000}, {port: 8000, protocol: UDP}]}]"]);
    for pod in ["pod1", "pod2"] {
        vswitch.expect_rules(&format!(
            "{pod} <- pod3         TCP:8000 UDP:8000
             {pod} <- 10.10.10.10  TCP:8000 UDP:8000
             {pod} <- 10.0.0.0     TCP:8000 UDP:8000
             {pod} <- 10.1.10.10   nothing
             {pod} <- 10.2.10.10   nothing
             {pod} <- 10.3.10.10   nothing
             {pod} <- 10.4.0.0     TCP:8000 UDP:8000
             {pod} -> pod3         unmatched"
        ));
    }
    vswitch.expect("pod1 -> pod2 nothing");
    let pods = vswitch.recorder.pods();
    let [one, two] = ["pod1", "pod2"].map(|pod| pods[pod].ingress.as_ref().unwrap());
    assert!(Arc::ptr_eq(one, two), "the rules are made once for both");
    assert_eq!(vswitch.sharing("pod1"), ["pod1", "pod2"]);
}

#[test]
fn an_exception_of_a_narrow_block_does_not_close_what_a_wider_block_opens() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
        {from: [{ipBlock: {cidr: 10.10.0.0/16, except: [10.10.10.0/24]}}], ports: [{protocol: TCP}]},
        {from: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}]"])
    .expect_rules(
        "pod1 <- 10.0.0.1    TCP:80
         pod1 <- 10.10.0.1   TCP:*
         pod1 <- 10.10.10.1  TCP:80
         pod1 <- 11.0.0.1    nothing",
    );
}

#[test]
fn an_egress_policy_lets_out_to_one_pod_at_two_ports_and_leaves_ingress_open() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress], egress: [
        {to: [{podSelector: {matchLabels: {pod: pod2}}}], ports: [{port: 80}, {port: 443}]}]"])
    .expect_rules(
        "pod1 -> pod2     TCP:80 TCP:443
         pod1 -> pod3     nothing
         pod1 -> 8.8.8.8  nothing
         pod1 <- pod2     unmatched
         pod1 <- 8.8.8.8  unmatched
         pod2 -> pod1     unmatched",
    );
}

#[test]
fn an_egress_block_lets_out_to_its_addresses_but_for_those_of_its_exception() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress], egress: [
        {to: [{ipBlock: {cidr: 192.168.2.0/24, except: [192.168.2.4/30]}}], ports: [{port: 80}, {port: 443}]}]"])
    .expect_rules(
        "pod1 -> 192.168.2.1   TCP:80 TCP:443
         pod1 -> 192.168.2.5   nothing
         pod1 -> 192.168.2.20  TCP:80 TCP:443
         pod1 -> 192.168.3.0   nothing
         pod1 -> pod2          nothing
         pod1 <- 192.168.2.5   unmatched",
    );
}

#[test]
fn a_policy_of_both_directions_keeps_their_peers_and_ports_apart() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress, Egress],
        ingress: [{
            from: [{podSelector: {matchLabels: {pod: pod2}}},
                   {ipBlock: {cidr: 10.5.0.0/16, except: [10.5.1.0/24, 10.5.2.0/24, 10.5.3.0/24]}}],
            ports: [{port: 333, protocol: UDP}, {port: 777, protocol: UDP}, {protocol: TCP}]}],
        egress: [{to: [{podSelector: {matchLabels: {pod: pod2}}}], ports: [{port: 80}, {port: 443}]}]"])
    .expect_rules(
        "pod1 <- pod2      TCP:* UDP:333 UDP:777
         pod1 <- 10.5.6.7  TCP:* UDP:333 UDP:777
         pod1 <- 10.5.1.1  nothing
         pod1 <- 10.5.2.1  nothing
         pod1 <- 10.5.3.1  nothing
         pod1 <- 10.6.0.1  nothing
         pod1 -> pod2      TCP:80 TCP:443
         pod1 -> 10.5.6.7  nothing",
    );
}

#[test]
fn three_renderers_get_the_same_transactions_with_the_same_rules() {
    let mut vswitch = Vswitch::of(&pods());
    let recorders = [Recorder::default(), Recorder::default()];
    for recorder in &recorders {
        vswitch.pipeline.register(recorder.clone());
    }
    vswitch.apply(&policy("default/policy-1", FROM_POD2));
    let [first, second, third] = [&vswitch.recorder, &recorders[0], &recorders[1]]
        .map(|recorder| recorder.transactions().last().expect("the policy concerns a pod").endpoints.clone());
    assert_eq!(first.len(), 1, "only pod1 is concerned");
    assert_eq!(first, second);
    assert_eq!(first, third);
    vswitch.expect_rules("pod1 <- pod2 TCP:80 TCP:443");
}

#[test]
fn a_renderer_that_fails_does_not_keep_the_transaction_from_the_others() {
    struct Failing;
    impl Renderer for Failing {
        fn name(&self) -> String {
            "of tap7".into()
        }

        fn render(&mut self, _: &Transaction) -> Result<(), BoxError> {
            Err(bulkhead_classifier::BuildError::TooManyRules { rules: 7 }.into())
        }
    }
    let mut vswitch = Vswitch::of(&pods());
    let after = Recorder::default();
    vswitch.pipeline.register(Failing);
    vswitch.pipeline.register(after.clone());
    let event = bulkhead_control::cache::Event::Apply(super::manifest::object(&policy("default/p", FROM_POD2)));
    let error = vswitch.pipeline.apply(event).expect_err("one renderer failed");
    assert!(error.to_string().contains("tap7"), "{error}");
    assert_eq!(error.source.downcast_ref(), Some(&bulkhead_classifier::BuildError::TooManyRules { rules: 7 }));
    assert_eq!(after.transactions().len(), 1);
    vswitch.expect_rules("pod1 <- pod2 TCP:80 TCP:443");
}

#[test]
fn three_policies_on_a_pod_allow_together_what_each_of_them_allows() {
    under(&[
        "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [{
            from: [{podSelector: {matchLabels: {pod: pod2}}}],
            ports: [{port: 333, protocol: UDP}, {port: 777, protocol: UDP}, {protocol: TCP}]}]",
        "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [{
            from: [{ipBlock: {cidr: 10.5.0.0/16, except: [10.5.1.0/24, 10.5.2.0/24, 10.5.3.0/24]}}],
            ports: [{port: 333, protocol: UDP}, {port: 888, protocol: UDP}]}]",
        "podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Egress], egress: [{
            to: [{podSelector: {matchLabels: {pod: pod2}}}], ports: [{port: 80}, {port: 443}]}]",
    ])
    .expect_rules(
        "pod1 <- pod2      TCP:* UDP:333 UDP:777
         pod1 <- 10.5.6.7  UDP:333 UDP:888
         pod1 <- 10.5.1.7  nothing
         pod1 <- 10.6.0.1  nothing
         pod1 -> pod2      TCP:80 TCP:443
         pod1 -> 10.5.6.7  nothing",
    );
}

#[test]
fn the_rules_of_a_pod_come_in_the_order_of_its_policies_names_however_these_arrived() {
    let policies = ["default/b", "default/c", "default/a"].map(|name| policy(name, FROM_POD2));
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut vswitch = Vswitch::of(&pods());
        order.iter().for_each(|&at| vswitch.apply(&policies[at]));
        let list = vswitch.recorder.pods()["pod1"].ingress.clone().unwrap();
        let origins: Vec<_> =
            list.rules.iter().map(|rule| vswitch.pipeline.origins().get(rule.origin).cloned().unwrap()).collect();
        let names: Vec<PolicyName> = origins
            .iter()
            .filter_map(|origin| match origin {
                Origin::Policy { policy, .. } => Some(policy.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["a", "b", "c"].map(|name| PolicyName::new("default", name)), "{order:?}");
        assert!(
            matches!(origins.last(), Some(Origin::Isolation { policies, .. }) if policies[..] == names),
            "the deny at the end names every policy that isolates: {origins:?}"
        );
    }
}

#[test]
fn a_rule_with_ports_and_no_peers_is_for_every_source() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress],
        ingress: [{ports: [{port: 8000}, {port: 8000, protocol: UDP}]}]"])
    .expect_rules(
        "pod1 <- pod2     TCP:8000 UDP:8000
         pod1 <- pod3     TCP:8000 UDP:8000
         pod1 <- 8.8.8.8  TCP:8000 UDP:8000
         pod1 -> pod2     unmatched",
    );
}

#[test]
fn a_rule_with_neither_peers_nor_ports_allows_everything_and_no_deny_follows() {
    let vswitch = under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [{}]"]);
    vswitch.expect_rules(
        "pod1 <- pod2     all
         pod1 <- 8.8.8.8  all
         pod1 -> pod2     unmatched",
    );
    let list = vswitch.recorder.pods()["pod1"].ingress.clone().unwrap();
    assert!(list.rules.iter().all(|rule| rule.action == bulkhead_control::contract::RuleAction::Accept), "{list:?}");
}

#[test]
fn a_rule_with_peers_and_no_ports_is_for_every_protocol() {
    under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress], ingress: [
        {from: [{podSelector: {matchLabels: {pod: pod2}}}, {ipBlock: {cidr: 10.5.0.0/16}}]}]"])
    .expect_rules(
        "pod1 <- pod2      all
         pod1 <- 10.5.6.7  all
         pod1 <- pod3      nothing
         pod1 <- 8.8.8.8   nothing",
    );
}

#[test]
fn a_peer_that_does_not_exist_matches_nothing_and_still_isolates() {
    let mut vswitch = under(&["podSelector: {matchLabels: {pod: pod1}}, policyTypes: [Ingress, Egress],
        ingress: [{from: [{podSelector: {matchLabels: {pod: ghost}}}], ports: [{port: 8000}]}],
        egress: [{to: [{podSelector: {matchLabels: {pod: ghost}}}]}]"]);
    vswitch.expect_rules(
        "pod1 <- pod2     nothing
         pod1 <- 8.8.8.8  nothing
         pod1 -> pod2     nothing
         pod1 -> 8.8.8.8  nothing",
    );
    vswitch.apply(&pod("default/ghost", "192.168.4.1", "node-2", "pod: ghost"));
    vswitch.expect_rules(
        "pod1 <- ghost  TCP:8000
         pod1 -> ghost  all
         pod1 <- pod2   nothing",
    );
}

#[test]
fn a_pod_that_loses_its_address_is_taken_from_the_renderers_and_given_back_with_its_next_one() {
    let mut vswitch = under(&[FROM_POD2]);
    let before = vswitch.recorder.transactions().len();
    vswitch.apply(&pod("default/pod1", "", NODE, "pod: pod1"));
    let gone = vswitch.recorder.transactions();
    assert_eq!(gone.len(), before + 1);
    assert!(matches!(gone[before].endpoints.as_slice(), [(name, None)] if &*name.name == "pod1"), "{:?}", gone[before]);
    vswitch.expect("pod3 -> 192.168.1.1 all");
    vswitch.apply(&pod("default/pod1", "192.168.1.77", NODE, "pod: pod1"));
    vswitch.expect_rules(
        "pod1 <- pod2  TCP:80 TCP:443
         pod1 <- pod3  nothing",
    );
}

#[test]
fn an_event_that_concerns_no_pod_of_the_node_calls_no_renderer() {
    let mut vswitch = Vswitch::of(&pods());
    vswitch.apply(&policy("default/policy-1", FROM_POD2));
    let before = (vswitch.recorder.transactions().len(), vswitch.generation());
    for manifest in [
        pod("default/far", "192.168.9.1", "node-2", "pod: far"),
        pod("default/waiting", "", NODE, "pod: pod2"),
        policy("default/for-nobody", "podSelector: {matchLabels: {pod: ghost}}, policyTypes: [Ingress]"),
        policy("elsewhere/policy-1", "podSelector: {}, policyTypes: [Ingress, Egress]"),
        policy("default/policy-1", FROM_POD2),
    ] {
        vswitch.apply(&manifest);
        assert_eq!((vswitch.recorder.transactions().len(), vswitch.generation()), before, "{manifest}");
    }
}
