//! The limits of addresses, names and holdings.

use super::super::limits::NAMES_PER_HOLDER;
use super::*;

fn limited(names: usize, addresses: usize, holdings: usize) -> Learned {
    Learned::with_limits(Limits { names, addresses, holdings, ..Limits::NODE })
}

#[test]
fn over_the_limit_expired_addresses_are_replaced_and_then_new_ones_refused() {
    let table = Learned::new();
    let limit = u32::try_from(Limits::NODE.addresses).unwrap();
    let learn = |holder, name: &str, number, now: u64, ttl: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(holder), name, ip(number), now, now + ttl * SECOND)
    };
    // Both families count together: odd numbers are IPv6 addresses.
    for number in 0..limit {
        learn(1, "a", number, 0, if number < 3 { 40 } else { 1000 }).unwrap();
    }
    assert_eq!(learn(1, "a", 5000, 1, 100), Err(Full::Addresses));
    assert_eq!(learn(1, "a", 5000, 2, 100), Err(Full::Addresses));
    assert!(names(&table, 1, ip(5000), START + 2 * SECOND).is_empty());
    learn(1, "a", 7, 3, 2000).expect("an address that the holder has is renewed");
    learn(1, "b", 5000, 3, 100).expect("another name");
    learn(2, "a", 5000, 3, 100).expect("another holder");
    // Three have expired, and make room for three.
    for number in 6000..6003 {
        learn(1, "a", number, 60, 100).unwrap();
        assert!(has(&table, 1, "a", ip(number), START + 60 * SECOND));
    }
    assert_eq!(learn(1, "a", 6003, 60, 100), Err(Full::Addresses));
    assert!((3..limit).all(|number| has(&table, 1, "a", ip(number), START + 60 * SECOND)), "no valid one was replaced");
}

#[test]
fn an_address_that_ends_before_those_that_were_counted_makes_room_when_it_ends() {
    let table = limited(100, 4, 1000);
    let learn = |number, now: u64, ttl: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(1), "a", ip(number), now, now + ttl * SECOND)
    };
    for number in 0..3 {
        learn(number, 0, 10_000).unwrap();
    }
    // The name becomes crowded by another holder, so the next address is counted.
    table.learn(Holder(2), "a", ip(50), START, START + 10_000 * SECOND).unwrap();
    learn(3, 0, 8).unwrap();
    assert_eq!(learn(4, 1, 60), Err(Full::Addresses));
    learn(4, 12, 60).expect("the third address has ended");
    assert_eq!(learn(5, 13, 60), Err(Full::Addresses));
}

#[test]
fn holders_of_a_crowded_name_have_the_limit_each() {
    let table = limited(100, 10, 1000);
    for holder in 0..100 {
        let learn = |number| table.learn(Holder(holder), "a", ip(number), START, START + 100 * SECOND);
        let results: Vec<_> = (0..15).map(|number| learn(holder * 7 + number)).collect();
        let count = |is: fn(&Result<NameId, Full>) -> bool| results.iter().filter(|&result| is(result)).count();
        assert_eq!((count(Result::is_ok), count(|result| *result == Err(Full::Addresses))), (10, 5), "holder {holder}");
    }
    // After the sweep the name is no longer crowded, and later crowded again.
    for now in [START + 200 * SECOND, START + 400 * SECOND] {
        sweep_all(&table, now);
        let learn = |number| table.learn(Holder(1), "a", ip(number), now, now + 100 * SECOND);
        assert_eq!((0..15).filter(|&number| learn(number).is_ok()).count(), 10);
    }
}

#[test]
fn names_are_evicted_only_under_pressure_and_the_least_recently_learned_first() {
    let table = limited(10, 1024, 1000);
    let learn = |name: u32, now: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(1), &format!("n{name}"), ip(name), now, now + 60 * SECOND)
    };
    let ids: Vec<NameId> = (0..10).map(|name| learn(name, u64::from(name)).unwrap()).collect();
    // The first one is learned again, so the second one is the oldest.
    assert_eq!(learn(0, 20), Ok(ids[0]));
    assert_eq!(learn(10, 30), Err(Full::Names), "all are valid");
    sweep_all(&table, START + 1000 * SECOND);
    assert!(ids.iter().all(|&id| knows(&table, id)), "expired names stay known");
    assert_eq!(table.counts().names, 10);
    let mut new = Vec::new();
    for (name, evicted) in [(10, 1), (11, 2), (12, 3)] {
        new.push(learn(name, 1000).unwrap());
        let known: Vec<usize> = (0..10).filter(|&at| knows(&table, ids[at])).collect();
        assert_eq!(known, (0..10).filter(|at| !(1..=evicted).contains(at)).collect::<Vec<_>>());
    }
    assert!(new.iter().all(|id| !ids.contains(id)), "ids of evicted names are not reused");
    assert_eq!(learn(5, 1001), Ok(ids[5]), "learned again, with its old id");
    for name in 13..18 {
        learn(name, 1002).unwrap();
    }
    let known: Vec<usize> = (0..10).filter(|&at| knows(&table, ids[at])).collect();
    assert_eq!(known, [0, 5], "what was learned last goes last");
    assert_eq!((table.counts().names, table.counts().evicted_names), (10, 8));
}

#[test]
fn a_name_that_was_learned_again_after_its_choice_for_eviction_is_not_the_next() {
    let table = limited(4, 1024, 1000);
    let learn = |name: u32, now: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(1), &format!("n{name}"), ip(name), now, now + 60 * SECOND).unwrap()
    };
    let ids: Vec<NameId> = (0..4).map(|name| learn(name, u64::from(name))).collect();
    // Evicts the first and chooses all others. The second is learned again and expires again.
    learn(4, 100);
    learn(1, 101);
    learn(5, 300);
    assert_eq!(ids.iter().map(|&id| knows(&table, id)).collect::<Vec<_>>(), [false, true, false, true]);
}

#[test]
fn an_evicted_name_has_no_addresses_when_it_is_learned_again() {
    let table = limited(1, 1024, 1000);
    let old = table.learn(Holder(1), "a", ip(1), START, START + 60 * SECOND).unwrap();
    let now = START + 80 * SECOND;
    table.learn(Holder(1), "b", ip(2), now, now + 60 * SECOND).unwrap();
    assert!(!knows(&table, old));
    // A thread whose clock is late does not see the name of the slot's new owner.
    assert!(names(&table, 1, ip(1), START).is_empty());
    let now = START + 160 * SECOND;
    let new = table.learn(Holder(1), "a", ip(3), now, now + 60 * SECOND).unwrap();
    assert!(new != old && names(&table, 1, ip(1), now).is_empty());
    sweep_all(&table, now);
    assert_eq!((table.counts().addresses, table.counts().holdings), (1, 1));
}

#[test]
fn names_of_forgotten_holders_make_room_after_the_sweep() {
    let table = limited(5, 1024, 1000);
    let learn =
        |holder, name: u32| table.learn(Holder(holder), &format!("n{name}"), ip(name), START, START + 86_400 * SECOND);
    for name in 0..5 {
        learn(1, name).unwrap();
    }
    learn(2, 0).unwrap();
    assert_eq!(learn(2, 5), Err(Full::Names));
    table.forget(Holder(1));
    sweep_all(&table, START);
    for name in 5..9 {
        learn(2, name).unwrap();
    }
    assert_eq!(learn(2, 9), Err(Full::Names));
    assert!(has(&table, 2, "n0", ip(0), START), "a name that another holder has stays");
}

#[test]
fn an_attacker_who_makes_up_names_does_not_displace_valid_ones() {
    let table = Learned::new();
    let until = START + 3600 * SECOND;
    let id = table.learn(Holder(1), "valid.example", ip(0), START, until).unwrap();
    for number in 0..150_000u64 {
        let now = START + 1000 * number;
        // The attacker's names end before the next ones are made up, by this test's clock.
        let address = ip(1 + u32::try_from(number % 16_384).unwrap());
        let learned = table.learn(Holder(2), &format!("x{number}.attacker.example"), address, now, now + 1);
        assert!(learned.is_ok() || number >= NAMES_PER_HOLDER as u64, "{learned:?}");
    }
    let now = START + 2 * SECOND;
    for number in 0..150_000u64 {
        table.learn(Holder(2), &format!("y{number}.attacker.example"), ip(1), now, now).unwrap();
    }
    assert_eq!(names(&table, 1, ip(0), now), BTreeMap::from([("valid.example".to_owned(), id)]));
    assert_eq!(table.counts().names, NAMES);
}

#[test]
fn a_holder_at_its_limit_is_refused_until_the_sweep_removes_what_has_ended() {
    let table = limited(1000, 1024, 20);
    let learn = |holder, number, now: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(holder), &format!("n{number}"), ip(number), now, now + 60 * SECOND)
    };
    for number in 0..20 {
        learn(1, number, 0).unwrap();
    }
    assert_eq!(learn(1, 20, 1), Err(Full::Holdings));
    assert_eq!(table.counts().names, 20, "the refused address's name is not stored");
    assert_eq!(table.learn(Holder(1), "n3", ip(99), START, START + SECOND), Err(Full::Holdings), "a known name");
    learn(1, 3, 2).expect("a holding is renewed");
    learn(1, 4, 90).expect("an expired one, too");
    learn(2, 20, 2).expect("another holder");
    assert_eq!(learn(1, 20, 100), Err(Full::Holdings));
    sweep_all(&table, START + 100 * SECOND);
    assert_eq!(table.counts().holdings, 1);
    learn(1, 20, 100).unwrap();
}

#[test]
fn a_holder_takes_no_more_than_its_share_of_the_names() {
    let table = Learned::with_limits(Limits { names: 20, names_per_holder: 5, ..Limits::NODE });
    let learn = |holder, name: u32, now: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(holder), &format!("n{name}"), ip(name), now, now + 60 * SECOND)
    };
    for name in 0..5 {
        learn(1, name, 0).unwrap();
    }
    assert_eq!(learn(1, 5, 0), Err(Full::Names));
    assert_eq!(table.counts().names, 5, "the refused name is not stored");
    learn(2, 5, 0).unwrap();
    learn(1, 5, 0).expect("another holder's name");
    learn(1, 0, 1).expect("an own one again");
    // A name that has expired and was swept is in no share, even if another holder learns it again.
    sweep_all(&table, START + 100 * SECOND);
    for name in 0..5 {
        learn(2, name, 100).unwrap();
    }
    assert_eq!(learn(2, 6, 100), Err(Full::Names));
    assert_eq!(learn(2, 5, 100), Err(Full::Names), "a known name without addresses");
    learn(1, 6, 100).unwrap();
    // The share of a holder that has left is gone, and so are those of evicted names.
    table.forget(Holder(2));
    let all: Vec<_> = (100..200).map(|name| learn(3 + name % 20, name, 300)).collect();
    assert_eq!(all.iter().filter(|learned| learned.is_ok()).count(), 20);
    assert_eq!(read(&table.world).names.shares.names(), 20);
}

#[test]
fn an_address_has_64_valid_names_of_one_holder() {
    let table = Learned::new();
    let limit = u32::try_from(NAMES_PER_ADDRESS).unwrap();
    let learn = |holder, name: u32, now: u64, ttl: u64| {
        let now = START + now * SECOND;
        table.learn(Holder(holder), &format!("n{name}"), ip(1), now, now + ttl * SECOND)
    };
    for name in 0..limit {
        learn(1, name, 0, if name < 2 { 40 } else { 1000 }).unwrap();
    }
    assert_eq!(learn(1, limit, 1, 100), Err(Full::Names));
    learn(1, 5, 1, 1000).expect("a name of the address again");
    learn(2, limit, 1, 100).expect("another holder");
    learn(1, limit, 60, 100).expect("two have ended");
    learn(1, 0, 60, 100).expect("one of them again");
    assert_eq!(learn(1, 1, 60, 100), Err(Full::Names), "the other one again");
    assert_eq!(names(&table, 1, ip(1), START + 60 * SECOND).len(), NAMES_PER_ADDRESS);
}

#[test]
fn a_name_and_a_node_have_limits_for_all_holders_together() {
    let table = Learned::with_limits(Limits { addresses_per_node: 6, keys: 10, ..Limits::NODE });
    let learn = |holder, name: &str, number| table.learn(Holder(holder), name, ip(number), START, START + 60 * SECOND);
    for number in 0..6 {
        learn(number, "a", number).unwrap();
    }
    assert_eq!(learn(9, "a", 6), Err(Full::Addresses));
    learn(9, "a", 5).expect("an address that another holder has");
    for number in 0..4 {
        learn(9, "b", number).unwrap();
    }
    assert_eq!(learn(9, "c", 0), Err(Full::Holdings));
    assert_eq!(learn(9, "b", 4), Err(Full::Holdings));
    learn(8, "b", 3).expect("the same record");
    sweep_all(&table, START + 100 * SECOND);
    assert_eq!(read(&table.world).names.keys.load(Ordering::Relaxed), 0);
    learn(9, "c", 0).unwrap();
}

#[test]
fn a_name_that_a_session_uses_gives_way_after_those_learned_before() {
    let table = limited(3, 1024, 1000);
    let used = table.intern("used", START + 50 * SECOND).unwrap();
    for (name, now) in [("a", 0), ("b", 1), ("c", 200), ("d", 201)] {
        let now = START + now * SECOND;
        table.learn(Holder(1), name, ip(1), now, now + 10 * SECOND).unwrap();
    }
    assert!(knows(&table, used));
}
