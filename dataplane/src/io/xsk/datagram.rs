//! UDP sockets whose sender chooses source address and interface of each datagram, and learns why one was refused.
//! Source: ip(7), ipv6(7), udp(7), `include/uapi/linux/errqueue.h`.
//!
//! One socket a family serves all nodes and both ways to them. A socket per node was rejected: a thousand descriptors. A socket bound to
//! the tunnel's interface was rejected too: it would have to share its port with the other socket (`SO_REUSEADDR`), and any program could
//! then take datagrams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use super::small_size;

/// Bytes for ancillary data: more than the kernel's answers need.
const CONTROL: usize = 256;

/// `AF_INET` and `AF_INET6` as an address has them.
const V4: libc::sa_family_t = 2;
const V6: libc::sa_family_t = 10;

/// Ancillary data of a message, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
#[derive(Debug)]
struct Control([u8; CONTROL]);

/// An address as the kernel reads and writes it.
union Address {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    any: libc::sockaddr_storage,
}

/// A UDP socket of one address family that never blocks, and whose datagrams are never fragmented by IPv4 routers.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: UdpSocket,
    is_v4: bool,
}

/// A received datagram's size and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Number of bytes. A datagram larger than the buffer is truncated.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The own address to which it was sent.
    pub to: IpAddr,
    /// The index of the interface over which it arrived.
    pub interface: u32,
}

/// Why a datagram was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// No program listens at the port (ICMP port unreachable).
    NoListener,
    /// A firewall on the way says that it refuses such packets (ICMP administratively prohibited).
    Prohibited,
    /// A router, or the node's own kernel, has no way to the address (other ICMP unreachable messages).
    Unreachable,
    /// It is longer than a link on the way allows, with the link's MTU in bytes.
    TooBig(u32),
}

/// The kernel's report about a datagram that was sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The address to which the datagram was sent.
    pub to: IpAddr,
    /// The address that reports the failure. `None` if this node's kernel does.
    pub by: Option<IpAddr>,
    /// The cause.
    pub cause: Undelivered,
}

impl DatagramSocket {
    /// Opens a socket at this port of all addresses of one family, in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the port is in use, or the kernel has no such family.
    pub fn bind(is_v4: bool, port: u16) -> io::Result<Self> {
        let family = if is_v4 { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: makes a descriptor and touches no memory.
        let descriptor = unsafe { libc::socket(family, kind, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, and nothing else owns it.
        let socket = Self { socket: unsafe { UdpSocket::from_raw_fd(descriptor) }, is_v4 };
        let (level, info, discover, errors, probe) = if is_v4 {
            let probe = libc::IP_PMTUDISC_PROBE;
            (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_MTU_DISCOVER, libc::IP_RECVERR, probe)
        } else {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR, probe)
        };
        if !is_v4 {
            socket.set(level, libc::IPV6_V6ONLY, 1)?;
        }
        for (option, value) in [(info, 1), (discover, probe), (errors, 1)] {
            socket.set(level, option, value)?;
        }
        let any = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let (address, len) = to_kernel(SocketAddr::new(any, port));
        // SAFETY: `address` has `len` valid bytes, which the kernel only reads.
        let bound = unsafe { libc::bind(descriptor, (&raw const address).cast(), len) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        let len = small_size::<i32>();
        // SAFETY: `value` has `len` valid bytes, which the kernel only reads.
        let set = unsafe { libc::setsockopt(self.descriptor(), level, option, (&raw const value).cast(), len) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the port at which the socket receives.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Returns the descriptor for [`poll`](super::poll). It is ready for datagrams and for refusals.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends a datagram. `source` is the source address; `None` lets the kernel choose. `interface` is the index of the interface over which
    /// the route must lead, 0 for any.
    ///
    /// # Errors
    /// `InvalidInput` if `to` or `source` is of the other family, or `source` is not the node's. `WouldBlock` if the socket's queue is
    /// full. Other errors of the kernel: no route, a firewall's refusal, or a datagram that is longer than the interface's MTU.
    pub fn send(&self, bytes: &[u8], to: SocketAddr, source: Option<IpAddr>, interface: u32) -> io::Result<()> {
        if to.is_ipv4() != self.is_v4 || source.is_some_and(|source| source.is_ipv4() != self.is_v4) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (mut address, len) = to_kernel(to);
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = Control([0; CONTROL]);
        let mut message = message(&mut address, len, &mut part, &mut control);
        if self.is_v4 {
            let source = match source {
                Some(IpAddr::V4(source)) => u32::from_ne_bytes(source.octets()),
                _ => 0,
            };
            let info = libc::in_pktinfo {
                ipi_ifindex: interface.cast_signed(),
                ipi_spec_dst: libc::in_addr { s_addr: source },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            attach(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        } else {
            let source = match source {
                Some(IpAddr::V6(source)) => source.octets(),
                _ => [0; 16],
            };
            let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: source }, ipi6_ifindex: interface };
            attach(&mut message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        // SAFETY: `message` points to an address, bytes and ancillary data that outlive the call; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.descriptor(), &raw const message, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives the next datagram into `buffer`. `None` if there is none.
    ///
    /// # Errors
    /// The kernel's error. An error about a datagram sent earlier is reported here once; [`refusal`](Self::refusal) has its cause.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Datagram>> {
        let Some(Received { len, from, notes }) = self.read(buffer, 0)? else { return Ok(None) };
        let mut arrived = None;
        for note in notes {
            arrived = arrived.or(match note {
                Note::Arrived { to, interface } => Some((to, interface)),
                Note::Failed(..) => None,
            });
        }
        let (to, interface) = arrived.ok_or_else(|| io::Error::other("a datagram without its interface"))?;
        let from = from.ok_or_else(|| io::Error::other("a datagram without a sender"))?;
        Ok(Some(Datagram { len, from, to, interface }))
    }

    /// Returns the next report about a datagram that was sent earlier. `None` if there is none.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn refusal(&self) -> io::Result<Option<Refusal>> {
        loop {
            let Some(Received { from, notes, .. }) = self.read(&mut [0; 8], libc::MSG_ERRQUEUE)? else {
                return Ok(None);
            };
            // In this queue, the address is the one to which the datagram was sent.
            let to = from.map(|to| to.ip());
            for note in notes {
                if let (Note::Failed(error, by), Some(to)) = (note, to)
                    && let Some(cause) = cause(&error)
                {
                    return Ok(Some(Refusal { to, by, cause }));
                }
            }
        }
    }

    /// Reads one message of a queue. `None` if the queue is empty.
    fn read(&self, buffer: &mut [u8], flags: i32) -> io::Result<Option<Received>> {
        let mut address = Address { any: zeroed_storage() };
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control([0; CONTROL]);
        let mut message = message(&mut address, small_size::<Address>(), &mut part, &mut control);
        message.msg_controllen = CONTROL as _;
        // SAFETY: `message` points to an address, a buffer and ancillary data that outlive the call, with their sizes.
        let got = unsafe { libc::recvmsg(self.descriptor(), &raw mut message, flags) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        let notes = notes(&message);
        Ok(Some(Received { len: got.cast_unsigned(), from: from_kernel(&address), notes }))
    }
}

/// A message of the kernel.
#[derive(Debug)]
struct Received {
    len: usize,
    from: Option<SocketAddr>,
    notes: Vec<Note>,
}

/// A part of a message's ancillary data.
#[derive(Debug)]
enum Note {
    /// `IP_PKTINFO`, `IPV6_PKTINFO`.
    Arrived { to: IpAddr, interface: u32 },
    /// `IP_RECVERR`, `IPV6_RECVERR`: the error, and the address that reports it. `None` if that is this node.
    Failed(libc::sock_extended_err, Option<IpAddr>),
}

/// Returns a message header with one address, one part and the ancillary data's place, which is empty.
fn message(address: &mut Address, len: libc::socklen_t, part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut *address).cast();
    message.msg_namelen = len;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    message
}

/// Makes `value` the message's ancillary data.
fn attach<T>(message: &mut libc::msghdr, level: i32, kind: i32, value: T) {
    const { assert!(size_of::<T>() <= CONTROL / 2, "the value and its header fit") };
    let size = small_size::<T>();
    // SAFETY: computes a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
    // SAFETY: `msg_control` is a `Control` (see `message`), aligned and large enough for one header and a `T`.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

/// Parses a received message's ancillary data.
fn notes(message: &libc::msghdr) -> Vec<Note> {
    let mut notes = Vec::new();
    // SAFETY: the kernel has written whole headers into `msg_control` and their total length into `msg_controllen`. The macros stay
    // within it; a value is read only if its header says that it is long enough.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let len = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if len >= size_of::<libc::in_pktinfo>() => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let to = Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into();
                    notes.push(Note::Arrived { to, interface: info.ipi_ifindex.cast_unsigned() });
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if len >= size_of::<libc::in6_pktinfo>() => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let to = Ipv6Addr::from(info.ipi6_addr.s6_addr).into();
                    notes.push(Note::Arrived { to, interface: info.ipi6_ifindex });
                }
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                    if len >= size_of::<libc::sock_extended_err>() =>
                {
                    let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                    // The address of the reporter follows (`SO_EE_OFFENDER`).
                    let rest = len - size_of::<libc::sock_extended_err>();
                    let mut by = Address { any: zeroed_storage() };
                    let copied = rest.min(size_of::<Address>());
                    let from = data.add(size_of::<libc::sock_extended_err>());
                    std::ptr::copy_nonoverlapping(from, (&raw mut by).cast::<u8>(), copied);
                    notes.push(Note::Failed(error, from_kernel(&by).map(|by| by.ip())));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    notes
}

/// Returns the cause that an error of the queue describes. `None` for one that is none: a report without an errno.
fn cause(error: &libc::sock_extended_err) -> Option<Undelivered> {
    let errno = i32::try_from(error.ee_errno).unwrap_or_default();
    // ICMP: type 3, codes 9, 10 and 13 (RFC 1812 §5.2.7.1). ICMPv6: type 1, codes 1, 5 and 6 (RFC 4443 §3.1).
    let is_prohibited = match error.ee_origin {
        libc::SO_EE_ORIGIN_ICMP => error.ee_type == 3 && [9, 10, 13].contains(&error.ee_code),
        libc::SO_EE_ORIGIN_ICMP6 => error.ee_type == 1 && [1, 5, 6].contains(&error.ee_code),
        _ => false,
    };
    Some(match errno {
        0 => return None,
        libc::EMSGSIZE => Undelivered::TooBig(error.ee_info),
        _ if is_prohibited => Undelivered::Prohibited,
        libc::ECONNREFUSED => Undelivered::NoListener,
        _ => Undelivered::Unreachable,
    })
}

fn zeroed_storage() -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`: an address of no family.
    unsafe { std::mem::zeroed() }
}

/// Returns the address as the kernel reads it, and its length in bytes.
fn to_kernel(address: SocketAddr) -> (Address, libc::socklen_t) {
    let mut told = Address { any: zeroed_storage() };
    let len = match address {
        SocketAddr::V4(address) => {
            told.v4 = libc::sockaddr_in {
                sin_family: V4,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            small_size::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            told.v6 = libc::sockaddr_in6 {
                sin6_family: V6,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            small_size::<libc::sockaddr_in6>()
        }
    };
    (told, len)
}

/// Returns the address that the kernel has written. `None` if it is of neither family.
fn from_kernel(address: &Address) -> Option<SocketAddr> {
    // SAFETY: all members start with the family, and all bytes were initialised by `zeroed_storage`.
    match unsafe { address.any.ss_family } {
        V4 => {
            // SAFETY: the family says which member was written; any bytes are a valid one.
            let told = unsafe { address.v4 };
            let ip = Ipv4Addr::from(told.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(told.sin_port)))
        }
        V6 => {
            // SAFETY: as above.
            let told = unsafe { address.v6 };
            let ip = Ipv6Addr::from(told.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(told.sin6_port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::io::xsk::wait::{PollSet, poll};

    fn within_a_second<T>(socket: &DatagramSocket, mut read: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            if let Some(found) = read() {
                return found;
            }
            assert!(Instant::now() < end, "nothing arrives");
            let mut set = PollSet::new();
            set.add(socket.descriptor());
            poll(&mut set, 100).unwrap();
        }
    }

    #[test]
    fn a_datagram_arrives_with_its_addresses_and_interface() {
        for own in ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let [one, two] = [(), ()].map(|()| DatagramSocket::bind(own.is_ipv4(), 0).unwrap());
            let to = SocketAddr::new(own, two.port().unwrap());
            // The loopback interface has the index 1.
            for interface in [0, 1] {
                one.send(b"hello", to, Some(own), interface).unwrap();
                let mut buffer = [0; 64];
                let got = within_a_second(&two, || two.receive(&mut buffer).unwrap());
                let from = SocketAddr::new(own, one.port().unwrap());
                assert_eq!(got, Datagram { len: 5, from, to: own, interface: 1 });
                assert_eq!(&buffer[..5], b"hello");
            }
            assert_eq!(two.receive(&mut [0; 64]).unwrap(), None);
        }
    }

    #[test]
    fn the_kernel_says_that_no_program_listens() {
        for own in ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let socket = DatagramSocket::bind(own.is_ipv4(), 0).unwrap();
            let other = DatagramSocket::bind(own.is_ipv4(), 0).unwrap();
            let to = SocketAddr::new(own, other.port().unwrap());
            drop(other);
            socket.send(b"hello", to, None, 0).unwrap();
            let refusal = within_a_second(&socket, || socket.refusal().unwrap());
            assert_eq!(refusal, Refusal { to: own, by: Some(own), cause: Undelivered::NoListener });
            assert_eq!(socket.refusal().unwrap(), None);
        }
    }

    #[test]
    fn what_cannot_be_sent_is_an_error() {
        let socket = DatagramSocket::bind(true, 0).unwrap();
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 9);
        assert!(socket.send(&[], at("::1"), None, 0).is_err(), "another family");
        let foreign = Some("192.0.2.1".parse().unwrap());
        assert!(socket.send(&[], at("127.0.0.1"), foreign, 0).is_err(), "another node's source");
        let long = vec![0; 65_508];
        assert!(socket.send(&long, at("127.0.0.1"), None, 0).is_err(), "longer than a datagram");
    }

    #[test]
    fn causes_are_told_apart() {
        let error = |errno: i32, origin, kind, code| libc::sock_extended_err {
            ee_errno: errno.cast_unsigned(),
            ee_origin: origin,
            ee_type: kind,
            ee_code: code,
            ee_pad: 0,
            ee_info: 1400,
            ee_data: 0,
        };
        let (v4, v6, local) = (libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6, libc::SO_EE_ORIGIN_LOCAL);
        for (told, expected) in [
            (error(libc::ECONNREFUSED, v4, 3, 3), Some(Undelivered::NoListener)),
            (error(libc::EHOSTUNREACH, v4, 3, 13), Some(Undelivered::Prohibited)),
            (error(libc::EACCES, v6, 1, 1), Some(Undelivered::Prohibited)),
            (error(libc::EHOSTUNREACH, v4, 3, 1), Some(Undelivered::Unreachable)),
            (error(libc::EMSGSIZE, v4, 3, 4), Some(Undelivered::TooBig(1400))),
            (error(libc::EMSGSIZE, local, 0, 0), Some(Undelivered::TooBig(1400))),
            (error(0, local, 0, 0), None),
        ] {
            assert_eq!(cause(&told), expected);
        }
    }
}
