//! A lab: a node with pods, an outside machine and the vswitch, each in a network namespace that the test creates.
//! ```text
//!   [ pod: eth0 ]--[ p2                    ul0 ]--[ outside: eth0 ]
//!   [ pod: eth0 ]--[ p3    node: bulkhead   hv ]--[ host0, in the node too ]
//! ```
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test file uses a part of this; tests may panic and print"
)]

pub mod bulk;
pub mod lasting;
pub mod netns;
pub mod router;
pub mod screen;
pub mod station;
pub mod watched;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use bulkhead_dataplane::io::{LinkInfo, in_namespace, tc_programs, xdp_programs};
use serde_json::Value;

use netns::{Netns, Running, eventually, eventually_within, ip, run};

/// A pod: its network namespace, and its metadata in the state.
#[derive(Debug)]
pub struct Pod {
    pub netns: Netns,
    /// The name of the host end of its veth.
    pub interface: String,
    pub name: String,
    labels: String,
    pub v4: String,
    pub v6: String,
    /// Whether the configuration lists the pod as a port.
    configured: bool,
    /// Whether the pod is left out of the state.
    hidden: bool,
    /// The network namespace that the configuration names for the pod.
    named: String,
}

/// Options for creating a lab.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The node's number N, from 1: its pods are in 10.244.N.0/24 and fd00:244:N::/64, the node is 172.18.0.1N.
    pub node: u8,
    pub mtu: u32,
    /// Queues of each end of a pod's veth.
    pub queues: u32,
    pub attach: Attach,
}

/// How the vswitch attaches to interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    Tc,
    /// AF_XDP sockets on the interfaces themselves.
    Xdp,
}

impl Attach {
    /// Reads `BULKHEAD_ATTACH`; the default is tc. `cargo xtask e2e` runs all tests with both.
    fn chosen() -> Self {
        match std::env::var("BULKHEAD_ATTACH").as_deref() {
            Err(_) | Ok("tc") => Self::Tc,
            Ok("xdp") => Self::Xdp,
            Ok(other) => panic!("BULKHEAD_ATTACH={other} is neither tc nor xdp"),
        }
    }

    /// Returns the value for the configuration's field `attach`: `tc` or `xdp`.
    const fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::Xdp => "xdp",
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { node: 1, mtu: 1500, queues: 1, attach: Attach::chosen() }
    }
}

/// A lab with its namespaces and files. Dropping it stops the vswitch and removes them.
#[derive(Debug)]
pub struct Lab {
    pub vswitch: Option<Running>,
    pub node: Netns,
    pub pods: Vec<Pod>,
    /// The namespace behind the uplink. `None` before [`Lab::outside`].
    pub outside: Option<Netns>,
    options: Options,
    has_host: bool,
    has_uplink: bool,
    /// The configuration's field `state`.
    pub state: String,
    /// Further lines of the configuration.
    pub more_config: String,
    /// Whether the vswitch starts with the lab's folder as its working directory and a relative path to its configuration.
    pub is_run_in_its_folder: bool,
    /// Further entries of the configuration's `ports`, one per line.
    pub more_ports: String,
    /// Annotations of the namespace `default`, as a YAML flow mapping in braces.
    pub annotations: String,
    /// Labels of the node, in the same form.
    pub node_labels: String,
    /// Whether its Node object has podCIDRs.
    pub has_pod_cidrs: bool,
    /// The beginning of the addresses that the Node object does not list. `None` if it lists all.
    pub unlisted: Option<&'static str>,
    /// Objects of the state in addition to the node, its namespace and its pods.
    pub more_state: String,
    folder: PathBuf,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let node = Netns::new(&format!("node{}", options.node));
        let folder = std::env::temp_dir().join(format!("bulkhead-e2e-{}", node.name()));
        fs::create_dir_all(&folder).unwrap();
        let (pods, more) = (Vec::new(), String::new());
        Self {
            vswitch: None,
            node,
            pods,
            outside: None,
            options,
            has_host: false,
            has_uplink: false,
            state: "{paths: [state.yaml]}".to_owned(),
            more_config: String::new(),
            is_run_in_its_folder: false,
            more_ports: String::new(),
            annotations: "{}".to_owned(),
            node_labels: "{}".to_owned(),
            has_pod_cidrs: true,
            unlisted: None,
            more_state: more,
            folder,
        }
    }

    fn is_tc(&self) -> bool {
        self.options.attach == Attach::Tc
    }

    /// Returns the path of a file in this lab's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Adds a pod to the namespace `default`. `labels` is YAML: `{role: db}`.
    pub fn pod(&mut self, name: &str, labels: &str) -> &Pod {
        self.pod_at(self.pods.len() + 2, name, labels)
    }

    /// Adds a pod whose addresses end with `number`.
    pub fn pod_at(&mut self, number: usize, name: &str, labels: &str) -> &Pod {
        let (node, netns) = (self.options.node, Netns::new(name));
        let named = netns.name().to_owned();
        let pod = Pod {
            netns,
            interface: format!("p{number}"),
            name: name.to_owned(),
            labels: labels.to_owned(),
            v4: format!("10.244.{node}.{number}"),
            v6: format!("fd00:244:{node}::{number}"),
            configured: true,
            hidden: false,
            named,
        };
        self.pods.push(pod);
        self.plug(name);
        self.get(name)
    }

    /// Creates a pod's veth, for the first time or again.
    pub fn plug(&self, name: &str) {
        let Pod { netns, interface, v4, v6, .. } = self.get(name);
        let Options { mtu, queues, .. } = self.options;
        veth_with(
            &self.node,
            interface,
            netns,
            "eth0",
            &format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}"),
        );
        lead_over(netns, "eth0", [v4, v6], ["default"; 2]);
    }

    /// Deletes a pod's veth, as the deletion of the pod does.
    pub fn unplug(&self, name: &str) {
        self.node.ip(&format!("link del {}", self.get(name).interface));
    }

    pub fn get(&self, name: &str) -> &Pod {
        self.pods.iter().find(|pod| pod.name == name).unwrap()
    }

    fn get_mut(&mut self, name: &str) -> &mut Pod {
        self.pods.iter_mut().find(|pod| pod.name == name).unwrap()
    }

    /// Adds a pod to the configuration or removes it; takes effect with [`Lab::write_config`].
    pub fn configure(&mut self, name: &str, configured: bool) {
        self.get_mut(name).configured = configured;
    }

    /// Changes the namespace that the configuration names for a pod; takes effect with [`Lab::write_config`].
    pub fn call_netns(&mut self, name: &str, netns: &str) {
        self.get_mut(name).named = netns.to_owned();
    }

    /// Removes a pod from the state or adds it again; takes effect with [`Lab::apply`].
    pub fn hide(&mut self, name: &str, hidden: bool) {
        self.get_mut(name).hidden = hidden;
    }

    /// Adds an uplink to a namespace with one machine, 172.18.0.100 and fd00:18::100. The vswitch uses the node's addresses on it.
    pub fn outside(&mut self) -> &Netns {
        let outside = Netns::new("outside");
        veth(&self.node, "ul0", &outside, "eth0", self.options.mtu);
        outside.ip("addr add 172.18.0.100/16 dev eth0");
        outside.ip("addr add fd00:18::100/64 dev eth0 nodad");
        if !self.is_tc() {
            outside.exec("ethtool -K eth0 tx off");
        }
        for node in 1..=2 {
            outside.ip(&format!("route add 10.244.{node}.0/24 via 172.18.0.1{node}"));
            outside.ip(&format!("-6 route add fd00:244:{node}::/64 via fd00:18::1{node}"));
        }
        self.has_uplink = true;
        self.outside.insert(outside)
    }

    /// Connects the node's kernel to a namespace with one machine, 172.18.0.100 and fd00:18::100, which has no route to pods. Adds a host port that the
    /// vswitch creates.
    pub fn outside_of_kernel(&mut self) -> &Netns {
        let outside = Netns::new("outside");
        veth(&outside, "eth0", &self.node, "card", 1500);
        outside.sysctl("net.ipv6.conf.eth0.disable_ipv6", "0");
        outside.ip("addr add 172.18.0.100/16 dev eth0");
        outside.ip("addr add fd00:18::100/64 dev eth0 nodad");
        self.node.ip(&format!("addr add {}/16 dev card", self.node_v4()));
        self.node.ip(&format!("addr add {}/64 dev card nodad", self.node_v6()));
        self.node.sysctl("net.ipv4.ip_forward", "1");
        self.node.sysctl("net.ipv6.conf.all.forwarding", "1");
        // The strictest setting, which some distributions have.
        self.node.sysctl("net.ipv4.conf.all.rp_filter", "1");
        self.more_ports = "  - {kind: host, interface: bh-host, peer: bh-node, create: {}}\n".to_owned();
        let routes = "routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]\n";
        self.more_config.push_str(routes);
        self.outside.insert(outside)
    }

    /// Adds the uplink `ul0`, which the test itself created, to the configuration.
    pub fn has_uplink(&mut self) {
        self.has_uplink = true;
    }

    /// Adds the host port. Its other end is `host0`, which has the node's addresses.
    pub fn host(&mut self) {
        let (node, v4, v6) = (&self.node, self.node_v4(), self.node_v6());
        veth(node, "hv", node, "host0", self.options.mtu);
        lead_over(node, "host0", [&v4, &v6], ["10.244.0.0/16", "fd00:244::/32"]);
        self.has_host = true;
    }

    pub fn node_name(&self) -> String {
        format!("node-{}", self.options.node)
    }

    pub fn node_v4(&self) -> String {
        format!("172.18.0.1{}", self.options.node)
    }

    pub fn node_v6(&self) -> String {
        format!("fd00:18::1{}", self.options.node)
    }

    /// Returns the node and its pods as Kubernetes objects, as YAML documents.
    pub fn objects(&self) -> String {
        let (name, number, labels) = (self.node_name(), self.options.node, &self.node_labels);
        let addresses: Vec<String> = [self.node_v4(), self.node_v6()]
            .into_iter()
            .filter(|address| self.unlisted.is_none_or(|beginning| !address.starts_with(beginning)))
            .map(|address| format!("{{type: InternalIP, address: '{address}'}}"))
            .collect();
        let addresses = addresses.join(", ");
        let blocks = format!("{{podCIDRs: [10.244.{number}.0/24, 'fd00:244:{number}::/64']}}");
        let spec = if self.has_pod_cidrs { &*blocks } else { "{}" };
        let mut text = format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n\
             spec: {spec}\n\
             status: {{addresses: [{addresses}]}}\n"
        );
        for Pod { name: pod, labels, v4, v6, .. } in self.pods.iter().filter(|pod| !pod.hidden) {
            write!(
                text,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: default, labels: {labels}}}\n\
                 spec: {{nodeName: {name}, containers: []}}\n\
                 status: {{phase: Running, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: '{v6}'}}]}}\n"
            )
            .unwrap();
        }
        text
    }

    /// Replaces the state file atomically by one with these policies.
    pub fn write_state(&self, policies: &str) {
        let metadata = format!("{{name: default, annotations: {}}}", self.annotations);
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {metadata}\n");
        let text = format!("{namespace}{}{}{policies}", self.objects(), self.more_state);
        self.replace("state.yaml", &text);
    }

    /// Replaces the configuration file atomically.
    pub fn write_config(&self) {
        let (node, more, state) = (self.node_name(), &self.more_config, &self.state);
        let attach = self.options.attach.name();
        let mut text = format!("node: {node}\nstate: {state}\n{more}attach: {attach}\n");
        if !has_tcx() && !more.contains("tcx: ") {
            text.push_str("tcx: false\n");
        }
        text.push_str("ports:\n");
        for pod in self.pods.iter().filter(|pod| pod.configured) {
            let (interface, netns) = (&pod.interface, &pod.named);
            let pod = format!("kind: pod, pod: default/{}, interface: {interface}", pod.name);
            let offloads = match self.is_tc() {
                true if more.contains("big_tcp: ") => format!(", netns: {netns}"),
                true => String::new(),
                false => format!(", netns: {netns}, fix_offloads: true"),
            };
            writeln!(text, "  - {{{pod}{offloads}}}").unwrap();
        }
        if self.has_uplink {
            text.push_str("  - {kind: uplink, interface: ul0}\n");
        }
        if self.has_host {
            let offloads = if self.is_tc() { "" } else { ", peer: host0, fix_offloads: true" };
            writeln!(text, "  - {{kind: host, interface: hv{offloads}}}").unwrap();
        }
        text.push_str(&self.more_ports);
        if !more.contains("admin: {") {
            text.push_str("admin: {socket: admin.sock}\n");
        }
        // Sessions are stored in the lab's folder, because other labs run in parallel.
        match text.split_once("sessions: {") {
            Some((before, after)) => text = format!("{before}sessions: {{folder: sessions, {after}"),
            None => text.push_str("sessions: {folder: sessions}\n"),
        }
        self.replace("config.yaml", &text);
    }

    fn replace(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    /// Starts the vswitch with these policies and waits until it forwards packets.
    pub fn start(&mut self, policies: &str) {
        self.start_with(policies, &[]);
    }

    pub fn start_with(&mut self, policies: &str, args: &[&str]) {
        self.launch(Path::new(env!("CARGO_BIN_EXE_bulkhead")), policies, args);
        self.wait_until_ready();
    }

    /// Waits until the launched vswitch forwards packets.
    pub fn wait_until_ready(&mut self) {
        let mut vswitch = self.vswitch.take().unwrap();
        eventually("the vswitch is ready", || {
            assert!(!vswitch.has_ended(), "it ended:\n{}", self.log());
            self.is_ready()
        });
        self.vswitch = Some(vswitch);
    }

    /// Starts `program` as the vswitch without waiting for it.
    pub fn launch(&mut self, program: &Path, policies: &str, args: &[&str]) {
        self.write_state(policies);
        self.write_config();
        let ready = self.path("ready");
        let _ = fs::remove_file(&ready);
        let paths = [self.path("config.yaml"), ready];
        let [mut config, ready_file] = paths.each_ref().map(|path| path.to_str().unwrap());
        if self.is_run_in_its_folder {
            config = "config.yaml";
        }
        let mut all = vec!["run", "--config", config, "--ready-file", ready_file, "-o", "json"];
        all.extend(args);
        let file = |name| fs::OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap();
        let mut command = self.node.command(program, &all);
        command.stdout(Stdio::piped()).stderr(file("log"));
        if self.is_run_in_its_folder {
            command.current_dir(self.path(""));
        }
        self.vswitch = Some(Running::start(&mut command));
    }

    /// Whether the vswitch has written its ready file.
    pub fn is_ready(&self) -> bool {
        self.path("ready").exists()
    }

    /// Runs `bulkhead run` as [`Lab::try_run`] does, with this text as its configuration.
    pub fn try_config(&self, text: &str, more: &[&str]) -> (Option<i32>, String) {
        self.replace("tried.yaml", text);
        self.try_run("tried.yaml", more)
    }

    /// Runs `bulkhead run` with this configuration file of the lab until it exits. Returns its exit code and its output.
    pub fn try_run(&self, config: &str, more: &[&str]) -> (Option<i32>, String) {
        let config = self.path(config);
        let words = [&["run", "--config", config.to_str().unwrap()], more].concat();
        let output = self.node.command(env!("CARGO_BIN_EXE_bulkhead"), &words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Runs a subcommand against the vswitch's admin socket. Returns its exit code and its output.
    pub fn ask(&self, words: &[&str]) -> (Option<i32>, String) {
        let socket = self.path("admin.sock");
        let words = [words, &["--socket", socket.to_str().unwrap()]].concat();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_bulkhead")).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Waits until the vswitch has replaced its tc filters by links, if it does that here.
    pub fn until_linked(&self) {
        if self.is_tc() && has_tcx() {
            let are_linked = || self.count("programs are attached by tcx links") > 0;
            eventually_within(60, "links have taken the place of filters", are_linked);
        }
    }

    /// Returns the vswitch's log. Empty if the file does not exist.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn vswitch(&self) -> &Running {
        self.vswitch.as_ref().unwrap()
    }

    /// Writes the state and waits until the vswitch logs that it is in force.
    pub fn apply(&self, policies: &str) {
        let before = self.count("in force");
        self.write_state(policies);
        eventually("the new state is in force", || self.count("in force") > before);
    }

    /// Returns the number of times that this text occurs in the log.
    pub fn count(&self, text: &str) -> usize {
        self.log().matches(text).count()
    }

    /// Returns the vswitch's counters as its JSON summary, requested by SIGUSR1.
    pub fn summary(&mut self) -> Value {
        let vswitch = self.vswitch.as_mut().unwrap();
        vswitch.signal("USR1");
        serde_json::from_str(&vswitch.line()).unwrap()
    }

    /// Stops the vswitch and returns its summary. Panics if a packet was lost without a drop reason.
    pub fn stop(&mut self) -> Value {
        let output = self.vswitch.take().unwrap().stop();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{}", self.log());
        let summary: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap();
        assert_eq!(summary["unaccounted"], 0, "{summary:#}");
        summary
    }

    /// Stops the vswitch and returns its output.
    pub fn stop_with_output(&mut self) -> Output {
        self.vswitch.take().unwrap().stop()
    }

    /// Kills the vswitch with SIGKILL.
    pub fn kill(&mut self) {
        drop(self.vswitch.take());
    }

    /// Lets the node's kernel forward between the pods, so that packets which bypass the vswitch would arrive.
    pub fn forward_past(&self) {
        for pod in &self.pods {
            self.forward_past_to(&pod.name);
        }
        self.node.sysctl("net.ipv4.conf.all.rp_filter", "0");
        self.node.sysctl("net.ipv4.ip_forward", "1");
    }

    /// Does for one pod, whose veth is new, what [`Lab::forward_past`] does for all.
    pub fn forward_past_to(&self, name: &str) {
        let Pod { netns, interface, v4, .. } = self.get(name);
        let mac = |netns: &Netns, interface: &str| netns.exec(&format!("cat /sys/class/net/{interface}/address"));
        let (pods, nodes) = (mac(netns, "eth0"), mac(&self.node, interface));
        self.node.ip(&format!("route add {v4}/32 dev {interface}"));
        self.node.ip(&format!("neigh replace {v4} lladdr {} dev {interface} nud permanent", pods.trim()));
        netns.ip(&format!("neigh replace 169.254.1.1 lladdr {} dev eth0 nud permanent", nodes.trim()));
        self.node.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0");
    }

    /// Returns a counter of a pod's kernel in `/proc/net/snmp`.
    pub fn counter(&self, pod: &str, protocol: &str, name: &str) -> u64 {
        let text = self.get(pod).netns.exec("cat /proc/net/snmp");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)).map(str::split_whitespace);
        let (mut names, mut numbers) = (lines.next().unwrap(), lines.next().unwrap());
        let at = names.position(|known| known == name).unwrap();
        numbers.nth(at).unwrap().parse().unwrap()
    }

    /// Whether the pod `from` receives an answer to one ping within a second.
    pub fn pings(&self, from: &str, to: &str) -> bool {
        self.get(from).netns.output(&format!("ping -n -c 1 -W 1 {to}")).status.success()
    }

    /// Whether the pod `from` can open a TCP connection within a second.
    pub fn connects(&self, from: &str, to: &str, port: u16) -> bool {
        self.get(from).netns.output(&format!("nc -n -z -w 1 {to} {port}")).status.success()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.vswitch.take());
        if std::thread::panicking() {
            // The test harness shows this output if the test fails.
            println!("--- log of {}\n{}", self.node_name(), self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Skips a test of AF_XDP sockets on interfaces if labs attach at tc.
#[macro_export]
macro_rules! only_with_xdp {
    () => {
        if $crate::lab::is_tc() {
            println!("skipped: it is about attach: xdp, and runs with BULKHEAD_ATTACH=xdp");
            return;
        }
    };
}

/// Skips a test of `attach: tc` if labs attach with AF_XDP sockets.
#[macro_export]
macro_rules! only_with_tc {
    () => {
        if !$crate::lab::is_tc() {
            println!("skipped: it is about attach: tc, and runs without BULKHEAD_ATTACH");
            return;
        }
    };
}

/// Whether labs attach at tc by default.
pub fn is_tc() -> bool {
    Attach::chosen() == Attach::Tc
}

/// Whether labs attach by tcx links, the default. `BULKHEAD_TCX` disables this: kernels before Linux 6.6 have no tcx.
pub fn has_tcx() -> bool {
    std::env::var("BULKHEAD_TCX").is_err()
}

/// Creates a veth pair between two namespaces and sets both ends up.
pub fn veth(one: &Netns, one_name: &str, other: &Netns, other_name: &str, mtu: u32) {
    veth_with(one, one_name, other, other_name, &format!("mtu {mtu}"));
}

fn veth_with(one: &Netns, one_name: &str, other: &Netns, other_name: &str, words: &str) {
    let (first, second) = (one.name(), other.name());
    ip(&format!("link add {one_name} netns {first} {words} type veth peer name {other_name} netns {second} {words}"));
    // The vswitch's end must have no address and must not send packets.
    if !std::ptr::eq(one, other) {
        one.sysctl(&format!("net.ipv6.conf.{one_name}.disable_ipv6"), "1");
    }
    one.ip(&format!("link set {one_name} up"));
    other.ip(&format!("link set {other_name} up"));
}

/// Gives a device these addresses, and routes to these networks by a router address that the vswitch answers for.
fn lead_over(netns: &Netns, device: &str, addresses: [&str; 2], networks: [&str; 2]) {
    let ([v4, v6], [networks_v4, networks_v6]) = (addresses, networks);
    netns.ip(&format!("addr add {v4}/32 dev {device}"));
    netns.ip(&format!("addr add {v6}/128 dev {device} nodad"));
    netns.ip(&format!("route add 169.254.1.1 dev {device} scope link"));
    netns.ip(&format!("route add {networks_v4} via 169.254.1.1 dev {device}"));
    netns.ip(&format!("-6 route add fe80::1 dev {device}"));
    netns.ip(&format!("-6 route add {networks_v6} via fe80::1 dev {device}"));
}

/// Returns a NetworkPolicy of the namespace `default`. `spec` is YAML on one line.
pub fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: default}}\nspec: {spec}\n"
    )
}

/// Whether an XDP program is attached to the interface.
pub fn has_xdp(netns: &Netns, interface: &str) -> bool {
    netns.ip(&format!("-d link show dev {interface}")).contains("prog/xdp")
}

/// Returns the number of the vswitch's programs on the interface with this index in the calling thread's namespace.
pub fn own_programs(index: u32) -> usize {
    let at_tc = tc_programs(index).unwrap().iter().filter(|program| program.name.starts_with("bulkhead")).count();
    at_tc + xdp_programs(index).unwrap().len()
}

/// Whether programs of the vswitch, at tc or XDP, are attached to the interface.
pub fn is_attached(netns: &Netns, interface: &str) -> bool {
    let path = Path::new("/run/netns").join(netns.name());
    in_namespace(&path, || LinkInfo::read(interface).is_ok_and(|link| own_programs(link.index) > 0)).unwrap()
}

/// Prints the packets of a capture file with tcpdump and these further arguments.
pub fn tcpdump_read(path: &Path, words: &str) -> String {
    let path = path.to_str().unwrap();
    let args: Vec<&str> = ["-n", "-r", path].into_iter().chain(words.split_whitespace()).collect();
    run("tcpdump", &args)
}

/// A tcpdump that captures at an `eth0` until it is stopped or dropped.
#[derive(Debug)]
pub struct Dump {
    tcpdump: Running,
    path: PathBuf,
}

impl Dump {
    /// Starts tcpdump in a pod and waits until it captures; its file exists before that. `words` are further options and the filter.
    pub fn start(lab: &Lab, pod: &str, words: &str) -> Self {
        Self::start_in(lab, &lab.get(pod).netns, words)
    }

    /// Starts tcpdump in any namespace.
    pub fn start_in(lab: &Lab, netns: &Netns, words: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [path, said] = ["pcap", "stderr"].map(|ending| lab.path(&format!("seen-{number}.{ending}")));
        let line = format!("-n -i eth0 -U --immediate-mode -w {} {words}", path.display());
        let mut command = netns.command("tcpdump", &line.split_whitespace().collect::<Vec<_>>());
        command.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap());
        let tcpdump = Running::start(&mut command);
        eventually("tcpdump listens", || fs::read_to_string(&said).unwrap().contains("listening on"));
        Self { tcpdump, path }
    }

    /// Returns the packets captured so far, printed by tcpdump with these arguments.
    pub fn so_far(&self, words: &str) -> String {
        tcpdump_read(&self.path, words)
    }

    /// Stops the capture. Returns all packets, printed by tcpdump with these arguments.
    pub fn seen(self, words: &str) -> String {
        // A sleeping tcpdump has read all packets. SIGTERM would make a running one discard the rest.
        eventually("tcpdump has read everything", || self.tcpdump.sleeps());
        self.tcpdump.stop();
        tcpdump_read(&self.path, words)
    }
}

/// Replaces a file by one whose `open` blocks, as on a network file system whose server does not answer. A lease blocks the reader until
/// the kernel breaks it after 45 s. Prints `waits` when a reader blocks.
pub const UNANSWERED: &str = "
import fcntl, os, signal, sys
signal.alarm(40)
path = sys.argv[1]
file = open(path + '.new', 'w+')
file.write(open(path).read() + '# changed')
file.flush()
signal.signal(signal.SIGIO, lambda *_: print('waits', flush=True))
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.rename(path + '.new', path)
print('ready', flush=True)
while True:
    signal.pause()
";
