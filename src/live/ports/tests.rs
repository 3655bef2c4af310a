use super::*;
use std::collections::HashMap;

/// Interfaces that exist in this test only.
#[derive(Default)]
struct Fake {
    interfaces: HashMap<&'static str, Found>,
    refuse: Option<&'static str>,
    calls: Vec<String>,
}

impl System for Fake {
    fn find(&mut self, interface: &str) -> Option<Found> {
        self.interfaces.get(interface).copied()
    }

    fn open(&mut self, entry: &PortEntry, found: &Found) -> Result<u32, String> {
        self.calls.push(format!("open {} {}", entry.interface, found.index));
        self.refuse.map_or(Ok(1), |why| Err(why.to_owned()))
    }

    fn close(&mut self, entry: &PortEntry) {
        self.calls.push(format!("close {}", entry.interface));
    }
}

impl Fake {
    fn set(&mut self, name: &'static str, index: u32) {
        let link = Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
        self.interfaces.insert(name, Found { index, link, up: true });
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
    system.refuse = Some("another program is attached");
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
    assert_eq!(system.calls(), ["close va", "open vc 3"]);
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

fn names(list: &[&str]) -> Vec<Arc<str>> {
    list.iter().map(|&name| name.into()).collect()
}

#[test]
fn a_name_keeps_its_number_while_others_come_and_go() {
    let mut ids = Ids::default();
    ids.assign(&names(&["uplink", "host", "x/a", "x/b"]));
    let used = ids.assign(&names(&["x/b", "host", "x/c", "uplink"]));
    let used: Vec<_> = used.iter().map(|name| name.as_deref()).collect();
    assert_eq!(used, [Some("uplink"), Some("host"), None, Some("x/b"), Some("x/c")]);
    ids.assign(&names(&["x/a"]));
    assert_eq!((ids.of("x/a"), ids.of("x/d"), ids.name(4).map(|name| &**name)), (Some(2), None, Some("x/c")));
}

#[test]
fn numbers_are_bounded_however_many_names_come() {
    let mut ids = Ids::default();
    for at in 0..3 * Ids::IDLE {
        let used = ids.assign(&names(&["uplink", &format!("x/{at}")]));
        assert_eq!(used.iter().flatten().count(), 2);
        assert!(used.len() <= Ids::IDLE + 2);
    }
    assert_eq!(ids.of("uplink"), Some(0));
}
