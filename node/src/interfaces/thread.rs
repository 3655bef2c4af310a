//! The thread that owns the interfaces.
//!
//! The thread sleeps until a message from the kernel, a worker or another thread arrives, or a retry is due; an idle port costs nothing.
//! A wake-up looks at the ports only if something has changed for them. At intervals ([`Pace`](crate::links::Pace)) the thread reads the
//! table of interfaces again, in case a message was lost.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::LinkEvent;
use bulkhead_dataplane::vswitch::VswitchEvent;
use crossbeam_channel::{Receiver, Sender, select};

use super::{InterfaceCounters, Interfaces, PortStatus};
use crate::composer::Composer;
use crate::config::{PortEntry, RouteEntry};
use crate::datapath::{self, Accounts, Cached, LinuxDatapath, SharedUplink};
use crate::links::{LinkMessages, Links};
use crate::log;
use crate::notice::{Notice, Obituary};
use crate::ports::Event;

/// Maximum time for opening ports, at least one, before the thread reads messages and publishes. Slow openings are thus published one by
/// one, and fast ones together.
const SLICE: Duration = Duration::from_millis(5);

/// Time without an opened port after which deferred work starts, so that a starting pod does not wait for it.
const QUIET: Duration = Duration::from_secs(1);

/// The pause between two parts of deferred work is this many times as long as a part. A part holds the kernel's lock of all interfaces (RTNL)
/// for tens of milliseconds. Other processes of the node need that lock too, so deferred work gets a tenth of the time.
const PAUSE: u32 = 9;

/// Maximum time to wait for the thread's answer. Opening a port takes tens of milliseconds.
const ANSWER: Duration = Duration::from_secs(2);

/// A command to the interfaces thread.
pub(crate) enum Command {
    /// Applies a new configuration: all ports, all routes and the number of the change.
    Configure(Vec<PortEntry>, Vec<RouteEntry>, u64),
    /// Applies new ports: all ports and the number of the change.
    Ports(Vec<PortEntry>, u64),
    /// Reads all interfaces and makes all retries now.
    Look,
    /// Sends the counters and statuses of all ports to this channel.
    Report(Sender<Report>),
    /// Ends the thread.
    Stop,
}

/// The counters and statuses of all ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub counters: InterfaceCounters,
    /// Traffic that the flow cache forwarded without the workers.
    pub cached: Cached,
    /// The ports, those of the configuration first. Empty if the thread has ended or does not answer.
    pub ports: Vec<PortStatus>,
}

/// The interfaces after the thread's end. Dropping the value detaches from them.
pub(crate) struct Stopped {
    interfaces: Interfaces<LinuxDatapath>,
    accounts: (Accounts, Option<SharedUplink>),
}

impl Stopped {
    /// Returns the counters, without the ports' statuses.
    pub(crate) fn report(&self) -> Report {
        let (accounts, uplink) = &self.accounts;
        let cached = datapath::cached(accounts, uplink.as_ref(), &self.interfaces);
        Report { counters: self.interfaces.counters, cached, ports: Vec::new() }
    }
}

/// A handle to the running interfaces thread.
pub(crate) struct Handle {
    commands: Sender<Command>,
    thread: JoinHandle<Stopped>,
}

/// Requests reports from the interfaces thread.
#[derive(Clone)]
pub(crate) struct Asker {
    commands: Sender<Command>,
}

impl Asker {
    /// Returns the counters and the status of each port. Empty if the thread has ended or does not answer within [`ANSWER`].
    pub(crate) fn report(&self) -> Report {
        let (answer, report) = crossbeam_channel::bounded(1);
        // Fails only if the thread is dead: see `Notice::Died`.
        let _ = self.commands.send(Command::Report(answer));
        report.recv_timeout(ANSWER).unwrap_or_default()
    }
}

impl Handle {
    /// Sends a command to the thread.
    pub(crate) fn tell(&self, command: Command) {
        // Fails only if the thread is dead: see `Notice::Died`.
        let _ = self.commands.send(command);
    }

    /// Returns a sender of commands, for the ports thread.
    pub(crate) fn commands(&self) -> Sender<Command> {
        self.commands.clone()
    }

    /// Returns a client for reports.
    pub(crate) fn asker(&self) -> Asker {
        Asker { commands: self.commands.clone() }
    }

    /// Ends the thread, without detaching yet. `None` if the thread has panicked.
    pub(crate) fn stop(self) -> Option<Stopped> {
        self.tell(Command::Stop);
        self.thread.join().ok()
    }
}

/// Starts the thread, which attaches to the interfaces of the calling thread's network namespace at once.
///
/// # Errors
/// If the system cannot create a thread.
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
        is_news: true,
        routes,
        changed: false,
        is_stopped: false,
        is_settled: false,
        next_read: Instant::now(),
        next_settling: Instant::now() + QUIET,
        is_settling: false,
    };
    let obituary = Obituary { who: "the interfaces thread has", notices: owner.notices.clone() };
    let run = move || {
        let _obituary = obituary;
        owner.run()
    };
    let thread = std::thread::Builder::new().name("interfaces".into()).spawn(run)?;
    Ok(Handle { commands: tell, thread })
}

/// The thread's state: the interfaces, the datapath, and the channels to other threads.
struct Owner {
    interfaces: Interfaces<LinuxDatapath>,
    datapath: LinuxDatapath,
    composer: Arc<Composer>,
    links: Links,
    messages: LinkMessages,
    events: Receiver<VswitchEvent>,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    /// Channel on which the ports thread gets the ports' statuses.
    ports: Sender<Event>,
    /// Number of the last change of the list of ports that the ports thread sent.
    change: u64,
    /// The last statuses sent to the ports thread, with the number of the change.
    told: Option<(u64, Arc<Vec<PortStatus>>)>,
    /// Whether a port's status may differ from the last statuses sent.
    is_news: bool,
    routes: Vec<RouteEntry>,
    /// Whether a new configuration requires a new snapshot.
    changed: bool,
    is_stopped: bool,
    /// Whether every port has been tried once since the start.
    is_settled: bool,
    /// When to read the table of interfaces again.
    next_read: Instant,
    /// When to do the next part of deferred work.
    next_settling: Instant,
    /// Whether deferred work was done whose end is not logged yet.
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

    /// Reads failures and changes, reconciles the ports, publishes and opens ports. Returns the time of the next step if more ports are due
    /// now, else `None`.
    fn step(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let is_read = now >= self.next_read || !self.links.is_whole();
        if is_read {
            self.messages.read(&mut self.links);
            self.next_read = now + self.messages.interval(self.links.is_whole());
        }
        let mut changed = std::mem::take(&mut self.changed);
        while let Some((name, why)) = self.datapath.next_failure() {
            changed |= self.interfaces.fail(&name, &why, &mut self.datapath, now);
        }
        let changes = self.links.take_changes();
        let is_due = self.interfaces.next_attempt().is_some_and(|at| at <= now);
        if !(changed || is_read || is_due) && changes.is_empty() {
            // Ports may wait for the workers since a publication failed.
            if self.composer.retry() {
                self.datapath.hand_over();
            }
            return None;
        }
        self.datapath.forget_routes();
        changed |= self.interfaces.reconcile(&self.links, &changes, &mut self.datapath, now);
        self.is_news |= changed || is_read || is_due || !changes.is_table_same();
        // A closed port may reopen only after a snapshot without it is published. Other changes are published with the opened ports, as
        // composing the snapshot is most of an opening's time.
        if self.datapath.take_closed() || self.composer.next_attempt().is_some() {
            if !(if changed { self.publish() } else { self.composer.retry() }) {
                return None;
            }
            changed = false;
        }
        let more = self.open(changed);
        // After a failed publication, the ports wait for its retry.
        if self.composer.next_attempt().is_none() {
            self.datapath.hand_over();
        }
        more
    }

    /// Opens due ports for at most [`SLICE`]. Publishes if a port has opened, or if ports have `changed`. Returns the present time if more
    /// are due, else `None`.
    fn open(&mut self, changed: bool) -> Option<Instant> {
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
        }
        if (opened || changed) && !self.publish() {
            return None;
        }
        more
    }

    /// Sends changed statuses to the ports thread. A port is reported as open only after the workers have it.
    fn tell_statuses(&mut self) {
        if !std::mem::take(&mut self.is_news) {
            return;
        }
        let statuses = self.interfaces.statuses();
        if self.told.as_ref().is_some_and(|(change, told)| *change == self.change && **told == statuses) {
            return;
        }
        let statuses = Arc::new(statuses);
        // Fails only if the ports thread is dead, which the main thread detects.
        let _ = self.ports.send(Event::Interfaces(self.change, Arc::clone(&statuses)));
        self.told = Some((self.change, statuses));
    }

    /// Does a part of deferred work if it is due, and logs the end of the work.
    fn settle(&mut self) {
        let started = Instant::now();
        if started < self.next_settling || !self.links.is_whole() {
            return;
        }
        if self.interfaces.settle_next(&mut self.datapath) {
            self.is_settling = true;
            self.next_settling = Instant::now() + started.elapsed() * PAUSE;
        } else if std::mem::take(&mut self.is_settling) {
            log::info("the vswitch's programs are attached by tcx links; other programs can no longer remove them");
        }
    }

    fn publish(&self) -> bool {
        let mut ports = self.interfaces.view();
        let host = ports.iter().find(|port| port.kind == PortKind::Host).and_then(|port| port.link);
        ports.extend(self.datapath.uplink_view(host));
        let is_in_force = self.composer.set_ports(ports, Some(self.routes.clone()));
        // Fails only at shutdown.
        let _ = self.notices.send(Notice::Ports);
        is_in_force
    }

    /// Returns when the next step is due if no message arrives.
    fn deadline(&self) -> Instant {
        // Retries of publishing come first, because no port opens before.
        let attempt = self.composer.next_attempt().or_else(|| self.interfaces.next_attempt());
        let is_settling = self.is_settling || self.interfaces.is_any_unsettled(&self.datapath);
        let settling = is_settling.then_some(self.next_settling);
        [attempt, settling].into_iter().flatten().fold(self.next_read, Instant::min)
    }

    /// Waits for a message until this time, then handles the waiting messages.
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
        // Only messages that are already waiting, so that a storm of them does not block other work.
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
                (self.change, self.is_news) = (change, true);
            }
            Command::Configure(entries, routes, change) => {
                (self.change, self.is_news) = (change, true);
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
                // The client may have stopped waiting.
                let ports = self.interfaces.statuses();
                let _ = answer.send(Report { counters: self.interfaces.counters, cached, ports });
            }
            Command::Stop => self.is_stopped = true,
        }
    }
}
