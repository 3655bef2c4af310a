//! Selects packets of a burst by tracepoints.

use super::{MOST_TRACEPOINTS, Tracepoint};
use crate::worker::{Chosen, Judgements};
use crate::{BURST, Verdict};

/// A plan's tracepoints, with buffers for a burst.
#[derive(Debug)]
pub(super) struct Selection {
    /// Bit sets: the tracepoints that select forwarded packets only, and those that select dropped packets only.
    forwarded_alone: u64,
    dropped_alone: u64,
    all: u64,
    /// For each packet of a burst, the set of tracepoints that select it. Zeros between bursts.
    selected: Box<[u64; BURST]>,
}

impl Selection {
    pub(super) fn new(points: &[Tracepoint]) -> Self {
        let points = || points.iter().take(MOST_TRACEPOINTS).enumerate();
        let bits = |wanted: Option<bool>| {
            points().filter(|(_, point)| point.forwarded == wanted).map(|(bit, _)| 1u64 << bit).sum::<u64>()
        };
        let (forwarded_alone, dropped_alone) = (bits(Some(true)), bits(Some(false)));
        let all = forwarded_alone | dropped_alone | bits(None);
        Self { forwarded_alone, dropped_alone, all, selected: Box::new([0; BURST]) }
    }

    /// Returns the set of tracepoints that accept packets with this verdict, whatever their filters say.
    pub(super) const fn wanting(&self, end: Verdict) -> u64 {
        match end {
            Verdict::Forward(_) => self.all & !self.dropped_alone,
            Verdict::Drop(_) => self.all & !self.forwarded_alone,
        }
    }

    /// Returns the set of tracepoints that select dropped packets only.
    pub(super) const fn dropped_alone(&self) -> u64 {
        self.dropped_alone
    }

    /// Returns the set of tracepoints that would select this allowed packet if it were lost later.
    fn wanting_if_lost(&self, points: &[Tracepoint], burst: &Judgements<'_>, at: usize) -> u64 {
        let wants = |(bit, point): &(usize, &Tracepoint)| {
            self.dropped_alone >> bit & 1 == 1 && burst.is_selected(at, &point.filter)
        };
        if self.dropped_alone == 0 {
            return 0;
        }
        points.iter().take(MOST_TRACEPOINTS).enumerate().filter(wants).map(|(bit, _)| 1 << bit).sum()
    }

    /// Calls `each` with every selected packet of a burst and its tracepoints, in order. For an allowed packet these are all tracepoints
    /// whose filters match, because it may still be lost. Packets that another worker judges are skipped.
    pub(super) fn select(&mut self, points: &[Tracepoint], burst: &Judgements<'_>, mut each: impl FnMut(usize, u64)) {
        let mut some = Chosen::NONE;
        for (bit, point) in points.iter().take(MOST_TRACEPOINTS).enumerate() {
            // Such a tracepoint selects no forwarded packets, and drops are few, so most bursts cost it nothing.
            let chosen = match point.forwarded {
                Some(false) => burst.select_dropped(&point.filter),
                _ => burst.select(&point.filter),
            };
            if chosen.is_empty() {
                continue;
            }
            chosen.each(|at| self.selected[at] |= 1 << bit);
            some.add_all(&chosen);
        }
        if some.is_empty() {
            return;
        }
        some.each(|at| {
            let selected = std::mem::take(&mut self.selected[at]);
            let judged = &burst.judged()[at];
            let wanted = match judged.verdict {
                // The packet may still be lost, which these tracepoints select.
                Verdict::Forward(_) if selected != 0 => selected | self.wanting_if_lost(points, burst, at),
                Verdict::Forward(_) => 0,
                Verdict::Drop(_) => selected & !self.forwarded_alone,
            };
            if wanted != 0 && judged.elsewhere.is_none() {
                each(at, wanted);
            }
        });
    }
}
