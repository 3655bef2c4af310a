//! Rules that name domains, with a real DNS server: which connections an answer allows, and which stay denied.

mod inheritance;
mod resolvers;
mod server_names;
mod world;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::e2e_monitor::Watcher;
use crate::lab::lasting::{PATIENCE, answers, connect_to};
use crate::lab::netns::eventually;
use crate::require;
use world::{DNS, DNS6, MANY, WEB, WEB6, World, query};

#[test]
fn a_pod_reaches_what_it_has_resolved_and_nothing_else() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com, '*.example.org'");
    assert!(!world.connects(WEB) && !world.connects(WEB6), "nothing is resolved yet\n{}", world.lab.log());
    assert_eq!(world.dig(&format!("@{DNS} WWW.example.com A")), [WEB]);
    assert!(world.connects(WEB), "{}", world.lab.log());
    assert!(!world.connects(WEB6), "the other family was not asked");
    assert_eq!(world.dig(&format!("@{DNS6} www.example.com AAAA")), [WEB6]);
    assert!(world.connects(WEB6), "{}", world.lab.log());
    // A chain counts for the name asked, a name outside of the patterns does not.
    assert_eq!(world.dig(&format!("@{DNS} alias.example.org A")), ["cdn.example.net.", "203.0.113.240"]);
    assert!(world.connects("203.0.113.240"));
    assert_eq!(world.dig(&format!("@{DNS} evil.example.net A")), ["203.0.113.250"]);
    assert!(!world.connects("203.0.113.250"));
    // The server's own address, and TCP with an answer of many addresses.
    let server = world.lab.get("dns").v4.clone();
    assert_eq!(world.dig(&format!("+tcp @{server} big.example.org A")).len(), 100);
    for at in [0, 57, 99] {
        assert!(world.connects(&format!("203.0.113.{at}")), "{at}\n{}", world.lab.log());
    }
    // Nobody restricts another pod. A pod with the same rule has to ask for itself.
    assert!(world.connect_from("other", WEB).is_some());
    assert!(world.connect_from("twin", WEB).is_none(), "only the client has resolved it");
    world.lab.get("twin").netns.exec(&format!("dig +short +time=2 +tries=2 @{DNS} www.example.com A"));
    assert!(world.connect_from("twin", WEB).is_some(), "{}", world.lab.log());
    world.lab.stop();
}

#[test]
fn an_operator_sees_what_pods_have_resolved_and_the_tables_that_decide() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com, '*.example.org'");
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    assert_eq!(world.dig(&format!("@{DNS6} www.example.com AAAA")), [WEB6]);
    let (code, told) = world.lab.ask(&["names", "--pod", "default/client", "--name", "www.example.com"]);
    assert_eq!(code, Some(0));
    assert!(told.contains(WEB) && told.contains(WEB6) && told.contains("answers count from"), "{told}");
    let explain = ["explain", "--live", "--from", "default/client", "--port", "80", "--to"];
    let (code, told) = world.lab.ask(&[&explain[..], &[WEB6]].concat());
    assert!(
        code == Some(0) && told.contains("by the name www.example.com, open to new connections until"),
        "{code:?} {told}"
    );
    let (code, told) = world.lab.ask(&[&explain[..], &["203.0.113.250"]].concat());
    assert_eq!(code, Some(1), "{told}");
    // The table of both directions is that of the pod which opens the connection.
    let (_, told) = world.lab.ask(&[&explain[..], &[WEB, "-o", "json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    let steps = told["walks"][0]["steps"].as_array().unwrap();
    assert!(steps.len() == 2 && steps.iter().all(|step| step["table"] == "egress:default/client"), "{told:#}");
    let (_, told) = world.lab.ask(&["tables"]);
    assert!(told.contains("egress:default/client") && told.contains("egress:default/twin"), "{told}");
    let (code, told) = world.lab.ask(&["tables", "--port", "egress:default/client"]);
    assert!(code == Some(0) && told.contains("by name"), "{told}");
    // The flow of a connection names the same table.
    let monitor = Watcher::start(&world.lab, "monitor", &["monitor", "--port", "80", "-o", "json"]);
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    assert!(world.connects(WEB));
    let connected = Instant::now();
    eventually("the flow is reported", || {
        monitor.lines(&world.lab).iter().any(|line| {
            let flow = &line["flow"];
            flow["bulkhead"]["table"] == "egress:default/client" && flow["destination_names"][0] == "www.example.com"
        })
    });
    // The past shows the name of an allowed connection, and that a denied one had none.
    assert!(!world.connects("203.0.113.250"));
    let why =
        |at: &str, to| world.lab.ask(&["why", "--at", at, "--from", "default/client", "--port", "80", "--to", to]);
    let (code, told) = why(&format!("{}ms ago", connected.elapsed().as_millis()), WEB);
    for part in ["by the name www.example.com, open to new connections until", "asked ", "names in the verdicts below"]
    {
        assert!(code == Some(0) && told.contains(part), "{part}: {code:?} {told}");
    }
    let (code, told) = why("now", "203.0.113.250");
    let none = "the pod had resolved no name of 203.0.113.250 at that time";
    assert!(code == Some(1) && told.contains(none), "{code:?} {told}");
    world.lab.stop();
}

#[test]
fn an_established_connection_outlives_the_answer_and_ends_with_the_rule() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com");
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    let mut stream = world.connect(WEB).expect("just resolved");
    assert!(answers(&mut stream));
    // TTL 2 s, grace 1 s, rounded up to the full second.
    std::thread::sleep(Duration::from_secs(5));
    assert!(answers(&mut stream), "an open connection goes on");
    assert!(!world.connects(WEB), "a new one needs a new answer");
    // Other tables in which a rule still names the name, and some in which none does.
    world.lab.apply(&world.objects("'*.example.com'"));
    assert!(answers(&mut stream), "the rule still names it\n{}", world.lab.log());
    world.lab.apply(&world.objects("other.example.net"));
    assert!(!answers(&mut stream), "no rule names it any more");
    world.lab.stop();
}

#[test]
fn answers_on_a_connection_that_stays_open_count_whatever_its_segments() {
    require!("dnsmasq", "socat", "ss");
    let mut world = World::new("'*.many.example.org'");
    let server = format!("{DNS}:53").parse().unwrap();
    let mut stream = connect_to(world.client(), server, PATIENCE).unwrap();
    let message = |at: u16| {
        let query = query(at, &format!("n{at}.many.example.org"));
        [&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat()
    };
    let read = |stream: &mut std::net::TcpStream| {
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        stream.read_exact(&mut vec![0; usize::from(u16::from_be_bytes(length))]).unwrap();
    };
    let address = |at: u16| format!("203.0.113.{}", at + 2);
    // One after the other with pauses, and the message in two segments.
    for at in 0..3 {
        let message = message(at);
        for part in [&message[..9], &message[9..]] {
            stream.write_all(part).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        read(&mut stream);
        assert!(world.connects(&address(at)), "{at}\n{}", world.lab.log());
    }
    // Three in one segment.
    assert!(!world.connects(&address(10)));
    stream.write_all(&[message(10), message(11), message(12)].concat()).unwrap();
    (0..3).for_each(|_| read(&mut stream));
    assert!((10..13).all(|at| world.connects(&address(at))), "{}", world.lab.log());
    // A rule changes meanwhile.
    world.lab.apply(&world.objects("n20.many.example.org"));
    for at in [20, 21] {
        stream.write_all(&message(at)).unwrap();
        read(&mut stream);
    }
    assert!(world.connects(&address(20)) && !world.connects(&address(21)), "{}", world.lab.log());
    world.lab.stop();
}

#[test]
fn no_first_connection_of_a_resolver_and_its_client_is_denied() {
    require!("dnsmasq", "curl", "socat", "ss", "unshare");
    let mut world = World::new("'*.many.example.org'");
    // What is counted below is there to be counted.
    assert!(!world.connects("203.0.113.2"));
    let denied = world.denied();
    assert!(denied > 0);
    // glibc asks for both families at once; curl connects as soon as it has an address. The server's echo is no HTTP, hence exit code 1.
    let urls: Vec<String> = (0..MANY).map(|at| format!("http://n{at}.many.example.org/")).collect();
    let said = world.resolving(&format!(
        "for url in {}; do curl -s -m 3 --connect-timeout 1 $url > /dev/null; code=$?; test $code = 1 || echo $code $url; done",
        urls.join(" ")
    ));
    assert_eq!(said, "", "{}", world.lab.log());
    assert_eq!(world.denied(), denied);
    world.lab.stop();
}
