//! Tests that the table meets the memory goal, and that the sweep releases the memory.

use super::*;

/// How the pods' answers for a name differ.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// All have the name's own TTL.
    Name,
    /// Each has another TTL.
    Answer,
}

/// Returns a table in which 500 pods have learned 10 addresses of each name, in random order within a minute, with TTLs of 30 to 300
/// seconds and a grace of 30 seconds.
fn product(names: u64, mix: Mix) -> Learned {
    let table = Learned::new();
    let texts: Vec<String> = (0..names).map(|name| format!("host-{name}.service.example.com")).collect();
    let mut numbers = Numbers(9);
    let answers = names * 500;
    for answer in 0..answers {
        // Visits each (name, pod) once: the step and the number of answers have no common divisor.
        let pair = answer * (answers * 618 / 1000 + 1) % answers;
        let (pod, name) = (u32::try_from(pair % 500).unwrap(), pair / 500);
        let now = START + 60 * SECOND * answer / answers;
        let ttl = match mix {
            Mix::Name => Numbers(name).below(271),
            Mix::Answer => numbers.below(271),
        };
        let until = now + (30 + ttl + 30) * SECOND;
        for number in 0..10 {
            let address = ip(u32::try_from(name * 10 + number).unwrap());
            table.learn(Holder(1000 + pod), &texts[usize::try_from(name).unwrap()], address, now, until).unwrap();
        }
    }
    table
}

/// Checks that the product needs at most this number of bytes, and that the sweep releases them.
fn check(names: usize, mix: Mix, limit: usize) {
    let table = product(names as u64, mix);
    let counts = table.counts();
    println!("{mix:?}: {counts:?}");
    assert_eq!((counts.names, counts.addresses, counts.holdings), (names, names * 10, names * 5000));
    assert!(counts.bytes <= limit, "{} bytes", counts.bytes);
    assert_eq!(sweep_all(&table, START + 600 * SECOND), counts.holdings);
    // What is left is the names, which stay known.
    let swept = table.counts();
    assert!(swept.bytes < 400 * names + Learned::new().counts().bytes, "{} bytes", swept.bytes);
    assert_eq!((swept.names, swept.addresses, swept.holdings), (names, 0, 0));
}

#[test]
fn a_twentieth_of_the_product_needs_a_twentieth_of_64_mb_and_the_sweep_frees_it() {
    // The fixed part is not divided.
    let fixed = Learned::new().counts().bytes;
    check(500, Mix::Answer, 64_000_000 / 20 + fixed);
}

#[test]
#[ignore = "takes a minute; run it with --release"]
fn the_product_of_10_000_names_500_pods_and_10_addresses_needs_less_than_64_mb() {
    check(10_000, Mix::Answer, 64_000_000);
    check(10_000, Mix::Name, 64_000_000);
}

#[test]
fn holders_scattered_over_all_numbers_need_no_more_than_consecutive_ones() {
    let bytes = [1, 1000].map(|step| {
        let table = Learned::new();
        for holder in 0..500 {
            for number in 0..100 {
                table.learn(Holder(holder * step), "a.example", ip(number), START, START + 60 * SECOND).unwrap();
            }
        }
        table.counts().bytes
    });
    assert!(bytes[1] <= bytes[0] + bytes[0] / 20, "{bytes:?}");
}

#[test]
fn an_empty_table_is_small() {
    assert!(Learned::new().counts().bytes < 100_000);
}
