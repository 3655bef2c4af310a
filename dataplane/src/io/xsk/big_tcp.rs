//! Sets an interface's maximum length of unsegmented TCP packets ("BIG TCP", Linux 6.3).
//! Source: `include/uapi/linux/if_link.h`; <https://lwn.net/Articles/920018/>.
//!
//! The kernel sends TCP in long packets, which the last interface on the path cuts into segments. The limit is 64 KiB unless the interface
//! allows more. The path's cost is per packet, so longer packets make bulk TCP cheaper. An interface on the path with a lower limit
//! segments the packets in software.
//!
//! IPv4 only: for IPv6, current kernels insert another header, which the flow cache's programs do not parse.

use std::io;

use super::link::LinkInfo;
use super::netlink::{LINK, ask, attributes, number};
use super::netlink_write::set_number;
use super::{XskError, netlink};

/// `IFLA_GSO_IPV4_MAX_SIZE`.
const SENT: u16 = 63;

/// Sets the maximum length in bytes of unsegmented TCP packets over IPv4 on an interface of the calling thread's network namespace. Affects
/// only new connections.
///
/// # Errors
/// [`XskError`] if there is no such interface, the kernel is older than 6.3, or the driver supports no packets of this length (a veth
/// supports up to 524,280 bytes).
pub fn set_longest_tcp_packet(interface: &str, bytes: u32) -> Result<(), XskError> {
    let failed = |source| XskError::system(interface, "set the maximum length of its TCP packets", source);
    let index = LinkInfo::read(interface)?.index;
    set_number(index, SENT, bytes).map_err(failed)?;
    // Older kernels ignore the unknown attribute.
    match longest_sent(index).map_err(failed)? {
        Some(now) if now == bytes => Ok(()),
        _ => Err(failed(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than 6.3"))),
    }
}

fn longest_sent(index: u32) -> io::Result<Option<u32>> {
    let mut longest = None;
    ask(libc::RTM_GETLINK, false, &netlink::link(index), |message| {
        let mut attributes = attributes(message.get(LINK..).unwrap_or_default());
        longest = attributes.find(|&(kind, _)| kind == SENT).and_then(|(_, value)| number(value, 0));
    })?;
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_it() {
        let error = set_longest_tcp_packet("nobodys", 131_072).unwrap_err();
        assert!(matches!(&error, XskError::NoInterface { interface } if interface == "nobodys"), "{error}");
    }
}
