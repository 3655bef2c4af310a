//! Builds the snapshot of a live node from its compiled tables, configured ports and open interfaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bulkhead_classifier::OriginId;
use bulkhead_control::pipeline::AuditTables;
use bulkhead_control::renderer::acl::{EnforcedAt, NodeTables};
use bulkhead_dataplane::{Link, NextHop, PortConfig, PortId, PortKind, Routes, Snapshot};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::RouteEntry;
use super::ids::Ids;
use super::next_hops::peers;
use super::remote_nodes::RemoteNode;
use bulkhead_answers::run;

/// A configured port, with its open interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortView {
    pub name: Arc<str>,
    pub kind: PortKind,
    /// MAC address of the interface's peer. `None` if it is learned.
    pub mac: Option<[u8; 6]>,
    /// MAC address and MTU of the open interface. `None` while the port is closed.
    pub link: Option<Link>,
    /// Whether the port's interface does not exist, so that no host has its pod's addresses.
    pub is_gone: bool,
    /// Whether it is the uplink on the host port's interface: see [`PortConfig::shares_host`].
    pub shares_host: bool,
}

/// The parts from which a snapshot is built.
pub(super) struct View<'a> {
    /// The compiled policy tables, and the node's pods with their addresses.
    pub tables: &'a NodeTables,
    /// Tables as if audited policies were enforced. `None` without such policies.
    pub audit: Option<&'a AuditTables>,
    /// The configured ports.
    pub ports: &'a [PortView],
    pub routes: &'a [RouteEntry],
    /// Pod networks of other nodes, with their nodes' addresses.
    pub remote_nodes: &'a [RemoteNode],
    /// The node's own pod networks, of whose addresses those that no pod has are unreachable.
    pub pod_networks: &'a [IpNet],
    /// Origins of rules whose denied packets are answered instead of dropped silently.
    pub refusing: Vec<OriginId>,
    /// Whether all pod traffic is denied. Pods' ports then have no table, and no port sends packets back to where they came from.
    pub denied: bool,
}

impl View<'_> {
    /// Builds the snapshot. `ids` numbers its ports.
    ///
    /// A configured port without a pod in the state has no addresses and no table: all packets from it are spoofed, and none are sent to
    /// it. A pod without an open interface is in the snapshot, so that packets to it are dropped for that reason and not sent to the
    /// uplink. It is gone if it has no port, or if its port's interface does not exist.
    ///
    /// # Errors
    /// If the parts contradict each other. [`run::check_addresses`] has excluded contradictions that a state can cause.
    pub(super) fn snapshot(&self, generation: u64, ids: &mut Ids) -> anyhow::Result<Snapshot> {
        let mut known: HashMap<Arc<str>, PortConfig> = HashMap::new();
        let mut names = Vec::new();
        for interface in self.tables.interfaces.iter() {
            let mut port = run::port_config(self.tables.enforced_at, interface)?;
            run::set_audit_tables(&mut port, self.tables, self.audit, &interface.attachment)?;
            port.is_gone = port.kind == PortKind::Pod;
            names.push(port.name.clone());
            known.insert(port.name.clone(), port);
        }
        for entry in self.ports {
            let port = known.entry(entry.name.clone()).or_insert_with(|| {
                names.push(entry.name.clone());
                closed(&entry.name, entry.kind)
            });
            port.mac = entry.mac.or(port.mac);
            port.link = entry.link;
            port.is_gone = entry.is_gone && port.kind == PortKind::Pod;
            port.shares_host = entry.shares_host;
        }
        if self.denied {
            for port in known.values_mut() {
                (port.hairpin, port.audit) = (None, None);
                if port.kind == PortKind::Pod {
                    // Without addresses, all packets from the pod are spoofed.
                    (port.egress, port.ingress) = (None, None);
                    (port.named_table, port.named_audit) = (None, None);
                    port.addresses.clear();
                }
            }
        }
        let numbered = ids.assign(&names);
        let ports = (0..)
            .zip(numbered)
            .map(|(at, name)| name.and_then(|name| known.remove(&name)).unwrap_or_else(|| unused(at)));
        let ports: Vec<PortConfig> = ports.collect();
        let routes = Routes::new(self.routes(&ports)?)?;
        let compiled = run::compiled_tables(self.tables, self.audit);
        Ok(Snapshot::new(generation, ports, compiled, routes)?.refusing(self.refusing.iter().copied()))
    }

    /// Returns the next hop of each network. Local ports' addresses take precedence, then configured routes, the node's own pod networks,
    /// other nodes' pod networks, and the uplink as default.
    fn routes(&self, ports: &[PortConfig]) -> anyhow::Result<BTreeMap<IpNet, NextHop>> {
        let mut routes = BTreeMap::new();
        let numbered = || (0u16..).map(PortId).zip(ports);
        for (id, port) in numbered() {
            routes.extend(port.addresses.iter().map(|&address| (IpNet::from(address), NextHop::from(id))));
        }
        let id_of = |name: &str| numbered().find(|(_, port)| *port.name == *name).map(|(id, _)| id);
        for route in self.routes {
            let port = id_of(&route.port);
            let port = port.ok_or_else(|| anyhow::anyhow!("the route {} leads to no port", route.prefix))?;
            let is_pod = ports.get(port.index()).is_some_and(|port| port.kind == PortKind::Pod);
            if is_pod && self.tables.enforced_at == EnforcedAt::Source {
                // Other ports' tables know the pod by its addresses.
                anyhow::bail!(
                    "the route {} leads to a pod's port, where nothing is judged with enforce: source",
                    route.prefix
                );
            }
            routes.entry(route.prefix).or_insert(NextHop::via(port, route.via));
        }
        let Some(uplink) = numbered().find(|(_, port)| port.kind == PortKind::Uplink).map(|(id, _)| id) else {
            return Ok(routes);
        };
        for &network in self.pod_networks {
            routes.entry(network.trunc()).or_insert(NextHop::unreachable(uplink));
        }
        // The tables have an uplink in any case. If none is configured, other nodes' pods are reached by the default route.
        let has_uplink = self.ports.iter().any(|port| port.kind == PortKind::Uplink);
        if ports.get(uplink.index()).is_some_and(|port| port.shares_host) {
            // The kernel's programs know the way to each node.
            for &network in self.remote_nodes.iter().flat_map(|node| &node.pod_networks) {
                routes.entry(network.trunc()).or_insert(uplink.into());
            }
            return Ok(routes);
        }
        for peer in peers(if has_uplink { self.remote_nodes } else { &[] }) {
            routes.entry(peer.prefix.trunc()).or_insert(NextHop::via(uplink, Some(peer.address)));
        }
        for default in [Ipv4Net::default().into(), Ipv6Net::default().into()] {
            routes.entry(default).or_insert(uplink.into());
        }
        Ok(routes)
    }
}

fn closed(name: &Arc<str>, kind: PortKind) -> PortConfig {
    PortConfig::new(name.clone(), kind)
}

/// Prefix of placeholders' names. No port's name has it.
const UNUSED: &str = "unused ";

/// Creates a placeholder for a number that no port has.
fn unused(at: usize) -> PortConfig {
    closed(&format!("{UNUSED}{at}").into(), PortKind::Pod)
}

/// Whether the name is a placeholder's.
pub(super) fn is_unused(name: &str) -> bool {
    name.starts_with(UNUSED)
}

/// Returns the name of a port's kind in answers: `pod`, `uplink` or `host`.
pub(crate) const fn kind_name(kind: PortKind) -> &'static str {
    match kind {
        PortKind::Pod => "pod",
        PortKind::Uplink => "uplink",
        PortKind::Host => "host",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use bulkhead_control::object::{Denied, IngressIsolation};
    use bulkhead_control::origin::{Direction, Origin};
    use bulkhead_control::pipeline::Pipeline;
    use bulkhead_control::processor::Scope;
    use bulkhead_control::source::{Strictness, load_text};

    use super::*;
    use crate::config::Config;

    fn tables(state: &str) -> Arc<NodeTables> {
        let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
        pipeline.resync(load_text("state", state, Strictness::Strict).unwrap().objects).unwrap();
        pipeline.node_tables("node-1").unwrap()
    }

    fn pod(name: &str, address: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        )
    }

    /// Returns the ports of a configuration, all open, and its routes.
    fn open(ports: &str) -> (Vec<PortView>, Vec<RouteEntry>) {
        let text = format!("node: n\nstate: {{paths: [s]}}\n{ports}\n");
        let config = Config::parse("c", &text, Path::new("")).unwrap();
        let link = Some(Link { mac: [2, 0, 0, 0, 0, 1], mtu: 1500 });
        let view = |entry: &crate::config::PortEntry| PortView {
            name: entry.name.clone(),
            kind: entry.kind,
            mac: entry.mac,
            link,
            is_gone: false,
            shares_host: false,
        };
        (config.ports.iter().map(view).collect(), config.routes)
    }

    fn snapshot(state: &str, config: &str, ids: &mut Ids) -> Snapshot {
        let (ports, routes) = open(config);
        let (pod_networks, addresses) = (vec!["10.2.0.0/16".parse().unwrap()], vec!["192.0.2.2".parse().unwrap()]);
        let remote_nodes = [RemoteNode { name: "node-2".into(), addresses, pod_networks }];
        let view = View {
            tables: &tables(state),
            audit: None,
            ports: &ports,
            routes: &routes,
            remote_nodes: &remote_nodes,
            pod_networks: &["10.1.0.0/16".parse().unwrap()],
            refusing: vec![],
            denied: false,
        };
        view.snapshot(1, ids).unwrap()
    }

    #[test]
    fn a_port_without_a_pod_in_the_state_is_closed_and_a_pod_without_a_port_has_no_link() {
        let config = "ports: [{kind: pod, pod: x/a, interface: a}, {kind: pod, pod: x/later, interface: l}]";
        let snapshot = snapshot(&(pod("a", "10.1.0.1") + &pod("b", "10.1.0.2")), config, &mut Ids::default());
        let port = |name: &str| snapshot.port(snapshot.port_named(name).unwrap()).unwrap();
        assert!(port("x/a").link.is_some() && port("x/a").egress.is_some());
        assert!(port("x/later").link.is_some() && port("x/later").egress.is_none());
        assert!(port("x/later").addresses.is_empty());
        assert!(port("x/b").link.is_none());
        let to = |address: &str| snapshot.routes().next_hop(address.parse().unwrap());
        assert_eq!(to("10.1.0.2"), Some(snapshot.port_named("x/b").unwrap().into()));
    }

    #[test]
    fn configured_routes_come_before_the_nodes_and_those_before_the_default() {
        let config = "ports: [{kind: uplink, interface: u}, {kind: pod, pod: x/a, interface: a}]\n\
            routes: [{prefix: 0.0.0.0/0, via: 192.0.2.1}, {prefix: 10.1.0.0/16, port: x/a}]";
        let state = pod("a", "10.1.0.1");
        let routed = snapshot(&state, config, &mut Ids::default());
        let gateway = |snapshot: &Snapshot, address: &str| {
            snapshot.routes().next_hop(address.parse().unwrap()).unwrap().gateway.map(|gateway| gateway.to_string())
        };
        assert_eq!(gateway(&routed, "198.51.100.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(gateway(&routed, "10.2.3.4").as_deref(), Some("192.0.2.2"));
        assert_eq!(gateway(&routed, "fd00::1"), None);
        assert_eq!(routed.routes().lookup("10.1.9.9".parse().unwrap()), routed.port_named("x/a"));
        let bare = "ports: [{kind: uplink, interface: u}]\nroutes: [{prefix: 10.2.0.0/16, via: 192.0.2.9}]";
        assert_eq!(gateway(&snapshot(&state, bare, &mut Ids::default()), "10.2.0.1").as_deref(), Some("192.0.2.9"));
    }

    #[test]
    fn an_uplink_on_the_host_ports_interface_leads_to_the_pods_of_other_nodes_alone() {
        let state = pod("a", "10.1.0.1");
        let config = "ports: [{kind: host, interface: h}, {kind: pod, pod: x/a, interface: a}]\n\
            routes: [{prefix: 0.0.0.0/0, port: host}]";
        let (mut ports, routes) = open(config);
        let tables = tables(&state);
        let remote_nodes = [RemoteNode {
            name: "node-2".into(),
            addresses: vec!["192.0.2.2".parse().unwrap()],
            pod_networks: vec!["10.2.0.0/16".parse().unwrap()],
        }];
        let mac = Some([2, 0, 0, 0, 0, 2]);
        let uplink =
            PortView { name: "uplink".into(), kind: PortKind::Uplink, mac, shares_host: true, ..ports[0].clone() };
        ports.push(uplink);
        let view = View {
            tables: &tables,
            audit: None,
            ports: &ports,
            routes: &routes,
            remote_nodes: &remote_nodes,
            pod_networks: &["10.1.0.0/16".parse().unwrap()],
            refusing: vec![],
            denied: false,
        };
        let snapshot = view.snapshot(1, &mut Ids::default()).unwrap();
        let to = |address: &str| snapshot.routes().next_hop(address.parse().unwrap());
        let [uplink, host] = ["uplink", "host"].map(|name| snapshot.port_named(name).unwrap());
        assert_eq!(snapshot.shared_uplink(), Some(uplink));
        assert_eq!([to("10.2.3.4"), to("8.8.8.8")], [Some(uplink.into()), Some(host.into())]);
        assert_eq!(to("10.1.9.9"), Some(NextHop::unreachable(uplink)));
        assert_eq!(to("fd00::1"), None, "the world is not reached by programs that know pods alone");
    }

    #[test]
    fn at_the_source_ports_have_tables_for_what_comes_in_and_no_route_leads_to_a_pod() {
        let mut pipeline = Pipeline::at_source("node-1".into(), IngressIsolation::ClusterDefault);
        let state = pod("a", "10.1.0.1") + &pod("b", "10.1.0.2");
        pipeline.resync(load_text("state", &state, Strictness::Strict).unwrap().objects).unwrap();
        let tables = pipeline.node_tables("node-1").unwrap();
        let (ports, routes) = open("ports: [{kind: uplink, interface: u}, {kind: pod, pod: x/a, interface: a}]");
        let mut view = View {
            tables: &tables,
            audit: None,
            ports: &ports,
            routes: &routes,
            remote_nodes: &[],
            pod_networks: &[],
            refusing: vec![],
            denied: false,
        };
        let snapshot = view.snapshot(1, &mut Ids::default()).unwrap();
        assert!(snapshot.ports().iter().all(|port| port.egress.is_none() && port.ingress.is_some()));
        let to_pod = [RouteEntry { prefix: "10.9.0.0/16".parse().unwrap(), via: None, port: "x/a".into() }];
        view.routes = &to_pod;
        let error = view.snapshot(2, &mut Ids::default()).unwrap_err().to_string();
        assert!(error.contains("10.9.0.0/16 leads to a pod's port"), "{error}");
        view.routes = &routes;
        view.denied = true;
        let denied = view.snapshot(3, &mut Ids::default()).unwrap();
        let pods = || denied.ports().iter().filter(|port| port.kind == PortKind::Pod);
        assert!(pods().count() == 2 && pods().all(|port| port.table().is_none() && port.addresses.is_empty()));
    }

    #[test]
    fn without_an_uplink_the_pods_of_other_nodes_are_reached_as_all_else_is() {
        let config = "ports: [{kind: host, interface: h}]\nroutes: [{prefix: 0.0.0.0/0, port: host}]";
        let snapshot = snapshot(&pod("a", "10.1.0.1"), config, &mut Ids::default());
        assert_eq!(snapshot.routes().lookup("10.2.3.4".parse().unwrap()), snapshot.port_named("host"));
    }

    #[test]
    fn without_a_state_that_makes_sense_no_pod_has_a_table_or_an_address() {
        let (ports, routes) = open("ports: [{kind: pod, pod: x/a, interface: a}, {kind: uplink, interface: u}]");
        let tables = tables(&pod("a", "10.1.0.1"));
        let view = View {
            tables: &tables,
            audit: None,
            ports: &ports,
            routes: &routes,
            remote_nodes: &[],
            pod_networks: &[],
            refusing: vec![],
            denied: true,
        };
        let snapshot = view.snapshot(1, &mut Ids::default()).unwrap();
        let pod = snapshot.port(snapshot.port_named("x/a").unwrap()).unwrap();
        assert!(pod.link.is_some() && pod.egress.is_none() && pod.addresses.is_empty());
        assert!(snapshot.ports().iter().all(|port| port.hairpin.is_none()));
        for node in ["uplink", "host"] {
            assert!(snapshot.port(snapshot.port_named(node).unwrap()).unwrap().egress.is_some(), "{node}");
        }
    }

    #[test]
    fn the_snapshot_refuses_what_the_namespaces_of_the_denying_policies_want_refused() {
        let namespace = |name: &str, says: &str| {
            let annotations =
                if says.is_empty() { String::new() } else { format!(", annotations: {{bulkhead.dev/denied: {says}}}") };
            format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}{annotations}}}\n")
        };
        let policy = |name: &str, types: &str| {
            format!(
                "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: {name}}}\n\
                 spec: {{podSelector: {{}}, policyTypes: [{types}]}}\n"
            )
        };
        let mut state = String::new();
        for (at, (name, says)) in (1..).zip([("loud", "refuse"), ("silent", "drop"), ("plain", "")]) {
            state += &namespace(name, says);
            state += &policy(name, "Ingress, Egress");
            state += &pod("a", &format!("10.1.0.{at}")).replace("namespace: x", &format!("namespace: {name}"));
        }
        let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
        pipeline.resync(load_text("state", &state, Strictness::Strict).unwrap().objects).unwrap();
        let tables = pipeline.node_tables("node-1").unwrap();
        let (ports, routes) = open("ports: [{kind: uplink, interface: u}]");
        for (default, refusing) in [(Denied::Drop, vec!["loud"]), (Denied::Refuse, vec!["loud", "plain"])] {
            let refusing_origins = pipeline.refusing_origins(default);
            let view = View {
                tables: &tables,
                audit: None,
                ports: &ports,
                routes: &routes,
                remote_nodes: &[],
                pod_networks: &[],
                refusing: refusing_origins,
                denied: false,
            };
            let snapshot = view.snapshot(1, &mut Ids::default()).unwrap();
            // Every rule that denies, in both directions, and none that allows.
            let rules = || snapshot.tables().iter().flat_map(|table| table.rules().iter());
            let mut seen = BTreeSet::new();
            for rule in rules().filter(|rule| snapshot.refuses(rule.origin)) {
                let Some(Origin::Isolation { policies, direction, .. }) = pipeline.origins().get(rule.origin).cloned()
                else {
                    panic!("{rule:?}")
                };
                seen.insert((policies[0].namespace.to_string(), direction));
            }
            let both = [Direction::Ingress, Direction::Egress];
            let expected = refusing.iter().flat_map(|name| both.map(|direction| (name.to_string(), direction)));
            assert_eq!(seen, expected.collect());
        }
    }

    #[test]
    fn ports_keep_their_numbers_when_pods_come_and_go() {
        let (mut ids, config) = (Ids::default(), "ports: [{kind: uplink, interface: u}]");
        let before = snapshot(&(pod("a", "10.1.0.1") + &pod("b", "10.1.0.2")), config, &mut ids);
        let after = snapshot(&(pod("b", "10.1.0.2") + &pod("c", "10.1.0.3")), config, &mut ids);
        for name in ["x/b", "uplink", "host"] {
            assert_eq!(before.port_named(name), after.port_named(name), "{name}");
        }
        let gone = after.port(before.port_named("x/a").unwrap()).unwrap();
        assert!(gone.addresses.is_empty() && gone.egress.is_none() && gone.link.is_none());
    }
}
