//! `--capture`: writes received packets and their verdicts to a pcapng file.
//!
//! The format is that of `bulkhead replay --write`, so the verdicts of a live vswitch can be compared with a replay of its capture.

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

/// Size of the file buffer in bytes. Small enough to notice a full disk early. One system call per dozen full-length packets costs little,
/// compared to copying them.
const FILE_BUFFER: usize = 1 << 14;

/// At shutdown, how long writing may make no progress, as with a pipe whose reader has stopped. A slow disk always makes progress.
const STALLED: Duration = Duration::from_secs(2);

/// `O_NONBLOCK` on Linux, for all supported processors (others: MIPS, SPARC, Alpha). This avoids a dependency on `libc`.
const O_NONBLOCK: i32 = 0o4000;

/// `ENXIO`: opening a pipe without a reader fails with this error.
const NO_READER: i32 = 6;

/// A running capture. Its thread writes the file.
pub(super) struct Capture {
    /// Receives the result when the writer's thread ends.
    ended: Receiver<anyhow::Result<()>>,
    counts: Arc<Counts>,
}

/// Numbers of packets that the capture's thread received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct CaptureCounters {
    /// Packets written to the file's buffer. If writing fails, the last 16 KiB may be missing from the file.
    pub written: u64,
    /// Packets not written because writing had failed.
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

/// A handle that reads the counters of a running capture.
#[derive(Clone)]
pub(super) struct Reading(Arc<Counts>);

impl Reading {
    /// Returns the packet counts since the capture started.
    pub(super) fn counters(&self) -> CaptureCounters {
        self.0.read()
    }
}

impl Capture {
    /// Creates the file and starts a thread that writes the packets from the tap. Packets of ports that are added later are attributed by
    /// their addresses.
    ///
    /// # Errors
    /// If the file cannot be created, or the thread cannot be started.
    pub(super) fn start(path: &Path, ports: &[PortConfig], origins: SharedOrigins) -> anyhow::Result<(Self, Tap)> {
        let file = create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let writer = CaptureWriter::new(BufWriter::with_capacity(FILE_BUFFER, file), ports)?;
        let (tap, packets) = Tap::new();
        let counts = Arc::new(Counts::default());
        let (told, name) = (Arc::clone(&counts), path.display().to_string());
        let (tell, ended) = crossbeam_channel::bounded(1);
        // Nobody receives the result if the process does not wait.
        let write = move || drop(tell.send(write(writer, &name, &packets, &origins, &told)));
        std::thread::Builder::new().name("capture".into()).spawn(write)?;
        Ok((Self { ended, counts }, tap))
    }

    /// Returns a handle that reads the counters.
    pub(super) fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.counts))
    }

    /// Waits until all packets are written, or until writing makes no progress for [`STALLED`]. Call this after the workers have ended, as
    /// the tap ends with them. Returns the counters, and an error if the file is incomplete.
    pub(super) fn finish(self) -> (CaptureCounters, anyhow::Result<()>) {
        let mut before = self.counts.read();
        let whole = loop {
            match self.ended.recv_timeout(STALLED) {
                Ok(ended) => break ended,
                Err(RecvTimeoutError::Timeout) if self.counts.read() == before => {
                    break Err(anyhow::anyhow!("its reader has read nothing for {STALLED:?}; the rest is lost"));
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

/// Creates the file, or opens a named pipe without waiting for its reader.
fn create(path: &Path) -> anyhow::Result<File> {
    if std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        let probe = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path);
        // Keeps the pipe open until the second `open`. The second handle blocks when the pipe is full; the writer's thread may wait.
        let _probe = probe.map_err(|error| {
            let reader = error.raw_os_error() == Some(NO_READER);
            let help = if reader { "\n  help: nobody reads this named pipe; start its reader first" } else { "" };
            anyhow::anyhow!("{error}{help}")
        })?;
        return Ok(OpenOptions::new().write(true).open(path)?);
    }
    Ok(File::create(path)?)
}

/// Writes packets until the tap ends. At the first error, logs it, then only counts further packets; forwarding continues. Does not retry,
/// as a file with a gap would look complete.
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
