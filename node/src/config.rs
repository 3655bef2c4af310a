//! The configuration of `bulkhead run`: one YAML file.
//!
//! A field that is not known is an error: a misspelt `tcp_pickup` must not silently mean the default. Every fault is
//! reported with file, line, field and remedy, all of them in one go.
//!
//! ```text
//!   text --serde--> file::* (as written, each value with its line) --check--> Config (what it means) | ConfigErrors
//! ```
//!
//! `examples/node.yaml` shows every field with its default; a test reads it.

pub(super) mod buffers;
mod check;
mod datapath;
mod error;
mod faults;
mod file;
mod hubble;
mod journal;
mod masquerade;
mod ports;
mod sessions;
mod state;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_control::object::{Denied, Enforcement};
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::PortKind;
use ipnet::IpNet;

use super::log::LogConfig;
use super::state::Judging;
pub(super) use check::{check_interface, parse_mac};
pub(crate) use datapath::{Attach, DEFAULT_PINS, Dataplane, EngineName, Mode, NftablesConfig, Pins, SlowPathConfig};
pub(crate) use error::{ConfigError, ConfigErrors};
pub(crate) use hubble::{HubbleConfig, TlsFiles};
pub(crate) use journal::JournalConfig;
pub(crate) use masquerade::MasqueradeConfig;
pub(crate) use ports::{Added, PortEntry, RouteEntry};
pub(crate) use sessions::{SessionsConfig, SharesConfig, TimeoutsConfig, Window};
pub(crate) use state::{KubernetesConfig, StateConfig, WhenMissing, WhenRefused, WhenUnreachable};

/// Longer texts are not a configuration. A bound, because the parser builds a tree of what it reads.
const MAX_FILE_LEN: u64 = 1 << 20;

/// What `bulkhead run` shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The node whose vswitch this is.
    pub node: Arc<str>,
    /// Who judges and forwards packets.
    pub dataplane: Dataplane,
    /// How the kernel is told, with [`Dataplane::Nftables`].
    pub nftables: NftablesConfig,
    /// Where the packets of interfaces are taken from the kernel.
    pub attach: Attach,
    /// How interfaces are taken, with [`Attach::Xdp`].
    pub mode: Mode,
    /// Whether packets of established sessions between pods are forwarded in the kernel.
    pub flow_cache: bool,
    /// The longest time that a flow is forwarded in the kernel without a packet of it that a worker sees.
    pub flow_lease: Duration,
    /// How long the packets may be in which pods send TCP over IPv4, in bytes; none for as the kernel has it.
    pub big_tcp: Option<u32>,
    /// What a port may send to the workers.
    pub slow_path: SlowPathConfig,
    /// Whether links (tcx) take the place of filters, where the kernel has them.
    pub tcx: bool,
    /// Where links and maps are pinned.
    pub pins: Pins,
    /// Where policy comes from.
    pub state: StateConfig,
    /// What there is to know of Services; none where they are left to somebody else.
    pub services: Option<Settings>,
    /// How pods' connections to the world leave; none for with their own addresses.
    pub masquerade: Option<MasqueradeConfig>,
    /// What becomes of packets that policy denies, in namespaces that do not say.
    pub denied: Denied,
    /// At which end of a packet's way through the vswitch policy is judged.
    pub enforce: EnforcedAt,
    /// What makes the tables.
    pub engine: EngineName,
    /// Whether policies are enforced that do not say, nor their namespaces.
    pub enforcement: Enforcement,
    /// The folder that keeps what audited policies would have denied; none where it ends with the process.
    pub audit_folder: Option<PathBuf>,
    /// The flight recorder's journal.
    pub journal: JournalConfig,
    /// The threads that forward.
    pub workers: WorkersConfig,
    /// How connections are remembered.
    pub sessions: SessionsConfig,
    /// Where the running vswitch can be asked.
    pub admin: AdminConfig,
    /// Where Hubble's clients are served.
    pub hubble: HubbleConfig,
    /// How events are written.
    pub log: LogConfig,
    /// What is connected, in the order of the file.
    pub ports: Vec<PortEntry>,
    /// Where packets go that are not for a pod of this node, besides what the state says.
    pub routes: Vec<RouteEntry>,
    /// The host port's interfaces, where the vswitch makes them.
    pub created_host: Option<CreatedHost>,
}

/// The interfaces of the host port, where the vswitch makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreatedHost {
    /// The vswitch's end.
    pub interface: Arc<str>,
    /// The end of the node's kernel.
    pub peer: Arc<str>,
    /// What a packet may have at most, in bytes, without its Ethernet header.
    pub mtu: u32,
    /// What the node reaches over it; empty for the pod networks of its Node.
    pub networks: Vec<IpNet>,
}

impl CreatedHost {
    /// The names of the two ends, the vswitch's first.
    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.interface, &self.peer]
    }
}

/// What a worker does when nothing is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Poll {
    /// It asks again at once: least delay, a whole core.
    Spin,
    /// It asks for a while, then sleeps until something comes.
    #[default]
    Adaptive,
}

/// The threads that forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkersConfig {
    /// One worker each; none is a worker that the kernel may move.
    pub cores: Vec<Option<usize>>,
    /// What they do when idle.
    pub poll: Poll,
    /// Packet buffers that all ports share, 4 KiB each; none is [`Config::frames`]' default, which follows the ports.
    pub frames: Option<u32>,
}

/// Where the running vswitch can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminConfig {
    /// The admin socket; none where there is to be none.
    pub socket: Option<PathBuf>,
    /// The folder that keeps the ports that are added there; none without a socket.
    pub ports_folder: Option<PathBuf>,
    /// Where metrics and probes are served over HTTP.
    pub listen: Option<SocketAddr>,
    /// Where load balancers are told whether the node serves; their Services' own ports are at the same address. None where nobody is.
    pub service_health: Option<SocketAddr>,
}

impl Config {
    /// Reads the file. `node` takes the place of the name in it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn read(path: &Path, node: Option<&str>) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let unreadable = |problem: String, help: &str| {
            ConfigErrors(vec![ConfigError {
                file: file.as_str().into(),
                line: None,
                field: String::new(),
                problem,
                help: help.to_owned(),
            }])
        };
        let length = std::fs::metadata(path).map(|file| file.len());
        if length.is_ok_and(|length| length > MAX_FILE_LEN) {
            let problem = format!("the file has more than {MAX_FILE_LEN} bytes");
            return Err(unreadable(problem, "name the configuration; Kubernetes objects go into state.paths"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            unreadable(format!("cannot be read: {error}"), "see examples/node.yaml for a configuration to start from")
        })?;
        Self::parse_for(node, &file, &text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads a text that names its node. Relative paths in it start at `folder`.
    ///
    /// # Errors
    /// As for [`Config::read`].
    #[cfg(test)]
    pub(crate) fn parse(file: &str, text: &str, folder: &Path) -> Result<Self, ConfigErrors> {
        Self::parse_for(None, file, text, folder)
    }

    fn parse_for(node: Option<&str>, file: &str, text: &str, folder: &Path) -> Result<Self, ConfigErrors> {
        let written = file::parse(file, text).map_err(|error| ConfigErrors(vec![error]))?;
        check::check(file, folder, node, &written)
    }

    /// How many packet buffers all ports share.
    pub(crate) fn frames(&self) -> u32 {
        self.workers.frames.unwrap_or_else(|| match self.attach {
            Attach::Tc => buffers::trunk_frames(self.workers.cores.len()),
            Attach::Xdp => buffers::default_frames(self.ports.len()),
        })
    }

    /// Who judges packets, and by what.
    pub(super) fn judging(&self) -> Judging {
        match (self.dataplane, self.enforce) {
            (Dataplane::Vswitch, EnforcedAt::Destination) => Judging::Destination(self.engine.into(), self.enforcement),
            (Dataplane::Vswitch, EnforcedAt::Source) => Judging::Source,
            (Dataplane::Nftables, _) => Judging::Kernel(self.nftables.suspects()),
        }
    }

    /// The uplink's interface.
    pub(crate) fn uplink(&self) -> Option<Arc<str>> {
        self.ports.iter().find(|port| port.kind == PortKind::Uplink).map(|port| port.interface.clone())
    }

    /// Whether the ports and routes of a configuration that differs in these fields are not to be taken over before a restart: they are
    /// meant for another way to judge. Without its port a pod would be given back to the kernel before that one judges it.
    pub(crate) fn has_other_ports(fields: &[&str]) -> bool {
        fields.iter().any(|field| ["dataplane", "enforce"].contains(field))
    }

    /// What differs that only a restart can change, by field.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut differs = |field, yes: bool| fields.extend(yes.then_some(field));
        differs("node", self.node != new.node);
        differs("dataplane", self.dataplane != new.dataplane);
        differs("nftables", self.nftables != new.nftables);
        differs("attach", self.attach != new.attach);
        differs("flow_lease", self.flow_lease != new.flow_lease);
        differs("big_tcp", self.big_tcp != new.big_tcp);
        differs("tcx", self.tcx != new.tcx);
        differs("pins", self.pins != new.pins);
        differs("slow_path", self.slow_path != new.slow_path);
        differs("mode", self.mode != new.mode);
        differs("flow_cache", self.flow_cache != new.flow_cache);
        differs("state", self.state != new.state);
        differs("services", self.services != new.services);
        differs("masquerade", self.masquerade != new.masquerade);
        differs("enforce", self.enforce != new.enforce);
        differs("audit", self.audit_folder != new.audit_folder);
        differs("journal", self.journal != new.journal);
        differs("workers", self.workers != new.workers);
        differs("sessions", self.sessions != new.sessions);
        differs("admin", self.admin != new.admin);
        differs("hubble", self.hubble != new.hubble);
        differs("log", self.log != new.log);
        differs("ports[].create", self.created_host != new.created_host);
        fields
    }
}

#[cfg(test)]
mod tests;
