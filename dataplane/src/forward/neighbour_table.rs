//! The neighbour table: requests, answers and time-outs of neighbour resolution, without I/O and without a clock.
//!
//! ```text
//!          request                 confirm                    30 s
//!   (none) ------> incomplete -----------------> reachable ---------> stale --in use: request--> probe
//!                  | again each second           ^                                               | |
//!                  `- 3 times, then (none)       `-------------------- confirm -----------------' |
//!                                                                       (none) <- 3 times ---------'
//! ```
//!
//! ARP and neighbour discovery share it. The states are those of RFC 4861 §7.3, which ARP lacks.
//!
//! **Invariant.** A MAC address is taken from an answer only, and only while a request is open. So nobody can plant or
//! change an entry (ARP and ND cache poisoning). An unasked message that contradicts an entry, as a machine sends it that
//! takes over an address, is not believed: the neighbour is requested again.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;

use super::bucket::{Bucket, Rate};
use crate::PortId;
use crate::wire::ethernet::Mac;

const SECOND: u64 = 1_000_000_000;
/// Between two requests for one neighbour (RFC 4861 §10, RETRANS_TIMER).
pub(super) const RETRANSMIT: u64 = SECOND;
/// How many requests go unanswered before the neighbour counts as gone (RFC 4861 §10, MAX_MULTICAST_SOLICIT).
pub(super) const TRIES: u8 = 3;
/// How long an answer is good for (RFC 4861 §10, REACHABLE_TIME).
pub(super) const REACHABLE: u64 = 30 * SECOND;
/// How long an entry that nobody uses is kept. RFC 1122 §2.3.2.1 asks for about a minute for ARP; unused entries do no
/// harm, and the first packet after a pause should not wait.
const KEPT: u64 = 600 * SECOND;
/// The most entries: a /20 of neighbours. Linux begins to collect at 1024 and refuses at 1024 by default.
pub(super) const MAX_ENTRIES: usize = 4096;
/// The most unanswered requests for new neighbours, as RFC 6583 asks for: walking through an empty subnet must not
/// push out neighbours that are there.
pub(super) const MAX_INCOMPLETE: usize = 1024;
/// How often requests for new neighbours may begin. With it the cost of new entries is bounded, whoever causes them.
const NEW: Rate = Rate { per_second: 1000, burst: 1024 };

/// A neighbour: an address on a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NeighbourId {
    /// The port.
    pub port: PortId,
    /// The address, which may mean something else on another port (link-local addresses do).
    pub address: IpAddr,
}

/// A request to be sent: ARP or a neighbour solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) neighbour: NeighbourId,
    /// Only to the one who had the address last; none asks everybody.
    pub(super) to: Option<Mac>,
}

/// What comes of the need to know a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    /// This request is to be sent.
    Send(Request),
    /// One is under way, or the neighbour is known.
    InProgress,
    /// Too many requests are under way or were begun lately.
    TableFull,
}

/// All neighbours.
#[derive(Debug, Default)]
pub(super) struct NeighbourTable {
    entries: HashMap<NeighbourId, Entry, RandomState>,
    incomplete: usize,
    new: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When the last answer came, or the first request was sent.
    confirmed: u64,
    /// When the last request was sent.
    last_request: u64,
    /// Requests since the last answer; 0 while none is open.
    tries: u8,
}

impl NeighbourTable {
    /// A packet is to go to the neighbour, and its MAC address is not known or was confirmed long ago.
    pub(super) fn request(&mut self, neighbour: NeighbourId, now: u64) -> Requested {
        if let Some(entry) = self.entries.get_mut(&neighbour) {
            if entry.tries > 0 || now < entry.confirmed.saturating_add(REACHABLE) {
                return Requested::InProgress;
            }
            (entry.tries, entry.last_request) = (1, now);
            return Requested::Send(Request { neighbour, to: entry.mac });
        }
        if self.incomplete >= MAX_INCOMPLETE || !self.new.take(NEW, now) {
            return Requested::TableFull;
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.evict();
        }
        self.entries.insert(neighbour, Entry { mac: None, confirmed: now, last_request: now, tries: 1 });
        self.incomplete += 1;
        Requested::Send(Request { neighbour, to: None })
    }

    /// An answer came. True when a request was open; else nothing changes.
    pub(super) fn confirm(&mut self, neighbour: &NeighbourId, mac: Mac, now: u64) -> bool {
        match self.entries.get_mut(neighbour) {
            Some(entry) if entry.tries > 0 => {
                self.incomplete -= usize::from(entry.mac.is_none());
                *entry = Entry { mac: Some(mac), confirmed: now, tries: 0, ..*entry };
                true
            }
            _ => false,
        }
    }

    /// A message that nobody asked for says where the neighbour is. When that contradicts what is known, everybody is asked;
    /// not more often than a request is repeated.
    pub(super) fn reverify(&mut self, neighbour: NeighbourId, mac: Mac, now: u64) -> Option<Request> {
        let entry = self.entries.get_mut(&neighbour)?;
        let contradicts = entry.mac.is_some_and(|known| known != mac);
        if !contradicts || entry.tries > 0 || now < entry.last_request.saturating_add(RETRANSMIT) {
            return None;
        }
        (entry.tries, entry.last_request) = (1, now);
        Some(Request { neighbour, to: None })
    }

    /// Repeats requests, and removes neighbours that did not answer in [`TRIES`] requests. True when one of them was resolved.
    pub(super) fn retransmit(&mut self, now: u64, mut send: impl FnMut(Request)) -> bool {
        let (mut lost, mut incomplete) = (false, self.incomplete);
        self.entries.retain(|&neighbour, entry| {
            let waited = now >= entry.last_request.saturating_add(RETRANSMIT);
            let keep = match entry.tries {
                0 => now < entry.confirmed.saturating_add(KEPT),
                TRIES.. => !waited,
                _ => true,
            };
            if !keep {
                lost |= entry.mac.is_some();
                incomplete -= usize::from(entry.mac.is_none());
            } else if entry.tries > 0 && waited {
                // The first probe went to the old MAC address alone; perhaps the address has moved.
                (entry.tries, entry.last_request) = (entry.tries + 1, now);
                send(Request { neighbour, to: None });
            }
            keep
        });
        self.incomplete = incomplete;
        lost
    }

    /// Removes all neighbours on a port.
    pub(super) fn remove_port(&mut self, port: PortId) {
        self.entries.retain(|neighbour, _| neighbour.port != port);
        self.incomplete = self.entries.values().filter(|entry| entry.mac.is_none()).count();
    }

    /// The resolved neighbours: address, MAC address, when it was confirmed.
    pub(super) fn resolved(&self) -> impl Iterator<Item = (NeighbourId, Mac, u64)> + '_ {
        self.entries.iter().filter_map(|(&neighbour, entry)| Some((neighbour, entry.mac?, entry.confirmed)))
    }

    /// Evicts the resolved neighbour that was confirmed longest ago. A gateway in use is confirmed every
    /// [`REACHABLE`], so it is never the one.
    fn evict(&mut self) {
        let resolved = self.entries.iter().filter(|(_, entry)| entry.mac.is_some());
        if let Some(oldest) = resolved.min_by_key(|(_, entry)| entry.confirmed).map(|(&neighbour, _)| neighbour) {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];
    const OTHER: Mac = [2, 0, 0, 0, 0, 8];
    const START: u64 = 1000 * SECOND;

    fn id(n: u32) -> NeighbourId {
        NeighbourId { port: PortId(0), address: std::net::Ipv4Addr::from(n).into() }
    }

    fn mac_of(table: &NeighbourTable, n: u32) -> Option<Mac> {
        table.resolved().find(|(neighbour, _, _)| *neighbour == id(n)).map(|(_, mac, _)| mac)
    }

    fn everybody(n: u32) -> Request {
        Request { neighbour: id(n), to: None }
    }

    /// A table in which neighbour 1 is known since [`START`].
    fn with_one() -> NeighbourTable {
        let mut table = NeighbourTable::default();
        assert_eq!(table.request(id(1), START), Requested::Send(everybody(1)));
        assert!(table.confirm(&id(1), MAC, START));
        table
    }

    fn retransmitted(table: &mut NeighbourTable, now: u64) -> Vec<Request> {
        let mut sent = Vec::new();
        table.retransmit(now, |request| sent.push(request));
        sent
    }

    #[test]
    fn a_request_is_sent_three_times_a_second_apart_and_the_neighbour_is_then_removed() {
        let mut table = NeighbourTable::default();
        table.request(id(1), START);
        assert_eq!(table.request(id(1), START + 1), Requested::InProgress, "another worker asks for the same");
        let sent: Vec<usize> =
            (0..50).map(|tenth| retransmitted(&mut table, START + tenth * SECOND / 10).len()).collect();
        assert_eq!((sent.iter().sum::<usize>(), sent[10], sent[20]), (2, 1, 1));
        assert_eq!((table.entries.len(), table.incomplete), (0, 0));
        assert!(!table.confirm(&id(1), MAC, START + 6 * SECOND), "too late");
    }

    #[test]
    fn an_answer_without_a_request_changes_nothing() {
        let mut table = NeighbourTable::default();
        assert!(!table.confirm(&id(1), MAC, START));
        assert_eq!(table.resolved().count(), 0);
        let mut table = with_one();
        assert!(!table.confirm(&id(1), OTHER, START + 1), "the request is answered already");
        assert_eq!(mac_of(&table, 1), Some(MAC));
        let elsewhere = NeighbourId { port: PortId(1), ..id(2) };
        table.request(id(2), START);
        assert!(!table.confirm(&elsewhere, OTHER, START), "another port than the one where the request went");
    }

    #[test]
    fn a_stale_neighbour_in_use_is_probed_and_one_that_stays_silent_is_removed() {
        let mut table = with_one();
        assert_eq!(table.request(id(1), START + REACHABLE - 1), Requested::InProgress);
        let probe = Requested::Send(Request { neighbour: id(1), to: Some(MAC) });
        assert_eq!(table.request(id(1), START + REACHABLE), probe);
        assert_eq!(table.request(id(1), START + REACHABLE), Requested::InProgress);
        assert_eq!(retransmitted(&mut table, START + REACHABLE + SECOND), [everybody(1)]);
        assert_eq!(mac_of(&table, 1), Some(MAC), "in use until it is known to be gone");
        assert_eq!(retransmitted(&mut table, START + REACHABLE + 2 * SECOND), [everybody(1)]);
        assert!(table.retransmit(START + REACHABLE + 3 * SECOND, |_| panic!("enough")));
        assert_eq!(table.resolved().count(), 0);
    }

    #[test]
    fn a_neighbour_that_nobody_uses_is_removed_without_a_request() {
        let mut table = with_one();
        assert!(!table.retransmit(START + KEPT - 1, |_| panic!("not in use")));
        assert!(table.retransmit(START + KEPT, |_| panic!("not in use")));
        assert_eq!(table.resolved().count(), 0);
    }

    #[test]
    fn a_contradiction_is_not_believed_but_everybody_is_asked_again() {
        let mut table = with_one();
        let later = START + 2 * SECOND;
        assert_eq!(table.reverify(id(1), MAC, later), None, "what is known");
        assert_eq!(table.reverify(id(2), OTHER, later), None, "not asked for");
        assert_eq!(table.reverify(id(1), OTHER, later), Some(everybody(1)));
        assert_eq!(table.reverify(id(1), OTHER, later), None, "asked already");
        assert_eq!(mac_of(&table, 1), Some(MAC));
        assert!(table.confirm(&id(1), OTHER, later + 1));
        assert_eq!(mac_of(&table, 1), Some(OTHER));
        assert_eq!(table.reverify(id(1), MAC, later + 2), None, "not more than once a second");
    }

    #[test]
    fn rfc_6583_a_walk_through_an_empty_subnet_does_not_push_out_who_is_there() {
        let mut table = with_one();
        let full = (2..100_000).filter(|&n| table.request(id(n), START + u64::from(n)) == Requested::TableFull).count();
        assert!(full > 90_000 && table.entries.len() <= 1 + MAX_INCOMPLETE);
        assert_eq!(mac_of(&table, 1), Some(MAC));
        retransmitted(&mut table, START + 2 * SECOND);
        retransmitted(&mut table, START + 3 * SECOND);
        retransmitted(&mut table, START + 4 * SECOND);
        assert_eq!((table.entries.len(), table.incomplete), (1, 0));
    }

    #[test]
    fn when_all_entries_are_taken_the_one_that_was_confirmed_longest_ago_goes() {
        let mut table = NeighbourTable::default();
        let most = u32::try_from(MAX_ENTRIES).unwrap();
        let mut now = START;
        for n in 0..=most {
            now = START + u64::from(n) * SECOND / 500;
            assert!(matches!(table.request(id(n), now), Requested::Send(_)));
            assert!(table.confirm(&id(n), MAC, now));
        }
        assert_eq!(table.entries.len(), MAX_ENTRIES);
        assert_eq!((mac_of(&table, 0), mac_of(&table, 1), mac_of(&table, most)), (None, Some(MAC), Some(MAC)));
        assert!(now < START + REACHABLE);
    }

    #[test]
    fn a_port_that_goes_away_takes_its_neighbours_with_it() {
        let mut table = with_one();
        let elsewhere = NeighbourId { port: PortId(1), ..id(2) };
        table.request(elsewhere, START);
        table.request(id(3), START);
        table.remove_port(PortId(0));
        assert_eq!((table.entries.len(), table.incomplete), (1, 1));
    }
}
