use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::DropReason;
use crate::packet::{Ports, TcpFlags};
use crate::session::budget::Room;
use crate::session::{Percent, Timeouts};

const CONFIG: SessionConfig = SessionConfig {
    capacity: 6,
    timeouts: Timeouts {
        tcp_new: 120,
        tcp_established: 2000,
        tcp_half_closed: 90,
        tcp_closed: 60,
        udp_unreplied: 300,
        udp_stream: 600,
        idle: 600,
        icmp_echo: 60,
        refused: 30,
    },
    tcp_pickup: false,
    tcp_window: TcpWindow::Loose,
    verify_checksums: false,
    remember_refused: true,
    half_open: Percent::ALL,
    pod_share: Percent::ALL,
    outside_share: Percent::ALL,
};

fn session(table: &SessionTable, number: u16, tcp: bool) -> NewSession {
    let (protocol, flags) = if tcp { (6, Some(TcpFlags(TcpFlags::SYN))) } else { (17, None) };
    let ports = Ports::Pair(number, 80);
    let (key, from_low) = Key::of(IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]), protocol, ports);
    let decision = Decision { by: None, rule: None, origin: None };
    let (in_port, out_port) = (PortId(1), PortId(2));
    NewSession {
        key,
        hash: table.hash(&key),
        wire_hash: table.hash(&key),
        from_low,
        flags,
        epoch: 1,
        decision,
        in_port,
        in_kind: PortKind::Pod,
        out_port,
        direction: Direction::Forward,
        span: None,
        icmp: None,
        rewrite: None,
    }
}

fn at(time: u64) -> Moment {
    Moment { time, number: time }
}

fn table_of(config: SessionConfig) -> SessionTable {
    member(config, &Arc::new(Budget::new(&config, 1)))
}

/// Creates one of several tables with a common budget.
fn member(config: SessionConfig, budget: &Arc<Budget>) -> SessionTable {
    let mut table = SessionTable::new(config, Arc::clone(budget), &RandomState::with_seeds(1, 2, 3, 4), None).unwrap();
    table.know_ports([PortKind::Uplink, PortKind::Pod, PortKind::Pod, PortKind::Pod].into_iter());
    table
}

fn table() -> SessionTable {
    table_of(CONFIG)
}

/// Checks that the lists of classes and of ports contain exactly the entries of the index.
fn check(table: &SessionTable) {
    let mut in_lists = 0;
    for class in Class::ALL {
        for slot in table.lists.check(table.links.records(), class) {
            let entry = table.entry(slot);
            assert_eq!(entry.class(), class);
            assert_eq!(entry.refused().is_some(), class == Class::Refused);
            assert_eq!(table.lookup(table.hash(&entry.key()), &entry.key()), Some(slot));
            in_lists += 1;
        }
    }
    assert_eq!(in_lists, table.index.len());
    let (mut free, mut slot) = (0, table.free);
    while slot != NONE {
        assert_eq!(table.entry(slot).key(), Key::UNUSED);
        slot = table.links.records()[slot as usize].of_class.next;
        free += 1;
    }
    assert_eq!(table.fresh as usize, in_lists + free);
    assert!(table.len() <= table.config.capacity);
    assert_eq!(table.config.capacity - table.budget.free(), in_lists);
}

#[test]
fn two_keys_with_one_hash_live_side_by_side_and_are_never_mixed_up() {
    let mut index = Index::new(10).unwrap();
    assert!(index.insert(7, 0) && index.insert(7, 1));
    assert_eq!((index.find(7, |slot| slot == 1), index.find(7, |slot| slot == 0)), (Some(1), Some(0)));
    assert_eq!(index.find(7, |_| false), None);
}

#[test]
fn hashes_differ_from_table_to_table() {
    let of = || SessionTable::new(CONFIG, Arc::new(Budget::new(&CONFIG, 1)), &RandomState::new(), None).unwrap();
    assert_ne!(session(&of(), 1, true).hash, session(&of(), 1, true).hash);
}

proptest! {
    /// Compares the table with a model of keys, classes and times.
    #[test]
    fn the_table_agrees_with_a_plain_map(
        steps in proptest::collection::vec((0u16..10, any::<bool>(), any::<bool>(), 0u8..4, 0u64..90), 1..200),
    ) {
        let mut table = table();
        let mut model: BTreeMap<(u16, bool), (u64, u8, u8)> = BTreeMap::new();
        let mut now = 0;
        for (number, tcp, reply, flags, wait) in steps {
            now += wait;
            // For UDP, `down` is set after a reply.
            let timeout = |tcp: bool, up: u8, down: u8| match (tcp, up & down) {
                (false, _) if down == 0 => 300,
                (false, _) => 600,
                (true, both) if both & TcpFlags::FIN != 0 => 60,
                (true, both) if both & TcpFlags::ACK == 0 => 120,
                (true, _) if (up | down) & TcpFlags::FIN != 0 => 90,
                (true, _) => 2000,
            };
            model.retain(|&(_, tcp), &mut (seen, up, down)| now < seen + timeout(tcp, up, down));
            if wait % 3 == 0 {
                table.sweep(now, 2);
            }
            let new = session(&table, number, tcp);
            let flags = [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::ACK | TcpFlags::FIN, TcpFlags::ACK][usize::from(flags)];
            let found = table.find(new.hash, &new.key, now);
            prop_assert_eq!(found.is_some(), model.contains_key(&(number, tcp)));
            match found {
                Some(slot) => {
                    let direction = if reply { Direction::Reply } else { Direction::Forward };
                    table.touch(slot, direction, tcp.then_some(TcpFlags(flags)), at(now));
                    let (seen, up, down) = model.get_mut(&(number, tcp)).unwrap();
                    *seen = now;
                    *(if reply { down } else { up }) |= flags;
                }
                None => {
                    // Expired sessions are swept late, so the table may be full before the model.
                    let has_room = table.budget.room() == Room::Free;
                    prop_assert!(has_room || table.len() == CONFIG.capacity);
                    let spare = [60, 120, 300];
                    let may_go = model.iter().any(|(&(_, tcp), &(_, up, down))| spare.contains(&timeout(tcp, up, down)));
                    let created = table.create(&new, at(now)).is_ok();
                    prop_assert!(created || (!has_room && !may_go));
                    // The table chooses the session to evict. The model follows it.
                    model.retain(|&(number, tcp), _| {
                        let old = session(&table, number, tcp);
                        table.find(old.hash, &old.key, now).is_some()
                    });
                    if created {
                        model.insert((number, tcp), (now, TcpFlags::SYN, 0));
                    }
                }
            }
            check(&table);
        }
    }
}

#[test]
fn a_session_that_waited_for_the_classifier_takes_the_place_that_it_would_have_had() {
    let mut table = table();
    for (number, time) in [(1, 5), (3, 200), (2, 7)] {
        table.create(&session(&table, number, true), at(time)).unwrap();
        check(&table);
    }
    table.sweep(320, 10);
    assert_eq!((table.len(), table.counts.expired), (0, 3));
}

#[test]
fn pages_list_every_session_once_and_nothing_that_was_refused_or_is_over() {
    let mut table = table_of(SessionConfig { capacity: 3000, ..CONFIG });
    let now = |number: u64| Moment { time: 0, number };
    for number in 0..2500u16 {
        let new = session(&table, number, false);
        match number % 5 {
            0 => table.refuse(&new, DropReason::PolicyDenied, now(u64::from(number))),
            _ => drop(table.create(&new, now(u64::from(number))).unwrap()),
        }
    }
    let (mut listed, mut from, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(start) = from {
        let page = table.page(start, 1);
        listed.extend(page.sessions.iter().map(|session| session.initiator));
        (from, pages) = (page.next, pages + 1);
    }
    let all = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!((all, listed.len(), pages), (2000, 2000, 3));
    assert!(table.page(0, u64::MAX).sessions.is_empty(), "they have expired");
    assert_eq!(table.page(u32::MAX, 1).next, None);
}

#[test]
fn the_selected_sessions_end_and_the_others_stay() {
    let mut table = table_of(SessionConfig { capacity: 3000, ..CONFIG });
    let now = |number: u64| Moment { time: 0, number };
    for number in 0..2500u16 {
        table.create(&session(&table, number, false), now(u64::from(number))).unwrap();
    }
    let wanted = table.page(0, 1).sessions[7];
    let by_address = SessionSelector { address: Some(wanted.initiator.0), ..SessionSelector::default() };
    let everywhere = |table: &mut SessionTable, selector: SessionSelector| {
        let (mut ended, mut from) = (Vec::new(), Some(0));
        while let Some(start) = from {
            let page = table.end_selected(start, &selector, 1);
            ended.extend(page.sessions);
            from = page.next;
        }
        ended
    };
    let other = SessionSelector { service: Some(wanted.responder.1 ^ 1), ..by_address };
    assert!(everywhere(&mut table, other).is_empty(), "both fields must match");
    let ended = everywhere(&mut table, by_address);
    assert!(ended.contains(&wanted) && ended.iter().all(|session| by_address.selects(session)));
    check(&table);
    assert_eq!(table.len(), 2500 - ended.len());
    assert!(everywhere(&mut table, by_address).is_empty(), "they have ended");
    let rest = everywhere(&mut table, SessionSelector { port: Some(wanted.in_port), ..SessionSelector::default() });
    check(&table);
    assert_eq!((rest.len(), table.len()), (2500 - ended.len(), 0));
    table.create(&session(&table, 7, false), now(3000)).unwrap();
    check(&table);
}
