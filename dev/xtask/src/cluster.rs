//! Tests with a real etcd and kube-apiserver, and with a real kubelet if containerd is installed. Environment variables can name the
//! programs. By default etcd and containerd are Debian's packages. kube-apiserver, kubelet and kube-controller-manager are built once from
//! Debian's source package, since Debian has no binary packages of them.

use std::env;
use std::path::{Path, PathBuf};

use crate::step::{Step, root, tests};

/// The path of a program, from the environment or the default.
struct Program {
    variable: &'static str,
    path: PathBuf,
    /// Name of the Kubernetes program to build if it is missing. `None` for a program of a Debian package.
    built: Option<&'static str>,
}

impl Program {
    /// Returns a program of a Debian package. `variable` may hold another path than `usual`.
    fn packaged(variable: &'static str, usual: &str) -> Self {
        Self { variable, path: env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from), built: None }
    }

    fn of_kubernetes(variable: &'static str, name: &'static str) -> Self {
        match env::var_os(variable) {
            Some(path) => Self { variable, path: path.into(), built: None },
            None => Self { variable, path: root().join("target/cluster").join(name), built: Some(name) },
        }
    }
}

/// The module of the test that runs alone.
const THREE_NODES: &str = "cluster::three_nodes::";

/// Runs the tests. Without the programs it prints what is missing and fails.
pub(super) fn run() -> bool {
    let mut programs = vec![
        Program::packaged("BULKHEAD_ETCD", "/usr/bin/etcd"),
        Program::of_kubernetes("BULKHEAD_KUBE_APISERVER", "kube-apiserver"),
    ];
    let containerd = Program::packaged("BULKHEAD_CONTAINERD", "/usr/bin/containerd");
    if containerd.path.is_file() {
        let controllers = Program::of_kubernetes("BULKHEAD_KUBE_CONTROLLER_MANAGER", "kube-controller-manager");
        programs.extend([containerd, Program::of_kubernetes("BULKHEAD_KUBELET", "kubelet"), controllers]);
    } else {
        println!(
            "cluster: tests with a kubelet are skipped, because {} is missing; install it with runc and busybox-static, or set {}",
            containerd.path.display(),
            containerd.variable
        );
    }
    let missing = programs.iter().filter(|program| !program.path.is_file()).filter_map(|program| program.built);
    let missing: Vec<_> = missing.collect();
    if !missing.is_empty() {
        let script = root().join("tests/cluster/build-kubernetes");
        let folder = root().join("target/cluster");
        if !Step::new(text(&script), &[&[text(&folder)][..], &missing].concat()).run() {
            return false;
        }
    }
    if let Some(Program { variable, path, .. }) = programs.iter().find(|program| !program.path.is_file()) {
        eprintln!("cluster: {} is missing; install it, or set {variable}", path.display());
        return false;
    }
    // With the features of `test`, so that nothing is built twice. Two tests at a time, because each mostly waits: for servers, for probes,
    // for a minute without a server. Three nodes use two cores.
    let usual = ["cluster::", "--skip", THREE_NODES, "--test-threads", "2", "--show-output"];
    let alone = [THREE_NODES, "--show-output"];
    [&usual[..], &alone].into_iter().all(|words| {
        let step = tests(&[&["--test", "all", "--"], words].concat());
        programs.iter().fold(step, |step, program| step.env(program.variable, text(&program.path))).run()
    })
}

fn text(path: &Path) -> &str {
    // The paths come from text, so they are UTF-8.
    path.to_str().unwrap_or_default()
}
