//! Where an XDP program runs.

use std::fmt;

/// Where in the kernel packets are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// `Drv` where the driver can, else `Skb`.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a packet of its own of it.
    Drv,
    /// After that; works with every driver.
    Skb,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Drv => "drv",
            Self::Skb => "skb",
        })
    }
}
