//! `--capture`: what comes in, with its verdicts, as a pcapng.
//!
//! The file has the form that `bulkhead replay --write` writes, so that the verdicts of a live vswitch and those of a
//! replay of its capture can be compared.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use bulkhead_control::pipeline::SharedOrigins;
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::vswitch::{Captured, Tap};
use bulkhead_dataplane::{LinkType, PortConfig};
use crossbeam_channel::Receiver;

use super::log;
use crate::replay;

/// The size of the file buffer. Small enough that a full disk is noticed while somebody may still do something about it,
/// and a system call for a dozen packets of full length is little beside the copy that each of them costs.
const FILE_BUFFER: usize = 1 << 14;

/// What is being written.
pub(super) struct Capture {
    thread: JoinHandle<anyhow::Result<()>>,
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

impl Capture {
    /// Creates the file and starts to write what comes through the tap. Ports that are added later are found again by
    /// their packets' addresses.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn start(path: &Path, ports: &[PortConfig], origins: SharedOrigins) -> anyhow::Result<(Self, Tap)> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let writer = CaptureWriter::new(BufWriter::with_capacity(FILE_BUFFER, file), ports)?;
        let (tap, packets) = Tap::new();
        let counts = Arc::new(Counts::default());
        let (told, name) = (Arc::clone(&counts), path.display().to_string());
        let write = move || write(writer, &name, &packets, &origins, &told);
        let thread = std::thread::Builder::new().name("capture".into()).spawn(write)?;
        Ok((Self { thread, counts }, tap))
    }

    /// How many packets there were so far.
    pub(super) fn counters(&self) -> CaptureCounters {
        self.counts.read()
    }

    /// Waits until everything is written. To be called when the workers have ended: the tap ends with them. Answers how
    /// many packets there were, and whether they are all in the file.
    pub(super) fn finish(self) -> (CaptureCounters, anyhow::Result<()>) {
        let ended = self.thread.join();
        let panicked = |_| Err(anyhow::anyhow!("the thread that writes the capture has panicked"));
        (self.counts.read(), ended.unwrap_or_else(panicked))
    }
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
            "the capture {name} cannot be written: {error}; forwarding goes on\n\
             help: make room and start again with another file: this one ends here"
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
