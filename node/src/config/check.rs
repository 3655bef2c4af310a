//! Checks the parsed configuration file and converts it to settings.

mod judging;
mod nftables;
mod ports;
mod state;

use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_dataplane::io::SlowPathLimit;
use bulkhead_dataplane::vswitch::LEASE;
use serde_saphyr::Spanned;

use super::buffers::MOST as MAX_FRAMES;
use super::faults::{Faults, MAX_SOCKET_PATH, line};
use super::file::File;
use super::journal;
use super::{
    AdminConfig, Attach, Config, ConfigErrors, Dataplane, Pins, SessionsConfig, SharesConfig, SlowPathConfig,
    TimeoutsConfig, WorkersConfig,
};
use super::{encapsulation, hubble, masquerade, mode, names};
use crate::log::LogConfig;
use bulkhead_observe::admin::DEFAULT_SOCKET;
use judging::Judging;
pub(crate) use ports::{check_interface, parse_mac};

/// Minimum number of buffers: two receive rings and packets in flight. With fewer, no packet could be forwarded.
const MIN_FRAMES: u32 = 4_096;
/// Maximum number of sessions: a table's index has 26 bits. At up to 128 bytes per session, that is 8 GiB.
const MAX_SESSIONS: usize = 1 << 26;
/// Minimum flow lease. With a shorter one, the workers would see nearly as many packets as without a flow cache.
const MIN_LEASE: Duration = Duration::from_secs(1);
/// Maximum flow lease: how long a flow may continue after its session or the process ended.
const MAX_LEASE: Duration = Duration::from_secs(600);
/// Default of `away_grace`: longer than an update of a node takes, and than most outages of a registry.
const AWAY_GRACE: Duration = Duration::from_secs(3600);
/// Maximum of `away_grace`: meanwhile no change of policy reaches established flows.
const MAX_AWAY_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Range of `big_tcp`, in bytes: longer than an IPv4 header can express, up to the kernel's limit for all interfaces (`GSO_MAX_SIZE`).
const BIG_TCP: RangeInclusive<u32> = 65_536..=524_280;

/// Converts the parsed file, or returns all its errors.
pub(super) fn check(file: &str, folder: &Path, node: Option<&str>, written: &File) -> Result<Config, ConfigErrors> {
    let mut faults = Faults { file, errors: Vec::new() };
    let node = node_name(node, written.node.as_ref(), &mut faults);
    mode::check(written, &mut faults);
    let entries = written.ports.as_deref().unwrap_or_else(|| {
        faults.add(
            None,
            "ports",
            "is missing",
            "list the ports, or write `mode: cluster` for a node with one network card",
        );
        &[]
    });
    let ports = ports::ports(entries, &mut faults);
    let Judging { dataplane, enforce, engine } = judging::check(written, &mut faults);
    let session_folder = session_folder(written, node, folder, &mut faults);
    let encapsulation = encapsulation::check(written.encapsulation, &written.vxlan, &mut faults);
    let probing = encapsulation::check_probe(&written.probe, encapsulation.port, &mut faults);
    let probe_port = probing.map_or(encapsulation.port, |probing| probing.port);
    let masquerade = written.masquerade.as_ref().and_then(|written| masquerade::check(written, &mut faults));
    let config = Config {
        node: node.into(),
        dataplane,
        nftables: nftables::check(written, &mut faults),
        attach: written.attach,
        slow_path: slow_path(&written.slow_path, &mut faults),
        tcx: written.tcx,
        pins: pins(written.pins.as_ref(), &mut faults),
        flow_lease: flow_lease(written.flow_lease.as_ref(), &mut faults),
        away_grace: away_grace(written.away_grace.as_ref(), &mut faults),
        big_tcp: big_tcp(written, &mut faults),
        xdp_mode: written.xdp_mode,
        flow_cache: written.flow_cache,
        state: state::state(
            &written.state,
            written.services.0.is_some() && dataplane == Dataplane::Vswitch,
            (dataplane, enforce),
            folder,
            &mut faults,
        ),
        services: written.services.0.clone(),
        masquerade: masquerade.map(|masquerade| masquerade.without([encapsulation.port, probe_port])),
        names: names::check(&written.names, &mut faults),
        denied: written.denied.into(),
        unreachable: written.unreachable.into(),
        enforce,
        engine,
        enforcement: judging::enforcement(written, (dataplane, enforce), &mut faults),
        journal: journal::check(written.journal.as_ref(), node, session_folder.clone(), folder, &mut faults),
        audit_folder: audit_folder(written, session_folder.clone(), folder, &mut faults),
        workers: workers(&written.workers, &mut faults),
        sessions: sessions(&written.sessions, session_folder, &mut faults),
        admin: admin(&written.admin, folder, &mut faults),
        hubble: hubble::check(written.hubble.as_ref(), folder, &mut faults),
        log: LogConfig { format: written.log.format, level: written.log.level },
        created_host: ports::created_host(entries, &mut faults),
        encapsulation,
        probing,
        routes: ports::routes(&written.routes, &ports, enforce, &mut faults),
        ports,
    };
    if faults.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(faults.errors)) }
}

/// Returns the node's name: from the command line, else from the file.
fn node_name<'a>(said: Option<&'a str>, written: Option<&'a Spanned<String>>, faults: &mut Faults<'_>) -> &'a str {
    let help = "write the node's name as in `kubectl get nodes`, or start with --node";
    match (said, written) {
        (Some(""), _) => faults.add(None, "node", "is empty on the command line", help),
        (Some(name), _) => return name,
        (None, Some(name)) if name.value.is_empty() => faults.add(line(name), "node", "is empty", help),
        (None, Some(name)) => return &name.value,
        (None, None) => faults.add(None, "node", "is missing", help),
    }
    ""
}

fn flow_lease(written: Option<&Spanned<String>>, faults: &mut Faults<'_>) -> Duration {
    let Some(text) = written else { return LEASE };
    match humantime::parse_duration(&text.value) {
        Ok(time) if (MIN_LEASE..=MAX_LEASE).contains(&time) => time,
        _ => {
            let help = "write a number with its unit, from 1s to 10m: 30s";
            faults.add(line(text), "flow_lease", format!("`{}` is not a valid duration", text.value), help);
            LEASE
        }
    }
}

fn away_grace(written: Option<&Spanned<String>>, faults: &mut Faults<'_>) -> Duration {
    let Some(text) = written else { return AWAY_GRACE };
    match humantime::parse_duration(&text.value) {
        Ok(time) if time <= MAX_AWAY_GRACE => time,
        _ => {
            let help = "write a number with its unit, up to 24h: 1h; 0s ends flows with their leases";
            faults.add(line(text), "away_grace", format!("`{}` is not a valid duration", text.value), help);
            AWAY_GRACE
        }
    }
}

fn big_tcp(written: &File, faults: &mut Faults<'_>) -> Option<u32> {
    let size = written.big_tcp.as_ref()?;
    if !BIG_TCP.contains(&size.value) {
        let [least, most] = [BIG_TCP.start(), BIG_TCP.end()];
        let help = format!("write a number of bytes from {least} to {most}, such as 196608, or remove the field");
        faults.add(line(size), "big_tcp", format!("`{}` is not a valid packet length", size.value), help);
    }
    if written.attach == Attach::Xdp {
        let help = "remove the field: with attach: xdp pods send no segments longer than the MTU";
        faults.add(line(size), "big_tcp", "is set with attach: xdp", help);
    }
    Some(size.value)
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

fn admin(written: &super::file::Admin, folder: &Path, faults: &mut Faults<'_>) -> AdminConfig {
    let socket = match &written.socket {
        None => Some(PathBuf::from(DEFAULT_SOCKET)),
        Some(named) => {
            let path = folder.join(&named.value);
            if named.value.is_empty() || path.as_os_str().len() > MAX_SOCKET_PATH {
                let help =
                    format!("write a path of at most {MAX_SOCKET_PATH} bytes, such as {DEFAULT_SOCKET}, or none");
                faults.add(line(named), "admin.socket", "is not a valid path of a socket", help);
            }
            (named.value != "none").then_some(path)
        }
    };
    let ports_folder = written.ports_folder.as_ref().map(|named| {
        if named.value.is_empty() {
            let help = "name a folder on a tmpfs, or remove the field to use the folder of the socket";
            faults.add(line(named), "admin.ports_folder", "is empty", help);
        }
        folder.join(&named.value)
    });
    // Defaults to the socket's folder, which differs for each vswitch of a machine.
    let beside = || Some(socket.as_ref()?.parent()?.to_path_buf());
    let ports_folder = ports_folder.or_else(beside).filter(|_| socket.is_some());
    let listen = written.listen.as_ref().and_then(|named| {
        let parsed = named.value.parse().ok();
        if parsed.is_none() {
            let help = "write an address and a port: 127.0.0.1:9965 or [::]:9965";
            faults.add(line(named), "admin.listen", format!("`{}` is not an address and port", named.value), help);
        }
        parsed
    });
    AdminConfig { socket, ports_folder, listen, service_health: service_health(written, listen, faults) }
}

/// Default address of health checks: kube-proxy's port, at all addresses of both families.
const SERVICE_HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10_256);

fn service_health(
    written: &super::file::Admin,
    listen: Option<SocketAddr>,
    faults: &mut Faults<'_>,
) -> Option<SocketAddr> {
    let Some(named) = &written.service_health else { return Some(SERVICE_HEALTH) };
    if named.value == "none" {
        return None;
    }
    let address = named.value.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    match address {
        None => {
            let help = "write an address and a port, [::]:10256 for all addresses of both families, or none";
            faults.add(
                line(named),
                "admin.service_health",
                format!("`{}` is not an address and port", named.value),
                help,
            );
        }
        Some(address) if listen.is_some_and(|listen| listen.port() == address.port()) => {
            let problem = format!("has the port {} of admin.listen", address.port());
            faults.add(line(named), "admin.service_health", problem, "give one of them another port");
        }
        Some(_) => {}
    }
    address
}

fn slow_path(written: &super::file::SlowPath, faults: &mut Faults<'_>) -> SlowPathConfig {
    let SlowPathLimit { rate, burst } = SlowPathLimit::default();
    if let Some(named) = written.burst.as_ref().filter(|burst| burst.value == 0) {
        let help = "write at least 1; for no limit, set packets_per_second: 0";
        faults.add(line(named), "slow_path.burst", "lets no packet pass", help);
    }
    SlowPathConfig {
        packets_per_second: written.packets_per_second.unwrap_or(rate),
        burst: written.burst.as_ref().map_or(burst, |burst| burst.value),
    }
}

fn workers(written: &super::file::Workers, faults: &mut Faults<'_>) -> WorkersConfig {
    let mut cores = vec![None];
    if let Some(named) = &written.cores {
        let mut sorted = named.value.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            faults.add(line(named), "workers.cores", "names a core twice", "give each worker its own core");
        }
        if sorted.is_empty() {
            let help = "name one core per worker, or remove the field for one unpinned worker";
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

/// Returns the folder that keeps sessions while no process runs. Its default has the node's name, as a machine may have several nodes.
fn session_folder(written: &File, node: &str, folder: &Path, faults: &mut Faults<'_>) -> Option<PathBuf> {
    let Some(named) = &written.sessions.folder else {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let node: String = node.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        return Some(PathBuf::from(format!("/run/bulkhead/sessions-{node}")));
    };
    if named.value.is_empty() {
        let help = "name a folder on a tmpfs, or write none to let sessions end with the process";
        faults.add(line(named), "sessions.folder", "is empty", help);
    }
    (named.value != "none").then(|| folder.join(&named.value))
}

/// Returns the folder for the counts of audited policies. Defaults to the sessions' folder.
fn audit_folder(written: &File, sessions: Option<PathBuf>, folder: &Path, faults: &mut Faults<'_>) -> Option<PathBuf> {
    let Some(named) = written.audit.as_ref().and_then(|audit| audit.folder.as_ref()) else { return sessions };
    if named.value.is_empty() {
        let help = "name a folder, or write none to let the counts end with the process";
        faults.add(line(named), "audit.folder", "is empty", help);
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
                faults.add(line(text), field, format!("`{}` is not a valid duration", text.value), help);
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
