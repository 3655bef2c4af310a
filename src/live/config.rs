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
mod error;
mod file;
mod hubble;
mod journal;
mod masquerade;
mod ports;
mod sessions;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_control::object::{Denied, Enforcement};
use bulkhead_control::pipeline::{Choice, Engine};
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_control::renderer::nftables::Suspects;
use bulkhead_control::service::Settings;
use bulkhead_control::source::Options;
use bulkhead_control::source::kubernetes::Access;
use ipnet::IpNet;

use super::log::LogConfig;
use super::state::Judging;
pub(super) use check::{check_interface, parse_mac};
pub(crate) use error::{ConfigError, ConfigErrors};
pub(crate) use hubble::HubbleConfig;
pub(crate) use journal::JournalConfig;
pub(crate) use masquerade::MasqueradeConfig;
pub(crate) use ports::{Added, PortEntry, RouteEntry};

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
    pub(super) fn suspects(&self) -> Suspects {
        match &*self.pod_interfaces {
            [] => Suspects::Veth,
            prefixes => Suspects::Prefixes(prefixes.to_vec()),
        }
    }
}

/// What makes the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineName {
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
    const fn name(self) -> &'static str {
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

/// Where policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateConfig {
    /// Files and folders, relative ones resolved against the folder of the configuration. None with an API server.
    pub paths: Vec<PathBuf>,
    /// The API server that is followed, where it is not files.
    pub kubernetes: Option<KubernetesConfig>,
    /// How objects are read. Faults are survived unless that is turned off: one object must not hold a node's other ones back.
    pub options: Options,
    /// What to do when there is no state at start.
    pub when_missing: WhenMissing,
    /// What to do when a changed state does not load.
    pub when_refused: WhenRefused,
}

/// The API server that policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesConfig {
    /// How it is reached.
    pub access: Access,
    /// What to do until it was reached.
    pub when_unreachable: WhenUnreachable,
    /// The folder of what is kept for then.
    pub folder: PathBuf,
    /// How old the state may be for the vswitch to be called ready.
    pub stale_after: Duration,
}

/// What to do until an API server was reached for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenUnreachable {
    /// Take the interfaces, drop what pods send and are sent, and wait.
    #[default]
    Deny,
    /// Enforce what an earlier process has kept; without that as [`Self::Deny`].
    LastGood,
}

/// What to do when there is no state at start. Nothing is forwarded without one, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenMissing {
    /// End with an error, so that whoever starts it knows.
    #[default]
    Exit,
    /// Take the interfaces, drop every packet but the node's own to and from the uplink, and wait for a state.
    Deny,
}

/// What to do when a changed state does not load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenRefused {
    /// Enforce the last good one.
    #[default]
    Keep,
    /// As without a state, until one loads: for clusters where a policy that comes late is worse than an outage.
    Deny,
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

/// How connections are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionsConfig {
    /// The folder that keeps them while the process is away; none when they end with it.
    pub folder: Option<PathBuf>,
    /// The most sessions of all workers together.
    pub capacity: Option<usize>,
    /// Whether a TCP connection may be picked up in its middle.
    pub tcp_pickup: bool,
    /// What becomes of a segment that would end a connection and is not where one can be.
    pub tcp_window: Window,
    /// Life without packets; none is the dataplane's default.
    pub timeouts: TimeoutsConfig,
    /// What one sender may have of them; none is the dataplane's default.
    pub shares: SharesConfig,
}

/// What becomes of a TCP segment that would end a connection and is not where a segment of it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Window {
    /// It ends nothing and is left to its receiver.
    #[default]
    Loose,
    /// It is dropped; every segment goes through a worker.
    Strict,
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

/// Shares of the sessions in percent, where the file says them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharesConfig {
    /// Connections that are not established or are over.
    pub half_open: Option<u8>,
    /// What one pod has started, and what others have started to it.
    pub pod: Option<u8>,
    /// What the uplink, and what the host has started.
    pub outside: Option<u8>,
}

/// Life of a session without packets, where the file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeoutsConfig {
    /// TCP until both sides have acknowledged.
    pub tcp_new: Option<Duration>,
    /// TCP that both sides have acknowledged.
    pub tcp_established: Option<Duration>,
    /// TCP that one side has finished.
    pub tcp_half_closed: Option<Duration>,
    /// TCP after its end.
    pub tcp_closed: Option<Duration>,
    /// UDP without an answer.
    pub udp_unreplied: Option<Duration>,
    /// UDP with answers.
    pub udp_stream: Option<Duration>,
    /// SCTP and the rest.
    pub idle: Option<Duration>,
    /// Ping.
    pub icmp_echo: Option<Duration>,
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
