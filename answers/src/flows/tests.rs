//! Tests with logs in the format of each tool, and with malformed input.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use super::*;

fn read_all(text: &[u8], lenient: bool) -> Result<Observations, LogError> {
    let mut seen = Observations::new(lenient);
    read("log", text, &mut seen)?;
    Ok(seen)
}

fn flows(text: &str) -> Vec<ObservedFlow> {
    read_all(text.as_bytes(), false).unwrap().flows().unwrap()
}

fn told(flow: &ObservedFlow) -> String {
    let ObservedFlow { conversation, said, tally, .. } = flow;
    let missing = conversation.missing.map(|missing| format!(" ({missing})")).unwrap_or_default();
    let service = conversation.service.map(|service| format!(" for {service}")).unwrap_or_default();
    let (from, to, what) = (&conversation.from, &conversation.to, conversation.service_name());
    format!("{} {from} -> {to} {what}{service}{missing} [{}]", tally.sessions, said.words)
}

fn fault(text: &[u8]) -> String {
    read_all(text, false).unwrap_err().to_string()
}

const CONNTRACK: &str = "\
[1795466672.082000]\t    [NEW] tcp      6 120 SYN_SENT src=10.0.0.1 dst=10.96.0.9 sport=46178 dport=80 [UNREPLIED] src=10.0.0.2 dst=10.0.0.1 sport=8080 dport=46178
[1795466672.082112]\t [UPDATE] tcp      6 60 SYN_RECV src=10.0.0.1 dst=10.96.0.9 sport=46178 dport=80 src=10.0.0.2 dst=10.0.0.1 sport=8080 dport=46178
[1795466674.566502]\t[DESTROY] tcp      6 TIME_WAIT src=10.0.0.1 dst=10.96.0.9 sport=46178 dport=80 packets=5 bytes=273 src=10.0.0.2 dst=10.0.0.1 sport=8080 dport=46178 packets=5 bytes=270 [ASSURED]
[1795466675.000000]\t    [NEW] tcp      6 120 SYN_SENT src=10.0.0.1 dst=10.96.0.9 sport=46178 dport=80 [UNREPLIED] src=10.0.0.2 dst=10.0.0.1 sport=8080 dport=46178
tcp      6 0 TIME_WAIT src=fd00::1 dst=fd00::2 sport=32884 dport=8081 packets=5 bytes=373 src=fd00::2 dst=fd00::1 sport=8081 dport=32884 packets=5 bytes=370 [ASSURED] mark=0 use=1
ipv4     2 udp      17 29 src=10.0.0.1 dst=10.0.0.3 sport=59625 dport=53 [UNREPLIED] src=10.0.0.3 dst=10.0.0.1 sport=53 dport=59625 mark=0 use=1
icmp     1 29 src=10.0.0.1 dst=10.0.0.3 type=8 code=0 id=32368 packets=1 bytes=84 src=10.0.0.3 dst=10.0.0.1 type=0 code=0 id=32368 packets=1 bytes=84 mark=0 use=1
unknown  47 599 src=10.0.0.1 dst=10.0.0.3 src=10.0.0.3 dst=10.0.0.1 use=1
conntrack v1.4.7 (conntrack-tools): 8 flow events have been shown.
";

#[test]
fn conntrack_tells_the_client_the_endpoint_that_it_was_given_and_what_was_counted() {
    let flows = flows(CONNTRACK);
    let lines: Vec<String> = flows.iter().map(told).collect();
    assert_eq!(
        lines,
        [
            "2 10.0.0.1 -> 10.0.0.2 TCP 8080 for 10.96.0.9:80 []",
            "1 10.0.0.1 -> 10.0.0.3 ICMP echo []",
            "1 10.0.0.1 -> 10.0.0.3 UDP 53 []",
            "1 10.0.0.1 -> 10.0.0.3 protocol 47 []",
            "1 fd00::1 -> fd00::2 TCP 8081 []",
        ]
    );
    let tally = &flows[0].tally;
    assert_eq!((tally.packets, tally.bytes, tally.answered), (Some(10), Some(543), 1));
    assert_eq!((tally.first, tally.last), (Some(1_795_466_672_082_000_000), Some(1_795_466_675_000_000_000)));
    assert_eq!((flows[2].tally.packets, flows[2].tally.answered), (None, 0));
    assert_eq!(flows[4].tally.place.to_string(), "log:5");
}

const HUBBLE: &str = r#"
{"flow":{"time":"2026-03-01T10:00:00.5Z","uuid":"a","verdict":"FORWARDED","ethernet":{"source":"aa:bb:cc:dd:ee:ff"},"IP":{"source":"10.0.0.1","destination":"10.0.0.2","ipVersion":"IPv4"},"l4":{"TCP":{"source_port":41000,"destination_port":8080,"flags":{"SYN":true}}},"source":{"ID":7,"identity":5,"namespace":"shop","labels":["k8s:app=front"],"pod_name":"front"},"destination":{"namespace":"shop","pod_name":"web"},"Type":"L3_L4","node_name":"n","is_reply":false,"event_type":{"type":4},"traffic_direction":"EGRESS","Summary":"TCP Flags: SYN"},"node_name":"n","time":"2026-03-01T10:00:00.5Z"}
{"flow":{"time":"2026-03-01T10:00:01Z","verdict":"FORWARDED","IP":{"source":"10.0.0.2","destination":"10.0.0.1"},"l4":{"TCP":{"source_port":8080,"destination_port":41000,"flags":{"SYN":true,"ACK":true}}},"source":{"namespace":"shop","pod_name":"web"},"destination":{"namespace":"shop","pod_name":"front"},"is_reply":true}}
{"time":"2026-03-01T10:00:02Z","verdict":"DROPPED","drop_reason_desc":"POLICY_DENIED","IP":{"source":"10.0.0.9","destination":"10.0.0.2"},"l4":{"TCP":{"source_port":5,"destination_port":8080,"flags":{"SYN":true}}},"destination":{"namespace":"shop","pod_name":"web"}}
{"flow":{"verdict":"FORWARDED","IP":{"source":"10.0.0.2","destination":"10.0.0.1"},"l4":{"TCP":{"source_port":8080,"destination_port":9,"flags":{"ACK":true}}}}}
{"flow":{"verdict":"FORWARDED","IP":{"source":"10.0.0.2","destination":"10.0.0.1"},"l4":{"UDP":{"source_port":8080,"destination_port":9}},"is_reply":null}}
{"flow":{"verdict":"FORWARDED","l4":{"UDP":{"source_port":8}},"source":{"namespace":"shop","pod_name":"front"},"destination":{"namespace":"shop","pod_name":"web"},"is_reply":false}}
{"flow":{"verdict":"AUDIT","IP":{"source":"fd00::2","destination":"fd00::1"},"l4":{"ICMPv6":{"type":129}},"is_reply":true}}
{"flow":{"verdict":"TRACED","IP":{"source":"10.0.0.2","destination":"10.96.0.1"},"Type":"SOCK"}}
{"lost_events":{"source":"HUBBLE_RING_BUFFER","num_events_lost":"17"},"node_name":"n"}
"#;

#[test]
fn hubble_tells_pods_and_verdicts_and_what_it_does_not_say_stays_unknown() {
    let mut seen = read_all(HUBBLE.as_bytes(), false).unwrap();
    assert_eq!(seen.remarks.values().copied().collect::<Vec<_>>(), [17, 1], "{:?}", seen.remarks);
    let flows = seen.flows().unwrap();
    let lines: Vec<String> = flows.iter().map(told).collect();
    let (opener, port) = (Missing::Opener, Missing::Port);
    assert_eq!(
        lines,
        [
            format!("1 shop/front -> shop/web UDP ? ({port}) [FORWARDED]"),
            format!("1 10.0.0.1 -> 10.0.0.2 TCP ? ({opener}) [FORWARDED]"),
            format!("1 10.0.0.1 -> 10.0.0.2 UDP ? ({opener}) [FORWARDED]"),
            "1 shop/front -> shop/web TCP 8080 [FORWARDED]".to_owned(),
            "1 10.0.0.9 -> shop/web TCP 8080 [DROPPED (POLICY_DENIED)]".to_owned(),
            "1 fd00::1 -> fd00::2 ICMPv6 echo [AUDIT]".to_owned(),
        ]
    );
    let (first, dropped) = (&flows[3], &flows[4]);
    assert_eq!((first.tally.answered, first.tally.packets, first.said.dropped), (1, None, false));
    assert_eq!(first.tally.last.unwrap() - first.tally.first.unwrap(), 500_000_000);
    assert!(dropped.said.dropped);
}

const OWN: &str = r#"{
  "matching": 3,
  "sessions": [
    {"protocol": "TCP", "from": "10.0.0.1:40000", "to": "10.0.0.2:8080", "service": "10.96.0.9:80", "in_port": "x/a",
     "out_port": "uplink", "state": "established", "idle_seconds": 0.5, "origin": "x/p ingress[0]"},
    {"protocol": "ICMPv6", "from": "fd00::1", "to": "fd00::2", "in_port": "x/a", "out_port": "x/b", "state": "open",
     "idle_seconds": 1, "origin": "no ingress isolation"}
  ],
  "ports": [["x/a", 2]]
}
"#;

#[test]
fn bulkheads_own_sessions_are_read_as_they_are_printed_and_in_one_line() {
    for text in [OWN.to_owned(), OWN.replace('\n', " ")] {
        let mut seen = read_all(text.as_bytes(), false).unwrap();
        assert_eq!(seen.remarks.values().copied().collect::<Vec<_>>(), [1], "one that matches is not told");
        let lines: Vec<String> = seen.flows().unwrap().iter().map(told).collect();
        assert_eq!(
            lines,
            [
                "1 10.0.0.1 -> 10.0.0.2 TCP 8080 for 10.96.0.9:80 [allowed by x/p ingress[0]]",
                "1 fd00::1 -> fd00::2 ICMPv6 echo [allowed by no ingress isolation]",
            ]
        );
    }
}

#[test]
fn logs_of_several_tools_may_be_one() {
    let mut seen = read_all(format!("{CONNTRACK}\n{HUBBLE}{}\n", OWN.replace('\n', " ")).as_bytes(), false).unwrap();
    let lines: Vec<String> = seen.flows().unwrap().iter().map(told).collect();
    // An echo request has no port, so Hubble's and Bulkhead's lines describe one session.
    assert_eq!(lines.len(), 5 + 6 + 2 - 1, "{lines:#?}");
}

#[test]
fn what_cannot_be_read_names_file_and_line_and_what_is_wrong() {
    for (text, wanted) in [
        ("\n\nhello\n", "log:3: the line is neither a JSON object nor conntrack output"),
        ("{\"flow\":{\"verdict\":\"FORWARDED\"", "log:1: cannot parse the JSON object: EOF"),
        ("{\"a\":1}", "the JSON object is neither a Hubble flow"),
        ("[{\"flow\":{}}]", "jq -c '.[]'"),
        ("{\"flow\":{\"IP\":{\"source\":\"10.0.0.300\"}}}", "`10.0.0.300` is not an IP address"),
        ("{\"flow\":{\"IP\":[]}}", "IP"),
        ("{\"flow\":{\"l4\":{\"TCP\":{\"source_port\":65536}}}}", "l4.TCP.source_port"),
        ("{\"flow\":{\"l4\":{\"TCP\":{\"source_port\":\"80\"}}}}", "l4.TCP.source_port"),
        ("{\"flow\":{\"time\":\"yesterday\"}}", "`yesterday` is not an RFC 3339 time"),
        ("{\"sessions\":[{\"protocol\":\"TCP\"}]}", "cannot parse the session list"),
        ("tcp 6 120 SYN_SENT src=10.0.0.1 dst=x", "cannot parse `dst=x`"),
        ("tcp 17 120 src=10.0.0.1 dst=10.0.0.2", "neither a JSON object"),
        ("tcp 6 120 src=10.0.0.1", "no dst="),
        ("tcp 6 120 src=10.0.0.1 dst=fd00::1", "different families"),
        ("tcp 6 1 src=10.0.0.1 dst=10.0.0.2 sport=99999999999999999999 dport=1", "`sport=99999999999999999999`"),
        ("[18446744073709551615.0] [NEW] tcp 6 1 src=10.0.0.1 dst=10.0.0.2", "is not a time in seconds"),
        ("udp 17 1 src=::1 dst=::2 src=::2 dst=::1 src=::3 dst=::4", "more than two directions"),
        ("tcp 6 1 src=10.0.0.1 dst=\u{1b}[2J", "\\u{1b}"),
    ] {
        let fault = fault(text.as_bytes());
        assert!(fault.contains(wanted), "{text}: {fault}");
        assert!(fault.starts_with("log:") && fault.contains("help: "), "{fault}");
    }
    assert!(fault(b"tcp \xff\n").contains("not UTF-8"));
    assert!(fault("x".repeat(3 << 20).as_bytes()).contains("exceeds 1048576 bytes"));
}

#[test]
fn a_json_object_of_more_values_than_a_session_list_has_is_refused_by_line() {
    let values = "[],".repeat(300_000);
    for text in [format!("\n{{\"a\":[{values}[]]}}"), format!("\n{{\n\"a\":[{values}[]]}}")] {
        assert!(fault(text.as_bytes()).contains("log:2: the JSON object has more values"));
    }
    let long = "{\n".to_owned() + &" ".repeat(9 << 20);
    assert!(fault(long.as_bytes()).contains("log:1: the document exceeds 8388608 bytes"));
}

#[test]
fn a_log_of_which_nothing_can_be_read_is_refused_by_line_with_lenient_too() {
    let text = "x\n".repeat((1 << 20) + 1);
    let fault = read_all(text.as_bytes(), true).unwrap_err().to_string();
    assert!(fault.starts_with("log:1048577: neither this line nor"), "{fault}");
    let seen = read_all((CONNTRACK.to_owned() + "\n" + &text).as_bytes(), true).unwrap();
    assert_eq!(seen.unread.values().sum::<u64>(), (1 << 20) + 1);
    let kinds: String = (0..3000).map(|number| format!("tcp 6 120 src=10.0.0.1 dst=x{number}\n")).collect();
    let unread = read_all(kinds.as_bytes(), true).unwrap().unread;
    assert_eq!((unread.len(), unread["other faults"]), (1001, 2000));
}

#[test]
fn with_lenient_what_cannot_be_read_is_counted_and_the_rest_is_read() {
    let text =
        [b"hello\n\xff\xff\nhello\n".as_slice(), CONNTRACK.as_bytes(), &vec![b'x'; 3 << 20], b"\n{\"a\":1}\n"].concat();
    let mut seen = read_all(&text, true).unwrap();
    assert_eq!(seen.unread.values().sum::<u64>(), 5, "{:?}", seen.unread);
    assert_eq!(seen.unread.len(), 4);
    assert_eq!(seen.flows().unwrap().len(), 5);
}

#[test]
fn a_capture_tells_sessions_and_not_who_has_opened_what_began_before_it() {
    let capture = std::fs::File::open("../pcaps/http/in.pcapng").unwrap();
    let mut seen = Observations::new(false);
    assert_eq!(from_capture("http", capture, false, None, &mut seen).unwrap(), 210);
    let lines: Vec<String> = seen.flows().unwrap().iter().map(told).collect();
    assert_eq!(
        lines,
        [
            "1 10.244.1.3 -> 10.244.1.2 TCP 8080 []",
            "1 10.244.1.3 -> 10.244.1.2 TCP 9090 []",
            "1 10.244.1.4 -> 10.244.1.2 TCP 8080 []",
        ]
    );
    let v6 = std::fs::File::open("../pcaps/ipv6/in.pcapng").unwrap();
    let mut seen = Observations::new(false);
    from_capture("v6", v6, false, None, &mut seen).unwrap();
    assert!(seen.flows().unwrap().iter().any(|flow| flow.tally.answered > 0));
}

/// One line of a log of sessions between 10.0.0.1 and a server.
fn session(server: u32, client_port: u16, word: &str) -> String {
    let server = std::net::Ipv4Addr::from_bits((10 << 24) + 256 + server);
    format!(
        "{word} tcp 6 src=10.0.0.1 dst={server} sport={client_port} dport=80 packets=1 bytes=60 src={server} dst=10.0.0.1 sport=80 \
         dport={client_port} packets=1 bytes=60\n"
    )
}

/// Reads a log with other bounds than usual. Returns the flows, and the sum of all remarks' counts.
fn folding(text: &str, generation: usize, most: usize, lenient: bool) -> Result<(Vec<ObservedFlow>, u64), LogError> {
    let mut seen = Observations::new(lenient);
    seen.sessions = Recent::new(generation);
    seen.folded.most = most;
    read("log", text.as_bytes(), &mut seen)?;
    let flows = seen.flows()?;
    Ok((flows, seen.remarks.values().sum()))
}

#[test]
fn sessions_that_are_folded_count_as_before_and_one_that_goes_on_is_remarked() {
    let all = usize::MAX;
    // Those that are over are folded without a loss. The first one is used again and again.
    let over: String = (1..200u16)
        .flat_map(|port| [session(1, 9, "[UPDATE]"), session(u32::from(port % 3), port, "[DESTROY]")])
        .collect();
    let exact = folding(&over, all, all, false).unwrap();
    assert_eq!((exact.0.len(), exact.1), (3, 0));
    assert_eq!(folding(&over, 4, all, false).unwrap(), exact);
    // One that is idle for long counts twice.
    let idle = |others: u16| {
        let others = (1..=others).map(|port| session(2, port, "[DESTROY]")).collect::<String>();
        session(1, 9, "[NEW]") + &others + &session(1, 9, "[DESTROY]")
    };
    for (others, sessions, remarked) in [(4, 1, 0), (7, 1, 0), (8, 2, 1)] {
        let (flows, remarks) = folding(&idle(others), 4, all, false).unwrap();
        assert_eq!(
            (flows[0].tally.sessions, flows[0].tally.packets, remarks),
            (sessions, Some(2), remarked),
            "{others}"
        );
    }
}

#[test]
fn more_flows_than_an_answer_takes_are_an_error_with_a_place_or_counted() {
    let text: String = (0..50).map(|server| session(server, 9, "[DESTROY]")).collect();
    for generation in [4, 1000] {
        assert_eq!(folding(&text, generation, 50, false).unwrap().0.len(), 50);
        let error = folding(&text, generation, 49, false).unwrap_err().to_string();
        assert!(error.starts_with("log:50: more than 131072 flows"), "{error}");
        let (flows, left_out) = folding(&text, generation, 40, true).unwrap();
        assert_eq!((flows.len(), left_out), (40, 10));
    }
    // It is noticed at a later line.
    let error = folding(&text, 4, 20, false).unwrap_err().to_string();
    assert!(error.starts_with("log:21: "), "{error}");
}

/// A capture of a SYN of each session, whose number determines the client's address and port.
fn capture_of(sessions: impl Iterator<Item = (u16, u16)>) -> Vec<u8> {
    // Version 2.4, no time zone, 65,535 bytes of a packet, Ethernet.
    let mut bytes: Vec<u8> =
        [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 1].iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    for (address, port) in sessions {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 1]);
        frame.extend(address.to_be_bytes());
        frame.extend([10, 0, 0, 2]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
        bytes.extend([0, 0, 54, 54].iter().flat_map(|word: &u32| word.to_be_bytes()));
        bytes.extend(frame);
    }
    bytes
}

#[test]
fn a_capture_of_many_sessions_is_folded_and_one_of_too_many_flows_is_an_error() {
    let sessions = 40_000;
    let mut seen = Observations::new(false);
    let capture = capture_of((0..sessions).map(|port| (1, port + 1)));
    assert_eq!(from_capture("pcap", &capture[..], false, None, &mut seen).unwrap(), u64::from(sessions));
    let flows = seen.flows().unwrap();
    assert_eq!(flows.iter().map(told).collect::<Vec<_>>(), ["40000 10.1.0.1 -> 10.0.0.2 TCP 80 []"]);
    assert_eq!((flows[0].tally.packets, flows[0].tally.place.line), (Some(40_000), 1));
    assert!(seen.remarks.values().sum::<u64>() > 0, "{:?}", seen.remarks);
    let mut seen = Observations::new(false);
    seen.folded.most = 1_000;
    let capture = capture_of((0..sessions).map(|address| (address, 9)));
    let error =
        from_capture("pcap", &capture[..], false, None, &mut seen).and_then(|_| seen.flows()).unwrap_err().to_string();
    assert!(error.starts_with("pcap:1001: more than"), "{error}");
}

/// A mangled line of each kind gives an error or flows, never a panic. Lenient reading never fails.
#[test]
fn mangled_logs_end_in_an_error_or_in_flows() {
    let seed = format!("{CONNTRACK}{HUBBLE}{OWN}");
    bolero::check!().with_type::<Vec<(u16, u8)>>().with_test_time(std::time::Duration::from_millis(300)).for_each(
        |edits| {
            let mut bytes = seed.clone().into_bytes();
            for &(place, byte) in edits {
                let at = usize::from(place) % bytes.len();
                match byte {
                    0..=20 if bytes.len() > 1 => bytes.truncate(at.max(1)),
                    21..=60 => drop(bytes.remove(at)),
                    _ => bytes[at] = byte,
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let strict = read_all(&bytes, false);
            let mut lenient = read_all(&bytes, true).unwrap();
            if let Ok(mut strict) = strict {
                assert_eq!(strict.flows().unwrap(), lenient.flows().unwrap());
            }
        },
    );
}
