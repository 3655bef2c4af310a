//! The neighbour table: requests, answers and timeouts of address resolution, without I/O and clock.
//!
//! ```text
//!          request                 confirm                    30 s
//!   (none) ------> incomplete -----------------> reachable ---------> stale --in use: request--> probe
//!                  | again each second           ^                                               | |
//!                  `- 3 times, then (none)       `-------------------- confirm -----------------' |
//!                                                                       (none) <- 3 times ---------'
//! ```
//!
//! ARP and neighbour discovery share the table. Its states are those of RFC 4861 §7.3, which ARP lacks.
//!
//! **Invariant.** A MAC address is only learned from an answer to an open request. So no host can poison the cache. An unsolicited message
//! that contradicts an entry, as after a failover of an address, is not trusted but triggers a new request.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;

use super::bucket::{Bucket, Rate};
use crate::PortId;
use crate::wire::ethernet::Mac;

const SECOND: u64 = 1_000_000_000;
/// Interval between two requests for a neighbour (RFC 4861 §10, RETRANS_TIMER).
pub(super) const RETRANSMIT: u64 = SECOND;
/// Unanswered requests after which a neighbour is unreachable (RFC 4861 §10, MAX_MULTICAST_SOLICIT).
pub(super) const TRIES: u8 = 3;
/// Validity of an answer (RFC 4861 §10, REACHABLE_TIME).
pub(super) const REACHABLE: u64 = 30 * SECOND;
/// Lifetime of an unused entry. RFC 1122 §2.3.2.1 suggests about a minute for ARP. Longer is harmless, and the first packet after a pause
/// need not wait.
const KEPT: u64 = 600 * SECOND;
/// Maximum number of entries: a /20 of neighbours. Linux starts garbage collection at 1024 entries by default.
pub(super) const MAX_ENTRIES: usize = 4096;
/// Maximum number of unresolved entries (RFC 6583): scanning an empty subnet must not evict existing neighbours.
pub(super) const MAX_INCOMPLETE: usize = 1024;
/// Rate of requests for new neighbours, which bounds their cost.
const NEW: Rate = Rate { per_second: 1000, burst: 1024 };

/// A neighbour: an address on a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NeighbourId {
    /// The port.
    pub port: PortId,
    /// The address. Link-local addresses may occur on several ports.
    pub address: IpAddr,
}

/// An ARP request or neighbour solicitation to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) neighbour: NeighbourId,
    /// The MAC address to probe. `None` for a broadcast or multicast request.
    pub(super) to: Option<Mac>,
}

/// What the caller must do after requesting a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requested {
    Send(Request),
    /// The worker sends no request, because one is open or the neighbour is known.
    InProgress,
    /// Drop the packet: too many requests are open or were started recently.
    TableFull,
}

#[derive(Debug, Default)]
pub(super) struct NeighbourTable {
    entries: HashMap<NeighbourId, Entry, RandomState>,
    incomplete: usize,
    new: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// Time of the last answer, or of the first request.
    confirmed: u64,
    /// Time of the last request.
    last_request: u64,
    /// Requests since the last answer. 0 if none is open.
    tries: u8,
}

impl NeighbourTable {
    /// Requests a neighbour whose MAC address is unknown or was confirmed more than [`REACHABLE`] ago.
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

    /// Handles an answer. Returns true if a request was open, otherwise false without changes.
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

    /// Handles an unsolicited message. If it contradicts the entry, returns a broadcast request, at most one per [`RETRANSMIT`].
    pub(super) fn reverify(&mut self, neighbour: NeighbourId, mac: Mac, now: u64) -> Option<Request> {
        let entry = self.entries.get_mut(&neighbour)?;
        let contradicts = entry.mac.is_some_and(|known| known != mac);
        if !contradicts || entry.tries > 0 || now < entry.last_request.saturating_add(RETRANSMIT) {
            return None;
        }
        (entry.tries, entry.last_request) = (1, now);
        Some(Request { neighbour, to: None })
    }

    /// Repeats open requests and removes neighbours that did not answer [`TRIES`] of them. Returns true if a removed neighbour was
    /// resolved.
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
                // The first probe only went to the old MAC address. The address may have moved.
                (entry.tries, entry.last_request) = (entry.tries + 1, now);
                send(Request { neighbour, to: None });
            }
            keep
        });
        self.incomplete = incomplete;
        lost
    }

    pub(super) fn remove_port(&mut self, port: PortId) {
        self.entries.retain(|neighbour, _| neighbour.port != port);
        self.incomplete = self.entries.values().filter(|entry| entry.mac.is_none()).count();
    }

    /// Resolved neighbours with their MAC addresses and confirmation times.
    pub(super) fn resolved(&self) -> impl Iterator<Item = (NeighbourId, Mac, u64)> + '_ {
        self.entries.iter().filter_map(|(&neighbour, entry)| Some((neighbour, entry.mac?, entry.confirmed)))
    }

    /// Evicts the resolved neighbour with the oldest confirmation. A gateway in use is confirmed every [`REACHABLE`], so it is never
    /// evicted.
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

    /// Returns a table that has known neighbour 1 since [`START`].
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
        assert_eq!(table.reverify(id(2), OTHER, later), None, "not requested");
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
