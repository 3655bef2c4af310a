//! A real API server with a real etcd in one of the test's namespaces, and requests to it.
//! ```text
//!   [ node: bulkhead ]--uplink--[ outside: kube-apiserver (TLS, RBAC) -- etcd ]
//!                                      ^-- curl, as the cluster's administrator
//! ```
//!
//! No controllers run unless a test starts them: the test writes what they would write. A kubelet runs only if a test starts one.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; tests may panic"
)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::lab::netns::{Netns, Running, run};

/// The server's address: that of the machine in [`Lab::outside`](super::lab::Lab::outside).
pub const SERVER: &str = "172.18.0.100";

/// The administrator's token. It need not be secret: the server lives for seconds in its own namespace.
const ADMIN: &str = "administrator";

/// The number of nodes for which the server knows a kubelet: `node-1` to `node-3`.
const NODES: u32 = 3;

/// Returns the token of a node's kubelet, with the rights of that node.
pub fn kubelet_token(node: &str) -> String {
    format!("kubelet-of-{node}")
}

/// The pod networks and Service networks of a cluster with two families.
const POD_NETWORKS: &str = "10.244.0.0/16,fd00:244::/48";
const SERVICE_NETWORKS: &str = "10.96.0.0/16,fd96::/108";

/// The first minor version whose dual stack needs no feature gate.
pub const DUAL_STACK: u32 = 23;

/// The time limit for the server's start and for changes to take effect. A busy machine takes tens of seconds.
const LONG: Duration = Duration::from_secs(120);

/// Paths of the programs, which `cargo xtask cluster` sets.
pub struct Programs {
    etcd: PathBuf,
    server: PathBuf,
    /// kube-controller-manager. `None` if its variable is unset.
    pub controllers: Option<PathBuf>,
}

impl Programs {
    /// Reads the paths from the environment. `None` if `BULKHEAD_ETCD` or `BULKHEAD_KUBE_APISERVER` is unset.
    pub fn found() -> Option<Self> {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Some(Self {
            etcd: path("BULKHEAD_ETCD")?,
            server: path("BULKHEAD_KUBE_APISERVER")?,
            controllers: path("BULKHEAD_KUBE_CONTROLLER_MANAGER"),
        })
    }
}

/// A running API server with its etcd.
pub struct Cluster {
    programs: Programs,
    folder: PathBuf,
    netns: String,
    is_dual_stack: bool,
    _etcd: Running,
    server: Option<Running>,
}

/// Waits until `holds` returns true, and returns how long that took. Panics with `what` after [`LONG`].
pub fn within(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}

impl Cluster {
    /// Starts both programs in this namespace, with their files in this folder, and waits until the server answers.
    pub fn start(programs: Programs, netns: &Netns, folder: &Path) -> Self {
        Self::start_with(programs, netns, folder, false)
    }

    /// Starts a cluster with IPv4, or with both families.
    pub fn start_with(programs: Programs, netns: &Netns, folder: &Path, is_dual_stack: bool) -> Self {
        let folder = folder.join("cluster");
        fs::create_dir_all(&folder).unwrap();
        let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        run("openssl", &["genrsa", "-out", &text("accounts.pem"), "2048"]);
        let mut tokens = format!("{ADMIN},administrator,1,system:masters\n");
        for node in (1..=NODES).map(|number| format!("node-{number}")) {
            writeln!(tokens, "{},system:node:{node},{node},system:nodes", kubelet_token(&node)).unwrap();
        }
        fs::write(folder.join("tokens.csv"), tokens).unwrap();
        let listens = "http://127.0.0.1:2379";
        let data = text("etcd");
        let words = ["--data-dir", &data, "--listen-client-urls", listens, "--advertise-client-urls", listens];
        let peers = ["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"];
        let etcd = spawn(netns, &programs.etcd, &[&words[..], &peers].concat(), &folder.join("etcd.log"));
        let netns_name = netns.name().to_owned();
        let mut cluster = Self { programs, folder, netns: netns_name, is_dual_stack, _etcd: etcd, server: None };
        cluster.come_up(netns);
        cluster
    }

    /// Starts the API server and waits until it answers.
    pub fn come_up(&mut self, netns: &Netns) {
        let text = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        let mut words = vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--bind-address={SERVER}"),
            format!("--advertise-address={SERVER}"),
            "--secure-port=6443".to_owned(),
            format!("--cert-dir={}", text("certificates")),
            format!("--token-auth-file={}", text("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", text("accounts.pem")),
            format!("--service-account-signing-key-file={}", text("accounts.pem")),
            // No controller creates service accounts for namespaces, or removes taints from nodes.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned(),
        ];
        words.extend(self.of_families(&self.programs.server));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let server = spawn(netns, &self.programs.server, &words, &self.folder.join("server.log"));
        self.server = Some(server);
        within("the API server is ready", || {
            assert!(!self.server.as_mut().unwrap().has_ended(), "it has ended:\n{}", self.log());
            self.ask("GET", "/readyz", None).0 == 200
        });
        // The server creates this namespace itself, after it has reported that it is ready.
        within("the system's namespace", || self.ask("GET", "/api/v1/namespaces/kube-system", None).0 == 200);
    }

    /// Returns the arguments about address families for this program of Kubernetes.
    fn of_families(&self, program: &Path) -> Vec<String> {
        if !self.is_dual_stack {
            return vec!["--service-cluster-ip-range=10.96.0.0/16".to_owned()];
        }
        let mut words = vec![format!("--service-cluster-ip-range={SERVICE_NETWORKS}")];
        if minor_version(program) < DUAL_STACK {
            words.push("--feature-gates=IPv6DualStack=true".to_owned());
        }
        words
    }

    /// Starts the controllers that assign `podCIDRs` to nodes and write the endpoint slices of Services. Panics without the program.
    pub fn start_controllers(&self, netns: &Netns) -> Running {
        let text = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        let program = self.programs.controllers.as_ref().unwrap();
        fs::write(text("administrator.token"), ADMIN).unwrap();
        fs::write(text("controllers.conf"), self.kubeconfig(Path::new(&text("administrator.token")))).unwrap();
        let mut words = vec![
            format!("--kubeconfig={}", text("controllers.conf")),
            format!("--cert-dir={}", text("controllers")),
            "--controllers=nodeipam,endpointslice".to_owned(),
            "--leader-elect=false".to_owned(),
            "--allocate-node-cidrs=true".to_owned(),
            format!("--cluster-cidr={POD_NETWORKS}"),
        ];
        words.extend(self.of_families(program));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        spawn(netns, program, &words, &self.folder.join("controllers.log"))
    }

    /// Kills the API server with SIGKILL. Its data stays in etcd.
    pub fn kill(&mut self) {
        drop(self.server.take());
    }

    /// Returns the last 20 lines of the server's log, newest first.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }

    /// Sends a request as the administrator. Returns the HTTP status, 0 without an answer, and the body.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_as(ADMIN, method, path, body)
    }

    /// Sends a request with this bearer token. Returns as [`Self::ask`] does.
    pub fn ask_as(&self, token: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_with(token, method, path, "application/json", body.map(ToString::to_string).as_deref())
    }

    fn ask_with(&self, token: &str, method: &str, path: &str, kind: &str, body: Option<&str>) -> (u16, Value) {
        let (url, header) = (format!("https://{SERVER}:6443{path}"), format!("Authorization: Bearer {token}"));
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", &self.netns, "curl", "-sS", "-k", "-m", "20", "-X", method, "-H", &header]);
        command.args(["-w", "\n%{http_code}", &url]);
        if body.is_some() {
            command.args(["-H", &format!("Content-Type: {kind}"), "--data-binary", "@-"]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(body.unwrap_or_default().as_bytes()).unwrap();
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let (answer, status) = text.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or(0), serde_json::from_str(answer).unwrap_or(Value::Null))
    }

    /// Creates an object and returns the server's version of it. Panics if the server refuses, for example because the object exists.
    pub fn create(&self, object: &Value) -> Value {
        let (status, answer) = self.ask("POST", &collection(object), Some(object));
        assert!(matches!(status, 200..=202), "{object:#} is refused with {status}: {answer:#}\n{}", self.log());
        answer
    }

    /// Creates each object of a multi-document YAML text.
    pub fn create_all(&self, manifest: &str) {
        for document in manifest.split("\n---\n") {
            let field = |name: &str| {
                let line = document.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")));
                line.unwrap_or_else(|| panic!("no {name} in {document}"))
            };
            let namespace = document.lines().find_map(|line| line.strip_prefix("  namespace: "));
            let about =
                json!({"apiVersion": field("apiVersion"), "kind": field("kind"), "metadata": {"namespace": namespace}});
            let (status, answer) =
                self.ask_with(ADMIN, "POST", &collection(&about), "application/yaml", Some(document));
            assert_eq!(status, 201, "{document}: {answer:#}\n{}", self.log());
        }
    }

    /// Creates an object and then writes its status, as its controller would.
    pub fn create_with_status(&self, object: &Value) {
        self.create(object);
        self.report(object);
    }

    /// Writes an object's status, as its controller would.
    pub fn report(&self, object: &Value) {
        self.merge(&format!("{}/status", one(object)), &json!({"status": object["status"]}));
    }

    /// Applies a merge patch to an object.
    pub fn change(&self, object: &Value, change: &Value) {
        self.merge(&one(object), change);
    }

    fn merge(&self, path: &str, change: &Value) {
        let kind = "application/merge-patch+json";
        let (code, answer) = self.ask_with(ADMIN, "PATCH", path, kind, Some(&change.to_string()));
        assert_eq!(code, 200, "{answer:#}");
    }

    /// Returns the server's minor version: 20 for 1.20.
    pub fn minor_version(&self) -> u32 {
        let (_, version) = self.ask("GET", "/version", None);
        // Some builds append a `+`.
        version["minor"].as_str().unwrap().trim_end_matches('+').parse().unwrap()
    }

    /// Reads the object from the server.
    pub fn get(&self, object: &Value) -> Value {
        let (code, answer) = self.ask("GET", &one(object), None);
        assert_eq!(code, 200, "{answer:#}");
        answer
    }

    /// Deletes an object without a grace period.
    pub fn delete(&self, object: &Value) {
        let (code, answer) = self.ask("DELETE", &format!("{}?gracePeriodSeconds=0", one(object)), None);
        assert_eq!(code, 200, "{answer:#}");
    }

    /// Deletes an object with its grace period, so that its kubelet ends it in order.
    pub fn delete_in_order(&self, object: &Value) {
        let (code, answer) = self.ask("DELETE", &one(object), None);
        assert_eq!(code, 200, "{answer:#}");
    }

    /// Whether the server has the object.
    pub fn has(&self, object: &Value) -> bool {
        match self.ask("GET", &one(object), None) {
            (200, _) => true,
            (404, _) => false,
            (code, answer) => panic!("{code}: {answer:#}"),
        }
    }

    /// Requests a token for a service account, valid for ten minutes.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let (status, answer) = self.ask("POST", &path, Some(&request));
        assert_eq!(status, 201, "{answer:#}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Returns the server's certificate file. It includes the certificate of the CA, which clients need.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("certificates/apiserver.crt")
    }

    /// Returns a kubeconfig as YAML that reads the token from this file.
    pub fn kubeconfig(&self, token_file: &Path) -> String {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "node",
            "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
            "clusters": [{"name": "cluster", "cluster": {
                "server": format!("https://{SERVER}:6443"),
                "certificate-authority": self.certificate(),
            }}],
            "users": [{"name": "node", "user": {"tokenFile": token_file}}],
        });
        config.to_string()
    }
}

/// Returns the API path of an object.
fn one(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap())
}

/// Returns the API path of the collection for an object's kind and namespace.
fn collection(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match (kind.as_str(), kind.strip_suffix('y')) {
        ("endpoints", _) => kind,
        (_, Some(stem)) => format!("{stem}ies"),
        (_, None) => format!("{kind}s"),
    };
    let root = if version.contains('/') { "apis" } else { "api" };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/{root}/{version}/{plural}"),
    }
}

/// Returns the minor version of a program of Kubernetes: 20 for 1.20.
pub fn minor_version(program: &Path) -> u32 {
    let said = run(program.to_str().unwrap(), &["--version"]);
    said.split('.').nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no version: {said}"))
}

fn spawn(netns: &Netns, program: &Path, words: &[&str], log: &Path) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    Running::start(netns.command(program, words).stdout(log.try_clone().unwrap()).stderr(log))
}
