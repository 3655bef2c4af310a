//! A node on which a kubelet and containerd run real containers.
//! ```text
//!   [ the lab's node: its network namespace, with bulkhead                                        ]
//!   [   the machine: a mount and a PID namespace                                                  ]
//!   [     kubelet --CRI--> containerd --> runc: containers; and the CNI plugins, for their networks ]
//! ```
//!
//! Paths are the usual ones (`/var/lib/kubelet`, `/etc/cni/net.d`); mounts redirect them to the machine's own folder.
//!
//! **Invariant.** Every process of the machine ends with the first process of its PID namespace, which ends with the test. The kernel then
//! removes the machine's mounts. Its control groups remain until `Drop` removes them.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test file uses a part of this; tests may panic and print"
)]

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cni;
use super::control_plane::{DUAL_STACK, minor_version, within};
use super::lab::Lab;
use super::lab::netns::{Running, run};

/// The image of all containers, including those that only hold a pod's namespaces: busybox, built by [`Machine::start`].
pub const IMAGE: &str = "bulkhead.test/busybox:1";

/// The address of the Service that pods ask for names, as kubeadm chooses it.
pub const DNS: &str = "10.96.0.10";

/// The root of the control groups. Each controller of version 1 has its own folder below.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// The controllers that a kubelet requires.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];

/// The time limit for killed processes to leave their control groups.
const GONE: Duration = Duration::from_secs(10);

/// A shell script that turns the host's file system into the machine's; `$1` is the machine's folder. It keeps the control groups, mounts a
/// /sys for the machine's network namespace, and hides the host's CNI plugins and networks. Later mounts reach containers with mount
/// propagation, but not the host. The script ends as the machine's first process.
const SETUP: &str = "
set -e
mkdir \"$1/cgroup\" \"$1/lib\"
mount --rbind /sys/fs/cgroup \"$1/cgroup\"
mount -t sysfs sysfs /sys
mount --rbind \"$1/cgroup\" /sys/fs/cgroup
umount -l \"$1/cgroup\"
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount --bind \"$1/lib\" /var/lib
for name in etc opt; do
    mkdir \"$1/$name\" \"$1/$name.work\"
    mount -t overlay overlay -o \"lowerdir=/$name,upperdir=$1/$name,workdir=$1/$name.work\" \"/$name\"
done
rm -rf /opt/cni /etc/cni
mkdir -p /opt/cni/bin /etc/cni/net.d /run/netns
mount --make-rshared /
echo ready
exec sleep 2147483647
";

/// Paths of the programs, which `cargo xtask cluster` sets.
#[derive(Clone, Debug)]
pub struct NodePrograms {
    kubelet: PathBuf,
    containerd: PathBuf,
    busybox: PathBuf,
}

impl NodePrograms {
    /// Reads the paths from the environment. `None` if a variable is unset.
    pub fn found() -> Option<Self> {
        let named = |name| env::var_os(name).map(PathBuf::from);
        Some(Self {
            kubelet: named("BULKHEAD_KUBELET")?,
            containerd: named("BULKHEAD_CONTAINERD")?,
            busybox: named("BULKHEAD_BUSYBOX").unwrap_or_else(|| PathBuf::from("/bin/busybox")),
        })
    }

    /// Returns a message about the first program that is missing or not static. `None` if all are usable.
    pub fn missing(&self) -> Option<String> {
        let Self { kubelet, containerd, busybox } = self;
        if let Some(program) = [kubelet, containerd, busybox].into_iter().find(|program| !program.is_file()) {
            return Some(format!("{} is not there", program.display()));
        }
        // The image contains no shared libraries.
        let is_dynamic = Command::new("ldd").arg(busybox).output().unwrap().status.success();
        is_dynamic.then(|| format!("{} is not a static one (busybox-static)", busybox.display()))
    }
}

/// Why this machine cannot run containers, whatever is installed. `None` if it can.
pub fn obstacle() -> Option<String> {
    let root = Path::new(CONTROL_GROUPS);
    if root.join("cgroup.controllers").exists() {
        return Some("the control groups are of version 2, which these tests do not know".to_owned());
    }
    let missing = CONTROLLERS.into_iter().find(|name| !root.join(name).join("cgroup.procs").exists());
    if let Some(name) = missing {
        return Some(format!("there is no {CONTROL_GROUPS}/{name}"));
    }
    let tried = root.join(format!("memory/bulkhead-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&tried).and_then(|()| fs::remove_dir(&tried)) {
        return Some(format!("no control group can be made in {CONTROL_GROUPS}: {error}"));
    }
    let mounts = "mount -t sysfs sysfs /sys && mount -t bpf bpf /sys/fs/bpf && mount -t overlay overlay -o lowerdir=/etc:/opt /run";
    let words = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", mounts];
    let output = Command::new("unshare").args(words).output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Returns the programs of a node. Skips the test if their paths are unset or containers cannot run; fails if a path is set and its program
/// is unusable.
#[macro_export]
macro_rules! node_programs {
    () => {{
        let Some(programs) = $crate::machine::NodePrograms::found() else {
            println!("skipped: `cargo xtask cluster` runs this, with BULKHEAD_KUBELET and BULKHEAD_CONTAINERD");
            return;
        };
        $crate::require!("runc", "nsenter", "unshare", "setpriv", "tar", "sha256sum");
        $crate::require_plugins!();
        if let Some(why) = programs.missing() {
            let must = std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "require");
            assert!(!must, "this test must run (BULKHEAD_E2E=require), but {why}");
            println!("skipped: {why}");
            return;
        }
        if let Some(why) = $crate::machine::obstacle() {
            println!("skipped: no containers can be run here: {why}");
            return;
        }
        programs
    }};
}

/// A node's machine: its namespaces, containerd and kubelet. Dropping it ends all its processes.
#[derive(Debug)]
pub struct Machine {
    kubelet: Option<Running>,
    containerd: Option<Running>,
    /// The process that created the namespaces.
    outer: Option<Running>,
    /// The host's process id of the machine's first process.
    first: u32,
    programs: NodePrograms,
    folder: PathBuf,
    /// The name of its control groups.
    name: String,
    node: String,
    /// The node's addresses for the next start of the kubelet: one, or one of each family with a comma between.
    pub addresses: String,
}

impl Machine {
    /// Starts a machine on this lab's node with containerd, the test image and the standard CNI plugins. It has no kubelet yet.
    pub fn start(programs: NodePrograms, lab: &Lab) -> Self {
        let folder = lab.path("machine");
        fs::create_dir_all(&folder).unwrap();
        let netns = format!("--net=/run/netns/{}", lab.node.name());
        let mut command = Command::new("nsenter");
        // `ip netns exec` would hide the control groups. The first `setpriv` ends the machine if the test is killed.
        command.args([&netns, "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--mount-proc"]);
        command.args(["--fork", "--kill-child", "sh", "-c", SETUP, "sh"]).arg(&folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut outer = Running::start(&mut command);
        assert_eq!(outer.line(), "ready");
        let children = format!("/proc/{0}/task/{0}/children", outer.id());
        let first = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        let mut machine = Self {
            kubelet: None,
            containerd: None,
            outer: Some(outer),
            first,
            programs,
            folder,
            name: format!("bulkhead-{}", lab.node.name()),
            node: lab.node_name(),
            addresses: lab.node_v4(),
        };
        machine.make_control_groups();
        machine.start_containerd();
        machine.import_image();
        // containerd runs it for each pod.
        let loopback = cni::plugins().unwrap().join("loopback");
        machine.exec("cp", &[loopback.to_str().unwrap(), "/opt/cni/bin/"]);
        machine
    }

    /// Returns a command that runs in the machine and is killed when the test's thread ends.
    pub fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.first.to_string(), "--mount", "--pid", "--net"]);
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program).args(words);
        // containerd searches this path for its shim and for runc.
        let beside = self.programs.containerd.parent().unwrap();
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [beside.to_owned()].into_iter().chain(env::split_paths(&path));
        let folders = folders.chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
        command.env("PATH", env::join_paths(folders).unwrap()).stdin(Stdio::null());
        command
    }

    /// Runs a program in the machine and returns its output, even if the program fails.
    pub fn output(&self, program: &str, words: &[&str]) -> Output {
        self.command(Path::new(program), words).output().unwrap()
    }

    /// Runs a program in the machine and returns its standard output. Panics if the program fails.
    pub fn exec(&self, program: &str, words: &[&str]) -> String {
        let output = self.output(program, words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {}: {errors}", words.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    fn spawn(&self, program: &Path, words: &[&str], log: &str) -> Running {
        let log = File::options().create(true).append(true).open(self.folder.join(log)).unwrap();
        Running::start(self.command(program, words).stdout(log.try_clone().unwrap()).stderr(log))
    }

    fn text(&self, name: &str) -> String {
        self.folder.join(name).into_os_string().into_string().unwrap()
    }

    fn start_containerd(&mut self) {
        // Lowering an OOM score below the current one requires CAP_SYS_RESOURCE.
        let config = format!(
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
             restrict_oom_score_adj = true\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
             bin_dir = \"/opt/cni/bin\"\nconf_dir = \"/etc/cni/net.d\"\n"
        );
        let path = self.text("containerd.toml");
        fs::write(&path, config).unwrap();
        let containerd = self.spawn(&self.programs.containerd, &["--config", &path], "containerd.log");
        self.containerd = Some(containerd);
        within("containerd answers", || self.output("ctr", &["version"]).status.success());
    }

    /// Imports the test image: busybox, with links named after the commands that tests run.
    fn import_image(&self) {
        self.import(
            IMAGE,
            &self.programs.busybox,
            "bin/busybox",
            &["cat", "hostname", "httpd", "mkdir", "nc", "nslookup", "sh", "sleep"],
        );
    }

    /// Imports an image of the tested program with its shared libraries, `rm` and `sleep`.
    pub fn import_bulkhead(&self, image: &str) {
        let program = Path::new(env!("CARGO_BIN_EXE_bulkhead"));
        self.import_linked(image, program, "usr/local/bin/bulkhead");
    }

    /// Imports an image of a program of the host with its shared libraries, `rm`, `sleep` and the user root.
    pub fn import_linked(&self, image: &str, program: &Path, to: &str) {
        let root = self.folder.join(image.replace(['/', ':'], "-"));
        let linked = run("ldd", &[program.to_str().unwrap()]);
        // ldd prints `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)`, or only the path.
        for library in linked.split_whitespace().filter_map(|word| word.strip_prefix('/')) {
            copy(&Path::new("/").join(library), &root.join(library));
        }
        copy(&self.programs.busybox, &root.join("bin/busybox"));
        for name in ["rm", "sleep"] {
            symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
        self.import(image, program, to, &[]);
    }

    /// Imports an image of one layer: the image's folder, with `program` at `to` and links to it by these names.
    fn import(&self, image: &str, program: &Path, to: &str, names: &[&str]) {
        let name = image.replace(['/', ':'], "-");
        let [root, layer, whole] = ["", ".layer.tar", ".tar"].map(|ending| self.text(&format!("{name}{ending}")));
        let program_in_image = Path::new(&root).join(to);
        copy(program, &program_in_image);
        for name in names {
            symlink(program_in_image.file_name().unwrap(), program_in_image.with_file_name(name)).unwrap();
        }
        run("tar", &["-C", &root, "--owner", "0", "--group", "0", "-cf", &layer, "."]);
        let digest = run("sha256sum", &[&layer]);
        let digest = digest.split_whitespace().next().unwrap();
        // This is the format of `docker save`, which needs fewer files than an OCI layout.
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let config = json!({"architecture": architecture(), "os": "linux",
            "config": {"Env": [path], "Cmd": ["/bin/sleep", "2147483647"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
        let [config_file, manifest_file] = ["config", "manifest"].map(|name| format!("{name}.json"));
        let layer_file = format!("{name}.layer.tar");
        let manifest = json!([{"Config": config_file, "RepoTags": [image], "Layers": [layer_file]}]);
        for (file, value) in [(&config_file, config), (&manifest_file, manifest)] {
            fs::write(self.folder.join(file), value.to_string()).unwrap();
        }
        let folder = self.folder.to_str().unwrap();
        run("tar", &["-C", folder, "-cf", &whole, &manifest_file, &config_file, &layer_file]);
        self.exec("ctr", &["-n", "k8s.io", "images", "import", &whole]);
    }

    /// Starts the kubelet, which registers the node with the API server of this kubeconfig.
    pub fn start_kubelet(&mut self, kubeconfig: &Path) {
        let minor = minor_version(&self.programs.kubelet);
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.name),
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            // The tests must also pass on a nearly full disk.
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            "resolvConf": "",
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            // The kubelet notices changes after a second instead of a minute.
            "syncFrequency": "1s",
        });
        if self.addresses.contains(',') && minor < DUAL_STACK {
            config["featureGates"] = json!({"IPv6DualStack": true});
        }
        if minor >= 31 {
            config["failCgroupV1"] = false.into();
        }
        let path = self.text("kubelet.json");
        fs::write(&path, config.to_string()).unwrap();
        let mut words = vec![
            format!("--config={path}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={}", self.node),
            format!("--node-ip={}", self.addresses),
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock".to_owned(),
        ];
        if minor < 24 {
            words.push("--container-runtime=remote".to_owned());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.kubelet = Some(self.spawn(&self.programs.kubelet, &words, "kubelet.log"));
    }

    /// Kills the kubelet with SIGKILL. Containers keep running.
    pub fn kill_kubelet(&mut self) {
        drop(self.kubelet.take());
    }

    /// Runs a program in the pod's first container and returns its output, even if the program fails.
    pub fn output_in(&self, pod: &Value, words: &[&str]) -> Output {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let exec = ["-n", "k8s.io", "tasks", "exec", "--exec-id", &id, container(pod).unwrap()];
        self.output("ctr", &[&exec[..], words].concat())
    }

    /// Returns the process id of the pod's first container. `None` if the container does not run.
    pub fn process(&self, pod: &Value) -> Option<u32> {
        let group = find(&Path::new(CONTROL_GROUPS).join("memory").join(&self.name), container(pod)?)?;
        fs::read_to_string(group.join("cgroup.procs")).ok()?.lines().next()?.parse().ok()
    }

    /// Returns the path of the pod's network namespace. Panics if the pod's first container does not run.
    pub fn netns(&self, pod: &Value) -> PathBuf {
        let process = self.process(pod).unwrap_or_else(|| panic!("it does not run: {pod:#}"));
        PathBuf::from(format!("/proc/{process}/ns/net"))
    }

    fn make_control_groups(&self) {
        for parent in controllers() {
            fs::create_dir(parent.join(&self.name)).unwrap();
            // A new group of this controller has no CPUs and accepts no processes.
            for file in ["cpuset.cpus", "cpuset.mems"].into_iter().filter(|file| parent.join(file).exists()) {
                fs::write(parent.join(&self.name).join(file), fs::read(parent.join(file)).unwrap()).unwrap();
            }
        }
    }

    /// Removes the machine's control groups with all groups in them, after their processes have ended.
    fn remove_control_groups(&self) {
        let start = Instant::now();
        for group in controllers().into_iter().map(|controller| controller.join(&self.name)) {
            while group.exists() && start.elapsed() < GONE {
                remove_group(&group);
                std::thread::sleep(Duration::from_millis(10));
            }
            if group.exists() {
                println!("{} is still there", group.display());
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill_kubelet();
        drop(self.containerd.take());
        if std::thread::panicking() {
            // The test harness shows this output if the test fails.
            for name in ["kubelet.log", "containerd.log"] {
                let log = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                // Severe levels of klog (F, E, W) and of logfmt.
                let is_bad = |line: &&str| {
                    line.starts_with(['F', 'E', 'W']) || line.contains("level=error") || line.contains("level=warn")
                };
                let lines: Vec<&str> = log.lines().filter(is_bad).collect();
                println!("--- end of {name}\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            }
        }
        // Ends the first process. That one is gone after every process in its PID namespace is.
        drop(self.outer.take());
        let (start, first) = (Instant::now(), PathBuf::from(format!("/proc/{}", self.first)));
        while first.exists() && start.elapsed() < GONE {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.remove_control_groups();
    }
}

/// Returns the root folder of each control group controller. A controller can occur twice, under two names.
fn controllers() -> Vec<PathBuf> {
    let entries = fs::read_dir(CONTROL_GROUPS).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Searches `folder` and its subfolders for a folder of this name.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let folders = fs::read_dir(folder).ok()?.flatten().filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.path()).find_map(|path| if path.ends_with(name) { Some(path) } else { find(&path, name) })
}

/// Copies a file and creates missing parent folders.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// Removes a control group and its subgroups, except those that still have processes.
fn remove_group(group: &Path) {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).for_each(|entry| remove_group(&entry.path()));
    let _ = fs::remove_dir(group);
}

/// Returns the ID of the pod's first container. `None` before the kubelet reports one.
fn container(pod: &Value) -> Option<&str> {
    pod["status"]["containerStatuses"][0]["containerID"].as_str()?.strip_prefix("containerd://")
}

/// This machine's architecture by Go's name.
fn architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
