//! The models of other products' policies, and the random policies, of the tests of `bulkhead-control`.
#![allow(dead_code, unused_imports, reason = "other tests use the rest")]

#[path = "../../control/tests/foreign/calico/mod.rs"]
pub(crate) mod calico;
#[path = "../../control/tests/foreign/cilium/mod.rs"]
pub(crate) mod cilium;
#[path = "../../control/tests/foreign/document.rs"]
mod document;
#[path = "../../control/tests/foreign/kubernetes/mod.rs"]
pub(crate) mod kubernetes;
#[path = "../../control/tests/foreign/labels.rs"]
mod labels;
#[path = "../../control/tests/foreign/world.rs"]
pub(crate) mod world;

use std::collections::BTreeSet;

use serde_json::Value;

use self::document::yaml;
use self::world::{Direction, Packet, Pod, World};

/// The features of the semantics that took part in a decision.
pub(crate) type Trace = BTreeSet<&'static str>;

/// The policies of a cluster.
pub(crate) trait Policies: Sized {
    /// The policies as objects of Kubernetes.
    fn documents(&self) -> Vec<Value>;

    /// Whether the policies of a pod allow the packet in one direction.
    fn decide(&self, world: &World, pod: &Pod, direction: Direction, packet: &Packet, trace: &mut Trace) -> bool;

    /// The same policies, each time without another part.
    fn smaller(&self) -> Vec<Self>;
}

/// Whether the policies of both ends allow the packet.
pub(crate) fn verdict(world: &World, policies: &impl Policies, packet: &Packet) -> bool {
    let sides = [(packet.src, Direction::Egress), (packet.dst, Direction::Ingress)];
    sides.into_iter().all(|(address, direction)| match world.pod(address) {
        Some(pod) => policies.decide(world, pod, direction, packet, &mut Trace::new()),
        None => true,
    })
}

/// Returns the cluster and its policies as YAML.
pub(crate) fn text_of(world: &World, policies: &impl Policies) -> String {
    yaml(&[world.documents(), policies.documents()].concat())
}
