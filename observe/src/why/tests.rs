use std::sync::Arc;

use bulkhead_answers::bundle::Settings;
use bulkhead_answers::destination::{DestinationNames, KnownName};
use bulkhead_control::attachments::Attachment;
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::PodName;
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_dataplane::Flow;

use super::*;
use crate::args::parsed;
use crate::journal::{Change, Layout, LeftOut, Recorder, Verdict};

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.1.0.0/16]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: x, labels: {team: red}}
";

fn objects(text: &str) -> Vec<Object> {
    load_text("state.yaml", text, Strictness::Strict).unwrap().objects
}

fn pod(name: &str, address: &str, label: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{app: {label}}}}}\n\
         spec: {{nodeName: n1}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
    )
}

fn policy(name: &str, from: &str, port: u16) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: x}}\n\
         spec: {{podSelector: {{matchLabels: {{app: db}}}}, policyTypes: [Ingress], \
         ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {from}}}}}}}], ports: [{{port: {port}}}]}}]}}\n"
    )
}

fn recorder(size: usize) -> Recorder<Vec<u8>> {
    let layout = Layout::of_size(size).unwrap();
    Recorder::open(vec![0; layout.bytes()], layout, "n1", 0).unwrap().0
}

fn change(is_whole: bool, events: Vec<Event>) -> Change {
    Change { is_whole, merged: 1, settings: Some(Settings::default()), events, ..Change::default() }
}

fn why(words: &str) -> Why {
    parsed(words.split(' '))
}

fn engine(state: &StateAt) -> Engine {
    Engine { pipeline: pipeline(state, &KnownNames::default()).unwrap(), strictness: Strictness::Lenient }
}

/// Returns the output of `explain` for these objects.
fn explained(objects: &[Object], asked: &Asked) -> String {
    let mut pipeline = Pipeline::without_tables(Default::default());
    pipeline.resync(objects.iter().filter(|object| !is_of_services(object)).cloned()).unwrap();
    let engine = Engine { pipeline, strictness: Strictness::Lenient };
    let services = objects.iter().filter(|object| is_of_services(object)).cloned().collect();
    let mut services = Services::new(&engine.pipeline, services, Default::default());
    match engine.answer(&mut services, asked) {
        Ok(answer) => serde_json::to_string(&answer).unwrap(),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn across_a_thousand_policy_changes_the_answer_is_that_of_explain_at_that_moment() {
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let asked = &args.asked;
    let mut recorder = recorder(8 << 20);
    let mut inventory = Inventory::default();
    let mut word = 7_u64;
    let mut random = |below: u64| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) % below
    };
    let (mut listing, mut expected) = (std::collections::BTreeMap::new(), Vec::new());
    let base = NODE.to_owned() + &pod("a", "10.1.0.1", "web") + &pod("b", "10.1.0.2", "db");
    for at in 0..1000_u64 {
        // Mostly policies change. Sometimes the client's labels change, or the server is missing.
        let name = format!("p{}", random(5));
        match random(4) {
            0 => drop(listing.remove(&name)),
            _ => {
                let (from, port) = (
                    ["web", "other"][usize::try_from(random(2)).unwrap()],
                    [5432, 80][usize::try_from(random(2)).unwrap()],
                );
                listing.insert(name.clone(), policy(&name, from, port));
            }
        }
        let base = if random(50) == 0 { base.replace("app: web", "app: other") } else { base.clone() };
        let text = base + &listing.values().cloned().collect::<String>();
        let events = inventory.replace(objects(&text));
        recorder.change(at * 1000, at, &change(at == 0, events)).unwrap();
        let all: Vec<Object> = inventory.objects().cloned().collect();
        expected.push(explained(&all, asked));
        // Fill segments with verdicts, so that the answer depends on checkpoints.
        let verdicts: Vec<Verdict> = (0..60).map(|entry| denied(at * 1000 + entry, "10.1.0.9", 80)).collect();
        recorder.verdicts(at * 1000, &verdicts).unwrap();
    }
    let bytes = recorder.memory().clone();
    let history = History::open(&bytes).unwrap();
    let (mut allowed, mut denied) = (0, 0);
    for (at, expected) in (0..).zip(&expected) {
        let state = history.state_at(at * 1000 + 999).unwrap();
        assert_eq!((state.generation, state.since), (at, at * 1000));
        let engine = engine(&state);
        let told = match answer(&engine, &state, asked) {
            Ok(answer) => serde_json::to_string(&answer).unwrap(),
            Err(error) => format!("{error:#}"),
        };
        assert_eq!(told, *expected, "after change {at}");
        let verdict = if told.contains(r#""verdict":"allow","walks""#) { &mut allowed } else { &mut denied };
        *verdict += 1;
    }
    assert!(allowed > 200 && denied > 200, "{allowed} allowed, {denied} denied");
    // The answer names each change of the verdict.
    let told = told(&history, &args, (0, None), "journal").unwrap();
    let text = text(&told);
    let differs = expected.windows(2).filter(|pair| gist(&pair[0]) != gist(&pair[1])).count();
    assert_eq!(text.matches("      then ").count(), differs);
    assert!(differs > 50, "{differs}");
}

/// Returns the parts of an answer that decide: verdict and origins.
fn gist(answer: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(answer).unwrap();
    let origin = |step: &serde_json::Value| (step["packet"] == "first").then(|| step["origin"].clone());
    let steps = value["walks"][0]["steps"].as_array().unwrap().iter().filter_map(origin);
    format!("{} {:?}", value["verdict"], steps.collect::<Vec<_>>())
}

fn denied(time: u64, to: &str, port: u16) -> Verdict {
    let (src, dst) = ("10.1.0.1".parse().unwrap(), to.parse().unwrap());
    let name = |text: &str| Some(Arc::<str>::from(text));
    Verdict {
        time,
        generation: 1,
        count: 1,
        length: 74,
        in_port: name("x/a"),
        out_port: None,
        reason: name("policy_denied"),
        flow: Some(Flow { src, dst, protocol: 6, sport: 40_000, dport: port, icmp: None }),
        translated: None,
        tcp_flags: Some(2),
        table: name("x/b"),
        rule: Some(0),
        origin: name("ingress isolated by x/p"),
        audited: None,
        names: None,
    }
}

fn text(told: &Told) -> String {
    let mut text = Vec::new();
    told.write(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

const SECOND: u64 = 1_000_000_000;

/// Returns a journal in which only the second policy, one minute later, allows x/a to reach x/b.
fn story() -> Vec<u8> {
    let mut recorder = recorder(8 << 20);
    let state =
        NODE.to_owned() + &pod("a", "10.1.0.1", "web") + &pod("b", "10.1.0.2", "db") + &policy("p", "other", 5432);
    let events = objects(&state).into_iter().map(Event::Apply).collect();
    recorder.change(100 * SECOND, 7, &change(true, events)).unwrap();
    let mut verdicts = vec![denied(110 * SECOND, "10.1.0.2", 5432), denied(111 * SECOND, "10.1.0.2", 80)];
    verdicts[0].count = 3;
    for (at, reason) in (0..).zip(reasons()) {
        verdicts.push(Verdict {
            reason: Some(reason.into()),
            flow: None,
            in_port: (at % 2 == 0).then(|| "x/a".into()),
            ..denied(115 * SECOND + at * 10_000, "10.1.0.2", 1)
        });
    }
    recorder.verdicts(115 * SECOND, &verdicts).unwrap();
    let left_out = LeftOut { since: 114 * SECOND, sessions: 12_000, dropped: 5, unheard: 1 };
    recorder.left_out(115 * SECOND, left_out).unwrap();
    let elsewhere = objects("apiVersion: v1\nkind: Namespace\nmetadata: {name: elsewhere}\n").remove(0);
    recorder.change(150 * SECOND, 8, &change(false, vec![Event::Apply(elsewhere)])).unwrap();
    let idle = objects(&policy("idle", "nobody", 1).replace("app: db", "app: none")).remove(0);
    recorder.change(155 * SECOND, 9, &change(false, vec![Event::Apply(idle)])).unwrap();
    let allows = objects(&policy("q", "web", 5432)).remove(0);
    recorder.change(160 * SECOND, 10, &change(false, vec![Event::Apply(allows)])).unwrap();
    recorder.stop(200 * SECOND).unwrap();
    recorder.memory().clone()
}

fn reasons() -> Vec<&'static str> {
    bulkhead_dataplane::DropReason::ALL.iter().map(|reason| reason.name()).collect()
}

#[test]
fn the_answer_names_the_rule_then_what_was_seen_and_what_has_changed_since() {
    let bytes = story();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let told = told(&history, &args, (112 * SECOND, None), "journal").unwrap();
    assert!(!told.then.answer.is_allowed());
    let shown = text(&told);
    for expected in [
        "At 1970-01-01T00:01:52.000Z, by the state in force on node n1 since 1970-01-01T00:01:40.000Z (generation 7):",
        "x/a (10.1.0.1) -> x/b (10.1.0.2) TCP 5432: DENY",
        "because: ingress isolated by x/p",
        "00:01:50.000  DROPPED    10.1.0.1:40000 -> 10.1.0.2:5432  TCP SYN  policy_denied  ingress isolated by x/p  x3",
        "12000 sessions and 5 dropped packets over the journal's rate, 1 for which there was no room",
        "00:02:40.000  NetworkPolicy x/q added\n      then ALLOW: ",
        "without effect on this connection:\n   00:02:35.000  NetworkPolicy x/idle added",
        "1 change concerned other objects",
        "Now (00:03:20.000, generation 10): ALLOW: ",
    ] {
        assert!(shown.contains(expected), "{expected}\n{shown}");
    }
    assert!(!shown.contains(":80  TCP"), "another port\n{shown}");
    let json = serde_json::to_value(&told).unwrap();
    assert_eq!((&json["then"]["verdict"], &json["changes"]["now"]["differs"]), (&"deny".into(), &true.into()));
    assert_eq!((&json["seen"]["dropped"], &json["seen"]["verdicts"][0]["count"]), (&3.into(), &3.into()));
    assert_eq!(json["seen"]["left_out"]["sessions"], 12_000);
    // A time at which the connection was allowed.
    let later = super::told(&history, &args, (170 * SECOND, None), "journal").unwrap();
    assert!(later.then.answer.is_allowed() && text(&later).contains("Still so"));
}

#[test]
fn each_reason_for_which_packets_are_dropped_is_found_with_its_words() {
    let bytes = story();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let asked = &args.asked;
    let state = history.state_at(115 * SECOND).unwrap();
    let engine = engine(&state);
    let answer = answer(&engine, &state, asked).unwrap();
    for (at, reason) in (0..).zip(reasons()) {
        // The verdicts are ten microseconds apart.
        let around = std::time::Duration::from_micros(4);
        let args = Why { around, ..why("--from x/a --to x/b --port 5432 --at now") };
        let seen = seen::find(&history, &args, &answer, 115 * SECOND + at * 10_000);
        let rows = serde_json::to_value(seen.0).unwrap();
        let [row] = &rows["unclear"].as_array().unwrap()[..] else { panic!("{reason}: {rows}") };
        assert_eq!((&row["reason"], row["means"].is_string()), (&reason.into(), true), "{row}");
    }
}

#[test]
fn a_time_that_is_not_in_the_journal_is_an_error_that_says_where_it_begins() {
    let bytes = story();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let refused = |at: u64| format!("{:#}", told(&history, &args, (at, None), "journal").err().unwrap());
    let before = refused(99 * SECOND);
    assert!(before.contains("the journal begins at 1970-01-01T00:01:40.000Z"), "{before}");
    assert!(before.contains("a larger journal.megabytes"), "the field has another name: {before}");
    let after = refused(201 * SECOND);
    assert!(after.contains("ends at 1970-01-01T00:03:20.000Z"), "{after}");
    let nobody = why("--from x/nobody --to x/b --port 5432 --at now");
    let error = format!("{:#}", told(&history, &nobody, (112 * SECOND, None), "journal").err().unwrap());
    assert!(error.contains("by the state of 1970-01-01T00:01:52.000Z: no pod x/nobody"), "{error}");
    let told = told(&history, &args, (200 * SECOND, None), "journal").unwrap();
    assert!(text(&told).contains("no vswitch was running at that time"), "{}", text(&told));
}

#[test]
fn of_very_many_verdicts_the_first_are_told_and_all_are_counted() {
    let mut recorder = recorder(8 << 20);
    let state = NODE.to_owned() + &pod("a", "10.1.0.1", "web") + &pod("b", "10.1.0.2", "db");
    let events = objects(&state).into_iter().map(Event::Apply).collect();
    recorder.change(100 * SECOND, 7, &change(true, events)).unwrap();
    // Workers report verdicts in any order, and a hostile file has any number of packets.
    let at = |entry: u64| 110 * SECOND + (entry * 37 % 100) * 1_000_000;
    let verdicts: Vec<Verdict> =
        (0..100).map(|entry| Verdict { count: u64::MAX / 2, ..denied(at(entry), "10.1.0.2", 5432) }).collect();
    recorder.verdicts(111 * SECOND, &verdicts).unwrap();
    let bytes = recorder.memory().clone();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let told = told(&history, &args, (111 * SECOND, None), "journal").unwrap();
    let seen = serde_json::to_value(&told).unwrap()["seen"].take();
    let times: Vec<&str> =
        seen["verdicts"].as_array().unwrap().iter().map(|row| row["time"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..20).map(|at| format!("1970-01-01T00:01:50.{at:03}Z")).collect();
    assert_eq!(
        (times, &seen["more"], &seen["dropped"]),
        (expected.iter().map(String::as_str).collect(), &80.into(), &u64::MAX.into())
    );
}

#[test]
fn attached_pods_that_are_others_are_no_change_of_a_connection() {
    let mut recorder = recorder(8 << 20);
    let state =
        NODE.to_owned() + &pod("a", "10.1.0.1", "web") + &pod("b", "10.1.0.2", "db") + &policy("p", "web", 5432);
    let events = objects(&state).into_iter().map(Event::Apply).collect();
    recorder.change(100 * SECOND, 1, &change(true, events)).unwrap();
    let attach = |pods: &[(&str, &str)]| {
        let attachment = |address: &str| Attachment { uid: None, addresses: vec![address.parse().unwrap()], number: 1 };
        let pods = pods.iter().map(|(name, address)| (PodName::new("x", *name), attachment(address))).collect();
        Change { attached: Some(pods), ..change(false, Vec::new()) }
    };
    recorder.change(110 * SECOND, 2, &attach(&[("c", "10.1.0.3")])).unwrap();
    recorder.change(120 * SECOND, 3, &attach(&[("c", "10.1.0.3"), ("b", "10.1.0.9")])).unwrap();
    let bytes = recorder.memory().clone();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let told = told(&history, &args, (105 * SECOND, None), "journal").unwrap();
    let shown = text(&told);
    assert!(shown.contains("1 change concerned other objects"), "{shown}");
    assert_eq!(shown.matches("the addresses of attached pods changed").count(), 1, "{shown}");
    // Replaying each change gives the same state as reading it directly.
    let state = history.state_at(120 * SECOND).unwrap();
    let whole = answer(&engine(&state), &state, &args.asked).unwrap();
    assert_eq!(serde_json::to_value(&told).unwrap()["changes"]["now"]["verdict"], whole.gist());
}

#[test]
fn while_no_state_makes_sense_the_connection_is_denied_and_both_ends_of_that_time_are_told() {
    let mut recorder = recorder(8 << 20);
    let state =
        NODE.to_owned() + &pod("a", "10.1.0.1", "web") + &pod("b", "10.1.0.2", "db") + &policy("p", "web", 5432);
    let events = objects(&state).into_iter().map(Event::Apply).collect();
    recorder.change(100 * SECOND, 1, &change(true, events)).unwrap();
    recorder.change(110 * SECOND, 2, &Change { is_denying: true, ..change(false, Vec::new()) }).unwrap();
    recorder.change(120 * SECOND, 3, &change(false, Vec::new())).unwrap();
    let bytes = recorder.memory().clone();
    let history = History::open(&bytes).unwrap();
    let args = why("--from x/a --to x/b --port 5432 --at now");
    let before = text(&told(&history, &args, (105 * SECOND, None), "journal").unwrap());
    for expected in [
        "00:01:50.000  the state became invalid\n      then DENY: no valid state",
        "00:02:00.000  the state became valid again\n      then ALLOW: ",
        "Still so",
    ] {
        assert!(before.contains(expected), "{expected}\n{before}");
    }
    let then = told(&history, &args, (115 * SECOND, None), "journal").unwrap();
    assert!(!then.then.answer.is_allowed(), "the exit code is of this");
    assert_eq!(serde_json::to_value(&then).unwrap()["then"]["verdict"], "deny");
    let then = text(&then);
    assert!(then.contains("DENY: the vswitch had no valid state") && then.contains("Now (00:02:00.000"), "{then}");
}

/// A pod that may reach api.example.com, and resolves it at second 110. Returns the journal.
fn story_of_a_name() -> Vec<u8> {
    let mut recorder = recorder(8 << 20);
    let policy = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: out}\n\
         spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [\
         {action: Accept, to: [{domainNames: ['*.example.com']}]}, \
         {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}\n";
    let state = NODE.to_owned() + &pod("a", "10.1.0.1", "web") + policy;
    let events = objects(&state).into_iter().map(Event::Apply).collect();
    recorder.change(100 * SECOND, 7, &change(true, events)).unwrap();
    let name = KnownName { name: "api.example.com".into(), until: Some(140 * SECOND) };
    let session = |time, names| Verdict { reason: None, names, ..denied(time, "203.0.113.7", 443) };
    let mut dns = session(110 * SECOND, None);
    dns.flow = dns.flow.map(|flow| Flow { dst: "10.1.0.53".parse().unwrap(), protocol: 17, dport: 53, ..flow });
    let refused =
        Verdict { names: Some(DestinationNames::Known(Vec::new())), ..denied(105 * SECOND, "203.0.113.7", 443) };
    let allowed = session(112 * SECOND, Some(DestinationNames::Matched(name)));
    let second = session(120 * SECOND, None);
    recorder.verdicts(112 * SECOND, &[refused, dns, allowed, second]).unwrap();
    recorder.stop(300 * SECOND).unwrap();
    recorder.memory().clone()
}

#[test]
fn the_names_that_verdicts_show_count_for_the_state_while_they_are_open() {
    let bytes = story_of_a_name();
    let history = History::open(&bytes).unwrap();
    let ask = |at: u64, around: &str| {
        let args = why(&format!("--from x/a --to 203.0.113.7 --port 443 --at now --around {around}"));
        let told = told(&history, &args, (at * SECOND, None), "journal").unwrap();
        (told.then.answer.is_allowed(), text(&told))
    };
    let (is_allowed, shown) = ask(113, "4s");
    assert!(is_allowed, "{shown}");
    for expected in [
        "by the names in the verdicts below",
        "by the name api.example.com, open to new connections until 00:02:20",
        "the client's last DNS session before: asked 10.1.0.53:53 at 00:01:50.000",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let (is_allowed, shown) = ask(104, "2s");
    assert!(!is_allowed && shown.contains("the pod had resolved no name of 203.0.113.7 at that time"), "{shown}");
    assert!(shown.contains("show no open name of the destination"), "{shown}");
    // The name is seen, and has ended.
    let (is_allowed, shown) = ask(141, "30s");
    assert!(!is_allowed && shown.contains("by the name api.example.com"), "{shown}");
}
