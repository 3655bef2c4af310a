//! The end of a port's interface, with which the pod behind it is gone.
//!
//! A deleted veth is first shut down, which closes the port and keeps its sessions, and then disappears. A renamed interface keeps them too.

use super::cause::Cause;
use super::datapath::Datapath;
use super::interface::Interface;
use super::state::State;
use super::{InterfaceCounters, Kept};

impl<A> Interface<A> {
    /// Whether the port's interface is known not to exist, so that no host has the pod's addresses.
    pub(super) const fn is_gone(&self) -> bool {
        self.is_missing
    }

    /// Closes the port because the interface is no longer its own. `has_ended` is false if the interface may have been renamed only. Returns
    /// the attachment, which stays in that case, and whether the snapshot must change.
    pub(super) fn lose<D: Datapath<Attachment = A>>(
        &mut self,
        why: &Cause<'_>,
        has_ended: bool,
        datapath: &mut D,
        counters: &mut InterfaceCounters,
    ) -> (Option<Kept<A>>, bool) {
        let was_open = matches!(self.state, State::Open { .. });
        if was_open {
            self.close(why, datapath, counters);
        }
        let kept = self.take();
        if has_ended {
            self.end(datapath);
        }
        (kept, was_open | has_ended)
    }

    /// Ends the sessions of a closed port whose interface has ended.
    pub(super) fn end<D: Datapath<Attachment = A>>(&mut self, datapath: &mut D) {
        self.is_missing = true;
        datapath.end(&self.entry);
    }
}
