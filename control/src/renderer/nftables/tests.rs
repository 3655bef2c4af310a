#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::origin::Direction;
use crate::pipeline::{Pipeline, RendererHandle};
use crate::processor::Scope;
use crate::source::{Strictness, load_text};

/// The example of the article on Calico's felix: two clients and a server. The server accepts everything from the clients. From a network
/// except one address, it accepts one port.
const EXAMPLE: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server, namespace: default, labels: {hyapp: server}}, spec: {nodeName: node-1}, status: {podIP: 10.16.1.9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client-a, namespace: default, labels: {hyapp: client1}}, spec: {nodeName: node-2}, status: {podIP: 10.16.3.7}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client-b, namespace: default, labels: {hyapp: client1}}, spec: {nodeName: node-2}, status: {podIP: 10.16.4.8}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: default}
spec:
  podSelector: {matchLabels: {hyapp: server}}
  policyTypes: [Ingress, Egress]
  egress:
  - {}
  ingress:
  - from:
    - podSelector: {matchLabels: {hyapp: client1}}
  - from:
    - ipBlock: {cidr: 10.16.2.0/24, except: [10.16.2.122/32]}
    ports:
    - {port: 3456, protocol: TCP}
"#;

struct Node {
    pipeline: Pipeline,
    handle: RendererHandle<NftRenderer>,
    /// The set changes of the last change if it affected only sets. `None` otherwise.
    sets: Option<Vec<SetChange>>,
}

impl Node {
    fn new() -> Self {
        let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
        let handle = pipeline.register(NftRenderer::of_node("node-1".into()));
        Self { pipeline, handle, sets: None }
    }

    fn load(&mut self, state: &str) {
        self.pipeline.resync(load_text("state", state, Strictness::Strict).unwrap().objects).unwrap();
    }

    fn renderer(&mut self) -> &mut NftRenderer {
        self.pipeline.renderer_mut(self.handle)
    }

    fn interfaces(&mut self, pods: &[(&str, Option<&str>)]) {
        let interface =
            |&(name, pod): &(&str, Option<&str>)| (name.into(), pod.map(|pod| PodName::new("default", pod)));
        self.renderer().set_interfaces(pods.iter().map(interface).collect());
    }

    fn full(&self) -> String {
        self.pipeline.renderer(self.handle).full(EPOCH, self.pipeline.origins())
    }

    /// Returns the change since the last one. Marks it as taken.
    fn change(&mut self) -> Option<String> {
        let change = self.pipeline.renderer(self.handle).change(EPOCH, self.pipeline.origins());
        self.renderer().take();
        self.sets = change.as_ref().and_then(|change| change.sets.clone());
        change.map(|change| change.script)
    }
}

const EPOCH: Epoch = Epoch(0x500);

fn chain<'a>(script: &'a str, name: &str) -> Vec<&'a str> {
    let head = format!("  chain {name} {{\n");
    let (_, rest) = script.split_once(&head).unwrap_or_else(|| panic!("no chain {name} in\n{script}"));
    rest.split_once("\n  }").unwrap().0.lines().map(str::trim).collect()
}

#[test]
fn the_example_of_the_article_is_two_rules_of_a_set_and_a_block_without_an_address() {
    let mut node = Node::new();
    node.load(EXAMPLE);
    node.interfaces(&[("veth-13dd25c5cb", Some("server")), ("eth0", None)]);
    let script = node.full();
    // Dispatch by interface, then the pod's own chain.
    assert!(
        script.contains("add element inet bulkhead to { \"veth-13dd25c5cb\" : goto to-veth-13dd25c5cb }\n"),
        "{script}"
    );
    let to = chain(&script, "to-veth-13dd25c5cb");
    let [established, own, list, closed] = &to[..] else { panic!("{to:#?}") };
    assert_eq!(*established, "jump established");
    assert_eq!(*own, "ct original ip saddr 10.16.1.9 ct reply ip saddr 10.16.1.9 counter name \"allow-1\" accept");
    let list = list.strip_prefix("jump ").unwrap();
    assert_eq!(*closed, "counter name \"closed\" drop comment \"ingress of default/server\"");
    // The list has one tier, whose last rule isolates.
    assert_eq!(chain(&script, list)[1], format!("jump {list}-policy"));
    let rules = chain(&script, &format!("{list}-policy"));
    let matches: Vec<&str> = rules.iter().filter(|rule| rule.contains("ip saddr")).copied().collect();
    let [own, clients, clients_blocks, network, network_blocks] = &matches[..] else { panic!("{rules:#?}") };
    let set = |rule: &str| rule.split_whitespace().find_map(|word| word.strip_prefix('@')).unwrap().to_owned();
    assert!(own.starts_with("ct original ip saddr @own4 ") && own.ends_with("accept comment \"own node\""), "{own}");
    assert!(clients.ends_with("accept comment \"default/server ingress[0]\""), "{clients}");
    assert!(!clients.contains("l4proto"), "all ports: {clients}");
    assert!(network.contains(" meta l4proto 6 ct reply proto-src { 3456 } "), "{network}");
    assert!(network.ends_with("accept comment \"default/server ingress[1]\""), "{network}");
    assert!(rules.last().unwrap().ends_with("drop comment \"ingress isolated by default/server\""), "{rules:#?}");
    // The selector's set has the two clients. The block's set has the network without the excepted address, which is not denied by a rule.
    let elements = |rule: &str| {
        let line = script.lines().find(|line| line.contains(&format!("set {} {{", set(rule)))).unwrap();
        line.split_once("elements = { ").map_or("", |(_, rest)| rest.split_once(" }").unwrap().0).to_owned()
    };
    assert_eq!(elements(clients), "10.16.3.7, 10.16.4.8");
    assert_eq!((elements(clients_blocks).as_str(), elements(network_blocks).as_str()), ("", ""));
    let network: Vec<String> = elements(network).split(", ").map(str::to_owned).collect();
    let expected: Vec<String> = (0..=255).filter(|at| *at != 122).map(|at| format!("10.16.2.{at}")).collect();
    assert_eq!(network, expected);
    // No policy restricts the pod's egress.
    let from = chain(&script, "from-veth-13dd25c5cb");
    let list = from.iter().copied().find(|rule| rule.starts_with("jump list-")).unwrap().strip_prefix("jump ").unwrap();
    assert!(
        chain(&script, &format!("{list}-policy"))
            .iter()
            .any(|rule| rule.starts_with("counter name") && rule.contains("accept"))
    );
}

#[test]
fn a_pod_that_comes_is_one_element_and_no_rule() {
    let mut node = Node::new();
    node.load(EXAMPLE);
    node.interfaces(&[("v1", Some("server"))]);
    let first = node.change().unwrap();
    assert!(first.starts_with("table inet bulkhead\ndelete table inet bulkhead\n"));
    assert_eq!(node.change(), None, "nothing has changed");
    let third = "---\n{apiVersion: v1, kind: Pod, metadata: {name: client-c, namespace: default, labels: {hyapp: client1}}, spec: {nodeName: node-2}, status: {podIP: 10.16.5.1}}\n";
    let events = load_text("state", &third[4..], Strictness::Strict).unwrap().objects;
    node.pipeline.apply_batch(events.into_iter().map(crate::cache::Event::Apply)).unwrap();
    let change = node.change().unwrap();
    let sets = node.sets.clone().unwrap();
    assert!(
        matches!(&sets[..], [SetChange { gone, new, .. }] if gone.is_empty() && *new == ["10.16.5.1".parse::<IpAddr>().unwrap()])
    );
    let lines: Vec<&str> = change.lines().collect();
    let [remember, epoch, new_epoch, element] = &lines[..] else { panic!("{change}") };
    assert_eq!(*remember, "flush chain inet bulkhead remember");
    assert_eq!(
        (*epoch, *new_epoch),
        ("flush set inet bulkhead epoch", "add element inet bulkhead epoch { 0x00000500 }")
    );
    assert!(
        element.starts_with("add element inet bulkhead set-") && element.ends_with("-hosts4 { 10.16.5.1 }"),
        "{element}"
    );
}

#[test]
fn a_change_of_policy_adds_new_chains_before_it_takes_the_old_ones_away() {
    let mut node = Node::new();
    node.load(EXAMPLE);
    node.interfaces(&[("v1", Some("server"))]);
    node.change().unwrap();
    node.load(&EXAMPLE.replace("3456", "3457"));
    let change = node.change().unwrap();
    let at = |text: &str| change.find(text).unwrap_or_else(|| panic!("{text}\n{change}"));
    assert!(at("flush chain inet bulkhead to-v1") < at("  chain list-"), "{change}");
    assert!(at("{ 3457 }") < at("delete chain inet bulkhead list-"), "{change}");
    assert_eq!(node.sets, None);
    assert!(!change.contains("3456") && !change.contains("add element inet bulkhead to "), "{change}");
}

#[test]
fn what_nothing_is_known_of_is_closed_and_interfaces_without_a_pod_pass() {
    let mut node = Node::new();
    node.load(EXAMPLE);
    node.interfaces(&[("v1", Some("server")), ("v2", Some("nobody")), ("eth0", None), ("v*", Some("server"))]);
    let script = node.full();
    let closed = |pod: &str| format!("counter name \"closed\" drop comment \"ingress of default/{pod}\"");
    assert_eq!(chain(&script, "to-v2"), [closed("nobody")]);
    assert!(script.contains("add element inet bulkhead known { \"eth0\", \"v1\", \"v2\" }"), "{script}");
    assert!(script.contains("add element inet bulkhead pods { \"v1\", \"v2\" }"), "no wildcard: {script}");
    node.renderer().set_closed(true);
    let script = node.full();
    assert_eq!(chain(&script, "to-v1"), [closed("server")]);
    assert!(!script.contains("list-"), "{script}");
}

/// Regression: the chain's comment kept naming the first pod.
#[test]
fn an_interface_that_becomes_another_pods_names_that_one() {
    let mut node = Node::new();
    node.load(EXAMPLE);
    node.interfaces(&[("v1", Some("server"))]);
    assert!(node.change().unwrap().contains("comment \"ingress of default/server\""));
    node.interfaces(&[("v1", Some("nobody"))]);
    let change = node.change().unwrap();
    assert_eq!(
        chain(&change, "to-v1"),
        ["counter name \"closed\" drop comment \"ingress of default/nobody\""],
        "everything about the pod is in rules, which are rewritten: {change}"
    );
    assert!(change.contains("flush chain inet bulkhead to-v1\n"), "{change}");
}

#[test]
fn tiers_are_chains_of_their_own_and_a_pass_leaves_one() {
    let tiers = r#"---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: admin},
 spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [
  {action: Pass, from: [{pods: {podSelector: {matchLabels: {hyapp: client1}}}}]},
  {name: 'no "others"', action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {range: {start: 5, end: 9}}}}]}]}}
"#;
    let mut node = Node::new();
    node.load(&format!("{EXAMPLE}{tiers}"));
    node.interfaces(&[("v1", Some("server"))]);
    let script = node.full();
    let list = chain(&script, "to-v1")
        .iter()
        .copied()
        .find(|rule| rule.starts_with("jump list-"))
        .unwrap()
        .strip_prefix("jump ")
        .unwrap();
    let jumps: Vec<&str> = chain(&script, list).into_iter().filter(|rule| rule.starts_with("jump")).collect();
    assert_eq!(jumps, [format!("jump {list}-admin"), format!("jump {list}-policy")]);
    let admin = chain(&script, &format!("{list}-admin"));
    assert!(admin.iter().any(|rule| rule.contains(" return comment \"Admin tier")), "{admin:#?}");
    let denies: Vec<_> = admin.iter().filter(|rule| rule.contains("(no ?others?)")).collect();
    assert!(denies.iter().all(|rule| rule.contains("meta l4proto 17 ct reply proto-src { 5-9 }")), "{admin:#?}");
    assert!(!denies.is_empty(), "{admin:#?}");
}

#[test]
fn epochs_follow_each_other_and_none_is_that_of_a_connection_nobody_has_judged() {
    assert_eq!(Epoch::of_mark(0x7f), None);
    let last = Epoch::any(u64::from(u32::MAX >> 8) - 1);
    assert_eq!(last.mark(), MARK_MASK);
    assert_eq!(last.next().mark(), 0x100);
    assert_eq!(Epoch::of_mark(0x1_23ff), Some(Epoch(0x1_2300)));
    assert_eq!(Epoch(0x100).next(), Epoch(0x200));
}

#[test]
fn names_of_chains_are_as_different_as_those_of_their_interfaces() {
    use super::rules::workload_chain;
    assert_eq!(workload_chain("veth-1.2", Direction::Ingress), "to-veth-1.2");
    assert_eq!(workload_chain("a+b", Direction::Egress), "from-a/2bb");
    assert!(!script::is_plain("a*") && !script::is_plain("a\"b") && !script::is_plain("") && script::is_plain("a@b"));
}

#[test]
fn cluster_policies_judge_a_pod_that_reaches_itself_through_a_service_and_network_policies_do_not() {
    let cluster = |tier: &str| {
        format!(
            "---\n{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {}}}, spec: {{tier: \
             {tier}, priority: 1, subject: {{namespaces: {{}}}}, ingress: [{{action: Deny, from: [{{namespaces: {{}}}}]}}]}}}}\n",
            tier.to_lowercase()
        )
    };
    let own = |state: &str| {
        let mut node = Node::new();
        node.load(state);
        node.interfaces(&[("veth-a", Some("server"))]);
        let script = node.full();
        let matching = "ct original ip saddr 10.16.1.9 ct reply ip saddr 10.16.1.9 ";
        let rules = chain(&script, "to-veth-a").into_iter().filter_map(|rule| rule.strip_prefix(matching));
        // Without the number of the list.
        rules.map(|rule| rule.rsplit('-').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let accept = "1\" accept";
    assert_eq!(own(EXAMPLE), [accept]);
    let all = [EXAMPLE, &cluster("Admin"), &cluster("Baseline")].concat();
    assert_eq!(own(&all), ["admin", accept], "the NetworkPolicy isolates the pod, so Baseline does not judge it");
    let (open, _) = EXAMPLE.split_once("---\napiVersion: networking.k8s.io/v1\n").unwrap();
    assert_eq!(own(&[open, &cluster("Baseline")].concat()), ["baseline", accept]);
}
