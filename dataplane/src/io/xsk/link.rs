//! Reads an interface's properties by ioctl, and reads and changes its offloads.
//!
//! The alternative, `/sys/class/net`, shows the namespace in which sysfs was mounted. An ioctl uses the calling thread's namespace, such as
//! a pod's.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::XskError;

/// Properties of an interface at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The interface's name.
    pub name: String,
    /// Interface index in the namespace. A new interface of the same name has another index.
    pub index: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// MTU: maximum bytes of a packet after its Ethernet header.
    pub mtu: u32,
    /// Whether the interface carries Ethernet frames, which AF_XDP requires. Tunnels and `lo` do not.
    pub ethernet: bool,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Number of receive queues. Each needs one socket.
    pub queues: u32,
    /// Number of transmit queues.
    pub transmit_queues: u32,
    /// Maximum number of receive queues (`ethtool -L`).
    pub most_queues: u32,
}

impl LinkInfo {
    /// Reads an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`XskError`] if the interface does not exist or an ioctl fails.
    pub fn read(name: &str) -> Result<Self, XskError> {
        let failed = |operation| move |source| XskError::system(name, operation, source);
        let request = Request::new(name)?;
        let index = request.ask(libc::SIOCGIFINDEX).map_err(failed("ask for the index"))?;
        // SAFETY: the kernel has set this member.
        let index = unsafe { index.ifr_ifru.ifru_ifindex }.cast_unsigned();
        let flags = request.ask(libc::SIOCGIFFLAGS).map_err(failed("ask for the flags"))?;
        // SAFETY: as above.
        let flags = i32::from(unsafe { flags.ifr_ifru.ifru_flags });
        let mtu = request.ask(libc::SIOCGIFMTU).map_err(failed("ask for the MTU"))?;
        // SAFETY: as above.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu }.cast_unsigned();
        let mac = request.ask(libc::SIOCGIFHWADDR).map_err(failed("ask for the MAC address"))?;
        // SAFETY: as above.
        let address = unsafe { mac.ifr_ifru.ifru_hwaddr };
        let ethernet = address.sa_family == libc::ARPHRD_ETHER;
        let mac = address.sa_data;
        let mac = std::array::from_fn(|at| mac[at].cast_unsigned());
        let [queues, transmit_queues, most_queues] =
            request.queues().map_err(failed("ask for the number of queues"))?;
        let (name, up) = (name.to_owned(), flags & libc::IFF_UP != 0);
        Ok(Self { name, index, mac, mtu, ethernet, up, queues, transmit_queues, most_queues })
    }
}

/// Whether the interface leaves transmit checksums to hardware, which a veth lacks. Its packets then reach an AF_XDP socket with wrong
/// checksums, and their receiver drops them.
///
/// # Errors
/// [`XskError`] if the calling thread's namespace has no such interface or an ioctl fails.
pub fn transmit_checksum_offload(interface: &str) -> Result<bool, XskError> {
    let mut value = Value { command: ETHTOOL_GTXCSUM, data: 0 };
    Request::new(interface)?
        .ethtool(&mut value)
        .map_err(|source| XskError::system(interface, "ask for the checksum offload", source))?;
    Ok(value.data != 0)
}

/// Turns transmit checksum offload on or off, like `ethtool -K INTERFACE tx off`. Off also disables segmentation offload.
///
/// # Errors
/// [`XskError`] if there is no such interface, an ioctl fails, or the process lacks `CAP_NET_ADMIN`.
pub fn set_transmit_checksum_offload(interface: &str, on: bool) -> Result<(), XskError> {
    let mut value = Value { command: ETHTOOL_STXCSUM, data: u32::from(on) };
    Request::new(interface)?
        .ethtool(&mut value)
        .map_err(|source| XskError::system(interface, "change the checksum offload", source))
}

/// Turns generic receive offload on or off, like `ethtool -K INTERFACE gro on`. A veth with it accepts packets that an XDP program sends
/// at its peer ([`takes_xdp_frames`](super::takes_xdp_frames)).
///
/// # Errors
/// As for [`set_transmit_checksum_offload`].
pub fn set_generic_receive_offload(interface: &str, on: bool) -> Result<(), XskError> {
    let mut value = Value { command: ETHTOOL_SGRO, data: u32::from(on) };
    Request::new(interface)?
        .ethtool(&mut value)
        .map_err(|source| XskError::system(interface, "change generic receive offload", source))
}

/// Turns off features by their names in `ethtool -k`. Ignores features that the interface does not have.
///
/// # Errors
/// As for [`set_transmit_checksum_offload`], and if a feature is fixed.
pub(super) fn turn_off(interface: &str, features: &[&str]) -> Result<(), XskError> {
    /// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS`, `ETHTOOL_SFEATURES`, `ETH_SS_FEATURES`.
    const GET_SET_INFO: u32 = 0x37;
    const GET_STRINGS: u32 = 0x1b;
    const SET_FEATURES: u32 = 0x3b;
    const FEATURES: u32 = 4;
    /// `ETH_GSTRING_LEN`, in words.
    const STRING: usize = 8;
    let request = Request::new(interface)?;
    let failed = |source| XskError::system(interface, "turn offloads off", source);
    // Command, reserved, a mask of 64 bits, the answer.
    let mut info = [GET_SET_INFO, 0, 1 << FEATURES, 0, 0];
    request.ethtool_words(&mut info).map_err(failed)?;
    let count = info[4] as usize;
    let mut strings = vec![0; 3 + count * STRING];
    strings[..3].copy_from_slice(&[GET_STRINGS, FEATURES, info[4]]);
    request.ethtool_words(&mut strings).map_err(failed)?;
    // Command, number of blocks, and per block a mask of the bits to change and their new values.
    let blocks = count.div_ceil(32);
    let mut change = vec![0; 2 + 2 * blocks];
    change[..2].copy_from_slice(&[SET_FEATURES, u32::try_from(blocks).unwrap_or(0)]);
    for (bit, words) in strings[3..].chunks_exact(STRING).enumerate() {
        let name: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|&byte| byte != 0).collect();
        if features.iter().any(|feature| feature.as_bytes() == name) {
            change[2 + 2 * (bit / 32)] |= 1 << (bit % 32);
        }
    }
    request.ethtool_words(&mut change).map_err(failed)
}

/// Features that modify packets before an AF_XDP socket receives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFeatures {
    /// Driver name, such as `veth` or `ixgbe`. Empty if the kernel does not report it.
    pub driver: String,
    /// Generic receive offload: the kernel merges packets of a connection.
    pub generic_receive_offload: bool,
    /// Large receive offload: the hardware merges packets of a connection, irreversibly.
    pub large_receive_offload: bool,
    /// VLAN offload (`rxvlan`): the hardware removes VLAN tags from packets, so an XDP program sees them untagged.
    pub receive_vlan_offload: bool,
}

impl LinkFeatures {
    /// Reads an interface's features. Features unknown to the driver are reported as off.
    ///
    /// # Errors
    /// [`XskError`] if the calling thread's namespace has no such interface.
    pub fn read(interface: &str) -> Result<Self, XskError> {
        /// `ETHTOOL_GDRVINFO`, `ETHTOOL_GFLAGS`, `ETHTOOL_GGRO`.
        const DRIVER: u32 = 0x03;
        const FLAGS: u32 = 0x25;
        const GRO: u32 = 0x2b;
        /// `ETH_FLAG_RXVLAN`, `ETH_FLAG_LRO`.
        const RECEIVE_VLAN: u32 = 1 << 8;
        const LARGE_RECEIVE: u32 = 1 << 15;
        let request = Request::new(interface)?;
        request.ask(libc::SIOCGIFINDEX).map_err(|source| XskError::system(interface, "ask for the index", source))?;
        let ask = |command| {
            let mut value = Value { command, data: 0 };
            request.ethtool(&mut value).map_or(0, |()| value.data)
        };
        let flags = ask(FLAGS);
        let mut driver = DriverInfo { command: DRIVER, name: [0; 32], rest: [0; 160] };
        let driver = match request.ethtool(&mut driver) {
            Ok(()) => {
                let end = driver.name.iter().position(|&byte| byte == 0).unwrap_or(driver.name.len());
                String::from_utf8_lossy(&driver.name[..end]).into_owned()
            }
            Err(_) => String::new(),
        };
        Ok(Self {
            driver,
            generic_receive_offload: ask(GRO) != 0,
            large_receive_offload: flags & LARGE_RECEIVE != 0,
            receive_vlan_offload: flags & RECEIVE_VLAN != 0,
        })
    }
}

/// `struct ethtool_drvinfo`: 196 bytes.
#[repr(C)]
struct DriverInfo {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

/// `ETHTOOL_SGRO` of `linux/ethtool.h`.
const ETHTOOL_SGRO: u32 = 0x2c;
/// `ETHTOOL_GTXCSUM` of `linux/ethtool.h`.
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_channels`.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    most_receive: u32,
    most_transmit: u32,
    most_other: u32,
    most_combined: u32,
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// A socket and the interface's name, for ioctls about the interface.
struct Request {
    socket: OwnedFd,
    name: CString,
}

impl Request {
    fn new(interface: &str) -> Result<Self, XskError> {
        let no_interface = || XskError::NoInterface { interface: interface.to_owned() };
        let name = CString::new(interface).map_err(|_| no_interface())?;
        if name.is_empty() || name.as_bytes().len() >= libc::IFNAMSIZ {
            return Err(no_interface());
        }
        // Any socket type works; a Unix socket does not need IPv4.
        // SAFETY: makes a descriptor and touches no memory.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(XskError::system(interface, "open a socket to ask with", io::Error::last_os_error()));
        }
        // SAFETY: just created, and nothing else owns it.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(socket) }, name })
    }

    fn request(&self) -> libc::ifreq {
        let empty = libc::__c_anonymous_ifr_ifru { ifru_data: std::ptr::null_mut() };
        let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: empty };
        let name = self.name.as_bytes().iter().map(|&byte| byte as libc::c_char);
        request.ifr_name.iter_mut().zip(name).for_each(|(to, from)| *to = from);
        request
    }

    /// Performs a `SIOCGIF…` ioctl and returns the request with the answer.
    fn ask(&self, code: libc::c_ulong) -> io::Result<libc::ifreq> {
        let mut request = self.request();
        // SAFETY: these ioctls read the name and write within the request.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), code as libc::Ioctl, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
    }

    /// Like [`ethtool`](Self::ethtool), for a structure of variable length.
    fn ethtool_words(&self, words: &mut [u32]) -> io::Result<()> {
        self.ethtool_at(words.as_mut_ptr().cast())
    }

    /// Performs an ethtool ioctl. The command in the first member of `value` determines the structure's length.
    fn ethtool<T>(&self, value: &mut T) -> io::Result<()> {
        self.ethtool_at((&raw mut *value).cast())
    }

    fn ethtool_at(&self, value: *mut libc::c_char) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: value };
        let code = libc::SIOCETHTOOL as libc::Ioctl;
        // SAFETY: only called with the structure of its command, which the kernel reads and writes.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), code, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the numbers of receive and transmit queues and the maximum number of receive queues.
    fn queues(&self) -> io::Result<[u32; 3]> {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        match self.ethtool(&mut channels) {
            Ok(()) => {
                let queues = channels.receive.saturating_add(channels.combined).max(1);
                let transmit = channels.transmit.saturating_add(channels.combined).max(1);
                let most = channels.most_receive.saturating_add(channels.most_combined).max(queues);
                Ok([queues, transmit, most])
            }
            // Drivers without this command have one queue, with few exceptions. Packets on other queues are dropped.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL)) => {
                Ok([1, 1, 1])
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_told_as_it_is() {
        let info = LinkInfo::read("lo").unwrap();
        assert_eq!((info.name.as_str(), info.mac, info.queues, info.most_queues), ("lo", [0; 6], 1, 1));
        assert!(!info.ethernet && info.index > 0 && info.mtu >= 1280);
    }

    #[test]
    fn the_loopback_interface_has_features_and_a_missing_one_is_an_error() {
        let features = LinkFeatures::read("lo").unwrap();
        assert!(!features.large_receive_offload && !features.receive_vlan_offload, "{features:?}");
        assert!(matches!(LinkFeatures::read("absent0"), Err(XskError::NoInterface { .. })));
    }

    #[test]
    fn names_that_no_interface_can_have_are_no_interface() {
        for name in ["", "no-such-interface-at-all", "absent0", "nul\0"] {
            assert!(matches!(LinkInfo::read(name), Err(XskError::NoInterface { .. })), "{name:?}");
        }
    }
}
