//! Compiled tables that follow changes of their lists, and background builds that keep lookups fast.
//!
//! ```text
//!  list changed --addresses of sets only--> the last tables, addresses moved or excepted (20 to 120 us)
//!              `--rules too---------------> the classifier adds, removes or compiles   (up to some ms)
//!
//!  REBUILD_AT changes old --> a thread compiles the list as it is now --> the next change starts from that
//! ```
//! The classifier does not compile sets of more than 4,096 intervals, if the table has few other intervals: the table refers to the set
//! (`PartedSet`). A change of such a set only replaces the reference.
//!
//! A node-exit table names hundreds of smaller sets, and nearly every event changes one. Compiling takes about 70 ns per interval: 5 ms for
//! 80,000 intervals, where the goal is 1 ms per event. So the classifier keeps the compiled table and checks changed addresses against the
//! rules directly. When these exceptions become many, a background thread compiles the list again, one list at a time, so on one core at
//! most. Meanwhile events update the old tables. Background builds change only the time of events and lookups, never a verdict.
//!
//! In smaller tables, and if a batch changes too many addresses for exceptions, the classifier moves the addresses inside the compiled
//! table. That takes 20 us for a pod's table with 1,000 members and 2 ms for the exit table above, and needs no build.
//!
//! A change of rules is compiled while its event waits, because no other table would be correct. With 80,000 intervals in the node exit and
//! 1,000 pods per group, a policy takes 0.6 ms. That grows to 1.5 ms, since all rules added after the last build are compiled together; at
//! 64 rules, one event compiles the whole list (7 ms). A background build restarts this count. Starting a build after every fourth such
//! change used 10 % more memory, and with two busy cores its thread delayed events by more than it saved.
//!
//! A list that does not fit is an error, and the owner of the tables decides what is enforced instead. Scanning such a list would leave the
//! work per packet unbounded.
//!
//! Rejected alternatives:
//! * Scanning large tables: every new session is slow.
//! * Building in the event's thread: twenty large tables fill up at the same event, once in 128 events.
//! * Publishing scanned tables until a build is ready: that needs a publication without an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use bulkhead_classifier::{BuildError, BuildOptions, Change, Rule, Tables};

use crate::object::PodName;

/// Minimum number of address intervals of a list whose tables are updated instead of compiled. Smaller lists compile in less than 0.1 ms.
const LARGE: usize = 1 << 10;

/// Number of address intervals above which a list is scanned instead of compiled if the tables of all nodes are kept. Those answer a few
/// queries and no packets, and a compiled node exit takes up to 9 MB and 5 ms.
const SCANNED: usize = 1 << 13;

/// Number of changes after which a list is compiled again in the background. The classifier holds 128 exceptions per address family, and a
/// change may need two. Half of them remain for changes during the build, even if ten lists are due at the same event (5 ms each, one by
/// one). A pod that repeatedly comes and goes counts each time: finding repeated addresses would cost more than the extra builds.
const REBUILD_AT: u32 = 32;

/// Work done for large tables, counted in steps that are equal on all machines. Only `beside` depends on the speed of background builds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableWork {
    /// Number of updates of a large table by addresses alone, without compiling.
    pub followed: u64,
    /// Number of large tables compiled, wholly or partly, while the event waited.
    pub built: u64,
    /// Number of background threads started to compile a large table again, without delaying an event.
    pub beside: u64,
    /// Number of tables of any size that exceeded the classifier's limits and were replaced ([`Instead`](crate::renderer::Instead)).
    pub refused: u64,
}

impl TableWork {
    /// Returns the sums of the counts of `self` and `other`.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            followed: self.followed + other.followed,
            built: self.built + other.built,
            beside: self.beside + other.beside,
            refused: self.refused + other.refused,
        }
    }
}

/// A compiled table, with the state needed to update a large one.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub(super) tables: Arc<Tables>,
    large: Option<Large>,
}

#[derive(Clone, Debug)]
struct Large {
    /// Changes since the last compilation of the whole list.
    age: u32,
    /// A background build's result: the `age` at which it started, and the compiled list of that time.
    rebuilt: Option<(u32, Arc<Tables>)>,
}

impl Large {
    const fn new() -> Self {
        Self { age: 0, rebuilt: None }
    }
}

impl Compiled {
    /// Creates tables that deny everything.
    pub(super) fn closed() -> Self {
        // Scanned: there is nothing to compile.
        let tables = Tables::scanned(Vec::new()).expect("no rules are not too many");
        Self { tables: Arc::new(tables), large: None }
    }

    /// Compiles these tables with the rules `first` in front of all others. An error if the result exceeds the classifier's limits.
    pub(super) fn behind(&self, mut first: Vec<Rule>) -> Result<Self, BuildError> {
        if first.is_empty() {
            return Ok(self.clone());
        }
        first.extend(self.tables.rules().iter().cloned());
        let tables = self.tables.changed_to(&first, &BuildOptions::default())?;
        Ok(Self { tables: Arc::new(tables), large: self.large.as_ref().map(|_| Large::new()) })
    }

    /// Whether the list is large, so that the next tables may be derived from these.
    pub(super) fn is_large(&self) -> bool {
        self.large.is_some()
    }

    /// Compiles a list. If the list is large, `before` returns the tables to derive the new ones from.
    pub(super) fn of<'a>(
        rules: Vec<Rule>,
        before: impl FnOnce() -> Option<&'a Self>,
        beside: &mut Beside,
    ) -> Result<Self, BuildError> {
        let size = intervals(&rules);
        if beside.scans && size > SCANNED {
            return Ok(Self { tables: Arc::new(Tables::scanned(rules)?), large: None });
        }
        if beside.scans || size < LARGE {
            return Ok(Self { tables: Arc::new(Tables::build_with(rules, &beside.options())?), large: None });
        }
        match before().and_then(|before| Some((before, before.large.as_ref()?))) {
            Some((before, large)) => before.follow(large, &rules, beside),
            None => {
                beside.work.built += 1;
                let tables = Tables::build_with(rules, &beside.options())?;
                Ok(Self { tables: Arc::new(tables), large: Some(Large::new()) })
            }
        }
    }

    /// Derives the tables of the list with `changes` applied. `None` if the list must be compiled instead.
    pub(super) fn replaced(&self, changes: &[Change], beside: &mut Beside) -> Option<Self> {
        let large = self.large.as_ref().filter(|large| large.rebuilt.is_none())?;
        let options = BuildOptions { cancelled: &|| true, ..beside.options() };
        let tables = self.tables.update(changes, &options).ok()?;
        beside.work.followed += 1;
        Some(Self::followed(large.age, tables))
    }

    /// Wraps tables that were derived from tables with `since` changes since their compilation.
    fn followed(since: u32, tables: Tables) -> Self {
        // Tables whose only changes are in referenced sets are as good as new.
        let age = if tables.is_whole() { 0 } else { since.saturating_add(1) };
        Self { tables: Arc::new(tables), large: Some(Large { age, rebuilt: None }) }
    }

    fn follow(&self, large: &Large, rules: &[Rule], beside: &mut Beside) -> Result<Self, BuildError> {
        // The most recently compiled tables hold the fewest exceptions.
        let (from, since) = match &large.rebuilt {
            Some((age, rebuilt)) => (rebuilt, large.age.saturating_sub(*age)),
            None => (&self.tables, large.age),
        };
        // The classifier polls this closure while it compiles, so a call shows that it compiled.
        let compiles = AtomicBool::new(false);
        let cancelled = || {
            compiles.store(true, Ordering::Relaxed);
            false
        };
        let changed = from.changed_to(rules, &BuildOptions { cancelled: &cancelled, ..beside.options() });
        let counter = if compiles.into_inner() { &mut beside.work.built } else { &mut beside.work.followed };
        *counter += 1;
        Ok(Self::followed(since, changed?))
    }
}

fn intervals(rules: &[Rule]) -> usize {
    rules.iter().map(|rule| rule.src.intervals() + rule.dst.intervals()).sum()
}

/// The interface that a background build is for. The interface keeps the result even if its list has changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The uplink and the host, which share the node-exit table.
    Exit,
    Pod(PodName),
}

/// The background thread that compiles outdated large tables of one node again, one at a time.
#[derive(Debug)]
pub(super) struct Beside {
    scans: bool,
    /// Maximum heap size of one table's address family, in bytes ([`BuildOptions::max_bytes`]).
    pub(super) max_bytes: usize,
    running: Option<Running>,
    pub(super) work: TableWork,
}

#[derive(Debug)]
struct Running {
    owner: Owner,
    age: u32,
    thread: JoinHandle<Result<Tables, BuildError>>,
    _cancel: Cancel,
}

/// Cancels a build when its result is no longer needed.
#[derive(Debug)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Beside {
    /// Creates the state without a running build. If `scans` is true, very large lists are scanned instead of compiled.
    pub(super) fn new(scans: bool) -> Self {
        let max_bytes = BuildOptions::default().max_bytes;
        Self { scans, max_bytes, running: None, work: TableWork::default() }
    }

    fn options(&self) -> BuildOptions<'static> {
        BuildOptions { max_bytes: self.max_bytes, ..BuildOptions::default() }
    }

    /// Stores the result of a finished build beside its owner's tables, for their next change.
    pub(super) fn collect<'a>(&mut self, now: impl FnOnce(&Owner) -> Option<&'a mut Compiled>) {
        if self.running.as_ref().is_none_or(|running| !running.thread.is_finished()) {
            return;
        }
        self.wait(now);
    }

    /// Waits for the running build, then does the same as [`Self::collect`].
    pub(super) fn wait<'a>(&mut self, now: impl FnOnce(&Owner) -> Option<&'a mut Compiled>) {
        let Some(Running { owner, age, thread, _cancel }) = self.running.take() else { return };
        let tables = thread.join().ok().and_then(Result::ok).map(Arc::new);
        // A lower age means that newer tables replaced those that the build started from, so the build is outdated.
        let Some(large) = now(&owner).and_then(|now| now.large.as_mut()).filter(|large| large.age >= age) else {
            return;
        };
        match tables {
            Some(tables) => large.rebuilt = Some((age, tables)),
            // The build failed. The present tables fit and stay in use, and the count starts again.
            None => large.age = 0,
        }
    }

    /// Starts a build of the table with the most changes, unless a build is running.
    pub(super) fn begin<'a>(&mut self, all: impl Iterator<Item = (Owner, &'a Compiled)>) {
        if self.running.is_some() {
            return;
        }
        let due = |large: &&Large| large.rebuilt.is_none() && large.age >= REBUILD_AT;
        let large = all.filter_map(|(owner, one)| Some((owner, one, one.large.as_ref().filter(due)?)));
        let Some((owner, oldest, large)) = large.max_by_key(|(_, _, large)| large.age) else { return };
        let (tables, cancelled) = (oldest.tables.clone(), Arc::new(AtomicBool::new(false)));
        let max_bytes = self.max_bytes;
        let asked = cancelled.clone();
        let build = move || {
            // Yields to event handling, which would otherwise wait some milliseconds for the scheduler's next tick on a shared core.
            let cancelled = || {
                thread::yield_now();
                asked.load(Ordering::Relaxed)
            };
            let options = BuildOptions { max_bytes, cancelled: &cancelled };
            Tables::build_with(tables.rules().iter().cloned().collect(), &options)
        };
        // If no thread can be created, the classifier rebuilds when its exceptions are used up.
        if let Ok(thread) = thread::Builder::new().name("bulkhead-build".into()).spawn(build) {
            self.work.beside += 1;
            self.running = Some(Running { owner, age: large.age, thread, _cancel: Cancel(cancelled) });
        }
    }
}

#[cfg(test)]
mod tests;
