//! Maps exact addresses to ports. Used per packet for the owner of an address and for host routes.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;

use crate::PortId;

/// A map from addresses to ports. The hashes are keyed, because packets choose the looked-up addresses.
///
/// Each family has its own map: hashing an `IpAddr` processes a tag, a length and the bytes, hashing a number takes one step.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressMap {
    v4: HashMap<u32, PortId, RandomState>,
    v6: HashMap<u128, PortId, RandomState>,
}

impl AddressMap {
    /// Maps an address to a port. Returns the address's previous port, or `None` if the address is new.
    pub(crate) fn insert(&mut self, address: IpAddr, port: PortId) -> Option<PortId> {
        match address {
            IpAddr::V4(a) => self.v4.insert(a.into(), port),
            IpAddr::V6(a) => self.v6.insert(a.into(), port),
        }
    }

    /// Returns the port of an address. `None` if the map does not contain the address.
    #[inline]
    pub(crate) fn get(&self, address: IpAddr) -> Option<PortId> {
        match address {
            IpAddr::V4(a) => self.v4.get(&a.into()).copied(),
            IpAddr::V6(a) => self.v6.get(&a.into()).copied(),
        }
    }

    /// Returns all addresses with their ports, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddr, PortId)> + '_ {
        let v4 = self.v4.iter().map(|(&address, &port)| (std::net::Ipv4Addr::from(address).into(), port));
        v4.chain(self.v6.iter().map(|(&address, &port)| (std::net::Ipv6Addr::from(address).into(), port)))
    }

    /// Returns the port of each address. A port with several addresses occurs several times.
    pub(crate) fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.v4.values().chain(self.v6.values()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_the_ipv6_address_with_its_number_are_two() {
        let mut map = AddressMap::default();
        let (four, six) = (IpAddr::from([10, 0, 0, 1]), "::10.0.0.1".parse().unwrap());
        assert_eq!(map.insert(four, PortId(1)), None);
        assert_eq!((map.get(four), map.get(six)), (Some(PortId(1)), None));
        assert_eq!(map.insert(four, PortId(2)), Some(PortId(1)));
        assert_eq!(map.insert(six, PortId(3)), None);
        assert_eq!(map.ports().count(), 2);
    }
}
