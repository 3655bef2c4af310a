//! What a session to a Service's address knows besides: the third column, touched only for the sessions that have one.
//!
//! ```text
//!   on the wire, towards the backend    client:port > vip:port   --rewritten-->  source:port > backend:port
//!   on the wire, back                   client:port < vip:port   <--rewritten--  source:port < backend:port
//!                                       `---- the alias ------'                  `----- the key -------'
//! ```
//! The entry has the key of what the backend sees. The source is the client, or an address of the node with a port of its own where
//! the answer would not come back otherwise. What the client sends is found by a second place in the index, the *alias*, of which
//! the record here says whether it is the right one. (A second entry for the client's side was the alternative: its time, its state and
//! its share would have to follow the first one's.)

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Key;
use super::entry::{Direction, Entry};
use crate::io::Translation;
use crate::packet::Ports;

/// One record. All zeros is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Rewrite {
    vip: [u8; 16],
    client: [u8; 16],
    vip_port: u16,
    client_port: u16,
    /// The epoch of the Services by which the backend was last found to answer; its upper bits do not matter.
    pub(super) checked: u32,
}

impl Rewrite {
    pub(super) const NONE: Self = Self { vip: [0; 16], client: [0; 16], vip_port: 0, client_port: 0, checked: 0 };

    /// Of a connection from a client to a virtual address of its family.
    pub(crate) fn new(client: (IpAddr, u16), vip: (IpAddr, u16), checked: u32) -> Self {
        let [vip_bytes, client_bytes] = [vip.0, client.0].map(bytes);
        Self { vip: vip_bytes, client: client_bytes, vip_port: vip.1, client_port: client.1, checked }
    }

    /// Who has opened the connection. `like` is an address of the family.
    pub(crate) fn client(&self, like: IpAddr) -> (IpAddr, u16) {
        (address(self.client, like), self.client_port)
    }

    /// What he has opened it to.
    pub(crate) fn vip(&self, like: IpAddr) -> (IpAddr, u16) {
        (address(self.vip, like), self.vip_port)
    }

    /// The key of the client's packets, and whether they go from the lower endpoint to the higher one.
    pub(super) fn alias(&self, like: IpAddr, protocol: u8) -> (Key, bool) {
        let ((client, sport), (vip, dport)) = (self.client(like), self.vip(like));
        Key::of(client, vip, protocol, Ports::Pair(sport, dport))
    }

    /// What packets of this direction have on the wire, and what they leave with. The entry is the record's.
    pub(crate) fn translations(&self, entry: &Entry, direction: Direction) -> Rewritten {
        let [source, backend] = entry.endpoints(Direction::Forward);
        let (client, vip) = (self.client(source.0), self.vip(source.0));
        let pair =
            |from: (IpAddr, u16), to: (IpAddr, u16)| Translation { src: from.0, dst: to.0, sport: from.1, dport: to.1 };
        match direction {
            Direction::Forward => Rewritten { received: pair(client, vip), sent: pair(source, backend) },
            Direction::Reply => Rewritten { received: pair(backend, source), sent: pair(vip, client) },
        }
    }
}

/// A packet's addresses and ports, as it came and as it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    pub(crate) received: Translation,
    pub(crate) sent: Translation,
}

fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(bytes: [u8; 16], like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => <[u8; 4]>::try_from(&bytes[..4]).expect("four of sixteen bytes").into(),
        IpAddr::V6(_) => bytes.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_40_bytes_so_that_a_translated_session_is_184() {
        assert_eq!(size_of::<Rewrite>(), 40);
    }
}
