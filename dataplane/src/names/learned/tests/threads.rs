//! Several threads that use one table.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn what_one_thread_has_learned_any_other_finds_at_once() {
    const ROUNDS: u32 = 100_000;
    let table = Learned::with_limits(Limits { names: 150, ..Limits::NODE });
    // The time of the last answer that was found. Threads that evict and sweep have no later one.
    let (found, is_over) = (AtomicU64::new(START), AtomicBool::new(false));
    let misses = thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel(4);
        let table = &table;
        scope.spawn(move || {
            for round in 0..ROUNDS {
                // Most names are new. Few addresses, so that holders and names share records.
                let now = START + u64::from(round) * SECOND;
                let (holder, name, address) = (round % 100, format!("n{}", round / 2), ip(round % 37));
                table.learn(Holder(holder), &name, address, now, now + 100 * SECOND).unwrap();
                send.send((holder, name, address, now)).unwrap();
            }
        });
        scope.spawn(|| {
            for number in 0.. {
                let now = found.load(Ordering::Relaxed);
                let _ = table.learn(Holder(7), &format!("other{number}"), ip(0), now, now);
                table.sweep(now);
                // On a busy machine, this thread may have run too little to evict names while the others were at work.
                if is_over.load(Ordering::Relaxed) && number >= ROUNDS {
                    break;
                }
            }
        });
        let mut misses = 0;
        for (holder, name, address, now) in receive {
            misses += u32::from(!has(table, holder, &name, address, now));
            found.store(now, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
        misses
    });
    assert_eq!(misses, 0);
    assert!(table.counts().evicted_names > ROUNDS.into(), "{:?}", table.counts());
}

#[test]
fn threads_that_do_everything_at_once_neither_hang_nor_lose_count() {
    let table = Learned::with_limits(Limits { names: 50, addresses: 8, holdings: 60, ..Limits::NODE });
    let (found, refused) = (AtomicU64::new(0), Mutex::new(HashSet::new()));
    let work = |thread: u64| {
        let mut numbers = Numbers(thread);
        for step in 0..40_000 {
            let now = START + (step / 5000 * 200 + step % 5000 / 100) * SECOND;
            let holder = u32::try_from(numbers.below(70)).unwrap();
            // In some seconds there are few names, which become crowded, in some too many, in some pauses all expire.
            let names = [5, 60][usize::try_from(step / 1000 % 2).unwrap()];
            let (name, address) = (format!("n{}", numbers.below(names)), ip(u32::try_from(numbers.below(20)).unwrap()));
            let learned = table.learn(Holder(holder), &name, address, now, now + numbers.below(60) * SECOND);
            lock(&refused).extend(learned.err());
            table.names_of(Holder(holder), address, now, |id, text| {
                assert!(text.starts_with('n'));
                table.with_name(id, |again| assert_eq!(text, again));
                found.fetch_add(1, Ordering::Relaxed);
            });
            match numbers.below(100) {
                0 => table.forget(Holder(holder)),
                1..5 => drop(table.sweep(now)),
                5 if step % 10 == 0 => table.for_each(now, |_, text, _, _| assert!(text.starts_with('n'))),
                6 if step % 10 == 0 => assert!(table.counts().names <= 50),
                _ => (),
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || work(number)))));
    let counts = table.counts();
    assert!(counts.holdings > 0 && found.load(Ordering::Relaxed) > 1000, "{counts:?}");
    assert_eq!(*lock(&refused), HashSet::from([Full::Addresses, Full::Names, Full::Holdings]));
    assert!(counts.evicted_names > 0, "{counts:?}");
    let mut listed = 0;
    table.for_each(0, |_, _, _, _| listed += 1);
    assert!(listed <= counts.holdings, "holdings of forgotten holders are not listed");
    assert_eq!(sweep_all(&table, START + 10_000 * SECOND), counts.holdings);
    let counts = table.counts();
    assert_eq!((counts.addresses, counts.holdings), (0, 0));
}
