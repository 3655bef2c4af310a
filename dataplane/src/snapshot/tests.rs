mod torture;

use super::*;
use crate::testbed::{A, B, HOST, UPLINK, ip, ports, routes, snapshot, snapshot_of};

fn build(ports: Vec<PortConfig>, routes: Routes) -> Result<Snapshot, SnapshotError> {
    let tables = snapshot().tables().to_vec();
    Snapshot::new(1, ports, tables, routes)
}

#[test]
fn ports_are_found_by_name_address_and_kind() {
    let snapshot = snapshot();
    assert_eq!(snapshot.port_named("ns/b"), Some(B));
    assert_eq!(snapshot.port_named("ns/c"), None);
    assert_eq!(snapshot.owner(ip("fd00::1")), Some(A));
    assert_eq!(snapshot.owner(ip("192.168.0.1")), Some(HOST));
    assert_eq!(snapshot.owner(ip("8.8.8.8")), None);
    assert_eq!((snapshot.host(), snapshot.uplink()), (Some(HOST), Some(UPLINK)));
}

#[test]
fn contradictions_are_refused_and_named() {
    let edited = |edit: fn(&mut Vec<PortConfig>)| {
        let mut ports = ports();
        edit(&mut ports);
        build(ports, Routes::default()).unwrap_err().to_string()
    };
    assert!(edited(|ports| ports[3].name = "ns/a".into()).contains("\"ns/a\""));
    assert!(
        edited(|ports| ports[3].addresses.push(ip("10.0.0.1"))).contains("\"ns/a\" and \"ns/b\" both claim 10.0.0.1")
    );
    assert!(edited(|ports| ports[3].addresses.push(ip("192.168.0.1"))).contains("\"host\" and \"ns/b\""));
    assert!(edited(|ports| ports[3].kind = PortKind::Uplink).contains("Uplink"));
    assert!(edited(|ports| ports[3].egress = Some(TableId(3))).contains("TableId(3)"));
    let beyond = Routes::new([("10.0.0.0/8".parse().unwrap(), PortId(4))]).unwrap();
    assert!(matches!(build(ports(), beyond), Err(SnapshotError::UnknownPort { port: PortId(4), ports: 4 })));
    assert!(build(ports(), routes(&ports())).is_ok());
}

#[test]
fn one_address_twice_on_one_port_is_no_contradiction() {
    let mut ports = ports();
    ports[2].addresses.push(ip("10.0.0.1"));
    assert!(build(ports, Routes::default()).is_ok());
}

#[test]
fn a_reader_sees_what_was_published_last_and_generations_only_rise() {
    let publisher = Publisher::new(Snapshot::empty());
    let mut reader = publisher.reader();
    assert_eq!(reader.load().generation(), 0);
    publisher.publish(snapshot()).unwrap();
    assert_eq!((reader.load().generation(), reader.load().ports().len()), (1, 4));
    let error = publisher.publish(snapshot()).unwrap_err();
    assert_eq!(error, PublishError { current: 1, offered: 1 });
    assert_eq!(publisher.current().generation(), 1);
}

#[test]
fn readers_never_see_half_a_snapshot_nor_an_older_one() {
    let publisher = Publisher::new(snapshot_of(1, ports()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut reader = publisher.reader();
            scope.spawn(move || {
                let mut last = 0;
                while last < 200 {
                    let snapshot = reader.load();
                    // All ports of a generation have its number.
                    let origin = OriginId(u32::try_from(snapshot.generation()).unwrap());
                    let whole =
                        snapshot.generation() == 1 || snapshot.ports().iter().all(|p| p.hairpin == Some(origin));
                    assert!(whole && snapshot.generation() >= last);
                    last = snapshot.generation();
                }
            });
        }
        for generation in 2..=200u32 {
            let mut ports = ports();
            ports.iter_mut().for_each(|port| port.hairpin = Some(OriginId(generation)));
            publisher.publish(snapshot_of(generation.into(), ports)).unwrap();
        }
    });
}

#[test]
fn an_old_snapshot_is_freed_when_the_last_reader_has_let_go_and_not_before() {
    let publisher = Publisher::new(Snapshot::empty());
    let (mut one, mut other) = (publisher.reader(), publisher.reader());
    publisher.publish(snapshot_of(1, ports())).unwrap();
    assert_eq!(publisher.collect(), 1);
    assert_eq!(one.load().generation(), 1);
    assert_eq!(publisher.collect(), 1, "the other one still has it");
    publisher.publish(snapshot_of(2, ports())).unwrap();
    assert_eq!(publisher.collect(), 2, "one reader has generation 1, the other 0");
    assert_eq!((one.load().generation(), other.load().generation()), (2, 2));
    assert_eq!(publisher.collect(), 0);
    let looked_at = publisher.current();
    publisher.publish(snapshot_of(3, ports())).unwrap();
    drop((one, other));
    assert_eq!(publisher.collect(), 1, "a look at it keeps it alive, too");
    drop(looked_at);
    assert_eq!(publisher.collect(), 0);
}

/// `cargo test --release -p bulkhead-dataplane -- --ignored --nocapture what_a_load_costs`
#[test]
#[ignore = "measures time"]
fn what_a_load_costs() {
    const LOADS: u32 = 100_000_000;
    let publisher = Publisher::new(Snapshot::empty());
    let mut reader = publisher.reader();
    let start = std::time::Instant::now();
    for _ in 0..LOADS {
        std::hint::black_box(std::hint::black_box(&mut reader).load());
    }
    println!("unchanged: {:.2} ns", start.elapsed().as_nanos() as f64 / f64::from(LOADS));
    let mut snapshots: Vec<Snapshot> =
        (1..=100_000).rev().map(|n| Snapshot { generation: n, ..Snapshot::empty() }).collect();
    let mut loads = std::time::Duration::ZERO;
    let mut clock = std::time::Duration::ZERO;
    let count = snapshots.len() as f64;
    while let Some(next) = snapshots.pop() {
        publisher.publish(next).unwrap();
        let start = std::time::Instant::now();
        clock += start.elapsed();
        let start = std::time::Instant::now();
        std::hint::black_box(reader.load());
        loads += start.elapsed();
    }
    println!("after a publish: {:.0} ns", loads.saturating_sub(clock).as_nanos() as f64 / count);
}

#[test]
fn the_last_port_id_is_never_a_real_port() {
    let pod = |n: usize| PortConfig::new(n.to_string(), PortKind::Pod);
    let snapshot = |count| Snapshot::new(1, (0..count).map(pod).collect(), Vec::new(), Routes::default());
    assert_eq!(snapshot(65_535).unwrap().ids().last(), Some(PortId(u16::MAX - 1)));
    assert!(matches!(snapshot(65_536), Err(SnapshotError::TooManyPorts { ports: 65_536 })));
}

#[test]
fn another_trusted_server_is_a_new_epoch_of_the_ports_that_learn_names_alone() {
    use crate::testbed::{A, B, ip};
    use crate::{Holder, Names};
    let names = |servers: &[&str], grace| {
        let servers = servers.iter().map(|server| ip(server)).collect();
        Some(Arc::new(Names::new(servers, grace, vec![None, None, Some(Holder(7)), None])))
    };
    let old = snapshot_of(1, ports()).with_names(names(&["10.0.0.53"], 0));
    for (servers, grace, epochs) in
        [(&["10.0.0.53"][..], 0, [1, 1]), (&["10.0.0.53"], 9, [1, 1]), (&["10.0.0.53", "10.0.0.54"], 0, [2, 1])]
    {
        let mut new = snapshot_of(2, ports()).with_names(names(servers, grace));
        // Both snapshots share the tables, as a control plane's do.
        new.tables.clone_from(&old.tables);
        let new = new.after(&old);
        assert_eq!([A, B].map(|port| new.epoch(port)), epochs, "{servers:?}");
    }
}
