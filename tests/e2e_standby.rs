//! A vswitch that stands by takes over from the one before it.

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, is_tc, policy};
use crate::require;
use std::path::Path;

const PORT: u16 = 7030;

/// A policy: only a may reach b.
fn rules() -> String {
    let from = "from: [{podSelector: {matchLabels: {app: a}}}]";
    policy("b", &format!("{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}"))
}

/// Starts a second vswitch, which stands by. Returns the first.
fn stand_by(lab: &mut Lab) -> Running {
    let first = lab.vswitch.take().unwrap();
    let before = lab.count("standing by");
    lab.launch(Path::new(env!("CARGO_BIN_EXE_bulkhead")), &rules(), &["--standby"]);
    eventually("it stands by", || lab.count("standing by") > before);
    first
}

#[test]
fn a_vswitch_that_stands_by_takes_over_from_one_that_stops_and_from_one_that_is_killed() {
    require!("mount");
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    // Nobody runs, so it starts at once.
    lab.start_with(&rules(), &["--standby"]);
    echo(lab.get("b"), PORT);
    let mut stream = connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).unwrap();
    settle(&mut stream);
    for is_killed in [false, true] {
        let first = stand_by(lab);
        assert!(answers(&mut stream), "the first one forwards");
        assert!(!lab.is_ready());
        if is_killed {
            drop(first);
        } else {
            assert_eq!(first.stop().status.code(), Some(0));
        }
        lab.wait_until_ready();
        // With `attach: xdp`, nothing is left to the next process but the sessions.
        assert!(!is_tc() || answers(&mut stream));
        assert!(connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).is_ok());
        assert!(connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).is_err(), "policy holds");
    }
    lab.stop();
}

#[test]
fn a_vswitch_that_stands_by_stops_when_it_is_told_to_and_the_other_goes_on() {
    let mut lab = Lab::new();
    for name in ["a", "b", "c"] {
        lab.pod(name, &format!("{{app: {name}}}"));
    }
    lab.start(&rules());
    echo(lab.get("b"), PORT);
    let first = stand_by(&mut lab);
    let second = lab.vswitch.take().unwrap().stop();
    assert_eq!(second.status.code(), Some(0), "{}", lab.log());
    lab.vswitch = Some(first);
    assert!(connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).is_ok());
    lab.stop();
}
