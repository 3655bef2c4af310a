//! A vswitch under test: the services that pass it, and the transactions of its renderers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bulkhead_classifier::{Action, Key, protocol};
use bulkhead_control::cache::Event;
use bulkhead_control::contract::{EndpointRules, RuleAction, SetMirror, TieredList, Transaction};
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::{Attachment, Interface, NodeTables};
use bulkhead_control::renderer::{BoxError, Renderer};

use super::manifest::{name, object, objects};

/// The node whose vswitch is tested.
pub(crate) const NODE: &str = "node-1";

/// Every port that a scenario names, adjacent ports, and the ends of the range.
const PORTS: [u16; 18] = [1, 22, 53, 67, 80, 81, 100, 161, 333, 443, 514, 777, 888, 8000, 8001, 8080, 8081, 65_535];
const TRANSPORTS: [(&str, u8); 3] = [("TCP", protocol::TCP), ("UDP", protocol::UDP), ("SCTP", protocol::SCTP)];
/// Neither a transport nor ICMP: a protocol number for experiments (RFC 3692).
const OTHER: u8 = 253;

/// The probed services: name, protocol, port.
fn services() -> Vec<(String, u8, u16)> {
    let transports =
        TRANSPORTS.into_iter().flat_map(|(name, number)| PORTS.map(|port| (format!("{name}:{port}"), number, port)));
    transports.chain([("ICMP".into(), protocol::ICMP, 0), ("OTHER".into(), OTHER, 0)]).collect()
}

/// The services that these words name: `all`, `nothing`, `TCP:80`, `UDP:*`, `ICMP`, `OTHER`.
fn named(words: &[&str]) -> BTreeSet<String> {
    let services = services();
    let mut all = BTreeSet::new();
    for word in words {
        let chosen = |name: &str| match word.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *word == "all" || *word == name,
        };
        let chosen: Vec<_> = services.iter().map(|(name, ..)| name.clone()).filter(|name| chosen(name)).collect();
        assert!(*word == "nothing" || !chosen.is_empty(), "{word} is never probed");
        all.extend(chosen);
    }
    all
}

/// The rows of an expectation: left end, arrow, right end, services.
fn rows(table: &str) -> impl Iterator<Item = (&str, &str, &str, Vec<&str>)> {
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        [left, arrow @ ("->" | "<-"), right, services @ ..] if !services.is_empty() => {
            (*left, *arrow, *right, services.to_vec())
        }
        _ => panic!("not a row: {line}"),
    })
}

/// The services that a rule list allows with a peer. The first matching rule decides. No peer here is the pod's own node.
fn allowed(sets: &SetMirror, list: &TieredList, peer: IpAddr) -> BTreeSet<String> {
    let decides = |protocol, port| {
        let mut rules = list.rules.iter();
        rules.find(|rule| sets.names(&rule.peers, &[], peer) && rule.services.contains(protocol, port))
    };
    let accepts = |protocol, port| decides(protocol, port).is_none_or(|rule| rule.action == RuleAction::Accept);
    let services = services().into_iter().filter(|&(_, protocol, port)| accepts(protocol, port));
    services.map(|(name, ..)| name).collect()
}

/// A renderer that keeps all transactions. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<Transaction>>>);

impl Recorder {
    pub(crate) fn transactions(&self) -> Vec<Transaction> {
        self.0.lock().unwrap().clone()
    }

    /// The sets after the transactions so far.
    pub(crate) fn sets(&self) -> SetMirror {
        let mut sets = SetMirror::default();
        self.transactions().iter().for_each(|transaction| sets.apply(transaction));
        sets
    }

    /// The pods and their rules after the transactions so far.
    pub(crate) fn pods(&self) -> BTreeMap<String, EndpointRules> {
        let mut pods = BTreeMap::new();
        for transaction in self.transactions() {
            if transaction.resync {
                pods.clear();
            }
            for (name, endpoint) in transaction.endpoints {
                match endpoint {
                    Some(endpoint) => pods.insert(name.name.to_string(), endpoint.rules.clone()),
                    None => pods.remove(&*name.name),
                };
            }
        }
        pods
    }
}

impl Renderer for Recorder {
    fn name(&self) -> String {
        "recorder".into()
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        self.0.lock().unwrap().push(transaction.clone());
        Ok(())
    }
}

/// The vswitch of [`NODE`], with a recording renderer besides the ACL renderer.
pub(crate) struct Vswitch {
    pub(crate) pipeline: Pipeline,
    pub(crate) recorder: Recorder,
    /// The address of every past and present pod (by name without namespace) and node.
    addresses: BTreeMap<String, IpAddr>,
}

impl Vswitch {
    /// Creates a vswitch with these objects.
    pub(crate) fn of(manifests: &[String]) -> Self {
        let recorder = Recorder::default();
        let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
        pipeline.register(recorder.clone());
        let mut vswitch = Self { pipeline, recorder, addresses: BTreeMap::new() };
        vswitch.resync(manifests);
        vswitch
    }

    fn learn(&mut self, object: &Object) {
        let (name, address) = match object {
            Object::Pod(pod) => (&pod.name.name, pod.addresses.first()),
            Object::Node(node) => (&node.name, node.addresses.first()),
            _ => return,
        };
        self.addresses.extend(address.map(|&address| (name.to_string(), address)));
    }

    /// Replaces the whole state by these objects.
    pub(crate) fn resync(&mut self, manifests: &[String]) {
        let objects = objects(manifests);
        objects.iter().for_each(|object| self.learn(object));
        self.pipeline.resync(objects).unwrap();
    }

    /// Applies one object.
    pub(crate) fn apply(&mut self, manifest: &str) {
        let object = object(manifest);
        self.learn(&object);
        self.pipeline.apply(Event::Apply(object)).unwrap();
    }

    /// Removes a pod of the namespace `default`.
    pub(crate) fn delete_pod(&mut self, pod: &str) {
        self.pipeline.apply(Event::DeletePod(name(&format!("default/{pod}")))).unwrap();
    }

    /// The tables in force.
    pub(crate) fn tables(&self) -> Arc<NodeTables> {
        self.pipeline.node_tables(NODE).expect("the first state publishes tables")
    }

    pub(crate) fn generation(&self) -> u64 {
        self.tables().generation
    }

    /// The interfaces whose table does not simply allow everything: pods by name, `uplink`, `host`.
    pub(crate) fn guarded(&self) -> Vec<String> {
        guarded(&self.tables())
    }

    /// The interfaces that share the table of a pod of the namespace `default`.
    pub(crate) fn sharing(&self, pod: &str) -> Vec<String> {
        let tables = self.tables();
        let with = tables.interfaces.iter().find(|interface| label(interface) == pod).unwrap().table;
        tables.interfaces.iter().filter(|interface| interface.table == with).map(label).collect()
    }

    fn address(&self, end: &str) -> IpAddr {
        end.parse().unwrap_or_else(|_| *self.addresses.get(end).unwrap_or_else(|| panic!("there is no {end}")))
    }

    /// The services whose first packet the vswitch allows.
    fn passing(&self, src: IpAddr, dst: IpAddr) -> BTreeSet<String> {
        let tables = self.tables();
        let has = |interface: &&Interface| interface.addresses.contains(&dst);
        let uplink = |interface: &&Interface| interface.attachment == Attachment::Uplink;
        let exit = tables.interfaces.iter().find(has).or_else(|| tables.interfaces.iter().find(uplink)).unwrap();
        // The dataplane allows a pod's packets to itself without a lookup.
        let hairpin = exit.hairpin.is_some() && exit.addresses.contains(&src);
        let passes = |protocol, port| {
            let key = Key::new(src, dst, protocol, 40_000, port);
            hairpin || tables.tables[exit.table].tables.lookup(&key).is_allow()
        };
        let services = services().into_iter().filter(|&(_, protocol, port)| passes(protocol, port));
        services.map(|(name, ..)| name).collect()
    }

    /// Asserts rows such as `pod1 -> 8.8.8.8  UDP:161`: exactly these services pass the vswitch.
    pub(crate) fn expect(&self, table: &str) {
        for (from, arrow, to, services) in rows(table) {
            assert_eq!(arrow, "->", "a packet goes to the right");
            let passing = self.passing(self.address(from), self.address(to));
            assert_eq!(passing, named(&services), "{from} -> {to}");
        }
    }

    /// Asserts rows such as `pod1 <- pod2  TCP:80`: exactly these services pass, by the left pod's rules in the renderer and by the tables.
    /// `unmatched` means a direction without rules.
    pub(crate) fn expect_rules(&self, table: &str) {
        let (pods, sets) = (self.recorder.pods(), self.recorder.sets());
        for (pod, arrow, peer, services) in rows(table) {
            let (rules, peer_address) = (&pods[pod], self.address(peer));
            let (list, src, dst) = match arrow {
                "<-" => (&rules.ingress, peer_address, self.address(pod)),
                _ => (&rules.egress, self.address(pod), peer_address),
            };
            let expected = match services.as_slice() {
                ["unmatched"] => {
                    assert_eq!(*list, None, "{pod} {arrow} {peer}");
                    named(&["all"])
                }
                services => {
                    let list = list.as_ref().unwrap_or_else(|| panic!("{pod} {arrow} {peer}: there are no rules"));
                    let expected = named(services);
                    assert_eq!(allowed(&sets, list, peer_address), expected, "{pod} {arrow} {peer} by the rules");
                    expected
                }
            };
            assert_eq!(self.passing(src, dst), expected, "{pod} {arrow} {peer} by the tables");
        }
    }
}

/// The interfaces whose table does not simply allow everything.
pub(crate) fn guarded(tables: &NodeTables) -> Vec<String> {
    let open = |interface: &Interface| tables.tables[interface.table].tables.constant_action() == Some(Action::Allow);
    tables.interfaces.iter().filter(|interface| !open(interface)).map(label).collect()
}

fn label(interface: &Interface) -> String {
    match &interface.attachment {
        Attachment::Pod(name) => name.name.to_string(),
        Attachment::Uplink => "uplink".into(),
        Attachment::Host => "host".into(),
    }
}
