//! Texts that many objects have in common, each kept once: the labels of a cluster's pods are mostly those of their siblings.

use std::collections::HashSet;
use std::sync::Arc;

use crate::object::{Labels, Object, Pod};

/// Below so many texts nothing is looked through for those that nobody has any more.
const FEW: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Texts {
    all: HashSet<Arc<str>, ahash::RandomState>,
    /// How many there were when they were last looked through.
    kept: usize,
}

impl Texts {
    /// Has the object share its texts with others, where it is of a kind of which there are many.
    pub(super) fn share(&mut self, object: &mut Object) {
        let Object::Pod(Pod { name, labels, node, ports, .. }) = object else { return };
        self.one(&mut name.namespace);
        node.iter_mut().for_each(|node| self.one(node));
        ports.iter_mut().for_each(|port| self.one(&mut port.name));
        let shared = std::mem::take(labels).into_iter().map(|(mut key, mut value)| {
            self.one(&mut key);
            self.one(&mut value);
            (key, value)
        });
        *labels = shared.collect::<Labels>();
        // What is looked through is paid for by what has come since.
        if self.all.len() > FEW.max(self.kept * 2) {
            self.all.retain(|text| Arc::strong_count(text) > 1);
            self.kept = self.all.len();
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
    use crate::fixtures::pod;

    #[test]
    fn pods_share_what_they_have_in_common_and_what_nobody_has_goes() {
        let mut texts = Texts::default();
        let mut pods = [pod("x/a", "10.0.0.1", "n", "app=web"), pod("x/b", "10.0.0.2", "n", "app=web")];
        let before = pods.clone();
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
}
