//! The Services of one node of a compiled state.

use std::sync::Arc;

use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;

use super::{Adapter, withhold_taken};

/// Returns the Services and host ports of a node. `None` if the state has neither. `objects` are Services and EndpointSlices; the pipeline
/// provides Nodes and pods.
pub fn of_node(pipeline: &Pipeline, objects: &[Object], settings: &Settings, node: &Arc<str>) -> Option<Adapter> {
    let is_elsewhere = |object: &Object| matches!(object, Object::Pod(pod) if pod.node.as_ref() != Some(node));
    let others: Vec<Object> = nodes_and_host_ports(pipeline).into_iter().filter(|one| !is_elsewhere(one)).collect();
    let is_some = |object: &Object| matches!(object, Object::Service(_) | Object::Pod(_));
    objects.iter().chain(&others).find(|object| is_some(object))?;
    let mut adapter = Adapter::of(Arc::clone(node), settings.clone(), objects.iter().chain(&others));
    withhold_taken(&mut adapter, pipeline);
    Some(adapter)
}

/// Returns the Node objects of a compiled state, and its Pods with host ports. The resolver of Services needs these besides Services.
pub fn nodes_and_host_ports(pipeline: &Pipeline) -> Vec<Object> {
    let nodes = pipeline.cache().nodes().values().map(|node| Object::Node((**node).clone()));
    let pods = pipeline.cache().pods().map(|(_, pod)| pod).filter(|pod| !pod.host_ports.is_empty());
    nodes.chain(pods.map(|pod| Object::Pod(pod.clone()))).collect()
}
