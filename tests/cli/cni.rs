//! The CNI plugin as a container runtime runs it: results, errors and requests that need no network namespaces.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::api_server::ApiServer;
use crate::fake_vswitch::FakeVswitch;
use crate::support::{bulkhead, stdout};
use serde_json::{Value, json};

/// The folder of one test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cni-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn socket(&self) -> PathBuf {
        self.path("admin.sock")
    }

    /// The plugin's configuration with these additional fields.
    fn conf(&self, more: Value) -> Value {
        let mut conf = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bulkhead-cni", "socket": self.socket()});
        let Value::Object(more) = more else { unreachable!() };
        conf.as_object_mut().unwrap().extend(more);
        conf
    }

    /// Installs an IPAM plugin: a shell script that runs in this folder.
    fn ipam(&self, script: &str) {
        let path = self.path("fake-ipam");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", self.0.display())).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The removals recorded for later because the vswitch did not answer.
    fn missed(&self) -> Vec<Value> {
        let Ok(entries) = fs::read_dir(self.path("missed-deletions")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        files.map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).collect()
    }

    /// Runs the plugin for container `c1`. `variables` override its environment.
    fn plugin(&self, command: &str, conf: &Value, variables: &[(&str, &str)]) -> Output {
        // Any file that is not this process's namespace: no test here enters it.
        let netns = self.text("netns");
        fs::write(&netns, "").unwrap();
        let all = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", &netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", self.0.to_str().unwrap()),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_UID=u-1;NEW=1"),
        ];
        let said = all.into_iter().filter(|(name, _)| variables.iter().all(|(other, _)| other != name));
        run(&["cni"], &said.chain(variables.iter().copied()).collect::<Vec<_>>(), conf.to_string().as_bytes())
    }
}

fn run(words: &[&str], variables: &[(&str, &str)], input: &[u8]) -> Output {
    run_program(Path::new(env!("CARGO_BIN_EXE_bulkhead")), words, variables, input)
}

fn run_program(program: &Path, words: &[&str], variables: &[(&str, &str)], input: &[u8]) -> Output {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(words).env_clear().env("PATH", path).envs(variables.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The plugin may exit before it reads its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// The code and the details of an error, which must be the only standard output.
fn error(output: &Output) -> (u64, String) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(error["cniVersion"].is_string() && error["msg"].as_str().is_some_and(|message| !message.is_empty()));
    (error["code"].as_u64().unwrap(), error["details"].as_str().unwrap().to_owned())
}

fn assert_silent_success(output: &Output) {
    assert_eq!(stdout(output, 0), "");
}

#[test]
fn it_tells_its_versions_by_either_name() {
    let place = Place::new("version");
    let by_name = place.path("bulkhead-cni");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bulkhead"), &by_name).unwrap();
    let variables = [("CNI_COMMAND", "VERSION")];
    for output in [
        run(&["cni"], &variables, br#"{"cniVersion":"1.0.0"}"#),
        run_program(&by_name, &[], &variables, br#"{"cniVersion":"1.0.0"}"#),
    ] {
        let told: Value = serde_json::from_str(&stdout(&output, 0)).unwrap();
        assert_eq!(told, json!({"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}));
    }
    assert!(stdout(&run_program(&by_name, &["install", "--help"], &[], b""), 0).contains("--range"));
}

#[test]
fn what_is_missing_or_malformed_is_an_error_on_standard_output_with_its_code() {
    let place = Place::new("malformed");
    let conf = place.conf(json!({}));
    for (output, code, says) in [
        (run(&["cni"], &[], b""), 4, "CNI_COMMAND: missing"),
        (
            place.plugin("UPDATE", &conf, &[]),
            4,
            "CNI_COMMAND: `UPDATE` is not one of ADD, DEL, CHECK, GC, STATUS, VERSION",
        ),
        (
            place.plugin("ADD", &conf, &[("CNI_CONTAINERID", ""), ("CNI_IFNAME", "")]),
            4,
            "CNI_CONTAINERID, CNI_IFNAME: missing",
        ),
        (
            place.plugin("ADD", &conf, &[("CNI_ARGS", "IgnoreUnknown=1")]),
            4,
            "CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME",
        ),
        (place.plugin("ADD", &conf, &[("CNI_NETNS", "/no/such/netns")]), 3, "CNI_NETNS: /no/such/netns"),
        (place.plugin("ADD", &conf, &[("CNI_NETNS", "/proc/self/ns/net")]), 4, "this is the node's own namespace"),
        (place.plugin("ADD", &conf, &[("CNI_NETNS", "/dev/null")]), 4, "/dev/null: not a network namespace"),
        (run(&["cni"], &[("CNI_COMMAND", "STATUS")], b"{"), 6, "standard input: EOF"),
        (place.plugin("ADD", &json!([]), &[]), 6, "standard input: it is not a JSON object"),
        (
            place.plugin("ADD", &place.conf(json!({"cniVersion": "0.3.1"})), &[]),
            1,
            "cniVersion: `0.3.1` is not supported",
        ),
        (place.plugin("ADD", &place.conf(json!({"mtu": 1})), &[]), 7, "mtu: 1 is not in the range 1280"),
        (place.plugin("CHECK", &conf, &[]), 7, "prevResult: missing"),
        (place.plugin("GC", &conf, &[]), 7, "cni.dev/valid-attachments: missing"),
        (place.plugin("GC", &place.conf(json!({"cniVersion": "1.0.0"})), &[]), 1, "cniVersion: 1.0.0 has no GC"),
    ] {
        let (found, details) = error(&output);
        assert_eq!(found, code, "{details}");
        assert!(details.contains(says), "{details} does not say {says}");
    }
    // Errors use the runtime's CNI version.
    let output = place.plugin("ADD", &place.conf(json!({"cniVersion": "0.4.0", "mtu": 1})), &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"cniVersion\": \"0.4.0\""));
}

#[test]
fn without_a_vswitch_a_pod_may_be_added_later_and_its_end_is_made_up_for() {
    let place = Place::new("away");
    place.ipam("echo called >> calls");
    let conf = place.conf(json!({"ipam": {"type": "fake-ipam"}}));
    let (code, details) = error(&place.plugin("ADD", &conf, &[]));
    assert_eq!(code, 11, "{details}");
    assert!(details.contains(place.socket().to_str().unwrap()) && details.contains("start the vswitch"), "{details}");
    assert!(!place.path("calls").exists(), "no address is taken for nothing");
    assert_eq!(error(&place.plugin("STATUS", &conf, &[])).0, 51);

    // DEL may be repeated, without a namespace and with any arguments.
    assert_silent_success(&place.plugin("DEL", &conf, &[]));
    assert_silent_success(&place.plugin("DEL", &conf, &[("CNI_NETNS", ""), ("CNI_ARGS", "nonsense")]));
    assert_silent_success(&place.plugin("DEL", &conf, &[("CNI_CONTAINERID", "c2")]));
    let mut missed = place.missed();
    missed.sort_by_key(Value::to_string);
    let entry = |container: &str| json!({"version": 1, "container": container, "container_interface": "eth0"});
    assert_eq!(missed, [entry("c1"), entry("c2")]);
    assert_eq!(fs::read_to_string(place.path("calls")).unwrap().lines().count(), 3, "addresses are given back at once");

    let vswitch = FakeVswitch::content(&place.socket());
    assert_silent_success(&place.plugin("DEL", &conf, &[("CNI_CONTAINERID", "c3")]));
    let asked = vswitch.asked();
    let removed: Vec<&str> = asked.iter().map(|request| request["arguments"]["container"].as_str().unwrap()).collect();
    assert!(removed[0] == "c3" && removed[1..].contains(&"c1") && removed[1..].contains(&"c2"), "{removed:?}");
    assert!(asked.iter().all(|request| request["request"] == "remove_port") && place.missed().is_empty());
}

#[test]
fn an_end_that_can_be_neither_told_nor_kept_is_tried_again() {
    let place = Place::new("nowhere");
    let conf = place.conf(json!({"socket": "/dev/null/admin.sock"}));
    let (code, details) = error(&place.plugin("DEL", &conf, &[]));
    assert!(code == 11 && details.contains("the removal cannot be recorded for later"), "{details}");
}

#[test]
fn what_was_missed_is_made_up_for_before_a_pod_is_added() {
    let place = Place::new("order");
    place.ipam("exit 1");
    let conf = place.conf(json!({"ipam": {"type": "fake-ipam"}}));
    assert_eq!(error(&place.plugin("DEL", &conf, &[("CNI_CONTAINERID", "old")])).0, 103);
    assert_eq!(place.missed().len(), 1, "kept, whatever else fails");
    let vswitch = FakeVswitch::content(&place.socket());
    // The ADD fails afterwards, because the file is not a namespace.
    assert_eq!(error(&place.plugin("ADD", &conf, &[])).0, 4);
    let asked = vswitch.asked();
    assert_eq!((&asked[0]["request"], &asked[0]["arguments"]["container"]), (&json!("remove_port"), &json!("old")));
}

#[test]
fn status_tells_by_its_code_whether_pods_that_run_are_cut_off() {
    let place = Place::new("status");
    let conf = place.conf(json!({}));
    for (ready, denying, code) in [(true, false, None), (false, false, Some(50)), (false, true, Some(51))] {
        let answer = move |_: &Value| json!({"answer": {"node": "n", "ready": ready, "denying": denying, "new": []}});
        let _vswitch = FakeVswitch::start(&place.socket(), answer);
        // For STATUS a runtime sets only the command and the path.
        let unsaid = [("CNI_CONTAINERID", ""), ("CNI_NETNS", ""), ("CNI_IFNAME", "")];
        let output = place.plugin("STATUS", &conf, &unsaid);
        match code {
            None => assert_silent_success(&output),
            Some(code) => assert_eq!(error(&output).0, code),
        }
    }
    let _vswitch = FakeVswitch::content(&place.socket());
    place.ipam(r#"echo '{"cniVersion":"1.1.0","code":50,"msg":"no addresses","details":"all 254 are taken"}'; exit 1"#);
    let (code, details) = error(&place.plugin("STATUS", &place.conf(json!({"ipam": {"type": "fake-ipam"}})), &[]));
    assert!(code == 50 && details == "all 254 are taken", "{code} {details}");
}

#[test]
fn another_plugin_is_run_with_the_same_environment_and_configuration() {
    let place = Place::new("ipam");
    let _vswitch = FakeVswitch::content(&place.socket());
    place.ipam(
        "cat > input; env | grep ^CNI_ | sort > environment; echo heard >&2\n\
         echo '{\"code\": 105, \"msg\": \"no such lease\", \"details\": \"of c1\"}'; exit 1",
    );
    let conf = place.conf(json!({"ipam": {"type": "fake-ipam", "own": [1, 2]}, "keyA": 1}));
    let output = place.plugin("DEL", &conf, &[]);
    assert_eq!(error(&output), (105, "of c1".to_owned()), "its own words");
    assert_eq!(output.stderr, b"heard\n");
    assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(place.path("input")).unwrap()).unwrap(), conf);
    let environment = fs::read_to_string(place.path("environment")).unwrap();
    let said =
        ["CNI_ARGS=IgnoreUnknown=1;K8S", "CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/"];
    for part in said.into_iter().chain(["CNI_PATH=/"]) {
        assert!(environment.contains(part), "{environment}");
    }
    place.ipam("echo oops; exit 3");
    assert_eq!(error(&place.plugin("DEL", &conf, &[])), (103, "fake-ipam: exit status: 3: oops".to_owned()));
    let (code, details) = error(&place.plugin("DEL", &place.conf(json!({"ipam": {"type": "none"}})), &[]));
    assert!(code == 4 && details.starts_with("CNI_PATH: it does not contain the IPAM plugin `none`: /"), "{details}");
    assert!(details.ends_with("; install the plugin there, or name another one in ipam.type"), "{details}");
}

#[test]
fn garbage_is_collected_by_the_vswitch_and_by_the_ipam_plugin() {
    let place = Place::new("gc");
    place.ipam("echo $CNI_COMMAND >> calls; cat > input");
    let attachments = json!([{"containerID": "c1", "ifname": "eth0"}]);
    let conf = place.conf(json!({"ipam": {"type": "fake-ipam"}, "cni.dev/valid-attachments": attachments}));
    let (code, _) = error(&place.plugin("GC", &conf, &[]));
    assert_eq!(code, 11, "the error tells the runtime that garbage is left");
    assert_eq!(fs::read_to_string(place.path("calls")).unwrap(), "GC\n", "but what could be");
    let vswitch = FakeVswitch::content(&place.socket());
    assert_silent_success(&place.plugin("GC", &conf, &[]));
    let asked = vswitch.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["request"], "retain_ports");
    let kept = asked[0]["arguments"]["keep"].as_array().unwrap();
    assert_eq!(kept, &[json!({"container": "c1", "container_interface": "eth0"})]);
    assert_eq!(asked[0]["arguments"]["network"], "pods");
}

#[test]
fn an_init_container_has_the_api_server_tell_the_nodes_blocks() {
    let place = Place::new("install-node");
    let server = ApiServer::start(1);
    for (name, block) in [("node-1", "10.244.1.0/24"), ("node-2", "10.244.2.0/24")] {
        let spec = json!({"podCIDRs": [block, "fd00:244::/64"]});
        server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}));
    }
    fs::write(place.path("kubeconfig"), server.kubeconfig()).unwrap();
    let [bin, conf, kubeconfig] =
        ["bin", "net.d", "kubeconfig"].map(|name| place.path(name).to_str().unwrap().to_owned());
    let install = |node: &str| {
        let words =
            ["cni", "install", "--bin-dir", &bin, "--conf-dir", &conf, "--node", node, "--kubeconfig", &kubeconfig];
        bulkhead(&[&words[..], &["--timeout", "300ms"]].concat())
    };
    let unknown = install("node-3");
    let told = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        unknown.status.code() == Some(2)
            && told.contains("the API server did not report")
            && told.contains("help: give the pods' address ranges with --node-range node-3=CIDR, or have"),
        "{told}"
    );
    assert!(!place.path("net.d").exists(), "nothing is installed that cannot work");
    stdout(&install("node-2"), 0);
    let installed: Value =
        serde_json::from_slice(&fs::read(place.path("net.d/05-bulkhead.conflist")).unwrap()).unwrap();
    let expected = json!([[{"subnet": "10.244.2.0/24"}], [{"subnet": "fd00:244::/64"}]]);
    assert_eq!(installed["plugins"][0]["ipam"]["ranges"], expected);
}

#[test]
fn a_node_without_pod_cidrs_uses_its_ranges_of_a_list_for_all_nodes() {
    let place = Place::new("install-ranges");
    let (bin, conf) = (place.text("bin"), place.text("net.d"));
    let install = |more: &[&str]| {
        let words = ["cni", "install", "--bin-dir", &bin, "--conf-dir", &conf];
        bulkhead(&[&words[..], more].concat())
    };
    let lists =
        ["node-1=10.9.1.0/24", "node-2=10.9.2.0/24", "node-2=fd00:2::/64"].map(|one| format!("--node-range={one}"));
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    // No API server is asked.
    stdout(&install(&[&["--node", "node-2"], &lists[..]].concat()), 0);
    let installed: Value =
        serde_json::from_slice(&fs::read(place.path("net.d/05-bulkhead.conflist")).unwrap()).unwrap();
    let expected = json!([[{"subnet": "10.9.2.0/24"}], [{"subnet": "fd00:2::/64"}]]);
    assert_eq!(installed["plugins"][0]["ipam"]["ranges"], expected);
    for (words, says) in [
        (vec!["--node-range", "node-1=10.9.1.0/24"], "--node <NAME>"),
        (vec!["--node", "n", "--node-range", "10.9.1.0/24"], "write NODE=CIDR"),
        (
            vec!["--node", "n", "--node-range", "n=10.9.1.0/24", "--node-range", "m=10.9.0.0/16"],
            "m overlaps with 10.9.1.0/24 of n",
        ),
        (vec!["--node", "n", "--node-range", "n=10.9.1.0/31"], "ranges[0][0].subnet: 10.9.1.0/31 is too small"),
        (vec!["--range", "10.9.1.0/24", "--range", "10.9.1.0/25"], "ranges[0][1]: overlaps with ranges[0][0]"),
    ] {
        let output = install(&words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(says), "{told} does not say {says}");
    }
}

#[test]
fn it_is_installed_and_removed_without_a_trace() {
    let place = Place::new("install");
    let (bin, conf) = (place.text("bin"), place.text("net.d"));
    let places = ["--bin-dir", &bin, "--conf-dir", &conf];
    fs::create_dir(&conf).unwrap();
    fs::write(place.path("net.d/10-other.conflist"), "{}").unwrap();
    let ranges = ["--range", "10.244.1.0/24", "--range", "fd00:244:1::/64"];
    for _ in 0..2 {
        let told = stdout(&bulkhead(&[&["cni", "install"][..], &places, &ranges].concat()), 0);
        assert!(told.contains("bulkhead-cni") && told.contains("05-bulkhead.conflist"), "{told}");
    }
    let written: Value = serde_json::from_slice(&fs::read(place.path("net.d/05-bulkhead.conflist")).unwrap()).unwrap();
    assert_eq!(written["plugins"][0]["type"], "bulkhead-cni");
    let sets = json!([[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:1::/64"}]]);
    assert_eq!((&written["cniVersion"], &written["plugins"][0]["ipam"]["ranges"]), (&json!("1.0.0"), &sets));
    let installed = place.path("bin/bulkhead-cni");
    assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(stdout(&run_program(&installed, &[], &[("CNI_COMMAND", "VERSION")], b""), 0).contains("supportedVersions"));
    let names = |folder: &str| {
        fs::read_dir(place.path(folder)).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!((names("bin").len(), names("net.d").len()), (1, 2), "nothing half-written is left");

    for _ in 0..2 {
        stdout(&bulkhead(&[&["cni", "uninstall"][..], &places].concat()), 0);
    }
    assert!(names("bin").is_empty() && names("net.d") == ["10-other.conflist"]);
    let other = [&["cni", "uninstall"][..], &places, &["--conflist-name", "10-other.conflist"]].concat();
    let output = bulkhead(&other);
    assert!(
        output.status.code() == Some(2)
            && String::from_utf8_lossy(&output.stderr).contains("belongs to another plugin")
    );
    assert_eq!(names("net.d"), ["10-other.conflist"]);
}

#[test]
fn what_cannot_be_installed_is_told_with_its_place_and_the_remedy() {
    let place = Place::new("install-refused");
    fs::write(place.path("file"), "").unwrap();
    let (good, bad) = (place.text("folder"), place.text("file/folder"));
    for (bin, conf, more, says) in [
        // A file in place of a folder prevents writing, also for root.
        (&bad, &good, [""; 2], ["file/folder/bulkhead-cni: Not a directory", "of the node with --bin-dir"]),
        (&good, &bad, [""; 2], ["file/folder/05-bulkhead.conflist: Not a directory", "of the node with --conf-dir"]),
        (
            &good,
            &good,
            ["--socket", "admin.sock"],
            ["--socket: admin.sock is not an absolute path", "help: give a path such as /run"],
        ),
        (&good, &good, ["--conflist-name", "a.conf"], ["--conflist-name: `a.conf` is not", "ends in .conflist"]),
    ] {
        let words = ["cni", "install", "--range", "10.244.1.0/24", "--bin-dir", bin, "--conf-dir", conf];
        let more = more.iter().filter(|word| !word.is_empty());
        let output = bulkhead(&words.iter().chain(more).copied().collect::<Vec<_>>());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(says.iter().all(|part| told.contains(part)), "{told} does not say {says:?}");
        assert!(!place.path("folder/05-bulkhead.conflist").exists(), "no runtime takes pods");
    }
    let words = ["cni", "install", "--range", "10.244.1.0/24", "--bin-dir", &good, "--conf-dir", &good];
    let output = bulkhead(&words);
    stdout(&output, 0);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "no other plugin is needed");
}

#[test]
fn the_vswitch_is_asked_where_pods_of_the_node_have_their_addresses() {
    let place = Place::new("ranges");
    let (bin, conf, socket) = (place.text("bin"), place.text("net.d"), place.text("admin.sock"));
    let words = ["cni", "install", "--bin-dir", &bin, "--conf-dir", &conf, "--socket", &socket, "--timeout", "300ms"];
    let output = bulkhead(&words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && said.contains("start the vswitch")
            && said.contains("help: give the pods' address ranges with --range CIDR, or have kube-controller-manager"),
        "{said}"
    );
    assert!(!place.path("net.d").exists() && !place.path("bin").exists(), "nothing is installed that cannot work");
    let knows = |networks: Value| move |_: &Value| json!({"answer": {"node": "node-1", "ready": true, "denying": false, "pod_networks": networks}});
    let vswitch = FakeVswitch::start(&place.socket(), knows(json!([])));
    let output = bulkhead(&words);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it has no Node node-1 with podCIDRs"));
    drop(vswitch);
    let _vswitch = FakeVswitch::start(&place.socket(), knows(json!(["10.244.7.0/24"])));
    stdout(&bulkhead(&words), 0);
    let written: Value = serde_json::from_slice(&fs::read(place.path("net.d/05-bulkhead.conflist")).unwrap()).unwrap();
    assert_eq!(written["plugins"][0]["ipam"]["ranges"], json!([[{"subnet": "10.244.7.0/24"}]]));
    assert_eq!(
        (&written["cniVersions"], &written["plugins"][0]["socket"]),
        (&json!(["1.0.0", "1.1.0"]), &json!(socket))
    );
}
