//! Loads the kernel programs that live as long as the process: the tc datapath, or the flow cache of `attach: xdp`.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bulkhead_dataplane::Affinity;
use bulkhead_dataplane::io::{
    Away, KernelFlowCache, KernelFlows, SlowPathLimit, TcConfig, TcDatapath, XskError, claim_trunk,
    remove_node_programs,
};

use super::composer::Takeover;
use super::config::{Attach, Config, DEFAULT_PINS, Pins, SlowPathConfig, TRUNK};
use super::log;
use bulkhead_answers::output;

/// The loaded kernel programs: at most one of the two.
pub(super) struct Kernel {
    /// The datapath of `attach: tc`. `None` with `attach: xdp`.
    pub(super) tc: Option<Arc<TcDatapath>>,
    /// The flow cache of `attach: xdp`. `None` with `attach: tc`, if disabled, during a capture, or if the kernel refuses.
    pub(super) flow_cache: Option<Arc<KernelFlowCache>>,
    /// The listening socket by which other processes find this vswitch, with `attach: xdp`. `None` with `attach: tc`, whose datapath owns the
    /// socket, and if another vswitch of this network namespace owns it.
    pub(super) claim: Option<UnixListener>,
}

impl Kernel {
    pub(super) fn new(config: &Config, affinity: &Affinity, captures: bool) -> anyhow::Result<Self> {
        if config.attach == Attach::Xdp {
            // A previous process's programs would go on with its flows.
            let removed = remove_node_programs(config.pins.path());
            removed
                .map_err(|error| log::warn(&format!("cannot remove programs at links to other nodes: {error}")))
                .unwrap_or_default();
            return Ok(Self { tc: None, flow_cache: flow_cache(config, captures), claim: claim_trunk(TRUNK[0]).ok() });
        }
        let SlowPathConfig { packets_per_second, burst } = config.slow_path;
        // 0 disables the limit: without a flow cache, the workers forward all packets.
        let rate = if config.flow_cache && !captures { packets_per_second } else { 0 };
        let timeouts = config.sessions.settings().timeouts;
        let tc = |pins: Option<PathBuf>| {
            TcDatapath::new(&TcConfig {
                trunk: TRUNK.map(str::to_owned),
                affinity: affinity.clone(),
                workers: u32::try_from(config.workers.cores.len()).context("too many workers")?,
                slow_path: SlowPathLimit { rate, burst },
                links: config.tcx,
                pins,
                away: Away {
                    grace: config.away_grace,
                    half_closed: Duration::from_nanos(timeouts.tcp_half_closed),
                    closed: Duration::from_nanos(timeouts.tcp_closed),
                },
            })
            .map_err(anyhow::Error::from)
        };
        let made = match &config.pins {
            Pins::None => tc(None),
            Pins::Path(path) => tc(Some(path.clone())),
            Pins::Default => tc(Some(DEFAULT_PINS.into())).or_else(|error| match error.downcast_ref() {
                Some(XskError::NoBpfFileSystem { .. }) => {
                    log::warn(&output::told(&error));
                    tc(None)
                }
                _ => Err(error),
            }),
        };
        let tc = made?;
        match tc.left_open() {
            0 => {}
            left => log::info(&format!("taking over {left} ports that the previous process left open")),
        }
        Ok(Self { tc: Some(tc), flow_cache: None, claim: None })
    }

    pub(super) fn takeover(&self) -> Takeover {
        self.tc
            .as_ref()
            .map_or(Takeover::NONE, |tc| Takeover { generation: tc.next_generation(), keeps_flows: tc.left_open() > 0 })
    }

    pub(super) fn flows(&self) -> Option<Arc<dyn KernelFlows>> {
        let tc = self.tc.clone().map(|tc| -> Arc<dyn KernelFlows> { tc });
        tc.or_else(|| self.flow_cache.clone().map(|cache| -> Arc<dyn KernelFlows> { cache }))
    }
}

/// Loads the flow cache. `None` if it is disabled, if the kernel refuses (logged), or during a capture, which needs all packets.
fn flow_cache(config: &Config, captures: bool) -> Option<Arc<KernelFlowCache>> {
    if !config.flow_cache || captures {
        return None;
    }
    let refused = |error: &std::io::Error| {
        log::warn(&format!(
            "the flow cache is off: {error}; the workers forward all packets\n\
             help: use Linux 5.12 or newer and grant CAP_PERFMON, or set flow_cache: false"
        ));
    };
    KernelFlowCache::new().inspect_err(refused).ok()
}
