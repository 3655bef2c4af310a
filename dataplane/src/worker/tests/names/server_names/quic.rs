//! QUIC flows, with the first datagrams of a real client.

use super::*;

/// Returns the two datagrams in which Chromium sends its hello for [`MINE`].
pub(super) fn datagrams() -> [Vec<u8>; 2] {
    let text = include_str!("../../../../../../hello/tests/hellos/chromium.quic.hex");
    let byte = |at: &[u8]| u8::from_str_radix(std::str::from_utf8(at).unwrap(), 16).unwrap();
    let mut lines = text.lines().map(|line| line.as_bytes().chunks(2).map(byte).collect());
    std::array::from_fn(|_| lines.next().unwrap())
}

/// A bed in which A may reach [`WEB`] by another name than the client sends.
fn refusing() -> Bed {
    let mut bed = checking(ServerNameCheck::Drop);
    let names = bed.snapshot.names().cloned().map(Arc::new);
    bed.snapshot = snapshot_naming(9, &["*.example.org"], RULE).with_names(names);
    resolve(&mut bed, 2, "a.example.org", &[("a.example.org", 60, WEB)]);
    bed
}

#[test]
fn a_hello_in_two_datagrams_is_read_and_its_last_one_decides() {
    let [first, second] = datagrams();
    for (from, to) in [(&first, &second), (&second, &first)] {
        let mut bed = checking(ServerNameCheck::Drop);
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, from)), Verdict::Forward(UPLINK));
        let short = datagram(CLIENT, SITE, b"\x41 short header");
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, to)), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(UPLINK, &datagram(SITE, CLIENT, b"\xc0")), Verdict::Forward(A));
        assert_eq!(bed.verdict(A, &short), Verdict::Forward(UPLINK));
        let mut bed = refusing();
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, from)), Verdict::Forward(UPLINK));
        for _ in 0..2 {
            assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, to)), dropped(DropReason::ServerName));
        }
        assert_eq!(bed.worker.name_counters().mismatched, 1, "once");
    }
}

#[test]
fn a_hello_whose_session_has_expired_in_between_is_read_as_one() {
    let [first, second] = datagrams();
    let mut bed = refusing();
    assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, &first)), Verdict::Forward(UPLINK));
    bed.wait(40);
    resolve(&mut bed, 3, "a.example.org", &[("a.example.org", 60, WEB)]);
    let outcome = bed.send(A, &datagram(CLIENT, SITE, &second));
    assert_eq!(outcome.verdict, dropped(DropReason::ServerName));
}

#[test]
fn other_protocols_are_reported_by_an_audit_and_other_versions_are_left_to_the_server() {
    let mut bed = checking(ServerNameCheck::Audit);
    let version = datagram(CLIENT, SITE, b"\xc0\x1a\x2a\x3a\x4a\0\0");
    assert_eq!(bed.send(A, &version).audited, None);
    assert!(bed.send(A, &datagram(CLIENT, SITE, b"no packet of QUIC")).audited.is_some());
    let mut bed = checking(ServerNameCheck::Drop);
    assert_eq!(bed.verdict(A, &version), dropped(DropReason::ServerName));
    for part in datagrams() {
        assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, &part)), Verdict::Forward(UPLINK));
    }
}
