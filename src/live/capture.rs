//! `--capture`: what comes in, with its verdicts, as a pcapng.
//!
//! The file has the form that `bulkhead replay --write` writes, so that the verdicts of a live vswitch and those of a
//! replay of its capture can be compared.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::thread::JoinHandle;

use anyhow::Context;
use bulkhead_control::pipeline::SharedOrigins;
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::vswitch::{Captured, Tap};
use bulkhead_dataplane::{LinkType, PortConfig};
use crossbeam_channel::Receiver;

use crate::replay;

/// The size of the file buffer, as when replaying.
const FILE_BUFFER: usize = 1 << 18;

/// What is being written.
pub(super) struct Capture {
    thread: JoinHandle<anyhow::Result<u64>>,
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
        let write = move || write(writer, &packets, &origins);
        let thread = std::thread::Builder::new().name("capture".into()).spawn(write)?;
        Ok((Self { thread }, tap))
    }

    /// Waits until everything is written. To be called when the workers have ended: the tap ends with them. Answers how
    /// many packets there were.
    ///
    /// # Errors
    /// When they could not be written.
    pub(super) fn finish(self) -> anyhow::Result<u64> {
        self.thread.join().map_err(|_| anyhow::anyhow!("the thread that writes the capture has panicked"))?
    }
}

fn write(
    mut writer: CaptureWriter<BufWriter<File>>,
    packets: &Receiver<Captured>,
    origins: &SharedOrigins,
) -> anyhow::Result<u64> {
    let mut words: HashMap<u32, String> = HashMap::new();
    let mut number = 0;
    for captured in packets {
        number += 1;
        let outcome = &captured.outcome;
        let origin = outcome.decision.and_then(|decision| decision.origin);
        let policy = origin.map_or("", |id| {
            words.entry(id.0).or_insert_with(|| origins.get(id).map(|origin| origin.to_string()).unwrap_or_default())
        });
        let packet = CapturedPacket {
            number,
            time: captured.time,
            link: LinkType::Ethernet,
            interface: None,
            direction: None,
            data: &captured.bytes,
            original_len: captured.wire_len,
        };
        writer.write(&packet, outcome.in_port, outcome.verdict, &replay::comment(outcome, policy))?;
    }
    writer.finish()?.flush()?;
    Ok(number)
}
