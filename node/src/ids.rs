//! Assigns port numbers and reuses them in a long-running process.

use std::collections::HashMap;
use std::sync::Arc;

/// Port numbers by port name. A port keeps its number for the life of the process, because sessions and counters refer to the number.
///
/// A removed name leaves its number unused. When [`Ids::IDLE`] numbers are unused, a new name gets the one unused for longest. Sessions
/// find their ports again by address after each change (see [`bulkhead_dataplane::PortId`]), so reuse mixes up only counters.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Port names, indexed by port number. A reused number has its latest name.
    names: Vec<Arc<str>>,
    /// Port numbers by port name.
    numbers: HashMap<Arc<str>, usize>,
    /// The [`round`](Self::round) in which each number was last in use.
    used: Vec<u64>,
    /// Number of calls of [`Ids::assign`].
    round: u64,
}

impl Ids {
    /// Number of unused numbers from which on they are reused: a few days of deployments, as a node runs a few hundred pods.
    const IDLE: usize = 4_096;

    /// Assigns a number to each name. Returns the name of each number; `None` for unused numbers.
    pub(super) fn assign(&mut self, names: &[Arc<str>]) -> Vec<Option<Arc<str>>> {
        self.round += 1;
        let mut new = Vec::new();
        for name in names {
            match self.numbers.get(name) {
                Some(&at) => self.used[at] = self.round,
                None => new.push(name),
            }
        }
        for name in new {
            let at = self.oldest_unused().unwrap_or(self.names.len());
            match self.names.get_mut(at) {
                Some(old) => {
                    self.numbers.remove(old);
                    (*old, self.used[at]) = (name.clone(), self.round);
                }
                None => {
                    self.names.push(name.clone());
                    self.used.push(self.round);
                }
            }
            self.numbers.insert(name.clone(), at);
        }
        let in_use = |(name, used): (&Arc<str>, &u64)| (*used == self.round).then(|| name.clone());
        self.names.iter().zip(&self.used).map(in_use).collect()
    }

    /// Returns the number unused for longest. `None` if fewer than [`Ids::IDLE`] are unused.
    fn oldest_unused(&self) -> Option<usize> {
        let unused = || self.used.iter().enumerate().filter(|&(_, &used)| used != self.round);
        // Runs only for new names.
        (unused().count() >= Self::IDLE).then(|| unused().min_by_key(|&(_, used)| used).map(|(at, _)| at)).flatten()
    }

    /// Returns a name's number, even if the name is no longer in use. `None` if the name has none.
    pub(super) fn of(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    /// Returns the name that last had this number.
    pub(super) fn name(&self, at: usize) -> Option<&Arc<str>> {
        self.names.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<Arc<str>> {
        list.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn a_name_keeps_its_number_while_others_come_and_go() {
        let mut ids = Ids::default();
        ids.assign(&names(&["uplink", "host", "x/a", "x/b"]));
        let used = ids.assign(&names(&["x/b", "host", "x/c", "uplink"]));
        let used: Vec<_> = used.iter().map(|name| name.as_deref()).collect();
        assert_eq!(used, [Some("uplink"), Some("host"), None, Some("x/b"), Some("x/c")]);
        ids.assign(&names(&["x/a"]));
        assert_eq!((ids.of("x/a"), ids.of("x/d"), ids.name(4).map(|name| &**name)), (Some(2), None, Some("x/c")));
    }

    #[test]
    fn numbers_are_bounded_however_many_names_come() {
        let mut ids = Ids::default();
        for at in 0..3 * Ids::IDLE {
            let used = ids.assign(&names(&["uplink", &format!("x/{at}")]));
            assert_eq!(used.iter().flatten().count(), 2);
            assert!(used.len() <= Ids::IDLE + 2);
        }
        assert_eq!(ids.of("uplink"), Some(0));
    }
}
