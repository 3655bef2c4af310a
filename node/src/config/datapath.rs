//! What judges and forwards packets, and how it is attached to the kernel.

use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_control::pipeline::{Choice, Engine};
use bulkhead_control::renderer::nftables::Suspects;

/// Who judges and forwards packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dataplane {
    /// The vswitch's workers.
    #[default]
    Vswitch,
    /// The kernel judges by a ruleset of its nftables, and forwards as it did.
    Nftables,
}

/// How the kernel is told what to enforce.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct NftablesConfig {
    /// What the names of pods' interfaces begin with, so that those of nobody drop; empty for all veths.
    pub pod_interfaces: Vec<Arc<str>>,
}

impl NftablesConfig {
    /// Which interfaces that nobody has named are a pod's all the same.
    pub(crate) fn suspects(&self) -> Suspects {
        match &*self.pod_interfaces {
            [] => Suspects::Veth,
            prefixes => Suspects::Prefixes(prefixes.to_vec()),
        }
    }
}

/// What makes the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Rule lists.
    #[default]
    Acl,
    /// An ipcache and policy maps.
    Identity,
    /// Whatever suits the state.
    Auto,
}

impl EngineName {
    /// As it is written.
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

/// Where the packets of interfaces are taken from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Attach {
    /// At their tc hooks: segmentation and checksum offload stay as they are.
    #[default]
    Tc,
    /// By AF_XDP sockets on the interfaces themselves.
    Xdp,
}

/// Where links and maps are pinned that outlive the process, with [`Attach::Tc`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Pins {
    /// At [`DEFAULT_PINS`], if that is in a BPF file system.
    #[default]
    Default,
    /// There, which must be in one.
    Path(PathBuf),
    /// Nowhere.
    None,
}

/// Where pins are by default: below the usual mount point of the BPF file system.
pub(crate) const DEFAULT_PINS: &str = "/sys/fs/bpf/bulkhead";

/// What a port may send to the workers with [`Attach::Tc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowPathConfig {
    /// Packets a second, as they are on a wire; 0 is no limit.
    pub packets_per_second: u32,
    /// How many at once after a pause.
    pub burst: u32,
}

/// Which XDP mode binds an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// In the driver.
    Drv,
    /// Behind it, which every driver can do.
    Skb,
    /// In the driver where that works.
    #[default]
    Auto,
}
