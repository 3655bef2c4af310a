//! Pods that the node's container runtime has attached, with the addresses that it gave them.
//!
//! A pod's object shows its addresses (`status.podIPs`) only some time after the pod has them. Until then the attachment supplies them:
//!
//! ```text
//!   objects --> attachments (add addresses that the object lacks) --> claims --> cache
//!                    ^
//!   CNI ADD, DEL -- attach
//! ```
//! Labels come from the object only, so no rule names an attached pod without an object. The same applies if the object's UID shows that it
//! is an earlier pod's: the attached pod does not have that pod's labels.
//!
//! **Invariant.** The object's addresses take precedence as soon as it has any. Exception: addresses that the object already had when the
//! pod was attached belong to an earlier sandbox.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, Event};
use crate::object::{Object, Pod, PodName, Uid};

/// The container runtime's record of an attached pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod's UID. `None` if the runtime does not report one; the record then applies to any pod of the name.
    pub uid: Option<Uid>,
    /// The addresses that the container runtime assigned to the pod. Empty if it reports none: the Pod object's addresses then apply.
    pub addresses: Vec<IpAddr>,
    /// A number that grows with each attachment. Of two pods that claim one address, the pod with the larger number gets it.
    pub number: u64,
}

/// Whether policy knows an attached pod, or why the pod cannot send and receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No Pod object of this name exists.
    Unknown,
    /// The Pod object's UID is another pod's, usually that of an earlier pod of the same name.
    OtherPod,
    /// The Pod object names another node, or no node (`None`).
    OtherNode(Option<Arc<str>>),
    /// The pod uses its node's network.
    HostNetwork,
    /// The pod has terminated.
    Finished,
    /// Neither the object nor the container runtime has an address.
    NoAddress,
    /// Another pod or a node has this address.
    Contested(IpAddr),
    /// Policy knows the pod, with all its addresses.
    Known,
}

/// Gives the pods of a state that no event changes the addresses of their attachments. The addresses of the objects are older.
pub fn give(objects: &mut [Object], attachments: &BTreeMap<PodName, Attachment>) {
    for object in objects {
        let Object::Pod(pod) = object else { continue };
        let Some(attachment) = attachments.get(&pod.name) else { continue };
        let outdated = pod.addresses.clone();
        *pod = Attached { attachment: attachment.clone(), said: None, outdated }.complete(pod).into();
    }
}

/// All attached pods, by name.
#[derive(Debug, Default)]
pub(crate) struct Attachments(BTreeMap<PodName, Attached>);

#[derive(Debug)]
struct Attached {
    attachment: Attachment,
    /// The pod with the properties and addresses of its Pod object. `None` if no object is known.
    said: Option<Arc<Pod>>,
    /// The addresses that the object had before the pod was attached.
    outdated: Vec<IpAddr>,
}

impl Attached {
    fn is_meant(&self, pod: &Pod) -> bool {
        self.attachment.uid.is_none_or(|uid| pod.uid.is_none_or(|known| known == uid))
    }

    /// Returns the pod with the addresses that it has now.
    fn complete(&self, said: &Pod) -> Pod {
        let mut pod = said.clone();
        if !self.is_meant(said) || said.host_network || said.finished {
            return pod;
        }
        let given = &self.attachment.addresses;
        if !given.is_empty() && (said.addresses.is_empty() || said.addresses == self.outdated) {
            pod.addresses.clone_from(given);
        }
        let is_given = !given.is_empty() && pod.addresses.iter().all(|address| given.contains(address));
        pod.lifetime.attached = is_given.then_some(self.attachment.number);
        pod
    }

    fn standing(&self, cache: &Cache, covers: impl Fn(&Pod) -> bool) -> Standing {
        let Some(said) = &self.said else { return Standing::Unknown };
        if !self.is_meant(said) {
            return Standing::OtherPod;
        }
        let pod = self.complete(said);
        match () {
            () if pod.host_network => return Standing::HostNetwork,
            () if pod.finished => return Standing::Finished,
            () if pod.addresses.is_empty() => return Standing::NoAddress,
            () if !covers(&pod) => return Standing::OtherNode(pod.node),
            () => {}
        }
        let known = cache.pod_key(&said.name).and_then(|key| cache.pod(key));
        let lacks = |address: &&IpAddr| known.is_none_or(|pod| !pod.addresses.contains(*address));
        pod.addresses.iter().find(lacks).map_or(Standing::Known, |&address| Standing::Contested(address))
    }
}

impl Attachments {
    /// Adds an attached pod's addresses to an event about it.
    pub(crate) fn resolve(&mut self, event: Event) -> Event {
        match event {
            Event::Apply(Object::Pod(pod)) => match self.0.get_mut(&pod.name) {
                Some(attached) => {
                    let complete = attached.complete(&pod);
                    attached.said = Some(pod);
                    Event::Apply(complete.into())
                }
                None => Event::Apply(Object::Pod(pod)),
            },
            Event::DeletePod(name) => {
                if let Some(attached) = self.0.get_mut(&name) {
                    // The next object of this name is another pod, without outdated addresses.
                    (attached.said, attached.outdated) = (None, Vec::new());
                }
                Event::DeletePod(name)
            }
            event => event,
        }
    }

    /// Replaces all attachments. `said` returns a pod as in its object, for pods that were not attached. Returns events for the pods that
    /// change.
    pub(crate) fn replace(
        &mut self,
        new: BTreeMap<PodName, Attachment>,
        said: impl Fn(&PodName) -> Option<Arc<Pod>>,
    ) -> Vec<Event> {
        let mut before = std::mem::take(&mut self.0);
        let mut events = Vec::new();
        for (name, attachment) in new {
            let known = match before.remove(&name) {
                Some(attached) if attached.attachment == attachment => {
                    self.0.insert(name, attached);
                    continue;
                }
                Some(attached) => attached.said,
                None => said(&name),
            };
            let mut attached = Attached { attachment, said: known, outdated: Vec::new() };
            if let Some(pod) = attached.said.clone() {
                if attached.is_meant(&pod) {
                    attached.outdated.clone_from(&pod.addresses);
                }
                events.push(Event::Apply(attached.complete(&pod).into()));
            }
            self.0.insert(name, attached);
        }
        // First the pods that lose addresses.
        let gone = before.into_values().filter_map(|attached| Some(Event::Apply(Object::Pod(attached.said?))));
        gone.chain(events).collect()
    }

    /// Forgets all objects.
    pub(crate) fn forget_objects(&mut self) {
        self.0.values_mut().for_each(|attached| attached.said = None);
    }

    /// Returns for each attached pod whether policy knows it, or why not. `covers` returns whether the scope includes a pod.
    pub(crate) fn standings(&self, cache: &Cache, covers: impl Fn(&Pod) -> bool) -> BTreeMap<PodName, Standing> {
        self.0.iter().map(|(name, attached)| (name.clone(), attached.standing(cache, &covers))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{name, node, pod};
    use crate::pipeline::Pipeline;
    use crate::processor::Scope;

    fn attachment(uid: &str, addresses: &[&str], number: u64) -> Attachment {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Attachment { uid: Uid::of(uid), addresses, number }
    }

    fn with_uid(object: Object, uid: &str) -> Event {
        let Object::Pod(pod) = object else { unreachable!() };
        Event::Apply(Pod { uid: Uid::of(uid), ..Arc::unwrap_or_clone(pod) }.into())
    }

    struct State(Pipeline);

    impl State {
        fn new() -> Self {
            let mut pipeline = Pipeline::new(Scope::Node("n".into()));
            pipeline.resync([]).unwrap();
            Self(pipeline)
        }

        fn attach(&mut self, all: &[(&str, Attachment)]) {
            let all = all.iter().map(|(pod, attachment)| (name(pod), attachment.clone()));
            self.0.attach(all.collect()).unwrap();
        }

        fn apply(&mut self, event: Event) {
            self.0.apply(event).unwrap();
        }

        /// Returns the addresses of a pod's interface in the tables. Empty if it has no interface.
        fn has(&self, pod: &str) -> Vec<String> {
            let pod = crate::renderer::acl::Attachment::Pod(name(pod));
            let tables = self.0.node_tables("n").unwrap();
            let interface = tables.interfaces.iter().find(|interface| interface.attachment == pod);
            interface.map_or_else(Vec::new, |found| found.addresses.iter().map(ToString::to_string).collect())
        }

        fn standing(&self, pod: &str) -> Standing {
            self.0.standings()[&name(pod)].clone()
        }
    }

    #[test]
    fn addresses_of_an_attached_pod_count_until_its_object_tells_its_own() {
        let mut state = State::new();
        let given = attachment("", &["10.0.0.1", "fd00::1"], 1);
        state.attach(&[("x/a", given)]);
        assert_eq!((state.has("x/a").len(), state.standing("x/a")), (0, Standing::Unknown), "nobody without an object");
        state.apply(Event::Apply(pod("x/a", "", "n", "app=a")));
        assert_eq!(
            (state.has("x/a"), state.standing("x/a")),
            (vec!["10.0.0.1".into(), "fd00::1".into()], Standing::Known)
        );
        state.apply(Event::Apply(pod("x/a", "10.0.0.9", "n", "app=a")));
        assert_eq!((state.has("x/a"), state.standing("x/a")), (vec!["10.0.0.9".into()], Standing::Known));
        // The object without the attachment.
        state.apply(Event::Apply(pod("x/a", "", "n", "app=a")));
        state.attach(&[]);
        assert!(state.has("x/a").is_empty() && state.0.standings().is_empty());
    }

    #[test]
    fn an_object_before_or_after_the_attachment_makes_the_same_of_it() {
        let given = attachment("", &["10.0.0.1"], 1);
        let mut state = State::new();
        state.apply(Event::Apply(pod("x/a", "", "n", "")));
        state.attach(&[("x/a", given)]);
        assert_eq!(state.has("x/a"), ["10.0.0.1"]);
        // A resync.
        state.0.resync([pod("x/a", "", "n", ""), pod("x/b", "10.0.0.2", "n", "")]).unwrap();
        assert_eq!((state.has("x/a"), state.has("x/b")), (vec!["10.0.0.1".into()], vec!["10.0.0.2".into()]));
        state.0.resync([pod("x/b", "10.0.0.2", "n", "")]).unwrap();
        assert_eq!((state.has("x/a").len(), state.standing("x/a")), (0, Standing::Unknown));
    }

    #[test]
    fn addresses_of_an_earlier_sandbox_do_not_count_any_more() {
        let mut state = State::new();
        state.apply(Event::Apply(pod("x/a", "10.0.0.1", "n", "")));
        state.attach(&[("x/a", attachment("", &["10.0.0.2"], 1))]);
        assert_eq!(state.has("x/a"), ["10.0.0.2"]);
        state.apply(Event::Apply(pod("x/a", "10.0.0.1", "n", "app=a")));
        assert_eq!(state.has("x/a"), ["10.0.0.2"], "something else of it has changed");
        state.apply(Event::Apply(pod("x/a", "10.0.0.3", "n", "")));
        assert_eq!(state.has("x/a"), ["10.0.0.3"]);
        // An attachment without addresses: those of the object apply.
        state.attach(&[("x/a", attachment("", &[], 2))]);
        assert_eq!((state.has("x/a"), state.standing("x/a")), (vec!["10.0.0.3".into()], Standing::Known));
    }

    #[test]
    fn the_object_of_an_earlier_pod_of_the_name_is_not_taken_for_the_attached_ones() {
        let mut state = State::new();
        state.apply(with_uid(pod("x/a", "10.0.0.1", "n", "app=old"), "1"));
        state.attach(&[("x/a", attachment("2", &["10.0.0.2"], 1))]);
        assert_eq!((state.has("x/a"), state.standing("x/a")), (vec!["10.0.0.1".into()], Standing::OtherPod));
        state.apply(with_uid(pod("x/a", "", "n", "app=new"), "2"));
        assert_eq!((state.has("x/a"), state.standing("x/a")), (vec!["10.0.0.2".into()], Standing::Known));
    }

    #[test]
    fn a_reused_address_is_that_of_the_pod_that_was_attached_and_not_of_the_ended_one() {
        let mut state = State::new();
        let Object::Pod(ended) = pod("x/old", "10.0.0.1", "n", "") else { unreachable!() };
        state.apply(Event::Apply(Object::Pod(ended.clone())));
        state.apply(Event::Apply(pod("x/a", "", "n", "")));
        state.attach(&[("x/a", attachment("", &["10.0.0.1"], 1))]);
        assert_eq!((state.has("x/old").len(), state.has("x/a")), (0, vec!["10.0.0.1".into()]), "its object is late");
        state.apply(Event::Apply(Pod { finished: true, ..Arc::unwrap_or_clone(ended) }.into()));
        assert_eq!((state.has("x/a"), state.0.contests().len()), (vec!["10.0.0.1".into()], 0));
        state.apply(Event::DeletePod(name("x/old")));
        assert_eq!(state.has("x/a"), ["10.0.0.1"]);
    }

    #[test]
    fn what_keeps_a_pod_from_being_served_is_told() {
        let mut state = State::new();
        let all = ["a", "b", "c", "d", "e"].map(|pod| format!("x/{pod}"));
        let given = |at: usize| attachment("", if at == 4 { &[] } else { &["10.0.0.1"] }, at as u64);
        let attachments: Vec<_> = all.iter().enumerate().map(|(at, pod)| (pod.as_str(), given(at))).collect();
        state.attach(&attachments[..]);
        state.apply(Event::Apply(node("n", "10.0.0.1")));
        let plain = |text: &str| match pod(text, "", "n", "") {
            Object::Pod(pod) => pod,
            _ => unreachable!(),
        };
        state.apply(Event::Apply(pod("x/a", "", "other", "")));
        state.apply(Event::Apply(Pod { host_network: true, ..Arc::unwrap_or_clone(plain("x/b")) }.into()));
        state.apply(Event::Apply(Pod { finished: true, ..Arc::unwrap_or_clone(plain("x/c")) }.into()));
        state.apply(Event::Apply(Object::Pod(plain("x/d"))));
        state.apply(Event::Apply(Object::Pod(plain("x/e"))));
        let expected = [
            Standing::OtherNode(Some("other".into())),
            Standing::HostNetwork,
            Standing::Finished,
            Standing::Contested("10.0.0.1".parse().unwrap()),
            Standing::NoAddress,
        ];
        assert_eq!(all.each_ref().map(|pod| state.standing(pod)), expected);
    }
}
