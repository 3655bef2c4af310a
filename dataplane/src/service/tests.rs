use std::collections::BTreeMap;

use super::*;

fn backends(count: u32) -> Vec<Backend> {
    (0..count)
        .map(|at| Backend {
            socket: SocketAddr::new(IpAddr::from((0x0af4_0000 + at).to_be_bytes()), 8080),
            is_local: false,
        })
        .collect()
}

fn flow(number: u32) -> Flow {
    let src = IpAddr::from((0x0af4_8000 + number / 1000).to_be_bytes());
    let sport = u16::try_from(10_000 + number % 1000).unwrap();
    Flow { src, dst: "10.96.0.1".parse().unwrap(), protocol: 6, sport, dport: 80, icmp: None }
}

/// Returns the number of connections that each backend gets.
fn shares(list: &Backends, connections: u32) -> BTreeMap<SocketAddr, u32> {
    let mut shares = BTreeMap::new();
    for number in 0..connections {
        *shares.entry(list.choose(7, &flow(number)).socket).or_default() += 1;
    }
    shares
}

#[test]
fn every_backend_is_given_its_share() {
    for count in [1, 2, 3, 32, 33, 100] {
        let list = Backends::new(backends(count));
        assert_eq!(list.table.is_some(), count > 32);
        let each = 2_000;
        let shares = shares(&list, each * count);
        assert_eq!(shares.len(), count as usize, "every one is chosen");
        // Four standard deviations of a fair draw are nine percent here; the table's own imbalance is one.
        for (backend, share) in shares {
            assert!((each * 88 / 100..=each * 112 / 100).contains(&share), "{backend} of {count}: {share}");
        }
    }
}

#[test]
fn places_of_a_table_differ_by_two_percent_at_most() {
    for count in [33, 100, 655] {
        let list = Backends::new(backends(count));
        let table = list.table.unwrap();
        let mut places = vec![0usize; count as usize];
        table.iter().for_each(|&backend| places[usize::from(backend)] += 1);
        let (least, most) = (places.iter().min().unwrap(), places.iter().max().unwrap());
        assert!(most * 100 <= least * 103, "{count}: {least} to {most}");
        assert!(most * count as usize * 100 <= table.len() * 102, "{count}: {most} of {}", table.len());
    }
}

#[test]
fn when_a_backend_goes_the_others_keep_their_new_connections() {
    for (count, most_moved) in [(2, 0), (10, 0), (32, 0), (100, 20)] {
        let all = backends(count);
        let gone = all[count as usize / 2];
        let before = Backends::new(all.clone());
        let after = Backends::new(all.into_iter().filter(|backend| *backend != gone));
        let numbers = 0..20_000;
        let moved = numbers.clone().filter(|&number| {
            let was = before.choose(7, &flow(number));
            was != gone && after.choose(7, &flow(number)) != was
        });
        assert!(moved.count() * 1000 <= most_moved * numbers.len(), "{count}");
    }
}

#[test]
fn nodes_with_one_seed_agree_whatever_order_they_know_backends_in() {
    for count in [5, 50] {
        let (one, mut turned) = (backends(count), backends(count));
        turned.reverse();
        let (one, other) = (Backends::new(one), Backends::new(turned));
        assert!((0..1000).all(|number| one.choose(7, &flow(number)) == other.choose(7, &flow(number))));
        let differ = (0..1000).filter(|&number| one.choose(7, &flow(number)) != one.choose(8, &flow(number)));
        assert!(differ.count() > 700, "another seed is another choice");
    }
}
