use std::collections::{BTreeMap, BTreeSet};

use super::managed::{BUSY, RETRY};
use super::*;

/// Interfaces that exist in this test only.
#[derive(Default)]
struct Fake {
    interfaces: HashMap<&'static str, Found>,
    /// Why no interface can be held.
    unholdable: Option<&'static str>,
    refuse: Option<Refusal>,
    /// Whether ports take packets in several buffers.
    plain: bool,
    /// Why nothing can be asked.
    unanswered: Option<&'static str>,
    calls: Vec<String>,
    /// By number, with the name that led there last.
    held: BTreeMap<u32, String>,
}

impl System for Fake {
    fn find(&mut self, interface: &str) -> Result<Option<Found>, String> {
        self.unanswered.map_or(Ok(()), |why| Err(why.to_owned()))?;
        Ok(self.interfaces.get(interface).copied())
    }

    fn hold(&mut self, entry: &PortEntry, found: &Found) -> Result<(), String> {
        self.unholdable.map_or(Ok(()), |why| Err(why.to_owned()))?;
        self.held.insert(found.index, entry.interface.to_string());
        Ok(())
    }

    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<Opening, Refusal> {
        assert!(self.held.contains_key(&found.index), "only what is held is opened");
        let Found { index, queues, .. } = self.interfaces[&*entry.interface];
        self.calls.push(format!("open {} {index}", entry.interface));
        self.refuse.clone().map_or(Ok(()), Err)?;
        Ok(Opening { queues, largest_mtu: if self.plain { 3822 } else { u16::MAX } })
    }

    fn close(&mut self, entry: &PortEntry) {
        self.calls.push(format!("close {}", entry.interface));
    }

    fn release_others(&mut self, names: &BTreeSet<&str>, found: &BTreeSet<u32>) {
        let calls = &mut self.calls;
        self.held.retain(|index, name| {
            let stays = found.contains(index) || names.contains(&**name);
            calls.extend((!stays).then(|| format!("release {name}")));
            stays
        });
    }
}

impl Fake {
    fn set(&mut self, name: &'static str, index: u32) {
        let link = Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
        self.interfaces.insert(name, Found { index, link, up: true, queues: 1, transmit_queues: 1 });
    }

    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }
}

fn entry(pod: &str, interface: &str) -> PortEntry {
    let text = format!("node: n\nstate: {{paths: [s]}}\nports: [{{kind: pod, pod: {pod}, interface: {interface}}}]\n");
    super::super::config::Config::parse("c", &text, std::path::Path::new("")).unwrap().ports.remove(0)
}

/// Looks until nothing more is to be opened at once. Whether anything changed.
fn look(ports: &mut Ports, system: &mut Fake, now: Instant) -> bool {
    let mut changed = ports.look(system, now);
    while ports.has_more() {
        changed |= ports.look(system, now);
    }
    changed
}

fn ports(system: &mut Fake, entries: &[PortEntry]) -> Ports {
    assert!(system.calls.is_empty());
    Ports::new(entries)
}

#[test]
fn an_interface_that_comes_later_is_opened_when_it_comes() {
    let (mut system, now) = (Fake::default(), Instant::now());
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    system.set("vb", 7);
    assert!(look(&mut ports, &mut system, now));
    assert_eq!((system.calls(), ports.open_of()), (vec!["open vb 7".into()], (1, 2)));
    assert!(!look(&mut ports, &mut system, now), "nothing new");
    system.set("va", 8);
    assert!(look(&mut ports, &mut system, now));
    assert_eq!(ports.open_of(), (2, 2));
    assert!(ports.link("x/a").is_some());
}

#[test]
fn a_port_whose_interface_goes_is_removed_and_counted_and_the_others_stay() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.set("vb", 2);
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    look(&mut ports, &mut system, now);
    system.calls();
    system.interfaces.remove("va");
    assert!(look(&mut ports, &mut system, now));
    assert_eq!((system.calls(), ports.counters.removed), (vec!["close va".into()], 1));
    assert!(ports.link("x/a").is_none() && ports.link("x/b").is_some());
}

#[test]
fn another_interface_of_the_same_name_is_another_one() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.set("va", 2);
    look(&mut ports, &mut system, now);
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls(), ["open va 1", "close va", "open va 2"]);
}

#[test]
fn a_port_that_fails_is_opened_again_and_one_that_is_refused_after_a_while() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    assert!(ports.failed("x/a", "the kernel said no", &mut system));
    assert!(!ports.failed("x/a", "again", &mut system), "it is closed already");
    system.refuse = Some(Refusal::Other("another program is attached".to_owned()));
    system.calls();
    look(&mut ports, &mut system, now);
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls().len(), 1, "not at once again");
    system.refuse = None;
    assert!(look(&mut ports, &mut system, now + RETRY));
    assert_eq!((ports.counters.refused, ports.open_of()), (1, (1, 1)));
}

#[test]
fn a_changed_mtu_is_a_change_and_a_downed_interface_is_closed() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.interfaces.get_mut("va").unwrap().link.mtu = 9000;
    assert!(look(&mut ports, &mut system, now));
    assert_eq!(ports.link("x/a").unwrap().mtu, 9000);
    system.interfaces.get_mut("va").unwrap().up = false;
    assert!(look(&mut ports, &mut system, now));
    assert_eq!(ports.open_of(), (0, 1));
}

#[test]
fn a_new_configuration_touches_only_what_differs() {
    let (mut system, now) = (Fake::default(), Instant::now());
    for (at, name) in (1..).zip(["va", "vb", "vc"]) {
        system.set(name, at);
    }
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    look(&mut ports, &mut system, now);
    system.calls();
    let moved = PortEntry { line: 99, ..entry("x/b", "vb") };
    assert!(ports.configure(&[moved, entry("x/c", "vc")], &mut system));
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls(), ["close va", "release va", "open vc 3"]);
    assert!(!ports.configure(&[entry("x/b", "vb"), entry("x/c", "vc")], &mut system), "a moved line is no change");
}

#[test]
fn another_label_or_mac_address_takes_effect_without_a_moment_in_which_the_port_is_closed() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 7);
    let before = entry("x/a", "va");
    let mut ports = Ports::new(std::slice::from_ref(&before));
    look(&mut ports, &mut system, now);
    system.calls();
    let mac = Some([2, 0, 0, 0, 0, 9]);
    assert!(ports.configure(&[PortEntry { label: Some("web".into()), mac, line: 9, ..before.clone() }], &mut system));
    assert!(!look(&mut ports, &mut system, now));
    assert_eq!((system.calls(), ports.managed[0].entry.mac), (vec![], mac));
    assert!(ports.configure(&[PortEntry { peer: "eth1".into(), ..before }], &mut system));
    assert_eq!(system.calls(), ["close va"]);
}

#[test]
fn an_interface_is_held_until_nothing_names_it_any_more() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let before = entry("x/a", "va");
    let mut ports = Ports::new(std::slice::from_ref(&before));
    look(&mut ports, &mut system, now);
    ports.failed("x/a", "the kernel said no", &mut system);
    look(&mut ports, &mut system, now);
    for peer in ["eth1", "eth2"] {
        ports.configure(&[PortEntry { peer: peer.into(), ..before.clone() }], &mut system);
        assert!(system.held.contains_key(&1) && ports.link("x/a").is_none());
        look(&mut ports, &mut system, now);
        assert!(ports.link("x/a").is_some());
    }
    // Another pod's now: the interface is the same.
    ports.configure(&[entry("x/b", "va")], &mut system);
    assert!(system.held.contains_key(&1));
    assert!(system.calls().iter().all(|call| !call.starts_with("release")));
    ports.configure(&[], &mut system);
    look(&mut ports, &mut system, now);
    assert!(system.held.is_empty() && system.calls() == ["release va"]);
}

#[test]
fn what_cannot_be_opened_is_held_and_what_is_down_as_well() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.set("vb", 2);
    system.interfaces.get_mut("vb").unwrap().up = false;
    system.refuse = Some(Refusal::Other("no memory".to_owned()));
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    assert!(!look(&mut ports, &mut system, now));
    assert_eq!((system.held.len(), ports.counters.refused, ports.open_of()), (2, 1, (0, 2)));
    assert!(ports.managed[0].said.as_ref().unwrap().contains("cut off, not unprotected"));
    system.unholdable = Some("another program is attached");
    system.set("vc", 3);
    ports.configure(&[entry("x/a", "va"), entry("x/b", "vb"), entry("x/c", "vc")], &mut system);
    look(&mut ports, &mut system, now);
    assert!(ports.managed[2].said.as_ref().unwrap().contains("the host's stack, which knows no policy"));
}

#[test]
fn a_busy_queue_is_tried_again_at_each_look_and_said_when_it_stays_busy() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.refuse = Some(Refusal::Busy("queue 0 is in use".to_owned()));
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    for _ in 0..3 {
        assert!(!look(&mut ports, &mut system, now));
    }
    assert_eq!((system.calls().len(), ports.counters.refused), (3, 0));
    assert!(!look(&mut ports, &mut system, now + BUSY));
    assert_eq!((system.calls().len(), ports.counters.refused), (1, 1));
    system.refuse = None;
    assert!(look(&mut ports, &mut system, now + BUSY + RETRY));
    assert_eq!(ports.open_of(), (1, 1));
}

#[test]
fn another_number_of_queues_opens_the_port_anew() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.interfaces.get_mut("va").unwrap().queues = 2;
    for _ in 0..3 {
        look(&mut ports, &mut system, now);
    }
    assert_eq!(system.calls(), ["open va 1", "close va", "open va 1"]);
    assert_eq!((ports.counters.opened, ports.counters.removed), (2, 1));
}

#[test]
fn an_mtu_that_the_port_cannot_carry_is_not_promised_to_anybody() {
    let (mut system, now) = (Fake { plain: true, ..Fake::default() }, Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.interfaces.get_mut("va").unwrap().link.mtu = 9000;
    assert!(look(&mut ports, &mut system, now));
    assert_eq!((ports.link("x/a").unwrap().mtu, ports.open_of()), (3822, (1, 1)));
    system.interfaces.get_mut("va").unwrap().link.mtu = 3000;
    look(&mut ports, &mut system, now);
    assert_eq!(ports.link("x/a").unwrap().mtu, 3000);
}

#[test]
fn a_look_opens_one_port_and_holds_them_all_first() {
    let (mut system, now) = (Fake::default(), Instant::now());
    for (at, name) in (1..).zip(["va", "vb", "vc"]) {
        system.set(name, at);
    }
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb"), entry("x/c", "vc")]);
    for open in 1..=3 {
        assert!(ports.look(&mut system, now));
        assert_eq!((ports.open_of(), system.held.len(), ports.has_more()), ((open, 3), 3, open < 3));
    }
    // One that is busy keeps no other one waiting.
    for name in ["x/a", "x/b", "x/c"] {
        ports.failed(name, "the kernel said no", &mut system);
    }
    system.calls();
    system.refuse = Some(Refusal::Busy("queue 0 is in use".to_owned()));
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls(), ["open va 1", "open vb 2", "open vc 3"]);
    system.refuse = None;
    look(&mut ports, &mut system, now);
    assert_eq!(ports.open_of(), (3, 3));
}

#[test]
fn an_interface_that_is_renamed_stays_held_and_another_one_of_its_name_is_held_beside_it() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    let old = system.interfaces.remove("va").unwrap();
    system.interfaces.insert("old", old);
    look(&mut ports, &mut system, now);
    assert_eq!((ports.open_of(), system.held.contains_key(&1)), ((0, 1), true));
    system.set("va", 2);
    look(&mut ports, &mut system, now);
    assert_eq!((ports.open_of(), system.held.len()), ((1, 1), 2));
    // The configuration follows another one: it is never let go in between.
    let new = system.interfaces.remove("va").unwrap();
    system.interfaces.insert("vb", new);
    system.calls();
    ports.configure(&[entry("x/a", "vb")], &mut system);
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls(), ["close va", "release va", "open vb 2"]);
    assert_eq!(system.held.keys().copied().collect::<Vec<_>>(), [2]);
}

#[test]
fn two_interfaces_that_change_their_names_are_opened_again() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.set("vb", 2);
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    look(&mut ports, &mut system, now);
    system.calls();
    system.set("va", 2);
    system.set("vb", 1);
    look(&mut ports, &mut system, now);
    assert_eq!(system.calls(), ["close va", "close vb", "open va 2", "open vb 1"]);
    assert_eq!((ports.open_of(), system.held.len()), ((2, 2), 2));
}

#[test]
fn two_names_of_one_interface_are_told_as_such() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "alt"), entry("x/b", "va")]);
    look(&mut ports, &mut system, now);
    system.set("alt", 1);
    look(&mut ports, &mut system, now);
    assert_eq!((ports.open_of(), ports.link("x/b").is_some()), ((1, 2), true), "who has it keeps it");
    let said = ports.managed[0].said.as_ref().unwrap();
    assert!(said.contains("alt is the interface of port x/b (va)") && !said.contains("host's stack"), "{said}");
}

#[test]
fn what_replaces_the_interface_of_a_refused_port_is_held_at_once() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.refuse = Some(Refusal::Other("no memory".to_owned()));
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.set("va", 2);
    system.refuse = None;
    look(&mut ports, &mut system, now);
    assert!(system.held.contains_key(&2) && ports.open_of() == (1, 1), "the wait was the other interface's");
    system.set("va", 3);
    system.unholdable = Some("another program is attached");
    look(&mut ports, &mut system, now);
    system.unholdable = None;
    look(&mut ports, &mut system, now);
    assert!(system.held.contains_key(&3), "holding is tried at each look");
}

#[test]
fn a_system_that_does_not_answer_closes_no_port_and_gives_nothing_back() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    look(&mut ports, &mut system, now);
    system.calls();
    system.unanswered = Some("too many open files");
    assert!(!look(&mut ports, &mut system, now));
    ports.configure(&[entry("x/a", "vb")], &mut system);
    look(&mut ports, &mut system, now);
    assert!(system.held.contains_key(&1), "whether vb is the same interface is not known");
    assert_eq!(system.calls(), ["close va"]);
}
