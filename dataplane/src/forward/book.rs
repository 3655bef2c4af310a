//! Who was asked for, who answered, and when to ask again: the state of neighbour resolution, without I/O and clock.
//!
//! ```text
//!            ask                    answer                    30 s
//!   (none) ------> incomplete -----------------> reachable ---------> stale --in use: ask--> probing
//!                  | again each second           ^                                           | |
//!                  `- 3 times, then (none)       `------------------ answer -----------------' |
//!                                                                     (none) <- 3 times -------'
//! ```
//!
//! ARP and neighbour discovery share it; RFC 4861 §7.3 is the model, and ARP gains what it lacks.
//!
//! **Invariant.** A MAC address is taken from an answer only, and only while the question is open. So nobody can plant
//! or change an entry unasked (ARP and ND cache poisoning). A message that contradicts an entry, as a machine that takes
//! over an address sends it, makes the question be asked anew and is not believed itself.

use std::collections::HashMap;

use ahash::RandomState;

use super::NeighbourId;
use super::bucket::{Bucket, Rate};
use super::wire::Mac;
use crate::PortId;

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
/// The most unanswered questions about new neighbours, as RFC 6583 asks for: walking through an empty subnet must not
/// push out neighbours that are there.
pub(super) const MAX_INCOMPLETE: usize = 1024;
/// How often questions about new neighbours may begin. With it the cost of new entries is bounded, whoever causes them.
const NEW: Rate = Rate { per_second: 1000, burst: 1024 };

/// A question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) neighbour: NeighbourId,
    /// Only to the one who had the address last; none asks everybody.
    pub(super) to: Option<Mac>,
}

/// What became of a wish to know a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The question is to be sent.
    Send(Request),
    /// It was sent already, or needs none.
    Wait,
    /// Too many questions are open or were begun lately.
    Full,
}

/// All neighbours.
#[derive(Debug, Default)]
pub(super) struct Book {
    entries: HashMap<NeighbourId, Entry, RandomState>,
    incomplete: usize,
    new: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<Mac>,
    /// When the last answer came, or the question began.
    confirmed: u64,
    /// When the last request was sent.
    asked: u64,
    /// Requests since the last answer; 0 while no question is open.
    tries: u8,
}

impl Book {
    /// Somebody wants to send to the neighbour, and does not know it or knows it for long.
    pub(super) fn ask(&mut self, neighbour: NeighbourId, now: u64) -> Asked {
        if let Some(entry) = self.entries.get_mut(&neighbour) {
            if entry.tries > 0 || now < entry.confirmed.saturating_add(REACHABLE) {
                return Asked::Wait;
            }
            (entry.tries, entry.asked) = (1, now);
            return Asked::Send(Request { neighbour, to: entry.mac });
        }
        if self.incomplete >= MAX_INCOMPLETE || !self.new.take(NEW, now) {
            return Asked::Full;
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.evict();
        }
        self.entries.insert(neighbour, Entry { mac: None, confirmed: now, asked: now, tries: 1 });
        self.incomplete += 1;
        Asked::Send(Request { neighbour, to: None })
    }

    /// Somebody says where the neighbour is. True when it was asked for; else nothing changes.
    pub(super) fn answer(&mut self, neighbour: &NeighbourId, mac: Mac, now: u64) -> bool {
        match self.entries.get_mut(neighbour) {
            Some(entry) if entry.tries > 0 => {
                self.incomplete -= usize::from(entry.mac.is_none());
                *entry = Entry { mac: Some(mac), confirmed: now, tries: 0, ..*entry };
                true
            }
            _ => false,
        }
    }

    /// Somebody says unasked where the neighbour is. When that is not what is known, everybody is asked; not more often
    /// than a question is repeated.
    pub(super) fn doubt(&mut self, neighbour: NeighbourId, mac: Mac, now: u64) -> Option<Request> {
        let entry = self.entries.get_mut(&neighbour)?;
        let contradicts = entry.mac.is_some_and(|known| known != mac);
        if !contradicts || entry.tries > 0 || now < entry.asked.saturating_add(RETRANSMIT) {
            return None;
        }
        (entry.tries, entry.asked) = (1, now);
        Some(Request { neighbour, to: None })
    }

    /// Repeats questions and gives up on those that were repeated often enough. True when a neighbour is gone that was
    /// known.
    pub(super) fn repeat(&mut self, now: u64, mut send: impl FnMut(Request)) -> bool {
        let (mut lost, mut incomplete) = (false, self.incomplete);
        self.entries.retain(|&neighbour, entry| {
            let waited = now >= entry.asked.saturating_add(RETRANSMIT);
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
                (entry.tries, entry.asked) = (entry.tries + 1, now);
                send(Request { neighbour, to: None });
            }
            keep
        });
        self.incomplete = incomplete;
        lost
    }

    /// Forgets all neighbours on a port.
    pub(super) fn forget(&mut self, port: PortId) {
        self.entries.retain(|neighbour, _| neighbour.port != port);
        self.incomplete = self.entries.values().filter(|entry| entry.mac.is_none()).count();
    }

    /// The neighbours that are known: address, MAC address, when it was confirmed.
    pub(super) fn known(&self) -> impl Iterator<Item = (NeighbourId, Mac, u64)> + '_ {
        self.entries.iter().filter_map(|(&neighbour, entry)| Some((neighbour, entry.mac?, entry.confirmed)))
    }

    /// Makes room: the known neighbour goes that was confirmed longest ago. A gateway in use is confirmed every
    /// [`REACHABLE`], so it is never the one.
    fn evict(&mut self) {
        let known = self.entries.iter().filter(|(_, entry)| entry.mac.is_some());
        if let Some(oldest) = known.min_by_key(|(_, entry)| entry.confirmed).map(|(&neighbour, _)| neighbour) {
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

    fn mac_of(book: &Book, n: u32) -> Option<Mac> {
        book.known().find(|(neighbour, _, _)| *neighbour == id(n)).map(|(_, mac, _)| mac)
    }

    fn everybody(n: u32) -> Request {
        Request { neighbour: id(n), to: None }
    }

    /// A book in which neighbour 1 is known since [`START`].
    fn with_one() -> Book {
        let mut book = Book::default();
        assert_eq!(book.ask(id(1), START), Asked::Send(everybody(1)));
        assert!(book.answer(&id(1), MAC, START));
        book
    }

    fn repeated(book: &mut Book, now: u64) -> Vec<Request> {
        let mut sent = Vec::new();
        book.repeat(now, |request| sent.push(request));
        sent
    }

    #[test]
    fn a_question_is_asked_three_times_a_second_apart_and_then_forgotten() {
        let mut book = Book::default();
        book.ask(id(1), START);
        assert_eq!(book.ask(id(1), START + 1), Asked::Wait, "another worker asks for the same");
        let sent: Vec<usize> = (0..50).map(|tenth| repeated(&mut book, START + tenth * SECOND / 10).len()).collect();
        assert_eq!((sent.iter().sum::<usize>(), sent[10], sent[20]), (2, 1, 1));
        assert_eq!((book.entries.len(), book.incomplete), (0, 0));
        assert!(!book.answer(&id(1), MAC, START + 6 * SECOND), "too late");
    }

    #[test]
    fn an_answer_without_a_question_changes_nothing() {
        let mut book = Book::default();
        assert!(!book.answer(&id(1), MAC, START));
        assert_eq!(book.known().count(), 0);
        let mut book = with_one();
        assert!(!book.answer(&id(1), OTHER, START + 1), "the question is answered already");
        assert_eq!(mac_of(&book, 1), Some(MAC));
        let elsewhere = NeighbourId { port: PortId(1), ..id(2) };
        book.ask(id(2), START);
        assert!(!book.answer(&elsewhere, OTHER, START), "another port than the one where the question went");
    }

    #[test]
    fn a_stale_neighbour_in_use_is_probed_and_one_that_stays_silent_is_forgotten() {
        let mut book = with_one();
        assert_eq!(book.ask(id(1), START + REACHABLE - 1), Asked::Wait);
        let probe = Asked::Send(Request { neighbour: id(1), to: Some(MAC) });
        assert_eq!(book.ask(id(1), START + REACHABLE), probe);
        assert_eq!(book.ask(id(1), START + REACHABLE), Asked::Wait);
        assert_eq!(repeated(&mut book, START + REACHABLE + SECOND), [everybody(1)]);
        assert_eq!(mac_of(&book, 1), Some(MAC), "in use until it is known to be gone");
        assert_eq!(repeated(&mut book, START + REACHABLE + 2 * SECOND), [everybody(1)]);
        assert!(book.repeat(START + REACHABLE + 3 * SECOND, |_| panic!("enough")));
        assert_eq!(book.known().count(), 0);
    }

    #[test]
    fn a_neighbour_that_nobody_uses_is_forgotten_without_being_asked_for() {
        let mut book = with_one();
        assert!(!book.repeat(START + KEPT - 1, |_| panic!("not in use")));
        assert!(book.repeat(START + KEPT, |_| panic!("not in use")));
        assert_eq!(book.known().count(), 0);
    }

    #[test]
    fn a_contradiction_is_not_believed_but_makes_the_question_be_asked_of_everybody() {
        let mut book = with_one();
        let later = START + 2 * SECOND;
        assert_eq!(book.doubt(id(1), MAC, later), None, "what is known");
        assert_eq!(book.doubt(id(2), OTHER, later), None, "not asked for");
        assert_eq!(book.doubt(id(1), OTHER, later), Some(everybody(1)));
        assert_eq!(book.doubt(id(1), OTHER, later), None, "asked already");
        assert_eq!(mac_of(&book, 1), Some(MAC));
        assert!(book.answer(&id(1), OTHER, later + 1));
        assert_eq!(mac_of(&book, 1), Some(OTHER));
        assert_eq!(book.doubt(id(1), MAC, later + 2), None, "not more than once a second");
    }

    #[test]
    fn rfc_6583_a_walk_through_an_empty_subnet_does_not_push_out_who_is_there() {
        let mut book = with_one();
        let full = (2..100_000).filter(|&n| book.ask(id(n), START + u64::from(n)) == Asked::Full).count();
        assert!(full > 90_000 && book.entries.len() <= 1 + MAX_INCOMPLETE);
        assert_eq!(mac_of(&book, 1), Some(MAC));
        repeated(&mut book, START + 2 * SECOND);
        repeated(&mut book, START + 3 * SECOND);
        repeated(&mut book, START + 4 * SECOND);
        assert_eq!((book.entries.len(), book.incomplete), (1, 0));
    }

    #[test]
    fn when_all_entries_are_taken_the_one_that_was_confirmed_longest_ago_goes() {
        let mut book = Book::default();
        let most = u32::try_from(MAX_ENTRIES).unwrap();
        let mut now = START;
        for n in 0..=most {
            now = START + u64::from(n) * SECOND / 500;
            assert!(matches!(book.ask(id(n), now), Asked::Send(_)));
            assert!(book.answer(&id(n), MAC, now));
        }
        assert_eq!(book.entries.len(), MAX_ENTRIES);
        assert_eq!((mac_of(&book, 0), mac_of(&book, 1), mac_of(&book, most)), (None, Some(MAC), Some(MAC)));
        assert!(now < START + REACHABLE);
    }

    #[test]
    fn a_port_that_goes_away_takes_its_neighbours_with_it() {
        let mut book = with_one();
        let elsewhere = NeighbourId { port: PortId(1), ..id(2) };
        book.ask(elsewhere, START);
        book.ask(id(3), START);
        book.forget(PortId(0));
        assert_eq!((book.entries.len(), book.incomplete), (1, 1));
    }
}
