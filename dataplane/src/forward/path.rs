//! A worker's memory of where packets to an address went last.
//!
//! Routes, neighbour and interface together come to one MAC header; looking it up again for every packet costs three
//! lookups. One direct-mapped line per hash does: a miss costs what there would be without it.

use std::net::IpAddr;

use ahash::RandomState;

use crate::PortId;

/// How many addresses are remembered: 32 KiB, half a first-level cache.
const LINES: usize = 512;

/// The memory.
#[derive(Debug)]
pub(super) struct Paths {
    lines: Box<[Path]>,
    hasher: RandomState,
    /// Lines of other epochs count for nothing.
    epoch: u64,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    destination: u128,
    epoch: u64,
    /// Until when it need not be asked whether the neighbour is still there, in nanoseconds.
    until: u64,
    out: PortId,
    addresses: [u8; 12],
}

impl Paths {
    pub(super) fn new() -> Self {
        let nowhere = Path { destination: 0, epoch: 0, until: 0, out: PortId(u16::MAX), addresses: [0; 12] };
        Self { lines: vec![nowhere; LINES].into(), hasher: RandomState::new(), epoch: 1 }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.epoch += 1;
    }

    /// The start of a frame to the destination through this port, if it is remembered and still good.
    #[inline]
    pub(super) fn get(&self, destination: IpAddr, out: PortId, now: u64) -> Option<&[u8; 12]> {
        let number = number(destination);
        let path = &self.lines[self.line(number)];
        let good = path.destination == number && path.epoch == self.epoch && path.out == out && now < path.until;
        good.then_some(&path.addresses)
    }

    /// Remembers the start of frames to the destination until a time.
    pub(super) fn set(&mut self, destination: IpAddr, out: PortId, addresses: [u8; 12], until: u64) {
        let destination = number(destination);
        let line = self.line(destination);
        self.lines[line] = Path { destination, epoch: self.epoch, until, out, addresses };
    }

    fn line(&self, destination: u128) -> usize {
        let [low, high, ..] = self.hasher.hash_one(destination).to_le_bytes();
        usize::from(u16::from_le_bytes([low, high])) % LINES
    }
}

/// One number for both families: no packet has an IPv4-mapped destination, the engine refuses it.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => 0xffff_0000_0000 | u128::from(u32::from(a)),
        IpAddr::V6(a) => a.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_good_for_its_destination_port_time_and_epoch_only() {
        let (mut paths, to) = (Paths::new(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(paths.get(to, PortId(u16::MAX), 0), None);
        paths.set(to, PortId(1), [7; 12], 100);
        assert_eq!(paths.get(to, PortId(1), 99), Some(&[7; 12]));
        assert_eq!(paths.get(to, PortId(1), 100), None);
        assert_eq!(paths.get(to, PortId(2), 99), None);
        assert_eq!(paths.get("10.0.0.2".parse().unwrap(), PortId(1), 99), None);
        assert_eq!(paths.get("::10.0.0.1".parse().unwrap(), PortId(1), 99), None);
        paths.clear();
        assert_eq!(paths.get(to, PortId(1), 99), None);
    }
}
