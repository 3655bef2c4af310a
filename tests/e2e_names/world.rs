//! A client whose rule names domains, a DNS server, and the machine outside that has all addresses.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::e2e_services::{Endpoint, service};
use crate::lab::lasting::{answers, connect_to};
use crate::lab::netns::Running;
use crate::lab::{Lab, Pod};

/// The cluster addresses of the DNS Service.
pub(super) const DNS: &str = "10.96.0.10";
pub(super) const DNS6: &str = "fd96::10";

/// The addresses of `www.example.com`, which belong to the machine outside.
pub(super) const WEB: &str = "203.0.113.1";
pub(super) const WEB6: &str = "2001:db8:1::1";

/// The number of names `n0.many.example.org` and so on, with a TTL of 2 s and one address each: 203.0.113.2 and so on.
pub(super) const MANY: u32 = 200;
/// The number of names `k0.long.example.org` and so on, with a TTL of an hour and one address each: 203.0.113.2 and so on.
pub(super) const LONG: u32 = 100;

/// Time limit of a connect. The kernel sends a SYN again after 1 s: within this limit only the first one counts.
const FIRST: Duration = Duration::from_millis(900);

/// Returns the clients' policy as YAML: they may reach DNS and this TCP port of names that match `patterns`, and nothing else.
fn names(patterns: &str, port: u16) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: names}}\n\
         spec: {{tier: Admin, priority: 10, subject: {{pods: {{podSelector: {{matchLabels: {{app: client}}}}}}}}, egress: [\
         {{name: dns, action: Accept, to: [{{pods: {{podSelector: {{matchLabels: {{app: dns}}}}}}}}], \
         protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}, {{tcp: {{destinationPort: {{number: 53}}}}}}]}}, \
         {{name: web, action: Accept, to: [{{domainNames: [{patterns}]}}], protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]}}, \
         {{name: rest, action: Deny, to: [{{networks: [0.0.0.0/0, '::/0']}}]}}]}}\n"
    )
}

/// Returns a DNS query for the address of a name, which has an id and asks for recursion.
pub(super) fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// A lab with pods `client` and `twin`, whose rule names domains, a pod `other` without rules, and the cluster's DNS server in pod `dns`.
/// The machine outside has all addresses of 203.0.113.0/24 and 2001:db8:1::/64, with an echo server on port 80.
pub(super) struct World {
    pub(super) lab: Lab,
    /// The TCP port of the clients' rule.
    port: u16,
    _programs: Vec<Running>,
}

impl World {
    /// Starts the world with dnsmasq as DNS server. Addresses are valid for 1 s after their TTL.
    pub(super) fn new(patterns: &str) -> Self {
        Self::with(patterns, "1s", dnsmasq)
    }

    /// Starts the world with another DNS server, whose command line `server` returns, and another grace.
    pub(super) fn with(patterns: &str, grace: &str, server: impl FnOnce(&Lab) -> String) -> Self {
        Self::with_port(patterns, grace, server, 80)
    }

    /// Like [`World::with`], and the clients may reach another TCP port than 80. More settings may follow the grace.
    pub(super) fn with_port(patterns: &str, grace: &str, server: impl FnOnce(&Lab) -> String, port: u16) -> Self {
        let mut lab = Lab::new();
        lab.more_config =
            format!("services: {{service_cidrs: [10.96.0.0/12, 'fd96::/64']}}\nnames: {{grace: {grace}}}\n");
        for (name, app) in [("client", "client"), ("twin", "client"), ("other", "other"), ("dns", "dns")] {
            lab.pod(name, &format!("{{app: {app}}}"));
        }
        lab.outside();
        let outside = lab.outside.as_ref().unwrap();
        for block in ["203.0.113.0/24", "2001:db8:1::/64"] {
            outside.ip(&format!("route add local {block} dev lo"));
        }
        lab.more_config.push_str(
            "routes: [{prefix: 203.0.113.0/24, via: 172.18.0.100, port: uplink}, \
             {prefix: '2001:db8:1::/64', via: 'fd00:18::100', port: uplink}]\n",
        );
        let web = outside.serve("socat TCP6-LISTEN:80,fork,reuseaddr,backlog=128,ipv6-v6only=0 EXEC:cat", 80);
        let dns = lab.get("dns").netns.serve(&server(&lab), 53);
        std::fs::write(lab.path("resolv.conf"), format!("nameserver {DNS}\n")).unwrap();
        let mut world = Self { lab, port, _programs: vec![web, dns] };
        let text = world.objects(patterns);
        world.lab.start(&text);
        world
    }

    /// Returns, as YAML, the cluster's DNS Service and the clients' policy with these patterns.
    pub(super) fn objects(&self, patterns: &str) -> String {
        let endpoint = || Endpoint::of(self.lab.get("dns"), 53);
        let of = |port: &str| service("kube-dns", [DNS, DNS6], "", port, &[endpoint()]);
        let ports = "{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}";
        let text = of(ports).replace("namespace: default", "namespace: kube-system");
        let slices = "[{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]";
        let text = text.replace("[{name: '', port: 53, protocol: UDP}]", slices);
        format!(
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: kube-system}}\n{text}{}",
            names(patterns, self.port)
        )
    }

    pub(super) fn client(&self) -> &Pod {
        self.lab.get("client")
    }

    /// Opens a TCP connection from a pod to port 80 of an address. `None` if the first SYN is not answered.
    pub(super) fn connect_from(&self, pod: &str, address: &str) -> Option<TcpStream> {
        let stream = connect_to(self.lab.get(pod), SocketAddr::new(address.parse().unwrap(), 80), FIRST).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Some(stream)
    }

    /// Opens a TCP connection from the client.
    pub(super) fn connect(&self, address: &str) -> Option<TcpStream> {
        self.connect_from("client", address)
    }

    /// Whether the client can connect and get an answer.
    pub(super) fn connects(&self, address: &str) -> bool {
        self.connect(address).is_some_and(|mut stream| answers(&mut stream))
    }

    /// Runs `dig +short` with these arguments in the client. Returns the lines of its output.
    pub(super) fn dig(&self, words: &str) -> Vec<String> {
        let said = self.client().netns.exec(&format!("dig +short +time=2 +tries=2 {words}"));
        said.lines().map(str::to_owned).collect()
    }

    /// Runs a shell script in the client, whose `/etc/resolv.conf` has the cluster's DNS server only. Returns its output.
    pub(super) fn resolving(&self, script: &str) -> String {
        let script = format!("mount --bind {} /etc/resolv.conf && {script}", self.lab.path("resolv.conf").display());
        let output = self.client().netns.command("unshare", &["-m", "sh", "-c", &script]).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Returns how many packets policy has denied.
    pub(super) fn denied(&mut self) -> u64 {
        self.lab.summary()["dropped"]["policy_denied"].as_u64().unwrap_or_default()
    }
}

/// Returns the command line of dnsmasq with the world's names.
pub(super) fn dnsmasq(_lab: &Lab) -> String {
    let mut line = format!(
        "dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file --user=root --local-ttl=2 \
         --local=/example.org/ --address=/www.example.com/{WEB} --address=/www.example.com/{WEB6} --address=/evil.example.net/203.0.113.250 \
         --host-record=cdn.example.net,203.0.113.240,60 --cname=alias.example.org,cdn.example.net,60"
    );
    for at in 0..MANY {
        write!(line, " --host-record=n{at}.many.example.org,203.0.113.{},2", at + 2).unwrap();
    }
    for at in 0..LONG {
        write!(line, " --host-record=k{at}.long.example.org,203.0.113.{},3600", at + 2).unwrap();
        write!(line, " --host-record=big.example.org,203.0.113.{at}").unwrap();
    }
    line
}

/// Writes unbound's configuration with the same names, and returns its command line.
pub(super) fn unbound(lab: &Lab) -> String {
    let mut text = "server:\n  interface: 0.0.0.0\n  interface: ::0\n  interface-automatic: yes\n  access-control: 0.0.0.0/0 allow\n  \
         access-control: ::/0 allow\n  do-daemonize: no\n  username: ''\n  chroot: ''\n  directory: /\n  pidfile: ''\n  \
         use-syslog: no\n  module-config: iterator\n  local-zone: 'example.com.' static\n  local-zone: 'example.org.' static\n"
        .to_owned();
    let mut record =
        |name: &str, ttl: u32, data: &str| writeln!(text, "  local-data: '{name}. {ttl} IN {data}'").unwrap();
    record("www.example.com", 2, &format!("A {WEB}"));
    record("www.example.com", 2, &format!("AAAA {WEB6}"));
    for at in 0..MANY {
        record(&format!("n{at}.many.example.org"), 2, &format!("A 203.0.113.{}", at + 2));
    }
    for at in 0..LONG {
        record("big.example.org", 60, &format!("A 203.0.113.{at}"));
    }
    let file = lab.path("unbound.conf");
    std::fs::write(&file, text).unwrap();
    format!("unbound -d -c {}", file.display())
}
