//! The flight recorder: the thread that writes the journal, and the senders of its records.
//!
//! ```text
//!   policy thread --changes of the state, when they are in force--.
//!   stream thread --verdicts, within a budget----------------------+--bounded channel--> [ journal thread: Recorder ] --> mapped file
//!                                                                                              `--once a second: alive
//! ```
//! Senders never wait. If the channel is full, [`Tap`] counts the lost verdicts and reports them in the journal, and [`ChangeLog`] merges
//! the change into the next one. Only the journal thread touches the file, so a page fault that reads the disk blocks no other thread.
//!
//! **The budget.** Verdicts may use 1/4,096 of the journal's size per second, with bursts of 1/64: half for sessions, half for dropped
//! packets. A journal of 64 MB thus reaches back an hour in any case, and holds a busy node's minute completely. Without a budget, a port
//! scan of one minute would overwrite all records of its cause.
//!
//! **The start.** The thread reads the existing file before it accepts messages, which takes seconds for a gigabyte. Forwarding does not
//! wait for that: messages queue in the channel. A file that cannot be opened is therefore detected only later ([`Journal::has_failed`]).
//!
//! **Invariant.** Each record sent is in the file or counted as left out. Written records survive the end of the process.

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
use super::tables;
use bulkhead_observe::journal::{Change, Layout, LeftOut, Memory, Recorder, Translated, Verdict, WriterError};
pub(super) use changes::ChangeLog;
pub(super) use tap::Tap;

/// Maximum number of queued messages. Batches of verdicts arrive 20 times a second, so this is twelve seconds: enough to read the largest
/// journal at the start.
const WAITING: usize = 256;

/// Interval of records that the vswitch is alive, which bound the time of a crash.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Maximum time for which the process waits for the last records when it stops.
const ENDING: Duration = Duration::from_secs(2);

/// Counters of the journal since the start of the process, for the metrics.
#[derive(Debug, Default)]
pub(super) struct JournalCounts {
    /// Number of records written to the journal.
    pub(super) written: AtomicU64,
    /// Sessions and dropped packets that the journal reports as left out.
    pub(super) left_out: AtomicU64,
    /// State changes that were merged into a later one.
    pub(super) merged: AtomicU64,
    /// Number of failed writes to the journal.
    pub(super) failed: AtomicU64,
}

/// A message to the journal thread.
enum Message {
    /// A change of the state, in force since `time` (nanoseconds since 1970).
    Change { time: u64, generation: u64, change: Box<Change> },
    /// Verdicts, and the snapshot that names their ports.
    Verdicts { events: Vec<Event>, snapshot: Arc<Snapshot> },
    /// Numbers of sessions and dropped packets that are not recorded.
    LeftOut(LeftOut),
    /// Requests an answer when all earlier messages are written.
    Flush(Sender<()>),
    /// Ends the thread, which writes a last record and answers first.
    Stop(Sender<()>),
}

/// A handle to the journal thread. Clones share the thread.
#[derive(Clone)]
pub(super) struct Journal {
    messages: Sender<Message>,
    counts: Arc<JournalCounts>,
    path: Arc<Path>,
    size: usize,
    has_failed: Arc<AtomicBool>,
}

/// The journal's file, mapped into memory.
struct FileMemory {
    file: MappedFile,
    /// The last error on reserving disk space, for the log. `None` if none occurred.
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
    /// Starts the thread, which opens the journal. `None` if the journal is off, or the thread cannot be created (logged). The vswitch then
    /// runs without a journal.
    pub(super) fn start(config: &JournalConfig, node: &Arc<str>, origins: SharedOrigins) -> Option<Self> {
        let path = config.path.as_deref()?;
        // Taken before the file is read, which may take seconds.
        let (path, size, node, started) = (path.to_path_buf(), config.size, Arc::clone(node), now());
        let opened = path.clone();
        let journal = Self::start_with(&path, size, origins, move || open(&opened, size, &node, started));
        journal.inspect_err(|error| say_that_there_is_none(&path, error)).ok()
    }

    /// Starts the thread, which calls `opening` to open the file.
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
                has_failed.store(true, Ordering::Release);
                say_that_there_is_none(&path, &error);
                // Dropping the messages releases clients that wait for an answer. The channel itself drops messages only after its
                // last sender, so the thread receives until then.
                told.iter().for_each(drop);
            }
        };
        std::thread::Builder::new().name("journal".into()).spawn(write)?;
        Ok(journal)
    }

    /// Whether opening the file failed. The journal then drops all messages.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the absolute path of the file.
    pub(super) fn path(&self) -> PathBuf {
        // Clients have other working directories.
        std::path::absolute(&self.path).unwrap_or_else(|_| self.path.to_path_buf())
    }

    /// Returns the maximum size, in bytes.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    pub(super) const fn counts(&self) -> &Arc<JournalCounts> {
        &self.counts
    }

    /// Returns a sender of verdicts, with its own budget.
    pub(super) fn tap(&self) -> Tap {
        Tap::new(self.clone(), Instant::now())
    }

    /// Waits until all earlier messages are written, for at most `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        self.finish(Message::Flush, patience);
    }

    /// Ends the thread after it has written all earlier messages. Waits for at most [`ENDING`], as the disk may hang.
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

/// Opens the file for a vswitch started at `started` (nanoseconds since 1970). Renames an existing file of another node or size to `.old`,
/// where it stays readable.
fn open(path: &Path, size: usize, node: &str, started: u64) -> anyhow::Result<Recorder<FileMemory>> {
    let layout = Layout::of_size(size).ok_or_else(|| anyhow::anyhow!("a journal cannot have {size} bytes"))?;
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let begin = || {
        let memory = FileMemory { file: MappedFile::open(path, layout.bytes())?, refused: None };
        anyhow::Ok(Recorder::open(memory, layout, node, started)?)
    };
    let (recorder, damage) = match begin() {
        // Another vswitch is writing to the file.
        Err(error) if is_busy(&error) => anyhow::bail!("another process is writing to it"),
        Err(error) if is_anothers(&error) => {
            // Not `with_extension`, as the node's name may contain dots.
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

/// Whether the error means that the file exists but is not this node's journal of this size.
fn is_anothers(error: &anyhow::Error) -> bool {
    let is_refused = || matches!(error.downcast_ref(), Some(WriterError::Refused(_)));
    let is_invalid = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
    error.downcast_ref().is_some_and(is_invalid) || is_refused()
}

/// The journal thread's state.
struct Scribe {
    recorder: Recorder<FileMemory>,
    counts: Arc<JournalCounts>,
    origins: SharedOrigins,
    /// The text of each drop reason, to allocate each once.
    reasons: HashMap<DropReason, Arc<str>>,
    /// The last failure, to log each once.
    failed: Option<String>,
    /// Whether the warning that the state is too large was logged.
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
            // The client may have stopped waiting.
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

    /// Counts a failed write, and logs it if it differs from the last one.
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

    /// Converts an event to a record, with names instead of port and origin numbers.
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
            table: tables::deciding(snapshot, outcome).and_then(|id| tables::name(snapshot, id)),
            rule: outcome.decision.and_then(|decision| decision.rule),
            origin: origin(outcome.decision),
            audited: origin(outcome.audited),
            names: event.names.as_deref().cloned(),
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
        // The file is not open yet; messages queue in the channel.
        let time = now();
        journal.messages.try_send(Message::Change { time, generation: 1, change: change("told before") }).unwrap();
        // A full channel refuses messages, which their sender counts.
        while journal.messages.try_send(Message::LeftOut(LeftOut::default())).is_ok() {}
        assert!(journal.messages.is_full() && !path.exists() && !journal.has_failed());
        release.send(()).unwrap();
        journal.flush(Duration::from_secs(60));
        journal.stop();
        let bytes = fs::read(&path).unwrap();
        let history = bulkhead_observe::journal::History::open(&bytes).unwrap();
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
