//! Tells the programs that workers are alive, and learns what happened to flows while none was.
//!
//! ```text
//!   every 66 ms:  alive_until = now + 200 ms     away_until = alive_until + grace
//!                     |
//!                     `- was it over before?  at the next beat: read the ends that the programs have recorded, remove these flows
//! ```
//!
//! A process that was stopped or starved of CPU time for longer than that is treated like a new one. The programs cannot tell the two
//! apart, and neither saw the packets meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::{TcDatapath, nanoseconds};
use crate::io::FlowChange;
use crate::io::xsk::flow_layout::cells;
use crate::io::xsk::flow_table::coarse_time;

/// Time after the last beat until the programs forward flows without workers, in nanoseconds. Short enough that TCP has not repeated a lost
/// segment yet (its timeout is at least 200 ms on Linux), and long enough for a busy machine to run the thread.
const PATIENCE: u64 = 200_000_000;

/// Time between two beats, 66 ms. With three beats within [`PATIENCE`], a beat may be missed. More often would cost an idle node CPU time:
/// a beat writes two numbers, but its wake-up finds cold caches and takes 50 µs.
const INTERVAL: Duration = Duration::from_nanos(PATIENCE / 3);

/// The thread that beats. It ends when this value, which its datapath owns, is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat(Thread);

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // It then finds that its datapath is gone.
        self.0.unpark();
    }
}

/// What happened while no worker was alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// How long no worker was alive.
    pub lasted: Duration,
    /// The flows whose TCP connections began to end.
    pub ended: Vec<FlowChange>,
}

impl TcDatapath {
    /// Returns for how long no worker has been alive, if the programs still forward flows, else zero.
    pub fn away(&self) -> Duration {
        let (now, alive_until) = (coarse_time(), self.table.cell(cells::ALIVE_UNTIL).load(Ordering::SeqCst));
        let is_forwarding = now < self.table.cell(cells::AWAY_UNTIL).load(Ordering::SeqCst);
        Duration::from_nanos(if is_forwarding { now.saturating_sub(alive_until) } else { 0 })
    }

    /// Tells the programs from now on that workers are alive, until [`stop_beating`](Self::stop_beating) or the end of the process. Calls
    /// `each` with each absence, the previous process's first, from another thread. Has an effect only once.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start_beating(self: &Arc<Self>, mut each: impl FnMut(Absence) + Send + 'static) -> std::io::Result<()> {
        let datapath = Arc::downgrade(self);
        let mut beat = move |mut away: Option<Duration>| {
            loop {
                // Parked, because a channel's receiver spins before it sleeps, which costs more than the beat.
                let begun = Instant::now();
                while begun.elapsed() < INTERVAL && datapath.strong_count() > 0 {
                    std::thread::park_timeout(INTERVAL.saturating_sub(begun.elapsed()));
                }
                let Some(datapath) = datapath.upgrade() else { return };
                let was_away = datapath.beat();
                // One beat after the absence, when no program acts on its older view any more.
                if let Some(lasted) = away {
                    let since = coarse_time().saturating_sub(nanoseconds(lasted + INTERVAL));
                    let ended = datapath.table.take_ended(since, || {
                        datapath.beat();
                    });
                    each(Absence { lasted, ended });
                }
                away = was_away;
            }
        };
        let mut result = Ok(());
        self.heartbeat.get_or_init(|| {
            let away = self.beat();
            let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || beat(away));
            thread.map(|thread| Heartbeat(thread.thread().clone())).map_err(|error| result = Err(error)).ok()
        });
        result
    }

    /// Tells the programs that workers are alive. Returns how long none was, or `None` if one was all the time.
    fn beat(&self) -> Option<Duration> {
        if self.heart_rests.load(Ordering::SeqCst) {
            return None;
        }
        let away = self.away();
        let alive_until = coarse_time() + PATIENCE;
        let away_until = if self.grace == 0 { 0 } else { alive_until + self.grace };
        self.table.cell(cells::AWAY_UNTIL).store(away_until, Ordering::SeqCst);
        self.table.cell(cells::ALIVE_UNTIL).store(alive_until, Ordering::SeqCst);
        (!away.is_zero()).then_some(away)
    }

    /// Tells the programs that no worker is alive from now on, for good.
    pub fn stop_beating(&self) {
        self.heart_rests.store(true, Ordering::SeqCst);
        self.table.cell(cells::ALIVE_UNTIL).fetch_min(coarse_time(), Ordering::SeqCst);
    }
}
