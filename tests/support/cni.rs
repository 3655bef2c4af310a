//! A minimal container runtime: it makes sandboxes and runs CNI plugins by the specification's convention.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; tests may panic"
)]

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::in_namespace;
use serde_json::{Value, json};

use super::lab::netns::Netns;

/// Returns the folder of the standard plugins (`host-local`, `ptp`): `BULKHEAD_CNI_PLUGINS`, or where Debian's containernetworking-plugins
/// or the Kubernetes packages install them. `None` if `host-local` is in none of them.
pub fn plugins() -> Option<PathBuf> {
    let named = std::env::var_os("BULKHEAD_CNI_PLUGINS").map(PathBuf::from);
    let usual = ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from);
    named.into_iter().chain(usual).find(|folder| folder.join("host-local").is_file())
}

/// Skips the test if the standard plugins are not installed. With `BULKHEAD_E2E=require`, fails instead.
#[macro_export]
macro_rules! require_plugins {
    () => {
        if $crate::cni::plugins().is_none() {
            let must = std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "require");
            assert!(
                !must,
                "this test must run (BULKHEAD_E2E=require), but there is no host-local; see BULKHEAD_CNI_PLUGINS"
            );
            println!("skipped: host-local is not installed (containernetworking-plugins)");
            return;
        }
    };
}

/// A pod's sandbox: a container ID and a network namespace.
#[derive(Debug)]
pub struct Sandbox {
    pub id: String,
    pub netns: Netns,
    pub pod: String,
    pub namespace: String,
    pub uid: String,
    /// The result of the last plugin of the ADD. Null before the first ADD.
    pub result: Value,
}

impl Sandbox {
    /// Makes a sandbox for a pod of namespace `default`.
    pub fn new(pod: &str) -> Self {
        let netns = Netns::new(pod);
        let id = format!("sandbox-{}", netns.name());
        let (uid, namespace) = (format!("uid-{id}"), "default".to_owned());
        Self { id, netns, pod: pod.to_owned(), namespace, uid, result: Value::Null }
    }

    /// Makes a sandbox for this Pod object of the API server.
    pub fn of(object: &Value) -> Self {
        let field = |name: &str| object["metadata"][name].as_str().unwrap().to_owned();
        Self { namespace: field("namespace"), uid: field("uid"), ..Self::new(&field("name")) }
    }

    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(self.netns.name())
    }

    /// Returns the pod's addresses from the result of the ADD, without prefix lengths.
    pub fn addresses(&self) -> Vec<String> {
        let ips = self.result["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }

    pub fn v4(&self) -> String {
        self.addresses().into_iter().find(|address| !address.contains(':')).unwrap()
    }

    pub fn v6(&self) -> String {
        self.addresses().into_iter().find(|address| address.contains(':')).unwrap()
    }

    /// Returns the name of the host end of the pod's veth.
    pub fn node_end(&self) -> String {
        let interfaces = self.result["interfaces"].as_array().unwrap();
        let node = interfaces.iter().find(|interface| interface.get("sandbox").is_none());
        node.unwrap()["name"].as_str().unwrap().to_owned()
    }

    pub fn pings(&self, to: &str) -> bool {
        self.netns.output(&format!("ping -n -c 1 -W 1 {to}")).status.success()
    }
}

/// A node's container runtime with one CNI network.
#[derive(Debug)]
pub struct Runtime {
    node: PathBuf,
    /// The value of `CNI_PATH`.
    path: String,
    pub network: String,
    pub version: String,
    /// The plugins' configurations, in the order in which ADD runs them.
    pub plugins: Vec<Value>,
}

impl Runtime {
    /// Makes a runtime whose only chained plugin is `bulkhead-cni`, using this admin socket. It keeps the reserved addresses in `folder`.
    pub fn new(node: &Netns, folder: &Path, socket: &Path) -> Self {
        let ours = folder.join("cni");
        std::fs::create_dir_all(&ours).unwrap();
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bulkhead"), ours.join("bulkhead-cni"));
        let others = plugins().unwrap_or_default();
        let ranges = json!([[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:1::/64"}]]);
        let ipam = json!({"type": "bulkhead-cni", "dataDir": folder.join("leases"), "ranges": ranges});
        Self {
            node: Path::new("/run/netns").join(node.name()),
            path: format!("{}:{}", ours.display(), others.display()),
            network: "pods".to_owned(),
            version: "1.0.0".to_owned(),
            plugins: vec![json!({"type": "bulkhead-cni", "socket": socket, "ipam": ipam})],
        }
    }

    /// Uses the network of this configuration file, with the reserved addresses in the folder `leases`.
    pub fn take(&mut self, conflist: &Path, leases: &Path) {
        let conf: Value = serde_json::from_slice(&std::fs::read(conflist).unwrap()).unwrap();
        let text = |name: &str| conf[name].as_str().unwrap().to_owned();
        (self.network, self.version) = (text("name"), text("cniVersion"));
        self.plugins.clone_from(conf["plugins"].as_array().unwrap());
        for plugin in self.plugins.iter_mut().filter(|plugin| plugin.get("ipam").is_some()) {
            plugin["ipam"]["dataDir"] = leases.to_str().unwrap().into();
        }
    }

    /// Runs a plugin with this command and configuration. Returns its result, or the error that it printed.
    pub fn run(&self, command: &str, sandbox: &Sandbox, conf: &Value) -> Result<Value, Value> {
        self.run_with(command, sandbox, conf, &[])
    }

    /// Runs a plugin as [`Self::run`] does, with these environment variables added or replaced.
    pub fn run_with(
        &self,
        command: &str,
        sandbox: &Sandbox,
        conf: &Value,
        variables: &[(&str, &Path)],
    ) -> Result<Value, Value> {
        let output = self.start(command, sandbox, conf, variables).wait_with_output().unwrap();
        let said = if output.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&output.stdout).unwrap() };
        if output.status.success() { Ok(said) } else { Err(said) }
    }

    /// Starts an ADD of the first plugin, and kills it after this time.
    pub fn kill_add(&self, sandbox: &Sandbox, after: Duration) {
        let mut child = self.start("ADD", sandbox, &self.plugins[0], &[]);
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a plugin as [`Self::run_with`] does.
    fn start(&self, command: &str, sandbox: &Sandbox, conf: &Value, variables: &[(&str, &Path)]) -> Child {
        let mut conf = conf.clone();
        conf["name"] = self.network.clone().into();
        if conf.get("cniVersion").is_none() {
            conf["cniVersion"] = self.version.clone().into();
        }
        let kind = conf["type"].as_str().unwrap().to_owned();
        let program = std::env::split_paths(&self.path).map(|folder| folder.join(&kind)).find(|path| path.is_file());
        let program = program.unwrap_or_else(|| panic!("there is no plugin {kind} in {}", self.path));
        let mut process = Command::new(program);
        process.env("CNI_COMMAND", command).env("CNI_PATH", &self.path);
        if !["GC", "STATUS"].contains(&command) {
            let Sandbox { id, pod, namespace, uid, .. } = sandbox;
            let said = format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
            );
            process.envs([("CNI_CONTAINERID", id.as_str()), ("CNI_IFNAME", "eth0"), ("CNI_ARGS", &said)]);
            process.env("CNI_NETNS", sandbox.path());
        }
        process.envs(variables.iter().copied());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // The child inherits the network namespace of the thread that starts it.
        let mut child = in_namespace(&self.node, || process.spawn().unwrap()).unwrap();
        child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
        child
    }

    /// Adds a sandbox to the network. Returns how long the plugins took, or the first error.
    pub fn try_add(&self, sandbox: &mut Sandbox) -> Result<Duration, Value> {
        let (start, mut previous) = (Instant::now(), Value::Null);
        for plugin in &self.plugins {
            let conf = with_previous(plugin, &previous);
            previous = self.run("ADD", sandbox, &conf)?;
        }
        let took = start.elapsed();
        sandbox.result = previous;
        Ok(took)
    }

    pub fn add(&self, sandbox: &mut Sandbox) -> Duration {
        self.try_add(sandbox).unwrap_or_else(|error| panic!("ADD of {}: {error:#}", sandbox.pod))
    }

    /// Removes a sandbox from the network. May be repeated. Panics if a plugin fails.
    pub fn del(&self, sandbox: &Sandbox) {
        for plugin in self.plugins.iter().rev() {
            let deleted = self.run("DEL", sandbox, &with_previous(plugin, &sandbox.result));
            deleted.unwrap_or_else(|error| panic!("DEL of {}: {error:#}", sandbox.pod));
        }
    }

    /// Runs CHECK for a sandbox. The error is the failing plugin's `details`.
    pub fn check(&self, sandbox: &Sandbox) -> Result<(), String> {
        for plugin in &self.plugins {
            let checked = self.run("CHECK", sandbox, &with_previous(plugin, &sandbox.result));
            checked.map_err(|error| error["details"].as_str().unwrap_or_default().to_owned())?;
        }
        Ok(())
    }
}

fn with_previous(plugin: &Value, previous: &Value) -> Value {
    let mut conf = plugin.clone();
    if !previous.is_null() {
        conf["prevResult"] = previous.clone();
    }
    conf
}

/// Whether a server in one pod receives a single UDP datagram that another pod sends to this port.
pub fn one_datagram(from: &Sandbox, to: &Sandbox, port: u16) -> bool {
    let address: SocketAddr = format!("{}:{port}", to.v4()).parse().unwrap();
    let server = in_namespace(&to.path(), || UdpSocket::bind(address).unwrap()).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let client = in_namespace(&from.path(), || UdpSocket::bind(("0.0.0.0", 0)).unwrap()).unwrap();
    client.send_to(b"first", address).unwrap();
    server.recv(&mut [0; 16]).is_ok()
}
