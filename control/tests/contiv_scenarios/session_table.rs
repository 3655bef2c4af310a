//! A stack's session table in memory, which counts requests.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bulkhead_classifier::Action;
use bulkhead_control::object::PodName;
use bulkhead_control::renderer::session_rules::{
    BATCH, SessionMatch, SessionRequest, SessionRule, SessionScope, SessionSide, SessionTarget, SessionTransport, TAG,
    TaggedRule, TargetError,
};

#[derive(Default)]
struct State {
    rules: BTreeMap<SessionMatch, (Action, String)>,
    namespaces: BTreeMap<PodName, u32>,
    without: Vec<PodName>,
    requests: usize,
    /// The number of requests that will still succeed. `None` if all will.
    working: Option<usize>,
}

impl State {
    fn request(&mut self) -> Result<(), TargetError> {
        if self.working == Some(0) {
            return Err(TargetError("the stack is gone".into()));
        }
        self.working = self.working.map(|left| left - 1);
        self.requests += 1;
        Ok(())
    }

    fn serve(&mut self, request: &SessionRequest) -> Result<(), TargetError> {
        self.request()?;
        match request {
            SessionRequest::Add(SessionRule { matches, action }) => {
                let known = self.rules.insert(*matches, (*action, TAG.into()));
                assert_eq!(known, None, "a rule with this match is there");
            }
            SessionRequest::Delete(SessionRule { matches, action }) => {
                let gone = self.rules.remove(matches);
                assert_eq!(gone, Some((*action, TAG.into())), "the rule is there, and ours");
            }
        }
        Ok(())
    }
}

/// A session table. Clones share its state.
#[derive(Clone, Default)]
pub(crate) struct SessionTable(Arc<Mutex<State>>);

impl SessionTable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.state().requests
    }

    /// The renderer's rules as text, sorted.
    pub(crate) fn rules(&self) -> Vec<String> {
        let state = self.state();
        let ours = state.rules.iter().filter(|(_, (_, tag))| tag == TAG);
        let mut rules: Vec<_> =
            ours.map(|(&matches, &(action, _))| SessionRule { matches, action }.to_string()).collect();
        rules.sort();
        rules
    }

    /// Adds a rule with a foreign tag.
    pub(crate) fn add_foreign(&self, rule: SessionRule) {
        self.state().rules.insert(rule.matches, (rule.action, "proxy".into()));
    }

    /// The number of rules with a foreign tag.
    pub(crate) fn foreign(&self) -> usize {
        self.state().rules.values().filter(|(_, tag)| tag != TAG).count()
    }

    /// Makes all requests fail after this number of them. `None` ends the failures.
    pub(crate) fn fail_after(&self, requests: Option<usize>) {
        self.state().working = requests;
    }

    pub(crate) fn set_application(&self, pod: &PodName, there: bool) {
        self.state().without.retain(|name| name != pod);
        if !there {
            self.state().without.push(pod.clone());
        }
    }

    /// The verdict for a connection that a pod's application opens or, without a pod, for one from outside.
    pub(crate) fn verdict(
        &self,
        opener: Option<&PodName>,
        src: IpAddr,
        dst: IpAddr,
        transport: SessionTransport,
        port: u16,
    ) -> Action {
        let (scope, local, remote) = match opener {
            Some(pod) => {
                let Some(namespace) = self.namespace(pod) else { return Action::Allow };
                (SessionScope::Local { namespace }, (src, 40_000), (dst, port))
            }
            None => (SessionScope::Global, (dst, port), (src, 40_000)),
        };
        let state = self.state();
        let side = |side: &SessionSide, (address, port): (IpAddr, u16)| {
            side.network.contains(&address) && (side.port == 0 || side.port == port)
        };
        let matching = state.rules.iter().filter(|(matches, _)| {
            matches.scope == scope
                && matches.transport == transport
                && side(&matches.local, local)
                && side(&matches.remote, remote)
        });
        let specific = |matches: &SessionMatch| {
            let length = |side: &SessionSide| side.network.prefix_len();
            (length(&matches.remote), length(&matches.local), matches.local.port != 0 || matches.remote.port != 0)
        };
        matching.max_by_key(|(matches, _)| specific(matches)).map_or(Action::Allow, |(_, (action, _))| *action)
    }
}

impl SessionTarget for SessionTable {
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError> {
        let mut state = self.state();
        state.request()?;
        let rules = state.rules.iter();
        Ok(rules
            .map(|(&matches, (action, tag))| TaggedRule {
                rule: SessionRule { matches, action: *action },
                tag: tag.clone(),
            })
            .collect())
    }

    fn ping(&mut self) -> Result<(), TargetError> {
        self.state().request()
    }

    fn change(&mut self, requests: &[SessionRequest]) -> Result<(), TargetError> {
        assert!((1..=BATCH).contains(&requests.len()), "a batch of {}", requests.len());
        let mut state = self.state();
        requests.iter().try_for_each(|request| state.serve(request))
    }

    fn namespace(&self, pod: &PodName) -> Option<u32> {
        let mut state = self.state();
        if state.without.contains(pod) {
            return None;
        }
        let next = u32::try_from(state.namespaces.len() + 1).unwrap();
        Some(*state.namespaces.entry(pod.clone()).or_insert(next))
    }
}
