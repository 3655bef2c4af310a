//! Link-layer header types.

use std::fmt;

/// The supported link layers, by their LINKTYPE registry entries. Source: tcpdump.org "Link-layer header types".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkType {
    /// LINKTYPE_NULL (0): BSD loopback, the address family in the byte order of the capturing host.
    Null,
    /// LINKTYPE_ETHERNET (1).
    Ethernet,
    /// LINKTYPE_RAW (101; 12 and 14 in older files): IPv4 or IPv6, by the version field.
    Raw,
    /// LINKTYPE_LOOP (108): OpenBSD loopback, the address family in network byte order.
    Loop,
    /// LINKTYPE_LINUX_SLL (113): `tcpdump -i any`.
    LinuxSll,
    /// LINKTYPE_IPV4 (228).
    Ipv4,
    /// LINKTYPE_IPV6 (229).
    Ipv6,
    /// LINKTYPE_LINUX_SLL2 (276): newer `tcpdump -i any`.
    LinuxSll2,
}

impl LinkType {
    /// Every supported link type.
    pub const ALL: [Self; 8] =
        [Self::Null, Self::Ethernet, Self::Raw, Self::Loop, Self::LinuxSll, Self::Ipv4, Self::Ipv6, Self::LinuxSll2];

    /// Returns the link type with this registry number. `None` if it is not supported.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Null,
            1 => Self::Ethernet,
            // 12 and 14 were DLT_RAW on BSD systems before its own number was assigned.
            12 | 14 | 101 => Self::Raw,
            108 => Self::Loop,
            113 => Self::LinuxSll,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            276 => Self::LinuxSll2,
            _ => return None,
        })
    }

    /// Returns the link type's number in the LINKTYPE registry.
    pub const fn code(self) -> u16 {
        match self {
            Self::Null => 0,
            Self::Ethernet => 1,
            Self::Raw => 101,
            Self::Loop => 108,
            Self::LinuxSll => 113,
            Self::Ipv4 => 228,
            Self::Ipv6 => 229,
            Self::LinuxSll2 => 276,
        }
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "BSD loopback",
            Self::Ethernet => "Ethernet",
            Self::Raw => "raw IP",
            Self::Loop => "OpenBSD loopback",
            Self::LinuxSll => "Linux cooked",
            Self::Ipv4 => "raw IPv4",
            Self::Ipv6 => "raw IPv6",
            Self::LinuxSll2 => "Linux cooked v2",
        })
    }
}
