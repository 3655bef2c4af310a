//! Tests of valid and invalid filters.

use proptest::prelude::*;

use super::*;
use crate::io::Translation;
use crate::packet::{Ends, Ports};
use crate::session::Key;
use crate::testbed::ip;

fn flow(protocol: u8, src: &str, sport: u16, dst: &str, dport: u16) -> Flow {
    Flow { src: ip(src), dst: ip(dst), protocol, sport, dport, icmp: None }
}

fn web() -> Flow {
    flow(6, "10.0.0.1", 4000, "10.1.0.2", 80)
}

fn dns() -> Flow {
    flow(17, "fd00::1", 5000, "fd00:1::2", 53)
}

fn ping() -> Flow {
    flow(1, "10.0.0.1", 0, "10.1.0.2", 0)
}

fn which(text: &str) -> String {
    let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    [("w", web()), ("d", dns()), ("p", ping())]
        .into_iter()
        .filter_map(|(name, flow)| filter.matches(&flow).then_some(name))
        .collect()
}

#[test]
fn expressions_select_what_libpcap_selects() {
    for (text, expected) in [
        ("", "wdp"),
        ("tcp", "w"),
        ("udp", "d"),
        ("ip", "wp"),
        ("ip6", "d"),
        ("icmp", "p"),
        ("icmp6", ""),
        ("sctp", ""),
        ("proto 1", "p"),
        ("ip proto tcp", "w"),
        ("port 80", "w"),
        ("port http", "w"),
        ("src port 80", ""),
        ("dst port 80", "w"),
        ("src or dst port 80", "w"),
        ("src and dst port 80", ""),
        ("tcp port 53", ""),
        ("udp port 53 or 80", "d"),
        ("port 80 or 53", "wd"),
        ("portrange 50-100", "wd"),
        ("port 0", ""),
        ("host 10.0.0.1", "wp"),
        ("10.0.0.1", "wp"),
        ("src host 10.0.0.1 and dst host 10.1.0.2", "wp"),
        ("dst host 10.0.0.1", ""),
        ("net 10.1", "wp"),
        ("net 10", "wp"),
        ("net 10.1.0.0/16 and not icmp", "w"),
        ("src net fd00::/64", "d"),
        ("ip6 host fd00::1", "d"),
        ("not ip", "d"),
        ("! ip && ! udp", ""),
        ("not not tcp", "w"),
        // Equal precedence, from the left: (icmp or tcp) and port 80.
        ("icmp or tcp and port 80", "w"),
        ("icmp or (tcp and port 80)", "wp"),
        ("not (tcp or udp)", "p"),
        ("not host 10.0.0.1 and 10.1.0.2", ""),
        ("src 10.0.0.1 and dst 10.1.0.2", "wp"),
    ] {
        assert_eq!(which(text), expected, "{text}");
    }
}

#[test]
fn errors_point_at_the_place() {
    for (text, place, says) in [
        ("tcp port 80808", "80808", "a port is a number"),
        ("hosst 10.0.0.1", "hosst", "nor a keyword"),
        ("host web", "web", "neither an address"),
        ("host 10.0.0.0/8", "10.0.0.0/8", "no prefix length"),
        ("net 10.0.0.1/8", "10.0.0.1/8", "bits set"),
        ("net 10.256", "10.256", "not a network"),
        ("net +10", "+", "unexpected character"),
        ("tcp and (port 80", "", "a `)` is missing"),
        ("tcp)", ")", "no `(`"),
        ("tcp port", "", "ends where a test must be"),
        ("tcp udp", "udp", "neither an address"),
        ("tcp (port 80)", "(", "`and` or `or` is missing"),
        ("and tcp", "and", "a test must be here"),
        ("tcp and", "", "ends where"),
        ("()", ")", "a test must be here"),
        ("portrange 90-80", "90-80", "the lower one first"),
        ("src src 10.0.0.1", "src", "neither an address"),
        ("icmp port 80", "80", "ICMP has no ports"),
        ("ip host fd00::1", "fd00::1", "other family"),
        ("ether host 1", "ether", "is not supported"),
        ("tcp[13] & 2 != 0", "[", "unexpected character"),
        ("tcp & udp", "&", "single `&`"),
        ("höst 1", "ö", "unexpected character"),
        ("proto 256", "256", "from 0 to 255"),
    ] {
        let error = Filter::parse(text).err().unwrap_or_else(|| panic!("{text} is accepted"));
        let shown = text.get(error.span.0..error.span.1);
        assert_eq!(shown, Some(place), "{text}: {error}");
        assert!(error.message.contains(says), "{text}: {error}");
    }
    let error = Filter::parse("tcp port 80808").unwrap_err().to_string();
    assert!(error.contains("\n  tcp port 80808\n           ^^^^^"), "{error}");
    let error = Filter::parse("host \u{1b}[2J").unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "control characters are not printed");
}

#[test]
fn what_is_too_much_is_refused_and_never_recursed_into() {
    let deep = "(".repeat(100) + "tcp" + &")".repeat(100);
    assert!(Filter::parse(&deep).unwrap_err().message.contains("parentheses"));
    let deepest = "(".repeat(DEEPEST) + "tcp" + &")".repeat(DEEPEST);
    assert_eq!(which(&deepest), "w");
    let long = vec!["tcp"; MOST_TESTS + 1].join(" or ");
    assert!(Filter::parse(&long).unwrap_err().message.contains("tests"));
    assert!(Filter::parse(&"a".repeat(LONGEST + 1)).unwrap_err().message.contains("bytes"));
    assert_eq!(which(&("not ".repeat(1000) + "tcp")), "w");
    let mixed: String = (0..MOST_TESTS - 1).map(|at| if at % 2 == 0 { "udp or " } else { "tcp and " }).collect();
    assert!(Filter::parse(&(mixed + "tcp")).is_ok());
}

#[test]
fn an_end_among_addresses_comes_before_the_expression() {
    let only = |text: &str, addresses: &[&str]| {
        let addresses = Arc::new(addresses.iter().map(|address| ip(address)).collect());
        let filter = Filter::parse(text).unwrap().with_an_end_in(addresses);
        [web(), dns(), ping()].map(|flow| filter.matches(&flow))
    };
    assert_eq!(only("", &["10.0.0.1"]), [true, false, true]);
    assert_eq!(only("tcp or udp", &["10.1.0.2", "fd00::1"]), [true, true, false]);
    assert_eq!(only("", &[]), [false; 3]);
}

fn key(flow: &Flow) -> Key {
    Key::of(flow.src, flow.dst, flow.protocol, Ports::Pair(flow.sport, flow.dport)).0
}

/// Returns which flows pass the first test of a filter's sieve.
fn passed_first(text: &str, flows: &[Flow]) -> Vec<bool> {
    let filter = Filter::parse(text).unwrap();
    let passes = |flow: &Flow| match filter.sieve().first() {
        None => true,
        Some(test) => test.passes(key(flow).pair()),
    };
    flows.iter().map(passes).collect()
}

#[test]
fn the_first_test_of_the_sieve_is_the_one_that_the_fewest_pass() {
    let flows = [web(), dns(), ping()];
    for (text, expected) in [
        // No flow passes.
        ("tcp and port 443", [false; 3]),
        ("tcp port 80 and host 203.0.113.77", [false; 3]),
        ("host 203.0.113.77 or host 203.0.113.78 or host 2001:db8::1", [false; 3]),
        ("(tcp or udp) and (port 22 or port 443) and not net 10", [false; 3]),
        ("tcp and udp", [false; 3]),
        ("net 203.0.113.0/25 or net 203.0.113.128/25", [false; 3]),
        ("ip6 and tcp", [false; 3]),
        // Negations.
        ("not tcp", [false, true, true]),
        ("not (tcp or udp)", [false, false, true]),
        ("not port 80", [true; 3]),
        ("not not port 80", [true, false, false]),
        ("host 10.0.0.1", [true, false, true]),
        ("net 10", [true, false, true]),
        ("net fd00::/8", [false, true, false]),
        ("portrange 0-65535 and tcp", [true, false, false]),
        ("host 10.0.0.1 or udp", [true, true, true]),
        ("", [true; 3]),
    ] {
        assert_eq!(passed_first(text, &flows), expected, "{text}");
    }
}

/// Flows with few different addresses and ports, so that filters often match.
fn any_flow() -> impl Strategy<Value = Flow> {
    let v4 = prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "10.1.2.3", "192.0.2.1", "203.0.113.77"]);
    let v6 = prop::sample::select(vec!["fd00::1", "fd00::2", "fd00:1::2", "2001:db8::1", "::ffff:10.0.0.1"]);
    let ends = prop_oneof![(v4.clone(), v4), (v6.clone(), v6)];
    let port = prop_oneof![prop::sample::select(vec![0u16, 22, 53, 80, 443, 8080, 40_000]), any::<u16>()];
    let protocol = prop::sample::select(vec![1u8, 6, 17, 47, 58, 132]);
    (ends, protocol, port.clone(), port).prop_map(|((src, dst), protocol, sport, dport)| {
        let has_ports = matches!(protocol, 6 | 17 | 132);
        let (sport, dport) = if has_ports { (sport, dport) } else { (0, 0) };
        Flow { src: ip(src), dst: ip(dst), protocol, sport, dport, icmp: None }
    })
}

/// Expressions with all kinds of tests.
fn any_expression() -> impl Strategy<Value = String> {
    let side = || prop::sample::select(vec!["", "src ", "dst ", "src and dst ", "src or dst "]);
    let port = || prop_oneof![prop::sample::select(vec![22u16, 53, 80, 443, 8080, 40_000]), any::<u16>()];
    let net = prop::sample::select(vec![
        "10.0.0.0/8",
        "10.0.0.0/31",
        "10.0.0.2/32",
        "192.0.2.0/24",
        "0.0.0.0/0",
        "128.0.0.0/1",
        "fd00::/8",
        "fd00::/126",
        "::/0",
        "2001:db8::1/128",
        "::ffff:0:0/96",
    ]);
    let test = prop_oneof![
        prop::sample::select(vec!["tcp", "udp", "sctp", "icmp", "icmp6", "ip", "ip6", "proto 47"])
            .prop_map(str::to_owned),
        (side(), port()).prop_map(|(side, port)| format!("{side}port {port}")),
        (side(), port(), port()).prop_map(|(side, a, b)| format!("{side}portrange {}-{}", a.min(b), a.max(b))),
        (side(), net).prop_map(|(side, net)| format!("{side}net {net}")),
        (side(), any_flow()).prop_map(|(side, flow)| format!("{side}host {}", flow.src)),
    ];
    test.prop_recursive(5, 32, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|text| format!("not ({text})")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("({one}) and ({other})")),
            (inner.clone(), inner).prop_map(|(one, other)| format!("({one}) or ({other})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn whatever_a_filter_selects_passes_its_sieve(
        text in any_expression(), flows in prop::collection::vec(any_flow(), 1..40), ends in prop::collection::vec(any_flow(), 0..4),
        is_of_ends in any::<bool>(),
    ) {
        let mut filter = Filter::parse(&text).unwrap();
        if is_of_ends {
            filter = filter.with_an_end_in(Arc::new(ends.iter().map(|flow| flow.src).collect()));
        }
        for flow in &flows {
            let ends = Translation { src: flow.src, dst: flow.dst, sport: flow.sport, dport: flow.dport };
            let ends = Ends::of(&ends).unwrap();
            let passes = filter.sieve().passes(key(flow).pair());
            prop_assert_eq!(passes, filter.sieve().passes(ends.pair(flow.protocol)), "{} {}", text, flow);
            prop_assert!(!filter.matches(flow) || passes, "{} {}", text, flow);
        }
    }
}

/// Expressions, and whether each matches the three flows.
fn expression() -> impl Strategy<Value = (String, [bool; 3])> {
    let leaf =
        prop::sample::select(vec!["tcp", "udp", "ip", "ip6", "icmp", "port 80", "host 10.0.0.1", "net fd00::/8"])
            .prop_map(|text| {
                let filter = Filter::parse(text).unwrap();
                (text.to_owned(), [web(), dns(), ping()].map(|flow| filter.matches(&flow)))
            });
    leaf.prop_recursive(6, 64, 3, |inner| {
        let pair = |a: [bool; 3], b: [bool; 3], of: fn(bool, bool) -> bool| [0, 1, 2].map(|at| of(a[at], b[at]));
        prop_oneof![
            inner.clone().prop_map(|(text, says)| (format!("not ({text})"), says.map(|says| !says))),
            (inner.clone(), inner.clone())
                .prop_map(move |((a, x), (b, y))| (format!("({a}) and ({b})"), pair(x, y, |x, y| x && y))),
            (inner.clone(), inner)
                .prop_map(move |((a, x), (b, y))| (format!("({a}) || ({b})"), pair(x, y, |x, y| x || y))),
        ]
    })
}

proptest! {
    #[test]
    fn a_program_says_what_the_expression_says((text, says) in expression()) {
        let filter = Filter::parse(&text).unwrap();
        prop_assert_eq!([web(), dns(), ping()].map(|flow| filter.matches(&flow)), says);
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = Filter::parse(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn no_words_make_it_panic(words in prop::collection::vec(prop::sample::select(vec![
        "(", ")", "not", "!", "and", "or", "&&", "src", "dst", "host", "net", "port", "portrange", "proto", "tcp", "udp",
        "ip", "ip6", "icmp", "10.0.0.1", "10.1", "fd00::/8", "80", "1-2", "x", "é", "&",
    ]), 0..400)) {
        let text = words.join(" ");
        if let Ok(filter) = Filter::parse(&text) {
            let _ = filter.matches(&web());
        }
    }
}
