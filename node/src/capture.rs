//! `--capture`: writes received packets and their verdicts to a pcapng file.
//!
//! The file has the form that `bulkhead replay --write` writes, so that the verdicts of a live vswitch and those of a
//! replay of its capture can be compared.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::vswitch::{Captured, Tap};
use bulkhead_dataplane::{LinkType, PortConfig};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::log;
use super::origins::SharedOrigins;
use bulkhead_answers::replay;

/// The size of the file buffer. Small enough that a full disk is noticed while somebody may still do something about it,
/// and a system call for a dozen packets of full length is little beside the copy that each of them costs.
const FILE_BUFFER: usize = 1 << 14;

/// How long the end waits for a write that takes nothing: a pipe whose reader has stopped reading. A disk that is only
/// slow goes on all the time.
const STALLED: Duration = Duration::from_secs(2);

/// `O_NONBLOCK` on Linux, but for processors that are not supported (MIPS, SPARC, Alpha). The file says nothing else that
/// `libc` would be needed for.
const O_NONBLOCK: i32 = 0o4000;

/// `ENXIO`: what opening a pipe without a reader answers.
const NO_READER: i32 = 6;

/// What is being written.
pub(super) struct Capture {
    /// Tells the end of the writer's thread, and how it was.
    ended: Receiver<anyhow::Result<()>>,
    counts: Arc<Counts>,
}

/// How many packets came through the tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct CaptureCounters {
    /// Given to the file. When writing fails, the last of these (16 KiB at most) may not be in it either.
    pub written: u64,
    /// Not written, because writing had failed.
    pub unwritten: u64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    unwritten: AtomicU64,
}

impl Counts {
    fn read(&self) -> CaptureCounters {
        let [written, unwritten] = [&self.written, &self.unwritten].map(|count| count.load(Ordering::Relaxed));
        CaptureCounters { written, unwritten }
    }
}

/// What others see of a capture.
#[derive(Clone)]
pub(super) struct Reading(Arc<Counts>);

impl Reading {
    /// How many packets there were so far.
    pub(super) fn counters(&self) -> CaptureCounters {
        self.0.read()
    }
}

impl Capture {
    /// Creates the file and starts to write what comes through the tap. Ports that are added later are found again by
    /// their packets' addresses.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn start(path: &Path, ports: &[PortConfig], origins: SharedOrigins) -> anyhow::Result<(Self, Tap)> {
        let file = create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let writer = CaptureWriter::new(BufWriter::with_capacity(FILE_BUFFER, file), ports)?;
        let (tap, packets) = Tap::new();
        let counts = Arc::new(Counts::default());
        let (told, name) = (Arc::clone(&counts), path.display().to_string());
        let (tell, ended) = crossbeam_channel::bounded(1);
        // Nobody hears it when the process has not waited.
        let write = move || drop(tell.send(write(writer, &name, &packets, &origins, &told)));
        std::thread::Builder::new().name("capture".into()).spawn(write)?;
        Ok((Self { ended, counts }, tap))
    }

    /// For those who tell how many packets there were.
    pub(super) fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.counts))
    }

    /// Waits until everything is written, or until nothing more is taken. To be called when the workers have ended: the tap ends with them. Returns how
    /// many packets there were, and whether they are all in the file.
    pub(super) fn finish(self) -> (CaptureCounters, anyhow::Result<()>) {
        let mut before = self.counts.read();
        let whole = loop {
            match self.ended.recv_timeout(STALLED) {
                Ok(ended) => break ended,
                Err(RecvTimeoutError::Timeout) if self.counts.read() == before => {
                    break Err(anyhow::anyhow!("its reader takes nothing for {STALLED:?}; the rest was given up"));
                }
                Err(RecvTimeoutError::Timeout) => before = self.counts.read(),
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(anyhow::anyhow!("the thread that writes the capture has panicked"));
                }
            }
        };
        (self.counts.read(), whole)
    }
}

/// Creates the file, or opens a named pipe, which would wait for its reader for ever.
fn create(path: &Path) -> anyhow::Result<File> {
    if std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        let probe = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path);
        // Held until the second one is open. That one blocks when the pipe is full: the writer's thread may wait.
        let _probe = probe.map_err(|error| {
            let reader = error.raw_os_error() == Some(NO_READER);
            let help = if reader { "\n  help: nobody reads this named pipe; start its reader first" } else { "" };
            anyhow::anyhow!("{error}{help}")
        })?;
        return Ok(OpenOptions::new().write(true).open(path)?);
    }
    Ok(File::create(path)?)
}

/// Writes until the tap ends. When writing fails it says so at once, and goes on to take and to count what comes: the
/// vswitch forwards all the same. It does not try again, since a file with a hole in it would be taken for whole.
fn write(
    mut writer: CaptureWriter<impl Write>,
    name: &str,
    packets: &Receiver<Captured>,
    origins: &SharedOrigins,
    counts: &Counts,
) -> anyhow::Result<()> {
    let mut words: HashMap<u32, String> = HashMap::new();
    let say = |error: &io::Error| {
        log::error(&format!(
            "cannot write the capture {name}: {error}; the capture ends here, and forwarding continues\n\
             help: free disk space, then restart with another capture file"
        ));
    };
    for captured in packets {
        let outcome = &captured.outcome;
        let origin = outcome.decision.and_then(|decision| decision.origin);
        let policy = origin.map_or("", |id| {
            words.entry(id.0).or_insert_with(|| origins.get(id).map(|origin| origin.to_string()).unwrap_or_default())
        });
        let packet = CapturedPacket {
            number: counts.read().written + 1,
            time: captured.time,
            link: LinkType::Ethernet,
            interface: None,
            direction: None,
            data: &captured.bytes,
            original_len: captured.wire_len,
        };
        let written = writer.write(&packet, outcome.in_port, outcome.verdict, &replay::comment(outcome, policy));
        if let Err(error) = written.inspect_err(say) {
            counts.unwritten.fetch_add(1, Ordering::Relaxed);
            for _ in packets {
                counts.unwritten.fetch_add(1, Ordering::Relaxed);
            }
            return Err(error.into());
        }
        counts.written.fetch_add(1, Ordering::Relaxed);
    }
    Ok(writer.finish().and_then(|mut file| file.flush()).inspect_err(say)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_pipe_that_nobody_reads_is_an_error_and_not_a_wait() {
        let path = std::env::temp_dir().join(format!("bulkhead-capture-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = create(&path).unwrap_err().to_string();
        assert!(error.contains("nobody reads this named pipe"), "{error}");
        let reader = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path).unwrap();
        assert!(create(&path).is_ok(), "with a reader");
        drop(reader);
        std::fs::remove_file(&path).unwrap();
    }
}
