//! Wrong translations are found: random translations that the proof calls equal are damaged, and the model judges what that changes.

use std::collections::BTreeMap;

use bulkhead_control::object::Enforcement;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_migrate::translate::{after, translate};
use serde_json::{Value, json};

use crate::foreign::world::{Packet, World};
use crate::foreign::{Policies, calico, cilium, text_of, verdict};
use crate::random::Rng;
use crate::translations::{at, pipeline, reachability};

/// Packets that the model judges per cluster.
const PACKETS: usize = 400;

/// Returns the objects, each time with another defect.
fn damaged(objects: &[Value]) -> Vec<(&'static str, Vec<Value>)> {
    let mut all = Vec::new();
    let mut add = |what, at: usize, change: &dyn Fn(&mut Value)| {
        let mut objects = objects.to_vec();
        change(&mut objects[at]);
        all.push((what, objects));
    };
    for (at, object) in objects.iter().enumerate() {
        for direction in ["ingress", "egress"] {
            let Some(rules) = object["spec"][direction].as_array() else { continue };
            let list = |object: &mut Value, change: &dyn Fn(&mut Vec<Value>)| {
                change(object["spec"][direction].as_array_mut().unwrap());
            };
            for (index, rule) in rules.iter().enumerate() {
                if rules.len() > 1 || object["kind"] == "NetworkPolicy" {
                    add("a rule less", at, &|object| list(object, &|rules| drop(rules.remove(index))));
                }
                if let Some(action) = rule["action"].as_str() {
                    let other = if action == "Accept" { "Deny" } else { "Accept" };
                    let names = rule.to_string().contains("domainNames");
                    if !names {
                        add("another action", at, &|object| {
                            list(object, &|rules| rules[index]["action"] = other.into());
                        });
                    }
                }
                let text = rule.to_string();
                for (what, from, to) in
                    [("another port", "\"port\":", "\"port\":1"), ("another port", "\"number\":", "\"number\":1")]
                {
                    if text.contains(from) && !text.contains("\"endPort\"") && !text.contains(&format!("{from}\"")) {
                        let changed: Value = serde_json::from_str(&text.replacen(from, to, 1)).unwrap();
                        add(what, at, &|object| list(object, &|rules| rules[index] = changed.clone()));
                    }
                }
                for peer in 0..rule["from"].as_array().or_else(|| rule["to"].as_array()).map_or(0, Vec::len) {
                    let key = if direction == "ingress" { "from" } else { "to" };
                    if rule[key][peer]["ipBlock"].is_object() {
                        if rule[key][peer]["ipBlock"]["except"].is_array() {
                            add("no exception", at, &|object| {
                                list(object, &|rules| {
                                    rules[index][key][peer]["ipBlock"].as_object_mut().unwrap().remove("except");
                                });
                            });
                        }
                        add("a wider block", at, &|object| {
                            list(object, &|rules| rules[index][key][peer]["ipBlock"] = json!({"cidr": "0.0.0.0/0"}));
                        });
                    }
                }
            }
            for index in 1..rules.len() {
                add("another order", at, &|object| list(object, &|rules| rules.swap(index - 1, index)));
            }
            if object["kind"] == "NetworkPolicy" {
                add("no isolation", at, &|object| {
                    let name = if direction == "ingress" { "Ingress" } else { "Egress" };
                    let spec = object["spec"].as_object_mut().unwrap();
                    spec.remove(direction);
                    let others: Vec<Value> =
                        spec["policyTypes"].as_array().unwrap().iter().filter(|of| **of != name).cloned().collect();
                    // Without another direction, the policy selects no pod.
                    if others.is_empty() {
                        spec["podSelector"] = json!({"matchLabels": {"no": "pod"}});
                    } else {
                        spec["policyTypes"] = others.into();
                    }
                });
            }
        }
    }
    all
}

fn check<P: Policies>(
    seed: u64,
    clusters: u64,
    random: impl Fn(&mut Rng, &World) -> P,
) -> BTreeMap<&'static str, usize> {
    let mut found: BTreeMap<&'static str, usize> = BTreeMap::new();
    for number in 0..clusters {
        let mut rng = Rng::new(seed + number);
        let world = World::random(&mut rng);
        let policies = random(&mut rng, &world);
        let before = pipeline(&text_of(&world, &policies));
        let Ok(translation) = translate(before.cache()) else { continue };
        let original = reachability(&before);
        let packets: Vec<(Packet, bool)> = (0..PACKETS)
            .filter_map(|_| world.packet(&mut rng))
            .filter(|packet| packet.src != packet.dst)
            .map(|packet| (packet, verdict(&world, &policies, &packet)))
            .collect();
        let whole = after(before.cache(), &translation.yaml, Enforcement::Enforce).unwrap();
        if !Difference::of(&original, &reachability(&whole)).is_empty() {
            continue;
        }
        for (what, objects) in damaged(&translation.values) {
            let text: Vec<String> = objects.iter().map(Value::to_string).collect();
            // A port above the limit is not valid.
            let Ok(wrong) = after(before.cache(), &text.join("\n---\n"), Enforcement::Enforce) else { continue };
            let wrong = reachability(&wrong);
            let difference = Difference::of(&original, &wrong);
            let is_wrong = |(packet, allowed): &&(Packet, bool)| {
                at(&wrong.between(packet.src, packet.dst).unwrap(), packet) != *allowed
            };
            let witness = packets.iter().find(is_wrong);
            assert!(
                witness.is_none() || !difference.is_empty(),
                "seed {}: {what}: {witness:?} is not found\n{}",
                seed + number,
                text.join("\n---\n")
            );
            if witness.is_some() {
                *found.entry(what).or_default() += 1;
            }
        }
    }
    println!("{found:?}");
    found
}

const KINDS: [&str; 6] =
    ["a rule less", "another action", "another port", "no exception", "a wider block", "no isolation"];

#[test]
fn wrong_translations_of_calico_are_found() {
    let found = check(1, 150, calico::Calico::random);
    for kind in ["a rule less", "another action", "no isolation"] {
        assert!(found.contains_key(kind), "{kind}: {found:?}");
    }
}

#[test]
fn wrong_translations_of_cilium_are_found() {
    let found = check(1, 150, cilium::Cilium::random);
    for kind in KINDS {
        assert!(found.contains_key(kind), "{kind}: {found:?}");
    }
}
