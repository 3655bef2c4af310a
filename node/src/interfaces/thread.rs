//! The thread that owns the interfaces.
//!
//! It sleeps until the kernel, a worker or another thread tells it something, or until it is time to try something again. An
//! idle port costs nothing. From time to time ([`Pace`](crate::links::Pace)) the thread reads the table of interfaces again, in case a
//! message was lost.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::LinkEvent;
use bulkhead_dataplane::vswitch::VswitchEvent;
use crossbeam_channel::{Receiver, Sender, select};

use super::{InterfaceCounters, Interfaces, PortStatus};
use crate::composer::Composer;
use crate::config::{PortEntry, RouteEntry};
use crate::datapath::{self, Accounts, Cached, LinuxDatapath};
use crate::links::{LinkMessages, Links};
use crate::log;
use crate::notice::Notice;
use crate::ports::Event;

/// Ports are opened for this long before messages are looked at again, one port at least. Those that take long are opened and
/// published one by one; of those that take microseconds many are published at once.
const SLICE: Duration = Duration::from_millis(5);

/// What can wait is done when no port was opened for this long: a pod that is just being started is not to wait for it.
const QUIET: Duration = Duration::from_secs(1);

/// Between two parts of what can wait. Each holds the kernel's lock of all interfaces for some ten milliseconds, and others on the node
/// need it as well.
const PAUSE: Duration = Duration::from_millis(20);

/// How long to wait for the answer of the thread: it may be opening a port, which takes some ten milliseconds.
const ANSWER: Duration = Duration::from_secs(2);

/// What the thread is told.
pub(crate) enum Command {
    /// The configuration has changed: these are all ports and routes as of this change.
    Configure(Vec<PortEntry>, Vec<RouteEntry>, u64),
    /// These are all ports as of this change.
    Ports(Vec<PortEntry>, u64),
    /// Look at everything now.
    Look,
    /// Tell what was counted.
    Report(Sender<Report>),
    /// End.
    Stop,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub counters: InterfaceCounters,
    /// What was forwarded without the workers.
    pub cached: Cached,
    /// The ports, those of the configuration first; none when the thread has ended.
    pub ports: Vec<PortStatus>,
}

/// The interfaces when the thread has ended. Dropped, it detaches from them.
pub(crate) struct Stopped {
    interfaces: Interfaces<LinuxDatapath>,
    accounts: Accounts,
}

impl Stopped {
    /// What was counted until now.
    pub(crate) fn report(&self) -> Report {
        let cached = datapath::cached(&self.accounts, &self.interfaces);
        Report { counters: self.interfaces.counters, cached, ports: Vec::new() }
    }
}

/// The thread as others see it.
pub(crate) struct Handle {
    commands: Sender<Command>,
    thread: JoinHandle<Stopped>,
}

/// Asks the thread. Clones ask the same one.
#[derive(Clone)]
pub(crate) struct Asker {
    commands: Sender<Command>,
}

impl Asker {
    /// What was counted so far. Waits for the thread's answer; nothing when it has ended or does not answer in time.
    pub(crate) fn report(&self) -> Report {
        let (answer, report) = crossbeam_channel::bounded(1);
        // An error means that it is dead; `is_dead` tells.
        let _ = self.commands.send(Command::Report(answer));
        report.recv_timeout(ANSWER).unwrap_or_default()
    }
}

impl Handle {
    /// Tells the thread something.
    pub(crate) fn tell(&self, command: Command) {
        // An error means that it is dead; `is_dead` tells.
        let _ = self.commands.send(command);
    }

    /// For the thread that says which ports there are.
    pub(crate) fn commands(&self) -> Sender<Command> {
        self.commands.clone()
    }

    /// For those who ask what was counted.
    pub(crate) fn asker(&self) -> Asker {
        Asker { commands: self.commands.clone() }
    }

    /// Whether it has ended though nobody has stopped it: a fault of the program.
    pub(crate) fn is_dead(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it. Nothing is detached yet. None when it has panicked.
    pub(crate) fn stop(self) -> Option<Stopped> {
        self.tell(Command::Stop);
        self.thread.join().ok()
    }
}

/// Starts the thread, which begins with the interfaces of the calling thread's network namespace at once.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(
    entries: &[PortEntry],
    routes: Vec<RouteEntry>,
    datapath: LinuxDatapath,
    composer: Arc<Composer>,
    notices: Sender<Notice>,
    ports: Sender<Event>,
) -> std::io::Result<Handle> {
    let (tell, commands) = crossbeam_channel::unbounded();
    let (events, pace) = (datapath.events(), datapath.pace());
    let owner = Owner {
        interfaces: Interfaces::new(entries),
        datapath,
        composer,
        links: Links::default(),
        messages: LinkMessages::listen(pace),
        events,
        commands,
        notices,
        ports,
        change: 0,
        told: None,
        routes,
        changed: false,
        is_stopped: false,
        is_settled: false,
        next_read: Instant::now(),
        next_settling: Instant::now() + QUIET,
        is_settling: false,
    };
    let thread = std::thread::Builder::new().name("interfaces".into()).spawn(move || owner.run())?;
    Ok(Handle { commands: tell, thread })
}

/// What the thread has.
struct Owner {
    interfaces: Interfaces<LinuxDatapath>,
    datapath: LinuxDatapath,
    composer: Arc<Composer>,
    links: Links,
    messages: LinkMessages,
    events: Receiver<VswitchEvent>,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    /// To the thread that says which ports there are.
    ports: Sender<Event>,
    /// The last change that it has told.
    change: u64,
    /// What it was told last.
    told: Option<(u64, Arc<Vec<PortStatus>>)>,
    routes: Vec<RouteEntry>,
    /// Whether the configuration has changed what the snapshot is to say.
    changed: bool,
    is_stopped: bool,
    /// Whether all ports that could be opened at start were.
    is_settled: bool,
    /// When the table of interfaces is read anew.
    next_read: Instant,
    /// When the next part of what can wait is done, if there is any.
    next_settling: Instant,
    /// Whether there was any since it was last said that there is none.
    is_settling: bool,
}

impl Owner {
    fn run(mut self) -> Stopped {
        loop {
            let next = self.step();
            self.tell_statuses();
            if next.is_none() && !self.is_settled {
                self.is_settled = true;
                let (open, all) = self.interfaces.open_of();
                let _ = self.notices.send(Notice::Settled { open, all });
            }
            if next.is_none() {
                self.settle();
            }
            self.wait(next.unwrap_or_else(|| self.deadline()));
            if self.is_stopped {
                return Stopped { interfaces: self.interfaces, accounts: self.datapath.into_accounts() };
            }
        }
    }

    /// Brings everything to what is known now. Returns when there is more to do that does not wait for anything.
    fn step(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if now >= self.next_read || !self.links.is_whole() {
            self.messages.read(&mut self.links);
            self.next_read = now + self.messages.interval(self.links.is_whole());
        }
        let mut changed = std::mem::take(&mut self.changed);
        while let Some((name, why)) = self.datapath.next_failure() {
            changed |= self.interfaces.fail(&name, &why, &mut self.datapath, now);
        }
        let changes = self.links.take_changes();
        self.datapath.forget_routes();
        changed |= self.interfaces.reconcile(&self.links, &changes, &mut self.datapath, now);
        // A port that was closed is not opened before the workers' snapshot is without it.
        if !(if changed { self.publish() } else { self.composer.retry() }) {
            return None;
        }
        let more = self.open();
        self.datapath.hand_over();
        more
    }

    /// Opens ports for a while. Returns whether there are more.
    fn open(&mut self) -> Option<Instant> {
        let (started, mut opened) = (Instant::now(), false);
        let more = loop {
            let now = Instant::now();
            match self.interfaces.open_next(&self.links, &mut self.datapath, now) {
                None => break None,
                Some(is_open) => opened |= is_open,
            }
            if started.elapsed() >= SLICE {
                break self.interfaces.is_any_due(now).then_some(now);
            }
        };
        if opened {
            self.next_settling = Instant::now() + QUIET;
            if !self.publish() {
                return None;
            }
        }
        more
    }

    /// Tells how the ports are, where that has changed. What is told of an open port is so: the workers have it.
    fn tell_statuses(&mut self) {
        let statuses = self.interfaces.statuses();
        if self.told.as_ref().is_some_and(|(change, told)| *change == self.change && **told == statuses) {
            return;
        }
        let statuses = Arc::new(statuses);
        // An error means that the thread is dead, which the main thread sees.
        let _ = self.ports.send(Event::Interfaces(self.change, Arc::clone(&statuses)));
        self.told = Some((self.change, statuses));
    }

    /// Does a part of what can wait, if it is time.
    fn settle(&mut self) {
        if Instant::now() < self.next_settling || !self.links.is_whole() {
            return;
        }
        if self.interfaces.settle_next(&mut self.datapath) {
            self.is_settling = true;
            self.next_settling = Instant::now() + PAUSE;
        } else if std::mem::take(&mut self.is_settling) {
            log::info("the vswitch's programs are attached by tcx links; other programs can no longer remove them");
        }
    }

    fn publish(&self) -> bool {
        self.composer.set_ports(self.interfaces.view(), Some(self.routes.clone()))
    }

    /// When something is to be done even if nobody tells anything.
    fn deadline(&self) -> Instant {
        // What cannot be published comes first: nothing is opened before.
        let attempt = self.composer.next_attempt().or_else(|| self.interfaces.next_attempt());
        let settling = self.interfaces.is_any_unsettled(&self.datapath).then_some(self.next_settling);
        [attempt, settling].into_iter().flatten().fold(self.next_read, Instant::min)
    }

    /// Waits until somebody tells something, and takes all that was told.
    fn wait(&mut self, until: Instant) {
        let (links, events, commands) = (self.messages.events.clone(), self.events.clone(), self.commands.clone());
        select! {
            recv(links) -> told => match told {
                Ok(told) => self.take_links(told),
                Err(_) => self.messages.end(),
            },
            recv(events) -> event => event.into_iter().for_each(|event| self.datapath.keep_event(event)),
            recv(commands) -> command => self.obey(command.unwrap_or(Command::Stop)),
            default(until.saturating_duration_since(Instant::now())) => {}
        }
        // No more than were waiting, so that a storm does not keep anything else from being done.
        for _ in 0..links.len() {
            links.try_iter().take(1).for_each(|told| self.take_links(told));
        }
        for command in commands.try_iter() {
            self.obey(command);
        }
    }

    fn take_links(&mut self, told: Vec<LinkEvent>) {
        self.interfaces.counters.told += 1;
        told.into_iter().for_each(|event| self.links.apply(event));
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Ports(entries, change) => {
                self.changed |= self.interfaces.configure(&entries, &mut self.datapath);
                self.change = change;
            }
            Command::Configure(entries, routes, change) => {
                self.change = change;
                let changed = self.interfaces.configure(&entries, &mut self.datapath) | (self.routes != routes);
                self.routes = routes;
                self.changed |= changed;
                log::info(if changed {
                    "the changed ports and routes of the configuration were applied"
                } else {
                    "the ports and routes of the configuration have not changed"
                });
            }
            Command::Look => {
                self.links.doubt();
                self.next_read = Instant::now();
                self.interfaces.hurry(self.next_read);
            }
            Command::Report(answer) => {
                let cached = self.datapath.cached(&self.interfaces);
                // Whoever has asked may not wait any more.
                let ports = self.interfaces.statuses();
                let _ = answer.send(Report { counters: self.interfaces.counters, cached, ports });
            }
            Command::Stop => self.is_stopped = true,
        }
    }
}
