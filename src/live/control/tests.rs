use super::enforce::Refused;
use super::*;
use crate::args::{Format, Run};
use crate::live::config::RouteEntry;
use crate::live::scratch::Scratch;
use crate::live::signals::Requests;

fn pod(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
         status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
    )
}

/// A control thread that has a worker, and no interface.
fn control(folder: &Scratch) -> Control {
    let text = "node: node-1\nstate: {paths: [state.yaml]}\nports: []\n\
        workers: {frames: 4096}\nsessions: {folder: none, capacity: 1000}\n";
    let config = folder.write("config.yaml", text);
    let args = Run { config, check: false, force: false, ready_file: None, capture: None, output: Format::Json };
    let requests = Requests::of(crossbeam_channel::never(), crossbeam_channel::never());
    Control::start(Config::read(&args.config).unwrap(), &args, requests).unwrap()
}

/// The generation in force, and whether it has this pod.
fn in_force(control: &Control, pod: &str) -> (u64, bool) {
    let snapshot = control.publisher.current();
    (snapshot.generation(), snapshot.port_named(pod).is_some())
}

#[test]
fn a_change_that_cannot_be_enforced_is_tried_again_and_takes_effect_when_it_can() {
    let folder = Scratch::new("enforce");
    folder.write("state.yaml", &pod("a", "10.1.0.1"));
    let mut control = control(&folder);
    assert_eq!(in_force(&control, "x/a"), (1, true));
    // A configuration with this is refused: what a user can write is not known to make a snapshot fail.
    let nowhere = RouteEntry { prefix: "10.9.0.0/16".parse().unwrap(), via: None, port: "nowhere".into() };
    control.config.routes.push(nowhere);
    folder.write("state.yaml", &(pod("a", "10.1.0.1") + &pod("b", "10.1.0.2")));
    // It is read when it looks the same twice.
    for _ in 0..2 {
        control.state.hurry();
        control.round();
    }
    assert_eq!(control.state.counters().applied, 2);
    let refused = control.refused.as_mut().unwrap();
    assert!(refused.state && refused.why.contains("10.9.0.0/16 leads to no port"), "{}", refused.why);
    assert_eq!(in_force(&control, "x/b"), (1, false), "what was in force stays");
    control.refused.as_mut().unwrap().hurry();
    control.round();
    assert!(control.refused.is_some());
    assert_eq!(in_force(&control, "x/b"), (1, false), "it was tried, and refused again");
    // What was in its way is gone, and nothing else changes.
    control.config.routes.clear();
    control.refused.as_mut().unwrap().hurry();
    control.round();
    assert_eq!(in_force(&control, "x/b"), (2, true));
    assert!(control.refused.is_none());
    control.round();
    assert_eq!(in_force(&control, "x/b"), (2, true), "once");
}

#[test]
fn what_the_kernel_tells_of_interfaces_has_them_looked_at_but_not_all_the_time() {
    let folder = Scratch::new("told");
    folder.write("state.yaml", &pod("a", "10.1.0.1"));
    let mut control = control(&folder);
    let late = Instant::now() + Duration::from_secs(3600);
    control.next_look = late;
    control.round();
    assert_eq!(control.next_look, late, "it was not due");
    control.hurry_look();
    control.round();
    assert!(control.next_look < late, "it was looked at, and the next look is soon");
    // A storm: the soonest look is not now.
    (control.next_look, control.soonest_look) = (late, late - LOOK);
    control.hurry_look();
    assert_eq!((control.next_look, control.ports.counters.told), (late - LOOK, 2));
}

#[test]
fn what_was_refused_is_tried_by_itself_after_a_while_and_at_once_when_asked() {
    let again = Instant::now() + Duration::from_secs(3600);
    let mut refused = Refused { why: String::new(), again, state: false };
    assert!(!refused.is_due());
    refused.hurry();
    assert!(refused.is_due());
}
