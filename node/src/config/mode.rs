//! `mode`: one setting for a whole kind of node.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::{Faults, line};
use super::file::{File, Kind, Mode, Port, Route};
use super::masquerade;
use super::{Attach, Dataplane};

/// The fields that [`Mode::Cluster`] sets unless the file does, as YAML: the host port, routes to it, and masquerading.
const CLUSTER: &str = "
ports: [{kind: host, interface: bh-host, peer: bh-node, create: {}}]
routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]
masquerade: true
";

/// The parsed fields that a mode sets.
#[derive(Debug, Deserialize)]
struct Preset {
    ports: Vec<Spanned<Port>>,
    routes: Vec<Route>,
    masquerade: masquerade::Written,
}

/// Adds the mode's fields that the file lacks.
pub(super) fn fill(file: &mut File) {
    let Some(Mode::Cluster) = file.mode.as_ref().map(|mode| mode.value) else { return };
    let preset: Preset = serde_saphyr::from_str(CLUSTER).expect("the text is constant, and a test parses it");
    let ports = file.ports.get_or_insert_default();
    if !ports.iter().any(|port| port.value.kind == Kind::Host) {
        ports.extend(preset.ports);
    }
    for route in preset.routes {
        if file.routes.iter().all(|other| other.prefix.value != route.prefix.value) {
            file.routes.push(route);
        }
    }
    file.masquerade.get_or_insert(preset.masquerade);
}

/// Adds an error to `faults` for each field of the file that contradicts its mode.
pub(super) fn check(file: &File, faults: &mut Faults<'_>) {
    let Some(mode) = &file.mode else { return };
    let mut contradicts = |field: &str| {
        let help = format!("remove {field}, or remove `mode` and write ports, routes and masquerade yourself");
        faults.add(line(mode), "mode", format!("cluster does not go together with {field}"), help);
    };
    if file.attach == Attach::Xdp {
        contradicts("attach: xdp");
    }
    if file.dataplane.as_ref().is_some_and(|dataplane| dataplane.value == Dataplane::Nftables) {
        contradicts("dataplane: nftables");
    }
    if file.ports.iter().flatten().any(|port| port.value.kind == Kind::Uplink) {
        contradicts("a port of kind uplink");
    }
}
