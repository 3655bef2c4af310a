//! XDP modes.

use std::fmt;

/// Where in the kernel the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// `Drv` if the driver supports it, else `Skb`.
    #[default]
    Auto,
    /// Driver mode: before the kernel allocates an `sk_buff`.
    Drv,
    /// Generic mode: after the kernel has allocated an `sk_buff`. Works with every driver.
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
