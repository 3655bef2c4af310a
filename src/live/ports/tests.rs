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
}

fn entry((pod, interface): (&str, &str)) -> PortEntry {
    let text = format!("node: n\nstate: {{paths: [s]}}\nports: [{{kind: pod, pod: {pod}, interface: {interface}}}]\n");
    super::super::config::Config::parse("c", &text, std::path::Path::new("")).unwrap().ports.remove(0)
}

/// Pods and their interfaces.
const A: (&str, &str) = ("x/a", "va");
const B: (&str, &str) = ("x/b", "vb");
const C: (&str, &str) = ("x/c", "vc");

/// Ports and what they are on, at one moment.
struct Node {
    system: Fake,
    ports: Ports,
    now: Instant,
}

impl Node {
    /// Ports whose interfaces are not there.
    fn bare(ports: &[(&'static str, &'static str)]) -> Self {
        let entries: Vec<PortEntry> = ports.iter().copied().map(entry).collect();
        Self { system: Fake::default(), ports: Ports::new(&entries), now: Instant::now() }
    }

    /// Their interfaces, numbered from 1, are there, and nobody has looked yet.
    fn new(ports: &[(&'static str, &'static str)]) -> Self {
        let mut node = Self::bare(ports);
        (1..).zip(ports).for_each(|(index, (_, interface))| node.system.set(interface, index));
        node
    }

    /// And they are open.
    fn open(ports: &[(&'static str, &'static str)]) -> Self {
        let mut node = Self::new(ports);
        assert!(node.look());
        assert_eq!(node.ports.open_of(), (ports.len(), ports.len()));
        node.calls();
        node
    }

    /// Looks until nothing more is to be opened at once. Whether anything changed.
    fn look(&mut self) -> bool {
        let mut changed = self.look_once();
        while self.ports.has_more() {
            changed |= self.look_once();
        }
        changed
    }

    fn look_once(&mut self) -> bool {
        self.ports.look(&mut self.system, self.now)
    }

    fn configure(&mut self, entries: &[PortEntry]) -> bool {
        self.ports.configure(entries, &mut self.system)
    }

    fn fail(&mut self, pod: &str) -> bool {
        self.ports.failed(pod, "the kernel said no", &mut self.system)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.system.refuse = Some(refusal);
    }

    fn interface(&mut self, name: &str) -> &mut Found {
        self.system.interfaces.get_mut(name).unwrap()
    }

    fn rename(&mut self, from: &str, to: &'static str) {
        let found = self.system.interfaces.remove(from).unwrap();
        self.system.interfaces.insert(to, found);
    }

    /// What was asked of the system since the last time.
    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.system.calls)
    }

    fn is_open(&self, pod: &str) -> bool {
        self.ports.link(pod).is_some()
    }

    fn mtu(&self, pod: &str) -> u16 {
        self.ports.link(pod).unwrap().mtu
    }

    /// The numbers of the interfaces that are held.
    fn held(&self) -> Vec<u32> {
        self.system.held.keys().copied().collect()
    }

    /// What was said last about why a port is not open.
    fn said(&self, at: usize) -> &str {
        self.ports.managed[at].said.as_deref().unwrap()
    }
}

fn busy() -> Refusal {
    Refusal::Busy("queue 0 is in use".to_owned())
}

fn no_memory() -> Refusal {
    Refusal::Other("no memory".to_owned())
}

#[test]
fn an_interface_that_comes_later_is_opened_when_it_comes() {
    let mut node = Node::bare(&[A, B]);
    node.system.set("vb", 7);
    assert!(node.look());
    assert_eq!((node.calls(), node.ports.open_of()), (vec!["open vb 7".into()], (1, 2)));
    assert!(!node.look(), "nothing new");
    node.system.set("va", 8);
    assert!(node.look());
    assert_eq!(node.ports.open_of(), (2, 2));
    assert!(node.is_open("x/a"));
}

#[test]
fn a_port_whose_interface_goes_is_removed_and_counted_and_the_others_stay() {
    let mut node = Node::open(&[A, B]);
    node.system.interfaces.remove("va");
    assert!(node.look());
    assert_eq!((node.calls(), node.ports.counters.removed), (vec!["close va".into()], 1));
    assert!(!node.is_open("x/a") && node.is_open("x/b"));
}

#[test]
fn another_interface_of_the_same_name_is_another_one() {
    let mut node = Node::open(&[A]);
    node.system.set("va", 2);
    node.look();
    assert_eq!(node.calls(), ["close va", "open va 2"]);
}

#[test]
fn a_port_that_fails_is_opened_again_and_one_that_is_refused_after_a_while() {
    let mut node = Node::open(&[A]);
    assert!(node.fail("x/a"));
    assert!(!node.fail("x/a"), "it is closed already");
    node.refuse(Refusal::Other("another program is attached".to_owned()));
    node.calls();
    node.look();
    node.look();
    assert_eq!(node.calls().len(), 1, "not at once again");
    node.system.refuse = None;
    node.now += RETRY;
    assert!(node.look());
    assert_eq!((node.ports.counters.refused, node.ports.open_of()), (1, (1, 1)));
}

#[test]
fn a_changed_mtu_is_a_change_and_a_downed_interface_is_closed() {
    let mut node = Node::open(&[A]);
    node.interface("va").link.mtu = 9000;
    assert!(node.look());
    assert_eq!(node.mtu("x/a"), 9000);
    node.interface("va").up = false;
    assert!(node.look());
    assert_eq!(node.ports.open_of(), (0, 1));
}

#[test]
fn a_new_configuration_touches_only_what_differs() {
    let mut node = Node::open(&[A, B]);
    node.system.set("vc", 3);
    let moved = PortEntry { line: 99, ..entry(B) };
    assert!(node.configure(&[moved, entry(C)]));
    node.look();
    assert_eq!(node.calls(), ["close va", "release va", "open vc 3"]);
    assert!(!node.configure(&[entry(B), entry(C)]), "a moved line is no change");
}

#[test]
fn another_label_or_mac_address_takes_effect_without_a_moment_in_which_the_port_is_closed() {
    let mut node = Node::open(&[A]);
    let mac = Some([2, 0, 0, 0, 0, 9]);
    assert!(node.configure(&[PortEntry { label: Some("web".into()), mac, line: 9, ..entry(A) }]));
    assert!(!node.look());
    assert_eq!((node.calls(), node.ports.managed[0].entry.mac), (vec![], mac));
    assert!(node.configure(&[PortEntry { peer: "eth1".into(), ..entry(A) }]));
    assert_eq!(node.calls(), ["close va"]);
}

#[test]
fn an_interface_is_held_until_nothing_names_it_any_more() {
    let mut node = Node::open(&[A]);
    node.fail("x/a");
    node.look();
    for peer in ["eth1", "eth2"] {
        node.configure(&[PortEntry { peer: peer.into(), ..entry(A) }]);
        assert!(node.held() == [1] && !node.is_open("x/a"));
        node.look();
        assert!(node.is_open("x/a"));
    }
    // Another pod's now: the interface is the same.
    node.configure(&[entry(("x/b", "va"))]);
    assert_eq!(node.held(), [1]);
    assert!(node.calls().iter().all(|call| !call.starts_with("release")));
    node.configure(&[]);
    node.look();
    assert!(node.held().is_empty() && node.calls() == ["release va"]);
}

#[test]
fn what_cannot_be_opened_is_held_and_what_is_down_as_well() {
    let mut node = Node::new(&[A, B]);
    node.interface("vb").up = false;
    node.refuse(no_memory());
    assert!(!node.look());
    assert_eq!((node.held(), node.ports.counters.refused, node.ports.open_of()), (vec![1, 2], 1, (0, 2)));
    assert!(node.said(0).contains("cut off, not unprotected"));
    node.system.unholdable = Some("another program is attached");
    node.system.set("vc", 3);
    node.configure(&[A, B, C].map(entry));
    node.look();
    assert!(node.said(2).contains("the host's stack, which knows no policy"));
}

#[test]
fn a_busy_queue_is_tried_again_at_each_look_and_said_when_it_stays_busy() {
    let mut node = Node::new(&[A]);
    node.refuse(busy());
    for _ in 0..3 {
        assert!(!node.look());
    }
    assert_eq!((node.calls().len(), node.ports.counters.refused), (3, 0));
    node.now += BUSY;
    assert!(!node.look());
    assert_eq!((node.calls().len(), node.ports.counters.refused), (1, 1));
    node.system.refuse = None;
    node.now += RETRY;
    assert!(node.look());
    assert_eq!(node.ports.open_of(), (1, 1));
}

#[test]
fn another_number_of_queues_opens_the_port_anew() {
    let mut node = Node::open(&[A]);
    node.interface("va").queues = 2;
    for _ in 0..3 {
        node.look();
    }
    assert_eq!(node.calls(), ["close va", "open va 1"]);
    assert_eq!((node.ports.counters.opened, node.ports.counters.removed), (2, 1));
}

#[test]
fn an_mtu_that_the_port_cannot_carry_is_not_promised_to_anybody() {
    let mut node = Node::new(&[A]);
    node.system.plain = true;
    node.look();
    node.interface("va").link.mtu = 9000;
    assert!(node.look());
    assert_eq!((node.mtu("x/a"), node.ports.open_of()), (3822, (1, 1)));
    node.interface("va").link.mtu = 3000;
    node.look();
    assert_eq!(node.mtu("x/a"), 3000);
}

#[test]
fn a_look_opens_one_port_and_holds_them_all_first() {
    let mut node = Node::new(&[A, B, C]);
    for open in 1..=3 {
        assert!(node.look_once());
        assert_eq!((node.ports.open_of(), node.held().len(), node.ports.has_more()), ((open, 3), 3, open < 3));
    }
    // One that is busy keeps no other one waiting.
    for (pod, _) in [A, B, C] {
        node.fail(pod);
    }
    node.calls();
    node.refuse(busy());
    node.look();
    assert_eq!(node.calls(), ["open va 1", "open vb 2", "open vc 3"]);
    node.system.refuse = None;
    node.look();
    assert_eq!(node.ports.open_of(), (3, 3));
}

#[test]
fn an_interface_that_is_renamed_stays_held_and_another_one_of_its_name_is_held_beside_it() {
    let mut node = Node::open(&[A]);
    node.rename("va", "old");
    node.look();
    assert_eq!((node.ports.open_of(), node.held()), ((0, 1), vec![1]));
    node.system.set("va", 2);
    node.look();
    assert_eq!((node.ports.open_of(), node.held()), ((1, 1), vec![1, 2]));
    // The configuration follows another one: it is never let go in between.
    node.rename("va", "vb");
    node.calls();
    node.configure(&[entry(("x/a", "vb"))]);
    node.look();
    assert_eq!(node.calls(), ["close va", "release va", "open vb 2"]);
    assert_eq!(node.held(), [2]);
}

#[test]
fn two_interfaces_that_change_their_names_are_opened_again() {
    let mut node = Node::open(&[A, B]);
    node.system.set("va", 2);
    node.system.set("vb", 1);
    node.look();
    assert_eq!(node.calls(), ["close va", "close vb", "open va 2", "open vb 1"]);
    assert_eq!((node.ports.open_of(), node.held()), ((2, 2), vec![1, 2]));
}

#[test]
fn two_names_of_one_interface_are_told_as_such() {
    let mut node = Node::bare(&[("x/a", "alt"), ("x/b", "va")]);
    node.system.set("va", 1);
    node.look();
    node.system.set("alt", 1);
    node.look();
    assert_eq!((node.ports.open_of(), node.is_open("x/b")), ((1, 2), true), "who has it keeps it");
    let said = node.said(0);
    assert!(said.contains("alt is the interface of port x/b (va)") && !said.contains("host's stack"), "{said}");
}

#[test]
fn what_replaces_the_interface_of_a_refused_port_is_held_at_once() {
    let mut node = Node::new(&[A]);
    node.refuse(no_memory());
    node.look();
    node.system.set("va", 2);
    node.system.refuse = None;
    node.look();
    assert!(node.held().contains(&2) && node.is_open("x/a"), "the wait was the other interface's");
    node.system.set("va", 3);
    node.system.unholdable = Some("another program is attached");
    node.look();
    assert!(!node.held().contains(&3));
    node.system.unholdable = None;
    node.look();
    assert!(node.held().contains(&3), "holding is tried at each look");
}

#[test]
fn a_system_that_does_not_answer_closes_no_port_and_gives_nothing_back() {
    let mut node = Node::open(&[A]);
    node.system.unanswered = Some("too many open files");
    assert!(!node.look());
    assert!(node.is_open("x/a"));
    node.configure(&[entry(("x/a", "vb"))]);
    node.look();
    assert_eq!(node.held(), [1], "whether vb is the same interface is not known");
    assert_eq!(node.calls(), ["close va"]);
}
