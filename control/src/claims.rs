//! Decides which pod or node has an address that several objects claim.
//!
//! Addresses are reused: the object of the previous pod may still exist and contain the address. At most one pod has an address, so a
//! faulty or late object of one pod does not affect others.
//!
//! ```text
//!  event --> claims --> the event, with its pod's addresses reduced to those that the pod has
//!                  `--> further events: before it, pods that lose an address by it; after it, pods that gain one
//! ```
//! A node's address belongs to no pod. Otherwise a pod has an address if it beats every other pod that claims it:
//!
//! * Of two pods of one node, the one that the container runtime attached later
//!   ([`Lifetime::attached`](crate::object::Lifetime::attached)).
//! * Otherwise the one that runs while the other does not, or that started later ([`Lifetime::beats`](crate::object::Lifetime::beats)).
//!
//! If no pod wins, no pod has the address. A pod without its address is treated like one whose network is not set up: no rule names it, and
//! its interface has no table and drops all packets. Pods of other nodes can still send from such an address, and rules that name pods do
//! not match it. The address is therefore quarantined: cluster policies' rules that deny or pass pods deny it.
//!
//! **Invariant.** The result depends on the objects alone, not on their order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use crate::cache::{Cache, Event};
use crate::object::{Node, Object, Pod, PodName};

/// An address that several pods, or a pod and a node, claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The contested address.
    pub address: IpAddr,
    /// The owner of the address.
    pub holder: Holder,
    /// The pods that claim the address and do not have it, sorted by name.
    pub others: Vec<PodName>,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This pod.
    Pod(PodName),
    /// A node.
    Node,
    /// No owner: no pod beats all others.
    Nobody,
}

/// The pods with fewer addresses than their objects claim, and the nodes' addresses.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Pods that lack an address of their Pod object, each as in its object. The cache has all other pods with all their addresses.
    short: BTreeMap<PodName, Arc<Pod>>,
    /// The names of the pods in `short`, by the addresses that they lack.
    missed: BTreeMap<IpAddr, BTreeSet<PodName>>,
    /// The number of node objects that contain an address.
    nodes: AHashMap<IpAddr, u32>,
}

impl Claims {
    /// Returns the events that bring the cache to the state after this event.
    pub(crate) fn resolve(&mut self, cache: &Cache, event: Event) -> Vec<Event> {
        match event {
            Event::Apply(Object::Pod(pod)) => self.pod(cache, &pod.name.clone(), Some(pod)),
            Event::DeletePod(name) => self.pod(cache, &name, None),
            Event::Apply(Object::Node(node)) => {
                let touched = self.node(cache, &node.name, Some(&node));
                self.with_others(cache, Event::Apply(Object::Node(node)), &touched, None)
            }
            Event::DeleteNode(name) => {
                let touched = self.node(cache, &name, None);
                self.with_others(cache, Event::DeleteNode(name), &touched, None)
            }
            event => vec![event],
        }
    }

    /// Returns all contested addresses, sorted.
    pub(crate) fn contests(&self, cache: &Cache) -> Vec<Contest> {
        let contest = |(&address, others): (&IpAddr, &BTreeSet<PodName>)| {
            let pod = cache.pods_at(address).map(|(_, pod)| pod).find(|pod| pod.is_endpoint());
            let holder = match pod {
                Some(pod) => Holder::Pod(pod.name.clone()),
                None if self.is_nodes(cache, address, None) => Holder::Node,
                None => Holder::Nobody,
            };
            Contest { address, holder, others: others.iter().cloned().collect() }
        };
        self.missed.iter().map(contest).collect()
    }

    /// Returns the contested addresses without an owner.
    pub(crate) fn quarantined(&self, cache: &Cache) -> BTreeSet<IpAddr> {
        let has = |address: IpAddr| cache.pods_at(address).any(|(_, pod)| pod.is_endpoint());
        let missed = self.missed.keys().copied();
        missed.filter(|&address| !has(address) && !self.is_nodes(cache, address, None)).collect()
    }

    /// Updates the count of node addresses. Returns the addresses that a node's object gained or lost.
    fn node(&mut self, cache: &Cache, name: &Arc<str>, new: Option<&Node>) -> BTreeSet<IpAddr> {
        let of = |node: Option<&Node>| -> BTreeSet<IpAddr> {
            node.into_iter().flat_map(|node| node.addresses.iter().copied()).collect()
        };
        let (old, new) = (of(cache.nodes().get(name).map(|node| &**node)), of(new));
        for &address in new.difference(&old) {
            *self.nodes.entry(address).or_insert(0) += 1;
        }
        for address in old.difference(&new) {
            if let Some(count) = self.nodes.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(address);
                }
            }
        }
        &old ^ &new
    }

    fn pod(&mut self, cache: &Cache, name: &PodName, new: Option<Arc<Pod>>) -> Vec<Event> {
        let said = self.said(cache, name);
        let touched: Vec<IpAddr> = said.into_iter().chain(&new).flat_map(|pod| pod.addresses.iter().copied()).collect();
        self.forget(name);
        let event = |new: Option<Arc<Pod>>| match new {
            Some(pod) => Event::Apply(Object::Pod(pod)),
            None => Event::DeletePod(name.clone()),
        };
        let is_alone = |address: &IpAddr| {
            let mut others = cache.pods_at(*address).filter(|(_, pod)| pod.name != *name);
            others.next().is_none() && !self.missed.contains_key(address) && !self.nodes.contains_key(address)
        };
        if touched.iter().all(is_alone) {
            return vec![event(new)];
        }
        let touched = touched.into_iter().collect();
        let subject = Subject { name, pod: new.as_deref() };
        let mut own = new.clone();
        if let Some(own) = own.as_mut().filter(|own| own.is_endpoint()) {
            let has = |address: &IpAddr| self.holder(cache, *address, Some(&subject)).as_ref() == Some(name);
            if !own.addresses.iter().all(has) {
                Arc::make_mut(own).addresses.retain(has);
            }
        }
        let events = self.with_others(cache, event(own.clone()), &touched, Some(&subject));
        if let (Some(said), Some(own)) = (new, own) {
            self.remember(said, &own);
        }
        events
    }

    /// Returns events in this order: pods that lose a touched address, `event` itself, pods that gain a touched address.
    fn with_others(
        &mut self,
        cache: &Cache,
        event: Event,
        touched: &BTreeSet<IpAddr>,
        subject: Option<&Subject<'_>>,
    ) -> Vec<Event> {
        let holders: BTreeMap<IpAddr, Option<PodName>> =
            touched.iter().map(|&address| (address, self.holder(cache, address, subject))).collect();
        let before = touched.iter().flat_map(|&address| cache.pods_at(address)).map(|(_, pod)| pod);
        let before = before.filter(|pod| pod.is_endpoint()).map(|pod| pod.name.clone());
        let others: BTreeSet<PodName> = before.chain(holders.values().flatten().cloned()).collect();
        let (mut losing, mut getting) = (Vec::new(), Vec::new());
        for name in others.into_iter().filter(|name| subject.is_none_or(|subject| subject.name != name)) {
            let Some(known) = cache.pod_key(&name).and_then(|key| cache.pod(key)) else { continue };
            let mut pod = self.short.get(&name).cloned().unwrap_or_else(|| Arc::clone(known));
            let said = Arc::clone(&pod);
            Arc::make_mut(&mut pod).addresses.retain(|address| match holders.get(address) {
                Some(holder) => holder.as_ref() == Some(&name),
                None => known.addresses.contains(address),
            });
            if pod.addresses == known.addresses {
                continue;
            }
            self.forget(&name);
            self.remember(said, &pod);
            let loses = known.addresses.iter().any(|address| !pod.addresses.contains(address));
            if loses { &mut losing } else { &mut getting }.push(Event::Apply(Object::Pod(pod)));
        }
        losing.into_iter().chain([event]).chain(getting).collect()
    }

    /// Returns the pod that has the address after the subject's change. `None` if a node has it, or no pod.
    fn holder(&self, cache: &Cache, address: IpAddr, subject: Option<&Subject<'_>>) -> Option<PodName> {
        if self.is_nodes(cache, address, subject) {
            return None;
        }
        let is_other = |pod: &&Pod| subject.is_none_or(|subject| *subject.name != pod.name);
        let having = cache.pods_at(address).map(|(_, pod)| &**pod).filter(|pod| !self.short.contains_key(&pod.name));
        let short = cache.pods_at(address).filter_map(|(_, pod)| self.short.get(&pod.name)).map(|pod| &**pod);
        let missing =
            self.missed.get(&address).into_iter().flatten().filter_map(|name| self.short.get(name)).map(|pod| &**pod);
        let own = subject.and_then(|subject| subject.pod).filter(|pod| pod.addresses.contains(&address));
        let claimants: Vec<&Pod> =
            having.chain(short).chain(missing).filter(is_other).chain(own).filter(|pod| pod.is_endpoint()).collect();
        // A pod that beats all others also beats the best of the pods before it. The reverse does not hold, so the winner is checked
        // against all.
        let mut best = *claimants.first()?;
        for pod in &claimants[1..] {
            if beats(pod, best) {
                best = pod;
            }
        }
        let wins = claimants.iter().all(|pod| pod.name == best.name || beats(best, pod));
        wins.then(|| best.name.clone())
    }

    /// Whether a node has the address after the subject's change: by its object or by a host-network pod.
    fn is_nodes(&self, cache: &Cache, address: IpAddr, subject: Option<&Subject<'_>>) -> bool {
        let shares = |pod: &Pod| pod.host_network && !pod.finished && pod.node.is_some();
        let is_other = |pod: &Pod| subject.is_none_or(|subject| *subject.name != pod.name);
        let own = subject.and_then(|subject| subject.pod).filter(|pod| pod.addresses.contains(&address));
        self.nodes.contains_key(&address)
            || own.is_some_and(shares)
            || cache.pods_at(address).any(|(_, pod)| is_other(pod) && shares(pod))
    }

    /// Returns the pod with all addresses of its Pod object. `None` if the pod is unknown.
    pub(crate) fn said<'a>(&'a self, cache: &'a Cache, name: &PodName) -> Option<&'a Arc<Pod>> {
        let known = || cache.pod_key(name).and_then(|key| cache.pod(key));
        self.short.get(name).or_else(known)
    }

    /// Keeps the pod as in its object if it lacks some of the addresses.
    fn remember(&mut self, said: Arc<Pod>, has: &Pod) {
        let missed: Vec<IpAddr> =
            said.addresses.iter().copied().filter(|address| !has.addresses.contains(address)).collect();
        if missed.is_empty() {
            return;
        }
        for address in missed {
            self.missed.entry(address).or_default().insert(said.name.clone());
        }
        self.short.insert(said.name.clone(), said);
    }

    fn forget(&mut self, name: &PodName) {
        let Some(said) = self.short.remove(name) else { return };
        for address in &said.addresses {
            if let Some(names) = self.missed.get_mut(address) {
                names.remove(name);
                if names.is_empty() {
                    self.missed.remove(address);
                }
            }
        }
    }
}

/// Whether `one` takes precedence over `other` for an address that both claim.
fn beats(one: &Pod, other: &Pod) -> bool {
    let (attached, others) = (one.lifetime.attached, other.lifetime.attached);
    // Attachments of other nodes' container runtimes are unknown here.
    match one.node == other.node && attached != others {
        true => attached > others,
        false => one.lifetime.beats(&other.lifetime),
    }
}

/// A changing pod. `pod` is its new object, `None` if it was deleted.
struct Subject<'a> {
    name: &'a PodName,
    pod: Option<&'a Pod>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{name, node, pod};
    use crate::object::{Lifetime, Timestamp};

    #[derive(Default)]
    struct State {
        claims: Claims,
        cache: Cache,
    }

    impl State {
        fn apply(&mut self, event: Event) {
            for event in self.claims.resolve(&self.cache, event) {
                self.cache.apply(event);
            }
        }

        fn has(&self, pod: &str) -> Vec<String> {
            let key = self.cache.pod_key(&name(pod)).unwrap();
            self.cache.pod(key).unwrap().addresses.iter().map(ToString::to_string).collect()
        }

        fn contests(&self) -> Vec<Contest> {
            self.claims.contests(&self.cache)
        }
    }

    fn started(text: &str, addresses: &str, second: u8) -> Object {
        let Object::Pod(pod) = pod(text, addresses, "n", "") else { unreachable!() };
        let started = Timestamp::parse(&format!("2026-01-01T00:00:{second:02}Z"));
        assert!(started.is_some());
        Pod { lifetime: Lifetime { running: true, started, ..Lifetime::default() }, ..Arc::unwrap_or_clone(pod) }.into()
    }

    #[test]
    fn the_pod_that_started_later_has_the_address_in_every_order_and_the_other_gets_it_back() {
        let (old, new) = (started("x/a", "10.0.0.1,fd00::1", 1), started("x/b", "10.0.0.1,fd00::2", 2));
        for objects in [[&old, &new], [&new, &old]] {
            let mut state = State::default();
            objects.into_iter().for_each(|object| state.apply(Event::Apply(object.clone())));
            assert_eq!(
                (state.has("x/a"), state.has("x/b")),
                (vec!["fd00::1".into()], vec!["10.0.0.1".into(), "fd00::2".into()])
            );
            let holder = Holder::Pod(name("x/b"));
            let contest = Contest { address: "10.0.0.1".parse().unwrap(), holder, others: vec![name("x/a")] };
            assert_eq!(state.contests(), [contest]);
            state.apply(Event::DeletePod(name("x/b")));
            assert_eq!(state.has("x/a"), ["10.0.0.1", "fd00::1"]);
            assert!(state.contests().is_empty() && state.claims.short.is_empty());
        }
    }

    #[test]
    fn an_address_is_nobodys_where_it_cannot_be_told_whose_it_is_until_it_can() {
        let mut state = State::default();
        let same = [started("x/a", "10.0.0.1", 1), started("x/b", "10.0.0.1", 1), started("x/c", "10.0.0.2", 1)];
        same.into_iter().for_each(|object| state.apply(Event::Apply(object)));
        assert_eq!((state.has("x/a").len(), state.has("x/b").len(), state.has("x/c").len()), (0, 0, 1));
        assert_eq!(state.contests()[0].holder, Holder::Nobody);
        assert_eq!(state.contests()[0].others, [name("x/a"), name("x/b")]);
        // One of them ends.
        let Object::Pod(ended) = started("x/a", "10.0.0.1", 1) else { unreachable!() };
        state.apply(Event::Apply(Pod { finished: true, ..Arc::unwrap_or_clone(ended) }.into()));
        assert_eq!(state.has("x/b"), ["10.0.0.1"]);
        assert!(state.contests().is_empty());
    }

    #[test]
    fn the_pod_that_its_node_has_attached_last_has_the_address_though_the_object_of_another_one_runs() {
        let attached = |text: &str, number: u64| {
            let Object::Pod(pod) = started(text, "10.0.0.1", 1) else { unreachable!() };
            let lifetime = Lifetime { running: false, attached: Some(number), ..pod.lifetime };
            Event::Apply(Pod { lifetime, ..Arc::unwrap_or_clone(pod) }.into())
        };
        let mut state = State::default();
        // The container of x/old has ended and its address was reused. The object of x/old is late.
        state.apply(Event::Apply(started("x/old", "10.0.0.1", 9)));
        state.apply(attached("x/a", 1));
        assert_eq!((state.has("x/old").len(), state.has("x/a").len()), (0, 1));
        state.apply(attached("x/b", 2));
        assert_eq!((state.has("x/old").len(), state.has("x/a").len(), state.has("x/b").len()), (0, 0, 1));
        // A pod of another node: the owner is unknown.
        let Object::Pod(elsewhere) = started("x/c", "10.0.0.1", 1) else { unreachable!() };
        let running = Lifetime { running: true, ..elsewhere.lifetime };
        state.apply(Event::Apply(
            Pod { node: Some("m".into()), lifetime: running, ..Arc::unwrap_or_clone(elsewhere) }.into(),
        ));
        assert_eq!((state.has("x/b").len(), state.has("x/c").len()), (0, 0), "x/c beats x/b, and x/old x/c");
        state.apply(Event::DeletePod(name("x/c")));
        assert_eq!(state.has("x/b").len(), 1);
    }

    #[test]
    fn what_a_node_has_is_no_pods() {
        let mut state = State::default();
        state.apply(Event::Apply(started("x/a", "10.0.0.1", 1)));
        state.apply(Event::Apply(node("n", "10.0.0.1")));
        assert_eq!((state.has("x/a").len(), &state.contests()[0].holder), (0, &Holder::Node));
        state.apply(Event::Apply(node("m", "10.0.0.1")));
        state.apply(Event::DeleteNode("n".into()));
        assert!(state.has("x/a").is_empty());
        state.apply(Event::Apply(node("m", "10.0.0.2")));
        assert_eq!(state.has("x/a"), ["10.0.0.1"]);
        let Object::Pod(shares) = started("x/b", "10.0.0.1", 9) else { unreachable!() };
        state.apply(Event::Apply(Pod { host_network: true, ..Arc::unwrap_or_clone(shares) }.into()));
        assert_eq!((state.has("x/a").len(), state.has("x/b").len()), (0, 1));
        state.apply(Event::DeletePod(name("x/b")));
        assert_eq!(state.has("x/a"), ["10.0.0.1"]);
    }
}
