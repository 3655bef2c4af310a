//! Health of the connection to the API server.

use std::time::{Duration, Instant};

use super::kinds::{Kind, Purpose};

/// Health of the connection to the API server, as a snapshot.
#[derive(Clone, Debug)]
pub struct SourceHealth {
    /// Whether the server answers and all policy kinds are being watched.
    pub is_connected: bool,
    /// Time of the last change of `is_connected`.
    pub since: Instant,
    /// Whether the first lists of all policy kinds are complete. Without them there is no state.
    pub is_synced: bool,
    /// When all policy objects were last known to be current. `None` before the first time.
    pub last_contact: Option<Instant>,
    /// The last error about policy kinds that is not resolved yet. `None` without one.
    pub last_error: Option<String>,
    /// Health of the Services' watches. `None` if Services are not followed.
    pub services: Option<ServicesHealth>,
    /// The number of objects of each kind. `None` for a kind that the server does not have.
    pub objects: Vec<(Kind, Option<usize>)>,
    /// The number of completed lists.
    pub lists: u64,
    /// The number of failed lists and watches.
    pub failures: u64,
}

impl SourceHealth {
    /// Returns the greatest possible age of the policy objects. `None` before the first complete lists.
    pub fn age(&self) -> Option<Duration> {
        self.last_contact.map(|at| at.elapsed())
    }
}

/// Health of the watches of Services and endpoint slices.
#[derive(Clone, Debug)]
pub struct ServicesHealth {
    /// Whether both kinds are being watched.
    pub is_connected: bool,
    /// Whether the first lists of both kinds and of nodes are complete. Without them no Service can be resolved.
    pub is_listed: bool,
    /// When both kinds were last known to be current. `None` before the first time.
    pub last_contact: Option<Instant>,
    /// The last error about these kinds that is not resolved yet. `None` without one.
    pub last_error: Option<String>,
}

impl ServicesHealth {
    /// Returns the greatest possible age of the objects. `None` before the first complete lists.
    pub fn age(&self) -> Option<Duration> {
        self.last_contact.map(|at| at.elapsed())
    }
}

/// State of the watch of one kind, or of discovery.
#[derive(Clone, Debug, Default)]
struct Line {
    is_up: bool,
    contact: Option<Instant>,
    error: Option<String>,
}

/// Whether all watches of a purpose work, and since when.
#[derive(Clone, Copy, Debug)]
struct Standing {
    is_connected: bool,
    since: Instant,
}

/// State of all watches, as the tasks report it.
#[derive(Debug)]
pub(super) struct Lines {
    /// State of each kind's watch. `None` for a kind that is not followed.
    kinds: [Option<Line>; Kind::ALL.len()],
    discovery: Line,
    /// Whether the watches of each purpose work. Indexed by purpose.
    standings: [Standing; Purpose::ALL.len()],
    pub(super) lists: u64,
    pub(super) failures: u64,
}

impl Lines {
    pub(super) fn new(kinds: impl Iterator<Item = Kind>) -> Self {
        let mut lines = Self {
            kinds: Default::default(),
            discovery: Line::default(),
            standings: [Standing { is_connected: false, since: Instant::now() }; Purpose::ALL.len()],
            lists: 0,
            failures: 0,
        };
        for kind in kinds {
            lines.kinds[kind.index()] = Some(Line::default());
        }
        lines
    }

    /// Adds a kind that the server has. Returns true if everything of its purpose works again, as [`Self::up`].
    pub(super) fn expect(&mut self, kind: Kind) -> bool {
        self.kinds[kind.index()].get_or_insert_default();
        self.settle(kind.purpose())
    }

    /// Removes a kind that the server does not have. Returns true if everything of its purpose works again, as [`Self::up`].
    pub(super) fn forget(&mut self, kind: Kind) -> bool {
        self.kinds[kind.index()] = None;
        self.settle(kind.purpose())
    }

    fn line(&mut self, kind: Option<Kind>) -> &mut Line {
        match kind {
            Some(kind) => self.kinds[kind.index()].get_or_insert_default(),
            None => &mut self.discovery,
        }
    }

    /// Records a sign of life: of a kind, or of discovery if `kind` is `None`. Returns true if everything of the kind's purpose works
    /// again. Discovery counts for policy.
    pub(super) fn up(&mut self, kind: Option<Kind>) -> bool {
        let now = Instant::now();
        *self.line(kind) = Line { is_up: true, contact: Some(now), error: None };
        if kind.is_none() {
            // The server answers, so the objects of all running watches are current.
            self.kinds.iter_mut().flatten().filter(|line| line.is_up).for_each(|line| line.contact = Some(now));
        }
        self.settle(purpose_of(kind))
    }

    /// Records a failure: of a kind, or of discovery if `kind` is `None`.
    pub(super) fn down(&mut self, kind: Option<Kind>, error: Option<&str>) {
        let line = self.line(kind);
        line.is_up = false;
        if let Some(error) = error {
            line.error = Some(error.to_owned());
            self.failures += 1;
        }
        self.settle(purpose_of(kind));
    }

    /// Updates whether everything of the purpose works. Returns true if it works now and did not before.
    fn settle(&mut self, purpose: Purpose) -> bool {
        let is_connected = self.of(purpose).all(|line| line.is_up);
        let standing = &mut self.standings[purpose.index()];
        if is_connected != standing.is_connected {
            *standing = Standing { is_connected, since: Instant::now() };
            return is_connected;
        }
        false
    }

    fn of(&self, purpose: Purpose) -> impl Iterator<Item = &Line> {
        let kinds = Kind::ALL.into_iter().zip(&self.kinds).filter(move |(kind, _)| kind.purpose() == purpose);
        let discovery = (purpose == Purpose::Policy).then_some(&self.discovery);
        kinds.filter_map(|(_, line)| line.as_ref()).chain(discovery)
    }

    fn last_contact(&self, purpose: Purpose) -> Option<Instant> {
        self.of(purpose).map(|line| line.contact).min().flatten()
    }

    fn last_error(&self, purpose: Purpose) -> Option<String> {
        self.of(purpose).filter(|line| !line.is_up).find_map(|line| line.error.clone())
    }

    /// Composes the health. `is_known` returns whether the first lists of a purpose are complete.
    pub(super) fn health(
        &self,
        is_known: impl Fn(Purpose) -> bool,
        objects: Vec<(Kind, Option<usize>)>,
    ) -> SourceHealth {
        let [policy, services] = self.standings;
        SourceHealth {
            is_connected: policy.is_connected,
            since: policy.since,
            is_synced: is_known(Purpose::Policy),
            last_contact: self.last_contact(Purpose::Policy),
            last_error: self.last_error(Purpose::Policy),
            services: self.of(Purpose::Services).next().is_some().then(|| ServicesHealth {
                is_connected: services.is_connected,
                is_listed: is_known(Purpose::Services),
                last_contact: self.last_contact(Purpose::Services),
                last_error: self.last_error(Purpose::Services),
            }),
            objects,
            lists: self.lists,
            failures: self.failures,
        }
    }
}

/// Returns the purpose of a watch. Discovery (`None`) serves policy.
fn purpose_of(kind: Option<Kind>) -> Purpose {
    kind.map_or(Purpose::Policy, Kind::purpose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_that_is_not_heard_is_enough_and_the_oldest_contact_counts() {
        let mut lines = Lines::new([Kind::Pod, Kind::Node].into_iter());
        let health = |lines: &Lines| lines.health(|_| true, Vec::new());
        assert!(!health(&lines).is_connected && health(&lines).age().is_none());
        assert!(!lines.up(Some(Kind::Pod)) && !lines.up(None));
        assert!(lines.up(Some(Kind::Node)), "all that was missing");
        assert!(!lines.up(Some(Kind::Node)), "no news");
        let before = health(&lines).last_contact.unwrap();
        lines.down(Some(Kind::Pod), Some("away"));
        lines.down(Some(Kind::Pod), None);
        lines.up(None);
        let now = health(&lines);
        assert!(!now.is_connected && now.last_contact == Some(before));
        assert_eq!((now.last_error.as_deref(), now.failures), (Some("away"), 1));
        assert!(lines.up(Some(Kind::Pod)));
        assert_eq!(health(&lines).last_error, None);
    }
    #[test]
    fn services_that_are_not_heard_leave_policy_connected() {
        let mut lines = Lines::new([Kind::Pod, Kind::Service, Kind::EndpointSlice].into_iter());
        let health = |lines: &Lines| lines.health(|purpose| purpose == Purpose::Policy, Vec::new());
        assert!(!lines.up(Some(Kind::Pod)) && lines.up(None), "all that policy needs");
        assert!(!lines.up(Some(Kind::Service)), "half of what Services need");
        lines.down(Some(Kind::EndpointSlice), Some("forbidden"));
        let now = health(&lines);
        assert!(now.is_connected && now.is_synced && now.last_contact.is_some() && now.last_error.is_none(), "{now:?}");
        let services = now.services.unwrap();
        assert!(!services.is_connected && !services.is_listed && services.age().is_none(), "{services:?}");
        assert_eq!(services.last_error.as_deref(), Some("forbidden"));
        assert!(lines.up(Some(Kind::EndpointSlice)), "now both");
        lines.down(Some(Kind::Pod), Some("away"));
        let now = health(&lines);
        assert!(!now.is_connected && now.services.unwrap().is_connected);
        assert!(Lines::new([Kind::Pod].into_iter()).health(|_| true, Vec::new()).services.is_none());
    }
}
