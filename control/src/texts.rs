//! Shares equal texts between objects, so that each is in memory once: mostly labels of sibling pods, and node names of Services'
//! endpoints.

use std::collections::HashSet;
use std::sync::Arc;

use crate::object::{ClusterService, EndpointSlice, Labels, Object, Pod};

/// Minimum number of texts before unused ones are removed.
const FEW: usize = 1024;

/// The pool of texts that objects share, so that equal texts use memory once.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    all: HashSet<Arc<str>, ahash::RandomState>,
    /// The number of texts after unused ones were last removed.
    kept: usize,
}

impl Texts {
    /// Replaces the object's texts by shared ones, if objects of its kind are numerous.
    pub fn share(&mut self, object: &mut Object) {
        match object {
            // An object that is shared already stays unchanged.
            Object::Pod(pod) => Arc::get_mut(pod).into_iter().for_each(|one| self.share_pod(one)),
            Object::Service(service) => Arc::get_mut(service).into_iter().for_each(|one| self.share_service(one)),
            Object::EndpointSlice(slice) => Arc::get_mut(slice).into_iter().for_each(|one| self.share_slice(one)),
            Object::Namespace(_)
            | Object::Node(_)
            | Object::Policy(_)
            | Object::ClusterPolicy(_)
            | Object::Foreign(_) => return,
        }
        // The number of texts has doubled since the last removal, so the cost per text is constant.
        if self.all.len() > FEW.max(self.kept * 2) {
            self.all.retain(|text| Arc::strong_count(text) > 1);
            self.kept = self.all.len();
        }
    }

    fn share_pod(&mut self, pod: &mut Pod) {
        let Pod { name, labels, node, service_account, ports, .. } = pod;
        self.one(&mut name.namespace);
        node.iter_mut().chain(service_account).for_each(|text| self.one(text));
        ports.iter_mut().for_each(|port| self.one(&mut port.name));
        self.share_labels(labels);
    }

    fn share_labels(&mut self, labels: &mut Labels) {
        let shared = std::mem::take(labels).into_iter().map(|(mut key, mut value)| {
            self.one(&mut key);
            self.one(&mut value);
            (key, value)
        });
        *labels = shared.collect::<Labels>();
    }

    fn share_service(&mut self, service: &mut ClusterService) {
        let ClusterService { name, labels, selector, ports, .. } = service;
        self.one(&mut name.namespace);
        // The Service's slices contain its name.
        self.one(&mut name.name);
        self.share_labels(labels);
        self.share_labels(selector);
        ports.iter_mut().for_each(|port| self.one(&mut port.name));
    }

    fn share_slice(&mut self, slice: &mut EndpointSlice) {
        let EndpointSlice { name, service, ports, endpoints, .. } = slice;
        self.one(&mut name.namespace);
        service.iter_mut().for_each(|service| self.one(service));
        ports.iter_mut().for_each(|port| self.one(&mut port.name));
        for endpoint in endpoints {
            endpoint.node.iter_mut().for_each(|node| self.one(node));
            let hints = endpoint.hints.iter_mut();
            hints.flat_map(|hints| hints.nodes.iter_mut().chain(&mut hints.zones)).for_each(|text| self.one(text));
        }
    }

    fn one(&mut self, text: &mut Arc<str>) {
        match self.all.get(text) {
            Some(known) => *text = Arc::clone(known),
            None => drop(self.all.insert(Arc::clone(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{name, pod};
    use crate::object::Endpoint;

    #[test]
    fn pods_share_what_they_have_in_common_and_what_nobody_has_goes() {
        let mut texts = Texts::default();
        let make = || [pod("x/a", "10.0.0.1", "n", "app=web"), pod("x/b", "10.0.0.2", "n", "app=web")];
        let (mut pods, before) = (make(), make());
        pods.iter_mut().for_each(|pod| texts.share(pod));
        assert_eq!(pods, before);
        let labels = |at: usize| match &pods[at] {
            Object::Pod(pod) => pod.labels.values().next().unwrap().clone(),
            _ => unreachable!(),
        };
        assert!(Arc::ptr_eq(&labels(0), &labels(1)));
        for number in 0..3 * FEW {
            texts.share(&mut pod(&format!("x{number}/a"), "10.0.0.1", "n", ""));
        }
        assert!(texts.all.len() <= FEW + 10, "{}", texts.all.len());
    }
    #[test]
    fn slices_share_the_name_of_their_service_and_their_nodes_and_zones() {
        let endpoint = |address: &str| Endpoint {
            address: address.parse().unwrap(),
            node: Some("n".into()),
            ready: true,
            serving: true,
            terminating: false,
            hints: Some(Box::new(crate::object::Hints { nodes: vec!["n".into()], zones: vec!["z".into()] })),
        };
        let slice = |text: &str| EndpointSlice {
            name: name(text),
            service: Some("a".into()),
            headless: false,
            ports: vec![],
            endpoints: vec![endpoint("10.0.0.1"), endpoint("10.0.0.2")],
        };
        let mut texts = Texts::default();
        let mut objects = ["x/a-1", "x/a-2"].map(|text| Object::EndpointSlice(slice(text).into()));
        let before = objects.clone().map(|object| match object {
            Object::EndpointSlice(slice) => EndpointSlice::clone(&slice),
            _ => unreachable!(),
        });
        objects.iter_mut().for_each(|object| texts.share(object));
        let read = objects.each_ref().map(|object| match object {
            Object::EndpointSlice(slice) => slice,
            _ => unreachable!(),
        });
        assert!(*read[0].as_ref() == before[0] && *read[1].as_ref() == before[1]);
        let nodes: Vec<_> =
            read.iter().flat_map(|slice| &slice.endpoints).map(|one| one.node.as_ref().unwrap()).collect();
        let hints = read[1].endpoints[1].hints.as_ref().unwrap();
        assert!(nodes.iter().all(|node| Arc::ptr_eq(node, nodes[0])) && Arc::ptr_eq(&hints.nodes[0], nodes[0]));
        assert!(Arc::ptr_eq(&hints.zones[0], &read[0].endpoints[0].hints.as_ref().unwrap().zones[0]));
        assert!(Arc::ptr_eq(read[0].service.as_ref().unwrap(), read[1].service.as_ref().unwrap()));
    }
}
