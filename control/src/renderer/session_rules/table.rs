//! Bulkhead's own session table, in memory, with the interface of a host stack.
//!
//! As a [`SessionTarget`], it is changed by requests, refuses contradictory ones, and can be dumped. Packets are looked up in a compiled
//! form ([`super::lower`]). [`SessionTable::lookup`] is the slow reference for that form.
//!
//! **Invariant.** The table holds the result of all accepted requests, whatever their sender. So a restarted renderer resumes from a dump.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_classifier::Action;

use super::{
    SessionMatch, SessionRequest, SessionRule, SessionScope, SessionSide, SessionTarget, SessionTransport, TAG,
    TaggedRule, TargetError,
};
use crate::object::PodName;

/// Maximum number of recorded requests per scope. With more, as at the start, reading all rules of the scope is faster.
const MOST_REMEMBERED: usize = 1_024;

/// The changes of the session rules of one scope.
#[derive(Clone, Debug)]
pub(super) enum ScopeChange {
    /// These requests were executed, in order.
    Requests(Vec<SessionRequest>),
    /// More requests were executed than are recorded.
    Many,
}

impl Default for ScopeChange {
    fn default() -> Self {
        Self::Requests(Vec::new())
    }
}

impl ScopeChange {
    pub(super) fn append(&mut self, later: Self) {
        match later {
            Self::Requests(requests) => requests.into_iter().for_each(|request| self.add(request)),
            Self::Many => *self = Self::Many,
        }
    }

    fn add(&mut self, request: SessionRequest) {
        match self {
            Self::Requests(requests) if requests.len() < MOST_REMEMBERED => requests.push(request),
            _ => *self = Self::Many,
        }
    }
}

/// A session table in memory, in place of a host stack's.
#[derive(Clone, Debug, Default)]
pub struct SessionTable {
    rules: BTreeMap<SessionScope, BTreeMap<SessionMatch, Action>>,
    /// The application namespace of each attached pod. Numbers are never reused.
    namespaces: BTreeMap<PodName, u32>,
    last_namespace: u32,
    /// The changes since the last [`SessionTable::take_changed`].
    changed: BTreeMap<SessionScope, ScopeChange>,
    requests: u64,
}

impl SessionTable {
    /// Assigns an application namespace to the pod, unless it has one.
    pub fn attach(&mut self, pod: &PodName) {
        if !self.namespaces.contains_key(pod) {
            self.last_namespace += 1;
            self.namespaces.insert(pod.clone(), self.last_namespace);
        }
    }

    /// Removes the namespaces of all pods for which `is_kept` returns false.
    pub fn retain(&mut self, is_kept: impl Fn(&PodName) -> bool) {
        self.namespaces.retain(|pod, _| is_kept(pod));
    }

    /// Returns the number of executed requests: dumps, pings, and each added or deleted rule.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.values().map(BTreeMap::len).sum()
    }

    /// Whether the table has no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns all rules, by scope.
    pub fn rules(&self) -> impl Iterator<Item = SessionRule> + '_ {
        self.rules.values().flatten().map(|(&matches, &action)| SessionRule { matches, action })
    }

    pub(super) fn of_scope(&self, scope: SessionScope) -> impl Iterator<Item = SessionRule> + '_ {
        let rules = self.rules.get(&scope).into_iter().flatten();
        rules.map(|(&matches, &action)| SessionRule { matches, action })
    }

    /// Returns the changes since the last call, by scope.
    pub(super) fn take_changed(&mut self) -> BTreeMap<SessionScope, ScopeChange> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the verdict for a connection. Of the matching rules, the one with the longest remote prefix decides, then the longest local
    /// prefix, then the one with a port. Without a match, the connection is allowed. Searches all rules of the scope.
    pub fn lookup(
        &self,
        scope: SessionScope,
        transport: SessionTransport,
        local: (IpAddr, u16),
        remote: (IpAddr, u16),
    ) -> Action {
        let has = |side: &SessionSide, (address, port): (IpAddr, u16)| {
            side.network.contains(&address) && (side.port == 0 || side.port == port)
        };
        let matching = self.of_scope(scope).filter(|rule| {
            let SessionMatch { transport: of, local: here, remote: there, .. } = &rule.matches;
            *of == transport && has(here, local) && has(there, remote)
        });
        let specific = |rule: &SessionRule| {
            let SessionMatch { local, remote, .. } = &rule.matches;
            (remote.network.prefix_len(), local.network.prefix_len(), local.port != 0 || remote.port != 0)
        };
        matching.max_by_key(specific).map_or(Action::Allow, |rule| rule.action)
    }

    fn serve(&mut self, request: &SessionRequest) -> Result<(), TargetError> {
        self.requests += 1;
        let (SessionRequest::Add(rule) | SessionRequest::Delete(rule)) = request;
        let SessionRule { matches, action } = *rule;
        let scope = matches.scope;
        let rules = self.rules.entry(scope).or_default();
        let served = match request {
            SessionRequest::Add(_) if rules.contains_key(&matches) => Err("there is a rule with this match"),
            SessionRequest::Add(_) => {
                rules.insert(matches, action);
                Ok(())
            }
            SessionRequest::Delete(_) if rules.get(&matches) != Some(&action) => Err("there is no such rule"),
            SessionRequest::Delete(_) => {
                rules.remove(&matches);
                Ok(())
            }
        };
        if rules.is_empty() {
            self.rules.remove(&scope);
        }
        if served.is_ok() {
            self.changed.entry(scope).or_default().add(*request);
        }
        served.map_err(|why| TargetError(format!("{rule}: {why}")))
    }
}

impl SessionTarget for SessionTable {
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError> {
        self.requests += 1;
        Ok(self.rules().map(|rule| TaggedRule { rule, tag: TAG.to_owned() }).collect())
    }

    fn ping(&mut self) -> Result<(), TargetError> {
        self.requests += 1;
        Ok(())
    }

    fn change(&mut self, requests: &[SessionRequest]) -> Result<(), TargetError> {
        requests.iter().try_for_each(|request| self.serve(request))
    }

    fn namespace(&self, pod: &PodName) -> Option<u32> {
        self.namespaces.get(pod).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: SessionScope = SessionScope::Local { namespace: 1 };

    fn rule(action: Action, remote: &str, port: u16) -> SessionRule {
        let local = SessionSide { network: "0.0.0.0/0".parse().unwrap(), port: 0 };
        let remote = SessionSide { network: remote.parse().unwrap(), port };
        let transport = SessionTransport::Tcp;
        SessionRule { matches: SessionMatch { scope: SCOPE, transport, local, remote }, action }
    }

    fn verdict(table: &SessionTable, remote: &str, port: u16) -> Action {
        let local = ("10.0.0.1".parse().unwrap(), 40_000);
        table.lookup(SCOPE, SessionTransport::Tcp, local, (remote.parse().unwrap(), port))
    }

    #[test]
    fn the_longest_remote_prefix_decides_then_a_port_and_without_a_rule_a_connection_is_allowed() {
        let mut table = SessionTable::default();
        let rules = [
            rule(Action::Deny, "0.0.0.0/1", 0),
            rule(Action::Allow, "10.0.0.0/8", 0),
            rule(Action::Deny, "10.0.0.0/8", 25),
            rule(Action::Allow, "10.1.0.0/16", 25),
        ];
        table.change(&rules.map(SessionRequest::Add)).unwrap();
        assert_eq!(verdict(&table, "11.0.0.1", 80), Action::Deny);
        assert_eq!(verdict(&table, "10.0.0.1", 80), Action::Allow);
        assert_eq!(verdict(&table, "10.0.0.1", 25), Action::Deny);
        assert_eq!(verdict(&table, "10.1.0.1", 25), Action::Allow);
        assert_eq!(verdict(&table, "200.0.0.1", 80), Action::Allow);
    }

    #[test]
    fn what_contradicts_the_table_is_refused_and_changes_nothing() {
        let mut table = SessionTable::default();
        let there = rule(Action::Deny, "10.0.0.0/8", 0);
        table.change(&[SessionRequest::Add(there)]).unwrap();
        let other = SessionRule { action: Action::Allow, ..there };
        let again = table.change(&[SessionRequest::Add(other)]).unwrap_err();
        assert_eq!(again.to_string(), "allow local:1 TCP 0.0.0.0/0:0 <- 10.0.0.0/8:0: there is a rule with this match");
        table.change(&[SessionRequest::Delete(other)]).unwrap_err();
        assert_eq!((table.len(), verdict(&table, "10.0.0.1", 80)), (1, Action::Deny));
        table.change(&[SessionRequest::Delete(there)]).unwrap();
        assert!(table.is_empty());
    }

    #[test]
    fn a_namespace_stays_its_pods_and_is_never_anothers() {
        let (mut table, [a, b]) = (SessionTable::default(), ["a", "b"].map(|name| PodName::new("x", name)));
        table.attach(&a);
        table.attach(&b);
        table.attach(&a);
        assert_eq!((table.namespace(&a), table.namespace(&b)), (Some(1), Some(2)));
        table.retain(|pod| *pod == a);
        table.attach(&b);
        assert_eq!((table.namespace(&a), table.namespace(&b)), (Some(1), Some(3)));
    }
}
