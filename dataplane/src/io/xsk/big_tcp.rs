//! How long the packets are in which an interface sends TCP ("BIG TCP", Linux 6.3).
//! Source: `include/uapi/linux/if_link.h`; <https://lwn.net/Articles/920018/>.
//!
//! The kernel sends TCP in packets that only the last interface of their way cuts into segments. They have up to 64 KiB unless the
//! interface allows more. Everything on the way is done once a packet, so that longer ones make bulk TCP cheaper for the sender. An
//! interface on their way that does not allow as much cuts them as if it could do nothing itself.
//!
//! IPv4 only: with IPv6, kernels of today put another header into such packets, and the flow cache's programs do not read it.

use std::io;

use super::link::LinkInfo;
use super::netlink::{LINK, ask, attributes, number};
use super::netlink_write::set_number;
use super::{XskError, netlink};

/// `IFLA_GSO_IPV4_MAX_SIZE`.
const SENT: u16 = 63;

/// Lets an interface of the calling thread's network namespace send TCP over IPv4 in packets of up to so many bytes. Connections
/// that exist stay as they are.
///
/// # Errors
/// [`XskError`] when there is no such interface, the kernel is older than 6.3, or its driver does not take packets of this size
/// (a veth takes up to 524,280 bytes).
pub fn set_longest_tcp_packet(interface: &str, bytes: u32) -> Result<(), XskError> {
    let failed = |source| XskError::system(interface, "change how long its TCP packets are", source);
    let index = LinkInfo::read(interface)?.index;
    set_number(index, SENT, bytes).map_err(failed)?;
    // Older kernels pass over what they do not know.
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
