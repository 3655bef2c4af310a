//! The tests with a real etcd and kube-apiserver.
//!
//! The programs are those that the environment names, or else Debian's `etcd` and a kube-apiserver that is built once from
//! Debian's own source package, because Debian has no binary package of it.

use std::env;
use std::path::{Path, PathBuf};

use super::{Step, cargo, root};

/// Runs them. Without the programs and without Debian it says what is missing.
pub(super) fn run() -> bool {
    let named = |name: &str, or: fn() -> PathBuf| env::var_os(name).map_or_else(or, PathBuf::from);
    let etcd = named("BULKHEAD_ETCD", || PathBuf::from("/usr/bin/etcd"));
    let server = named("BULKHEAD_KUBE_APISERVER", || root().join("target/cluster/kube-apiserver"));
    if !server.is_file() && env::var_os("BULKHEAD_KUBE_APISERVER").is_none() {
        let script = root().join("tests/cluster/build-apiserver");
        let folder = root().join("target/cluster");
        if !Step::new(text(&script), &[text(&folder)]).run() {
            return false;
        }
    }
    for (program, name) in [(&etcd, "BULKHEAD_ETCD"), (&server, "BULKHEAD_KUBE_APISERVER")] {
        if !program.is_file() {
            eprintln!("cluster: {} is not there; install it, or name another one in {name}", program.display());
            return false;
        }
    }
    // With the features of `test`, so that nothing is built twice.
    cargo(&["test", "--workspace", "--test", "cluster", "--", "--test-threads", "1", "--nocapture"])
        .env("BULKHEAD_ETCD", text(&etcd))
        .env("BULKHEAD_KUBE_APISERVER", text(&server))
        .run()
}

fn text(path: &Path) -> &str {
    // The project's folder and the environment are given as text, too.
    path.to_str().unwrap_or_default()
}
