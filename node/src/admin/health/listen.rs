//! Binds a TCP port on all addresses of the node.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as start, socket_with, sockopt};

/// Maximum number of connections waiting to be accepted; the standard library uses the same value.
const BACKLOG: i32 = 128;

/// Binds the address. `[::]` accepts both address families, regardless of the node's `bindv6only`, and falls back to `0.0.0.0` on a node
/// without IPv6.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match listen_at(address) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if address.is_ipv6() && address.ip().is_unspecified() => {
            Ok(listen_at(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))?)
        }
        other => Ok(other?),
    }
}

fn listen_at(address: SocketAddr) -> Result<TcpListener, Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Recently closed connections do not block the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    bind(&socket, &address)?;
    start(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn the_unspecified_address_is_that_of_both_families_and_a_port_is_one_listeners() {
        let listener = listen("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for address in ["127.0.0.1", "::1"] {
            let address: std::net::IpAddr = address.parse().unwrap();
            if address.is_ipv4() || listener.local_addr().unwrap().is_ipv6() {
                assert!(TcpStream::connect((address, port)).is_ok(), "{address}");
            }
        }
        for taken in [format!("0.0.0.0:{port}"), format!("[::]:{port}")] {
            assert_eq!(listen(taken.parse().unwrap()).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{taken}");
        }
        drop(listener);
        assert!(listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).is_ok());
    }
}
