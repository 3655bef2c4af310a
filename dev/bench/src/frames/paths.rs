//! The measured paths through the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::io::{
    FlowCache, Frame, FramePool, Generator, Interface, KernelFlowCache, KernelFlows, Port, QueueConfig, Umem, XdpMode,
    XskPort, cores, in_namespace, takes_xdp_frames,
};
use bulkhead_dataplane::vswitch::{LEASE, PollMode, Vswitch, VswitchConfig};
use bulkhead_dataplane::{Affinity, Link, PortId, Publisher, SessionConfig, WorkerConfig};

use super::lab::Lab;
use super::packets::{self, GROUP, PAUSE, Way};
use crate::policy;

/// Packet buffers: enough for the rings of two ports and the packets in flight.
const FRAMES: u32 = 16_384;
/// Burst size of the bare forwarder, equal to the vswitch's.
const BURST: usize = bulkhead_dataplane::BURST;
/// Time to fill caches and sessions before counting.
const WARM_UP: Duration = Duration::from_millis(500);

/// A measured path, as described in [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Pipeline,
    /// The vswitch with the flow cache.
    FlowCache,
    /// The vswitch with one worker, in measurements where `Pipeline` has several.
    OneWorker,
    Bare,
    Kernel,
    KernelRps,
}

impl Path {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pipeline => "pipeline",
            Self::FlowCache => "flow_cache",
            Self::OneWorker => "pipeline_one_worker",
            Self::Bare => "bare",
            Self::Kernel => "kernel",
            Self::KernelRps => "kernel_rps",
        }
    }
}

/// The node's interfaces, held by the benchmark, and the AF_XDP sockets on them.
pub(super) struct Taken {
    /// The held interfaces, which must outlive the sockets in `ports`.
    _interfaces: Vec<Interface>,
    pub(super) ports: Vec<XskPort>,
}

/// Attaches to both interfaces of the node, with or without a flow cache.
///
/// # Errors
/// If AF_XDP does not work here.
pub(super) fn take(lab: &Lab, umem: &Arc<Umem>, cache: Option<&Arc<KernelFlowCache>>) -> anyhow::Result<Taken> {
    let open = || {
        let (mut interfaces, mut ports) = (Vec::new(), Vec::new());
        for name in ["hA", "hB"] {
            let interface = Interface::hold(name, XdpMode::Drv, cache)?;
            ports.extend(interface.ports(umem, QueueConfig::default())?);
            if let (Some(cache), Some(slot)) = (cache, interface.slot()) {
                let index = interface.info().index;
                anyhow::ensure!(takes_xdp_frames(index)?, "{name} takes no packets from an XDP program");
                cache.reach(slot, Some(index))?;
            }
            interfaces.push(interface);
        }
        anyhow::Ok(Taken { _interfaces: interfaces, ports })
    };
    in_namespace(&lab.path("node"), open)?
}

/// Measures a path. Returns the packets per second that arrive at the sink.
///
/// # Errors
/// If the path cannot be set up.
pub(super) fn measure(lab: &Lab, path: Path, cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    match path {
        Path::Pipeline | Path::FlowCache | Path::OneWorker => {
            let setup = Setup { poll: PollMode::Spin, with_policy: true, flow_cache: path == Path::FlowCache };
            let vswitch = pipeline(lab, &cores[1..], setup, [None, Some(packets::NOBODY)])?;
            let rate = send(lab, cores[0], time);
            drop(vswitch);
            rate
        }
        Path::Bare => bare(lab, cores[1], || send(lab, cores[0], time)),
        Path::Kernel | Path::KernelRps => {
            route(lab, (path == Path::KernelRps).then_some(cores[1]))?;
            let rate = send(lab, cores[0], time);
            // Must be reset: the kernel (6.18) counts queues with RPS, but does not decrement when a queue is removed. Every packet
            // that the machine receives later would then pay for the check.
            receive_on(lab, 0)?;
            rate
        }
    }
}

/// A running vswitch between the two interfaces.
pub(super) struct Pipeline {
    // Dropped in this order: the workers must end before the interfaces are released.
    _vswitch: Vswitch,
    _publisher: Publisher,
    _interfaces: Vec<Interface>,
}

/// Options of the measured vswitch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) poll: PollMode,
    pub(super) with_policy: bool,
    pub(super) flow_cache: bool,
}

/// Starts the vswitch with one worker per core. `macs` are the peers' MAC addresses; `None` uses the real one.
///
/// # Errors
/// If the vswitch cannot be started.
pub(super) fn pipeline(
    lab: &Lab,
    cores: &[usize],
    setup: Setup,
    macs: [Option<[u8; 6]>; 2],
) -> anyhow::Result<Pipeline> {
    let link = |name: &str| -> anyhow::Result<Link> {
        let info = lab.link("node", name)?;
        Ok(Link { mac: info.mac, mtu: u16::try_from(info.mtu)? })
    };
    let macs = [macs[0].unwrap_or(lab.link("gen", "eth0")?.mac), macs[1].unwrap_or(lab.link("sink", "eth0")?.mac)];
    let snapshot = packets::snapshot([link("hA")?, link("hB")?], macs, setup.with_policy)?;
    let cache = setup.flow_cache.then(KernelFlowCache::new).transpose().context("no flow cache")?;
    if let Some(cache) = &cache {
        cache.enter(&snapshot);
    }
    let publisher = Publisher::new(snapshot);
    let sessions = SessionConfig::live(SessionConfig::default().capacity);
    let engine = WorkerConfig { sessions, ..WorkerConfig::default() };
    let cores = cores.iter().copied().map(Some).collect();
    let flow_cache = cache.clone().map(|cache| -> Arc<dyn FlowCache> { cache });
    let affinity = Affinity::new();
    let config = VswitchConfig {
        cores,
        poll: setup.poll,
        engine,
        frames: FRAMES,
        tap: None,
        flow_cache,
        affinity,
        lease: LEASE,
    };
    let mut vswitch = Vswitch::start(&config, &publisher)?;
    let umem = Arc::clone(vswitch.pool().umem());
    let Taken { _interfaces, ports } = take(lab, &umem, cache.as_ref())?;
    for (id, port) in (0..).zip(ports) {
        vswitch.add_port(PortId(id), 0, Box::new(port));
    }
    Ok(Pipeline { _vswitch: vswitch, _publisher: publisher, _interfaces })
}

/// Moves frames between the two sockets, without any other work, while `measure` runs.
///
/// # Errors
/// If the sockets cannot be opened, and the errors of `measure`.
pub(super) fn bare(lab: &Lab, core: usize, measure: impl FnOnce() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let (umem, frames) = Umem::new(FRAMES)?;
    let mut pool = FramePool::new(Arc::clone(&umem), frames);
    let Taken { _interfaces, mut ports } = take(lab, &umem, None)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let forwarder = scope.spawn(|| -> anyhow::Result<()> {
            cores::pin(core);
            let mut queues: [Vec<Frame>; 2] = [Vec::new(), Vec::new()];
            while !stop.load(Ordering::Relaxed) {
                for (at, queue) in queues.iter_mut().enumerate() {
                    let room = BURST.saturating_sub(queue.len());
                    ports[at].receive(queue, room)?;
                    ports[1 - at].send(queue)?;
                }
                for port in &mut ports {
                    port.service(&mut pool)?;
                }
            }
            queues.into_iter().for_each(|queue| pool.give_all(queue));
            for port in &mut ports {
                port.close(&mut pool);
            }
            Ok(())
        });
        let rate = measure();
        stop.store(true, Ordering::Relaxed);
        forwarder.join().map_err(|_| anyhow::anyhow!("the bare forwarder has panicked"))??;
        rate
    })
}

/// Makes the node a router with the policy in nftables. With `core`, that core processes received packets.
fn route(lab: &Lab, core: Option<usize>) -> anyhow::Result<()> {
    lab.run(
        "node",
        "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0",
    )?;
    for (host, gateway) in [("hA", super::lab::GENERATOR), ("hB", super::lab::SINK)] {
        lab.run("node", &format!("ip route add {gateway}/32 dev {host}"))?;
        // The generator's packets do not come from a socket. Without GRO, a veth passes them only to an XDP program.
        lab.run("node", &format!("ethtool -K {host} gro on"))?;
    }
    let mac = packets::NOBODY.map(|byte| format!("{byte:02x}")).join(":");
    lab.run("node", &format!("ip neigh add {} lladdr {mac} nud permanent dev hB", super::lab::SINK))?;
    let file = std::env::temp_dir().join(format!("bulkhead-wire-{}.nft", std::process::id()));
    std::fs::write(&file, policy::nftables("hB")).context("cannot write the rules for nft")?;
    let loaded = lab.run("node", &format!("nft -f {}", file.display()));
    let _ = std::fs::remove_file(&file);
    loaded?;
    core.map_or(Ok(()), |core| receive_on(lab, 1 << core.min(63)))
}

/// Sets the cores that process the packets received from the generator (RPS), one bit per core. 0 turns RPS off.
fn receive_on(lab: &Lab, cores: u64) -> anyhow::Result<()> {
    // `ip netns exec` mounts the namespace's /sys.
    lab.shell("node", &format!("echo {cores:x} > /sys/class/net/hA/queues/rx-0/rps_cpus"))?;
    Ok(())
}

/// Sends from the generator, and returns the packets per second that arrive at the sink.
///
/// First sends one packet of each flow in both directions: connection tracking treats only an answered flow as established, and packets of
/// other flows pass all rules.
fn send(lab: &Lab, core: usize, time: Duration) -> anyhow::Result<f64> {
    let forth = packets::frames(Way::Forth, lab.link("gen", "eth0")?.mac, lab.link("node", "hA")?.mac);
    let back = packets::frames(Way::Back, packets::NOBODY, lab.link("node", "hB")?.mac);
    for (namespace, frames) in [("gen", &forth), ("sink", &back)] {
        for group in frames.chunks(GROUP) {
            in_namespace(&lab.path(namespace), || Generator::new("eth0", group)?.send(1))??;
            std::thread::sleep(PAUSE);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            in_namespace(&lab.path("gen"), || {
                cores::pin(core);
                Generator::new("eth0", &forth)?.run(&stop)
            })
        });
        std::thread::sleep(WARM_UP);
        let counted = count(lab, time);
        stop.store(true, Ordering::Relaxed);
        generator.join().map_err(|_| anyhow::anyhow!("the generator has panicked"))???;
        counted
    })
}

/// Counts the packets per second that arrive at the sink.
fn count(lab: &Lab, time: Duration) -> anyhow::Result<f64> {
    let (before, started) = (lab.arrived()?, Instant::now());
    std::thread::sleep(time);
    let (after, took) = (lab.arrived()?, started.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
    Ok((after - before) as f64 / took.as_secs_f64())
}
