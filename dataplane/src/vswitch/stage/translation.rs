//! Writes translations into packets.

use super::super::arrivals::Arrivals;
use super::super::stream::Known;
use super::Stage;
use crate::flow::Translation;
use crate::forward::{translate_error, write_ends, write_plain_v4};
use crate::translations::Translated;
use crate::{DropReason, Judged, Verdict};

impl Stage {
    /// Writes the engine's translations into the packets from `done` on. Earlier ones have a single frame and were already written. Not
    /// inlined, and only called if there are translations.
    #[inline(never)]
    pub(super) fn translate(&mut self, arrivals: &mut Arrivals, judged: &mut [Judged], done: usize) {
        let Self { engine, umem, ledger, .. } = self;
        let (packets, frames) = arrivals.parts_mut();
        let mut first = done;
        for (at, (packet, judged)) in packets.iter().zip(judged).enumerate().skip(done) {
            let frame = &mut frames[first];
            first += packet.rest() + 1;
            if judged.verdict.out_port().is_none() {
                continue;
            }
            let Some(translated) = engine.translated(judged) else { continue };
            let bytes = umem.bytes_mut(frame);
            if !write_sent(bytes, packet.len(), &translated) {
                // The first fragment of an SCTP packet: its checksum covers bytes of other fragments.
                let reason = DropReason::L4Truncated;
                *judged = Judged { verdict: Verdict::Drop(reason), translation: None, ..*judged };
                let known = engine.outcome(at).map_or(Known::LetThrough, Known::Judged);
                ledger.tell_loss(umem, frame, packet.len(), reason, known);
            }
        }
    }

    /// Returns a translated packet's addresses and ports before translation. `None` for an ICMP error, about which no error may be sent.
    pub(super) fn received(&self, judged: &Judged) -> Option<Translation> {
        self.engine.translated(judged)?.received()
    }

    /// Restores the original addresses of a dropped packet, for an ICMP error that quotes it.
    pub(super) fn restore(&self, frame: &mut [u8], len: usize, judged: &Judged) {
        if let Some(translated) = self.engine.translated(judged) {
            write(frame, len, &translated, Side::Received);
        }
    }
}

/// Which addresses to write: those before the translation or those after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Received,
    Sent,
}

/// Writes the addresses after translation. Returns false, without changes, if that is impossible.
#[inline(never)]
pub(super) fn write_sent(frame: &mut [u8], wire_len: usize, translated: &Translated<'_>) -> bool {
    write(frame, wire_len, translated, Side::Sent)
}

/// Writes addresses into a frame. Returns false, without changes, if that is impossible.
fn write(frame: &mut [u8], wire_len: usize, translated: &Translated<'_>, side: Side) -> bool {
    match translated {
        Translated::PlainV4(packet) if side == Side::Sent && write_plain_v4(frame, packet) => true,
        Translated::PlainV4(packet) => {
            let ends = if side == Side::Sent { packet.sent() } else { packet.received() };
            write_ends(frame, wire_len, &ends, true)
        }
        Translated::Packet(packet) => {
            let ends = if side == Side::Sent { packet.sent() } else { packet.received() };
            write_ends(frame, wire_len, &ends, packet.is_plain())
        }
        Translated::Error(error) => {
            let (outer, quoted) = match side {
                Side::Sent => (error.sent, error.quoted.sent()),
                Side::Received => (error.received, error.quoted.received()),
            };
            translate_error(frame, wire_len, outer, &quoted.translation())
        }
    }
}
