//! Tests that the table meets the memory goal, and that the sweep releases the memory.

use super::*;

/// Returns a table in which 500 pods have learned 10 addresses of each name, in random order within a minute, with TTLs of 30 to 300
/// seconds and a grace of 30 seconds.
fn product(names: u64) -> Learned {
    let table = Learned::new();
    let texts: Vec<String> = (0..names).map(|name| format!("host-{name}.service.example.com")).collect();
    let mut numbers = Numbers(9);
    let answers = names * 500;
    for answer in 0..answers {
        // Visits each (name, pod) once: the step and the number of answers have no common divisor.
        let pair = answer * (answers * 618 / 1000 + 1) % answers;
        let (pod, name) = (u32::try_from(pair % 500).unwrap(), pair / 500);
        let now = START + 60 * SECOND * answer / answers;
        let until = now + (30 + numbers.below(271) + 30) * SECOND;
        for number in 0..10 {
            let address = ip(u32::try_from(name * 10 + number).unwrap());
            table.learn(Holder(1000 + pod), &texts[usize::try_from(name).unwrap()], address, now, until).unwrap();
        }
    }
    table
}

#[test]
fn a_twentieth_of_the_product_needs_a_twentieth_of_64_mb_and_the_sweep_frees_it() {
    // `bulkhead-bench names` measures all of it.
    let (names, table) = (500, product(500));
    let counts = table.counts();
    assert_eq!((counts.names, counts.addresses, counts.holdings), (names, names * 10, names * 5000));
    // The fixed part is not divided.
    let fixed = Learned::new().counts().bytes;
    assert!(counts.bytes <= 64_000_000 / 20 + fixed, "{} bytes", counts.bytes);
    assert_eq!(sweep_all(&table, START + 600 * SECOND), counts.holdings);
    // What is left is the names, which stay known.
    let swept = table.counts();
    assert!(swept.bytes < 400 * names + fixed, "{} bytes", swept.bytes);
    assert_eq!((swept.names, swept.addresses, swept.holdings), (names, 0, 0));
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
