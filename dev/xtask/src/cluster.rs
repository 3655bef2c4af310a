//! The tests with a real etcd and kube-apiserver, and with a real kubelet where containerd is installed.
//!
//! The programs are those that the environment names, or else Debian's `etcd` and `containerd`, and a kube-apiserver and a kubelet that
//! are built once from Debian's own source package, because Debian has no binary packages of them.

use std::env;
use std::path::{Path, PathBuf};

use crate::step::{Step, root, tests};

/// Where a program is when the environment does not name another one, or why not.
struct Program {
    variable: &'static str,
    path: PathBuf,
    /// Its name where it is one of Kubernetes' own, which are built.
    built: Option<&'static str>,
}

impl Program {
    /// One of a package of Debian.
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

/// Runs them. Without the programs and without Debian it says what is missing.
pub(super) fn run() -> bool {
    let mut programs = vec![
        Program::packaged("BULKHEAD_ETCD", "/usr/bin/etcd"),
        Program::of_kubernetes("BULKHEAD_KUBE_APISERVER", "kube-apiserver"),
    ];
    let containerd = Program::packaged("BULKHEAD_CONTAINERD", "/usr/bin/containerd");
    if containerd.path.is_file() {
        programs.extend([containerd, Program::of_kubernetes("BULKHEAD_KUBELET", "kubelet")]);
    } else {
        println!(
            "cluster: no test with a kubelet, {} is not there; install it with runc and busybox-static, or name another one in {}",
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
        eprintln!("cluster: {} is not there; install it, or name another one in {variable}", path.display());
        return false;
    }
    // With the features of `test`, so that nothing is built twice. Two at a time, because each mostly waits: for servers that start, for
    // probes, for a minute without a server.
    let step = tests(&["--test", "all", "--", "cluster::", "--test-threads", "2", "--show-output"]);
    programs.iter().fold(step, |step, program| step.env(program.variable, text(&program.path))).run()
}

fn text(path: &Path) -> &str {
    // The project's folder and the environment are given as text, too.
    path.to_str().unwrap_or_default()
}
