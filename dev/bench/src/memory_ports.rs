//! Ports of nodes whose packets are frames in memory, and the capacity of the workers that judge them.

use std::net::{IpAddr, Ipv4Addr};

use bulkhead_dataplane::{Link, PortConfig, PortId, PortKind, TableId};

/// The workers' capacity in sessions: the default of VPP and of a live vswitch.
pub(crate) const CAPACITY: usize = 500_000;

/// Returns a port of which `table` judges all packets that leave there. `address` is `None` for the uplink, behind which many machines are.
pub(crate) fn port(id: PortId, name: &str, kind: PortKind, address: Option<Ipv4Addr>, table: TableId) -> PortConfig {
    PortConfig {
        addresses: address.map(IpAddr::from).into_iter().collect(),
        // So that no neighbour must be resolved.
        mac: address.map(|_| peer_mac(id)),
        egress: Some(table),
        link: Some(Link { mac: own_mac(id), mtu: 1500 }),
        ..PortConfig::new(name, kind)
    }
}

/// Returns the MAC address of the vswitch's end of a port.
pub(crate) const fn own_mac(port: PortId) -> [u8; 6] {
    mac(1, port)
}

/// Returns the MAC address of the peer's end of a port.
pub(crate) const fn peer_mac(port: PortId) -> [u8; 6] {
    mac(2, port)
}

const fn mac(end: u8, port: PortId) -> [u8; 6] {
    let [high, low] = port.0.to_be_bytes();
    [2, 0, 0, end, high, low]
}
