//! The Hubble server with real programs: its flows equal those of `bulkhead monitor`, and slow clients delay nothing. The client is
//! tonic's, so that an independent implementation of gRPC checks the server's messages.

use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::lab::Lab;
use crate::lab::lasting::{PATIENCE, answers, connect, echo};
use crate::lab::netns::eventually;
use crate::lab::watched::{flood, metrics, status_drops, watched};
use crate::require;
use bulkhead_observe::hubble::flow::{EventTypeFilter, Flow, FlowFilter, LostEventSource, Verdict};
use bulkhead_observe::hubble::health::{HealthCheckRequest, HealthCheckResponse};
use bulkhead_observe::hubble::observer::{
    FieldMask, GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, NoFields, ResponseType,
    ServerStatusResponse,
};
use bulkhead_observe::hubble::peer::ChangeNotification;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status, Streaming};

const GET_FLOWS: &str = "/observer.Observer/GetFlows";

/// A lab whose vswitch serves Hubble clients at this address.
fn lab(listen: &str) -> Lab {
    watched(&format!("hubble: {{listen: '{listen}'}}\n"))
}

/// A codec for messages as bytes: callers encode and decode them.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// An HTTP/2 connection to the server.
struct Channel(SendRequest<Body>);

impl GrpcService<Body> for Channel {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A gRPC client. It makes progress only while one of its methods runs.
pub(crate) struct Client {
    runtime: Runtime,
    grpc: Grpc<Channel>,
}

impl Client {
    fn new(lab: &Lab) -> Self {
        let stream = UnixStream::connect(lab.path("hubble.sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self::over(async || tokio::net::UnixStream::from_std(stream)).unwrap()
    }

    /// Makes a client on the stream that `connect` returns.
    pub(crate) fn over<S>(connect: impl AsyncFnOnce() -> io::Result<S>) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(async {
            let stream = TokioIo::new(connect().await?);
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            io::Result::Ok(sender)
        })?;
        Ok(Self { runtime, grpc: Grpc::with_origin(Channel(sender), Uri::from_static("http://node")) })
    }

    /// Starts a call with a stream of answers.
    pub(crate) fn call(&mut self, path: &'static str, request: impl Into<Bytes>) -> Result<Streaming<Bytes>, Status> {
        let (grpc, request) = (&mut self.grpc, tonic::Request::new(request.into()));
        self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let called = grpc.server_streaming(request, PathAndQuery::from_static(path), Raw).await;
            called.map(tonic::Response::into_inner)
        })
    }

    /// The next message of a call. `None` at the end of the call, `DeadlineExceeded` after `patience`.
    pub(crate) fn next(&self, answers: &mut Streaming<Bytes>, patience: Duration) -> Result<Option<Bytes>, Status> {
        let within = async { tokio::time::timeout(patience, answers.message()).await };
        self.runtime.block_on(within).unwrap_or_else(|_| Err(Status::deadline_exceeded("nothing comes")))
    }

    /// Makes a call with a single answer.
    pub(crate) fn one<T: Message + Default>(
        &mut self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<T, Status> {
        let mut answers = self.call(path, request.encode_to_vec())?;
        let answer = self.next(&mut answers, Duration::from_secs(5))?.unwrap();
        Ok(T::decode(answer).unwrap())
    }

    pub(crate) fn get_flows(&mut self, request: &GetFlowsRequest) -> Streaming<Bytes> {
        self.call(GET_FLOWS, request.encode_to_vec()).unwrap()
    }

    /// All past flows that match a request.
    fn past(&mut self, request: &GetFlowsRequest) -> Vec<Flow> {
        let (mut answers, mut flows) = (self.get_flows(request), Vec::new());
        while let Some(answer) = self.next(&mut answers, Duration::from_secs(5)).unwrap() {
            flows.extend(flow(&answer));
        }
        flows
    }

    /// All past flows that match a request. Panics if there are none.
    fn some(&mut self, request: &GetFlowsRequest) -> Vec<Flow> {
        let flows = self.past(request);
        assert!(!flows.is_empty(), "{request:?}");
        flows
    }

    /// The status with which the server refuses a request.
    fn refused(&mut self, path: &'static str, request: impl Into<Bytes>) -> Status {
        let answered = self.call(path, request);
        answered.and_then(|mut answers| self.next(&mut answers, Duration::from_secs(5))).unwrap_err()
    }
}

fn flow(answer: &Bytes) -> Option<Flow> {
    let answer = GetFlowsResponse::decode(answer.clone()).unwrap();
    assert_eq!(answer.node_name, "node-1");
    match answer.response {
        Some(ResponseType::Flow(flow)) => Some(*flow),
        _ => None,
    }
}

fn whitelist(filter: FlowFilter) -> GetFlowsRequest {
    GetFlowsRequest { whitelist: vec![filter], ..GetFlowsRequest::default() }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn clients_of_hubble_read_what_monitor_prints_of_now_and_of_before_they_came() {
    require!("ping", "curl");
    let mut lab = lab("unix://hubble.sock");
    let mode = std::fs::metadata(lab.path("hubble.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "its owner's alone");
    // These flows happen while no client watches.
    echo(lab.get("b"), 6379);
    let mut redis = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut redis));
    let to = lab.get("b").v4.clone();
    lab.connects("a", &to, 80);
    lab.pings("a", &to);
    let mut client = Client::new(&lab);
    let of_a = || FlowFilter { source_pod: texts(&["default/a"]), ..FlowFilter::default() };
    let mut flows = Vec::new();
    eventually("all three are remembered", || {
        flows = client.past(&whitelist(of_a()));
        let has = |summary: &str, verdict: Verdict| {
            flows.iter().any(|flow| flow.summary == summary && flow.verdict == verdict as i32)
        };
        has("TCP Flags: SYN", Verdict::Forwarded)
            && has("TCP Flags: SYN", Verdict::Dropped)
            && has("ICMPv4 EchoRequest", Verdict::Dropped)
    });
    // `monitor` prints each of these flows. Their time identifies them.
    let (_, printed) = lab.ask(&["monitor", "--last", "100", "-o", "json"]);
    let lines: Vec<Value> = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for flow in &flows {
        let time = flow.time.unwrap();
        let is_it = |line: &&Value| {
            line["flow"]["time"].as_str().is_some_and(|text| text.ends_with(&format!(".{:09}Z", time.nanos)))
        };
        let line = &lines.iter().find(is_it).unwrap_or_else(|| panic!("{flow:?}\n{printed}"))["flow"];
        let verdict = if flow.verdict == Verdict::Forwarded as i32 { "FORWARDED" } else { "DROPPED" };
        let (source, destination) = (flow.source.as_ref().unwrap(), flow.destination.as_ref().unwrap());
        assert_eq!(line["verdict"], verdict);
        assert_eq!(
            (&line["source"]["pod_name"], &line["destination"]["pod_name"]),
            (&source.pod_name.as_str().into(), &destination.pod_name.as_str().into())
        );
        assert_eq!(
            (&line["source"]["labels"], &line["source"]["identity"]),
            (&source.labels.as_slice().into(), &source.identity.into())
        );
        assert_eq!(line["IP"]["destination"], flow.ip.as_ref().unwrap().destination);
        assert_eq!(
            (&line["Summary"], &line["node_name"]),
            (&flow.summary.as_str().into(), &flow.node_name.as_str().into())
        );
        let denied = line["ingress_denied_by"].as_array().map_or(0, Vec::len);
        assert_eq!(denied, flow.ingress_denied_by.len());
    }
    let denied = flows.iter().find(|flow| flow.drop_reason_desc == 133).unwrap();
    assert_eq!((denied.drop_reason, &*denied.ingress_denied_by[0].name), (133, "only-redis"));
    let allowed = flows.iter().find(|flow| flow.verdict == Verdict::Forwarded as i32).unwrap();
    assert_eq!((&*allowed.ingress_allowed_by[0].name, allowed.is_reply), ("only-redis", Some(false)));
    // Limits, masks, and the filters that options of `hubble observe` send.
    assert_eq!(client.past(&GetFlowsRequest { number: 1, ..whitelist(of_a()) }), flows[flows.len() - 1..]);
    assert_eq!(client.past(&GetFlowsRequest { number: 1, first: true, ..whitelist(of_a()) }), flows[..1]);
    let mask = Some(FieldMask { paths: texts(&["verdict", "source.pod_name"]) });
    let masked = client.past(&GetFlowsRequest { number: 1, field_mask: mask, ..whitelist(of_a()) });
    assert_eq!((masked[0].source.as_ref().unwrap().pod_name.as_str(), &masked[0].destination), ("a", &None));
    let dropped = FlowFilter { verdict: vec![Verdict::Dropped as i32], ..of_a() };
    assert!(client.some(&whitelist(dropped.clone())).iter().all(|flow| flow.verdict == Verdict::Dropped as i32));
    let blacklist = vec![dropped];
    assert!(
        client
            .some(&GetFlowsRequest { blacklist, ..whitelist(of_a()) })
            .iter()
            .all(|flow| flow.verdict == Verdict::Forwarded as i32)
    );
    let port = FlowFilter {
        destination_port: texts(&["80"]),
        protocol: texts(&["tcp"]),
        destination_label: texts(&["k8s:app=b"]),
        ..FlowFilter::default()
    };
    assert!(client.some(&whitelist(port)).iter().all(|flow| flow.drop_reason_desc == 133));
    let other = FlowFilter { source_pod: texts(&["other/"]), ..FlowFilter::default() };
    assert_eq!(client.past(&whitelist(other)), []);
    let since = GetFlowsRequest { since: flows.last().unwrap().time, ..whitelist(of_a()) };
    assert_eq!(client.past(&since).first(), flows.last());
    // Follow new flows.
    let mut following = client.get_flows(&GetFlowsRequest {
        follow: true,
        ..whitelist(FlowFilter { destination_port: texts(&["81"]), ..of_a() })
    });
    lab.connects("a", &to, 80);
    lab.connects("a", &to, 81);
    let answer = client.next(&mut following, Duration::from_secs(5)).unwrap().unwrap();
    assert_eq!(flow(&answer).unwrap().drop_reason_desc, 133);
    drop(following);
    // Status and node.
    let status: ServerStatusResponse = client.one("/observer.Observer/ServerStatus", &NoFields {}).unwrap();
    assert!(status.num_flows >= 3 && status.max_flows == 4096 && status.seen_flows >= status.num_flows, "{status:?}");
    assert!(status.uptime_ns > 0 && status.version.starts_with("bulkhead ") && status.num_connected_nodes == Some(1));
    let nodes: GetNodesResponse = client.one("/observer.Observer/GetNodes", &NoFields {}).unwrap();
    let address = format!("unix://{}", lab.path("hubble.sock").display());
    assert_eq!((&*nodes.nodes[0].name, &nodes.nodes[0].address), ("node-1", &address));
    let namespaces: GetNamespacesResponse = client.one("/observer.Observer/GetNamespaces", &NoFields {}).unwrap();
    assert_eq!(namespaces.namespaces.iter().map(|one| &*one.namespace).collect::<Vec<_>>(), ["default"]);
    let peer: ChangeNotification = client.one("/peer.Peer/Notify", &NoFields {}).unwrap();
    assert_eq!((&*peer.name, peer.address, peer.r#type, peer.tls), ("node-1", address, 1, None));
    for path in ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"] {
        // `hubble status` asks by the service's name; an empty name means all services.
        for service in ["hubble.server.Observer", "observer.Observer", ""] {
            let asked = HealthCheckRequest { service: service.into() };
            assert_eq!(client.one::<HealthCheckResponse>(path, &asked).unwrap().status, 1, "{service}");
        }
    }
    drop(client);
    eventually("nobody watches", || metrics(&lab).contains("bulkhead_stream_clients 0"));
    lab.stop();
    assert!(!lab.path("hubble.sock").exists());
}

#[test]
fn what_is_not_understood_is_refused_and_others_go_on() {
    require!("ping");
    let mut lab = lab("unix://hubble.sock");
    let mut client = Client::new(&lab);
    let wrong = |filter: FlowFilter| whitelist(filter).encode_to_vec();
    let fqdn: &[u8] = &[0x32, 5, 0x3a, 3, b'a', b'.', b'b'];
    let unknown: &[u8] = &[0x2a, 4, 0xca, 0x02, 1, b'x'];
    // A filter by flow identifiers.
    let uuid: &[u8] = &[0x32, 4, 0xea, 0x01, 1, b'x'];
    let cases: [(Vec<u8>, &str); 9] = [
        (uuid.to_vec(), "FlowFilter.uuid is not supported"),
        (fqdn.to_vec(), "FlowFilter.source_fqdn would show nothing"),
        (unknown.to_vec(), "FlowFilter has field 41"),
        (vec![0xff; 40], "GetFlowsRequest is not a message"),
        (vec![0x08], "GetFlowsRequest is not a message"),
        (
            wrong(FlowFilter { source_ip: texts(&["nowhere"]), ..FlowFilter::default() }),
            "neither an address nor a network",
        ),
        (wrong(FlowFilter { protocol: texts(&["http"]), ..FlowFilter::default() }), "protocol `http` is not supported"),
        (
            wrong(FlowFilter { event_type: vec![EventTypeFilter::default(); 2000], ..FlowFilter::default() }),
            "2001 values",
        ),
        (
            GetFlowsRequest {
                field_mask: Some(FieldMask { paths: texts(&["verdicts"]) }),
                ..GetFlowsRequest::default()
            }
            .encode_to_vec(),
            "no field verdicts",
        ),
    ];
    for (request, expected) in cases {
        let refused = client.refused(GET_FLOWS, request);
        assert!(
            refused.code() == Code::InvalidArgument && refused.message().contains(expected),
            "{refused:?}, not {expected}"
        );
    }
    // A message above the maximum size of requests.
    assert_eq!(client.refused(GET_FLOWS, vec![0x32; 1 << 19]).code(), Code::OutOfRange);
    for path in
        ["/observer.Observer/GetAgentEvents", "/observer.Observer/GetDebugEvents", "/observer.Observer/Forget", "/x"]
    {
        assert_eq!(client.refused(path, Bytes::new()).code(), Code::Unimplemented, "{path}");
    }
    let unknown = HealthCheckRequest { service: "x.Y".into() }.encode_to_vec();
    assert_eq!(client.refused("/grpc.health.v1.Health/Check", unknown).code(), Code::NotFound);
    // Clients that send no gRPC, no HTTP/2, or nothing.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let hostile: [Vec<u8>; 5] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 100_000],
        [&preface[..], &[0xff; 100_000]].concat(),
        [&preface[..], &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1]].concat(),
        preface[..10].to_vec(),
    ];
    let mut kept = Vec::new();
    for bytes in &hostile {
        let mut stream = UnixStream::connect(lab.path("hubble.sock")).unwrap();
        // The server may close the connection before it has read everything.
        stream.write_all(bytes).ok();
        kept.push(stream);
    }
    kept.extend((0..100).map(|_| UnixStream::connect(lab.path("hubble.sock")).unwrap()));
    let mut following = Client::new(&lab);
    let mut answers = following.get_flows(&GetFlowsRequest { follow: true, ..GetFlowsRequest::default() });
    lab.pings("a", &lab.get("b").v4.clone());
    assert!(following.next(&mut answers, Duration::from_secs(5)).unwrap().is_some());
    // Silent connections were closed to make room for new ones. Connections with a stream were not.
    kept.extend((0..100).map(|_| UnixStream::connect(lab.path("hubble.sock")).unwrap()));
    let oldest = &mut kept[5];
    oldest.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    while oldest.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
    lab.connects("a", &lab.get("b").v4.clone(), 81);
    assert!(following.next(&mut answers, Duration::from_secs(5)).unwrap().is_some());
    lab.stop();
}

#[test]
fn a_client_that_does_not_read_holds_nobody_back_and_what_another_one_misses_is_told() {
    require!("ping", "curl");
    let mut lab = lab("unix://hubble.sock");
    let udp = || GetFlowsRequest {
        follow: true,
        ..whitelist(FlowFilter { protocol: texts(&["udp"]), ..FlowFilter::default() })
    };
    // This client requests flows and never reads them.
    let mut stalled = Client::new(&lab);
    let unread = stalled.get_flows(&udp());
    let mut client = Client::new(&lab);
    let mut answers_of = client.get_flows(&udp());
    let denied = |lab: &Lab| status_drops(lab).get("policy_denied").copied().unwrap_or_default();
    let before = denied(&lab);
    flood(&lab, 30_000, 1);
    echo(lab.get("b"), 6379);
    let mut redis = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut redis), "pods are served meanwhile");
    let happened = denied(&lab) - before;
    assert!(happened >= 29_000, "{happened}");
    // Each datagram is a separate flow.
    let (mut told, mut lost) = (0, 0);
    while told + lost < happened {
        let answer = client.next(&mut answers_of, Duration::from_secs(10)).unwrap().unwrap();
        match GetFlowsResponse::decode(answer).unwrap().response {
            Some(ResponseType::LostEvents(event)) => {
                assert_ne!(event.source, LostEventSource::Unknown as i32);
                lost += event.num_events_lost;
            }
            _ => told += 1,
        }
    }
    // The workers' lost events may include the redis session, because they do not apply the request's filter.
    assert!((happened..=happened + 1).contains(&(told + lost)), "{told} told, {lost} lost, {happened} happened");
    // The client did not read during the flood, and its queue holds fewer flows.
    assert!(told > 1_000 && lost > 0, "{told} told, {lost} lost");
    assert!(metrics(&lab).contains("bulkhead_stream_clients 2"));
    drop((unread, stalled));
    eventually("it is forgotten", || metrics(&lab).contains("bulkhead_stream_clients 1"));
    drop((answers_of, client));
    eventually("nobody watches", || metrics(&lab).contains("bulkhead_stream_clients 0"));
    // A stop does not wait for clients.
    let mut last = Client::new(&lab);
    let _lasting = last.call("/peer.Peer/Notify", Bytes::new()).unwrap();
    lab.stop();
}

#[test]
fn there_are_only_so_many_clients() {
    require!("curl");
    let mut lab = lab("unix://hubble.sock");
    let mut client = Client::new(&lab);
    let follow = GetFlowsRequest { follow: true, ..GetFlowsRequest::default() };
    let mut watching: Vec<_> = (0..31).map(|_| client.get_flows(&follow)).collect();
    let mut other = Client::new(&lab);
    watching.push(other.get_flows(&follow));
    for path in [GET_FLOWS, "/observer.Observer/GetNamespaces"] {
        assert_eq!(other.refused(path, follow.encode_to_vec()).code(), Code::ResourceExhausted, "{path}");
    }
    drop(watching);
    // The server learns of dropped streams with the connection's next activity.
    eventually("there is room again", || {
        let _: Result<ServerStatusResponse, _> = client.one("/observer.Observer/ServerStatus", &NoFields {});
        other.call(GET_FLOWS, follow.encode_to_vec()).is_ok()
    });
    lab.stop();
}
