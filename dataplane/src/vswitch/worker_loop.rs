//! What a worker's thread does until it is told to stop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

use super::bell::Bell;
use super::clock::Clock;
use super::stage::{Chain, Stage, Surroundings};
use super::{Command, PollMode, WorkerCounters};
use crate::forward::Forwarder;
use crate::io::{FramePool, PollSet, poll};
use crate::{Reader, Worker};

/// How long an adaptive worker goes on asking before it sleeps. Longer than the pause between two packets of a busy
/// connection, so that only an idle worker pays for being woken (some 5 us); far shorter than what anybody feels.
const PATIENCE: Duration = Duration::from_micros(100);

/// How many rounds pass between two looks at the commands when there is traffic. A command waits well under a
/// millisecond and the channel's cache line is left alone.
const ROUNDS_PER_LOOK: u32 = 16;

/// What a worker is made of.
pub(super) struct Parts {
    pub(super) engine: Worker,
    pub(super) forwarder: Forwarder<Chain>,
    pub(super) pool: FramePool,
    pub(super) surroundings: Surroundings,
    pub(super) reader: Reader,
    pub(super) commands: Receiver<Command>,
    pub(super) poll: PollMode,
}

/// The loop and what it looks at between rounds.
pub(super) struct WorkerLoop {
    stage: Stage,
    reader: Reader,
    commands: Receiver<Command>,
    clock: Clock,
    poll: PollMode,
    bell: Arc<Bell>,
    sources: PollSet,
    rounds: u32,
    /// Since when nothing was to do; none while something is.
    idle_since: Option<Instant>,
}

impl WorkerLoop {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { engine, forwarder, pool, surroundings, reader, commands, poll } = parts;
        let bell = Arc::clone(&surroundings.bells[surroundings.id]);
        let stage = Stage::new(engine, forwarder, pool, surroundings);
        let sources = PollSet::new();
        Self { stage, reader, commands, clock: Clock::new(), poll, bell, sources, rounds: 0, idle_since: None }
    }

    /// Works until it is told to stop, or until nobody can tell it any more.
    ///
    /// A panic ends what was just done, not the worker: its ports, its lanes and its sessions are still there, and nobody else could have
    /// them. So it goes on on its own thread, and the others never notice.
    pub(super) fn run(mut self) -> WorkerCounters {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work())) {
            self.stage.recover(panic);
        }
        self.stage.close()
    }

    fn work(&mut self) {
        while self.listen(self.idle_since.is_some()) {
            // One look at the clock, whatever the round brings.
            let worked = self.round(self.clock.now());
            self.rest(worked);
        }
    }

    /// Looks at the commands now and then, and always when there is nothing else to do. False when the worker is to end.
    #[inline]
    pub(super) fn listen(&mut self, is_idle: bool) -> bool {
        let is_time_to_look = is_idle || self.rounds.is_multiple_of(ROUNDS_PER_LOOK);
        self.rounds = self.rounds.wrapping_add(1);
        !is_time_to_look || self.obey()
    }

    /// One round at this time, with one look at the snapshot. False when there was nothing to do.
    #[inline]
    pub(super) fn round(&mut self, now: u64) -> bool {
        self.stage.begin();
        self.stage.round(self.reader.load(), now)
    }

    /// What was counted so far.
    pub(super) fn counters(&self) -> WorkerCounters {
        self.stage.counters()
    }

    /// Bytes of memory that the sessions take.
    pub(super) fn session_memory(&self) -> usize {
        self.stage.session_memory()
    }

    /// Ends without having been told.
    pub(super) fn end(self) -> WorkerCounters {
        self.stage.close()
    }

    /// Does what the control thread wants. False when that is to stop.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Add(id, queue, port)) => self.stage.add(id, queue, port),
                Ok(Command::Reach(id, worker, slot)) => self.stage.reach(id, worker, slot),
                Ok(Command::AddTrunk(queue)) => self.stage.add_trunk(queue),
                Ok(Command::Attach(id, slot)) => self.stage.attach(id, slot),
                Ok(Command::Remove(id)) => self.stage.remove(id),
                Ok(Command::Stream(stream)) => self.stage.set_stream(stream),
                Ok(Command::Audit(tap)) => self.stage.tell_audits_to(tap),
                Ok(Command::Halt(done)) => {
                    self.stage.halt();
                    // Nobody waits any more: not this worker's trouble.
                    let _ = done.send(());
                }
                // As above.
                Ok(Command::Confirm(answer)) => drop(answer.send(())),
                // As above.
                Ok(Command::Report(answer)) => drop(answer.send(self.stage.counters())),
                // As above.
                Ok(Command::Sessions(from, answer)) => drop(answer.send(self.stage.session_page(from))),
                // As above.
                Ok(Command::EndSessions(from, selector, answer)) => {
                    drop(answer.send(self.stage.end_sessions(from, &selector)));
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn rest(&mut self, worked: bool) {
        if worked {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if self.poll == PollMode::Adaptive && since.elapsed() > PATIENCE {
            self.sleep();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a port has something, somebody rings the bell, or it is time to look at the time.
    fn sleep(&mut self) {
        self.sources.clear();
        self.sources.add(self.bell.waker().descriptor());
        if !self.stage.descriptors(|descriptor| self.sources.add(descriptor)) {
            std::thread::yield_now();
            return;
        }
        self.bell.prepare_to_sleep();
        if self.commands.is_empty() && !self.stage.has_mail() {
            // Refused, it returns at once: the worker spins then, and forwards all the same.
            drop(poll(&mut self.sources, self.stage.nap()));
            self.stage.slept();
        }
        self.bell.awake();
        // Asks once more right after, and sleeps again at once when a wake-up had no cause.
    }
}
