//! The session renderer computes the target's desired session rules and sends the requests that establish them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, OriginId, PortRange, Service};
use ipnet::IpNet;

use super::encode::{Difference, Encoded, Pair, SessionRules, difference, encode, requests_between};
use super::{
    BATCH, MAX_RULES, SessionError, SessionMatch, SessionRequest, SessionRule, SessionScope, SessionTarget, TAG,
};
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::contiv::Orientation;
use crate::renderer::contiv::list::PeerRule;
use crate::renderer::contiv::renderer::{ContivRenderer, PublishedTuples, TupleTables};
use crate::renderer::contiv::table::Table;
use crate::renderer::{BoxError, Refusal, Renderer, Transaction};

/// The session rules of a scope, as the target has them.
#[derive(Debug, Default)]
struct Installed {
    /// The table and the pod's own addresses from which the rules were encoded. `None` after a dump.
    source: Option<(Arc<Table>, Vec<IpAddr>)>,
    rules: SessionRules,
    /// See [`Encoded::wide`].
    wide: BTreeSet<Pair>,
}

/// What a transaction does to the installed rules of a scope.
#[derive(Debug)]
enum Next {
    /// Keeps the installed rules.
    Kept,
    /// Changes the installed rules by these requests.
    Changed { source: (Arc<Table>, Vec<IpAddr>), requests: Vec<SessionRequest>, widths: Vec<(Pair, bool)> },
    /// Replaces the installed rules with newly encoded ones.
    New(Installed),
}

impl Installed {
    /// Applies requests. Those that delete a match precede the one that adds it.
    fn apply(&mut self, requests: &[SessionRequest]) {
        for request in requests {
            match request {
                SessionRequest::Add(rule) => drop(self.rules.insert(rule.matches, rule.action)),
                SessionRequest::Delete(rule) => drop(self.rules.remove(&rule.matches)),
            }
        }
    }
}

/// A session rule with its origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributedRule {
    /// The rule.
    pub rule: SessionRule,
    /// The pod whose connections the rule judges. `None` for a rule of scope global.
    pub pod: Option<PodName>,
    /// The origins of the policy rules behind it, without duplicates. Empty if rules for longer prefixes cover all of its traffic.
    pub origins: Vec<OriginId>,
}

/// The renderer of a node's session rules.
#[derive(Debug)]
pub struct SessionRenderer<T> {
    node: Arc<str>,
    target: T,
    limit: usize,
    tuples: ContivRenderer,
    published: PublishedTuples,
    /// The target's rules by scope. `None` if unknown: before the first dump, and after an error of the target.
    installed: Option<BTreeMap<SessionScope, Installed>>,
}

impl<T: SessionTarget> SessionRenderer<T> {
    /// Creates a renderer of the pods of `node`. The first transaction starts with a dump.
    pub fn new(node: Arc<str>, target: T) -> Self {
        Self::with_limit(node, target, MAX_RULES)
    }

    /// Creates a renderer that refuses more than `limit` session rules ([`MAX_RULES`]).
    pub fn with_limit(node: Arc<str>, target: T, limit: usize) -> Self {
        let published = PublishedTuples::default();
        let tuples = ContivRenderer::new(node.clone(), Orientation::Ingress, published.clone());
        Self { node, target, limit, tuples, published, installed: None }
    }

    /// Returns the target of the rules.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Returns the target, mutable, for its owner.
    pub(super) const fn target_mut(&mut self) -> &mut T {
        &mut self.target
    }

    /// Returns the renderer of the 6-tuples that the rules are encoded from.
    pub(super) const fn tuples(&self) -> &ContivRenderer {
        &self.tuples
    }

    /// Returns the 6-tuples that the rules are encoded from. `None` before the first transaction.
    pub(super) fn published(&self) -> Option<Arc<TupleTables>> {
        self.published.latest()
    }

    /// Returns the target's rules with their origins, by scope. Empty while the target's rules are unknown.
    pub fn rules(&self) -> Vec<AttributedRule> {
        let (Some(installed), Some(tables)) = (&self.installed, self.published.latest()) else { return Vec::new() };
        let pods: BTreeMap<u32, &PodName> =
            tables.locals.keys().filter_map(|pod| Some((self.target.namespace(pod)?, pod))).collect();
        let behind = self.tuples.behind();
        let attributed = |(&matches, &action): (&SessionMatch, &Action)| {
            let SessionMatch { scope, transport, local, remote } = matches;
            let port = if scope == SessionScope::Global { local.port } else { remote.port };
            let ports = if port == 0 { PortRange::ALL } else { PortRange::one(port) };
            let service = Some(Service { protocols: (transport.number(), transport.number()), ports });
            let about = PeerRule { peer: Some(remote.network), service, action };
            let pod = match scope {
                SessionScope::Global => None,
                SessionScope::Local { namespace } => pods.get(&namespace).copied(),
            };
            let origins = match pod {
                Some(pod) if self.is_own(pod, remote.network) => vec![Origins::OWN_POD],
                Some(pod) => behind.both(pod, Direction::Egress, &about),
                None => behind.one(local.network.addr(), Direction::Ingress, &about),
            };
            let origins: BTreeSet<OriginId> = origins.into_iter().collect();
            AttributedRule {
                rule: SessionRule { matches, action },
                pod: pod.cloned(),
                origins: origins.into_iter().collect(),
            }
        };
        installed.values().flat_map(|installed| &installed.rules).map(attributed).collect()
    }

    fn is_own(&self, pod: &PodName, network: IpNet) -> bool {
        let pod = self.tuples.pods().get(pod);
        pod.is_some_and(|pod| pod.addresses.iter().any(|&own| IpNet::from(own) == network))
    }

    /// Updates the target to these tables. Checks all tables, because a change of one pod may affect others.
    fn follow(&mut self, tables: &TupleTables) -> Result<(), SessionError> {
        let mut installed = match self.installed.take() {
            Some(installed) => installed,
            None => self.dump()?,
        };
        let next = match self.next(tables, &installed) {
            Ok(next) => next,
            Err(error) => {
                self.installed = Some(installed);
                return Err(error);
            }
        };
        let none = SessionRules::new();
        let mut requests = Vec::new();
        for (scope, next) in &next {
            let old = installed.get(scope).map_or(&none, |old| &old.rules);
            match next {
                Next::Kept => {}
                Next::Changed { requests: of_scope, .. } => requests.extend_from_slice(of_scope),
                Next::New(new) => requests.extend(requests_between(old, &new.rules)),
            }
        }
        for (_, gone) in installed.iter().filter(|(scope, _)| !next.contains_key(scope)) {
            requests.extend(requests_between(&gone.rules, &none));
        }
        requests.sort_by_key(order);
        for batch in requests.chunks(BATCH) {
            self.target.change(batch)?;
        }
        installed.retain(|scope, _| next.contains_key(scope));
        for (scope, next) in next {
            match next {
                Next::Kept => {}
                Next::Changed { source, requests, widths } => {
                    let known = installed.entry(scope).or_default();
                    known.apply(&requests);
                    known.source = Some(source);
                    for (pair, is_wide) in widths {
                        if is_wide {
                            known.wide.insert(pair)
                        } else {
                            known.wide.remove(&pair)
                        };
                    }
                }
                Next::New(new) => drop(installed.insert(scope, new)),
            }
        }
        self.installed = Some(installed);
        Ok(())
    }

    /// Returns the desired scopes, each with its next rules.
    fn next(
        &self,
        tables: &TupleTables,
        installed: &BTreeMap<SessionScope, Installed>,
    ) -> Result<BTreeMap<SessionScope, Next>, SessionError> {
        let mut owners: BTreeMap<u32, &PodName> = BTreeMap::new();
        let mut sources = vec![(SessionScope::Global, &tables.global, Vec::new())];
        for (pod, table) in &tables.locals {
            let Some(namespace) = self.target.namespace(pod) else { continue };
            if let Some(other) = owners.insert(namespace, pod) {
                return Err(SessionError::SharedNamespace(other.clone(), pod.clone(), namespace));
            }
            let own = self.tuples.pods().get(pod).map(|config| config.addresses.clone()).unwrap_or_default();
            sources.push((SessionScope::Local { namespace }, table, own));
        }
        let mut all = BTreeMap::new();
        let mut left = self.limit;
        for (scope, table, own) in sources {
            let known = installed.get(&scope);
            let (next, size) = match known.and_then(|known| Self::changed(scope, known, table, &own)) {
                Some(known) => known,
                None => {
                    let Encoded { rules, wide } = encode(scope, &table.rules, &own, left)
                        .ok_or(SessionError::TooManyRules { limit: self.limit })?;
                    let size = rules.len();
                    (Next::New(Installed { source: Some((table.clone(), own)), rules, wide }), size)
                }
            };
            left = left.checked_sub(size).ok_or(SessionError::TooManyRules { limit: self.limit })?;
            all.insert(scope, next);
        }
        Ok(all)
    }

    /// Returns the next rules of a scope whose table is known, and their number. `None` if the whole table must be encoded.
    fn changed(scope: SessionScope, known: &Installed, table: &Arc<Table>, own: &[IpAddr]) -> Option<(Next, usize)> {
        let (old, _) = known.source.as_ref().filter(|(_, addresses)| *addresses == own)?;
        if Arc::ptr_eq(old, table) {
            return Some((Next::Kept, known.rules.len()));
        }
        let Difference { requests, widths } = difference(scope, (&old.rules, &table.rules), own, &known.wide)?;
        let added = requests.iter().filter(|request| matches!(request, SessionRequest::Add(_))).count();
        let size = known.rules.len() + added - (requests.len() - added);
        Some((Next::Changed { source: (table.clone(), own.to_vec()), requests, widths }, size))
    }

    fn dump(&mut self) -> Result<BTreeMap<SessionScope, Installed>, SessionError> {
        let found = self.target.dump()?;
        self.target.ping()?;
        let mut installed: BTreeMap<_, Installed> = BTreeMap::new();
        for found in found.into_iter().filter(|found| found.tag == TAG) {
            let SessionRule { matches, action } = found.rule;
            installed.entry(matches.scope).or_default().rules.insert(matches, action);
        }
        Ok(installed)
    }
}

/// Returns the order of requests: delete allows, add denies, delete denies, add allows. In between, only traffic passes that the old or the
/// new rules allow. A match whose action changes is deleted before it is added.
const fn order(request: &SessionRequest) -> u8 {
    match request {
        SessionRequest::Delete(SessionRule { action: Action::Allow, .. }) => 0,
        SessionRequest::Add(SessionRule { action: Action::Deny, .. }) => 1,
        SessionRequest::Delete(SessionRule { action: Action::Deny, .. }) => 2,
        SessionRequest::Add(SessionRule { action: Action::Allow, .. }) => 3,
    }
}

impl<T: SessionTarget + Send + 'static> Renderer for SessionRenderer<T> {
    fn name(&self) -> String {
        format!("session rules of node {}", self.node)
    }

    /// Fails with a [`SessionError`], or with [`TooManyTuples`](crate::renderer::contiv::TooManyTuples) if the rules do not fit into
    /// 6-tuples.
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        if transaction.resync {
            // A resync means that the known state is not trusted.
            self.installed = None;
        }
        self.tuples.render(transaction)?;
        let Some(tables) = self.published.latest() else { return Ok(()) };
        Ok(self.follow(&tables)?)
    }

    fn origins(&self) -> HashSet<OriginId> {
        self.tuples.origins()
    }

    fn refusals(&self) -> Vec<Refusal> {
        self.tuples.refusals()
    }
}
