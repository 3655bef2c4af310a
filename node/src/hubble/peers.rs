//! The cluster's nodes as Hubble Relay's peers, with the address of each.
//!
//! ```text
//!   policy thread --Nodes--> [ Peers ] --differences to what the relay knows--> the relay's notification stream
//! ```
//!
//! Like Cilium's agent, the server assumes that all nodes use the same port, all with TLS or all without. A relay therefore needs to query
//! only one of them. A server at a Unix socket or a loopback address names only its own node, because others cannot reach it.
//!
//! For each relay, the server stores the last sent nodes and sends only differences. A slow relay thus misses no node, and its backlog
//! does not grow while nodes come and go.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream;
use tokio::sync::watch;

use crate::state::Nodes;
use bulkhead_observe::hubble::observer;
use bulkhead_observe::hubble::peer::{ChangeNotification, ChangeType, Tls};

/// The domain of the names in nodes' certificates, which are `NODE.CLUSTER.hubble-grpc.cilium.io`.
const SERVERS: &str = "hubble-grpc.cilium.io";

/// The address at which the Hubble server listens.
pub(super) enum Address {
    Unix(String),
    Tcp(SocketAddr),
}

impl Address {
    /// Whether other machines can reach a server that listens like this one.
    fn is_of_others(&self) -> bool {
        matches!(self, Self::Tcp(listen) if !listen.ip().is_loopback())
    }

    /// Returns `ADDRESS:PORT` of a node: the first of its addresses whose family the server listens to. Empty if no address fits.
    fn of(&self, addresses: &[IpAddr]) -> String {
        let Self::Tcp(listen) = self else { return String::new() };
        let is_any = listen.ip().is_unspecified() && listen.is_ipv6();
        let fits = |address: &&IpAddr| is_any || address.is_ipv4() == listen.is_ipv4();
        addresses
            .iter()
            .find(fits)
            .map(|&address| SocketAddr::new(address, listen.port()).to_string())
            .unwrap_or_default()
    }

    /// Returns this node's address for clients. The state has `addresses` of the node; a client connected to `called`.
    fn own(&self, addresses: &[IpAddr], called: Option<IpAddr>) -> String {
        match self {
            Self::Unix(path) => path.clone(),
            Self::Tcp(listen) if !listen.ip().is_unspecified() => listen.to_string(),
            Self::Tcp(listen) => {
                let own = self.of(addresses);
                // Without an address in the state, the address to which the client connected serves.
                let called = || called.map(|called| SocketAddr::new(called.to_canonical(), listen.port()).to_string());
                if own.is_empty() { called().unwrap_or_default() } else { own }
            }
        }
    }
}

/// The nodes of the state and the settings from which their peer addresses follow.
pub(super) struct Peers {
    node: Arc<str>,
    address: Address,
    /// The cluster's name in certificates. `None` without TLS.
    cluster: Option<Arc<str>>,
    nodes: watch::Receiver<Arc<Nodes>>,
}

/// The address of each node, by the node's name. Empty text if the node has no suitable address.
type Addresses = BTreeMap<Arc<str>, String>;

impl Peers {
    /// Creates the peers of the node named `node`. `cluster` is the cluster's name in certificates, or `None` without TLS.
    pub(super) fn new(
        node: &Arc<str>,
        address: Address,
        cluster: Option<&str>,
        nodes: watch::Receiver<Arc<Nodes>>,
    ) -> Self {
        Self { node: Arc::clone(node), address, cluster: cluster.map(Into::into), nodes }
    }

    /// Returns this node's address for a client that connected to `called`. Empty if unknown.
    pub(super) fn own_address(&self, called: Option<IpAddr>) -> String {
        let nodes = self.nodes.borrow();
        self.address.own(nodes.get(&self.node).map_or(&[], Vec::as_slice), called)
    }

    /// Returns the name by which clients verify this node's certificate. `None` without TLS.
    pub(super) fn own_tls(&self) -> Option<observer::Tls> {
        self.server_name(&self.node).map(|server_name| observer::Tls { enabled: true, server_name })
    }

    /// Streams all present nodes, this node first, and then each change.
    pub(super) fn changes(self: &Arc<Self>, called: Option<IpAddr>) -> impl Stream<Item = ChangeNotification> + use<> {
        let told = Told {
            peers: Arc::clone(self),
            called,
            nodes: self.nodes.clone(),
            told: Addresses::new(),
            waiting: VecDeque::new(),
        };
        stream::unfold(told, |mut told| async move {
            let next = told.next().await;
            Some((next, told))
        })
    }

    fn addresses(&self, nodes: &Nodes, called: Option<IpAddr>) -> Addresses {
        let others = nodes.iter().filter(|(name, _)| self.address.is_of_others() && **name != self.node);
        let mut addresses: Addresses =
            others.map(|(name, addresses)| (Arc::clone(name), self.address.of(addresses))).collect();
        let own = nodes.get(&self.node).map_or(&[][..], Vec::as_slice);
        addresses.insert(Arc::clone(&self.node), self.address.own(own, called));
        addresses
    }

    /// Returns the name in a node's certificate, or `None` without TLS. Dots of the node's name become `-`, so that one wildcard
    /// certificate (`*.default.hubble-grpc.cilium.io`) covers all nodes.
    fn server_name(&self, node: &str) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        Some(format!("{}.{cluster}.{SERVERS}", node.replace('.', "-")))
    }

    fn notification(&self, node: &str, address: &str, change: ChangeType) -> ChangeNotification {
        ChangeNotification {
            name: node.to_owned(),
            address: address.to_owned(),
            r#type: change as i32,
            tls: self.server_name(node).map(|server_name| Tls { server_name }),
        }
    }
}

/// The notification stream of one relay, with the nodes that the relay knows.
struct Told {
    peers: Arc<Peers>,
    called: Option<IpAddr>,
    nodes: watch::Receiver<Arc<Nodes>>,
    told: Addresses,
    /// Changes that are not sent to the relay yet, in order.
    waiting: VecDeque<ChangeNotification>,
}

impl Told {
    /// Returns the next notification; waits without a timeout.
    async fn next(&mut self) -> ChangeNotification {
        loop {
            if let Some(next) = self.waiting.pop_front() {
                return next;
            }
            if !self.told.is_empty() && self.nodes.changed().await.is_err() {
                // The policy thread has died; the main thread handles that.
                std::future::pending::<()>().await;
            }
            self.look();
        }
    }

    fn look(&mut self) {
        let nodes = Arc::clone(&self.nodes.borrow_and_update());
        let now = self.peers.addresses(&nodes, self.called);
        let gone = self.told.iter().filter(|(node, _)| !now.contains_key(*node));
        let gone = gone.map(|(node, address)| self.peers.notification(node, address, ChangeType::PeerDeleted));
        let come = now.iter().filter_map(|(node, address)| {
            let change = match self.told.get(node) {
                None => ChangeType::PeerAdded,
                Some(before) if before != address => ChangeType::PeerUpdated,
                Some(_) => return None,
            };
            Some(self.peers.notification(node, address, change))
        });
        let mut changes: Vec<_> = gone.chain(come).collect();
        changes.sort_by_key(|change| *change.name != *self.peers.node);
        self.waiting.extend(changes);
        self.told = now;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn nodes(written: &[(&str, &str)]) -> Arc<Nodes> {
        let addresses = |text: &str| text.split_whitespace().map(|address| address.parse().unwrap()).collect();
        Arc::new(written.iter().map(|(name, text)| ((*name).into(), addresses(text))).collect())
    }

    fn peers(listen: &str, cluster: Option<&str>, known: &[(&str, &str)]) -> (watch::Sender<Arc<Nodes>>, Arc<Peers>) {
        let address = match listen.strip_prefix("unix:") {
            Some(_) => Address::Unix(listen.to_owned()),
            None => Address::Tcp(listen.parse().unwrap()),
        };
        let (tell, told) = watch::channel(nodes(known));
        (tell, Arc::new(Peers::new(&"b".into(), address, cluster, told)))
    }

    /// Returns the notifications that are ready, as text.
    fn told(changes: &mut (impl Stream<Item = ChangeNotification> + Unpin)) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(Some(change)) = changes.next().now_or_never() {
            let kind = ["?", "+", "-", "="][usize::try_from(change.r#type).unwrap()];
            let tls = change.tls.map(|tls| format!(" {}", tls.server_name)).unwrap_or_default();
            told.push(format!("{kind}{} {}{tls}", change.name, change.address));
        }
        told
    }

    #[test]
    fn the_address_that_is_told_is_one_that_others_reach() {
        let own = |listen: &str, known: &str, called: Option<&str>| {
            let known = [("b", known)];
            let (_tell, peers) = peers(listen, None, if known[0].1.is_empty() { &[] } else { &known });
            peers.own_address(called.map(|address| address.parse().unwrap()))
        };
        assert_eq!(own("0.0.0.0:4244", "2001:db8::1 192.0.2.1", None), "192.0.2.1:4244");
        assert_eq!(own("[::]:4244", "192.0.2.1 2001:db8::1", None), "192.0.2.1:4244");
        assert_eq!(own("[::]:4244", "2001:db8::1", None), "[2001:db8::1]:4244");
        assert_eq!(own("127.0.0.1:4244", "192.0.2.1", None), "127.0.0.1:4244");
        assert_eq!(own("192.0.2.9:4244", "192.0.2.1", Some("192.0.2.9")), "192.0.2.9:4244");
        // The state has no suitable address of the node.
        assert_eq!(own("[::]:4244", "", Some("::ffff:192.0.2.7")), "192.0.2.7:4244");
        assert_eq!(own("0.0.0.0:4244", "2001:db8::1", Some("192.0.2.7")), "192.0.2.7:4244");
        assert_eq!(own("unix:///run/x.sock", "192.0.2.1", None), "unix:///run/x.sock");
    }

    #[test]
    fn a_relay_is_told_of_all_nodes_and_then_of_what_changes() {
        let (tell, peers) = peers("0.0.0.0:4244", None, &[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "")]);
        let called = Some("192.0.2.7".parse().unwrap());
        let mut first = Box::pin(peers.changes(called));
        assert_eq!(told(&mut first), ["+b 10.0.0.2:4244", "+a 10.0.0.1:4244", "+c "]);
        assert_eq!(told(&mut first), [""; 0]);
        tell.send_replace(nodes(&[("a", "10.0.0.9"), ("b", "10.0.0.2"), ("d", "10.0.0.4")]));
        assert_eq!(told(&mut first), ["-c ", "=a 10.0.0.9:4244", "+d 10.0.0.4:4244"]);
        // A relay that connects later receives the present nodes.
        let mut second = Box::pin(peers.changes(called));
        assert_eq!(told(&mut second), ["+b 10.0.0.2:4244", "+a 10.0.0.9:4244", "+d 10.0.0.4:4244"]);
        // A node that came and went between two reads is not reported, and this node is never removed.
        tell.send_replace(nodes(&[("e", "10.0.0.5")]));
        tell.send_replace(nodes(&[("a", "10.0.0.9")]));
        for changes in [&mut first, &mut second] {
            assert_eq!(told(changes), ["=b 192.0.2.7:4244", "-d 10.0.0.4:4244"]);
        }
        drop(tell);
        assert_eq!(told(&mut first), [""; 0], "it waits on");
    }

    #[test]
    fn with_tls_the_name_of_each_nodes_certificate_is_told() {
        let (_tell, peers) = peers("[::]:4244", Some("default"), &[("a.example", "2001:db8::1"), ("b", "10.0.0.2")]);
        let expected = [
            "+b 10.0.0.2:4244 b.default.hubble-grpc.cilium.io",
            "+a.example [2001:db8::1]:4244 a-example.default.hubble-grpc.cilium.io",
        ];
        assert_eq!(told(&mut Box::pin(peers.changes(None))), expected);
        let tls = peers.own_tls().unwrap();
        assert_eq!((tls.enabled, &*tls.server_name), (true, "b.default.hubble-grpc.cilium.io"));
    }

    #[test]
    fn the_certificates_are_those_of_the_cluster_that_is_named() {
        let (_tell, peers) = peers("[::]:4244", Some("east-1"), &[("a.example", "10.0.0.1"), ("b", "10.0.0.2")]);
        let expected = [
            "+b 10.0.0.2:4244 b.east-1.hubble-grpc.cilium.io",
            "+a.example 10.0.0.1:4244 a-example.east-1.hubble-grpc.cilium.io",
        ];
        assert_eq!(told(&mut Box::pin(peers.changes(None))), expected);
        assert_eq!(peers.own_tls().unwrap().server_name, "b.east-1.hubble-grpc.cilium.io");
    }

    #[test]
    fn where_nobody_else_reaches_the_server_it_names_itself_alone() {
        for listen in ["unix:///run/x.sock", "127.0.0.1:4244", "[::1]:4244"] {
            let (_tell, peers) = peers(listen, None, &[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
            assert_eq!(told(&mut Box::pin(peers.changes(None))), [format!("+b {listen}")]);
        }
    }
}
