//! Questions to the policy thread: which pod has an address, which addresses a selector means, what Services do with a connection.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use bulkhead_control::object::PodName;
use bulkhead_observe::admin::{Enforcement, PolicyQuestion};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::end_facts::EndFacts;
use super::state::{Asked, LiveState, Translations};
use super::stream::Selector;

/// Asks the thread what the state says. Each answer is an error when the thread is busy for longer than `patience`.
#[derive(Clone)]
pub(crate) struct Names(Sender<Lookup>);

impl Names {
    /// For a thread that has a state, and where it is asked.
    pub(crate) fn new() -> (Self, Receiver<Lookup>) {
        let (ask, lookups) = crossbeam_channel::unbounded();
        (Self(ask), lookups)
    }

    /// The addresses of a pod, none when the state has no such pod.
    pub(crate) fn addresses(&self, pod: &PodName, patience: Duration) -> Result<Option<Vec<IpAddr>>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Pod(pod.clone(), reply))
    }

    /// Whose these addresses are, in their order; see [`LiveState::owners_of`].
    pub(crate) fn owners(&self, addresses: Vec<IpAddr>, patience: Duration) -> Result<Vec<String>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Owners(addresses, reply))
    }

    /// What Services make of connections; see [`LiveState::translations`].
    pub(crate) fn translations(&self, asked: Asked, patience: Duration) -> Result<Translations, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Services(asked, reply))
    }

    /// What the state says of addresses, in their order.
    pub(crate) fn ends(&self, addresses: Vec<IpAddr>, patience: Duration) -> Result<Vec<EndFacts>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Ends(addresses, reply))
    }

    /// The addresses of the pods that are selected.
    pub(crate) fn selected(&self, selector: Selector, patience: Duration) -> Result<HashSet<IpAddr>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Selected(selector, reply))
    }

    /// What the state says of a policy; see [`LiveState::enforcement`]. What it knows is published by then, or refused.
    pub(crate) fn enforcement(
        &self,
        asked: PolicyQuestion,
        patience: Duration,
    ) -> Result<Enforcement, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Policy(asked, reply))
    }

    fn ask<T>(&self, patience: Duration, lookup: impl FnOnce(Sender<T>) -> Lookup) -> Result<T, RecvTimeoutError> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        // An error means that it is dead: then nobody answers.
        let _ = self.0.send(lookup(reply));
        answer.recv_timeout(patience)
    }
}

/// See [`Names`].
pub(crate) enum Lookup {
    Pod(PodName, Sender<Option<Vec<IpAddr>>>),
    Services(Asked, Sender<Translations>),
    Owners(Vec<IpAddr>, Sender<Vec<String>>),
    Ends(Vec<IpAddr>, Sender<Vec<EndFacts>>),
    Selected(Selector, Sender<HashSet<IpAddr>>),
    Policy(PolicyQuestion, Sender<Enforcement>),
}

impl Lookup {
    /// Answers from the state. Whoever has asked may have given up.
    pub(crate) fn answer(self, state: &LiveState) {
        match self {
            Self::Pod(pod, reply) => drop(reply.send(state.addresses_of(&pod))),
            Self::Services(asked, reply) => drop(reply.send(state.translations(&asked))),
            Self::Owners(addresses, reply) => drop(reply.send(state.owners_of(&addresses))),
            Self::Ends(addresses, reply) => {
                let facts = addresses.into_iter().map(|address| state.end_at(address));
                drop(reply.send(facts.collect()));
            }
            Self::Selected(selector, reply) => drop(reply.send(state.addresses_selected(&selector))),
            Self::Policy(asked, reply) => drop(reply.send(state.enforcement(&asked))),
        }
    }
}
