//! Contiv's own renderer-cache scenarios. The data keep Contiv's words: `inbound` are a pod's rules for what enters the
//! vswitch from it (Contiv: ingress; the pod's egress), `outbound` those for what leaves towards it.

use super::*;
use crate::renderer::contiv::MAX_TUPLES;

const PODS: [&str; 7] = ["", "10.10.1.1", "10.10.1.2", "10.10.2.1", "10.10.2.2", "10.10.2.3", "10.10.10.1"];

const TS1_OUT: &[&str] = &["P 192.168.0.0/16 TCP:80"];
const TS3_OUT: &[&str] = &["P 10.10.0.0/16 ANY", "D"];
const POD1_IN: &[&str] = &["P 10.10.0.0/16 TCP:80", "P any UDP:161", "D"];
const POD1_OUT: &[&str] = &["P 10.0.0.0/8 UDP:53", "P 192.168.0.0/16 UDP:514", "D"];
const POD3_IN: &[&str] = &["P 10.10.1.1/32 UDP:0", "P any TCP:22", "D"];
const POD3_OUT: &[&str] = &["P 10.0.0.0/8 TCP:80", "P 10.0.0.0/8 TCP:443", "P any UDP:67", "D"];

fn update(number: usize, inbound: &[&str], outbound: &[&str]) -> Update {
    let addresses = vec![PODS[number].parse().unwrap()];
    (pod(number), Some(PodLists { addresses, ingress: list(outbound), egress: list(inbound) }))
}

fn first_transaction() -> Vec<Update> {
    vec![update(1, &POD1_IN[1..], &POD1_OUT[..2]), update(3, POD3_IN, POD3_OUT)]
}

fn cache(orientation: Orientation) -> RendererCache {
    RendererCache::new(orientation, MAX_TUPLES)
}

/// `P src dst service`, with the names of pods and `any`.
fn shown(rules: &Rules) -> Vec<String> {
    let network = |net: Option<ipnet::IpNet>| {
        let text = net.map_or_else(|| "any".into(), |net| net.to_string());
        let number = PODS.iter().position(|address| format!("{address}/32") == text);
        number.map_or(text, |number| format!("pod{number}"))
    };
    let action = |rule: &SixTuple| if rule.action == Action::Allow { "P" } else { "D" };
    let service = |rule: &SixTuple| rule.service.map_or_else(|| "ANY".into(), |service| service.to_string());
    rules
        .iter()
        .map(|rule| format!("{} {} {} {}", action(rule), network(rule.src), network(rule.dst), service(rule)))
        .collect()
}

fn local(cache: &RendererCache, number: usize) -> Vec<String> {
    cache.state().locals().get(&pod(number)).map(|table| shown(&table.rules)).unwrap_or_default()
}

fn global(cache: &RendererCache) -> Vec<String> {
    shown(&cache.state().global().rules)
}

fn names(numbers: impl IntoIterator<Item = usize>) -> BTreeSet<PodName> {
    numbers.into_iter().map(pod).collect()
}

#[test]
fn scenario_1_one_rule_in_the_tables_orientation_makes_one_local_table() {
    for (orientation, inbound, outbound, rule) in [
        (Orientation::Egress, &[][..], TS1_OUT, "P 192.168.0.0/16 any TCP:80"),
        (Orientation::Ingress, TS1_OUT, &[], "P any 192.168.0.0/16 TCP:80"),
    ] {
        let mut cache = cache(orientation);
        let staged = cache.stage(false, vec![update(1, inbound, outbound)]).unwrap();
        assert_eq!(staged.changes().len(), 1);
        drop(staged);
        assert!(cache.state().locals().is_empty(), "before the commit the cache is unchanged");
        commit(&mut cache, orientation, &[update(1, inbound, outbound)]);
        assert_eq!(local(&cache, 1), [rule, "P any any ANY"]);
        assert_eq!(global(&cache), [""; 0]);
    }
}

#[test]
fn scenario_2_one_rule_of_the_opposite_orientation_goes_to_the_global_table_alone() {
    for (orientation, inbound, outbound, rule) in [
        (Orientation::Ingress, &[][..], TS1_OUT, "P 192.168.0.0/16 pod1 TCP:80"),
        (Orientation::Egress, TS1_OUT, &[], "P pod1 192.168.0.0/16 TCP:80"),
    ] {
        let mut cache = cache(orientation);
        let changes = commit(&mut cache, orientation, &[update(1, inbound, outbound)]);
        assert!(matches!(&changes[..], [TableChange::Global { .. }]), "{changes:?}");
        assert_eq!(global(&cache), [rule, "P any any ANY"]);
        assert_eq!(cache.state().locals().len(), 0, "the pod is not isolated");
    }
}

#[test]
fn scenario_3_pods_with_equal_rules_share_one_table_and_more_of_them_change_only_its_pods() {
    let orientation = Orientation::Egress;
    let mut cache = cache(orientation);
    let updates = |pods: std::ops::RangeInclusive<usize>| pods.map(|at| update(at, &[], TS3_OUT)).collect::<Vec<_>>();
    let first = commit(&mut cache, orientation, &updates(1..=3));
    let [TableChange::Local { table, previous, .. }] = &first[..] else { panic!("{first:?}") };
    assert_eq!(
        (shown(&table.rules), previous.len()),
        (vec!["P 10.10.0.0/16 any ANY".into(), "D any any ANY".into()], 0)
    );
    let second = commit(&mut cache, orientation, &updates(1..=6));
    let [TableChange::Local { table: again, previous, pods }] = &second[..] else { panic!("{second:?}") };
    assert_eq!(again.id, table.id);
    assert_eq!((previous, pods), (&names(1..=3), &names(1..=6)));
}

#[test]
fn scenario_4_rules_of_the_opposite_orientation_that_allow_every_pod_grow_only_the_global_table() {
    let networks = ["10.10.0.0/16"];
    for orientation in [Orientation::Egress, Orientation::Ingress] {
        let mut cache = cache(orientation);
        for last in [3, 6] {
            let updates: Vec<_> = (1..=last)
                .map(|at| match orientation {
                    Orientation::Egress => update(at, TS3_OUT, &[]),
                    Orientation::Ingress => update(at, &[], TS3_OUT),
                })
                .collect();
            let changes = commit(&mut cache, orientation, &updates);
            assert!(matches!(&changes[..], [TableChange::Global { .. }]), "{changes:?}");
            let per_pod = |text: &dyn Fn(usize) -> Vec<String>| (1..=last).flat_map(text).collect::<Vec<_>>();
            let mut wanted = match orientation {
                Orientation::Egress => {
                    per_pod(&|at| vec![format!("P pod{at} {} ANY", networks[0]), format!("D pod{at} any ANY")])
                }
                Orientation::Ingress => [
                    per_pod(&|at| vec![format!("P {} pod{at} ANY", networks[0])]),
                    per_pod(&|at| vec![format!("D any pod{at} ANY")]),
                ]
                .concat(),
            };
            wanted.push("P any any ANY".into());
            assert_eq!(global(&cache), wanted);
        }
    }
}

fn check_combined_egress(cache: &mut RendererCache) {
    let changes = commit(cache, Orientation::Egress, &[update(1, POD1_IN, POD1_OUT)]);
    assert_eq!(changes.len(), 5, "two new tables, two gone, the global one");
    let own = ["P 192.168.0.0/16 any UDP:514", "P 10.0.0.0/8 any UDP:53", "D any any ANY"];
    assert_eq!(local(cache, 1)[0], "D pod1 any ANY");
    assert_eq!(local(cache, 1)[1..], own, "pod3 may do no less than pod1 allows, so it leaves no entry");
    assert_eq!(
        local(cache, 3),
        [
            "P pod1 any TCP:80",
            "D pod1 any ANY",
            "D pod3 any ANY",
            "P 10.0.0.0/8 any TCP:80",
            "P 10.0.0.0/8 any TCP:443",
            "P any any UDP:67",
            "D any any ANY"
        ]
    );
}

#[test]
fn scenario_5_combined_rules_in_egress_orientation() {
    let mut cache = cache(Orientation::Egress);
    let changes = commit(&mut cache, Orientation::Egress, &first_transaction());
    assert_eq!(changes.len(), 3);
    assert_eq!(
        local(&cache, 1),
        [
            "P pod1 any UDP:161",
            "D pod1 any ANY",
            "P pod3 any TCP:22",
            "P pod3 any UDP:*",
            "D pod3 any ANY",
            "P 192.168.0.0/16 any UDP:514",
            "P 10.0.0.0/8 any UDP:53",
            "P any any ANY"
        ]
    );
    assert_eq!(
        local(&cache, 3),
        [
            "D pod1 any ANY",
            "D pod3 any ANY",
            "P 10.0.0.0/8 any TCP:80",
            "P 10.0.0.0/8 any TCP:443",
            "P any any UDP:67",
            "D any any ANY"
        ]
    );
    assert_eq!(
        global(&cache),
        [
            "P pod1 any UDP:161",
            "D pod1 any ANY",
            "P pod3 pod1 UDP:*",
            "P pod3 any TCP:22",
            "D pod3 any ANY",
            "P any any ANY"
        ]
    );
    check_combined_egress(&mut cache);
}

fn check_combined_ingress(cache: &mut RendererCache) {
    let changes = commit(cache, Orientation::Ingress, &[update(1, POD1_IN, POD1_OUT)]);
    assert_eq!(changes.len(), 5);
    assert_eq!(
        local(cache, 1),
        [
            "D any pod1 ANY",
            "P any pod3 TCP:80",
            "D any pod3 ANY",
            "P any 10.10.0.0/16 TCP:80",
            "P any any UDP:161",
            "D any any ANY"
        ]
    );
    assert_eq!(
        local(cache, 3),
        ["P any pod1 UDP:53", "D any pod1 ANY", "D any pod3 ANY", "P any any TCP:22", "D any any ANY"],
        "its own rule for pod1 made way"
    );
}

#[test]
fn scenario_6_combined_rules_in_ingress_orientation() {
    let mut cache = cache(Orientation::Ingress);
    let changes = commit(&mut cache, Orientation::Ingress, &first_transaction());
    assert_eq!(changes.len(), 3);
    assert_eq!(local(&cache, 1), ["D any pod3 ANY", "P any any UDP:161", "D any any ANY"]);
    assert_eq!(local(&cache, 3), ["P any pod1 UDP:*", "D any pod3 ANY", "P any any TCP:22", "D any any ANY"]);
    assert_eq!(
        global(&cache),
        [
            "P 192.168.0.0/16 pod1 UDP:514",
            "P 10.0.0.0/8 pod1 UDP:53",
            "P 10.0.0.0/8 pod3 TCP:80",
            "P 10.0.0.0/8 pod3 TCP:443",
            "P any pod3 UDP:67",
            "D any pod3 ANY",
            "P any any ANY"
        ]
    );
    check_combined_ingress(&mut cache);
}

#[test]
fn scenario_7_a_removed_pod_leaves_the_shared_table_and_a_flush_leaves_nothing() {
    let orientation = Orientation::Egress;
    let mut cache = cache(orientation);
    commit(&mut cache, orientation, &[1, 2, 3].map(|at| update(at, &[], TS3_OUT)));
    let changes = commit(&mut cache, orientation, &[(pod(3), None)]);
    let [TableChange::Local { previous, pods, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((previous, pods), (&names(1..=3), &names(1..=2)));
    assert!(!cache.state().pods().contains_key(&pod(3)));
    cache.flush();
    assert!(cache.state().pods().is_empty() && cache.state().tables().is_empty());
}

#[test]
fn scenario_8_after_resuming_from_dumped_tables_only_the_difference_is_published() {
    type Check = fn(&[TableChange]);
    let five: Check = |changes| assert_eq!(changes.len(), 5, "{changes:?}");
    let none: Check = |changes| assert_eq!(changes, []);
    for orientation in [Orientation::Egress, Orientation::Ingress] {
        let mut before = cache(orientation);
        commit(&mut before, orientation, &first_transaction());
        let second = vec![update(1, POD1_IN, POD1_OUT), update(3, POD3_IN, POD3_OUT)];
        for (whole_state, check) in [(first_transaction(), none), (second, five)] {
            let tables = before.state().tables();
            let dump = tables.into_iter().map(|(table, pods)| (table.rules.iter().cloned().collect(), pods.clone()));
            let mut after = cache(orientation);
            after.recover(dump, before.state().global().rules.iter().cloned().collect()).unwrap();
            let mut stack = Stack::of(after.state());
            let changes = after.stage(true, whole_state.clone()).unwrap().commit();
            check(&changes);
            stack.apply(&changes);
            let mut fresh = cache(orientation);
            fresh.stage(true, whole_state).unwrap().commit();
            let (now, restarted) = (Stack::of(after.state()), Stack::of(fresh.state()));
            assert_eq!((&stack.locals, &stack.global), (&now.locals, &now.global));
            assert_eq!((&now.locals, &now.global), (&restarted.locals, &restarted.global));
            commit(&mut after, orientation, &[(pod(1), None)]);
        }
    }
}

#[test]
fn a_dump_with_a_pod_in_two_tables_is_refused_and_a_pod_that_is_gone_loses_its_dumped_table() {
    let rules = |text| vec![SixTuple { src: rule(text).peer, ..SixTuple::any(Action::Allow) }];
    let dump = |pods: &[usize], text| (rules(text), names(pods.iter().copied()));
    let mut cache = cache(Orientation::Egress);
    let twice = [dump(&[1, 2], "P 10.0.0.0/8 ANY"), dump(&[2], "P 11.0.0.0/8 ANY")];
    assert_eq!(cache.recover(twice, vec![]).unwrap_err().0, pod(2));
    let of_pod2 = SixTuple { src: "10.10.1.2/32".parse().ok(), ..SixTuple::any(Action::Deny) };
    cache.recover([dump(&[1, 2], "P 10.0.0.0/8 ANY")], vec![of_pod2, SixTuple::any(Action::Allow)]).unwrap();
    let changes = cache.stage(true, vec![update(1, &[], &[])]).unwrap().commit();
    assert!(
        matches!(&changes[..], [TableChange::Local { pods, .. }, TableChange::Global { .. }] if pods.is_empty()),
        "{changes:?}"
    );
    assert_eq!(cache.state().locals().len() + cache.state().global().rules.len(), 0);
}

#[test]
fn a_transaction_looks_only_at_pairs_that_can_meet() {
    use crate::renderer::contiv::list::LOOKUPS;
    let pods = 600;
    let address = |at: usize| format!("10.{}.{}.1", at / 256, at % 256);
    // Every pod is isolated in both directions, has its own lists, and allows only the next pod.
    let update = |at: usize, port: u16| {
        let peer = format!("P {}/32 TCP:{port}", address((at + 1) % pods));
        let addresses = vec![address(at).parse().unwrap()];
        (pod(at), Some(PodLists { addresses, ingress: list(&[&peer, "D"]), egress: list(&[&peer, "D"]) }))
    };
    for orientation in [Orientation::Egress, Orientation::Ingress] {
        let mut cache = cache(orientation);
        let mut lookups = |updates: Vec<Update>| {
            LOOKUPS.set(0);
            cache.stage(false, updates).unwrap().commit();
            LOOKUPS.get()
        };
        let whole_state = lookups((0..pods).map(|at| update(at, 80)).collect());
        assert!((pods..=2 * pods).contains(&whole_state), "linear, not {pods} squared: {whole_state}");
        let one = lookups(vec![update(7, 81)]);
        assert!((2..=pods + 4).contains(&one), "each other list once, and the two pairs that meet: {one}");
        assert_eq!(lookups(vec![update(7, 81)]), 0, "nothing changed");
    }
}
