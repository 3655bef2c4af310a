//! A small API server over HTTP: discovery, paged lists, watches with bookmarks, and injected faults.
//! ```text
//!   put, delete --> objects, log of events --> list (a snapshot, in pages) | watch (the log from a version on)
//!                                                  `--- faults: cut, late, twice, in another order, refused, nonsense
//! ```
//! It uses plain sockets and threads, because it injects faults byte by byte, which server libraries prevent.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file, and the benchmark of clusters, uses a part of this; they may panic"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A fault of one answer or event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection closes without an answer.
    Drop,
    /// An answer ends early, in the middle of a list or of a line of a watch.
    Cut,
    /// The requested version or page is gone: 410, as an answer or as an event.
    Gone,
    /// The answer is late.
    Slow,
    /// An event is sent twice.
    Twice,
    /// An event is sent after a later one.
    Reordered,
    /// Invalid bytes.
    Garbage,
    /// 401: the token has expired.
    Unauthorized,
    /// 403: the client may not read this kind.
    Forbidden,
    /// 500 with a body that is not JSON.
    Broken,
    /// The answer arrives in chunks of a few bytes.
    Crumbs,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::Drop,
        Self::Cut,
        Self::Gone,
        Self::Slow,
        Self::Twice,
        Self::Reordered,
        Self::Garbage,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Broken,
        Self::Crumbs,
    ];
}

/// The known kinds: kind, resource, apiVersion, whether the kind is namespaced, and a name for the kind in all its versions.
const KINDS: [KindRow; 19] = [
    ("Namespace", "namespaces", "v1", false, "namespaces"),
    ("Node", "nodes", "v1", false, "nodes"),
    ("Pod", "pods", "v1", true, "pods"),
    ("ServiceAccount", "serviceaccounts", "v1", true, "serviceaccounts"),
    ("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1", true, "networkpolicies"),
    ("ClusterNetworkPolicy", "clusternetworkpolicies", "policy.networking.k8s.io/v1alpha2", false, "cnp"),
    ("AdminNetworkPolicy", "adminnetworkpolicies", "policy.networking.k8s.io/v1alpha1", false, "anp"),
    ("BaselineAdminNetworkPolicy", "baselineadminnetworkpolicies", "policy.networking.k8s.io/v1alpha1", false, "banp"),
    ("Service", "services", "v1", true, "services"),
    ("EndpointSlice", "endpointslices", "discovery.k8s.io/v1", true, "endpointslices"),
    ("EndpointSlice", "endpointslices", OLD_SLICES, true, "endpointslices"),
    ("Tier", "tiers", CALICO, false, "calico-tiers"),
    ("NetworkPolicy", "networkpolicies", CALICO, true, "calico-networkpolicies"),
    ("GlobalNetworkPolicy", "globalnetworkpolicies", CALICO, false, "calico-globalnetworkpolicies"),
    ("GlobalNetworkSet", "globalnetworksets", CALICO, false, "calico-globalnetworksets"),
    ("CiliumNetworkPolicy", "ciliumnetworkpolicies", "cilium.io/v2", true, "ciliumnetworkpolicies"),
    ("CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicies", "cilium.io/v2", false, "ccnp"),
    ("CiliumCIDRGroup", "ciliumcidrgroups", "cilium.io/v2", false, "ciliumcidrgroups"),
    ("CiliumCIDRGroup", "ciliumcidrgroups", "cilium.io/v2alpha1", false, "ciliumcidrgroups"),
];

/// The API version in which Calico stores its objects.
const CALICO: &str = "crd.projectcalico.org/v1";

/// The API version of endpoint slices before Kubernetes 1.21.
const OLD_SLICES: &str = "discovery.k8s.io/v1beta1";

/// The API groups that not every server has.
const OPTIONAL: [&str; 3] = ["policy.networking.k8s.io", "crd.projectcalico.org", "cilium.io"];

fn group_of(kind: &KindRow) -> &'static str {
    kind.2.split_once('/').map_or("", |(group, _)| group)
}

/// Returns the name for the kind in all its versions. `kind` is this name, or the kind's own.
fn row_name(kind: &str) -> &'static str {
    KINDS.iter().find(|known| known.4 == kind).or_else(|| KINDS.iter().find(|known| known.0 == kind)).unwrap().4
}

struct Logged {
    version: u64,
    resource: &'static str,
    what: &'static str,
    object: Value,
}

type Name = (&'static str, String, String);

#[derive(Default)]
struct World {
    version: u64,
    objects: BTreeMap<Name, Value>,
    log: Vec<Logged>,
    /// The version up to which the server has forgotten events.
    forgotten: u64,
    /// Served resources in addition to those that every server has.
    served: BTreeSet<&'static str>,
    /// Resources that this server lacks although every real server has them.
    withdrawn: BTreeSet<&'static str>,
    forbidden: BTreeSet<&'static str>,
    /// Whether the server has endpoint slices in their old API version only.
    is_old: bool,
    /// The only accepted token. `None` accepts every request.
    token: Option<String>,
    /// The faults to inject, and the chance of a fault in percent.
    faults: Vec<Fault>,
    percent: u64,
    /// How often each fault has occurred.
    happened: BTreeMap<String, u64>,
    /// The remaining items of unfinished lists, with their version, by the list's continue token.
    rests: HashMap<u64, (u64, Vec<Value>)>,
    requests: Vec<String>,
    /// Numbers of objects that lists generate instead of stored ones, for tests of size: pods, and Services with one slice each.
    synthetic: usize,
    synthetic_services: usize,
    random: u64,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        // SplitMix64, as in the other tests.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Chooses a fault among `known` to inject now. `None` in most cases.
    fn fault(&mut self, known: &[Fault]) -> Option<Fault> {
        let possible: Vec<Fault> = self.faults.iter().copied().filter(|fault| known.contains(fault)).collect();
        if possible.is_empty() || self.random(100) >= self.percent {
            return None;
        }
        let at = usize::try_from(self.random(possible.len() as u64)).unwrap();
        *self.happened.entry(format!("{:?}", possible[at])).or_insert(0) += 1;
        Some(possible[at])
    }

    fn serves(&self, kind: &KindRow) -> bool {
        if OPTIONAL.contains(&group_of(kind)) {
            return self.served.contains(kind.4);
        }
        !self.withdrawn.contains(kind.4) && (kind.0 != "EndpointSlice" || (kind.2 == OLD_SLICES) == self.is_old)
    }

    fn set(&mut self, name: Name, mut object: Value, what: &'static str) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.push(Logged { version: self.version, resource: name.0, what, object: object.clone() });
        if what == "DELETED" {
            self.objects.remove(&name);
        } else {
            self.objects.insert(name, object);
        }
    }
}

struct Inner {
    world: Mutex<World>,
    changed: Condvar,
    /// Incremented to break connections: those of an earlier epoch close.
    epoch: AtomicU64,
    is_down: AtomicBool,
    /// Whether watches without events get no bookmarks.
    is_quiet: AtomicBool,
}

/// A running API server. Dropping it stops the server.
pub struct ApiServer {
    inner: Arc<Inner>,
    pub address: SocketAddr,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.go_down();
    }
}

impl ApiServer {
    /// Starts a server at a free port of the loopback address.
    pub fn start(seed: u64) -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").unwrap(), seed)
    }

    /// Sends no more bookmarks on watches without events.
    pub fn be_quiet(&self) {
        self.inner.is_quiet.store(true, Ordering::SeqCst);
    }

    /// Starts a server on a listening socket.
    pub fn at(listener: TcpListener, seed: u64) -> Self {
        let world = World { version: 1000, random: seed, ..World::default() };
        let inner = Arc::new(Inner {
            world: Mutex::new(world),
            changed: Condvar::new(),
            epoch: AtomicU64::new(0),
            is_down: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
        });
        let address = listener.local_addr().unwrap();
        let own = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inner = Arc::clone(&own);
                std::thread::spawn(move || drop(serve(&inner, &stream)));
            }
        });
        Self { inner, address }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.inner.world.lock().unwrap()
    }

    /// Creates or replaces an object, given as JSON.
    pub fn put(&self, object: Value) {
        self.put_all(vec![object]);
    }

    /// Creates or replaces several objects in one change.
    pub fn put_all(&self, objects: Vec<Value>) {
        let mut world = self.world();
        for object in objects {
            let name = name_of(&object);
            let what = if world.objects.contains_key(&name) { "MODIFIED" } else { "ADDED" };
            world.set(name, object, what);
        }
        self.inner.changed.notify_all();
    }

    /// Deletes an object. Returns whether it existed.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let resource = row_name(kind);
        let name = (resource, namespace.to_owned(), name.to_owned());
        let mut world = self.world();
        let Some(object) = world.objects.get(&name).cloned() else { return false };
        world.set(name, object, "DELETED");
        self.inner.changed.notify_all();
        true
    }

    /// All objects as a `List` in JSON, which a state file may hold.
    pub fn state(&self) -> String {
        let items: Vec<Value> = self.world().objects.values().cloned().collect();
        json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
    }

    /// Starts or stops serving a kind. Stopping removes the kind's objects.
    pub fn serve(&self, kind: &str, is_served: bool) {
        let resource = row_name(kind);
        let mut world = self.world();
        if is_served {
            world.served.insert(resource);
            world.withdrawn.remove(resource);
        } else {
            world.served.remove(resource);
            world.withdrawn.insert(resource);
            world.objects.retain(|name, _| name.0 != resource);
        }
    }

    /// Serves endpoint slices of the old API version only, or of the present one only. Objects and their version stay as they are.
    pub fn set_old(&self, is_old: bool) {
        self.world().is_old = is_old;
    }

    /// Forbids access to a kind, or allows it again.
    pub fn forbid(&self, kind: &str, is_forbidden: bool) {
        let resource = row_name(kind);
        let mut world = self.world();
        if is_forbidden {
            world.forbidden.insert(resource)
        } else {
            world.forbidden.remove(resource)
        };
    }

    /// From now on accepts only this token. Other clients get 401.
    pub fn admit(&self, token: &str) {
        self.world().token = Some(token.to_owned());
        self.break_connections();
    }

    /// Sets the faults to inject, and their chance in percent.
    pub fn set_faults(&self, faults: &[Fault], percent: u64) {
        let mut world = self.world();
        (world.faults, world.percent) = (faults.to_vec(), percent);
    }

    /// How often each fault has occurred since the start.
    pub fn happened(&self) -> BTreeMap<String, u64> {
        self.world().happened.clone()
    }

    /// The paths of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.world().requests.clone()
    }

    /// Forgets all events: a client that missed one must list again.
    pub fn forget(&self) {
        let mut world = self.world();
        // No client has seen this version.
        world.version += 1;
        world.forgotten = world.version;
        world.log.clear();
        world.rests.clear();
    }

    /// Forgets all events except the last `keep`: a client that is further behind must list again.
    pub fn compact(&self, keep: usize) {
        let mut world = self.world();
        let old = world.log.len().saturating_sub(keep);
        let last = world.log.drain(..old).next_back();
        world.forgotten = last.map_or(world.forgotten, |last| last.version);
    }

    /// The resource version of the last change.
    pub fn version(&self) -> u64 {
        self.world().version
    }

    /// Makes lists of pods return this number of generated pods instead of the stored ones.
    pub fn synthesize(&self, pods: usize) {
        self.world().synthetic = pods;
    }

    /// Makes lists of Services and slices return this number of generated Services with ten endpoints each, instead of the stored ones.
    pub fn synthesize_services(&self, services: usize) {
        self.world().synthetic_services = services;
    }

    /// Closes all connections, and closes new ones without an answer.
    pub fn go_down(&self) {
        self.inner.is_down.store(true, Ordering::SeqCst);
        self.break_connections();
    }

    /// Answers requests again.
    pub fn come_back(&self) {
        self.inner.is_down.store(false, Ordering::SeqCst);
    }

    /// Closes all current connections.
    pub fn break_connections(&self) {
        self.inner.epoch.fetch_add(1, Ordering::SeqCst);
        self.inner.changed.notify_all();
    }

    /// A kubeconfig for this server.
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        })
        .to_string()
    }
}

fn name_of(object: &Value) -> Name {
    let is_kind = |known: &&KindRow| object["kind"] == known.0 && object["apiVersion"] == known.2;
    let kind = KINDS.iter().find(is_kind).expect("a kind that is served");
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    let namespace = if kind.3 { text("namespace") } else { String::new() };
    (kind.4, namespace, text("name"))
}

/// A generated pod with the fields of real pods, most of which policy does not use.
pub fn synthetic_pod(at: usize, version: u64) -> Value {
    let (a, b, c) = (at / 62_500, at / 250 % 250, at % 250 + 1);
    let owner = at / 20;
    let address = format!("10.{}.{b}.{c}", a + 1);
    json!({
        "metadata": {
            "name": format!("application-{owner}-5d78c9869d-{at}"), "namespace": format!("team-{}", at % 400),
            "resourceVersion": version.to_string(), "uid": format!("00000000-0000-4000-8000-{at:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z", "generateName": format!("application-{owner}-5d78c9869d-"),
            "labels": {
                "app.kubernetes.io/name": format!("application-{owner}"), "app.kubernetes.io/component": "server",
                "app.kubernetes.io/part-of": format!("system-{}", owner % 50), "pod-template-hash": "5d78c9869d",
                "team": format!("team-{}", at % 400),
            },
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:podIP": {}}}}],
        },
        "spec": {
            "nodeName": format!("node-{}", at % 1000),
            "containers": [{
                "name": "server", "image": "registry.example/application:1", "env": [{"name": "A", "value": "b"}],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            }],
        },
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    })
}

/// A generated Service with the fields of real Services.
pub fn synthetic_service(at: usize, version: u64) -> Value {
    json!({
        "metadata": {
            "name": format!("service-{at}"), "namespace": format!("team-{}", at % 100),
            "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("application-{at}")},
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:ports": {}}}}],
        },
        "spec": {
            "clusterIP": format!("10.128.{}.{}", at / 250, at % 250), "selector": {"app": format!("application-{at}")},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
    })
}

/// The slice of a generated Service, with ten endpoints. Every second slice has topology hints.
pub fn synthetic_slice(at: usize, version: u64) -> Value {
    let endpoint = |number: usize| {
        let pod = at * 10 + number;
        let address = format!("10.{}.{}.{}", pod / 62_500, pod / 250 % 250, pod % 250 + 1);
        let mut endpoint = json!({
            "addresses": [address], "nodeName": format!("node-{}", pod % 400), "zone": "zone-0",
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "name": format!("pod-{pod}"), "uid": "00000000-0000-4000-8000-000000000000"},
        });
        if at % 2 == 1 {
            endpoint["hints"] = json!({"forZones": [{"name": format!("zone-{}", number % 3)}]});
        }
        endpoint
    };
    json!({
        "metadata": {
            "name": format!("service-{at}-x"), "namespace": format!("team-{}", at % 100),
            "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/service-name": format!("service-{at}")},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:ports": {}}}],
        },
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..10).map(endpoint).collect::<Vec<_>>(),
    })
}

/// Answers requests on one connection until either side closes it.
fn serve(inner: &Inner, stream: &TcpStream) -> std::io::Result<()> {
    let epoch = inner.epoch.load(Ordering::SeqCst);
    stream.set_nodelay(true)?;
    // The timeout lets the loop check whether the server has stopped.
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        loop {
            if inner.is_down.load(Ordering::SeqCst) || inner.epoch.load(Ordering::SeqCst) != epoch {
                return stream.shutdown(Shutdown::Both);
            }
            match reader.read_line(&mut head) {
                Ok(0) => return Ok(()),
                Ok(_) if head.ends_with("\r\n\r\n") => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(head.starts_with("GET "), "a follower only reads: {head}");
        let is_admitted = {
            let mut world = inner.world.lock().unwrap();
            world.requests.push(path.clone());
            world.token.as_ref().is_none_or(|token| head.contains(&format!(": Bearer {token}\r\n")))
        };
        if !is_admitted {
            send(stream, 401, &status(401, "Unauthorized"))?;
            continue;
        }
        if !answer(inner, stream, &path, epoch)? {
            return stream.shutdown(Shutdown::Both);
        }
    }
}

/// Answers one request. Returns whether the connection stays open for the next one.
fn answer(inner: &Inner, mut stream: &TcpStream, path: &str, epoch: u64) -> std::io::Result<bool> {
    use Fault::{Broken, Cut, Drop, Forbidden, Garbage, Slow, Unauthorized};
    let fault = inner.world.lock().unwrap().fault(&[Drop, Cut, Slow, Garbage, Unauthorized, Forbidden, Broken]);
    match fault {
        Some(Drop) => return Ok(false),
        Some(Slow) => std::thread::sleep(Duration::from_millis(150)),
        Some(Garbage) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"\xff\x00]}}[,")?;
            return Ok(true);
        }
        Some(Unauthorized) => return send(stream, 401, &status(401, "Unauthorized")),
        Some(Forbidden) => return send(stream, 403, &status(403, "forbidden")),
        Some(Broken) => return send(stream, 500, "<html>nothing to see</html>"),
        _ => {}
    }
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let query: HashMap<&str, &str> = query.split('&').filter_map(|part| part.split_once('=')).collect();
    if path.strip_prefix("/apis/").is_some_and(|rest| rest.split('/').count() <= 2) {
        return discovery(inner, stream, path);
    }
    let Some(kind) = KINDS.iter().find(|kind| {
        let root = if kind.2.contains('/') { "/apis" } else { "/api" };
        path == format!("{root}/{}/{}", kind.2, kind.1)
    }) else {
        return send(stream, 404, &status(404, "not found"));
    };
    let world = inner.world.lock().unwrap();
    if !world.serves(kind) {
        drop(world);
        return send(stream, 404, "404 page not found");
    }
    if world.forbidden.contains(kind.4) {
        drop(world);
        return send(stream, 403, &status(403, "forbidden"));
    }
    drop(world);
    if query.contains_key("watch") {
        let version = query["resourceVersion"].parse().unwrap();
        return watch(inner, stream, kind, version, epoch);
    }
    let body = list(inner, kind, &query);
    let Ok(body) = body else { return send(stream, 410, &status(410, "the continue token is too old")) };
    if fault == Some(Cut) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(&body.as_bytes()[..body.len() / 2])?;
        return Ok(false);
    }
    send(stream, 200, &body)
}

fn discovery(inner: &Inner, stream: &TcpStream, path: &str) -> std::io::Result<bool> {
    let rest = path.strip_prefix("/apis/").unwrap();
    let served: Vec<&KindRow> = {
        let world = inner.world.lock().unwrap();
        KINDS.iter().filter(|kind| world.serves(kind)).collect()
    };
    let body = if rest.contains('/') {
        let resources: Vec<Value> = served
            .iter()
            .filter(|kind| kind.2 == rest)
            .map(|kind| json!({"name": kind.1, "kind": kind.0, "verbs": ["list", "watch"]}))
            .collect();
        (!resources.is_empty())
            .then(|| json!({"kind": "APIResourceList", "groupVersion": rest, "resources": resources}))
    } else {
        let versions: BTreeSet<&str> = served.iter().filter(|kind| group_of(kind) == rest).map(|kind| kind.2).collect();
        let versions: Vec<Value> = versions
            .iter()
            .map(|version| json!({"groupVersion": version, "version": version.split('/').nth(1)}))
            .collect();
        (!versions.is_empty()).then(|| json!({"kind": "APIGroup", "name": rest, "versions": versions}))
    };
    match body {
        Some(body) => send(stream, 200, &body.to_string()),
        None => send(stream, 404, "404 page not found"),
    }
}

type KindRow = (&'static str, &'static str, &'static str, bool, &'static str);

/// Returns a page of a list. An error if the continue token is no longer known.
fn list(inner: &Inner, kind: &KindRow, query: &HashMap<&str, &str>) -> Result<String, ()> {
    let mut world = inner.world.lock().unwrap();
    let limit: usize = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
    let (synthetic, make): (usize, fn(usize, u64) -> Value) = match kind.0 {
        "Pod" => (world.synthetic, synthetic_pod),
        "Service" => (world.synthetic_services, synthetic_service),
        "EndpointSlice" => (world.synthetic_services, synthetic_slice),
        _ => (0, synthetic_pod),
    };
    if synthetic > 0 {
        let from: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        let to = from.saturating_add(limit).min(synthetic);
        let version = world.version;
        // Serializes the objects one at a time, so that the test measures the client's memory rather than the trees of a whole page.
        let items: Vec<String> = (from..to).map(|at| make(at, version).to_string()).collect();
        let next = if to < synthetic { to.to_string() } else { String::new() };
        drop(world);
        return Ok(page(kind, version, (&next, synthetic - to), &items.join(",")));
    }
    let (version, mut items) = match query.get("continue") {
        None => {
            let of_kind = world.objects.iter().filter(|(name, _)| name.0 == kind.4);
            let items = of_kind.map(|(_, object)| object.clone()).collect();
            (world.version, items)
        }
        Some(token) => {
            let gone = world.fault(&[Fault::Gone]).is_some();
            world.rests.remove(&token.parse().unwrap()).filter(|_| !gone).ok_or(())?
        }
    };
    let rest = items.split_off(limit.min(items.len()));
    let remaining = rest.len();
    let next = if rest.is_empty() {
        String::new()
    } else {
        let token = world.random(u64::MAX);
        world.rests.insert(token, (version, rest));
        token.to_string()
    };
    if world.fault(&[Fault::Twice]).is_some() {
        items.extend(items.first().cloned());
    }
    // As on real servers, items of lists have no kind and apiVersion.
    for item in &mut items {
        let fields = item.as_object_mut().unwrap();
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    let items: Vec<String> = items.iter().map(Value::to_string).collect();
    Ok(page(kind, version, (&next, remaining), &items.join(",")))
}

/// Builds a page of a list. `items` is the JSON text between the brackets; `next` is the continue token, with the number of objects behind it.
fn page(kind: &KindRow, version: u64, (next, remaining): (&str, usize), items: &str) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if !next.is_empty() {
        metadata["continue"] = next.into();
        metadata["remainingItemCount"] = remaining.into();
    }
    let items = if items.is_empty() { "null".to_owned() } else { format!("[{items}]") };
    format!(r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":{items}}}"#, kind.0, kind.2)
}

fn status(code: u16, message: &str) -> String {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}).to_string()
}

fn send(mut stream: &TcpStream, code: u16, body: &str) -> std::io::Result<bool> {
    let kind = if body.starts_with('{') { "application/json" } else { "text/plain" };
    let mut text = String::new();
    write!(text, "HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream.write_all(text.as_bytes())?;
    Ok(true)
}

/// The interval of bookmarks on a watch without events. Real servers send one a minute.
const BOOKMARKS: Duration = Duration::from_millis(200);

fn watch(inner: &Inner, mut stream: &TcpStream, kind: &KindRow, from: u64, epoch: u64) -> std::io::Result<bool> {
    use Fault::{Crumbs, Cut, Drop, Garbage, Gone, Reordered, Twice};
    let mut at = from;
    {
        let mut world = inner.world.lock().unwrap();
        if at < world.forgotten || world.fault(&[Gone]).is_some() {
            drop(world);
            return send(stream, 410, &status(410, "too old resource version"));
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let mut last = Instant::now();
    let mut held: Option<String> = None;
    loop {
        let (mut lines, fault) = {
            let mut world = inner.world.lock().unwrap();
            let is_over = inner.is_down.load(Ordering::SeqCst) || inner.epoch.load(Ordering::SeqCst) != epoch;
            let is_gone = !world.serves(kind);
            if is_over || is_gone {
                return Ok(false);
            }
            if at < world.forgotten {
                let gone =
                    json!({"type": "ERROR", "object": serde_json::from_str::<Value>(&status(410, "gone")).unwrap()});
                return chunk(stream, &format!("{gone}\n"), false).map(|()| false);
            }
            // The log is sorted by version and may be long.
            let known = world.log.partition_point(|logged| logged.version <= at);
            let new: Vec<String> = world.log[known..]
                .iter()
                .filter(|logged| logged.resource == kind.4)
                .map(|logged| format!("{}\n", json!({"type": logged.what, "object": logged.object})))
                .collect();
            at = world.version;
            if new.is_empty() && (inner.is_quiet.load(Ordering::SeqCst) || last.elapsed() < BOOKMARKS) {
                drop(inner.changed.wait_timeout(world, Duration::from_millis(20)).unwrap());
                continue;
            }
            let fault = world.fault(&[Cut, Drop, Garbage, Gone, Reordered, Twice, Crumbs]);
            (new, fault)
        };
        if lines.is_empty() {
            let metadata = json!({"resourceVersion": at.to_string()});
            let object = json!({"kind": kind.0, "apiVersion": kind.2, "metadata": metadata});
            lines.push(format!("{}\n", json!({"type": "BOOKMARK", "object": object})));
        }
        last = Instant::now();
        match fault {
            Some(Drop) => return Ok(false),
            Some(Cut) => {
                let line = &lines[lines.len() - 1];
                chunk(stream, &line[..line.len() / 2], false)?;
                return Ok(false);
            }
            Some(Garbage) => {
                stream.write_all(b"6\r\n\xff\x00{\"]\n\r\n")?;
            }
            Some(Gone) => {
                let gone =
                    json!({"type": "ERROR", "object": serde_json::from_str::<Value>(&status(410, "gone")).unwrap()});
                chunk(stream, &format!("{gone}\n"), false)?;
                return Ok(false);
            }
            Some(Twice) => lines.push(lines[0].clone()),
            Some(Reordered) => {
                lines.reverse();
                // A single event is sent after the next one.
                if lines.len() == 1 && held.is_none() {
                    held = lines.pop();
                }
            }
            _ => {}
        }
        let is_late = held.is_some() && !lines.is_empty() && fault != Some(Reordered);
        if is_late {
            lines.extend(held.take());
        }
        for line in lines {
            chunk(stream, &line, fault == Some(Crumbs))?;
        }
    }
}

fn chunk(mut stream: &TcpStream, text: &str, crumbs: bool) -> std::io::Result<()> {
    let size = if crumbs { 7 } else { text.len().max(1) };
    for part in text.as_bytes().chunks(size) {
        stream.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
        stream.write_all(part)?;
        stream.write_all(b"\r\n")?;
    }
    stream.flush()
}
