use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bulkhead_dataplane::io::{LinkEvent, LinkStatus};

use super::state::{ATTACH_RETRY, BUSY, BUSY_RETRY, CARRIER, RETRY};
use super::*;
use crate::config::Config;
use bulkhead_observe::admin::PortKey;

/// Simulated interfaces, with a log of the calls on them.
#[derive(Default)]
struct World {
    links: BTreeMap<&'static str, LinkStatus>,
    /// Interfaces that were moved to another namespace.
    elsewhere: BTreeMap<u32, LinkStatus>,
    calls: Vec<String>,
    /// Attachments: the interface's index, and its configured name at the time of attaching.
    attached: BTreeMap<u32, String>,
    /// Ports whose sessions were ended.
    ended: Vec<String>,
}

impl World {
    fn is_there(&self, index: u32) -> bool {
        self.links.values().any(|link| link.index == index) || self.elsewhere.contains_key(&index)
    }
}

struct FakeAttachment {
    index: u32,
    name: String,
    is_open: bool,
    is_settled: bool,
    world: Rc<RefCell<World>>,
}

impl Drop for FakeAttachment {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        assert!(!self.is_open || !world.is_there(self.index), "a port is closed before its interface is given back");
        if world.attached.remove(&self.index).is_some() && world.is_there(self.index) {
            world.calls.push(format!("detach {}", self.name));
        }
    }
}

/// A simulated datapath, with the errors that its methods return while they are set.
#[derive(Default)]
struct Fake {
    world: Rc<RefCell<World>>,
    /// Error of attaching to any interface.
    attach: Option<AttachError>,
    set_up: Option<&'static str>,
    refresh: Option<&'static str>,
    settle: Option<&'static str>,
    open: Option<OpenError>,
    /// Reason that the next refresh of an open port returns, such as another number of queues.
    outdated: Option<&'static str>,
    /// Whether ports support only packets that fit one buffer.
    plain: bool,
}

impl Datapath for Fake {
    type Attachment = FakeAttachment;

    fn attach(&mut self, entry: &PortEntry, link: &LinkStatus) -> Result<FakeAttachment, AttachError> {
        self.attach.clone().map_or(Ok(()), Err)?;
        let mut world = self.world.borrow_mut();
        let name = entry.interface.to_string();
        if world.links.get(&*name).is_none_or(|now| now.index != link.index) {
            return Err(AttachError::Gone);
        }
        assert!(world.attached.insert(link.index, name.clone()).is_none(), "an interface takes one program");
        Ok(FakeAttachment { index: link.index, name, is_open: false, is_settled: false, world: Rc::clone(&self.world) })
    }

    fn set_up(&mut self, link: &LinkStatus) -> Result<(), String> {
        self.set_up.map_or(Ok(()), |why| Err(why.to_owned()))?;
        let mut world = self.world.borrow_mut();
        assert!(world.attached.contains_key(&link.index), "only what is held is set up");
        world.calls.push(format!("set up {}", link.index));
        let known = world.links.values_mut().find(|known| known.index == link.index);
        known.into_iter().for_each(|known| known.up = true);
        Ok(())
    }

    fn index(&self, attachment: &FakeAttachment) -> Option<u32> {
        Some(attachment.index).filter(|&index| self.world.borrow().is_there(index))
    }

    fn is_here_as(&self, attachment: &FakeAttachment, index: u32) -> bool {
        attachment.index == index && self.world.borrow().links.values().any(|link| link.index == index)
    }

    fn refresh(
        &mut self,
        _: &PortEntry,
        _: &LinkStatus,
        attachment: &mut FakeAttachment,
    ) -> Result<Option<String>, String> {
        self.refresh.map_or(Ok(()), |why| Err(why.to_owned()))?;
        Ok(self.outdated.take_if(|_| attachment.is_open).map(str::to_owned))
    }

    fn is_unsettled(&self, attachment: &FakeAttachment) -> bool {
        !attachment.is_settled
    }

    fn settle(&mut self, attachment: &mut FakeAttachment) -> Result<(), String> {
        attachment.is_settled = true;
        self.world.borrow_mut().calls.push(format!("settle {}", attachment.name));
        self.settle.map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn open(
        &mut self,
        entry: &PortEntry,
        link: &LinkStatus,
        attachment: &mut FakeAttachment,
    ) -> Result<Opening, OpenError> {
        let mut world = self.world.borrow_mut();
        assert!(world.attached.contains_key(&link.index) && !attachment.is_open, "only what is closed is opened");
        assert_eq!(attachment.index, link.index);
        world.calls.push(format!("open {} {}", entry.interface, link.index));
        self.open.clone().map_or(Ok(()), Err)?;
        attachment.is_open = true;
        Ok(Opening { largest_mtu: if self.plain { 3822 } else { u16::MAX } })
    }

    fn close(&mut self, entry: &PortEntry, attachment: &mut FakeAttachment) {
        assert!(std::mem::take(&mut attachment.is_open), "only what is open is closed");
        self.world.borrow_mut().calls.push(format!("close {}", entry.interface));
    }

    fn end(&mut self, entry: &PortEntry) {
        self.world.borrow_mut().ended.push(entry.name.to_string());
    }
}

fn entry((pod, interface): (&str, &str)) -> PortEntry {
    let text = format!("node: n\nstate: {{paths: [s]}}\nports: [{{kind: pod, pod: {pod}, interface: {interface}}}]\n");
    Config::parse("c", &text, std::path::Path::new("")).unwrap().ports.remove(0)
}

/// A port added for this container, kept closed if a reason is given.
fn added(container: &str, of: (&str, &str), kept_closed: Option<&str>) -> PortEntry {
    let key = PortKey { container: container.to_owned(), container_interface: "eth0".to_owned() };
    let added = Added { key: Arc::new(key), number: 1, kept_closed: kept_closed.map(Arc::from) };
    PortEntry { added: Some(added), ..entry(of) }
}

/// Each pod with its interface.
const A: (&str, &str) = ("x/a", "va");
const B: (&str, &str) = ("x/b", "vb");
const C: (&str, &str) = ("x/c", "vc");

/// Ports on simulated interfaces, with a simulated clock.
struct Node {
    fake: Fake,
    links: Links,
    interfaces: Interfaces<Fake>,
    now: Instant,
    /// Whether reading the table of interfaces fails.
    is_unanswered: bool,
}

impl Node {
    /// Creates ports whose interfaces do not exist.
    fn bare(ports: &[(&'static str, &'static str)]) -> Self {
        let entries: Vec<PortEntry> = ports.iter().copied().map(entry).collect();
        Self {
            fake: Fake::default(),
            links: Links::default(),
            interfaces: Interfaces::new(&entries),
            now: Instant::now(),
            is_unanswered: false,
        }
    }

    /// Creates ports and their interfaces, with indexes from 1, without reconciling them.
    fn new(ports: &[(&'static str, &'static str)]) -> Self {
        let node = Self::bare(ports);
        (1..).zip(ports).for_each(|(index, (_, interface))| node.set(interface, index));
        node
    }

    /// Creates ports and their interfaces, and opens them.
    fn open(ports: &[(&'static str, &'static str)]) -> Self {
        let mut node = Self::new(ports);
        assert!(node.look());
        assert_eq!(node.interfaces.open_of(), (ports.len(), ports.len()));
        node.calls();
        node
    }

    fn set(&self, name: &'static str, index: u32) {
        let link = LinkStatus {
            index,
            names: vec![name.to_owned()],
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            up: true,
            ..LinkStatus::default()
        };
        self.fake.world.borrow_mut().links.insert(name, link);
    }

    fn remove(&self, name: &str) {
        self.fake.world.borrow_mut().links.remove(name);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut LinkStatus)) {
        change(self.fake.world.borrow_mut().links.get_mut(name).unwrap());
    }

    fn rename(&self, from: &str, to: &'static str) {
        let mut world = self.fake.world.borrow_mut();
        let mut link = world.links.remove(from).unwrap();
        link.names = vec![to.to_owned()];
        world.links.insert(to, link);
    }

    /// Reads the table again, reconciles and opens ports. Returns whether an open port has changed.
    fn look(&mut self) -> bool {
        if self.is_unanswered {
            self.links.apply(LinkEvent::Lost);
        } else {
            self.links.replace(self.fake.world.borrow().links.values().cloned().collect());
            self.links.doubt();
        }
        self.act()
    }

    /// Applies messages, reconciles and opens ports. Returns whether an open port has changed.
    fn tell(&mut self, events: impl IntoIterator<Item = LinkEvent>) -> bool {
        events.into_iter().for_each(|event| self.links.apply(event));
        self.act()
    }

    fn act(&mut self) -> bool {
        let mut changed = self.reconcile();
        while let Some(opened) = self.interfaces.open_next(&self.links, &mut self.fake, self.now) {
            changed |= opened;
        }
        changed
    }

    fn reconcile(&mut self) -> bool {
        let changes = self.links.take_changes();
        self.interfaces.reconcile(&self.links, &changes, &mut self.fake, self.now)
    }

    fn configure(&mut self, entries: &[PortEntry]) -> bool {
        self.interfaces.configure(entries, &mut self.fake)
    }

    fn fail(&mut self, pod: &str) -> bool {
        self.interfaces.fail(pod, "the kernel said no", &mut self.fake, self.now)
    }

    /// Returns the datapath's calls since the last time.
    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.fake.world.borrow_mut().calls)
    }

    /// Returns the ports whose sessions were ended since the last time.
    fn ended(&mut self) -> Vec<String> {
        std::mem::take(&mut self.fake.world.borrow_mut().ended)
    }

    /// Returns the ports whose addresses no host has.
    fn gone(&self) -> Vec<String> {
        let gone = self.interfaces.view().into_iter().filter(|view| view.is_gone);
        gone.map(|view| view.name.to_string()).collect()
    }

    fn port(&self, pod: &str) -> &Interface<FakeAttachment> {
        self.interfaces.interfaces.iter().find(|interface| &*interface.entry.name == pod).unwrap()
    }

    fn is_open(&self, pod: &str) -> bool {
        self.port(pod).link().is_some()
    }

    fn mtu(&self, pod: &str) -> u16 {
        self.port(pod).link().unwrap().mtu
    }

    /// Returns the indexes of the attached interfaces.
    fn attached(&self) -> Vec<u32> {
        self.fake.world.borrow().attached.keys().copied().collect()
    }

    /// Returns the last reported reason why a port is not open.
    fn said(&self, pod: &str) -> &str {
        self.port(pod).said.as_deref().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // At its end, a process may detach from open ports too.
        let mut world = self.fake.world.borrow_mut();
        world.links.clear();
        world.elsewhere.clear();
    }
}

fn busy() -> Option<OpenError> {
    Some(OpenError::Busy("queue 0 is in use".to_owned()))
}

fn no_memory() -> Option<OpenError> {
    Some(OpenError::Refused("no memory".to_owned()))
}

fn present() -> Option<AttachError> {
    Some(AttachError::Refused("another program is attached".to_owned()))
}

#[test]
fn an_interface_that_comes_later_is_opened_when_it_comes() {
    let mut node = Node::bare(&[A, B]);
    node.set("vb", 7);
    assert!(node.look());
    assert_eq!((node.calls(), node.interfaces.open_of()), (vec!["open vb 7".into()], (1, 2)));
    assert!(!node.look(), "nothing new");
    node.set("va", 8);
    assert!(node.look());
    assert_eq!(node.interfaces.open_of(), (2, 2));
    assert!(node.is_open("x/a"));
}

#[test]
fn a_port_whose_interface_goes_is_removed_and_counted_and_the_others_stay() {
    let mut node = Node::open(&[A, B]);
    node.remove("va");
    assert!(node.look());
    assert_eq!((node.calls(), node.interfaces.counters.removed), (vec!["close va".into()], 1));
    assert!(!node.is_open("x/a") && node.is_open("x/b"));
    assert_eq!(node.attached(), [2], "nothing is kept of what is gone");
}

#[test]
fn another_interface_of_the_same_name_is_another_one() {
    let mut node = Node::open(&[A]);
    node.set("va", 2);
    node.look();
    assert_eq!(node.calls(), ["close va", "open va 2"]);
}

#[test]
fn a_port_that_fails_is_opened_again_and_one_that_is_refused_after_a_while() {
    let mut node = Node::open(&[A]);
    assert!(node.fail("x/a"));
    assert!(!node.fail("x/a"), "it is closed already");
    node.fake.open = no_memory();
    node.calls();
    node.look();
    node.look();
    assert_eq!(node.calls().len(), 1, "not at once again");
    assert_eq!(node.interfaces.next_attempt(), Some(node.now + RETRY));
    node.fake.open = None;
    node.now += RETRY;
    assert!(node.look());
    assert_eq!((node.interfaces.counters.refused, node.interfaces.open_of()), (1, (1, 1)));
    assert_eq!(node.interfaces.next_attempt(), None, "an open port is not asked about");
}

#[test]
fn a_port_that_fails_because_its_interface_was_removed_is_not_tried_again() {
    let mut node = Node::open(&[A]);
    node.remove("va");
    // The worker's failure arrives before the kernel's message.
    assert!(node.fail("x/a"));
    node.calls();
    assert!(!node.act());
    assert_eq!((node.calls(), node.interfaces.counters.refused), (vec![], 0));
    assert!(node.said("x/a").contains("va does not exist"));
}

#[test]
fn a_changed_mtu_is_a_change_and_a_downed_interface_is_closed() {
    let mut node = Node::open(&[A]);
    node.change("va", |link| link.mtu = 9000);
    assert!(node.look());
    assert_eq!(node.mtu("x/a"), 9000);
    node.change("va", |link| link.up = false);
    assert!(node.look());
    assert_eq!((node.interfaces.open_of(), node.attached()), ((0, 1), vec![1]));
    assert!(node.said("x/a").contains("ip link set va up"));
}

#[test]
fn a_new_configuration_touches_only_what_differs() {
    let mut node = Node::open(&[A, B]);
    node.set("vc", 3);
    let moved = PortEntry { line: 99, ..entry(B) };
    assert!(node.configure(&[moved, entry(C)]));
    node.look();
    assert_eq!(node.calls(), ["close va", "detach va", "open vc 3"]);
    assert!(!node.configure(&[entry(B), entry(C)]), "a moved line is no change");
}

#[test]
fn another_label_or_mac_address_takes_effect_without_a_moment_in_which_the_port_is_closed() {
    let mut node = Node::open(&[A]);
    let mac = Some([2, 0, 0, 0, 0, 9]);
    assert!(node.configure(&[PortEntry { label: Some("web".into()), mac, line: 9, ..entry(A) }]));
    assert!(!node.look());
    assert_eq!((node.calls(), node.interfaces.view()[0].mac), (vec![], mac));
    assert!(node.configure(&[PortEntry { peer: "eth1".into(), ..entry(A) }]));
    assert_eq!(node.calls(), ["close va"]);
}

#[test]
fn an_interface_stays_attached_until_nothing_names_it_any_more() {
    let mut node = Node::open(&[A]);
    node.fail("x/a");
    node.look();
    for peer in ["eth1", "eth2"] {
        node.configure(&[PortEntry { peer: peer.into(), ..entry(A) }]);
        assert!(node.attached() == [1] && !node.is_open("x/a"));
        node.look();
        assert!(node.is_open("x/a"));
    }
    // The same interface now belongs to another pod's port.
    node.configure(&[entry(("x/b", "va"))]);
    assert_eq!(node.attached(), [1]);
    node.look();
    assert!(node.calls().iter().all(|call| !call.starts_with("detach")));
    node.configure(&[]);
    node.look();
    assert!(node.attached().is_empty());
    assert_eq!(node.calls(), ["close va", "detach va"]);
}

#[test]
fn what_cannot_be_opened_is_closed_and_what_is_down_as_well() {
    let mut node = Node::new(&[A, B]);
    node.change("vb", |link| link.up = false);
    node.fake.open = no_memory();
    assert!(!node.look());
    let counters = node.interfaces.counters;
    assert_eq!((node.attached(), counters.refused, node.interfaces.open_of()), (vec![1, 2], 1, (0, 2)));
    assert!(node.said("x/a").contains("all its packets are dropped"));
    node.fake.attach = present();
    node.set("vc", 3);
    node.configure(&[A, B, C].map(entry));
    node.look();
    assert!(node.said("x/c").contains("the host's stack without policy"));
}

#[test]
fn a_busy_queue_is_tried_again_soon_and_said_when_it_stays_busy() {
    let mut node = Node::new(&[A]);
    node.fake.open = busy();
    for _ in 0..3 {
        assert!(!node.look());
        assert_eq!(node.interfaces.next_attempt(), Some(node.now + BUSY_RETRY));
        node.now += BUSY_RETRY;
    }
    assert_eq!((node.calls().len(), node.interfaces.counters.refused), (3, 0));
    node.now += BUSY;
    assert!(!node.look());
    assert_eq!((node.calls().len(), node.interfaces.counters.refused), (1, 1));
    assert!(node.said("x/a").contains("queue 0 is in use"));
    node.fake.open = None;
    node.now += RETRY;
    assert!(node.look());
    assert_eq!(node.interfaces.open_of(), (1, 1));
}

#[test]
fn another_number_of_queues_opens_the_port_anew() {
    let mut node = Node::open(&[A]);
    node.fake.outdated = Some("its interface has 2 queues now");
    // Only the port of the changed interface is refreshed.
    assert!(!node.tell([LinkEvent::Features(7)]));
    assert!(node.tell([LinkEvent::Features(1)]));
    assert!(!node.look());
    assert_eq!(node.calls(), ["close va", "open va 1"]);
    assert_eq!((node.interfaces.counters.opened, node.interfaces.counters.removed), (2, 1));
}

#[test]
fn an_mtu_that_the_port_cannot_carry_is_not_promised_to_anybody() {
    let mut node = Node::new(&[A]);
    node.fake.plain = true;
    node.look();
    node.change("va", |link| link.mtu = 9000);
    assert!(node.look());
    assert_eq!((node.mtu("x/a"), node.interfaces.open_of()), (3822, (1, 1)));
    node.change("va", |link| link.mtu = 3000);
    node.look();
    assert_eq!(node.mtu("x/a"), 3000);
}

#[test]
fn all_interfaces_are_attached_to_before_the_first_one_is_opened_and_a_busy_one_keeps_no_other_waiting() {
    let mut node = Node::new(&[A, B, C]);
    node.links.replace(node.fake.world.borrow().links.values().cloned().collect());
    assert!(!node.reconcile());
    assert_eq!((node.attached(), node.interfaces.open_of()), (vec![1, 2, 3], (0, 3)));
    for open in 1..=3 {
        assert_eq!(node.interfaces.open_next(&node.links, &mut node.fake, node.now), Some(true));
        assert_eq!(node.interfaces.open_of(), (open, 3));
    }
    assert_eq!(node.interfaces.open_next(&node.links, &mut node.fake, node.now), None);
    for (pod, _) in [A, B, C] {
        node.fail(pod);
    }
    node.calls();
    node.fake.open = busy();
    node.look();
    assert_eq!(node.calls(), ["open va 1", "open vb 2", "open vc 3"]);
    node.fake.open = None;
    node.now += BUSY_RETRY;
    node.look();
    assert_eq!(node.interfaces.open_of(), (3, 3));
}

#[test]
fn an_interface_that_is_renamed_stays_attached_and_another_one_of_its_name_is_beside_it() {
    let mut node = Node::open(&[A]);
    node.rename("va", "old");
    node.look();
    assert_eq!((node.interfaces.open_of(), node.attached()), ((0, 1), vec![1]));
    node.set("va", 2);
    node.look();
    assert_eq!((node.interfaces.open_of(), node.attached()), ((1, 1), vec![1, 2]));
    node.remove("old");
    // The interface is renamed and the configuration follows: it stays attached in between.
    node.rename("va", "vb");
    node.calls();
    node.configure(&[entry(("x/a", "vb"))]);
    node.look();
    assert_eq!(node.calls(), ["close va", "open vb 2"]);
    assert_eq!(node.attached(), [2]);
}

#[test]
fn two_interfaces_that_change_their_names_are_opened_again() {
    let mut node = Node::open(&[A, B]);
    node.rename("va", "tmp");
    node.rename("vb", "va");
    node.rename("tmp", "vb");
    node.look();
    assert_eq!(node.calls(), ["close va", "close vb", "open va 2", "open vb 1"]);
    assert_eq!((node.interfaces.open_of(), node.attached()), ((2, 2), vec![1, 2]));
}

#[test]
fn two_names_of_one_interface_are_told_as_such() {
    let mut node = Node::bare(&[("x/a", "alt"), ("x/b", "va")]);
    node.set("va", 1);
    node.look();
    node.change("va", |link| link.names.push("alt".to_owned()));
    node.look();
    assert_eq!((node.interfaces.open_of(), node.is_open("x/b")), ((1, 2), true), "who has it keeps it");
    let said = node.said("x/a");
    assert!(said.contains("alt is the interface of port x/b (va)") && !said.contains("host's stack"), "{said}");
}

#[test]
fn what_replaces_the_interface_of_a_refused_port_is_attached_to_at_once() {
    let mut node = Node::new(&[A]);
    node.fake.open = no_memory();
    node.look();
    node.set("va", 2);
    node.fake.open = None;
    node.look();
    assert!(node.attached() == [2] && node.is_open("x/a"), "the wait was the other interface's");
    node.set("va", 3);
    node.fake.attach = present();
    node.look();
    assert!(node.attached().is_empty());
    node.fake.attach = None;
    assert!(!node.act());
    node.now += ATTACH_RETRY;
    assert!(node.act(), "attaching is tried again soon, without a word of the kernel");
    assert_eq!((node.attached(), node.interfaces.counters.refused), (vec![3], 2));
}

#[test]
fn a_kernel_that_does_not_tell_which_interfaces_there_are_closes_no_port_and_gives_nothing_back() {
    let mut node = Node::open(&[A]);
    node.is_unanswered = true;
    node.links.apply(LinkEvent::Removed(1));
    assert!(!node.look());
    assert!(node.is_open("x/a"));
    node.configure(&[entry(("x/a", "vb"))]);
    node.look();
    assert_eq!(node.attached(), [1], "whether vb is the same interface is not known");
    assert_eq!(node.calls(), ["close va"]);
    node.is_unanswered = false;
    node.look();
    assert_eq!(node.calls(), ["detach va"]);
}

#[test]
fn an_interface_that_cannot_be_asked_about_stays_as_it_is() {
    let mut node = Node::open(&[A]);
    node.fake.refresh = Some("too many open files");
    assert!(!node.look() && node.is_open("x/a"));
}

#[test]
fn an_interface_that_was_moved_to_another_namespace_stays_attached_and_is_opened_when_it_is_back() {
    let mut node = Node::open(&[A]);
    let link = node.fake.world.borrow_mut().links.remove("va").unwrap();
    node.fake.world.borrow_mut().elsewhere.insert(1, link.clone());
    assert!(node.tell([LinkEvent::Removed(1)]));
    assert_eq!((node.attached(), node.interfaces.open_of()), (vec![1], (0, 1)));
    node.fake.world.borrow_mut().elsewhere.clear();
    node.fake.world.borrow_mut().links.insert("va", link.clone());
    assert!(node.tell([LinkEvent::Changed(link)]));
    assert_eq!((node.calls(), node.attached()), (vec!["close va".into(), "open va 1".into()], vec![1]));
}

#[test]
fn another_interface_of_the_same_number_and_name_is_another_one() {
    let mut node = Node::open(&[A]);
    // The interface is removed and recreated before the messages are read: the table is as before, but the attachment is gone.
    let link = node.fake.world.borrow().links["va"].clone();
    node.remove("va");
    let gone = node.interfaces.interfaces[0].take().unwrap();
    let attachment = FakeAttachment {
        index: 99,
        name: "va".into(),
        is_open: true,
        is_settled: true,
        world: Rc::clone(&node.fake.world),
    };
    drop(gone);
    node.interfaces.interfaces[0].state = State::Open {
        index: 1,
        attachment,
        link: bulkhead_dataplane::Link { mac: link.mac, mtu: 1500 },
        largest_mtu: u16::MAX,
    };
    node.set("va", 1);
    node.calls();
    assert!(node.tell([LinkEvent::Removed(1), LinkEvent::Changed(link)]));
    assert_eq!((node.calls(), node.attached()), (vec!["close va".into(), "open va 1".into()], vec![1]));
}

#[test]
fn a_fault_at_any_step_of_opening_leaves_the_interface_closed_and_is_mended_by_trying_again() {
    let refused = |text: &str| Some(OpenError::Refused(text.to_owned()));
    let open = [busy(), no_memory(), Some(OpenError::Gone), refused("the second queue is in use by nobody")];
    let attach = [present(), Some(AttachError::Gone)];
    let faults = attach.into_iter().map(|fault| (fault, None)).chain(open.into_iter().map(|fault| (None, fault)));
    for (attach, open) in faults {
        let mut node = Node::new(&[A, B]);
        (node.fake.attach, node.fake.open) = (attach.clone(), open.clone());
        assert!(!node.look());
        let what = format!("{attach:?} {open:?}");
        assert_eq!(node.interfaces.open_of(), (0, 2), "{what}");
        let is_attached = attach.is_none();
        assert_eq!(node.attached(), if is_attached { vec![1, 2] } else { vec![] }, "{what}");
        if matches!(attach, Some(AttachError::Refused(_))) {
            assert!(node.said("x/a").contains("the host's stack"), "{what}");
        }
        (node.fake.attach, node.fake.open) = (None, None);
        node.now += RETRY;
        assert!(node.act(), "{what}");
        assert_eq!((node.interfaces.open_of(), node.attached()), ((2, 2), vec![1, 2]), "{what}");
        // The last step fails: a worker cannot use the port that it received.
        node.fail("x/a");
        assert_eq!((node.interfaces.open_of(), node.attached()), ((1, 2), vec![1, 2]), "{what}");
        assert!(node.act() && node.is_open("x/a"), "{what}");
    }
}

/// A reproducible pseudorandom generator: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Changes the node's interfaces at random. Returns the kernel's messages about the change.
fn happen(node: &mut Node, random: &mut Random, next: &mut u32) -> Vec<LinkEvent> {
    const NAMES: [&str; 5] = ["va", "vb", "vc", "old", "tmp"];
    let name = NAMES[random.below(NAMES.len())];
    let link = node.fake.world.borrow().links.get(name).cloned();
    let now = |node: &Node, name| vec![LinkEvent::Changed(node.fake.world.borrow().links[name].clone())];
    match (random.below(7), link) {
        (0 | 1, None) => {
            node.set(name, *next);
            *next += 1;
            now(node, name)
        }
        (2, None) => {
            let back = node.fake.world.borrow_mut().elsewhere.pop_first();
            let Some((_, mut link)) = back else { return vec![] };
            link.names = vec![name.to_owned()];
            node.fake.world.borrow_mut().links.insert(name, link);
            now(node, name)
        }
        (0, Some(link)) => {
            node.remove(name);
            vec![LinkEvent::Removed(link.index)]
        }
        (1, Some(link)) => {
            node.remove(name);
            node.fake.world.borrow_mut().elsewhere.insert(link.index, link.clone());
            vec![LinkEvent::Removed(link.index)]
        }
        (2, Some(_)) => {
            let to = NAMES[random.below(NAMES.len())];
            if node.fake.world.borrow().links.contains_key(to) {
                return vec![];
            }
            node.rename(name, to);
            now(node, to)
        }
        (3, Some(_)) => {
            node.change(name, |link| link.up = !link.up);
            now(node, name)
        }
        (4, Some(_)) => {
            node.change(name, |link| link.mtu = 9000 - link.mtu);
            now(node, name)
        }
        (5, Some(link)) => {
            node.fake.outdated = Some("it has other queues");
            vec![LinkEvent::Features(link.index)]
        }
        _ => vec![],
    }
}

#[test]
fn whatever_happens_in_whatever_order_each_named_interface_is_attached_and_open_when_it_can_be() {
    let (mut random, mut opened, mut refused) = (Random(0x9e37_79b9_7f4a_7c15), 0, 0);
    for _ in 0..200 {
        let (mut node, mut next) = (Node::bare(&[A, B, C]), 10);
        node.look();
        let mut configured = vec![A, B, C];
        for _ in 0..60 {
            // Several changes happen before the messages are read.
            let mut events = Vec::new();
            for _ in 0..=random.below(3) {
                events.extend(happen(&mut node, &mut random, &mut next));
            }
            match random.below(12) {
                0 => node.fake.open = no_memory(),
                1 => node.fake.attach = present(),
                2 => drop(node.fail(["x/a", "x/b", "x/c"][random.below(3)])),
                3 => {
                    configured = [A, B, C].into_iter().filter(|_| random.below(3) > 0).collect();
                    let peer = ["eth0", "eth1"][random.below(2)];
                    let entries = configured.iter().map(|&of| PortEntry { peer: peer.into(), ..entry(of) });
                    node.configure(&entries.collect::<Vec<_>>());
                }
                _ => {}
            }
            if random.below(20) == 0 {
                // The messages are lost.
                node.links.apply(LinkEvent::Lost);
                node.look();
            } else {
                node.tell(events);
            }
            refused += usize::from(node.fake.attach.take().is_some() || node.fake.open.take().is_some());
            node.now += RETRY;
            node.act();
            let world = node.fake.world.borrow();
            for (pod, name) in &configured {
                let link = world.links.get(name);
                assert!(link.is_none_or(|link| world.attached.contains_key(&link.index)), "{name} is unprotected");
                assert_eq!(node.is_open(pod), link.is_some_and(|link| link.up), "{pod}");
                opened += usize::from(node.is_open(pod));
            }
            let is_here = |index: &u32| world.links.values().any(|link| link.index == *index);
            assert!(world.attached.keys().all(|index| is_here(index) || world.elsewhere.contains_key(index)));
        }
        node.configure(&[]);
        node.look();
        assert!(node.attached().is_empty(), "what nothing names is given back");
    }
    assert!(opened > 1000 && refused > 100, "{opened} {refused}");
}

#[test]
fn what_can_wait_is_done_once_for_each_attachment_whether_its_port_is_open_or_not() {
    let mut node = Node::open(&[A, B]);
    let settled = |node: &Node| node.fake.world.borrow().calls.iter().filter(|call| call.starts_with("settle")).count();
    assert_eq!(settled(&node), 0, "not before it is requested");
    node.fake.settle = Some("refused");
    assert!(node.interfaces.settle_next(&mut node.fake) && node.interfaces.settle_next(&mut node.fake));
    assert!(!node.interfaces.settle_next(&mut node.fake));
    assert_eq!(settled(&node), 2);
    assert!(!node.interfaces.is_any_unsettled(&node.fake), "also what was refused is not tried again");
    assert_eq!(node.interfaces.open_of(), (2, 2), "and its port stays as it is");
}

#[test]
fn the_interface_of_an_added_port_is_set_up_when_it_is_held_and_not_again() {
    let mut node = Node::bare(&[]);
    node.set("va", 1);
    node.change("va", |link| link.up = false);
    assert!(node.configure(&[added("one", A, None)]));
    node.look();
    assert_eq!((node.calls(), node.attached()), (vec!["set up 1".into()], vec![1]));
    // The kernel reports that the interface is up, after an older message.
    let mut link = node.fake.world.borrow().links["va"].clone();
    link.up = false;
    assert!(!node.tell([LinkEvent::Changed(link.clone())]));
    // The port opens only after the kernel has acted on the carrier, so that no packet is lost.
    (link.up, link.settling) = (true, true);
    assert!(!node.tell([LinkEvent::Changed(link.clone())]) && node.calls().is_empty());
    link.settling = false;
    assert!(node.tell([LinkEvent::Changed(link)]) && node.is_open("x/a"));
    node.calls();
    // An interface that is shut down later stays down.
    node.change("va", |link| link.up = false);
    node.look();
    assert!(!node.is_open("x/a") && node.said("x/a").contains("va is down"));
    assert_eq!(node.calls(), ["close va"]);
    // The vswitch does not set up an interface of the configuration.
    let mut node = Node::new(&[B]);
    node.change("vb", |link| link.up = false);
    node.look();
    assert!(node.calls().is_empty() && !node.is_open("x/b"));
    // Some interfaces never report that the kernel has acted on the carrier.
    let mut node = Node::bare(&[]);
    node.set("va", 1);
    node.change("va", |link| link.settling = true);
    node.configure(&[added("one", A, None)]);
    node.look();
    assert!(!node.is_open("x/a") && node.interfaces.next_attempt() == Some(node.now + CARRIER));
    node.now += CARRIER;
    assert!(node.look() && node.is_open("x/a"));
    // A failure to set the interface up is reported.
    let mut node = Node::bare(&[]);
    node.set("va", 1);
    node.change("va", |link| link.up = false);
    node.fake.set_up = Some("not permitted");
    node.configure(&[added("one", A, None)]);
    node.look();
    assert!(node.said("x/a").contains("cannot be set up: not permitted"));
}

#[test]
fn an_older_container_of_a_pod_is_held_closed_from_when_a_newer_one_has_its_place() {
    let mut node = Node::bare(&[]);
    node.set("va", 1);
    node.configure(&[added("one", A, None)]);
    assert!(node.look() && node.is_open("x/a"));
    node.calls();
    node.set("vb", 2);
    let older = PortEntry { name: "x/a@one/eth0".into(), ..added("one", A, Some("is closed: a newer one")) };
    let newer = added("two", ("x/a", "vb"), None);
    assert!(node.configure(&[older, newer]));
    node.look();
    assert_eq!((node.calls(), node.attached()), (vec!["close va".into(), "open vb 2".into()], vec![1, 2]));
    assert!(node.is_open("x/a") && !node.is_open("x/a@one/eth0"));
    assert_eq!(node.said("x/a@one/eth0"), "is closed: a newer one");
    let view: Vec<_> = node.interfaces.view().iter().map(|port| port.name.to_string()).collect();
    assert_eq!(view, ["x/a"], "the snapshot has no port that is never opened");
    // A retry does not open it.
    node.interfaces.hurry(node.now);
    node.look();
    assert!(node.calls().is_empty());
    // The newer container's port is removed.
    node.remove("vb");
    assert!(node.configure(&[added("one", A, None)]));
    node.look();
    assert_eq!(node.attached(), [1], "it was held all the time");
    assert!(node.is_open("x/a"));
}

#[test]
fn sessions_end_with_the_interface_and_the_port_is_gone_until_another_comes() {
    let mut node = Node::open(&[A, B]);
    assert_eq!(node.gone(), [""; 0]);
    node.remove("va");
    assert!(node.look());
    assert_eq!((node.ended(), node.gone()), (vec!["x/a".to_owned()], vec!["x/a".to_owned()]));
    assert!(!node.look() && node.ended().is_empty(), "once");
    node.set("va", 7);
    assert!(node.look());
    assert_eq!((node.gone(), node.ended()), (vec![], vec![]));
    // As a deleted veth: first down, then gone, each in its own message.
    node.change("va", |link| link.up = false);
    assert!(node.look());
    assert_eq!((node.ended(), node.gone()), (vec![], vec![]), "it may come up again");
    node.remove("va");
    assert!(node.look());
    assert_eq!((node.ended(), node.gone()), (vec!["x/a".to_owned()], vec!["x/a".to_owned()]));
    // Its worker may see that first.
    node.remove("vb");
    assert!(node.fail("x/b"));
    assert_eq!(node.ended(), ["x/b"]);
    node.look();
    assert_eq!((node.ended(), node.gone().len()), (vec![], 2));
}

#[test]
fn another_interface_of_the_same_name_is_another_pods_and_a_renamed_one_is_the_same() {
    let mut node = Node::open(&[A]);
    node.set("va", 7);
    assert!(node.look());
    assert_eq!((node.ended(), node.gone()), (vec!["x/a".to_owned()], vec![]));
    node.rename("va", "elsewhere");
    node.look();
    assert_eq!((node.ended(), node.gone()), (vec![], vec![]));
    node.rename("elsewhere", "va");
    node.look();
    assert!(node.is_open("x/a") && node.ended().is_empty());
    node.rename("va", "elsewhere");
    node.look();
    node.remove("elsewhere");
    assert!(node.look());
    assert_eq!((node.ended(), node.gone()), (vec!["x/a".to_owned()], vec!["x/a".to_owned()]));
}

#[test]
fn sessions_end_with_the_port_and_stay_if_its_configuration_changes() {
    let mut node = Node::open(&[A, B]);
    let mut other = entry(A);
    other.fix_offloads = !other.fix_offloads;
    node.configure(&[other.clone(), entry(B)]);
    node.look();
    assert_eq!((node.ended(), node.gone()), (vec![], vec![]));
    node.configure(&[other]);
    assert_eq!(node.ended(), ["x/b"]);
    // Another container of a pod has its own sessions.
    let mut node = Node::bare(&[]);
    node.configure(&[added("one", A, None)]);
    node.configure(&[added("two", A, None)]);
    assert_eq!(node.ended(), ["x/a"]);
}

#[test]
fn an_interface_is_missing_only_if_the_whole_table_says_so() {
    let mut node = Node::bare(&[A]);
    node.is_unanswered = true;
    node.look();
    assert_eq!(node.gone(), [""; 0]);
    node.is_unanswered = false;
    assert!(node.look());
    assert_eq!((node.gone(), node.ended()), (vec!["x/a".to_owned()], vec![]));
}
