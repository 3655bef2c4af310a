//! The flight recorder: the thread that writes the journal, and those that tell it.
//!
//! ```text
//!   policy thread --changes of the state, when they are in force--.
//!   stream thread --verdicts, within a budget----------------------+--bounded channel--> [ journal thread: Recorder ] --> mapped file
//!                                                                                              `--once a second: alive
//! ```
//! Neither of them waits: what does not fit into the channel is counted and told in the journal itself ([`Tap`]), or told together with what
//! comes next ([`ChangeLog`]). Only this thread touches the file, so that a page that has to be fetched from a disk keeps nobody else.
//!
//! **The budget.** Verdicts may take a 4,096th of the journal a second, half of it sessions and half dropped packets, and a 64th at once. So
//! whatever happens, 64 MB reach back an hour, and a minute of a busy node is whole. A budget of the ring alone lost: a port scan of a
//! minute would have written over everything that led to it.
//!
//! **The start.** The thread reads the file back before it takes the first message: a gigabyte takes seconds, and forwarding does not wait for
//! it. What is told meanwhile waits in the channel, and what does not fit is counted as always. A file that cannot be had is found out after
//! the start then: [`Journal::has_failed`].
//!
//! **Invariant.** What was told here is in the file or counted as left out, and what is in the file outlives the process.

mod changes;
mod tap;

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_classifier::OriginId;
use bulkhead_dataplane::io::MappedFile;
use bulkhead_dataplane::{Decision, DropReason, PortId, Snapshot};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::clock::now;
use super::config::JournalConfig;
use super::log;
use super::origins::SharedOrigins;
use super::stream::Event;
use bulkhead_observe::journal::{Change, Layout, LeftOut, Memory, Recorder, Translated, Verdict, WriterError};
pub(super) use changes::ChangeLog;
pub(super) use tap::Tap;

/// Messages that wait for the thread. Most are a batch of verdicts, which come 20 times a second: room for twelve seconds, in which the largest
/// journal is read back at the start.
const WAITING: usize = 256;

/// How often the journal says that the vswitch is alive: how well the time of a crash is known.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// How long the end waits for what is still to be written.
const ENDING: Duration = Duration::from_secs(2);

/// How the journal fares, for the metrics.
#[derive(Debug, Default)]
pub(super) struct JournalCounts {
    /// Records.
    pub(super) written: AtomicU64,
    /// Sessions and dropped packets that were not recorded.
    pub(super) left_out: AtomicU64,
    /// Changes of the state that were told together with another one.
    pub(super) merged: AtomicU64,
    /// What could not be written.
    pub(super) failed: AtomicU64,
}

/// What the thread is told.
enum Message {
    /// The state is another one, since this time.
    Change { time: u64, generation: u64, change: Box<Change> },
    /// What became of traffic.
    Verdicts { events: Vec<Event>, snapshot: Arc<Snapshot> },
    /// What is not recorded.
    LeftOut(LeftOut),
    /// Say when all before this is written.
    Flush(Sender<()>),
    /// It is over.
    Stop(Sender<()>),
}

/// The thread, for those who tell it and ask it.
#[derive(Clone)]
pub(super) struct Journal {
    messages: Sender<Message>,
    counts: Arc<JournalCounts>,
    path: Arc<Path>,
    size: usize,
    has_failed: Arc<AtomicBool>,
}

/// A mapped file as memory.
struct FileMemory {
    file: MappedFile,
    /// Why it could not grow.
    refused: Option<io::Error>,
}

impl Memory for FileMemory {
    fn bytes(&self) -> &[u8] {
        self.file.bytes()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.file.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn grow(&mut self, part: Range<usize>) -> bool {
        match self.file.reserve(part) {
            Ok(()) => true,
            Err(error) => {
                self.refused = Some(error);
                false
            }
        }
    }
}

impl Journal {
    /// Starts the thread, which opens the journal. None where it is off. Where it cannot be had, the vswitch goes on without one: to record is
    /// not what it is for.
    pub(super) fn start(config: &JournalConfig, node: &Arc<str>, origins: SharedOrigins) -> Option<Self> {
        let path = config.path.as_deref()?;
        // The vswitch runs from now on, however long the file is read.
        let (path, size, node, started) = (path.to_path_buf(), config.size, Arc::clone(node), now());
        let opened = path.clone();
        let journal = Self::start_with(&path, size, origins, move || open(&opened, size, &node, started));
        journal.inspect_err(|error| say_that_there_is_none(&path, error)).ok()
    }

    /// The same with a file that `opening` opens, in the thread.
    fn start_with(
        path: &Path,
        size: usize,
        origins: SharedOrigins,
        opening: impl FnOnce() -> anyhow::Result<Recorder<FileMemory>> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let counts = Arc::new(JournalCounts::default());
        let (messages, told) = crossbeam_channel::bounded(WAITING);
        let has_failed = Arc::new(AtomicBool::new(false));
        let journal = Self { messages, counts: Arc::clone(&counts), path: path.into(), size, has_failed };
        let (path, has_failed) = (Arc::clone(&journal.path), Arc::clone(&journal.has_failed));
        let write = move || match opening() {
            Ok(recorder) => {
                Scribe { recorder, counts, origins, reasons: HashMap::new(), failed: None, is_told: false }.run(&told);
            }
            Err(error) => {
                // Before the channel is closed: whoever finds it closed is to know why.
                has_failed.store(true, Ordering::Release);
                say_that_there_is_none(&path, &error);
                // Whoever waits for an answer is not kept.
                told.try_iter().for_each(drop);
            }
        };
        std::thread::Builder::new().name("journal".into()).spawn(write)?;
        Ok(journal)
    }

    /// Whether its file could not be opened, so that there is none. It takes nothing then.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        // Whoever asks is in another folder.
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.to_path_buf())
    }

    /// Bytes that it takes at most.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// How it fares.
    pub(super) const fn counts(&self) -> &Arc<JournalCounts> {
        &self.counts
    }

    /// What verdicts are told to.
    pub(super) fn tap(&self) -> Tap {
        Tap::new(self.clone(), Instant::now())
    }

    /// Waits until what was told so far is written, but not for longer than `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        self.finish(Message::Flush, patience);
    }

    /// Ends the thread, as soon as it has written what it was told. One that waits for a disk is not waited for.
    pub(super) fn stop(&self) {
        self.finish(Message::Stop, ENDING);
    }

    fn finish(&self, message: fn(Sender<()>) -> Message, patience: Duration) {
        let (done, is_done) = crossbeam_channel::bounded(1);
        let end = Instant::now() + patience;
        if self.messages.send_deadline(message(done), end).is_ok() {
            let _ = is_done.recv_deadline(end);
        }
    }
}

fn say_that_there_is_none(path: &Path, error: &anyhow::Error) {
    log::error(&format!(
        "the journal is off: {}: {error:#}\nhelp: set another folder, or none: journal: {{folder: PATH}}",
        path.display()
    ));
}

/// Opens the file for a vswitch that runs since this time. One that is another node's, or of another size, is moved aside, where it can still
/// be asked.
fn open(path: &Path, size: usize, node: &str, started: u64) -> anyhow::Result<Recorder<FileMemory>> {
    let layout = Layout::of_size(size).ok_or_else(|| anyhow::anyhow!("{size} bytes are no size of a journal"))?;
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let begin = || {
        let memory = FileMemory { file: MappedFile::open(path, layout.bytes())?, refused: None };
        anyhow::Ok(Recorder::open(memory, layout, node, started)?)
    };
    let (recorder, damage) = match begin() {
        // Another vswitch's, which goes on with it.
        Err(error) if is_busy(&error) => anyhow::bail!("another process writes it"),
        Err(error) if is_anothers(&error) => {
            // The node's name may have dots in it.
            let mut aside = path.as_os_str().to_owned();
            aside.push(".old");
            let aside = PathBuf::from(aside);
            fs::rename(path, &aside)?;
            log::warn(&format!("started a new journal and moved the unreadable one to {}: {error:#}", aside.display()));
            begin()?
        }
        opened => opened?,
    };
    if let Some(damage) = damage.filter(|damage| damage.is_loss()) {
        log::warn(&format!("the journal is damaged; recording continues: {damage}"));
    }
    Ok(recorder)
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Whether there is a file, and it is not the journal that is to be written.
fn is_anothers(error: &anyhow::Error) -> bool {
    let is_refused = || matches!(error.downcast_ref(), Some(WriterError::Refused(_)));
    let is_invalid = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
    error.downcast_ref().is_some_and(is_invalid) || is_refused()
}

/// The thread.
struct Scribe {
    recorder: Recorder<FileMemory>,
    counts: Arc<JournalCounts>,
    origins: SharedOrigins,
    /// Reasons as texts, each made once.
    reasons: HashMap<DropReason, Arc<str>>,
    /// What failed last, so that it is said once.
    failed: Option<String>,
    /// Whether it was said that the state is too large.
    is_told: bool,
}

impl Scribe {
    fn run(&mut self, told: &Receiver<Message>) {
        let mut alive = Instant::now();
        self.recorder.alive(now());
        loop {
            let message = told.recv_timeout(ALIVE_EVERY);
            if alive.elapsed() >= ALIVE_EVERY {
                alive = Instant::now();
                self.recorder.alive(now());
            }
            let done = match message {
                Ok(Message::Stop(done)) => {
                    let stopped = self.recorder.stop(now());
                    self.say(stopped);
                    let _ = done.send(());
                    return;
                }
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.say(done);
        }
    }

    fn take(&mut self, message: Message) -> anyhow::Result<()> {
        match message {
            Message::Change { time, generation, change } => self.recorder.change(time, generation, &change)?,
            Message::Verdicts { events, snapshot } => {
                let mut names = HashMap::new();
                let verdicts: Vec<Verdict> =
                    events.iter().map(|event| self.verdict(event, &snapshot, &mut names)).collect();
                if let Some(last) = verdicts.last() {
                    self.recorder.verdicts(last.time, &verdicts)?;
                }
            }
            Message::LeftOut(left_out) => self.recorder.left_out(now(), left_out)?,
            // Whoever has asked may have given up.
            Message::Flush(done) => drop(done.send(())),
            Message::Stop(_) => {}
        }
        self.counts.written.store(self.recorder.records(), Ordering::Relaxed);
        let too_large = self.recorder.is_too_large();
        if let Some(objects) = too_large.filter(|_| !self.is_told) {
            log::warn(&format!(
                "the journal cannot repeat the state of {objects} objects in each segment, because it is too large: the journal reaches back \
                 less far\nhelp: raise journal.megabytes"
            ));
        }
        self.is_told = too_large.is_some();
        Ok(())
    }

    /// Says what failed, once.
    fn say(&mut self, done: Result<(), impl Into<anyhow::Error>>) {
        let Err(error) = done else { return };
        let error: anyhow::Error = error.into();
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        let refused = self.recorder.memory().refused.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let why = format!("{error:#}{refused}");
        if self.failed.as_ref() != Some(&why) {
            log::error(&format!("the journal is incomplete: {why}"));
        }
        self.failed = Some(why);
    }

    /// A verdict with names in the place of numbers.
    fn verdict(
        &mut self,
        event: &Event,
        snapshot: &Snapshot,
        names: &mut HashMap<OriginId, Option<Arc<str>>>,
    ) -> Verdict {
        let judgement = &event.judgement;
        let outcome = &judgement.outcome;
        let port = |id: PortId| snapshot.port(id).map(|port| Arc::<str>::from(&*port.name));
        let mut origin = |decision: Option<Decision>| {
            let id = decision?.origin?;
            let told = || self.origins.get(id).map(|origin| Arc::<str>::from(origin.to_string()));
            names.entry(id).or_insert_with(told).clone()
        };
        let table = outcome.decision.and_then(|decision| decision.table);
        let owner = table.and_then(|table| snapshot.ports().iter().find(|port| port.table() == Some(table)));
        Verdict {
            time: judgement.time,
            generation: judgement.generation,
            count: event.count,
            length: judgement.len,
            in_port: port(outcome.in_port),
            out_port: outcome.verdict.out_port().and_then(port),
            reason: outcome
                .verdict
                .drop_reason()
                .map(|reason| Arc::clone(self.reasons.entry(reason).or_insert_with(|| reason.name().into()))),
            flow: outcome.flow,
            translated: outcome.translation.map(|sent| Translated {
                src: sent.src,
                dst: sent.dst,
                sport: sent.sport,
                dport: sent.dport,
            }),
            tcp_flags: judgement.tcp_flags,
            table: owner.map(|port| Arc::from(&*port.name)),
            rule: outcome.decision.and_then(|decision| decision.rule),
            origin: origin(outcome.decision),
            audited: origin(outcome.audited),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_journal_of_another_size_is_moved_aside_by_its_whole_name() {
        let scratch = Scratch::new("journal-aside");
        let path = scratch.path().join("journal-n1.example.com");
        drop(open(&path, 8_000_000, "n1.example.com").unwrap());
        drop(open(&path, 9_000_000, "n1.example.com").unwrap());
        assert!(fs::metadata(scratch.path().join("journal-n1.example.com.old")).unwrap().len() < 8_000_001);
        drop(open(&path, 9_000_000, "n1.example.com").unwrap());
        assert!(open(&path, 9_000_000, "n2").is_ok(), "another node's");
    }

    fn open(path: &Path, size: usize, node: &str) -> anyhow::Result<Recorder<FileMemory>> {
        super::open(path, size, node, now())
    }

    fn change(name: &str) -> Box<Change> {
        let settings = bulkhead_answers::bundle::Settings { program: name.into(), ..Default::default() };
        Box::new(Change { is_whole: true, merged: 1, settings: Some(settings), ..Change::default() })
    }

    #[test]
    fn nobody_waits_for_a_file_that_takes_long_to_open_and_what_is_told_meanwhile_is_in_it() {
        let scratch = Scratch::new("journal-slow");
        let path = scratch.path().join("journal-n1");
        let (release, released) = crossbeam_channel::bounded::<()>(1);
        let file = path.clone();
        let opening = move || {
            released.recv()?;
            open(&file, 8_000_000, "n1")
        };
        let journal = Journal::start_with(&path, 8_000_000, SharedOrigins::default(), opening).unwrap();
        // It is not opened yet, and takes what it is told.
        let time = now();
        journal.messages.try_send(Message::Change { time, generation: 1, change: change("told before") }).unwrap();
        // What there is no room for is refused, and whoever tells it counts it.
        while journal.messages.try_send(Message::LeftOut(LeftOut::default())).is_ok() {}
        assert!(journal.messages.is_full() && !path.exists() && !journal.has_failed());
        release.send(()).unwrap();
        journal.flush(Duration::from_secs(60));
        journal.stop();
        let bytes = fs::read(&path).unwrap();
        let history = bulkhead_observe::journal::History::of(bulkhead_observe::journal::Journal::open(&bytes).unwrap());
        let state = history.state_at(time).unwrap();
        assert_eq!((state.since, &*state.settings.program), (time, "told before"));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_no_journal() {
        let scratch = Scratch::new("journal-none");
        let path = scratch.path().join("journal-n1");
        let opening = || anyhow::bail!("no such disk");
        let journal = Journal::start_with(&path, 8_000_000, SharedOrigins::default(), opening).unwrap();
        journal.flush(Duration::from_secs(60));
        assert!(journal.has_failed() && journal.tap().has_failed());
        let mut changes = ChangeLog::default();
        changes.tell_to(Some(journal), bulkhead_answers::bundle::Settings::default());
        changes.note([&bulkhead_control::cache::Event::DeleteNode("n1".into())]);
        changes.tell(1, false, false);
        assert!(changes.is_off(), "nothing waits for a journal that will never be");
    }

    #[test]
    fn what_cannot_be_opened_stays_where_it_is() {
        let scratch = Scratch::new("journal-folder");
        let path = scratch.path().join("journal-n1");
        fs::create_dir(&path).unwrap();
        assert!(open(&path, 8_000_000, "n1").is_err() && path.is_dir());
        let path = scratch.path().join("journal-n2");
        let first = open(&path, 8_000_000, "n2").unwrap();
        assert!(open(&path, 8_000_000, "n2").err().unwrap().to_string().contains("another process"));
        drop(first);
    }
}
