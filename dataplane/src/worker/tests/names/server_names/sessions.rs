//! Which sessions are checked, and for how long: ports, restarts, translation, changes of the setting.

use super::*;

/// Completes the check of the connection that [`open`] has opened.
pub(super) fn settle(bed: &mut Bed) {
    let hello = hello(Some(MINE));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &acknowledging(SITE, CLIENT, hello.len(), ALERT)), Verdict::Forward(A));
    assert!(bed.worker.name_counters().matched > 0);
}

#[test]
fn a_connection_that_is_allowed_whatever_its_name_is_not_checked() {
    let mut bed = checking(ServerNameCheck::Drop);
    let names = bed.snapshot.names().cloned().map(Arc::new);
    let mut tables = snapshot().tables().to_vec();
    let named = Rule { names: Some(super::names(&[MINE])), ..Rule::any(Action::Allow, RULE) };
    tables.push(Arc::new(Tables::build(vec![named, Rule::any(Action::Allow, OriginId(43))]).unwrap()));
    let (ports, routes) = (bed.snapshot.ports().to_vec(), bed.snapshot.routes().clone());
    bed.snapshot = Snapshot::new(9, ports, tables, routes).unwrap().with_names(names);
    open(&mut bed);
    let outcome = bed.send(A, &segment(CLIENT, SITE, 0, b"no TLS"));
    assert_eq!(outcome.verdict, Verdict::Forward(UPLINK));
    assert!(outcome.decision.unwrap().name().is_some(), "the first rule is about the name");
}

#[test]
fn the_port_behind_a_service_counts() {
    let mut bed = checking(ServerNameCheck::Drop);
    let mut services = services(1, &[(VIP, service(&[backend(WEB, 443)]))]);
    services.set_vip(Vip { address: ip(VIP), protocol: 6, port: 8080 }, Some(VipEntry { port: 0, ..ENTRY }));
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(services)));
    let vip = (VIP, 8080);
    assert_eq!(bed.verdict(A, &tcp(CLIENT.0, vip.0, CLIENT.1, vip.1, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, CLIENT.0, SITE.1, CLIENT.1, SYN | ACK)), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &segment(CLIENT, vip, 0, &hello(Some(OTHER)))), dropped(DropReason::ServerName));
    let client = (CLIENT.0, 6000);
    assert_eq!(bed.verdict(A, &tcp(client.0, vip.0, client.1, vip.1, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, client.0, SITE.1, client.1, SYN | ACK)), Verdict::Forward(A));
    let hello = hello(Some(MINE));
    assert_eq!(bed.verdict(A, &segment(client, vip, 0, &hello)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &acknowledging(SITE, client, hello.len(), ALERT)), Verdict::Forward(A));
    assert_eq!(bed.worker.name_counters().matched, 1);
}

#[test]
fn a_connection_of_a_time_without_checks_is_not_cut_later() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    set(&mut bed, ServerNameCheck::Off);
    for _ in 0..2 {
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), Verdict::Forward(UPLINK));
    }
    set(&mut bed, ServerNameCheck::Drop);
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 500, b"data")), Verdict::Forward(UPLINK));
}

#[test]
fn a_settled_connection_outlives_new_tables_and_one_that_is_not_is_still_checked() {
    for is_settled in [true, false] {
        let mut bed = checking(ServerNameCheck::Drop);
        open(&mut bed);
        if is_settled {
            settle(&mut bed);
        }
        set(&mut bed, ServerNameCheck::Drop);
        let expected = if is_settled { Verdict::Forward(UPLINK) } else { dropped(DropReason::ServerName) };
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, b"anything else")), expected);
    }
}

#[test]
fn a_hello_retry_request_asks_for_a_second_hello_with_the_same_name() {
    const RETRY: [u8; 32] = *b"\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\
        \xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c";
    let answer = [&[22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3], &RETRY[..], &[0, 0x13, 1, 0]].concat();
    let first = hello(Some(MINE));
    let at = u32::try_from(first.len()).unwrap();
    for (name, expected) in [(MINE, Verdict::Forward(UPLINK)), (OTHER, dropped(DropReason::ServerName))] {
        let mut bed = checking(ServerNameCheck::Drop);
        open(&mut bed);
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &first)), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(UPLINK, &acknowledging(SITE, CLIENT, first.len(), &answer)), Verdict::Forward(A));
        assert_eq!(bed.worker.name_counters().matched, 0, "a second hello follows");
        let second = hello(Some(name));
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, at, &second)), expected);
        if name == MINE {
            let packet = acknowledging(SITE, CLIENT, 2 * first.len(), b"");
            assert_eq!(bed.verdict(UPLINK, &packet), Verdict::Forward(A));
            assert_eq!(bed.worker.name_counters().matched, 1);
        }
    }
}

#[test]
fn after_a_restart_connections_that_are_not_settled_are_cut_and_all_others_go_on() {
    let folder = std::env::temp_dir().join(format!("bulkhead-server-names-{}", std::process::id()));
    let config = WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() };
    let mut store = None;
    let mut restart = |bed: &mut Bed| {
        drop(std::mem::replace(&mut bed.worker, Worker::new(config)));
        drop(store.take());
        let opened = store.insert(SessionStore::open(&folder).unwrap());
        let team = Worker::team_in(opened, config, 1, &Affinity::new(), &bed.snapshot, bed.now).unwrap();
        bed.worker = team.into_iter().next().unwrap();
    };
    let mut bed = checking(ServerNameCheck::Drop);
    restart(&mut bed);
    resolve(&mut bed, 2, MINE, &[(MINE, 60, WEB)]);
    open(&mut bed);
    settle(&mut bed);
    let late = (CLIENT.0, 6000);
    assert_eq!(bed.verdict(A, &tcp(late.0, SITE.0, late.1, SITE.1, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, late.0, SITE.1, late.1, SYN | ACK)), Verdict::Forward(A));
    for part in quic::datagrams() {
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, &part)), Verdict::Forward(UPLINK));
    }
    restart(&mut bed);
    for _ in 0..2 {
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 500, b"data")), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, b"\x41 short header")), Verdict::Forward(UPLINK));
    }
    assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, &quic::datagrams()[1])), dropped(DropReason::ServerName));
    assert_eq!(bed.verdict(A, &segment(late, SITE, 0, &hello(Some(MINE)))), dropped(DropReason::ServerName));
    drop(bed);
    drop(store);
    std::fs::remove_dir_all(&folder).unwrap();
}
