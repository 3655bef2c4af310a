//! Replays a capture through the engine in bursts.

use std::io::Read;
use std::sync::Arc;

use crate::io::{CaptureError, CaptureReader, CapturedPacket, Direction, PortFinder};
use crate::{BURST, LinkType, Outcome, Packet, PortId, Snapshot, Worker};

/// A packet whose bytes were copied to the burst's buffer, because the reader reuses its own.
struct Held {
    number: u64,
    time: u64,
    link: LinkType,
    interface: Option<Arc<str>>,
    direction: Option<Direction>,
    start: usize,
    end: usize,
    original_len: usize,
    in_port: PortId,
}

impl Held {
    fn packet<'a>(&self, bytes: &'a [u8]) -> Packet<'a> {
        let frame = &bytes[self.start..self.end];
        Packet { frame, wire_len: self.original_len, link: self.link, in_port: self.in_port, time: self.time }
    }

    fn captured<'a>(&'a self, bytes: &'a [u8]) -> CapturedPacket<'a> {
        CapturedPacket {
            number: self.number,
            time: self.time,
            link: self.link,
            interface: self.interface.as_ref(),
            direction: self.direction,
            data: &bytes[self.start..self.end],
            original_len: self.original_len,
        }
    }
}

/// Replays a capture through a worker and calls `each` with every packet and its outcome, in file order. Returns the number of packets.
///
/// If no port can be found for a packet (the snapshot has no uplink), it is judged as if received on port 65535, which no snapshot has, and
/// dropped as [`DropReason::UnknownPort`](crate::DropReason::UnknownPort).
///
/// # Errors
/// Errors of `each`, and a read error of the file after `each` was called for all packets before it.
pub fn replay<R: Read, E: From<CaptureError>>(
    capture: &mut CaptureReader<R>,
    snapshot: &Snapshot,
    worker: &mut Worker,
    mut each: impl FnMut(&CapturedPacket<'_>, &Outcome) -> Result<(), E>,
) -> Result<u64, E> {
    let mut finder = PortFinder::new(snapshot);
    let (mut held, mut bytes) = (Vec::with_capacity(BURST), Vec::new());
    let mut outcomes = [Outcome::UNJUDGED; BURST];
    let mut count = 0;
    loop {
        held.clear();
        bytes.clear();
        let end = fill(capture, snapshot, &mut finder, &mut held, &mut bytes);
        let packets: Vec<Packet<'_>> = held.iter().map(|held| held.packet(&bytes)).collect();
        let outcomes = &mut outcomes[..packets.len()];
        worker.process(snapshot, &packets, outcomes);
        for (held, outcome) in held.iter().zip(outcomes.iter()) {
            count += 1;
            each(&held.captured(&bytes), outcome)?;
        }
        match end {
            Ok(true) => {}
            Ok(false) => return Ok(count),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads up to one burst. Returns false at the end of the file.
fn fill<R: Read>(
    capture: &mut CaptureReader<R>,
    snapshot: &Snapshot,
    finder: &mut PortFinder,
    held: &mut Vec<Held>,
    bytes: &mut Vec<u8>,
) -> Result<bool, CaptureError> {
    // `each` may look up what a packet's pod has learned, which later packets of a burst would change.
    let most = if snapshot.names().is_some() { 1 } else { BURST };
    while held.len() < most {
        let Some(packet) = capture.next_packet()? else { return Ok(false) };
        let in_port = finder.find(snapshot, &packet).unwrap_or(PortId(u16::MAX));
        let start = bytes.len();
        bytes.extend_from_slice(packet.data);
        held.push(Held {
            number: packet.number,
            time: packet.time,
            link: packet.link,
            interface: packet.interface.cloned(),
            direction: packet.direction,
            start,
            end: bytes.len(),
            original_len: packet.original_len,
            in_port,
        });
    }
    Ok(true)
}
