use bulkhead_classifier::{Action, OriginId, Rule, Tables};
use bulkhead_dataplane::{
    Decider, Decision, Flow, Holder, Names, PortConfig, PortId, PortKind, Routes, TableId, Verdict, io::Translation,
};

use super::*;

/// 2026-12-01T12:00:00Z.
const NOON: u64 = 1_796_126_400_000_000_000;
const SECOND: u64 = 1_000_000_000;
const POD: PortId = PortId(0);
const UPLINK: PortId = PortId(1);

/// Returns a snapshot with a pod whose rules name domains, and an uplink. Table 0 is the pod's.
fn snapshot() -> Snapshot {
    let pod = PortConfig { named_table: Some(TableId(0)), ..PortConfig::new("x/a", PortKind::Pod) };
    let ports = vec![pod, PortConfig::new("uplink", PortKind::Uplink)];
    let tables = vec![Arc::new(Tables::build(vec![Rule::any(Action::Deny, OriginId(7))]).unwrap())];
    let names = Names::new(std::iter::empty::<ipnet::IpNet>().collect(), 0, vec![Some(Holder(4)), None]);
    Snapshot::new(1, ports, tables, Routes::default()).unwrap().with_names(Some(Arc::new(names)))
}

fn outcome(verdict: Verdict, by: Decider, in_port: PortId) -> Outcome {
    let [src, dst] = ["10.1.0.1", "203.0.113.7"].map(|text| text.parse().unwrap());
    let mut outcome = Outcome::UNJUDGED;
    (outcome.in_port, outcome.verdict) = (in_port, verdict);
    outcome.flow = Some(Flow { src, dst, protocol: 6, sport: 4000, dport: 443, icmp: None });
    outcome.decision = Some(Decision { by: Some(by), rule: Some(0), origin: Some(OriginId(7)) });
    outcome.session = verdict.out_port().map(|_| SessionState::New);
    outcome
}

#[test]
fn an_allowed_connection_has_the_name_that_matched_and_its_end() {
    let (learned, address) = (Learned::new(), "203.0.113.7".parse().unwrap());
    let mut ids = ["a", "b"].map(|label| {
        let name = format!("{label}.example.com");
        learned.learn(Holder(4), &name, address, NOON, NOON + 30 * SECOND).unwrap()
    });
    ids.sort();
    for by in ids {
        let allowed = outcome(Verdict::Forward(UPLINK), Decider::Name(by), POD);
        let names = DestinationNames::of(&allowed, &snapshot(), &learned, NOON).unwrap();
        let text = learned.text(by).unwrap();
        let words = names.words("203.0.113.7", NOON);
        assert!(words.starts_with(&format!("by the name {text}, open to new connections until 12:00:3")), "{words}");
        // Later packets of the session, in both directions: the name alone.
        for in_port in [POD, UPLINK] {
            let mut hit = allowed;
            (hit.session, hit.in_port) = (Some(SessionState::Hit), in_port);
            let words = DestinationNames::of(&hit, &snapshot(), &learned, NOON).unwrap().words("", NOON);
            assert_eq!(words, format!("by the name {text}"));
        }
    }
    // Allowed by a rule that names no domains, and by a name that is forgotten.
    for by in [Decider::Table(TableId(0)), Decider::Name(NameId::from_bits(9))] {
        let allowed = outcome(Verdict::Forward(UPLINK), by, POD);
        assert_eq!(DestinationNames::of(&allowed, &snapshot(), &learned, NOON), None);
    }
}

#[test]
fn a_denied_packet_has_the_names_that_the_pod_knew() {
    let (learned, address) = (Learned::new(), "203.0.113.7".parse().unwrap());
    let denied = outcome(Verdict::Drop(DropReason::PolicyDenied), Decider::Table(TableId(0)), POD);
    let names = |outcome: &Outcome, time| DestinationNames::of(outcome, &snapshot(), &learned, time);
    let words = |time| names(&denied, time).unwrap().words("203.0.113.7", time);
    assert_eq!(names(&denied, NOON), Some(DestinationNames::Known(Vec::new())));
    assert_eq!(words(NOON), "the pod had resolved no name of 203.0.113.7 at that time");
    for label in ["d", "c", "b", "a"] {
        let name = format!("{label}.example.com");
        learned.learn(Holder(4), &name, address, NOON, NOON + 8 * SECOND).unwrap();
        learned.learn(Holder(5), "other.example.com", address, NOON, NOON + 8 * SECOND).unwrap();
    }
    let told = words(NOON);
    assert!(told.starts_with("the pod had resolved a.example.com (until 12:00:0") && told.contains(", b."), "{told}");
    assert_eq!(names(&denied, NOON).unwrap().names().len(), MOST_KNOWN);
    assert_eq!(names(&denied, NOON + 20 * SECOND), Some(DestinationNames::Known(Vec::new())));
    // The backend's address counts. Other reasons, other tables and other ports have no names.
    let sent = Translation { src: address, dst: "192.0.2.1".parse().unwrap(), sport: 1, dport: 2 };
    let mut translated = denied;
    translated.translation = Some(sent);
    assert_eq!(names(&translated, NOON), Some(DestinationNames::Known(Vec::new())));
    let mut unjudged = denied;
    unjudged.decision = None;
    for other in [
        outcome(Verdict::Drop(DropReason::NoRoute), Decider::Table(TableId(0)), POD),
        outcome(denied.verdict, Decider::Table(TableId(1)), POD),
        outcome(denied.verdict, Decider::Table(TableId(0)), UPLINK),
        unjudged,
    ] {
        assert_eq!(names(&other, NOON), None, "{other:?}");
    }
}

#[test]
fn names_are_read_back_from_json_and_other_days_have_a_date() {
    let name = |until| KnownName { name: "a.example.com".into(), until };
    for names in [
        DestinationNames::Matched(name(Some(NOON + 86_400 * SECOND))),
        DestinationNames::Known(vec![name(None)]),
        DestinationNames::Known(Vec::new()),
    ] {
        let text = serde_json::to_string(&names).unwrap();
        assert_eq!(serde_json::from_str::<DestinationNames>(&text).unwrap(), names, "{text}");
    }
    let tomorrow = DestinationNames::Matched(name(Some(NOON + 86_400 * SECOND)));
    assert!(tomorrow.words("", NOON).ends_with("until 2026-12-02T12:00:00Z"), "{}", tomorrow.words("", NOON));
    let json = serde_json::to_value(&tomorrow).unwrap();
    assert_eq!(json["matched"]["until"], "2026-12-02T12:00:00Z");
}
