//! Settings of the datapath: what judges and forwards packets, and how it attaches to the kernel.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_control::pipeline::{Choice, Engine};
use bulkhead_control::renderer::nftables::Suspects;

/// The component that judges and forwards packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dataplane {
    /// The vswitch's workers judge and forward packets.
    #[default]
    Vswitch,
    /// The kernel forwards packets, and an nftables ruleset judges them.
    Nftables,
}

/// Settings of `dataplane: nftables`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct NftablesConfig {
    /// Prefixes of pods' interface names. Packets of such interfaces without a pod are dropped. Empty means all veths.
    pub pod_interfaces: Vec<Arc<str>>,
}

impl NftablesConfig {
    /// Returns the filter of interfaces that count as a pod's although no port names them.
    pub(crate) fn suspects(&self) -> Suspects {
        match &*self.pod_interfaces {
            [] => Suspects::Veth,
            prefixes => Suspects::Prefixes(prefixes.to_vec()),
        }
    }
}

/// The engine that compiles policies to tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Tables are ordered lists of rules with address blocks.
    #[default]
    Acl,
    /// Tables map addresses to identities, and identities to verdicts, like Cilium's ipcache and policy maps.
    Identity,
    /// Selects the engine that suits the state, again with each change.
    Auto,
}

impl EngineName {
    /// Returns the engine's name in the configuration.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Identity => "identity",
            Self::Auto => "auto",
        }
    }
}

impl From<EngineName> for Choice {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Acl => Self::Fixed(Engine::Acl),
            EngineName::Identity => Self::Fixed(Engine::Identity),
            EngineName::Auto => Self::Auto,
        }
    }
}

/// The hook at which the vswitch takes packets from interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Attach {
    /// Programs at the tc hooks. Interfaces keep their segmentation and checksum offloads.
    #[default]
    Tc,
    /// XDP programs that redirect packets to AF_XDP sockets on the interfaces.
    Xdp,
}

/// The folder for pinned links and maps, which outlive the process, with [`Attach::Tc`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Pins {
    /// [`DEFAULT_PINS`], if that folder is in a BPF file system; otherwise no pins.
    #[default]
    Default,
    /// This folder, which must be in a BPF file system.
    Path(PathBuf),
    /// No pins: links and maps end with the process.
    None,
}

impl Pins {
    /// Returns the folder, which may not exist or be in another file system. `None` without pins.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Default => Some(Path::new(DEFAULT_PINS)),
            Self::Path(path) => Some(path),
            Self::None => None,
        }
    }
}

/// Default folder of pins: below the usual mount point of the BPF file system.
pub(crate) const DEFAULT_PINS: &str = "/sys/fs/bpf/bulkhead";

/// Rate limit of a port's packets to the workers, with [`Attach::Tc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowPathConfig {
    /// Packets per second after segmentation. 0 means no limit.
    pub packets_per_second: u32,
    /// Number of packets that may arrive at once after a pause, above the rate.
    pub burst: u32,
}

/// The XDP mode of an interface's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum XdpModeName {
    /// Native mode, in the driver.
    Drv,
    /// Generic mode, after the driver. Works with every driver.
    Skb,
    /// Native mode if the driver supports it, else generic mode.
    #[default]
    Auto,
}
