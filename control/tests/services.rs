//! Tests the resolver of Services with known answers, and with a naive reference on random histories.

#[path = "services/asked.rs"]
mod asked;
#[path = "services/cases.rs"]
mod cases;
#[path = "services/oracle.rs"]
mod oracle;
#[path = "services/random.rs"]
mod random;

use crate::random::Rng;
use std::collections::{BTreeMap, BTreeSet};

use asked::Running;
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Transport};
use bulkhead_control::service::{Resolver, Vip};
use cases::{Cases, check, endpoints_of};
use serde_json::Value;

#[test]
fn every_packet_of_the_known_answers_is_right_from_scratch() {
    let Some(cases) = Cases::load() else { return };
    let mut actions = BTreeMap::new();
    for case in cases.packets() {
        let settings = cases.settings(case);
        let running = Running::new(case["node"].as_str().unwrap(), &settings, cases.objects(case));
        let action = check(case, &running.ask_case(case));
        *actions.entry(action).or_insert(0) += 1;
    }
    println!("{actions:?}");
    assert_eq!(actions.values().sum::<usize>(), 174);
    assert!(["dnat", "reject", "drop", "pass"].iter().all(|action| actions.contains_key(action)), "{actions:?}");
}

/// Each cluster is reached by events from several others. Its tables must equal those made from scratch.
#[test]
fn every_packet_of_the_known_answers_is_right_in_a_cluster_that_was_another_one_before() {
    let Some(cases) = Cases::load() else { return };
    let mut groups: BTreeMap<(String, String), Vec<&Value>> = BTreeMap::new();
    for case in cases.packets() {
        let settings = case["settings"].to_string();
        groups.entry((case["node"].as_str().unwrap().into(), settings)).or_default().push(case);
    }
    let mut asked = 0;
    for ((node, _), group) in groups {
        let settings = cases.settings(group[0]);
        let mut running = Running::new(&node, &settings, Vec::new());
        let forth = group.iter();
        let back = group.iter().rev();
        // In steps of 37 through the file, so that different kinds of clusters follow each other.
        let apart = (0..group.len()).map(|at| &group[at * 37 % group.len()]);
        for case in forth.chain(back).chain(apart) {
            running.become_cluster(cases.objects(case));
            check(case, &running.ask_case(case));
            asked += 1;
        }
        for case in &group {
            running.become_cluster(cases.objects(case));
            let fresh = Running::new(&node, &settings, cases.objects(case));
            assert_eq!(running.tables(), fresh.tables(), "{}", case["objects"]);
        }
    }
    assert!(asked >= 3 * 174, "{asked}");
}

#[test]
fn health_checks_answer_as_known() {
    let Some(cases) = Cases::load() else { return };
    let all = cases.list("health");
    for case in all {
        let running = Running::new(case["node"].as_str().unwrap(), &cases.settings(case), cases.objects(case));
        let port = u16::try_from(case["port"].as_u64().unwrap()).unwrap();
        let answer = running.resolver.health_check(port).map(|check| check.answer(true));
        let status = answer.as_ref().map(|answer| u64::from(answer.status));
        assert_eq!(status, case["expect"]["status"].as_u64(), "{case}");
        if let Some(answer) = answer {
            let body = serde_json::to_value(&answer.body).unwrap();
            assert_eq!(body["localEndpoints"], case["expect"]["localEndpoints"], "{case}");
            assert_eq!(body["serviceProxyHealthy"], true);
            assert!(body["service"]["namespace"].is_string() && body["service"]["name"].is_string(), "{body}");
            // An unhealthy proxy fails all health checks.
            assert_eq!(running.resolver.health_check(port).unwrap().answer(false).status, 503);
        }
    }
    assert_eq!(all.len(), 4);
}

/// The parts of the sequences that follow from objects: the backends that may be chosen before and after a change, the service port and
/// duration of an affinity, and the backends at which UDP sessions continue. Affinity over time (1 to 5), sessions (10 to 12, 15, 16, 20)
/// and rewriting of packets (17 to 19) are tested in the dataplane.
#[test]
fn the_sequences_are_right_as_far_as_they_follow_from_objects() {
    let Some(cases) = Cases::load() else { return };
    let mut decided = BTreeSet::new();
    for sequence in cases.list("sequences") {
        let id = sequence["id"].as_u64().unwrap();
        let node = sequence["node"].as_str().unwrap();
        let mut running = Running::new(node, &cases.settings(sequence), cases.objects(sequence));
        if let Some(before) = sequence.get("sessions_before") {
            if let Some(change) = sequence.get("change") {
                running.change(change, None);
            }
            let survives = |session: &&Value| running.keeps_session(session);
            let kept: Vec<&Value> = before.as_array().unwrap().iter().filter(survives).collect();
            assert_eq!(kept, sequence["sessions_after"].as_array().unwrap().iter().collect::<Vec<_>>(), "{id}");
            decided.insert(id);
            continue;
        }
        let mut first = None;
        for step in sequence["steps"].as_array().unwrap() {
            if let Some(change) = step.get("change") {
                running.change(change, first.as_deref());
                continue;
            }
            let (Some(packet), Some(expect)) = (step.get("packet"), step["expect"].as_str()) else { continue };
            let eligible = running.eligible(packet);
            match expect {
                "any"
                | "any_eligible"
                | "same_backend_as_first"
                | "same_backend_as_previous"
                | "independent_of_other_port" => assert!(!eligible.is_empty(), "{id}: {step}"),
                "more_than_one_backend" => assert!(eligible.len() > 1, "{id}: {step}"),
                "reject" | "pass" => assert_eq!(running.action(packet), expect, "{id}: {step}"),
                _ if step.get("established").is_some() => {
                    // The connection keeps its backend, which new connections do not get.
                    assert!(endpoints_of(&running, packet).contains(expect), "{id}: {step}");
                }
                _ => {
                    let only = expect.split(' ').next().unwrap();
                    assert_eq!(eligible, [only.to_owned()].into(), "{id}: {step}");
                }
            }
            if expect == "any_eligible" {
                assert!(!eligible.contains(first.as_ref().unwrap()), "{id}: the first one is out");
            }
            first = first.or_else(|| eligible.iter().next().cloned());
            decided.insert(id);
        }
        let affinity = |packet: &str| {
            let running = Running::new(node, &cases.settings(sequence), cases.objects(sequence));
            running.port_of(packet).map(|(id, port)| (id, port.affinity))
        };
        let (cluster, node_port) = (affinity("10.96.0.45:80"), affinity("192.0.2.11:30002"));
        match id {
            2 | 3 => assert_eq!(cluster.unwrap().1, Some(10)),
            1 | 4 | 5 | 6 | 7 => {
                assert_eq!(cluster.unwrap().1, Some(10_800));
                assert_eq!(cluster, node_port, "affinity is shared by the VIPs of a service port");
                assert_ne!(cluster.unwrap().0, affinity("10.96.0.45:81").unwrap().0, "and not by ports");
            }
            8 => assert_eq!(running.port_of("10.96.0.45:80").unwrap().1.affinity, None),
            9 => assert_eq!(running.udp_affinity("10.96.0.45:80"), Some(10_800)),
            _ => {}
        }
    }
    assert_eq!(decided, (1..=20).collect(), "each has a part that follows from objects");
}

/// Random histories: few enough for every run, each with dozens of states.
const SEEDS: u64 = 60;

#[test]
fn what_is_known_after_any_history_is_what_a_naive_reading_of_the_rules_says() {
    let mut reached = oracle::Reached::default();
    for seed in 0..SEEDS {
        let (mut rng, mut of_pods) = (Rng::new(seed), Rng::new(!seed));
        let settings = random::settings(&mut rng);
        let mut world = oracle::World::new(settings.clone());
        let mut resolver = Resolver::new(random::NODE.into(), settings.clone());
        let mut listed = false;
        for step in 0..30 {
            let batch = random::batch(&mut rng);
            batch.iter().for_each(|event| world.apply(event));
            let before = asked::Identities::of(&resolver);
            let mut changes = resolver.apply_batch(batch.clone());
            if !listed {
                assert!(changes.is_empty() && resolver.epoch() == 0);
                if step < 4 {
                    continue;
                }
                changes = resolver.listed();
                listed = true;
            }
            let context = format!("seed {seed}, step {step}: {batch:#?}");
            before.check(&resolver, &changes, &context);
            if of_pods.chance(40) {
                world.pods = random::pods(&mut of_pods);
                let before = asked::Identities::of(&resolver);
                let changes = resolver.set_host_ports(world.pods.iter().map(|pod| (pod, &*pod.addresses)));
                before.check(&resolver, &changes, &context);
            }
            compare(&world, &resolver, &mut reached, &context);
        }
        // From scratch, in another order.
        let mut events = world.events();
        rng.shuffle(&mut events);
        let mut fresh = Resolver::new(random::NODE.into(), settings);
        fresh.set_host_ports(world.pods.iter().map(|pod| (pod, &*pod.addresses)));
        fresh.listed();
        fresh.apply_batch(events);
        assert_eq!(asked::Tables::of(&fresh), asked::Tables::of(&resolver), "seed {seed}");
    }
    println!("{reached:?}");
    reached.check();
}

fn compare(world: &oracle::World, resolver: &Resolver, reached: &mut oracle::Reached, context: &str) {
    for client in random::clients() {
        for address in random::addresses() {
            for port in random::ports() {
                if client.address.is_ipv4() != address.is_ipv4() {
                    continue;
                }
                let expected = world.resolve(client, address, port);
                let found = asked::told(resolver, &resolver.decide(client, address, port).unwrap());
                reached.note(&expected);
                assert_eq!(found, expected.told, "{client:?} to {address} {port:?}\n{context}");
            }
        }
    }
    for port in [30_000, 30_001] {
        let found = resolver.health_check(port).map(|check| (check.service.to_string(), check.ipv4, check.ipv6));
        let expected = world.health(port);
        reached.health += usize::from(expected.as_ref().is_some_and(|(_, ipv4, ipv6)| ipv4 + ipv6 > 0));
        assert_eq!(found, expected, "{context}");
    }
}

#[test]
fn events_of_other_kinds_and_of_other_nodes_change_nothing() {
    let Some(cases) = Cases::load() else { return };
    let case = &cases.packets()[0];
    let objects = cases.objects(case);
    let mut running = Running::new("node1", &cases.settings(case), objects.clone());
    let epoch = running.resolver.epoch();
    let other = |object: &Object| match object {
        Object::Node(node) => &*node.name != "node1",
        Object::Pod(_) => true,
        _ => false,
    };
    let others: Vec<Event> = objects.into_iter().filter(other).map(Event::Apply).collect();
    assert!(others.len() > 4);
    assert!(running.resolver.apply_batch(others).is_empty());
    assert!(running.resolver.apply(Event::DeleteNode("node2".into())).is_empty());
    assert_eq!(running.resolver.epoch(), epoch);
    let vip = Vip { address: "10.96.0.41".parse().unwrap(), transport: Transport::Tcp, port: 80 };
    assert!(running.resolver.vip(&vip).is_some());
}
