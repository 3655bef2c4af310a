//! The gRPC methods of the Hubble server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use hyper::body::Bytes;
use prost::Message;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::grpc::{Answers, Code, Status};
use super::observe::{Observe, Observed};
use super::peers::Peers;
use crate::observer::Observer;
use crate::stream::{self as watched, Hub};
use bulkhead_observe::admin::Failure;
use bulkhead_observe::hubble::Timestamp;
use bulkhead_observe::hubble::fields;
use bulkhead_observe::hubble::flow::LostEvent;
use bulkhead_observe::hubble::health::{self, HealthCheckRequest, HealthCheckResponse, ServingStatus};
use bulkhead_observe::hubble::mask::Mask;
use bulkhead_observe::hubble::observer::{
    self, GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, Namespace, Node, NodeState,
    ResponseType, ServerStatusResponse,
};
use bulkhead_observe::hubble::peer;

/// Maximum number of concurrent `GetFlows` and `GetNamespaces` calls over all connections. A relay makes one call per client.
const STREAMS: usize = 32;

/// A gRPC method of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    GetFlows,
    ServerStatus,
    GetNodes,
    GetNamespaces,
    /// A method for events of Cilium's agent, with its name. Always answered as unimplemented.
    Events(&'static str),
    Notify,
    CheckHealth,
    WatchHealth,
}

impl Method {
    /// Returns the method of a path such as `/observer.Observer/GetFlows`. `None` if the server has no such method.
    pub(super) fn of(path: &str) -> Option<Self> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        Some(match (service, method) {
            (observer::NAME, "GetFlows") => Self::GetFlows,
            (observer::NAME, "ServerStatus") => Self::ServerStatus,
            (observer::NAME, "GetNodes") => Self::GetNodes,
            (observer::NAME, "GetNamespaces") => Self::GetNamespaces,
            (observer::NAME, "GetAgentEvents") => Self::Events("GetAgentEvents"),
            (observer::NAME, "GetDebugEvents") => Self::Events("GetDebugEvents"),
            (peer::NAME, "Notify") => Self::Notify,
            (health::NAME, "Check") => Self::CheckHealth,
            (health::NAME, "Watch") => Self::WatchHealth,
            _ => return None,
        })
    }

    /// Whether the call may last until the client ends it.
    pub(super) const fn lasts(self) -> bool {
        matches!(self, Self::GetFlows | Self::Notify | Self::WatchHealth)
    }
}

/// State shared by all connections: the data sources and the limit on concurrent streams.
pub(super) struct Service {
    observer: Observer,
    hub: Hub,
    peers: Arc<Peers>,
    streams: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(observer: Observer, hub: Hub, peers: Peers) -> Self {
        Self { observer, hub, peers: Arc::new(peers), streams: Arc::new(Semaphore::new(STREAMS)) }
    }

    /// Answers an encoded request of a client that connected to `called`.
    ///
    /// # Errors
    /// If the request is invalid, the method is not implemented, or too many clients watch.
    pub(super) async fn answer(
        &self,
        method: Method,
        request: &[u8],
        called: Option<IpAddr>,
    ) -> Result<Answers, Status> {
        match method {
            Method::GetFlows => self.flows(request).await,
            Method::ServerStatus => Ok(one(&self.status(called))),
            Method::GetNodes => Ok(one(&GetNodesResponse { nodes: vec![self.node(called)] })),
            Method::GetNamespaces => Ok(one(&self.namespaces().await?)),
            Method::Events(name) => {
                let told = "the vswitch has no such events; see `bulkhead status` and the log";
                Err(Status::new(Code::Unimplemented, format!("{name}: {told}")))
            }
            Method::Notify => {
                let changes = self.peers.changes(called);
                Ok(Box::pin(changes.map(|change| Ok(change.encode_to_vec().into()))))
            }
            Method::CheckHealth => match serving(request)? {
                ServingStatus::Serving => Ok(one(&HealthCheckResponse { status: ServingStatus::Serving as i32 })),
                _ => Err(Status::new(Code::NotFound, "no such service")),
            },
            Method::WatchHealth => Ok(lasting(&HealthCheckResponse { status: serving(request)? as i32 })),
        }
    }

    async fn flows(&self, request: &[u8]) -> Result<Answers, Status> {
        fields::GET_FLOWS.check(request).map_err(invalid)?;
        let request: GetFlowsRequest = decode(request)?;
        let observe = Observe::new(&request).map_err(invalid)?;
        let mask = request.field_mask.filter(|mask| !mask.paths.is_empty());
        let mask = mask.map(|mask| Mask::new(&mask.paths)).transpose().map_err(invalid)?;
        let permit = self.permit()?;
        let received = self.hub.observe(observe).await.map_err(unavailable)?;
        Ok(Box::pin(Flows { received, node: Arc::clone(self.observer.node()), mask, _permit: permit }))
    }

    /// Takes one of the [`STREAMS`] permits. An error if none is free.
    fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let told = || format!("{STREAMS} clients watch already; end one of them");
        let busy = |_| Status::new(Code::ResourceExhausted, told());
        Arc::clone(&self.streams).try_acquire_owned().map_err(busy)
    }

    fn status(&self, called: Option<IpAddr>) -> ServerStatusResponse {
        let (counts, node) = (self.observer.stream(), self.node(called));
        ServerStatusResponse {
            num_flows: node.num_flows,
            max_flows: node.max_flows,
            seen_flows: node.seen_flows,
            uptime_ns: node.uptime_ns,
            num_connected_nodes: Some(1),
            num_unavailable_nodes: Some(0),
            version: node.version,
            flows_rate: f64::from_bits(counts.rate.load(Ordering::Relaxed)),
        }
    }

    fn node(&self, called: Option<IpAddr>) -> Node {
        let counts = self.observer.stream();
        Node {
            name: self.observer.node().to_string(),
            version: version(),
            address: self.peers.own_address(called),
            state: NodeState::Connected as i32,
            tls: self.peers.own_tls(),
            uptime_ns: u64::try_from(self.observer.uptime().as_nanos()).unwrap_or(u64::MAX),
            num_flows: counts.remembered.load(Ordering::Relaxed),
            max_flows: watched::REMEMBERED as u64,
            seen_flows: counts.seen.load(Ordering::Relaxed),
        }
    }

    /// Returns the namespaces of all past flows in memory.
    async fn namespaces(&self) -> Result<GetNamespacesResponse, Status> {
        // Costs as much as a stream of all past flows.
        let _permit = self.permit()?;
        let mut received = self.hub.observe(Observe::default()).await.map_err(unavailable)?;
        let mut names = BTreeSet::new();
        while let Some(observed) = received.recv().await {
            if let Observed::Flow(flow) = observed {
                let ends = [&flow.source, &flow.destination].into_iter().flatten();
                names.extend(ends.map(|end| end.namespace.clone()).filter(|name| !name.is_empty()));
            }
        }
        let namespace = |namespace| Namespace { cluster: String::new(), namespace };
        Ok(GetNamespacesResponse { namespaces: names.into_iter().map(namespace).collect() })
    }
}

/// A stream of flows to a client. Dropping it ends the subscription and frees its queue and permit.
struct Flows {
    received: Receiver<Observed>,
    node: Arc<str>,
    mask: Option<Mask>,
    _permit: OwnedSemaphorePermit,
}

impl Stream for Flows {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let observed = self.received.poll_recv(context);
        observed.map(|observed| Some(Ok(response(observed?, &self.node, self.mask.as_ref()))))
    }
}

/// A response with an encoded flow. On the wire it equals [`GetFlowsResponse`].
#[derive(Clone, PartialEq, Eq, Message)]
struct EncodedFlow {
    #[prost(bytes = "vec", optional, tag = "1")]
    flow: Option<Vec<u8>>,
    #[prost(string, tag = "1000")]
    node_name: String,
    #[prost(message, optional, tag = "1001")]
    time: Option<Timestamp>,
}

fn response(observed: Observed, node: &str, mask: Option<&Mask>) -> Bytes {
    let node_name = node.to_owned();
    match observed {
        Observed::Flow(flow) => {
            let (time, encoded) = (flow.time, flow.encode_to_vec());
            let flow = Some(match mask {
                Some(mask) => mask.apply(&encoded),
                None => encoded,
            });
            EncodedFlow { flow, node_name, time }.encode_to_vec().into()
        }
        Observed::Lost(source, num_events_lost) => {
            let lost = LostEvent { source: source as i32, num_events_lost };
            let time = Some(Timestamp::from_nanoseconds(crate::clock::now()));
            let response = Some(ResponseType::LostEvents(lost));
            GetFlowsResponse { response, node_name, time }.encode_to_vec().into()
        }
    }
}

/// Answers a health check: whether the named service exists here.
fn serving(request: &[u8]) -> Result<ServingStatus, Status> {
    let asked: HealthCheckRequest = decode(request)?;
    // An empty name asks about the server as a whole.
    let is_known = ["", health::OBSERVER, observer::NAME, peer::NAME, health::NAME].contains(&&*asked.service);
    Ok(if is_known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown })
}

fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes).map_err(invalid)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: impl ToString) -> Status {
    Status::new(Code::InvalidArgument, error.to_string())
}

fn unavailable(failure: Failure) -> Status {
    Status::new(Code::Unavailable, failure.message)
}

fn one(message: &impl Message) -> Answers {
    Box::pin(stream::iter([Ok(message.encode_to_vec().into())]))
}

/// Returns a stream of one message that stays open until the client ends the call.
fn lasting(message: &impl Message) -> Answers {
    Box::pin(one(message).chain(stream::pending()))
}

fn version() -> String {
    format!("bulkhead {}", env!("CARGO_PKG_VERSION"))
}
