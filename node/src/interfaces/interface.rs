//! The state machine of one port and its interface, with the log messages of each transition.

use std::time::Instant;

use bulkhead_dataplane::Link;
use bulkhead_dataplane::io::LinkStatus;

use super::cause::Cause;
use super::datapath::{AttachError, Datapath, OpenError, Opening};
use super::state::{ATTACH_RETRY, BUSY, BUSY_RETRY, CARRIER, RETRY, State, Wait};
use super::{InterfaceCounters, Kept, PortState, PortStatus};
use crate::config::PortEntry;
use crate::links::Changes;
use crate::log;

/// A configured or added port, with the state of its interface.
#[derive(Debug)]
pub(super) struct Interface<A> {
    pub(super) entry: PortEntry,
    pub(super) state: State<A>,
    /// The last reported reason why the port is not open, to log each reason once. `None` while it is open.
    pub(super) said: Option<String>,
    /// Whether the last query of the interface's details failed, to log that once.
    is_unanswered: bool,
    /// Whether the interface is known not to exist. False until the table of interfaces was read.
    pub(super) is_missing: bool,
}

impl<A> Interface<A> {
    pub(super) fn new(entry: &PortEntry) -> Self {
        Self { entry: entry.clone(), state: State::Absent, said: None, is_unanswered: false, is_missing: false }
    }

    /// Returns the open port's MAC address and usable MTU. `None` if the port is not open.
    pub(super) fn link(&self) -> Option<Link> {
        match self.state {
            State::Open { link, largest_mtu, .. } => Some(Link { mtu: link.mtu.min(largest_mtu), ..link }),
            State::Absent | State::Unprotected { .. } | State::Closed { .. } => None,
        }
    }

    /// Returns the port's status for reports.
    pub(super) fn status(&self) -> PortStatus {
        let state = match self.state {
            State::Absent => PortState::Absent,
            State::Unprotected { .. } => PortState::Unprotected,
            State::Closed { .. } => PortState::Closed,
            State::Open { .. } => PortState::Open,
        };
        let PortEntry { name, kind, interface, added, .. } = self.entry.clone();
        let why = self.said.clone().filter(|_| state != PortState::Open);
        PortStatus { name, kind, interface, added, state, why }
    }

    /// Returns the time of the next attempt to attach or open. `None` if the port does not wait for a time.
    pub(super) const fn next_attempt(&self) -> Option<Instant> {
        match self.state {
            State::Unprotected { again, .. } => Some(again),
            State::Closed { wait: Wait::Turn { at, .. } | Wait::Carrier { until: at }, .. } => Some(at),
            State::Absent | State::Closed { wait: Wait::Up | Wait::Never, .. } | State::Open { .. } => None,
        }
    }

    /// Whether the port should be opened now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_attempt().is_some_and(|at| at <= now) && matches!(self.state, State::Closed { .. })
    }

    /// Updates an attached port to its interface's present state, and closes it if necessary. Returns the attachment if the interface is no
    /// longer this port's, and whether an open port has changed.
    pub(super) fn follow<D: Datapath<Attachment = A>>(
        &mut self,
        link: Option<&LinkStatus>,
        changes: &Changes,
        datapath: &mut D,
        now: Instant,
        counters: &mut InterfaceCounters,
    ) -> (Option<Kept<A>>, bool) {
        let (State::Closed { index, attachment, .. } | State::Open { index, attachment, .. }) = &mut self.state else {
            return (None, false);
        };
        let index = *index;
        let is_other = |link: &LinkStatus| {
            link.index != index
                || (changes.renew(index) && !datapath.is_here_as(attachment, index))
                || (changes.is_all() && datapath.index(attachment) != Some(index))
        };
        let link = match link {
            None => {
                let why = "its interface no longer exists";
                let has_ended = datapath.index(attachment).is_none();
                return self.lose(&Cause::Interface(why), has_ended, datapath, counters);
            }
            Some(link) if is_other(link) => {
                let why = "its interface was replaced by another one of the same name";
                return self.lose(&Cause::Fault(why), true, datapath, counters);
            }
            Some(link) => link,
        };
        let mut fault = None;
        if changes.touch(index) {
            match datapath.refresh(&self.entry, link, attachment) {
                Ok(reason) => {
                    self.is_unanswered = false;
                    fault = reason;
                }
                Err(error) => self.say_unanswered(&error),
            }
        }
        let why = match &fault {
            _ if !link.up => Some(Cause::Interface("its interface was shut down")),
            fault => fault.as_deref().map(Cause::Fault),
        };
        let changed = match (&mut self.state, why) {
            (State::Open { .. }, Some(why)) => {
                self.close(&why, datapath, counters);
                true
            }
            (State::Open { link: before, largest_mtu, .. }, None) => {
                let (after, largest) = (link_of(link), *largest_mtu);
                let before = std::mem::replace(before, after);
                if before.mtu != after.mtu {
                    say_mtu(&self.entry, after.mtu, largest);
                }
                before != after
            }
            _ => false,
        };
        self.settle(link, now);
        (None, changed)
    }

    /// Updates the event for which a closed port waits, by whether its interface is up.
    fn settle(&mut self, link: &LinkStatus, now: Instant) {
        let State::Closed { wait, .. } = &mut self.state else { return };
        if let Some(kept_closed) = self.entry.kept_closed() {
            *wait = Wait::Never;
            let kept_closed = kept_closed.to_string();
            self.say(kept_closed);
            return;
        }
        if link.up {
            // A pod sends as soon as its added port is reported as open; without a settled carrier, the kernel would drop those packets.
            let is_settling = link.settling && self.entry.added.is_some();
            match *wait {
                Wait::Up if is_settling => *wait = Wait::Carrier { until: now + CARRIER },
                Wait::Up => *wait = Wait::until(now),
                Wait::Carrier { .. } if !is_settling => *wait = Wait::until(now),
                Wait::Carrier { .. } | Wait::Turn { .. } | Wait::Never => {}
            }
            return;
        }
        *wait = Wait::Up;
        let interface = &self.entry.interface;
        let what = format!("waits for its interface: {interface} is down\nhelp: ip link set {interface} up");
        match self.entry.added {
            // Not logged: the kernel's message may predate our setting the interface up.
            Some(_) => self.said = Some(what),
            None => self.say(what),
        }
    }

    /// Removes and returns the attachment. The state is [`State::Absent`] then.
    pub(super) fn take(&mut self) -> Option<Kept<A>> {
        match std::mem::replace(&mut self.state, State::Absent) {
            State::Closed { index, attachment, .. } | State::Open { index, attachment, .. } => {
                Some(Kept { index, attachment, name: self.entry.interface.clone(), port: self.entry.name.clone() })
            }
            State::Absent | State::Unprotected { .. } => None,
        }
    }

    /// Sets the port to absent, because no interface has the configured name. Logs that once, except for an added port. `is_missing` is false
    /// if its interface exists under another name.
    pub(super) fn wait_for_interface(&mut self, is_missing: bool) {
        self.state = State::Absent;
        self.is_missing = is_missing;
        let what = format!("waits for its interface: {} does not exist", self.entry.interface);
        match self.entry.added {
            // Not logged: the client that added the port receives the reason and removes the port.
            Some(_) => self.said = Some(what),
            None => self.say(what),
        }
    }

    /// Sets the port to absent, because the port `other` owns the interface under another name. Logs that once.
    pub(super) fn wait_for_other(&mut self, other: &str) {
        self.state = State::Absent;
        let name = &self.entry.interface;
        self.say(format!(
            "cannot be opened: {name} is the interface of port {other} under another name\n\
             help: an interface can belong to only one port; remove one of the two"
        ));
    }

    /// Sets an added port's interface up. Its creator leaves it down, so that the vswitch attaches before the first packet. `None` if the
    /// interface is already up, the port must stay closed, or the port belongs to the configuration.
    fn set_up<D: Datapath<Attachment = A>>(&self, link: &LinkStatus, datapath: &mut D) -> Option<Result<(), String>> {
        let is_wanted = self.entry.added.is_some() && self.entry.kept_closed().is_none() && !link.up;
        is_wanted.then(|| datapath.set_up(link))
    }

    /// Whether attaching to this unchanged interface failed, and its retry is not due yet.
    pub(super) fn is_postponed(&self, index: u32, changes: &Changes, now: Instant) -> bool {
        matches!(self.state, State::Unprotected { index: known, again, .. }
            if known == index && now < again && !changes.touch(index))
    }

    /// Applies the result of attaching: closed if it succeeded, unprotected if the kernel refused.
    pub(super) fn take_attached<D: Datapath<Attachment = A>>(
        &mut self,
        attached: Result<A, AttachError>,
        link: &LinkStatus,
        datapath: &mut D,
        now: Instant,
        counters: &mut InterfaceCounters,
    ) {
        match attached {
            Ok(attachment) => {
                self.is_missing = false;
                self.state = State::Closed { index: link.index, attachment, wait: Wait::Up };
                match self.set_up(link, datapath) {
                    // The kernel will report that the interface is up.
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        let interface = &self.entry.interface;
                        self.say(format!("waits for its interface: {interface} cannot be set up: {error}"));
                    }
                    None => self.settle(link, now),
                }
            }
            Err(AttachError::Gone) => self.state = State::Absent,
            Err(AttachError::Refused(error)) => {
                let counted = match self.state {
                    State::Unprotected { index, counted, .. }
                        if index == link.index && now.duration_since(counted) < RETRY =>
                    {
                        counted
                    }
                    _ => {
                        counters.refused += 1;
                        now
                    }
                };
                self.state = State::Unprotected { index: link.index, counted, again: now + ATTACH_RETRY };
                self.say(format!(
                    "cannot be opened: {error}\nuntil it opens, its packets go to the host's stack without policy"
                ));
            }
        }
    }

    /// Opens a due port. Returns whether it is open now.
    pub(super) fn open<D: Datapath<Attachment = A>>(
        &mut self,
        link: Option<&LinkStatus>,
        datapath: &mut D,
        now: Instant,
        counters: &mut InterfaceCounters,
    ) -> bool {
        let State::Closed { index, attachment, wait } = &mut self.state else { return false };
        let opened = match link.filter(|link| link.index == *index && link.up) {
            Some(link) => datapath.open(&self.entry, link, attachment).map(|opening| (link_of(link), opening)),
            None => Err(OpenError::Gone),
        };
        let busy_since = match *wait {
            Wait::Turn { busy_since, .. } => busy_since.unwrap_or(now),
            Wait::Up | Wait::Carrier { .. } | Wait::Never => now,
        };
        let error = match opened {
            Ok((link, Opening { largest_mtu })) => {
                if let Some(Kept { index, attachment, .. }) = self.take() {
                    self.state = State::Open { index, attachment, link, largest_mtu };
                }
                counters.opened += 1;
                self.said = None;
                return true;
            }
            Err(OpenError::Gone) => {
                // The kernel will report what happened to the interface.
                *wait = Wait::until(now + RETRY);
                return false;
            }
            Err(OpenError::Busy(_)) if now.duration_since(busy_since) < BUSY => {
                *wait = Wait::Turn { at: now + BUSY_RETRY, busy_since: Some(busy_since) };
                return false;
            }
            Err(OpenError::Busy(error) | OpenError::Refused(error)) => error,
        };
        *wait = Wait::until(now + RETRY);
        counters.refused += 1;
        self.say(format!("cannot be opened: {error}\nuntil it opens, all its packets are dropped"));
        false
    }

    /// Closes an open port that failed in its worker. The port is due to be reopened at once if its interface still exists.
    pub(super) fn fail<D: Datapath<Attachment = A>>(
        &mut self,
        why: &str,
        datapath: &mut D,
        now: Instant,
        counters: &mut InterfaceCounters,
    ) {
        let attachment = self.state.attachment();
        let has_gone = attachment.is_some_and(|attachment| datapath.index(attachment).is_none());
        let cause = if has_gone { Cause::Interface(why) } else { Cause::Fault(why) };
        self.close(&cause, datapath, counters);
        if let State::Closed { wait, .. } = &mut self.state {
            *wait = Wait::until(now);
            if has_gone {
                self.state = State::Absent;
                self.end(datapath);
            }
        }
    }

    /// Closes an open port, which stays attached, and logs the cause.
    pub(super) fn close<D: Datapath<Attachment = A>>(
        &mut self,
        cause: &Cause<'_>,
        datapath: &mut D,
        counters: &mut InterfaceCounters,
    ) {
        let Some(Kept { index, mut attachment, .. }) = self.take() else { return };
        datapath.close(&self.entry, &mut attachment);
        self.state = State::Closed { index, attachment, wait: Wait::Up };
        counters.removed += 1;
        cause.tell(&self.entry);
        // The cause is logged, so a missing interface must not be logged next.
        self.said = Some(format!("waits for its interface: {} does not exist", self.entry.interface));
    }

    /// Makes a postponed attempt to attach or open due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        match &mut self.state {
            State::Unprotected { again, .. } => *again = now,
            State::Closed { wait: Wait::Turn { at, .. }, .. } => *at = now,
            State::Absent
            | State::Closed { wait: Wait::Up | Wait::Carrier { .. } | Wait::Never, .. }
            | State::Open { .. } => {}
        }
    }

    /// Logs once that the kernel does not answer. The port stays as it is.
    fn say_unanswered(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_unanswered, true) {
            log::error(&format!(
                "port {}: cannot read the state of its interface from the kernel; the port stays as it is\n{error}",
                self.entry
            ));
        }
    }

    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            log::warn(&format!("port {} {what}", self.entry));
            self.said = Some(what);
        }
    }
}

fn link_of(link: &LinkStatus) -> Link {
    // An IP packet has at most 65,535 bytes.
    Link { mac: link.mac, mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX) }
}

/// Logs an MTU change of an open port. An MTU above `largest` does not close the port, because shorter packets still pass.
fn say_mtu(entry: &PortEntry, mtu: u16, largest: u16) {
    if mtu <= largest {
        log::info(&format!("port {entry}: the MTU of its interface is now {mtu}"));
        return;
    }
    log::warn(&format!(
        "port {entry}: the MTU of its interface is now {mtu}, and packets longer than {largest} bytes are lost: they need \
         several buffers, which this kernel or driver does not support\n\
         help: run `ip link set {} mtu {largest}`, and the same on the other end, or use Linux 6.6 or newer",
        entry.interface
    ));
}
