//! From what is written to what it means.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_control::object::{self, PodName};
use bulkhead_control::source::{KindName, Options, Semantics, Strictness, Unenforced};
use bulkhead_dataplane::PortKind;
use bulkhead_dataplane::io::SlowPathLimit;
use bulkhead_dataplane::vswitch::LEASE;
use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::buffers::MOST as MAX_FRAMES;
use super::file::{Denied, File, Kind, NamespaceDefault, PolicySemantics, Port, Route};
use super::{
    Config, ConfigError, ConfigErrors, Pins, PortEntry, RouteEntry, SessionsConfig, SharesConfig, SlowPathConfig,
    StateConfig, TimeoutsConfig, WorkersConfig,
};
use crate::args;

/// Two receive rings and what is under way; with less no packet goes from one port to another.
const MIN_FRAMES: u32 = 4_096;
/// What a table can number (2^26). A session takes up to 128 bytes, so this is 8 GiB.
const MAX_SESSIONS: usize = 1 << 26;
/// A flow that is looked at more often might as well go through the workers.
const MIN_LEASE: Duration = Duration::from_secs(1);
/// What a session that has ended otherwise may go on, and what an operator waits for at most after a stop.
const MAX_LEASE: Duration = Duration::from_secs(600);
/// Linux' IFNAMSIZ without the closing zero.
const MAX_INTERFACE_LEN: usize = 15;
/// What container runtimes call a pod's interface.
const DEFAULT_PEER: &str = "eth0";

/// Collects faults.
struct Faults<'a> {
    file: &'a str,
    errors: Vec<ConfigError>,
}

impl Faults<'_> {
    fn add(
        &mut self,
        line: Option<u64>,
        field: impl Into<String>,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (field, problem, help) = (field.into(), problem.into(), help.into());
        self.errors.push(ConfigError { file: self.file.into(), line, field, problem, help });
    }
}

fn line<T>(value: &Spanned<T>) -> Option<u64> {
    Some(value.referenced.line())
}

/// The meaning of the file, or everything that is wrong with it.
pub(super) fn check(file: &str, folder: &Path, written: &File) -> Result<Config, ConfigErrors> {
    let mut faults = Faults { file, errors: Vec::new() };
    if written.node.value.is_empty() {
        faults.add(line(&written.node), "node", "is empty", "write the node's name as in `kubectl get nodes`");
    }
    let ports = ports(&written.ports, &mut faults);
    let config = Config {
        node: written.node.value.as_str().into(),
        attach: written.attach,
        slow_path: slow_path(&written.slow_path, &mut faults),
        tcx: written.tcx,
        pins: pins(written.pins.as_ref(), &mut faults),
        flow_lease: flow_lease(written.flow_lease.as_ref(), &mut faults),
        mode: written.mode,
        flow_cache: written.flow_cache,
        state: state(&written.state, folder, &mut faults),
        denied: match written.denied {
            Denied::Drop => object::Denied::Drop,
            Denied::Refuse => object::Denied::Refuse,
        },
        workers: workers(&written.workers, &mut faults),
        sessions: sessions(&written.sessions, session_folder(written, folder, &mut faults), &mut faults),
        routes: routes(&written.routes, &ports, &mut faults),
        ports,
    };
    if faults.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(faults.errors)) }
}

fn flow_lease(written: Option<&Spanned<String>>, faults: &mut Faults<'_>) -> Duration {
    let Some(text) = written else { return LEASE };
    match humantime::parse_duration(&text.value) {
        Ok(time) if (MIN_LEASE..=MAX_LEASE).contains(&time) => time,
        _ => {
            let help = "write a number with its unit, from 1s to 10m: 30s";
            faults.add(line(text), "flow_lease", format!("`{}` is not such a time", text.value), help);
            LEASE
        }
    }
}

fn pins(written: Option<&Spanned<String>>, faults: &mut Faults<'_>) -> Pins {
    match written {
        None => Pins::Default,
        Some(named) if named.value == "none" => Pins::None,
        Some(named) => {
            if !Path::new(&named.value).is_absolute() {
                let help = "write a path in a BPF file system, such as /sys/fs/bpf/bulkhead, or none";
                faults.add(line(named), "pins", "is not an absolute path", help);
            }
            Pins::Path(PathBuf::from(&named.value))
        }
    }
}

fn slow_path(written: &super::file::SlowPath, faults: &mut Faults<'_>) -> SlowPathConfig {
    let SlowPathLimit { rate, burst } = SlowPathLimit::default();
    if let Some(named) = written.burst.as_ref().filter(|burst| burst.value == 0) {
        let help = "write 1 at least; packets_per_second: 0 is no limit";
        faults.add(line(named), "slow_path.burst", "lets no packet pass", help);
    }
    SlowPathConfig {
        packets_per_second: written.packets_per_second.unwrap_or(rate),
        burst: written.burst.as_ref().map_or(burst, |burst| burst.value),
    }
}

fn state(written: &super::file::State, folder: &Path, faults: &mut Faults<'_>) -> StateConfig {
    let paths = &written.paths;
    if paths.value.is_empty() {
        faults.add(line(paths), "state.paths", "is empty", "name the files or folders with the Kubernetes objects");
    }
    if paths.value.iter().any(|path| path == "-") {
        let help = "name a file: standard input cannot be watched for changes";
        faults.add(line(paths), "state.paths", "names standard input", help);
    }
    StateConfig {
        paths: paths.value.iter().map(|path| folder.join(PathBuf::from(path))).collect(),
        options: options(written, faults),
        when_missing: written.when_missing,
        when_refused: written.when_refused,
    }
}

/// How objects are read.
fn options(written: &super::file::State, faults: &mut Faults<'_>) -> Options {
    let version = match written.policy_semantics {
        PolicySemantics::V1 => args::PolicySemantics::V1,
        PolicySemantics::V1beta1 => args::PolicySemantics::V1beta1,
    };
    let default = match written.namespace_default.as_ref().map(|default| default.value).unwrap_or_default() {
        NamespaceDefault::Open => args::NamespaceDefault::Open,
        NamespaceDefault::DefaultDeny => args::NamespaceDefault::DefaultDeny,
    };
    let semantics = args::semantics(version, default).unwrap_or_else(|| {
        let help = "only with policy_semantics: v1beta1 do namespaces isolate";
        faults.add(written.namespace_default.as_ref().and_then(line), "state.namespace_default", "has no effect", help);
        Semantics::default()
    });
    let mut ignored = BTreeSet::new();
    for (at, kind) in written.ignore.iter().enumerate() {
        match kind.value.parse::<KindName>() {
            Ok(kind) => drop(ignored.insert(kind)),
            Err(problem) => {
                let help = "name a kind that restricts traffic and is not enforced: CiliumNetworkPolicy";
                faults.add(line(kind), format!("state.ignore[{at}]"), problem, help);
            }
        }
    }
    let strictness = if written.lenient { Strictness::Lenient } else { Strictness::Strict };
    Options { strictness, semantics, ignored, unenforced: Unenforced::Refuse }
}

fn workers(written: &super::file::Workers, faults: &mut Faults<'_>) -> WorkersConfig {
    let mut cores = vec![None];
    if let Some(named) = &written.cores {
        let mut sorted = named.value.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            faults.add(line(named), "workers.cores", "names a core twice", "give each worker a core of its own");
        }
        if sorted.is_empty() {
            let help = "name one core per worker, or leave the field out for one worker that is not pinned";
            faults.add(line(named), "workers.cores", "is empty", help);
        }
        cores = named.value.iter().copied().map(Some).collect();
    }
    if let Some(named) = written.frames.as_ref().filter(|frames| !(MIN_FRAMES..=MAX_FRAMES).contains(&frames.value)) {
        let help = format!("write {MIN_FRAMES} to {MAX_FRAMES}; each is 4 KiB of memory");
        faults.add(line(named), "workers.frames", format!("{} packet buffers", named.value), help);
    }
    let frames = written.frames.as_ref().map(|frames| frames.value);
    WorkersConfig { cores, poll: written.poll, frames }
}

/// Where sessions are kept while the process is away. Each node has a folder of its own, as there may be several on a machine.
fn session_folder(written: &File, folder: &Path, faults: &mut Faults<'_>) -> Option<PathBuf> {
    let Some(named) = &written.sessions.folder else {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let node: String = written.node.value.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        return Some(PathBuf::from(format!("/run/bulkhead/sessions-{node}")));
    };
    if named.value.is_empty() {
        let help = "name a folder on a tmpfs, or write none to let sessions end with the process";
        faults.add(line(named), "sessions.folder", "is empty", help);
    }
    (named.value != "none").then(|| folder.join(&named.value))
}

fn sessions(written: &super::file::Sessions, folder: Option<PathBuf>, faults: &mut Faults<'_>) -> SessionsConfig {
    if let Some(capacity) = written.capacity.as_ref().filter(|value| !(1..=MAX_SESSIONS).contains(&value.value)) {
        let help = format!("write 1 to {MAX_SESSIONS}");
        faults.add(line(capacity), "sessions.capacity", format!("{} sessions", capacity.value), help);
    }
    let times = &written.timeouts;
    let mut time = |name: &str, text: &Option<Spanned<String>>| -> Option<Duration> {
        let text = text.as_ref()?;
        match humantime::parse_duration(&text.value) {
            Ok(time) if time >= Duration::from_secs(1) => Some(time),
            _ => {
                let field = format!("sessions.timeouts.{name}");
                let help = "write a number with its unit, at least 1s: 30s, 10m, 24h";
                faults.add(line(text), field, format!("`{}` is not such a time", text.value), help);
                None
            }
        }
    };
    let timeouts = TimeoutsConfig {
        tcp_new: time("tcp_new", &times.tcp_new),
        tcp_established: time("tcp_established", &times.tcp_established),
        tcp_half_closed: time("tcp_half_closed", &times.tcp_half_closed),
        tcp_closed: time("tcp_closed", &times.tcp_closed),
        udp_unreplied: time("udp_unreplied", &times.udp_unreplied),
        udp_stream: time("udp_stream", &times.udp_stream),
        idle: time("idle", &times.idle),
        icmp_echo: time("icmp_echo", &times.icmp_echo),
    };
    let mut share = |name: &str, percent: &Option<Spanned<u8>>| -> Option<u8> {
        let percent = percent.as_ref()?;
        if !(1..=100).contains(&percent.value) {
            let field = format!("sessions.shares.{name}");
            faults.add(line(percent), field, format!("{} percent", percent.value), "write 1 to 100; 100 is no limit");
        }
        Some(percent.value)
    };
    let shares = SharesConfig {
        half_open: share("half_open", &written.shares.half_open),
        pod: share("pod", &written.shares.pod),
        outside: share("outside", &written.shares.outside),
    };
    let capacity = written.capacity.as_ref().map(|capacity| capacity.value);
    let (tcp_pickup, tcp_window) = (written.tcp_pickup, written.tcp_window);
    SessionsConfig { folder, capacity, tcp_pickup, tcp_window, timeouts, shares }
}

fn ports(written: &[Spanned<Port>], faults: &mut Faults<'_>) -> Vec<PortEntry> {
    let mut ports: Vec<PortEntry> = Vec::with_capacity(written.len());
    let (mut names, mut labels, mut interfaces) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (at, entry) in written.iter().enumerate() {
        let Some(port) = port(at, entry, faults) else { continue };
        if let Some(other) = names.insert(port.name.clone(), port.line) {
            let problem = format!("is the port {}, which line {other} describes already", port.name);
            faults.add(Some(port.line), format!("ports[{at}]"), problem, "remove one of the two");
        }
        let other = port.label.as_ref().and_then(|label| labels.insert(label.clone(), port.line));
        if let Some(other) = other {
            let problem = format!("is the name of the port on line {other} already");
            faults.add(Some(port.line), format!("ports[{at}].name"), problem, "give each port a name of its own");
        }
        if let Some(other) = interfaces.insert(port.interface.clone(), port.line) {
            let problem = format!("{} is the interface of the port on line {other} already", port.interface);
            let help = "an interface is one port; remove one of the two";
            faults.add(line(&entry.value.interface), format!("ports[{at}].interface"), problem, help);
        }
        ports.push(port);
    }
    ports
}

fn port(at: usize, entry: &Spanned<Port>, faults: &mut Faults<'_>) -> Option<PortEntry> {
    let before = faults.errors.len();
    let field = |name: &str| format!("ports[{at}].{name}");
    let port = &entry.value;
    let pod = pod_of(at, entry, faults);
    if let Err(problem) = check_interface(&port.interface.value) {
        faults.add(line(&port.interface), field("interface"), problem, "write its name as `ip link` shows it");
    }
    let peer = port.peer.as_ref().map_or(DEFAULT_PEER, |peer| &peer.value);
    if let Some(named) = port.peer.as_ref().filter(|peer| check_interface(&peer.value).is_err()) {
        let help = "write the name of the interface inside the pod as `ip link` shows it there";
        faults.add(line(named), field("peer"), format!("`{}` cannot be an interface", named.value), help);
    }
    let mac = port.mac.as_ref().and_then(|text| {
        let mac = parse_mac(&text.value);
        if mac.is_none() {
            let help = "write six bytes in hex, not a group address: 02:00:0a:f4:01:02";
            faults.add(line(text), field("mac"), format!("`{}` is not a MAC address", text.value), help);
        }
        mac
    });
    let host_peer = port.kind == Kind::Host && port.peer.is_some();
    if port.fix_offloads && port.netns.is_none() && !host_peer {
        let help =
            "add netns: the name below /run/netns, or the path, of the pod's network namespace; a host port needs peer";
        faults.add(line(entry), field("fix_offloads"), "is set without saying where the other end is", help);
    }
    let kind = match port.kind {
        Kind::Pod => PortKind::Pod,
        Kind::Uplink => PortKind::Uplink,
        Kind::Host => PortKind::Host,
    };
    let name: Arc<str> = match (kind, &pod) {
        (PortKind::Pod, Some(pod)) => pod.to_string().into(),
        (PortKind::Uplink, _) => "uplink".into(),
        (PortKind::Host, _) => "host".into(),
        (PortKind::Pod, None) => return None,
    };
    (faults.errors.len() == before).then(|| PortEntry {
        name,
        label: port.name.as_ref().map(|name| name.value.as_str().into()),
        kind,
        pod,
        interface: port.interface.value.as_str().into(),
        mac,
        netns: port.netns.as_ref().map(|netns| netns.value.as_str().into()),
        peer: peer.into(),
        peer_named: port.peer.is_some(),
        fix_offloads: port.fix_offloads,
        line: entry.referenced.line(),
    })
}

fn pod_of(at: usize, entry: &Spanned<Port>, faults: &mut Faults<'_>) -> Option<PodName> {
    let field = format!("ports[{at}].pod");
    match (entry.value.kind, &entry.value.pod) {
        (Kind::Pod, None) => {
            faults.add(line(entry), field, "is missing", "write the pod behind the port: pod: namespace/name");
            None
        }
        (Kind::Pod, Some(text)) => match text.value.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Some(PodName::new(namespace, name))
            }
            _ => {
                faults.add(line(text), field, format!("`{}` is not namespace/name", text.value), "write default/web");
                None
            }
        },
        (_, Some(text)) => {
            faults.add(line(text), field, "only a port of kind pod has a pod", "remove it, or write kind: pod");
            None
        }
        (_, None) => None,
    }
}

fn routes(written: &[Route], ports: &[PortEntry], faults: &mut Faults<'_>) -> Vec<RouteEntry> {
    let mut routes: Vec<RouteEntry> = Vec::with_capacity(written.len());
    for (at, route) in written.iter().enumerate() {
        let field = |name: &str| format!("routes[{at}].{name}");
        let Ok(prefix) = route.prefix.value.parse::<IpNet>() else {
            let problem = format!("`{}` is not a prefix", route.prefix.value);
            faults.add(line(&route.prefix), field("prefix"), problem, "write address/length: 10.244.0.0/16, ::/0");
            continue;
        };
        let via = route.via.as_ref().and_then(|text| {
            let via = text.value.parse::<IpAddr>().ok();
            if via.is_none_or(|via| via.is_ipv4() != prefix.addr().is_ipv4() || unusable(via)) {
                let problem = format!("`{}` is not a gateway of the prefix's family", text.value);
                faults.add(line(text), field("via"), problem, "write the address of a router on the port's link");
            }
            via
        });
        let port = route.port.as_ref().map_or("uplink", |port| &port.value);
        let known = ports.iter().find(|known| known.is_called(port));
        if known.is_none() && port != "uplink" {
            let names: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
            let place = route.port.as_ref().and_then(line);
            let help = format!("write one of {}", names.join(", "));
            faults.add(place, field("port"), format!("there is no port `{port}`"), help);
        }
        if routes.iter().any(|other| other.prefix.trunc() == prefix.trunc()) {
            let problem = format!("a second route for {}", prefix.trunc());
            faults.add(line(&route.prefix), field("prefix"), problem, "keep one of them");
        }
        routes.push(RouteEntry {
            prefix: prefix.trunc(),
            via,
            port: known.map_or_else(|| port.into(), |known| known.name.clone()),
        });
    }
    routes
}

fn unusable(via: IpAddr) -> bool {
    via.is_unspecified() || via.is_loopback() || via.is_multicast()
}

/// The kernel's rule (`dev_valid_name`).
fn check_interface(name: &str) -> Result<(), String> {
    let bad = name.is_empty() || name.len() > MAX_INTERFACE_LEN || name == "." || name == "..";
    if bad || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{name}` cannot be an interface"));
    }
    Ok(())
}

/// `02:00:0a:f4:01:02`; no group address and not all zeros, which no interface sends from.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    (parts.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}
