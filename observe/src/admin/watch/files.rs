//! The file, or ring of files, of `bulkhead capture`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use bulkhead_answers::output;
use bulkhead_dataplane::io::{CaptureWriter, CapturedPacket};
use bulkhead_dataplane::{DropReason, LinkType, PortConfig, PortId, PortKind, Verdict};
use serde_json::Value;

use super::super::protocol::{WatchedPort, Watching};
use crate::args::Capture;

/// Bytes in a megabyte of `--file-size`, as in `tcpdump -C`.
const MEGABYTE: u64 = 1_000_000;

/// The file, or ring of files, of a capture.
pub(super) struct Files {
    path: PathBuf,
    /// Number of files and maximum size in bytes. `None` for one file of any size.
    ring: Option<(u32, u64)>,
    number: u32,
    ports: Vec<PortConfig>,
    writer: Option<CaptureWriter<Box<dyn Write>>>,
    /// Bytes in the current file.
    length: u64,
    packets: u64,
}

impl Files {
    /// Opens the first file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn new(args: &Capture, watching: &Watching) -> anyhow::Result<Self> {
        let is_stdout = args.write == Path::new("-");
        if is_stdout && args.file_size.is_some() {
            bail!("standard output cannot be split into several files\n  help: pass a file name, or omit --file-size");
        }
        // Without --files, no file is overwritten.
        let ring = args.file_size.map(|size| (args.files.unwrap_or(u32::MAX), u64::from(size) * MEGABYTE));
        let ports = watching.ports.iter().map(port).collect();
        let mut files = Self { path: args.write.clone(), ring, number: 0, ports, writer: None, length: 0, packets: 0 };
        files.open()?;
        Ok(files)
    }

    /// Returns the path of the current file: `web.pcapng`, or `web.3.pcapng` in a ring.
    fn name(&self) -> PathBuf {
        match self.ring {
            None => self.path.clone(),
            Some(_) => {
                let extension = self.path.extension().and_then(|text| text.to_str()).unwrap_or("pcapng");
                self.path.with_extension(format!("{}.{extension}", self.number))
            }
        }
    }

    fn open(&mut self) -> anyhow::Result<()> {
        let name = self.name();
        let into: Box<dyn Write> = if self.path == Path::new("-") {
            Box::new(output::stdout())
        } else {
            let file = File::create(&name).with_context(|| format!("cannot write {}", name.display()))?;
            Box::new(BufWriter::new(file))
        };
        self.writer = Some(CaptureWriter::new(into, &self.ports)?);
        self.length = 0;
        Ok(())
    }

    /// Writes a packet from the vswitch's event.
    ///
    /// # Errors
    /// If the event cannot be parsed, or the file cannot be written.
    pub(super) fn write(&mut self, packet: &Value) -> anyhow::Result<()> {
        let bytes = packet["bytes"].as_str().and_then(bytes).context("the vswitch's event has no packet bytes")?;
        let time = packet["time"].as_str().context("the vswitch's event has no time")?;
        let time = humantime::parse_rfc3339(time)?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = |name: &Value| self.ports.iter().position(|port| Some(&*port.name) == name.as_str());
        let id = |name: &Value| id(name).and_then(|at| u16::try_from(at).ok()).map_or(PortId(u16::MAX), PortId);
        let in_port = id(&packet["in"]);
        let verdict = match packet["reason"].as_str() {
            None => Verdict::Forward(id(&packet["walk"]["out"])),
            Some(name) => {
                let known = DropReason::ALL.iter().find(|reason| reason.name() == name);
                Verdict::Drop(known.copied().unwrap_or(DropReason::Unjudged))
            }
        };
        self.packets += 1;
        let captured = CapturedPacket {
            number: self.packets,
            time: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            link: LinkType::Ethernet,
            interface: None,
            direction: None,
            data: &bytes,
            original_len: packet["length"].as_u64().and_then(|len| usize::try_from(len).ok()).unwrap_or(bytes.len()),
        };
        let comment = comment(packet);
        // Upper bound of the block's overhead: the maximum file size is approximate.
        self.length += (bytes.len() + comment.len() + 64) as u64;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        // Flush each packet, so that the file is complete when the user presses Ctrl-C.
        let whole = writer.write(&captured, in_port, verdict, &comment).and_then(|()| writer.flush());
        whole.with_context(|| format!("cannot write {}", self.path.display()))?;
        match self.ring {
            Some((files, most)) if self.length >= most => {
                self.close()?;
                self.number = (self.number + 1) % files;
                self.open()
            }
            _ => Ok(()),
        }
    }

    fn close(&mut self) -> anyhow::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        writer.finish()?.flush().with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Closes the file. Returns the number of packets.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn finish(mut self) -> anyhow::Result<u64> {
        self.close()?;
        Ok(self.packets)
    }
}

/// Returns a packet's comment: its verdict and reason, in the format of [`bulkhead_answers::replay::comment`].
fn comment(packet: &Value) -> String {
    let walk = &packet["walk"];
    let mut text = walk["verdict"].as_str().unwrap_or_default().to_owned();
    // The rule that allowed a packet is not the reason of its loss.
    let before_origin = if packet["meant_for"].is_string() { ", allowed by " } else { ": " };
    for (before, part) in [
        (" ", &walk["reason"]),
        (" on its way to ", &packet["meant_for"]),
        (before_origin, &walk["origin"]),
        (", session ", &walk["session"]),
    ] {
        if let Some(part) = part.as_str() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    if let (Some(from), Some(to)) = (packet["translated_from"].as_str(), packet["translated_to"].as_str()) {
        text.push_str(&format!(", translated to {from} > {to}"));
    }
    text
}

fn port(told: &WatchedPort) -> PortConfig {
    let kind = match &*told.kind {
        "uplink" => PortKind::Uplink,
        "host" => PortKind::Host,
        _ => PortKind::Pod,
    };
    PortConfig { addresses: told.addresses.clone(), ..PortConfig::new(told.name.as_str(), kind) }
}

/// Decodes hexadecimal digits. `None` if the text has other characters or an odd length.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_and_nothing_else() {
        assert_eq!(bytes("00ff7a"), Some(vec![0, 255, 0x7a]));
        assert_eq!((bytes("0"), bytes("0g"), bytes("")), (None, None, Some(vec![])));
    }

    #[test]
    fn a_full_disk_is_told_with_the_name_of_the_file() {
        let path = "/dev/full".into();
        let mut files = Files { path, ring: None, number: 0, ports: vec![], writer: None, length: 0, packets: 0 };
        files.open().unwrap();
        let packet = serde_json::json!({"time": "2026-11-24T14:32:07Z", "bytes": "00"});
        let error = files.write(&packet).unwrap_err();
        assert_eq!(format!("{error:#}"), "cannot write /dev/full: No space left on device (os error 28)");
    }
}
