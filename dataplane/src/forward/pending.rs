//! Packets held until the MAC address of their next hop is known.
//!
//! All queues are bounded, because packets choose their next hops: a pod that scans a subnet must not hold arbitrary numbers of packets.
//! Each port has a limit too, so that it cannot fill the queues for others.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

use super::NeighbourId;
use crate::PortId;

/// Maximum number of packets per neighbour. The oldest is dropped first. Enough for the first flights of a few connections. Linux limits
/// bytes (`unres_qlen_bytes`), formerly 3 packets.
pub(super) const PER_NEIGHBOUR: usize = 8;
/// Maximum number of packets in total: 4 MiB of packet memory.
pub(super) const TOTAL: usize = 1024;
/// Maximum number of neighbours that packets of one port may wait for: far more than a pod contacts within a round trip, and less than half
/// of all queues.
pub(super) const NEIGHBOURS_PER_PORT: usize = 64;

/// Packets that wait for a neighbour's MAC address, in one queue per neighbour.
#[derive(Debug)]
pub(super) struct PendingPackets<T> {
    queues: HashMap<NeighbourId, Queue<T>, RandomState>,
    /// The neighbour and start of each queue, oldest first. Elements of queues that no longer exist are skipped.
    order: VecDeque<(NeighbourId, u64)>,
    packets: usize,
    /// By port id: the number of queues that packets of the port have created.
    created: Vec<usize>,
}

/// The packets that wait for one neighbour.
#[derive(Debug)]
pub(super) struct Queue<T> {
    since: u64,
    created_by: PortId,
    /// Each packet with its receiving port, oldest first.
    pub(super) packets: VecDeque<(PortId, T)>,
}

impl<T> PendingPackets<T> {
    pub(super) fn new() -> Self {
        Self { queues: HashMap::default(), order: VecDeque::new(), packets: 0, created: Vec::new() }
    }

    /// Returns the number of held packets.
    pub(super) const fn len(&self) -> usize {
        self.packets
    }

    pub(super) fn contains(&self, neighbour: &NeighbourId) -> bool {
        self.queues.contains_key(neighbour)
    }

    /// Whether a packet of the port may create another queue.
    pub(super) fn may_create(&self, in_port: PortId) -> bool {
        self.created.get(in_port.index()).is_none_or(|&created| created < NEIGHBOURS_PER_PORT)
    }

    /// Appends a packet. Returns a packet that was displaced: the oldest for this neighbour, or the oldest of the oldest queue.
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
            self.create(neighbour, in_port, now);
        }
        if let Some(queue) = self.queues.get_mut(&neighbour) {
            queue.packets.push_back((in_port, packet));
            self.packets += 1;
        }
        lost.map(|(_, packet)| packet)
    }

    /// Removes and returns all packets for the neighbour.
    pub(super) fn take(&mut self, neighbour: &NeighbourId) -> Option<Queue<T>> {
        let queue = self.queues.remove(neighbour)?;
        self.packets -= queue.packets.len();
        if let Some(created) = self.created.get_mut(queue.created_by.index()) {
            *created -= 1;
        }
        Some(queue)
    }

    /// Removes and returns a queue that began at or before `time`. `None` if there is none.
    pub(super) fn take_older(&mut self, time: u64) -> Option<(NeighbourId, Queue<T>)> {
        while let Some(&(neighbour, since)) = self.order.front().filter(|(_, since)| *since <= time) {
            self.order.pop_front();
            if self.is_current(&neighbour, since) {
                return self.take(&neighbour).map(|queue| (neighbour, queue));
            }
        }
        None
    }

    /// Returns the neighbours for which packets wait.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = NeighbourId> + '_ {
        self.queues.keys().copied()
    }

    fn create(&mut self, neighbour: NeighbourId, in_port: PortId, now: u64) {
        if self.created.len() <= in_port.index() {
            self.created.resize(in_port.index() + 1, 0);
        }
        self.created[in_port.index()] += 1;
        self.queues.insert(neighbour, Queue { since: now, created_by: in_port, packets: VecDeque::new() });
        // Removes stale elements once the list is twice as long as necessary.
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
        let mut pending = PendingPackets::new();
        let lost: Vec<_> = (0..10).map(|n| pending.push(id(1), PortId(3), n, 0)).collect();
        assert_eq!((&lost[..8], &lost[8..]), (&[None; 8][..], &[Some(0), Some(1)][..]));
        let packets = pending.take(&id(1)).unwrap().packets;
        assert_eq!(packets, (2..10).map(|n| (PortId(3), n)).collect::<Vec<_>>());
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn when_all_is_full_the_oldest_queue_loses_its_oldest_packet() {
        let mut pending = PendingPackets::new();
        let total = u32::try_from(TOTAL).unwrap();
        for n in 0..total {
            assert_eq!(pending.push(id(n / 4), PortId(0), n, u64::from(n)), None);
        }
        assert_eq!(pending.push(id(9999), PortId(0), 7000, 5000), Some(0));
        assert_eq!((pending.len(), pending.take(&id(0)).unwrap().packets.len()), (TOTAL, 3));
        // Resolving the first neighbour makes room for three packets. Then the next neighbour is the oldest.
        let lost: Vec<_> = (0..4).map(|n| pending.push(id(10_000 + n), PortId(0), n, 5001)).collect();
        assert_eq!(lost, [None, None, None, Some(4)]);
    }

    #[test]
    fn queues_time_out_in_the_order_in_which_they_began() {
        let mut pending = PendingPackets::new();
        for (n, time) in [(1, 10), (2, 20), (3, 30)] {
            pending.push(id(n), PortId(0), n, time);
        }
        pending.take(&id(1));
        pending.push(id(1), PortId(0), 4, 40);
        let mut gone = Vec::new();
        while let Some((id, _)) = pending.take_older(30) {
            gone.push(id);
        }
        assert_eq!((gone, pending.len()), (vec![id(2), id(3)], 1));
        assert!(pending.take_older(39).is_none() && pending.take_older(40).is_some());
    }

    #[test]
    fn a_port_may_have_packets_held_for_so_many_neighbours_and_no_more() {
        let mut pending = PendingPackets::new();
        for n in 0..u32::try_from(NEIGHBOURS_PER_PORT).unwrap() {
            assert!(pending.may_create(PortId(5)));
            pending.push(id(n), PortId(5), n, 0);
        }
        assert!(!pending.may_create(PortId(5)) && pending.may_create(PortId(6)));
        pending.take(&id(0));
        assert!(pending.may_create(PortId(5)));
    }

    #[test]
    fn queues_that_come_and_go_leave_nothing_behind() {
        let mut pending = PendingPackets::new();
        for n in 0..100_000u32 {
            pending.push(id(n), PortId(0), n, u64::from(n));
            pending.take(&id(n));
        }
        assert!(pending.order.len() <= 2 * TOTAL && pending.queues.is_empty());
        assert_eq!((pending.len(), pending.created[0]), (0, 0));
    }
}
