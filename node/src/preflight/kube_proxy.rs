//! Whether kube-proxy is on this node, and what that means beside the vswitch.
//!
//! kube-proxy translates in the node's kernel, before the vswitch has a packet of the node's own processes, and what comes in over the
//! node's own network card for NodePorts and external addresses. It is seen by what it leaves in the kernel, and by itself where that is
//! visible: a vswitch in a container sees no other container's processes, but shares the node's loopback interface.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_dataplane::io::has_nft_rules;

use super::{Finding, Severity};
use crate::config::Config;
use bulkhead_answers::services::OFF;

/// As the kernel has it for processes (`comm`), and for the table in the mode nftables.
const NAME: &str = "kube-proxy";
/// The interface of the mode ipvs, with the addresses of all Services.
const INTERFACE: &str = "kube-ipvs0";
/// Where its metrics are unless somebody has configured another address; no other program has the path /proxyMode.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);
/// How long its answer may take. Nobody there is told at once, and who is there answers within a millisecond.
const PATIENCE: Duration = Duration::from_millis(300);

/// What is seen of kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeProxy {
    /// By what it is known to run.
    pub(super) runs: Option<String>,
    /// What of it is in the kernel. Its own clean-up would remove that; its end alone does not.
    pub(super) traces: Vec<&'static str>,
}

impl KubeProxy {
    /// Looks, in this thread's network namespace, which has interfaces of these names. What cannot be learned is taken for absent.
    pub(super) fn gather(interfaces: &BTreeSet<String>) -> Self {
        let has = |table, chain| has_nft_rules(table, chain).unwrap_or_default();
        let traces = [
            (interfaces.contains(INTERFACE), "the interface kube-ipvs0"),
            (has(NAME, None), "the nftables table kube-proxy"),
            (has("nat", Some("KUBE-SERVICES")), "the iptables chain KUBE-SERVICES"),
        ];
        let process = || has_process().then(|| "a process of that name".to_owned());
        let metrics = || mode_at(METRICS).map(|mode| format!("mode {mode}, as {METRICS} says"));
        Self {
            runs: process().or_else(metrics),
            traces: traces.into_iter().filter_map(|(is_there, what)| is_there.then_some(what)).collect(),
        }
    }

    /// Whether nothing is seen of it.
    pub(super) fn is_absent(&self) -> bool {
        *self == Self::default()
    }

    /// By what it is seen.
    fn told(&self) -> String {
        let seen: Vec<&str> = self.runs.as_deref().into_iter().chain(self.traces.iter().copied()).collect();
        match self.runs {
            Some(_) => format!("kube-proxy runs on this node ({})", seen.join(", ")),
            None => format!("rules of kube-proxy are in this node's kernel ({})", seen.join(", ")),
        }
    }
}

/// Who translates Services on this node, and what will not work.
pub(crate) fn judge(config: &Config, proxy: &KubeProxy) -> Option<Finding> {
    let finding = |what, why: &str, remedy: &str| {
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        Some(Finding { severity: Severity::Warning, what, why, remedy, comes_again: false })
    };
    match (config.services.is_some(), proxy.is_absent()) {
        (true, true) => None,
        (true, false) => finding(
            proxy.told(),
            "it translates what the node's own processes send to Services, and what comes over the node's own network card for NodePorts \
             and external addresses, before the vswitch has it: such a connection comes to a pod with the node's address, which \
             NetworkPolicies let pass. What pods send to Services is the vswitch's",
            match proxy.runs {
                Some(_) => {
                    "the vswitch needs no kube-proxy: stop it (kubectl -n kube-system delete daemonset kube-proxy), and remove what it \
                     leaves: kube-proxy --cleanup\nor leave it for NodePorts where no port of kind uplink takes them"
                }
                None => "kube-proxy --cleanup, where it does not run any more",
            },
        ),
        (false, true) => finding(
            "Services are off, and no kube-proxy is seen on this node".to_owned(),
            OFF,
            "write `services: {}`, or leave the field out; else let something translate before packets come to the vswitch",
        ),
        (false, false) => finding(
            format!("Services are off; {}", proxy.told()),
            "without its option --masquerade-all pods reach no cluster address that leads to a pod of their own node, as it may with the \
             cluster's DNS; what it masquerades comes with the node's address, which NetworkPolicies let pass",
            "write `services: {}`, or leave the field out; then stop kube-proxy",
        ),
    }
}

/// Whether a process of the name is in this thread's network namespace, as far as processes are visible.
fn has_process() -> bool {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let own = namespace(Path::new("/proc/thread-self"));
    let is_named = |process: &Path| fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim_end() == NAME);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    own.is_some() && processes.filter(|process| is_named(process)).any(|process| namespace(&process) == own)
}

/// The mode of the kube-proxy whose metrics are there: `iptables`, `ipvs`, `nftables`.
fn mode_at(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /proxyMode HTTP/1.0\r\n\r\n").ok()?;
    let (mut answer, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    let mut piece = [0; 1024];
    // Whatever else is there may talk for ever.
    while answer.len() < 4096 && Instant::now() < deadline {
        match stream.read(&mut piece).ok()? {
            0 => break,
            len => answer.extend_from_slice(&piece[..len]),
        }
    }
    let answer = String::from_utf8(answer).ok()?;
    let (head, mode) = answer.split_once("\r\n\r\n")?;
    let is_mode = !mode.is_empty() && mode.len() < 32 && mode.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (head.starts_with("HTTP/") && head.contains(" 200 ") && is_mode).then(|| mode.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn found(services: &str, proxy: &KubeProxy) -> Option<Finding> {
        let text = format!("node: n\nstate: {{paths: [s]}}\nports: []\nservices: {services}\n");
        let config = Config::parse("c", &text, Path::new("")).unwrap();
        judge(&config, proxy)
    }

    #[test]
    fn a_proxy_beside_us_is_told_and_one_that_lacks_is_told_where_services_are_left_to_it() {
        assert_eq!(found("{}", &KubeProxy::default()), None);
        let left = KubeProxy { runs: None, traces: vec!["the nftables table kube-proxy", "the interface kube-ipvs0"] };
        let running = KubeProxy { runs: Some("mode iptables, as 127.0.0.1:10249 says".to_owned()), traces: Vec::new() };
        let told = |services, proxy: &KubeProxy| found(services, proxy).unwrap();
        let finding = told("{}", &left);
        assert_eq!(
            finding.what,
            "rules of kube-proxy are in this node's kernel (the nftables table kube-proxy, the interface kube-ipvs0)"
        );
        assert!(finding.remedy.starts_with("kube-proxy --cleanup"), "{finding}");
        let finding = told("{}", &running);
        assert_eq!(finding.what, "kube-proxy runs on this node (mode iptables, as 127.0.0.1:10249 says)");
        assert!(
            finding.remedy.contains("delete daemonset kube-proxy") && finding.why.contains("NodePorts"),
            "{finding}"
        );
        let finding = told("off", &running);
        assert!(
            finding.what.starts_with("Services are off; kube-proxy runs") && finding.why.contains("--masquerade-all"),
            "{finding}"
        );
        let finding = told("off", &KubeProxy::default());
        assert!(finding.what.contains("no kube-proxy is seen") && finding.why.contains("cluster's DNS"), "{finding}");
    }

    #[test]
    fn the_mode_is_taken_from_an_answer_that_only_kube_proxy_gives() {
        let answered = |answer: &'static str| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 27];
                stream.read_exact(&mut asked).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let mode = mode_at(address);
            server.join().unwrap();
            mode
        };
        assert_eq!(
            answered("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nnftables").as_deref(),
            Some("nftables")
        );
        for other in ["HTTP/1.0 404 Not Found\r\n\r\nno", "SSH-2.0-x\r\n", "HTTP/1.0 200 OK\r\n\r\n<html>"] {
            assert_eq!(answered(other), None, "{other}");
        }
    }
}
