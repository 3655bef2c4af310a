//! Derives from a plan what status reports about each way, and where its probes go.

use std::net::IpAddr;

use super::plan::{NodeWay, Plan, Way, source_for};
use super::probes::{Aim, Target, Via};

/// Returns a target for each way of the plan and for each node and family without one. `tunnel` is the index of the tunnel's interface;
/// `None` if it could not be set up. `sources` are the node's own addresses, at most one per family.
pub(super) fn targets(plan: &Plan, tunnel: Option<u32>, sources: &[IpAddr]) -> Vec<Target> {
    let mut targets: Vec<Target> = plan.ways.iter().map(|way| of_way(way, plan, tunnel, sources)).collect();
    targets.extend(plan.unled.iter().map(|unled| Target {
        node: unled.node.clone(),
        networks: unled.networks.clone(),
        via: unled.why.clone().map_or(Via::Network, Via::Nowhere),
        mtu: None,
        aim: None,
    }));
    targets
}

/// Returns the target of a way. `tunnel` and `sources` are as for [`targets`].
fn of_way(way: &NodeWay, plan: &Plan, tunnel: Option<u32>, sources: &[IpAddr]) -> Target {
    let source = |to| source_for(sources, to);
    let (via, mtu, aim) = match way.way {
        Way::Route { gateway, interface } => {
            let (name, mtu) = plan.link(interface);
            let aim = Aim { to: gateway, source: source(gateway), interface: 0, mtu, outer: None };
            (Via::Route(gateway, name), mtu, Some(aim))
        }
        Way::Tunnel { remote, .. } => {
            let Some(interface) = tunnel else {
                let why = "the tunnel could not be set up; `bulkhead status` has the cause".to_owned();
                return Target {
                    node: way.node.clone(),
                    networks: way.networks.clone(),
                    via: Via::Nowhere(why),
                    mtu: None,
                    aim: None,
                };
            };
            // Without an own address of the family, the other node's guard accepts no packet of this family but pods'.
            let inner = way.own.and_then(|to| Some((to, source(to)?)));
            let aim = inner.map(|(to, from)| Aim {
                to,
                source: Some(from),
                interface,
                mtu: plan.tunnel_mtu,
                outer: Some((remote, source(remote))),
            });
            (Via::Tunnel(remote), plan.tunnel_mtu, aim)
        }
    };
    Target { node: way.node.clone(), networks: way.networks.clone(), via, mtu: Some(mtu), aim }
}

/// Returns the way in words, with its MTU. `None` without a way of the vswitch.
pub(super) fn described(target: &Target) -> Option<String> {
    let networks: Vec<String> = target.networks.iter().map(ToString::to_string).collect();
    Some(format!("{}: {} by {} (MTU {})", target.node, networks.join(", "), target.via, target.mtu?))
}

#[cfg(test)]
mod tests {
    use super::super::plan::Unled;
    use bulkhead_dataplane::io::Outer;

    use super::*;

    #[test]
    fn probes_take_the_way_of_the_pods_packets() {
        let [near, far, inner, own] =
            ["192.0.2.2", "198.51.100.3", "2001:db8::3", "192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
        let way = |node: &str, way, own| NodeWay { node: node.into(), way, networks: Vec::new(), own };
        let plan = Plan {
            ways: vec![
                way("near", Way::Route { gateway: near, interface: 2 }, Some(near)),
                way("far", Way::Tunnel { remote: far, interface: 3, outer: Outer::ByRoute }, Some(far)),
                way("far6", Way::Tunnel { remote: far, interface: 3, outer: Outer::ByRoute }, Some(inner)),
            ],
            unled: vec![
                Unled { node: "lost".into(), networks: Vec::new(), why: Some("no route".into()) },
                Unled { node: "routed".into(), networks: Vec::new(), why: None },
            ],
            links: [(2, ("eth0".to_owned(), 1500))].into(),
            tunnel_mtu: 1450,
            ..Plan::default()
        };
        let made = targets(&plan, Some(9), &[own]);
        let route = Aim { to: near, source: Some(own), interface: 0, mtu: 1500, outer: None };
        let tunnel = Aim { to: far, source: Some(own), interface: 9, mtu: 1450, outer: Some((far, Some(own))) };
        let found: Vec<_> = made.iter().map(|target| (target.via.clone(), target.aim.clone())).collect();
        let expected = [
            (Via::Route(near, "eth0".into()), Some(route)),
            (Via::Tunnel(far), Some(tunnel)),
            // This node has no IPv6 address.
            (Via::Tunnel(far), None),
            (Via::Nowhere("no route".into()), None),
            (Via::Network, None),
        ];
        assert_eq!(found, expected);
        let without = targets(&plan, None, &[own]);
        assert!(matches!(without[1].via, Via::Nowhere(_)) && without[0] == made[0]);
    }
}
