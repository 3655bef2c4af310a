//! SCTP associations: opened by INIT, established after both ways, ended by ABORT and SHUTDOWN.

use super::dropped;
use crate::testbed::*;
use crate::wire::checksum::crc32c;
use crate::*;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;
const DATA: u8 = 0;

fn chunk(src: &str, dst: &str, sport: u16, dport: u16, chunk: u8) -> Vec<u8> {
    let [a, b] = sport.to_be_bytes();
    let [c, d] = dport.to_be_bytes();
    let mut packet = [a, b, c, d, 0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, 4];
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    v4(src, dst, 132, 64, &packet)
}

fn there(bed: &mut Bed, kind: u8) -> Verdict {
    bed.verdict(A, &chunk("10.0.0.1", "10.0.0.2", 9, 80, kind))
}

fn back(bed: &mut Bed, kind: u8) -> Verdict {
    bed.verdict(B, &chunk("10.0.0.2", "10.0.0.1", 80, 9, kind))
}

fn established() -> Bed {
    let mut bed = Bed::new();
    assert_eq!(there(&mut bed, INIT), Verdict::Forward(B));
    assert_eq!(back(&mut bed, INIT_ACK), Verdict::Forward(A));
    assert_eq!(there(&mut bed, COOKIE_ECHO), Verdict::Forward(B));
    assert_eq!(back(&mut bed, COOKIE_ACK), Verdict::Forward(A));
    bed
}

const GONE: Verdict = Verdict::Drop(DropReason::ReplyWithoutSession);

#[test]
fn only_an_init_opens_an_association() {
    for kind in (0..=255).filter(|&kind| kind != INIT) {
        assert_eq!(there(&mut Bed::new(), kind), GONE, "chunk {kind}");
    }
}

#[test]
fn an_association_is_transient_until_the_cookie_is_acknowledged() {
    for seen in [1, 2, 3] {
        let mut bed = Bed::new();
        there(&mut bed, INIT);
        if seen > 1 {
            back(&mut bed, INIT_ACK);
        }
        if seen > 2 {
            there(&mut bed, COOKIE_ECHO);
        }
        bed.wait(120);
        assert_eq!(there(&mut bed, COOKIE_ECHO), GONE, "{seen} packets");
    }
    let mut bed = established();
    bed.wait(599);
    assert_eq!(there(&mut bed, DATA), Verdict::Forward(B));
    bed.wait(600);
    assert_eq!(there(&mut bed, DATA), GONE);
}

#[test]
fn an_abort_and_a_shutdown_shorten_an_association() {
    let after = |seconds, end: fn(&mut Bed)| {
        let mut bed = established();
        end(&mut bed);
        assert_eq!(back(&mut bed, DATA), Verdict::Forward(A), "what was still under way");
        bed.wait(seconds);
        back(&mut bed, DATA)
    };
    let abort = |bed: &mut Bed| assert_eq!(back(bed, ABORT), Verdict::Forward(A));
    let shutdown = |bed: &mut Bed| {
        there(bed, SHUTDOWN);
        back(bed, SHUTDOWN_ACK);
    };
    let complete = |bed: &mut Bed| assert_eq!(there(bed, SHUTDOWN_COMPLETE), Verdict::Forward(B));
    for end in [abort, shutdown, complete] {
        assert_eq!(after(9, end), Verdict::Forward(A));
        assert_eq!(after(10, end), GONE);
    }
    // Only one side has finished.
    let half = |bed: &mut Bed| assert_eq!(there(bed, SHUTDOWN), Verdict::Forward(B));
    assert_eq!(after(119, half), Verdict::Forward(A));
    assert_eq!(after(120, half), GONE);
}

#[test]
fn an_abort_with_a_wrong_checksum_is_dropped_and_ends_nothing() {
    let mut bed = Bed::with(SessionConfig::live(100));
    for (kind, is_back) in [(INIT, false), (INIT_ACK, true), (COOKIE_ECHO, false), (COOKIE_ACK, true)] {
        let verdict = if is_back { back(&mut bed, kind) } else { there(&mut bed, kind) };
        assert!(verdict.out_port().is_some());
    }
    let mut abort = chunk("10.0.0.2", "10.0.0.1", 80, 9, ABORT);
    abort[28] ^= 1;
    assert_eq!(bed.verdict(B, &abort), dropped(DropReason::BadChecksum));
    bed.wait(300);
    assert_eq!(there(&mut bed, DATA), Verdict::Forward(B));
}

#[test]
fn an_init_after_the_end_starts_anew() {
    let mut bed = established();
    assert_eq!(there(&mut bed, INIT), Verdict::Forward(B));
    assert_eq!(bed.worker.counters().sessions().created, 1, "a repeated INIT of an open association");
    back(&mut bed, ABORT);
    assert_eq!(there(&mut bed, INIT), Verdict::Forward(B));
    let sessions = bed.worker.counters().sessions();
    assert_eq!((sessions.created, sessions.replaced), (2, 1));
}

#[test]
fn an_init_against_the_direction_of_an_association_needs_leave_of_its_own() {
    let mut bed = Bed::new();
    // B may open an association to A from a port that A may not connect to.
    let init = chunk("10.0.0.2", "10.0.0.1", 9, 9, INIT);
    assert_eq!(bed.verdict(B, &init), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &chunk("10.0.0.1", "10.0.0.2", 9, 9, INIT)), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(A, &chunk("10.0.0.1", "10.0.0.2", 9, 9, INIT_ACK)), Verdict::Forward(B));
}

#[test]
fn a_flood_of_inits_has_the_share_of_half_open_connections() {
    let mut bed = Bed::with(SessionConfig::live(100));
    for sport in 1..=100 {
        assert_eq!(bed.verdict(B, &chunk("10.0.0.2", "10.0.0.1", sport, 9, INIT)), Verdict::Forward(A));
    }
    assert_eq!(bed.worker.sessions_in_use(), 25);
}
