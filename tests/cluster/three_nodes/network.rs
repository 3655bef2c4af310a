//! The links of three nodes, their machines, and the cluster's API server.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::deployment::{IMAGE as BULKHEAD, create_manifests, daemon};
use super::End;
use crate::control_plane::{Cluster, Programs, SERVER, kubelet_token, within};
use crate::lab::netns::{Netns, Running};
use crate::lab::{Lab, Options, veth};
use crate::machine::{IMAGE, Machine, NodePrograms};

/// The host port of the pods `web-N`.
pub(super) const HOST_PORT: u16 = 8088;

/// The image of the DNS server.
pub(super) const DNSMASQ: &str = "bulkhead.test/dnsmasq:1";

/// A link of the router with its addresses there.
pub(super) struct Link {
    name: &'static str,
    mac: &'static str,
    router: [&'static str; 2],
}

const FAR: Link = Link { name: "far", mac: "02:00:00:00:00:01", router: ["172.18.0.1", "fd00:18::1"] };
const LAN: Link = Link { name: "lan", mac: "02:00:00:00:00:02", router: ["172.18.2.1", "fd00:18:2::1"] };

/// A node's link and addresses.
pub(super) type Place = (&'static Link, [&'static str; 2]);

/// The places of nodes 1 to 3. The API server runs on node-1.
const PLACES: [Place; 3] = [
    (&FAR, [SERVER, "fd00:18::100"]),
    (&LAN, ["172.18.2.12", "fd00:18:2::12"]),
    (&LAN, ["172.18.2.13", "fd00:18:2::13"]),
];

/// The place to which node-3 moves.
pub(super) const OTHER_PLACE: Place = (&FAR, ["172.18.0.77", "fd00:18::77"]);

/// The nodes with their control plane. Fields drop in this order, so that nothing loses its folder or its link early.
pub(super) struct Nodes {
    pub(super) machines: Vec<Machine>,
    _controllers: Running,
    pub(super) api: Cluster,
    pub(super) labs: [Lab; 3],
    router: Netns,
    places: [Place; 3],
}

/// Makes a namespace forward, with the strictest reverse path filter, which some distributions have.
fn forward(netns: &Netns) {
    netns.sysctl("net.ipv4.ip_forward", "1");
    netns.sysctl("net.ipv6.conf.all.forwarding", "1");
    netns.sysctl("net.ipv4.conf.all.rp_filter", "1");
}

fn router() -> Netns {
    let router = Netns::new("router");
    forward(&router);
    for Link { name, mac, router: addresses } in [&FAR, &LAN] {
        // A bridge without an address of its own takes one of its ports', and changes it when a card is plugged.
        router.ip(&format!("link add {name} address {mac} type bridge"));
        router.ip(&format!("link set {name} up"));
        give_addresses(&router, name, *addresses);
    }
    router
}

fn give_addresses(netns: &Netns, device: &str, [v4, v6]: [&str; 2]) {
    netns.ip(&format!("addr add {v4}/24 dev {device}"));
    netns.ip(&format!("addr add {v6}/64 dev {device} nodad"));
}

/// Plugs a node's card into a link, with addresses and a default route.
fn plug(router: &Netns, lab: &Lab, (link, addresses): Place) {
    let [v4, v6] = link.router;
    router.ip(&format!("link set to-{} master {}", lab.node_name(), link.name));
    lab.node.ip("addr flush dev card scope global");
    give_addresses(&lab.node, "card", addresses);
    lab.node.ip(&format!("route replace default via {v4} dev card"));
    lab.node.ip(&format!("-6 route replace default via {v6} dev card"));
}

/// A server outside the cluster, at port 8080 of the router. Its page is the client's address.
const WORLD: &str = "
import socket
s = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
while True:
    client, address = s.accept()
    client.recv(100)
    client.sendall(address[0].removeprefix('::ffff:').encode())
    client.close()
";

impl Nodes {
    /// Starts a server outside the cluster. Returns it with its addresses.
    pub(super) fn serve_world(&self) -> (Running, [SocketAddr; 2]) {
        let server = Running::start(&mut self.router.command("python3", &["-c", WORLD]));
        within("the server listens", || self.router.exec("ss -Htln").contains(":8080 "));
        (server, FAR.router.map(|address| (address.parse::<IpAddr>().unwrap(), 8080).into()))
    }

    /// Returns the router as a client outside the cluster.
    pub(super) fn outside(&self) -> End {
        let netns = PathBuf::from("/run/netns").join(self.router.name());
        let addresses = FAR.router.map(|address| address.parse().unwrap());
        End { name: "the outside".to_owned(), object: Value::Null, netns, addresses, ports: [0, 0] }
    }

    /// Makes the router send packets for these addresses to a node.
    pub(super) fn route_to(&self, at: usize, addresses: &[IpAddr]) {
        for (address, node) in addresses.iter().zip(self.addresses(at)) {
            let family = if address.is_ipv6() { "-6 " } else { "" };
            self.router.ip(&format!("{family}route replace {address} via {node}"));
        }
    }

    /// Returns a node's addresses, of IPv4 and IPv6.
    pub(super) fn addresses(&self, at: usize) -> [&'static str; 2] {
        self.places[at].1
    }

    /// Starts three nodes and their control plane, and waits until the nodes have podCIDRs. No vswitch runs yet.
    pub(super) fn start(programs: Programs, node_programs: &NodePrograms) -> Self {
        let router = router();
        let labs = [1, 2, 3].map(|node| Lab::with(Options { node, ..Options::default() }));
        for (lab, place) in labs.iter().zip(PLACES) {
            forward(&lab.node);
            veth(&router, &format!("to-{}", lab.node_name()), &lab.node, "card", 1500);
            plug(&router, lab, place);
            // A kubelet 1.20 first waits for credentials from a cloud's metadata service. This route makes that fail at once.
            lab.node.ip("route add unreachable 169.254.169.254");
        }
        let api = Cluster::start_with(programs, &labs[0].node, &labs[0].path(""), true);
        create_manifests(&api);
        api.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        let controllers = api.start_controllers(&labs[0].node);
        let machines = labs.iter().map(|lab| Machine::start(node_programs.clone(), lab)).collect();
        let mut nodes = Self { machines, _controllers: controllers, api, labs, router, places: PLACES };
        (0..3).for_each(|at| nodes.start_kubelet(at));
        std::thread::scope(|scope| {
            nodes.machines.iter().for_each(|machine| drop(scope.spawn(|| machine.import_bulkhead(BULKHEAD))));
        });
        let dnsmasq = [Path::new("/usr/sbin/dnsmasq"), Path::new("/usr/bin/dnsmasq")];
        let dnsmasq = dnsmasq.into_iter().find(|path| path.is_file()).unwrap();
        nodes.machines[1].import_linked(DNSMASQ, dnsmasq, "usr/sbin/dnsmasq");
        (0..3).for_each(|at| nodes.wait_for_blocks(at));
        nodes
    }

    fn start_kubelet(&mut self, at: usize) {
        let lab = &self.labs[at];
        let [token, config] = ["token", "conf"].map(|ending| lab.path(&format!("kubelet.{ending}")));
        fs::write(&token, kubelet_token(&lab.node_name())).unwrap();
        fs::write(&config, self.api.kubeconfig(&token)).unwrap();
        self.machines[at].addresses = self.places[at].1.join(",");
        self.machines[at].start_kubelet(&config);
    }

    fn object(&self, at: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.labs[at].node_name()}})
    }

    /// Waits until the node is registered and a controller has assigned it podCIDRs.
    fn wait_for_blocks(&self, at: usize) {
        let took = within("the node has podCIDRs", || self.blocks(at).len() == 2);
        println!("{} has {:?} after {took:?}", self.labs[at].node_name(), self.blocks(at));
    }

    /// Returns the node's podCIDRs. Empty if the server does not know the node.
    fn blocks(&self, at: usize) -> Vec<String> {
        let object = self.object(at);
        let blocks = if self.api.has(&object) { self.api.get(&object)["spec"]["podCIDRs"].take() } else { Value::Null };
        let blocks = blocks.as_array().into_iter().flatten();
        blocks.map(|block| block.as_str().unwrap().to_owned()).collect()
    }

    /// Starts the pods of `deploy/`, and waits until they are ready.
    pub(super) fn start_vswitches(&self) -> [End; 3] {
        let created = [0, 1, 2].map(|at| self.start_vswitch(at));
        created.map(|pod| self.ready(&pod))
    }

    fn start_vswitch(&self, at: usize) -> Value {
        let node = self.labs[at].node_name();
        self.api.create(&daemon(&node, "", &format!("bulkhead-{node}-1")))
    }

    /// Creates the pod `web-N` of a node, or `host-N` on the host's network.
    pub(super) fn create_pod(&self, at: usize, is_host: bool) -> Value {
        let (app, [http, echo]) = if is_host { ("host", [8080, 7007]) } else { ("web", [80, 7]) };
        let name = format!("{app}-{}", at + 1);
        let serve = format!(
            "mkdir /www; echo {name} > /www/index.html; nc -ll -p {echo} -e /bin/sh -c 'echo {name}; exec cat' & \
             exec httpd -f -p {http} -h /www"
        );
        let ports = if is_host { json!([]) } else { json!([{"containerPort": 80, "hostPort": HOST_PORT}]) };
        self.api.create(&json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": app, "name": name}},
            "spec": {"nodeName": self.labs[at].node_name(), "hostNetwork": is_host, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", serve], "ports": ports,
                    "readinessProbe": {"httpGet": {"port": http}, "periodSeconds": 1}}]}}))
    }

    /// Waits until the kubelet reports a pod ready: its container runs and answers the probe.
    pub(super) fn ready(&self, created: &Value) -> End {
        let (uid, mut object) = (&created["metadata"]["uid"], Value::Null);
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        let took = within(&format!("the pod {name} is ready"), || {
            object = self.api.get(created);
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            &object["metadata"]["uid"] == uid
                && conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True")
        });
        println!("{name} is ready after {took:?}");
        let node = object["spec"]["nodeName"].as_str().unwrap();
        let at = self.labs.iter().position(|lab| lab.node_name() == node).unwrap();
        let is_host = object["spec"]["hostNetwork"] == true;
        let netns = match is_host {
            true => PathBuf::from("/run/netns").join(self.labs[at].node.name()),
            false => self.machines[at].netns(&object),
        };
        let addresses = if is_host { self.object(at) } else { object.clone() };
        let addresses = match is_host {
            true => self.api.get(&addresses)["status"]["addresses"].take(),
            false => addresses["status"]["podIPs"].clone(),
        };
        let text = |entry: &Value| entry["ip"].as_str().or(entry["address"].as_str()).unwrap_or_default().to_owned();
        let addresses: Vec<IpAddr> =
            addresses.as_array().unwrap().iter().filter_map(|entry| text(entry).parse().ok()).collect();
        let addresses = addresses.try_into().unwrap_or_else(|all| panic!("{name} has {all:?}, not two addresses"));
        End { name, object, netns, addresses, ports: if is_host { [8080, 7007] } else { [80, 7] } }
    }

    /// Asserts that nodes on one link route to each other, and that the others use the tunnel.
    pub(super) fn check_modes(&self) {
        for at in 0..3 {
            for to in (0..3).filter(|&to| to != at) {
                let routes = ["-4", "-6"].map(|family| self.labs[at].node.ip(&format!("{family} route show proto 98")));
                for (block, routes) in self.blocks(to).iter().zip(&routes) {
                    let route = routes.lines().find(|line| line.starts_with(block.as_str()));
                    let route = route.unwrap_or_else(|| panic!("no {block} in {routes}"));
                    let is_direct = route.contains("dev card") && !route.contains("encap");
                    assert_eq!(is_direct, self.places[at].0.name == self.places[to].0.name, "{route}");
                }
            }
        }
    }

    /// Takes a node out of the cluster: its kubelet, its Node and its pods' objects. The other nodes lose their routes to it.
    pub(super) fn leave(&mut self, at: usize) {
        let blocks = self.blocks(at);
        self.machines[at].kill_kubelet();
        let node = self.labs[at].node_name();
        let (code, pods) = self.api.ask("GET", &format!("/api/v1/pods?fieldSelector=spec.nodeName={node}"), None);
        assert_eq!(code, 200);
        for pod in pods["items"].as_array().unwrap() {
            let mut pod = pod.clone();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            self.api.delete(&pod);
        }
        self.api.delete(&self.object(at));
        let has_route = |lab: &Lab| {
            let routes = ["-4", "-6"].map(|family| lab.node.ip(&format!("{family} route show proto 98"))).concat();
            blocks.iter().any(|block| routes.contains(block.as_str()))
        };
        let others = self.labs.iter().enumerate().filter(|&(other, _)| other != at).map(|(_, lab)| lab);
        let others: Vec<&Lab> = others.collect();
        println!(
            "forgotten after {:?}",
            within("the routes to it are gone", || !others.iter().any(|lab| has_route(lab)))
        );
    }

    /// Brings a node back into the cluster, at another place.
    pub(super) fn enter(&mut self, at: usize, place: Place) {
        self.places[at] = place;
        plug(&self.router, &self.labs[at], place);
        self.start_kubelet(at);
        self.wait_for_blocks(at);
        let vswitch = self.start_vswitch(at);
        self.ready(&vswitch);
    }
}
