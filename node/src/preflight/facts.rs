//! Reads the system's state for the preflight. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::{
    LinkFeatures, LinkInfo, TcProgram, XskError, default_route_interfaces, in_namespace, is_trunk_claimed, links,
    nft_chain_names, pinned_links, takes_xdp_frames, tc_programs, transmit_checksum_offload, xdp_programs,
};

use crate::config::{Attach, Config, PortEntry, TRUNK};

use super::kube_proxy::KubeProxy;

/// Capability numbers of `linux/capability.h`.
pub(super) const NET_ADMIN: u32 = 12;
pub(super) const NET_RAW: u32 = 13;
pub(super) const IPC_LOCK: u32 = 14;
pub(super) const SYS_ADMIN: u32 = 21;
pub(super) const PERFMON: u32 = 38;
pub(super) const BPF: u32 = 39;

/// State of the transmit checksum offload at the other end of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offload {
    Off,
    On,
    /// The configuration does not name the other end.
    Unknown,
    /// Reading failed, with the reason.
    Failed(String),
}

impl Offload {
    /// Reads the offload of the port's other end, in its namespace.
    pub(crate) fn at(entry: &PortEntry) -> Self {
        let ask = || transmit_checksum_offload(&entry.peer);
        let answer = match &entry.netns {
            Some(netns) => in_namespace(&namespace_path(netns), ask).and_then(|answer| answer),
            None if entry.kind == PortKind::Host && entry.peer_named => ask(),
            // The other end of an uplink is hardware, or another machine, whose packets are complete.
            None if entry.kind == PortKind::Uplink => return Self::Off,
            None => return Self::Unknown,
        };
        match answer {
            Ok(false) => Self::Off,
            Ok(true) => Self::On,
            // `netns` names a folder, a named pipe or another file.
            Err(XskError::Namespace { path, source }) if source.kind() == io::ErrorKind::InvalidInput => {
                Self::Failed(format!("{} is not a network namespace", path.display()))
            }
            // Only the first line, as the finding has its own remedy.
            Err(error) => Self::Failed(error.to_string().lines().next().unwrap_or_default().to_owned()),
        }
    }
}

/// Returns the path of a network namespace, given as a name in /run/netns or as a path.
pub(crate) fn namespace_path(netns: &str) -> PathBuf {
    if netns.contains('/') { PathBuf::from(netns) } else { Path::new("/run/netns").join(netns) }
}

/// The system's state that the checks need. Values that could not be read are empty, false or `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The kernel's release, for example `6.18.44`.
    pub release: String,
    /// Effective capabilities of this process, as a bit mask.
    pub capabilities: u64,
    /// Soft limit of locked memory in bytes. `None` if unlimited.
    pub locked_memory: Option<u64>,
    /// The CPU cores that this process may use.
    pub cores: BTreeSet<usize>,
    /// Indexes of the interfaces that default routes use.
    pub default_routes: BTreeSet<u32>,
    /// The configured interfaces that exist, by name.
    pub links: BTreeMap<Arc<str>, LinkInfo>,
    /// Names of the configured interfaces with an XDP program.
    pub programs: BTreeSet<Arc<str>>,
    /// Transmit checksum offload at the other end of each configured port, by port name.
    pub offloads: BTreeMap<Arc<str>, Offload>,
    /// Names of pods' ports whose interfaces accept no packets redirected by an XDP program.
    pub without_frames: BTreeSet<Arc<str>>,
    /// Programs attached at the tc hooks of configured interfaces, by interface name. Interfaces without a program are absent.
    pub tc_programs: BTreeMap<Arc<str>, Vec<TcProgram>>,
    /// The kernel's ids of links that a vswitch has pinned for its successor. Always empty with `attach: xdp`.
    pub pinned_links: BTreeSet<u32>,
    /// Driver and receive offloads of each uplink, by interface name. GRO, LRO and rxvlan change packets before the vswitch receives them.
    pub features: BTreeMap<Arc<str>, LinkFeatures>,
    /// Names of all interfaces of the node.
    pub interfaces: BTreeSet<String>,
    /// Signs that kube-proxy runs or ran on the node.
    pub kube_proxy: KubeProxy,
    /// Names of the chains of nf_tables, which are also those of `iptables-nft`. Empty if they cannot be read.
    pub chains: BTreeSet<String>,
    /// Whether another vswitch owns the trunk. Always false with `attach: xdp`.
    pub has_other: bool,
}

impl Facts {
    /// Reads the system's state. Omits what cannot be read, as opening the ports reports that anyway.
    pub(crate) fn gather(config: &Config) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let of_status = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let configured = config.ports.iter().map(|entry| &entry.interface);
        let found = configured.filter_map(|name| Some((name.clone(), LinkInfo::read(name).ok()?)));
        let found: BTreeMap<_, _> = found.collect();
        let has_program = |link: &LinkInfo| xdp_programs(link.index).is_ok_and(|programs| !programs.is_empty());
        let takes_none = |entry: &&PortEntry| {
            entry.kind == PortKind::Pod
                && found.get(&entry.interface).is_some_and(|link| matches!(takes_xdp_frames(link.index), Ok(false)))
        };
        let without_frames = config.ports.iter().filter(takes_none).map(|entry| entry.name.clone()).collect();
        let at_tc = found.iter().filter_map(|(name, link)| Some((name.clone(), tc_programs(link.index).ok()?)));
        let tc_programs = at_tc.filter(|(_, programs)| !programs.is_empty()).collect();
        let pins = config.pins.path().filter(|_| config.attach == Attach::Tc);
        let uplinks = config.ports.iter().filter(|entry| entry.kind == PortKind::Uplink).map(|entry| &entry.interface);
        let features = uplinks.filter_map(|name| Some((name.clone(), LinkFeatures::read(name).ok()?))).collect();
        let interfaces = links().unwrap_or_default().into_iter().flat_map(|link| link.names).collect();
        let programs = found.iter().filter(|(_, link)| has_program(link)).map(|(name, _)| name.clone()).collect();
        Self {
            release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            capabilities: u64::from_str_radix(of_status("CapEff:"), 16).unwrap_or_default(),
            locked_memory: locked_memory(&read("/proc/self/limits")),
            cores: cores(of_status("Cpus_allowed_list:")),
            // Opening a port reads the routes again and fails if that is impossible.
            default_routes: default_route_interfaces().unwrap_or_default(),
            links: found,
            programs,
            offloads: config.ports.iter().map(|entry| (entry.name.clone(), Offload::at(entry))).collect(),
            without_frames,
            tc_programs,
            pinned_links: pins.map(pinned_links).unwrap_or_default(),
            features,
            kube_proxy: KubeProxy::gather(&interfaces),
            interfaces,
            chains: nft_chain_names().unwrap_or_default(),
            has_other: config.attach == Attach::Tc && is_trunk_claimed(TRUNK[0]).unwrap_or(false),
        }
    }

    pub(super) fn has(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }

    /// Returns the kernel's major and minor version. `None` if the release has another form.
    pub(super) fn kernel_version(&self) -> Option<(u32, u32)> {
        version_of(&self.release)
    }
}

/// Returns the major and minor version of a Linux release such as `5.4.0-150-generic`. `None` if it has another form.
pub(crate) fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns the soft limit of `Max locked memory` in bytes. `None` for `unlimited`.
fn locked_memory(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parses a list such as `0-3,8`.
fn cores(list: &str) -> BTreeSet<usize> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// Formats numbers as `0-3,8`.
pub(super) fn ranges(numbers: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text =
        ranges.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_and_limits_are_read_as_the_kernel_writes_them() {
        let some = cores("0-3,8,10-11");
        assert_eq!(some.iter().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(ranges(&some), "0-3,8,10-11");
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max locked memory         8388608              8388608              bytes\n";
        assert_eq!(locked_memory(limits), Some(8_388_608));
        assert_eq!(locked_memory("Max locked memory         unlimited            unlimited            bytes\n"), None);
    }

    #[test]
    fn a_namespace_is_a_name_or_a_path() {
        assert_eq!(namespace_path("db"), Path::new("/run/netns/db"));
        assert_eq!(namespace_path("/proc/7/ns/net"), Path::new("/proc/7/ns/net"));
    }
}
