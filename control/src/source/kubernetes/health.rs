//! How well the server is heard.

use std::time::{Duration, Instant};

use super::kinds::Kind;

/// How well the server is heard. A copy: it does not change.
#[derive(Clone, Debug)]
pub struct SourceHealth {
    /// Whether all kinds are being watched and the server answers.
    pub is_connected: bool,
    /// Since when that is so.
    pub since: Instant,
    /// Whether the first lists of all kinds are whole. Before that there is no state.
    pub is_synced: bool,
    /// When everything that was known was last known to be what the server has; none before it ever was.
    pub last_contact: Option<Instant>,
    /// What went wrong last, of what still does.
    pub last_error: Option<String>,
    /// How many objects there are of each kind; none of one that the server does not have.
    pub objects: Vec<(Kind, Option<usize>)>,
    /// How many lists were read to the end.
    pub lists: u64,
    /// How many lists and watches have failed.
    pub failures: u64,
}

impl SourceHealth {
    /// How old what is known may be.
    pub fn age(&self) -> Option<Duration> {
        self.last_contact.map(|at| at.elapsed())
    }
}

/// What is heard of one kind.
#[derive(Clone, Debug, Default)]
struct Line {
    is_up: bool,
    contact: Option<Instant>,
    error: Option<String>,
}

/// What the tasks say about their connections.
#[derive(Debug)]
pub(super) struct Lines {
    /// None of a kind that is not followed.
    kinds: [Option<Line>; Kind::ALL.len()],
    discovery: Line,
    was_connected: bool,
    since: Instant,
    pub(super) lists: u64,
    pub(super) failures: u64,
}

impl Lines {
    pub(super) fn new(kinds: impl Iterator<Item = Kind>) -> Self {
        let mut lines = Self {
            kinds: Default::default(),
            discovery: Line::default(),
            was_connected: false,
            since: Instant::now(),
            lists: 0,
            failures: 0,
        };
        for kind in kinds {
            lines.kinds[kind.index()] = Some(Line::default());
        }
        lines
    }

    /// The server has the kind: it is to be heard of. Returns as [`Self::up`].
    pub(super) fn expect(&mut self, kind: Kind) -> bool {
        self.kinds[kind.index()].get_or_insert_default();
        self.settle()
    }

    /// The server does not have the kind. Returns as [`Self::up`].
    pub(super) fn forget(&mut self, kind: Kind) -> bool {
        self.kinds[kind.index()] = None;
        self.settle()
    }

    fn line(&mut self, kind: Option<Kind>) -> &mut Line {
        match kind {
            Some(kind) => self.kinds[kind.index()].get_or_insert_default(),
            None => &mut self.discovery,
        }
    }

    /// The server has spoken of a kind, or of which kinds there are. Returns whether everything works again that did not.
    pub(super) fn up(&mut self, kind: Option<Kind>) -> bool {
        let now = Instant::now();
        *self.line(kind) = Line { is_up: true, contact: Some(now), error: None };
        if kind.is_none() {
            // It is there, so what is being watched is what it has.
            self.kinds.iter_mut().flatten().filter(|line| line.is_up).for_each(|line| line.contact = Some(now));
        }
        self.settle()
    }

    /// Something is wrong with a kind, or with knowing which there are.
    pub(super) fn down(&mut self, kind: Option<Kind>, error: Option<&str>) {
        let line = self.line(kind);
        line.is_up = false;
        if let Some(error) = error {
            line.error = Some(error.to_owned());
            self.failures += 1;
        }
        self.settle();
    }

    /// Takes note of whether everything works. Returns whether that is new.
    fn settle(&mut self) -> bool {
        let is_connected = self.all().all(|line| line.is_up);
        if is_connected != self.was_connected {
            (self.was_connected, self.since) = (is_connected, Instant::now());
            return is_connected;
        }
        false
    }

    fn all(&self) -> impl Iterator<Item = &Line> {
        self.kinds.iter().flatten().chain([&self.discovery])
    }

    pub(super) fn health(&self, is_synced: bool, objects: Vec<(Kind, Option<usize>)>) -> SourceHealth {
        SourceHealth {
            is_connected: self.was_connected,
            since: self.since,
            is_synced,
            last_contact: self.all().map(|line| line.contact).min().flatten(),
            last_error: self.all().filter(|line| !line.is_up).find_map(|line| line.error.clone()),
            objects,
            lists: self.lists,
            failures: self.failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_that_is_not_heard_is_enough_and_the_oldest_contact_counts() {
        let mut lines = Lines::new([Kind::Pod, Kind::Node].into_iter());
        let health = |lines: &Lines| lines.health(true, Vec::new());
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
}
