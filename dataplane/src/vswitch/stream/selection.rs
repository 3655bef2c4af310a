//! Which packets of a burst tracepoints select.

use super::{MOST_TRACEPOINTS, Tracepoint};
use crate::worker::{Chosen, Judgements};
use crate::{BURST, Verdict};

/// The tracepoints of a plan, and room for what they say of a burst.
#[derive(Debug)]
pub(super) struct Selection {
    /// Bits of the tracepoints that want forwarded packets alone, or dropped ones.
    forwarded_alone: u64,
    dropped_alone: u64,
    all: u64,
    /// For each packet a bit for each tracepoint. Zeros between bursts.
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

    /// Those that want packets with such an end.
    pub(super) const fn wanting(&self, end: Verdict) -> u64 {
        match end {
            Verdict::Forward(_) => self.all & !self.dropped_alone,
            Verdict::Drop(_) => self.all & !self.forwarded_alone,
        }
    }

    /// Those that want no packet before it is dropped.
    pub(super) const fn dropped_alone(&self) -> u64 {
        self.dropped_alone
    }

    /// Those that want no packet before it is dropped, and this one then.
    fn wanting_if_lost(&self, points: &[Tracepoint], burst: &Judgements<'_>, at: usize) -> u64 {
        let wants = |(bit, point): &(usize, &Tracepoint)| {
            self.dropped_alone >> bit & 1 == 1 && burst.is_selected(at, &point.filter)
        };
        if self.dropped_alone == 0 {
            return 0;
        }
        points.iter().take(MOST_TRACEPOINTS).enumerate().filter(wants).map(|(bit, _)| 1 << bit).sum()
    }

    /// Gives each packet of a burst that some select to `each`, in order, and which tracepoints these are: of a packet that is
    /// let through all whose filters select it, as its end is not known yet. Packets that others judge are left out.
    pub(super) fn select(&mut self, points: &[Tracepoint], burst: &Judgements<'_>, mut each: impl FnMut(usize, u64)) {
        let mut some = Chosen::NONE;
        for (bit, point) in points.iter().take(MOST_TRACEPOINTS).enumerate() {
            // What leaves is none of such a one's, and drops are few: so most bursts cost it nothing.
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
                // It may be lost yet, and is theirs then.
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
