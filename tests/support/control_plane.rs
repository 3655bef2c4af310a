//! A real API server with a real etcd in a namespace of the test's, and requests to it.
//!
//! ```text
//!   [ node: bulkhead ]--uplink--[ outside: kube-apiserver (TLS, RBAC) -- etcd ]
//!                                      ^-- curl, as the cluster's administrator
//! ```
//!
//! There is no controller, and a kubelet where a test has started one: what others would write, the test writes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; tests may panic"
)]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::lab::netns::{Netns, Running, run};

/// The address at which [`Lab::outside`](super::lab::Lab::outside) has its machine.
pub const SERVER: &str = "172.18.0.100";

/// The administrator's token: a server that lives for seconds in a namespace of its own needs no better one.
const ADMIN: &str = "administrator";

/// The token of the kubelet on the node of a lab, which has a node's rights.
pub const KUBELET: &str = "kubelet";

/// How long a server may take to start, and what is followed to take effect. A machine that is busy takes tens of seconds.
const LONG: Duration = Duration::from_secs(120);

/// The programs, where `cargo xtask cluster` says that they are.
pub struct Programs {
    etcd: PathBuf,
    server: PathBuf,
}

impl Programs {
    /// None where nobody has said.
    pub fn found() -> Option<Self> {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Some(Self { etcd: path("BULKHEAD_ETCD")?, server: path("BULKHEAD_KUBE_APISERVER")? })
    }
}

/// See the module.
pub struct Cluster {
    programs: Programs,
    folder: PathBuf,
    netns: String,
    _etcd: Running,
    server: Option<Running>,
}

/// Waits until it holds, and fails with what was waited for.
pub fn within(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}

impl Cluster {
    /// Starts both in this namespace, with what they write in this folder, and waits until the server answers.
    pub fn start(programs: Programs, netns: &Netns, folder: &Path) -> Self {
        let folder = folder.join("cluster");
        fs::create_dir_all(&folder).unwrap();
        let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        run("openssl", &["genrsa", "-out", &text("accounts.pem"), "2048"]);
        let tokens = format!("{ADMIN},administrator,1,system:masters\n{KUBELET},system:node:node-1,2,system:nodes\n");
        fs::write(folder.join("tokens.csv"), tokens).unwrap();
        let listens = "http://127.0.0.1:2379";
        let data = text("etcd");
        let words = ["--data-dir", &data, "--listen-client-urls", listens, "--advertise-client-urls", listens];
        let peers = ["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"];
        let etcd = spawn(netns, &programs.etcd, &[&words[..], &peers].concat(), &folder.join("etcd.log"));
        let mut cluster = Self { programs, folder, netns: netns.name().to_owned(), _etcd: etcd, server: None };
        cluster.come_up(netns);
        cluster
    }

    /// Starts the server, and waits until it answers.
    pub fn come_up(&mut self, netns: &Netns) {
        let text = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        let words = [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--bind-address={SERVER}"),
            format!("--advertise-address={SERVER}"),
            "--secure-port=6443".to_owned(),
            format!("--cert-dir={}", text("certificates")),
            format!("--token-auth-file={}", text("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", text("accounts.pem")),
            format!("--service-account-signing-key-file={}", text("accounts.pem")),
            // There is no controller that gives a namespace its service account, and none that takes taints from nodes.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let server = spawn(netns, &self.programs.server, &words, &self.folder.join("server.log"));
        self.server = Some(server);
        within("the API server is ready", || {
            assert!(!self.server.as_mut().unwrap().has_ended(), "it has ended:\n{}", self.log());
            self.ask("GET", "/readyz", None).0 == 200
        });
        // It makes this one itself, after it has said that it is ready.
        within("the system's namespace", || self.ask("GET", "/api/v1/namespaces/kube-system", None).0 == 200);
    }

    /// Ends the server without giving it a chance. What it has stored stays.
    pub fn kill(&mut self) {
        drop(self.server.take());
    }

    /// The end of what the server has logged.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        log.lines().rev().take(20).collect::<Vec<_>>().join("\n")
    }

    /// A request as the administrator: the HTTP status, 0 without an answer, and the answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_as(ADMIN, method, path, body)
    }

    /// A request as whoever has this token.
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

    /// Makes an object, which must not exist. Returns it as the server has it.
    pub fn create(&self, object: &Value) -> Value {
        let (status, answer) = self.ask("POST", &collection(object), Some(object));
        assert!(matches!(status, 200..=202), "{object:#} is refused with {status}: {answer:#}\n{}", self.log());
        answer
    }

    /// Makes each object of a text with YAML documents.
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

    /// Makes an object that has a status, as its creator and its controller would.
    pub fn create_with_status(&self, object: &Value) {
        self.create(object);
        self.report(object);
    }

    /// Writes an object's status, as its controller would.
    pub fn report(&self, object: &Value) {
        self.merge(&format!("{}/status", one(object)), &json!({"status": object["status"]}));
    }

    /// Changes an object by a merge patch.
    pub fn change(&self, object: &Value, change: &Value) {
        self.merge(&one(object), change);
    }

    fn merge(&self, path: &str, change: &Value) {
        let kind = "application/merge-patch+json";
        let (code, answer) = self.ask_with(ADMIN, "PATCH", path, kind, Some(&change.to_string()));
        assert_eq!(code, 200, "{answer:#}");
    }

    /// The minor number of the server's version: 20 of 1.20.
    pub fn minor_version(&self) -> u32 {
        let (_, version) = self.ask("GET", "/version", None);
        // Some builds have a `+` behind it.
        version["minor"].as_str().unwrap().trim_end_matches('+').parse().unwrap()
    }

    /// The object as the server has it.
    pub fn get(&self, object: &Value) -> Value {
        let (code, answer) = self.ask("GET", &one(object), None);
        assert_eq!(code, 200, "{answer:#}");
        answer
    }

    /// Ends an object at once.
    pub fn delete(&self, object: &Value) {
        let (code, answer) = self.ask("DELETE", &format!("{}?gracePeriodSeconds=0", one(object)), None);
        assert_eq!(code, 200, "{answer:#}");
    }

    /// Asks for an object's end, which whoever runs it makes in order.
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

    /// A new token of a service account, which the server takes for ten minutes.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let (status, answer) = self.ask("POST", &path, Some(&request));
        assert_eq!(status, 201, "{answer:#}");
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// The certificate of whoever has signed the server's.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("certificates/apiserver.crt")
    }

    /// How somebody reaches the server whose token is in this file.
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

/// Where an object is.
fn one(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap())
}

/// Where objects of this kind and namespace are.
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

fn spawn(netns: &Netns, program: &Path, words: &[&str], log: &Path) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    Running::start(netns.command(program, words).stdout(log.try_clone().unwrap()).stderr(log))
}
