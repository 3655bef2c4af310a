use super::*;
use std::collections::{BTreeSet, HashMap};

/// Interfaces that exist in this test only.
#[derive(Default)]
struct Fake {
    interfaces: HashMap<&'static str, Found>,
    /// Why no interface can be held.
    unholdable: Option<&'static str>,
    refuse: Option<Refusal>,
    /// Whether ports take packets in several buffers.
    plain: bool,
    calls: Vec<String>,
    held: BTreeSet<String>,
}

impl System for Fake {
    fn find(&mut self, interface: &str) -> Option<Found> {
        self.interfaces.get(interface).copied()
    }

    fn hold(&mut self, entry: &PortEntry, _: &Found) -> Result<(), String> {
        self.unholdable.map_or(Ok(()), |why| Err(why.to_owned()))?;
        self.held.insert(entry.interface.to_string());
        Ok(())
    }

    fn open(&mut self, entry: &PortEntry) -> Result<Opening, Refusal> {
        assert!(self.held.contains(&*entry.interface), "only what is held is opened");
        let Found { index, queues, .. } = self.interfaces[&*entry.interface];
        self.calls.push(format!("open {} {index}", entry.interface));
        self.refuse.clone().map_or(Ok(()), Err)?;
        Ok(Opening { queues, largest_mtu: if self.plain { 3822 } else { u16::MAX } })
    }

    fn close(&mut self, entry: &PortEntry) {
        self.calls.push(format!("close {}", entry.interface));
    }

    fn release(&mut self, interface: &str) {
        assert!(self.held.remove(interface) || self.unholdable.is_some() || !self.interfaces.contains_key(interface));
        self.calls.push(format!("release {interface}"));
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

fn ports(system: &mut Fake, entries: &[PortEntry]) -> Ports {
    assert!(system.calls.is_empty());
    Ports::new(entries)
}

#[test]
fn an_interface_that_comes_later_is_opened_when_it_comes() {
    let (mut system, now) = (Fake::default(), Instant::now());
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    system.set("vb", 7);
    assert!(ports.look(&mut system, now));
    assert_eq!((system.calls(), ports.open_of()), (vec!["open vb 7".into()], (1, 2)));
    assert!(!ports.look(&mut system, now), "nothing new");
    system.set("va", 8);
    assert!(ports.look(&mut system, now));
    assert_eq!(ports.open_of(), (2, 2));
    assert!(ports.link("x/a").is_some());
}

#[test]
fn a_port_whose_interface_goes_is_removed_and_counted_and_the_others_stay() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.set("vb", 2);
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    ports.look(&mut system, now);
    system.calls();
    system.interfaces.remove("va");
    assert!(ports.look(&mut system, now));
    assert_eq!((system.calls(), ports.counters.removed), (vec!["close va".into()], 1));
    assert!(ports.link("x/a").is_none() && ports.link("x/b").is_some());
}

#[test]
fn another_interface_of_the_same_name_is_another_one() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    ports.look(&mut system, now);
    system.set("va", 2);
    ports.look(&mut system, now);
    ports.look(&mut system, now);
    assert_eq!(system.calls(), ["open va 1", "close va", "open va 2"]);
}

#[test]
fn a_port_that_fails_is_opened_again_and_one_that_is_refused_after_a_while() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    ports.look(&mut system, now);
    assert!(ports.failed("x/a", "the kernel said no", &mut system));
    assert!(!ports.failed("x/a", "again", &mut system), "it is closed already");
    system.refuse = Some(Refusal::Other("another program is attached".to_owned()));
    system.calls();
    ports.look(&mut system, now);
    ports.look(&mut system, now);
    assert_eq!(system.calls().len(), 1, "not at once again");
    system.refuse = None;
    assert!(ports.look(&mut system, now + RETRY));
    assert_eq!((ports.counters.refused, ports.open_of()), (1, (1, 1)));
}

#[test]
fn a_changed_mtu_is_a_change_and_a_downed_interface_is_closed() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    ports.look(&mut system, now);
    system.interfaces.get_mut("va").unwrap().link.mtu = 9000;
    assert!(ports.look(&mut system, now));
    assert_eq!(ports.link("x/a").unwrap().mtu, 9000);
    system.interfaces.get_mut("va").unwrap().up = false;
    assert!(ports.look(&mut system, now));
    assert_eq!(ports.open_of(), (0, 1));
}

#[test]
fn a_new_configuration_touches_only_what_differs() {
    let (mut system, now) = (Fake::default(), Instant::now());
    for (at, name) in (1..).zip(["va", "vb", "vc"]) {
        system.set(name, at);
    }
    let mut ports = ports(&mut system, &[entry("x/a", "va"), entry("x/b", "vb")]);
    ports.look(&mut system, now);
    system.calls();
    let moved = PortEntry { line: 99, ..entry("x/b", "vb") };
    assert!(ports.configure(&[moved, entry("x/c", "vc")], &mut system));
    ports.look(&mut system, now);
    assert_eq!(system.calls(), ["close va", "release va", "open vc 3"]);
    assert!(!ports.configure(&[entry("x/b", "vb"), entry("x/c", "vc")], &mut system), "a moved line is no change");
}

#[test]
fn another_label_or_mac_address_takes_effect_without_a_moment_in_which_the_port_is_closed() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 7);
    let before = entry("x/a", "va");
    let mut ports = Ports::new(std::slice::from_ref(&before));
    ports.look(&mut system, now);
    system.calls();
    let mac = Some([2, 0, 0, 0, 0, 9]);
    assert!(ports.configure(&[PortEntry { label: Some("web".into()), mac, line: 9, ..before.clone() }], &mut system));
    assert!(!ports.look(&mut system, now));
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
    ports.look(&mut system, now);
    ports.failed("x/a", "the kernel said no", &mut system);
    ports.look(&mut system, now);
    for peer in ["eth1", "eth2"] {
        ports.configure(&[PortEntry { peer: peer.into(), ..before.clone() }], &mut system);
        assert!(system.held.contains("va") && ports.link("x/a").is_none());
        ports.look(&mut system, now);
        assert!(ports.link("x/a").is_some());
    }
    // Another pod's now: the interface is the same.
    ports.configure(&[entry("x/b", "va")], &mut system);
    assert!(system.held.contains("va"));
    assert!(system.calls().iter().all(|call| !call.starts_with("release")));
    ports.configure(&[], &mut system);
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
    assert!(!ports.look(&mut system, now));
    assert_eq!((system.held.len(), ports.counters.refused, ports.open_of()), (2, 1, (0, 2)));
    assert!(ports.managed[0].said.as_ref().unwrap().contains("cut off, not unprotected"));
    system.unholdable = Some("another program is attached");
    system.set("vc", 3);
    ports.configure(&[entry("x/a", "va"), entry("x/b", "vb"), entry("x/c", "vc")], &mut system);
    ports.look(&mut system, now);
    assert!(ports.managed[2].said.as_ref().unwrap().contains("the host's stack, which knows no policy"));
}

#[test]
fn a_busy_queue_is_tried_again_at_each_look_and_said_when_it_stays_busy() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    system.refuse = Some(Refusal::Busy("queue 0 is in use".to_owned()));
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    for _ in 0..3 {
        assert!(!ports.look(&mut system, now));
    }
    assert_eq!((system.calls().len(), ports.counters.refused), (3, 0));
    assert!(!ports.look(&mut system, now + BUSY));
    assert_eq!((system.calls().len(), ports.counters.refused), (1, 1));
    system.refuse = None;
    assert!(ports.look(&mut system, now + BUSY + RETRY));
    assert_eq!(ports.open_of(), (1, 1));
}

#[test]
fn another_number_of_queues_opens_the_port_anew() {
    let (mut system, now) = (Fake::default(), Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    ports.look(&mut system, now);
    system.interfaces.get_mut("va").unwrap().queues = 2;
    for _ in 0..3 {
        ports.look(&mut system, now);
    }
    assert_eq!(system.calls(), ["open va 1", "close va", "open va 1"]);
    assert_eq!((ports.counters.opened, ports.counters.removed), (2, 1));
}

#[test]
fn an_mtu_that_the_port_cannot_carry_is_not_promised_to_anybody() {
    let (mut system, now) = (Fake { plain: true, ..Fake::default() }, Instant::now());
    system.set("va", 1);
    let mut ports = ports(&mut system, &[entry("x/a", "va")]);
    ports.look(&mut system, now);
    system.interfaces.get_mut("va").unwrap().link.mtu = 9000;
    assert!(ports.look(&mut system, now));
    assert_eq!((ports.link("x/a").unwrap().mtu, ports.open_of()), (3822, (1, 1)));
    system.interfaces.get_mut("va").unwrap().link.mtu = 3000;
    ports.look(&mut system, now);
    assert_eq!(ports.link("x/a").unwrap().mtu, 3000);
}
