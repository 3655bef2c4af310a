//! Detects kube-proxy on this node, and explains how it affects the vswitch.
//!
//! kube-proxy translates in the node's kernel. So it handles traffic of the node's own processes, and NodePorts and external addresses that
//! arrive over the node's network card, before the vswitch. Detection uses its rules in the kernel, its process and its metrics. A vswitch
//! in a container does not see other containers' processes, but shares the node's loopback interface.

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

/// The name of kube-proxy's process (`comm`), and of its table in mode nftables.
const NAME: &str = "kube-proxy";
/// kube-proxy's interface in mode ipvs, with the addresses of all Services.
const INTERFACE: &str = "kube-ipvs0";
/// Default address of kube-proxy's metrics. No other program serves the path /proxyMode.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);
/// How long to wait for an answer there. A closed port fails immediately, and kube-proxy answers within a millisecond.
const PATIENCE: Duration = Duration::from_millis(300);

/// The signs of kube-proxy on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KubeProxy {
    /// The sign that it runs. `None` if it is not seen to run.
    pub(super) runs: Option<String>,
    /// kube-proxy's rules and interfaces in the kernel, which stay until `kube-proxy --cleanup`.
    pub(super) traces: Vec<&'static str>,
}

impl KubeProxy {
    /// Searches this thread's network namespace, whose interface names are `interfaces`. Counts a sign that cannot be read as absent.
    pub(super) fn gather(interfaces: &BTreeSet<String>) -> Self {
        let has = |table, chain| has_nft_rules(table, chain).unwrap_or_default();
        let traces = [
            (interfaces.contains(INTERFACE), "the interface kube-ipvs0"),
            (has(NAME, None), "the nftables table kube-proxy"),
            (has("nat", Some("KUBE-SERVICES")), "the iptables chain KUBE-SERVICES"),
        ];
        let process = || has_process().then(|| "a process of that name".to_owned());
        let metrics = || mode_at(METRICS).map(|mode| format!("mode {mode}, reported at {METRICS}"));
        Self {
            runs: process().or_else(metrics),
            traces: traces.into_iter().filter_map(|(is_there, what)| is_there.then_some(what)).collect(),
        }
    }

    /// Whether there is no sign of kube-proxy.
    pub(super) fn is_absent(&self) -> bool {
        *self == Self::default()
    }

    /// Returns a sentence that names the signs.
    fn told(&self) -> String {
        let seen: Vec<&str> = self.runs.as_deref().into_iter().chain(self.traces.iter().copied()).collect();
        match self.runs {
            Some(_) => format!("kube-proxy runs on this node ({})", seen.join(", ")),
            None => format!("rules of kube-proxy are in this node's kernel ({})", seen.join(", ")),
        }
    }
}

/// Returns a warning if kube-proxy runs beside the vswitch, or if no program translates Services. `None` otherwise.
pub(crate) fn judge(config: &Config, proxy: &KubeProxy) -> Option<Finding> {
    let finding = |what, why: &str, remedy: &str| {
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        Some(Finding { severity: Severity::Warning, what, why, remedy, comes_again: false })
    };
    match (config.services.is_some(), proxy.is_absent()) {
        (true, true) => None,
        (true, false) => finding(
            proxy.told(),
            if config.is_at_card() {
                "kube-proxy handles the connections of the node's own processes to Services, and pods see these from the node's address, which \
                 NetworkPolicies do not judge. The vswitch translates all other connections to Services"
            } else {
                "kube-proxy handles some connections before the vswitch sees them: those of the node's own processes to Services, and those to \
                 NodePorts and external addresses that arrive over the node's network card. Pods see these from the node's address, which \
                 NetworkPolicies do not judge. The vswitch translates pods' connections to Services"
            },
            match proxy.runs {
                Some(_) if config.is_at_card() => {
                    "the vswitch replaces kube-proxy: stop it (kubectl -n kube-system delete daemonset kube-proxy) and remove its rules \
                     (kube-proxy --cleanup)"
                }
                Some(_) => {
                    "the vswitch replaces kube-proxy: stop it (kubectl -n kube-system delete daemonset kube-proxy) and remove its rules \
                     (kube-proxy --cleanup)\nor keep it for NodePorts if no port of kind uplink receives them"
                }
                None => "kube-proxy --cleanup removes them; run it if kube-proxy is no longer in use",
            },
        ),
        (false, true) => finding(
            "Services are off, and no kube-proxy is seen on this node".to_owned(),
            OFF,
            "remove `services: off`, or let another program translate before packets reach the vswitch",
        ),
        (false, false) => finding(
            format!("Services are off; {}", proxy.told()),
            "unless kube-proxy has the option --masquerade-all, pods cannot reach a cluster address (such as that of the cluster's DNS) \
             whose backend is on their own node; connections that kube-proxy masquerades have the node's address, which NetworkPolicies do \
             not judge",
            "remove `services: off`, then stop kube-proxy",
        ),
    }
}

/// Whether a visible process in this thread's network namespace has kube-proxy's name.
fn has_process() -> bool {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let own = namespace(Path::new("/proc/thread-self"));
    let is_named = |process: &Path| fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim_end() == NAME);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    own.is_some() && processes.filter(|process| is_named(process)).any(|process| namespace(&process) == own)
}

/// Returns the mode that kube-proxy reports at this address: `iptables`, `ipvs` or `nftables`. `None` if it does not answer.
fn mode_at(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /proxyMode HTTP/1.0\r\n\r\n").ok()?;
    let (mut answer, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    let mut piece = [0; 1024];
    // Another program there may send data without end.
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
        let running =
            KubeProxy { runs: Some("mode iptables, reported at 127.0.0.1:10249".to_owned()), traces: Vec::new() };
        let told = |services, proxy: &KubeProxy| found(services, proxy).unwrap();
        let finding = told("{}", &left);
        assert_eq!(
            finding.what,
            "rules of kube-proxy are in this node's kernel (the nftables table kube-proxy, the interface kube-ipvs0)"
        );
        assert!(finding.remedy.starts_with("kube-proxy --cleanup"), "{finding}");
        let finding = told("{}", &running);
        assert_eq!(finding.what, "kube-proxy runs on this node (mode iptables, reported at 127.0.0.1:10249)");
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
