//! Behaviour of the whole table. Its parts are tested in their files, random histories in [`model`].

mod limits;
mod model;
mod product;
mod threads;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use super::*;
use crate::names::numbers::Numbers;

const SECOND: u64 = 1_000_000_000;

/// The time of the first answer in most tests.
const START: u64 = 1_790_000_000 * SECOND;

/// Returns the address with this number: IPv4 for even numbers, IPv6 for odd ones.
fn ip(number: u32) -> IpAddr {
    match number % 2 {
        0 => IpAddr::from(0x2000_0000_u32.wrapping_add(number).to_be_bytes()),
        _ => IpAddr::from((0x2001_0db8_u128 << 96 | u128::from(number)).to_be_bytes()),
    }
}

fn names(table: &Learned, holder: u32, address: IpAddr, now: u64) -> BTreeMap<String, NameId> {
    let mut names = BTreeMap::new();
    table.names_of(Holder(holder), address, now, |id, text| {
        assert_eq!(names.insert(text.to_owned(), id), None, "{text} came twice");
    });
    names
}

fn has(table: &Learned, holder: u32, name: &str, address: IpAddr, now: u64) -> bool {
    names(table, holder, address, now).contains_key(name)
}

fn knows(table: &Learned, id: NameId) -> bool {
    table.with_name(id, |_| ())
}

/// Sweeps until two complete sweeps have begun and ended. Returns the number of removed holdings.
fn sweep_all(table: &Learned, now: u64) -> usize {
    let (mut complete, mut holdings) = (0, 0);
    while complete < 3 {
        let swept = table.sweep(now);
        complete += u32::from(swept.is_complete);
        holdings += swept.holdings;
    }
    holdings
}

#[test]
fn a_name_is_found_until_its_address_ends_and_by_its_holder_only() {
    let table = Learned::new();
    let until = START + 60 * SECOND;
    let id = table.learn(Holder(1), "a.example", ip(1), START, until).unwrap();
    assert_eq!(names(&table, 1, ip(1), START), BTreeMap::from([("a.example".to_owned(), id)]));
    assert!(has(&table, 1, "a.example", ip(1), until - 1));
    assert!(!has(&table, 1, "a.example", ip(1), until + 15 * SECOND), "a quarter later it has ended");
    assert!(names(&table, 2, ip(1), START).is_empty(), "another holder");
    assert!(names(&table, 1, ip(2), START).is_empty(), "another address");
    assert!(table.with_name(id, |text| assert_eq!(text, "a.example")));
}

#[test]
fn a_later_answer_lengthens_and_never_shortens() {
    let table = Learned::new();
    let learn = |now, until| table.learn(Holder(1), "a.example", ip(1), START + now * SECOND, START + until * SECOND);
    learn(0, 100).unwrap();
    learn(50, 80).unwrap();
    assert!(has(&table, 1, "a.example", ip(1), START + 100 * SECOND - 1), "the earlier end does not count");
    learn(90, 200).unwrap();
    assert!(has(&table, 1, "a.example", ip(1), START + 200 * SECOND - 1));
    assert!(!has(&table, 1, "a.example", ip(1), START + 228 * SECOND), "110 seconds and a quarter");
    assert_eq!(table.counts().holdings, 1);
}

#[test]
fn addresses_of_both_families_and_names_of_one_address_do_not_displace_each_other() {
    let table = Learned::new();
    let [four, six, mapped] = ["1.2.3.4", "2001:db8::1", "::ffff:1.2.3.4"].map(|text| text.parse::<IpAddr>().unwrap());
    let until = START + 60 * SECOND;
    for (name, address) in [("a", four), ("a", six), ("b", four)] {
        table.learn(Holder(1), name, address, START, until).unwrap();
    }
    assert_eq!(names(&table, 1, four, START).into_keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(names(&table, 1, six, START).into_keys().collect::<Vec<_>>(), ["a"]);
    assert!(names(&table, 1, mapped, START).is_empty(), "a mapped address is another one");
    let counts = table.counts();
    assert_eq!((counts.names, counts.addresses, counts.holdings), (2, 3, 3));
}

#[test]
fn an_answer_that_has_ended_stores_only_its_name() {
    let table = Learned::new();
    for until in [START, START - 1, 0] {
        let id = table.learn(Holder(1), "a.example", ip(1), START, until).unwrap();
        assert!(knows(&table, id) && names(&table, 1, ip(1), START).is_empty());
    }
    assert_eq!((table.counts().names, table.counts().holdings), (1, 0));
}

#[test]
fn holders_with_different_ends_keep_their_own() {
    let table = Learned::new();
    // All combinations of many ends, so that sliced records are created, respaced and left.
    let ends: Vec<u64> = (0..200).map(|holder| 30 + holder * holder % 3000).collect();
    for (holder, end) in (0..).zip(&ends) {
        table.learn(Holder(holder), "a.example", ip(1), START, START + end * SECOND).unwrap();
    }
    for now in (0..4000).step_by(7) {
        for (holder, end) in (0..).zip(&ends) {
            let is_valid = has(&table, holder, "a.example", ip(1), START + now * SECOND);
            assert!(is_valid || now >= *end, "holder {holder} lost {end} at {now}");
            assert!(!is_valid || now < end + end / 4 + 1, "holder {holder} keeps {end} at {now}");
        }
    }
}

#[test]
fn an_address_with_many_names_of_many_holders_has_each_where_it_was_learned() {
    let table = Learned::new();
    let mut numbers = Numbers(1);
    let mut expected: BTreeMap<u32, BTreeMap<String, NameId>> = BTreeMap::new();
    for _ in 0..20_000 {
        let (holder, name) = (u32::try_from(numbers.below(500)).unwrap(), format!("n{}", numbers.below(200)));
        let until = START + (60 + numbers.below(600)) * SECOND;
        let id = table.learn(Holder(holder), &name, ip(1), START, until).unwrap();
        expected.entry(holder).or_default().insert(name, id);
    }
    for (holder, expected) in &expected {
        assert_eq!(names(&table, *holder, ip(1), START), *expected);
    }
    let holdings = expected.values().map(BTreeMap::len).sum();
    assert_eq!((table.counts().addresses, table.counts().holdings), (200, holdings));
    assert_eq!(sweep_all(&table, START + 59 * SECOND), 0);
    assert_eq!(sweep_all(&table, START + 900 * SECOND), holdings);
    assert_eq!((table.counts().addresses, table.counts().holdings), (0, 0));
    assert!(table.shards.iter().all(|shard| lock(shard).is_empty()));
}

#[test]
fn a_forgotten_holder_has_no_names_at_once_and_no_memory_after_the_sweep() {
    let table = Learned::new();
    let until = START + 600 * SECOND;
    for holder in [1, 2] {
        for number in 0..1000 {
            // Half of the addresses have the same end for both.
            let until = until + u64::from(holder * (number % 4 / 2)) * 300 * SECOND;
            table.learn(Holder(holder), "a.example", ip(number), START, until).unwrap();
        }
    }
    table.forget(Holder(1));
    table.forget(Holder(77));
    assert!((0..1000).all(|number| names(&table, 1, ip(number), START).is_empty()));
    let mut listed = Vec::new();
    table.for_each(START, |holder, _, _, _| listed.push(holder));
    assert_eq!(listed, [Holder(2); 1000]);
    assert_eq!(sweep_all(&table, START), 1000);
    assert_eq!(table.counts().holdings, 1000);
    assert!((0..1000).all(|number| has(&table, 2, "a.example", ip(number), START)), "the other one has its own");
}

#[test]
fn a_new_holder_never_has_what_a_forgotten_one_learned() {
    let table = Learned::new();
    let until = START + 600 * SECOND;
    // Each holder is forgotten before the next one learns, in all phases of the sweep.
    for holder in 0..500 {
        table.learn(Holder(holder), &format!("n{holder}"), ip(0), START, until).unwrap();
        assert_eq!(names(&table, holder, ip(0), START).into_keys().collect::<Vec<_>>(), [format!("n{holder}")]);
        table.forget(Holder(holder));
        for _ in 0..holder % 40 {
            table.sweep(START);
        }
    }
    let seats = read(&table.world).seats.holders().len();
    assert!(seats < 100, "{seats} seats for one holder at a time");
}

#[test]
fn what_a_forgotten_holder_learns_late_is_swept_when_it_ends() {
    let table = Learned::new();
    table.learn(Holder(1), "a.example", ip(1), START, START + 60 * SECOND).unwrap();
    table.forget(Holder(1));
    table.learn(Holder(1), "a.example", ip(1), START, START + 60 * SECOND).unwrap();
    sweep_all(&table, START + 80 * SECOND);
    assert_eq!(table.counts().holdings, 0);
    assert!(read(&table.world).seats.holders().is_empty(), "the seat is free again");
}

#[test]
fn a_listing_has_every_valid_holding_once_with_its_end() {
    let table = Learned::new();
    let mut expected = BTreeMap::new();
    for number in 0..3000 {
        let (holder, name, address) = (number % 100, format!("n{}", number / 100 % 5), ip(number / 500));
        let until = START + u64::from(60 + number % 900) * SECOND;
        table.learn(Holder(holder), &name, address, START, until).unwrap();
        expected.insert((holder, name, address), until);
    }
    let now = START + 300 * SECOND;
    table.for_each(now, |holder, name, address, end| {
        let until = expected.remove(&(holder.0, name.to_owned(), address)).expect("listed twice or never learned");
        assert!(end > now && until <= end && end <= until + (until - START) / 4, "{until} became {end}");
    });
    assert!(expected.values().all(|&until| until <= now), "all valid ones are listed");
    assert!(!expected.is_empty());
}

#[test]
fn callbacks_may_call_the_table() {
    let table = Learned::new();
    let until = START + 60 * SECOND;
    let learn = |name: &str| table.learn(Holder(1), name, ip(1), START, until).unwrap();
    learn("a.example");
    let mut calls = 0;
    table.names_of(Holder(1), ip(1), START, |id, _| {
        learn("b.example");
        table.forget(Holder(2));
        assert!(table.with_name(id, |_| assert_eq!(names(&table, 1, ip(1), START).len(), 2)));
        table.for_each(START, |_, _, _, _| {
            table.sweep(START);
            calls += 1;
        });
    });
    assert_eq!(calls, 2);
}

#[test]
fn a_thread_that_panics_in_a_callback_or_with_a_lock_leaves_the_table_usable() {
    let table = Learned::new();
    let until = START + 60 * SECOND;
    table.learn(Holder(1), "a.example", ip(1), START, until).unwrap();
    let panics = std::thread::scope(|scope| {
        let in_callback = scope.spawn(|| table.names_of(Holder(1), ip(1), START, |_, _| panic!("a test's panic")));
        let with_locks = scope.spawn(|| {
            let (_world, _shards) = (write(&table.world), table.shards.iter().map(lock).collect::<Vec<_>>());
            panic!("a test's panic");
        });
        [in_callback.join().is_err(), with_locks.join().is_err()]
    });
    assert_eq!(panics, [true, true]);
    assert!(table.world.is_poisoned());
    table.learn(Holder(1), "b.example", ip(1), START, until).unwrap();
    assert_eq!(names(&table, 1, ip(1), START).len(), 2);
    sweep_all(&table, until + until);
    assert_eq!(table.counts().holdings, 0);
}

#[test]
fn no_times_and_numbers_make_it_panic() {
    let table = Learned::with_limits(Limits { names: 20, addresses: 5, holdings: 50, ..Limits::NODE });
    let (mut numbers, mut refused) = (Numbers(3), HashSet::new());
    let extremes = [0, 1, SECOND - 1, SECOND, START, u64::from(u32::MAX) * SECOND, u64::MAX - 1, u64::MAX];
    let pick = |numbers: &mut Numbers, of: &[u64]| of[usize::try_from(numbers.below(of.len() as u64)).unwrap()];
    for _ in 0..50_000 {
        let time = pick(&mut numbers, &extremes);
        let now = time.saturating_add(numbers.below(3)).saturating_sub(numbers.below(3));
        let left = pick(&mut numbers, &[0, 1, SECOND, 5 * SECOND, 1 << 40, 1 << 62, u64::MAX]);
        let holder = Holder(u32::try_from(pick(&mut numbers, &[0, 1, 2, 1 << 31, u64::from(u32::MAX)])).unwrap());
        let (name, address) = (numbers.below(30).to_string(), ip(u32::try_from(numbers.below(10)).unwrap()));
        refused.extend(table.learn(holder, &name, address, now, now.saturating_add(left)).err());
        table.names_of(holder, address, pick(&mut numbers, &extremes), |_, _| ());
        table.with_name(NameId::from_bits(u32::try_from(numbers.next() >> 32).unwrap()), |_| ());
        match numbers.below(200) {
            0 => table.forget(holder),
            1..20 => drop(table.sweep(now)),
            _ => (),
        }
    }
    assert_eq!(table.counts().names, 20);
    assert!(refused.contains(&Full::Addresses) && refused.contains(&Full::Names), "{refused:?}");
}
