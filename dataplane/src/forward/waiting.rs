//! Packets that wait for a neighbour's MAC address.
//!
//! All bounds are there because packets choose their next hops: a pod that walks through a subnet would else have any
//! number of packets held. What one port may make wait is bounded too, so that it cannot fill the queues for all.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

use super::NeighbourId;
use crate::PortId;

/// The most packets for one neighbour, the oldest of which go first: enough for the first flights of a few connections.
/// Linux bounds bytes (`unres_qlen_bytes`); 3 packets was its number before.
pub(super) const PER_NEIGHBOUR: usize = 8;
/// The most packets in all: 4 MiB of packet memory that is out of use.
pub(super) const TOTAL: usize = 1024;
/// The most neighbours that packets from one port wait for: far more than a pod starts to talk to within a round trip,
/// and not half of all that may wait.
pub(super) const NEIGHBOURS_PER_PORT: usize = 64;

/// The queues.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    queues: HashMap<NeighbourId, Queue<T>, RandomState>,
    /// Every queue once, by age; entries of queues that are gone (or begun anew at another time) count for nothing.
    order: VecDeque<(NeighbourId, u64)>,
    packets: usize,
    /// By port: how many queues its packets began.
    begun: Vec<usize>,
}

/// The packets for one neighbour.
#[derive(Debug)]
pub(super) struct Queue<T> {
    since: u64,
    begun_by: PortId,
    /// The port that each came in on, and the packet; the oldest first.
    pub(super) packets: VecDeque<(PortId, T)>,
}

impl<T> Waiting<T> {
    pub(super) fn new() -> Self {
        Self { queues: HashMap::default(), order: VecDeque::new(), packets: 0, begun: Vec::new() }
    }

    /// How many packets wait.
    pub(super) const fn len(&self) -> usize {
        self.packets
    }

    pub(super) fn contains(&self, neighbour: &NeighbourId) -> bool {
        self.queues.contains_key(neighbour)
    }

    /// Whether a packet from the port may begin a queue.
    pub(super) fn may_begin(&self, in_port: PortId) -> bool {
        self.begun.get(in_port.index()).is_none_or(|&begun| begun < NEIGHBOURS_PER_PORT)
    }

    /// Appends a packet. Returns the one that had to make room: the oldest for this neighbour, or the oldest of the
    /// neighbour that is waited for longest.
    pub(super) fn push(&mut self, neighbour: NeighbourId, in_port: PortId, packet: T, now: u64) -> Option<T> {
        let own_is_full = self.queues.get(&neighbour).is_some_and(|queue| queue.packets.len() >= PER_NEIGHBOUR);
        let lost = if own_is_full {
            self.queues.get_mut(&neighbour).and_then(|queue| queue.packets.pop_front())
        } else if self.packets >= TOTAL {
            self.pop_oldest()
        } else {
            None
        };
        if own_is_full {
            self.packets -= 1;
        }
        if !self.contains(&neighbour) {
            self.begin(neighbour, in_port, now);
        }
        if let Some(queue) = self.queues.get_mut(&neighbour) {
            queue.packets.push_back((in_port, packet));
            self.packets += 1;
        }
        lost.map(|(_, packet)| packet)
    }

    /// Takes out everything that waits for the neighbour.
    pub(super) fn take(&mut self, neighbour: &NeighbourId) -> Option<Queue<T>> {
        let queue = self.queues.remove(neighbour)?;
        self.packets -= queue.packets.len();
        if let Some(begun) = self.begun.get_mut(queue.begun_by.index()) {
            *begun -= 1;
        }
        Some(queue)
    }

    /// Takes out a queue that began at or before `time`; none when there is none left.
    pub(super) fn take_older(&mut self, time: u64) -> Option<(NeighbourId, Queue<T>)> {
        while let Some(&(neighbour, since)) = self.order.front().filter(|(_, since)| *since <= time) {
            self.order.pop_front();
            if self.is_current(&neighbour, since) {
                return self.take(&neighbour).map(|queue| (neighbour, queue));
            }
        }
        None
    }

    /// The neighbours that are waited for.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = NeighbourId> + '_ {
        self.queues.keys().copied()
    }

    fn begin(&mut self, neighbour: NeighbourId, in_port: PortId, now: u64) {
        if self.begun.len() <= in_port.index() {
            self.begun.resize(in_port.index() + 1, 0);
        }
        self.begun[in_port.index()] += 1;
        self.queues.insert(neighbour, Queue { since: now, begun_by: in_port, packets: VecDeque::new() });
        // Queues that come and go quickly leave their entries behind; twice the most that can be current is enough.
        if self.order.len() >= 2 * TOTAL {
            let queues = &self.queues;
            self.order.retain(|(id, since)| queues.get(id).is_some_and(|queue| queue.since == *since));
        }
        self.order.push_back((neighbour, now));
    }

    fn pop_oldest(&mut self) -> Option<(PortId, T)> {
        while let Some(&(neighbour, since)) = self.order.front() {
            if !self.is_current(&neighbour, since) {
                self.order.pop_front();
                continue;
            }
            let queue = self.queues.get_mut(&neighbour)?;
            let packet = queue.packets.pop_front();
            self.packets -= usize::from(packet.is_some());
            if queue.packets.is_empty() {
                self.order.pop_front();
                self.take(&neighbour);
            }
            return packet;
        }
        None
    }

    fn is_current(&self, neighbour: &NeighbourId, since: u64) -> bool {
        self.queues.get(neighbour).is_some_and(|queue| queue.since == since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> NeighbourId {
        NeighbourId { port: PortId(0), address: std::net::Ipv4Addr::from(n).into() }
    }

    #[test]
    fn a_ninth_packet_for_a_neighbour_pushes_the_first_one_out() {
        let mut waiting = Waiting::new();
        let lost: Vec<_> = (0..10).map(|n| waiting.push(id(1), PortId(3), n, 0)).collect();
        assert_eq!((&lost[..8], &lost[8..]), (&[None; 8][..], &[Some(0), Some(1)][..]));
        let packets = waiting.take(&id(1)).unwrap().packets;
        assert_eq!(packets, (2..10).map(|n| (PortId(3), n)).collect::<Vec<_>>());
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn when_all_is_full_the_neighbour_that_is_waited_for_longest_loses_its_oldest_packet() {
        let mut waiting = Waiting::new();
        let total = u32::try_from(TOTAL).unwrap();
        for n in 0..total {
            assert_eq!(waiting.push(id(n / 4), PortId(0), n, u64::from(n)), None);
        }
        assert_eq!(waiting.push(id(9999), PortId(0), 7000, 5000), Some(0));
        assert_eq!((waiting.len(), waiting.take(&id(0)).unwrap().packets.len()), (TOTAL, 3));
        // With the first one resolved, there is room for three; then the next neighbour is the oldest.
        let lost: Vec<_> = (0..4).map(|n| waiting.push(id(10_000 + n), PortId(0), n, 5001)).collect();
        assert_eq!(lost, [None, None, None, Some(4)]);
    }

    #[test]
    fn queues_time_out_in_the_order_in_which_they_began() {
        let mut waiting = Waiting::new();
        for (n, time) in [(1, 10), (2, 20), (3, 30)] {
            waiting.push(id(n), PortId(0), n, time);
        }
        waiting.take(&id(1));
        waiting.push(id(1), PortId(0), 4, 40);
        let mut gone = Vec::new();
        while let Some((id, _)) = waiting.take_older(30) {
            gone.push(id);
        }
        assert_eq!((gone, waiting.len()), (vec![id(2), id(3)], 1));
        assert!(waiting.take_older(39).is_none() && waiting.take_older(40).is_some());
    }

    #[test]
    fn a_port_may_wait_for_so_many_neighbours_and_no_more() {
        let mut waiting = Waiting::new();
        for n in 0..u32::try_from(NEIGHBOURS_PER_PORT).unwrap() {
            assert!(waiting.may_begin(PortId(5)));
            waiting.push(id(n), PortId(5), n, 0);
        }
        assert!(!waiting.may_begin(PortId(5)) && waiting.may_begin(PortId(6)));
        waiting.take(&id(0));
        assert!(waiting.may_begin(PortId(5)));
    }

    #[test]
    fn queues_that_come_and_go_leave_nothing_behind() {
        let mut waiting = Waiting::new();
        for n in 0..100_000u32 {
            waiting.push(id(n), PortId(0), n, u64::from(n));
            waiting.take(&id(n));
        }
        assert!(waiting.order.len() <= 2 * TOTAL && waiting.queues.is_empty());
        assert_eq!((waiting.len(), waiting.begun[0]), (0, 0));
    }
}
