//! Compiled tables that follow their lists, and the builds beside that keep them quick.
//!
//! ```text
//!  list changed --addresses of sets only--> the last tables, addresses moved or excepted (20 to 120 us)
//!              `--rules too---------------> the classifier adds, removes or compiles   (up to some ms)
//!
//!  REBUILD_AT changes old --> a thread compiles the list as it is now --> the next change starts from that
//! ```
//! Sets of more than 4,096 intervals are not compiled where a table names few others: the tables refer to them, so an event that
//! changes such a set puts its new version in and is done (`PartedSet` of the classifier).
//!
//! A node's exit names hundreds of smaller sets, and one of them changes with nearly every event. Compiling takes about 70 ns an
//! interval, 5 ms for a node's exit with 80,000 of them, where 1 ms an event is promised; so the classifier keeps what was
//! compiled, and verifies the rules that name one of the few addresses that have changed since. When these become many the list
//! is compiled again, beside, one list at a time, so that it takes one core at most; events go on from the old tables meanwhile.
//! Whether and when a build is ready shows only in the time that events and lookups take: the rules, and so the answers, are the
//! same.
//!
//! In smaller tables, and where a batch changes more addresses than can be verified, the classifier moves the addresses in what was
//! compiled: 20 us for a pod's table with 1,000 members, 2 ms for that exit. Then there is nothing to build.
//!
//! A change of rules is compiled while its event waits, because nothing else is right for it. With 80,000 intervals at a
//! node's exit and 1,000 pods in each group, a policy takes 0.6 ms, which grows to 1.5 ms while the rules that were added since
//! the last build are compiled together; with 64 of them one event compiles the whole list (7 ms). A
//! build that runs beside in between starts that anew. To begin one for each fourth such change was tried: it took 10 %
//! more memory in the builder, and where both cores are busy its thread delays the events by more than it saves them.
//!
//! A list that does not fit is an error: who has the tables decides what is in force instead. It was scanned before, which bounds no
//! packet's work.
//!
//! What lost: leaving large tables to a scan (every new session paid for it); building in the event's thread (each of
//! twenty large tables once in 128 events, and they fill at the same event); to publish scanned tables until a build is
//! ready (somebody has to publish again without an event).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use bulkhead_classifier::{BuildError, BuildOptions, Change, Rule, Tables};

use crate::object::PodName;

/// Address intervals of a list from which on its tables follow it. Smaller ones take less than 0.1 ms to compile, and the
/// classifier compiles them anew in any case.
const LARGE: usize = 1 << 10;

/// Address intervals of a list above which it is scanned where tables of all nodes are kept, to be asked some questions and not
/// about packets: a compiled node's exit takes up to 9 MB and 5 ms, 400 of them too much of both.
const SCANNED: usize = 1 << 13;

/// Changes after which a list is compiled again beside. The classifier's exceptions end at 128 addresses a family; a change
/// may have two, so that half of them are left for the changes until the build is ready, also where ten lists change with
/// every event and are due at the same one (5 ms each, one after the other). A pod that comes and goes all the time is
/// counted each time: to find out which addresses changed before costs each event more than these builds cost a core.
const REBUILD_AT: u32 = 32;

/// What was done for large tables so far, in steps that do not depend on the machine.
///
/// How many tables were rebuilt beside at some time depends on how fast that went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableWork {
    /// Large tables whose list changed by addresses alone, and which were not compiled for it.
    pub followed: u64,
    /// Large tables that were compiled, whole or in part, while the event waited.
    pub built: u64,
    /// Builds begun beside.
    pub beside: u64,
    /// Tables of any size that did not fit.
    pub refused: u64,
}

impl TableWork {
    /// What two parts did together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            followed: self.followed + other.followed,
            built: self.built + other.built,
            beside: self.beside + other.beside,
            refused: self.refused + other.refused,
        }
    }
}

/// Compiled tables, with what is needed to follow a large list.
#[derive(Clone, Debug)]
pub(super) struct Compiled {
    pub(super) tables: Arc<Tables>,
    large: Option<Large>,
}

#[derive(Clone, Debug)]
struct Large {
    /// Changes since the whole list was compiled.
    age: u32,
    /// The list as it was at this age, compiled.
    rebuilt: Option<(u32, Arc<Tables>)>,
}

impl Large {
    const fn new() -> Self {
        Self { age: 0, rebuilt: None }
    }
}

impl Compiled {
    /// Tables that let nothing through.
    pub(super) fn closed() -> Self {
        // Scanned, because no rules are in no time.
        let tables = Tables::scanned(Vec::new()).expect("no rules are not too many");
        Self { tables: Arc::new(tables), large: None }
    }

    /// These tables, with rules before all others.
    pub(super) fn behind(&self, mut first: Vec<Rule>) -> Result<Self, BuildError> {
        if first.is_empty() {
            return Ok(self.clone());
        }
        first.extend(self.tables.rules().iter().cloned());
        let tables = self.tables.changed_to(&first, &BuildOptions::default())?;
        Ok(Self { tables: Arc::new(tables), large: self.large.as_ref().map(|_| Large::new()) })
    }

    /// Whether the next tables may follow these.
    pub(super) fn is_large(&self) -> bool {
        self.large.is_some()
    }

    /// The tables of a list. `before` gives those to follow, where the list is large.
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

    /// The tables of a list that differs from that of these tables in these rules; none when that needs more than to follow them.
    pub(super) fn replaced(&self, changes: &[Change], beside: &mut Beside) -> Option<Self> {
        let large = self.large.as_ref().filter(|large| large.rebuilt.is_none())?;
        let options = BuildOptions { cancelled: &|| true, ..beside.options() };
        let tables = self.tables.update(changes, &options).ok()?;
        beside.work.followed += 1;
        Some(Self::followed(large.age, tables))
    }

    /// Tables that have followed those of an age.
    fn followed(since: u32, tables: Tables) -> Self {
        // What refers to very large sets, and to nothing else that has changed, is as good as new.
        let age = if tables.is_whole() { 0 } else { since.saturating_add(1) };
        Self { tables: Arc::new(tables), large: Some(Large { age, rebuilt: None }) }
    }

    fn follow(&self, large: &Large, rules: &[Rule], beside: &mut Beside) -> Result<Self, BuildError> {
        // What was compiled last has the fewest changes to hold, whatever they are.
        let (from, since) = match &large.rebuilt {
            Some((age, rebuilt)) => (rebuilt, large.age.saturating_sub(*age)),
            None => (&self.tables, large.age),
        };
        // Whoever compiles asks now and then whether to go on.
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

/// Whose tables a build is for: who has the interface keeps it, whatever becomes of its list meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The node's exit.
    Exit,
    /// A pod.
    Pod(PodName),
}

/// The builds beside the events of one node.
#[derive(Debug)]
pub(super) struct Beside {
    scans: bool,
    /// Heap bytes of one table's family, see [`BuildOptions::max_bytes`].
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

/// Ends a build that nobody waits for any more.
#[derive(Debug)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Beside {
    /// With `scans`, very large lists are not compiled at all.
    pub(super) fn new(scans: bool) -> Self {
        let max_bytes = BuildOptions::default().max_bytes;
        Self { scans, max_bytes, running: None, work: TableWork::default() }
    }

    fn options(&self) -> BuildOptions<'static> {
        BuildOptions { max_bytes: self.max_bytes, ..BuildOptions::default() }
    }

    /// Hands a finished build to the tables that its owner has now.
    pub(super) fn collect<'a>(&mut self, now: impl FnOnce(&Owner) -> Option<&'a mut Compiled>) {
        if self.running.as_ref().is_none_or(|running| !running.thread.is_finished()) {
            return;
        }
        self.wait(now);
    }

    /// [`Self::collect`], after the build that is going on.
    pub(super) fn wait<'a>(&mut self, now: impl FnOnce(&Owner) -> Option<&'a mut Compiled>) {
        let Some(Running { owner, age, thread, _cancel }) = self.running.take() else { return };
        let tables = thread.join().ok().and_then(Result::ok).map(Arc::new);
        // Tables that are younger have followed others meanwhile: the build is of another list, and older than they are.
        let Some(large) = now(&owner).and_then(|now| now.large.as_mut()).filter(|large| large.age >= age) else {
            return;
        };
        match tables {
            Some(tables) => large.rebuilt = Some((age, tables)),
            // What these tables hold was compiled once, and fits.
            None => large.age = 0,
        }
    }

    /// Begins a build of the tables that need it most, when none is going on.
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
            // Where the two share a core, the events go first: else one waits until the scheduler's next tick, some ms.
            let cancelled = || {
                thread::yield_now();
                asked.load(Ordering::Relaxed)
            };
            let options = BuildOptions { max_bytes, cancelled: &cancelled };
            Tables::build_with(tables.rules().iter().cloned().collect(), &options)
        };
        // Without a thread the classifier builds when its exceptions are at their end.
        if let Ok(thread) = thread::Builder::new().name("bulkhead-build".into()).spawn(build) {
            self.work.beside += 1;
            self.running = Some(Running { owner, age: large.age, thread, _cancel: Cancel(cancelled) });
        }
    }
}

#[cfg(test)]
mod tests;
