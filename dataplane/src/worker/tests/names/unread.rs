//! DNS messages that a worker forwards and cannot read: cut by the capture, and in connections that it does not follow.

use super::*;

/// The client A and a server with an address of the same family, whose packets arrive on the port.
const ENDS: [(PortId, &str, &str); 2] = [(UPLINK, "10.0.0.1", SERVER), (B, "fd00::1", "fd00::2")];

/// Returns a worker to which A has sent a query from port 4000 to the server.
fn asked(client: &str, server: &str, out: PortId) -> Bed {
    let mut bed = bed();
    bed.snapshot = changed(&bed.snapshot, 3, |ports| ports[B.index()].egress = Some(OPEN));
    let packet = datagram((client, 4000), (server, 53), &query(1, "www.example.com"));
    assert_eq!(bed.verdict(A, &packet), Verdict::Forward(out));
    bed
}

fn reply(client: &str, server: &str) -> Vec<u8> {
    let data = answer(1, "www.example.com", &[("www.example.com", 60, WEB), ("www.example.com", 60, "203.0.113.8")]);
    datagram((server, 53), (client, 4000), &data)
}

#[test]
fn an_answer_of_which_the_capture_has_only_the_first_bytes_opens_nothing() {
    for (port, client, server) in ENDS {
        let mut bed = asked(client, server, port);
        let whole = reply(client, server);
        let cut = &whole[..whole.len() - 1];
        let (wire_len, link, in_port, time) = (whole.len(), LinkType::Raw, port, bed.now);
        let mut outcomes = [Outcome::UNJUDGED];
        bed.worker.process(&bed.snapshot, &[Packet { frame: cut, wire_len, link, in_port, time }], &mut outcomes);
        assert_eq!(outcomes[0].verdict, Verdict::Forward(A));
        assert!(!connects(&mut bed, 1, WEB));
        assert_eq!((bed.worker.name_counters().incomplete, bed.worker.name_counters().answers), (1, 0));
    }
}

#[test]
fn a_connection_to_the_server_that_is_older_than_the_rule_opens_nothing() {
    let mut bed = Bed::new();
    let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
    bed.verdict(A, &tcp(client.0, server.0, client.1, 53, SYN));
    bed.verdict(UPLINK, &tcp(server.0, client.0, 53, client.1, SYN | ACK));
    bed.snapshot = snapshot_naming(2, &["www.example.com"], RULE);
    let (ask, data) = (query(1, "www.example.com"), answer(1, "www.example.com", &[("www.example.com", 60, WEB)]));
    assert_eq!(bed.verdict(A, &segment(client, server, 0, &framed(&ask))), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &segment(server, client, 0, &framed(&data))), Verdict::Forward(A));
    assert!(!connects(&mut bed, 1, WEB));
    assert_eq!(bed.worker.name_counters().incomplete, 2);
}
