//! Asks the crate: loads YAML as the offline commands do and reads verdicts from the tables of the nodes and from the reachability.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_classifier::Key;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory;
use bulkhead_control::object::{Enforcement, IngressIsolation, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::reachability::{Protocol, Reachability};
use bulkhead_control::renderer::acl::{Attachment, NodeTables};
use bulkhead_control::source::{ForeignKinds, Options, ServiceKinds, load_text};

use super::world::{NODES, Owner, Packet, World};
use crate::random::Rng;

/// How the objects reach the pipeline.
#[derive(Clone, Debug)]
pub(crate) enum Fed {
    /// All at once, to a pipeline for questions.
    AtOnce,
    /// In small batches of events in a random order, after the objects of an earlier text. The events delete those of them that no longer
    /// exist.
    InBatches { seed: u64, earlier: String },
}

impl Fed {
    fn pipeline(&self, objects: Vec<Object>) -> Pipeline {
        let isolation = IngressIsolation::ClusterDefault;
        let audited = |pipeline: Pipeline| pipeline.auditing(Enforcement::Enforce);
        let mut pipeline = audited(Pipeline::without_tables(isolation));
        match self {
            Self::AtOnce => pipeline.resync(objects).unwrap(),
            Self::InBatches { seed, earlier } => {
                let mut rng = Rng::new(*seed);
                // Tables of every state on the way take most of the time.
                if rng.chance(30) {
                    pipeline = audited(Pipeline::with_default_isolation(Scope::Cluster, isolation));
                }
                let mut earlier = load(earlier).unwrap();
                rng.shuffle(&mut earlier);
                let keys: BTreeSet<inventory::Key> = objects.iter().map(inventory::Key::of).collect();
                let gone =
                    earlier.iter().map(inventory::Key::of).filter(|key| !keys.contains(key)).map(inventory::Key::gone);
                let mut events: Vec<Event> = gone.chain(objects.into_iter().map(Event::Apply)).collect();
                rng.shuffle(&mut events);
                pipeline.resync(earlier).unwrap();
                while !events.is_empty() {
                    let count = events.len().min(1 + rng.below(8));
                    pipeline.apply_batch(events.drain(..count)).unwrap();
                }
            }
        }
        pipeline
    }
}

/// Reads objects as the offline commands do.
fn load(text: &str) -> Result<Vec<Object>, String> {
    let options = Options { services: ServiceKinds::Read, foreign: ForeignKinds::Read, ..Options::default() };
    load_text("state.yaml", text, options).map(|loaded| loaded.objects).map_err(|errors| errors.to_string())
}

/// The crate's answers about one state.
pub(crate) struct Judge {
    tables: BTreeMap<&'static str, Arc<NodeTables>>,
    /// `None` if the pipeline makes tables only.
    reachability: Option<Reachability>,
}

impl Judge {
    /// Reads the objects. The error is the text of the messages.
    pub(crate) fn of(text: &str, fed: &Fed) -> Result<Self, String> {
        let pipeline = fed.pipeline(load(text)?);
        assert!(pipeline.refusals().is_empty(), "{:?}", pipeline.refusals());
        let tables = NODES.into_iter().filter_map(|node| Some((node, pipeline.compiled_node(node)?.tables)));
        let tables = tables.collect();
        let reachability = pipeline.mirror().map(|mirror| Reachability::of(&pipeline, mirror));
        Ok(Self { tables, reachability })
    }

    /// Whether the crate allows the packet. An error if tables and reachability disagree.
    pub(crate) fn verdict(&self, world: &World, packet: &Packet) -> Result<bool, String> {
        let allowed = self.verdict_by_name(world, packet, None);
        let Some(reachability) = &self.reachability else { return Ok(allowed) };
        let verdicts = reachability.between(packet.src, packet.dst).expect("two ends of one family");
        match verdicts.at(Protocol::of_number(packet.protocol), packet.port).allowed() {
            reachable if reachable == allowed => Ok(allowed),
            reachable => Err(format!("tables: {allowed}, reachability: {reachable}")),
        }
    }

    /// Whether the tables allow the packet, whose sender may have learned the destination's domain name.
    pub(crate) fn verdict_by_name(&self, world: &World, packet: &Packet, name: Option<&str>) -> bool {
        let node_of = |address| match world.owner(address) {
            Owner::Pod(pod) => Some(pod.node),
            Owner::Node(node) => Some(node),
            Owner::Outside => None,
        };
        let (from, to) = (node_of(packet.src), node_of(packet.dst));
        let to = to.filter(|_| to != from);
        from.into_iter().chain(to).all(|node| self.passes(node, packet, name))
    }

    /// Whether the tables of one node allow the packet.
    fn passes(&self, node: &str, packet: &Packet, name: Option<&str>) -> bool {
        let Some(tables) = self.tables.get(node) else { return true };
        let of = |address| tables.interfaces.iter().find(move |interface| interface.addresses.contains(&address));
        let uplink = || tables.interfaces.iter().find(|interface| interface.attachment == Attachment::Uplink);
        let receiver = of(packet.dst).or_else(uplink).expect("every node has an uplink");
        // No rule depends on the source port.
        let key = Key::new(packet.src, packet.dst, packet.protocol, 40_000, packet.port);
        let allows = tables.tables[receiver.table].tables.lookup(&key).is_allow();
        // The rules of a sender that name domains are in a table of their own, which judges first.
        let Some(egress) = of(packet.src).and_then(|sender| sender.egress_table) else { return allows };
        let egress = &tables.tables[egress].tables;
        let (unnamed, named) = (egress.lookup(&key), name.map(|name| egress.lookup_name(&key, name)));
        let verdict = named.filter(|named| named.precedes(unnamed)).unwrap_or(unnamed);
        verdict.is_allow() && allows
    }
}
