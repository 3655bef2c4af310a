use super::*;

fn labels(text: &str) -> Labels {
    text.split(',').filter_map(|pair| pair.split_once('=')).map(|(key, value)| (key.into(), value.into())).collect()
}

fn set(at: u32) -> LabelSet {
    LabelSet::of_pod("x", &labels(&format!("app=a{at}")))
}

/// Returns a store of few numbers, so that nearly all collide.
fn small(count: u32) -> Identities {
    Identities::with(Identity::FIRST, count, false)
}

fn numbers(identities: &Identities) -> Vec<(Identity, String)> {
    identities.iter().map(|(number, labels)| (number, labels.to_string())).collect()
}

/// Assigns numbers by the definition: label sets choose in order of precedence.
fn truth(sets: &BTreeSet<LabelSet>, count: u32) -> Vec<(Identity, String)> {
    let mut order: Vec<&LabelSet> = sets.iter().collect();
    order.sort_by_key(|labels| (labels.hash(), (*labels).clone()));
    let (store, mut taken) = (small(count), BTreeMap::new());
    for labels in order {
        let free = (0..).map(|choice| store.choice(labels, choice)).find(|number| !taken.contains_key(number));
        taken.insert(free.unwrap(), labels.to_string());
    }
    taken.into_iter().collect()
}

#[test]
fn the_same_labels_have_one_number_and_others_another_both_ways() {
    let mut identities = Identities::of_cluster();
    let db = LabelSet::of_pod("default", &labels("role=db,tier=one"));
    let number = identities.add(&db).unwrap();
    assert_eq!(identities.add(&LabelSet::of_pod("default", &labels("tier=one,role=db"))), Some(number));
    for other in [
        LabelSet::of_pod("other", &labels("role=db,tier=one")),
        LabelSet::of_pod("default", &labels("role=db")),
        LabelSet::of_pod("default", &labels("role=db,tier=two")),
        LabelSet::of_pod("default", &labels("")),
    ] {
        let other_number = identities.add(&other).unwrap();
        assert_ne!(other_number, number, "{other}");
        assert_eq!(identities.labels(other_number), Some(&other));
    }
    assert_eq!((identities.labels(number), identities.of(&db)), (Some(&db), Some(number)));
    assert!(identities.iter().all(|(number, _)| number.0 >= 256 && !number.is_local() && number.reserved().is_none()));
}

#[test]
fn numbers_are_the_same_on_all_nodes_after_restarts_and_in_every_version() {
    let sets: Vec<LabelSet> = (0..30_000).map(set).collect();
    let of = |order: &mut dyn Iterator<Item = &LabelSet>| {
        let mut identities = Identities::of_cluster();
        order.for_each(|labels| assert!(identities.add(labels).is_some()));
        identities
    };
    let (one, other) = (of(&mut sets.iter()), of(&mut sets.iter().rev()));
    assert!(one.displaced.len() > 10, "only {} have not got their first choice", one.displaced.len());
    assert_eq!(numbers(&one), numbers(&other));
    // An upgrade must not change these numbers.
    assert_eq!(one.of(&set(0)), of(&mut sets[..1].iter()).of(&set(0)));
    assert_eq!(set(0).hash(), 0x7290_a4f4_00c4_49ab);
}

#[test]
fn collisions_end_the_same_whatever_came_and_went() {
    for count in [8, 16, 31] {
        let (mut store, mut there) = (small(count), BTreeSet::new());
        let mut random = 7_u32;
        for _ in 0..600 {
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let labels = set(random >> 16 & 31);
            if there.contains(&labels) {
                there.remove(&labels);
                store.remove(&labels);
            } else if there.len() < count as usize {
                there.insert(labels.clone());
                store.add(&labels).unwrap();
            } else {
                assert_eq!(store.add(&labels), None, "there are no more numbers");
            }
            assert_eq!(numbers(&store), truth(&there, count));
            let rest = there.iter().filter(|labels| store.of(labels) != Some(store.choice(labels, 0)));
            assert_eq!(store.displaced, rest.cloned().collect());
        }
    }
}

#[test]
fn an_object_may_say_a_number_and_others_make_room() {
    let mut store = small(4);
    let given: Vec<Identity> = (0..4).map(|at| store.add(&set(at)).unwrap()).collect();
    store.remove(&set(3));
    // Example numbers that no derivation yields.
    let table = [("role=db", 10_001), ("role=frontend", 10_002), ("role=backend", 10_003)];
    for (text, number) in table {
        assert!(store.assign(&LabelSet::of_pod("default", &labels(text)), Identity(number)));
    }
    let db = LabelSet::of_pod("default", &labels("role=db"));
    assert_eq!((store.of(&db), store.add(&db)), (Some(Identity(10_001)), Some(Identity(10_001))));
    assert!(!store.assign(&set(9), Identity(10_001)), "another object has set it");
    assert!(store.assign(&set(9), given[0]), "the label set that derived it gets another number");
    assert_eq!(store.labels(given[0]), Some(&set(9)));
    assert!(store.of(&set(0)).is_some_and(|number| number != given[0]));
    let all: BTreeSet<Identity> = store.iter().map(|(number, _)| number).collect();
    assert_eq!(all.len(), 7, "no number is two label sets'");
}

#[test]
fn blocks_have_numbers_of_their_node_and_special_identities_those_of_cilium() {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let blocks = LabelSet::of_blocks([&net("10.0.0.0/8"), &net("10.1.0.0/16")]);
    assert_eq!(blocks, LabelSet::of_blocks([&net("10.1.0.0/16"), &net("10.0.0.0/8")]));
    assert_eq!(blocks.as_str(), "cidr:10.0.0.0/8;cidr:10.1.0.0/16;");
    let mut store = Identities::of_node();
    let number = store.add(&blocks).unwrap();
    assert!(number.is_local() && store.is_local());
    let names = [Identity::HOST, Identity::WORLD, Identity::REMOTE_NODE, number].map(Identity::reserved);
    assert_eq!(names, [Some("host"), Some("world"), Some("remote-node"), None]);
}
