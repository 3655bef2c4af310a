//! Settings of the ways to other nodes.

use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::{Faults, line};

/// The nodes to which packets for pods take the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncapsulationMode {
    /// Nodes that are not on a link of this node. Others get a route.
    #[default]
    Auto,
    /// All nodes.
    Always,
    /// No node. The network routes pods of nodes that are not on a link of this node.
    Never,
}

/// Settings of the ways to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encapsulation {
    /// The nodes to which packets take the tunnel.
    pub mode: EncapsulationMode,
    /// The tunnel's UDP port, the same at all nodes.
    pub port: u16,
    /// The tunnel's VXLAN network identifier, the same at all nodes.
    pub vni: u32,
}

/// Settings of the probes that prove the ways to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probing {
    /// The UDP port at which all vswitches answer.
    pub port: u16,
    /// The time between two rounds of probes to a node.
    pub interval: Duration,
}

/// The default UDP port of probes: next to those of VXLAN and its kin (4789 to 4791), and unassigned by IANA. No network plugin uses it.
const PROBE_PORT: u16 = 4792;
/// The default, shortest and longest interval of probes. Three missed rounds are a fault.
const INTERVAL: Duration = Duration::from_secs(10);
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(600);

/// The UDP port of VXLAN (RFC 7348 §5).
const PORT: u16 = 4789;
/// The default network identifier: the lowest that is not reserved by habit.
const VNI: u32 = 1;
/// The largest network identifier: it has 24 bits (RFC 7348 §5).
const MAX_VNI: u32 = (1 << 24) - 1;

/// The `vxlan` field as parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Vxlan {
    port: Option<Spanned<u32>>,
    vni: Option<Spanned<u32>>,
}

/// Checks the settings.
pub(super) fn check(mode: EncapsulationMode, vxlan: &Vxlan, faults: &mut Faults<'_>) -> Encapsulation {
    let port = vxlan.port.as_ref().map_or(PORT, |written| {
        u16::try_from(written.value).ok().filter(|port| *port != 0).unwrap_or_else(|| {
            let help = "write a UDP port from 1 to 65535, the same at all nodes: 4789";
            faults.add(line(written), "vxlan.port", format!("{} is no port", written.value), help);
            PORT
        })
    });
    let vni = vxlan.vni.as_ref().map_or(VNI, |written| written.value);
    if let Some(written) = vxlan.vni.as_ref().filter(|written| written.value > MAX_VNI) {
        let help = format!("write a number from 0 to {MAX_VNI}, the same at all nodes");
        faults.add(line(written), "vxlan.vni", format!("{} has more than 24 bits", written.value), help);
    }
    Encapsulation { mode, port, vni }
}

/// The `probe` field as parsed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Probe {
    port: Option<Spanned<u32>>,
    interval: Option<Spanned<String>>,
}

/// Checks the settings of probes. `None` if they are off (port 0). `tunnel` is the tunnel's port.
pub(super) fn check_probe(probe: &Probe, tunnel: u16, faults: &mut Faults<'_>) -> Option<Probing> {
    let written = probe.port.as_ref().map_or(u32::from(PROBE_PORT), |written| written.value);
    let port = u16::try_from(written).ok().filter(|&port| port != tunnel).unwrap_or_else(|| {
        let help = "write a UDP port, the same at all nodes and not vxlan.port: 4792; 0 turns probes off";
        faults.add(probe.port.as_ref().and_then(line), "probe.port", format!("{written} cannot be the port"), help);
        PROBE_PORT
    });
    let interval = probe.interval.as_ref().map_or(INTERVAL, |text| match humantime::parse_duration(&text.value) {
        Ok(time) if (MIN_INTERVAL..=MAX_INTERVAL).contains(&time) => time,
        _ => {
            let help = "write a number with its unit, from 100ms to 10m: 10s";
            faults.add(line(text), "probe.interval", format!("`{}` is not a valid duration", text.value), help);
            INTERVAL
        }
    });
    (port != 0).then_some(Probing { port, interval })
}
