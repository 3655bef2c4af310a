//! Checks whether this machine can do what the configuration requires, before changing anything.
//!
//! [`Facts`] reads the system's state, and [`judge`] derives findings from it. Each finding says what the problem is, why it matters and
//! what to do.

pub(super) mod cni;
mod facts;
pub(super) mod forwarding;
pub(super) mod handover;
pub(super) mod hubble;
pub(super) mod kube_proxy;
pub(super) mod masquerade;
pub(super) mod nftables;
mod others;
pub(super) mod remote_nodes;
pub(super) mod routes;
pub(super) mod server;
pub(super) mod services;

use std::fmt;

use super::config::{Attach, Config, Poll, PortEntry, XdpModeName, buffers};
use bulkhead_answers::output;
pub(super) use facts::{Facts, Offload, namespace_path, version_of};

/// Minimum Linux version: the first with bpf_link for XDP, which detaches a program when its process ends.
const KERNEL: (u32, u32) = (5, 9);
/// Minimum Linux version for packets in several buffers (`XDP_USE_SG`).
const KERNEL_JUMBO: (u32, u32) = (6, 6);
/// Maximum packet size in bytes that fits one 4 KiB buffer with its headroom and link header.
const ONE_BUFFER_MTU: u32 = 3_498;

/// The severity of a finding, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// The vswitch cannot start.
    Error,
    /// The vswitch can start, but something will not work.
    Warning,
    /// Information only.
    Note,
}

/// One result of the checks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Finding {
    /// The severity of the problem.
    pub severity: Severity,
    /// The observed fact.
    pub what: String,
    /// The consequence.
    pub why: String,
    /// The remedy.
    pub remedy: String,
    /// Whether the running vswitch logs this too. Then the log at start omits it.
    #[serde(skip)]
    pub comes_again: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\nhelp: {}", self.what, self.why, self.remedy)
    }
}

/// Derives the findings, worst first. `force` allows interfaces that carry a default route.
pub(super) fn judge(config: &Config, facts: &Facts, force: bool) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    findings.kernel(facts);
    findings.other_vswitch(facts);
    findings.capabilities(config, facts);
    findings.cores(config, facts);
    for entry in &config.ports {
        findings.interface(config, entry, facts, force);
    }
    // At tc, interfaces keep their offloads.
    if config.attach == Attach::Xdp {
        findings.offloads(config, facts);
        findings.flow_cache(config, facts);
        findings.uplinks(config, facts);
    }
    findings.memory(config, facts);
    findings.tc_programs(config, facts);
    findings.plugins(config, facts);
    findings.0.sort_by_key(|finding| finding.severity);
    findings.0
}

/// Part of findings: why a checksum offload matters.
const OFFLOAD: &str = "TCP and UDP packets leave it without checksums, which only the kernel's own forwarding completes; \
    receivers drop them (ping still works)";

/// Returns the finding about a port's checksum offload. `None` if the offload is off or unknown.
pub(super) fn judge_offload(entry: &PortEntry, offload: &Offload) -> Option<Finding> {
    let (peer, port) = (&entry.peer, &entry.name);
    let (severity, what, remedy) = match offload {
        Offload::Off | Offload::Unknown => return None,
        Offload::On if entry.fix_offloads => (
            Severity::Note,
            format!("port {port}: {peer} has transmit checksum offload on"),
            "nothing: the vswitch turns it off when it opens the port (fix_offloads)".to_owned(),
        ),
        Offload::On => {
            let run = match &entry.netns {
                Some(netns) if !netns.contains('/') => format!("ip netns exec {netns} ethtool -K {peer} tx off"),
                Some(netns) => format!("nsenter --net={netns} ethtool -K {peer} tx off"),
                None => format!("ethtool -K {peer} tx off"),
            };
            let what = format!("port {port}: {peer} has transmit checksum offload on");
            (Severity::Warning, what, format!("{run}\nor set fix_offloads: true on the port"))
        }
        Offload::Failed(error) => (
            Severity::Warning,
            format!(
                "port {port}, line {} of the configuration: whether {peer} has transmit checksum offload on is not known: \
                 {error}",
                entry.line
            ),
            "check the port's netns (a name below /run/netns, or a path such as /proc/PID/ns/net) and its peer"
                .to_owned(),
        ),
    };
    Some(Finding { severity, what, why: OFFLOAD.to_owned(), remedy, comes_again: true })
}

struct Findings(Vec<Finding>);

impl Findings {
    fn offloads(&mut self, config: &Config, facts: &Facts) {
        let mut unknown = Vec::new();
        for entry in &config.ports {
            match facts.offloads.get(&entry.name) {
                Some(Offload::Unknown) => unknown.push(&*entry.name),
                Some(offload) => self.0.extend(judge_offload(entry, offload)),
                None => {}
            }
        }
        self.unknown_offloads(&unknown);
    }

    /// Adds one finding for all these ports, as a node may have a hundred pods.
    fn unknown_offloads(&mut self, ports: &[&str]) {
        if !ports.is_empty() {
            let ports = output::some_of(ports, 5);
            self.add(
                Severity::Note,
                format!("whether the other ends of {ports} have transmit checksum offload on is not known"),
                OFFLOAD,
                "at each other end, in the pod's network namespace: ethtool -K eth0 tx off\n\
                or set netns (of the host's port: peer), and fix_offloads: true",
            );
        }
    }

    /// Adds one finding for all ports whose peer receives no redirected packets.
    fn flow_cache(&mut self, config: &Config, facts: &Facts) {
        // Generic mode works with every interface. `fix_offloads` also turns on receive offload.
        let is_left = |entry: &&PortEntry| facts.without_frames.contains(&entry.name) && !entry.fix_offloads;
        let ports: Vec<&str> = config.ports.iter().filter(is_left).map(|entry| &*entry.name).collect();
        if config.attach == Attach::Xdp && config.flow_cache && config.xdp_mode != XdpModeName::Skb && !ports.is_empty()
        {
            let ports = output::some_of(&ports, 5);
            self.add(
                Severity::Note,
                format!("the other ends of {ports} have generic receive offload off"),
                "the flow cache cannot send to them: the workers forward these packets, which is slower",
                "at each other end, in the pod's network namespace: ethtool -K eth0 gro on\n\
                or set netns and fix_offloads: true",
            );
        }
    }

    fn add(&mut self, severity: Severity, what: impl Into<String>, why: &str, remedy: impl Into<String>) {
        let (what, remedy) = (what.into(), remedy.into());
        self.0.push(Finding { severity, what, why: why.to_owned(), remedy, comes_again: false });
    }

    /// Adds a warning about a port that cannot be opened yet. The running vswitch logs this too.
    fn add_for_now(&mut self, what: String, remedy: String) {
        let (severity, why) = (Severity::Warning, "its port stays closed until this is fixed".to_owned());
        self.0.push(Finding { severity, what, why, remedy, comes_again: true });
    }

    fn kernel(&mut self, facts: &Facts) {
        if facts.kernel_version().is_some_and(|version| version < KERNEL) {
            self.add(
                Severity::Error,
                format!("the kernel is {}", facts.release),
                "XDP programs attached by bpf_link need Linux 5.9",
                "use a newer kernel; every distribution since 2021 has one",
            );
        }
    }

    fn other_vswitch(&mut self, facts: &Facts) {
        if facts.has_other {
            self.add(
                Severity::Error,
                "another vswitch runs in this network namespace",
                "a network namespace has one trunk, and an interface belongs to one vswitch",
                "stop it first; its sessions continue until the new vswitch adopts them",
            );
        }
    }

    fn capabilities(&mut self, config: &Config, facts: &Facts) {
        let missing: Vec<&str> = [
            ("CAP_NET_ADMIN", facts.has(facts::NET_ADMIN)),
            ("CAP_NET_RAW", facts.has(facts::NET_RAW)),
            ("CAP_BPF", facts.has(facts::BPF) || facts.has(facts::SYS_ADMIN)),
        ]
        .into_iter()
        .filter_map(|(name, there)| (!there).then_some(name))
        .collect();
        if !missing.is_empty() {
            self.add(
                Severity::Error,
                format!("the process lacks {}", missing.join(", ")),
                "AF_XDP sockets and XDP programs need them",
                "run as root, or grant them: setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon,cap_ipc_lock+ep bulkhead",
            );
        }
        if config.flow_cache && !facts.has(facts::PERFMON) && !facts.has(facts::SYS_ADMIN) {
            self.add(
                Severity::Note,
                "the process lacks CAP_PERFMON",
                "without it the kernel refuses the flow cache's program, and the workers forward all packets",
                "grant it (cap_perfmon), or set flow_cache: false",
            );
        }
        let needed = u64::from(config.frames()) * buffers::BYTES;
        if !facts.has(facts::IPC_LOCK) && facts.locked_memory.is_some_and(|limit| limit < needed) {
            self.add(
                Severity::Error,
                format!("the process may lock {} bytes of memory", facts.locked_memory.unwrap_or_default()),
                "the kernel counts packet memory as locked",
                format!("ulimit -l {}, LimitMEMLOCK=infinity, or grant CAP_IPC_LOCK", needed / 1024),
            );
        }
        let enters = config.attach == Attach::Xdp && config.ports.iter().any(|port| port.netns.is_some());
        if enters && !facts.has(facts::SYS_ADMIN) {
            self.add(
                Severity::Warning,
                "the process lacks CAP_SYS_ADMIN",
                "entering a pod's network namespace (netns of a port) needs it",
                "grant it, or remove netns and turn the offloads off elsewhere",
            );
        }
    }

    fn cores(&mut self, config: &Config, facts: &Facts) {
        for core in config.workers.cores.iter().flatten().filter(|core| !facts.cores.contains(core)) {
            self.add(
                Severity::Error,
                format!("workers.cores names core {core}"),
                "the process is not allowed to run on this core",
                format!("choose from these cores: {}", facts::ranges(&facts.cores)),
            );
        }
        if config.workers.poll == Poll::Spin && config.workers.cores.len() >= facts.cores.len() {
            self.add(
                Severity::Warning,
                format!("{} workers spin on {} cores", config.workers.cores.len(), facts.cores.len()),
                "spinning workers take CPU time from the kernel's packet processing and the node's other programs",
                "use fewer workers, or set poll: adaptive",
            );
        }
    }

    fn interface(&mut self, config: &Config, entry: &PortEntry, facts: &Facts, force: bool) {
        let (name, port) = (&entry.interface, &entry.name);
        let link = facts.links.get(name);
        if link.is_some_and(|link| facts.default_routes.contains(&link.index)) && !force {
            self.add(
                Severity::Error,
                format!("port {port}: {name} carries the node's default route"),
                "the vswitch would take all its packets, and you would lose access to this machine",
                "name another interface, or start with --force if a host port carries the node's traffic",
            );
        }
        match link {
            Some(link) if !link.ethernet => self.add(
                Severity::Error,
                format!("port {port}: {name} is not an Ethernet interface"),
                "AF_XDP needs Ethernet packets, which tunnels and the loopback interface do not carry",
                "name an Ethernet interface, such as a veth or a network card",
            ),
            // The vswitch creates this interface at start.
            None if config.created_host.as_ref().is_some_and(|created| *created.interface == **name) => {}
            None => self.add_for_now(
                format!("port {port}: there is no interface {name}"),
                "nothing if it appears later: the vswitch opens it then; otherwise check the name with `ip link`"
                    .to_owned(),
            ),
            Some(link) if !link.up => {
                self.add_for_now(format!("port {port}: {name} is down"), format!("ip link set {name} up"));
            }
            Some(link) if link.mtu > ONE_BUFFER_MTU && config.attach == Attach::Xdp => {
                self.jumbo(config, entry, link.mtu, facts);
            }
            Some(_) => {}
        }
        if facts.programs.contains(name) && config.attach == Attach::Xdp {
            self.add(
                Severity::Error,
                format!("port {port}: {name} has an XDP program already"),
                "an interface has at most one XDP program per mode, and this one may belong to a running vswitch",
                format!("stop the program that owns it (`bpftool net`); remove a leftover program with: ip link set {name} xdp off"),
            );
        }
    }

    /// Checks that the buffers suffice for the trunk's queues. Each worker has one, regardless of the number of ports.
    fn trunk_memory(&mut self, config: &Config, frames: u32) {
        let workers = u32::try_from(config.workers.cores.len()).unwrap_or(u32::MAX);
        let needed = workers.saturating_mul(buffers::TRUNK.receive).saturating_add(buffers::UNDER_WAY);
        if needed > frames {
            self.add(
                Severity::Error,
                format!("{workers} workers share {frames} packet buffers"),
                "each worker needs receive buffers",
                format!("workers: {{frames: {needed}}}, or leave frames out"),
            );
        }
    }

    fn jumbo(&mut self, config: &Config, entry: &PortEntry, mtu: u32, facts: &Facts) {
        if facts.kernel_version().is_some_and(|version| version < KERNEL_JUMBO) {
            let severity = if config.xdp_mode == XdpModeName::Drv { Severity::Error } else { Severity::Warning };
            self.add(
                severity,
                format!(
                    "port {}: {} has an MTU of {mtu}, and the kernel is {}",
                    entry.name, entry.interface, facts.release
                ),
                "packets in several buffers need Linux 6.6",
                format!("ip link set {} mtu {ONE_BUFFER_MTU} at both ends, or use a newer kernel", entry.interface),
            );
        }
    }

    fn memory(&mut self, config: &Config, facts: &Facts) {
        let frames = config.frames();
        if config.attach == Attach::Tc {
            return self.trunk_memory(config, frames);
        }
        let links = config.ports.iter().filter_map(|entry| Some((entry.kind, facts.links.get(&entry.interface)?)));
        let (mut queues, mut needed) = (0u32, buffers::UNDER_WAY);
        for (kind, link) in links {
            queues = queues.saturating_add(link.queues);
            let each = buffers::rings(kind, config.ports.len()).receive;
            needed = needed.saturating_add(link.queues.saturating_mul(each));
        }
        let mib = |bytes: u64| bytes >> 20;
        let (region, notes) =
            (u64::from(frames) * buffers::BYTES, u64::from(frames) * u64::from(queues) * buffers::NOTES);
        self.add(
            Severity::Note,
            format!(
                "{} MiB of packet memory, and about {} MiB of the kernel's for {queues} queues",
                mib(region),
                mib(notes)
            ),
            "both are allocated as ports open and stay allocated: each queue registers all packet memory",
            format!("nothing; all ports share {frames} buffers, and workers.frames sets another number"),
        );
        if needed > frames {
            self.add(
                Severity::Warning,
                format!("{queues} queues share {frames} packet buffers"),
                "the vswitch refuses a port if no receive buffers are left for it",
                format!("workers: {{frames: {needed}}}"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
