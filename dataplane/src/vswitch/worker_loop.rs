//! A worker's thread.

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

/// How long an adaptive worker polls before it sleeps. Longer than the pause between two packets of a busy connection, so that only idle
/// workers pay for a wake-up (about 5 µs). Too short to be noticed.
const PATIENCE: Duration = Duration::from_micros(100);

/// Rounds with traffic between two checks for commands. A command waits well under a millisecond, and the channel's cache line is rarely
/// read.
const ROUNDS_PER_LOOK: u32 = 16;

/// The components from which a worker's loop is made.
pub(super) struct Parts {
    pub(super) engine: Worker,
    pub(super) forwarder: Forwarder<Chain>,
    pub(super) pool: FramePool,
    pub(super) surroundings: Surroundings,
    pub(super) reader: Reader,
    pub(super) commands: Receiver<Command>,
    pub(super) poll: PollMode,
}

/// A worker's loop and its state between rounds.
pub(super) struct WorkerLoop {
    stage: Stage,
    reader: Reader,
    commands: Receiver<Command>,
    clock: Clock,
    poll: PollMode,
    bell: Arc<Bell>,
    sources: PollSet,
    rounds: u32,
    /// When the worker last ran out of work. `None` while it has work.
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

    /// Runs until it receives `Stop` or the channel of commands closes.
    ///
    /// A panic ends the current round only. Ports, lanes and sessions stay, and no other thread could take them over. So the worker
    /// continues on its own thread.
    pub(super) fn run(mut self) -> WorkerCounters {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work())) {
            self.stage.recover(panic);
        }
        self.stage.close()
    }

    fn work(&mut self) {
        while self.listen(self.idle_since.is_some()) {
            // Reads the clock once per round.
            let worked = self.round(self.clock.now());
            self.rest(worked);
        }
    }

    /// Handles commands from time to time, and always if the worker is idle. Returns false to end the worker.
    #[inline]
    pub(super) fn listen(&mut self, is_idle: bool) -> bool {
        let is_time_to_look = is_idle || self.rounds.is_multiple_of(ROUNDS_PER_LOOK);
        self.rounds = self.rounds.wrapping_add(1);
        !is_time_to_look || self.obey()
    }

    /// Runs a round at this time and loads the snapshot once. Returns false if there was no work.
    #[inline]
    pub(super) fn round(&mut self, now: u64) -> bool {
        self.stage.begin();
        self.stage.round(self.reader.load(), now)
    }

    pub(super) fn counters(&self) -> WorkerCounters {
        self.stage.counters()
    }

    /// Returns the memory used by the worker's sessions, in bytes.
    pub(super) fn session_memory(&self) -> usize {
        self.stage.session_memory()
    }

    /// Closes the worker's ports, ends it without a command, and returns its counters.
    pub(super) fn end(self) -> WorkerCounters {
        self.stage.close()
    }

    /// Handles the pending commands. Returns false after `Stop`.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Add(id, queue, port)) => self.stage.add(id, queue, port),
                Ok(Command::Reach(id, worker, slot)) => self.stage.reach(id, worker, slot),
                Ok(Command::AddTrunk(queue)) => self.stage.add_trunk(queue),
                Ok(Command::Attach(id, slot)) => self.stage.attach(id, slot),
                Ok(Command::Announce(id)) => self.stage.announce(id),
                Ok(Command::Remove(id)) => self.stage.remove(id),
                Ok(Command::End(id)) => self.stage.end(id),
                Ok(Command::Stream(stream)) => self.stage.set_stream(stream),
                Ok(Command::JudgeAgain(next, flows, done)) => {
                    self.stage.begin();
                    self.stage.judge_again(self.reader.load(), &next, &flows, self.clock.now());
                    // The control thread may have stopped waiting.
                    let _ = done.send(());
                }
                Ok(Command::Learn(changes)) => self.stage.learn(&changes, self.clock.now()),
                Ok(Command::Audit(tap)) => self.stage.tell_audits_to(tap),
                Ok(Command::Halt(done)) => {
                    self.stage.halt();
                    // The control thread may have stopped waiting.
                    let _ = done.send(());
                }
                Ok(Command::Confirm(answer)) => drop(answer.send(())),
                Ok(Command::Report(answer)) => drop(answer.send(self.stage.counters())),
                Ok(Command::Sessions(from, answer)) => drop(answer.send(self.stage.session_page(from))),
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

    /// Sleeps until a port has packets, the bell rings or the time limit ends.
    fn sleep(&mut self) {
        self.sources.clear();
        self.sources.add(self.bell.waker().descriptor());
        if !self.stage.descriptors(|descriptor| self.sources.add(descriptor)) {
            std::thread::yield_now();
            return;
        }
        self.bell.prepare_to_sleep();
        if self.commands.is_empty() && !self.stage.has_mail() {
            // If the system refuses, `poll` returns at once. The worker then spins and keeps forwarding.
            drop(poll(&mut self.sources, self.stage.nap()));
            self.stage.slept();
        }
        self.bell.awake();
        // The worker polls once more and sleeps again if the wake-up was spurious.
    }
}
