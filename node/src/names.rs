//! Queries to the policy thread: the pod of an address, the addresses that a selector matches, the translation of a connection by Services.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use bulkhead_answers::args::EndName;
use bulkhead_answers::named::Unknown;
use bulkhead_observe::admin::{Enforcement, PolicyQuestion};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::end_facts::EndFacts;
use super::state::{Asked, LiveState, Translations};
use super::stream::Selector;

/// A client of the policy thread. Each query returns an error if the thread does not answer within `patience`.
#[derive(Clone)]
pub(crate) struct Names(Sender<Lookup>);

impl Names {
    /// Creates a client, and the receiver on which the policy thread gets its queries.
    pub(crate) fn new() -> (Self, Receiver<Lookup>) {
        let (ask, lookups) = crossbeam_channel::unbounded();
        (Self(ask), lookups)
    }

    /// Returns the addresses of each pod that a name means, or those of its node, or why the state has none.
    pub(crate) fn addresses(
        &self,
        name: &EndName,
        patience: Duration,
    ) -> Result<Result<Vec<Vec<IpAddr>>, Unknown>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Named(name.clone(), reply))
    }

    /// Returns the owner of each address, in the same order; see [`LiveState::owners_of`].
    pub(crate) fn owners(&self, addresses: Vec<IpAddr>, patience: Duration) -> Result<Vec<String>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Owners(addresses, reply))
    }

    /// Returns how Services translate connections; see [`LiveState::translations`].
    pub(crate) fn translations(&self, asked: Asked, patience: Duration) -> Result<Translations, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Services(asked, reply))
    }

    /// Returns the state's facts about each address, in the same order.
    pub(crate) fn ends(&self, addresses: Vec<IpAddr>, patience: Duration) -> Result<Vec<EndFacts>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Ends(addresses, reply))
    }

    /// Returns the parts of the selector that select no pod, node or address; see [`LiveState::selecting_nobody`].
    pub(crate) fn nobody(&self, selector: Selector, patience: Duration) -> Result<Vec<String>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Nobody(selector, reply))
    }

    /// Returns the selected addresses; see [`LiveState::addresses_selected`].
    pub(crate) fn selected(&self, selector: Selector, patience: Duration) -> Result<HashSet<IpAddr>, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Selected(selector, reply))
    }

    /// Returns how a policy is enforced; see [`LiveState::enforcement`]. The thread tries to publish its pending state before it answers.
    pub(crate) fn enforcement(
        &self,
        asked: PolicyQuestion,
        patience: Duration,
    ) -> Result<Enforcement, RecvTimeoutError> {
        self.ask(patience, |reply| Lookup::Policy(asked, reply))
    }

    fn ask<T>(&self, patience: Duration, lookup: impl FnOnce(Sender<T>) -> Lookup) -> Result<T, RecvTimeoutError> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        // Fails only if the thread is dead; then no answer arrives.
        let _ = self.0.send(lookup(reply));
        answer.recv_timeout(patience)
    }
}

/// A query of [`Names`] to the policy thread, with the channel for its answer.
pub(crate) enum Lookup {
    Named(EndName, Sender<Result<Vec<Vec<IpAddr>>, Unknown>>),
    Services(Asked, Sender<Translations>),
    Owners(Vec<IpAddr>, Sender<Vec<String>>),
    Ends(Vec<IpAddr>, Sender<Vec<EndFacts>>),
    Selected(Selector, Sender<HashSet<IpAddr>>),
    Nobody(Selector, Sender<Vec<String>>),
    Policy(PolicyQuestion, Sender<Enforcement>),
}

impl Lookup {
    /// Answers from the state. Ignores a client that no longer waits.
    pub(crate) fn answer(self, state: &LiveState) {
        match self {
            Self::Named(name, reply) => drop(reply.send(state.addresses_of(&name))),
            Self::Services(asked, reply) => drop(reply.send(state.translations(&asked))),
            Self::Owners(addresses, reply) => drop(reply.send(state.owners_of(&addresses))),
            Self::Ends(addresses, reply) => {
                let facts = addresses.into_iter().map(|address| state.end_at(address));
                drop(reply.send(facts.collect()));
            }
            Self::Selected(selector, reply) => drop(reply.send(state.addresses_selected(&selector))),
            Self::Nobody(selector, reply) => drop(reply.send(state.selecting_nobody(&selector))),
            Self::Policy(asked, reply) => drop(reply.send(state.enforcement(&asked))),
        }
    }
}
