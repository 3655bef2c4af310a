//! The configuration of `bulkhead run`: one YAML file.
//!
//! Unknown fields are errors, so that a misspelt `tcp_pickup` does not silently mean the default. All errors are reported together, each
//! with file, line, field and remedy.
//!
//! ```text
//!   text --serde--> file::* (each value with its line) --check--> Config (settings with defaults) | ConfigErrors
//! ```
//!
//! `examples/node.yaml` shows every field with its default. A test reads it.

pub(super) mod buffers;
mod check;
mod datapath;
mod encapsulation;
mod error;
mod faults;
mod file;
mod hubble;
mod journal;
mod masquerade;
mod mode;
mod names;
mod node_ranges;
mod ports;
mod sessions;
mod state;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_answers::run::NameSettings;
use bulkhead_control::object::{Denied, Enforcement};
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::PortKind;
use ipnet::IpNet;

use super::log::LogConfig;
use super::state::Judging;
pub(super) use check::{check_interface, parse_mac};
pub(crate) use datapath::{
    Attach, DEFAULT_PINS, Dataplane, EngineName, NftablesConfig, Pins, SlowPathConfig, XdpModeName,
};
pub(crate) use encapsulation::{Encapsulation, EncapsulationMode, Probing};
pub(crate) use error::{ConfigError, ConfigErrors};
pub(crate) use hubble::{HubbleConfig, TlsFiles};
pub(crate) use journal::JournalConfig;
pub(crate) use masquerade::MasqueradeConfig;
pub(crate) use node_ranges::NodeRanges;
pub(crate) use ports::{Added, PortEntry, RouteEntry};
pub(crate) use sessions::{SessionsConfig, SharesConfig, TimeoutsConfig, Window};
pub(crate) use state::{ForeignPolicies, KubernetesConfig, StateConfig, WhenMissing, WhenRefused, WhenUnreachable};

/// Maximum length of the file in bytes. Limits the memory of the parser, which builds a tree.
const MAX_FILE_LEN: u64 = 1 << 20;

/// The settings of `bulkhead run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The name of this node.
    pub node: Arc<str>,
    /// The component that judges and forwards packets: the vswitch or the kernel.
    pub dataplane: Dataplane,
    /// Settings of [`Dataplane::Nftables`].
    pub nftables: NftablesConfig,
    /// The hook at which the vswitch takes packets from interfaces: tc or XDP.
    pub attach: Attach,
    /// The mode of the XDP programs, with [`Attach::Xdp`]: driver or generic.
    pub xdp_mode: XdpModeName,
    /// Whether the kernel forwards packets of established sessions, without a worker.
    pub flow_cache: bool,
    /// The maximum time that the kernel forwards a flow without a worker seeing one of its packets.
    pub flow_lease: Duration,
    /// With [`Attach::Tc`], the maximum time that the kernel forwards established flows while the process is away.
    pub away_grace: Duration,
    /// The maximum size in bytes of pods' TCP packets. `None` keeps the kernel's setting.
    pub big_tcp: Option<u32>,
    /// Rate limit of the packets that the tc programs pass from each port to the workers.
    pub slow_path: SlowPathConfig,
    /// Whether to attach programs by links (tcx) instead of filters, if the kernel supports that.
    pub tcx: bool,
    /// The folder in which BPF links and maps are pinned, with [`Attach::Tc`].
    pub pins: Pins,
    /// Settings of the policy source: files or an API server.
    pub state: StateConfig,
    /// Settings of Services. `None` if another program translates them.
    pub services: Option<Settings>,
    /// Masquerading of pods' connections to other networks. `None` if they keep their addresses.
    pub masquerade: Option<MasqueradeConfig>,
    /// The trusted DNS servers and the grace time of rules that name domains.
    pub names: NameSettings,
    /// Whether packets that policy denies are dropped or refused. A namespace's annotation overrides it.
    pub denied: Denied,
    /// Whether packets to addresses of the node's pods that no pod has are dropped or refused.
    pub unreachable: Denied,
    /// The port whose table judges a packet: the destination's (egress port) or the source's (ingress port).
    pub enforce: EnforcedAt,
    /// The engine that compiles policies to tables.
    pub engine: EngineName,
    /// Whether to enforce or audit policies, if neither policy nor namespace says.
    pub enforcement: Enforcement,
    /// The folder for the counts of audited policies. `None` if they end with the process.
    pub audit_folder: Option<PathBuf>,
    /// Settings of the flight recorder's journal.
    pub journal: JournalConfig,
    /// Settings of the forwarding threads (workers).
    pub workers: WorkersConfig,
    /// Settings of the session table.
    pub sessions: SessionsConfig,
    /// Settings of the admin socket and the HTTP endpoints.
    pub admin: AdminConfig,
    /// Address and TLS settings of the Hubble server.
    pub hubble: HubbleConfig,
    /// Format and level of the log.
    pub log: LogConfig,
    /// The configured ports, in the file's order.
    pub ports: Vec<PortEntry>,
    /// Static routes for packets to addresses outside this node, in addition to those from the state.
    pub routes: Vec<RouteEntry>,
    /// The host port's interfaces. `None` if the vswitch does not create them.
    pub created_host: Option<CreatedHost>,
    /// Settings of the ways to other nodes, if the node's kernel keeps its network card.
    pub encapsulation: Encapsulation,
    /// The probes to other nodes. `None` if they are off.
    pub probing: Option<Probing>,
}

/// Whether senders of dropped packets are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Whether packets that policy denies are dropped or refused, unless a namespace's annotation decides.
    pub denied: Denied,
    /// Whether packets to addresses that no pod has are dropped or refused.
    pub unreachable: Denied,
}

/// The host port's interfaces, a veth pair that the vswitch creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreatedHost {
    /// Name of the veth interface at the vswitch's end, which is the host port's.
    pub interface: Arc<str>,
    /// Name of the veth interface at the node's end, over which its processes send.
    pub peer: Arc<str>,
    /// Maximum packet size in bytes, without the Ethernet header. `None` for that of the largest link to other nodes or the world.
    pub mtu: Option<u32>,
    /// Networks that the node reaches through the pair. If empty, the pod networks of its Node object.
    pub networks: Vec<IpNet>,
}

/// Assumed MTU in bytes of the node's network card if it is unknown: Ethernet's.
pub(crate) const DEFAULT_MTU: u32 = 1500;

/// Interface names of the trunk's two ends.
pub(crate) const TRUNK: [&str; 2] = ["bh0", "bh1"];

/// The name of the tunnel's interface.
pub(crate) const TUNNEL: &str = "bh-vxlan";

impl CreatedHost {
    /// Returns the interface names of both ends, the vswitch's first.
    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.interface, &self.peer]
    }
}

/// What a worker does while no packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Poll {
    /// Polls again immediately: shortest delay, uses a whole core.
    Spin,
    /// Polls for a short time, then sleeps until a packet arrives.
    #[default]
    Adaptive,
}

/// Settings of the forwarding threads (workers).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkersConfig {
    /// One worker for each entry: its core, or `None` for a worker that the kernel may move.
    pub cores: Vec<Option<usize>>,
    /// The workers' behaviour when idle.
    pub poll: Poll,
    /// Number of packet buffers that all ports share, 4 KiB each. `None` for a default that depends on the ports ([`Config::frames`]).
    pub frames: Option<u32>,
}

/// Settings of the admin socket and the HTTP endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminConfig {
    /// The path of the admin socket. `None` if off.
    pub socket: Option<PathBuf>,
    /// The folder for the list of added ports. `None` without an admin socket.
    pub ports_folder: Option<PathBuf>,
    /// The address of metrics and probes over HTTP. `None` if off.
    pub listen: Option<SocketAddr>,
    /// The address of load balancers' health checks. Services' ports use the same IP address. `None` if off.
    pub service_health: Option<SocketAddr>,
}

impl Config {
    /// Returns whether senders of dropped packets are answered.
    pub(crate) const fn answers(&self) -> Answers {
        Answers { denied: self.denied, unreachable: self.unreachable }
    }

    /// Reads and checks the file. `node` overrides its node name.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid: all errors found in it.
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

    /// Parses and checks the text of a configuration file. Relative paths start at `folder`.
    ///
    /// # Errors
    /// As for [`Config::read`].
    #[cfg(test)]
    pub(crate) fn parse(file: &str, text: &str, folder: &Path) -> Result<Self, ConfigErrors> {
        Self::parse_for(None, file, text, folder)
    }

    fn parse_for(node: Option<&str>, file: &str, text: &str, folder: &Path) -> Result<Self, ConfigErrors> {
        let mut written = file::parse(file, text).map_err(|error| ConfigErrors(vec![error]))?;
        mode::fill(&mut written);
        check::check(file, folder, node, &written)
    }

    /// Returns the number of packet buffers that all ports share: configured, or a default by the number of ports or workers.
    pub(crate) fn frames(&self) -> u32 {
        self.workers.frames.unwrap_or_else(|| match self.attach {
            Attach::Tc => buffers::trunk_frames(self.workers.cores.len()),
            Attach::Xdp => buffers::default_frames(self.ports.len()),
        })
    }

    /// Returns where packets are judged: by the vswitch at the destination's or the source's port, or by the kernel's nftables.
    pub(super) fn judging(&self) -> Judging {
        match (self.dataplane, self.enforce) {
            (Dataplane::Vswitch, EnforcedAt::Destination) => Judging::Destination(self.engine.into(), self.enforcement),
            (Dataplane::Vswitch, EnforcedAt::Source) => Judging::Source,
            (Dataplane::Nftables, _) => Judging::Kernel(self.nftables.suspects()),
        }
    }

    /// Returns the name of the uplink's interface. `None` without an uplink.
    pub(crate) fn uplink(&self) -> Option<Arc<str>> {
        self.ports.iter().find(|port| port.kind == PortKind::Uplink).map(|port| port.interface.clone())
    }

    /// Returns the created host port over which the node's kernel leads to other nodes. `None` if the configuration has an uplink, or a host port
    /// that the vswitch does not create.
    pub(crate) fn host_to_nodes(&self) -> Option<&CreatedHost> {
        self.created_host.as_ref().filter(|_| self.uplink().is_none())
    }

    /// Returns the UDP port of the tunnel to other nodes. `None` if the configuration has no tunnel.
    pub(crate) fn tunnel_port(&self) -> Option<u16> {
        let has_tunnel = self.host_to_nodes().is_some() && self.encapsulation.mode != EncapsulationMode::Never;
        has_tunnel.then_some(self.encapsulation.port)
    }

    /// Whether the kernel's programs masquerade over the card that the node's kernel keeps.
    pub(crate) fn masquerades_at_card(&self) -> bool {
        self.masquerade.is_some() && self.is_at_card()
    }

    /// Whether the kernel's programs are at the cards that the node's kernel keeps.
    pub(crate) fn is_at_card(&self) -> bool {
        self.attach == Attach::Tc && self.host_to_nodes().is_some()
    }

    /// Whether a change of these fields also defers changes of ports and routes to the restart. The new ports are meant for another
    /// dataplane: if a pod's port were removed now, the kernel would forward its packets before the new dataplane judges them.
    pub(crate) fn has_other_ports(fields: &[&str]) -> bool {
        fields.iter().any(|field| ["dataplane", "enforce"].contains(field))
    }

    /// Returns the names of the fields that differ in `new` and take effect only after a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut differs = |field, yes: bool| fields.extend(yes.then_some(field));
        differs("node", self.node != new.node);
        differs("dataplane", self.dataplane != new.dataplane);
        differs("nftables", self.nftables != new.nftables);
        differs("attach", self.attach != new.attach);
        differs("flow_lease", self.flow_lease != new.flow_lease);
        differs("away_grace", self.away_grace != new.away_grace);
        differs("big_tcp", self.big_tcp != new.big_tcp);
        differs("tcx", self.tcx != new.tcx);
        differs("pins", self.pins != new.pins);
        differs("slow_path", self.slow_path != new.slow_path);
        differs("xdp_mode", self.xdp_mode != new.xdp_mode);
        differs("flow_cache", self.flow_cache != new.flow_cache);
        differs("state", self.state != new.state);
        differs("services", self.services != new.services);
        differs("masquerade", self.masquerade != new.masquerade);
        differs("names", self.names != new.names);
        differs("enforce", self.enforce != new.enforce);
        differs("audit", self.audit_folder != new.audit_folder);
        differs("journal", self.journal != new.journal);
        differs("workers", self.workers != new.workers);
        differs("sessions", self.sessions != new.sessions);
        differs("admin", self.admin != new.admin);
        differs("hubble", self.hubble != new.hubble);
        differs("log", self.log != new.log);
        differs("ports[].create", self.created_host != new.created_host);
        differs("encapsulation", self.encapsulation.mode != new.encapsulation.mode);
        differs("vxlan", self.encapsulation != new.encapsulation);
        differs("probe", self.probing != new.probing);
        fields
    }
}

#[cfg(test)]
mod tests;
