//! `bulkhead monitor`, `trace` and `capture` with real programs: they report what happened, and slow readers delay nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::lasting::{PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Running, eventually};
use crate::lab::watched::{flood, metrics, status_drops, watched};
use crate::lab::{Lab, tcpdump_read};
use crate::require;
use serde_json::Value;

/// A running subcommand that streams, with its output in files.
pub(crate) struct Watcher {
    child: Option<Running>,
    name: String,
}

impl Watcher {
    /// Starts the subcommand and waits until the workers report to it.
    pub(crate) fn start(lab: &Lab, name: &str, words: &[&str]) -> Self {
        let [out, error] =
            ["out", "err"].map(|ending| fs::File::create(lab.path(&format!("{name}.{ending}"))).unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
        command.args(words).arg("--socket").arg(lab.path("admin.sock")).stdout(out).stderr(error);
        let watcher = Self { child: Some(Running::start(&mut command)), name: name.to_owned() };
        eventually("it watches", || watcher.said(lab).contains("watching node node-1"));
        watcher
    }

    fn said(&self, lab: &Lab) -> String {
        fs::read_to_string(lab.path(&format!("{}.err", self.name))).unwrap()
    }

    /// The complete lines of its output.
    pub(crate) fn lines(&self, lab: &Lab) -> Vec<Value> {
        let text = fs::read_to_string(lab.path(&format!("{}.out", self.name))).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }

    /// Whether the subcommand has exited.
    fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().has_ended()
    }

    fn stop(mut self) {
        drop(self.child.take().unwrap().stop());
    }
}

/// Packets in a monitor's drop events by drop reason, and the number of events that it reports as lost.
fn told_drops(lines: &[Value]) -> (BTreeMap<String, u64>, u64) {
    let (mut told, mut lost) = (BTreeMap::new(), 0);
    for line in lines {
        let own = &line["flow"]["bulkhead"];
        if let Some(reason) = own["reason"].as_str() {
            *told.entry(reason.to_owned()).or_default() += own["count"].as_u64().unwrap();
        }
        lost += line["lost_events"]["num_events_lost"].as_str().map_or(0, |count| count.parse::<u64>().unwrap());
    }
    (told, lost)
}

#[test]
fn each_drop_is_told_by_monitor_trace_and_metrics_in_the_same_words_and_none_is_missing() {
    require!("ping", "nc", "curl");
    let mut lab = watched("");
    let monitor = Watcher::start(&lab, "monitor", &["monitor", "-o", "json"]);
    let trace =
        Watcher::start(&lab, "trace", &["trace", "--dropped-only", "-o", "json", "net", "10.244", "or", "icmp"]);
    let to = lab.get("b").v4.clone();
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut client));
    lab.connects("a", &to, 80);
    // The lab has no uplink, so this packet has no port to leave by.
    lab.pings("a", "198.51.100.1");
    let a = &lab.get("a").netns;
    a.exec("ip addr add 10.9.9.9/32 dev lo");
    a.output(&format!("ping -n -c 2 -i 0.2 -W 1 -I 10.9.9.9 {to}"));
    a.output("ping -n -c 1 -W 1 -I eth0 224.0.0.5");
    let b = &lab.get("b").netns;
    b.output(&format!("ping -n -c 1 -W 1 -t 1 {}", lab.get("a").v4));
    let expected = ["policy_denied", "port_down", "spoofed_source", "ttl_expired", "multicast"];
    // Repeated drops are reported after a second.
    let drops = status_drops(&lab);
    assert!(expected.iter().all(|reason| drops.contains_key(*reason)), "{drops:?}");
    eventually("all drops are reported", || {
        let (told, lost) = told_drops(&monitor.lines(&lab));
        let of = |reason: &str| told.get(reason).copied().unwrap_or_default();
        lost == 0 && expected[..4].iter().all(|reason| of(reason) == drops[*reason]) && of("multicast") > 0
    });
    let (lines, traced, metrics) = (monitor.lines(&lab), trace.lines(&lab), metrics(&lab));
    for reason in expected {
        assert!(traced.iter().any(|line| line["packet"]["reason"] == reason), "{reason}: {traced:#?}");
        let metric = metrics.lines().find(|line| line.contains(&format!("reason=\"{reason}\"")));
        assert!(metric.is_some(), "{reason}: {metrics}");
    }
    // For a packet that was allowed and then lost, the trace has the deciding rule and the port that it should leave by.
    let lost = &traced.iter().find(|line| line["packet"]["reason"] == "port_down").unwrap()["packet"];
    assert_eq!((&lost["verdict"], &lost["in"]), (&"DROPPED".into(), &"default/a".into()), "{lost:#}");
    assert!(lost["meant_for"].is_string() && lost["walk"]["origin"].is_string(), "{lost:#}");
    // Events have Hubble's core fields.
    let denied = lines.iter().find(|line| line["flow"]["bulkhead"]["reason"] == "policy_denied").unwrap();
    let flow = &denied["flow"];
    assert_eq!(
        (&flow["verdict"], &flow["drop_reason_desc"], &flow["drop_reason"]),
        (&"DROPPED".into(), &"POLICY_DENIED".into(), &133.into())
    );
    assert_eq!((&flow["IP"]["destination"], &flow["l4"]["TCP"]["destination_port"]), (&to.as_str().into(), &80.into()));
    assert_eq!((&flow["source"]["pod_name"], &flow["destination"]["namespace"]), (&"a".into(), &"default".into()));
    assert!(flow["source"]["labels"].as_array().unwrap().contains(&"k8s:app=a".into()), "{flow:#}");
    assert_eq!(
        (&flow["traffic_direction"], &flow["ingress_denied_by"][0]["name"]),
        (&"INGRESS".into(), &"only-redis".into())
    );
    assert_eq!((&flow["is_reply"], &flow["Summary"]), (&false.into(), &"TCP Flags: SYN".into()));
    let allowed = lines.iter().find(|line| line["flow"]["verdict"] == "FORWARDED").unwrap();
    assert_eq!(allowed["flow"]["ingress_allowed_by"][0]["name"], "only-redis");
    let walk = &traced.iter().find(|line| line["packet"]["reason"] == "policy_denied").unwrap()["packet"]["walk"];
    assert_eq!((&walk["table"], &walk["isolated_by"][0]["name"]), (&"default/b".into(), &"only-redis".into()));
    // Replaying the output as a flow log gives the same verdicts.
    let log = lab.path("monitor.out");
    let words =
        ["replay", "--flows", log.to_str().unwrap(), "--state", lab.path("state.yaml").to_str().unwrap(), "-o", "json"]
            .map(ToOwned::to_owned);
    let replayed = Command::new(env!("CARGO_BIN_EXE_bulkhead")).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&replayed.stdout);
    assert!(
        text.contains("POLICY_DENIED") && text.contains("deny"),
        "{text} {}",
        String::from_utf8_lossy(&replayed.stderr)
    );
    // Past events and filters.
    for pod in ["default/b", "pod/default/b", "app=b -n default", &to] {
        let (_, last) = lab.ask(&["monitor", "--last", "50", "-o", "json", "--pod", pod, "--port", "80"]);
        let flows: Vec<Value> = last.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert!(
            !flows.is_empty() && flows.iter().all(|line| line["flow"]["l4"]["TCP"]["destination_port"] == 80),
            "{pod}: {last}"
        );
    }
    let (_, none) = lab.ask(&["monitor", "--last", "50", "-o", "json", "--namespace", "other"]);
    assert!(!none.contains("\"flow\""), "{none}");
    monitor.stop();
    trace.stop();
    lab.stop();
}

#[test]
fn a_reader_that_does_not_read_holds_nobody_back_and_what_others_miss_is_counted() {
    require!("ping", "curl");
    let mut lab = watched("");
    // This client requests events and never reads them.
    let mut stalled = UnixStream::connect(lab.path("admin.sock")).unwrap();
    stalled.write_all(b"{\"version\":1,\"request\":\"monitor\",\"arguments\":{\"rate\":1000000}}\n").unwrap();
    let monitor = Watcher::start(&lab, "monitor", &["monitor", "-o", "json", "--rate", "3000", "--protocol", "udp"]);
    let before = status_drops(&lab).get("policy_denied").copied().unwrap_or_default();
    let dropped = |lab: &Lab| status_drops(lab).into_values().sum::<u64>();
    let all_before = dropped(&lab);
    let began = Instant::now();
    for _ in 0..2 {
        flood(&lab, 20_000, 1);
    }
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut client), "pods are served meanwhile");
    let after = status_drops(&lab)["policy_denied"];
    eventually("all drops are reported or counted as lost", || {
        let (told, lost) = told_drops(&monitor.lines(&lab));
        // The workers' lost events may include the redis session and packets of other protocols, such as the pods' router solicitations,
        // because they do not apply the filter by protocol.
        (after - before..=dropped(&lab) - all_before + 1)
            .contains(&(told.get("policy_denied").copied().unwrap_or_default() + lost))
    });
    let (_, lost) = told_drops(&monitor.lines(&lab));
    assert!(lost > 0, "its rate is lower than the flood");
    while !metrics(&lab).contains("bulkhead_stream_disconnected_clients_total 1") {
        assert!(began.elapsed() < Duration::from_secs(40), "{}", metrics(&lab));
        std::thread::sleep(Duration::from_millis(200));
    }
    monitor.stop();
    eventually("nobody watches", || metrics(&lab).contains("bulkhead_stream_clients 0"));
    lab.stop();
}

/// Sends one line to the admin socket and returns the line of the answer.
fn raw(lab: &Lab, line: &str) -> Value {
    let mut stream = UnixStream::connect(lab.path("admin.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: {answer}"))
}

#[test]
fn clients_that_send_nonsense_are_told_so_and_others_go_on() {
    require!("ping");
    let mut lab = watched("");
    let monitor = Watcher::start(&lab, "monitor", &["monitor", "-o", "json"]);
    let deep = "(".repeat(200_000);
    for (request, arguments) in [
        ("trace", serde_json::json!({ "filter": "tcp port 80808" })),
        ("trace", serde_json::json!({ "filter": deep })),
        ("trace", serde_json::json!({ "filter": "not ".repeat(3000) })),
        ("trace", serde_json::json!({ "filter": "((((\u{1b}[2J" })),
        ("trace", serde_json::json!({ "snap": -1 })),
        ("trace", serde_json::json!({ "verdicts": ["MAYBE"] })),
        // Ignoring the unknown verdict would send every event.
        ("trace", serde_json::json!({ "verdicts": ["AUDIT"] })),
        ("trace", serde_json::json!({ "rate": 0 })),
        ("monitor", serde_json::json!({ "rate": 0 })),
        ("monitor", serde_json::json!({ "count": 0 })),
        ("monitor", serde_json::json!({ "labels": ["=x"] })),
        ("monitor", serde_json::json!({ "protocols": ["tls"] })),
        ("monitor", serde_json::json!({ "pods": vec!["x"; 300] })),
        ("monitor", serde_json::json!({ "colour": "blue" })),
    ] {
        let line = serde_json::json!({ "version": 1, "request": request, "arguments": arguments }).to_string();
        let answer = raw(&lab, &line);
        assert_eq!(answer["failure"]["code"], "malformed", "{arguments}: {answer}");
    }
    let (code, text) = lab.ask(&["trace", "tcp", "port", "80808"]);
    assert!(code == Some(2) && text.contains("           ^^^^^"), "{text}");
    // A client that sends data during a stream ends its own stream only.
    let mut rude = UnixStream::connect(lab.path("admin.sock")).unwrap();
    rude.write_all(b"{\"version\":1,\"request\":\"monitor\"}\n").unwrap();
    rude.write_all(&[0xff; 100_000]).ok();
    rude.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = Vec::new();
    let ended = std::io::Read::read_to_end(&mut rude, &mut rest);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    lab.pings("a", &lab.get("b").v4.clone());
    eventually("the others go on", || !monitor.lines(&lab).is_empty());
    monitor.stop();
    lab.stop();
}

#[test]
fn packets_that_the_kernel_forwards_are_traced_on_request_and_go_back_to_the_kernel() {
    only_with_tc!();
    require!();
    let mut lab = watched("");
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    settle(&mut client);
    let forwarded = |lab: &Lab| -> u64 {
        std::thread::sleep(Duration::from_millis(150));
        let (_, text) = lab.ask(&["status", "-o", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["flow_cache"]["forwarded"].as_u64().unwrap()
    };
    let blind = Watcher::start(&lab, "blind", &["trace", "-o", "json", "tcp", "port", "6379"]);
    let before = forwarded(&lab);
    settle(&mut client);
    assert!(forwarded(&lab) >= before + 100, "the kernel forwards");
    let seen = blind.lines(&lab).len();
    let mut cached = Watcher::start(
        &lab,
        "cached",
        &["trace", "--cached", "-n", "20", "-o", "json", "--pod", "default/b", "tcp", "port", "6379"],
    );
    settle(&mut client);
    eventually("it has its packets and ends", || cached.has_ended());
    let packets = cached.lines(&lab);
    assert_eq!(packets.len(), 20);
    assert!(packets.iter().all(|line| line["packet"]["walk"]["session"] == "hit"), "{packets:#?}");
    assert!(
        packets.iter().any(|line| line["packet"]["walk"]["origin"] == "default/only-redis ingress[0]"),
        "{packets:#?}"
    );
    assert!(blind.lines(&lab).len() > seen, "all who trace see what comes");
    blind.stop();
    let before = forwarded(&lab);
    settle(&mut client);
    settle(&mut client);
    assert!(forwarded(&lab) >= before + 100, "restored");
    lab.stop();
}

#[test]
fn a_capture_has_verdicts_and_ring_files_and_ends_after_its_packets() {
    require!("ping", "tcpdump");
    let mut lab = watched("");
    let to = lab.get("b").v4.clone();
    let file = lab.path("denied.pcapng");
    let words = ["capture", "--write", file.to_str().unwrap(), "--snaplen", "64", "--dropped-only", "-n", "2", "icmp"];
    let mut capture = Watcher::start(&lab, "capture", &words);
    for _ in 0..3 {
        lab.pings("a", &to);
    }
    eventually("it ends", || capture.has_ended());
    assert!(capture.said(&lab).contains("captured 2 packets"), "{}", capture.said(&lab));
    let seen = tcpdump_read(&file, "");
    assert_eq!(seen.lines().filter(|line| line.contains("ICMP echo request")).count(), 2, "{seen}");
    let bytes = fs::read(&file).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("drop policy_denied: ingress isolated by default/only-redis") && has("default/a"));
    // For an allowed packet that is lost later, the capture's comment names the drop reason.
    let file = lab.path("lost.pcapng");
    let words = ["capture", "--write", file.to_str().unwrap(), "-n", "1", "icmp and host 198.51.100.1"];
    let mut capture = Watcher::start(&lab, "lost", &words);
    lab.pings("a", "198.51.100.1");
    eventually("it ends", || capture.has_ended());
    let comment = "drop port_down on its way to ";
    assert!(fs::read(&file).unwrap().windows(comment.len()).any(|window| window == comment.as_bytes()));
    // A ring keeps two files of at most a megabyte each.
    let ring = lab.path("ring.pcapng");
    let words = ["capture", "--write", ring.to_str().unwrap(), "--files", "2", "--file-size", "1", "udp"];
    let capture = Watcher::start(&lab, "ring", &words);
    for _ in 0..2 {
        flood(&lab, 10_000, 1000);
    }
    eventually("the ring turns", || lab.path("ring.0.pcapng").exists() && lab.path("ring.1.pcapng").exists());
    capture.stop();
    assert!(!lab.path("ring.2.pcapng").exists());
    assert!(fs::metadata(lab.path("ring.0.pcapng")).unwrap().len() < 1_200_000);
    lab.stop();
}

#[test]
fn a_capture_that_is_stopped_tells_its_count_and_a_filter_that_selects_nobody_causes_a_warning() {
    require!("ping", "tcpdump");
    let mut lab = watched("");
    let file = lab.path("stopped.pcapng");
    let own = lab.get("a").v4.clone();
    let words = ["capture", "--write", file.to_str().unwrap(), "--pod", "default/a", "--pod", &own, "icmp"];
    let mut capture = Watcher::start(&lab, "stopped", &words);
    lab.pings("a", &lab.get("b").v4.clone());
    eventually("the packet is captured", || tcpdump_read(&file, "").contains("ICMP echo request"));
    assert!(!capture.said(&lab).contains("is selected"), "{}", capture.said(&lab));
    capture.child.as_ref().unwrap().signal("INT");
    eventually("it ends", || capture.has_ended());
    let seen = tcpdump_read(&file, "").lines().filter(|line| line.contains("ICMP")).count();
    let counts = format!("captured {seen} packets");
    assert!(capture.said(&lab).contains(&counts), "{counts}: {}", capture.said(&lab));
    for (name, words) in [
        ("monitor", vec!["monitor", "--pod", "default/aa", "--namespace", "default", "--label", "app=zz"]),
        ("trace", vec!["trace", "--pod", "default/aa", "--label", "app=zz"]),
        ("capture", vec!["capture", "--write", "-", "--pod", "node/n9", "--label", "app=zz"]),
    ] {
        let watcher = Watcher::start(&lab, &format!("nobody-{name}"), &words);
        let of = if name == "capture" { "node/n9" } else { "default/aa" };
        let expected = &format!("no pod or node of the state is selected by --pod {of}, --label app=zz:");
        eventually("it warns of selectors of nobody", || watcher.said(&lab).contains(expected));
        watcher.stop();
    }
    lab.stop();
}

#[test]
fn who_comes_and_goes_costs_a_trace_no_packet_while_the_plan_stays_the_same() {
    require!("ping", "curl");
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.outside();
    lab.more_config.push_str("workers: {cores: [0]}\nadmin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab.start("");
    let mut trace = Watcher::start(&lab, "trace", &["trace", "-n", "1", "-o", "json", "host", "172.18.0.77"]);
    // No machine has this address: the packet waits three seconds for a MAC address, and its fate is open until then.
    let ping = lab.get("a").netns.spawn("ping -n -c 1 -W 4 172.18.0.77");
    eventually("the packet waits", || lab.summary()["workers"][0]["held"].as_u64() > Some(0));
    for at in 0..3 {
        Watcher::start(&lab, &format!("monitor-{at}"), &["monitor", "-o", "json"]).stop();
    }
    eventually("its end is reported", || trace.has_ended());
    let packets = trace.lines(&lab);
    assert_eq!(packets[0]["packet"]["reason"], "no_neighbour", "{packets:#?}");
    assert!(metrics(&lab).contains("bulkhead_stream_left_out_records_total 0"), "{}", metrics(&lab));
    drop(ping);
    lab.stop();
}
