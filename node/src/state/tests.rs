use bulkhead_answers::run;
use bulkhead_cluster::kubernetes::Changes;
use bulkhead_control::attachments::Standing;
use bulkhead_control::cache::Event;
use bulkhead_control::renderer::acl;
use bulkhead_control::source::{Options, ServiceKinds, Strictness};

use super::*;
use crate::config::{ForeignPolicies, MasqueradeConfig, NodeRanges, WhenRefused};
use crate::next_hops::peers;
use crate::scratch::Scratch;
use crate::stream::Selector;

/// A folder with a state.
struct Files(Scratch);

impl Files {
    fn new(name: &str) -> Self {
        Self(Scratch::new(&format!("state-{name}")))
    }

    fn write(&self, text: &str) {
        self.0.write("state.yaml", text);
    }

    fn config(&self, when_missing: WhenMissing, when_refused: WhenRefused) -> StateConfig {
        StateConfig {
            paths: vec![self.0.path().join("state.yaml")],
            kubernetes: None,
            options: Options { services: ServiceKinds::Read, ..Strictness::Lenient.into() },
            when_missing,
            when_refused,
            node_ranges: NodeRanges::default(),
        }
    }

    fn load(&self, when_missing: WhenMissing, when_refused: WhenRefused) -> anyhow::Result<LiveState> {
        load(&self.config(when_missing, when_refused))
    }
}

fn load(config: &StateConfig) -> anyhow::Result<LiveState> {
    let (services, node) = (Some(Settings::default()), "node-1".into());
    LiveState::load(config, services, &node, Judging::default(), BTreeSet::new(), BTreeMap::new())
}

/// The counters except those of Services.
fn of_policy(state: &LiveState) -> StateCounters {
    StateCounters { services: None, judged: Judged::default(), ..state.counts().read() }
}

/// Reads the files now, even if they are still being written.
fn reread(state: &mut LiveState) -> bool {
    let loaded = state.load_files();
    state.settle(loaded)
}

fn node(name: &str, number: u8) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nspec: {{podCIDRs: [10.{number}.0.0/16]}}\n\
         status: {{addresses: [{{type: InternalIP, address: 192.0.2.{number}}}]}}\n"
    )
}

fn pod(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
         status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
    )
}

#[test]
fn what_does_not_load_leaves_the_last_good_state_in_force() {
    let files = Files::new("keep");
    files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1")));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let good = state.policy().tables;
    for wrong in ["", "kind: [", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", &*node("node-2", 2)] {
        files.write(wrong);
        assert!(!reread(&mut state), "{wrong}");
        assert!(Arc::ptr_eq(&good, &state.policy().tables) && !state.denied, "{wrong}");
    }
    files.write(&(node("node-1", 1) + &pod("b", "10.1.0.2")));
    assert!(reread(&mut state));
    assert_eq!(of_policy(&state), StateCounters { applied: 2, refused: 4, ..StateCounters::default() });
    assert_ne!(good.interfaces, state.policy().tables.interfaces);
}

#[test]
fn a_state_that_changes_nothing_for_the_node_is_not_published() {
    let files = Files::new("nothing");
    let (here, there) = (node("node-1", 1) + &pod("a", "10.1.0.1"), node("node-2", 2));
    files.write(&(here.clone() + &there));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let before = state.policy();
    let elsewhere = |name: &str, address: &str| pod(name, address).replace("nodeName: node-1", "nodeName: node-2");
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: y}\nspec: {podSelector: {}}\n";
    let more = elsewhere("b", "10.2.0.1") + policy;
    for text in
        [there.clone() + &here, here.clone() + &there + &more, here.clone() + &there + &elsewhere("c", "10.2.0.3")]
    {
        files.write(&text);
        assert!(!reread(&mut state), "{text}");
        assert!(Arc::ptr_eq(&state.policy().tables, &before.tables));
    }
    assert_eq!(state.counts().read().applied, 4, "each of them was taken in");
    // The same objects, and of the other node what matters here: its pod CIDRs.
    files.write(&(here + &there.replace("10.2.0.0", "10.3.0.0")));
    assert!(reread(&mut state));
    let after = state.policy();
    assert!(after.remote_nodes != before.remote_nodes && Arc::ptr_eq(&after.tables, &before.tables));
}

#[test]
fn an_object_that_cannot_be_read_holds_back_no_other_one() {
    let files = Files::new("faulty");
    let good = node("node-1", 1) + &pod("a", "10.1.0.1");
    files.write(&good);
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let policy =
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\nspec: ";
    let unreadable = pod("c", "10.1.0.3").replace("nodeName: node-1", "nodeName: [node-1]");
    files.write(&format!("{good}{policy}{{ingres: []}}\n{unreadable}---\n{{}}\n{}", pod("b", "10.1.0.2")));
    assert!(reread(&mut state));
    let tables = state.policy().tables;
    let ports: Vec<_> = tables.interfaces.iter().map(|interface| run::port_name(&interface.attachment)).collect();
    assert_eq!(ports.iter().map(|name| &**name).collect::<Vec<_>>(), ["x/a", "x/b", "uplink", "host"]);
    let (from, to) = ("10.1.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap());
    let key = bulkhead_classifier::Key::new(from, to, 6, 40_000, 80);
    let local = &tables.tables[tables.interfaces[0].table].tables;
    assert_eq!(local.lookup(&key).action(), bulkhead_classifier::Action::Deny, "the policy isolates its namespace");
    assert_eq!(of_policy(&state), StateCounters { applied: 2, faulty: 3, ..StateCounters::default() });
    files.write(&good);
    assert!(reread(&mut state));
    assert_eq!(of_policy(&state), StateCounters { applied: 3, ..StateCounters::default() });
}

#[test]
fn two_pods_with_one_address_change_nothing_for_others_and_the_newer_one_has_it() {
    let files = Files::new("contest");
    let started = |name: &str, address: &str, hour: u8| {
        let time = format!("status: {{startTime: '2026-01-01T{hour:02}:00:00Z', phase");
        pod(name, address).replace("status: {phase", &time)
    };
    let rest = node("node-1", 1) + &pod("c", "10.1.0.3");
    files.write(&(rest.clone() + &started("a", "10.1.0.1", 1) + &started("b", "10.1.0.1", 2)));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let pods = |state: &LiveState| -> Vec<String> {
        let tables = state.policy().tables;
        let names = tables.interfaces.iter().map(|interface| run::port_name(&interface.attachment).to_string());
        names.filter(|name| name.contains('/')).collect()
    };
    assert_eq!(pods(&state), ["x/b", "x/c"]);
    assert_eq!(state.counts().read().contested_addresses, 1);
    let warning = state.told.iter().find(|warning| warning.contains("10.1.0.1")).expect("a warning");
    assert!(warning.contains("x/a") && warning.contains("x/b") && warning.contains("help: "), "{warning}");
    files.write(&(rest.clone() + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.1")));
    assert!(reread(&mut state));
    assert_eq!(pods(&state), ["x/c"], "nobody has it");
    files.write(&(rest + &pod("a", "10.1.0.1")));
    assert!(reread(&mut state));
    assert_eq!((pods(&state), state.counts().read().contested_addresses), (vec!["x/a".into(), "x/c".into()], 0));
}

#[test]
fn kinds_that_are_not_enforced_keep_a_vswitch_from_starting_and_not_from_going_on() {
    let files = Files::new("unenforced");
    let foreign = "---\napiVersion: k8s.ovn.org/v1\nkind: EgressFirewall\nmetadata: {name: a}\n";
    let good = node("node-1", 1) + &pod("a", "10.1.0.1");
    files.write(&(good.clone() + foreign));
    let error = files.load(WhenMissing::Exit, WhenRefused::Keep).err().expect("it does not start");
    assert!(format!("{error:#}").contains("--ignore EgressFirewall"), "{error:#}");
    let mut waiting = files.load(WhenMissing::Deny, WhenRefused::Keep).unwrap();
    assert!(waiting.denied && !reread(&mut waiting), "nor does one that waits for a state go on with this one");
    files.write(&good);
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    files.write(&(good + foreign + &pod("b", "10.1.0.2")));
    assert!(reread(&mut state));
    assert_eq!(of_policy(&state), StateCounters { applied: 2, unenforced_kinds: 1, ..StateCounters::default() });
    assert!(state.told.iter().any(|told| told.contains("EgressFirewall restrict traffic")), "{:?}", state.told);
    assert_eq!(state.policy().tables.interfaces.len(), 4, "the new pod is there");
}

/// A policy of Cilium that allows ingress of namespace `x` at TCP port 80 only.
const CILIUM: &str = "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: web, namespace: x}\n\
    spec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]}\n";

fn load_foreign(files: &Files, foreign: ForeignPolicies) -> LiveState {
    let mut config = files.config(WhenMissing::Exit, WhenRefused::Keep);
    config.options.foreign = foreign.kinds();
    load(&config).unwrap()
}

/// Whether a TCP packet between the two addresses passes at the port.
fn passes_tcp(state: &LiveState, from: &str, to: &str, port: u16) -> bool {
    let tables = state.policy().tables;
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let key = bulkhead_classifier::Key::new(from, to, 6, 40_000, port);
    let out = tables.interfaces.iter().find(|interface| interface.addresses.contains(&to)).unwrap();
    tables.tables[out.table].tables.lookup(&key).action() == bulkhead_classifier::Action::Allow
}

#[test]
fn policies_of_other_products_are_counted_audited_or_enforced() {
    let files = Files::new("foreign");
    files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.2") + CILIUM));
    let denies = |state: &LiveState| !passes_tcp(state, "10.1.0.1", "10.1.0.2", 81);
    let off = load_foreign(&files, ForeignPolicies::Off);
    assert!(!denies(&off) && off.audit.is_none());
    assert_eq!(off.counts().read().unenforced_kinds, 1);
    let told = off.told.iter().find(|told| told.contains("other products")).unwrap();
    assert!(told.contains("1 cilium.io/v2 CiliumNetworkPolicy") && told.contains("state.foreign_policies"), "{told}");
    let audit = load_foreign(&files, ForeignPolicies::Audit);
    assert!(!denies(&audit) && audit.audit.is_some());
    let names: Vec<String> = audit.audited.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["CiliumNetworkPolicy x/web"]);
    let mut enforced = load_foreign(&files, ForeignPolicies::Enforce);
    assert!(denies(&enforced) && passes_tcp(&enforced, "10.1.0.1", "10.1.0.2", 80));
    assert_eq!((enforced.counts().read().unenforced_kinds, enforced.audit.is_some()), (0, false));
    // A rule with conditions that are not evaluated allows nothing.
    let http = CILIUM.replace("protocol: TCP}]}]", "protocol: TCP}], rules: {http: [{method: GET}]}}]");
    files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.2") + &http));
    assert!(reread(&mut enforced));
    assert!(denies(&enforced) && !passes_tcp(&enforced, "10.1.0.1", "10.1.0.2", 80));
    let told = enforced.told.iter().find(|told| told.contains("HTTP rules")).unwrap();
    assert!(told.contains("CiliumNetworkPolicy x/web: spec.ingress[0]") && told.contains("state.yaml:"), "{told}");
}

#[test]
fn a_policy_of_another_product_that_names_a_service_follows_it() {
    let files = Files::new("foreign-services");
    let policy = "---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: web, namespace: x}\n\
        spec: {types: [Egress], egress: [{action: Allow, destination: {services: {name: db, namespace: x}}}]}\n";
    let service = |address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: x}}\nspec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {{name: db-1, namespace: x, labels: {{kubernetes.io/service-name: db}}}}\n\
             ports: [{{name: '', port: 80}}]\nendpoints: [{{addresses: [{address}]}}]\n"
        )
    };
    let pods = node("node-1", 1) + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.2") + policy;
    files.write(&(pods.clone() + &service("10.1.0.9")));
    let mut state = load_foreign(&files, ForeignPolicies::Enforce);
    assert!(!passes_tcp(&state, "10.1.0.1", "10.1.0.2", 80));
    files.write(&(pods + &service("10.1.0.2")));
    assert!(reread(&mut state));
    assert!(passes_tcp(&state, "10.1.0.1", "10.1.0.2", 80) && !passes_tcp(&state, "10.1.0.2", "10.1.0.1", 80));
}

#[test]
fn the_addresses_of_the_nodes_interfaces_are_its_own_as_long_as_it_has_them_but_no_pods() {
    let files = Files::new("addresses");
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: x}\n\
                  spec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n";
    files.write(&(node("node-1", 1) + &pod("a", "10.1.0.1") + &pod("b", "10.1.0.2") + policy));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let set = |addresses: &[&str]| Ok(addresses.iter().map(|address| address.parse().unwrap()).collect());
    let passes = |state: &LiveState, from: &str, to: &str| {
        let tables = state.policy().tables;
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let key = bulkhead_classifier::Key::new(from, to, 17, 40_000, 53);
        let has = tables.interfaces.iter().find(|interface| interface.addresses.contains(&to));
        let out =
            has.or_else(|| tables.interfaces.iter().find(|interface| interface.attachment == acl::Attachment::Uplink));
        let table = &tables.tables[out.unwrap().table].tables;
        table.lookup(&key).action() == bulkhead_classifier::Action::Allow
    };
    let dns = "169.254.20.10";
    assert!(!passes(&state, "10.1.0.1", dns) && passes(&state, "10.1.0.1", "192.0.2.1"));
    assert!(state.renumber(set(&[dns, "10.1.0.2"])));
    assert!(passes(&state, "10.1.0.1", dns) && passes(&state, dns, "10.1.0.1"));
    assert!(!passes(&state, "10.1.0.1", "10.1.0.2"), "a pod's address is the pod's");
    assert!(!state.renumber(set(&[dns, "10.1.0.2"])), "the same is no change");
    // Another state; then the address is removed.
    files.write(&(pod("a", "10.1.0.1") + &pod("c", "10.1.0.3") + policy));
    assert!(reread(&mut state));
    assert!(passes(&state, "10.1.0.3", dns) && !passes(&state, "10.1.0.3", "192.0.2.1"));
    assert!(state.told.iter().any(|told| told.contains("no Node object for `node-1`")), "{:?}", state.told);
    assert!(state.renumber(set(&[])));
    assert!(!passes(&state, "10.1.0.3", dns));
    assert!(!state.renumber(Err(std::io::ErrorKind::Other.into())));
}

#[test]
fn an_attached_pod_has_its_addresses_from_when_its_object_is_known() {
    let files = Files::new("attached");
    let pending = |name: &str| pod(name, "10.1.0.9").replace("podIP: 10.1.0.9, podIPs: [{ip: 10.1.0.9}]", "");
    let attachment = |address: &str, number| {
        let addresses = vec![address.parse().unwrap()];
        Attachment { uid: None, addresses, number }
    };
    let attached = [(PodName::new("x", "a"), attachment("10.1.0.1", 1))];
    files.write(&node("node-1", 1));
    let config = files.config(WhenMissing::Exit, WhenRefused::Keep);
    // The stored copy of the previous process.
    let mut state = LiveState::load(
        &config,
        Some(Settings::default()),
        &"node-1".into(),
        Judging::default(),
        BTreeSet::new(),
        attached.clone().into(),
    )
    .unwrap();
    let has = |state: &LiveState| -> Vec<String> {
        let tables = state.policy().tables;
        let pods = tables.interfaces.iter().filter(|interface| matches!(interface.attachment, acl::Attachment::Pod(_)));
        pods.flat_map(|pod| pod.addresses.iter().map(ToString::to_string)).collect()
    };
    assert!(has(&state).is_empty());
    assert_eq!(state.standings()[&PodName::new("x", "a")], Standing::Unknown);
    files.write(&(node("node-1", 1) + &pending("a") + &pending("b")));
    assert!(reread(&mut state));
    assert_eq!(
        (has(&state), state.standings()[&PodName::new("x", "a")].clone()),
        (vec!["10.1.0.1".into()], Standing::Known)
    );
    let more = [attached[0].clone(), (PodName::new("x", "b"), attachment("10.1.0.2", 2))];
    assert!(state.attach(more.clone().into()) && !state.attach(more.into()), "the same is no change");
    assert_eq!(has(&state), ["10.1.0.1", "10.1.0.2"]);
    assert!(state.attach(BTreeMap::new()) && has(&state).is_empty() && state.standings().is_empty());
}

#[test]
fn where_the_configuration_wants_it_nothing_passes_until_a_state_loads() {
    let files = Files::new("deny");
    assert!(files.load(WhenMissing::Exit, WhenRefused::Keep).is_err(), "there is no file");
    let mut state = files.load(WhenMissing::Deny, WhenRefused::Deny).unwrap();
    assert!(state.denied);
    files.write(&node("node-1", 1));
    assert!(reread(&mut state) && !state.denied);
    files.write("nonsense");
    assert!(reread(&mut state) && state.denied, "a change of what is in force");
    assert!(!reread(&mut state) && state.denied, "not again");
    files.write(&node("node-1", 1));
    assert!(reread(&mut state) && !state.denied);
}

#[test]
fn the_other_nodes_pods_are_behind_their_nodes() {
    let files = Files::new("peers");
    files.write(&(node("node-1", 1) + &node("node-2", 2) + &node("node-3", 3)));
    let state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let peers: Vec<String> = peers(&state.policy().remote_nodes)
        .map(|peer| format!("{} {} {}", peer.node, peer.prefix, peer.address))
        .collect();
    assert_eq!(peers, ["node-2 10.2.0.0/16 192.0.2.2", "node-3 10.3.0.0/16 192.0.2.3"]);
}

#[test]
fn the_configured_networks_of_nodes_count_instead_of_their_objects_also_with_a_server() {
    let files = Files::new("ranges");
    files.write(&(node("node-1", 1) + &node("node-2", 2).replace("podCIDRs: [10.2.0.0/16]", "podCIDRs: []")));
    let ranges = [("node-1", "10.8.0.0/24"), ("node-2", "10.9.0.0/24"), ("node-3", "10.7.0.0/24")];
    let ranges = ranges.map(|(node, range)| (node.to_owned(), vec![range.parse().unwrap()]));
    let config =
        StateConfig { node_ranges: ranges.into_iter().collect(), ..files.config(WhenMissing::Exit, WhenRefused::Keep) };
    let mut state = load(&config).unwrap();
    let told = |state: &LiveState| {
        let policy = state.policy();
        let remote = policy.remote_nodes.iter().map(|node| format!("{}: {:?}", node.name, node.pod_networks));
        (format!("{:?}", policy.pod_networks), remote.collect::<Vec<_>>())
    };
    let own = "[10.8.0.0/24]".to_owned();
    assert_eq!(told(&state), (own.clone(), vec!["node-2: [10.9.0.0/24]".to_owned()]));
    // With a server: a third node joins, and the kubelet of the second one sets its podCIDRs.
    files.write(&(node("node-2", 8) + &node("node-3", 8)));
    let objects = bulkhead_control::source::load(&config.paths, config.options.clone()).unwrap().objects;
    let changes = Changes { events: objects.into_iter().map(Event::Apply).collect(), ..Changes::default() };
    assert!(state.take_changes(changes).unwrap());
    let all = ["node-2: [10.9.0.0/24]", "node-3: [10.7.0.0/24]"].map(str::to_owned);
    assert_eq!(told(&state), (own, all.into()));
}

#[test]
fn a_node_is_selected_by_its_name_with_all_its_addresses_and_by_an_address_only_with_this_one() {
    let files = Files::new("selected");
    let bare = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-3}\n";
    files.write(&(node("node-1", 1) + &node("node-2", 2) + bare + &pod("a", "10.1.0.5")));
    let state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let selector = |text: &str| Selector::new(&[text.to_owned()], &[], &[]).unwrap();
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    for (text, expected) in [
        ("node/node-2", vec!["192.0.2.2"]),
        ("node/node-3", vec![]),
        ("192.0.2.1", vec!["192.0.2.1"]),
        ("10.1.0.5", vec!["10.1.0.5"]),
        ("x/a", vec!["10.1.0.5"]),
    ] {
        let selected: BTreeSet<IpAddr> = state.addresses_selected(&selector(text)).into_iter().collect();
        assert_eq!(selected, expected.into_iter().map(address).collect(), "{text}");
        assert_eq!(state.selecting_nobody(&selector(text)), Vec::<String>::new(), "{text}");
    }
    for (text, expected) in [
        ("node/node-4", "--pod node/node-4 (did you mean node-1?)"),
        ("node/other", "--pod node/other"),
        ("y/a", "--pod y/a (did you mean x/a?)"),
        ("x/elsewhere", "--pod x/elsewhere"),
    ] {
        assert_eq!(state.selecting_nobody(&selector(text)), [expected]);
    }
    assert_eq!(state.end_at(address("192.0.2.2")).node.as_deref(), Some("node-2"));
    assert!(state.end_at(address("10.1.0.5")).node.is_none() && state.end_at(address("8.8.8.8")).node.is_none());
}

fn service(name: &str, address: &str, endpoints: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: x}}, spec: {{clusterIPs: [{address}], ports: \
         [{{port: 53, protocol: UDP}}]}}}}\n---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: \
         {{name: {name}-1, namespace: x, labels: {{kubernetes.io/service-name: {name}}}}}, ports: [{{name: '', port: 53, protocol: UDP}}], \
         endpoints: [{endpoints}]}}\n"
    )
}

#[test]
fn services_are_followed_beside_policy_and_neither_takes_the_other_for_a_change() {
    let files = Files::new("services");
    let rest = node("node-1", 1) + &pod("a", "10.1.0.2");
    files.write(&rest);
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let first = state.take_services().0.expect("there is a first list").services;
    assert_eq!(first.source_for("192.0.2.9".parse().unwrap()), Some("10.1.0.1".parse().unwrap()));
    assert!(state.take_services().0.is_none());
    let dns = service("dns", "10.96.0.10", "{addresses: [10.1.0.2], nodeName: node-1}");
    files.write(&(rest.clone() + &dns));
    assert!(!reread(&mut state), "policy is the same");
    let second = state.take_services().0.expect("a Service").services;
    assert!(second.epoch() > first.epoch());
    let counts = state.counts().read().services.unwrap();
    assert_eq!((counts.services, counts.vips, counts.backends, counts.listed), (1, 1, 1, true));
    // An invalid Service is left out and logged, and does not affect others.
    let faulty = service("bad", "10.96.0.300", "");
    files.write(&(rest.clone() + &dns + &faulty + &pod("b", "10.1.0.3")));
    assert!(reread(&mut state));
    assert!(state.take_services().0.is_none_or(|update| update.stale.is_empty()));
    assert_eq!((state.counts().read().faulty, state.counts().read().services.unwrap().vips), (1, 1));
    assert!(state.told.iter().any(|told| told.contains("Service x/bad")), "{:?}", state.told);
    files.write(&rest);
    assert!(reread(&mut state), "a pod is gone");
    let update = state.take_services().0.unwrap();
    assert_eq!(update.stale, ["10.1.0.2".parse().unwrap()].into());
}

#[test]
fn no_connection_leaves_with_the_address_of_a_pod_or_a_node() {
    let files = Files::new("taken");
    let text = |pods: &str| node("node-1", 1) + &node("node-2", 2) + pods;
    files.write(&text(&pod("a", "10.1.0.1")));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let source = |state: &mut LiveState| {
        let services = state.take_services().0.expect("a change").services;
        services.source_for("192.0.2.9".parse().unwrap()).map(|address| address.to_string())
    };
    assert_eq!(source(&mut state), None);
    assert_eq!(state.taken_sources.values().collect::<Vec<_>>(), ["pod x/a"]);
    assert!(state.take_services().0.is_none(), "the same is no change");
    files.write(&text(""));
    assert!(reread(&mut state));
    assert_eq!(source(&mut state).as_deref(), Some("10.1.0.1"));
    // A left-over bridge of another network.
    assert!(state.renumber(Ok(["10.1.0.1".parse().unwrap()].into())));
    assert_eq!((source(&mut state), state.taken_sources.len()), (None, 1));
}

#[test]
fn a_host_port_leads_to_the_address_that_its_pod_was_attached_with_and_to_nobody_when_the_pod_is_gone() {
    let files = Files::new("host-port");
    let at = |text: &str| bulkhead_dataplane::Vip { address: text.parse().unwrap(), protocol: 6, port: 80 };
    let with_port = pod("a", "10.1.0.9")
        .replace("podIP: 10.1.0.9, podIPs: [{ip: 10.1.0.9}]", "")
        .replace("nodeName: node-1", "nodeName: node-1, containers: [{ports: [{containerPort: 8080, hostPort: 80}]}]");
    files.write(&(node("node-1", 1) + &with_port));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    assert!(state.take_services().0.unwrap().services.vip(&at("192.0.2.1")).is_none(), "it has no address yet");
    let attachment = Attachment { uid: None, addresses: vec!["10.1.0.1".parse().unwrap()], number: 1 };
    assert!(state.attach([(PodName::new("x", "a"), attachment)].into()));
    let services = state.take_services().0.expect("the pod has an address").services;
    let (_, port) = services.vip(&at("192.0.2.1")).unwrap();
    assert_eq!(*port.serving, ["10.1.0.1:8080".parse().unwrap()]);
    // The node gets another address, then the pod is deleted.
    state.renumber(Ok(["192.0.2.77".parse().unwrap()].into()));
    assert!(state.take_services().0.unwrap().services.vip(&at("192.0.2.77")).is_some());
    files.write(&node("node-1", 1));
    assert!(reread(&mut state));
    let update = state.take_services().0.unwrap();
    assert!(["192.0.2.1", "192.0.2.77"].iter().all(|address| update.services.vip(&at(address)).is_none()));
}

#[test]
fn masquerading_follows_the_nodes_of_the_state_and_its_own_addresses() {
    let files = Files::new("masquerade");
    files.write(&(node("node-1", 1) + &node("node-2", 2)));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    assert!(state.policy().masquerade.is_none());
    state.masquerade(Some(MasqueradeConfig::default()), None);
    let is_for = |state: &LiveState, text: &str| state.policy().masquerade.unwrap().is_for(text.parse().unwrap());
    assert!(!is_for(&state, "10.2.0.7") && !is_for(&state, "192.0.2.2") && is_for(&state, "10.3.0.7"));
    files.write(&(node("node-1", 1) + &node("node-2", 2) + &node("node-3", 3)));
    assert!(reread(&mut state) && !is_for(&state, "10.3.0.7"));
    assert!(state.renumber(Ok(["192.0.2.1", "2001:db8::1"].map(|own| own.parse().unwrap()).into())));
    let sources: Vec<String> = state.policy().masquerade.unwrap().sources().iter().map(ToString::to_string).collect();
    assert_eq!(sources, ["192.0.2.1", "2001:db8::1"]);
    assert!(state.set_down_addresses(["2001:db8::1".parse().unwrap()].into()), "its interface goes down");
    assert_eq!(state.policy().masquerade.unwrap().sources().len(), 1);
}

#[test]
fn before_there_is_a_state_there_are_no_services_and_where_they_are_off_never() {
    let files = Files::new("no-services");
    let mut state = files.load(WhenMissing::Deny, WhenRefused::Keep).unwrap();
    assert!(state.take_services().0.is_none());
    assert!(!state.counts().read().services.unwrap().listed);
    files.write(&node("node-1", 1));
    assert!(reread(&mut state) && state.take_services().0.is_some());
    let config = StateConfig { options: Strictness::Lenient.into(), ..state.config.clone() };
    let at = Judging::default();
    let mut off = LiveState::load(&config, None, &"node-1".into(), at, BTreeSet::new(), BTreeMap::new()).unwrap();
    assert!(off.take_services().0.is_none() && off.counts().read().services.is_none());
}

#[test]
fn dns_servers_follow_services_tables_and_the_nodes_addresses_even_if_all_change_at_once() {
    let files = Files::new("names");
    let rest = node("node-1", 1) + &pod("a", "10.1.0.1");
    let policy = |pattern: &str| {
        format!(
            "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: names}}\n\
             spec: {{tier: Admin, priority: 1, subject: {{namespaces: {{}}}}, \
             egress: [{{name: web, action: Accept, to: [{{domainNames: [{pattern}]}}]}}]}}\n"
        )
    };
    let dns =
        |endpoint: &str| service("kube-dns", "10.96.0.10", endpoint).replace("namespace: x", "namespace: kube-system");
    let space = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n";
    files.write(&(rest.clone() + space + &policy("www.example.com") + &dns("{addresses: [10.1.0.2]}")));
    let mut state = files.load(WhenMissing::Exit, WhenRefused::Keep).unwrap();
    let trusts = |state: &LiveState, address: &str| {
        state.policy().names.is_some_and(|names| names.servers.contains(address.parse().unwrap()))
    };
    assert!(state.take_services().1 && trusts(&state, "10.1.0.2") && trusts(&state, "192.0.2.1"));
    assert!(!state.take_services().1, "the same servers are no change");
    // A new policy and a new endpoint in one read.
    files.write(&(rest.clone() + space + &policy("www.example.net") + &dns("{addresses: [10.1.0.3]}")));
    assert!(reread(&mut state));
    assert!(state.take_services().1 && trusts(&state, "10.1.0.3") && !trusts(&state, "10.1.0.2"));
    // The interfaces get another address, on which a DNS cache may listen.
    assert!(state.renumber(Ok(["192.0.2.77".parse().unwrap()].into())));
    assert!(state.take_services().1 && trusts(&state, "192.0.2.77"));
    files.write(&(rest + space));
    assert!(reread(&mut state));
    assert!(state.take_services().1 && state.policy().names.is_none(), "no rule names domains any more");
}
