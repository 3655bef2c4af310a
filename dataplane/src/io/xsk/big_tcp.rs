//! The maximum lengths of an interface's unsegmented TCP packets ("BIG TCP", Linux 6.3).
//! Source: `include/uapi/linux/if_link.h`; <https://lwn.net/Articles/884104/>, <https://lwn.net/Articles/920018/>.
//!
//! The kernel sends TCP in long packets, which the last interface on the path cuts into segments. The limit is 64 KiB unless the interface
//! allows more. The path's cost is per packet, so longer packets make bulk TCP cheaper. An interface on the path with a lower limit
//! segments the packets in software.

use std::io;

use super::link::LinkInfo;
use super::netlink::{LINK, ask, attributes, number};
use super::netlink_write::set_numbers;
use super::{XskError, netlink};

/// `IFLA_GSO_MAX_SIZE` and `IFLA_GSO_IPV4_MAX_SIZE`.
const V6: u16 = 41;
const V4: u16 = 63;

/// The maximum lengths, in bytes, of the TCP packets that the kernel gives an interface to segment (`gso_ipv4_max_size` and
/// `gso_max_size` of `ip link`). 65,536 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// Over IPv4.
    pub v4: u32,
    /// Over IPv6.
    pub v6: u32,
}

impl TcpLimits {
    /// Reads the limits of an interface in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`XskError`] if there is no such interface, or the kernel is older than 6.3.
    pub fn read(interface: &str) -> Result<Self, XskError> {
        let failed = |source| XskError::system(interface, "read the maximum length of its TCP packets", source);
        let (mut v4, mut v6) = (None, None);
        ask(libc::RTM_GETLINK, false, &netlink::link(LinkInfo::read(interface)?.index), |message| {
            for (kind, value) in attributes(message.get(LINK..).unwrap_or_default()) {
                match kind {
                    V4 => v4 = number(value, 0),
                    V6 => v6 = number(value, 0),
                    _ => {}
                }
            }
        })
        .map_err(failed)?;
        let Some((v4, v6)) = v4.zip(v6) else {
            return Err(failed(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than 6.3")));
        };
        Ok(Self { v4, v6 })
    }

    /// Sets the limits of an interface in the calling thread's network namespace. Affects only new connections.
    ///
    /// # Errors
    /// [`XskError`] if there is no such interface, or its driver does not support packets of this length (a veth supports up to 524,280
    /// bytes).
    pub fn set(self, interface: &str) -> Result<(), XskError> {
        let failed = |source| XskError::system(interface, "set the maximum length of its TCP packets", source);
        set_numbers(LinkInfo::read(interface)?.index, &[(V6, self.v6), (V4, self.v4)]).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_it() {
        let limits = TcpLimits { v4: 131_072, v6: 131_072 };
        for error in [limits.set("nobodys").unwrap_err(), TcpLimits::read("nobodys").unwrap_err()] {
            assert!(matches!(&error, XskError::NoInterface { interface } if interface == "nobodys"), "{error}");
        }
    }
}
