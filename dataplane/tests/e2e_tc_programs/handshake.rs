//! Handshakes and ends of connections that the program forwards without a worker.

use bulkhead_dataplane::io::{FlowSteps, NEAR};

use super::away::{ACK, Connection, FIN, RST, SYN, forwards_numbered};
use super::*;

const HANDSHAKE: FlowHandshake = FlowHandshake(50_000);
/// The numbers after the SYN and after the SYN-ACK. The first FIN's distance wraps around.
const FIRST: [u32; 2] = [5, 0x8000_0001];

/// A connection whose SYN a worker has judged. The client is side 0.
struct Opened(Connection);

impl Opened {
    fn new() -> Option<Self> {
        let connection = Connection::new(Net::new(1, 1500)?, None);
        connection.lab.datapath.await_handshake(HANDSHAKE, FirstNumbers { initiator: FIRST[0], responder: None });
        let starts = [Initiator::Source, Initiator::Destination].map(|end| FlowStart::Handshake(HANDSHAKE, end));
        for (flow, start) in connection.flows.iter().zip(starts) {
            connection.lab.datapath.add(&CachedFlow { start, lease: 60_000_000_000, ..*flow });
        }
        Some(Self(connection))
    }

    /// Whether the program forwards a segment from this side.
    fn forwards(&self, side: usize, flags: u8, numbers: [u32; 2]) -> bool {
        let Connection { lab: Lab { net, datapath, .. }, indices, flows, .. } = &self.0;
        let (port, flow) = (indices[side], &flows[side]);
        net.inside("sw", || forwards_numbered(datapath, port, flow, flags, numbers))
    }

    fn answer(&self) -> bool {
        self.forwards(1, SYN | ACK, [FIRST[1] - 1, FIRST[0]])
    }

    fn end_handshake(&self) -> bool {
        self.forwards(0, ACK, FIRST)
    }

    fn steps(&self) -> FlowSteps {
        self.0.lab.datapath.steps(HANDSHAKE)
    }
}

#[test]
fn a_handshake_passes_step_by_step_and_no_step_is_left_out() {
    let Some(opened) = Opened::new() else { return };
    assert_eq!(opened.steps(), FlowSteps::default());
    assert!(!opened.end_handshake(), "there was no SYN-ACK");
    assert!(!opened.forwards(0, ACK, [FIRST[0], 0]), "0 is the number of no SYN-ACK");
    assert!(!opened.forwards(1, ACK, [FIRST[1], FIRST[0]]), "the responder has not answered");
    for (flags, numbers) in [
        (SYN, [FIRST[1] - 1, FIRST[0]]),
        (SYN | ACK | FIN, [FIRST[1] - 1, FIRST[0]]),
        (SYN | ACK | RST, [FIRST[1] - 1, FIRST[0]]),
        (SYN | ACK, [FIRST[1] - 1, FIRST[0] - 1]),
    ] {
        assert!(!opened.forwards(1, flags, numbers), "{flags:#x} {numbers:?}");
    }
    assert!(!opened.forwards(0, SYN | ACK, [FIRST[0] - 1, FIRST[0]]), "the initiator has not been asked");
    assert_eq!(opened.steps(), FlowSteps::default());
    assert!(opened.answer() && opened.answer(), "it may be repeated");
    assert_eq!(opened.steps(), FlowSteps { answered: Some(FIRST[1]), ..FlowSteps::default() });
    assert!(!opened.forwards(1, ACK, [FIRST[1], FIRST[0]]), "the initiator has not proven its address");
    assert!(!opened.forwards(0, ACK, [FIRST[0], FIRST[1] - 1]));
    assert!(opened.end_handshake());
    assert_eq!(opened.steps(), FlowSteps { answered: Some(FIRST[1]), has_ended: true, fins: [false; 2] });
    assert!(opened.forwards(1, ACK, [FIRST[1], FIRST[0]]));
    assert!(!opened.answer(), "a worker sees what should not be");
    assert!(!opened.forwards(0, SYN, [FIRST[0], 0]));
}

#[test]
fn the_first_fin_of_each_side_passes_if_it_is_near_its_first_number() {
    let Some(opened) = Opened::new() else { return };
    assert!(!opened.forwards(0, FIN | ACK, [FIRST[0], 0]) && !opened.forwards(1, FIN | ACK, [FIRST[1], FIRST[0]]));
    assert!(opened.answer() && opened.end_handshake());
    for side in [0, 1] {
        for (distance, is_near) in [(0, true), (NEAR, true), (NEAR + 1, false), (0_u32.wrapping_sub(NEAR), true)] {
            opened
                .0
                .lab
                .datapath
                .await_handshake(HANDSHAKE, FirstNumbers { initiator: FIRST[0], responder: Some(FIRST[1]) });
            assert!(opened.end_handshake());
            let numbers = [FIRST[side].wrapping_add(distance), FIRST[1 - side]];
            assert_eq!(opened.forwards(side, FIN | ACK, numbers), is_near, "{side} {distance}");
            assert_eq!(opened.steps().fins, [side == 0 && is_near, side == 1 && is_near]);
            assert!(!opened.forwards(side, RST | ACK, numbers), "a reset may be anywhere");
            assert!(opened.forwards(side, ACK, numbers) && opened.forwards(1 - side, ACK, FIRST));
        }
    }
    // A renewed flow no longer has a record.
    let flow = &opened.0.flows[0];
    assert!(opened.0.lab.datapath.renew(&CachedFlow { lease: 60_000_000_000, ..*flow }));
    assert!(opened.forwards(0, ACK, FIRST) && !opened.forwards(0, FIN | ACK, FIRST));
}
