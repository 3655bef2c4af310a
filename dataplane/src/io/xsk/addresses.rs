//! Lists the addresses of a network namespace's interfaces with rtnetlink.
//! Source: `include/uapi/linux/{rtnetlink,if_addr}.h`, rtnetlink(7).

use std::io;
use std::net::IpAddr;

use super::netlink::{ask, attributes, number};

/// Bytes of `struct ifaddrmsg`.
const ADDRESS: usize = 8;
/// `IFA_ADDRESS`, `IFA_LOCAL`: on a point-to-point link, the first is the peer's address.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `IFA_F_DADFAILED`: another host on the link has the address.
const IFA_F_DADFAILED: u8 = 0x08;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// The interface's index.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
}

/// Returns the addresses of all interfaces of the calling thread's network namespace, including loopback and link-local ones.
///
/// # Errors
/// If the netlink request fails.
pub fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut found = Vec::new();
    ask(libc::RTM_GETADDR, true, &[0; ADDRESS], |message| found.extend(InterfaceAddress::of(message)))?;
    Ok(found)
}

impl InterfaceAddress {
    fn of(message: &[u8]) -> Option<Self> {
        let (&family, &flags, interface) = (message.first()?, message.get(2)?, number(message, 4)?);
        if flags & IFA_F_DADFAILED != 0 {
            return None;
        }
        let (mut address, mut local) = (None, None);
        for (kind, value) in attributes(message.get(ADDRESS..)?) {
            match kind {
                IFA_ADDRESS => address = ip(family, value),
                IFA_LOCAL => local = ip(family, value),
                _ => {}
            }
        }
        Some(Self { interface, address: local.or(address)? })
    }
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        libc::AF_INET6 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: i32, flags: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(family).unwrap(), 24, flags, 0];
        bytes.extend(7u32.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
        }
        bytes
    }

    #[test]
    fn an_address_is_the_interfaces_own_and_not_the_other_ends() {
        let of =
            |message: &[u8]| InterfaceAddress::of(message).map(|found| (found.interface, found.address.to_string()));
        let both = message(libc::AF_INET, 0, &[(IFA_ADDRESS, &[10, 0, 0, 2]), (IFA_LOCAL, &[10, 0, 0, 1])]);
        assert_eq!(of(&both), Some((7, "10.0.0.1".into())));
        let mut v6 = [0; 16];
        (v6[0], v6[15]) = (0xfd, 1);
        assert_eq!(of(&message(libc::AF_INET6, 0, &[(IFA_ADDRESS, &v6)])), Some((7, "fd00::1".into())));
        assert_eq!(of(&message(libc::AF_INET6, IFA_F_DADFAILED, &[(IFA_ADDRESS, &v6)])), None);
        assert_eq!(of(&message(libc::AF_INET, 0, &[(IFA_LOCAL, &[10, 0])])), None);
        for length in 0..both.len() {
            // A truncated message does not panic.
            of(&both[..length]);
        }
    }

    #[test]
    fn the_loopback_interface_has_one_of_them_where_it_is_up() {
        let all = addresses().unwrap();
        assert!(all.iter().all(|found| found.interface > 0), "{all:?}");
    }
}
