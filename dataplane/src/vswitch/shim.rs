//! Stands in for the engine's lean entry until that lands.
use ahash::RandomState;

use crate::{LinkType, Outcome, Packet, PortId, SessionConfig, SessionState, Snapshot, Verdict, Worker};

#[derive(Clone, Debug)]
pub(super) struct Affinity(RandomState);

impl Affinity {
    pub(super) fn new() -> Self {
        Self(RandomState::new())
    }

    pub(super) fn of(&self, frame: &[u8]) -> u32 {
        let address = |at: usize| frame.get(at..at + 4).filter(|_| frame[12..14] == [8, 0]);
        let (Some(a), Some(b)) = (address(26), address(30)) else { return 0 };
        (self.0.hash_one((a.min(b), a.max(b))) >> 32) as u32
    }
}

#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    pub(super) frame: &'a [u8],
    pub(super) wire_len: usize,
    pub(super) in_port: PortId,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) body: BodyKind,
    pub(super) session: Option<SessionState>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BodyKind {
    Unknown,
}

pub(super) fn judge<'a>(
    engine: &mut Worker,
    snapshot: &Snapshot,
    time: u64,
    packets: impl IntoIterator<Item = Received<'a>>,
    judged: &mut Vec<Judged>,
) {
    judged.clear();
    for Received { frame, wire_len, in_port } in packets {
        let mut outcomes = [Outcome::UNJUDGED];
        let packet = Packet { frame, wire_len, link: LinkType::Ethernet, in_port, time };
        engine.process(snapshot, &[packet], &mut outcomes);
        let Outcome { verdict, session, .. } = outcomes[0];
        judged.push(Judged { verdict, body: BodyKind::Unknown, session });
    }
}

pub(super) fn live(sessions: SessionConfig) -> SessionConfig {
    SessionConfig { remember_refused: false, ..sessions }
}
