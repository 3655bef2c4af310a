//! The thread that owns the list of ports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_control::attachments::Standing;
use bulkhead_control::object::PodName;
use bulkhead_dataplane::{PortConfig, PortKind, Snapshot};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use serde::Serialize;
use serde_json::Value;

use super::added::AddedEntry;
use super::file::PortFile;
use super::registry::Registry;
use super::serving::{Facts, Serving};
use super::{Attach, Event, Question, Reply};
use crate::composer::Composer;
use crate::config::RouteEntry;
use crate::interfaces::thread::Command;
use crate::interfaces::{PortState, PortStatus};
use crate::log;
use crate::notice::{Notice, Obituary};
use bulkhead_observe::admin::{AddPort, AddedPort, CheckedPort, Failure, PortKey, RemovedPort, RemovedPorts};

/// Interval of checking whether waiting ports are served. Other threads retry a failed publication without an event to this thread.
const LOOK: Duration = Duration::from_millis(50);

/// Longest timeout of a request. A kubelet waits for two minutes.
const MOST_PATIENCE: Duration = Duration::from_secs(120);

/// How long the answer to a removal waits until the port is closed. The interfaces thread may be opening others.
const CLOSING: Duration = Duration::from_secs(5);

/// A handle to the ports thread.
pub(crate) struct Handle {
    tell: Sender<Event>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Sends an event to the thread.
    pub(crate) fn tell(&self, event: Event) {
        // An error means that the thread is dead: see `Notice::Died`.
        let _ = self.tell.send(event);
    }

    /// Ends the thread. Waiting requests get no answer.
    pub(crate) fn stop(self) {
        self.tell(Event::Stop);
        // A panic was already logged.
        let _ = self.thread.join();
    }
}

/// The composer, and the channels to the interfaces thread and the policy thread.
pub(crate) struct Others {
    pub composer: Arc<Composer>,
    pub interfaces: Sender<Command>,
    pub policy: Sender<Attach>,
}

/// Starts the thread with ports that the other threads already know, as change 0. Without a file, added ports are not saved.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(
    registry: Registry,
    file: Option<PortFile>,
    others: Others,
    notices: Sender<Notice>,
    (tell, events): (Sender<Event>, Receiver<Event>),
) -> std::io::Result<Handle> {
    let owner = Owner {
        registry,
        file,
        others,
        events,
        change: 0,
        is_changed: false,
        routes: None,
        statuses: None,
        standings: None,
        waiting: Vec::new(),
        removing: Vec::new(),
    };
    let run = move || {
        let _obituary = Obituary { who: "the ports thread has", notices };
        owner.run();
    };
    let thread = std::thread::Builder::new().name("ports".into()).spawn(run)?;
    Ok(Handle { tell, thread })
}

/// A request to add a port that is not answered yet.
struct Waiting {
    key: Arc<PortKey>,
    number: u64,
    /// Number of the change that the other threads must report as done.
    change: u64,
    since: Instant,
    until: Instant,
    reply: Reply,
}

/// A request to remove ports that is not answered yet.
struct Removing {
    change: u64,
    until: Instant,
    answer: Result<Value, Failure>,
    reply: Reply,
}

struct Owner {
    registry: Registry,
    file: Option<PortFile>,
    others: Others,
    events: Receiver<Event>,
    /// Number of the last change sent to the other threads.
    change: u64,
    /// Whether the list of ports has changed since the last change was sent.
    is_changed: bool,
    /// The configuration's new routes, to be sent with the next change. `None` if they have not changed.
    routes: Option<Vec<RouteEntry>>,
    /// The ports' status, as of a change. `None` before the first report.
    statuses: Option<(u64, Arc<Vec<PortStatus>>)>,
    /// Whether policy knows each attached pod, as of a change. `None` before the first report.
    standings: Option<(u64, BTreeMap<PodName, Standing>)>,
    waiting: Vec<Waiting>,
    removing: Vec<Removing>,
}

impl Owner {
    fn run(mut self) {
        loop {
            let event = match self.waiting.is_empty() && self.removing.is_empty() {
                true => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.events.recv_timeout(LOOK),
            };
            let first = match event {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Requests that arrive together become one change.
            let more = self.events.len();
            let events: Vec<Event> = first.into_iter().chain(self.events.try_iter().take(more)).collect();
            for event in events {
                match event {
                    Event::Stop => return,
                    event => self.take(event),
                }
            }
            self.tell_others();
            self.answer();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Asked(Question::Add(asked), reply) => self.add(&asked, reply),
            Event::Asked(Question::Remove(key), reply) => {
                let removed = self.remove(&[Arc::new(key)]);
                self.answer_removal(&RemovedPort { removed: !removed.is_empty() }, reply);
            }
            Event::Asked(Question::Retain(keep, network), reply) => {
                let removed = self.remove(&self.registry.others(&keep, network.as_deref()));
                self.answer_removal(&RemovedPorts { removed }, reply);
            }
            Event::Asked(Question::Check(key), reply) => {
                let answer = self.check(&key).map(|checked| json(&checked));
                // The client may be gone.
                let _ = reply.send(answer);
            }
            Event::Configured(ports, routes) => {
                self.registry.configure(ports);
                (self.routes, self.is_changed) = (Some(routes), true);
            }
            Event::Interfaces(change, statuses) => self.statuses = Some((change, statuses)),
            Event::Policy(change, standings) => self.standings = Some((change, standings)),
            Event::Stop => {}
        }
    }

    /// Returns the number of the change that includes the present list of ports: the last one sent, or the next one.
    fn next_change(&self) -> u64 {
        self.change + u64::from(self.is_changed)
    }

    fn add(&mut self, asked: &AddPort, reply: Reply) {
        let since = Instant::now();
        match self.try_add(asked) {
            Ok((key, number)) => {
                let until = since + Duration::from_secs(asked.timeout_seconds).min(MOST_PATIENCE);
                self.waiting.push(Waiting { key, number, change: self.next_change(), since, until, reply });
            }
            Err(failure) => drop(reply.send(Err(failure))),
        }
    }

    /// Adds the port to the list and the file. Returns its key and number.
    fn try_add(&mut self, asked: &AddPort) -> Result<(Arc<PortKey>, u64), Failure> {
        let entry = AddedEntry::read(asked)?;
        if self.others.composer.enforced().is_denying {
            let help = "`bulkhead status` shows what is missing";
            return Err(Failure::new("not_ready", "no state is loaded yet, so policy cannot be enforced", help));
        }
        self.check_addresses(&entry)?;
        let key = entry.key.clone();
        let before = self.registry.get(&key).cloned();
        let statuses = self.statuses.as_ref().map(|(_, statuses)| Arc::clone(statuses));
        let is_there = |key: &PortKey| {
            let known = statuses.as_ref().and_then(|statuses| status_of(statuses, key));
            known.is_none_or(|status| status.state != PortState::Absent)
        };
        if self.registry.add(entry, is_there)? {
            if let Err(error) = self.keep() {
                self.registry.restore(&key, before);
                let message = format!("cannot save the port for the next start: {error:#}");
                return Err(Failure::new(
                    "not_ready",
                    message,
                    "free disk space there, or set another admin.ports_folder",
                ));
            }
            self.is_changed = true;
        }
        let number = self.registry.get(&key).map_or(0, |entry| entry.number);
        Ok((key, number))
    }

    /// Returns an error if another pod whose port is open has one of the addresses.
    fn check_addresses(&self, entry: &AddedEntry) -> Result<(), Failure> {
        let snapshot = self.others.composer.current();
        let pod = entry.pod.to_string();
        let owner = |address| snapshot.owner(address).and_then(|id| snapshot.port(id));
        let is_others = |port: &&PortConfig| port.kind == PortKind::Pod && port.link.is_some() && *port.name != *pod;
        for &address in &entry.addresses {
            if let Some(port) = owner(address).filter(is_others) {
                let message = format!("{address} is the address of {}, whose port is open", port.name);
                return Err(Failure::new("refused", message, "remove that port first, or give another address"));
            }
        }
        Ok(())
    }

    fn keep(&self) -> anyhow::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.write(self.registry.added()))
    }

    /// Removes these ports. Returns the names of those that existed.
    fn remove(&mut self, keys: &[Arc<PortKey>]) -> Vec<String> {
        let removed: Vec<String> =
            keys.iter().filter_map(|key| self.registry.remove(key)).map(|entry| entry.pod.to_string()).collect();
        if !removed.is_empty() {
            self.is_changed = true;
            if let Err(error) = self.keep() {
                log::error(&format!(
                    "cannot save the removal of a port; after the next start the port is back, closed: {error:#}"
                ));
            }
        }
        removed
    }

    /// Sends `answer` to the client once the removed ports are closed, or after [`CLOSING`].
    fn answer_removal(&mut self, answer: &impl Serialize, reply: Reply) {
        let until = Instant::now() + CLOSING;
        self.removing.push(Removing { change: self.next_change(), until, answer: Ok(json(answer)), reply });
    }

    /// Sends the list of ports to the interfaces thread and the policy thread, if it has changed.
    fn tell_others(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        self.change += 1;
        let (entries, change) = (self.registry.entries(), self.change);
        // Errors mean that the threads are dead, which the main thread detects.
        let _ = self.others.interfaces.send(match self.routes.take() {
            Some(routes) => Command::Configure(entries, routes, change),
            None => Command::Ports(entries, change),
        });
        let _ = self.others.policy.send(Attach { change, pods: self.registry.attachments() });
    }

    /// Answers all requests that are complete or out of time.
    fn answer(&mut self) {
        let (now, snapshot) = (Instant::now(), self.others.composer.current());
        let known = self.statuses.as_ref().map(|(change, _)| *change);
        for removing in std::mem::take(&mut self.removing) {
            match known >= Some(removing.change) || now >= removing.until {
                true => drop(removing.reply.send(removing.answer)),
                false => self.removing.push(removing),
            }
        }
        for waiting in std::mem::take(&mut self.waiting) {
            match self.outcome(&waiting, &snapshot, now) {
                Some(answer) => drop(waiting.reply.send(answer)),
                None if waiting.reply.is_closed() => {}
                None => self.waiting.push(waiting),
            }
        }
    }

    /// Returns the answer to a request to add a port. `None` while the request must wait.
    fn outcome(&self, waiting: &Waiting, snapshot: &Snapshot, now: Instant) -> Option<Result<Value, Failure>> {
        let Some(entry) = self.registry.get(&waiting.key).filter(|entry| entry.number == waiting.number) else {
            let message = "another request meanwhile removed the port or added it with other settings";
            return Some(Err(Failure::new("refused", message, "")));
        };
        match self.serving(entry, snapshot, waiting.change) {
            Serving::Served => Some(Ok(json(&AddedPort {
                port: entry.pod.to_string(),
                interface: entry.interface.to_string(),
                state: PortState::Open.name().to_owned(),
                generation: snapshot.generation(),
                waited_ms: u64::try_from(now.duration_since(waiting.since).as_millis()).unwrap_or(u64::MAX),
            }))),
            Serving::Never(why) => Some(Err(Failure::new("refused", format!("the port of {} {why}", entry.pod), ""))),
            Serving::Waits(what) if now >= waiting.until => {
                let waited = now.duration_since(waiting.since).as_secs();
                let message = format!("{} is not served after {waited} s: {}", entry.pod, what.join("; "));
                let help = "the port stays added and opens as soon as possible; ask again, or remove it";
                Some(Err(Failure::new("timeout", message, help)))
            }
            Serving::Waits(_) => None,
        }
    }

    /// Returns whether a port is served, or what it waits for. Ignores reports of changes before `change`.
    fn serving(&self, entry: &AddedEntry, snapshot: &Snapshot, change: u64) -> Serving {
        let statuses = self.statuses.as_ref().filter(|(of, _)| *of >= change);
        let standings = self.standings.as_ref().filter(|(of, _)| *of >= change);
        let composer = &self.others.composer;
        let facts = Facts {
            status: statuses.and_then(|(_, statuses)| status_of(statuses, &entry.key)),
            standing: standings.and_then(|(_, standings)| standings.get(&entry.pod)),
            port: port_of(composer, snapshot, &entry.pod),
            is_refused: composer.enforced().is_refused,
        };
        facts.judge()
    }

    fn check(&self, key: &PortKey) -> Result<CheckedPort, Failure> {
        let unknown = || {
            let help = "add the port first; `bulkhead ports` lists all ports";
            Failure::new("unknown_port", format!("no port was added for container {}", key.container), help)
        };
        let entry = self.registry.get(key).ok_or_else(unknown)?;
        let snapshot = self.others.composer.current();
        let status = self.statuses.as_ref().and_then(|(_, statuses)| status_of(statuses, key));
        let (why, is_served) = match self.serving(entry, &snapshot, self.next_change()) {
            Serving::Served => (None, true),
            Serving::Never(why) => (Some(why), false),
            Serving::Waits(what) => (Some(what.join("; ")), true),
        };
        let port = port_of(&self.others.composer, &snapshot, &entry.pod).filter(|_| is_served);
        Ok(CheckedPort {
            port: status.map_or_else(|| entry.pod.to_string(), |status| status.name.to_string()),
            interface: entry.interface.to_string(),
            state: status.map_or(PortState::Closed, |status| status.state).name().to_owned(),
            why,
            addresses: port.into_iter().flat_map(|port| &port.addresses).map(ToString::to_string).collect(),
        })
    }
}

fn status_of<'a>(statuses: &'a [PortStatus], key: &PortKey) -> Option<&'a PortStatus> {
    statuses.iter().find(|status| status.added.as_ref().is_some_and(|added| *added.key == *key))
}

/// Returns a pod's port in the snapshot. `None` if the snapshot lacks it.
fn port_of<'a>(composer: &Composer, snapshot: &'a Snapshot, pod: &PodName) -> Option<&'a PortConfig> {
    let name = pod.to_string();
    snapshot.port(composer.id_of(&name)?).filter(|port| *port.name == *name)
}

fn json(answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}
